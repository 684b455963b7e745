/*
 * coef_input_fused.cu - coefficients and branch inputs of four 16-bit streams in one pass, sm_90a
 *
 * SPDX-License-Identifier: BSD-2-Clause
 *
 * Clusters stride over tiles of 8 tokens; each block of a cluster has a slice of the channels of
 * all four streams. phi of the slice comes by TMA, before x since all wait for it, and stays in
 * registers of the warps that project, in two terms of bf16. A tile passes through the specialized
 * warps of a block, synchronized by mbarriers:
 *
 *     load (1 warp)      TMA of all streams
 *     mix (4)            streams after a branch, if the call has to make them, in place
 *     project (8)        partial sums over 32 channels of four streams each
 *     reduce (1)         adds these and sends them to the block that owns the tile
 *     make p (1)         p of the tiles that this block owns, sent to all blocks
 *     mix                u of the tile, which is still in shared memory: x is read once
 *     make the rest (1)  the other coefficients, one token a lane, off the critical path; those of
 *                        the last tiles by the warps that project
 *
 * The order of summation is fixed: channels of a warp, warps, blocks.
 */
#define HZI_MHC_COMMON_RULES
#include "gpu/mhc/coef_lanes.cuh"
#include "gpu/mhc/coef_input_fused.h"

/* Only sm_90a has this code. */
#if !defined(__CUDA_ARCH__) || defined(__CUDA_ARCH_FEAT_SM90_ALL)
#include "gpu/device/mma.cuh"
#include "gpu/device/shared.cuh"
#include "gpu/device/tma.cuh"

#define TILE HZI_MHC_INPUT_FUSED_TILE
#define THREADS HZI_MHC_INPUT_FUSED_THREADS
#define PROJECTORS 8			/* warps by role, in this order */
#define MIXERS 4
#define BOXES (HZI_MHC_INPUT_FUSED_CHANNELS / HZI_MHC_INPUT_FUSED_BOX)
#define BOX_BYTES (TILE * 2 * HZI_MHC_INPUT_FUSED_BOX)	/* bytes of a box, one stream */
#define ROW 28				/* sums of a token, and 4 partial sums of squares */
#define BATCH 32			/* tokens in a batch of the other coefficients */
#define PHI_BYTES (4 * HZI_MHC_FOUR_ROWS * 128)		/* of a warp: 32 channels of four streams */

/* A stage: streams (those before the branch if POST), branch values, coefficients */
template <bool POST>
struct stage {
	uint8_t x[BOXES][4][BOX_BYTES];
};

template <>
struct __align__(1024) stage<true> {
	uint8_t x[BOXES][4][BOX_BYTES];
	uint8_t f[BOXES][BOX_BYTES];
	float4 a[TILE][4], q[TILE];
};

/*
 * Blocks own tiles round robin. A block mixes a tile when it has its p, which the owner makes from
 * the sums of all blocks. So no block is `stages` tiles or more ahead of another, and data of tile
 * t + stages cannot overwrite data of tile t that is still needed.
 */
template <bool POST>
struct memory {
	static constexpr int stages = POST ? 9 : 11, slots = POST ? 2 : 3;
	static constexpr int phi_stages = /* that hold phi first */
		(PROJECTORS * PHI_BYTES + sizeof(stage<POST>) - 1) / sizeof(stage<POST>);

	stage<POST> tile[stages];
	float sums[slots][PROJECTORS][TILE][ROW];
	float received[HZI_MHC_INPUT_FUSED_BLOCKS][TILE][ROW];	/* of several tiles */
	float4 p[stages][TILE];
	float batch[2][BATCH][ROW];
	uint64_t phi, phi_read;		/* phi has come, has been read from the last stages */
	uint64_t full[stages], made[stages], weights[stages], empty[stages];
	uint64_t summed[slots], drained[slots], arrived[HZI_MHC_INPUT_FUSED_BLOCKS / 2];
};

static_assert(memory<false>::stages <= HZI_MHC_INPUT_FUSED_BLOCKS, "room for sums of tiles");
static_assert(sizeof(memory<false>) + 1024 <= HZI_MHC_INPUT_FUSED_BYTES, "shared memory");
static_assert(sizeof(memory<true>) + 1024 <= HZI_MHC_INPUT_FUSED_BYTES, "shared memory");

enum { LAST = 1, FULL = 2, EMPTY = 4 };	/* named barriers; of FULL and EMPTY two */

/* Whether the phase of this parity has completed, for all lanes */
HZ_DEVICE bool is_complete(uint32_t barrier, uint32_t parity)
{
	return __all_sync(0xffffffff, mbarrier_test(barrier, parity));
}

