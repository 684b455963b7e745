/*
 * base_mma_microscaling.cu - contiguous 16-bit rows of m 2^k elements to MXFP4, MXFP8 and NVFP4
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#include "gpu/hadamard/base_mma.cuh"
#include "gpu/hadamard/quantize.h"
#include "gpu/quantize/microscaling.cuh"

/* RESULTS of base_mma.cuh: codes, and scales of groups of 16 or 32 in rows of X of 32 or more */
struct store_microscaling {
	using piece = uint2;
	const hzi_hadamard_quantize &p;
	uint2 *y;
	hzi_tensor_factor tensor;
	mutable uint32_t most;		/* measure: what p.most is at least */

	HZ_MEMBER store_microscaling(const hzi_hadamard_quantize &p)
		: p(p), y((uint2 *)p.f.y), most(0)
	{
		tensor = hzi_format_tensor(p.tensor_scale, p.new_tensor_scale && !p.measure, p.rule,
					   p.new_tensor_scale && !p.measure ? *p.most : 0);
		if (p.new_tensor_scale && !p.measure && blockIdx.x == 0 && threadIdx.x == 0)
			*p.new_tensor_scale = tensor.p;
	}
	HZ_MEMBER void begin(int64_t) const
	{
	}
	HZ_MEMBER void ready() const
	{
	}
	/*
	 * The factor of this lane's group, of four lanes, or with WIDTH = 2 of two, whose magnitudes
	 * are at most m each; lane 0 of them stores scale number i. Measuring, returns 0.
	 */
	template <int WIDTH>
	HZ_MEMBER float factor_of(float m, int64_t i) const
	{
#pragma unroll
		for (int d = 1; d < WIDTH; d *= 2)
			m = max_nan(m, __shfl_xor_sync(~0u, m, d));
		if (p.measure) {
			const uint32_t found = __reduce_max_sync(~0u, __float_as_uint(m));

			if (found > most && threadIdx.x % 32 == 0)
				atomicMax(p.most, found);
			most = max(most, found);
			return 0;
		}

		const hzi_scale s = scale_of(__float_as_uint(m), p, tensor);

		if (threadIdx.x % WIDTH == 0)
			((uint8_t *)p.scales)[i] = (uint8_t)s.bits;
		return s.factor;
	}
	/* 8 successive results of each lane, 32 or more of successive ones of four lanes */
	HZ_MEMBER void store(uint2 *dst, float *f) const
	{
		const int64_t i = dst - y;
		float m = 0, r;

#pragma unroll
		for (int e = 0; e < 8; e++)
			f[e] = __fmul_rn(f[e], p.f.factor);
		if (p.round_to) {
#pragma unroll
			for (int e = 0; e < 8; e++)
				f[e] = round_to(p.round_to, f[e]);
		}
#pragma unroll
		for (int e = 0; e < 8; e++)
			m = max_nan(m, fabsf(f[e]));
		r = p.group_log2 == 5 ? factor_of<4>(m, i / 4) : factor_of<2>(m, i / 2);
		if (p.measure)
			return;
#pragma unroll
		for (int e = 0; e < 8; e++)
			f[e] = __fmul_rn(f[e], r);
		if (p.q_dtype == HZ_E2M1X2)
			((uint32_t *)y)[i] = encode_e2m1<8>(f);
		else if (p.q_dtype == HZ_E4M3)
			*dst = make_uint2(encode_fp8x4<HZ_E4M3>(f), encode_fp8x4<HZ_E4M3>(f + 4));
		else
			*dst = make_uint2(encode_fp8x4<HZ_E5M2>(f), encode_fp8x4<HZ_E5M2>(f + 4));
	}
	/*
	 * Results of warp_rows go back to the layout of store() as f32, half of the columns at a
	 * time: own has 2 COLUMNS bytes for each of 16 rows. In pieces of 16 bytes, XOR-swizzled.
	 */
	template <int COLUMNS, bool SHORT, typename F>
	HZ_MEMBER void rows(float *v, char *own, uint2 *dst, int, int, F) const
	{
		constexpr int HALF = COLUMNS / 2, CHUNKS = HALF / 8;
		const int lane = threadIdx.x % 32, g = lane >> 2, q = lane & 3;

		static_assert(!SHORT, "a row of X has 32 columns or more");
#pragma unroll
		for (int half = 0; half < 2; half++) {
			__syncwarp();
#pragma unroll
			for (int n = 0; n < CHUNKS; n++) {
				const float *const c = v + 4 * (half * CHUNKS + n);

#pragma unroll
				for (int h = 0; h < 2; h++) {
					const int row = g + 8 * h;
					const int at = (2 * n + (q >> 1)) ^ (row & 7);

					*(float2 *)(own + row * HALF * 4 + at * 16 + (q & 1) * 8) =
						make_float2(c[2 * h], c[2 * h + 1]);
				}
			}
			__syncwarp();
			/* One copy of store(), whose code is long, instead of CHUNKS / 2 */
#pragma unroll 1
			for (int n = 0; n < CHUNKS / 2; n++) {
				const int i = 32 * n + lane, row = i / CHUNKS, chunk = i % CHUNKS;
				const char *const src = own + row * HALF * 4;
				float f[8];

				*(float4 *)f = *(const float4 *)(src + (2 * chunk ^ (row & 7)) * 16);
				*(float4 *)(f + 4) =
					*(const float4 *)(src + (2 * chunk + 1 ^ (row & 7)) * 16);
				store(dst + row * (COLUMNS / 8) + half * CHUNKS + chunk, f);
			}
		}
	}
};

#define QUANTIZE(name, threads, blocks, blocks_quantize, blocks_dequantize, function, ...) \
	extern "C" __global__ void __launch_bounds__(threads, blocks_quantize) \
	hadamard_base_mma_microscaling_f16_##name( \
		const __grid_constant__ hzi_hadamard_base_mma_quantize p) \
	{ \
		function<HZ_F16, __VA_ARGS__>(p.m, copy_operands(p.m), store_microscaling(p.q)); \
	} \
	extern "C" __global__ void __launch_bounds__(threads, blocks_quantize) \
	hadamard_base_mma_microscaling_bf16_##name( \
		const __grid_constant__ hzi_hadamard_base_mma_quantize p) \
	{ \
		function<HZ_BF16, __VA_ARGS__>(p.m, copy_operands(p.m), store_microscaling(p.q)); \
	}

BASE_MMA_MIDDLE_KERNELS(QUANTIZE)
