/*
 * qgemm.c - launchers of quantized matrix multiplication
 *
 * SPDX-License-Identifier: BSD-2-Clause
 *
 * Every kernel reads A as rows of bytes that begin at multiples of 16, and packed B; what comes
 * otherwise is put in that form in the workspace first. A batch is a launch for each matrix, unless
 * its items are rows of one matrix.
 */
#include <config.h>

#include <assert.h>
#include <math.h>
#include <string.h>

#include "gpu/runtime/cuda.h"
#include "gpu/qgemm/qgemm.h"
#include "gpu/quantize/quantize.h"
#include "lib/qgemm/qgemm.h"

HZI_LINK_IMAGES(qgemm);
HZI_LINK_IMAGES(quantize);

#define SM_HOPPER 90
#define ROWS_MAX ((int64_t)65535 * 64)	/* of one launch: blocks of 64 along a grid */
#define ROWS_SHORT 1024		/* of x, that a warp quantizes if there are many */
#define ROWS_MANY 8		/* for a multiprocessor */
#define SHARED_START 1024		/* to align what a kernel has in shared memory */

static size_t padded(size_t bytes)
{
	return (bytes + 255) & ~(size_t)255;
}

/* ---- Packing --------------------------------------------------------------------------------- */

#define ITEMS_MAX 65535		/* of a launch: blocks along a grid */
#define ITEMS_FEW 4		/* whose sums may be cleared one by one */

/* The dimensions of a batch along which an operand changes */
struct items {
	int32_t ndim;
	int64_t count, shape[HZ_MAXDIM], stride[HZ_MAXDIM];
};

static struct items items_of(int ndim, const int64_t *shape, const int64_t *stride, bool all)
{
	struct items t = {.count = 1};

	for (int d = 0; d < ndim; d++) {
		if (!all && !stride[d])
			continue;
		t.shape[t.ndim] = shape[d];
		t.stride[t.ndim++] = stride[d];
		t.count *= shape[d];
	}
	return t;
}

/*
 * Launches enough blocks for all multiprocessors, of 64 lines of an item and a share of k each.
 * Sums of columns are cleared before if a column is not one block's.
 */
static int launch_lines(struct hz_context *ctx, const char *op, struct hzi_qgemm_lines p,
			const struct items *items, int64_t lines)
{
	const int64_t columns = lines / HZI_QN_GROUP;
	const int64_t want = 8 * (int64_t)hzi_cuda_device(ctx)->multiprocessors;
	struct hzi_launch launch = {.block = {256}};

	launch.grid[0] = (unsigned)columns;
	if (!p.sums || items->count <= ITEMS_FEW)
		launch.grid[1] = (unsigned)min_of(min_of(ceil_div(want, columns * items->count),
							 p.blocks), 65535);
	p.ndim = items->ndim;
	memcpy(p.shape, items->shape, sizeof(p.shape));
	memcpy(p.x_stride, items->stride, sizeof(p.x_stride));
	for (int64_t i = 0; i < items->count && launch.grid[1] > 1 && p.sums; i++)
		HZ_CHECK(hzi_cuda_fill(ctx, (char *)p.sums + i * p.y_item, 0,
				       4 * (size_t)p.width));
	for (; p.first < items->count; p.first += ITEMS_MAX) {
		launch.grid[2] = (unsigned)min_of(items->count - p.first, ITEMS_MAX);
		HZ_CHECK(hzi_cuda_launch(ctx, op, HZI_KERNEL_qgemm_lines, &launch, &p, sizeof(p)));
	}
	return HZ_OK;
}

/* Packed matrices follow each other in the order of the items. */
static int pack_b(struct hz_context *ctx, const char *op, const void *b, int dtype, int64_t k,
		  int64_t n, int64_t b_k, int64_t b_n, const struct items *items, void *data)
{
	const int64_t codes = hzi_qpack_codes(HZI_QLAYOUT_CUDA, k, n);
	const int64_t width = hzi_qpack_width(HZI_QLAYOUT_CUDA, n);
	const struct hzi_qgemm_lines p = {
		.x = b, .y = data, .sums = (int32_t *)(void *)((char *)data + codes),
		.x_line = b_n, .x_k = b_k, .lines = n, .k = k, .width = width,
		.blocks = (int32_t)ceil_div(k, HZI_QK_BLOCK), .flip = dtype == HZ_S8 ? 0x80 : 0,
		.y_item = hzi_qpack_bytes(HZI_QLAYOUT_CUDA, k, n),
	};

	if (k == 0)
		return hzi_cuda_fill(ctx, data, 0, (size_t)(p.y_item * items->count));
	return launch_lines(ctx, op, p, items, width);
}

static const struct items one_item = {.count = 1};

