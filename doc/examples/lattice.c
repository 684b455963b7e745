/*
 * lattice.c - a matrix in four bits a weight, read in two, and multiplied as it is
 *
 * SPDX-License-Identifier: BSD-2-Clause
 *
 * Eight weights become a point of the lattice E8, as two digits of 16 bits: the coarse one alone
 * is the same matrix in two bits. Products need no decoded matrix. Rows are rotated before they are
 * coded, and so is the vector, which leaves the products as they were.
 */
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include <hurwitz.h>

#define ROWS 96
#define K 256
#define GROUP 32

static hz_context *ctx;

static void try(int status)
{
	if (status == HZ_OK)
		return;
	fprintf(stderr, "lattice: %s\n", hz_errmsg(ctx));
	hz_close(ctx);
	exit(1);
}

/* Nearly normal numbers, a few of them large, as weights have them */
static float number(uint64_t *state)
{
	float sum = 0;

	for (int i = 0; i < 8; i++) {
		*state = *state * 6364136223846793005u + 1442695040888963407u;
		sum += (float)(*state >> 40) / (1 << 24) - 0.5f;
	}
	return (*state >> 33) % 100 == 0 ? 4 * sum : sum;
}

static double relative_error(const float *got, const float *want, int count)
{
	double e = 0, w = 0;

	for (int i = 0; i < count; i++) {
		e += ((double)got[i] - want[i]) * ((double)got[i] - want[i]);
		w += (double)want[i] * want[i];
	}
	return sqrt(e / w);
}

int main(void)
{
	static float w[ROWS * K], back[ROWS * K], x[K], turned[K], y[ROWS], want[ROWS];
	static uint16_t codes[ROWS * (K / 8) * 2];
	static uint8_t t[ROWS * (K / GROUP)], bits[K / 8];
	const hz_options options = {.device = HZ_CPU};
	const hz_tensor signs = hz_tensor_1d(bits, HZ_U8, HZ_CPU, K / 8);
	const hz_hadamard_opts rotation = {.pre = &signs};
	const hz_tensor vw = hz_tensor_2d(w, HZ_F32, HZ_CPU, ROWS, K);
	hz_tensor vback = hz_tensor_2d(back, HZ_F32, HZ_CPU, ROWS, K);
	const hz_tensor vx = hz_tensor_1d(x, HZ_F32, HZ_CPU, K);
	hz_tensor vturned = hz_tensor_1d(turned, HZ_F32, HZ_CPU, K);
	hz_tensor vy = hz_tensor_1d(y, HZ_F32, HZ_CPU, ROWS);
	hz_tensor vt = hz_tensor_2d(t, HZ_U8, HZ_CPU, ROWS, K / GROUP);
	hz_tensor vcodes = hz_tensor_3d(codes, HZ_U16, HZ_CPU, ROWS, K / 8, 2);
	/* Digits base 4; of 64 scales, 2^(1/8) apart, one for each 32 weights */
	const hz_lattice_opts quantizer = {
		.kind = HZ_LATTICE_E8, .q = 4, .levels = 2, .policy = HZ_LATTICE_GROUP,
		.group = GROUP, .beta = 0.8 / 16 / 8, .flags = HZ_LATTICE_CENTER,
	};
	hz_lattice_code_opts how = {.hadamard = &rotation};
	hz_coded coded = {.codes = vcodes, .t = &vt};
	hz_lattice *lattice;
	hz_lattice_info info;
	hz_vlut *vlut;
	uint64_t state = 1;
	double error;

	if (hz_open(&ctx, &options) != HZ_OK) {
		fprintf(stderr, "lattice: %s\n", hz_open_errmsg());
		return 1;
	}
	for (int i = 0; i < ROWS * K; i++)
		w[i] = number(&state);
	for (int k = 0; k < K; k++)
		x[k] = number(&state);
	for (int i = 0; i < ROWS; i++) {
		for (int k = 0; k < K; k++)
			want[i] += w[i * K + k] * x[k];
	}

	/* Coded once; then all levels, and the coarser one alone */
	try(hz_hadamard_signs(bits, K, 1));
	try(hz_lattice_open(ctx, &lattice, &quantizer));
	try(hz_lattice_get_info(lattice, &info));
	try(hz_lattice_encode(ctx, lattice, &vw, &vcodes, &vt, NULL, &how));
	for (int levels = 2; levels > 0; levels--) {
		how.use_levels = levels;
		try(hz_lattice_decode(ctx, lattice, &vcodes, &vt, &vback, &how));
		printf("%.2f bits a weight: error %.3f\n",
		       info.bits - (2 - levels) * log2(info.q), relative_error(back, w, ROWS * K));
	}

	/* The product of the codes, with the vector rotated as the rows were */
	try(hz_hadamard(ctx, &vx, &vturned, &rotation));
	try(hz_vlut_open(ctx, &vlut, lattice, NULL, NULL));
	try(hz_vlut_gemv(ctx, vlut, &coded, &vturned, &vy));
	error = relative_error(y, want, ROWS);
	printf("product of codes: error %.3f\n", error);
	hz_vlut_close(vlut);
	hz_lattice_close(lattice);
	hz_close(ctx);
	return error < 0.15 ? 0 : 1;
}
