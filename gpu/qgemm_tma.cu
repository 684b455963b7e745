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
	out_columns<COLUMNS> column[2];	/* of this tile and the next, by turns */
	int32_t row_sum[2][HZI_TMA_ROWS];
	int32_t quick[2];
	alignas(16) int32_t stage[8][8 * HZI_QSTAGE_WORDS];	/* of the warps that multiply */
	uint64_t full[STAGES], empty[STAGES];
	uint64_t ready[2], taken[2];	/* column, row_sum and quick */
};

static_assert(sizeof(tma_memory<256, 4>) <= HZI_TMA_REST_BYTES(256, 4) + 4 * 384 * HZI_QK_BLOCK &&
	      sizeof(tma_memory<192, 5>) <= HZI_TMA_REST_BYTES(192, 5) + 5 * 320 * HZI_QK_BLOCK &&
	      sizeof(tma_memory<128, 6>) <= HZI_TMA_REST_BYTES(128, 6) + 6 * 256 * HZI_QK_BLOCK &&
	      sizeof(tma_memory<64, 7>) <= HZI_TMA_REST_BYTES(64, 7) + 7 * 208 * HZI_QK_BLOCK,
	      "what the launcher asks for");

/* Tile t of the clusters' tiles: bands of rows, each done column by column, so that L2 has both. */
HZ_DEVICE void tile_of(const hzi_qgemm_tma &p, uint32_t t, int &i, int &j)
{
	const uint32_t whole = p.band * p.tiles_n, band = t < whole ? 0 : t / whole;
	const uint32_t rows = min(p.band, p.tiles_m - (int)band * p.band), rest = t - band * whole;

	j = (int)(rest / rows);
	i = (int)(band * p.band + rest - j * rows);
}

/* Goes on to the next tile of this cluster; false if that was the last. */
template <int CLUSTER>
HZ_DEVICE bool next_tile(const hzi_qgemm_tma &p, int &t, int &i, int &j)
{
	t += gridDim.x / CLUSTER;
	if (t >= p.tiles_m * p.tiles_n)
		return false;
	tile_of(p, t, i, j);
	return true;
}

/* The thread that loads: its own A, and its share of B for the whole cluster. */
template <int COLUMNS, int STAGES, int CLUSTER>
HZ_DEVICE void tma_load(const hzi_qgemm_tma &p, tma_memory<COLUMNS, STAGES> &s, int rank, int t,
			int i, int j)
{
	constexpr int share = COLUMNS / CLUSTER;
	bool first = true;
	turn<STAGES> ring;

#pragma unroll 1
	do {
		const int m0 = (i * CLUSTER + rank) * HZI_TMA_ROWS, n0 = j * COLUMNS;
		const int lines = min(COLUMNS, p.width - n0);
		const int mine = max(0, min(share, lines - rank * share)) * HZI_QK_BLOCK;
		const uint8_t *b = p.b + (int64_t)(n0 + rank * share) * HZI_QK_BLOCK;

#pragma unroll 1
		for (int k = 0; k < p.blocks; k++) {
			const uint32_t full = shared_address(&s.full[ring.at]);
			const uint32_t to =
				shared_address(s.b[ring.at]) + rank * share * HZI_QK_BLOCK;

			barrier_wait(shared_address(&s.empty[ring.at]), ring.parity ^ 1);
			barrier_expect(full, (HZI_TMA_ROWS + lines) * HZI_QK_BLOCK);
			if (CLUSTER == 1)
				copy_bytes(to, b, mine, full);
			else if (mine)
				copy_bytes_to((1 << CLUSTER) - 1, to, b, mine, full);
			/* The first of B is under way before the kernel ahead has ended. */
			if (first)
				grid_wait();
			first = false;
			copy_box(shared_address(s.a[ring.at]), p.a, k * HZI_QK_BLOCK, m0, full);
			b += (int64_t)p.width * HZI_QK_BLOCK;
			ring.next();
		}
	} while (next_tile<CLUSTER>(p, t, i, j));
}

/*
 * Two warps that make ready what the end of a tile needs: columns, and sums of the rows of A, two
 * rows a thread.
 */
