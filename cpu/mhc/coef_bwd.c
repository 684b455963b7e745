/*
 * coef_bwd.c - gradients of coefficients of hyper-connections and of branch inputs
 *
 * SPDX-License-Identifier: BSD-2-Clause
 *
 * A chunk is a number of groups, which depends only on shapes. Each chunk has its own sums of the
 * gradients of weights, which are added in the order of chunks.
 */
#include <config.h>

#include <string.h>

#include "cpu/mhc/coef.h"

#define CHUNK_LEAST 256			/* tokens */
#define CHUNKS_MOST 64

struct bwd_plan {
	struct hzi_mhc_coef_plan p;
	bool shared;			/* tokens share coefficients */
	int64_t chunk, chunks;		/* groups of a chunk; number of chunks */
	size_t dphi, dnorm, weights;	/* floats, floats, doubles for each chunk */
	bool direct;			/* one chunk, which adds directly to dphi */
	size_t means;			/* floats of the means; their gradients need as many */
	size_t dx_general;			/* bytes of hzi_mhc_mix_bwd() */
};

struct bwd_job {
	const struct hz_context *ctx;
	const struct hzi_mhc_pre_bwd_args *a;
	const struct bwd_plan *plan;
	struct hzi_mhc_packed_phi phi;
	struct hzi_mhc_array x;		/* projected streams; data NULL: none */
	int x_dtype;
	struct hzi_mhc_coef p, A, dp, da;	/* of groups, in the workspace, if shared */
	float *scratch, *dphi, *dnorm, *dmean;
	double *weights;		/* [chunks][m + 3]: dbias, dalpha */
	bool stream_dx;
};

static bool bwd_shared(const struct hzi_mhc_pre_bwd_args *a)
{
	return !a->phi || a->s.groups != a->s.tokens;
}

/* Arguments of mhc_streams_bwd for u and y: the sums dp and da, or dx */
static struct hzi_mhc_streams_bwd_args streams_of(const struct hzi_mhc_pre_bwd_args *a, bool sums,
						  bool dx)
{
	static float wanted;
	const struct hzi_mhc_coef some = {&wanted, 0, 0, 0};
	struct hzi_mhc_streams_bwd_args s = {.s = a->s, .x = a->x, .du = a->du, .dy = a->dy};

	if (sums && a->du.data && (!a->p_in.data || a->dp_in.data))
		s.dp = some;
	if (sums && a->dy.data)
		s.da = some;
	if (dx) {
		s.dx = a->dx;
		s.accumulate = a->accumulate;
	}
	return s;
}

static struct hzi_mhc_bwd_extra extra_of(const struct hzi_mhc_pre_bwd_args *a)
{
	return (struct hzi_mhc_bwd_extra){
		.norm = a->du.data ? a->norm : NULL, .norm_eps = a->rule.norm_eps,
		.dnorm = a->du.data && a->norm ? a->dnorm : NULL,
		.accumulate_dnorm = a->accumulate,
	};
}

static struct bwd_plan bwd_plan(const struct hz_context *ctx, const struct hzi_mhc_pre_bwd_args *a,
				bool amx)
{
	const struct hzi_mhc_bwd_extra interleave_upper = extra_of(a);
	struct bwd_plan b = {
		.p = hzi_mhc_plan_coef(ctx, &a->s, &a->rule, a->phi, a->gain, true, a->norm,
				       amx),
		.shared = bwd_shared(a),
	};
	const size_t row = (size_t)(b.p.n * b.p.padded);
	const int64_t each = hzi_mhc_ceil(a->s.groups, CHUNKS_MOST);

	if (a->saved) {
		b.p.amx_phi = 0;		/* no projection */
		b.p.panels = 0;
	}
	b.chunk = hzi_mhc_ceil(each > CHUNK_LEAST ? each : CHUNK_LEAST, b.p.block) * b.p.block;
	b.chunks = hzi_mhc_ceil(a->s.groups, b.chunk);
	b.dphi = a->phi && (a->dphi || a->dgain) ? (size_t)b.p.m * row : 0;
	b.direct = b.dphi && b.chunks == 1 && !b.p.pack && !a->dgain && !b.p.amx_bwd;
	b.dnorm = interleave_upper.dnorm && !b.shared ? (size_t)b.p.padded : 0;
	b.weights = (size_t)b.p.m + 3;
	if (b.shared) {
		const struct hzi_mhc_streams_bwd_args s = streams_of(a, true, true);

		b.means = a->phi ? (size_t)a->s.groups * row : 0;
		b.dx_general = hzi_mhc_mix_bwd_bytes(&s, &interleave_upper);
	}
	return b;
}

static size_t shared_floats(const struct bwd_plan *b, const struct hzi_mhc_shape *s)
{
	const size_t n = (size_t)b->p.n;

	return b->shared ? (size_t)s->groups * (2 * n + 2 * n * n) + 2 * b->means : 0;
}

static size_t workspace(const struct hz_context *ctx, const struct hzi_mhc_pre_bwd_args *a,
			bool amx)
{
	const struct bwd_plan b = bwd_plan(ctx, a, amx);
	const size_t chunks = (size_t)b.chunks;

	return (chunks * ((b.direct ? 0 : b.dphi) + b.dnorm) + hzi_mhc_phi_floats(&b.p) +
		b.p.scratch * (size_t)b.p.threads + shared_floats(&b, &a->s)) * sizeof(float) +
	       chunks * b.weights * sizeof(double) + b.dx_general + 64;
}

