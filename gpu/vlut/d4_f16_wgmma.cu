/*
 * d4_f16_wgmma.cu - GEMM of packed D4 and f16 by wgmma, for 9 and more columns, sm_90a
 *
 * SPDX-License-Identifier: BSD-2-Clause
 *
 * Codes are decoded by bitwise logic (d4_bitfield.cuh) to f16 in registers, the A operand of wgmma.
 * x, row-major in k, is the B operand as TMA stores it; other x is copied by vlut_d4_x first. Step i
 * of a chunk multiplies coordinate i of all its lattice blocks, that is rows i and 4 + i of every 8
 * of k; TMA therefore loads x as planes of rows that are 8 apart. One warp issues TMA loads, the
 * others multiply; warpgroups have different rows, or different chunks of k. Splits of k are the
 * blocks of a cluster, which add their accumulators in a fixed order.
 */
#include "gpu/device/shared.cuh"
#include "gpu/device/tma.cuh"
#include "gpu/device/wgmma_f16.cuh"
#include "gpu/vlut/d4_f16_wgmma.h"
#include "gpu/vlut/table_s8.cuh"
#include "gpu/vlut/d4_bitfield.cuh"

#if HAVE_WGMMA

#define CHUNK HZI_VLUT_D4_WGMMA_CHUNK
#define LINES (CHUNK / HZI_VLUT_D4_CHUNK * HZI_VLUT_D4_BYTES / 128)	/* of a chunk of a tile */

/* For the template arguments, see HZI_VLUT_D4_WGMMA_64X16. */
template <int COLUMNS, int ROW_GROUPS, int WARPGROUPS, int K_WARPGROUPS, int STAGES, int REGISTERS>
struct d4_f16_wgmma_block {
	static constexpr int WARPS = 4 * WARPGROUPS * K_WARPGROUPS,
			     THREADS =
				     HZI_VLUT_D4_WGMMA_THREADS(WARPGROUPS, K_WARPGROUPS, REGISTERS);
	static constexpr int TILES = 4 * ROW_GROUPS * WARPGROUPS, ROWS = TILES * HZI_VLUT_D4_ROWS;
	static constexpr int X_BYTES = CHUNK * COLUMNS * 2,
			     STAGE_BYTES = HZI_VLUT_D4_WGMMA_STAGE(COLUMNS, ROW_GROUPS, WARPGROUPS);
	/* Columns of a TMA box of x; bytes of 8 rows of a box; bytes of a plane of a chunk */
	static constexpr int BOX_COLUMNS = COLUMNS < 64 ? COLUMNS : 64,
			     CORE_BYTES = BOX_COLUMNS * 16, PLANE = CHUNK / 64 * CORE_BYTES;
	static constexpr int ACC_PITCH = COLUMNS + 4,
			     ACC_FLOATS =
				     HZI_VLUT_D4_WGMMA_ACC(COLUMNS, ROW_GROUPS, WARPGROUPS) / 4;
	/*
	 * Slices share the stages, but not the barriers of loads: waiting for a parity, a slice
	 * could not tell whether another slice's chunk ahead of its own has come.
	 */
	static constexpr int LOADS = HZI_VLUT_D4_WGMMA_LOADS(K_WARPGROUPS, STAGES);
	static_assert(STAGES > K_WARPGROUPS,
		      "a chunk is released when the slice's next one has come");

	const hzi_vlut_d4_f16_wgmma &p;
	const int lane, warp, part, row0;
	uint8_t *const memory;
	const uint32_t ring, full, empty;

	__device__ __forceinline__ explicit d4_f16_wgmma_block(const hzi_vlut_d4_f16_wgmma &p_)
		: p(p_), lane(threadIdx.x % 32), warp(threadIdx.x / 32), part(blockIdx.x % p.split),
		  row0(blockIdx.x / p.split * ROWS), memory(shared_start()),
		  ring(shared_address(memory)), full(ring + STAGES * STAGE_BYTES),
		  empty(full + 8 * LOADS)
	{
	}

	__device__ __forceinline__ void run(void) const
	{
		const int begin = (int)((int64_t)p.chunks * part / p.split);
		const int n = (int)((int64_t)p.chunks * (part + 1) / p.split) - begin;

		if (threadIdx.x == 0) {
			for (int s = 0; s < LOADS; s++)
				mbarrier_init(full + 8 * s, 1);
			for (int s = 0; s < STAGES; s++)
				mbarrier_init(empty + 8 * s, 4 * WARPGROUPS);
			mbarrier_init_fence();
		}
		__syncthreads();
		if (warp >= WARPS) {
			if constexpr (REGISTERS != 0)
				setmaxnreg_dec<WARPS == 16 ? 32 : 40>();
			if (warp == WARPS && lane == 0)
				produce(begin, n);
			__syncwarp();
			if (p.split > 1) {
				cluster_arrive_relaxed();
				cluster_wait();
				cluster_arrive_relaxed();
				cluster_wait();
			}
		} else {
			if constexpr (REGISTERS != 0)
				setmaxnreg_inc<REGISTERS ? REGISTERS : 24>();
			consume(n);
		}
	}

