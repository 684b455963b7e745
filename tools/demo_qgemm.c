/*
 * demo_qgemm.c - hurwitz demo of quantized multiplication: a classifier in f32 and in 8 bits
 *
 * SPDX-License-Identifier: BSD-2-Clause
 *
 * What it tells of a patch of 8 x 8 heights is in which of eight directions, 80 m from its middle
 * and outside of it, the ground is lowest. Its weights are those of the plane that fits the patch
 * best, whose slopes it compares: a linear layer of 64 inputs and 8 outputs.
 */
#include <config.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "demo.h"
#include "tool.h"

#define SIDE 8
#define INPUTS (SIDE * SIDE)
#define CLASSES 8
#define AWAY 8		/* grid points from the middle of a patch to where it is asked about */
#define LARGE_EVERY 20
#define LARGE 20	/* times as large, and the weights as small: the same product */

/* Where the eight directions lead, east to west by rows, south to north by columns */
static const int steps[CLASSES][2] = {
	{AWAY, 0}, {6, 6}, {0, AWAY}, {-6, 6}, {-AWAY, 0}, {-6, -6}, {0, -AWAY}, {6, -6},
};

struct classifier {
	hz_context *ctx;
	int64_t patches;
	float *x;			/* [patches][INPUTS] */
	int *label;
	float w[INPUTS * CLASSES];
	float *y;			/* [patches][CLASSES] */
};

/* A patch a row, as heights above its middle, and what is right about it */
static void make_patches(struct classifier *c, const float *heights, int64_t rows, int64_t columns,
			 int64_t ld)
{
	int64_t at = 0;

	for (int64_t i = AWAY; i < rows - AWAY; i++) {
		for (int64_t j = AWAY; j < columns - AWAY; j++, at++) {
			float lowest = INFINITY;

			for (int k = 0; k < INPUTS; k++)
				c->x[at * INPUTS + k] = heights[(i - SIDE / 2 + k / SIDE) * ld + j -
								SIDE / 2 + k % SIDE] -
							heights[i * ld + j];
			for (int d = 0; d < CLASSES; d++) {
				const float h = heights[(i + steps[d][0]) * ld + j + steps[d][1]];

				if (h < lowest) {
					lowest = h;
					c->label[at] = d;
				}
			}
		}
	}
}

/* The fall of the best plane along each direction */
static void make_weights(struct classifier *c)
{
	for (int k = 0; k < INPUTS; k++) {
		const double down = k / SIDE - (SIDE - 1) / 2.0,
			     across = k % SIDE - (SIDE - 1) / 2.0;

		for (int d = 0; d < CLASSES; d++)
			c->w[k * CLASSES + d] =
				(float)(-(down * steps[d][0] + across * steps[d][1]) / 336);
	}
}

/* As some channels in language models are: large, with small weights */
static void make_large(struct classifier *c)
{
	for (int k = LARGE_EVERY / 2; k < INPUTS; k += LARGE_EVERY) {
		for (int64_t i = 0; i < c->patches; i++)
			c->x[i * INPUTS + k] *= LARGE;
		for (int d = 0; d < CLASSES; d++)
			c->w[k * CLASSES + d] /= LARGE;
	}
}

static double accuracy(const struct classifier *c)
{
	int64_t right = 0;

	for (int64_t i = 0; i < c->patches; i++) {
		int best = 0;

		for (int d = 1; d < CLASSES; d++) {
			if (c->y[i * CLASSES + d] > c->y[i * CLASSES + best])
				best = d;
		}
		right += best == c->label[i];
	}
	return 100.0 * (double)right / (double)c->patches;
}

