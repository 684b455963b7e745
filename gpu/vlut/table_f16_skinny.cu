/*
 * table_f16_skinny.cu - skinny GEMM of lattice codes and f16 columns, on f16 tensor cores
 *
 * SPDX-License-Identifier: BSD-2-Clause
 *
 * Tables decode points to f16 in registers, exactly except for the root of A2; scales round once.
 * All of x is in shared memory. Each warp streams the codes of its own chunks of k, 32 rows at a
 * time. Accumulators of warps are added in a fixed order.
 */
#include "gpu/vlut/table_f16_skinny.cuh"

/*
 * u8 codes of 4 bits per value. Leaders are those of upper levels in table_s8.cuh, without `first`;
 * the second half of each 256 bytes has the scale of that byte of T.
 */
template <int WORDS, int KIND>
struct byte_codes : codes_of_table<HZI_VLUT_S8_TABLE_BYTES, KIND == BY_PIECE> {
	static constexpr int DIM = 4 * WORDS, VALUES = 32, SCALES = KIND, AHEAD = 2;
	static constexpr bool AS_BYTES = true;

	static __device__ __forceinline__ void fill(const hzi_vlut_table_f16_skinny &p)
	{
		for (int i = threadIdx.x; i < HZI_VLUT_S8_ENTRIES * 8; i += THREADS) {
			uint4 *dst = (uint4 *)(leader_memory() + i / 8 * 256 + i % 8 * 16);
			const uint32_t a = p.leaders[i / 8 * WORDS],
				       b = p.leaders[i / 8 * WORDS + WORDS - 1],
				       s = p.scale_of[min(i / 8, p.scales - 1)];

			dst[0] = make_uint4(a, b, a, b);
			dst[8] = make_uint4(s, s, s, s);
		}
	}

	/* Decodes block b of a piece to bytes. */
	static __device__ __forceinline__ void get(uint32_t (&u)[WORDS], const uint32_t (&codes)[4],
						   int b, const lane_constants &l,
						   const hzi_vlut_table_f16_skinny &p)
	{
		constexpr int M = 2 * WORDS;

#pragma unroll
		for (int m = M - 1; m >= 0; m--) {
			uint32_t e[WORDS];

			load_leader<WORDS, false>(e,
						  __byte_perm(codes[(b * M + m) / 4], l.leader_slot,
							      0x7604 | (b * M + m) % 4 << 4));
#pragma unroll
			for (int w = 0; w < WORDS; w++)
				u[w] = m == M - 1 ? e[w] : u[w] * p.q + e[w];
		}
	}

	static __device__ __forceinline__ uint32_t scale(const uint32_t (&t)[2], int b,
							 const lane_constants &l)
	{
		uint32_t s[1];

		load_leader<1, true>(s, __byte_perm(t[b / 4], l.scale_slot, 0x7604 | b % 4 << 4));
		return s[0];
	}
};

HZ_DEVICE void copy_words(const hzi_vlut_table_f16_skinny &p, int bytes)
{
	for (int i = threadIdx.x; i < bytes / 4; i += THREADS)
		((uint32_t *)leader_memory())[i] = __ldg((const uint32_t *)p.words + i);
}

/*
 * u16 codes with two levels. The table in shared memory has leaders as words, as in struct hz_vlut.
 */
template <int WORDS, int KIND>
struct word_codes {
	static constexpr int DIM = 4 * WORDS, VALUES = 4 * DIM, SCALES = KIND, AHEAD = 2;
	static constexpr bool AS_BYTES = true;
	static constexpr bool OWN_SCALES = KIND != UNSCALED;

	static __device__ __forceinline__ int table(const hzi_vlut_table_f16_skinny &p)
	{
		return (p.entries * 4 + 127) & ~127;
	}

	static __device__ __forceinline__ int bytes(const hzi_vlut_table_f16_skinny &p)
	{
		return table(p) + (OWN_SCALES ? HZI_VLUT_S8_SCALES_BYTES : 0);
	}

	static __device__ __forceinline__ uint32_t *scales(const hzi_vlut_table_f16_skinny &p)
	{
		return (uint32_t *)(leader_memory() + table(p));
	}

	static __device__ __forceinline__ void fill(const hzi_vlut_table_f16_skinny &p)
	{
		copy_words(p, p.entries * 4);
	}

	static __device__ __forceinline__ void leader(uint32_t (&e)[WORDS], uint32_t code,
						      const hzi_vlut_table_f16_skinny &p)
	{
		const uint32_t i = code - __umulhi(code, p.per_entry) * (uint32_t)p.entries;
		const uint32_t v = ((const uint32_t *)leader_memory())[i];

		if constexpr (WORDS == 1) {
			e[0] = v;
		} else {
			e[0] = v & 0x0f0f0f0f;
			e[1] = v >> 4 & 0x0f0f0f0f;
		}
	}

	static __device__ __forceinline__ void get(uint32_t (&u)[WORDS], const uint32_t (&codes)[4],
						   int b, const lane_constants &,
						   const hzi_vlut_table_f16_skinny &p)
	{
		uint32_t upper[WORDS];

		leader(upper, codes[b] >> 16, p);
		leader(u, codes[b] & 0xffff, p);
#pragma unroll
		for (int w = 0; w < WORDS; w++)
			u[w] += upper[w] * p.q;
	}

	static __device__ __forceinline__ uint32_t scale(const uint32_t (&t)[2], int b,
							 const lane_constants &l)
	{
		return scale_of_t(t, b, l);
	}
};