/* Keeps v in a register. */
HZ_DEVICE uint32_t keep(uint32_t v)
{
	asm volatile("" : "+r"(v));
	return v;
}

HZ_DEVICE void store_shared(uint32_t dst, float v)
{
	asm volatile("st.shared.f32 [%0], %1;" :: "r"(dst), "f"(v) : "memory");
}

/* Waits for slot t of a ring of barriers. */
template <int COUNT>
HZ_DEVICE void wait_slot(uint64_t *barriers, int t)
{
	mbarrier_wait(shared_address(&barriers[t % COUNT]), t / COUNT & 1);
}

/* Offset of 8 channels of a token in a box of one stream, swizzled by TMA */
HZ_DEVICE int swizzled(int token, int eight)
{
	return token * 128 + ((eight ^ token) * 16);
}

/* Work of a block */
struct block_work {
	int rank, ranks;
	int cluster, clusters, tiles;	/* tiles: of this cluster */
	int channel, channels, boxes;	/* first channel, number of channels */
};

HZ_DEVICE block_work make_block_work(const hzi_mhc_input_fused &p)
{
	const int all = ((int)p.tokens + TILE - 1) / TILE;
	block_work b;
	int left;

	b.ranks = p.ranks;
	b.rank = blockIdx.x % p.ranks;
	b.cluster = blockIdx.x / p.ranks;
	b.clusters = gridDim.x / p.ranks;
	b.tiles = (all - b.cluster + b.clusters - 1) / b.clusters;
	b.channel = b.rank * p.width;
	left = (int)p.channels - b.channel;
	b.channels = left < 0 ? 0 : left < p.width ? left : p.width;
	b.boxes = (b.channels + HZI_MHC_INPUT_FUSED_BOX - 1) / HZI_MHC_INPUT_FUSED_BOX;
	return b;
}

HZ_DEVICE int tile_token(const block_work &b, int t)
{
	return (b.cluster + t * b.clusters) * TILE;
}

/* ---- Sums ------------------------------------------------------------------------------------ */

/*
 * phi of the 32 channels of a warp in each stream, as mma fragments: tiles of 8 rows in the dtype
 * of x, and of the remainder, for steps of 16 channels. With f16 sums are multiplied by unscale
 * later.
 */
struct slice {
	uint32_t part[4][2][3][4];
	float unscale[3];
};

/*
 * Multiplies the phi of a warp by the gain, in shared memory, where TMA has not stored it if it is
 * unaligned; 0 beyond the block's channels
 */
HZ_DEVICE void fix_phi(const hzi_mhc_input_fused &p, const block_work &b, float *box)
{
	const int lane = threadIdx.x % 32, c = threadIdx.x / 32 * 32 + lane;

#pragma unroll 1
	for (int row = 0; row < 4 * HZI_MHC_FOUR_ROWS; row++) {
		const int stream = row / HZI_MHC_FOUR_ROWS, k = row % HZI_MHC_FOUR_ROWS;
		const int64_t from = stream * p.channels + b.channel + c;
		float *const at = box + row * 32 + (lane / 4 ^ row % 8) * 4 + lane % 4;
		float v = 0;

		if (c < b.channels && k < p.rule.m)
			v = p.phi_by_tma ? *at : p.phi[k * 4 * p.channels + from];
		if (c < b.channels && p.gain)
			v *= p.gain[from];
		*at = v;
	}
	__syncwarp();
	fence_proxy_async();
}

/*
 * Reads the phi of a warp from the box that TMA has stored. The code is as short as it can be: it
 * is fetched while all wait.
 */
template <int DTYPE>
HZ_DEVICE void load_phi(const hzi_mhc_input_fused &p, const block_work &b, int warp, uint8_t *box,
			slice &phi)
{
	const int lane = threadIdx.x % 32, row = lane / 4;
	const uint32_t src = shared_address(box) + row * 128 + lane % 2 * 8;
	float absmax[3] = {};

	if (p.gain || !p.phi_by_tma || warp * 32 + 32 > b.channels)
		fix_phi(p, b, (float *)box);
#pragma unroll
	for (int e = 0; e < 48; e++) {
		const int i = e / 12, tile = e / 4 % 3, part = e % 4;
		uint32_t *const to = &phi.part[i][part / 2][tile][part % 2 * 2];

		asm volatile("ld.shared.v2.u32 {%0, %1}, [%2];" : "=r"(to[0]), "=r"(to[1])
			     : "r"(src + ((part * 2 + lane % 4 / 2) ^ row) * 16 +
				   (i * HZI_MHC_FOUR_ROWS + tile * 8) * 128));
		absmax[tile] = fmaxf(absmax[tile], fmaxf(fabsf(__uint_as_float(to[0])),
							 fabsf(__uint_as_float(to[1]))));
	}
#pragma unroll
	for (int i = 0; i < 3 && DTYPE == HZ_F16; i++) {
		absmax[i] = row_scale(absmax[i]);
		phi.unscale[i] = inverse_power(absmax[i]);
	}
#pragma unroll
	for (int e = 0; e < 48; e++) {
		const int tile = e / 4 % 3;
		uint32_t *const to = &phi.part[e / 12][e % 4 / 2][tile][e % 2 * 2];
		const float x = __uint_as_float(to[0]), y = __uint_as_float(to[1]);

		if (DTYPE == HZ_F16)
			to[0] = split_scaled(x * absmax[tile], y * absmax[tile], to[1]);
		else
			to[0] = split_weights(x, y, to[1]);
	}
}

