/*
 * hadamard.c - launchers of the Hadamard kernels
 *
 * SPDX-License-Identifier: BSD-2-Clause
 *
 * The launchers of hadamard_launch.h are asked first: each takes what it is made for. Any other
 * call becomes one launch for each segment of the plan: on a fast path, rows, base matrices or
 * columns, if sizes, strides and alignment allow, else through the kernel for everything. Which one
 * it is changes no bit of a transform in f32; with 16 bits or codes on either side the matrix units
 * may do it, within the bounds of hurwitz.h.
 */
#include <config.h>

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "gpu/runtime/cuda.h"
#include "gpu/hadamard/hadamard.h"
#include "gpu/hadamard/launch.h"
#include "lib/hadamard/hadamard.h"

#define SM_CLUSTERS 90		/* the first with clusters */
#define GRID_MAX 0x7fffffff

struct call {
	struct hz_context *ctx;
	const char *op;
	const struct hzi_cuda_device *device;
	const struct hzi_hadamard_args *t;
	const int64_t *x_stride, *y_stride;	/* of the outer dimensions, in elements */
	const int64_t *scale_stride;		/* NULL: no quantization */
	int64_t group;
	bool quantize;
};

static int log2_of(int64_t power)
{
	return 63 - __builtin_clzll((unsigned long long)power);
}

/* Bits of an element of memory. */
static int bits_of(int dtype)
{
	return dtype == HZ_S4X2 ? 4 : 8 * (int)hz_dtype_size(dtype);
}

/* ---- Dimensions of vectors
 * ----------------------------------------------------------------------- */

struct dims {
	int n;
	struct hzi_hadamard_dim d[HZI_ANY_DIMS];
};

#define DIM_FIELDS (sizeof(struct hzi_hadamard_dim) / sizeof(int64_t))

/* Whether one step of outer is what inner makes in all its steps, in every operand. */
static bool continues(const struct hzi_hadamard_dim *outer, const struct hzi_hadamard_dim *inner)
{
	int64_t o[DIM_FIELDS], i[DIM_FIELDS], whole;

	memcpy(o, outer, sizeof(o));
	memcpy(i, inner, sizeof(i));
	for (size_t f = 1; f < DIM_FIELDS; f++) {
		if (__builtin_mul_overflow(i[0], i[f], &whole) || whole != o[f])
			return false;
	}
	return true;
}

/* Adds an inner dimension, as part of the last one if it can be. */
static void add_dim(struct dims *dims, struct hzi_hadamard_dim d)
{
	struct hzi_hadamard_dim *last = dims->n ? &dims->d[dims->n - 1] : NULL;

	if (d.size == 1)
		return;
	if (last && continues(last, &d)) {
		d.size *= last->size;
		*last = d;
		return;
	}
	assert(dims->n < HZI_ANY_DIMS);
	dims->d[dims->n++] = d;
}

/* The vectors of a segment: items, blocks, repetitions; without a segment the items alone. */
static struct dims make_dims(const struct call *c, const struct hzi_segment *seg)
{
	const struct hzi_hadamard_args *t = c->t;
	const int64_t row = t->blocks * t->plan.n;
	/* Groups in a row are found from the place in it, of which an item's scales continue. */
	const bool whole = c->scale_stride && c->group == row;
	struct dims dims = {0};

	for (int i = 0; i < t->ndim; i++) {
		const int64_t step = c->scale_stride ? c->scale_stride[i] : 0;

		add_dim(&dims, (struct hzi_hadamard_dim){
			.size = t->shape[i], .x = c->x_stride[i], .y = c->y_stride[i],
			.scale = whole ? step : 0, .place = whole ? 0 : step * c->group});
	}
	if (!seg)
		return dims;
	add_dim(&dims, (struct hzi_hadamard_dim){
		.size = t->blocks, .x = t->x_block, .y = t->y_block, .pre = t->pre.block_step,
		.post = t->post.block_step, .place = c->scale_stride && !whole ? t->plan.n : 0});
	add_dim(&dims, (struct hzi_hadamard_dim){
		.size = seg->count, .x = seg->length * t->x_step, .y = seg->length * t->y_step,
		.pre = t->pre.kind ? seg->length : 0, .post = t->post.kind ? seg->length : 0,
		.place = c->scale_stride && !whole ? seg->length : 0});
	return dims;
}

