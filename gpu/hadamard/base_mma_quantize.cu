/*
 * base_mma_quantize.cu - 16-bit rows of m 2^k elements back to back to codes
 *
 * SPDX-License-Identifier: BSD-2-Clause
 *
 * With scales and zeros that are given, one for a transform or more of them.
 */
#include "gpu/hadamard/base_mma.cuh"
#include "gpu/hadamard/quantize_epilogue.cuh"

/* See base_mma.cuh. */
struct to_codes {
	using piece = uint2;
	const hzi_hadamard_quantize &p;
	uint2 *y;
	quant_param q;
	encoder c;

	HZ_MEMBER to_codes(const hzi_hadamard_quantize &p) : p(p), y((uint2 *)p.f.y)
	{
		if (!p.group.divisor)
			c = encoder_of(p, param_of(p, 0), p.f.factor);
	}
	HZ_MEMBER void begin(int64_t i)
	{
		if (p.group.divisor)
			q = param_of(p, 8 * i);
	}
	HZ_MEMBER void ready()
	{
		if (p.group.divisor)
			c = encoder_of(p, q, p.f.factor);
	}
	HZ_MEMBER void put(uint2 *to, float *f) const
	{
		uint32_t w[2];

		encode_static<8>(w, f, c, p, 8 * (to - y), p.f.factor);
		*to = make_uint2(w[0], w[1]);
	}
	/*
	 * own: in shared memory; outside(i): where to[] has piece i, or -1; pieces: of a transform.
	 * Of 16 places a lane has two of each 8 in two rows, and exchanges those of 8 with its
	 * neighbour, so that it has four of 8 in both. Lines of PLACES bytes, the 16 bytes of
	 * these in an order that meets no bank twice.
	 */
	template <int PLACES, bool SHORT, typename F>
	HZ_MEMBER void rows(float *v, char *own, uint2 *to, int pieces, int s,
					     F outside) const
	{
		const int lane = threadIdx.x % 32, g = lane >> 2, q = lane & 3;
		const bool each = SHORT && p.group.divisor;
		const int64_t total = p.f.total / 8;
		encoder mine = c;

		auto order = [&](int row) {
			return PLACES == 128 ? row & 7 : row >> 1 & 3;
		};
		auto of_row = [&](int n) { return 8 * piece_of_row(to - y, n, s, pieces, total); };
		/* Lane n makes what piece n wants. */
		if (each)
			mine = encoder_of(p, param_of(p, of_row(lane & 7)), p.f.factor);
#pragma unroll
		for (int n = 0; n < PLACES / 16; n++) {
			uint32_t w[2];

			if (each) {
#pragma unroll
				for (int h = 0; h < 2; h++) {
					encoder own = {};

					own.r = __shfl_sync(~0u, mine.r, 2 * n + h);
					own.in_range = __shfl_sync(~0u, mine.in_range, 2 * n + h);
					own.limit = __shfl_sync(~0u, mine.limit, 2 * n + h);
					own.zero_point =
						__shfl_sync(~0u, mine.zero_point, 2 * n + h);
					encode_static<4>(&w[h], v + 8 * n + 4 * h, own, p,
							 of_row(2 * n + h), p.f.factor);
				}
			} else {
				encode_static<8>(w, v + 8 * n, mine, p, 8 * (to - y), p.f.factor);
			}

			const uint32_t other = __shfl_xor_sync(~0u, q & 1 ? w[0] : w[1], 1);
			const uint32_t low = q & 1 ? other : w[0], high = q & 1 ? w[1] : other;
			char *line = own + g * PLACES + (n ^ order(g)) * 16 + (q & 1) * 8 +
				     (q >> 1) * 4;

			*(uint32_t *)line = __byte_perm(low, high, 0x5410);
			*(uint32_t *)(line + 8 * PLACES) = __byte_perm(low, high, 0x7632);
		}
		__syncwarp();
#pragma unroll
		for (int n = 0; n < PLACES / 16; n++) {
			const int i = 32 * n + lane, j = outside(i);
			const place from = place_of(i, s);
			const int at = (from.piece >> 1) ^ order(from.row);

			if (j >= 0)
				to[j] = *(const uint2 *)(own + from.row * PLACES + at * 16 +
							 (from.piece & 1) * 8);
		}
	}
};

#define QUANTIZE(name, threads, blocks, blocks_quantize, blocks_dequantize, function, ...) \
	extern "C" __global__ void __launch_bounds__(threads, blocks_quantize) \
	hadamard_base_mma_quantize_f16_##name( \
		const __grid_constant__ hzi_hadamard_base_mma_quantize p) \
	{ \
		function<HZ_F16, __VA_ARGS__>(p.m, from_values(p.m), to_codes(p.q)); \
	} \
	extern "C" __global__ void __launch_bounds__(threads, blocks_quantize) \
	hadamard_base_mma_quantize_bf16_##name( \
		const __grid_constant__ hzi_hadamard_base_mma_quantize p) \
	{ \
		function<HZ_BF16, __VA_ARGS__>(p.m, from_values(p.m), to_codes(p.q)); \
	}

BASE_MMA_KERNELS(QUANTIZE)