/* Adds up 4 values over the first `count` <= COUNT sets of rows of a tile's tokens. */
template <int COUNT>
HZ_DEVICE float4 sum_rows(const float *src, int count)
{
	float4 sum[2] = {};

#pragma unroll
	for (int i = 0; i < COUNT; i++) {
		if (i < count) {
			const float4 v = *(const float4 *)(src + i * (TILE * ROW));

			sum[i % 2].x += v.x;
			sum[i % 2].y += v.y;
			sum[i % 2].z += v.z;
			sum[i % 2].w += v.w;
		}
	}
	return {sum[0].x + sum[1].x, sum[0].y + sum[1].y, sum[0].z + sum[1].z,
		sum[0].w + sum[1].w};
}

/* Vectors of 4 sums of a tile: two per lane, fewer for the last lanes */
#define VECTORS (TILE * ROW / 4)

HZ_DEVICE int vector_of(int i)
{
	return min(i * 32 + (int)threadIdx.x % 32, VECTORS - 1);
}

/* Vector `index`, counted over the lanes, then over the 2 vectors of a lane */
HZ_DEVICE float4 shuffle_vectors(const float4 *v, int index)
{
	float4 w[2];

#pragma unroll
	for (int i = 0; i < 2; i++) {
		w[i].x = __shfl_sync(0xffffffff, v[i].x, index % 32);
		w[i].y = __shfl_sync(0xffffffff, v[i].y, index % 32);
		w[i].z = __shfl_sync(0xffffffff, v[i].z, index % 32);
		w[i].w = __shfl_sync(0xffffffff, v[i].w, index % 32);
	}
	return index < 32 ? w[0] : w[1];
}

/* x of a tile: 32 channels of each stream of 8 tokens */
HZ_DEVICE void load_x(uint32_t x[4][4], uint32_t src)
{
#pragma unroll
	for (int i = 0; i < 4; i++)
		ldmatrix_x4(x[i], src + i * BOX_BYTES);
}

/*
 * Sums of a tile, two tokens per lane; squares of token lane / 4, from one lane. The A and B
 * fragments of x have the same registers, so x x^T is one mma, and its diagonal has the squares: 64
 * instructions fewer.
 */
template <int DTYPE>
HZ_DEVICE float project_tile(float sum[3][4], const uint32_t x[4][4], const slice &phi)
{
	const int lane = threadIdx.x % 32, token = lane / 4;
	float squares[2][4] = {}, more[3][4] = {};	/* two chains of mma each */

#pragma unroll
	for (int i = 0; i < 4; i++) {
#pragma unroll
		for (int step = 0; step < 2; step++) {
			const uint32_t rows[4] = {x[i][step * 2], 0, x[i][step * 2 + 1], 0};

			mma_m16n8k16<DTYPE>(squares[step], rows, rows[0], rows[2]);
#pragma unroll
			for (int tile = 0; tile < 3; tile++)
				mma_m16n8k16<DTYPE>(step ? more[tile] : sum[tile],
						    phi.part[i][step][tile], x[i][step * 2],
						    x[i][step * 2 + 1]);
		}
	}
#pragma unroll
	for (int e = 0; e < 12; e++)
		sum[e / 4][e % 4] += more[e / 4][e % 4];
	return lane % 4 != token / 2 ? 0 :
	       token % 2 ? squares[0][1] + squares[1][1] : squares[0][0] + squares[1][0];
}

/*
 * The other coefficients of the last tiles of this block, fewer than a batch, by the warps that
 * have projected: two tokens per warp, 16 lanes each, have less latency than a token per lane.
 */
