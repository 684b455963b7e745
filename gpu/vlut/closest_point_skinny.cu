/*
 * closest_point_skinny.cu - skinny GEMM of one-level codes with any q and f16 columns
 *
 * SPDX-License-Identifier: BSD-2-Clause
 *
 * Like table_f16_skinny.cu, for codes that are too many for tables: gpu/lattice/closest_point.cuh
 * computes the points. That takes so long that one chunk in flight per warp is enough.
 */
#include "gpu/lattice/closest_point.cuh"
#include "gpu/vlut/table_f16_skinny.cuh"

/* A lattice block is one code of SIZE bytes. */
template <class L, int SIZE, int KIND>
struct closest_point_codes : codes_of_table<0, KIND != UNSCALED> {
	static constexpr int DIM = L::dim, VALUES = 16 / SIZE * DIM, SCALES = KIND, AHEAD = 1;
	static constexpr bool AS_BYTES = false;

	static __device__ __forceinline__ void fill(const hzi_vlut_table_f16_skinny &) {}

	/* Code i of a piece */
	static __device__ __forceinline__ uint32_t code(const uint32_t (&codes)[4], int i)
	{
		const uint32_t w = codes[i * SIZE / 4];

		return SIZE == 4 ? w : i % 2 ? w >> 16 : w & 0xffff;
	}

	static __device__ __forceinline__ void digits(float *z, uint32_t index,
						      const hzi_vlut_table_f16_skinny &p)
	{
#pragma unroll
		for (int i = 0; i < DIM; i++) {
			uint32_t quotient, remainder;

			if (p.log2q >= 0) {
				remainder = index & (uint32_t)(p.q - 1);
				quotient = index >> p.log2q;
			} else {
				quotient = __umulhi(index, p.per_q);
				remainder = index - quotient * (uint32_t)p.q;
				if (remainder >= (uint32_t)p.q) {
					remainder -= (uint32_t)p.q;
					quotient++;
				}
			}
			index = quotient;
			z[i] = float_of(remainder);
		}
	}

	/* Coordinates of block b of a piece, without the scale */
	static __device__ __forceinline__ void get(float *x, const uint32_t (&codes)[4], int b,
						   const hzi_vlut_table_f16_skinny &p)
	{
		const radix_constants n{p.radix[0], p.radix[1], p.radix[2], p.radix[3]};
		float z[DIM];

		digits(z, code(codes, b), p);
		coset_leader<L>(z, n, x);
#pragma unroll
		for (int i = 0; i < DIM; i++)
			x[i] -= p.offset[i];
	}

	/* Values 8 j .. 8 j + 7 of a piece */
	static __device__ __forceinline__ void values8(uint32_t (&v)[4], const uint32_t (&codes)[4],
						       int j, const lane_constants &,
						       const hzi_vlut_table_f16_skinny &p)
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

KERNELS(vlut_closest_point_skinny_d4, closest_point_codes<d_lattice<4>, 2, UNSCALED>)
KERNELS(vlut_closest_point_skinny_d4_block_scaled, closest_point_codes<d_lattice<4>, 2, BY_BLOCK>)
KERNELS(vlut_closest_point_skinny_e8, closest_point_codes<e8_lattice, 4, UNSCALED>)
KERNELS(vlut_closest_point_skinny_e8_block_scaled, closest_point_codes<e8_lattice, 4, BY_BLOCK>)
