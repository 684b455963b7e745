/*
 * choose.c - formats of layers by name, and within a budget of bits
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#include <config.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tools/quantize/quantize.h"

#define FORMATS_MAX 64		/* above the last enumerator of hz_linear_format */

#define HEADER_BYTES 128	/* of a layer's bytes, which doc/linear.md describes */
#define IN_MAX 8388608		/* of all formats, see hz_linear_open() */

/* Rows that are tried; lattice codes are stored in panels of as many */
#define SAMPLE_ROWS 64

/* Formats with less error than any other of as many bits, in ascending order of bits; of short or
 * few rows the last ones take less. */
static const int ladder[] = {
	HZ_LINEAR_E8_2_25, HZ_LINEAR_E8_3_25, HZ_LINEAR_E8_4_25, HZ_LINEAR_E8_4_50,
	HZ_LINEAR_S8_ROW, HZ_LINEAR_S8_G128,
};

enum { STEPS = sizeof(ladder) / sizeof(*ladder) };

int format_of_name(const char *name)
{
	for (int format = 1; format < FORMATS_MAX; format++) {
		if (strcmp(hz_linear_format_name(format), name) == 0 && strcmp(name, "?") != 0)
			return format;
	}
	return 0;
}

const char *format_names(void)
{
	static char names[32 * FORMATS_MAX];

	for (int format = 1; format < FORMATS_MAX && names[0] == '\0'; format++) {
		size_t n = 0;

		for (int f = format; f < FORMATS_MAX; f++) {
			const char *name = hz_linear_format_name(f);

			if (strcmp(name, "?") != 0)
				n += (size_t)sprintf(names + n, "%s%s", n ? ", " : "", name);
		}
	}
	return names;
}

const char *shape_fault(int format, const int64_t *shape)
{
	if (shape[1] > IN_MAX)
		return "in above 2^23";
	return shape[1] % 2 && format >= HZ_LINEAR_S4_G32 ? "odd in" : NULL;
}

int open_rows(hz_context *ctx, const struct model *m, const struct layer_plan *plan,
	      const hz_linear_open_opts *opts, struct hzi_linear_factors *f, int64_t rows,
	      int64_t step, hz_linear **layer)
{
	const struct model_tensor *const t = plan->t;
	void *copy;
	const void *data = model_aligned(m, t, hz_dtype_size(t->dtype), &copy);
	const hz_tensor host = hz_tensor_nd((void *)(uintptr_t)data, t->dtype, HZ_CPU, 2, t->shape);
	hz_tensor w = {0};
	int status = data ? to_device(ctx, &host, true, &w) : HZ_ENOMEM;

	*layer = NULL;
	if (status == HZ_OK) {
		hz_tensor part = w;

		part.shape[0] = rows;
		part.stride[0] = step * t->shape[1];
		status = hzi_linear_open_factored(ctx, layer, &part, opts, f);
	}
	free_device(ctx, &w);
	free(copy);
	return status;
}

int layer_refused(const hz_context *ctx, int status, struct layer_plan *plan)
{
	if (exit_status(status) != EXIT_BAD)
		return complain(exit_status(status), "quantize: %s: %s; --skip leaves it as it is",
				plan->t->name, status == HZ_ENOMEM ? "there is not enough memory" :
				hz_errmsg(ctx));
	plan->refused = "refused";
	return complain(0, "quantize: %s: %s; it is copied as it is", plan->t->name,
			hz_errmsg(ctx));
}

/* A tensor's bytes and error in each format of the ladder; INFINITY: not less than the tensor's */
struct points {
	double bytes[STEPS], error[STEPS];
	int at;
};

/* The bytes in a file of a layer with `out` rows, from those of one with SAMPLE_ROWS, or all, of
 * them: scales grow by the row, codes by the panel of rows, see doc/linear.md. */
