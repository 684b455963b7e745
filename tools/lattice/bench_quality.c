/*
 * bench_quality.c - hurwitz bench --quality: error and rate of the lattice quantizer
 *
 * SPDX-License-Identifier: BSD-2-Clause
 *
 * Gaussian values of variance 1 are encoded and decoded. The gap is the ratio of the error to the
 * rate-distortion bound 2^(-2R), in dB. R counts T by its entropy. Each row has the gap that was
 * published for it, or that the publication's own program gives. Presets are last: their R is the
 * bits that are stored, and what is known is the gap of a simulation of 2^20 values.
 */
#include <config.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tools/core/bench.h"
#include "tools/core/run.h"

#define VALUES (1 << 21)

static const struct row {
	const char *lattice;
	int kind, dim, q, levels, policy, group, center;
	double beta;		/* 0: hz_lattice_design() chooses */
	double bank[4];
	double gap;		/* the known gap, in dB */
} rows[] = {
	/* T: beta 2^(T/3) for each block */
	{"Z", HZ_LATTICE_Z, 1, 16, 1, HZ_LATTICE_T, 0, 0, 0.2473, {0}, 3.33},
	{"Z", HZ_LATTICE_Z, 1, 4, 2, HZ_LATTICE_T, 0, 0, 0.291, {0}, 5.29},
	{"Z", HZ_LATTICE_Z, 1, 4, 2, HZ_LATTICE_T, 0, 1, 0.247, {0}, 3.32},
	{"Z", HZ_LATTICE_Z, 1, 3, 2, HZ_LATTICE_T, 0, 0, 0.4393, {0}, 3.22},
	{"A2", HZ_LATTICE_A2, 2, 16, 1, HZ_LATTICE_T, 0, 0, 0.2586, {0}, 2.80},
	{"A2", HZ_LATTICE_A2, 2, 4, 2, HZ_LATTICE_T, 0, 0, 0.259, {0}, 3.61},
	{"A2", HZ_LATTICE_A2, 2, 4, 2, HZ_LATTICE_T, 0, 1, 0.250, {0}, 3.19},
	{"A2", HZ_LATTICE_A2, 2, 2, 4, HZ_LATTICE_T, 0, 1, 0.2496, {0}, 3.47},
	{"A2", HZ_LATTICE_A2, 2, 3, 3, HZ_LATTICE_T, 0, 0, 0.1563, {0}, 3.39},
	{"D4", HZ_LATTICE_D, 4, 3, 1, HZ_LATTICE_T, 0, 0, 1.1163, {0}, 3.39},
	{"D4", HZ_LATTICE_D, 4, 4, 1, HZ_LATTICE_T, 0, 0, 0.7767, {0}, 2.92},
	{"D4", HZ_LATTICE_D, 4, 8, 1, HZ_LATTICE_T, 0, 0, 0.3621, {0}, 2.35},
	{"D4", HZ_LATTICE_D, 4, 16, 1, HZ_LATTICE_T, 0, 0, 0.1745, {0}, 2.29},
	{"D4", HZ_LATTICE_D, 4, 3, 2, HZ_LATTICE_T, 0, 0, 0.3452, {0}, 3.21},
	{"D4", HZ_LATTICE_D, 4, 4, 2, HZ_LATTICE_T, 0, 0, 0.202, {0}, 3.03},
	{"D4", HZ_LATTICE_D, 4, 4, 2, HZ_LATTICE_T, 0, 1, 0.181, {0}, 2.85},
	{"D4", HZ_LATTICE_D, 4, 2, 4, HZ_LATTICE_T, 0, 1, 0.209, {0}, 4.00},
	{"D4", HZ_LATTICE_D, 4, 4, 3, HZ_LATTICE_T, 0, 0, 0.0485, {0}, 2.99},
	{"D4", HZ_LATTICE_D, 4, 4, 3, HZ_LATTICE_T, 0, 1, 0.0469, {0}, 2.76},
	{"D4", HZ_LATTICE_D, 4, 5, 2, HZ_LATTICE_T, 0, 0, 0.1240, {0}, 2.65},
	{"D4", HZ_LATTICE_D, 4, 8, 2, HZ_LATTICE_T, 0, 0, 0.0465, {0}, 2.37},
	{"E8", HZ_LATTICE_E8, 8, 3, 1, HZ_LATTICE_T, 0, 0, 1.2749, {0}, 2.84},
	{"E8", HZ_LATTICE_E8, 8, 4, 1, HZ_LATTICE_T, 0, 0, 0.8624, {0}, 2.33},
	{"E8", HZ_LATTICE_E8, 8, 16, 1, HZ_LATTICE_T, 0, 0, 0.2156, {0}, 1.72},
	{"E8", HZ_LATTICE_E8, 8, 4, 2, HZ_LATTICE_T, 0, 0, 0.231, {0}, 2.47},
	{"E8", HZ_LATTICE_E8, 8, 4, 2, HZ_LATTICE_T, 0, 1, 0.216, {0}, 2.28},
	{"E8", HZ_LATTICE_E8, 8, 3, 2, HZ_LATTICE_T, 0, 0, 0.425, {0}, 3.01},
	{"E8", HZ_LATTICE_E8, 8, 3, 2, HZ_LATTICE_T, 0, 1, 0.397, {0}, 2.72},
	{"E8", HZ_LATTICE_E8, 8, 2, 4, HZ_LATTICE_T, 0, 1, 0.216, {0}, 4.09},
	/* CLIP: fixed rate, no side information */
	{"Z", HZ_LATTICE_Z, 1, 4, 1, HZ_LATTICE_CLIP, 0, 0, 0, {0}, 3.83},
	{"A2", HZ_LATTICE_A2, 2, 4, 1, HZ_LATTICE_CLIP, 0, 0, 0, {0}, 3.08},
	{"D4", HZ_LATTICE_D, 4, 4, 1, HZ_LATTICE_CLIP, 0, 0, 0, {0}, 2.74},
	{"E8", HZ_LATTICE_E8, 8, 4, 1, HZ_LATTICE_CLIP, 0, 0, 0, {0}, 2.25},
	{"Z", HZ_LATTICE_Z, 1, 8, 1, HZ_LATTICE_CLIP, 0, 0, 0, {0}, 4.17},
	{"D4", HZ_LATTICE_D, 4, 8, 1, HZ_LATTICE_CLIP, 0, 0, 0, {0}, 3.25},
	{"Z", HZ_LATTICE_Z, 1, 16, 1, HZ_LATTICE_CLIP, 0, 0, 0, {0}, 5.03},
	{"A2", HZ_LATTICE_A2, 2, 16, 1, HZ_LATTICE_CLIP, 0, 0, 0, {0}, 4.38},
	{"D4", HZ_LATTICE_D, 4, 16, 1, HZ_LATTICE_CLIP, 0, 0, 0, {0}, 3.94},
	{"E8", HZ_LATTICE_E8, 8, 16, 1, HZ_LATTICE_CLIP, 0, 0, 0, {0}, 3.25},
	{"Z", HZ_LATTICE_Z, 1, 4, 2, HZ_LATTICE_CLIP, 0, 1, 0, {0}, 5.03},
	{"A2", HZ_LATTICE_A2, 2, 4, 2, HZ_LATTICE_CLIP, 0, 1, 0, {0}, 5.07},
	{"D4", HZ_LATTICE_D, 4, 4, 2, HZ_LATTICE_CLIP, 0, 1, 0, {0}, 4.73},
	{"E8", HZ_LATTICE_E8, 8, 4, 2, HZ_LATTICE_CLIP, 0, 1, 0, {0}, 3.95},
	{"E8", HZ_LATTICE_E8, 8, 3, 2, HZ_LATTICE_CLIP, 0, 1, 0, {0}, 3.72},
	/* BANK: the best of four scales per block */
	{"E8",
	 HZ_LATTICE_E8,
	 8,
	 14,
	 1,
	 HZ_LATTICE_BANK,
	 0,
	 0,
	 1,
	 {.2207, .2862, .3712, .5725},
	 1.87},
	{"E8",
	 HZ_LATTICE_E8,
	 8,
	 14,
	 1,
	 HZ_LATTICE_BANK,
	 0,
	 0,
	 1 / 14.0,
	 {3.47, 4.74, 6.90, 18.11},
	 1.97},
	{"E8",
	 HZ_LATTICE_E8,
	 8,
	 16,
	 1,
	 HZ_LATTICE_BANK,
	 0,
	 0,
	 1,
	 {.2106, .2731, .3248, .5009},
	 1.80},
	{"E8",
	 HZ_LATTICE_E8,
	 8,
	 4,
	 2,
	 HZ_LATTICE_BANK,
	 0,
	 1,
	 1,
	 {.2106, .2731, .3542, .5463},
	 2.41},
	{"D4", HZ_LATTICE_D, 4, 4, 2, HZ_LATTICE_BANK, 0, 1, 1, {.1564, .2212, .2868, .4824}, 3.34},
	/* GROUP: beta 2^(T/8) per group */
	{"E8", HZ_LATTICE_E8, 8, 4, 2, HZ_LATTICE_GROUP, 8, 1, 0, {0}, 2.32},
	{"E8", HZ_LATTICE_E8, 8, 4, 2, HZ_LATTICE_GROUP, 16, 1, 0, {0}, 2.28},
	{"E8", HZ_LATTICE_E8, 8, 4, 2, HZ_LATTICE_GROUP, 32, 1, 0, {0}, 2.67},
	{"E8", HZ_LATTICE_E8, 8, 4, 2, HZ_LATTICE_GROUP, 64, 1, 0, {0}, 3.20},
	{"E8", HZ_LATTICE_E8, 8, 4, 2, HZ_LATTICE_GROUP, 128, 1, 0, {0}, 3.75},
	{"D4", HZ_LATTICE_D, 4, 4, 2, HZ_LATTICE_GROUP, 16, 1, 0, {0}, 3.00},
	{"D4", HZ_LATTICE_D, 4, 4, 2, HZ_LATTICE_GROUP, 32, 1, 0, {0}, 3.66},
	{"D4", HZ_LATTICE_D, 4, 4, 2, HZ_LATTICE_GROUP, 64, 1, 0, {0}, 4.09},
	{"D4", HZ_LATTICE_D, 4, 4, 2, HZ_LATTICE_GROUP, 128, 1, 0, {0}, 4.91},
	{"E8", HZ_LATTICE_E8, 8, 14, 1, HZ_LATTICE_GROUP, 16, 0, 0, {0}, 1.78},
	{"E8", HZ_LATTICE_E8, 8, 14, 1, HZ_LATTICE_GROUP, 32, 0, 0, {0}, 2.06},
	{"E8", HZ_LATTICE_E8, 8, 14, 1, HZ_LATTICE_GROUP, 64, 0, 0, {0}, 2.51},
};