/* Sums and mean squares of a block of groups: saved, or projected again */
static const float *raw_sums(const struct bwd_job *job, int64_t t, int tokens,
			     const struct hzi_mhc_scratch *r)
{
	const struct hzi_mhc_coef_plan *const p = &job->plan->p;

	if (!job->x.data)
		return NULL;
	/* Saved sums are not those of each stream. */
	if (job->a->saved && !p->divided)
		return job->a->saved + t * (p->m + 1);
	hzi_mhc_project_tokens(job->ctx, p, &job->phi, &job->x, job->x_dtype, t, tokens, r);
	return r->raw;
}

/* y and coefficients of a tile, which begins at token `at` of the block */
static void make_coefs(const struct bwd_job *job, const float *raw, int at, int tokens,
		       const struct hzi_mhc_scratch *r, struct hzi_mhc_roots *roots)
{
	const struct hzi_mhc_pre_bwd_args *const a = job->a;
	const struct hzi_mhc_coef_plan *const p = &job->plan->p;
	const struct hzi_mhc_batch b = hzi_mhc_batch_of(p, &a->rule, a->alpha, a->bias, tokens, r);
	struct hzi_fp_watch w;

	hzi_mhc_normalize(p, &a->rule, raw ? raw + at * (p->m + 1) : NULL, tokens, r->y, roots);
	hzi_fp_silence_begin(&w);
	hzi_mhc_kern_of(job->ctx->level, b.rule->n)->coefs(&b);
	hzi_fp_silence_end(&w);
}

/* dp and da of a tile: <du, X[j]> and <dY[i], X[j]>, plus the given gradients */
static void sum_tile(const struct bwd_job *job, int64_t t, int at, int tokens,
		     const struct hzi_mhc_scratch *r, float *dnorm)
{
	const struct hzi_mhc_pre_bwd_args *const a = job->a;
	const struct hzi_mhc_kern *const kern = hzi_mhc_kern + job->ctx->level;
	const struct hzi_mhc_coef_plan *const p = &job->plan->p;
	const int n = p->n;
	const struct hzi_mhc_streams_bwd_args args = streams_of(a, true, false);
	const struct hzi_mhc_bwd_extra interleave_upper = extra_of(a);
	struct hzi_mhc_sums sums;
	struct hzi_mhc_token_bwd u = {.a = &args, .sums = &sums};

	for (int i = 0; i < tokens; i++) {
		float *const du = r->du + (at + i) * p->padded;
		const float *const mixed = r->token + (at + i) * (n + n * n);
		float sum[HZI_MHC_STREAMS * HZI_MHC_STREAMS], in[HZI_MHC_STREAMS * HZI_MHC_STREAMS];

		if (interleave_upper.norm)
			hzi_mhc_norm_bwd(job->ctx, &args, &interleave_upper, t + i,
					 mixed,
					 r->du + p->block * p->padded, du, dnorm);
		memset(&sums, 0, sizeof(sums));
		u.du_floats = interleave_upper.norm ? du : NULL;
		u.next = i + 1 < tokens;
		if (args.dp.data || args.da.data)
			hzi_mhc_token_bwd(job->ctx, &u, t + i, 0, p->channels);
		kern->sum_lanes(sums.dp, n, sum);
		if (a->p_in.data) {
			hzi_mhc_store_coefs(&a->dp_in, t + i, n, 1, sum);
			memset(sum, 0, sizeof(sum));
		}
		if (hzi_mhc_load_coefs(&a->dp, t + i, n, 1, in)) {
			for (int e = 0; e < n; e++)
				sum[e] += in[e];
		}
		hzi_mhc_set_token(r->dp, i, n, sum);
		memset(in, 0, sizeof(in));
		hzi_mhc_load_coefs(&a->dq, t + i, n, 1, in);
		hzi_mhc_set_token(r->dq, i, n, in);
		kern->sum_lanes(sums.da, n * n, sum);
		if (hzi_mhc_load_coefs(&a->da, t + i, n, n, in)) {
			for (int e = 0; e < n * n; e++)
				sum[e] += in[e];
		}
		hzi_mhc_set_token(r->da, i, n * n, sum);
	}
}

/* The same for groups, whose sums are in the workspace */
static void get_sums(const struct bwd_job *job, int64_t g, int groups,
		     const struct hzi_mhc_scratch *r)
{
	const struct hzi_mhc_pre_bwd_args *const a = job->a;
	const int n = job->plan->p.n, nn = n * n;
	float own[HZI_MHC_STREAMS * HZI_MHC_STREAMS], in[HZI_MHC_STREAMS * HZI_MHC_STREAMS];

	for (int i = 0; i < groups; i++) {
		memset(own, 0, sizeof(own));
		memset(in, 0, sizeof(in));
		if (a->du.data && !a->p_in.data)
			hzi_mhc_load_coefs(&job->dp, g + i, n, 1, own);
		hzi_mhc_load_coefs(&a->dp, g + i, n, 1, in);
		for (int e = 0; e < n; e++)
			own[e] += in[e];
		hzi_mhc_set_token(r->dp, i, n, own);
		memset(own, 0, sizeof(own));
		hzi_mhc_load_coefs(&a->dq, g + i, n, 1, own);
		hzi_mhc_set_token(r->dq, i, n, own);
		memset(own, 0, sizeof(own));
		memset(in, 0, sizeof(in));
		if (a->dy.data)
			hzi_mhc_load_coefs(&job->da, g + i, n, n, own);
		hzi_mhc_load_coefs(&a->da, g + i, n, n, in);
		for (int e = 0; e < nn; e++)
			own[e] += in[e];
		hzi_mhc_set_token(r->da, i, nn, own);
	}
}

