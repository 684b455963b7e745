/*
 * kern.h - the micro-kernels of quantization and of ranges
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#ifndef HZI_QUANTIZE_KERN_H
#define HZI_QUANTIZE_KERN_H

#include "cpu/core/kern.h"

/*
 * count elements between floats (x, of HZ_F32, HZ_F16 or HZ_BF16) and codes (q, of HZ_U8 or HZ_S8),
 * back to back; element i with scales[i / group] and zeros[i / group], which is of q's dtype.
 * stream: the results are too many to stay in the caches.
 */
struct hzi_qcodes {
	void *x, *q;
	const float *scales;
	const void *zeros;
	int64_t count, group;
	int32_t x_dtype, q_dtype;
	bool stream;
};

/* The range of count floats, back to back, NaN left out: lo[i / group] and hi[i / group] widened */
struct hzi_range {
	const void *x;
	float *lo, *hi;
	int64_t count, group;
	int32_t x_dtype;
};

/* hzi_qparams() for count ranges */
struct hzi_params {
	const float *lo, *hi;
	float *scale;
	uint8_t *zero;			/* the codes of either type */
	int64_t count;
	int32_t q_dtype, symmetric;
};

struct hzi_quantize_kern {
	void (*codes)(const struct hzi_qcodes *a);	/* q = quantize(x) */
	void (*uncode)(const struct hzi_qcodes *a);	/* x = dequantize(q) */
	void (*range)(const struct hzi_range *a);
	void (*params)(const struct hzi_params *a);
};

HZI_KERN(quantize)

#endif
