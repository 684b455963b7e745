/*
 * mhc.c - mixed streams, Sinkhorn's iteration, chains of layers, diagnostics: loops and threads
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#include <config.h>

#include <assert.h>
#include <math.h>
#include <string.h>

#include "cpu/mhc/mhc.h"
#include "cpu/core/sizes.h"
#include "lib/quat_layer/step_math.h"

/* ---- Coefficients and tiles ------------------------------------------------------------------ */

const float *hzi_mhc_load_coefs(const struct hzi_mhc_coef *a, int64_t group, int rows, int columns,
				float *to)
{
	const float *from;

	if (!a->data)
		return NULL;
	from = a->data + group * a->group;
	for (int i = 0; i < rows; i++) {
		for (int j = 0; j < columns; j++)
			to[i * columns + j] = from[i * a->row + j * a->column];
	}
	return to;
}

void hzi_mhc_store_coefs(const struct hzi_mhc_coef *a, int64_t group, int rows, int columns,
			 const float *from)
{
	float *const to = a->data ? a->data + group * a->group : NULL;

	for (int i = 0; to && i < rows; i++) {
		for (int j = 0; j < columns; j++)
			to[i * a->row + j * a->column] = from[i * columns + j];
	}
}

struct hzi_mhc_tile hzi_mhc_tile(const struct hzi_mhc_array *a, int64_t size, int64_t t, int64_t c,
				 int n, int64_t count, void *buffer, bool read)
{
	struct hzi_mhc_tile tile = {hzi_mhc_at(a, size, t, c), a->stream};
	const int64_t padded = hzi_mhc_padded(count);

	if (hzi_mhc_in_place(a))
		return tile;
	if (read && n > 1 && a->stream == 1) {
		hzi_cpu_transpose(buffer, padded, tile.p, a->channel, count, n, size);
		return (struct hzi_mhc_tile){buffer, padded};
	}
	for (int i = 0; read && i < n; i++)
		copy_strided((char *)buffer + i * padded * size, 1,
			     (char *)tile.p + i * a->stream * size, a->channel, count, size);
	return (struct hzi_mhc_tile){buffer, padded};
}

void hzi_mhc_store_tile(const struct hzi_mhc_array *a, int64_t size, int64_t t, int64_t c, int n,
			int64_t count, const struct hzi_mhc_tile *tile)
{
	char *const to = hzi_mhc_at(a, size, t, c);

	if (!tile->p || hzi_mhc_in_place(a))
		return;
	if (n > 1 && a->stream == 1) {
		hzi_cpu_transpose(to, a->channel, tile->p, tile->stream, n, count, size);
		return;
	}
	for (int i = 0; i < n; i++)
		copy_strided(to + i * a->stream * size, a->channel,
			     (char *)tile->p + i * tile->stream * size, 1, count, size);
}

bool hzi_mhc_nontemporal(const struct hz_context *ctx, const struct hzi_mhc_array *a,
			 const struct hzi_mhc_shape *s, int rows)
{
	const int64_t size = hzi_mhc_dtype_bytes(s->dtype);

	return a->data && a->channel == 1 &&
	       s->tokens * s->channels * rows * size > hzi_cache_share(ctx) / 4 * 3 &&
	       (uintptr_t)a->data % 64 == 0 && a->token * size % 64 == 0 &&
	       (rows == 1 || a->stream * size % 64 == 0);
}

/* ---- Streams --------------------------------------------------------------------------------- */

/* The tile to prefetch: the next one of the token, or the first of the next token */
static const void *tile_ahead(const struct hzi_mhc_array *a, const struct hzi_mhc_shape *s,
			      int64_t size, int64_t t, int64_t c, int64_t width, bool next)
{
	if (!a->data || a->channel != 1)
		return NULL;
	if (c + width < s->channels)
		return hzi_mhc_at(a, size, t, c + width);
	return next ? hzi_mhc_at(a, size, t + 1, 0) : NULL;
}

