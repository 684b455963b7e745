/*
 * project.c - projection of streams by phi, means of groups, and the plan of both
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#include <config.h>

#include <math.h>
#include <string.h>

#include "cpu/mhc/coef.h"
#include "lib/mhc/mhc_math.h"

/* ---- Plans ----------------------------------------------------------------------------------- */

#define BLOCK (4 * TOKENS)		/* tokens for which a part of phi stays in L1 */
#define IN_PLACE_CHANNELS 4096		/* channels of a tile in place: 400 KB of phi in L2 */
#define AMX_BLOCK 256	/* tokens for which phi, 1.5 MB, is read once from beyond L2 */

const char *hzi_mhc_amx_unsupported(const struct hz_context *ctx, const struct hzi_mhc_shape *s,
				    const struct hzi_mhc_rule *rule, const float *phi)
{
	if (!hzi_mhc_kern[ctx->level].amx_project)
		return "no AMX tiles at this ISA level";
	if (!phi)
		return "phi is NULL";
	if (rule->rms == HZ_MHC_RMS_STREAM)
		return "each stream has its own mean square";
	return s->groups == s->tokens ? NULL : "groups are not tokens";
}

struct hzi_mhc_coef_plan hzi_mhc_plan_coef(const struct hz_context *ctx,
					   const struct hzi_mhc_shape *s,
					   const struct hzi_mhc_rule *rule, bool phi, bool gain,
					   bool backwards, bool norm, bool amx)
{
	struct hzi_mhc_coef_plan p = {
		.channels = s->channels, .padded = hzi_mhc_padded(s->channels), .n = s->n,
		.m = rule->m, .all = rule->m > rule->n,
		.block = BLOCK, .backwards = backwards, .norm = norm,
		.least = hzi_mhc_least_square(rule),
		.divided = rule->rms == HZ_MHC_RMS_STREAM ? rule : NULL,
	};
	const size_t m = (size_t)p.m, n = (size_t)p.n, t = TOKENS;
	size_t block;

	p.threads = hzi_threads(ctx, s->tokens * s->channels * s->n * (backwards ? 8 : 2) *
				hzi_mhc_dtype_bytes(s->dtype));
	p.pack = phi && (gain || p.padded != p.channels);
	p.phi = p.pack ? m * n * (size_t)p.padded : 0;
	if (amx) {
		p.panels = (2 * rule->m + 15) / 16;
		p.amx_phi = n * (size_t)p.padded / 32 * (size_t)p.panels * (HZI_MHC_AMX_TILE / 2);
		p.amx_bwd = backwards && rule->m <= HZI_MHC_AMX_ROWS;
	}
	/* Results do not depend on the block. */
	if (backwards ? p.amx_bwd : p.amx_phi && s->tokens >= AMX_BLOCK * 2 * p.threads)
		p.block = AMX_BLOCK;
	block = (size_t)p.block;
	p.amx_phi_dx = p.amx_bwd ? n * (size_t)p.padded / 16 * ((m + 1) / 2) * 32 : 0;
	p.sums = p.amx_phi ? (size_t)p.panels * 16 : m * HZI_MHC_BATCH;
	p.scratch = t * HZI_MHC_X_LD + block * (p.sums + HZI_MHC_BATCH + m + 1) +
		 t * (3 * m + 4 * n + 2 * n * n + 3) +
		 (backwards ? block * (m + 2 + n + n * n) + t * n * HZI_MHC_ADD_LD : 0) +
		 (p.amx_bwd ? HZI_MHC_AMX_L2_TOKENS * HZI_MHC_AMX_CHANNELS + block * (32 + m) : 0) +
		 (p.divided && backwards ? block * n * (2 * m + 3) : 0) +
		 (norm ? (backwards ? block + 1 : 1) * (size_t)p.padded : 0);
	p.scratch = (p.scratch + 15) / 16 * 16;
	return p;
}