	/* Chunk j of this block is loaded into stage j % STAGES, with barrier j % LOADS. */
	__device__ __forceinline__ void produce(int begin, int n) const
	{
		ring_position<STAGES> stage;
		ring_position<LOADS> load;

		tma_prefetch_map(p.x);
		tma_prefetch_map(p.codes);
		pdl_wait();
		for (int j = 0; j < n; j++, stage.next(), load.next()) {
			const uint32_t at = ring + stage.at * STAGE_BYTES,
				       barrier = full + 8 * load.at;

			if (j >= STAGES)
				mbarrier_wait(empty + 8 * stage.at, stage.parity ^ 1);
			mbarrier_expect_tx(barrier, STAGE_BYTES);
			tma_load_3d(at + X_BYTES, p.codes, 0, (begin + j) * LINES, row0 / 16,
				    barrier);
#pragma unroll
			for (int b = 0; b < COLUMNS / BOX_COLUMNS; b++)
				tma_load_3d(at + b * CHUNK * BOX_COLUMNS * 2, p.x,
					    (blockIdx.y * COLUMNS + b * BOX_COLUMNS) * 2,
					    (begin + j) * (CHUNK / 8), 0, barrier);
			if (j == min(STAGES, n) - 1)
				pdl_launch_dependents();
		}
	}

	__device__ __forceinline__ void consume(int n) const
	{
		/* Uniform in a warp, as descriptors must be */
		const int group = __shfl_sync(~0u, warp / 4, 0), k_slice = group / WARPGROUPS;
		const int tile = group % WARPGROUPS * ROW_GROUPS * 4 + warp % 4;
		float acc[ROW_GROUPS][COLUMNS / 2];

#pragma unroll
		for (int r = 0; r < ROW_GROUPS; r++) {
#pragma unroll
			for (int i = 0; i < COLUMNS / 2; i++)
				acc[r][i] = 0;
			wgmma_keep(acc[r]);
		}
		if (p.has_offset)
			multiply<true>(acc, n, k_slice, tile);
		else
			multiply<false>(acc, n, k_slice, tile);
		wgmma_wait<0>();
#pragma unroll
		for (int r = 0; r < ROW_GROUPS; r++)
			wgmma_keep(acc[r]);
		finish(acc, k_slice, tile);
	}

	template <bool HAS_OFFSET>
	__device__ __forceinline__ void multiply(float (&acc)[ROW_GROUPS][COLUMNS / 2], int n,
						 int k_slice, int tile) const
	{
		/*
		 * B descriptor: of 16 rows, the second eight are 4 planes behind; `next` is the
		 * step to the next 64 columns
		 */
		constexpr uint64_t shape =
			(BOX_COLUMNS == 64 ? 1ull : BOX_COLUMNS == 32 ? 2ull : 3ull) << 62 |
			(uint64_t)(4 * PLANE / 16) << 32;
		constexpr uint32_t next = CHUNK * BOX_COLUMNS * 2 / 16 << 16;
		/*
		 * Offsets of this lane's codes of both halves of a chunk, in swizzled 128-byte
		 * lines
		 */
		uint32_t code_offset[2];
		int stage = k_slice, load = k_slice, phase = 0, last = -1;

		code_offset[0] =
			X_BYTES + (tile * LINES + lane / 8) * 128 + (lane % 8 ^ lane / 8) * 16;
		code_offset[1] = (code_offset[0] ^ 64) + LINES / 2 * 128;
		asm volatile("" : "+r"(code_offset[0]), "+r"(code_offset[1]));
#pragma unroll 1
		for (int j = k_slice; j < n; j += K_WARPGROUPS) {
			const uint32_t at = ring + stage * STAGE_BYTES,
				       descriptor = (at & 0x3ffff) >> 4 | next;
			/* Double buffer: wgmma reads one half while the other is decoded. */
			uint32_t a[2][4][4];

			mbarrier_wait(full + 8 * load, phase);
#pragma unroll
			for (int e = 0; e < 2 * ROW_GROUPS; e++) {
				const int half = e / ROW_GROUPS, r = e % ROW_GROUPS;
				const uint32_t b_descriptor = descriptor + half * (CORE_BYTES / 16);

				decode<HAS_OFFSET>(a[e % 2], at + code_offset[half] +
						   r * 4 * LINES * 128);
				wgmma_fence();
#pragma unroll
				for (int i = 0; i < 4; i++)
					wgmma_rs<true>(acc[r], a[e % 2][i],
						       shape | (b_descriptor + i * (PLANE / 16)));
				wgmma_commit();
				wgmma_wait<1>();
				if (e == 0 && last >= 0 && lane == 0)
					mbarrier_arrive(empty + 8 * last);
			}
			last = stage;
			stage += K_WARPGROUPS;
			if (stage >= STAGES)
				stage -= STAGES;
			load += K_WARPGROUPS;
			if (load >= LOADS) {
				load -= LOADS;
				phase ^= 1;
			}
		}
	}

