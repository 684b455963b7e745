/*
 * qgemm.c - hurwitz demo of quantized products: a classifier in f32 and in 8 bits
 *
 * SPDX-License-Identifier: BSD-2-Clause
 *
 * The class of a patch of 8 x 8 heights is the one of eight directions in which, 80 m from its
 * middle and outside of it, the ground is lowest. The weights are those of the plane that fits the
 * patch best, whose slopes they compare: a linear layer of 64 inputs and 8 outputs.
 */
#include <config.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tools/demo/demo.h"

#define SIDE 8
#define INPUTS (SIDE * SIDE)
#define CLASSES DIRECTIONS
#define LARGE_EVERY 20
#define LARGE 20	/* the factor of some inputs, and the divisor of their weights: the
			 * product stays the same */

struct classifier {
	hz_context *ctx;
	int64_t patches;
	float *x;			/* [patches][INPUTS] */
	int *label;
	float w[INPUTS * CLASSES];
	float *y;			/* [patches][CLASSES] */
};

/* A patch per row, as heights relative to its middle, and its class */
static void make_patches(struct classifier *c, const struct ground *g)
{
	int64_t at = 0;

	for (int64_t i = AWAY; i < g->rows - AWAY; i++) {
		for (int64_t j = AWAY; j < g->columns - AWAY; j++, at++) {
			for (int k = 0; k < INPUTS; k++)
				c->x[at * INPUTS + k] = height(g, i - SIDE / 2 + k / SIDE,
							       j - SIDE / 2 + k % SIDE) -
							height(g, i, j);
			c->label[at] = lowest_direction(g, i, j);
		}
	}
}

/* The fall of the best-fitting plane along each direction */
static void make_weights(struct classifier *c)
{
	for (int k = 0; k < INPUTS; k++) {
		const double down = k / SIDE - (SIDE - 1) / 2.0,
			     across = k % SIDE - (SIDE - 1) / 2.0;

		for (int d = 0; d < CLASSES; d++)
			c->w[k * CLASSES + d] =
				(float)((down * directions[d][0] +
					 across * directions[d][1]) / -336);
	}
}

/* Outlier channels, as in language models: large inputs with small weights */
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

/* The product in f32, as a compiler translates plain loops */
static int multiply_f32(void *data)
{
	struct classifier *c = data;

	for (int64_t i = 0; i < c->patches; i++) {
		float sum[CLASSES] = {0};

		for (int k = 0; k < INPUTS; k++) {
			for (int d = 0; d < CLASSES; d++)
				sum[d] += c->x[i * INPUTS + k] * c->w[k * CLASSES + d];
		}
		memcpy(c->y + i * CLASSES, sum, sizeof(sum));
	}
	return HZ_OK;
}

/* Views on the device for a run in 8 bits */
struct run {
	hz_context *ctx;
	bool rotate;
	hz_tensor x, t, w, codes, scales, y, signs;
	hz_hadamard_opts rotation;	/* with random signs: without them smooth data
					 * concentrate */
	hz_qgemm_opts opts;
	hz_packed packed;
	void *blob;
};

/* Runs the layer: rotates x, if requested, quantizes it by rows, multiplies. */
static int layer(void *data)
{
	struct run *r = data;
	const int status = r->rotate ? hz_hadamard(r->ctx, &r->x, &r->t, &r->rotation) : HZ_OK;

	return status ? status :
			hz_qlinear(r->ctx, r->rotate ? &r->t : &r->x, NULL, &r->y, &r->opts);
}

/* The weights: rotated as x is, which leaves the product unchanged; quantized by columns; packed */
static int make_layer(struct run *r)
{
	const hz_hadamard_opts columns = {.axis = HZ_AXIS(0), .pre = &r->signs};
	const hz_quantize_opts quantize = {.scales = &r->scales};
	hz_context *ctx = r->ctx;
	size_t bytes;
	int status = HZ_OK;

	r->rotation = (hz_hadamard_opts){.pre = &r->signs};
	if (r->rotate)
		status = hz_hadamard(ctx, &r->w, &r->w, &columns);
	if (!status)
		status = WITH_WORKSPACE(ctx, hz_choose_qparams(ctx, &r->w, &r->scales, NULL,
							       HZ_QPARAMS_SYMMETRIC));
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
		status = RESERVE_FOR(ctx, layer(r));
	return status;
}