/* Whether the square of a slope may leave the range of f32, or a product with it */
static bool is_far(float slope)
{
	return slope != 0 && (slope < 0x1p-40f || slope > 0x1p40f);
}

/* Clears the lanes behind the tokens of a tile, which vectors of tokens have, too. */
static void clear_lanes(float *p, int count, int tokens)
{
	for (int e = 0; e < count && tokens < TOKENS; e++)
		memset(p + e * TOKENS + tokens, 0, (size_t)(TOKENS - tokens) * sizeof(*p));
}

/*
 * From the gradients of the coefficients of a tile: d [m] of its sums, factor and far, with which
 * dx = sum_k d_k phi_k + factor x, far 0, or factor far x. Adds the gradients of bias and alpha to
 * weights.
 */
static void coefs_bwd_tile(const struct bwd_job *job, int tokens, const struct hzi_mhc_scratch *r,
			   const struct hzi_mhc_roots *roots, float *d, float *factor, float *far,
			   double *weights)
{
	const struct hzi_mhc_coef_plan *const p = &job->plan->p;
	const struct hzi_mhc_batch b =
		hzi_mhc_batch_of(p, &job->a->rule, job->a->alpha, job->a->bias, tokens, r);
	struct hzi_fp_watch w;

	clear_lanes(r->dp, p->n, tokens);
	clear_lanes(r->dq, p->n, tokens);
	clear_lanes(r->da, p->n * p->n, tokens);
	hzi_fp_silence_begin(&w);
	hzi_mhc_kern_of(job->ctx->level, b.rule->n)->coefs_bwd(&b);
	hzi_fp_silence_end(&w);
	for (int i = 0; i < tokens; i++) {
		const float rho = roots->rho[i], slope = roots->slope[i];
		double dot = 0;

		for (int k = 0; k < p->m; k++) {
			weights[k] += (double)r->dz[k * TOKENS + i];
			if (!job->x.data)
				continue;
			d[i * p->m + k] = rho * r->dy[k * TOKENS + i];
			dot += (double)r->dy[k * TOKENS + i] * (double)r->y[k * TOKENS + i];
		}
		for (int g = 0; g < (p->all ? 3 : 1); g++)
			weights[p->m + g] += (double)r->dalpha[g * TOKENS + i];
		far[i] = is_far(slope) ? slope : 0;
		factor[i] = job->x.data && p->channels > 0 ?
				    (float)(-dot * (double)rho *
					    (is_far(slope) ? 1 : (double)slope) /
					    (double)(p->n * p->channels)) : 0;
	}
}

/*
 * With HZ_MHC_RMS_STREAM, of the tile at token `at`: d of each stream is rho dy, and dx = d phi +
 * share (rho x), where share = -slope sum_k dy_k <phi_k, rho x> / C
 */
static void divide_tile(const struct bwd_job *job, int at, int tokens,
			const struct hzi_mhc_scratch *r)
{
	const struct hzi_mhc_coef_plan *const p = &job->plan->p;

	for (int64_t i = at; i < at + tokens; i++) {
		for (int j = 0; j < p->n; j++) {
			const float *const raw = r->raws + (i * p->n + j) * p->m;
			const double rho = (double)r->roots[(i * p->n + j) * 2];
			const double slope = (double)r->roots[(i * p->n + j) * 2 + 1];
			float *const d = r->parts + (j * p->block + i) * p->m;
			double dot = 0;

			for (int k = 0; k < p->m; k++) {
				const double dy = (double)r->dy[k * TOKENS + i - at];

				d[k] = (float)(rho * dy);
				dot += dy * rho * (double)raw[k];
			}
			r->shares[j * p->block + i] =
				p->channels > 0 ? (float)(-slope * dot / (double)p->channels) : 0;
		}
	}
}

/* Adds share (rho x) of `count` channels of stream j, x [tokens][x_ld], to y. */
static void add_shares(const struct bwd_job *job, const struct hzi_mhc_scratch *r, int at,
		       int tokens, int j, const float *x, int64_t x_ld, float *y, int64_t y_ld,
		       int64_t count)
{
	const struct hzi_mhc_coef_plan *const p = &job->plan->p;

	for (int64_t i = 0; i < tokens; i++) {
		const float rho = r->roots[((at + i) * p->n + j) * 2];
		const float share = r->shares[j * p->block + at + i];

		for (int64_t c = 0; c < count; c++)
			y[i * y_ld + c] += share * (rho * x[i * x_ld + c]);
	}
}

/* Adds factor far x of a token, `count` channels, to r->add. */
static void add_far(const struct bwd_job *job, int64_t t, int at, int i, int64_t c, int64_t count,
		    const struct hzi_mhc_scratch *r)
{
	const struct hzi_mhc_array *const x = &job->a->x;
	const int64_t size = hzi_mhc_dtype_bytes(job->a->s.dtype);
	const double by = (double)r->factor[at + i] * (double)r->far[at + i];
	float row[HZI_MHC_TILE], buffer[HZI_MHC_TILE];

	for (int j = 0; j < job->plan->p.n; j++) {
		float *const to = r->add + (j * TOKENS + i) * HZI_MHC_ADD_LD;

		hzi_mhc_kern[job->ctx->level].widen(
			hzi_mhc_stream_row(x, size, t + at + i, j, c, count, buffer),
			job->a->s.dtype, count, row, NULL, NULL);
		for (int64_t e = 0; e < count; e++)
			to[e] += (float)(by * (double)row[e]);
	}
}

