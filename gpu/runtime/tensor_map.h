/*
 * tensor_map.h - what copies of boxes are described by
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#ifndef HZI_GPU_TENSOR_MAP_H
#define HZI_GPU_TENSOR_MAP_H

#include <stdint.h>

/* cuTensorMapEncodeTiled()'s; the driver wants it aligned so. */
struct hzi_tensor_map {
	uint64_t opaque[16];
} __attribute__((aligned(64)));

#endif
