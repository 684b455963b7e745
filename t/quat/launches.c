/*
 * launches.c - elementwise quaternion calls for the launch trace
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#include <config.h>

#include "t/core/launches.h"
#include "t/core/record.h"

/* Operands planar or interleaved; one_a, one_b: one row, broadcast */
struct quat_row {
	int call, dtype;
	int64_t rows, n;
	bool one_a, one_b, planar;
	uint32_t flags;
};

static hz_tensor quats(const struct quat_row *r, int64_t rows)
{
	hz_tensor t = V(r->dtype, rows, r->n, 4);

	if (r->planar) {
		t.stride[2] = rows * r->n;
		t.stride[1] = 1;
		t.stride[0] = r->n;
	}
	return t;
}

static int run_quat(const void *row)
{
	const struct quat_row *const r = row;
	const hz_tensor a = quats(r, r->one_a ? 1 : r->rows), b = quats(r, r->one_b ? 1 : r->rows);
	hz_tensor y = quats(r, r->rows), da = quats(r, a.shape[0]), db = quats(r, b.shape[0]);

	note("%s flags %u", r->planar ? " planes" : "", r->flags);
	switch (r->call) {
	case 0:
		return hz_quat_mul(ctx, &a, &b, &y, r->flags);
	case 1:
		RECORD(ctx, hz_quat_mul_bwd(ctx, &a, &b, &y, &da, &db, r->flags), &workspace);
		return hz_quat_mul_bwd(ctx, &a, &b, &y, &da, &db, r->flags);
	case 2:
		return hz_quat_rotate(ctx, &a, &b, &y, r->flags);
	case 3:
		RECORD(ctx, hz_quat_rotate_bwd(ctx, &a, &b, &y, &da, &db, r->flags), &workspace);
		return hz_quat_rotate_bwd(ctx, &a, &b, &y, &da, &db, r->flags);
	case 4:
		return hz_quat_conj(ctx, &a, &y, r->flags);
	default:
		return hz_quat_inverse_bwd(ctx, &a, &y, &da, r->flags);
	}
}

void trace_quat(void)
{
	static const char *const names[] = {"quat_mul", "quat_mul_bwd", "quat_rotate",
					    "quat_rotate_bwd", "quat_conj", "quat_inverse_bwd"};

	EACH(d, floats) {
		EACH(call, names) {
			for (int i = 0; i < 8; i++) {
				struct quat_row r = {
					(int)call, floats[d], 50, 1024, i % 4 == 1, i % 4 == 2,
					i >= 4, i % 4 == 3 ? HZ_QUAT_XYZW : 0};

				if (call > 3 && i % 4 > 0)
					continue;
				trace(names[call], run_quat, &r);
				r.rows = 1;
				r.n = 100;
				if (i == 0 || i == 4)
					trace(names[call], run_quat, &r);
			}
			for (int i = 0; i < 2; i++) {	/* one of 100000 */
				const struct quat_row r = {
					(int)call, floats[d], 100000, 1, i == 0, i == 1, false, 0};

				if (call < 4)
					trace(names[call], run_quat, &r);
			}
		}
	}
}
