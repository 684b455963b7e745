/*
 * hadamard_chunked.c - quantization fused with a Hadamard transform, as two launches per chunk
 *
 * SPDX-License-Identifier: BSD-2-Clause
 *
 * The workspace holds the f32 values between the two launches, for a chunk of rows at a time. A
 * chunk stays in the L2 cache, so that DRAM is read and written once.
 */
#include <config.h>

#include <assert.h>
#include <string.h>

#include "gpu/quantize/launch.h"

#define CHUNK ((int64_t)4 << 20)	/* elements: 16 MiB of f32; an H100 has 50 MiB of L2 */

static int64_t row_elements(const struct hzi_hadamard_args *t)
{
	return t->blocks * t->plan.n;
}

/*
 * A chunk is `count` indices of dimension `level` with all indices of the dimensions inside it.
 * level = ndim: a chunk is one row.
 */
struct chunks {
	int level;
	int64_t count, values;		/* values: elements of the largest chunk */
};

static struct chunks make_chunks(const struct hzi_hadamard_args *t)
{
	struct chunks c = {.level = t->ndim, .count = 1, .values = row_elements(t)};

	while (c.level > 0) {
		const int64_t size = t->shape[c.level - 1];

		c.level--;
		if (c.values >= CHUNK / size) {
			c.count = CHUNK / c.values;
			c.count = c.count < 1 ? 1 : c.count > size ? size : c.count;
			c.values *= c.count;
			return c;
		}
		c.count = size;
		c.values *= size;
	}
	return c;
}

/* Where the largest magnitude of all lies in the workspace, behind the values */
static size_t most_at(const struct hzi_codes_args *a)
{
	return (size_t)make_chunks(&a->rotated->t).values * sizeof(float);
}

size_t hzi_cuda_quantize_hadamard_chunked_workspace(const struct hz_context *ctx, const void *args)
{
	const struct hzi_codes_args *a = args;

	(void)ctx;
	return a->rotated ? most_at(a) + (a->format && a->format->new_tensor_scale ?
						  HZI_FORMATS_WORKSPACE : 0) : 0;
}

/* The first float and code of a chunk, and the numbers of its first parameter and element */
struct position {
	char *x, *q;
	int64_t p, r;
};

/* Advances a position by i indices of dimension d. */
static void advance(const struct hzi_codes_args *a, int d, int64_t i, struct position *at)
{
	const struct hzi_rotated *r = a->rotated;
	const int64_t step = r->t.x ? r->t.x_stride[d] : r->t.y_stride[d];

	at->x += i * step * (int64_t)hz_dtype_size(a->x_dtype);
	at->q += i * r->q_stride[d] * (int64_t)hz_dtype_size(a->q_dtype);
	at->p += i * r->p_stride[d];
	if (a->format)
		at->r += i * r->r_stride[d];
}

/* Drops the dimensions outside `level`, and limits dimension `level` to `count` indices. */
static void keep_inner(struct hzi_rotated *r, int level, int64_t count)
{
	struct hzi_hadamard_args *t = &r->t;
	int64_t *const lists[] = {t->shape, t->x_stride, t->y_stride, r->q_stride, r->p_stride,
				  r->r_stride};

	t->ndim -= level;
	for (int l = 0; l < 6; l++)
		memmove(lists[l], lists[l] + level, (size_t)t->ndim * sizeof(int64_t));
	if (t->ndim > 0)
		t->shape[0] = count;
}

/* Sets the strides of contiguous rows. */
static void set_contiguous(const struct hzi_hadamard_args *t, int64_t *stride)
{
	int64_t step = row_elements(t);

	for (int d = t->ndim - 1; d >= 0; d--) {
		stride[d] = step;
		step *= t->shape[d];
	}
}

/* Merges rows whose blocks are evenly spaced in both operands into one row of more blocks. */
static void merge_blocks(struct hzi_hadamard_args *t)
{
	if (t->pre.block_step || t->post.block_step || t->x_step != 1 || t->y_step != 1)
		return;
	while (t->ndim > 0) {
		const int64_t x = t->x_stride[t->ndim - 1], y = t->y_stride[t->ndim - 1];

		if (t->blocks > 1 && (x != t->blocks * t->x_block || y != t->blocks * t->y_block))
			return;
		if (t->blocks == 1) {
			t->x_block = x;
			t->y_block = y;
		}
		t->blocks *= t->shape[--t->ndim];
	}
}

