/*
 * linear.c - hurwitz demo linear: the weights of a transformer layer in fewer bits
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#include <config.h>

#include <math.h>
#include <stdlib.h>

#include "cpu/core/cpu.h"
#include "cpu/peak/kern.h"
#include "tools/demo/demo.h"

#define SIZE 4096
#define QUICK_SIZE 512
#define TOKENS 16
#define PLAIN_ROWS 64		/* are quantized without a rotation, too */
#define SLOW_SHARE 4		/* e8-2.25 is slow to quantize: n / SLOW_SHARE rows */
#define OUTLIERS 64		/* about one in so many features of x, and of W, is large, */
#define OUTLIER 8		/* by this factor */
#define SEED 20261
#define AT_LEAST 0.05		/* seconds of a measurement */

static const int formats[] = {
	HZ_LINEAR_S8_ROW, HZ_LINEAR_S4_G32, HZ_LINEAR_MXFP4, HZ_LINEAR_E8_4_50_FAST,
	HZ_LINEAR_E8_4_50, HZ_LINEAR_E8_4_25, HZ_LINEAR_E8_3_25, HZ_LINEAR_E8_2_25,
};

struct layer {
	hz_context *ctx;
	int64_t n;
	float *w, *x, *y;		/* [n, n], [TOKENS, n] and, in f32, x W^T */
	hz_tensor on_w, on_x, on_y;	/* on the device */
	hz_tensor spare;		/* on a GPU, for half of W */
	hz_linear *linear;
};

static void fill(struct layer *l)
{
	uint64_t seed = SEED;

	for (int64_t k = 0; k < l->n; k++) {
		const bool large_w = random_u64(&seed) % OUTLIERS == 0;
		const bool large_x = random_u64(&seed) % OUTLIERS == 0;

		for (int64_t o = 0; o < l->n; o++)
			l->w[o * l->n + k] = random_normal(&seed) * (large_w ? OUTLIER : 1) / 50;
		for (int64_t t = 0; t < TOKENS; t++)
			l->x[t * l->n + k] = random_normal(&seed) * (large_x ? OUTLIER : 1);
	}
	for (int64_t t = 0; t < TOKENS; t++) {
		for (int64_t o = 0; o < l->n; o++) {
			const float *x = l->x + t * l->n, *w = l->w + o * l->n;
			double sum = 0;

			for (int64_t k = 0; k < l->n; k++)
				sum += (double)x[k] * (double)w[k];
			l->y[t * l->n + o] = (float)sum;
		}
	}
}

/* ---- f32: the reading of W ------------------------------------------------------------------- */

static volatile float read_sum;

static void read_rows(void *job, int thread, int64_t begin, int64_t end)
{
	const struct layer *const l = job;

	(void)thread;
	read_sum = hzi_peak_kern[l->ctx->level].read(l->w + begin * l->n, (end - begin) * l->n);
}

/* On a GPU a copy of half of W, which moves as many bytes */
static int read_weights(void *data)
{
	struct layer *const l = data;
	const hz_tensor half = hz_view_slice(&l->on_w, 0, 0, l->n / 2);

	if (hz_device(l->ctx) != HZ_CPU)
		return hz_copy(l->ctx, &half, &l->spare);
	hzi_parallel(l->ctx, l->ctx->threads, read_rows, l, l->n);
	return HZ_OK;
}

/* ---- Quantized ------------------------------------------------------------------------------- */

static int one_token(void *data)
{
	struct layer *const l = data;
	const hz_tensor x = hz_view_slice(&l->on_x, 0, 0, 1);
	hz_tensor y = hz_view_slice(&l->on_y, 0, 0, 1);

	hz_linear_info info;

	hz_linear_get_info(l->linear, &info);
	y = hz_view_slice(&y, 1, 0, info.out);
	return hz_linear_forward(l->ctx, l->linear, &x, NULL, &y, NULL);
}

/* The error of the first rows of y against f32, in dB */
static int output_error(struct layer *l, int64_t rows, double *error)
{
	float *const y = allocate((size_t)(TOKENS * rows) * sizeof(float));
	hz_tensor host = hz_tensor_2d(y, HZ_F32, HZ_CPU, TOKENS, rows);
	hz_tensor on_y = hz_view_slice(&l->on_y, 1, 0, rows);
	double sum = 0, power = 0;
	int status = HZ_ENOMEM;

	if (y)
		status = WITH_WORKSPACE(l->ctx, hz_linear_forward(l->ctx, l->linear, &l->on_x, NULL,
								  &on_y, NULL));
	if (!status)
		status = hz_copy(l->ctx, &on_y, &host);
	if (!status)
		status = hz_sync(l->ctx);
	for (int64_t i = 0; i < TOKENS * rows && !status; i++) {
		const double wanted = (double)l->y[i / rows * l->n + i % rows];

		sum += pow((double)y[i] - wanted, 2);
		power += wanted * wanted;
	}
	*error = 10 * log10(sum / power);
	free(y);
	return status;
}

