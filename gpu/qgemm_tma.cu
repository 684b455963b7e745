/*
 * qgemm_tma.cu - quantized matrix multiplication on Hopper
 *
 * SPDX-License-Identifier: BSD-2-Clause
 *
 * Blocks of k of both operands come by the copy engine into a ring in shared memory, which the
 * matrix units read. Code for sm_90a alone: elsewhere the kernels are empty and are not launched.
 */
#include "gpu/qgemm.cuh"
#include "gpu/tma.cuh"
#include "gpu/wgmma.cuh"

/* Not while nvcc reads the host's side, which has no code of its own here, are kernels left out. */
#if !defined(__CUDA_ARCH__) || defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define HAVE_WGMMA 1
#else
#define HAVE_WGMMA 0
#endif

#if HAVE_WGMMA

/* ---- Barriers of some warps ------------------------------------------------------------------ */

HZ_DEVICE void named_sync(int id, int threads)
{
	asm volatile("bar.sync %0, %1;" :: "r"(id), "r"(threads) : "memory");
}

HZ_DEVICE void named_arrive(int id, int threads)
{
	asm volatile("bar.arrive %0, %1;" :: "r"(id), "r"(threads) : "memory");
}

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

/*
 * The narrowest tiles have 16 more columns of ones, which make the sums of A's rows: adding these
 * up beside takes longer there than a product.
 */
template <int COLUMNS>
struct ones {
	static constexpr int lines = COLUMNS == 64 ? HZI_TMA_ONES : 0;
};

template <int COLUMNS, int STAGES>
struct tma_memory {
	uint8_t a[STAGES][HZI_TMA_ROWS * HZI_QK_BLOCK];
	uint8_t b[STAGES][(COLUMNS + ones<COLUMNS>::lines) * HZI_QK_BLOCK];
	int4 column[2][COLUMNS];	/* of this tile and the next, by turns */
	int32_t add[2][COLUMNS];
	int32_t row_sum[2][HZI_TMA_ROWS];
	int32_t quick[2];
	int32_t stage[8][8 * HZI_QSTAGE_WORDS];	/* of the warps that multiply */
	uint64_t full[STAGES], empty[STAGES];
	uint64_t ready[2], taken[2];	/* column, row_sum and quick */
};

static_assert(sizeof(tma_memory<256, 4>) <= HZI_TMA_REST_BYTES(256, 4) + 4 * 384 * HZI_QK_BLOCK &&
	      sizeof(tma_memory<192, 5>) <= HZI_TMA_REST_BYTES(192, 5) + 5 * 320 * HZI_QK_BLOCK &&
	      sizeof(tma_memory<128, 6>) <= HZI_TMA_REST_BYTES(128, 6) + 6 * 256 * HZI_QK_BLOCK &&
	      sizeof(tma_memory<64, 7>) <= HZI_TMA_REST_BYTES(64, 7) + 7 * 208 * HZI_QK_BLOCK,
	      "what the launcher asks for");

/* Tile t of the clusters' tiles: bands of rows, each done column by column, so that L2 has both. */
HZ_DEVICE void tile_of(const hzi_qgemm_tma &p, int t, int &i, int &j)
{
	const int whole = p.band * p.tiles_n, first = t / whole * p.band;
	const int rows = min(p.band, p.tiles_m - first), rest = t % whole;

	i = first + rest % rows;
	j = rest / rows;
}

/* Where in the ring, and which time round. */
struct turn {
	int at = 0;
	uint32_t parity = 0;

	__device__ __forceinline__ void next(int stages)
	{
		if (++at == stages) {
			at = 0;
			parity ^= 1;
		}
	}

	__device__ __forceinline__ void skip(int steps, int stages)
	{
		at += steps;
		parity ^= at / stages & 1;
		at %= stages;
	}
};

