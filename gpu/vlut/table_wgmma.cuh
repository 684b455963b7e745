/*
 * table_wgmma.cuh - GEMM of lattice codes, or of decoded f16 values, by wgmma, sm_90a
 *
 * SPDX-License-Identifier: BSD-2-Clause
 *
 * Codes are decoded to f16 in registers, the A operand of wgmma: points are exact, scales of groups
 * round them once. A warp reads 64 bytes of its 16 rows at a time, lane t of four 32 values, and
 * step s takes values 4 s to 4 s + 3 of each lane. vlut_table_wgmma_x_pack therefore first packs x
 * into tiles of that order, core matrix by core matrix. Splits of k are the blocks of a cluster,
 * which add their accumulators in a fixed order.
 *
 * x of f32 becomes two f16 terms in adjacent columns, the second one 2^11 times the remainder. f32
 * and bf16 are scaled by a power of two that makes the largest |x| 2^14 to 2^15.
 */
#ifndef HZI_GPU_VLUT_TABLE_WGMMA_CUH
#define HZI_GPU_VLUT_TABLE_WGMMA_CUH

#include "gpu/device/mbarrier.cuh"
#include "gpu/device/pdl.cuh"
#include "gpu/device/reduce.cuh"
#include "gpu/device/wgmma_f16.cuh"
#include "gpu/vlut/table_s8.cuh"
#include "gpu/vlut/table_wgmma.h"

#define CHUNK HZI_VLUT_WGMMA_CHUNK

#if HAVE_WGMMA

#define THREADS HZI_VLUT_WGMMA_THREADS
#define ROWS HZI_VLUT_WGMMA_ROWS

/* WORDS: of a leader; F16_VALUES: W is f16, not codes */
#define F16_VALUES 4

template <int WORDS, int COLUMNS, bool SCALED>
struct table_wgmma_block {
	static constexpr bool F16 = WORDS == F16_VALUES;
	static constexpr int STAGES = HZI_VLUT_WGMMA_STAGES(COLUMNS), TILE = COLUMNS * CHUNK * 2;
	static constexpr int AHEAD = F16 ? 1 : COLUMNS <= 32 ? 4 : COLUMNS == 64 ? 3 : 1,
			     ACC_PITCH = HZI_VLUT_WGMMA_ACC_PITCH(COLUMNS);
	static constexpr int TABLE_BYTES = (F16 ? 0 : HZI_VLUT_S8_TABLE_BYTES) +
					   (SCALED ? HZI_VLUT_S8_SCALES_BYTES : 0);
	/* A lane's 16-byte pieces of a row of a chunk; bytes of a row of a chunk */
	static constexpr int PIECES = F16 ? 4 : 1, CHUNK_BYTES = PIECES * HZI_VLUT_S8_CHUNK_BYTES;
	/*
	 * Groups of 8 values of a lane, two wgmma steps each, that are decoded before wgmma is
	 * issued. Decoding while wgmma runs makes the compiler serialize both.
	 */
	static constexpr int GROUPS_AT_ONCE = COLUMNS <= 64 ? 4 : 2;

	const hzi_vlut_table_wgmma &p;
	const int tid, lane, warp, g, t;
	uint8_t *memory;
	uint32_t tiles, full, empty;

	__device__ __forceinline__ explicit table_wgmma_block(const hzi_vlut_table_wgmma &p_)
		: p(p_), tid(threadIdx.x), lane(tid % 32), warp(tid / 32), g(lane / 4), t(lane % 4),
		  memory(leader_memory()) {}

	__device__ __forceinline__ uint32_t *scales(void) const
	{
		return (uint32_t *)(memory + HZI_VLUT_S8_TABLE_BYTES);
	}

