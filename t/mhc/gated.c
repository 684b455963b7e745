/*
 * gated.c - gated branch inputs against their definition in f64
 *
 * SPDX-License-Identifier: BSD-2-Clause
 *
 * The gradients of the definition are checked by differences.
 */
#include "t/mhc/mhc.h"

/* ---- The definition -------------------------------------------------------------------------- */

/* Arrays are contiguous; number (i, c) of a token is at i C + c, or with cn at c n + i. */
struct gated {
	int n, cn;
	int64_t T, C, r;
	double rms_eps, q_scale, q_eps;
	int rule;			/* of rms_eps */
	const double *x, *down, *up, *w_q, *gain;
};

static int64_t column(const struct gated *g, int i, int64_t c)
{
	return g->cn ? c * g->n + i : i * g->C + c;
}

/* Gradients of one token, added to; NULL: not wanted. u, q: outputs, or without gradients NULL */
struct token {
	double *u, *q;
	const double *du, *dq, *dy;
	double *dx, *ddown, *dup, *dw_q, *dgain;
};

/* x is a token's [n][C], in the order of streams nc; weights are in theirs. */
static void gated_token(const struct gated *g, const double *x, const struct token *o)
{
	const int n = g->n;
	const int64_t K = n * g->C;
	double *const divided = calloc((size_t)(6 * K + 4 * g->r) + 1, 8), *const hat = divided + K;
	double *const dhat = hat + K, *const gate = dhat + K, *const dgate = gate + K;
	double *const down = dgate + K, *const hidden = down + g->r, *const dhidden = hidden + g->r;
	double rho[8], slope[8];
	struct ref_rule rule = {.n = n, .rms = HZ_MHC_RMS_ALL, .rms_eps_rule = g->rule,
				.rms_eps = g->rms_eps};
	int64_t c, k, e;
	int i;

	for (i = 0; i < n; i++) {
		double square = 0;

		for (c = 0; c < g->C; c++)
			square += x[i * g->C + c] * x[i * g->C + c] / (double)g->C;
		rho[i] = ref_rho(&rule, square, g->C, &slope[i]);
		for (c = 0; c < g->C; c++) {
			k = column(g, i, c);
			divided[k] = rho[i] * x[i * g->C + c];
			hat[k] = divided[k] * (g->gain ? g->gain[i * g->C + c] : 1);
		}
	}
	for (e = 0; e < g->r; e++) {
		for (k = 0; k < K; k++)
			down[e] += g->down[e * K + k] * hat[k] / n;
		hidden[e] = down[e] * ref_sigma(down[e]);
	}
	for (i = 0; i < n; i++) {
		double z = 0, s;

		for (k = 0; k < K && g->w_q; k++)
			z += g->w_q[i * K + k] * hat[k] / n;
		s = ref_sigma(z);
		if (o->q)
			o->q[i] = g->q_scale * s + g->q_eps;
		for (k = 0; k < K && g->w_q && o->dq; k++) {
			const double dz = o->dq[i] * g->q_scale * s * (1 - s) / n;

			dhat[k] += dz * g->w_q[i * K + k];
			ref_add(o->dw_q, i * K + k, dz * hat[k]);
		}
		for (c = 0; c < g->C; c++) {
			k = column(g, i, c);
			for (e = 0; e < g->r; e++)
				gate[k] += g->up[k * g->r + e] * hidden[e];
			s = ref_sigma(gate[k]);
			if (o->u)
				o->u[c] += s * hat[k] / n;
			if (!o->du)
				continue;
			dhat[k] += o->du[c] * s / n;
			dgate[k] = o->du[c] * hat[k] / n * s * (1 - s);
		}
	}
	for (k = 0; k < K; k++) {
		for (e = 0; e < g->r; e++) {
			dhidden[e] += dgate[k] * g->up[k * g->r + e];
			ref_add(o->dup, k * g->r + e, dgate[k] * hidden[e]);
		}
	}
	for (e = 0; e < g->r; e++) {
		const double s = ref_sigma(down[e]);
		const double d = dhidden[e] * s * (1 + down[e] * (1 - s)) / n;

		for (k = 0; k < K; k++) {
			dhat[k] += d * g->down[e * K + k];
			ref_add(o->ddown, e * K + k, d * hat[k]);
		}
	}
	for (i = 0; i < n; i++) {
		double dot = 0;

		for (c = 0; c < g->C; c++) {
			k = column(g, i, c);
			ref_add(o->dgain, i * g->C + c, dhat[k] * divided[k]);
			dhat[k] *= g->gain ? g->gain[i * g->C + c] : 1;
			dot += dhat[k] * divided[k] / (double)g->C;
		}
		for (c = 0; c < g->C; c++) {
			k = column(g, i, c);
			ref_add(o->dx, i * g->C + c,
				rho[i] * dhat[k] - slope[i] * divided[k] * dot +
					(o->dy ? o->dy[i * g->C + c] : 0));
		}
	}
	free(divided);
}

