/*
 * contiguous_16bit.cuh - the sums of rows of 16-bit operands, where issue slots are scarce
 *
 * SPDX-License-Identifier: BSD-2-Clause
 *
 * A warp owns 1024 elements, 32 values a thread, as in contiguous.cuh; but stages beyond H_32
 * are those between a thread's own values wherever that can be, at the price of narrower accesses.
 */
#ifndef HZI_GPU_HADAMARD_CONTIGUOUS_16BIT_CUH
#define HZI_GPU_HADAMARD_CONTIGUOUS_16BIT_CUH

#include "gpu/hadamard/contiguous.cuh"
#include "gpu/device/mbarrier.cuh"

/*
 * Has a warp's 2^LOG2 bytes from there on come to the L2 cache, for a block that starts when this
 * one ends: else blocks wait for memory so long that too few of them are under way.
 */
template <int LOG2>
HZ_DEVICE void fetch_ahead(const void *from)
{
	const char *line = (const char *)from + (threadIdx.x % 32 << (LOG2 - 5));

	prefetch_l2(line);
}

/*
 * The same of a block's BYTES, a multiple of 16: on Hopper one thread has the copy engine ask for
 * them, by whole lines.
 */
template <int BYTES>
HZ_DEVICE void fetch_block_ahead(const void *from)
{
#if __CUDA_ARCH__ >= 900
	if (threadIdx.x == 0)
		bulk_prefetch_l2(from, BYTES);
#else
	fetch_ahead<11>((const char *)from + threadIdx.x / 32 * 2048);
#endif
}

/* The signs before: 8 elements in each of 4 chunks, STEP apart, the first of them at e */
template <int STEP>
HZ_DEVICE void sign_chunks(uint4 *w, const hzi_hadamard_contiguous &p, uint32_t e)
{
#pragma unroll
	for (int i = 0; i < 4; i++) {
		const uint32_t bits =
			((const uint8_t *)p.pre)[((e + STEP * i) & (uint32_t)p.mask) >> 3];

		w[i].x ^= sign_pair(bits, 0);
		w[i].y ^= sign_pair(bits, 1);
		w[i].z ^= sign_pair(bits, 2);
		w[i].w ^= sign_pair(bits, 3);
	}
}

/* The signs behind: piece i of C values begins at element(i). */
template <int C, typename F>
HZ_DEVICE void sign_pieces(float *v, const hzi_hadamard_contiguous &p, F element)
{
#pragma unroll
	for (int i = 0; i < 32 / C; i++) {
		const uint32_t e = element(i) & (uint32_t)p.mask;
		const uint32_t bits = ((const uint8_t *)p.post)[e >> 3] >> (e & 7);

#pragma unroll
		for (int c = 0; c < C; c++)
			v[C * i + c] = __uint_as_float(__float_as_uint(v[C * i + c]) ^
						       (bits << (31 - c) & 0x80000000));
	}
}

/* ---- Rows to 1024 ---------------------------------------------------------------------------- */

/*
 * Strides 1 to 16 with the data on the left, products with H_16 of all bits of a place but bit 1,
 * which tells row g + 8 from row g. So the 16 bytes of a load are an operand as they are, and
 * columns 2 q and 2 q + 1 of product t are results 8 q + 4 t and one more: a thread's results take
 * the places of its operands, 8 successive ones in each of 4 chunks: v[8 c] .. chunk c | g << 2.
 * The sign of entry (8 q + 4 f + e, 8 (g >> 1) + 4 t + (g & 1)) is
 * g0 e + t f + g1 q0 + g2 q1 mod 2.
 */
template <int DTYPE>
HZ_DEVICE void first_in_place(float *v, const uint4 *w, uint32_t lane)
{
	const uint32_t odd = ((lane >> 3 & lane) ^ (lane >> 4 & lane >> 1)) & 1;
	const uint32_t h = ((DTYPE == HZ_BF16 ? 0x3f803f80 : 0x3c003c00) ^ (odd ? 0x80008000 : 0)) ^
			   (lane << 29 & 0x80000000);

#pragma unroll
	for (int i = 0; i < 8; i++) {
		const uint4 a = w[i / 2];
		float c[4] = {};

		mma_m16n8k16<DTYPE>(c, a.x, a.y, a.z, a.w, h, h ^ (i & 1 ? 0x80008000 : 0));
#pragma unroll
		for (int j = 0; j < 4; j++)
			v[4 * i + j] = c[j];
	}
	stage<32, 1>(v);
}

/* Strides 32 to 2^(K - 1) behind that */
template <int K>
HZ_DEVICE void later_in_place(float *v, uint32_t lane)
{
	stages<32, 3, 5>(v, K - 5);
#pragma unroll
	for (int k = 7; k < K; k++)
		lane_stage(v, lane, 4 << (k - 7));
}

/* ---- Rows from 2048 on: a row is a block ----------------------------------------------------- */

/* Where in a block's elements those that a thread loads begin: 8 in each of 4 chunks, 64 apart */
HZ_DEVICE uint32_t loads_at(uint32_t t)
{
	return t / 32 * 1024 + (t >> 2 & 1) * 32 + (t % 32 >> 3) * 256 + t % 4 * 8;
}

/*
 * Strides to 1024 times WARPS / 2. The first 3 + LANES beyond H_32 come before the exchange, the
 * others between the pieces of C = 2 or 4 that a thread takes after it, of which piece i begins at
 * element i SPAN + t C. scale(v) is called behind H_32 with v[4 c] .. of chunk c | q << 3 of the
 * warp's.
 */
template <int DTYPE, int WARPS, int C, int LANES, typename F>
HZ_DEVICE void sums_long(float *v, uint4 *w, const hzi_hadamard_contiguous &p, char *memory,
			 F scale)
{
	constexpr int SPAN = 32 * WARPS * C, LOW = C / 2;
	const uint32_t t = threadIdx.x, lane = t % 32;

	fast_first<DTYPE, false>(v, w, p, 0, lane);
	scale(v);
	stages<32, 2, 5>(v, 3);
	if (LANES > 0)
		lane_stage(v, lane, 1);
	if (LANES > 1)
		lane_stage(v, lane, 2);
	fast_put<DTYPE>(v, memory + t / 32 * HZI_WARP_BYTES, lane);
	__syncthreads();

	/* place_of(i SPAN + t C), as bases and offsets that are known when compiled */
	const uint32_t e = t * C, piece = (e >> 2 & 7) ^ piece_order<DTYPE>(e / 32);
	const char *row = memory + e / 32 * 128 + (e & 3) * 4;

#pragma unroll
	for (int i = 0; i < 32 / C; i++) {
		const char *at =
			row + ((piece ^ piece_order<DTYPE>(i * SPAN / 32)) << 4) + i * SPAN * 4;

		if constexpr (C == 4) {
			const float4 f = *(const float4 *)at;

			v[4 * i] = f.x;
			v[4 * i + 1] = f.y;
			v[4 * i + 2] = f.z;
			v[4 * i + 3] = f.w;
		} else {
			const float2 f = *(const float2 *)at;

			v[2 * i] = f.x;
			v[2 * i + 1] = f.y;
		}
	}
	stages<32, LOW, 5>(v, 5);
}

#endif
