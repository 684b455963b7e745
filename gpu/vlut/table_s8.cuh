/*
 * table_s8.cuh - lattice points as bytes, from tables of leaders in shared memory
 *
 * SPDX-License-Identifier: BSD-2-Clause
 *
 * A table is 64 KiB: 256 bytes per code, of which the first half is for the first level and the
 * second half for the others, with copies of the leader in all banks. So the address of a leader is
 * made by one byte permutation that puts the code into its second byte, and lanes have no bank
 * conflicts.
 */
#ifndef HZI_GPU_VLUT_TABLE_S8_CUH
#define HZI_GPU_VLUT_TABLE_S8_CUH

#include "gpu/device/cluster.cuh"
#include "gpu/device/dtype.cuh"
#include "gpu/vlut/table_s8_skinny.h"

/*
 * The tables start at a fixed shared address, known to load_leader(); the launcher adds bytes for
 * the gap. The upper bits of shared addresses are the rank of the block in its cluster.
 */
#define BLOCK_BITS 0xff000000

HZ_DEVICE uint8_t *leader_memory(void)
{
	extern __shared__ uint8_t shared[];

	return shared + (HZI_VLUT_S8_TABLE - (int)(shared_address(shared) & ~BLOCK_BITS));
}

/*
 * Makes what the block wrote to shared memory before its last barrier visible to the cluster. One
 * warp releases for all, see cluster_arrive_relaxed().
 */
HZ_DEVICE void cluster_release(int warp)
{
	if (warp == 0)
		cluster_arrive();
	else
		cluster_arrive_relaxed();
	cluster_wait();
}

/* The same, with that barrier */
HZ_DEVICE void cluster_publish(int warp)
{
	__syncthreads();
	cluster_release(warp);
}

/* leaders, first: see struct hzi_vlut_table_s8_skinny */
template <int WORDS, int THREADS>
HZ_DEVICE void fill_leaders(const uint32_t *leaders, const uint32_t *first)
{
	uint8_t *table = leader_memory();

	for (int i = threadIdx.x; i < HZI_VLUT_S8_ENTRIES * 8; i += THREADS) {
		uint4 *dst = (uint4 *)(table + i / 8 * 256 + i % 8 * 16);
		const uint32_t a = leaders[i / 8 * WORDS], b = leaders[i / 8 * WORDS + WORDS - 1];
		const uint32_t c = __vadd4(a, first[0]), d = __vadd4(b, first[WORDS - 1]);

		dst[0] = make_uint4(c, d, c, d);
		dst[8] = make_uint4(a, b, a, b);
	}
}

/* All bits of the address of a leader except the code, for a lane */
template <int WORDS>
HZ_DEVICE uint32_t leader_slot(int lane)
{
	return (WORDS == 1 ? lane * 4 : lane % 16 * 8) |
	       (shared_address(leader_memory()) & BLOCK_BITS);
}

HZ_DEVICE uint4 load_codes(const void *p)
{
	uint4 v;

	asm volatile("ld.global.nc.L1::no_allocate.L2::128B.v4.u32 {%0, %1, %2, %3}, [%4];"
		     : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(p));
	return v;
}

/*
 * Loads a leader. at: code * 256 + leader_slot(); UPPER: from the table of levels above the first.
 */
template <int WORDS, bool UPPER>
HZ_DEVICE void load_leader(uint32_t (&e)[WORDS], uint32_t at)
{
	if constexpr (WORDS == 1)
		asm("ld.shared.u32 %0, [%1 + %2];" : "=r"(e[0])
		    : "r"(at), "n"(HZI_VLUT_S8_TABLE + (UPPER ? 128 : 0)));
	else
		asm("ld.shared.v2.u32 {%0, %1}, [%2 + %3];" : "=r"(e[0]), "=r"(e[1])
		    : "r"(at), "n"(HZI_VLUT_S8_TABLE + (UPPER ? 128 : 0)));
}

/*
 * Decodes eight values plus 128 from 16 bytes of codes of a row: blocks of 4 WORDS values, M
 * levels.
 */
template <int WORDS, int M>
struct decode_points {
	static constexpr int VALUES = 64 * WORDS / M;	/* of 16 bytes */

