/*
 * mhc_pre_fused.cu - coefficients and branch inputs of four streams in one pass, on Hopper
 *
 * SPDX-License-Identifier: BSD-2-Clause
 *
 * A cluster takes tiles of 16 tokens in turn; each of its blocks has a slice of the channels in all
 * four streams. phi of the slice, as two parts of bf16, stays in registers: a warp has 16 channels.
 * Of each tile, blocks send their sums of a token to the one that owns it; a warp there makes p of
 * them and sends it to all, and these make u of the tile, which is still in shared memory: x is
 * read once. The other coefficients are made by another warp, 32 tokens at a time, so that nobody
 * waits for Sinkhorn.
 *
 *     iteration t | project tile t | send its sums | u of tile t - delay | load t - delay + stages
 *
 * Sums have a fixed order: channels of a warp, warps, blocks.
 */
#include "gpu/mhc_pre.cuh"
#include "gpu/mhc_pre_fused.h"

#if __CUDA_ARCH__ >= 900
#include "gpu/tma.cuh"

#define TILE HZI_FUSED_TILE
#define WORKERS 16			/* warps; one more makes p, one more the rest */
#define LINE (8 * HZI_FUSED_CHANNELS + 16)	/* bytes of a token: rows meet no bank twice */
#define PIECE (2 * HZI_FUSED_CHANNELS)	/* of a stream's */
#define DEPTH 8				/* tiles whose sums or p may be under way */
#define BATCH 32			/* tokens whose other coefficients are made at a time */

/*
 * A block is at most `delay` tiles ahead of p of all tokens, so that sums of tile t + 8 meet those
 * of t nowhere.
 */
struct memory {
	uint8_t x[HZI_FUSED_STAGES][TILE][LINE];
	float sums[WORKERS][TILE][HZI_FUSED_ROWS], squares[WORKERS][TILE];
	float received[DEPTH][HZI_FUSED_BLOCKS][HZI_FUSED_ROWS + 4];	/* the 25th: squares */
	float p[DEPTH][TILE][4];
	float batch[2][BATCH][HZI_FUSED_ROWS + 5];
	uint64_t came[DEPTH], weights[DEPTH];
};

static_assert(sizeof(memory) + 1024 <= HZI_FUSED_BYTES, "shared memory");

enum { ALL_WORKERS = 1, FULL = 2, EMPTY = 4 };	/* named barriers; two of the last each */

HZ_DEVICE void wait_named(int barrier, int threads)
{
	asm volatile("barrier.sync %0, %1;" :: "r"(barrier), "r"(threads) : "memory");
}

HZ_DEVICE void arrive_named(int barrier, int threads)
{
	asm volatile("barrier.arrive %0, %1;" :: "r"(barrier), "r"(threads) : "memory");
}

/* As store_async(), of 4 bytes */
HZ_DEVICE void store_async_one(uint32_t to, float a, uint32_t barrier)
{
	asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.f32 "
		     "[%0], %1, [%2];" :: "r"(to), "f"(a), "r"(barrier) : "memory");
}

