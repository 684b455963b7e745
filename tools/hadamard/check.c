/*
 * check.c - hurwitz check of Walsh-Hadamard transforms, with and without quantization
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#include <config.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tools/core/check.h"

/* ---- The definition -------------------------------------------------------------------------- */

static bool is_power_of_two(int64_t n)
{
	return n > 0 && (n & (n - 1)) == 0;
}

void reference_free(struct reference *r)
{
	free(r->start);
	free(r->base);
	memset(r, 0, sizeof(*r));
}

bool reference_make(struct reference *r, int64_t n, const hz_hadamard_opts *opts)
{
	const int64_t length = opts->block ? opts->block : n;
	const int64_t odd = length > 0 ? length / (length & -length) : 0;
	int64_t blocks;

	memset(r, 0, sizeof(*r));
	blocks = n > 0 ? hz_hadamard_plan(n, opts, NULL, 0) : -1;
	if (blocks < 1)
		return false;
	r->n = n;
	r->blocks = blocks;
	r->transpose = (opts->flags & HZ_HADAMARD_TRANSPOSE) != 0;
	r->raw = (opts->flags & HZ_HADAMARD_RAW) != 0;
	r->scale = opts->factor != 0 ? opts->factor : 1;
	r->m = 1;
	if (opts->plan == HZ_PLAN_TRUE)
		r->m = opts->order ? opts->order : odd == 1 ? 1 : (int)(4 * odd);
	r->start = allocate((size_t)(blocks + 1) * sizeof(*r->start));
	if (r->m > 1)
		r->base = allocate((size_t)r->m * (size_t)r->m);
	if (!r->start ||
	    (r->m > 1 && (!r->base || hz_hadamard_base(opts->base, r->m, r->base) < 0))) {
		reference_free(r);
		return false;
	}
	hz_hadamard_plan(n, opts, r->start + 1, blocks);
	r->start[0] = 0;
	for (int64_t b = 0; b < blocks; b++)
		r->start[b + 1] += r->start[b];
	return true;
}

/* Entry (i, j) of B_m (x) S_2^k, +1 or -1; length = m 2^k */
static double entry(const struct reference *r, int64_t length, int64_t i, int64_t j)
{
	const int64_t power = length / r->m;
	const int parity =
		__builtin_popcountll((unsigned long long)((i % power) & (j % power))) & 1;
	const int base = r->base ? r->base[i / power * r->m + j / power] : 1;

	return parity ? -base : base;
}

double reference_at(const struct reference *r, const double *x, const double *pre,
		    const double *post, int64_t i)
{
	const double *first = r->transpose ? post : pre, *second = r->transpose ? pre : post;
	int64_t low = 0, high = r->blocks, begin, length;
	double sum = 0;

	while (high - low > 1) {
		const int64_t middle = (low + high) / 2;

		if (r->start[middle] <= i)
			low = middle;
		else
			high = middle;
	}
	begin = r->start[low];
	length = r->start[low + 1] - begin;
	for (int64_t j = 0; j < length; j++) {
		const double h = r->transpose ? entry(r, length, j, i - begin)
					      : entry(r, length, i - begin, j);

		sum += h * x[begin + j] * (first ? first[begin + j] : 1);
	}
	return sum * r->scale * (r->raw ? 1 : 1 / sqrt((double)length)) * (second ? second[i] : 1);
}

double reference_bound(const struct reference *r, int dtype)
{
	const double half_ulp = dtype == HZ_F16 ? 0x1p-11 : dtype == HZ_BF16 ? 0x1p-8 : 0x1p-24;
	int64_t longest = 1;
	int k;

	for (int64_t b = 0; b < r->blocks; b++) {
		if (r->start[b + 1] - r->start[b] > longest)
			longest = r->start[b + 1] - r->start[b];
	}
	for (k = 0; (int64_t)2 << k <= longest / r->m; k++)
		;
	return (k + (r->m > 1 ? r->m : 0) + 2) * 0x1p-24 + half_ulp;
}

/* ---- Transforms ------------------------------------------------------------------------------ */

static uint64_t seed;

