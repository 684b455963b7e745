/*
 * label.cuh - labels of E8 codes with q = 16, decoded to f16 operands of tensor cores
 *
 * SPDX-License-Identifier: BSD-2-Clause
 *
 * See gpu/vlut/label.h for the layout and lib/lattice/label.h for what a label means. Two lattice
 * blocks are decoded at a time, as the halves of f16x2 registers. A field n at bit 2 of a half
 * becomes the f16 number 512 + 2 n + h, and a field at bit 6 becomes 32 + 2 n + h, by or-ing in an
 * exponent and h.
 */
#ifndef HZI_GPU_VLUT_LABEL_CUH
#define HZI_GPU_VLUT_LABEL_CUH

#include "gpu/device/dtype.cuh"
#include "gpu/vlut/label.h"

#define LABEL_ABS 0x7fff7fff

/* prmt without the masking of __byte_perm(): bit 3 of a selector replicates the sign. */
HZ_DEVICE uint32_t label_permute(uint32_t a, uint32_t b, uint32_t selector)
{
	uint32_t r;

	asm("prmt.b32 %0, %1, %2, %3;" : "=r"(r) : "r"(a), "r"(b), "r"(selector));
	return r;
}

/* (a & MASK) | b */
template <uint32_t MASK>
HZ_DEVICE uint32_t label_select(uint32_t a, uint32_t b)
{
	uint32_t r;

	asm("lop3.b32 %0, %1, %2, %3, 0xEA;" : "=r"(r) : "r"(a), "n"(MASK), "r"(b));
	return r;
}

/* For both halves: a > b or a == b, as 1.0 and 0.0 or as masks */
HZ_DEVICE uint32_t label_greater_mask(uint32_t a, uint32_t b)
{
	uint32_t r;

	asm("set.gt.u32.f16x2 %0, %1, %2;" : "=r"(r) : "r"(a), "r"(b));
	return r;
}

HZ_DEVICE uint32_t label_equal_f16(uint32_t a, uint32_t b)
{
	uint32_t r;

	asm("set.eq.f16x2.f16x2 %0, %1, %2;" : "=r"(r) : "r"(a), "r"(b));
	return r;
}

/* As a modifier of the instruction that uses it */
HZ_DEVICE uint32_t label_abs(uint32_t a)
{
	uint32_t r;

	asm("abs.f16x2 %0, %1;" : "=r"(r) : "r"(a));
	return r;
}

/* ---- The layout, code by code ---------------------------------------------------------------- */

/* Where T of block b of row g (half 0) or g + 8 is in the word of a lane */
HZ_DEVICE int label_t_shift(int t_bits, int half, int b)
{
	return t_bits == 4 ? half * 16 + b * 4 : b * 4 + half * 2;
}

/* Two fields, a byte, of block b as bits of a word */
HZ_DEVICE uint32_t label_place(uint32_t fields, int b)
{
	const uint32_t half = b % 2 ? (fields << 10 | fields >> 6) & 0xffff : fields << 2;

	return half << b / 2 * 16;
}

struct label_code {
	uint32_t code;
	int t;
};

HZ_DEVICE label_code label_at(const void *packed, int t_bits, int shaping, int64_t chunks,
			      int64_t row, int64_t block)
{
	const int half = (int)(row % 16 / 8), b = (int)(block % 4);
	const int lane = (int)(row % 8 * 4 + block % 16 / 4);
	const uint8_t *const src = (const uint8_t *)packed +
				   (row / 16 * chunks + block / 16) * HZI_VLUT_LABEL_BYTES(t_bits);
	const uint4 w = ((const uint4 *)src)[half * 32 + lane];
	const uint32_t words[4] = {w.x, w.y, w.z, w.w};
	const uint32_t t = t_bits == 4 ? ((const uint32_t *)(src + 1024))[lane] :
					 ((const uint16_t *)(src + 1024))[lane];
	label_code c = {0, (int)(t >> label_t_shift(t_bits, half, b)) & ((1 << t_bits) - 1)};

	for (int j = 0; j < 4; j++) {
		const uint32_t bits = words[j] >> b / 2 * 16 & 0xffff;

		c.code |= (b % 2 ? bits >> 10 | (bits & 3) << 6 : bits >> 2 & 0xff) << 8 * j;
	}
	if (shaping == HZI_SHAPING_D8STAR) {
		c.t |= (int)(c.code >> 3 & 1) << 2;
		c.code &= ~8u;
	}
	return c;
}

