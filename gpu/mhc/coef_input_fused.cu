/*
 * coef_input_fused.cu - coefficients and branch inputs of four streams in one pass, on Hopper
 *
 * SPDX-License-Identifier: BSD-2-Clause
 *
 * A cluster takes tiles of 8 tokens in turn; each of its blocks has a slice of the channels in all
 * four streams. phi of the slice, as two parts of bf16, stays in registers of the warps that
 * project. Each tile goes through a block's warps by barriers in shared memory, no one of which all
 * wait for:
 *
 *     load (1 warp)      boxes of channels of all streams
 *     mix (4)            streams after a branch, if they are not there already: as copies left them
 *     project (8)        sums of a tile over 32 channels of four streams each
 *     reduce (1)         these added, to the block that owns the tile
 *     make p (1)         p of the tiles that this block owns, to all blocks
 *     mix                u of the tile, which is still in shared memory: x is read once
 *     make the rest (1)  the other coefficients, a lane a token: nobody waits for Sinkhorn
 *
 * Sums have a fixed order: channels of a warp, warps, blocks.
 */
#include "gpu/mhc/coef.cuh"
#include "gpu/mhc/coef_input_fused.h"

/* What is not built for compute capability 9.0 alone has nothing here. */
#if !defined(__CUDA_ARCH__) || defined(__CUDA_ARCH_FEAT_SM90_ALL)
#include "gpu/device/mma.cuh"
#include "gpu/device/shared.cuh"
#include "gpu/device/tma.cuh"

#define TILE HZI_FUSED_TILE
#define PROJECTORS 8			/* warps by what they do, in this order */
#define MIXERS 4
#define BOXES (HZI_FUSED_CHANNELS / HZI_FUSED_BOX)
#define SHEET (TILE * 2 * HZI_FUSED_BOX)	/* bytes of a box of one stream */
#define ROW 28				/* sums of a token, and 4 parts of that of squares */
#define BATCH 32			/* tokens whose other coefficients are made at a time */

/* A tile: boxes of streams, or of those before the branch, its values and coefficients */
template <bool POST>
struct stage {
	uint8_t x[BOXES][4][SHEET];
};

template <>
struct __align__(1024) stage<true> {
	uint8_t x[BOXES][4][SHEET];
	uint8_t f[BOXES][SHEET];
	float4 a[TILE][4], q[TILE];
};

/*
 * Tiles belong to blocks in turn. Who mixes one has its p, which its owner made of sums of all
 * blocks. So a block is less than `stages` tiles ahead of any other, which are no more than blocks
 * have room for, and what belongs to tile t + stages meets nothing of tile t.
 */
template <bool POST>
struct memory {
	static constexpr int stages = POST ? 9 : 11, slots = POST ? 2 : 3;

	stage<POST> tile[stages];
	float sums[slots][PROJECTORS][TILE][ROW];
	float received[HZI_FUSED_BLOCKS][TILE][ROW];	/* of some tiles */
	float4 p[stages][TILE];
	float batch[2][BATCH][ROW];
	uint64_t full[stages], made[stages], weights[stages], empty[stages];
	uint64_t summed[slots], drained[slots], came[HZI_FUSED_BLOCKS / 2];
};

static_assert(memory<false>::stages <= HZI_FUSED_BLOCKS, "room for sums of tiles");
static_assert(sizeof(memory<false>) + 1024 <= HZI_FUSED_BYTES, "shared memory");
static_assert(sizeof(memory<true>) + 1024 <= HZI_FUSED_BYTES, "shared memory");

enum { FULL = 2, EMPTY = 4 };		/* named barriers, two of each */

/* Whether the phase of that parity is over, for all lanes */
HZ_DEVICE bool is_over(uint32_t barrier, uint32_t parity)
{
	return __all_sync(0xffffffff, mbarrier_test(barrier, parity));
}