/* The thread that loads: its own A, and its share of B for the whole cluster. */
template <int COLUMNS, int STAGES, int CLUSTER>
HZ_DEVICE void tma_load(const hzi_qgemm_tma &p, tma_memory<COLUMNS, STAGES> &s, int rank)
{
	constexpr int share = COLUMNS / CLUSTER;
	const int ahead = min(STAGES, p.blocks);
	turn ring;

	for (int t = blockIdx.x / CLUSTER; t < p.tiles_m * p.tiles_n; t += gridDim.x / CLUSTER) {
		const bool first = t == blockIdx.x / CLUSTER;
		int i, j;

		tile_of(p, t, i, j);
		const int m0 = (i * CLUSTER + rank) * HZI_TMA_ROWS, n0 = j * COLUMNS;
		const int lines = min(COLUMNS, p.width - n0);
		const int mine = max(0, min(share, lines - rank * share));
		const uint8_t *b = p.b + (int64_t)(n0 + rank * share) * HZI_QK_BLOCK;

		auto load_a = [&](int k, int at) {
			copy_box(shared_address(s.a[at]), p.a, k * HZI_QK_BLOCK, m0,
				 shared_address(&s.full[at]));
		};
		auto load_b = [&](int k, int at) {
			const uint32_t full = shared_address(&s.full[at]);
			const uint32_t to = shared_address(s.b[at]) + rank * share * HZI_QK_BLOCK;
			const uint8_t *from = b + (int64_t)k * p.width * HZI_QK_BLOCK;

			barrier_expect(full, (HZI_TMA_ROWS + lines) * HZI_QK_BLOCK);
			if (CLUSTER == 1)
				copy_bytes(to, from, mine * HZI_QK_BLOCK, full);
			else if (mine)
				copy_bytes_to((1 << CLUSTER) - 1, to, from, mine * HZI_QK_BLOCK,
					      full);
		};

		/* B of the first blocks is under way before the kernel ahead has ended. */
		if (first) {
			for (int k = 0; k < ahead; k++)
				load_b(k, k);
			grid_wait();
			for (int k = 0; k < ahead; k++) {
				load_a(k, k);
				ring.next(STAGES);
			}
		}
		for (int k = first ? ahead : 0; k < p.blocks; k++) {
			barrier_wait(shared_address(&s.empty[ring.at]), ring.parity ^ 1);
			load_b(k, ring.at);
			load_a(k, ring.at);
			ring.next(STAGES);
		}
	}
}

/*
 * Two warps that make ready what the end of a tile needs: columns, and sums of the rows of A, two
 * rows a thread.
 */
template <int COLUMNS, int STAGES, int CLUSTER, bool SIGNED>
HZ_DEVICE void tma_prepare(const hzi_qgemm_tma &p, tma_memory<COLUMNS, STAGES> &s)
{
	const int thread = threadIdx.x % 64, lane = threadIdx.x % 32;
	turn ring, tile;

	grid_wait();
	for (int t = blockIdx.x / CLUSTER; t < p.tiles_m * p.tiles_n; t += gridDim.x / CLUSTER) {
		int32_t sum[2] = {};
		bool fits = p.out.quick;
		int i, j;

		tile_of(p, t, i, j);
		barrier_wait(shared_address(&s.taken[tile.at]), tile.parity ^ 1);
		if (p.out.quick) {
			for (int n = thread; n < COLUMNS; n += 64) {
				int4 column;

				fits &= quick_column(p.out, j * COLUMNS + n, column);
				s.column[tile.at][n] = column;
				s.add[tile.at][n] = column.x;
			}
		}
		fits = named_and(1, 64, fits);
		for (int k = 0; p.out.a_sums && !ones<COLUMNS>::lines && k < p.blocks; k++) {
			const uint32_t line = shared_address(s.a[ring.at]) + thread * HZI_QK_BLOCK;

			barrier_wait(shared_address(&s.full[ring.at]), ring.parity);
#pragma unroll
			for (int c = 0; c < 16; c++) {
				const uint4 v = load_shared(line + c / 8 * 64 * HZI_QK_BLOCK +
							    16 * (c % 8 ^ (thread & 7)));

				sum[c / 8] = add_codes<SIGNED>(v.x, sum[c / 8]);
				sum[c / 8] = add_codes<SIGNED>(v.y, sum[c / 8]);
				sum[c / 8] = add_codes<SIGNED>(v.z, sum[c / 8]);
				sum[c / 8] = add_codes<SIGNED>(v.w, sum[c / 8]);
			}
			__syncwarp();
			if (lane == 0)
				barrier_arrive(shared_address(&s.empty[ring.at]));
			ring.next(STAGES);
		}
		s.row_sum[tile.at][thread] = sum[0];
		s.row_sum[tile.at][thread + 64] = sum[1];
		if (thread == 0)
			s.quick[tile.at] = fits;
		barrier_arrive(shared_address(&s.ready[tile.at]));
		tile.next(2);
	}
}