/* E8 with q = 4 and two levels */
struct e8q4_codes : codes_of_table<HZI_VLUT_S8_E8Q4_BYTES, true> {
	static constexpr int DIM = 8, VALUES = 32, SCALES = BY_BLOCK, AHEAD = 2;
	static constexpr bool AS_BYTES = true;

	static __device__ __forceinline__ void fill(const hzi_vlut_table_f16_skinny &p)
	{
		copy_words(p, HZI_VLUT_S8_E8Q4_BYTES);
	}

	static __device__ __forceinline__ void get(uint32_t (&u)[2], const uint32_t (&codes)[4],
						   int b, const lane_constants &,
						   const hzi_vlut_table_f16_skinny &p)
	{
		e8q4_points(u, codes[b], p.q);
	}
};

/*
 * u8 codes of one or two values. The table has leaders as f16, one copy per lane; for one value
 * both as the lower half of a pair and as the upper one.
 */
template <int D, int LEVELS, int KIND>
struct pair_codes : codes_of_table<HZI_VLUT_S8_TABLE_BYTES, KIND == BY_PIECE> {
	static constexpr int DIM = D, VALUES = 16 / LEVELS * D, SCALES = KIND, AHEAD = 2;
	static constexpr bool AS_BYTES = false;

	static __device__ __forceinline__ void fill(const hzi_vlut_table_f16_skinny &p)
	{
		for (int i = threadIdx.x; i < HZI_VLUT_S8_ENTRIES * 8; i += THREADS) {
			uint4 *dst = (uint4 *)(leader_memory() + i / 8 * 256 + i % 8 * 16);
			const uint32_t a = p.leaders[i / 8], b = a << 16;

			dst[0] = make_uint4(a, a, a, a);
			if (D == 1)
				dst[8] = make_uint4(b, b, b, b);
		}
	}

	/* Pair i of a piece */
	static __device__ __forceinline__ uint32_t pair(const uint32_t (&codes)[4], int i,
							const lane_constants &l,
							const hzi_vlut_table_f16_skinny &p)
	{
		uint32_t v = 0;

#pragma unroll
		for (int m = LEVELS - 1; m >= 0; m--) {
			const int at = 2 / D * i * LEVELS + m, next = at + LEVELS;
			uint32_t e[1], upper[1];

			load_leader<1, false>(e, __byte_perm(codes[at / 4], l.leader_slot,
							     0x7604 | at % 4 << 4));
			if constexpr (D == 1) {
				load_leader<1, true>(upper,
						     __byte_perm(codes[next / 4], l.leader_slot,
								 0x7604 | next % 4 << 4));
				e[0] |= upper[0];
			}
			v = m == LEVELS - 1 ? e[0] : fma_f16x2(v, p.q16, e[0]);
		}
		if (LEVELS == 1)
			return v;
		v = add_f16x2(v, p.minus_offset);
		return D == 2 ? mul_f16x2(v, p.unit) : v;
	}

	static __device__ __forceinline__ void values8(uint32_t (&v)[4], const uint32_t (&codes)[4],
						       int j, const lane_constants &l,
						       const hzi_vlut_table_f16_skinny &p)
	{
#pragma unroll
		for (int i = 0; i < 4; i++)
			v[i] = pair(codes, 4 * j + i, l, p);
	}
};

KERNELS(vlut_table_f16_skinny_d4, byte_codes<1, UNSCALED>)
KERNELS(vlut_table_f16_skinny_d4_scaled, byte_codes<1, BY_PIECE>)
KERNELS(vlut_table_f16_skinny_d4_block_scaled, byte_codes<1, BY_BLOCK>)
KERNELS(vlut_table_f16_skinny_d8, byte_codes<2, UNSCALED>)
KERNELS(vlut_table_f16_skinny_d8_scaled, byte_codes<2, BY_PIECE>)
KERNELS(vlut_table_f16_skinny_d8_block_scaled, byte_codes<2, BY_BLOCK>)
KERNELS(vlut_table_f16_skinny_d4_u16, word_codes<1, UNSCALED>)
KERNELS(vlut_table_f16_skinny_d4_u16_block_scaled, word_codes<1, BY_BLOCK>)
KERNELS(vlut_table_f16_skinny_d8_u16, word_codes<2, UNSCALED>)
KERNELS(vlut_table_f16_skinny_d8_u16_block_scaled, word_codes<2, BY_BLOCK>)
KERNEL(vlut_table_f16_skinny_e8q4_block_scaled, 1, e8q4_codes)
KERNELS(vlut_table_f16_skinny_d1_l1, pair_codes<1, 1, UNSCALED>)
KERNELS(vlut_table_f16_skinny_d1_l1_scaled, pair_codes<1, 1, BY_PIECE>)
KERNELS(vlut_table_f16_skinny_d1_l2, pair_codes<1, 2, UNSCALED>)
KERNELS(vlut_table_f16_skinny_d1_l2_scaled, pair_codes<1, 2, BY_PIECE>)
KERNELS(vlut_table_f16_skinny_d2_l1, pair_codes<2, 1, UNSCALED>)
KERNELS(vlut_table_f16_skinny_d2_l1_scaled, pair_codes<2, 1, BY_PIECE>)
KERNELS(vlut_table_f16_skinny_d2_l2, pair_codes<2, 2, UNSCALED>)
KERNELS(vlut_table_f16_skinny_d2_l2_scaled, pair_codes<2, 2, BY_PIECE>)
