/*
 * d4_f16_skinny.cu - skinny GEMM of packed D4 and up to 8 columns of f16, on f16 tensor cores
 *
 * SPDX-License-Identifier: BSD-2-Clause
 *
 * Codes are decoded by bitwise logic (d4_bitfield.cuh) to f16, and x is used without conversion.
 * Warps split k: a warp has some of the chunks of k of all row tiles of the block, and copies the
 * part of x that it needs along with its codes; it reads that from shared memory once for several
 * tiles. No warp waits for another until the accumulators are added, in a fixed order.
 */
#include "gpu/device/cp_async.cuh"
#include "gpu/device/mma.cuh"
#include "gpu/device/pdl.cuh"
#include "gpu/device/shared.cuh"
#include "gpu/vlut/table_s8.cuh"
#include "gpu/vlut/d4_bitfield.cuh"
#include "gpu/vlut/d4_f16_skinny.h"

#define THREADS HZI_VLUT_D4_SKINNY_THREADS
#define WARPS (THREADS / 32)
#define ROWS HZI_VLUT_D4_ROWS
#define CHUNK HZI_VLUT_D4_CHUNK
#define BYTES HZI_VLUT_D4_BYTES
#define COLUMNS HZI_VLUT_D4_SKINNY_COLUMNS
#define X_BYTES HZI_VLUT_D4_SKINNY_X_BYTES

/*
 * COLUMN_MAJOR: x is contiguous columns, else rows of 8. TILES: row tiles at a time, at most.
 * STAGES: chunks of a warp in shared memory or in flight
 */
template <bool COLUMN_MAJOR, int TILES, int STAGES>
struct d4_f16_skinny_block {
	static constexpr int STAGE = X_BYTES + TILES * BYTES, RING = STAGES * STAGE;
	static_assert(RING >= TILES * ROWS * COLUMNS * 4, "sums lie where codes were");

	const hzi_vlut_d4_f16_skinny &p;
	const int tid, lane, warp, g, t;
	int tile0, tiles;		/* of this block */
	int begin, end;			/* chunks of this warp */
	uint8_t *memory;
	uint32_t ring;			/* of this warp */

	__device__ __forceinline__ explicit d4_f16_skinny_block(const hzi_vlut_d4_f16_skinny &p_)
		: p(p_), tid(threadIdx.x), lane(tid % 32), warp(tid / 32), g(lane / 4), t(lane % 4)
	{
		extern __shared__ __align__(128) uint8_t shared[];
		const int share = blockIdx.x;

		memory = shared;
		tile0 = share * p.tiles_each + min(share, p.tiles_more);
		tiles = p.tiles_each + (share < p.tiles_more);
		begin = p.chunks * warp / WARPS;
		end = p.chunks * (warp + 1) / WARPS;
		ring = shared_address(memory) + warp * RING;
	}

	/*
	 * Copies x of a chunk, as eight groups of eight 16-byte pieces: a group is eight rows of 8
	 * columns, or one column. Piece m of group r goes to slot m ^ r of the group, against bank
	 * conflicts.
	 */
	__device__ __forceinline__ void copy_x(int c, uint32_t dst) const
	{
#pragma unroll
		for (int i = 0; i < X_BYTES / 512; i++) {
			const int piece = i * 32 + lane, row8 = piece / 8;
			const uint16_t *src = p.x;
			int bytes;

			if (COLUMN_MAJOR) {
				const int k = c * CHUNK + piece % 8 * 8;

				bytes = row8 < p.batch ? min(max(p.k - k, 0) * 2, 16) : 0;
				src += bytes ? row8 * p.x_step + k : 0;
			} else {
				const int k = c * CHUNK + piece;

				bytes = k < p.k ? 16 : 0;
				src += bytes ? k * p.x_step : 0;
			}
			cp_async_zfill(dst + (piece ^ (row8 & 7)) * 16, src, bytes);
		}
	}

	/*
	 * B operands of a chunk. Registers 2 i and 2 i + 1 are for coordinate i: of each 16 values,
	 * i and 8 + i; then 4 + i and 12 + i.
	 */
	__device__ __forceinline__ void load_x(uint32_t (&b)[8], uint32_t at) const
	{
		if (COLUMN_MAJOR) {
			uint32_t v[8];

			shared_load(v, at + (g * 8 + (2 * t ^ g)) * 16);
			shared_load(v + 4, at + (g * 8 + ((2 * t + 1) ^ g)) * 16);
#pragma unroll
			for (int i = 0; i < 4; i++) {
				const uint32_t pick = i % 2 ? 0x7632 : 0x5410;

				b[2 * i] = __byte_perm(v[i / 2], v[4 + i / 2], pick);
				b[2 * i + 1] = __byte_perm(v[2 + i / 2], v[6 + i / 2], pick);
			}
		} else {
			/* Rows m = 0 4 1 5, then 2 6 3 7, of groups r */
			const int r = lane & 7, m = lane >> 4 | (lane >> 3 & 1) << 2;

			ldmatrix_x4_trans(b, at + (r * 8 + (m ^ r)) * 16);
			ldmatrix_x4_trans(b + 4, at + (r * 8 + ((m + 2) ^ r)) * 16);
		}
	}