void hzi_mhc_mix_token(const struct hz_context *ctx, const struct hzi_mhc_streams_args *a,
		       int64_t t,
		       const struct hzi_mhc_token_coefs *coef, float *u_floats, bool stream_u,
		       bool stream_y, bool next)
{
	const struct hzi_mhc_shape *const s = &a->s;
	const int64_t size = hzi_mhc_dtype_bytes(s->dtype);
	const bool in_place = hzi_mhc_in_place(&a->x) && hzi_mhc_in_place(&a->f) &&
			      hzi_mhc_in_place(&a->u) && hzi_mhc_in_place(&a->y);
	const int64_t width = in_place ? HZI_MHC_TILE_CHANNELS : HZI_MHC_GATHER_CHANNELS;
	float x[HZI_MHC_STREAMS * HZI_MHC_GATHER_CHANNELS], f[HZI_MHC_GATHER_CHANNELS],
		u[HZI_MHC_GATHER_CHANNELS];

	for (int64_t c = 0; c < s->channels; c += width) {
		const int64_t count = hzi_mhc_min(width, s->channels - c);
		const struct hzi_mhc_tile tx =
			hzi_mhc_tile(&a->x, size, t, c, s->n, count, x, true);
		const struct hzi_mhc_tile tf = hzi_mhc_tile(&a->f, size, t, c, 1, count, f, true);
		const struct hzi_mhc_tile tu = hzi_mhc_tile(&a->u, size, t, c, 1, count, u, false);
		/* y may be x: each channel is read before it is written. */
		const struct hzi_mhc_tile ty =
			hzi_mhc_tile(&a->y, size, t, c, s->n, count, x, false);
		const struct hzi_mhc_row row = {
			.x = tx.p, .f = tf.p, .u = tu.p, .y = ty.p,
			.ahead = tile_ahead(&a->x, s, size, t, c, width, next),
			.f_ahead = tile_ahead(&a->f, s, size, t, c, width, next),
			.u_floats = u_floats ? u_floats + c : NULL,
			.x_stream = tx.stream, .y_stream = ty.stream, .count = count,
			.p = u_floats || a->u.data ? coef->p : NULL, .q = coef->q, .a = coef->a,
			.bias = a->f.data && a->bias ? a->bias + c : NULL,
			.n = s->n, .dtype = s->dtype,
			.stream_u = stream_u, .stream_y = stream_y,
			.end = !next && c + count == s->channels,
		};

		hzi_mhc_kern[ctx->level].row(&row);
		hzi_mhc_store_tile(&a->u, size, t, c, 1, count, &tu);
		hzi_mhc_store_tile(&a->y, size, t, c, s->n, count, &ty);
	}
}

struct streams_job {
	const struct hz_context *ctx;
	const struct hzi_mhc_streams_args *a;
	bool stream_u, stream_y;
};

static void streams_units(void *data, int thread, int64_t begin, int64_t end)
{
	const struct streams_job *const job = data;
	const struct hzi_mhc_streams_args *const a = job->a;
	const int n = a->s.n;
	const int64_t length = hzi_mhc_group_tokens(&a->s);
	float p[HZI_MHC_STREAMS], q[HZI_MHC_STREAMS], A[HZI_MHC_STREAMS * HZI_MHC_STREAMS];
	struct hzi_mhc_token_coefs coef = {0};

	(void)thread;
	assert(begin == end || length > 0);
	for (int64_t t = begin; t < end; t++) {
		if (t == begin || t % length == 0) {
			coef.p = hzi_mhc_load_coefs(&a->p, t / length, n, 1, p);
			coef.q = hzi_mhc_load_coefs(&a->q, t / length, n, 1, q);
			coef.a = hzi_mhc_load_coefs(&a->a, t / length, n, n, A);
		}
		hzi_mhc_mix_token(job->ctx, a, t, &coef, NULL, job->stream_u, job->stream_y, t +
				  1 < end);
	}
}

HZI_NO_WORKSPACE(cpu, mhc_streams)

/* Bytes that a call reads and writes, for the number of threads */
static int64_t bytes_of(const struct hzi_mhc_shape *s, int rows)
{
	return s->tokens * s->channels * rows * hzi_mhc_dtype_bytes(s->dtype);
}

int hzi_cpu_mhc_streams(struct hz_context *ctx, const struct hzi_mhc_streams_args *a)
{
	struct streams_job job = {
		.ctx = ctx, .a = a,
		.stream_u = hzi_mhc_nontemporal(ctx, &a->u, &a->s, 1),
		.stream_y = hzi_mhc_nontemporal(ctx, &a->y, &a->s, a->s.n) &&
			a->y.data != a->x.data,
	};

	if (a->s.tokens > 0)
		hzi_parallel(ctx, hzi_threads(ctx, bytes_of(&a->s, a->s.n + 1)), streams_units,
			     &job, a->s.tokens);
	return HZ_OK;
}

/* ---- Gradients of streams -------------------------------------------------------------------- */

