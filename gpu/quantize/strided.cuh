/*
 * strided.cuh - quantization and dequantization with any strides
 *
 * SPDX-License-Identifier: BSD-2-Clause
 *
 * A block has one tile. Each thread has elements or vectors that are some rows apart: it finds the
 * first by division and the others by adding strides, and issues all loads before it uses any
 * value.
 */
#ifndef HZI_GPU_QUANTIZE_STRIDED_CUH
#define HZI_GPU_QUANTIZE_STRIDED_CUH

#include "gpu/quantize/prologue.cuh"
#include "gpu/quantize/quantize.h"

/* ---- Codes and parameters in memory ---------------------------------------------------------- */

/* code is unsigned: s8 codes are offset by 128. base = 2^23 + zero point + that offset */
HZ_DEVICE float decode(uint32_t code, float scale, float base)
{
	return __fmul_rn(scale, __fsub_rn(__uint_as_float(0x4b000000 | code), base));
}

HZ_DEVICE int32_t read_zero(const uint8_t *zeros, int64_t p, bool is_signed)
{
	return is_signed ? (int8_t)zeros[p] : zeros[p];
}

template <int DTYPE>
HZ_DEVICE void store_code_vector(void *y, int64_t i, const uint4 &v, const divisor &d)
{
	const uint2 codes = encode_vector<DTYPE>(v, d);

	if (DTYPE == HZ_F32)
		__stcs((uint32_t *)y + i, codes.x);
	else
		__stcs((uint2 *)y + i, codes);
}

/* x / divisor, for x < 2^31 */
HZ_DEVICE uint32_t fastdiv(uint32_t x, const hzi_fastdiv &q)
{
	return (__umulhi(x, q.magic) + x) >> q.shift;
}

/* The parameter index of a vector */
HZ_DEVICE int64_t qparam_of(const hzi_quantize_contiguous &p, int64_t vector)
{
	const uint32_t row = fastdiv((uint32_t)vector, p.row);
	const uint32_t at = (uint32_t)vector - row * p.row.divisor;

	return row * p.row_step + fastdiv(at, p.group);
}

/* ---- Tiles ----------------------------------------------------------------------------------- */

/*
 * Offsets of the first element of a thread, its indices i and j, and the parameter index of the
 * outer dimensions
 */
struct tile_index {
	int64_t x, q, p;
	int32_t i, j;
};

/* V elements per vector; each thread has C columns of them by ROWS rows. */
template <int V, int C, int ROWS>
HZ_DEVICE tile_index find_tile(const hzi_quantize_strided &a)
{
	const uint32_t tile = fastdiv(blockIdx.x, a.tiles_i);
	uint32_t outer = fastdiv(tile, a.tiles_j);
	tile_index at = {};

	at.i = (int32_t)(blockIdx.x - tile * a.tiles_i.divisor) * (C * V << a.log_i) +
	       (int32_t)(threadIdx.x & ((1 << a.log_i) - 1)) * V;
	at.j = (int32_t)(tile - outer * a.tiles_j.divisor) * (ROWS * HZI_QUANT_THREADS >> a.log_i) +
	       (int32_t)(threadIdx.x >> a.log_i);
	at.x = at.i * a.x_i + at.j * a.x_j;
	at.q = at.i * a.q_i + at.j * a.q_j;
#pragma unroll 1
	for (int d = a.ndim - 1; d >= 0; d--) {
		const uint32_t up = fastdiv(outer, a.shape[d]);
		const int64_t index = outer - up * a.shape[d].divisor;

		at.x += index * a.x_stride[d];
		at.q += index * a.q_stride[d];
		at.p += index * a.p_stride[d];
		outer = up;
	}
	return at;
}

/* The number of elements in row j */
HZ_DEVICE int row_elements(const hzi_quantize_strided &a, int j)
{
	return j >= a.size_j ? 0 : j == a.size_j - 1 ? a.last_i : a.size_i;
}

/* Element or vector in column c and row s of those of a thread */
struct tile_element {
	int c, s;
	int i, j;
	int64_t x, q;
	bool inside;
};

