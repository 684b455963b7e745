/*
 * qgemm.c - a layer in 8-bit integers: quantize, pack, multiply, and how far from floats it is
 *
 * SPDX-License-Identifier: BSD-2-Clause
 *
 * y = x w by integers alone, from x in u8 and w in s8 to y in u8; then by hz_qlinear(), which takes
 * x and gives y as floats.
 */
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include <hurwitz.h>

#define M 32
#define N 48
#define K 256

static hz_context *ctx;

static void try(int status)
{
	if (status == HZ_OK)
		return;
	fprintf(stderr, "qgemm: %s\n", hz_errmsg(ctx));
	hz_close(ctx);
	exit(1);
}

/* Scale and zero of all elements of host data, the largest and smallest being what u8 holds */
static void params(const float *x, int64_t count, float *scale, int *zero)
{
	float lo = 0, hi = 0;

	for (int64_t i = 0; i < count; i++) {
		lo = fminf(lo, x[i]);
		hi = fmaxf(hi, x[i]);
	}
	*scale = (hi - lo) / 255;
	*zero = (int)lrintf(-lo / *scale);
}

static double relative_error(const float *got, const float *want)
{
	double e = 0, w = 0;

	for (int i = 0; i < M * N; i++) {
		e += ((double)got[i] - want[i]) * ((double)got[i] - want[i]);
		w += (double)want[i] * want[i];
	}
	return sqrt(e / w);
}

int main(void)
{
	static float x[M * K], w[K * N], y[M * N], z[M * N];
	static uint8_t a[M * K], c[M * N];
	static int8_t b[K * N];
	const hz_options options = {.device = HZ_CPU};
	hz_tensor tx = hz_tensor_2d(x, HZ_F32, HZ_CPU, M, K);
	hz_tensor ta = hz_tensor_2d(a, HZ_U8, HZ_CPU, M, K);
	hz_tensor tw = hz_tensor_2d(w, HZ_F32, HZ_CPU, K, N);
	hz_tensor tb = hz_tensor_2d(b, HZ_S8, HZ_CPU, K, N);
	hz_tensor tc = hz_tensor_2d(c, HZ_U8, HZ_CPU, M, N);
	hz_tensor tz = hz_tensor_2d(z, HZ_F32, HZ_CPU, M, N);
	float x_scale, y_scale, w_scale[N];
	hz_tensor scales = hz_tensor_1d(w_scale, HZ_F32, HZ_CPU, N);
	hz_quantize_opts by_columns = {.scales = &scales};
	hz_quantize_opts of_x = {0}, of_y = {0};
	hz_qgemm_opts product = {0}, layer = {0};
	hz_packed packed;
	void *memory;
	size_t bytes;
	int zero;

	if (hz_open(&ctx, &options) != HZ_OK) {
		fprintf(stderr, "qgemm: %s\n", hz_open_errmsg());
		return 1;
	}
	for (int i = 0; i < M * K; i++)
		x[i] = (float)((i * 37 + i / K * 11) % 199 - 60) / 99;
	for (int i = 0; i < K * N; i++)
		w[i] = (float)((i * 61 + i / N * 17) % 151 - 75) / 500;
	for (int i = 0; i < M; i++) {
		for (int j = 0; j < N; j++) {
			for (int k = 0; k < K; k++)
				y[i * N + j] += x[i * K + k] * w[k * N + j];
		}
	}

	/* Weights once: a scale for each column (all zero points are 0), codes, packed */
	try(hz_choose_qparams(ctx, &tw, &scales, NULL, HZ_QPARAMS_SYMMETRIC));
	try(hz_quantize(ctx, &tw, &tb, &by_columns));
	try(hz_qgemm_pack_bytes(ctx, &tb, &bytes));
	try(hz_alloc(ctx, &memory, bytes, HZ_CPU));
	try(hz_qgemm_pack(ctx, &tb, memory, bytes, &packed));

	/* Integers alone: scales and zero points of x and y are known */
	params(x, M * K, &x_scale, &zero);
	of_x.scale = product.a_scale = x_scale;
	of_x.zero = product.a_zero = zero;
	params(y, M * N, &y_scale, &zero);
	of_y.scale = product.c_scale = y_scale;
	of_y.zero = product.c_zero = zero;
	product.b_scales = &scales;
	product.packed = &packed;
	try(hz_quantize(ctx, &tx, &ta, &of_x));
	try(hz_qgemm(ctx, &ta, NULL, &tc, &product));
	try(hz_dequantize(ctx, &tc, &tz, &of_y));
	printf("u8 x s8 to u8: error %.4f\n", relative_error(z, y));

	/* Floats outside: each row of x is quantized by its own range */
	layer.b_scales = &scales;
	layer.packed = &packed;
	try(hz_qlinear(ctx, &tx, NULL, &tz, &layer));
	printf("qlinear: error %.4f\n", relative_error(z, y));
	try(hz_free(ctx, memory, HZ_CPU));
	hz_close(ctx);
	return 0;
}
