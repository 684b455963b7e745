/*
 * vlut_half.cu - products of lattice codes and few vectors of f16, on the matrix units for f16
 *
 * SPDX-License-Identifier: BSD-2-Clause
 *
 * For codes of 4 bits a value. Points become f16 in registers, exactly; scales of groups round them
 * once. x lies in shared memory whole. Each warp streams codes of its own chunks of k, 32 rows at a
 * time; sums of warps are added in their order.
 */
#include "gpu/grid.cuh"
#include "gpu/vlut_bytes.cuh"
#include "gpu/vlut_half.h"

#define THREADS HZI_VMMA_THREADS
#define WARPS (THREADS / 32)
#define ROWS HZI_VHALF_ROWS
#define CHUNK HZI_VHALF_CHUNK
#define AHEAD 2			/* chunks under way per warp */

/* 16 x 8 += 16 x 16 times 16 x 8 */
HZ_DEVICE void mma_f16(float (&c)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3,
		       uint32_t b0, uint32_t b1)
{
	asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, "
		     "{%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
		     : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
		     : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

/* COLUMNS: of x in shared memory, 1 or 8 */
template <int WORDS, int COLUMNS, bool SCALED>
struct vlut_half_block {
	static constexpr int R = ROWS / 8;

	const hzi_vlut_half &p;
	const int tid, lane, warp, g, t;
	uint8_t *memory;
	uint4 *x;			/* [8 values of 4 lanes][column][lane] of 8 values */
	float *sums;			/* [tile][warp][row][column] */

	__device__ __forceinline__ explicit vlut_half_block(const hzi_vlut_half &p_)
		: p(p_), tid(threadIdx.x), lane(tid % 32), warp(tid / 32), g(lane / 4), t(lane % 4),
		  memory(leader_memory())
	{
		x = (uint4 *)(memory + HZI_VMMA_TABLE_BYTES + (SCALED ? HZI_VMMA_SCALES_BYTES : 0));
		sums = (float *)(x + p.chunks * (CHUNK / 8) * COLUMNS);
	}

	__device__ __forceinline__ const uint32_t *scales(void) const
	{
		return (const uint32_t *)(memory + HZI_VMMA_TABLE_BYTES);
	}

	/* Where 8 values of a column go: unit 4 lane + j of a chunk */
	__device__ __forceinline__ uint4 *place(int unit, int column) const
	{
		const int at = unit % 16;

		return x + ((unit / 16 * 4 + at % 4) * COLUMNS + column) * 4 + at / 4;
	}

	__device__ __forceinline__ void load_x(void) const
	{
		const int units = p.chunks * (CHUNK / 8);
		const uint16_t *from = (const uint16_t *)p.x;

		if (COLUMNS == 8 && p.rows_of_x) {
			/* Rows of 8 columns: 8 by 8 of them turned */
			for (int i = tid; i < units; i += THREADS) {
				uint32_t row[8][4];

#pragma unroll
				for (int e = 0; e < 8; e++) {
					uint4 v = make_uint4(0, 0, 0, 0);

					if (8 * i + e < p.k)
						v = *(const uint4 *)(from + (8 * i + e) * p.x_k);
					row[e][0] = v.x;
					row[e][1] = v.y;
					row[e][2] = v.z;
					row[e][3] = v.w;
				}
#pragma unroll
				for (int c = 0; c < 8; c++) {
					const uint32_t pick = c % 2 ? 0x7632 : 0x5410;

					*place(i, c) = make_uint4(
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
			const uint16_t *at = from + c * p.x_b + k * p.x_k;
			uint4 v = make_uint4(0, 0, 0, 0);

			if (c >= p.batch) {
				*place(unit, c) = v;
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
			*place(unit, c) = v;
		}
	}

	__device__ __forceinline__ void run(void)
	{
		const uint32_t pos = leader_place<WORDS>(lane), last_t = (uint32_t)p.scales - 1;
		const int all = (p.rows + ROWS - 1) / ROWS;
		const int tiles = (all - (int)blockIdx.x + (int)gridDim.x - 1) / (int)gridDim.x;
		uint4 ring[AHEAD][R];
		uint32_t ring_t[AHEAD][R];
		float acc[R / 2][4] = {};
		int lc = warp, lt = 0, cc = warp, ct = 0;

		/* Chunks in their order over the tiles; this warp has every 16th. */
		auto load = [&](int d) {
			if (lt < tiles) {
				const int r0 = ((int)blockIdx.x + lt * (int)gridDim.x) * ROWS + g;
				const int at = lc * HZI_VMMA_CHUNK_BYTES + t * 16;

#pragma unroll
				for (int r = 0; r < R; r++) {
					const int64_t row = min(r0 + 8 * r, p.rows - 1);
					const bool in = at < p.row_bytes;

					ring[d][r] = in ? load_codes(p.codes + row * p.row + at) :
						     make_uint4(0, 0, 0, 0);
					if (SCALED)
						ring_t[d][r] = in ? p.t[row * p.t_row +
									(4 * lc + t >>
									 p.group_shift)]
								  : 0;
				}
			}
			for (lc += WARPS; lc >= p.chunks; lc -= p.chunks)
				lt++;
		};
		auto flush = [&](int slot) {
#pragma unroll
			for (int m = 0; m < R / 2; m++) {
				float *to = sums + ((slot * WARPS + warp) * ROWS + m * 16 + g) *
					    COLUMNS;

				if (COLUMNS == 8) {
					*(float2 *)(to + 2 * t) = make_float2(acc[m][0], acc[m][1]);
					*(float2 *)(to + 64 + 2 * t) =
						make_float2(acc[m][2], acc[m][3]);
				} else if (t == 0) {
					to[0] = acc[m][0];
					to[8] = acc[m][2];
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
			const int at = c * HZI_VMMA_CHUNK_BYTES + t * 16;

#pragma unroll
			for (int r = 0; r < R; r++)
				if (at < p.row_bytes)
					prefetch(p.codes + min(r0 + 8 * r, p.rows - 1) * p.row +
						 at);
			for (c += WARPS; c >= p.chunks; c -= p.chunks)
				tile++;
		}
		fill_leaders<WORDS, THREADS>(p.leaders, p.first);
		if (SCALED) {
			for (int i = tid; i < p.scales * 32; i += THREADS)
				((uint32_t *)scales())[i] = p.scale_of[i / 32];
		}
		grid_wait();
		grid_next();
#pragma unroll
		for (int d = 0; d < AHEAD; d++)
			load(d);
		load_x();
		__syncthreads();
		for (int first = 0; first < tiles; first += p.round) {
			const int end = min(first + p.round, tiles);

			for (; cc >= p.chunks && ct < end; cc -= p.chunks)
				flush(ct++ - first);
			while (ct < end) {
#pragma unroll
				for (int d = 0; d < AHEAD; d++) {
					uint32_t w[R][4], s[R] = {};

					if (ct >= end)
						break;
#pragma unroll
					for (int r = 0; r < R; r++) {
						w[r][0] = ring[d][r].x;
						w[r][1] = ring[d][r].y;
						w[r][2] = ring[d][r].z;
						w[r][3] = ring[d][r].w;
						if (SCALED)
							s[r] = scales()[min(ring_t[d][r], last_t) *
									32 + lane];
					}
					load(d);
#pragma unroll
					for (int j = 0; j < 4; j++) {
						const uint4 b = xl[(cc * 4 + j) * COLUMNS * 4];

#pragma unroll
						for (int m = 0; m < R / 2; m++) {
							uint32_t u[4], v[4];

							points_f16<WORDS, SCALED>(u, w[2 * m], j,
										  pos, p.q,
										  s[2 * m]);
							points_f16<WORDS, SCALED>(v, w[2 * m + 1],
										  j, pos, p.q,
										  s[2 * m + 1]);
							mma_f16(acc[m], u[0], v[0], u[1], v[1], b.x,
								b.y);
							mma_f16(acc[m], u[2], v[2], u[3], v[3], b.z,
								b.w);
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
			const float *at = sums + i / width * WARPS * width + i % width;
			const int64_t row = (int64_t)((int)blockIdx.x +
						      (first + i / width) * (int)gridDim.x) *
						    ROWS + i % width / COLUMNS;
			const int b = i % COLUMNS;
			float s = 0;

#pragma unroll
			for (int w = 0; w < WARPS; w++)
				s += at[w * width];
			if (row < p.rows && b < p.batch)
				store_sum(p, row, b, s);
		}
		__syncthreads();
	}
};

#define KERNEL(name, words, columns, scaled) \
	extern "C" __global__ void __launch_bounds__(THREADS, 1) \
	name(const __grid_constant__ hzi_vlut_half p) \
	{ \
		vlut_half_block<words, columns, scaled>(p).run(); \
	}

KERNEL(vlut_half_d4_1, 1, 1, false)
KERNEL(vlut_half_d4_8, 1, 8, false)
KERNEL(vlut_half_d4_scaled_1, 1, 1, true)
KERNEL(vlut_half_d4_scaled_8, 1, 8, true)
KERNEL(vlut_half_d8_1, 2, 1, false)
KERNEL(vlut_half_d8_8, 2, 8, false)
KERNEL(vlut_half_d8_scaled_1, 2, 1, true)
KERNEL(vlut_half_d8_scaled_8, 2, 8, true)