template <int COLUMNS, int STAGES, int CLUSTER, bool SIGNED>
HZ_DEVICE void tma_prepare(const hzi_qgemm_tma &p, tma_memory<COLUMNS, STAGES> &s, int t, int i,
			   int j)
{
	const int thread = threadIdx.x % 64, lane = threadIdx.x % 32;
	turn<STAGES> ring;
	turn<2> tile;

	grid_wait();
	do {
		int32_t sum[2] = {};
		bool fits = p.out.quick;

		barrier_wait(shared_address(&s.taken[tile.at]), tile.parity ^ 1);
		if (p.out.quick) {
			for (int n = thread; n < COLUMNS; n += 64)
				fits &= quick_column(p.out, j * COLUMNS + n, s.column[tile.at], n);
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
			ring.next();
		}
		s.row_sum[tile.at][thread] = sum[0];
		s.row_sum[tile.at][thread + 64] = sum[1];
		if (thread == 0)
			s.quick[tile.at] = fits ? p.out.quick : 0;
		barrier_arrive(shared_address(&s.ready[tile.at]));
		tile.next();
	} while (next_tile<CLUSTER>(p, t, i, j));
}

/* A warpgroup that multiplies: 64 rows of each tile. */
template <int COLUMNS, int STAGES, int CLUSTER, bool SIGNED>
HZ_DEVICE void tma_multiply(const hzi_qgemm_tma &p, tma_memory<COLUMNS, STAGES> &s, int rank,
			    int group, int t, int i, int j)
{
	const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane >> 2, q = lane & 3;
	const int row = 64 * group + warp % 4 * 16;
	int32_t acc[(COLUMNS + ones<COLUMNS>::lines) / 2];
	/* Places in the ring that will be filled again: nobody may tell a block that has ended. */
	int again = ((p.tiles_m * p.tiles_n - 1 - t) / (gridDim.x / CLUSTER) + 1) * p.blocks -
		    STAGES;
	turn<STAGES> ring;
	turn<2> tile;
	bool more;

	auto done_with = [&](int at) {
		if (again-- > 0 && lane < CLUSTER)
			barrier_arrive_at(cluster_map(shared_address(&s.empty[at]), lane));
	};

	grid_wait();
	do {
		int last = -1;
		const int m0 = (i * CLUSTER + rank) * HZI_TMA_ROWS + row, n0 = j * COLUMNS;
		out_row of[2] = {quick_row(p.out, m0 + g), quick_row(p.out, m0 + g + 8)};

		for (int k = 0; k < p.blocks; k++) {
			const uint64_t a = wgmma_lines(shared_address(s.a[ring.at]) +
						       group * 64 * HZI_QK_BLOCK);
			const uint64_t b = wgmma_lines(shared_address(s.b[ring.at]));

			barrier_wait(shared_address(&s.full[ring.at]), ring.parity);
			wgmma_keep(acc);
			wgmma_fence();
#pragma unroll
			for (int c = 0; c < 4; c++)
				wgmma<SIGNED, false>(acc, a + 2 * c, b + 2 * c, k | c);
			wgmma_commit();
			wgmma_keep(acc);
			wgmma_wait<1>();
			wgmma_keep(acc);
			if (last >= 0)
				done_with(last);
			last = ring.at;
			ring.next();
		}
		/* While the last products are made. */
		more = next_tile<CLUSTER>(p, t, i, j);
		asm volatile("" : "+r"(i), "+r"(j));
		wgmma_wait<0>();
		wgmma_keep(acc);
		done_with(last);

		barrier_wait(shared_address(&s.ready[tile.at]), tile.parity);
		of[0].sum = ones<COLUMNS>::lines ? acc[COLUMNS / 2] : s.row_sum[tile.at][row + g];
		of[1].sum = ones<COLUMNS>::lines ? acc[COLUMNS / 2 + 2]
						 : s.row_sum[tile.at][row + g + 8];
		if (s.quick[tile.at] == HZI_QUICK_CODES) {
			const out_rows to = quick_out(p.out, m0 + g, n0);
			const int32_t sums[2] = {of[0].sum, of[1].sum};

			quick_kind(p.out, [&](auto uniform, auto bounded) {
#pragma unroll
				for (int c = 0; c < COLUMNS; c += 64) {
					const int at = c + 16 * q;
					int32_t v[2][16];

#pragma unroll
					for (int e = 0; e < 32; e++)
						v[e / 16][e % 16] = acc[c / 2 + e % 16 / 2 * 4 +
									e / 16 * 2 + e % 2];
					quick_put<decltype(uniform)::value,
						  decltype(bounded)::value>(
						p.out, v, s.column[tile.at], at, sums, to);
				}
			});
		} else if (s.quick[tile.at]) {
#pragma unroll
			for (int c = 0; c < COLUMNS / 32; c++) {
				const int at = c / 2 * 64, h = c % 2;
				int32_t v[16];

#pragma unroll
				for (int e = 0; e < 16; e++)
					v[e] = acc[at / 2 + e / 2 * 4 + h * 2 + e % 2];
				stage_put(s.stage[warp], v, of[h]);
				quick_rows(p.out, s.stage[warp],
					   load_four(s.column[tile.at], at + lane % 16 * 4),
					   m0 + 8 * h, n0 + at);
			}
		} else {
			/* The code of a step is there once, but for taking the sums. */
#pragma unroll 1
			for (int c = 0; c < COLUMNS / 32; c++) {
#pragma unroll
				for (int d = 0; d < COLUMNS / 32; d++) {
					int32_t v[16];

#pragma unroll
					for (int e = 0; e < 16; e++)
						v[e] = acc[d / 2 * 32 + e / 2 * 4 + d % 2 * 2 +
							   e % 2];
					if (d == c)
						stage_put(s.stage[warp], v, of[d % 2]);
				}
				general_rows(p.out, s.stage[warp], m0 + 8 * (c % 2),
					     n0 + c / 2 * 64);
			}
		}
		__syncwarp();
		if (lane == 0)
			barrier_arrive(shared_address(&s.taken[tile.at]));
		tile.next();
	} while (more);
}