/* So that it is not computed anew each time. */
HZ_DEVICE uint32_t kept(uint32_t v)
{
	asm volatile("" : "+r"(v));
	return v;
}

HZ_DEVICE void store_shared(uint32_t to, float v)
{
	asm volatile("st.shared.f32 [%0], %1;" :: "r"(to), "f"(v) : "memory");
}

/* A ring of barriers: of place t */
template <int COUNT>
HZ_DEVICE void wait_turn(uint64_t *barriers, int t)
{
	mbarrier_wait(shared_address(&barriers[t % COUNT]), t / COUNT & 1);
}

/* Where 8 channels of a token lie in a box of one stream, as copies permute them */
HZ_DEVICE int place_in(int token, int eight)
{
	return token * 128 + ((eight ^ token) * 16);
}

/* What a block does */
struct place_of {
	int rank, ranks;
	int cluster, clusters, tiles;	/* tiles: of this cluster */
	int channel, channels, boxes;	/* the first, of so many */
};

HZ_DEVICE place_of block_place(const hzi_mhc_fused &p)
{
	const int all = ((int)p.tokens + TILE - 1) / TILE;
	place_of b;
	int left;

	b.ranks = p.ranks;
	b.rank = blockIdx.x % p.ranks;
	b.cluster = blockIdx.x / p.ranks;
	b.clusters = gridDim.x / p.ranks;
	b.tiles = (all - b.cluster + b.clusters - 1) / b.clusters;
	b.channel = b.rank * p.width;
	left = (int)p.channels - b.channel;
	b.channels = left < 0 ? 0 : left < p.width ? left : p.width;
	b.boxes = (b.channels + HZI_FUSED_BOX - 1) / HZI_FUSED_BOX;
	return b;
}

HZ_DEVICE int tile_token(const place_of &b, int t)
{
	return (b.cluster + t * b.clusters) * TILE;
}

/* ---- Sums ------------------------------------------------------------------------------------ */

/*
 * phi of a warp's 32 channels in each stream, as mma wants it: tiles of 8 rows in x's dtype, and 8
 * of what that leaves of them, by steps of 16 channels. Sums of f16 are to be multiplied by `back`.
 */
struct slice {
	uint32_t part[4][2][3][4];
	float back[3];
};

template <int DTYPE>
HZ_DEVICE void load_phi(const hzi_mhc_fused &p, const place_of &b, slice &phi)
{
	const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
	float most[3] = {};

#pragma unroll
	for (int pass = DTYPE != HZ_F16; pass < 2; pass++) {
#pragma unroll
		for (int i = 0; i < 3 && DTYPE == HZ_F16 && pass; i++) {
			most[i] = row_scale(most[i]);
			phi.back[i] = inverse_power(most[i]);
		}
#pragma unroll
		for (int e = 0; e < 48; e++) {
			const int i = e / 12, tile = e % 3, step = e / 6 % 2, half = e / 3 % 2;
			const int k = tile * 8 + lane / 4;
			const int c = warp * 32 + step * 16 + half * 8 + lane % 4 * 2;
			const int64_t at = i * p.channels + b.channel + c;
			uint32_t *part = &phi.part[i][step][tile][half * 2];
			float2 v = {}, gain = {1, 1};

			if (k < p.rule.m && c < b.channels) {
				v = *(const float2 *)(p.phi + k * 4 * p.channels + at);
				if (p.gain)
					gain = *(const float2 *)(p.gain + at);
			}
			v.x *= gain.x;
			v.y *= gain.y;
			if (pass == 0)
				most[tile] = fmaxf(most[tile], fmaxf(fabsf(v.x), fabsf(v.y)));
			else if (DTYPE == HZ_F16)
				part[0] = split_scaled(v.x * most[tile], v.y * most[tile], part[1]);
			else
				part[0] = split_weights(v.x, v.y, part[1]);
		}
	}
}

