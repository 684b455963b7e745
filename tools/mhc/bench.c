/*
 * bench.c - hurwitz bench of hyper-connections
 *
 * SPDX-License-Identifier: BSD-2-Clause
 *
 * The reference is a copy of as many bytes as the call has to move at least: streams count as n,
 * branch values as 1 array of tokens by channels. One operation is a token, of Sinkhorn's iteration
 * a matrix.
 */
#include <config.h>

#include <stdlib.h>
#include <string.h>

#include "tools/core/bench_grid.h"

enum kind {
	NO_CALL, SINKHORN, SINKHORN_BWD, MIX, MIX_BWD, ADD, ADD_BWD, POST, POST_BWD, POST_BWD_F,
	EXPAND, EXPAND_BWD, WEIGHTS, WEIGHTS_BWD, PRE, PRE_BWD, HEAD, POST_PRE, LAYER,
	LAYER_TRAINING, RECOMPUTE, GATED, GATED_BWD,
};

#define LAYERS 4	/* recomputed by a call of RECOMPUTE */

/* Names, and the arrays moved at least: streams and branch values */
static const struct {
	const char *op, *name;
	int streams, values;
} kinds[] = {
	[SINKHORN] = {"mhc_sinkhorn", "", 0, 0},
	[SINKHORN_BWD] = {"mhc_sinkhorn_bwd", "", 0, 0},
	[MIX] = {"mhc_streams", "mix", 2, 1},
	[MIX_BWD] = {"mhc_streams_bwd", "mix", 3, 1},
	[ADD] = {"mhc_streams", "add", 2, 1},
	[ADD_BWD] = {"mhc_streams_bwd", "add", 1, 2},
	[POST] = {"mhc_streams", "post", 2, 1},
	[POST_BWD] = {"mhc_streams_bwd", "post", 3, 2},
	[POST_BWD_F] = {"mhc_streams_bwd", "post, of f", 1, 2},
	[EXPAND] = {"mhc_streams", "expand", 1, 1},
	[EXPAND_BWD] = {"mhc_streams_bwd", "expand", 1, 1},
	[WEIGHTS] = {"mhc_pre", "weights", 1, 0},
	[WEIGHTS_BWD] = {"mhc_pre_bwd", "weights", 2, 0},
	[PRE] = {"mhc_pre", "pre", 1, 1},
	[PRE_BWD] = {"mhc_pre_bwd", "pre, y", 3, 1},
	[HEAD] = {"mhc_pre", "head", 1, 1},
	[POST_PRE] = {"mhc_pre", "post+pre", 2, 2},
	[LAYER] = {"mhc_pre", "layer", 3, 2},
	[LAYER_TRAINING] = {"mhc_pre_bwd", "layer+bwd", 7, 5},
	[RECOMPUTE] = {"mhc_recompute", "", 1 + LAYERS, 2 * LAYERS},
	[GATED] = {"mhc_gated", "gated pre", 1, 1},
	[GATED_BWD] = {"mhc_gated_bwd", "gated pre", 2, 1},
};

/*
 * Flags of calls in shapes[]. GROUPS: 16 groups of tokens share coefficients, otherwise each token
 * has its own; LITE: mHC-lite; NORM: u is divided by its root mean square;
 * P_IN: u is mixed by other coefficients, as in DeepSeek V4.1; DIVIDED: each stream has its own
 * root mean square, as in lucidrains' mHCv2
 */
enum {
	KIND = 31, QUICK = 32, GROUPS = 64, LITE = 128, NORM = 256, P_IN = 512, DIVIDED = 1024
};

#define RANK 128			/* of the gates of GATED */

enum { CPU, GPU };