static int64_t vectors_of(const struct dims *dims)
{
	int64_t n = 1;

	for (int i = 0; i < dims->n; i++)
		n *= dims->d[i].size;
	return n;
}

/* What all kernels want to know, for a segment. */
static struct hzi_hadamard_job make_job(const struct call *c, const struct hzi_hadamard_job *base,
					const struct hzi_segment *seg, const struct dims *dims)
{
	struct hzi_hadamard_job job = *base;

	job.vectors = vectors_of(dims);
	job.offset = seg->offset;
	job.m = seg->m;
	job.k = seg->k;
	job.factor = seg->scale;
	if (c->scale_stride)
		job.group_log2 =
			c->group == c->t->blocks * c->t->plan.n ? HZI_ROW : log2_of(c->group);
	return job;
}

/* ---- Fast paths
 * ---------------------------------------------------------------------------------- */

/* Fills dim, single and flat; false if there are too many dimensions. */
static bool put_dims(const struct dims *dims, int64_t n, struct hzi_hadamard_rows *p)
{
	if (dims->n > 2)
		return false;
	p->single = dims->n < 2;
	p->dim[1] = dims->n ? dims->d[dims->n - 1]
			    : (struct hzi_hadamard_dim){.size = 1, .x = n, .y = n};
	if (!p->single) {
		const uint64_t size = (uint64_t)p->dim[1].size;

		if (p->job.vectors >> 31)
			return false;
		p->dim[0] = dims->d[0];
		p->shift = size == 1 ? 0 : log2_of((int64_t)size - 1) + 1;
		p->magic = (uint32_t)((((1ull << p->shift) - size) << 32) / size + 1);
	}
	p->flat = p->single && p->dim[1].x == n && p->dim[1].y == n;
	return true;
}

/* Whether an operand and all steps between its vectors are multiples of bytes. */
static bool aligned(const void *p, int64_t offset, int dtype, const int64_t *steps, int n,
		    int64_t bytes)
{
	const int64_t bits = bits_of(dtype);

	for (int i = 0; i < n; i++) {
		if (steps[i] % (8 * bytes / bits))
			return false;
	}
	return offset % (8 * bytes / bits) == 0 && (uintptr_t)p % (uintptr_t)bytes == 0;
}

/* Whether packed signs of vectors begin with bytes; other factors always do. */
static bool whole_bytes(const struct hzi_diag *diag, int64_t offset, int64_t step0, int64_t step1)
{
	return diag->kind != HZ_U8 || (offset % 8 == 0 && step0 % 8 == 0 && step1 % 8 == 0);
}

static void *at_element(const void *p, int64_t element, int dtype)
{
	return (char *)(uintptr_t)p + element * bits_of(dtype) / 8;
}

/*
 * The kernels for rows of 2^10, of less too, to 2^16: threads of a block, log2 of the elements of a
 * tile, blocks of a cluster.
 */
struct rows_kernel {
	int kernel, quantize, threads, tile_log2, cluster;
};

#define ROWS_LOG2_MIN 10
#define ROWS_LOG2_MAX 16

static const struct rows_kernel rows_kernels[] = {
	{HZI_KERNEL_hadamard_rows_10, HZI_KERNEL_hadamard_quantize_10, 128, 11, 1},
	{HZI_KERNEL_hadamard_rows_11, HZI_KERNEL_hadamard_quantize_11, 128, 11, 1},
	{HZI_KERNEL_hadamard_rows_12, HZI_KERNEL_hadamard_quantize_12, 64, 12, 1},
	{HZI_KERNEL_hadamard_rows_13, HZI_KERNEL_hadamard_quantize_13, 128, 13, 1},
	{HZI_KERNEL_hadamard_rows_14, HZI_KERNEL_hadamard_quantize_14, 256, 14, 1},
	{HZI_KERNEL_hadamard_rows_15, HZI_KERNEL_hadamard_quantize_15, 512, 15, 1},
	{HZI_KERNEL_hadamard_rows_16_c4, HZI_KERNEL_hadamard_quantize_16_c4, 256, 16, 4},
};

#define EXCHANGE_BYTES 272	/* of shared memory for each thread's 64 values */

