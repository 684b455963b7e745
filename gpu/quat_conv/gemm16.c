/*
 * gemm16.c - launchers of quaternion convolutions (implicit_gemm16), and of the gradients of their
 *            weights (wgrad16), by 16 real products for each product of quaternions
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#include <config.h>

#include <math.h>

#include "gpu/quat_conv/gemm16.h"
#include "gpu/quat_conv/launch.h"
#include "gpu/quat_conv/im2col.h"

HZI_LINK_IMAGES(quat_conv);

#define CHANNELS (HZI_GEMM16_UNIT / 4)	/* channels of a unit */
#define COUNT_MAX ((int64_t)1 << 30)
#define STEP_MOST 8			/* largest element stride of a TMA tile */
#define TMA_EXTENT_MAX 256		/* largest extent of a TMA tile, pixels */
#define TILE_LOG 6			/* a TMA tile has 2^6 pixels, of f32 2^5 */
#define ROUNDS 4			/* most waves of blocks */
#define PARTS_BYTES ((int64_t)64 << 20)
/* Cost model, per SM and cycle: products of quaternions with padding; bytes that blocks read */
#define PRODUCTS 76.5
#define SPLIT_PRODUCTS 23.0		/* of f32 in split precision */
#define SPLIT_UNITS 1.03e-3		/* units of big that are split into two f16 terms */
#define BYTES 24.9
#define CALL_US 12			/* launches, split-K sums, packing of weights */
#define ROUND_CYCLES 5940		/* prologue and epilogue of a block */

/* ---- TMA tiles ------------------------------------------------------------------------------- */

static int64_t size_of(int dtype)
{
	return (int64_t)hz_dtype_size(dtype);
}

/* Whether TMA supports the strides: multiples of 16 bytes */
static bool strides_fit(const struct hzi_quat_array *a, const int64_t *size, int64_t images)
{
	bool fit = a->whole && a->stride[4] == 4 && (uintptr_t)a->data % 16 == 0;

	for (int d = 0; d < 4; d++) {
		const int64_t n = d ? size[d - 1] : images;

		fit &= n == 1 || (a->stride[d] > 0 && a->stride[d] < (int64_t)1 << 37 &&
				  size_of(a->dtype) * a->stride[d] % 16 == 0);
	}
	return fit;
}

/* Sets the taps, and the shape of 2^log pixels that covers all pixels with the fewest TMA tiles. */
static bool choose_tma_tiles(const struct hzi_quat_patch_step *x, int64_t images, int log,
			     struct hzi_quat_tma_tiles *p)
{
	const int64_t size[4] = {x->count[2], x->count[1], x->count[0], images};
	int64_t count[4][TILE_LOG + 1], least = INT64_MAX;

	for (int d = 0; d < 3; d++) {
		if (x->step[d] > STEP_MOST)
			return false;
		p->step[2 - d] = (int32_t)x->step[d];
		p->each[d] = (int32_t)x->each[d];
		p->base[d] = (int32_t)x->base[d];
		p->taps[d] = (int32_t)x->taps[d];
	}
	p->step[3] = 1;

	/* Tiles along a dimension, of 1, 2, 4, ... pixels; 0: they exceed TMA_EXTENT_MAX. */
	for (int d = 0; d < 4; d++) {
		for (int e = 0; e <= log; e++)
			count[d][e] = ((1 << e) - 1) * p->step[d] < TMA_EXTENT_MAX ?
					      (size[d] + (1 << e) - 1) >> e : 0;
	}
	for (int i = 0; i <= log; i++) {
		for (int j = 0; i + j <= log; j++) {
			for (int k = 0; i + j + k <= log; k++) {
				const int e[4] = {i, j, k, log - i - j - k};
				int64_t all = 1;

				for (int d = 0; d < 4; d++)
					all *= count[d][e[d]];
				if (all == 0 || all >= least)
					continue;
				least = all;
				for (int d = 0; d < 4; d++) {
					p->tile[d] = 1 << e[d];
					p->tiles[d] = (int32_t)count[d][e[d]];
				}
			}
		}
	}
	p->all = (int32_t)min_of(least, COUNT_MAX);
	return least < COUNT_MAX;
}