/* Shapes and their cases in the order they run. f32 comes last for each device. */
static const struct shape {
	int device, dtype;
	int64_t tokens;
	int channels, n;
	int calls[14];			/* kind | flags; ends with NO_CALL */
} shapes[] = {
	{GPU, HZ_F32, 32768, 0, 4, {SINKHORN | QUICK, SINKHORN_BWD | QUICK}},
	{GPU, HZ_BF16, 32768, 4096, 4,
	 {MIX, MIX | GROUPS | QUICK, MIX_BWD, MIX_BWD | GROUPS | QUICK, ADD, ADD | GROUPS | QUICK,
	  ADD_BWD, ADD_BWD | GROUPS | QUICK, WEIGHTS | QUICK, WEIGHTS_BWD | QUICK, PRE | QUICK,
	  PRE_BWD | QUICK, POST | QUICK}},
	{GPU, HZ_F16, 32768, 4096, 4, {POST}},
	{GPU, HZ_BF16, 32768, 4096, 2, {POST}},
	{GPU, HZ_BF16, 16384, 4096, 8, {POST}},
	{GPU, HZ_BF16, 32768, 4096, 4, {POST_BWD | QUICK}},
	{GPU, HZ_BF16, 32768, 4096, 3, {POST_BWD}},
	{GPU, HZ_BF16, 16384, 4096, 8, {POST_BWD}},
	{GPU, HZ_BF16, 32768, 4096, 4,
	 {POST_BWD_F | QUICK, EXPAND, EXPAND_BWD, HEAD, POST_PRE | QUICK,
	  POST_PRE | P_IN | QUICK}},
	{GPU, HZ_BF16, 8192, 4096, 4, {RECOMPUTE | QUICK}},
	{GPU, HZ_BF16, 32768, 4096, 4,
	 {LAYER | QUICK, LAYER_TRAINING | QUICK, LAYER | GROUPS, LAYER_TRAINING | GROUPS | QUICK}},
	{GPU, HZ_BF16, 1, 4096, 4, {PRE | QUICK}},
	{GPU, HZ_BF16, 8, 4096, 4, {PRE}},
	{GPU, HZ_BF16, 64, 4096, 4, {PRE}},
	{GPU, HZ_BF16, 1, 4096, 4, {POST | QUICK}},
	{GPU, HZ_BF16, 8, 4096, 4, {POST}},
	{GPU, HZ_BF16, 64, 4096, 4, {POST}},
	{GPU, HZ_BF16, 1, 4096, 4, {POST_PRE}},
	{GPU, HZ_BF16, 8, 4096, 4, {POST_PRE, POST_PRE | P_IN}},
	{GPU, HZ_BF16, 64, 4096, 4, {POST_PRE}},
	{GPU, HZ_BF16, 1, 7168, 4, {PRE}},
	{GPU, HZ_BF16, 64, 4096, 8, {PRE}},
	{GPU, HZ_BF16, 8192, 7168, 4, {WEIGHTS}},
	{GPU, HZ_F16, 32768, 4096, 4, {PRE}},
	{GPU, HZ_BF16, 8192, 4096, 2, {PRE}},
	{GPU, HZ_BF16, 8192, 4096, 8, {PRE}},
	{GPU, HZ_BF16, 8192, 4096, 4, {PRE | LITE, PRE | NORM}},
	{GPU, HZ_BF16, 8192, 4096, 2, {PRE_BWD}},
	{GPU, HZ_BF16, 8192, 4096, 8, {PRE_BWD}},
	{GPU, HZ_BF16, 8192, 4096, 4, {PRE_BWD | LITE, PRE_BWD | NORM}},
	{GPU, HZ_BF16, 8192, 4096, 2, {RECOMPUTE}},
	{GPU, HZ_BF16, 4096, 4096, 8, {RECOMPUTE}},
	{GPU, HZ_BF16, 8192, 4096, 4, {WEIGHTS | DIVIDED, PRE_BWD | DIVIDED}},
	{GPU, HZ_BF16, 1, 4096, 4, {GATED | QUICK, GATED_BWD}},
	{GPU, HZ_BF16, 16, 4096, 4, {GATED, GATED_BWD}},
	{GPU, HZ_BF16, 64, 4096, 4, {GATED, GATED_BWD}},
	{GPU, HZ_BF16, 2048, 4096, 4, {GATED, GATED_BWD}},
	{GPU, HZ_BF16, 8192, 4096, 4, {GATED | QUICK, GATED_BWD | QUICK}},
	{GPU, HZ_F32, 32768, 0, 8, {SINKHORN, SINKHORN_BWD}},
	{GPU, HZ_F32, 16384, 4096, 4, {POST}},
	{GPU, HZ_F32, 16, 4096, 4, {WEIGHTS | QUICK}},
	{GPU, HZ_F32, 8192, 4096, 4, {PRE, PRE_BWD}},

	{CPU, HZ_F32, 1024, 0, 4, {SINKHORN | QUICK, SINKHORN_BWD | QUICK}},
	{CPU, HZ_BF16, 8, 1024, 4,
	 {MIX, MIX_BWD, ADD, ADD_BWD, POST | QUICK, POST_BWD | QUICK, EXPAND, EXPAND_BWD, WEIGHTS,
	  WEIGHTS_BWD, PRE, PRE_BWD}},
	{CPU, HZ_BF16, 2048, 4096, 4,
	 {MIX, MIX_BWD, ADD, ADD_BWD, POST | QUICK, POST_BWD | QUICK, EXPAND, EXPAND_BWD,
	  WEIGHTS | QUICK, WEIGHTS_BWD, PRE | QUICK, PRE_BWD | QUICK, POST_PRE,
	  POST_PRE | P_IN}},
	{CPU, HZ_BF16, 512, 4096, 4, {RECOMPUTE | QUICK}},
	{CPU, HZ_BF16, 2048, 4096, 4, {LAYER, LAYER_TRAINING}},
	{CPU, HZ_BF16, 1, 4096, 4, {PRE, POST}},
	{CPU, HZ_BF16, 64, 4096, 4, {PRE}},
	{CPU, HZ_F16, 2048, 4096, 4, {PRE}},
	{CPU, HZ_BF16, 2048, 4096, 2, {PRE}},
	{CPU, HZ_BF16, 1024, 4096, 8, {PRE}},
	{CPU, HZ_BF16, 2048, 4096, 4, {PRE | LITE, PRE | NORM}},
	{CPU, HZ_BF16, 2048, 4096, 2, {POST}},
	{CPU, HZ_BF16, 1024, 4096, 8, {POST}},
	{CPU, HZ_BF16, 2048, 4096, 2, {POST_BWD}},
	{CPU, HZ_BF16, 1024, 4096, 8, {POST_BWD}},
	{CPU, HZ_BF16, 2048, 4096, 2, {PRE_BWD}},
	{CPU, HZ_BF16, 1024, 4096, 8, {PRE_BWD}},
	{CPU, HZ_BF16, 2048, 4096, 4, {PRE_BWD | LITE, PRE_BWD | NORM}},
	{CPU, HZ_BF16, 2048, 4096, 4, {WEIGHTS | DIVIDED, PRE_BWD | DIVIDED}},
	{CPU, HZ_BF16, 128, 2048, 4, {GATED | QUICK, GATED_BWD}},
	{CPU, HZ_F32, 1024, 0, 8, {SINKHORN, SINKHORN_BWD}},
	{CPU, HZ_F32, 8, 512, 4, {POST}},
	{CPU, HZ_F32, 1024, 4096, 4, {POST, POST_BWD, WEIGHTS, PRE_BWD}},
};

