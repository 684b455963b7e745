/*
 * bench.c - hurwitz bench of quantization and integer matrix products
 *
 * SPDX-License-Identifier: BSD-2-Clause
 *
 * Quantization is compared with a copy of the bytes that it moves. A product of few rows or columns
 * is compared with reading the other matrix, others with the integer dot-product instructions alone,
 * if the ISA level has them. Codes are random: the clock frequency depends on the data.
 */
#include <config.h>

#include <stdlib.h>
#include <string.h>

#include "tools/core/bench_grid.h"
#include "cpu/peak/kern.h"
#include "lib/core/internal.h"

enum kind { QUANTIZE, DEQUANTIZE, CHOOSE, QGEMM, QLINEAR, GROUPS };

/* COLUMN_SCALES: a scale per column; PADDED: a gap of GAP elements after each row; TRANSPOSED: the
 * float operand is transposed; BASE: rotation by a base matrix; IN_F32: requant=float; MX: a scale
 * of e8m0 for each 32 elements; NV: of e4m3 for each 16, with one of the tensor; CODES: x becomes
 * codes by 32 values, or by rows with ROW_SCALES. GROUPS: weights with a scale of f16 for each 128
 * of k, MX: for each 32. */
enum {
	QUICK = 1, ROW_SCALES = 2, ROTATED = 4, COLUMN_SCALES = 8, PADDED = 16, TRANSPOSED = 32,
	BASE = 64, IN_F32 = 128, MX = 256, NV = 512, CODES = 1024
};

#define GAP 64			/* elements between rows with PADDED */

