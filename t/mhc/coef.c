/*
 * coef.c - coefficients of streams, branch inputs and heads against definitions in f64
 *
 * SPDX-License-Identifier: BSD-2-Clause
 *
 * The reference gradients of t/mhc/ref.h are checked by differences in t/mhc/gradient.c.
 */
#include "t/mhc/mhc.h"

#define PICK(list) ((list)[rnd_below(&rnd, (int64_t)(sizeof(list) / sizeof(*(list))))])

/* ---- Conventions ----------------------------------------------------------------------------- */

static const struct convention {
	const char *name;
	hz_mhc_opts o;
	int max_streams;
} conventions[] = {
	{"paper", {.preset = HZ_MHC_PRESET_PAPER}, 8},
	{"deepseek", {0}, 8},
	{"triton", {.preset = HZ_MHC_PRESET_TRITON}, 8},
	{"exp rows transposed", {REF_EXACT_Q, .order = HZ_MHC_ROWS, .flags = HZ_MHC_OLD_NEW,
				 .eps = 0.01, .p_eps = 0.1, .q_scale = 1, .rms_eps = 0.01,
				 .norm_eps = 0.1, .iterations = 3}, 8},
	{"softmax columns", {REF_EXACT, .map = HZ_MHC_SOFTMAX, .eps = 0.05, .rms_eps = 1e-5,
			     .iterations = 1}, 8},
	{"abs columns", {REF_EXACT, .map = HZ_MHC_ABS, .flags = HZ_MHC_NORMALIZE | HZ_MHC_OLD_NEW,
			 .eps = 1e-3, .p_eps = 0.2, .rms_eps = 1e-5, .iterations = 40}, 8},
	{"lite", {.preset = HZ_MHC_PRESET_LITE}, 4},
	{"lite transposed", {REF_EXACT, .residual = HZ_MHC_LITE, .flags = HZ_MHC_OLD_NEW,
			     .rms_eps = 1e-6}, 4},
	{"identity", {REF_EXACT, .residual = HZ_MHC_IDENTITY, .rms_eps = 1e-6}, 8},
	{"tanh", {.preset = HZ_MHC_PRESET_HC}, 8},
	{"tanh transposed", {REF_EXACT, .residual = HZ_MHC_TANH, .flags = HZ_MHC_OLD_NEW,
			     .rms_eps = 1e-6}, 8},
	{"many iterations", {REF_EXACT, .eps = 1e-3, .rms_eps = 1e-6, .iterations = 70}, 8},
	{"triton, static", {.preset = HZ_MHC_PRESET_TRITON_STATIC}, 8},
	{"deepseek changed", {.map = HZ_MHC_EXP, .given = HZ_MHC_GIVEN_EPS | HZ_MHC_GIVEN_Q_SCALE |
			      HZ_MHC_GIVEN_OLD_NEW}, 8},
	{"bounded", {.z_min = -1.5, .z_max = 1, .q_eps = 0.25, .given = HZ_MHC_GIVEN_Z_MIN |
		     HZ_MHC_GIVEN_Z_MAX | HZ_MHC_GIVEN_Q_EPS}, 8},
	{"floor", {REF_EXACT, .eps_rule = HZ_MHC_EPS_FLOOR, .order = HZ_MHC_ROWS, .eps = 0.8,
		   .rms_eps = 0.5, .rms_eps_rule = HZ_MHC_RMS_EPS_ROOT, .iterations = 3}, 8},
	{"softmax, floor", {.eps_rule = HZ_MHC_EPS_FLOOR, .rms_eps_rule = HZ_MHC_RMS_EPS_ROOT}, 8},
	{"no mean square", {.rms = HZ_MHC_RMS_NONE}, 8},
	{"deepseek_v41", {.preset = HZ_MHC_PRESET_DEEPSEEK_V41}, 8},
	{"glm5_next", {.preset = HZ_MHC_PRESET_GLM5_NEXT, .head = HZ_MHC_HEAD_WEIGHTS}, 8},
	{"xing4", {.preset = HZ_MHC_PRESET_XING4, .head = HZ_MHC_HEAD_WEIGHTS}, 8},
	{"hy_v4", {.preset = HZ_MHC_PRESET_HY_V4}, 8},
	{"megatron", {.preset = HZ_MHC_PRESET_MEGATRON, .head = HZ_MHC_HEAD_WEIGHTS}, 8},
	{"tilekernels", {.preset = HZ_MHC_PRESET_TILEKERNELS}, 8},
	{"liger", {.preset = HZ_MHC_PRESET_LIGER}, 8},
	{"transformer_engine", {.preset = HZ_MHC_PRESET_TRANSFORMER_ENGINE}, 8},
	{"lucidrains", {.preset = HZ_MHC_PRESET_LUCIDRAINS, .head = HZ_MHC_HEAD_WEIGHTS}, 8},
	{"qwen4_exp", {.preset = HZ_MHC_PRESET_QWEN4_EXP}, 8},
	{"streams divided", {.rms = HZ_MHC_RMS_STREAM}, 8},
	{"streams divided, root", {REF_EXACT, .rms = HZ_MHC_RMS_STREAM, .rms_eps = 0.5,
				   .rms_eps_rule = HZ_MHC_RMS_EPS_ROOT}, 8},
	{"streams divided, cn", {REF_EXACT, .rms = HZ_MHC_RMS_STREAM, .rms_eps = 0.1,
				 .streams = HZ_MHC_STREAMS_CN}, 8},
	{"least root", {REF_EXACT, .rms_eps = 8, .rms_eps_rule = HZ_MHC_RMS_EPS_FLOOR}, 8},
};

#define CONVENTIONS ((int)(sizeof(conventions) / sizeof(*conventions)))

/* ---- Cases ----------------------------------------------------------------------------------- */

enum {
	BACKWARD = 1, HEAD = 2, WITH_GAIN = 4, WITH_NORM = 8, WITH_SAVED = 16, ACCUMULATE = 32,
	FEWER = 64,
	STATIC = 128,		/* no x: coefficients of y = 0 */
	NO_U = 256, WITH_DY = 512, LAYOUTS = 1024,
	STATIC_MIX = 2048,	/* coefficients of y = 0, and u of x */
	SCALED_ROWS = 4096,		/* rows of phi have very different magnitudes */
	LARGE_PHI = 8192,	/* one element of phi is almost FLT_MAX */
	PEAKED = 16384,		/* entries of exp(z) that are 1e-8 of others */
	INTERLEAVED = 32768,	/* the streams of a channel are contiguous */
	WITH_P_IN = 131072, THREE_ALPHAS = 262144,
	PHI_16 = 524288,	/* phi in bf16 or f16 */
	EXTREME = 65536,	/* tokens are 1e30, 1, 1e-30 and so on in size */
};

struct pre {
	int convention, n, dtype, how;
	int64_t T, S, C;
	double special;
};

static const hz_mhc_opts *opts_of(const struct tcase *c)
{
	return c->default_opts ? NULL : &c->opts;
}

