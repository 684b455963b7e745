/*
 * depthwise.c - launchers of quaternion convolutions with few channels in a group or few outputs,
 *               and of the gradients of their weights
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#include <config.h>

#include "gpu/quat_conv/depthwise.h"
#include "gpu/quat_conv/launch.h"

HZI_LINK_IMAGES(quat_conv);

/* Input times output channels of a group up to which these kernels beat matrix products */
#define PAIRS_MOST 32
/* Input channels from which a warp for the outputs of a pixel pays */
#define LANES_LEAST 16
#define COUNT_MAX ((int64_t)1 << 30)
#define BLOCKS 4			/* wgrad_direct: blocks per SM */
#define ROW_BLOCKS 2			/* wgrad of square taps: blocks per SM */
#define ROUNDS 16			/* least pixels of a part */
#define PARTS_MOST 4096

static int kernel_of(int kernel_f32, bool contiguous, int dtype)
{
	return kernel_f32 + (!contiguous ? 3 : dtype == HZ_F32 ? 0 : dtype == HZ_F16 ? 1 : 2);
}

/* One to three outputs of many input channels: a warp computes them. */
static bool has_few_outputs(const struct hzi_quat_conv_step *a)
{
	return a->g.m <= HZI_DEPTHWISE_OUTPUTS && a->x.channels * a->g.m > PAIRS_MOST;
}

const char *hzi_cuda_quat_conv_depthwise_unsupported(const struct hz_context *ctx,
						     const void *args)
{
	const struct hzi_quat_conv_step *a = args;

	(void)ctx;
	if (a->x.channels == 0 || a->g.m == 0)
		return "no channels";
	return hzi_quat_conv_direct_fits(&a->x, a->images, a->g.m) ? NULL : "sizes are too large";
}

bool hzi_cuda_quat_conv_depthwise_wins(const struct hzi_quat_conv_step *a)
{
	return a->x.channels * a->g.m <= PAIRS_MOST ||
	       (a->g.m <= HZI_DEPTHWISE_OUTPUTS && a->x.channels >= LANES_LEAST);
}

