/*
 * mhc.c - streams of hyper-connections and Sinkhorn's iteration against their definitions
 *
 * SPDX-License-Identifier: BSD-2-Clause
 *
 * Coefficients of streams are in t/mhc/coef.c, all other calls in t/mhc/calls.c.
 */
#include "lib/core/internal.h"
#include "t/mhc/mhc.h"

static const int64_t some_tokens[] = {0, 1, 2, 3, 5, 8, 12, 31, 33, 64, 70};
static const int64_t some_channels[] = {0,  1,  2,  3,  7,  8,   15,  16,  17, 31,
					40, 63, 64, 65, 96, 128, 129, 256, 300};

#define PICK(list) ((list)[rnd_below(&rnd, (int64_t)(sizeof(list) / sizeof(*(list))))])

static int any_layout(void)
{
	return rnd_below(&rnd, 2) ? 0 : (int)rnd_below(&rnd, 16);
}

/* Groups of T tokens: one a token, one in all, or sequences */
static int64_t any_groups(int64_t T)
{
	int64_t S;

	if (!T)
		return rnd_below(&rnd, 2);
	S = rnd_below(&rnd, 2) ? T : 1 + rnd_below(&rnd, T);
	while (T % S)
		S--;
	return S;
}

/* ---- Sinkhorn and Knopp ---------------------------------------------------------------------- */

static int call_sinkhorn(hz_context *ctx, struct tcase *c)
{
	const hz_mhc_opts *o = c->default_opts ? NULL : &c->opts;

	if (!c->o[DX])
		return hz_mhc_sinkhorn(ctx, view(c, X), c->o[Y] ? view(c, Y) : view(c, X), o);
	return hz_mhc_sinkhorn_bwd(ctx, view(c, X), c->o[DY] ? view(c, DY) : view(c, DX),
				   view(c, DX), o);
}

struct sinkhorn {
	int n, map, order, iterations;
	double eps, sd;
	int64_t count;
	int backward, in_place, layout, default_opts;
};

static void name_sinkhorn(struct tcase *c, const struct sinkhorn *s)
{
	snprintf(c->name, sizeof(c->name),
		 "sinkhorn%s n %d map %d order %d iterations %d eps %g sd %g "
		 "count %lld layout %d in place %d",
		 s->backward ? "_bwd" : "", s->n, s->map, s->order, s->iterations, s->eps, s->sd,
		 (long long)s->count, s->layout, s->in_place);
}

static int sinkhorn_case(const struct sinkhorn *s)
{
	struct tcase c = {.call = call_sinkhorn, .default_opts = s->default_opts};
	const int64_t size[] = {s->count, s->n, s->n};
	const int n2 = s->n * s->n;
	struct ref_rule r;
	struct operand *m, *in, *out;
	int64_t k, i;

	c.split = 1 + rnd_below(&rnd, 3);
	c.opts = (hz_mhc_opts){
		REF_EXACT, .map = s->map, .order = s->order, .iterations = s->iterations,
		.eps = s->eps};
	r = ref_rule(s->n, s->default_opts ? NULL : &c.opts);
	name_sinkhorn(&c, s);
	m = make(&c, X, HZ_F32, SPLIT, 3, size, s->layout);
	fill(m, 0, s->sd);
	if (!s->backward) {
		out = s->in_place ? m : make(&c, Y, HZ_F32, SPLIT, 3, size, any_layout());
		expect(out, 0);
		for (k = 0; k < s->count; k++)
			ref_sinkhorn(&r, m->v + k * n2, out->want + k * n2);
		for (i = 0; i < out->count; i++)
			out->bound[i] = 1e-5 * fabs(out->want[i]) + 1e-35;
		return run_case(&c);
	}
	in = make(&c, s->in_place ? DX : DY, HZ_F32, SPLIT, 3, size, any_layout());
	fill(in, 0, 1);
	out = s->in_place ? in : make(&c, DX, HZ_F32, SPLIT, 3, size, any_layout());
	expect(out, 0);
	for (k = 0; k < s->count; k++) {
		const double part = s->iterations > 100 ? 1e-4 : 2e-5;
		double p[REF_MATRIX], most = 0;

		ref_sinkhorn(&r, m->v + k * n2, p);
		ref_sinkhorn_bwd(&r, m->v + k * n2, in->v + k * n2, out->want + k * n2);
		for (i = 0; i < n2; i++)
			most = fmax(most, fabs(out->want[k * n2 + i]));
		/* Terms of the iterations cancel; dp alone would give up to 4 p / (|z| + eps). */
		for (i = 0; i < n2; i++)
			out->bound[k * n2 + i] =
				part * (most + (s->map == HZ_MHC_ABS ?
						4 * p[i] / (fabs(m->v[k * n2 + i]) + s->eps) : 1));
	}
	return run_case(&c);
}