#define SHAPES (sizeof(shapes) / sizeof(*shapes))

struct row {
	enum kind kind;
	int flags, dtype;
	int64_t tokens, groups;		/* groups 0: one per token */
	int channels, n;
};

static struct row row_of(const struct shape *s, int call)
{
	return (struct row){call & KIND, call & ~KIND, s->dtype, s->tokens,
			    call & GROUPS ? 16 : 0, s->channels, s->n};
}

/* The large arrays: streams (n per token) up to DYS, then branch values */
enum { XS, YS, DXS, DYS, US, FS, DUS, DFS, LARGE_ARRAYS };

struct mhc {
	void *large[LARGE_ARRAYS];
	size_t stream_bytes, value_bytes;
	float *p, *q, *a, *dp, *dq, *da, *saved, *z, *layer;
	float *phi, *dphi, *alpha, *dalpha, *bias, *dbias, *norm, *dnorm;
	bool floats;			/* the large arrays hold f32 */
};

#define MOST_ROWS 80			/* rows of phi with n = 8, which has half of the tokens */

struct mhc_case {
	struct bench_case c;
	const struct row *row;
	const struct mhc *m;
	hz_tensor t[LARGE_ARRAYS];
	hz_tensor p, q, a, dp, dq, da, saved, z, zp, phi, dphi, alpha, dalpha, bias, dbias;
	hz_tensor norm, dnorm, w_down, w_up, w_q, dw_down, dw_up, dw_q, gain, dgain;
	hz_mhc_opts opts;
	hz_mhc_grads grads;
	hz_mhc_gated_grads gated;
	hz_mhc_layer layer;
	hz_mhc_block block[LAYERS];
};

static hz_tensor *of(struct mhc_case *m, int which)
{
	return &m->t[which];
}

