/*
 * base_mma_dequantize.cu - codes back to back to 16-bit rows of m 2^k elements
 *
 * SPDX-License-Identifier: BSD-2-Clause
 *
 * With scales and zeros that are given, one for a transform or more of them: so codes less their
 * zero are transformed, which are exact as f16, and sums are multiplied by the scale.
 */
#include "gpu/hadamard/base_mma.cuh"
#include "gpu/hadamard/quantize_epilogue.cuh"

/* See base_mma.cuh. Codes pass through registers. */
struct from_codes {
	static constexpr bool PARTS = true;
	/* N pieces on their way; EACH: these may be of several transforms */
	template <int N, bool EACH>
	struct way {
		uint2 codes[N];
		uint32_t base[EACH ? N : 1];
	};
	const hzi_hadamard_quantize &p;
	const uint2 *x;

	HZ_MEMBER from_codes(const hzi_hadamard_base_mma_quantize &p)
		: p(p.q), x((const uint2 *)p.m.x)
	{
	}
	/* See integer_pair(): of piece i */
	HZ_MEMBER uint32_t base_of(int64_t i) const
	{
		return HZI_CODE_BASE(p.is_signed, param_of(p, 8 * i).zero_point);
	}
	template <int N, bool EACH>
	HZ_MEMBER void begin(way<N, EACH> &w, int64_t i) const
	{
		if (!EACH)
			w.base[0] = base_of(i);
	}
	template <int N, bool EACH>
	HZ_MEMBER void fetch(way<N, EACH> &w, int n, uint32_t, int64_t i) const
	{
		w.codes[n] = x[i];
		if (EACH)
			w.base[n] = base_of(i);
	}
	template <int N, bool EACH>
	HZ_MEMBER void put(const way<N, EACH> &w, int n, uint32_t to) const
	{
		const uint32_t flip = p.is_signed ? HZI_S8_FLIP : 0, base = w.base[EACH ? n : 0];
		const uint2 codes = w.codes[n];

		const uint32_t pairs[4] = {integer_pair(codes.x, 0, flip, base),
					   integer_pair(codes.x, 1, flip, base),
					   integer_pair(codes.y, 0, flip, base),
					   integer_pair(codes.y, 1, flip, base)};

		shared_store(to, pairs);
	}
};

/* See base_mma.cuh. */
template <int DTYPE>
struct to_scaled : to_values<DTYPE> {
	const hzi_hadamard_quantize &p;
	float s;

	HZ_MEMBER to_scaled(const hzi_hadamard_base_mma_quantize &p)
		: to_values<DTYPE>(p.m), p(p.q)
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
	template <int PLACES, bool SHORT, typename F>
	HZ_MEMBER void rows(float *v, char *own, uint4 *to, int pieces, int s,
					     F outside)
	{
		if (SHORT && p.group.divisor) {
			const int64_t i = piece_of_row(to - this->y, threadIdx.x & 7, s, pieces,
						       p.f.total / 8);
			const float mine = __fmul_rn(param_of(p, 8 * i).scale, p.f.factor);

#pragma unroll
			for (int n = 0; n < PLACES / 8; n++) {
				const float f = __shfl_sync(~0u, mine, n);

#pragma unroll
				for (int j = 0; j < 4; j++)
					v[4 * n + j] = __fmul_rn(v[4 * n + j], f);
			}
			this->factor = 1;
		}
		to_values<DTYPE>::template rows<PLACES, SHORT>(v, own, to, pieces, s, outside);
	}
};

#define DEQUANTIZE(name, threads, blocks, blocks_quantize, blocks_dequantize, function, ...) \
	extern "C" __global__ void __launch_bounds__(threads, blocks_dequantize) \
	hadamard_base_mma_dequantize_f16_##name( \
		const __grid_constant__ hzi_hadamard_base_mma_quantize p) \
	{ \
		function<HZ_F16, __VA_ARGS__>(p.m, from_codes(p), to_scaled<HZ_F16>(p)); \
	} \
	extern "C" __global__ void __launch_bounds__(threads, blocks_dequantize) \
	hadamard_base_mma_dequantize_bf16_##name( \
		const __grid_constant__ hzi_hadamard_base_mma_quantize p) \
	{ \
		function<HZ_F16, __VA_ARGS__>(p.m, from_codes(p), to_scaled<HZ_BF16>(p)); \
	}

BASE_MMA_KERNELS(DEQUANTIZE)
