/*
 * check.c - hurwitz check of the lattice quantizer and of products with its codes
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#include <config.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tools/core/check.h"

#define ROWS 24
#define N 96			/* values per row: a multiple of all dimensions */

static const hz_lattice_opts lattices[] = {
	{.kind = HZ_LATTICE_Z, .dim = 1, .q = 4, .levels = 2, .beta = 0.25},
	{.kind = HZ_LATTICE_A2, .dim = 2, .q = 4, .levels = 2, .beta = 0.25},
	{.kind = HZ_LATTICE_D, .dim = 3, .q = 3, .levels = 3, .beta = 0.25},
	{.kind = HZ_LATTICE_D, .dim = 4, .q = 4, .levels = 2, .beta = 0.2},
	{.kind = HZ_LATTICE_E8, .dim = 8, .q = 4, .levels = 2, .beta = 0.22},
	{.kind = HZ_LATTICE_E8, .dim = 8, .q = 3, .levels = 2, .beta = 0.4},
};

/* Presets, and the least ratio of power and error on Gaussian values, half of what they have */
static const struct {
	int preset;
	double ratio;
} presets[] = {
	{HZ_LATTICE_PRESET_E8_4_50_FAST, 130}, {HZ_LATTICE_PRESET_E8_4_50, 160},
	{HZ_LATTICE_PRESET_E8_4_25, 110}, {HZ_LATTICE_PRESET_E8_4_25_BEST, 120},
	{HZ_LATTICE_PRESET_E8_3_25_FAST, 26}, {HZ_LATTICE_PRESET_E8_3_25, 30},
	{HZ_LATTICE_PRESET_E8_2_25, 7}, {HZ_LATTICE_PRESET_D4_4_50, 120},
};

#define LATTICES (sizeof(lattices) / sizeof(*lattices))

static uint64_t seed;

static double distance(const float *x, const float *y, const double *step, int d)
{
	double sum = 0;

	for (int i = 0; i < d; i++) {
		const double e = (double)x[i] - (double)y[i] - step[i];

		sum += e * e;
	}
	return sum;
}

/* Whether y is at least as near to x as each y + v, for the shortest vectors v of the lattice */
static bool is_nearest(const hz_lattice_info *f, const float *x, const float *y, double scale)
{
	const double zero[HZ_LATTICE_MAXDIM] = {0};
	const int d = f->dim;
	double step[HZ_LATTICE_MAXDIM];
	const double here = distance(x, y, zero, d) * (1 - 1e-5) - 1e-12;

	for (int i = 0; i < d; i++) {
		for (int j = f->kind == HZ_LATTICE_Z ? i : 0; j < d; j++) {
			for (int sign = 0; sign < 4; sign++) {
				memset(step, 0, sizeof(step));
				if (f->kind == HZ_LATTICE_A2) {
					const double angle = 1.04719755119659774615 *
							     (sign + 2 * i);

					step[0] = scale * cos(angle);
					step[1] = scale * sin(angle);
				} else {
					step[i] = sign & 1 ? -scale : scale;
					step[j] += i == j ? 0 : sign & 2 ? -scale : scale;
					if (i == j && f->kind != HZ_LATTICE_Z)
						continue;
				}
				if (distance(x, y, step, d) < here)
					return false;
			}
		}
	}
	for (int signs = 0; f->kind == HZ_LATTICE_E8 && signs < 256; signs++) {
		if (__builtin_popcount((unsigned)signs) % 2)
			continue;
		for (int i = 0; i < 8; i++)
			step[i] = signs >> i & 1 ? -scale / 2 : scale / 2;
		if (distance(x, y, step, d) < here)
			return false;
	}
	return true;
}

/* Operands of encoding and decoding, on the host and on the device */
struct codes {
	float x[ROWS * N], y[ROWS * N];
	uint8_t t[ROWS * N];
	uint16_t codes[ROWS * N * 2];
	hz_tensor host[4], on[4];		/* x, codes, t, y */
};

