/*
 * coef.cuh - helpers of all kernels of coefficients of hyper-connections
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#ifndef HZI_GPU_MHC_COEF_CUH
#define HZI_GPU_MHC_COEF_CUH

#include "gpu/device/dtype.cuh"
#include "gpu/device/reduce.cuh"
#include "gpu/mhc/coef.h"
#include "gpu/mhc/mhc.cuh"
#include "lib/mhc/mhc_math.h"

/* ---- Values ---------------------------------------------------------------------------------- */

HZ_DEVICE float load_value(int dtype, const void *p, int64_t i)
{
	if (dtype == HZ_F32)
		return ((const float *)p)[i];
	return dtype == HZ_F16 ? f16_low(((const uint16_t *)p)[i]) :
				 bf16_low(((const uint16_t *)p)[i]);
}

HZ_DEVICE int64_t offset(const hzi_mhc_array &x, int64_t t, int i, int64_t c)
{
	return t * x.token + i * x.stream + c * x.channel;
}

/* The same with 32-bit strides and contiguous channels: see hzi_cuda_mhc_fits_int32(). */
HZ_DEVICE int64_t offset32(const hzi_mhc_array &x, int t, int i, int c)
{
	return (int64_t)t * (int)x.token + (i * (int)x.stream + c);
}

HZ_DEVICE void unpack(int dtype, uint32_t pair, float &low, float &high)
{
	low = dtype == HZ_F16 ? f16_low(pair) : bf16_low(pair);
	high = dtype == HZ_F16 ? f16_high(pair) : bf16_high(pair);
}

/* Channels c .. c + 7 of a stream; 0 from `channels` on. vectorized: rows are aligned. */
HZ_DEVICE void load_eight(float *v, const hzi_mhc_array &x, int dtype, bool vectorized, int64_t t,
			  int i, int64_t c, int64_t channels)
{
	const int64_t at = offset(x, t, i, c);

	if (vectorized && c + 8 <= channels) {
		if (dtype == HZ_F32) {
			const float4 *p = (const float4 *)((const float *)x.data + at);
			const float4 a = p[0], b = p[1];

			v[0] = a.x, v[1] = a.y, v[2] = a.z, v[3] = a.w;
			v[4] = b.x, v[5] = b.y, v[6] = b.z, v[7] = b.w;
		} else {
			const uint4 a = *(const uint4 *)((const uint16_t *)x.data + at);

			unpack(dtype, a.x, v[0], v[1]);
			unpack(dtype, a.y, v[2], v[3]);
			unpack(dtype, a.z, v[4], v[5]);
			unpack(dtype, a.w, v[6], v[7]);
		}
		return;
	}
#pragma unroll
	for (int e = 0; e < 8; e++)
		v[e] = c + e < channels ? load_value(dtype, x.data, at + e * x.channel) : 0;
}

template <int DT>
constexpr bool is_f32 = DT == HZ_F32;

/* COUNT contiguous values, 4 or 8, aligned to 4 elements */
template <int DT, int COUNT>
HZ_DEVICE void load_vector(float *v, const hzi_mhc_array &x, int64_t at)
{
#pragma unroll
	for (int e = 0; e < COUNT; e += 4) {
		if constexpr (is_f32<DT>) {
			const float4 a = *(const float4 *)((const float *)x.data + at + e);

			v[e] = a.x, v[e + 1] = a.y, v[e + 2] = a.z, v[e + 3] = a.w;
		} else {
			const uint2 a = *(const uint2 *)((const uint16_t *)x.data + at + e);

			unpack(DT, a.x, v[e], v[e + 1]);
			unpack(DT, a.y, v[e + 2], v[e + 3]);
		}
	}
}

/* Stores 4 such values. */
template <int DT>
HZ_DEVICE void store_vector(const hzi_mhc_array &x, int64_t at, const float *v)
{
	if constexpr (is_f32<DT>)
		*(float4 *)((float *)x.data + at) = {v[0], v[1], v[2], v[3]};
	else
		*(uint2 *)((uint16_t *)x.data + at) =
			DT == HZ_F16 ? uint2{to_f16x2(v[0], v[1]), to_f16x2(v[2], v[3])} :
				       uint2{to_bf16x2(v[0], v[1]), to_bf16x2(v[2], v[3])};
}

