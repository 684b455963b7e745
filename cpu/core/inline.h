/*
 * inline.h - functions that are always inlined, loops that are always unrolled
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#ifndef HZI_INLINE_H
#define HZI_INLINE_H

#define INLINE static inline __attribute__((always_inline))

/*
 * Goes before a loop that must be unrolled to keep the arrays it indexes in registers. clang warns
 * where inlining left a single iteration.
 */
#ifdef __clang__
#pragma clang diagnostic ignored "-Wpass-failed"
#define UNROLL _Pragma("clang loop unroll(full)")
#else
#define UNROLL _Pragma("GCC unroll 16")
#endif

#endif
