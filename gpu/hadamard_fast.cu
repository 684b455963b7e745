/*
 * hadamard_fast.cu - rows of one dtype back to back: the kernels that run at the rate of memory
 *
 * SPDX-License-Identifier: BSD-2-Clause
 *
 * A warp owns 1024 elements, 32 values a thread, and starts once: blocks that come and go in order
 * copy 10 % faster on Hopper than blocks that stay and stride.
 *
 * Registers: 32 values, 16 of raw data, 8 of H_32; 64 in all let a multiprocessor hold 32 warps.
 */
#include "gpu/hadamard_fast.cuh"

/* ---- 16 bits ---------------------------------------------------------------------------------------- */

/* Lengths 32 to 1024: a warp is a block. */
template <int DTYPE, bool SIGNS>
HZ_DEVICE void fast_short(const hzi_hadamard_fast &p)
{
	const int lane = threadIdx.x % 32, g = lane >> 2, q = lane & 3;
	const int64_t e0 = ((int64_t)blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32) * 1024;
	const bool whole = e0 + 1024 <= p.total;
	float v[32];
	uint4 w[4];

	if (e0 >= p.total)
		return;
	fast_load(w, p, e0, lane);
	fast_first<DTYPE, SIGNS>(v, w, p, e0, lane);
	fast_second(v, p.k - 5, lane);
	auto element = [&](int c) {
		return e0 + (c | q << 3) * 32 + 4 * g;
	};
	fast_finish<4, SIGNS>(v, p, element);
	char *y = result_at<DTYPE>(p, element(0));

#pragma unroll
	for (int c = 0; c < 8; c++) {
		if (whole || element(c) < p.total)
			fast_store<DTYPE, 4>(y, 32 * c, &v[4 * c]);
	}
}

/* Lengths 2048 to 16384: a row is a block. */
template <int DTYPE, int WARPS, bool SIGNS>
HZ_DEVICE void fast_long(const hzi_hadamard_fast &p)
{
	const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
	const int64_t e0 = (int64_t)blockIdx.x * (1024 * WARPS);
	char *memory = (char *)shared;
	float v[32];
	uint4 w[4];

	fast_load(w, p, e0 + warp * 1024, lane);
	fast_first<DTYPE, SIGNS>(v, w, p, e0 + warp * 1024, lane);
	fast_second(v, 5, lane);
	fast_put<DTYPE>(v, memory + warp * HZI_FAST_WARP_BYTES, lane);
	__syncthreads();
	fast_last<DTYPE, WARPS, SIGNS>(v, p, e0, memory, threadIdx.x);
}

/*
 * Length 32768: its values fill the multiprocessor, so the block stays and loads the next row, each
 * thread its own part, while it computes this one.
 */
template <int DTYPE, bool SIGNS>
HZ_DEVICE void fast_longest(const hzi_hadamard_fast &p)
{
	const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane >> 2, q = lane & 3;
	char *memory = (char *)shared;
	uint4 *stage = (uint4 *)(memory + 32 * HZI_FAST_WARP_BYTES) + threadIdx.x;
	const int64_t rows = p.total >> 15;
	float v[32];
	uint4 w[4];
	auto begin = [&](int64_t row) {
#pragma unroll
		for (int i = 0; i < 4; i++)
			copy_async(shared_address(stage + i * 1024), (const uint16_t *)p.x + (row << 15) +
				   warp * 1024 + chunk_of(i, g) * 32 + 8 * q);
	};

	begin(blockIdx.x);
	for (int64_t row = blockIdx.x; row < rows; row += gridDim.x) {
		copy_wait();
#pragma unroll
		for (int i = 0; i < 4; i++)
			w[i] = stage[i * 1024];
		if (row + gridDim.x < rows)
			begin(row + gridDim.x);
		fast_first<DTYPE, SIGNS>(v, w, p, (row << 15) + warp * 1024, lane);
		fast_second(v, 5, lane);
		__syncthreads();	/* all have read the row before */
		fast_put<DTYPE>(v, memory + warp * HZI_FAST_WARP_BYTES, lane);
		__syncthreads();
		fast_last<DTYPE, 32, SIGNS>(v, p, row << 15, memory, threadIdx.x);
	}
}