static int call_pre(hz_context *ctx, struct tcase *c)
{
	const hz_tensor *x = view(c, X), *phi = view(c, PHI), *alpha = view(c, ALPHA),
			*bias = view(c, BIAS);
	const hz_mhc_opts *o = opts_of(c);

	if (c->head)
		return hz_mhc_head(ctx, x, phi, alpha, bias, view(c, P), view(c, U), o);
	if (!c->o[U])
		return hz_mhc_weights(ctx, x, phi, alpha, bias, view(c, P), view(c, Q), view(c, A),
				      o);
	return hz_mhc_pre(ctx, x, phi, alpha, bias, view(c, P), view(c, Q), view(c, A), view(c, U),
			  o);
}

static int call_pre_bwd(hz_context *ctx, struct tcase *c)
{
	const hz_tensor *x = view(c, X), *phi = view(c, PHI), *alpha = view(c, ALPHA),
			*bias = view(c, BIAS);
	const hz_mhc_opts *o = opts_of(c);

	if (c->head)
		return hz_mhc_head_bwd(ctx, x, phi, alpha, bias, &c->g, o);
	return hz_mhc_pre_bwd(ctx, x, phi, alpha, bias, &c->g, o);
}

static int any_layout(const struct pre *s)
{
	return s->how & LAYOUTS && rnd_below(&rnd, 2) ? (int)rnd_below(&rnd, 16) : 0;
}

static int stream_layout(const struct pre *s)
{
	return s->how & INTERLEAVED ? SWAPPED : any_layout(s);
}

static int there(const struct pre *s)
{
	return !(s->how & FEWER) || rnd_below(&rnd, 3) > 0;
}

static struct ref_pre reference(const struct tcase *c, const struct pre *s)
{
	return (struct ref_pre){
		.r = ref_rule(s->n, c->default_opts ? NULL : &c->opts), .T = s->T, .S = s->S,
		.C = s->C,
		.head = c->head, .x = values(c, X), .phi = values(c, PHI),
		.alpha = c->alphas, .bias = values(c, BIAS), .gain = values(c, GAIN),
		.norm = values(c, NORM), .p_in = values(c, P_IN),
	};
}

/* The same phi in 16 bits */
static void make_phi_16(struct tcase *c, int dtype)
{
	struct operand *const old = c->o[PHI], *phi;
	int64_t i;

	phi = make(c, PHI, dtype, WHOLE, old->t.ndim, old->t.shape, c->cn ? SWAPPED : 0);
	for (i = 0; i < phi->count; i++)
		set(phi, i, old->v[i]);
	free(old->image);
	free(old->v);
	free(old);
}

/* Streams and weights; y is around 1 for every C. */
static void make_inputs(struct tcase *c, const struct pre *s)
{
	const int n = s->n, m = c->head ? n : ref_rule(n, c->default_opts ? NULL : &c->opts).m;
	const int64_t K = n * s->C;
	int64_t t;
	int k;

	if (!(s->how & STATIC))
		streams(c, X, s->dtype, s->T, n, s->C, stream_layout(s), 1.5);
	if (!(s->how & (STATIC | STATIC_MIX)))
		weights(c, PHI, m, K, 1 / sqrt((double)K + 1), any_layout(s));
	for (t = 0; s->how & EXTREME && t < s->T * K; t++)
		set(c->o[X], t,
		    c->o[X]->v[t] * (t / K % 3 == 0 ? 1e30 : t / K % 3 == 1 ? 1 : 1e-30));
	for (k = 0; s->how & SCALED_ROWS && k < m; k++) {
		int64_t j;

		for (j = 0; j < K; j++)
			set(c->o[PHI], k * K + j, ldexp(c->o[PHI]->v[k * K + j], 40 * (k % 3 - 1)));
	}
	if (s->how & PHI_16 && c->o[PHI])
		make_phi_16(c, s->how & BACKWARD ? HZ_BF16 : HZ_F16);
	if (s->how & THREE_ALPHAS && !c->head) {
		vector(c, ALPHA_Q, 1, 0.8, 0.2, any_layout(s));
		if (m > 2 * n)
			vector(c, ALPHA_A, 1, 0.8, 0.2, any_layout(s));
	}
	k = c->head || c->o[ALPHA_Q] ? 1 : m == 2 * n ? 2 + (int)rnd_below(&rnd, 2) : 3;
	vector(c, ALPHA, k, 0.8, 0.2, any_layout(s));
	for (k = 0; k < 3; k++)
		c->alphas[k] = c->o[ALPHA]->v[k < c->o[ALPHA]->count ? k : 0];
	if (c->o[ALPHA_Q])
		c->alphas[1] = c->o[ALPHA_Q]->v[0];
	if (c->o[ALPHA_A])
		c->alphas[2] = c->o[ALPHA_A]->v[0];
	vector(c, BIAS, m, 0, 1, any_layout(s));
	/* |z| has a corner at 0, which the error of y must not cross. */
	for (k = 2 * n; k < m && ref_rule(s->n, &c->opts).map == HZ_MHC_ABS; k++)
		set(c->o[BIAS], k, k % 3 ? 6 + rnd_uniform(&rnd) : -6 - rnd_uniform(&rnd));
	for (k = 2 * n; k < m && s->how & PEAKED; k++)
		set(c->o[BIAS], k, k % 3 ? 0 : -18);
	if (s->how & WITH_GAIN)
		vector(c, GAIN, K, 1, 0.2, any_layout(s));
	if (s->how & WITH_NORM)
		vector(c, NORM, s->C, 1, 0.2, any_layout(s));
	if (s->special != 0 && s->T > 1 && s->C)
		set(c->o[X], K + K / 2, s->special);
	if (s->how & LARGE_PHI) {
		set(c->o[PHI], K / 2, 3.4e38);
		for (t = 0; t < s->T; t++)
			set(c->o[X], t * K + K / 2, rnd_uniform(&rnd) / 4);
	}
}

/*
 * Bounds of coefficients from the bound of y, which is 2^-15 of sum |phi x| / rms(x): sigma has
 * slopes of at most 1 / 4 and 2 / 4, log(a) as a function of z at most 2 for these inputs.
 */