/* Encodes c->x and decodes; returns a library status. Codes and T stay on the device. */
static int code(hz_context *ctx, const hz_lattice *l, struct codes *c)
{
	hz_lattice_info f;
	int status = HZ_OK;

	hz_lattice_get_info(l, &f);
	c->host[0] = hz_tensor_2d(c->x, HZ_F32, HZ_CPU, ROWS, N);
	c->host[1] = hz_tensor_3d(c->codes, f.level_dtype, HZ_CPU, ROWS, N / f.dim, f.levels);
	c->host[2] = hz_tensor_2d(c->t, HZ_U8, HZ_CPU, ROWS, N / (f.group ? f.group : f.dim));
	c->host[3] = hz_tensor_2d(c->y, HZ_F32, HZ_CPU, ROWS, N);
	for (int i = 0; i < ROWS * N; i++)
		c->x[i] = random_normal(&seed);
	memset(c->on, 0, sizeof(c->on));
	for (int i = 0; i < 4 && !status; i++)
		status = to_device(ctx, &c->host[i], i == 0, &c->on[i]);
	if (!status)
		status = hz_lattice_encode(ctx, l, &c->on[0], &c->on[1], &c->on[2], NULL, NULL);
	if (!status)
		status = hz_lattice_decode(ctx, l, &c->on[1], &c->on[2], &c->on[3], NULL);
	for (int i = 1; i < 4 && !status; i++)
		status = from_device(ctx, &c->on[i], &c->host[i]);
	return status;
}

static void code_free(hz_context *ctx, struct codes *c)
{
	for (int i = 0; i < 4; i++)
		free_device(ctx, &c->on[i]);
}

static bool check_lattice(hz_context *ctx, const char *name, const hz_lattice_opts *opts,
			  struct codes *c)
{
	hz_lattice_opts o = *opts;
	hz_lattice_info f;
	hz_lattice *l;
	bool good = true;
	int status;

	o.policy = HZ_LATTICE_T;
	o.flags = HZ_LATTICE_CENTER;
	status = hz_lattice_open(ctx, &l, &o);
	if (status)
		return wrong("%s: lattice_open: %s", name, hz_errmsg(ctx));
	hz_lattice_get_info(l, &f);
	status = code(ctx, l, c);
	code_free(ctx, c);
	if (status)
		good = wrong("%s: lattice_encode, lattice_decode: %s", name, hz_errmsg(ctx));
	for (int b = 0; b < ROWS * N / f.dim && good; b++) {
		if (!is_nearest(&f, c->x + b * f.dim, c->y + b * f.dim,
				(double)f.scale_table[c->t[b]]))
			good = wrong("%s: kind %d q=%d: block %d was coded as a point that is not "
				     "nearest", name, f.kind, f.q, b);
	}
	hz_lattice_close(l);
	return good;
}

static bool check_preset(hz_context *ctx, const char *name, int preset, double ratio,
			 struct codes *c)
{
	const hz_lattice_opts o = {.preset = preset};
	double power = 0, error = 0;
	hz_lattice *l;
	int status = hz_lattice_open(ctx, &l, &o);

	if (status)
		return wrong("%s: lattice_open: %s", name, hz_errmsg(ctx));
	status = code(ctx, l, c);
	code_free(ctx, c);
	hz_lattice_close(l);
	if (status)
		return wrong("%s: lattice_encode, lattice_decode: %s", name, hz_errmsg(ctx));
	for (int i = 0; i < ROWS * N; i++) {
		power += (double)c->x[i] * (double)c->x[i];
		error += ((double)c->x[i] - (double)c->y[i]) * ((double)c->x[i] - (double)c->y[i]);
	}
	return error * ratio <= power ||
	       wrong("%s: preset %d: the error is 1/%.1f of the power, must be 1/%g at most", name,
		     preset, power / error, ratio);
}

bool check_lattices(hz_context *ctx, const char *name)
{
	struct codes *c = allocate(sizeof(*c));
	bool good = c || wrong("there is not enough memory");

	seed = 1;
	for (size_t i = 0; i < LATTICES && good; i++)
		good = check_lattice(ctx, name, &lattices[i], c);
	for (size_t i = 0; i < sizeof(presets) / sizeof(*presets) && good; i++)
		good = check_preset(ctx, name, presets[i].preset, presets[i].ratio, c);
	free(c);
	return good;
}

