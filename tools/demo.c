/*
 * demo.c - hurwitz demo: every primitive at work on measured data
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#include <config.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "demo.h"
#include "npy.h"
#include "tool.h"
#include "volcano.h"

#define SEED 1	/* of the random signs */

/* A matrix to show things on. */
struct data {
	const char *name;
	int64_t rows, columns;
	int64_t n;		/* columns rounded up to 4: the last is there again, to fill */
	float *x;
	int64_t large_every;	/* one column of so many was made LARGE times as large; 0: none */
};

#define LARGE 20
#define DATA_MAX 3

/* The largest part of a file that is shown, in elements, so that it takes seconds. */
#define ELEMENTS_MAX ((int64_t)1 << 24)

/* Blocks that every device takes. */
#define BLOCK_MAX 65536

/* What a call took and how far its result is from the definition. */
struct figures {
	double seconds, error, round_trip;
};

struct show {
	hz_context *ctx;
	hz_info info;
	hz_hadamard_opts rotation;	/* plan and signs for n */
	hz_tensor signs;
	uint8_t *bits;
	char plan[160];			/* in words */
};

static const char *why(hz_context *ctx, int status)
{
	return *hz_errmsg(ctx) ? hz_errmsg(ctx) : hz_strerror(status);
}

/* ---- The rotation ---------------------------------------------------------------------------- */

/* The matrix in words: "of order 64", "of 2 blocks of 64", "of blocks, 64 + 16". */
static void plan_in_words(struct show *s, int64_t n)
{
	int64_t blocks[64];
	const int64_t count = hz_hadamard_plan(n, &s->rotation, blocks, 64);
	int at;

	if (count == 1) {
		snprintf(s->plan, sizeof(s->plan), "of order %lld", (long long)n);
		return;
	}
	if (n % blocks[0] == 0 && n / blocks[0] == count) {
		snprintf(s->plan, sizeof(s->plan), "of %lld blocks of %lld", (long long)count,
			 (long long)blocks[0]);
		return;
	}
	at = snprintf(s->plan, sizeof(s->plan), "of blocks, %lld", (long long)blocks[0]);
	for (int64_t i = 1; i < count; i++) {
		if (i == 5) {
			snprintf(s->plan + at, sizeof(s->plan) - (size_t)at, " + ... (%lld blocks)",
				 (long long)count);
			break;
		}
		at += snprintf(s->plan + at, sizeof(s->plan) - (size_t)at, " + %lld",
			       (long long)blocks[i]);
	}
}

/* One block where there is a Hadamard matrix of order n, else powers of two, largest first. */
static int make_rotation(struct show *s, int64_t n)
{
	free(s->bits);
	s->bits = allocate((size_t)(n + 7) / 8);
	if (!s->bits)
		return complain(EXIT_FAILURE, "demo: there is not enough memory");
	hz_hadamard_signs(s->bits, n, SEED);
	s->signs = hz_tensor_1d(s->bits, HZ_U8, HZ_CPU, (n + 7) / 8);
	s->rotation = (hz_hadamard_opts){.plan = HZ_PLAN_TRUE};
	if (n > BLOCK_MAX || hz_hadamard_plan(n, &s->rotation, NULL, 0) != 1)
		s->rotation = (hz_hadamard_opts){.plan = HZ_PLAN_GREEDY, .min_block = 1,
						 .max_block = BLOCK_MAX};
	plan_in_words(s, n);
	return 0;
}

/* ---- Calls on the device, timed -------------------------------------------------------------- */

/* Views of one data set on the device of a context. */
struct views {
	hz_tensor x, y, z, q, scale, signs;
	hz_tensor host_y, host_z;
};

static void free_views(struct show *s, struct views *v)
{
	hz_tensor *const all[] = {&v->x, &v->y, &v->z, &v->q, &v->scale, &v->signs};

	for (size_t i = 0; i < sizeof(all) / sizeof(*all); i++) {
		free_device(s->ctx, all[i]);
		if (all[i]->device == HZ_CPU && all[i] != &v->x && all[i] != &v->signs)
			free(all[i]->data);
	}
	if (v->host_y.data != v->y.data)
		free(v->host_y.data);
	if (v->host_z.data != v->z.data)
		free(v->host_z.data);
}