/* The f32 kernel for 3 x 3, 5 x 5 or 7 x 7 taps */
#define SQUARE_TAPS(kernel, taps) \
	((taps) == 3 ? HZI_KERNEL_##kernel##_3x3_f32 : \
	 (taps) == 5 ? HZI_KERNEL_##kernel##_5x5_f32 : HZI_KERNEL_##kernel##_7x7_f32)

/* 3, 5, 7: taps are 3 x 3, 5 x 5, 7 x 7 neighbours in the last two dimensions, stride 1; else 0 */
static int square_taps(const struct hzi_quat_patch_step *x)
{
	const int64_t taps = x->taps[1];

	return taps == x->taps[2] && (taps == 3 || taps == 5 || taps == 7) && x->step[1] == 1 &&
	       x->step[2] == 1 && (x->each[1] == 1 || x->each[1] == -1) &&
	       (x->each[2] == 1 || x->each[2] == -1) ? (int)taps : 0;
}

/* The same if there are no other taps and each group has one channel: depthwise */
static int depthwise_taps(const struct hzi_quat_conv_step *a)
{
	const struct hzi_quat_patch_step *x = &a->x;

	return x->channels == 1 && a->g.m == 1 && x->taps[0] == 1 ? square_taps(x) : 0;
}

int hzi_cuda_quat_conv_depthwise(struct hz_context *ctx, const void *args)
{
	const struct hzi_quat_conv_step *a = args;
	const struct hzi_quat_patch_step *x = &a->x;
	const bool few_outputs = has_few_outputs(a);
	const int square = depthwise_taps(a);
	struct hzi_launch launch = {.block = {HZI_DEPTHWISE_THREADS}, .early = true};
	struct hzi_quat_conv_direct p = hzi_quat_conv_direct_of(a);
	int64_t blocks;

	p.total = a->images * x->count[0] * x->groups *
		  (square ? ceil_div(x->count[1], HZI_DEPTHWISE_ROWS) *
				  ceil_div(x->count[2], HZI_DEPTHWISE_COLUMNS) :
			  x->count[1] * p.s.strips * (few_outputs ? 1 : a->g.m));
	blocks = ceil_div(p.total,
			  few_outputs ? HZI_DEPTHWISE_THREADS / 32 : HZI_DEPTHWISE_THREADS);
	launch.grid[0] = (unsigned)min_of(blocks, COUNT_MAX);
	return hzi_cuda_launch(ctx, a->op,
			       kernel_of(square ? SQUARE_TAPS(quat_conv_depthwise, square) :
					 few_outputs ? HZI_KERNEL_quat_conv_depthwise_warp_f32 :
						  HZI_KERNEL_quat_conv_depthwise_direct_f32,
					 p.s.x.whole && p.w.whole, a->g.dtype),
			       &launch, &p, sizeof(p));
}

/* ---- Gradients of weights -------------------------------------------------------------------- */

const char *hzi_cuda_quat_conv_wgrad_depthwise_unsupported(const struct hz_context *ctx,
							   const void *args)
{
	const struct hzi_quat_wgrad_step *a = args;
	int64_t taps, pairs;

	(void)ctx;
	if (a->g.k == 0 || a->x.channels == 0 || a->g.m == 0)
		return "no pixels or channels";
	if (!hzi_quat_conv_direct_fits(&a->x, a->images, a->g.m))
		return "sizes are too large";
	taps = a->x.taps[0] * a->x.taps[1] * a->x.taps[2];
	if (ceil_div(taps, HZI_DEPTHWISE_TAPS) >= 1 << 16 ||
	    !hzi_mul(a->x.groups * a->g.m, a->x.channels, &pairs) || pairs > COUNT_MAX / taps)
		return "sizes are too large";
	return NULL;
}

bool hzi_cuda_quat_conv_wgrad_depthwise_wins(const struct hzi_quat_wgrad_step *a)
{
	return a->x.channels * a->g.m <= PAIRS_MOST;
}

/* square_taps() if a part of the gradient may be whole rows of pixels */
static int row_taps(const struct hzi_quat_wgrad_step *a)
{
	return a->x.taps[0] == 1 && a->x.each[1] > 0 && a->x.each[2] > 0 ? square_taps(&a->x) : 0;
}

static int64_t parts_of(const struct hz_context *ctx, const struct hzi_quat_wgrad_step *a)
{
	const int64_t threads = (row_taps(a) ? ROW_BLOCKS : BLOCKS) * HZI_DEPTHWISE_THREADS *
				(int64_t)hzi_cuda_device(ctx)->sms;
	const int64_t most = min_of(row_taps(a) ? a->g.k / a->x.count[2] :
						   ceil_div(a->g.k, ROUNDS),
				    PARTS_MOST);

	return min_of(ceil_div(threads, a->x.groups * a->g.m * a->x.channels), most);
}

size_t hzi_cuda_quat_conv_wgrad_depthwise_workspace(const struct hz_context *ctx,
						    const void *args)
{
	const struct hzi_quat_wgrad_step *a = args;

	return padded(16 * parts_of(ctx, a) * a->x.groups * a->g.m * a->g.n);
}

int hzi_cuda_quat_conv_wgrad_depthwise(struct hz_context *ctx, const void *args)
{
	const struct hzi_quat_wgrad_step *a = args;
	const int64_t taps = a->x.taps[0] * a->x.taps[1] * a->x.taps[2];
	struct hzi_launch launch = {.block = {HZI_DEPTHWISE_THREADS}, .early = true};
	struct hzi_quat_wgrad_direct p = {
		.s = hzi_quat_conv_window_of(&a->x, a->images, a->g.m, a->g.conj_b),
		.parts = ctx->workspace, .pixels = a->g.k,
		.pairs = (int32_t)(a->x.groups * a->g.m * a->x.channels),
	};
	struct hzi_quat_wgrad_sum sum = {
		.parts = ctx->workspace, .sum = a->sum, .count = p.pairs * taps,
		.conj = a->g.conj_c,
	};
	const int square = row_taps(a);
	int64_t units;

	units = square ? p.pixels / a->x.count[2] : p.pixels;
	p.each = ceil_div(units, parts_of(ctx, a));
	p.parts_count = sum.parts_count = (int32_t)ceil_div(units, p.each);
	p.small = hzi_quat_conv_pixels_of(&a->small, a->g.conj_a, p.small_stride);
	launch.grid[0] = (unsigned)ceil_div((int64_t)p.parts_count * p.pairs,
					    HZI_DEPTHWISE_THREADS);
	launch.grid[1] = (unsigned)(square > 3 ? square : ceil_div(taps, HZI_DEPTHWISE_TAPS));
	HZ_CHECK(hzi_cuda_launch(ctx, a->op,
				 kernel_of(square ? SQUARE_TAPS(quat_conv_depthwise_wgrad, square) :
					   HZI_KERNEL_quat_conv_depthwise_wgrad_direct_f32,
					   p.s.x.whole && p.small.whole, a->g.dtype),
				 &launch, &p, sizeof(p)));
	return hzi_cuda_quat_conv_reduce(ctx, a->op, &sum);
}
