/*
 * coef.c - coefficients of hyper-connections and the branch input: loops and threads
 *
 * SPDX-License-Identifier: BSD-2-Clause
 *
 * A block of tokens is projected, so that phi is read once for it; then its coefficients are
 * computed; then u, from streams that are still in L2.
 */
#include <config.h>

#include <assert.h>
#include <string.h>

#include "cpu/mhc/coef.h"

struct pre_job {
	const struct hz_context *ctx;
	const struct hzi_mhc_pre_args *a;
	const struct hzi_mhc_coef_plan *plan;
	struct hzi_mhc_packed_phi phi;
	struct hzi_mhc_array x;		/* projected streams; data NULL: none */
	int x_dtype;
	bool mix;			/* groups are tokens: u is computed with the coefficients */
	bool stream_u;
	float *scratch;
};

/* Whether tokens share coefficients: all are computed before u */
static bool shared(const struct hzi_mhc_pre_args *a)
{
	return !a->phi || a->s.groups != a->s.tokens;
}

/* u of a token; scratch [C] with norm */
static void branch_input(const struct hz_context *ctx, const struct hzi_mhc_pre_args *a, int64_t t,
			 const float *p, float *scratch, bool stream_u, bool next)
{
	const struct hzi_mhc_streams_args mix = {
		.s = a->s, .x = a->post.y.data ? a->post.y : a->x, .u = a->u,
	};
	const int64_t size = hzi_mhc_dtype_bytes(a->s.dtype), channels = a->s.channels;
	const struct hzi_mhc_token_coefs coef = {.p = p};
	double squares = 0;
	float r;

	hzi_mhc_mix_token(ctx, &mix, t, &coef, a->norm ? scratch : NULL, stream_u, false, next);
	if (!a->norm)
		return;
	for (int64_t c = 0; c < channels; c++)
		squares += (double)scratch[c] * (double)scratch[c];
	r = hzi_mhc_inverse_root(squares, channels, a->rule.norm_eps);
	for (int64_t c = 0; c < channels; c += HZI_MHC_TILE_CHANNELS) {
		const int64_t count = hzi_mhc_min(HZI_MHC_TILE_CHANNELS, channels - c);
		float buffer[HZI_MHC_TILE_CHANNELS];
		const struct hzi_mhc_tile tile =
			hzi_mhc_tile(&a->u, size, t, c, 1, count, buffer, false);
		const struct hzi_mhc_scale scale = {
			.u_floats = scratch + c, .norm = a->norm + c, .u = tile.p, .factor = r,
			.count = count, .dtype = a->s.dtype,
		};

		hzi_mhc_kern[ctx->level].scale(&scale);
		hzi_mhc_store_tile(&a->u, size, t, c, 1, count, &tile);
	}
}

static void post_tile(const struct pre_job *job, int64_t t, int tokens, bool next)
{
	const struct hzi_mhc_streams_args *const post = &job->a->post;
	const int n = post->s.n;
	float q[HZI_MHC_STREAMS], A[HZI_MHC_STREAMS * HZI_MHC_STREAMS];

	for (int i = 0; i < tokens; i++) {
		const struct hzi_mhc_token_coefs coef = {
			.q = hzi_mhc_load_coefs(&post->q, t + i, n, 1, q),
			.a = hzi_mhc_load_coefs(&post->a, t + i, n, n, A),
		};

		hzi_mhc_mix_token(job->ctx, post, t + i, &coef, NULL, false, false,
				  i + 1 < tokens || next);
	}
}

/* Coefficients of at most TOKENS groups from raw; and u if groups are tokens */
static void pre_tile(const struct pre_job *job, int64_t t, int tokens, const float *raw,
		     const struct hzi_mhc_scratch *r)
{
	const struct hzi_mhc_pre_args *const a = job->a;
	const struct hzi_mhc_coef_plan *const p = job->plan;
	const struct hzi_mhc_batch b = hzi_mhc_batch_of(p, &a->rule, a->alpha, a->bias, tokens, r);
	const int n = p->n;
	struct hzi_mhc_roots roots;
	struct hzi_fp_watch w;

	hzi_mhc_normalize(p, &a->rule, job->x.data ? raw : NULL, tokens, r->y, &roots);
	hzi_fp_silence_begin(&w);
	hzi_mhc_kern_of(job->ctx->level, b.rule->n)->coefs(&b);
	hzi_fp_silence_end(&w);
	for (int i = 0; i < tokens; i++) {
		float out[HZI_MHC_STREAMS * HZI_MHC_STREAMS];

		if (a->q.data)
			hzi_mhc_store_coefs(&a->q, t + i, n, 1, hzi_mhc_get_token(r->q, i, n, out));
		if (a->a.data)
			hzi_mhc_store_coefs(&a->a, t + i, n, n,
					    hzi_mhc_get_token(r->a, i, n * n, out));
		hzi_mhc_get_token(r->p, i, n, out);
		hzi_mhc_store_coefs(&a->p, t + i, n, 1, out);
		hzi_mhc_load_coefs(&a->p_in, t + i, n, 1, out);
		if (job->mix && a->u.data)
			branch_input(job->ctx, a, t + i, out, r->du, job->stream_u,
				     i + 1 < tokens);
	}
}

