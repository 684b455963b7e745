/*
 * check.c - hurwitz check of quantization and of integer matrix products
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#include <config.h>

#include <math.h>
#include <stdlib.h>

#include "tools/core/check.h"

static uint64_t seed;

#define ROWS 3
#define LENGTH 1000	/* of quantized rows */

static struct {
	float x[5000], y[200], z[ROWS * LENGTH], scale[ROWS];
	uint8_t zero[ROWS], q[42000], group_scale[ROWS * LENGTH / 8];
} b[1];

/* The accumulator of row i and column j, from codes in b->q: A first, B after it */
struct product {
	int64_t m, n, k;
	int a_dtype, b_dtype, c_dtype, a_zero, b_zero, c_zero;
	const int32_t *bias;
	int32_t requant;
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

/* floor(acc u / 2^shift + 1/2), or rne(acc sigma) in f32, + c_zero, clamped to the dtype */
static int64_t requantized(const struct product *p, int64_t acc, float sigma)
{
	const int64_t low = p->c_dtype == HZ_S8 ? -128 : 0;
	int32_t u, shift;
	int64_t y = 0;

	if (p->requant == HZ_REQUANT_FLOAT)
		y = llrintf((float)acc * sigma);
	else if (hz_qgemm_multiplier((double)sigma, &u, &shift) == HZ_OK)
		y = (acc * u + ((int64_t)1 << (shift - 1))) >> shift;
	y += p->c_zero;
	return y < low ? low : y > low + 255 ? low + 255 : y;
}

/* hz_qgemm() on host data, B packed first or not */
static int multiply(hz_context *ctx, const struct product *p, bool pack, void *c, hz_qgemm_opts *o)
{
	hz_tensor host[4] = {
		hz_tensor_2d(b->q, p->a_dtype, HZ_CPU, p->m, p->k),
		hz_tensor_2d(b->q + p->m * p->k, p->b_dtype, HZ_CPU, p->k, p->n),
		hz_tensor_2d(c, p->c_dtype, HZ_CPU, p->m, p->n),
		hz_tensor_1d((void *)(uintptr_t)p->bias, HZ_S32, HZ_CPU, p->n),
	};
	hz_tensor on[4] = {{0}};
	hz_packed packed = {0};
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
		status = WITH_WORKSPACE(ctx, hz_qgemm(ctx, &on[0], pack ? NULL : &on[1], &on[2],
						      o));
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
	hz_qgemm_opts o = {.a_zero = p->a_zero, .b_zero = p->b_zero, .c_zero = p->c_zero,
			   .requant = p->requant};
	int status;

	if (p->c_dtype != HZ_S32)
		o.a_scale = (double)scale;
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
					    (double)requantized(p, acc, scale);

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
			p.requant = HZ_REQUANT_FLOAT;
			if (mix / 4 < 2)
				good &= check_product(s, &p, false);
		}
	}
	return good;
}

