/*
 * minmax.c - launchers of choose_qparams: minima and maxima, then scales and zero points
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#include <config.h>

#include "gpu/quantize/launch.h"

/* Whether rows along i consist of aligned 16-byte vectors */
static bool is_vectorized(const struct hzi_quantize_dim *i, const struct hzi_quantize_dims *outer,
			  int64_t last, const void *x, int64_t vector)
{
	if (i->x != 1 || i->size % vector || last % vector || (uintptr_t)x % 16)
		return false;
	for (int d = 0; d < outer->n; d++) {
		if (outer->d[d].x % vector)
			return false;
	}
	return true;
}

/* Sets the outer dimensions. Returns their product, or some value above INT32_MAX. */
static int64_t set_outer(struct hzi_minmax_strided *p, const struct hzi_quantize_dims *t)
{
	int64_t count = 1;

	p->ndim = t->n;
	for (int d = 0; d < t->n; d++) {
		p->shape[d] = hzi_make_fastdiv(t->d[d].size);
		p->x_stride[d] = t->d[d].x;
		p->p_stride[d] = t->d[d].p;
		count = count <= INT32_MAX ? count * t->d[d].size : count;
	}
	return count;
}

/*
 * Fills p for rows along i with one parameter each. Returns the number of blocks, or -1 if the
 * launch must be split.
 */
static int64_t make_rows(int64_t want, struct hzi_quantize_dim i, struct hzi_quantize_dims *outer,
			 int dtype, struct hzi_minmax_strided *p)
{
	const int64_t vector = HZI_QUANTIZE_VECTOR(dtype);
	int64_t last = i.size, lanes, loads;
	bool shared = false;

	if (!p->scale && i.size > 2 * HZI_QUANTIZE_SPLIT) {
		hzi_quantize_split_long(&i, &outer->d[outer->n], &last);
		outer->n++;
	}
	/* Rows that share a parameter need the kernel that joins ranges of several rows. */
	for (int d = 0; d < outer->n; d++)
		shared |= outer->d[d].p == 0;
	p->vectors = is_vectorized(&i, outer, last, p->x, vector);
	p->x_i = i.x;
	p->p_i = 0;
	p->size_i = (int32_t)i.size;
	p->last_i = (int32_t)last;
	p->log_i = (int)min_of(5, hzi_log2_up(p->vectors ? i.size / vector : i.size));
	p->tiles = set_outer(p, outer);
	loads = ceil_div(p->vectors ? i.size / vector : i.size, (int64_t)1 << p->log_i);
	p->log_loads = shared || loads > HZI_MINMAX_VECTORS ? -1 : hzi_log2_up(loads);
	lanes = p->tiles << p->log_i;
	return p->tiles > INT32_MAX ? -1 : min_of(ceil_div(lanes, HZI_QUANT_THREADS), 2 * want);
}

/* The same where each element along i has its own parameter */
static int64_t make_columns(int64_t want, const struct hzi_quantize_dim *i,
			    struct hzi_quantize_dims *outer, int dtype,
			    struct hzi_minmax_strided *p)
{
	const int64_t vector = HZI_QUANTIZE_VECTOR(dtype);
	struct hzi_quantize_dim j = {1, 0, 0, 0, 1};
	int64_t tiles_i, count, pass, shares;
	int rows = -1;

	for (int d = 0; d < outer->n; d++) {
		if (outer->d[d].p == 0 && (rows < 0 || outer->d[d].size > outer->d[rows].size))
			rows = d;
	}
	p->vectors = is_vectorized(i, outer, i->size, p->x, vector);
	if (rows >= 0) {
		j = outer->d[rows];
		hzi_quantize_remove_dim(outer, rows);
	}
	p->x_i = i->x;
	p->x_j = j.x;
	p->p_i = i->p;
	p->size_i = p->last_i = (int32_t)i->size;
	p->size_j = (int32_t)j.size;
	p->log_i = (int)min_of(5, hzi_log2_up(p->vectors ? i->size / vector : i->size));
	tiles_i = ceil_div(i->size, (p->vectors ? vector : 1) << p->log_i);
	count = set_outer(p, outer);
	pass = HZI_MINMAX_VECTORS * (HZI_QUANT_THREADS >> p->log_i);
	shares = max_of(1, min_of(ceil_div(j.size, pass), ceil_div(want, tiles_i)));
	p->share = (int32_t)round_up(ceil_div(j.size, shares), pass);
	shares = ceil_div(j.size, p->share);
	p->tiles_i = hzi_make_fastdiv(tiles_i);
	p->shares = hzi_make_fastdiv(shares);
	return count > INT32_MAX / (tiles_i * shares) ? -1 : count * tiles_i * shares;
}