static void bound_coefs(struct tcase *c, const struct pre *s, const struct ref_pre *r)
{
	const int n = s->n, m = ref_pre_rows(r);
	const int64_t K = n * s->C;
	double max_streams[3] = {0};
	int64_t g, j;
	int k;

	for (g = 0; g < s->S && r->phi; g++) {
		double *mean = ref_mean(r, g), raw[REF_ROWS + 1], y[REF_ROWS], rho;
		double rhos[REF_STREAMS], slopes[REF_STREAMS];

		ref_divide(r, mean, rhos, slopes);
		rho = ref_project(r, mean, raw, y);

		for (k = 0; k < m; k++) {
			double sum = 0;

			for (j = 0; j < K; j++)
				sum += fabs(r->phi[k * K + j] * (r->gain ? r->gain[j] : 1) *
					    mean[j]);
			sum *= rho * 0x1p-15 * fabs(ref_alpha(&r->r, r->alpha, k));
			if (isfinite(sum))
				max_streams[k < n       ? 0
				     : k < 2 * n ? 1
						 : 2] = fmax(max_streams[k < n       ? 0
								  : k < 2 * n ? 1
									      : 2],
							     sum);
		}
		free(mean);
	}
	for (j = 0; c->o[P] && j < c->o[P]->count; j++)
		c->o[P]->bound[j] = max_streams[0] + 1e-6 * (fabs(c->o[P]->want[j]) + 1);
	for (j = 0; c->o[Q] && j < c->o[Q]->count; j++)
		c->o[Q]->bound[j] = max_streams[1] + 1e-6 * (fabs(c->o[Q]->want[j]) + 1);
	for (j = 0; c->o[A] && j < c->o[A]->count; j++)
		c->o[A]->bound[j] = 4 * max_streams[2] + 2e-6 * (fabs(c->o[A]->want[j]) + 1);
	/* Errors of thousands of products average out if phi is read at full precision. */
	for (k = 0; k < 3; k++) {
		struct operand *o = c->o[k == 0 ? P : k == 1 ? Q : A];

		if (o && s->S > 4)
			o->norm = 4e-5;
	}
	if (c->o[SAVED]) {
		struct operand *o = c->o[SAVED];

		for (g = 0; g < s->S; g++) {
			for (k = 0; k < m; k++) {
				double sum = 1e-30, *mean = ref_mean(r, g), rho[8], slope[8];

				ref_divide(r, mean, rho, slope);
				for (j = 0; j < K; j++)
					sum += fabs(r->phi[k * K + j] * (r->gain ? r->gain[j] : 1) *
						    mean[j]);
				o->bound[g * (m + 1) + k] = 0x1p-15 * sum;
				free(mean);
			}
			o->bound[g * (m + 1) + m] = 1e-5 * fabs(o->want[g * (m + 1) + m]) +
						    (s->how & EXTREME ? 0x1p-100 : 0);
		}
		o->norm = 4e-5;
	}
}

/* u = sum_i p_i X[i] with the reference p: its own error and that of p */
static void bound_u(struct tcase *c, const struct pre *s)
{
	const double p_bound = c->o[P] ? c->o[P]->bound[0] : 1e-4;
	struct operand *u = c->o[U], *x = c->o[X];
	int64_t t, b;
	int i;

	if (!u)
		return;
	for (t = 0; t < s->T; t++) {
		for (b = 0; b < s->C; b++) {
			double sum = 0, e;

			for (i = 0; i < s->n; i++)
				sum += fabs(x->v[(t * s->n + i) * s->C + b]);
			e = (c->o[NORM] ? 4 * fabs(c->o[NORM]->v[b]) / 0.3 : 1) * sum *
			    (p_bound + 1e-6);
			if (s->how & EXTREME && c->o[NORM])
				e = 1e-3 * (fabs(u->want[t * s->C + b]) + 1);
			u->bound[t * s->C + b] = e +
						 1.01 * ref_half_ulp(u->t.dtype,
								     fabs(u->want[t * s->C + b]) +
									     e);
		}
	}
	if (u->t.dtype == HZ_F32 && s->S > 4 && !(s->how & EXTREME))
		u->norm = 4e-5;
}

static void name_pre(struct tcase *c, const struct pre *s)
{
	snprintf(c->name, sizeof(c->name), "%s %s n %d %s T %lld S %lld C %lld how %#x",
		 s->how & BACKWARD ? s->how & HEAD ? "head_bwd" : "pre_bwd"
		 : s->how & HEAD   ? "head"
				   : "pre",
		 conventions[s->convention].name, s->n, hz_dtype_name(s->dtype), (long long)s->T,
		 (long long)s->S, (long long)s->C, (unsigned)s->how);
}

static void begin_case(struct tcase *c, const struct pre *s)
{
	c->opts = conventions[s->convention].o;
	if (s->how & ACCUMULATE)
		c->opts.flags |= HZ_MHC_ACCUMULATE;
	c->head = (s->how & HEAD) != 0;
	c->cn = ref_rule(s->n, &c->opts).cn ? s->n : 0;
	c->split = 1 + rnd_below(&rnd, 3);
	if (s->S == 1 && s->how & (STATIC | STATIC_MIX)) {
		c->opts.coefficients = HZ_MHC_STATIC;
	} else if (s->S != s->T && !(s->how & STATIC)) {
		c->opts.coefficients = HZ_MHC_PER_SEQUENCE;
		c->split = s->S;	/* the first dimension of streams */
	}
	/* Convention 1 is the default: sometimes the options are NULL. */
	c->default_opts = s->convention == 1 && !c->opts.coefficients &&
			  !(s->how & (WITH_GAIN | WITH_NORM | WITH_SAVED | ACCUMULATE | WITH_P_IN |
				     THREE_ALPHAS)) &&
			  rnd_below(&rnd, 2);
	name_pre(c, s);
}

static int forward_case(const struct pre *s)
{
	struct tcase c = {.call = call_pre};
	const int with_u = !(s->how & (NO_U | STATIC));
	const int64_t S = s->S;
	double *p, *q, *a;
	struct ref_pre r;

	begin_case(&c, s);
	c.opts.flags &= ~HZ_MHC_ACCUMULATE;
	make_inputs(&c, s);
	r = reference(&c, s);
	if (!c.head || there(s) || !with_u)
		coefs(&c, P, S, s->n, 0, any_layout(s), 0);
	if (!c.head) {
		coefs(&c, Q, S, s->n, 0, any_layout(s), 0);
		coefs(&c, A, S, s->n, 1, any_layout(s), 0);
	}
	if (with_u)
		streams(&c, U, s->dtype, s->T, 0, s->C, any_layout(s), 0);
	if (with_u && s->how & WITH_P_IN) {
		coefs(&c, P_IN, S, s->n, 0, any_layout(s), 0.5);
		r.p_in = values(&c, P_IN);
	}
	if (s->how & WITH_SAVED)
		expect(make(&c, SAVED, HZ_F32, SPLIT, 2, (int64_t[]){S, ref_pre_rows(&r) + 1}, 0),
		       0);
	p = calloc((size_t)(S * s->n) + 1, 8);
	q = calloc((size_t)(S * s->n) + 1, 8);
	a = calloc((size_t)(S * s->n * s->n) + 1, 8);
	ref_pre(&r, p, q, a, with_u ? wanted(&c, U) : NULL, wanted(&c, SAVED));
	if (c.o[P])
		memcpy(wanted(&c, P), p, (size_t)(S * s->n) * 8);
	if (!c.head) {
		memcpy(wanted(&c, Q), q, (size_t)(S * s->n) * 8);
		memcpy(wanted(&c, A), a, (size_t)(S * s->n * s->n) * 8);
	}
	free(p);
	free(q);
	free(a);
	bound_coefs(&c, s, &r);
	bound_u(&c, s);
	return run_case(&c);
}

/*
 * Gradients agree in norm, elements within `part` of the largest, or of 0.05: an element near 0 is
 * a sum of larger terms.
 */