static int make_views(struct show *s, const struct data *d, struct views *v)
{
	const size_t bytes = (size_t)(d->rows * d->n) * sizeof(float);
	const hz_tensor x = hz_tensor_2d(d->x, HZ_F32, HZ_CPU, d->rows, d->n);
	hz_tensor q = hz_tensor_2d(NULL, HZ_S8, HZ_CPU, d->rows, d->n);
	hz_tensor scale = hz_tensor_2d(NULL, HZ_F32, HZ_CPU, d->rows, 1);
	int status = HZ_ENOMEM;

	memset(v, 0, sizeof(*v));
	v->host_y = v->host_z = x;
	v->host_y.data = allocate(bytes);
	v->host_z.data = allocate(bytes);
	/* On the CPU these two are the operands; on a GPU they only say what is wanted there. */
	q.data = allocate((size_t)(d->rows * d->n));
	scale.data = allocate((size_t)d->rows * sizeof(float));
	if (v->host_y.data && v->host_z.data && q.data && scale.data) {
		status = to_device(s->ctx, &x, true, &v->x);
		if (!status)
			status = to_device(s->ctx, &v->host_y, false, &v->y);
		if (!status)
			status = to_device(s->ctx, &v->host_z, false, &v->z);
		if (!status)
			status = to_device(s->ctx, &q, false, &v->q);
		if (!status)
			status = to_device(s->ctx, &scale, false, &v->scale);
		if (!status)
			status = to_device(s->ctx, &s->signs, true, &v->signs);
		if (!status)
			status = hz_sync(s->ctx);
	}
	if (v->q.data != q.data)
		free(q.data);
	if (v->scale.data != scale.data)
		free(scale.data);
	return status;
}

/* Calls f until that many seconds are over, then says what one call took. */
static int time_calls(struct show *s, struct views *v, const hz_hadamard_opts *o,
		      int (*f)(struct show *s, struct views *v, const hz_hadamard_opts *o),
		      double at_least, double *seconds)
{
	double start, elapsed = 0;
	int64_t calls = 1;
	int status = f(s, v, o);	/* not counted: it may load code and grow memory */

	if (!status)
		status = hz_sync(s->ctx);
	for (; !status && elapsed < at_least; calls *= 4) {
		start = now();
		for (int64_t i = 0; i < calls && !status; i++)
			status = f(s, v, o);
		if (!status)
			status = hz_sync(s->ctx);
		elapsed = now() - start;
		*seconds = elapsed / (double)calls;
	}
	return status;
}

static int call_hadamard(struct show *s, struct views *v, const hz_hadamard_opts *o)
{
	return hz_hadamard(s->ctx, &v->x, &v->y, o);
}

static int call_quantize(struct show *s, struct views *v, const hz_hadamard_opts *o)
{
	return hz_hadamard_quantize(s->ctx, &v->x, &v->q, &v->scale, o);
}

static int call_dequantize(struct show *s, struct views *v, const hz_hadamard_opts *o)
{
	return hz_dequantize_hadamard(s->ctx, &v->q, &v->scale, &v->z, o);
}

/* ---- hadamard -------------------------------------------------------------------------------- */

#define SAMPLED_ROWS 8
#define SAMPLED 64	/* elements of a row that are computed by the definition, which is slow */

/* ||y - definition|| / ||definition|| over samples of y. */
static double error_of(const struct show *s, const struct data *d, const float *y)
{
	struct reference r;
	double *row = allocate((size_t)d->n * sizeof(*row));
	double *signs = allocate((size_t)d->n * sizeof(*signs));
	const int64_t row_step = d->rows / SAMPLED_ROWS + 1, step = d->n / SAMPLED + 1;
	double error = 0, norm = 0;

	if (!row || !signs || !reference_make(&r, d->n, &s->rotation)) {
		free(row);
		free(signs);
		return (double)NAN;
	}
	for (int64_t i = 0; i < d->n; i++)
		signs[i] = s->bits[i / 8] >> i % 8 & 1 ? -1 : 1;
	for (int64_t k = 0; k < d->rows; k += row_step) {
		for (int64_t i = 0; i < d->n; i++)
			row[i] = (double)d->x[k * d->n + i];
		for (int64_t i = k % step; i < d->n; i += step) {
			const double want = reference_at(&r, row, signs, NULL, i);

			error += pow((double)y[k * d->n + i] - want, 2);
			norm += want * want;
		}
	}
	reference_free(&r);
	free(row);
	free(signs);
	return error == 0 ? 0 : sqrt(error / norm);
}

