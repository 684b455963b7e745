/*
 * kern.h - the micro-kernels of quantization and of ranges
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#ifndef HZI_QUANTIZE_KERN_H
#define HZI_QUANTIZE_KERN_H

#include "cpu/core/kern.h"

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

struct hzi_quantize_kern {
	void (*quantize)(const struct hzi_quantize_codes *a);	/* x to q */
	void (*dequantize)(const struct hzi_quantize_codes *a);	/* q to x */
	void (*range)(const struct hzi_range *a);
	void (*params)(const struct hzi_params *a);
};

HZI_KERN(quantize)

#endif
