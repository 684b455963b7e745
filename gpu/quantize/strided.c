/*
 * strided.c - launcher of quantization and dequantization with any strides, in tiles
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#include <config.h>

#include "gpu/quantize/launch.h"

#define SHORT 16		/* a dimension below this does not fill the lanes of a warp */

/*
 * The dimension along j of the tiles: that of the smallest stride among the long enough, or the
 * longest
 */
static int rows_dim(const struct hzi_quantize_dims *t)
{
	int best = 0;

	for (int d = 1; d < t->n; d++) {
		const struct hzi_quantize_dim *a = &t->d[d], *b = &t->d[best];

		if (b->size < 2 * SHORT ? a->size > b->size
					 : a->size >= 2 * SHORT &&
						   hzi_distance(a->x) < hzi_distance(b->x))
			best = d;
	}
	return best;
}

/* Whether 16-byte vectors of floats and of their codes are aligned */
static bool is_vectorized(const struct hzi_quantize_dim *i, const struct hzi_quantize_dim *j,
			  int64_t last,
			  const struct hzi_quantize_dims *outer, const void *x, const void *q,
			  int64_t vector)
{
	if (i->x != 1 || i->q != 1 || i->size % vector || last % vector || j->x % vector ||
	    j->q % vector || (uintptr_t)x % 16 || (uintptr_t)q % (uintptr_t)vector ||
	    (i->p && i->group > 1 && i->group % vector))
		return false;
	for (int d = 0; d < outer->n; d++) {
		if (outer->d[d].x % vector || outer->d[d].q % vector)
			return false;
	}
	return true;
}

/* Whether rows of codes along j consist of aligned 32-bit words */
static bool has_word_rows(const struct hzi_quantize_dim *i, const struct hzi_quantize_dim *j,
			  const struct hzi_quantize_dims *outer, const void *q)
{
	int64_t all = i->q | j->size | (int64_t)(uintptr_t)q;

	for (int d = 0; d < outer->n; d++)
		all |= outer->d[d].q;
	return j->q == 1 && all % 4 == 0;
}

/* p has the operands; the function derives all other fields from the dimensions. */
static int launch_tiles(struct hz_context *ctx, const char *op,
			const struct hzi_quantize_dims *dims,
			int dtype, struct hzi_quantize_strided p, bool dequantize);

/* Splits dimension d into two launches. */
static int launch_halves(struct hz_context *ctx, const char *op,
			 const struct hzi_quantize_dims *dims, int d,
			 int dtype, const struct hzi_quantize_strided *p, bool dequantize)
{
	const int64_t half = ceil_div(dims->d[d].size / 2, dims->d[d].group) * dims->d[d].group;
	struct hzi_quantize_dims part = *dims;
	struct hzi_quantize_strided q = *p;

	part.d[d].size = half;
	HZ_CHECK(launch_tiles(ctx, op, &part, dtype, q, dequantize));
	part.d[d].size = dims->d[d].size - half;
	q.x = (char *)q.x + half * part.d[d].x * (int64_t)hz_dtype_size(dtype);
	q.q = (char *)q.q + half * part.d[d].q;
	if (q.scales)
		q.scales += half / part.d[d].group * part.d[d].p;
	if (q.zeros)
		q.zeros += half / part.d[d].group * part.d[d].p;
	return launch_tiles(ctx, op, &part, dtype, q, dequantize);
}