/* hzi_mhc_token_bwd() for at most HZI_MHC_GATHER_CHANNELS channels if an array is not in place */
static void token_bwd_tile(const struct hz_context *ctx, const struct hzi_mhc_token_bwd *u,
			   int64_t t, int64_t c, int64_t count)
{
	const struct hzi_mhc_streams_bwd_args *const a = u->a;
	const struct hzi_mhc_shape *const s = &a->s;
	const int64_t size = hzi_mhc_dtype_bytes(s->dtype);
	float x[HZI_MHC_STREAMS * HZI_MHC_GATHER_CHANNELS],
		dy[HZI_MHC_STREAMS * HZI_MHC_GATHER_CHANNELS];
	float dx[HZI_MHC_STREAMS * HZI_MHC_GATHER_CHANNELS];
	float f[HZI_MHC_GATHER_CHANNELS], du[HZI_MHC_GATHER_CHANNELS], df[HZI_MHC_GATHER_CHANNELS];
	const bool sums = u->sums, all = a->dx.data;
	const struct hzi_mhc_tile tx =
		hzi_mhc_tile(&a->x, size, t, c, s->n, count, x, sums || u->factor != 0);
	const struct hzi_mhc_tile tf = hzi_mhc_tile(&a->f, size, t, c, 1, count, f, sums);
	const struct hzi_mhc_tile tu = hzi_mhc_tile(&a->du, size, t, c, 1, count, du, true);
	const struct hzi_mhc_tile ty = hzi_mhc_tile(&a->dy, size, t, c, s->n, count, dy, true);
	const struct hzi_mhc_tile to =
		hzi_mhc_tile(&a->dx, size, t, c, s->n, count, dx, a->accumulate);
	const struct hzi_mhc_tile tg = hzi_mhc_tile(&a->df, size, t, c, 1, count, df, false);
	const bool use_u = u->du_floats || tu.p;
	const struct hzi_mhc_row_bwd row = {
		.x = tx.p, .f = tf.p, .du = tu.p, .dy = ty.p, .dx = to.p, .df = tg.p,
		.du_floats = u->du_floats, .add = u->add, .add_stream = u->add_stream,
		.factor = u->factor,
		.x_stream = tx.stream, .dy_stream = ty.stream, .dx_stream = to.stream,
		.count = count,
		.p = use_u && all ? u->coef.p : NULL, .q = u->coef.q, .a = u->coef.a,
		.bias = a->bias ? a->bias + c : NULL,
		.dp = sums && a->dp.data && use_u && tx.p ? u->sums->dp : NULL,
		.dq = sums && a->dq.data && ty.p ? u->sums->dq : NULL,
		.da = sums && a->da.data && ty.p && tx.p ? u->sums->da : NULL,
		.dbias = u->dbias,
		.x_ahead = u->last ? NULL : tile_ahead(&a->x, s, size, t, c, count, u->next),
		.dy_ahead = u->last ? NULL : tile_ahead(&a->dy, s, size, t, c, count, u->next),
		.n = s->n, .dtype = s->dtype, .accumulate = a->accumulate,
		.stream_dx = u->stream_dx, .stream_df = u->stream_df,
		.end = !u->next && c + count == s->channels,
	};

	hzi_mhc_kern_of(ctx->level, row.n)->row_bwd(&row);
	hzi_mhc_store_tile(&a->dx, size, t, c, s->n, count, &to);
	hzi_mhc_store_tile(&a->df, size, t, c, 1, count, &tg);
}

void hzi_mhc_token_bwd(const struct hz_context *ctx, const struct hzi_mhc_token_bwd *u, int64_t t,
		       int64_t c, int64_t count)
{
	const struct hzi_mhc_streams_bwd_args *const a = u->a;
	struct hzi_mhc_token_bwd part;

	if (hzi_mhc_in_place(&a->x) && hzi_mhc_in_place(&a->f) && hzi_mhc_in_place(&a->du) &&
	    hzi_mhc_in_place(&a->dy) && hzi_mhc_in_place(&a->dx) && hzi_mhc_in_place(&a->df)) {
		token_bwd_tile(ctx, u, t, c, count);
		return;
	}
	part = *u;
	/* The sums have the same bits: each lane adds in the order of channels. */
	for (int64_t e = 0; e < count; e += HZI_MHC_GATHER_CHANNELS) {
		part.dbias = u->dbias ? u->dbias + e : NULL;
		part.du_floats = u->du_floats ? u->du_floats + e : NULL;
		part.add = u->add ? u->add + e : NULL;
		token_bwd_tile(ctx, &part, t, c + e,
			       hzi_mhc_min(HZI_MHC_GATHER_CHANNELS, count - e));
	}
}

void hzi_mhc_norm_bwd(const struct hz_context *ctx, const struct hzi_mhc_streams_bwd_args *a,
		      const struct hzi_mhc_bwd_extra *b, int64_t t, const float *p, float *u,
		      float *g, float *dnorm)
{
	const struct hzi_mhc_streams_args mix = {.s = a->s, .x = a->x};
	const int64_t channels = a->s.channels, size = hzi_mhc_dtype_bytes(a->s.dtype);
	double squares = 0, dot = 0;
	float r, back;
	bool far;

	hzi_mhc_mix_token(ctx, &mix, t, &(struct hzi_mhc_token_coefs){.p = p}, u, false, false,
			  false);
	for (int64_t c = 0; c < channels; c += HZI_MHC_TILE_CHANNELS) {
		const int64_t count = hzi_mhc_min(HZI_MHC_TILE_CHANNELS, channels - c);
		float buffer[HZI_MHC_TILE_CHANNELS];
		const struct hzi_mhc_tile tile =
			hzi_mhc_tile(&a->du, size, t, c, 1, count, buffer, true);

		hzi_mhc_kern[ctx->level].widen(tile.p, a->s.dtype, count, g + c, NULL, NULL);
	}
	for (int64_t c = 0; c < channels; c++) {
		squares += (double)u[c] * (double)u[c];
		dot += (double)g[c] * (double)b->norm[c] * (double)u[c];
	}
	r = hzi_mhc_inverse_root(squares, channels, b->norm_eps);
	/* u back as (u r) back: r^2 may leave the range of f32. */
	far = r != 0 && (r < 0x1p-40f || r > 0x1p40f);
	back = (float)(dot * (double)r * (far ? 1 : (double)r) / (double)channels);
	for (int64_t c = 0; c < channels; c++) {
		const float v = far ? u[c] * r : u[c];

		if (dnorm)
			dnorm[c] += far ? g[c] * v : g[c] * u[c] * r;
		g[c] = r * (g[c] * b->norm[c] - v * back);
	}
}

