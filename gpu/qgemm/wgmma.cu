/*
 * wgmma.cu - quantized matrix multiplication on Hopper
 *
 * SPDX-License-Identifier: BSD-2-Clause
 *
 * Blocks of k of both operands come by the copy engine into a ring in shared memory, which the
 * matrix units read. Code for sm_90a alone: elsewhere the kernels are empty and are not launched.
 */
#include "gpu/qgemm/epilogue.cuh"
#include "gpu/device/reduce.cuh"
#include "gpu/device/shared.cuh"
#include "gpu/device/tma.cuh"
#include "gpu/device/wgmma_s8.cuh"

#if HAVE_WGMMA

/* ---- Barriers of some warps ------------------------------------------------------------------ */

/* Whether all of those threads say so. */
HZ_DEVICE bool named_and(int id, int threads, bool mine)
{
	int all;

	asm volatile("{\n\t"
		     ".reg .pred p, q;\n\t"
		     "setp.ne.b32 q, %3, 0;\n\t"
		     "barrier.cta.red.and.pred p, %1, %2, q;\n\t"
		     "selp.b32 %0, 1, 0, p;\n\t"
		     "}" : "=r"(all) : "r"(id), "r"(threads), "r"((int)mine) : "memory");
	return all;
}

/* ---- Many rows ------------------------------------------------------------------------------- */

/* Registers of a thread that multiplies, and of another: as many as 3 times 168, at the start. */
#define MULTIPLY_REGISTERS 208
#define OTHER_REGISTERS 88

/*
 * A comes from shared memory, where two warps read it once more for the sums of its rows. In tiles
 * of 96 and 128 columns it comes from registers, which the warps that multiply load and add up:
 * this is faster there, but not with more columns. The narrowest tiles have 16 more columns of
 * ones, which make the sums of A's rows.
 */
template <int COLUMNS>
struct tma_kind {
	static constexpr bool left = COLUMNS == 96 || COLUMNS == 128;
	static constexpr int ones = COLUMNS == 64 ? HZI_WGMMA_ONES : 0;
	static constexpr bool adds = !left && !ones;	/* those two warps */
};

template <int COLUMNS, int STAGES>
struct tma_memory {
	uint8_t a[STAGES][HZI_WGMMA_ROWS * HZI_QK_BLOCK];
	uint8_t b[STAGES][(COLUMNS + tma_kind<COLUMNS>::ones) * HZI_QK_BLOCK];
	out_columns<COLUMNS> column[2];	/* of this tile and the next, by turns */
	int32_t row_sum[2][HZI_WGMMA_ROWS];
	int32_t quick[2];
	alignas(16) int32_t stage[8][8 * HZI_QSTAGE_WORDS];	/* of the warps that multiply */
	uint64_t full[STAGES], empty[STAGES];
	uint64_t ready[2], taken[2];	/* column, row_sum and quick */
};

#define TMA_SIZE(columns, stages) \
	static_assert(sizeof(tma_memory<columns, stages>) <= HZI_WGMMA_BYTES(columns, stages), \
		      "what the launcher asks for")
TMA_SIZE(256, 4);
TMA_SIZE(192, 5);
TMA_SIZE(128, 6);
TMA_SIZE(96, 7);
TMA_SIZE(64, 7);

/* Tile t of the clusters' tiles: bands of rows, each done column by column, so that L2 has both. */
HZ_DEVICE void tile_of(const hzi_qgemm_wgmma &p, uint32_t t, int &i, int &j)
{
	const uint32_t whole = p.band * p.tiles_n, band = t < whole ? 0 : t / whole;
	const uint32_t rows = min(p.band, p.tiles_m - (int)band * p.band), rest = t - band * whole;

	j = (int)(rest / rows);
	i = (int)(band * p.band + rest - j * rows);
}

/* Goes on to the next tile of this cluster; false if that was the last. */
template <int CLUSTER>
HZ_DEVICE bool next_tile(const hzi_qgemm_wgmma &p, int &t, int &i, int &j)
{
	t += gridDim.x / CLUSTER;
	if (t >= p.tiles_m * p.tiles_n)
		return false;
	tile_of(p, t, i, j);
	return true;
}

/*
 * The blocks of a cluster: DOWN along m, which share B, by ACROSS along n, which share A. rank is
 * that along m plus DOWN times that along n.
 */
template <int COLUMNS, int DOWN, int ACROSS>
struct cluster_of {
	static constexpr int blocks = DOWN * ACROSS;
	int down, across;

