/*
 * launches.c - integer matrix products for the launch trace
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#include <config.h>

#include "t/core/launches.h"

struct qgemm_row {
	int64_t items, m, n, k;
	int a, b, c;
	bool packed, linear;
};

static int run_qgemm(const void *row)
{
	const struct qgemm_row *const r = row;
	const bool batch = r->items > 1;
	const hz_tensor a = batch ? V(r->a, r->items, r->m, r->k) : V(r->a, r->m, r->k);
	const hz_tensor b = batch && !r->packed ? V(r->b, r->items, r->k, r->n) :
						  V(r->b, r->k, r->n);
	hz_tensor c = batch ? V(r->c, r->items, r->m, r->n) : V(r->c, r->m, r->n);
	hz_qgemm_opts o = {.a_zero = 3, .multiplier = 1 << 30, .shift = 40};
	hz_packed packed;
	size_t bytes;
	int status;

	if (r->c != HZ_U8 && r->c != HZ_S8)
		o = (hz_qgemm_opts){0};
	if (r->packed) {
		note(" packed");
		status = hz_qgemm_pack_bytes(ctx, &b, &bytes);
		if (status == HZ_OK)
			status = hz_qgemm_pack(ctx, &b, PACKED_AT,
					       bytes, &packed);
		if (status != HZ_OK)
			return status;
		o.packed = &packed;
	}
	if (r->linear)
		return CALL(hz_qlinear(ctx, &a, r->packed ? NULL : &b, &c, &o));
	return CALL(hz_qgemm(ctx, &a, r->packed ? NULL : &b, &c, &o));
}

struct group_row {
	int64_t m, n, k, group;
	int x;
	bool packed;
};

static int run_group(const void *row)
{
	const struct group_row *const r = row;
	const hz_tensor x = V(r->x, r->m, r->k), w = V(HZ_S4X2, r->k / 2, r->n);
	const hz_tensor scales = V(r->group == 32 ? HZ_BF16 : HZ_F16, r->k / r->group, r->n);
	hz_tensor y = V(r->x == HZ_S8 ? HZ_F32 : r->x, r->m, r->n);
	hz_qlinear_group_opts o = {.x_dtype = r->x == HZ_BF16 ? HZ_S8 : 0};
	hz_packed packed;
	size_t bytes;
	int status;

	if (r->packed) {
		note(" packed");
		status = hz_qlinear_group_pack_bytes(ctx, &w, &scales, NULL, &bytes);
		if (status == HZ_OK)
			status = hz_qlinear_group_pack(ctx, &w, &scales, NULL, PACKED_AT, bytes,
						       &packed);
		if (status != HZ_OK)
			return status;
		o.packed = &packed;
	}
	return CALL(hz_qlinear_group(ctx, &x, r->packed ? NULL : &w, r->packed ? NULL : &scales, &y,
				     &o));
}

static void trace_groups(void)
{
	static const int types[] = {HZ_F32, HZ_F16, HZ_BF16, HZ_S8};
	static const int64_t sizes[][4] = {
		{1, 4096, 4096, 32}, {8, 100, 1030 * 16, 16}, {30, 4096, 4096, 128},
		{200, 300, 512, 128}, {1, 4096, 4096, 128}, {5, 100, 1040, 128},
	};

	EACH(i, sizes) {
		EACH(d, types) {
			struct group_row r = {sizes[i][0], sizes[i][1], sizes[i][2], sizes[i][3],
					      types[d], true};

			trace("qlinear_group", run_group, &r);
			r.packed = false;
			trace("qlinear_group", run_group, &r);
		}
	}
}

void trace_qgemm(void)
{
	static const int results[] = {HZ_U8, HZ_S32, HZ_F32, HZ_F16};
	static const int64_t sizes[][3] = {
		{1, 4096, 4096}, {9, 100, 4096}, {32, 64, 48}, {64, 4096, 4096}, {65, 100, 208},
		{1024, 1024, 1024}, {2048, 2048, 2048}, {4096, 4096, 4096}, {512, 4096, 4096},
		{128, 11008, 4096}, {256, 11008, 4096}, {256, 11000, 4090}, {512, 8448, 8192},
		{100, 9008, 129}, {90, 12000, 100}, {300, 4200, 130}, {140, 12000, 200},
		{130, 16496, 70}, {2700, 3000, 260}, {7, 9, 0}, {7, 9, 80000}, {7, 9, 262145},
		{7, 9, 140000}, {100, 9, 80000}, {128, 128, 16384}, {512, 512, 4096},
		{16, 4096, 4096},
		{2, 256, 4096}, {3, 256, 4096}, {4, 256, 4096},
	};

	EACH(i, sizes) {
		EACH(kind, results) {
			struct qgemm_row r = {
				1, sizes[i][0], sizes[i][1], sizes[i][2],
				kind % 2 ? HZ_S8 : HZ_U8, kind == 2 ? HZ_U8 : HZ_S8,
				results[kind],
				false, false};

			trace("qgemm", run_qgemm, &r);
			r.packed = true;
			trace("qgemm", run_qgemm, &r);
			r.packed = false;
			r.items = 5;
			trace("qgemm", run_qgemm, &r);
		}
		EACH(d, floats) {
			struct qgemm_row r = {1, sizes[i][0], sizes[i][1], sizes[i][2], floats[d],
					      HZ_S8, floats[d], true, true};

			trace("qlinear", run_qgemm, &r);
			r.packed = false;
			trace("qlinear", run_qgemm, &r);
		}
	}
	trace_groups();
}
