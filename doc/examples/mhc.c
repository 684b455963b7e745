/*
 * mhc.c - a residual network of four streams: forward, backward, and whether gradients are right
 *
 * SPDX-License-Identifier: BSD-2-Clause
 *
 * Around each branch of a network, here one that is nothing but a sine, stand two calls:
 *
 *     hz_mhc_layer_begin()    the branch's input from the streams
 *     hz_mhc_layer_end()      the streams after it
 *
 * and two more in the backward pass. The loss is the sum of what the head gives times fixed
 * numbers; its gradient is compared with differences.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <hurwitz.h>

#define TOKENS 6
#define STREAMS 4
#define CHANNELS 40
#define LAYERS 5
#define WIDTH (STREAMS * CHANNELS)
#define ROWS 24				/* hz_mhc_rows(STREAMS, NULL) */

struct weights {
	float phi[ROWS * WIDTH], alpha[3], bias[ROWS];
};

static hz_context *ctx;
static hz_mhc_layer layers[LAYERS];
static struct weights weights[LAYERS], gradients[LAYERS];
static float x[LAYERS + 1][TOKENS][STREAMS][CHANNELS], dx[2][TOKENS][STREAMS][CHANNELS];
static float u[LAYERS][TOKENS][CHANNELS], f[LAYERS][TOKENS][CHANNELS];
static float e[TOKENS][CHANNELS], de[TOKENS][CHANNELS], h[TOKENS][CHANNELS];
static float du[TOKENS][CHANNELS], df[TOKENS][CHANNELS], dh[TOKENS][CHANNELS];
static float head_phi[STREAMS][WIDTH], head_alpha[1], head_bias[STREAMS];

static void try(int status)
{
	if (status == HZ_OK)
		return;
	fprintf(stderr, "mhc: %s\n", hz_errmsg(ctx));
	hz_close(ctx);
	exit(1);
}

static hz_tensor streams(float (*at)[STREAMS][CHANNELS])
{
	return hz_tensor_3d(at, HZ_F32, HZ_CPU, TOKENS, STREAMS, CHANNELS);
}

static hz_tensor branch(float (*at)[CHANNELS])
{
	return hz_tensor_2d(at, HZ_F32, HZ_CPU, TOKENS, CHANNELS);
}

static hz_tensor vector(float *at, int64_t n)
{
	return hz_tensor_1d(at, HZ_F32, HZ_CPU, n);
}

/* Weights to begin with, and the coefficients that a layer keeps for its backward pass */
static void make_layer(hz_mhc_layer *l, int i)
{
	struct weights *w = &weights[i], *g = &gradients[i];
	size_t bytes;
	void *kept;

	l->phi = hz_tensor_2d(w->phi, HZ_F32, HZ_CPU, ROWS, WIDTH);
	l->alpha = vector(w->alpha, 3);
	l->bias = vector(w->bias, ROWS);
	l->dphi = hz_tensor_2d(g->phi, HZ_F32, HZ_CPU, ROWS, WIDTH);
	l->dalpha = vector(g->alpha, 3);
	l->dbias = vector(g->bias, ROWS);
	try(hz_mhc_init(ctx, HZ_MHC_INIT_IDENTITY, i, (uint64_t)i, &l->phi, &l->alpha, &l->bias,
			&l->opts));
	/* As training may leave it: coefficients that depend on the token */
	for (int k = 0; k < 3; k++)
		w->alpha[k] = 0.5f;
	try(hz_mhc_layer_bind(ctx, l, STREAMS, TOKENS, NULL, &bytes));
	try(hz_alloc(ctx, &kept, bytes, HZ_CPU));
	try(hz_mhc_layer_bind(ctx, l, STREAMS, TOKENS, kept, &bytes));
}

/* The loss for the embeddings e */
static double forward(void)
{
	const hz_tensor ve = branch(e), last = streams(x[LAYERS]);
	hz_tensor first = streams(x[0]), vh = branch(h);
	const hz_tensor phi = hz_tensor_2d(head_phi, HZ_F32, HZ_CPU, STREAMS, WIDTH);
	const hz_tensor alpha = vector(head_alpha, 1), bias = vector(head_bias, STREAMS);
	double loss = 0;

	try(hz_mhc_expand(ctx, &ve, &first));
	for (int i = 0; i < LAYERS; i++) {
		const hz_tensor vx = streams(x[i]), vf = branch(f[i]);
		hz_tensor vy = streams(x[i + 1]), vu = branch(u[i]);

		try(hz_mhc_layer_begin(ctx, &layers[i], &vx, &vu));
		for (int t = 0; t < TOKENS; t++) {
			for (int c = 0; c < CHANNELS; c++)
				f[i][t][c] = sinf(u[i][t][c] + (float)i);
		}
		try(hz_mhc_layer_end(ctx, &layers[i], &vx, &vf, &vy));
	}
	try(hz_mhc_head(ctx, &last, &phi, &alpha, &bias, NULL, &vh, NULL));
	for (int t = 0; t < TOKENS; t++) {
		for (int c = 0; c < CHANNELS; c++)
			loss += (double)h[t][c] * dh[t][c];
	}
	return loss;
}