template <bool POST>
HZ_DEVICE void make_last_coefs(const hzi_mhc_input_fused &p, const block_work &b, memory<POST> &m)
{
	constexpr int batch = BATCH / TILE;
	const int lane = threadIdx.x % 32, own = (b.tiles - b.rank + b.ranks - 1) / b.ranks;
	const int left = own > 0 ? own % batch : 0, row = min(lane, HZI_MHC_FOUR_ROWS - 1);
	const float *const sums = m.batch[own / batch % 2][0];
	float alpha = 0, bias = 0;

	if (left == 0)
		return;
	if (row < p.rule.m) {
		alpha = hzi_mhc_alpha(p.alpha, hzi_mhc_part(4, row));
		bias = p.bias[row];
	}
	barrier_sync(LAST, (PROJECTORS + 1) * 32);
	for (int first = threadIdx.x / 32 * 2; first < left * TILE; first += PROJECTORS * 2) {
		const int tile = b.rank + (own - left + first / TILE) * b.ranks;
		const int token = tile_token(b, tile) + first % TILE;
		float z[2];

#pragma unroll
		for (int i = 0; i < 2; i++) {
			const float sum = sums[(first + i) * ROW + row];
			float kept = sums[(first + i) * ROW + HZI_MHC_FOUR_ROWS];

			z[i] = 0;
			if (token + i >= (int)p.tokens)
				continue;
			kept = square_of(p, kept, token + i);
			z[i] = z_of_lanes(p, sum, kept, alpha, bias);
			if (p.saved && lane <= p.rule.m)
				p.saved[(int64_t)(token + i) * (p.rule.m + 1) + lane] =
					lane < p.rule.m ? sum : kept;
		}

		const int own_token = token + lane / 16;
		const bool stores = own_token < (int)p.tokens;
		const float second = __shfl_sync(0xffffffff, z[1], lane % 16);
		const float of_a[2] = {__shfl_sync(0xffffffff, z[0], row_of_lane(p.rule)),
				       __shfl_sync(0xffffffff, z[1], row_of_lane(p.rule))};

		gates_of_lanes<16>(p, own_token, stores, lane < 16 ? z[0] : second,
			       [](float, float, float, float) {});
		if (p.a.data && p.rule.m > 4)
			matrix_of_lanes(p, own_token, stores, lane < 16 ? of_a[0] : of_a[1]);
	}
}

/*
 * Projects all tiles: one warp's share of the channels. The warp's index comes by a shuffle so that
 * the compiler knows it for uniform: otherwise the loop has code for lanes that diverge.
 */
template <int DTYPE, bool POST>
HZ_DEVICE void project(const hzi_mhc_input_fused &p, const block_work &b, memory<POST> &m)
{
	typedef memory<POST> all;
	const int warp = __shfl_sync(0xffffffff, threadIdx.x / 32, 0), lane = threadIdx.x % 32;
	const uint32_t first = keep(shared_address(m.tile[0].x[warp / 2]) +
				    swizzled(lane % 8, warp % 2 * 4 + lane / 8));
	const uint32_t made = keep(shared_address(POST ? m.made : m.full));
	const uint32_t summed = keep(shared_address(m.summed));
	const uint32_t drained = keep(shared_address(m.drained));
	const uint32_t sums = keep(shared_address(&m.sums[0][warp][lane % 4 * 2][lane / 4]));
	const uint32_t squares =
		keep(shared_address(&m.sums[0][warp][lane / 4][HZI_MHC_FOUR_ROWS +
							       lane % 4]));
	ring_position<all::stages> now;
	ring_position<all::slots> slot;
	const bool is_used = warp * 32 < b.channels;	/* Otherwise x is 0. */
	bool loaded = false;
	uint32_t x[4][4] = {};
	slice phi;

	mbarrier_wait(shared_address(&m.phi), 0);
	load_phi<DTYPE>(p, b, warp,
			(uint8_t *)&m.tile[all::stages - all::phi_stages] + warp * PHI_BYTES, phi);
	mbarrier_arrive(shared_address(&m.phi_read));
	for (int t = 0; t < b.tiles; t++) {
		const uint32_t dst = slot.at * (PROJECTORS * TILE * ROW * 4);
		const bool free =
			t < all::slots || is_complete(drained + slot.at * 8, slot.parity ^ 1);
		float sum[3][4] = {}, square;

		if (!loaded) {
			mbarrier_wait(made + now.at * 8, now.parity);
			if (is_used)
				load_x(x, first + now.at * sizeof(stage<POST>));
		}
		square = project_tile<DTYPE>(sum, x, phi);
		now.next();
		/* Polls for the next tile while the mma of this one complete. */
		loaded = t + 1 < b.tiles && is_complete(made + now.at * 8, now.parity);
		if (loaded && is_used)
			load_x(x, first + now.at * sizeof(stage<POST>));
		if (!free)
			mbarrier_wait(drained + slot.at * 8, slot.parity ^ 1);
#pragma unroll
		for (int e = 0; e < 6; e++)
			store_shared(sums + dst + (e % 2 * ROW + e / 2 * 8) * 4,
				     (sum[e / 2][e % 2] + sum[e / 2][e % 2 + 2]) *
					     (DTYPE == HZ_F16 ? phi.unscale[e / 2] : 1));
		store_shared(squares + dst, square);
		mbarrier_arrive(summed + slot.at * 8);
		slot.next();
	}
}

