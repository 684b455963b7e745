/*
 * quat_planes.cu - matrices of quaternions to planes of f16
 *
 * SPDX-License-Identifier: BSD-2-Clause
 *
 * Each line has a scale of its own. A NaN does not count, a line with Inf is not scaled.
 */
#include "gpu/quat_planes.cuh"
#include "gpu/quat_tma.h"
#include "gpu/tma.cuh"

/* The next kernel may come, and the ones ahead must have ended before anything is touched. */
HZ_DEVICE void begin(void)
{
#if __CUDA_ARCH__ >= 900
	grid_next();
	grid_wait();
#endif
}

/* With its k-scale. */
HZ_DEVICE quat load_one(const hzi_quat_planes &p, int64_t line, int64_t k)
{
	const quat q = quat_load(p.x, line * p.x.row + k * p.x.col);

	return p.k_scales ? quat_scale(p.k_scales[k], q) : q;
}

/* What plane i has of a scaled quaternion. */
HZ_DEVICE float plane_of(const hzi_quat_planes &p, quat q, int i)
{
	const float v[7] = {q.w, q.x, q.y, q.z, -q.x, -q.y, -q.z};

	if (p.planes != 8)
		return v[i];
	if (i >= 4)
		return p.f1 * v[i - 4];
	return p.f0 * hadamard_of(q, i);
}

HZ_DEVICE quat scaled(const hzi_quat_planes &p, float by, quat q)
{
	q = quat_scale(by, q);
	return p.x.conj ? quat_conj(q) : q;
}

/* Eight numbers of a plane, and with a split what f16 does not hold of them. */
HZ_DEVICE void put_eight(const hzi_quat_planes &p, int i, int64_t at, const float (&v)[8])
{
	uint32_t w[4];

#pragma unroll
	for (int j = 0; j < 4; j++)
		w[j] = to_f16x2(v[2 * j], v[2 * j + 1]);
	*(uint4 *)(p.y + i * p.y_lines * p.y_k + at) = make_uint4(w[0], w[1], w[2], w[3]);
	if (!p.split)
		return;
#pragma unroll
	for (int j = 0; j < 4; j++)
		w[j] = to_f16x2(v[2 * j] - f16_low(w[j]), v[2 * j + 1] - f16_high(w[j]));
	*(uint4 *)(p.y + (i + p.planes) * p.y_lines * p.y_k + at) =
		make_uint4(w[0], w[1], w[2], w[3]);
}

/*
 * Eight quaternions of a line, or as many as there are and zeros. QUICK: those of a line are back to
 * back, and lines begin at multiples of 16 bytes.
 */