	/* Decodes half a chunk of a row tile. */
	template <bool HAS_OFFSET>
	__device__ __forceinline__ void decode(uint32_t (&a)[4][4], uint32_t codes) const
	{
		uint32_t w[4], s[4];

		shared_load(w, codes);
		d4_signs(w, s);
#pragma unroll
		for (int i = 0; i < 4; i++) {
			d4_points_f16_both(a[i], w[i], s[i]);
			if (HAS_OFFSET) {
#pragma unroll
				for (int e = 0; e < 4; e++)
					a[i][e] = add_f16x2(a[i][e], p.minus_offset[2 * i + e % 2]);
			}
		}
	}

	/* Barrier of the consumer warps */
	__device__ __forceinline__ void sync(void) const
	{
		bar_sync(1, WARPS * 32);
	}

	__device__ __forceinline__ static void add(float (&s)[4], float4 v)
	{
		s[0] += v.x;
		s[1] += v.y;
		s[2] += v.z;
		s[3] += v.w;
	}

	/* Accumulators overlay the stages, one slab per warpgroup along k. */
	__device__ __forceinline__ void finish(const float (&acc)[ROW_GROUPS][COLUMNS / 2],
					       int k_slice, int tile) const
	{
		float *const partials = (float *)memory;
		constexpr int VECTORS = COLUMNS / 4;

		sync();
#pragma unroll
		for (int r = 0; r < ROW_GROUPS; r++) {
			const int row = (tile + 4 * r) * 16 + lane / 4;

#pragma unroll
			for (int i = 0; i < COLUMNS / 2; i += 4) {
				float *const at = partials + k_slice * ACC_FLOATS +
						  row * ACC_PITCH + i * 2 + 2 * (lane % 4);
				const float *const s = acc[r] + i;

				/* see d4_points_f16_both() */
				*(float2 *)at = make_float2((s[0] - s[2]) * 0x1p24f,
							    (s[1] - s[3]) * 0x1p24f);
				*(float2 *)(at + 8 * ACC_PITCH) =
					make_float2(s[2] * 0x1p20f, s[3] * 0x1p20f);
			}
		}
		sync();
		if (p.split > 1) {
			if constexpr (K_WARPGROUPS > 1) {
				for (int i = threadIdx.x; i < ROWS * VECTORS; i += WARPS * 32)
					add_k_slices(partials + i / VECTORS * ACC_PITCH +
						     i % VECTORS * 4);
				sync();
			}
			cluster_release(warp);
		}

		const int begin_row = ROWS * part / p.split;
		const int rows = ROWS * (part + 1) / p.split - begin_row;

		for (int i = threadIdx.x; i < rows * VECTORS; i += WARPS * 32) {
			const int row = begin_row + (p.rows_first ? i % rows : i / VECTORS);
			const int column = (p.rows_first ? i / rows : i % VECTORS) * 4;
			const int b = blockIdx.y * COLUMNS + column;
			const float *const at = partials + row * ACC_PITCH + column;
			float s[4] = {};

			if (row0 + row >= p.rows || b >= p.batch)
				continue;
			if (p.split > 1) {
				float4 terms[HZI_VLUT_D4_WGMMA_SPLIT] = {};

#pragma unroll
				for (int z = 0; z < HZI_VLUT_D4_WGMMA_SPLIT; z++)
					if (z < p.split)
						terms[z] = cluster_load4(
							   cluster_map(shared_address(at), z));
#pragma unroll
				for (int z = 0; z < HZI_VLUT_D4_WGMMA_SPLIT; z++)
					add(s, terms[z]);
			} else {
#pragma unroll
				for (int z = 0; z < K_WARPGROUPS; z++)
					add(s, *(const float4 *)(at + z * ACC_FLOATS));
			}
			store(row0 + row, b, s);
		}
		if (p.split > 1) {
			__syncwarp();
			cluster_arrive_relaxed();
			cluster_wait();
		}
	}