struct hzi_mhc_scratch hzi_mhc_scratch_of(const struct hzi_mhc_coef_plan *p, float *base,
					  int thread)
{
	const int64_t t = TOKENS, block = p->block, m = p->m, n = p->n;
	struct hzi_mhc_scratch r = {0};

	/* Arrays that AMX tiles are loaded from come first: they are aligned to cache lines. */
	base += (int64_t)p->scratch * thread;
	if (p->amx_bwd) {
		r.interleaved = (uint16_t *)base;
		r.d_dx = r.interleaved + HZI_MHC_AMX_L2_TOKENS * 2 * HZI_MHC_AMX_CHANNELS;
		r.d_dphi = r.d_dx + block * 2 * 32;
		base += HZI_MHC_AMX_L2_TOKENS * HZI_MHC_AMX_CHANNELS + block * (32 + m);
	}
	r.add = base;
	if (p->backwards)
		base += t * n * HZI_MHC_ADD_LD;
	r.x = base;
	r.sums = r.x + t * HZI_MHC_X_LD;
	r.squares = r.sums + block * (int64_t)p->sums;
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
	/* Only gradients follow, except du. */
	r.du = r.dalpha + 3 * t;
	r.d = r.du + (p->norm ? (p->backwards ? block + 1 : 1) * p->padded : 0);
	r.factor = r.d + block * m;
	r.far = r.factor + block;
	r.token = r.far + block;
	if (p->divided && p->backwards) {
		r.raws = r.token + block * (n + n * n);
		r.roots = r.raws + block * n * m;
		r.parts = r.roots + block * n * 2;
		r.shares = r.parts + block * n * m;
	}
	return r;
}

struct pack_job {
	const struct hzi_mhc_kern *kern;
	const struct hzi_mhc_coef_plan *plan;
	const float *phi, *gain;
	float *to;
	const struct hzi_mhc_packed_phi *from;		/* packed for AMX tiles */
	uint16_t *amx, *amx_dx;
};

/* A unit is some rows of one stream of phi. */
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

void hzi_mhc_split_bf16(float v, uint16_t *high, uint16_t *low)
{
	uint16_t h = to_bf16(v);
	uint32_t bits;
	float near;

	/* A finite v that rounds to infinity becomes the largest bf16. */
	if ((h & 0x7fff) == 0x7f80 && isfinite(v))
		h--;
	bits = (uint32_t)h << 16;
	memcpy(&near, &bits, 4);
	*high = h;
	*low = v - near == v - near ? to_bf16(v - near) : 0;
}

/* Packs steps of 32 columns for amx_project. */
static void amx_phi_units(void *data, int thread, int64_t begin, int64_t end)
{
	const struct pack_job *const job = data;
	const struct hzi_mhc_coef_plan *const p = job->plan;
	const int64_t steps = p->padded / 32;

	(void)thread;
	for (int64_t s = begin; s < end; s++) {
		const struct hzi_mhc_amx_phi phi = {
			.phi = job->from->data + s / steps * job->from->stream + s % steps * 32,
			.row = job->from->row, .to = job->amx + s * p->panels * HZI_MHC_AMX_TILE,
			.m = p->m, .panels = p->panels,
		};

		job->kern->amx_pack_phi(&phi);
	}
}

/* Packs groups of 16 columns for amx_dx. */
static void amx_phi_dx_units(void *data, int thread, int64_t begin, int64_t end)
{
	const struct pack_job *const job = data;
	const struct hzi_mhc_coef_plan *const p = job->plan;
	const int64_t groups = p->padded / 16, part = (p->m + 1) / 2 * 32;

	(void)thread;
	for (int64_t g = begin; g < end; g++) {
		const struct hzi_mhc_amx_phi phi = {
			.phi = job->from->data + g / groups * job->from->stream + g % groups * 16,
			.row = job->from->row, .to = job->amx_dx + g * 2 * part, .m = p->m,
		};

		job->kern->amx_pack_phi_dx(&phi);
	}
}

size_t hzi_mhc_phi_floats(const struct hzi_mhc_coef_plan *p)
{
	return p->phi + p->amx_phi + p->amx_phi_dx;
}

