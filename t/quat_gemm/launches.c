/*
 * launches.c - products of quaternion matrices for the launch trace
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#include <config.h>

#include "t/core/launches.h"
#include "t/core/record.h"

struct gemm_row {
	int64_t items, m, n, k;
	int dtype, op_a, method, precision;
	bool packed, by_columns;	/* B and C */
	int skew;
};

static int run_gemm(const void *row)
{
	const struct gemm_row *const r = row;
	const bool transposed = r->op_a == HZ_QUAT_T || r->op_a == HZ_QUAT_H;
	const hz_quat_gemm_opts pack_opts = {.method = r->method, .precision = r->precision};
	const int64_t rows = transposed ? r->k : r->m, cols = transposed ? r->m : r->k;
	const hz_tensor a = r->items > 1 ?
			    view_at(r->dtype, SHAPE(r->items, r->m, r->k, 4), r->skew) :
			    view_at(r->dtype, SHAPE(rows, cols, 4), r->skew);
	hz_tensor b = r->items > 1 ? V(r->dtype, r->items, r->k, r->n, 4) :
				       V(r->dtype, r->k, r->n, 4);
	hz_tensor c = r->items > 1 ? V(r->dtype, r->items, r->m, r->n, 4) :
				       V(r->dtype, r->m, r->n, 4);
	hz_quat_gemm_opts o = {.op_a = r->op_a, .method = r->method, .precision = r->precision};
	hz_packed packed;
	size_t bytes;
	int status;

	note(" op %d method %d precision %d", r->op_a, r->method, r->precision);
	if (r->by_columns && r->items <= 1) {
		b.stride[0] = c.stride[0] = 4;
		b.stride[1] = 4 * r->k;
		c.stride[1] = 4 * r->m;
		note(" by columns");
	}
	if (r->packed) {
		note(" packed");
		status = hz_quat_gemm_pack_bytes(ctx, &a, &pack_opts, &bytes);
		if (status == HZ_OK)
			status = hz_quat_gemm_pack(ctx, &a, PACKED_AT,
						   bytes, &packed, &pack_opts);
		if (status != HZ_OK)
			return status;
		o.packed = &packed;
	}
	RECORD(ctx, hz_quat_gemm(ctx, r->packed ? NULL : &a, &b, &c, &o), &workspace);
	return hz_quat_gemm(ctx, r->packed ? NULL : &a, &b, &c, &o);
}

void trace_quat_gemm(void)
{
	static const int64_t sizes[][3] = {
		{4096, 1, 4096}, {4096, 2, 4096}, {4096, 3, 4096}, {4096, 8, 4096}, {64, 1, 4096},
		{512, 1, 4096}, {100, 1, 101}, {100, 9, 101}, {1024, 1024, 1024}, {7, 9, 0},
		{1024, 4096, 1024}, {200, 64, 300}, {33, 10, 20}, {4096, 4096, 4096},
		{1000, 160, 1000}, {64, 20000, 64}, {129, 129, 129},
	};

	EACH(d, floats) {
		EACH(i, sizes) {
			const int precisions = floats[d] == HZ_F32 ? 4 : 2;

			for (int p = 0; p < precisions; p++) {
				for (int op = 0; op < 4; op++) {
					struct gemm_row r = {1, sizes[i][0], sizes[i][1],
							     sizes[i][2], floats[d], op,
							     HZ_QUAT_DIRECT, p, false, false, 0};

					if (p && op % 2)
						continue;
					trace("quat_gemm", run_gemm, &r);
					r.method = HZ_QUAT_FAST;
					trace("quat_gemm", run_gemm, &r);
					r.by_columns = true;
					if (op < 2 && p < 3)
						trace("quat_gemm", run_gemm, &r);
					r.by_columns = false;
					r.packed = true;
					if (op == 0 || op == HZ_QUAT_H)
						trace("quat_gemm", run_gemm, &r);
					r.packed = false;
					r.skew = (int)hz_dtype_size(floats[d]);
					if (op == 0 && p == 0)
						trace("quat_gemm", run_gemm, &r);
					r.skew = 0;
					r.items = 12;
					if (op == 0 && p == 0 && i > 5)
						trace("quat_gemm", run_gemm, &r);
				}
			}
		}
	}
}
