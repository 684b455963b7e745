/*
 * skinny_splitk.cuh - accumulators of the kernels for a small m
 *
 * SPDX-License-Identifier: BSD-2-Clause
 *
 * The blocks of a cluster have the same 64 columns, and a share of k each. At the end each block
 * receives the accumulators of all blocks for its share of the rows.
 */
#ifndef HZI_GPU_QGEMM_SKINNY_SPLITK_CUH
#define HZI_GPU_QGEMM_SKINNY_SPLITK_CUH

#include "gpu/qgemm/epilogue.cuh"
#include "gpu/device/wgmma_s8.cuh"

/* Position of column n in a row of accumulators, permuted to reduce bank conflicts */
HZ_DEVICE int skinny_column(int n)
{
	return n ^ (n >> 3 & 4);
}

/*
 * The 64 columns are the M dimension of wgmma and ROWS rows of A its N dimension; or with a_is_m
 * the other way round, which gives a thread 16 successive columns but, with 32 rows, wastes half of
 * the product.
 */
template <int ROWS>
struct skinny_accumulators {
	static constexpr bool a_is_m = ROWS >= 32;
	int32_t acc[a_is_m ? HZI_SKINNY_COLUMNS / 2 : ROWS / 2] = {};

	/* Adds the product of one block of k; a, b: descriptors of A and B. */
	template <bool SIGNED>
	__device__ __forceinline__ void multiply(uint64_t a, uint64_t b)
	{
		wgmma_keep(acc);
		wgmma_fence();
#pragma unroll
		for (int c = 0; c < 4; c++) {
			if (a_is_m)
				wgmma<SIGNED, false>(acc, a + 2 * c, b + 2 * c, 1);
			else
				wgmma<false, SIGNED>(acc, b + 2 * c, a + 2 * c, 1);
		}
		wgmma_commit();
		wgmma_keep(acc);
	}

	/* Waits until at most N blocks are pending. */
	template <int N>
	__device__ __forceinline__ void wait(void)
	{
		wgmma_wait<N>();
		wgmma_keep(acc);
	}

	/*
	 * Calls four(r, at, ...) or one(r, at, ...) for the accumulators of a thread of the four
	 * warps: row r, position `at` in it.
	 */
	template <typename F, typename G>
	__device__ __forceinline__ void put(F four, G one) const
	{
		const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;

#pragma unroll
		for (int i = 0; a_is_m && i < HZI_SKINNY_COLUMNS / 2; i += 4) {
			const int r = warp * 16 + (lane >> 2) + i / 16 * 8;
			const int e = i % 16 / 4 * 8 + i / 16 * 2;

			if (warp * 16 < ROWS)
				four(r, skinny_column(16 * (lane & 3) + i % 16), acc[e], acc[e + 1],
				     acc[e + 4], acc[e + 5]);
		}
#pragma unroll
		for (int i = 0; !a_is_m && i < ROWS / 2; i++) {
			const int row = warp * 16 + (lane >> 2) + i % 4 / 2 * 8;

			one(i / 4 * 8 + 2 * (lane & 3) + i % 2, skinny_column(column_of_row(row)),
			    acc[i]);
		}
	}
};

#endif
