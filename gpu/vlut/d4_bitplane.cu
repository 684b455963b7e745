/*
 * d4_bitplane.cu - products of packed codes of D4 and one vector, by bits on the matrix units
 *
 * SPDX-License-Identifier: BSD-2-Clause
 *
 * Sums of bits of codes that are 1 where bits of x are, which the matrix units count: 256 of each
 * of 16 rows and 8 columns at a time, in the time that they take for 16 of f16. Columns are bits of
 * x as an integer. So leaders are never made: their bits l and h, and the signs by the logic of
 * vlut_fields.cuh, which here has all bits of its words at work, are operands as they are.
 *
 * A unit is 16 rows by 256 values, 4 chunks. Bit 8 j + 4 h + 2 m + f of the words of a chunk is bit
 * f of the field of level m, rows h; bits of f of one kind come from two chunks c, those of h from
 * two such pairs d, so that bit 8 j + 4 d + 2 m + c is of chunk 2 d + c, and a word has 32 bits of
 * one row, kind and coordinate. The upper level has 4 times the weight: there columns have bits of
 * 4 x. x is an integer of 22 bits, so that 4 x is one of 24.
 */
#include "gpu/device/pdl.cuh"
#include "gpu/vlut/table_s8.cuh"
#include "gpu/vlut/d4_bitplane.h"

#define THREADS HZI_PLANES_THREADS
#define WARPS (THREADS / 32)
#define ROWS HZI_FIELDS_ROWS
#define CHUNK HZI_FIELDS_CHUNK
#define BYTES HZI_FIELDS_BYTES
#define UNIT HZI_PLANES_UNIT
#define UNIT_BYTES HZI_PLANES_UNIT_BYTES
#define STAGES HZI_PLANES_STAGES
#define NT (HZI_PLANES_COLUMNS / 8)
#define X_BITS 21		/* of |x| */