/* ---- For tensor cores ------------------------------------------------------------------------ */

/* T of a lane, and the nibbles of its blocks of row g (half 0) or g + 8 of that */
template <int T_BITS>
HZ_DEVICE uint32_t label_load_t(const uint8_t *t, int lane)
{
	return T_BITS == 4 ? __ldcs((const uint32_t *)t + lane) :
			     __ldcs((const uint16_t *)t + lane);
}

template <int T_BITS>
HZ_DEVICE uint32_t label_t(uint32_t t, int half)
{
	return T_BITS == 4 ? t >> 16 * half : t >> 2 * half & 0x3333;
}

/* Four blocks of a row */
template <int SHAPING>
struct label_row {
	uint32_t w[4];		/* as stored; without the free bits, and with the low bit of n_7 */
	uint32_t h;		/* bit 6 of bytes */
	uint32_t free_bit;	/* bit 5 of bytes: P, or the upper bit of T */
	uint32_t scales;	/* r of each block, a byte each */

	/* t: the nibbles of T of the blocks */
	__device__ __forceinline__ label_row(const uint32_t (&words)[4], uint32_t t,
					     const uint32_t (&r)[4])
	{
		uint32_t x;

#pragma unroll
		for (int j = 0; j < 4; j++)
			w[j] = words[j];
		h = w[3];
		if (SHAPING != HZI_SHAPING_CUBE) {
			free_bit = w[0];
			w[0] &= ~0x20202020;
		}
		if (SHAPING == HZI_SHAPING_D8STAR) {
			const uint32_t mask = label_permute(free_bit << 2, 0, 0xba98);

			scales = (label_permute(r[0], 0, t) & ~mask) |
				 (label_permute(r[1], 0, t) & mask);
		} else {
			/* A selector with bit 3 replicates the sign of a byte, which is 0. */
			scales = label_permute(r[0], r[1], t) |
				 label_permute(r[2], r[3], t ^ 0x8888);
		}
		/*
		 * Low bits of fields are bits 2 and 6 of bytes; bit 6 of the last word is h, and
		 * becomes the parity of the other seven.
		 */
		x = w[0] ^ w[1] ^ w[2] ^ w[3];
		w[3] ^= (x ^ x << 4) & 0x40404040;
	}

