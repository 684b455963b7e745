/*
 * amx.c - products of streams and phi by AMX tiles of bf16
 *
 * SPDX-License-Identifier: BSD-2-Clause
 *
 * The strides of streams map all rows of a tile to the same sets of L1. So tiles of bf16 are loaded
 * in place, each cache line once, while their squares are summed. Tiles of f32 and f16 are loaded
 * from copies in bf16, which are made while squares are summed.
 */
#include <config.h>

#include "cpu/core/tiles.h"
#include "cpu/mhc/kern.h"
#include "lib/mhc/mhc.h"

/* ---- Split precision: v = high + low in bf16 ------------------------------------------------- */

/* The upper 16 bits of high and low are the two terms; low is 0 where v is not finite. */
INLINE void split_floats(__m512 v, __m512i *high, __m512i *low)
{
	const __m512i bits = _mm512_castps_si512(v), top = _mm512_set1_epi32((int)0xffff0000);
	const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
	const __m512i half = _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff));
	const __m512i near = _mm512_and_si512(_mm512_add_epi32(bits, half), top);
	/* Finite values that would round to infinity are truncated. */
	const __m512i cut = _mm512_and_si512(bits, top);
	const __mmask16 nan = _mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q);
	const __mmask16 large = _mm512_fpclass_ps_mask(_mm512_castsi512_ps(near), 0x18);
	const __mmask16 finite = (__mmask16)~_mm512_fpclass_ps_mask(v, 0x99);

	*high = _mm512_mask_mov_epi32(near, large, cut);
	*high = _mm512_mask_mov_epi32(*high, nan, _mm512_set1_epi32(0x7fc00000));
	*low = _mm512_castps_si512(
		_mm512_maskz_sub_ps(finite, v, _mm512_castsi512_ps(*high)));
	*low = _mm512_add_epi32(*low, _mm512_set1_epi32(0x8000));
}

/* The upper 16 bits of the elements of a, then of b */
INLINE __m512i join_upper(__m512i a, __m512i b)
{
	const __m512i halves = _mm512_set_epi16(
		63, 61, 59, 57, 55, 53, 51, 49, 47, 45, 43, 41, 39, 37, 35, 33,
		31, 29, 27, 25, 23, 21, 19, 17, 15, 13, 11, 9, 7, 5, 3, 1);

	return _mm512_permutex2var_epi16(a, halves, b);
}

/* Loads 16 elements from x + i as f32; `left` exist, the others are 0. */
INLINE __m512 load_16(const void *x, const int dtype, int64_t i, int64_t left)
{
	const __mmask16 mask = left >= 16 ? 0xffff : (__mmask16)((1u << left) - 1);

	if (dtype == HZ_F32)
		return _mm512_maskz_loadu_ps(mask, (const float *)x + i);
	if (dtype == HZ_F16)
		return _mm512_cvtph_ps(
			_mm256_maskz_loadu_epi16(mask, (const uint16_t *)x + i));
	return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(
		_mm256_maskz_loadu_epi16(mask, (const uint16_t *)x + i)), 16));
}

/* Prefetches 32 columns of the rows that are read next. */
INLINE void prefetch_rows(const struct hzi_mhc_ahead *a, const int rows, int64_t step)
{
	const char *const from = a->x + step * a->step_bytes;

	for (int i = 0; i < rows && a->x; i++) {
		_mm_prefetch(from + i * a->row_bytes, _MM_HINT_T0);
		if (a->step_bytes > 64)
			_mm_prefetch(from + i * a->row_bytes + 64, _MM_HINT_T0);
	}
}