/* Calls f for each element or vector of the thread, column by column or row by row. */
template <int V, int C, int ROWS, bool BY_COLUMNS, typename F>
HZ_DEVICE void for_each_in_tile(const hzi_quantize_strided &p, const tile_index &at, F f)
{
	const int down = HZI_QUANT_THREADS >> p.log_i, across = V << p.log_i;
	const int64_t x_down = down * p.x_j, x_across = across * p.x_i;
	const int64_t q_down = down * p.q_j, q_across = across * p.q_i;

#pragma unroll
	for (int n = 0; n < C * ROWS; n++) {
		const int c = BY_COLUMNS ? n / ROWS : n % C, s = BY_COLUMNS ? n % ROWS : n / C;
		const int i = at.i + c * across, j = at.j + s * down;

		f(tile_element{c, s, i, j, at.x + s * x_down + c * x_across,
			       at.q + s * q_down + c * q_across, i < row_elements(p, j)});
	}
}

/* A scale and its zero point */
struct qparam {
	float scale;
	int32_t zero;
};

/*
 * The parameters of element (i, j), of those from p on; indices outside the tensor are clamped.
 * Inlined: the loads of a thread's elements wait for each other at the return of a function.
 */
HZ_DEVICE qparam qparam_at(const hzi_quantize_strided &a, int64_t p, int i, int j)
{
	if (!a.scales)
		return {a.scale, a.zero};
	j = min(j, a.size_j - 1);
	i = min(i, row_elements(a, j) - 1);

	const int64_t n = p + fastdiv((uint32_t)i, a.group_i) * a.p_i +
			  fastdiv((uint32_t)j, a.group_j) * a.p_j;

	return {a.scales[n], a.zeros ? read_zero(a.zeros, n, a.is_signed) : 0};
}

HZ_DEVICE divisor divisor_of(const hzi_quantize_strided &a, const tile_index &at, int i, int j)
{
	const qparam of = qparam_at(a, at.p, i, j);

	return make_divisor(of.scale, of.zero, a.is_signed);
}

/* Whether the parameters may differ from those of the previous element */
template <int C, bool BY_COLUMNS>
HZ_DEVICE bool qparam_changes(const hzi_quantize_strided &p, const tile_element &e)
{
	if (BY_COLUMNS)
		return e.s == 0 ? e.c == 0 || p.p_i || p.p_j : p.p_j;
	return e.c == 0 ? e.s == 0 || p.p_j || (C > 1 && p.p_i) : p.p_i;
}

/* A float in its stored format, converted only when it is used */
template <int DTYPE>
struct raw_float {
	uint16_t bits;

	__device__ __forceinline__ float value(void) const
	{
		return DTYPE == HZ_F16 ? f16_low(bits) : bf16_low(bits);
	}
};

template <>
struct raw_float<HZ_F32> {
	float bits;

	__device__ __forceinline__ float value(void) const
	{
		return bits;
	}
};

/* The vector that begins at an element */
template <int DTYPE>
HZ_DEVICE uint4 *vector_at(void *x, int64_t at)
{
	return (uint4 *)((raw_float<DTYPE> *)x + at);
}

/* ---- Floats to codes ------------------------------------------------------------------------- */

template <int DTYPE, int C, int ROWS, bool BY_COLUMNS>
HZ_DEVICE void quantize_tile(const hzi_quantize_strided &p)
{
	const tile_index at = find_tile<1, C, ROWS>(p);
	raw_float<DTYPE> v[C * ROWS];
	divisor d = {};

	for_each_in_tile<1, C, ROWS, BY_COLUMNS>(p, at, [&](const tile_element &e) {
		v[e.c * ROWS + e.s].bits = 0;
		if (e.inside)
			v[e.c * ROWS + e.s] = ((const raw_float<DTYPE> *)p.x)[e.x];
	});
	for_each_in_tile<1, C, ROWS, BY_COLUMNS>(p, at, [&](const tile_element &e) {
		uint32_t code;

		if (qparam_changes<C, BY_COLUMNS>(p, e))
			d = divisor_of(p, at, e.i, e.j);
		code = encode_fast(d, v[e.c * ROWS + e.s].value());
		if (e.inside)
			((uint8_t *)p.q)[e.q] = (uint8_t)code;
	});
}