static void bound_gradient(struct operand *o, double part)
{
	double max_streams = 0;
	int64_t i;

	if (!o)
		return;
	bound_flat(o, part);
	for (i = 0; i < o->count; i++) {
		max_streams = fmax(max_streams, fabs(o->want[i]));
		o->bound[i] += 0.05 * part;
	}
	if (o->t.dtype == HZ_F32 && max_streams > 0.05)
		o->norm = part;
}

/* Elements within `part` of the largest of their token, of K elements */
static void bound_tokens(struct operand *o, int64_t K, double part)
{
	int64_t i, j;

	o->norm = 0;
	for (i = 0; i < o->count; i += K) {
		double most = 0;

		for (j = i; j < i + K; j++)
			most = fmax(most, fabs(o->want[j]));
		for (j = i; j < i + K; j++)
			o->bound[j] = part * most + 1.01 * ref_half_ulp(o->t.dtype, most);
	}
}

/* The same, plus `part` of the sums of magnitudes in `bound`: sums that cancel. */
static void bound_sums(struct operand *o, double part)
{
	double sizes[REF_ROWS];
	int64_t i;

	if (!o)
		return;
	memcpy(sizes, o->bound, (size_t)o->count * sizeof(*sizes));
	bound_gradient(o, part);
	o->norm = 0;
	for (i = 0; i < o->count; i++)
		o->bound[i] += 4e-5 * sizes[i];
}

static struct operand *gradient(struct operand *o, const struct pre *s)
{
	if (s->how & ACCUMULATE) {
		int64_t i;

		fill(o, 0, 0.5);
		for (i = 0; i < o->count; i++)
			o->want[i] = o->v[i];
	}
	return o;
}

static int backward_case(const struct pre *s)
{
	struct tcase c = {.call = call_pre_bwd};
	const int n = s->n, no_x = (s->how & STATIC) != 0;
	const int no_phi = (s->how & (STATIC | STATIC_MIX)) != 0;
	const int64_t S = s->S, K = n * s->C;
	double dalpha[3] = {0}, sizes[3] = {0};
	struct ref_grads g;
	struct ref_pre r;
	int m, k;

	begin_case(&c, s);
	make_inputs(&c, s);
	r = reference(&c, s);
	m = ref_pre_rows(&r);
	if (!no_x && !(s->how & NO_U))
		streams(&c, DU, s->dtype, s->T, 0, s->C, any_layout(s), 1);
	if (c.o[DU] && s->how & WITH_P_IN) {
		coefs(&c, P_IN, S, n, 0, any_layout(s), 0.5);
		r.p_in = values(&c, P_IN);
		coefs(&c, DP_IN, S, n, 0, 0, 0);
	}
	if (there(s) || no_x)
		coefs(&c, DP, S, n, 0, any_layout(s), 1);
	if (!c.head && (there(s) || S != s->T))
		coefs(&c, DQ, S, n, 0, any_layout(s), 1);
	if (!c.head && (there(s) || s->how & NO_U))
		coefs(&c, DA, S, n, 1, any_layout(s), 1);
	if (s->how & WITH_DY && !c.head && !no_x)
		streams(&c, DY, s->dtype, s->T, n, s->C, stream_layout(s), 1);
	if (s->how & WITH_SAVED && !no_phi) {
		struct operand *o = make(&c, SAVED, HZ_F32, SPLIT, 2, (int64_t[]){S, m + 1}, 0);
		double *unused = calloc((size_t)(S * n * (n + 2)) + 1, 8);
		double *saved = calloc((size_t)(S * (m + 1)) + 1, 8);
		int64_t i;

		ref_pre(&r, unused, unused + S * n, unused + 2 * S * n, NULL, saved);
		for (i = 0; i < o->count; i++)
			set(o, i, saved[i]);
		free(saved);
		free(unused);
	}
	if (!no_x && there(s))
		gradient(streams(&c, DX, s->dtype, s->T, n, s->C, stream_layout(s), 0), s);
	if (!no_phi && there(s))
		gradient(weights(&c, DPHI, m, K, 0, any_layout(s)), s);
	if (there(s))
		gradient(vector(&c, DALPHA, c.o[ALPHA]->count, 0, 0, any_layout(s)), s);
	if (c.o[ALPHA_Q])
		gradient(vector(&c, DALPHA_Q, 1, 0, 0, any_layout(s)), s);
	if (c.o[ALPHA_A])
		gradient(vector(&c, DALPHA_A, 1, 0, 0, any_layout(s)), s);
	if (there(s))
		gradient(vector(&c, DBIAS, m, 0, 0, any_layout(s)), s);
	if (s->how & WITH_GAIN && !no_phi && there(s))
		gradient(vector(&c, DGAIN, K, 0, 0, any_layout(s)), s);
	if (s->how & WITH_NORM && !no_x && there(s))
		gradient(vector(&c, DNORM, s->C, 0, 0, any_layout(s)), s);
	g = (struct ref_grads){
		.du = values(&c, DU), .dp = values(&c, DP), .dq = values(&c, DQ), .da = values(&c,
		DA),
		.dy = values(&c, DY), .dx = wanted(&c, DX), .dphi = wanted(&c, DPHI),
		.dalpha = dalpha, .dbias = wanted(&c, DBIAS), .dgain = wanted(&c,
		DGAIN),
		.dnorm = wanted(&c, DNORM), .dp_in = wanted(&c, DP_IN),
		.dalpha_size = sizes,
		.dbias_size = c.o[DBIAS] ? c.o[DBIAS]->bound : NULL,
	};
	if (S || s->T)
		ref_pre_bwd(&r, &g);
	for (k = 0; k < 3; k++) {
		struct operand *const o = c.o[k && c.o[ALPHA_Q] ? k == 1 ? DALPHA_Q : DALPHA_A :
					      DALPHA];
		const int at = c.o[ALPHA_Q] ? 0 : k;

		if (o && at < o->count) {
			o->want[at] += dalpha[k];
			o->bound[at] = sizes[k];
		}
	}
	bound_sums(c.o[DALPHA_Q], 2e-4);
	bound_sums(c.o[DALPHA_A], 2e-4);
	bound_gradient(c.o[DP_IN], 1e-4);
	bound_gradient(c.o[DX], 1e-4);
	if (s->how & EXTREME && c.o[DX])
		bound_tokens(c.o[DX], K, 1e-3);
	bound_gradient(c.o[DPHI], 2e-4);
	bound_sums(c.o[DALPHA], 2e-4);
	bound_sums(c.o[DBIAS], 1e-4);
	bound_gradient(c.o[DGAIN], 2e-4);
	bound_gradient(c.o[DNORM], 1e-4);
	return run_case(&c);
}

/* ---- The tests ------------------------------------------------------------------------------- */

static const int64_t some_tokens[] = {1, 2, 3, 5, 8, 12, 16, 17, 31, 33, 64, 70};
static const int64_t some_channels[] = {1,  2,  3,  7,  8,  15,  16,  17, 31,
					40, 63, 64, 65, 96, 128, 129, 256};

static int64_t any_groups(int64_t T)
{
	int64_t S = rnd_below(&rnd, 3) ? T : 1 + rnd_below(&rnd, T);

	while (T % S)
		S--;
	return S;
}

