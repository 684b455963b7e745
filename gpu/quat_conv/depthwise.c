/*
 * depthwise.c - launchers of quaternion convolutions of few channels in a group, and of the
 *               gradients of their weights
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#include <config.h>

#include "gpu/quat_conv/depthwise.h"
#include "gpu/quat_conv/launch.h"

HZI_LINK_IMAGES(quat_conv);

/* Input times output channels of a group up to which this beats products of matrices */
#define PAIRS_MOST 32
/* Input channels from which a warp per output pays */
#define LANES_LEAST 16
#define COUNT_MAX ((int64_t)1 << 30)
#define BLOCKS 4			/* blocks per SM */
#define LINE_BLOCKS 2			/* of kernels that go along lines */
#define ROUNDS 16			/* least pixels of a part */
#define PARTS_MOST 4096

static int kernel_of(int kernel_f32, bool whole, int dtype)
{
	return kernel_f32 + (!whole ? 3 : dtype == HZ_F32 ? 0 : dtype == HZ_F16 ? 1 : 2);
}

/* One to three outputs of many inputs: a warp for each output */
static bool is_narrow(const struct hzi_quat_conv_step *a)
{
	return a->g.m <= HZI_QF_OUT && a->x.channels * a->g.m > PAIRS_MOST;
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
	       (a->g.m <= HZI_QF_OUT && a->x.channels >= LANES_LEAST);
}

/* The f32 kernel for 3 x 3, 5 x 5 or 7 x 7 taps */
#define SQUARE_TAPS(kernel, taps) \
	((taps) == 3 ? HZI_KERNEL_##kernel##_f32 : \
	 (taps) == 5 ? HZI_KERNEL_##kernel##_5_f32 : HZI_KERNEL_##kernel##_7_f32)

/* 3, 5 or 7 if taps are 3 x 3, 5 x 5 or 7 x 7 neighbours in the last two dimensions; else 0 */
static int square_taps(const struct hzi_quat_patch_step *x)
{
	const int64_t taps = x->taps[1];

	return taps == x->taps[2] && (taps == 3 || taps == 5 || taps == 7) && x->step[1] == 1 &&
	       x->step[2] == 1 && (x->each[1] == 1 || x->each[1] == -1) &&
	       (x->each[2] == 1 || x->each[2] == -1) ? (int)taps : 0;
}

/* The same if each group also has one channel and there are no other taps */
static int strip_taps(const struct hzi_quat_conv_step *a)
{
	const struct hzi_quat_patch_step *x = &a->x;

	return x->channels == 1 && a->g.m == 1 && x->taps[0] == 1 ? square_taps(x) : 0;
}

int hzi_cuda_quat_conv_depthwise(struct hz_context *ctx, const void *args)
{
	const struct hzi_quat_conv_step *a = args;
	const struct hzi_quat_patch_step *x = &a->x;
	const bool narrow = is_narrow(a);
	const int deep = strip_taps(a);
	struct hzi_launch launch = {.block = {HZI_QF_THREADS}, .early = true};
	struct hzi_quat_few p = hzi_quat_conv_direct_of(a);
	int64_t blocks;

	p.total = a->images * x->count[0] * x->groups *
		  (deep ? ceil_div(x->count[1], HZI_QF_ROWS) *
				  ceil_div(x->count[2], HZI_QF_COLUMNS) :
			  x->count[1] * p.s.strips * (narrow ? 1 : a->g.m));
	blocks = ceil_div(p.total, narrow ? HZI_QF_THREADS / 32 : HZI_QF_THREADS);
	launch.grid[0] = (unsigned)min_of(blocks, COUNT_MAX);
	return hzi_cuda_launch(ctx, a->op,
			       kernel_of(deep ? SQUARE_TAPS(quat_conv_depth, deep) :
					 narrow ? HZI_KERNEL_quat_conv_narrow_f32 :
						  HZI_KERNEL_quat_conv_few_f32,
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
	if (ceil_div(taps, HZI_QF_TAPS) >= 1 << 16 ||
	    !hzi_mul(a->x.groups * a->g.m, a->x.channels, &pairs) || pairs > COUNT_MAX / taps)
		return "sizes are too large";
	return NULL;
}

bool hzi_cuda_quat_conv_wgrad_depthwise_wins(const struct hzi_quat_wgrad_step *a)
{
	return a->x.channels * a->g.m <= PAIRS_MOST;
}

/* square_taps() for parts that are whole lines */
static int line_taps(const struct hzi_quat_wgrad_step *a)
{
	return a->x.taps[0] == 1 && a->x.each[1] > 0 && a->x.each[2] > 0 ? square_taps(&a->x) : 0;
}

static int64_t parts_of(const struct hz_context *ctx, const struct hzi_quat_wgrad_step *a)
{
	const int64_t threads = (line_taps(a) ? LINE_BLOCKS : BLOCKS) * HZI_QF_THREADS *
				(int64_t)hzi_cuda_device(ctx)->multiprocessors;
	const int64_t most = min_of(line_taps(a) ? a->g.k / a->x.count[2] :
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
	struct hzi_launch launch = {.block = {HZI_QF_THREADS}, .early = true};
	struct hzi_quat_few_weights p = {
		.s = hzi_quat_conv_window_of(&a->x, a->images, a->g.m, a->g.conj_b),
		.parts = ctx->workspace, .pixels = a->g.k,
		.pairs = (int32_t)(a->x.groups * a->g.m * a->x.channels),
	};
	struct hzi_quat_few_sum sum = {
		.parts = ctx->workspace, .sum = a->sum, .count = p.pairs * taps,
		.conj = a->g.conj_c,
	};
	const int lines = line_taps(a);
	int64_t units;

	units = lines ? p.pixels / a->x.count[2] : p.pixels;
	p.each = ceil_div(units, parts_of(ctx, a));
	p.parts_count = sum.parts_count = (int32_t)ceil_div(units, p.each);
	p.small = hzi_quat_conv_pixels_of(&a->small, a->g.conj_a, p.small_stride);
	launch.grid[0] = (unsigned)ceil_div((int64_t)p.parts_count * p.pairs, HZI_QF_THREADS);
	launch.grid[1] = (unsigned)(lines > 3 ? lines : ceil_div(taps, HZI_QF_TAPS));
	HZ_CHECK(hzi_cuda_launch(ctx, a->op,
				 kernel_of(lines ? SQUARE_TAPS(quat_conv_line_weights, lines) :
					   HZI_KERNEL_quat_conv_few_weights_f32,
					   p.s.x.whole && p.small.whole, a->g.dtype),
				 &launch, &p, sizeof(p)));
	return hzi_cuda_quat_conv_sum_parts(ctx, a->op, &sum);
}