/* Bounds of z: the bits of the result for z within the bounds */
static void test_bounded(void)
{
	enum { COUNT = 37, MOST = COUNT * 64 };
	static float z[MOST], within[MOST], p[MOST], want[MOST];

	for (int d = 0; d < ndevs && !tap_cuda(); d++) {
		hz_context *const ctx = devs[d].ctx;
		uint64_t seed = 1;
		long wrong = 0;

		for (int k = 0; k < 8 * 8; k++) {
			const int n = 1 + k / 8;
			const hz_mhc_opts o = {
				REF_EXACT, .map = HZ_MHC_EXP + k % 3, .iterations = 3, .eps = 1e-6};
			hz_mhc_opts bounds = o;
			const hz_tensor m = hz_tensor_3d(z, HZ_F32, HZ_CPU, COUNT, n, n);
			const hz_tensor b = hz_tensor_3d(within, HZ_F32, HZ_CPU, COUNT, n, n);
			hz_tensor y = hz_tensor_3d(p, HZ_F32, HZ_CPU, COUNT, n, n);
			hz_tensor v = hz_tensor_3d(want, HZ_F32, HZ_CPU, COUNT, n, n);

			bounds.given |= k & 1 ? HZ_MHC_GIVEN_Z_MIN : 0;
			bounds.given |= k & 2 ? HZ_MHC_GIVEN_Z_MAX : 0;
			bounds.z_min = k & 1 ? -0.5 : 0;
			bounds.z_max = k & 2 ? 0.75 : 0;
			for (int i = 0; i < COUNT * n * n; i++) {
				z[i] = (float)(2 * rnd_normal(&seed));
				within[i] = k & 1 ? fmaxf(z[i], -0.5f) : z[i];
				within[i] = k & 2 ? fminf(within[i], 0.75f) : within[i];
			}
			wrong += hz_mhc_sinkhorn(ctx, &m, &y, &bounds) != HZ_OK;
			wrong += hz_mhc_sinkhorn(ctx, &b, &v, &o) != HZ_OK;
			wrong += memcmp(p, want, sizeof(float) * (size_t)(COUNT * n * n)) != 0;
		}
		is_int(wrong, 0, "sinkhorn: bounds of z, %s", devs[d].name);
	}
}

/*
 * Logits whose exp() underflows in whole rows: the result and the gradient are finite, and the
 * result is that of the definition. TransformerEngine, which computes with logarithms, gives .5 for
 * the first two matrices.
 */
