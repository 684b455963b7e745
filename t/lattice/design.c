/*
 * design.c - the search for a lattice quantizer: results and errors
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#include <config.h>

#include "t/core/dev.h"

static void test_design(void)
{
	hz_context *ctx = devs[0].ctx;
	uint64_t rnd = tap_seed();
	hz_lattice_opts want = {
		.kind = HZ_LATTICE_D, .dim = 4, .q = 4, .levels = 2, .policy = HZ_LATTICE_T};
	hz_lattice_opts found, scaled;
	hz_lattice_report report, wide;
	double bank[16];
	float *x = malloc(49152 * 4);
	hz_tensor t = hz_tensor_1d(x, HZ_F32, HZ_CPU, 49152);
	int i, status;

	for (i = 0; i < 49152; i++)
		x[i] = (float)(10 * rnd_normal(&rnd));
	memset(&report, 0xff, sizeof(report));
	status = hz_lattice_design(ctx, &want, 0, 1, NULL, &found, bank, &report);
	ok(report.reserved[0] == 0 && report.reserved[2] == 0,
	   "what is reserved in hz_lattice_report is 0");
	ok(status == HZ_OK &&
	   fabs(report.gap_db - 2.85) < 0.12 && fabs(found.beta - 0.19) < 0.02 &&
	   (found.flags & HZ_LATTICE_CENTER) && report.overload == 0 &&
	   fabs(report.rate - 4 - report.entropy_t / 4) < 1e-9,
	   "D4 q=4 M=2 with T: %.2f dB above D(R), beta %.3f", report.gap_db, found.beta);
	status = hz_lattice_design(ctx, &want, 0, 0, &t, &scaled, bank, &wide);
	ok(status == HZ_OK &&
	   fabs(wide.gap_db - report.gap_db) < 0.15 && fabs(scaled.beta / found.beta - 10) < 2,
	   "the same of data ten times as wide");
	if (!tap_quick()) {	/* half of this program's time */
		want = (hz_lattice_opts){.policy = HZ_LATTICE_CLIP};
		status = hz_lattice_design(ctx, &want, 4, 1, NULL, &found, bank, &report);
		ok(status == HZ_OK && found.kind == HZ_LATTICE_E8 && found.q == 16 &&
		   found.levels == 1 && report.rate <= 4 &&
		   fabs(10 * log10(1 / report.mse) - 20.83) < 0.15,
		   "the best of all at 4 bits without side information is E8 q=16: %.2f dB",
		   10 * log10(1 / report.mse));
	}
	want = (hz_lattice_opts){.kind = HZ_LATTICE_E8, .dim = 8, .q = 4, .levels = 2,
				 .policy = HZ_LATTICE_BANK, .banks = 4};
	status = hz_lattice_design(ctx, &want, 0, 1, NULL, &found, bank, &report);
	ok(status == HZ_OK && found.bank == bank && found.banks == 4 && report.gap_db < 2.8,
	   "four scales: %.2f dB", report.gap_db);
	ok(hz_lattice_design(ctx, &want, 3, 1, NULL, &found, bank, &report) == HZ_ENOTSUP &&
		   strstr(hz_errmsg(ctx), "rate is 3 bits a value, which no quantizer of this "
					  "kind, q and levels reaches"),
	   "a rate that nothing has");
	ok(hz_lattice_design(ctx, &want, 0, 1, NULL, &found, NULL, &report) == HZ_EINVAL &&
	   strstr(hz_errmsg(ctx), "bank is NULL"), "no room for a bank");
	want.kind = want.dim = 0;
	ok(hz_lattice_design(ctx, &want, 0, 1, NULL, &found, bank, &report) == HZ_EINVAL &&
	   strstr(hz_errmsg(ctx), "rate is 0"), "no rate and no lattice");
	want.kind = HZ_LATTICE_E8;
	ok(hz_lattice_design(ctx, &want, 0, -1, NULL, &found, bank, &report) == HZ_EINVAL,
	   "sigma below 0");
	free(x);
}

