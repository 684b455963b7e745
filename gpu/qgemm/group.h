/*
 * group.h - kernel parameters of linear layers with group-wise quantized weights
 *
 * SPDX-License-Identifier: BSD-2-Clause
 *
 * Read by the C compiler and by nvcc.
 */
#ifndef HZI_GPU_QGEMM_GROUP_H
#define HZI_GPU_QGEMM_GROUP_H

#include "gpu/qgemm/qgemm.h"
#include "lib/qgemm/group.h"

#define HZI_GROUP_THREADS 256
#define HZI_GROUP_WARPS (HZI_GROUP_THREADS / 32)
#define HZI_GROUP_X_ROWS 8	/* of x: columns of mma.sync; records are padded to it */
#define HZI_GROUP_SUMS (HZI_GROUP_COLUMNS * HZI_GROUP_X_ROWS)
#define HZI_GROUP_PART_BYTES (2 * HZI_GROUP_WARPS * HZI_GROUP_SUMS * 4)	/* sums of two rounds */
/* Codes of HZI_GROUP_UNIT of k of a panel; how many such pieces a warp has in shared memory */
#define HZI_GROUP_PIECE_BYTES(kind) \
	((kind) == HZI_GROUP_U4 || (kind) == HZI_GROUP_E2M1 ? 1024 : 2048)
#define HZI_GROUP_STAGES(kind) (4096 / HZI_GROUP_PIECE_BYTES(kind))
#define HZI_GROUP_TILED_ROWS 64
#define HZI_GROUP_ONE_ROW_WARPS 16	/* of a block of group_one_row, one row of x */
#define HZI_GROUP_TERMS 3		/* of bf16 that an f32 is the sum of */

struct hzi_group_pack {
	struct hzi_group_layout l;
	struct hzi_group_weights w;
	uint8_t *data;
};
static_assert(sizeof(struct hzi_group_pack) == 208, "the same layout for C and CUDA");

/* Of rows 2 i and 2 i + 1 of x and a unit of k: the scale, and the sum of the codes */
struct hzi_group_record {
	float scale[2];
	int32_t sum[2];
};
static_assert(sizeof(struct hzi_group_record) == 16, "the same layout for C and CUDA");

/*
 * The copy of x is codes with records [rows / 8][units][4], or 16-bit floats, of f32 three terms,
 * `plane` bytes apart. Its rows have k_padded elements. The skinny kernel reads floats without a
 * copy. Pieces are of HZI_GROUP_UNIT of k: pieces c `chunk` to (c + 1) `chunk` - 1 are a warp's,
 * and those of all warps a round.
 */
struct hzi_group_gemm {
	struct hzi_group_layout l;
	const uint8_t *packed;
	const void *x;
	uint8_t *copy;
	const float *x_given, *bias;	/* x_given: scales of codes x */
	struct hzi_group_record *records;
	void *y;
	int64_t rows, x_k, y_n, plane, k_padded;
	int64_t shape[HZ_MAXDIM], x_stride[HZ_MAXDIM], y_stride[HZ_MAXDIM];
	int32_t ndim, x_dtype, y_dtype, integer, by_32, terms;
	int32_t unit, unit_shift;	/* of k; its log2 */
	int32_t group_shift;		/* log2 of the group, or more than k has */
	int32_t pieces, chunk, rounds;
	int32_t piece_groups, piece_bytes;	/* groups of a piece; the piece in shared memory */
	int32_t all_staged;		/* x of all rounds fits shared memory */
	int32_t stage_bytes, pitch;	/* x of a chunk in shared memory; a row of it */
	int32_t vectorized;		/* rows of x are 16-byte aligned floats of 16 bits */
	float low, high;
};
static_assert(sizeof(struct hzi_group_gemm) == 416, "the same layout for C and CUDA");

/*
 * wgmma: consumer threads of a block, with those of the producer; their panels of W; stages of x;
 * columns of a row of sums. With 128 rows the producer is a warpgroup, which gives up registers.
 */
#define HZI_GROUP_WGMMA_CONSUMERS 256
#define HZI_GROUP_WGMMA_THREADS(rows) (HZI_GROUP_WGMMA_CONSUMERS + ((rows) == 128 ? 128 : 32))
#define HZI_GROUP_WGMMA_PANELS (HZI_GROUP_WGMMA_CONSUMERS / 32)
#define HZI_GROUP_WGMMA_STAGES(rows) ((rows) == 128 ? 4 : (rows) == 64 ? 6 : 8)
#define HZI_GROUP_WGMMA_PITCH (HZI_GROUP_WGMMA_PANELS * HZI_GROUP_COLUMNS + 4)
#define HZI_GROUP_WGMMA_BYTES(rows) \
	(1024 + HZI_GROUP_WGMMA_STAGES(rows) * ((rows) * 2 * HZI_GROUP_UNIT + 16))