/* dx of `count` channels of the tile at token `at`; r->add holds d phi. */
static void dx_tile(const struct bwd_job *job, int64_t t, int at, int tokens, int64_t c,
		    int64_t count, bool last, const struct hzi_mhc_scratch *r)
{
	const struct hzi_mhc_pre_bwd_args *const a = job->a;
	const struct hzi_mhc_coef_plan *const p = &job->plan->p;
	const struct hzi_mhc_streams_bwd_args args = streams_of(a, false, true);
	const int n = p->n;

	for (int i = 0; i < tokens; i++) {
		const float *const token = r->token + (at + i) * (n + n * n);
		const struct hzi_mhc_token_bwd u = {
			.a = &args, .coef.p = token, .coef.a = p->all ? token + n : NULL,
			.du_floats = a->norm && a->du.data ?
					     r->du + (at + i) * p->padded + c : NULL,
			.add = r->add + i * HZI_MHC_ADD_LD, .add_stream = TOKENS * HZI_MHC_ADD_LD,
			.factor = r->far[at + i] != 0 ? 0 : r->factor[at + i],
			.stream_dx = job->stream_dx, .next = false, .last = last,
		};

		if (r->far[at + i] != 0)
			add_far(job, t, at, i, c, count, r);
		hzi_mhc_token_bwd(job->ctx, &u, t + at + i, c, count);
	}
}

/* dx and the contribution to dphi, for `count` channels of the tile at token `at` */
static void bwd_tile(const struct bwd_job *job, int64_t t, int at, int tokens, int64_t c,
		     int64_t count, float *dphi, const struct hzi_mhc_scratch *r)
{
	const struct hzi_mhc_pre_bwd_args *const a = job->a;
	const struct hzi_mhc_coef_plan *const p = &job->plan->p;
	const struct hzi_mhc_kern *const kern = hzi_mhc_kern + job->ctx->level;
	struct hzi_mhc_product product = {
		.x = r->x, .x_ld = HZI_MHC_X_LD, .d = r->d + at * p->m, .y_ld = HZI_MHC_ADD_LD,
		.count = hzi_mhc_round_to_pairs(job->ctx, count), .tokens = tokens, .m = p->m,
	};
	struct hzi_mhc_scratch x_alone = *r;

	x_alone.squares = NULL;
	for (int j = 0; j < p->n; j++) {
		if (p->divided)
			product.d = r->parts + (j * p->block + at) * p->m;
		if (a->dx.data) {
			product.phi = (float *)(uintptr_t)job->phi.data + j * job->phi.stream + c;
			product.phi_ld = job->phi.row;
			product.y = r->add + j * TOKENS * HZI_MHC_ADD_LD;
			kern->dx_gemm(&product);
		}
		if (dphi || p->divided)
			hzi_mhc_widen(job->ctx, p, &a->x, a->s.dtype, t + at, tokens, j, c, count,
				      &x_alone);
		if (p->divided && a->dx.data)
			add_shares(job, r, at, tokens, j, r->x, HZI_MHC_X_LD, product.y,
				   HZI_MHC_ADD_LD, count);
		if (dphi) {
			product.phi = dphi + j * p->padded + c;
			product.phi_ld = p->n * p->padded;
			kern->dphi_gemm(&product);
		}
	}
	if (a->dx.data)
		dx_tile(job, t, at, tokens, c, count, false, r);
}

/* ---- AMX tiles: dphi as [n padded / 32][even, odd][m][16] ------------------------------------ */

#define STEP 32				/* tokens of a step of amx_dphi */

/* Whether dx of a block depends only on x and d, and is written in place */
static bool is_dx_of_x_alone(const struct hzi_mhc_pre_bwd_args *a, int block,
			     const struct hzi_mhc_scratch *r)
{
	for (int i = 0; i < block; i++) {
		if (r->far[i] != 0)
			return false;
	}
	return a->dx.data && a->dx.channel == 1 && !a->du.data && !a->dy.data && !a->accumulate;
}

/* Whether amx_bwd supports tiles of `count` channels */
static bool has_amx_bwd(const struct bwd_job *job, int64_t count)
{
	const struct hzi_mhc_pre_bwd_args *const a = job->a;

	return a->s.dtype == HZ_BF16 && a->x.channel == 1 && job->plan->p.m > 16 &&
	       count % 32 == 0;
}

/* Packs d of a block for amx_dx (tokens by rows of phi) and amx_dphi (transposed), 0-padded. */
static void split_d(const struct bwd_job *job, int block, const struct hzi_mhc_scratch *r)
{
	const size_t numbers = (size_t)job->plan->p.block * 2;
	const int m = job->plan->p.m;

	memset(r->d_dx, 0, numbers * 32 * sizeof(*r->d_dx));
	memset(r->d_dphi, 0, numbers * (size_t)m * sizeof(*r->d_dphi));
	for (int i = 0; i < block; i++) {
		uint16_t *const dx = r->d_dx + i / TOKENS * 2 * HZI_MHC_AMX_TILE +
					 i % TOKENS * 32;
		uint16_t *const dphi = r->d_dphi + i / STEP * 2 * m * STEP + i % STEP;

		for (int k = 0; k < m; k++) {
			hzi_mhc_split_bf16(r->d[i * m + k], &dx[k], &dx[HZI_MHC_AMX_TILE + k]);
			dphi[k * STEP] = dx[k];
			dphi[(m + k) * STEP] = dx[HZI_MHC_AMX_TILE + k];
		}
	}
}

/*
 * The contribution to dphi of tokens from `at` on, `count` channels of stream j; fresh: the first
 * one
 */