/* One warp: sends the block's sums of each tile to the block that owns it. */
template <bool POST>
HZ_DEVICE void reduce(const block_work &b, memory<POST> &m)
{
	constexpr int slots = memory<POST>::slots;
	const int lane = threadIdx.x % 32, slots_per_rank = HZI_MHC_INPUT_FUSED_BLOCKS / b.ranks;
	const int log2_ranks = 31 - __clz(b.ranks);

	for (int t = 0; t < b.tiles; t++) {
		const int owner = t & (b.ranks - 1),
			  receive_slot = t >> log2_ranks & (slots_per_rank - 1);
		const uint32_t arrived =
			cluster_map(shared_address(&m.arrived[receive_slot]), owner);
		const uint32_t dst = cluster_map(
			shared_address(m.received[receive_slot * b.ranks + b.rank]), owner);
		float4 sum[2];

		wait_slot<slots>(m.summed, t);
#pragma unroll
		for (int i = 0; i < 2; i++)
			sum[i] = sum_rows<PROJECTORS>(m.sums[t % slots][0][0] + vector_of(i) * 4,
						      PROJECTORS);
		mbarrier_arrive(shared_address(&m.drained[t % slots]));
#pragma unroll
		for (int i = 0; i < 2; i++) {
			if (i * 32 + lane < VECTORS)
				store_async(dst + vector_of(i) * 16, sum[i].x, sum[i].y, sum[i].z,
					    sum[i].w, arrived);
		}
	}
}

/* ---- Streams and branch inputs --------------------------------------------------------------- */

/* One thread: loads tiles into stages. */
template <bool POST>
HZ_DEVICE void load(const hzi_mhc_input_fused &p, const block_work &b, memory<POST> &m)
{
	constexpr int stages = memory<POST>::stages;

	tma_prefetch_map(p.x_map);
	if (p.phi_by_tma)
		mbarrier_expect_tx(shared_address(&m.phi), PROJECTORS * PHI_BYTES);
	else
		mbarrier_arrive(shared_address(&m.phi));
	for (int w = 0; p.phi_by_tma && w < PROJECTORS; w++)
		tma_load_3d(shared_address(&m.tile[stages - memory<POST>::phi_stages]) +
				    w * PHI_BYTES,
			    p.phi_map, (b.channel + w * 32) * 4, 0, 0, shared_address(&m.phi));
	for (int t = 0; t < b.tiles; t++) {
		const int first = tile_token(b, t), count = min(TILE, (int)p.tokens - first);
		const uint32_t full = shared_address(&m.full[t % stages]);
		stage<POST> &dst = m.tile[t % stages];

		if (t == stages - memory<POST>::phi_stages)
			mbarrier_wait(shared_address(&m.phi_read), 0);
		if (t >= stages)
			wait_slot<stages>(m.empty, t - stages);
		mbarrier_expect_tx(full,
				   b.boxes * (POST ? 5 : 4) * BOX_BYTES + (POST ? count * 80 : 0));
		for (int i = 0; i < b.boxes; i++)
			tma_load_3d(shared_address(dst.x[i]), p.x_map,
				    (b.channel + i * HZI_MHC_INPUT_FUSED_BOX) * 2, first, 0, full);
		if constexpr (POST) {
			for (int i = 0; i < b.boxes; i++)
				tma_load_3d(shared_address(dst.f[i]), p.f_map,
					    (b.channel + i * HZI_MHC_INPUT_FUSED_BOX) * 2, first, 0,
					    full);
			bulk_copy(shared_address(dst.a), p.post_a + first * 16, count * 64, full);
			bulk_copy(shared_address(dst.q), p.post_q + first * 4, count * 16, full);
		}
	}
}

/* v[i]: 8 channels of stream i of a token */
template <int DTYPE>
HZ_DEVICE void load_lane(float v[4][8], const uint8_t (*x)[4][BOX_BYTES], int token)
{
	const int lane = threadIdx.x % 32;

#pragma unroll
	for (int i = 0; i < 4; i++)
		unpack_eight<DTYPE>(v[i], *(const uint4 *)(x[lane / 8][i] +
							   swizzled(token, lane % 8)));
}