static double distance(const float *a, const float *b, int64_t count)
{
	double error = 0, norm = 0;

	for (int64_t i = 0; i < count; i++) {
		error += ((double)a[i] - (double)b[i]) * ((double)a[i] - (double)b[i]);
		norm += (double)b[i] * (double)b[i];
	}
	return error == 0 ? 0 : sqrt(error / norm);
}

static int measure_hadamard(struct show *s, const struct data *d, struct figures *f)
{
	struct views v;
	hz_hadamard_opts o = s->rotation, back;
	int status = make_views(s, d, &v);

	o.pre = &v.signs;
	back = o;
	back.flags = HZ_HADAMARD_TRANSPOSE;
	if (!status)
		status = time_calls(s, &v, &o, call_hadamard, 0.05, &f->seconds);
	if (!status)
		status = from_device(s->ctx, &v.y, &v.host_y);
	if (!status)
		f->error = error_of(s, d, v.host_y.data);
	if (!status)
		status = hz_hadamard(s->ctx, &v.y, &v.z, &back);
	if (!status)
		status = from_device(s->ctx, &v.z, &v.host_z);
	if (!status)
		f->round_trip = distance(v.host_z.data, d->x, d->rows * d->n);
	free_views(s, &v);
	return status ? complain(EXIT_FAILURE, "demo: %s", why(s->ctx, status)) : 0;
}

/* Whole numbers and an order that is a power of 4 leave nothing to round. */
static const char *error_text(double error, char to[16])
{
	if (error == 0)
		return "exact";
	snprintf(to, 16, "%.1e", error);
	return to;
}

static int show_hadamard(struct show *s, const struct data *data, int count)
{
	int status = 0;

	printf("%shadamard%s rotated every row: random signs, then an orthonormal Walsh-Hadamard\n"
	       "matrix. It spreads what is in one place over its block, and loses no energy.\n"
	       "Error: against the definition in double, and after the way back, as a part of\n"
	       "the norm.\n\n"
	       "  %-22s%10s%11s%10s%9s  matrix\n",
	       style(stdout, BOLD), style(stdout, PLAIN), "", "error", "way back", "us a call",
	       "GB/s");
	for (int d = 0; d < count && !status; d++) {
		const double bytes = 2.0 * (double)(data[d].rows * data[d].n) * sizeof(float);
		struct figures f = {0};
		char a[16], b[16];

		progress("demo: %s", data[d].name);
		status = make_rotation(s, data[d].n);
		if (!status)
			status = measure_hadamard(s, &data[d], &f);
		progress_clear();
		if (!status)
			printf("  %-22s%10s%11s%10.2f%9.2f  %s\n", data[d].name,
			       error_text(f.error, a), error_text(f.round_trip, b), f.seconds * 1e6,
			       bytes / f.seconds * 1e-9, s->plan);
	}
	printf("\n");
	return status;
}

/* ---- Quantization ---------------------------------------------------------------------------- */

static const struct {
	const char *name;
	int dtype;
} formats[] = {{"8 bits", HZ_S8}, {"4 bits", HZ_S4X2}, {"fp8 e4m3", HZ_E4M3}};

#define FORMATS ((int)(sizeof(formats) / sizeof(*formats)))

/* Signal to noise in dB, of all columns and of those that were not made large. */
struct noise {
	double all, rest;
};

static struct noise noise_of(const struct data *d, const float *z)
{
	double error[2] = {0}, signal[2] = {0};

	for (int64_t k = 0; k < d->rows; k++) {
		for (int64_t i = 0; i < d->columns; i++) {
			const int large =
				d->large_every && i % d->large_every == d->large_every / 2;
			const double x = (double)d->x[k * d->n + i];
			const double e = (double)z[k * d->n + i] - x;

			error[large] += e * e;
			signal[large] += x * x;
		}
	}
	return (struct noise){
		.all = 10 * log10((signal[0] + signal[1]) / (error[0] + error[1])),
		.rest = 10 * log10(signal[0] / error[0]),
	};
}

/* Quantizes with a scale a row and comes back; rotated or as it is: with blocks of 1. */
static int quantize(struct show *s, const struct data *d, int dtype, bool rotate, double at_least,
		    struct noise *noise, double seconds[2])
{
	hz_hadamard_opts o = {.plan = HZ_PLAN_UNIFORM, .max_block = 1};
	struct views v;
	int status = make_views(s, d, &v);