static void dphi_amx(const struct bwd_job *job, int64_t t, int at, int tokens, int j, int64_t c,
		     int64_t count, bool fresh, float *dphi, const struct hzi_mhc_scratch *r)
{
	const struct hzi_mhc_pre_bwd_args *const a = job->a;
	const struct hzi_mhc_coef_plan *const p = &job->plan->p;
	const int64_t size = hzi_mhc_dtype_bytes(a->s.dtype), groups = hzi_mhc_ceil(count, 32) * 2;
	const int64_t tiles = groups * HZI_MHC_AMX_TILE;
	uint16_t *const low = r->interleaved + HZI_MHC_AMX_L2_TOKENS * HZI_MHC_AMX_CHANNELS;
	const bool more = j + 1 < p->n;
	const struct hzi_mhc_amx_dphi args = {
		.ahead = hzi_mhc_rows_ahead(&a->x, p, size,
					    more ? t + at : t + at + HZI_MHC_AMX_L2_TOKENS,
					    more ? j + 1 : 0, c),
		.d = r->d_dphi + at * 2 * p->m,
		.x = r->interleaved,
		.low = a->s.dtype == HZ_BF16 ? NULL : low,
		.phi = dphi + (j * p->padded + c) * p->m,
		.steps = hzi_mhc_ceil(tokens, STEP),
		.groups = groups,
		.m = p->m,
		.fresh = fresh,
	};
	float buffer[2][HZI_MHC_AMX_CHANNELS];

	for (int i = 0; i < args.steps * STEP; i += 2) {
		struct hzi_mhc_bf16_rows parts = {
			.high = r->interleaved + i / STEP * tiles + i % STEP / 2 * 32,
			.low = low + i / STEP * tiles + i % STEP / 2 * 32, .count = count,
			.dtype = a->s.dtype,
		};

		if (i < tokens)
			parts.x = hzi_mhc_stream_row(&a->x, size, t + at + i, j, c, count,
						     buffer[0]);
		if (i + 1 < tokens)
			parts.y = hzi_mhc_stream_row(&a->x, size, t + at + i + 1, j, c, count,
						     buffer[1]);
		hzi_mhc_kern[job->ctx->level].interleave_bf16(&parts);
	}
	hzi_mhc_kern[job->ctx->level].amx_dphi(&args);
}

/* dx of tokens from `at` on, `count` channels */
static void dx_amx(const struct bwd_job *job, int64_t t, int at, int tokens, int64_t c,
		   int64_t count, bool last, const struct hzi_mhc_scratch *r)
{
	const struct hzi_mhc_coef_plan *const p = &job->plan->p;
	const int64_t part = (p->m + 1) / 2 * 32;

	for (int j = 0; j < p->n; j++) {
		const struct hzi_mhc_amx_dx args = {
			.d = r->d_dx + at / TOKENS * 2 * HZI_MHC_AMX_TILE,
			.phi = job->phi.amx_dx + (j * p->padded + c) / 16 * 2 * part,
			.y = r->add + j * TOKENS * HZI_MHC_ADD_LD, .y_ld = HZI_MHC_ADD_LD,
			.groups = hzi_mhc_ceil(count, 16), .m = p->m,
		};

		hzi_mhc_kern[job->ctx->level].amx_dx(&args);
	}
	dx_tile(job, t, at, tokens, c, count, last, r);
}

/*
 * HZI_MHC_AMX_TOKENS tokens from `at` on, `count` channels of stream j, in place: the contribution
 * to dphi, and dx if it depends only on x and d
 */
static void bwd_in_place(const struct bwd_job *job, int64_t t, int at, int j, int64_t c,
			 int64_t count, bool alone, bool fresh, float *dphi,
			 const struct hzi_mhc_scratch *r)
{
	const struct hzi_mhc_pre_bwd_args *const a = job->a;
	const struct hzi_mhc_coef_plan *const p = &job->plan->p;
	const int64_t part = (p->m + 1) / 2 * 32;
	const struct hzi_mhc_amx_bwd args = {
		.x = (uint16_t *)hzi_mhc_at(&a->x, 2, t + at, c) + j * a->x.stream,
		.x_ld = a->x.token, .d_dx = r->d_dx + at / TOKENS * 2 * HZI_MHC_AMX_TILE,
		.d_dphi = r->d_dphi + at * 2 * p->m,
		.phi = job->phi.amx_dx + (j * p->padded + c) / 16 * 2 * part,
		.factor = r->factor + at, .dphi = dphi ? dphi + (j * p->padded + c) * p->m : NULL,
		.dx = alone ? (uint16_t *)hzi_mhc_at(&a->dx, 2, t + at, c) +
					    j * a->dx.stream : NULL,
		.dx_ld = a->dx.token, .blocks = count / 32, .m = p->m, .fresh = fresh,
		.stream = job->stream_dx,
	};

	hzi_mhc_kern[job->ctx->level].amx_bwd(&args);
}

/*
 * dx and the contribution to dphi of a block, for `count` channels. Parts of phi and dphi stay in
 * L2 for the whole block, streams for HZI_MHC_AMX_L2_TOKENS tokens.
 */
