/*
 * skinny_splitk.cuh - what the kernels for few rows share: sums on their way through a cluster
 *
 * SPDX-License-Identifier: BSD-2-Clause
 *
 * The blocks of a cluster that have the same 64 columns have a share of k each. In the end each of
 * them gets the sums of all for its share of the rows.
 */
#ifndef HZI_GPU_QGEMM_SKINNY_SPLITK_CUH
#define HZI_GPU_QGEMM_SKINNY_SPLITK_CUH

#include "gpu/qgemm/epilogue.cuh"
#include "gpu/device/wgmma_s8.cuh"

/* Where column n stands in a row of sums, so that few threads of a warp meet in a bank. */
HZ_DEVICE int few_at(int n)
{
	return n ^ (n >> 3 & 4);
}

/*
 * Columns are the 64 rows of a matrix product with ROWS rows of A as its columns; or, upright, the
 * other way round, so that a thread has 16 successive columns: of 32 rows the other half of a
 * product is of no use then.
 */
template <int ROWS>
struct few_sums {
	static constexpr bool upright = ROWS >= 32;
	int32_t acc[upright ? HZI_SKINNY_COLUMNS / 2 : ROWS / 2] = {};

	/* Adds a block of k: a has lines of A, b of B. */
	template <bool SIGNED>
	__device__ __forceinline__ void multiply(uint64_t a, uint64_t b)
	{
		wgmma_keep(acc);
		wgmma_fence();
#pragma unroll
		for (int c = 0; c < 4; c++) {
			if (upright)
				wgmma<SIGNED, false>(acc, a + 2 * c, b + 2 * c, 1);
			else
				wgmma<false, SIGNED>(acc, b + 2 * c, a + 2 * c, 1);
		}
		wgmma_commit();
		wgmma_keep(acc);
	}

	/* Until no more than N blocks are under way */
	template <int N>
	__device__ __forceinline__ void wait(void)
	{
		wgmma_wait<N>();
		wgmma_keep(acc);
	}

	/*
	 * Calls four(r, at, ...) or one(r, at, ...) for what a thread of the four warps has of row
	 * r, at being its place there.
	 */
	template <typename F, typename G>
	__device__ __forceinline__ void put(F four, G one) const
	{
		const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;

#pragma unroll
		for (int i = 0; upright && i < HZI_SKINNY_COLUMNS / 2; i += 4) {
			const int r = warp * 16 + (lane >> 2) + i / 16 * 8;
			const int e = i % 16 / 4 * 8 + i / 16 * 2;

			if (warp * 16 < ROWS)
				four(r, few_at(16 * (lane & 3) + i % 16), acc[e], acc[e + 1],
				     acc[e + 4], acc[e + 5]);
		}
#pragma unroll
		for (int i = 0; !upright && i < ROWS / 2; i++) {
			const int line = warp * 16 + (lane >> 2) + i % 4 / 2 * 8;

			one(i / 4 * 8 + 2 * (lane & 3) + i % 2, few_at(column_of_line(line)),
			    acc[i]);
		}
	}
};

#endif