	__device__ __forceinline__ cluster_of(int rank) : down(rank % DOWN), across(rank / DOWN)
	{
	}

	/* The first row and column of a tile of this block. */
	__device__ __forceinline__ int row(int i) const
	{
		return (i * DOWN + down) * HZI_WGMMA_ROWS;
	}

	__device__ __forceinline__ int column(int j) const
	{
		return (j * ACROSS + across) * COLUMNS;
	}

	/* Whether that block gets some of what this one copies, and the other way round. */
	__device__ __forceinline__ bool shares(int rank) const
	{
		return rank < blocks && (rank % DOWN == down || rank / DOWN == across);
	}
};

/* The thread that loads: its share of A and of B for all blocks that need them. */
template <int COLUMNS, int STAGES, int DOWN, int ACROSS>
HZ_DEVICE void tma_load(const hzi_qgemm_wgmma &p, tma_memory<COLUMNS, STAGES> &s,
			const cluster_of<COLUMNS, DOWN, ACROSS> &at, int t, int i, int j)
{
	constexpr int share = COLUMNS / DOWN, rows = HZI_WGMMA_ROWS / ACROSS;
	const uint16_t b_blocks = ((1 << DOWN) - 1) << DOWN * at.across;
	uint16_t a_blocks = 0;
	bool first = true;
	ring_position<STAGES> ring;

#pragma unroll
	for (int r = 0; r < ACROSS; r++)
		a_blocks |= 1 << (at.down + DOWN * r);
#pragma unroll 1
	do {
		const int m0 = at.row(i) + at.across * rows, n0 = at.column(j);
		const int lines = max(0, min(COLUMNS, p.width - n0));
		const int mine = max(0, min(share, lines - at.down * share)) * HZI_QK_BLOCK;
		const uint8_t *b = p.b + (int64_t)(n0 + at.down * share) * HZI_QK_BLOCK;

#pragma unroll 1
		for (int k = 0; k < p.blocks; k++) {
			const uint32_t full = shared_address(&s.full[ring.at]);
			const uint32_t b_to = shared_address(s.b[ring.at]) +
					      at.down * share * HZI_QK_BLOCK;
			const uint32_t a_to = shared_address(s.a[ring.at]) +
					      at.across * rows * HZI_QK_BLOCK;

			mbarrier_wait(shared_address(&s.empty[ring.at]), ring.parity ^ 1);
			mbarrier_expect_tx(full, (HZI_WGMMA_ROWS + lines) * HZI_QK_BLOCK);
			if (mine && DOWN == 1)
				bulk_copy(b_to, b, mine, full);
			else if (mine)
				bulk_copy_multicast(b_blocks, b_to, b, mine, full);
			/* The first of B is under way before the kernel ahead has ended. */
			if (first)
				pdl_wait();
			first = false;
			if (ACROSS == 1)
				tma_load_2d(a_to, p.a, k * HZI_QK_BLOCK, m0, full);
			else
				tma_load_2d_multicast(a_blocks, a_to, p.a, k * HZI_QK_BLOCK, m0,
						      full);
			b += (int64_t)p.width * HZI_QK_BLOCK;
			ring.next();
		}
	} while (next_tile<DOWN * ACROSS>(p, t, i, j));
}

/*
 * A thread's sums are of units of 64 lines of B, of which it has 16 successive columns; or where
 * tiles end amid 64, of units of 32, of which it has 8: the first of these.
 */
template <int COLUMNS>
struct unit {
	static constexpr int lines = COLUMNS % 64 ? 32 : 64, each = lines / 4;
};

HZ_DEVICE int unit_column(int line, int q)
{
	return (line & ~63) + 16 * q + (line >> 2 & 8);
}

/* Of 64 columns those of the unit from line on. */
template <int COLUMNS>
HZ_DEVICE out_part part_of(int line)
{
	if (unit<COLUMNS>::lines == 64)
		return {0, 0};
	return {8, line >> 2 & 8};
}

/*
 * Two warps that make ready what the end of a tile needs: columns, and sums of the rows of A, two
 * rows a thread.
 */