static void bwd_amx(const struct bwd_job *job, int64_t t, int block, int64_t c, int64_t count,
		    bool fresh, float *dphi, const struct hzi_mhc_scratch *r)
{
	const struct hzi_mhc_pre_bwd_args *const a = job->a;
	const struct hzi_mhc_coef_plan *const p = &job->plan->p;
	const bool alone = is_dx_of_x_alone(a, block, r);
	const int whole =
		has_amx_bwd(job, count) ? block / HZI_MHC_AMX_TOKENS * HZI_MHC_AMX_TOKENS : 0;

	for (int j = 0; j < p->n && alone; j++) {
		for (int at = 0; at < whole; at += HZI_MHC_AMX_TOKENS)
			bwd_in_place(job, t, at, j, c, count, alone, fresh && at == 0, dphi,
				     r);
	}
	for (int at = alone ? whole : 0; at < block; at += TOKENS) {
		for (int j = 0; j < p->n && dphi && at < whole && at % HZI_MHC_AMX_TOKENS == 0; j++)
			bwd_in_place(job, t, at, j, c, count, alone, fresh && at == 0, dphi,
				     r);
		if (at >= whole && at % HZI_MHC_AMX_L2_TOKENS == 0) {
			const int some = (int)hzi_mhc_min(HZI_MHC_AMX_L2_TOKENS, block - at);

			for (int j = 0; j < p->n && dphi; j++)
				dphi_amx(job, t, at, some, j, c, count, fresh && at == 0, dphi,
					 r);
		}
		for (int64_t e = 0; e < count && a->dx.data; e += HZI_MHC_TILE)
			dx_amx(job, t, at, (int)hzi_mhc_min(TOKENS, block - at), c + e,
			       hzi_mhc_min(HZI_MHC_TILE, count - e), e + HZI_MHC_TILE >= count,
			       r);
	}
}

/* ---- Chunks ---------------------------------------------------------------------------------- */

/* A chunk of tokens with coefficients of their own */
static void chunk_of_tokens(const struct bwd_job *job, int64_t chunk,
			    const struct hzi_mhc_scratch *r)
{
	const struct bwd_plan *const plan = job->plan;
	const struct hzi_mhc_coef_plan *const p = &plan->p;
	const int64_t end = hzi_mhc_min((chunk + 1) * plan->chunk, job->a->s.tokens);
	const int n = p->n;
	float *const dphi = plan->dphi ? job->dphi + chunk * (int64_t)plan->dphi : NULL;
	float *const dnorm = plan->dnorm ? job->dnorm + chunk * (int64_t)plan->dnorm : NULL;
	double *const weights = job->weights + chunk * (int64_t)plan->weights;
	const int64_t width = p->amx_bwd ? HZI_MHC_AMX_CHANNELS : HZI_MHC_TILE;

	for (int64_t t = chunk * plan->chunk; t < end; t += p->block) {
		const int block = (int)hzi_mhc_min(p->block, end - t);
		const float *const raw = raw_sums(job, t, block, r);

		for (int at = 0; at < block; at += TOKENS) {
			const int tokens = (int)hzi_mhc_min(TOKENS, block - at);
			struct hzi_mhc_roots roots;

			make_coefs(job, raw, at, tokens, r, &roots);
			for (int i = 0; i < tokens; i++) {
				float *const token = r->token + (at + i) * (n + n * n);

				hzi_mhc_get_token(r->p, i, n, token);
				hzi_mhc_load_coefs(&job->a->p_in, t + at + i, n, 1, token);
				if (p->all)
					hzi_mhc_get_token(r->a, i, n * n, token + n);
			}
			sum_tile(job, t + at, at, tokens, r, dnorm);
			coefs_bwd_tile(job, tokens, r, &roots, r->d + at * p->m, r->factor + at,
				       r->far + at, weights);
			if (p->divided)
				divide_tile(job, at, tokens, r);
		}
		if (p->amx_bwd)
			split_d(job, block, r);
		for (int64_t c = 0; c < p->channels; c += width) {
			const int64_t count = hzi_mhc_min(width, p->channels - c);

			if (p->amx_bwd) {
				bwd_amx(job, t, block, c, count, t == chunk * plan->chunk, dphi,
					r);
				continue;
			}
			for (int at = 0; at < block; at += TOKENS)
				bwd_tile(job, t, at, (int)hzi_mhc_min(TOKENS, block - at), c,
					 count, dphi, r);
		}
	}
}

/* Contributions of groups from g on to the gradients of means, and to dphi */
static void products_of_groups(const struct bwd_job *job, int64_t g, int groups, const float *d,
			       const float *factor, const float *far, float *dphi,
			       const struct hzi_mhc_scratch *r)
{
	const struct hzi_mhc_pre_bwd_args *const a = job->a;
	const struct hzi_mhc_coef_plan *const p = &job->plan->p;
	const int64_t row = p->n * p->padded, length = hzi_mhc_group_tokens(&a->s);
	/* All streams at a time, or with HZ_MHC_RMS_STREAM each */
	const int64_t each = p->divided ? p->padded : row;

	for (int j = 0; j < row / (each ? each : 1); j++) {
		struct hzi_mhc_product product = {
			.x = (float *)job->x.data + g * row + j * each, .x_ld = row,
			.d = p->divided ? r->parts + j * p->block * p->m : d, .y_ld = row,
			.count = each, .tokens = groups, .m = p->m,
		};

		if (a->dx.data) {
			product.phi = (float *)(uintptr_t)job->phi.data + j * job->phi.stream;
			product.phi_ld = job->phi.row;
			product.y = job->dmean + g * row + j * each;
			hzi_mhc_kern[job->ctx->level].dx_gemm(&product);
			if (p->divided)
				add_shares(job, r, 0, groups, j, product.x, row, product.y, row,
					   each);
		}
		if (dphi) {
			product.phi = dphi + j * each;
			product.phi_ld = row;
			hzi_mhc_kern[job->ctx->level].dphi_gemm(&product);
		}
	}
	for (int64_t i = 0; a->dx.data && i < groups * row && a->s.tokens > 0; i++) {
		const int64_t s = i / row;
		const float x = ((float *)job->x.data)[g * row + i];
		const float by = far[s] == 0 ? factor[s] * x :
			(float)((double)factor[s] * (double)far[s] * (double)x);
		float *const to = job->dmean + g * row + i;

		*to = (*to + by) / (float)length;
	}
}