/* A unit is a block of groups. */
static void pre_units(void *data, int thread, int64_t begin, int64_t end)
{
	const struct pre_job *const job = data;
	const struct hzi_mhc_pre_args *const a = job->a;
	const struct hzi_mhc_coef_plan *const p = job->plan;
	const struct hzi_mhc_scratch r = hzi_mhc_scratch_of(p, job->scratch, thread);

	for (int64_t u = begin; u < end; u++) {
		const int64_t t = u * p->block;
		const int tokens = (int)hzi_mhc_min(p->block, a->s.groups - t);

		if (job->mix && a->post.y.data)
			post_tile(job, t, tokens, u + 1 < end);
		if (job->x.data)
			hzi_mhc_project_tokens(job->ctx, p, &job->phi, &job->x, job->x_dtype, t,
					       tokens, &r);
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

/* u of tokens whose coefficients exist */
static void mix_units(void *data, int thread, int64_t begin, int64_t end)
{
	const struct pre_job *const job = data;
	const struct hzi_mhc_pre_args *const a = job->a;
	const struct hzi_mhc_scratch r = hzi_mhc_scratch_of(job->plan, job->scratch, thread);
	const int64_t length = hzi_mhc_group_tokens(&a->s);
	float p[HZI_MHC_STREAMS];

	assert(begin == end || length > 0);
	for (int64_t t = begin; t < end; t++) {
		hzi_mhc_load_coefs(a->p_in.data ? &a->p_in : &a->p, t / length, a->s.n, 1, p);
		branch_input(job->ctx, a, t, p, r.du, job->stream_u, t + 1 < end);
	}
}

static size_t pre_floats(const struct hzi_mhc_coef_plan *p, const struct hzi_mhc_pre_args *a)
{
	const size_t groups = (size_t)a->s.groups;

	return hzi_mhc_phi_floats(p) + p->scratch * (size_t)p->threads +
	       (shared(a) ? groups * (size_t)p->n * (a->phi ? (size_t)p->padded + 1 : 1) : 0);
}

static struct hzi_mhc_coef_plan pre_plan(const struct hz_context *ctx,
					 const struct hzi_mhc_pre_args *a, bool amx)
{
	return hzi_mhc_plan_coef(ctx, &a->s, &a->rule, a->phi, a->gain, false, a->norm, amx);
}

static size_t workspace(const struct hz_context *ctx, const struct hzi_mhc_pre_args *a, bool amx)
{
	const struct hzi_mhc_coef_plan p = pre_plan(ctx, a, amx);

	return pre_floats(&p, a) * sizeof(float);
}

static int run(struct hz_context *ctx, const struct hzi_mhc_pre_args *a, bool amx)
{
	const struct hzi_mhc_coef_plan p = pre_plan(ctx, a, amx);
	struct hzi_mhc_pre_args own = *a;
	float *work = ctx->workspace;
	struct pre_job job = {
		.ctx = ctx, .a = &own, .plan = &p, .x_dtype = a->s.dtype, .mix = !shared(a),
		.stream_u = hzi_mhc_nontemporal(ctx, &a->u, &a->s, 1),
	};

	if (p.divided)
		own.rule.rms = HZ_MHC_RMS_NONE;	/* of what the projection leaves */
	job.scratch = work;
	work += p.scratch * (size_t)p.threads;
	if (a->phi) {
		job.phi = hzi_mhc_pack_phi(ctx, &p, a->phi, a->gain, work);
		job.x = a->post.y.data ? a->post.y : a->x;
	}
	work += hzi_mhc_phi_floats(&p);
	if (shared(a)) {
		own.p = (struct hzi_mhc_coef){work, p.n, 1, 1};
		work += a->s.groups * p.n;
		if (a->phi) {
			hzi_mhc_group_means(ctx, &p, &job.x, &a->s, job.scratch, work);
			job.x = hzi_mhc_mean_array(&p, work);
			job.x_dtype = HZ_F32;
		}
	}
	hzi_parallel(ctx, p.threads, pre_units, &job, hzi_mhc_ceil(a->s.groups, p.block));
	if (!shared(a))
		return HZ_OK;
	for (int64_t g = 0; g < a->s.groups; g++)
		hzi_mhc_store_coefs(&a->p, g, p.n, 1, own.p.data + g * p.n);
	if (a->u.data)
		hzi_parallel(ctx, p.threads, mix_units, &job, a->s.tokens);
	return HZ_OK;
}

/* ---- Routes ---------------------------------------------------------------------------------- */

const char *hzi_cpu_mhc_coef_amx_unsupported(const struct hz_context *ctx, const void *args)
{
	const struct hzi_mhc_pre_args *a = args;

	return hzi_mhc_amx_unsupported(ctx, &a->s, &a->rule, a->phi);
}

size_t hzi_cpu_mhc_coef_amx_workspace(const struct hz_context *ctx, const void *args)
{
	return workspace(ctx, args, true);
}

int hzi_cpu_mhc_coef_amx(struct hz_context *ctx, const void *args)
{
	return run(ctx, args, true);
}

size_t hzi_cpu_mhc_coef_vectors_workspace(const struct hz_context *ctx, const void *args)
{
	return workspace(ctx, args, false);
}

int hzi_cpu_mhc_coef_vectors(struct hz_context *ctx, const void *args)
{
	return run(ctx, args, false);
}
