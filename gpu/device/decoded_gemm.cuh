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
 *   params   the parameters of the kernel: `gemm`; `rows` of W; `batch`, the number of vectors
 *   DTYPE    HZ_F16 or HZ_BF16, of x and of what is decoded
 *   SLOT     bytes of the codes of a tile
 *   decode(from, to, step)   decodes a tile to `to`, the first of 16 rows of A. Any bits give finite
 *            values. It calls step(std_int<i>()) for i = 0 to 3 in between, which issues wgmma.
 *   scales(row)   factors of four successive rows
 *   put(row, vector, sums, scales)   stores sums of these rows times their factors
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
	const int lane, warp, group, k_group, part, row_tile;
	const uint32_t buffers, stages, full, empty, slot, slot_bar;	/* slot: of this warp */

	__device__ __forceinline__ explicit decoded_gemm_block(const typename CODES::params &p_)
		: p(p_), codes(p_, threadIdx.x % 32), lane(threadIdx.x % 32),
		  warp(__shfl_sync(~0u, threadIdx.x / 32, 0)), group(warp / 4),
		  k_group(group / ROW_GROUPS), part(blockIdx.x % p.gemm.split),
		  row_tile(blockIdx.x / p.gemm.split), buffers(shared_address(shared_start())),
		  stages(buffers + 2 * ROW_GROUPS * K_GROUPS * HZI_DECODED_BUFFER),
		  full(buffers + HZI_DECODED_BARRIERS(SLOT, COLUMNS, ROW_GROUPS, K_GROUPS, STAGES,
						      AHEAD)),
		  empty(full + 8 * STAGES), slot(stages + STAGES * STAGE + warp * (AHEAD * SLOT)),
		  slot_bar(empty + 8 * STAGES + warp * (8 * AHEAD))
	{
	}

	__device__ __forceinline__ void run(void) const
	{
		const int begin = p.gemm.chunks * part / p.gemm.split;
		const int n = p.gemm.chunks * (part + 1) / p.gemm.split - begin;

		/* Each warp requests its first codes at once. */
		if (lane == 0) {
			if (warp < WARPS) {
				for (int i = 0; i < AHEAD; i++)
					mbarrier_init(slot_bar + 8 * i, 1);
			} else {
				for (int i = 0; i < STAGES; i++) {
					mbarrier_init(full + 8 * i, 1);
					mbarrier_init(empty + 8 * i, 4 * ROW_GROUPS);
				}
			}
			mbarrier_init_fence();
			for (int i = 0; i < AHEAD && warp < WARPS; i++)
				fetch(begin, n, k_group + i * K_GROUPS, i);
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

	/* Requests this warp's codes of chunk c of this block to slot i; by one lane. */
	__device__ __forceinline__ void fetch(int begin, int n, int c, int i) const
	{
		const int tile = min(row_tile * (ROWS / 16) + group % ROW_GROUPS * 4 + warp % 4,
				     p.gemm.tiles - 1);
		const int at = (begin + c) * SLOT, bytes = min(SLOT, (int)p.gemm.tile_bytes - at);

		if (c >= n)
			return;
		mbarrier_expect_tx(slot_bar + 8 * i, bytes);
		bulk_copy(slot + i * SLOT, p.gemm.packed + tile * p.gemm.tile_bytes + at, bytes,
			  slot_bar + 8 * i);
	}

	__device__ __forceinline__ void multiply(float (&acc)[N], int begin, int n) const
	{
		const uint32_t buffer = buffers + group * (2 * HZI_DECODED_BUFFER);
		ring_position<AHEAD> at;
		int stage = 2 * k_group, parity = 0, ahead = k_group + AHEAD * K_GROUPS;

		auto decode = [&](int which, auto step) {
			mbarrier_wait(slot_bar + 8 * at.at, at.parity);
			codes.decode(slot + at.at * SLOT, buffer + which * HZI_DECODED_BUFFER +
							  warp % 4 * (2 * DECODED_8_ROWS), step);
			fence_proxy_async();
			__syncwarp();
			if (lane == 0)
				fetch(begin, n, ahead, at.at);
			__syncwarp();
			ahead += K_GROUPS;
			at.next();
		};

		if (k_group < n)
			decode(0, [](auto) {});
		for (int j = k_group, which = 0; j < n; j += K_GROUPS, which ^= 1) {
			const uint64_t a = wgmma_desc_k(buffer + which * HZI_DECODED_BUFFER);

			/* All of the warpgroup have decoded, and read the other buffer. */
			bar_sync(1 + group, 128);
			/*
			 * Issues a quarter of the chunk's products, steps 2 i and 2 i + 1. Between
			 * these quarters the next chunk is decoded. With 128 columns it is faster
			 * to issue all of them first (H200, 4096 x 4096, labels: 256 vectors 20.0
			 * instead of 20.9 us; with 256 columns 1024 vectors 54.1 instead of 51.0).
			 */
			auto step = [&](auto i) {
				const int half = i.value / 2, at = 2 * (i.value % 2);
				const uint64_t b = wgmma_desc_k(stages + (stage + half) * STAGE);

				if (at == 0) {
					mbarrier_wait(full + 8 * (stage + half), parity);
					wgmma_fence();
				}
#pragma unroll
				for (int s = at; s < at + 2; s++)
					decoded_wgmma<CODES::DTYPE>(acc, a + a_step(4 * half + s),
								    b + 2 * s);
				if (at > 0)
					wgmma_commit();
			};
			if (COLUMNS == 128 || j + K_GROUPS >= n) {
				step(std_int<0>());
				step(std_int<1>());
				step(std_int<2>());
				step(std_int<3>());
			}
			if (j + K_GROUPS < n) {
				if constexpr (COLUMNS == 128)
					decode(which ^ 1, [](auto) {});
				else
					decode(which ^ 1, step);
			}
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

	/* Four rows from `row` of the block on, of vector v of the block */
	__device__ __forceinline__ void finish_item(const float *sums, int row, int v,
						    float4 scales) const
	{
		const int terms = p.gemm.terms;
		const float *const at = sums + v * terms * PITCH + row;
		float4 s = total(at);

		if (terms > 1) {
			const float4 second = total(at + PITCH);

			s.x += second.x * HZI_DECODED_SECOND;
			s.y += second.y * HZI_DECODED_SECOND;
			s.z += second.z * HZI_DECODED_SECOND;
			s.w += second.w * HZI_DECODED_SECOND;
		}
		codes.put(row_tile * ROWS + row, blockIdx.y * (COLUMNS / terms) + v, s, scales);
	}

	/* Rows of W are adjacent in y: a thread has the same four of all its vectors. */
	__device__ __forceinline__ void finish_rows(const float *sums) const
	{
		constexpr int STEP = THREADS / (ROWS / 4);
		const int split = p.gemm.split, vectors = COLUMNS / p.gemm.terms;
		const int row = threadIdx.x % (ROWS / 4) * 4;
		const int end = min(vectors * (part + 1) / split,
				    p.batch - (int)blockIdx.y * vectors);

		static_assert(THREADS % (ROWS / 4) == 0, "the same rows");
		if (row_tile * ROWS + row >= p.rows)
			return;

		const float4 scales = codes.scales(row_tile * ROWS + row);

#pragma unroll (COLUMNS < 128 ? 2 : 4)
		for (int v = vectors * part / split + threadIdx.x / (ROWS / 4); v < end; v += STEP)
			finish_item(sums, row, v, scales);
	}

	__device__ __forceinline__ void finish_vectors(const float *sums) const
	{
		const int split = p.gemm.split, vectors = COLUMNS / p.gemm.terms;
		const int items = vectors * (ROWS / 4);

#pragma unroll 2
		for (int i = items * part / split + threadIdx.x; i < items * (part + 1) / split;
		     i += THREADS) {
			/* vectors is a power of two. */
			const int v = i & (vectors - 1), row = i >> (__ffs(vectors) - 1) << 2;

			if (row_tile * ROWS + row < p.rows && blockIdx.y * vectors + v < p.batch)
				finish_item(sums, row, v, codes.scales(row_tile * ROWS + row));
		}
	}

	/* Each block of a split stores its share. */
	__device__ __forceinline__ void finish(void) const
	{
		constexpr int ITEMS = COLUMNS * (ROWS / 4);
		const int split = p.gemm.split;
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
		if (p.gemm.rows_first)
			finish_rows(sums);
		else
			finish_vectors(sums);
		__syncwarp();
		if (split > 1) {
			cluster_arrive_relaxed();
			cluster_wait();
		}
	}
};

#endif
#endif
