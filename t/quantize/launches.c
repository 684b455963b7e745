/*
 * launches.c - calls of quantize, dequantize and choose_qparams for the launch trace
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#include <config.h>

#include "t/core/launches.h"

struct quantize_row {
	int call;		/* 0: quantize, 1: dequantize, 2: choose_qparams */
	int dtype, skew, zero_points;
	int64_t rows, n, scale_rows, scale_n;	/* scale_rows 0: one scale for all */
	bool transposed;
};

static int run_quantize(const void *row)
{
	const struct quantize_row *const r = row;
	hz_tensor x = view_at(r->dtype, SHAPE(r->rows, r->n), r->skew);
	hz_tensor q = r->call < 2 ? V(HZ_U8, r->rows, r->n) : x;
	hz_tensor scale, zero;
	hz_quantize_opts o = {.scale = 0.5, .zero = 3};

	if (r->transposed) {
		x.stride[0] = 1;
		x.stride[1] = r->rows;
		note(" by columns");
	}
	if (r->scale_rows) {
		scale = V(HZ_F32, r->scale_rows, r->scale_n);
		o = (hz_quantize_opts){.scales = &scale};
		if (r->zero_points) {
			zero = V(HZ_U8, r->scale_rows, r->scale_n);
			o.zeros = &zero;
		}
	}
	switch (r->call) {
	case 0:
		return CALL(hz_quantize(ctx, &x, &q, &o));
	case 1:
		return CALL(hz_dequantize(ctx, &q, &x, &o));
	default:
		return CALL(hz_choose_qparams(ctx, &x, &scale, &zero, 0));
	}
}

void trace_quantize(void)
{
	static const char *const names[] = {"quantize", "dequantize", "choose_qparams"};
	static const int64_t sizes[][2] = {
		{1, 7}, {3, 64}, {4096, 4096}, {16384, 4096}, {65536, 1024}, {4096, 16384},
		{40, 4096}, {300, 4095}, {900, 7}, {128, 40000}, {1000000, 64}, {16384, 4095},
		{1, 1 << 20},
	};

	EACH(d, floats) {
		EACH(i, sizes) {
			const int64_t m = sizes[i][0], n = sizes[i][1];
			const int64_t scales[][2] = {{1, 1}, {m, 1}, {1, n}, {m, n / 64}, {0, 0}};

			for (int call = 0; call < 3; call++) {
				EACH(s, scales) {
					struct quantize_row r = {
						call, floats[d], 0, 1, m, n, scales[s][0],
						scales[s][1], false};

					if ((call == 2 && s == 4) || (s == 3 && n % 64))
						continue;
					trace(names[call], run_quantize, &r);
					r.skew = (int)hz_dtype_size(floats[d]);
					if (i == 2)
						trace(names[call], run_quantize, &r);
					r.skew = 0;
					r.transposed = true;
					if (i == 2 || i == 7)
						trace(names[call], run_quantize, &r);
				}
			}
		}
	}
}