/* hz_hadamard() on host data */
static int transform(hz_context *ctx, const hz_tensor *x, hz_tensor *y,
		     const hz_hadamard_opts *opts)
{
	hz_hadamard_opts o = *opts;
	hz_tensor on[4] = {{0}};
	int status = to_device(ctx, x, true, &on[0]);

	if (!status)
		status = to_device(ctx, y, false, &on[1]);
	if (!status && o.pre) {
		status = to_device(ctx, o.pre, true, &on[2]);
		o.pre = &on[2];
	}
	if (!status && o.post) {
		status = to_device(ctx, o.post, true, &on[3]);
		o.post = &on[3];
	}
	if (!status)
		status = hz_hadamard(ctx, &on[0], &on[1], &o);
	if (!status)
		status = from_device(ctx, &on[1], y);
	for (int i = 0; i < 4; i++)
		free_device(ctx, &on[i]);
	return status;
}

#define ROWS 3
#define N_MAX 65536
/* The definition takes n^2 steps: of longer rows only samples are checked. */
#define N_DENSE 2048
#define SAMPLES 16
#define COLUMNS 5

static struct {
	/* of the largest element size; 16-bit data use half of it */
	float x[ROWS * N_MAX], y[ROWS * N_MAX], z[ROWS * N_MAX], scale[ROWS * N_MAX];
	uint8_t q[ROWS * N_MAX];
	float factors[2][N_MAX];
	double row[N_MAX], pre[N_MAX], post[N_MAX];
} b[1];

/* Checks ROWS or COLUMNS items along an axis against the definition; the operator has length n. */
static bool check_transform(const struct subject *s, int64_t n, int dtype, bool columns,
			    const hz_hadamard_opts *opts)
{
	const int64_t items = columns ? COLUMNS : ROWS;
	const int64_t step = columns ? items : 1, item_step = columns ? 1 : n;
	const hz_tensor x = columns ? hz_tensor_2d(b->x, dtype, HZ_CPU, n, items)
				    : hz_tensor_2d(b->x, dtype, HZ_CPU, items, n);
	hz_hadamard_opts o = *opts;
	hz_tensor y = x, z = x;
	struct reference r;
	bool good = true;
	double bound;
	int status;

	y.data = b->y;
	z.data = b->z;
	o.axis = columns ? HZ_AXIS(0) : 0;
	if (!reference_make(&r, n, &o))
		return wrong("%s: no plan for %lld", s->name, (long long)n);
	bound = reference_bound(&r, dtype);
	fill_normal(b->x, dtype, n * items, &seed);
	status = transform(s->ctx, &x, &y, &o);
	for (int64_t item = 0; item < items && !status && good; item++) {
		double error = 0, norm = 0;

		for (int64_t i = 0; i < n; i++)
			b->row[i] = load_element(b->x, item * item_step + i * step, dtype);
		for (int64_t i = n <= N_DENSE ? 0 : item; i < n;
		     i += n <= N_DENSE ? 1 : n / SAMPLES - 1) {
			const double want = reference_at(&r, b->row, o.pre ? b->pre : NULL,
							 o.post ? b->post : NULL, i);
			const double got = load_element(b->y, item * item_step + i * step, dtype);

			error += (got - want) * (got - want);
			norm += want * want;
		}
		/* The bound is for norms: samples get a margin. */
		good = sqrt(error) <= (n <= N_DENSE ? 1 : 2) * bound * sqrt(norm);
		if (!good)
			wrong("%s: n %lld, %s: error %.3g, allowed %.3g", s->name, (long long)n,
			      hz_dtype_name(dtype), sqrt(error / norm), bound);
	}
	if (!status && good && s->plain) {
		status = transform(s->plain, &x, &z, &o);
		good = memcmp(b->y, b->z, (size_t)(n * items) * hz_dtype_size(dtype)) == 0;
		if (!good && !status)
			wrong("%s: n %lld, %s: not the bits of the plain C kernels", s->name,
			      (long long)n, hz_dtype_name(dtype));
	}
	if (status)
		wrong("%s: n %lld: %s", s->name, (long long)n, hz_errmsg(s->ctx));
	reference_free(&r);
	return good && !status;
}

