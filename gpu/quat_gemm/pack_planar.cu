/*
 * pack_planar.cu - quaternion matrices to f16 planes
 *
 * SPDX-License-Identifier: BSD-2-Clause
 *
 * Each line has its own scale. NaN is ignored for it; a line with Inf is not scaled.
 */
#include "gpu/quat_gemm/pack_planar.cuh"
#include "gpu/quat_gemm/wgmma.h"
#include "gpu/device/cluster.cuh"
#include "gpu/device/pdl.cuh"
#include "gpu/device/reduce.cuh"

#define LINES HZI_PACK_PLANAR_LINES
#define TILE HZI_PACK_PLANAR_TILE
#define PARTS_MAX HZI_PACK_PLANAR_PARTS

/* Programmatic dependent launch: lets the next kernel start, and waits for the previous ones. */
HZ_DEVICE void begin(void)
{
#if __CUDA_ARCH__ >= 900
	pdl_launch_dependents();
	pdl_wait();
#endif
}

/* Scaled by k_scales */
HZ_DEVICE quat load_one(const hzi_quat_planar_f16 &p, int64_t line, int64_t k)
{
	const quat q = quat_load<true>(p.x, line * p.x.row + k * p.x.col);

	return p.k_scales ? quat_scale(p.k_scales[k], q) : q;
}

/* The same, not inlined: for the end of a line, where there would be eight copies */
static __device__ __noinline__ quat load_last(const hzi_quat_planar_f16 &p, int64_t line, int64_t k)
{
	return load_one(p, line, k);
}

HZ_DEVICE quat scaled(const hzi_quat_planar_f16 &p, float by, quat q)
{
	q = quat_scale(by, q);
	return p.x.conj ? quat_conj(q) : q;
}

/* Eight f16 in one store; the compiler would use four, for want of registers. */
HZ_DEVICE void store_words(const hzi_quat_planar_f16 &p, int i, int64_t at, const uint32_t (&w)[4])
{
	asm volatile("st.global.v4.u32 [%0], {%1, %2, %3, %4};"
		     :: "l"(p.y + i * p.y_lines * p.y_k + at), "r"(w[0]), "r"(w[1]), "r"(w[2]),
			"r"(w[3]) : "memory");
}

/* Eight numbers of a plane, with a split also their low parts */
HZ_DEVICE void store_eight(const hzi_quat_planar_f16 &p, int i, int64_t at, const float (&v)[8])
{
	uint32_t w[4];

#pragma unroll
	for (int j = 0; j < 4; j++)
		w[j] = to_f16x2(v[2 * j], v[2 * j + 1]);
	store_words(p, i, at, w);
	if (!p.split)
		return;
#pragma unroll
	for (int j = 0; j < 4; j++)
		w[j] = to_f16x2(v[2 * j] - f16_low(w[j]), v[2 * j + 1] - f16_high(w[j]));
	store_words(p, i + p.planes, at, w);
}

/* Eight scaled quaternions in all planes; overwrites q. */
HZ_DEVICE void store_planes(const hzi_quat_planar_f16 &p, int64_t at, quat (&q)[8])
{
	const bool fast = p.planes == 8;
	const float f1 = fast ? p.f1 : 1;
	float v[8];

#pragma unroll
	for (int i = 0; i < 4; i++) {
#pragma unroll
		for (int j = 0; j < 8; j++)
			v[j] = f1 * (i == 0 ? q[j].w : i == 1 ? q[j].x : i == 2 ? q[j].y : q[j].z);
		store_eight(p, fast ? 4 + i : i, at, v);
		if (p.planes != 7 || i == 0)
			continue;
#pragma unroll
		for (int j = 0; j < 8; j++)
			v[j] = -v[j];
		store_eight(p, 3 + i, at, v);
	}
	if (!fast)
		return;
	/* In place, since registers do not hold both. */
#pragma unroll
	for (int j = 0; j < 8; j++)
		q[j] = {p.f0 * (q[j].w + q[j].x), p.f0 * (q[j].w - q[j].x),
			p.f0 * (q[j].y + q[j].z), p.f0 * (q[j].y - q[j].z)};
#pragma unroll
	for (int i = 0; i < 4; i++) {
#pragma unroll
		for (int j = 0; j < 8; j++)
			v[j] = i == 0 ? q[j].w + q[j].y : i == 1 ? q[j].w - q[j].y
			       : i == 2 ? q[j].x + q[j].z : q[j].x - q[j].z;
		store_eight(p, i, at, v);
	}
}

/*
 * Eight quaternions of a line, padded with 0. VECTORIZED: a line is contiguous, and lines are
 * aligned to 16 bytes.
 */
