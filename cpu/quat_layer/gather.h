/*
 * gather.h - arrays that steps of quaternion layers read in place, and blocks of all others
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#ifndef HZI_CPU_QUAT_LAYER_GATHER_H
#define HZI_CPU_QUAT_LAYER_GATHER_H

#include <stdbool.h>
#include <stdint.h>

#include "lib/quat_layer/quat_layer.h"

/* Most quaternions of a block: 16 KiB of f32 */
#define HZI_QUAT_BLOCK 1024
/* Columns of a block that has enough rows */
#define HZI_QUAT_BLOCK_COLUMNS 64

/* Whether an array has that dtype, order w, x, y, z and contiguous channels */
static inline bool hzi_quat_is_contiguous(const struct hzi_quat_array *a, int channel, int dtype)
{
	return dtype != HZ_F64 && a->dtype == dtype && a->whole && a->stride[channel] == 4;
}

/* The blocks of a map. Rows are its last dimension but one, columns its last. */
struct hzi_quat_map_blocks {
	int64_t rows, columns;
	int64_t block_rows, block_columns;	/* of one block, at most */
	int64_t down, across, outer;	/* blocks along rows and columns; the other dimensions */
};

static inline struct hzi_quat_map_blocks hzi_quat_map_blocks(const struct hzi_quat_map_step *m)
{
	struct hzi_quat_map_blocks b = {.rows = m->ndim > 1 ? m->shape[m->ndim - 2] : 1,
				       .columns = m->shape[m->ndim - 1], .outer = 1};

	b.block_columns = b.columns < HZI_QUAT_BLOCK_COLUMNS ? b.columns : HZI_QUAT_BLOCK_COLUMNS;
	b.block_rows = HZI_QUAT_BLOCK / b.block_columns < b.rows ?
			       HZI_QUAT_BLOCK / b.block_columns :
			       b.rows;
	if (m->kind != HZI_QUAT_MAP_AFFINE && m->kind != HZI_QUAT_MAP_AFFINE_BWD)
		b.block_columns = HZI_QUAT_BLOCK / b.block_rows < b.columns ?
					HZI_QUAT_BLOCK / b.block_rows : b.columns;
	b.down = (b.rows + b.block_rows - 1) / b.block_rows;
	b.across = (b.columns + b.block_columns - 1) / b.block_columns;
	for (int d = 0; d < m->ndim - 2; d++)
		b.outer *= m->shape[d];
	return b;
}

#endif
