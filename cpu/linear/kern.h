/*
 * kern.h - the micro-kernels of linear layers with quantized weights
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#ifndef HZI_LINEAR_KERN_H
#define HZI_LINEAR_KERN_H

#include "cpu/core/kern.h"
#include "lib/linear/linear.h"

#define HZI_LINEAR_STRIP 64	/* columns that a strip of the product has */

struct hzi_linear_kern {
	/* Columns k .. k + count - 1 of the product, count <= HZI_LINEAR_STRIP */
	void (*strip)(const struct hzi_linear_bwd_args *a, int64_t k, int64_t count);
};

HZI_KERN(linear)

#endif
