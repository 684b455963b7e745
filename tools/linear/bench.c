/*
 * bench.c - hurwitz bench of linear layers with quantized weights
 *
 * SPDX-License-Identifier: BSD-2-Clause
 *
 * Operations are 2 out in rows, as in a dense product. On the CPU up to 8 rows are measured against
 * a read of W in f32, more against multiply-adds of f32 alone; on a GPU against those and a copy.
 */
#include <config.h>

#include <stdlib.h>
#include <string.h>

#include "tools/core/bench.h"

enum { QUICK = 1, ROTATE = 2, GELU = 4, BWD = 8, DEQUANTIZE = 16 };

static const struct row {
	int flags, format;
	int64_t out, in, rows;
} rows[] = {
	{QUICK, HZ_LINEAR_S8_ROW, 768, 768, 1},
	{0, HZ_LINEAR_S8_ROW, 768, 768, 8},
	{0, HZ_LINEAR_S8_ROW, 768, 768, 32},
	{0, HZ_LINEAR_S8_ROW, 768, 768, 512},
	{0, HZ_LINEAR_S8_ROW, 3072, 768, 1},
	{0, HZ_LINEAR_S8_ROW, 3072, 768, 8},
	{0, HZ_LINEAR_S8_ROW, 3072, 768, 32},
	{0, HZ_LINEAR_S8_ROW, 3072, 768, 512},
	{GELU, HZ_LINEAR_S8_ROW, 3072, 768, 512},
	{0, HZ_LINEAR_S8_ROW, 4096, 4096, 1},
	{ROTATE, HZ_LINEAR_S8_ROW, 4096, 4096, 1},
	{0, HZ_LINEAR_S8_ROW, 4096, 4096, 8},
	{0, HZ_LINEAR_S8_ROW, 4096, 4096, 32},
	{0, HZ_LINEAR_S8_ROW, 4096, 4096, 512},
	{QUICK | ROTATE, HZ_LINEAR_E8_4_50_FAST, 768, 768, 1},
	{ROTATE, HZ_LINEAR_E8_4_50_FAST, 768, 768, 8},
	{ROTATE, HZ_LINEAR_E8_4_50_FAST, 768, 768, 32},
	{ROTATE, HZ_LINEAR_E8_4_50_FAST, 768, 768, 512},
	{ROTATE, HZ_LINEAR_E8_4_50_FAST, 3072, 768, 1},
	{ROTATE, HZ_LINEAR_E8_4_50_FAST, 3072, 768, 8},
	{ROTATE, HZ_LINEAR_E8_4_50_FAST, 3072, 768, 32},
	{ROTATE, HZ_LINEAR_E8_4_50_FAST, 3072, 768, 512},
	{ROTATE, HZ_LINEAR_E8_4_50_FAST, 4096, 4096, 1},
	{ROTATE, HZ_LINEAR_E8_4_50_FAST, 4096, 4096, 8},
	{ROTATE, HZ_LINEAR_E8_4_50_FAST, 4096, 4096, 32},
	{ROTATE, HZ_LINEAR_E8_4_50_FAST, 4096, 4096, 512},
	{ROTATE, HZ_LINEAR_E8_4_25, 4096, 4096, 1},
	{ROTATE, HZ_LINEAR_D4_4_50, 4096, 4096, 1},
	{ROTATE, HZ_LINEAR_S4_G32, 4096, 4096, 1},
	{ROTATE, HZ_LINEAR_S4_G32, 4096, 4096, 512},
	{ROTATE, HZ_LINEAR_NVFP4, 4096, 4096, 1},
	{BWD | QUICK, HZ_LINEAR_S8_ROW, 768, 768, 512},
	{BWD | ROTATE, HZ_LINEAR_E8_4_50_FAST, 3072, 768, 512},
	{DEQUANTIZE | QUICK, HZ_LINEAR_S8_ROW, 768, 768, 1},
	{DEQUANTIZE | ROTATE, HZ_LINEAR_E8_4_50_FAST, 4096, 4096, 1},
};

#define ROWS (sizeof(rows) / sizeof(*rows))

struct linear_case {
	struct bench_case c;
	const struct row *row;
	hz_linear *layer;
	hz_tensor x, y;
	float *dense;
};

