/*
 * depthwise.c - launchers of quaternion convolutions of few channels in a group
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#include <config.h>

#include <string.h>

#include "gpu/quat_conv/depthwise.h"
#include "gpu/quat_conv/launch.h"

HZI_LINK_IMAGES(quat_conv);

/* Products of channels of a group: more are faster as products of matrices */
#define PAIRS_MOST 32
/* Input channels from which on a warp is worth having for an output */
#define LANES_LEAST 16
#define COUNT_MAX ((int64_t)1 << 30)
#define BLOCKS 4			/* that a multiprocessor has room for, or more */
#define LINE_BLOCKS 2			/* of those that go along lines */
#define ROUNDS 16			/* pixels of a part at least, unless there are fewer */
#define PARTS_MOST 4096
#define GROUPS_MOST 65535		/* blocks of a grid along y */

static bool fits(const struct hzi_qpatch_args *x, int64_t images, int64_t outs)
{
	for (int d = 0; d < 3; d++) {
		if (x->size[d] > COUNT_MAX || x->count[d] > COUNT_MAX || x->taps[d] > COUNT_MAX)
			return false;
	}
	return hzi_qpatch_small(x) && images <= COUNT_MAX &&
	       x->groups * outs <= COUNT_MAX && x->groups * x->channels <= COUNT_MAX;
}

/* Where c is one side of a convolution: steps of pixels are elsewhere. */
static struct hzi_quat_matrix pixels_of(const struct hzi_qarray *a, int conj, int64_t *stride)
{
	struct hzi_quat_view v = {.data = a->data, .col = a->stride[4]};
	struct hzi_quat_matrix m;

	memcpy(v.comp, a->comp, sizeof(v.comp));
	m = hzi_quat_matrix_of(&v, a->dtype, conj, NULL, 0);
	for (int d = 0; d < 4; d++) {
		stride[d] = a->stride[d];
		m.whole &= a->stride[d] % 4 == 0;
	}
	return m;
}

static struct hzi_quat_few_sight sight_of(const struct hzi_qpatch_args *x, int64_t images,
					  int64_t outs, int conj)
{
	struct hzi_quat_few_sight s = {
		.images = (int32_t)images, .groups = (int32_t)x->groups,
		.channels = (int32_t)x->channels, .outs = (int32_t)outs,
		.strips = (int32_t)ceil_div(x->count[2], HZI_QF_PIXELS),
	};

	s.x = pixels_of(&x->x, conj, s.x_stride);
	for (int d = 0; d < 3; d++) {
		s.size[d] = (int32_t)x->size[d];
		s.count[d] = (int32_t)x->count[d];
		s.taps[d] = (int32_t)x->taps[d];
		s.step[d] = (int32_t)x->step[d];
		s.each[d] = (int32_t)x->each[d];
		s.base[d] = (int32_t)x->base[d];
	}
	return s;
}

static int kernel_of(int kernel_f32, bool whole, int dtype)
{
	return kernel_f32 + (!whole ? 3 : dtype == HZ_F32 ? 0 : dtype == HZ_F16 ? 1 : 2);
}

bool hzi_cuda_quat_conv_few_takes(const struct hzi_qconv_args *a)
{
	const int64_t in = a->x.channels, out = a->g.m;

	return fits(&a->x, a->images, out) && in > 0 && out > 0 &&
	       (in * out <= PAIRS_MOST || (out <= HZI_QF_OUT && in >= LANES_LEAST));
}

/* What is the same for all kernels of this file */
static struct hzi_quat_few few_of(const struct hzi_qconv_args *a)
{
	const struct hzi_quat_gemm_args *g = &a->g;
	struct hzi_quat_few p = {
		.s = sight_of(&a->x, a->images, g->m, g->conj_b), .out = hzi_quat_conv_out_of(a),
		.w = hzi_quat_matrix_of(&g->a, g->dtype, g->conj_a, &a->a_group, 1),
		.plain = !g->bias && !a->pre.data && g->activation == HZ_ACT_NONE,
	};

