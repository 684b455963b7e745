/*
 * kern.h - the micro-kernels of linear layers with quantized weights
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#ifndef HZI_LINEAR_KERN_H
#define HZI_LINEAR_KERN_H

#include "cpu/core/kern.h"
#include "lib/linear/linear.h"

/* Contiguous elements of a row; bias and `up` may be NULL: y = act(from + bias) (up + up_bias) */
struct hzi_linear_run {
	const void *from, *up;
	const float *bias, *up_bias;
	void *y;
	int64_t count;
	int32_t from_dtype, y_dtype, activation;
};

#define HZI_LINEAR_STRIP 64	/* columns that a strip of the product has */

struct hzi_linear_kern {
	void (*run)(const struct hzi_linear_run *r);
	/* Columns k .. k + count - 1 of the product, count <= HZI_LINEAR_STRIP */
	void (*strip)(const struct hzi_linear_bwd_args *a, int64_t k, int64_t count);
};

HZI_KERN(linear)

#endif
