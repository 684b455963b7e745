/*
 * calls.c - chains of layers, layers, initial weights, diagnostics, invalid arguments
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#include "t/mhc/mhc.h"

#define PICK(list) ((list)[rnd_below(&rnd, (int64_t)(sizeof(list) / sizeof(*(list))))])

static int any_layout(void)
{
	return rnd_below(&rnd, 2) ? 0 : (int)rnd_below(&rnd, 16);
}

/* ---- Recomputation --------------------------------------------------------------------------- */

enum { LAYERS = 5 };

/* Layer l of a contiguous array of layers */
static hz_tensor slice(const struct tcase *c, int slot, int64_t l)
{
	hz_tensor t = c->o[slot] ? c->o[slot]->t : (hz_tensor){0};

	if (!c->o[slot])
		return t;
	t.shape[0] /= LAYERS;
	t.data = (char *)t.data + l * t.shape[0] * t.stride[0] * (int64_t)hz_dtype_size(t.dtype);
	return t;
}

static void layers_of(const struct tcase *c, hz_mhc_block *block, int u, int y)
{
	int l;

	for (l = 0; l < LAYERS; l++) {
		block[l] = (hz_mhc_block){
			.p = slice(c, P, l), .q = slice(c, Q, l), .a = slice(c, A, l), .f = slice(c,
			F, l),
			.u = slice(c, u, l), .y = slice(c, y, l),
		};
		if (c->o[BIAS_F])
			block[l].branch_bias = c->o[BIAS_F]->t;
	}
}

/* The same layers, with one call per step */
static int separate_steps(hz_context *ctx, const struct tcase *c, hz_mhc_block *block)
{
	hz_tensor x = c->o[X]->t;
	int status = HZ_OK, l;

	for (l = 0; l < LAYERS && !status; l++) {
		hz_mhc_block *b = &block[l];

		status = hz_mhc_mix(ctx, &x, &b->p, NULL, &b->u, NULL);
		if (!status)
			status = hz_mhc_post(ctx, &x, &b->f, &b->q, &b->a,
					     b->branch_bias.data ? &b->branch_bias : NULL, &b->y);
		x = b->y;
	}
	return status;
}

static int same_operand(const struct tcase *c, int a, int b)
{
	const struct operand *x = c->o[a], *y = c->o[b];
	unsigned char *gx = malloc(2 * GUARD + (size_t)x->bytes),
		      *gy = malloc(2 * GUARD + (size_t)y->bytes);
	int good;

	area_read(&x->area, gx);
	area_read(&y->area, gy);
	good = same_bits(gx, gy, 2 * GUARD + (size_t)x->bytes, 1);
	free(gx);
	free(gy);
	return good;
}

static int recompute_on(struct dev *dev, int n, int dtype, int64_t T, int64_t S, int64_t C,
			int bias, int last)
{
	struct tcase c = {.name = "recompute"};
	hz_mhc_block block[LAYERS], separate[LAYERS];
	int good, l;

	streams(&c, X, dtype, T, n, C, 0, 1);
	coefs(&c, P, S * LAYERS, n, 0, 0, 0.5);
	coefs(&c, Q, S * LAYERS, n, 0, 0, 0.5);
	coefs(&c, A, S * LAYERS, n, 1, 0, 0.5);
	streams(&c, F, dtype, T * LAYERS, 0, C, 0, 1);
	streams(&c, U, dtype, T * LAYERS, 0, C, 0, 0);
	streams(&c, Y, dtype, T * LAYERS, n, C, 0, 0);
	streams(&c, DU, dtype, T * LAYERS, 0, C, 0, 0);
	streams(&c, DY, dtype, T * LAYERS, n, C, 0, 0);
	if (bias)
		vector(&c, BIAS_F, C, 0, 1, 0);
	upload(dev, &c);
	layers_of(&c, block, U, Y);
	layers_of(&c, separate, DU, DY);
	good = separate_steps(dev->ctx, &c, separate) == HZ_OK;
	if (last) {
		/* The last layer computes its branch input only; absent outputs are not written. */
		block[LAYERS - 1].q.data = block[LAYERS - 1].a.data = block[LAYERS - 1].f.data =
			NULL;
		block[LAYERS - 1].y.data = NULL;
		block[1].u.data = NULL;
		good &= hz_mhc_recompute(dev->ctx, &c.o[X]->t, LAYERS, block) == HZ_OK;
		block[LAYERS - 1] = separate[LAYERS - 1];
		block[LAYERS - 1].u = slice(&c, U, LAYERS - 1);
		block[LAYERS - 1].y = slice(&c, Y, LAYERS - 1);
		block[1].u = slice(&c, U, 1);
		for (l = 0; l < LAYERS; l++) {
			hz_mhc_block *b = &block[l];

			if (l == LAYERS - 1)
				good &= hz_copy(dev->ctx, &separate[l].y, &b->y) == HZ_OK;
			if (l == 1)
				good &= hz_copy(dev->ctx, &separate[l].u, &b->u) == HZ_OK;
		}
	} else {
		good &= hz_mhc_recompute(dev->ctx, &c.o[X]->t, LAYERS, block) == HZ_OK;
	}
	good &= hz_sync(dev->ctx) == HZ_OK;
	if (!good)
		diag("%s", hz_errmsg(dev->ctx));
	good = good && same_operand(&c, U, DU) && same_operand(&c, Y, DY);
	if (!good)
		diag("%s: recompute n %d %s T %lld S %lld C %lld bias %d last %d", dev->name, n,
		     hz_dtype_name(dtype), (long long)T, (long long)S, (long long)C, bias, last);
	unload(&c);
	case_free(&c);
	return good;
}

static void test_recompute(struct dev *dev)
{
	static const int64_t channels[] = {1, 7, 16, 64, 100, 256, 520};
	int good = 1, k;

	for (k = 0; k < (quick ? 6 : 24); k++) {
		const int64_t T = 1 + rnd_below(&rnd, 20), C = PICK(channels);

		good &= recompute_on(dev, k % 2 ? 4 : 1 + k / 2 % 8, floats[k % 3], T,
				     k % 4 ? T : 1, C, k & 1, k % 3 == 1);
	}
	/* more data than the caches of two cores hold */
	good &= recompute_on(dev, 4, HZ_BF16, 640, 640, 1024, 1, 0);
	ok(good, "%s: recompute has the bits of the calls one by one", dev->name);
}

/* ---- Diagnostics ----------------------------------------------------------------------------- */

static int call_diagnose(hz_context *ctx, struct tcase *c)
{
	hz_tensor a;

	/* [L S][n][n] as [L][S][n][n] */
	a = c->o[A]->t;
	if (c->head > 1) {
		a.ndim = 4;
		memmove(a.shape + 1, a.shape, 3 * sizeof(*a.shape));
		memmove(a.stride + 1, a.stride, 3 * sizeof(*a.stride));
		a.shape[0] = c->head;
		a.shape[1] /= c->head;
		a.stride[0] = a.stride[1] * a.shape[1];
	}
	return hz_mhc_diagnose(ctx, &a, view(c, Y));
}

static int diagnose_case(int n, int layers, int64_t S, int layout)
{
	struct tcase c = {.call = call_diagnose, .head = layers};
	const int64_t in[] = {layers * S, n, n}, result[] = {S, 4};
	struct operand *a, *out;
	int64_t s;
	int l, i, j, k;

	snprintf(c.name, sizeof(c.name), "diagnose n %d layers %d S %lld layout %d", n, layers,
		 (long long)S, layout);
	a = make(&c, A, HZ_F32, WHOLE, 3, in, layout);
	fill(a, 1.0 / n, 0.2);
	out = expect(make(&c, Y, HZ_F32, WHOLE, 2, result, layout), 0);
	for (s = 0; s < S; s++) {
		double product[REF_MATRIX], next[REF_MATRIX], *o = out->want + 4 * s;

		for (i = 0; i < n * n; i++)
			product[i] = i % (n + 1) == 0;
		for (l = 0; l < layers; l++) {
			const double *m = a->v + (l * S + s) * n * n;

			for (i = 0; i < n; i++) {
				double row = 0, column = 0;

				for (j = 0; j < n; j++) {
					row += m[i * n + j];
					column += m[j * n + i];
					next[i * n + j] = 0;
					for (k = 0; k < n; k++)
						next[i * n + j] += m[i * n + k] *
								   product[k * n + j];
				}
				o[0] = fmax(o[0], fabs(row - 1));
				o[1] = fmax(o[1], fabs(column - 1));
			}
			memcpy(product, next, sizeof(product));
		}
		for (i = 0; i < n; i++) {
			double row = 0, column = 0;

			for (j = 0; j < n; j++) {
				row += fabs(product[i * n + j]);
				column += fabs(product[j * n + i]);
			}
			o[2] = fmax(o[2], row);
			o[3] = fmax(o[3], column);
		}
	}
	for (s = 0; s < out->count; s++)
		out->bound[s] = 1e-5 * out->want[s] + 3e-6;
	return run_case(&c);
}