/* The squared error per value of x encoded and decoded on a CPU; x receives the decoded values. */
static double measured(const hz_lattice_opts *o, float *x, int64_t count)
{
	const hz_options cpu = {.device = HZ_CPU};
	hz_context *ctx;
	hz_lattice *l;
	hz_lattice_info info;
	float *y = malloc((size_t)count * 4);
	void *codes = malloc((size_t)count * 4), *scales = malloc((size_t)count);
	hz_tensor xt = hz_tensor_1d(x, HZ_F32, HZ_CPU, count);
	hz_tensor yt = hz_tensor_1d(y, HZ_F32, HZ_CPU, count);
	hz_tensor ct, tt, *t = NULL;
	double sum = 0;

	if (hz_open(&ctx, &cpu) != HZ_OK || hz_lattice_open(ctx, &l, o) != HZ_OK)
		bail("no quantizer on the CPU");
	hz_lattice_get_info(l, &info);
	ct = hz_tensor_2d(codes, info.level_dtype, HZ_CPU, count / info.dim, info.levels);
	tt = hz_tensor_1d(scales, HZ_U8, HZ_CPU, count / (o->group ? o->group : info.dim));
	if (info.scales)
		t = &tt;
	if (hz_lattice_encode(ctx, l, &xt, &ct, t, NULL, NULL) != HZ_OK ||
	    hz_lattice_decode(ctx, l, &ct, t, &yt, NULL) != HZ_OK)
		bail("%s", hz_errmsg(ctx));
	for (int64_t i = 0; i < count; i++)
		sum += ((double)x[i] - y[i]) * ((double)x[i] - y[i]);
	hz_lattice_close(l);
	hz_close(ctx);
	free(scales);
	free(codes);
	free(y);
	return sum / (double)count;
}

/* The report's error is the one that encoding and decoding these data gives. */
static void test_report(void)
{
	static const struct {
		hz_lattice_opts want;
		const char *name;
	} cases[] = {
		{{.kind = HZ_LATTICE_E8, .q = 16, .levels = 1}, "E8 q=16 without a policy"},
		{{.kind = HZ_LATTICE_Z, .q = 4, .levels = 2}, "Z q=4 M=2 without a policy"},
		{{.kind = HZ_LATTICE_A2, .q = 3, .levels = 2}, "A2 q=3 M=2 without a policy"},
		{{.kind = HZ_LATTICE_D, .q = 4, .levels = 2, .policy = HZ_LATTICE_CLIP},
		 "D4 q=4 M=2, clipped"},
		{{.kind = HZ_LATTICE_A2, .q = 4, .levels = 2, .policy = HZ_LATTICE_T},
		 "A2 q=4 M=2 with T"},
		{{.kind = HZ_LATTICE_E8, .q = 4, .levels = 2, .policy = HZ_LATTICE_GROUP,
		  .group = 32},
		 "E8 q=4 M=2 by groups of 32"},
		{{.kind = HZ_LATTICE_D, .q = 4, .levels = 2, .policy = HZ_LATTICE_BANK,
		  .group = 16, .banks = 3},
		 "D4 q=4 M=2, three scales of groups of 16"},
	};
	hz_context *ctx = devs[0].ctx;
	uint64_t rnd = tap_seed();
	hz_lattice_opts found;
	hz_lattice_report report;
	double bank[16];
	float *x = malloc(49152 * 4);
	hz_tensor t = hz_tensor_1d(x, HZ_F32, HZ_CPU, 49152);

	for (int i = 0; i < 49152; i++)
		x[i] = (float)rnd_normal(&rnd);
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		const int status = hz_lattice_design(ctx, &cases[i].want, 0, 0, &t, &found, bank,
						     &report);
		const double mse = status == HZ_OK ? measured(&found, x, 49152) : 0;

		ok(status == HZ_OK && fabs(report.mse / mse - 1) < 1e-6 && report.gap_db > 0,
		   "%s: an error of %g, as measured", cases[i].name, report.mse);
		if (status == HZ_OK && fabs(report.mse / mse - 1) >= 1e-6)
			diag("measured %g, %.2f dB above D(R)", mse, report.gap_db);
	}
	free(x);
}

