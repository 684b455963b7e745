/*
 * encode.c - quantization of the weights of a linear layer, on the host
 *
 * SPDX-License-Identifier: BSD-2-Clause
 *
 * Rows are quantized in chunks, so that their f32 copy stays small. All sums are in a fixed order:
 * the bytes do not depend on the ISA level or the number of threads.
 */
#include <config.h>

#include <float.h>
#include <math.h>
#include <string.h>

#include "lib/lattice/lattice.h"
#include "lib/linear/linear.h"

#define CHUNK 256		/* rows, a multiple of HZI_LINEAR_PANEL */
#define SAMPLE ((int64_t)1 << 20)	/* weights that decide on the bank of scales */
#define FACTORS 5		/* of all rows, see quantize_lattice() */
#define OUTLIER 5		/* a weight that many times the root mean square of its row */
#define PANEL HZI_LINEAR_COLUMNS
#define DAMPING 0.1		/* added to moments, of their mean */
#define LANES 8			/* partial sums, which compilers put into vectors */
#define ROUND 12582912.0f	/* 1.5 2^23: t + ROUND - ROUND is rint(t) for |t| <= 2^22 */

static const char op[] = "linear_open";

/* A chunk of rows and what it is quantized to */
struct work {
	struct hz_context *cpu;
	const struct hzi_linear_header *h;
	const float *weight;		/* of in-features */
	hz_lattice *lattice;
	hz_vlut *vlut;
	hz_lattice_info info;
	int64_t in, blocks, groups;
	float *x, *decoded;		/* [CHUNK][in]: the rows, and lattice codes decoded */
	double *d;			/* of struct hzi_linear_factors; else NULL */
	float *u;
	float *residual;		/* [CHUNK][in]: the rows less what their codes mean */
	float *panel;			/* [3][CHUNK][PANEL]: a panel of the rows, decoded, sums */
	double *row_noise, *row_power;	/* [CHUNK], 0 between chunks */
	bool rounds;			/* columns make up for errors of those before */
	float *scale;			/* [CHUNK] */
	double *inverse;		/* [CHUNK]: 1 / the root mean square */
	unsigned char *codes, *t;	/* of a candidate, [CHUNK], each row code_bytes, groups */
	unsigned char *best_codes, *best_t;
	float *ones;
	uint8_t *signs;
	int64_t code_bytes;
	float tensor_scale;
	double noise, power;		/* sums of squares: of errors, of weights */
};

/* *pp and *xp = sum weight p^2, sum weight x p; *xx = sum weight x^2, of n values in f64 */
static void moments_of(const float *weight, int64_t n, const float *x, const float *p, double *pp,
		       double *xp, double *xx)
{
	double s[3][LANES] = {{0}};

	for (int64_t k = 0; k < n; k++) {
		const double m = (double)weight[k], a = (double)x[k], b = (double)p[k];

		s[0][k % LANES] += m * b * b;
		s[1][k % LANES] += m * a * b;
		s[2][k % LANES] += m * a * a;
	}
	for (int i = 1; i < LANES; i++) {
		for (int j = 0; j < 3; j++)
			s[j][0] += s[j][i];
	}
	*pp = s[0][0];
	*xp = s[1][0];
	*xx = s[2][0];
}

/* The panel of U that column k is in */
static float *panel_at(const struct work *w, int64_t k)
{
	return w->u + hzi_linear_panels(k / PANEL);
}

typedef float four __attribute__((vector_size(16)));

static inline four all_four(float f)
{
	return (four){f, f, f, f};
}

/* z[c] = sum over k < count of r[k] U[k][c] for the columns of a panel */
static void add_columns(const float *panel, int64_t count, const float *r, float *z)
{
	four even[2] = {{0}}, odd[2] = {{0}}, x[4];
	int64_t k = 0;

	/* Two sums, since an addition waits for the one before */
	for (; k + 2 <= count; k += 2) {
		const four first = all_four(r[k]), second = all_four(r[k + 1]);

		memcpy(x, panel + k * PANEL, sizeof(x));
		even[0] += first * x[0];
		even[1] += first * x[1];
		odd[0] += second * x[2];
		odd[1] += second * x[3];
	}
	even[0] += odd[0];
	even[1] += odd[1];
	if (k < count) {
		memcpy(x, panel + k * PANEL, PANEL * sizeof(float));
		even[0] += all_four(r[k]) * x[0];
		even[1] += all_four(r[k]) * x[1];
	}
	memcpy(z, even, sizeof(even));
}

/* The sum over columns c of a panel of D[c] (row U)[c]^2; over all panels it is row H row^T. */
static double panel_square(const struct work *w, int64_t k, const float *row)
{
	const int64_t end = w->in - k < PANEL ? w->in : k + PANEL;
	double sum = 0;
	float z[PANEL];

	add_columns(panel_at(w, k), end, row, z);
	for (int64_t c = k; c < end; c++) {
		const double e = (double)z[c - k] + (double)row[c];

		sum += w->d[c] * e * e;
	}
	return sum;
}

/* Calls work() for the rows of a chunk, by all threads that pay. */
static void for_rows(const struct work *w, hzi_work work, void *job, int64_t rows, int64_t columns)
{
	hzi_parallel(w->cpu, hzi_threads(w->cpu, rows * columns * PANEL), work, job, rows);
}

static void row_powers(void *data, int thread, int64_t begin, int64_t end)
{
	const struct work *const w = data;

	(void)thread;
	/* A panel stays in the cache for all rows. */
	for (int64_t k = 0; k < w->in; k += PANEL) {
		for (int64_t i = begin; i < end; i++) {
			w->row_power[i] += panel_square(w, k, w->x + i * w->in);
			if (!w->rounds)
				w->row_noise[i] += panel_square(w, k, w->residual + i * w->in);
		}
	}
}