/*
 * A unit is a number of tokens: whole groups if these are short, else a piece of one. Units do not
 * depend on the number of threads, and their sums are added in order, in f64: so results do not
 * depend on it either.
 */
struct split {
	int64_t length, each;		/* tokens of a group, of a unit */
	int64_t pieces;			/* units of a group; 0: units are whole groups */
	int64_t units;
};

#define UNIT_LEAST 16
#define UNITS_MOST 256

static struct split split_of(const struct hzi_mhc_shape *s)
{
	struct split p = {.length = hzi_mhc_group_tokens(s)};
	const int64_t each = hzi_mhc_ceil(s->tokens, UNITS_MOST);

	p.each = each > UNIT_LEAST ? each : UNIT_LEAST;
	if (p.length == 0)
		return p;
	if (p.length <= p.each) {
		p.each = p.each / p.length * p.length;
		p.units = hzi_mhc_ceil(s->tokens, p.each);
	} else {
		p.pieces = hzi_mhc_ceil(p.length, p.each);
		p.units = p.pieces * s->groups;
	}
	return p;
}

struct bwd_job {
	const struct hz_context *ctx;
	const struct hzi_mhc_streams_bwd_args *a;
	struct split split;
	const struct hzi_mhc_bwd_extra *interleave_upper;
	bool stream_dx, stream_df;
	double *sums;			/* [units][n + n + n n], if groups are split */
	float *dbias, *dnorm;		/* [units][C] */
};

static int sum_count(int n)
{
	return 2 * n + n * n;
}

static bool wants_sums(const struct hzi_mhc_streams_bwd_args *a)
{
	return a->dp.data || a->dq.data || a->da.data;
}

size_t hzi_mhc_mix_bwd_bytes(const struct hzi_mhc_streams_bwd_args *a,
			     const struct hzi_mhc_bwd_extra *b)
{
	const struct split split = split_of(&a->s);
	const size_t row = (size_t)split.units * (size_t)a->s.channels * sizeof(float);
	size_t bytes = 0;

	if (wants_sums(a) && split.pieces > 1)
		bytes += (size_t)split.units * (size_t)sum_count(a->s.n) * sizeof(double);
	return bytes + (a->dbias ? row : 0) + (b && b->dnorm ? row : 0);
}

/* Stores sum[] as the gradients of a group's coefficients. */
static void store_sums(const struct hzi_mhc_streams_bwd_args *a, int64_t group, const double *sum)
{
	const int n = a->s.n;
	float out[2 * HZI_MHC_STREAMS + HZI_MHC_STREAMS * HZI_MHC_STREAMS];

	for (int i = 0; i < sum_count(n); i++)
		out[i] = (float)sum[i];
	hzi_mhc_store_coefs(&a->dp, group, n, 1, out);
	hzi_mhc_store_coefs(&a->dq, group, n, 1, out + n);
	hzi_mhc_store_coefs(&a->da, group, n, n, out + 2 * n);
}

