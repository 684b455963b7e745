/*
 * coef_bwd.c - gradients of coefficients of hyper-connections and of branch inputs
 *
 * SPDX-License-Identifier: BSD-2-Clause
 *
 * Units are chunks of tiles, as many as shapes say, each with sums of its own of the gradients of
 * weights; these are added in order.
 */
#include <config.h>

#include <string.h>

#include "cpu/mhc/coef.h"

#define CHUNK_LEAST 256			/* tokens */
#define CHUNKS_MOST 64

struct bwd_plan {
	struct hzi_phi_plan p;
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
	struct hzi_phi phi;
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

static struct bwd_plan bwd_plan(const struct hz_context *ctx, const struct hzi_mhc_pre_bwd_args *a,
				bool amx)
{
	const struct hzi_mhc_beside beside = beside_of(a);
	struct bwd_plan b = {
		.p = hzi_phi_plan_of(ctx, &a->s, &a->rule, a->phi, a->gain, true, a->norm,
				     amx),
		.shared = bwd_shared(a),
	};
	const size_t row = (size_t)(b.p.n * b.p.padded);
	const int64_t each = hzi_mhc_ceil(a->s.groups, CHUNKS_MOST);

	if (a->saved) {
		b.p.half = 0;		/* nothing is multiplied again */
		b.p.panels = 0;
	}
	b.chunk = hzi_mhc_ceil(each > CHUNK_LEAST ? each : CHUNK_LEAST, b.p.block) * b.p.block;
	b.chunks = hzi_mhc_ceil(a->s.groups, b.chunk);
	b.dphi = a->phi && (a->dphi || a->dgain) ? (size_t)b.p.m * row : 0;
	b.direct = b.dphi && b.chunks == 1 && !b.p.pack && !a->dgain && !b.p.halves;
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

static size_t workspace(const struct hz_context *ctx, const struct hzi_mhc_pre_bwd_args *a, bool amx)
{
	const struct bwd_plan b = bwd_plan(ctx, a, amx);
	const size_t chunks = (size_t)b.chunks;

	return (chunks * ((b.direct ? 0 : b.dphi) + b.dnorm) + hzi_phi_floats(&b.p) +
		b.p.room * (size_t)b.p.threads + shared_floats(&b, &a->s)) * sizeof(float) +
	       chunks * b.weights * sizeof(double) + b.unmix + 64;
}

/* r->raw of a block of groups, from what was saved or anew */
static const float *recall(const struct bwd_job *job, int64_t t, int tokens,
			   const struct hzi_phi_room *r)
{
	const struct hzi_phi_plan *const p = &job->plan->p;

	if (!job->x.data)
		return NULL;
	if (job->a->saved)
		return job->a->saved + t * (p->m + 1);
	hzi_phi_project(job->ctx, p, &job->phi, &job->x, job->x_dtype, t, tokens, r);
	return r->raw;
}

/* y of a tile of these from number `at` on, and coefficients */
static void remake(const struct bwd_job *job, const float *raw, int at, int tokens,
		   const struct hzi_phi_room *r, float *rho)
{
	const struct hzi_mhc_pre_bwd_args *const a = job->a;
	const struct hzi_phi_plan *const p = &job->plan->p;
	const struct hzi_mhc_batch b = hzi_phi_batch_of(p, &a->rule, a->alpha, a->bias, tokens, r);

	hzi_phi_normalize(p, &a->rule, raw ? raw + at * (p->m + 1) : NULL, tokens, r->y, rho);
	hzi_mhc_kern_of(job->ctx->level, b.rule->n)->coefs(&b);
}

/* <du, X[j]> and <dY[i], X[j]> of the tokens of a tile, onto those that came in */
static void sum_tile(const struct bwd_job *job, int64_t t, int at, int tokens,
		     const struct hzi_phi_room *r, float *dnorm)
{
	const struct hzi_mhc_pre_bwd_args *const a = job->a;
	const struct hzi_mhc_kern *const kern = hzi_mhc_kern + job->ctx->level;
	const struct hzi_phi_plan *const p = &job->plan->p;
	const int n = p->n;
	const struct hzi_mhc_streams_bwd_args args = streams_of(a, true, false);
	const struct hzi_mhc_beside beside = beside_of(a);
	struct hzi_mhc_sums sums;
	struct hzi_mhc_unmix u = {.a = &args, .sums = &sums};

	for (int i = 0; i < tokens; i++) {
		float coef[HZI_MHC_STREAMS], *const du = r->du + (at + i) * p->padded;
		float sum[HZI_MHC_STREAMS * HZI_MHC_STREAMS], in[HZI_MHC_STREAMS * HZI_MHC_STREAMS];

		if (beside.norm)
			hzi_mhc_unnorm(job->ctx, &args, &beside, t + i,
				       hzi_phi_pick(r->p, i, n, coef),
				       r->du + p->block * p->padded, du, dnorm);
		memset(&sums, 0, sizeof(sums));
		u.du_floats = beside.norm ? du : NULL;
		u.next = i + 1 < tokens;
		if (args.dp.data || args.da.data)
			hzi_mhc_unmix(job->ctx, &u, t + i, 0, p->channels);
		kern->fold(sums.dp, n, sum);
		if (hzi_mhc_take(&a->dp, t + i, n, 1, in)) {
			for (int e = 0; e < n; e++)
				sum[e] += in[e];
		}
		hzi_phi_place(r->dp, i, n, sum);
		memset(in, 0, sizeof(in));
		hzi_mhc_take(&a->dq, t + i, n, 1, in);
		hzi_phi_place(r->dq, i, n, in);
		kern->fold(sums.da, n * n, sum);
		if (hzi_mhc_take(&a->da, t + i, n, n, in)) {
			for (int e = 0; e < n * n; e++)
				sum[e] += in[e];
		}
		hzi_phi_place(r->da, i, n * n, sum);
	}
}

/* The same of groups, whose sums are in work */
static void take_sums(const struct bwd_job *job, int64_t g, int groups,
		      const struct hzi_phi_room *r)
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
		hzi_phi_place(r->dp, i, n, own);
		memset(own, 0, sizeof(own));
		hzi_mhc_take(&a->dq, g + i, n, 1, own);
		hzi_phi_place(r->dq, i, n, own);
		memset(own, 0, sizeof(own));
		memset(in, 0, sizeof(in));
		if (a->dy.data)
			hzi_mhc_take(&job->da, g + i, n, n, own);
		hzi_mhc_take(&a->da, g + i, n, n, in);
		for (int e = 0; e < nn; e++)
			own[e] += in[e];
		hzi_phi_place(r->da, i, nn, own);
	}
}

