/*
 * d4_bitfield.h - packed D4 with q = 4: the layout, parameters of packing, decoding and products
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#ifndef HZI_GPU_VLUT_D4_BITFIELD_H
#define HZI_GPU_VLUT_D4_BITFIELD_H

#include "gpu/vlut/vlut.h"

#define HZI_FIELDS_THREADS 512
#define HZI_FIELDS_ROWS 16		/* of a tile */
#define HZI_FIELDS_CHUNK 64		/* of k: a tile's are 512 bytes */
#define HZI_FIELDS_BYTES 512
#define HZI_FIELDS_BATCH 8		/* vectors, at most */
/* Chunks of a warp in shared memory or in flight: even */
#define HZI_FIELDS_STAGES 8
#define HZI_FIELDS_STAGES_BYTES (HZI_FIELDS_STAGES * HZI_FIELDS_BYTES * HZI_FIELDS_THREADS / 32)

/*
 * Packed: [tile of rows][chunk of k][lane 4 g + t] of 16 bytes: words i = 0 .. 3 of
 * d4_bitfield.cuh, nibble 2 j + h being lattice block 16 chunk + 4 t + j of row 16 tile + 8 h + g.
 */
struct hzi_fields_pack {
	const uint8_t *codes;
	uint8_t *packed;
	int64_t rows, blocks, row, block, level;
	int64_t tiles, chunks;
	int32_t first, pad_;
	uint32_t leaders[256];		/* four bytes each */
};

/* Packed codes to p - o as s8, rows `line` bytes apart */
struct hzi_fields_bytes {
	const uint8_t *packed;
	uint8_t *to;
	int64_t rows, blocks, tiles, chunks, line;
	uint32_t minus, pad_;		/* o, of bytes */
};

/*
 * Grid: shares of the tiles of rows, times the splits of k, which are a cluster. slots: tiles that
 * a warp has a part of.
 */
struct hzi_vlut_fields {
	const uint8_t *packed;
	const float *row_scale;
	const void *x;
	void *y;
	int64_t row_scale_step, x_k, x_b, y_i, y_b;
	int32_t rows, k, chunks, batch, batch_log2;	/* log2: rounded up */
	int32_t tiles_each, tiles_more;	/* of a share, and how many have one more */
	int32_t x_dtype, y_dtype, split_log2, slots;
	int32_t offset[4], centred;	/* o, and whether it is not 0 */
	int32_t plain;			/* x is f16, aligned: one contiguous vector, or rows of 8 */
	float scale;
};

HZI_VLUT_ASSERT(sizeof(struct hzi_fields_pack) == 1104, "the same layout for C and CUDA");
HZI_VLUT_ASSERT(sizeof(struct hzi_vlut_fields) == 144, "the same layout for C and CUDA");

#endif