template <int DTYPE, int ROWS>
HZ_DEVICE void quantize_vectors(const hzi_quantize_strided &p)
{
	constexpr int V = vec16<DTYPE>::count;
	const tile_index at = find_tile<V, 1, ROWS>(p);
	uint4 v[ROWS];
	divisor d = {};

	for_each_in_tile<V, 1, ROWS, true>(p, at, [&](const tile_element &e) {
		if (e.inside)
			v[e.s] = *vector_at<DTYPE>(p.x, e.x);
	});
	for_each_in_tile<V, 1, ROWS, true>(p, at, [&](const tile_element &e) {
		if (!e.inside)
			return;
		if (e.s == 0 || p.p_j)
			d = divisor_of(p, at, e.i, e.j);
		store_code_vector<DTYPE>((uint8_t *)p.q + e.q, 0, v[e.s], d);
	});
}

/* Replaces byte i of a word. */
HZ_DEVICE uint32_t insert_byte(uint32_t word, int i, uint32_t code)
{
	return __byte_perm(word, code,
			   i == 0 ? 0x3214 : i == 1 ? 0x3240 : i == 2 ? 0x3410 : 0x4210);
}

/* Each element of a vector has its own parameter. */
template <int DTYPE, int ROWS>
HZ_DEVICE void quantize_vectors_per_element(const hzi_quantize_strided &p)
{
	constexpr int V = vec16<DTYPE>::count;
	const tile_index at = find_tile<V, 1, ROWS>(p);
	uint4 v[ROWS];
	uint32_t w[ROWS][2] = {};

	for_each_in_tile<V, 1, ROWS, true>(p, at, [&](const tile_element &e) {
		v[e.s] = make_uint4(0, 0, 0, 0);
		if (e.inside)
			v[e.s] = *vector_at<DTYPE>(p.x, e.x);
	});
#pragma unroll
	for (int n = 0; n < V; n++) {
		divisor d = divisor_of(p, at, at.i + n, at.j);
		float finite = d.fast && !p.p_j ? 0.0f : NAN;

#pragma unroll
		for (int s = 0; s < ROWS; s++) {
			float f[8];

			unpack<DTYPE>(f, v[s]);

			const float q = __fmul_rn(f[n], d.inverse);

			finite = __fmaf_rn(q, 0.0f, finite);
			w[s][n / 4] = insert_byte(w[s][n / 4], n % 4,
						  code_of(d, __fmaf_rn(__fmaf_rn(-q, d.scale, f[n]),
								       d.inverse, q)));
		}
		if (!isnan(finite))
			continue;
#pragma unroll
		for (int s = 0; s < ROWS; s++) {
			float f[8];

			unpack<DTYPE>(f, v[s]);
			if (p.p_j)
				d = divisor_of(p, at, at.i + n,
					       at.j + s * (HZI_QUANT_THREADS >> p.log_i));
			w[s][n / 4] = insert_byte(w[s][n / 4], n % 4, encode_fast(d, f[n]));
		}
	}
	for_each_in_tile<V, 1, ROWS, true>(p, at, [&](const tile_element &e) {
		uint8_t *dst = (uint8_t *)p.q + e.q;

		if (!e.inside)
			return;
		if (V == 4)
			*(uint32_t *)dst = w[e.s][0];
		else
			*(uint2 *)dst = make_uint2(w[e.s][0], w[e.s][1]);
	});
}

/* ---- Transposed tiles ------------------------------------------------------------------------ */

/* Codes of a tile, one row along j for each i. The padding of 4 bytes avoids bank conflicts. */
struct transposed_codes {
	uint8_t row[HZI_TILE_I][HZI_TILE_J + 4];
};

/*
 * Calls f(row, j, offset) for the codes that the thread moves, or for each word of 4 codes if
 * p.word_rows. The lanes of a warp access contiguous memory.
 */
template <typename F>
HZ_DEVICE void for_each_in_row(const hzi_quantize_strided &p, const tile_index &at, F f)
{
	const int step = p.word_rows ? 4 : 1;
	const int i0 = threadIdx.x % HZI_TILE_I, j0 = threadIdx.x / HZI_TILE_I;
	const int i = at.i - i0, j1 = at.j - j0;
	const int64_t q = at.q - i0 * p.q_i - j0 * p.q_j;

#pragma unroll 1
	for (int n = threadIdx.x; n < HZI_TILE_I * HZI_TILE_J / step; n += HZI_QUANT_THREADS) {
		const int row = n * step / HZI_TILE_J, j = n * step % HZI_TILE_J;

		if (i + row < p.size_i && j1 + j < p.size_j)
			f(row, j, q + row * p.q_i + j * p.q_j);
	}
}

