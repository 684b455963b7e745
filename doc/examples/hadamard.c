/*
 * hadamard.c - rotate, quantize to 4 bits, come back: the same on the CPU and on a GPU
 *
 * SPDX-License-Identifier: BSD-2-Clause
 *
 * Rows with a few large entries lose their small ones to a 4-bit grid. A rotation spreads the large
 * ones over the row first; undone afterwards, it leaves a smaller error.
 */
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include <hurwitz.h>

#define ROWS 64
#define N 512

static hz_context *ctx;

static void try(int status)
{
	if (status == HZ_OK)
		return;
	fprintf(stderr, "hadamard: %s\n", hz_errmsg(ctx));
	hz_close(ctx);
	exit(1);
}

/* The same shape and dtype in fresh memory of the context's device. */
static hz_tensor on_device(const hz_tensor *host)
{
	hz_tensor t = *host;

	t.device = hz_device(ctx);
	try(hz_alloc(ctx, &t.data, (size_t)hz_tensor_bytes(host), t.device));
	return t;
}

/* x through 4 bits and back into y, in blocks of that length. */
static void round_trip(const hz_tensor *x, hz_tensor *y, const hz_hadamard_opts *opts)
{
	hz_tensor codes = hz_tensor_2d(NULL, HZ_S4X2, HZ_CPU, ROWS, N / 2);
	hz_tensor scales = hz_tensor_2d(NULL, HZ_F32, HZ_CPU, ROWS, 1);
	size_t bytes;

	codes = on_device(&codes);
	scales = on_device(&scales);
	try(hz_record_begin(ctx));	/* the next two calls only tell their workspace */
	try(hz_hadamard_quantize(ctx, x, &codes, &scales, opts));
	try(hz_dequantize_hadamard(ctx, &codes, &scales, y, opts));
	try(hz_record_end(ctx, &bytes));
	try(hz_reserve(ctx, bytes));
	try(hz_hadamard_quantize(ctx, x, &codes, &scales, opts));
	try(hz_dequantize_hadamard(ctx, &codes, &scales, y, opts));
	try(hz_sync(ctx));
	try(hz_free(ctx, codes.data, codes.device));
	try(hz_free(ctx, scales.data, scales.device));
}

static double relative_error(const float *got, const float *want)
{
	double e = 0, w = 0;

	for (int i = 0; i < ROWS * N; i++) {
		e += ((double)got[i] - want[i]) * ((double)got[i] - want[i]);
		w += (double)want[i] * want[i];
	}
	return sqrt(e / w);
}

int main(void)
{
	static float a[ROWS * N], b[ROWS * N];
	uint8_t signs[(N + 7) / 8];
	hz_tensor host_a = hz_tensor_2d(a, HZ_F32, HZ_CPU, ROWS, N);
	hz_tensor host_b = hz_tensor_2d(b, HZ_F32, HZ_CPU, ROWS, N);
	hz_tensor host_signs = hz_tensor_1d(signs, HZ_U8, HZ_CPU, sizeof(signs));
	hz_hadamard_opts plain = {.block = 1}, rotated = {0};
	hz_tensor x, y, pre;
	double without, with;
	hz_info info;

	if (hz_open(&ctx, NULL) != HZ_OK) {
		fprintf(stderr, "hadamard: %s\n", hz_open_errmsg());
		return 1;
	}
	try(hz_device_info(ctx, &info));
	printf("on %s\n", info.device == HZ_CPU ? info.isa_name : info.gpu_name);

	/* A made-up activation: small values, and the same few large channels in each row. */
	for (int i = 0; i < ROWS; i++)
		for (int j = 0; j < N; j++)
			a[i * N + j] = (float)((i * 37 + j * 101) % 199 - 99) / 99 *
				       (j % 128 == 5 ? 60 : 1);

	x = on_device(&host_a);
	y = on_device(&host_b);
	pre = on_device(&host_signs);
	try(hz_hadamard_signs(signs, N, 1));
	try(hz_copy(ctx, &host_a, &x));
	try(hz_copy(ctx, &host_signs, &pre));

	/* Blocks of 1 are the identity: quantization alone. */
	round_trip(&x, &y, &plain);
	try(hz_copy(ctx, &y, &host_b));
	try(hz_sync(ctx));
	without = relative_error(b, a);

	/* Random signs, then one transform of the whole row. */
	rotated.pre = &pre;
	round_trip(&x, &y, &rotated);
	try(hz_copy(ctx, &y, &host_b));
	try(hz_sync(ctx));
	with = relative_error(b, a);

	printf("4-bit error: %.4f plain, %.4f rotated\n", without, with);
	try(hz_free(ctx, x.data, x.device));
	try(hz_free(ctx, y.data, y.device));
	try(hz_free(ctx, pre.data, pre.device));
	hz_close(ctx);
	return 0;
}
