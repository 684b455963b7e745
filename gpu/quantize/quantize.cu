/*
 * quantize.cu - floats to codes, back, and the ranges from which scales come
 *
 * SPDX-License-Identifier: BSD-2-Clause
 *
 * Flat kernels move 16 bytes of floats and their codes at a time. At the rate of memory there are
 * 23 instructions for an f16 element with its code; these take 12. Loads that ask for lines to be
 * evicted first (__ldcs()) would cost 3 to 9 %.
 */
#include "gpu/device/pdl.cuh"
#include "gpu/quantize/minmax.cuh"
#include "gpu/quantize/strided.cuh"
#include "lib/qgemm/qgemm.h"

/* ---- Quantization ---------------------------------------------------------------------------- */

template <int DTYPE>
HZ_DEVICE void quantize_contiguous(const hzi_quantize_contiguous &p)
{
	constexpr int pieces = HZI_QUANTIZE_PIECES(DTYPE);
	const int64_t first = (int64_t)blockIdx.x * (HZI_BLOCK_THREADS * pieces) + threadIdx.x;
	const int32_t zero = p.zeros ? read_zero(p.zeros, 0, p.is_signed) : p.zero;
	const divisor all = make_divisor(p.scales ? p.scales[0] : p.scale, zero, p.is_signed);
	uint4 v[pieces];

#pragma unroll
	for (int j = 0; j < pieces; j++) {
		const int64_t i = first + j * HZI_BLOCK_THREADS;

		if (i < p.pieces)
			v[j] = ((const uint4 *)p.x)[i];
	}
#pragma unroll
	for (int j = 0; j < pieces; j++) {
		const int64_t i = first + j * HZI_BLOCK_THREADS;

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
HZ_DEVICE void dequantize_contiguous(const hzi_quantize_contiguous &p)
{
	/* Those of a warp lie next to each other. */
	const int64_t first =
		((int64_t)blockIdx.x * (HZI_BLOCK_THREADS / 32) + threadIdx.x / 32) *
			(32 * HZI_DEQUANTIZE_PIECES) +
		threadIdx.x % 32;
	const uint32_t flip = p.is_signed ? 0x80808080 : 0;
	const float offset = 8388608.0f + (p.is_signed ? 128 : 0);
	const int32_t zero = p.zeros ? read_zero(p.zeros, 0, p.is_signed) : p.zero;
	const float scale = p.scales ? p.scales[0] : p.scale;
	uint32_t v[HZI_DEQUANTIZE_PIECES][2];

#pragma unroll
	for (int j = 0; j < HZI_DEQUANTIZE_PIECES; j++) {
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
	for (int j = 0; j < HZI_DEQUANTIZE_PIECES; j++) {
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

/* ---- Parameters of ranges -------------------------------------------------------------------- */

extern "C" __global__ __launch_bounds__(HZI_BLOCK_THREADS) void
range_params(const __grid_constant__ hzi_range_params p)
{
	const int64_t i = (int64_t)blockIdx.x * HZI_BLOCK_THREADS + threadIdx.x;
	int32_t zero;

	if (i >= p.count)
		return;
	hzi_qparams(-__uint_as_float(p.range[2 * i]), __uint_as_float(p.range[2 * i + 1]),
		    p.q_dtype, p.symmetric, &p.scale[i], &zero);
	((uint8_t *)p.zero)[i] = (uint8_t)zero;
}

/* ---- 16 bits to f32 and back ----------------------------------------------------------------- */

template <int DTYPE>
HZ_DEVICE void widen_contiguous(const hzi_convert_contiguous &p)
{
	const int64_t i = (int64_t)blockIdx.x * HZI_BLOCK_THREADS + threadIdx.x;
	float f[8];

	if (i >= p.pieces)
		return;
	unpack<DTYPE>(f, ((const uint4 *)p.x)[i]);
	((float4 *)p.y)[2 * i] = make_float4(f[0], f[1], f[2], f[3]);
	((float4 *)p.y)[2 * i + 1] = make_float4(f[4], f[5], f[6], f[7]);
}

template <int DTYPE>
HZ_DEVICE void narrow_contiguous(const hzi_convert_contiguous &p)
{
	const int64_t i = (int64_t)blockIdx.x * HZI_BLOCK_THREADS + threadIdx.x;
	uint32_t w[4];

	if (i >= p.pieces)
		return;
#pragma unroll
	for (int j = 0; j < 2; j++) {
		const float4 f = ((const float4 *)p.x)[2 * i + j];

		w[2 * j] = DTYPE == HZ_F16 ? to_f16x2(f.x, f.y) : to_bf16x2(f.x, f.y);
		w[2 * j + 1] = DTYPE == HZ_F16 ? to_f16x2(f.z, f.w) : to_bf16x2(f.z, f.w);
	}
	((uint4 *)p.y)[i] = make_uint4(w[0], w[1], w[2], w[3]);
}

/* ---- Rows for qlinear ------------------------------------------------------------------------ */

/* A block or a warp does one row: its range, then its codes. */
template <int DTYPE>
HZ_DEVICE void quantize_rows(const hzi_quantize_rows &p)
{
	constexpr int count = piece<DTYPE>::count;
	const int threads = p.narrow ? 32 : HZI_ROWS_THREADS, thread = threadIdx.x % threads;
	const int64_t row = p.narrow ? (int64_t)blockIdx.x * (HZI_ROWS_THREADS / 32) +
					       threadIdx.x / 32
				     : blockIdx.x;
	int64_t at = 0, rest = row;
	float scale = p.scale;
	int32_t zero = p.zero;

	for (int d = p.ndim - 1; d >= 0; d--) {
		at += rest % p.shape[d] * p.x_stride[d];
		rest /= p.shape[d];
	}
	pdl_launch_dependents();
	pdl_wait();
	if (row >= p.rows)
		return;

	const char *x = (const char *)p.x + at * (DTYPE == HZ_F32 ? 4 : 2);
	const int64_t pieces = p.x_k == 1 && (uintptr_t)x % 16 == 0 ? p.k / count : 0;
	uint8_t *y = p.y + row * p.y_row;

	if (p.scales) {
		range r = {0, 0};
		float f[8];

#pragma unroll 4
		for (int64_t i = thread; i < pieces; i += threads) {
			unpack<DTYPE>(f, ((const uint4 *)x)[i]);
#pragma unroll
			for (int e = 0; e < count; e++)
				widen(r, f[e]);
		}
		for (int64_t i = pieces * count + thread; i < p.k; i += threads)
			widen(r, load_any(DTYPE, x, i * p.x_k));
		r = p.narrow ? join_warp(r) : join_block(r);
		hzi_qparams(-r.below, r.above, p.q_dtype, p.symmetric, &scale, &zero);
		if (thread == 0) {
			p.scales[row] = scale;
			p.zeros[row] = (uint8_t)zero;
		}
	}

	const divisor d = make_divisor(scale, zero, p.q_dtype == HZ_S8);

#pragma unroll 4
	for (int64_t i = thread; i < pieces; i += threads)
		put_codes<DTYPE>(y, i, ((const uint4 *)x)[i], d);
	for (int64_t i = pieces * count + thread; i < p.y_row; i += threads)
		y[i] = i < p.k ? (uint8_t)encode(d, load_any(DTYPE, x, i * p.x_k)) : 0;
}

#define KERNEL(name, dtype, struct_name) \
	extern "C" __global__ __launch_bounds__(HZI_BLOCK_THREADS) void \
	name##_##dtype(const __grid_constant__ struct_name p)
#define JOINT(dtype) \
	extern "C" __global__ __launch_bounds__(2 * HZI_CLUSTER_THREADS, 1) void \
	range_cluster_##dtype(const __grid_constant__ hzi_range_strided p)
#define BODY(function, DTYPE) { function<DTYPE>(p); }
KERNEL(quantize_contiguous, f32, hzi_quantize_contiguous) BODY(quantize_contiguous, HZ_F32)
KERNEL(quantize_contiguous, f16, hzi_quantize_contiguous) BODY(quantize_contiguous, HZ_F16)
KERNEL(quantize_contiguous, bf16, hzi_quantize_contiguous) BODY(quantize_contiguous, HZ_BF16)
KERNEL(dequantize_contiguous, f32, hzi_quantize_contiguous) BODY(dequantize_contiguous, HZ_F32)
KERNEL(dequantize_contiguous, f16, hzi_quantize_contiguous) BODY(dequantize_contiguous, HZ_F16)
KERNEL(dequantize_contiguous, bf16, hzi_quantize_contiguous) BODY(dequantize_contiguous, HZ_BF16)
KERNEL(quantize_strided, f32, hzi_quantize_strided) BODY(quantize_strided, HZ_F32)
KERNEL(quantize_strided, f16, hzi_quantize_strided) BODY(quantize_strided, HZ_F16)
KERNEL(quantize_strided, bf16, hzi_quantize_strided) BODY(quantize_strided, HZ_BF16)
KERNEL(dequantize_strided, f32, hzi_quantize_strided) BODY(dequantize_strided, HZ_F32)
KERNEL(dequantize_strided, f16, hzi_quantize_strided) BODY(dequantize_strided, HZ_F16)
KERNEL(dequantize_strided, bf16, hzi_quantize_strided) BODY(dequantize_strided, HZ_BF16)
KERNEL(range_contiguous, f32, hzi_range_contiguous) BODY(range_contiguous, HZ_F32)
KERNEL(range_contiguous, f16, hzi_range_contiguous) BODY(range_contiguous, HZ_F16)
KERNEL(range_contiguous, bf16, hzi_range_contiguous) BODY(range_contiguous, HZ_BF16)
KERNEL(range_rows, f32, hzi_range_strided) BODY(range_rows, HZ_F32)
KERNEL(range_rows, f16, hzi_range_strided) BODY(range_rows, HZ_F16)
KERNEL(range_rows, bf16, hzi_range_strided) BODY(range_rows, HZ_BF16)
KERNEL(range_columns, f32, hzi_range_strided) BODY(range_columns, HZ_F32)
KERNEL(range_columns, f16, hzi_range_strided) BODY(range_columns, HZ_F16)
KERNEL(range_columns, bf16, hzi_range_strided) BODY(range_columns, HZ_BF16)
JOINT(f32) BODY(range_clusters, HZ_F32)
JOINT(f16) BODY(range_clusters, HZ_F16)
JOINT(bf16) BODY(range_clusters, HZ_BF16)
KERNEL(range_groups, f32, hzi_range_groups) BODY(range_groups, HZ_F32)
KERNEL(range_groups, f16, hzi_range_groups) BODY(range_groups, HZ_F16)
KERNEL(range_groups, bf16, hzi_range_groups) BODY(range_groups, HZ_BF16)
KERNEL(widen, f16, hzi_convert_contiguous) BODY(widen_contiguous, HZ_F16)
KERNEL(widen, bf16, hzi_convert_contiguous) BODY(widen_contiguous, HZ_BF16)
KERNEL(narrow, f16, hzi_convert_contiguous) BODY(narrow_contiguous, HZ_F16)
KERNEL(narrow, bf16, hzi_convert_contiguous) BODY(narrow_contiguous, HZ_BF16)
KERNEL(quantize_rows, f32, hzi_quantize_rows) BODY(quantize_rows, HZ_F32)
KERNEL(quantize_rows, f16, hzi_quantize_rows) BODY(quantize_rows, HZ_F16)
KERNEL(quantize_rows, bf16, hzi_quantize_rows) BODY(quantize_rows, HZ_BF16)
