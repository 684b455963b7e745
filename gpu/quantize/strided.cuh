/*
 * strided.cuh - floats of any strides to codes, and back
 *
 * SPDX-License-Identifier: BSD-2-Clause
 *
 * A block has a tile, of which a thread has elements or pieces that are some rows apart: it finds
 * its first by division, all others by steps, and asks for all before it uses any.
 */
#ifndef HZI_GPU_QUANTIZE_STRIDED_CUH
#define HZI_GPU_QUANTIZE_STRIDED_CUH

#include "gpu/quantize/prologue.cuh"
#include "gpu/quantize/quantize.h"

/* ---- Codes and parameters in memory ---------------------------------------------------------- */

/* Codes with an offset that makes them u8; zero has it too. */
HZ_DEVICE float decode(uint32_t code, float scale, float base)
{
	return __fmul_rn(scale, __fsub_rn(__uint_as_float(0x4b000000 | code), base));
}

HZ_DEVICE int32_t read_zero(const uint8_t *zeros, int64_t p, bool is_signed)
{
	return is_signed ? (int8_t)zeros[p] : zeros[p];
}

template <int DTYPE>
HZ_DEVICE void put_codes(void *y, int64_t i, const uint4 &v, const divisor &d)
{
	const uint2 codes = encode_piece<DTYPE>(v, d);

	if (DTYPE == HZ_F32)
		__stcs((uint32_t *)y + i, codes.x);
	else
		__stcs((uint2 *)y + i, codes);
}

/* Of a number below 2^31. */
HZ_DEVICE uint32_t quotient(uint32_t x, const hzi_quotient &q)
{
	return (__umulhi(x, q.magic) + x) >> q.shift;
}

/* The parameter of a piece. */
HZ_DEVICE int64_t parameter_of(const hzi_quantize_contiguous &p, int64_t piece)
{
	const uint32_t row = quotient((uint32_t)piece, p.row);
	const uint32_t at = (uint32_t)piece - row * p.row.divisor;

	return row * p.row_step + quotient(at, p.group);
}

/* ---- Tiles ----------------------------------------------------------------------------------- */

/* The first element of a thread, and the parameter of the tile's outer indices. */
struct tile_place {
	int64_t x, q, p;
	int32_t i, j;
};

/* V, C, TALL: elements next to each other, columns of these and rows that a thread has */
template <int V, int C, int TALL>
HZ_DEVICE tile_place place_tile(const hzi_quantize_strided &a)
{
	const uint32_t rest = quotient(blockIdx.x, a.tiles_i);
	uint32_t outer = quotient(rest, a.tiles_j);
	tile_place at = {};

	at.i = (int32_t)(blockIdx.x - rest * a.tiles_i.divisor) * (C * V << a.log_i) +
	       (int32_t)(threadIdx.x & ((1 << a.log_i) - 1)) * V;
	at.j = (int32_t)(rest - outer * a.tiles_j.divisor) * (TALL * HZI_BLOCK_THREADS >> a.log_i) +
	       (int32_t)(threadIdx.x >> a.log_i);
	at.x = at.i * a.x_i + at.j * a.x_j;
	at.q = at.i * a.q_i + at.j * a.q_j;
	for (int d = a.ndim - 1; d >= 0; d--) {
		const uint32_t up = quotient(outer, a.shape[d]);
		const int64_t index = outer - up * a.shape[d].divisor;

		at.x += index * a.x_stride[d];
		at.q += index * a.q_stride[d];
		at.p += index * a.p_stride[d];
		outer = up;
	}
	return at;
}

/* Elements of row j. */
HZ_DEVICE int tile_row(const hzi_quantize_strided &a, int j)
{
	return j >= a.size_j ? 0 : j == a.size_j - 1 ? a.last_i : a.size_i;
}

/* Something of the element in column c and row s of a thread's. */
struct tile_element {
	int c, s;
	int i, j;
	int64_t x, q;
	bool inside;
};

