/*
 * inline.h - functions that are always inlined, loops that are always unrolled
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#ifndef HZI_INLINE_H
#define HZI_INLINE_H

#define INLINE static inline __attribute__((always_inline))

/*
 * Before a loop that has to be unrolled, so that what it indexes stays in registers. clang warns
 * where inlining left but one turn of it.
 */
#ifdef __clang__
#pragma clang diagnostic ignored "-Wpass-failed"
#define UNROLL _Pragma("clang loop unroll(full)")
#else
#define UNROLL _Pragma("GCC unroll 16")
#endif

#endif