static void test_diagnose(void)
{
	int good = 1, n;

	for (n = 1; n <= REF_STREAMS; n++) {
		good &= diagnose_case(n, 1, 1 + n, 0);
		good &= diagnose_case(n, 1 + 3 * n % 7, 1 + rnd_below(&rnd, 40), any_layout());
	}
	good &= diagnose_case(4, 60, 7, 0);
	ok(good, "diagnose: deviations and gains");
}

/* ---- Rows of weights ------------------------------------------------------------------------- */

static void test_rows(void)
{
	const hz_mhc_opts lite = {.preset = HZ_MHC_PRESET_LITE}, zeroed = {0};
	const hz_mhc_opts identity = {.preset = HZ_MHC_PRESET_LITE, .residual = HZ_MHC_IDENTITY};
	const hz_mhc_opts unknown = {.preset = 17}, residual = {.residual = 5};
	int n, good = 1;

	for (n = 1; n <= 8; n++) {
		good &= hz_mhc_rows(n, NULL) == n * n + 2 * n;
		good &= hz_mhc_rows(n, &zeroed) == n * n + 2 * n;
		good &= hz_mhc_rows(n, &identity) == 2 * n;
		good &= hz_mhc_rows(n, &lite) == (n > 4 ? -1 : 2 * n + ref_factorial(n));
	}
	good &= hz_mhc_rows(0, NULL) == -1 && hz_mhc_rows(9, NULL) == -1;
	good &= hz_mhc_rows(4, &unknown) == -1 && hz_mhc_rows(4, &residual) == -1;
	ok(good, "rows of phi");
}

/* ---- Codes of branch inputs ------------------------------------------------------------------ */

enum { CODED = 6, CODED_CHANNELS = 64 };

/* What hz_quantize() writes: codes, scales, the tensor's scale */
struct codes {
	struct area area[3];
	hz_tensor t[3];
	hz_quantize_opts o;
};

static const struct code_format {
	const char *name;
	int dtype, columns, scale_dtype, scales, group, tensor_scale;
} code_formats[] = {
	{"s8", HZ_S8, 64, HZ_F32, 1, 0, 0}, {"e4m3", HZ_E4M3, 64, HZ_F32, 1, 0, 0},
	{"mxfp8", HZ_E4M3, 64, HZ_E8M0, 2, 32, 0}, {"nvfp4", HZ_E2M1X2, 32, HZ_E4M3, 4, 16, 1},
};

static void codes_new(struct dev *dev, const struct code_format *f, struct codes *k)
{
	static const int64_t ones[] = {1};
	const int64_t shape[3][2] = {{CODED, f->columns}, {CODED, f->scales}};
	const int dtypes[] = {f->dtype, f->scale_dtype, HZ_F32};
	int i;

	for (i = 0; i < 3; i++) {
		k->area[i] = area_new(dev, (size_t)(CODED * CODED_CHANNELS * 4), 0);
		k->t[i] = hz_tensor_nd(k->area[i].data, dtypes[i], dev->device, i < 2 ? 2 : 1,
				       i < 2 ? shape[i] : ones);
	}
	k->o = (hz_quantize_opts){
		.new_scales = &k->t[1], .group = f->group,
		.new_tensor_scale = f->tensor_scale ? &k->t[2] : NULL,
	};
}

static int codes_equal(const struct codes *a, const struct codes *b)
{
	int good = 1, i;

	for (i = 0; i < 3; i++) {
		unsigned char *const x = malloc(a->area[i].total);
		unsigned char *const y = malloc(a->area[i].total);

		area_read(&a->area[i], x);
		area_read(&b->area[i], y);
		good &= memcmp(x, y, a->area[i].total) == 0;
		free(x);
		free(y);
	}
	return good;
}

static int call_codes(hz_context *ctx, struct tcase *c)
{
	if (c->head)
		return hz_mhc_head(ctx, view(c, X), NULL, NULL, NULL, NULL, view(c, U), &c->opts);
	return hz_mhc_pre(ctx, view(c, X), view(c, PHI), view(c, ALPHA), view(c, BIAS), NULL, NULL,
			  NULL, c->any_bits ? NULL : view(c, U), &c->opts);
}

/* The codes of the call, with and without u, are those of u. */
static void test_codes(struct dev *dev)
{
	size_t i;
	int how, k;

	for (i = 0; i < sizeof(code_formats) / sizeof(*code_formats); i++) {
		int good = 1;

		for (how = 0; how < 4; how++) {
			struct tcase c = {.call = call_codes, .head = how == 3};
			struct codes want, got;
			size_t bytes = 0;
			int status;

			c.opts.streams = how == 1 ? HZ_MHC_STREAMS_CN : 0;
			c.opts.head = c.head ? HZ_MHC_HEAD_MEAN : 0;
			c.cn = how == 1 ? 4 : 0;
			c.any_bits = how >= 1;
			streams(&c, X, how == 2 ? HZ_F32 : HZ_BF16, CODED, 4, CODED_CHANNELS, 0, 1);
			weights(&c, PHI, 24, 4 * CODED_CHANNELS, 0.1, 0);
			vector(&c, ALPHA, 3, 1, 0.1, 0);
			vector(&c, BIAS, 24, 0, 1, 0);
			if (!c.head)
				vector(&c, NORM, CODED_CHANNELS, 1, 0.2, 0);
			streams(&c, U, how == 2 ? HZ_F32 : HZ_BF16, CODED, 0, CODED_CHANNELS, 0, 0);
			upload(dev, &c);
			codes_new(dev, &code_formats[i], &want);
			codes_new(dev, &code_formats[i], &got);
			k = c.any_bits;
			c.any_bits = 0;
			status = make_call(dev, &c);
			if (!status)
				status = RECORD(dev->ctx, hz_quantize(dev->ctx, view(&c, U),
								      &want.t[0], &want.o), &bytes);
			if (!status)
				status = hz_reserve(dev->ctx, bytes);
			if (!status)
				status = hz_quantize(dev->ctx, view(&c, U), &want.t[0], &want.o);
			c.any_bits = k;
			c.opts.u_codes = &got.t[0];
			c.opts.u_quantize = &got.o;
			if (!status)
				status = make_call(dev, &c);
			good &= status == HZ_OK && codes_equal(&want, &got);
			if (status)
				diag("%s: codes %zu, %d: %s", dev->name, i, how,
				     hz_errmsg(dev->ctx));
			for (k = 0; k < 3; k++) {
				area_free(&want.area[k]);
				area_free(&got.area[k]);
			}
			unload(&c);
			case_free(&c);
		}
		ok(good, "%s: codes of branch inputs, %s", dev->name, code_formats[i].name);
	}
}

/* ---- Initial weights ------------------------------------------------------------------------- */

/* The coefficients of streams that are 0 */
static int coefficients(struct dev *dev, struct tcase *c, const hz_mhc_opts *o)
{
	return hz_mhc_weights(dev->ctx, NULL, NULL, view(c, ALPHA), view(c, BIAS), view(c, P),
			      view(c, Q), view(c, A), o);
}

static double *read_all(const struct operand *o)
{
	unsigned char *image = malloc(2 * GUARD + o->skew + (size_t)o->bytes);
	double *v = calloc((size_t)o->count + 1, sizeof(*v));
	int64_t i;

	area_read(&o->area, image);
	for (i = 0; i < o->count; i++)
		v[i] = ref_get(o->t.dtype, element_of(o, image, i), 0);
	free(image);
	return v;
}