template <int DTYPE, bool VECTORIZED>
HZ_DEVICE void load_eight(const hzi_quat_planar_f16 &p, int64_t line, int64_t k, quat (&q)[8])
{
	if (VECTORIZED && k + 8 <= p.k) {
		const int64_t at = line * p.x.row + 4 * k;

		if (DTYPE == HZ_F32) {
			const float4 *src = (const float4 *)((const float *)p.x.data + at);

#pragma unroll
			for (int i = 0; i < 8; i++) {
				const float4 u = __ldg(src + i);

				q[i] = {u.x, u.y, u.z, u.w};
			}
		} else {
			const uint4 *src = (const uint4 *)((const uint16_t *)p.x.data + at);

#pragma unroll
			for (int i = 0; i < 4; i++) {
				const uint4 u = __ldg(src + i);

				q[2 * i] = quat_unpack(DTYPE, {u.x, u.y});
				q[2 * i + 1] = quat_unpack(DTYPE, {u.z, u.w});
			}
		}
#pragma unroll
		for (int i = 0; i < 8; i++) {
			if (p.x.comp[0])
				q[i] = {q[i].z, q[i].w, q[i].x, q[i].y};
			if (p.k_scales)
				q[i] = quat_scale(p.k_scales[k + i], q[i]);
		}
		return;
	}
#pragma unroll
	for (int i = 0; i < 8; i++) {
		q[i] = {};
		if (k + i < p.k)
			q[i] = VECTORIZED ? load_last(p, line, k + i) : load_one(p, line, k + i);
	}
}

/* Copies a quaternion that is neither scaled nor conjugated. */
HZ_DEVICE void copy_one(const hzi_quat_planar_f16 &p, int64_t line, int64_t k, quat q)
{
	if (line < p.lines && k < p.k)
		*(uint2 *)(p.copy + line * p.copy_line + 4 * k) = quat_pack(p.x.dtype, q);
}

/* A block per line; reads it twice: for the scale, for the planes. */
template <int DTYPE, bool VECTORIZED>
HZ_DEVICE void pack(const hzi_quat_planar_f16 &p)
{
	__shared__ float most_of[32];
	const int64_t line = blockIdx.x;
	float most = 0;
	quat q[8];

	if (line < p.lines) {
		for (int64_t k = 8 * threadIdx.x; k < p.k; k += 8 * blockDim.x) {
			load_eight<DTYPE, VECTORIZED>(p, line, k, q);
#pragma unroll
			for (int i = 0; i < 8; i++)
				most = fmaxf(most, magnitude(q[i]));
#pragma unroll
			for (int i = 0; p.copy && i < 8; i++)
				copy_one(p, line, k + i, q[i]);
		}
	}
	most = warp_max(most);
	if (threadIdx.x % 32 == 0)
		most_of[threadIdx.x / 32] = most;
	__syncthreads();
	for (int i = 0; i < (int)blockDim.x / 32; i++)
		most = fmaxf(most, most_of[i]);
	const int e = scale_exponent(most);

	if (threadIdx.x == 0)
		p.scales[line] = power_of_two(-e);
	for (int64_t k = 8 * threadIdx.x; k < p.y_k; k += 8 * blockDim.x) {
#pragma unroll
		for (int i = 0; i < 8; i++)
			q[i] = {};
		if (line < p.lines && k < p.k)
			load_eight<DTYPE, VECTORIZED>(p, line, k, q);
#pragma unroll
		for (int i = 0; i < 8; i++)
			q[i] = scaled(p, power_of_two(e), q[i]);
		store_planes(p, line * p.y_k + k, q);
	}
}

/* ---- Lines are the contiguous dimension ------------------------------------------------------ */

/*
 * Swizzled position of k in a line of a tile: eight threads neither write nor read the same bank.
 */
HZ_DEVICE int swizzle(int k)
{
	return k ^ (k >> 3 & 7);
}

/* Loads this thread's part of a tile from k0 on: line threadIdx.x % LINES, every 16th k. */
template <int DTYPE, bool CONTIGUOUS>
HZ_DEVICE void load_transposed(const hzi_quat_planar_f16 &p, int64_t line, int64_t k0, quat (&q)[8])
{
	const int64_t k = k0 + threadIdx.x / LINES, at = line * p.x.row + k * p.x.col;
	quat_raw<DTYPE> raw[CONTIGUOUS ? 8 : 1] = {};

#pragma unroll
	for (int h = 0; h < 8; h++) {
		q[h] = {};
		if (line >= p.lines || k + 16 * h >= p.k)
			continue;
		if (CONTIGUOUS)
			raw[CONTIGUOUS ? h : 0].load(p.x.data, at + 16 * h * p.x.col);
		else
			q[h] = load_one(p, line, k + 16 * h);
	}
#pragma unroll
	for (int h = 0; CONTIGUOUS && h < 8; h++) {
		q[h] = raw[CONTIGUOUS ? h : 0].get(0);
		if (p.k_scales && k + 16 * h < p.k)
			q[h] = quat_scale(p.k_scales[k + 16 * h], q[h]);
	}
}