/* ---- Batches --------------------------------------------------------------------------------- */

size_t hzi_cuda_qgemm_pack_workspace(const struct hz_context *ctx,
				     const struct hzi_qgemm_pack_args *a)
{
	(void)ctx, (void)a;
	return 0;
}

int hzi_cuda_qgemm_pack(struct hz_context *ctx, const struct hzi_qgemm_pack_args *a)
{
	const struct items items = items_of(a->ndim, a->shape, a->b_stride, true);

	return pack_b(ctx, "qgemm_pack", a->b, a->b_dtype, a->k, a->n, a->b_k, a->b_n, &items,
		      a->data);
}

/* The innermost dimensions of a batch whose items are rows of one matrix become that matrix. */
static struct hzi_qgemm_args join_rows(const struct hzi_qgemm_args *a)
{
	struct hzi_qgemm_args t = *a;

	while (t.ndim > 0) {
		const int d = t.ndim - 1;
		int64_t m;

		if (t.shape[d] > 1 && (t.b_stride[d] || t.a_stride[d] != t.m * t.a_m ||
				       t.c_stride[d] != t.m * t.c_m || t.row_stride[d] != t.m))
			break;
		if (!hzi_mul(t.m, t.shape[d], &m))
			break;
		t.m = m;
		t.ndim--;
	}
	return t;
}

/* ---- One matrix ------------------------------------------------------------------------------ */

static bool is_code(int dtype)
{
	return dtype == HZ_U8 || dtype == HZ_S8;
}

/* The quick way that sums may go, if where C lies and zeros of rows do not matter */
static int quick_kind(const struct hzi_qgemm_args *t)
{
	/* One multiplier that no column could use */
	const bool far = !t->multipliers && !t->b_scales && t->mult.u &&
			 (t->mult.shift < 33 || t->mult.shift > 53);

	if (t->wide)
		return 0;
	if (is_code(t->c_dtype))
		return t->rounding != HZ_ROUND_TFLITE && !far ? HZI_QUICK_CODES : 0;
	return t->c_dtype != HZ_S32 || t->identity ? HZI_QUICK_ROWS : 0;
}

static struct hzi_qgemm_out make_out(const struct hzi_qgemm_args *t, const int32_t *b_sums)
{
	const int32_t least = t->c_dtype == HZ_S8 ? -128 : 0;
	struct hzi_qgemm_out o = {
		.c = t->c, .b_sums = b_sums, .bias = t->bias,
		.a_zeros = t->a_zeros, .b_zeros = t->b_zeros,
		.multipliers = t->multipliers, .shifts = t->shifts,
		.a_scales = t->a_scales, .b_scales = t->b_scales,
		.c_m = t->c_m, .c_n = t->c_n,
		.zero_step = (int32_t)t->zero_step, .scale_step = (int32_t)t->scale_step,
		.b_scale_step = (int32_t)t->b_scale_step,
		.m = (int32_t)t->m, .n = (int32_t)t->n, .k = (int32_t)t->k,
		.c_dtype = t->c_dtype, .bias_dtype = t->bias ? t->bias_dtype : 0,
		.a_signed = t->a_dtype == HZ_S8, .b_signed = t->b_dtype == HZ_S8,
		.a_zero = t->a_zero, .b_zero = t->b_zero + (t->b_dtype == HZ_S8 ? 128 : 0),
		.c_zero = t->c_zero, .u = t->mult.u, .shift = t->mult.shift,
		.tflite = t->rounding == HZ_ROUND_TFLITE, .identity = t->identity,
		.min = t->min, .max = t->max, .fmin = t->fmin, .fmax = t->fmax,
		.a_scale = t->a_scale, .b_scale = t->b_scale, .c_scale = t->c_scale,
	};
	const int64_t size = (int64_t)hz_dtype_size(t->c_dtype);
	const bool whole = (uintptr_t)t->c % 16 == 0 && t->c_n == 1 &&
			   (t->c_m * size % 16 == 0 || t->m == 1);

	o.a_sums = o.b_zeros || o.b_zero;
	if (whole && !(is_code(t->c_dtype) && t->a_zeros))
		o.quick = quick_kind(t);
	o.bounded = is_code(t->c_dtype) ? t->min > least || t->max < least + 255
					: t->fmin > -INFINITY || t->fmax < INFINITY;
	o.bias_max = t->wide ? 0 : (int32_t)(INT32_MAX - t->reach);
	return o;
}

static struct hzi_qgemm_any make_any(const struct hzi_qgemm_args *t, const uint8_t *b,
				     const struct hzi_qgemm_out *out)
{
	return (struct hzi_qgemm_any){
		.a = t->a, .b = b, .out = *out, .a_m = t->a_m,
		.width = (int32_t)hzi_qpack_width(HZI_QLAYOUT_CUDA, t->n),
		.blocks = (int32_t)ceil_div(t->k, HZI_QK_BLOCK),
	};
}