static void test_init(struct dev *dev)
{
	static const int presets[] = {HZ_MHC_PRESET_DEEPSEEK_V4, HZ_MHC_PRESET_PAPER,
				      HZ_MHC_PRESET_TRITON, HZ_MHC_PRESET_LITE, HZ_MHC_PRESET_HC};
	int kind, layer, good = 1, random = 1, i;
	size_t k;

	for (k = 0; k < sizeof(presets) / sizeof(*presets); k++) {
		for (kind = 0; kind <= HZ_MHC_INIT_HY_V4; kind++) {
			const hz_mhc_opts o = {
				.preset = kind == HZ_MHC_INIT_HC   ? HZ_MHC_PRESET_HC
					: kind == HZ_MHC_INIT_LITE ? HZ_MHC_PRESET_LITE
								   : presets[k]};
			const struct ref_rule r = ref_rule(4, &o);
			struct tcase c = {.opts = o};
			double *phi, *again, *alpha, *bias, *p, *q, *a, mean = 0, square = 0;
			const int64_t count = r.m * 4 * 64;
			int64_t j;

			layer = (int)k;
			weights(&c, PHI, r.m, 4 * 64, 0, 0);
			weights(&c, DPHI, r.m, 4 * 64, 0, 0);
			vector(&c, ALPHA, 3, 0, 0, 0);
			vector(&c, BIAS, r.m, 0, 0, 0);
			coefs(&c, P, 1, 4, 0, 0, 0);
			coefs(&c, Q, 1, 4, 0, 0, 0);
			coefs(&c, A, 1, 4, 1, 0, 0);
			upload(dev, &c);
			if (hz_mhc_init(dev->ctx, kind, layer, 7, view(&c, PHI), view(&c, ALPHA),
					view(&c, BIAS), &o) ||
			    hz_mhc_init(dev->ctx, kind, layer, kind == 1 ? 8 : 7, view(&c, DPHI),
					view(&c, ALPHA), view(&c, BIAS), &o) ||
			    coefficients(dev, &c, &o) || hz_sync(dev->ctx)) {
				diag("%s: init %d: %s", dev->name, kind, hz_errmsg(dev->ctx));
				good = 0;
				unload(&c);
				case_free(&c);
				continue;
			}
			phi = read_all(c.o[PHI]);
			again = read_all(c.o[DPHI]);
			alpha = read_all(c.o[ALPHA]);
			bias = read_all(c.o[BIAS]);
			p = read_all(c.o[P]);
			q = read_all(c.o[Q]);
			a = read_all(c.o[A]);
			for (j = 0; j < count; j++) {
				mean += phi[j] / (double)count;
				square += phi[j] * phi[j] / (double)count;
			}
			if (kind <= HZ_MHC_INIT_PAPER || kind == HZ_MHC_INIT_HY_V4) {
				const double variance = kind ? 4e-4 : 1.0 / 256;

				random &= fabs(mean) < 5 * sqrt(variance / (double)count);
				random &= fabs(square / variance - 1) < 0.1;
				random &= (memcmp(phi, again, (size_t)count * 8) == 0) ==
					  (kind != HZ_MHC_INIT_PAPER);
			} else {
				random &= square == 0;
			}
			good &= fabs(alpha[0] - (kind == HZ_MHC_INIT_TRITON ? 0.1 : 0.01)) < 1e-7 &&
				alpha[0] == alpha[1] && alpha[1] == alpha[2];
			for (i = 0; i < 4 && kind == HZ_MHC_INIT_IDENTITY; i++) {
				good &= fabs(p[i] - 0.25) < 1e-4 && fabs(q[i] - 1) < 1e-4;
				for (j = 0; j < 4; j++)
					good &= fabs(a[i * 4 + j] - (i == j ? 0.9 : 0.1 / 3)) <
						1e-3;
			}
			for (i = 0; i < r.m && kind == HZ_MHC_INIT_PAPER; i++)
				good &= bias[i] == 0;
			for (i = 0; i < r.m && kind == HZ_MHC_INIT_HY_V4; i++)
				good &= bias[i] == (i < 4 ? (float)-log(3) : 0);
			for (i = 0;
			     i < 4 && (kind == HZ_MHC_INIT_TRITON || kind == HZ_MHC_INIT_HC); i++)
				good &= bias[i] == (i == layer % 4) && bias[4 + i] == 1;
			for (i = 0; i < 16 && kind == HZ_MHC_INIT_TRITON && r.m == 24; i++)
				good &= bias[8 + i] == (i % 5 == 0);
			for (i = 0; i < r.m && kind == HZ_MHC_INIT_LITE; i++)
				good &= bias[i] == (i < 8    ? i % 4 == layer % 4 ? 1 : -1
						    : i == 8 ? 0
							     : -8);
			if (!good)
				diag("%s: init %d of preset %d: alpha %g p %g q %g a %g %g",
				     dev->name, kind, presets[k], alpha[0], p[0], q[0], a[0], a[1]);
			free(phi);
			free(again);
			free(alpha);
			free(bias);
			free(p);
			free(q);
			free(a);
			unload(&c);
			case_free(&c);
		}
	}
	ok(good, "%s: weights to begin with", dev->name);
	ok(random, "%s: random numbers of weights", dev->name);
}

static int near_operand(const struct tcase *c, int a, int b)
{
	double *x = read_all(c->o[a]), *y = read_all(c->o[b]);
	const int good = within_norm(x, y, (size_t)c->o[a]->count, 1e-5);

	free(x);
	free(y);
	return good;
}

/* ---- Layers ------------------------------------------------------------------------------------
 */

/* The four calls. The branch is a copy: the gradient of u is that of f. */
static int layer_steps(hz_context *ctx, const struct tcase *c, const hz_mhc_layer *l)
{
	int status = hz_mhc_layer_begin(ctx, l, view(c, X), view(c, U));

	if (!status)
		status = hz_mhc_layer_end(ctx, l, view(c, X), view(c, F), view(c, Y));
	if (!status)
		status = hz_mhc_layer_end_bwd(ctx, l, view(c, F), view(c, DY), view(c, DF));
	return status ? status : hz_mhc_layer_begin_bwd(ctx, l, view(c, X), view(c, DY),
							view(c, DF), view(c, DX));
}