template <int COLUMNS, int STAGES, int DOWN, int ACROSS, bool SIGNED>
HZ_DEVICE void tma_prepare(const hzi_qgemm_wgmma &p, tma_memory<COLUMNS, STAGES> &s,
			   const cluster_of<COLUMNS, DOWN, ACROSS> &at, int t, int i, int j)
{
	constexpr int each = unit<COLUMNS>::each;
	const int thread = threadIdx.x % 64, lane = threadIdx.x % 32;
	ring_position<STAGES> ring;
	ring_position<2> tile;

	pdl_wait();
	do {
		const int n0 = at.column(j);
		int32_t sum[2] = {};
		bool fits = p.out.quick;

		mbarrier_wait(shared_address(&s.taken[tile.at]), tile.parity ^ 1);
		for (int n = thread; p.out.quick && n < COLUMNS; n += 64) {
			const int line = n0 + n / (4 * each) * (4 * each);
			const int column = unit_column(line, n / each % 4) + n % each;

			fits &= quick_column(p.out, column, s.column[tile.at], n);
		}
		fits = named_and(1, 64, fits);
		for (int k = 0; p.out.a_sums && tma_kind<COLUMNS>::adds && k < p.blocks; k++) {
			const uint32_t line = shared_address(s.a[ring.at]) + thread * HZI_QK_BLOCK;

			mbarrier_wait(shared_address(&s.full[ring.at]), ring.parity);
#pragma unroll
			for (int c = 0; c < 16; c++) {
				const uint4 v = shared_load(line + c / 8 * 64 * HZI_QK_BLOCK +
							    16 * (c % 8 ^ (thread & 7)));

				sum[c / 8] = add_codes<SIGNED>(v.x, sum[c / 8]);
				sum[c / 8] = add_codes<SIGNED>(v.y, sum[c / 8]);
				sum[c / 8] = add_codes<SIGNED>(v.z, sum[c / 8]);
				sum[c / 8] = add_codes<SIGNED>(v.w, sum[c / 8]);
			}
			__syncwarp();
			if (lane == 0)
				mbarrier_arrive(shared_address(&s.empty[ring.at]));
			ring.next();
		}
		s.row_sum[tile.at][thread] = sum[0];
		s.row_sum[tile.at][thread + 64] = sum[1];
		if (thread == 0)
			s.quick[tile.at] = fits ? p.out.quick : 0;
		mbarrier_arrive(shared_address(&s.ready[tile.at]));
		tile.next();
	} while (next_tile<DOWN * ACROSS>(p, t, i, j));
}

