/*
 * decoded_gemm.h - parameters of GEMM with compressed weights that are decoded for wgmma
 *
 * SPDX-License-Identifier: BSD-2-Clause
 *
 * Read by the C compiler and by nvcc.
 */
#ifndef HZI_DEVICE_DECODED_GEMM_H
#define HZI_DEVICE_DECODED_GEMM_H

#include <stdint.h>

#include "gpu/runtime/tensor_map.h"

#define HZI_DECODED_CHUNK 128		/* values of k that are decoded at a time */
#define HZI_DECODED_SPLIT 8		/* splits of k, at most */
#define HZI_DECODED_SECOND 0x1p-11f	/* the unit of the second of two rows of x of a vector */

/*
 * Grid: row tiles times splits of k, which are the blocks of a cluster; column tiles. x: rows of k
 * of 16-bit floats, in TMA tiles of 64 values by the columns of the kernel.
 */
struct hzi_decoded_gemm {
	struct hzi_tensor_map x;
	const uint8_t *packed;		/* [tile of 16 rows][chunk] */
	int64_t tile_bytes;		/* the last chunk of a tile may be shorter than others */
	int32_t tiles, chunks, split;
	int32_t terms;			/* rows of x of a vector: 2 for f32 */
	int32_t rows_first;		/* rows of W are adjacent in y */
	int32_t pad_[7];
};

/*
 * Shape of a kernel: columns; groups of 64 rows, and of chunks of k, each of a warpgroup; stages of
 * half chunks of x, four or more for each group of chunks; tiles of codes that a warp fetches ahead
 */
#define HZI_DECODED_WARPS(row_groups, k_groups) (4 * (row_groups) * (k_groups))
#define HZI_DECODED_THREADS_OF(columns, row_groups, k_groups, stages, ahead) \
	(32 * HZI_DECODED_WARPS(row_groups, k_groups) + 32)
#define HZI_DECODED_THREADS(...) HZI_DECODED_THREADS_OF(__VA_ARGS__)

/*
 * Bytes of shared memory: two buffers of A of 16 KiB for each warpgroup, stages of x, codes of
 * `slot` bytes. Sums take their place at the end: for each group of chunks columns of rows + 4.
 */
#define HZI_DECODED_BUFFER (64 * HZI_DECODED_CHUNK * 2)
#define HZI_DECODED_STAGE(columns) ((columns) * HZI_DECODED_CHUNK)
#define HZI_DECODED_RINGS(slot, columns, row_groups, k_groups, stages, ahead) \
	(2 * (row_groups) * (k_groups) * HZI_DECODED_BUFFER + \
	 (stages) * HZI_DECODED_STAGE(columns) + \
	 HZI_DECODED_WARPS(row_groups, k_groups) * (ahead) * (slot))
#define HZI_DECODED_SUMS(columns, row_groups, k_groups) \
	((k_groups) * (columns) * ((row_groups) * 64 + 4) * 4)
#define HZI_DECODED_BARRIERS(slot, columns, row_groups, k_groups, stages, ahead) \
	(HZI_DECODED_RINGS(slot, columns, row_groups, k_groups, stages, ahead) > \
	 HZI_DECODED_SUMS(columns, row_groups, k_groups) ? \
	 HZI_DECODED_RINGS(slot, columns, row_groups, k_groups, stages, ahead) : \
	 HZI_DECODED_SUMS(columns, row_groups, k_groups))
#define HZI_DECODED_BYTES_OF(slot, columns, row_groups, k_groups, stages, ahead) \
	(1024 + HZI_DECODED_BARRIERS(slot, columns, row_groups, k_groups, stages, ahead) + \
	 16 * (stages) + 8 * HZI_DECODED_WARPS(row_groups, k_groups) * (ahead))
#define HZI_DECODED_BYTES(...) HZI_DECODED_BYTES_OF(__VA_ARGS__)

#endif