/* A layer's calls give the bits of the calls that they combine. */
static int layer_on(struct dev *dev, int preset, int n, int64_t T, int64_t S, int64_t C,
		    int extras)
{
	struct tcase c = {.opts = {.preset = preset}};
	const int m = hz_mhc_rows(n, &c.opts), dtype = extras ? HZ_F32 : HZ_BF16;
	const int fixed = S == 1 && extras, mixed = preset == HZ_MHC_PRESET_DEEPSEEK_V41;
	hz_mhc_layer l = {.opts = {.preset = preset}};
	struct operand *kept;
	size_t bytes = 0, more = 0;
	hz_mhc_grads g;
	int64_t count, i;
	int good;

	l.opts.flags |= extras ? HZ_MHC_ACCUMULATE : 0;
	l.opts.coefficients = fixed ? HZ_MHC_STATIC : S < T ? HZ_MHC_PER_SEQUENCE : 0;
	streams(&c, X, dtype, T, n, C, 0, 1);
	streams(&c, F, dtype, T, 0, C, 0, 1);
	streams(&c, DY, dtype, T, n, C, 0, 1);
	if (!fixed) {
		fill(weights(&c, PHI, m, n * C, 0.05, 0), 0, 0.05);
		fill(weights(&c, DPHI, m, n * C, 0, 0), 0, 1);
		weights(&c, P2, m, n * C, 0, 0);
		for (i = 0; i < c.o[P2]->count; i++)
			set(c.o[P2], i, c.o[DPHI]->v[i]);
	}
	vector(&c, ALPHA, 3, 0.7, 0.1, 0);
	vector(&c, BIAS, m, 0, 1, 0);
	if (extras)
		vector(&c, BIAS_F, C, 0, 1, 0);
	vector(&c, DBIAS, m, 0, 0, 0);
	vector(&c, Q2, m, 0, 0, 0);
	streams(&c, U, dtype, T, 0, C, 0, 0);
	streams(&c, DU, dtype, T, 0, C, 0, 0);
	streams(&c, Y, dtype, T, n, C, 0, 0);
	streams(&c, DX, dtype, T, n, C, 0, 0);
	streams(&c, DF, dtype, T, 0, C, 0, 0);
	/* Coefficients of a layer before, and their gradient by both kinds of calls */
	if (mixed) {
		coefs(&c, P_IN, S, n, 0, 0, 0.5);
		coefs(&c, DP_IN, S, n, 0, 0, 0);
		coefs(&c, P, S, n, 0, 0, 0);
	}
	/* The results of the separate calls, in the same layout */
	if (!fixed) {
		l.phi = c.o[PHI]->t;
		l.phi.data = c.o[PHI]->image;
	}
	if (hz_mhc_layer_bind(dev->ctx, &l, n, S, NULL, &bytes))
		return ok(0, "%s: layer_bind: %s", dev->name, hz_errmsg(dev->ctx));
	count = (int64_t)bytes / 4;
	vector(&c, SAVED, count, 0, 0, 0);
	kept = vector(&c, DP_OUT, count, 0, 0, 0);
	upload(dev, &c);
	c.opts.saved = NULL;
	l.phi = fixed ? (hz_tensor){0} : c.o[PHI]->t;
	l.alpha = c.o[ALPHA]->t;
	l.bias = c.o[BIAS]->t;
	l.dphi = fixed ? (hz_tensor){0} : c.o[DPHI]->t;
	l.dbias = c.o[DBIAS]->t;
	l.branch_bias = extras ? c.o[BIAS_F]->t : (hz_tensor){0};
	l.p_in = mixed ? c.o[P_IN]->t : (hz_tensor){0};
	l.dp_in = mixed ? c.o[DP_IN]->t : (hz_tensor){0};
	good = hz_mhc_layer_bind(dev->ctx, &l, n, S, c.o[SAVED]->t.data, &bytes) == HZ_OK;
	good &= RECORD(dev->ctx, layer_steps(dev->ctx, &c, &l), &more) == HZ_OK;
	good &= hz_reserve(dev->ctx, more) == HZ_OK;
	good &= layer_steps(dev->ctx, &c, &l) == HZ_OK;
	good &= hz_sync(dev->ctx) == HZ_OK;
	if (!good)
		diag("%s", hz_errmsg(dev->ctx));
	if (good) {
		hz_mhc_layer r = l;
		const hz_tensor *phi = view(&c, PHI);
		unsigned char *first[3], *again[3];
		static const int compared[3] = {U, DF, Y};
		hz_mhc_opts o = l.opts;
		int k;

		for (k = 0; k < 3; k++) {
			const struct operand *p = c.o[compared[k]];

			first[k] = malloc(2 * GUARD + (size_t)p->bytes);
			again[k] = malloc(2 * GUARD + (size_t)p->bytes);
			area_read(&p->area, first[k]);
		}
		o.flags &= ~HZ_MHC_ACCUMULATE;
		o.p_in = view(&c, P_IN);
		good &= hz_mhc_layer_bind(dev->ctx, &r, n, S, kept->t.data, &bytes) == HZ_OK;
		o.saved = fixed ? NULL : &r.saved;
		good &= hz_mhc_pre(dev->ctx, view(&c, X), phi, view(&c, ALPHA), view(&c, BIAS),
				   &r.p, &r.q, &r.a, view(&c, DU), &o) == HZ_OK;
		good &= hz_mhc_post(dev->ctx, view(&c, X), view(&c, F), &r.q, &r.a,
				    extras ? view(&c, BIAS_F) : NULL, view(&c, Y)) == HZ_OK;
		good &= hz_mhc_post_bwd(dev->ctx, NULL, view(&c, F), &r.q, NULL,
					extras ? view(&c, BIAS_F) : NULL, view(&c, DY), NULL,
					view(&c, DF), &r.dq, NULL, NULL) == HZ_OK;
		o = l.opts;
		o.saved = fixed ? NULL : &r.saved;
		o.p_in = view(&c, P_IN);
		o.dp_in = view(&c, P);
		g = (hz_mhc_grads){
			.du = view(&c, DF), .dq = &r.dq, .dy = view(&c, DY), .dphi = view(&c, P2),
			.dbias = view(&c, Q2),
		};
		good &= RECORD(dev->ctx, hz_mhc_pre_bwd(dev->ctx, view(&c, X), phi,
							view(&c, ALPHA), view(&c, BIAS), &g, &o),
			       &more) == HZ_OK;
		good &= hz_reserve(dev->ctx, more) == HZ_OK;
		good &= hz_mhc_pre_bwd(dev->ctx, view(&c, X), phi, view(&c, ALPHA), view(&c, BIAS),
				       &g, &o) == HZ_OK;
		good &= hz_sync(dev->ctx) == HZ_OK;
		if (!good)
			diag("%s", hz_errmsg(dev->ctx));
		good = good && same_operand(&c, U, DU) && same_operand(&c, SAVED, DP_OUT);
		/* Without dx a gradient may take another route: compare within a bound. */
		for (k = 0; k < 3; k++) {
			const struct operand *p = c.o[compared[k]];

			area_read(&p->area, again[k]);
			good &= same_bits(again[k], first[k], 2 * GUARD + (size_t)p->bytes, 1);
			free(first[k]);
			free(again[k]);
		}
		good &= near_operand(&c, DBIAS, Q2) && (fixed || near_operand(&c, DPHI, P2));
		good &= !mixed || near_operand(&c, DP_IN, P);
	}
	unload(&c);
	case_free(&c);
	return good;
}

static void test_layers(struct dev *dev)
{
	static const int presets[] = {HZ_MHC_PRESET_DEEPSEEK_V4, HZ_MHC_PRESET_TRITON,
				      HZ_MHC_PRESET_HC, HZ_MHC_PRESET_LITE,
				      HZ_MHC_PRESET_DEEPSEEK_V41};
	int good = 1;
	size_t k;

	for (k = 0; k < sizeof(presets) / sizeof(*presets); k++) {
		good &= layer_on(dev, presets[k], 4, 20, 20, 64, 0);
		good &= layer_on(dev, presets[k], 3, 12, 12, 33, 1);
		good &= layer_on(dev, presets[k], 4, 12, 1, 40, 1);
		good &= layer_on(dev, presets[k], 4, 12, 3, 40, 0);
	}
	ok(good, "%s: layers are the calls that they are made of", dev->name);
}

/* ---- Invalid arguments ----------------------------------------------------------------------- */

/* Valid operands of T = 6, n = 4, C = 8 */
struct valid {
	float x[6 * 4 * 8 + 8], y[6 * 4 * 8 + 8], f[6 * 8], u[6 * 8], p[6 * 4], q[6 * 4], a[6 * 16];
	float phi[24 * 32], dphi[24 * 32], alpha[3], bias[24], m[6 * 16], out[6 * 4], branch[8];
	hz_tensor X, Y, F, U, P, Q, A, PHI, ALPHA, BIAS, M, OUT, BRANCH, DPHI;
};

static void right_views(struct valid *r)
{
	size_t i;

	for (i = 0; i < sizeof(r->x) / sizeof(float); i++)
		r->x[i] = r->y[i] = (float)i;
	r->X = hz_tensor_3d(r->x, HZ_F32, HZ_CPU, 6, 4, 8);
	r->Y = hz_tensor_3d(r->y, HZ_F32, HZ_CPU, 6, 4, 8);
	r->F = hz_tensor_2d(r->f, HZ_F32, HZ_CPU, 6, 8);
	r->U = hz_tensor_2d(r->u, HZ_F32, HZ_CPU, 6, 8);
	r->P = hz_tensor_2d(r->p, HZ_F32, HZ_CPU, 6, 4);
	r->Q = hz_tensor_2d(r->q, HZ_F32, HZ_CPU, 6, 4);
	r->A = hz_tensor_3d(r->a, HZ_F32, HZ_CPU, 6, 4, 4);
	r->M = hz_tensor_3d(r->m, HZ_F32, HZ_CPU, 6, 4, 4);
	r->PHI = hz_tensor_2d(r->phi, HZ_F32, HZ_CPU, 24, 32);
	r->DPHI = hz_tensor_2d(r->dphi, HZ_F32, HZ_CPU, 24, 32);
	r->ALPHA = hz_tensor_1d(r->alpha, HZ_F32, HZ_CPU, 3);
	r->BIAS = hz_tensor_1d(r->bias, HZ_F32, HZ_CPU, 24);
	r->OUT = hz_tensor_2d(r->out, HZ_F32, HZ_CPU, 6, 4);
	r->BRANCH = hz_tensor_1d(r->branch, HZ_F32, HZ_CPU, 8);
}

static void refused(hz_context *ctx, int got, int want, const char *message)
{
	is_int(got, want, "refused: %s", message);
	has_str(hz_errmsg(ctx), message, "its message");
}

static hz_tensor shaped(hz_tensor t, int d, int64_t size)
{
	t.shape[d] = size;
	return t;
}

static hz_tensor typed(hz_tensor t, int dtype)
{
	t.dtype = (int16_t)dtype;
	return t;
}

