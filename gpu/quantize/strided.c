/*
 * strided.c - quantization with any strides, in tiles
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#include <config.h>

#include "gpu/quantize/launch.h"

#define NARROW 16		/* too few elements along a dimension for the lanes of a warp */

/* The dimension for the rows of tiles: the closest of those long enough, or the longest */
static int rows_dim(const struct hzi_dims *t)
{
	int best = 0;

	for (int d = 1; d < t->n; d++) {
		const struct hzi_dim *a = &t->d[d], *b = &t->d[best];

		if (b->size < 2 * NARROW ? a->size > b->size
					 : a->size >= 2 * NARROW &&
						   hzi_distance(a->x) < hzi_distance(b->x))
			best = d;
	}
	return best;
}

/* Whether floats can be moved by 16 bytes, and as many codes with them */
static bool are_pieces(const struct hzi_dim *i, const struct hzi_dim *j, int64_t last,
		       const struct hzi_dims *outer, const void *x, const void *q, int64_t piece)
{
	if (i->x != 1 || i->q != 1 || i->size % piece || last % piece || j->x % piece ||
	    j->q % piece || (uintptr_t)x % 16 || (uintptr_t)q % (uintptr_t)piece ||
	    (i->p && i->group > 1 && i->group % piece))
		return false;
	for (int d = 0; d < outer->n; d++) {
		if (outer->d[d].x % piece || outer->d[d].q % piece)
			return false;
	}
	return true;
}

/* Whether lines of codes along j are whole words of 4 bytes */
static bool are_words(const struct hzi_dim *i, const struct hzi_dim *j,
		      const struct hzi_dims *outer, const void *q)
{
	int64_t all = i->q | j->size | (int64_t)(uintptr_t)q;

	for (int d = 0; d < outer->n; d++)
		all |= outer->d[d].q;
	return j->q == 1 && all % 4 == 0;
}

/* p has the operands; all else follows from the dimensions. */
static int launch_tiles(struct hz_context *ctx, const char *op, const struct hzi_dims *dims,
			int dtype, struct hzi_quantize_strided p, bool back);

/* Two launches, one for each half of dimension d */
static int launch_halves(struct hz_context *ctx, const char *op, const struct hzi_dims *dims, int d,
			 int dtype, const struct hzi_quantize_strided *p, bool back)
{
	const int64_t half = ceil_div(dims->d[d].size / 2, dims->d[d].group) * dims->d[d].group;
	struct hzi_dims part = *dims;
	struct hzi_quantize_strided q = *p;

	part.d[d].size = half;
	HZ_CHECK(launch_tiles(ctx, op, &part, dtype, q, back));
	part.d[d].size = dims->d[d].size - half;
	q.x = (char *)q.x + half * part.d[d].x * (int64_t)hz_dtype_size(dtype);
	q.q = (char *)q.q + half * part.d[d].q;
	if (q.scales)
		q.scales += half / part.d[d].group * part.d[d].p;
	if (q.zeros)
		q.zeros += half / part.d[d].group * part.d[d].p;
	return launch_tiles(ctx, op, &part, dtype, q, back);
}

