/*
 * coef_bwd_wgmma.cu - gradients of 5 to 8 bf16 streams and of phi by TMA and wgmma, sm_90a
 *
 * SPDX-License-Identifier: BSD-2-Clause
 *
 * draw and phi are two terms of bf16 each. Single threads load by TMA for two warpgroups that
 * multiply.
 */
#include "gpu/mhc/coef.cuh"
#include "gpu/mhc/coef_bwd_wgmma.h"
#include "gpu/device/pdl.cuh"

#define TOKENS HZI_MHC_BWD_WGMMA_TOKENS
#define STRIP HZI_MHC_BWD_WGMMA_STRIP
#define TERMS HZI_MHC_BWD_WGMMA_TERMS
#define ROWS_OF_PHI (TERMS / 2)
#define RECORD HZI_MHC_BWD_WGMMA_RECORD

/* Only sm_90a has this code. */
#if !defined(__CUDA_ARCH__) || defined(__CUDA_ARCH_FEAT_SM90_ALL)
#include "gpu/device/shared.cuh"
#include "gpu/device/tma.cuh"
#include "gpu/device/wgmma_f16.cuh"

/* 64 of the columns of draw of some tokens, with the 128-byte swizzle */
#define DRAW_PARTS 3
#define DRAW_PART_BYTES (TOKENS * 128)

HZ_DEVICE void load_draw(uint32_t dst, const hzi_tensor_map &draw, int first, uint32_t full)
{
#pragma unroll
	for (int part = 0; part < DRAW_PARTS; part++)
		tma_load_3d(dst + part * DRAW_PART_BYTES, draw, part * 128, first, 0, full);
}

/* ---- Gradients of streams -------------------------------------------------------------------- */

#define PIECES 14			/* of x, dy and du in shared memory */
#define PIECE_BYTES (TOKENS * STRIP * 2)
#define PHI_PART_BYTES (TERMS * 128)
#define GROUPS 2			/* warpgroups; each has every other tile */

struct dx_memory {
	uint8_t phi[HZI_MHC_STREAMS / 2][PHI_PART_BYTES];
	uint8_t draw[GROUPS][DRAW_PARTS * DRAW_PART_BYTES];
	float records[GROUPS][TOKENS * RECORD];
	uint8_t pieces[PIECES][PIECE_BYTES];
	uint64_t phi_full, tile_full[GROUPS], tile_empty[GROUPS], full[PIECES], empty[PIECES];
};

static_assert(sizeof(dx_memory) + 1024 <= HZI_MHC_BWD_WGMMA_BYTES, "shared memory");

/* Tiles of tokens of a block, the last one first: its x and dy are still in L2. */
struct tile_range {
	int begin, end;

	__device__ __forceinline__ int tile(int number) const
	{
		return end - 1 - number;
	}
};

HZ_DEVICE tile_range tiles_of(const hzi_mhc_dx_wgmma &p)
{
	const int64_t all = (p.tokens + TOKENS - 1) / TOKENS;

	return {(int)(all * blockIdx.y / p.splits), (int)(all * (blockIdx.y + 1) / p.splits)};
}

/* phi once, then draw and coefficients of each tile; one thread */
HZ_DEVICE void load_tiles(const hzi_mhc_dx_wgmma &p, tile_range r, dx_memory &m)
{
	const uint32_t phi_full = shared_address(&m.phi_full);

	mbarrier_expect_tx(phi_full, sizeof(m.phi));
#pragma unroll
	for (int part = 0; part < HZI_MHC_STREAMS / 2; part++)
		tma_load_3d(shared_address(m.phi[part]), p.phi, 0,
			    (blockIdx.x * (HZI_MHC_STREAMS / 2) + part) * TERMS, 0, phi_full);
	for (int number = 0; number < r.end - r.begin; number++) {
		const int slot = number % GROUPS;
		const int64_t first = (int64_t)r.tile(number) * TOKENS;
		const int count = p.tokens - first < TOKENS ? (int)(p.tokens - first) : TOKENS;
		const uint32_t full = shared_address(&m.tile_full[slot]);

		mbarrier_wait(shared_address(&m.tile_empty[slot]), number / GROUPS % 2 ^ 1);
		mbarrier_expect_tx(full, sizeof(m.draw[0]) + count * RECORD * 4);
		load_draw(shared_address(m.draw[slot]), p.draw, (int)first, full);
		bulk_copy(shared_address(m.records[slot]), p.records + first * RECORD,
			  count * RECORD * 4, full);
	}
}

