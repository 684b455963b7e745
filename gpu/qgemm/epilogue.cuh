/*
 * epilogue.cuh - epilogue: from accumulators to C
 *
 * SPDX-License-Identifier: BSD-2-Clause
 *
 * Of 64 columns a thread holds 16 successive ones of rows r and r + 8. store_codes() requantizes
 * them to 8-bit codes in 3.5 instructions each and stores 16 at once. store_values() makes floats
 * or s32 of them in 5 to 9 instructions each, which a warp stores as whole lines through shared
 * memory. In kernels with fewer registers the accumulators go through shared memory, and
 * store_rows() does the same, four columns a lane. general_rows() stores anything, one column a
 * lane.
 */
#ifndef HZI_GPU_QGEMM_EPILOGUE_CUH
#define HZI_GPU_QGEMM_EPILOGUE_CUH

#include "gpu/device/dtype.cuh"
#include "gpu/qgemm/qgemm.h"
#include "lib/qgemm/requant.h"

/* ---- Helpers --------------------------------------------------------------------------------- */

/* Adds the four codes in a to sum. */
template <bool SIGNED>
HZ_DEVICE int32_t add_codes(uint32_t a, int32_t sum)
{
	if (SIGNED)
		asm("dp4a.s32.u32 %0, %1, %2, %0;" : "+r"(sum) : "r"(a), "r"(0x01010101));
	else
		asm("dp4a.u32.u32 %0, %1, %2, %0;" : "+r"(sum) : "r"(a), "r"(0x01010101));
	return sum;
}

