/*
 * quat_layer.c - the steps of quaternion layers on the CPU
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#include <config.h>

#include <string.h>

#include "cpu/core/cpu.h"
#include "cpu/quat_layer/gather.h"
#include "cpu/quat_layer/quat_layer.h"
#include "lib/quat_layer/sums_math.h"

/* ---- Maps ------------------------------------------------------------------------------------ */

/* Whether rows along the last dimension are contiguous, so that memcpy() copies them */
static bool is_run(const struct hzi_quat_array *a, int last, int64_t count)
{
	return a->whole && (count == 1 || a->stride[last] == 4);
}

static void map_run(const struct hzi_quat_map_step *m, int kind, int64_t begin, int64_t end)
{
	const struct hzi_quat_array *const arrays[4] = {&m->a, &m->b, &m->out, &m->pre};
	const int last = m->ndim - 1;
	const int64_t row = m->shape[last];
	const bool copies = kind == HZI_QUAT_MAP_COPY && !m->accumulate && !m->pure &&
			    m->a.dtype == m->out.dtype && is_run(&m->a, last, row) &&
			    is_run(&m->out, last, row);
	const size_t size = hz_dtype_size(m->out.dtype);

	while (begin < end) {
		int64_t at[4] = {0, 0, 0, 0}, channel = begin % row, left = begin / row, stop;

		for (int k = 0; k < 4; k++)
			at[k] = channel * arrays[k]->stride[last];
		for (int d = last - 1; d >= 0; d--) {
			for (int k = 0; k < 4; k++)
				at[k] += left % m->shape[d] * arrays[k]->stride[d];
			left /= m->shape[d];
		}
		stop = begin + row - channel;
		if (stop > end)
			stop = end;
		if (copies) {
			memcpy((char *)m->out.data + at[2] * (int64_t)size,
			       (const char *)m->a.data + at[0] * (int64_t)size,
			       (size_t)(stop - begin) * 4 * size);
			begin = stop;
			continue;
		}
		for (; begin < stop; begin++, channel++) {
			const void *coef = NULL;

			if (kind == HZI_QUAT_MAP_AFFINE)
				coef = (const struct hzi_quat_affine *)m->coef + channel;
			if (kind == HZI_QUAT_MAP_AFFINE_BWD)
				coef = (const struct hzi_quat_affine_bwd *)m->coef + channel;
			hzi_quat_map_one(m, kind, begin, coef, at);
			for (int k = 0; k < 4; k++)
				at[k] += arrays[k]->stride[last];
		}
	}
}

static void map_work(void *job, int thread, int64_t begin, int64_t end)
{
	const struct hzi_quat_map_step *m = job;

	(void)thread;
	/* A constant kind per call, so that the compiler specializes the loop */
	switch (m->kind) {
	case HZI_QUAT_MAP_COPY:
		map_run(m, HZI_QUAT_MAP_COPY, begin, end);
		break;
	case HZI_QUAT_MAP_ACT:
		map_run(m, HZI_QUAT_MAP_ACT, begin, end);
		break;
	case HZI_QUAT_MAP_ACT_BWD:
		map_run(m, HZI_QUAT_MAP_ACT_BWD, begin, end);
		break;
	case HZI_QUAT_MAP_DROPOUT:
		map_run(m, HZI_QUAT_MAP_DROPOUT, begin, end);
		break;
	case HZI_QUAT_MAP_INIT:
		map_run(m, HZI_QUAT_MAP_INIT, begin, end);
		break;
	case HZI_QUAT_MAP_AFFINE:
		map_run(m, HZI_QUAT_MAP_AFFINE, begin, end);
		break;
	default:
		map_run(m, HZI_QUAT_MAP_AFFINE_BWD, begin, end);
	}
}

static void affine_work(void *job, int thread, int64_t begin, int64_t end)
{
	const struct hzi_quat_job *j = job;

	(void)thread;
	j->kern->affine(j->args, begin, end);
}

/* Dropout of elements begin .. end - 1, a row per kernel call */
static void drop_work(void *job, int thread, int64_t begin, int64_t end)
{
	const struct hzi_quat_job *j = job;
	const struct hzi_quat_map_step *m = j->args;
	const int last = m->ndim - 1;
	const size_t size = hz_dtype_size(m->a.dtype);

	(void)thread;
	while (begin < end) {
		const int64_t channel = begin % m->shape[last];
		int64_t from = 4 * channel, to = from, left = begin / m->shape[last];
		int64_t count = m->shape[last] - channel;

		for (int d = last - 1; d >= 0; d--) {
			from += left % m->shape[d] * m->a.stride[d];
			to += left % m->shape[d] * m->out.stride[d];
			left /= m->shape[d];
		}
		count = count < end - begin ? count : end - begin;
		j->kern->drop(m, (const char *)m->a.data + from * (int64_t)size,
			      (char *)m->out.data + to * (int64_t)size, count,
			      m->offset + (uint64_t)begin);
		begin += count;
	}
}

