/*
 * linear.c - a linear layer in 4.5 bits a weight: quantized, saved, loaded, multiplied
 *
 * SPDX-License-Identifier: BSD-2-Clause
 *
 * The bytes of a layer are the same on every machine; a program maps the file and multiplies by
 * what is there. Here memory stands for the file.
 */
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include <hurwitz.h>

#define OUT 128
#define IN 256
#define ROWS 4

static hz_context *ctx;

static void try(int status)
{
	if (status == HZ_OK)
		return;
	fprintf(stderr, "linear: %s\n", hz_errmsg(ctx));
	hz_close(ctx);
	exit(1);
}

/* Nearly normal numbers */
static float number(uint64_t *state)
{
	float sum = 0;

	for (int i = 0; i < 8; i++) {
		*state = *state * 6364136223846793005u + 1442695040888963407u;
		sum += (float)(*state >> 40) / (1 << 24) - 0.5f;
	}
	return sum;
}

int main(void)
{
	static float w[OUT][IN], x[ROWS][IN], bias[OUT], y[ROWS][OUT];
	const hz_options options = {.device = HZ_CPU};
	const hz_linear_open_opts opts = {.format = HZ_LINEAR_E8_4_50, .flags = HZ_LINEAR_ROTATE};
	const hz_linear_opts relu = {.activation = HZ_ACT_RELU};
	const hz_tensor vw = hz_tensor_2d(w, HZ_F32, HZ_CPU, OUT, IN);
	const hz_tensor vx = hz_tensor_2d(x, HZ_F32, HZ_CPU, ROWS, IN);
	const hz_tensor vbias = hz_tensor_1d(bias, HZ_F32, HZ_CPU, OUT);
	hz_tensor vy = hz_tensor_2d(y, HZ_F32, HZ_CPU, ROWS, OUT);
	hz_linear *layer;
	hz_linear_info info;
	double error = 0, norm = 0;
	uint64_t state = 1;
	size_t bytes;
	void *file;

	if (hz_open(&ctx, &options) != HZ_OK) {
		fprintf(stderr, "linear: %s\n", hz_open_errmsg());
		return 1;
	}
	for (int i = 0; i < OUT * IN; i++)
		w[i / IN][i % IN] = number(&state);
	for (int i = 0; i < ROWS * IN; i++)
		x[i / IN][i % IN] = number(&state);
	for (int i = 0; i < OUT; i++)
		bias[i] = number(&state);

	/* Once: quantize and save. */
	try(hz_linear_open(ctx, &layer, &vw, &opts));
	try(hz_linear_save_bytes(ctx, layer, &bytes));
	try(hz_alloc(ctx, &file, bytes, HZ_CPU));
	try(hz_linear_save(ctx, layer, file, bytes));
	hz_linear_close(layer);

	/* Each time: load without a copy, and multiply. */
	try(hz_linear_load(ctx, &layer, file, bytes));
	hz_linear_get_info(layer, &info);
	try(hz_linear_forward(ctx, layer, &vx, &vbias, &vy, &relu));
	for (int i = 0; i < ROWS * OUT; i++) {
		double want = bias[i % OUT];

		for (int k = 0; k < IN; k++)
			want += (double)x[i / OUT][k] * w[i % OUT][k];
		want = want > 0 ? want : 0;
		error += (y[i / OUT][i % OUT] - want) * (y[i / OUT][i % OUT] - want);
		norm += want * want;
	}
	printf("%s: %.2f bits a weight, error %.1f dB, of y %.1f dB\n", info.format_name, info.bits,
	       info.error_db, 10 * log10(error / norm));
	hz_linear_close(layer);
	hz_free(ctx, file, HZ_CPU);
	hz_close(ctx);
	return error < 0.01 * norm ? 0 : 1;
}
