/*
 * minmax.c - ranges of floats, and from them scales and zero points
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#include <config.h>

#include "gpu/quantize/launch.h"

/* Whether rows along i are whole pieces of 16 bytes */
static bool are_pieces(const struct hzi_dim *i, const struct hzi_dims *outer, int64_t last,
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

/* The outer dimensions; returns their product, which stops growing above INT32_MAX. */
static int64_t put_outer(struct hzi_range_strided *p, const struct hzi_dims *t)
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

/* Fills p for rows along i, each with one parameter: the blocks, or -1 if they are too many */
static int64_t make_rows(int64_t want, struct hzi_dim i, struct hzi_dims *outer, int dtype,
			 struct hzi_range_strided *p)
{
	const int64_t piece = HZI_TILE_PIECE(dtype);
	int64_t last = i.size, lanes, turns;
	bool shared = false;

	if (!p->scale && i.size > 2 * HZI_CUT) {
		hzi_quantize_cut(&i, &outer->d[outer->n], &last);
		outer->n++;
	}
	/* Ranges of rows that share a parameter are joined before they are put away. */
	for (int d = 0; d < outer->n; d++)
		shared |= outer->d[d].p == 0;
	p->pieces = are_pieces(&i, outer, last, p->x, piece);
	p->x_i = i.x;
	p->p_i = 0;
	p->size_i = (int32_t)i.size;
	p->last_i = (int32_t)last;
	p->log_i = (int)min_of(5, hzi_log2_up(p->pieces ? i.size / piece : i.size));
	p->tiles = put_outer(p, outer);
	turns = ceil_div(p->pieces ? i.size / piece : i.size, (int64_t)1 << p->log_i);
	p->log_turns = shared || turns > HZI_RANGE_PIECES ? -1 : hzi_log2_up(turns);
	lanes = p->tiles << p->log_i;
	return p->tiles > INT32_MAX ? -1 : min_of(ceil_div(lanes, HZI_BLOCK_THREADS), 2 * want);
}

/* The same where each element along i has a parameter of its own */
static int64_t make_columns(int64_t want, const struct hzi_dim *i, struct hzi_dims *outer,
			    int dtype, struct hzi_range_strided *p)
{
	const int64_t piece = HZI_TILE_PIECE(dtype);
	struct hzi_dim j = {1, 0, 0, 0, 1};
	int64_t tiles_i, count, once, shares;
	int rows = -1;

	for (int d = 0; d < outer->n; d++) {
		if (outer->d[d].p == 0 && (rows < 0 || outer->d[d].size > outer->d[rows].size))
			rows = d;
	}
	p->pieces = are_pieces(i, outer, i->size, p->x, piece);
	if (rows >= 0) {
		j = outer->d[rows];
		hzi_quantize_remove_dim(outer, rows);
	}
	p->x_i = i->x;
	p->x_j = j.x;
	p->p_i = i->p;
	p->size_i = p->last_i = (int32_t)i->size;
	p->size_j = (int32_t)j.size;
	p->log_i = (int)min_of(5, hzi_log2_up(p->pieces ? i->size / piece : i->size));
	tiles_i = ceil_div(i->size, (p->pieces ? piece : 1) << p->log_i);
	count = put_outer(p, outer);
	once = HZI_RANGE_PIECES * (HZI_BLOCK_THREADS >> p->log_i);
	shares = max_of(1, min_of(ceil_div(j.size, once), ceil_div(want, tiles_i)));
	p->share = (int32_t)round_up(ceil_div(j.size, shares), once);
	shares = ceil_div(j.size, p->share);
	p->tiles_i = hzi_make_quotient(tiles_i);
	p->shares = hzi_make_quotient(shares);
	return count > INT32_MAX / (tiles_i * shares) ? -1 : count * tiles_i * shares;
}

#define CLUSTER_MAX 8
#define CLUSTER_SM_BLOCKS 2	/* blocks of a multiprocessor, which all begin together */
#define CLUSTER_LANES_LOG2 3	/* lanes of 16 bytes: lines of 128 */
#define CLUSTER_SHARE 8192	/* values or pieces of a block, at most, where blocks are few */

static int64_t cluster_blocks(const struct hz_context *ctx)
{
	return CLUSTER_SM_BLOCKS * (int64_t)hzi_cuda_device(ctx)->multiprocessors;
}

/*
 * One launch for parameters of elements along i, with one dimension j of rows at most: the blocks
 * of a cluster share the rows of a tile of columns. Lines are 128 bytes, or longer so that there
 * are fewer blocks. Fills c->cluster; NULL or the reason why not.
 */
static const char *make_cluster(const struct hz_context *ctx, const struct hzi_range_call *c)
{
	struct hzi_range_strided *const p = &c->cluster->p;
	struct hzi_launch *const launch = &c->cluster->launch;
	const struct hzi_choose_qparams_args *a = c->a;
	const int64_t piece = HZI_TILE_PIECE(a->x_dtype), want = cluster_blocks(ctx);
	const int x_dim = hzi_quantize_closest(&c->dims, false);
	const struct hzi_dim i = c->dims.d[x_dim];
	struct hzi_dim j = {1, 0, 0, 0, 1};
	struct hzi_dims outer = c->dims;
	int64_t lanes, tiles, count, shares;
	int rows = 0;

	if (!i.p)
		return "floats of a parameter are next to each other";
	for (int d = 0; d < outer.n; d++) {
		if (outer.d[d].size > HZI_DIM_MAX)
			return "a dimension exceeds 2^30";
	}
	hzi_quantize_remove_dim(&outer, x_dim);
	*p = (struct hzi_range_strided){.x = a->x, .scale = a->scale, .zero = a->zero,
				      .q_dtype = a->q_dtype, .symmetric = a->symmetric};
	p->pieces = are_pieces(&i, &outer, i.size, p->x, piece);
	for (int d = outer.n - 1; d >= 0; d--) {
		if (outer.d[d].p)
			continue;
		j = outer.d[d];
		hzi_quantize_remove_dim(&outer, d);
		rows++;
	}
	if (rows > 1)
		return "floats of a parameter have more than one dimension";
	p->x_i = i.x;
	p->x_j = j.x;
	p->p_i = i.p;
	p->size_i = p->last_i = (int32_t)i.size;
	p->size_j = (int32_t)j.size;
	count = put_outer(p, &outer);
	lanes = p->pieces ? i.size / piece : i.size;
	p->log_i = (int)min_of(p->pieces ? CLUSTER_LANES_LOG2 : 5, hzi_log2_up(lanes));
	while (p->log_i < min_of(5, hzi_log2_up(lanes)) && lanes >> p->log_i > want / count)
		p->log_i++;
	tiles = ceil_div(lanes, (int64_t)1 << p->log_i);
	if (count > INT32_MAX / CLUSTER_MAX / tiles)
		return "there are too many parameters";
	shares = max_of(1, min_of(CLUSTER_MAX, want / (tiles * count)));
	shares = min_of(shares, ceil_div(j.size,
					 HZI_RANGE_PIECES * (HZI_CLUSTER_THREADS >> p->log_i)));
	p->share = (int32_t)ceil_div(j.size, shares);
	c->cluster->wins =
		(p->pieces && 4 * count * tiles * shares >= want) ||
		(int64_t)p->share << p->log_i <= CLUSTER_SHARE;
	p->tiles_i = hzi_make_quotient(tiles);
	p->shares = hzi_make_quotient(shares);
	*launch = (struct hzi_launch){.grid = {(unsigned)(count * tiles * shares)},
				      .block = {HZI_CLUSTER_THREADS}, .cluster = (unsigned)shares};
	if (launch->grid[0] * CLUSTER_SM_BLOCKS <= want)
		launch->block[0] *= 2;
	return NULL;
}

/* ---- Routes of one launch -------------------------------------------------------------------- */

static const char *one_or_none(const struct hzi_quantize_map *map)
{
	if (map->params <= 1)
		return "there is one parameter";
	return hzi_quantize_elements(map) ? NULL : "x is empty";
}

const char *hzi_cuda_range_cluster_unsupported(const struct hz_context *ctx, const void *args)
{
	const struct hzi_range_call *c = args;
	const char *why = one_or_none(&c->a->map);

	return why ? why : make_cluster(ctx, c);
}

int hzi_cuda_range_cluster(struct hz_context *ctx, const void *args)
{
	const struct hzi_range_call *c = args;

	return hzi_cuda_launch(ctx, "choose_qparams",
			       hzi_kernel_of(HZI_KERNEL_range_cluster_f32, c->a->x_dtype),
			       &c->cluster->launch, &c->cluster->p, sizeof(c->cluster->p));
}

/* Contiguous groups of 2^n pieces of 16 bytes, with successive parameters */
const char *hzi_cuda_range_groups_unsupported(const struct hz_context *ctx, const void *args)
{
	const struct hzi_choose_qparams_args *a = ((const struct hzi_range_call *)args)->a;
	const struct hzi_quantize_map *map = &a->map;
	const int64_t piece = HZI_TILE_PIECE(a->x_dtype), group = map->group / piece;
	const int log_group = hzi_log2_up(group);
	const char *why = one_or_none(map);

	(void)ctx;
	if (why)
		return why;
	if (map->group % piece || group != (int64_t)1 << log_group ||
	    log_group < HZI_GROUP_LOG2_MIN || log_group > HZI_GROUP_LOG2_MAX)
		return "groups are not of 2^2 to 2^8 pieces of 16 bytes";
	if ((uintptr_t)a->x % 16 || map->x_step != 1 ||
	    !hzi_quantize_joined(map, map->x_stride, map->n))
		return "x is not contiguous and 16-byte aligned";
	if (!hzi_quantize_joined(map, map->p_stride, map->n / map->group))
		return "parameters do not follow the order of the groups";
	return hzi_quantize_elements(map) / piece / (HZI_BLOCK_THREADS * HZI_RANGE_PIECES) >=
			       INT32_MAX
		       ? "there are too many elements" : NULL;
}

int hzi_cuda_range_groups(struct hz_context *ctx, const void *args)
{
	const struct hzi_choose_qparams_args *a = ((const struct hzi_range_call *)args)->a;
	const int64_t piece = HZI_TILE_PIECE(a->x_dtype);
	const struct hzi_range_groups p = {
		.x = a->x, .scale = a->scale, .zero = a->zero,
		.pieces = hzi_quantize_elements(&a->map) / piece,
		.log_group = hzi_log2_up(a->map.group / piece), .q_dtype = a->q_dtype,
		.symmetric = a->symmetric,
	};
	const struct hzi_launch launch = {
		.grid = {(unsigned)ceil_div(p.pieces, HZI_BLOCK_THREADS * HZI_RANGE_PIECES)},
		.block = {HZI_BLOCK_THREADS}};

	return hzi_cuda_launch(ctx, "choose_qparams",
			       hzi_kernel_of(HZI_KERNEL_range_groups_f32, a->x_dtype), &launch, &p,
			       sizeof(p));
}

/* ---- Rows and columns ------------------------------------------------------------------------ */

static int launch_ranges(struct hz_context *ctx, const struct hzi_dims *dims, int dtype,
			 struct hzi_range_strided p)
{
	const int64_t want = 8 * (int64_t)hzi_cuda_device(ctx)->multiprocessors;
	const int x_dim = hzi_quantize_closest(dims, false), longest = hzi_quantize_longest(dims);
	struct hzi_launch launch = {.block = {HZI_BLOCK_THREADS}};
	struct hzi_dims t = *dims;
	int64_t blocks = -1;

	hzi_quantize_remove_dim(&t, x_dim);
	if (dims->d[longest].size <= HZI_DIM_MAX)
		blocks = dims->d[x_dim].p ? make_columns(want, &dims->d[x_dim], &t, dtype, &p)
					  : make_rows(want, dims->d[x_dim], &t, dtype, &p);
	if (blocks < 0) {
		/* Two launches, one for each half of the longest dimension */
		struct hzi_dims part = *dims;
		struct hzi_dim *d = &part.d[longest];

		d->size /= 2;
		HZ_CHECK(launch_ranges(ctx, &part, dtype, p));
		p.x = (const char *)p.x + d->size * d->x * (int64_t)hz_dtype_size(dtype);
		p.range += 2 * d->size * d->p;
		d->size = dims->d[longest].size - d->size;
		return launch_ranges(ctx, &part, dtype, p);
	}
	launch.grid[0] = (unsigned)blocks;
	return hzi_cuda_launch(ctx, "choose_qparams",
			       hzi_kernel_of(p.p_i ? HZI_KERNEL_range_columns_f32
						   : HZI_KERNEL_range_rows_f32, dtype),
			       &launch, &p, sizeof(p));
}

/* One launch, where each parameter is of one row of floats next to each other */
const char *hzi_cuda_range_rows_unsupported(const struct hz_context *ctx, const void *args)
{
	const struct hzi_range_call *c = args;
	const struct hzi_dims *t = &c->dims;
	const int x_dim = hzi_quantize_closest(t, false);
	const char *why = one_or_none(&c->a->map);
	int64_t rows = 1;

	(void)ctx;
	if (why)
		return why;
	for (int d = 0; d < t->n; d++) {
		if ((t->d[d].p == 0) != (d == x_dim))
			return "a parameter is not of one row";
		if (t->d[d].size > HZI_DIM_MAX)
			return "a dimension exceeds 2^30";
		if (d != x_dim && rows <= INT32_MAX)
			rows *= t->d[d].size;
	}
	return rows > INT32_MAX ? "there are too many rows" : NULL;
}

#define ROW_ELEMENTS 16384	/* of a row that is one warp's, or more if there are */
#define ROWS_MANY 4096		/* so many rows */

bool hzi_cuda_range_rows_wins(const struct hzi_range_call *c)
{
	const int64_t row = c->dims.d[hzi_quantize_closest(&c->dims, false)].size;

	return row <= ROW_ELEMENTS || hzi_quantize_elements(&c->a->map) / row >= ROWS_MANY;
}

int hzi_cuda_range_rows(struct hz_context *ctx, const void *args)
{
	const struct hzi_range_call *c = args;
	const struct hzi_choose_qparams_args *a = c->a;

	return launch_ranges(ctx, &c->dims, a->x_dtype,
			     (struct hzi_range_strided){
				     .x = a->x, .range = ctx->workspace, .scale = a->scale,
				     .zero = a->zero, .q_dtype = a->q_dtype,
				     .symmetric = a->symmetric});
}

/* ---- Two passes ------------------------------------------------------------------------------ */

/* Contiguous floats of one parameter: a launch for the whole pieces; *done: their elements */
static int launch_flat(struct hz_context *ctx, const struct hzi_choose_qparams_args *a,
		       int64_t *done)
{
	const struct hzi_quantize_map *map = &a->map;
	const int64_t piece = HZI_TILE_PIECE(a->x_dtype);
	const int64_t pieces = hzi_quantize_elements(map) / piece;
	const int64_t want = 16 * (int64_t)hzi_cuda_device(ctx)->multiprocessors;
	const int64_t once = HZI_BLOCK_THREADS * HZI_RANGE_PIECES;
	const struct hzi_range_contiguous p = {
		.x = a->x, .range = ctx->workspace, .pieces = pieces,
		.share = max_of(1, ceil_div(pieces, want * once)) * once,
	};
	const struct hzi_launch launch = {.grid = {(unsigned)max_of(1, ceil_div(pieces, p.share))},
					  .block = {HZI_BLOCK_THREADS}};

	*done = 0;
	if (map->params != 1 || (uintptr_t)a->x % 16 || (map->x_step != 1 && map->n > 1) ||
	    !hzi_quantize_joined(map, map->x_stride, map->n))
		return HZ_OK;
	*done = pieces * piece;
	return hzi_cuda_launch(ctx, "choose_qparams",
			       hzi_kernel_of(HZI_KERNEL_range_contiguous_f32, a->x_dtype), &launch,
			       &p, sizeof(p));
}

/* Ranges go into the workspace by atomic maxima; a last launch makes the parameters of them. */
int hzi_cuda_range_two_pass(struct hz_context *ctx, const void *args)
{
	const struct hzi_range_call *c = args;
	const struct hzi_choose_qparams_args *a = c->a;
	const int64_t total = hzi_quantize_elements(&a->map);
	const struct hzi_range_params params = {
		.range = ctx->workspace, .scale = a->scale, .zero = a->zero, .count = a->map.params,
		.q_dtype = a->q_dtype, .symmetric = a->symmetric,
	};
	struct hzi_range_strided p = {.x = a->x, .range = ctx->workspace, .q_dtype = a->q_dtype,
				    .symmetric = a->symmetric};
	struct hzi_dims dims = c->dims;
	const struct hzi_launch launch = {
		.grid = {(unsigned)ceil_div(params.count, HZI_BLOCK_THREADS)},
		.block = {HZI_BLOCK_THREADS},
	};
	int64_t done = 0;

	HZ_CHECK(hzi_cuda_fill(ctx, ctx->workspace, 0, (size_t)params.count * 8));
	if (total)
		HZ_CHECK(launch_flat(ctx, a, &done));
	if (done) {
		dims = (struct hzi_dims){.n = 1, .d = {{total - done, 1, 0, 0, 1}}};
		p.x = (const char *)a->x + done * (int64_t)hz_dtype_size(a->x_dtype);
	}
	if (done < total)
		HZ_CHECK(launch_ranges(ctx, &dims, a->x_dtype, p));
	return hzi_cuda_launch(ctx, "choose_qparams", HZI_KERNEL_range_params, &launch, &params,
			       sizeof(params));
}