static int call_mhc(struct bench *b, struct bench_case *c)
{
	struct mhc_case *const m = (struct mhc_case *)c;
	hz_context *const ctx = b->ctx;
	hz_tensor *x = of(m, XS), *y = of(m, YS), *dx = of(m, DXS), *dy = of(m, DYS);
	hz_tensor *u = of(m, US), *f = of(m, FS), *du = of(m, DUS), *df = of(m, DFS);
	int status;

	switch (m->row->kind) {
	case SINKHORN:
		return hz_mhc_sinkhorn(ctx, &m->z, &m->zp, &m->opts);
	case SINKHORN_BWD:
		return hz_mhc_sinkhorn_bwd(ctx, &m->z, &m->a, &m->zp, &m->opts);
	case MIX:
		return hz_mhc_mix(ctx, x, &m->p, &m->a, u, y);
	case MIX_BWD:
		return hz_mhc_mix_bwd(ctx, x, &m->p, &m->a, du, dy, dx, &m->dp, &m->da);
	case ADD:
		return hz_mhc_add(ctx, x, f, &m->q, y);
	case ADD_BWD:
		return hz_mhc_add_bwd(ctx, f, &m->q, dy, NULL, df, &m->dq);
	case POST:
		return hz_mhc_post(ctx, x, f, &m->q, &m->a, NULL, y);
	case POST_BWD:
		return hz_mhc_post_bwd(ctx, x, f, &m->q, &m->a, NULL, dy, dx, df, &m->dq, &m->da,
				       NULL);
	case POST_BWD_F:
		return hz_mhc_post_bwd(ctx, NULL, f, &m->q, NULL, NULL, dy, NULL, df, &m->dq, NULL,
				       NULL);
	case EXPAND:
		return hz_mhc_expand(ctx, f, y);
	case EXPAND_BWD:
		return hz_mhc_expand_bwd(ctx, dy, df);
	case WEIGHTS:
		return hz_mhc_weights(ctx, x, &m->phi, &m->alpha, &m->bias, &m->p, &m->q, &m->a,
				      &m->opts);
	case PRE:
		return hz_mhc_pre(ctx, x, &m->phi, &m->alpha, &m->bias, &m->p, &m->q, &m->a, u,
				  &m->opts);
	case WEIGHTS_BWD:
	case PRE_BWD:
		return hz_mhc_pre_bwd(ctx, x, &m->phi, &m->alpha, &m->bias, &m->grads, &m->opts);
	case HEAD:
		return hz_mhc_head(ctx, x, &m->phi, &m->alpha, &m->bias, &m->p, u, &m->opts);
	case POST_PRE:
		return hz_mhc_post_pre(ctx, x, f, &m->q, &m->a, NULL, &m->phi, &m->alpha, &m->bias,
				       y, &m->p, &m->dq, &m->da, u, &m->opts);
	case RECOMPUTE:
		return hz_mhc_recompute(ctx, x, LAYERS, m->block);
	case GATED:
		return hz_mhc_gated_pre(ctx, x, &m->w_down, &m->w_up, &m->w_q, &m->q, u, &m->opts);
	case GATED_BWD:
		return hz_mhc_gated_pre_bwd(ctx, x, &m->w_down, &m->w_up, &m->w_q, &m->gated,
					    &m->opts);
	default:
		break;
	}
	/* Layers without their branch: f and du are given. */
	status = hz_mhc_layer_begin(ctx, &m->layer, x, u);
	if (!status)
		status = hz_mhc_layer_end(ctx, &m->layer, x, f, y);
	if (!status && m->row->kind == LAYER_TRAINING)
		status = hz_mhc_layer_end_bwd(ctx, &m->layer, f, dy, df);
	if (!status && m->row->kind == LAYER_TRAINING)
		status = hz_mhc_layer_begin_bwd(ctx, &m->layer, x, dy, du, dx);
	return status;
}

/*
 * Copies as many bytes as the call must move, from streams to streams, repeatedly if these are
 * smaller. On a GPU a copy has at most 256 MiB: the driver copies more at a lower rate.
 */
static int call_copy(struct bench *b, struct bench_case *c)
{
	const struct mhc_case *m = (struct mhc_case *)c;
	const int64_t all = (int64_t)(c->moved_bytes / 2) & ~(int64_t)63;
	const int64_t most = (int64_t)m->m->stream_bytes, piece = (int64_t)256 << 20;
	int status = HZ_OK;

	for (int64_t done = 0, at = 0, bytes; done < all && !status; done += bytes) {
		bytes = all - done < piece ? all - done : piece;
		if (at + bytes > most)
			at = 0;
		bytes = bytes < most ? bytes : most;
		c->from = hz_tensor_1d((char *)m->m->large[DYS] + at, HZ_U8, hz_device(b->ctx),
				       bytes);
		c->to = hz_tensor_1d((char *)m->m->large[DXS] + at, HZ_U8, hz_device(b->ctx),
				     bytes);
		status = b->gpu ? hz_copy(b->ctx, &c->from, &c->to) : bench_copy(b, c);
		at += bytes;
	}
	return status;
}

/* Weights have the dtype of the streams. */
static void make_gated_views(struct mhc_case *m, int device)
{
	const struct row *r = m->row;
	const struct mhc *a = m->m;
	const int64_t n = r->n, K = n * r->channels;
	float *const gradients = a->dphi;

	m->w_down = hz_tensor_2d(a->large[FS], r->dtype, device, RANK, K);
	m->w_up = hz_tensor_2d(a->large[DFS], r->dtype, device, K, RANK);
	m->w_q = hz_tensor_2d(a->large[YS], r->dtype, device, n, K);
	m->dw_down = hz_tensor_2d(gradients, HZ_F32, device, RANK, K);
	m->dw_up = hz_tensor_2d(gradients + RANK * K, HZ_F32, device, K, RANK);
	m->dw_q = hz_tensor_2d(gradients + 2 * RANK * K, HZ_F32, device, n, K);
	m->gain = hz_tensor_1d(a->phi, HZ_F32, device, K);
	m->dgain = hz_tensor_1d(gradients + (2 * RANK + n) * K, HZ_F32, device, K);
	m->opts.gain = &m->gain;
	if (r->kind == GATED_BWD)
		m->opts.dgain = &m->dgain;
	m->gated = (hz_mhc_gated_grads){
		.du = &m->t[DUS], .dq = &m->dq, .dx = &m->t[DXS], .dw_down = &m->dw_down,
		.dw_up = &m->dw_up, .dw_q = &m->dw_q,
	};
	m->c.moved_bytes += (double)hz_tensor_bytes(&m->w_down) * 2 +
			    (double)hz_tensor_bytes(&m->w_q);
	if (r->kind == GATED_BWD)
		m->c.moved_bytes += 4.0 * (double)((2 * RANK + n) * K);
}