static int launch_tiles(struct hz_context *ctx, const char *op, const struct hzi_dims *dims,
			int dtype, struct hzi_quantize_strided p, bool back)
{
	const int64_t piece = HZI_TILE_PIECE(dtype);
	struct hzi_dim i, j = {1, 0, 0, 0, 1};
	struct hzi_launch launch = {.block = {HZI_BLOCK_THREADS}};
	struct hzi_dims t = *dims;
	int x_dim = hzi_quantize_closest(&t, false), q_dim = hzi_quantize_closest(&t, true);
	const int longest = hzi_quantize_longest(&t);
	bool transposed = x_dim != q_dim;
	int64_t last, across, down, blocks;

	if (t.d[longest].size > HZI_DIM_MAX && t.n > 1)
		return launch_halves(ctx, op, dims, longest, dtype, &p, back);
	if (transposed && t.d[x_dim].size < NARROW) {
		x_dim = q_dim;
		transposed = false;
	} else if (transposed && t.d[q_dim].size < NARROW) {
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
	} else if (!transposed && i.size > 2 * HZI_CUT) {
		hzi_quantize_cut(&i, &j, &last);
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
		p.words = are_words(&i, &j, &t, p.q);
		p.log_i = 6;
		across = HZI_TILE_I;
		down = HZI_TILE_J;
	} else if (are_pieces(&i, &j, last, &t, p.x, p.q, piece)) {
		p.kind = i.p && i.group == 1 ? HZI_TILE_PIECES_EACH : HZI_TILE_PIECES;
		p.log_i = (int)min_of(8, hzi_log2_up(i.size / piece));
		across = piece << p.log_i;
		down = HZI_TILE_DOWN * (dtype == HZ_F32 ? 1 : 2) * (HZI_BLOCK_THREADS >> p.log_i);
	} else if (i.p && i.group > 1 && dims->n < HZ_MAXDIM) {
		/* Element by element: a group becomes a row, whose elements share a divisor. */
		t = *dims;
		hzi_quantize_split_group(&t, x_dim);
		return launch_tiles(ctx, op, &t, dtype, p, back);
	} else {
		p.kind = j.p ? HZI_TILE_ROWS : HZI_TILE_COLUMNS;
		p.log_i = (int)min_of(8, hzi_log2_up(ceil_div(i.size, HZI_TILE_ACROSS)));
		across = (int64_t)HZI_TILE_ACROSS << p.log_i;
		down = HZI_TILE_DOWN * (HZI_BLOCK_THREADS >> p.log_i);
	}
	p.size_i = (int32_t)i.size;
	p.size_j = (int32_t)j.size;
	p.last_i = (int32_t)last;
	p.x_i = i.x, p.q_i = i.q, p.p_i = i.p;
	p.x_j = j.x, p.q_j = j.q, p.p_j = j.p;
	p.group_i = hzi_make_quotient(i.group);
	p.group_j = hzi_make_quotient(j.group);
	p.tiles_i = hzi_make_quotient(ceil_div(i.size, across));
	p.tiles_j = hzi_make_quotient(ceil_div(j.size, down));
	blocks = (int64_t)p.tiles_i.divisor * p.tiles_j.divisor;
	p.ndim = t.n;
	for (int d = 0; d < t.n; d++) {
		p.shape[d] = hzi_make_quotient(t.d[d].size);
		p.x_stride[d] = t.d[d].x;
		p.q_stride[d] = t.d[d].q;
		p.p_stride[d] = t.d[d].p;
		if (blocks <= INT32_MAX)
			blocks *= t.d[d].size;
	}
	if (blocks > INT32_MAX)
		return launch_halves(ctx, op, dims, longest, dtype, &p, back);
	launch.grid[0] = (unsigned)blocks;
	return hzi_cuda_launch(ctx, op,
			       hzi_kernel_of(back ? HZI_KERNEL_dequantize_strided_f32
						  : HZI_KERNEL_quantize_strided_f32, dtype),
			       &launch, &p, sizeof(p));
}

const char *hzi_cuda_codes_strided_unsupported(const struct hz_context *ctx, const void *args)
{
	(void)ctx;
	return ((const struct hzi_codes_args *)args)->rotated ? "there is a transform" : NULL;
}

int hzi_cuda_codes_strided(struct hz_context *ctx, const void *args)
{
	const struct hzi_codes_args *a = args;
	const struct hzi_dims dims = hzi_quantize_dims_of(&a->map);

	return launch_tiles(ctx, a->back ? "dequantize" : "quantize", &dims, a->x_dtype,
			    (struct hzi_quantize_strided){
				    .x = a->x, .q = a->q, .scales = a->scales, .zeros = a->zeros,
				    .is_signed = a->q_dtype == HZ_S8, .scale = a->scale,
				    .zero = a->zero},
			    a->back);
}