static void block_work(void *job, int thread, int64_t begin, int64_t end)
{
	const struct hzi_quat_job *j = job;

	(void)thread;
	j->kern->map(j->args, begin, end);
}

/* Whether micro-kernels support a map with arrays of any layout: they have no f64 and no INIT. */
static bool supports_blocks(const struct hzi_quat_map_step *a)
{
	const struct hzi_quat_array *const arrays[4] = {&a->a, &a->b, &a->out, &a->pre};

	for (int i = 0; i < 4; i++) {
		if (arrays[i]->data && arrays[i]->dtype == HZ_F64)
			return false;
	}
	return a->kind != HZI_QUAT_MAP_INIT;
}

static int map(struct hz_context *ctx, const char *op, const struct hzi_quat_map_step *a)
{
	const int last = a->ndim - 1, dtype = a->out.dtype;
	const bool affine = a->kind == HZI_QUAT_MAP_AFFINE || a->kind == HZI_QUAT_MAP_AFFINE_BWD;
	const bool contiguous = hzi_quat_is_contiguous(&a->a, last, dtype) &&
			   hzi_quat_is_contiguous(&a->out, last, dtype);
	const bool copies =
		a->kind == HZI_QUAT_MAP_COPY && contiguous && !a->accumulate && !a->pure;
	const int threads = hzi_threads(ctx, a->total * 32);
	const struct hzi_quat_map_blocks blocks = hzi_quat_map_blocks(a);
	struct hzi_quat_job job = {hzi_quat_layer_kern + ctx->level, a};

	(void)op;
	if (affine && contiguous &&
	    (a->kind == HZI_QUAT_MAP_AFFINE || hzi_quat_is_contiguous(&a->b, last, dtype)))
		hzi_parallel(ctx, threads, affine_work, &job, a->total / a->shape[last]);
	else if (a->kind == HZI_QUAT_MAP_DROPOUT && contiguous && !a->accumulate && !a->pure)
		hzi_parallel(ctx, threads, drop_work, &job, a->total);
	else if (supports_blocks(a) && !copies)
		hzi_parallel(ctx, threads, block_work, &job,
			     blocks.outer * blocks.down * blocks.across);
	else
		hzi_parallel(ctx, threads, map_work, (void *)(uintptr_t)a, a->total);
	return HZ_OK;
}

/* ---- Sums ------------------------------------------------------------------------------------ */

static void sum_run(const struct hzi_quat_sum_step *a, int kind, int64_t begin, int64_t end)
{
	const int values = HZI_QUAT_SUM_VALUES(kind);
	const int last = a->ndim;	/* channels, after the dimensions of rows */

	for (int64_t chunk = begin; chunk < end; chunk++) {
		double *part = a->part + chunk * a->channels * values;
		const int64_t first = chunk * a->chunk;
		const int64_t stop = first + a->chunk < a->rows ? first + a->chunk : a->rows;

		memset(part, 0, (size_t)(a->channels * values) * sizeof(*part));
		for (int64_t r = first; r < stop; r++) {
			int64_t at = 0, bt = 0, left = r;

			for (int d = a->ndim - 1; d >= 0; d--) {
				at += left % a->shape[d] * a->a.stride[d];
				bt += left % a->shape[d] * a->b.stride[d];
				left /= a->shape[d];
			}
			for (int64_t c = 0; c < a->channels; c++) {
				struct hzi_quat q = hzi_quat_load(&a->a, at + c *
								  a->a.stride[last]),
					     b = q;
				double saved[HZI_QUAT_SAVED];

				if (kind == HZI_QUAT_SUM_CROSS)
					b = hzi_quat_load(&a->b, bt + c * a->b.stride[last]);
				for (int i = 0; i < HZI_QUAT_SAVED &&
				     kind != HZI_QUAT_SUM_PLAIN; i++)
					saved[i] = hzi_quat_component(a->mean_dtype, a->mean,
								      c * HZI_QUAT_SAVED + i);
				hzi_quat_sum_one(kind, q, b, saved, part + c * values);
			}
		}
	}
}

static void sum_kernel_work(void *job, int thread, int64_t begin, int64_t end)
{
	const struct hzi_quat_job *j = job;

	(void)thread;
	j->kern->sums(j->args, begin, end);
}