/*
 * dy, du and x of each tile, a stream after another; one thread. Both blocks of a cluster free a
 * piece before either loads the next one, so that they read adjacent bytes at the same time.
 */
HZ_DEVICE void load_pieces(const hzi_mhc_dx_wgmma &p, tile_range r, dx_memory &m)
{
	const int before_x = p.dy_streams + p.du_streams, count = before_x + p.n;
	ring_position<PIECES> now;

	for (int number = 0; number < r.end - r.begin; number++) {
		for (int k = 0; k < count; k++, now.next()) {
			const uint32_t full = shared_address(&m.full[now.at]);
			const hzi_tensor_map &map = k < p.dy_streams ? p.dy :
						    k < before_x ? p.du : p.x;
			const int stream = k < p.dy_streams ? k : k < before_x ? 0 : k - before_x;

			mbarrier_wait(shared_address(&m.empty[now.at]), now.parity ^ 1);
			mbarrier_expect_tx(full, PIECE_BYTES);
			tma_load_3d(shared_address(m.pieces[now.at]), map,
				    blockIdx.x * (STRIP * 2), r.tile(number) * TOKENS, stream,
				    full);
		}
	}
}

/* The products of draw and phi: low and high terms, then high and low, then both high ones */
HZ_DEVICE void multiply(float (&sum)[4 * STRIP], const dx_memory &m, int group)
{
	const uint32_t draw = shared_address(m.draw[group]);
	const uint64_t phi = wgmma_desc_mn(shared_address(m.phi[0]), PHI_PART_BYTES);

	wgmma_fence();
#pragma unroll
	for (int step = 0; step < ROWS_OF_PHI / 16; step++) {
#pragma unroll
		for (int order = 0; order < 3; order++) {
			const int a = step + (order == 0) * (ROWS_OF_PHI / 16);
			const int b = step + (order == 1) * (ROWS_OF_PHI / 16);

			wgmma<true, false, HZ_BF16>(sum, wgmma_desc_k(draw + a / 4 *
								      DRAW_PART_BYTES) + a % 4 * 2,
						    phi + b * 128, step + order > 0);
		}
	}
	wgmma_commit();
	wgmma_wait<0>();
	wgmma_keep(sum);
}

/* 8 channels of the two tokens of a lane, and the end of the use of a piece */
HZ_DEVICE void take_piece(uint4 (&raw)[2], dx_memory &m, ring_position<PIECES> &now, int row,
			  int blocks)
{
	const uint32_t src = shared_address(m.pieces[now.at]) + row * (STRIP * 2) +
			     (threadIdx.x % 4 ^ row / 2 % 4) * 16;

	mbarrier_wait(shared_address(&m.full[now.at]), now.parity);
	raw[0] = shared_load(src);
	raw[1] = shared_load(src + 8 * STRIP * 2);
	__syncwarp();
	if (threadIdx.x % 32 < blocks)
		mbarrier_arrive_cluster(cluster_map(shared_address(&m.empty[now.at]),
						    threadIdx.x % 32));
	now.next();
}

