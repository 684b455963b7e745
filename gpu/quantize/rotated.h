/*
 * rotated.h - quantization with a transform on the GPU
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#ifndef HZI_GPU_QUANTIZE_ROTATED_H
#define HZI_GPU_QUANTIZE_ROTATED_H

#include "lib/qgemm/qgemm.h"

int hzi_cuda_rotated_codes(struct hz_context *ctx, const struct hzi_codes_args *a);
size_t hzi_cuda_rotated_workspace(const struct hz_context *ctx, const struct hzi_rotated *r);

#endif
