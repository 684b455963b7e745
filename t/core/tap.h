/*
 * tap.h - the test harness: TAP output, numeric compares, a seeded generator
 *
 * SPDX-License-Identifier: BSD-2-Clause
 *
 * A test program is one file that includes this, calls ok() and its kin from one thread, and ends
 * with return done_testing();
 *
 *	ok(condition, "what", ...)		one line "ok 1 - what"; what is a printf format
 *	is_int(got, want, "what", ...)		two integers are equal
 *	is_str(got, want, "what", ...)		two strings are equal
 *	has_str(got, part, "what", ...)		part is somewhere in got
 *	is_bits(got, want, n, size, "what")	n elements of size bytes have the same bits
 *	is_near(got, want, n, bound, "what")	||got - want||_2 <= bound ||want||_2
 *	skip(count, "why", ...)			count tests that cannot be run here
 *	skip_all("why", ...)			the whole program; does not return
 *	bail("why", ...)			nothing more can be tested; does not return
 *	diag("text", ...)			a comment line
 *	plan(count)				the number of tests, said first; else it is last
 *
 * same_bits() and within_norm() are the compares alone: they print the first mismatch and return 0
 * or 1, so that many small cases can be one test: good &= same_bits(...).
 *
 * tap_seed() is the seed of this run, printed once: HZ_TEST_SEED, or else a fixed number.
 */
#ifndef TAP_H
#define TAP_H

/* Calls whose status a test does not look at show by their results whether they worked. */
#pragma GCC diagnostic ignored "-Wunused-result"

#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TAP_FORMAT(a, b) __attribute__((format(printf, a, b), unused))

static struct {
	long run, failed, planned, mismatches;
	int seeded;
	uint64_t seed;
} tap;

#define TAP_MISMATCHES 40	/* described at most; further ones are counted */

TAP_FORMAT(1, 2) static void diag(const char *format, ...)
{
	va_list ap;

	printf("# ");
	va_start(ap, format);
	vprintf(format, ap);
	va_end(ap);
	printf("\n");
	fflush(stdout);
}

TAP_FORMAT(2, 0) static int tap_line(int good, const char *format, va_list ap)
{
	printf("%sok %ld - ", good ? "" : "not ", ++tap.run);
	vprintf(format, ap);
	printf("\n");
	tap.failed += !good;
	fflush(stdout);
	return good;
}

TAP_FORMAT(2, 3) static int ok(int good, const char *format, ...)
{
	va_list ap;

	va_start(ap, format);
	tap_line(good, format, ap);
	va_end(ap);
	return good;
}

TAP_FORMAT(3, 4) static int is_int(long long got, long long want, const char *format, ...)
{
	va_list ap;

	va_start(ap, format);
	tap_line(got == want, format, ap);
	va_end(ap);
	if (got != want)
		diag("got %lld, want %lld", got, want);
	return got == want;
}

TAP_FORMAT(3, 4) static int is_str(const char *got, const char *want, const char *format, ...)
{
	int good = got && strcmp(got, want) == 0;
	va_list ap;

	va_start(ap, format);
	tap_line(good, format, ap);
	va_end(ap);
	if (!good)
		diag("got \"%s\", want \"%s\"", got ? got : "(null)", want);
	return good;
}

TAP_FORMAT(3, 4) static int has_str(const char *got, const char *part, const char *format, ...)
{
	int good = got && strstr(got, part);
	va_list ap;

	va_start(ap, format);
	tap_line(good, format, ap);
	va_end(ap);
	if (!good)
		diag("got \"%s\", want something with \"%s\"", got ? got : "(null)", part);
	return good;
}

TAP_FORMAT(2, 3) static void skip(long count, const char *format, ...)
{
	va_list ap;

	while (count-- > 0) {
		printf("ok %ld # SKIP ", ++tap.run);
		va_start(ap, format);
		vprintf(format, ap);
		va_end(ap);
		printf("\n");
	}
	fflush(stdout);
}

__attribute__((noreturn)) TAP_FORMAT(1, 2) static void skip_all(const char *format, ...)
{
	va_list ap;

	printf("1..0 # SKIP ");
	va_start(ap, format);
	vprintf(format, ap);
	va_end(ap);
	printf("\n");
	exit(0);
}

__attribute__((noreturn)) TAP_FORMAT(1, 2) static void bail(const char *format, ...)
{
	va_list ap;

	printf("Bail out! ");
	va_start(ap, format);
	vprintf(format, ap);
	va_end(ap);
	printf("\n");
	exit(255);
}

static inline void plan(long count)
{
	tap.planned = count;
	printf("1..%ld\n", count);
	fflush(stdout);
}

/* Prints the plan; returns main()'s status. */
static inline int done_testing(void)
{
	if (!tap.planned)
		printf("1..%ld\n", tap.run);
	else if (tap.planned != tap.run)
		diag("planned %ld tests, ran %ld", tap.planned, tap.run);
	if (tap.mismatches > TAP_MISMATCHES)
		diag("%ld more mismatches not shown", tap.mismatches - TAP_MISMATCHES);
	if (tap.failed)
		diag("%ld of %ld failed", tap.failed, tap.run);
	if (tap.failed && tap.seeded)
		diag("again with HZ_TEST_SEED=%" PRIu64, tap.seed);
	return tap.failed || (tap.planned && tap.planned != tap.run);
}