template <int DTYPE>
HZ_DEVICE void quantize_transposed(const hzi_quantize_strided &p)
{
	constexpr int rows = HZI_TILE_I * HZI_TILE_J / HZI_QUANT_THREADS;
	__shared__ transposed_codes codes;
	const tile_index at = find_tile<1, 1, rows>(p);
	uint8_t *row = &codes.row[threadIdx.x % HZI_TILE_I][threadIdx.x / HZI_TILE_I];
	raw_float<DTYPE> v[rows];
	divisor d = {};

	for_each_in_tile<1, 1, rows, true>(p, at, [&](const tile_element &e) {
		v[e.s].bits = 0;
		if (e.inside)
			v[e.s] = ((const raw_float<DTYPE> *)p.x)[e.x];
	});
	for_each_in_tile<1, 1, rows, true>(p, at, [&](const tile_element &e) {
		if (e.s == 0 || p.p_j)
			d = divisor_of(p, at, e.i, e.j);
		row[e.s * (HZI_QUANT_THREADS / HZI_TILE_I)] =
			(uint8_t)encode_fast(d, v[e.s].value());
	});
	__syncthreads();
	for_each_in_row(p, at, [&](int row, int j, int64_t dst) {
		if (p.word_rows)
			*(uint32_t *)((uint8_t *)p.q + dst) =
				*(const uint32_t *)&codes.row[row][j];
		else
			((uint8_t *)p.q)[dst] = codes.row[row][j];
	});
}

template <int DTYPE>
HZ_DEVICE void quantize_strided(const hzi_quantize_strided &p)
{
	constexpr int down = HZI_TILE_DOWN * (DTYPE == HZ_F32 ? 1 : 2);

	switch (p.kind) {
	case HZI_TILE_VECTORS:
		quantize_vectors<DTYPE, down>(p);
		return;
	case HZI_TILE_VECTORS_PER_ELEMENT:
		quantize_vectors_per_element<DTYPE, down>(p);
		return;
	case HZI_TILE_ROWS:
		quantize_tile<DTYPE, HZI_TILE_ACROSS, HZI_TILE_DOWN, false>(p);
		return;
	case HZI_TILE_COLUMNS:
		quantize_tile<DTYPE, HZI_TILE_ACROSS, HZI_TILE_DOWN, true>(p);
		return;
	default:
		quantize_transposed<DTYPE>(p);
	}
}

/* ---- Codes to floats ------------------------------------------------------------------------- */

/* The constants of decode() for one parameter */
struct decoder {
	float scale, base;
};

HZ_DEVICE decoder decoder_of(const hzi_quantize_strided &p, const tile_index &at, int i, int j)
{
	const qparam of = qparam_at(p, at.p, i, j);

	return {of.scale, 8388608.0f + (p.is_signed ? 128 : 0) + of.zero};
}

template <int DTYPE, int C, int ROWS, bool BY_COLUMNS>
HZ_DEVICE void dequantize_tile(const hzi_quantize_strided &p)
{
	const tile_index at = find_tile<1, C, ROWS>(p);
	const uint32_t flip = p.is_signed ? 0x80 : 0;
	uint8_t v[C * ROWS];
	decoder d = {};

	for_each_in_tile<1, C, ROWS, BY_COLUMNS>(p, at, [&](const tile_element &e) {
		if (e.inside)
			v[e.c * ROWS + e.s] = ((const uint8_t *)p.q)[e.q];
	});
	for_each_in_tile<1, C, ROWS, BY_COLUMNS>(p, at, [&](const tile_element &e) {
		if (qparam_changes<C, BY_COLUMNS>(p, e))
			d = decoder_of(p, at, e.i, e.j);
		if (e.inside)
			store_any(DTYPE, p.x, e.x,
				  decode(v[e.c * ROWS + e.s] ^ flip, d.scale, d.base));
	});
}

