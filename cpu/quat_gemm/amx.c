/*
 * amx.c - bf16 quaternion matrix products with AMX tiles
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#include <config.h>

#include "cpu/core/tiles.h"
#include "cpu/quat_gemm/kern.h"

enum {
	BF16_ROWS = 64,		/* of a panel of V */
	BF16_TILE = 512		/* elements */
};

/* The upper halves of two f32 numbers are a pair of bf16, since the numbers are bf16 values. */
static void bf16_pack_v(const float *from, int64_t rows, uint16_t *to, int64_t tile_ld)
{
	const __m512i upper = _mm512_set1_epi32((int)0xffff0000);

	for (int64_t i = 0; i < rows; i += 16, to += tile_ld) {
		for (int64_t l = 0; l < 32; l += 2) {
			const __m512i a = _mm512_loadu_si512(from + l * BF16_ROWS + i);
			const __m512i b = _mm512_loadu_si512(from + (l + 1) * BF16_ROWS + i);

			_mm512_storeu_si512(to + l * 16,
					    _mm512_or_si512(_mm512_srli_epi32(a, 16),
							    _mm512_and_si512(b, upper)));
		}
	}
}

static void bf16_pack_s(const float *from, int64_t count, uint16_t *to, uint16_t *negated)
{
	const __m256i sign = _mm256_set1_epi16((short)0x8000);

	for (int64_t j = 0; j < 2 * count; j++) {
		const __m512i v = _mm512_loadu_si512(from + j * 16);
		const __m256i h = _mm512_cvtepi32_epi16(_mm512_srli_epi32(v, 16));

		_mm256_storeu_si256((__m256i *)(void *)(to + j * 16), h);
		_mm256_storeu_si256((__m256i *)(void *)(negated + j * 16),
				    _mm256_xor_si256(h, sign));
	}
}

/*
 * 16 rows by 16 columns of all four components: each tile of V meets four of S. Registers: four
 * tiles of accumulators, one of V, three of S alternating. Loading a tile from L1 takes half the
 * time of a multiplication, from L2 more than that: 7 component planes of 16 columns of S, 28 KiB,
 * stay in L1 while V streams from L2.
 */
static void bf16_tile(const struct hzi_quat_bf16_mul *a, int64_t it, int64_t jt)
{
	const int64_t ld = BF16_ROWS * 4, at = jt * a->steps * BF16_TILE;
	float *p = a->p + jt * 16 * BF16_ROWS + it * 16;

	if (a->add) {
		_tile_loadd(0, p, ld);
		_tile_loadd(1, p + a->p_plane, ld);
		_tile_loadd(2, p + 2 * a->p_plane, ld);
		_tile_loadd(3, p + 3 * a->p_plane, ld);
	} else {
		_tile_zero(0);
		_tile_zero(1);
		_tile_zero(2);
		_tile_zero(3);
	}
	for (int64_t k = 0; k < a->steps; k++) {
		const uint16_t *v = a->v + (it * a->steps + k) * BF16_TILE;
		const int64_t s = at + k * BF16_TILE;

		for (int l = 0; l < 4; l++, v += a->v_plane) {
			_tile_stream_loadd(4, v, 64);
			_tile_loadd(5, a->s[l][0] + s, 64);
			_tile_loadd(6, a->s[l][1] + s, 64);
			_tile_loadd(7, a->s[l][2] + s, 64);
			_tile_dpbf16ps(0, 5, 4);
			_tile_loadd(5, a->s[l][3] + s, 64);
			_tile_dpbf16ps(1, 6, 4);
			_tile_dpbf16ps(2, 7, 4);
			_tile_dpbf16ps(3, 5, 4);
		}
	}
	_tile_stored(0, p, ld);
	_tile_stored(1, p + a->p_plane, ld);
	_tile_stored(2, p + 2 * a->p_plane, ld);
	_tile_stored(3, p + 3 * a->p_plane, ld);
}

static void bf16_mul(const struct hzi_quat_bf16_mul *a)
{
	BARRIER();
	__asm__ volatile("ldtilecfg %0" : : "m"(config));
	for (int64_t j = 0; j < a->cols; j += 16) {
		for (int64_t i = 0; i < a->rows; i += 16)
			bf16_tile(a, i / 16, j / 16);
	}
	_tile_release();
	BARRIER();
}

void hzi_quat_gemm_kern_amx(void *table)
{
	struct hzi_quat_gemm_typed *const kern = ((struct hzi_quat_gemm_kern *)table)->type;

	kern->bf16_pack_v = bf16_pack_v;
	kern->bf16_pack_s = bf16_pack_s;
	kern->bf16_mul = bf16_mul;
}