/* Streams, coefficients and weights whose sizes disagree, wrong dtypes, overlaps */
static void test_wrong_operands(hz_context *ctx, struct valid *r)
{
	hz_mhc_layer layer = {.opts = {.residual = HZ_MHC_LITE}};
	hz_mhc_grads g = {0};
	size_t bytes;
	hz_tensor t, a;

	t = shaped(r->P, 1, 3);
	refused(ctx, hz_mhc_mix(ctx, &r->X, &t, &r->A, &r->U, &r->Y), HZ_ESHAPE,
		"mhc_mix: p.shape[1] is 3");
	t = shaped(r->P, 0, 4);
	refused(ctx, hz_mhc_mix(ctx, &r->X, &t, NULL, &r->U, NULL), HZ_ESHAPE,
		"does not divide the 6 tokens");
	refused(ctx, hz_mhc_mix(ctx, &r->X, &t, &r->A, &r->U, &r->Y), HZ_ESHAPE,
		"sets of coefficients");
	refused(ctx, hz_mhc_mix(ctx, &r->X, NULL, &r->A, &r->U, &r->Y), HZ_EINVAL, "p");
	refused(ctx, hz_mhc_mix(ctx, &r->X, &r->P, &r->A, NULL, NULL), HZ_EINVAL,
		"u and r are NULL");
	refused(ctx, hz_mhc_mix(ctx, NULL, &r->P, &r->A, &r->U, &r->Y), HZ_EINVAL, "x");
	t = typed(r->F, HZ_F16);
	refused(ctx, hz_mhc_add(ctx, &r->X, &t, &r->Q, &r->Y), HZ_EDTYPE, "mhc_add: f");
	t = typed(r->X, HZ_S8);
	refused(ctx, hz_mhc_add(ctx, &t, &r->F, &r->Q, &r->Y), HZ_EDTYPE, "mhc_add: r");
	t = typed(r->Q, HZ_BF16);
	refused(ctx, hz_mhc_add(ctx, &r->X, &r->F, &t, &r->Y), HZ_EDTYPE, "mhc_add: q");
	t = shaped(r->F, 1, 7);
	refused(ctx, hz_mhc_add(ctx, &r->X, &t, &r->Q, &r->Y), HZ_ESHAPE,
		"f.shape[1] is 7, must be 8");
	t = hz_tensor_3d(r->x, HZ_F32, HZ_CPU, 2, 12, 8);
	refused(ctx, hz_mhc_expand(ctx, &r->F, &t), HZ_ESHAPE, "must be 1 to 8 streams");
	t = hz_tensor_1d(r->x, HZ_F32, HZ_CPU, 8);
	refused(ctx, hz_mhc_expand(ctx, &r->F, &t), HZ_ESHAPE, "x.ndim is 1");
	t = hz_tensor_4d(r->x, HZ_F32, HZ_CPU, 2, 3, 4, 8);
	t.stride[0] = 100;
	refused(ctx, hz_mhc_expand_bwd(ctx, &t, &r->F), HZ_ESTRIDE,
		"dx.stride[0] is 100, must be 96");
	t = r->X;
	t.device = 7;
	refused(ctx, hz_mhc_post(ctx, &t, &r->F, &r->Q, &r->A, NULL, &r->Y), HZ_EDEVICE, "x");
	t = shaped(r->BRANCH, 0, 7);
	refused(ctx, hz_mhc_post(ctx, &r->X, &r->F, &r->Q, &r->A, &t, &r->Y), HZ_ESHAPE,
		"branch_bias.shape[0] is 7");
	t = shaped(r->BRANCH, 0, 4);
	t.stride[0] = 2;
	t.shape[0] = 8;
	refused(ctx, hz_mhc_post(ctx, &r->X, &r->F, &r->Q, &r->A, &t, &r->Y), HZ_ESTRIDE,
		"branch_bias");
	t = r->Y;
	t.data = r->x + 8;
	refused(ctx, hz_mhc_post(ctx, &r->X, &r->F, &r->Q, &r->A, NULL, &t), HZ_EALIAS, "y");
	refused(ctx, hz_mhc_mix_bwd(ctx, &r->X, &r->P, &r->A, &r->U, &r->Y, &r->X, NULL, NULL),
		HZ_EALIAS, "dx");
	t = r->M;
	t.stride[1] = 0;
	refused(ctx, hz_mhc_sinkhorn(ctx, &r->A, &t, NULL), HZ_ESTRIDE,
		"two elements at one address");
	t = shaped(r->M, 2, 3);
	refused(ctx, hz_mhc_sinkhorn(ctx, &t, &r->A, NULL), HZ_ESHAPE,
		"m.shape[2] is 3, must be 4: its matrices are square");
	t = shaped(r->PHI, 0, 23);
	refused(ctx, hz_mhc_weights(ctx, &r->X, &t, &r->ALPHA, &r->BIAS, &r->P, &r->Q, &r->A, NULL),
		HZ_ESHAPE, "phi.shape[0] is 23, must be 24");
	t = shaped(r->ALPHA, 0, 1);
	refused(ctx,
		hz_mhc_pre(ctx, &r->X, &r->PHI, &t, &r->BIAS, &r->P, &r->Q, &r->A, &r->U, NULL),
		HZ_ESHAPE, "alpha.shape[0] is 1, must be 3");
	refused(ctx,
		hz_mhc_pre(ctx, &r->X, &r->PHI, NULL, &r->BIAS, &r->P, &r->Q, &r->A, &r->U, NULL),
		HZ_EINVAL, "alpha");
	refused(ctx,
		hz_mhc_pre(ctx, NULL, &r->PHI, &r->ALPHA, &r->BIAS, &r->P, &r->Q, &r->A, NULL,
			   NULL),
		HZ_EINVAL, "x");
	refused(ctx, hz_mhc_head(ctx, &r->X, &r->PHI, &r->ALPHA, &r->BIAS, &r->P, &r->U, NULL),
		HZ_ESHAPE, "phi");
	t = hz_tensor_2d(r->m, HZ_F32, HZ_CPU, 6, 5);
	refused(ctx, hz_mhc_diagnose(ctx, &r->A, &t), HZ_ESHAPE, "out.shape[1] is 5, must be 4");
	a = shaped(r->A, 1, 3);
	refused(ctx, hz_mhc_diagnose(ctx, &a, &t), HZ_ESHAPE,
		"a.shape[1] is 3, must be 4, as a.shape[2]: matrices are square");
	refused(ctx, hz_mhc_recompute(ctx, &r->X, 0, NULL), HZ_EINVAL,
		"layers is 0, must be 1 to 64");
	refused(ctx, hz_mhc_recompute(ctx, &r->X, 1, NULL), HZ_EINVAL, "block is NULL");
	refused(ctx, hz_mhc_init(ctx, 9, 0, 1, &r->PHI, &r->ALPHA, &r->BIAS, NULL), HZ_EINVAL,
		"kind is 9");
	t = shaped(r->BIAS, 0, 20);
	refused(ctx, hz_mhc_init(ctx, 0, 0, 1, &r->PHI, &r->ALPHA, &t, NULL), HZ_ESHAPE,
		"bias.shape[0] is 20");
	refused(ctx, hz_mhc_layer_bind(ctx, NULL, 4, 1, NULL, NULL), HZ_EINVAL, "layer is NULL");
	refused(ctx, hz_mhc_layer_bind(ctx, &layer, 5, 1, NULL, &bytes), HZ_EINVAL,
		"which is for 4 streams at most: there are 5");
	refused(ctx, hz_mhc_layer_bind(ctx, &layer, 9, 1, NULL, &bytes), HZ_EINVAL,
		"n is 9, must be 1 to 8 streams");
	refused(ctx, hz_mhc_layer_bind(ctx, &layer, 4, -1, NULL, &bytes), HZ_EINVAL,
		"sets is -1, must be 0 to");
	refused(ctx, hz_mhc_pre_bwd(ctx, &r->X, &r->PHI, &r->ALPHA, &r->BIAS, NULL, NULL),
		HZ_EINVAL, "mhc_pre_bwd: g is NULL");
	g.reserved[1] = 3;
	refused(ctx, hz_mhc_pre_bwd(ctx, &r->X, &r->PHI, &r->ALPHA, &r->BIAS, &g, NULL), HZ_EINVAL,
		"mhc_pre_bwd: g->reserved[1] is 3, must be 0");
	g = (hz_mhc_grads){.dy = &r->Y};
	refused(ctx, hz_mhc_head_bwd(ctx, &r->X, NULL, NULL, &r->BIAS, &g, NULL), HZ_EINVAL,
		"mhc_head_bwd: g->dy is given: a head has p alone");
	refused(ctx, hz_mhc_init(ctx, 0, -1, 1, NULL, &r->ALPHA, &r->BIAS, NULL), HZ_EINVAL,
		"layer is -1, must not be negative");
}