static void bwd_unit(const struct bwd_job *job, int thread, int64_t unit)
{
	const struct hzi_mhc_streams_bwd_args *const a = job->a;
	const struct hzi_mhc_bwd_extra *const b = job->interleave_upper;
	const struct hzi_mhc_kern *const kern = hzi_mhc_kern + job->ctx->level;
	const struct split *const split = &job->split;
	const int n = a->s.n, count = sum_count(n);
	const bool sums = wants_sums(a), part = split->pieces > 0;
	const int64_t group = part ? unit / split->pieces : 0;
	const int64_t begin = part ? group * split->length + unit % split->pieces * split->each :
				     unit * split->each;
	const int64_t end = hzi_mhc_min(begin + split->each,
					part ? (group + 1) * split->length : a->s.tokens);
	float p[HZI_MHC_STREAMS], q[HZI_MHC_STREAMS], A[HZI_MHC_STREAMS * HZI_MHC_STREAMS];
	double own[2 * HZI_MHC_STREAMS + HZI_MHC_STREAMS * HZI_MHC_STREAMS] = {0};
	float *const dbias = a->dbias ? job->dbias + unit * a->s.channels : NULL;
	float *const dnorm = b && b->dnorm ? job->dnorm + unit * a->s.channels : NULL;
	float *const scratch = b && b->norm && a->du.data ?
				    b->scratch + 2 * thread * hzi_mhc_padded(a->s.channels) : NULL;
	const size_t row = (size_t)n * HZI_MHC_BATCH * sizeof(float);
	struct hzi_mhc_sums lanes;
	struct hzi_mhc_token_bwd u = {
		.a = a, .sums = sums ? &lanes : NULL,
		.stream_dx = job->stream_dx, .stream_df = job->stream_df,
		.dbias = dbias, .du_floats = scratch,
	};

	if (dbias)
		memset(dbias, 0, (size_t)a->s.channels * sizeof(float));
	if (dnorm)
		memset(dnorm, 0, (size_t)a->s.channels * sizeof(float));
	for (int64_t t = begin; t < end; t++) {
		const int64_t g = t / split->length;

		if (t == begin || t % split->length == 0) {
			u.coef.p = hzi_mhc_load_coefs(&a->p, g, n, 1, p);
			u.coef.q = hzi_mhc_load_coefs(&a->q, g, n, 1, q);
			u.coef.a = hzi_mhc_load_coefs(&a->a, g, n, n, A);
		}
		if (sums) {
			memset(lanes.dp, 0, row);
			memset(lanes.dq, 0, row);
			memset(lanes.da, 0, row * (size_t)n);
		}
		u.next = t + 1 < end;
		if (scratch)
			hzi_mhc_norm_bwd(job->ctx, a, b, t, u.coef.p,
					 scratch + hzi_mhc_padded(a->s.channels), scratch, dnorm);
		if (b && b->add) {
			u.add = b->add + g * n * b->add_stream;
			u.add_stream = b->add_stream;
		}
		hzi_mhc_token_bwd(job->ctx, &u, t, 0, a->s.channels);
		if (sums) {
			float token[2 * HZI_MHC_STREAMS + HZI_MHC_STREAMS * HZI_MHC_STREAMS] = {0};

			if (a->dp.data)
				kern->sum_lanes(lanes.dp, n, token);
			if (a->dq.data)
				kern->sum_lanes(lanes.dq, n, token + n);
			if (a->da.data)
				kern->sum_lanes(lanes.da, n * n, token + 2 * n);
			for (int i = 0; i < count; i++)
				own[i] += (double)token[i];
		}
		if (sums && (t + 1 == end || (t + 1) % split->length == 0)) {
			if (split->pieces > 1)
				memcpy(job->sums + unit * count, own, (size_t)count * sizeof(*own));
			else
				store_sums(a, g, own);
			memset(own, 0, sizeof(own));
		}
	}
}

static void bwd_units(void *data, int thread, int64_t begin, int64_t end)
{
	for (int64_t u = begin; u < end; u++)
		bwd_unit(data, thread, u);
}

/* The sum over units of column c */
static float sum_units(const struct bwd_job *job, const float *from, int64_t c)
{
	double sum = 0;

	for (int64_t u = 0; u < job->split.units; u++)
		sum += (double)from[u * job->a->s.channels + c];
	return (float)sum;
}

/* dbias and dnorm of channels begin .. end - 1 */
static void channel_units(void *data, int thread, int64_t begin, int64_t end)
{
	const struct bwd_job *const job = data;
	const struct hzi_mhc_bwd_extra *const b = job->interleave_upper;

	(void)thread;
	for (int64_t c = begin; c < end; c++) {
		if (job->a->dbias)
			job->a->dbias[c] = sum_units(job, job->dbias, c) +
					   (job->a->accumulate ? job->a->dbias[c] : 0);
		if (b && b->dnorm)
			b->dnorm[c] = sum_units(job, job->dnorm, c) +
				      (b->accumulate_dnorm ? b->dnorm[c] : 0);
	}
}

void hzi_mhc_mix_bwd(struct hz_context *ctx, const struct hzi_mhc_streams_bwd_args *a,
		     const struct hzi_mhc_bwd_extra *b, void *work)
{
	struct bwd_job job = {
		.ctx = ctx, .a = a, .split = split_of(&a->s), .interleave_upper = b, .sums = work,
		.stream_dx = hzi_mhc_nontemporal(ctx, &a->dx, &a->s, a->s.n) && !a->accumulate &&
			     a->dx.data != a->dy.data,
		.stream_df = hzi_mhc_nontemporal(ctx, &a->df, &a->s, 1),
	};
	const int count = sum_count(a->s.n);
	const bool parts = wants_sums(a) && job.split.pieces > 1;

	if (work) {
		job.dbias = (float *)(job.sums + (parts ? job.split.units * count : 0));
		job.dnorm = job.dbias + (a->dbias ? job.split.units * a->s.channels : 0);
	}
	hzi_parallel(ctx, hzi_threads(ctx, bytes_of(&a->s, 2 * a->s.n + 1)), bwd_units, &job,
		     job.split.units);
	if (parts || (wants_sums(a) && a->s.tokens == 0)) {
		for (int64_t g = 0; g < a->s.groups; g++) {
			double sum[2 * HZI_MHC_STREAMS + HZI_MHC_STREAMS * HZI_MHC_STREAMS] = {0};

			for (int64_t u = 0; u < job.split.pieces; u++) {
				const double *const part =
					job.sums + (g * job.split.pieces + u) * count;

				for (int i = 0; i < count; i++)
					sum[i] += part[i];
			}
			store_sums(a, g, sum);
		}
	}
	if (a->dbias || (b && b->dnorm))
		hzi_parallel(ctx, hzi_threads(ctx, job.split.units * a->s.channels * 4),
			     channel_units, &job, a->s.channels);
}

