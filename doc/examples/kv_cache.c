/*
 * kv_cache.c - attention over a cache of keys and values in 4.5 bits a number
 *
 * SPDX-License-Identifier: BSD-2-Clause
 *
 * Each step appends a key to a packed matrix, and its product with the query is the scores: no key
 * is decoded. The output sums values along tokens, the rows of their matrix, where products with
 * lattice codes sum along the numbers of a row. So values are codes by themselves, and decoded some
 * tokens at a time. Keys are rotated before they are coded, and so is the query, which leaves the
 * scores as they were.
 */
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include <hurwitz.h>

#define TOKENS 256		/* that the cache holds */
#define DIM 64			/* of a key and a value, one head */
#define SOME 32			/* values to decode at a time */

static hz_context *ctx;

static void try(int status)
{
	if (status == HZ_OK)
		return;
	fprintf(stderr, "kv_cache: %s\n", hz_errmsg(ctx));
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

static void softmax(float *scores, int n)
{
	float most = scores[0], sum = 0;

	for (int i = 1; i < n; i++)
		most = scores[i] > most ? scores[i] : most;
	for (int i = 0; i < n; i++) {
		scores[i] = expf((scores[i] - most) / sqrtf(DIM));
		sum += scores[i];
	}
	for (int i = 0; i < n; i++)
		scores[i] /= sum;
}

static void add_values(const float *weights, const float *values, int n, float *y)
{
	for (int i = 0; i < n; i++) {
		for (int k = 0; k < DIM; k++)
			y[k] += weights[i] * values[i * DIM + k];
	}
}

/* What is coded, as it was, for comparison */
static float keys[TOKENS][DIM], values[TOKENS][DIM];

static hz_lattice *lattice;
static hz_vlut *vlut;
static uint8_t signs[DIM / 8];

/* The cache: packed keys, codes of values, and the scale of each row */
static struct {
	void *data;
	hz_packed keys;
	uint32_t codes[TOKENS][DIM / 8];
	uint8_t t[TOKENS][DIM / 8];
	float key_scale[TOKENS], value_scale[TOKENS];
	int tokens;
} cache;

static void open_cache(void)
{
	const hz_lattice_opts e8 = {.preset = HZ_LATTICE_PRESET_E8_4_50_FAST};
	const hz_coded empty = {.rows = TOKENS, .k = DIM};
	size_t bytes;

	try(hz_lattice_open(ctx, &lattice, &e8));
	try(hz_vlut_open(ctx, &vlut, lattice, NULL, NULL));
	try(hz_vlut_pack_bytes(ctx, vlut, &empty, &bytes));
	try(hz_alloc(ctx, &cache.data, bytes, HZ_CPU));
	try(hz_vlut_pack(ctx, vlut, &empty, cache.data, bytes, &cache.keys));
	printf("%.2f bits a number\n", 8.0 * (double)bytes / (TOKENS * DIM));
}

static void append(const hz_hadamard_opts *rotation)
{
	const int at = cache.tokens++;
	const hz_tensor key = hz_tensor_2d(keys[at], HZ_F32, HZ_CPU, 1, DIM);
	const hz_tensor value = hz_tensor_2d(values[at], HZ_F32, HZ_CPU, 1, DIM);
	hz_tensor key_scale = hz_tensor_1d(&cache.key_scale[at], HZ_F32, HZ_CPU, 1);
	hz_tensor value_scale = hz_tensor_1d(&cache.value_scale[at], HZ_F32, HZ_CPU, 1);
	hz_tensor codes = hz_tensor_3d(cache.codes[at], HZ_U32, HZ_CPU, 1, DIM / 8, 1);
	hz_tensor t = hz_tensor_2d(cache.t[at], HZ_U8, HZ_CPU, 1, DIM / 8);
	const hz_lattice_code_opts for_key = {.hadamard = rotation, .row_scale = &key_scale};
	const hz_lattice_code_opts for_value = {.row_scale = &value_scale};

	try(hz_vlut_append(ctx, vlut, &key, at, &cache.keys, &for_key));
	try(hz_lattice_encode(ctx, lattice, &value, &codes, &t, NULL, &for_value));
}

static void attend(float *query, const hz_hadamard_opts *rotation, float *scores, float *y)
{
	const int n = cache.tokens;
	const hz_tensor q = hz_tensor_1d(query, HZ_F32, HZ_CPU, DIM);
	const hz_tensor scale = hz_tensor_1d(cache.key_scale, HZ_F32, HZ_CPU, n);
	const hz_coded first = {.packed = &cache.keys, .rows = n, .row_scale = &scale,
				.hadamard = rotation};
	hz_tensor to = hz_tensor_1d(scores, HZ_F32, HZ_CPU, n);
	float decoded[SOME][DIM];

	try(hz_vlut_gemv(ctx, vlut, &first, &q, &to));
	softmax(scores, n);
	for (int i = 0; i < n; i += SOME) {
		const int rows = n - i < SOME ? n - i : SOME;
		const hz_tensor codes = hz_tensor_3d(cache.codes[i], HZ_U32, HZ_CPU, rows, DIM / 8,
						     1);
		const hz_tensor t = hz_tensor_2d(cache.t[i], HZ_U8, HZ_CPU, rows, DIM / 8);
		hz_tensor row_scale = hz_tensor_1d(&cache.value_scale[i], HZ_F32, HZ_CPU, rows);
		hz_tensor v = hz_tensor_2d(decoded, HZ_F32, HZ_CPU, rows, DIM);
		const hz_lattice_code_opts o = {.row_scale = &row_scale};

		try(hz_lattice_decode(ctx, lattice, &codes, &t, &v, &o));
		add_values(scores + i, decoded[0], rows, y);
	}
}

int main(void)
{
	const hz_options options = {.device = HZ_CPU};
	const hz_tensor bits = hz_tensor_1d(signs, HZ_U8, HZ_CPU, DIM / 8);
	const hz_hadamard_opts rotation = {.pre = &bits};
	float query[DIM], scores[TOKENS], y[DIM], want[DIM];
	double error = 0, size = 0;
	uint64_t state = 1;

	if (hz_open(&ctx, &options) != HZ_OK) {
		fprintf(stderr, "kv_cache: %s\n", hz_open_errmsg());
		return 1;
	}
	try(hz_hadamard_signs(signs, DIM, 1));
	open_cache();
	for (int step = 0; step < TOKENS; step++) {
		for (int k = 0; k < DIM; k++) {
			keys[step][k] = 3 * number(&state);
			values[step][k] = number(&state);
			query[k] = 3 * number(&state);
			y[k] = want[k] = 0;
		}
		append(&rotation);
		attend(query, &rotation, scores, y);

		/* The same with the numbers themselves */
		for (int i = 0; i <= step; i++) {
			scores[i] = 0;
			for (int k = 0; k < DIM; k++)
				scores[i] += keys[i][k] * query[k];
		}
		softmax(scores, step + 1);
		add_values(scores, values[0], step + 1, want);
		for (int k = 0; k < DIM; k++) {
			error += (double)((y[k] - want[k]) * (y[k] - want[k]));
			size += (double)(want[k] * want[k]);
		}
	}
	printf("attention over up to %d tokens: error %.3f\n", TOKENS, sqrt(error / size));
	hz_free(ctx, cache.data, HZ_CPU);
	hz_vlut_close(vlut);
	hz_lattice_close(lattice);
	hz_close(ctx);
	return sqrt(error / size) < 0.2 ? 0 : 1;
}