/* The rows that are quantized */
static int64_t rows_of(const struct layer *l, int format, bool rotate)
{
	if (!rotate)
		return PLAIN_ROWS;
	return format == HZ_LINEAR_E8_2_25 ? l->n / SLOW_SHARE : l->n;
}

/* Quantizes rows of W; seconds: of a token, or NULL */
static int measure(struct layer *l, int format, bool rotate, double *error, double *seconds,
		   hz_linear_info *info)
{
	const hz_linear_open_opts o = {.format = format, .seed = rotate ? SEED : 0,
				       .flags = rotate ? HZ_LINEAR_ROTATE : 0};
	const int64_t rows = rows_of(l, format, rotate);
	const hz_tensor w = hz_view_slice(&l->on_w, 0, 0, rows);
	int status;

	progress("demo: %s%s", hz_linear_format_name(format), rotate ? ", rotated" : "");
	status = hz_linear_open(l->ctx, &l->linear, &w, &o);
	if (!status)
		status = hz_linear_get_info(l->linear, info);
	if (!status)
		status = output_error(l, rows, error);
	if (!status && seconds)
		status = time_calls(l->ctx, one_token, l, AT_LEAST, seconds);
	progress_clear();
	hz_linear_close(l->linear);
	l->linear = NULL;
	return status;
}

static int show(struct layer *l)
{
	const double bytes = 4 * (double)(l->n * l->n);
	double f32;
	int status;

	printf("A linear layer of %lld x %lld weights, a size of transformers (%s):\n"
	       "random numbers, %d times as large in one of %d features, and so is its input x in\n"
	       "others. Bits a weight with scales; error of the output in dB, as it is and with\n"
	       "weights and x rotated before (%s); ms for one token, rotated; tokens a\n"
	       "second; and how much faster that is than the weights in f32 can be read.\n\n",
	       (long long)l->n, (long long)l->n, name_of("linear_forward"), OUTLIER, OUTLIERS,
	       name_of("hadamard"));
	status = time_calls(l->ctx, read_weights, l, AT_LEAST, &f32);
	if (status)
		return status;
	printf("  %-14s%7s%8s%9s%9s%9s%9s%8s\n", "weights", "bits", "MB", "error", "rotated", "ms",
	       "tokens/s", "faster");
	printf("  %-14s%7.2f%8.1f%9s%9s%9.3f%9.0f%8s\n", "f32, read", 32.0, bytes / 1e6, "-", "-",
	       f32 * 1e3, 1 / f32, "");
	for (size_t i = 0; i < sizeof(formats) / sizeof(*formats) && !status; i++) {
		const double share = (double)l->n / (double)rows_of(l, formats[i], true);
		hz_linear_info info;
		double error[2], seconds;

		status = measure(l, formats[i], false, &error[0], NULL, &info);
		if (!status)
			status = measure(l, formats[i], true, &error[1], &seconds, &info);
		if (status)
			break;
		seconds *= share;
		printf("  %-14s%7.2f%8.1f%9.1f%9.1f%9.3f%9.0f%8.1f\n", info.format_name,
		       info.bits, (double)info.bytes * share / 1e6, error[0], error[1],
		       seconds * 1e3, 1 / seconds, f32 / seconds);
	}
	if (!status)
		printf("\n  The last takes long to quantize: a quarter of its rows, MB and ms times %d.\n",
		       SLOW_SHARE);
	return status;
}

int demo_linear(hz_context *ctx, bool quick)
{
	struct layer l = {.ctx = ctx, .n = quick ? QUICK_SIZE : SIZE};
	float *const memory = allocate((size_t)(l.n + 3 * TOKENS) * (size_t)l.n * sizeof(float));
	hz_tensor w, x, y;
	int status;

	if (!memory)
		return complain(EXIT_FAILURE, "demo: there is not enough memory");
	l.w = memory;
	l.x = l.w + l.n * l.n;
	l.y = l.x + TOKENS * l.n;
	fill(&l);
	w = hz_tensor_2d(l.w, HZ_F32, HZ_CPU, l.n, l.n);
	x = hz_tensor_2d(l.x, HZ_F32, HZ_CPU, TOKENS, l.n);
	y = hz_tensor_2d(l.y + TOKENS * l.n, HZ_F32, HZ_CPU, TOKENS, l.n);
	status = to_device(ctx, &w, true, &l.on_w);
	if (!status)
		status = to_device(ctx, &x, true, &l.on_x);
	if (!status)
		status = to_device(ctx, &y, false, &l.on_y);
	w = hz_view_slice(&w, 0, 0, l.n / 2);
	if (!status && hz_device(ctx) != HZ_CPU)
		status = to_device(ctx, &w, false, &l.spare);
	if (!status)
		status = show(&l);
	status = demo_status(ctx, status);
	free_device(ctx, &l.on_w);
	free_device(ctx, &l.on_x);
	free_device(ctx, &l.on_y);
	free_device(ctx, &l.spare);
	free(memory);
	return status;
}
