/*
 * rounding.c - every call in every rounding mode of the caller gives the bits of round to nearest
 *
 * SPDX-License-Identifier: BSD-2-Clause
 *
 * The context and what the calls need are opened in that mode, too.
 */
#include <config.h>

#include <fenv.h>

#include "lib/core/internal.h"
#include "t/core/calls.h"
#include "t/core/isa.h"
#include "t/core/tap.h"

#ifdef FE_UPWARD

static const struct {
	const char *name;
	int mode;
} modes[] = {
	{"upward", FE_UPWARD}, {"downward", FE_DOWNWARD}, {"toward zero", FE_TOWARDZERO},
};

/* Makes the call in a mode; 0 if it fails or leaves another mode. */
static int run(struct scene *s, const struct call *c, int mode, const unsigned char *image,
	       size_t used, unsigned char *got)
{
	int good;

	scene_write(s, image, used);
	fesetround(mode);
	good = scene_call(s, c) == HZ_OK;
	good &= fegetround() == mode;
	fesetround(FE_TONEAREST);
	scene_read(s, got, used);
	return good;
}

static void level(int isa, int threads)
{
	const hz_options o = {.device = HZ_CPU, .isa = isa, .threads = threads};
	struct scene nearest, other;
	unsigned char *image, *want, *got;

	scene_open(&nearest, &o);
	image = malloc(nearest.arena_bytes);
	want = malloc(nearest.arena_bytes);
	got = malloc(nearest.arena_bytes);
	if (!image || !want || !got)
		bail("no memory");
	for (size_t m = 0; m < sizeof(modes) / sizeof(*modes); m++) {
		int bad = 0;

		fesetround(modes[m].mode);
		scene_open(&other, &o);
		fesetround(FE_TONEAREST);
		other.ctx->grain_bits = 0;
		for (int i = 0; i < calls_count; i++) {
			const size_t used = scene_fill(&nearest, &calls[i], image);

			/* Where an operand lies does not matter, but that it is the same does. */
			scene_fill(&other, &calls[i], got);
			if (!run(&nearest, &calls[i], FE_TONEAREST, image, used, want) ||
			    !run(&other, &calls[i], modes[m].mode, image, used, got) ||
			    memcmp(got, want, used) != 0) {
				diag("%s", calls[i].name);
				bad++;
			}
		}
		is_int(bad, 0, "%s, %d threads, %s: %d calls", hz_isa_name(isa), threads,
		       modes[m].name, calls_count);
		scene_close(&other);
	}
	free(image);
	free(want);
	free(got);
	scene_close(&nearest);
}

/* Functions without a context */
static void numbers(void)
{
	for (size_t m = 0; m < sizeof(modes) / sizeof(*modes); m++) {
		int bad = 0;

		for (int i = 1; i < 1000; i++) {
			const double sigma = 1.0 / (i * 7), want = hz_quat_init_scale(i, 3 * i);
			int32_t a, b, a_shift, b_shift;

			hz_qgemm_multiplier(sigma, &a, &a_shift);
			fesetround(modes[m].mode);
			hz_qgemm_multiplier(sigma, &b, &b_shift);
			bad += hz_quat_init_scale(i, 3 * i) != want || a != b || a_shift != b_shift;
			fesetround(FE_TONEAREST);
		}
		is_int(bad, 0, "%s: hz_qgemm_multiplier, hz_quat_init_scale", modes[m].name);
	}
}

int main(void)
{
	unsetenv("HURWITZ_DEVICE");
	for (int isa = HZ_ISA_AUTO; (isa = isa_above(isa)) != HZ_ISA_AUTO;) {
		level(isa, 1);
		level(isa, 3);
	}
	numbers();
	return done_testing();
}

#else

int main(void)
{
	skip_all("one rounding mode here");
}

#endif
