/*
 * overflow.c - Walsh-Hadamard transforms on the CPU whose intermediate sums overflow
 *
 * SPDX-License-Identifier: BSD-2-Clause
 *
 * A result may be finite although sums on the way to it are not: [2e38, 2e38] is [2.8e38, 0]. Sums
 * that overflow set a flag of the processor, so that other transforms lose no time to a check. A
 * transform with Inf or NaN in its result, but not in its input, is then made again by scalar code,
 * from its input times 2^-e, and its result is multiplied by 2^e. That is exact, save for inputs
 * near the smallest numbers.
 *
 * Where y is x, blocks and passes look for overflows before anything is overwritten that is needed
 * to begin again. Transforms in registers: before each block is stored, by the flag or, on CPUs
 * that read it slowly, by the magnitudes that were loaded (HZI_GUARD_RANGE). Those with a scratch:
 * before their last pass, when x is still there, and after it, when its operand is. Other rows of
 * f32: before each block is stored, unless magnitudes show that none overflows; then all of the
 * row is multiplied by 2^-e, and passes go on where they were. Where sub-blocks of the longest
 * rows take two passes, the first one looks at the exponents that it will load, and so does the
 * first of the two steps of columns, which the scalar code resumes. Before rows that threads
 * share, all exponents are read.
 */
#include <config.h>

#include <math.h>

#include "cpu/hadamard/hadamard.h"

int hzi_hadamard_growth(int m, int k)
{
	int bits = k;

	for (; m > 1; m = (m + 1) / 2)
		bits++;
	return bits;
}

static float load(const struct hzi_scaled *a, int64_t i)
{
	float v;

	a->kern->head(&(struct hzi_head){
		.x = a->x + i * a->x_step * dtype_bytes(a->x_dtype),
		.y = &v,
		.rows = 1,
		.count = 1,
		.x_dtype = a->x_dtype,
		.y_dtype = HZ_F32,
	});
	return v;
}

static void store(const struct hzi_scaled *a, int64_t i, float v)
{
	a->kern->head(&(struct hzi_head){
		.x = &v,
		.y = a->y + i * a->y_step * dtype_bytes(a->y_dtype),
		.rows = 1,
		.count = 1,
		.x_dtype = HZ_F32,
		.y_dtype = a->y_dtype,
	});
}

/* An element of the input, exact */
static double product(const struct hzi_scaled *a, int64_t i)
{
	return (double)load(a, i) * (a->pre && i >= a->done ? (double)a->pre[i] : 1);
}

static bool is_result_finite(const struct hzi_scaled *a, int64_t length)
{
	struct hzi_scaled y = *a;

	y.x = a->y;
	y.x_dtype = a->y_dtype;
	y.x_step = a->y_step;
	for (int64_t i = 0; i < length; i++) {
		if (!isfinite(load(&y, i)))
			return false;
	}
	return true;
}

/* Multiplies the m parts of v by the base matrix. */
static void multiply_base(const struct hzi_scaled *a, float *v, int64_t step)
{
	float column[HZI_BASE_MAX];

	for (int64_t l = 0; l < (int64_t)1 << a->k; l++) {
		for (int j = 0; j < a->m; j++)
			column[j] = v[(((int64_t)j << a->k) + l) * step];
		for (int i = 0; i < a->m; i++) {
			const float *sign = a->sign + (int64_t)(i / 4) * a->m * 4 + i % 4;
			float sum = -0.0f;

			for (int j = 0; j < a->m; j++)
				sum = sign[4 * j] < 0 ? sum - column[j] : sum + column[j];
			v[(((int64_t)i << a->k) + l) * step] = sum;
		}
	}
}

void hzi_hadamard_scaled(const struct hzi_scaled *a)
{
	const int64_t length = (int64_t)a->m << a->k;
	float small[HZI_HEAD_MOST], *v = a->y_dtype == HZ_F32 ? (float *)a->y :
				  length <= HZI_HEAD_MOST ? small : a->scratch;
	const int64_t step = a->y_dtype == HZ_F32 ? a->y_step : 1;
	double most = 0;
	int e = 0;

	if (!a->fresh && is_result_finite(a, length))
		return;
	for (int64_t i = 0; i < length; i++) {
		const double x = fabs(product(a, i));

		if (!isfinite(x)) {
			most = 0;
			break;
		}
		most = x > most ? x : most;
	}
	if (most > 0) {
		const int exponent = ilogb(most) + hzi_hadamard_growth(a->m, a->k) + 1 +
				     (fabsf(a->scale) > 1 ? ilogbf(a->scale) + 1 : 0);

		e = exponent > 127 ? exponent - 127 : 0;
	}
	if (e == 0 && !a->fresh)
		return;
	for (int64_t i = 0; i < length; i++)
		v[i * step] = (float)ldexp(product(a, i), -e);
	for (int l = 0; l < a->k; l++) {
		const int64_t h = (int64_t)1 << l;

		for (int64_t i = 0; i < length; i++) {
			if (!(i & h) && (i >= a->done || l >= a->done_bits)) {
				float *p = v + i * step, *q = p + h * step;
				const float s = *p, t = *q;

				*p = s + t;
				*q = s - t;
			}
		}
	}
	if (a->m > 1)
		multiply_base(a, v, step);
	for (int64_t i = 0; i < length; i++) {
		float r = v[i * step] * a->scale;

		if (a->post)
			r *= a->post[i * a->post_step];
		store(a, i, (float)ldexp((double)r, e));
	}
}