size_t hzi_cpu_mhc_streams_bwd_workspace(const struct hz_context *ctx,
					 const struct hzi_mhc_streams_bwd_args *a)
{
	(void)ctx;
	return hzi_mhc_mix_bwd_bytes(a, NULL);
}

int hzi_cpu_mhc_streams_bwd(struct hz_context *ctx, const struct hzi_mhc_streams_bwd_args *a)
{
	hzi_mhc_mix_bwd(ctx, a, NULL, ctx->workspace);
	return HZ_OK;
}

/* ---- Sinkhorn -------------------------------------------------------------------------------- */

struct sinkhorn_job {
	const struct hz_context *ctx;
	const struct hzi_mhc_rule *rule;
	struct hzi_mhc_coef in, grad, out;
	int64_t count;
	void (*work)(const struct hzi_mhc_batch *b);
};

/* Contiguous matrices: one matrix [count][n n], which the kernel transposes */
static bool is_contiguous(const struct hzi_mhc_coef *a, int n)
{
	return a->group == n * n && a->row == n && a->column == 1;
}

static void load_matrices(const struct hzi_mhc_kern *kern, const struct hzi_mhc_coef *a, int64_t k,
			  int64_t count, int n, float *to)
{
	if (is_contiguous(a, n)) {
		kern->transpose(a->data + k * n * n, n * n, to, HZI_MHC_BATCH, count, n * n);
		return;
	}
	for (int64_t t = 0; t < count; t++) {
		const float *const from = a->data + (k + t) * a->group;

		for (int i = 0; i < n; i++) {
			for (int j = 0; j < n; j++)
				to[(i * n + j) * HZI_MHC_BATCH + t] =
					from[i * a->row + j * a->column];
		}
	}
}

static void store_matrices(const struct hzi_mhc_kern *kern, const struct hzi_mhc_coef *a, int64_t k,
			   int64_t count, int n, const float *from)
{
	if (is_contiguous(a, n)) {
		kern->transpose(from, HZI_MHC_BATCH, a->data + k * n * n, n * n, n * n, count);
		return;
	}
	for (int64_t t = 0; t < count; t++) {
		float *const to = a->data + (k + t) * a->group;

		for (int i = 0; i < n; i++) {
			for (int j = 0; j < n; j++)
				to[i * a->row + j * a->column] =
					from[(i * n + j) * HZI_MHC_BATCH + t];
		}
	}
}

static void sinkhorn_units(void *data, int thread, int64_t begin, int64_t end)
{
	const struct sinkhorn_job *const job = data;
	const int n = job->rule->n;
	float z[HZI_MHC_STREAMS * HZI_MHC_STREAMS * HZI_MHC_BATCH] = {0};
	float g[HZI_MHC_STREAMS * HZI_MHC_STREAMS * HZI_MHC_BATCH] = {0};
	float out[HZI_MHC_STREAMS * HZI_MHC_STREAMS * HZI_MHC_BATCH];
	struct hzi_mhc_batch b = {.rule = job->rule, .y = z, .da = g, .a = out, .dz = out};
	struct hzi_fp_watch w;

	(void)thread;
	/* Not for each batch: an AMD EPYC (Zen 4) reads MXCSR when earlier arithmetic is done. */
	hzi_fp_silence_begin(&w);
	for (int64_t u = begin; u < end; u++) {
		const int64_t k = u * HZI_MHC_BATCH;

		b.count = (int32_t)hzi_mhc_min(HZI_MHC_BATCH, job->count - k);
		load_matrices(hzi_mhc_kern + job->ctx->level, &job->in, k, b.count, n, z);
		if (job->grad.data)
			load_matrices(hzi_mhc_kern + job->ctx->level, &job->grad, k, b.count, n, g);
		job->work(&b);
		store_matrices(hzi_mhc_kern + job->ctx->level, &job->out, k, b.count, n, out);
	}
	hzi_fp_silence_end(&w);
}

/* worth: bytes of memory traffic that take as long as one matrix */
static int run_sinkhorn(struct hz_context *ctx, struct sinkhorn_job *job, int64_t worth)
{
	hzi_parallel(ctx, hzi_threads(ctx, job->count * worth), sinkhorn_units, job,
		     hzi_mhc_ceil(job->count, HZI_MHC_BATCH));
	return HZ_OK;
}

HZI_NO_WORKSPACE(cpu, mhc_sinkhorn)

int hzi_cpu_mhc_sinkhorn(struct hz_context *ctx, const struct hzi_mhc_sinkhorn_args *a)
{
	struct sinkhorn_job job = {
		.ctx = ctx, .rule = &a->rule, .in = a->m, .out = a->p, .count = a->count,
		.work = hzi_mhc_kern_of(ctx->level, a->rule.n)->sinkhorn,
	};

	return run_sinkhorn(ctx, &job, 2048);
}

HZI_NO_WORKSPACE(cpu, mhc_sinkhorn_bwd)