static void make_views(struct bench *b, struct mhc_case *m)
{
	const struct row *r = m->row;
	const int device = hz_device(b->ctx), n = r->n, rows_of_phi = hz_mhc_rows(n, &m->opts);
	const bool head = r->kind == HEAD;
	const int64_t T = r->tokens, S = r->groups ? r->groups : T, C = r->channels;
	const struct mhc *a = m->m;

	for (int i = 0; i < LARGE_ARRAYS; i++)
		m->t[i] = i <= DYS ? hz_tensor_3d(a->large[i], r->dtype, device, T, n, C)
				   : hz_tensor_2d(a->large[i], r->dtype, device, T, C);
	m->p = hz_tensor_2d(a->p, HZ_F32, device, S, n);
	m->q = hz_tensor_2d(a->q, HZ_F32, device, S, n);
	m->a = hz_tensor_3d(a->a, HZ_F32, device, S, n, n);
	m->dp = hz_tensor_2d(a->dp, HZ_F32, device, S, n);
	m->dq = hz_tensor_2d(a->dq, HZ_F32, device, S, n);
	m->da = hz_tensor_3d(a->da, HZ_F32, device, S, n, n);
	m->saved = hz_tensor_2d(a->saved, HZ_F32, device, S, rows_of_phi + 1);
	m->z = hz_tensor_3d(a->z, HZ_F32, device, S, n, n);
	m->zp = hz_tensor_3d(a->da, HZ_F32, device, S, n, n);
	m->phi = hz_tensor_2d(a->phi, HZ_F32, device, head ? n : rows_of_phi, n * C);
	m->dphi = hz_tensor_2d(a->dphi, HZ_F32, device, rows_of_phi, n * C);
	m->alpha = hz_tensor_1d(a->alpha, HZ_F32, device, head ? 1 : 3);
	m->dalpha = hz_tensor_1d(a->dalpha, HZ_F32, device, 3);
	m->bias = hz_tensor_1d(a->bias, HZ_F32, device, head ? n : rows_of_phi);
	m->dbias = hz_tensor_1d(a->dbias, HZ_F32, device, rows_of_phi);
	m->norm = hz_tensor_1d(a->norm, HZ_F32, device, C);
	m->dnorm = hz_tensor_1d(a->dnorm, HZ_F32, device, C);
	if (r->kind == GATED || r->kind == GATED_BWD)
		make_gated_views(m, device);
	m->grads = (hz_mhc_grads){
		.dp = &m->dp, .dq = &m->dq, .da = &m->da, .dx = &m->t[DXS], .dphi = &m->dphi,
		.dalpha = &m->dalpha, .dbias = &m->dbias,
	};
	if (r->kind == PRE_BWD) {
		m->grads.dp = m->grads.da = NULL;
		m->grads.du = &m->t[DUS];
		m->grads.dy = &m->t[DYS];
	}
	m->layer = (hz_mhc_layer){
		.phi = m->phi, .alpha = m->alpha, .bias = m->bias, .dphi = m->dphi,
		.dalpha = m->dalpha, .dbias = m->dbias, .opts = m->opts,
	};
	if (r->kind == WEIGHTS_BWD || r->kind == PRE_BWD)
		m->opts.saved = &m->saved;
	if (r->flags & P_IN)
		m->opts.p_in = &m->dp;
	if (r->flags & NORM)
		m->opts.norm = &m->norm;
	if (r->flags & NORM && r->kind == PRE_BWD)
		m->opts.dnorm = &m->dnorm;
	/* Each layer of RECOMPUTE has a part of the arrays of its own. */
	for (int i = 0; i < LAYERS; i++) {
		const size_t value = (size_t)(i * T * C) * hz_dtype_size(r->dtype);

		m->block[i] = (hz_mhc_block){
			.p = m->p, .q = m->q, .a = m->a, .f = m->t[FS], .u = m->t[US],
			.y = m->t[YS],
		};
		m->block[i].f.data = (char *)a->large[FS] + value;
		m->block[i].u.data = (char *)a->large[US] + value;
		m->block[i].y.data = (char *)a->large[YS] + value * (size_t)n;
	}
}

static void name_case(struct mhc_case *m)
{
	const struct row *r = m->row;
	const char *const name = kinds[r->kind].name;

	if (r->kind == SINKHORN || r->kind == SINKHORN_BWD)
		snprintf(m->c.name, sizeof(m->c.name), "%lld %dx%d", (long long)r->tokens, r->n,
			 r->n);
	else
		snprintf(m->c.name, sizeof(m->c.name), "%s%s%s%lldx%dx%d%s", name,
			 *name ? " " : "",
			 r->flags & LITE ? "lite " : r->flags & NORM ? "norm " :
			 r->flags & P_IN ? "p_in " : r->flags & DIVIDED ? "rms=stream " : "",
			 (long long)r->tokens, r->n, r->channels, r->groups ? "/16" : "");
	snprintf(m->c.dtype, sizeof(m->c.dtype), "%s", hz_dtype_name(r->dtype));
}