static void test_large_logits(void)
{
	static const double spreads[] = {60, 1e3, 1e6, 1e30, 3e38, 1e-30};
	static const double eps[] = {0, 1e-44, 1e-30, 1e-6};
	static const float half[2][4] = {{0, 0, -90, -90}, {0, -200, 0, -200}};
	enum { COUNT = 37, MOST = COUNT * REF_MATRIX };
	static float z[MOST], g[MOST], p[MOST], dz[MOST];

	for (int d = 0; d < ndevs && !tap_cuda(); d++) {
		hz_context *const ctx = devs[d].ctx;
		long infinite = 0, wrong = 0, cases = 0;

		for (int k = 0; k < 2; k++) {
			const hz_mhc_opts o = {REF_EXACT, .map = HZ_MHC_EXP, .iterations = 20,
					       .order = k ? HZ_MHC_ROWS : HZ_MHC_COLS};
			const hz_tensor m = hz_tensor_2d((void *)(uintptr_t)half[k], HZ_F32,
							 HZ_CPU, 2, 2);
			hz_tensor y = hz_tensor_2d(p, HZ_F32, HZ_CPU, 2, 2);

			wrong += hz_mhc_sinkhorn(ctx, &m, &y, &o) != HZ_OK;
			for (int i = 0; i < 4; i++)
				wrong += p[i] != 0.5f;
		}
		for (int k = 0; k < REF_STREAMS * 6 * 6 * 4; k++) {
			const int n = 1 + k % REF_STREAMS, n2 = n * n;
			const double spread = spreads[k / REF_STREAMS % 6];
			const hz_mhc_opts o = {
				REF_EXACT, .map = 1 + k / REF_STREAMS / 6 % 3,
				.order = 1 + k / REF_STREAMS / 18 % 2,
				.eps = eps[k / REF_STREAMS / 36], .iterations = 20,
			};
			const hz_tensor m = hz_tensor_3d(z, HZ_F32, HZ_CPU, COUNT, n, n);
			const hz_tensor dy = hz_tensor_3d(g, HZ_F32, HZ_CPU, COUNT, n, n);
			hz_tensor y = hz_tensor_3d(p, HZ_F32, HZ_CPU, COUNT, n, n);
			hz_tensor dx = hz_tensor_3d(dz, HZ_F32, HZ_CPU, COUNT, n, n);
			const struct ref_rule r = ref_rule(n, &o);

			for (int i = 0; i < COUNT * n2; i++) {
				z[i] = (float)(rnd_uniform(&rnd) * spread);
				g[i] = (float)rnd_uniform(&rnd);
				if (rnd_below(&rnd, 5) == 0)
					z[i] = 0;
			}
			wrong += hz_mhc_sinkhorn(ctx, &m, &y, &o) != HZ_OK;
			wrong += hz_mhc_sinkhorn_bwd(ctx, &m, &dy, &dx, &o) != HZ_OK;
			cases++;
			for (int i = 0; i < COUNT * n2; i++)
				infinite += !isfinite(p[i]) || !isfinite(dz[i]);
			for (int t = 0; t < COUNT && spread == 60 && o.map != HZ_MHC_ABS &&
					o.eps == 0; t++) {
				double in[REF_MATRIX], want[REF_MATRIX];

				for (int i = 0; i < n2; i++)
					in[i] = (double)z[t * n2 + i];
				ref_sinkhorn(&r, in, want);
				for (int i = 0; i < n2; i++)
					wrong += !(fabs((double)p[t * n2 + i] - want[i]) < 1e-4);
			}
		}
		ok(infinite == 0 && wrong == 0,
		   "%s: large logits in %ld cases: %ld values not finite, %ld wrong", devs[d].name,
		   cases, infinite, wrong);
	}
}

static void test_sinkhorn(void)
{
	static const int iterations[] = {1, 2, 3, 5, 10, 20, 31, 32, 33, 60, 64, 65};
	static const double eps[] = {0, 1e-8, 1e-6, 1e-3, 0.1};
	int n, backward, map, k, good;

	for (backward = 0; backward < 2; backward++) {
		for (n = 1; n <= REF_STREAMS; n++) {
			good = 1;
			for (k = 0; k < (quick ? 6 : 24); k++) {
				struct sinkhorn s = {
					.n = n, .map = 1 + k % 3, .order = 1 + k / 3 % 2,
					.iterations = PICK(iterations), .eps = PICK(eps),
					.sd = k % 4 == 3 ? 4 : 1, .count = 1 + rnd_below(&rnd, 40),
					.backward = backward, .in_place = k % 5 == 4,
					.layout = any_layout(),
				};

				/* With eps = 0 and z = 0 a sum may be 0. */
				if (s.map == HZ_MHC_ABS && s.eps == 0)
					s.eps = 1e-8;
				good &= sinkhorn_case(&s);
			}
			ok(good, "sinkhorn%s: n %d", backward ? "_bwd" : "", n);
		}
		good = 1;
		for (map = HZ_MHC_EXP; map <= HZ_MHC_ABS; map++) {
			for (k = HZ_MHC_COLS; k <= HZ_MHC_ROWS; k++) {
				struct sinkhorn s = {
					.n = 4, .map = map, .order = k, .iterations = 20, .sd = 8,
					.eps = map != HZ_MHC_EXP ? 1e-6 : 0, .count = 300,
					.backward = backward,
				};

				good &= sinkhorn_case(&s);
				s.n = 8;
				s.count = 9;
				good &= sinkhorn_case(&s);
				s.iterations = 300;
				s.count = 9;
				s.sd = 1;
				good &= sinkhorn_case(&s);
				s.n = 4;
				s.iterations = quick ? 100 : 1000;
				good &= sinkhorn_case(&s);
			}
		}
		ok(good, "sinkhorn%s: peaked, many iterations", backward ? "_bwd" : "");
		good = sinkhorn_case(
			&(struct sinkhorn){.n = 4, .count = 0, .backward = backward, .sd = 1});
		good &= sinkhorn_case(&(struct sinkhorn){
			.n = 4, .map = HZ_MHC_SOFTMAX, .order = HZ_MHC_ROWS, .eps = 1e-6,
			.count = 33,
			.backward = backward, .sd = 1, .default_opts = 1,
		});
		good &= sinkhorn_case(&(struct sinkhorn){
			.n = 4, .count = quick ? 1000 : 20001, .backward = backward, .sd = 1,
			.iterations = 3,
		});
		ok(good, "sinkhorn%s: no matrices, many, default options", backward ? "_bwd" : "");
	}
}