struct hzi_mhc_packed_phi hzi_mhc_pack_phi(const struct hz_context *ctx,
					   const struct hzi_mhc_coef_plan *p,
					   const float *phi, const float *gain, float *work)
{
	struct hzi_mhc_packed_phi to = {.data = phi, .row = p->n * p->channels,
		.stream = p->channels};
	struct pack_job job = {
		hzi_mhc_kern + ctx->level, p, phi, gain, work, &to, (uint16_t *)(work + p->phi),
		(uint16_t *)(work + p->phi + p->amx_phi),
	};

	if (p->pack) {
		hzi_parallel(ctx, p->threads, pack_units, &job, (int64_t)p->m * p->n);
		to = (struct hzi_mhc_packed_phi){
			.data = work, .row = p->n * p->padded, .stream = p->padded,
		};
	}
	if (p->amx_phi) {
		hzi_parallel(ctx, p->threads, amx_phi_units, &job, p->n * p->padded / 32);
		to.amx = job.amx;
		to.panels = p->panels;
	}
	if (p->amx_phi_dx) {
		hzi_parallel(ctx, p->threads, amx_phi_dx_units, &job, p->n * p->padded / 16);
		to.amx_dx = job.amx_dx;
	}
	return to;
}

int64_t hzi_mhc_round_to_pairs(const struct hz_context *ctx, int64_t count)
{
	const int lanes = hzi_mhc_kern[ctx->level].lanes;

	return hzi_mhc_ceil(count, 2 * lanes) * 2 * lanes;
}

const void *hzi_mhc_stream_row(const struct hzi_mhc_array *x, int64_t size, int64_t t, int j,
			       int64_t c, int64_t count, void *buffer)
{
	struct hzi_mhc_array one = *x;

	one.data = (char *)one.data + j * one.stream * size;
	return hzi_mhc_tile(&one, size, t, c, 1, count, buffer, true).p;
}

/* What follows channel c of stream j of a token, to be prefetched: rows of blocks are short. */
static const void *after(const struct hzi_mhc_array *x, const struct hzi_mhc_coef_plan *p,
			 int64_t size, int64_t t, int j, int64_t c)
{
	if (x->channel != 1)
		return NULL;
	if (c + HZI_MHC_TILE_CHANNELS < p->channels)
		return (char *)hzi_mhc_at(x, size, t, c + HZI_MHC_TILE_CHANNELS) +
		       j * x->stream * size;
	return j + 1 < p->n ? (char *)hzi_mhc_at(x, size, t, 0) + (j + 1) * x->stream * size : NULL;
}

void hzi_mhc_widen(const struct hz_context *ctx, const struct hzi_mhc_coef_plan *p,
		   const struct hzi_mhc_array *x, int dtype, int64_t t, int tokens, int j,
		   int64_t c, int64_t count, const struct hzi_mhc_scratch *r)
{
	const struct hzi_mhc_kern *const kern = hzi_mhc_kern + ctx->level;
	const int64_t size = hzi_mhc_dtype_bytes(dtype);
	float buffer[HZI_MHC_TILE_CHANNELS];

	for (int i = 0; i < tokens; i++)
		kern->widen(hzi_mhc_stream_row(x, size, t + i, j, c, count, buffer), dtype, count,
			    r->x + i * HZI_MHC_X_LD,
			    r->squares ? r->squares + i * kern->lanes : NULL,
			    after(x, p, size, t + i, j, c));
}

static float mean_square(const struct hz_context *ctx, const struct hzi_mhc_coef_plan *p,
			 int streams, const float *squares)
{
	float sum;

	hzi_mhc_kern[ctx->level].sum_lanes(squares, 1, &sum);
	return p->channels > 0 ? sum / (float)(streams * p->channels) : 0;
}

/*
 * The mean square of some streams of a token, from `first` on, in f64, as hzi_mhc_normalize()
 * takes it; r->x is scratch.
 */
