/*
 * check.c - hurwitz check: every primitive on every device and ISA here against its definition
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#include <config.h>

#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "check.h"

/* ---- Definitions ----------------------------------------------------------------------------- */

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
	r->scale = opts->scale != 0 ? opts->scale : 1;
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

/* Entry (i, j) of B_m (x) S_2^k, +1 or -1; length = m 2^k. */
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

/* ---- TAP ------------------------------------------------------------------------------------- */

static int tests, failures;

__attribute__((format(printf, 2, 3))) static void test(bool good, const char *format, ...)
{
	va_list ap;

	progress_clear();
	tests++;
	failures += !good;
	if (good)
		printf("ok %d - ", tests);
	else
		printf("%snot ok%s %d - ", style(stdout, RED), style(stdout, PLAIN), tests);
	va_start(ap, format);
	vprintf(format, ap);
	va_end(ap);
	putchar('\n');
	fflush(stdout);
}

bool wrong(const char *format, ...)
{
	va_list ap;

	progress_clear();
	printf("# ");
	va_start(ap, format);
	vprintf(format, ap);
	va_end(ap);
	putchar('\n');
	return false;
}

/* ---- The primitives -------------------------------------------------------------------------- */

/* A context to test, and for the CPU one with the lowest ISA, whose bits it must give. */
struct subject {
	hz_context *ctx, *plain;
	char name[64];
};

static const int float_types[] = {HZ_F32, HZ_F16, HZ_BF16};

static uint64_t seed;

static void fill(void *p, int dtype, int64_t count)
{
	for (int64_t i = 0; i < count; i++)
		store_element(p, i, dtype, (double)random_normal(&seed));
}