static int launch_tiles(struct hz_context *ctx, const char *op,
			const struct hzi_quantize_dims *dims,
			int dtype, struct hzi_quantize_strided p, bool dequantize)
{
	const int64_t vector = HZI_QUANTIZE_VECTOR(dtype);
	struct hzi_quantize_dim i, j = {1, 0, 0, 0, 1};
	struct hzi_launch launch = {.block = {HZI_QUANT_THREADS}};
	struct hzi_quantize_dims t = *dims;
	int x_dim = hzi_quantize_min_stride_dim(&t, false),
	q_dim = hzi_quantize_min_stride_dim(&t, true);
	const int longest = hzi_quantize_longest_dim(&t);
	bool transposed = x_dim != q_dim;
	int64_t last, tile_i, tile_j, blocks;

	if (t.d[longest].size > HZI_QUANTIZE_DIM_MAX && t.n > 1)
		return launch_halves(ctx, op, dims, longest, dtype, &p, dequantize);
	if (transposed && t.d[x_dim].size < SHORT) {
		x_dim = q_dim;
		transposed = false;
	} else if (transposed && t.d[q_dim].size < SHORT) {
		transposed = false;
	}
	i = t.d[x_dim];
	if (transposed)
		j = t.d[q_dim];
	hzi_quantize_remove_dim(&t, x_dim);
	if (transposed)
		hzi_quantize_remove_dim(&t, q_dim - (q_dim > x_dim));
	last = i.size;
	if (!transposed && t.n) {
		const int d = rows_dim(&t);

		j = t.d[d];
		hzi_quantize_remove_dim(&t, d);
	} else if (!transposed && i.size > 2 * HZI_QUANTIZE_SPLIT) {
		hzi_quantize_split_long(&i, &j, &last);
	}
	/* Groups of an outer dimension become a dimension of their own. */
	for (int d = 0; d < t.n; d++) {
		if (t.d[d].group == 1)
			continue;
		hzi_quantize_split_group(&t, d);
		break;
	}
	if (transposed) {
		p.kind = HZI_TILE_TRANSPOSED;
		p.word_rows = has_word_rows(&i, &j, &t, p.q);
		p.log_i = 6;
		tile_i = HZI_TILE_I;
		tile_j = HZI_TILE_J;
	} else if (is_vectorized(&i, &j, last, &t, p.x, p.q, vector)) {
		p.kind = i.p && i.group == 1 ? HZI_TILE_VECTORS_PER_ELEMENT : HZI_TILE_VECTORS;
		p.log_i = (int)min_of(8, hzi_log2_up(i.size / vector));
		tile_i = vector << p.log_i;
		tile_j = HZI_TILE_DOWN * (dtype == HZ_F32 ? 1 : 2) * (HZI_QUANT_THREADS >> p.log_i);
	} else if (i.p && i.group > 1 && dims->n < HZ_MAXDIM) {
		/* Single elements: each group becomes a row, whose elements share a divisor. */
		t = *dims;
		hzi_quantize_split_group(&t, x_dim);
		return launch_tiles(ctx, op, &t, dtype, p, dequantize);
	} else {
		p.kind = j.p ? HZI_TILE_ROWS : HZI_TILE_COLUMNS;
		p.log_i = (int)min_of(8, hzi_log2_up(ceil_div(i.size, HZI_TILE_ACROSS)));
		tile_i = (int64_t)HZI_TILE_ACROSS << p.log_i;
		tile_j = HZI_TILE_DOWN * (HZI_QUANT_THREADS >> p.log_i);
	}
	p.size_i = (int32_t)i.size;
	p.size_j = (int32_t)j.size;
	p.last_i = (int32_t)last;
	p.x_i = i.x, p.q_i = i.q, p.p_i = i.p;
	p.x_j = j.x, p.q_j = j.q, p.p_j = j.p;
	p.group_i = hzi_make_fastdiv(i.group);
	p.group_j = hzi_make_fastdiv(j.group);
	p.tiles_i = hzi_make_fastdiv(ceil_div(i.size, tile_i));
	p.tiles_j = hzi_make_fastdiv(ceil_div(j.size, tile_j));
	blocks = (int64_t)p.tiles_i.divisor * p.tiles_j.divisor;
	p.ndim = t.n;
	for (int d = 0; d < t.n; d++) {
		p.shape[d] = hzi_make_fastdiv(t.d[d].size);
		p.x_stride[d] = t.d[d].x;
		p.q_stride[d] = t.d[d].q;
		p.p_stride[d] = t.d[d].p;
		if (blocks <= INT32_MAX)
			blocks *= t.d[d].size;
	}
	if (blocks > INT32_MAX)
		return launch_halves(ctx, op, dims, longest, dtype, &p, dequantize);
	launch.grid[0] = (unsigned)blocks;
	return hzi_cuda_launch(ctx, op,
			       hzi_quantize_kernel(dequantize ? HZI_KERNEL_dequantize_strided_f32
							      : HZI_KERNEL_quantize_strided_f32,
						   dtype),
			       &launch, &p, sizeof(p));
}

const char *hzi_cuda_quantize_strided_unsupported(const struct hz_context *ctx, const void *args)
{
	const struct hzi_codes_args *a = args;

	(void)ctx;
	return a->rotated ? "there is a transform" : a->format ? "not u8 or s8 by given scales" : NULL;
}

int hzi_cuda_quantize_strided(struct hz_context *ctx, const void *args)
{
	const struct hzi_codes_args *a = args;
	const struct hzi_quantize_dims dims = hzi_quantize_make_dims(&a->map);

	return launch_tiles(ctx, a->dequantize ? "dequantize" : "quantize", &dims, a->x_dtype,
			    (struct hzi_quantize_strided){
				    .x = a->x, .q = a->q, .scales = a->scales, .zeros = a->zeros,
				    .is_signed = a->q_dtype == HZ_S8, .scale = a->scale,
				    .zero = a->zero},
			    a->dequantize);
}