/* Calls f with each element or piece that a thread has, by columns or by rows. */
template <int V, int C, int TALL, bool COLUMNS, typename F>
HZ_DEVICE void each_of_tile(const hzi_quantize_strided &p, const tile_place &at, F f)
{
	const int down = HZI_BLOCK_THREADS >> p.log_i, across = V << p.log_i;
	const int64_t x_down = down * p.x_j, x_across = across * p.x_i;
	const int64_t q_down = down * p.q_j, q_across = across * p.q_i;

#pragma unroll
	for (int n = 0; n < C * TALL; n++) {
		const int c = COLUMNS ? n / TALL : n % C, s = COLUMNS ? n % TALL : n / C;
		const int i = at.i + c * across, j = at.j + s * down;

		f(tile_element{c, s, i, j, at.x + s * x_down + c * x_across,
			       at.q + s * q_down + c * q_across, i < tile_row(p, j)});
	}
}

/* A scale and the zero that belongs to it. */
struct parameter {
	float scale;
	int32_t zero;
};

/* Those of element (i, j); of one outside the tensor, those of one in it. */
HZ_DEVICE parameter parameter_of(const hzi_quantize_strided &a, const tile_place &at, int i, int j)
{
	if (!a.scales)
		return {a.scale, a.zero};
	j = min(j, a.size_j - 1);
	i = min(i, tile_row(a, j) - 1);

	const int64_t n = at.p + quotient((uint32_t)i, a.group_i) * a.p_i +
			  quotient((uint32_t)j, a.group_j) * a.p_j;

	return {a.scales[n], a.zeros ? read_zero(a.zeros, n, a.is_signed) : 0};
}

HZ_DEVICE divisor divisor_of(const hzi_quantize_strided &a, const tile_place &at, int i, int j)
{
	const parameter of = parameter_of(a, at, i, j);

	return make_divisor(of.scale, of.zero, a.is_signed);
}

/* Whether an element may have another parameter than the one before. */
template <int C, bool COLUMNS>
HZ_DEVICE bool other_parameter(const hzi_quantize_strided &p, const tile_element &e)
{
	if (COLUMNS)
		return e.s == 0 ? e.c == 0 || p.p_i || p.p_j : p.p_j;
	return e.c == 0 ? e.s == 0 || p.p_j || (C > 1 && p.p_i) : p.p_i;
}

/* A float as it lies in memory, so that nothing has to wait for it yet. */
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

/* The piece that begins with an element. */
template <int DTYPE>
HZ_DEVICE uint4 *float_piece(void *x, int64_t at)
{
	return (uint4 *)((raw_float<DTYPE> *)x + at);
}

/* ---- Floats to codes ------------------------------------------------------------------------- */

template <int DTYPE, int C, int TALL, bool COLUMNS>
HZ_DEVICE void quantize_tile(const hzi_quantize_strided &p)
{
	const tile_place at = place_tile<1, C, TALL>(p);
	raw_float<DTYPE> v[C * TALL];
	divisor d = {};

	each_of_tile<1, C, TALL, COLUMNS>(p, at, [&](const tile_element &e) {
		v[e.c * TALL + e.s].bits = 0;
		if (e.inside)
			v[e.c * TALL + e.s] = ((const raw_float<DTYPE> *)p.x)[e.x];
	});
	each_of_tile<1, C, TALL, COLUMNS>(p, at, [&](const tile_element &e) {
		uint32_t code;

		if (other_parameter<C, COLUMNS>(p, e))
			d = divisor_of(p, at, e.i, e.j);
		code = encode_quick(d, v[e.c * TALL + e.s].value());
		if (e.inside)
			((uint8_t *)p.q)[e.q] = (uint8_t)code;
	});
}