/* <u, du> + <q, dq> of a token */
static double value(const struct gated *g, const double *x, const double *du, const double *dq)
{
	double *u = calloc((size_t)g->C + 1, 8), q[8], sum = 0;
	const struct token o = {.u = u, .q = q};
	int64_t c;

	gated_token(g, x, &o);
	for (c = 0; c < g->C; c++)
		sum += u[c] * du[c];
	for (c = 0; c < g->n; c++)
		sum += q[c] * dq[c];
	free(u);
	return sum;
}

/* Whether a gradient of `count` values v is that of value() */
static int agrees(const struct gated *g, const double *x, const double *du, const double *dq,
		  double *v, const double *gradient, int64_t count)
{
	const double step = 1e-5;
	int good = 1;
	int64_t i;

	for (i = 0; i < count; i++) {
		const double old = v[i];
		double high, low;

		v[i] = old + step;
		high = value(g, x, du, dq);
		v[i] = old - step;
		low = value(g, x, du, dq);
		v[i] = old;
		good &= fabs((high - low) / (2 * step) - gradient[i]) < 1e-7;
	}
	return good;
}

static void test_definition(void)
{
	enum { N = 3, C = 4, R = 5, K = N * C };
	double x[K], down[R * K], up[K * R], w_q[N * K], gain[K], du[C], dq[N];
	double dx[K] = {0}, ddown[R * K] = {0}, dup[K * R] = {0}, dw_q[N * K] = {0}, dgain[K] = {0};
	double *const all[] = {x, down, up, w_q, gain, du, dq};
	const int64_t sizes[] = {K, R * K, K * R, N * K, K, C, N};
	int good = 1, i, rule;
	int64_t e;

	for (rule = HZ_MHC_RMS_EPS_INSIDE; rule <= HZ_MHC_RMS_EPS_FLOOR; rule++) {
		const struct gated g = {
			.n = N, .cn = rule == 2, .T = 1, .C = C, .r = R, .rms_eps = 0.3,
			.q_scale = 1.5, .rule = rule, .x = x, .down = down, .up = up, .w_q = w_q,
			.gain = gain,
		};
		const struct token o = {
			.du = du, .dq = dq, .dx = dx, .ddown = ddown, .dup = dup, .dw_q = dw_q,
			.dgain = dgain,
		};

		for (i = 0; i < 7; i++) {
			for (e = 0; e < sizes[i]; e++)
				all[i][e] = rnd_normal(&rnd);
		}
		memset(dx, 0, sizeof(dx));
		memset(ddown, 0, sizeof(ddown));
		memset(dup, 0, sizeof(dup));
		memset(dw_q, 0, sizeof(dw_q));
		memset(dgain, 0, sizeof(dgain));
		gated_token(&g, x, &o);
		good &= agrees(&g, x, du, dq, x, dx, K) & agrees(&g, x, du, dq, down, ddown, R * K);
		good &= agrees(&g, x, du, dq, up, dup, K * R);
		good &= agrees(&g, x, du, dq, gain, dgain, K);
		good &= agrees(&g, x, du, dq, w_q, dw_q, N * K);
	}
	ok(good, "the gradients of the definition, by differences");
}

/* ---- Cases ----------------------------------------------------------------------------------- */

static int call_gated(hz_context *ctx, struct tcase *c)
{
	return hz_mhc_gated_pre(ctx, view(c, X), view(c, W_DOWN), view(c, W_UP), view(c, W_Q),
				view(c, Q), view(c, U), c->default_opts ? NULL : &c->opts);
}

