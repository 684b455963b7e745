/*
 * check.c - hurwitz check of linear layers with quantized weights
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#include <config.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tools/core/check.h"

#define OUT 70
#define IN 96
#define ROWS 3

struct arrays {
	float w[OUT][IN], decoded[OUT][IN], x[ROWS][IN], y[ROWS][OUT], dx[ROWS][IN];
};

/* The least error that a format has: 10^(db / 10) of the weights */
static const double most_db[] = {
	0, -38, -23, -23.5, -22, -22.2, -16, -16.3, -10.3, -22.5, -38, -18, -16, -16, -15, -18,
};

/* ||got - want||^2 / ||want||^2 of [rows][columns] products of a and w, or its transpose */
static double error_of(const struct arrays *b, bool backward)
{
	const int columns = backward ? IN : OUT, length = backward ? OUT : IN;
	double error = 0, norm = 0;

	for (int i = 0; i < ROWS * columns; i++) {
		const int row = i / columns, column = i % columns;
		double want = 0;

		for (int k = 0; k < length; k++)
			want += backward ? (double)b->y[row][k] * (double)b->decoded[k][column] :
					   (double)b->x[row][k] * (double)b->decoded[column][k];
		error += pow(want - (double)(backward ? b->dx[row][column] : b->y[row][column]), 2);
		norm += want * want;
	}
	return error / norm;
}

static bool check_format(hz_context *ctx, const char *name, int format, struct arrays *b)
{
	hz_tensor host[] = {
		hz_tensor_2d(b->w, HZ_F32, HZ_CPU, OUT, IN),
		hz_tensor_2d(b->x, HZ_F32, HZ_CPU, ROWS, IN),
		hz_tensor_2d(b->decoded, HZ_F32, HZ_CPU, OUT, IN),
		hz_tensor_2d(b->y, HZ_F32, HZ_CPU, ROWS, OUT),
		hz_tensor_2d(b->dx, HZ_F32, HZ_CPU, ROWS, IN),
	};
	const hz_linear_open_opts o = {.format = format,
				       .flags = format % 2 ? HZ_LINEAR_ROTATE : 0};
	const char *const format_name = hz_linear_format_name(format);
	hz_tensor on[5] = {{0}};
	hz_linear *layer = NULL;
	double error = 0, norm = 0, forward, backward;
	int status = HZ_OK;

	for (int i = 0; i < 5 && !status; i++)
		status = to_device(ctx, &host[i], i < 2, &on[i]);
	if (!status)
		status = hz_linear_open(ctx, &layer, &on[0], &o);
	if (!status)
		status = WITH_WORKSPACE(ctx, hz_linear_dequantize(ctx, layer, &on[2]));
	if (!status)
		status = WITH_WORKSPACE(ctx, hz_linear_forward(ctx, layer, &on[1], NULL, &on[3],
							       NULL));
	if (!status)
		status = WITH_WORKSPACE(ctx, hz_linear_bwd(ctx, layer, &on[3], &on[4]));
	for (int i = 2; i < 5 && !status; i++)
		status = from_device(ctx, &on[i], &host[i]);
	hz_linear_close(layer);
	for (int i = 0; i < 5; i++)
		free_device(ctx, &on[i]);
	if (status)
		return wrong("%s: linear layer of %s: %s", name, format_name, hz_errmsg(ctx));
	for (int i = 0; i < OUT * IN; i++) {
		error += pow((double)b->decoded[i / IN][i % IN] - (double)b->w[i / IN][i % IN], 2);
		norm += pow((double)b->w[i / IN][i % IN], 2);
	}
	forward = error_of(b, false);
	backward = error_of(b, true);
	if (!(error <= pow(10, most_db[format] / 10) * norm && forward <= 4e-4 &&
	      backward <= 1e-11))
		return wrong("%s: linear layer of %s: errors of weights, y and dx are %g, %g, %g",
			     name, format_name, sqrt(error / norm), sqrt(forward), sqrt(backward));
	return true;
}

bool check_linears(hz_context *ctx, const char *name)
{
	struct arrays *const b = allocate(sizeof(*b));
	uint64_t seed = 5;
	bool good = b || wrong("there is not enough memory");

	for (int format = 1; format <= HZ_LINEAR_NVFP4 && good; format++) {
		fill_normal(b->w, HZ_F32, OUT * IN, &seed);
		fill_normal(b->x, HZ_F32, ROWS * IN, &seed);
		good = check_format(ctx, name, format, b);
	}
	free(b);
	return good;
}
