/*
 * hadamard.c - hurwitz demo of rotations: their effect on the quantization of rows
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#include <config.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tools/demo/demo.h"

#define SEED 1	/* of the random signs */

/* The largest block that every device supports */
#define BLOCK_MAX 65536

/* The time of a call, and the distance of its result from the definition */
struct figures {
	double seconds, error, round_trip;
};

struct show {
	hz_context *ctx;
	hz_hadamard_opts rotation;	/* plan and signs for n */
	hz_tensor signs;
	uint8_t *bits;
	char plan[160];			/* as text */
};

/* ---- The rotation ---------------------------------------------------------------------------- */

/* The plan as text: "of order 64", "of 2 blocks of 64", "of blocks, 64 + 16". */
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

/* One block if there is a Hadamard matrix of order n, otherwise powers of two, largest first */
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
		s->rotation = (hz_hadamard_opts){.plan = HZ_PLAN_GREEDY,
						 .max_block = BLOCK_MAX};
	plan_in_words(s, n);
	return 0;
}

/* ---- Calls on the device, timed -------------------------------------------------------------- */

/* A data set on the context's device */
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
	/* On the CPU these are the operands; for a GPU they give only the shapes. */
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

/* A call that is timed */
struct timed {
	struct show *s;
	struct views *v;
	const hz_hadamard_opts *o;
};

static int call_hadamard(void *data)
{
	const struct timed *t = data;

	return hz_hadamard(t->s->ctx, &t->v->x, &t->v->y, t->o);
}

static int call_quantize(void *data)
{
	const struct timed *t = data;

	return hz_hadamard_quantize(t->s->ctx, &t->v->x, &t->v->q, &t->v->scale, t->o);
}

static int call_dequantize(void *data)
{
	const struct timed *t = data;

	return hz_dequantize_hadamard(t->s->ctx, &t->v->q, &t->v->scale, &t->v->z, t->o);
}

/* ---- hadamard -------------------------------------------------------------------------------- */

#define SAMPLED_ROWS 8
#define SAMPLED 64	/* elements per row that are compared with the definition, which is slow */

/* ||y - definition|| / ||definition|| for samples of y */
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
	struct timed timed = {s, &v, &o};
	int status = make_views(s, d, &v);

	o.pre = &v.signs;
	back = o;
	back.flags = HZ_HADAMARD_TRANSPOSE;
	if (!status)
		status = time_calls(s->ctx, call_hadamard, &timed, 0.05, &f->seconds);
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
	return demo_status(s->ctx, status);
}

/* Integers with an order that is a power of 4 have no rounding errors. */
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

	printf("%s rotated every row: random signs, then an orthonormal Walsh-Hadamard\n"
	       "matrix. It spreads what is in one place over its block, and loses no energy.\n"
	       "Error: against the definition in double, and after the inverse, as a part of\n"
	       "the norm.\n\n"
	       "  %-22s%10s%11s%10s%9s  matrix\n",
	       name_of("hadamard"), "", "error", "inverse", "us a call", "GB/s");
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

/* Signal-to-noise ratio in dB, of all columns and of those not enlarged */
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

/* Quantizes with a scale per row, and dequantizes; without rotation, with blocks of length 1. */
static int quantize(struct show *s, const struct data *d, int dtype, bool rotate, double at_least,
		    struct noise *noise, double seconds[2])
{
	hz_hadamard_opts o = {.plan = HZ_PLAN_UNIFORM, .max_block = 1};
	struct views v;
	struct timed timed = {s, &v, &o};
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
		status = time_calls(s->ctx, call_quantize, &timed, at_least, &seconds[0]);
	if (!status)
		status = time_calls(s->ctx, call_dequantize, &timed, at_least, &seconds[1]);
	if (!status)
		status = from_device(s->ctx, &v.z, &v.host_z);
	if (!status)
		*noise = noise_of(d, v.host_z.data);
	free_views(s, &v);
	return demo_status(s->ctx, status);
}

/*
 * Largest magnitude / root mean square of a row, averaged over rows: it limits one scale per row.
 */
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
			/* Times one: 8 bits, rotated, on the first data set. */
			if (!status)
				status = quantize(s, &data[d], formats[i].dtype, true,
						  d == 0 && i == 0 ? 0.05 : 0, &noise[d][i][1],
						  d == 0 && i == 0 ? seconds : ignored);
		}
	}
	progress_clear();
	if (status)
		return status;
	printf("%s rotated every row and quantized it with one scale, and\n"
	       "%s brought it back. Signal to noise in dB: more is better, 6 dB\n"
	       "are one bit. Peak: the largest of a row by its root mean square.\n\n",
	       name_of("hadamard_quantize"), name_of("dequantize_hadamard"));
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

/* ---- The chapter ----------------------------------------------------------------------------- */

int demo_hadamard(hz_context *ctx, const struct data *data, int count)
{
	struct show s = {.ctx = ctx};
	int status = show_hadamard(&s, data, count);

	if (!status)
		status = show_quantization(&s, data, count);
	free(s.bits);
	return status;
}