	v.q.dtype = (int16_t)dtype;
	if (dtype == HZ_S4X2) {
		v.q.shape[1] = d->n / 2;
		v.q.stride[0] = d->n / 2;
	}
	if (rotate) {
		o = s->rotation;
		o.pre = &v.signs;
	}
	if (!status)
		status = time_calls(s, &v, &o, call_quantize, at_least, &seconds[0]);
	if (!status)
		status = time_calls(s, &v, &o, call_dequantize, at_least, &seconds[1]);
	if (!status)
		status = from_device(s->ctx, &v.z, &v.host_z);
	if (!status)
		*noise = noise_of(d, v.host_z.data);
	free_views(s, &v);
	return status ? complain(EXIT_FAILURE, "demo: %s", why(s->ctx, status)) : 0;
}

/* The largest of a row by its root mean square, mean over rows: what one scale suffers from. */
static double peak(const struct data *d)
{
	double sum = 0;

	for (int64_t k = 0; k < d->rows; k++) {
		double square = 0, max = 0;

		for (int64_t i = 0; i < d->columns; i++) {
			const double x = fabs((double)d->x[k * d->n + i]);

			square += x * x;
			max = x > max ? x : max;
		}
		sum += square > 0 ? max / sqrt(square / (double)d->columns) : 0;
	}
	return sum / (double)d->rows;
}

static void print_noise(const char *name, double peak_of, struct noise noise[FORMATS][2], bool rest)
{
	printf("  %-20s", name);
	if (rest)
		printf("%6s", "");
	else
		printf("%6.1f", peak_of);
	for (int i = 0; i < FORMATS; i++)
		printf("  %7.1f%8.1f", rest ? noise[i][0].rest : noise[i][0].all,
		       rest ? noise[i][1].rest : noise[i][1].all);
	printf("\n");
}

static int show_quantization(struct show *s, const struct data *data, int count)
{
	struct noise noise[DATA_MAX][FORMATS][2];
	double seconds[2] = {0}, ignored[2];
	int status = 0;

	for (int d = 0; d < count && !status; d++) {
		status = make_rotation(s, data[d].n);
		for (int i = 0; i < FORMATS && !status; i++) {
			progress("demo: %s, %s", data[d].name, formats[i].name);
			status = quantize(s, &data[d], formats[i].dtype, false, 0, &noise[d][i][0],
					  ignored);
			/* One of them is timed: 8 bits, rotated, of the first data. */
			if (!status)
				status = quantize(s, &data[d], formats[i].dtype, true,
						  d == 0 && i == 0 ? 0.05 : 0, &noise[d][i][1],
						  d == 0 && i == 0 ? seconds : ignored);
		}
	}
	progress_clear();
	if (status)
		return status;
	printf("%shadamard_quantize%s rotated every row and quantized it with one scale, and\n"
	       "%sdequantize_hadamard%s brought it back. Signal to noise in dB: more is better, 6 "
	       "dB\n"
	       "are one bit. Peak: the largest of a row by its root mean square.\n\n",
	       style(stdout, BOLD), style(stdout, PLAIN), style(stdout, BOLD),
	       style(stdout, PLAIN));
	printf("  %-20s%6s", "", "peak");
	for (int i = 0; i < FORMATS; i++)
		printf("  %15s", formats[i].name);
	printf("\n  %-26s", "");
	for (int i = 0; i < FORMATS; i++)
		printf("  %7s%8s", "plain", "rotated");
	printf("\n");
	for (int d = 0; d < count; d++) {
		print_noise(data[d].name, peak(&data[d]), noise[d], false);
		if (data[d].large_every)
			print_noise("  its other columns", 0, noise[d], true);
	}
	printf("\n");
	for (int d = 0; d < count; d++) {
		const double gain = noise[d][1][1].all - noise[d][1][0].all;

		if (data[d].large_every)
			printf("  %s: at 4 bits rotation gains %.1f dB, and %.1f dB in the\n"
			       "    columns that were not made large and that otherwise drown.\n",
			       data[d].name, gain, noise[d][1][1].rest - noise[d][1][0].rest);
		else if (gain < 0)
			printf("  %s: at 4 bits rotation costs %.1f dB: no value stands out, and\n"
			       "    there is nothing to spread.\n",
			       data[d].name, -gain);
		else
			printf("  %s: at 4 bits rotation gains %.1f dB.\n", data[d].name, gain);
	}
	printf("  speed: %.2f us there and %.2f us back for %s in 8 bits\n", seconds[0] * 1e6,
	       seconds[1] * 1e6, data[0].name);
	return 0;
}