static int launch_any(struct hz_context *ctx, const struct hzi_qgemm_args *t,
		      struct hzi_qgemm_any *p, int64_t items)
{
	const int rows = t->wide ? HZI_ANY_ROWS / 2 : HZI_ANY_ROWS;
	const bool is_signed = t->a_dtype == HZ_S8;
	struct hzi_launch launch = {
		.grid = {(unsigned)ceil_div(t->n, HZI_ANY_COLUMNS), (unsigned)ceil_div(t->m, rows)},
		.block = {256},
		.shared_bytes =
			(unsigned)(HZI_ANY_STAGES * (rows + HZI_ANY_COLUMNS) * HZI_QK_BLOCK),
	};
	const int kernel = (p->ndim ? HZI_KERNEL_qgemm_batch_u : HZI_KERNEL_qgemm_any_u) +
			   (t->wide ? 2 : 0) + is_signed;

	for (; p->first < items; p->first += ITEMS_MAX) {
		launch.grid[2] = (unsigned)min_of(items - p->first, ITEMS_MAX);
		HZ_CHECK(hzi_cuda_launch(ctx, "qgemm", kernel, &launch, p, sizeof(*p)));
	}
	return HZ_OK;
}

/* Kernels for up to that many rows. */
struct few_kernel {
	int rows, kernel, kernel_signed, bytes;
};

static const struct few_kernel few_kernels[] = {
	{8, HZI_KERNEL_qgemm_few_8_u, HZI_KERNEL_qgemm_few_8_s,
	 HZI_FEW_BYTES(8, HZI_FEW_STAGES_8)},
	{16, HZI_KERNEL_qgemm_few_16_u, HZI_KERNEL_qgemm_few_16_s,
	 HZI_FEW_BYTES(16, HZI_FEW_STAGES_16)},
	{32, HZI_KERNEL_qgemm_few_32_u, HZI_KERNEL_qgemm_few_32_s,
	 HZI_FEW_BYTES(32, HZI_FEW_STAGES_32)},
	{64, HZI_KERNEL_qgemm_few_64_u, HZI_KERNEL_qgemm_few_64_s,
	 HZI_FEW_BYTES(64, HZI_FEW_STAGES_64)},
};

#define FEW_CYCLES 265		/* of a block of k by 64 rows, on an H200 */
#define WIDE_BLOCKS 256		/* of k: 32768 products of 255^2, whose sum 32 bits hold */

/*
 * Blocks of a cluster, which share k: what needs the fewest steps, if what a block does once takes
 * as long as 12 blocks of k. wide: no share is beyond sums of 32 bits; 0 if there is no such.
 */
static unsigned few_shares(int64_t sms, int64_t tiles, int64_t blocks, bool wide, int64_t *cycles)
{
	int64_t least = INT64_MAX;
	unsigned best = 0;

	for (unsigned i = 1; i <= 8 && i <= blocks; i *= 2) {
		const int64_t steps = ceil_div(tiles * i, sms) * (ceil_div(blocks, i) + 12);

		if (steps < least && !(wide && ceil_div(blocks, i) > WIDE_BLOCKS)) {
			least = steps;
			best = i;
		}
	}
	*cycles = least * FEW_CYCLES;
	return best;
}

static int launch_few(struct hz_context *ctx, const struct hzi_qgemm_args *t, const uint8_t *b,
		      const struct hzi_qgemm_out *out, unsigned shares, bool early)
{
	const struct few_kernel *f = few_kernels;
	struct hzi_qgemm_few p = {
		.b = b, .out = *out, .width = (int32_t)hzi_qpack_width(HZI_QLAYOUT_CUDA, t->n),
		.blocks = (int32_t)ceil_div(t->k, HZI_QK_BLOCK), .wide = t->wide,
	};
	struct hzi_launch launch = {.block = {HZI_FEW_THREADS}, .cluster = shares, .early = early,
				    .aligned = true};

	while (f->rows < t->m && f->rows < HZI_FEW_ROWS)
		f++;
	if (!p.out.quick || t->n % 16) {
		p.loose = true;
		p.out.quick = quick_kind(t);
		if (t->a_zeros)
			p.out.a_zero = 0;
	}
	launch.grid[0] = (unsigned)ceil_div(t->n, HZI_FEW_COLUMNS) * shares;
	launch.grid[1] = (unsigned)ceil_div(t->m, f->rows);
	launch.shared_bytes = (unsigned)(SHARED_START + f->bytes);
	HZ_CHECK(hzi_cuda_tensor_map(ctx, "qgemm", &p.a, t->a, t->k, t->m, t->a_m, 128,
				     f->rows));
	return hzi_cuda_launch(ctx, "qgemm", t->a_dtype == HZ_S8 ? f->kernel_signed : f->kernel,
			       &launch, &p, sizeof(p));
}

