/*
 * tiles.h - AMX tile registers and their configuration
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#ifndef HZI_TILES_H
#define HZI_TILES_H

#include <immintrin.h>
#include <stdint.h>

#include "cpu/core/inline.h"

/* The compiler does not know what tile instructions read and write. */
#define BARRIER() __asm__ volatile("" : : : "memory")

/* Eight tiles of 16 rows of 64 bytes */
static const struct config {
	uint8_t palette, start_row, none[14];
	uint16_t row_bytes[16];
	uint8_t rows[16];
} config __attribute__((aligned(64))) = {
	.palette = 1,
	.row_bytes = {64, 64, 64, 64, 64, 64, 64, 64},
	.rows = {16, 16, 16, 16, 16, 16, 16, 16},
};

#endif