static void sum_work(void *job, int thread, int64_t begin, int64_t end)
{
	const struct hzi_quat_sum_step *a = job;

	(void)thread;
	switch (a->kind) {
	case HZI_QUAT_SUM_PLAIN:
		sum_run(a, HZI_QUAT_SUM_PLAIN, begin, end);
		break;
	case HZI_QUAT_SUM_SQUARES:
		sum_run(a, HZI_QUAT_SUM_SQUARES, begin, end);
		break;
	default:
		sum_run(a, HZI_QUAT_SUM_CROSS, begin, end);
	}
}

static int sum(struct hz_context *ctx, const char *op, const struct hzi_quat_sum_step *a)
{
	const bool kernels = a->a.dtype != HZ_F64 && a->rows > 0 &&
			     (a->kind == HZI_QUAT_SUM_PLAIN || a->mean_dtype == HZ_F32) &&
			     (a->kind != HZI_QUAT_SUM_CROSS || a->b.dtype != HZ_F64);
	const int threads = hzi_threads(ctx, a->rows * a->channels * 32);
	struct hzi_quat_job job = {hzi_quat_layer_kern + ctx->level, a};

	(void)op;
	if (kernels)
		hzi_parallel(ctx, threads, sum_kernel_work, &job, a->chunks);
	else
		hzi_parallel(ctx, threads, sum_work, (void *)(uintptr_t)a, a->chunks);
	return HZ_OK;
}

static void finish_work(void *job, int thread, int64_t begin, int64_t end)
{
	const struct hzi_quat_finish_step *a = job;
	const int values = hzi_quat_finish_values(a->kind);

	(void)thread;
	for (int64_t c = begin; c < end; c++) {
		double total[20] = {0};

		for (int64_t k = 0; k < a->chunks; k++) {
			for (int i = 0; i < values; i++)
				total[i] += a->part[(k * a->channels + c) * values + i];
		}
		hzi_quat_finish_one(a, c, total);
	}
}

static int finish(struct hz_context *ctx, const char *op, const struct hzi_quat_finish_step *a)
{
	(void)op;
	hzi_parallel(ctx, hzi_threads(ctx, a->channels * (a->chunks * 80 + 1000)), finish_work,
		     (void *)(uintptr_t)a, a->channels);
	return HZ_OK;
}

/* ---- Rotations, memory ----------------------------------------------------------------------- */

static void rotation_work(void *job, int thread, int64_t begin, int64_t end)
{
	const struct hzi_quat_rotation_step *a = job;

	(void)thread;
	for (int64_t i = begin; i < end; i++)
		hzi_quat_rotation_one(a, i / a->m, i % a->m);
}

static void rotation_bwd_work(void *job, int thread, int64_t begin, int64_t end)
{
	const struct hzi_quat_rotation_step *a = job;

	(void)thread;
	for (int64_t i = begin; i < end; i++)
		hzi_quat_rotation_bwd_one(a, i / a->m, i % a->m);
}

static int rotation(struct hz_context *ctx, const char *op, const struct hzi_quat_rotation_step *a,
		    bool backward)
{
	(void)op;
	hzi_parallel(ctx, hzi_threads(ctx, a->n * a->m * 100),
		     backward ? rotation_bwd_work : rotation_work, (void *)(uintptr_t)a,
		     a->n * a->m);
	return HZ_OK;
}

/* ---- Recurrent layers ------------------------------------------------------------------------ */

struct cell_job {
	const struct hzi_quat_layer_kern *kern;
	const struct hzi_quat_cell_step *a;
	bool backward;
};

static void cell_work(void *job, int thread, int64_t begin, int64_t end)
{
	const struct cell_job *j = job;

	(void)thread;
	j->kern->cell(j->a, j->backward, begin, end);
}

static int cell(struct hz_context *ctx, const char *op, const struct hzi_quat_cell_step *a,
		bool backward)
{
	const int64_t rows = a->directions * a->batch;
	struct cell_job job = {hzi_quat_layer_kern + ctx->level, a, backward};

	(void)op;
	hzi_parallel(ctx, hzi_threads(ctx, rows * a->hidden * 1024), cell_work, &job,
		     rows * hzi_quat_cell_pieces(a));
	return HZ_OK;
}

static int zero(struct hz_context *ctx, const char *op, void *p, size_t bytes)
{
	(void)ctx, (void)op;
	memset(p, 0, bytes);
	return HZ_OK;
}

const struct hzi_quat_steps hzi_cpu_quat_steps = {
	.map = map, .sum = sum, .finish = finish, .rotation = rotation, .zero = zero,
	.cell = cell, .gemv = 8,
};
