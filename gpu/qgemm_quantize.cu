/*
 * qgemm_quantize.cu - floats to codes, back, and the ranges from which scales come
 *
 * SPDX-License-Identifier: BSD-2-Clause
 *
 * Flat kernels move 16 bytes of floats and their codes at a time. At the rate of memory there are
 * 23 instructions for an f16 element with its code; these take 12. Loads that ask for lines to be
 * evicted first (__ldcs()) would cost 3 to 9 %.
 */
#include "gpu/common.cuh"
#include "gpu/grid.cuh"
#include "gpu/qgemm_codes.cuh"
#include "gpu/qgemm_quantize.h"
#include "lib/qgemm.h"

/* ---- Small things ---------------------------------------------------------------------------- */

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
HZ_DEVICE int64_t parameter_of(const hzi_quantize_flat &p, int64_t piece)
{
	const uint32_t row = quotient((uint32_t)piece, p.row);
	const uint32_t at = (uint32_t)piece - row * p.row.divisor;

	return row * p.row_step + quotient(at, p.group);
}

/* ---- Quantization ---------------------------------------------------------------------------- */

template <int DTYPE>
HZ_DEVICE void quantize_flat(const hzi_quantize_flat &p)
{
	constexpr int pieces = HZI_FLAT_PIECES(DTYPE);
	const int64_t first = (int64_t)blockIdx.x * (HZI_FLAT_THREADS * pieces) + threadIdx.x;
	const int32_t zero = p.zeros ? read_zero(p.zeros, 0, p.is_signed) : p.zero;
	const divisor all = make_divisor(p.scales ? p.scales[0] : p.scale, zero, p.is_signed);
	uint4 v[pieces];

#pragma unroll
	for (int j = 0; j < pieces; j++) {
		const int64_t i = first + j * HZI_FLAT_THREADS;

		if (i < p.pieces)
			v[j] = ((const uint4 *)p.x)[i];
	}
#pragma unroll
	for (int j = 0; j < pieces; j++) {
		const int64_t i = first + j * HZI_FLAT_THREADS;

		if (i >= p.pieces)
			break;
		if (p.row.divisor == 0) {
			put_codes<DTYPE>(p.y, i, v[j], all);
		} else {
			const int64_t n = parameter_of(p, i);

			put_codes<DTYPE>(
				p.y, i, v[j],
				make_divisor(p.scales[n],
					     p.zeros ? read_zero(p.zeros, n, p.is_signed) : 0,
					     p.is_signed));
		}
	}
	/* What makes no whole piece has the parameters of all. */
	const int64_t rest = p.pieces * piece<DTYPE>::count + threadIdx.x;

	if (blockIdx.x == 0 && rest < p.elements)
		((uint8_t *)p.y)[rest] = (uint8_t)encode(all, load_any(DTYPE, p.x, rest));
}

/* Where an element lies, and which parameter it has. */
struct place {
	int64_t x, y, p;
};

HZ_DEVICE place place_of(const hzi_quantize_any &a, int64_t e)
{
	const int64_t i = e % a.n;
	place at = {i * a.x_step, i * a.y_step, i / a.group};

	e /= a.n;
	for (int d = a.ndim - 1; d >= 0; d--) {
		const int64_t j = e % a.shape[d];

		e /= a.shape[d];
		at.x += j * a.x_stride[d];
		at.y += j * a.y_stride[d];
		at.p += j * a.p_stride[d];
	}
	return at;
}

extern "C" __global__ __launch_bounds__(HZI_FLAT_THREADS) void
quantize_any(const __grid_constant__ hzi_quantize_any p)
{
	const int64_t step = (int64_t)gridDim.x * HZI_FLAT_THREADS;

	for (int64_t e = (int64_t)blockIdx.x * HZI_FLAT_THREADS + threadIdx.x; e < p.total;
	     e += step) {
		const place at = place_of(p, e);
		const int32_t zero = p.zeros ? read_zero(p.zeros, at.p, p.is_signed)
					     : p.scales ? 0 : p.zero;

		((uint8_t *)p.y)[at.y] =
			(uint8_t)encode(make_divisor(p.scales ? p.scales[at.p] : p.scale, zero,
						     p.is_signed),
					load_any(p.dtype, p.x, at.x));
	}
}