/* Adds weight v to stream j, token h: element 2 g + e of v is accumulator 4 (4 j + g) + 2 h + e. */
HZ_DEVICE void add_eight(float (&sum)[4 * STRIP], int j, int h, float weight, const float *v)
{
#pragma unroll
	for (int e = 0; e < 8; e++) {
		float &to = sum[16 * j + e / 2 * 4 + 2 * h + e % 2];

		to = fmaf(weight, v[e], to);
	}
}

/* Adds a piece times coefficients of both tokens, from `coefs` on, to all streams. */
HZ_DEVICE void add_mixed(float (&sum)[4 * STRIP], uint32_t coefs, const uint4 (&raw)[2])
{
	float weight[2][HZI_MHC_STREAMS];

#pragma unroll
	for (int h = 0; h < 2; h++) {
		shared_load(weight[h], coefs + h * (8 * RECORD * 4));
		shared_load(weight[h] + 4, coefs + h * (8 * RECORD * 4) + 16);
	}
#pragma unroll
	for (int h = 0; h < 2; h++) {
		float v[8];

		unpack_eight<HZ_BF16>(v, raw[h]);
#pragma unroll
		for (int j = 0; j < HZI_MHC_STREAMS; j++)
			add_eight(sum, j, h, weight[h][j], v);
	}
}

/*
 * A warpgroup: a lane has tokens `row` and row + 8 of a tile, 8 channels of all streams. The next
 * piece is taken before the arithmetic of one.
 */
HZ_DEVICE void make_dx(const hzi_mhc_dx_wgmma &p, tile_range r, dx_memory &m, int group)
{
	const int lane = threadIdx.x % 32, row = threadIdx.x / 32 % 4 * 16 + lane / 4;
	const int64_t c = (int64_t)blockIdx.x * STRIP + lane % 4 * 8;
	const uint32_t record = shared_address(m.records[group]) + row * (RECORD * 4);
	const int before_x = p.dy_streams + p.du_streams;

	mbarrier_wait(shared_address(&m.phi_full), 0);
	for (int number = group; number < r.end - r.begin; number += GROUPS) {
		const unsigned piece = (unsigned)(number * (before_x + p.n));
		ring_position<PIECES> now = {(int)(piece % PIECES), piece / PIECES % 2};
		float sum[4 * STRIP], own[2][4];
		uint4 raw[2], next[2];
		bool scaled;

		mbarrier_wait(shared_address(&m.tile_full[group]), number / GROUPS % 2);
		multiply(sum, m, group);
		take_piece(next, m, now, row, p.blocks);
		for (int k = 0; k < before_x; k++) {
			raw[0] = next[0], raw[1] = next[1];
			take_piece(next, m, now, row, p.blocks);
			add_mixed(sum, record + (k < p.dy_streams ? k * (HZI_MHC_STREAMS * 4) :
						 HZI_MHC_BWD_WGMMA_P * 4), raw);
		}
		shared_load(own[0], record + HZI_MHC_BWD_WGMMA_OWN * 4);
		shared_load(own[1], record + (8 * RECORD + HZI_MHC_BWD_WGMMA_OWN) * 4);
		scaled = __any_sync(0xffffffff, own[0][1] != 1 || own[1][1] != 1);
#pragma unroll
		for (int j = 0; j < HZI_MHC_STREAMS; j++) {
			if (j >= p.n)
				break;
			raw[0] = next[0], raw[1] = next[1];
			if (j + 1 < p.n)
				take_piece(next, m, now, row, p.blocks);
#pragma unroll
			for (int h = 0; h < 2; h++) {
				float v[8];

				unpack_eight<HZ_BF16>(v, raw[h]);
#pragma unroll
				for (int e = 0; scaled && e < 8; e++)
					v[e] *= own[h][1];
				add_eight(sum, j, h, own[h][0], v);
			}
		}
		__syncwarp();
		if (lane == 0)
			mbarrier_arrive(shared_address(&m.tile_empty[group]));
#pragma unroll
		for (int h = 0; h < 2; h++) {
			const int64_t t = (int64_t)r.tile(number) * TOKENS + row + h * 8;

			if (t >= p.tokens || c >= p.channels)
				continue;
#pragma unroll
			for (int j = 0; j < HZI_MHC_STREAMS; j++) {
				uint4 *const dst = (uint4 *)((uint16_t *)p.dx.data +
							     offset(p.dx, t, j, c));
				float out[8];

				if (j >= p.n)
					break;
#pragma unroll
				for (int e = 0; e < 8; e++)
					out[e] = sum[16 * j + e / 2 * 4 + 2 * h + e % 2];
				if (p.accumulate) {
					float old[8];

					unpack_eight<HZ_BF16>(old, *dst);
#pragma unroll
					for (int e = 0; e < 8; e++)
						out[e] += old[e];
				}
				*dst = pack_eight<HZ_BF16>(out);
			}
		}
	}
}