#define CLUSTER_MAX 8
#define CLUSTER_SM_BLOCKS 2	/* resident blocks per SM, for one wave */
#define CLUSTER_LANES_LOG2 3	/* log2 of the lanes that read 128 contiguous bytes */
#define CLUSTER_SHARE 8192	/* largest share of a block if blocks are few */

static int64_t cluster_blocks(const struct hz_context *ctx)
{
	return CLUSTER_SM_BLOCKS * (int64_t)hzi_cuda_device(ctx)->sms;
}

/*
 * Fills c->cluster for one launch, with one parameter for each element along i and at most one
 * reduced dimension j: the blocks of a cluster share the rows of a tile of columns. A tile is 128
 * bytes wide, or wider to limit the number of blocks. Returns NULL, or why the route does not
 * support the call.
 */
static const char *make_cluster(const struct hz_context *ctx, const struct hzi_minmax_call *c)
{
	struct hzi_minmax_strided *const p = &c->cluster->p;
	struct hzi_launch *const launch = &c->cluster->launch;
	const struct hzi_choose_qparams_args *a = c->a;
	const int64_t vector = HZI_QUANTIZE_VECTOR(a->x_dtype), want = cluster_blocks(ctx);
	const int x_dim = hzi_quantize_min_stride_dim(&c->dims, false);
	const struct hzi_quantize_dim i = c->dims.d[x_dim];
	struct hzi_quantize_dim j = {1, 0, 0, 0, 1};
	struct hzi_quantize_dims outer = c->dims;
	int64_t lanes, tiles, count, shares, pass;
	int rows = 0;

	if (!i.p)
		return "floats of a parameter are next to each other";
	for (int d = 0; d < outer.n; d++) {
		if (outer.d[d].size > HZI_QUANTIZE_DIM_MAX)
			return "a dimension exceeds 2^30";
	}
	hzi_quantize_remove_dim(&outer, x_dim);
	*p = (struct hzi_minmax_strided){.x = a->x, .scale = a->scale, .zero = a->zero,
				      .q_dtype = a->q_dtype, .flags = a->flags};
	p->vectors = is_vectorized(&i, &outer, i.size, p->x, vector);
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
	count = set_outer(p, &outer);
	lanes = p->vectors ? i.size / vector : i.size;
	p->log_i = (int)min_of(p->vectors ? CLUSTER_LANES_LOG2 : 5, hzi_log2_up(lanes));
	while (p->log_i < min_of(5, hzi_log2_up(lanes)) && lanes >> p->log_i > want / count)
		p->log_i++;
	tiles = ceil_div(lanes, (int64_t)1 << p->log_i);
	if (count > INT32_MAX / CLUSTER_MAX / tiles)
		return "there are too many parameters";
	shares = max_of(1, min_of(CLUSTER_MAX, want / (tiles * count)));
	pass = HZI_MINMAX_VECTORS * (HZI_MINMAX_CLUSTER_THREADS >> p->log_i);
	shares = min_of(shares, ceil_div(j.size, pass));
	p->share = (int32_t)ceil_div(j.size, shares);
	c->cluster->wins =
		(p->vectors && 4 * count * tiles * shares >= want) ||
		(int64_t)p->share << p->log_i <= CLUSTER_SHARE;
	p->tiles_i = hzi_make_fastdiv(tiles);
	p->shares = hzi_make_fastdiv(shares);
	*launch = (struct hzi_launch){.grid = {(unsigned)(count * tiles * shares)},
				      .block = {HZI_MINMAX_CLUSTER_THREADS},
				      .cluster = (unsigned)shares};
	if (launch->grid[0] * CLUSTER_SM_BLOCKS <= want)
		launch->block[0] *= 2;
	return NULL;
}

/* ---- Routes with one launch ------------------------------------------------------------------ */

static const char *size_reason(const struct hzi_quantize_map *map)
{
	if (map->params <= 1)
		return "there is one parameter";
	return hzi_quantize_elements(map) ? NULL : "x is empty";
}

const char *hzi_cuda_choose_qparams_cluster_unsupported(const struct hz_context *ctx,
							const void *args)
{
	const struct hzi_minmax_call *c = args;
	const char *why = size_reason(&c->a->map);

	return why ? why : make_cluster(ctx, c);
}

int hzi_cuda_choose_qparams_cluster(struct hz_context *ctx, const void *args)
{
	const struct hzi_minmax_call *c = args;

	return hzi_cuda_launch(ctx, "choose_qparams",
			       hzi_quantize_kernel(HZI_KERNEL_quantize_minmax_cluster_f32,
						   c->a->x_dtype),
			       &c->cluster->launch, &c->cluster->p, sizeof(c->cluster->p));
}