static int call_linear(struct bench *b, struct bench_case *c)
{
	struct linear_case *const q = (struct linear_case *)c;
	const hz_linear_opts o = {.activation = q->row->flags & GELU ? HZ_ACT_GELU : HZ_ACT_NONE};

	if (q->row->flags & DEQUANTIZE)
		return hz_linear_dequantize(b->ctx, q->layer, &q->y);
	return q->row->flags & BWD ? hz_linear_bwd(b->ctx, q->layer, &q->x, &q->y) :
				     hz_linear_forward(b->ctx, q->layer, &q->x, NULL, &q->y, &o);
}

static int call_read(struct bench *b, struct bench_case *c)
{
	const struct linear_case *const q = (const struct linear_case *)c;

	return bench_read(b, q->dense, q->row->out * q->row->in);
}

static const char *op_of(const struct row *r)
{
	return r->flags & DEQUANTIZE ? "linear_dequantize" :
	       r->flags & BWD ? "linear_bwd" : "linear_forward";
}

static int make_case(struct bench *b, struct linear_case *q)
{
	const struct row *const r = q->row;
	const int device = hz_device(b->ctx);
	const hz_linear_open_opts o = {.format = r->format,
				       .flags = r->flags & ROTATE ? HZ_LINEAR_ROTATE : 0};
	const hz_tensor w = hz_tensor_2d(b->y, HZ_F32, device, r->out, r->in);
	hz_linear_info info = {0};
	int status = bench_fill(b, HZ_F32, r->out * r->in, w);

	if (!status)
		status = hz_linear_open(b->ctx, &q->layer, &w, &o);
	if (!status)
		status = hz_linear_get_info(q->layer, &info);
	q->x = hz_tensor_2d(b->x, HZ_F32, device, r->rows, r->flags & BWD ? r->out : r->in);
	q->y = hz_tensor_2d(b->y, HZ_F32, device, r->flags & DEQUANTIZE ? r->out : r->rows,
			    r->flags & (BWD | DEQUANTIZE) ? r->in : r->out);
	if (!status)
		status = bench_fill(b, HZ_F32, hz_tensor_count(&q->x), q->x);
	if (!status)
		status = RESERVE_FOR(b->ctx, call_linear(b, &q->c));
	q->c.call = call_linear;
	q->c.operations = 2 * (double)r->out * (double)r->in * (double)r->rows;
	q->c.moved_bytes = (double)(info.bytes + hz_tensor_bytes(&q->x) + hz_tensor_bytes(&q->y));
	q->c.large = q->c.operations > 1e10;
	if (r->flags & DEQUANTIZE)
		snprintf(q->c.name, sizeof(q->c.name), "%lldx%lld %s%s", (long long)r->out,
			 (long long)r->in, hz_linear_format_name(r->format),
			 r->flags & ROTATE ? " rotated" : "");
	else
		snprintf(q->c.name, sizeof(q->c.name), "%lldx%lldx%lld %s%s%s", (long long)r->out,
			 (long long)r->rows, (long long)r->in, hz_linear_format_name(r->format),
			 r->flags & ROTATE ? " rotated" : "", r->flags & GELU ? " gelu" : "");
	snprintf(q->c.dtype, sizeof(q->c.dtype), "f32");
	if (b->gpu) {
		bench_products_of(b, &q->c, HZ_F32, q->c.operations / 2);
	} else if (r->rows <= 8) {
		if (!status)
			status = hz_alloc(b->ctx, (void **)&q->dense,
					  (size_t)(r->out * r->in) * 4, HZ_CPU);
		if (!status)
			status = bench_fill(b, HZ_F32, r->out * r->in,
					    hz_tensor_1d(q->dense, HZ_F32, HZ_CPU, r->out * r->in));
		q->c.ceiling = call_read;
		q->c.against = "a read of W in f32";
	} else {
		q->c.ceiling = bench_peak;
		q->c.against = "bare multiply-adds";
	}
	return status;
}

int bench_linear(struct bench *b, void (*head)(struct bench *b))
{
	int status = 0;

	for (size_t i = 0; i < ROWS && !status; i++) {
		struct linear_case q = {.row = &rows[i], .c.op = op_of(&rows[i])};

		if (!bench_wanted(b->set, q.c.op) ||
		    (b->set->quick && !(rows[i].flags & QUICK)) ||
		    rows[i].out * (rows[i].in > rows[i].rows ? rows[i].in : rows[i].rows) >
			    b->elements)
			continue;
		head(b);
		progress("bench: %s", q.c.op);
		status = bench_made(b, &q.c, make_case(b, &q));
		hz_linear_close(q.layer);
		if (q.dense)
			hz_free(b->ctx, q.dense, HZ_CPU);
	}
	return status;
}