template <int DTYPE>
HZ_DEVICE void unpack_eight(float *v, uint4 x)
{
	unpack(DTYPE, x.x, v[0], v[1]);
	unpack(DTYPE, x.y, v[2], v[3]);
	unpack(DTYPE, x.z, v[4], v[5]);
	unpack(DTYPE, x.w, v[6], v[7]);
}

/* 8 values as 16-bit floats */
template <int DTYPE>
HZ_DEVICE uint4 pack_eight(const float *v)
{
	if (DTYPE == HZ_F16)
		return {to_f16x2(v[0], v[1]), to_f16x2(v[2], v[3]), to_f16x2(v[4], v[5]),
			to_f16x2(v[6], v[7])};
	return {to_bf16x2(v[0], v[1]), to_bf16x2(v[2], v[3]), to_bf16x2(v[4], v[5]),
		to_bf16x2(v[6], v[7])};
}

/* The sum over a block, in every thread; memory: 32 floats */
HZ_DEVICE float sum_block(float v, float *memory)
{
	const int warps = blockDim.x / 32;
	float sum = 0;

	v = warp_sum(v);
	__syncthreads();
	if (threadIdx.x % 32 == 0)
		memory[threadIdx.x / 32] = v;
	__syncthreads();
	for (int i = 0; i < warps; i++)
		sum += memory[i];
	return sum;
}

/* ---- Split precision ------------------------------------------------------------------------- */

/* A pair as bf16; remainder: what that leaves, as bf16, too */
HZ_DEVICE uint32_t split_pair(float low, float high, uint32_t &remainder)
{
	const uint32_t pair = to_bf16x2(low, high);

	remainder = to_bf16x2(low - bf16_low(pair), high - bf16_high(pair));
	return pair;
}

/*
 * The same for phi and draw, whose second term is always used. A finite value that would round to
 * Inf gets a finite first term; the second term of Inf is Inf.
 */
