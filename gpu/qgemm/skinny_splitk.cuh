/*
 * skinny_splitk.cuh - accumulators of the kernels for a small m
 *
 * SPDX-License-Identifier: BSD-2-Clause
 *
 * The blocks of a cluster have the same 64 columns, and a share of k each. At the end each block
 * receives the accumulators of all blocks for its share of the results.
 */
#ifndef HZI_GPU_QGEMM_SKINNY_SPLITK_CUH
#define HZI_GPU_QGEMM_SKINNY_SPLITK_CUH

#include "gpu/qgemm/epilogue.cuh"
#include "gpu/device/wgmma_s8.cuh"

/* Position of column n in a row of results that are one word each, against bank conflicts */
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
	 * Each of 2^bits blocks adds up a share of the results, which all blocks send to its slots.
	 * With a_is_m a thread has eight vectors of four columns of a row, of which a block gets
	 * 8 >> bits; otherwise a block gets rows, one word at a time. A warp sends contiguous
	 * vectors: pieces of 16 bytes took 1400 cycles longer.
	 */
	static constexpr int pitch = a_is_m ? 4 * (2 * ROWS + 2) : HZI_SKINNY_PITCH;

	/* Slots of a block */
	static __device__ __forceinline__ int per_block(int bits)
	{
		return (a_is_m ? 8 : ROWS) >> bits;
	}

	/* Four columns of a row: vector i of eight, the first four of one row */
	__device__ __forceinline__ int4 vector(int i) const
	{
		const int e = i % 4 * 8 + i / 4 * 2;

		return make_int4(acc[e], acc[e + 1], acc[e + 4], acc[e + 5]);
	}

	/* Calls send(block, index of the slot, v) for the accumulators of a thread. */
	template <typename F>
	__device__ __forceinline__ void put(int rank, int bits, F send) const
	{
		const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
		const int first = rank * per_block(bits), mask = per_block(bits) - 1;

#pragma unroll
		for (int i = 0; a_is_m && i < 8; i++) {
			if (warp * 16 < ROWS)
				send(i >> (3 - bits),
				     (first + (i & mask)) * pitch + 4 * threadIdx.x, vector(i));
		}
#pragma unroll
		for (int i = 0; !a_is_m && i < ROWS / 2; i++) {
			const int row = i / 4 * 8 + 2 * (lane & 3) + i % 2;
			const int n = column_of_row(warp * 16 + (lane >> 2) + i % 4 / 2 * 8);

			send((row << bits) / ROWS,
			     (first + (row & mask)) * pitch + skinny_column(n), acc[i]);
		}
	}

	/* Four columns of a row, and the index of their slot of block 0 */
	struct place {
		int row, column, index;
	};

	/* Item of ROWS * 16 >> bits that a block adds up; adjacent ones are so in the row. */
	static __device__ __forceinline__ place place_of(int item, int rank, int bits)
	{
		if (!a_is_m) {
			const int row = item / 16, column = item % 16 * 4;

			return {rank * per_block(bits) + row, column,
				row * pitch + skinny_column(column)};
		}
		const int low = bits ? 3 - bits : 2;
		const int thread = (item >> low) & (2 * ROWS - 1);
		const int i = (item & ((1 << low) - 1)) + 4 * ((item >> low) / (2 * ROWS));
		const int e = rank * per_block(bits) + i;

		return {thread / 32 * 16 + thread % 32 / 4 + e / 4 * 8,
			16 * (thread & 3) + e % 4 * 4, i * pitch + 4 * thread};
	}
};

#endif
