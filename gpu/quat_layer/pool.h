/*
 * pool.h - parameters of the kernels that pool quaternions in two dimensions
 *
 * SPDX-License-Identifier: BSD-2-Clause
 *
 * C and nvcc read it: fixed-width types only, the same layout for both.
 */
#ifndef HZI_GPU_QUAT_POOL_H
#define HZI_GPU_QUAT_POOL_H

#include <assert.h>
#include <stdint.h>

#define HZI_QUAT_POOL_THREADS 256
#define HZI_QUAT_POOL_STRIP 8	/* rows of a thread, 3 x 3 and stride 1 */

/* Strides are of images, two dimensions and channels, in elements; [0]: rows, [1]: columns. */
struct hzi_quat_pool_job {
	void *x, *y;			/* the gradients in the backward pass */
	int32_t *index;			/* NULL: none */
	int64_t x_stride[4], y_stride[4], index_stride[4];
	int32_t images, channels;
	int32_t size[2], count[2], step[2], pad[2];
	int32_t cells[2];		/* of step[0] x step[1] elements of x */
	int32_t strips;			/* of an image */
	int32_t max, accumulate;
	int32_t pad_;
};

static_assert(sizeof(struct hzi_quat_pool_job) == 184, "the same layout for C and CUDA");

#endif