static int both(const struct pre *s)
{
	struct pre back = *s;

	back.how |= BACKWARD;
	return forward_case(s) & backward_case(&back);
}

static void test_conventions(void)
{
	int i, k, good;

	for (i = 0; i < CONVENTIONS; i++) {
		good = 1;
		for (k = 0; k < (quick ? 3 : 14); k++) {
			struct pre s = {
				.convention = i, .n = k % 2 ? 4 : 1 + k / 2 % 8,
				.dtype = floats[k % 3],
				.T = PICK(some_tokens), .C = PICK(some_channels),
				.how = (int)rnd_below(&rnd, 64) & ~(BACKWARD | HEAD),
			};

			if (s.n > conventions[i].max_streams)
				s.n = 4;
			s.S = any_groups(s.T);
			s.how |= k % 3 == 0 ? FEWER : 0;
			s.how |= k % 4 == 1 ? LAYOUTS : 0;
			s.how |= k % 5 == 2 ? WITH_DY : 0;
			s.how |= k % 7 == 6 ? HEAD : 0;
			s.how |= k == 5 ? STATIC : 0;
			s.how |= k == 9 ? NO_U : 0;
			s.how |= (k + i) % 3 == 1 ? WITH_P_IN : 0;
			s.how |= (k + i) % 4 == 2 ? THREE_ALPHAS : 0;
			s.how |= (k + i) % 4 == 1 ? PHI_16 : 0;
			if (s.how & (STATIC | STATIC_MIX | NO_U | HEAD))
				s.how &= ~(WITH_DY | WITH_NORM);
			if (s.how & (STATIC | STATIC_MIX))
				s.how &= ~(WITH_SAVED | WITH_GAIN | HEAD);
			/* With one stream and norm u does not depend on p: no gradient. */
			if (s.how & WITH_NORM && (s.C < 3 || s.n == 1))
				s.how &= ~WITH_NORM;
			if (s.S != s.T)
				s.how &= ~FEWER;
			good &= both(&s);
		}
		ok(good, "%s", conventions[i].name);
	}
}

/* Tile sizes, decode sizes, sizes that use several threads, no tokens */
static void test_sizes(void)
{
	static const struct pre list[] = {
		{1, 4, HZ_BF16, WITH_SAVED | WITH_DY, 130, 130, 256, 0},
		{18, 4, HZ_BF16, WITH_P_IN | WITH_SAVED | WITH_DY, 130, 130, 256, 0},
		{18, 4, HZ_BF16, WITH_P_IN | THREE_ALPHAS, 20, 20, 264, 0},
		{1, 4, HZ_F16, WITH_P_IN | WITH_NORM | WITH_DY, 24, 4, 64, 0},
		{1, 4, HZ_BF16, WITH_P_IN | WITH_NORM, 140, 140, 64, 0},
		{1, 4, HZ_BF16, WITH_P_IN | WITH_NORM, 5, 5, 0, 0},
		{1, 4, HZ_BF16, PHI_16 | WITH_DY, 130, 130, 128, 0},
		{21, 4, HZ_BF16, WITH_SAVED | WITH_DY, 130, 130, 64, 0},
		{1, 4, HZ_BF16, NO_U | WITH_SAVED, 303, 303, 32, 0},
		{1, 4, HZ_BF16, NO_U | WITH_GAIN, 140, 140, 64, 0},
		{1, 4, HZ_BF16, NO_U | WITH_SAVED | ACCUMULATE, 161, 161, 32, 0},
		{1, 4, HZ_BF16, WITH_SAVED | WITH_DY, 150, 150, 64, 0},
		{1, 4, HZ_BF16, NO_U | WITH_SAVED, 600, 600, 1056, 0},
		{1, 4, HZ_BF16, NO_U, 290, 290, 1064, 0},
		{1, 4, HZ_F16, NO_U, 150, 150, 40, 0},
		{1, 4, HZ_F16, WITH_DY, 67, 67, 512, 0},
		{1, 4, HZ_F32, WITH_SAVED | WITH_DY, 65, 65, 128, 0},
		{1, 4, HZ_BF16, WITH_DY | WITH_GAIN, 33, 33, 1024, 0},
		{1, 4, HZ_BF16, WITH_SAVED, 1, 1, 4096, 0},
		{1, 4, HZ_BF16, WITH_SAVED, 8, 8, 2048, 0},
		{2, 4, HZ_BF16, WITH_SAVED | WITH_GAIN, 3, 3, 7168, 0},
		{1, 4, HZ_F16, WITH_GAIN, 16, 16, 2056, 0},
		{1, 4, HZ_F32, WITH_SAVED, 16, 16, 1032, 0},
		{8, 4, HZ_BF16, WITH_SAVED | NO_U, 17, 17, 264, 0},
		{1, 4, HZ_BF16, 0, 64, 64, 512, 0},
		{1, 4, HZ_BF16, WITH_SAVED, 48, 48, 136, 0},
		{1, 4, HZ_F16, WITH_SAVED, 49, 49, 136, 0},
		{0, 4, HZ_F32, PEAKED | WITH_SAVED, 33, 33, 64, 0},
		{1, 4, HZ_BF16, PEAKED, 7, 7, 264, 0},
		{11, 4, HZ_BF16, 0, 20, 20, 264, 0},
		{2, 4, HZ_BF16, 0, 96, 4, 256, 0},
		{2, 4, HZ_F16, 0, 64, 1, 264, 0},
		{0, 2, HZ_BF16, WITH_DY, 100, 100, 264, 0},
		{1, 8, HZ_BF16, WITH_DY, 40, 40, 136, 0},
		{6, 4, HZ_BF16, WITH_DY, 40, 40, 256, 0},
		{1, 4, HZ_BF16, INTERLEAVED | WITH_SAVED | WITH_DY, 130, 130, 64, 0},
		{1, 2, HZ_F32, INTERLEAVED | WITH_DY | WITH_GAIN | ACCUMULATE, 40, 40, 136, 0},
		{1, 8, HZ_F16, INTERLEAVED | WITH_DY | WITH_SAVED, 33, 33, 72, 0},
		{2, 3, HZ_BF16, INTERLEAVED | WITH_GAIN, 50, 50, 40, 0},
		{1, 4, HZ_BF16, INTERLEAVED | WITH_NORM | WITH_DY, 20, 20, 40, 0},
		{1, 4, HZ_F16, INTERLEAVED, 24, 4, 64, 0},
		{1, 2, HZ_BF16, INTERLEAVED | NO_U | WITH_SAVED, 200, 200, 48, 0},
		{1, 8, HZ_BF16, INTERLEAVED | WITH_DY | ACCUMULATE, 70, 70, 24, 0},
		{1, 4, HZ_F32, INTERLEAVED | WITH_GAIN | WITH_DY, 37, 37, 104, 0},
		{1, 4, HZ_BF16, INTERLEAVED, 1, 1, 264, 0},
		{1, 8, HZ_BF16, WITH_DY | WITH_SAVED, 200, 200, 328, 0},
		{18, 8, HZ_BF16, WITH_P_IN | WITH_DY | WITH_GAIN | ACCUMULATE, 65, 65, 264, 0},
		{1, 5, HZ_BF16, NO_U | WITH_DY, 129, 129, 40, 0},
		{1, 7, HZ_BF16, HEAD | WITH_GAIN, 64, 64, 72, 0},
		{1, 5, HZ_BF16, NO_U | WITH_SAVED, 300, 300, 32, 0},
		{1, 8, HZ_BF16, WITH_SAVED, 300, 300, 32, 0},
		{1, 3, HZ_BF16, NO_U | WITH_SAVED, 300, 300, 32, 0},
		{1, 2, HZ_BF16, NO_U | WITH_SAVED | ACCUMULATE, 300, 300, 32, 0},
		{1, 8, HZ_BF16, NO_U | WITH_SAVED, 290, 290, 96, 0},
		{1, 6, HZ_BF16, WITH_DY | ACCUMULATE, 330, 330, 128, 0},
		{1, 7, HZ_F32, WITH_DY, 260, 260, 40, 0},
		{1, 5, HZ_F16, WITH_GAIN, 270, 270, 41, 0},
		{1, 2, HZ_F16, WITH_DY | WITH_NORM, 290, 290, 40, 0},
		{1, 4, HZ_BF16, HEAD, 100, 100, 256, 0},
		{1, 4, HZ_F32, HEAD | WITH_NORM, 20, 20, 300, 0},
		{1, 4, HZ_BF16, STATIC_MIX, 40, 1, 256, 0},
		{2, 4, HZ_F32, STATIC_MIX | WITH_DY, 40, 1, 40, 0},
		{1, 4, HZ_BF16, 0, 0, 0, 64, 0},
		{1, 4, HZ_F32, ACCUMULATE, 0, 0, 16, 0},
		{1, 4, HZ_F32, WITH_SAVED | WITH_NORM, 0, 0, 16, 0},
		{0, 4, HZ_F32, WITH_SAVED, 0, 3, 16, 0},
		{0, 4, HZ_F32, WITH_DY | WITH_GAIN, 0, 1, 40, 0},
		{1, 4, HZ_BF16, ACCUMULATE, 0, 70, 64, 0},
		{1, 4, HZ_BF16, WITH_NORM | NO_U, 5, 5, 64, 0},
		{1, 3, HZ_F32, WITH_NORM | NO_U | ACCUMULATE, 6, 2, 17, 0},
		{1, 4, HZ_F32, 0, 5, 5, 0, 0},
	};
	size_t k;

	for (k = 0; k < sizeof(list) / sizeof(*list); k++) {
		const struct pre *s = &list[k];

		if (quick && s->T * s->C > 10000)
			continue;
		ok(both(s), "n %d %s T %lld S %lld C %lld how %#x", s->n, hz_dtype_name(s->dtype),
		   (long long)s->T, (long long)s->S, (long long)s->C, (unsigned)s->how);
	}
}

