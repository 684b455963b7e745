/*
 * table_wgmma.cu - the kernels of table_wgmma.cuh but those of labels, and the packing of x
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#include "gpu/vlut/table_wgmma.cuh"

#define X_THREADS HZI_VLUT_THREADS

/* ---- x --------------------------------------------------------------------------------------- */

/* The largest finite |x| of a block's share of x; a warp reads 256 adjacent elements at a time. */
extern "C" __global__ void __launch_bounds__(X_THREADS)
vlut_table_wgmma_x_absmax(const __grid_constant__ hzi_vlut_x_pack p)
{
	__shared__ float absmax[X_THREADS / 32];
	const bool column_major = p.x_b == 1;
	const int inner = column_major ? p.batch : p.k, outer = column_major ? p.k : p.batch;
	const int64_t step = column_major ? p.x_b : p.x_k, ld = column_major ? p.x_k : p.x_b;
	const int pieces = (inner + 255) / 256;
	float m = 0;

	pdl_wait();
	pdl_launch_dependents();
	for (int64_t i = (blockIdx.x * X_THREADS + threadIdx.x) / 32; i < (int64_t)pieces * outer;
	     i += HZI_VLUT_WGMMA_ABSMAX_BLOCKS * X_THREADS / 32) {
		const int64_t row = i / pieces;
		const int first = (int)(i - row * pieces) * 256 + threadIdx.x % 32;
		float f[8];

		load_strided<1, 32>(f, p.x_dtype, p.x, row * ld + first * step, step,
				    inner - first);
#pragma unroll
		for (int e = 0; e < 8; e++) {
			if (fabsf(f[e]) < __uint_as_float(0x7f800000))
				m = fmaxf(m, fabsf(f[e]));
		}
	}
	m = warp_max(m);
	if (threadIdx.x % 32 == 0)
		absmax[threadIdx.x / 32] = m;
	__syncthreads();
	if (threadIdx.x == 0) {
		for (int i = 1; i < X_THREADS / 32; i++)
			m = fmaxf(m, absmax[i]);
		p.absmax[blockIdx.x] = m;
	}
}

/*
 * A thread packs 8 values: of a column and a step, the pairs of all four lanes, which are
 * contiguous in a tile.
 */
extern "C" __global__ void __launch_bounds__(X_THREADS)
vlut_table_wgmma_x_pack(const __grid_constant__ hzi_vlut_x_pack p)
{
	const int tile_vectors = p.columns / p.terms;	/* of a tile */
	const int padded = (p.batch + tile_vectors - 1) / tile_vectors * tile_vectors,
		  half_steps = p.chunks * 16;
	const int64_t total = (int64_t)half_steps * padded;
	const bool column_major = p.x_b == 1;
	float scale_up[2] = {1, 1};

	pdl_wait();
	pdl_launch_dependents();
	if (p.absmax) {
		float m = 0;
		int shift;

		for (int i = 0; i < HZI_VLUT_WGMMA_ABSMAX_BLOCKS; i++)
			m = fmaxf(m, p.absmax[i]);
		shift = m > 0 ? 14 + 127 - (int)(__float_as_uint(m) >> 23) : 0;
		scale_up[0] = __int_as_float(shift / 2 + 127 << 23);
		scale_up[1] = __int_as_float(shift - shift / 2 + 127 << 23);
		if (blockIdx.x == 0 && threadIdx.x < 2)
			p.absmax[HZI_VLUT_WGMMA_ABSMAX_BLOCKS + threadIdx.x] =
				1 / scale_up[threadIdx.x];
	}
	for (int64_t i = blockIdx.x * (int64_t)X_THREADS + threadIdx.x; i < total;
	     i += (int64_t)gridDim.x * X_THREADS) {
		const int b = (int)(column_major ? i % padded : i / half_steps);
		const int at = (int)(column_major ? i / padded : i % half_steps);
		/* half: which pair of the 4 values that a step takes from a lane */
		const int chunk = at / 16, half = at % 16;
		const int k = chunk * CHUNK + 2 * half;
		const int64_t src = k * p.x_k + b * p.x_b;
		const int count = b < p.batch ? p.k - k : 0;
		uint8_t *tile = p.tiles + ((int64_t)(b / tile_vectors) * p.chunks + chunk) *
						  p.columns * CHUNK * 2;
		float f[8];

		load_strided<2, 32>(f, p.x_dtype, p.x, src, p.x_k, count);
#pragma unroll
		for (int e = 0; e < 8; e++)
			f[e] = f[e] * scale_up[0] * scale_up[1];
		for (int term = 0; term < p.terms; term++) {
			const int column = b % tile_vectors * p.terms + term;
			uint32_t h[4];

#pragma unroll
			for (int e = 0; e < 4; e++) {
				h[e] = to_f16x2(f[2 * e], f[2 * e + 1]);
				f[2 * e] = (f[2 * e] - f16_low(h[e])) * 2048.0f;
				f[2 * e + 1] = (f[2 * e + 1] - f16_high(h[e])) * 2048.0f;
			}
			*(uint4 *)(tile + (half * (p.columns / 8) + column / 8) * 128 +
				   column % 8 * 16) =
				make_uint4(h[0], h[1], h[2], h[3]);
		}
	}
}

/* ---- Products -------------------------------------------------------------------------------- */

KERNELS(vlut_table_wgmma_d4, 1, false)
KERNELS(vlut_table_wgmma_d4_scaled, 1, true)
KERNELS(vlut_table_wgmma_d8, 2, false)
KERNELS(vlut_table_wgmma_d8_scaled, 2, true)
KERNEL(vlut_table_wgmma_f16_16, F16_VALUES, 16, false)
KERNEL(vlut_table_wgmma_f16_32, F16_VALUES, 32, false)
KERNEL(vlut_table_wgmma_f16_64, F16_VALUES, 64, false)