/* The gradient of the loss in de, and those of weights */
static void backward(void)
{
	const hz_tensor last = streams(x[LAYERS]), vdh = branch(dh);
	const hz_tensor phi = hz_tensor_2d(head_phi, HZ_F32, HZ_CPU, STREAMS, WIDTH);
	const hz_tensor alpha = vector(head_alpha, 1), bias = vector(head_bias, STREAMS);
	hz_tensor dy = streams(dx[0]), vdx = streams(dx[1]), vde = branch(de);
	const hz_mhc_grads g = {.du = &vdh, .dx = &dy};

	try(hz_mhc_head_bwd(ctx, &last, &phi, &alpha, &bias, &g, NULL));
	for (int i = LAYERS - 1; i >= 0; i--) {
		const hz_tensor vx = streams(x[i]), vf = branch(f[i]), vdu = branch(du), swap = dy;
		hz_tensor vdf = branch(df);

		try(hz_mhc_layer_end_bwd(ctx, &layers[i], &vf, &dy, &vdf));
		for (int t = 0; t < TOKENS; t++) {
			for (int c = 0; c < CHANNELS; c++)
				du[t][c] = cosf(u[i][t][c] + (float)i) * df[t][c];
		}
		try(hz_mhc_layer_begin_bwd(ctx, &layers[i], &vx, &dy, &vdu, &vdx));
		dy = vdx;
		vdx = swap;
	}
	try(hz_mhc_expand_bwd(ctx, &dy, &vde));
}

/* Whether the gradient of count numbers at w agrees with the difference of two losses along it */
static int compare(const char *what, float *w, const float *gradient, int count)
{
	double square = 0, along, difference;
	float step;

	for (int i = 0; i < count; i++)
		square += (double)gradient[i] * gradient[i];
	along = sqrt(square);
	step = (float)(0.01 / along);
	for (int i = 0; i < count; i++)
		w[i] += step * gradient[i];
	difference = forward();
	for (int i = 0; i < count; i++)
		w[i] -= 2 * step * gradient[i];
	difference = (difference - forward()) / 0.02;
	for (int i = 0; i < count; i++)
		w[i] += step * gradient[i];
	printf("gradient of %s: %.3f, by differences %.3f\n", what, along, difference);
	return fabs(along - difference) <= 0.01 * along;
}

int main(void)
{
	const hz_options options = {.device = HZ_CPU};
	hz_tensor phi, alpha, bias, a, vout;
	float out[TOKENS][4], worst = 0;
	int good;

	if (hz_open(&ctx, &options) != HZ_OK) {
		fprintf(stderr, "mhc: %s\n", hz_open_errmsg());
		return 1;
	}
	for (int i = 0; i < LAYERS; i++)
		make_layer(&layers[i], i);
	phi = hz_tensor_2d(head_phi, HZ_F32, HZ_CPU, STREAMS, WIDTH);
	alpha = vector(head_alpha, 1);
	bias = vector(head_bias, STREAMS);
	try(hz_mhc_init(ctx, HZ_MHC_INIT_IDENTITY, 0, 100, &phi, &alpha, &bias, NULL));
	for (int t = 0; t < TOKENS; t++) {
		for (int c = 0; c < CHANNELS; c++) {
			e[t][c] = sinf((float)(t * 7 + c * c));
			dh[t][c] = cosf((float)(t * t + c * 3));
		}
	}
	forward();
	backward();
	good = compare("the embeddings", &e[0][0], &de[0][0], TOKENS * CHANNELS);
	good &= compare("phi", weights[0].phi, gradients[0].phi, ROWS * WIDTH);
	good &= compare("alpha", weights[1].alpha, gradients[1].alpha, 3);
	good &= compare("bias", weights[2].bias, gradients[2].bias, ROWS);

	/* How far from doubly stochastic the matrices of the last layer are */
	a = layers[LAYERS - 1].a;
	vout = hz_tensor_2d(out, HZ_F32, HZ_CPU, TOKENS, 4);
	try(hz_mhc_diagnose(ctx, &a, &vout));
	for (int t = 0; t < TOKENS; t++)
		worst = fmaxf(worst, fmaxf(out[t][0], out[t][1]));
	printf("rows and columns sum to 1 within %.4f\n", worst);
	for (int i = 0; i < LAYERS; i++)
		hz_free(ctx, layers[i].p.data, HZ_CPU);
	hz_close(ctx);
	return good && worst < 0.02f ? 0 : 1;
}