/* Reserves the workspace of a case. */
static int reserve(struct bench *b, struct mhc_case *m)
{
	size_t bytes = 0;
	int status = hz_record_begin(b->ctx);

	if (!status) {
		status = call_mhc(b, &m->c);
		hz_record_end(b->ctx, &bytes);
	}
	return status ? status : hz_reserve(b->ctx, bytes);
}

/* Computes what the forward call saves for the gradients. */
static int save(struct bench *b, struct mhc_case *m)
{
	return WITH_WORKSPACE(b->ctx, hz_mhc_weights(b->ctx, &m->t[XS], &m->phi, &m->alpha,
						     &m->bias, &m->p, &m->q, &m->a, &m->opts));
}

static int run_case(struct bench *b, const struct row *r, const struct mhc *a)
{
	struct mhc_case m = {.row = r, .m = a};
	const double values = (double)(r->tokens * r->channels) * (double)hz_dtype_size(r->dtype);
	int status;

	/* mHC-triton's conventions for coefficients of sequences and for 16 tokens */
	if (r->groups || (r->tokens == 16 && r->kind == WEIGHTS))
		m.opts.preset = HZ_MHC_PRESET_TRITON;
	if (r->groups)
		m.opts.coefficients = HZ_MHC_PER_SEQUENCE;
	if (r->kind == SINKHORN || r->kind == SINKHORN_BWD)
		m.opts.preset = HZ_MHC_PRESET_PAPER;
	if (r->flags & P_IN)
		m.opts.preset = HZ_MHC_PRESET_DEEPSEEK_V41;
	if (r->flags & DIVIDED)
		m.opts.preset = HZ_MHC_PRESET_LUCIDRAINS;
	if (r->flags & LITE)
		m.opts.preset = HZ_MHC_PRESET_LITE;
	m.c.moved_bytes = values * (kinds[r->kind].streams * r->n + kinds[r->kind].values);
	make_views(b, &m);
	name_case(&m);
	m.c.op = kinds[r->kind].op;
	m.c.call = call_mhc;
	m.c.ceiling = call_copy;
	m.c.against = b->gpu ? "device copy" : "memcpy";
	m.c.operations = (double)r->tokens;
	if (r->kind == SINKHORN || r->kind == SINKHORN_BWD)
		m.c.moved_bytes = (r->kind == SINKHORN ? 2.0 : 3.0) * (double)hz_tensor_bytes(&m.z);
	m.c.large = b->gpu && r->tokens > 1000 && r->channels;
	progress("bench: %s %s", m.c.op, m.c.name);
	/* A layer of 4 streams keeps 53 numbers a set, in an array of 64. */
	status = r->kind == LAYER || r->kind == LAYER_TRAINING ?
		 hz_mhc_layer_bind(b->ctx, &m.layer, r->n, r->groups ? r->groups : r->tokens,
				   a->layer, NULL) : HZ_OK;
	if (!status)
		status = reserve(b, &m);
	if (!status && m.opts.saved)
		status = save(b, &m);
	return bench_made(b, &m.c, status);
}

/* An array of normal random numbers times a scale */
static int make_floats(struct bench *b, float **to, int64_t count, float scale)
{
	const int device = hz_device(b->ctx);
	float *pool = allocate((size_t)count * sizeof(*pool));
	uint64_t seed = (uint64_t)count;
	void *p = NULL;
	int status = pool ? hz_alloc(b->ctx, &p, (size_t)count * sizeof(*pool), device) : HZ_ENOMEM;

	*to = p;
	for (int64_t i = 0; i < count && !status; i++)
		pool[i] = scale * random_normal(&seed);
	if (!status) {
		const hz_tensor from = hz_tensor_1d(pool, HZ_F32, HZ_CPU, count);
		hz_tensor there = hz_tensor_1d(p, HZ_F32, device, count);

		status = hz_copy(b->ctx, &from, &there);
	}
	if (!status)
		status = hz_sync(b->ctx);
	free(pool);
	return status;
}

/* Fills the large arrays with f32 or 16-bit values: two bf16 read as f32 may be subnormal. */
static int fill_arrays(struct bench *b, struct mhc *a, bool floats)
{
	const int dtype = floats ? HZ_F32 : HZ_BF16;
	int status = HZ_OK;

	for (int i = 0; i < LARGE_ARRAYS && !status; i++) {
		const size_t bytes = i <= DYS ? a->stream_bytes : a->value_bytes;
		const int64_t count = (int64_t)(bytes / hz_dtype_size(dtype));

		status = bench_fill(b, dtype, count,
				    hz_tensor_1d(a->large[i], dtype, hz_device(b->ctx), count));
	}
	a->floats = floats;
	return status;
}

