/*
 * label.h - packed E8 codes by label, q = 16: the layout, parameters of packing and of products
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#ifndef HZI_GPU_VLUT_LABEL_H
#define HZI_GPU_VLUT_LABEL_H

#include "gpu/vlut/vlut.h"
#include "lib/lattice/label.h"

#define HZI_VLUT_LABEL_ROWS 16		/* rows of a tile */
#define HZI_VLUT_LABEL_CHUNK 128	/* values of k: 16 blocks */
#define HZI_VLUT_LABEL_COLUMNS 8	/* columns per launch, at most */
#define HZI_VLUT_LABEL_WARPS 8		/* of a group, which multiplies a tile */
#define HZI_VLUT_LABEL_GROUPS 2		/* of a block */

/* Bits of T of a packed block */
#define HZI_VLUT_LABEL_T_BITS(shaping, scales) \
	((shaping) == HZI_SHAPING_D8STAR || ((shaping) == HZI_SHAPING_E8 && (scales) <= 4) ? 2 : 4)

/* Bytes of a chunk of a tile: labels, then T of `bits` bits a block */
#define HZI_VLUT_LABEL_BYTES(bits) (1024 + 32 * (bits))

/*
 * Layout: [tile of 16 rows][chunk of k] of HZI_VLUT_LABEL_BYTES(t_bits). Lane 4 g + t has the
 * blocks b = 0 .. 3, which are 4 t + b of the chunk, of rows g and g + 8: 16 bytes at 16 lane of
 * the first 512 bytes and of the second; word j of these is coordinates 2 j and 2 j + 1 of the four
 * blocks. Its halves are blocks 0, 1 and 2, 3; bits 2 to 5 of a half are field 2 j of the first
 * block, 6 to 9 field 2 j + 1, 10 to 13 field 2 j of the second block, and 14, 15, 0, 1 field
 * 2 j + 1. Behind these T, 2 t_bits bytes per lane: with 4 bits field b for block b of row g and
 * field 4 + b for row g + 8; with 2 bits bits 4 b and 4 b + 1 for row g, the next two for row
 * g + 8.
 * With D8STAR the bit above is the free one of field 0.
 */
struct hzi_vlut_label_pack {
	const uint32_t *codes;
	const uint8_t *t;		/* at row * t_row + block * t_step */
	uint8_t *packed;
	int64_t rows, blocks, row, block, t_row, t_step;
	int64_t tiles, chunks;
	int32_t t_bits, scales;
	int32_t free_bit, pad_;		/* free_bit: D8STAR */
};

/* Decodes to f16 values r v scale, rows `pitch` elements apart; 0 from `blocks` blocks on */
struct hzi_vlut_label_values {
	const uint8_t *packed;
	uint16_t *dst;
	int64_t rows, blocks, chunks, pitch;
	int32_t t_bits, shaping;
	uint32_t r[4];			/* r of T, as struct hzi_vlut_label_skinny has it */
	float scale;
	int32_t pad_;
};

/*
 * y = W x for a few columns. Grid: row tiles, or SMs if these are fewer. `parts` columns of the
 * kernel stand for one of x: two for f32.
 */
struct hzi_vlut_label_skinny {
	const uint8_t *packed;
	const float *row_scale;
	const void *x;
	void *y;
	int64_t row_scale_step, x_k, x_b, y_i, y_b;
	int32_t rows, k, chunks, tiles, batch, parts, x_dtype, y_dtype;
	uint32_t scales[4];		/* r of T = 0 .. 15 as bytes; beyond the last scale its r */
	float scale;			/* value of r v = 1 */
	int32_t x_vectorized;		/* contiguous aligned columns, k % 8 = 0 */
};

static_assert(sizeof(struct hzi_vlut_label_skinny) == 128, "the same layout for C and CUDA");

#endif
