/*
 * mhc_pre.c - coefficients of hyper-connections and the branch input: loops and threads
 *
 * SPDX-License-Identifier: BSD-2-Clause
 *
 * A tile of tokens is taken at once, so that phi is read once for it: its products with phi, then
 * coefficients, then u from streams that are still in L2.
 */
#include <config.h>

#include <string.h>

#include "cpu/mhc.h"

#define TOKENS HZI_MHC_BATCH		/* of a tile, whose coefficients are made at once */
#define BLOCK (4 * TOKENS)		/* of tokens for which a part of phi stays in L1 */

/* ---- What the two directions share ----------------------------------------------------------- */

/* phi as products take it: rows of n streams of `stream` numbers each, 0 beyond C, times gain */
struct phi {
	const float *data;
	int64_t row, stream;
	const uint16_t *half;		/* the same for hz_kern.mhc_half, or NULL */
	int32_t panels;
};

/* Arrays of a thread, in floats */
struct room {
	float *x;			/* [TOKENS][HZI_MHC_WIDE] */
	float *sums;			/* [BLOCK][m] lanes */
	float *squares;			/* [BLOCK] lanes */
	float *raw;			/* [BLOCK][m + 1]: sums_k phi_k x of tokens, mean squares */
	float *y, *dz, *dy;		/* [m][TOKENS] */
	float *p, *q, *dp, *dq;		/* [n][TOKENS] */
	float *a, *da;			/* [n n][TOKENS] */
	float *dalpha;			/* [3][TOKENS] */
	float *add;			/* [TOKENS][n][HZI_MHC_TILE] */
	float *d, *factor;		/* [BLOCK][m], [BLOCK]: what gradients of these make of x */
	float *token;			/* [BLOCK][n + n n]: p and a */
	float *du;			/* [BLOCK + 1][C] */
};

struct plan {
	int64_t channels, padded;	/* C, and up to whole pairs of any level's vectors */
	int n, m;
	bool all;			/* q and a, too */
	bool norm;
	bool pack;			/* phi is copied */
	size_t phi;			/* floats */
	int32_t panels;			/* of phi in halves of 16 bits, or 0 */
	size_t half;			/* the same, in floats */
	size_t room;			/* floats of a thread */
	int threads;
};

#define HALF_LEAST 128			/* tokens whose products pay for phi in another layout */
#define HALF_TILE 512			/* numbers of it */

static struct plan plan_of(const struct hz_context *ctx, const struct hzi_mhc_shape *s,
			   const struct hzi_mhc_rule *rule, const struct hzi_mhc_array *x,
			   bool phi, bool gain, bool backwards, bool norm)
{
	struct plan p = {
		.channels = s->channels, .padded = hzi_mhc_room(s->channels), .n = s->n,
		.m = rule->m, .all = rule->m > rule->n, .norm = norm,
	};
	const size_t m = (size_t)p.m, n = (size_t)p.n, t = TOKENS, block = BLOCK;

	p.pack = phi && (gain || p.padded != p.channels);
	p.phi = p.pack ? m * n * (size_t)p.padded : 0;
	p.room = t * HZI_MHC_WIDE + block * (m + 1) * (HZI_MHC_BATCH + 1) +
		 t * (3 * m + 4 * n + 2 * n * n + 3) +
		 (backwards ? block * (m + 1 + n + n * n) + t * n * HZI_MHC_TILE : 0) +
		 (norm ? (block + 1) * (size_t)p.padded : 0);
	p.room = (p.room + 15) / 16 * 16;
	if (phi && ctx->kern->mhc_half && s->dtype == HZ_BF16 && s->groups == s->tokens &&
	    s->tokens >= HALF_LEAST && s->channels % 32 == 0 && x->channel == 1) {
		p.panels = (2 * rule->m + 15) / 16;
		p.half = n * (size_t)s->channels / 32 * (size_t)p.panels * (HALF_TILE / 2);
	}
	p.threads = hzi_threads(ctx, s->tokens * s->channels * s->n * (backwards ? 8 : 2) *
					     hzi_mhc_size(s->dtype));
	return p;
}

static struct room room_of(const struct plan *p, float *base, int thread)
{
	const int64_t t = TOKENS, block = BLOCK, m = p->m, n = p->n;
	struct room r;

	r.x = base + (int64_t)p->room * thread;
	r.sums = r.x + t * HZI_MHC_WIDE;
	r.squares = r.sums + block * m * HZI_MHC_BATCH;
	r.raw = r.squares + block * HZI_MHC_BATCH;
	r.y = r.raw + block * (m + 1);
	r.dz = r.y + t * m;
	r.dy = r.dz + t * m;
	r.p = r.dy + t * m;
	r.q = r.p + t * n;
	r.dp = r.q + t * n;
	r.dq = r.dp + t * n;
	r.a = r.dq + t * n;
	r.da = r.a + t * n * n;
	r.dalpha = r.da + t * n * n;
	/* Of gradients alone, but du is where it is in either direction. */
	r.du = r.dalpha + 3 * t;
	r.d = r.du + (p->norm ? (block + 1) * p->padded : 0);
	r.factor = r.d + block * m;
	r.token = r.factor + block;
	r.add = r.token + block * (n + n * n);
	return r;
}

struct pack_job {
	const struct plan *plan;
	const float *phi, *gain;
	float *to;
	const struct phi *from;		/* of halves */
	uint16_t *half;
};

/* Rows of one stream of phi */
static void pack_units(void *data, int thread, int64_t begin, int64_t end)
{
	const struct pack_job *const job = data;
	const int64_t C = job->plan->channels, padded = job->plan->padded;

	(void)thread;
	for (int64_t i = begin; i < end; i++) {
		const float *const from = job->phi + i * C;
		const float *const gain = job->gain ? job->gain + i % job->plan->n * C : NULL;
		float *const to = job->to + i * padded;

		for (int64_t c = 0; c < C; c++)
			to[c] = gain ? from[c] * gain[c] : from[c];
		for (int64_t c = C; c < padded; c++)
			to[c] = 0;
	}
}