static float wide_mean_square(const struct hz_context *ctx, const struct hzi_mhc_coef_plan *p,
			      const struct hzi_mhc_array *x, int dtype, int64_t t, int first,
			      int streams, const struct hzi_mhc_scratch *r)
{
	double sum = 0;

	for (int j = first; j < first + streams; j++) {
		for (int64_t c = 0; c < p->channels; c += HZI_MHC_TILE_CHANNELS) {
			const int64_t count = hzi_mhc_min(HZI_MHC_TILE_CHANNELS, p->channels - c);
			struct hzi_mhc_scratch one = *r;

			one.squares = NULL;
			hzi_mhc_widen(ctx, p, x, dtype, t, 1, j, c, count, &one);
			for (int64_t e = 0; e < count; e++)
				sum += (double)r->x[e] * (double)r->x[e];
		}
	}
	sum /= (double)(streams * p->channels);
	return sum >= (double)HZI_MHC_LEAST_SQUARE && sum <= (double)FLT_MAX ? (float)sum :
	       -(float)sqrt(sum);
}

/* Projects `count` channels of stream j of the tile at token `at`, in f32 in r->x. */
static void project_tile(const struct hz_context *ctx, const struct hzi_mhc_coef_plan *p,
			 const struct hzi_mhc_packed_phi *phi, int at, int tokens, int j, int64_t c,
			 int64_t count, const struct hzi_mhc_scratch *r)
{
	const struct hzi_mhc_product product = {
		.x = r->x, .x_ld = HZI_MHC_X_LD,
		.phi = (float *)(uintptr_t)phi->data + j * phi->stream + c, .phi_ld = phi->row,
		.sums = r->sums + (int64_t)at * p->m * hzi_mhc_kern[ctx->level].lanes,
		.count = hzi_mhc_round_to_pairs(ctx, count), .tokens = tokens, .m = p->m,
	};

	hzi_mhc_kern[ctx->level].project(&product);
}

struct hzi_mhc_ahead hzi_mhc_rows_ahead(const struct hzi_mhc_array *x,
					const struct hzi_mhc_coef_plan *p,
					int64_t size, int64_t t, int j, int64_t c)
{
	if (x->channel != 1 || c >= p->channels || j >= p->n)
		return (struct hzi_mhc_ahead){0};
	return (struct hzi_mhc_ahead){
		.x = (char *)hzi_mhc_at(x, size, t, c) + j * x->stream * size,
		.row_bytes = x->token * size, .step_bytes = 32 * size,
	};
}

/* The same by AMX tiles, from copies; rows beyond the last token are ignored afterwards. */
static void project_copied(const struct hz_context *ctx, const struct hzi_mhc_coef_plan *p,
			   const struct hzi_mhc_packed_phi *phi, const struct hzi_mhc_array *x,
			   int dtype, int64_t t, int at, int block, int j, int64_t c, int64_t count,
			   const struct hzi_mhc_scratch *r)
{
	const struct hzi_mhc_kern *const kern = hzi_mhc_kern + ctx->level;
	const int tokens = (int)hzi_mhc_min(TOKENS, block - at);
	const int64_t size = hzi_mhc_dtype_bytes(dtype), ld = HZI_MHC_X_LD;
	uint16_t *const high = (uint16_t *)r->x, *const low = high + TOKENS * ld;
	const bool more = at + TOKENS < block;
	const struct hzi_mhc_amx_project args = {
		.ahead = hzi_mhc_rows_ahead(x, p, size, more ? t + at + TOKENS : t, j,
					    more ? c : c + HZI_MHC_AMX_CHANNELS),
		.x = high,
		.low = dtype == HZ_BF16 ? NULL : low,
		.x_ld = ld,
		.phi = phi->amx + (j * p->padded + c) / 32 * phi->panels * HZI_MHC_AMX_TILE,
		.y = r->sums + at * phi->panels * 16,
		.steps = hzi_mhc_ceil(count, 32),
		.panels = phi->panels,
	};
	float buffer[HZI_MHC_AMX_CHANNELS];

	for (int i = 0; i < tokens; i++) {
		const struct hzi_mhc_bf16_rows parts = {
			.x = hzi_mhc_stream_row(x, size, t + at + i, j, c, count, buffer),
			.high = high + i * ld, .low = low + i * ld,
			.squares = r->squares + (at + i) * kern->lanes, .count = count,
			.dtype = dtype,
		};

		kern->split_bf16(&parts);
	}
	kern->amx_project(&args);
}