static int multiply_u8(struct classifier *c, bool rotate, double *seconds)
{
	static uint8_t codes[INPUTS * CLASSES], bits[INPUTS / 8];
	static float scales[CLASSES], weights[INPUTS * CLASSES];
	float *rotated = allocate((size_t)c->patches * INPUTS * sizeof(float));
	struct run r = {.ctx = c->ctx, .rotate = rotate};
	struct {
		hz_tensor *on, host;
		bool copy;
	} view[] = {
		{&r.x, hz_tensor_2d(c->x, HZ_F32, HZ_CPU, c->patches, INPUTS), true},
		{&r.t, hz_tensor_2d(rotated, HZ_F32, HZ_CPU, c->patches, INPUTS), false},
		{&r.w, hz_tensor_2d(weights, HZ_F32, HZ_CPU, INPUTS, CLASSES), true},
		{&r.codes, hz_tensor_2d(codes, HZ_S8, HZ_CPU, INPUTS, CLASSES), false},
		{&r.scales, hz_tensor_1d(scales, HZ_F32, HZ_CPU, CLASSES), false},
		{&r.signs, hz_tensor_1d(bits, HZ_U8, HZ_CPU, INPUTS / 8), true},
		{&r.y, hz_tensor_2d(c->y, HZ_F32, HZ_CPU, c->patches, CLASSES), false},
	};
	const size_t views = sizeof(view) / sizeof(*view);
	int status = rotated ? HZ_OK : HZ_ENOMEM;

	memcpy(weights, c->w, sizeof(weights));
	hz_hadamard_signs(bits, INPUTS, 1);
	for (size_t i = 0; i < views && !status; i++)
		status = to_device(c->ctx, &view[i].host, view[i].copy, view[i].on);
	if (!status)
		status = make_layer(&r);
	if (!status)
		status = time_calls(c->ctx, layer, &r, 0.05, seconds);
	if (!status)
		status = from_device(c->ctx, &r.y, &view[views - 1].host);
	for (size_t i = 0; i < views; i++)
		free_device(c->ctx, view[i].on);
	if (r.blob)
		hz_free(c->ctx, r.blob, hz_device(c->ctx));
	free(rotated);
	return status;
}

static int show_one(struct classifier *c, const char *name)
{
	double seconds;
	int status = time_calls(c->ctx, multiply_f32, c, 0.05, &seconds);

	printf("  %-26s%10.1f%10.2f", name, accuracy(c), seconds * 1e6);
	if (!status)
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

int demo_qgemm(hz_context *ctx, const struct ground *g)
{
	struct classifier c = {
		.ctx = ctx, .patches = (g->rows - 2 * AWAY) * (g->columns - 2 * AWAY),
	};
	int status = HZ_ENOMEM;

	c.x = allocate((size_t)c.patches * INPUTS * sizeof(float));
	c.y = allocate((size_t)c.patches * CLASSES * sizeof(float));
	c.label = allocate((size_t)c.patches * sizeof(int));
	printf("%s told of %lld patches of 8 x 8 heights in which of eight\n"
	       "directions, 80 m away and outside of the patch, the ground is lowest: weights\n"
	       "in s8, patches in u8, each with its own scale and zero, as they are and\n"
	       "rotated by hadamard before. In f32 it is a plain loop on the CPU. Right in\n"
	       "percent; us for all patches.\n\n",
	       name_of("qlinear"), (long long)c.patches);
	if (c.x && c.y && c.label) {
		printf("  %-26s%20s%20s%20s\n  %-26s%10s%10s%10s%10s%10s%10s\n", "", "f32",
		       "8 bits", "8 bits, rotated", "", "right", "us", "right", "us", "right",
		       "us");
		make_patches(&c, g);
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
	return demo_status(ctx, status);
}
