/*
 * bias_act.c - bias and activation of rows on the CPU, as a pass of its own
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#include <config.h>

#include <string.h>

#include "cpu/core/cpu.h"
#include "cpu/vlut/kern.h"
#include "lib/vlut/vlut.h"

#define PIECE 128		/* elements at a time where a row is not contiguous */

struct job {
	const struct hzi_vlut_bias_act *a;
	const struct hzi_vlut_kern *kern;
};

static int64_t size_of(int dtype)
{
	return (int64_t)hz_dtype_size(dtype);
}

/* Copies n elements of `size` bytes; steps count elements. */
static void copy_elements(char *to, int64_t to_step, const char *from, int64_t from_step,
			  int64_t size, int64_t n)
{
	for (int64_t i = 0; i < n; i++, to += to_step * size, from += from_step * size)
		memcpy(to, from, (size_t)size);
}

/* A row whose elements are not contiguous, in pieces */
static void run_strided(const struct job *j, const char *from, char *y)
{
	const struct hzi_vlut_bias_act *a = j->a;
	const int64_t from_size = size_of(a->from_dtype), y_size = size_of(a->y_dtype);
	float gate[PIECE], up[PIECE], to[PIECE];

	for (int64_t i = 0; i < a->n; i += PIECE) {
		const int64_t n = a->n - i < PIECE ? a->n - i : PIECE;
		const struct hzi_vlut_bias_act_run r = {
			.from = gate, .up = a->gated ? up : NULL, .y = to, .count = n,
			.bias = a->bias ? a->bias + i : NULL,
			.up_bias = a->bias ? a->bias + a->n + i : NULL,
			.from_dtype = a->from_dtype, .y_dtype = a->y_dtype,
			.activation = a->activation,
		};

		copy_elements((char *)gate, 1, from + i * a->from_step * from_size, a->from_step,
			      from_size, n);
		if (a->gated)
			copy_elements((char *)up, 1, from + (a->n + i) * a->from_step * from_size,
				      a->from_step, from_size, n);
		j->kern->bias_act(&r);
		copy_elements(y + i * a->y_step * y_size, a->y_step, (char *)to, 1, y_size, n);
	}
}

static void run_rows(void *data, int thread, int64_t begin, int64_t end)
{
	const struct job *j = data;
	const struct hzi_vlut_bias_act *a = j->a;

	(void)thread;
	for (int64_t row = begin; row < end; row++) {
		int64_t from = 0, y = 0, left = row;
		struct hzi_vlut_bias_act_run r = {
			.bias = a->bias, .up_bias = a->bias ? a->bias + a->n : NULL, .count = a->n,
			.from_dtype = a->from_dtype, .y_dtype = a->y_dtype,
			.activation = a->activation,
		};

		for (int d = a->ndim - 1; d >= 0; d--) {
			from += left % a->shape[d] * a->from_stride[d];
			y += left % a->shape[d] * a->y_stride[d];
			left /= a->shape[d];
		}
		r.from = (const char *)a->from + from * size_of(a->from_dtype);
		r.y = (char *)a->y + y * size_of(a->y_dtype);
		if (a->n > 1 && (a->from_step != 1 || a->y_step != 1)) {
			run_strided(j, r.from, r.y);
			continue;
		}
		if (a->gated)
			r.up = (const char *)r.from + a->n * a->from_step * size_of(a->from_dtype);
		j->kern->bias_act(&r);
	}
}

int hzi_cpu_vlut_bias_act(struct hz_context *ctx, const struct hzi_vlut_bias_act *a)
{
	struct job job = {a, hzi_vlut_kern + ctx->level};

	hzi_parallel(ctx, hzi_threads(ctx, a->rows * a->n * (a->activation > HZ_ACT_RELU ? 32 : 8)),
		     run_rows, &job, a->rows);
	return HZ_OK;
}
