/*
 * coef_wgmma.cu - projection of bf16 streams by phi with many rows, by TMA and wgmma, sm_90a
 *
 * SPDX-License-Identifier: BSD-2-Clause
 *
 * phi is split into two terms of bf16 first, which are the B operand: 80 rows each. A block has 256
 * tokens and a split of the columns, 64 at a time. One thread loads them by TMA; two warpgroups
 * multiply 128 tokens each, whose squares they add up from the registers of the A operand. With A
 * in shared memory, and squares by other warps, reads of shared memory are the limit. The blocks of
 * a cluster have the same columns of successive tokens; each loads a half of phi for both.
 *
 * The order of summation is fixed: columns of a split, then both terms of phi.
 */
#include "gpu/mhc/coef.cuh"
#include "gpu/mhc/coef_wgmma.h"
#include "gpu/device/pdl.cuh"

/*
 * Eight columns of a row per thread. The next kernel may read x before this one has ended, but not
 * before what came before it has.
 */
extern "C" __global__ void __launch_bounds__(256)
	mhc_coef_split_phi(const __grid_constant__ hzi_mhc_split_phi p)
{
	const int64_t eights = p.columns / 8, at = (int64_t)blockIdx.x * 256 + threadIdx.x;
	const int64_t c = at % eights * 8, row = at / eights;
	float v[8] = {};
	uint4 high, low;

	pdl_wait();
	pdl_launch_dependents();
	if (row >= HZI_MHC_WGMMA_ROWS)
		return;
	if (row < p.m) {
#pragma unroll
		for (int e = 0; e < 8; e += 4) {
			float4 a = *(const float4 *)(p.phi + row * p.columns + c + e);

			if (p.gain) {
				const float4 gain = *(const float4 *)(p.gain + c + e);

				a.x *= gain.x, a.y *= gain.y, a.z *= gain.z, a.w *= gain.w;
			}
			v[e] = a.x, v[e + 1] = a.y, v[e + 2] = a.z, v[e + 3] = a.w;
		}
	}
	high.x = split_weights(v[0], v[1], low.x);
	high.y = split_weights(v[2], v[3], low.y);
	high.z = split_weights(v[4], v[5], low.z);
	high.w = split_weights(v[6], v[7], low.w);
	*(uint4 *)(p.to + row * p.columns + c) = high;
	*(uint4 *)(p.to + (HZI_MHC_WGMMA_ROWS + row) * p.columns + c) = low;
}

/* Only sm_90a has this code. */
#if !defined(__CUDA_ARCH__) || defined(__CUDA_ARCH_FEAT_SM90_ALL)
#include "gpu/device/shared.cuh"
#include "gpu/device/tma.cuh"
#include "gpu/device/wgmma_f16.cuh"

#define TOKENS HZI_MHC_WGMMA_TOKENS
#define CHUNK HZI_MHC_WGMMA_CHUNK
#define ROWS HZI_MHC_WGMMA_ROWS
#define STAGES 4
#define MULTIPLIERS 2			/* warpgroups */

struct memory {
	uint8_t x[STAGES][TOKENS * 128];
	uint8_t phi[STAGES][2 * ROWS * 128];
	uint64_t full[STAGES], empty[STAGES];
};

static_assert(sizeof(memory) + 1024 <= HZI_MHC_WGMMA_BYTES, "shared memory");

/* The chunks of a block, at least one: a stream after another */
struct block_work {
	int begin, end;
	int64_t first;			/* token */
};

HZ_DEVICE block_work make_block_work(const hzi_mhc_project_wgmma &p)
{
	const int64_t all = (int64_t)p.n * p.chunks;

	return {(int)(all * blockIdx.y / p.splits), (int)(all * (blockIdx.y + 1) / p.splits),
		(int64_t)blockIdx.x * TOKENS};
}

/* One thread; the first chunks of x before the previous kernel, which makes phi, has ended */
HZ_DEVICE void load(const hzi_mhc_project_wgmma &p, const block_work &b, memory &m)
{
	const int rank = blockIdx.x % p.blocks, rows = 2 * ROWS / p.blocks;
	ring_position<STAGES> now;
	const auto load_x = [&](int chunk, int at) {
		const uint32_t full = shared_address(&m.full[at]);

		mbarrier_expect_tx(full, sizeof(m.x[0]) + sizeof(m.phi[0]));
		tma_load_3d(shared_address(m.x[at]), p.x, chunk % p.chunks * (CHUNK * 2),
			    (int)b.first, chunk / p.chunks, full);
	};

	tma_prefetch_map(p.x);
	tma_prefetch_map(p.phi);
	for (int at = 0; at < STAGES && b.begin + at < b.end; at++)
		load_x(b.begin + at, at);
	pdl_wait();
	for (int chunk = b.begin; chunk < b.end; chunk++, now.next()) {
		const uint32_t full = shared_address(&m.full[now.at]);
		const uint32_t phi = shared_address(m.phi[now.at]) + rank * rows * 128;
		const int stream = chunk / p.chunks, c = chunk % p.chunks * (CHUNK * 2);

		mbarrier_wait(shared_address(&m.empty[now.at]), now.parity ^ 1);
		if (chunk >= b.begin + STAGES)
			load_x(chunk, now.at);
		if (p.blocks == 1)
			tma_load_3d(phi, p.phi, c, 0, stream, full);
		else
			tma_load_3d_multicast((1 << HZI_MHC_WGMMA_BLOCKS) - 1, phi, p.phi, c,
					      rank * rows, stream, full);
	}
}

