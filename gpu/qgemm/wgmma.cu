/*
 * wgmma.cu - quantized matrix multiplication on Hopper, warp-specialized and persistent
 *
 * SPDX-License-Identifier: BSD-2-Clause
 *
 * TMA and bulk copies load blocks of k of both operands into a ring of stages in shared memory;
 * wgmma reads them there. A block has two consumer warpgroups of 64 rows each. In the third
 * warpgroup one thread issues copies and two warps prepare the epilogue. The blocks of a cluster
 * multicast A along n and B along m. Code for sm_90a only: elsewhere the kernels are empty and are
 * not launched.
 */
#include "gpu/qgemm/epilogue.cuh"
#include "gpu/device/reduce.cuh"
#include "gpu/device/shared.cuh"
#include "gpu/device/tma.cuh"
#include "gpu/device/wgmma_s8.cuh"

#if HAVE_WGMMA

/* ---- Barriers of some warps ------------------------------------------------------------------ */

/* Named barrier that returns whether all its threads passed true */
HZ_DEVICE bool barrier_and(int id, int threads, bool mine)
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

/* Registers per thread of a consumer, and of the other threads; at launch each has 168. */
#define CONSUMER_REGISTERS 208
#define PRODUCER_REGISTERS 88

/*
 * wgmma reads A from shared memory, and two warps read it again to sum its rows. For tiles of 96
 * and 128 columns the consumers load A to registers and sum it, which is faster there but not with
 * more columns. Tiles of 64 columns have 16 more columns of ones in B, which produce the row sums
 * of A.
 */
template <int COLUMNS>
struct tile_traits {
	static constexpr bool a_in_registers = COLUMNS == 96 || COLUMNS == 128;
	static constexpr int ones = COLUMNS == 64 ? HZI_WGMMA_ONES : 0;
	static constexpr bool sums = !a_in_registers && !ones;	/* the two warps sum the rows */
};

template <int COLUMNS, int STAGES>
struct wgmma_memory {
	uint8_t a[STAGES][HZI_WGMMA_ROWS * HZI_QGEMM_K_BLOCK];
	uint8_t b[STAGES][(COLUMNS + tile_traits<COLUMNS>::ones) * HZI_QGEMM_K_BLOCK];
	out_columns<COLUMNS> column[2];	/* double buffer: this tile and the next */
	int32_t row_sum[2][HZI_WGMMA_ROWS];
	int32_t fast_path[2];
	alignas(16) int32_t stage[8][8 * HZI_QGEMM_STAGE_PITCH];	/* one per consumer warp */
	uint64_t full[STAGES], empty[STAGES];
	uint64_t ready[2], consumed[2];	/* for column, row_sum, fast_path */
};

#define CHECK_SIZE(columns, stages) \
	static_assert(sizeof(wgmma_memory<columns, stages>) <= HZI_WGMMA_BYTES(columns, stages), \
		      "what the launcher asks for")
CHECK_SIZE(256, 4);
CHECK_SIZE(192, 5);
CHECK_SIZE(128, 6);
CHECK_SIZE(96, 7);
CHECK_SIZE(64, 7);

/*
 * Coordinates of cluster tile t: bands of rows, each walked column by column, so that both operands
 * stay in L2
 */
HZ_DEVICE void tile_of(const hzi_qgemm_wgmma &p, uint32_t t, int &i, int &j)
{
	const uint32_t band_tiles = p.band * p.tiles_n, band = t < band_tiles ? 0 : t / band_tiles;
	const uint32_t rows = min(p.band, p.tiles_m - (int)band * p.band);
	const uint32_t in_band = t - band * band_tiles;

	j = (int)(in_band / rows);
	i = (int)(band * p.band + in_band - j * rows);
}

/* Whether the two warps that prepare the epilogue read A to add up its rows */
template <int COLUMNS>
HZ_DEVICE bool adds_rows(const hzi_qgemm_wgmma &p)
{
	return tile_traits<COLUMNS>::sums && p.out.a_sums && !p.row_sums;
}

/* Advances to the next tile of this cluster; false after the last. */
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
 * The position of a block in its cluster of CM blocks along m, which share B, by CN along n, which
 * share A. rank = rank_m + CM rank_n
 */
template <int COLUMNS, int CM, int CN>
struct cluster_position {
	static constexpr int blocks = CM * CN;
	int rank_m, rank_n;

	__device__ __forceinline__ cluster_position(int rank)
		: rank_m(rank % CM), rank_n(rank / CM)
	{
	}