/* ---- Gradients of phi ------------------------------------------------------------------------ */

#define COLUMNS HZI_MHC_BWD_WGMMA_COLUMNS
#define STAGES 4
#define PARTS (COLUMNS / 64)		/* two for each warpgroup */
#define X_PART_BYTES (TOKENS * 128)

struct dphi_memory {
	uint8_t x[STAGES][PARTS][X_PART_BYTES];
	uint8_t draw[STAGES][DRAW_PARTS * DRAW_PART_BYTES];
	uint64_t full[STAGES], empty[STAGES];
};

static_assert(sizeof(dphi_memory) + 1024 <= HZI_MHC_BWD_WGMMA_BYTES, "shared memory");

/* The stream, first channel and tiles of tokens of a block */
struct dphi_work {
	int stream, c, begin, end;
};

HZ_DEVICE dphi_work dphi_work_of(const hzi_mhc_dphi_wgmma &p)
{
	const int strips = (int)((p.channels + COLUMNS - 1) / COLUMNS);

	return {(int)blockIdx.x / strips, (int)blockIdx.x % strips * COLUMNS,
		(int)((int64_t)p.tiles * blockIdx.y / p.splits),
		(int)((int64_t)p.tiles * (blockIdx.y + 1) / p.splits)};
}

/* One thread */
HZ_DEVICE void load_stages(const hzi_mhc_dphi_wgmma &p, const dphi_work &b, dphi_memory &m)
{
	ring_position<STAGES> now;

	for (int tile = b.begin; tile < b.end; tile++, now.next()) {
		const uint32_t full = shared_address(&m.full[now.at]);

		mbarrier_wait(shared_address(&m.empty[now.at]), now.parity ^ 1);
		mbarrier_expect_tx(full, sizeof(m.x[0]) + sizeof(m.draw[0]));
#pragma unroll
		for (int part = 0; part < PARTS; part++)
			tma_load_3d(shared_address(m.x[now.at][part]), p.x, (b.c + part * 64) * 2,
				    tile * TOKENS, b.stream, full);
		load_draw(shared_address(m.draw[now.at]), p.draw, tile * TOKENS, full);
	}
}