/*
 * Tiles, of clusters of blocks down along m by across along n. The one is taken that needs the
 * fewest cycles, waves * (blocks of k * block + tile) + once; the numbers are from an H200.
 */
struct tma_kernel {
	int columns, kernel, kernel_signed, stages, down, across;
	int block, tile, once;
};

static const struct tma_kernel tma_kernels[] = {
	{256, HZI_KERNEL_qgemm_tma_256_u, HZI_KERNEL_qgemm_tma_256_s, 4, 2, 1, 1060, 3700, 3000},
	{192, HZI_KERNEL_qgemm_tma_192_u, HZI_KERNEL_qgemm_tma_192_s, 5, 2, 1, 810, 2900, 3000},
	{128, HZI_KERNEL_qgemm_tma_128_u, HZI_KERNEL_qgemm_tma_128_s, 6, 2, 1, 535, 2200, 3000},
	{128, HZI_KERNEL_qgemm_tma_128_1_u, HZI_KERNEL_qgemm_tma_128_1_s, 6, 1, 1, 740, 2200,
	 2700},
	{96, HZI_KERNEL_qgemm_tma_96_u, HZI_KERNEL_qgemm_tma_96_s, 7, 1, 4, 520, 1700, 3000},
	{64, HZI_KERNEL_qgemm_tma_64_u, HZI_KERNEL_qgemm_tma_64_s, 7, 1, 1, 440, 1300, 2700},
};

/*
 * Clusters at once. Those of 4 have to fit in what is one part of the GPU, of some 16 blocks: of 33
 * on an H200 30 do.
 */
static int64_t clusters(int64_t sms, int blocks)
{
	return max_of(blocks < 4 ? sms / blocks : sms * 10 / 11 / blocks, 1);
}

#define BAND_ROWS 2048	/* of A, of which a wave has tiles by as many columns */

static const struct tma_kernel *best_tma(int64_t sms, const struct hzi_qgemm_args *t,
					 int64_t *cycles)
{
	const int64_t blocks = ceil_div(t->k, HZI_QK_BLOCK);
	const struct tma_kernel *f = NULL;

	*cycles = INT64_MAX;
	for (size_t i = 0; i < sizeof(tma_kernels) / sizeof(*tma_kernels); i++) {
		const struct tma_kernel *g = &tma_kernels[i];
		const int64_t tiles = ceil_div(t->m, HZI_TMA_ROWS * g->down) *
				      ceil_div(t->n, g->columns * g->across);
		const int64_t all = ceil_div(tiles, clusters(sms, g->down * g->across)) *
				    (blocks * g->block + g->tile) + g->once;

		if (all < *cycles) {
			*cycles = all;
			f = g;
		}
	}
	return f;
}

static int launch_tma(struct hz_context *ctx, const struct hzi_qgemm_args *t, const uint8_t *b,
		      const struct hzi_qgemm_out *out, const struct tma_kernel *f, bool early)
{
	const int64_t sms = hzi_cuda_device(ctx)->multiprocessors;
	struct hzi_qgemm_tma p = {
		.b = b, .out = *out, .width = (int32_t)hzi_qpack_width(HZI_QLAYOUT_CUDA, t->n),
		.blocks = (int32_t)ceil_div(t->k, HZI_QK_BLOCK),
	};
	struct hzi_launch launch = {.block = {HZI_TMA_THREADS}, .early = early, .aligned = true};

	p.tiles_m = (int32_t)ceil_div(t->m, HZI_TMA_ROWS * f->down);
	p.tiles_n = (int32_t)ceil_div(t->n, f->columns * f->across);
	p.band = BAND_ROWS / (HZI_TMA_ROWS * f->down);
	launch.cluster = (unsigned)(f->down * f->across);
	launch.grid[0] = (unsigned)min_of((int64_t)p.tiles_m * p.tiles_n,
					  clusters(sms, f->down * f->across)) * launch.cluster;
	launch.shared_bytes = SHARED_START + (unsigned)HZI_TMA_BYTES(f->columns, f->stages);
	HZ_CHECK(hzi_cuda_tensor_map(ctx, "qgemm", &p.a, t->a, t->k, t->m, t->a_m, 128,
				     HZI_TMA_ROWS / f->across));
	return hzi_cuda_launch(ctx, "qgemm", t->a_dtype == HZ_S8 ? f->kernel_signed : f->kernel,
			       &launch, &p, sizeof(p));
}