static int make_arrays(struct bench *b, struct mhc *a)
{
	const int device = hz_device(b->ctx);
	const int64_t tokens = b->gpu ? 32768 : 2048, channels = 4096;
	const int64_t n = 4, numbers = n * n * tokens, values = tokens * channels;
	const struct {
		float **to;
		int64_t count;
		float scale;
	} small[] = {
		{&a->p, numbers, 0.5f}, {&a->q, numbers, 0.5f}, {&a->a, 4 * numbers, 0.5f},
		{&a->dp, numbers, 1}, {&a->dq, numbers, 1}, {&a->da, 4 * numbers, 1},
		{&a->saved, (MOST_ROWS + 2) / 2 * tokens, 1}, {&a->z, 4 * numbers, 1},
		{&a->layer, 4 * numbers, 1},
		{&a->phi, 2 * MOST_ROWS * n * channels, 0.01f},
		{&a->dphi, 4 * MOST_ROWS * n * channels, 1},
		{&a->alpha, 3, 1}, {&a->dalpha, 3, 1}, {&a->bias, MOST_ROWS, 1},
		{&a->dbias, MOST_ROWS, 1}, {&a->norm, 2 * channels, 1},
		{&a->dnorm, 2 * channels, 1},
	};
	int status = HZ_OK;

	a->value_bytes = (size_t)values * 2;
	a->stream_bytes = (size_t)(n * values) * 2;
	for (int i = 0; i < LARGE_ARRAYS && !status; i++)
		status = hz_alloc(b->ctx, &a->large[i],
				  i <= DYS ? a->stream_bytes : a->value_bytes, device);
	if (!status)
		status = fill_arrays(b, a, false);
	for (size_t i = 0; i < sizeof(small) / sizeof(*small) && !status; i++)
		status = make_floats(b, small[i].to, small[i].count, small[i].scale);
	return status;
}

static void free_arrays(struct bench *b, struct mhc *a)
{
	void *const small[] = {a->p, a->q,   a->a,    a->dp,    a->dq,     a->da,   a->saved,
			       a->z, a->layer, a->phi, a->dphi, a->alpha, a->dalpha, a->bias,
			       a->dbias, a->norm, a->dnorm};

	hz_sync(b->ctx);
	for (int i = 0; i < LARGE_ARRAYS; i++)
		hz_free(b->ctx, a->large[i], hz_device(b->ctx));
	for (size_t i = 0; i < sizeof(small) / sizeof(*small); i++)
		hz_free(b->ctx, small[i], hz_device(b->ctx));
}

static bool selected(const struct bench *b, const struct shape *s, int call)
{
	return bench_wanted(b->set, kinds[call & KIND].op) && (!b->set->quick || call & QUICK) &&
	       s->device == (b->gpu ? GPU : CPU);
}

static bool any_selected(const struct bench *b)
{
	for (size_t i = 0; i < SHAPES; i++) {
		for (const int *call = shapes[i].calls; *call; call++) {
			if (selected(b, &shapes[i], *call))
				return true;
		}
	}
	return false;
}

int bench_mhc(struct bench *b, void (*head)(struct bench *b))
{
	struct mhc a = {0};
	int status;

	if (!any_selected(b))
		return 0;
	status = make_arrays(b, &a);
	if (status)
		status = complain(EXIT_FAILURE, "bench: %s", hz_errmsg(b->ctx));
	for (size_t i = 0; i < SHAPES; i++) {
		for (const int *call = shapes[i].calls; *call && !status; call++) {
			const struct row r = row_of(&shapes[i], *call);

			if (!selected(b, &shapes[i], *call))
				continue;
			head(b);
			if (r.channels && (r.dtype == HZ_F32) != a.floats)
				status = fill_arrays(b, &a, !a.floats);
			if (!status)
				status = run_case(b, &r, &a);
		}
	}
	free_arrays(b, &a);
	return status;
}

/* ---- The grid -------------------------------------------------------------------------------- */

/* Tokens are the batch, channels the width; op->kind is the number of streams. */
struct grid_streams {
	hz_tensor phi, alpha, bias, p, q, a, f, u;
	hz_mhc_opts opts;
	hz_mhc_layer layer;
	char *kept;			/* memory of the layer */
};