/* Codes of rows with a range each, and their dequantization: within half a scale */
static bool check_codes(const struct subject *s, int x_dtype, int q_dtype)
{
	const int64_t m = ROWS, n = LENGTH;
	hz_tensor host[5] = {
		hz_tensor_2d(b->x, x_dtype, HZ_CPU, m, n),
		hz_tensor_2d(b->scale, HZ_F32, HZ_CPU, m, 1),
		hz_tensor_2d(b->zero, q_dtype, HZ_CPU, m, 1),
		hz_tensor_2d(b->q, q_dtype, HZ_CPU, m, n),
		hz_tensor_2d(b->z, HZ_F32, HZ_CPU, m, n),
	};
	hz_tensor on[5] = {{0}};
	const hz_quantize_opts o = {.scales = &on[1], .zeros = &on[2]};
	int status = HZ_OK;
	bool good = true;

	fill_normal(b->x, x_dtype, m * n, &seed);
	for (int i = 0; i < 5 && !status; i++)
		status = to_device(s->ctx, &host[i], i == 0, &on[i]);
	if (!status)
		status = WITH_WORKSPACE(s->ctx, hz_choose_qparams(s->ctx, &on[0], &on[1], &on[2],
								  0));
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
		const double zero = load_element(b->zero, i / n, q_dtype);
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

/* Small floats with a scale per group, and back: within half the distance of the largest codes */
static bool check_groups(const struct subject *s, int q_dtype, int scale_dtype, int64_t group)
{
	const int64_t m = ROWS, n = LENGTH, groups = (n + group - 1) / group;
	const double half = q_dtype == HZ_E2M1X2 ? 1 : 16;
	hz_tensor host[5] = {
		hz_tensor_2d(b->x, HZ_F32, HZ_CPU, m, n),
		hz_tensor_2d(b->group_scale, scale_dtype, HZ_CPU, m, groups),
		hz_tensor_1d(b->scale, HZ_F32, HZ_CPU, 1),
		hz_tensor_2d(b->q, q_dtype, HZ_CPU, m, q_dtype == HZ_E2M1X2 ? n / 2 : n),
		hz_tensor_2d(b->z, HZ_F32, HZ_CPU, m, n),
	};
	const bool tensor = scale_dtype == HZ_E4M3;
	hz_tensor on[5] = {{0}};
	const hz_quantize_opts o = {.new_scales = &on[1], .group = group,
				    .new_tensor_scale = tensor ? &on[2] : NULL};
	const hz_quantize_opts back = {.scales = &on[1], .group = group,
				       .tensor_scale = tensor ? &on[2] : NULL};
	int status = HZ_OK;

	fill_normal(b->x, HZ_F32, m * n, &seed);
	for (int i = 0; i < 5 && !status; i++)
		status = to_device(s->ctx, &host[i], i == 0, &on[i]);
	if (!status)
		status = WITH_WORKSPACE(s->ctx, hz_quantize(s->ctx, &on[0], &on[3], &o));
	if (!status)
		status = hz_dequantize(s->ctx, &on[3], &on[4], &back);
	for (int i = 1; i < 5 && !status; i++)
		status = from_device(s->ctx, &on[i], &host[i]);
	for (int i = 0; i < 5; i++)
		free_device(s->ctx, &on[i]);
	if (status)
		return wrong("%s: quantize: %s", s->name, hz_errmsg(s->ctx));
	for (int64_t i = 0; i < m * n; i++) {
		const double scale = load_element(b->group_scale, i / n * groups + i % n / group,
						  scale_dtype) * (tensor ? (double)b->scale[0] : 1);
		const double x = (double)b->x[i], y = (double)b->z[i];

		/* A scale of e4m3 may be rounded down by 1/16, from which 6 is as far as 0.4. */
		if (fabs(y - x) > 1.001 * half * scale)
			return wrong("%s: quantize to %s with scales of %s: %g by %g is %g again",
				     s->name, hz_dtype_name(q_dtype), hz_dtype_name(scale_dtype), x,
				     scale, y);
	}
	return true;
}

static bool check_formats(const struct subject *s)
{
	return check_groups(s, HZ_E2M1X2, HZ_E8M0, 32) && check_groups(s, HZ_E4M3, HZ_E8M0, 32) &&
	       check_groups(s, HZ_E2M1X2, HZ_E4M3, 16);
}

/* A linear layer against the sum in double: the quantization error */
static bool check_linear(const struct subject *s)
{
	const int64_t m = 5, n = 40, k = 200;
	hz_tensor host[3] = {
		hz_tensor_2d(b->x, HZ_F32, HZ_CPU, m, k), hz_tensor_2d(b->q, HZ_S8, HZ_CPU, k, n),
		hz_tensor_2d(b->y, HZ_F32, HZ_CPU, m, n),
	};
	const hz_qgemm_opts o = {.b_scale = 0.01};
	hz_tensor on[3] = {{0}};
	double error = 0, norm = 0;
	int status = HZ_OK;

	fill_normal(b->x, HZ_F32, m * k, &seed);
	for (int64_t l = 0; l < k * n; l++)
		b->q[l] = (uint8_t)(random_u64(&seed) >> 56);
	for (int i = 0; i < 3 && !status; i++)
		status = to_device(s->ctx, &host[i], i < 2, &on[i]);
	if (!status)
		status = WITH_WORKSPACE(s->ctx, hz_qlinear(s->ctx, &on[0], &on[1], &on[2], &o));
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
	/* Rounding by half a step of a range of at most about 6: 0.0068 for normal numbers */
	if (error > 1e-4 * norm)
		return wrong("%s: qlinear: the error is %.3g of the norm", s->name,
			     sqrt(error / norm));
	return true;
}

/* x by 4-bit weights in groups of 32, as floats and as codes, against the sum in double */
static bool check_group_layer(const struct subject *s, int x_dtype)
{
	const int64_t m = 5, n = 40, k = 192, group = 32;
	hz_tensor host[4] = {
		hz_tensor_2d(b->x, HZ_F32, HZ_CPU, m, k), hz_tensor_2d(b->q, HZ_S4X2, HZ_CPU, n, k / 2),
		hz_tensor_2d(b->z, HZ_F32, HZ_CPU, n, k / group), hz_tensor_2d(b->y, HZ_F32, HZ_CPU, m, n),
	};
	const hz_qlinear_group_opts o = {.x_dtype = x_dtype, .x_group = x_dtype ? 32 : 0};
	hz_tensor on[4] = {{0}}, w, scales;
	double error = 0, norm = 0;
	int status = HZ_OK;

	fill_normal(b->x, HZ_F32, m * k, &seed);
	for (int64_t i = 0; i < n * k / 2; i++)
		b->q[i] = (uint8_t)(random_u64(&seed) >> 56);
	for (int64_t i = 0; i < n * k / group; i++)
		b->z[i] = 0.01f + (float)(random_u64(&seed) >> 40) * 0x1p-30f;
	for (int i = 0; i < 4 && !status; i++)
		status = to_device(s->ctx, &host[i], i < 3, &on[i]);
	w = hz_view_transpose(&on[1], 0, 1);
	scales = hz_view_transpose(&on[2], 0, 1);
	if (!status)
		status = WITH_WORKSPACE(s->ctx, hz_qlinear_group(s->ctx, &on[0], &w, &scales, &on[3],
								 &o));
	if (!status)
		status = from_device(s->ctx, &on[3], &host[3]);
	for (int i = 0; i < 4; i++)
		free_device(s->ctx, &on[i]);
	if (status)
		return wrong("%s: qlinear_group: %s", s->name, hz_errmsg(s->ctx));
	for (int64_t i = 0; i < m * n; i++) {
		const int64_t j = i % n;
		double want = 0;

		for (int64_t l = 0; l < k; l++) {
			const int code = b->q[(j * k + l) / 2] >> l % 2 * 4 & 15;

			want += (double)b->x[i / n * k + l] * ((code ^ 8) - 8) *
				(double)b->z[j * (k / group) + l / group];
		}
		error += (want - (double)b->y[i]) * (want - (double)b->y[i]);
		norm += want * want;
	}
	/* As in check_linear(), but for ranges of 32 values, of at most about 3 */
	if (error > (x_dtype ? 1e-4 : 1e-10) * norm)
		return wrong("%s: qlinear_group: the error is %.3g of the norm", s->name,
			     sqrt(error / norm));
	return true;
}

void check_qgemm(const struct subject *s)
{
	seed = 1;
	test(check_all_codes(s), "%s: choose_qparams, quantize and dequantize", s->name);
	test(check_formats(s), "%s: quantize and dequantize, MXFP4, MXFP8 and NVFP4", s->name);
	test(check_products(s), "%s: qgemm, all mixes of types, B packed and not", s->name);
	test(check_linear(s), "%s: qlinear", s->name);
	test(check_group_layer(s, 0) && check_group_layer(s, HZ_S8), "%s: qlinear_group", s->name);
}
