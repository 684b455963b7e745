/*
 * group_results.cuh - sums of wgmma tiles of group-wise quantized weights to y
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#ifndef HZI_GPU_QGEMM_GROUP_RESULTS_CUH
#define HZI_GPU_QGEMM_GROUP_RESULTS_CUH

#include "gpu/device/shared.cuh"
#include "gpu/qgemm/group.cuh"

/*
 * Stores what a warpgroup has of D = W^T x^T, accumulators of 64 columns of W by ROWS rows of x,
 * through HZI_GROUP_RESULTS_BYTES(ROWS) of shared memory, by named barrier 1 + warp / 4.
 */
template <int ROWS>
struct group_results {
	static constexpr int COLUMNS = 4 * HZI_GROUP_COLUMNS;
	static constexpr int PITCH = HZI_GROUP_RESULTS_PITCH;
	static constexpr int FLOAT_ROWS = HZI_GROUP_RESULTS_ROWS(ROWS);

	const hzi_group_gemm &l;
	const bool vectorized;		/* y is of 16 bits, eight of its columns 16 aligned bytes */
	const int lane, warp;

	__device__ __forceinline__ group_results(const hzi_group_gemm &l_, bool vectorized_)
		: l(l_), vectorized(vectorized_), lane(threadIdx.x % 32), warp(threadIdx.x / 32)
	{
	}

	/* Rows from row0 on and columns from j on; to: aligned to 1024 bytes */
	__device__ __forceinline__ void put(const float (&sum)[ROWS / 2], uint8_t *to, int64_t row0,
					    int64_t j) const
	{
		if (vectorized && j + COLUMNS <= l.l.n)
			put_vectors(sum, shared_address(to), row0, j);
		else
			put_floats(sum, (float *)to, row0, j);
	}

private:
	__device__ __forceinline__ void barrier(void) const
	{
		bar_sync(1 + warp / 4, 128);
	}

	__device__ __forceinline__ float result(float v, float bias) const
	{
		v = __fadd_rn(v, bias);
		return v < l.low ? l.low : v > l.high ? l.high : v;
	}

	/* Rows of 128 bytes whose vectors are permuted as by TMA */
	__device__ __forceinline__ void put_vectors(const float (&sum)[ROWS / 2], uint32_t to,
						    int64_t row0, int64_t j) const
	{
		constexpr int rows_at_once = 16;
		const int thread = threadIdx.x % 128, row = thread / 8, vector = thread % 8;
		const uint32_t from = to + row * 128 + (vector ^ row % 8) * 16;
		uint16_t *const y = (uint16_t *)l.y + (row0 + row) * l.y_stride[0] + j + vector * 8;
		float bias[2];

		/* -0 changes nothing. */
		for (int h = 0; h < 2; h++)
			bias[h] = l.bias ? l.bias[j + warp % 4 * 16 + lane / 4 + h * 8] : -0.0f;
#pragma unroll
		for (int i = 0; i < ROWS / 8; i += 2) {
			uint32_t v[4];

#pragma unroll
			for (int e = 0; e < 4; e++) {
				const float low = result(sum[4 * i + 2 * e], bias[e % 2]);
				const float high = result(sum[4 * i + 2 * e + 1], bias[e % 2]);

				v[e] = l.y_dtype == HZ_F16 ? to_f16x2(low, high) :
							     to_bf16x2(low, high);
			}
			stmatrix_x4_trans(to + (i + lane / 16) * 1024 + lane % 8 * 128 +
					    (warp % 4 * 2 + lane / 8 % 2 ^ lane % 8) * 16, v);
		}
		barrier();
#pragma unroll
		for (int i = 0; i < ROWS; i += rows_at_once) {
			if (row0 + row + i < l.rows)
				*(uint4 *)(y + i * l.y_stride[0]) = shared_load(from + i * 128);
		}
		barrier();
	}

	__device__ __forceinline__ void put_floats(const float (&sum)[ROWS / 2], float *to,
						   int64_t row0, int64_t j) const
	{
#pragma unroll
		for (int first = 0; first < ROWS; first += FLOAT_ROWS) {
#pragma unroll
			for (int i = 0; i < FLOAT_ROWS / 2; i++)
				to[(i / 4 * 8 + 2 * (lane % 4) + i % 2) * PITCH + warp % 4 * 16 +
				   lane / 4 + i / 2 % 2 * 8] = sum[first / 2 + i];
			barrier();
#pragma unroll 1
			for (int i = threadIdx.x % 128; i < FLOAT_ROWS * COLUMNS; i += 128)
				group_put(l, row0 + first + i / COLUMNS, j + i % COLUMNS,
					  to[i / COLUMNS * PITCH + i % COLUMNS]);
			barrier();
		}
	}
};

#endif
