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

/*
 * The same with wgmma (recurrent_wgmma.cu): sequences, of both groups; bytes of tiles of U and of
 * states of a group; of a group, its slot of U and its states
 */
#define HZI_QUAT_WGMMA_COLUMNS 32
#define HZI_QUAT_WGMMA_THREADS (HZI_QUAT_PERSISTENT_THREADS + 256)
#define HZI_QUAT_WGMMA_U_TILE (64 * 128)
#define HZI_QUAT_WGMMA_H_TILE (HZI_QUAT_WGMMA_COLUMNS / 2 * 128)
#define HZI_QUAT_WGMMA_STAGES 8		/* of states */
#define HZI_QUAT_WGMMA_HELD 10		/* most tiles of U in registers */
#define HZI_QUAT_WGMMA_GROUP \
	(HZI_QUAT_WGMMA_U_TILE + HZI_QUAT_WGMMA_STAGES * HZI_QUAT_WGMMA_H_TILE)
/* Bytes of shared memory: beginning at a multiple of 1024 */
#define HZI_QUAT_WGMMA_BYTES(units) \
	((units) * HZI_QUAT_WGMMA_U_TILE + 2 * HZI_QUAT_WGMMA_GROUP + 1024 + 384)

/*
 * All steps. States: [direction][neuron][sequence] quaternions, slices padded; with wgmma
 * [direction][slice][16 neurons][group] tiles.
 */
struct hzi_quat_persistent {
	const void *u;			/* rows of contiguous quaternions */
	int64_t u_direction, u_row;	/* strides in numbers */
	void *state[2];			/* of even and odd steps */
	/* [direction][slice][block]: steps; with wgmma see stored(). 0 at first */
	uint32_t *done;
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
