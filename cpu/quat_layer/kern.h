/*
 * kern.h - the micro-kernels of the steps of quaternion layers
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#ifndef HZI_QUAT_LAYER_KERN_H
#define HZI_QUAT_LAYER_KERN_H

#include "cpu/core/kern.h"
#include "lib/quat_layer/quat_layer.h"

struct hzi_quat_layer_kern {
	/*
	 * Steps of lib/quat_layer/quat_layer.h, of f32, f16 or bf16: blocks of
	 * cpu/quat_layer/gather.h, chunks, or pixels begin to end - 1. Affine and drop take one
	 * dtype in all arrays, whose channels are contiguous: rows begin to end - 1; count
	 * quaternions, the first of which is number from.
	 */
	void (*map)(const struct hzi_quat_map_step *a, int64_t begin, int64_t end);
	void (*affine)(const struct hzi_quat_map_step *a, int64_t begin, int64_t end);
	void (*sums)(const struct hzi_quat_sum_step *a, int64_t begin, int64_t end);
	void (*drop)(const struct hzi_quat_map_step *a, const void *x, void *y, int64_t count,
		     uint64_t from);
	void (*pool)(const struct hzi_quat_pool_step *a, int64_t begin, int64_t end);
	void (*pool_bwd)(const struct hzi_quat_pool_step *a, int64_t begin, int64_t end);
};

HZI_KERN(quat_layer)

#endif