/* How a segment is launched by one of them */
struct rows_launch {
	struct hzi_hadamard_rows p;
	struct hzi_launch launch;
	int kernel;
};

/* false: none of them takes the segment. */
static bool make_rows(const struct call *c, const struct hzi_hadamard_job *base,
		      const struct hzi_segment *seg, struct rows_launch *l)
{
	const struct hzi_hadamard_args *t = c->t;
	const struct dims dims = make_dims(c, seg);
	struct hzi_hadamard_rows *const p = &l->p;
	const struct rows_kernel *r;
	const int64_t n = seg->length;
	int64_t tiles;

	*l = (struct rows_launch){.p = {.job = make_job(c, base, seg, &dims)}};
	if (seg->m > 1 || seg->k > ROWS_LOG2_MAX ||
	    seg->k < (bits_of(p->job.x_dtype) == 4 || c->quantize ? 5 : 4) ||
	    (n > 1 && (t->x_step != 1 || t->y_step != 1)) || !put_dims(&dims, n, p))
		return false;
	if (!aligned(p->job.x, seg->offset, p->job.x_dtype,
		     (int64_t[]){p->dim[0].x, p->dim[1].x}, 2, 16) ||
	    !aligned(p->job.y, seg->offset, p->job.y_dtype,
		     (int64_t[]){p->dim[0].y, p->dim[1].y}, 2, c->quantize ? 4 : 16) ||
	    !whole_bytes(&t->pre, seg->offset, p->dim[0].pre, p->dim[1].pre) ||
	    !whole_bytes(&t->post, seg->offset, p->dim[0].post, p->dim[1].post) ||
	    (t->pre.kind && seg->k < 6))
		return false;
	/* Codes of short rows are written as those of one tile. */
	if (c->quantize && seg->k <= 10 &&
	    (p->dim[1].y != n || (!p->single && p->dim[0].y != n * p->dim[1].size)))
		return false;
	if (c->scale_stride && c->quantize && p->job.group_log2 == HZI_ROW) {
		if (c->group != n)
			return false;
		p->job.group_log2 = seg->k;
	} else if (c->scale_stride && !(c->quantize && p->flat)) {
		/* Vectors have whole groups; dequantizing, a thread reads a scale for 32 elements.
		 */
		const int64_t unit = c->quantize ? c->group : 32;

		if (n < 64 || (p->job.group_log2 != HZI_ROW &&
			       (n < c->group || seg->offset % unit || p->dim[0].place % unit ||
				p->dim[1].place % unit)))
			return false;
	}
	p->piece_log2 = log2_of(128 / bits_of(p->job.x_dtype));
	r = &rows_kernels[seg->k < ROWS_LOG2_MIN ? 0 : seg->k - ROWS_LOG2_MIN];
	l->kernel = c->quantize ? r->quantize : r->kernel;
	l->launch.shared_bytes = (unsigned)r->threads * EXCHANGE_BYTES;
	if ((int64_t)l->launch.shared_bytes > c->device->shared_block_bytes ||
	    (r->cluster > 1 && c->device->sm < SM_CLUSTERS))
		return false;
	p->job.x = at_element(p->job.x, seg->offset, p->job.x_dtype);
	p->job.y = at_element(p->job.y, seg->offset, p->job.y_dtype);
	l->launch.block[0] = (unsigned)r->threads;
	l->launch.cluster = (unsigned)r->cluster;
	tiles = ceil_div(p->job.vectors, (int64_t)1 << (r->tile_log2 - seg->k));
	l->launch.grid[0] =
		(unsigned)(min_of(ceil_div(tiles, r->tile_log2 == 11 ? 4 : 1), GRID_MAX / 8) *
			   r->cluster);
	return true;
}

/* Tries a segment; *done says whether it was launched. */
static int launch_rows(const struct call *c, const struct hzi_hadamard_job *base,
		       const struct hzi_segment *seg, bool *done)
{
	struct rows_launch l;

	*done = make_rows(c, base, seg, &l);
	return *done ? hzi_cuda_launch(c->ctx, c->op, l.kernel, &l.launch, &l.p, sizeof(l.p))
		     : HZ_OK;
}

#define TRUE_ORDER_MAX 64
#define TRUE_LOG2_MIN 6
#define TRUE_LOG2_MAX 11
#define TRUE_THREADS_MAX 512

