/*
 * rows.c - scales of rows on the CPU
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#include <config.h>

#include <math.h>

#include "cpu/lattice/lattice.h"

#define SUMS HZI_LATTICE_ROW_SUMS
#define PIECE 2048			/* values at a time: a multiple of SUMS */

struct rows_job {
	const struct hzi_lattice_kern *kern;
	const struct hzi_lattice_rows *r;
	bool decode;
};

/* Converts count values, at most PIECE, from or to contiguous f32. */
static void convert(const struct rows_job *job, char *v, float *f, int64_t count, bool to_v)
{
	const struct hzi_lattice_rows *r = job->r;
	const int64_t size = size_of(r->v_dtype);
	float contiguous[PIECE];
	void *const at = r->v_step == 1 ? (void *)v : contiguous;
	struct hzi_convert c = {.x = at, .y = f, .rows = 1, .count = count, .x_dtype = r->v_dtype,
				.y_dtype = HZ_F32, .scale = 1};

	if (to_v)
		c = (struct hzi_convert){.x = f, .y = at, .rows = 1, .count = count,
					 .x_dtype = HZ_F32, .y_dtype = r->v_dtype, .scale = 1};
	if (!to_v && r->v_step != 1)
		gather(v, r->v_step, size, count, count, contiguous);
	if (to_v || (void *)f != at)
		job->kern->convert(&c);
	if (to_v && r->v_step != 1)
		scatter(contiguous, r->v_step, size, count, v);
}

static void divide(const struct rows_job *job, char *v, float *f, float *scale)
{
	const int64_t n = job->r->n, size = size_of(job->r->v_dtype);
	double sum[SUMS] = {0};
	float s;

	for (int64_t i = 0; i < n; i += PIECE) {
		const int64_t count = min_of(PIECE, n - i);

		convert(job, v + i * job->r->v_step * size, f + i, count, false);
		for (int64_t j = 0; j < count; j += SUMS) {
			const float *const x = f + i + j;
			const int64_t end = min_of(SUMS, count - j);

			for (int64_t k = 0; k < end; k++) {
				const double d = fabsf(x[k]) <= FLT_MAX ? (double)x[k] : 0;

				sum[k] += d * d;
			}
		}
	}
	for (int half = SUMS / 2; half > 0; half /= 2) {
		for (int k = 0; k < half; k++)
			sum[k] += sum[k + half];
	}
	s = hzi_lattice_row_scale(sum[0], n);
	*scale = s;
	for (int64_t i = 0; i < n; i++)
		f[i] /= s;
}

static void multiply(const struct rows_job *job, char *v, const float *f, float scale)
{
	const int64_t n = job->r->n, size = size_of(job->r->v_dtype);
	float scaled[PIECE];

	for (int64_t i = 0; i < n; i += PIECE) {
		const int64_t count = min_of(PIECE, n - i);

		for (int64_t j = 0; j < count; j++)
			scaled[j] = f[i + j] * scale;
		convert(job, v + i * job->r->v_step * size, scaled, count, true);
	}
}

static void scale_rows(void *data, int thread, int64_t begin, int64_t end)
{
	const struct rows_job *const job = data;
	const struct hzi_lattice_rows *const r = job->r;

	(void)thread;
	for (int64_t row = begin; row < end; row++) {
		int64_t left = row, v = 0, s = 0;

		for (int d = r->ndim - 1; d >= 0; d--) {
			v += left % r->shape[d] * r->v_stride[d];
			s += left % r->shape[d] * r->scale_stride[d];
			left /= r->shape[d];
		}
		if (job->decode)
			multiply(job, offset(r->v, v, size_of(r->v_dtype)), r->f + row * r->n,
				 r->scale[s]);
		else
			divide(job, offset(r->v, v, size_of(r->v_dtype)), r->f + row * r->n,
			       r->scale + s);
	}
}

void hzi_lattice_scale_rows(struct hz_context *ctx, const struct hzi_lattice_rows *r, bool decode)
{
	struct rows_job job = {.kern = hzi_lattice_kern + ctx->level, .r = r, .decode = decode};

	hzi_parallel(ctx, hzi_threads(ctx, r->rows * r->n * 16), scale_rows, &job, r->rows);
}