static const struct row {
	enum kind kind;
	int flags;
	int x_dtype, q_dtype;		/* of a product: C or x, and A and B */
	int64_t m, n, k;		/* 0: all elements, in rows of 4096, of 5120 with BASE */
	int64_t items;			/* batch size; 0: no batch */
} rows[] = {
	{QUANTIZE, QUICK, HZ_F32, HZ_U8, 0, 0, 0, 0},
	{QUANTIZE, 0, HZ_BF16, HZ_S8, 0, 0, 0, 0},
	{QUANTIZE, ROW_SCALES, HZ_F32, HZ_S8, 0, 0, 0, 0},
	{QUANTIZE, ROTATED, HZ_F32, HZ_S8, 0, 0, 0, 0},
	{QUANTIZE, ROTATED | ROW_SCALES, HZ_BF16, HZ_S8, 0, 0, 0, 0},
	{QUANTIZE, ROTATED | BASE | ROW_SCALES, HZ_BF16, HZ_S8, 0, 0, 0, 0},
	{QUANTIZE, COLUMN_SCALES, HZ_BF16, HZ_S8, 0, 0, 0, 0},
	{QUANTIZE, ROW_SCALES | PADDED, HZ_BF16, HZ_S8, 0, 0, 0, 0},
	{QUANTIZE, TRANSPOSED, HZ_F32, HZ_U8, 0, 0, 0, 0},
	{QUANTIZE, MX | QUICK, HZ_BF16, HZ_E2M1X2, 0, 0, 0, 0},
	{QUANTIZE, MX, HZ_BF16, HZ_E4M3, 0, 0, 0, 0},
	{QUANTIZE, NV, HZ_BF16, HZ_E2M1X2, 0, 0, 0, 0},
	{QUANTIZE, MX | ROTATED, HZ_BF16, HZ_E2M1X2, 0, 0, 0, 0},
	{DEQUANTIZE, MX, HZ_BF16, HZ_E2M1X2, 0, 0, 0, 0},
	{DEQUANTIZE, QUICK, HZ_F32, HZ_U8, 0, 0, 0, 0},
	{DEQUANTIZE, 0, HZ_BF16, HZ_S8, 0, 0, 0, 0},
	{DEQUANTIZE, ROTATED, HZ_BF16, HZ_S8, 0, 0, 0, 0},
	{DEQUANTIZE, ROTATED | BASE, HZ_BF16, HZ_S8, 0, 0, 0, 0},
	{DEQUANTIZE, ROTATED | BASE | ROW_SCALES, HZ_BF16, HZ_S8, 0, 0, 0, 0},
	{CHOOSE, QUICK, HZ_F32, HZ_U8, 0, 0, 0, 0},
	{CHOOSE, 0, HZ_BF16, HZ_U8, 0, 0, 0, 0},
	{CHOOSE, ROW_SCALES, HZ_F32, HZ_S8, 0, 0, 0, 0},
	{CHOOSE, COLUMN_SCALES, HZ_F32, HZ_S8, 0, 0, 0, 0},
	{CHOOSE, ROW_SCALES | PADDED, HZ_F32, HZ_S8, 0, 0, 0, 0},
	{QGEMM, QUICK, HZ_U8, HZ_U8, 1024, 1024, 1024, 0},
	{QGEMM, 0, HZ_U8, HZ_U8, 2048, 2048, 2048, 0},
	{QGEMM, 0, HZ_U8, HZ_U8, 4096, 4096, 4096, 0},
	{QGEMM, QUICK, HZ_U8, HZ_U8, 1, 4096, 4096, 0},
	{QGEMM, 0, HZ_U8, HZ_U8, 4, 4096, 4096, 0},
	{QGEMM, 0, HZ_U8, HZ_U8, 8, 4096, 4096, 0},
	{QGEMM, QUICK, HZ_U8, HZ_U8, 16, 4096, 4096, 0},
	{QGEMM, 0, HZ_U8, HZ_U8, 32, 4096, 4096, 0},
	{QGEMM, 0, HZ_U8, HZ_U8, 64, 4096, 4096, 0},
	{QGEMM, 0, HZ_U8, HZ_U8, 128, 11008, 4096, 0},
	{QGEMM, 0, HZ_U8, HZ_U8, 256, 11008, 4096, 0},
	{QGEMM, 0, HZ_F32, HZ_U8, 1024, 1024, 1024, 0},
	{QGEMM, ROW_SCALES, HZ_U8, HZ_U8, 64, 4096, 4096, 0},
	{QGEMM, PADDED, HZ_U8, HZ_U8, 64, 4096, 4096, 0},
	{QGEMM, IN_F32, HZ_U8, HZ_U8, 64, 4096, 4096, 0},
	{QGEMM, QUICK, HZ_S32, HZ_S8, 4096, 1, 4096, 0},
	{QGEMM, 0, HZ_S32, HZ_S8, 4096, 8, 4096, 0},
	{QGEMM, 0, HZ_U8, HZ_U8, 128, 128, 16384, 0},
	{QGEMM, 0, HZ_U8, HZ_U8, 128, 128, 64, 64},
	{QGEMM, 0, HZ_U8, HZ_U8, 16, 256, 256, 256},
	{QLINEAR, QUICK, HZ_BF16, HZ_S8, 1, 4096, 4096, 0},
	{QLINEAR, 0, HZ_BF16, HZ_S8, 16, 4096, 4096, 0},
	{QLINEAR, 0, HZ_BF16, HZ_S8, 1024, 1024, 1024, 0},
	{GROUPS, QUICK | CODES, HZ_BF16, HZ_S4X2, 1, 4096, 4096, 0},
	{GROUPS, CODES, HZ_BF16, HZ_S4X2, 8, 4096, 4096, 0},
	{GROUPS, CODES, HZ_BF16, HZ_S4X2, 512, 4096, 4096, 0},
	{GROUPS, CODES, HZ_BF16, HZ_S4X2, 1, 14336, 4096, 0},
	{GROUPS, CODES | ROW_SCALES, HZ_BF16, HZ_S4X2, 1024, 4096, 4096, 0},
	{GROUPS, CODES | MX, HZ_BF16, HZ_E2M1X2, 1, 4096, 4096, 0},
	{GROUPS, CODES, HZ_BF16, HZ_S8, 1, 4096, 4096, 0},
	{GROUPS, QUICK, HZ_BF16, HZ_S4X2, 1, 4096, 4096, 0},
	{GROUPS, 0, HZ_F16, HZ_S4X2, 1, 4096, 4096, 0},
	{GROUPS, MX, HZ_BF16, HZ_E2M1X2, 1, 4096, 4096, 0},
	{GROUPS, 0, HZ_BF16, HZ_S4X2, 8, 4096, 4096, 0},
	{GROUPS, 0, HZ_BF16, HZ_S4X2, 16, 4096, 4096, 0},
	{GROUPS, 0, HZ_BF16, HZ_S4X2, 64, 4096, 4096, 0},
	{GROUPS, 0, HZ_F16, HZ_S4X2, 64, 4096, 4096, 0},
	{GROUPS, 0, HZ_BF16, HZ_S4X2, 256, 4096, 4096, 0},
	{GROUPS, 0, HZ_BF16, HZ_S4X2, 1024, 4096, 4096, 0},
};