/* A warpgroup that multiplies: 64 rows of each tile. */
template <int COLUMNS, int STAGES, int DOWN, int ACROSS, bool SIGNED>
HZ_DEVICE void tma_multiply(const hzi_qgemm_wgmma &p, tma_memory<COLUMNS, STAGES> &s,
			    const cluster_of<COLUMNS, DOWN, ACROSS> &at, int group, int t, int i,
			    int j)
{
	constexpr int lines = unit<COLUMNS>::lines, each = unit<COLUMNS>::each;
	constexpr int ones = tma_kind<COLUMNS>::ones;
	constexpr bool from_left = tma_kind<COLUMNS>::left;
	const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane >> 2, q = lane & 3;
	const int row = 64 * group + warp % 4 * 16;
	const bool tells = at.shares(lane);
	int32_t acc[(COLUMNS + ones) / 2];
	/* Of blocks of k by turns: what a product still reads stays where it is. */
	uint32_t left[2][16];
	/* Places in the ring that will be filled again: nobody may tell a block that has ended. */
	int again = ((p.tiles_m * p.tiles_n - 1 - t) / (gridDim.x / (DOWN * ACROSS)) + 1) *
			    p.blocks - STAGES;
	ring_position<STAGES> ring;
	ring_position<2> tile;
	bool more;

	auto done_with = [&](int place) {
		if (again-- > 0 && tells)
			mbarrier_arrive_cluster(cluster_map(shared_address(&s.empty[place]), lane));
	};

	pdl_wait();
	do {
		const int m0 = at.row(i) + row, n0 = at.column(j);
		out_row of[2] = {quick_row(p.out, m0 + g), quick_row(p.out, m0 + g + 8)};
		int32_t sum[2] = {};
		int last = -1;

		auto step = [&](int k, uint32_t (&a)[16]) {
			const uint32_t lines_a = shared_address(s.a[ring.at]);
			const uint64_t a_lines =
				wgmma_desc_k(lines_a + group * 64 * HZI_QK_BLOCK);
			const uint64_t b = wgmma_desc_k(shared_address(s.b[ring.at]));

			mbarrier_wait(shared_address(&s.full[ring.at]), ring.parity);
			if (from_left)
				wgmma_load_a(a, lines_a + row * HZI_QK_BLOCK);
			wgmma_keep(acc);
			wgmma_fence();
#pragma unroll
			for (int c = 0; c < 4; c++) {
				if constexpr (from_left)
					wgmma_rs<SIGNED>(acc, a + 4 * c, b + 2 * c, k | c);
				else
					wgmma<SIGNED, false>(acc, a_lines + 2 * c, b + 2 * c,
							     k | c);
			}
			wgmma_commit();
#pragma unroll
			for (int e = 0; from_left && e < 16; e++)
				sum[e % 2] = add_codes<SIGNED>(a[e], sum[e % 2]);
			wgmma_keep(acc);
			wgmma_wait<1>();
			wgmma_keep(acc);
			if (last >= 0)
				done_with(last);
			last = ring.at;
			ring.next();
		};

		if (from_left) {
#pragma unroll 1
			for (int k = 0; k < p.blocks; k += 2) {
				step(k, left[0]);
				if (k + 1 < p.blocks)
					step(k + 1, left[1]);
			}
		} else {
			for (int k = 0; k < p.blocks; k++)
				step(k, left[0]);
		}
		/* While the last products are made. */
		more = next_tile<DOWN * ACROSS>(p, t, i, j);
		asm volatile("" : "+r"(i), "+r"(j));
#pragma unroll
		for (int h = 0; from_left && h < 2; h++)
			sum[h] = quad_sum(sum[h]);
		wgmma_wait<0>();
		wgmma_keep(acc);
		done_with(last);

		mbarrier_wait(shared_address(&s.ready[tile.at]), tile.parity);
#pragma unroll
		for (int h = 0; h < 2; h++) {
			if constexpr (ones > 0)
				sum[h] = acc[COLUMNS / 2 + 2 * h];
			else if (!from_left)
				sum[h] = s.row_sum[tile.at][row + g + 8 * h];
			of[h].sum = sum[h];
		}
		if (s.quick[tile.at] == HZI_EPILOGUE_CODES) {
			/* No column is ahead of these, so that rows beyond m have none. */
			const int from = lines == 64 ? n0 : n0 & ~63;
			const out_rows to = quick_out(p.out, m0 + g, from);

			quick_kind(p.out, [&](auto uniform, auto bounded) {
#pragma unroll
				for (int c = 0; c < COLUMNS; c += lines) {
					int32_t v[2][each];

#pragma unroll
					for (int e = 0; e < 2 * each; e++)
						v[e / each][e % each] =
							acc[c / 2 + e % each / 2 * 4 +
							    e / each * 2 + e % 2];
					quick_put<decltype(uniform)::value,
						  decltype(bounded)::value>(
						p.out, v, s.column[tile.at], c + each * q,
						lines == 64 ? c + 16 * q
							    : unit_column(n0 + c, q) - from,
						sum, to);
				}
			});
		} else if (s.quick[tile.at]) {
#pragma unroll
			for (int c = 0; c < COLUMNS / lines * 2; c++) {
				const int first = c / 2 * lines, line = n0 + first, h = c % 2;
				const out_part part = part_of<COLUMNS>(line);
				const int n = lane % 16 * 4;
				const int at_n = lines == 64 ? n : n / 16 * 8 + n % 8;
				int32_t v[each];

#pragma unroll
				for (int e = 0; e < each; e++)
					v[e] = acc[first / 2 + e / 2 * 4 + h * 2 + e % 2];
				stage_put(s.stage[warp], v, of[h], part.part);
				quick_rows(p.out, s.stage[warp],
					   load_four(s.column[tile.at], first + at_n),
					   m0 + 8 * h, line & ~63, part);
			}
		} else {
			/* The code of a step is there once, but for taking the sums. */
#pragma unroll 1
			for (int c = 0; c < COLUMNS / lines * 2; c++) {
				const int line = n0 + c / 2 * lines;
				const out_part part = part_of<COLUMNS>(line);

#pragma unroll
				for (int d = 0; d < COLUMNS / lines * 2; d++) {
					int32_t v[each];

#pragma unroll
					for (int e = 0; e < each; e++)
						v[e] = acc[d / 2 * lines / 2 + e / 2 * 4 +
							   d % 2 * 2 + e % 2];
					if (d == c)
						stage_put(s.stage[warp], v, of[d % 2],
							  part.part);
				}
				general_rows(p.out, s.stage[warp], m0 + 8 * (c % 2), line & ~63,
					     part);
			}
		}
		__syncwarp();
		if (lane == 0)
			mbarrier_arrive(shared_address(&s.taken[tile.at]));
		tile.next();
	} while (more);
}