/*
 * A cluster has 16 lines; its blocks share k in tiles of 128. Pass 1 finds the largest magnitudes,
 * reading the first tile last; pass 2 transposes tiles in shared memory.
 */
template <int DTYPE, bool CONTIGUOUS>
HZ_DEVICE void pack_transposed(const hzi_quat_planar_f16 &p)
{
	__shared__ float4 tile[LINES][TILE + 1];
	__shared__ float most_of[8][LINES], most_here[LINES];
	__shared__ int exponents[LINES];
	const int thread = threadIdx.x, column = thread % LINES, r = thread / (TILE / 8);
	const int part = blockIdx.x % p.parts, step = TILE * p.parts;
	const int64_t line0 = (int64_t)(blockIdx.x / p.parts) * LINES, line = line0 + r;
	const int64_t first = TILE * part;
	float most = 0;
	quat q[8] = {};

	for (int64_t k0 = first + (p.k - 1 - first) / step * step; k0 >= first; k0 -= step) {
		load_transposed<DTYPE, CONTIGUOUS>(p, line0 + column, k0, q);
#pragma unroll
		for (int h = 0; h < 8; h++)
			most = fmaxf(most, magnitude(q[h]));
#pragma unroll
		for (int h = 0; p.copy && h < 8; h++)
			copy_one(p, line0 + column, k0 + thread / LINES + 16 * h, q[h]);
	}
	most = fmaxf(most, __shfl_xor_sync(~0u, most, LINES));
	if (thread % 32 < LINES)
		most_of[thread / 32][column] = most;
	__syncthreads();
	if (thread < LINES) {
		for (int i = 0; i < 8; i++)
			most = fmaxf(most, most_of[i][thread]);
		most_here[thread] = most;
	}
	cluster_arrive();
	cluster_wait();
	if (thread < LINES) {
		const uint32_t here = shared_address(&most_here[thread]);

#pragma unroll
		for (int i = 0; i < PARTS_MAX; i++) {
			/* beyond the last block: its own again */
			const float f = cluster_load(cluster_map(here, i < p.parts ? i : part));

			most = fmaxf(most, f);
		}
		exponents[thread] = scale_exponent(most);
		if (part == 0 && line0 + thread < p.y_lines)
			p.scales[line0 + thread] = power_of_two(-exponents[thread]);
	}
	cluster_arrive();
	for (int64_t k0 = first; k0 < p.y_k; k0 += step) {
		const int k = thread % (TILE / 8) * 8;

		if (k0 != first)
			load_transposed<DTYPE, CONTIGUOUS>(p, line0 + column, k0, q);
		__syncthreads();
#pragma unroll
		for (int h = 0; h < 8; h++)
			tile[column][swizzle(thread / LINES + 16 * h)] =
				make_float4(q[h].w, q[h].x, q[h].y, q[h].z);
		__syncthreads();
		if (line >= p.y_lines || k0 + k >= p.y_k)
			continue;
#pragma unroll
		for (int i = 0; i < 8; i++) {
			const float4 v = tile[r][swizzle(k + i)];

			q[i] = scaled(p, power_of_two(exponents[r]), {v.x, v.y, v.z, v.w});
		}
		store_planes(p, line * p.y_k + k0 + k, q);
	}
	cluster_wait();
}

/* ---- The kernels ----------------------------------------------------------------------------- */

/* blocks: least blocks per SM that registers are limited for */
#define KERNEL(name, blocks, ...) \
	extern "C" __global__ __launch_bounds__(256, blocks) void \
	name(const __grid_constant__ hzi_quat_planar_f16 p) \
	{ \
		begin(); \
		__VA_ARGS__(p); \
	}
KERNEL(quat_planar_f16_strided, 4, pack<HZ_F32, false>)
KERNEL(quat_planar_f16_from_f32, 4, pack<HZ_F32, true>)
KERNEL(quat_planar_f16_from_f16, 4, pack<HZ_F16, true>)
KERNEL(quat_planar_f16_from_bf16, 4, pack<HZ_BF16, true>)
KERNEL(quat_planar_f16_transposed_strided, 3, pack_transposed<HZ_F32, false>)
KERNEL(quat_planar_f16_transposed_from_f32, 3, pack_transposed<HZ_F32, true>)
KERNEL(quat_planar_f16_transposed_from_f16, 3, pack_transposed<HZ_F16, true>)
KERNEL(quat_planar_f16_transposed_from_bf16, 3, pack_transposed<HZ_BF16, true>)
