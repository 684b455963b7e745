/*
 * coef_persistent.cu - coefficients of four 16-bit streams of many tokens, sm_90a
 *
 * SPDX-License-Identifier: BSD-2-Clause
 *
 * Blocks are persistent. A block has a tile of up to 256 tokens and passes over all channels once,
 * 256 of a stream at a time: it loads their phi, then x of 32 tokens at a time. Two warps load,
 * eight project. A warp has 64 of the channels, with phi in registers as two terms of bf16, and
 * half of the tokens. At the end the sums of four warps are added, and each thread makes the
 * coefficients of one token while the next tile is loaded.
 *
 * Every block reads all of phi from L2, whose bandwidth is little above that of memory: TMA
 * multicast serves all blocks of a cluster.
 *
 * The order of summation is fixed: channels of a warp, warps.
 */
#define HZI_MHC_COMMON_RULES
#include "gpu/mhc/coef.cuh"
#include "gpu/mhc/coef_persistent.h"

/* Only sm_90a has this code. */
#if !defined(__CUDA_ARCH__) || defined(__CUDA_ARCH_FEAT_SM90_ALL)
#include "gpu/device/mma.cuh"
#include "gpu/device/shared.cuh"
#include "gpu/device/tma.cuh"

#define PART HZI_MHC_PERSISTENT_PART
#define BLOCKS HZI_MHC_PERSISTENT_BLOCKS
#define SLAB HZI_MHC_PERSISTENT_SLAB
#define PARTS (HZI_MHC_PERSISTENT_TILE / PART)
#define PROJECTORS 8			/* warps */
#define BOXES (SLAB / 64)		/* of x of a part; one per warp */
#define BOX_BYTES (PART * 128)		/* bytes of a box */
#define PHI_ROW (SLAB + 8)		/* no bank conflicts between four rows */
#define ROW 28				/* sums of a token, and of its squares */
#define STAGES 7
#define SLOTS 2

struct memory {
	uint8_t x[STAGES][BOXES][BOX_BYTES];
	float phi[SLOTS][HZI_MHC_FOUR_ROWS][PHI_ROW];
	float gain[SLOTS][SLAB];
	float sums[BOXES / 2][HZI_MHC_PERSISTENT_TILE][ROW];
	uint64_t full[STAGES], empty[STAGES], phi_full[SLOTS], phi_empty[SLOTS];
};

static_assert(sizeof(memory) + 1024 <= HZI_MHC_PERSISTENT_BYTES, "shared memory");
static_assert(PROJECTORS * 32 == HZI_MHC_PERSISTENT_TILE, "a token each");

/* Work of a block: clusters stride over tiles, blocks of a cluster have adjacent ones */
struct block_work {
	int rank, cluster, clusters, passes;
	int slabs;			/* of a stream */
};

HZ_DEVICE block_work make_block_work(const hzi_mhc_persistent &p)
{
	const int tiles = ((int)p.tokens + p.tile - 1) / p.tile;
	const int groups = (tiles + BLOCKS - 1) / BLOCKS;
	block_work b;

	b.rank = blockIdx.x % BLOCKS;
	b.cluster = blockIdx.x / BLOCKS;
	b.clusters = gridDim.x / BLOCKS;
	b.passes = (groups - b.cluster + b.clusters - 1) / b.clusters;
	b.slabs = ((int)p.channels + SLAB - 1) / SLAB;
	return b;
}

/* First token of a tile, and its number of tokens, which may be 0 */
HZ_DEVICE int tile_token(const hzi_mhc_persistent &p, const block_work &b, int pass)
{
	return ((pass * b.clusters + b.cluster) * BLOCKS + b.rank) * p.tile;
}

HZ_DEVICE int tile_tokens(const hzi_mhc_persistent &p, int first)
{
	return max(0, min(p.tile, (int)p.tokens - first));
}