INLINE void split(const struct hzi_mhc_bf16_rows *a, const int dtype)
{
	__m512 sum[2] = {_mm512_loadu_ps(a->squares), _mm512_setzero_ps()};

	for (int64_t c = 0; c < a->count; c += 32) {
		const int64_t left = a->count - c;
		__m512 v[2];
		__m512i high[2], low[2];

		if (dtype == HZ_BF16) {
			const __mmask32 mask = left >= 32 ? 0xffffffff : (1u << left) - 1;
			const __m512i w =
				_mm512_maskz_loadu_epi16(mask, (const uint16_t *)a->x + c);

			v[0] = _mm512_castsi512_ps(_mm512_slli_epi32(w, 16));
			v[1] = _mm512_castsi512_ps(
				_mm512_and_si512(w, _mm512_set1_epi32((int)0xffff0000)));
			_mm512_storeu_si512(a->high + c, w);
		} else {
			for (int i = 0; i < 2; i++) {
				v[i] = load_16(a->x, dtype, c + 16 * i,
					       left > 16 * i ? left - 16 * i : 0);
				split_floats(v[i], &high[i], &low[i]);
			}
			_mm512_storeu_si512(a->high + c, join_upper(high[0], high[1]));
			_mm512_storeu_si512(a->low + c, join_upper(low[0], low[1]));
		}
		sum[0] = _mm512_fmadd_ps(v[0], v[0], sum[0]);
		sum[1] = _mm512_fmadd_ps(v[1], v[1], sum[1]);
	}
	_mm512_storeu_ps(a->squares, _mm512_add_ps(sum[0], sum[1]));
}

static void mhc_split_bf16(const struct hzi_mhc_bf16_rows *a)
{
	if (a->dtype == HZ_F32)
		split(a, HZ_F32);
	else if (a->dtype == HZ_F16)
		split(a, HZ_F16);
	else
		split(a, HZ_BF16);
}

/* The upper 16 bits of the elements of a and b, interleaved */
INLINE __m512i interleave_upper(__m512i a, __m512i b)
{
	return _mm512_mask_blend_epi16(0xaaaaaaaa, _mm512_srli_epi32(a, 16), b);
}

/* Interleaves two rows of 32 bf16: their even elements, and their odd ones. */
INLINE void interleave_rows(__m512i a, __m512i b, uint16_t *even, uint16_t *odd)
{
	_mm512_storeu_si512(even, _mm512_mask_mov_epi16(a, 0xaaaaaaaa, _mm512_slli_epi32(b, 16)));
	_mm512_storeu_si512(odd, _mm512_mask_mov_epi16(_mm512_srli_epi32(a, 16), 0xaaaaaaaa, b));
}

INLINE __m512i row_part(const void *x, int64_t left)
{
	return _mm512_maskz_loadu_epi16(left >= 32 ? 0xffffffff : (1u << left) - 1, x);
}

INLINE void interleave(const struct hzi_mhc_bf16_rows *a, const int dtype)
{
	const __m512i even = _mm512_set_epi32(30, 28, 26, 24, 22, 20, 18, 16,
					      14, 12, 10, 8, 6, 4, 2, 0);
	const __m512i odd = _mm512_add_epi32(even, _mm512_set1_epi32(1));

	for (int64_t c = 0; c < a->count; c += 32) {
		uint16_t *const high = a->high + c * 32, *const low = a->low + c * 32;
		const int64_t left = a->count - c, more = left > 16 ? left - 16 : 0;
		__m512 v[2][2];

		if (dtype == HZ_BF16) {
			const __m512i zero = _mm512_setzero_si512();

			interleave_rows(a->x ? row_part((const uint16_t *)a->x + c, left) : zero,
					a->y ? row_part((const uint16_t *)a->y + c, left) : zero,
					high, high + HZI_MHC_AMX_TILE);
			continue;
		}
		for (int i = 0; i < 2; i++) {
			const void *const row = i ? a->y : a->x;

			v[i][0] = v[i][1] = _mm512_setzero_ps();
			if (row) {
				v[i][0] = load_16(row, dtype, c, left);
				v[i][1] = load_16(row, dtype, c + 16, more);
			}
		}
		for (int g = 0; g < 2; g++) {
			__m512i part[2][2];

			for (int i = 0; i < 2; i++)
				split_floats(_mm512_permutex2var_ps(v[i][0], g ? odd : even,
								    v[i][1]),
					     &part[i][0], &part[i][1]);
			_mm512_storeu_si512(high + g * HZI_MHC_AMX_TILE,
					    interleave_upper(part[0][0], part[1][0]));
			_mm512_storeu_si512(low + g * HZI_MHC_AMX_TILE,
					    interleave_upper(part[0][1], part[1][1]));
		}
	}
}