/* The map between contiguous values and codes, with the parameters */
static struct hzi_quantize_map make_map(const struct hzi_rotated *r)
{
	const struct hzi_hadamard_args *t = &r->t;
	struct hzi_quantize_map map = {
		.n = row_elements(t), .group = r->group, .x_step = 1, .q_step = r->q_step,
		.ndim = t->ndim, .params = row_elements(t) / r->group,
	};

	set_contiguous(t, map.x_stride);
	for (int d = 0; d < t->ndim; d++) {
		map.shape[d] = t->shape[d];
		map.q_stride[d] = r->q_stride[d];
		map.p_stride[d] = r->p_stride[d];
		if (r->p_stride[d])
			map.params *= t->shape[d];
	}
	return map;
}

/*
 * Whether a chunk is contiguous 16-bit rows with a base matrix of the transform. Transforms with a
 * base matrix have kernels from f32 to f32, but none between 16 bits and f32, so a copy as f32 is
 * needed. *vectors becomes the number of 16-byte vectors.
 */
static bool needs_f32_copy(const struct hzi_codes_args *a, const struct hzi_hadamard_args *t,
			   int64_t step, int64_t block, const int64_t *stride, const void *x,
			   int64_t *vectors)
{
	int64_t contiguous[HZ_MAXDIM] = {0}, values = row_elements(t);

	set_contiguous(t, contiguous);
	for (int d = 0; d < t->ndim; d++) {
		if (stride[d] != contiguous[d])
			return false;
		values *= t->shape[d];
	}
	*vectors = values / 8;
	return a->x_dtype != HZ_F32 && t->plan.nseg == 1 && t->plan.seg[0].m > 1 && step == 1 &&
	       block == t->plan.n && values % 8 == 0 && (uintptr_t)x % 16 == 0;
}

static int launch_convert(struct hz_context *ctx, const char *op, int dtype, const void *x, void *y,
			  int64_t vectors, bool narrowing)
{
	const struct hzi_quantize_convert p = {.x = x, .y = y, .vectors = vectors};
	const struct hzi_launch launch = {
		.grid = {(unsigned)ceil_div(vectors, HZI_QUANT_THREADS)},
		.block = {HZI_QUANT_THREADS},
	};

	return hzi_cuda_launch(ctx, op,
			       (narrowing ? HZI_KERNEL_quantize_narrow_f16
					  : HZI_KERNEL_quantize_widen_f16) + (dtype == HZ_BF16),
			       &launch, &p, sizeof(p));
}

/* The conversion between contiguous values and codes of a chunk, of any format */
static struct hzi_format_args make_format(struct hz_context *ctx, const struct hzi_codes_args *a,
					  const struct hzi_rotated *r, const struct position *at)
{
	const struct hzi_hadamard_args *t = &r->t;
	struct hzi_format_args f = *a->format;

	f.x = ctx->workspace;
	f.x_dtype = HZ_F32;
	f.x_step = 1;
	f.q = at->q;
	f.q_step = r->q_step;
	f.n = row_elements(t);
	if (f.scales)
		f.scales = (char *)f.scales + at->p * (f.scale_dtype == HZ_F32 ? 4 : 1);
	if (f.zeros)
		f.zeros = (const char *)f.zeros + at->p * (hzi_format_bits(f.q_dtype) == 16 ? 2 : 1);
	f.seed += (uint64_t)at->r;
	f.ndim = t->ndim;
	set_contiguous(t, f.x_stride);
	for (int d = 0; d < t->ndim; d++) {
		f.shape[d] = t->shape[d];
		f.q_stride[d] = r->q_stride[d];
		f.p_stride[d] = r->p_stride[d];
		f.r_stride[d] = r->r_stride[d];
	}
	hzi_format_merge(&f);
	return f;
}

/*
 * Quantizes the values of a chunk, or dequantizes its codes. measure: finds their largest magnitude
 * and nothing else.
 */
static int quantize_chunk(struct hz_context *ctx, const struct hzi_codes_args *a,
			  const struct hzi_rotated *r, const struct position *at,
			  const struct hzi_codes_args *codes, bool measure)
{
	if (a->format) {
		const struct hzi_format_args f = make_format(ctx, a, r, at);
		uint32_t *most = (uint32_t *)((char *)ctx->workspace + most_at(a));

		return hzi_cuda_formats_chunk(ctx, &f, most, measure);
	}
	return hzi_cuda_quantize_contiguous_unsupported(ctx, codes)
		       ? hzi_cuda_quantize_strided(ctx, codes)
		       : hzi_cuda_quantize_contiguous(ctx, codes);
}

