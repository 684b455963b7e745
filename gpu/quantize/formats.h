/*
 * formats.h - parameters of the kernels of quantization to any format
 *
 * SPDX-License-Identifier: BSD-2-Clause
 *
 * Read by the C compiler and by nvcc: fixed-width types only, and the same layout for both.
 */
#ifndef HZI_GPU_QUANTIZE_FORMATS_H
#define HZI_GPU_QUANTIZE_FORMATS_H

#include <assert.h>
#include <stdint.h>

#include "hurwitz.h"

#define HZI_FORMATS_THREADS 256
#define HZI_FORMATS_EACH 8	/* successive elements of a lane */

/*
 * The operands of struct hzi_format_args. A row has row_items items of `work` elements, the last
 * one fewer; where scales are chosen an item is a group. 2^log_lanes lanes of a warp share an item.
 * x_vectors, q_vectors: the elements of a lane are aligned in x, their codes in q. most: the bits
 * of the largest magnitude of all, written by the kernels quantize_most.
 */
struct hzi_quantize_formats {
	void *x, *q, *scales;
	const void *zeros;
	const float *tensor_scale;
	float *new_tensor_scale;
	uint32_t *most;
	int64_t n, group, work, row_items, items, x_step, q_step;
	int64_t shape[HZ_MAXDIM], x_stride[HZ_MAXDIM], q_stride[HZ_MAXDIM], p_stride[HZ_MAXDIM],
		r_stride[HZ_MAXDIM];
	uint64_t seed;
	int32_t ndim, q_dtype, scale_dtype, rule, round_to, log_lanes;
	int32_t x_vectors, q_vectors, chosen, stochastic;
	int32_t zero, low, high;
	float scale;
};
static_assert(sizeof(struct hzi_quantize_formats) == 416, "the same layout for C and CUDA");

#endif