#define ROWS (sizeof(rows) / sizeof(*rows))

/* ---- Results --------------------------------------------------------------------------------- */

static void print(const struct settings *set, const char *family, const char *name, double beta,
		  double rate, double mse, double side, double known)
{
	const double gap = 10 * log10(mse * exp2(2 * rate));

	progress_clear();
	if (set->table)
		printf("%-34s%9.4f%8.3f%12.4e%8.2f%8.2f%8.2f%9.1f\n", name, beta, rate, mse,
		       -10 * log10(mse), gap, known, 100 * side);
	if (set->json)
		fprintf(set->json,
			"{\"quality\": \"%s\", \"case\": \"%s\", \"beta\": %.5g, \"rate\": %.5g, "
			"\"mse\": %.6g, \"gap_db\": %.4f, \"known_db\": %.2f, \"side\": %.4g}\n",
			family, name, beta, rate, mse, gap, known, side);
}

/* ---- Lattices -------------------------------------------------------------------------------- */

struct data {
	hz_context *ctx;
	const struct settings *set;
	float *x, *y;			/* on the host */
	uint8_t *t;
	hz_tensor x_on, y_on, t_on, codes_on;	/* on the device */
	int64_t n;
};

static hz_lattice_opts opts_of(const struct row *r)
{
	hz_lattice_opts o = {.kind = r->kind, .dim = r->dim, .q = r->q, .levels = r->levels,
			     .policy = r->policy, .group = r->group, .beta = r->beta};

	if (r->policy == HZ_LATTICE_BANK) {
		o.banks = 4;
		o.bank = r->bank;
	}
	return o;
}