template <int DTYPE, int TALL>
HZ_DEVICE void quantize_pieces(const hzi_quantize_strided &p)
{
	constexpr int V = piece<DTYPE>::count;
	const tile_place at = place_tile<V, 1, TALL>(p);
	uint4 v[TALL];
	divisor d = {};

	each_of_tile<V, 1, TALL, true>(p, at, [&](const tile_element &e) {
		if (e.inside)
			v[e.s] = *float_piece<DTYPE>(p.x, e.x);
	});
	each_of_tile<V, 1, TALL, true>(p, at, [&](const tile_element &e) {
		if (!e.inside)
			return;
		if (e.s == 0 || p.p_j)
			d = divisor_of(p, at, e.i, e.j);
		put_codes<DTYPE>((uint8_t *)p.q + e.q, 0, v[e.s], d);
	});
}

/* Puts a code where byte i of a word is. */
HZ_DEVICE uint32_t put_byte(uint32_t word, int i, uint32_t code)
{
	return __byte_perm(word, code,
			   i == 0 ? 0x3214 : i == 1 ? 0x3240 : i == 2 ? 0x3410 : 0x4210);
}

/* Each element of a piece has a parameter of its own. */
template <int DTYPE, int TALL>
HZ_DEVICE void quantize_each(const hzi_quantize_strided &p)
{
	constexpr int V = piece<DTYPE>::count;
	const tile_place at = place_tile<V, 1, TALL>(p);
	uint4 v[TALL];
	uint32_t w[TALL][2] = {};

	each_of_tile<V, 1, TALL, true>(p, at, [&](const tile_element &e) {
		v[e.s] = make_uint4(0, 0, 0, 0);
		if (e.inside)
			v[e.s] = *float_piece<DTYPE>(p.x, e.x);
	});
#pragma unroll
	for (int n = 0; n < V; n++) {
		divisor d = divisor_of(p, at, at.i + n, at.j);
		float finite = d.quick && !p.p_j ? 0.0f : NAN;

#pragma unroll
		for (int s = 0; s < TALL; s++) {
			float f[8];

			unpack<DTYPE>(f, v[s]);

			const float q = __fmul_rn(f[n], d.inverse);

			finite = __fmaf_rn(q, 0.0f, finite);
			w[s][n / 4] = put_byte(w[s][n / 4], n % 4,
					       code_of(d, __fmaf_rn(__fmaf_rn(-q, d.scale, f[n]),
								    d.inverse, q)));
		}
		if (!isnan(finite))
			continue;
#pragma unroll
		for (int s = 0; s < TALL; s++) {
			float f[8];

			unpack<DTYPE>(f, v[s]);
			if (p.p_j)
				d = divisor_of(p, at, at.i + n,
					       at.j + s * (HZI_BLOCK_THREADS >> p.log_i));
			w[s][n / 4] = put_byte(w[s][n / 4], n % 4, encode_quick(d, f[n]));
		}
	}
	each_of_tile<V, 1, TALL, true>(p, at, [&](const tile_element &e) {
		uint8_t *to = (uint8_t *)p.q + e.q;

		if (!e.inside)
			return;
		if (V == 4)
			*(uint32_t *)to = w[e.s][0];
		else
			*(uint2 *)to = make_uint2(w[e.s][0], w[e.s][1]);
	});
}

/* ---- Tiles that are turned ------------------------------------------------------------------- */

/* Codes of a tile, each line those along j; a line more than whole words: no banks meet. */
struct turned_codes {
	uint8_t line[HZI_TILE_I][HZI_TILE_J + 4];
};

/* Calls f(line, j) for the bytes of a tile that the thread moves, all lines of a warp being next to
 * each other in memory; with words for each four. */