/* Contiguous groups of 2^n vectors of 16 bytes, with contiguous parameters */
const char *hzi_cuda_choose_qparams_groups_unsupported(const struct hz_context *ctx,
						       const void *args)
{
	const struct hzi_choose_qparams_args *a = ((const struct hzi_minmax_call *)args)->a;
	const struct hzi_quantize_map *map = &a->map;
	const int64_t vector = HZI_QUANTIZE_VECTOR(a->x_dtype), group = map->group / vector;
	const int log_group = hzi_log2_up(group);
	const char *why = size_reason(map);

	(void)ctx;
	if (why)
		return why;
	if (map->group % vector || group != (int64_t)1 << log_group ||
	    log_group < HZI_MINMAX_GROUP_LOG2_MIN || log_group > HZI_MINMAX_GROUP_LOG2_MAX)
		return "groups are not of 2^2 to 2^8 pieces of 16 bytes";
	if ((uintptr_t)a->x % 16 || map->x_step != 1 ||
	    !hzi_quantize_is_contiguous(map, map->x_stride, map->n))
		return "x is not contiguous and 16-byte aligned";
	if (!hzi_quantize_is_contiguous(map, map->p_stride, map->n / map->group))
		return "parameters do not follow the order of the groups";
	return hzi_quantize_elements(map) / vector / (HZI_QUANT_THREADS * HZI_MINMAX_VECTORS) >=
			       INT32_MAX
		       ? "there are too many elements" : NULL;
}

int hzi_cuda_choose_qparams_groups(struct hz_context *ctx, const void *args)
{
	const struct hzi_choose_qparams_args *a = ((const struct hzi_minmax_call *)args)->a;
	const int64_t vector = HZI_QUANTIZE_VECTOR(a->x_dtype);
	const struct hzi_minmax_groups p = {
		.x = a->x, .scale = a->scale, .zero = a->zero,
		.vectors = hzi_quantize_elements(&a->map) / vector,
		.log_group = hzi_log2_up(a->map.group / vector), .q_dtype = a->q_dtype,
		.flags = a->flags,
	};
	const struct hzi_launch launch = {
		.grid = {(unsigned)ceil_div(p.vectors, HZI_QUANT_THREADS * HZI_MINMAX_VECTORS)},
		.block = {HZI_QUANT_THREADS}};

	return hzi_cuda_launch(ctx, "choose_qparams",
			       hzi_quantize_kernel(HZI_KERNEL_quantize_minmax_groups_f32,
						   a->x_dtype), &launch, &p,
			       sizeof(p));
}

/* ---- Rows and columns ------------------------------------------------------------------------ */

static int launch_minmax(struct hz_context *ctx, const struct hzi_quantize_dims *dims, int dtype,
			 struct hzi_minmax_strided p)
{
	const int64_t want = 8 * (int64_t)hzi_cuda_device(ctx)->sms;
	const int x_dim = hzi_quantize_min_stride_dim(dims, false);
	const int longest = hzi_quantize_longest_dim(dims);
	struct hzi_launch launch = {.block = {HZI_QUANT_THREADS}};
	struct hzi_quantize_dims t = *dims;
	int64_t blocks = -1;

	hzi_quantize_remove_dim(&t, x_dim);
	if (dims->d[longest].size <= HZI_QUANTIZE_DIM_MAX)
		blocks = dims->d[x_dim].p ? make_columns(want, &dims->d[x_dim], &t, dtype, &p)
					  : make_rows(want, dims->d[x_dim], &t, dtype, &p);
	if (blocks < 0) {
		/* Splits the longest dimension into two launches. */
		struct hzi_quantize_dims part = *dims;
		struct hzi_quantize_dim *d = &part.d[longest];

		d->size /= 2;
		HZ_CHECK(launch_minmax(ctx, &part, dtype, p));
		p.x = (const char *)p.x + d->size * d->x * (int64_t)hz_dtype_size(dtype);
		p.range += 2 * d->size * d->p;
		d->size = dims->d[longest].size - d->size;
		return launch_minmax(ctx, &part, dtype, p);
	}
	launch.grid[0] = (unsigned)blocks;
	return hzi_cuda_launch(ctx, "choose_qparams",
			       hzi_quantize_kernel(p.p_i ? HZI_KERNEL_quantize_minmax_columns_f32
						   : HZI_KERNEL_quantize_minmax_rows_f32, dtype),
			       &launch, &p, sizeof(p));
}

/* One launch, where each parameter covers one row of contiguous floats */
const char *hzi_cuda_choose_qparams_rows_unsupported(const struct hz_context *ctx, const void *args)
{
	const struct hzi_minmax_call *c = args;
	const struct hzi_quantize_dims *t = &c->dims;
	const int x_dim = hzi_quantize_min_stride_dim(t, false);
	const char *why = size_reason(&c->a->map);
	int64_t rows = 1;

	(void)ctx;
	if (why)
		return why;
	for (int d = 0; d < t->n; d++) {
		if ((t->d[d].p == 0) != (d == x_dim))
			return "a parameter is not of one row";
		if (t->d[d].size > HZI_QUANTIZE_DIM_MAX)
			return "a dimension exceeds 2^30";
		if (d != x_dim && rows <= INT32_MAX)
			rows *= t->d[d].size;
	}
	return rows > INT32_MAX ? "there are too many rows" : NULL;
}

