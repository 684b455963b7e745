/*
 * convert.h - parameters of the conversions of quaternions
 *
 * SPDX-License-Identifier: BSD-2-Clause
 *
 * C and nvcc read it: fixed-width types only, the same layout for both.
 */
#ifndef HZI_GPU_QUAT_CONVERT_H
#define HZI_GPU_QUAT_CONVERT_H

#include "gpu/quat/quat.h"
#include "lib/quat/convert_math.h"

/*
 * struct hzi_quat_convert_args for kernels, at[] of quaternions with the components of
 * hzi_quat_operand, and comp[] of all others. staged: vectors or matrices that follow each other
 * without gaps, which a block copies through shared memory.
 */
struct hzi_quat_convert_job {
	struct hzi_quat_operand at[HZI_QUAT_CONVERT_INPUTS + 1];
	int64_t comp[HZI_QUAT_CONVERT_INPUTS + 1][HZI_QUAT_CONVERT_PARTS];
	int64_t shape[HZI_QUAT_DIMS], count;
	int32_t parts[HZI_QUAT_CONVERT_INPUTS + 1], staged[HZI_QUAT_CONVERT_INPUTS + 1];
	int32_t ndim, dtype, accumulate, keep;
};

static_assert(sizeof(struct hzi_quat_convert_job) == 776, "the same layout for C and CUDA");

#endif
