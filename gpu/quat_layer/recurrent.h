/*
 * recurrent.h - parameters of the kernels that make a whole step of a recurrent layer
 *
 * SPDX-License-Identifier: BSD-2-Clause
 *
 * C and nvcc read it: fixed-width types only, the same layout for both.
 */
#ifndef HZI_GPU_QUAT_RECURRENT_H
#define HZI_GPU_QUAT_RECURRENT_H

#include "gpu/quat_gemm/gemv.h"
#include "gpu/quat_layer/quat_layer.h"

/* C is not stored. Each 32 rows of A are those of 32 / K neurons, gate by gate. */
struct hzi_quat_fused_step {
	struct hzi_quat_gemv product;
	struct hzi_quat_cell_step cell;
};

#define HZI_QUAT_PERSISTENT_THREADS 256
/* Bytes of states in flight to a warp, by groups of 8 sequences */
#define HZI_QUAT_PERSISTENT_RING(groups) ((groups) == 1 ? 8192 : 4096)
/* Bytes of a unit: 32 rows by four columns of U */
#define HZI_QUAT_PERSISTENT_UNIT (HZI_QUAT_CELL_ROWS * 4 * 8)
/*
 * Units of a warp in registers, by groups of 8 sequences. The next ones are read again at each step,
 * those in shared memory follow.
 */
#define HZI_QUAT_PERSISTENT_KEPT(groups) ((groups) == 4 ? 0 : (groups) == 2 ? 8 : 16)

/* The same with wgmma (recurrent_wgmma.cu): sequences, bytes of tiles of U and of states */
#define HZI_QUAT_WGMMA_COLUMNS 32
#define HZI_QUAT_WGMMA_THREADS (HZI_QUAT_PERSISTENT_THREADS + 128)
#define HZI_QUAT_WGMMA_U_TILE (64 * 128)
#define HZI_QUAT_WGMMA_H_TILE (HZI_QUAT_WGMMA_COLUMNS * 128)
#define HZI_QUAT_WGMMA_STAGES 5		/* of states */
#define HZI_QUAT_WGMMA_HELD 11		/* most tiles of U in registers */
/* The sums: numbers of a sequence, against bank conflicts; bytes of both blocks */
#define HZI_QUAT_WGMMA_PITCH (4 * HZI_QUAT_CELL_ROWS + 16)
#define HZI_QUAT_WGMMA_SUMS (2 * HZI_QUAT_WGMMA_COLUMNS * HZI_QUAT_WGMMA_PITCH * 4)
/* Bytes of shared memory: beginning at a multiple of 1024 */
#define HZI_QUAT_WGMMA_BYTES(units) \
	((units) * HZI_QUAT_WGMMA_U_TILE + HZI_QUAT_WGMMA_SUMS + \
	 HZI_QUAT_WGMMA_STAGES * HZI_QUAT_WGMMA_H_TILE + 1024 + 256)

/*
 * All steps. States: [direction][neuron][sequence] quaternions, slices padded; with wgmma
 * [direction][slice][16 neurons] tiles.
 */
struct hzi_quat_persistent {
	const void *u;			/* rows of contiguous quaternions */
	int64_t u_direction, u_row;	/* strides in numbers */
	void *state[2];			/* of even and odd steps */
	uint32_t *done;			/* [direction][slice][block]: steps; 0 at first */
	/* Of a warp; with wgmma tiles in shared memory. Bytes from neuron to neuron */
	int32_t units, pitch;
	int32_t slices;			/* of up to 32 sequences */
	int32_t slice, direction;	/* the first ones of this launch */
	int32_t streamed;		/* units of a warp that each step reads again */
	struct hzi_quat_cell_step cell;	/* its operand without data */
};

static_assert(HZI_QUAT_CELL_ROWS == HZI_GEMV_MMA_ROWS, "rows of a block");
static_assert(sizeof(struct hzi_quat_fused_step) == 1048, "the same layout for C and CUDA");
static_assert(sizeof(struct hzi_quat_persistent) == 576, "the same layout for C and CUDA");

#endif