/* Error and rate of a quantizer; side: the share of blocks whose T is not the most common one */
static int measure(struct data *d, const hz_lattice *l, double *mse, double *rate, double *side)
{
	hz_lattice_info info;
	hz_tensor x = d->x_on, y = d->y_on, t, codes;
	int64_t blocks, count, histogram[256] = {0}, most = 0;
	double sum = 0, entropy = 0;
	int status;

	hz_lattice_get_info(l, &info);
	blocks = d->n / info.dim;
	count = info.scales ? info.group ? d->n / info.group : blocks : 0;
	codes = hz_tensor_2d(d->codes_on.data, info.level_dtype, d->x_on.device, blocks,
			     info.levels);
	t = hz_tensor_1d(d->t_on.data, HZ_U8, d->x_on.device, count);
	status = WITH_WORKSPACE(d->ctx, hz_lattice_encode(d->ctx, l, &x, &codes,
							  count ? &t : NULL, NULL, NULL));
	if (status == HZ_OK)
		status = hz_lattice_decode(d->ctx, l, &codes, count ? &t : NULL, &y, NULL);
	if (status == HZ_OK) {
		hz_tensor host = hz_tensor_1d(d->y, HZ_F32, HZ_CPU, d->n);

		status = from_device(d->ctx, &y, &host);
	}
	if (status == HZ_OK && count) {
		hz_tensor host = hz_tensor_1d(d->t, HZ_U8, HZ_CPU, count);

		status = from_device(d->ctx, &t, &host);
	}
	if (status != HZ_OK)
		return complain(exit_status(status), "%s", hz_errmsg(d->ctx));
	for (int64_t i = 0; i < d->n; i++)
		sum += ((double)d->x[i] - (double)d->y[i]) * ((double)d->x[i] - (double)d->y[i]);
	for (int64_t i = 0; i < count; i++)
		histogram[d->t[i]]++;
	for (int i = 0; i < 256; i++) {
		const double p = count ? (double)histogram[i] / (double)count : 0;

		most = histogram[i] > most ? histogram[i] : most;
		entropy -= p > 0 ? p * log2(p) : 0;
	}
	*mse = sum / (double)d->n;
	*rate = info.levels * log2(info.q) + (count ? entropy / (double)(d->n / count) : 0);
	*side = count ? 1 - (double)most / (double)count : 0;
	return 0;
}