/* As multiply_bf16() */
HZ_DEVICE void multiply_f16(float *c, const uint32_t *a, uint32_t b0, uint32_t b1)
{
	asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, "
	    "{%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
	    : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
	    : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

/* What a block does */
struct place_of {
	int rank, ranks;
	int cluster, clusters, tiles;	/* tiles: of this cluster */
	int channel, channels;		/* the first, of so many */
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
	return b;
}

HZ_DEVICE int tile_token(const place_of &b, int t)
{
	return (b.cluster + t * b.clusters) * TILE;
}

/* A tile, if it is one, on its way into its stage: a warp for each token */
HZ_DEVICE void load_tile(const hzi_mhc_fused &p, const place_of &b, memory &m, int t)
{
	const int stage = t % HZI_FUSED_STAGES, warp = threadIdx.x / 32;
	const int c = threadIdx.x % 32 * 8;
	const int token = tile_token(b, t) + warp;
	const bool copies = token < (int)p.tokens && c < b.channels;
	const uint16_t *from = (const uint16_t *)p.x.data;

	if (t < b.tiles) {
		if (copies)
			from += near_place(p.x, token, 0, b.channel + c);
#pragma unroll
		for (int i = 0; i < 4; i++)
			copy_or_clear(shared_address(&m.x[stage][warp][i * PIECE + c * 2]),
				      copies ? from + i * p.x.stream : from, copies);
	}
	copy_group();
}

/* ---- Workers --------------------------------------------------------------------------------- */

/* phi of a warp's 16 channels in each stream, by tiles of 8 rows, as mma wants it */
struct slice {
	uint32_t high[4][3][2], low[4][3][2];
};

HZ_DEVICE void load_phi(const hzi_mhc_fused &p, const place_of &b, slice &phi)
{
	const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;

#pragma unroll
	for (int i = 0; i < 4; i++) {
#pragma unroll
		for (int e = 0; e < 6; e++) {
			const int k = e / 2 * 8 + lane / 4;
			const int c = warp * 16 + e % 2 * 8 + lane % 4 * 2;
			const int64_t at = i * p.channels + b.channel + c;
			float2 v = {}, gain = {1, 1};

			if (k < p.rule.m && c < b.channels) {
				v = *(const float2 *)(p.phi + k * 4 * p.channels + at);
				if (p.gain)
					gain = *(const float2 *)(p.gain + at);
			}
			phi.high[i][e / 2][e % 2] = split_pair(v.x * gain.x, v.y * gain.y,
							       phi.low[i][e / 2][e % 2]);
		}
	}
}

/* A warp's share of the sums of a tile */
template <int DTYPE>
HZ_DEVICE void project(memory &m, int stage, const slice &phi)
{
	const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
	const uint32_t row = shared_address(&m.x[stage][lane % 16][warp * 32 + lane / 16 * 16]);
	float sum[3][4] = {};
	float squares[2][4] = {};	/* products of tokens by tokens 0 .. 7, 8 .. 15 */

#pragma unroll
	for (int i = 0; i < 4; i++) {
		uint32_t x[4], rest[4];

		load_matrices(x, row + i * PIECE);
		if (DTYPE == HZ_F16) {
			multiply_f16(squares[0], x, x[0], x[2]);
			multiply_f16(squares[1], x, x[1], x[3]);
#pragma unroll
			for (int e = 0; e < 4; e++)
				x[e] = split_pair(f16_low(x[e]), f16_high(x[e]), rest[e]);
		} else {
			multiply_bf16(squares[0], x, x[0], x[2]);
			multiply_bf16(squares[1], x, x[1], x[3]);
		}
#pragma unroll
		for (int tile = 0; tile < 3; tile++) {
			const uint32_t *h = phi.high[i][tile], *l = phi.low[i][tile];

			multiply_bf16(sum[tile], x, h[0], h[1]);
			multiply_bf16(sum[tile], x, l[0], l[1]);
			if (DTYPE == HZ_F16)
				multiply_bf16(sum[tile], rest, h[0], h[1]);
		}
	}
#pragma unroll
	for (int half = 0; half < 2; half++) {
		const int token = lane / 4 + half * 8;

#pragma unroll
		for (int tile = 0; tile < 3; tile++)
			*(float2 *)&m.sums[warp][token][tile * 8 + lane % 4 * 2] =
				{sum[tile][half * 2], sum[tile][half * 2 + 1]};
		/* The diagonal */
		if (lane / 8 == lane % 4)
			m.squares[warp][token] = lane / 4 % 2 ? squares[half][half * 2 + 1] :
								squares[half][half * 2];
	}
}

/* A block's sums of a tile, each token's to the block that owns it */
HZ_DEVICE void send_sums(const place_of &b, memory &m, int at)
{
	const int e = threadIdx.x, token = e < TILE * 6 ? e / 6 : e - TILE * 6;
	const int owner = token % b.ranks, slot = token / b.ranks * b.ranks + b.rank;
	const uint32_t barrier = cluster_map(shared_address(&m.came[at]), owner);
	const uint32_t to = cluster_map(shared_address(&m.received[at][slot][0]), owner);

	if (e < TILE * 6) {
		const int k = e % 6 * 4;
		float4 sum = *(const float4 *)&m.sums[0][token][k];

#pragma unroll
		for (int w = 1; w < WORKERS; w++) {
			const float4 v = *(const float4 *)&m.sums[w][token][k];

			sum.x += v.x;
			sum.y += v.y;
			sum.z += v.z;
			sum.w += v.w;
		}
		store_async(to + k * 4, sum.x, sum.y, sum.z, sum.w, barrier);
	} else if (e < TILE * 7) {
		float sum = m.squares[0][token];

#pragma unroll
		for (int w = 1; w < WORKERS; w++)
			sum += m.squares[w][token];
		store_async_one(to + HZI_FUSED_ROWS * 4, sum, barrier);
	}
}

/* v[i] of 8 channels of four streams: a token's line, lane by lane */
template <int DTYPE>
HZ_DEVICE void load_lane(float v[4][8], const uint8_t *line)
{
#pragma unroll
	for (int i = 0; i < 4; i++) {
		const uint4 x = *(const uint4 *)(line + i * PIECE + threadIdx.x % 32 * 16);

		unpack(DTYPE, x.x, v[i][0], v[i][1]);
		unpack(DTYPE, x.y, v[i][2], v[i][3]);
		unpack(DTYPE, x.z, v[i][4], v[i][5]);
		unpack(DTYPE, x.w, v[i][6], v[i][7]);
	}
}

/* u of a tile, a warp for each token */
template <int DTYPE>
HZ_DEVICE void mix_tile(const hzi_mhc_fused &p, const place_of &b, memory &m, int t)
{
	const int warp = threadIdx.x / 32, c = threadIdx.x % 32 * 8;
	const int token = tile_token(b, t) + warp;
	const float4 weight = *(const float4 *)m.p[t % DEPTH][warp];
	float v[4][8];

	if (!p.u.data || token >= (int)p.tokens || c >= b.channels)
		return;
	load_lane<DTYPE>(v, m.x[t % HZI_FUSED_STAGES][warp]);
#pragma unroll
	for (int e = 0; e < 8; e++) {
		v[0][e] = weight.x * v[0][e];
		v[0][e] = fmaf(weight.y, v[1][e], v[0][e]);
		v[0][e] = fmaf(weight.z, v[2][e], v[0][e]);
		v[0][e] = fmaf(weight.w, v[3][e], v[0][e]);
	}
	*(uint4 *)((uint16_t *)p.u.data + near_place(p.u, token, 0, b.channel + c)) =
		pack_eight<DTYPE>(v[0]);
}

template <int DTYPE>
HZ_DEVICE void work(const hzi_mhc_fused &p, const place_of &b, memory &m)
{
	constexpr int stages = HZI_FUSED_STAGES, delay = 3;
	const int warp = threadIdx.x / 32;
	const bool has_channels = warp * 16 < b.channels;
	slice phi;

#pragma unroll
	for (int t = 0; t < stages; t++)
		load_tile(p, b, m, t);
	load_phi(p, b, phi);
	copy_wait_for<stages - 1>();
	wait_named(ALL_WORKERS, WORKERS * 32);
	cluster_wait();
	for (int t = 0; t < b.tiles + delay; t++) {
		const int u = t - delay;

		if (t < b.tiles) {
			if (threadIdx.x == 0)
				barrier_expect(shared_address(&m.weights[t % DEPTH]), TILE * 16);
			if (has_channels) {
				project<DTYPE>(m, t % stages, phi);
			} else {
				float *sums = &m.sums[warp][0][0];

				for (int e = threadIdx.x % 32; e < TILE * HZI_FUSED_ROWS; e += 32)
					sums[e] = 0;
				if (threadIdx.x % 32 < TILE)
					m.squares[warp][threadIdx.x % 32] = 0;
			}
			wait_named(ALL_WORKERS, WORKERS * 32);
			send_sums(b, m, t % DEPTH);
		}
		if (u >= 0) {
			barrier_wait(shared_address(&m.weights[u % DEPTH]), u / DEPTH & 1);
			mix_tile<DTYPE>(p, b, m, u);
		}
		/* Of the tiles t + 1 .. u + stages - 1, the next is there. */
		copy_wait_for<stages - delay - 2>();
		wait_named(ALL_WORKERS, WORKERS * 32);
		if (u >= 0)
			load_tile(p, b, m, u + stages);
	}
}

/* ---- Coefficients ---------------------------------------------------------------------------- */

/* 1 / sqrt(mean square + eps), or 0 */
HZ_DEVICE float inverse_root(float mean)
{
	return mean == 0 ? 0 : 1 / sqrtf(mean);
}

/* One warp: sums of the tokens that this block owns, and p of these to all blocks */
HZ_DEVICE void make_p(const hzi_mhc_fused &p, const place_of &b, memory &m)
{
	const int lane = threadIdx.x % 32, slots = TILE / b.ranks;
	const float columns = (float)(4 * p.channels);
	int count = 0;

	cluster_wait();
	for (int t = 0; t < b.tiles; t++) {
		const int at = t % DEPTH;
		const uint32_t came = shared_address(&m.came[at]);

		if (lane == 0)
			barrier_expect(came, TILE * (HZI_FUSED_ROWS + 1) * 4);
		barrier_wait(came, t / DEPTH & 1);
		for (int slot = 0; slot < slots; slot++, count++) {
			const int half = count / BATCH % 2;
			float sum = 0, y[4], weight[4], mean, rho;

			if (lane <= HZI_FUSED_ROWS) {
#pragma unroll
				for (int r = 0; r < HZI_FUSED_BLOCKS; r++)
					sum += r < b.ranks ?
						       m.received[at][slot * b.ranks + r][lane] : 0;
			}
			mean = __shfl_sync(0xffffffff, sum, HZI_FUSED_ROWS) / columns;
			rho = inverse_root(mean + p.rule.rms_eps);
#pragma unroll
			for (int i = 0; i < 4; i++)
				y[i] = rho * __shfl_sync(0xffffffff, sum, i);
			hzi_mhc_coefs(4, &p.rule, false, y, p.alpha, p.bias, weight, NULL, NULL);
			if (lane < b.ranks)
				store_async(cluster_map(shared_address(
						    m.p[at][slot * b.ranks + b.rank]), lane),
					    weight[0], weight[1], weight[2], weight[3],
					    cluster_map(shared_address(&m.weights[at]), lane));
			if (count % BATCH == 0 && count >= 2 * BATCH)
				wait_named(EMPTY + half, 64);
			if (lane <= HZI_FUSED_ROWS)
				m.batch[half][count % BATCH][lane] =
					lane < HZI_FUSED_ROWS ? sum : mean;
			if (count % BATCH == BATCH - 1)
				arrive_named(FULL + half, 64);
		}
	}
	if (count % BATCH)
		arrive_named(FULL + count / BATCH % 2, 64);
}

/* All coefficients of a token, from its sums and mean square */
HZ_DEVICE void finish_token(const hzi_mhc_fused &p, const float *sums, int64_t token)
{
	const float rho = inverse_root(sums[HZI_FUSED_ROWS] + p.rule.rms_eps);
	const int rows = p.rule.m;
	float y[HZI_FUSED_ROWS], pre[4], post[4], mix[16];

#pragma unroll
	for (int k = 0; k < HZI_FUSED_ROWS; k++)
		y[k] = rho * sums[k];
	hzi_mhc_coefs(4, &p.rule, rows > 4, y, p.alpha, p.bias, pre, post, mix);
#pragma unroll
	for (int i = 0; i < 4; i++) {
		if (p.p.data)
			*coef_at(p.p, token, i, 0) = pre[i];
		if (p.q.data)
			*coef_at(p.q, token, i, 0) = post[i];
#pragma unroll
		for (int j = 0; j < 4; j++) {
			if (p.a.data)
				*coef_at(p.a, token, i, j) = mix[i * 4 + j];
		}
	}
	if (p.saved) {
		float *saved = p.saved + token * (rows + 1);

		for (int k = 0; k < rows; k++)
			saved[k] = sums[k];
		saved[rows] = sums[HZI_FUSED_ROWS];
	}
}

/* One warp: a lane for each token of a batch */
HZ_DEVICE void make_rest(const hzi_mhc_fused &p, const place_of &b, memory &m)
{
	const int lane = threadIdx.x % 32, slots = TILE / b.ranks;
	const int all = b.tiles * slots;

	cluster_wait();
	for (int first = 0; first < all; first += BATCH) {
		const int half = first / BATCH % 2;
		const int e = first + lane;

		wait_named(FULL + half, 64);
		if (e < all) {
			const int token =
				tile_token(b, e / slots) + e % slots * b.ranks + b.rank;

			if (token < (int)p.tokens)
				finish_token(p, m.batch[half][lane], token);
		}
		__syncwarp();
		if (first + 2 * BATCH < all)
			arrive_named(EMPTY + half, 64);
	}
}
#endif

template <int DTYPE>
HZ_DEVICE void fused(const hzi_mhc_fused &p)
{
#if __CUDA_ARCH__ >= 900
	memory &m = *(memory *)shared_start();
	const place_of b = block_place(p);
	const int warp = threadIdx.x / 32;

	grid_next();
	if (threadIdx.x < DEPTH) {
		barrier_init(shared_address(&m.came[threadIdx.x]), 1);
		barrier_init(shared_address(&m.weights[threadIdx.x]), 1);
	}
	if (threadIdx.x < 32)
		barrier_init_fence();
	__syncthreads();
	cluster_arrive();
	grid_wait();
	if (warp < WORKERS)
		work<DTYPE>(p, b, m);
	else if (warp == WORKERS)
		make_p(p, b, m);
	else
		make_rest(p, b, m);
	__syncwarp();
	/* Nobody ends while others send to it. */
	cluster_arrive();
	cluster_wait();
#endif
}

#define FUSED(name, dtype) \
	extern "C" __global__ void __launch_bounds__(HZI_FUSED_THREADS) \
		name(const __grid_constant__ hzi_mhc_fused p) \
	{ \
		fused<dtype>(p); \
	}

FUSED(mhc_pre_fused_f16, HZ_F16)
FUSED(mhc_pre_fused_bf16, HZ_BF16)