/* Sums of 4 numbers of the first `count` <= COUNT sets of rows of a tile's tokens */
template <int COUNT>
HZ_DEVICE float4 sum_rows(const float *from, int count)
{
	float4 sum[2] = {};

#pragma unroll
	for (int i = 0; i < COUNT; i++) {
		if (i < count) {
			const float4 v = *(const float4 *)(from + i * (TILE * ROW));

			sum[i % 2].x += v.x;
			sum[i % 2].y += v.y;
			sum[i % 2].z += v.z;
			sum[i % 2].w += v.w;
		}
	}
	return {sum[0].x + sum[1].x, sum[0].y + sum[1].y, sum[0].z + sum[1].z,
		sum[0].w + sum[1].w};
}

/* Vectors of 4 of the sums of a tile, of which lanes of a warp have two each, but for the last */
#define VECTORS (TILE * ROW / 4)

HZ_DEVICE int vector_of(int i)
{
	return min(i * 32 + (int)threadIdx.x % 32, VECTORS - 1);
}

/* Of 4 numbers in 2 vectors of each lane, those of a place counted over lanes, then vectors */
HZ_DEVICE float4 shuffle_vectors(const float4 *v, int place)
{
	float4 w[2];

#pragma unroll
	for (int i = 0; i < 2; i++) {
		w[i].x = __shfl_sync(0xffffffff, v[i].x, place % 32);
		w[i].y = __shfl_sync(0xffffffff, v[i].y, place % 32);
		w[i].z = __shfl_sync(0xffffffff, v[i].z, place % 32);
		w[i].w = __shfl_sync(0xffffffff, v[i].w, place % 32);
	}
	return place < 32 ? w[0] : w[1];
}

/* x of a tile: 32 channels of each stream, by tokens */
HZ_DEVICE void load_x(uint32_t x[4][4], uint32_t from)
{
#pragma unroll
	for (int i = 0; i < 4; i++)
		ldmatrix_x4(x[i], from + i * SHEET);
}

/*
 * Sums of these: of a lane, of two tokens each; squares of token lane / 4, from one of its lanes. As
 * rows of a matrix x is in registers just as it is as columns of one, so that a product with
 * itself has squares on its diagonal: 8 of these are 64 instructions less.
 */