template <int COLUMNS, int STAGES, int CLUSTER, bool SIGNED>
HZ_DEVICE void tma_kernel(const hzi_qgemm_tma &p)
{
	auto &s = *(tma_memory<COLUMNS, STAGES> *)shared_start();
	const int group = __shfl_sync(~0u, threadIdx.x / 128, 0), t = blockIdx.x / CLUSTER;
	uint32_t rank = 0;
	int i, j;

	if (CLUSTER > 1)
		asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
	if (threadIdx.x == 0) {
		prefetch_map(p.a);
		for (int i = 0; i < STAGES; i++) {
			barrier_init(shared_address(&s.full[i]), 1);
			barrier_init(shared_address(&s.empty[i]),
				     8 * CLUSTER +
					     (p.out.a_sums && !ones<COLUMNS>::lines ? 2 : 0));
		}
		for (int i = 0; i < 2; i++) {
			barrier_init(shared_address(&s.ready[i]), 64);
			barrier_init(shared_address(&s.taken[i]), 8);
		}
		barrier_init_fence();
	}
	grid_next();
	tile_of(p, t, i, j);
	if (ones<COLUMNS>::lines) {
		constexpr uint32_t four = 0x01010101;
		constexpr int pieces = HZI_TMA_ONES * HZI_QK_BLOCK / 16;

		for (int i = threadIdx.x; i < STAGES * pieces; i += HZI_TMA_THREADS)
			*(uint4 *)&s.b[i / pieces][COLUMNS * HZI_QK_BLOCK + i % pieces * 16] =
				make_uint4(four, four, four, four);
		copy_fence();
	}
	if (CLUSTER > 1) {
		cluster_arrive_relaxed();
		cluster_wait();
	} else {
		__syncthreads();
	}
	if (group < 2) {
		registers_more<MULTIPLY_REGISTERS>();
		tma_multiply<COLUMNS, STAGES, CLUSTER, SIGNED>(p, s, rank, group, t, i, j);
	} else {
		registers_less<OTHER_REGISTERS>();
		if (threadIdx.x == 256)
			tma_load<COLUMNS, STAGES, CLUSTER>(p, s, rank, t, i, j);
		else if (threadIdx.x >= 320)
			tma_prepare<COLUMNS, STAGES, CLUSTER, SIGNED>(p, s, t, i, j);
	}
}

#endif

#define TMA(name, columns, stages, cluster, is_signed) \
	extern "C" __global__ __launch_bounds__(HZI_TMA_THREADS, 1) void \
	name(const __grid_constant__ hzi_qgemm_tma p) \
	HZ_HOPPER_BODY((tma_kernel<columns, stages, cluster, is_signed>(p)))
TMA(qgemm_tma_256_u, 256, 4, 2, false)
TMA(qgemm_tma_192_u, 192, 5, 2, false)
TMA(qgemm_tma_128_u, 128, 6, 2, false)
TMA(qgemm_tma_128_1_u, 128, 6, 1, false)
TMA(qgemm_tma_64_u, 64, 7, 1, false)
TMA(qgemm_tma_256_s, 256, 4, 2, true)
TMA(qgemm_tma_192_s, 192, 5, 2, true)
TMA(qgemm_tma_128_s, 128, 6, 2, true)
TMA(qgemm_tma_128_1_s, 128, 6, 1, true)
TMA(qgemm_tma_64_s, 64, 7, 1, true)