/* The errors of a bank's scales are compared correctly for data of any magnitude. */
static void test_sizes(void)
{
	hz_context *ctx = devs[0].ctx;
	const hz_lattice_opts want = {.kind = HZ_LATTICE_D, .q = 4, .levels = 2,
				      .policy = HZ_LATTICE_BANK, .banks = 4};
	uint64_t rnd = tap_seed();
	hz_lattice_opts found;
	hz_lattice_report report, other;
	double bank[16], more[16];
	float *x = malloc(4096 * 4), *y = malloc(4096 * 4);
	hz_tensor t = hz_tensor_1d(x, HZ_F32, HZ_CPU, 4096);
	hz_tensor u = hz_tensor_1d(y, HZ_F32, HZ_CPU, 4096);

	for (int i = 0; i < 4096; i++)
		x[i] = (float)rnd_normal(&rnd);
	if (hz_lattice_design(ctx, &want, 0, 0, &t, &found, bank, &report) != HZ_OK)
		bail("%s", hz_errmsg(ctx));
	for (int e = -52; e <= 60; e += 112) {
		int status, same = 1;

		for (int i = 0; i < 4096; i++)
			y[i] = ldexpf(x[i], e);
		status = hz_lattice_design(ctx, &want, 0, 0, &u, &found, more, &other);
		for (int i = 0; i < 4 && status == HZ_OK; i++)
			same &= fabs(ldexp(more[i], -e) / bank[i] - 1) < 1e-9;
		ok(status == HZ_OK && same && fabs(other.gap_db - report.gap_db) < 1e-6,
		   "the same bank for data 2^%d as large", e);
		if (status == HZ_OK)
			diag("%.3f and %.3f dB", other.gap_db, report.gap_db);
	}
	free(x);
	free(y);
}

/* Presets: within the rate, and what encoding has */
static void test_presets(void)
{
	enum { ROWS = 64, N = 1024 };
	hz_context *ctx = devs[0].ctx;
	float *const x = malloc(ROWS * N * 4), *const y = malloc(ROWS * N * 4), scale[ROWS];
	uint32_t *const codes = malloc(ROWS * N);
	uint8_t *const t = malloc(ROWS * N / 4);
	const hz_tensor xt = hz_tensor_2d(x, HZ_F32, HZ_CPU, ROWS, N);
	hz_tensor yt = hz_tensor_2d(y, HZ_F32, HZ_CPU, ROWS, N);
	hz_tensor st = hz_tensor_1d(scale, HZ_F32, HZ_CPU, ROWS);
	hz_tensor tt = hz_tensor_2d(t, HZ_U8, HZ_CPU, ROWS, N / 8);
	static const double rates[] = {2.25, 3.3, 4.25, 4.5, 8};
	uint64_t rnd = tap_seed();
	hz_lattice_report report;
	hz_lattice_opts found;

	for (int k = 0; k < 10; k++) {
		const double rate = rates[k / 2];
		const hz_hadamard_opts h = {0};
		hz_lattice_code_opts o = {.row_scale = &st};
		const hz_lattice_opts none = {.kind = 0};
		double error = 0;
		hz_lattice_info info;
		hz_tensor ct;
		hz_lattice *l;

		/* Rows of different power; then outliers in some columns of all rows */
		for (int i = 0; i < ROWS * N; i++)
			x[i] = (float)(rnd_normal(&rnd) * exp2(i / N % 5) *
				       (k % 2 && i % N % 100 == 3 ? 30 : 1));
		if (hz_lattice_design(ctx, k % 2 ? &none : NULL, rate, 0, &xt, &found, NULL, &report) != HZ_OK ||
		    hz_lattice_open(ctx, &l, &found) != HZ_OK)
			bail("design: %s", hz_errmsg(ctx));
		hz_lattice_get_info(l, &info);
		ct = hz_tensor_3d(codes, info.level_dtype, HZ_CPU, ROWS, N / info.dim,
				  info.levels);
		o.hadamard = report.rotate ? &h : NULL;
		if (tap_cuda() ? HZ_OK :
		    hz_lattice_encode(ctx, l, &xt, &ct, &tt, NULL, &o) != HZ_OK ||
		    hz_lattice_decode(ctx, l, &ct, &tt, &yt, &o) != HZ_OK)
			bail("design: %s", hz_errmsg(ctx));
		for (int i = 0; i < ROWS * N; i++)
			error += ((double)x[i] - y[i]) * ((double)x[i] - y[i]) / (ROWS * N);
		ok(report.rate <= rate + 32.0 / 4096 && report.rotate == k % 2 &&
		   (tap_cuda() || fabs(10 * log10(error / report.mse)) < 0.3),
		   "rate %g, %s: preset %d%s, %.2f dB, encoded %.2f dB", rate,
		   k % 2 ? "outliers" : "Gaussian", found.preset,
		   found.flags & HZ_LATTICE_WIDE ? " wide" : "", 10 * log10(report.mse),
		   10 * log10(error));
		hz_lattice_close(l);
	}
	free(x);
	free(y);
	free(codes);
	free(t);
}