/* ---- Dequantization -------------------------------------------------------------------------- */

template <int DTYPE>
HZ_DEVICE void decode_piece(void *y, int64_t i, const uint32_t (&codes)[2], float scale, float base)
{
	uint32_t w[4];
	float f[8];

#pragma unroll
	for (int j = 0; j < piece<DTYPE>::count; j++)
		f[j] = decode(__byte_perm(codes[j / 4], 0, 0x4440 + j % 4), scale, base);
#pragma unroll
	for (int j = 0; j < 4; j++)
		w[j] = DTYPE == HZ_F32 ? __float_as_uint(f[j])
		       : DTYPE == HZ_F16 ? to_f16x2(f[2 * j], f[2 * j + 1])
					 : to_bf16x2(f[2 * j], f[2 * j + 1]);
	__stcs((uint4 *)y + i, make_uint4(w[0], w[1], w[2], w[3]));
}

template <int DTYPE>
HZ_DEVICE void dequantize_flat(const hzi_quantize_flat &p)
{
	/* Those of a warp lie next to each other. */
	const int64_t first =
		((int64_t)blockIdx.x * (HZI_FLAT_THREADS / 32) + threadIdx.x / 32) *
			(32 * HZI_BACK_PIECES) +
		threadIdx.x % 32;
	const uint32_t flip = p.is_signed ? 0x80808080 : 0;
	const float offset = 8388608.0f + (p.is_signed ? 128 : 0);
	const int32_t zero = p.zeros ? read_zero(p.zeros, 0, p.is_signed) : p.zero;
	const float scale = p.scales ? p.scales[0] : p.scale;
	uint32_t v[HZI_BACK_PIECES][2];

#pragma unroll
	for (int j = 0; j < HZI_BACK_PIECES; j++) {
		const int64_t i = first + j * 32;

		if (i >= p.pieces)
			break;
		if (DTYPE == HZ_F32) {
			v[j][0] = ((const uint32_t *)p.x)[i] ^ flip;
		} else {
			const uint2 w = ((const uint2 *)p.x)[i];

			v[j][0] = w.x ^ flip;
			v[j][1] = w.y ^ flip;
		}
	}
#pragma unroll
	for (int j = 0; j < HZI_BACK_PIECES; j++) {
		const int64_t i = first + j * 32;

		if (i >= p.pieces)
			break;
		if (p.row.divisor == 0) {
			decode_piece<DTYPE>(p.y, i, v[j], scale, offset + zero);
		} else {
			const int64_t n = parameter_of(p, i);

			decode_piece<DTYPE>(
				p.y, i, v[j], p.scales[n],
				offset + (p.zeros ? read_zero(p.zeros, n, p.is_signed) : 0));
		}
	}

	const int64_t rest = p.pieces * piece<DTYPE>::count + threadIdx.x;

	if (blockIdx.x == 0 && rest < p.elements)
		store_any(
			DTYPE, p.y, rest,
			decode(((const uint8_t *)p.x)[rest] ^ (flip & 0xff), scale, offset + zero));
}

extern "C" __global__ __launch_bounds__(HZI_FLAT_THREADS) void
dequantize_any(const __grid_constant__ hzi_quantize_any p)
{
	const int64_t step = (int64_t)gridDim.x * HZI_FLAT_THREADS;
	const float offset = 8388608.0f + (p.is_signed ? 128 : 0);

	for (int64_t e = (int64_t)blockIdx.x * HZI_FLAT_THREADS + threadIdx.x; e < p.total;
	     e += step) {
		const place at = place_of(p, e);
		const int32_t zero = p.zeros ? read_zero(p.zeros, at.p, p.is_signed)
					     : p.scales ? 0 : p.zero;
		const uint32_t code = ((const uint8_t *)p.x)[at.x] ^ (p.is_signed ? 0x80 : 0);

		store_any(p.dtype, p.y, at.y,
			  decode(code, p.scales ? p.scales[at.p] : p.scale, offset + zero));
	}
}