/* The slope of |z| at 0 is 0; NaN and Inf stay within their matrix. */
static void test_sinkhorn_special(void)
{
	static const double special[] = {NAN, INFINITY};
	int good = 1, k, map;

	for (map = HZ_MHC_EXP; map <= HZ_MHC_ABS; map++) {
		for (k = 0; k < 2; k++) {
			struct tcase c = {.call = call_sinkhorn, .name = "sinkhorn of NaN or Inf"};
			const int64_t size[] = {7, 4, 4};
			struct ref_rule r;
			struct operand *m, *out;
			int64_t i;

			c.opts = (hz_mhc_opts){REF_EXACT, .map = map, .eps = 1e-3, .iterations = 4};
			r = ref_rule(4, &c.opts);
			m = make(&c, X, HZ_F32, SPLIT, 3, size, 0);
			fill(m, 0, 1);
			set(m, 3 * 16 + 5, special[k]);
			out = expect(make(&c, Y, HZ_F32, SPLIT, 3, size, 0), 0);
			for (i = 0; i < 7; i++)
				ref_sinkhorn(&r, m->v + i * 16, out->want + i * 16);
			for (i = 0; i < out->count; i++)
				out->bound[i] = 1e-5 * fabs(out->want[i]);
			for (i = 48; i < 64; i++)
				out->want[i] = NAN;
			good &= run_case(&c);
		}
	}
	ok(good, "sinkhorn: a matrix with NaN or Inf is NaN, alone");
	good = 1;
	for (k = 0; k < 2; k++) {
		struct tcase c = {.call = call_sinkhorn, .name = "sinkhorn_bwd at 0"};
		const int64_t size[] = {1, 4, 4};
		struct ref_rule r;
		struct operand *m, *in, *out;
		int64_t i;

		c.opts = (hz_mhc_opts){REF_EXACT, .map = HZ_MHC_ABS, .order = HZ_MHC_ROWS,
				       .eps = 1e-6};
		r = ref_rule(4, &c.opts);
		m = make(&c, X, HZ_F32, SPLIT, 3, size, 0);
		fill(m, 0, 1);
		for (i = 0; i < 16 && k; i++)
			set(m, i, i % 5 == 0);
		set(m, 7, 0);
		in = make(&c, DY, HZ_F32, SPLIT, 3, size, 0);
		fill(in, 0, 1);
		out = expect(make(&c, DX, HZ_F32, SPLIT, 3, size, 0), 0);
		ref_sinkhorn_bwd(&r, m->v, in->v, out->want);
		bound_flat(out, 3e-5);
		for (i = 0; i < 16; i++) {
			out->bound[i] += 1e-6;
			if (m->v[i] == 0)
				out->want[i] = out->bound[i] = 0;
		}
		good &= run_case(&c);
	}
	ok(good, "sinkhorn_bwd: the slope of |z| at 0 is 0");
}

/* ---- Streams --------------------------------------------------------------------------------- */

enum op { MIX, MIX_BWD, ADD, ADD_BWD, POST, POST_BWD, EXPAND, EXPAND_BWD, OPS };

static const char *const op_names[OPS] = {"mix",  "mix_bwd",  "add",    "add_bwd",
					  "post", "post_bwd", "expand", "expand_bwd"};

