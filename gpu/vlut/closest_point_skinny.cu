/*
 * closest_point_skinny.cu - products of codes of one level with any q and few vectors of f16
 *
 * SPDX-License-Identifier: BSD-2-Clause
 *
 * As gpu/vlut/table_f16_skinny.cu, of codes that are too many for tables: points by the rules of
 * gpu/lattice/closest_point.cuh, which are so long that a warp has no more than one chunk under way.
 */
#include "gpu/lattice/closest_point.cuh"
#include "gpu/vlut/table_f16_skinny.cuh"

/* A lattice block is one code of SIZE bytes. */
template <class L, int SIZE, int KIND>
struct rule_codes : codes_of_table<0, KIND != PLAIN> {
	static constexpr int DIM = L::dim, VALUES = 16 / SIZE * DIM, SCALES = KIND, AHEAD = 1;
	static constexpr bool BYTES = false;

	static __device__ __forceinline__ void fill(const hzi_vlut_half &) {}

	/* Code i of a piece */
	static __device__ __forceinline__ uint32_t code(const uint32_t (&codes)[4], int i)
	{
		const uint32_t w = codes[i * SIZE / 4];

		return SIZE == 4 ? w : i % 2 ? w >> 16 : w & 0xffff;
	}

	static __device__ __forceinline__ void digits(float *z, uint32_t index,
						      const hzi_vlut_half &p)
	{
#pragma unroll
		for (int i = 0; i < DIM; i++) {
			uint32_t by, rest;

			if (p.log2q >= 0) {
				rest = index & (uint32_t)(p.q - 1);
				by = index >> p.log2q;
			} else {
				by = __umulhi(index, p.per_q);
				rest = index - by * (uint32_t)p.q;
				if (rest >= (uint32_t)p.q) {
					rest -= (uint32_t)p.q;
					by++;
				}
			}
			index = by;
			z[i] = near_float(rest);
		}
	}

	/* Coordinates of block b of a piece, without the scale */
	static __device__ __forceinline__ void get(float *x, const uint32_t (&codes)[4], int b,
						   const hzi_vlut_half &p)
	{
		const near_radix n{p.radix[0], p.radix[1], p.radix[2], p.radix[3]};
		float z[DIM];

		digits(z, code(codes, b), p);
		near_leader<L>(z, n, x);
#pragma unroll
		for (int i = 0; i < DIM; i++)
			x[i] -= p.offset[i];
	}

	/* Values 8 j .. 8 j + 7 of a piece */
	static __device__ __forceinline__ void eight(uint32_t (&v)[4], const uint32_t (&codes)[4],
						     int j, const half_lane &,
						     const hzi_vlut_half &p)
	{
		float x[8];

#pragma unroll
		for (int i = 0; i < 8 / DIM; i++)
			get(x + i * DIM, codes, 8 / DIM * j + i, p);
#pragma unroll
		for (int i = 0; i < 4; i++)
			v[i] = to_f16x2(x[2 * i], x[2 * i + 1]);
	}
};

KERNELS(vlut_rules_d4, rule_codes<near_d<4>, 2, PLAIN>)
KERNELS(vlut_rules_d4_blocks, rule_codes<near_d<4>, 2, BY_BLOCK>)
KERNELS(vlut_rules_e8, rule_codes<near_e8, 4, PLAIN>)
KERNELS(vlut_rules_e8_blocks, rule_codes<near_e8, 4, BY_BLOCK>)