/* Whether kernels can read A where it lies. */
static bool aligned(const struct hzi_qgemm_args *t)
{
	return t->k == 0 || ((t->a_k == 1 || t->k == 1) && (uintptr_t)t->a % 16 == 0 &&
			     (t->m == 1 || (t->a_m >= t->k && t->a_m % 16 == 0)));
}

/* The same for every item of the batch. */
static bool all_aligned(const struct hzi_qgemm_args *t)
{
	for (int d = 0; d < t->ndim; d++) {
		if (t->a_stride[d] % 16)
			return false;
	}
	return aligned(t);
}

static int64_t lines_bytes(const struct hzi_qgemm_args *t)
{
	return hzi_round_up(t->k, 16) * t->m;
}

/*
 * A part of the rows, by the kernels that take the least time: more than those for few rows are
 * for may be several times as many, if each multiprocessor gets one block at most.
 */
static int multiply_rows(struct hz_context *ctx, const struct hzi_qgemm_args *t, const uint8_t *b,
			 const struct hzi_qgemm_out *out, bool early)
{
	const int64_t sms = hzi_cuda_device(ctx)->multiprocessors;
	const int64_t tiles = ceil_div(t->n, HZI_FEW_COLUMNS) * ceil_div(t->m, HZI_FEW_ROWS);
	const bool hopper = hzi_cuda_device(ctx)->sm == SM_HOPPER && HZ_CUDA_90A && t->k > 0;
	const struct tma_kernel *f = NULL;
	int64_t few = INT64_MAX, many = INT64_MAX;
	unsigned shares = 0;

	if (hopper)
		shares = few_shares(sms, tiles, ceil_div(t->k, HZI_QK_BLOCK), t->wide, &few);
	if (hopper && !t->wide)
		f = best_tma(sms, t, &many);
	if (shares && (t->m <= HZI_FEW_ROWS ||
		       (f && tiles * shares <= sms && few < many / 10 * 9)))
		return launch_few(ctx, t, b, out, shares, early);
	if (f)
		return launch_tma(ctx, t, b, out, f, early);

	struct hzi_qgemm_any p = make_any(t, b, out);

	return launch_any(ctx, t, &p, 1);
}

/* One matrix with packed B; room is for A, where that has to be moved. */
static int multiply(struct hz_context *ctx, struct hzi_qgemm_args *t, const uint8_t *b, void *room,
		    bool early)
{
	const int64_t codes = hzi_qpack_codes(HZI_QLAYOUT_CUDA, t->k, t->n);
	struct hzi_qgemm_out out;

	if (!aligned(t)) {
		const struct hzi_qgemm_lines p = {
			.x = t->a, .y = room, .x_line = t->a_m, .x_k = t->a_k,
			.y_line = hzi_round_up(t->k, 16), .lines = t->m, .k = t->k,
			.blocks = (int32_t)ceil_div(t->k, HZI_QK_BLOCK),
		};

		HZ_CHECK(launch_lines(ctx, "qgemm", p, &one_item,
				      hzi_round_up(t->m, HZI_QN_GROUP)));
		t->a = room;
		t->a_m = p.y_line;
		t->a_k = 1;
		early = false;
	}
	if (t->m == 1)
		t->a_m = hzi_round_up(t->k, 16);
	out = make_out(t, (const int32_t *)(const void *)(b + codes));
	for (int64_t row = 0; row < t->m; row += ROWS_MAX) {
		struct hzi_qgemm_args part = *t;

		part.m = min_of(ROWS_MAX, t->m - row);
		part.a = (const char *)t->a + row * t->a_m;
		out.m = (int32_t)part.m;
		out.c = (char *)t->c + row * t->c_m * (int64_t)hz_dtype_size(t->c_dtype);
		out.zero_row = out.scale_row = t->row_stride[HZ_MAXDIM - 1] + row;
		out.zero_row *= t->zero_step;
		out.scale_row *= t->scale_step;
		HZ_CHECK(multiply_rows(ctx, &part, b, &out, early));
	}
	return HZ_OK;
}

#define JOINT_BYTES ((int64_t)256 << 20)	/* of packed matrices, at most */
#define JOINT_RATE 450000	/* operations of qgemm_any in a nanosecond, as seen on an H200 */
#define SINGLE_RATE 1300000	/* of the kernels for Hopper */
#define BYTES_RATE 3000		/* bytes of B in a nanosecond */
#define LAUNCH_NS 2000		/* of a launch, and of copies to another form */

/*
 * Whether the items of a batch are one launch. Then kernels for any GPU do them, so that many small
 * ones are not a launch each; few large ones take less time by themselves.
 */
