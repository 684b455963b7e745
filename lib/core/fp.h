/*
 * fp.h - floating-point control of the calling thread
 *
 * SPDX-License-Identifier: BSD-2-Clause
 *
 * Results are those of round to nearest, whatever the caller's rounding mode. Whether denormals are
 * flushed and which exceptions trap stays as the caller has it.
 */
#ifndef HZI_FP_H
#define HZI_FP_H

#include <fenv.h>
#include <stdbool.h>

/* The control bits of MXCSR or FPCR; 0 where neither is known */
typedef unsigned long hzi_fp_modes;

#if defined(__SSE__)
#define HZI_FP_CONTROL 0xffc0ul		/* the others are sticky flags, which are left alone */
#define HZI_FP_ROUNDING 0x6000ul
#elif defined(__aarch64__)
#define HZI_FP_CONTROL (~0ul)
#define HZI_FP_ROUNDING 0xc00000ul
#else
#define HZI_FP_CONTROL 0ul
#define HZI_FP_ROUNDING 0ul
#endif

static inline hzi_fp_modes hzi_fp_to_nearest(hzi_fp_modes modes)
{
	return modes & ~HZI_FP_ROUNDING;
}

static inline hzi_fp_modes hzi_fp_get(void)
{
#if defined(__SSE__)
	unsigned modes = 0;	/* MemorySanitizer does not see that assembly stores */

	__asm__ volatile("stmxcsr %0" : "=m"(modes));
	return modes;
#elif defined(__aarch64__)
	hzi_fp_modes modes;

	__asm__ volatile("mrs %0, fpcr" : "=r"(modes));
	return modes;
#else
	return 0;
#endif
}

/*
 * Sets the control bits and returns those before. Neither loads nor stores move across it; writing
 * the register takes time, reading does not.
 */
static inline hzi_fp_modes hzi_fp_set(hzi_fp_modes modes)
{
	const hzi_fp_modes old = hzi_fp_get();

	if ((old ^ modes) & HZI_FP_CONTROL) {
#if defined(__SSE__)
		const unsigned next =
			(unsigned)((old & ~HZI_FP_CONTROL) | (modes & HZI_FP_CONTROL));

		__asm__ volatile("ldmxcsr %0" : : "m"(next) : "memory");
#elif defined(__aarch64__)
		__asm__ volatile("msr fpcr, %0" : : "r"(modes) : "memory");
#endif
	}
	return old;
}

static inline void hzi_fp_restore(const hzi_fp_modes *modes)
{
	if (__builtin_expect((*modes & HZI_FP_ROUNDING) != 0, 0))
		hzi_fp_set(*modes);
}

/* Rounds to nearest; returns the modes before. */
static inline hzi_fp_modes hzi_fp_nearest(void)
{
	const hzi_fp_modes modes = hzi_fp_get();

	if (__builtin_expect((modes & HZI_FP_ROUNDING) != 0, 0))
		hzi_fp_set(hzi_fp_to_nearest(modes));
	return modes;
}

/* A declaration: rounds to nearest until the end of the block. */
#define HZI_FP_NEAREST(name) \
	__attribute__((cleanup(hzi_fp_restore), unused)) const hzi_fp_modes name = hzi_fp_nearest()

/*
 * A watch for overflow of intermediate results: between begin and end the exception does not trap.
 * If there was one, end returns true, and flags are as they were at begin, since the caller then
 * computes again. Silence: none of the three exceptions traps or leaves a flag, for code whose
 * intermediate results may be Inf or NaN while its results are not. Other code pays for two reads of
 * MXCSR. hzi_fp_overflowed(): whether there was an overflow since begin.
 */
#if defined(__SSE__)
#define HZI_FP_INVALID 0x1ul
#define HZI_FP_OVERFLOW 0x8ul
#define HZI_FP_MASKS 0x480ul		/* those two do not trap */
#define HZI_FP_ERRORS 0xdul		/* invalid, division by zero, overflow: flags */
#define HZI_FP_ERROR_MASKS (HZI_FP_ERRORS << 7)

struct hzi_fp_watch {
	hzi_fp_modes before, during;
};

static inline void hzi_fp_write(hzi_fp_modes modes)
{
	const unsigned next = (unsigned)modes;

	__asm__ volatile("ldmxcsr %0" : : "m"(next) : "memory");
}

static inline void hzi_fp_watch_begin(struct hzi_fp_watch *w)
{
	w->before = hzi_fp_get();
	w->during = (w->before & ~HZI_FP_OVERFLOW) | HZI_FP_MASKS;
	if (w->during != w->before)
		hzi_fp_write(w->during);
}

static inline bool hzi_fp_watch_end(const struct hzi_fp_watch *w)
{
	const hzi_fp_modes now = hzi_fp_get();
	const bool overflow = now & HZI_FP_OVERFLOW;
	hzi_fp_modes old;

	if (!overflow && w->during == w->before)
		return false;
	old = HZI_FP_OVERFLOW | HZI_FP_MASKS | (overflow ? HZI_FP_INVALID : 0);
	hzi_fp_write((now & ~old) | (w->before & old));
	return overflow;
}

static inline bool hzi_fp_overflowed(void)
{
	return hzi_fp_get() & HZI_FP_OVERFLOW;
}

static inline void hzi_fp_silence_begin(struct hzi_fp_watch *w)
{
	w->before = hzi_fp_get();
	w->during = w->before | HZI_FP_ERROR_MASKS;
	if (w->during != w->before)
		hzi_fp_write(w->during);
}

static inline void hzi_fp_silence_end(const struct hzi_fp_watch *w)
{
	const hzi_fp_modes own = HZI_FP_ERRORS | HZI_FP_ERROR_MASKS, now = hzi_fp_get();

	if ((now ^ w->before) & own)
		hzi_fp_write((now & ~own) | (w->before & own));
}
#else
struct hzi_fp_watch {
	fenv_t before;
};

static inline void hzi_fp_watch_begin(struct hzi_fp_watch *w)
{
	feholdexcept(&w->before);
}

static inline bool hzi_fp_watch_end(const struct hzi_fp_watch *w)
{
	const bool overflow = fetestexcept(FE_OVERFLOW);

	if (overflow)
		fesetenv(&w->before);
	else
		feupdateenv(&w->before);
	return overflow;
}

static inline bool hzi_fp_overflowed(void)
{
#if defined(__aarch64__)
	uint64_t status;

	__asm__ volatile("mrs %0, fpsr" : "=r"(status) : : "memory");
	return status & 4;
#else
	return fetestexcept(FE_OVERFLOW);
#endif
}

static inline void hzi_fp_silence_begin(struct hzi_fp_watch *w)
{
	feholdexcept(&w->before);
}

static inline void hzi_fp_silence_end(const struct hzi_fp_watch *w)
{
	fesetenv(&w->before);
}
#endif

#endif