static void test_wrong_options(hz_context *ctx, struct valid *r)
{
	static const struct {
		hz_mhc_opts o;
		const char *message;
	} wrong[] = {
		{{.preset = 17}, "opts->preset is 17, must be 0 to 16"},
		{{.head = 4}, "opts->head is 4, must be 0 to 3"},
		{{.streams = 3}, "opts->streams is 3, must be 0 to 2"},
		{{.preset = -1}, "opts->preset is -1"},
		{{.coefficients = 3}, "opts->coefficients is 3, must be 0 to 2"},
		{{.residual = 5}, "opts->residual is 5, must be 0 to 4"},
		{{.residual = -1}, "opts->residual is -1"},
		{{.map = 4}, "opts->map is 4, must be 0 to 3"},
		{{.order = 3}, "opts->order is 3, must be 0 to 2"},
		{{.iterations = -1}, "opts->iterations is -1, must be 0 to 1000"},
		{{.iterations = 1001}, "opts->iterations is 1001"},
		{{.flags = 8}, "opts->flags has unknown bits 0x8 (valid: HZ_MHC_OLD_NEW"},
		{{.given = 1024}, "opts->given has unknown bits 0x400 (valid: HZ_MHC_GIVEN_EPS, "
		 "HZ_MHC_GIVEN_P_EPS, HZ_MHC_GIVEN_Q_SCALE, HZ_MHC_GIVEN_RMS_EPS, "
		 "HZ_MHC_GIVEN_NORM_EPS, HZ_MHC_GIVEN_OLD_NEW, HZ_MHC_GIVEN_NORMALIZE, "
		 "HZ_MHC_GIVEN_Q_EPS, HZ_MHC_GIVEN_Z_MIN, HZ_MHC_GIVEN_Z_MAX)"},
		{{.eps_rule = 3}, "opts->eps_rule is 3, must be 0 to 2"},
		{{.rms = 4}, "opts->rms is 4, must be 0 to 3"},
		{{.rms_eps_rule = -1}, "opts->rms_eps_rule is -1, must be 0 to 3"},
		{{.z_max = 30}, "opts->z_max is 30, but opts->given lacks HZ_MHC_GIVEN_Z_MAX"},
		{{.z_min = -INFINITY, .given = HZ_MHC_GIVEN_Z_MIN},
		 "opts->z_min is -inf, must be finite in f32"},
		{{.z_min = 1, .z_max = -1, .given = HZ_MHC_GIVEN_Z_MIN | HZ_MHC_GIVEN_Z_MAX},
		 "opts->z_min is 1 and z_max -1"},
		{{.q_eps = -1, .given = HZ_MHC_GIVEN_Q_EPS}, "opts->q_eps is -1"},
		{{REF_EXACT, .eps = -1e-6},
		 "opts->eps is -1e-06, must be finite in f32 and not negative"},
		{{REF_EXACT, .eps = INFINITY}, "opts->eps is inf"},
		{{REF_EXACT, .p_eps = NAN}, "opts->p_eps is "},
		{{REF_EXACT, .rms_eps = 1e39}, "opts->rms_eps is 1e+39"},
		{{REF_EXACT_Q, .q_scale = -2}, "opts->q_scale is -2"},
		{{REF_EXACT, .rms_eps = -1}, "opts->rms_eps is -1"},
		{{REF_EXACT, .norm_eps = INFINITY}, "opts->norm_eps is inf"},
		{{.eps = 1e-3}, "opts->eps is 0.001, but opts->given lacks HZ_MHC_GIVEN_EPS: set it, or eps to 0"},
		{{.p_eps = NAN}, "opts->given lacks HZ_MHC_GIVEN_P_EPS"},
		{{.given = HZ_MHC_GIVEN_EPS, .q_scale = 2},
		 "opts->q_scale is 2, but opts->given lacks HZ_MHC_GIVEN_Q_SCALE"},
		{{.rms_eps = 1}, "HZ_MHC_GIVEN_RMS_EPS"},
		{{.norm_eps = 1}, "HZ_MHC_GIVEN_NORM_EPS"},
		{{.reserved = {0, 0, 1, 0}}, "reserved"},
	};
	const hz_mhc_opts lite = {.residual = HZ_MHC_LITE};
	const hz_mhc_opts accumulate = {.flags = HZ_MHC_ACCUMULATE};
	float z[5];
	hz_tensor five_p = hz_tensor_2d(z, HZ_F32, HZ_CPU, 1, 5);
	size_t k;

	for (k = 0; k < sizeof(wrong) / sizeof(*wrong); k++)
		refused(ctx, hz_mhc_sinkhorn(ctx, &r->M, &r->A, &wrong[k].o), HZ_EINVAL,
			wrong[k].message);
	refused(ctx, hz_mhc_weights(ctx, NULL, NULL, NULL, &r->BIAS, &five_p, NULL, NULL, &lite),
		HZ_EINVAL, "4 streams at most: there are 5");
	refused(ctx, hz_mhc_init(ctx, 0, 0, 1, NULL, &r->ALPHA, &r->BIAS, &wrong[0].o), HZ_EINVAL,
		wrong[0].message);
	is_int(hz_mhc_sinkhorn(ctx, &r->M, &r->A, &accumulate), HZ_OK,
	       "HZ_MHC_ACCUMULATE means nothing where nothing is added to");
}

/* Operands of conventions that few models have */
static void test_wrong_conventions(hz_context *ctx, struct valid *r)
{
	hz_tensor one = hz_tensor_1d(r->alpha, HZ_F32, HZ_CPU, 1), gaps = r->M, bad = r->M;
	const hz_mhc_opts mean = {.preset = HZ_MHC_PRESET_XING4}, alone = {.alpha_q = &one};
	const hz_mhc_opts no_p_in = {.dp_in = &r->P}, strided = {.p_in = &r->OUT, .dp_in = &gaps};
	const hz_mhc_opts both = {.alpha_q = &one, .alpha_a = &one};
	const hz_mhc_grads g = {.du = &r->U};

	refused(ctx, hz_mhc_head(ctx, &r->X, NULL, NULL, &r->BIAS, NULL, &r->U, &mean), HZ_EINVAL,
		"mhc_head: bias is given, and opts->head is HZ_MHC_HEAD_MEAN");
	refused(ctx, hz_mhc_pre(ctx, &r->X, &r->PHI, &one, &r->BIAS, &r->P, NULL, &r->A, NULL,
				&alone),
		HZ_EINVAL, "mhc_pre: opts->alpha_a is NULL, and phi has rows of it");
	refused(ctx, hz_mhc_pre(ctx, &r->X, &r->PHI, &r->ALPHA, &r->BIAS, &r->P, NULL, &r->A, NULL,
				&both),
		HZ_ESHAPE, "mhc_pre: alpha.shape[0] is 3, must be 1");
	refused(ctx, hz_mhc_pre_bwd(ctx, &r->X, &r->PHI, &r->ALPHA, &r->BIAS, &g, &no_p_in),
		HZ_EINVAL, "mhc_pre_bwd: opts->dp_in is given, and opts->p_in is NULL");
	refused(ctx, hz_mhc_pre(ctx, &r->X, &r->PHI, &r->ALPHA, &r->BIAS, &r->P, NULL, &r->A, NULL,
				&(hz_mhc_opts){.u_codes = &one}),
		HZ_EINVAL, "mhc_pre: opts->u_quantize is NULL, and u_codes is given: set both");
	refused(ctx, hz_mhc_pre(ctx, &r->X, &r->PHI, &r->ALPHA, &r->BIAS, &r->P, NULL, &r->A, NULL,
				&(hz_mhc_opts){.u_codes = &one,
					       .u_quantize = &(hz_quantize_opts){.scale = 1}}),
		HZ_EDTYPE, "mhc_pre: opts->u_codes, opts->u_quantize: quantize: q");
	bad.dtype = 89;
	refused(ctx, hz_mhc_pre(ctx, NULL, NULL, NULL, &r->BIAS, &r->P, NULL, NULL, NULL,
				&(hz_mhc_opts){.u_codes = &one,
					       .u_quantize = &(hz_quantize_opts){.new_scales = &bad}}),
		HZ_EINVAL, "mhc_pre: x is NULL");
	gaps = hz_tensor_2d(r->m, HZ_F32, HZ_CPU, 6, 4);
	gaps.stride[0] = 5;
	refused(ctx, hz_mhc_pre_bwd(ctx, &r->X, &r->PHI, &r->ALPHA, &r->BIAS, &g, &strided),
		HZ_ESTRIDE, "mhc_pre_bwd: opts->dp_in has steps between elements");
}

