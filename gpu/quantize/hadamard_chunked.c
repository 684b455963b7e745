/*
 * hadamard_chunked.c - quantization with a transform, in two launches
 *
 * SPDX-License-Identifier: BSD-2-Clause
 *
 * The f32 values between the launches are in the workspace, for a chunk of rows at a time. A chunk
 * stays in the L2 cache, so that memory is read and written once.
 */
#include <config.h>

#include <assert.h>
#include <string.h>

#include "gpu/quantize/launch.h"

#define CHUNK ((int64_t)4 << 20)	/* values: 16 MiB of the 50 of an H100 */

static int64_t row_of(const struct hzi_hadamard_args *t)
{
	return t->blocks * t->plan.n;
}

/*
 * Rows are taken by count steps of outer dimension level, in which all further dimensions are
 * whole; level ndim: one row at a time.
 */
struct chunks {
	int level;
	int64_t count, values;		/* values: of a chunk at most */
};

static struct chunks make_chunks(const struct hzi_hadamard_args *t)
{
	struct chunks c = {.level = t->ndim, .count = 1, .values = row_of(t)};

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

size_t hzi_cuda_codes_hadamard_workspace(const struct hz_context *ctx, const void *args)
{
	const struct hzi_codes_args *a = args;

	(void)ctx;
	return a->rotated ? (size_t)make_chunks(&a->rotated->t).values * sizeof(float) : 0;
}

/* Moves floats, codes and parameters on by i steps of a dimension. */
static void step_by(const struct hzi_rotated *r, int d, int64_t i, size_t x_size, char **x,
		    char **q, int64_t *p)
{
	const struct hzi_hadamard_args *t = &r->t;
	const int64_t step = t->x ? t->x_stride[d] : t->y_stride[d];

	*x += i * step * (int64_t)x_size;
	*q += i * r->q_stride[d];
	*p += i * r->p_stride[d];
}

/* Keeps dimensions from level on, the first of them with so many steps. */
static void cut(struct hzi_rotated *r, int level, int64_t count)
{
	struct hzi_hadamard_args *t = &r->t;
	int64_t *const lists[] = {t->shape, t->x_stride, t->y_stride, r->q_stride, r->p_stride};

	t->ndim -= level;
	for (int l = 0; l < 5; l++)
		memmove(lists[l], lists[l] + level, (size_t)t->ndim * sizeof(int64_t));
	if (t->ndim > 0)
		t->shape[0] = count;
}

/* Strides of values back to back in the order of the rows */
static void lay_out(const struct hzi_hadamard_args *t, int64_t *stride)
{
	int64_t step = row_of(t);

	for (int d = t->ndim - 1; d >= 0; d--) {
		stride[d] = step;
		step *= t->shape[d];
	}
}

/* Rows whose blocks follow one another, in both operands, become blocks of one row. */
static void fold(struct hzi_hadamard_args *t)
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

/* The map between values back to back and codes, which has the parameters */
static struct hzi_quantize_map map_of(const struct hzi_rotated *r)
{
	const struct hzi_hadamard_args *t = &r->t;
	struct hzi_quantize_map map = {
		.n = row_of(t), .group = r->group, .x_step = 1, .q_step = r->q_step,
		.ndim = t->ndim, .params = row_of(t) / r->group,
	};

