/*
 * grouped.c - launcher of quaternion convolutions of 8 to 24 channels in a group, by mma.sync
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#include <config.h>

#include <string.h>

#include "gpu/quat_conv/depthwise.h"
#include "gpu/quat_conv/launch.h"

HZI_LINK_IMAGES(quat_conv);

/* With one group: input times output channels up to which this beats tiles of 64 channels */
#define ALONE 256
#define ALONE_F32 64
/* Weights of a block in shared memory, so that an SM holds two blocks */
#define WEIGHTS_MOST (100 << 10)
#define COUNT_MAX ((int64_t)1 << 30)
#define BLOCKS_MOST 65535		/* gridDim.y */

static int64_t out_tiles_of(const struct hzi_quat_conv_step *a)
{
	return a->g.m > 8 ? 2 : 1;
}

/* Bytes of a block's packed weights */
static int64_t block_bytes(const struct hzi_quat_conv_step *a)
{
	const struct hzi_quat_patch_step *x = &a->x;

	return x->taps[0] * x->taps[1] * x->taps[2] * (x->channels / 8) * 4 * out_tiles_of(a) *
	       (a->g.dtype == HZ_F32 ? HZI_GROUPED_TERMS : 1) * 512;
}

static int64_t blocks_of_group(const struct hzi_quat_conv_step *a)
{
	return ceil_div(a->g.m, 8 * out_tiles_of(a));
}

const char *hzi_cuda_quat_conv_grouped_unsupported(const struct hz_context *ctx, const void *args)
{
	const struct hzi_quat_conv_step *a = args;
	const struct hzi_quat_patch_step *x = &a->x;
	const int64_t in = x->channels, unit = a->g.dtype == HZ_F32 ? 4 : 8;
	int64_t strides = 0;
	int split;

	if (!hzi_quat_conv_direct_fits(x, a->images, a->g.m) || a->g.n > COUNT_MAX)
		return "sizes are too large";
	if (in % 8 || in == 0)
		return "channels of a group are not a multiple of 8";
	if (x->taps[0] * x->taps[1] * x->taps[2] > HZI_GROUPED_TAPS_MAX)
		return "more than 32 taps";
	if (block_bytes(a) > WEIGHTS_MOST)
		return "a block's weights exceed shared memory";
	if (blocks_of_group(a) * x->groups > BLOCKS_MOST)
		return "more blocks than a grid has";
	if (a->g.dtype == HZ_F32 && !hzi_quat_uses_planar_f16(ctx, HZ_F32, a->g.precision, &split))
		return "f32 is not in split precision";
	for (int d = 0; d < 4; d++)
		strides |= x->x.stride[d];
	return x->x.whole && x->x.stride[4] == 4 && strides % unit == 0 &&
	       (uintptr_t)x->x.data % 16 == 0 ? NULL :
	       "channels of x are not contiguous and 16-byte aligned";
}

bool hzi_cuda_quat_conv_grouped_wins(const struct hzi_quat_conv_step *a)
{
	const int64_t in = a->x.channels, out = a->g.m;

	return in <= 24 && out >= 4 && out <= 24 &&
	       (a->x.groups > 1 || in * out <= (a->g.dtype == HZ_F32 ? ALONE_F32 : ALONE));
}

size_t hzi_cuda_quat_conv_grouped_workspace(const struct hz_context *ctx, const void *args)
{
	const struct hzi_quat_conv_step *a = args;

	(void)ctx;
	return padded(block_bytes(a) * blocks_of_group(a) * a->x.groups);
}

int hzi_cuda_quat_conv_grouped(struct hz_context *ctx, const void *args)
{
	const struct hzi_quat_conv_step *a = args;
	const struct hzi_quat_patch_step *x = &a->x;
	const int64_t out_tiles = out_tiles_of(a), blocks = blocks_of_group(a) * x->groups;
	const int64_t lanes = blocks * block_bytes(a) / 16 /
			      (a->g.dtype == HZ_F32 ? HZI_GROUPED_TERMS : 1);
	const int64_t pixels = HZI_GROUPED_THREADS / 32 * 8 *
			       (a->g.dtype == HZ_F32 ? HZI_GROUPED_PIXEL_TILES_F32 :
				HZI_GROUPED_PIXEL_TILES);
	const int dtype = a->g.dtype == HZ_F32 ? 0 : a->g.dtype == HZ_F16 ? 1 : 2;
	struct hzi_quat_conv_direct f = hzi_quat_conv_direct_of(a);
	struct hzi_quat_conv_grouped p = {
		.s = f.s, .out = f.out, .w = f.w, .no_epilogue = f.no_epilogue,
		.weights = ctx->workspace,
		.pixels = a->g.n, .taps = (int32_t)(x->taps[0] * x->taps[1] * x->taps[2]),
		.out_tiles = (int32_t)out_tiles, .blocks = (int32_t)blocks_of_group(a),
	};
	struct hzi_launch launch = {
		.grid = {(unsigned)ceil_div(lanes,
					    HZI_GROUPED_THREADS)}, .block = {HZI_GROUPED_THREADS},
		.early = true,
	};
	/* Four waves of two blocks per SM, so that a short last wave costs little */
	const int64_t blocks_x = 8 * (int64_t)hzi_cuda_device(ctx)->sms / blocks;

	memcpy(p.c_stride, f.c_stride, sizeof(p.c_stride));
	memcpy(p.pre_stride, f.pre_stride, sizeof(p.pre_stride));
	HZ_CHECK(hzi_cuda_launch(ctx, a->op, HZI_KERNEL_quat_conv_grouped_pack_f32 + dtype, &launch,
				 &p, sizeof(p)));
	launch.shared_bytes = (unsigned)(block_bytes(a) + 8 * HZI_GROUPED_TAPS_MAX);
	launch.grid[0] = (unsigned)min_of(ceil_div(a->g.n, pixels), blocks_x > 1 ? blocks_x : 1);
	launch.grid[1] = (unsigned)blocks;
	return hzi_cuda_launch(ctx, a->op,
			       (out_tiles > 1 ? HZI_KERNEL_quat_conv_grouped_16_f32 :
					     HZI_KERNEL_quat_conv_grouped_8_f32) + dtype,
			       &launch, &p, sizeof(p));
}