	/* First row, and first column, of this block in a cluster tile */
	__device__ __forceinline__ int row(int i) const
	{
		return (i * CM + rank_m) * HZI_WGMMA_ROWS;
	}

	__device__ __forceinline__ int column(int j) const
	{
		return (j * CN + rank_n) * COLUMNS;
	}

	/* Whether that block and this one receive copies from each other */
	__device__ __forceinline__ bool shares(int rank) const
	{
		return rank < blocks && (rank % CM == rank_m || rank / CM == rank_n);
	}
};

/* The producer thread: copies its share of A and of B to all blocks that need them. */
template <int COLUMNS, int STAGES, int CM, int CN>
HZ_DEVICE void produce(const hzi_qgemm_wgmma &p, wgmma_memory<COLUMNS, STAGES> &s,
		       const cluster_position<COLUMNS, CM, CN> &at, int t, int i,
		       int j)
{
	constexpr int share = COLUMNS / CM, rows = HZI_WGMMA_ROWS / CN;
	const uint16_t b_blocks = ((1 << CM) - 1) << CM * at.rank_n;
	uint16_t a_blocks = 0;
	bool first = true;
	ring_position<STAGES> ring;

#pragma unroll
	for (int r = 0; r < CN; r++)
		a_blocks |= 1 << (at.rank_m + CM * r);
#pragma unroll 1
	do {
		const int m0 = at.row(i) + at.rank_n * rows, n0 = at.column(j);
		const int b_rows = max(0, min(COLUMNS, p.width - n0));
		const int mine = max(0, min(share, b_rows - at.rank_m * share)) * HZI_QGEMM_K_BLOCK;
		const uint8_t *b = p.b + (int64_t)(n0 + at.rank_m * share) * HZI_QGEMM_K_BLOCK;

#pragma unroll 1
		for (int k = 0; k < p.blocks; k++) {
			const uint32_t full = shared_address(&s.full[ring.at]);
			const uint32_t b_to = shared_address(s.b[ring.at]) +
					      at.rank_m * share * HZI_QGEMM_K_BLOCK;
			const uint32_t a_to = shared_address(s.a[ring.at]) +
					      at.rank_n * rows * HZI_QGEMM_K_BLOCK;

			mbarrier_wait(shared_address(&s.empty[ring.at]), ring.parity ^ 1);
			mbarrier_expect_tx(full, (HZI_WGMMA_ROWS + b_rows) * HZI_QGEMM_K_BLOCK);
			if (mine && CM == 1)
				bulk_copy(b_to, b, mine, full);
			else if (mine)
				bulk_copy_multicast(b_blocks, b_to, b, mine, full);
			/* The first copy of B is issued before the previous kernel has ended. */
			if (first)
				pdl_wait();
			first = false;
			if (CN == 1)
				tma_load_2d(a_to, p.a, k * HZI_QGEMM_K_BLOCK, m0, full);
			else
				tma_load_2d_multicast(a_blocks, a_to, p.a, k * HZI_QGEMM_K_BLOCK,
						      m0, full);
			b += (int64_t)p.width * HZI_QGEMM_K_BLOCK;
			ring.next();
		}
	} while (next_tile<CM * CN>(p, t, i, j));
}

/*
 * The epilogue works on units of 64 packed rows of B, of which a thread has 16 successive columns.
 * If tiles do not end at multiples of 64, units have 32 rows, and a thread has 8 successive
 * columns.
 */
template <int COLUMNS>
struct unit {
	static constexpr int b_rows = COLUMNS % 64 ? 32 : 64, per_thread = b_rows / 4;
};

HZ_DEVICE int unit_column(int packed_row, int q)
{
	return (packed_row & ~63) + 16 * q + (packed_row >> 2 & 8);
}

/* The columns, out of 64, of the unit that begins at packed_row */
template <int COLUMNS>
HZ_DEVICE column_subset subset_of(int packed_row)
{
	if (unit<COLUMNS>::b_rows == 64)
		return {0, 0};
	return {8, packed_row >> 2 & 8};
}

/* The accumulators of a thread in the unit from column c of the tile on: two rows of W columns */
template <int W, int N>
HZ_DEVICE void own_columns(int32_t (&v)[2][W], const int32_t (&acc)[N], int c)
{
#pragma unroll
	for (int e = 0; e < 2 * W; e++)
		v[e / W][e % W] = acc[c / 2 + e % W / 2 * 4 + e / W * 2 + e % 2];
}