	__device__ __forceinline__ void run(void)
	{
		const int part = blockIdx.x % p.split, row0 = (int)(blockIdx.x / p.split) * ROWS;
		const int begin = (int)((int64_t)p.chunks * part / p.split);
		const int n = (int)((int64_t)p.chunks * (part + 1) / p.split) - begin;
		const uint8_t *x = p.tiles + ((int64_t)blockIdx.y * p.chunks + begin) * TILE;
		const uint32_t slot = F16 ? 0 : leader_slot<WORDS>(lane);
		const uint8_t *codes[2], *ts[2];
		uint4 ring[AHEAD][2 * PIECES];
		uint32_t ring_t[AHEAD][2];
		float acc[COLUMNS / 2];

		tiles = shared_address(memory) + TABLE_BYTES;
		full = shared_address(memory) + HZI_VLUT_WGMMA_BARRIERS(TABLE_BYTES, COLUMNS);
		empty = full + 8 * STAGES;
#pragma unroll
		for (int r = 0; r < 2; r++) {
			const int64_t row = min(row0 + warp * 16 + g + 8 * r, p.rows - 1);

			codes[r] = p.codes + row * p.row;
			ts[r] = p.t + row * p.t_row;
		}
		auto load = [&](int d, int c) {
			const int at = (begin + c) * CHUNK_BYTES + t * 16 * PIECES;

#pragma unroll
			for (int r = 0; r < 2; r++) {
				const bool in = c < n && at < p.row_bytes;

#pragma unroll
				for (int i = 0; i < PIECES; i++)
					ring[d][r * PIECES + i] =
						in ? load_codes(codes[r] + at + i * 16) :
						     make_uint4(0, 0, 0, 0);
				if (SCALED)
					ring_t[d][r] = in ? ts[r][4 * (begin + c) + t >>
								  p.group_shift] : 0;
			}
		};
		if (tid == 0) {
			for (int s = 0; s < STAGES; s++) {
				mbarrier_init(full + 8 * s, 1);
				mbarrier_init(empty + 8 * s, THREADS / 32);
			}
			mbarrier_init_fence();
		}
		if constexpr (!F16)
			fill_leaders<WORDS, THREADS>(p.leaders, p.first);
		if (SCALED) {
			for (int i = tid; i < p.scales * 32; i += THREADS)
				scales()[i] = p.scale_of[i / 32];
		}
		__syncthreads();
		/*
		 * Codes were written before x was packed, and so before this kernel started;
		 * decoded values were not.
		 */
		if (!F16) {
#pragma unroll
			for (int d = 0; d < AHEAD; d++)
				load(d, d);
		}
		pdl_wait();
		pdl_launch_dependents();
		if (F16) {
#pragma unroll
			for (int d = 0; d < AHEAD; d++)
				load(d, d);
		}
		if (tid == 0) {
			for (int s = 0; s < STAGES && s < n; s++)
				fetch(x, s, s);
		}
		__syncwarp();
#pragma unroll
		for (int i = 0; i < COLUMNS / 2; i++)
			acc[i] = 0;
		multiply(acc, ring, ring_t, load, x, n, slot);
		finish(acc, part, row0);
	}

	__device__ __forceinline__ void fetch(const uint8_t *x, int chunk, int stage) const
	{
		mbarrier_expect_tx(full + 8 * stage, TILE);
		bulk_copy(tiles + stage * TILE, x + (int64_t)chunk * TILE, TILE, full + 8 * stage);
	}

	template <class Load>
	__device__ __forceinline__ void multiply(float (&acc)[COLUMNS / 2],
						 uint4 (&ring)[AHEAD][2 * PIECES],
						 uint32_t (&ring_t)[AHEAD][2], Load load,
						 const uint8_t *x, int n, uint32_t slot)
	{
		/*
		 * B descriptor: distances of core matrices of 8 columns by 8 of k, along k and
		 * along columns
		 */
		const uint64_t shape = (uint64_t)COLUMNS << 16 | 8ull << 32;
		const uint32_t last_t = (uint32_t)p.scales - 1;
		int stage = 0, phase = 0;

		for (int c0 = 0; c0 < n; c0 += AHEAD) {
#pragma unroll
			for (int d = 0; d < AHEAD; d++) {
				const int c = c0 + d;
				uint32_t w[2 * PIECES][4], s[2] = {};

				if (c >= n)
					break;

#pragma unroll
				for (int i = 0; i < 2 * PIECES; i++) {
					w[i][0] = ring[d][i].x;
					w[i][1] = ring[d][i].y;
					w[i][2] = ring[d][i].z;
					w[i][3] = ring[d][i].w;
				}
				if (SCALED) {
#pragma unroll
					for (int r = 0; r < 2; r++)
						s[r] = scales()[min(ring_t[d][r], last_t) * 32 +
								lane];
				}
				load(d, c + AHEAD);
#pragma unroll
				for (int first = 0; first < 4; first += GROUPS_AT_ONCE) {
					uint32_t a[GROUPS_AT_ONCE][8];

					if constexpr (F16)
						copy_values(a, w, first);
					else
						decode(a, w, first, slot, s);
					if (first == 0)
						mbarrier_wait(full + 8 * stage, phase);
					wgmma_fence();
#pragma unroll
					for (int j = 0; j < GROUPS_AT_ONCE; j++) {
						const uint64_t b =
							shape | ((tiles + stage * TILE +
								  4 * (first + j) * COLUMNS * 16) &
								  0x3ffff) >> 4;

						wgmma_rs<false>(acc, a[j], b);
						wgmma_rs<false>(acc, a[j] + 4, b + 2 * COLUMNS);
					}
					wgmma_commit();
					wgmma_wait<0>();
					if (first == 0 && c > 0)
						refill(x, c - 1, n, stage, phase);
				}
				if (++stage == STAGES) {
					stage = 0;
					phase ^= 1;
				}
			}
		}
	}

	/* A fragments of groups `first` on, from decoded values */
	__device__ __forceinline__ void copy_values(uint32_t (&a)[GROUPS_AT_ONCE][8],
					     const uint32_t (&w)[2 * PIECES][4], int first) const
	{
#pragma unroll
		for (int j = 0; j < GROUPS_AT_ONCE; j++)
#pragma unroll
			for (int i = 0; i < 8; i++)
				a[j][i] = w[i % 2 * PIECES + first + j][i / 2];
	}