/* u of this warp's tokens of a tile */
template <int DTYPE>
HZ_DEVICE void mix_tokens(const hzi_mhc_input_fused &p, const block_work &b, int first, int begin,
			  const float4 *weight, const uint8_t (*x)[4][BOX_BYTES])
{
	constexpr int own = TILE / MIXERS;
	const int c = threadIdx.x % 32 * 8;
	float v[own][4][8];

#pragma unroll
	for (int i = 0; i < own; i++)
		load_lane<DTYPE>(v[i], x, begin + i);
#pragma unroll
	for (int i = 0; i < own; i++) {
		const float4 w = weight[begin + i];
		const int token = first + begin + i;

#pragma unroll
		for (int e = 0; e < 8; e++) {
			v[i][0][e] = w.x * v[i][0][e];
			v[i][0][e] = fmaf(w.y, v[i][1][e], v[i][0][e]);
			v[i][0][e] = fmaf(w.z, v[i][2][e], v[i][0][e]);
			v[i][0][e] = fmaf(w.w, v[i][3][e], v[i][0][e]);
		}
		if (token < (int)p.tokens && c < b.channels)
			*(uint4 *)((uint16_t *)p.u.data +
				   offset32(p.u, token, 0, b.channel + c)) =
				pack_eight<DTYPE>(v[i][0]);
	}
}

/*
 * Makes the streams of a token after the branch: stores them, and replaces the previous ones in the
 * stage.
 */
template <int DTYPE>
HZ_DEVICE void post_token(const hzi_mhc_input_fused &p, const block_work &b, int first, int i,
			  stage<true> &s, const float *bias)
{
	const int lane = threadIdx.x % 32, c = lane * 8, at = swizzled(i, lane % 8);
	const float4 scale = s.q[i];
	const float q[4] = {scale.x, scale.y, scale.z, scale.w};
	const float4 a[4] = {s.a[i][0], s.a[i][1], s.a[i][2], s.a[i][3]};
	float v[4][8], f[8];

	if (first + i >= (int)p.tokens || c >= b.channels)
		return;
	load_lane<DTYPE>(v, s.x, i);
	unpack_eight<DTYPE>(f, *(const uint4 *)(s.f[lane / 8] + at));
	if (p.post_bias) {
#pragma unroll
		for (int e = 0; e < 8; e++)
			f[e] += bias[e];
	}
#pragma unroll
	for (int j = 0; j < 4; j++) {
		float y[8];

#pragma unroll
		for (int e = 0; e < 8; e++) {
			y[e] = a[j].x * v[0][e];
			y[e] = fmaf(a[j].y, v[1][e], y[e]);
			y[e] = fmaf(a[j].z, v[2][e], y[e]);
			y[e] = fmaf(a[j].w, v[3][e], y[e]);
			y[e] = fmaf(q[j], f[e], y[e]);
		}

		const uint4 packed = pack_eight<DTYPE>(y);

		*(uint4 *)(s.x[lane / 8][j] + at) = packed;
		*(uint4 *)((uint16_t *)p.y.data + offset32(p.y, first + i, j, b.channel + c)) =
			packed;
	}
}

template <int DTYPE, bool POST>
HZ_DEVICE void mix(const hzi_mhc_input_fused &p, const block_work &b, memory<POST> &m)
{
	constexpr int own = TILE / MIXERS, stages = memory<POST>::stages, ahead = 4;
	const int begin = (threadIdx.x / 32 - PROJECTORS) * own, c = threadIdx.x % 32 * 8;
	const bool leads = threadIdx.x % 32 == 0;
	float bias[8] = {};
	int posted = 0;

	if (POST && p.post_bias && c < b.channels) {
#pragma unroll
		for (int e = 0; e < 8; e++)
			bias[e] = p.post_bias[b.channel + c + e];
	}
	for (int t = 0; t < b.tiles; t++) {
		const int at = t % stages;

		if constexpr (POST) {
			for (; posted < b.tiles && posted < t + ahead; posted++) {
				wait_slot<stages>(m.full, posted);
#pragma unroll 1
				for (int i = begin; i < begin + own; i++)
					post_token<DTYPE>(p, b, tile_token(b, posted), i,
							  m.tile[posted % stages], bias);
				fence_proxy_async();
				mbarrier_arrive(shared_address(&m.made[posted % stages]));
			}
		}
		if (threadIdx.x == PROJECTORS * 32)
			mbarrier_expect_tx(shared_address(&m.weights[at]), TILE * 16);
		wait_slot<stages>(m.weights, t);
		if (p.u.data)
			mix_tokens<DTYPE>(p, b, tile_token(b, t), begin, m.p[at], m.tile[at].x);
		__syncwarp();
		if (leads)
			mbarrier_arrive(shared_address(&m.empty[at]));
	}
}