	/*
	 * v[i] = coordinate i of blocks p and p + 2 times their r: as f16, exact up to 2048, or
	 * rounded to bf16
	 */
	template <int DTYPE = HZ_F16>
	__device__ __forceinline__ void points(int p, uint32_t (&v)[8]) const
	{
		if constexpr (DTYPE == HZ_BF16 && SHAPING != HZI_SHAPING_E8) {
			points_bf16(p, v);
			return;
		}
		const uint32_t r = add_f16x2(label_permute(scales, 0x64646464, p ? 0x4341 : 0x4240),
					     0xe400e400);
		const uint32_t r_low = mul_f16x2(r, 0xe020e020), r_high = mul_f16x2(r, 0xd200d200);
		uint32_t u[4];

#pragma unroll
		for (int j = 0; j < 4; j++)
			u[j] = p ? label_permute(w[j], 0, 0x2301) : w[j];
		/* 512 + h and 32 + h, of 512 + 32 h or 2 h: fewer instructions than by shifts */
		const uint32_t h_of_p = p ? h & 0x40004000 :
					    label_select<0x00400040>(h, 0x60006000);
		const uint32_t h_low = fma_f16x2(h_of_p, p ? 0x38003800 : 0x28002800,
						 p ? 0x60006000 : 0x5fc05fc0),
			       h_high = fma_f16x2(h_of_p, p ? 0x38003800 : 0x28002800,
						  p ? 0x50005000 : 0x4c004c00);

		if (SHAPING == HZI_SHAPING_E8) {
#pragma unroll
			for (int j = 0; j < 4; j++) {
				v[2 * j] = add_f16x2(label_select<0x003c003c>(u[j], h_low),
						     0xe020e020);
				v[2 * j + 1] = add_f16x2(label_select<0x03c003c0>(u[j], h_high),
							 0xd200d200);
			}
			nearest(v, u, p ? label_permute(free_bit, 0, 0x2301) : free_bit);
#pragma unroll
			for (int i = 0; i < 8; i++) {
				v[i] = mul_f16x2(v[i], r);
				if (DTYPE == HZ_BF16)
					v[i] = to_bf16x2(f16_low(v[i]), f16_high(v[i]));
			}
			return;
		}
		if constexpr (SHAPING == HZI_SHAPING_D8STAR) {
			/* Fields without h; one exclusive or flips their top bits and adds h */
#pragma unroll
			for (int j = 0; j < 4; j++) {
				v[2 * j] = label_select<0x003c003c>(u[j], 0x60006000);
				v[2 * j + 1] = label_select<0x03c003c0>(u[j], 0x50005000);
			}
			const uint32_t far = far_from_0(v);
			const uint32_t hp = p ? label_permute(h, 0, 0x2301) : h;
			const uint32_t low = label_select<0x00200020>(far, hp >> 5 & 0x00020002),
				       high = label_select<0x02000200>(far, hp >> 1 & 0x00200020);

#pragma unroll
			for (int j = 0; j < 4; j++) {
				v[2 * j] = fma_f16x2(v[2 * j] ^ low, r, r_low);
				v[2 * j + 1] = fma_f16x2(v[2 * j + 1] ^ high, r, r_high);
			}
		} else {
#pragma unroll
			for (int j = 0; j < 4; j++) {
				v[2 * j] = fma_f16x2(label_select<0x003c003c>(u[j], h_low),
						     r, r_low);
				v[2 * j + 1] = fma_f16x2(label_select<0x03c003c0>(u[j], h_high),
							 r, r_high);
			}
		}
	}

private:
	/* A field n at bit 2 of a half, and h at bit 1, become the bf16 number 64 + 2 n + h. */
	__device__ __forceinline__ void points_bf16(int p, uint32_t (&v)[8]) const
	{
		const uint32_t hp = p ? label_permute(h, 0, 0x2301) : h;
		const uint32_t low = label_select<0x00020002>(hp >> 5, 0x42804280);
		const uint32_t r = fma_bf16x2(
			label_permute(scales, 0x43434343, p ? 0x4341 : 0x4240), 0x3f803f80,
			0xc300c300);
		uint32_t u[4];

#pragma unroll
		for (int j = 0; j < 4; j++)
			u[j] = p ? label_permute(w[j], 0, 0x2301) : w[j];
		flip(u);
#pragma unroll
		for (int j = 0; j < 4; j++) {
			v[2 * j] = label_select<0x003c003c>(u[j], low);
			v[2 * j + 1] = label_select<0x003c003c>(u[j] >> 4, low);
		}
#pragma unroll
		for (int i = 0; i < 8; i++)
			v[i] = fma_bf16x2(fma_bf16x2(v[i], 0x3f803f80, 0xc2a0c2a0), r, 0x80008000);
	}