/*
 * As many tokens as coef_persistent needs, and inputs that it does not support; more groups than
 * warps of more than four streams
 */
static void test_many(void)
{
	static const struct pre list[] = {
		{1, 4, HZ_BF16, NO_U | WITH_SAVED, 8192, 8192, 64, 0},
		{1, 4, HZ_F16, NO_U | WITH_SAVED, 8225, 8225, 72, 0},
		{0, 4, HZ_BF16, NO_U | WITH_GAIN | WITH_SAVED, 8600, 8600, 264, 0},
		{1, 4, HZ_F16, NO_U | WITH_GAIN, 8193, 8193, 8, 0},
		{2, 4, HZ_BF16, NO_U | LAYOUTS, 8300, 8300, 40, 0},
		{6, 4, HZ_BF16, NO_U | LAYOUTS | WITH_SAVED, 8300, 8300, 40, NAN},
		{8, 4, HZ_F16, NO_U | WITH_SAVED, 8200, 8200, 16, INFINITY},
		{9, 4, HZ_BF16, NO_U, 8197, 8197, 128, 0},
		{8, 4, HZ_F16, NO_U | WITH_SAVED | SCALED_ROWS, 8200, 8200, 80, 0},
		{8, 4, HZ_F16, WITH_SAVED | SCALED_ROWS, 120, 120, 80, 0},
		{8, 4, HZ_F16, WITH_SAVED | SCALED_ROWS, 20, 20, 80, 0},
		{5, 4, HZ_BF16, 0, 20, 20, 264, NAN},
		{0, 4, HZ_F16, WITH_SAVED, 20, 20, 264, INFINITY},
		{8, 4, HZ_BF16, WITH_SAVED | SCALED_ROWS, 120, 120, 80, 0},
		{1, 4, HZ_BF16, WITH_NORM | WITH_SAVED, 8200, 8200, 136, 0},
		{1, 4, HZ_BF16, HEAD | WITH_NORM, 8200, 8200, 48, 0},
		{1, 4, HZ_BF16, NO_U, 8200, 8200, 17, 0},
		{1, 4, HZ_F32, NO_U, 8200, 8200, 16, 0},
		{1, 3, HZ_BF16, NO_U, 8200, 8200, 16, 0},
		{1, 4, HZ_BF16, NO_U, 8200, 4100, 16, 0},
		{1, 4, HZ_BF16, NO_U | WITH_SAVED, 70001, 70001, 8, 0},
		{1, 4, HZ_BF16, 0, 1030, 1030, 4104, 0},
		{1, 8, HZ_BF16, WITH_SAVED, 1300, 1300, 72, 0},
		{18, 5, HZ_BF16, WITH_P_IN | WITH_GAIN, 1101, 1101, 40, 0},
		{2, 8, HZ_BF16, LAYOUTS | WITH_SAVED, 1101, 1101, 136, NAN},
		{0, 7, HZ_BF16, 0, 600, 600, 2056, INFINITY},
	};
	size_t k;

	for (k = 0; k < sizeof(list) / sizeof(*list); k++) {
		const struct pre *s = &list[k];

		if (quick && (k > 7 || k % 3))
			continue;
		ok(forward_case(s), "n %d %s T %lld S %lld C %lld how %#x", s->n,
		   hz_dtype_name(s->dtype), (long long)s->T, (long long)s->S, (long long)s->C,
		   (unsigned)s->how);
	}
}

