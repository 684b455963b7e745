/*
 * d4_f16_wgmma.cu - products of packed codes of D4 and many vectors of f16: for Hopper
 *
 * SPDX-License-Identifier: BSD-2-Clause
 *
 * Codes are decoded by logic (d4_bitfield.cuh) to f16 in registers, which are the left operand of
 * the matrix units. x lies in memory as rows of k, and is the right operand as the copy engine
 * brings it: step i of a chunk takes coordinate i of all its lattice blocks, rows i and 4 + i of
 * each 8, so these come as planes, 8 rows apart. One warp asks for copies, the others multiply;
 * warpgroups have other rows, or other chunks of k. Splits of k are blocks of a cluster, whose sums
 * are added in their order.
 */
#include "gpu/device/shared.cuh"
#include "gpu/device/tma.cuh"
#include "gpu/device/wgmma_f16.cuh"
#include "gpu/vlut/d4_f16_wgmma.h"
#include "gpu/vlut/table_s8.cuh"
#include "gpu/vlut/d4_bitfield.cuh"

#if HAVE_WGMMA

#define CHUNK HZI_BATCH_CHUNK
#define LINES (CHUNK / HZI_FIELDS_CHUNK * HZI_FIELDS_BYTES / 128)	/* of a chunk of a tile */

/* See HZI_BATCH_16_1. */
template <int COLUMNS, int TURNS, int BESIDE, int SLICES, int SLOTS, int REGISTERS>
struct vlut_batch_block {
	static constexpr int WARPS = 4 * BESIDE * SLICES,
			     THREADS = HZI_BATCH_THREADS(BESIDE, SLICES, REGISTERS);
	static constexpr int TILES = 4 * TURNS * BESIDE, ROWS = TILES * HZI_FIELDS_ROWS;
	static constexpr int X_BYTES = CHUNK * COLUMNS * 2,
			     SLOT = HZI_BATCH_SLOT(COLUMNS, TURNS, BESIDE);
	/* Columns of a line of x, bytes of 8 lines, of a plane of a chunk */
	static constexpr int LINE = COLUMNS < 64 ? COLUMNS : 64, EIGHT = LINE * 16,
			     PLANE = CHUNK / 64 * EIGHT;
	static constexpr int SUMS_LINE = COLUMNS + 4,
			     SUMS = HZI_BATCH_SUMS(COLUMNS, TURNS, BESIDE) / 4;
	static_assert(SLOTS > SLICES, "a chunk is released when the slice's next one has come");

	const hzi_vlut_batch &p;
	const int lane, warp, part, row0;
	uint8_t *const memory;
	const uint32_t ring, full, empty;

	__device__ __forceinline__ explicit vlut_batch_block(const hzi_vlut_batch &p_)
		: p(p_), lane(threadIdx.x % 32), warp(threadIdx.x / 32), part(blockIdx.x % p.split),
		  row0(blockIdx.x / p.split * ROWS), memory(shared_start()),
		  ring(shared_address(memory)), full(ring + SLOTS * SLOT), empty(full + 8 * SLOTS)
	{
	}