/* The product in f32, as a compiler makes it of plain loops; seconds of one */
static double multiply_f32(struct classifier *c)
{
	double start = now(), seconds;
	int times = 0;

	do {
		for (int64_t i = 0; i < c->patches; i++) {
			float sum[CLASSES] = {0};

			for (int k = 0; k < INPUTS; k++) {
				for (int d = 0; d < CLASSES; d++)
					sum[d] += c->x[i * INPUTS + k] * c->w[k * CLASSES + d];
			}
			memcpy(c->y + i * CLASSES, sum, sizeof(sum));
		}
		times++;
		seconds = now() - start;
	} while (seconds < 0.05);
	return seconds / times;
}

/* Views on the device of what one run in 8 bits takes */
struct run {
	hz_tensor x, t, w, codes, scales, zeros, y, signs;
	hz_hadamard_opts rotation;	/* with random signs, or what is smooth would gather */
	hz_qgemm_opts opts;
	hz_packed packed;
	void *blob;
};

/* The layer once: rotation of x, if there is one, then x quantized by rows and multiplied */
static int layer(hz_context *ctx, struct run *r, bool rotate)
{
	const int status = rotate ? hz_hadamard(ctx, &r->x, &r->t, &r->rotation) : HZ_OK;

	return status ? status : hz_qlinear(ctx, rotate ? &r->t : &r->x, NULL, &r->y, &r->opts);
}

/* Weights: rotated as x is, which leaves the product alone; quantized by columns; packed */
static int make_layer(struct classifier *c, struct run *r, bool rotate)
{
	const hz_hadamard_opts columns = {.axis = 1, .pre = &r->signs};
	const hz_quantize_opts quantize = {.scales = &r->scales, .zeros = &r->zeros};
	hz_context *ctx = c->ctx;
	size_t bytes;
	int status = HZ_OK;

	r->rotation = (hz_hadamard_opts){.pre = &r->signs};
	if (rotate)
		status = hz_hadamard(ctx, &r->w, &r->w, &columns);
	if (!status)
		status = hz_choose_qparams_workspace(ctx, &r->w, &r->scales, &r->zeros,
						     HZ_QPARAMS_SYMMETRIC, &bytes);
	if (!status)
		status = hz_reserve(ctx, bytes);
	if (!status)
		status = hz_choose_qparams(ctx, &r->w, &r->scales, &r->zeros, HZ_QPARAMS_SYMMETRIC);
	if (!status)
		status = hz_quantize(ctx, &r->w, &r->codes, &quantize);
	if (!status)
		status = hz_qgemm_pack_bytes(ctx, &r->codes, &bytes);
	if (!status)
		status = hz_alloc(ctx, &r->blob, bytes, hz_device(ctx));
	if (!status)
		status = hz_qgemm_pack(ctx, &r->codes, r->blob, bytes, &r->packed);
	r->opts = (hz_qgemm_opts){.packed = &r->packed, .b_scales = &r->scales};
	if (!status)
		status = hz_qlinear_workspace(ctx, &r->x, NULL, &r->y, &r->opts, &bytes);
	return status ? status : hz_reserve(ctx, bytes);
}