/*
 * A warpgroup that multiplies. With TURNS both do tiles of 128 rows by turns, so that the end of a
 * tile of one goes beside the sums of the other; else each has 64 rows of the same tiles.
 */
template <int COLUMNS, int STAGES, int CLUSTER, bool SIGNED, bool TURNS>
HZ_DEVICE void tma_multiply(const hzi_qgemm_tma &p, tma_memory<COLUMNS, STAGES> &s, int rank,
			    int group)
{
	constexpr int parts = TURNS ? 2 : 1;
	const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane >> 2, q = lane & 3;
	const int step = gridDim.x / CLUSTER * parts, row0 = TURNS ? 0 : group * 64;
	int t = blockIdx.x / CLUSTER;
	int32_t acc[parts][(COLUMNS + ones<COLUMNS>::lines) / 2];
	turn ring, tile;

	/*
	 * A warpgroup begins a tile when the other has seen all blocks of the one ahead: else the
	 * place in the ring that it waits for might still be a round behind, which the parity does
	 * not tell.
	 */
	if (TURNS && group) {
		named_arrive(2, 256);
		ring.skip(p.blocks, STAGES);
		tile.at = 1;
		t += gridDim.x / CLUSTER;
	}
	for (; t < p.tiles_m * p.tiles_n; t += step) {
		int i, j, last = -1;

		tile_of(p, t, i, j);
		if (TURNS)
			named_sync(2 + group, 256);
		for (int k = 0; k < p.blocks; k++) {
			const uint64_t a = wgmma_lines(shared_address(s.a[ring.at]) +
						       row0 * HZI_QK_BLOCK);
			const uint64_t b = wgmma_lines(shared_address(s.b[ring.at]));

			barrier_wait(shared_address(&s.full[ring.at]), ring.parity);
			if (TURNS && k == p.blocks - 1 && t + step / 2 < p.tiles_m * p.tiles_n)
				named_arrive(3 - group, 256);
#pragma unroll
			for (int h = 0; h < parts; h++)
				wgmma_keep(acc[h]);
			wgmma_fence();
#pragma unroll
			for (int c = 0; c < 4; c++) {
#pragma unroll
				for (int h = 0; h < parts; h++)
					wgmma<SIGNED>(acc[h], a + 512 * h + 2 * c, b + 2 * c,
						      k | c);
			}
			wgmma_commit();
#pragma unroll
			for (int h = 0; h < parts; h++)
				wgmma_keep(acc[h]);
			wgmma_wait<1>();
#pragma unroll
			for (int h = 0; h < parts; h++)
				wgmma_keep(acc[h]);
			if (last >= 0 && lane < CLUSTER)
				barrier_arrive_at(
					cluster_map(shared_address(&s.empty[last]), lane));
			last = ring.at;
			ring.next(STAGES);
		}
		wgmma_wait<0>();
#pragma unroll
		for (int h = 0; h < parts; h++)
			wgmma_keep(acc[h]);
		if (lane < CLUSTER)
			barrier_arrive_at(cluster_map(shared_address(&s.empty[last]), lane));
		if (TURNS)
			ring.skip(p.blocks, STAGES);

		barrier_wait(shared_address(&s.ready[tile.at]), tile.parity);
#pragma unroll
		for (int h = 0; h < parts; h++) {
			const int row = row0 + 64 * h + warp % 4 * 16;
			const int m0 = (i * CLUSTER + rank) * HZI_TMA_ROWS + row;
			const int32_t sums[2] = {
				ones<COLUMNS>::lines ? acc[h][COLUMNS / 2]
						     : s.row_sum[tile.at][row + g],
				ones<COLUMNS>::lines ? acc[h][COLUMNS / 2 + 2]
						     : s.row_sum[tile.at][row + g + 8],
			};

			if (s.quick[tile.at]) {
#pragma unroll
				for (int c = 0; c < COLUMNS / 64; c++) {
					const int at = 64 * c + 16 * q;
					int32_t v[2][16];

#pragma unroll
					for (int e = 0; e < 32; e++)
						v[e / 16][e % 16] = acc[h][32 * c + e % 16 / 2 * 4 +
									   e / 16 * 2 + e % 2];
					if (quick_uniform(p.out))
						quick_put<true>(p.out, v, &s.column[tile.at][at],
								&s.add[tile.at][at], sums, m0 + g,
								j * COLUMNS + at);
					else
						quick_put<false>(p.out, v, &s.column[tile.at][at],
								 &s.add[tile.at][at], sums, m0 + g,
								 j * COLUMNS + at);
				}
				continue;
			}
#pragma unroll
			for (int c = 0; c < COLUMNS / 32; c++) {
				int32_t v[16];

#pragma unroll
				for (int e = 0; e < 16; e++)
					v[e] = acc[h][c / 2 * 32 + e / 2 * 4 + c % 2 * 2 + e % 2];
				general_stage(s.stage[warp], v, sums[c % 2]);
				general_rows(p.out, s.stage[warp], m0 + 8 * (c % 2),
					     j * COLUMNS + 64 * (c / 2));
			}
		}
		__syncwarp();
		if (lane == 0)
			barrier_arrive(shared_address(&s.taken[tile.at]));
		if (TURNS)
			tile.parity ^= 1;
		else
			tile.next(2);
	}
}