/* Tries rows with a base matrix. */
static int launch_true(const struct call *c, const struct hzi_hadamard_job *base,
		       const struct hzi_segment *seg, bool *done)
{
	const struct hzi_hadamard_args *t = c->t;
	const struct dims dims = make_dims(c, seg);
	struct hzi_hadamard_true p = {.job = make_job(c, base, seg, &dims)};
	const int64_t n = seg->length, chunks = n / 64;
	struct hzi_launch launch = {0};
	int64_t bytes;

	*done = false;
	if (seg->m == 1 || seg->m > TRUE_ORDER_MAX || seg->k < TRUE_LOG2_MIN ||
	    seg->k > TRUE_LOG2_MAX || n % (seg->k > 10 ? 2048 : 1024) || c->scale_stride ||
	    t->x_step != 1 || t->y_step != 1 || dims.n > 2)
		return HZ_OK;
	p.dim[1] = dims.n ? dims.d[dims.n - 1] : (struct hzi_hadamard_dim){.size = 1};
	if (dims.n == 2)
		p.dim[0] = dims.d[0];
	if (!aligned(p.job.x, seg->offset, p.job.x_dtype, (int64_t[]){p.dim[0].x, p.dim[1].x}, 2,
		     16) ||
	    !aligned(p.job.y, seg->offset, p.job.y_dtype, (int64_t[]){p.dim[0].y, p.dim[1].y}, 2,
		     16) ||
	    !whole_bytes(&t->pre, seg->offset, p.dim[0].pre, p.dim[1].pre) ||
	    !whole_bytes(&t->post, seg->offset, p.dim[0].post, p.dim[1].post))
		return HZ_OK;
	/* 68 words for 64 elements, and up to the next number that is 8 more than a multiple of 32
	 */
	p.stride = (int32_t)(68 << seg->k) / 64;
	p.stride += (40 - p.stride % 32) % 32;
	bytes = (int64_t)seg->m * p.stride * 4 +
		(p.job.y_dtype == HZ_F32 ? seg->m * TRUE_ORDER_MAX * 4 : (int64_t)sizeof(p.bits));
	if (bytes > c->device->shared_block_bytes)
		return HZ_OK;
	for (int i = 0; i < seg->m; i++) {
		for (int j = 0; j < seg->m; j++) {
			const int row = c->t->transpose ? j : i, column = c->t->transpose ? i : j;

			p.bits[2 * i + j / 32] |=
				(seg->base->bits[row * seg->base->words + column / 32] >>
					 column % 32 &
				 1)
				<< j % 32;
		}
	}
	/* Whole warps that share the chunks evenly */
	launch.block[0] =
		(unsigned)(ceil_div(ceil_div(chunks, ceil_div(chunks, TRUE_THREADS_MAX)), 32) * 32);
	launch.shared_bytes = (unsigned)bytes;
	launch.grid[0] = (unsigned)min_of(p.job.vectors, GRID_MAX);
	p.job.x = at_element(p.job.x, seg->offset, p.job.x_dtype);
	p.job.y = at_element(p.job.y, seg->offset, p.job.y_dtype);
	*done = true;
	return hzi_cuda_launch(c->ctx, c->op, HZI_KERNEL_hadamard_true, &launch, &p, sizeof(p));
}

#define COLUMNS_LOG2_MIN 5
#define COLUMNS_LOG2_MAX 10

/* Whether operands can be accessed in pieces of so many columns, from a segment's offset on */
static bool aligned_columns(const struct call *c, const struct hzi_segment *seg,
			    const struct hzi_hadamard_rows *p, int64_t piece)
{
	const struct hzi_hadamard_args *t = c->t;

	return p->columns % piece == 0 &&
	       aligned(p->job.x, seg->offset * t->x_step, p->job.x_dtype,
		       (int64_t[]){p->dim[0].x, p->dim[1].x, t->x_step}, 3,
		       piece * bits_of(p->job.x_dtype) / 8) &&
	       aligned(p->job.y, seg->offset * t->y_step, p->job.y_dtype,
		       (int64_t[]){p->dim[0].y, p->dim[1].y, t->y_step}, 3,
		       piece * bits_of(p->job.y_dtype) / 8);
}

#define NONE -1
#define SLICE 8			/* columns */
#define SLICES_LOG2_MIN 4
#define SLICES_LOG2_MAX 9

