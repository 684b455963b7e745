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

/* What this thread wrote to shared memory is there for copies. */
HZ_DEVICE void copy_fence(void)
{
	asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
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
};

/* The thread that loads: its own A, and its share of B for the whole cluster. */
template <int COLUMNS, int STAGES, int CLUSTER>
HZ_DEVICE void tma_load(const hzi_qgemm_tma &p, tma_memory<COLUMNS, STAGES> &s, int rank, int t,
			int i, int j)
{
	constexpr int share = COLUMNS / CLUSTER;
	bool first = true;
	turn ring;

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
			ring.next(STAGES);
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
	turn ring, tile;

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
			ring.next(STAGES);
		}
		s.row_sum[tile.at][thread] = sum[0];
		s.row_sum[tile.at][thread + 64] = sum[1];
		if (thread == 0)
			s.quick[tile.at] = fits ? p.out.quick : 0;
		barrier_arrive(shared_address(&s.ready[tile.at]));
		tile.next(2);
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
	turn ring, tile;
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
			ring.next(STAGES);
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
		tile.next(2);
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

/* ---- Few rows -------------------------------------------------------------------------------- */

/*
 * Sums are rows of 64 columns and the sum of A's row. slots: those of the other blocks of a
 * cluster, for this block's share of the rows.
 */
template <int ROWS, int STAGES>
struct few_memory {
	static_assert(STAGES % 2 == 0, "a place in the ring is one warpgroup's");
	union {
		struct {
			uint8_t b[STAGES][HZI_FEW_COLUMNS * HZI_QK_BLOCK];
			uint8_t a[STAGES][ROWS * HZI_QK_BLOCK];
		};
		int32_t sums[ROWS][HZI_FEW_PITCH];	/* at the end */
	};
	int32_t slots[ROWS][HZI_FEW_PITCH];
	out_columns<HZI_FEW_COLUMNS> column;
	uint64_t full[STAGES], empty[STAGES], ready;
};

