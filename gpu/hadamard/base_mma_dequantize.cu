/*
 * base_mma_dequantize.cu - codes to contiguous 16-bit rows of m 2^k elements
 *
 * SPDX-License-Identifier: BSD-2-Clause
 *
 * Scales are static, and each is for one or more whole transforms. Codes minus their zero point,
 * which are exact in f16, are transformed, and the results are multiplied by the scale.
 */
#include "gpu/hadamard/base_mma.cuh"
#include "gpu/hadamard/quantize_epilogue.cuh"

/* OPERANDS of base_mma.cuh: codes, which pass through registers */
struct convert_codes {
	static constexpr bool SPLIT = true;
	/* N pieces; EACH: these may be of several transforms */
	template <int N, bool EACH>
	struct in_flight {
		uint2 codes[N];
		uint32_t base[EACH ? N : 1];
	};
	const hzi_hadamard_quantize &p;
	const uint2 *x;

	HZ_MEMBER convert_codes(const hzi_hadamard_base_mma_quantize &p)
		: p(p.q), x((const uint2 *)p.m.x)
	{
	}
	/* The base of codes_to_f16x2() for piece i */
	HZ_MEMBER uint32_t base_of(int64_t i) const
	{
		return HZI_CODE_BASE(p.is_signed, param_of(p, 8 * i).zero_point);
	}
	template <int N, bool EACH>
	HZ_MEMBER void begin(in_flight<N, EACH> &w, int64_t i) const
	{
		if (!EACH)
			w.base[0] = base_of(i);
	}
	template <int N, bool EACH>
	HZ_MEMBER void load(in_flight<N, EACH> &w, int n, uint32_t, int64_t i) const
	{
		w.codes[n] = x[i];
		if (EACH)
			w.base[n] = base_of(i);
	}
	template <int N, bool EACH>
	HZ_MEMBER void store(const in_flight<N, EACH> &w, int n, uint32_t dst) const
	{
		const uint32_t flip = p.is_signed ? HZI_S8_FLIP : 0, base = w.base[EACH ? n : 0];
		const uint2 codes = w.codes[n];

		const uint32_t pairs[4] = {codes_to_f16x2(codes.x, 0, flip, base),
					   codes_to_f16x2(codes.x, 1, flip, base),
					   codes_to_f16x2(codes.y, 0, flip, base),
					   codes_to_f16x2(codes.y, 1, flip, base)};

		shared_store(dst, pairs);
	}
};

/* RESULTS of base_mma.cuh: 16-bit results times their scale */
template <int DTYPE>
struct store_scaled : store_16bit<DTYPE> {
	const hzi_hadamard_quantize &p;
	float s;

	HZ_MEMBER store_scaled(const hzi_hadamard_base_mma_quantize &p)
		: store_16bit<DTYPE>(p.m), p(p.q)
	{
		if (!this->p.group.divisor)
			this->factor = __fmul_rn(param_of(this->p, 0).scale, this->p.f.factor);
	}
	HZ_MEMBER void begin(int64_t i)
	{
		if (p.group.divisor)
			s = param_of(p, 8 * i).scale;
	}
	HZ_MEMBER void ready()
	{
		if (p.group.divisor)
			this->factor = __fmul_rn(s, p.f.factor);
	}
	template <int COLUMNS, bool SHORT, typename F>
	HZ_MEMBER void rows(float *v, char *own, uint4 *dst, int pieces, int s, F piece_index)
	{
		if (SHORT && p.group.divisor) {
			const int64_t i = piece_of_row(dst - this->y, threadIdx.x & 7, s, pieces,
						       p.f.total / 8);
			const float mine = __fmul_rn(param_of(p, 8 * i).scale, p.f.factor);

#pragma unroll
			for (int n = 0; n < COLUMNS / 8; n++) {
				const float f = __shfl_sync(~0u, mine, n);

#pragma unroll
				for (int j = 0; j < 4; j++)
					v[4 * n + j] = __fmul_rn(v[4 * n + j], f);
			}
			this->factor = 1;
		}
		store_16bit<DTYPE>::template rows<COLUMNS, SHORT>(v, own, dst, pieces, s,
								  piece_index);
	}
};

#define DEQUANTIZE(name, threads, blocks, blocks_quantize, blocks_dequantize, function, ...) \
	extern "C" __global__ void __launch_bounds__(threads, blocks_dequantize) \
	hadamard_base_mma_dequantize_f16_##name( \
		const __grid_constant__ hzi_hadamard_base_mma_quantize p) \
	{ \
		function<HZ_F16, __VA_ARGS__>(p.m, convert_codes(p), store_scaled<HZ_F16>(p)); \
	} \
	extern "C" __global__ void __launch_bounds__(threads, blocks_dequantize) \
	hadamard_base_mma_dequantize_bf16_##name( \
		const __grid_constant__ hzi_hadamard_base_mma_quantize p) \
	{ \
		function<HZ_F16, __VA_ARGS__>(p.m, convert_codes(p), store_scaled<HZ_BF16>(p)); \
	}

BASE_MMA_KERNELS(DEQUANTIZE)