/* Columns of one 16-bit dtype without factors: the kernel and its geometry, or NONE */
static int choose_slices(const struct call *c, const struct hzi_segment *seg,
			 const struct hzi_hadamard_rows *p, struct hzi_launch *launch)
{
	const int64_t slices = p->job.vectors * (p->columns / SLICE);

	if (p->job.x_dtype != p->job.y_dtype || p->job.x_dtype == HZ_F32 || p->job.pre_kind ||
	    p->job.post_kind || seg->k < SLICES_LOG2_MIN || seg->k > SLICES_LOG2_MAX ||
	    slices > GRID_MAX || !aligned_columns(c, seg, p, SLICE))
		return NONE;
	launch->block[0] = HZI_COLUMNS_THREADS(seg->k);
	launch->shared_bytes = HZI_COLUMNS_SLICES(seg->k) * HZI_COLUMNS_SLICE_BYTES(seg->k);
	if ((int64_t)launch->shared_bytes > c->device->shared_block_bytes)
		return NONE;
	launch->grid[0] = (unsigned)ceil_div(slices, HZI_COLUMNS_SLICES(seg->k));
	return (p->job.x_dtype == HZ_F16 ? HZI_KERNEL_hadamard_columns_f16_4
					 : HZI_KERNEL_hadamard_columns_bf16_4) +
	       seg->k - SLICES_LOG2_MIN;
}

/* Any other columns: a thread has 16 rows of two columns, of vectors from 2^9 on 32. */
static int choose_columns(const struct call *c, const struct hzi_segment *seg,
			  struct hzi_hadamard_rows *p, struct hzi_launch *launch)
{
	const int wide = seg->k == COLUMNS_LOG2_MAX ? 32 : 64;

	if (seg->k < COLUMNS_LOG2_MIN || seg->k > COLUMNS_LOG2_MAX || p->columns > INT32_MAX ||
	    !aligned_columns(c, seg, p, 2))
		return NONE;
	launch->block[0] = (unsigned)(wide / 2) << (seg->k - (seg->k < 9 ? 4 : 5));
	launch->shared_bytes = (unsigned)(wide * 4) << seg->k;
	p->column_tiles = (int32_t)ceil_div(p->columns, wide);
	if ((int64_t)launch->shared_bytes > c->device->shared_block_bytes ||
	    p->job.vectors > GRID_MAX / p->column_tiles)
		return NONE;
	launch->grid[0] = (unsigned)(p->job.vectors * p->column_tiles);
	return seg->k < 9 ? HZI_KERNEL_hadamard_columns : HZI_KERNEL_hadamard_columns_10;
}

/* Tries vectors that lie side by side. */
static int launch_columns(const struct call *c, const struct hzi_hadamard_job *base,
			  const struct hzi_segment *seg, bool *done)
{
	const struct hzi_hadamard_args *t = c->t;
	struct dims dims = make_dims(c, seg);
	struct hzi_hadamard_rows p = {.job = make_job(c, base, seg, &dims)};
	struct hzi_launch launch = {0};
	int side = -1, kernel;

	*done = false;
	for (int i = 0; i < dims.n; i++) {
		if (dims.d[i].x == 1 && dims.d[i].y == 1 && !dims.d[i].pre && !dims.d[i].post)
			side = i;
	}
	if (side < 0 || c->scale_stride || seg->m > 1)
		return HZ_OK;
	p.columns = dims.d[side].size;
	dims.n--;
	memmove(&dims.d[side], &dims.d[side + 1], (size_t)(dims.n - side) * sizeof(*dims.d));
	for (int i = dims.n - 2; i >= 0; i--) {
		if (!continues(&dims.d[i], &dims.d[i + 1]))
			continue;
		dims.d[i + 1].size *= dims.d[i].size;
		dims.n--;
		memmove(&dims.d[i], &dims.d[i + 1], (size_t)(dims.n - i) * sizeof(*dims.d));
	}
	p.job.vectors = vectors_of(&dims);
	if (!put_dims(&dims, 0, &p))
		return HZ_OK;
	kernel = choose_slices(c, seg, &p, &launch);
	if (kernel == NONE)
		kernel = choose_columns(c, seg, &p, &launch);
	if (kernel == NONE)
		return HZ_OK;
	p.job.x = at_element(p.job.x, seg->offset * t->x_step, p.job.x_dtype);
	p.job.y = at_element(p.job.y, seg->offset * t->y_step, p.job.y_dtype);
	*done = true;
	return hzi_cuda_launch(c->ctx, c->op, kernel, &launch, &p, sizeof(p));
}

