/*
 * base_split.cu - a few rows of m 2^k elements with any base matrix: several blocks for a row
 *
 * SPDX-License-Identifier: BSD-2-Clause
 *
 * A block loads a whole row, k >= 3, and does its 2^k part in shared memory, as all blocks of this
 * row do; it then computes some rows of the base matrix, a sum in ascending order, by fused
 * multiply-adds with +-1. A thread has four of them and two columns.
 */
#include "gpu/device/pdl.cuh"
#include "gpu/hadamard/shared_rows.cuh"

#define ROWS 4			/* of the base matrix */
#define COLUMNS 2

extern __shared__ float4 shared[];

HZ_DEVICE float plus_or_minus(uint32_t bits, int i)
{
	return __uint_as_float(0x3f800000 | (bits >> i & 1) << 31);
}

/* COLUMNS results of a row from element e on */
HZ_DEVICE void store(const hzi_hadamard_job &job, int64_t y, int64_t post, int e, float *v)
{
#pragma unroll
	for (int c = 0; c < COLUMNS; c++) {
		v[c] = __fmul_rn(v[c], job.factor);
		if (job.post_kind)
			v[c] = __fmul_rn(v[c], factor(job.post_kind, job.post, post + e + c));
	}
	if (job.y_dtype == HZ_F32)
		store_results<HZ_F32, COLUMNS>((float *)job.y + y + e, v);
	else if (job.y_dtype == HZ_F16)
		store_results<HZ_F16, COLUMNS>((uint16_t *)job.y + y + e, v);
	else
		store_results<HZ_BF16, COLUMNS>((uint16_t *)job.y + y + e, v);
}

HZ_DEVICE void base_split(const hzi_hadamard_base_split &p, const uint32_t *signs_of)
{
	const hzi_hadamard_job &job = p.job;
	const int m = job.m, k = job.k, n = m << k;
	const int quad0 = blockIdx.y * p.quads, quads = min(m / ROWS - quad0, p.quads);
	float4 *const signs = shared;
	const padded_row row((float *)(shared + p.quads * m), k);
	/* Of an index of the base matrix */
	const int step = (1 << k) + (4 << (k - row.shift));

	pdl_launch_dependents();
	for (int i = threadIdx.x; i < quads * m; i += blockDim.x) {
		const int q = i / m, j = i - q * m;
		const uint32_t bits = signs_of[(quad0 + q) * p.words + (j >> 3)] >> (j & 7) * 4;

		signs[i] = make_float4(plus_or_minus(bits, 0), plus_or_minus(bits, 1),
				       plus_or_minus(bits, 2), plus_or_minus(bits, 3));
	}
	pdl_wait();
	for (int64_t vector = blockIdx.x; vector < job.vectors; vector += gridDim.x) {
		const int64_t hi = vector / p.dim[1].size, lo = vector - hi * p.dim[1].size;
		const int64_t x = hi * p.dim[0].x + lo * p.dim[1].x,
			      y = hi * p.dim[0].y + lo * p.dim[1].y;
		const int64_t pre = job.offset + hi * p.dim[0].pre + lo * p.dim[1].pre,
			      post = job.offset + hi * p.dim[0].post + lo * p.dim[1].post;

		transform_rows(row, job, x, pre, n, k);
		for (int i = threadIdx.x; i < quads << (k - 1); i += blockDim.x) {
			const int q = i >> (k - 1), c = (i & ((1 << (k - 1)) - 1)) * COLUMNS;
			const float4 *sign = signs + q * m;
			const float *from = row.at(c);
			float sum[ROWS][COLUMNS];

#pragma unroll 4
			for (int j = 0; j < m; j++, from += step) {
				const float4 f = sign[j];
				const float s[ROWS] = {f.x, f.y, f.z, f.w};
				float v[COLUMNS];

				load_piece<COLUMNS>(v, from);
#pragma unroll
				for (int r = 0; r < ROWS * COLUMNS; r++) {
					float &to = sum[r / COLUMNS][r % COLUMNS];

					to = j ? __fmaf_rn(s[r / COLUMNS], v[r % COLUMNS], to) :
						 __fmul_rn(s[r / COLUMNS], v[r % COLUMNS]);
				}
			}
#pragma unroll
			for (int r = 0; r < ROWS; r++)
				store(job, y, post, (((quad0 + q) * ROWS + r) << k) + c, sum[r]);
		}
		__syncthreads();
	}
}

extern "C" __global__ void __launch_bounds__(1024, 1)
hadamard_base_split(const __grid_constant__ hzi_hadamard_base_split p)
{
	base_split(p, p.signs);
}

extern "C" __global__ void __launch_bounds__(1024, 1)
hadamard_base_split_big(const __grid_constant__ hzi_hadamard_base_split_big p)
{
	base_split(p.a, p.a.signs);
}