static bool check_lengths(const struct subject *s, bool columns)
{
	bool good = true;

	for (int64_t n = 1; n <= (columns ? 256 : N_MAX); n *= 2) {
		progress("check: %s, hadamard, n = %lld", s->name, (long long)n);
		for (int t = 0; t < 3; t++)
			good &= check_transform(s, n, float_types[t], columns,
						&(hz_hadamard_opts){0});
	}
	return good;
}

/* Plans for lengths that are not powers of two, and every family of base matrices */
static bool check_plans(const struct subject *s)
{
	static const struct {
		int64_t n;
		hz_hadamard_opts opts;
	} cases[] = {
		{96, {.plan = HZ_PLAN_GREEDY}},
		{80, {.plan = HZ_PLAN_GREEDY}},
		{192, {.plan = HZ_PLAN_AUTO}},
		{320, {.plan = HZ_PLAN_GREEDY, .max_block = 128}},
		{96, {.plan = HZ_PLAN_UNIFORM}},
		{384, {.block = 96}},
		{512, {.block = 64, .factor = 0.75}},
		{256, {.flags = HZ_HADAMARD_RAW}},
		{96, {.plan = HZ_PLAN_TRUE}},
		{80, {.plan = HZ_PLAN_TRUE}},
		{56, {.plan = HZ_PLAN_TRUE}},
		{1152, {.plan = HZ_PLAN_TRUE}},
		{176, {.plan = HZ_PLAN_TRUE, .base = HZ_BASE_PALEY1}},
		{172, {.plan = HZ_PLAN_TRUE, .base = HZ_BASE_WILLIAMSON}},
		{160, {.plan = HZ_PLAN_TRUE, .base = HZ_BASE_DAO, .order = 40}},
		{280, {.plan = HZ_PLAN_TRUE, .base = HZ_BASE_QUIP, .order = 140}},
		{280, {.plan = HZ_PLAN_TRUE, .base = HZ_BASE_QUIP, .order = 140,
		       .flags = HZ_HADAMARD_TRANSPOSE}},
	};
	bool good = true;

	for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
		progress("check: %s, hadamard, plans", s->name);
		for (int t = 0; t < 3; t++)
			good &= check_transform(s, cases[i].n, float_types[t], false,
						&cases[i].opts);
		good &= check_transform(s, cases[i].n, HZ_F32, true, &cases[i].opts);
	}
	return good;
}

/* Packed signs before, factors after; the transpose as the inverse */
static bool check_diagonals(const struct subject *s)
{
	static const int64_t lengths[] = {7, 64, 96, 200, 1024};
	uint8_t bits[N_MAX / 8];
	bool good = true;

	for (size_t l = 0; l < sizeof(lengths) / sizeof(*lengths); l++) {
		const int64_t n = lengths[l];
		const hz_tensor pre = hz_tensor_1d(bits, HZ_U8, HZ_CPU, (n + 7) / 8);
		const hz_tensor post = hz_tensor_1d(b->factors[0], HZ_F32, HZ_CPU, n);
		hz_hadamard_opts o = {
			.plan = HZ_PLAN_GREEDY, .pre = &pre, .post = &post};

		hz_hadamard_signs(bits, n, 1000 + (uint64_t)n);
		for (int64_t i = 0; i < n; i++) {
			b->factors[0][i] = 1 + 0.25f * random_normal(&seed);
			b->pre[i] = bits[i / 8] >> i % 8 & 1 ? -1 : 1;
			b->post[i] = (double)b->factors[0][i];
		}
		for (int t = 0; t < 3; t++) {
			o.flags = 0;
			good &= check_transform(s, n, float_types[t], false, &o);
			o.flags = HZ_HADAMARD_TRANSPOSE;
			good &= check_transform(s, n, float_types[t], false, &o);
		}
		good &= check_transform(s, n, HZ_F32, true, &o);
	}
	return good;
}

/* ---- With quantization ----------------------------------------------------------------------- */

struct quantization {
	int q_dtype, scale_dtype;
	int64_t group;		/* 0: a row */
	double qmax;
};

static const struct quantization quantizations[] = {
	{HZ_S8, HZ_F32, 0, 127}, {HZ_S8, HZ_E8M0, 32, 127}, {HZ_S4X2, HZ_F32, 64, 7},
	{HZ_S4X2, HZ_E8M0, 0, 7}, {HZ_E4M3, HZ_F32, 128, 448}, {HZ_E4M3, HZ_E8M0, 32, 448},
	{HZ_E5M2, HZ_F32, 0, 57344}, {HZ_E5M2, HZ_E8M0, 64, 57344},
};