#define ROW_ELEMENTS 16384	/* longest row that one warp reduces, unless there are many rows */
#define ROWS_MANY 4096		/* many rows */

bool hzi_cuda_choose_qparams_rows_wins(const struct hzi_minmax_call *c)
{
	const int64_t row = c->dims.d[hzi_quantize_min_stride_dim(&c->dims, false)].size;

	return row <= ROW_ELEMENTS || hzi_quantize_elements(&c->a->map) / row >= ROWS_MANY;
}

int hzi_cuda_choose_qparams_rows(struct hz_context *ctx, const void *args)
{
	const struct hzi_minmax_call *c = args;
	const struct hzi_choose_qparams_args *a = c->a;

	return launch_minmax(ctx, &c->dims, a->x_dtype,
			     (struct hzi_minmax_strided){
				     .x = a->x, .range = ctx->workspace, .scale = a->scale,
				     .zero = a->zero, .q_dtype = a->q_dtype,
				     .flags = a->flags});
}

/* ---- Two passes ------------------------------------------------------------------------------ */

/* Reduces contiguous floats with one parameter. *done: elements covered, which are whole vectors */
static int launch_contiguous(struct hz_context *ctx, const struct hzi_choose_qparams_args *a,
			     int64_t *done)
{
	const struct hzi_quantize_map *map = &a->map;
	const int64_t vector = HZI_QUANTIZE_VECTOR(a->x_dtype);
	const int64_t vectors = hzi_quantize_elements(map) / vector;
	const int64_t want = 16 * (int64_t)hzi_cuda_device(ctx)->sms;
	const int64_t pass = HZI_QUANT_THREADS * HZI_MINMAX_VECTORS;
	const struct hzi_minmax_contiguous p = {
		.x = a->x, .range = ctx->workspace, .vectors = vectors,
		.share = max_of(1, ceil_div(vectors, want * pass)) * pass,
	};
	const struct hzi_launch launch = {.grid = {(unsigned)max_of(1, ceil_div(vectors, p.share))},
					  .block = {HZI_QUANT_THREADS}};

	*done = 0;
	if (map->params != 1 || (uintptr_t)a->x % 16 || (map->x_step != 1 && map->n > 1) ||
	    !hzi_quantize_is_contiguous(map, map->x_stride, map->n))
		return HZ_OK;
	*done = vectors * vector;
	return hzi_cuda_launch(ctx, "choose_qparams",
			       hzi_quantize_kernel(HZI_KERNEL_quantize_minmax_contiguous_f32,
						   a->x_dtype), &launch,
			       &p, sizeof(p));
}

/*
 * The ranges go to the workspace by atomic maximum; the last launch computes the parameters from
 * them.
 */
int hzi_cuda_choose_qparams_two_pass(struct hz_context *ctx, const void *args)
{
	const struct hzi_minmax_call *c = args;
	const struct hzi_choose_qparams_args *a = c->a;
	const int64_t total = hzi_quantize_elements(&a->map);
	const struct hzi_minmax_qparams params = {
		.range = ctx->workspace, .scale = a->scale, .zero = a->zero, .count = a->map.params,
		.q_dtype = a->q_dtype, .flags = a->flags,
	};
	struct hzi_minmax_strided p = {.x = a->x, .range = ctx->workspace, .q_dtype = a->q_dtype,
				    .flags = a->flags};
	struct hzi_quantize_dims dims = c->dims;
	const struct hzi_launch launch = {
		.grid = {(unsigned)ceil_div(params.count, HZI_QUANT_THREADS)},
		.block = {HZI_QUANT_THREADS},
	};
	int64_t done = 0;

	HZ_CHECK(hzi_cuda_fill(ctx, ctx->workspace, 0, (size_t)params.count * 8));
	if (total)
		HZ_CHECK(launch_contiguous(ctx, a, &done));
	if (done) {
		dims = (struct hzi_quantize_dims){.n = 1, .d = {{total - done, 1, 0, 0, 1}}};
		p.x = (const char *)a->x + done * (int64_t)hz_dtype_size(a->x_dtype);
	}
	if (done < total)
		HZ_CHECK(launch_minmax(ctx, &dims, a->x_dtype, p));
	return hzi_cuda_launch(ctx, "choose_qparams", HZI_KERNEL_quantize_minmax_qparams, &launch,
			       &params, sizeof(params));
}