/* One warp: loads phi of slabs, one row per lane, and gain. Rows from m on are not read. */
HZ_DEVICE void load_phi(const hzi_mhc_persistent &p, const block_work &b, memory &m)
{
	const int row = threadIdx.x % 32;
	ring_position<SLOTS> slot;

	for (int s = 0; s < b.passes * 4 * b.slabs; s++) {
		const int r = s % (4 * b.slabs), c = r % b.slabs * SLAB;
		const int64_t src = r / b.slabs * p.channels + c;
		const int bytes = min(SLAB, (int)p.channels - c) * 4;
		const uint32_t full = shared_address(&m.phi_full[slot.at]);
		const uint32_t dst = shared_address(m.phi[slot.at][row]);

		mbarrier_wait(shared_address(&m.phi_empty[slot.at]), slot.parity ^ 1);
		if (row == 0) {
			mbarrier_expect_tx(full, (p.rule.m + (p.gain != NULL)) * bytes);
			if (p.gain)
				bulk_copy(shared_address(m.gain[slot.at]), p.gain + src, bytes,
					  full);
		}
		__syncwarp();
		if (row < p.rule.m && row % BLOCKS == b.rank)
			bulk_copy_multicast((1 << BLOCKS) - 1, dst,
					    p.phi + row * 4 * p.channels + src, bytes, full);
		slot.next();
	}
}

/* One thread: loads x of slabs, a part at a time. */
HZ_DEVICE void load_x(const hzi_mhc_persistent &p, const block_work &b, memory &m)
{
	ring_position<STAGES> now;

	tma_prefetch_map(p.x_map);
	for (int t = 0; t < b.passes; t++) {
		const int first = tile_token(p, b, t), count = tile_tokens(p, first);

		for (int s = 0; s < 4 * b.slabs; s++) {
			const int stream = s / b.slabs, c = s % b.slabs * SLAB;

			for (int part = 0; part * PART < count; part++) {
				const uint32_t full = shared_address(&m.full[now.at]);

				mbarrier_wait(shared_address(&m.empty[now.at]), now.parity ^ 1);
				mbarrier_expect_tx(full, BOXES * BOX_BYTES);
				for (int i = 0; i < BOXES; i++)
					tma_load_3d(shared_address(m.x[now.at][i]), p.x_map,
						    (c + i * 64) * 2, first + part * PART, stream,
						    full);
				now.next();
			}
		}
	}
}

/* ---- Sums ------------------------------------------------------------------------------------ */

/*
 * phi of the 64 channels of a warp as mma fragments: 16 channels by 8 rows in the dtype of x, and
 * the remainder. With f16 rows are scaled: unscale[i][e] undoes that in column e of a lane's sums.
 */
struct slice {
	uint32_t high[4][3][2], low[4][3][2];
	float unscale[3][2];
};

template <int DTYPE>
HZ_DEVICE void split_phi(const hzi_mhc_persistent &p, const memory &m, int at, slice &phi)
{
	const int lane = threadIdx.x % 32, first = threadIdx.x / 32 % BOXES * 64 + lane % 4 * 2;
	float absmax[3] = {};

#pragma unroll
	for (int pass = DTYPE != HZ_F16; pass < 2; pass++) {
		if (pass == 1 && DTYPE == HZ_F16) {
#pragma unroll
			for (int i = 0; i < 3; i++) {
				absmax[i] = row_scale(absmax[i]);
#pragma unroll
				for (int e = 0; e < 2; e++)
					phi.unscale[i][e] = inverse_power(__shfl_sync(
						0xffffffff, absmax[i], lane % 4 * 8 + e * 4));
			}
		}
#pragma unroll
		for (int e = 0; e < 8; e++) {
			const int c = first + e * 8;
			float2 gain = {1, 1};

			if (p.gain)
				gain = *(const float2 *)&m.gain[at][c];
#pragma unroll
			for (int i = 0; i < 3; i++) {
				float2 v = *(const float2 *)&m.phi[at][i * 8 + lane / 4][c];
				uint32_t &high = phi.high[e / 2][i][e % 2];
				uint32_t &low = phi.low[e / 2][i][e % 2];

				v.x *= gain.x;
				v.y *= gain.y;
				if (pass == 0) {
					absmax[i] = fmaxf(absmax[i], fmaxf(fabsf(v.x), fabsf(v.y)));
				} else if (DTYPE == HZ_F16) {
					high = split_scaled(v.x * absmax[i], v.y * absmax[i], low);
				} else {
					high = split_weights(v.x, v.y, low);
				}
			}
		}
	}
}

