/*
 * tensor_map.h - the descriptor of a tensor for TMA
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#ifndef HZI_GPU_TENSOR_MAP_H
#define HZI_GPU_TENSOR_MAP_H

#include <stdint.h>

/* Has the layout and alignment of CUtensorMap, which cuTensorMapEncodeTiled() fills. */
struct hzi_tensor_map {
	uint64_t opaque[16];
} __attribute__((aligned(64)));

#endif