/* ---- Coefficients ---------------------------------------------------------------------------- */

/* One warp: adds up the sums of the tiles that this block owns, sends p to all blocks. */
template <bool POST>
HZ_DEVICE void make_p(const hzi_mhc_input_fused &p, const block_work &b, memory<POST> &m)
{
	constexpr int batch = BATCH / TILE;
	const int lane = threadIdx.x % 32, token = lane % TILE, gate = lane / TILE,
		slots_per_rank = HZI_MHC_INPUT_FUSED_BLOCKS / b.ranks;
	const float columns = (float)(4 * p.channels), inverse = 1 / columns,
		alpha = p.alpha[0] ? *p.alpha[0] : 0, bias = p.bias[gate];
	/* A product with 2^-k is the quotient. */
	const bool is_power = (__float_as_uint(columns) & 0x7fffff) == 0;
	const int own_tiles = b.rank < b.tiles ? (b.tiles - b.rank + b.ranks - 1) / b.ranks : 0;
	const int in_batches = own_tiles - own_tiles % batch;
	int count = 0;

	for (int t = b.rank; t < b.tiles; t += b.ranks, count++) {
		const int receive_slot = count & (slots_per_rank - 1),
			  at = t % memory<POST>::stages;
		const int part = count % batch, buffer = count / batch % 2;
		const float *rows = m.received[receive_slot * b.ranks][0];
		const uint32_t arrived = shared_address(&m.arrived[receive_slot]);
		const uint32_t weights = shared_address(&m.weights[at]);
		float4 sum[2];
		float weight, rho;

		/* Before the wait, since a load takes as long as a tile */
		if (p.p_in.data)
			weight = *coef_at(p.p_in, min(tile_token(b, t) + token, (int)p.tokens - 1),
					  gate, 0);
		if (lane == 0)
			mbarrier_expect_tx(arrived, b.ranks * TILE * ROW * 4);
		mbarrier_wait(arrived, count / slots_per_rank & 1);
		/* Reads all sums first: a block that has p may send those of the next tile. */
#pragma unroll
		for (int i = 0; i < 2; i++) {
			const int e = vector_of(i);

			sum[i] = sum_rows<HZI_MHC_INPUT_FUSED_BLOCKS>(rows + e * 4, b.ranks);
			if (e % (ROW / 4) == ROW / 4 - 1) {
				sum[i].x += sum[i].y;
				sum[i].x += sum[i].z + sum[i].w;
				sum[i].x = is_power ? sum[i].x * inverse : sum[i].x / columns;
			}
		}

		/* The sums of this tile, for those who make the other coefficients */
		const auto pass_on = [&] {
			if (part == 0 && count >= 2 * batch)
				barrier_sync(EMPTY + buffer, 64);
#pragma unroll
			for (int i = 0; i < 2; i++) {
				if (i * 32 + lane < VECTORS)
					((float4 *)m.batch[buffer][part * TILE])[i * 32 + lane] =
						sum[i];
			}
			if (part == batch - 1)
				barrier_arrive(FULL + buffer, 64);
			else if (t + b.ranks >= b.tiles)
				barrier_arrive(LAST, (PROJECTORS + 1) * 32);
		};

		/* All wait for p, but for the last coefficients, which take longer. */
		if (count >= in_batches)
			pass_on();
		if (!p.p_in.data) {
			rho = shuffle_vectors(sum, (token + 1) * (ROW / 4) - 1).x;
			if (!POST && tile_token(b, t) + token < (int)p.tokens)
				rho = square_of(p, rho, tile_token(b, t) + token);
			rho = root_of_square(p.rule, rho);

			const float4 own = shuffle_vectors(sum, token * (ROW / 4));
			const float y = rho * (gate == 0 ? own.x : gate == 1 ? own.y :
					       gate == 2 ? own.z : own.w);
			float slope, z = fmaf(alpha, hzi_mhc_input(&p.rule, y, &slope), bias);

			if (p.rule.flags & HZ_MHC_NORMALIZE) {
				float of_p[4], gates[4];

#pragma unroll
				for (int i = 0; i < 4; i++)
					of_p[i] = __shfl_sync(0xffffffff, z, i * TILE + token);
				hzi_mhc_gates(4, &p.rule, of_p, gates);
				weight = gates[0];
#pragma unroll
				for (int i = 1; i < 4; i++)
					weight = gate == i ? gates[i] : weight;
			} else {
				hzi_mhc_gates(1, &p.rule, &z, &weight);
			}
		}
#pragma unroll
		for (int i = 0; i < TILE / 2; i++) {
			const int src = lane / 16 * (TILE / 2) + i;
			float w[4];

#pragma unroll
			for (int e = 0; e < 4; e++)
				w[e] = __shfl_sync(0xffffffff, weight, e * TILE + src);
			if (lane % 16 < b.ranks)
				store_async(cluster_map(shared_address(&m.p[at][src]), lane % 16),
					    w[0], w[1], w[2], w[3],
					    cluster_map(weights, lane % 16));
		}
		if (count < in_batches)
			pass_on();
	}
}

