/*
 * kern.h - the micro-kernels of quantization and of ranges
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#ifndef HZI_QUANTIZE_KERN_H
#define HZI_QUANTIZE_KERN_H

#include "cpu/core/kern.h"
#include "lib/quantize/format.h"

/*
 * count contiguous floats x (HZ_F32, HZ_F16 or HZ_BF16) and codes q (HZ_U8 or HZ_S8). Element i has
 * scales[i / group] and zeros[i / group], which are of q's dtype. stream: non-temporal stores, for
 * results that exceed the caches.
 */
struct hzi_quantize_codes {
	void *x, *q;
	const float *scales;
	const void *zeros;
	int64_t count, group;
	int32_t x_dtype, q_dtype;
	bool stream;
};

/*
 * Widens the ranges lo[i / group] .. hi[i / group] to hold count contiguous floats x[i]; ignores
 * NaN.
 */
struct hzi_range {
	const void *x;
	float *lo, *hi;
	int64_t count, group;
	int32_t x_dtype;
};

/* hzi_quant_params() for count ranges */
struct hzi_params {
	const float *lo, *hi;
	float *scale;
	uint8_t *zero;			/* codes of q_dtype */
	int64_t count;
	int32_t q_dtype, flags;
};

/*
 * count contiguous floats x as f32, rounded to round_to (0: not). amax[i / group] becomes the
 * largest magnitude of its group, as bits, if it is larger; a NaN's bits are the largest. t: NULL
 * for amax alone, of bfloat16 in groups of a multiple of 16, which divides count.
 */
struct hzi_format_load {
	const void *x;
	float *t;
	uint32_t *amax;
	int64_t count, group;
	int32_t x_dtype, round_to;
	bool fetch;			/* x is in memory, and prefetched by to_bf16() */
};

/* Scales of count groups with these largest magnitudes: see struct hzi_scale */
struct hzi_format_scales {
	const uint32_t *amax;
	uint32_t *bits;
	float *factor;
	int64_t count;
	int32_t q_dtype, rule;
	struct hzi_tensor_factor t;
};

#define HZI_FORMAT_ONE 62	/* shift of i: all elements have factor 0 */
#define HZI_FORMAT_PAD 64	/* elements behind those of an array that a vector may read */

/*
 * Between count floats t and codes q, contiguous and from a whole byte on. Element i has factor[i
 * >> shift] and zero[i >> shift] (NULL: 0); shift is 0, or at least that of 16. encode: the quotient
 * is t * factor, or with divide t / factor; low and high are the bounds of an integer code; random:
 * a number in [0, 1) for each element, or NULL. x: NULL, or what is encoded in place of t: bfloat16
 * numbers, count being a multiple of HZI_FORMAT_STEP, to a float format by a product without random
 * numbers. decode: t = fl(code * factor) * tensor.
 */
#define HZI_FORMAT_STEP 128
struct hzi_format_codes {
	float *t;
	const uint16_t *x;
	void *q;
	const float *factor, *random;
	const int32_t *zero;
	int64_t count;
	int32_t q_dtype, shift, low, high;
	bool divide;
	float tensor;
};

/*
 * How magnitudes of bfloat16, as bits, become codes of e2m1 under a scale of e4m3 and the factor p
 * of a call, without products: the distance from base[scale], or 0, is a cell, from bit 6 on, and
 * a place in it. A cell has a code, the same for all scales, and numbers whose place is beyond
 * limit[row[scale] + cell] have the next one. Scales that are a power of two apart share a row.
 * The base is such that no cell has two limits, for any p.
 */
struct hzi_nv_cells {
	uint32_t base[128];		/* twice, in each half */
	uint8_t row[128], limit[128];
};

/*
 * Groups of contiguous bfloat16 numbers x to codes of a float format and scales of a byte: of 32 by
 * a rule of MX, where x may be rounded to odd, or of 16 by NV_TE or NV_TORCHAO and t; x is f32 then
 * where `f32` is set, else `cells` are those of t, or NULL. stream: non-temporal stores to q, whose
 * address is a multiple of 64; stream_end() orders them. fetch: x is in memory, and prefetched.
 */
struct hzi_format_blocks {
	const void *x;
	void *q;
	uint8_t *scales;
	int64_t groups;
	int32_t q_dtype, rule;
	bool stream, f32, fetch;
	struct hzi_tensor_factor t;
	const struct hzi_nv_cells *cells;
};

/*
 * Rows of 32 floats to contiguous codes of a float format and scales of a byte: of each row by a
 * rule of MX, or of each half of a row by NV_TE or NV_TORCHAO and t. Rows are transposed, `lanes`
 * at a time (hzi_hadamard_kern): element e of lane l is t_rows[e * lanes + l] * scale, and
 * amax[h * lanes + l] has the bits of the largest magnitude of half h before the multiplication.
 * Lane 4 p + r is row r * lanes / 4 + p. Behind the last row there are others up to a multiple of
 * lanes. stream: as above
 */