/* ---- Products -------------------------------------------------------------------------------- */

/* Checks y = W x for a coded matrix against the sum of decoded values in double; packs presets. */
static bool check_vlut(hz_context *ctx, const char *name, const hz_lattice_opts *opts, int route,
		       struct codes *c)
{
	const hz_vlut_opts vo = {.route = route};
	hz_lattice_opts o = *opts;
	hz_tensor x_on = {0}, y_on = {0};
	float x[N], y[ROWS];
	const hz_tensor x_host = hz_tensor_1d(x, HZ_F32, HZ_CPU, N);
	hz_tensor y_host = hz_tensor_1d(y, HZ_F32, HZ_CPU, ROWS);
	hz_coded w = {.k = N};
	hz_packed packed = {0};
	size_t bytes;
	double error = 0, norm = 0;
	hz_vlut *v = NULL;
	hz_lattice *l;
	int status;

	if (!o.preset)
		o.policy = HZ_LATTICE_T;
	status = hz_lattice_open(ctx, &l, &o);
	if (status)
		return wrong("%s: lattice_open: %s", name, hz_errmsg(ctx));
	for (int i = 0; i < N; i++)
		x[i] = random_normal(&seed);
	status = code(ctx, l, c);
	if (!status)
		status = to_device(ctx, &x_host, true, &x_on);
	if (!status)
		status = to_device(ctx, &y_host, false, &y_on);
	w.codes = c->on[1];
	w.t = &c->on[2];
	if (!status)
		status = hz_vlut_open(ctx, &v, l, NULL, &vo);
	if (!status && o.preset) {
		status = hz_vlut_pack_bytes(ctx, v, &w, &bytes);
		if (!status)
			status = hz_alloc(ctx, &packed.data, bytes, hz_device(ctx));
		if (!status)
			status = hz_vlut_pack(ctx, v, &w, packed.data, bytes, &packed);
		w = (hz_coded){.packed = &packed};
	}
	if (!status)
		status = WITH_WORKSPACE(ctx, hz_vlut_gemv(ctx, v, &w, &x_on, &y_on));
	if (!status)
		status = from_device(ctx, &y_on, &y_host);
	if (packed.data)
		hz_free(ctx, packed.data, hz_device(ctx));
	hz_vlut_close(v);
	free_device(ctx, &x_on);
	free_device(ctx, &y_on);
	code_free(ctx, c);
	hz_lattice_close(l);
	if (status)
		return wrong("%s: vlut_gemv: %s", name, hz_errmsg(ctx));
	for (int i = 0; i < ROWS; i++) {
		double want = 0;

		for (int k = 0; k < N; k++) {
			want += (double)c->y[i * N + k] * (double)x[k];
			norm += (double)c->y[i * N + k] * (double)c->y[i * N + k] *
				(double)x[k] * (double)x[k];
		}
		error += (want - (double)y[i]) * (want - (double)y[i]);
	}
	/* a GPU rounds x and scales to f16 */
	if (error > 4e-6 * norm)
		return wrong("%s: vlut_gemv, preset %d, kind %d q=%d: the error is %.3g of the norm",
			     name, o.preset, o.kind, o.q, sqrt(error / norm));
	return true;
}

bool check_vluts(hz_context *ctx, const char *name)
{
	struct codes *c = allocate(sizeof(*c));
	bool good = c || wrong("there is not enough memory");

	seed = 2;
	for (size_t i = 0; i < LATTICES && good; i++)
		good = check_vlut(ctx, name, &lattices[i], HZ_VLUT_AUTO, c) &&
		       check_vlut(ctx, name, &lattices[i], HZ_VLUT_TABLE, c) &&
		       check_vlut(ctx, name, &lattices[i], HZ_VLUT_DECODE, c);
	for (size_t i = 0; i < sizeof(presets) / sizeof(*presets) && hz_device(ctx) == HZ_CPU &&
	     good; i++)
		good = check_vlut(ctx, name, &(hz_lattice_opts){.preset = presets[i].preset},
				  HZ_VLUT_AUTO, c);
	free(c);
	return good;
}