static int call_mix(hz_context *ctx, struct tcase *c)
{
	return hz_mhc_mix(ctx, view(c, X), view(c, P), view(c, A), view(c, U), view(c, Y));
}

static int call_mix_bwd(hz_context *ctx, struct tcase *c)
{
	return hz_mhc_mix_bwd(ctx, view(c, X), view(c, P), view(c, A), view(c, DU), view(c, DY),
			      view(c, DX), view(c, DP_OUT), view(c, DA_OUT));
}

/* In place where there is no y, or no dx */
static int call_add(hz_context *ctx, struct tcase *c)
{
	return hz_mhc_add(ctx, view(c, X), view(c, F), view(c, Q),
					  c->o[Y] ? view(c, Y) : view(c, X));
}

static int call_add_bwd(hz_context *ctx, struct tcase *c)
{
	hz_tensor *dr = c->head ? view(c, DY) : view(c, DX);

	return hz_mhc_add_bwd(ctx, view(c, F), view(c, Q), view(c, DY), dr, view(c, DF),
			      view(c, DQ_OUT));
}

static int call_post(hz_context *ctx, struct tcase *c)
{
	return hz_mhc_post(ctx, view(c, X), view(c, F), view(c, Q), view(c, A),
					   view(c, BIAS_F), c->o[Y] ? view(c, Y) : view(c, X));
}

static int call_post_bwd(hz_context *ctx, struct tcase *c)
{
	return hz_mhc_post_bwd(ctx, view(c, X), view(c, F), view(c, Q), view(c, A), view(c, BIAS_F),
			       view(c, DY), view(c, DX), view(c, DF), view(c, DQ_OUT),
			       view(c, DA_OUT), view(c, DBIAS_F));
}

static int call_expand(hz_context *ctx, struct tcase *c)
{
	return hz_mhc_expand(ctx, view(c, F), view(c, Y));
}

static int call_expand_bwd(hz_context *ctx, struct tcase *c)
{
	return hz_mhc_expand_bwd(ctx, view(c, DY), view(c, DF));
}

static const tcall op_calls[OPS] = {call_mix,  call_mix_bwd,  call_add,    call_add_bwd,
				    call_post, call_post_bwd, call_expand, call_expand_bwd};

struct shape {
	int op, n, dtype;
	int64_t T, S, C;
	int layout;		/* of all operands; -1: random for each */
	int fewer;		/* optional operands left out at random */
	int in_place;
	double special;		/* unless 0: put into streams and branch values of one token */
};

/* Expected outputs, and the sums of magnitudes that bounds are a part of */
static void streams_refer(struct tcase *c, const struct shape *s)
{
	const enum slot in[] = {X, F, BIAS_F, P, Q, A, DU, DY};
	const double part = 0x1p-20, sum_part = 0x1p-17;
	double *v[8];
	int pass, k;

	for (pass = 0; pass < 2; pass++) {
		struct ref_streams r = {.T = s->T, .S = s->S, .C = s->C, .n = s->n};
		double *out[SLOTS] = {0};

		for (k = 0; k < 8; k++)
			v[k] = pass ? sizes_of(c->o[in[k]]) : c->o[in[k]] ? c->o[in[k]]->v : NULL;
		r.x = v[0];
		r.f = v[1];
		r.bias = v[2];
		r.p = v[3];
		r.q = v[4];
		r.a = v[5];
		for (k = 0; k < SLOTS; k++) {
			if (c->o[k])
				out[k] = pass ? c->o[k]->bound : c->o[k]->want;
		}
		if (s->op == MIX || s->op == ADD || s->op == POST || s->op == EXPAND)
			ref_streams(&r, out[U], c->o[Y] ? out[Y] : s->op == MIX ? NULL : out[X]);
		else
			ref_streams_bwd(&r, v[6], v[7], s->in_place ? NULL : out[DX], out[DF],
					out[DP_OUT], out[DQ_OUT], out[DA_OUT], out[DBIAS_F]);
		for (k = 0; k < 8 && pass; k++)
			free(v[k]);
	}
	bound_parts(c->o[U], part);
	bound_parts(c->o[Y], part);
	if (c->o[X] && c->o[X]->want)
		bound_parts(c->o[X], part);
	bound_parts(c->o[DX], part);
	bound_parts(c->o[DF], part);
	bound_parts(c->o[DP_OUT], sum_part);
	bound_parts(c->o[DQ_OUT], sum_part);
	bound_parts(c->o[DA_OUT], sum_part);
	bound_parts(c->o[DBIAS_F], sum_part);
}