static bool is_joint(const struct hz_context *ctx, const struct hzi_qgemm_args *t)
{
	const struct items items = items_of(t->ndim, t->shape, t->b_stride, true);
	const struct items packs = items_of(t->ndim, t->shape, t->b_stride, false);
	const int64_t n = hzi_round_up(t->n, HZI_ANY_COLUMNS), k = hzi_round_up(t->k, HZI_QK_BLOCK);
	const double bytes = (double)n * (double)k / BYTES_RATE;
	const double joint = 2.0 * (double)hzi_round_up(t->m, HZI_ANY_ROWS) * (double)n *
			     (double)k / JOINT_RATE;
	const double single = 2.0 * (double)t->m * (double)n * (double)k / SINGLE_RATE;
	const int64_t launches = 1 + (t->packed ? 0 : 2);

	if (items.count < 2 || t->m > ROWS_MAX || t->ndim > HZI_BATCH_DIMS ||
	    (!t->packed &&
	     packs.count * hzi_qpack_bytes(HZI_QLAYOUT_CUDA, t->k, t->n) > JOINT_BYTES))
		return false;
	if (hzi_cuda_device(ctx)->sm != SM_HOPPER || !HZ_CUDA_90A || t->wide || t->k == 0)
		return true;
	return (double)items.count * fmax(joint, bytes) + 2 * LAUNCH_NS <
	       (double)items.count * fmax(fmax(single, bytes), (double)(launches * LAUNCH_NS));
}

/* Where in the workspace A lies, behind packed B, if they have to be put there; and all bytes */
static size_t room_for(const struct hz_context *ctx, const struct hzi_qgemm_args *t, bool joint,
		       size_t *lines)
{
	const struct items packs = items_of(t->ndim, t->shape, t->b_stride, false);
	const struct items items = items_of(t->ndim, t->shape, t->b_stride, true);
	const int64_t pack_bytes = hzi_qpack_bytes(HZI_QLAYOUT_CUDA, t->k, t->n);
	size_t bytes = 0;

	(void)ctx;
	if (!t->packed)
		bytes += padded((size_t)(pack_bytes * (joint ? packs.count : 1)));
	*lines = bytes;
	if (!all_aligned(t))
		bytes += padded((size_t)(lines_bytes(t) * (joint ? items.count : 1)));
	return bytes;
}

size_t hzi_cuda_qgemm_workspace(const struct hz_context *ctx, const struct hzi_qgemm_args *a)
{
	const struct hzi_qgemm_args t = join_rows(a);
	size_t lines;

	return room_for(ctx, &t, is_joint(ctx, &t), &lines);
}

static int joint_batch(struct hz_context *ctx, struct hzi_qgemm_args *t, char *room)
{
	const struct items items = items_of(t->ndim, t->shape, t->a_stride, true);
	const struct items packs = items_of(t->ndim, t->shape, t->b_stride, false);
	const int64_t c_size = (int64_t)hz_dtype_size(t->c_dtype);
	const int64_t pack_bytes = hzi_qpack_bytes(HZI_QLAYOUT_CUDA, t->k, t->n);
	const uint8_t *b = t->packed ? t->packed : (const uint8_t *)room;
	struct hzi_qgemm_out out;
	struct hzi_qgemm_any p;
	size_t lines;

	room_for(ctx, t, true, &lines);
	if (!t->packed) {
		int64_t step = 1;

		HZ_CHECK(pack_b(ctx, "qgemm", t->b, t->b_dtype, t->k, t->n, t->b_k, t->b_n, &packs,
				room));
		for (int d = t->ndim - 1; d >= 0; d--) {
			if (!t->b_stride[d])
				continue;
			t->b_stride[d] = step;
			step *= t->shape[d];
		}
	}
	if (!all_aligned(t)) {
		struct hzi_qgemm_lines q = {
			.x = t->a, .y = (uint8_t *)room + lines, .x_line = t->a_m, .x_k = t->a_k,
			.y_line = hzi_round_up(t->k, 16), .lines = t->m, .k = t->k,
			.blocks = (int32_t)ceil_div(t->k, HZI_QK_BLOCK), .y_item = lines_bytes(t),
		};
		int64_t step = q.y_item;

		HZ_CHECK(launch_lines(ctx, "qgemm", q, &items,
				      hzi_round_up(t->m, HZI_QN_GROUP)));
		t->a = q.y;
		t->a_m = q.y_line;
		t->a_k = 1;
		for (int d = t->ndim - 1; d >= 0; d--) {
			t->a_stride[d] = step;
			step *= t->shape[d];
		}
	}
	out = make_out(t, (const int32_t *)(const void *)(
				  b + hzi_qpack_codes(HZI_QLAYOUT_CUDA, t->k, t->n)));
	p = make_any(t, b, &out);
	p.ndim = t->ndim;
	for (int d = 0; d < t->ndim; d++) {
		p.shape[d] = t->shape[d];
		p.a_stride[d] = t->a_stride[d];
		p.b_stride[d] = t->b_stride[d] * pack_bytes;
		p.c_stride[d] = t->c_stride[d] * c_size;
		p.row_stride[d] = t->row_stride[d];
		if (p.c_stride[d] % 16)
			p.out.quick = 0;
	}
	return launch_any(ctx, t, &p, items.count);
}

