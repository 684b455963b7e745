/*
 * qgemm.cuh - from sums of products to C
 *
 * SPDX-License-Identifier: BSD-2-Clause
 *
 * A thread of a matrix product holds, of 64 columns, 16 successive ones of rows r and r + 8.
 * quick_*() make 8-bit codes of them in 3.5 instructions each and store 16 at once. For all else a
 * warp puts sums into shared memory and takes them out again by rows, a column a lane.
 */
#ifndef HZI_GPU_QGEMM_CUH
#define HZI_GPU_QGEMM_CUH

#include "gpu/common.cuh"
#include "gpu/qgemm.h"
#include "lib/requant.h"

/* ---- Small things ---------------------------------------------------------------------------- */

/* Adds the four codes of a. */
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

/* Four numbers, each clamped to 0 .. 255. */
HZ_DEVICE uint32_t pack_u8(const int32_t (&v)[4])
{
	uint32_t high, all;

	asm("cvt.pack.sat.u8.s32.b32 %0, %1, %2, %3;" : "=r"(high) : "r"(v[3]), "r"(v[2]), "r"(0));
	asm("cvt.pack.sat.u8.s32.b32 %0, %1, %2, %3;"
	    : "=r"(all)
	    : "r"(v[1]), "r"(v[0]), "r"(high));
	return all;
}

HZ_DEVICE uint4 load_shared(uint32_t address)
{
	uint4 v;

	asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
		     : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "r"(address) : "memory");
	return v;
}

/* The column of line i of a matrix product's lines. */
HZ_DEVICE int column_of_line(int i)
{
	return (i & ~63) + 16 * (i >> 1 & 3) + 2 * (i >> 3 & 7) + (i & 1);
}

/* ---- The quick way --------------------------------------------------------------------------- */

HZ_DEVICE hzi_multiplier multiplier_of(const hzi_qgemm_out &o, int n, bool wide)
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
						 o.c_scale), wide, !o.tflite);
	}
	return m;
}

/* A zero of B, as it is stored. */
HZ_DEVICE int32_t b_zero_of(const hzi_qgemm_out &o, int n)
{
	return o.b_zeros ? o.b_zeros[n] ^ (o.b_signed ? 0x80 : 0) : o.b_zero;
}

/* Whether all columns have one multiplier and one zero: then .x of a column is all that counts. */
HZ_DEVICE bool quick_uniform(const hzi_qgemm_out &o)
{
	return !o.multipliers && !o.b_scales && !o.b_zeros;
}

/*
 * What the quick way needs of a column: what to add to the raw sum, u, what rounds and adds c_zero,
 * shift - 32 and in the upper bits B's zero. False if it cannot be done so.
 */
HZ_DEVICE bool quick_column(const hzi_qgemm_out &o, int n, int4 &column)
{
	const int32_t offset = o.c_dtype == HZ_S8 ? 128 : 0;
	int32_t zero, bias;
	hzi_multiplier m;

	column = make_int4(0, 0, 0, 0);
	if (n >= o.n) {
		if (!quick_uniform(o))
			return true;
		n = o.n - 1;
	}
	zero = b_zero_of(o, n);
	bias = o.bias_dtype == HZ_S32 ? ((const int32_t *)o.bias)[n] : 0;
	m = multiplier_of(o, n, false);
	if (m.u == 0)
		m.shift = 33;
	column.x = (int32_t)((uint32_t)bias + (uint32_t)o.a_zero * ((uint32_t)o.k * (uint32_t)zero -
								   (uint32_t)o.b_sums[n]));
	column.y = m.u;
	column.z = (int32_t)((1u << ((m.shift - 33) & 31)) +
			     ((uint32_t)(o.c_zero + offset) << ((m.shift - 32) & 31)));
	column.w = ((m.shift - 32) & 31) | zero << 8;
	/* |mulhi| < 2^30, and column.z < 2^30 + 2^21. */
	return m.shift >= 33 && m.shift <= 53 && bias <= o.bias_max && bias >= -o.bias_max;
}

/* Four codes of one row, from raw sums. UNIFORM: with the rest of same. */
template <bool UNIFORM>
HZ_DEVICE uint32_t quick_codes(const hzi_qgemm_out &o, const int32_t (&raw)[4],
			       const int4 (&column)[4], const int4 &same, int32_t row_sum)
{
	const int32_t offset = o.c_dtype == HZ_S8 ? 128 : 0;
	int32_t y[4];

#pragma unroll
	for (int i = 0; i < 4; i++) {
		const int4 &c = UNIFORM ? same : column[i];
		const int32_t v = raw[i] + column[i].x - (c.w >> 8) * row_sum;

		y[i] = multiply_high_add(v, c.y, c.z) >> (c.w & 31);
	}
	if (o.bounded) {
#pragma unroll
		for (int i = 0; i < 4; i++)
			y[i] = max(o.min + offset, min(o.max + offset, y[i]));
	}
	return pack_u8(y) ^ (offset ? 0x80808080 : 0);
}

/*
 * COUNT columns, 8 or 16, from n on of rows r and r + 8. columns: what is known of them; adds: the
 * .x of these, one after the other.
 */