#define FEW_SIZE(rows) \
	static_assert(sizeof(few_memory<rows, HZI_FEW_STAGES_##rows>) <= \
		      HZI_FEW_BYTES(rows, HZI_FEW_STAGES_##rows), "what the launcher asks for")
FEW_SIZE(8);
FEW_SIZE(16);
FEW_SIZE(32);
FEW_SIZE(64);

/* Where column n stands in a row of sums, so that few threads of a warp meet in a bank. */
HZ_DEVICE int few_at(int n)
{
	return n ^ (n >> 3 & 4);
}

/* From this block's shared memory to that of another. */
HZ_DEVICE void copy_sums(uint32_t to, uint32_t from, uint32_t bytes, uint32_t barrier)
{
	asm volatile("cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes "
		     "[%0], [%1], %2, [%3];"
		     :: "r"(to), "r"(from), "r"(bytes), "r"(barrier) : "memory");
}

/*
 * The blocks of a cluster have the same 64 columns, which are the 64 rows of a matrix product with
 * the rows of A as its columns, and of k a share each, of which two warpgroups take blocks by
 * turns. In the end each block gets the sums of all for its share of the rows. B of the first
 * blocks of k is under way before the kernel ahead has ended.
 */
template <int ROWS, int STAGES, bool SIGNED>
HZ_DEVICE void few_kernel(const hzi_qgemm_few &p)
{
	constexpr int items = ROWS < 16 ? 1 : ROWS / 16; /* chunks of a block of A, per thread */
	constexpr int b_bytes = HZI_FEW_COLUMNS * HZI_QK_BLOCK, a_bytes = ROWS * HZI_QK_BLOCK;
	/* As many rows as columns: then sums lie better the other way round. */
	constexpr bool upright = ROWS == HZI_FEW_COLUMNS;
	auto &s = *(few_memory<ROWS, STAGES> *)shared_start();
	const int warp = __shfl_sync(~0u, threadIdx.x / 32, 0), lane = threadIdx.x % 32;
	const int group = warp / 4, thread = threadIdx.x % 128;
	uint32_t rank, blocks, full = shared_address(s.full), empty = shared_address(s.empty);

	asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
	asm("mov.u32 %0, %%cluster_nctaid.x;" : "=r"(blocks));
	const int n0 = blockIdx.x / blocks * HZI_FEW_COLUMNS;
	const int begin = rank * p.blocks / blocks, count = (rank + 1) * p.blocks / blocks - begin;
	const int share = ROWS / blocks, row0 = rank * share;

	auto load_b = [&](int k, int at) {
		barrier_expect(full + 8 * at, b_bytes + a_bytes);
		copy_bytes(shared_address(s.b[at]),
			   p.b + ((int64_t)(begin + k) * p.width + n0) * HZI_QK_BLOCK, b_bytes,
			   full + 8 * at);
	};
	auto load_a = [&](int k, int at) {
		copy_box(shared_address(s.a[at]), p.a, (begin + k) * HZI_QK_BLOCK, 0,
			 full + 8 * at);
	};

	/* A thread takes long to begin a copy, so that each of the first has one of its own. */
	const bool loads = lane == 0 && warp < STAGES;

	if (loads) {
		barrier_init(full + 8 * warp, 1);
		barrier_init(empty + 8 * warp, 4);
		barrier_init_fence();
		copy_fence();
		if (warp < count)
			load_b(warp, warp);
		prefetch_map(p.a);
	}
	if (threadIdx.x == HZI_FEW_THREADS - 1) {
		barrier_init(shared_address(&s.ready), 1);
		barrier_init_fence();
		if (blocks > 1)
			barrier_expect(shared_address(&s.ready),
				       (blocks - 1) * share * HZI_FEW_PITCH * 4);
	}
	grid_next();
	grid_wait();
	if (loads && warp < count)
		load_a(warp, warp);
	__syncthreads();
	cluster_arrive_relaxed();

	int32_t acc[ROWS / 2] = {}, sum[items] = {};
	bool fits = p.out.quick;

	if (group < 2) {
		uint32_t codes = shared_address(s.a[0]) + 16 * thread;
		uint64_t x = wgmma_lines(shared_address(s.b[0])),
			 y = wgmma_lines(shared_address(s.a[0]));
		const bool sums = p.out.a_sums && thread < 8 * ROWS;
		int at = group;
		uint32_t parity = 0;

		/* Kept, rather than made anew each time. */
		asm volatile("" : "+r"(codes), "+r"(full), "+r"(empty), "+l"(x), "+l"(y));
#pragma unroll 1
		for (int k = group; k < count; k += 2) {
			const uint64_t a = x + at * (b_bytes / 16), b = y + at * (a_bytes / 16);

			barrier_wait(full + 8 * at, parity);
			wgmma_keep(acc);
			wgmma_fence();
#pragma unroll
			for (int c = 0; c < 4; c++) {
				if (upright)
					wgmma<SIGNED, false>(acc, b + 2 * c, a + 2 * c, 1);
				else
					wgmma<false, SIGNED>(acc, a + 2 * c, b + 2 * c, 1);
			}
			wgmma_commit();
			wgmma_keep(acc);
			/* Which chunk of a line it is does not matter. */
#pragma unroll
			for (int i = 0; i < items; i++) {
				if (!sums)
					break;
				const uint4 v = load_shared(codes + at * a_bytes + 2048 * i);

				sum[i] = add_codes<SIGNED>(v.x, sum[i]);
				sum[i] = add_codes<SIGNED>(v.y, sum[i]);
				sum[i] = add_codes<SIGNED>(v.z, sum[i]);
				sum[i] = add_codes<SIGNED>(v.w, sum[i]);
			}
			if (k + STAGES < count) {
				wgmma_wait<0>();
				wgmma_keep(acc);
				__syncwarp();
				if (lane == 0)
					barrier_arrive(empty + 8 * at);
			}
			at += 2;
			if (at >= STAGES) {
				at -= STAGES;
				parity ^= 1;
			}
		}
		wgmma_wait<0>();
		wgmma_keep(acc);
#pragma unroll
		for (int i = 0; i < items; i++) {
#pragma unroll
			for (int d = 1; d < 8; d *= 2)
				sum[i] += __shfl_xor_sync(~0u, sum[i], d);
		}
	} else if (warp < 10) {
		if (fits)
			fits = quick_column(p.out, n0 + thread, s.column, thread);
	} else if (threadIdx.x == HZI_FEW_THREADS - 1) {
		for (int k = STAGES, at = 0, parity = 0; k < count; k++) {
			barrier_wait(empty + 8 * at, parity);
			load_b(k, at);
			load_a(k, at);
			if (++at == STAGES) {
				at = 0;
				parity ^= 1;
			}
		}
	}
	__syncwarp();
	/* All of the ring is done with. */
	fits = __syncthreads_and(fits);
	/* First the sums of one warpgroup, then with these those of the other. */
#pragma unroll 1
	for (int turn = 0; turn < 2; turn++) {
		if (group == turn) {
#pragma unroll
			for (int i = 0; i < items; i++) {
				int32_t &to = s.sums[thread / 8 + 16 * i][HZI_FEW_COLUMNS];

				if (thread % 8 == 0 && thread < 8 * ROWS)
					to = sum[i] + (turn ? to : 0);
			}
#pragma unroll
			for (int i = 0; upright && i < ROWS / 2; i += 4) {
				const int r = warp % 4 * 16 + (lane >> 2) + i / 16 * 8;
				const int e = i % 16 / 4 * 8 + i / 16 * 2;
				int4 &to = *(int4 *)&s.sums[r][few_at(16 * (lane & 3) + i % 16)];
				int4 v = turn ? to : make_int4(0, 0, 0, 0);

				v.x += acc[e];
				v.y += acc[e + 1];
				v.z += acc[e + 4];
				v.w += acc[e + 5];
				to = v;
			}
#pragma unroll
			for (int i = 0; !upright && i < ROWS / 2; i++) {
				const int line = warp % 4 * 16 + (lane >> 2) + i % 4 / 2 * 8;
				const int r = i / 4 * 8 + 2 * (lane & 3) + i % 2;
				int32_t &to = s.sums[r][few_at(column_of_line(line))];

				to = acc[i] + (turn ? to : 0);
			}
			copy_fence();
		}
		__syncthreads();
	}
	cluster_wait();
	if (blocks > 1) {
		const uint32_t ready = shared_address(&s.ready), bytes = share * HZI_FEW_PITCH * 4;

		if (lane == 0 && warp < blocks && warp != rank)
			copy_sums(cluster_map(shared_address(s.slots[row0]), warp),
				  shared_address(s.sums[warp * share]), bytes,
				  cluster_map(ready, warp));
		__syncwarp();
		barrier_wait(ready, 0);
		/* Each block waits till the others have what it sent. */
		cluster_arrive_relaxed();
	}

	const int at = lane % 16 * 4, n = n0 + at;

#pragma unroll 1
	for (int i = 2 * warp + lane / 16; i < share && row0 + i < p.out.m;
	     i += HZI_FEW_THREADS / 16) {
		out_row of = quick_row(p.out, row0 + i);
		int4 raw = {};

#pragma unroll 4
		for (int j = 0; j < blocks; j++) {
			const int32_t *row =
				j == rank ? s.sums[row0 + i] : s.slots[j * share + i];
			const int4 v = *(const int4 *)(row + few_at(at));

			raw.x += v.x;
			raw.y += v.y;
			raw.z += v.z;
			raw.w += v.w;
			of.sum += row[HZI_FEW_COLUMNS];
		}
		if (!fits) {
#pragma unroll 1
			for (int j = 0; j < 4; j++)
				general_put(p.out, general_column(p.out, n + j), element(raw, j),
					    of.sum, row0 + i, n + j);
		} else if (p.out.quick == HZI_QUICK_ROWS) {
			quick_four(p.out, raw, of, load_four(s.column, at), row0 + i, n);
		} else if (n < p.out.n) {
			const int32_t v[4] = {raw.x, raw.y, raw.z, raw.w};

			*(uint32_t *)((uint8_t *)p.out.c + (row0 + i) * p.out.c_m + n) =
				quick_codes(p.out, v, s.column, at, of.sum);
		}
	}
	if (blocks > 1)
		cluster_wait();
}

#endif

#if HAVE_WGMMA
#define BODY(call) { call; }
#else
#define BODY(call) { }
#endif
#define TMA(name, columns, stages, cluster, is_signed) \
	extern "C" __global__ __launch_bounds__(HZI_TMA_THREADS, 1) void \
	name(const __grid_constant__ hzi_qgemm_tma p) \
	BODY((tma_kernel<columns, stages, cluster, is_signed>(p)))
#define FEW(name, rows, stages, is_signed) \
	extern "C" __global__ __launch_bounds__(HZI_FEW_THREADS, 2) void \
	name(const __grid_constant__ hzi_qgemm_few p) \
	BODY((few_kernel<rows, stages, is_signed>(p)))
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
FEW(qgemm_few_8_u, 8, HZI_FEW_STAGES_8, false)
FEW(qgemm_few_16_u, 16, HZI_FEW_STAGES_16, false)
FEW(qgemm_few_32_u, 32, HZI_FEW_STAGES_32, false)
FEW(qgemm_few_64_u, 64, HZI_FEW_STAGES_64, false)
FEW(qgemm_few_8_s, 8, HZI_FEW_STAGES_8, true)
FEW(qgemm_few_16_s, 16, HZI_FEW_STAGES_16, true)
FEW(qgemm_few_32_s, 32, HZI_FEW_STAGES_32, true)
FEW(qgemm_few_64_s, 64, HZI_FEW_STAGES_64, true)