/*
 * What the gradients of y make of a tile of what phi multiplied, d [m] of its sums and factor of x
 * itself; sums of the gradients of bias and alpha
 */
static void back_coefs(const struct bwd_job *job, int tokens, const struct hzi_phi_room *r,
		       const float *rho, float *d, float *factor, double *weights)
{
	const struct hzi_phi_plan *const p = &job->plan->p;
	const struct hzi_mhc_batch b =
		hzi_phi_batch_of(p, &job->a->rule, job->a->alpha, job->a->bias, tokens, r);

	hzi_mhc_kern_of(job->ctx->level, b.rule->n)->coefs_bwd(&b);
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

/* dx of channels c .. of a tile, number `at` of a block, whose products with phi are in r->add */
static void back_streams(const struct bwd_job *job, int64_t t, int at, int tokens, int64_t c,
			 int64_t count, bool last, const struct hzi_phi_room *r)
{
	const struct hzi_mhc_pre_bwd_args *const a = job->a;
	const struct hzi_phi_plan *const p = &job->plan->p;
	const struct hzi_mhc_streams_bwd_args args = streams_of(a, false, true);
	const int n = p->n;

	for (int i = 0; i < tokens; i++) {
		const float *const token = r->token + (at + i) * (n + n * n);
		const struct hzi_mhc_unmix u = {
			.a = &args, .coef.p = token, .coef.a = p->all ? token + n : NULL,
			.du_floats = a->norm && a->du.data ?
					     r->du + (at + i) * p->padded + c : NULL,
			.add = r->add + i * HZI_PHI_ADD, .add_stream = TOKENS * HZI_PHI_ADD,
			.factor = r->factor[at + i], .stream_dx = job->stream_dx, .next = false,
			.last = last,
		};

		hzi_mhc_unmix(job->ctx, &u, t + at + i, c, count);
	}
}

/* dx of channels c .. of a tile, number `at` of a block, and its share of dphi */
static void back_tile(const struct bwd_job *job, int64_t t, int at, int tokens, int64_t c,
		      int64_t count, float *dphi, const struct hzi_phi_room *r)
{
	const struct hzi_mhc_pre_bwd_args *const a = job->a;
	const struct hzi_phi_plan *const p = &job->plan->p;
	const struct hzi_mhc_kern *const kern = hzi_mhc_kern + job->ctx->level;
	struct hzi_mhc_product product = {
		.x = r->x, .x_ld = HZI_PHI_LD, .d = r->d + at * p->m, .y_ld = HZI_PHI_ADD,
		.count = hzi_phi_pairs(job->ctx, count), .tokens = tokens, .m = p->m,
	};

	for (int j = 0; j < p->n; j++) {
		if (a->dx.data) {
			product.phi = (float *)(uintptr_t)job->phi.data + j * job->phi.stream + c;
			product.phi_ld = job->phi.row;
			product.y = r->add + j * TOKENS * HZI_PHI_ADD;
			kern->spread(&product);
		}
		if (dphi) {
			hzi_phi_widen(job->ctx, p, &a->x, a->s.dtype, t + at, tokens, j, c, count,
				      r);
			product.phi = dphi + j * p->padded + c;
			product.phi_ld = p->n * p->padded;
			kern->outer(&product);
		}
	}
	if (a->dx.data)
		back_streams(job, t, at, tokens, c, count, false, r);
}

/* ---- By halves: dphi as [n padded / 32][2][m][16] -------------------------------------------- */

#define STEP 32				/* tokens of a step of mhc_half_outer() */

/* Whether dx is made of x and d alone, and where it lies */
static bool is_alone(const struct hzi_mhc_pre_bwd_args *a)
{
	return a->dx.data && a->dx.channel == 1 && !a->du.data && !a->dy.data && !a->accumulate;
}

/* Whether mhc_half_back() takes tiles of count channels */
static bool is_near(const struct bwd_job *job, int64_t count)
{
	const struct hzi_mhc_pre_bwd_args *const a = job->a;

	return a->s.dtype == HZ_BF16 && a->x.channel == 1 && job->plan->p.m > 16 &&
	       count % 32 == 0;
}

/* d of a block in two parts, of tokens by rows of phi and the other way round, 0 beyond */
static void split_d(const struct bwd_job *job, int block, const struct hzi_phi_room *r)
{
	const size_t numbers = (size_t)job->plan->p.block * 2;
	const int m = job->plan->p.m;

	memset(r->d_spread, 0, numbers * 32 * sizeof(*r->d_spread));
	memset(r->d_outer, 0, numbers * (size_t)m * sizeof(*r->d_outer));
	for (int i = 0; i < block; i++) {
		uint16_t *const spread = r->d_spread + i / TOKENS * 2 * HZI_MHC_HALVES +
					 i % TOKENS * 32;
		uint16_t *const outer = r->d_outer + i / STEP * 2 * m * STEP + i % STEP;

		for (int k = 0; k < m; k++) {
			hzi_phi_parts(r->d[i * m + k], &spread[k], &spread[HZI_MHC_HALVES + k]);
			outer[k * STEP] = spread[k];
			outer[(m + k) * STEP] = spread[HZI_MHC_HALVES + k];
		}
	}
}

/*
 * Channels c .. of stream j of the share of dphi of tokens from number `at` of a block on; fresh:
 * it is the first
 */
static void outer_halves(const struct bwd_job *job, int64_t t, int at, int tokens, int j, int64_t c,
			 int64_t count, bool fresh, float *dphi, const struct hzi_phi_room *r)
{
	const struct hzi_mhc_pre_bwd_args *const a = job->a;
	const struct hzi_phi_plan *const p = &job->plan->p;
	const int64_t size = hzi_mhc_size(a->s.dtype), groups = hzi_mhc_ceil(count, 32) * 2;
	const int64_t tiles = groups * HZI_MHC_HALVES;
	uint16_t *const low = r->woven + HZI_PHI_SOME * HZI_PHI_WIDE;
	const bool more = j + 1 < p->n;
	const struct hzi_mhc_half_outer outer = {
		.ahead = hzi_phi_ahead(&a->x, p, size, more ? t + at : t + at + HZI_PHI_SOME,
				       more ? j + 1 : 0, c),
		.d = r->d_outer + at * 2 * p->m, .x = r->woven,
		.low = a->s.dtype == HZ_BF16 ? NULL : low,
		.phi = dphi + (j * p->padded + c) * p->m, .steps = hzi_mhc_ceil(tokens, STEP),
		.groups = groups, .m = p->m, .fresh = fresh,
	};
	float buffer[2][HZI_PHI_WIDE];

	for (int i = 0; i < outer.steps * STEP; i += 2) {
		struct hzi_mhc_parts parts = {
			.high = r->woven + i / STEP * tiles + i % STEP / 2 * 32,
			.low = low + i / STEP * tiles + i % STEP / 2 * 32, .count = count,
			.dtype = a->s.dtype,
		};

		if (i < tokens)
			parts.x = hzi_phi_stream(&a->x, size, t + at + i, j, c, count, buffer[0]);
		if (i + 1 < tokens)
			parts.y = hzi_phi_stream(&a->x, size, t + at + i + 1, j, c, count,
						 buffer[1]);
		hzi_mhc_kern[job->ctx->level].weave(&parts);
	}
	hzi_mhc_kern[job->ctx->level].half_outer(&outer);
}

/* Channels c .. of dx of tokens from number `at` of a block on */
static void dx_halves(const struct bwd_job *job, int64_t t, int at, int tokens, int64_t c,
		      int64_t count, bool last, const struct hzi_phi_room *r)
{
	const struct hzi_phi_plan *const p = &job->plan->p;
	const int64_t part = (p->m + 1) / 2 * 32;

	for (int j = 0; j < p->n; j++) {
		const struct hzi_mhc_half_spread spread = {
			.d = r->d_spread + at / TOKENS * 2 * HZI_MHC_HALVES,
			.phi = job->phi.spread + (j * p->padded + c) / 16 * 2 * part,
			.y = r->add + j * TOKENS * HZI_PHI_ADD, .y_ld = HZI_PHI_ADD,
			.groups = hzi_mhc_ceil(count, 16), .m = p->m,
		};

		hzi_mhc_kern[job->ctx->level].half_spread(&spread);
	}
	back_streams(job, t, at, tokens, c, count, last, r);
}

/*
 * Channels c .. of stream j of whole tiles where they lie, HZI_MHC_BACK tokens from number `at` of
 * a block on: their share of dphi, and dx if nothing but x and d makes it
 */
static void near_halves(const struct bwd_job *job, int64_t t, int at, int j, int64_t c,
			int64_t count, bool fresh, float *dphi, const struct hzi_phi_room *r)
{
	const struct hzi_mhc_pre_bwd_args *const a = job->a;
	const struct hzi_phi_plan *const p = &job->plan->p;
	const int64_t part = (p->m + 1) / 2 * 32;
	const struct hzi_mhc_half_back back = {
		.x = (uint16_t *)hzi_mhc_at(&a->x, 2, t + at, c) + j * a->x.stream,
		.x_ld = a->x.token, .d_spread = r->d_spread + at / TOKENS * 2 * HZI_MHC_HALVES,
		.d_outer = r->d_outer + at * 2 * p->m,
		.phi = job->phi.spread + (j * p->padded + c) / 16 * 2 * part,
		.factor = r->factor + at, .dphi = dphi ? dphi + (j * p->padded + c) * p->m : NULL,
		.dx = is_alone(a) ? (uint16_t *)hzi_mhc_at(&a->dx, 2, t + at, c) +
					    j * a->dx.stream : NULL,
		.dx_ld = a->dx.token, .blocks = count / 32, .m = p->m, .fresh = fresh,
		.stream = job->stream_dx,
	};

	hzi_mhc_kern[job->ctx->level].half_back(&back);
}

/*
 * Channels c .. of a block: dx and its share of dphi. Parts of phi and dphi stay in L2 for the
 * block, streams for some tokens of it.
 */
static void back_halves(const struct bwd_job *job, int64_t t, int block, int64_t c, int64_t count,
			bool fresh, float *dphi, const struct hzi_phi_room *r)
{
	const struct hzi_mhc_pre_bwd_args *const a = job->a;
	const struct hzi_phi_plan *const p = &job->plan->p;
	const bool alone = is_alone(a);
	const int near = is_near(job, count) ? block / HZI_MHC_BACK * HZI_MHC_BACK : 0;

	for (int j = 0; j < p->n && alone; j++) {
		for (int at = 0; at < near; at += HZI_MHC_BACK)
			near_halves(job, t, at, j, c, count, fresh && at == 0, dphi, r);
	}
	for (int at = alone ? near : 0; at < block; at += TOKENS) {
		for (int j = 0; j < p->n && dphi && at < near && at % HZI_MHC_BACK == 0; j++)
			near_halves(job, t, at, j, c, count, fresh && at == 0, dphi, r);
		if (at >= near && at % HZI_PHI_SOME == 0) {
			const int some = (int)hzi_mhc_min(HZI_PHI_SOME, block - at);

			for (int j = 0; j < p->n && dphi; j++)
				outer_halves(job, t, at, some, j, c, count, fresh && at == 0, dphi,
					     r);
		}
		for (int64_t e = 0; e < count && a->dx.data; e += HZI_MHC_TILE)
			dx_halves(job, t, at, (int)hzi_mhc_min(TOKENS, block - at), c + e,
				  hzi_mhc_min(HZI_MHC_TILE, count - e), e + HZI_MHC_TILE >= count,
				  r);
	}
}

/* ---- Chunks ---------------------------------------------------------------------------------- */

/* Blocks of tokens of their own coefficients, of a chunk */
static void chunk_of_tokens(const struct bwd_job *job, int64_t chunk,
			    const struct hzi_phi_room *r)
{
	const struct bwd_plan *const plan = job->plan;
	const struct hzi_phi_plan *const p = &plan->p;
	const int64_t end = hzi_mhc_min((chunk + 1) * plan->chunk, job->a->s.tokens);
	const int n = p->n;
	float *const dphi = plan->dphi ? job->dphi + chunk * (int64_t)plan->dphi : NULL;
	float *const dnorm = plan->dnorm ? job->dnorm + chunk * (int64_t)plan->dnorm : NULL;
	double *const weights = job->weights + chunk * (int64_t)plan->weights;
	const int64_t wide = p->halves ? HZI_PHI_WIDE : HZI_MHC_TILE;

	for (int64_t t = chunk * plan->chunk; t < end; t += p->block) {
		const int block = (int)hzi_mhc_min(p->block, end - t);
		const float *const raw = recall(job, t, block, r);

		for (int at = 0; at < block; at += TOKENS) {
			const int tokens = (int)hzi_mhc_min(TOKENS, block - at);
			float rho[TOKENS];

			remake(job, raw, at, tokens, r, rho);
			for (int i = 0; i < tokens; i++) {
				float *const token = r->token + (at + i) * (n + n * n);

				hzi_phi_pick(r->p, i, n, token);
				if (p->all)
					hzi_phi_pick(r->a, i, n * n, token + n);
			}
			sum_tile(job, t + at, at, tokens, r, dnorm);
			back_coefs(job, tokens, r, rho, r->d + at * p->m, r->factor + at, weights);
		}
		if (p->halves)
			split_d(job, block, r);
		for (int64_t c = 0; c < p->channels; c += wide) {
			const int64_t count = hzi_mhc_min(wide, p->channels - c);

			if (p->halves) {
				back_halves(job, t, block, c, count, t == chunk * plan->chunk, dphi,
					    r);
				continue;
			}
			for (int at = 0; at < block; at += TOKENS)
				back_tile(job, t, at, (int)hzi_mhc_min(TOKENS, block - at), c,
					  count, dphi, r);
		}
	}
}

/* Tiles of groups of tokens, of a chunk: of means */
static void chunk_of_groups(const struct bwd_job *job, int64_t chunk,
			    const struct hzi_phi_room *r)
{
	const struct hzi_mhc_pre_bwd_args *const a = job->a;
	const struct bwd_plan *const plan = job->plan;
	const struct hzi_phi_plan *const p = &plan->p;
	const int64_t row = p->n * p->padded;
	const int64_t end = hzi_mhc_min((chunk + 1) * plan->chunk, a->s.groups);
	float *const dphi = plan->dphi ? job->dphi + chunk * (int64_t)plan->dphi : NULL;
	double *const weights = job->weights + chunk * (int64_t)plan->weights;

	for (int64_t g = chunk * plan->chunk; g < end; g += TOKENS) {
		const int groups = (int)hzi_mhc_min(TOKENS, end - g);
		float rho[TOKENS], factor[TOKENS] = {0}, d[TOKENS * HZI_MHC_ROWS];

		remake(job, recall(job, g, groups, r), 0, groups, r, rho);
		take_sums(job, g, groups, r);
		back_coefs(job, groups, r, rho, d, factor, weights);
		if (job->x.data) {
			struct hzi_mhc_product product = {
				.x = (float *)job->x.data + g * row, .x_ld = row, .d = d,
				.y_ld = row, .count = row, .tokens = groups, .m = p->m,
			};

			if (a->dx.data) {
				product.phi = (float *)(uintptr_t)job->phi.data;
				product.phi_ld = job->phi.row;
				product.y = job->dmean + g * row;
				hzi_mhc_kern[job->ctx->level].spread(&product);
				for (int64_t i = 0; i < groups * row && a->s.tokens > 0; i++)
					product.y[i] = (product.y[i] +
							factor[i / row] * product.x[i]) /
						       (float)hzi_mhc_length(&a->s);
			}
			if (dphi) {
				product.phi = dphi;
				product.phi_ld = row;
				hzi_mhc_kern[job->ctx->level].outer(&product);
			}
		}
	}
}

static void chunk_units(void *data, int thread, int64_t begin, int64_t end)
{
	const struct bwd_job *const job = data;
	const struct bwd_plan *const plan = job->plan;
	const struct hzi_phi_room r = hzi_phi_room_of(&plan->p, job->rooms, thread);

	for (int64_t u = begin; u < end; u++) {
		if (plan->dphi && !plan->p.halves && !(plan->direct && job->a->accumulate))
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
	const struct hzi_phi_plan *const p = &job->plan->p;
	const struct hzi_phi_room r = hzi_phi_room_of(p, job->rooms, thread);
	float rho[TOKENS], out[HZI_MHC_STREAMS * HZI_MHC_STREAMS];

	for (int64_t u = begin; u < end; u++) {
		const int64_t g = u * TOKENS;
		const int groups = (int)hzi_mhc_min(TOKENS, job->a->s.groups - g);

		remake(job, recall(job, g, groups, &r), 0, groups, &r, rho);
		for (int i = 0; i < groups; i++) {
			hzi_mhc_put(&job->p, g + i, p->n, 1, hzi_phi_pick(r.p, i, p->n, out));
			if (p->all)
				hzi_mhc_put(&job->A, g + i, p->n, p->n,
					    hzi_phi_pick(r.a, i, p->n * p->n, out));
		}
	}
}

#define WEIGHTS 64			/* channels whose gradients are summed at once */

/* Channels c .. of stream j of all rows of chunks' dphi to sum [m][WEIGHTS] */
static void sum_rows(const struct bwd_job *job, int64_t j, int64_t c, int64_t count,
		     float (*sum)[WEIGHTS])
{
	const struct bwd_plan *const plan = job->plan;
	const struct hzi_phi_plan *const p = &plan->p;

	memset(sum, 0, (size_t)p->m * sizeof(*sum));
	for (int64_t u = 0; u < plan->chunks; u++) {
		const float *const dphi = job->dphi + u * (int64_t)plan->dphi;
		const int64_t ahead = u + 1 < plan->chunks ? (int64_t)plan->dphi : 0;

		for (int k = 0; k < p->m && !p->halves; k++) {
			const float *const from = dphi + (k * p->n + j) * p->padded + c;

			for (int64_t i = 0; i < count; i++)
				sum[k][i] += from[i];
		}
		for (int64_t i = 0; i < hzi_mhc_room(count) && p->halves; i += 16) {
			const float *from = dphi + (j * p->padded + c + i) * p->m;

			for (int k = 0; k < p->m; k++, from += 16) {
				__builtin_prefetch(from + ahead);
				for (int e = 0; e < 16; e++)
					sum[k][i + e] += from[e];
			}
		}
	}
}

/* Gradients of weights from those of chunks: blocks of channels of a stream */
static void weight_units(void *data, int thread, int64_t begin, int64_t end)
{
	const struct bwd_job *const job = data;
	const struct hzi_mhc_pre_bwd_args *const a = job->a;
	const struct hzi_phi_plan *const p = &job->plan->p;
	const int64_t C = p->channels, blocks = hzi_mhc_ceil(C, WEIGHTS);

	(void)thread;
	for (int64_t b = begin; b < end; b++) {
		const int64_t j = b / blocks, c = b % blocks * WEIGHTS, at = j * C + c;
		const int64_t count = hzi_mhc_min(WEIGHTS, C - c);
		float dgain[WEIGHTS] = {0}, all[HZI_MHC_ROWS][WEIGHTS];

		sum_rows(job, j, c, count, all);
		for (int k = 0; k < p->m; k++) {
			const int64_t row = k * p->n * C + at;
			float sum[WEIGHTS];

			/* Of 32 channels by halves the even ones come first. */
			for (int64_t i = 0; i < WEIGHTS; i++)
				sum[i] = all[k][p->halves ? i / 32 * 32 + i % 2 * 16 + i % 32 / 2 :
							    i];
			for (int64_t i = 0; a->dgain && i < count; i++)
				dgain[i] += sum[i] * a->phi[row + i];
			for (int64_t i = 0; a->gain && i < count; i++)
				sum[i] *= a->gain[at + i];
			for (int64_t i = 0; a->dphi && a->accumulate && i < count; i++)
				sum[i] += a->dphi[row + i];
			if (a->dphi)
				memcpy(a->dphi + row, sum, (size_t)count * sizeof(*sum));
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
	const struct hzi_phi_plan *const p = &plan->p;
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

static int run(struct hz_context *ctx, const struct hzi_mhc_pre_bwd_args *a, bool amx)
{
	const struct bwd_plan plan = bwd_plan(ctx, a, amx);
	const struct hzi_phi_plan *const p = &plan.p;
	const int64_t n = p->n, groups = a->s.groups;
	struct bwd_job job = {
		.ctx = ctx, .a = a, .plan = &plan, .x_dtype = a->s.dtype,
		.weights = ctx->workspace,
		.stream_dx = hzi_mhc_stream(ctx, &a->dx, &a->s, a->s.n) && !a->accumulate,
	};
	/* As workspaces do, it begins where a line does. */
	float *work = (float *)(job.weights +
				hzi_mhc_ceil(plan.chunks * (int64_t)plan.weights, 8) * 8);
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
		job.phi = hzi_phi_of(ctx, p, a->phi, a->gain, work);
		job.x = a->x;
	}
	work += hzi_phi_floats(p);
	if (!plan.shared) {
		hzi_parallel(p->threads, chunk_units, &job, plan.chunks);
		put_weights(&job);
		return HZ_OK;
	}
	if (a->phi) {
		hzi_phi_means(ctx, p, &a->x, &a->s, job.rooms, work);
		job.x = hzi_phi_mean_array(p, work);
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

/* ---- Routes ---------------------------------------------------------------------------------- */

const char *hzi_cpu_mhc_coef_bwd_amx_unsupported(const struct hz_context *ctx, const void *args)
{
	const struct hzi_mhc_pre_bwd_args *a = args;

	if (a->saved && a->rule.m > HZI_MHC_HALF_ROWS)
		return "more than 32 rows of phi, and sums that need no projection";
	return hzi_phi_amx_unsupported(ctx, &a->s, a->phi);
}

size_t hzi_cpu_mhc_coef_bwd_amx_workspace(const struct hz_context *ctx, const void *args)
{
	return workspace(ctx, args, true);
}

int hzi_cpu_mhc_coef_bwd_amx(struct hz_context *ctx, const void *args)
{
	return run(ctx, args, true);
}

size_t hzi_cpu_mhc_coef_bwd_vectors_workspace(const struct hz_context *ctx, const void *args)
{
	return workspace(ctx, args, false);
}

int hzi_cpu_mhc_coef_bwd_vectors(struct hz_context *ctx, const void *args)
{
	return run(ctx, args, false);
}
