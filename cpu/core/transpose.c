/*
 * transpose.c - transposes matrices of 1, 2 and 4-byte elements, by vectors that every machine has
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#include <config.h>

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include "cpu/core/inline.h"
#include "cpu/core/sizes.h"

typedef uint8_t v8 __attribute__((vector_size(16)));
typedef uint16_t v16 __attribute__((vector_size(16)));
typedef uint32_t v32 __attribute__((vector_size(16)));
typedef v8 v8_any __attribute__((aligned(1), may_alias));

#if defined(__clang__) || __GNUC__ >= 12
#define SHUFFLE(type, a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else
#define SHUFFLE(type, a, b, ...) __builtin_shuffle(a, b, (type){__VA_ARGS__})
#endif

/* Interleaves the lower halves of a and b, or the upper ones. */
INLINE v8 zip(v8 a, v8 b, const int size, const bool high)
{
	if (size == 1 && !high)
		return SHUFFLE(v8, a, b, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
	if (size == 1)
		return SHUFFLE(v8, a, b, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15,
			       31);
	if (size == 2 && !high)
		return (v8)SHUFFLE(v16, (v16)a, (v16)b, 0, 8, 1, 9, 2, 10, 3, 11);
	if (size == 2)
		return (v8)SHUFFLE(v16, (v16)a, (v16)b, 4, 12, 5, 13, 6, 14, 7, 15);
	if (!high)
		return (v8)SHUFFLE(v32, (v32)a, (v32)b, 0, 4, 1, 5);
	return (v8)SHUFFLE(v32, (v32)a, (v32)b, 2, 6, 3, 7);
}

/* A square of n x n elements: log2(n) rounds that interleave vector i with vector i + n / 2 */
INLINE void transpose_square(char *to, int64_t to_ld, const char *from, int64_t from_ld,
			     const int size)
{
	const int n = 16 / size;
	v8 v[16], w[16];

	UNROLL
	for (int i = 0; i < n; i++)
		v[i] = *(const v8_any *)(from + i * from_ld);
	UNROLL
	for (int bit = 1; bit < n; bit *= 2) {
		UNROLL
		for (int i = 0; i < n / 2; i++) {
			w[2 * i] = zip(v[i], v[i + n / 2], size, false);
			w[2 * i + 1] = zip(v[i], v[i + n / 2], size, true);
		}
		UNROLL
		for (int i = 0; i < n; i++)
			v[i] = w[i];
	}
	UNROLL
	for (int i = 0; i < n; i++)
		*(v8_any *)(to + i * to_ld) = v[i];
}

/*
 * Eight vectors hold a contiguous matrix whose rows have 2^k elements. Interleaving the lower four
 * with the upper four rotates the bits of each element's index left by one.
 */
INLINE void zip_all(v8 *v, const int rounds, const int size)
{
	v8 w[8];

	UNROLL
	for (int r = 0; r < rounds; r++) {
		UNROLL
		for (int i = 0; i < 4; i++) {
			w[2 * i] = zip(v[i], v[i + 4], size, false);
			w[2 * i + 1] = zip(v[i], v[i + 4], size, true);
		}
		UNROLL
		for (int i = 0; i < 8; i++)
			v[i] = w[i];
	}
}

/*
 * Transposes a contiguous matrix with rows of 2^bits elements, eight vectors at a time; returns the
 * number of rows done.
 */
INLINE int64_t transpose_narrow(char *to, int64_t to_ld, const char *from, int64_t rows,
				const int bits, const int size)
{
	const int n = 1 << bits, each = 128 / size / n, all = size == 1 ? 7 : size == 2 ? 6 : 5;
	int64_t i = 0;

	for (; i + each <= rows; i += each) {
		v8 v[8];

		UNROLL
		for (int e = 0; e < 8; e++)
			v[e] = *(const v8_any *)(from + i * n * size + e * 16);
		zip_all(v, all - bits, size);
		UNROLL
		for (int e = 0; e < 8; e++)
			*(v8_any *)(to + e / (8 / n) * to_ld + i * size + e % (8 / n) * 16) = v[e];
	}
	return i;
}

/*
 * The inverse of transpose_narrow(): 2^bits rows become contiguous rows of 2^bits elements; returns
 * the number of columns done.
 */
INLINE int64_t transpose_short(char *to, const char *from, int64_t from_ld, int64_t cols,
			       const int bits, const int size)
{
	const int n = 1 << bits, each = 128 / size / n;
	int64_t i = 0;

	for (; i + each <= cols; i += each) {
		v8 v[8];

		UNROLL
		for (int e = 0; e < 8; e++)
			v[e] = *(const v8_any *)(from + e / (8 / n) * from_ld + i * size +
						 e % (8 / n) * 16);
		zip_all(v, bits, size);
		UNROLL
		for (int e = 0; e < 8; e++)
			*(v8_any *)(to + i * n * size + e * 16) = v[e];
	}
	return i;
}

/*
 * Leading dimensions are in bytes. Columns are visited 64 bytes at a time, so that each cache line
 * of from is used up. The last squares end with the matrix, and repeat some of what is done.
 */
INLINE void transpose(char *to, int64_t to_ld, const char *from, int64_t from_ld, int64_t rows,
		      int64_t cols, const int size)
{
	const int n = 16 / size;
	int64_t done;

	if (from_ld == cols * size && (cols == 2 || cols == 4 || cols == 8)) {
		done = cols == 2 ? transpose_narrow(to, to_ld, from, rows, 1, size) :
		       cols == 4 ? transpose_narrow(to, to_ld, from, rows, 2, size) :
				   transpose_narrow(to, to_ld, from, rows, 3, size);
		to += done * size;
		from += done * from_ld;
		rows -= done;
	} else if (to_ld == rows * size && (rows == 2 || rows == 4 || rows == 8)) {
		done = rows == 2 ? transpose_short(to, from, from_ld, cols, 1, size) :
		       rows == 4 ? transpose_short(to, from, from_ld, cols, 2, size) :
				   transpose_short(to, from, from_ld, cols, 3, size);
		to += done * to_ld;
		from += done * size;
		cols -= done;
	}
	if (rows < n || cols < n) {
		for (int64_t j = 0; j < cols; j++) {
			for (int64_t i = 0; i < rows; i++)
				memcpy(to + j * to_ld + i * size, from + i * from_ld + j * size,
				       size);
		}
		return;
	}
	for (int64_t j0 = 0; j0 < cols; j0 += 4 * n) {
		const int64_t end = min_i64(j0 + 4 * n, cols);

		for (int64_t i0 = 0; i0 < rows; i0 += n) {
			const int64_t i = min_i64(i0, rows - n);

			for (int64_t j = j0; j < end; j += n) {
				const int64_t at = min_i64(j, cols - n);

				transpose_square(to + at * to_ld + i * size, to_ld,
						 from + i * from_ld + at * size, from_ld, size);
			}
		}
	}
}

void hzi_cpu_transpose(void *to, int64_t to_ld, const void *from, int64_t from_ld, int64_t rows,
		       int64_t cols, int64_t size)
{
	if (size == 4)
		transpose(to, to_ld * 4, from, from_ld * 4, rows, cols, 4);
	else if (size == 2)
		transpose(to, to_ld * 2, from, from_ld * 2, rows, cols, 2);
	else
		transpose(to, to_ld, from, from_ld, rows, cols, 1);
}