/*
 * The same for a whole tile of bf16 in place. The hardware prefetcher reads its rows at nearly the
 * bandwidth of one long read; software prefetch makes it slower.
 */
static void project_in_place(const struct hz_context *ctx, const struct hzi_mhc_coef_plan *p,
			     const struct hzi_mhc_packed_phi *phi, const struct hzi_mhc_array *x,
			     int64_t t, int at,
			     int j, int64_t c, int64_t count, const struct hzi_mhc_scratch *r)
{
	const struct hzi_mhc_amx_project args = {
		.x = (uint16_t *)hzi_mhc_at(x, 2, t + at, c) + j * x->stream, .x_ld = x->token,
		.phi = phi->amx + (j * p->padded + c) / 32 * phi->panels * HZI_MHC_AMX_TILE,
		.y = r->sums + at * phi->panels * 16, .steps = count / 32, .panels = phi->panels,
		.squares = r->squares + at * hzi_mhc_kern[ctx->level].lanes,
	};

	hzi_mhc_kern[ctx->level].amx_project(&args);
}

/* Clears the sums of tokens and of their squares; AMX adds to whole tiles. */
static void clear_sums(const struct hz_context *ctx, const struct hzi_mhc_coef_plan *p, int tokens,
		       const struct hzi_mhc_scratch *r)
{
	const int64_t whole = hzi_mhc_ceil(tokens, TOKENS) * TOKENS;
	const int lanes = hzi_mhc_kern[ctx->level].lanes;

	memset(r->squares, 0, (size_t)(tokens * lanes) * sizeof(float));
	memset(r->sums, 0, (size_t)hzi_mhc_min(whole, p->block) * (size_t)p->sums * sizeof(float));
}

/*
 * With HZ_MHC_RMS_STREAM: adds the sums of stream j of a block over the root of that stream to raw,
 * as if x had been divided, and clears them.
 */
static void add_divided(const struct hz_context *ctx, const struct hzi_mhc_coef_plan *p,
			const struct hzi_mhc_array *x, int dtype, int64_t t, int tokens, int j,
			const struct hzi_mhc_scratch *r)
{
	const struct hzi_mhc_kern *const kern = hzi_mhc_kern + ctx->level;

	for (int i = 0; i < tokens; i++) {
		float *const to = r->raw + i * (p->m + 1), own[HZI_MHC_ROWS], slope;
		float *const sums = r->raws ? r->raws + (i * p->n + j) * p->m : own;
		float kept = mean_square(ctx, p, 1, r->squares + i * kern->lanes);
		double square, rho;

		kern->sum_lanes(r->sums + (int64_t)i * p->m * kern->lanes, p->m, sums);
		if (hzi_mhc_leaves_f32(kept, p->least) && p->channels > 0)
			kept = wide_mean_square(ctx, p, x, dtype, t + i, j, 1, r);
		square = kept < 0 ? (double)kept * (double)kept : (double)kept;
		rho = hzi_mhc_root_of(p->divided, square, &slope);
		for (int k = 0; k < p->m; k++)
			to[k] = (float)((double)(j ? to[k] : 0) + rho * (double)sums[k]);
		to[p->m] = (float)((double)(j ? to[p->m] : 0) + rho * rho * square / p->n);
		if (r->roots) {
			r->roots[(i * p->n + j) * 2] = (float)rho;
			r->roots[(i * p->n + j) * 2 + 1] = slope;
		}
	}
	clear_sums(ctx, p, tokens, r);
}