/* ---- Ranges ---------------------------------------------------------------------------------- */

/* That of a block of 256 threads, in all of them. */
HZ_DEVICE range join_block(range r)
{
	__shared__ range part[8];

	r = join_warp(r);
	if (threadIdx.x % 32 == 0)
		part[threadIdx.x / 32] = r;
	__syncthreads();
	return join_warp(part[threadIdx.x % 8]);
}

/* Numbers from 0 up are in the order of their bits. */
HZ_DEVICE void put_range(uint32_t *ranges, int64_t p, const range &r)
{
	if (r.below > 0)
		atomicMax(&ranges[2 * p], __float_as_uint(r.below));
	if (r.above > 0)
		atomicMax(&ranges[2 * p + 1], __float_as_uint(r.above));
}

/* A share of a segment is one warp's, or one block's if it is long. */
template <int DTYPE>
HZ_DEVICE void range_flat(const hzi_range_flat &p)
{
	const int threads = p.wide ? HZI_FLAT_THREADS : 32, thread = threadIdx.x % threads;
	const int64_t worker = ((int64_t)blockIdx.x * HZI_FLAT_THREADS + threadIdx.x) / threads;
	const int64_t segment = worker / p.shares, begin = worker % p.shares * p.share;
	const int64_t end = segment < p.segments ? min(p.pieces, begin + p.share) : 0;
	const uint4 *x = (const uint4 *)p.x + segment * p.pieces;
	range r = {0, 0};
	float f[8];

	for (int64_t i = begin + thread; i < end; i += threads * HZI_RANGE_PIECES) {
		uint4 v[HZI_RANGE_PIECES];

#pragma unroll
		for (int j = 0; j < HZI_RANGE_PIECES; j++)
			v[j] = i + j * threads < end ? __ldcs(x + i + j * threads)
						     : make_uint4(0, 0, 0, 0);
#pragma unroll
		for (int j = 0; j < HZI_RANGE_PIECES; j++) {
			unpack<DTYPE>(f, v[j]);
#pragma unroll
			for (int e = 0; e < piece<DTYPE>::count; e++)
				widen(r, f[e]);
		}
	}
	r = p.wide ? join_block(r) : join_warp(r);
	if (thread == 0 && segment < p.segments)
		put_range(p.range, segment / p.row_segments * p.row_step + segment % p.row_segments,
			  r);
}

/* y is the ranges. Lanes with one parameter join. */
extern "C" __global__ __launch_bounds__(HZI_FLAT_THREADS) void
range_any(const __grid_constant__ hzi_quantize_any p)
{
	const int64_t step = (int64_t)gridDim.x * HZI_FLAT_THREADS;
	const int64_t rounds = (p.total + step - 1) / step;
	int64_t last = -1;
	range r = {0, 0};

	for (int64_t j = 0; j < rounds; j++) {
		const int64_t e = j * step + (int64_t)blockIdx.x * HZI_FLAT_THREADS + threadIdx.x;

		if (e >= p.total)
			break;
		const place at = place_of(p, e);

		if (at.p != last && last >= 0) {
			put_range((uint32_t *)p.y, last, r);
			r = {0, 0};
		}
		last = at.p;
		widen(r, load_any(p.dtype, p.x, at.x));
	}

	int same = 0;

	__match_all_sync(~0u, (unsigned long long)last, &same);
	if (same)
		r = join_warp(r);
	if (last >= 0 && (!same || threadIdx.x % 32 == 0))
		put_range((uint32_t *)p.y, last, r);
}

extern "C" __global__ __launch_bounds__(HZI_FLAT_THREADS) void
range_params(const __grid_constant__ hzi_range_params p)
{
	const int64_t i = (int64_t)blockIdx.x * HZI_FLAT_THREADS + threadIdx.x;
	int32_t zero;

	if (i >= p.count)
		return;
	hzi_qparams(-__uint_as_float(p.range[2 * i]), __uint_as_float(p.range[2 * i + 1]),
		    p.q_dtype, p.symmetric, &p.scale[i], &zero);
	((uint8_t *)p.zero)[i] = (uint8_t)zero;
}