#define ROWS (sizeof(rows) / sizeof(*rows))

static const char *const op_names[] = {
	[QUANTIZE] = "quantize", [DEQUANTIZE] = "dequantize", [CHOOSE] = "choose_qparams",
	[QGEMM] = "qgemm", [QLINEAR] = "qlinear", [GROUPS] = "qlinear_group",
};

struct qcase {
	struct bench_case c;
	const struct row *row;
	hz_tensor x, q, scales, zeros, factor;	/* of a product x is A or x, q is C or y */
	hz_quantize_opts quantize;
	hz_hadamard_opts rotation;
	hz_qgemm_opts gemm;
	hz_qlinear_group_opts group;
	hz_packed packed;
	void *blob, *read;		/* packed B; read_bytes of zeros */
	int64_t read_bytes;
};

static int call_codes(struct bench *b, struct bench_case *c)
{
	struct qcase *q = (struct qcase *)c;

	switch (q->row->kind) {
	case QUANTIZE:
		return hz_quantize(b->ctx, &q->x, &q->q, &q->quantize);
	case DEQUANTIZE:
		return hz_dequantize(b->ctx, &q->q, &q->x, &q->quantize);
	default:
		return hz_choose_qparams(b->ctx, &q->x, &q->scales, &q->zeros, 0);
	}
}

static int call_product(struct bench *b, struct bench_case *c)
{
	struct qcase *q = (struct qcase *)c;

	if (q->row->kind == GROUPS)
		return hz_qlinear_group(b->ctx, &q->x, NULL, NULL, &q->q, &q->group);
	if (q->row->kind == QLINEAR)
		return hz_qlinear(b->ctx, &q->x, NULL, &q->q, &q->gemm);
	return hz_qgemm(b->ctx, &q->x, NULL, &q->q, &q->gemm);
}

static int search_share(const void *arg, int64_t begin, int64_t end)
{
	return memchr((const char *)arg + begin, 1, (size_t)(end - begin)) ? HZ_EINVAL : HZ_OK;
}

/* Reads as many bytes as B has: searches them for a byte that does not occur. */
static int call_read(struct bench *b, struct bench_case *c)
{
	const struct qcase *q = (struct qcase *)c;

	return bench_parallel(b, q->read_bytes, 1, search_share, q->read);
}

static int dot_share(const void *arg, int64_t begin, int64_t end)
{
	((const struct hzi_peak_kern *)arg)->dot(end - begin);
	return HZ_OK;
}

/* As many integer dot-product instructions, on registers */
static int call_peak(struct bench *b, struct bench_case *c)
{
	return bench_parallel(b, (int64_t)(c->operations / 2), 1, dot_share,
			      hzi_peak_kern + b->ctx->level);
}

/* Fills the operands of a case with a scale for each group of a row. */
static int make_groups(struct bench *b, struct qcase *q)
{
	const struct row *r = q->row;
	const int64_t m = q->x.shape[0], n = q->x.shape[1], group = r->flags & MX ? 32 : 16;
	const int64_t codes = m * q->q.shape[1];
	int status = bench_fill(b, r->x_dtype, m * n, q->x);

	q->scales = hz_tensor_2d(b->scale, r->flags & MX ? HZ_E8M0 : HZ_E4M3, hz_device(b->ctx), m,
				 n / group);
	q->factor = hz_tensor_1d((char *)b->from, HZ_F32, hz_device(b->ctx), 1);
	q->quantize = (hz_quantize_opts){.group = group};
	if (r->kind == QUANTIZE)
		q->quantize.new_scales = &q->scales;
	else
		q->quantize.scales = &q->scales;
	if (r->flags & NV)
		q->quantize.new_tensor_scale = &q->factor;
	if (r->flags & ROTATED)
		q->quantize.hadamard = &q->rotation;
	if (!status && r->kind == DEQUANTIZE)
		status = bench_fill(b, HZ_U8, codes, hz_tensor_1d(b->y, HZ_U8, q->q.device, codes));
	if (!status)
		status = RESERVE_FOR(b->ctx, call_codes(b, &q->c));
	bench_copy_of(b, &q->c);
	q->c.ceiling = bench_copy;
	q->c.against = b->gpu ? "device copy" : "memcpy";
	return status;
}