/* Adds the errors of a chunk's products; those of rows that were rounded are known. */
static void count_products(struct work *w, int64_t rows)
{
	for_rows(w, row_powers, w, rows, w->in);
	for (int64_t i = 0; i < rows; i++) {
		w->noise += w->row_noise[i];
		w->power += w->row_power[i];
		w->row_noise[i] = w->row_power[i] = 0;
	}
}

/*
 * Adds the error of row i of the chunk, w->decoded times scale, or with a matrix of moments sets
 * w->residual. Each product rounds to f32, as in layers.
 */
static void count_errors(struct work *w, int64_t i, float scale)
{
	const float *const x = w->x + i * w->in, *const p = w->decoded + i * w->in;
	double noise = 0, power = 0;

	if (w->u) {
		float *const r = w->residual + i * w->in;

		for (int64_t k = 0; k < w->in; k++)
			r[k] = x[k] - p[k] * scale;
		return;
	}
	for (int64_t k = 0; k < w->in; k++) {
		const double m = (double)w->weight[k], d = (double)(p[k] * scale) - (double)x[k];

		noise += m * d * d;
		power += m * (double)x[k] * (double)x[k];
	}
	w->noise += noise;
	w->power += power;
}

/* ---- Integers -------------------------------------------------------------------------------- */

static inline float step_error(float u, float most, float step, float inverse)
{
	float t = u * inverse, d;

	t = t > most ? most : t;
	t = t < -most ? -most : t;
	d = u - (t + ROUND - ROUND) * step;
	return d * d;
}

/* The weighted squared error of u rounded to multiples of `step` within `most` of them */
static float try_step(const float *m, int64_t n, const float *u, float most, float step)
{
	const float inverse = 1 / step;
	float sum[LANES] = {0};
	double all = 0;
	int64_t k = 0;

	for (; k + LANES <= n; k += LANES) {
		for (int i = 0; i < LANES; i++)
			sum[i] += m[k + i] * step_error(u[k + i], most, step, inverse);
	}
	for (; k < n; k++)
		all += (double)(m[k] * step_error(u[k], most, step, inverse));
	for (int i = 0; i < LANES; i++)
		all += (double)sum[i];
	return (float)all;
}

/*
 * Chooses a scale for n values and codes up to `most`: they are divided by their largest magnitude,
 * which becomes `most`; of the steps 1 - j / 32 the one with the least error gives the codes, p,
 * and least squares for these the scale.
 */
static float choose_scale(const float *m, int64_t n, const float *x, float most, float *p)
{
	float amax = 0, best_error = 0, step = 1, scale;
	double pp, xp, xx, least;

	for (int64_t k = 0; k < n; k++)
		amax = fabsf(x[k]) > amax ? fabsf(x[k]) : amax;
	if (amax < most * FLT_MIN)
		amax = amax > 0 ? most * FLT_MIN : most;
	for (int64_t k = 0; k < n; k++)
		p[k] = x[k] / amax * most;
	for (int j = 0; j < 16; j++) {
		const float candidate = 1 - (float)j / 32;
		const float error = try_step(m, n, p, most, candidate);

		if (j == 0 || error < best_error) {
			best_error = error;
			step = candidate;
		}
		/* What is clipped grows from here on. */
		if (error > 4 * best_error)
			break;
	}
	for (int64_t k = 0; k < n; k++) {
		const float t = p[k] * (1 / step);

		p[k] = rintf(t > most ? most : t < -most ? -most : t);
	}
	scale = amax / most * step;
	moments_of(m, n, x, p, &pp, &xp, &xx);
	least = pp > 0 ? xp / pp : 0;
	if (least > FLT_MIN && least < 0x1p97)
		scale = (float)least;
	return scale > FLT_MIN ? scale : FLT_MIN;
}

/* p = the codes of values x by a stored scale and zero point, 0 .. 15 or -most .. most */
static void group_codes(const float *x, int64_t n, float scale, float zero, float least, float most,
			float *p)
{
	for (int64_t k = 0; k < n; k++) {
		float t = x[k] / scale;

		t = t > most - zero ? most - zero : t < least - zero ? least - zero : t;
		p[k] = rintf(t) + zero;
	}
}

/*
 * Rounds the columns of the panel at k of row i to codes least .. most, in w->decoded, one after
 * the other: each makes up for the errors of all columns before it, their sum by U.
 */
static void round_panel(struct work *w, int64_t i, int64_t k, float scale, float zero, float least,
			float most)
{
	const int64_t end = w->in - k < PANEL ? w->in : k + PANEL;
	const float *const x = w->x + i * w->in, *const panel = panel_at(w, k);
	float *const r = w->residual + i * w->in, *const p = w->decoded + i * w->in;
	double noise = 0;
	float z[PANEL];

	add_columns(panel, k, r, z);
	for (int64_t c = k; c < end; c++) {
		float t = z[c - k];
		double e;

		for (int64_t j = k; j < c; j++)
			t += r[j] * panel[j * PANEL + c - k];
		e = (double)t;
		t += x[c];
		group_codes(&t, 1, scale, zero, least, most, &p[c]);
		r[c] = x[c] - scale * (p[c] - zero);
		e += (double)r[c];
		noise += w->d[c] * e * e;
	}
	w->row_noise[i] += noise;
}

static void round_rows(void *data, int thread, int64_t begin, int64_t end)
{
	struct work *const w = data;

	(void)thread;
	for (int64_t k = 0; k < w->in; k += PANEL) {
		for (int64_t i = begin; i < end; i++)
			round_panel(w, i, k, w->scale[i], 0, -127, 127);
	}
}