struct hzi_group_wgmma {
	struct hzi_tensor_map x;
	struct hzi_group_gemm g;
	int32_t split;			/* of k, blocks of a cluster */
	int32_t y_vectorized;		/* y is of 16 bits, four of its columns 8 aligned bytes */
	int32_t pad_[6];
};
static_assert(sizeof(struct hzi_group_wgmma) == 576, "the same layout for C and CUDA");

/*
 * Bytes of shared memory for the y of a warpgroup, 64 columns and `rows` rows, before it is stored:
 * 16-bit values of all rows, or f32 values of HZI_GROUP_RESULTS_ROWS() rows at a time. The pitch of
 * f32 rows is in words, four more than columns, so that rows begin in different banks.
 */
#define HZI_GROUP_RESULTS_PITCH 68
#define HZI_GROUP_RESULTS_ROWS(rows) ((rows) > 64 ? (rows) / 2 : (rows))
#define HZI_GROUP_RESULTS_BYTES(rows) \
	((HZI_GROUP_RESULTS_ROWS(rows) * HZI_GROUP_RESULTS_PITCH * 4 + 1023) / 1024 * 1024)

/*
 * wgmma of many rows of codes: rows and panels of a block's tile; stages of x, W, scales and zero
 * points, whose number is that of one or two chunks
 */
#define HZI_GROUP_CODES_THREADS 384
#define HZI_GROUP_CODES_ROWS 112
#define HZI_GROUP_CODES_PANELS 8
#define HZI_GROUP_CODES_STAGE(kind, unit) \
	(HZI_GROUP_CODES_ROWS * HZI_GROUP_UNIT + \
	 HZI_GROUP_CODES_PANELS * HZI_GROUP_PIECE_BYTES(kind) + \
	 ((unit) == 128 ? 1024 : (unit) == 64 ? 2048 : 3072))
#define HZI_GROUP_CODES_STAGES(kind, unit) ((kind) == HZI_GROUP_U4 && (unit) > 32 ? 8 : 4)
#define HZI_GROUP_CODES_BYTES(kind, unit) \
	(2048 + HZI_GROUP_CODES_STAGES(kind, unit) * HZI_GROUP_CODES_STAGE(kind, unit) + \
	 2 * HZI_GROUP_RESULTS_BYTES(HZI_GROUP_CODES_ROWS))

struct hzi_group_codes {
	struct hzi_tensor_map x, w, scales, zeros;
	struct hzi_group_gemm g;
	int32_t units;			/* of k */
	int32_t tiles_m, tiles;		/* of a cluster: along the rows of x, and all */
	int32_t y_vectorized;		/* y is of 16 bits, eight of its columns 16 aligned bytes */
	int32_t pad_[4];
};
static_assert(sizeof(struct hzi_group_codes) == 960, "the same layout for C and CUDA");

/*
 * wgmma of many rows of bf16: rows and panels of a block's tile; stages of 64 of k of x and W, with
 * the scales and zero points of the group; rows that a block of group_floats_sum adds; the most
 * parts of a tile, and bytes of the sums of one
 */
#define HZI_GROUP_FLOATS_THREADS 384
#define HZI_GROUP_FLOATS_ROWS 256
#define HZI_GROUP_FLOATS_PANELS 8
#define HZI_GROUP_FLOATS_STAGES 5
#define HZI_GROUP_FLOATS_STAGE (37 * 1024)
#define HZI_GROUP_FLOATS_BYTES \
	(2048 + HZI_GROUP_FLOATS_STAGES * HZI_GROUP_FLOATS_STAGE + \
	 2 * HZI_GROUP_RESULTS_BYTES(128))
#define HZI_GROUP_FLOATS_SUM_ROWS 16
#define HZI_GROUP_FLOATS_PARTS 8
#define HZI_GROUP_FLOATS_PART_BYTES (2 * 128 * HZI_GROUP_FLOATS_ROWS * 4)

struct hzi_group_floats {
	struct hzi_tensor_map x, w, scales, zeros;
	struct hzi_group_gemm g;
	float *parts_at;		/* sums of split tiles */
	int32_t tiles_m, tiles;		/* of a cluster: along the rows of x, and all */
	int32_t whole;			/* tiles that are not split */
	int32_t parts;			/* of k of the others */
	int32_t y_vectorized;		/* y is of 16 bits, eight of its columns 16 aligned bytes */
	int32_t pad_[1];
};
static_assert(sizeof(struct hzi_group_floats) == 960, "the same layout for C and CUDA");

#endif
