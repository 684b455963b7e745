/*
 * launches.c - linear layers with quantized weights for the launch trace
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#include <config.h>

#include "t/core/launches.h"
#include "t/core/record.h"

#define OUT 192
#define IN 320

static hz_linear *layers[GPUS];

struct linear_row {
	int format, x_dtype, y_dtype, activation;
	uint32_t flags;
	int64_t rows;
};

/* A layer on each GPU from the bytes of one that is made on the CPU */
static void layers_open(int format, bool rotates)
{
	static float w[OUT][IN];
	const hz_tensor weights = hz_tensor_2d(w, HZ_F32, HZ_CPU, OUT, IN);
	const hz_linear_open_opts o = {.format = format, .flags = rotates ? HZ_LINEAR_ROTATE : 0};
	const hz_options options = {.device = HZ_CPU};
	hz_context *cpu;
	hz_linear *l;
	size_t bytes;
	void *data;

	if (hz_open(&cpu, &options) || hz_linear_open(cpu, &l, &weights, &o) ||
	    hz_linear_save_bytes(cpu, l, &bytes) || hz_alloc(cpu, &data, bytes, HZ_CPU) ||
	    hz_linear_save(cpu, l, data, bytes))
		bail("a linear layer cannot be made");
	for (int g = 0; g < GPUS; g++) {
		if (hz_linear_load(scenes[g].ctx, &layers[g], data, bytes))
			bail("%s", hz_errmsg(scenes[g].ctx));
	}
	hz_free(cpu, data, HZ_CPU);
	hz_linear_close(l);
	hz_close(cpu);
}

static void layers_close(void)
{
	for (int g = 0; g < GPUS; g++)
		hz_linear_close(layers[g]);
}

static int run_forward(const void *row)
{
	const struct linear_row *const r = row;
	const hz_linear_opts o = {.activation = r->activation, .flags = r->flags};
	const hz_tensor x = V(r->x_dtype, r->rows, IN), bias = V(HZ_F32, OUT);
	hz_tensor y = V(r->y_dtype, r->rows, r->flags & HZ_LINEAR_GATED ? OUT / 2 : OUT);

	note(" format %d activation %d flags %u", r->format, r->activation, r->flags);
	return CALL(hz_linear_forward(ctx, layers[gpu], &x, &bias, &y, &o));
}

static int run_bwd(const void *row)
{
	const struct linear_row *const r = row;
	const hz_tensor dy = V(r->y_dtype, r->rows, OUT);
	hz_tensor dx = V(r->x_dtype, r->rows, IN);

	note(" format %d", r->format);
	return CALL(hz_linear_bwd(ctx, layers[gpu], &dy, &dx));
}

static int run_dequantize(const void *row)
{
	const struct linear_row *const r = row;
	hz_tensor w = V(r->y_dtype, OUT, IN);

	note(" format %d", r->format);
	return CALL(hz_linear_dequantize(ctx, layers[gpu], &w));
}

void trace_linear(void)
{
	static const int formats[] = {HZ_LINEAR_S8_ROW, HZ_LINEAR_E8_4_50, HZ_LINEAR_D4_4_50,
				      HZ_LINEAR_U4_G128, HZ_LINEAR_NVFP4};
	static const int64_t rows[] = {1, 40};

	EACH(f, formats) {
		layers_open(formats[f], f != 0);
		EACH(i, rows) {
			EACH(d, floats) {
				struct linear_row r = {formats[f], floats[d], floats[d],
						       d ? HZ_ACT_SILU : HZ_ACT_NONE,
						       d == 2 ? HZ_LINEAR_GATED : 0, rows[i]};

				trace("linear_forward", run_forward, &r);
				trace("linear_bwd", run_bwd, &r);
				if (i == 0)
					trace("linear_dequantize", run_dequantize, &r);
			}
		}
		layers_close();
	}
}