static int make_codes(struct bench *b, struct qcase *q)
{
	const struct row *r = q->row;
	const int device = hz_device(b->ctx);
	/* as many bytes for each float dtype, more than the caches hold */
	const int64_t elements = b->elements * 4 / (int64_t)hz_dtype_size(r->x_dtype);
	const int64_t n = r->flags & BASE ? 5120 : 4096, pitch = r->flags & PADDED ? n + GAP : n;
	const int64_t m = elements / pitch;
	const int64_t scale_rows = r->flags & ROW_SCALES ? m : 1;
	const int64_t scale_cols = r->flags & COLUMN_SCALES ? n : 1;
	const int64_t params = scale_rows * scale_cols;
	hz_tensor values = hz_tensor_2d(b->x, r->x_dtype, device, m, n);
	char size[16];
	int status;

	values.stride[0] = pitch;
	if (r->flags & TRANSPOSED) {
		values.stride[0] = 1;
		values.stride[1] = m;
	}
	q->x = values;
	q->q = hz_tensor_2d(b->y, r->q_dtype, device, m, r->q_dtype == HZ_E2M1X2 ? n / 2 : n);
	if (r->flags & PADDED)
		q->q.stride[0] = pitch;
	q->scales = hz_tensor_2d(b->scale, HZ_F32, device, scale_rows, scale_cols);
	q->zeros = hz_tensor_2d((char *)b->scale + 4 * params, r->q_dtype, device, scale_rows,
				scale_cols);
	q->c.moved_bytes = (double)hz_tensor_bytes(&q->x);
	if (r->kind != CHOOSE)
		q->c.moved_bytes += (double)hz_tensor_bytes(&q->q);
	q->c.operations = (double)(m * n);
	q->c.call = call_codes;
	q->c.large = true;
	snprintf(size, sizeof(size), " n=%d", (int)n);
	snprintf(q->c.name, sizeof(q->c.name), "%s%s%s%s%s",
		 r->flags & MX ? "groups of 32 e8m0" : r->flags & NV ? "groups of 16 e4m3"
		 : r->flags & ROW_SCALES ? "per row"
		 : r->flags & COLUMN_SCALES ? "per column" : "per tensor",
		 r->flags & (ROW_SCALES | COLUMN_SCALES) ? size : "",
		 r->flags & PADDED ? " apart" : r->flags & TRANSPOSED ? " transposed" : "",
		 r->flags & ROTATED ? " rotated" : "",
		 r->flags & ROTATED && !(r->flags & ROW_SCALES) ? size : "");
	snprintf(q->c.dtype, sizeof(q->c.dtype), "%s:%s",
		 hz_dtype_name(r->kind == DEQUANTIZE ? r->q_dtype : r->x_dtype),
		 hz_dtype_name(r->kind == DEQUANTIZE ? r->x_dtype : r->q_dtype));
	if (r->flags & (MX | NV))
		return make_groups(b, q);
	if (r->flags & BASE)
		q->rotation = (hz_hadamard_opts){.plan = HZ_PLAN_TRUE, .order = 20};
	status = bench_fill(b, r->x_dtype, elements, q->x);
	if (!status && r->kind == DEQUANTIZE)
		status = bench_fill(b, r->q_dtype, elements, q->q);
	if (!status && r->kind == QUANTIZE && r->flags & ROTATED) {
		/* ranges of the elements that quantization reads */
		values.data = b->from;
		status = WITH_WORKSPACE(b->ctx,
					hz_hadamard(b->ctx, &q->x, &values, &q->rotation));
	}
	if (!status)
		status = WITH_WORKSPACE(b->ctx, hz_choose_qparams(b->ctx, &values, &q->scales,
								  &q->zeros, 0));
	if (params > 1) {
		q->quantize.scales = &q->scales;
		q->quantize.zeros = &q->zeros;
	} else {
		q->quantize.scale = 0.03;
		q->quantize.zero = 10;
	}
	if (r->flags & ROTATED)
		q->quantize.hadamard = &q->rotation;
	if (!status)
		status = RESERVE_FOR(b->ctx, call_codes(b, &q->c));
	bench_copy_of(b, &q->c);
	q->c.ceiling = bench_copy;
	q->c.against = b->gpu ? "device copy" : "memcpy";
	return status;
}