template <int DTYPE>
HZ_DEVICE float project_tile(float sum[3][4], const uint32_t x[4][4], const slice &phi)
{
	const int lane = threadIdx.x % 32, token = lane / 4;
	float squares[2][4] = {}, more[3][4] = {};	/* two chains of products each */

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

/* A warp's share of the sums of all tiles */
template <int DTYPE, bool POST>
HZ_DEVICE void project(const hzi_mhc_fused &p, const place_of &b, memory<POST> &m)
{
	typedef memory<POST> all;
	const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
	const uint32_t first = kept(shared_address(m.tile[0].x[warp / 2]) +
				    place_in(lane % 8, warp % 2 * 4 + lane / 8));
	const uint32_t made = kept(shared_address(POST ? m.made : m.full));
	const uint32_t summed = kept(shared_address(m.summed));
	const uint32_t drained = kept(shared_address(m.drained));
	const uint32_t sums = kept(shared_address(&m.sums[0][warp][lane % 4 * 2][lane / 4]));
	const uint32_t squares =
		kept(shared_address(&m.sums[0][warp][lane / 4][HZI_FUSED_ROWS + lane % 4]));
	ring_position<all::stages> now;
	ring_position<all::slots> slot;
	bool loaded = false;
	uint32_t x[4][4];
	slice phi;

	load_phi<DTYPE>(p, b, phi);
	for (int t = 0; t < b.tiles; t++) {
		const uint32_t to = slot.at * (PROJECTORS * TILE * ROW * 4);
		const bool free = t < all::slots || is_over(drained + slot.at * 8, slot.parity ^ 1);
		float sum[3][4] = {}, square;

		if (!loaded) {
			mbarrier_wait(made + now.at * 8, now.parity);
			load_x(x, first + now.at * sizeof(stage<POST>));
		}
		square = project_tile<DTYPE>(sum, x, phi);
		now.next();
		/* The next, if it is there, while sums of this come out of the matrix units */
		loaded = t + 1 < b.tiles && is_over(made + now.at * 8, now.parity);
		if (loaded)
			load_x(x, first + now.at * sizeof(stage<POST>));
		if (!free)
			mbarrier_wait(drained + slot.at * 8, slot.parity ^ 1);
#pragma unroll
		for (int e = 0; e < 6; e++)
			store_shared(sums + to + (e % 2 * ROW + e / 2 * 8) * 4,
				     (sum[e / 2][e % 2] + sum[e / 2][e % 2 + 2]) *
					     (DTYPE == HZ_F16 ? phi.back[e / 2] : 1));
		store_shared(squares + to, square);
		mbarrier_arrive(summed + slot.at * 8);
		slot.next();
	}
}

/* One warp: a block's sums of each tile, to the block that owns it */
template <bool POST>
HZ_DEVICE void reduce(const place_of &b, memory<POST> &m)
{
	constexpr int slots = memory<POST>::slots;
	const int lane = threadIdx.x % 32, turns = HZI_FUSED_BLOCKS / b.ranks;

	for (int t = 0; t < b.tiles; t++) {
		const int owner = t & (b.ranks - 1), turn = t / b.ranks & (turns - 1);
		const uint32_t came = cluster_map(shared_address(&m.came[turn]), owner);
		const uint32_t to = cluster_map(
			shared_address(m.received[turn * b.ranks + b.rank]), owner);
		float4 sum[2];

		wait_turn<slots>(m.summed, t);
#pragma unroll
		for (int i = 0; i < 2; i++)
			sum[i] = sum_rows<PROJECTORS>(m.sums[t % slots][0][0] + vector_of(i) * 4,
						      PROJECTORS);
		mbarrier_arrive(shared_address(&m.drained[t % slots]));
#pragma unroll
		for (int i = 0; i < 2; i++) {
			if (i * 32 + lane < VECTORS)
				store_async(to + vector_of(i) * 16, sum[i].x, sum[i].y, sum[i].z,
					    sum[i].w, came);
		}
	}
}

/* ---- Streams and branch inputs --------------------------------------------------------------- */

/* One thread: tiles into stages */
template <bool POST>
HZ_DEVICE void load(const hzi_mhc_fused &p, const place_of &b, memory<POST> &m)
{
	constexpr int stages = memory<POST>::stages;

	tma_prefetch_map(p.x_map);
	for (int t = 0; t < b.tiles; t++) {
		const int first = tile_token(b, t), count = min(TILE, (int)p.tokens - first);
		const uint32_t full = shared_address(&m.full[t % stages]);
		stage<POST> &to = m.tile[t % stages];

		if (t >= stages)
			wait_turn<stages>(m.empty, t - stages);
		mbarrier_expect_tx(full,
				   b.boxes * (POST ? 5 : 4) * SHEET + (POST ? count * 80 : 0));
		for (int i = 0; i < b.boxes; i++)
			tma_load_3d(shared_address(to.x[i]), p.x_map,
				    (b.channel + i * HZI_FUSED_BOX) * 2, first, 0, full);
		if constexpr (POST) {
			for (int i = 0; i < b.boxes; i++)
				tma_load_3d(shared_address(to.f[i]), p.f_map,
					    (b.channel + i * HZI_FUSED_BOX) * 2, first, 0, full);
			bulk_copy(shared_address(to.a), p.post_a + first * 16, count * 64, full);
			bulk_copy(shared_address(to.q), p.post_q + first * 4, count * 16, full);
		}
	}
}

template <int DTYPE>
HZ_DEVICE void unpack_eight(float *v, uint4 x)
{
	unpack(DTYPE, x.x, v[0], v[1]);
	unpack(DTYPE, x.y, v[2], v[3]);
	unpack(DTYPE, x.z, v[4], v[5]);
	unpack(DTYPE, x.w, v[6], v[7]);
}

/* v[i] of 8 channels of four streams of a token, lane by lane */
template <int DTYPE>
HZ_DEVICE void load_lane(float v[4][8], const uint8_t (*x)[4][SHEET], int token)
{
	const int lane = threadIdx.x % 32;

#pragma unroll
	for (int i = 0; i < 4; i++)
		unpack_eight<DTYPE>(v[i], *(const uint4 *)(x[lane / 8][i] +
							   place_in(token, lane % 8)));
}

/* u of the tokens of a tile that a warp has */
template <int DTYPE>
HZ_DEVICE void mix_tokens(const hzi_mhc_fused &p, const place_of &b, int first, int begin,
			  const float4 *weight, const uint8_t (*x)[4][SHEET])
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
				   near_place(p.u, token, 0, b.channel + c)) =
				pack_eight<DTYPE>(v[i][0]);
	}
}

