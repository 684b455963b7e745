/*
 * vlut_bytes.cuh - points of lattice codes as bytes, by tables of leaders in shared memory
 *
 * SPDX-License-Identifier: BSD-2-Clause
 *
 * The tables are 64 KiB: 256 bytes for each code, of which one half is for the first level and one
 * for the others, a copy of the leader for each bank. So the place of a leader is the code as the
 * second byte of an address, one permutation of bytes, and no two lanes are in each other's way.
 */
#ifndef HZI_VLUT_BYTES_CUH
#define HZI_VLUT_BYTES_CUH

#include "gpu/common.cuh"
#include "gpu/vlut_mma.h"

#define HZI_VLUT_LEADERS HZI_VMMA_TABLE

/*
 * The tables lie at a place that is known to load_leader(), and what the launcher adds makes room.
 * Upper bits of shared addresses are the block's number in its cluster.
 */
#define BLOCK_BITS 0xff000000

HZ_DEVICE uint8_t *leader_memory(void)
{
	extern __shared__ uint8_t room[];

	return room + (HZI_VLUT_LEADERS - (int)(shared_address(room) & ~BLOCK_BITS));
}

/* leaders and first: of struct hzi_vlut_mma */
template <int WORDS, int THREADS>
HZ_DEVICE void fill_leaders(const uint32_t *leaders, const uint32_t *first)
{
	uint8_t *table = leader_memory();

	for (int i = threadIdx.x; i < HZI_VMMA_ENTRIES * 8; i += THREADS) {
		uint4 *to = (uint4 *)(table + i / 8 * 256 + i % 8 * 16);
		const uint32_t a = leaders[i / 8 * WORDS], b = leaders[i / 8 * WORDS + WORDS - 1];
		const uint32_t c = __vadd4(a, first[0]), d = __vadd4(b, first[WORDS - 1]);

		to[0] = make_uint4(c, d, c, d);
		to[8] = make_uint4(a, b, a, b);
	}
}

/* What the address of a code's leader has beside the code, for a lane */
template <int WORDS>
HZ_DEVICE uint32_t leader_place(int lane)
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

/* A leader: `at` is code * 256 + the place of this lane; UPPER: the table of levels above the first */
template <int WORDS, bool UPPER>
HZ_DEVICE void load_leader(uint32_t (&e)[WORDS], uint32_t at)
{
	if constexpr (WORDS == 1)
		asm("ld.shared.u32 %0, [%1 + %2];" : "=r"(e[0])
		    : "r"(at), "n"(HZI_VLUT_LEADERS + (UPPER ? 128 : 0)));
	else
		asm("ld.shared.v2.u32 {%0, %1}, [%2 + %3];" : "=r"(e[0]), "=r"(e[1])
		    : "r"(at), "n"(HZI_VLUT_LEADERS + (UPPER ? 128 : 0)));
}

/* Eight values of a row plus 128, from 16 bytes of its codes: blocks of 4 WORDS values, M levels */
template <int WORDS, int M>
struct points {
	static constexpr int VALUES = 64 * WORDS / M;	/* of 16 bytes */

	HZ_DEVICE void get(uint32_t (&v)[2], const uint32_t (&codes)[4], int j, uint32_t place, int q)
	{
#pragma unroll
		for (int b = 0; b < 2 / WORDS; b++) {
			const int byte = (2 / WORDS * j + b) * M;
			uint32_t u[WORDS], e[WORDS];

#pragma unroll
			for (int m = M - 1; m >= 0; m--) {
				const uint32_t at = __byte_perm(codes[(byte + m) / 4], place,
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

#endif