/* hz_hadamard() on host data. */
static int transform(hz_context *ctx, const hz_tensor *x, const hz_tensor *y,
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
#define N_WHOLE                                                                                    \
	2048 /* of longer rows, of which the definition takes n^2 steps, samples are computed */
#define SAMPLES 16
#define COLUMNS 5

struct buffers {
	/* as long as the largest element wants; 16-bit ones leave half of it alone */
	float x[ROWS * N_MAX], y[ROWS * N_MAX], z[ROWS * N_MAX], scale[ROWS * N_MAX];
	uint8_t q[ROWS * N_MAX];
	float factors[2][N_MAX];
	double row[N_MAX], pre[N_MAX], post[N_MAX];
};

static struct buffers *b;

/* One axis of ROWS or COLUMNS items against the definition; every operator here is n long. */
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
	o.axis = columns;
	if (!reference_make(&r, n, &o))
		return wrong("%s: no plan for %lld", s->name, (long long)n);
	bound = reference_bound(&r, dtype);
	fill(b->x, dtype, n * items);
	status = transform(s->ctx, &x, &y, &o);
	for (int64_t item = 0; item < items && !status && good; item++) {
		double error = 0, norm = 0;

		for (int64_t i = 0; i < n; i++)
			b->row[i] = load_element(b->x, item * item_step + i * step, dtype);
		for (int64_t i = n <= N_WHOLE ? 0 : item; i < n;
		     i += n <= N_WHOLE ? 1 : n / SAMPLES - 1) {
			const double want = reference_at(&r, b->row, o.pre ? b->pre : NULL,
							 o.post ? b->post : NULL, i);
			const double got = load_element(b->y, item * item_step + i * step, dtype);

			error += (got - want) * (got - want);
			norm += want * want;
		}
		/* The bound is one of norms: samples get the room that chance wants. */
		good = sqrt(error) <= (n <= N_WHOLE ? 1 : 2) * bound * sqrt(norm);
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

/* Plans of lengths that are no powers of two, and every family of base matrices. */
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
		{512, {.block = 64, .scale = 0.75}},
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

/* Packed signs before, factors after, and the transpose as the way back. */
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
			.plan = HZ_PLAN_GREEDY, .min_block = 1, .pre = &pre, .post = &post};

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

struct quantization {
	int q_dtype, scale_dtype;
	int64_t group;		/* 0: the row */
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

/* hz_hadamard_quantize() or its way back on host data. */
static int quantize(hz_context *ctx, const hz_tensor *x, const hz_tensor *q, const hz_tensor *scale,
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

/* The scale that a group of n values of the transform must have. */
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

/* The code that a value must have, as a number: to nearest even, clamped. */
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

/*
 * Codes and scales against their definition on hz_hadamard() in f32, which was checked before; then
 * the way back against the transposed transform of q * scale.
 */
static bool check_quantization(const struct subject *s, const struct quantization *z, int64_t n,
			       int plan, int x_dtype)
{
	const int64_t group = z->group ? z->group : n;
	const hz_hadamard_opts o = {.plan = plan}, transposed = {.plan = plan,
								 .flags = HZ_HADAMARD_TRANSPOSE};
	const hz_tensor x = hz_tensor_2d(b->x, x_dtype, HZ_CPU, ROWS, n);
	const hz_tensor t = hz_tensor_2d(b->y, HZ_F32, HZ_CPU, ROWS, n);
	const hz_tensor y = hz_tensor_2d(b->z, HZ_F32, HZ_CPU, ROWS, n);
	const hz_tensor q =
		hz_tensor_2d(b->q, z->q_dtype, HZ_CPU, ROWS, z->q_dtype == HZ_S4X2 ? n / 2 : n);
	const hz_tensor scale = hz_tensor_2d(b->scale, z->scale_dtype, HZ_CPU, ROWS, n / group);
	struct reference r;
	bool good = true;
	int status;

	fill(b->x, x_dtype, ROWS * n);
	for (int64_t i = 0; i < n; i++)		/* a row of zeros has a definition of its own */
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
				good = wrong("%s: %s, n %lld: the way back has the error %.3g, "
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

/* ---- Quantized multiplication ---------------------------------------------------------------- */

/* acc of row i and column j, of codes that b->q holds: A at 0, B behind it */
struct product {
	int64_t m, n, k;
	int a_dtype, b_dtype, c_dtype, a_zero, b_zero, c_zero;
	const int32_t *bias;
};

static int64_t sum_of(const struct product *p, int64_t i, int64_t j)
{
	const uint8_t *a = b->q + i * p->k, *w = b->q + p->m * p->k + j;
	int64_t sum = p->bias[j];

	for (int64_t l = 0; l < p->k; l++)
		sum += ((int)load_element(a, l, p->a_dtype) - p->a_zero) *
		       ((int)load_element(w, l * p->n, p->b_dtype) - p->b_zero);
	return sum;
}

/* floor(acc u / 2^shift + 1/2), in the range of the dtype after c_zero */
static int64_t requantized(const struct product *p, int64_t acc, int32_t u, int32_t shift)
{
	const int64_t y = ((acc * u + ((int64_t)1 << (shift - 1))) >> shift) + p->c_zero;
	const int64_t low = p->c_dtype == HZ_S8 ? -128 : 0;

	return y < low ? low : y > low + 255 ? low + 255 : y;
}

/* hz_qgemm() on host data, B packed first or not */
static int multiply(hz_context *ctx, const struct product *p, bool pack, void *c, hz_qgemm_opts *o)
{
	const hz_tensor host[4] = {
		hz_tensor_2d(b->q, p->a_dtype, HZ_CPU, p->m, p->k),
		hz_tensor_2d(b->q + p->m * p->k, p->b_dtype, HZ_CPU, p->k, p->n),
		hz_tensor_2d(c, p->c_dtype, HZ_CPU, p->m, p->n),
		hz_tensor_1d((void *)(uintptr_t)p->bias, HZ_S32, HZ_CPU, p->n),
	};
	hz_tensor on[4] = {{0}};
	hz_packed packed;
	size_t bytes;
	void *data = NULL;
	int status = HZ_OK;

	for (int i = 0; i < 4 && !status; i++)
		status = to_device(ctx, &host[i], i != 2, &on[i]);
	o->bias = &on[3];
	if (!status && pack) {
		status = hz_qgemm_pack_bytes(ctx, &on[1], &bytes);
		if (!status)
			status = hz_alloc(ctx, &data, bytes, hz_device(ctx));
		if (!status)
			status = hz_qgemm_pack(ctx, &on[1], data, bytes, &packed);
	}
	o->packed = pack ? &packed : NULL;
	if (!status)
		status = hz_qgemm_workspace(ctx, &on[0], pack ? NULL : &on[1], &on[2], o, &bytes);
	if (!status)
		status = hz_reserve(ctx, bytes);
	if (!status)
		status = hz_qgemm(ctx, &on[0], pack ? NULL : &on[1], &on[2], o);
	if (!status)
		status = from_device(ctx, &on[2], &host[2]);
	o->packed = NULL;
	o->bias = NULL;
	if (data)
		hz_free(ctx, data, hz_device(ctx));
	for (int i = 0; i < 4; i++)
		free_device(ctx, &on[i]);
	return status;
}

static bool check_product(const struct subject *s, const struct product *p, bool pack)
{
	const float scale = 3.1e-5f;
	hz_qgemm_opts o = {.a_zero = p->a_zero, .b_zero = p->b_zero, .c_zero = p->c_zero};
	int32_t u = 0, shift = 0;
	int status;

	if (p->c_dtype != HZ_S32)
		o.a_scale = (double)scale;
	hz_qgemm_multiplier((double)scale, &u, &shift);
	status = multiply(s->ctx, p, pack, b->x, &o);
	if (status)
		return wrong("%s: qgemm %lld x %lld x %lld: %s", s->name, (long long)p->m,
			     (long long)p->n, (long long)p->k, hz_errmsg(s->ctx));
	for (int64_t i = 0; i < p->m; i++) {
		for (int64_t j = 0; j < p->n; j++) {
			const int64_t acc = sum_of(p, i, j);
			const double got = load_element(b->x, i * p->n + j, p->c_dtype);
			const double want = p->c_dtype == HZ_S32 ? (double)acc :
					    p->c_dtype == HZ_F32 ? (double)((float)acc * scale) :
					    (double)requantized(p, acc, u, shift);

			if (got != want)
				return wrong(
					"%s: qgemm %s %s %s, %lld x %lld x %lld: (%lld, %lld) is "
					"%g, must be %g",
					s->name, hz_dtype_name(p->a_dtype),
					hz_dtype_name(p->b_dtype), hz_dtype_name(p->c_dtype),
					(long long)p->m, (long long)p->n, (long long)p->k,
					(long long)i, (long long)j, got, want);
		}
	}
	return true;
}

static bool check_products(const struct subject *s)
{
	static const int64_t sizes[][3] = {
		{1, 1, 1}, {3, 5, 7}, {16, 64, 64}, {33, 31, 129}, {70, 70, 300}};
	static const int c_types[] = {HZ_U8, HZ_S8, HZ_S32, HZ_F32};
	int32_t bias[80];
	bool good = true;

	for (size_t i = 0; i < sizeof(sizes) / sizeof(*sizes); i++) {
		for (int mix = 0; mix < 16; mix++) {
			struct product p = {
				.m = sizes[i][0],
				.n = sizes[i][1],
				.k = sizes[i][2],
				.a_dtype = mix & 1 ? HZ_S8 : HZ_U8,
				.b_dtype = mix & 2 ? HZ_S8 : HZ_U8,
				.c_dtype = c_types[mix / 4],
				.a_zero = 3 * mix,
				.b_zero = 100 - mix,
				.bias = bias,
			};

			progress("check: %s, qgemm", s->name);
			p.c_zero = mix / 4 < 2 ? 7 * mix : 0;
			for (int64_t l = 0; l < p.k * (p.m + p.n); l++)
				b->q[l] = (uint8_t)(random_u64(&seed) >> 56);
			for (int64_t j = 0; j < p.n; j++)
				bias[j] = (int32_t)(random_u64(&seed) >> 44) - (1 << 19);
			good &= check_product(s, &p, false);
			good &= check_product(s, &p, true);
		}
	}
	return good;
}

/* Codes of a row each with its own range, and the way back, within half a scale */
static bool check_codes(const struct subject *s, int x_dtype, int q_dtype)
{
	const int64_t m = ROWS, n = 1000;
	const hz_tensor host[5] = {
		hz_tensor_2d(b->x, x_dtype, HZ_CPU, m, n),
		hz_tensor_2d(b->scale, HZ_F32, HZ_CPU, m, 1),
		hz_tensor_2d(b->factors[0], q_dtype, HZ_CPU, m, 1),
		hz_tensor_2d(b->q, q_dtype, HZ_CPU, m, n),
		hz_tensor_2d(b->z, HZ_F32, HZ_CPU, m, n),
	};
	hz_tensor on[5] = {{0}};
	const hz_quantize_opts o = {.scales = &on[1], .zeros = &on[2]};
	size_t bytes;
	int status = HZ_OK;
	bool good = true;

	fill(b->x, x_dtype, m * n);
	for (int i = 0; i < 5 && !status; i++)
		status = to_device(s->ctx, &host[i], i == 0, &on[i]);
	if (!status)
		status = hz_choose_qparams_workspace(s->ctx, &on[0], &on[1], &on[2], 0, &bytes);
	if (!status)
		status = hz_reserve(s->ctx, bytes);
	if (!status)
		status = hz_choose_qparams(s->ctx, &on[0], &on[1], &on[2], 0);
	if (!status)
		status = hz_quantize(s->ctx, &on[0], &on[3], &o);
	if (!status)
		status = hz_dequantize(s->ctx, &on[3], &on[4], &o);
	for (int i = 1; i < 5 && !status; i++)
		status = from_device(s->ctx, &on[i], &host[i]);
	for (int i = 0; i < 5; i++)
		free_device(s->ctx, &on[i]);
	if (status)
		return wrong("%s: quantize: %s", s->name, hz_errmsg(s->ctx));
	for (int64_t i = 0; i < m * n && good; i++) {
		const double x = load_element(b->x, i, x_dtype), scale = (double)b->scale[i / n];
		const double zero = load_element(b->factors[0], i / n, q_dtype);
		const double code = load_element(b->q, i, q_dtype);
		const double low = q_dtype == HZ_S8 ? -128 : 0;
		double want = rint((double)((float)x / (float)scale)) + zero;

		want = want < low ? low : want > low + 255 ? low + 255 : want;
		good = code == want && b->z[i] == (float)scale * (float)(code - zero) &&
		       fabs((double)b->z[i] - x) <= 0.5001 * scale;
		if (!good)
			wrong("%s: quantize %s to %s: %g by %g, %g is %g and back %g, must be %g",
			      s->name, hz_dtype_name(x_dtype), hz_dtype_name(q_dtype), x, scale,
			      zero, code, (double)b->z[i], want);
	}
	return good;
}

static bool check_all_codes(const struct subject *s)
{
	bool good = true;

	for (int i = 0; i < 3; i++) {
		good &= check_codes(s, float_types[i], HZ_U8);
		good &= check_codes(s, float_types[i], HZ_S8);
	}
	return good;
}

/* A layer is quantization by rows and a product; here against the sum in double, by its error */
static bool check_linear(const struct subject *s)
{
	const int64_t m = 5, n = 40, k = 200;
	const hz_tensor host[3] = {
		hz_tensor_2d(b->x, HZ_F32, HZ_CPU, m, k), hz_tensor_2d(b->q, HZ_S8, HZ_CPU, k, n),
		hz_tensor_2d(b->y, HZ_F32, HZ_CPU, m, n),
	};
	const hz_qgemm_opts o = {.b_scale = 0.01};
	hz_tensor on[3] = {{0}};
	double error = 0, norm = 0;
	size_t bytes;
	int status = HZ_OK;

	fill(b->x, HZ_F32, m * k);
	for (int64_t l = 0; l < k * n; l++)
		b->q[l] = (uint8_t)(random_u64(&seed) >> 56);
	for (int i = 0; i < 3 && !status; i++)
		status = to_device(s->ctx, &host[i], i < 2, &on[i]);
	if (!status)
		status = hz_qlinear_workspace(s->ctx, &on[0], &on[1], &on[2], &o, &bytes);
	if (!status)
		status = hz_reserve(s->ctx, bytes);
	if (!status)
		status = hz_qlinear(s->ctx, &on[0], &on[1], &on[2], &o);
	if (!status)
		status = from_device(s->ctx, &on[2], &host[2]);
	for (int i = 0; i < 3; i++)
		free_device(s->ctx, &on[i]);
	if (status)
		return wrong("%s: qlinear: %s", s->name, hz_errmsg(s->ctx));
	for (int64_t i = 0; i < m * n; i++) {
		double want = 0;

		for (int64_t l = 0; l < k; l++)
			want += (double)b->x[i / n * k + l] *
				load_element(b->q, l * n + i % n, HZ_S8) * (double)0.01f;
		error += (want - (double)b->y[i]) * (want - (double)b->y[i]);
		norm += want * want;
	}
	/* Rounding by half a step of a range of about 6 at most: 0.0068 of normal numbers */
	if (error > 1e-4 * norm)
		return wrong("%s: qlinear: the error is %.3g of the norm", s->name,
			     sqrt(error / norm));
	return true;
}

/* ---- Quaternions ----------------------------------------------------------------------------- */

/* c += p q */
static void add_product(double *c, const double *p, const double *q)
{
	c[0] += p[0] * q[0] - p[1] * q[1] - p[2] * q[2] - p[3] * q[3];
	c[1] += p[0] * q[1] + p[1] * q[0] + p[2] * q[3] - p[3] * q[2];
	c[2] += p[0] * q[2] - p[1] * q[3] + p[2] * q[0] + p[3] * q[1];
	c[3] += p[0] * q[3] + p[1] * q[2] - p[2] * q[1] + p[3] * q[0];
}

static void load_quat(const void *p, int64_t i, int dtype, double *q)
{
	for (int c = 0; c < 4; c++)
		q[c] = load_element(p, 4 * i + c, dtype);
}

/* C = A B of m x k and k x n quaternions, or with k = 0 m x n products of elements */
static bool check_quats(const struct subject *s, int dtype, int method, int64_t m, int64_t n,
			int64_t k)
{
	const hz_tensor host[3] = {
		hz_tensor_3d(b->x, dtype, HZ_CPU, m, k ? k : n, 4),
		hz_tensor_3d(b->y, dtype, HZ_CPU, k ? k : m, n, 4),
		hz_tensor_3d(b->z, dtype, HZ_CPU, m, n, 4),
	};
	const hz_quat_gemm_opts o = {.method = method};
	const char *const op = k ? "quat_gemm" : "quat_mul";
	hz_tensor on[3] = {{0}};
	double error = 0, norm = 0;
	size_t bytes = 0;
	int status = HZ_OK;

	fill(b->x, dtype, hz_tensor_count(&host[0]));
	fill(b->y, dtype, hz_tensor_count(&host[1]));
	for (int i = 0; i < 3 && !status; i++)
		status = to_device(s->ctx, &host[i], i < 2, &on[i]);
	if (!status && k)
		status = hz_quat_gemm_workspace(s->ctx, &on[0], &on[1], &on[2], &o, &bytes);
	if (!status)
		status = hz_reserve(s->ctx, bytes);
	if (!status)
		status = k ? hz_quat_gemm(s->ctx, &on[0], &on[1], &on[2], &o)
			   : hz_quat_mul(s->ctx, &on[0], &on[1], &on[2], 0);
	if (!status)
		status = from_device(s->ctx, &on[2], &host[2]);
	for (int i = 0; i < 3; i++)
		free_device(s->ctx, &on[i]);
	if (status)
		return wrong("%s: %s: %s", s->name, op, hz_errmsg(s->ctx));
	for (int64_t i = 0; i < m * n; i++) {
		double want[4] = {0}, p[4], q[4], got[4];

		for (int64_t l = 0; l < (k ? k : 1); l++) {
			load_quat(b->x, k ? i / n * k + l : i, dtype, p);
			load_quat(b->y, k ? l * n + i % n : i, dtype, q);
			add_product(want, p, q);
		}
		load_quat(b->z, i, dtype, got);
		for (int c = 0; c < 4; c++) {
			error += (want[c] - got[c]) * (want[c] - got[c]);
			norm += want[c] * want[c];
		}
	}
	/* Half a unit of the dtype, and as much again for operands in its precision */
	if (sqrt(error) > (dtype == HZ_F32 ? 2e-6 : dtype == HZ_F16 ? 1e-3 : 4e-3) * sqrt(norm))
		return wrong("%s: %s %s: the error is %.3g of the norm", s->name, op,
			     hz_dtype_name(dtype), sqrt(error / norm));
	return true;
}

static bool check_all_quats(const struct subject *s, int method)
{
	static const int64_t sizes[][3] = {{1, 1, 1}, {3, 5, 7}, {33, 31, 65}, {64, 64, 128}};
	bool good = true;

	for (size_t i = 0; i < 4; i++) {
		for (int t = 0; t < 3; t++) {
			progress("check: %s, quaternions", s->name);
			good &= check_quats(s, float_types[t], method, sizes[i][0], sizes[i][1],
					    method ? sizes[i][2] : 0);
		}
	}
	return good;
}

/* ---- The run --------------------------------------------------------------------------------- */

static void check_subject(const struct subject *s)
{
	seed = 1;
	test(check_lengths(s, false), "%s: hadamard, rows of 1 to %d", s->name, N_MAX);
	test(check_lengths(s, true), "%s: hadamard, columns of 1 to 256", s->name);
	test(check_plans(s), "%s: hadamard, plans and base matrices", s->name);
	test(check_diagonals(s), "%s: hadamard, signs, factors and transpose", s->name);
	test(check_quantizations(s), "%s: hadamard_quantize and dequantize_hadamard", s->name);
	test(check_all_codes(s), "%s: choose_qparams, quantize and dequantize", s->name);
	test(check_products(s), "%s: qgemm, all mixes of types, B packed and not", s->name);
	test(check_linear(s), "%s: qlinear", s->name);
	test(check_all_quats(s, 0), "%s: quat_mul", s->name);
	test(check_all_quats(s, HZ_QUAT_DIRECT), "%s: quat_gemm, direct", s->name);
	test(check_all_quats(s, HZ_QUAT_FAST), "%s: quat_gemm, fast", s->name);
	test(check_lattices(s->ctx, s->name), "%s: lattice_encode and lattice_decode", s->name);
	test(check_vluts(s->ctx, s->name), "%s: vlut_gemv, all routes", s->name);
	test(check_mhc(s->ctx, s->name), "%s: mhc_pre, mhc_post and their gradients", s->name);
}

/* B B^T = m I for every base matrix there is. */
static void check_bases(void)
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

static int check_cpu(void)
{
	struct subject s = {0};
	hz_context *plain = NULL;
	int last = 0, status = 0;

	for (int isa = HZ_ISA_C; isa <= HZ_ISA_DOTPROD && !status; isa++) {
		hz_info info;

		/* A level that this machine lacks gives the one below, which was tested. */
		if (strcmp(hz_isa_name(isa), "?") == 0)
			continue;
		status = open_context(&s.ctx, HZ_CPU, 0, isa);
		if (status)
			break;
		hz_device_info(s.ctx, &info);
		s.plain = plain;
		snprintf(s.name, sizeof(s.name), "cpu %s", info.isa_name);
		if (info.isa > last) {
			check_subject(&s);
			last = info.isa;
		}
		if (plain)
			hz_close(s.ctx);
		else
			plain = s.ctx;
	}
	hz_close(plain);
	return status;
}

/* A GPU that is not there is no failure unless it was asked for. */
static int check_gpu(int32_t device)
{
	const hz_options o = {.device = device == HZ_AUTO ? HZ_CUDA : device};
	struct subject s = {.name = "cuda"};
	int status = hz_open(&s.ctx, &o);

	if (status && device != HZ_AUTO)
		return complain(exit_status(status), "%s", hz_open_errmsg());
	if (status) {
		progress_clear();
		printf("ok %d # SKIP cuda: %s\n", ++tests, hz_open_errmsg());
		return 0;
	}
	check_subject(&s);
	hz_close(s.ctx);
	return 0;
}

static void help(void)
{
	printf("Usage: hurwitz check [-d cpu|cuda|auto]\n"
	       "Test the library on this machine: every primitive, on every instruction set\n"
	       "and device here, against its definition in double precision, and the bits of\n"
	       "every instruction set against those of plain C. Prints TAP.\n"
	       "\n"
	       "  -d, --device DEVICE  cpu, cuda, cuda:N, or auto, the default: all there are\n"
	       "  -h, --help           this\n"
	       "\n"
	       "Exit status: 0 if all tests pass, 1 if not, 2 for bad usage.\n");
}

int verb_check(int argc, char **argv)
{
	static const struct option options[] = {
		{"device", required_argument, NULL, 'd'}, {"help", no_argument, NULL, 'h'},
		{NULL, 0, NULL, 0},
	};
	int32_t device = HZ_AUTO;
	int c, status = 0;

	while ((c = next_option(argc, argv, "check", "d:h", options)) != -1) {
		switch (c) {
		case 'd':
			if (parse_device("check", optarg, &device))
				return EXIT_BAD;
			break;
		case 'h':
			help();
			return EXIT_SUCCESS;
		default:
			return EXIT_BAD;
		}
	}
	if (optind < argc)
		return complain(EXIT_BAD, "check: it takes no argument such as '%s'", argv[optind]);
	b = allocate(sizeof(*b));
	if (!b)
		return complain(EXIT_FAILURE, "check: there is not enough memory");
	check_bases();
	if (device == HZ_AUTO || device == HZ_CPU)
		status = check_cpu();
	if (!status && device != HZ_CPU)
		status = check_gpu(device);
	free(b);
	printf("1..%d\n", tests);
	return status ? status : failures ? EXIT_FAILURE : EXIT_SUCCESS;
}