/* ---- Data ------------------------------------------------------------------------------------ */

static int make_data(struct data *d, const char *name, int64_t rows, int64_t columns)
{
	*d = (struct data){
		.name = name, .rows = rows, .columns = columns, .n = (columns + 3) / 4 * 4};
	d->x = allocate((size_t)(rows * d->n) * sizeof(float));
	return d->x ? 0 : complain(EXIT_FAILURE, "demo: there is not enough memory");
}

static void fill_up(struct data *d)
{
	for (int64_t k = 0; k < d->rows; k++) {
		for (int64_t i = d->columns; i < d->n; i++)
			d->x[k * d->n + i] = d->x[k * d->n + d->columns - 1];
	}
}

/* The heights; how they bend, which has sharp edges; the heights with some columns made large. */
static int volcano_data(struct data *data)
{
	struct data *heights = &data[0], *bend = &data[1], *outliers = &data[2];
	int status = make_data(heights, "heights", VOLCANO_ROWS, VOLCANO_COLUMNS);

	if (!status)
		status = make_data(bend, "curvature", VOLCANO_ROWS - 2, VOLCANO_COLUMNS - 2);
	if (!status)
		status = make_data(outliers, "three columns x 20", VOLCANO_ROWS, VOLCANO_COLUMNS);
	if (status)
		return status;
	outliers->large_every = 20;
	for (int i = 0; i < VOLCANO_ROWS; i++) {
		for (int j = 0; j < VOLCANO_COLUMNS; j++) {
			heights->x[i * heights->n + j] = volcano[i][j];
			outliers->x[i * outliers->n + j] =
				(float)(volcano[i][j] * (j % 20 == 10 ? LARGE : 1));
		}
	}
	for (int i = 1; i < VOLCANO_ROWS - 1; i++) {
		for (int j = 1; j < VOLCANO_COLUMNS - 1; j++)
			bend->x[(i - 1) * bend->n + j - 1] =
				(float)(volcano[i - 1][j] + volcano[i + 1][j] + volcano[i][j - 1] +
					volcano[i][j + 1] - 4 * volcano[i][j]);
	}
	for (int d = 0; d < DATA_MAX; d++)
		fill_up(&data[d]);
	return 0;
}

static void introduce_volcano(void)
{
	printf("The data: %d x %d heights of Maunga Whau (Mt Eden, Auckland) in metres, 94 to\n"
	       "195, on a grid of 10 m, read off a topographic map by Ross Ihaka; their\n"
	       "curvature, the difference of each height from its neighbours; and the heights\n"
	       "with every 20th column made %d times as large, like the few channels that stand\n"
	       "out in the activations of language models.\n\n",
	       VOLCANO_ROWS, VOLCANO_COLUMNS, LARGE);
}

static int file_data(struct data *d, const char *path)
{
	struct npy a;
	char why[NPY_WHY];
	int64_t rows, n;
	int status = npy_read(&a, path, why);

	path = strcmp(path, "-") ? path : "standard input";
	if (status)
		return complain(status, "%s: %s", path, why);
	if (a.count == 0 || a.ndim == 0) {
		npy_free(&a);
		return complain(EXIT_BAD, "%s: has no rows to show anything on", path);
	}
	n = a.shape[a.ndim - 1];
	rows = a.count / n;
	if (rows * n > ELEMENTS_MAX)
		rows = n < ELEMENTS_MAX ? ELEMENTS_MAX / n : 1;
	status = make_data(d, "your data", rows, n);
	for (int64_t k = 0; k < rows * n && !status; k++) {
		const double value = load_element(a.data, k, a.dtype);

		d->x[k / n * d->n + k % n] = (float)value;
		if (!isfinite((float)value))
			status = complain(EXIT_BAD,
					  "%s: element %lld is %g, which cannot be quantized", path,
					  (long long)k, value);
	}
	if (!status)
		fill_up(d);
	npy_free(&a);
	return status;
}

/* ---- The run --------------------------------------------------------------------------------- */