static int run_row(struct data *d, const struct row *r)
{
	static const char *const policy[] = {"none", "t", "clip", "bank", "group"};
	hz_lattice_opts o = opts_of(r);
	hz_lattice_report report;
	double bank[16], mse = 0, rate = 0, side = 0;
	char name[64], group[16] = "";
	hz_lattice *l;
	int status;

	if (r->group)
		snprintf(group, sizeof(group), " %d", r->group);
	snprintf(name, sizeof(name), "%s q=%d M=%d %s%s%s", r->lattice, r->q, r->levels,
		 policy[r->policy], group, r->center ? " center" : "");
	progress("bench: %s", name);
	if (r->beta == 0) {
		o.bank = NULL;
		if (hz_lattice_design(d->ctx, &o, 0, 1, NULL, &o, bank, &report) != HZ_OK)
			return complain(EXIT_FAILURE, "%s", hz_errmsg(d->ctx));
	}
	o.flags = r->center ? HZ_LATTICE_CENTER : 0;
	status = hz_lattice_open(d->ctx, &l, &o);
	if (status != HZ_OK)
		return complain(exit_status(status), "%s", hz_errmsg(d->ctx));
	status = measure(d, l, &mse, &rate, &side);
	hz_lattice_close(l);
	if (!status)
		print(d->set, r->lattice, name, o.beta, rate, mse, side, r->gap);
	return status;
}

