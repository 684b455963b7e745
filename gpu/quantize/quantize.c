/*
 * quantize.c - launchers of quantization
 *
 * SPDX-License-Identifier: BSD-2-Clause
 *
 * What lies back to back goes through a flat kernel, all else through one of tiles.
 */
#include <config.h>

#include <stdlib.h>
#include <string.h>

#include "gpu/runtime/cuda.h"
#include "gpu/quantize/quantize.h"
#include "gpu/quantize/rotated.h"
#include "lib/qgemm/qgemm.h"

HZI_LINK_IMAGES(quantize);

/* The kernel of three that is for a dtype: those for f32, f16 and bf16 follow each other. */
static int kernel_of(int f32_kernel, int dtype)
{
	return f32_kernel + (dtype == HZ_F16 ? 1 : dtype == HZ_BF16 ? 2 : 0);
}

static int64_t elements_of(const struct hzi_qmap *map)
{
	int64_t total = map->n;

	for (int d = 0; d < map->ndim; d++)
		total *= map->shape[d];
	return total;
}

/* Whether the outer dimensions are one with the step of the last, whose items take that many. */
static bool joined(const struct hzi_qmap *map, const int64_t *stride, int64_t item)
{
	for (int d = map->ndim - 1; d >= 0; d--) {
		if (map->shape[d] != 1 && stride[d] != item)
			return false;
		item *= map->shape[d];
	}
	return true;
}

/* The step from row to row of the parameters, or -1 if there is none. */
static int64_t parameter_step(const struct hzi_qmap *map)
{
	const int64_t step = map->ndim ? map->p_stride[map->ndim - 1] : 0;

	return joined(map, map->p_stride, step) ? step : -1;
}

/*
 * Fills what says which parameter a piece has; false if it is no flat case. Codes have bytes of a
 * piece each, and floats 16.
 */
static bool make_flat(const struct hzi_qmap *map, const void *floats, const void *codes,
		      int64_t f_step, const int64_t *f_stride, int64_t c_step,
		      const int64_t *c_stride, int dtype, struct hzi_quantize_flat *p)
{
	const int64_t piece = dtype == HZ_F32 ? 4 : 8, step = parameter_step(map);

	p->elements = elements_of(map);
	p->pieces = p->elements / piece;
	if ((uintptr_t)floats % 16 || (uintptr_t)codes % (uintptr_t)piece ||
	    (f_step != 1 && map->n > 1) || (c_step != 1 && map->n > 1) ||
	    !joined(map, f_stride, map->n) || !joined(map, c_stride, map->n) ||
	    p->pieces > INT32_MAX)
		return false;
	if (map->params <= 1)
		return true;
	if (map->n % piece || map->group % piece || step < 0)
		return false;
	p->row_step = step;
	p->row = hzi_make_quotient(map->n / piece);
	p->group = hzi_make_quotient(map->group / piece);
	return true;
}

/* ---- Tiles of anything ----------------------------------------------------------------------- */

/* A dimension of floats, codes and parameters: index / group steps of p */
struct dim {
	int64_t size, x, q, p, group;
};

/* The dimensions, without those of size 1 and without an order; n at most HZ_MAXDIM + 2 of them */
struct dims {
	int n;
	struct dim d[HZ_MAXDIM + 3];
};

#define DIM_MAX ((int64_t)1 << 30)	/* of a launch, along one dimension */
#define CUT 2048		/* what a single long dimension is cut into, or a little more */
#define NARROW 16		/* too few elements along a dimension for the lanes of a warp */

static struct dims dims_of(const struct hzi_qmap *map)
{
	const bool grouped = map->params > 1 && map->group < map->n;
	struct dims t = {0};

	for (int d = 0; d < map->ndim; d++) {
		if (map->shape[d] > 1)
			t.d[t.n++] = (struct dim){map->shape[d], map->x_stride[d],
						  map->q_stride[d], map->p_stride[d], 1};
	}
	t.d[t.n++] = (struct dim){map->n, map->x_step, map->q_step, grouped,
				  grouped ? map->group : 1};
	return t;
}

static void remove_dim(struct dims *t, int d)
{
	t->n--;
	memmove(t->d + d, t->d + d + 1, (size_t)(t->n - d) * sizeof(*t->d));
}