#define QUANTIZATIONS (sizeof(quantizations) / sizeof(*quantizations))

static double code_at(const void *q, int dtype, int64_t i)
{
	const int byte = ((const uint8_t *)q)[i / 2];

	if (dtype != HZ_S4X2)
		return load_element(q, i, dtype);
	return ((i % 2 ? byte >> 4 : byte & 15) ^ 8) - 8;
}

/* hz_hadamard_quantize() or hz_dequantize_hadamard() on host data */
static int quantize(hz_context *ctx, hz_tensor *x, hz_tensor *q, hz_tensor *scale,
		    const hz_hadamard_opts *o, bool back)
{
	hz_tensor on[3] = {{0}};
	int status = to_device(ctx, x, !back, &on[0]);

	if (!status)
		status = to_device(ctx, q, back, &on[1]);
	if (!status)
		status = to_device(ctx, scale, back, &on[2]);
	if (!status)
		status = back ? hz_dequantize_hadamard(ctx, &on[1], &on[2], &on[0], o)
			      : hz_hadamard_quantize(ctx, &on[0], &on[1], &on[2], o);
	if (!status && back)
		status = from_device(ctx, &on[0], x);
	if (!status && !back)
		status = from_device(ctx, &on[1], q);
	if (!status && !back)
		status = from_device(ctx, &on[2], scale);
	for (int i = 0; i < 3; i++)
		free_device(ctx, &on[i]);
	return status;
}

/* The expected scale of a group of n transformed values */
static double scale_of(const float *t, int64_t n, const struct quantization *z)
{
	float amax = 0;

	for (int64_t i = 0; i < n; i++)
		amax = fabsf(t[i]) > amax ? fabsf(t[i]) : amax;
	if (amax == 0)
		return 1;
	amax /= (float)z->qmax;
	return z->scale_dtype == HZ_F32 ? (double)amax : exp2(ceil(log2((double)amax)));
}

/* The expected code of a value, as a number: rounded to nearest even and clamped */
static double code_of(float value, const struct quantization *z)
{
	uint8_t code;

	if (z->qmax < 128) {
		const float r = rintf(value);

		return (double)(r > (float)z->qmax    ? (float)z->qmax
				: r < -(float)z->qmax ? -(float)z->qmax
						      : r);
	}
	store_element(&code, 0, z->q_dtype, (double)value);
	return load_element(&code, 0, z->q_dtype);
}

/* Checks codes and scales against their definition applied to hz_hadamard() in f32, which is
 * checked before; then dequantization against the transposed transform of q * scale. */