static int call_gated_bwd(hz_context *ctx, struct tcase *c)
{
	const hz_mhc_gated_grads g = {
		.du = view(c, DU), .dq = view(c, DQ), .dy = view(c, DY), .dx = view(c, DX),
		.dw_down = view(c, DW_DOWN), .dw_up = view(c, DW_UP), .dw_q = view(c, DW_Q),
	};

	return hz_mhc_gated_pre_bwd(ctx, view(c, X), view(c, W_DOWN), view(c, W_UP), view(c, W_Q),
				    &g, &c->opts);
}

enum {
	CN = 1, GAIN_TOO = 2, NO_Q = 4, ADDS = 8, SIZES = 16, LAYOUT = 32, PEAK = 64,
	DEFAULT = 128, EXTREMES = 256, INFINITE = 512, UP_BF16 = 1024, DY_TOO = 2048, NO_DX = 4096,
	NO_DW = 8192, Q_BF16 = 16384
};

static void weight(struct tcase *c, int slot, int dtype, int64_t rows, int64_t columns, double sd)
{
	fill(make(c, slot, dtype, WHOLE, 2, (int64_t[]){rows, columns}, 0), 0, sd);
}

static void make_gated(struct tcase *c, struct gated *g, int dtype, int how)
{
	const int layout = (how & LAYOUT ? GAPS | BACKWARDS | SKEWED : 0) |
			   (how & CN ? SWAPPED : 0);
	const int n = g->n;
	const int64_t K = n * g->C;
	/* Peaked gates: their z have a standard deviation of 30. */
	const double sd = how & PEAK ? 30 : 1;
	int64_t i;

	c->opts = (hz_mhc_opts){
		.preset = how & DEFAULT ? 0 : HZ_MHC_PRESET_QWEN4_EXP,
		.streams = how & CN ? HZ_MHC_STREAMS_CN : 0,
		.flags = how & ADDS ? HZ_MHC_ACCUMULATE : 0,
	};
	c->default_opts = (how & DEFAULT) && !(how & ~DEFAULT);
	c->cn = how & CN ? n : 0;
	c->split = 1 + rnd_below(&rnd, 2);
	streams(c, X, dtype, g->T, n, g->C, layout, 1);
	for (i = 0; how & (SIZES | EXTREMES) && i < g->T * K; i++)
		set(c->o[X], i, c->o[X]->v[i] * (i / g->C % 3 == 1 ? 1 :
						 pow(how & SIZES ? 1e15 : 1e28,
						     i / g->C % 3 == 0 ? 1 : -1)));
	weight(c, W_DOWN, dtype, g->r, K, n * sd / sqrt((double)K + 1));
	weight(c, W_UP, how & CN ? HZ_F32 : how & UP_BF16 ? HZ_BF16 : dtype, K, g->r,
	       2 * (how & PEAK ? 1 : sd) / sqrt((double)g->r));
	/* Gates of 0 or 1: one weight of some rows is infinite. */
	for (i = 0; how & INFINITE && i < K; i += 3)
		set(c->o[W_UP], i * g->r + i % g->r, i % 2 ? INFINITY : -INFINITY);
	if (!(how & NO_Q))
		weight(c, W_Q, how & Q_BF16 ? HZ_BF16 : HZ_F32, n, K, n / sqrt((double)K + 1));
	if (how & GAIN_TOO)
		vector(c, GAIN, K, 1, 0.3, 0);
	g->cn = how & CN;
	g->rms_eps = 1e-6;
	g->q_scale = 2;
	g->rule = HZ_MHC_RMS_EPS_INSIDE;
	g->x = values(c, X);
	g->down = values(c, W_DOWN);
	g->up = values(c, W_UP);
	g->w_q = values(c, W_Q);
	g->gain = values(c, GAIN);
}

static int forward(int n, int dtype, int64_t T, int64_t C, int64_t r, int how)
{
	struct tcase c = {.call = call_gated};
	struct gated g = {.n = n, .T = T, .C = C, .r = r};
	const int layout = how & LAYOUT ? GAPS | BACKWARDS : 0;
	int64_t t;

	snprintf(c.name, sizeof(c.name), "gated n %d %s T %lld C %lld r %lld how %#x", n,
		 hz_dtype_name(dtype), (long long)T, (long long)C, (long long)r, (unsigned)how);
	make_gated(&c, &g, dtype, how);
	streams(&c, U, dtype, T, 0, C, layout, 0);
	if (!(how & NO_Q))
		coefs(&c, Q, T, n, 0, layout, 0);
	for (t = 0; t < T; t++) {
		const struct token o = {
			.u = wanted(&c, U) + t * C,
			.q = c.o[Q] ? wanted(&c, Q) + t * n : NULL,
		};

		gated_token(&g, g.x + t * n * C, &o);
	}
	bound_flat(c.o[U], how & PEAK ? 3e-3 : 1e-4);
	bound_flat(c.o[Q], 1e-4);
	return run_case(&c);
}