struct hzi_format_transposed {
	const float *t_rows;
	const uint32_t *amax;
	void *q;
	uint8_t *scales;
	int64_t rows;
	int32_t q_dtype, rule;
	bool stream;
	float scale;
	struct hzi_tensor_factor t;
};

/*
 * Contiguous codes of a float format to contiguous x: x = fl(code * scale) * tensor. The scales are
 * e8m0 of groups of 32 or, where q is e2m1 and `nv` is set, e4m3 of groups of 16; `groups` have a
 * multiple of 32 elements. stream: non-temporal stores to x, whose address is a multiple of 64.
 */
struct hzi_format_values {
	const int8_t *q;
	const uint8_t *scales;
	void *x;
	int64_t groups;
	int32_t q_dtype, x_dtype;
	float tensor;
	bool nv, stream;
};

/*
 * What a part of a row is quantized by; most: its largest magnitude is found and nothing else;
 * stream: see struct hzi_format_blocks
 */
struct hzi_format_work {
	const struct hzi_quantize_kern *kern;
	const struct hzi_format_args *a;
	struct hzi_tensor_factor t;
	const struct hzi_nv_cells *cells;	/* or NULL */
	uint32_t *most;
	bool stream;
};

/* *most = max(*most, amax), by several threads */
static inline void hzi_cpu_format_most(uint32_t *most, uint32_t amax)
{
	uint32_t old = __atomic_load_n(most, __ATOMIC_RELAXED);

	while (amax > old && !__atomic_compare_exchange_n(most, &old, amax, true, __ATOMIC_RELAXED,
							  __ATOMIC_RELAXED))
		;
}

/*
 * Sets the factor of a tensor with that largest magnitude, as bits, and stores it if it is an
 * output; cells: scratch until the end of the call
 */
void hzi_cpu_format_tensor(struct hzi_format_work *w, uint32_t most, struct hzi_nv_cells *cells);

/*
 * A row: its first float and code, and the numbers of its first scale and random number. cached: x
 * is in L1.
 */
struct hzi_format_row {
	char *x, *q;
	int32_t x_dtype;
	bool cached;
	int64_t x_step, p, r;
};

/*
 * Quantizes or dequantizes n elements of a row, from i on. i is a multiple of HZI_FORMAT_BATCH or,
 * where scales are chosen, of the group; n is that, too, or ends the row.
 */
#define HZI_FORMAT_BATCH 1024
void hzi_cpu_format_part(const struct hzi_format_work *w, const struct hzi_format_row *row,
			 int64_t i, int64_t n);

struct hzi_quantize_kern {
	void (*quantize)(const struct hzi_quantize_codes *a);	/* x to q */
	void (*dequantize)(const struct hzi_quantize_codes *a);	/* q to x */
	void (*range)(const struct hzi_range *a);
	void (*params)(const struct hzi_params *a);
	void (*load)(const struct hzi_format_load *a);
	void (*store)(const float *t, void *x, int64_t count, int32_t x_dtype);
	/* a->x as bfloat16: to nearest if it is a->round_to, else to odd */
	void (*to_bf16)(const struct hzi_format_load *a, uint16_t *to);
	/* false: not all; there are NaN or Inf, also in factors, or, of MX, a scale below 2^-111 */
	bool (*mx)(const struct hzi_format_blocks *a);
	bool (*nv)(const struct hzi_format_blocks *a);
	/* or NULL; false: not all, a scale is NaN or a product may be */
	bool (*values)(const struct hzi_format_values *a);
	void (*stream_end)(void);
	void (*scales)(const struct hzi_format_scales *a);
	void (*encode)(const struct hzi_format_codes *a);
	void (*decode)(const struct hzi_format_codes *a);
};

HZI_KERN(quantize)

/* Whether mx() or nv() may support numbers as to_bf16() makes them, or exact ones */
static inline bool hzi_format_in_blocks(const struct hzi_format_work *w, bool exact)
{
	const struct hzi_format_args *a = w->a;
	const bool mx = a->scale_dtype == HZ_E8M0 && a->group == 32;
	const bool nv = (a->rule == HZ_SCALE_NV_TE || a->rule == HZ_SCALE_NV_TORCHAO) &&
			a->group == 16 && (exact || a->round_to == HZ_BF16);

	return w->kern->mx && (mx || nv) && a->q_step == 1 && !a->stochastic &&
	       hzi_format_is_float(a->q_dtype);
}

#endif