/* ---- Rows for qlinear ------------------------------------------------------------------------ */

/* A block does one row: its range, then its codes. */
template <int DTYPE>
HZ_DEVICE void quantize_rows(const hzi_quantize_rows &p)
{
	constexpr int count = piece<DTYPE>::count;
	const int64_t row = blockIdx.x;
	int64_t at = 0, rest = row;
	float scale = p.scale;
	int32_t zero = p.zero;

	for (int d = p.ndim - 1; d >= 0; d--) {
		at += rest % p.shape[d] * p.x_stride[d];
		rest /= p.shape[d];
	}
	grid_next();
	grid_wait();

	const char *x = (const char *)p.x + at * (DTYPE == HZ_F32 ? 4 : 2);
	const int64_t pieces = p.x_k == 1 && (uintptr_t)x % 16 == 0 ? p.k / count : 0;
	uint8_t *y = p.y + row * p.y_row;

	if (p.scales) {
		range r = {0, 0};
		float f[8];

#pragma unroll 4
		for (int64_t i = threadIdx.x; i < pieces; i += HZI_ROWS_THREADS) {
			unpack<DTYPE>(f, ((const uint4 *)x)[i]);
#pragma unroll
			for (int e = 0; e < count; e++)
				widen(r, f[e]);
		}
		for (int64_t i = pieces * count + threadIdx.x; i < p.k; i += HZI_ROWS_THREADS)
			widen(r, load_any(DTYPE, x, i * p.x_k));
		r = join_block(r);
		hzi_qparams(-r.below, r.above, p.q_dtype, p.symmetric, &scale, &zero);
		if (threadIdx.x == 0) {
			p.scales[row] = scale;
			p.zeros[row] = (uint8_t)zero;
		}
	}

	const divisor d = make_divisor(scale, zero, p.q_dtype == HZ_S8);

#pragma unroll 4
	for (int64_t i = threadIdx.x; i < pieces; i += HZI_ROWS_THREADS)
		put_codes<DTYPE>(y, i, ((const uint4 *)x)[i], d);
	for (int64_t i = pieces * count + threadIdx.x; i < p.y_row; i += HZI_ROWS_THREADS)
		y[i] = i < p.k ? (uint8_t)encode(d, load_any(DTYPE, x, i * p.x_k)) : 0;
}

#define KERNEL(name, dtype, struct_name) \
	extern "C" __global__ __launch_bounds__(HZI_FLAT_THREADS) void \
	name##_##dtype(const __grid_constant__ struct_name p)
#define BODY(function, DTYPE) { function<DTYPE>(p); }
KERNEL(quantize_flat, f32, hzi_quantize_flat) BODY(quantize_flat, HZ_F32)
KERNEL(quantize_flat, f16, hzi_quantize_flat) BODY(quantize_flat, HZ_F16)
KERNEL(quantize_flat, bf16, hzi_quantize_flat) BODY(quantize_flat, HZ_BF16)
KERNEL(dequantize_flat, f32, hzi_quantize_flat) BODY(dequantize_flat, HZ_F32)
KERNEL(dequantize_flat, f16, hzi_quantize_flat) BODY(dequantize_flat, HZ_F16)
KERNEL(dequantize_flat, bf16, hzi_quantize_flat) BODY(dequantize_flat, HZ_BF16)
KERNEL(range_flat, f32, hzi_range_flat) BODY(range_flat, HZ_F32)
KERNEL(range_flat, f16, hzi_range_flat) BODY(range_flat, HZ_F16)
KERNEL(range_flat, bf16, hzi_range_flat) BODY(range_flat, HZ_BF16)
KERNEL(quantize_rows, f32, hzi_quantize_rows) BODY(quantize_rows, HZ_F32)
KERNEL(quantize_rows, f16, hzi_quantize_rows) BODY(quantize_rows, HZ_F16)
KERNEL(quantize_rows, bf16, hzi_quantize_rows) BODY(quantize_rows, HZ_BF16)