template <int COLUMNS, int STAGES, int CLUSTER, bool SIGNED, bool TURNS>
HZ_DEVICE void tma_kernel(const hzi_qgemm_tma &p)
{
	auto &s = *(tma_memory<COLUMNS, STAGES> *)shared_start();
	const int group = __shfl_sync(~0u, threadIdx.x / 128, 0);
	uint32_t rank = 0;

	if (CLUSTER > 1)
		asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
	if (threadIdx.x == 0) {
		for (int i = 0; i < STAGES; i++) {
			barrier_init(shared_address(&s.full[i]), 1);
			barrier_init(shared_address(&s.empty[i]),
				     (TURNS ? 4 : 8) * CLUSTER +
					     (p.out.a_sums && !ones<COLUMNS>::lines ? 2 : 0));
		}
		for (int i = 0; i < 2; i++) {
			barrier_init(shared_address(&s.ready[i]), 64);
			barrier_init(shared_address(&s.taken[i]), TURNS ? 4 : 8);
		}
		barrier_init_fence();
	}
	grid_next();
	if (ones<COLUMNS>::lines) {
		constexpr int words =
			ones<COLUMNS>::lines ? ones<COLUMNS>::lines * HZI_QK_BLOCK / 4 : 1;

		for (int i = threadIdx.x; i < STAGES * words; i += HZI_TMA_THREADS)
			*(uint32_t *)&s.b[i / words][COLUMNS * HZI_QK_BLOCK + i % words * 4] =
				0x01010101;
		asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
	}
	if (CLUSTER > 1) {
		cluster_arrive();
		cluster_wait();
	} else {
		__syncthreads();
	}
	if (group < 2)
		tma_multiply<COLUMNS, STAGES, CLUSTER, SIGNED, TURNS>(p, s, rank, group);
	else if (threadIdx.x == 256)
		tma_load<COLUMNS, STAGES, CLUSTER>(p, s, rank);
	else if (threadIdx.x >= 320)
		tma_prepare<COLUMNS, STAGES, CLUSTER, SIGNED>(p, s);
	__syncwarp();
	/* No block may end while another still writes into it or tells it something. */
	if (CLUSTER > 1) {
		cluster_arrive();
		cluster_wait();
	}
}

/* ---- Few rows -------------------------------------------------------------------------------- */

template <int ROWS, int STAGES>
struct few_memory {
	static_assert(STAGES % 4 == 0,
		      "a place in the ring is one warpgroup's: parity tells two rounds");
	union {
		struct {
			uint8_t b[STAGES][HZI_FEW_COLUMNS * HZI_QK_BLOCK];
			/* 64 rows of each block are read, of the last ones up to the end of more.
			 */
			uint8_t a[STAGES][ROWS * HZI_QK_BLOCK];
			uint8_t more[(HZI_FEW_ROWS - ROWS) * HZI_QK_BLOCK];
		};
		int32_t sums[3][16][128];	/* of the other warpgroups, at the end */
	};
	int4 column[HZI_FEW_COLUMNS];
	int32_t add[HZI_FEW_COLUMNS];
	int32_t row_sum[4][HZI_FEW_ROWS];
	uint64_t full[STAGES], empty[STAGES];
};