	__device__ __forceinline__ void run(void) const
	{
		const int begin = (int)((int64_t)p.chunks * part / p.split);
		const int n = (int)((int64_t)p.chunks * (part + 1) / p.split) - begin;

		if (threadIdx.x == 0) {
			for (int s = 0; s < SLOTS; s++) {
				mbarrier_init(full + 8 * s, 1);
				mbarrier_init(empty + 8 * s, 4 * BESIDE);
			}
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

	/* The chunk that is number j here is in slot j, of SLOTS in turn. */
	__device__ __forceinline__ void produce(int begin, int n) const
	{
		ring_position<SLOTS> slot;

		tma_prefetch_map(p.x);
		tma_prefetch_map(p.codes);
		pdl_wait();
		for (int j = 0; j < n; j++, slot.next()) {
			const uint32_t at = ring + slot.at * SLOT, barrier = full + 8 * slot.at;

			if (j >= SLOTS)
				mbarrier_wait(empty + 8 * slot.at, slot.parity ^ 1);
			mbarrier_expect_tx(barrier, SLOT);
			tma_load_3d(at + X_BYTES, p.codes, 0, (begin + j) * LINES, row0 / 16,
				    barrier);
#pragma unroll
			for (int b = 0; b < COLUMNS / LINE; b++)
				tma_load_3d(at + b * CHUNK * LINE * 2, p.x,
					    (blockIdx.y * COLUMNS + b * LINE) * 2,
					    (begin + j) * (CHUNK / 8), 0, barrier);
			if (j == min(SLOTS, n) - 1)
				pdl_launch_dependents();
		}
	}

	__device__ __forceinline__ void consume(int n) const
	{
		/* The same for all of a warp, as descriptors have to be */
		const int group = __shfl_sync(~0u, warp / 4, 0), slice = group / BESIDE;
		const int tile = group % BESIDE * TURNS * 4 + warp % 4;
		float acc[TURNS][COLUMNS / 2];

#pragma unroll
		for (int r = 0; r < TURNS; r++) {
#pragma unroll
			for (int i = 0; i < COLUMNS / 2; i++)
				acc[r][i] = 0;
			wgmma_keep(acc[r]);
		}
		if (p.centred)
			multiply<true>(acc, n, slice, tile);
		else
			multiply<false>(acc, n, slice, tile);
		wgmma_wait<0>();
#pragma unroll
		for (int r = 0; r < TURNS; r++)
			wgmma_keep(acc[r]);
		finish(acc, slice, tile);
	}

	template <bool CENTRED>
	__device__ __forceinline__ void multiply(float (&acc)[TURNS][COLUMNS / 2], int n, int slice,
						 int tile) const
	{
		/* Of 16 lines the second eight come 4 planes behind; then 64 columns further on */
		constexpr uint64_t shape =
			(LINE == 64 ? 1ull : LINE == 32 ? 2ull : 3ull) << 62 |
			(uint64_t)(4 * PLANE / 16) << 32;
		constexpr uint32_t next = CHUNK * LINE * 2 / 16 << 16;
		/* This lane's codes of the halves of a chunk, lines with the swizzle */
		uint32_t own[2];
		int slot = slice, phase = 0, last = -1;

		own[0] = X_BYTES + (tile * LINES + lane / 8) * 128 + (lane % 8 ^ lane / 8) * 16;
		own[1] = (own[0] ^ 64) + LINES / 2 * 128;
		asm volatile("" : "+r"(own[0]), "+r"(own[1]));
#pragma unroll 1
		for (int j = slice; j < n; j += SLICES) {
			const uint32_t at = ring + slot * SLOT, place = (at & 0x3ffff) >> 4 | next;
			/* While the matrix units read one, the other is made. */
			uint32_t a[2][4][4];

			mbarrier_wait(full + 8 * slot, phase);
#pragma unroll
			for (int e = 0; e < 2 * TURNS; e++) {
				const int half = e / TURNS, r = e % TURNS;
				const uint32_t lines = place + half * (EIGHT / 16);

				decode<CENTRED>(a[e % 2], at + own[half] + r * 4 * LINES * 128);
				wgmma_fence();
#pragma unroll
				for (int i = 0; i < 4; i++)
					wgmma_rs<true>(acc[r], a[e % 2][i],
						       shape | (lines + i * (PLANE / 16)));
				wgmma_commit();
				wgmma_wait<1>();
				if (e == 0 && last >= 0 && lane == 0)
					mbarrier_arrive(empty + 8 * last);
			}
			last = slot;
			slot += SLICES;
			if (slot >= SLOTS) {
				slot -= SLOTS;
				phase ^= 1;
			}
		}
	}

	/* Half a chunk of a tile */
	template <bool CENTRED>
	__device__ __forceinline__ void decode(uint32_t (&a)[4][4], uint32_t codes) const
	{
		uint32_t w[4], s[4];

		shared_load(w, codes);
		fields_signs(w, s);
#pragma unroll
		for (int i = 0; i < 4; i++) {
			fields_f16_both(a[i], w[i], s[i]);
			if (CENTRED) {
#pragma unroll
				for (int e = 0; e < 4; e++)
					a[i][e] = add_f16x2(a[i][e], p.minus[2 * i + e % 2]);
			}
		}
	}

	/* Of those that multiply */
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

	/* Sums lie where chunks were: slice by slice, rows of columns. */
	__device__ __forceinline__ void finish(const float (&acc)[TURNS][COLUMNS / 2], int slice,
					       int tile) const
	{
		float *const sums = (float *)memory;
		constexpr int FOURS = COLUMNS / 4;

		sync();
#pragma unroll
		for (int r = 0; r < TURNS; r++) {
			const int row = (tile + 4 * r) * 16 + lane / 4;

#pragma unroll
			for (int i = 0; i < COLUMNS / 2; i += 4) {
				float *const at = sums + slice * SUMS + row * SUMS_LINE + i * 2 +
						  2 * (lane % 4);
				const float *const s = acc[r] + i;

				/* see fields_f16_both() */
				*(float2 *)at = make_float2((s[0] - s[2]) * 0x1p24f,
							    (s[1] - s[3]) * 0x1p24f);
				*(float2 *)(at + 8 * SUMS_LINE) =
					make_float2(s[2] * 0x1p20f, s[3] * 0x1p20f);
			}
		}
		sync();
		if (p.split > 1) {
			if constexpr (SLICES > 1) {
				for (int i = threadIdx.x; i < ROWS * FOURS; i += WARPS * 32)
					add_slices(sums + i / FOURS * SUMS_LINE + i % FOURS * 4);
				sync();
			}
			if (warp == 0)
				cluster_arrive();
			else
				cluster_arrive_relaxed();
			cluster_wait();
		}

		const int from = ROWS * part / p.split, to = ROWS * (part + 1) / p.split;

		for (int i = threadIdx.x; i < (to - from) * FOURS; i += WARPS * 32) {
			const int row = from + i / FOURS, column = i % FOURS * 4;
			const int b = blockIdx.y * COLUMNS + column;
			const float *const at = sums + row * SUMS_LINE + column;
			float s[4] = {};

			if (row0 + row >= p.rows || b >= p.batch)
				continue;
			if (p.split > 1) {
				float4 of[HZI_BATCH_SPLIT] = {};

#pragma unroll
				for (int z = 0; z < HZI_BATCH_SPLIT; z++)
					if (z < p.split)
						of[z] = cluster_load4(
							cluster_map(shared_address(at), z));
#pragma unroll
				for (int z = 0; z < HZI_BATCH_SPLIT; z++)
					add(s, of[z]);
			} else {
#pragma unroll
				for (int z = 0; z < SLICES; z++)
					add(s, *(const float4 *)(at + z * SUMS));
			}
			store(row0 + row, b, s);
		}
		if (p.split > 1) {
			__syncwarp();
			cluster_arrive_relaxed();
			cluster_wait();
		}
	}

	__device__ __forceinline__ static void add_slices(float *at)
	{
		float s[4] = {};

#pragma unroll
		for (int z = 0; z < SLICES; z++)
			add(s, *(const float4 *)(at + z * SUMS));
		*(float4 *)at = make_float4(s[0], s[1], s[2], s[3]);
	}

	__device__ __forceinline__ void store(int64_t row, int b, const float (&s)[4]) const
	{
		float scale = p.scale;

		if (p.row_scale)
			scale *= p.row_scale[row * p.row_scale_step];
		if (p.y_dtype == HZ_F16 && p.y_fours && b + 4 <= p.batch) {
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

#define BODY(...) { vlut_batch_block<__VA_ARGS__>(p).run(); }
#else
#define BODY(...) { }
#endif

#define THREADS_OF(columns, turns, beside, slices, slots, registers) \
	HZI_BATCH_THREADS(beside, slices, registers)
#define THREADS(...) THREADS_OF(__VA_ARGS__)
#define KERNEL(name, ...) \
	extern "C" __global__ void __launch_bounds__(THREADS(__VA_ARGS__), 1) \
	name(const __grid_constant__ hzi_vlut_batch p) \
	BODY(__VA_ARGS__)

KERNEL(vlut_batch_16_1, HZI_BATCH_16_1)
KERNEL(vlut_batch_16_2, HZI_BATCH_16_2)
KERNEL(vlut_batch_16_3, HZI_BATCH_16_3)
KERNEL(vlut_batch_32_1, HZI_BATCH_32_1)
KERNEL(vlut_batch_32_2, HZI_BATCH_32_2)
KERNEL(vlut_batch_32_3, HZI_BATCH_32_3)
KERNEL(vlut_batch_64_1, HZI_BATCH_64_1)
KERNEL(vlut_batch_64_2, HZI_BATCH_64_2)
KERNEL(vlut_batch_64_3, HZI_BATCH_64_3)
KERNEL(vlut_batch_128_1, HZI_BATCH_128_1)
KERNEL(vlut_batch_128_2, HZI_BATCH_128_2)
KERNEL(vlut_batch_128_3, HZI_BATCH_128_3)
KERNEL(vlut_batch_256, HZI_BATCH_256)
