/*
 * skinny_splitk.cu - quantized multiplication of few rows on Hopper, split along k over a cluster
 *
 * SPDX-License-Identifier: BSD-2-Clause
 *
 * TMA loads blocks of k of both operands into a ring in shared memory, as in wgmma.cu. Grid: x,
 * clusters of 64 columns; y, groups of ROWS rows. Warps 0 to 3 multiply, the next sum the rows of
 * A, two prepare the epilogue of the columns, and the last thread issues copies.
 */
#include "gpu/qgemm/skinny_splitk.cuh"
#include "gpu/device/shared.cuh"
#include "gpu/device/tma.cuh"

#if HAVE_WGMMA

/* slots, sums: accumulators of this block's share, and sums of rows of A, from all blocks */
template <int ROWS, int STAGES>
struct skinny_memory {
	uint8_t b[STAGES][HZI_SKINNY_COLUMNS * HZI_QGEMM_K_BLOCK];
	uint8_t a[STAGES][ROWS * HZI_QGEMM_K_BLOCK];
	alignas(16) int32_t slots[ROWS * HZI_SKINNY_PITCH];
	int32_t sums[HZI_SKINNY_BLOCKS][ROWS];
	out_columns<HZI_SKINNY_COLUMNS> column;
	uint64_t full[STAGES], empty[STAGES], ready;
};