HZ_DEVICE uint32_t split_weights(float low, float high, uint32_t &remainder)
{
	uint32_t pair;

	asm("cvt.rn.satfinite.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
	remainder = to_bf16x2(low - bf16_low(pair), high - bf16_high(pair));
	return pair;
}

/*
 * With f16 streams phi is split into two terms of f16: splitting the streams into bf16 would take
 * longer than everything else. To fit f16, a row is multiplied by row_scale(), 2^14 /
 * 2^floor(log2(absmax)), where absmax is the largest magnitude that four lanes hold of it. Errors
 * are 2^-24 of an element or 2^-39 of the largest.
 */
HZ_DEVICE float row_scale(float absmax)
{
	uint32_t power;

	absmax = fmaxf(absmax, __shfl_xor_sync(0xffffffff, absmax, 1));
	absmax = fmaxf(absmax, __shfl_xor_sync(0xffffffff, absmax, 2));
	/* At least 2^-111, so that the scale is a normal number. Inf: any scale. */
	power = max(__float_as_uint(absmax) & 0x7f800000, 16u << 23);
	return __uint_as_float((268u << 23) - min(power, 254u << 23));
}

/* 1 / a for a power of 2 from 2^-126 to 2^126 */
HZ_DEVICE float inverse_power(float a)
{
	return __uint_as_float((254u << 23) - __float_as_uint(a));
}

HZ_DEVICE uint32_t split_scaled(float low, float high, uint32_t &remainder)
{
	const uint32_t pair = to_f16x2(low, high);

	remainder = to_f16x2(low - f16_low(pair), high - f16_high(pair));
	return pair;
}

/* ---- Mean squares ---------------------------------------------------------------------------- */

/* A factor by which the squares of any x with such a mean square fit f32: 2^-96 or 2^96 */
HZ_DEVICE float square_scale(float square)
{
	return square <= 1 ? 0x1p96f : 0x1p-96f;
}

/* Minus the root mean square of a token, by one thread: for squares that leave the range of f32 */
HZI_MHC_RARE float wide_root(const hzi_mhc_array x, int dtype, int64_t t, int n, int64_t channels,
			     float square)
{
	const float scale = square_scale(square);
	float sum = 0;

	for (int i = 0; i < n; i++) {
		for (int64_t c = 0; c < channels; c++) {
			const float v = load_value(dtype, x.data, offset(x, t, i, c)) * scale;

			sum = fmaf(v, v, sum);
		}
	}
	return -sqrtf(sum / (float)(n * channels)) / scale;
}

/* 1 / sqrt(mean square + eps) from minus the root of that mean square */
HZI_MHC_RARE float wide_inverse(float root, float eps)
{
	return root == 0 && eps == 0 ? 0 : (float)(1 / sqrt((double)root * root + eps));
}

/* rho and slope of struct hzi_mhc_roots, from a mean square or minus its root */
HZ_DEVICE float roots_of(const hzi_mhc_rule &rule, float kept, float &slope)
{
	const float mean = kept + rule.rms_eps;
	float rho = kept < 0 ? wide_inverse(kept, rule.rms_eps) : mean == 0 ? 0 : 1 / sqrtf(mean);

	slope = rho;
	if (HZI_MHC_RARELY(rule.rms_eps_rule == HZ_MHC_RMS_EPS_ROOT)) {
		const float root = kept < 0 ? -kept : sqrtf(kept);

		slope = root == 0 ? 0 : 1 / root;
		rho = root + rule.rms_eps == 0 ? 0 : 1 / (root + rule.rms_eps);
	}
	if (HZI_MHC_RARELY(rule.rms_eps_rule == HZ_MHC_RMS_EPS_FLOOR)) {
		const float root = kept < 0 ? -kept : sqrtf(kept);
		const bool least = root < rule.rms_eps;

		rho = least ? 1 / rule.rms_eps : root == 0 ? 0 : 1 / root;
		slope = least ? 0 : rho;
	}
	if (HZI_MHC_RARELY(rule.rms == HZ_MHC_RMS_NONE)) {
		rho = 1;
		slope = 0;
	}
	return rho;
}

/* ---- Coefficients ---------------------------------------------------------------------------- */

/* N streams, loops over them unrolled; N = 0: any number, a variable */
template <int N>
constexpr int STREAMS = N ? N : HZI_MHC_STREAMS;

/* Rows of phi, at most */
template <int N>
constexpr int ROWS = N == 4 ? 32 : STREAMS<N> * (STREAMS<N> + 2);

/* For #pragma unroll: all, or not at all */
template <int N>
constexpr int UNROLL = N ? INT32_MAX : 1;

/*
 * Adds up the splits of the sums of a block's groups: memory [HZI_MHC_COEF_GROUPS][m + 1], the last
 * of them a mean square.
 */
HZ_DEVICE void load_sums(const hzi_mhc_sums &sums, int m, float *memory)
{
	const int64_t first = (int64_t)blockIdx.x * HZI_MHC_COEF_GROUPS,
		step = sums.groups * (m + 1);
	const int64_t left = sums.groups - first;
	const int count = (int)(left < HZI_MHC_COEF_GROUPS ? left : HZI_MHC_COEF_GROUPS) * (m + 1);
	constexpr int BATCH = 8;		/* loads in flight */

	for (int e0 = threadIdx.x; e0 < count; e0 += BATCH * HZI_MHC_COEF_GROUPS) {
		float sum[BATCH] = {};

#pragma unroll 4
		for (int i = 0; sums.data && i < sums.splits; i++) {
			const float *src = sums.data + first * (m + 1) + i * step;

#pragma unroll
			for (int j = 0; j < BATCH; j++) {
				const int e = e0 + j * HZI_MHC_COEF_GROUPS;

				sum[j] += e < count ? src[e] : 0;
			}
		}
#pragma unroll
		for (int j = 0; j < BATCH; j++) {
			const int e = e0 + j * HZI_MHC_COEF_GROUPS;
			float all = sum[j];

			if (e >= count)
				break;
			if (sums.data && e % (m + 1) == m && !sums.saved) {
				all = sums.columns > 0 ? all / sums.columns : 0;
				if (hzi_mhc_leaves_f32(all, sums.least) && sums.columns > 0)
					all = wide_root(sums.x, sums.dtype, first + e / (m + 1),
							(int)(sums.columns / sums.channels + 0.5f),
							sums.channels, all);
			}
			memory[e] = all;
		}
	}
	__syncthreads();
}

/* y of a group from its sums; returns rho, sets slope */
template <int N>
HZ_DEVICE float normalise(const hzi_mhc_rule &rule, const float *sums, int m, float *y,
			  float &slope)
{
	const float rho = roots_of(rule, sums[m], slope);

#pragma unroll UNROLL<N>
	for (int k = 0; k < ROWS<N>; k++)
		y[k] = k < m ? rho * sums[k] : 0;
	return rho;
}

HZ_DEVICE float *coef_at(const hzi_mhc_coef &x, int64_t s, int i, int j)
{
	return x.data + s * x.group + i * x.row + j * x.column;
}

/* sum_i weight_i X[i], one channel of a token */
HZ_DEVICE float mixed(const hzi_mhc_norm &p, const float *weight, int64_t t, int64_t c)
{
	float u = weight[0] * load_value(p.dtype, p.x.data, offset(p.x, t, 0, c));

#pragma unroll
	for (int i = 1; i < HZI_MHC_STREAMS; i++) {
		if (i < p.n)
			u = fmaf(weight[i], load_value(p.dtype, p.x.data, offset(p.x, t, i, c)), u);
	}
	return u;
}

/* 1 / sqrt(mean square + eps), or 0 */
HZ_DEVICE float inverse_root(float mean)
{
	return mean == 0 ? 0 : 1 / sqrtf(mean);
}

/* Whether the mean square of u, which eps is added to, has to be computed again, scaled */
HZ_DEVICE bool norm_leaves_f32(float square, float eps)
{
	return hzi_mhc_leaves_f32(square, eps >= 0x1p-70f ? 0 : HZI_MHC_LEAST_SQUARE);
}

/* 1 / sqrt(mean square + eps) from the mean square of u times scale, or 0 */
HZ_DEVICE float norm_rho(float square, float eps, float scale)
{
	return inverse_root(square + eps * scale * scale) * scale;
}

/* ---- Coefficients of four streams ------------------------------------------------------------ */


/* Stores row i of a group, elements `step` apart, if wanted. */
HZ_DEVICE void store_four(const hzi_mhc_coef &x, int64_t group, int i, int64_t step, const float *v)
{
	float *dst = x.data + group * x.group + i * x.row;

	if (!x.data)
		return;
	if (step == 1 && (uintptr_t)dst % 16 == 0) {
		*(float4 *)dst = {v[0], v[1], v[2], v[3]};
		return;
	}
#pragma unroll
	for (int j = 0; j < 4; j++)
		dst[j * step] = v[j];
}

/* The mean square of a token of four 16-bit streams p.x, or minus its root; data NULL: as it is */
template <class PARAMS>
HZ_DEVICE float square_of(const PARAMS &p, float square, int64_t token)
{
	if (hzi_mhc_leaves_f32(square, hzi_mhc_least_square(&p.rule)) && p.x.data)
		return wide_root(p.x, p.dtype, token, 4, p.channels, square);
	return square;
}

HZ_DEVICE float root_of_square(const hzi_mhc_rule &rule, float square)
{
	return square < 0 ? wide_inverse(square, rule.rms_eps) :
			    inverse_root(square + rule.rms_eps);
}

/* All coefficients of a token, from its HZI_MHC_FOUR_ROWS sums and mean square */
template <class PARAMS>
HZ_DEVICE void finish_token(const PARAMS &p, const float *sums, int64_t token)
{
	const float square = square_of(p, sums[HZI_MHC_FOUR_ROWS], token);
	const float rho = root_of_square(p.rule, square);
	const int rows = p.rule.m;
	float y[HZI_MHC_FOUR_ROWS], pre[4], post[4], mix[16];

#pragma unroll
	for (int k = 0; k < HZI_MHC_FOUR_ROWS; k++)
		y[k] = rho * sums[k];
	hzi_mhc_coefs(4, &p.rule, rows > 4, y, p.alpha, p.bias, pre, post, mix);
	store_four(p.p, token, 0, p.p.row, pre);
	store_four(p.q, token, 0, p.q.row, post);
#pragma unroll
	for (int i = 0; i < 4; i++)
		store_four(p.a, token, i, p.a.column, mix + i * 4);
	if (p.saved) {
		float *saved = p.saved + token * (rows + 1);

#pragma unroll
		for (int k = 0; k < HZI_MHC_FOUR_ROWS; k++) {
			if (k < rows)
				saved[k] = sums[k];
		}
		saved[rows] = square;
	}
}

#endif