/* Candidates that cannot be opened do not end the search. */
static void test_candidates(void)
{
	static const double z[8] = {0.9, 0.9, 0.9, 0.9, 0.9, 0.9, 0.9, 0.9};
	hz_context *ctx = devs[0].ctx;
	hz_lattice_opts want = {.policy = HZ_LATTICE_T, .dither = z}, found;
	hz_lattice_report report;

	ok(hz_lattice_design(ctx, &want, 2.5, 1, NULL, &found, NULL, &report) == HZ_OK &&
	   report.rate <= 2.5 && !strstr(hz_errmsg(ctx), "leave 0"),
	   "a dither that leaves 0 outside of some codes");
	want = (hz_lattice_opts){.kind = HZ_LATTICE_Z, .q = 3, .levels = 1,
				 .policy = HZ_LATTICE_T, .alpha = -1};
	ok(hz_lattice_design(ctx, &want, 0, 1, NULL, &found, NULL, &report) == HZ_EINVAL &&
	   strstr(hz_errmsg(ctx), "lattice_design: want->alpha is -1, must be positive"),
	   "what no quantizer can be");
}

/* Invalid input: status and message, and no result is written. */
static void test_refusals(void)
{
	static float zeros[1024], few[8], infinities[1024];
	hz_context *ctx = devs[0].ctx;
	const hz_lattice_opts d4 = {.kind = HZ_LATTICE_D, .q = 4, .levels = 2};
	const hz_lattice_opts any = {.kind = 0}, ninth = {.preset = 9};
	const hz_lattice_opts cube = {.shaping = HZ_LATTICE_SHAPING_CUBE};
	const hz_lattice_opts basis = {.kind = HZ_LATTICE_BASIS, .q = 4, .levels = 2, .dim = 4};
	const hz_lattice_opts transform = {.kind = HZ_LATTICE_D, .q = 4, .levels = 2,
					   .transform = &(double){1}};
	const hz_lattice_opts no_banks = {.kind = HZ_LATTICE_D, .q = 4, .levels = 2,
					  .policy = HZ_LATTICE_BANK};
	const hz_lattice_opts many_banks = {.kind = HZ_LATTICE_D, .q = 4, .levels = 2,
					    .policy = HZ_LATTICE_BANK, .banks = 17};
	const hz_lattice_opts policy = {.policy = 5}, kind = {.kind = 6}, flag = {.flags = 128};
	const hz_lattice_opts reserved = {.reserved = {0, 1}}, dim = {.dim = 3};
	const hz_lattice_opts group = {.group = 32}, banks = {.banks = 4}, alpha = {.alpha = 1};
	const hz_lattice_opts beside = {.preset = HZ_LATTICE_PRESET_E8_4_50, .q = 4};
	const hz_lattice_opts no_group = {.policy = HZ_LATTICE_GROUP};
	const hz_lattice_opts odd_group = {.kind = HZ_LATTICE_D, .q = 4, .levels = 2,
					   .policy = HZ_LATTICE_BANK, .banks = 2, .group = 10};
	const hz_lattice_opts ungrouped = {.kind = HZ_LATTICE_D, .q = 4, .levels = 2, .group = 8};
	const hz_lattice_opts wide = {.kind = HZ_LATTICE_D, .q = 4, .levels = 2,
				      .flags = HZ_LATTICE_WIDE};
	const hz_lattice_opts radix = {.kind = HZ_LATTICE_D, .q = 1, .levels = 2};
	const hz_tensor zero = hz_tensor_1d(zeros, HZ_F32, HZ_CPU, 1024);
	const hz_tensor infinite = hz_tensor_1d(infinities, HZ_F32, HZ_CPU, 1024);
	const hz_tensor small = hz_tensor_1d(few, HZ_F32, HZ_CPU, 8);
	const hz_tensor bytes = hz_tensor_1d(zeros, HZ_U8, HZ_CPU, 1024);
	const hz_tensor far = hz_tensor_1d(zeros, HZ_F32, HZ_CUDA, 1024);
	const struct {
		const hz_lattice_opts *want;
		double rate, sigma;
		const hz_tensor *x;
		int status;
		const char *message;
	} cases[] = {
		{NULL, 0, 1, NULL, HZ_EINVAL, "lattice_design: rate is 0, which needs want->preset"},
		{&basis, 0, 1, NULL, HZ_ENOTSUP, "want->kind: the search is over named lattices"},
		{&transform, 0, 1, NULL, HZ_ENOTSUP, "want->transform: the search is over"},
		{&d4, -1, 1, NULL, HZ_EINVAL, "rate is -1, must be 0 or positive"},
		{&d4, NAN, 1, NULL, HZ_EINVAL, "rate is"},
		{&d4, INFINITY, 1, NULL, HZ_EINVAL, "rate is inf"},
		{&d4, 0, NAN, NULL, HZ_EINVAL, "sigma is"},
		{&d4, 0, INFINITY, NULL, HZ_EINVAL, "sigma is inf"},
		{&d4, 0, 1e-60, NULL, HZ_EINVAL, "sigma is 1e-60, must be positive and a normal"},
		{&any, 4.5, 1e39, NULL, HZ_EINVAL, "sigma is 1e+39, must be positive and a normal"},
		{&no_banks, 0, 1, NULL, HZ_EINVAL, "want->banks is 0, must be 1 to 16"},
		{&many_banks, 0, 1, NULL, HZ_EINVAL, "want->banks is 17, must be 1 to 16"},
		{&d4, 0, 0, &zero, HZ_EINVAL, "x is 0, NaN or Inf everywhere"},
		{&any, 4.5, 0, &zero, HZ_EINVAL, "x is 0, NaN or Inf everywhere"},
		{&any, 4.5, 0, &infinite, HZ_EINVAL, "x is 0, NaN or Inf everywhere"},
		{&any, 2, 1, NULL, HZ_ENOTSUP, "rate is 2 bits a value, which no preset reaches"},
		{&ninth, 0, 1, NULL, HZ_EINVAL, "want->preset is 9, must be 0 to 8"},
		{&cube, 4, 1, NULL, HZ_ENOTSUP, "want->shaping is 1: such codes are not searched"},
		{&policy, 4, 1, NULL, HZ_EINVAL, "lattice_design: want->policy is 5, must be 0 to 4"},
		{&kind, 4, 1, NULL, HZ_EINVAL, "want->kind is 6, must be 0 to 4"},
		{&reserved, 4, 1, NULL, HZ_EINVAL, "reserved"},
		{&dim, 4, 1, NULL, HZ_EINVAL, "want->dim is 3, but want->kind is 0"},
		{&flag, 4.5, 1, NULL, HZ_EINVAL, "want has flags, but neither a policy nor kind"},
		{&group, 4.5, 1, NULL, HZ_EINVAL, "want has group or banks, but neither a policy nor"},
		{&banks, 4.5, 1, NULL, HZ_EINVAL, "set want->policy or want->kind for a search"},
		{&alpha, 4.5, 1, NULL, HZ_EINVAL, "want has alpha, beta or bank, but neither"},
		{&beside, 0, 1, NULL, HZ_EINVAL, "want->preset is 2, beside which kind, q or levels"},
		{&no_group, 4, 1, NULL, HZ_EINVAL, "want->group is 0, must be 8 to 128"},
		{&odd_group, 0, 1, NULL, HZ_EINVAL, "want->group is 10, must be a multiple of 4"},
		{&ungrouped, 0, 1, NULL, HZ_EINVAL, "want->group is 8, must be 0 unless"},
		{&wide, 0, 1, NULL, HZ_EINVAL, "lattice_design: HZ_LATTICE_WIDE is set, but want->"},
		{&radix, 0, 1, NULL, HZ_EINVAL, "lattice_design: want->q is 1, must be 2 to"},
		{&d4, 0, 0, &small, HZ_ESHAPE, "x has 8 values, must have"},
		{&d4, 0, 0, &bytes, HZ_EDTYPE, "x"},
		{&d4, 0, 0, &far, HZ_EDEVICE, "x is on"},
	};
	hz_lattice_opts found, before;
	double bank[16];

	for (int i = 0; i < 1024; i++)
		infinities[i] = INFINITY;
	memset(&found, 0x5a, sizeof(found));
	before = found;
	for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
		is_int(hz_lattice_design(ctx, cases[i].want, cases[i].rate, cases[i].sigma,
					 cases[i].x, &found, bank, NULL),
		       cases[i].status, "refused: %s", cases[i].message);
		has_str(hz_errmsg(ctx), cases[i].message, "its message");
	}
	is_int(hz_lattice_design(ctx, &d4, 0, 1, NULL, NULL, bank, NULL), HZ_EINVAL, "no found");
	has_str(hz_errmsg(ctx), "found is NULL", "its message");
	ok(memcmp(&found, &before, sizeof(found)) == 0, "nothing was found");
}

int main(void)
{
	dev_open_all();
	test_design();
	test_presets();
	test_report();
	test_sizes();
	test_candidates();
	test_refusals();
	dev_close_all();
	return done_testing();
}
