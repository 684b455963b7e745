/*
 * quat_layer.c - weights of PyTorch's quaternion libraries, used in place
 *
 * SPDX-License-Identifier: BSD-2-Clause
 *
 * Orkis' Pytorch-Quaternion-Neural-Networks and speechbrain keep a layer of quaternions as four
 * weights r i j k of [in, out], and its input as [batch, 4 in] of blocks r | i | j | k. At every
 * call they make the real matrix of [4 in, 4 out] by torch.cat and multiply by that. Views of the
 * same memory, with its strides, are all that this library needs: here are both, and the layer's
 * training step.
 *
 * The four weights are contiguous, as torch.stack or one flat buffer of parameters makes them.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <hurwitz.h>

#define BATCH 24
#define IN 40
#define OUT 12

static hz_context *ctx;

static void try(int status)
{
	if (status == HZ_OK)
		return;
	fprintf(stderr, "quat_layer: %s\n", hz_errmsg(ctx));
	hz_close(ctx);
	exit(1);
}

/*
 * torch.cat([torch.cat([r, -i, -j, -k]), torch.cat([i, r, -k, j]), torch.cat([j, k, r, -i]),
 * torch.cat([k, -j, i, r])], dim=1), as both have it
 */
static void cat(float w[4][IN][OUT], float matrix[4 * IN][4 * OUT])
{
	static const int part[4][4] = {{0, 1, 2, 3}, {1, 0, 3, 2}, {2, 3, 0, 1}, {3, 2, 1, 0}};
	static const float sign[4][4] = {
		{1, -1, -1, -1}, {1, 1, -1, 1}, {1, 1, 1, -1}, {1, -1, 1, 1},
	};

	for (int p = 0; p < 4; p++) {
		for (int q = 0; q < 4; q++) {
			for (int i = 0; i < IN; i++) {
				for (int o = 0; o < OUT; o++)
					matrix[q * IN + i][p * OUT + o] =
						sign[p][q] * w[part[p][q]][i][o];
			}
		}
	}
}

int main(void)
{
	static float x[BATCH][4 * IN], w[4][IN][OUT], matrix[4 * IN][4 * OUT];
	static float y[BATCH][4 * OUT], dx[BATCH][4 * IN], dw[4][IN][OUT];
	const hz_options options = {.device = HZ_CPU};
	/* component c of channel m of item b is at x[b][c IN + m], of a weight at w[c][m][n] */
	hz_tensor vx = {x, HZ_F32, 3, HZ_CPU, {BATCH, IN, 4}, {4 * IN, 1, IN}};
	hz_tensor vw = {w, HZ_F32, 3, HZ_CPU, {OUT, IN, 4}, {1, OUT, IN * OUT}};
	hz_tensor vy = {y, HZ_F32, 3, HZ_CPU, {BATCH, OUT, 4}, {4 * OUT, 1, OUT}};
	hz_tensor vdx = vx, vdw = vw;
	double error = 0, all = 0, change = 0;

	if (hz_open(&ctx, &options) != HZ_OK) {
		fprintf(stderr, "quat_layer: %s\n", hz_open_errmsg());
		return 1;
	}
	/* Initial values by their formula, into their layout */
	try(hz_quat_init(ctx, &vw, HZ_QUAT_POLAR, hz_quat_init_scale(IN, OUT), 1, 0, 0));
	try(hz_quat_init(ctx, &vx, HZ_QUAT_NORMAL, 1, 2, 0, 0));
	try(hz_quat_linear(ctx, &vx, &vw, NULL, &vy, NULL));

	cat(w, matrix);
	for (int b = 0; b < BATCH; b++) {
		for (int o = 0; o < 4 * OUT; o++) {
			double sum = 0;

			for (int i = 0; i < 4 * IN; i++)
				sum += (double)x[b][i] * (double)matrix[i][o];
			error += (sum - y[b][o]) * (sum - y[b][o]);
			all += sum * sum;
		}
	}
	printf("from the real matrix of %d x %d: %.1e\n", 4 * IN, 4 * OUT, sqrt(error / all));

	/* The gradients of |y|^2 / 2, and a step down: their layout is that of the weights. */
	vdx.data = dx;
	vdw.data = dw;
	try(hz_quat_linear_bwd(ctx, &vx, &vw, NULL, &vy, &vdx, &vdw, NULL, NULL));
	for (int i = 0; i < 4 * IN * OUT; i++)
		(&w[0][0][0])[i] -= 1e-3f * (&dw[0][0][0])[i];
	try(hz_quat_linear(ctx, &vx, &vw, NULL, &vy, NULL));
	for (int i = 0; i < BATCH * 4 * OUT; i++)
		change += (double)(&y[0][0])[i] * (double)(&y[0][0])[i];
	printf("|y|^2 before and after a step: %.3f, %.3f\n", all, change);
	hz_close(ctx);
	return error <= 1e-10 * all && change < all ? 0 : 1;
}
