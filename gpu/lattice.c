/*
 * lattice.c - launchers of the lattice quantizer
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#include <config.h>

#include "cuda.h"
#include "lib/lattice.h"

int hzi_cuda_lattice_encode(struct hz_context *ctx, const struct hzi_lattice_encode_args *a)
{
	(void)a;
	return hzi_fail(ctx, HZ_ENOTSUP, "lattice_encode: not there yet");
}

size_t hzi_cuda_lattice_encode_workspace(const struct hz_context *ctx, const struct hzi_lattice_encode_args *a)
{
	(void)ctx;
	(void)a;
	return 0;
}

int hzi_cuda_lattice_decode(struct hz_context *ctx, const struct hzi_lattice_decode_args *a)
{
	(void)a;
	return hzi_fail(ctx, HZ_ENOTSUP, "lattice_decode: not there yet");
}

size_t hzi_cuda_lattice_decode_workspace(const struct hz_context *ctx, const struct hzi_lattice_decode_args *a)
{
	(void)ctx;
	(void)a;
	return 0;
}

int hzi_cuda_lattice_repack(struct hz_context *ctx, const struct hzi_lattice_repack_args *a)
{
	(void)a;
	return hzi_fail(ctx, HZ_ENOTSUP, "lattice_repack: not there yet");
}

size_t hzi_cuda_lattice_repack_workspace(const struct hz_context *ctx, const struct hzi_lattice_repack_args *a)
{
	(void)ctx;
	(void)a;
	return 0;
}
