/*
 * kern.h - the micro-kernels of Walsh-Hadamard transforms
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#ifndef HZI_HADAMARD_KERN_H
#define HZI_HADAMARD_KERN_H

#include "cpu/core/kern.h"

/*
 * How a block finds out that sums may overflow, before it stores any: by the flag of the processor,
 * or because it loaded values of 2^HZI_RANGE_BITS or more. The latter stops earlier than sums
 * overflow. If it does not stop, neither this pass nor later ones overflow, and later ones need no
 * guard, unless they multiply by post or by a scale above 1. head() has it with fewer than 16
 * lanes, pass() with 16, where it costs head() more time than the flag does.
 */
enum { HZI_GUARD_FLAG = 1, HZI_GUARD_RANGE };
#define HZI_RANGE_BITS 64
#define HZI_RANGE_IN_HEAD(lanes) ((lanes) < 16)

/*
 * Butterflies of strides 1, 2, .. 2^(bits - 1) on rows of count contiguous elements, a multiple of
 * 2^bits. pre: element i of row r is first multiplied by pre[r * pre_ld + i]. last: results are
 * multiplied by scale, then by post; otherwise y is f32 and gets them unscaled. With bits 0 it
 * converts.
 *
 * If ahead is not 0, x is prefetched that many elements ahead (f32: FLOATS_AHEAD, unless rows are
 * finished here); fetch_y: f32 y is prefetched too. Prefetched addresses need not exist.
 *
 * guard: stops before it stores a block whose sums overflow; y may be x. It starts after the first
 * `first` elements, counted over all rows, and returns where it stopped, or rows * count.
 *
 * Members that are neighbours here are not neighbours in struct hzi_hadamard_args: otherwise
 * compilers copy them in pairs, and a load of two values that were just stored one by one waits for
 * both stores (4 ns).
 */
struct hzi_head {
	const void *x;
	int64_t x_ld;
	void *y;
	int64_t y_ld, rows, count;
	int32_t x_dtype, bits, y_dtype;
	bool last, fetch_y;
	uint8_t guard;			/* 0: none */
	float scale;
	const float *pre, *post;
	int64_t pre_ld, post_ld, ahead, first;
};

struct hzi_format_transposed;

/*
 * Transforms of 2^bits contiguous bfloat16 numbers, from 16 on; count, a multiple of 2^bits and of
 * 32, is the sum of their lengths. y and amax: rows of 32 results and their largest magnitudes as
 * struct hzi_format_transposed has them, to a whole vector of rows, not scaled. pre, if not NULL:
 * number i is first multiplied by pre[(first + i) & pre_mask]; pre_mask is 15 or more or, for all
 * bits, -1.
 */
struct hzi_hadamard_transposed {
	const uint16_t *x;
	float *y;
	uint32_t *amax;
	const float *pre;
	int64_t count, first, pre_mask;
	int32_t bits;
};

/*
 * Butterflies between 2^bits rows of width elements, at row strides of 1, 2, .. 2^(bits - 1) times
 * ld. pre: row j is first multiplied by pre[j * pre_ld]. last: results are multiplied by scale,
 * then by post: row j by post[j * post_ld], or with post_by_column element c of row j by post[j *
 * post_ld + c]. There are `groups` groups of rows, x_group, y_group, pre_group and post_group
 * apart. If ahead is not 0, x is prefetched into L2 that many elements ahead; y_ahead: likewise
 * 16-bit y, whose lines are needed when they are stored to. Prefetched addresses need not exist.
 * guard, if x and y have one dtype: stops before it stores a block whose sums overflow. It starts at
 * column first % width of group first / width; returns where it stopped, or groups * width.
 */
struct hzi_pass {
	const void *x;
	void *y;
	int64_t x_ld, y_ld, width;
	int64_t groups, x_group, y_group, pre_group, post_group, ahead, y_ahead;
	int32_t x_dtype, y_dtype, bits;
	bool last, post_by_column;
	uint8_t guard;			/* 0: none */
	float scale;
	const float *pre, *post;
	int64_t pre_ld, post_ld, first;
};

/*
 * Row i of y is the sum over j, in ascending order, of sign(i, j) * row j of x; then scale and
 * post. x is f32 and does not overlap y. sign holds +-1.0 as [rows / 4][m][4], rows padded.
 */
struct hzi_base_mul {
	const float *x;
	void *y;
	const float *sign;
	int64_t x_ld, y_ld, width;
	int32_t y_dtype, m;
	bool last, post_by_column;
	float scale;
	const float *post;
	int64_t post_ld;
};

/*
 * Quantizes count elements in groups of `group`, which divides count; overwrites t. Meanwhile
 * ahead_step bytes per element, from ahead on, are prefetched into L2, since divisions leave the
 * memory idle.
 */
struct hzi_quant {
	float *t;
	void *q, *scale;
	const char *ahead;
	int64_t ahead_step;
	int64_t count, group;
	int32_t q_dtype, scale_dtype, round_to;
};

/* y = q * scale, in groups as above */
struct hzi_dequant {
	const void *q, *scale;
	float *y;
	int64_t count, group;
	int32_t q_dtype, scale_dtype;
};

struct hzi_hadamard_kern {
	int32_t lanes;		/* f32 elements of a vector */
	int32_t head_bits;	/* largest bits of head() */
	int32_t pass_bits;	/* largest bits of pass() */
	uint8_t guard;		/* the faster one on this CPU */
	int64_t (*head)(const struct hzi_head *a);
	/* Both or neither NULL. encode_transposed(): see cpu/quantize/kern.h; false: not all, as of
	 * mx() and nv() there, or of MX a scale beyond 2^-95 .. 2^113 */
	void (*transposed)(const struct hzi_hadamard_transposed *a);
	bool (*encode_transposed)(const struct hzi_format_transposed *a);
	int64_t (*pass)(const struct hzi_pass *a);
	/*
	 * An e such that all |x| < 2^e; of f32 and bf16 the least one. x: rows of n elements, ld
	 * apart
	 */
	int (*exponent)(const void *x, int dtype, int64_t rows, int64_t ld, int64_t n);
	void (*base_mul)(const struct hzi_base_mul *a);
	hzi_transpose transpose;
	void (*quant)(const struct hzi_quant *a);
	void (*dequant)(const struct hzi_dequant *a);
};

HZI_KERN(hadamard)
/* Defined by unit_transposed.c: called by hzi_hadamard_kern_<level>() */
HZI_FILLS(hadamard_transposed)

#endif