	/* D8STAR: flips the top bits of the fields of points far from 0. */
	__device__ __forceinline__ static void flip(uint32_t (&u)[4])
	{
		if (SHAPING == HZI_SHAPING_D8STAR) {
			uint32_t v[8];

#pragma unroll
			for (int j = 0; j < 4; j++) {
				v[2 * j] = label_select<0x003c003c>(u[j], 0x60006000);
				v[2 * j + 1] = label_select<0x03c003c0>(u[j], 0x50005000);
			}
			const uint32_t bits = far_from_0(v) & 0x02200220;

#pragma unroll
			for (int j = 0; j < 4; j++)
				u[j] ^= bits;
		}
	}

	/* sum |2 n_i - 16| > 64 of each half, as a mask. v: 512 + 2 n_i, 32 + 2 n_i in turns */
	__device__ __forceinline__ static uint32_t far_from_0(const uint32_t (&v)[8])
	{
		uint32_t sum = 0;

#pragma unroll
		for (int i = 0; i < 8; i++) {
			const uint32_t size = label_abs(
				add_f16x2(v[i], i % 2 ? 0xd200d200 : 0xe020e020));

			sum = i ? add_f16x2(sum, size) : size;
		}
		return label_greater_mask(sum, 0x54005400);
	}

	/*
	 * v, a point of CUBE, becomes the point of E8. u: its fields; free_bit: P at bit 5 of
	 * halves
	 */
	__device__ __forceinline__ static void nearest(uint32_t (&v)[8], const uint32_t (&u)[4],
						       uint32_t free_bit)
	{
		const uint32_t x = u[0] ^ u[1] ^ u[2] ^ u[3], tops = x ^ x >> 4;
		/* P and P' as 1.0 or 0.0 */
		const uint32_t p = (free_bit >> 5 & 0x00010001) * 0x3c00,
			       p2 = ((free_bit ^ tops) >> 5 & 0x00010001) * 0x3c00;
		uint32_t key[8], sum, most, least;

#pragma unroll
		for (int i = 0; i < 8; i++) {
			/* 7 - i as f16 */
			const uint32_t order = i == 7 ? 0 : i == 6 ? 0x3c003c00 :
					       i == 5 ? 0x40004000 : i == 4 ? 0x42004200 :
					       i == 3 ? 0x44004400 : i == 2 ? 0x45004500 :
					       i == 1 ? 0x46004600 : 0x47004700;
			const uint32_t size = v[i] & LABEL_ABS;

			key[i] = fma_f16x2(size, 0x48004800, order);
			sum = i ? add_f16x2(sum, size) : size;
			most = i ? max_x2<HZ_F16>(most, key[i]) : key[i];
			least = i ? min_x2<HZ_F16>(least, key[i]) : key[i];
		}

		const uint32_t max = key_size(most), min = key_size(least);
		const uint32_t left = fma_f16x2(p, fma_f16x2(max, 0xc000c000, 0x50005000), sum),
			       right = fma_f16x2(p2, add_f16x2(min, min), 0x54005400);
		const uint32_t b = label_greater_mask(left, right);
		const uint32_t b_one = b & 0x3c003c00;
		const uint32_t moves = (p2 & b) | (p & ~b);
		/* The key of the coordinate that moves, or -1 */
		const uint32_t target = fma_f16x2(add_f16x2((least & b) | (most & ~b), 0x3c003c00),
						  moves, 0xbc00bc00);

#pragma unroll
		for (int i = 0; i < 8; i++) {
			const uint32_t e = label_equal_f16(key[i], target);

			v[i] = fma_f16x2(b_one, (v[i] & 0x80008000) ^ 0xcc00cc00, v[i]);
			v[i] = fma_f16x2(e, (v[i] & 0x80008000) ^ 0xd000d000, v[i]);
		}
	}

	/* |v| of a key 8 |v| + order: rounded to an integer at 1536 */
	__device__ __forceinline__ static uint32_t key_size(uint32_t key)
	{
		return add_f16x2(fma_f16x2(add_f16x2(key, 0xc300c300), 0x30003000, 0x66006600),
				 0xe600e600);
	}
};

#endif