/* A chunk of groups of tokens: gradients of means */
static void chunk_of_groups(const struct bwd_job *job, int64_t chunk,
			    const struct hzi_mhc_scratch *r)
{
	const struct hzi_mhc_pre_bwd_args *const a = job->a;
	const struct bwd_plan *const plan = job->plan;
	const struct hzi_mhc_coef_plan *const p = &plan->p;
	const int64_t end = hzi_mhc_min((chunk + 1) * plan->chunk, a->s.groups);
	float *const dphi = plan->dphi ? job->dphi + chunk * (int64_t)plan->dphi : NULL;
	double *const weights = job->weights + chunk * (int64_t)plan->weights;

	for (int64_t g = chunk * plan->chunk; g < end; g += TOKENS) {
		const int groups = (int)hzi_mhc_min(TOKENS, end - g);
		float factor[TOKENS] = {0}, far[TOKENS] = {0}, d[TOKENS * HZI_MHC_ROWS];
		struct hzi_mhc_roots roots;

		make_coefs(job, raw_sums(job, g, groups, r), 0, groups, r, &roots);
		get_sums(job, g, groups, r);
		coefs_bwd_tile(job, groups, r, &roots, d, factor, far, weights);
		if (p->divided)
			divide_tile(job, 0, groups, r);
		if (job->x.data)
			products_of_groups(job, g, groups, d, factor, far, dphi, r);
	}
}

