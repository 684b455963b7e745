/*
 * group.c - linear layers with group-wise quantized weights on a GPU
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#include <config.h>

#include "gpu/qgemm/launch.h"

HZI_NO_WORKSPACE(cuda, qlinear_group_pack)
HZI_NO_WORKSPACE(cuda, qlinear_group)

int hzi_cuda_qlinear_group_pack(struct hz_context *ctx, const struct hzi_qlinear_group_pack_args *a)
{
	(void)a;
	return hzi_fail(ctx, HZ_ENOTSUP, "qlinear_group_pack: not on a GPU yet");
}

int hzi_cuda_qlinear_group(struct hz_context *ctx, const struct hzi_qlinear_group_args *a)
{
	(void)a;
	return hzi_fail(ctx, HZ_ENOTSUP, "qlinear_group: not on a GPU yet");
}
