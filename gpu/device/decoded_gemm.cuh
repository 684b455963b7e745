/*
 * decoded_gemm.cuh - GEMM with compressed weights W, decoded to 16-bit floats for wgmma; sm_90a
 *
 * SPDX-License-Identifier: BSD-2-Clause
 *
 * D = W x^T. W has codes in tiles of 16 rows by HZI_DECODED_CHUNK values of k; x has rows of k of
 * f16 or bf16, in memory as TMA reads them. A block multiplies 64 ROW_GROUPS rows of W by COLUMNS
 * rows of x. One warp copies x by TMA into a ring of half chunks, the B operand. A warpgroup has 64
 * rows, and every K_GROUPS-th chunk: it decodes a chunk, the A operand, to one of two buffers of
 * its own while wgmma multiplies the other one. Splits of k are the blocks of a cluster. All sums
 * are added in order.
 *
 * Codes come by bulk copies, not by loads: the fence between what a warp stores and wgmma would
 * wait for loads ahead.
 *
 * Both operands are K-major, rows of 128 bytes with the 128-byte swizzle. A chunk of A is two times
 * 64 rows of 64 values: step s of 16 values is in half s % 2 at step s / 2, so that the lanes of a
 * quarter of a warp, with 32 successive values each, store without bank conflicts.
 *
 * CODES is a policy:
 *
 *   params          the parameters of the kernel, with `gemm`
 *   DTYPE           HZ_F16 or HZ_BF16, of x and of what is decoded
 *   SLOT            bytes of the codes of a tile
 *   decode(from, to)   decodes a tile to `to`, the first of 16 rows of A
 *   has(row, vector), put(row, vector, sums)   stores four sums of successive rows
 */
#ifndef HZI_DEVICE_DECODED_GEMM_CUH
#define HZI_DEVICE_DECODED_GEMM_CUH

#include "gpu/device/decoded_gemm.h"
#include "gpu/device/shared.cuh"
#include "gpu/device/tma.cuh"
#include "gpu/device/wgmma_f16.cuh"

/* Of A: bytes of a half of a chunk of 64 rows, and of 8 rows */
#define DECODED_HALF (HZI_DECODED_BUFFER / 2)
#define DECODED_8_ROWS 1024

#if HAVE_WGMMA