static void mhc_interleave_bf16(const struct hzi_mhc_bf16_rows *a)
{
	if (a->dtype == HZ_F32)
		interleave(a, HZ_F32);
	else if (a->dtype == HZ_F16)
		interleave(a, HZ_F16);
	else
		interleave(a, HZ_BF16);
}

/* ---- phi ------------------------------------------------------------------------------------- */

INLINE void transpose_16(__m512i *v)
{
	__m512i w[16];

	UNROLL
	for (int i = 0; i < 16; i += 2) {
		w[i] = _mm512_unpacklo_epi32(v[i], v[i + 1]);
		w[i + 1] = _mm512_unpackhi_epi32(v[i], v[i + 1]);
	}
	UNROLL
	for (int i = 0; i < 16; i += 4) {
		v[i] = _mm512_unpacklo_epi64(w[i], w[i + 2]);
		v[i + 1] = _mm512_unpackhi_epi64(w[i], w[i + 2]);
		v[i + 2] = _mm512_unpacklo_epi64(w[i + 1], w[i + 3]);
		v[i + 3] = _mm512_unpackhi_epi64(w[i + 1], w[i + 3]);
	}
	/* Quarter q of v[4 i + c] is column 4 q + c of rows 4 i to 4 i + 3. */
	UNROLL
	for (int c = 0; c < 4; c++) {
		w[c] = _mm512_shuffle_i32x4(v[c], v[c + 4], 0x88);
		w[c + 4] = _mm512_shuffle_i32x4(v[c], v[c + 4], 0xdd);
		w[c + 8] = _mm512_shuffle_i32x4(v[c + 8], v[c + 12], 0x88);
		w[c + 12] = _mm512_shuffle_i32x4(v[c + 8], v[c + 12], 0xdd);
	}
	UNROLL
	for (int c = 0; c < 4; c++) {
		v[c] = _mm512_shuffle_i32x4(w[c], w[c + 8], 0x88);
		v[c + 4] = _mm512_shuffle_i32x4(w[c + 4], w[c + 12], 0x88);
		v[c + 8] = _mm512_shuffle_i32x4(w[c], w[c + 8], 0xdd);
		v[c + 12] = _mm512_shuffle_i32x4(w[c + 4], w[c + 12], 0xdd);
	}
}

/* Rows of phi become columns of panels; a panel is transposed as 16 x 16 pairs. */
static void mhc_amx_pack_phi(const struct hzi_mhc_amx_phi *a)
{
	__m512i columns[2 * HZI_MHC_ROWS + 15];

	for (int k = 0; k < a->m; k++) {
		const float *const from = a->phi + k * a->row;
		__m512i high[2], low[2];

		split_floats(_mm512_loadu_ps(from), &high[0], &low[0]);
		split_floats(_mm512_loadu_ps(from + 16), &high[1], &low[1]);
		columns[k] = join_upper(high[0], high[1]);
		columns[a->m + k] = join_upper(low[0], low[1]);
	}
	for (int k = 2 * a->m; k < 16 * a->panels; k++)
		columns[k] = _mm512_setzero_si512();
	for (int p = 0; p < a->panels; p++) {
		__m512i v[16];

		UNROLL
		for (int i = 0; i < 16; i++)
			v[i] = columns[16 * p + i];
		transpose_16(v);
		UNROLL
		for (int i = 0; i < 16; i++)
			_mm512_storeu_si512(a->to + p * HZI_MHC_AMX_TILE + i * 32, v[i]);
	}
}

