/*
 * shared_rows.cuh - transforms of 2^k elements in the shared memory of a block
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#ifndef HZI_GPU_HADAMARD_SHARED_ROWS_CUH
#define HZI_GPU_HADAMARD_SHARED_ROWS_CUH

#include "gpu/device/cluster.cuh"
#include "gpu/hadamard/butterflies.cuh"
#include "gpu/hadamard/factors.cuh"
#include "gpu/hadamard/hadamard.h"

/* Eight contiguous elements */
HZ_DEVICE void load_8(float *v, int dtype, const void *x, int64_t i)
{
	if (dtype == HZ_F32) {
		load_piece<4>(v, (const float *)x + i);
		load_piece<4>(v + 4, (const float *)x + i + 4);
		return;
	}

	const uint4 u = *(const uint4 *)((const uint16_t *)x + i);
	const uint32_t w[4] = {u.x, u.y, u.z, u.w};

#pragma unroll
	for (int j = 0; j < 4; j++) {
		v[2 * j] = dtype == HZ_F16 ? f16_low(w[j]) : bf16_low(w[j]);
		v[2 * j + 1] = dtype == HZ_F16 ? f16_high(w[j]) : bf16_high(w[j]);
	}
}

/*
 * 4 words of padding follow each 32 elements, or each 2^k if that is less: 16-byte accesses of 8
 * threads, 32 bytes apart, and accesses at strides of 64 have two-way bank conflicts.
 */
struct padded_row {
	float *buffer;
	int shift;

	__device__ __forceinline__ padded_row(float *buffer, int k)
		: buffer(buffer), shift(k < 5 ? k : 5)
	{
	}
	__device__ __forceinline__ float *at(int e) const
	{
		return buffer + e + (e >> shift) * 4;
	}
};

/*
 * All transforms of 2^k elements, k >= 3, of n elements from x on, with factors from `pre` on. Ends
 * with a barrier.
 */
HZ_DEVICE void transform_rows(const padded_row &row, const hzi_hadamard_job &job, int64_t x,
			      int64_t pre, int n, int k)
{
	for (int i = threadIdx.x; i < n / 8; i += blockDim.x) {
		float v[8];

		load_8(v, job.x_dtype, job.x, x + 8 * i);
		if (job.pre_kind)
			multiply_factors<8>(v, job.pre_kind, job.pre, pre + 8 * i);
		stages<8, 0, 3>(v, 3);
		store_piece<4>(row.at(8 * i), v);
		store_piece<4>(row.at(8 * i) + 4, v + 4);
	}
	__syncthreads();
	for (int b = 3; b < k; b += 3) {
		const int radix = k - b < 3 ? k - b : 3;

		for (int i = threadIdx.x; i < n >> radix; i += blockDim.x) {
			const int e = (i >> b << (b + radix)) | (i & ((1 << b) - 1));
			float v[8];

#pragma unroll
			for (int j = 0; j < 8; j++)
				v[j] = j < 1 << radix ? *row.at(e + (j << b)) : 0.0f;
			stages<8, 0, 3>(v, radix);
#pragma unroll
			for (int j = 0; j < 8; j++) {
				if (j < 1 << radix)
					*row.at(e + (j << b)) = v[j];
			}
		}
		__syncthreads();
	}
}

/* The maximum over all threads of a block or cluster; NaN if one is NaN */
HZ_DEVICE float max_block(float most, float *scratch, int cluster_log2)
{
	for (int b = 16; b; b >>= 1)
		most = max_nan(most, __shfl_xor_sync(0xffffffff, most, b));
	__syncthreads();
	if (threadIdx.x % 32 == 0)
		scratch[threadIdx.x / 32] = most;
	__syncthreads();
	for (int w = 0; w < blockDim.x / 32; w++)
		most = max_nan(most, scratch[w]);
	if (cluster_log2) {
		__syncthreads();
		if (threadIdx.x == 0)
			scratch[0] = most;
		cluster_arrive();
		cluster_wait();
		for (int r = 0; r < 1 << cluster_log2; r++)
			most = max_nan(most, cluster_load(cluster_map(shared_address(scratch), r)));
		cluster_arrive();
		cluster_wait();
	}
	__syncthreads();
	return most;
}

#endif