template <typename F>
HZ_DEVICE void each_of_lines(const hzi_quantize_strided &p, const tile_place &at, F f)
{
	const int step = p.words ? 4 : 1;
	const int i0 = threadIdx.x % HZI_TILE_I, j0 = threadIdx.x / HZI_TILE_I;
	const int i = at.i - i0, j1 = at.j - j0;
	const int64_t q = at.q - i0 * p.q_i - j0 * p.q_j;

#pragma unroll 1
	for (int n = threadIdx.x; n < HZI_TILE_I * HZI_TILE_J / step; n += HZI_BLOCK_THREADS) {
		const int line = n * step / HZI_TILE_J, j = n * step % HZI_TILE_J;

		if (i + line < p.size_i && j1 + j < p.size_j)
			f(line, j, q + line * p.q_i + j * p.q_j);
	}
}

template <int DTYPE>
HZ_DEVICE void quantize_turned(const hzi_quantize_strided &p)
{
	constexpr int tall = HZI_TILE_I * HZI_TILE_J / HZI_BLOCK_THREADS;
	__shared__ turned_codes codes;
	const tile_place at = place_tile<1, 1, tall>(p);
	uint8_t *line = &codes.line[threadIdx.x % HZI_TILE_I][threadIdx.x / HZI_TILE_I];
	raw_float<DTYPE> v[tall];
	divisor d = {};

	each_of_tile<1, 1, tall, true>(p, at, [&](const tile_element &e) {
		v[e.s].bits = 0;
		if (e.inside)
			v[e.s] = ((const raw_float<DTYPE> *)p.x)[e.x];
	});
	each_of_tile<1, 1, tall, true>(p, at, [&](const tile_element &e) {
		if (e.s == 0 || p.p_j)
			d = divisor_of(p, at, e.i, e.j);
		line[e.s * (HZI_BLOCK_THREADS / HZI_TILE_I)] =
			(uint8_t)encode_quick(d, v[e.s].value());
	});
	__syncthreads();
	each_of_lines(p, at, [&](int line, int j, int64_t to) {
		if (p.words)
			*(uint32_t *)((uint8_t *)p.q + to) =
				*(const uint32_t *)&codes.line[line][j];
		else
			((uint8_t *)p.q)[to] = codes.line[line][j];
	});
}

template <int DTYPE>
HZ_DEVICE void quantize_strided(const hzi_quantize_strided &p)
{
	constexpr int down = HZI_TILE_DOWN * (DTYPE == HZ_F32 ? 1 : 2);

	switch (p.kind) {
	case HZI_TILE_PIECES:
		quantize_pieces<DTYPE, down>(p);
		return;
	case HZI_TILE_PIECES_EACH:
		quantize_each<DTYPE, down>(p);
		return;
	case HZI_TILE_ROWS:
		quantize_tile<DTYPE, HZI_TILE_ACROSS, HZI_TILE_DOWN, false>(p);
		return;
	case HZI_TILE_COLUMNS:
		quantize_tile<DTYPE, HZI_TILE_ACROSS, HZI_TILE_DOWN, true>(p);
		return;
	default:
		quantize_turned<DTYPE>(p);
	}
}

/* ---- Codes to floats ------------------------------------------------------------------------- */

/* What decodes codes of one parameter. */
struct decoder {
	float scale, base;
};

HZ_DEVICE decoder decoder_of(const hzi_quantize_strided &p, const tile_place &at, int i, int j)
{
	const parameter of = parameter_of(p, at, i, j);

	return {of.scale, 8388608.0f + (p.is_signed ? 128 : 0) + of.zero};
}

template <int DTYPE, int C, int TALL, bool COLUMNS>
HZ_DEVICE void dequantize_tile(const hzi_quantize_strided &p)
{
	const tile_place at = place_tile<1, C, TALL>(p);
	const uint32_t flip = p.is_signed ? 0x80 : 0;
	uint8_t v[C * TALL];
	decoder d = {};

	each_of_tile<1, C, TALL, COLUMNS>(p, at, [&](const tile_element &e) {
		if (e.inside)
			v[e.c * TALL + e.s] = ((const uint8_t *)p.q)[e.q];
	});
	each_of_tile<1, C, TALL, COLUMNS>(p, at, [&](const tile_element &e) {
		if (other_parameter<C, COLUMNS>(p, e))
			d = decoder_of(p, at, e.i, e.j);
		if (e.inside)
			store_any(DTYPE, p.x, e.x,
				  decode(v[e.c * TALL + e.s] ^ flip, d.scale, d.base));
	});
}