/* A matrix with `gap` elements between scale_rows; a batch if r has items */
static hz_tensor product_matrix(const struct row *r, void *data, int dtype, int device, int64_t m,
				int64_t n, int64_t gap)
{
	hz_tensor t = hz_tensor_2d(data, dtype, device, m, n);

	if (r->items)
		return hz_tensor_3d(data, dtype, device, r->items, m, n);
	t.stride[0] += gap;
	return t;
}

/* Packs W of a case, for one of qlinear_group with its scales. */
static int make_weights(struct bench *b, struct qcase *q, const hz_tensor *w)
{
	const struct row *r = q->row;
	const int64_t group_count = r->k / (r->flags & MX ? 32 : 128);
	const hz_tensor scales = hz_tensor_2d(b->to, HZ_F16, w->device, group_count, r->n);
	const bool groups = r->kind == GROUPS;
	size_t bytes;
	/* Bytes of two codes are as random as one. */
	int status = bench_fill(b, groups ? HZ_U8 : r->q_dtype, hz_tensor_count(w), *w);

	if (groups && !status)
		status = bench_fill(b, HZ_F16, group_count * r->n, scales);
	if (!status)
		status = groups ? hz_qlinear_group_pack_bytes(b->ctx, w, &scales, NULL, &bytes)
				: hz_qgemm_pack_bytes(b->ctx, w, &bytes);
	if (!status)
		status = hz_alloc(b->ctx, &q->blob, bytes, w->device);
	if (!status)
		status = groups ? hz_qlinear_group_pack(b->ctx, w, &scales, NULL, q->blob, bytes,
							&q->packed)
				: hz_qgemm_pack(b->ctx, w, q->blob, bytes, &q->packed);
	q->group = (hz_qlinear_group_opts){.packed = &q->packed};
	if (r->flags & CODES) {
		q->group.x_dtype = HZ_S8;
		q->group.x_group = r->flags & ROW_SCALES ? 0 : 32;
	}
	return status;
}

static int make_product(struct bench *b, struct qcase *q)
{
	const struct row *r = q->row;
	const int device = hz_device(b->ctx);
	const int x_dtype = r->kind == QGEMM ? r->q_dtype : r->x_dtype;
	const int64_t items = r->items ? r->items : 1;
	char items_text[32] = "";
	const hz_tensor plain = product_matrix(r, b->from, r->q_dtype, device,
					       r->kind == GROUPS && r->q_dtype != HZ_S8
						       ? r->k / 2 : r->k, r->n, 0);
	int status;

	q->x = product_matrix(r, b->x, x_dtype, device, r->m, r->k, 0);
	/* With PADDED rows of C have a gap of one element, so that none is aligned. */
	q->q = product_matrix(r, b->y, r->x_dtype, device, r->m, r->n, r->flags & PADDED ? 1 : 0);
	q->c.operations = 2.0 * (double)items * (double)r->m * (double)r->n * (double)r->k;
	q->c.call = call_product;
	q->c.large = q->c.operations > 1e10;
	q->c.ceiling = bench_copy;
	q->c.against = "memcpy";
	if (r->items)
		snprintf(items_text, sizeof(items_text), "%lld of ", (long long)r->items);
	snprintf(q->c.name, sizeof(q->c.name), "%s%lldx%lldx%lld%s", items_text, (long long)r->m,
		 (long long)r->n, (long long)r->k,
		 r->flags & CODES ? r->flags & ROW_SCALES ? " x in s8 by rows" : " x in s8" :
		 r->flags & ROW_SCALES ? " zeros of rows" : r->flags & PADDED ? " apart" :
		 r->flags & IN_F32 ? " requant=float" : "");
	snprintf(q->c.dtype, sizeof(q->c.dtype), "%s:%s", hz_dtype_name(x_dtype),
		 hz_dtype_name(r->kind == GROUPS ? r->q_dtype : r->x_dtype));
	status = bench_fill(b, x_dtype, items * r->m * r->k, q->x);
	if (!status)
		status = make_weights(b, q, &plain);
	q->gemm = (hz_qgemm_opts){.packed = &q->packed, .b_zero = 5, .b_scale = 0.01};
	if (r->kind == QGEMM && r->x_dtype != HZ_S32) {
		q->gemm.a_zero = 127;
		q->gemm.a_scale = 0.02;
	}
	if (r->x_dtype == HZ_S32)
		q->gemm.b_scale = 0;
	if (r->flags & IN_F32)
		q->gemm.requant = HZ_REQUANT_FLOAT;
	if (r->kind == QGEMM && r->flags & ROW_SCALES) {
		q->zeros = hz_tensor_1d(b->scale, r->q_dtype, device, r->m);
		q->gemm.a_zero = 0;
		q->gemm.a_zeros = &q->zeros;
		if (!status)
			status = bench_fill(b, r->q_dtype, r->m, q->zeros);
	}
	if (r->x_dtype == HZ_U8) {
		q->gemm.c_zero = 128;
		q->gemm.c_scale = 0.5;
	}
	if (!status)
		status = RESERVE_FOR(b->ctx, call_product(b, &q->c));
	q->c.moved_bytes = (double)hz_tensor_bytes(&plain) + (double)hz_tensor_bytes(&q->x) +
			   (double)hz_tensor_bytes(&q->q);
	if (b->gpu)
		bench_products_of(b, &q->c, HZ_S8, q->c.operations / 2);
	else
		bench_copy_of(b, &q->c);
	if (b->gpu || status)
		return status;
	if (r->m > 16 && r->n > 16 && hzi_peak_kern[b->ctx->level].dot) {
		q->c.ceiling = call_peak;
		q->c.against = "bare dot products";
	} else if (r->m <= 16 || r->n <= 16) {
		q->read_bytes = (int64_t)q->packed.bytes;
		if (r->n <= 16)
			q->read_bytes = r->m * r->k;
		status = hz_alloc(b->ctx, &q->read, (size_t)q->read_bytes, device);
		if (!status)
			memset(q->read, 0, (size_t)q->read_bytes);
		q->c.ceiling = call_read;
		q->c.against = "memchr, which reads";
	}
	return status;
}