/* ---- The way for everything else
 * ----------------------------------------------------------------- */

#define ANY_ELEMENTS 8192		/* of several vectors at a time in shared memory */
#define ANY_ROOM 160			/* floats for other purposes when quantizing */
#define CLUSTER_LOG2_MAX 3

/* Bytes of shared memory for that many elements, one word of padding for 32. */
static int64_t any_bytes(int64_t elements)
{
	return 4 * (elements + elements / 32 + 1);
}

/* log2 of the blocks that share a vector so that extra elements and a part fit, or -1. */
static int any_cluster(const struct call *c, const struct hzi_segment *seg, int64_t extra)
{
	int log2 = 0;

	while (any_bytes(extra + (seg->length >> log2)) > c->device->shared_block_bytes) {
		log2++;
		if (log2 > CLUSTER_LOG2_MAX || log2 > seg->k || c->device->sm < SM_CLUSTERS)
			return -1;
	}
	return log2;
}

static int no_room(const struct call *c)
{
	return hzi_fail(c->ctx, HZ_ENOTSUP,
			"%s: a block of %lld is too long for the shared memory of this GPU, "
			"%d bytes",
			c->op, (long long)c->t->plan.seg[0].length, c->device->shared_block_bytes);
}

/* Launches with the base matrix that the segments have, if any, behind the arguments. */
static int launch_any(const struct call *c, const struct hzi_hadamard_any *a,
		      const struct hzi_base *base, const struct hzi_launch *launch)
{
	const int64_t words = base ? (int64_t)base->m * base->words : 0;
	int kernel;

	if (words > HZI_ANY_WORDS) {
		struct hzi_hadamard_any_big p = {.a = *a};

		kernel = c->quantize ? HZI_KERNEL_hadamard_any_quantize_big
				     : HZI_KERNEL_hadamard_any_big;
		memcpy(p.bits, base->bits, (size_t)words * sizeof(*p.bits));
		return hzi_cuda_launch(c->ctx, c->op, kernel, launch, &p, sizeof(p));
	}
	struct hzi_hadamard_any_small p = {.a = *a};

	kernel = c->quantize ? HZI_KERNEL_hadamard_any_quantize : HZI_KERNEL_hadamard_any;
	if (words)
		memcpy(p.bits, base->bits, (size_t)words * sizeof(*p.bits));
	return hzi_cuda_launch(c->ctx, c->op, kernel, launch, &p, sizeof(p));
}

static int launch_one(const struct call *c, const struct hzi_hadamard_job *base,
		      const struct hzi_segment *seg)
{
	const struct dims dims = make_dims(c, seg);
	struct hzi_hadamard_any a = {.job = make_job(c, base, seg, &dims), .ndim = dims.n,
				     .transpose = c->t->transpose};
	struct hzi_launch launch = {0};
	int64_t tile, blocks;

	a.cluster_log2 = any_cluster(c, seg, 0);
	if (a.cluster_log2 < 0)
		return no_room(c);
	memcpy(a.dim, dims.d, sizeof(a.dim));
	a.words = seg->base ? seg->base->words : 0;
	tile = ANY_ELEMENTS / seg->length;
	if (dims.n && llabs(dims.d[dims.n - 1].x) < llabs(a.job.x_step)) {
		/* Neighbours are other vectors: take so many that whole lines of memory are read.
		 */
		a.across = 1;
		tile = tile < 32 ? 32 : tile;
		while (tile > 1 &&
		       any_bytes(tile * seg->length) > c->device->shared_block_bytes / 2)
			tile /= 2;
	}
	a.tile = (int32_t)(tile < 1 ? 1 : min_of(tile, a.job.vectors));
	blocks = ceil_div(a.job.vectors, a.tile);
	launch.block[0] = a.tile * seg->length > ANY_ELEMENTS ? 512 : 256;
	launch.shared_bytes = (unsigned)any_bytes(a.tile * (seg->length >> a.cluster_log2));
	launch.cluster = 1u << a.cluster_log2;
	launch.grid[0] = (unsigned)min_of(blocks, 16 * (int64_t)c->device->multiprocessors)
			 << a.cluster_log2;
	return launch_any(c, &a, seg->base, &launch);
}