	lay_out(t, map.x_stride);
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
 * Whether a chunk is 16-bit rows back to back, with a base matrix: for f32 there are kernels of
 * these, but none from 16 bits to f32 or back. Fills how many pieces of 16 bytes they are.
 */
static bool converts(const struct hzi_codes_args *a, const struct hzi_hadamard_args *t,
		     int64_t step, int64_t block, const int64_t *stride, const void *x,
		     int64_t *pieces)
{
	int64_t back_to_back[HZ_MAXDIM] = {0}, values = row_of(t);

	lay_out(t, back_to_back);
	for (int d = 0; d < t->ndim; d++) {
		if (stride[d] != back_to_back[d])
			return false;
		values *= t->shape[d];
	}
	*pieces = values / 8;
	return a->x_dtype != HZ_F32 && t->plan.nseg == 1 && t->plan.seg[0].m > 1 && step == 1 &&
	       block == t->plan.n && values % 8 == 0 && (uintptr_t)x % 16 == 0;
}

static int convert(struct hz_context *ctx, const char *op, int dtype, const void *x, void *y,
		   int64_t pieces, bool narrow)
{
	const struct hzi_convert_contiguous p = {.x = x, .y = y, .pieces = pieces};
	const struct hzi_launch launch = {
		.grid = {(unsigned)ceil_div(pieces, HZI_BLOCK_THREADS)},
		.block = {HZI_BLOCK_THREADS},
	};

	return hzi_cuda_launch(ctx, op,
			       (narrow ? HZI_KERNEL_narrow_f16 : HZI_KERNEL_widen_f16) +
				       (dtype == HZ_BF16),
			       &launch, &p, sizeof(p));
}

/* Values and codes of a chunk, or codes and values */
static int quantize_chunk(struct hz_context *ctx, const struct hzi_codes_args *codes)
{
	return hzi_cuda_codes_contiguous_unsupported(ctx, codes)
		       ? hzi_cuda_codes_strided(ctx, codes) : hzi_cuda_codes_contiguous(ctx, codes);
}

/* A chunk of rows, its floats from x on, codes from q on and parameters from number p on */
static int run_chunk(struct hz_context *ctx, const struct hzi_codes_args *a,
		     const struct hzi_rotated *r, char *x, char *q, int64_t p)
{
	const struct hzi_codes_args codes = {
		.map = map_of(r), .back = a->back, .x = ctx->workspace, .q = q, .x_dtype = HZ_F32,
		.q_dtype = a->q_dtype, .scales = a->scales ? a->scales + p : NULL,
		.zeros = a->zeros ? (const char *)a->zeros + p : NULL, .scale = a->scale,
		.zero = a->zero,
	};
	struct hzi_hadamard_args t = r->t;
	int64_t pieces;

	if (a->back) {
		const bool narrow =
			converts(a, &t, t.y_step, t.y_block, t.y_stride, x, &pieces);

		t.x = ctx->workspace;
		t.y = x;
		if (narrow) {
			t.y = ctx->workspace;
			t.y_dtype = HZ_F32;
		}
		t.x_step = 1;
		t.x_block = t.plan.n;
		lay_out(&t, t.x_stride);
		fold(&t);
		HZ_CHECK(quantize_chunk(ctx, &codes));
		HZ_CHECK(hzi_cuda_hadamard(ctx, &t));
		return narrow ? convert(ctx, "dequantize", a->x_dtype, ctx->workspace, x, pieces,
					true)
			      : HZ_OK;
	}
	t.x = x;
	if (converts(a, &t, t.x_step, t.x_block, t.x_stride, x, &pieces)) {
		HZ_CHECK(convert(ctx, "quantize", a->x_dtype, x, ctx->workspace, pieces, false));
		t.x = ctx->workspace;
		t.x_dtype = HZ_F32;
	}
	t.y = ctx->workspace;
	t.y_step = 1;
	t.y_block = t.plan.n;
	lay_out(&t, t.y_stride);
	fold(&t);
	HZ_CHECK(hzi_cuda_hadamard(ctx, &t));
	return quantize_chunk(ctx, &codes);
}

const char *hzi_cuda_codes_hadamard_unsupported(const struct hz_context *ctx, const void *args)
{
	(void)ctx;
	return ((const struct hzi_codes_args *)args)->rotated ? NULL : "there is no transform";
}

int hzi_cuda_codes_hadamard(struct hz_context *ctx, const void *args)
{
	const struct hzi_codes_args *a = args;
	const struct hzi_rotated *r = a->rotated;
	const struct hzi_hadamard_args *t = &r->t;
	const struct chunks c = make_chunks(t);
	const int64_t size = c.level < t->ndim ? t->shape[c.level] : 1;
	int64_t outer = 1;

	assert(ctx->workspace_bytes >= hzi_cuda_codes_hadamard_workspace(ctx, a));
	for (int d = 0; d < c.level; d++)
		outer *= t->shape[d];
	for (int64_t o = 0; o < outer; o++) {
		for (int64_t i = 0, count; i < size; i += count) {
			char *x = a->x, *q = a->q;
			struct hzi_rotated part = *r;
			int64_t p = 0, rest = o;

			count = c.count < size - i ? c.count : size - i;
			for (int d = c.level - 1; d >= 0; d--) {
				step_by(&part, d, rest % t->shape[d], hz_dtype_size(a->x_dtype), &x,
					&q, &p);
				rest /= t->shape[d];
			}
			if (c.level < t->ndim)
				step_by(&part, c.level, i, hz_dtype_size(a->x_dtype), &x, &q, &p);
			cut(&part, c.level, count);
			HZ_CHECK(run_chunk(ctx, a, &part, x, q, p));
		}
	}
	return HZ_OK;
}
