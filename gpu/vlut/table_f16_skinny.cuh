/*
 * table_f16_skinny.cuh - the thread block of skinny GEMM of lattice codes and f16 columns
 *
 * SPDX-License-Identifier: BSD-2-Clause
 *
 * A piece is 16 bytes of codes of a row, with VALUES values. Four lanes read a chunk of four
 * pieces, a warp those of 8 rows at a time. A class of the including file describes the codes:
 *
 *	DIM, VALUES	values of a lattice block, of a piece
 *	SCALES		how many blocks share a byte of T, see below
 *	OWN_SCALES	the scales have a table of their own, at scales()
 *	AS_BYTES	get() decodes a block to bytes; else values8() decodes 8 values to f16
 *	AHEAD		chunks in flight per warp
 *	bytes(), fill()	size of its table at leader_memory(), and the code that fills it
 *	scale()		the scale of byte b of T: scale_of_t(), unless the table has scales, too
 */
#ifndef HZI_GPU_VLUT_TABLE_F16_SKINNY_CUH
#define HZI_GPU_VLUT_TABLE_F16_SKINNY_CUH

#include "gpu/device/cp_async.cuh"
#include "gpu/device/mma.cuh"
#include "gpu/device/pdl.cuh"
#include "gpu/vlut/table_s8.cuh"
#include "gpu/vlut/table_f16_skinny.h"

#define THREADS HZI_VLUT_S8_THREADS
#define WARPS (THREADS / 32)
#define ROWS HZI_VLUT_TABLE_F16_ROWS

/* Scales: none; one per piece or several pieces; one per block or several blocks of a piece */
enum { UNSCALED, BY_PIECE, BY_BLOCK };

/* Constants of a lane */
struct lane_constants {
	uint32_t leader_slot, scale_slot;	/* see leader_slot(); of leaders, of scales */
	uint32_t last_t;
	const uint32_t *scales;		/* this lane's copies, 32 words apart */
	uint32_t minus_offset[4];	/* to add to pair_f16(), by coordinates */
};

/* Bytes 2 i and 2 i + 1 as f16 numbers, plus 1024 */
HZ_DEVICE uint32_t pair_f16(const uint32_t *bytes, int i)
{
	return __byte_perm(bytes[i / 2], 0x64646464, i % 2 ? 0x4342 : 0x4140);
}

/* The scale of byte b of T, from a table with one copy per lane */
HZ_DEVICE uint32_t scale_of_t(const uint32_t (&t)[2], int b, const lane_constants &l)
{
	return l.scales[min(__byte_perm(t[b / 4], 0, 0x4440 | b % 4), l.last_t) * 32];
}

/* Base of codes whose table has a fixed size, TABLE bytes; scales follow it if OWN. */
template <int TABLE, bool OWN>
struct codes_of_table {
	static constexpr bool OWN_SCALES = OWN;

	static __device__ __forceinline__ int bytes(const hzi_vlut_table_f16_skinny &)
	{
		return TABLE + (OWN ? HZI_VLUT_S8_SCALES_BYTES : 0);
	}

	static __device__ __forceinline__ uint32_t *scales(const hzi_vlut_table_f16_skinny &)
	{
		return (uint32_t *)(leader_memory() + TABLE);
	}

	static __device__ __forceinline__ uint32_t scale(const uint32_t (&t)[2], int b,
							 const lane_constants &l)
	{
		return scale_of_t(t, b, l);
	}
};

/* COLUMNS: columns of x in shared memory, 1 or 8; POINTS: the class that describes the codes */
template <class POINTS, int COLUMNS>
struct table_f16_skinny_block {
	static constexpr int AHEAD = POINTS::AHEAD, R = ROWS / 8, DIM = POINTS::DIM,
		VALUES = POINTS::VALUES, STEPS = VALUES / 8, CHUNK = 4 * VALUES,
		BLOCKS = VALUES / DIM, SCALES = POINTS::SCALES;

	const hzi_vlut_table_f16_skinny &p;
	const int tid, lane, warp, g, t;
	uint4 *x;			/* [8 values of 4 lanes][column][lane] of 8 values */
	float *partials;			/* [tile][warp][row][column] */