template <bool UNIFORM, int COUNT>
HZ_DEVICE void quick_put(const hzi_qgemm_out &o, const int32_t (&v)[2][COUNT], const int4 *columns,
			 const int32_t *adds, const int32_t (&row_sum)[2], int r, int n)
{
	const int4 same = columns[0];
	uint32_t w[2][COUNT / 4];

#pragma unroll
	for (int i = 0; i < COUNT / 4; i++) {
		int4 column[4];

		if (UNIFORM) {
			const int4 x = *(const int4 *)(adds + 4 * i);

			column[0].x = x.x;
			column[1].x = x.y;
			column[2].x = x.z;
			column[3].x = x.w;
		} else {
#pragma unroll
			for (int j = 0; j < 4; j++)
				column[j] = columns[4 * i + j];
		}
#pragma unroll
		for (int h = 0; h < 2; h++) {
			const int32_t raw[4] = {v[h][4 * i], v[h][4 * i + 1], v[h][4 * i + 2],
						v[h][4 * i + 3]};

			w[h][i] = quick_codes<UNIFORM>(o, raw, column, same, row_sum[h]);
		}
	}
#pragma unroll
	for (int h = 0; h < 2; h++) {
		uint8_t *c = (uint8_t *)o.c + (r + 8 * h) * o.c_m + n;

		if (r + 8 * h >= o.m)
			continue;
		if (n + COUNT <= o.n) {
			if (COUNT == 16)
				*(uint4 *)c = make_uint4(w[h][0], w[h][1], w[h][COUNT / 4 - 2],
							 w[h][COUNT / 4 - 1]);
			else
				*(uint2 *)c = make_uint2(w[h][0], w[h][1]);
			continue;
		}
#pragma unroll 1
		for (int i = 0; n + i < o.n; i++) {
			const uint32_t word = i < 4 ? w[h][0] : i < 8 ? w[h][1]
					      : i < 12 ? w[h][COUNT / 4 - 2] : w[h][COUNT / 4 - 1];

			c[i] = (uint8_t)(word >> 8 * (i % 4));
		}
	}
}

/* ---- The general way ------------------------------------------------------------------------- */

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
	c.m = multiplier_of(o, n, o.c_dtype == HZ_S32);
	return c;
}

HZ_DEVICE int64_t clamp64(int64_t x, int64_t low, int64_t high)
{
	return x < low ? low : x > high ? high : x;
}

/* Stores one element from its raw sum, which is exact modulo 2^32 (int32_t) or exact (int64_t). */
template <typename T>
HZ_DEVICE void general_put(const hzi_qgemm_out &o, const out_column &c, T raw, int32_t row_sum,
			   int r, int n)
{
	const int64_t at = r * o.c_m + n * o.c_n;
	int32_t a_zero = o.a_zero, acc;
	int64_t sum;

	if (r >= o.m || n >= o.n)
		return;
	if (o.a_zeros) {
		const uint8_t code = o.a_zeros[o.zero_row + (int64_t)r * o.zero_step];

		a_zero = o.a_signed ? (int8_t)code : code;
	}
	if (sizeof(T) == 4)
		sum = (int32_t)((uint32_t)raw - (uint32_t)c.zero * (uint32_t)row_sum +
				(uint32_t)a_zero *
					((uint32_t)o.k * (uint32_t)c.zero - (uint32_t)c.sum));
	else
		sum = raw - (int64_t)c.zero * row_sum +
		      (int64_t)a_zero * ((int64_t)o.k * c.zero - c.sum);
	acc = (int32_t)clamp64(sum + c.bias, INT32_MIN, INT32_MAX);
	if (o.c_dtype == HZ_U8 || o.c_dtype == HZ_S8 || o.c_dtype == HZ_S32) {
		const int64_t y = o.identity ? acc
					     : o.tflite ? hzi_requant_tflite(acc, c.m.u, c.m.shift)
							: hzi_requant(acc, c.m.u, c.m.shift);
		const int32_t code = (int32_t)clamp64(y, o.min - (int64_t)o.c_zero,
						      o.max - (int64_t)o.c_zero) + o.c_zero;

		if (o.c_dtype == HZ_S32)
			((int32_t *)o.c)[at] = code;
		else
			((uint8_t *)o.c)[at] = (uint8_t)code;
	} else {
		float t = __fmul_rn(__int2float_rn(acc), c.scale);

		t = __fmul_rn(t, o.a_scales ? o.a_scales[o.scale_row + (int64_t)r * o.scale_step]
					    : o.a_scale);
		if (o.bias_dtype == HZ_F32)
			t = __fadd_rn(t, c.float_bias);
		t = t < o.fmin ? o.fmin : t > o.fmax ? o.fmax : t;
		store_any(o.c_dtype, o.c, at, t);
	}
}

/*
 * A warp stores 8 rows from r0 on by 64 columns from n0 on: stage holds the raw sums,
 * HZI_QSTAGE_WORDS words a row, and behind 64 of them the sum of A's row.
 */
template <typename T>
HZ_DEVICE void general_rows(const hzi_qgemm_out &o, const T *stage, int r0, int n0)
{
	const int lane = threadIdx.x % 32;

	__syncwarp();
#pragma unroll 1
	for (int e = 0; e < HZI_QN_GROUP; e += 32) {
		const out_column c = general_column(o, n0 + e + lane);

#pragma unroll 1
		for (int i = 0; i < 8; i++) {
			const T *row = stage + i * HZI_QSTAGE_WORDS;

			general_put(o, c, row[e + lane], (int32_t)row[HZI_QN_GROUP], r0 + i,
				    n0 + e + lane);
		}
	}
	__syncwarp();
}

/* Puts a thread's 16 sums of a row where general_rows() finds them. */
template <typename T>
HZ_DEVICE void general_stage(T *stage, const T (&v)[16], int32_t row_sum)
{
	const int g = threadIdx.x % 32 >> 2, q = threadIdx.x & 3;
	T *row = stage + g * HZI_QSTAGE_WORDS;

#pragma unroll
	for (int i = 0; i < 16; i++)
		row[16 * q + i] = v[i];
	if (q == 0)
		row[HZI_QN_GROUP] = row_sum;
}

#endif