static void mhc_amx_pack_phi_dx(const struct hzi_mhc_amx_phi *a)
{
	const int64_t part = (a->m + 1) / 2 * 32;

	for (int k = 0; k < a->m; k += 2) {
		const float *const from = a->phi + k * a->row;
		__m512i high[2], low[2];

		split_floats(_mm512_loadu_ps(from), &high[0], &low[0]);
		split_floats(k + 1 < a->m ? _mm512_loadu_ps(from + a->row) : _mm512_setzero_ps(),
			     &high[1], &low[1]);
		_mm512_storeu_si512(a->to + k * 16, interleave_upper(high[0], high[1]));
		_mm512_storeu_si512(a->to + part + k * 16, interleave_upper(low[0], low[1]));
	}
}

/* ---- Products -------------------------------------------------------------------------------- */

/* Adds the squares of 16 rows of 32 bf16 to sums. */
INLINE void row_squares(const uint16_t *x, int64_t ld, __m512 *sums)
{
	UNROLL
	for (int i = 0; i < 16; i++) {
		const __m512i w = _mm512_loadu_si512(x + i * ld);
		const __m512 even = _mm512_castsi512_ps(_mm512_slli_epi32(w, 16));
		const __m512 odd = _mm512_castsi512_ps(
			_mm512_and_si512(w, _mm512_set1_epi32((int)0xffff0000)));

		sums[i] = _mm512_fmadd_ps(odd, odd, _mm512_fmadd_ps(even, even, sums[i]));
	}
}

/* Up to 3 panels: tiles 0 to 2 hold y, 3 x, 4 to 6 phi, 7 the low term of x. */
INLINE void project_panels(const struct hzi_mhc_amx_project *a, int panel, const int panels,
			   const bool squares)
{
	const uint16_t *x = a->x, *low = a->low, *phi = a->phi + panel * HZI_MHC_AMX_TILE;
	float *const y = a->y + panel * 16;
	const int64_t ld = a->panels * 64;
	__m512 sums[16];

	UNROLL
	for (int i = 0; i < 16; i++)
		sums[i] = squares ? _mm512_loadu_ps(a->squares + i * 16) : _mm512_setzero_ps();
	_tile_loadd(0, y, ld);
	if (panels > 1)
		_tile_loadd(1, y + 16, ld);
	if (panels > 2)
		_tile_loadd(2, y + 32, ld);
	for (int64_t s = 0; s < a->steps; s++, x += 32, phi += a->panels * HZI_MHC_AMX_TILE) {
		_tile_loadd(3, x, a->x_ld * 2);
		_tile_loadd(4, phi, 64);
		if (!squares && panel == 0)
			prefetch_rows(&a->ahead, 16, s);
		if (panels > 1)
			_tile_loadd(5, phi + HZI_MHC_AMX_TILE, 64);
		if (panels > 2)
			_tile_loadd(6, phi + 2 * HZI_MHC_AMX_TILE, 64);
		if (squares)
			row_squares(x, a->x_ld, sums);
		_tile_dpbf16ps(0, 3, 4);
		if (panels > 1)
			_tile_dpbf16ps(1, 3, 5);
		if (panels > 2)
			_tile_dpbf16ps(2, 3, 6);
		if (low) {
			_tile_loadd(7, low, a->x_ld * 2);
			_tile_dpbf16ps(0, 7, 4);
			if (panels > 1)
				_tile_dpbf16ps(1, 7, 5);
			if (panels > 2)
				_tile_dpbf16ps(2, 7, 6);
			low += 32;
		}
	}
	_tile_stored(0, y, ld);
	if (panels > 1)
		_tile_stored(1, y + 16, ld);
	if (panels > 2)
		_tile_stored(2, y + 32, ld);
	UNROLL
	for (int i = 0; squares && i < 16; i++)
		_mm512_storeu_ps(a->squares + i * 16, sums[i]);
}

