/*
 * skinny_splitk.cu - quantized multiplication by few rows on Hopper
 *
 * SPDX-License-Identifier: BSD-2-Clause
 *
 * Blocks of k of both operands come by the copy engine, as in wgmma.cu, and blocks of a cluster
 * share k.
 */
#include "gpu/qgemm/skinny_splitk.cuh"
#include "gpu/device/shared.cuh"
#include "gpu/device/tma.cuh"

#if HAVE_WGMMA

/*
 * slots: sums of this block's share of the rows, from all blocks of the cluster: rows of 64 columns
 * and the sum of A's row.
 */
template <int ROWS, int STAGES>
struct few_memory {
	uint8_t b[STAGES][HZI_SKINNY_COLUMNS * HZI_QK_BLOCK];
	uint8_t a[STAGES][ROWS * HZI_QK_BLOCK];
	int32_t slots[ROWS][HZI_SKINNY_PITCH];
	out_columns<HZI_SKINNY_COLUMNS> column;
	uint64_t full[STAGES], empty[STAGES], ready;
};

#define FEW_SIZE(rows) \
	static_assert(sizeof(few_memory<rows, HZI_SKINNY_STAGES_##rows>) <= \
		      HZI_SKINNY_BYTES(rows, HZI_SKINNY_STAGES_##rows), "the launcher's bytes")
FEW_SIZE(8);
FEW_SIZE(16);
FEW_SIZE(32);
FEW_SIZE(64);

/* Four columns the general way, from the sums of all blocks: in 64 bits if 32 may not do. */
template <int ROWS>
HZ_DEVICE void few_general(const hzi_qgemm_skinny &p, const int32_t (*slots)[HZI_SKINNY_PITCH],
			   int share, int blocks, int at, int32_t row_sum, int r, int n)
{
#pragma unroll 1
	for (int i = 0; i < 4; i++) {
		const out_column column = general_column(p.out, n + i);
		int64_t raw = 0;

		for (int j = 0; j < blocks; j++)
			raw += slots[j * share][few_at(at) + i];
		if (p.wide)
			general_put(p.out, column, raw, row_sum, r, n + i);
		else
			general_put(p.out, column, (int32_t)raw, row_sum, r, n + i);
	}
}

/* Four codes: with zeros of rows, and anywhere, if p is loose. */
HZ_DEVICE void few_codes(const hzi_qgemm_skinny &p, int4 raw, const four_columns &columns,
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
	w = quick_codes(p.out, raw, columns, row_sum);
	if (!p.loose) {
		*(uint32_t *)c = w;
		return;
	}
#pragma unroll
	for (int i = 0; i < 4; i++) {
		if (n + i < p.out.n)
			c[i * p.out.c_n] = (uint8_t)(w >> 8 * i);
	}
}

/* The warps: 0 to 3 multiply, the next add up the rows of A, two make the columns ready. */
#define SUM_WARP 4
#define COLUMN_WARP 8

/*
 * The blocks of a cluster have the same 64 columns and the same rows, the next ROWS for each step
 * along the grid's y. B of the first blocks of k is under way before the kernel ahead has ended.
 */
template <int ROWS, int STAGES, bool SIGNED>
HZ_DEVICE void few_kernel(const hzi_qgemm_skinny &p)
{
	constexpr int b_bytes = HZI_SKINNY_COLUMNS * HZI_QK_BLOCK, a_bytes = ROWS * HZI_QK_BLOCK;
	/* Warps that add up, and chunks of a block of A for each of their threads */
	constexpr int sum_warps = ROWS < 16 ? 2 : 4, items = ROWS * 8 / (32 * sum_warps);
	auto &s = *(few_memory<ROWS, STAGES> *)shared_start();
	const int warp = __shfl_sync(~0u, threadIdx.x / 32, 0), lane = threadIdx.x % 32;
	const bool adds = p.out.a_sums;
	const uint32_t full = shared_address(s.full), empty = shared_address(s.empty);
	const uint32_t ready = shared_address(&s.ready);
	const uint32_t rank = cluster_rank();
	const uint32_t blocks = cluster_size();
	const int n0 = blockIdx.x / blocks * HZI_SKINNY_COLUMNS;
	const int begin = rank * p.blocks / blocks, count = (rank + 1) * p.blocks / blocks - begin;
	/* Blocks are a power of two, and so are their shares of the rows. */
	const bool alone = blocks == 1;
	const int share = ROWS / blocks, row0 = rank * share, bits = __ffs(share) - 1;
	const int m0 = blockIdx.y * ROWS;

	auto load_b = [&](int k, int at) {
		mbarrier_expect_tx(full + 8 * at, b_bytes + a_bytes);
		bulk_copy(shared_address(s.b[at]),
			  p.b + ((int64_t)(begin + k) * p.width + n0) * HZI_QK_BLOCK, b_bytes,
			  full + 8 * at);
	};
	auto load_a = [&](int k, int at) {
		tma_load_2d(shared_address(s.a[at]), p.a, (begin + k) * HZI_QK_BLOCK, m0,
			    full + 8 * at);
	};
	/* Where sums of row r go from this block. */
	auto slot_of = [&](int r, int column) {
		return cluster_map(shared_address(&s.slots[row0 + (r & (share - 1))][column]),
				   r >> bits);
	};
	auto ready_of = [&](int r) {
		return cluster_map(ready, r >> bits);
	};

	/*
	 * A warp takes long to begin a copy, so that the first are begun by as many as there are.
	 */
	const int mine = warp + lane * (HZI_SKINNY_THREADS / 32);

	if (mine < STAGES) {
		mbarrier_init(full + 8 * mine, 1);
		mbarrier_init(empty + 8 * mine, 4 + (adds ? sum_warps : 0));
		mbarrier_init_fence();
		fence_proxy_async();
		if (mine < count)
			load_b(mine, mine);
		tma_prefetch_map(p.a);
	}
	if (threadIdx.x == HZI_SKINNY_THREADS - 1) {
		mbarrier_init(ready, 1);
		mbarrier_init_fence();
		mbarrier_expect_tx(ready, ROWS * (HZI_SKINNY_COLUMNS + 1) * 4);
	}
	pdl_launch_dependents();
	__syncthreads();
	/* From here on others may write here; of blocks alone there are no clusters. */
	if (!alone)
		cluster_arrive_relaxed();
	pdl_wait();
	if (mine < STAGES && mine < count)
		load_a(mine, mine);
	__syncwarp();
	if (!alone)
		cluster_wait();

	bool fits = p.out.quick;
	ring_position<STAGES> ring;

	if (warp < SUM_WARP) {
		const uint64_t x = wgmma_desc_k(shared_address(s.b[0]));
		const uint64_t y = wgmma_desc_k(shared_address(s.a[0]));
		few_sums<ROWS> sums;

		auto done_with = [&](int k, int at) {
			if (k >= 0 && k + STAGES < count && lane == 0)
				mbarrier_arrive(empty + 8 * at);
		};

#pragma unroll 1
		for (int k = 0, last = 0; k < count; k++) {
			const uint64_t a = x + ring.at * (b_bytes / 16);
			const uint64_t b = y + ring.at * (a_bytes / 16);

			mbarrier_wait(full + 8 * ring.at, ring.parity);
			sums.template multiply<SIGNED>(b, a);
			sums.template wait<1>();
			done_with(k - 1, last);
			last = ring.at;
			ring.next();
		}
		sums.template wait<0>();
		sums.put([&](int r, int at, int32_t a, int32_t b, int32_t c, int32_t d) {
			if (alone)
				*(int4 *)&s.slots[r][at] = make_int4(a, b, c, d);
			else
				store_async(slot_of(r, at), a, b, c, d, ready_of(r));
		}, [&](int r, int at, int32_t v) {
			if (alone)
				s.slots[r][at] = v;
			else
				store_async(slot_of(r, at), v, ready_of(r));
		});
	} else if (warp < SUM_WARP + sum_warps) {
		const int thread = threadIdx.x - 32 * SUM_WARP;
		const uint32_t codes = shared_address(s.a[0]) + 16 * thread;
		int32_t sum[items] = {};

#pragma unroll 1
		for (int k = 0, last = 0; adds && k < count; k++) {
			mbarrier_wait(full + 8 * ring.at, ring.parity);
			/* Its codes have been added, not only asked for. */
			if (k > 0 && k - 1 + STAGES < count && lane == 0)
				mbarrier_arrive(empty + 8 * last);
			/* Which chunk of a line it is does not matter. */
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
			if (thread % 8 == 0 && alone)
				s.slots[r][HZI_SKINNY_COLUMNS] = sum[i];
			else if (thread % 8 == 0)
				store_async(slot_of(r, HZI_SKINNY_COLUMNS), sum[i], ready_of(r));
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
			fits = quick_column(p.out, n0 + column, s.column, column, p.loose);
		}
		__syncwarp();
	}
	fits = __syncthreads_and(fits);
	if (!alone)
		mbarrier_wait(ready, 0);

	const int at = lane % 16 * 4, n = n0 + at;
	const four_columns columns = load_four(s.column, at);

#pragma unroll 1
	for (int i = 2 * warp + lane / 16; i < share && m0 + row0 + i < p.out.m;
	     i += HZI_SKINNY_THREADS / 16) {
		const int r = m0 + row0 + i;
		out_row of = quick_row(p.out, r);
		int4 raw = {};

#pragma unroll 4
		for (int j = 0; j < blocks; j++) {
			const int32_t *row = s.slots[j * share + i];
			const int4 v = *(const int4 *)(row + few_at(at));

			raw.x += v.x;
			raw.y += v.y;
			raw.z += v.z;
			raw.w += v.w;
			of.sum += row[HZI_SKINNY_COLUMNS];
		}
		if (!fits)
			few_general<ROWS>(p, s.slots + i, share, blocks, at, of.sum, r, n);
		else if (p.out.quick == HZI_EPILOGUE_VALUES)
			p.loose ? quick_four<true>(p.out, raw, of, columns, r, n)
				: quick_four<false>(p.out, raw, of, columns, r, n);
		else if (n < p.out.n)
			few_codes(p, raw, columns, of.sum, r, n);
	}
}

#endif

#define FEW(name, rows, is_signed) \
	extern "C" __global__ __launch_bounds__(HZI_SKINNY_THREADS, 2) void \
	name(const __grid_constant__ hzi_qgemm_skinny p) \
	HZ_HOPPER_BODY((few_kernel<rows, HZI_SKINNY_STAGES_##rows, is_signed>(p)))
FEW(qgemm_skinny_8_u8, 8, false)
FEW(qgemm_skinny_16_u8, 16, false)
FEW(qgemm_skinny_32_u8, 32, false)
FEW(qgemm_skinny_64_u8, 64, false)
FEW(qgemm_skinny_8_s8, 8, true)
FEW(qgemm_skinny_16_s8, 16, true)
FEW(qgemm_skinny_32_s8, 32, true)
FEW(qgemm_skinny_64_s8, 64, true)