	HZ_DEVICE void get(uint32_t (&v)[2], const uint32_t (&codes)[4], int j, uint32_t slot,
			   int q)
	{
#pragma unroll
		for (int b = 0; b < 2 / WORDS; b++) {
			const int byte = (2 / WORDS * j + b) * M;
			uint32_t u[WORDS], e[WORDS];

#pragma unroll
			for (int m = M - 1; m >= 0; m--) {
				const uint32_t at = __byte_perm(codes[(byte + m) / 4], slot,
								0x7604 | (byte + m) % 4 << 4);

				if (m == 0)
					load_leader<WORDS, false>(e, at);
				else
					load_leader<WORDS, true>(e, at);
#pragma unroll
				for (int w = 0; w < WORDS; w++)
					u[w] = m == M - 1 ? e[w] : u[w] * q + e[w];
			}
#pragma unroll
			for (int w = 0; w < WORDS; w++)
				v[b * WORDS + w] = u[w];
		}
	}
};

/* Values 8 j .. 8 j + 7 of a row, with codes of 4 bits per value, as f16 times a scale */
template <int WORDS, bool SCALED>
HZ_DEVICE void points_f16(uint32_t (&v)[4], const uint32_t (&codes)[4], int j, uint32_t slot,
			  int q, uint32_t scale)
{
	uint32_t bytes[2];

	decode_points<WORDS, 2 * WORDS>::get(bytes, codes, j, slot, q);
#pragma unroll
	for (int i = 0; i < 4; i++) {
		/* minus 1024 + 128 */
		v[i] = add_f16x2(__byte_perm(bytes[i / 2], 0x64646464, i % 2 ? 0x4342 : 0x4140),
				 0xe480e480);
		if (SCALED)
			v[i] = mul_f16x2(v[i], scale);
	}
}

/*
 * The leader of a code of E8 with q = 4, three bits per coordinate, as bytes. leader_memory() has a
 * copy of the table, whose layout is described in lib/vlut/vlut.c.
 */
HZ_DEVICE void e8q4_leader(uint32_t (&u)[2], uint32_t code)
{
	const uint32_t v = ((const uint16_t *)leader_memory())[code];
	const uint32_t b = (leader_memory() + 2 * 65536)[code];

	u[0] = (v & 0x0707) | (v << 13 & 0x07070000);
	u[1] = (b & 7) | (b << 5 & 0x700) | (v << 10 & 0x03030000) | (b << 12 & 0x40000) |
	       (b << 19 & 0x4000000);
}

/* Decodes two levels to bytes, like the leaders of struct hzi_vlut_table_s8_skinny. */
HZ_DEVICE void e8q4_points(uint32_t (&v)[2], uint32_t codes, int q)
{
	const uint32_t odd = (codes >> 14 & 1) + (codes >> 30 & 1) * q;
	uint32_t a[2], b[2];

	e8q4_leader(a, codes & 0xffff);
	e8q4_leader(b, codes >> 16);
#pragma unroll
	for (int i = 0; i < 2; i++)
		v[i] = 2 * (b[i] * q + a[i]) + odd * 0x01010101;
}

/* Stores the sum of row `row` and column b, scaled by scale and row_scale of p. */
template <typename P>
HZ_DEVICE void store_scaled(const P &p, int64_t row, int b, float sum)
{
	sum *= p.scale;
	if (p.row_scale)
		sum *= p.row_scale[row * p.row_scale_step];
	store_any(p.y_dtype, p.y, row * p.y_i + b * p.y_b, sum);
}

/*
 * Loads N elements of x: f[i] = x[at + o step] with o = i / RUN * GAP + i % RUN, or 0 if o >=
 * count. All loads are in flight together.
 */
template <int RUN, int GAP, int N>
HZ_DEVICE void load_strided(float (&f)[N], int dtype, const void *x, int64_t at, int64_t step,
			    int count)
{
	uint32_t bits[N];

	switch (dtype) {
	case HZ_F32:
#pragma unroll
		for (int i = 0; i < N; i++) {
			const int o = i / RUN * GAP + i % RUN;

			f[i] = o < count ? ((const float *)x)[at + o * step] : 0;
		}
		return;
	case HZ_S8:
#pragma unroll
		for (int i = 0; i < N; i++) {
			const int o = i / RUN * GAP + i % RUN;

			f[i] = o < count ? (float)((const int8_t *)x)[at + o * step] : 0;
		}
		return;
	default:
#pragma unroll
		for (int i = 0; i < N; i++) {
			const int o = i / RUN * GAP + i % RUN;

			bits[i] = o < count ? ((const uint16_t *)x)[at + o * step] : 0;
		}
#pragma unroll
		for (int i = 0; i < N; i++)
			f[i] = dtype == HZ_F16 ? f16_low(bits[i]) : bf16_low(bits[i]);
	}
}

#endif