static void mhc_amx_project(const struct hzi_mhc_amx_project *a)
{
	int panel = 0;

	BARRIER();
	__asm__ volatile("ldtilecfg %0" : : "m"(config));
	if (a->squares) {
		panel = a->panels < 3 ? a->panels : 3;
		if (panel == 3)
			project_panels(a, 0, 3, true);
		else
			panel == 2 ? project_panels(a, 0, 2, true) : project_panels(a, 0, 1, true);
	}
	for (; panel + 3 <= a->panels; panel += 3)
		project_panels(a, panel, 3, false);
	if (panel + 2 == a->panels)
		project_panels(a, panel, 2, false);
	else if (panel < a->panels)
		project_panels(a, panel, 1, false);
	_tile_release();
	BARRIER();
}

/*
 * One or two groups of 16 columns: tiles 0 and 1 hold y, 4 and 5 high and low of d, 6 and 7 phi.
 * The product low x low is left out.
 */
INLINE void dx_groups(const struct hzi_mhc_amx_dx *a, int64_t g, const bool two)
{
	const int64_t part = (a->m + 1) / 2 * 32;
	const uint16_t *const phi = a->phi + g * 2 * part;
	float *const y = a->y + g * 16;

	_tile_zero(0);
	_tile_loadd(6, phi, 64);
	if (two) {
		_tile_zero(1);
		_tile_loadd(7, phi + 2 * part, 64);
	}
	_tile_dpbf16ps(0, 4, 6);
	if (two)
		_tile_dpbf16ps(1, 4, 7);
	_tile_dpbf16ps(0, 5, 6);
	if (two)
		_tile_dpbf16ps(1, 5, 7);
	_tile_loadd(6, phi + part, 64);
	if (two)
		_tile_loadd(7, phi + 3 * part, 64);
	_tile_dpbf16ps(0, 4, 6);
	if (two)
		_tile_dpbf16ps(1, 4, 7);
	_tile_stored(0, y, a->y_ld * 4);
	if (two)
		_tile_stored(1, y + 16, a->y_ld * 4);
}

static void mhc_amx_dx(const struct hzi_mhc_amx_dx *a)
{
	const uint8_t pairs = (uint8_t)((a->m + 1) / 2);
	struct config own = config;
	int64_t g = 0;

	own.row_bytes[4] = own.row_bytes[5] = (uint16_t)(4 * pairs);
	own.rows[6] = own.rows[7] = pairs;
	BARRIER();
	__asm__ volatile("ldtilecfg %0" : : "m"(own));
	_tile_loadd(4, a->d, 64);
	_tile_loadd(5, a->d + HZI_MHC_AMX_TILE, 64);
	for (; g + 2 <= a->groups; g += 2)
		dx_groups(a, g, true);
	if (g < a->groups)
		dx_groups(a, g, false);
	_tile_release();
	BARRIER();
}

/*
 * One or two groups of 16 columns: tiles 0 and 1 hold rows 0 to 15 and 16 to 31 of dphi of the
 * first group, 2 and 3 of the second; 4 and 5 d, 6 and 7 x.
 */