/*
 * The two warps that prepare the epilogue of a tile: parameters of columns, and sums of the rows of
 * A, two rows per thread.
 */
template <int COLUMNS, int STAGES, int CM, int CN, bool SIGNED>
HZ_DEVICE void prepare(const hzi_qgemm_wgmma &p, wgmma_memory<COLUMNS, STAGES> &s,
		       const cluster_position<COLUMNS, CM, CN> &at, int t, int i,
		       int j)
{
	constexpr int per_thread = unit<COLUMNS>::per_thread;
	const int thread = threadIdx.x % 64, lane = threadIdx.x % 32;
	const bool adds = adds_rows<COLUMNS>(p);
	ring_position<STAGES> ring;
	ring_position<2> tile;

	pdl_wait();
	do {
		const int n0 = at.column(j), m0 = at.row(i) + thread;
		int32_t sum[2] = {};
		bool fits = p.out.fast_path;

		mbarrier_wait(shared_address(&s.consumed[tile.at]), tile.parity ^ 1);
		for (int n = thread; p.out.fast_path && n < COLUMNS; n += 64) {
			const int packed_row = n0 + n / (4 * per_thread) * (4 * per_thread);
			const int column =
				unit_column(packed_row, n / per_thread % 4) + n % per_thread;

			fits &= prepare_column(p.out, column, s.column[tile.at], n);
		}
		fits = barrier_and(1, 64, fits);
		for (int k = 0; adds && k < p.blocks; k++) {
			const uint32_t a_row =
				shared_address(s.a[ring.at]) + thread * HZI_QGEMM_K_BLOCK;

			mbarrier_wait(shared_address(&s.full[ring.at]), ring.parity);
#pragma unroll
			for (int c = 0; c < 16; c++) {
				const uint4 v = shared_load(a_row + c / 8 * 64 * HZI_QGEMM_K_BLOCK +
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
		for (int h = 0; p.row_sums && h < 2; h++)
			sum[h] = m0 + 64 * h < p.out.m ? p.row_sums[m0 + 64 * h] : 0;
		s.row_sum[tile.at][thread] = sum[0];
		s.row_sum[tile.at][thread + 64] = sum[1];
		if (thread == 0)
			s.fast_path[tile.at] = fits ? p.out.fast_path : 0;
		mbarrier_arrive(shared_address(&s.ready[tile.at]));
		tile.next();
	} while (next_tile<CM * CN>(p, t, i, j));
}

/* A consumer warpgroup: 64 rows of each tile */
template <int COLUMNS, int STAGES, int CM, int CN, bool SIGNED>
HZ_DEVICE void consume(const hzi_qgemm_wgmma &p, wgmma_memory<COLUMNS, STAGES> &s,
		       const cluster_position<COLUMNS, CM, CN> &at, int group, int t,
		       int i, int j)
{
	constexpr int b_rows = unit<COLUMNS>::b_rows, per_thread = unit<COLUMNS>::per_thread;
	constexpr int ones = tile_traits<COLUMNS>::ones;
	constexpr bool a_in_registers = tile_traits<COLUMNS>::a_in_registers;
	const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane >> 2, q = lane & 3;
	const int row = 64 * group + warp % 4 * 16;
	const bool notifies = at.shares(lane);
	int32_t acc[(COLUMNS + ones) / 2];
	/* Double buffer for blocks of k: a pending product still reads its registers. */
	uint32_t a_regs[2][16];
	/*
	 * Stages that will be filled again. No arrival is sent for others, since the receiving
	 * block may have exited.
	 */
	int refills = ((p.tiles_m * p.tiles_n - 1 - t) / (gridDim.x / (CM * CN)) + 1) *
			    p.blocks - STAGES;
	ring_position<STAGES> ring;
	ring_position<2> tile;
	bool more;

	auto release = [&](int stage) {
		if (refills-- > 0 && notifies)
			mbarrier_arrive_cluster(cluster_map(shared_address(&s.empty[stage]), lane));
	};

	pdl_wait();
	do {
		const int m0 = at.row(i) + row, n0 = at.column(j);
		out_row of[2] = {fast_row(p.out, m0 + g), fast_row(p.out, m0 + g + 8)};
		int32_t sum[2] = {};
		int last = -1;

		auto step = [&](int k, uint32_t (&a)[16]) {
			const uint32_t a_tile = shared_address(s.a[ring.at]);
			const uint64_t a_desc =
				wgmma_desc_k(a_tile + group * 64 * HZI_QGEMM_K_BLOCK);
			const uint64_t b = wgmma_desc_k(shared_address(s.b[ring.at]));

			mbarrier_wait(shared_address(&s.full[ring.at]), ring.parity);
			if (a_in_registers)
				wgmma_load_a(a, a_tile + row * HZI_QGEMM_K_BLOCK);
			wgmma_keep(acc);
			wgmma_fence();
#pragma unroll
			for (int c = 0; c < 4; c++) {
				if constexpr (a_in_registers)
					wgmma_rs<SIGNED>(acc, a + 4 * c, b + 2 * c, k | c);
				else
					wgmma<SIGNED, false>(acc, a_desc + 2 * c, b + 2 * c,
							     k | c);
			}
			wgmma_commit();
#pragma unroll
			for (int e = 0; a_in_registers && e < 16; e++)
				sum[e % 2] = add_codes<SIGNED>(a[e], sum[e % 2]);
			wgmma_keep(acc);
			wgmma_wait<1>();
			wgmma_keep(acc);
			if (last >= 0)
				release(last);
			last = ring.at;
			ring.next();
		};

		if (a_in_registers) {
#pragma unroll 1
			for (int k = 0; k < p.blocks; k += 2) {
				step(k, a_regs[0]);
				if (k + 1 < p.blocks)
					step(k + 1, a_regs[1]);
			}
		} else {
			for (int k = 0; k < p.blocks; k++)
				step(k, a_regs[0]);
		}
		/* Overlaps with the last products. */
		more = next_tile<CM * CN>(p, t, i, j);
		asm volatile("" : "+r"(i), "+r"(j));
#pragma unroll
		for (int h = 0; a_in_registers && h < 2; h++)
			sum[h] = quad_sum(sum[h]);
		wgmma_wait<0>();
		wgmma_keep(acc);
		release(last);

		mbarrier_wait(shared_address(&s.ready[tile.at]), tile.parity);
#pragma unroll
		for (int h = 0; h < 2; h++) {
			if constexpr (ones > 0)
				sum[h] = acc[COLUMNS / 2 + 2 * h];
			else if (!a_in_registers)
				sum[h] = s.row_sum[tile.at][row + g + 8 * h];
			of[h].sum = sum[h];
		}
		if (s.fast_path[tile.at] == HZI_EPILOGUE_CODES) {
			/* The row begins at `from`, so rows beyond m have 0 columns left. */
			const int from = b_rows == 64 ? n0 : n0 & ~63;
			const out_rows dst = output_rows(p.out, m0 + g, from);

			dispatch_codes(p.out, [&](auto uniform, auto bounded) {
#pragma unroll
				for (int c = 0; c < COLUMNS; c += b_rows) {
					int32_t v[2][per_thread];

					own_columns(v, acc, c);
					store_codes<decltype(uniform)::value,
						  decltype(bounded)::value>(
						p.out, v, s.column[tile.at], c + per_thread * q,
						b_rows == 64 ? c + 16 * q
							    : unit_column(n0 + c, q) - from,
						sum, dst);
				}
			});
		} else if (s.fast_path[tile.at]) {
			dispatch_values(p.out, [&](auto dtype) {
				constexpr int type = decltype(dtype)::value;
				constexpr int bytes = type == HZ_F32 ? 4 : 2;
				const int from = n0 & ~63;
				const auto part = [&] {
					if constexpr (b_rows == 64)
						return tile_part<bytes>(p.out, m0, n0);
					else
						return output_rows(p.out, m0 + g, from, bytes);
				}();

#pragma unroll
				for (int c = 0; c < COLUMNS; c += b_rows) {
					int32_t v[2][per_thread];

					own_columns(v, acc, c);
					store_values<type>(
						p.out, v, s.column[tile.at], c + per_thread * q,
						b_rows == 64 ? 16 * q : unit_column(n0 + c, q) - from,
						of, part, c, (uint4 *)s.stage[warp]);
				}
			});
		} else {
			/* The loop is not unrolled, but for the selection of accumulators. */
#pragma unroll 1
			for (int c = 0; c < COLUMNS / b_rows * 2; c++) {
				const int packed_row = n0 + c / 2 * b_rows;
				const column_subset part = subset_of<COLUMNS>(packed_row);

#pragma unroll
				for (int d = 0; d < COLUMNS / b_rows * 2; d++) {
					int32_t v[per_thread];

#pragma unroll
					for (int e = 0; e < per_thread; e++)
						v[e] = acc[d / 2 * b_rows / 2 + e / 2 * 4 +
							   d % 2 * 2 + e % 2];
					if (d == c)
						stage_row(s.stage[warp], v, of[d % 2],
							  part.part);
				}
				general_rows(p.out, s.stage[warp], m0 + 8 * (c % 2),
					     packed_row & ~63, part);
			}
		}
		__syncwarp();
		if (lane == 0)
			mbarrier_arrive(shared_address(&s.consumed[tile.at]));
		tile.next();
	} while (more);
}

template <int COLUMNS, int STAGES, int CM, int CN, bool SIGNED>
HZ_DEVICE void wgmma_kernel(const hzi_qgemm_wgmma &p)
{
	constexpr int blocks = CM * CN, ones = tile_traits<COLUMNS>::ones;
	auto &s = *(wgmma_memory<COLUMNS, STAGES> *)shared_start();
	const int group = __shfl_sync(~0u, threadIdx.x / 128, 0), t = blockIdx.x / blocks;
	const uint32_t rank = blocks > 1 ? cluster_rank() : 0;
	int i, j;

	if (threadIdx.x == 0) {
		tma_prefetch_map(p.a);
		for (int i = 0; i < STAGES; i++) {
			mbarrier_init(shared_address(&s.full[i]), 1);
			mbarrier_init(shared_address(&s.empty[i]),
				      8 * (CM + CN - 1) +
					      (adds_rows<COLUMNS>(p) ? 2 : 0));
		}
		for (int i = 0; i < 2; i++) {
			mbarrier_init(shared_address(&s.ready[i]), 64);
			mbarrier_init(shared_address(&s.consumed[i]), 8);
		}
		mbarrier_init_fence();
	}
	pdl_launch_dependents();
	tile_of(p, t, i, j);
	if constexpr (ones > 0) {
		constexpr uint32_t four = 0x01010101;
		constexpr int vectors = HZI_WGMMA_ONES * HZI_QGEMM_K_BLOCK / 16;

		for (int i = threadIdx.x; i < STAGES * vectors; i += HZI_WGMMA_THREADS)
			*(uint4 *)&s.b[i / vectors]
				      [COLUMNS * HZI_QGEMM_K_BLOCK + i % vectors * 16] =
				make_uint4(four, four, four, four);
		fence_proxy_async();
	}
	/*
	 * A relaxed cluster barrier orders the mbarriers of other blocks, but not the ones written
	 * by other threads of this block.
	 */
	if (blocks == 1 || ones > 0)
		__syncthreads();
	if (blocks > 1) {
		cluster_arrive_relaxed();
		cluster_wait();
	}

	const cluster_position<COLUMNS, CM, CN> at((int)rank);

	if (group < 2) {
		setmaxnreg_inc<CONSUMER_REGISTERS>();
		consume<COLUMNS, STAGES, CM, CN, SIGNED>(p, s, at, group, t, i, j);
	} else {
		setmaxnreg_dec<PRODUCER_REGISTERS>();
		if (threadIdx.x == 256)
			produce(p, s, at, t, i, j);
		else if (threadIdx.x >= 320)
			prepare<COLUMNS, STAGES, CM, CN, SIGNED>(p, s, at, t, i, j);
	}
}

#endif

#define KERNEL(name, columns, stages, cm, cn, is_signed) \
	extern "C" __global__ __launch_bounds__(HZI_WGMMA_THREADS, 1) void \
	name(const __grid_constant__ hzi_qgemm_wgmma p) \
	HZ_HOPPER_BODY((wgmma_kernel<columns, stages, cm, cn, is_signed>(p)))
#define KERNELS(name, ...) \
	KERNEL(name##_u8, __VA_ARGS__, false) \
	KERNEL(name##_s8, __VA_ARGS__, true)
KERNELS(qgemm_wgmma_128x256, 256, 4, 2, 1)
KERNELS(qgemm_wgmma_128x192, 192, 5, 2, 1)
KERNELS(qgemm_wgmma_128x128, 128, 6, 2, 1)
KERNELS(qgemm_wgmma_128x128_c1, 128, 6, 1, 1)
KERNELS(qgemm_wgmma_128x96, 96, 7, 1, 4)
KERNELS(qgemm_wgmma_128x64, 64, 7, 1, 1)