int hzi_cpu_mhc_sinkhorn_bwd(struct hz_context *ctx, const struct hzi_mhc_sinkhorn_bwd_args *a)
{
	struct sinkhorn_job job = {
		.ctx = ctx, .rule = &a->rule, .in = a->m, .grad = a->dp, .out = a->dm,
		.count = a->count,
		.work = hzi_mhc_kern_of(ctx->level, a->rule.n)->sinkhorn_bwd,
	};

	return run_sinkhorn(ctx, &job, 8192);
}

/* ---- Chains of layers ------------------------------------------------------------------------ */

#define CHAIN_BYTES 4096	/* of the streams of a tile; two tiles are on the stack */

/*
 * All layers of a tile of channels: the streams stay in L1. No layer reads u, which is stored
 * non-temporally. end: the last tile of a thread.
 */
static void chain_tile(const struct hz_context *ctx, const struct hzi_mhc_recompute_args *a,
		       int64_t t, int64_t c, int64_t count, bool end)
{
	const struct hzi_mhc_shape *const s = &a->s;
	const int n = s->n;
	const int64_t size = hzi_mhc_dtype_bytes(s->dtype), length = hzi_mhc_group_tokens(s);
	const int64_t g = length > 0 ? t / length : 0, padded = hzi_mhc_padded(count);
	struct hzi_mhc_shape all = *s;		/* what all layers write, counted in rows of u */
	float x[2][CHAIN_BYTES / 4], f[HZI_MHC_TILE_CHANNELS], u[HZI_MHC_TILE_CHANNELS];
	struct hzi_mhc_tile now = hzi_mhc_tile(&a->x, size, t, c, n, count, x[1], true);

	all.tokens *= a->layers * (n + 1);
	for (int l = 0; l < a->layers; l++) {
		const struct hzi_mhc_layer_args *const layer = &a->layer[l];
		float p[HZI_MHC_STREAMS], q[HZI_MHC_STREAMS], A[HZI_MHC_STREAMS * HZI_MHC_STREAMS];
		const bool last = l + 1 == a->layers && !layer->y.data;
		const struct hzi_mhc_tile tf =
			hzi_mhc_tile(&layer->f, size, t, c, 1, count, f, true);
		const struct hzi_mhc_tile tu =
			hzi_mhc_tile(&layer->u, size, t, c, 1, count, u, false);
		struct hzi_mhc_tile ty = {x[l & 1], padded};
		struct hzi_mhc_row row = {
			.x = now.p, .x_stream = now.stream, .count = count, .u = tu.p,
			.p = tu.p ? hzi_mhc_load_coefs(&layer->p, g, n, 1, p) : NULL,
			.n = n, .dtype = s->dtype,
			.stream_u = hzi_mhc_nontemporal(ctx, &layer->u, &all, 1), .end = end,
		};

		if (!last) {
			if (layer->y.data)
				ty = hzi_mhc_tile(&layer->y, size, t, c, n, count, x[l & 1], false);
			row.f = tf.p;
			row.bias = tf.p && layer->bias ? layer->bias + c : NULL;
			row.q = hzi_mhc_load_coefs(&layer->q, g, n, 1, q);
			row.a = hzi_mhc_load_coefs(&layer->a, g, n, n, A);
			row.y = ty.p;
			row.y_stream = ty.stream;
		}
		hzi_mhc_kern[ctx->level].row(&row);
		hzi_mhc_store_tile(&layer->u, size, t, c, 1, count, &tu);
		if (!last && layer->y.data)
			hzi_mhc_store_tile(&layer->y, size, t, c, n, count, &ty);
		now = ty;
	}
}

struct chain_job {
	const struct hz_context *ctx;
	const struct hzi_mhc_recompute_args *a;
};

static void chain_units(void *data, int thread, int64_t begin, int64_t end)
{
	const struct chain_job *const job = data;
	const struct hzi_mhc_shape *const s = &job->a->s;
	const int64_t most = CHAIN_BYTES / (s->n * hzi_mhc_dtype_bytes(s->dtype)) / 32 * 32;
	const int64_t width = hzi_mhc_min(HZI_MHC_TILE_CHANNELS, most);

	(void)thread;
	for (int64_t t = begin; t < end; t++) {
		for (int64_t c = 0; c < s->channels; c += width)
			chain_tile(job->ctx, job->a, t, c, hzi_mhc_min(width, s->channels - c),
				   t + 1 == end && c + width >= s->channels);
	}
}

HZI_NO_WORKSPACE(cpu, mhc_recompute)

int hzi_cpu_mhc_recompute(struct hz_context *ctx, const struct hzi_mhc_recompute_args *a)
{
	struct chain_job job = {ctx, a};

	hzi_parallel(ctx, hzi_threads(ctx, bytes_of(&a->s, a->s.n + 1) * a->layers), chain_units,
		     &job, a->s.tokens);
	return HZ_OK;
}

/* ---- Weights of 16 bits, or in another order ------------------------------------------------- */

struct widen_job {
	const struct hzi_mhc_kern *kern;
	const struct hzi_mhc_widen_args *a;
};