static void chunk_units(void *data, int thread, int64_t begin, int64_t end)
{
	const struct bwd_job *const job = data;
	const struct bwd_plan *const plan = job->plan;
	const struct hzi_mhc_scratch r = hzi_mhc_scratch_of(&plan->p, job->scratch, thread);

	for (int64_t u = begin; u < end; u++) {
		if (plan->dphi && !plan->p.amx_bwd && !(plan->direct && job->a->accumulate))
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

/* Computes coefficients of groups to the workspace. */
static void coef_units(void *data, int thread, int64_t begin, int64_t end)
{
	const struct bwd_job *const job = data;
	const struct hzi_mhc_coef_plan *const p = &job->plan->p;
	const struct hzi_mhc_scratch r = hzi_mhc_scratch_of(p, job->scratch, thread);
	float out[HZI_MHC_STREAMS * HZI_MHC_STREAMS];
	struct hzi_mhc_roots roots;

	for (int64_t u = begin; u < end; u++) {
		const int64_t g = u * TOKENS;
		const int groups = (int)hzi_mhc_min(TOKENS, job->a->s.groups - g);

		make_coefs(job, raw_sums(job, g, groups, &r), 0, groups, &r, &roots);
		for (int i = 0; i < groups; i++) {
			hzi_mhc_get_token(r.p, i, p->n, out);
			hzi_mhc_load_coefs(&job->a->p_in, g + i, p->n, 1, out);
			hzi_mhc_store_coefs(&job->p, g + i, p->n, 1, out);
			if (p->all)
				hzi_mhc_store_coefs(&job->A, g + i, p->n, p->n,
						    hzi_mhc_get_token(r.a, i, p->n * p->n, out));
		}
	}
}

#define WEIGHTS 64			/* channels of dphi that are summed at a time */

/* sum [m][WEIGHTS]: dphi of all chunks, `count` channels of stream j */
static void sum_rows(const struct bwd_job *job, int64_t j, int64_t c, int64_t count,
		     float (*sum)[WEIGHTS])
{
	const struct bwd_plan *const plan = job->plan;
	const struct hzi_mhc_coef_plan *const p = &plan->p;

	memset(sum, 0, (size_t)p->m * sizeof(*sum));
	for (int64_t u = 0; u < plan->chunks; u++) {
		const float *const dphi = job->dphi + u * (int64_t)plan->dphi;
		const int64_t ahead = u + 1 < plan->chunks ? (int64_t)plan->dphi : 0;

		for (int k = 0; k < p->m && !p->amx_bwd; k++) {
			const float *const from = dphi + (k * p->n + j) * p->padded + c;

			for (int64_t i = 0; i < count; i++)
				sum[k][i] += from[i];
		}
		for (int64_t i = 0; i < hzi_mhc_padded(count) && p->amx_bwd; i += 16) {
			const float *from = dphi + (j * p->padded + c + i) * p->m;

			for (int k = 0; k < p->m; k++, from += 16) {
				__builtin_prefetch(from + ahead);
				for (int e = 0; e < 16; e++)
					sum[k][i + e] += from[e];
			}
		}
	}
}

/* dphi and dgain from those of chunks, WEIGHTS channels of a stream at a time */
static void weight_units(void *data, int thread, int64_t begin, int64_t end)
{
	const struct bwd_job *const job = data;
	const struct hzi_mhc_pre_bwd_args *const a = job->a;
	const struct hzi_mhc_coef_plan *const p = &job->plan->p;
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

			/* AMX tiles store the even ones of 32 channels first. */
			for (int64_t i = 0; i < WEIGHTS; i++)
				sum[i] = all[k][p->amx_bwd ? i / 32 * 32 + i % 2 * 16 + i % 32 / 2 :
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

/* The sum over chunks, leading dimension ld; add: plus *old */
static float sum_chunks(const double *from, int64_t ld, int64_t chunks, const float *old, bool add)
{
	double sum = 0;

	for (int64_t u = 0; u < chunks; u++)
		sum += from[u * ld];
	return (float)((add ? (double)*old : 0) + sum);
}

static void store_weights(const struct hz_context *ctx, const struct bwd_job *job)
{
	const struct hzi_mhc_pre_bwd_args *const a = job->a;
	const struct bwd_plan *const plan = job->plan;
	const struct hzi_mhc_coef_plan *const p = &plan->p;
	const int64_t ld = (int64_t)plan->weights;

	for (int k = 0; a->dbias && k < p->m; k++)
		a->dbias[k] = sum_chunks(job->weights + k, ld, plan->chunks, &a->dbias[k],
					 a->accumulate);
	for (int g = 0; g < 3; g++) {
		if (a->dalpha[g])
			*a->dalpha[g] = sum_chunks(job->weights + p->m + g, ld, plan->chunks,
						   a->dalpha[g], a->accumulate);
	}
	for (int64_t c = 0; plan->dnorm && c < p->channels; c++) {
		double sum = a->accumulate ? (double)a->dnorm[c] : 0;

		for (int64_t u = 0; u < plan->chunks; u++)
			sum += (double)job->dnorm[u * (int64_t)plan->dnorm + c];
		a->dnorm[c] = (float)sum;
	}
	if (plan->dphi && !plan->direct)
		hzi_parallel(ctx, p->threads, weight_units, (void *)(uintptr_t)job,
			     p->n * hzi_mhc_ceil(p->channels, WEIGHTS));
}

static int run(struct hz_context *ctx, const struct hzi_mhc_pre_bwd_args *given, bool amx)
{
	const struct bwd_plan plan = bwd_plan(ctx, given, amx);
	struct hzi_mhc_pre_bwd_args own = *given, *const a = &own;
	const struct hzi_mhc_coef_plan *const p = &plan.p;
	const int64_t n = p->n, groups = a->s.groups;
	struct bwd_job job = {
		.ctx = ctx, .a = a, .plan = &plan, .x_dtype = a->s.dtype,
		.weights = ctx->workspace,
		.stream_dx = hzi_mhc_nontemporal(ctx, &a->dx, &a->s, a->s.n) && !a->accumulate,
	};
	/* 64-byte aligned, as the workspace is */
	float *work = (float *)(job.weights +
				hzi_mhc_ceil(plan.chunks * (int64_t)plan.weights, 8) * 8);
	struct hzi_mhc_bwd_extra interleave_upper = extra_of(a);
	struct hzi_mhc_streams_bwd_args sums, dx;

	if (p->divided)
		own.rule.rms = HZ_MHC_RMS_NONE;	/* of what the projection leaves */
	if (a->dnorm && !interleave_upper.dnorm && !a->accumulate)
		memset(a->dnorm, 0, (size_t)p->channels * sizeof(float));
	job.scratch = work;
	work += p->scratch * (size_t)p->threads;
	job.dphi = plan.direct ? a->dphi : work;
	work += plan.direct ? 0 : plan.chunks * (int64_t)plan.dphi;
	job.dnorm = work;
	work += plan.chunks * (int64_t)plan.dnorm;
	if (a->phi) {
		job.phi = hzi_mhc_pack_phi(ctx, p, a->phi, a->gain, work);
		job.x = a->x;
	}
	work += hzi_mhc_phi_floats(p);
	if (!plan.shared) {
		hzi_parallel(ctx, p->threads, chunk_units, &job, plan.chunks);
		store_weights(ctx, &job);
		return HZ_OK;
	}
	if (a->phi) {
		hzi_mhc_group_means(ctx, p, &a->x, &a->s, job.scratch, work);
		job.x = hzi_mhc_mean_array(p, work);
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
	interleave_upper.scratch = job.scratch;
	hzi_parallel(ctx, p->threads, coef_units, &job, hzi_mhc_ceil(groups, TOKENS));
	sums = streams_of(a, true, false);
	sums.p = job.p;
	if (sums.dp.data)
		sums.dp = a->p_in.data ? a->dp_in : job.dp;
	if (sums.da.data)
		sums.da = job.da;
	if (sums.dp.data || sums.da.data)
		hzi_mhc_mix_bwd(ctx, &sums, &interleave_upper, work);
	hzi_parallel(ctx, p->threads, chunk_units, &job, plan.chunks);
	store_weights(ctx, &job);
	if (!a->dx.data)
		return HZ_OK;
	dx = streams_of(a, false, true);
	if (a->du.data)
		dx.p = job.p;
	if (a->dy.data && p->all)
		dx.a = job.A;
	interleave_upper.dnorm = NULL;
	interleave_upper.add = a->phi ? job.dmean : NULL;
	interleave_upper.add_stream = p->padded;
	hzi_mhc_mix_bwd(ctx, &dx, &interleave_upper, work);
	return HZ_OK;
}

/* ---- Routes ---------------------------------------------------------------------------------- */

const char *hzi_cpu_mhc_coef_bwd_amx_unsupported(const struct hz_context *ctx, const void *args)
{
	const struct hzi_mhc_pre_bwd_args *a = args;

	if (a->saved && a->rule.m > HZI_MHC_AMX_ROWS)
		return "more than 32 rows of phi, and sums that need no projection";
	return hzi_mhc_amx_unsupported(ctx, &a->s, &a->rule, a->phi);
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
