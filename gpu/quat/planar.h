/*
 * planar.h - parameters of the planar kernels of quaternion products
 *
 * SPDX-License-Identifier: BSD-2-Clause
 *
 * They are struct hzi_quat_job; groups are tiles of the last dimension.
 */
#ifndef HZI_GPU_QUAT_PLANAR_H
#define HZI_GPU_QUAT_PLANAR_H

#include "gpu/quat/quat.h"

/* 16-byte pieces of each operand of a tile per lane: what shared memory holds */
#define HZI_QUAT_TILE_MUL 4
#define HZI_QUAT_TILE_MUL_BWD 2

#endif