#define CHECK_SIZE(rows) \
	static_assert(sizeof(skinny_memory<rows, HZI_SKINNY_STAGES_##rows>) <= \
		      HZI_SKINNY_BYTES(rows, HZI_SKINNY_STAGES_##rows), "the launcher's bytes")
CHECK_SIZE(8);
CHECK_SIZE(16);
CHECK_SIZE(32);
CHECK_SIZE(64);

/*
 * General epilogue of four columns, from the slots of all blocks, `step` words apart; adds them in
 * 64 bits if 32 may overflow.
 */
HZ_DEVICE void store_four_general(const hzi_qgemm_skinny &p, const int32_t *slots, int step,
				  int blocks, int32_t row_sum, int r, int n)
{
#pragma unroll 1
	for (int i = 0; i < 4; i++) {
		const out_column column = general_column(p.out, n + i);
		int64_t raw = 0;

		for (int j = 0; j < blocks; j++)
			raw += slots[j * step + i];
		if (p.sum64)
			general_put(p.out, column, raw, row_sum, r, n + i);
		else
			general_put(p.out, column, (int32_t)raw, row_sum, r, n + i);
	}
}

/* Stores four codes; supports zero points per row, and any strides if p.any_strides. */
HZ_DEVICE void store_four_codes(const hzi_qgemm_skinny &p, int4 raw, const four_columns &columns,
				int32_t row_sum, int r, int n)
{
	uint8_t *c = (uint8_t *)p.out.c + r * p.out.c_m + n * p.out.c_n;
	uint32_t w;

	if (p.out.a_zeros) {
		const int4 sums = *(const int4 *)(p.out.b_sums + n);
		const int32_t zero = general_row(p.out, r).zero;

		raw.x -= zero * (p.out.k * columns.zero.x + sums.x);
		raw.y -= zero * (p.out.k * columns.zero.y + sums.y);
		raw.z -= zero * (p.out.k * columns.zero.z + sums.z);
		raw.w -= zero * (p.out.k * columns.zero.w + sums.w);
	}
	w = requantize_four(p.out, raw, columns, row_sum);
	if (!p.any_strides) {
		*(uint32_t *)c = w;
		return;
	}
#pragma unroll
	for (int i = 0; i < 4; i++) {
		if (n + i < p.out.n)
			c[i * p.out.c_n] = (uint8_t)(w >> 8 * i);
	}
}

/* First warps of the roles; see the head of the file. */
#define SUM_WARP 4
#define COLUMN_WARP 8

/*
 * The blocks of a cluster have the same 64 columns and ROWS rows. Copies of the first blocks of B
 * are issued before the previous kernel has ended; more of them would delay those of A.
 */
template <int ROWS, int STAGES, bool SIGNED>
HZ_DEVICE void skinny_kernel(const hzi_qgemm_skinny &p)
{
	constexpr int b_bytes = HZI_SKINNY_COLUMNS * HZI_QGEMM_K_BLOCK;
	constexpr int a_bytes = ROWS * HZI_QGEMM_K_BLOCK;
	/* Blocks of B that are requested ahead of A */
	constexpr int ahead = ROWS == 64 ? 3 : ROWS == 32 ? 4 : STAGES;
	/* Warps that sum rows of A, and chunks of a block of A per thread */
	constexpr int sum_warps = ROWS < 16 ? 2 : 4, items = ROWS * 8 / (32 * sum_warps);
	typedef skinny_accumulators<ROWS> accumulators;
	auto &s = *(skinny_memory<ROWS, STAGES> *)shared_start();
	const int warp = __shfl_sync(~0u, threadIdx.x / 32, 0), lane = threadIdx.x % 32;
	const bool sums_a = p.out.a_sums;
	const uint32_t full = shared_address(s.full), empty = shared_address(s.empty);
	const uint32_t ready = shared_address(&s.ready);
	const uint32_t rank = cluster_rank();
	const uint32_t blocks = cluster_size();
	const int n0 = blockIdx.x / blocks * HZI_SKINNY_COLUMNS;
	const int begin = rank * p.blocks / blocks, count = (rank + 1) * p.blocks / blocks - begin;
	/* blocks is a power of two. */
	const bool single_block = blocks == 1;
	const int bits = __ffs(blocks) - 1, m0 = blockIdx.y * ROWS;

	auto load_b = [&](int k, int at) {
		mbarrier_expect_tx(full + 8 * at, b_bytes + a_bytes);
		bulk_copy(shared_address(s.b[at]),
			  p.b + ((int64_t)(begin + k) * p.width + n0) * HZI_QGEMM_K_BLOCK, b_bytes,
			  full + 8 * at);
	};
	auto load_a = [&](int k, int at) {
		tma_load_2d(shared_address(s.a[at]), p.a, (begin + k) * HZI_QGEMM_K_BLOCK, m0,
			    full + 8 * at);
	};
	/* Stores to `to` of a block, which counts the bytes if they come from another */
	auto send = [&](int block, int32_t *to, auto v) {
		const uint32_t dst = cluster_map(shared_address(to), block);

		if (block == (int)rank)
			*(decltype(v) *)to = v;
		else if constexpr (sizeof(v) == 16)
			store_async(dst, v.x, v.y, v.z, v.w, cluster_map(ready, block));
		else
			store_async(dst, v, cluster_map(ready, block));
	};

	/* A warp takes long to issue a copy, so as many warps as possible issue the first ones. */
	const int mine = warp + lane * (HZI_SKINNY_THREADS / 32);

	if (mine < STAGES) {
		mbarrier_init(full + 8 * mine, 1);
		mbarrier_init(empty + 8 * mine, 4 + (sums_a ? sum_warps : 0));
		mbarrier_init_fence();
		fence_proxy_async();
		if (mine < count && mine < ahead)
			load_b(mine, mine);
		tma_prefetch_map(p.a);
	}
	if (threadIdx.x == HZI_SKINNY_THREADS - 1) {
		mbarrier_init(ready, 1);
		mbarrier_init_fence();
		mbarrier_expect_tx(ready, (blocks - 1) * 4 *
				   ((ROWS * HZI_SKINNY_COLUMNS >> bits) + ROWS));
	}
	pdl_launch_dependents();
	__syncthreads();
	/*
	 * From here on other blocks may write to this one. A single block is launched without a
	 * cluster.
	 */
	if (!single_block)
		cluster_arrive_relaxed();
	pdl_wait();
	if (mine < STAGES && mine < count) {
		if (mine >= ahead)
			load_b(mine, mine);
		load_a(mine, mine);
	}
	__syncwarp();
	if (!single_block)
		cluster_wait();

	bool fits = p.out.fast_path;
	int4 own[4];
	ring_position<STAGES> ring;

	if (warp < SUM_WARP) {
		const uint64_t x = wgmma_desc_k(shared_address(s.b[0]));
		const uint64_t y = wgmma_desc_k(shared_address(s.a[0]));
		accumulators acc;

		auto release = [&](int k, int at) {
			if (k >= 0 && k + STAGES < count && lane == 0)
				mbarrier_arrive(empty + 8 * at);
		};

#pragma unroll 1
		for (int k = 0, last = 0; k < count; k++) {
			const uint64_t a = x + ring.at * (b_bytes / 16);
			const uint64_t b = y + ring.at * (a_bytes / 16);

			mbarrier_wait(full + 8 * ring.at, ring.parity);
			acc.template multiply<SIGNED>(b, a);
			acc.template wait<1>();
			release(k - 1, last);
			last = ring.at;
			ring.next();
		}
		acc.template wait<0>();
		if (accumulators::a_is_m && bits == 1) {
			const int at = 4 * rank * accumulators::pitch + 4 * threadIdx.x;
			const uint32_t to = cluster_map(shared_address(s.slots + at), 1 - rank);
			const uint32_t there = cluster_map(ready, 1 - rank);

#pragma unroll
			for (int i = 0; warp * 16 < ROWS && i < 4; i++) {
				const int4 low = acc.vector(i), high = acc.vector(4 + i);
				const int4 v = rank ? low : high;
				const int step = i * accumulators::pitch;

				store_async(to + 4 * step, v.x, v.y, v.z, v.w, there);
				own[i] = rank ? high : low;
				*(int4 *)(s.slots + at + step) = own[i];
			}
		} else {
			acc.put(rank, bits, [&](int block, int index, auto v) {
				send(block, s.slots + index, v);
			});
		}
	} else if (warp < SUM_WARP + sum_warps) {
		const int thread = threadIdx.x - 32 * SUM_WARP;
		const uint32_t codes = shared_address(s.a[0]) + 16 * thread;
		int32_t sum[items] = {};

#pragma unroll 1
		for (int k = 0, last = 0; sums_a && k < count; k++) {
			mbarrier_wait(full + 8 * ring.at, ring.parity);
			/* The codes of the last stage have been added, not only loaded. */
			if (k > 0 && k - 1 + STAGES < count && lane == 0)
				mbarrier_arrive(empty + 8 * last);
			/* The order of chunks within a row does not matter for its sum. */
#pragma unroll
			for (int i = 0; i < items; i++) {
				const uint4 v = shared_load(codes + ring.at * a_bytes +
							    512 * sum_warps * i);

				sum[i] = add_codes<SIGNED>(v.x, sum[i]);
				sum[i] = add_codes<SIGNED>(v.y, sum[i]);
				sum[i] = add_codes<SIGNED>(v.z, sum[i]);
				sum[i] = add_codes<SIGNED>(v.w, sum[i]);
			}
			__syncwarp();
			last = ring.at;
			ring.next();
		}
#pragma unroll
		for (int i = 0; i < items; i++) {
			const int r = thread / 8 + 4 * sum_warps * i;

#pragma unroll
			for (int d = 1; d < 8; d *= 2)
				sum[i] += __shfl_xor_sync(~0u, sum[i], d);
			if (thread % 8 < blocks)
				send(thread % 8, &s.sums[rank][r], sum[i]);
		}
	} else {
		const int column = threadIdx.x - 32 * COLUMN_WARP;

		if (threadIdx.x == HZI_SKINNY_THREADS - 1) {
			for (int k = STAGES; k < count; k++) {
				mbarrier_wait(empty + 8 * ring.at, ring.parity);
				load_b(k, ring.at);
				load_a(k, ring.at);
				ring.next();
			}
		} else if (fits && column >= 0 && column < HZI_SKINNY_COLUMNS) {
			fits = prepare_column(p.out, n0 + column, s.column, column, p.any_strides);
		}
		__syncwarp();
	}
	fits = __syncthreads_and(fits);
	if (!single_block)
		mbarrier_wait(ready, 0);

	const int step = accumulators::per_block(bits) * accumulators::pitch;

	/* Two blocks, codes: a thread that multiplied takes 16 columns of a row. */
	if (accumulators::a_is_m && bits == 1 && fits && !p.any_strides &&
	    p.out.fast_path == HZI_EPILOGUE_CODES) {
		const int row = warp * 16 + lane / 4 + 8 * rank, column = 16 * (lane & 3);
		const int32_t *from = s.slots + (1 - rank) * step + 4 * threadIdx.x;
		uint32_t w[4];

		if (warp * 16 >= ROWS || m0 + row >= p.out.m || n0 + column >= p.out.n)
			return;
		const int32_t sum = s.sums[0][row] + s.sums[1][row];
#pragma unroll
		for (int i = 0; i < 4; i++) {
			const four_columns columns = load_four(s.column, column + 4 * i);
			const int4 other = *(const int4 *)(from + i * accumulators::pitch);
			int4 raw = own[i];

			raw.x += other.x;
			raw.y += other.y;
			raw.z += other.z;
			raw.w += other.w;
			w[i] = requantize_four(p.out, raw, columns, sum);
		}
		*(uint4 *)((uint8_t *)p.out.c + (m0 + row) * p.out.c_m + n0 + column) =
			make_uint4(w[0], w[1], w[2], w[3]);
		return;
	}
#pragma unroll 1
	for (int i = threadIdx.x; i < (ROWS * 16 >> bits); i += HZI_SKINNY_THREADS) {
		const auto at = accumulators::place_of(i, rank, bits);
		const int r = m0 + at.row, n = n0 + at.column;
		const four_columns columns = load_four(s.column, at.column);
		out_row of = fast_row(p.out, r);
		int4 raw = {};

		if (r >= p.out.m)
			continue;
#pragma unroll 4
		for (int j = 0; j < blocks; j++) {
			const int4 v = *(const int4 *)(s.slots + at.index + j * step);

			raw.x += v.x;
			raw.y += v.y;
			raw.z += v.z;
			raw.w += v.w;
			of.sum += s.sums[j][at.row];
		}
		if (!fits)
			store_four_general(p, s.slots + at.index, step, blocks, of.sum, r, n);
		else if (p.out.fast_path == HZI_EPILOGUE_VALUES)
			p.any_strides ? store_four<true>(p.out, raw, of, columns, r, n)
				      : store_four<false>(p.out, raw, of, columns, r, n);
		else if (n < p.out.n)
			store_four_codes(p, raw, columns, of.sum, r, n);
	}
}

#endif

#define KERNEL(name, rows, is_signed) \
	extern "C" __global__ __launch_bounds__(HZI_SKINNY_THREADS, 2) void \
	name(const __grid_constant__ hzi_qgemm_skinny p) \
	HZ_HOPPER_BODY((skinny_kernel<rows, HZI_SKINNY_STAGES_##rows, is_signed>(p)))
#define KERNELS(rows) \
	KERNEL(qgemm_skinny_##rows##_u8, rows, false) \
	KERNEL(qgemm_skinny_##rows##_s8, rows, true)
KERNELS(8)
KERNELS(16)
KERNELS(32)
KERNELS(64)