INLINE void dphi_groups(const struct hzi_mhc_amx_dphi *a, int64_t g, const bool two,
			const bool more)
{
	const int64_t ld = a->m * 32;
	float *const phi = a->phi + g * 16 * a->m;

	if (a->fresh) {
		_tile_zero(0);
		_tile_zero(2);
		if (more) {
			_tile_zero(1);
			_tile_zero(3);
		}
	} else {
		_tile_loadd(0, phi, 64);
		if (more)
			_tile_loadd(1, phi + 256, 64);
		if (two)
			_tile_loadd(2, phi + 16 * a->m, 64);
		if (two && more)
			_tile_loadd(3, phi + 16 * a->m + 256, 64);
	}
	prefetch_rows(&a->ahead, 32, g / 2);
	for (int64_t s = 0; s < a->steps; s++) {
		const int64_t at = (s * a->groups + g) * HZI_MHC_AMX_TILE;
		const uint16_t *d = a->d + s * 2 * ld;

		_tile_loadd(6, a->x + at, 64);
		if (two)
			_tile_loadd(7, a->x + at + HZI_MHC_AMX_TILE, 64);
		for (int part = 0; part < (a->low ? 3 : 2); part++) {
			if (part == 2) {
				/* low of x times high of d */
				d -= 2 * ld;
				_tile_loadd(6, a->low + at, 64);
				if (two)
					_tile_loadd(7, a->low + at + HZI_MHC_AMX_TILE, 64);
			}
			_tile_loadd(4, d, 64);
			if (more)
				_tile_loadd(5, d + HZI_MHC_AMX_TILE, 64);
			_tile_dpbf16ps(0, 4, 6);
			if (more)
				_tile_dpbf16ps(1, 5, 6);
			if (two)
				_tile_dpbf16ps(2, 4, 7);
			if (two && more)
				_tile_dpbf16ps(3, 5, 7);
			d += ld;
		}
	}
	_tile_stored(0, phi, 64);
	if (more)
		_tile_stored(1, phi + 256, 64);
	if (two)
		_tile_stored(2, phi + 16 * a->m, 64);
	if (two && more)
		_tile_stored(3, phi + 16 * a->m + 256, 64);
}

static void mhc_amx_dphi(const struct hzi_mhc_amx_dphi *a)
{
	const bool more = a->m > 16;
	struct config own = config;
	int64_t g = 0;

	own.rows[0] = own.rows[2] = own.rows[4] = (uint8_t)(more ? 16 : a->m);
	own.rows[1] = own.rows[3] = own.rows[5] = (uint8_t)(more ? a->m - 16 : 16);
	BARRIER();
	__asm__ volatile("ldtilecfg %0" : : "m"(own));
	for (; g + 2 <= a->groups; g += 2)
		more ? dphi_groups(a, g, true, true) : dphi_groups(a, g, true, false);
	if (g < a->groups)
		more ? dphi_groups(a, g, false, true) : dphi_groups(a, g, false, false);
	_tile_release();
	BARRIER();
}

/* ---- Both gradients for whole tiles of bf16 -------------------------------------------------- */

/*
 * For dphi: tiles 0 and 1 hold rows 0 to 15 and 16 to 31 of dphi, 2 and 3 d, 4 x. For dx: tiles 0
 * and 2 accumulators, 5 and 6 high and low of d, 7 phi.
 */
static void bwd_config(int m)
{
	const uint8_t pairs = (uint8_t)((m + 1) / 2);
	struct config own = config;

	own.rows[1] = own.rows[3] = (uint8_t)(m - 16);
	own.row_bytes[5] = own.row_bytes[6] = (uint16_t)(4 * pairs);
	own.rows[7] = pairs;
	__asm__ volatile("ldtilecfg %0" : : "m"(own));
}

/* dphi of the even or the odd channels of a block */
INLINE void bwd_dphi(const struct hzi_mhc_amx_bwd *a, const uint16_t *interleaved, float *dphi)
{
	const uint16_t *const high = a->d_dphi, *const low = high + a->m * 32;

	if (a->fresh) {
		_tile_zero(0);
		_tile_zero(1);
	} else {
		_tile_loadd(0, dphi, 64);
		_tile_loadd(1, dphi + 256, 64);
	}
	_tile_loadd(4, interleaved, 64);
	_tile_loadd(2, high, 64);
	_tile_loadd(3, high + HZI_MHC_AMX_TILE, 64);
	_tile_dpbf16ps(0, 2, 4);
	_tile_dpbf16ps(1, 3, 4);
	_tile_loadd(2, low, 64);
	_tile_loadd(3, low + HZI_MHC_AMX_TILE, 64);
	_tile_dpbf16ps(0, 2, 4);
	_tile_dpbf16ps(1, 3, 4);
	_tile_stored(0, dphi, 64);
	_tile_stored(1, dphi + 256, 64);
}

