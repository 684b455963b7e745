/*
 * kern.h - the micro-kernels of the steps of quaternion layers
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#ifndef HZI_QUAT_LAYER_KERN_H
#define HZI_QUAT_LAYER_KERN_H

#include "cpu/core/kern.h"
#include "lib/quat_layer/quat_layer.h"

/* The numbers of one sequence and direction are cut into pieces of at most that many. */
#define HZI_QUAT_CELL_PIECE 256

static inline int64_t hzi_quat_cell_pieces(const struct hzi_quat_cell_step *a)
{
	return (4 * a->hidden + HZI_QUAT_CELL_PIECE - 1) / HZI_QUAT_CELL_PIECE;
}

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
	/* Pieces of hzi_quat_cell_pieces(); backward: the gradient */
	void (*cell)(const struct hzi_quat_cell_step *a, bool backward, int64_t begin, int64_t end);
	void (*pool)(const struct hzi_quat_pool_step *a, int64_t begin, int64_t end);
	void (*pool_bwd)(const struct hzi_quat_pool_step *a, int64_t begin, int64_t end);
};

HZI_KERN(quat_layer)

#endif