static int batch(struct hz_context *ctx, const struct hzi_qgemm_args *a, char *room)
{
	struct hzi_qgemm_args t = join_rows(a);
	const int64_t c_size = (int64_t)hz_dtype_size(t.c_dtype);
	const int64_t pack_bytes = hzi_qpack_bytes(HZI_QLAYOUT_CUDA, t.k, t.n);
	int64_t index[HZ_MAXDIM] = {0}, packed = -1;
	size_t lines;

	if (hzi_qpack_width(HZI_QLAYOUT_CUDA, t.n) > INT32_MAX)
		return hzi_fail(ctx, HZ_ENOTSUP,
				"qgemm: n is %lld, must be at most 2^31 - 256 on a GPU",
				(long long)t.n);
	if (is_joint(ctx, &t))
		return joint_batch(ctx, &t, room);
	room_for(ctx, &t, false, &lines);
	do {
		const int64_t b = offset_of(index, t.b_stride, t.ndim);
		struct hzi_qgemm_args item = t;
		const char *data = room;

		item.a = (const char *)t.a + offset_of(index, t.a_stride, t.ndim);
		item.c = (char *)t.c + offset_of(index, t.c_stride, t.ndim) * c_size;
		/* Behind the dimensions, 4 at most: the row of the whole batch */
		item.row_stride[HZ_MAXDIM - 1] = offset_of(index, t.row_stride, t.ndim);
		if (t.packed)
			data = (const char *)t.packed + b * pack_bytes;
		else if (packed != b)
			HZ_CHECK(pack_b(ctx, "qgemm", (const char *)t.b + b, t.b_dtype, t.k, t.n,
					t.b_k, t.b_n, &one_item, room));
		packed = b;
		HZ_CHECK(multiply(ctx, &item, (const uint8_t *)data, room + lines,
				  t.packed != NULL));
	} while (next_index(index, t.shape, t.ndim));
	return HZ_OK;
}

int hzi_cuda_qgemm(struct hz_context *ctx, const struct hzi_qgemm_args *a)
{
	return batch(ctx, a, ctx->workspace);
}

/* ---- qlinear --------------------------------------------------------------------------------- */

/* Blocks of few rows: two share a group of columns, of each 16 of which 8 are one's. */
static int64_t few_blocks(int64_t n)
{
	return ceil_div(n, HZI_QN_GROUP) * (HZI_QN_GROUP / HZI_LINEAR_COLUMNS);
}

/*
 * Few rows in one launch: each block makes their codes, in shared memory. Fills p; false if x is
 * not rows of whole pieces of 16 bytes, or if codes in memory take less time: with more rows, or
 * more of B than threads keep in registers.
 */
static bool make_few(const struct hz_context *ctx, const struct hzi_qlinear_args *a,
		     struct hzi_qlinear_few *p)
{
	const struct hzi_qgemm_args t = join_rows(&a->g);
	const int64_t size = (int64_t)hz_dtype_size(a->x_dtype);
	const int64_t blocks = ceil_div(t.k, HZI_QK_BLOCK);
	const uint8_t *b = t.packed;

	if (!b || t.ndim > 0 || t.wide || t.k == 0 ||
	    t.m > (a->fixed ? HZI_LINEAR_ROWS : HZI_LINEAR_RANGES) || blocks > HZI_LINEAR_BLOCKS ||
	    few_blocks(t.n) > hzi_cuda_device(ctx)->multiprocessors ||
	    (t.a_k != 1 && t.k > 1) || t.k * size % 16 || (uintptr_t)a->x % 16 ||
	    (t.m > 1 && t.a_m * size % 16))
		return false;
	*p = (struct hzi_qlinear_few){
		.x = a->x, .b = b,
		.out = make_out(&t, (const int32_t *)(const void *)(
					    b + hzi_qpack_codes(HZI_QLAYOUT_CUDA, t.k, t.n))),
		.x_m = t.a_m * size, .width = (int32_t)hzi_qpack_width(HZI_QLAYOUT_CUDA, t.n),
		.blocks = (int32_t)blocks, .lanes = t.m == 1 ? 9 : t.m == 2 ? 8 : 7,
		.x_dtype = a->x_dtype, .q_dtype = t.a_dtype, .symmetric = a->symmetric,
		.fixed = a->fixed, .scale = t.a_scale, .zero = t.a_zero,
	};
	return true;
}