static int grid_make(struct bench *b, struct grid_case *g)
{
	const int device = hz_device(b->ctx), n = g->op->kind;
	const int64_t C = g->width, tokens = grid_batches[GRID_BATCHES - 1];
	const float alpha[3] = {0.01f, 0.01f, 0.01f};
	const hz_tensor from = hz_tensor_1d((void *)(uintptr_t)alpha, HZ_F32, HZ_CPU, 3);
	struct grid_streams *own = g->own = calloc(1, sizeof(*own));
	float *small = b->from;
	const int64_t m = own ? hz_mhc_rows(n, &own->opts) : 1, values = tokens * C;
	const int64_t most = 2 * b->elements / (int64_t)hz_dtype_size(g->dtype);
	int status = own ? HZ_OK : HZ_ENOMEM;

	if (status)
		return status;
	own->bias = hz_tensor_1d(b->scale, HZ_F32, device, m);
	own->alpha = hz_tensor_1d((float *)b->scale + 1024, HZ_F32, device, 3);
	own->p = hz_tensor_2d(small, HZ_F32, device, tokens, n);
	own->q = hz_tensor_2d(small += tokens * n, HZ_F32, device, tokens, n);
	own->a = hz_tensor_3d(small += tokens * n, HZ_F32, device, tokens, n, n);
	own->kept = (char *)(small + tokens * n * n);
	own->f = hz_tensor_2d(b->to, g->dtype, device, tokens, C);
	own->u = own->f;
	own->u.data = (char *)b->to + 2 * b->elements;
	status = hz_copy(b->ctx, &from, &own->alpha);
	if (!status)
		status = bench_fill(b, g->dtype, values < most ? values : most, own->f);
	if (!status && g->op->vectors > 0)
		status = grid_weights(b, g, (size_t)(4 * m * n * C), 0);
	own->phi = hz_tensor_2d(g->weights, HZ_F32, device, m, n * C);
	if (!status && g->op->vectors > 0)
		status = bench_fill(b, HZ_F32, m * n * C, own->phi);
	own->layer.alpha = own->alpha;
	own->layer.bias = own->bias;
	own->layer.phi = own->phi;
	return status;
}

static void grid_release(struct bench *b, struct grid_case *g)
{
	(void)b;
	free(g->own);
}

static int grid_call_pre(struct bench *b, struct bench_case *c)
{
	struct grid_case *g = (struct grid_case *)c;
	struct grid_streams *own = g->own;

	own->phi.data = grid_turn(g);
	return hz_mhc_pre(b->ctx, &g->x, &own->phi, &own->alpha, &own->bias, &own->p, &own->q,
			  &own->a, &g->y, &own->opts);
}

static int grid_call_post(struct bench *b, struct bench_case *c)
{
	struct grid_case *g = (struct grid_case *)c;
	struct grid_streams *own = g->own;

	return hz_mhc_post(b->ctx, &g->x, &own->f, &own->q, &own->a, NULL, &g->y);
}

static int grid_call_layer(struct bench *b, struct bench_case *c)
{
	struct grid_case *g = (struct grid_case *)c;
	struct grid_streams *own = g->own;
	int status;

	own->layer.phi.data = grid_turn(g);
	status = hz_mhc_layer_begin(b->ctx, &own->layer, &g->x, &own->u);
	return status ? status : hz_mhc_layer_end(b->ctx, &own->layer, &g->x, &own->f, &g->y);
}

/* x, and y where it is not one value a channel, become streams. */
static int grid_view(struct bench *b, struct grid_case *g)
{
	struct grid_streams *own = g->own;
	hz_tensor *const set[] = {&own->p, &own->q, &own->a, &own->f, &own->u};
	hz_tensor *const both[] = {&g->x, &g->y};
	const int64_t n = g->op->kind;
	size_t bytes;

	for (int i = 0; i < (g->op->y_width > 0 ? 2 : 1); i++) {
		both[i]->ndim = 3;
		both[i]->shape[1] = n;
		both[i]->shape[2] = g->width;
		both[i]->stride[1] = g->width;
		both[i]->stride[2] = 1;
	}
	for (size_t i = 0; i < sizeof(set) / sizeof(*set); i++)
		set[i]->shape[0] = g->batch;
	if (g->op->call != grid_call_layer)
		return HZ_OK;
	return hz_mhc_layer_bind(b->ctx, &own->layer, (int)n, g->batch, own->kept, &bytes);
}

/* phi has 2n + n^2 rows of n width */
#define GRID_ROWS(n) (((n) * (n) + 2 * (n)) * (n))
#define GRID_STREAMS(n) \
	{"mhc_pre", "pre " #n " streams", n, {HZ_F32, HZ_F16, HZ_BF16}, .x_width = n, \
	 .vectors = GRID_ROWS(n), .vector_macs = GRID_ROWS(n), .make = grid_make, \
	 .view = grid_view, .call = grid_call_pre, .release = grid_release}, \
	{"mhc_streams", "post " #n " streams", n, {HZ_F32, HZ_F16, HZ_BF16}, .x_width = n, \
	 .y_width = n, .more_width = 1, .vector_macs = (n) * (n) + (n), .make = grid_make, \
	 .view = grid_view, .call = grid_call_post, .release = grid_release}, \
	{"mhc_pre", "layer " #n " streams", n, {HZ_F32, HZ_F16, HZ_BF16}, .x_width = n, \
	 .y_width = n, .more_width = (n) + 2, .vectors = GRID_ROWS(n), \
	 .vector_macs = GRID_ROWS(n) + (n) * (n) + 2 * (n), .make = grid_make, \
	 .view = grid_view, .call = grid_call_layer, .release = grid_release}

const struct grid_op grid_mhc[] = {
	GRID_STREAMS(2), GRID_STREAMS(4), GRID_STREAMS(8), {0},
};