/* The tensor map: components, then pixels from the last dimension on; steps: element strides */
static int map_of(struct hz_context *ctx, const char *op, struct hzi_tensor_map *map,
		  const struct hzi_quat_array *a, int64_t channels, const int64_t *size,
		  int64_t images, const struct hzi_quat_tma_tiles *p, const int32_t *steps)
{
	const int64_t size_bytes = size_of(a->dtype), bytes = 4 * size_bytes * channels;
	uint64_t sizes[5] = {(uint64_t)bytes}, strides[4];
	uint32_t tile[5] = {HZI_GEMM16_PIXEL_BYTES}, each[5] = {1};

	for (int d = 0; d < 4; d++) {
		const int64_t n = d < 3 ? size[2 - d] : images;

		sizes[1 + d] = (uint64_t)n;
		strides[d] = (uint64_t)(n > 1 ? size_bytes * a->stride[3 - d] :
						round_up(bytes, 16));
		each[1 + d] = steps ? (uint32_t)steps[d] : 1;
		tile[1 + d] = (uint32_t)(p->tile[d] - 1) * each[1 + d] + 1;
	}
	return hzi_cuda_tensor_map_5d(ctx, op, map, a->data, sizes, strides, tile, each);
}

/* ---- Gradients of weights -------------------------------------------------------------------- */

static double products_us(const struct hz_context *ctx, double products, bool split)
{
	return hzi_quat_conv_sm_us(ctx, products, split ? SPLIT_PRODUCTS : PRODUCTS);
}

/* Split-K: the number of splits of the pixels that fills the last wave of blocks best */
static int64_t splits_of(const struct hz_context *ctx, const struct hzi_quat_wgrad16 *p)
{
	const int64_t tiles = (int64_t)p->sets * p->tiles_m * p->tiles_n;
	const int64_t sms = hzi_cuda_device(ctx)->sms;
	int64_t best = 1;
	double most = 0;

	for (int64_t rounds = 1; rounds <= ROUNDS; rounds++) {
		const int64_t splits = min_of(max_of(rounds * sms / tiles, 1), p->b.all);
		const double use = (double)(splits * tiles) /
				   (double)(ceil_div(splits * tiles, sms) * sms);

		if (use > 1.05 * most) {
			most = use;
			best = splits;
		}
	}
	return best;
}

/* NULL, and the expected time in *us; or why a call is not supported */
static const char *plan_wgrad(const struct hz_context *ctx, const struct hzi_quat_wgrad_step *a,
			      struct hzi_quat_wgrad16 *p, double *us)
{
	const struct hzi_quat_patch_step *x = &a->x;
	const int64_t out = a->g.m, in = x->channels, most = out > in ? out : in;
	const int64_t size_bytes = size_of(a->g.dtype);
	int64_t taps, rows;
	int split;

	*p = (struct hzi_quat_wgrad16){.cluster = 1};
	*us = 0;
	if (!hzi_quat_uses_planar_f16(ctx, a->g.dtype, a->g.precision, &split) ||
	    split != (a->g.dtype == HZ_F32))
		return "the precision is not that of the dtype";
	if (a->small.dtype != a->g.dtype)
		return "dtypes differ";
	if (a->g.method != HZ_QUAT_FAST)
		return "the method is not HZ_QUAT_FAST";
	if (a->g.k == 0 || in == 0 || out == 0)
		return "no pixels or channels";
	if (!hzi_quat_conv_sizes_fit(x) || a->g.k > COUNT_MAX ||
	    x->groups * most > COUNT_MAX / 16 || a->images > COUNT_MAX)
		return "sizes are too large";
	if (!strides_fit(&x->x, x->size, a->images) ||
	    !strides_fit(&a->small, x->count, a->images))
		return "channels are not contiguous, or pixels not 16-byte aligned";
	taps = x->taps[0] * x->taps[1] * x->taps[2];
	p->groups_of_set = (int32_t)max_of(min_of(CHANNELS / most, x->groups), 1);
	/* Every set of groups starts at a multiple of 16 bytes. */
	if (!split && (p->groups_of_set * in % 2 || p->groups_of_set * out % 2) &&
	    --p->groups_of_set == 0)
		return "an odd number of channels";
	rows = ceil_div(p->groups_of_set * out, CHANNELS);
	p->n512 = rows <= HZI_WGRAD16_ROWS_N512;
	p->sets = (int32_t)ceil_div(x->groups, p->groups_of_set);
	p->tiles_m = (int32_t)ceil_div(rows, p->n512 ? HZI_WGRAD16_ROWS_N512 : HZI_WGRAD16_ROWS);
	p->units_of_tap = (int32_t)ceil_div(p->groups_of_set * in, CHANNELS);
	if (p->units_of_tap > INT32_MAX / 4096 / taps)
		return "sizes are too large";
	p->units = (int32_t)(p->units_of_tap * taps);
	p->tiles_n = (int32_t)ceil_div(p->units, p->n512 ? HZI_WGRAD16_COLUMNS_N512 :
				       HZI_WGRAD16_COLUMNS);
	p->cluster = !p->n512 && p->tiles_m % 2 == 0 ? 2 : 1;
	if (!choose_tma_tiles(x, a->images, TILE_LOG - split, &p->b))
		return "the stride is larger than 8, or sizes are too large";
	p->row_step = (int32_t)(4 * p->groups_of_set * out);
	p->column_step = (int32_t)(4 * p->groups_of_set * in);
	p->groups = (int32_t)x->groups;
	p->outs = (int32_t)out;
	p->padded_channels = (int32_t)in;
	p->channels = (int32_t)(a->g.n / taps);	/* without padding of big */
	p->conj_small = a->g.conj_a;
	p->conj_big = a->g.conj_b;
	p->splits = (int32_t)splits_of(ctx, p);
	if ((int64_t)p->units * p->tiles_n > COUNT_MAX ||
	    (int64_t)p->sets * p->tiles_m * p->tiles_n > COUNT_MAX / p->splits ||
	    p->splits * x->groups * out * a->g.n > PARTS_BYTES / 16)
		return "sizes are too large";