/* Runs both launches for the chunk at a position. */
static int run_chunk(struct hz_context *ctx, const struct hzi_codes_args *a,
		     const struct hzi_rotated *r, const struct position *at, bool measure)
{
	char *const x = at->x, *const q = at->q;
	const int64_t p = at->p;
	const struct hzi_codes_args codes = {
		.map = make_map(r), .dequantize = a->dequantize, .x = ctx->workspace, .q = q,
		.x_dtype = HZ_F32,
		.q_dtype = a->q_dtype, .scales = a->scales ? a->scales + p : NULL,
		.zeros = a->zeros ? (const char *)a->zeros + p : NULL, .scale = a->scale,
		.zero = a->zero,
	};
	struct hzi_hadamard_args t = r->t;
	int64_t vectors;

	if (a->dequantize) {
		const bool narrowing =
			needs_f32_copy(a, &t, t.y_step, t.y_block, t.y_stride, x, &vectors);

		t.x = ctx->workspace;
		t.y = x;
		if (narrowing) {
			t.y = ctx->workspace;
			t.y_dtype = HZ_F32;
		}
		t.x_step = 1;
		t.x_block = t.plan.n;
		set_contiguous(&t, t.x_stride);
		merge_blocks(&t);
		HZ_CHECK(quantize_chunk(ctx, a, r, at, &codes, false));
		HZ_CHECK(hzi_cuda_hadamard(ctx, &t));
		return narrowing ? launch_convert(ctx, "dequantize", a->x_dtype, ctx->workspace, x,
						  vectors, true)
			      : HZ_OK;
	}
	t.x = x;
	if (needs_f32_copy(a, &t, t.x_step, t.x_block, t.x_stride, x, &vectors)) {
		HZ_CHECK(launch_convert(ctx, "quantize", a->x_dtype, x, ctx->workspace, vectors,
					false));
		t.x = ctx->workspace;
		t.x_dtype = HZ_F32;
	}
	t.y = ctx->workspace;
	t.y_step = 1;
	t.y_block = t.plan.n;
	set_contiguous(&t, t.y_stride);
	merge_blocks(&t);
	HZ_CHECK(hzi_cuda_hadamard(ctx, &t));
	return quantize_chunk(ctx, a, r, at, &codes, measure);
}

const char *hzi_cuda_quantize_hadamard_chunked_unsupported(const struct hz_context *ctx,
							   const void *args)
{
	(void)ctx;
	return ((const struct hzi_codes_args *)args)->rotated ? NULL : "there is no transform";
}

static int run_chunks(struct hz_context *ctx, const struct hzi_codes_args *a, bool measure)
{
	const struct hzi_rotated *r = a->rotated;
	const struct hzi_hadamard_args *t = &r->t;
	const struct chunks c = make_chunks(t);
	const int64_t size = c.level < t->ndim ? t->shape[c.level] : 1;
	int64_t outer = 1;

	assert(ctx->workspace_bytes >= hzi_cuda_quantize_hadamard_chunked_workspace(ctx, a));
	for (int d = 0; d < c.level; d++)
		outer *= t->shape[d];
	for (int64_t o = 0; o < outer; o++) {
		for (int64_t i = 0, count; i < size; i += count) {
			struct position at = {.x = a->x, .q = a->q};
			struct hzi_rotated part = *r;
			int64_t remaining = o;

			count = c.count < size - i ? c.count : size - i;
			for (int d = c.level - 1; d >= 0; d--) {
				advance(a, d, remaining % t->shape[d], &at);
				remaining /= t->shape[d];
			}
			if (c.level < t->ndim)
				advance(a, c.level, i, &at);
			keep_inner(&part, c.level, count);
			HZ_CHECK(run_chunk(ctx, a, &part, &at, measure));
		}
	}
	return HZ_OK;
}

int hzi_cuda_quantize_hadamard_chunked(struct hz_context *ctx, const void *args)
{
	const struct hzi_codes_args *a = args;

	if (a->format && a->format->new_tensor_scale) {
		HZ_CHECK(hzi_cuda_fill(ctx, (char *)ctx->workspace + most_at(a), 0,
				       HZI_FORMATS_WORKSPACE));
		HZ_CHECK(run_chunks(ctx, a, true));
	}
	return run_chunks(ctx, a, false);
}