	/* The same from codes */
	__device__ __forceinline__ void decode(uint32_t (&a)[GROUPS_AT_ONCE][8],
					       const uint32_t (&w)[2][4], int first, uint32_t slot,
					       const uint32_t (&s)[2]) const
	{
#pragma unroll
		for (int j = 0; j < GROUPS_AT_ONCE; j++) {
			uint32_t low[4], high[4];

			points_f16<WORDS, SCALED>(low, w[0], first + j, slot, p.q, s[0]);
			points_f16<WORDS, SCALED>(high, w[1], first + j, slot, p.q, s[1]);
#pragma unroll
			for (int i = 0; i < 4; i++) {
				a[j][2 * i] = low[i];
				a[j][2 * i + 1] = high[i];
			}
		}
	}

	/* Releases the stage of the previous chunk and refills it. */
	__device__ __forceinline__ void refill(const uint8_t *x, int done, int n, int stage,
					       int phase) const
	{
		const int last = stage == 0 ? STAGES - 1 : stage - 1;

		if (lane == 0)
			mbarrier_arrive(empty + 8 * last);
		if (tid == 0 && done + STAGES < n) {
			mbarrier_wait(empty + 8 * last, stage == 0 ? phase ^ 1 : phase);
			fetch(x, done + STAGES, last);
		}
		__syncwarp();
	}

	/* Stores four sums of a row: vectors b to b + 3, or with two terms b and b + 1 */
	__device__ __forceinline__ void store_row(int64_t row, int b, const float (&s)[4],
						  const float (&unscale)[2]) const
	{
		float scale = p.scale;

		if (p.row_scale)
			scale *= p.row_scale[row * p.row_scale_step];
#pragma unroll
		for (int i = 0; i < 4; i++) {
			float v = p.terms == 1 ? s[i] : i < 2 ? s[2 * i] + s[2 * i + 1] * 0x1p-11f :
				  0;

			if (i >= 4 / p.terms || b + i >= p.batch)
				continue;
			v = v * unscale[0] * unscale[1] * scale;
			if (p.column_scale)
				v *= p.column_scale[(b + i) * p.column_scale_step];
			store_any(p.y_dtype, p.y, row * p.y_i + (b + i) * p.y_b, v);
		}
	}

	__device__ __forceinline__ void finish(float (&acc)[COLUMNS / 2], int part, int row0) const
	{
		float *partials = (float *)memory;
		const int share = ROWS / p.split, tile_vectors = COLUMNS / p.terms;
		const int rows = part == p.split - 1 ? ROWS - part * share : share;
		const float unscale[2] = {p.power ? p.power[0] : 1, p.power ? p.power[1] : 1};

		__syncthreads();
#pragma unroll
		for (int i = 0; i < COLUMNS / 2; i += 2) {
			const int r = warp * 16 + g + i % 4 * 4, column = i / 4 * 8 + 2 * t;

			*(float2 *)(partials + r * ACC_PITCH + column) =
				make_float2(acc[i], acc[i + 1]);
		}
		if (p.split > 1)
			cluster_publish(warp);
		else
			__syncthreads();
		for (int i = tid; i < rows * (COLUMNS / 4); i += THREADS) {
			/*
			 * Four columns of a row, of all splits: these loads are in flight together
			 */
			const int r = part * share + (p.y_b == 1 ? i / (COLUMNS / 4) : i % rows);
			const int j = 4 * (p.y_b == 1 ? i % (COLUMNS / 4) : i / rows);
			const int b = (int)blockIdx.y * tile_vectors + j / p.terms;
			const float *at = partials + r * ACC_PITCH + j;
			float4 src[8] = {};
			float s[4] = {};

			if (row0 + r >= p.rows || b >= p.batch)
				continue;
#pragma unroll
			for (int z = 0; z < 8; z++) {
				if (p.split == 1 && z == 0)
					src[z] = *(const float4 *)at;
				else if (p.split > 1 && z < p.split)
					src[z] = cluster_load4(cluster_map(shared_address(at), z));
			}
#pragma unroll
			for (int z = 0; z < 8; z++) {
				s[0] += src[z].x;
				s[1] += src[z].y;
				s[2] += src[z].z;
				s[3] += src[z].w;
			}
			store_row(row0 + r, b, s, unscale);
		}
		__syncwarp();
		if (p.split > 1) {
			cluster_arrive_relaxed();
			cluster_wait();
		}
	}
};

#define TABLE_WGMMA_BODY(...) { table_wgmma_block<__VA_ARGS__>(p).run(); }
#else
#define TABLE_WGMMA_BODY(...) { }
#endif

#define KERNEL(name, words, columns, scaled) \
	extern "C" __global__ void __launch_bounds__(HZI_VLUT_WGMMA_THREADS, 1) \
	name(const __grid_constant__ hzi_vlut_table_wgmma p) \
	TABLE_WGMMA_BODY(words, columns, scaled)
#define KERNELS(name, words, scaled) \
	KERNEL(name##_16, words, 16, scaled) \
	KERNEL(name##_32, words, 32, scaled) \
	KERNEL(name##_64, words, 64, scaled) \
	KERNEL(name##_128, words, 128, scaled)

#endif