static size_t whole_bytes(const hz_linear_info *part, int64_t out)
{
	const bool groups = part->format == HZ_LINEAR_S8_G128;
	const int64_t scales = groups ? 2 * ((part->in + 127) / 128) : 4;	/* of a row */
	const int64_t panel = groups ? 1 : part->format == HZ_LINEAR_S8_ROW ? 32 : 64;
	const size_t codes = (size_t)part->bytes - HEADER_BYTES -
			     layer_file_bytes((size_t)(scales * part->out));

	if (out == part->out)
		return layer_file_bytes((size_t)part->bytes);
	return layer_file_bytes(HEADER_BYTES + layer_file_bytes((size_t)(scales * out)) +
				codes / SAMPLE_ROWS * (size_t)((out + panel - 1) / panel * panel));
}

static int measure(hz_context *ctx, const struct model *m, struct layer_plan *plan, uint32_t flags,
		   struct points *p)
{
	const int64_t out = plan->t->shape[0], rows = out < SAMPLE_ROWS ? out : SAMPLE_ROWS;
	const hz_tensor *const squares = plan->moments ? &plan->moments->squares : NULL;

	for (int i = 0; i < STEPS; i++) {
		hz_linear_open_opts opts = {.format = ladder[i], .flags = flags,
					    .moments = squares};
		hz_linear_info info;
		hz_linear *layer;
		int status = open_rows(ctx, m, plan, &opts, NULL, rows, out / rows, &layer);

		if (status == HZ_OK)
			status = hz_linear_get_info(layer, &info);
		hz_linear_close(layer);
		if (status)
			return layer_refused(ctx, status, plan);
		p->bytes[i] = whole_bytes(&info, out) < plan->t->bytes ?
			      (double)whole_bytes(&info, out) : INFINITY;
		p->error[i] = info.error * plan->weights;
	}
	return 0;
}

static int smallest(const struct points *p)
{
	int at = 0;

	for (int k = 1; k < STEPS; k++)
		at = p->bytes[k] < p->bytes[at] ? k : at;
	return at;
}

/* The tensor and the format by which the error decreases most per byte, of those that fit; false if
 * none does. A step may pass over formats, so that steps of little gain do not end it. */
static bool best_step(const struct points *p, int64_t count, double left, int64_t *tensor, int *to)
{
	double best = 0;

	for (int64_t i = 0; i < count; i++) {
		for (int k = 0; k < STEPS && p[i].at < STEPS; k++) {
			const double bytes = p[i].bytes[k] - p[i].bytes[p[i].at];
			const double gain = p[i].error[p[i].at] - p[i].error[k];

			if (bytes > left || gain <= best * (bytes > 1 ? bytes : 1))
				continue;
			best = gain / (bytes > 1 ? bytes : 1);
			*tensor = i;
			*to = k;
		}
	}
	return best > 0;
}

int choose_formats(hz_context *ctx, const struct model *m, struct layer_plan *plan, int64_t count,
		   double bits, uint32_t flags)
{
	struct points *p = calloc((size_t)count + 1, sizeof(*p));
	double left = 0, weights = 0;
	int64_t tensor = 0;
	int status = 0, to = 0;

	if (!p)
		return complain(EXIT_FAILURE, "quantize: there is not enough memory");
	for (int64_t i = 0; i < count && !status; i++) {
		p[i].at = STEPS;
		if (plan[i].refused)
			continue;
		progress("measuring %lld of %lld: %s", (long long)i + 1, (long long)count,
			 plan[i].t->name);
		status = measure(ctx, m, &plan[i], flags, &p[i]);
		model_release(m, plan[i].t);
		if (status || plan[i].refused || p[i].bytes[smallest(&p[i])] == INFINITY)
			continue;
		p[i].at = smallest(&p[i]);
		weights += plan[i].weights;
		left += bits * plan[i].weights / 8 - p[i].bytes[p[i].at];
	}
	progress_clear();
	if (!status && left < -0.5)	/* bytes: more than what rounding makes */
		status = complain(EXIT_BAD, "quantize: --bits=%g is less than %.3f, what the "
				  "smallest formats take", bits,
				  ceil(1000 * (bits - 8 * left / weights)) / 1000);
	while (!status && best_step(p, count, left, &tensor, &to)) {
		left -= p[tensor].bytes[to] - p[tensor].bytes[p[tensor].at];
		p[tensor].at = to;
	}
	for (int64_t i = 0; i < count; i++)
		plan[i].format = p[i].at < STEPS ? ladder[p[i].at] : 0;
	free(p);
	return status;
}