	const double tiles = (double)p->sets * p->tiles_m * p->b.all * (HZI_GEMM16_PIXELS >> split);
	const double high = p->n512 ? HZI_WGRAD16_ROWS_N512 : HZI_WGRAD16_ROWS;
	const double products = products_us(ctx, tiles * high * p->units * CHANNELS * CHANNELS,
					    split);
	const double bytes = tiles * (high * p->tiles_n + (double)p->units / p->cluster) *
			     CHANNELS * 4 * (double)size_bytes;
	const int64_t blocks = (int64_t)p->sets * p->tiles_m * p->tiles_n * p->splits;
	const int64_t rounds = ceil_div(blocks, hzi_cuda_device(ctx)->sms);
	const double split_units = (double)p->sets * p->tiles_m * p->b.all * p->units;

	*us = CALL_US + ROUND_CYCLES / hzi_cuda_device(ctx)->clock_mhz * (double)rounds +
	      fmax(fmax(products, hzi_quat_conv_sm_us(ctx, bytes, BYTES)),
		   split ? hzi_quat_conv_sm_us(ctx, split_units, SPLIT_UNITS) : 0);
	return NULL;
}

/* A call as it runs: by itself, or on a copy of x with taps as channels where that is faster */
struct wgrad_plan {
	struct hzi_quat_wgrad_step step;	/* the caller sets step.x.x.data to the copy */
	struct hzi_quat_conv_copy copy;
	size_t copy_bytes;			/* 0: no copy */
	struct hzi_quat_wgrad16 p;
	double us;				/* expected */
};

static const char *plan_with_copy(const struct hz_context *ctx, const struct hzi_quat_wgrad_step *a,
				  struct wgrad_plan *plan)
{
	const struct hzi_quat_conv_copy_costs costs = {
		.tap = products_us(ctx, (double)a->g.k * (double)round_up(a->g.m, CHANNELS),
				   a->g.dtype == HZ_F32),
		.unit = CHANNELS,
	};
	const char *why;

	plan->step = *a;
	plan->copy_bytes = hzi_quat_conv_copy_plan(ctx, &a->x, a->images, &costs, &plan->copy,
						   &plan->step.x);
	do {
		why = plan_wgrad(ctx, &plan->step, &plan->p, &plan->us);
	} while (why && hzi_quat_conv_copy_drop(&a->x, &plan->step.x, &plan->copy_bytes));
	return why;
}

const char *hzi_cuda_quat_conv_wgrad16_unsupported(const struct hz_context *ctx, const void *args)
{
	struct wgrad_plan plan;

	return plan_with_copy(ctx, args, &plan);
}

double hzi_cuda_quat_conv_wgrad16_us(const struct hz_context *ctx,
				     const struct hzi_quat_wgrad_step *a, bool *has_copy)
{
	struct wgrad_plan plan;

	plan_with_copy(ctx, a, &plan);
	*has_copy = plan.copy_bytes > 0;
	return plan.us;
}

static size_t parts_bytes(const struct hzi_quat_wgrad16 *p)
{
	return padded((int64_t)16 * p->splits * p->groups * p->outs * p->b.taps[0] * p->b.taps[1] *
		      p->b.taps[2] * p->channels);
}

size_t hzi_cuda_quat_conv_wgrad16_workspace(const struct hz_context *ctx, const void *args)
{
	struct wgrad_plan plan;

	plan_with_copy(ctx, args, &plan);
	return parts_bytes(&plan.p) + plan.copy_bytes;
}