/* Quantization of rows of several transforms, or of such that no fast path takes. */
static int launch_quantize(const struct call *c, const struct hzi_hadamard_job *base)
{
	const struct hzi_hadamard_args *t = c->t;
	const struct dims dims = make_dims(c, NULL);
	struct hzi_hadamard_any a = {.job = *base,
				     .ndim = dims.n,
				     .nseg = t->plan.nseg,
				     .n = t->plan.n,
				     .blocks = t->blocks,
				     .x_block = t->x_block,
				     .pre_block = t->pre.block_step,
				     .post_block = t->post.block_step,
				     .transpose = t->transpose};
	const bool whole = c->group == t->blocks * t->plan.n;
	int64_t elements = 0;
	struct hzi_launch launch = {0};

	/* A group's codes wait for the next transform, but not in a cluster. */
	for (int s = 0; s < t->plan.nseg; s++) {
		const struct hzi_segment *seg = &t->plan.seg[s];
		const int log2 = any_cluster(c, seg, ANY_ROOM + 128);

		if (log2 < 0)
			return no_room(c);
		if (log2 > a.cluster_log2)
			a.cluster_log2 = log2;
		a.seg[s] = (struct hzi_hadamard_segment){.offset = seg->offset,
							 .count = seg->count,
							 .m = seg->m,
							 .k = seg->k,
							 .factor = seg->scale};
	}
	for (int s = 0; s < t->plan.nseg; s++) {
		const struct hzi_segment *seg = &t->plan.seg[s];

		if (a.cluster_log2 &&
		    ((1ll << seg->k >> a.cluster_log2) < (whole ? 32 : c->group) ||
		     (!whole && t->plan.n % c->group)))
			return hzi_fail(c->ctx, HZ_ENOTSUP,
					"%s: blocks of %lld and %lld with groups of %lld are "
					"not supported together on the GPU",
					c->op, (long long)t->plan.seg[0].length,
					(long long)seg->length, (long long)c->group);
		if (seg->length >> a.cluster_log2 > elements)
			elements = seg->length >> a.cluster_log2;
	}
	a.job.vectors = vectors_of(&dims);
	a.job.group_log2 = whole ? HZI_ROW : log2_of(c->group);
	memcpy(a.dim, dims.d, sizeof(a.dim));
	a.words = t->plan.seg[0].base ? t->plan.seg[0].base->words : 0;
	launch.block[0] = elements > ANY_ELEMENTS ? 512 : elements > 1024 ? 256 : 128;
	launch.shared_bytes = (unsigned)any_bytes(elements + ANY_ROOM + 128);
	launch.cluster = 1u << a.cluster_log2;
	launch.grid[0] = (unsigned)min_of(a.job.vectors, 16 * (int64_t)c->device->multiprocessors)
			 << a.cluster_log2;
	return launch_any(c, &a, t->plan.seg[0].base, &launch);
}

/* ---- The calls
 * ------------------------------------------------------------------------------------ */

static int run(const struct call *c, const struct hzi_hadamard_job *base)
{
	for (int s = 0; s < c->t->plan.nseg; s++) {
		const struct hzi_segment *seg = &c->t->plan.seg[s];

		if (any_cluster(c, seg, 0) < 0)
			return no_room(c);
	}
	/* What is refused leaves codes as they were: all segments go by rows, or none. */
	for (int s = 0; s < c->t->plan.nseg && c->quantize; s++) {
		struct rows_launch l;

		if (!make_rows(c, base, &c->t->plan.seg[s], &l))
			return launch_quantize(c, base);
	}
	for (int s = 0; s < c->t->plan.nseg; s++) {
		const struct hzi_segment *seg = &c->t->plan.seg[s];
		bool done;

		HZ_CHECK(launch_rows(c, base, seg, &done));
		if (!done)
			HZ_CHECK(launch_true(c, base, seg, &done));
		if (!done)
			HZ_CHECK(launch_columns(c, base, seg, &done));
		if (!done)
			HZ_CHECK(launch_one(c, base, seg));
	}
	return HZ_OK;
}