/* d phi for 16 tokens and 32 channels, in the order of channels */
INLINE void bwd_dx(const struct hzi_mhc_amx_bwd *a, const uint16_t *d, const uint16_t *phi,
		   float *sums)
{
	const int64_t part = (a->m + 1) / 2 * 32;

	_tile_loadd(5, d, 64);
	_tile_loadd(6, d + HZI_MHC_AMX_TILE, 64);
	_tile_loadd(7, phi, 64);
	_tile_zero(0);
	_tile_dpbf16ps(0, 5, 7);
	_tile_dpbf16ps(0, 6, 7);
	_tile_loadd(7, phi + 2 * part, 64);
	_tile_zero(2);
	_tile_dpbf16ps(2, 5, 7);
	_tile_dpbf16ps(2, 6, 7);
	_tile_loadd(7, phi + part, 64);
	_tile_dpbf16ps(0, 5, 7);
	_tile_loadd(7, phi + 3 * part, 64);
	_tile_dpbf16ps(2, 5, 7);
	_tile_stored(0, sums, 128);
	_tile_stored(2, sums + 16, 128);
}

/* NaN here have low bits of 0: see pack_bf16() in pairs.inc. */
INLINE __m512i round_pair(__m512i even, __m512i odd)
{
	const __m512i high = _mm512_mask_mov_epi16(_mm512_srli_epi32(even, 16), 0xaaaaaaaa, odd);
	const __m512i low = _mm512_mask_mov_epi16(even, 0xaaaaaaaa, _mm512_slli_epi32(odd, 16));
	const __m512i even_bit = _mm512_andnot_si512(high, _mm512_set1_epi16(1));

	return _mm512_add_epi16(high, _mm512_srli_epi16(_mm512_subs_epu16(low, even_bit), 15));
}

/* dx of a token: sums + factor x, with the even and the odd elements of x */
INLINE void bwd_dx_row(const float *sums, float factor, __m512i even, __m512i odd, uint16_t *to,
		       const bool stream)
{
	const __m512i evens = _mm512_set_epi32(30, 28, 26, 24, 22, 20, 18, 16,
					       14, 12, 10, 8, 6, 4, 2, 0);
	const __m512i odds = _mm512_add_epi32(evens, _mm512_set1_epi32(1));
	const __m512 a = _mm512_loadu_ps(sums), b = _mm512_loadu_ps(sums + 16);
	const __m512 f = _mm512_set1_ps(factor == factor ? factor : __builtin_nanf(""));
	/* With factor 0, x may be infinite. */
	const __mmask16 own = factor != 0 ? 0xffff : 0;
	const __m512i y = round_pair(
		_mm512_castps_si512(_mm512_mask3_fmadd_ps(
			_mm512_castsi512_ps(even), f, _mm512_permutex2var_ps(a, evens, b), own)),
		_mm512_castps_si512(_mm512_mask3_fmadd_ps(
			_mm512_castsi512_ps(odd), f, _mm512_permutex2var_ps(a, odds, b), own)));

	if (stream)
		_mm512_stream_si512((__m512i *)(void *)to, y);
	else
		_mm512_storeu_si512(to, y);
}

/*
 * A block of 32 channels in a three-stage software pipeline: x of block b + 1 is interleaved while
 * tiles of block b are multiplied and dx of block b - 1 is rounded and stored. Tiles load from and
 * store to L1. Each stage is cut into quarters, so that vector code does not wait for tiles.
 */
struct bwd_block {
	uint16_t interleaved[2 * HZI_MHC_AMX_TILE] __attribute__((aligned(64)));
	float sums[HZI_MHC_AMX_TOKENS][32] __attribute__((aligned(64)));
};

#define BWD_ROWS (HZI_MHC_AMX_TOKENS / 4)