/* D += A B, both operands K-major */
#define DECODED_WGMMA(columns, count, a_operand, b_operand, type) \
	asm volatile("wgmma.mma_async.sync.aligned.m64n" columns "k16.f32." type "." type " " \
		     "{" HZ_ACC_##count "}, " a_operand ", " b_operand ", 1, 1, 1, 0, 0;" \
		     : HZ_FLOATS_##count(0) : "l"(a), "l"(b))
#define DECODED_WGMMA_IF(columns, count, a_operand, b_operand) \
	if constexpr (N == count && DTYPE == HZ_BF16) \
		DECODED_WGMMA(columns, count, a_operand, b_operand, "bf16"); \
	else if constexpr (N == count) \
		DECODED_WGMMA(columns, count, a_operand, b_operand, "f16")

template <int DTYPE, int N>
HZ_DEVICE void decoded_wgmma(float (&d)[N], uint64_t a, uint64_t b)
{
	DECODED_WGMMA_IF("16", 8, "%8", "%9");
	DECODED_WGMMA_IF("32", 16, "%16", "%17");
	DECODED_WGMMA_IF("64", 32, "%32", "%33");
	DECODED_WGMMA_IF("128", 64, "%64", "%65");
	DECODED_WGMMA_IF("256", 128, "%128", "%129");
}

template <class CODES, int COLUMNS, int ROW_GROUPS, int K_GROUPS, int STAGES, int AHEAD>
struct decoded_gemm_block {
	static constexpr int WARPS = HZI_DECODED_WARPS(ROW_GROUPS, K_GROUPS),
			     THREADS = 32 * WARPS + 32;
	static constexpr int ROWS = 64 * ROW_GROUPS, N = COLUMNS / 2, SLOT = CODES::SLOT;
	static constexpr int STAGE = HZI_DECODED_STAGE(COLUMNS);
	static constexpr int PITCH = ROWS + 4, SUMS = COLUMNS * PITCH;
	/*
	 * A group of chunks must have stages of its own: waiting for a parity, it could not tell
	 * whether another group's chunk ahead of its own has come.
	 */
	static_assert(STAGES % (2 * K_GROUPS) == 0 && STAGES > 2 * K_GROUPS, "stages of a group");

	const typename CODES::params &p;
	const CODES codes;
	const int lane, warp, part, row_tile;
	const uint32_t buffers, stages, slots, full, empty, slot_full;

	__device__ __forceinline__ explicit decoded_gemm_block(const typename CODES::params &p_)
		: p(p_), codes(p_, threadIdx.x % 32), lane(threadIdx.x % 32),
		  warp(__shfl_sync(~0u, threadIdx.x / 32, 0)), part(blockIdx.x % p.gemm.split),
		  row_tile(blockIdx.x / p.gemm.split), buffers(shared_address(shared_start())),
		  stages(buffers + 2 * ROW_GROUPS * K_GROUPS * HZI_DECODED_BUFFER),
		  slots(stages + STAGES * STAGE),
		  full(buffers + HZI_DECODED_BARRIERS(SLOT, COLUMNS, ROW_GROUPS, K_GROUPS, STAGES,
						      AHEAD)),
		  empty(full + 8 * STAGES), slot_full(empty + 8 * STAGES)
	{
	}

	__device__ __forceinline__ void run(void) const
	{
		const int begin = p.gemm.chunks * part / p.gemm.split;
		const int n = p.gemm.chunks * (part + 1) / p.gemm.split - begin;

		if (threadIdx.x == 0) {
			for (int i = 0; i < STAGES; i++) {
				mbarrier_init(full + 8 * i, 1);
				mbarrier_init(empty + 8 * i, 4 * ROW_GROUPS);
			}
			for (int i = 0; i < WARPS * AHEAD; i++)
				mbarrier_init(slot_full + 8 * i, 1);
			mbarrier_init_fence();
		}
		pdl_launch_dependents();
		__syncthreads();
		float acc[N];

#pragma unroll
		for (int i = 0; i < N; i++)
			acc[i] = 0;
		if (warp == WARPS) {
			if (lane == 0)
				produce(begin, n);
			__syncwarp();
		} else {
			wgmma_keep(acc);
			multiply(acc, begin, n);
			wgmma_keep(acc);
		}
		/* All have read what the sums replace. */
		__syncthreads();
		if (warp < WARPS)
			put_sums(acc);
		__syncthreads();
		finish();
	}

private:
	__device__ __forceinline__ void produce(int begin, int n) const
	{
		ring_position<STAGES> at;

		tma_prefetch_map(p.gemm.x);
		pdl_wait();
		for (int i = 0; i < 2 * n; i++, at.next()) {
			mbarrier_wait(empty + 8 * at.at, at.parity ^ 1);
			mbarrier_expect_tx(full + 8 * at.at, STAGE);
			tma_load_2d(stages + at.at * STAGE, p.gemm.x, (2 * begin + i) * 128,
				    blockIdx.y * COLUMNS, full + 8 * at.at);
		}
	}

	/* All instructions of wgmma need whole warps. */
	__device__ __forceinline__ void release(int stage) const
	{
		if (lane == 0)
			mbarrier_arrive(empty + 8 * stage);
		__syncwarp();
	}

	/* What step s of a chunk adds to the descriptor of A */
	__device__ __forceinline__ static constexpr int a_step(int s)
	{
		return (s % 2 * DECODED_HALF + s / 2 * 32) / 16;
	}

	__device__ __forceinline__ void multiply(float (&acc)[N], int begin, int n) const
	{
		const int group = warp / 4, k_group = group / ROW_GROUPS;
		const int tile = min(row_tile * (ROWS / 16) + group % ROW_GROUPS * 4 + warp % 4,
				     p.gemm.tiles - 1);
		const uint8_t *from = p.gemm.packed +
				      ((int64_t)tile * p.gemm.chunks + begin + k_group) * SLOT;
		const uint32_t buffer = buffers + group * (2 * HZI_DECODED_BUFFER),
			       slot = slots + warp * (AHEAD * SLOT),
			       slot_bar = slot_full + warp * (8 * AHEAD);
		ring_position<AHEAD> at;
		int stage = 2 * k_group, parity = 0, ahead = k_group;

		auto fetch = [&](int i) {
			if (ahead < n && lane == 0) {
				mbarrier_expect_tx(slot_bar + 8 * i, SLOT);
				bulk_copy(slot + i * SLOT, from, SLOT, slot_bar + 8 * i);
			}
			ahead += K_GROUPS;
			from += K_GROUPS * SLOT;
		};
		auto decode = [&](int which) {
			mbarrier_wait(slot_bar + 8 * at.at, at.parity);
			codes.decode(slot + at.at * SLOT, buffer + which * HZI_DECODED_BUFFER +
							  warp % 4 * (2 * DECODED_8_ROWS));
			fence_proxy_async();
			__syncwarp();
			fetch(at.at);
			__syncwarp();
			at.next();
		};

		for (int i = 0; i < AHEAD; i++)
			fetch(i);
		__syncwarp();
		if (k_group < n)
			decode(0);
		for (int j = k_group, which = 0; j < n; j += K_GROUPS, which ^= 1) {
			const uint64_t a = wgmma_desc_k(buffer + which * HZI_DECODED_BUFFER);

			/* All of the warpgroup have decoded, and read the other buffer. */
			bar_sync(1 + group, 128);
#pragma unroll
			for (int half = 0; half < 2; half++) {
				const uint64_t b = wgmma_desc_k(stages + (stage + half) * STAGE);

				mbarrier_wait(full + 8 * (stage + half), parity);
				wgmma_fence();
#pragma unroll
				for (int i = 0; i < 4; i++)
					decoded_wgmma<CODES::DTYPE>(acc, a + a_step(4 * half + i),
								    b + 2 * i);
				wgmma_commit();
			}
			if (j + K_GROUPS < n)
				decode(which ^ 1);
			wgmma_wait<1>();
			release(stage);
			wgmma_wait<0>();
			release(stage + 1);
			stage += 2 * K_GROUPS;
			if (stage >= STAGES) {
				stage -= STAGES;
				parity ^= 1;
			}
		}
	}

	/* ---- Sums ---------------------------------------------------------------------------- */

	/* [group of chunks][column][row] */
	__device__ __forceinline__ void put_sums(const float (&acc)[N]) const
	{
		const int group = warp / 4;
		float *const to = (float *)shared_start() + group / ROW_GROUPS * SUMS +
				  lane % 4 * (2 * PITCH) + group % ROW_GROUPS * 64 + warp % 4 * 16 +
				  lane / 4;

#pragma unroll
		for (int i = 0; i < N; i++)
			to[(i / 4 * 8 + i % 2) * PITCH + i / 2 % 2 * 8] = acc[i];
	}

	__device__ __forceinline__ static void add(float4 &s, float4 v)
	{
		s.x += v.x;
		s.y += v.y;
		s.z += v.z;
		s.w += v.w;
	}

	/* Four rows of a column of all groups of chunks, or of all splits */
	__device__ __forceinline__ float4 total(const float *at) const
	{
		float4 s = {}, terms[HZI_DECODED_SPLIT] = {};

		if (p.gemm.split == 1) {
#pragma unroll
			for (int z = 0; z < K_GROUPS; z++)
				add(s, *(const float4 *)(at + z * SUMS));
			return s;
		}
		/* These loads are in flight together. */
#pragma unroll
		for (int z = 0; z < HZI_DECODED_SPLIT; z++) {
			if (z < p.gemm.split)
				terms[z] = cluster_load4(cluster_map(shared_address(at), z));
		}
#pragma unroll
		for (int z = 0; z < HZI_DECODED_SPLIT; z++)
			add(s, terms[z]);
		return s;
	}

	/* Each block of a split stores its share. */
	__device__ __forceinline__ void finish(void) const
	{
		constexpr int ITEMS = COLUMNS * (ROWS / 4);
		const int split = p.gemm.split, terms = p.gemm.terms;
		const int items = ITEMS / terms, vectors = COLUMNS / terms;
		float *const sums = (float *)shared_start();

		if (split > 1) {
			if constexpr (K_GROUPS > 1) {
				for (int i = threadIdx.x; i < ITEMS; i += THREADS) {
					float *const at = sums + i / (ROWS / 4) * PITCH +
							  i % (ROWS / 4) * 4;
					float4 s = {};

#pragma unroll
					for (int z = 0; z < K_GROUPS; z++)
						add(s, *(const float4 *)(at + z * SUMS));
					*(float4 *)at = s;
				}
				__syncthreads();
			}
			/* One warp releases for all, see cluster_arrive_relaxed(). */
			if (warp == 0)
				cluster_arrive();
			else
				cluster_arrive_relaxed();
			cluster_wait();
		}
		pdl_wait();
#pragma unroll 2
		for (int i = items * part / split + threadIdx.x; i < items * (part + 1) / split;
		     i += THREADS) {
			/* vectors is a power of two. */
			const int v = p.gemm.rows_first ? i / (ROWS / 4) : i & (vectors - 1);
			const int r = p.gemm.rows_first ? i % (ROWS / 4) * 4 :
							  i >> (__ffs(vectors) - 1) << 2;
			const int row = row_tile * ROWS + r, vector = blockIdx.y * vectors + v;
			const float *const at = sums + v * terms * PITCH + r;

			if (!codes.has(row, vector))
				continue;

			float4 s = total(at);

			if (terms > 1) {
				const float4 second = total(at + PITCH);

				s.x += second.x * HZI_DECODED_SECOND;
				s.y += second.y * HZI_DECODED_SECOND;
				s.z += second.z * HZI_DECODED_SECOND;
				s.w += second.w * HZI_DECODED_SECOND;
			}
			codes.put(row, vector, s);
		}
		__syncwarp();
		if (split > 1) {
			cluster_arrive_relaxed();
			cluster_wait();
		}
	}
};

#endif
#endif