HZ_DEVICE void multiply(const hzi_mhc_project_wgmma &p, const block_work &b, memory &m, int group)
{
	const int lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4;
	const uint32_t own = shared_address(m.x[0]) + (group * 128 + warp * 16 + lane % 16) * 128;
	ring_position<STAGES> now;
	float sum[2][ROWS], squares[2][2] = {};

	for (int chunk = b.begin; chunk < b.end; chunk++, now.next()) {
		const uint64_t phi = wgmma_desc_k(shared_address(m.phi[now.at]));
		const uint32_t src = own + now.at * sizeof(m.x[0]);
		uint32_t x[2][CHUNK / 16][4];

		mbarrier_wait(shared_address(&m.full[now.at]), now.parity);
#pragma unroll
		for (int h = 0; h < 2; h++) {
#pragma unroll
			for (int k = 0; k < CHUNK / 16; k++)
				ldmatrix_x4(x[h][k], src + h * (64 * 128) +
					    ((k * 2 + lane / 16) ^ (lane & 7)) * 16);
		}
		wgmma_fence();
#pragma unroll
		for (int k = 0; k < CHUNK / 16; k++) {
#pragma unroll
			for (int h = 0; h < 2; h++)
				wgmma_rs_add<HZ_BF16>(sum[h], x[h][k], phi + k * 2,
						      k > 0 || chunk > b.begin);
		}
		wgmma_commit();
#pragma unroll
		for (int e = 0; e < 2 * CHUNK / 16 * 4; e++) {
			const uint32_t v = x[e / 16][e / 4 % 4][e % 4];
			const float low = bf16_low(v), high = bf16_high(v);
			float &to = squares[e / 16][e % 2];

			to = fmaf(low, low, to);
			to = fmaf(high, high, to);
		}
		wgmma_wait<0>();
		if (threadIdx.x % 128 < p.blocks)
			mbarrier_arrive_cluster(cluster_map(shared_address(&m.empty[now.at]),
							    threadIdx.x % 128));
	}
	wgmma_keep(sum[0]);
	wgmma_keep(sum[1]);
	/* Through shared memory, for contiguous stores: the warpgroup's own x is no longer needed. */
	bar_sync(1 + group, 128);
#pragma unroll
	for (int h = 0; h < 2; h++) {
		const int64_t t = b.first + group * 128 + h * 64 + warp * 16, left = p.tokens - t;
		float *const dst = p.sums + (blockIdx.y * p.tokens + t) * (p.m + 1);
		float *const own = (float *)(m.x[h * 2 + warp / 2] + group * (128 * 128) +
					     warp % 2 * (64 * 128));
		const int count = (left < 16 ? (int)left : 16) * (p.m + 1);

#pragma unroll
		for (int i = 0; i < 2; i++) {
			float *const out = own + (i * 8 + lane / 4) * (p.m + 1);
			const float square = warp_sum<4>(squares[h][i]);

			if (lane % 4 == 0)
				out[p.m] = square;
#pragma unroll
			for (int e = 0; e < ROWS / 4; e++) {
				const int k = e / 2 * 8 + lane % 4 * 2 + e % 2;
				const int at = e / 2 * 4 + i * 2 + e % 2;

				if (k < p.m)
					out[k] = sum[h][at] + sum[h][ROWS / 2 + at];
			}
		}
		__syncwarp();
#pragma unroll 8
		for (int k = lane; k < count; k += 32)
			dst[k] = own[k];
	}
}
#endif

extern "C" __global__ void __launch_bounds__(HZI_MHC_WGMMA_THREADS, 1)
	mhc_coef_wgmma_project(const __grid_constant__ hzi_mhc_project_wgmma p)
{
#if !defined(__CUDA_ARCH__) || defined(__CUDA_ARCH_FEAT_SM90_ALL)
	memory &m = *(memory *)shared_start();
	const block_work b = make_block_work(p);

	if (threadIdx.x < STAGES) {
		mbarrier_init(shared_address(&m.full[threadIdx.x]), 1);
		mbarrier_init(shared_address(&m.empty[threadIdx.x]),
			      MULTIPLIERS * p.blocks);
	}
	mbarrier_init_fence();
	__syncthreads();
	cluster_arrive();
	cluster_wait();
	pdl_launch_dependents();
	if (threadIdx.x >= 128) {
		setmaxnreg_inc<232>();
		pdl_wait();
		multiply(p, b, m, threadIdx.x / 128 - 1);
	} else {
		setmaxnreg_dec<40>();
		if (threadIdx.x == 0)
			load(p, b, m);
	}
	cluster_end();
#endif
}