	__device__ __forceinline__ static void add_k_slices(float *at)
	{
		float s[4] = {};

#pragma unroll
		for (int z = 0; z < K_WARPGROUPS; z++)
			add(s, *(const float4 *)(at + z * ACC_FLOATS));
		*(float4 *)at = make_float4(s[0], s[1], s[2], s[3]);
	}

	__device__ __forceinline__ void store(int64_t row, int b, const float (&s)[4]) const
	{
		float scale = p.scale;

		if (p.row_scale)
			scale *= p.row_scale[row * p.row_scale_step];
		if (p.y_dtype == HZ_F16 && p.y_vectorized && b + 4 <= p.batch) {
			*(uint2 *)((uint16_t *)p.y + row * p.y_i + b) =
				make_uint2(to_f16x2(s[0] * scale, s[1] * scale),
					   to_f16x2(s[2] * scale, s[3] * scale));
			return;
		}
#pragma unroll
		for (int e = 0; e < 4; e++) {
			if (b + e < p.batch)
				store_any(p.y_dtype, p.y, row * p.y_i + (b + e) * p.y_b,
					  s[e] * scale);
		}
	}
};

#define BODY(...) { d4_f16_wgmma_block<__VA_ARGS__>(p).run(); }
#else
#define BODY(...) { }
#endif

/* A tile goes through shared memory: one side is contiguous along k, the other along columns. */
extern "C" __global__ void __launch_bounds__(HZI_VLUT_D4_X_THREADS)
vlut_d4_x(const __grid_constant__ hzi_vlut_d4_x p)
{
#if HAVE_WGMMA
	constexpr int SIDE = HZI_VLUT_D4_X_TILE, STEP = HZI_VLUT_D4_X_THREADS / SIDE;
	__shared__ uint16_t tile[SIDE][SIDE + 2];
	const int lane = threadIdx.x % SIDE, first = threadIdx.x / SIDE;
	const int64_t k0 = (int64_t)blockIdx.x * SIDE, b0 = (int64_t)blockIdx.y * SIDE;

	pdl_launch_dependents();
	pdl_wait();
#pragma unroll
	for (int i = 0; i < SIDE; i += STEP) {
		const int64_t k = k0 + lane, b = b0 + i + first;

		tile[i + first][lane] = k < p.k && b < p.batch ? p.x[k * p.x_k + b * p.x_b] : 0;
	}
	__syncthreads();
#pragma unroll
	for (int i = 0; i < SIDE; i += STEP) {
		if (k0 + i + first < p.k && b0 + lane < p.pitch)
			p.rows[(k0 + i + first) * p.pitch + b0 + lane] = tile[lane][i + first];
	}
#endif
}

#define THREADS_OF(columns, row_groups, warpgroups, k_warpgroups, stages, registers) \
	HZI_VLUT_D4_WGMMA_THREADS(warpgroups, k_warpgroups, registers)
#define THREADS(...) THREADS_OF(__VA_ARGS__)
#define KERNEL(name, ...) \
	extern "C" __global__ void __launch_bounds__(THREADS(__VA_ARGS__), 1) \
	name(const __grid_constant__ hzi_vlut_d4_f16_wgmma p) \
	BODY(__VA_ARGS__)

KERNEL(vlut_d4_f16_wgmma_64x16, HZI_VLUT_D4_WGMMA_64X16)
KERNEL(vlut_d4_f16_wgmma_128x16, HZI_VLUT_D4_WGMMA_128X16)
KERNEL(vlut_d4_f16_wgmma_192x16, HZI_VLUT_D4_WGMMA_192X16)
KERNEL(vlut_d4_f16_wgmma_64x32, HZI_VLUT_D4_WGMMA_64X32)
KERNEL(vlut_d4_f16_wgmma_128x32, HZI_VLUT_D4_WGMMA_128X32)
KERNEL(vlut_d4_f16_wgmma_192x32, HZI_VLUT_D4_WGMMA_192X32)
KERNEL(vlut_d4_f16_wgmma_64x64, HZI_VLUT_D4_WGMMA_64X64)
KERNEL(vlut_d4_f16_wgmma_128x64, HZI_VLUT_D4_WGMMA_128X64)
KERNEL(vlut_d4_f16_wgmma_192x64, HZI_VLUT_D4_WGMMA_192X64)
KERNEL(vlut_d4_f16_wgmma_64x128, HZI_VLUT_D4_WGMMA_64X128)
KERNEL(vlut_d4_f16_wgmma_128x128, HZI_VLUT_D4_WGMMA_128X128)
KERNEL(vlut_d4_f16_wgmma_192x128, HZI_VLUT_D4_WGMMA_192X128)
KERNEL(vlut_d4_f16_wgmma_128x256, HZI_VLUT_D4_WGMMA_128X256)