/* Streams after the branch of a token of a tile: stored, and where those before it were */
template <int DTYPE>
HZ_DEVICE void post_token(const hzi_mhc_fused &p, const place_of &b, int first, int i,
			  stage<true> &s, const float *bias)
{
	const int lane = threadIdx.x % 32, c = lane * 8, at = place_in(i, lane % 8);
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
		*(uint4 *)((uint16_t *)p.y.data + near_place(p.y, first + i, j, b.channel + c)) =
			packed;
	}
}

template <int DTYPE, bool POST>
HZ_DEVICE void mix(const hzi_mhc_fused &p, const place_of &b, memory<POST> &m)
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
				wait_turn<stages>(m.full, posted);
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
		wait_turn<stages>(m.weights, t);
		if (p.u.data)
			mix_tokens<DTYPE>(p, b, tile_token(b, t), begin, m.p[at], m.tile[at].x);
		__syncwarp();
		if (leads)
			mbarrier_arrive(shared_address(&m.empty[at]));
	}
}

/* ---- Coefficients ---------------------------------------------------------------------------- */

/* One warp: sums of the tiles that this block owns, and p of these to all blocks */
template <bool POST>
HZ_DEVICE void make_p(const hzi_mhc_fused &p, const place_of &b, memory<POST> &m)
{
	constexpr int batch = BATCH / TILE;
	const int lane = threadIdx.x % 32, token = lane % TILE, turns = HZI_FUSED_BLOCKS / b.ranks;
	const float columns = (float)(4 * p.channels), alpha = p.alpha ? p.alpha[0] : 0;
	const float bias[4] = {p.bias[0], p.bias[1], p.bias[2], p.bias[3]};
	int count = 0;

	for (int t = b.rank; t < b.tiles; t += b.ranks, count++) {
		const int turn = count & (turns - 1), at = t % memory<POST>::stages;
		const int part = count % batch, buffer = count / batch % 2;
		const float *rows = m.received[turn * b.ranks][0];
		const uint32_t came = shared_address(&m.came[turn]);
		const uint32_t weights = shared_address(&m.weights[at]);
		float4 sum[2], own;
		float weight[4], rho;

		if (lane == 0)
			mbarrier_expect_tx(came, b.ranks * TILE * ROW * 4);
		mbarrier_wait(came, count / turns & 1);
		/* All of it before p: who has that may send sums of the next tile. */
#pragma unroll
		for (int i = 0; i < 2; i++) {
			const int e = vector_of(i);

			sum[i] = sum_rows<HZI_FUSED_BLOCKS>(rows + e * 4, b.ranks);
			if (e % (ROW / 4) == ROW / 4 - 1)
				sum[i].x = (sum[i].x + sum[i].y + (sum[i].z + sum[i].w)) / columns;
		}
		rho = inverse_root(shuffle_vectors(sum, (token + 1) * (ROW / 4) - 1).x +
				   p.rule.rms_eps);
		own = shuffle_vectors(sum, token * (ROW / 4));

		const float y[4] = {rho * own.x, rho * own.y, rho * own.z, rho * own.w};

		hzi_mhc_coefs(4, &p.rule, false, y, &alpha, bias, weight, NULL, NULL);
#pragma unroll
		for (int i = 0; i < TILE / 2; i++) {
			const int from = lane / 16 * (TILE / 2) + i;
			float w[4];

#pragma unroll
			for (int e = 0; e < 4; e++)
				w[e] = __shfl_sync(0xffffffff, weight[e], from);
			if (lane % 16 < b.ranks)
				store_async(cluster_map(shared_address(&m.p[at][from]), lane % 16),
					    w[0], w[1], w[2], w[3],
					    cluster_map(weights, lane % 16));
		}
		if (part == 0 && count >= 2 * batch)
			barrier_sync(EMPTY + buffer, 64);
#pragma unroll
		for (int i = 0; i < 2; i++) {
			if (i * 32 + lane < VECTORS)
				((float4 *)m.batch[buffer][part * TILE])[i * 32 + lane] = sum[i];
		}
		if (part == batch - 1)
			barrier_arrive(FULL + buffer, 64);
	}
	if (count % batch)
		barrier_arrive(FULL + count / batch % 2, 64);
}