static int lay(const struct shape *s)
{
	return s->layout < 0 ? any_layout() : s->layout;
}

/* Whether an optional operand is given */
static int there(const struct shape *s)
{
	return !s->fewer || rnd_below(&rnd, 3) > 0;
}

static void make_streams(struct tcase *c, const struct shape *s)
{
	const int op = s->op, n = s->n, d = s->dtype;
	const int64_t T = s->T, S = s->S, C = s->C;
	const int backward = op == MIX_BWD || op == ADD_BWD || op == POST_BWD || op == EXPAND_BWD;
	const int with_u = (op == MIX || op == MIX_BWD) && (there(s) || rnd_below(&rnd, 2));
	const int with_y = op > MIX_BWD || !with_u || there(s);

	/* Inputs */
	if (op != EXPAND && op != EXPAND_BWD && op != ADD_BWD)
		streams(c, X, d, T, n, C, lay(s), 1);
	if (op != MIX && op != MIX_BWD && op != EXPAND_BWD)
		streams(c, F, d, T, 0, C, lay(s), 1);
	if (with_u)
		coefs(c, P, S, n, 0, lay(s), 1);
	if (op >= ADD && op <= POST_BWD)
		coefs(c, Q, S, n, 0, lay(s), 1);
	if (with_y && (op <= MIX_BWD || op == POST || op == POST_BWD))
		coefs(c, A, S, n, 1, lay(s), 1);
	if ((op == POST || op == POST_BWD) && rnd_below(&rnd, 2))
		vector(c, BIAS_F, C, 0, 1, lay(s));
	if (backward && with_u)
		streams(c, DU, d, T, 0, C, lay(s), 1);
	if (backward && with_y)
		streams(c, DY, d, T, n, C, lay(s), 1);
	if (s->special != 0 && T > 2 && C) {
		const enum slot hit[] = {X, F, DU, DY};
		const struct operand *o;
		int k;

		for (k = 0; k < 4; k++) {
			o = c->o[hit[k]];
			if (o && (backward ? k > 1 : k < 2))
				set(c->o[hit[k]], o->count / T + C / 2, s->special);
		}
	}
	/* Outputs */
	if (op == MIX && with_u)
		streams(c, U, d, T, 0, C, lay(s), 0);
	if (!backward && with_y) {
		if (s->in_place && (op == ADD || op == POST))
			expect(c->o[X], 0);
		else
			streams(c, Y, d, T, n, C, lay(s), 0);
	}
	if (!backward)
		return;
	if (op != EXPAND_BWD && (there(s) && !s->in_place))
		streams(c, DX, d, T, n, C, lay(s), 0);
	if (op == EXPAND_BWD || (op != MIX_BWD && there(s)))
		streams(c, DF, d, T, 0, C, lay(s), 0);
	if (op == MIX_BWD && with_u && there(s))
		coefs(c, DP_OUT, S, n, 0, lay(s), 0);
	if (op >= ADD_BWD && op <= POST_BWD && there(s))
		coefs(c, DQ_OUT, S, n, 0, lay(s), 0);
	if ((op == MIX_BWD || op == POST_BWD) && with_y && there(s))
		coefs(c, DA_OUT, S, n, 1, lay(s), 0);
	if (op == POST_BWD && there(s))
		vector(c, DBIAS_F, C, 0, 0, lay(s));
	c->head = op == ADD_BWD && s->in_place;
}

static int streams_case(const struct shape *s)
{
	struct tcase c = {.call = op_calls[s->op]};

	c.split = 1 + rnd_below(&rnd, 3);
	snprintf(c.name, sizeof(c.name), "%s n %d %s T %lld S %lld C %lld layout %d in place %d",
		 op_names[s->op], s->n, hz_dtype_name(s->dtype), (long long)s->T, (long long)s->S,
		 (long long)s->C, s->layout, s->in_place);
	make_streams(&c, s);
	streams_refer(&c, s);
	return run_case(&c);
}

