/*
 * amx.c - peak rate of AMX tile multiplications, for `hurwitz bench`
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#include <config.h>

#include "cpu/core/tiles.h"
#include "cpu/peak/kern.h"

enum { TILE = 1024 };		/* bytes */

/* macs multiply-adds in tile registers */
static void dot_peak(int64_t macs)
{
	uint8_t codes[4][TILE] __attribute__((aligned(64)));
	uint32_t random = 1;

	/* The clock frequency depends on the data. */
	for (int i = 0; i < 4 * TILE; i++) {
		random = random * 1664525 + 1013904223;
		codes[i / TILE][i % TILE] = (uint8_t)(random >> 24);
	}
	__asm__ volatile("ldtilecfg %0" : : "m"(config));
	BARRIER();
	_tile_loadd(4, codes[0], 64);
	_tile_loadd(5, codes[1], 64);
	_tile_loadd(6, codes[2], 64);
	_tile_loadd(7, codes[3], 64);
	for (int64_t i = 0; i < macs; i += 4 * 16 * 16 * 64) {
		_tile_dpbuud(0, 4, 6);
		_tile_dpbuud(1, 4, 7);
		_tile_dpbuud(2, 5, 6);
		_tile_dpbuud(3, 5, 7);
	}
	_tile_release();
}

void hzi_peak_kern_amx(void *table)
{
	((struct hzi_peak_kern *)table)->dot = dot_peak;
}
