/*
 * small.c - small quantized products, which read A in place, and B in place or packed
 *
 * SPDX-License-Identifier: BSD-2-Clause
 *
 * Packing, plans and corrections for zero points take longer than such products. A unit is up to
 * ROWS rows of an item of the batch. Contiguous columns of B are transposed first.
 */
#include <config.h>

#include "cpu/qgemm/qgemm.h"

#define ROWS 64
#define COLS 1024

struct job {
	const struct hzi_qgemm_kern *kern;
	const struct hzi_qgemm_args *a;
	bool direct;			/* sums are C */
	int64_t rows, units;		/* of a unit; of an item */
	char *scratch;
	size_t scratch_each;
};

const char *hzi_cpu_qgemm_small_unsupported(const struct hz_context *ctx, const void *args)
{
	const struct hzi_qgemm_args *a = ((const struct hzi_cpu_qgemm_call *)args)->a;

	(void)ctx;
	if (a->sum64 || a->k == 0 || a->k > HZI_QGEMM_SMALL_K || a->n > COLS)
		return "k is 0 or above 256, n above 1024, or sums do not fit 32 bits";
	if (!a->packed && a->b_k != 1 && (a->b_n != 1 || a->b_k < 0))
		return "neither rows in ascending order nor columns of B are contiguous";
	return a->a_zeros || a->b_zeros ? "rows or columns have zero points of their own" : NULL;
}

/* Whether C is the sums of the micro-kernel */
static bool is_direct(const struct hzi_qgemm_args *a)
{
	return a->c_dtype == HZ_S32 && a->identity && a->c_n == 1 && !a->bias &&
	       a->min == INT32_MIN && a->max == INT32_MAX;
}

/*
 * Up to 2 rows or 4 columns by more than 16 of k, and up to 8 columns of a large A, are faster as
 * skinny products. With VNNI larger products by more than 8 of k are faster packed, and so is C
 * other than s32, which the kernels of packed products write. s8 by s8 to s32 on an AMD EPYC (Zen
 * 4), here and by the other routes, ns: 8^3 157 and 546 with AVX2, 176 and 329 with VNNI; 32^3 713
 * and 1620, 693 and 601; 64^3 3812 and 6571, 3645 and 1983. Packed B costs the other routes less,
 * and the skinny one does not read it: 16 x 32 by 256 2316 here and 2286 with AVX2, 1 x 1024 by 64
 * 3456 and 2551; with VNNI 24^3 499 and 466, 2 x 1024 by 16 1082 and 2406.
 */
bool hzi_cpu_qgemm_small_wins(const struct hz_context *ctx, const struct hzi_cpu_qgemm_call *c)
{
	const struct hzi_qgemm_args *a = c->a;
	const int64_t most = (int64_t)1 << 20;
	const bool vnni = hzi_qgemm_kern[ctx->level].flips_x;

	if (a->m > most || a->m * a->n * a->k > most || (a->n <= 8 && a->m * a->k >= most / 8))
		return false;
	if (vnni && !is_direct(a))
		return false;
	if (vnni && a->k > (!a->packed || a->m > 16 ? 8 : a->m > 2 ? 16 : 32) &&
	    a->m * a->n * a->k > most / (a->packed ? 128 : 64))
		return false;
	if (a->k <= 16)
		return a->n > 4 || a->m <= 64;
	if (a->n <= 4 || !a->packed)
		return a->n > 4 && a->m > 2;
	return vnni || a->k * a->n <= (a->k > 128 ? 4096 : a->m <= 2 ? 8192 : most);
}

static int make_job(const struct hz_context *ctx, const struct hzi_qgemm_args *a, struct job *job)
{
	const int64_t items = item_count(a->ndim, a->shape);
	const double work = (double)items * (double)a->m * (double)(a->n * a->k);

	job->kern = hzi_qgemm_kern + ctx->level;
	job->a = a;
	job->direct = is_direct(a);
	job->rows = min_i64(a->m, ROWS);
	job->units = a->m <= ROWS ? 1 : ceil_div(a->m, ROWS);
	job->scratch_each = round_to_lines(2 * job->rows * hzi_round_up(a->k, 8));
	if (!a->packed && a->b_n != 1)
		job->scratch_each += round_to_lines(a->k * a->n);
	if (!job->direct)
		job->scratch_each += round_to_lines(4 * job->rows * a->n) +
				     round_to_lines(4 * hzi_round_up(a->n, PANEL)) +
				     hzi_cpu_qgemm_columns_bytes(a->n);
	return hzi_threads(ctx, (int64_t)fmin(0x1p60, work));
}

