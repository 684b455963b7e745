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

struct format_row {
	int dtype, q_dtype, scale_dtype;
	bool dequantize, tensor, rotated;
	int64_t rows, n, group;
};

static int run_formats(const void *row)
{
	const struct format_row *const r = row;
	const hz_hadamard_opts h = {.block = 16};
	hz_tensor x = V(r->dtype, r->rows, r->n);
	hz_tensor q = V(r->q_dtype, r->rows, r->q_dtype == HZ_E2M1X2 ? r->n / 2 : r->n);
	hz_tensor scale = V(r->scale_dtype, r->rows, (r->n + r->group - 1) / r->group);
	hz_tensor factor = V(HZ_F32, 1);
	hz_quantize_opts o = {.group = r->group, .hadamard = r->rotated ? &h : NULL};

	if (r->dequantize) {
		o.scales = &scale;
		o.tensor_scale = r->tensor ? &factor : NULL;
		return CALL(hz_dequantize(ctx, &q, &x, &o));
	}
	o.new_scales = &scale;
	o.new_tensor_scale = r->tensor ? &factor : NULL;
	return CALL(hz_quantize(ctx, &x, &q, &o));
}

static void trace_formats(void)
{
	static const int64_t sizes[][3] = {{4096, 4096, 32}, {300, 1000, 16}, {7, 50000, 50000}};

	EACH(d, floats) {
		EACH(i, sizes) {
			for (int k = 0; k < 8; k++) {
				const bool tensor = k & 1;
				const struct format_row r = {
					floats[d], tensor || i == 0 ? HZ_E2M1X2 : HZ_E4M3,
					tensor ? HZ_E4M3 : i == 2 ? HZ_F32 : HZ_E8M0, k & 2, tensor,
					k & 4, sizes[i][0], sizes[i][1], sizes[i][2]};

				if (sizes[i][1] % 16 == 0 || !r.rotated)
					trace(r.dequantize ? "dequantize" : "quantize", run_formats,
					      &r);
			}
		}
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
	trace_formats();
}