static void introduce(const struct data *data, const char *path)
{
	if (path)
		printf("The data: %lld rows of %lld from %s.\n\n", (long long)data->rows,
		       (long long)data->columns, strcmp(path, "-") ? path : "standard input");
	else
		introduce_volcano();
}

static int show_device(hz_context *ctx, const struct data *data, int count)
{
	struct show s = {.ctx = ctx};
	int status;

	hz_device_info(ctx, &s.info);
	if (hz_device(ctx) == HZ_CPU)
		printf("%sOn the CPU%s: %s, %s, threads %d\n\n", style(stdout, BOLD),
		       style(stdout, PLAIN), *s.info.cpu_name ? s.info.cpu_name : "name not known",
		       s.info.isa_name, s.info.threads);
	else
		printf("%sOn the GPU%s: %s\n\n", style(stdout, BOLD), style(stdout, PLAIN),
		       s.info.gpu_name);
	status = show_hadamard(&s, data, count);
	if (!status)
		status = show_quantization(&s, data, count);
	/* The volcano, whose heights are the first of its data */
	if (!status && count > 1)
		status = demo_classifier(ctx, data[0].x, data[0].rows, data[0].columns, data[0].n);
	if (!status && count > 1)
		status = demo_quaternions(ctx, data[0].x, data[0].rows, data[0].columns, data[0].n);
	if (!status && count > 1)
		status = demo_lattice(ctx, data[0].x, data[0].rows, data[0].columns, data[0].n);
	if (!status && count > 1)
		status = demo_streams(ctx, data[0].x, data[0].rows, data[0].columns, data[0].n);
	free(s.bits);
	return status;
}

static int show_all(int32_t device, const struct data *data, int count, const char *path)
{
	const hz_options gpu = {.device = device == HZ_AUTO ? HZ_CUDA : device};
	hz_context *ctx = NULL;
	int status = 0;

	if (device == HZ_AUTO || device == HZ_CPU) {
		status = open_context(&ctx, HZ_CPU, 0, HZ_ISA_AUTO);
		if (!status) {
			introduce(data, path);
			status = show_device(ctx, data, count);
		}
		hz_close(ctx);
	}
	if (status || device == HZ_CPU)
		return status;
	status = hz_open(&ctx, &gpu);
	if (status && device == HZ_AUTO) {
		printf("\nNo GPU is shown:\n  %s\n", open_reason());
		return 0;
	}
	if (status)
		return complain(exit_status(status), "%s", hz_open_errmsg());
	if (device == HZ_AUTO)
		printf("\n");
	else
		introduce(data, path);
	status = show_device(ctx, data, count);
	hz_close(ctx);
	return status;
}

static void help(void)
{
	printf("Usage: hurwitz demo [-d cpu|cuda|auto] [FILE.npy]\n"
	       "Show every primitive at work: what it does, how exact it is, how long it takes;\n"
	       "here what rotating rows by a Walsh-Hadamard matrix does to their quantization,\n"
	       "and to a classifier in 8 bits.\n"
	       "On heights of a volcano, or on the rows (the last dimension) of FILE.npy, '-'\n"
	       "being standard input.\n"
	       "\n"
	       "  -d, --device DEVICE  cpu, cuda, cuda:N, or auto, the default: all there are\n"
	       "  -h, --help           this\n");
}

int verb_demo(int argc, char **argv)
{
	static const struct option options[] = {
		{"device", required_argument, NULL, 'd'}, {"help", no_argument, NULL, 'h'},
		{NULL, 0, NULL, 0},
	};
	struct data data[DATA_MAX] = {{0}};
	const char *path;
	int32_t device = HZ_AUTO;
	int c, status;

	while ((c = next_option(argc, argv, "demo", "d:h", options)) != -1) {
		switch (c) {
		case 'd':
			if (parse_device("demo", optarg, &device))
				return EXIT_BAD;
			break;
		case 'h':
			help();
			return EXIT_SUCCESS;
		default:
			return EXIT_BAD;
		}
	}
	if (argc - optind > 1)
		return complain(EXIT_BAD, "demo: one file at most, there are %d", argc - optind);
	path = optind < argc ? argv[optind] : NULL;
	status = path ? file_data(&data[0], path) : volcano_data(data);
	if (!status)
		status = show_all(device, data, path ? 1 : DATA_MAX, path);
	for (int d = 0; d < DATA_MAX; d++)
		free(data[d].x);
	return status;
}