static int run_case(struct bench *b, const struct row *r)
{
	struct qcase q = {.row = r, .c.op = op_names[r->kind]};
	int status;

	progress("bench: %s", q.c.op);
	status = r->kind >= QGEMM ? make_product(b, &q) : make_codes(b, &q);
	status = bench_made(b, &q.c, status);
	if (q.blob)
		hz_free(b->ctx, q.blob, hz_device(b->ctx));
	if (q.read)
		hz_free(b->ctx, q.read, hz_device(b->ctx));
	return status;
}

int bench_qgemm(struct bench *b, void (*head)(struct bench *b))
{
	int status = 0;

	for (size_t i = 0; i < ROWS && !status; i++) {
		const struct row *r = &rows[i];

		if (!bench_wanted(b->set, op_names[r->kind]) ||
		    (b->set->quick && !(r->flags & QUICK)))
			continue;
		head(b);
		status = run_case(b, r);
	}
	return status;
}

/* ---- The grid -------------------------------------------------------------------------------- */

/* W is [n, k], as layers have it: B is its transposed view. */
static int grid_make(struct bench *b, struct grid_case *g)
{
	const int dtype = g->dtype == HZ_U8 ? HZ_U8 : HZ_S8, device = hz_device(b->ctx);
	hz_tensor w = hz_tensor_2d(b->y, dtype, device, g->width, g->width);
	size_t bytes;
	int status;

	w.stride[0] = 1;
	w.stride[1] = g->width;
	status = hz_qgemm_pack_bytes(b->ctx, &w, &bytes);
	if (!status)
		status = grid_weights(b, g, (size_t)(g->width * g->width), bytes);
	w.data = g->source;
	if (!status)
		status = bench_fill(b, dtype, g->width * g->width, w);
	if (!status && g->packed)
		status = hz_qgemm_pack(b->ctx, &w, g->weights, bytes, &g->pack);
	g->w = w;
	g->qgemm = (hz_qgemm_opts){.packed = g->packed ? &g->pack : NULL, .b_zero = 5,
				   .b_scale = 0.01};
	if (g->op->y_dtype == HZ_U8) {
		g->qgemm.a_zero = 127;
		g->qgemm.a_scale = 0.02;
		g->qgemm.c_zero = 128;
		g->qgemm.c_scale = 0.5;
	}
	return status;
}

static int grid_call(struct bench *b, struct bench_case *c)
{
	struct grid_case *g = (struct grid_case *)c;
	const hz_tensor *w = g->packed ? NULL : &g->w;

	g->w.data = g->pack.data = grid_turn(g);
	return g->op->y_dtype == HZ_U8 ? hz_qgemm(b->ctx, &g->x, w, &g->y, &g->qgemm)
				       : hz_qlinear(b->ctx, &g->x, w, &g->y, &g->qgemm);
}