static void test_streams(void)
{
	int op, k, good, n;

	for (op = 0; op < OPS; op++) {
		for (n = 1; n <= REF_STREAMS; n++) {
			good = 1;
			for (k = 0; k < (quick ? 3 : n == 4 ? 40 : 10); k++) {
				struct shape s = {
					.op = op, .n = n, .dtype = floats[k % 3],
					.T = PICK(some_tokens),
					.C = PICK(some_channels), .layout = k % 4 ? 0 : -1,
					.fewer = k % 3 == 0,
					.in_place = k % 5 == 4,
				};

				s.S = any_groups(s.T);
				if (k % 4 == 2)
					s.C = (s.C + 7) & ~7;
				good &= streams_case(&s);
			}
			ok(good, "%s: n %d", op_names[op], n);
		}
	}
}

/* Several threads, sums over many tokens, sizes of a model in decoding */
static void test_streams_large(void)
{
	static const struct {
		int n, dtype;
		int64_t T, S, C;
	} sizes[] = {
		{4, HZ_BF16, 203, 203, 512}, {4, HZ_F32, 300, 300, 256}, {4, HZ_F16, 1024, 2, 128},
		{4, HZ_BF16, 1024, 1, 128}, {2, HZ_BF16, 301, 301, 264}, {3, HZ_F32, 999, 27, 40},
		{4, HZ_BF16, 1, 1, 4096}, {4, HZ_BF16, 8, 8, 4096}, {4, HZ_BF16, 64, 64, 1024},
		{8, HZ_BF16, 60, 60, 256}, {4, HZ_F32, 3, 3, 5001},
	};
	int op, good;
	size_t k;

	for (op = 0; op < OPS; op++) {
		good = 1;
		for (k = 0; k < sizeof(sizes) / sizeof(*sizes); k++) {
			struct shape s = {
				.op = op, .n = sizes[k].n, .dtype = sizes[k].dtype, .T = sizes[k].T,
				.S = sizes[k].S, .C = sizes[k].C,
			};

			if (quick && k % 3)
				continue;
			good &= streams_case(&s);
		}
		ok(good, "%s: larger", op_names[op]);
	}
}

static void test_streams_special(void)
{
	static const double special[] = {NAN, INFINITY, -INFINITY};
	int op, k, good;

	for (op = 0; op < OPS; op++) {
		good = 1;
		for (k = 0; k < 12; k++) {
			const struct shape s = {
				.op = op, .n = k % 2 ? 4 : 3, .dtype = floats[k % 3], .T = 9,
				.S = 9,
				.C = k % 4 ? 64 : 21, .special = special[k / 2 % 3],
			};

			good &= streams_case(&s);
		}
		ok(good, "%s: NaN and Inf stay within their token", op_names[op]);
	}
}

/* Non-temporal stores, which bypass the caches: full and partial cache lines */
static void test_streams_nontemporal(void)
{
	int64_t l3[DEV_MAX];
	int op, d, k, good;

	for (d = 0; d < ndevs; d++) {
		l3[d] = devs[d].ctx->topology.l3_bytes;
		devs[d].ctx->topology.l3_bytes = 1;
	}
	for (op = 0; op < OPS; op++) {
		good = 1;
		for (k = 0; k < (quick ? 6 : 24); k++) {
			const struct shape s = {
				.op = op, .n = k % 4 == 3 ? 1 + k % 8 : 4, .dtype = floats[k % 3],
				.T = 5, .S = 5, .C = 32 * (1 + rnd_below(&rnd, 40)),
				.fewer = k % 2, .in_place = k % 5 == 4,
			};

			good &= streams_case(&s);
		}
		ok(good, "%s: past the caches", op_names[op]);
	}
	for (d = 0; d < ndevs; d++)
		devs[d].ctx->topology.l3_bytes = l3[d];
}

int main(void)
{
	quick = tap_quick();
	rnd = tap_seed();
	dev_open_all();
	dev_open_routes(HZI_OP_mhc_streams);
	dev_open_routes(HZI_OP_mhc_streams_bwd);
	test_sinkhorn();
	test_bounded();
	test_large_logits();
	test_sinkhorn_special();
	test_streams();
	test_streams_large();
	test_streams_special();
	test_streams_nontemporal();
	dev_close_all();
	diag("%ld cases", cases);
	return done_testing();
}