static int multiply_u8(struct classifier *c, bool rotate, double *seconds)
{
	static uint8_t codes[INPUTS * CLASSES], zeros[CLASSES], bits[INPUTS / 8];
	static float scales[CLASSES], weights[INPUTS * CLASSES];
	float *turned = allocate((size_t)c->patches * INPUTS * sizeof(float));
	struct run r = {.blob = NULL};
	const struct {
		hz_tensor *on, host;
		bool copy;
	} view[] = {
		{&r.x, hz_tensor_2d(c->x, HZ_F32, HZ_CPU, c->patches, INPUTS), true},
		{&r.t, hz_tensor_2d(turned, HZ_F32, HZ_CPU, c->patches, INPUTS), false},
		{&r.w, hz_tensor_2d(weights, HZ_F32, HZ_CPU, INPUTS, CLASSES), true},
		{&r.codes, hz_tensor_2d(codes, HZ_S8, HZ_CPU, INPUTS, CLASSES), false},
		{&r.scales, hz_tensor_2d(scales, HZ_F32, HZ_CPU, 1, CLASSES), false},
		{&r.zeros, hz_tensor_2d(zeros, HZ_S8, HZ_CPU, 1, CLASSES), false},
		{&r.signs, hz_tensor_1d(bits, HZ_U8, HZ_CPU, INPUTS / 8), true},
		{&r.y, hz_tensor_2d(c->y, HZ_F32, HZ_CPU, c->patches, CLASSES), false},
	};
	const size_t views = sizeof(view) / sizeof(*view);
	int status = turned ? HZ_OK : HZ_ENOMEM;
	double start;
	int times = 0;

	memcpy(weights, c->w, sizeof(weights));
	hz_hadamard_signs(bits, INPUTS, 1);
	for (size_t i = 0; i < views && !status; i++)
		status = to_device(c->ctx, &view[i].host, view[i].copy, view[i].on);
	if (!status)
		status = make_layer(c, &r, rotate);
	if (!status)
		status = layer(c->ctx, &r, rotate);	/* not counted: it may load code */
	if (!status)
		status = hz_sync(c->ctx);
	start = now();
	do {
		for (int i = 0; i < 20 && !status; i++)
			status = layer(c->ctx, &r, rotate);
		if (!status)
			status = hz_sync(c->ctx);
		times += 20;
		*seconds = now() - start;
	} while (!status && *seconds < 0.05);
	*seconds /= times;
	if (!status)
		status = from_device(c->ctx, &r.y, &view[views - 1].host);
	for (size_t i = 0; i < views; i++)
		free_device(c->ctx, view[i].on);
	if (r.blob)
		hz_free(c->ctx, r.blob, hz_device(c->ctx));
	free(turned);
	return status;
}

static int show_one(struct classifier *c, const char *name)
{
	double seconds = multiply_f32(c);
	int status;

	printf("  %-26s%10.1f%10.2f", name, accuracy(c), seconds * 1e6);
	status = multiply_u8(c, false, &seconds);
	if (!status)
		printf("%10.1f%10.2f", accuracy(c), seconds * 1e6);
	if (!status)
		status = multiply_u8(c, true, &seconds);
	if (!status)
		printf("%10.1f%10.2f", accuracy(c), seconds * 1e6);
	printf("\n");
	return status;
}

int demo_classifier(hz_context *ctx, const float *heights, int64_t rows, int64_t columns,
		    int64_t ld)
{
	struct classifier c = {.ctx = ctx, .patches = (rows - 2 * AWAY) * (columns - 2 * AWAY)};
	int status = HZ_ENOMEM;

	c.x = allocate((size_t)c.patches * INPUTS * sizeof(float));
	c.y = allocate((size_t)c.patches * CLASSES * sizeof(float));
	c.label = allocate((size_t)c.patches * sizeof(int));
	printf("\n%sqlinear%s told of %lld patches of 8 x 8 heights in which of eight\n"
	       "directions, 80 m away and outside of the patch, the ground is lowest: weights\n"
	       "in s8, patches in u8, each with its own scale and zero, as they are and\n"
	       "rotated by hadamard before. In f32 it is a plain loop on the CPU. Right in\n"
	       "percent; us for all patches.\n\n",
	       style(stdout, BOLD), style(stdout, PLAIN), (long long)c.patches);
	if (c.x && c.y && c.label) {
		printf("  %-26s%20s%20s%20s\n  %-26s%10s%10s%10s%10s%10s%10s\n", "", "f32",
		       "8 bits", "8 bits, rotated", "", "right", "us", "right", "us", "right",
		       "us");
		make_patches(&c, heights, rows, columns, ld);
		make_weights(&c);
		status = show_one(&c, "heights");
		if (!status) {
			make_large(&c);
			status = show_one(&c, "three inputs x 20");
		}
	}
	free(c.x);
	free(c.y);
	free(c.label);
	if (!status)
		return 0;
	return complain(EXIT_FAILURE, "demo: %s",
			*hz_errmsg(ctx) ? hz_errmsg(ctx) : hz_strerror(status));
}