/* ---- Numeric compares ------------------------------------------------------------------------ */

/* Returns 1 while mismatches are still described. */
static inline int tap_describe(void)
{
	return tap.mismatches++ < TAP_MISMATCHES;
}

static inline uint64_t tap_load(const void *p, size_t i, size_t size)
{
	union { uint8_t u8; uint16_t u16; uint32_t u32; uint64_t u64; } v = { .u64 = 0 };

	memcpy(&v, (const char *)p + i * size, size);
	return size == 1 ? v.u8 : size == 2 ? v.u16 : size == 4 ? v.u32 : v.u64;
}

/* Compares elements of 1, 2, 4 or 8 bytes; prints those of 4 and 8 as floating point too. */
static inline int same_bits(const void *got, const void *want, size_t n, size_t size)
{
	size_t i, j, different = 0;
	uint64_t g, w;

	if (n == 0 || memcmp(got, want, n * size) == 0)
		return 1;
	for (i = 0; tap_load(got, i, size) == tap_load(want, i, size); i++)
		;
	for (j = i; j < n; j++)
		different += tap_load(got, j, size) != tap_load(want, j, size);
	if (!tap_describe())
		return 0;
	g = tap_load(got, i, size);
	w = tap_load(want, i, size);
	diag("%zu of %zu differ, first [%zu]: got %#" PRIx64 ", want %#" PRIx64, different, n, i, g,
	     w);
	if (size == 4)
		diag("as f32: got %.9g, want %.9g", (double)((const float *)got)[i],
		     (double)((const float *)want)[i]);
	if (size == 8)
		diag("as f64: got %.17g, want %.17g", ((const double *)got)[i],
		     ((const double *)want)[i]);
	return 0;
}

/* The distance of a float from a double, in ulps of the float nearest to the double */
static inline double ulp_distance(float got, double want)
{
	float w = (float)want;
	int e;

	if (isnan(got) || isnan(want))
		return isnan(got) && isnan(want) ? 0 : INFINITY;
	if (isinf(got) || isinf(w))
		return got == w ? 0 : INFINITY;
	frexpf(w, &e);
	if (w == 0 || e < -125)
		e = -125;
	return fabs((double)got - want) / ldexp(1, e - 24);
}

/* ||got - want||_2 / ||want||_2; 0 / 0 is 0, and any NaN or Inf gives NaN or Inf. */
static inline double norm_error(const double *got, const double *want, size_t n)
{
	double e = 0, w = 0;
	size_t i;

	for (i = 0; i < n; i++) {
		e += (got[i] - want[i]) * (got[i] - want[i]);
		w += want[i] * want[i];
	}
	return e == 0 ? 0 : sqrt(e) / sqrt(w);
}

static inline int within_norm(const double *got, const double *want, size_t n, double bound)
{
	double e = norm_error(got, want, n);

	if (e <= bound)
		return 1;
	if (tap_describe())
		diag("normalised error of %zu elements %.3g, allowed %.3g", n, e, bound);
	return 0;
}

#define is_bits(got, want, n, size, ...) ok(same_bits(got, want, n, size), __VA_ARGS__)
#define is_near(got, want, n, bound, ...) ok(within_norm(got, want, n, bound), __VA_ARGS__)

/* ---- Random numbers -------------------------------------------------------------------------- */

/* splitmix64: the state is the seed, so one number reproduces a case. */
static inline uint64_t rnd_u64(uint64_t *state)
{
	uint64_t z = *state += 0x9e3779b97f4a7c15u;

	z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
	z = (z ^ z >> 27) * 0x94d049bb133111ebu;
	return z ^ z >> 31;
}

/* An integer in 0 .. n - 1. */
static inline int64_t rnd_below(uint64_t *state, int64_t n)
{
	return (int64_t)(rnd_u64(state) % (uint64_t)n);
}

/* Uniform in -1 .. 1 */
static inline double rnd_uniform(uint64_t *state)
{
	return (double)(rnd_u64(state) >> 11) * 0x1p-52 - 1;
}

/* Approximately normal: mean 0, variance 1, the sum of twelve uniform numbers */
static inline double rnd_normal(uint64_t *state)
{
	double sum = 0;
	int i;

	for (i = 0; i < 12; i++)
		sum += rnd_uniform(state);
	return sum / 2;
}

static inline uint64_t tap_seed(void)
{
	const char *s = getenv("HZ_TEST_SEED");

	if (!tap.seeded) {
		tap.seeded = 1;
		tap.seed = s && *s ? strtoull(s, NULL, 0) : 20261;
		diag("seed %" PRIu64, tap.seed);
	}
	return tap.seed;
}

/* Returns 1 if HZ_TEST_QUICK is set: fewer and smaller cases, for slow tools. */
static inline int tap_quick(void)
{
	const char *s = getenv("HZ_TEST_QUICK");

	return s && *s && strcmp(s, "0") != 0;
}

/* Returns 1 if HZ_TEST_DEVICE=cuda asks for tests on a GPU. */
static inline int tap_cuda(void)
{
	const char *s = getenv("HZ_TEST_DEVICE");

	return s && strncmp(s, "cuda", 4) == 0;
}

#endif