/* One warp: one token of a whole batch per lane */
template <bool POST>
HZ_DEVICE void make_other_coefs(const hzi_mhc_input_fused &p, const block_work &b, memory<POST> &m)
{
	constexpr int batch = BATCH / TILE;
	const int lane = threadIdx.x % 32, step = batch * b.ranks;

	for (int first = b.rank, buffer = 0; first + step - b.ranks < b.tiles;
	     first += step, buffer ^= 1) {
		const int token = tile_token(b, first + lane / TILE * b.ranks) + lane % TILE;

		barrier_sync(FULL + buffer, 64);
		if (token < (int)p.tokens)
			finish_token(p, m.batch[buffer][lane], token);
		__syncwarp();
		if (first + 2 * step < b.tiles)
			barrier_arrive(EMPTY + buffer, 64);
	}
}
#endif

template <int DTYPE, bool POST>
HZ_DEVICE void fused(const hzi_mhc_input_fused &p)
{
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
	constexpr int stages = memory<POST>::stages;
	memory<POST> &m = *(memory<POST> *)shared_start();
	const block_work b = make_block_work(p);
	const int warp = threadIdx.x / 32;

	pdl_launch_dependents();
	if (threadIdx.x == 0) {
		mbarrier_init(shared_address(&m.phi), 1);
		mbarrier_init(shared_address(&m.phi_read), PROJECTORS * 32);
	}
	if (threadIdx.x < stages) {
		mbarrier_init(shared_address(&m.full[threadIdx.x]), 1);
		mbarrier_init(shared_address(&m.made[threadIdx.x]), MIXERS * 32);
		mbarrier_init(shared_address(&m.weights[threadIdx.x]), 1);
		mbarrier_init(shared_address(&m.empty[threadIdx.x]), MIXERS);
	}
	if (threadIdx.x < memory<POST>::slots) {
		mbarrier_init(shared_address(&m.summed[threadIdx.x]), PROJECTORS * 32);
		mbarrier_init(shared_address(&m.drained[threadIdx.x]), 32);
	}
	if (threadIdx.x < HZI_MHC_INPUT_FUSED_BLOCKS / 2)
		mbarrier_init(shared_address(&m.arrived[threadIdx.x]), 1);
	mbarrier_init_fence();
	__syncthreads();
	cluster_arrive();
	cluster_wait();
	pdl_wait();
	if (warp < PROJECTORS) {
		setmaxnreg_inc<168>();
		project<DTYPE, POST>(p, b, m);
	} else if (warp < PROJECTORS + MIXERS) {
		setmaxnreg_dec<88>();
		mix<DTYPE, POST>(p, b, m);
	} else {
		setmaxnreg_dec<88>();
		if (warp == PROJECTORS + MIXERS)
			reduce<POST>(b, m);
		else if (warp == PROJECTORS + MIXERS + 1)
			make_p<POST>(p, b, m);
		else if (warp == PROJECTORS + MIXERS + 2)
			make_other_coefs<POST>(p, b, m);
		else if (threadIdx.x % 32 == 0)
			load<POST>(p, b, m);
	}
	if (warp < PROJECTORS)
		make_last_coefs(p, b, m);
	__syncwarp();
	/* No block exits while another may send to it. */
	cluster_arrive();
	cluster_wait();
#endif
}

#define FUSED(name, dtype, post) \
	extern "C" __global__ void __launch_bounds__(HZI_MHC_INPUT_FUSED_THREADS, 1) \
		name(const __grid_constant__ hzi_mhc_input_fused p) \
	{ \
		fused<dtype, post>(p); \
	}

FUSED(mhc_coef_input_fused_f16, HZ_F16, false)
FUSED(mhc_coef_input_fused_bf16, HZ_BF16, false)
FUSED(mhc_post_coef_input_fused_f16, HZ_F16, true)
FUSED(mhc_post_coef_input_fused_bf16, HZ_BF16, true)