	__device__ __forceinline__ void run(void) const
	{
		const int row_bytes = p.chunks * BYTES,
			  prefetch_bytes = min((end - begin) * BYTES, p.ahead);
		const uint8_t *codes = p.packed + (int64_t)tile0 * row_bytes + begin * BYTES;

		for (int i = lane * 128; i < prefetch_bytes; i += 32 * 128)
			for (int m = 0; m < tiles; m++)
				prefetch_l2(codes + (int64_t)m * row_bytes + i);
		codes += lane * 16;
		pdl_wait();
		for (int first = 0; first < tiles; first += p.group) {
			run_group(codes, row_bytes, first, min(p.group, tiles - first));
			codes += (int64_t)p.group * row_bytes;
		}
	}

	__device__ __forceinline__ void run_group(const uint8_t *codes, int row_bytes, int first,
						  int n) const
	{
		float acc[TILES][4] = {}, sub[4] = {};
		uint32_t slot = ring;

#pragma unroll
		for (int i = 0; i < STAGES; i++)
			if (begin + i < end)
				copy_x(begin + i, ring + i * STAGE);
#pragma unroll
		for (int i = 0; i < STAGES; i++) {
#pragma unroll
			for (int m = 0; m < TILES; m++) {
				if (begin + i < end && m < n)
					cp_async(ring + i * STAGE + X_BYTES + m * BYTES + lane * 16,
						 codes + m * row_bytes + i * BYTES);
				cp_async_commit();
			}
		}
		pdl_launch_dependents();
		codes += STAGES * BYTES;
#pragma unroll 1
		for (int c = begin; c < end; c++) {
			const bool more = c + STAGES < end;
			uint32_t b[8];

			cp_async_wait<STAGES * TILES - 1>();
			__syncwarp();
			load_x(b, slot);
			if (p.has_offset) {
#pragma unroll
				for (int i = 0; i < 4; i++) {
					const uint32_t o = p.offset[i], a[4] = {o, o, o, o};

					mma_m16n8k16<HZ_F16>(sub, a, b[2 * i], b[2 * i + 1]);
				}
			}
			__syncwarp();
			if (more)
				copy_x(c + STAGES, slot);
#pragma unroll
			for (int m = 0; m < TILES; m++) {
				const uint32_t at = slot + X_BYTES + m * BYTES + lane * 16;

				cp_async_wait<STAGES * TILES - 1>();
				if (m < n) {
					uint32_t w[4], s[4];

					shared_load(w, at);
					d4_signs(w, s);
					if (more)
						cp_async(at, codes + m * row_bytes);
#pragma unroll
					for (int i = 0; i < 4; i++) {
						uint32_t a[4];

						d4_points_f16_both(a, w[i], s[i]);
						mma_m16n8k16<HZ_F16>(acc[m], a, b[2 * i],
								     b[2 * i + 1]);
					}
				}
				cp_async_commit();
			}
			codes += BYTES;
			slot = slot == ring + (STAGES - 1) * STAGE ? ring : slot + STAGE;
		}
		finish(acc, sub, first, n);
		if (first + n < tiles)
			__syncthreads();
	}

	/*
	 * Adds the warps' accumulators, which replace their codes in shared memory:
	 * [tile][row][column].
	 */
	__device__ __forceinline__ void finish(const float (&acc)[TILES][4], const float (&sub)[4],
					       int first, int n) const
	{
		float *const partials = (float *)(memory + warp * RING);

		cp_async_wait<0>();
		__syncwarp();
#pragma unroll
		for (int m = 0; m < TILES; m++) {
#pragma unroll
			for (int h = 0; h < 2; h++) {
				float v[2];

				/* see d4_points_f16_both() */
#pragma unroll
				for (int e = 0; e < 2; e++)
					v[e] = h ? acc[m][2 + e] * 0x1p20f :
						   (acc[m][e] - acc[m][2 + e]) * 0x1p24f;
				if (m < n)
					*(float2 *)(partials + (m * ROWS + h * 8 + g) * COLUMNS +
						    2 * t) = make_float2(v[0] - sub[2 * h],
									 v[1] - sub[2 * h + 1]);
			}
		}
		__syncthreads();
		for (int i = tid; i < n * ROWS * COLUMNS; i += THREADS) {
			const int64_t row = (int64_t)(tile0 + first) * ROWS + i / COLUMNS;
			const int b = i % COLUMNS;
			float s = 0;

#pragma unroll
			for (int w = 0; w < WARPS; w++)
				s += ((const float *)(memory + w * RING))[i];
			if (row < p.rows && b < p.batch)
				store_scaled(p, row, b, s);
		}
	}
};

/* Two blocks fit an SM, the second one of the PDL successor; with 6 tiles only one. */
#define KERNEL(name, column_major, tiles, stages) \
	extern "C" __global__ void __launch_bounds__(THREADS, tiles > 4 ? 1 : 2) \
	name(const __grid_constant__ hzi_vlut_d4_f16_skinny p) \
	{ \
		d4_f16_skinny_block<column_major, tiles, stages>(p).run(); \
	}

KERNEL(vlut_d4_f16_skinny_row_major_2, false, 2, 3)
KERNEL(vlut_d4_f16_skinny_row_major_4, false, 4, 2)
KERNEL(vlut_d4_f16_skinny_row_major_6, false, 6, 2)
KERNEL(vlut_d4_f16_skinny_column_major_2, true, 2, 3)
KERNEL(vlut_d4_f16_skinny_column_major_4, true, 4, 2)
KERNEL(vlut_d4_f16_skinny_column_major_6, true, 6, 2)