/* One warp: a lane for each token of a batch */
template <bool POST>
HZ_DEVICE void make_rest(const hzi_mhc_fused &p, const place_of &b, memory<POST> &m)
{
	constexpr int batch = BATCH / TILE;
	const int lane = threadIdx.x % 32, step = batch * b.ranks;

	for (int first = b.rank, buffer = 0; first < b.tiles; first += step, buffer ^= 1) {
		const int t = first + lane / TILE * b.ranks;

		barrier_sync(FULL + buffer, 64);
		if (t < b.tiles) {
			const int token = tile_token(b, t) + lane % TILE;

			if (token < (int)p.tokens)
				finish_token(p, m.batch[buffer][lane], token);
		}
		__syncwarp();
		if (first + 2 * step < b.tiles)
			barrier_arrive(EMPTY + buffer, 64);
	}
}
#endif

template <int DTYPE, bool POST>
HZ_DEVICE void fused(const hzi_mhc_fused &p)
{
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
	constexpr int stages = memory<POST>::stages;
	memory<POST> &m = *(memory<POST> *)shared_start();
	const place_of b = block_place(p);
	const int warp = threadIdx.x / 32;

	pdl_launch_dependents();
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
	if (threadIdx.x < HZI_FUSED_BLOCKS / 2)
		mbarrier_init(shared_address(&m.came[threadIdx.x]), 1);
	mbarrier_init_fence();
	/* Boxes that there are not: 0 */
	if (b.boxes < BOXES) {
		for (int e = threadIdx.x; e < (int)sizeof(m.tile) / 16; e += HZI_FUSED_THREADS)
			((uint4 *)m.tile)[e] = {};
		fence_proxy_async();
	}
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
			make_rest<POST>(p, b, m);
		else if (threadIdx.x % 32 == 0)
			load<POST>(p, b, m);
	}
	__syncwarp();
	/* Nobody ends while others send to it. */
	cluster_arrive();
	cluster_wait();
#endif
}

#define FUSED(name, dtype, post) \
	extern "C" __global__ void __launch_bounds__(HZI_FUSED_THREADS, 1) \
		name(const __grid_constant__ hzi_mhc_fused p) \
	{ \
		fused<dtype, post>(p); \
	}

FUSED(mhc_pre_fused_f16, HZ_F16, false)
FUSED(mhc_pre_fused_bf16, HZ_BF16, false)
FUSED(mhc_post_pre_fused_f16, HZ_F16, true)
FUSED(mhc_post_pre_fused_bf16, HZ_BF16, true)