/* A warpgroup has 128 channels: x^T draw, both terms of draw as 160 columns */
HZ_DEVICE void make_dphi(const hzi_mhc_dphi_wgmma &p, const dphi_work &b, dphi_memory &m, int group)
{
	const int lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4;
	ring_position<STAGES> now;
	float sum[2][TERMS / 2] = {};

	for (int tile = b.begin; tile < b.end; tile++, now.next()) {
		const uint64_t draw = wgmma_desc_mn(shared_address(m.draw[now.at]),
						    DRAW_PART_BYTES);

		mbarrier_wait(shared_address(&m.full[now.at]), now.parity);
		wgmma_fence();
#pragma unroll
		for (int k = 0; k < TOKENS / 16; k++) {
#pragma unroll
			for (int h = 0; h < 2; h++) {
				const uint64_t x = wgmma_desc_mn(
					shared_address(m.x[now.at][group * 2 + h]), X_PART_BYTES);

				wgmma<true, true, HZ_BF16>(sum[h], x + k * 128, draw + k * 128, 1);
			}
		}
		wgmma_commit();
		wgmma_wait<0>();
		__syncwarp();
		if (lane == 0)
			mbarrier_arrive(shared_address(&m.empty[now.at]));
	}
	wgmma_keep(sum[0]);
	wgmma_keep(sum[1]);
#pragma unroll
	for (int i = 0; i < 4; i++) {
		const int64_t c = b.c + (group * 2 + i / 2) * 64 + warp * 16 + i % 2 * 8 + lane / 4;
		float *const out = p.partial +
				   ((int64_t)blockIdx.y * p.m * p.n + b.stream) * p.channels + c;

		if (c >= p.channels)
			continue;
#pragma unroll
		for (int e = 0; e < ROWS_OF_PHI / 4; e++) {
			const int k = e / 2 * 8 + lane % 4 * 2 + e % 2;
			const int at = e / 2 * 4 + i % 2 * 2 + e % 2;

			if (k < p.m)
				out[k * p.n * p.channels] = sum[i / 2][at] +
							    sum[i / 2][ROWS_OF_PHI / 2 + at];
		}
	}
}
#endif

extern "C" __global__ void __launch_bounds__(HZI_MHC_BWD_WGMMA_THREADS, 1)
	mhc_coef_wgmma_dx(const __grid_constant__ hzi_mhc_dx_wgmma p)
{
#if !defined(__CUDA_ARCH__) || defined(__CUDA_ARCH_FEAT_SM90_ALL)
	dx_memory &m = *(dx_memory *)shared_start();
	const tile_range r = tiles_of(p);

	if (threadIdx.x == 0)
		mbarrier_init(shared_address(&m.phi_full), 1);
	if (threadIdx.x < GROUPS) {
		mbarrier_init(shared_address(&m.tile_full[threadIdx.x]), 1);
		mbarrier_init(shared_address(&m.tile_empty[threadIdx.x]), 4);
	}
	if (threadIdx.x < PIECES) {
		mbarrier_init(shared_address(&m.full[threadIdx.x]), 1);
		mbarrier_init(shared_address(&m.empty[threadIdx.x]), 4 * p.blocks);
	}
	mbarrier_init_fence();
	cluster_begin();
	if (threadIdx.x >= 128) {
		setmaxnreg_inc<232>();
		make_dx(p, r, m, threadIdx.x / 128 - 1);
	} else {
		setmaxnreg_dec<40>();
		if (threadIdx.x == 0)
			load_tiles(p, r, m);
		else if (threadIdx.x == 32)
			load_pieces(p, r, m);
	}
	cluster_end();
#endif
}

extern "C" __global__ void __launch_bounds__(HZI_MHC_BWD_WGMMA_THREADS, 1)
	mhc_coef_wgmma_dphi(const __grid_constant__ hzi_mhc_dphi_wgmma p)
{
#if !defined(__CUDA_ARCH__) || defined(__CUDA_ARCH_FEAT_SM90_ALL)
	dphi_memory &m = *(dphi_memory *)shared_start();
	const dphi_work b = dphi_work_of(p);

	if (threadIdx.x < STAGES) {
		mbarrier_init(shared_address(&m.full[threadIdx.x]), 1);
		mbarrier_init(shared_address(&m.empty[threadIdx.x]), 8);
	}
	mbarrier_init_fence();
	pdl_launch_dependents();
	__syncthreads();
	pdl_wait();
	if (threadIdx.x >= 128) {
		setmaxnreg_inc<232>();
		make_dphi(p, b, m, threadIdx.x / 128 - 1);
	} else {
		setmaxnreg_dec<40>();
		if (threadIdx.x == 0)
			load_stages(p, b, m);
	}
#endif
}