/* Distances of 0 are the farthest. */
static uint64_t distance(int64_t stride)
{
	return (uint64_t)llabs(stride) - 1;
}

/* The dimension in which floats are closest, or codes are */
static int closest(const struct dims *t, bool codes)
{
	int best = 0;

	for (int d = 1; d < t->n; d++) {
		const struct dim *a = &t->d[d], *b = &t->d[best];

		if (distance(codes ? a->q : a->x) <= distance(codes ? b->q : b->x))
			best = d;
	}
	return best;
}

/* The dimension for the rows of tiles: the closest of those long enough, or the longest */
static int rows_dim(const struct dims *t)
{
	int best = 0;

	for (int d = 1; d < t->n; d++) {
		const struct dim *a = &t->d[d], *b = &t->d[best];

		if (b->size < 2 * NARROW ? a->size > b->size
					 : a->size >= 2 * NARROW &&
						   distance(a->x) < distance(b->x))
			best = d;
	}
	return best;
}

/* Makes groups of a dimension one of their own. */
static void split_group(struct dims *t, int d)
{
	const struct dim whole = t->d[d];

	t->d[t->n++] = (struct dim){whole.group, whole.x, whole.q, 0, 1};
	t->d[d] = (struct dim){whole.size / whole.group, whole.x * whole.group,
			       whole.q * whole.group, whole.p, 1};
}

static int log2_up(int64_t n)
{
	return n > 1 ? 64 - __builtin_clzll((unsigned long long)n - 1) : 0;
}

/*
 * Cuts dimension i, which stays the shorter part; j gets the number of parts, the last of which has
 * last elements.
 */
static void cut_dim(struct dim *i, struct dim *j, int64_t *last)
{
	const int64_t part = ceil_div(CUT, i->group) * i->group;

	*j = (struct dim){ceil_div(i->size, part), i->x * part, i->q * part,
			  i->p * (part / i->group), 1};
	*last = i->size - (j->size - 1) * part;
	i->size = part;
}

/* Whether pieces of 16 bytes of floats, with bytes of codes, can be moved at a time. */
static bool are_pieces(const struct dim *i, const struct dim *j, int64_t last,
		       const struct dims *outer, const void *x, const void *q, int64_t piece)
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

/* Of codes: whether lines along j are whole words */
static bool are_words(const struct dim *i, const struct dim *j, const struct dims *outer,
		      const void *q)
{
	int64_t all = i->q | j->size | (int64_t)(uintptr_t)q;

	for (int d = 0; d < outer->n; d++)
		all |= outer->d[d].q;
	return j->q == 1 && all % 4 == 0;
}

/* Everything but the operands and the dimensions is filled in. */
static int launch_tiles(struct hz_context *ctx, const char *op, const struct dims *dims, int dtype,
			struct hzi_quantize_tiles p, bool back);