template <int COLUMNS, int STAGES, int DOWN, int ACROSS, bool SIGNED>
HZ_DEVICE void tma_kernel(const hzi_qgemm_wgmma &p)
{
	constexpr int blocks = DOWN * ACROSS, ones = tma_kind<COLUMNS>::ones;
	auto &s = *(tma_memory<COLUMNS, STAGES> *)shared_start();
	const int group = __shfl_sync(~0u, threadIdx.x / 128, 0), t = blockIdx.x / blocks;
	const uint32_t rank = blocks > 1 ? cluster_rank() : 0;
	int i, j;

	if (threadIdx.x == 0) {
		tma_prefetch_map(p.a);
		for (int i = 0; i < STAGES; i++) {
			mbarrier_init(shared_address(&s.full[i]), 1);
			mbarrier_init(shared_address(&s.empty[i]),
				      8 * (DOWN + ACROSS - 1) +
					      (p.out.a_sums && tma_kind<COLUMNS>::adds ? 2 : 0));
		}
		for (int i = 0; i < 2; i++) {
			mbarrier_init(shared_address(&s.ready[i]), 64);
			mbarrier_init(shared_address(&s.taken[i]), 8);
		}
		mbarrier_init_fence();
	}
	pdl_launch_dependents();
	tile_of(p, t, i, j);
	if constexpr (ones > 0) {
		constexpr uint32_t four = 0x01010101;
		constexpr int pieces = HZI_WGMMA_ONES * HZI_QK_BLOCK / 16;

		for (int i = threadIdx.x; i < STAGES * pieces; i += HZI_WGMMA_THREADS)
			*(uint4 *)&s.b[i / pieces][COLUMNS * HZI_QK_BLOCK + i % pieces * 16] =
				make_uint4(four, four, four, four);
		fence_proxy_async();
	}
	/* Relaxed is enough for others' barriers, not for the ones of a block's other threads. */
	if (blocks == 1 || ones > 0)
		__syncthreads();
	if (blocks > 1) {
		cluster_arrive_relaxed();
		cluster_wait();
	}

	const cluster_of<COLUMNS, DOWN, ACROSS> at((int)rank);

	if (group < 2) {
		setmaxnreg_inc<MULTIPLY_REGISTERS>();
		tma_multiply<COLUMNS, STAGES, DOWN, ACROSS, SIGNED>(p, s, at, group, t, i, j);
	} else {
		setmaxnreg_dec<OTHER_REGISTERS>();
		if (threadIdx.x == 256)
			tma_load(p, s, at, t, i, j);
		else if (threadIdx.x >= 320)
			tma_prepare<COLUMNS, STAGES, DOWN, ACROSS, SIGNED>(p, s, at, t, i, j);
	}
}

#endif

#define TMA(name, columns, stages, down, across, is_signed) \
	extern "C" __global__ __launch_bounds__(HZI_WGMMA_THREADS, 1) void \
	name(const __grid_constant__ hzi_qgemm_wgmma p) \
	HZ_HOPPER_BODY((tma_kernel<columns, stages, down, across, is_signed>(p)))
TMA(qgemm_wgmma_128x256_u8, 256, 4, 2, 1, false)
TMA(qgemm_wgmma_128x192_u8, 192, 5, 2, 1, false)
TMA(qgemm_wgmma_128x128_u8, 128, 6, 2, 1, false)
TMA(qgemm_wgmma_128x128_c1_u8, 128, 6, 1, 1, false)
TMA(qgemm_wgmma_128x96_u8, 96, 7, 1, 4, false)
TMA(qgemm_wgmma_128x64_u8, 64, 7, 1, 1, false)
TMA(qgemm_wgmma_128x256_s8, 256, 4, 2, 1, true)
TMA(qgemm_wgmma_128x192_s8, 192, 5, 2, 1, true)
TMA(qgemm_wgmma_128x128_s8, 128, 6, 2, 1, true)
TMA(qgemm_wgmma_128x128_c1_s8, 128, 6, 1, 1, true)
TMA(qgemm_wgmma_128x96_s8, 96, 7, 1, 4, true)
TMA(qgemm_wgmma_128x64_s8, 64, 7, 1, 1, true)