static void quantize_s8(struct work *w, int64_t first, int64_t rows, int8_t *codes)
{
	for (int64_t i = 0; i < rows; i++)
		w->scale[i] = choose_scale(w->weight, w->in, w->x + i * w->in, 127,
					   w->decoded + i * w->in);
	if (w->u)
		for_rows(w, round_rows, w, rows, w->in);
	for (int64_t i = 0; i < rows; i++) {
		for (int64_t k = 0; k < w->in; k++)
			codes[(first + i) * w->in + k] = (int8_t)w->decoded[i * w->in + k];
		count_errors(w, i, w->scale[i]);
	}
}

/* ---- Groups ---------------------------------------------------------------------------------- */

/* f32 to bf16, to nearest even; not for NaN */
static uint16_t to_bf16(float f)
{
	uint32_t bits;

	memcpy(&bits, &f, 4);
	return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

static float from_bf16(uint16_t half)
{
	const uint32_t bits = (uint32_t)half << 16;
	float f;

	memcpy(&f, &bits, 4);
	return f;
}

/*
 * Scale and zero point of a group for codes 0 .. 15: of 16 ranges, 1 - j / 32 times that of the
 * values and 0, the one with the least error
 */
static float choose_range(const float *m, int64_t n, const float *x, float *p, float *zero)
{
	float low = 0, high = 0, best = 1;
	double best_error = 0;

	*zero = 0;
	for (int64_t k = 0; k < n; k++) {
		low = x[k] < low ? x[k] : low;
		high = x[k] > high ? x[k] : high;
	}
	for (int j = 0; j < 16 && high > low; j++) {
		const float width = (high / 15 - low / 15) * (1 - (float)j / 32);
		const float scale = from_bf16(to_bf16(width > FLT_MIN ? width : FLT_MIN));
		const float at = rintf(-low * (1 - (float)j / 32) / scale);
		const float z = at > 15 ? 15 : at;
		double error = 0;

		group_codes(x, n, scale, z, 0, 15, p);
		for (int64_t k = 0; k < n; k++) {
			const double d = (double)x[k] - (double)((p[k] - z) * scale);

			error += (double)m[k] * d * d;
		}
		if (j == 0 || error < best_error) {
			best_error = error;
			best = scale;
			*zero = z;
		}
	}
	return best;
}

/* The scale and zero point of group `at` as stored */
static float stored_scale(const struct hzi_linear_header *h, const unsigned char *data, int64_t at,
			  float *zero)
{
	uint16_t half;

	memcpy(&half, data + h->scales_at + 2 * at, 2);
	*zero = hzi_linear_group_of(h)->zeros ?
		data[h->scales_at + hzi_linear_zeros_at(h, HZ_BF16) + (uint64_t)at] : 0;
	return from_bf16(half);
}

/* Rows of a chunk that begins with row `first`, whose scales are stored in data */
struct group_job {
	struct work *w;
	const unsigned char *data;
	int64_t first;
	float least, most;
};

static void round_groups(void *job, int thread, int64_t begin, int64_t end)
{
	const struct group_job *const j = job;
	const struct hzi_linear_header *const h = j->w->h;
	const int64_t groups = hzi_linear_groups(h), group = hzi_linear_group_of(h)->group;

	(void)thread;
	for (int64_t k = 0; k < h->in; k += PANEL) {
		for (int64_t row = begin; row < end; row++) {
			float zero;
			const float scale = stored_scale(
				h, j->data, (j->first + row) * groups + k / group, &zero);

			round_panel(j->w, row, k, scale, zero, j->least, j->most);
		}
	}
}

/* Groups with a scale of bf16; their values as decoded go to p. */
static void quantize_integers(struct work *w, int64_t first, int64_t rows, unsigned char *data)
{
	const struct hzi_linear_header *const h = w->h;
	const struct hzi_linear_group *const g = hzi_linear_group_of(h);
	const float most = g->q_dtype == HZ_S8 ? 127 : g->zeros ? 15 : 7;
	const float least = g->zeros ? 0 : -most;
	const int64_t groups = hzi_linear_groups(h), row_bytes = hzi_linear_row_bytes(h);
	float zero = 0;

	for (int64_t i = 0; i < rows * groups; i++) {
		const int64_t at = first * groups + i, k = i % groups * g->group, row = i / groups;
		const int64_t n = w->in - k < g->group ? w->in - k : g->group;
		const float *const x = w->x + row * w->in + k, *const m = w->weight + k;
		float *const p = w->decoded + row * w->in + k;
		const float scale = g->zeros ? choose_range(m, n, x, p, &zero) :
					       choose_scale(m, n, x, most, p);
		const uint16_t half = to_bf16(scale);

		group_codes(x, n, from_bf16(half), zero, least, most, p);
		memcpy(data + h->scales_at + 2 * at, &half, 2);
		if (g->zeros)
			data[h->scales_at + hzi_linear_zeros_at(h, HZ_BF16) + (uint64_t)at] =
				(unsigned char)zero;
	}
	if (w->u)
		for_rows(w, round_groups, &(struct group_job){w, data, first, least, most}, rows,
			 w->in);
	for (int64_t i = 0; i < rows * groups; i++) {
		const int64_t k = i % groups * g->group, row = i / groups;
		const int64_t n = w->in - k < g->group ? w->in - k : g->group;
		const float scale = stored_scale(h, data, first * groups + i, &zero);
		float *const p = w->decoded + row * w->in + k;
		unsigned char *const codes = data + h->codes_at + (first + row) * row_bytes;

		for (int64_t j = 0; j < n; j++) {
			const int code = (int)p[j];

			if (g->q_dtype == HZ_S8)
				codes[k + j] = (unsigned char)code;
			else
				codes[(k + j) / 2] |=
					(unsigned char)((code & 15) << (k + j) % 2 * 4);
			p[j] = scale * (p[j] - zero);
		}
	}
}

/* Groups of e2m1, by hz_quantize() */
static int quantize_floats(struct work *w, int64_t first, int64_t rows, unsigned char *data)
{
	const struct hzi_linear_header *const h = w->h;
	const struct hzi_linear_group *const g = hzi_linear_group_of(h);
	const int64_t groups = hzi_linear_groups(h), row_bytes = hzi_linear_row_bytes(h);
	const hz_tensor x = hz_tensor_2d(w->x, HZ_F32, HZ_CPU, rows, w->in);
	const hz_tensor tensor_scale = hz_tensor_1d(&w->tensor_scale, HZ_F32, HZ_CPU, 1);
	hz_tensor y = hz_tensor_2d(w->decoded, HZ_F32, HZ_CPU, rows, w->in);
	hz_tensor q = hz_tensor_2d(data + h->codes_at + first * row_bytes, g->q_dtype, HZ_CPU, rows,
				   row_bytes);
	hz_tensor s = hz_tensor_2d(data + h->scales_at + first * groups, g->scale_dtype, HZ_CPU,
				   rows, groups);
	hz_quantize_opts o = {.new_scales = &s, .group = g->group};

	if (g->scale_dtype == HZ_E4M3)
		o.tensor_scale = &tensor_scale;
	HZ_CHECK(hz_quantize(w->cpu, &x, &q, &o));
	o.new_scales = NULL;
	o.scales = &s;
	return hz_dequantize(w->cpu, &q, &y, &o);
}

static int quantize_groups(struct work *w, int64_t first, int64_t rows, unsigned char *data)
{
	if (hzi_linear_group_of(w->h)->scale_dtype == HZ_BF16)
		quantize_integers(w, first, rows, data);
	else
		HZ_CHECK(quantize_floats(w, first, rows, data));
	for (int64_t i = 0; i < rows; i++)
		count_errors(w, i, 1);
	return HZ_OK;
}

/* ---- Lattice codes --------------------------------------------------------------------------- */

static hz_tensor codes_of(const struct work *w, unsigned char *data, int64_t rows)
{
	return hz_tensor_3d(data, w->info.level_dtype, HZ_CPU, rows, w->blocks, w->info.levels);
}

/*
 * Codes of the `rows` rows list[], each divided by factor times the root of its mean square, and
 * their values
 */
static int encode_rows(struct work *w, const int *list, int64_t rows, float factor)
{
	const hz_tensor v = hz_tensor_2d(w->decoded, HZ_F32, HZ_CPU, rows, w->in);
	hz_tensor codes = codes_of(w, w->codes, rows), y = v;
	hz_tensor t = hz_tensor_2d(w->t, HZ_U8, HZ_CPU, rows, w->groups);

	for (int64_t i = 0; i < rows; i++) {
		const float *const x = w->x + list[i] * w->in;
		const double r = w->inverse[list[i]] / (double)factor;
		const float inverse = r < FLT_MAX ? (float)r : FLT_MAX;	/* of subnormal numbers */

		for (int64_t k = 0; k < w->in; k++)
			w->decoded[i * w->in + k] = x[k] * inverse;
	}
	HZ_CHECK(hz_lattice_encode(w->cpu, w->lattice, &v, &codes, &t, NULL, NULL));
	return hz_lattice_decode(w->cpu, w->lattice, &codes, &t, &y, NULL);
}

/*
 * Encodes a chunk, each row by the factor with the least error after least squares, and adds these
 * errors to *noise. Rows without outliers are tried with the first `factors` alone: larger ones let
 * the largest scale of the bank reach outliers.
 */
static int quantize_lattice(struct work *w, int64_t rows, int factors, double *noise)
{
	static const float factor[] = {1, 0.94f, 1.06f, 0.88f, 1.12f, 1.25f, 1.4f, 1.6f, 1.8f, 2,
				       2.5f, 3, 4, 5, 6};
	double error[CHUNK];
	bool outliers[CHUNK];
	int list[CHUNK];

	for (int64_t i = 0; i < rows; i++) {
		double sum = 0, most = 0;

		for (int64_t k = 0; k < w->in; k++) {
			const double x = fabs((double)w->x[i * w->in + k]);

			sum += x * x;
			most = x > most ? x : most;
		}
		w->inverse[i] = sum > 0 ? sqrt((double)w->in / sum) : 1;
		outliers[i] = most * w->inverse[i] > OUTLIER;
	}
	for (int c = 0; c < (int)(sizeof(factor) / sizeof(*factor)); c++) {
		int64_t count = 0;

		for (int64_t i = 0; i < rows; i++) {
			if (c < factors || outliers[i])
				list[count++] = (int)i;
		}
		if (!count)
			break;
		HZ_CHECK(encode_rows(w, list, count, factor[c]));
		for (int64_t j = 0; j < count; j++) {
			const int64_t i = list[j];
			double pp, xp, xx, e;

			moments_of(w->weight, w->in, w->x + i * w->in, w->decoded + j * w->in, &pp,
				   &xp, &xx);
			e = pp > 0 ? xx - xp / pp * xp : xx;
			if (c > 0 && !(e < error[i]))
				continue;
			error[i] = e;
			/* Codes of 0 need no scale. */
			w->scale[i] = pp > 0 && xp > 0 ? (float)(xp / pp) : 1;
			memcpy(w->best_codes + i * w->code_bytes, w->codes + j * w->code_bytes,
			       (size_t)w->code_bytes);
			memcpy(w->best_t + i * w->groups, w->t + j * w->groups, (size_t)w->groups);
		}
	}
	for (int64_t i = 0; i < rows; i++)
		*noise += error[i];
	return HZ_OK;
}

/* n columns of a chunk at k, a multiple of PANEL */
struct panel_job {
	struct work *w;
	int64_t k, n;
};

/*
 * What the columns of a panel are to become, scaled: they make up for z, the errors of the columns
 * before it by U, so z is solved for U within the panel.
 */
static void panel_targets(void *data, int thread, int64_t begin, int64_t end)
{
	const struct panel_job *const j = data;
	const struct work *const w = j->w;
	const float *const panel = panel_at(w, j->k);

	(void)thread;
	for (int64_t i = begin; i < end; i++) {
		const float *const x = w->x + i * w->in + j->k;
		float *const to = w->panel + i * j->n, z[PANEL];
		const float inverse = 1 / w->scale[i];

		add_columns(panel, j->k, w->residual + i * w->in, z);
		memcpy(w->panel + (2 * CHUNK + i) * PANEL, z, sizeof(z));
		for (int64_t c = 0; c < j->n; c++) {
			for (int64_t l = 0; l < c; l++)
				z[c] -= z[l] * panel[(j->k + l) * PANEL + c];
			to[c] = (x[c] + z[c]) * (inverse < FLT_MAX ? inverse : FLT_MAX);
		}
	}
}

/* What is left of the columns of a panel, and the errors of products by them */
static void panel_residuals(const struct panel_job *j, int64_t rows)
{
	const struct work *const w = j->w;
	const float *const panel = panel_at(w, j->k);

	for (int64_t i = 0; i < rows; i++) {
		const float *const x = w->x + i * w->in + j->k;
		const float *const p = w->panel + CHUNK * PANEL + i * j->n;
		const float *const z = w->panel + (2 * CHUNK + i) * PANEL;
		float *const r = w->residual + i * w->in + j->k;
		double noise = 0;

		for (int64_t c = 0; c < j->n; c++) {
			double e;

			r[c] = x[c] - w->scale[i] * p[c];
			e = (double)z[c] + (double)r[c];
			for (int64_t l = 0; l < c; l++)
				e += (double)r[l] * (double)panel[(j->k + l) * PANEL + c];
			noise += w->d[j->k + c] * e * e;
		}
		w->row_noise[i] += noise;
	}
}

/*
 * With a matrix of moments: encodes a chunk again, by the scales that are chosen, a panel after the
 * other.
 */
static int encode_panels(struct work *w, int64_t rows)
{
	const int64_t size = (int64_t)hz_dtype_size(w->info.level_dtype), levels = w->info.levels;

	for (int64_t k = 0; k < w->in; k += PANEL) {
		const int64_t n = w->in - k < PANEL ? w->in - k : PANEL, block = k / w->info.dim;
		const int64_t blocks = (n + w->info.dim - 1) / w->info.dim;
		const hz_tensor v = hz_tensor_2d(w->panel, HZ_F32, HZ_CPU, rows, n);
		hz_tensor y = hz_tensor_2d(w->panel + CHUNK * PANEL, HZ_F32, HZ_CPU, rows, n);
		hz_tensor t = hz_tensor_2d(w->best_t + k / PANEL, HZ_U8, HZ_CPU, rows, 1);
		hz_tensor codes = hz_tensor_3d(w->best_codes + block * levels * size,
					       w->info.level_dtype, HZ_CPU, rows, blocks, levels);
		struct panel_job job = {w, k, n};

		codes.stride[0] = w->code_bytes / size;
		t.stride[0] = w->groups;
		for_rows(w, panel_targets, &job, rows, k);
		HZ_CHECK(hz_lattice_encode(w->cpu, w->lattice, &v, &codes, &t, NULL, NULL));
		HZ_CHECK(hz_lattice_decode(w->cpu, w->lattice, &codes, &t, &y, NULL));
		panel_residuals(&job, rows);
	}
	return HZ_OK;
}

/* Packs a chunk, and counts its errors by what the codes decode to. */
static int pack_lattice(struct work *w, int64_t rows, unsigned char *to, size_t bytes)
{
	hz_tensor codes = codes_of(w, w->best_codes, rows);
	const hz_tensor t = hz_tensor_2d(w->best_t, HZ_U8, HZ_CPU, rows, w->groups);
	hz_tensor y = hz_tensor_2d(w->decoded, HZ_F32, HZ_CPU, rows, w->in);
	const hz_coded c = {.codes = codes, .t = &t, .k = w->in};
	hz_packed packed;

	HZ_CHECK(hz_lattice_decode(w->cpu, w->lattice, &codes, &t, &y, NULL));
	for (int64_t i = 0; i < rows; i++)
		count_errors(w, i, w->scale[i]);
	return hz_vlut_pack(w->cpu, w->vlut, &c, to, bytes, &packed);
}

/* ---- Rows ------------------------------------------------------------------------------------ */

/* Reads `rows` rows of w from `first` on, `each` apart, as f32, and rotates them. */
static int take_rows(struct work *w, const hz_tensor *from, int64_t first, int64_t rows,
		     int64_t each)
{
	const size_t size = hz_dtype_size(from->dtype);
	const struct hzi_linear_forward_args a = {.e = {
		.from = (const char *)from->data + first * from->stride[0] * (int64_t)size,
		.y = w->x, .rows = rows, .n = w->in, .from_step = from->stride[1], .y_step = 1,
		.shape = {rows}, .from_stride = {each * from->stride[0]}, .y_stride = {w->in},
		.ndim = 1, .from_dtype = from->dtype, .y_dtype = HZ_F32,
	}};
	const hz_tensor signs = hz_tensor_1d(w->signs, HZ_U8, HZ_CPU, (w->in + 7) / 8);
	hz_hadamard_opts o = hzi_linear_rotation(w->h);
	hz_tensor x = hz_tensor_2d(w->x, HZ_F32, HZ_CPU, rows, w->in);

	HZ_CHECK(HZI_CALL(w->cpu, linear, linear_forward, &a));
	for (int64_t i = 0; i < rows * w->in; i++) {
		if (!(fabsf(w->x[i]) <= 0x1p96f))
			return hzi_fail(w->cpu, HZ_EINVAL,
					"%s: w has a value of %g in row %lld, must be at most 2^96 "
					"in magnitude", op, (double)w->x[i],
					(long long)(first + i / w->in * each));
	}
	if (!(w->h->flags & HZ_LINEAR_ROTATE))
		return HZ_OK;
	o.pre = &signs;
	return hz_hadamard(w->cpu, &x, &x, &o);
}

static void close_lattice(struct work *w)
{
	hz_vlut_close(w->vlut);
	hz_lattice_close(w->lattice);
	w->vlut = NULL;
	w->lattice = NULL;
}

#define FACTOR_ROWS 128		/* that are done at a time: their sums take 8 KiB */

/* sum[r][c] = the sum of products of rows first + r and k + c of the panels of W behind k */
static void sum_panels(const struct work *w, int64_t k, int64_t first, int64_t rows,
		       double sum[FACTOR_ROWS][PANEL])
{
	memset(sum, 0, (size_t)rows * sizeof(*sum));
	for (int64_t q = k + PANEL; q < w->in; q += PANEL) {
		const float *const panel = panel_at(w, q);
		float other[PANEL][PANEL];

		for (int c = 0; c < PANEL; c++) {
			for (int l = 0; l < PANEL; l++)
				other[l][c] = panel[(k + c) * PANEL + l];
		}
		for (int64_t r = 0; r < rows; r++) {
			float z[PANEL];

			add_columns(other[0], PANEL, panel + (first + r) * PANEL, z);
			for (int c = 0; c < PANEL; c++)
				sum[r][c] += (double)z[c];
		}
	}
}

/* Rows of the panel of W at k, whose last PANEL rows are done: H - sum = W W_k^T */
static void factor_rows(void *data, int thread, int64_t begin, int64_t end)
{
	const struct panel_job *const j = data;
	float *const panel = panel_at(j->w, j->k), *const corner = panel + j->k * PANEL;
	double sum[FACTOR_ROWS][PANEL];

	(void)thread;
	for (int64_t first = begin, n; first < end; first += n) {
		n = end - first < FACTOR_ROWS ? end - first : FACTOR_ROWS;
		sum_panels(j->w, j->k, first, n, sum);
		for (int64_t r = 0; r < n; r++) {
			float *const row = panel + (first + r) * PANEL;

			for (int c = PANEL - 1; c >= 0; c--) {
				double t = (double)row[c] - sum[r][c];

				for (int l = c + 1; l < PANEL; l++)
					t -= (double)row[l] * (double)corner[c * PANEL + l];
				row[c] = (float)(t / (double)corner[c * PANEL + c]);
			}
		}
	}
}

/* The last PANEL rows of it, upper triangular; false: H is not positive definite */
static bool factor_corner(struct work *w, int64_t k)
{
	float *const corner = panel_at(w, k) + k * PANEL;
	double sum[FACTOR_ROWS][PANEL];

	sum_panels(w, k, k, PANEL, sum);
	for (int c = PANEL - 1; c >= 0; c--) {
		for (int r = c; r >= 0; r--) {
			double t = (double)corner[r * PANEL + c] - sum[r][c];

			for (int l = c + 1; l < PANEL; l++)
				t -= (double)corner[r * PANEL + l] * (double)corner[c * PANEL + l];
			if (r == c && !(t > 0))
				return false;
			corner[r * PANEL + c] = (float)(r == c ? sqrt(t) :
							t / (double)corner[c * PANEL + c]);
		}
	}
	return true;
}

static int not_positive(const struct work *w)
{
	return hzi_fail(w->cpu, HZ_EINVAL, "%s: opts->moments is not positive semidefinite, as "
			"means of x_j x_k are", op);
}

/*
 * w->u = panels of the moments / mean, rotated as weights are, H = R M R^T. For each CHUNK columns
 * all rows of M are rotated, of which these columns are rotated then: M is not copied as a whole.
 */
static int rotate_moments(struct work *w, const float *moments, double mean)
{
	const int64_t n = w->in;
	const hz_tensor signs = hz_tensor_1d(w->signs, HZ_U8, HZ_CPU, (n + 7) / 8);
	hz_hadamard_opts o = hzi_linear_rotation(w->h);

	o.pre = &signs;
	for (int64_t column = 0; column < n; column += CHUNK) {
		const int64_t columns = n - column < CHUNK ? n - column : CHUNK;
		hz_tensor y = hz_tensor_2d(w->decoded, HZ_F32, HZ_CPU, columns, n);

		for (int64_t first = 0; first < n; first += CHUNK) {
			const int64_t rows = n - first < CHUNK ? n - first : CHUNK;
			hz_tensor x = hz_tensor_2d(w->x, HZ_F32, HZ_CPU, rows, n);

			for (int64_t j = 0; j < n; j++) {
				for (int64_t i = first; i < first + rows; i++)
					w->x[(i - first) * n + j] = (float)((double)moments[
						i > j ? i * n + j : j * n + i] / mean);
			}
			HZ_CHECK(hz_hadamard(w->cpu, &x, &x, &o));
			for (int64_t i = 0; i < rows; i++) {
				for (int64_t c = 0; c < columns; c++)
					w->decoded[c * n + first + i] = w->x[i * n + column + c];
			}
		}
		HZ_CHECK(hz_hadamard(w->cpu, &y, &y, &o));
		for (int64_t c = 0; c < columns; c++) {
			for (int64_t r = 0; r <= column + c; r++)
				panel_at(w, column + c)[r * PANEL + c % PANEL] =
					w->decoded[c * n + r];
		}
	}
	return HZ_OK;
}

/* Finds D and U of moments, or those in w->u if NULL: W = U D^1/2, panels in reverse, in place */
static int factor_moments(struct work *w, const float *moments)
{
	const int64_t n = w->in, padded = (n + PANEL - 1) / PANEL * PANEL;
	double mean = 0;

	for (int64_t i = 0; i < n; i++) {
		float *const column = panel_at(w, i) + i % PANEL;

		for (int64_t r = 0; r <= i && moments; r++)
			column[r * PANEL] = moments[i * n + r];
		mean += (double)column[i * PANEL] / (double)n;
	}
	for (int64_t i = 0; i < n; i++) {
		float *const column = panel_at(w, i) + i % PANEL;

		for (int64_t r = 0; r <= i; r++) {
			const float f = (float)((double)column[r * PANEL] / mean);

			if (!isfinite(f))
				return hzi_fail(w->cpu, HZ_EINVAL, "%s: opts->moments[%lld][%lld] "
						"is %g, must be finite", op, (long long)i,
						(long long)r, (double)column[r * PANEL]);
			column[r * PANEL] = f;
		}
	}
	if (moments && w->h->flags & HZ_LINEAR_ROTATE)
		HZ_CHECK(rotate_moments(w, moments, mean));
	for (int64_t i = 0; i < padded; i++) {
		float *const column = panel_at(w, i) + i % PANEL;

		for (int64_t r = 0; r < padded && i >= n; r++)
			column[r * PANEL] = 0;	/* a column of the unit matrix completes a panel */
		column[i * PANEL] += i < n ? (float)DAMPING : 1;
	}
	for (int64_t k = padded - PANEL; k >= 0; k -= PANEL) {
		struct panel_job job = {w, k, PANEL};

		if (!factor_corner(w, k))
			return not_positive(w);
		for_rows(w, factor_rows, &job, k, n - k);
	}
	for (int64_t c = 0; c < n; c++) {
		float *const column = panel_at(w, c) + c % PANEL;
		const float root = column[c * PANEL];

		w->d[c] = (double)root * (double)root;
		for (int64_t r = 0; r < c; r++)
			column[r * PANEL] /= root;
		for (int64_t r = c; r < (c / PANEL + 1) * PANEL; r++)
			column[r * PANEL] = 0;
	}
	return HZ_OK;
}

/* The caller's factors, which are made of his moments first, once */
static int take_factors(struct work *w, struct hzi_linear_factors *f)
{
	int status = HZ_OK;

	w->d = f->d;
	w->u = f->u;
	if (f->state == HZI_LINEAR_NO_FACTORS)
		return not_positive(w);
	if (f->state == HZI_LINEAR_MOMENTS) {
		status = factor_moments(w, NULL);
		f->state = status ? HZI_LINEAR_NO_FACTORS : HZI_LINEAR_FACTORS;
	}
	return status;
}

/* Sets HZI_LINEAR_WIDE if rows in the whole matrix have less error by that bank. */
static int choose_bank(struct work *w, struct hzi_linear_header *h, const hz_tensor *from)
{
	const int64_t most = SAMPLE / h->in > 32 ? SAMPLE / h->in : 32;
	const int64_t each = (h->out + most - 1) / most, all = (h->out + each - 1) / each;
	double noise[2] = {0, 0};

	for (int wide = 0; wide < 2; wide++) {
		h->flags = (h->flags & ~HZI_LINEAR_WIDE) | (wide ? HZI_LINEAR_WIDE : 0);
		close_lattice(w);
		HZ_CHECK(hzi_linear_open_lattice(w->cpu, h, &w->lattice, &w->vlut));
		for (int64_t i = 0; i < all; i += CHUNK) {
			const int64_t rows = all - i < CHUNK ? all - i : CHUNK;

			HZ_CHECK(take_rows(w, from, i * each, rows, each));
			HZ_CHECK(quantize_lattice(w, rows, 1, &noise[wide]));
		}
	}
	if (noise[1] < noise[0])
		return HZ_OK;
	h->flags &= ~HZI_LINEAR_WIDE;
	close_lattice(w);
	return hzi_linear_open_lattice(w->cpu, h, &w->lattice, &w->vlut);
}

/* The scale of the whole matrix for NVFP4: the largest magnitude is 6 times 448 of it. */
static int choose_tensor_scale(struct work *w, struct hzi_linear_header *h, const hz_tensor *from)
{
	float amax = 0;

	for (int64_t first = 0; first < h->out; first += CHUNK) {
		const int64_t rows = h->out - first < CHUNK ? h->out - first : CHUNK;

		HZ_CHECK(take_rows(w, from, first, rows, 1));
		for (int64_t i = 0; i < rows * w->in; i++)
			amax = fabsf(w->x[i]) > amax ? fabsf(w->x[i]) : amax;
	}
	w->tensor_scale = amax > 2688 * FLT_MIN ? amax / 2688 : amax > 0 ? FLT_MIN : 1;
	h->tensor_scale = w->tensor_scale;
	return HZ_OK;
}

/* Takes `bytes` from the allocation: its start, while base is NULL only its size. */
static void *take(char *base, size_t *used, int64_t bytes)
{
	void *const p = base ? base + *used : NULL;

	*used += ((size_t)bytes + 63) / 64 * 64;
	return p;
}

static void lay_out(struct work *w, int64_t rows, bool s8, bool products, bool factors, char *base,
		    size_t *used)
{
	*used = 0;
	w->x = take(base, used, 4 * rows * w->in);
	w->decoded = take(base, used, 4 * rows * w->in);
	w->scale = take(base, used, 4 * rows);
	w->inverse = take(base, used, 8 * rows);
	w->signs = take(base, used, (w->in + 7) / 8);
	w->ones = take(base, used, 4 * w->in);
	if (products) {
		w->residual = take(base, used, 4 * rows * w->in);
		w->panel = take(base, used, 12 * CHUNK * PANEL);
		w->row_noise = take(base, used, 8 * CHUNK);
		w->row_power = take(base, used, 8 * CHUNK);
	}
	if (factors) {
		w->d = take(base, used, 8 * w->in);
		w->u = take(base, used, 4 * hzi_linear_panels((w->in + PANEL - 1) / PANEL));
	}
	if (s8) {
		w->codes = take(base, used, w->h->out * w->in);
		return;
	}
	w->codes = take(base, used, rows * w->code_bytes);
	w->t = take(base, used, rows * w->groups);
	w->best_codes = take(base, used, rows * w->code_bytes);
	w->best_t = take(base, used, rows * w->groups);
}

static int quantize(struct work *w, struct hzi_linear_header *h, const hz_tensor *from,
		    unsigned char *data)
{
	const bool grouped = hzi_linear_group_of(h)->group;
	unsigned char *to = data + h->codes_at;
	hz_packed packed;
	double noise = 0;
	hz_tensor b;

	if (w->lattice)
		HZ_CHECK(choose_bank(w, h, from));
	if (h->format == HZ_LINEAR_NVFP4)
		HZ_CHECK(choose_tensor_scale(w, h, from));
	for (int64_t first = 0; first < h->out; first += CHUNK) {
		const int64_t rows = h->out - first < CHUNK ? h->out - first : CHUNK;

		HZ_CHECK(take_rows(w, from, first, rows, 1));
		if (w->lattice) {
			const size_t done = (size_t)(to - data);

			HZ_CHECK(quantize_lattice(w, rows, FACTORS, &noise));
			if (w->u)
				HZ_CHECK(encode_panels(w, rows));
			HZ_CHECK(pack_lattice(w, rows, to, (size_t)h->bytes - done));
			to += (uint64_t)(CHUNK / HZI_LINEAR_PANEL) * h->codes_bytes /
			      (uint64_t)((h->out + HZI_LINEAR_PANEL - 1) / HZI_LINEAR_PANEL);
		} else if (grouped) {
			HZ_CHECK(quantize_groups(w, first, rows, data));
		} else {
			quantize_s8(w, first, rows, (int8_t *)w->codes);
		}
		if (!grouped)
			memcpy(data + h->scales_at + 4 * first, w->scale, 4 * (size_t)rows);
		if (w->u)
			count_products(w, rows);
	}
	h->error = w->power > 0 ? w->noise / w->power : 0;
	memcpy(data, h, sizeof(*h));
	if (w->lattice || grouped)
		return HZ_OK;
	b = hz_tensor_2d(w->codes, HZ_S8, HZ_CPU, h->out, h->in);
	b = hz_view_transpose(&b, 0, 1);
	return hz_qgemm_pack(w->cpu, &b, to, (size_t)h->codes_bytes, &packed);
}

int hzi_linear_encode(struct hz_context *cpu, struct hzi_linear_header *h, const hz_tensor *from,
		      const float *weight, const float *matrix, struct hzi_linear_factors *f,
		      unsigned char *data)
{
	struct work w = {.cpu = cpu, .h = h, .in = h->in};
	/* A rotation of moments takes whole chunks. */
	const int64_t rows = h->out < CHUNK && !matrix ? h->out : CHUNK;
	const bool s8 = h->format == HZ_LINEAR_S8_ROW, grouped = hzi_linear_group_of(h)->group;
	const bool products = matrix || f;
	size_t bytes;
	char *base;
	int status;

	memset(data, 0, grouped ? h->bytes : h->codes_at);
	if (!s8 && !grouped) {
		HZ_CHECK(hzi_linear_open_lattice(cpu, h, &w.lattice, &w.vlut));
		hz_lattice_get_info(w.lattice, &w.info);
		w.blocks = (h->in + w.info.dim - 1) / w.info.dim;
		w.groups = (w.blocks + w.lattice->rule.group - 1) / w.lattice->rule.group;
		w.code_bytes = w.blocks * w.info.levels *
			       (int64_t)hz_dtype_size(w.info.level_dtype);
	}
	lay_out(&w, rows, s8, products, matrix, NULL, &bytes);
	base = hzi_malloc(cpu, bytes, 64);
	if (!base) {
		close_lattice(&w);
		return hzi_fail(cpu, HZ_ENOMEM, "%s: no memory for %zu bytes", op, bytes);
	}
	lay_out(&w, rows, s8, products, matrix, base, &bytes);
	hz_hadamard_signs(w.signs, w.in, h->seed);
	for (int64_t k = 0; k < w.in; k++)
		w.ones[k] = 1;
	w.weight = weight ? weight : w.ones;
	w.rounds = products && (!grouped || hzi_linear_group_of(h)->scale_dtype == HZ_BF16);
	for (int64_t i = 0; i < CHUNK && products; i++)
		w.row_noise[i] = w.row_power[i] = 0;
	status = f ? take_factors(&w, f) : matrix ? factor_moments(&w, matrix) : HZ_OK;
	if (status == HZ_OK)
		status = quantize(&w, h, from, data);
	close_lattice(&w);
	hzi_mfree(cpu, base, bytes);
	return status;
}