	__device__ __forceinline__ explicit table_f16_skinny_block(
		const hzi_vlut_table_f16_skinny &p_)
		: p(p_), tid(threadIdx.x), lane(tid % 32), warp(tid / 32), g(lane / 4), t(lane % 4)
	{
		x = (uint4 *)(leader_memory() + POINTS::bytes(p));
		partials = (float *)(x + p.chunks * (CHUNK / 8) * COLUMNS);
	}

	/* Slot of 8 values of a column: unit STEPS lane + j of a chunk */
	__device__ __forceinline__ uint4 *x_slot(int unit, int column) const
	{
		const int c = unit / (4 * STEPS), at = unit % (4 * STEPS);

		return x + ((c * STEPS + at % STEPS) * COLUMNS + column) * 4 + at / STEPS;
	}

	/* The bytes of T of a piece, as stored */
	__device__ __forceinline__ uint2 load_t(const uint8_t *row, int piece) const
	{
		if (SCALES == BY_PIECE)
			return make_uint2(row[piece >> -p.t_shift], 0);
		switch (p.t_shift) {
		case 3:
			return __ldg((const uint2 *)row + piece);
		case 2:
			return make_uint2(__ldg((const uint32_t *)row + piece), 0);
		case 1:
			return make_uint2(__ldg((const uint16_t *)row + piece), 0);
		default:
			return make_uint2(__ldg(row + (piece >> -p.t_shift)), 0);
		}
	}

	/* Which of these bytes is that of block b */
	__device__ __forceinline__ uint32_t byte_of(int b) const
	{
		return p.t_shift <= 0 ? 0 : (b << p.t_shift) / BLOCKS;
	}

	/* Values 8 j .. 8 j + 7 of a piece as f16, from get() */
	__device__ __forceinline__ void points(uint32_t (&v)[4], const uint32_t (&codes)[4], int j,
					       const lane_constants &l) const
	{
#pragma unroll
		for (int i = 0; i < 8 / DIM; i++) {
			uint32_t u[DIM / 4];

			POINTS::get(u, codes, 8 / DIM * j + i, l, p);
#pragma unroll
			for (int h = 0; h < DIM / 2; h++)
				v[i * DIM / 2 + h] = add_f16x2(pair_f16(u, h), l.minus_offset[h]);
		}
	}

	/*
	 * The same for any codes, times s, the scale of the piece, or times the scales of its
	 * blocks
	 */
	__device__ __forceinline__ void values(uint32_t (&v)[4], const uint32_t (&codes)[4], int j,
					       uint32_t s, const uint32_t (&ts)[2],
					       const lane_constants &l) const
	{
		if constexpr (POINTS::AS_BYTES)
			points(v, codes, j, l);
		else
			POINTS::values8(v, codes, j, l, p);
#pragma unroll
		for (int i = 0; i < 4 && SCALES != UNSCALED; i++) {
			if constexpr (SCALES == BY_BLOCK) {
				if (i % (DIM / 2) == 0)
					s = POINTS::scale(ts, (8 * j + 2 * i) / DIM, l);
			}
			v[i] = mul_f16x2(v[i], s);
		}
	}

	__device__ __forceinline__ void load_x(void) const
	{
		const int units = p.chunks * (CHUNK / 8);
		const uint16_t *src = (const uint16_t *)p.x;

		if (COLUMNS == 8 && p.x_row_major) {
			/* Rows of 8 columns: transposes 8 x 8 values */
			for (int i = tid; i < units; i += THREADS) {
				uint32_t row[8][4];

#pragma unroll
				for (int e = 0; e < 8; e++) {
					uint4 v = make_uint4(0, 0, 0, 0);

					if (8 * i + e < p.k)
						v = *(const uint4 *)(src + (8 * i + e) * p.x_k);
					row[e][0] = v.x;
					row[e][1] = v.y;
					row[e][2] = v.z;
					row[e][3] = v.w;
				}
#pragma unroll
				for (int c = 0; c < 8; c++) {
					const uint32_t pick = c % 2 ? 0x7632 : 0x5410;

					*x_slot(i, c) = make_uint4(
						__byte_perm(row[0][c / 2], row[1][c / 2], pick),
						__byte_perm(row[2][c / 2], row[3][c / 2], pick),
						__byte_perm(row[4][c / 2], row[5][c / 2], pick),
						__byte_perm(row[6][c / 2], row[7][c / 2], pick));
				}
			}
			return;
		}
		for (int i = tid; i < units * COLUMNS; i += THREADS) {
			const int unit = i % units, c = i / units, k = 8 * unit;
			const uint16_t *at = src + c * p.x_b + k * p.x_k;
			uint4 v = make_uint4(0, 0, 0, 0);

			if (c >= p.batch) {
				*x_slot(unit, c) = v;
				continue;
			}
			if (p.x_k == 1 && k + 8 <= p.k && (uintptr_t)at % 16 == 0) {
				v = *(const uint4 *)at;
			} else {
				uint32_t e[8];

#pragma unroll
				for (int j = 0; j < 8; j++)
					e[j] = k + j < p.k ? at[j * p.x_k] : 0;
				v = make_uint4(e[0] | e[1] << 16, e[2] | e[3] << 16,
					       e[4] | e[5] << 16, e[6] | e[7] << 16);
			}
			*x_slot(unit, c) = v;
		}
	}