#define FEW_SIZE(rows) \
	static_assert(sizeof(few_memory<rows, HZI_FEW_STAGES_##rows>) <= \
		      HZI_FEW_REST_BYTES(HZI_FEW_STAGES_##rows) + \
		      HZI_FEW_STAGES_##rows * (rows + HZI_FEW_COLUMNS) * HZI_QK_BLOCK, \
		      "what the launcher asks for")
FEW_SIZE(8);
FEW_SIZE(16);
FEW_SIZE(32);
FEW_SIZE(64);

/*
 * Four warpgroups do each fourth block of k of 64 x 32 sums. Rows of A from ROWS on are whatever
 * lies in shared memory, and so are their sums. The ring holds what has to be under way to have
 * memory at its rate; B is under way before the kernel ahead has ended.
 */
template <int ROWS, int STAGES, bool SIGNED>
HZ_DEVICE void few_kernel(const hzi_qgemm_few &p)
{
	auto &s = *(few_memory<ROWS, STAGES> *)shared_start();
	constexpr int items = ROWS < 16 ? 1 : ROWS / 16; /* chunks of a block of A, per thread */
	const int thread = threadIdx.x % 128, group = __shfl_sync(~0u, threadIdx.x / 128, 0);
	const int lane = threadIdx.x % 32, n0 = blockIdx.x * HZI_FEW_COLUMNS;
	/* Lines of an odd block are the later 8 of each 16 columns. */
	const int group0 = (n0 & ~63) + blockIdx.x % 2 * 8;
	int32_t acc[16] = {}, sum[items] = {};
	bool fits = p.out.quick;

	auto load_b = [&](int k) {
		const uint32_t full = shared_address(&s.full[k % STAGES]);

		barrier_expect(full, (HZI_FEW_COLUMNS + ROWS) * HZI_QK_BLOCK);
		copy_bytes(shared_address(s.b[k % STAGES]),
			   p.b + ((int64_t)k * p.width + n0) * HZI_QK_BLOCK,
			   HZI_FEW_COLUMNS * HZI_QK_BLOCK, full);
	};
	auto load_a = [&](int k) {
		copy_box(shared_address(s.a[k % STAGES]), p.a, k * HZI_QK_BLOCK, 0,
			 shared_address(&s.full[k % STAGES]));
	};

	if (threadIdx.x == 512) {
		for (int i = 0; i < STAGES; i++) {
			barrier_init(shared_address(&s.full[i]), 1);
			barrier_init(shared_address(&s.empty[i]), 4);
		}
		barrier_init_fence();
		asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
		for (int k = 0; k < min(STAGES, p.blocks); k++)
			load_b(k);
	}
	grid_next();
	__syncthreads();
	if (group == 4) {
		grid_wait();
		if (lane == 0) {
			for (int k = 0; k < min(STAGES, p.blocks); k++)
				load_a(k);
		}
		__syncwarp();
		if (p.out.quick) {
			int4 column;

			fits = quick_column(p.out, group0 + lane / 8 * 16 + lane % 8, column);
			s.column[lane] = column;
			s.add[lane] = column.x;
		}
		if (lane == 0) {
			for (int k = STAGES; k < p.blocks; k++) {
				barrier_wait(shared_address(&s.empty[k % STAGES]),
					     (k / STAGES + 1) & 1);
				load_b(k);
				load_a(k);
			}
		}
		__syncwarp();
	} else {
		for (int k = group; k < p.blocks; k += 4) {
			const uint32_t a = shared_address(s.a[k % STAGES]);
			const uint64_t x = wgmma_lines(a),
				       y = wgmma_lines(shared_address(s.b[k % STAGES]));

			barrier_wait(shared_address(&s.full[k % STAGES]), k / STAGES & 1);
			wgmma_keep(acc);
			wgmma_fence();
#pragma unroll
			for (int c = 0; c < 4; c++)
				wgmma<SIGNED>(acc, x + 2 * c, y + 2 * c, 1);
			wgmma_commit();
			wgmma_keep(acc);
			/* Which chunk of a line it is does not matter. */
#pragma unroll
			for (int i = 0; i < items; i++) {
				if (thread >= 8 * ROWS)
					break;
				const uint4 v = load_shared(a + 16 * (thread + 128 * i));

				sum[i] = add_codes<SIGNED>(v.x, sum[i]);
				sum[i] = add_codes<SIGNED>(v.y, sum[i]);
				sum[i] = add_codes<SIGNED>(v.z, sum[i]);
				sum[i] = add_codes<SIGNED>(v.w, sum[i]);
			}
			wgmma_wait<0>();
			wgmma_keep(acc);
			__syncwarp();
			if (lane == 0)
				barrier_arrive(shared_address(&s.empty[k % STAGES]));
		}
#pragma unroll
		for (int i = 0; i < items; i++) {
#pragma unroll
			for (int d = 1; d < 8; d *= 2)
				sum[i] += __shfl_xor_sync(~0u, sum[i], d);
			if (thread % 8 == 0 && thread < 8 * ROWS)
				s.row_sum[group][thread / 8 + 16 * i] = sum[i];
		}
	}
	__syncthreads();
	/* All of the ring is done with. */
	if (group > 0 && group < 4) {
#pragma unroll
		for (int i = 0; i < 16; i++)
			s.sums[group - 1][i][thread] = acc[i];
	}
	fits = __syncthreads_and(fits);
	if (group != 0)
		return;

	const int r = threadIdx.x / 32 * 16 + (lane >> 2), base = group0 + 16 * (lane & 3);
	const int32_t sums[2] = {
		s.row_sum[0][r] + s.row_sum[1][r] + s.row_sum[2][r] + s.row_sum[3][r],
		s.row_sum[0][r + 8] + s.row_sum[1][r + 8] + s.row_sum[2][r + 8] +
			s.row_sum[3][r + 8],
	};
	int32_t v[2][8];

	if (r >= p.out.m)
		return;
#pragma unroll
	for (int e = 0; e < 16; e++) {
		const int i = e % 8 / 2 * 4 + e / 8 * 2 + e % 2;

		v[e / 8][e % 8] = acc[i] + s.sums[0][i][thread] + s.sums[1][i][thread] +
				  s.sums[2][i][thread];
	}
	if (fits) {
		const int at = 8 * (lane & 3);

		if (quick_uniform(p.out))
			quick_put<true>(p.out, v, &s.column[at], &s.add[at], sums, r, base);
		else
			quick_put<false>(p.out, v, &s.column[at], &s.add[at], sums, r, base);
		return;
	}
#pragma unroll
	for (int e = 0; e < 16; e++)
		s.sums[0][e][thread] = v[e / 8][e % 8];
#pragma unroll 1
	for (int e = 0; e < 16; e++)
		general_put(p.out, general_column(p.out, base + e % 8), s.sums[0][e][thread],
			    e < 8 ? sums[0] : sums[1], r + e / 8 * 8, base + e % 8);
}

#endif

#if HAVE_WGMMA
#define BODY(call) { call; }
#else
#define BODY(call) { }
#endif
#define TMA(name, columns, stages, cluster, turns, is_signed) \
	extern "C" __global__ __launch_bounds__(HZI_TMA_THREADS, 1) void \
	name(const __grid_constant__ hzi_qgemm_tma p) \
	BODY((tma_kernel<columns, stages, cluster, is_signed, turns>(p)))
#define FEW(name, rows, stages, is_signed) \
	extern "C" __global__ __launch_bounds__(HZI_FEW_THREADS, 2) void \
	name(const __grid_constant__ hzi_qgemm_few p) \
	BODY((few_kernel<rows, stages, is_signed>(p)))
TMA(qgemm_tma_256_u, 256, 4, 2, false, false)
TMA(qgemm_tma_192_u, 192, 5, 2, false, false)
TMA(qgemm_tma_128_u, 128, 6, 2, true, false)
TMA(qgemm_tma_64_u, 64, 7, 1, false, false)
TMA(qgemm_tma_256_s, 256, 4, 2, false, true)
TMA(qgemm_tma_192_s, 192, 5, 2, false, true)
TMA(qgemm_tma_128_s, 128, 6, 2, true, true)
TMA(qgemm_tma_64_s, 64, 7, 1, false, true)
FEW(qgemm_few_8_u, 8, HZI_FEW_STAGES_8, false)
FEW(qgemm_few_16_u, 16, HZI_FEW_STAGES_16, false)
FEW(qgemm_few_32_u, 32, HZI_FEW_STAGES_32, false)
FEW(qgemm_few_64_u, 64, HZI_FEW_STAGES_64, false)
FEW(qgemm_few_8_s, 8, HZI_FEW_STAGES_8, true)
FEW(qgemm_few_16_s, 16, HZI_FEW_STAGES_16, true)
FEW(qgemm_few_32_s, 32, HZI_FEW_STAGES_32, true)
FEW(qgemm_few_64_s, 64, HZI_FEW_STAGES_64, true)
