/*
 * planar.h - what launcher and kernels of tiles of quaternions share
 *
 * SPDX-License-Identifier: BSD-2-Clause
 *
 * The parameters are struct hzi_quat_job, its groups being tiles in the last dimension.
 */
#ifndef HZI_GPU_QUAT_TILES_H
#define HZI_GPU_QUAT_TILES_H

#include "gpu/quat/quat.h"

/* 16-byte pieces of an operand that a lane has of a tile: as shared memory has room for */
#define HZI_QUAT_TILE_MUL 4
#define HZI_QUAT_TILE_MUL_BWD 2

#endif
