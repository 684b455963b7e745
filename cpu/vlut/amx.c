/*
 * amx.c - packed D4 codes by up to 16 rows of s8 digits with AMX tiles
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#include <config.h>

#include "cpu/core/tiles.h"
#include "cpu/vlut/kern.h"
#include "cpu/vlut/d4_bitfield512.inc"

/*
 * A step of codes becomes four tiles of B, one of each kind; x is A, of as many rows as there are.
 * The tiles of a step are multiplied while those of the next are decoded. 16 rows take 1.5 times as
 * long as three rows in registers, and a few rows as long as 16.
 */
INLINE void bitfield_tiles(const uint8_t *codes, uint8_t *tiles)
{
	UNROLL
	for (int c = 0; c < 4; c++) {
		__m512i w[4], s[4];

		UNROLL
		for (int e = 0; e < 4; e++) {
			w[e] = _mm512_loadu_si512(codes + c * 256 + e * 64);
			_mm_prefetch((const char *)codes + BITFIELD_AHEAD + c * 256 + e * 64,
				     _MM_HINT_T1);
		}
		bitfield512_signs(w, s);
		UNROLL
		for (int e = 0; e < 4; e++) {
			__m512i kind[4];

			bitfield512_operands(w[e], s[e], kind);
			UNROLL
			for (int i = 0; i < 4; i++)
				_mm512_store_si512(tiles + i * 1024 + c * 256 + e * 64, kind[i]);
		}
	}
}

INLINE void bitfield_multiply(const int8_t *x, int64_t x_ld, const uint8_t *tiles)
{
	_tile_loadd(4, x, x_ld);
	_tile_loadd(5, tiles, 64);
	_tile_loadd(6, tiles + 1024, 64);
	_tile_loadd(7, tiles + 2048, 64);
	_tile_dpbsud(0, 4, 5);
	_tile_loadd(5, tiles + 3072, 64);
	_tile_dpbsud(1, 4, 6);
	_tile_dpbsud(2, 4, 7);
	_tile_dpbsud(3, 4, 5);
}

static void bitfield_tiles_mul(const struct hzi_vlut_bitfield *a)
{
	uint8_t tiles[2][4096] __attribute__((aligned(64)));
	int32_t sums[4][16][16] __attribute__((aligned(64)));
	struct config row_config = config;
	const uint8_t *codes = a->codes;
	const int8_t *x = a->x;

	for (int i = 0; i < 5; i++)
		row_config.rows[i] = (uint8_t)a->count;
	__asm__ volatile("ldtilecfg %0" : : "m"(row_config));
	BARRIER();
	_tile_zero(0);
	_tile_zero(1);
	_tile_zero(2);
	_tile_zero(3);
	bitfield_tiles(codes, tiles[0]);
	for (int64_t i = 1; i < a->steps; i++, x += 64) {
		codes += 1024;
		BARRIER();
		bitfield_multiply(x, a->x_ld, tiles[(i + 1) % 2]);
		BARRIER();
		bitfield_tiles(codes, tiles[i % 2]);
	}
	BARRIER();
	bitfield_multiply(x, a->x_ld, tiles[(a->steps + 1) % 2]);
	_tile_stored(0, sums[0], 64);
	_tile_stored(1, sums[1], 64);
	_tile_stored(2, sums[2], 64);
	_tile_stored(3, sums[3], 64);
	_tile_release();
	BARRIER();
	for (int r = 0; r < a->count; r++) {
		__m512i acc[4];

		for (int i = 0; i < 4; i++)
			acc[i] = _mm512_load_si512(sums[i][r]);
		bitfield512_rows(acc, a->sums + r * 32);
	}
}

static void bitfield(const struct hzi_vlut_bitfield *a)
{
	if (a->count > 3)
		bitfield_tiles_mul(a);
	else
		bitfield512_skinny(a);
}

void hzi_vlut_kern_amx(void *table)
{
	struct hzi_vlut_kern *const kern = table;

	kern->bitfield_rows = 16;
	/* Eight columns, mostly of two rows: with more, codes would be decoded once more. */
	kern->bitfield_rows_max = 24;
	kern->bitfield = bitfield;
}