static int launch_few_linear(struct hz_context *ctx, const struct hzi_qlinear_few *p)
{
	const struct hzi_launch launch = {
		.grid = {(unsigned)few_blocks(p->out.n)},
		.block = {HZI_LINEAR_THREADS}, .early = hzi_cuda_device(ctx)->sm >= SM_HOPPER,
	};

	return hzi_cuda_launch(ctx, "qlinear", HZI_KERNEL_qlinear_few, &launch, p, sizeof(*p));
}

/* Where in the workspace the codes, scales and zeros of the rows of x lie, and what qgemm has of
 * it. */
struct linear_room {
	size_t scales, zeros, rest;
};

static struct linear_room room_of(const struct hzi_qlinear_args *a)
{
	const size_t codes = (size_t)(a->g.rows * hzi_round_up(a->g.k, 16));
	struct linear_room r;

	r.scales = padded(codes);
	r.zeros = r.scales + padded(4 * (size_t)a->g.rows);
	r.rest = r.zeros + padded((size_t)a->g.rows);
	return r;
}

/* The multiplication of the codes at room. */
static struct hzi_qgemm_args linear_args(const struct hzi_qlinear_args *a, char *room)
{
	const struct linear_room r = room_of(a);
	struct hzi_qgemm_args g = a->g;
	int64_t rows = g.m;

	g.a = room;
	g.a_m = hzi_round_up(g.k, 16);
	g.a_k = 1;
	for (int d = g.ndim - 1; d >= 0; d--) {
		g.row_stride[d] = rows;
		g.a_stride[d] = rows * g.a_m;
		rows *= g.shape[d];
	}
	if (!a->fixed) {
		g.a_scales = (const float *)(const void *)(room + r.scales);
		g.a_zeros = room + r.zeros;
		g.zero_step = g.scale_step = 1;
	}
	return g;
}

size_t hzi_cuda_qlinear_workspace(const struct hz_context *ctx, const struct hzi_qlinear_args *a)
{
	const struct hzi_qgemm_args g = linear_args(a, NULL);
	struct hzi_qlinear_few few;

	if (make_few(ctx, a, &few))
		return 0;
	return room_of(a).rest + hzi_cuda_qgemm_workspace(ctx, &g);
}

int hzi_cuda_qlinear(struct hz_context *ctx, const struct hzi_qlinear_args *a)
{
	struct hzi_qlinear_few few;

	const struct linear_room r = room_of(a);
	char *room = ctx->workspace;
	const struct hzi_qgemm_args g = linear_args(a, room);
	struct hzi_quantize_rows p = {
		.x = a->x, .y = (uint8_t *)room,
		.scales = a->fixed ? NULL : (float *)(void *)(room + r.scales),
		.zeros = (uint8_t *)room + r.zeros,
		.rows = g.rows, .k = g.k, .y_row = g.a_m, .x_k = a->g.a_k,
		.ndim = g.ndim + 1, .q_dtype = g.a_dtype, .symmetric = a->symmetric,
		.scale = g.a_scale, .zero = g.a_zero,
		.narrow = g.k <= ROWS_SHORT &&
			  g.rows >= ROWS_MANY * (int64_t)hzi_cuda_device(ctx)->multiprocessors,
	};
	const struct hzi_launch launch = {
		.grid = {(unsigned)(p.narrow ? ceil_div(g.rows, HZI_ROWS_THREADS / 32) : g.rows)},
		.block = {HZI_ROWS_THREADS}, .early = hzi_cuda_device(ctx)->sm >= SM_HOPPER,
	};
	const int kernel = a->x_dtype == HZ_F32 ? HZI_KERNEL_quantize_rows_f32
			   : a->x_dtype == HZ_F16 ? HZI_KERNEL_quantize_rows_f16
						  : HZI_KERNEL_quantize_rows_bf16;

	if (make_few(ctx, a, &few))
		return launch_few_linear(ctx, &few);
	if (g.rows > INT32_MAX)
		return hzi_fail(ctx, HZ_ENOTSUP,
				"qlinear: x has %lld rows, must be below 2^31 on a GPU",
				(long long)g.rows);
	for (int d = 0; d < g.ndim; d++) {
		p.shape[d] = g.shape[d];
		p.x_stride[d] = a->g.a_stride[d];
	}
	p.shape[g.ndim] = g.m;
	p.x_stride[g.ndim] = a->g.a_m;
	HZ_CHECK(hzi_cuda_launch(ctx, "qlinear", kernel, &launch, &p, sizeof(p)));
	return batch(ctx, &g, room + r.rest);
}