static struct hzi_hadamard_job base_job(const struct hzi_hadamard_args *t)
{
	return (struct hzi_hadamard_job){
		.x = t->x, .y = t->y, .x_dtype = t->x_dtype, .y_dtype = t->y_dtype,
		.x_step = t->x_step, .y_step = t->y_step,
		.pre = t->pre.data, .pre_kind = t->pre.kind,
		.post = t->post.data, .post_kind = t->post.kind};
}

/* Strides of codes in elements: those of two in a byte are given in bytes. */
static void code_strides(int64_t *to, const int64_t *from, int dtype)
{
	for (int i = 0; i < HZ_MAXDIM; i++)
		to[i] = dtype == HZ_S4X2 ? 2 * from[i] : from[i];
}

int hzi_cuda_hadamard(struct hz_context *ctx, const struct hzi_hadamard_args *a)
{
	const struct call c = {.ctx = ctx, .op = "hadamard", .device = hzi_cuda_device(ctx), .t = a,
			       .x_stride = a->x_stride, .y_stride = a->y_stride};
	const struct hzi_hadamard_job job = base_job(a);
	bool done;

	HZ_CHECK(hzi_hadamard_fast(ctx, a, &done));
	if (!done)
		HZ_CHECK(hzi_hadamard_base(ctx, a, &done));
	if (done)
		return HZ_OK;
	return run(&c, &job);
}

int hzi_cuda_hadamard_quantize(struct hz_context *ctx, const struct hzi_hadamard_quantize_args *a)
{
	struct hzi_hadamard_args t = a->t;
	int64_t q_stride[HZ_MAXDIM];
	const struct call c = {.ctx = ctx,
			       .op = "hadamard_quantize",
			       .device = hzi_cuda_device(ctx),
			       .t = &t,
			       .x_stride = t.x_stride,
			       .y_stride = q_stride,
			       .scale_stride = a->scale_stride,
			       .group = a->group,
			       .quantize = true};
	struct hzi_hadamard_job job;
	bool done;

	HZ_CHECK(hzi_hadamard_quantize_fast(ctx, a, &done));
	if (done)
		return HZ_OK;
	code_strides(q_stride, a->q_stride, a->q_dtype);
	t.y_step = 1;
	t.y_block = t.plan.n;
	job = base_job(&t);
	job.y = a->q;
	job.y_dtype = a->q_dtype;
	job.scale = a->scale;
	job.scale_dtype = a->scale_dtype;
	job.round_to = a->round_to;
	return run(&c, &job);
}

int hzi_cuda_dequantize_hadamard(struct hz_context *ctx,
				 const struct hzi_dequantize_hadamard_args *a)
{
	struct hzi_hadamard_args t = a->t;
	int64_t q_stride[HZ_MAXDIM];
	const struct call c = {.ctx = ctx,
			       .op = "dequantize_hadamard",
			       .device = hzi_cuda_device(ctx),
			       .t = &t,
			       .x_stride = q_stride,
			       .y_stride = t.y_stride,
			       .scale_stride = a->scale_stride,
			       .group = a->group};
	struct hzi_hadamard_job job;
	bool done;

	HZ_CHECK(hzi_dequantize_hadamard_fast(ctx, a, &done));
	if (done)
		return HZ_OK;
	code_strides(q_stride, a->q_stride, a->q_dtype);
	t.x_step = 1;
	t.x_block = t.plan.n;
	job = base_job(&t);
	job.x = a->q;
	job.x_dtype = a->q_dtype;
	job.scale = (void *)(uintptr_t)a->scale;
	job.scale_dtype = a->scale_dtype;
	return run(&c, &job);
}

size_t hzi_cuda_hadamard_workspace(const struct hz_context *ctx, const struct hzi_hadamard_args *a)
{
	(void)ctx;
	(void)a;
	return 0;
}

size_t hzi_cuda_hadamard_quantize_workspace(const struct hz_context *ctx,
					    const struct hzi_hadamard_quantize_args *a)
{
	(void)ctx;
	(void)a;
	return 0;
}

size_t hzi_cuda_dequantize_hadamard_workspace(const struct hz_context *ctx,
					      const struct hzi_dequantize_hadamard_args *a)
{
	(void)ctx;
	(void)a;
	return 0;
}
