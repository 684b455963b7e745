/*
 * base_mma_quantize.cu - contiguous 16-bit rows of m 2^k elements to codes
 *
 * SPDX-License-Identifier: BSD-2-Clause
 *
 * Scales are static, and each is for one or more whole transforms.
 */
#include "gpu/hadamard/base_mma.cuh"
#include "gpu/hadamard/quantize_epilogue.cuh"

/* RESULTS of base_mma.cuh: codes */
struct store_codes_static {
	using piece = uint2;
	const hzi_hadamard_quantize &p;
	uint2 *y;
	quant_param q;
	encoder c;

	HZ_MEMBER store_codes_static(const hzi_hadamard_quantize &p) : p(p), y((uint2 *)p.f.y)
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
	HZ_MEMBER void store(uint2 *dst, float *f) const
	{
		uint32_t w[2];

		encode_static<8>(w, f, c, p, 8 * (dst - y), p.f.factor);
		*dst = make_uint2(w[0], w[1]);
	}
	/*
	 * own: the warp's scratch in shared memory; piece_index(i): the index in dst of piece i, or
	 * -1; pieces: of a transform. Of 16 columns a lane has two of each 8, in two rows; it
	 * exchanges two with its neighbour, so that it has four of one 8 in both rows. Lines of
	 * COLUMNS bytes, XOR-swizzled in units of 16 bytes against bank conflicts.
	 */
	template <int COLUMNS, bool SHORT, typename F>
	HZ_MEMBER void rows(float *v, char *own, uint2 *dst, int pieces, int s, F piece_index) const
	{
		const int lane = threadIdx.x % 32, g = lane >> 2, q = lane & 3;
		const bool each = SHORT && p.group.divisor;
		const int64_t total = p.f.total / 8;
		encoder mine = c;

		auto order = [&](int row) {
			return COLUMNS == 128 ? row & 7 : row >> 1 & 3;
		};
		auto of_row = [&](int n) { return 8 * piece_of_row(dst - y, n, s, pieces, total); };
		/* Lane n computes the encoder of piece n. */
		if (each)
			mine = encoder_of(p, param_of(p, of_row(lane & 7)), p.f.factor);
#pragma unroll
		for (int n = 0; n < COLUMNS / 16; n++) {
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
				encode_static<8>(w, v + 8 * n, mine, p, 8 * (dst - y), p.f.factor);
			}

			const uint32_t other = __shfl_xor_sync(~0u, q & 1 ? w[0] : w[1], 1);
			const uint32_t low = q & 1 ? other : w[0], high = q & 1 ? w[1] : other;
			char *line = own + g * COLUMNS + (n ^ order(g)) * 16 + (q & 1) * 8 +
				     (q >> 1) * 4;

			*(uint32_t *)line = __byte_perm(low, high, 0x5410);
			*(uint32_t *)(line + 8 * COLUMNS) = __byte_perm(low, high, 0x7632);
		}
		__syncwarp();
#pragma unroll
		for (int n = 0; n < COLUMNS / 16; n++) {
			const int i = 32 * n + lane, j = piece_index(i);
			const tile_index src = tile_index_of(i, s);
			const int at = (src.piece >> 1) ^ order(src.row);

			if (j >= 0)
				dst[j] = *(const uint2 *)(own + src.row * COLUMNS + at * 16 +
							  (src.piece & 1) * 8);
		}
	}
};

#define QUANTIZE(name, threads, blocks, blocks_quantize, blocks_dequantize, function, ...) \
	extern "C" __global__ void __launch_bounds__(threads, blocks_quantize) \
	hadamard_base_mma_quantize_f16_##name( \
		const __grid_constant__ hzi_hadamard_base_mma_quantize p) \
	{ \
		function<HZ_F16, __VA_ARGS__>(p.m, copy_operands(p.m), store_codes_static(p.q)); \
	} \
	extern "C" __global__ void __launch_bounds__(threads, blocks_quantize) \
	hadamard_base_mma_quantize_bf16_##name( \
		const __grid_constant__ hzi_hadamard_base_mma_quantize p) \
	{ \
		function<HZ_BF16, __VA_ARGS__>(p.m, copy_operands(p.m), store_codes_static(p.q)); \
	}

BASE_MMA_KERNELS(QUANTIZE)
