/*
 * kern.h - tables of micro-kernels, one for each family and ISA level
 *
 * SPDX-License-Identifier: BSD-2-Clause
 *
 * cpu/<family>/kern.h declares struct hzi_<family>_kern and one table of them, with an element for
 * each ISA level of this architecture; a call reads element ctx->level. hz_open() fills the tables
 * of those families that the program links, once: element i starts as a copy of element i - 1, then
 * the kernels of level i overwrite it. A unit, cpu/<family>/unit.c, is compiled once for each
 * level.
 *
 * All kernels: no alignment beyond the element; strides count elements; dtypes are HZ_F32, HZ_F16
 * or HZ_BF16; x == y with equal strides and dtypes is allowed unless said otherwise.
 */
#ifndef HZI_KERN_H
#define HZI_KERN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "hurwitz.h"

/* ISA levels of this architecture, whether or not this build has kernels for them */
enum {
	HZI_LEVEL_C,
#if defined(__x86_64__) || defined(__i386__)
	HZI_LEVEL_AVX2,
	HZI_LEVEL_AVX512,
	HZI_LEVEL_VNNI,
	HZI_LEVEL_AMX,
#elif defined(__aarch64__)
	HZI_LEVEL_NEON,
	HZI_LEVEL_DOTPROD,
#endif
	HZI_LEVELS
};

/*
 * The tables of a family, and for each level the function that overlays its kernels; NULL: no
 * kernels
 */
struct hzi_kern_family {
	void *kern;
	size_t bytes;			/* of one table */
	void (*fill[HZI_LEVELS])(void *kern);
};

/*
 * Whether the processor is one of AMD's: a read of MXCSR waits for the arithmetic before it there,
 * and loads that alternate between two places of a page are prefetched badly.
 */
bool hzi_cpu_is_amd(void);

/* Declared by cpu/<family>/kern.h, defined by cpu/<family>/kern.c and the units */
#define HZI_KERN(family) \
	extern struct hzi_##family##_kern hzi_##family##_kern[HZI_LEVELS]; \
	extern const struct hzi_kern_family hzi_##family##_kern_family; \
	HZI_FILLS(family)
#define HZI_FILLS(family) \
	void hzi_##family##_kern_c(void *kern); \
	void hzi_##family##_kern_avx2(void *kern); \
	void hzi_##family##_kern_avx512(void *kern); \
	void hzi_##family##_kern_vnni(void *kern); \
	void hzi_##family##_kern_amx(void *kern); \
	void hzi_##family##_kern_neon(void *kern);

/*
 * The contents of cpu/<family>/kern.c. The arguments name VNNI and AMX if they have units of the
 * family.
 */
#define HZI_KERN_TABLES(family, ...) \
	struct hzi_##family##_kern hzi_##family##_kern[HZI_LEVELS]; \
	const struct hzi_kern_family hzi_##family##_kern_family = { \
		.kern = hzi_##family##_kern, \
		.bytes = sizeof(*hzi_##family##_kern), \
		.fill = {[HZI_LEVEL_C] = hzi_##family##_kern_c, \
			 HZI_FILL_AVX2(family) HZI_FILL_AVX512(family) HZI_FILL_NEON(family) \
			 __VA_ARGS__}, \
	};

#ifdef HZ_HAVE_AVX2
#define HZI_FILL_AVX2(family) [HZI_LEVEL_AVX2] = hzi_##family##_kern_avx2,
#else
#define HZI_FILL_AVX2(family)
#endif
#ifdef HZ_HAVE_AVX512
#define HZI_FILL_AVX512(family) [HZI_LEVEL_AVX512] = hzi_##family##_kern_avx512,
#else
#define HZI_FILL_AVX512(family)
#endif
#ifdef HZ_HAVE_VNNI
#define HZI_FILL_VNNI(family) [HZI_LEVEL_VNNI] = hzi_##family##_kern_vnni,
#else
#define HZI_FILL_VNNI(family)
#endif
#ifdef HZ_HAVE_AMX
#define HZI_FILL_AMX(family) [HZI_LEVEL_AMX] = hzi_##family##_kern_amx,
#else
#define HZI_FILL_AMX(family)
#endif
#ifdef HZ_HAVE_NEON
#define HZI_FILL_NEON(family) [HZI_LEVEL_NEON] = hzi_##family##_kern_neon,
#else
#define HZI_FILL_NEON(family)
#endif

/* The name of the function by which a unit puts its kernels into a table */
#define HZI_FILL(family) HZI_FILL_OF(family, HZ_LEVEL)
#define HZI_FILL_OF(family, level) HZI_FILL_AT(family, level)
#define HZI_FILL_AT(family, level) hzi_##family##_kern_##level

/*
 * Whether this is a unit of VNNI. Its table begins with AVX-512's kernels, so it leaves out those
 * that would be the same code.
 */
#ifdef HZ_VNNI
#define HZI_IN_VNNI true
#else
#define HZI_IN_VNNI false
#endif

/* ---- Kernels that several families have ------------------------------------------------------ */

/* y[j * y_ld + i] = x[i * x_ld + j], i < rows, j < cols; x and y do not overlap. */
typedef void (*hzi_transpose)(const float *x, int64_t x_ld, float *y, int64_t y_ld, int64_t rows,
			      int64_t cols);

/*
 * Converts rows of count contiguous elements, times scale, to another dtype; x and y do not
 * overlap.
 */
struct hzi_convert {
	const void *x;
	void *y;
	int64_t x_ld, y_ld, rows, count;
	int32_t x_dtype, y_dtype;
	float scale;
};

#endif