static void multiply_units(void *data, int thread, int64_t begin, int64_t end)
{
	const struct job *job = data;
	const struct hzi_qgemm_args *a = job->a;
	const void *const b = a->packed ? a->packed : a->b;
	const int64_t b_bytes = a->packed ? hzi_qgemm_packed_bytes(a->layout, a->k, a->n) : 1;

	for (int64_t u = begin; u < end; u++) {
		const int64_t item = job->units == 1 ? u : u / job->units;
		const int64_t i = (u - item * job->units) * ROWS;
		char *scratch = job->scratch + (size_t)thread * job->scratch_each;
		struct hzi_qgemm_small s = {
			.a = bytes_at(a->a, item_offset(a->ndim, a->shape, a->a_stride, item) +
				      i * a->a_m),
			.b = bytes_at(b, b_bytes * item_offset(a->ndim, a->shape, a->b_stride, item)),
			.c = c_at(a, item, i, 0), .codes = take(&scratch, 2 * job->rows *
								hzi_round_up(a->k, 8)),
			.m = min_i64(job->rows, a->m - i), .n = a->n, .k = a->k, .a_m = a->a_m,
			.a_k = a->a_k, .b_k = a->b_k, .c_ld = a->c_m, .a_zero = a->a_zero,
			.b_zero = a->b_zero, .a_dtype = a->a_dtype, .b_dtype = a->b_dtype,
			.packed = a->packed != NULL,
		};
		struct hzi_qgemm_args plain;
		struct hzi_cpu_qgemm_columns c;
		struct hzi_qgemm_epilogue out;
		int32_t *sum;

		if (!a->packed && a->b_n != 1) {
			char *const rows = take(&scratch, a->k * a->n);

			hzi_cpu_transpose(rows, a->n, s.b, a->b_n, a->n, a->k, 1);
			s.b = rows;
			s.b_k = a->n;
		}
		if (job->direct) {
			job->kern->small(&s);
			continue;
		}
		s.c = take(&scratch, 4 * job->rows * a->n);
		s.c_ld = a->n;
		job->kern->small(&s);
		sum = take(&scratch, 4 * hzi_round_up(a->n, PANEL));
		hzi_cpu_qgemm_fill(sum, 0, hzi_round_up(a->n, PANEL));
		/* No zero points are left. */
		plain = *a;
		plain.a_zero = plain.b_zero = 0;
		hzi_cpu_qgemm_make_columns(job->kern, &plain, 0, 0, a->n, sum, &scratch, &c);
		out = hzi_cpu_qgemm_make_out(a, &c);
		out.sum = s.c;
		out.sum_ld = a->n;
		out.rows = s.m;
		out.cols = a->n;
		out.c = c_at(a, item, i, 0);
		out.col = c.col;
		if (a->a_scales)
			out.a_scale = a->a_scales + (item_row(a, item) + i) * a->scale_step;
		job->kern->epilogue(&out);
	}
}

size_t hzi_cpu_qgemm_small_workspace(const struct hz_context *ctx, const void *args)
{
	struct job job;
	const int threads = make_job(ctx, ((const struct hzi_cpu_qgemm_call *)args)->a, &job);

	return (size_t)threads * job.scratch_each;
}

int hzi_cpu_qgemm_small(struct hz_context *ctx, const void *args)
{
	const struct hzi_cpu_qgemm_call *c = args;
	struct job job;
	const int threads = make_job(ctx, c->a, &job);

	job.scratch = c->workspace;
	hzi_parallel(ctx, threads, multiply_units, &job,
		     item_count(c->a->ndim, c->a->shape) * job.units);
	return HZ_OK;
}