	p.w.batch[0] = a->a_group;
	memcpy(p.c_stride, a->y.stride, sizeof(p.c_stride));
	memcpy(p.pre_stride, a->pre.stride, sizeof(p.pre_stride));
	return p;
}

/* Kernels of neighbours, of those of 3 x 3 on */
#define NEIGHBOURS(kernel, taps) \
	((taps) == 3 ? HZI_KERNEL_##kernel##_f32 : \
	 (taps) == 5 ? HZI_KERNEL_##kernel##_5_f32 : HZI_KERNEL_##kernel##_7_f32)

/* Of each slab's pixels, 3 x 3, 5 x 5 or 7 x 7 neighbours are seen by each: 3, 5 or 7; 0: not so */
static int neighbours(const struct hzi_qpatch_args *x)
{
	const int64_t taps = x->taps[1];

	return taps == x->taps[2] && (taps == 3 || taps == 5 || taps == 7) && x->step[1] == 1 &&
	       x->step[2] == 1 && (x->each[1] == 1 || x->each[1] == -1) &&
	       (x->each[2] == 1 || x->each[2] == -1) ? (int)taps : 0;
}

/* Each channel a group, and such taps */
static int in_strips(const struct hzi_qconv_args *a)
{
	const struct hzi_qpatch_args *x = &a->x;

	return x->channels == 1 && a->g.m == 1 && x->taps[0] == 1 ? neighbours(x) : 0;
}

int hzi_cuda_quat_conv_few(struct hz_context *ctx, const char *op, const struct hzi_qconv_args *a)
{
	const struct hzi_qpatch_args *x = &a->x;
	const bool narrow = x->channels * a->g.m > PAIRS_MOST;
	const int deep = in_strips(a);
	struct hzi_launch launch = {.block = {HZI_QF_THREADS}, .early = true};
	struct hzi_quat_few p = few_of(a);
	int64_t blocks;

	p.total = a->images * x->count[0] * x->groups *
		  (deep ? ceil_div(x->count[1], HZI_QF_ROWS) *
				  ceil_div(x->count[2], HZI_QF_COLUMNS) :
			  x->count[1] * p.s.strips * (narrow ? 1 : a->g.m));
	blocks = ceil_div(p.total, narrow ? HZI_QF_THREADS / 32 : HZI_QF_THREADS);
	launch.grid[0] = (unsigned)min_of(blocks, COUNT_MAX);
	return hzi_cuda_launch(ctx, op,
			       kernel_of(deep ? NEIGHBOURS(quat_conv_depth, deep) :
					 narrow ? HZI_KERNEL_quat_conv_narrow_f32 :
						  HZI_KERNEL_quat_conv_few_f32,
					 p.s.x.whole && p.w.whole, a->g.dtype),
			       &launch, &p, sizeof(p));
}

/* ---- Some channels in a group, by matrix units ----------------------------------------------- */

/* Products of channels of one group, of which this is faster than tiles of 64 */
#define ALONE 256
#define ALONE_F32 64
/* Of weights in shared memory, so that there is room for two blocks */
#define WEIGHTS_MOST (100 << 10)

static int64_t groups_eights(const struct hzi_qconv_args *a)
{
	return a->g.m > 8 ? 2 : 1;
}

/* The weights of a block, and of all */
static int64_t groups_block_bytes(const struct hzi_qconv_args *a)
{
	const struct hzi_qpatch_args *x = &a->x;

	return x->taps[0] * x->taps[1] * x->taps[2] * (x->channels / 8) * 4 * groups_eights(a) *
	       (a->g.dtype == HZ_F32 ? HZI_QG_PARTS : 1) * 512;
}

static int64_t groups_blocks(const struct hzi_qconv_args *a)
{
	return ceil_div(a->g.m, 8 * groups_eights(a));
}

bool hzi_cuda_quat_conv_groups_takes(const struct hz_context *ctx, const struct hzi_qconv_args *a)
{
	const struct hzi_qpatch_args *x = &a->x;
	const int64_t in = x->channels, out = a->g.m, unit = a->g.dtype == HZ_F32 ? 4 : 8;
	const int64_t taps = x->taps[0] * x->taps[1] * x->taps[2];
	int64_t strides = 0;
	int split;

	if ((x->groups == 1 && in * out > (a->g.dtype == HZ_F32 ? ALONE_F32 : ALONE)) ||
	    !fits(x, a->images, out) || in % 8 || in == 0 || in > 24 || out < 4 || out > 24 ||
	    taps > HZI_QG_TAPS || a->g.n > COUNT_MAX ||
	    groups_block_bytes(a) > WEIGHTS_MOST || groups_blocks(a) * x->groups > GROUPS_MOST)
		return false;
	if (a->g.dtype == HZ_F32 && !hzi_planes_wanted(ctx, HZ_F32, a->g.precision, &split))
		return false;
	for (int d = 0; d < 4; d++)
		strides |= x->x.stride[d];
	return x->x.whole && x->x.stride[4] == 4 && strides % unit == 0 &&
	       (uintptr_t)x->x.data % 16 == 0;
}

size_t hzi_cuda_quat_conv_groups_workspace(const struct hzi_qconv_args *a)
{
	return padded(groups_block_bytes(a) * groups_blocks(a) * a->x.groups);
}

int hzi_cuda_quat_conv_groups(struct hz_context *ctx, const char *op,
			      const struct hzi_qconv_args *a)
{
	const struct hzi_qpatch_args *x = &a->x;
	const int64_t eights = groups_eights(a), blocks = groups_blocks(a) * x->groups;
	const int64_t lanes = blocks * groups_block_bytes(a) / 16 /
			      (a->g.dtype == HZ_F32 ? HZI_QG_PARTS : 1);
	const int64_t pixels = HZI_QG_THREADS / 32 * 8 *
			       (a->g.dtype == HZ_F32 ? HZI_QG_EIGHTS_F32 : HZI_QG_EIGHTS);
	const int dtype = a->g.dtype == HZ_F32 ? 0 : a->g.dtype == HZ_F16 ? 1 : 2;
	struct hzi_quat_few f = few_of(a);
	struct hzi_quat_groups p = {
		.s = f.s, .out = f.out, .w = f.w, .plain = f.plain, .weights = ctx->workspace,
		.pixels = a->g.n, .taps = (int32_t)(x->taps[0] * x->taps[1] * x->taps[2]),
		.eights = (int32_t)eights, .blocks = (int32_t)groups_blocks(a),
	};
	struct hzi_launch launch = {
		.grid = {(unsigned)ceil_div(lanes, HZI_QG_THREADS)}, .block = {HZI_QG_THREADS},
		.early = true,
	};
	/* Some rounds of the two that a multiprocessor has, so that the last one may be short */
	const int64_t together = 8 * (int64_t)hzi_cuda_device(ctx)->multiprocessors / blocks;

	memcpy(p.c_stride, f.c_stride, sizeof(p.c_stride));
	memcpy(p.pre_stride, f.pre_stride, sizeof(p.pre_stride));
	HZ_CHECK(hzi_cuda_launch(ctx, op, HZI_KERNEL_quat_groups_weights_f32 + dtype, &launch, &p,
				 sizeof(p)));
	launch.shared_bytes = (unsigned)(groups_block_bytes(a) + 8 * HZI_QG_TAPS);
	launch.grid[0] = (unsigned)min_of(ceil_div(a->g.n, pixels), together > 1 ? together : 1);
	launch.grid[1] = (unsigned)blocks;
	return hzi_cuda_launch(ctx, op,
			       (eights > 1 ? HZI_KERNEL_quat_conv_groups_16_f32 :
					     HZI_KERNEL_quat_conv_groups_8_f32) + dtype,
			       &launch, &p, sizeof(p));
}

/* ---- Gradients of weights -------------------------------------------------------------------- */

bool hzi_cuda_quat_conv_few_weights_takes(const struct hzi_qconv_weights_args *a)
{
	const int64_t taps = a->x.taps[0] * a->x.taps[1] * a->x.taps[2];

	return fits(&a->x, a->images, a->g.m) && a->g.k > 0 && a->x.channels > 0 && a->g.m > 0 &&
	       a->x.channels * a->g.m <= PAIRS_MOST && ceil_div(taps, HZI_QF_TAPS) < 1 << 16 &&
	       a->x.groups * a->g.m * a->x.channels * taps <= COUNT_MAX;
}

/* Neighbours seen by each pixel, as above: of parts that are lines */
static int by_lines(const struct hzi_qconv_weights_args *a)
{
	return a->x.taps[0] == 1 && a->x.each[1] > 0 && a->x.each[2] > 0 ? neighbours(&a->x) : 0;
}

static int64_t parts_of(const struct hz_context *ctx, const struct hzi_qconv_weights_args *a)
{
	const int64_t threads = (by_lines(a) ? LINE_BLOCKS : BLOCKS) * HZI_QF_THREADS *
				(int64_t)hzi_cuda_device(ctx)->multiprocessors;
	const int64_t most = min_of(by_lines(a) ? a->g.k / a->x.count[2] : ceil_div(a->g.k, ROUNDS),
				    PARTS_MOST);

	return min_of(ceil_div(threads, a->x.groups * a->g.m * a->x.channels), most);
}

size_t hzi_cuda_quat_conv_few_weights_workspace(const struct hz_context *ctx,
						const struct hzi_qconv_weights_args *a)
{
	return padded(16 * parts_of(ctx, a) * a->x.groups * a->g.m * a->g.n);
}

int hzi_cuda_quat_conv_few_sum(struct hz_context *ctx, const char *op,
			       const struct hzi_quat_few_sum *sum)
{
	const struct hzi_launch launch = {.grid = {(unsigned)ceil_div(sum->count, 32)},
					  .block = {32, HZI_QF_PARTS}, .early = true};

	return hzi_cuda_launch(ctx, op, HZI_KERNEL_quat_conv_few_sum, &launch, sum, sizeof(*sum));
}

int hzi_cuda_quat_conv_few_weights(struct hz_context *ctx, const char *op,
				   const struct hzi_qconv_weights_args *a)
{
	const int64_t taps = a->x.taps[0] * a->x.taps[1] * a->x.taps[2];
	struct hzi_launch launch = {.block = {HZI_QF_THREADS}, .early = true};
	struct hzi_quat_few_weights p = {
		.s = sight_of(&a->x, a->images, a->g.m, a->g.conj_b),
		.parts = ctx->workspace, .pixels = a->g.k,
		.pairs = (int32_t)(a->x.groups * a->g.m * a->x.channels),
	};
	struct hzi_quat_few_sum sum = {
		.parts = ctx->workspace, .sum = a->sum, .count = p.pairs * taps,
		.conj = a->g.conj_c,
	};
	const int lines = by_lines(a);
	int64_t units;

	units = lines ? p.pixels / a->x.count[2] : p.pixels;
	p.each = ceil_div(units, parts_of(ctx, a));
	p.parts_count = sum.parts_count = (int32_t)ceil_div(units, p.each);
	p.small = pixels_of(&a->small, a->g.conj_a, p.small_stride);
	launch.grid[0] = (unsigned)ceil_div((int64_t)p.parts_count * p.pairs, HZI_QF_THREADS);
	launch.grid[1] = (unsigned)(lines > 3 ? lines : ceil_div(taps, HZI_QF_TAPS));
	HZ_CHECK(hzi_cuda_launch(ctx, op,
				 kernel_of(lines ? NEIGHBOURS(quat_conv_line_weights, lines) :
					   HZI_KERNEL_quat_conv_few_weights_f32,
					   p.s.x.whole && p.small.whole, a->g.dtype),
				 &launch, &p, sizeof(p)));
	return hzi_cuda_quat_conv_few_sum(ctx, op, &sum);
}
