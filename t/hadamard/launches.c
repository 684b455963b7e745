/*
 * launches.c - calls with Hadamard transforms for the launch trace
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#include <config.h>

#include "t/core/launches.h"

enum hadamard_call { TRANSFORM, TRANSFORM_QUANTIZE, DEQUANTIZE_TRANSFORM, QUANTIZE, DEQUANTIZE };

struct hadamard_row {
	enum hadamard_call call;
	int x, y;			/* dtypes; y: of codes */
	int64_t rows, n, group;		/* group 0: a row */
	hz_hadamard_opts o;
	bool signs, in_place, columns;	/* columns: a scale for each */
	int64_t stride;			/* elements between rows of x; 0: n */
};

static int run_hadamard(const void *row)
{
	const struct hadamard_row *const r = row;
	hz_hadamard_opts o = r->o;
	const int64_t pairs = r->y == HZ_S4X2 ? 2 : 1;
	const bool inverse = r->call == DEQUANTIZE_TRANSFORM || r->call == DEQUANTIZE;
	hz_tensor x = V(r->x, r->rows, r->n), y, scale, signs;
	hz_quantize_opts q = {.scales = &scale, .hadamard = &o};

	if (r->stride) {
		x.stride[0] = r->stride;
		note(" rows %" PRId64 " apart", r->stride);
	}
	y = x;
	if (r->in_place)
		note(" in place");
	else
		y = V(r->y, r->rows, r->n / pairs);
	if (r->call != TRANSFORM)
		scale = r->columns ? V(HZ_F32, 1, r->n) :
				     V(HZ_F32, r->rows, r->group ? r->n / r->group : 1);
	if (r->signs) {
		signs = V(HZ_U8, (o.axis ? r->rows : r->n) / 8);
		*(inverse ? &o.post : &o.pre) = &signs;
		note(" signs");
	}
	if (o.block)
		note(" block %" PRId64, o.block);
	if (o.plan)
		note(" plan %d", o.plan);
	if (o.order)
		note(" order %d", o.order);
	if (o.axis)
		note(" columns");
	switch (r->call) {
	case TRANSFORM:
		return CALL(hz_hadamard(ctx, &x, &y, &o));
	case TRANSFORM_QUANTIZE:
		return CALL(hz_hadamard_quantize(ctx, &x, &y, &scale, &o));
	case DEQUANTIZE_TRANSFORM:
		return CALL(hz_dequantize_hadamard(ctx, &y, &scale, &x, &o));
	case QUANTIZE:
		return CALL(hz_quantize(ctx, &x, &y, &q));
	default:
		return CALL(hz_dequantize(ctx, &y, &x, &q));
	}
}

static void trace_row(const struct hadamard_row *r)
{
	static const char *const names[] = {
		[TRANSFORM] = "hadamard", [TRANSFORM_QUANTIZE] = "hadamard_quantize",
		[DEQUANTIZE_TRANSFORM] = "dequantize_hadamard", [QUANTIZE] = "quantize",
		[DEQUANTIZE] = "dequantize",
	};

	trace(names[r->call], run_hadamard, r);
}

void trace_hadamard(void)
{
	static const int orders[] = {12, 20, 28, 36, 60, 156};
	static const int codes[] = {HZ_S8, HZ_S4X2, HZ_E4M3, HZ_U8};
	static const int64_t more_rows[] = {1, 301, 20000};

	EACH(d, floats) {
		const int x = floats[d];

		for (int k = 3; k <= 17; k++) {
			struct hadamard_row r = {.x = x, .y = HZ_F32, .rows = 5, .n = 1 << k,
						 .in_place = true};

			trace_row(&r);
			r.signs = true;
			trace_row(&r);
			EACH(i, more_rows) {
				r.rows = more_rows[i];
				if (k % 3 == 1)
					trace_row(&r);
			}
			r.rows = 5;
			r.signs = r.in_place = false;
			r.y = x == HZ_F32 ? HZ_F16 : HZ_F32;
			trace_row(&r);
			r.y = x;
			r.stride = (1 << k) + (k % 2 ? 8 : 1);
			trace_row(&r);
			r.stride = 0;
			for (int call = TRANSFORM_QUANTIZE; call <= DEQUANTIZE; call++) {
				r.call = call;
				r.rows = 5;
				r.y = HZ_S8;
				trace_row(&r);
				r.rows = 1000;
				r.signs = true;
				trace_row(&r);
				r.signs = false;
				r.group = 128;
				if (k > 7)
					trace_row(&r);
				r.y = HZ_S4X2;
				r.group = k > 5 ? 32 : 0;
				if (call != QUANTIZE && call != DEQUANTIZE)
					trace_row(&r);
				r.group = 0;
			}
		}
		/* Columns */
		for (int k = 4; k <= 12; k++) {
			struct hadamard_row r = {.x = x, .y = x, .rows = 2 << k, .n = 104,
						 .o = {.axis = HZ_AXIS(0), .block = 1 << k}};

			trace_row(&r);
			r.n = 101;
			trace_row(&r);
			r.n = 4096;
			r.signs = true;
			trace_row(&r);
		}
		EACH(m, orders) {
			for (int k = 2; k <= 13; k++) {
				struct hadamard_row r = {
					.x = x, .y = HZ_S8, .rows = 8, .n = (int64_t)orders[m] << k,
					.in_place = true,
					.o = {.plan = HZ_PLAN_TRUE, .order = orders[m]}};

				if (m > 2 && k % 4 != 2)
					continue;
				trace_row(&r);
				r.signs = true;
				trace_row(&r);
				r.in_place = r.signs = false;
				for (int call = TRANSFORM_QUANTIZE; call <= DEQUANTIZE; call++) {
					r.call = call;
					trace_row(&r);
				}
			}
		}
		EACH(c, codes) {
			struct hadamard_row r = {.call = TRANSFORM_QUANTIZE, .x = x, .y = codes[c],
						 .rows = 100, .n = 4096};

			trace_row(&r);
			r.group = 128;
			trace_row(&r);
			r.call = DEQUANTIZE_TRANSFORM;
			trace_row(&r);
			r.group = 0;
			r.o.block = 128;
			trace_row(&r);
			r.call = TRANSFORM_QUANTIZE;
			trace_row(&r);
			r.o.block = 32;
			trace_row(&r);
			r.call = DEQUANTIZE_TRANSFORM;
			trace_row(&r);
			r.columns = true;
			r.call = QUANTIZE;
			trace_row(&r);
			r.call = DEQUANTIZE;
			trace_row(&r);
		}
		for (int plan = HZ_PLAN_AUTO; plan <= HZ_PLAN_UNIFORM; plan++) {
			for (int n = 80; n < 10000; n = 5 * n) {
				struct hadamard_row r = {.x = x, .y = HZ_F32, .rows = 100, .n = n,
							 .o = {.plan = plan}};
				if (plan == HZ_PLAN_SYLVESTER)
					continue;
				trace_row(&r);
				r.call = QUANTIZE;
				r.y = HZ_S8;
				trace_row(&r);
			}
		}
	}
}