/* Adds products and squares of 16 tokens of a part to the sums, two tokens per lane. */
template <int DTYPE>
HZ_DEVICE void project_part(float (&sum)[3][4], float (&squares)[2], const uint32_t (&x)[4][4],
			    const slice &phi)
{
	float high[3][4] = {}, low[3][4] = {};	/* separate chains of mma */

#pragma unroll
	for (int step = 0; step < 4; step++) {
#pragma unroll
		for (int e = 0; e < 4; e++) {
			float a, b;

			unpack(DTYPE, x[step][e], a, b);
			squares[e % 2] = fmaf(a, a, squares[e % 2]);
			squares[e % 2] = fmaf(b, b, squares[e % 2]);
		}
#pragma unroll
		for (int i = 0; i < 3; i++) {
			mma_m16n8k16<DTYPE>(high[i], x[step], phi.high[step][i][0],
					    phi.high[step][i][1]);
			mma_m16n8k16<DTYPE>(low[i], x[step], phi.low[step][i][0],
					    phi.low[step][i][1]);
		}
	}
#pragma unroll
	for (int i = 0; i < 3; i++) {
#pragma unroll
		for (int e = 0; e < 4; e++) {
			const float v = high[i][e] + low[i][e];

			sum[i][e] = DTYPE == HZ_F16 ? fmaf(v, phi.unscale[i][e % 2], sum[i][e]) :
						      sum[i][e] + v;
		}
	}
}

HZ_DEVICE void wait_projectors(void)
{
	barrier_sync(1, PROJECTORS * 32);
}

/* Adds up the sums of the warps: half of them store theirs, then the others add. */
HZ_DEVICE void gather(float (&sum)[PARTS][3][4], float (&squares)[PARTS][2], memory &m, int parts)
{
	const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, box = warp % BOXES;
	float (*dst)[ROW] = m.sums[box % 2] + warp / BOXES * 16 + lane / 4;

#pragma unroll
	for (int pass = 0; pass < 2; pass++) {
		const bool first = pass == 0;

		wait_projectors();
		if (box / 2 == pass)
			continue;
#pragma unroll
		for (int s = 0; s < PARTS; s++) {
			if (s >= parts)
				break;
#pragma unroll
			for (int e = 0; e < 12; e++) {
				float *at = &dst[s * PART + e / 2 % 2 * 8]
					       [e / 4 * 8 + lane % 4 * 2 + e % 2];

				*at = first ? sum[s][e / 4][e % 4] : *at + sum[s][e / 4][e % 4];
			}
#pragma unroll
			for (int e = 0; e < 2; e++) {
				const float square = warp_sum<4>(squares[s][e]);
				float *at = &dst[s * PART + e * 8][HZI_MHC_FOUR_ROWS];

				if (lane % 4 == 0)
					*at = first ? square : *at + square;
			}
		}
	}
	wait_projectors();
}

/* Coefficients of one token per thread */
HZ_DEVICE void finish(const hzi_mhc_persistent &p, memory &m, int first)
{
	float sums[ROW];

#pragma unroll
	for (int k = 0; k < ROW; k += 4) {
		const float4 a = *(const float4 *)&m.sums[0][threadIdx.x][k];
		const float4 b = *(const float4 *)&m.sums[1][threadIdx.x][k];

		sums[k] = a.x + b.x;
		sums[k + 1] = a.y + b.y;
		sums[k + 2] = a.z + b.z;
		sums[k + 3] = a.w + b.w;
	}
	sums[HZI_MHC_FOUR_ROWS] /= (float)(4 * p.channels);
	finish_token(p, sums, first + threadIdx.x);
}