/* All tiles of the block use a part of phi before the next part. */
void hzi_mhc_project_tokens(const struct hz_context *ctx, const struct hzi_mhc_coef_plan *p,
		     const struct hzi_mhc_packed_phi *phi, const struct hzi_mhc_array *x, int dtype,
			    int64_t t, int tokens, const struct hzi_mhc_scratch *r)
{
	const int lanes = hzi_mhc_kern[ctx->level].lanes;
	const bool in_place = phi->amx && dtype == HZ_BF16 && x->channel == 1;
	const int64_t width = phi->panels * 16;
	const int64_t each = in_place ? IN_PLACE_CHANNELS :
			     phi->amx ? HZI_MHC_AMX_CHANNELS : HZI_MHC_TILE_CHANNELS;
	struct hzi_fp_watch watch;

	/* Squares that overflow are computed again: their exceptions are held back. */
	hzi_fp_watch_begin(&watch);
	clear_sums(ctx, p, tokens, r);
	for (int j = 0; j < p->n; j++) {
		for (int64_t c = 0; c < p->channels; c += each) {
			const int64_t count = hzi_mhc_min(each, p->channels - c);

			for (int at = 0; at < tokens; at += TOKENS) {
				const int some = (int)hzi_mhc_min(TOKENS, tokens - at);
				struct hzi_mhc_scratch tile = *r;

				if (in_place && some == TOKENS && count % 32 == 0) {
					project_in_place(ctx, p, phi, x, t, at, j, c, count, r);
					continue;
				}
				for (int64_t e = 0; phi->amx && e < count;
				     e += HZI_MHC_AMX_CHANNELS)
					project_copied(
						ctx, p, phi, x, dtype, t, at, tokens, j, c + e,
						hzi_mhc_min(HZI_MHC_AMX_CHANNELS, count - e), r);
				if (phi->amx)
					continue;
				tile.squares += at * lanes;
				hzi_mhc_widen(ctx, p, x, dtype, t + at, some, j, c, count, &tile);
				project_tile(ctx, p, phi, at, some, j, c, count, r);
			}
		}
		if (p->divided)
			add_divided(ctx, p, x, dtype, t, tokens, j, r);
	}
	for (int i = 0; i < tokens && !p->divided; i++) {
		float *const to = r->raw + i * (p->m + 1);

		if (phi->amx) {
			for (int k = 0; k < p->m; k++)
				to[k] = r->sums[i * width + k] + r->sums[i * width + p->m + k];
		} else {
			hzi_mhc_kern[ctx->level].sum_lanes(r->sums + (int64_t)i * p->m * lanes,
							   p->m, to);
		}
		to[p->m] = mean_square(ctx, p, p->n, r->squares + i * lanes);
		if (hzi_mhc_leaves_f32(to[p->m], p->least) && p->channels > 0)
			to[p->m] = wide_mean_square(ctx, p, x, dtype, t + i, 0, p->n, r);
	}
	hzi_fp_watch_end(&watch);
}

double hzi_mhc_root_of(const struct hzi_mhc_rule *rule, double square, float *slope)
{
	const bool inside = rule->rms_eps_rule == HZ_MHC_RMS_EPS_INSIDE;
	const double eps = (double)rule->rms_eps, plain = sqrt(square);
	const bool floor = rule->rms_eps_rule == HZ_MHC_RMS_EPS_FLOOR, least = floor && plain < eps;
	const double root = inside ? sqrt(square + eps) : least ? eps : floor ? plain : plain + eps;
	const double rho = root != 0 ? 1 / root : 0;

	*slope = least ? 0 : inside ? (float)rho : hzi_mhc_inverse_root(square, 1, 0);
	return rho;
}

void hzi_mhc_normalize(const struct hzi_mhc_coef_plan *p, const struct hzi_mhc_rule *rule,
		       const float *raw, int tokens, float *y, struct hzi_mhc_roots *roots)
{
	memset(y, 0, (size_t)(p->m * TOKENS) * sizeof(float));
	memset(roots, 0, sizeof(*roots));
	for (int i = 0; raw && i < tokens; i++) {
		const float *const from = raw + i * (p->m + 1);
		const double kept = (double)from[p->m], square = kept < 0 ? kept * kept : kept;
		float rho = 1, slope = 0;

		if (rule->rms != HZ_MHC_RMS_NONE)
			rho = (float)hzi_mhc_root_of(rule, square, &slope);
		roots->rho[i] = rho;
		roots->slope[i] = slope;
		for (int k = 0; k < p->m; k++)
			y[k * TOKENS + i] = rho * from[k];
	}
}