INLINE void bwd_interleave(const struct hzi_mhc_amx_bwd *a, int64_t b, int q, struct bwd_block *k)
{
	UNROLL
	for (int t = 0; t < BWD_ROWS; t += 2) {
		const uint16_t *const x = a->x + (q * BWD_ROWS + t) * a->x_ld + b * 32;
		uint16_t *const to = k->interleaved + (q * BWD_ROWS + t) * 16;

		interleave_rows(_mm512_loadu_si512(x), _mm512_loadu_si512(x + a->x_ld), to,
				to + HZI_MHC_AMX_TILE);
	}
}

INLINE void bwd_dx_rows(const struct hzi_mhc_amx_bwd *a, int64_t b, int q,
			const struct bwd_block *k, const bool stream)
{
	const __m512i top = _mm512_set1_epi32((int)0xffff0000);

	for (int t = q * BWD_ROWS; t < (q + 1) * BWD_ROWS; t += 2) {
		const __m512i even = _mm512_load_si512(k->interleaved + t * 16);
		const __m512i odd = _mm512_load_si512(k->interleaved + t * 16 + HZI_MHC_AMX_TILE);
		uint16_t *const to = a->dx + t * a->dx_ld + b * 32;

		bwd_dx_row(k->sums[t], a->factor[t], _mm512_slli_epi32(even, 16),
			   _mm512_slli_epi32(odd, 16), to, stream);
		bwd_dx_row(k->sums[t + 1], a->factor[t + 1], _mm512_and_si512(even, top),
			   _mm512_and_si512(odd, top), to + a->dx_ld, stream);
	}
}

/* Quarters 0 and 1 compute dphi, 2 and 3 d phi. */
INLINE void bwd_tiles(const struct hzi_mhc_amx_bwd *a, int64_t b, int q, struct bwd_block *k)
{
	if (q < 2 && a->dphi)
		bwd_dphi(a, k->interleaved + q * HZI_MHC_AMX_TILE,
			 a->dphi + (2 * b + q) * 16 * a->m);
	if (q >= 2 && a->dx)
		bwd_dx(a, a->d_dx + (q - 2) * 2 * HZI_MHC_AMX_TILE,
		       a->phi + b * 4 * ((a->m + 1) / 2 * 32), k->sums[(q - 2) * 16]);
}

INLINE void bwd_blocks(const struct hzi_mhc_amx_bwd *a, const bool stream)
{
	struct bwd_block block[3], *last = &block[2], *now = &block[0], *next = &block[1], *free;

	for (int64_t b = -1; b <= a->blocks; b++) {
		for (int q = 0; q < 4; q++) {
			if (b + 1 < a->blocks)
				bwd_interleave(a, b + 1, q, next);
			if (b >= 0 && b < a->blocks)
				bwd_tiles(a, b, q, now);
			if (b > 0 && a->dx)
				bwd_dx_rows(a, b - 1, q, last, stream);
		}
		free = last;
		last = now;
		now = next;
		next = free;
	}
}

static void mhc_amx_bwd(const struct hzi_mhc_amx_bwd *a)
{
	BARRIER();
	bwd_config(a->m);
	if (a->dx && a->stream) {
		bwd_blocks(a, true);
		_mm_sfence();
	} else {
		bwd_blocks(a, false);
	}
	_tile_release();
	BARRIER();
}

void hzi_mhc_kern_amx(void *table)
{
	struct hzi_mhc_kern *const kern = table;

	kern->split_bf16 = mhc_split_bf16;
	kern->interleave_bf16 = mhc_interleave_bf16;
	kern->amx_project = mhc_amx_project;
	kern->amx_pack_phi = mhc_amx_pack_phi;
	kern->amx_pack_phi_dx = mhc_amx_pack_phi_dx;
	kern->amx_dx = mhc_amx_dx;
	kern->amx_dphi = mhc_amx_dphi;
	kern->amx_bwd = mhc_amx_bwd;
}