/* ---- f32 -------------------------------------------------------------------------------------------- */

template <bool SIGNS>
HZ_DEVICE void fast_f32_short(const hzi_hadamard_fast &p)
{
	const int lane = threadIdx.x % 32;
	const int64_t e0 = ((int64_t)blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32) * 1024;
	const bool whole = e0 + 1024 <= p.total;
	float v[32];

	if (e0 >= p.total)
		return;
	fast_f32<SIGNS>(v, p, e0, (char *)shared + threadIdx.x / 32 * HZI_FAST_WARP_BYTES, lane, p.k);
	auto element = [&](int i) {
		return e0 + 32 * i + lane;
	};
	fast_finish<1, SIGNS>(v, p, element);
	char *y = result_at<HZ_F32>(p, element(0));

#pragma unroll
	for (int i = 0; i < 32; i++) {
		if (whole || element(i) < p.total)
			fast_store<HZ_F32, 1>(y, 32 * i, &v[i]);
	}
}

template <int WARPS, bool SIGNS>
HZ_DEVICE void fast_f32_long(const hzi_hadamard_fast &p)
{
	const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
	const int64_t e0 = (int64_t)blockIdx.x * (1024 * WARPS);
	char *memory = (char *)shared, *own = memory + warp * HZI_FAST_WARP_BYTES;
	float v[32];

	fast_f32<SIGNS>(v, p, e0 + warp * 1024, own, lane, 10);
	/* Each thread puts back what it took alone. */
#pragma unroll
	for (int i = 0; i < 32; i++)
		*(float *)(own + place_of<HZ_F32>(i * 32 + lane)) = v[i];
	__syncthreads();
	fast_last<HZ_F32, WARPS, SIGNS>(v, p, e0, memory, threadIdx.x);
}

/* ---- The kernels -------------------------------------------------------------------------------------- */

/* Each for rows without signs and with them. */
#define FAST(name, threads, blocks, function, ...) \
	extern "C" __global__ void __launch_bounds__(threads, blocks) \
	hadamard_fast_##name(const __grid_constant__ hzi_hadamard_fast p) \
	{ \
		function<__VA_ARGS__ false>(p); \
	} \
	extern "C" __global__ void __launch_bounds__(threads, 1) \
	hadamard_fast_##name##_signs(const __grid_constant__ hzi_hadamard_fast p) \
	{ \
		function<__VA_ARGS__ true>(p); \
	}
#define COMMA ,

FAST(f16_10, 32, 32, fast_short, HZ_F16 COMMA)
FAST(f16_11, 64, 16, fast_long, HZ_F16 COMMA 2 COMMA)
FAST(f16_12, 128, 8, fast_long, HZ_F16 COMMA 4 COMMA)
FAST(f16_13, 256, 4, fast_long, HZ_F16 COMMA 8 COMMA)
FAST(f16_14, 512, 2, fast_long, HZ_F16 COMMA 16 COMMA)
FAST(f16_15, 1024, 1, fast_longest, HZ_F16 COMMA)
FAST(bf16_10, 32, 32, fast_short, HZ_BF16 COMMA)
FAST(bf16_11, 64, 16, fast_long, HZ_BF16 COMMA 2 COMMA)
FAST(bf16_12, 128, 8, fast_long, HZ_BF16 COMMA 4 COMMA)
FAST(bf16_13, 256, 4, fast_long, HZ_BF16 COMMA 8 COMMA)
FAST(bf16_14, 512, 2, fast_long, HZ_BF16 COMMA 16 COMMA)
FAST(bf16_15, 1024, 1, fast_longest, HZ_BF16 COMMA)
FAST(f32_10, 32, 24, fast_f32_short, )
FAST(f32_11, 64, 12, fast_f32_long, 2 COMMA)
FAST(f32_12, 128, 6, fast_f32_long, 4 COMMA)
FAST(f32_13, 256, 4, fast_f32_long, 8 COMMA)
FAST(f32_14, 512, 2, fast_f32_long, 16 COMMA)
FAST(f32_15, 1024, 1, fast_f32_long, 32 COMMA)