/* A unit is HZI_MHC_TILE_CHANNELS weights. */
static void widen_units(void *data, int thread, int64_t begin, int64_t end)
{
	const struct widen_job *const job = data;
	const struct hzi_mhc_widen_args *const a = job->a;

	(void)thread;
	for (int64_t u = begin; u < end; u++) {
		const int64_t at = u * HZI_MHC_TILE_CHANNELS;
		const int64_t count = hzi_mhc_min(HZI_MHC_TILE_CHANNELS, a->count - at);
		float buffer[HZI_MHC_TILE_CHANNELS];

		job->kern->widen((const char *)a->from + at * hzi_mhc_dtype_bytes(a->dtype),
				 a->dtype, count, buffer, NULL, NULL);
		if (a->outer == 1) {
			memcpy(a->to + at, buffer, (size_t)count * sizeof(*buffer));
			continue;
		}
		for (int64_t e = 0; e < count; e++) {
			const int64_t i = (at + e) / a->inner;

			a->to[(i / a->outer * a->inner + (at + e) % a->inner) * a->outer +
			      i % a->outer] = buffer[e];
		}
	}
}

HZI_NO_WORKSPACE(cpu, mhc_widen)

int hzi_cpu_mhc_widen(struct hz_context *ctx, const struct hzi_mhc_widen_args *a)
{
	struct widen_job job = {hzi_mhc_kern + ctx->level, a};

	hzi_parallel(ctx, hzi_threads(ctx, a->count * 6), widen_units, &job,
		     hzi_mhc_ceil(a->count, HZI_MHC_TILE_CHANNELS));
	return HZ_OK;
}

/* ---- Diagnostics ----------------------------------------------------------------------------- */

/* The larger one, NaN if either is NaN */
static float max_nan(float a, float b)
{
	return a > b || a != a ? a : b;
}

/* The largest |row sum - 1|, or with gain the largest sum of magnitudes */
static float largest(const float *a, int n, int row, int step, bool gain)
{
	float most = 0;

	for (int i = 0; i < n; i++) {
		float sum = 0;

		for (int j = 0; j < n; j++)
			sum += gain ? fabsf(a[i * row + j * step]) : a[i * row + j * step];
		most = max_nan(gain ? sum : fabsf(sum - 1), most);
	}
	return most;
}

HZI_NO_WORKSPACE(cpu, mhc_diagnose)

int hzi_cpu_mhc_diagnose(struct hz_context *ctx, const struct hzi_mhc_diagnose_args *a)
{
	const int n = a->n;

	(void)ctx;
	assert(a->a.data && n > 0 && n <= HZI_MHC_STREAMS);
	for (int64_t s = 0; s < a->groups; s++) {
		float product[HZI_MHC_STREAMS * HZI_MHC_STREAMS], out[4] = {0};

		for (int i = 0; i < n * n; i++)
			product[i] = i % (n + 1) ? 0 : 1;
		for (int64_t l = 0; l < a->layers; l++) {
			struct hzi_mhc_coef at = a->a;
			float A[HZI_MHC_STREAMS * HZI_MHC_STREAMS];
			float next[HZI_MHC_STREAMS * HZI_MHC_STREAMS];

			at.data += l * a->layer;
			hzi_mhc_load_coefs(&at, s, n, n, A);
			out[0] = max_nan(largest(A, n, n, 1, false), out[0]);
			out[1] = max_nan(largest(A, n, 1, n, false), out[1]);
			for (int i = 0; i < n; i++) {
				for (int j = 0; j < n; j++) {
					float sum = 0;

					for (int k = 0; k < n; k++)
						sum += A[i * n + k] * product[k * n + j];
					next[i * n + j] = sum;
				}
			}
			memcpy(product, next, (size_t)(n * n) * sizeof(*next));
		}
		out[2] = largest(product, n, n, 1, true);
		out[3] = largest(product, n, 1, n, true);
		for (int i = 0; i < 4; i++)
			a->out[s * a->out_row + i * a->out_column] = out[i];
	}
	return HZ_OK;
}

/* ---- Initial weights ------------------------------------------------------------------------- */

static void init_units(void *data, int thread, int64_t begin, int64_t end)
{
	const struct hzi_mhc_init_args *const a = data;

	(void)thread;
	for (int64_t i = begin; i < end; i++) {
		double q[4] = {0};

		if (a->scale != 0)
			hzi_quat_random(HZ_QUAT_NORMAL, (double)a->scale, a->seed, (uint64_t)i, q);
		for (int64_t c = 0; c < hzi_mhc_min(4, a->count - 4 * i); c++)
			a->phi[4 * i + c] = (float)q[c];
	}
}

HZI_NO_WORKSPACE(cpu, mhc_init)

int hzi_cpu_mhc_init(struct hz_context *ctx, const struct hzi_mhc_init_args *a)
{
	struct hzi_mhc_init_args job = *a;

	if (a->phi)
		hzi_parallel(ctx, hzi_threads(ctx, a->count * 64), init_units, &job,
			     hzi_mhc_ceil(a->count, 4));
	for (int i = 0; a->alpha && i < a->alphas; i++)
		a->alpha[i] = a->alpha_value;
	for (int i = 0; a->bias && i < a->rows; i++)
		a->bias[i] = a->values[i];
	return HZ_OK;
}