static struct operand *gradient_of(struct operand *o, int how)
{
	int64_t i;

	expect(o, 0);
	if (how & ADDS)
		fill(o, 0, 0.5);
	for (i = 0; how & ADDS && i < o->count; i++)
		o->want[i] = o->v[i];
	return o;
}

static int backward(int n, int dtype, int64_t T, int64_t C, int64_t r, int how)
{
	struct tcase c = {.call = call_gated_bwd};
	struct gated g = {.n = n, .T = T, .C = C, .r = r};
	const int layout = how & LAYOUT ? GAPS | BACKWARDS : 0;
	const int64_t K = n * C;
	int64_t t;
	int k;

	snprintf(c.name, sizeof(c.name), "gated bwd n %d %s T %lld C %lld r %lld how %#x", n,
		 hz_dtype_name(dtype), (long long)T, (long long)C, (long long)r, (unsigned)how);
	make_gated(&c, &g, dtype, how);
	streams(&c, DU, dtype, T, 0, C, layout, 1);
	if (!(how & NO_Q))
		coefs(&c, DQ, T, n, 0, layout, 1);
	if (how & (LAYOUT | DY_TOO))
		streams(&c, DY, dtype, T, n, C, layout, 1);
	if (!(how & NO_DX))
		gradient_of(make(&c, DX, dtype, SPLIT, 3, (int64_t[]){T, n, C}, layout), how);
	if (!(how & NO_DW)) {
		gradient_of(make(&c, DW_DOWN, HZ_F32, WHOLE, 2, (int64_t[]){r, K}, 0), how);
		gradient_of(make(&c, DW_UP, HZ_F32, WHOLE, 2, (int64_t[]){K, r}, 0), how);
	}
	if (!(how & (NO_Q | NO_DW)))
		gradient_of(make(&c, DW_Q, HZ_F32, WHOLE, 2, (int64_t[]){n, K}, 0), how);
	if (how & GAIN_TOO)
		gradient_of(vector(&c, DGAIN, K, 0, 0.5, 0), how);
	for (t = 0; t < T; t++) {
		const struct token o = {
			.du = values(&c, DU) + t * C, .dq = c.o[DQ] ? values(&c, DQ) + t * n : NULL,
			.dy = c.o[DY] ? values(&c, DY) + t * K : NULL,
			.dx = c.o[DX] ? wanted(&c, DX) + t * K : NULL, .ddown = wanted(&c, DW_DOWN),
			.dup = wanted(&c, DW_UP), .dw_q = wanted(&c, DW_Q),
			.dgain = wanted(&c, DGAIN),
		};

		gated_token(&g, g.x + t * K, &o);
	}
	for (k = DX; k < SLOTS; k++) {
		if (c.o[k] && c.o[k]->want)
			/* Of one token and hidden number, all of dw_down hangs on one sum, which may
			 * cancel. */
			bound_flat(c.o[k], k == DW_DOWN && T * r == 1 ? 1e-2 : 3e-4);
	}
	return run_case(&c);
}