template <int DTYPE>
HZ_DEVICE void project(const hzi_mhc_persistent &p, const block_work &b, memory &m)
{
	const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
	const int row = warp / BOXES * 16 + lane % 16;
	const uint32_t src = shared_address(m.x[0][warp % BOXES]) + row * 128;
	ring_position<STAGES> now;
	ring_position<SLOTS> slot;

	for (int t = 0; t < b.passes; t++) {
		const int first = tile_token(p, b, t), count = tile_tokens(p, first);
		const int parts = (count + PART - 1) / PART;
		float sum[PARTS][3][4] = {}, squares[PARTS][2] = {};

		for (int s = 0; s < 4 * b.slabs; s++) {
			slice phi;

			mbarrier_wait(shared_address(&m.phi_full[slot.at]), slot.parity);
			split_phi<DTYPE>(p, m, slot.at, phi);
			/* All lanes arrive: racecheck sees no order of their reads otherwise. */
#pragma unroll
			for (int i = 0; i < BLOCKS; i++)
				mbarrier_arrive_cluster(
					cluster_map(shared_address(&m.phi_empty[slot.at]), i));
			slot.next();
#pragma unroll
			for (int part = 0; part < PARTS; part++) {
				uint32_t x[4][4];

				if (part >= parts)
					break;
				mbarrier_wait(shared_address(&m.full[now.at]), now.parity);
#pragma unroll
				for (int step = 0; step < 4; step++)
					ldmatrix_x4(x[step],
						    src + now.at * (BOXES * BOX_BYTES) +
							    (((step * 2 + lane / 16) ^ row % 8) *
							     16));
				__syncwarp();
				if (lane == 0)
					mbarrier_arrive(shared_address(&m.empty[now.at]));
				now.next();
				project_part<DTYPE>(sum[part], squares[part], x, phi);
			}
		}
		gather(sum, squares, m, parts);
		if ((int)threadIdx.x < count)
			finish(p, m, first);
	}
}
#endif

template <int DTYPE>
HZ_DEVICE void coef_persistent(const hzi_mhc_persistent &p)
{
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
	memory &m = *(memory *)shared_start();
	const block_work b = make_block_work(p);

	pdl_launch_dependents();
	if (threadIdx.x < STAGES) {
		mbarrier_init(shared_address(&m.full[threadIdx.x]), 1);
		mbarrier_init(shared_address(&m.empty[threadIdx.x]), PROJECTORS);
	}
	if (threadIdx.x < SLOTS) {
		mbarrier_init(shared_address(&m.phi_full[threadIdx.x]), 1);
		mbarrier_init(shared_address(&m.phi_empty[threadIdx.x]), 32 * PROJECTORS * BLOCKS);
	}
	mbarrier_init_fence();
	/*
	 * Zeroes rows from m on. Channels beyond the last are 0 or finite leftovers: x is 0 there.
	 */
	for (int e = threadIdx.x; e < (int)(sizeof(m.phi) + sizeof(m.gain)) / 16;
	     e += HZI_MHC_PERSISTENT_THREADS)
		((uint4 *)m.phi)[e] = {};
	fence_proxy_async();
	__syncthreads();
	cluster_arrive();
	cluster_wait();
	pdl_wait();
	if (threadIdx.x < PROJECTORS * 32) {
		setmaxnreg_inc<232>();
		project<DTYPE>(p, b, m);
	} else {
		setmaxnreg_dec<40>();
		if (threadIdx.x == PROJECTORS * 32)
			load_x(p, b, m);
		else if (threadIdx.x / 32 == PROJECTORS + 1)
			load_phi(p, b, m);
	}
	__syncwarp();
	/* No block exits while another may send to it. */
	cluster_arrive();
	cluster_wait();
#endif
}

#define KERNEL(name, dtype) \
	extern "C" __global__ void __launch_bounds__(HZI_MHC_PERSISTENT_THREADS, 1) \
	       name(const __grid_constant__ hzi_mhc_persistent p) \
	{ \
		coef_persistent<dtype>(p); \
	}

KERNEL(mhc_coef_persistent_f16, HZ_F16)
KERNEL(mhc_coef_persistent_bf16, HZ_BF16)