/* each: elements of a piece have parameters of their own. */
template <int DTYPE, int TALL>
HZ_DEVICE void dequantize_pieces(const hzi_quantize_strided &p, bool each)
{
	constexpr int V = piece<DTYPE>::count;
	const tile_place at = place_tile<V, 1, TALL>(p);
	const uint32_t flip = p.is_signed ? 0x80808080 : 0;
	uint32_t v[TALL][2];
	decoder d[V];

	each_of_tile<V, 1, TALL, true>(p, at, [&](const tile_element &e) {
		const uint8_t *from = (const uint8_t *)p.q + e.q;

		if (!e.inside)
			return;
		if (V == 4) {
			v[e.s][0] = *(const uint32_t *)from;
		} else {
			const uint2 w = *(const uint2 *)from;

			v[e.s][0] = w.x;
			v[e.s][1] = w.y;
		}
	});
	each_of_tile<V, 1, TALL, true>(p, at, [&](const tile_element &e) {
		uint32_t w[4];
		float f[8];

		if (!e.inside)
			return;
		if (e.s == 0 || p.p_j) {
#pragma unroll
			for (int n = 0; n < V; n++)
				d[n] = n == 0 || each ? decoder_of(p, at, e.i + n, e.j) : d[0];
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
		*float_piece<DTYPE>(p.x, e.x) = make_uint4(w[0], w[1], w[2], w[3]);
	});
}

template <int DTYPE>
HZ_DEVICE void dequantize_turned(const hzi_quantize_strided &p)
{
	constexpr int tall = HZI_TILE_I * HZI_TILE_J / HZI_BLOCK_THREADS;
	__shared__ turned_codes codes;
	const tile_place at = place_tile<1, 1, tall>(p);
	const uint8_t *line = &codes.line[threadIdx.x % HZI_TILE_I][threadIdx.x / HZI_TILE_I];
	const uint32_t flip = p.is_signed ? 0x80 : 0;
	decoder d = {};

	each_of_lines(p, at, [&](int line, int j, int64_t from) {
		if (p.words)
			*(uint32_t *)&codes.line[line][j] =
				*(const uint32_t *)((const uint8_t *)p.q + from);
		else
			codes.line[line][j] = ((const uint8_t *)p.q)[from];
	});
	__syncthreads();
	each_of_tile<1, 1, tall, true>(p, at, [&](const tile_element &e) {
		if (e.s == 0 || p.p_j)
			d = decoder_of(p, at, e.i, e.j);
		if (e.inside)
			store_any(DTYPE, p.x, e.x,
				  decode(line[e.s * (HZI_BLOCK_THREADS / HZI_TILE_I)] ^ flip,
					 d.scale, d.base));
	});
}

template <int DTYPE>
HZ_DEVICE void dequantize_strided(const hzi_quantize_strided &p)
{
	constexpr int down = HZI_TILE_DOWN * (DTYPE == HZ_F32 ? 1 : 2);

	switch (p.kind) {
	case HZI_TILE_PIECES:
		dequantize_pieces<DTYPE, down>(p, false);
		return;
	case HZI_TILE_PIECES_EACH:
		dequantize_pieces<DTYPE, down>(p, true);
		return;
	case HZI_TILE_ROWS:
		dequantize_tile<DTYPE, HZI_TILE_ACROSS, HZI_TILE_DOWN, false>(p);
		return;
	case HZI_TILE_COLUMNS:
		dequantize_tile<DTYPE, HZI_TILE_ACROSS, HZI_TILE_DOWN, true>(p);
		return;
	default:
		dequantize_turned<DTYPE>(p);
	}
}

#endif