static void test_gated(void)
{
	static const struct {
		int n, dtype, how;
		int64_t T, C, r;
	} list[] = {
		{4, HZ_F32, GAIN_TOO, 5, 16, 8}, {4, HZ_BF16, GAIN_TOO, 17, 72, 33},
		{4, HZ_F16, 0, 1, 64, 1}, {1, HZ_F32, NO_Q, 3, 7, 5},
		{3, HZ_BF16, CN | GAIN_TOO, 9, 31, 12}, {8, HZ_F32, CN, 2, 5, 130},
		{2, HZ_F32, LAYOUT | GAIN_TOO | ADDS, 33, 9, 25}, {4, HZ_BF16, ADDS, 130, 20, 66},
		{4, HZ_F16, CN | LAYOUT | ADDS | GAIN_TOO, 6, 40, 7}, {5, HZ_F32, DEFAULT, 4, 3, 2},
		{4, HZ_F32, NO_Q, 0, 16, 4}, {4, HZ_BF16, CN, 0, 8, 4},
		{4, HZ_F32, DEFAULT | ADDS, 0, 8, 4}, {4, HZ_BF16, GAIN_TOO | ADDS, 140, 136, 144},
	};
	/* Tiles of the fused kernels: 16 to 256 tokens, 32 and 64 channels, slices, their edges */
	static const struct {
		int n, dtype, how;
		int64_t T, C, r;
	} fused[] = {
		{4, HZ_BF16, GAIN_TOO, 1, 1032, 128}, {4, HZ_BF16, NO_Q, 16, 264, 64},
		{4, HZ_F32, GAIN_TOO, 3, 520, 16}, {3, HZ_F16, 0, 16, 40, 80},
		{8, HZ_F16, GAIN_TOO | NO_Q, 7, 8, 256}, {4, HZ_F32, 0, 17, 272, 48},
		{2, HZ_BF16, GAIN_TOO, 65, 72, 256}, {5, HZ_F16, NO_Q, 70, 104, 32},
		{4, HZ_BF16, 0, 140, 136, 128}, {4, HZ_BF16, GAIN_TOO, 300, 72, 64},
		{1, HZ_F32, GAIN_TOO, 129, 200, 112}, {4, HZ_F16, 0, 150, 64, 144},
		{4, HZ_BF16, NO_Q, 131, 192, 64}, {2, HZ_F32, 0, 140, 64, 256},
		{3, HZ_BF16, GAIN_TOO, 530, 200, 128},
		{4, HZ_F16, GAIN_TOO | UP_BF16, 290, 136, 80},
		{8, HZ_F16, UP_BF16, 100, 72, 128}, {1, HZ_BF16, NO_Q, 258, 64, 16},
		{4, HZ_BF16, GAIN_TOO, 65, 72, 128}, {2, HZ_BF16, 0, 33, 2056, 48},
		{3, HZ_BF16, GAIN_TOO | Q_BF16, 12, 136, 112}, {1, HZ_BF16, NO_Q, 128, 32, 16},
		{4, HZ_BF16, Q_BF16, 5, 1096, 96},
		{4, HZ_BF16, GAIN_TOO | Q_BF16, 1, 1032, 128}, {2, HZ_BF16, Q_BF16, 8, 2056, 48},
		{4, HZ_BF16, GAIN_TOO | Q_BF16, 64, 2312, 128}, {4, HZ_BF16, Q_BF16, 75, 264, 128},
		{2, HZ_BF16, GAIN_TOO | Q_BF16, 200, 72, 80}, {3, HZ_BF16, Q_BF16, 17, 4104, 64},
	};
	/* Gradients by wgmma: tiles of 128 tokens, 64 and 256 channels, sums of 32 tokens */
	static const struct {
		int n, how;
		int64_t T, C, r;
	} wgmma[] = {
		{4, GAIN_TOO | ADDS | DY_TOO, 300, 200, 128}, {4, NO_Q, 1, 1032, 64},
		{3, GAIN_TOO | Q_BF16, 70, 72, 112}, {8, ADDS, 140, 64, 128},
		{1, NO_DX | GAIN_TOO, 33, 320, 16}, {2, NO_DW | DY_TOO | Q_BF16, 129, 8, 48},
		{5, NO_DX | NO_DW | GAIN_TOO, 260, 136, 80}, {4, NO_DX | ADDS, 20, 264, 96},
	};
	int good = 1;
	size_t i;

	for (i = 0; i < sizeof(fused) / sizeof(*fused); i++)
		good &= (quick && i % 3 == 0) ||
			forward(fused[i].n, fused[i].dtype, fused[i].T, fused[i].C, fused[i].r,
				fused[i].how);
	ok(good, "aligned operands, each tile");
	good = 1;
	for (i = 0; i < sizeof(list) / sizeof(*list); i++)
		good &= forward(list[i].n, list[i].dtype, list[i].T, list[i].C, list[i].r,
				list[i].how) &
			backward(list[i].n, list[i].dtype, list[i].T, list[i].C, list[i].r,
				 list[i].how & ~DEFAULT);
	ok(good, "gated branch inputs, and their gradients");
	good = 1;
	for (i = 0; i < sizeof(wgmma) / sizeof(*wgmma); i++)
		good &= (quick && i % 3 == 1) ||
			backward(wgmma[i].n, HZ_BF16, wgmma[i].T, wgmma[i].C, wgmma[i].r,
				 wgmma[i].how);
	ok(good, "gradients of aligned operands");
	ok(forward(4, HZ_F32, 9, 48, 16, SIZES) & forward(4, HZ_BF16, 9, 48, 16, SIZES | CN),
	   "streams of 1e15 and 1e-15");
	ok(forward(4, HZ_F32, 9, 48, 16, EXTREMES) &
	   forward(4, HZ_BF16, 20, 48, 16, EXTREMES | GAIN_TOO) &
	   forward(3, HZ_BF16, 5, 48, 16, EXTREMES | GAIN_TOO | Q_BF16) &
	   forward(4, HZ_BF16, 70, 48, 16, EXTREMES | GAIN_TOO | Q_BF16),
	   "streams of 1e28 and 1e-28");
	ok(forward(4, HZ_F32, 9, 48, 16, INFINITE) & forward(4, HZ_BF16, 20, 72, 32, INFINITE) &
	   forward(2, HZ_BF16, 7, 40, 64, INFINITE | Q_BF16) &
	   forward(4, HZ_BF16, 40, 40, 128, INFINITE | GAIN_TOO | Q_BF16) &
	   forward(4, HZ_F16, 20, 72, 32, INFINITE) &
	   forward(3, HZ_F16, 150, 72, 112, INFINITE | UP_BF16), "infinite weights");
	ok(forward(4, HZ_F32, 9, 48, 16, PEAK), "peaked gates");
}