/* The two parts of the longest dimension, by themselves */
static int launch_halves(struct hz_context *ctx, const char *op, const struct dims *dims, int d,
			 int dtype, const struct hzi_quantize_tiles *p, bool back)
{
	const int64_t half = ceil_div(dims->d[d].size / 2, dims->d[d].group) * dims->d[d].group;
	struct dims part = *dims;
	struct hzi_quantize_tiles q = *p;

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

static int launch_tiles(struct hz_context *ctx, const char *op, const struct dims *dims, int dtype,
			struct hzi_quantize_tiles p, bool back)
{
	const int64_t piece = HZI_TILE_PIECE(dtype);
	struct dim i, j = {1, 0, 0, 0, 1};
	struct hzi_launch launch = {.block = {HZI_FLAT_THREADS}};
	struct dims t = *dims;
	int x_dim = closest(&t, false), q_dim = closest(&t, true), longest = 0;
	bool turned = x_dim != q_dim;
	int64_t last, across, down, blocks;

	for (int d = 1; d < t.n; d++) {
		if (t.d[d].size > t.d[longest].size)
			longest = d;
	}
	if (t.d[longest].size > DIM_MAX && t.n > 1)
		return launch_halves(ctx, op, dims, longest, dtype, &p, back);
	if (turned && t.d[x_dim].size < NARROW) {
		x_dim = q_dim;
		turned = false;
	} else if (turned && t.d[q_dim].size < NARROW) {
		turned = false;
	}
	i = t.d[x_dim];
	if (turned)
		j = t.d[q_dim];
	remove_dim(&t, x_dim);
	if (turned)
		remove_dim(&t, q_dim - (q_dim > x_dim));
	last = i.size;
	if (!turned && t.n) {
		const int d = rows_dim(&t);

		j = t.d[d];
		remove_dim(&t, d);
	} else if (!turned && i.size > 2 * CUT) {
		cut_dim(&i, &j, &last);
	}
	/* Groups of a further dimension are one of their own. */
	for (int d = 0; d < t.n; d++) {
		if (t.d[d].group == 1)
			continue;
		split_group(&t, d);
		break;
	}
	if (turned) {
		p.kind = HZI_TILE_TURNED;
		p.words = are_words(&i, &j, &t, p.q);
		p.log_i = 6;
		across = HZI_TURN;
		down = HZI_TURN_ROWS;
	} else if (are_pieces(&i, &j, last, &t, p.x, p.q, piece)) {
		p.kind = i.p && i.group == 1 ? HZI_TILE_PIECES_EACH : HZI_TILE_PIECES;
		p.log_i = (int)min_of(8, log2_up(i.size / piece));
		across = piece << p.log_i;
		down = HZI_TILE_DOWN * (dtype == HZ_F32 ? 1 : 2) * (HZI_FLAT_THREADS >> p.log_i);
	} else if (i.p && i.group > 1 && dims->n < HZ_MAXDIM) {
		/* Elements one by one: a group is to be a row, so that they share a divisor. */
		t = *dims;
		split_group(&t, x_dim);
		return launch_tiles(ctx, op, &t, dtype, p, back);
	} else {
		p.kind = j.p ? HZI_TILE_ROWS : HZI_TILE_COLUMNS;
		p.log_i = (int)min_of(8, log2_up(ceil_div(i.size, HZI_TILE_ACROSS)));
		across = (int64_t)HZI_TILE_ACROSS << p.log_i;
		down = HZI_TILE_DOWN * (HZI_FLAT_THREADS >> p.log_i);
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
			       kernel_of(back ? HZI_KERNEL_dequantize_tiles_f32
					      : HZI_KERNEL_quantize_tiles_f32, dtype),
			       &launch, &p, sizeof(p));
}

static int launch_flat(struct hz_context *ctx, const char *op, int kernel, int64_t each,
		       const struct hzi_quantize_flat *p)
{
	const struct hzi_launch launch = {
		.grid = {(unsigned)max_of(1, ceil_div(p->pieces, HZI_FLAT_THREADS * each))},
		.block = {HZI_FLAT_THREADS},
	};

	return hzi_cuda_launch(ctx, op, kernel, &launch, p, sizeof(*p));
}

/* ---- quantize, dequantize -------------------------------------------------------------------- */

/* Floats to codes, or back. Of p what does not follow from the map is filled in. */
static int launch_codes(struct hz_context *ctx, const char *op, const struct hzi_qmap *map,
			int dtype, struct hzi_quantize_flat *p, bool back)
{
	const struct dims dims = dims_of(map);

	if (make_flat(map, back ? p->y : p->x, back ? p->x : p->y, map->x_step, map->x_stride,
		      map->q_step, map->q_stride, dtype, p))
		return launch_flat(ctx, op,
				   kernel_of(back ? HZI_KERNEL_dequantize_flat_f32
						  : HZI_KERNEL_quantize_flat_f32, dtype),
				   back ? HZI_BACK_PIECES : HZI_FLAT_PIECES(dtype), p);
	return launch_tiles(ctx, op, &dims, dtype,
			    (struct hzi_quantize_tiles){
				    .x = back ? p->y : (void *)p->x,
				    .q = back ? (void *)p->x : p->y, .scales = p->scales,
				    .zeros = p->zeros, .is_signed = p->is_signed,
				    .scale = p->scale, .zero = p->zero},
			    back);
}

static int run_codes(struct hz_context *ctx, const char *op, const struct hzi_codes_args *a)
{
	struct hzi_quantize_flat p = {
		.x = a->back ? a->q : a->x, .y = a->back ? a->x : a->q, .scales = a->scales,
		.zeros = a->zeros, .is_signed = a->q_dtype == HZ_S8, .scale = a->scale,
		.zero = a->zero,
	};

	if (a->rotated)
		return hzi_cuda_rotated_codes(ctx, a);
	return launch_codes(ctx, op, &a->map, a->x_dtype, &p, a->back);
}

static size_t codes_workspace(const struct hz_context *ctx, const struct hzi_codes_args *a)
{
	return a->rotated ? hzi_cuda_rotated_workspace(ctx, a->rotated) : 0;
}

size_t hzi_cuda_quantize_workspace(const struct hz_context *ctx, const struct hzi_quantize_args *a)
{
	return codes_workspace(ctx, &a->codes);
}

int hzi_cuda_quantize(struct hz_context *ctx, const struct hzi_quantize_args *a)
{
	return run_codes(ctx, "quantize", &a->codes);
}

size_t hzi_cuda_dequantize_workspace(const struct hz_context *ctx,
				     const struct hzi_dequantize_args *a)
{
	return codes_workspace(ctx, &a->codes);
}

int hzi_cuda_dequantize(struct hz_context *ctx, const struct hzi_dequantize_args *a)
{
	return run_codes(ctx, "dequantize", &a->codes);
}

/* ---- choose_qparams -------------------------------------------------------------------------- */

size_t hzi_cuda_choose_qparams_workspace(const struct hz_context *ctx,
					 const struct hzi_choose_qparams_args *a)
{
	(void)ctx;
	return (size_t)a->map.params * 8;
}

/* Groups are dimensions of their own: a step of p for each index. */
static struct dims linear_dims(const struct hzi_qmap *map)
{
	struct dims t = dims_of(map);

	if (t.d[t.n - 1].group > 1)
		split_group(&t, t.n - 1);
	return t;
}

static bool are_range_pieces(const struct dim *i, const struct dims *outer, int64_t last,
			     const void *x, int64_t piece)
{
	if (i->x != 1 || i->size % piece || last % piece || (uintptr_t)x % 16)
		return false;
	for (int d = 0; d < outer->n; d++) {
		if (outer->d[d].x % piece)
			return false;
	}
	return true;
}

static int64_t put_outer(struct hzi_range_tiles *p, const struct dims *t)
{
	int64_t count = 1;

	p->ndim = t->n;
	for (int d = 0; d < t->n; d++) {
		p->shape[d] = hzi_make_quotient(t->d[d].size);
		p->x_stride[d] = t->d[d].x;
		p->p_stride[d] = t->d[d].p;
		count = count <= INT32_MAX ? count * t->d[d].size : count;
	}
	return count;
}

/* Blocks, or -1 if they are too many: rows along i with one parameter each */
static int64_t make_range_rows(int64_t want, struct dim i, struct dims *outer, int dtype,
			       struct hzi_range_tiles *p)
{
	const int64_t piece = HZI_TILE_PIECE(dtype);
	int64_t last = i.size, lanes, turns;
	bool shared = false;

	if (!p->scale && i.size > 2 * CUT) {
		cut_dim(&i, &outer->d[outer->n], &last);
		outer->n++;
	}
	/* Ranges of rows that share a parameter are joined before they are put away. */
	for (int d = 0; d < outer->n; d++)
		shared |= outer->d[d].p == 0;
	p->pieces = are_range_pieces(&i, outer, last, p->x, piece);
	p->x_i = i.x;
	p->p_i = 0;
	p->size_i = (int32_t)i.size;
	p->last_i = (int32_t)last;
	p->log_i = (int)min_of(5, log2_up(p->pieces ? i.size / piece : i.size));
	p->tiles = put_outer(p, outer);
	turns = ceil_div(p->pieces ? i.size / piece : i.size, (int64_t)1 << p->log_i);
	p->log_turns = shared || turns > HZI_RANGE_PIECES ? -1 : log2_up(turns);
	lanes = p->tiles << p->log_i;
	return p->tiles > INT32_MAX ? -1 : min_of(ceil_div(lanes, HZI_FLAT_THREADS), 2 * want);
}

/* The same, elements along i having parameters of their own */
static int64_t make_range_columns(int64_t want, const struct dim *i, struct dims *outer, int dtype,
				  struct hzi_range_tiles *p)
{
	const int64_t piece = HZI_TILE_PIECE(dtype);
	struct dim j = {1, 0, 0, 0, 1};
	int64_t tiles_i, count, once, shares;
	int rows = -1;

	for (int d = 0; d < outer->n; d++) {
		if (outer->d[d].p == 0 && (rows < 0 || outer->d[d].size > outer->d[rows].size))
			rows = d;
	}
	p->pieces = are_range_pieces(i, outer, i->size, p->x, piece);
	if (rows >= 0) {
		j = outer->d[rows];
		remove_dim(outer, rows);
	}
	p->x_i = i->x;
	p->x_j = j.x;
	p->p_i = i->p;
	p->size_i = p->last_i = (int32_t)i->size;
	p->size_j = (int32_t)j.size;
	p->log_i = (int)min_of(5, log2_up(p->pieces ? i->size / piece : i->size));
	tiles_i = ceil_div(i->size, (p->pieces ? piece : 1) << p->log_i);
	count = put_outer(p, outer);
	once = HZI_RANGE_PIECES * (HZI_FLAT_THREADS >> p->log_i);
	shares = max_of(1, min_of(ceil_div(j.size, once), ceil_div(want, tiles_i)));
	p->share = (int32_t)round_up(ceil_div(j.size, shares), once);
	shares = ceil_div(j.size, p->share);
	p->tiles_i = hzi_make_quotient(tiles_i);
	p->shares = hzi_make_quotient(shares);
	return count > INT32_MAX / (tiles_i * shares) ? -1 : count * tiles_i * shares;
}

#define SM_CLUSTERS 90		/* the first with clusters */
#define CLUSTER_MAX 8
#define JOINT_BLOCKS 2		/* of a multiprocessor, which all begin together */
#define JOINT_PIECES_LOG2 3	/* lanes of pieces: 128 bytes */
#define JOINT_FEW 8192		/* values or pieces that even few blocks have soon, each */

/*
 * The same in one launch, if parameters are of one dimension of rows at most: the blocks that share
 * columns are a cluster. Lines of 128 bytes, or longer ones for fewer blocks than there would be.
 */
static int launch_joint(struct hz_context *ctx, const struct dims *dims, int dtype,
			const struct hzi_choose_qparams_args *a, bool *done)
{
	const struct hzi_cuda_device *device = hzi_cuda_device(ctx);
	const int64_t piece = HZI_TILE_PIECE(dtype);
	const int64_t want = JOINT_BLOCKS * (int64_t)device->multiprocessors;
	const int x_dim = closest(dims, false);
	const struct dim i = dims->d[x_dim];
	struct dim j = {1, 0, 0, 0, 1};
	struct hzi_range_tiles p = {.x = a->x, .scale = a->scale, .zero = a->zero,
				    .q_dtype = a->q_dtype, .symmetric = a->symmetric};
	struct hzi_launch launch = {0};
	struct dims outer = *dims;
	int64_t lanes, tiles, count, shares;
	int rows = 0;

	*done = false;
	remove_dim(&outer, x_dim);
	if (device->sm < SM_CLUSTERS || !i.p || i.size > DIM_MAX)
		return HZ_OK;
	p.pieces = are_range_pieces(&i, &outer, i.size, p.x, piece);
	for (int d = outer.n - 1; d >= 0; d--) {
		if (outer.d[d].size > DIM_MAX)
			return HZ_OK;
		if (outer.d[d].p)
			continue;
		j = outer.d[d];
		remove_dim(&outer, d);
		rows++;
	}
	if (rows > 1)
		return HZ_OK;
	p.x_i = i.x;
	p.x_j = j.x;
	p.p_i = i.p;
	p.size_i = p.last_i = (int32_t)i.size;
	p.size_j = (int32_t)j.size;
	count = put_outer(&p, &outer);
	lanes = p.pieces ? i.size / piece : i.size;
	p.log_i = (int)min_of(p.pieces ? JOINT_PIECES_LOG2 : 5, log2_up(lanes));
	while (p.log_i < min_of(5, log2_up(lanes)) && lanes >> p.log_i > want / count)
		p.log_i++;
	tiles = ceil_div(lanes, (int64_t)1 << p.log_i);
	if (count > INT32_MAX / CLUSTER_MAX / tiles)
		return HZ_OK;
	shares = max_of(1, min_of(CLUSTER_MAX, want / (tiles * count)));
	shares = min_of(shares, ceil_div(j.size,
					 HZI_RANGE_PIECES * (HZI_JOINT_THREADS >> p.log_i)));
	p.share = (int32_t)ceil_div(j.size, shares);
	if ((!p.pieces || 4 * count * tiles * shares < want) &&
	    (int64_t)p.share << p.log_i > JOINT_FEW)
		return HZ_OK;
	p.tiles_i = hzi_make_quotient(tiles);
	p.shares = hzi_make_quotient(shares);
	launch.grid[0] = (unsigned)(count * tiles * shares);
	launch.block[0] = HZI_JOINT_THREADS * (launch.grid[0] * JOINT_BLOCKS <= want ? 2 : 1);
	launch.cluster = (unsigned)shares;
	*done = true;
	return hzi_cuda_launch(ctx, "choose_qparams", kernel_of(HZI_KERNEL_range_joint_f32, dtype),
			       &launch, &p, sizeof(p));
}

#define ROW_DIRECT 16384	/* elements of a row that one warp may have, or more if there are */
#define ROWS_DIRECT 4096	/* so many rows */

/* Whether each parameter is of one row of floats that are close */
static bool is_direct(const struct dims *t, int x_dim)
{
	int64_t rows = 1;

	for (int d = 0; d < t->n; d++) {
		if ((t->d[d].p == 0) != (d == x_dim) || t->d[d].size > DIM_MAX)
			return false;
		if (d != x_dim && rows <= INT32_MAX)
			rows *= t->d[d].size;
	}
	return rows <= INT32_MAX && (t->d[x_dim].size <= ROW_DIRECT || rows >= ROWS_DIRECT);
}

static int launch_ranges(struct hz_context *ctx, const struct dims *dims, int dtype,
			 struct hzi_range_tiles p)
{
	const int64_t want = 8 * (int64_t)hzi_cuda_device(ctx)->multiprocessors;
	const int x_dim = closest(dims, false);
	struct hzi_launch launch = {.block = {HZI_FLAT_THREADS}};
	struct dims t = *dims;
	int64_t blocks = -1;
	int longest = 0;

	for (int d = 1; d < t.n; d++) {
		if (t.d[d].size > t.d[longest].size)
			longest = d;
	}
	remove_dim(&t, x_dim);
	if (dims->d[longest].size <= DIM_MAX)
		blocks = dims->d[x_dim].p
				 ? make_range_columns(want, &dims->d[x_dim], &t, dtype, &p)
				 : make_range_rows(want, dims->d[x_dim], &t, dtype, &p);
	if (blocks < 0) {
		/* The two parts of the longest dimension, by themselves */
		struct dims part = *dims;
		struct dim *d = &part.d[longest];

		d->size /= 2;
		HZ_CHECK(launch_ranges(ctx, &part, dtype, p));
		p.x = (const char *)p.x + d->size * d->x * (int64_t)hz_dtype_size(dtype);
		p.range += 2 * d->size * d->p;
		d->size = dims->d[longest].size - d->size;
		return launch_ranges(ctx, &part, dtype, p);
	}
	launch.grid[0] = (unsigned)blocks;
	return hzi_cuda_launch(ctx, "choose_qparams",
			       kernel_of(p.p_i ? HZI_KERNEL_range_columns_f32
					       : HZI_KERNEL_range_rows_f32, dtype),
			       &launch, &p, sizeof(p));
}

/* One parameter of floats back to back: those that are whole pieces; done says how many. */
static int launch_range_flat(struct hz_context *ctx, const struct hzi_choose_qparams_args *a,
			     int64_t *done)
{
	const struct hzi_qmap *map = &a->map;
	const int64_t piece = HZI_TILE_PIECE(a->x_dtype), pieces = elements_of(map) / piece;
	const int64_t want = 16 * (int64_t)hzi_cuda_device(ctx)->multiprocessors;
	const int64_t once = HZI_FLAT_THREADS * HZI_RANGE_PIECES;
	const struct hzi_range_flat p = {
		.x = a->x, .range = ctx->workspace, .pieces = pieces,
		.share = max_of(1, ceil_div(pieces, want * once)) * once,
	};
	const struct hzi_launch launch = {.grid = {(unsigned)max_of(1, ceil_div(pieces, p.share))},
					  .block = {HZI_FLAT_THREADS}};

	*done = 0;
	if (map->params != 1 || (uintptr_t)a->x % 16 || (map->x_step != 1 && map->n > 1) ||
	    !joined(map, map->x_stride, map->n))
		return HZ_OK;
	*done = pieces * piece;
	return hzi_cuda_launch(ctx, "choose_qparams",
			       kernel_of(HZI_KERNEL_range_flat_f32, a->x_dtype), &launch, &p,
			       sizeof(p));
}

/* Groups of 2^n pieces that follow each other, as their parameters do; done: whether they were. */
static int launch_range_groups(struct hz_context *ctx, const struct hzi_choose_qparams_args *a,
			       bool *done)
{
	const struct hzi_qmap *map = &a->map;
	const int64_t piece = HZI_TILE_PIECE(a->x_dtype), group = map->group / piece;
	const int64_t pieces = elements_of(map) / piece;
	const int64_t each = HZI_FLAT_THREADS * HZI_RANGE_PIECES;
	const struct hzi_range_groups p = {
		.x = a->x, .scale = a->scale, .zero = a->zero, .pieces = pieces,
		.log_group = log2_up(group), .q_dtype = a->q_dtype, .symmetric = a->symmetric,
	};
	const struct hzi_launch launch = {.grid = {(unsigned)ceil_div(pieces, each)},
					  .block = {HZI_FLAT_THREADS}};

	*done = false;
	if (map->group % piece || group != (int64_t)1 << p.log_group ||
	    p.log_group < HZI_GROUP_LOG2_MIN || p.log_group > HZI_GROUP_LOG2_MAX ||
	    (uintptr_t)a->x % 16 || map->x_step != 1 || !joined(map, map->x_stride, map->n) ||
	    !joined(map, map->p_stride, map->n / map->group) || pieces / each >= INT32_MAX)
		return HZ_OK;
	*done = true;
	return hzi_cuda_launch(ctx, "choose_qparams",
			       kernel_of(HZI_KERNEL_range_groups_f32, a->x_dtype), &launch, &p,
			       sizeof(p));
}

int hzi_cuda_choose_qparams(struct hz_context *ctx, const struct hzi_choose_qparams_args *a)
{
	static const char op[] = "choose_qparams";
	const struct hzi_qmap *map = &a->map;
	const int64_t total = elements_of(map);
	const struct hzi_range_params params = {
		.range = ctx->workspace, .scale = a->scale, .zero = a->zero, .count = map->params,
		.q_dtype = a->q_dtype, .symmetric = a->symmetric,
	};
	struct hzi_range_tiles p = {.x = a->x, .range = ctx->workspace, .q_dtype = a->q_dtype,
				    .symmetric = a->symmetric};
	struct dims t = linear_dims(map);
	const struct hzi_launch launch = {
		.grid = {(unsigned)ceil_div(map->params, HZI_FLAT_THREADS)},
		.block = {HZI_FLAT_THREADS},
	};
	int64_t done = 0;
	bool is_done = false;

	if (total && map->params > 1)
		HZ_CHECK(launch_range_groups(ctx, a, &is_done));
	if (total && map->params > 1 && !is_done)
		HZ_CHECK(launch_joint(ctx, &t, a->x_dtype, a, &is_done));
	if (is_done)
		return HZ_OK;
	if (total && map->params > 1 && is_direct(&t, closest(&t, false))) {
		p.scale = a->scale;
		p.zero = a->zero;
		return launch_ranges(ctx, &t, a->x_dtype, p);
	}
	HZ_CHECK(hzi_cuda_fill(ctx, ctx->workspace, 0, (size_t)map->params * 8));
	if (total)
		HZ_CHECK(launch_range_flat(ctx, a, &done));
	if (done) {
		t = (struct dims){.n = 1, .d = {{total - done, 1, 0, 0, 1}}};
		p.x = (const char *)a->x + done * (int64_t)hz_dtype_size(a->x_dtype);
	}
	if (done < total)
		HZ_CHECK(launch_ranges(ctx, &t, a->x_dtype, p));
	return hzi_cuda_launch(ctx, op, HZI_KERNEL_range_params, &launch, &params, sizeof(params));
}
