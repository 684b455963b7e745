/*
 * quat.c - temporary: slots to be filled
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#include <config.h>

#include "lib/quat.h"

int hzi_cuda_quat_mul(struct hz_context *ctx, const struct hzi_quat_mul_args *a)
{
	(void)a;
	return hzi_fail(ctx, HZ_ENOTSUP, "quat_mul: not there yet");
}

size_t hzi_cuda_quat_mul_workspace(const struct hz_context *ctx, const struct hzi_quat_mul_args *a)
{
	(void)ctx;
	(void)a;
	return 0;
}

int hzi_cuda_quat_mul_bwd(struct hz_context *ctx, const struct hzi_quat_mul_bwd_args *a)
{
	(void)a;
	return hzi_fail(ctx, HZ_ENOTSUP, "quat_mul_bwd: not there yet");
}

size_t hzi_cuda_quat_mul_bwd_workspace(const struct hz_context *ctx, const struct hzi_quat_mul_bwd_args *a)
{
	(void)ctx;
	(void)a;
	return 0;
}

int hzi_cuda_quat_dot(struct hz_context *ctx, const struct hzi_quat_dot_args *a)
{
	(void)a;
	return hzi_fail(ctx, HZ_ENOTSUP, "quat_dot: not there yet");
}

size_t hzi_cuda_quat_dot_workspace(const struct hz_context *ctx, const struct hzi_quat_dot_args *a)
{
	(void)ctx;
	(void)a;
	return 0;
}

int hzi_cuda_quat_axpy(struct hz_context *ctx, const struct hzi_quat_axpy_args *a)
{
	(void)a;
	return hzi_fail(ctx, HZ_ENOTSUP, "quat_axpy: not there yet");
}

size_t hzi_cuda_quat_axpy_workspace(const struct hz_context *ctx, const struct hzi_quat_axpy_args *a)
{
	(void)ctx;
	(void)a;
	return 0;
}

int hzi_cuda_quat_map(struct hz_context *ctx, const struct hzi_quat_map_args *a)
{
	(void)a;
	return hzi_fail(ctx, HZ_ENOTSUP, "quat_map: not there yet");
}

size_t hzi_cuda_quat_map_workspace(const struct hz_context *ctx, const struct hzi_quat_map_args *a)
{
	(void)ctx;
	(void)a;
	return 0;
}

int hzi_cuda_quat_map_bwd(struct hz_context *ctx, const struct hzi_quat_map_bwd_args *a)
{
	(void)a;
	return hzi_fail(ctx, HZ_ENOTSUP, "quat_map_bwd: not there yet");
}

size_t hzi_cuda_quat_map_bwd_workspace(const struct hz_context *ctx, const struct hzi_quat_map_bwd_args *a)
{
	(void)ctx;
	(void)a;
	return 0;
}

int hzi_cuda_quat_rotate(struct hz_context *ctx, const struct hzi_quat_rotate_args *a)
{
	(void)a;
	return hzi_fail(ctx, HZ_ENOTSUP, "quat_rotate: not there yet");
}

size_t hzi_cuda_quat_rotate_workspace(const struct hz_context *ctx, const struct hzi_quat_rotate_args *a)
{
	(void)ctx;
	(void)a;
	return 0;
}

int hzi_cuda_quat_rotate_bwd(struct hz_context *ctx, const struct hzi_quat_rotate_bwd_args *a)
{
	(void)a;
	return hzi_fail(ctx, HZ_ENOTSUP, "quat_rotate_bwd: not there yet");
}

size_t hzi_cuda_quat_rotate_bwd_workspace(const struct hz_context *ctx, const struct hzi_quat_rotate_bwd_args *a)
{
	(void)ctx;
	(void)a;
	return 0;
}