/* per_element: each element of a vector has its own parameter. */
template <int DTYPE, int ROWS>
HZ_DEVICE void dequantize_vectors(const hzi_quantize_strided &p, bool per_element)
{
	constexpr int V = vec16<DTYPE>::count;
	const tile_index at = find_tile<V, 1, ROWS>(p);
	const uint32_t flip = p.is_signed ? 0x80808080 : 0;
	uint32_t v[ROWS][2];
	decoder d[V];

	for_each_in_tile<V, 1, ROWS, true>(p, at, [&](const tile_element &e) {
		const uint8_t *src = (const uint8_t *)p.q + e.q;

		if (!e.inside)
			return;
		if (V == 4) {
			v[e.s][0] = *(const uint32_t *)src;
		} else {
			const uint2 w = *(const uint2 *)src;

			v[e.s][0] = w.x;
			v[e.s][1] = w.y;
		}
	});
	for_each_in_tile<V, 1, ROWS, true>(p, at, [&](const tile_element &e) {
		uint32_t w[4];
		float f[8];

		if (!e.inside)
			return;
		if (e.s == 0 || p.p_j) {
#pragma unroll
			for (int n = 0; n < V; n++)
				d[n] = n && !per_element ? d[0] : decoder_of(p, at, e.i + n, e.j);
		}
#pragma unroll
		for (int n = 0; n < V; n++)
			f[n] = decode(__byte_perm(v[e.s][n / 4] ^ flip, 0, 0x4440 + n % 4),
				      d[n].scale, d[n].base);
#pragma unroll
		for (int n = 0; n < 4; n++)
			w[n] = DTYPE == HZ_F32 ? __float_as_uint(f[n])
			       : DTYPE == HZ_F16 ? to_f16x2(f[2 * n], f[2 * n + 1])
						 : to_bf16x2(f[2 * n], f[2 * n + 1]);
		*vector_at<DTYPE>(p.x, e.x) = make_uint4(w[0], w[1], w[2], w[3]);
	});
}

template <int DTYPE>
HZ_DEVICE void dequantize_transposed(const hzi_quantize_strided &p)
{
	constexpr int rows = HZI_TILE_I * HZI_TILE_J / HZI_QUANT_THREADS;
	__shared__ transposed_codes codes;
	const tile_index at = find_tile<1, 1, rows>(p);
	const uint8_t *row = &codes.row[threadIdx.x % HZI_TILE_I][threadIdx.x / HZI_TILE_I];
	const uint32_t flip = p.is_signed ? 0x80 : 0;
	decoder d = {};

	for_each_in_row(p, at, [&](int row, int j, int64_t src) {
		if (p.word_rows)
			*(uint32_t *)&codes.row[row][j] =
				*(const uint32_t *)((const uint8_t *)p.q + src);
		else
			codes.row[row][j] = ((const uint8_t *)p.q)[src];
	});
	__syncthreads();
	for_each_in_tile<1, 1, rows, true>(p, at, [&](const tile_element &e) {
		if (e.s == 0 || p.p_j)
			d = decoder_of(p, at, e.i, e.j);
		if (e.inside)
			store_any(DTYPE, p.x, e.x,
				  decode(row[e.s * (HZI_QUANT_THREADS / HZI_TILE_I)] ^ flip,
					 d.scale, d.base));
	});
}

template <int DTYPE>
HZ_DEVICE void dequantize_strided(const hzi_quantize_strided &p)
{
	constexpr int down = HZI_TILE_DOWN * (DTYPE == HZ_F32 ? 1 : 2);

	switch (p.kind) {
	case HZI_TILE_VECTORS:
		dequantize_vectors<DTYPE, down>(p, false);
		return;
	case HZI_TILE_VECTORS_PER_ELEMENT:
		dequantize_vectors<DTYPE, down>(p, true);
		return;
	case HZI_TILE_ROWS:
		dequantize_tile<DTYPE, HZI_TILE_ACROSS, HZI_TILE_DOWN, false>(p);
		return;
	case HZI_TILE_COLUMNS:
		dequantize_tile<DTYPE, HZI_TILE_ACROSS, HZI_TILE_DOWN, true>(p);
		return;
	default:
		dequantize_transposed<DTYPE>(p);
	}
}

#endif