static int launch_wgrad(struct hz_context *ctx, const struct hzi_quat_wgrad_step *a,
			struct hzi_quat_wgrad16 *p)
{
	const char *const op = a->op;
	struct hzi_launch launch = {
		.block = {HZI_WGRAD16_THREADS}, .shared_bytes = HZI_WGRAD16_SHARED_BYTES,
		.early = true, .aligned = true, .cluster = (unsigned)p->cluster,
		.grid = {(unsigned)(p->splits * p->sets * p->tiles_n * p->tiles_m)},
	};
	struct hzi_quat_wgrad_sum sum = {
		.parts = ctx->workspace, .sum = a->sum, .count = a->x.groups * a->g.m * a->g.n,
		.parts_count = p->splits, .conj = a->g.conj_c,
	};

	p->parts = ctx->workspace;
	HZ_CHECK(map_of(ctx, op, &p->small, &a->small, a->x.groups * a->g.m, a->x.count,
			a->images, &p->b, NULL));
	HZ_CHECK(map_of(ctx, op, &p->big, &a->x.x, a->x.groups * a->x.channels, a->x.size,
			a->images, &p->b, p->b.step));
	if (a->g.dtype == HZ_F32) {
		launch.block[0] = HZI_WGRAD16_SPLIT_THREADS;
		HZ_CHECK(hzi_cuda_launch(ctx, op, HZI_KERNEL_quat_conv_wgrad16_f32x2_128x256 +
					 p->n512, &launch, p, sizeof(*p)));
	} else {
		HZ_CHECK(hzi_cuda_launch(ctx, op,
					 (p->n512 ? HZI_KERNEL_quat_conv_wgrad16_64x512_f16 :
					  HZI_KERNEL_quat_conv_wgrad16_128x256_f16) +
						 (a->g.dtype == HZ_BF16),
					 &launch, p, sizeof(*p)));
	}
	return hzi_cuda_quat_conv_reduce(ctx, op, &sum);
}

int hzi_cuda_quat_conv_wgrad16(struct hz_context *ctx, const void *args)
{
	struct wgrad_plan plan;

	plan_with_copy(ctx, args, &plan);
	if (plan.copy_bytes) {
		plan.step.x.x.data = (char *)ctx->workspace + parts_bytes(&plan.p);
		HZ_CHECK(hzi_quat_conv_copy_run(ctx, plan.step.op, &plan.copy,
						plan.step.x.x.data));
	}
	return launch_wgrad(ctx, &plan.step, &plan.p);
}

/* ---- Convolutions ---------------------------------------------------------------------------- */

/* NULL, and the expected time in *us; or why a call is not supported */
static const char *make_conv(const struct hz_context *ctx, const struct hzi_quat_conv_step *a,
			     struct hzi_quat_conv16 *p, double *us)
{
	const struct hzi_quat_patch_step *x = &a->x;
	double products, bytes;
	int64_t taps;
	int split;

	*p = (struct hzi_quat_conv16){.outs = (int32_t)a->g.m};
	*us = 0;
	if (!hzi_quat_uses_planar_f16(ctx, a->g.dtype, a->g.precision, &split) || split ||
	    a->g.dtype == HZ_F32)
		return "x is f32, or in split precision";
	if (a->g.method != HZ_QUAT_FAST)
		return "the method is not HZ_QUAT_FAST";
	if (x->groups > 1)
		return "several groups at once";
	if (x->channels % 2)
		return "an odd number of channels";
	if (a->g.n == 0 || a->g.k == 0 || a->g.n > COUNT_MAX || a->g.m > COUNT_MAX / 16 ||
	    a->g.k > COUNT_MAX / 16 || !hzi_quat_conv_sizes_fit(x))
		return "no pixels or channels, or sizes are too large";
	if (!strides_fit(&x->x, x->size, a->images))
		return "channels are not contiguous, or pixels not 16-byte aligned";
	if (!choose_tma_tiles(x, a->images, TILE_LOG, &p->b))
		return "the stride is larger than 8, or sizes are too large";
	taps = x->taps[0] * x->taps[1] * x->taps[2];
	p->channels = (int32_t)x->channels;
	p->units = (int32_t)ceil_div(x->channels, CHANNELS);
	p->taps = (int32_t)taps;
	p->tiles_n = (int32_t)ceil_div(a->g.m, HZI_CONV16_TILE_OUTS);
	if (ceil_div(p->b.all, 2 * HZI_CONV16_TMA_TILES) > COUNT_MAX / p->tiles_n)
		return "sizes are too large";
	p->pairs = (int32_t)(ceil_div(p->b.all, 2 * HZI_CONV16_TMA_TILES) * p->tiles_n);
	products = (double)p->pairs * 2 * HZI_CONV16_TMA_TILES * HZI_GEMM16_PIXELS *
		   HZI_CONV16_TILE_OUTS * (double)(taps * p->units * CHANNELS);
	bytes = (double)p->pairs * (double)(taps * p->units) *
			(4 * HZI_GEMM16_UNIT_BYTES + 4 * HZI_CONV16_TILE_OUTS * 128) +
		8 * (double)a->g.n * (double)a->g.m;
	*us = CALL_US + fmax(products_us(ctx, products, false),
			     hzi_quat_conv_sm_us(ctx, bytes, BYTES));
	return NULL;
}

