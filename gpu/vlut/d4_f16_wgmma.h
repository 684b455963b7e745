/*
 * d4_f16_wgmma.h - parameters of packed D4 by many vectors of f16 with wgmma
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#ifndef HZI_GPU_VLUT_D4_F16_WGMMA_H
#define HZI_GPU_VLUT_D4_F16_WGMMA_H

#include "gpu/runtime/tensor_map.h"
#include "gpu/vlut/d4_bitfield.h"

#define HZI_BATCH_CHUNK (2 * HZI_FIELDS_CHUNK)	/* of k */
#define HZI_BATCH_SPLIT 8		/* blocks of a cluster, at most */

/*
 * Grid: tiles of rows times the splits of k, which are a cluster; tiles of columns. TMA maps: x has
 * planes of the rows k, 8 + k, 16 + k ..., codes have planes of 16 rows, in lines of 128 bytes.
 */
struct hzi_vlut_batch {
	struct hzi_tensor_map x, codes;
	const float *row_scale;
	void *y;
	int64_t row_scale_step, y_i, y_b;
	int32_t rows, chunks, batch, y_dtype, split;
	int32_t centred;		/* o is not 0 */
	/* -17 o, -16 o of coordinate i, for an eight of rows, at 2 i + eight: f16, twice */
	uint32_t minus[8];
	float scale;
	int32_t y_fours;		/* y of f16: columns by fours are 8 bytes, aligned */
	int32_t pad_[4];
};

HZI_VLUT_ASSERT(sizeof(struct hzi_vlut_batch) == 384, "the same layout for C and CUDA");

/*
 * A kernel's tile: columns; groups of 64 rows that a warpgroup takes in turn; warpgroups along the
 * rows, and along k; stages of a chunk in shared memory; registers of a consumer, 0: no setmaxnreg.
 */
#define HZI_BATCH_16_1 16, 1, 1, 4, 16, 0
#define HZI_BATCH_16_2 16, 2, 1, 4, 12, 0
#define HZI_BATCH_16_3 16, 3, 1, 4, 12, 0
#define HZI_BATCH_32_1 32, 1, 1, 4, 12, 0
#define HZI_BATCH_32_2 32, 2, 1, 4, 12, 0
#define HZI_BATCH_32_3 32, 3, 1, 4, 9, 112
#define HZI_BATCH_64_1 64, 1, 1, 4, 9, 0
#define HZI_BATCH_64_2 64, 2, 1, 3, 7, 152
#define HZI_BATCH_64_3 64, 3, 1, 2, 7, 216
#define HZI_BATCH_128_1 128, 1, 1, 3, 6, 152
#define HZI_BATCH_128_2 128, 1, 2, 1, 5, 216
#define HZI_BATCH_128_3 128, 1, 3, 1, 4, 152
#define HZI_BATCH_256 256, 1, 2, 1, 3, 216

#define HZI_BATCH_ROWS(turns, beside) (64 * (turns) * (beside))
#define HZI_BATCH_THREADS(beside, slices, registers) \
	((beside) * (slices) * 128 + ((registers) ? 128 : 32))
#define HZI_BATCH_SLOT(columns, turns, beside) \
	(HZI_BATCH_CHUNK * (columns) * 2 + 4 * (turns) * (beside) * 2 * HZI_FIELDS_BYTES)
/* Accumulators of a slice: rows of columns plus 4, against bank conflicts */
#define HZI_BATCH_SUMS(columns, turns, beside) \
	(HZI_BATCH_ROWS(turns, beside) * ((columns) + 4) * 4)

#endif