static int run_presets(struct data *d)
{
	static const double known[] = {
		[HZ_LATTICE_PRESET_E8_4_50_FAST] = 24.23, [HZ_LATTICE_PRESET_E8_4_50] = 25.09,
		[HZ_LATTICE_PRESET_E8_4_25] = 23.42, [HZ_LATTICE_PRESET_E8_4_25_BEST] = 23.78,
		[HZ_LATTICE_PRESET_E8_3_25_FAST] = 17.27, [HZ_LATTICE_PRESET_E8_3_25] = 17.79,
		[HZ_LATTICE_PRESET_E8_2_25] = 11.54, [HZ_LATTICE_PRESET_D4_4_50] = 23.97,
	};
	int status = 0;

	for (const struct word *w = lattice_preset_words; w->name && !status; w++) {
		for (int wide = 0; wide < 2 && !status; wide++) {
			const hz_lattice_opts o = {.preset = (int32_t)w->value,
						   .flags = wide ? HZ_LATTICE_WIDE : 0};
			double mse = 0, rate = 0, side = 0;
			hz_lattice_info info;
			char name[40];
			hz_lattice *l;

			snprintf(name, sizeof(name), "%s%s", w->name, wide ? " wide" : "");
			progress("bench: %s", name);
			status = hz_lattice_open(d->ctx, &l, &o);
			if (status != HZ_OK)
				return complain(exit_status(status), "%s", hz_errmsg(d->ctx));
			hz_lattice_get_info(l, &info);
			status = measure(d, l, &mse, &rate, &side);
			hz_lattice_close(l);
			if (!status)
				print(d->set, "preset", name, (double)info.scale_table[0],
				      info.bits, mse, side,
				      20 * log10(2) * info.bits - known[w->value]);
		}
	}
	return status;
}

/* ---- Common 4-bit formats, for comparison ---------------------------------------------------- */

/* q = rint(x / s) in -8 .. 7 with s = amax / 7; `searched` tries s times 1, 0.98, .. 0.5 and takes
 * the best */
static double int4(const float *x, int64_t n, int group, bool searched)
{
	double total = 0;

	for (int64_t g = 0; g + group <= n; g += group) {
		float amax = 0;
		double best = -1;

		for (int i = 0; i < group; i++)
			amax = fmaxf(amax, fabsf(x[g + i]));
		for (int k = 0; k < (searched ? 26 : 1); k++) {
			uint16_t half;
			double s, e = 0;

			store_element(&half, 0, HZ_F16, (double)amax / 7 * (1 - 0.02 * k));
			s = load_element(&half, 0, HZ_F16);
			for (int i = 0; i < group; i++) {
				const double q = fmax(-8, fmin(7, rint((double)x[g + i] / s)));

				e += ((double)x[g + i] - q * s) * ((double)x[g + i] - q * s);
			}
			best = best < 0 || e < best ? e : best;
		}
		total += best;
	}
	return total / (double)(n / group * group);
}

/* NF4 of QLoRA: 16 values times the largest magnitude in a group of 64 */
static double nf4(const float *x, int64_t n)
{
	static const double level[16] = {
		-1, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453,
		-0.28444138169288635, -0.18477343022823334, -0.09105003625154495, 0,
		0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224,
		0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1,
	};
	double total = 0;

	for (int64_t g = 0; g + 64 <= n; g += 64) {
		double amax = 0;

		/* Not fmax(): GCC 12.2 for aarch64 crashes on such a loop. */
		for (int i = 0; i < 64; i++) {
			const double size = fabs((double)x[g + i]);

			amax = size > amax ? size : amax;
		}
		for (int i = 0; i < 64; i++) {
			double e = 1e30;

			for (int k = 0; k < 16; k++)
				e = fmin(e, fabs((double)x[g + i] - level[k] * amax));
			total += e * e;
		}
	}
	return total / (double)(n / 64 * 64);
}