/* A rank of 0, and sizes whose workspace would not fit 63 bits: in a recording, without memory */
static void test_overflow(void)
{
	static const struct {
		int64_t T, C, r;
		const char *message;
	} list[] = {
		{(int64_t)1 << 40, (int64_t)1 << 16, 8, ": x is too large: the size of the workspace"},
		{(int64_t)1 << 40, 64, (int64_t)1 << 30, ": x is too large: the size of the work"},
		{4, (int64_t)1 << 28, 1 << 27, ": w_down is too large: the size of the workspace"},
		{4, 64, 0, ": w_down.shape[0] is 0, must be at least 1"},
	};
	hz_context *const ctx = devs[0].ctx;
	const int at = devs[0].device;

	for (int i = 0; i < 4; i++) {
		const int64_t T = list[i].T, C = list[i].C, r = list[i].r;
		const hz_tensor x = hz_tensor_3d(NULL, HZ_F32, at, T, 4, C);
		const hz_tensor down = hz_tensor_2d(NULL, HZ_F32, at, r, 4 * C);
		const hz_tensor up = hz_tensor_2d(NULL, HZ_F32, at, 4 * C, r);
		hz_tensor u = hz_tensor_2d(NULL, HZ_F32, at, T, C), dx = x;
		const hz_mhc_gated_grads g = {.du = &u, .dx = &dx};
		size_t bytes;

		is_int(hz_record_begin(ctx), HZ_OK, "recording");
		is_int(hz_mhc_gated_pre(ctx, &x, &down, &up, NULL, NULL, &u, NULL), HZ_ESHAPE,
		       "refused:%s", list[i].message);
		has_str(hz_errmsg(ctx), list[i].message, "its message");
		is_int(hz_mhc_gated_pre_bwd(ctx, &x, &down, &up, NULL, &g, NULL), HZ_ESHAPE,
		       "gradients refused:%s", list[i].message);
		has_str(hz_errmsg(ctx), list[i].message, "its message");
		if (i == 0)
			is_int(hz_mhc_expand_bwd(ctx, &x, &u), HZ_ESHAPE, "without gates, too");
		is_int(hz_record_end(ctx, &bytes), HZ_OK, "recorded");
		is_int((long long)bytes, 0, "no bytes");
	}
}

int main(void)
{
	quick = tap_quick();
	rnd = tap_seed();
	dev_open_all();
	dev_open_routes(HZI_OP_mhc_gated);
	dev_open_routes(HZI_OP_mhc_gated_bwd);
	test_definition();
	test_gated();
	test_overflow();
	dev_close_all();
	diag("%ld cases", cases);
	return done_testing();
}