/* NULL, a zeroed struct and the default preset are the same; a bit in given makes 0 hold. */
static void test_defaults(hz_context *ctx, struct valid *r)
{
	static const hz_mhc_opts opts[] = {
		{0}, {.preset = HZ_MHC_PRESET_DEEPSEEK_V4},
		{.preset = HZ_MHC_PRESET_PAPER, .map = HZ_MHC_SOFTMAX, .order = HZ_MHC_ROWS,
		 .flags = HZ_MHC_OLD_NEW, .eps = 1e-6, .p_eps = 1e-6, .q_scale = 2,
		 .rms_eps = 1e-6, .norm_eps = 1e-6, .iterations = 20,
		 .residual = HZ_MHC_SINKHORN, .given = REF_NUMBERS | HZ_MHC_GIVEN_Q_SCALE},
		{.given = HZ_MHC_GIVEN_OLD_NEW}, {.given = HZ_MHC_GIVEN_EPS},
		{.given = HZ_MHC_GIVEN_P_EPS}, {.given = HZ_MHC_GIVEN_Q_SCALE},
		{.given = HZ_MHC_GIVEN_RMS_EPS}, {.given = HZ_MHC_GIVEN_NORM_EPS},
		{.flags = HZ_MHC_NORMALIZE}, {.preset = HZ_MHC_PRESET_TRITON},
		{.preset = HZ_MHC_PRESET_TRITON, .given = HZ_MHC_GIVEN_NORMALIZE},
	};
	struct valid *const v = calloc(2, sizeof(*v));
	int i, k;

	if (!v)
		bail("no memory for operands");
	for (k = 0; k < 2; k++) {
		uint64_t random = 5;

		right_views(&v[k]);
		for (i = 0; i < 24 * 32; i++)
			v[k].phi[i] = (float)rnd_uniform(&random);
		for (i = 0; i < 24; i++)
			v[k].bias[i] = (float)rnd_uniform(&random);
		for (i = 0; i < 6 * 4 * 8; i++)
			v[k].x[i] = 1e-3f * (float)rnd_uniform(&random);
		for (i = 0; i < 8; i++)
			v[k].branch[i] = 1;
		for (i = 0; i < 3; i++)
			v[k].alpha[i] = 1;
	}
	for (k = 0; k < (int)(sizeof(opts) / sizeof(*opts)); k++) {
		const hz_mhc_opts null = {.norm = &v[0].BRANCH};
		hz_mhc_opts o = opts[k];
		int status, same;

		/* Options that are NULL cannot have norm: the first time all is without it. */
		o.norm = k ? &v[1].BRANCH : NULL;
		status = hz_mhc_pre(ctx, &v[0].X, &v[0].PHI, &v[0].ALPHA, &v[0].BIAS, &v[0].P,
				    &v[0].Q, &v[0].A, &v[0].U, k ? &null : NULL);
		status = status ? status :
			 hz_mhc_pre(ctx, &v[1].X, &v[1].PHI, &v[1].ALPHA, &v[1].BIAS, &v[1].P,
				    &v[1].Q, &v[1].A, &v[1].U, &o);
		same = memcmp(v[0].p, v[1].p, sizeof(v->p)) == 0 &&
		       memcmp(v[0].q, v[1].q, sizeof(v->q)) == 0 &&
		       memcmp(v[0].a, v[1].a, sizeof(v->a)) == 0 &&
		       memcmp(v[0].u, v[1].u, sizeof(v->u)) == 0;
		ok(status == HZ_OK && same == (k < 3), "options %d are%s the default: %s", k,
		   k < 3 ? "" : " not", hz_errmsg(ctx));
	}
	free(v);
	right_views(r);
}

/* Sets of coefficients are as many as opts->coefficients says: T is 6. */
static void test_wrong_sets(hz_context *ctx, struct valid *r)
{
	static const hz_mhc_opts sequences = {.coefficients = HZ_MHC_PER_SEQUENCE};
	static const hz_mhc_opts fixed = {.coefficients = HZ_MHC_STATIC};
	hz_tensor p2 = shaped(r->P, 0, 2), p4 = shaped(r->P, 0, 4), one = shaped(r->P, 0, 1);
	const hz_tensor x4 = hz_tensor_4d(r->x, HZ_F32, HZ_CPU, 3, 2, 4, 8);
	const hz_tensor du4 = hz_tensor_3d(r->f, HZ_F32, HZ_CPU, 3, 2, 8);
	const hz_mhc_grads g = {.du = &r->F, .dphi = &r->DPHI}, g4 = {.du = &du4, .dphi = &r->DPHI};
	hz_tensor out = hz_tensor_nd(r->out, HZ_F32, HZ_CPU, 2, (int64_t[]){3, 4});
	float most = 0;
	int i;

#define WEIGHTS(x, p, o) hz_mhc_weights(ctx, x, &r->PHI, &r->ALPHA, &r->BIAS, p, NULL, NULL, o)
	refused(ctx, WEIGHTS(&r->X, &p2, NULL), HZ_ESHAPE,
		"mhc_weights: the number of sets of coefficients of p is 2, must be 6, one for each "
		"token: opts->coefficients is HZ_MHC_PER_TOKEN");
	refused(ctx, WEIGHTS(&r->X, &one, NULL), HZ_ESHAPE, "coefficients of p is 1");
	refused(ctx, WEIGHTS(&x4, &p2, &sequences), HZ_ESHAPE,
		"must be 3, the first dimension of streams: opts->coefficients is "
		"HZ_MHC_PER_SEQUENCE");
	refused(ctx, WEIGHTS(&r->X, &p4, &sequences), HZ_ESHAPE, "does not divide the 6 tokens");
	refused(ctx, WEIGHTS(&r->X, &one, &fixed), HZ_EINVAL,
		"phi is given, and opts->coefficients is HZ_MHC_STATIC");
	refused(ctx, hz_mhc_pre(ctx, &r->X, NULL, NULL, &r->BIAS, &p2, NULL, NULL, &r->U, &fixed),
		HZ_ESHAPE, "must be 1: opts->coefficients is HZ_MHC_STATIC");
	refused(ctx, hz_mhc_pre_bwd(ctx, &r->X, &r->PHI, &r->ALPHA, &r->BIAS, &g, &sequences),
		HZ_ESHAPE, "the number of sequences is unknown");
	refused(ctx, hz_mhc_post_pre(ctx, &r->X, &r->F, &r->Q, &r->A, NULL, &r->PHI, &r->ALPHA,
				     &r->BIAS, &r->Y, &r->P, NULL, NULL, NULL, &sequences),
		HZ_EINVAL, "opts->coefficients is HZ_MHC_PER_SEQUENCE, must be HZ_MHC_PER_TOKEN");
	is_int(hz_mhc_pre_bwd(ctx, &x4, &r->PHI, &r->ALPHA, &r->BIAS, &g4, &sequences), HZ_OK,
	       "the first dimension counts sequences");
	is_int(WEIGHTS(&x4, &out, &sequences), HZ_OK, "also those of p");
	is_int(hz_mhc_pre(ctx, &r->X, NULL, NULL, &r->BIAS, &one, NULL, NULL, &r->U, &fixed), HZ_OK,
	       "static coefficients: one set");
	for (i = 0; i < 4; i++)
		most = fmaxf(most, fabsf(r->p[i] - 0.500001f));
	ok(most < 1e-6f, "of sigma(0) + 1e-6");
#undef WEIGHTS
}