static uint16_t to_bf16(float v)
{
	uint32_t bits;

	memcpy(&bits, &v, 4);
	if (v != v)
		return 0x7fc0;
	return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

static float from_bf16(uint16_t h)
{
	const uint32_t bits = (uint32_t)h << 16;
	float v;

	memcpy(&v, &bits, 4);
	return v;
}

/*
 * Steps of 32 numbers: row k of phi is column k rounded to bf16, and column m + k what that leaves,
 * so that both together have 16 bits or more.
 */
static void half_units(void *data, int thread, int64_t begin, int64_t end)
{
	const struct pack_job *const job = data;
	const struct plan *const p = job->plan;

	(void)thread;
	for (int64_t s = begin; s < end; s++) {
		uint16_t *const to = job->half + s * p->panels * HALF_TILE;

		memset(to, 0, (size_t)p->panels * HALF_TILE * sizeof(*to));
		for (int k = 0; k < p->m; k++) {
			const float *const from = job->from->data + k * job->from->row + s * 32;
			uint16_t *const high = to + k / 16 * HALF_TILE + k % 16 * 2;
			const int after = p->m + k;
			uint16_t *const low = to + after / 16 * HALF_TILE + after % 16 * 2;

			for (int e = 0; e < 32; e++) {
				const uint16_t h = to_bf16(from[e]);
				const float rest = from[e] - from_bf16(h);

				high[e / 2 * 32 + e % 2] = h;
				low[e / 2 * 32 + e % 2] = rest == rest ? to_bf16(rest) : 0;
			}
		}
	}
}

/* work: p->phi + p->half floats */
static struct phi phi_of(const struct plan *p, const float *phi, const float *gain, float *work)
{
	struct phi to = {.data = phi, .row = p->n * p->channels, .stream = p->channels};
	struct pack_job job = {p, phi, gain, work, &to, (uint16_t *)(work + p->phi)};

	if (p->pack) {
		hzi_parallel(p->threads, pack_units, &job, (int64_t)p->m * p->n);
		to = (struct phi){.data = work, .row = p->n * p->padded, .stream = p->padded};
	}
	if (p->half) {
		hzi_parallel(p->threads, half_units, &job, p->n * p->channels / 32);
		to.half = job.half;
		to.panels = p->panels;
	}
	return to;
}

/* Up to whole pairs of vectors, what widen() fills */
static int64_t pairs(const struct hz_context *ctx, int64_t count)
{
	return hzi_mhc_ceil(count, 2 * ctx->kern->lanes) * 2 * ctx->kern->lanes;
}

/* Stream j of x as rows of one */
static struct hzi_mhc_array one_stream(const struct hzi_mhc_array *x, int64_t size, int j)
{
	struct hzi_mhc_array one = *x;

	one.data = (char *)one.data + j * one.stream * size;
	return one;
}

/* What of a token follows channels c .. of stream j, to be fetched: in blocks rows are short. */
static const void *after(const struct hzi_mhc_array *x, const struct plan *p, int64_t size,
			 int64_t t, int j, int64_t c)
{
	if (x->channel != 1)
		return NULL;
	if (c + HZI_MHC_WIDE < p->channels)
		return (char *)hzi_mhc_at(x, size, t, c + HZI_MHC_WIDE) + j * x->stream * size;
	return j + 1 < p->n ? (char *)hzi_mhc_at(x, size, t, 0) + (j + 1) * x->stream * size : NULL;
}

/* Channels c .. of stream j of tokens as floats to r->x, 0 up to whole pairs; their squares */
static void widen(const struct hz_context *ctx, const struct plan *p, const struct hzi_mhc_array *x,
		  int dtype, int64_t t, int tokens, int j, int64_t c, int64_t count,
		  const struct room *r)
{
	const int64_t size = hzi_mhc_size(dtype);
	const struct hzi_mhc_array one = one_stream(x, size, j);
	float buffer[HZI_MHC_WIDE];

	for (int i = 0; i < tokens; i++) {
		const struct hzi_mhc_tile tile =
			hzi_mhc_tile(&one, size, t + i, c, 1, count, buffer, true);

		ctx->kern->mhc_widen(tile.p, dtype, count, r->x + i * HZI_MHC_WIDE,
				     r->squares + i * ctx->kern->lanes,
				     after(x, p, size, t + i, j, c));
	}
}

static float mean_square(const struct hz_context *ctx, const struct plan *p, const float *squares)
{
	float sum;

	ctx->kern->mhc_fold(squares, 1, &sum);
	return p->channels > 0 ? sum / (float)(p->n * p->channels) : 0;
}

/* Channels c .. of stream j of a tile, number `at` of a block, which were widened, by phi */
static void project_tile(const struct hz_context *ctx, const struct plan *p, const struct phi *phi,
			 int at, int tokens, int j, int64_t c, int64_t count, const struct room *r)
{
	const struct hzi_mhc_product product = {
		.x = r->x, .x_ld = HZI_MHC_WIDE,
		.phi = (float *)(uintptr_t)phi->data + j * phi->stream + c, .phi_ld = phi->row,
		.sums = r->sums + (int64_t)at * p->m * ctx->kern->lanes, .count = pairs(ctx, count),
		.tokens = tokens, .m = p->m,
	};

	ctx->kern->mhc_project(&product);
}

/* The same of a whole tile of bf16 as it is. Its squares are summed first: so it comes into L1. */
static void half_tile(const struct hz_context *ctx, const struct plan *p, const struct phi *phi,
		      const struct hzi_mhc_array *x, int64_t t, int at, int j, int64_t c,
		      int64_t count, const struct room *r)
{
	const int64_t width = phi->panels * 16;
	const uint16_t *const from = (uint16_t *)hzi_mhc_at(x, 2, t + at, c) + j * x->stream;
	const struct hzi_mhc_half half = {
		.x = from, .phi = phi->half + (j * p->channels + c) / 32 * phi->panels * HALF_TILE,
		.y = r->sums + at * width, .x_ld = x->token, .steps = count / 32,
		.panels = phi->panels,
	};

	for (int i = 0; i < TOKENS; i++)
		ctx->kern->mhc_widen(from + i * x->token, HZ_BF16, count, NULL,
				     r->squares + (at + i) * ctx->kern->lanes,
				     after(x, p, 2, t + at + i, j, c));
	ctx->kern->mhc_half(&half);
}

/*
 * r->raw of a block of tokens, at most BLOCK. Tiles go through a part of phi one after another.
 * With halves all tiles are whole but the last, whose sums are of floats.
 */
static void project(const struct hz_context *ctx, const struct plan *p, const struct phi *phi,
		    const struct hzi_mhc_array *x, int dtype, int64_t t, int tokens,
		    const struct room *r)
{
	const int lanes = ctx->kern->lanes, halves = phi->half ? tokens / TOKENS * TOKENS : 0;
	const int64_t width = phi->panels * 16;

	memset(r->squares, 0, (size_t)(tokens * lanes) * sizeof(float));
	memset(r->sums, 0, (size_t)BLOCK * (size_t)p->m * HZI_MHC_BATCH * sizeof(float));
	for (int j = 0; j < p->n; j++) {
		for (int64_t c = 0; c < p->channels; c += HZI_MHC_WIDE) {
			const int64_t count = hzi_mhc_min(HZI_MHC_WIDE, p->channels - c);

			for (int at = 0; at < halves; at += TOKENS)
				half_tile(ctx, p, phi, x, t, at, j, c, count, r);
			for (int at = halves; at < tokens; at += TOKENS) {
				const int some = (int)hzi_mhc_min(TOKENS, tokens - at);
				struct room tile = *r;

				tile.squares += at * lanes;
				widen(ctx, p, x, dtype, t + at, some, j, c, count, &tile);
				project_tile(ctx, p, phi, at, some, j, c, count, r);
			}
		}
	}
	for (int i = 0; i < tokens; i++) {
		float *const to = r->raw + i * (p->m + 1);

		if (i < halves) {
			for (int k = 0; k < p->m; k++)
				to[k] = r->sums[i * width + k] + r->sums[i * width + p->m + k];
		} else {
			ctx->kern->mhc_fold(r->sums + (int64_t)i * p->m * lanes, p->m, to);
		}
		to[p->m] = mean_square(ctx, p, r->squares + i * lanes);
	}
}

static bool has_lanes(const struct hzi_mhc_rule *rule)
{
	return rule->n == 2 || rule->n == 4;
}

/* Numbers y of a tile from sums and mean squares, or 0, and the inverse root mean squares rho */
static void normalize(const struct plan *p, const struct hzi_mhc_rule *rule, const float *raw,
		      int tokens, float *y, float *rho)
{
	memset(y, 0, (size_t)(p->m * TOKENS) * sizeof(float));
	for (int i = 0; raw && i < tokens; i++) {
		const float *const from = raw + i * (p->m + 1);

		rho[i] = hzi_mhc_inverse_root((double)from[p->m], 1, rule->rms_eps);
		for (int k = 0; k < p->m; k++)
			y[k * TOKENS + i] = rho[i] * from[k];
	}
}

static struct hzi_mhc_batch batch_of(const struct plan *p, const struct hzi_mhc_rule *rule,
				     const float *alpha, const float *bias, int tokens,
				     const struct room *r)
{
	return (struct hzi_mhc_batch){
		.rule = rule, .alpha = alpha, .bias = bias, .y = r->y, .dp = r->dp, .dq = r->dq,
		.da = r->da, .p = r->p, .q = r->q, .a = r->a, .dz = r->dz, .dy = r->dy,
		.dalpha = r->dalpha, .count = tokens, .all = p->all,
	};
}

static void make_coefs(const struct hz_context *ctx, const struct hzi_mhc_batch *b)
{
	if (has_lanes(b->rule))
		ctx->kern->mhc_coefs(b);
	else
		hzi_mhc_any_coefs(b);
}

static void make_coefs_bwd(const struct hz_context *ctx, const struct hzi_mhc_batch *b)
{
	if (has_lanes(b->rule))
		ctx->kern->mhc_coefs_bwd(b);
	else
		hzi_mhc_any_coefs_bwd(b);
}

/* Token i of a batch: its numbers, back to back */
static float *pick(const float *from, int i, int count, float *to)
{
	for (int e = 0; e < count; e++)
		to[e] = from[e * TOKENS + i];
	return to;
}

static void place(float *to, int i, int count, const float *from)
{
	for (int e = 0; e < count; e++)
		to[e * TOKENS + i] = from[e];
}

/* ---- Means ----------------------------------------------------------------------------------- */

#define MEAN_TOKENS 64			/* that are added before their sum is */

struct mean_job {
	const struct hz_context *ctx;
	const struct hzi_mhc_array *x;
	const struct hzi_mhc_shape *s;
	float *to;			/* [groups][n][padded] */
	const struct plan *plan;
	int64_t tiles;
};

/* A tile of a stream of a group's mean */
static void mean_units(void *data, int thread, int64_t begin, int64_t end)
{
	const struct mean_job *const job = data;
	const int n = job->s->n;
	const int64_t length = hzi_mhc_length(job->s);
	float x[TOKENS * HZI_MHC_WIDE], squares[TOKENS * HZI_MHC_BATCH];
	float sum[HZI_MHC_WIDE], d[TOKENS];
	const struct room r = {.x = x, .squares = squares};

	(void)thread;
	for (int i = 0; i < TOKENS; i++)
		d[i] = 1;
	for (int64_t u = begin; u < end; u++) {
		const int64_t g = u / (n * job->tiles), c = u % job->tiles * HZI_MHC_WIDE;
		const int j = (int)(u / job->tiles % n);
		const int64_t count = hzi_mhc_min(HZI_MHC_WIDE, job->s->channels - c);
		const int64_t room = hzi_mhc_room(count);
		float *const to = job->to + (g * n + j) * job->plan->padded + c;

		memset(to, 0, (size_t)room * sizeof(float));
		for (int64_t t = 0; t < length; t += MEAN_TOKENS) {
			const int64_t last = hzi_mhc_min(t + MEAN_TOKENS, length);

			memset(sum, 0, sizeof(sum));
			for (int64_t i = t; i < last; i += TOKENS) {
				const int tokens = (int)hzi_mhc_min(TOKENS, last - i);
				const struct hzi_mhc_product product = {
					.x = x, .x_ld = HZI_MHC_WIDE, .d = d, .phi = sum,
					.phi_ld = HZI_MHC_WIDE, .tokens = tokens, .m = 1,
					.count = pairs(job->ctx, count),
				};

				widen(job->ctx, job->plan, job->x, job->s->dtype, g * length + i,
				      tokens, j, c, count, &r);
				job->ctx->kern->mhc_outer(&product);
			}
			for (int64_t i = 0; i < room; i++)
				to[i] += sum[i];
		}
		for (int64_t i = 0; length > 0 && i < room; i++)
			to[i] /= (float)length;
	}
}

static void make_means(const struct hz_context *ctx, const struct plan *p,
		       const struct hzi_mhc_array *x, const struct hzi_mhc_shape *s, float *to)
{
	struct mean_job job = {ctx, x, s, to, p, hzi_mhc_ceil(p->channels, HZI_MHC_WIDE)};

	hzi_parallel(p->threads, mean_units, &job, s->groups * s->n * job.tiles);
}

/* Means as streams of one token a group */
static struct hzi_mhc_array mean_array(const struct plan *p, float *mean)
{
	return (struct hzi_mhc_array){mean, p->n * p->padded, p->padded, 1};
}

/* ---- Forward --------------------------------------------------------------------------------- */

struct pre_job {
	const struct hz_context *ctx;
	const struct hzi_mhc_pre_args *a;
	const struct plan *plan;
	struct phi phi;
	struct hzi_mhc_array x;		/* what is multiplied by phi, data NULL: nothing */
	int x_dtype;
	bool mix;			/* tokens are groups: u beside */
	bool stream_u;
	float *rooms;
};

/* Whether coefficients are those of groups of tokens, made before u */
static bool shared(const struct hzi_mhc_pre_args *a)
{
	return !a->phi || a->s.groups != a->s.tokens;
}

/* u of a token; room [C] for floats if there is a norm */
static void branch_input(const struct hz_context *ctx, const struct hzi_mhc_pre_args *a, int64_t t,
			 const float *p, float *room, bool stream_u, bool next)
{
	const struct hzi_mhc_streams_args mix = {
		.s = a->s, .x = a->post.y.data ? a->post.y : a->x, .u = a->u,
	};
	const int64_t size = hzi_mhc_size(a->s.dtype), channels = a->s.channels;
	const struct hzi_mhc_taken coef = {.p = p};
	double squares = 0;
	float r;

	hzi_mhc_mix(ctx, &mix, t, &coef, a->norm ? room : NULL, stream_u, false, next);
	if (!a->norm)
		return;
	for (int64_t c = 0; c < channels; c++)
		squares += (double)room[c] * (double)room[c];
	r = hzi_mhc_inverse_root(squares, channels, a->rule.norm_eps);
	for (int64_t c = 0; c < channels; c += HZI_MHC_WIDE) {
		const int64_t count = hzi_mhc_min(HZI_MHC_WIDE, channels - c);
		float buffer[HZI_MHC_WIDE];
		const struct hzi_mhc_tile tile =
			hzi_mhc_tile(&a->u, size, t, c, 1, count, buffer, false);
		const struct hzi_mhc_scale scale = {
			.u_floats = room + c, .norm = a->norm + c, .u = tile.p, .factor = r,
			.count = count, .dtype = a->s.dtype,
		};

		ctx->kern->mhc_scale(&scale);
		hzi_mhc_untile(&a->u, size, t, c, 1, count, &tile);
	}
}

static void post_tile(const struct pre_job *job, int64_t t, int tokens, bool next)
{
	const struct hzi_mhc_streams_args *const post = &job->a->post;
	const int n = post->s.n;
	float q[HZI_MHC_STREAMS], A[HZI_MHC_STREAMS * HZI_MHC_STREAMS];

	for (int i = 0; i < tokens; i++) {
		const struct hzi_mhc_taken coef = {
			.q = hzi_mhc_take(&post->q, t + i, n, 1, q),
			.a = hzi_mhc_take(&post->a, t + i, n, n, A),
		};

		hzi_mhc_mix(job->ctx, post, t + i, &coef, NULL, false, false,
			    i + 1 < tokens || next);
	}
}

/* Coefficients of a tile of groups, at most TOKENS, from r->raw; u if these are tokens */
static void pre_tile(const struct pre_job *job, int64_t t, int tokens, const float *raw,
		     const struct room *r)
{
	const struct hzi_mhc_pre_args *const a = job->a;
	const struct plan *const p = job->plan;
	const struct hzi_mhc_batch b = batch_of(p, &a->rule, a->alpha, a->bias, tokens, r);
	const int n = p->n;
	float rho[TOKENS];

	normalize(p, &a->rule, job->x.data ? raw : NULL, tokens, r->y, rho);
	make_coefs(job->ctx, &b);
	for (int i = 0; i < tokens; i++) {
		float out[HZI_MHC_STREAMS * HZI_MHC_STREAMS];

		if (a->q.data)
			hzi_mhc_put(&a->q, t + i, n, 1, pick(r->q, i, n, out));
		if (a->a.data)
			hzi_mhc_put(&a->a, t + i, n, n, pick(r->a, i, n * n, out));
		pick(r->p, i, n, out);
		hzi_mhc_put(&a->p, t + i, n, 1, out);
		if (job->mix && a->u.data)
			branch_input(job->ctx, a, t + i, out, r->du, job->stream_u,
				     i + 1 < tokens);
	}
}

/* Blocks of groups */
static void pre_units(void *data, int thread, int64_t begin, int64_t end)
{
	const struct pre_job *const job = data;
	const struct hzi_mhc_pre_args *const a = job->a;
	const struct plan *const p = job->plan;
	const struct room r = room_of(p, job->rooms, thread);

	for (int64_t u = begin; u < end; u++) {
		const int64_t t = u * BLOCK;
		const int tokens = (int)hzi_mhc_min(BLOCK, a->s.groups - t);

		if (job->mix && a->post.y.data)
			post_tile(job, t, tokens, u + 1 < end);
		if (job->x.data)
			project(job->ctx, p, &job->phi, &job->x, job->x_dtype, t, tokens, &r);
		else
			memset(r.raw, 0, (size_t)(tokens * (p->m + 1)) * sizeof(float));
		if (a->saved)
			memcpy(a->saved + t * (p->m + 1), r.raw,
			       (size_t)(tokens * (p->m + 1)) * sizeof(float));
		for (int i = 0; i < tokens; i += TOKENS)
			pre_tile(job, t + i, (int)hzi_mhc_min(TOKENS, tokens - i),
				 r.raw + i * (p->m + 1), &r);
	}
}

/* u of tokens, whose coefficients are there */
static void mix_units(void *data, int thread, int64_t begin, int64_t end)
{
	const struct pre_job *const job = data;
	const struct hzi_mhc_pre_args *const a = job->a;
	const struct room r = room_of(job->plan, job->rooms, thread);
	const int64_t length = hzi_mhc_length(&a->s);
	float p[HZI_MHC_STREAMS];

	for (int64_t t = begin; t < end; t++) {
		hzi_mhc_take(&a->p, t / length, a->s.n, 1, p);
		branch_input(job->ctx, a, t, p, r.du, job->stream_u, t + 1 < end);
	}
}

static size_t pre_floats(const struct plan *p, const struct hzi_mhc_pre_args *a)
{
	const size_t groups = (size_t)a->s.groups;

	return p->phi + p->half + p->room * (size_t)p->threads +
	       (shared(a) ? groups * (size_t)p->n * (a->phi ? (size_t)p->padded + 1 : 1) : 0);
}

static struct plan pre_plan(const struct hz_context *ctx, const struct hzi_mhc_pre_args *a)
{
	return plan_of(ctx, &a->s, &a->rule, a->post.y.data ? &a->post.y : &a->x, a->phi, a->gain,
		       false, a->norm);
}

size_t hzi_cpu_mhc_pre_workspace(const struct hz_context *ctx, const struct hzi_mhc_pre_args *a)
{
	const struct plan p = pre_plan(ctx, a);

	return pre_floats(&p, a) * sizeof(float);
}

int hzi_cpu_mhc_pre(struct hz_context *ctx, const struct hzi_mhc_pre_args *a)
{
	const struct plan p = pre_plan(ctx, a);
	struct hzi_mhc_pre_args own = *a;
	float *work = ctx->workspace;
	struct pre_job job = {
		.ctx = ctx, .a = &own, .plan = &p, .x_dtype = a->s.dtype, .mix = !shared(a),
		.stream_u = hzi_mhc_stream(ctx, &a->u, &a->s, 1),
	};

	job.rooms = work;
	work += p.room * (size_t)p.threads;
	if (a->phi) {
		job.phi = phi_of(&p, a->phi, a->gain, work);
		job.x = a->post.y.data ? a->post.y : a->x;
	}
	work += p.phi + p.half;
	if (shared(a)) {
		own.p = (struct hzi_mhc_coef){work, p.n, 1, 1};
		work += a->s.groups * p.n;
		if (a->phi) {
			make_means(ctx, &p, &job.x, &a->s, work);
			job.x = mean_array(&p, work);
			job.x_dtype = HZ_F32;
		}
	}
	hzi_parallel(p.threads, pre_units, &job, hzi_mhc_ceil(a->s.groups, BLOCK));
	if (!shared(a))
		return HZ_OK;
	for (int64_t g = 0; g < a->s.groups; g++)
		hzi_mhc_put(&a->p, g, p.n, 1, own.p.data + g * p.n);
	if (a->u.data)
		hzi_parallel(p.threads, mix_units, &job, a->s.tokens);
	return HZ_OK;
}

/* ---- Gradients ------------------------------------------------------------------------------- */

/*
 * Units are chunks of tiles, as many as shapes say, each with sums of its own of the gradients of
 * weights; these are added in order.
 */
#define CHUNK_LEAST 256			/* tokens */
#define CHUNKS_MOST 64

struct bwd_plan {
	struct plan p;
	bool shared;			/* coefficients are of groups of tokens */
	int64_t chunk, chunks;		/* of groups */
	size_t dphi, dnorm, weights;	/* floats, floats, doubles of a chunk */
	bool direct;			/* the one chunk's sums are dphi itself */
	size_t means;			/* floats of means, and of their gradients */
	size_t unmix;			/* bytes of hzi_mhc_unmix_all() */
};

struct bwd_job {
	const struct hz_context *ctx;
	const struct hzi_mhc_pre_bwd_args *a;
	const struct bwd_plan *plan;
	struct phi phi;
	struct hzi_mhc_array x;		/* what was multiplied by phi, data NULL: nothing */
	int x_dtype;
	struct hzi_mhc_coef p, A, dp, da;	/* of groups, in work, if shared */
	float *rooms, *dphi, *dnorm, *dmean;
	double *weights;		/* [chunks][m + 3]: of bias, of alpha */
	bool stream_dx;
};

static bool bwd_shared(const struct hzi_mhc_pre_bwd_args *a)
{
	return !a->phi || a->s.groups != a->s.tokens;
}

/* The gradients of streams that come of u and y: sums of coefficients, or dx */
static struct hzi_mhc_streams_bwd_args streams_of(const struct hzi_mhc_pre_bwd_args *a, bool sums,
						  bool dx)
{
	static float wanted;
	const struct hzi_mhc_coef some = {&wanted, 0, 0, 0};
	struct hzi_mhc_streams_bwd_args s = {.s = a->s, .x = a->x, .du = a->du, .dy = a->dy};

	if (sums && a->du.data)
		s.dp = some;
	if (sums && a->dy.data)
		s.da = some;
	if (dx) {
		s.dx = a->dx;
		s.accumulate = a->accumulate;
	}
	return s;
}

static struct hzi_mhc_beside beside_of(const struct hzi_mhc_pre_bwd_args *a)
{
	return (struct hzi_mhc_beside){
		.norm = a->du.data ? a->norm : NULL, .norm_eps = a->rule.norm_eps,
		.dnorm = a->du.data && a->norm ? a->dnorm : NULL,
		.accumulate_dnorm = a->accumulate,
	};
}

static struct bwd_plan bwd_plan(const struct hz_context *ctx, const struct hzi_mhc_pre_bwd_args *a)
{
	const struct hzi_mhc_beside beside = beside_of(a);
	struct bwd_plan b = {
		.p = plan_of(ctx, &a->s, &a->rule, &a->x, a->phi, a->gain, true, a->norm),
		.shared = bwd_shared(a),
	};
	const size_t row = (size_t)(b.p.n * b.p.padded);
	const int64_t each = hzi_mhc_ceil(a->s.groups, CHUNKS_MOST);

	if (a->saved) {
		b.p.half = 0;		/* nothing is multiplied again */
		b.p.panels = 0;
	}
	b.chunk = hzi_mhc_ceil(each > CHUNK_LEAST ? each : CHUNK_LEAST, BLOCK) * BLOCK;
	b.chunks = hzi_mhc_ceil(a->s.groups, b.chunk);
	b.dphi = a->phi && (a->dphi || a->dgain) ? (size_t)b.p.m * row : 0;
	b.direct = b.dphi && b.chunks == 1 && !b.p.pack && !a->dgain;
	b.dnorm = beside.dnorm && !b.shared ? (size_t)b.p.padded : 0;
	b.weights = (size_t)b.p.m + 3;
	if (b.shared) {
		const struct hzi_mhc_streams_bwd_args s = streams_of(a, true, true);

		b.means = a->phi ? (size_t)a->s.groups * row : 0;
		b.unmix = hzi_mhc_unmix_bytes(&s, &beside);
	}
	return b;
}

static size_t shared_floats(const struct bwd_plan *b, const struct hzi_mhc_shape *s)
{
	const size_t n = (size_t)b->p.n;

	return b->shared ? (size_t)s->groups * (2 * n + 2 * n * n) + 2 * b->means : 0;
}

size_t hzi_cpu_mhc_pre_bwd_workspace(const struct hz_context *ctx,
				     const struct hzi_mhc_pre_bwd_args *a)
{
	const struct bwd_plan b = bwd_plan(ctx, a);
	const size_t chunks = (size_t)b.chunks;

	return (chunks * ((b.direct ? 0 : b.dphi) + b.dnorm) + b.p.phi + b.p.half +
		b.p.room * (size_t)b.p.threads + shared_floats(&b, &a->s)) * sizeof(float) +
	       chunks * b.weights * sizeof(double) + b.unmix + 64;
}

/* r->raw of a block of groups, from what was saved or anew */
static const float *recall(const struct bwd_job *job, int64_t t, int tokens, const struct room *r)
{
	const struct plan *const p = &job->plan->p;

	if (!job->x.data)
		return NULL;
	if (job->a->saved)
		return job->a->saved + t * (p->m + 1);
	project(job->ctx, p, &job->phi, &job->x, job->x_dtype, t, tokens, r);
	return r->raw;
}

/* y of a tile of these from number `at` on, and coefficients */
static void remake(const struct bwd_job *job, const float *raw, int at, int tokens,
		   const struct room *r, float *rho)
{
	const struct hzi_mhc_pre_bwd_args *const a = job->a;
	const struct plan *const p = &job->plan->p;
	const struct hzi_mhc_batch b = batch_of(p, &a->rule, a->alpha, a->bias, tokens, r);

	normalize(p, &a->rule, raw ? raw + at * (p->m + 1) : NULL, tokens, r->y, rho);
	make_coefs(job->ctx, &b);
}

/* <du, X[j]> and <dY[i], X[j]> of the tokens of a tile, onto those that came in */
static void sum_tile(const struct bwd_job *job, int64_t t, int at, int tokens,
		     const struct room *r, float *dnorm)
{
	const struct hzi_mhc_pre_bwd_args *const a = job->a;
	const struct hz_kern *const kern = job->ctx->kern;
	const struct plan *const p = &job->plan->p;
	const int n = p->n;
	const struct hzi_mhc_streams_bwd_args args = streams_of(a, true, false);
	const struct hzi_mhc_beside beside = beside_of(a);
	struct hzi_mhc_sums sums;
	struct hzi_mhc_unmix u = {.a = &args, .sums = &sums};

	for (int i = 0; i < tokens; i++) {
		float coef[HZI_MHC_STREAMS], *const du = r->du + (at + i) * p->padded;
		float sum[HZI_MHC_STREAMS * HZI_MHC_STREAMS], in[HZI_MHC_STREAMS * HZI_MHC_STREAMS];

		if (beside.norm)
			hzi_mhc_unnorm(job->ctx, &args, &beside, t + i, pick(r->p, i, n, coef),
				       r->du + BLOCK * p->padded, du, dnorm);
		memset(&sums, 0, sizeof(sums));
		for (int64_t c = 0; c < p->channels; c += HZI_MHC_TILE) {
			u.du_floats = beside.norm ? du + c : NULL;
			u.next = i + 1 < tokens;
			if (args.dp.data || args.da.data)
				hzi_mhc_unmix(job->ctx, &u, t + i, c,
					      hzi_mhc_min(HZI_MHC_TILE, p->channels - c));
		}
		kern->mhc_fold(sums.dp, n, sum);
		if (hzi_mhc_take(&a->dp, t + i, n, 1, in)) {
			for (int e = 0; e < n; e++)
				sum[e] += in[e];
		}
		place(r->dp, i, n, sum);
		memset(in, 0, sizeof(in));
		hzi_mhc_take(&a->dq, t + i, n, 1, in);
		place(r->dq, i, n, in);
		kern->mhc_fold(sums.da, n * n, sum);
		if (hzi_mhc_take(&a->da, t + i, n, n, in)) {
			for (int e = 0; e < n * n; e++)
				sum[e] += in[e];
		}
		place(r->da, i, n * n, sum);
	}
}

/* The same of groups, whose sums are in work */
static void take_sums(const struct bwd_job *job, int64_t g, int groups, const struct room *r)
{
	const struct hzi_mhc_pre_bwd_args *const a = job->a;
	const int n = job->plan->p.n, nn = n * n;
	float own[HZI_MHC_STREAMS * HZI_MHC_STREAMS], in[HZI_MHC_STREAMS * HZI_MHC_STREAMS];

	for (int i = 0; i < groups; i++) {
		memset(own, 0, sizeof(own));
		memset(in, 0, sizeof(in));
		if (a->du.data)
			hzi_mhc_take(&job->dp, g + i, n, 1, own);
		hzi_mhc_take(&a->dp, g + i, n, 1, in);
		for (int e = 0; e < n; e++)
			own[e] += in[e];
		place(r->dp, i, n, own);
		memset(own, 0, sizeof(own));
		hzi_mhc_take(&a->dq, g + i, n, 1, own);
		place(r->dq, i, n, own);
		memset(own, 0, sizeof(own));
		memset(in, 0, sizeof(in));
		if (a->dy.data)
			hzi_mhc_take(&job->da, g + i, n, n, own);
		hzi_mhc_take(&a->da, g + i, n, n, in);
		for (int e = 0; e < nn; e++)
			own[e] += in[e];
		place(r->da, i, nn, own);
	}
}

/*
 * What the gradients of y make of a tile of what phi multiplied, d [m] of its sums and factor of x
 * itself; sums of the gradients of bias and alpha
 */
static void back_coefs(const struct bwd_job *job, int tokens, const struct room *r,
		       const float *rho, float *d, float *factor, double *weights)
{
	const struct plan *const p = &job->plan->p;
	const struct hzi_mhc_batch b =
		batch_of(p, &job->a->rule, job->a->alpha, job->a->bias, tokens, r);

	make_coefs_bwd(job->ctx, &b);
	for (int i = 0; i < tokens; i++) {
		double dot = 0;

		for (int k = 0; k < p->m; k++) {
			weights[k] += (double)r->dz[k * TOKENS + i];
			if (!job->x.data)
				continue;
			d[i * p->m + k] = rho[i] * r->dy[k * TOKENS + i];
			dot += (double)r->dy[k * TOKENS + i] * (double)r->y[k * TOKENS + i];
		}
		for (int g = 0; g < (p->all ? 3 : 1); g++)
			weights[p->m + g] += (double)r->dalpha[g * TOKENS + i];
		factor[i] = job->x.data && p->channels > 0 ?
				    (float)(-dot * (double)rho[i] * (double)rho[i] /
					    (double)(p->n * p->channels)) : 0;
	}
}

/* dx of channels c .. of a tile, number `at` of a block, and its share of dphi */
static void back_tile(const struct bwd_job *job, int64_t t, int at, int tokens, int64_t c,
		      int64_t count, float *dphi, const struct room *r)
{
	const struct hzi_mhc_pre_bwd_args *const a = job->a;
	const struct plan *const p = &job->plan->p;
	const struct hz_kern *const kern = job->ctx->kern;
	const struct hzi_mhc_streams_bwd_args args = streams_of(a, false, true);
	const int n = p->n;
	struct hzi_mhc_product product = {
		.x = r->x, .x_ld = HZI_MHC_WIDE, .d = r->d + at * p->m, .factor = r->factor + at,
		.y_ld = n * HZI_MHC_TILE, .count = pairs(job->ctx, count), .tokens = tokens,
		.m = p->m,
	};

	for (int j = 0; j < n && (dphi || a->dx.data); j++) {
		widen(job->ctx, p, &a->x, a->s.dtype, t + at, tokens, j, c, count, r);
		if (a->dx.data) {
			product.phi = (float *)(uintptr_t)job->phi.data + j * job->phi.stream + c;
			product.phi_ld = job->phi.row;
			product.y = r->add + j * HZI_MHC_TILE;
			kern->mhc_spread(&product);
		}
		if (dphi) {
			product.phi = dphi + j * p->padded + c;
			product.phi_ld = n * p->padded;
			kern->mhc_outer(&product);
		}
	}
	for (int i = 0; i < tokens && a->dx.data; i++) {
		const float *const token = r->token + (at + i) * (n + n * n);
		const struct hzi_mhc_unmix u = {
			.a = &args, .coef.p = token, .coef.a = p->all ? token + n : NULL,
			.du_floats = a->norm && a->du.data ?
					     r->du + (at + i) * p->padded + c : NULL,
			.add = r->add + i * n * HZI_MHC_TILE, .add_stream = HZI_MHC_TILE,
			.stream_dx = job->stream_dx, .next = false,
		};

		hzi_mhc_unmix(job->ctx, &u, t + at + i, c, count);
	}
}

/* Blocks of tokens of their own coefficients, of a chunk */
static void chunk_of_tokens(const struct bwd_job *job, int64_t chunk, const struct room *r)
{
	const struct bwd_plan *const plan = job->plan;
	const struct plan *const p = &plan->p;
	const int64_t end = hzi_mhc_min((chunk + 1) * plan->chunk, job->a->s.tokens);
	const int n = p->n;
	float *const dphi = plan->dphi ? job->dphi + chunk * (int64_t)plan->dphi : NULL;
	float *const dnorm = plan->dnorm ? job->dnorm + chunk * (int64_t)plan->dnorm : NULL;
	double *const weights = job->weights + chunk * (int64_t)plan->weights;

	for (int64_t t = chunk * plan->chunk; t < end; t += BLOCK) {
		const int block = (int)hzi_mhc_min(BLOCK, end - t);
		const float *const raw = recall(job, t, block, r);

		for (int at = 0; at < block; at += TOKENS) {
			const int tokens = (int)hzi_mhc_min(TOKENS, block - at);
			float rho[TOKENS];

			remake(job, raw, at, tokens, r, rho);
			for (int i = 0; i < tokens; i++) {
				float *const token = r->token + (at + i) * (n + n * n);

				pick(r->p, i, n, token);
				if (p->all)
					pick(r->a, i, n * n, token + n);
			}
			sum_tile(job, t + at, at, tokens, r, dnorm);
			back_coefs(job, tokens, r, rho, r->d + at * p->m, r->factor + at, weights);
		}
		for (int64_t c = 0; c < p->channels; c += HZI_MHC_TILE) {
			for (int at = 0; at < block; at += TOKENS)
				back_tile(job, t, at, (int)hzi_mhc_min(TOKENS, block - at), c,
					  hzi_mhc_min(HZI_MHC_TILE, p->channels - c), dphi, r);
		}
	}
}

/* Tiles of groups of tokens, of a chunk: of means */
static void chunk_of_groups(const struct bwd_job *job, int64_t chunk, const struct room *r)
{
	const struct hzi_mhc_pre_bwd_args *const a = job->a;
	const struct bwd_plan *const plan = job->plan;
	const struct plan *const p = &plan->p;
	const int64_t row = p->n * p->padded;
	const int64_t end = hzi_mhc_min((chunk + 1) * plan->chunk, a->s.groups);
	float *const dphi = plan->dphi ? job->dphi + chunk * (int64_t)plan->dphi : NULL;
	double *const weights = job->weights + chunk * (int64_t)plan->weights;

	for (int64_t g = chunk * plan->chunk; g < end; g += TOKENS) {
		const int groups = (int)hzi_mhc_min(TOKENS, end - g);
		float rho[TOKENS], factor[TOKENS], d[TOKENS * HZI_MHC_ROWS];

		remake(job, recall(job, g, groups, r), 0, groups, r, rho);
		take_sums(job, g, groups, r);
		back_coefs(job, groups, r, rho, d, factor, weights);
		if (job->x.data) {
			struct hzi_mhc_product product = {
				.x = (float *)job->x.data + g * row, .x_ld = row, .d = d,
				.factor = factor, .y_ld = row, .count = row, .tokens = groups,
				.m = p->m,
			};

			if (a->dx.data) {
				product.phi = (float *)(uintptr_t)job->phi.data;
				product.phi_ld = job->phi.row;
				product.y = job->dmean + g * row;
				job->ctx->kern->mhc_spread(&product);
				for (int64_t i = 0; i < groups * row && a->s.tokens > 0; i++)
					product.y[i] /= (float)hzi_mhc_length(&a->s);
			}
			if (dphi) {
				product.phi = dphi;
				product.phi_ld = row;
				job->ctx->kern->mhc_outer(&product);
			}
		}
	}
}

static void chunk_units(void *data, int thread, int64_t begin, int64_t end)
{
	const struct bwd_job *const job = data;
	const struct bwd_plan *const plan = job->plan;
	const struct room r = room_of(&plan->p, job->rooms, thread);

	for (int64_t u = begin; u < end; u++) {
		if (plan->dphi && !(plan->direct && job->a->accumulate))
			memset(job->dphi + u * (int64_t)plan->dphi, 0, plan->dphi * sizeof(float));
		if (plan->dnorm)
			memset(job->dnorm + u * (int64_t)plan->dnorm, 0,
			       plan->dnorm * sizeof(float));
		memset(job->weights + u * (int64_t)plan->weights, 0,
		       plan->weights * sizeof(double));
		if (plan->shared)
			chunk_of_groups(job, u, &r);
		else
			chunk_of_tokens(job, u, &r);
	}
}

/* Coefficients of groups, which sums and dx need, to work */
static void coef_units(void *data, int thread, int64_t begin, int64_t end)
{
	const struct bwd_job *const job = data;
	const struct plan *const p = &job->plan->p;
	const struct room r = room_of(p, job->rooms, thread);
	float rho[TOKENS], out[HZI_MHC_STREAMS * HZI_MHC_STREAMS];

	for (int64_t u = begin; u < end; u++) {
		const int64_t g = u * TOKENS;
		const int groups = (int)hzi_mhc_min(TOKENS, job->a->s.groups - g);

		remake(job, recall(job, g, groups, &r), 0, groups, &r, rho);
		for (int i = 0; i < groups; i++) {
			hzi_mhc_put(&job->p, g + i, p->n, 1, pick(r.p, i, p->n, out));
			if (p->all)
				hzi_mhc_put(&job->A, g + i, p->n, p->n,
					    pick(r.a, i, p->n * p->n, out));
		}
	}
}

#define WEIGHTS 64			/* channels whose gradients are summed at once */

/* Gradients of weights from those of chunks: blocks of channels of a stream */
static void weight_units(void *data, int thread, int64_t begin, int64_t end)
{
	const struct bwd_job *const job = data;
	const struct hzi_mhc_pre_bwd_args *const a = job->a;
	const struct bwd_plan *const plan = job->plan;
	const struct plan *const p = &plan->p;
	const int64_t C = p->channels, blocks = hzi_mhc_ceil(C, WEIGHTS);

	(void)thread;
	for (int64_t b = begin; b < end; b++) {
		const int64_t j = b / blocks, c = b % blocks * WEIGHTS, at = j * C + c;
		const int64_t count = hzi_mhc_min(WEIGHTS, C - c);
		float dgain[WEIGHTS] = {0};

		for (int k = 0; k < p->m; k++) {
			const float *from = job->dphi + (k * p->n + j) * p->padded + c;
			const int64_t row = k * p->n * C + at;
			float sum[WEIGHTS] = {0};

			for (int64_t u = 0; u < plan->chunks; u++, from += plan->dphi) {
				for (int64_t i = 0; i < count; i++)
					sum[i] += from[i];
			}
			for (int64_t i = 0; i < count; i++) {
				dgain[i] += sum[i] * a->phi[row + i];
				if (a->gain)
					sum[i] *= a->gain[at + i];
				if (a->dphi && a->accumulate)
					a->dphi[row + i] += sum[i];
				else if (a->dphi)
					a->dphi[row + i] = sum[i];
			}
		}
		for (int64_t i = 0; a->dgain && i < count; i++)
			a->dgain[at + i] = (a->accumulate ? a->dgain[at + i] : 0) + dgain[i];
	}
}

/* sum over chunks of what is ld apart, onto or instead of old */
static float sum_chunks(const double *from, int64_t ld, int64_t chunks, const float *old, bool add)
{
	double sum = 0;

	for (int64_t u = 0; u < chunks; u++)
		sum += from[u * ld];
	return (float)((add ? (double)*old : 0) + sum);
}

static void put_weights(const struct bwd_job *job)
{
	const struct hzi_mhc_pre_bwd_args *const a = job->a;
	const struct bwd_plan *const plan = job->plan;
	const struct plan *const p = &plan->p;
	const int64_t ld = (int64_t)plan->weights;

	for (int k = 0; a->dbias && k < p->m; k++)
		a->dbias[k] = sum_chunks(job->weights + k, ld, plan->chunks, &a->dbias[k],
					 a->accumulate);
	for (int g = 0; a->dalpha && g < (p->all ? 3 : 1); g++)
		a->dalpha[g] = sum_chunks(job->weights + p->m + g, ld, plan->chunks, &a->dalpha[g],
					  a->accumulate);
	for (int64_t c = 0; plan->dnorm && c < p->channels; c++) {
		double sum = a->accumulate ? (double)a->dnorm[c] : 0;

		for (int64_t u = 0; u < plan->chunks; u++)
			sum += (double)job->dnorm[u * (int64_t)plan->dnorm + c];
		a->dnorm[c] = (float)sum;
	}
	if (plan->dphi && !plan->direct)
		hzi_parallel(p->threads, weight_units, (void *)(uintptr_t)job,
			     p->n * hzi_mhc_ceil(p->channels, WEIGHTS));
}

int hzi_cpu_mhc_pre_bwd(struct hz_context *ctx, const struct hzi_mhc_pre_bwd_args *a)
{
	const struct bwd_plan plan = bwd_plan(ctx, a);
	const struct plan *const p = &plan.p;
	const int64_t n = p->n, groups = a->s.groups;
	struct bwd_job job = {
		.ctx = ctx, .a = a, .plan = &plan, .x_dtype = a->s.dtype,
		.weights = ctx->workspace,
		.stream_dx = hzi_mhc_stream(ctx, &a->dx, &a->s, a->s.n) && !a->accumulate,
	};
	float *work = (float *)(job.weights + plan.chunks * (int64_t)plan.weights);
	struct hzi_mhc_beside beside = beside_of(a);
	struct hzi_mhc_streams_bwd_args sums, dx;

	if (a->dnorm && !beside.dnorm && !a->accumulate)
		memset(a->dnorm, 0, (size_t)p->channels * sizeof(float));
	job.rooms = work;
	work += p->room * (size_t)p->threads;
	job.dphi = plan.direct ? a->dphi : work;
	work += plan.direct ? 0 : plan.chunks * (int64_t)plan.dphi;
	job.dnorm = work;
	work += plan.chunks * (int64_t)plan.dnorm;
	if (a->phi) {
		job.phi = phi_of(p, a->phi, a->gain, work);
		job.x = a->x;
	}
	work += p->phi + p->half;
	if (!plan.shared) {
		hzi_parallel(p->threads, chunk_units, &job, plan.chunks);
		put_weights(&job);
		return HZ_OK;
	}
	if (a->phi) {
		make_means(ctx, p, &a->x, &a->s, work);
		job.x = mean_array(p, work);
		job.x_dtype = HZ_F32;
		work += plan.means;
		job.dmean = work;
		work += plan.means;
	}
	job.p = (struct hzi_mhc_coef){work, n, 1, 1};
	job.dp = (struct hzi_mhc_coef){job.p.data + groups * n, n, 1, 1};
	job.A = (struct hzi_mhc_coef){job.dp.data + groups * n, n * n, n, 1};
	job.da = (struct hzi_mhc_coef){job.A.data + groups * n * n, n * n, n, 1};
	work = job.da.data + groups * n * n;
	work += (uintptr_t)work % 8 / 4;
	beside.room = job.rooms;
	hzi_parallel(p->threads, coef_units, &job, hzi_mhc_ceil(groups, TOKENS));
	sums = streams_of(a, true, false);
	sums.p = job.p;
	if (sums.dp.data)
		sums.dp = job.dp;
	if (sums.da.data)
		sums.da = job.da;
	if (sums.dp.data || sums.da.data)
		hzi_mhc_unmix_all(ctx, &sums, &beside, work);
	hzi_parallel(p->threads, chunk_units, &job, plan.chunks);
	put_weights(&job);
	if (!a->dx.data)
		return HZ_OK;
	dx = streams_of(a, false, true);
	if (a->du.data)
		dx.p = job.p;
	if (a->dy.data && p->all)
		dx.a = job.A;
	beside.dnorm = NULL;
	beside.add = a->phi ? job.dmean : NULL;
	beside.add_stream = p->padded;
	hzi_mhc_unmix_all(ctx, &dx, &beside, work);
	return HZ_OK;
}