struct hzi_mhc_batch hzi_mhc_batch_of(const struct hzi_mhc_coef_plan *p,
				      const struct hzi_mhc_rule *rule,
				      const float *const *alpha, const float *bias, int tokens,
				      const struct hzi_mhc_scratch *r)
{
	return (struct hzi_mhc_batch){
		.rule = rule, .alpha = alpha, .bias = bias, .y = r->y, .dp = r->dp, .dq = r->dq,
		.da = r->da, .p = r->p, .q = r->q, .a = r->a, .dz = r->dz, .dy = r->dy,
		.dalpha = r->dalpha, .count = tokens, .all = p->all,
	};
}

/* ---- Means ----------------------------------------------------------------------------------- */

#define MEAN_TOKENS 64			/* tokens that are summed in f32 before the sum is added */

struct mean_job {
	const struct hz_context *ctx;
	const struct hzi_mhc_array *x;
	const struct hzi_mhc_shape *s;
	float *to;			/* [groups][n][padded] */
	const struct hzi_mhc_coef_plan *plan;
	float *scratch;
	int64_t tiles;
};

/* A unit is a tile of channels of one stream of the mean of a group. */
static void mean_units(void *data, int thread, int64_t begin, int64_t end)
{
	const struct mean_job *const job = data;
	const int n = job->s->n;
	const int64_t length = hzi_mhc_group_tokens(job->s);
	struct hzi_mhc_scratch r = hzi_mhc_scratch_of(job->plan, job->scratch, thread);
	float sum[HZI_MHC_TILE_CHANNELS], d[TOKENS];

	r.squares = NULL;
	for (int i = 0; i < TOKENS; i++)
		d[i] = 1;
	for (int64_t u = begin; u < end; u++) {
		const int64_t g = u / (n * job->tiles), c = u % job->tiles * HZI_MHC_TILE_CHANNELS;
		const int j = (int)(u / job->tiles % n);
		const int64_t count = hzi_mhc_min(HZI_MHC_TILE_CHANNELS, job->s->channels - c);
		const int64_t padded = hzi_mhc_padded(count);
		float *const to = job->to + (g * n + j) * job->plan->padded + c;

		memset(to, 0, (size_t)padded * sizeof(float));
		for (int64_t t = 0; t < length; t += MEAN_TOKENS) {
			const int64_t last = hzi_mhc_min(t + MEAN_TOKENS, length);

			memset(sum, 0, sizeof(sum));
			for (int64_t i = t; i < last; i += TOKENS) {
				const int tokens = (int)hzi_mhc_min(TOKENS, last - i);
				const struct hzi_mhc_product product = {
					.x = r.x, .x_ld = HZI_MHC_X_LD, .d = d, .phi = sum,
					.phi_ld = HZI_MHC_TILE_CHANNELS, .tokens = tokens, .m = 1,
					.count = hzi_mhc_round_to_pairs(job->ctx, count),
				};

				hzi_mhc_widen(job->ctx, job->plan, job->x, job->s->dtype,
					      g * length + i, tokens, j, c, count, &r);
				hzi_mhc_kern[job->ctx->level].dphi_gemm(&product);
			}
			for (int64_t i = 0; i < padded; i++)
				to[i] += sum[i];
		}
		for (int64_t i = 0; length > 0 && i < padded; i++)
			to[i] /= (float)length;
	}
}

void hzi_mhc_group_means(const struct hz_context *ctx, const struct hzi_mhc_coef_plan *p,
		   const struct hzi_mhc_array *x, const struct hzi_mhc_shape *s, float *scratch,
			 float *to)
{
	struct mean_job job = {
		ctx, x, s, to, p, scratch, hzi_mhc_ceil(p->channels, HZI_MHC_TILE_CHANNELS),
	};

	hzi_parallel(ctx, p->threads, mean_units, &job, s->groups * s->n * job.tiles);
}

struct hzi_mhc_array hzi_mhc_mean_array(const struct hzi_mhc_coef_plan *p, float *mean)
{
	return (struct hzi_mhc_array){mean, p->n * p->padded, p->padded, 1};
}