static void run_formats(const struct data *d)
{
	static const struct {
		int group;
		double absmax, searched;
	} known[] = {{32, 6.8, 5.8}, {64, 6.2, 5.1}, {128, 6.2, 4.9}};
	char name[40];

	for (int i = 0; i < 3; i++) {
		const double rate = 4 + 16.0 / known[i].group;

		progress("bench: int4");
		snprintf(name, sizeof(name), "int4 absmax group %d", known[i].group);
		print(d->set, "int4 absmax", name, 0, rate, int4(d->x, d->n, known[i].group, false),
		      0, known[i].absmax);
		snprintf(name, sizeof(name), "int4 searched group %d", known[i].group);
		print(d->set, "int4 searched", name, 0, rate,
		      int4(d->x, d->n, known[i].group, true), 0, known[i].searched);
	}
	print(d->set, "NF4", "NF4 group 64", 0, 4.127, nf4(d->x, d->n), 0, 4.1);
}

/* ---- The run --------------------------------------------------------------------------------- */

int bench_quality(const struct settings *set, hz_context *ctx)
{
	struct data d = {.ctx = ctx, .set = set, .n = set->quick ? VALUES / 8 : VALUES};
	const int device = hz_device(ctx);
	uint64_t state = 1;
	hz_tensor host;
	int status;

	d.x = allocate((size_t)d.n * 4);
	d.y = allocate((size_t)d.n * 4);
	d.t = allocate((size_t)d.n);
	if (!d.x || !d.y || !d.t) {
		status = complain(EXIT_FAILURE, "there is not enough memory for the data");
		goto out;
	}
	for (int64_t i = 0; i < d.n; i += 2) {
		const double u = ((double)(random_u64(&state) >> 11) + 0.5) * 0x1p-53;
		const double angle = 6.28318530717958647693 * (double)(random_u64(&state) >> 11) *
				     0x1p-53;

		d.x[i] = (float)(sqrt(-2 * log(u)) * cos(angle));
		d.x[i + 1] = (float)(sqrt(-2 * log(u)) * sin(angle));
	}
	host = hz_tensor_1d(d.x, HZ_F32, HZ_CPU, d.n);
	status = to_device(ctx, &host, true, &d.x_on);
	if (status == HZ_OK && device == HZ_CPU)
		d.y_on = hz_tensor_1d(d.y, HZ_F32, device, d.n);
	else if (status == HZ_OK)
		status = to_device(ctx, &host, false, &d.y_on);
	/* For Z the codes of a value have at most a byte per level, and T has one. */
	if (status == HZ_OK)
		status = hz_alloc(ctx, &d.codes_on.data, (size_t)d.n * 2, device);
	if (status == HZ_OK && device == HZ_CPU)
		d.t_on.data = d.t;
	else if (status == HZ_OK)
		status = hz_alloc(ctx, &d.t_on.data, (size_t)d.n, device);
	if (status != HZ_OK) {
		status = complain(exit_status(status), "%s", hz_errmsg(ctx));
		goto out;
	}
	if (set->table)
		printf("%-34s%9s%8s%12s%8s%8s%8s%9s\n", "Gaussian data", "beta", "bits", "mse",
		       "SNR dB", "gap dB", "known", "T>0 %");
	for (size_t i = 0; i < ROWS && !status; i++)
		status = run_row(&d, &rows[i]);
	if (!status)
		status = run_presets(&d);
	if (!status)
		run_formats(&d);
out:
	progress_clear();
	if (device != HZ_CPU) {
		free_device(ctx, &d.x_on);
		free_device(ctx, &d.y_on);
		hz_free(ctx, d.t_on.data, device);
	}
	hz_free(ctx, d.codes_on.data, device);
	free(d.x);
	free(d.y);
	free(d.t);
	hz_close(ctx);
	return status;
}