static void test_special(void)
{
	static const double special[] = {NAN, INFINITY};
	int good = 1, k;

	for (k = 0; k < 12; k++) {
		const struct pre s = {
			.convention = k % 3, .n = k % 2 ? 4 : 3, .dtype = floats[k % 3], .T = 9,
			.S = 9,
			.C = k % 4 ? 64 : 21, .special = special[k / 2 % 2],
		};

		good &= forward_case(&s);
	}
	ok(good, "NaN and Inf stay within their token");
	for (k = 0; k < 3; k++) {
		static const int convention[] = {0, 1, 18};
		static const int how[] = {
			0, WITH_DY | WITH_SAVED, NO_U, WITH_NORM, WITH_SAVED | NO_U,
		};
		int i;

		good = 1;
		for (i = 0; i < 10; i++) {
			struct pre s = {
				.convention = convention[k],
				.n = i == 1 || i == 7 ? 8 : i % 3 ? 4 : 3,
				.dtype = i % 2 ? HZ_BF16 : HZ_F32, .how = how[i % 5] | EXTREME,
				.T = i < 6 ? 9 : 150, .C = i % 4 ? 64 : 21,
			};

			s.S = i == 4 ? 3 : s.T;
			good &= both(&s);
		}
		ok(good, "mean squares of 1e-60 to 1e60: %s", conventions[convention[k]].name);
	}
	good = 1;
	for (k = 0; k < 12; k++) {
		const struct pre s = {
			.convention = 1, .n = k % 4 ? 4 : 3, .dtype = floats[k % 3],
			.how = LARGE_PHI | NO_U | WITH_SAVED, .T = k / 3 % 2 ? 200 : 5,
			.S = k / 3 % 2 ? 200 : 5, .C = k == 5 ? 21 : 64,
		};

		good &= forward_case(&s);
	}
	ok(good, "sums are finite next to the largest weights");
}

/* ---- Heads without weights ------------------------------------------------------------------- */

static int call_mean(hz_context *ctx, struct tcase *c)
{
	return hz_mhc_head(ctx, view(c, X), NULL, NULL, NULL, view(c, P), view(c, U), &c->opts);
}

static int call_mean_bwd(hz_context *ctx, struct tcase *c)
{
	return hz_mhc_head_bwd(ctx, view(c, X), NULL, NULL, NULL, &c->g, &c->opts);
}

/* h is the mean of the streams, and its gradient a share of each. */
static int mean_case(int n, int dtype, int64_t T, int64_t C, int layout, int preset)
{
	struct tcase c = {.call = call_mean, .split = 1};
	struct tcase back = {.call = call_mean_bwd, .split = 1};
	double *const p = calloc((size_t)(T * n) + 1, 8);
	struct ref_streams mean = {T, T, C, n, NULL, NULL, NULL, p, NULL, NULL};
	int64_t i;

	c.opts.preset = preset;
	c.opts.head = preset ? 0 : HZ_MHC_HEAD_MEAN;
	back.opts = c.opts;
	snprintf(c.name, sizeof(c.name), "mean of %d streams", n);
	snprintf(back.name, sizeof(back.name), "gradient of the mean of %d streams", n);
	for (i = 0; i < T * n; i++)
		p[i] = preset == HZ_MHC_PRESET_LUCIDRAINS ? 1 : 1 / (double)n;
	streams(&c, X, dtype, T, n, C, layout, 1);
	streams(&c, U, dtype, T, 0, C, layout, 0);
	if (layout) {
		coefs(&c, P, T, n, 0, layout, 0);
		memcpy(wanted(&c, P), p, (size_t)(T * n) * 8);
		bound_flat(c.o[P], 1e-7);
	}
	mean.x = values(&c, X);
	ref_streams(&mean, wanted(&c, U), NULL);
	bound_flat(c.o[U], 1e-6);
	streams(&back, X, dtype, T, n, C, layout, 1);
	streams(&back, DU, dtype, T, 0, C, layout, 1);
	streams(&back, DX, dtype, T, n, C, layout, 0);
	ref_streams_bwd(&mean, values(&back, DU), NULL, wanted(&back, DX), NULL, NULL, NULL, NULL,
			NULL);
	bound_flat(back.o[DX], 1e-6);
	free(p);
	return run_case(&c) & run_case(&back);
}

static void test_means(void)
{
	int good = 1, n;

	for (n = 1; n <= 8; n++)
		good &= mean_case(n, floats[n % 3], PICK(some_tokens), PICK(some_channels),
				  n % 2 ? GAPS : 0, n % 4 == 1 ? HZ_MHC_PRESET_LUCIDRAINS :
						    n % 4 ? 0 : HZ_MHC_PRESET_XING4);
	ok(good, "heads that are means or sums");
}

/* ---- Boundaries of layers -------------------------------------------------------------------- */

static int call_post_pre(hz_context *ctx, struct tcase *c)
{
	return hz_mhc_post_pre(ctx, view(c, X), view(c, F), view(c, Q), view(c, A), view(c, BIAS_F),
			       view(c, PHI), view(c, ALPHA), view(c, BIAS), view(c, Y), view(c, P2),
			       view(c, Q2), view(c, A2), view(c, U), opts_of(c));
}

static void fill_grid(struct operand *o)
{
	int64_t i;

	for (i = 0; o && i < o->count; i++)
		set(o, i, (double)(rnd_below(&rnd, 17) - 8) / 4);
}

/* x, f, q and a have few bits: y is exact before rounding, and so its coefficients are known. */
static int post_pre_case(const struct pre *s)
{
	struct tcase c = {.call = call_post_pre}, pre;
	const int n = s->n;
	const int64_t T = s->T, C = s->C;
	struct ref_streams post = {.T = T, .S = T, .C = C, .n = n};
	struct ref_pre r;
	struct operand *y;
	int64_t i;
	int k;

	begin_case(&c, s);
	if (s->how & WITH_P_IN)
		coefs(&c, P_IN, T, n, 0, any_layout(s), 0.5);
	fill_grid(streams(&c, X, s->dtype, T, n, C, stream_layout(s), 1));
	fill_grid(streams(&c, F, s->dtype, T, 0, C, any_layout(s), 1));
	fill_grid(coefs(&c, Q, T, n, 0, any_layout(s), 1));
	fill_grid(coefs(&c, A, T, n, 1, any_layout(s), 1));
	if (rnd_below(&rnd, 2))
		fill_grid(vector(&c, BIAS_F, C, 0, 1, any_layout(s)));
	y = streams(&c, Y, s->dtype, T, n, C, stream_layout(s), 0);
	post.x = values(&c, X);
	post.f = values(&c, F);
	post.q = values(&c, Q);
	post.a = values(&c, A);
	post.bias = values(&c, BIAS_F);
	ref_streams(&post, NULL, y->want);
	for (i = 0; i < y->count; i++) {
		uint32_t rounded = 0;

		ref_put(s->dtype, &rounded, 0, y->want[i]);
		y->want[i] = ref_get(s->dtype, &rounded, 0);
	}
	/* The weights are those of a separate case. */
	pre = (struct tcase){.split = c.split, .opts = c.opts, .default_opts = c.default_opts,
			     .cn = c.cn};
	make_inputs(&pre, s);
	for (i = 0; i < pre.o[X]->count; i++)
		pre.o[X]->v[i] = y->want[i];
	r = reference(&pre, s);
	r.p_in = values(&c, P_IN);
	pre.o[P] = coefs(&c, P2, T, n, 0, any_layout(s), 0);
	pre.o[Q] = coefs(&c, Q2, T, n, 0, any_layout(s), 0);
	pre.o[A] = coefs(&c, A2, T, n, 1, any_layout(s), 0);
	pre.o[U] = streams(&c, U, s->dtype, T, 0, C, any_layout(s), 0);
	if (s->how & WITH_SAVED)
		pre.o[SAVED] = expect(
			make(&c, SAVED, HZ_F32, SPLIT, 2, (int64_t[]){T, ref_pre_rows(&r) + 1}, 0),
			0);
	ref_pre(&r, wanted(&pre, P), wanted(&pre, Q), wanted(&pre, A), wanted(&pre, U),
		wanted(&pre, SAVED));
	bound_coefs(&pre, s, &r);
	bound_u(&pre, s);
	pre.o[P] = pre.o[Q] = pre.o[A] = pre.o[U] = pre.o[SAVED] = NULL;
	for (k = PHI; k <= NORM; k++) {
		c.o[k] = pre.o[k];
		pre.o[k] = NULL;
	}
	for (k = ALPHA_Q; k <= ALPHA_A; k++) {
		c.o[k] = pre.o[k];
		pre.o[k] = NULL;
	}
	case_free(&pre);
	return run_case(&c);
}