static bool check_quantization(const struct subject *s, const struct quantization *z, int64_t n,
			       int plan, int x_dtype)
{
	const int64_t group = z->group ? z->group : n;
	const hz_hadamard_opts o = {.plan = plan}, transposed = {.plan = plan,
								 .flags = HZ_HADAMARD_TRANSPOSE};
	hz_tensor x = hz_tensor_2d(b->x, x_dtype, HZ_CPU, ROWS, n);
	hz_tensor t = hz_tensor_2d(b->y, HZ_F32, HZ_CPU, ROWS, n);
	hz_tensor y = hz_tensor_2d(b->z, HZ_F32, HZ_CPU, ROWS, n);
	hz_tensor q =
		hz_tensor_2d(b->q, z->q_dtype, HZ_CPU, ROWS, z->q_dtype == HZ_S4X2 ? n / 2 : n);
	hz_tensor scale = hz_tensor_2d(b->scale, z->scale_dtype, HZ_CPU, ROWS, n / group);
	struct reference r;
	bool good = true;
	int status;

	fill_normal(b->x, x_dtype, ROWS * n, &seed);
	for (int64_t i = 0; i < n; i++)		/* not all zeros, which the definition treats
						 * separately */
		store_element(b->x, n + i, x_dtype, 0);
	status = transform(s->ctx, &x, &t, &o);
	if (!status)
		status = quantize(s->ctx, &x, &q, &scale, &o, false);
	for (int64_t g = 0; g < ROWS * n / group && !status && good; g++) {
		const float *values = b->y + g * group;
		const double want = scale_of(values, group, z);
		const double got = load_element(b->scale, g, z->scale_dtype);

		good = got == want;
		if (!good)
			wrong("%s: %s, n %lld: scale %lld is %.9g, must be %.9g", s->name,
			      hz_dtype_name(z->q_dtype), (long long)n, (long long)g, got, want);
		for (int64_t i = 0; i < group && good; i++) {
			const double code = code_at(b->q, z->q_dtype, g * group + i);
			const double must = code_of(values[i] / (float)want, z);

			good = code == must;
			if (!good)
				wrong("%s: %s, n %lld: code %lld is %g, must be %g", s->name,
				      hz_dtype_name(z->q_dtype), (long long)n,
				      (long long)(g * group + i), code, must);
		}
	}
	if (!status && good)
		status = quantize(s->ctx, &y, &q, &scale, &o, true);
	if (!status && good && reference_make(&r, n, &transposed)) {
		const double bound =
			reference_bound(&r, HZ_F32) + 0x1p-24; /* q * scale is rounded */

		for (int64_t row = 0; row < ROWS; row++) {
			double error = 0, norm = 0;

			for (int64_t i = 0; i < n; i++)
				b->row[i] = code_at(b->q, z->q_dtype, row * n + i) *
					    load_element(b->scale, (row * n + i) / group,
							 z->scale_dtype);
			for (int64_t i = 0; i < n; i++) {
				const double want = reference_at(&r, b->row, NULL, NULL, i);
				const double d = load_element(b->z, row * n + i, HZ_F32) - want;

				error += d * d;
				norm += want * want;
			}
			if (!(sqrt(error) <= bound * sqrt(norm)))
				good = wrong("%s: %s, n %lld: the inverse has the error %.3g, "
					     "allowed %.3g",
					     s->name, hz_dtype_name(z->q_dtype), (long long)n,
					     sqrt(error / norm), bound);
		}
		reference_free(&r);
	}
	if (status)
		wrong("%s: n %lld: %s", s->name, (long long)n, hz_errmsg(s->ctx));
	return good && !status;
}

static bool check_quantizations(const struct subject *s)
{
	bool good = true;

	for (size_t i = 0; i < QUANTIZATIONS; i++) {
		progress("check: %s, hadamard_quantize, %s", s->name,
			 hz_dtype_name(quantizations[i].q_dtype));
		good &= check_quantization(s, &quantizations[i], 128, HZ_PLAN_AUTO, HZ_F32);
		good &= check_quantization(s, &quantizations[i], 1024, HZ_PLAN_AUTO, HZ_BF16);
		good &= check_quantization(s, &quantizations[i], 384, HZ_PLAN_TRUE, HZ_F16);
	}
	return good;
}

/* B B^T = m I for every base matrix */
void check_bases(void)
{
	static int8_t base[256 * 256];
	int count = 0;
	bool good = true;

	for (int id = HZ_BASE_PALEY1; id <= HZ_BASE_QUIP; id++) {
		for (int m = 2; m <= 256; m++) {
			if (is_power_of_two(m) || hz_hadamard_base(id, m, base) < 0)
				continue;
			count++;
			for (int i = 0; i < m; i++) {
				for (int j = 0; j <= i; j++) {
					int sum = 0;

					for (int l = 0; l < m; l++)
						sum += base[i * m + l] * base[j * m + l];
					if (sum != (i == j ? m : 0)) {
						good = wrong("base %d of order %d: rows %d and %d",
							     id, m, i, j);
						i = m;
						break;
					}
				}
			}
		}
	}
	test(good && count > 0, "base matrices: the rows of all %d are orthogonal", count);
}

void check_hadamard(const struct subject *s)
{
	seed = 1;
	test(check_lengths(s, false), "%s: hadamard, rows of 1 to %d", s->name, N_MAX);
	test(check_lengths(s, true), "%s: hadamard, columns of 1 to 256", s->name);
	test(check_plans(s), "%s: hadamard, plans and base matrices", s->name);
	test(check_diagonals(s), "%s: hadamard, signs, factors and transpose", s->name);
	test(check_quantizations(s), "%s: hadamard_quantize and dequantize_hadamard", s->name);
}