	__device__ __forceinline__ lane_constants make_constants(void) const
	{
		lane_constants l = {leader_slot<(DIM + 3) / 4>(lane), leader_slot<1>(lane),
				    (uint32_t)p.scales - 1, POINTS::scales(p) + lane, {}};

#pragma unroll
		for (int i = 0; i < DIM / 2 && POINTS::AS_BYTES; i++)
			/*
			 * -2176 = -(1024 + 1024 + 128): both pair_f16() add 1024, and bytes are p -
			 * o + 128
			 */
			l.minus_offset[i] = add_f16x2(pair_f16(p.first, i), 0xe840e840);
		return l;
	}

	__device__ __forceinline__ void run(void)
	{
		const lane_constants own = make_constants();
		const int all = (p.rows + ROWS - 1) / ROWS;
		const int tiles = (all - (int)blockIdx.x + (int)gridDim.x - 1) / (int)gridDim.x;
		uint4 ring[AHEAD][R];
		uint2 ring_t[AHEAD][R];
		uint32_t pick[2] = {};
		float acc[R / 2][4] = {};
		int lc = warp, lt = 0, cc = warp, ct = 0;

		/* Chunks of all tiles in order: this warp has every 16th. */
		auto load = [&](int d) {
			if (lt < tiles) {
				const int r0 = ((int)blockIdx.x + lt * (int)gridDim.x) * ROWS + g;
				const int at = lc * HZI_VLUT_S8_CHUNK_BYTES + t * 16;

#pragma unroll
				for (int r = 0; r < R; r++) {
					const int64_t row = min(r0 + 8 * r, p.rows - 1);
					const bool in = at < p.row_bytes;

					ring[d][r] = in ? load_codes(p.codes + row * p.row + at) :
						     make_uint4(0, 0, 0, 0);
					if (SCALES != UNSCALED)
						ring_t[d][r] = in ? load_t(p.t + row * p.t_row,
									   4 * lc + t) :
							       make_uint2(0, 0);
				}
			}
			for (lc += WARPS; lc >= p.chunks; lc -= p.chunks)
				lt++;
		};
		auto flush = [&](int slot) {
#pragma unroll
			for (int m = 0; m < R / 2; m++) {
				float *dst = partials +
					     ((slot * WARPS + warp) * ROWS + m * 16 + g) * COLUMNS;

				if (COLUMNS == 8) {
					*(float2 *)(dst + 2 * t) =
						make_float2(acc[m][0], acc[m][1]);
					*(float2 *)(dst + 64 + 2 * t) =
						make_float2(acc[m][2], acc[m][3]);
				} else if (t == 0) {
					dst[0] = acc[m][0];
					dst[8] = acc[m][2];
				}
#pragma unroll
				for (int i = 0; i < 4; i++)
					acc[m][i] = 0;
			}
		};
		const uint4 *xl = x + (COLUMNS == 8 ? g * 4 : 0) + t;

		for (; lc >= p.chunks; lc -= p.chunks)
			lt++;
		for (int d = 0, c = lc, tile = lt; d < AHEAD && tile < tiles; d++) {
			const int r0 = ((int)blockIdx.x + tile * (int)gridDim.x) * ROWS + g;
			const int at = c * HZI_VLUT_S8_CHUNK_BYTES + t * 16;

#pragma unroll
			for (int r = 0; r < R; r++)
				if (at < p.row_bytes)
					prefetch_l2(p.codes + min(r0 + 8 * r, p.rows - 1) * p.row +
						    at);
			for (c += WARPS; c >= p.chunks; c -= p.chunks)
				tile++;
		}
		POINTS::fill(p);
		if (POINTS::OWN_SCALES) {
			for (int i = tid; i < p.scales * 32; i += THREADS)
				POINTS::scales(p)[i] = p.scale_of[i / 32];
		}
		if (SCALES == BY_BLOCK) {
#pragma unroll
			for (int b = 0; b < BLOCKS; b++)
				pick[b / 4] |= byte_of(b) << b % 4 * 4;
		}
		pdl_wait();
		pdl_launch_dependents();
#pragma unroll
		for (int d = 0; d < AHEAD; d++)
			load(d);
		load_x();
		__syncthreads();
		for (int first = 0; first < tiles; first += p.pass_tiles) {
			const int end = min(first + p.pass_tiles, tiles);

			for (; cc >= p.chunks && ct < end; cc -= p.chunks)
				flush(ct++ - first);
			while (ct < end) {
#pragma unroll
				for (int d = 0; d < AHEAD; d++) {
					uint32_t w[R][4], s[R] = {}, ts[R][2];

					if (ct >= end)
						break;
#pragma unroll
					for (int r = 0; r < R; r++) {
						w[r][0] = ring[d][r].x;
						w[r][1] = ring[d][r].y;
						w[r][2] = ring[d][r].z;
						w[r][3] = ring[d][r].w;
						if (SCALES == BY_PIECE)
							s[r] = own.scales[min(ring_t[d][r].x,
									      own.last_t) * 32];
						if (SCALES == BY_BLOCK) {
							ts[r][0] = __byte_perm(ring_t[d][r].x,
									       ring_t[d][r].y,
									       pick[0]);
							ts[r][1] = __byte_perm(ring_t[d][r].x,
									       ring_t[d][r].y,
									       pick[1]);
						}
					}
					load(d);
#pragma unroll
					for (int j = 0; j < STEPS; j++) {
						const uint4 b = xl[(cc * STEPS + j) * COLUMNS * 4];

#pragma unroll
						for (int m = 0; m < R / 2; m++) {
							uint32_t u[4], v[4];

							values(u, w[2 * m], j, s[2 * m], ts[2 * m],
							       own);
							values(v, w[2 * m + 1], j, s[2 * m + 1],
							       ts[2 * m + 1], own);
							mma_m16n8k16<HZ_F16>(acc[m], u[0], v[0],
									     u[1], v[1], b.x, b.y);
							mma_m16n8k16<HZ_F16>(acc[m], u[2], v[2],
									     u[3], v[3], b.z, b.w);
						}
					}
					for (cc += WARPS; cc >= p.chunks && ct < end;
					     cc -= p.chunks)
						flush(ct++ - first);
				}
			}
			finish(first, end);
		}
	}

	__device__ __forceinline__ void finish(int first, int end) const
	{
		const int width = ROWS * COLUMNS;

		__syncthreads();
		for (int i = tid; i < (end - first) * width; i += THREADS) {
			const float *at = partials + i / width * WARPS * width + i % width;
			const int64_t row = (int64_t)((int)blockIdx.x +
						      (first + i / width) * (int)gridDim.x) *
						    ROWS + i % width / COLUMNS;
			const int b = i % COLUMNS;
			float s = 0;

#pragma unroll
			for (int w = 0; w < WARPS; w++)
				s += at[w * width];
			if (row < p.rows && b < p.batch)
				store_scaled(p, row, b, s);
		}
		__syncthreads();
	}
};

#define KERNEL(name, columns, ...) \
	extern "C" __global__ void __launch_bounds__(THREADS, 1) \
	name(const __grid_constant__ hzi_vlut_table_f16_skinny p) \
	{ \
		table_f16_skinny_block<__VA_ARGS__, columns>(p).run(); \
	}
#define KERNELS(name, ...) \
	KERNEL(name##_1, 1, __VA_ARGS__) \
	KERNEL(name##_8, 8, __VA_ARGS__)

#endif