/* A layer is used for what it is bound for, and for nothing else. */
static void test_wrong_layers(hz_context *ctx, struct valid *r)
{
	hz_mhc_layer l = {.phi = r->PHI, .alpha = r->ALPHA, .bias = r->BIAS}, none = {0};
	hz_mhc_block block = {.p = r->P, .u = r->U, .reserved = {0, 0, 5, 0}};
	const hz_tensor x2 = hz_tensor_3d(r->x, HZ_F32, HZ_CPU, 6, 2, 16);
	const hz_tensor x4 = shaped(r->X, 0, 4);
	void *const data = aligned_alloc(64, 8192);
	hz_tensor u4 = shaped(r->U, 0, 4);
	size_t bytes = 0;

	if (!data)
		bail("no memory for a layer");
	refused(ctx, hz_mhc_layer_begin(ctx, &l, &r->X, &r->U), HZ_EINVAL,
		"mhc_layer_begin: layer is not bound: hz_mhc_layer_bind() gives it p, q, a");
	refused(ctx, hz_mhc_layer_bind(ctx, &none, 4, 6, data, &bytes), HZ_EINVAL,
		"mhc_layer_bind: layer->bias has no data: set phi, alpha and bias, or bias alone");
	none = l;
	none.alpha.data = NULL;
	refused(ctx, hz_mhc_layer_bind(ctx, &none, 4, 6, data, &bytes), HZ_EINVAL,
		"layer->phi is given, and layer->alpha has no data: set both");
	is_int(hz_mhc_layer_bind(ctx, &l, 4, 6, NULL, &bytes), HZ_OK, "the bytes of a layer");
	ok(bytes > 6 * 4 * 53 && bytes <= 8192 && !l.p.data, "%zu; it is not bound", bytes);
	refused(ctx, hz_mhc_layer_end(ctx, &l, &r->X, &r->F, &r->Y), HZ_EINVAL,
		"hz_mhc_layer_bind()");
	refused(ctx, hz_mhc_layer_bind(ctx, &l, 8, 6, data, &bytes), HZ_ESHAPE,
		"layer->phi is [24, 32], must be [80, a multiple of 8] for 8 streams");
	is_int(hz_mhc_layer_bind(ctx, &l, 4, 1, data, &bytes), HZ_OK, "a layer of 1 token");
	refused(ctx, hz_mhc_layer_begin(ctx, &l, &x4, &u4), HZ_ESHAPE,
		"mhc_layer_begin: x is of 4 tokens, layer is bound for 1: hz_mhc_layer_bind() it "
		"again");
	refused(ctx, hz_mhc_layer_end_bwd(ctx, &l, &r->F, &r->X, &r->U), HZ_ESHAPE,
		"dy is of 6 tokens");
	l.opts.coefficients = HZ_MHC_PER_SEQUENCE;
	refused(ctx, hz_mhc_layer_begin(ctx, &l, &x4, &u4), HZ_EINVAL,
		"layer->opts.coefficients is HZ_MHC_PER_SEQUENCE, layer is bound for "
		"HZ_MHC_PER_TOKEN");
	is_int(hz_mhc_layer_bind(ctx, &l, 4, 4, data, NULL), HZ_OK, "bound for four sequences");
	refused(ctx, hz_mhc_layer_begin(ctx, &l, &r->X, &r->U), HZ_ESHAPE,
		"mhc_layer_begin: x is of 6 tokens, which the 4 sequences that layer is bound for "
		"do not divide");
	is_int(hz_mhc_layer_bind(ctx, &l, 4, 1, data, NULL), HZ_OK, "bound for one sequence");
	l.opts.iterations = 7;
	refused(ctx, hz_mhc_layer_end(ctx, &l, &r->X, &r->F, &r->Y), HZ_EINVAL,
		"mhc_layer_end: layer->opts has changed since hz_mhc_layer_bind(): bind the layer "
		"again");
	l.opts.iterations = 0;
	l.opts.flags = HZ_MHC_ACCUMULATE;
	is_int(hz_mhc_layer_begin(ctx, &l, &x4, &u4), HZ_OK, "sums of gradients: %s",
	       hz_errmsg(ctx));
	refused(ctx, hz_mhc_layer_begin(ctx, &l, &x4, &r->U), HZ_ESHAPE,
		"mhc_layer_begin: u is of 6 tokens, must be of 4, as x");
	refused(ctx, hz_mhc_layer_begin_bwd(ctx, &l, &x4, NULL, &u4, &r->Y), HZ_ESHAPE,
		"mhc_layer_begin_bwd: dx is of 6 tokens, must be of 4, as x");
	l.gain = shaped(r->BIAS, 0, 3);
	refused(ctx, hz_mhc_layer_begin(ctx, &l, &x4, &u4), HZ_ESHAPE,
		"mhc_layer_begin: layer->gain.shape[0] is 3");
	l.gain = l.p;
	l.gain.data = NULL;
	is_int(hz_mhc_layer_begin(ctx, &l, &x4, &u4), HZ_OK, "of 4 tokens: %s", hz_errmsg(ctx));
	refused(ctx, hz_mhc_layer_begin(ctx, &l, &x2, &r->U), HZ_ESHAPE,
		"x.shape[1] is 2, layer is bound for 4 streams");
	l.opts.coefficients = HZ_MHC_STATIC;
	refused(ctx, hz_mhc_layer_bind(ctx, &l, 4, 1, data, NULL), HZ_EINVAL,
		"layer->phi is given, and layer->opts.coefficients is HZ_MHC_STATIC");
	l.phi.data = NULL;
	refused(ctx, hz_mhc_layer_bind(ctx, &l, 4, 2, data, NULL), HZ_EINVAL,
		"sets is 2, must be 1: layer->opts.coefficients is HZ_MHC_STATIC");
	refused(ctx, hz_mhc_layer_bind(ctx, &l, 8, 1, data, NULL), HZ_ESHAPE,
		"layer->bias.shape[0] is 24, must be 80 for 8 streams");
	is_int(hz_mhc_layer_bind(ctx, &l, 4, 1, data, NULL), HZ_OK, "static ones");
	is_int(hz_mhc_layer_begin(ctx, &l, &x4, &u4), HZ_OK, "of 4 tokens");
	l.reserved[6] = 1;
	refused(ctx, hz_mhc_layer_begin(ctx, &l, &x4, &u4), HZ_EINVAL,
		"layer->reserved[6] is 1, must be 0");
	refused(ctx, hz_mhc_recompute(ctx, &r->X, 1, &block), HZ_EINVAL,
		"block[0].reserved[2] is 5, must be 0");
	free(data);
}

/* A call of two operations, the second of which needs more workspace: if it is too small, the call
 * writes nothing. */
static void test_workspace(hz_context *ctx)
{
	enum { T = 1024, C = 1024 };
	float *x = calloc(3 * T * C, sizeof(*x)), *q = calloc(T, sizeof(*q)), z[3] = {0};
	float *sums = calloc(C, sizeof(*sums));
	const hz_tensor X = hz_tensor_3d(x, HZ_F32, HZ_CPU, T, 1, C);
	const hz_tensor DY = hz_tensor_3d(x + T * C, HZ_F32, HZ_CPU, T, 1, C);
	hz_tensor DX = hz_tensor_3d(x + 2 * T * C, HZ_F32, HZ_CPU, T, 1, C);
	const hz_tensor Q = hz_tensor_2d(q, HZ_F32, HZ_CPU, T, 1);
	const hz_tensor BIAS_OF = hz_tensor_1d(z, HZ_F32, HZ_CPU, 3);
	hz_tensor SUMS = hz_tensor_1d(sums, HZ_F32, HZ_CPU, C);
	const hz_mhc_grads g = {.dy = &DY, .dx = &DX};
	size_t first = 0, both = 0;
	void *lent;

	if (!x || !q || !sums)
		bail("no memory for a workspace's operands");
	x[T * C] = 1;
	is_int(RECORD(ctx, hz_mhc_pre_bwd(ctx, &X, NULL, NULL, &BIAS_OF, &g, NULL), &first), HZ_OK,
	       "the workspace of a part");
	is_int(RECORD(ctx, hz_mhc_post_pre_bwd(ctx, &X, NULL, NULL, &BIAS_OF, NULL, &Q, NULL, &g,
					       NULL, NULL, &SUMS, NULL), &both), HZ_OK,
	       "the workspace of both");
	ok(both > first, "the second part needs more: %zu, %zu", first, both);
	lent = aligned_alloc(64, (first + 63) / 64 * 64);
	hz_set_workspace(ctx, lent, first);
	refused(ctx, hz_mhc_post_pre_bwd(ctx, &X, NULL, NULL, &BIAS_OF, NULL, &Q, NULL, &g, NULL,
					 NULL, &SUMS, NULL), HZ_EWORKSPACE, "must have");
	ok(x[2 * T * C] == 0, "dx is as it was");
	hz_set_workspace(ctx, NULL, 0);
	free(lent);
	free(sums);
	free(q);
	free(x);
}

static void test_wrong(void)
{
	struct valid *r = calloc(1, sizeof(*r));
	hz_context *ctx = devs[0].ctx;
	size_t i;
	int good = 1;

	if (devs[0].device != HZ_CPU || !r) {
		free(r);
		return;
	}
	right_views(r);
	test_wrong_operands(ctx, r);
	test_wrong_options(ctx, r);
	test_wrong_conventions(ctx, r);
	test_defaults(ctx, r);
	test_wrong_sets(ctx, r);
	test_wrong_layers(ctx, r);
	test_workspace(ctx);
	for (i = 0; i < sizeof(r->y) / sizeof(float); i++)
		good &= r->y[i] == (float)i && r->x[i] == (float)i;
	ok(good, "a call that is refused writes nothing");
	ok(hz_mhc_mix(ctx, &r->X, &r->P, NULL, &r->U, NULL) == HZ_OK,
	   "a right call after it is not");
	free(r);
}

int main(void)
{
	int i, plain;

	quick = tap_quick();
	rnd = tap_seed();
	dev_open_all();
	test_rows();
	test_diagnose();
	for (i = 0; i < ndevs; i++) {
		test_recompute(&devs[i]);
		test_layers(&devs[i]);
		test_codes(&devs[i]);
	}
	test_init(&devs[ndevs - 1]);
	test_wrong();
	plain = ndevs;
	dev_open_routes(HZI_OP_mhc_recompute);
	for (i = plain; i < ndevs; i++)
		test_recompute(&devs[i]);
	dev_close_all();
	diag("%ld cases", cases);
	return done_testing();
}