template <int DTYPE, bool QUICK>
HZ_DEVICE void load_eight(const hzi_quat_planes &p, int64_t line, int64_t k, quat (&q)[8])
{
	if (QUICK && k + 8 <= p.k) {
		const int64_t at = line * p.x.row + 4 * k;

		if (DTYPE == HZ_F32) {
			const float4 *from = (const float4 *)((const float *)p.x.data + at);

#pragma unroll
			for (int i = 0; i < 8; i++) {
				const float4 u = __ldg(from + i);

				q[i] = {u.x, u.y, u.z, u.w};
			}
		} else {
			const uint4 *from = (const uint4 *)((const uint16_t *)p.x.data + at);

#pragma unroll
			for (int i = 0; i < 4; i++) {
				const uint4 u = __ldg(from + i);

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
			q[i] = load_one(p, line, k + i);
	}
}

/* A block for each line, which it reads twice. */
template <int DTYPE, bool QUICK>
HZ_DEVICE void planes(const hzi_quat_planes &p)
{
	__shared__ float most_of[32];
	const int64_t line = blockIdx.x;
	float most = 0;
	quat q[8];

	if (line < p.lines) {
		for (int64_t k = 8 * threadIdx.x; k < p.k; k += 8 * blockDim.x) {
			load_eight<DTYPE, QUICK>(p, line, k, q);
#pragma unroll
			for (int i = 0; i < 8; i++)
				most = fmaxf(most, magnitude(q[i]));
		}
	}
#pragma unroll
	for (int i = 16; i; i /= 2)
		most = fmaxf(most, __shfl_xor_sync(~0u, most, i));
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
			load_eight<DTYPE, QUICK>(p, line, k, q);
#pragma unroll
		for (int i = 0; i < 8; i++)
			q[i] = scaled(p, power_of_two(e), q[i]);
#pragma unroll
		for (int i = 0; i < 8; i++) {
			float v[8];

			if (i >= p.planes)
				break;
#pragma unroll
			for (int j = 0; j < 8; j++)
				v[j] = plane_of(p, q[j], i);
			put_eight(p, i, line * p.y_k + k, v);
		}
	}
}

/*
 * The same where lines are next to each other in memory rather than k: first the largest magnitudes
 * (most is 0 before), then tiles of 32 lines by 64 of k, which are turned in shared memory.
 */
HZ_DEVICE void most_across(const hzi_quat_planes &p)
{
	__shared__ float most_of[8][32];
	const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
	const int64_t line = blockIdx.x * 32 + lane;
	float most = 0;

	if (line < p.lines) {
#pragma unroll 4
		for (int64_t k = blockIdx.y * 8 + warp; k < p.k; k += 8 * gridDim.y)
			most = fmaxf(most, magnitude(load_one(p, line, k)));
	}
	most_of[warp][lane] = most;
	__syncthreads();
	if (warp == 0 && line < p.lines) {
		for (int i = 1; i < 8; i++)
			most = fmaxf(most, most_of[i][lane]);
		atomicMax(p.most + line, __float_as_uint(most));
	}
}

/* Where k is in a line of a tile, so that neither writes nor reads of eight threads meet in a bank. */
HZ_DEVICE int place(int k)
{
	return k ^ (k >> 3 & 7);
}

HZ_DEVICE void planes_across(const hzi_quat_planes &p)
{
	__shared__ float4 tile[32][65];
	const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
	const int64_t line0 = blockIdx.x * 32, k0 = blockIdx.y * 64;

#pragma unroll
	for (int h = 0; h < 8; h++) {
		const int i = warp + 8 * h;
		const int64_t line = line0 + lane, k = k0 + i;
		quat q = {};

		if (line < p.lines && k < p.k)
			q = load_one(p, line, k);
		tile[lane][place(i)] = make_float4(q.w, q.x, q.y, q.z);
	}
	__syncthreads();
	{
		const int r = threadIdx.x / 8, k = threadIdx.x % 8 * 8;
		const int64_t line = line0 + r;
		quat q[8];
		int e;

		if (line >= p.y_lines)
			return;
		e = line < p.lines ? scale_exponent(__uint_as_float(p.most[line])) : 0;
		if (k0 == 0 && k == 0)
			p.scales[line] = power_of_two(-e);
#pragma unroll
		for (int i = 0; i < 8; i++) {
			const float4 v = tile[r][place(k + i)];

			q[i] = scaled(p, power_of_two(e), {v.x, v.y, v.z, v.w});
		}
#pragma unroll
		for (int i = 0; i < 8; i++) {
			float v[8];

			if (i >= p.planes)
				break;
#pragma unroll
			for (int j = 0; j < 8; j++)
				v[j] = plane_of(p, q[j], i);
			put_eight(p, i, line * p.y_k + k0 + k, v);
		}
	}
}

extern "C" __global__ __launch_bounds__(256) void
quat_planes_most(const __grid_constant__ hzi_quat_planes p)
{
	begin();
	most_across(p);
}

extern "C" __global__ __launch_bounds__(256) void
quat_planes_across(const __grid_constant__ hzi_quat_planes p)
{
	begin();
	planes_across(p);
}

#define PLANES(suffix, dtype) \
	extern "C" __global__ __launch_bounds__(256) void \
	quat_planes_##suffix(const __grid_constant__ hzi_quat_planes p) \
	{ \
		begin(); \
		planes<dtype, true>(p); \
	}
extern "C" __global__ __launch_bounds__(256) void
quat_planes_any(const __grid_constant__ hzi_quat_planes p)
{
	begin();
	planes<HZ_F32, false>(p);
}
PLANES(f32, HZ_F32)
PLANES(f16, HZ_F16)
PLANES(bf16, HZ_BF16)