HZ_DEVICE int32_t multiply_high_add(int32_t a, int32_t b, int32_t c)
{
	int32_t d;

	asm("mad.hi.s32 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
	return d;
}

/* Packs four integers, each clamped to 0 .. 255. */
HZ_DEVICE uint32_t pack_u8(const int32_t (&v)[4])
{
	uint32_t high, all;

	asm("cvt.pack.sat.u8.s32.b32 %0, %1, %2, %3;" : "=r"(high) : "r"(v[3]), "r"(v[2]), "r"(0));
	asm("cvt.pack.sat.u8.s32.b32 %0, %1, %2, %3;"
	    : "=r"(all)
	    : "r"(v[1]), "r"(v[0]), "r"(high));
	return all;
}

/* Element i of v */
HZ_DEVICE int32_t element(const int4 &v, int i)
{
	return i == 0 ? v.x : i == 1 ? v.y : i == 2 ? v.z : v.w;
}

/* The column of packed row i; see gpu/qgemm/qgemm.h */
HZ_DEVICE int column_of_row(int i)
{
	return (i & ~63) + 16 * (i >> 1 & 3) + 2 * (i >> 3 & 7) + (i & 1);
}

/* ---- Fast path ------------------------------------------------------------------------------- */

HZ_DEVICE hzi_multiplier multiplier_of(const hzi_qgemm_out &o, int n, bool is_s32)
{
	hzi_multiplier m = {o.u, o.shift};

	if (o.multipliers) {
		m.u = o.multipliers[n];
		m.shift = o.shifts[n];
		if (m.u <= 0 || m.shift < 1 || m.shift > 62) {
			m.u = 0;
			m.shift = 1;
		}
	} else if (o.b_scales) {
		m = hzi_multiplier_f32(hzi_sigma(o.a_scale, o.b_scales[(int64_t)n * o.b_scale_step],
						 o.c_scale), is_s32, o.requant == HZ_REQUANT_EXACT);
	}
	return m;
}

/* The zero point of column n of B as stored */
HZ_DEVICE int32_t b_zero_of(const hzi_qgemm_out &o, int n)
{
	return o.b_zeros ? o.b_zeros[n] ^ (o.b_signed ? 0x80 : 0) : o.b_zero;
}

/*
 * Whether all columns have the same multiplier and zero point: then only add[] differs among
 * columns.
 */
HZ_DEVICE bool uniform_columns(const hzi_qgemm_out &o)
{
	return !o.multipliers && !o.b_scales && !o.b_zeros;
}

/*
 * Terms of columns for the fast path. All: add = bias and the terms of a_zero, zero = -(zero point
 * of B). Codes: factor = u, round = rounding term and c_zero, more = shift - 32. Values: factor =
 * scale, round = f32 bias, more = the multiplier of a_zeros.
 */
template <int N>
struct out_columns {
	alignas(16) int32_t add[N], zero[N], factor[N], round[N], more[N];
};

/*
 * Computes the terms of column n into columns[at]; false if the fast path does not support it: near
 * the edge if 16 does not divide n, unless any_strides.
 */
template <int N>
HZ_DEVICE bool prepare_column(const hzi_qgemm_out &o, int n, out_columns<N> &columns, int at,
			      bool any_strides = false)
{
	const int32_t offset = o.c_dtype == HZ_S8 ? 128 : 0;
	int32_t zero, bias, times;
	bool fits = true;
	hzi_multiplier m;

	if (n >= o.n) {
		fits = any_strides || o.n % 16 == 0;
		n = o.n - 1;
	}
	zero = b_zero_of(o, n);
	bias = o.bias_dtype == HZ_S32 ? ((const int32_t *)o.bias)[n] : 0;
	fits &= bias <= o.bias_max && bias >= -o.bias_max;
	times = (int32_t)((uint32_t)o.k * (uint32_t)zero - (uint32_t)o.b_sums[n]);
	columns.add[at] = (int32_t)((uint32_t)bias + (uint32_t)o.a_zero * (uint32_t)times);
	columns.zero[at] = -zero;
	if (o.fast_path == HZI_EPILOGUE_VALUES) {
		columns.factor[at] = __float_as_int(
			o.b_scales ? o.b_scales[(int64_t)n * o.b_scale_step] : o.b_scale);
		/* -0 is the neutral element of addition. */
		columns.round[at] =
			o.bias_dtype == HZ_F32 ? ((const int32_t *)o.bias)[n] : INT32_MIN;
		columns.more[at] = times;
		return fits;
	}
	m = multiplier_of(o, n, false);
	if (m.u == 0)
		m.shift = 33;
	columns.factor[at] = m.u;
	columns.round[at] = (int32_t)((1u << ((m.shift - 33) & 31)) +
				      ((uint32_t)(o.c_zero + offset) << ((m.shift - 32) & 31)));
	columns.more[at] = (m.shift - 32) & 31;
	/* |mulhi| < 2^30, and the rounding term is below 2^30 + 2^21. */
	return fits && m.shift >= 33 && m.shift <= 53;
}

/* Calls f with the compile-time parameters UNIFORM and BOUNDED of store_codes(). */
template <typename F>
HZ_DEVICE void dispatch_codes(const hzi_qgemm_out &o, F f)
{
	if (uniform_columns(o))
		o.bounded ? f(std_int<1>(), std_int<1>()) : f(std_int<1>(), std_int<0>());
	else
		o.bounded ? f(std_int<0>(), std_int<1>()) : f(std_int<0>(), std_int<0>());
}

/* Two rows of C from some column on, and the columns left in each; 0 beyond m */
struct out_rows {
	uint8_t *c[2];
	int left[2];
};

HZ_DEVICE out_rows output_rows(const hzi_qgemm_out &o, int r, int n, int bytes = 1)
{
	uint8_t *c = (uint8_t *)o.c + (r * o.c_m + n) * bytes;

	return {{c, c + 8 * o.c_m * bytes}, {r < o.m ? o.n - n : 0, r + 8 < o.m ? o.n - n : 0}};
}

/*
 * Requantizes and stores W columns, 8 or 16, of two rows. columns[first]: their terms; at: their
 * position in the rows. UNIFORM: all terms but add[] are those of column 0.
 */
template <bool UNIFORM, bool BOUNDED, int W, int N>
HZ_DEVICE void store_codes(const hzi_qgemm_out &o, const int32_t (&raw)[2][W],
			   const out_columns<N> &columns, int first, int at,
			   const int32_t (&row_sum)[2], const out_rows &dst)
{
	const int32_t offset = o.c_dtype == HZ_S8 ? 128 : 0;
	const uint32_t flip = offset ? 0x80808080 : 0;
	const int32_t u = columns.factor[0], round = columns.round[0], shift = columns.more[0];
	int32_t zeros[2];
	uint32_t w[2][W / 4];

	/* Keeps the product in a register, so that each sum of three terms is one instruction. */
#pragma unroll
	for (int h = 0; h < 2; h++) {
		zeros[h] = columns.zero[0] * row_sum[h];
		asm("" : "+r"(zeros[h]));
	}
#pragma unroll
	for (int i = 0; i < W; i += 4) {
		const int4 add = *(const int4 *)&columns.add[first + i];
		int4 zero = {}, factor = {}, rounds = {}, shifts = {};
		int32_t y[2][4];

		if (!UNIFORM) {
			zero = *(const int4 *)&columns.zero[first + i];
			factor = *(const int4 *)&columns.factor[first + i];
			rounds = *(const int4 *)&columns.round[first + i];
			shifts = *(const int4 *)&columns.more[first + i];
		}
#pragma unroll
		for (int e = 0; e < 8; e++) {
			const int h = e / 4, j = e % 4;
			const int32_t v = raw[h][i + j] + element(add, j) +
					  (UNIFORM ? zeros[h] : element(zero, j) * row_sum[h]);

			y[h][j] = multiply_high_add(v, UNIFORM ? u : element(factor, j),
						    UNIFORM ? round : element(rounds, j)) >>
				  (UNIFORM ? shift : element(shifts, j));
			if (BOUNDED)
				y[h][j] = max(o.min + offset, min(o.max + offset, y[h][j]));
		}
#pragma unroll
		for (int h = 0; h < 2; h++)
			w[h][i / 4] = pack_u8(y[h]) ^ flip;
	}
#pragma unroll
	for (int h = 0; h < 2; h++) {
		if (at >= dst.left[h])
			continue;
		if constexpr (W == 16)
			*(uint4 *)(dst.c[h] + at) = make_uint4(w[h][0], w[h][1], w[h][2], w[h][3]);
		else
			*(uint2 *)(dst.c[h] + at) = make_uint2(w[h][0], w[h][1]);
	}
}

/* ---- Fast path of floats and s32 ------------------------------------------------------------- */

/*
 * Position of column n of 64 in a staged row: 16-byte vectors are permuted so that eight adjacent
 * threads access all banks.
 */
HZ_DEVICE int stage_column(int n)
{
	return n ^ (n >> 2 & 8);
}

/* Terms of a row of A: its sum, zero point and scale */
struct out_row {
	int32_t sum, zero;
	float scale;
};

/* The zero point and scale of row r */
HZ_DEVICE out_row general_row(const hzi_qgemm_out &o, int r)
{
	out_row row = {0, o.a_zero, o.a_scale};

	if (r >= o.m)
		return row;
	if (o.a_zeros) {
		const uint8_t code = o.a_zeros[o.zero_row + (int64_t)r * o.zero_step];

		row.zero = o.a_signed ? (int8_t)code : code;
	}
	if (o.a_scales)
		row.scale = o.a_scales[o.scale_row + (int64_t)r * o.scale_step];
	return row;
}

/* The same for the fast path, where a common zero point is part of the column terms */
HZ_DEVICE out_row fast_row(const hzi_qgemm_out &o, int r)
{
	out_row row = {0, 0, o.a_scale};

	if (o.fast_path == HZI_EPILOGUE_VALUES)
		row = general_row(o, r);
	if (!o.a_zeros)
		row.zero = 0;
	return row;
}

/* Two floats, given by their bits, packed to a 16-bit dtype */
HZ_DEVICE int32_t to_pair(int dtype, int32_t low, int32_t high)
{
	const float l = __int_as_float(low), h = __int_as_float(high);

	return (int32_t)(dtype == HZ_F16 ? to_f16x2(l, h) : to_bf16x2(l, h));
}

/* The terms of four columns */
struct four_columns {
	int4 add, zero, factor, round, more;
};

template <int N>
HZ_DEVICE four_columns load_four(const out_columns<N> &columns, int at)
{
	return {*(const int4 *)&columns.add[at], *(const int4 *)&columns.zero[at],
		*(const int4 *)&columns.factor[at], *(const int4 *)&columns.round[at],
		*(const int4 *)&columns.more[at]};
}

/* Four codes of a row, from accumulators */
HZ_DEVICE uint32_t requantize_four(const hzi_qgemm_out &o, const int4 &raw, const four_columns &c,
				   int32_t row_sum)
{
	const int32_t offset = o.c_dtype == HZ_S8 ? 128 : 0;
	int32_t y[4];

#pragma unroll
	for (int j = 0; j < 4; j++) {
		const int32_t v = element(raw, j) + element(c.add, j) +
				  element(c.zero, j) * row_sum;

		y[j] = multiply_high_add(v, element(c.factor, j), element(c.round, j)) >>
		       element(c.more, j);
		y[j] = max(o.min + offset, min(o.max + offset, y[j]));
	}
	return pack_u8(y) ^ (offset ? 0x80808080 : 0);
}

/*
 * Stores columns n to n + 3 of row r, from accumulators. ANY_STRIDES: C may have any strides and
 * alignment.
 */
template <bool ANY_STRIDES = false>
HZ_DEVICE void store_four(const hzi_qgemm_out &o, const int4 &raw, const out_row &row,
			  const four_columns &c, int r, int n)
{
	const int64_t dst = r * o.c_m + n;
	int32_t v[4];

	if (r >= o.m || n >= o.n)
		return;
#pragma unroll
	for (int i = 0; i < 4; i++)
		v[i] = element(raw, i) + element(c.add, i) + element(c.zero, i) * row.sum +
		       element(c.more, i) * row.zero;
	if (o.c_dtype == HZ_S32) {
#pragma unroll
		for (int i = 0; i < 4; i++)
			v[i] = max(o.min, min(o.max, v[i]));
		if (ANY_STRIDES) {
#pragma unroll
			for (int i = 0; i < 4; i++) {
				if (n + i < o.n)
					((int32_t *)o.c)[r * o.c_m + (n + i) * o.c_n] = v[i];
			}
			return;
		}
		*(int4 *)((int32_t *)o.c + dst) = make_int4(v[0], v[1], v[2], v[3]);
		return;
	}
#pragma unroll
	for (int i = 0; i < 4; i++) {
		float t = __fmul_rn(__int2float_rn(v[i]), __int_as_float(element(c.factor, i)));

		t = __fmul_rn(t, row.scale);
		v[i] = __float_as_int(__fadd_rn(t, __int_as_float(element(c.round, i))));
	}
#pragma unroll
	for (int i = 0; o.bounded && i < 4; i++) {
		const float t = __int_as_float(v[i]);

		v[i] = __float_as_int(t < o.fmin ? o.fmin : t > o.fmax ? o.fmax : t);
	}
	if (ANY_STRIDES) {
#pragma unroll
		for (int i = 0; i < 4; i++) {
			if (n + i < o.n)
				store_any(o.c_dtype, o.c, r * o.c_m + (n + i) * o.c_n,
					  __int_as_float(v[i]));
		}
	} else if (o.c_dtype == HZ_F32)
		*(int4 *)((int32_t *)o.c + dst) = make_int4(v[0], v[1], v[2], v[3]);
	else
		*(int2 *)((uint16_t *)o.c + dst) = make_int2(to_pair(o.c_dtype, v[0], v[1]),
							     to_pair(o.c_dtype, v[2], v[3]));
}

/*
 * Stages the 16 accumulators of a thread in the 8 x 64 tile of the warp in shared memory; or 8
 * accumulators, from index `part` of the 16 on.
 */
template <typename T, int W>
HZ_DEVICE void stage_row(T *stage, const T (&v)[W], const out_row &of, int part = 0)
{
	const int g = threadIdx.x % 32 >> 2, q = threadIdx.x & 3;
	T *row = stage + g * HZI_QGEMM_STAGE_PITCH;

#pragma unroll
	for (int j = 0; j < W; j += 4) {
		struct alignas(16) vector {
			T v[4];
		};
		const int at = stage_column(16 * q + part + j);

		*(vector *)(row + at) = {v[j], v[j + 1], v[j + 2], v[j + 3]};
	}
	if (q == 0) {
		row[HZI_QGEMM_N_GROUP] = of.sum;
		row[HZI_QGEMM_N_GROUP + 1] = of.zero;
		row[HZI_QGEMM_N_GROUP + 2] = __float_as_int(of.scale);
	}
}

/*
 * A warp stores its 8 staged rows, from r0 on, by 64 columns from n0 on; columns: the terms of the
 * lane
 */
HZ_DEVICE void store_rows(const hzi_qgemm_out &o, const int32_t *stage,
			  const four_columns &columns, int r0, int n0)
{
	const int at = threadIdx.x % 16 * 4;

	__syncwarp();
#pragma unroll
	for (int i = 0; i < 8; i += 2) {
		const int r = i + threadIdx.x % 32 / 16;
		const int32_t *row = stage + r * HZI_QGEMM_STAGE_PITCH;
		const int4 of = *(const int4 *)(row + HZI_QGEMM_N_GROUP);

		store_four(o, *(const int4 *)(row + stage_column(at)),
			   {of.x, of.y, __int_as_float(of.z)}, columns, r0 + r, n0 + at);
	}
	__syncwarp();
}

/* ---- Fast path of floats and s32, from registers --------------------------------------------- */

/*
 * The place of 16-byte piece c of a row in a tile of 2 KiB in shared memory, whose rows are 64
 * values: groups of eight lanes read or write all banks.
 */
template <int BYTES>
HZ_DEVICE int piece_at(int row, int c)
{
	return BYTES == 2 ? row * 8 + (c ^ (row & 7)) : row * 16 + (c ^ (c >> 2 & 2) ^ (row & 1));
}

/*
 * The part of C that a lane stores of a tile: 16 bytes of each `rows_apart`-th row; left: rows and
 * columns from its first on
 */
template <int BYTES>
struct tile_part {
	static constexpr int pieces = 4 * BYTES, rows = 128 / pieces, rows_apart = 32 / pieces;
	char *c;
	int rows_left, columns_left;

	__device__ __forceinline__ tile_part(const hzi_qgemm_out &o, int r0, int n)
	{
		const int r = r0 + threadIdx.x % 32 / pieces;

		n += threadIdx.x % pieces * (16 / BYTES);
		c = (char *)o.c + (r * o.c_m + n) * BYTES;
		rows_left = o.m - r;
		columns_left = o.n - n;
	}
};

/* A warp stores its tile of 2 KiB to C, from `column` of `part` on. */
template <int BYTES>
HZ_DEVICE void store_tile(const hzi_qgemm_out &o, const uint4 *tile, const tile_part<BYTES> &part,
			  int r0, int column)
{
	constexpr int apart = tile_part<BYTES>::rows_apart;
	const int first = threadIdx.x % 32 / tile_part<BYTES>::pieces;
	char *to = part.c + column * BYTES + r0 * o.c_m * BYTES;

	__syncwarp();
#pragma unroll
	for (int i = 0; i < tile_part<BYTES>::rows; i += apart) {
		if (r0 + i < part.rows_left && column < part.columns_left)
			*(uint4 *)to = tile[piece_at<BYTES>(
				first + i, threadIdx.x % tile_part<BYTES>::pieces)];
		to += apart * BYTES * o.c_m;
	}
	__syncwarp();
}

/* Calls f with the compile-time parameter DTYPE of store_values(). */
template <typename F>
HZ_DEVICE void dispatch_values(const hzi_qgemm_out &o, F f)
{
	if (o.c_dtype == HZ_BF16)
		f(std_int<HZ_BF16>());
	else if (o.c_dtype == HZ_F16)
		f(std_int<HZ_F16>());
	else
		f(std_int<HZ_F32>());
}

/*
 * Stores the W columns, 8 or 16, that a thread holds of rows r and r + 8. DTYPE: HZ_F32 stands for
 * s32, too. columns[first]: terms of the columns; at: the position of the first among the 64 that
 * begin at column `from` of part. 16 columns go through 2 KiB of shared memory of the warp, so that
 * it stores whole lines.
 */
template <int DTYPE, int W, int N, typename PART>
HZ_DEVICE void store_values(const hzi_qgemm_out &o, const int32_t (&raw)[2][W],
			    const out_columns<N> &columns, int first, int at,
			    const out_row (&of)[2], const PART &part, int from, uint4 *tile)
{
	constexpr int bytes = DTYPE == HZ_F32 ? 4 : 2;
	const bool is_s32 = DTYPE == HZ_F32 && o.c_dtype == HZ_S32;
	const int g = threadIdx.x % 32 / 4;
	int32_t zeros[2], v[2][W];
	auto each = [&](bool wanted, const int32_t *terms, auto f) {
#pragma unroll
		for (int i = 0; wanted && i < W; i += 4) {
			const int4 term = *(const int4 *)&terms[first + i];

#pragma unroll
			for (int e = 0; e < 8; e++)
				v[e / 4][i + e % 4] = f(v[e / 4][i + e % 4], e / 4,
							element(term, e % 4));
		}
	};

#pragma unroll
	for (int h = 0; h < 2; h++) {
		zeros[h] = o.b_zeros ? 0 : columns.zero[0] * of[h].sum;
		asm("" : "+r"(zeros[h]));
#pragma unroll
		for (int i = 0; i < W; i++)
			v[h][i] = raw[h][i];
	}
	each(true, columns.add, [&](int32_t x, int h, int32_t add) { return x + add + zeros[h]; });
	each(o.b_zeros, columns.zero,
	     [&](int32_t x, int h, int32_t zero) { return x + zero * of[h].sum; });
	each(o.a_zeros, columns.more,
	     [&](int32_t x, int h, int32_t more) { return x + more * of[h].zero; });
	each(!is_s32, columns.factor, [&](int32_t x, int h, int32_t factor) {
		return __float_as_int(__fmul_rn(
			__fmul_rn(__int2float_rn(x), __int_as_float(factor)), of[h].scale));
	});
	each(o.bias_dtype == HZ_F32, columns.round, [&](int32_t x, int, int32_t bias) {
		return __float_as_int(__fadd_rn(__int_as_float(x), __int_as_float(bias)));
	});
#pragma unroll
	for (int e = 0; (is_s32 || o.bounded) && e < 2 * W; e++) {
		int32_t &value = v[e / W][e % W];
		float t = __int_as_float(value);

		t = t < o.fmin ? o.fmin : t;
		t = t > o.fmax ? o.fmax : t;
		value = is_s32 ? max(o.min, min(o.max, value)) : __float_as_int(t);
	}
#pragma unroll
	for (int h = 0; h < 2; h++) {
#pragma unroll
		for (int i = 0; i < W; i += 16 / bytes) {
			uint4 w;

			if (bytes == 2)
				w = make_uint4(to_pair(DTYPE, v[h][i], v[h][i + 1]),
					       to_pair(DTYPE, v[h][i + 2], v[h][i + 3]),
					       to_pair(DTYPE, v[h][i + 4], v[h][i + 5]),
					       to_pair(DTYPE, v[h][i + 6], v[h][i + 7]));
			else
				w = make_uint4(v[h][i], v[h][i + 1], v[h][i + 2], v[h][i + 3]);
			if constexpr (W == 16)
				tile[piece_at<bytes>(bytes == 2 ? g + 8 * h : g,
						     (at + i) * bytes / 16)] = w;
			else if (at < part.left[h])
				*(uint4 *)(part.c[h] + (at + i) * bytes) = w;
		}
		if constexpr (W == 16) {
			if (bytes == 4 || h == 1)
				store_tile<bytes>(o, tile, part, bytes == 4 ? 8 * h : 0, from);
		}
	}
}

/* ---- General epilogue ------------------------------------------------------------------------ */

struct out_column {
	int32_t zero, sum, bias;
	float float_bias, scale;
	hzi_multiplier m;
};

HZ_DEVICE out_column general_column(const hzi_qgemm_out &o, int n)
{
	out_column c = {};

	if (n >= o.n)
		return c;
	c.zero = b_zero_of(o, n);
	c.sum = o.b_sums[n];
	if (o.bias_dtype == HZ_S32)
		c.bias = ((const int32_t *)o.bias)[n];
	else if (o.bias_dtype == HZ_F32)
		c.float_bias = ((const float *)o.bias)[n];
	c.scale = o.b_scales ? o.b_scales[(int64_t)n * o.b_scale_step] : o.b_scale;
	if (o.c_dtype != HZ_U8 && o.c_dtype != HZ_S8 && o.c_dtype != HZ_S32)
		return c;
	if (o.requant == HZ_REQUANT_FLOAT || o.requant == HZ_REQUANT_LITERT_REF)
		c.m = hzi_requant_words(o.requant, {o.u, o.shift}, o.b_scales != nullptr, o.a_scale,
					c.scale, o.c_scale, c.float_bias);
	else
		c.m = multiplier_of(o, n, o.c_dtype == HZ_S32);
	return c;
}

HZ_DEVICE int64_t clamp64(int64_t x, int64_t low, int64_t high)
{
	return x < low ? low : x > high ? high : x;
}

/*
 * Stores one element from its accumulator, which is exact modulo 2^32 (int32_t) or exact (int64_t),
 * and the terms of row r.
 */
template <typename T>
HZ_DEVICE void general_put_row(const hzi_qgemm_out &o, const out_column &c, T raw,
			       const out_row &of, int r, int n)
{
	const int64_t at = r * o.c_m + n * o.c_n;
	int32_t acc;
	int64_t sum;

	if (r >= o.m || n >= o.n)
		return;
	if (sizeof(T) == 4)
		sum = (int32_t)((uint32_t)raw - (uint32_t)c.zero * (uint32_t)of.sum +
				(uint32_t)of.zero *
					((uint32_t)o.k * (uint32_t)c.zero - (uint32_t)c.sum));
	else
		sum = raw - (int64_t)c.zero * of.sum +
		      (int64_t)of.zero * ((int64_t)o.k * c.zero - c.sum);
	acc = (int32_t)clamp64(sum + c.bias, INT32_MIN, INT32_MAX);
	if (o.c_dtype == HZ_U8 || o.c_dtype == HZ_S8 || o.c_dtype == HZ_S32) {
		const int64_t y = o.identity ? acc :
				  hzi_requant(o.requant, acc, c.m.u, c.m.shift);
		const int32_t code = (int32_t)clamp64(y, o.min - (int64_t)o.c_zero,
						      o.max - (int64_t)o.c_zero) + o.c_zero;

		if (o.c_dtype == HZ_S32)
			((int32_t *)o.c)[at] = code;
		else
			((uint8_t *)o.c)[at] = (uint8_t)code;
	} else {
		float t = __fmul_rn(__int2float_rn(acc), c.scale);

		t = __fmul_rn(t, of.scale);
		if (o.bias_dtype == HZ_F32)
			t = __fadd_rn(t, c.float_bias);
		t = t < o.fmin ? o.fmin : t > o.fmax ? o.fmax : t;
		store_any(o.c_dtype, o.c, at, t);
	}
}

template <typename T>
HZ_DEVICE void general_put(const hzi_qgemm_out &o, const out_column &c, T raw, int32_t row_sum,
			   int r, int n)
{
	out_row of = general_row(o, r);

	of.sum = row_sum;
	general_put_row(o, c, raw, of, r, n);
}

/* The columns, out of 64, that a warp stores: all, or 8 of each 16 */
struct column_subset {
	int mask, part;

	__device__ __forceinline__ bool has(int n) const
	{
		return (n & mask) == part;
	}
};

/* A warp stores its 8 staged rows, from r0 on, by 64 columns from n0 on. */
template <typename T>
HZ_DEVICE void general_rows(const hzi_qgemm_out &o, const T *stage, int r0, int n0,
			    const column_subset &part = {})
{
	const int lane = threadIdx.x % 32;

	__syncwarp();
#pragma unroll 1
	for (int e = 0; e < HZI_QGEMM_N_GROUP; e += 32) {
		const out_column c = general_column(o, n0 + e + lane);

#pragma unroll 1
		for (int i = 0; i < 8; i++) {
			const T *row = stage + i * HZI_QGEMM_STAGE_PITCH;

			if (part.has(e + lane))
				general_put(o, c, row[stage_column(e + lane)],
					    (int32_t)row[HZI_QGEMM_N_GROUP], r0 + i, n0 + e + lane);
		}
	}
	__syncwarp();
}

#endif
