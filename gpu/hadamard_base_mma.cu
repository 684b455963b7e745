/*
 * hadamard_base_mma.cu - 16-bit rows of m 2^k elements back to back, m = 12, 20, 28, any base B
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#include "gpu/hadamard_base_mma.cuh"

/* ---- Results of 16 bits ---------------------------------------------------------------------- */

/* Puts two pieces of 16 rows into shared memory. */
HZ_DEVICE void store_pieces(uint32_t address, uint32_t a, uint32_t b, uint32_t c, uint32_t d,
			    int lane)
{
#if __CUDA_ARCH__ >= 900
	asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};"
		     :: "r"(address), "r"(a), "r"(b), "r"(c), "r"(d) : "memory");
#else
	const uint32_t r[4] = {a, b, c, d};

#pragma unroll
	for (int i = 0; i < 4; i++) {
		const uint32_t row = __shfl_sync(0xffffffff, address, 8 * i + (lane >> 2));

		asm volatile("st.shared.u32 [%0], %1;"
			     :: "r"(row + 4 * (lane & 3)), "r"(r[i]) : "memory");
	}
#endif
}

/* See hadamard_base_mma.cuh. */
template <int DTYPE>
struct to_values {
	using piece = uint4;
	uint4 *y;
	float factor;

	__device__ __forceinline__ to_values(const hzi_hadamard_base_mma &p)
		: y((uint4 *)p.y), factor(p.factor)
	{
	}
	__device__ __forceinline__ void begin(int64_t) const
	{
	}
	__device__ __forceinline__ void ready() const
	{
	}
	__device__ __forceinline__ void put(uint4 *to, float *f) const
	{
#pragma unroll
		for (int i = 0; i < 8; i++)
			f[i] = __fmul_rn(f[i], factor);
		*to = make_uint4(to_16x2<DTYPE>(f[0], f[1]), to_16x2<DTYPE>(f[2], f[3]),
				 to_16x2<DTYPE>(f[4], f[5]), to_16x2<DTYPE>(f[6], f[7]));
	}
	/* own: in shared memory; outside(i): where to[] has piece i, or -1 */
	template <int PLACES, bool SHORT, typename F>
	__device__ __forceinline__ void rows(float *v, char *own, uint4 *to, int, int s,
					     F outside) const
	{
		constexpr int PITCH = 2 * PLACES;
		const int lane = threadIdx.x % 32;
		uint32_t at[4];

		lane_addresses<PITCH>(at, shared_address(own), lane);
#pragma unroll
		for (int n = 0; n < PLACES / 16; n++) {
			float *c = v + 8 * n;

#pragma unroll
			for (int i = 0; i < 8; i++)
				c[i] = __fmul_rn(c[i], factor);
			store_pieces(at[n & 3] + (n >> 2) * 128, to_16x2<DTYPE>(c[0], c[1]),
				     to_16x2<DTYPE>(c[2], c[3]), to_16x2<DTYPE>(c[4], c[5]),
				     to_16x2<DTYPE>(c[6], c[7]), lane);
		}
		__syncwarp();
#pragma unroll
		for (int n = 0; n < PLACES / 16; n++) {
			const int i = 32 * n + lane, j = outside(i);
			const place from = place_of(i, s);

			if (j >= 0)
				to[j] = *(const uint4 *)(own + from.row * PITCH +
							 (from.piece ^ (from.row & 7)) * 16);
		}
	}
};

/* ---- The kernels ----------------------------------------------------------------------------- */

#define BASE_MMA(name, threads, blocks, function, ...) \
	extern "C" __global__ void __launch_bounds__(threads, blocks) \
	hadamard_base_mma_f16_##name(const __grid_constant__ hzi_hadamard_base_mma p) \
	{ \
		function<HZ_F16, __VA_ARGS__>(p, to_values<HZ_F16>(p)); \
	} \
	extern "C" __global__ void __launch_bounds__(threads, blocks) \
	hadamard_base_mma_bf16_##name(const __grid_constant__ hzi_hadamard_base_mma p) \
	{ \
		function<HZ_BF16, __VA_ARGS__>(p, to_values<HZ_BF16>(p)); \
	}

BASE_MMA(m12_7, 96, 10, base_rows, 12 * 4, 64, -1)
BASE_MMA(m12_8, 96, 10, base_rows, 12 * 4, 64, 3)
BASE_MMA(m12_9, 96, 6, base_rows, 12 * 4, 128, 4)
BASE_MMA(m12_10, 192, 3, base_long, 12 * 4, 2, 3)
BASE_MMA(m12_11, 384, 1, base_held, 12 * 4)
BASE_MMA(m12_12, 512, 1, base_long, 12 * 4, 8, 2)
BASE_MMA(m20_7, 160, 6, base_rows, 20 * 4, 64, -1)
BASE_MMA(m20_8, 128, 5, base_wide, 20, 0, 4)
BASE_MMA(m20_9, 160, 3, base_rows, 20 * 4, 128, 4)
BASE_MMA(m20_10, 320, 2, base_long, 20 * 4, 2, 5)
BASE_MMA(m20_11, 384, 1, base_held, 20 * 4)
BASE_MMA(m28_7, 224, 4, base_rows, 28 * 4, 64, -1)
BASE_MMA(m28_8, 128, 4, base_wide, 28, 0, 4)
BASE_MMA(m28_9, 256, 2, base_wide, 28, 0, 8)
BASE_MMA(m28_10, 448, 1, base_long, 28 * 4, 2, 7)
BASE_MMA(m28_11, 384, 1, base_held, 28 * 4)