const char *hzi_cuda_quat_conv_implicit_gemm16_unsupported(const struct hz_context *ctx,
							   const void *args)
{
	struct hzi_quat_conv16 p;
	double us;

	return make_conv(ctx, args, &p, &us);
}

double hzi_cuda_quat_conv_implicit_gemm16_us(const struct hz_context *ctx,
					     const struct hzi_quat_conv_step *a)
{
	struct hzi_quat_conv16 p;
	double us;

	make_conv(ctx, a, &p, &us);
	return us;
}

static int64_t matrix_columns(const struct hzi_quat_conv16 *p)
{
	return (int64_t)p->taps * p->units * HZI_GEMM16_UNIT;
}

size_t hzi_cuda_quat_conv_implicit_gemm16_workspace(const struct hz_context *ctx, const void *args)
{
	struct hzi_quat_conv16 p;
	double us;

	make_conv(ctx, args, &p, &us);
	return padded(2 * 4 * HZI_CONV16_TILE_OUTS * p.tiles_n * matrix_columns(&p));
}

int hzi_cuda_quat_conv_implicit_gemm16(struct hz_context *ctx, const void *args)
{
	const struct hzi_quat_conv_step *a = args;
	const char *const op = a->op;
	struct hzi_launch launch = {.block = {HZI_CONV16_PACK_THREADS}, .early = true,
				    .aligned = true};
	const bool bf16 = a->g.dtype == HZ_BF16;
	struct hzi_quat_conv16 p;
	const struct hzi_quat_gemm_args *g = &a->g;
	int64_t columns, rows;
	double us;
	int clusters;

	make_conv(ctx, a, &p, &us);
	columns = matrix_columns(&p);
	rows = 4 * HZI_CONV16_TILE_OUTS * (int64_t)p.tiles_n;
	p.w = hzi_quat_matrix_of(&g->a, g->dtype, g->conj_a, NULL, 0);
	p.conj_x = g->conj_b;
	p.matrix = ctx->workspace;
	p.out = hzi_quat_conv_out_of(a);
	for (int d = 0; d < 4; d++) {
		p.count[d] = (int32_t)(d < 3 ? a->x.count[2 - d] : a->images);
		p.c_stride[d] = a->y.stride[3 - d];
		p.pre_stride[d] = a->pre.stride[3 - d];
	}
	p.no_epilogue = !g->bias && !a->pre.data && g->activation == HZ_ACT_NONE;
	launch.grid[0] = (unsigned)ceil_div(rows / 4 * columns / 4, HZI_CONV16_PACK_THREADS);
	HZ_CHECK(hzi_cuda_launch(ctx, op, HZI_KERNEL_quat_conv_implicit_gemm16_pack_f16 + bf16,
				 &launch, &p, sizeof(p)));
	HZ_CHECK(map_of(ctx, op, &p.x, &a->x.x, a->x.channels, a->x.size, a->images, &p.b,
			p.b.step));
	HZ_CHECK(hzi_cuda_tensor_map_2d(ctx, op, &p.weights, p.matrix, 2 * columns, rows,
					2 * columns, 128, 2 * HZI_CONV16_TILE_OUTS));
	launch.block[0] = HZI_CONV16_THREADS;
	launch.shared_bytes = HZI_CONV16_SHARED_BYTES;
	launch.cluster = 2;
	HZ_CHECK(hzi_cuda_clusters(ctx, op, HZI_KERNEL_quat_conv_implicit_gemm16_f16 + bf16,
				   &launch, &clusters));
	launch.grid[0] = (unsigned)(2 * min_of(p.pairs, clusters));
	return hzi_cuda_launch(ctx, op, HZI_KERNEL_quat_conv_implicit_gemm16_f16 + bf16, &launch,
			       &p, sizeof(p));
}