/* s4 codes [n, k / 2] and behind them their scales [n, k / 128], as checkpoints have them */
struct grid_group {
	hz_tensor scales;
	hz_qlinear_group_opts opts;
};

static int grid_make_group(struct bench *b, struct grid_case *g)
{
	const int device = hz_device(b->ctx);
	const int64_t n = g->width, codes = n * n / 2;
	hz_tensor w = hz_tensor_2d(b->y, HZ_S4X2, device, n, n / 2);
	hz_tensor scales = hz_tensor_2d(b->scale, HZ_F16, device, n, n / 128);
	hz_tensor wt = hz_view_transpose(&w, 0, 1), st = hz_view_transpose(&scales, 0, 1);
	struct grid_group *own = g->own = calloc(1, sizeof(*own));
	size_t bytes = 0;
	int status = own ? HZ_OK : HZ_ENOMEM;

	if (!status)
		status = hz_qlinear_group_pack_bytes(b->ctx, &wt, &st, NULL, &bytes);
	if (!status)
		status = grid_weights(b, g, (size_t)(codes + n * n / 64), bytes);
	wt.data = g->source;
	st.data = (char *)g->source + codes;
	if (!status)
		status = bench_fill(b, HZ_U8, codes, wt);
	if (!status)
		status = bench_fill(b, HZ_F16, n * n / 128, st);
	if (!status && g->packed)
		status = hz_qlinear_group_pack(b->ctx, &wt, &st, NULL, g->weights, bytes, &g->pack);
	if (status)
		return status;
	g->w = wt;
	own->scales = st;
	own->opts.packed = g->packed ? &g->pack : NULL;
	own->opts.x_dtype = g->op->kind;
	own->opts.x_group = g->op->kind ? 32 : 0;
	return HZ_OK;
}

static void grid_release_group(struct bench *b, struct grid_case *g)
{
	(void)b;
	free(g->own);
}

static int grid_call_group(struct bench *b, struct bench_case *c)
{
	struct grid_case *g = (struct grid_case *)c;
	struct grid_group *own = g->own;
	char *const at = grid_turn(g);

	g->w.data = g->pack.data = at;
	own->scales.data = at + g->width * g->width / 2;
	return hz_qlinear_group(b->ctx, &g->x, g->packed ? NULL : &g->w,
				g->packed ? NULL : &own->scales, &g->y, &own->opts);
}

static int grid_call_quantize(struct bench *b, struct bench_case *c)
{
	struct grid_case *g = (struct grid_case *)c;
	const hz_quantize_opts opts = {.scale = 0.0473};	/* no tie is a bf16 or f16 */

	return hz_quantize(b->ctx, &g->x, &g->y, &opts);
}

const struct grid_op grid_qgemm[] = {
	{"qgemm", "", 0, {HZ_U8}, .y_dtype = HZ_U8, .packs = true, .weights = 1, .weight_bits = 8,
	 .macs = 1, .mac_dtype = HZ_S8, .make = grid_make, .call = grid_call},
	{"qlinear", "", 0, {HZ_F32, HZ_F16, HZ_BF16}, .packs = true, .weights = 1, .weight_bits = 8,
	 .macs = 1, .macs_f32 = 1, .mac_dtype = HZ_S8, .make = grid_make, .call = grid_call},
	{"qlinear_group", "s4 g128", 0, {HZ_F32, HZ_F16, HZ_BF16}, .packs = true, .weights = 1,
	 .weight_bits = 4.125, .macs = 1, .macs_f32 = 1, .make = grid_make_group,
	 .call = grid_call_group, .release = grid_release_group},
	{"qlinear_group", "s4 g128 x=s8", HZ_S8, {HZ_F32, HZ_F16, HZ_BF16}, .packs = true,
	 .weights = 1, .weight_bits = 4.125, .macs = 1, .macs_f32 = 1, .mac_dtype = HZ_S8,
	 .make = grid_make_group, .call = grid_call_group, .release = grid_release_group},
	{"quantize", "s8", 0, {HZ_F32, HZ_F16, HZ_BF16}, .y_dtype = HZ_S8,
	 .call = grid_call_quantize},
	{0},
};