static int call_post_pre_bwd(hz_context *ctx, struct tcase *c)
{
	return hz_mhc_post_pre_bwd(ctx, view(c, X), view(c, PHI), view(c, ALPHA), view(c, BIAS),
				   view(c, F), view(c, Q), view(c, BIAS_F), &c->g, view(c, DF),
				   view(c, DQ_OUT), view(c, DBIAS_F), opts_of(c));
}

/* x is the y of the boundary; the gradients of f and q come from dx. */
static int post_pre_bwd_case(const struct pre *s)
{
	static const int of_dx[] = {DF, DQ_OUT, DBIAS_F};
	double *rounded[3], *sizes[3], *ulps;
	int64_t i;
	int k;
	struct tcase c = {.call = call_post_pre_bwd};
	const int n = s->n;
	const int64_t T = s->T, C = s->C;
	struct ref_streams post = {.T = T, .S = T, .C = C, .n = n};
	struct ref_grads g;
	struct ref_pre r;

	begin_case(&c, s);
	make_inputs(&c, s);
	r = reference(&c, s);
	streams(&c, F, s->dtype, T, 0, C, any_layout(s), 1);
	coefs(&c, Q, T, n, 0, any_layout(s), 1);
	if (rnd_below(&rnd, 2))
		vector(&c, BIAS_F, C, 0, 1, any_layout(s));
	streams(&c, DU, s->dtype, T, 0, C, any_layout(s), 1);
	if (s->how & WITH_P_IN) {
		coefs(&c, P_IN, T, n, 0, any_layout(s), 0.5);
		r.p_in = values(&c, P_IN);
		coefs(&c, DP_IN, T, n, 0, 0, 0);
	}
	coefs(&c, DP, T, n, 0, any_layout(s), 1);
	coefs(&c, DA, T, n, 1, any_layout(s), 1);
	streams(&c, DY, s->dtype, T, n, C, stream_layout(s), 1);
	gradient(streams(&c, DX, s->dtype, T, n, C, stream_layout(s), 0), s);
	gradient(weights(&c, DPHI, ref_pre_rows(&r), n * C, 0, 0), s);
	gradient(vector(&c, DBIAS, ref_pre_rows(&r), 0, 0, 0), s);
	streams(&c, DF, s->dtype, T, 0, C, any_layout(s), 0);
	coefs(&c, DQ_OUT, T, n, 0, any_layout(s), 0);
	gradient(vector(&c, DBIAS_F, C, 0, 0, any_layout(s)), s);
	g = (struct ref_grads){
		.du = values(&c, DU), .dp = values(&c, DP), .da = values(&c, DA), .dy = values(&c,
		DY),
		.dx = wanted(&c, DX), .dphi = wanted(&c, DPHI), .dbias = wanted(&c, DBIAS),
		.dp_in = wanted(&c, DP_IN),
	};
	ref_pre_bwd(&r, &g);
	post.f = values(&c, F);
	post.bias = values(&c, BIAS_F);
	post.q = values(&c, Q);
	ref_streams_bwd(&post, NULL, wanted(&c, DX), NULL, wanted(&c, DF), NULL, wanted(&c, DQ_OUT),
			NULL, wanted(&c, DBIAS_F));
	bound_gradient(c.o[DX], 1e-4);
	bound_gradient(c.o[DPHI], 2e-4);
	bound_gradient(c.o[DBIAS], 1e-4);
	bound_gradient(c.o[DP_IN], 1e-4);
	/* dx may be rounded before it is used: errors of half an ulp of either sign */
	for (k = 0; k < 3; k++)
		rounded[k] = calloc((size_t)c.o[of_dx[k]]->count + 1, 8);
	ulps = calloc((size_t)c.o[DX]->count + 1, 8);
	for (i = 0; i < c.o[DX]->count; i++)
		ulps[i] = 2 * ref_half_ulp(s->dtype, c.o[DX]->want[i]);
	post.f = sizes[0] = sizes_of(c.o[F]);
	post.bias = sizes[1] = sizes_of(c.o[BIAS_F]);
	post.q = sizes[2] = sizes_of(c.o[Q]);
	ref_streams_bwd(&post, NULL, ulps, NULL, rounded[0], NULL, rounded[1], NULL, rounded[2]);
	for (k = 0; k < 3; k++) {
		struct operand *o = c.o[of_dx[k]];

		bound_gradient(o, 1e-4);
		o->norm = 0;
		for (i = 0; i < o->count; i++)
			o->bound[i] += rounded[k][i];
		free(rounded[k]);
		free(sizes[k]);
	}
	free(ulps);
	return run_case(&c);
}

static void test_boundaries(void)
{
	int good = 1, k;

	for (k = 0; k < (quick ? 4 : 20); k++) {
		struct pre s = {
			.convention = k % 3, .n = k % 2 ? 4 : 1 + k / 2 % 8, .dtype = floats[k % 3],
			.T = PICK(some_tokens), .C = k == 7 ? 1024 : PICK(some_channels),
			.how = (k % 4 == 3 ? LAYOUTS : 0) | (k & 1 ? WITH_SAVED : 0) |
			       (k % 3 ? WITH_P_IN : 0) | (k % 4 == 2 ? THREE_ALPHAS | PHI_16 : 0),
		};

		if (k % 5 == 4 && s.C > 2)
			s.how |= WITH_NORM;
		if (k % 5 == 3)
			s.how |= WITH_GAIN;
		if (k % 3 == 2)
			s.how |= ACCUMULATE;
		s.S = s.T;
		good &= post_pre_case(&s);
		s.how &= ~WITH_SAVED;
		good &= post_pre_bwd_case(&s);
	}
	ok(good, "boundaries of layers, and their gradients");
}

int main(void)
{
	quick = tap_quick();
	rnd = tap_seed();
	dev_open_all();
	dev_open_routes(HZI_OP_mhc_pre);
	dev_open_routes(HZI_OP_mhc_pre_bwd);
	test_conventions();
	test_sizes();
	test_many();
	test_special();
	test_means();
	test_boundaries();
	dev_close_all();
	diag("%ld cases", cases);
	return done_testing();
}
