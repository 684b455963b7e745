/*
 * lattice_design.c - the choice of a lattice quantizer: what it finds, and what it refuses
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#include <config.h>

#include "dev.h"

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
	status = hz_lattice_design(ctx, &want, 0, 1, NULL, &found, bank, &report);
	ok(status == HZ_OK &&
	   fabs(report.gap_db - 2.85) < 0.12 && fabs(found.beta - 0.19) < 0.02 &&
	   (found.flags & HZ_LATTICE_CENTER) && report.overload == 0 &&
	   fabs(report.rate - 4 - report.entropy_t / 4) < 1e-9,
	   "D4 q=4 M=2 with T: %.2f dB above D(R), beta %.3f", report.gap_db, found.beta);
	status = hz_lattice_design(ctx, &want, 0, 0, &t, &scaled, bank, &wide);
	ok(status == HZ_OK &&
	   fabs(wide.gap_db - report.gap_db) < 0.15 && fabs(scaled.beta / found.beta - 10) < 2,
	   "the same of data ten times as wide");
	want = (hz_lattice_opts){.policy = HZ_LATTICE_CLIP};
	status = hz_lattice_design(ctx, &want, 4, 1, NULL, &found, bank, &report);
	ok(status == HZ_OK &&
	   found.kind == HZ_LATTICE_E8 && found.q == 16 && found.levels == 1 && report.rate <= 4 &&
	   fabs(10 * log10(1 / report.mse) - 20.83) < 0.15,
	   "the best of all at 4 bits without side information is E8 q=16: %.2f dB",
	   10 * log10(1 / report.mse));
	want = (hz_lattice_opts){.kind = HZ_LATTICE_E8, .dim = 8, .q = 4, .levels = 2,
				 .policy = HZ_LATTICE_BANK, .banks = 4};
	status = hz_lattice_design(ctx, &want, 0, 1, NULL, &found, bank, &report);
	ok(status == HZ_OK && found.bank == bank && found.banks == 4 && report.gap_db < 2.8,
	   "four scales: %.2f dB", report.gap_db);
	ok(hz_lattice_design(ctx, &want, 3, 1, NULL, &found, bank, &report) == HZ_ENOTSUP &&
		   strstr(hz_errmsg(ctx), "nothing has a rate of at most 3 bits"),
	   "a rate that nothing has");
	ok(hz_lattice_design(ctx, &want, 0, 1, NULL, &found, NULL, &report) == HZ_EINVAL &&
	   strstr(hz_errmsg(ctx), "bank is NULL"), "no room for a bank");
	want.kind = 0;
	ok(hz_lattice_design(ctx, &want, 0, 1, NULL, &found, bank, &report) == HZ_EINVAL &&
	   strstr(hz_errmsg(ctx), "rate is 0"), "no rate and no lattice");
	want.kind = HZ_LATTICE_E8;
	ok(hz_lattice_design(ctx, &want, 0, -1, NULL, &found, bank, &report) == HZ_EINVAL,
	   "sigma below 0");
	free(x);
}

int main(void)
{
	dev_open_all();
	test_design();
	dev_close_all();
	return done_testing();
}