/* 16 x 8 += 16 x 256 bits times 256 bits x 8: how many pairs are both 1 */
HZ_DEVICE void mma_bits(int32_t (&c)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3,
			uint32_t b0, uint32_t b1)
{
	asm("mma.sync.aligned.m16n8k256.row.col.s32.b1.b1.s32.and.popc {%0, %1, %2, %3}, "
	    "{%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
	    : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
	    : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

/* a where mask is 1, else b, in one instruction */
HZ_DEVICE uint32_t choose(uint32_t a, uint32_t b, uint32_t mask)
{
	uint32_t r;

	asm("lop3.b32 %0, %1, %2, %3, 0xe4;" : "=r"(r) : "r"(a), "r"(b), "r"(mask));
	return r;
}

/* Of pieces of S bits in turn: those with an even number of a and b by turns, and the others */
template <int S>
HZ_DEVICE void part(uint32_t a, uint32_t b, uint32_t &even, uint32_t &odd)
{
	constexpr uint32_t mask = S == 1 ? 0x55555555 : S == 2 ? 0x33333333 : 0x0f0f0f0f;

	even = choose(a, b << S, mask);
	odd = choose(a >> S, b, mask);
}

struct vlut_planes_block {
	const hzi_vlut_planes &p;
	const int tid, lane, warp, g, t;
	int tile0, tiles;		/* of this block */
	unsigned long long *offset;	/* sums of x times o */
	uint32_t *most;			/* the largest |x|, as bits of f16 */
	uint8_t *stages;		/* [warp][stage][chunk][lane] of codes */
	uint8_t *x;			/* [unit][column][t]: word i is coordinate i */
	int32_t *sums;			/* [tile][row][NT] */

	__device__ __forceinline__ explicit vlut_planes_block(const hzi_vlut_planes &p_)
		: p(p_), tid(threadIdx.x), lane(tid % 32), warp(tid / 32), g(lane / 4), t(lane % 4)
	{
		extern __shared__ __align__(16) uint8_t memory[];
		const int share = blockIdx.x;

		tile0 = share * p.tiles_each + min(share, p.tiles_more);
		tiles = p.tiles_each + (share < p.tiles_more);
		offset = (unsigned long long *)memory;
		most = (uint32_t *)(offset + 1);
		stages = memory + 16;
		x = memory + HZI_PLANES_REST_BYTES;
		sums = (int32_t *)(x + p.units * HZI_PLANES_X_BYTES);
	}

	/* The first unit of a warp, of all of this block's tiles */
	__device__ __forceinline__ int first_of(int w) const
	{
		return tiles * p.units * w / WARPS;
	}

	/* The largest |x| becomes 2^20 and more by 2^shift. */
	__device__ __forceinline__ int shift(void) const
	{
		const int exponent = (int)(__float_as_uint(f16_low(*most)) >> 23);

		return exponent == 0 ? 0 : X_BITS - 1 + 127 - exponent;
	}

	/* ---- x: an item is coordinate i of the blocks of lanes t of a unit, 16 values ---- */

	struct item {
		uint32_t v[16];		/* [chunk][j], of which one half is meant */
	};

	__device__ __forceinline__ void load_item(item &x, int at) const
	{
#pragma unroll
		for (int c = 0; c < UNIT; c++) {
			const int k = (at / 16 * UNIT + c) * CHUNK + at % 4 * 16;
			const bool there = k < p.k;

#pragma unroll
			for (int j = 0; j < 4; j++)
				x.v[4 * c + j] = there ? p.x[k / 2 + 2 * j + at / 8 % 2] : 0;
		}
	}

	/*
	 * Bytes b of four integers, as bits from the upper one down: so what columns want of two
	 * levels, bits q and q - 2, follows in turn.
	 */
	__device__ __forceinline__ static void turn_bytes(uint32_t (&to)[3], const int32_t (&v)[4])
	{
		const uint32_t a = __byte_perm(v[3], v[2], 0x5140);
		const uint32_t b = __byte_perm(v[1], v[0], 0x5140);
		const uint32_t c = __byte_perm(v[3], v[2], 0x0062);
		const uint32_t d = __byte_perm(v[1], v[0], 0x0062);

		to[0] = __brev(__byte_perm(a, b, 0x5410));
		to[1] = __brev(__byte_perm(a, b, 0x7632));
		to[2] = __brev(__byte_perm(c, d, 0x5410));
	}

	/* Its bits to their columns; returns the sum of its integers. */
	__device__ __forceinline__ int store_item(const item &from, int at, float unit) const
	{
		uint8_t *to = x + at / 16 * HZI_PLANES_X_BYTES + at % 4 * 16 + at / 4 % 4 * 4;
		uint32_t bytes[UNIT][3], above[2] = {};
		int sum = 0;

#pragma unroll
		for (int c = 0; c < UNIT; c++) {
			int32_t v[4];

#pragma unroll
			for (int j = 0; j < 4; j++) {
				const float f = f16_low(from.v[4 * c + j] >> (at & 4) * 4);

				/* 1.5 2^23 makes the integer the lower bits. */
				v[j] = __float_as_int(fmaf(f, unit, 12582912.0f)) - 0x4b400000;
				sum += v[j];
			}
			turn_bytes(bytes[c], v);
		}
#pragma unroll
		for (int b = 0; b < 3; b++) {
			uint32_t e[2], o[2], w[8], none;

			part<1>(bytes[0][b], bytes[1][b], e[0], o[0]);
			part<1>(bytes[2][b], bytes[3][b], e[1], o[1]);
			part<4>(e[0], e[1], w[7], w[3]);
			part<4>(o[0], o[1], w[6], w[2]);
#pragma unroll
			for (int i = 0; i < 2; i++) {
				part<2>(w[7 - i] >> 2, w[3 - i], w[5 - i], none);
				part<2>(w[3 - i] >> 2, above[i], w[1 - i], none);
				above[i] = w[7 - i];
			}
#pragma unroll
			for (int q = 0; q < 8; q++)
				*(uint32_t *)(to + (b * 8 + q) * 64) = w[q];
		}
		return sum;
	}

	__device__ __forceinline__ static uint32_t most_of(uint32_t u, const item &x)
	{
#pragma unroll
		for (int i = 0; i < 16; i++)
			u = __vmaxu2(u, x.v[i] & 0x7fff7fff);
		return u;
	}

	__device__ __forceinline__ void add_offset(int sum) const
	{
		const int low = __reduce_add_sync(~0u, sum & 0xffff);
		const int high = __reduce_add_sync(~0u, sum >> 16);

		if (lane == 0)
			atomicAdd(offset, (unsigned long long)(high * 65536ll + low));
	}

	/* mine: loaded before codes are on their way, which take all there is */
	__device__ __forceinline__ void prepare_x(item &mine) const
	{
		const int items = p.units * 16;
		uint32_t u = most_of(0, mine);
		float unit;

#pragma unroll 1
		for (int at = THREADS + tid; at < items; at += THREADS) {
			load_item(mine, at);
			u = most_of(u, mine);
		}
		u = __reduce_max_sync(~0u, max(u >> 16, u & 0xffff));
		if (lane == 0)
			atomicMax(most, u);
		__syncthreads();
		unit = __int_as_float(shift() + 127 << 23);
#pragma unroll 1
		for (int at = tid; at - lane < items; at += THREADS) {
			int sum = 0;

			if (items > THREADS && at < items)
				load_item(mine, at);
			if (at < items)
				sum = store_item(mine, at, unit) * p.offset[at / 4 % 4];
			if (p.centred)
				add_offset(sum);
		}
		__syncthreads();
	}

	/* ---- Codes: units on their way to shared memory, 16 bytes a lane of each chunk ---- */

	struct codes {
		const uint8_t *from;	/* this lane's of the next unit */
		int unit, left;		/* of its row; to load in all */
	};

	__device__ __forceinline__ void load_unit(codes &q, uint32_t to) const
	{
		const int there = p.chunks - q.unit * UNIT;

#pragma unroll
		for (int c = 0; c < UNIT; c++)
			if (q.left > 0 && c < there)
				copy_async(to + c * BYTES, q.from + c * BYTES);
		copy_commit();
		q.from += min(there, UNIT) * BYTES;
		q.unit = q.unit + 1 == p.units ? 0 : q.unit + 1;
		q.left--;
	}

	/* Bits that are 1 in codes and in columns of x, by the kind of bit and 8 columns */
	struct counts {
		int32_t l[NT][4], h[NT][4], s[NT][4];
	};

	/*
	 * The words of rows g and g + 8 of coordinates: those of l, h, and of the signs. Where the
	 * unit has no more chunks they are anything, as x is 0.
	 */
	__device__ __forceinline__ static void decode(uint32_t at, uint32_t (&l)[2][4],
						      uint32_t (&h)[2][4], uint32_t (&s)[2][4])
	{
		uint32_t w[UNIT][4];

#pragma unroll
		for (int c = 0; c < UNIT; c++)
			load_shared(w[c], at + c * BYTES);
#pragma unroll
		for (int i = 0; i < 4; i++) {
			uint32_t low[2], high[2];

			part<1>(w[0][i], w[1][i], low[0], high[0]);
			part<1>(w[2][i], w[3][i], low[1], high[1]);
			part<4>(low[0], low[1], l[0][i], l[1][i]);
			part<4>(high[0], high[1], h[0][i], h[1][i]);
		}
#pragma unroll
		for (int r = 0; r < 2; r++) {
			const uint32_t l0 = l[r][0], l1 = l[r][1], l2 = l[r][2], turned = l[r][3];
			/* As fields_signs() */
			const uint32_t two0 = h[r][0] & ~l0, two1 = two0 | (h[r][1] & ~l1),
				       two2 = two1 | (h[r][2] & ~l2), l3 = l0 ^ l1 ^ l2,
				       two3 = two2 | (h[r][3] & ~l3);
			const uint32_t later = ~l0 & (l1 | l2), at0 = two0 | ~(two3 | later),
				       second = ~two3 & ~l0 & l1, at1 = second | (two1 & ~two0),
				       at3 = two3 & ~two2, at2 = ~(at0 | at1 | at3);

			l[r][3] = l3;
			s[r][0] = h[r][0] ^ (turned & at0);
			s[r][1] = h[r][1] ^ (turned & at1);
			s[r][2] = h[r][2] ^ (turned & at2);
			s[r][3] = h[r][3] ^ (turned & at3);
		}
	}

	__device__ __forceinline__ static void count(int32_t (&c)[4], const uint32_t (&w)[2][4],
						     const uint32_t (&b)[4])
	{
		mma_bits(c, w[0][0], w[1][0], w[0][1], w[1][1], b[0], b[1]);
		mma_bits(c, w[0][2], w[1][2], w[0][3], w[1][3], b[2], b[3]);
	}

	__device__ __forceinline__ void step(counts &n, uint32_t at, uint32_t columns, codes &q)
	{
		uint32_t l[2][4], h[2][4], s[2][4];

		decode(at, l, h, s);
		load_unit(q, at);
#pragma unroll
		for (int i = 0; i < NT; i++) {
			uint32_t b[4];

			load_shared(b, columns + i * 512);
			count(n.l[i], l, b);
			count(n.h[i], h, b);
			count(n.s[i], s, b);
		}
	}

	/*
	 * A warp's sums of a tile, of columns of 8 bits together: integers, so that their order
	 * does not matter. The uppermost bit is the sign.
	 */
	__device__ __forceinline__ void flush(counts &n, int tile) const
	{
#pragma unroll
		for (int r = 0; r < 2; r++) {
			int32_t v[NT];

#pragma unroll
			for (int i = 0; i < NT; i++) {
				int32_t c[2];

#pragma unroll
				for (int e = 0; e < 2; e++) {
					c[e] = n.l[i][2 * r + e] + 2 * n.h[i][2 * r + e] -
					       4 * n.s[i][2 * r + e];
					n.l[i][2 * r + e] = 0;
					n.h[i][2 * r + e] = 0;
					n.s[i][2 * r + e] = 0;
				}
				v[i] = c[0] + (i == NT - 1 && t == 3 ? -2 : 2) * c[1] << 2 * t;
				v[i] += __shfl_xor_sync(~0u, v[i], 1);
				v[i] += __shfl_xor_sync(~0u, v[i], 2);
			}
			if (t < NT)
				atomicAdd(sums + (tile * ROWS + 8 * r + g) * NT + t,
					  t == 0 ? v[0] : t == 1 ? v[1] : v[2]);
		}
	}

	__device__ __forceinline__ void finish(void) const
	{
		const int bits = shift();

		__syncthreads();
		for (int i = tid; i < tiles * ROWS; i += THREADS) {
			const int64_t row = (int64_t)tile0 * ROWS + i;
			const int32_t *const v = sums + i * NT;
			const long long sum = v[2] * 65536ll + v[1] * 256ll + v[0] -
					      (long long)*offset;

			if (row < p.rows)
				store_sum(p, row, 0, *most >= 0x7c00 ? __int_as_float(0x7fffffff) :
					  (float)sum * __int_as_float(127 - bits << 23));
		}
	}

	__device__ __forceinline__ void run(void)
	{
		const int lo = first_of(warp), hi = first_of(warp + 1);
		const uint32_t ring = shared_address(stages) +
				      warp * STAGES * UNIT_BYTES + lane * 16;
		const uint32_t columns = shared_address(x) + lane * 16;
		int tile = lo / p.units, unit = lo % p.units;
		counts n = {};
		codes q = {.from = p.packed +
				   ((int64_t)(tile0 + tile) * p.chunks + unit * UNIT) * BYTES,
			   .unit = unit, .left = hi - lo};
		uint32_t at = ring;
		item mine = {};

		q.from += lane * 16;
		for (int i = tid; i < tiles * ROWS * NT; i += THREADS)
			sums[i] = 0;
		if (tid < 4)
			((uint32_t *)offset)[tid] = 0;
		__syncthreads();
		grid_wait();
		grid_next();
		if (tid < p.units * 16)
			load_item(mine, tid);
#pragma unroll
		for (int i = 0; i < STAGES; i++)
			load_unit(q, ring + i * UNIT_BYTES);
		prepare_x(mine);
#pragma unroll 1
		for (int i = lo; i < hi; i++) {
			/* and no barrier: each lane reads what it has copied itself */
			copy_wait_but<STAGES - 1>();
			step(n, at, columns + unit * HZI_PLANES_X_BYTES, q);
			at = at == ring + (STAGES - 1) * UNIT_BYTES ? ring : at + UNIT_BYTES;
			if (++unit == p.units || i + 1 == hi) {
				flush(n, tile++);
				unit = 0;
			}
		}
		copy_wait_but<0>();
		finish();
	}
};

/* Two blocks fit an SM, the second of the kernel behind. */
extern "C" __global__ void __launch_bounds__(THREADS, 2)
vlut_planes(const __grid_constant__ hzi_vlut_planes p)
{
	vlut_planes_block(p).run();
}
