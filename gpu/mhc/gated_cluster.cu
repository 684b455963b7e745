/*
 * gated_cluster.cu - gated branch inputs of up to some hundred tokens in two launches, bf16, sm_90a
 *
 * SPDX-License-Identifier: BSD-2-Clause
 *
 * The first launch divides channels and rows of W_down between all SMs and adds sums up in clusters
 * of 8 blocks. In the second, each cluster makes all hidden numbers. Blocks send each other numbers
 * by asynchronous stores that complete on an mbarrier: the release of a cluster barrier would wait
 * for all memory operations. 16 contiguous bytes are the operands of two mma.sync with the steps of
 * k in another order, the same for both operands.
 */
#include "gpu/mhc/gated_cluster.h"
#include "gpu/mhc/gated_hidden.cuh"
#include "gpu/device/cp_async.cuh"
#include "gpu/device/wgmma_s8.cuh"

#if !defined(__CUDA_ARCH__) || defined(__CUDA_ARCH_FEAT_SM90_ALL)
#include "gpu/device/cluster.cuh"
#include "gpu/device/mbarrier.cuh"

#define CLUSTER HZI_MHC_CLUSTER
#define THREADS HZI_MHC_CLUSTER_THREADS
#define TOKENS HZI_MHC_CLUSTER_TOKENS
#define STREAMS HZI_MHC_CLUSTER_STREAMS
#define SLICE HZI_MHC_CLUSTER_SLICE
#define PARTS 2				/* of a slice: warps with the same rows */

/* Adds 32 steps of 16 rows, of row lane / 4 and that + 8, and 8 columns, of column lane / 4. */
HZ_DEVICE void multiply_add(float *sum, const uint32_t *row, const uint32_t *row8,
			    const uint32_t *b, int step)
{
	mma_m16n8k16<HZ_BF16>(sum, row[step], row8[step], row[step + 1], row8[step + 1], b[step],
			      b[step + 1]);
}

/*
 * The address of 16 bytes of a row of WORDS words, a multiple of 32. Eight lanes that load four
 * vectors of each of two rows have no bank conflict.
 */
template <int WORDS>
HZ_DEVICE uint32_t vector_of(uint32_t row0, int row, int vector)
{
	return row0 + row * WORDS * 4 + (vector ^ (row & 1) * 4) * 16;
}

/* ---- W_down and W_q times x ------------------------------------------------------------------ */

struct down_memory {
	/* For vectors of rows see vector_of(). */
	uint32_t x[TOKENS][SLICE / 2], w[HZI_MHC_CLUSTER_ROWS][SLICE / 2];
	uint32_t w_q[STREAMS][SLICE / 2];
	float gain[SLICE];
	/* Sums of all blocks: of 8 rows, and of 8 tokens W_q's rows and squares */
	float sums[CLUSTER][HZI_MHC_CLUSTER_ROWS / CLUSTER][TOKENS + 8];
	float q[CLUSTER][STREAMS][8], squares[CLUSTER][8];
	uint64_t full;			/* all of these have come */
};

static_assert(sizeof(down_memory) <= HZI_MHC_CLUSTER_DOWN_BYTES, "shared memory");

/*
 * Copies the first or second half of both parts of each row to shared memory; 0 beyond `valid`
 * vectors of `rows` rows.
 */
HZ_DEVICE void copy_rows(const uint32_t *to, const uint16_t *src, int64_t distance, int all,
			 int rows, int valid, int half)
{
	constexpr int VECTORS = SLICE / 8 / 2, STEP = THREADS / VECTORS;
	const int v = threadIdx.x % 8 + half * 8 + threadIdx.x / 8 % 2 * 16;
	const uint16_t *at = src + threadIdx.x / VECTORS * distance + v * 8;
	uint32_t dst = vector_of<SLICE / 2>(shared_address(to), threadIdx.x / VECTORS, v);

	static_assert(STEP % 2 == 0 && PARTS == 2 && SLICE == 256, "the same exchange of vectors");
#pragma unroll 2
	for (int row = threadIdx.x / VECTORS; row < all; row += STEP) {
		const bool in = row < rows && v < valid;

		cp_async_zfill(dst, in ? at : src, in ? 16 : 0);
		dst += STEP * SLICE * 2;
		at += STEP * distance;
	}
}

/* Eight weights times gain as two terms */
HZ_DEVICE void split_rows(uint32_t *w, uint32_t *low, const float *gain)
{
#pragma unroll
	for (int e = 0; e < 4; e++)
		w[e] = split_weights(bf16_low(w[e]) * gain[2 * e],
				     bf16_high(w[e]) * gain[2 * e + 1], low[e]);
}

struct down_block {
	int group, stream, first, channels, tokens;	/* first, channels: of this block */
	int64_t token;
};

HZ_DEVICE down_block make_down_block(const hzi_mhc_gated_job &p)
{
	const int index = blockIdx.x / CLUSTER, piece = index / p.row_tiles;
	const int first = (piece % p.stream_slices * CLUSTER + blockIdx.x % CLUSTER) * (int)p.slice;
	const int64_t token = (int64_t)blockIdx.y * TOKENS;

	return {index % p.row_tiles, piece / p.stream_slices, first,
		max(min((int)p.slice, (int)p.a.s.channels - first), 0),
		(int)min(p.a.s.tokens - token, (int64_t)TOKENS), token};
}

/*
 * The token at a place of down_memory::sums: pairs of tokens of two tiles of 8 alternate, so that
 * the four that a lane has are contiguous.
 */
HZ_DEVICE int token_at(int place)
{
	return place / 16 * 16 + place / 2 % 2 * 8 + place / 4 % 4 * 2 + place % 2;
}

/*
 * The products of a warp: 16 rows, half of the channels of the block and 8 NT tokens. Each block of
 * the cluster adds up 8 of W_down's rows, and of 8 tokens W_q's rows and squares.
 */
template <int NT>
HZ_DEVICE void down_warp(const hzi_mhc_gated_job &p, const down_block &b, down_memory &m)
{
	constexpr int SETS = NT == 2 ? 2 : 1;	/* of few sums, second terms have their own */
	const hzi_mhc_gated_args &a = p.a;
	const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, tile16 = warp % 4;
	const int part = warp / 4, source = blockIdx.x % CLUSTER;
	const bool with_q = a.q.data && part % p.row_tiles == b.group;
	const int left = max(b.channels - part * (SLICE / PARTS), 0);
	const int steps = (min(left, SLICE / PARTS) + 31) / 32;
	const uint32_t x_at = shared_address(m.x), w_at = shared_address(m.w);
	float sum[SETS][NT][4] = {}, q[2][4] = {}, squares[2] = {};

#pragma unroll 1
	for (int step = 0; step < SLICE / PARTS / 32; step++) {
		if (step < 2)
			cp_async_wait<1>();
		else
			cp_async_wait<0>();
		if (step % 2 == 0)
			__syncthreads();
		if (step >= steps)
			continue;

		const int v = part * (SLICE / PARTS / 8) + step * 4 + lane % 4;
		uint32_t w[2][4], low[2][4], wq[4] = {}, wq_low[4] = {}, x[NT][4];
		const uint32_t zero[4] = {};

#pragma unroll
		for (int h = 0; h < 2; h++)
			shared_load(w[h], vector_of<SLICE / 2>(w_at, tile16 * 16 + h * 8 + lane / 4,
							       v));
		if (with_q && lane / 4 < STREAMS)
			shared_load(wq, vector_of<SLICE / 2>(shared_address(m.w_q), lane / 4, v));
#pragma unroll
		for (int t = 0; t < NT; t++)
			shared_load(x[t], vector_of<SLICE / 2>(x_at, t * 8 + lane / 4, v));
		if (a.gain) {
			float gain[8];

			shared_load(gain, shared_address(m.gain + v * 8));
			shared_load(gain + 4, shared_address(m.gain + v * 8 + 4));
			split_rows(w[0], low[0], gain);
			split_rows(w[1], low[1], gain);
			if (with_q)
				split_rows(wq, wq_low, gain);
		}
#pragma unroll
		for (int e = 0; e < 2 * NT; e++)
			multiply_add(sum[0][e % NT], w[0], w[1], x[e % NT], e / NT * 2);
		if (a.gain) {
#pragma unroll
			for (int e = 0; e < 2 * NT; e++)
				multiply_add(sum[SETS - 1][e % NT], low[0], low[1], x[e % NT],
					     e / NT * 2);
		}
#pragma unroll
		for (int u = 0; u < 2; u++) {
			const int t = tile16 * 2 + u;
			uint32_t own[4];

			if (t >= NT || t * 8 >= b.tokens)
				continue;
			shared_load(own, vector_of<SLICE / 2>(x_at, t * 8 + lane / 4, v));
#pragma unroll
			for (int e = 0; e < 4; e++) {
				const float f = bf16_low(own[e]), g = bf16_high(own[e]);

				squares[u] = fmaf(f, f, fmaf(g, g, squares[u]));
			}
			if (!with_q)
				continue;
#pragma unroll
			for (int e = 0; e < 4; e += 2) {
				multiply_add(q[u], wq, zero, own, e);
				multiply_add(q[u], wq_low, zero, own, e);
			}
		}
	}
	/* The second half of the warps adds its sums to those of the first. */
	float *const halves = (float *)m.x + threadIdx.x % (THREADS / PARTS);

#pragma unroll
	for (int e = 0; SETS == 2 && e < NT * 4; e++)
		sum[0][e / 4][e % 4] += sum[SETS - 1][e / 4][e % 4];
	__syncthreads();
	if (part > 0) {
#pragma unroll
		for (int e = 0; e < NT * 4; e++)
			halves[e * (THREADS / PARTS)] = sum[0][e / 4][e % 4];
#pragma unroll
		for (int e = 0; e < 4; e++)
			halves[(NT * 4 + e) * (THREADS / PARTS)] = q[e / 2][e % 2];
		halves[(NT * 4 + 4) * (THREADS / PARTS)] = squares[0];
		halves[(NT * 4 + 5) * (THREADS / PARTS)] = squares[1];
	}
	__syncthreads();
	/* All blocks of the cluster have started. */
	cluster_wait();
	if (part > 0)
		return;
#pragma unroll
	for (int e = 0; e < NT * 4; e++)
		sum[0][e / 4][e % 4] += halves[e * (THREADS / PARTS)];
#pragma unroll
	for (int e = 0; e < 4; e++)
		q[e / 2][e % 2] += halves[(NT * 4 + e) * (THREADS / PARTS)];
	squares[0] += halves[(NT * 4 + 4) * (THREADS / PARTS)];
	squares[1] += halves[(NT * 4 + 5) * (THREADS / PARTS)];

	const uint32_t full = shared_address(&m.full);

#pragma unroll
	for (int h = 0; h < 2; h++) {
		const int block = tile16 * 2 + h;
		const uint32_t bar = cluster_map(full, block);
		const uint32_t to = cluster_map(
			shared_address(&m.sums[source][lane / 4][lane % 4 * 4]), block);

		/* Two tiles of 8 tokens: see token_at(). */
#pragma unroll
		for (int t = 0; t < NT; t += 2)
			store_async(to + t * 32, sum[0][t][h * 2], sum[0][t][h * 2 + 1],
				    sum[0][t + 1][h * 2], sum[0][t + 1][h * 2 + 1], bar);
	}
#pragma unroll
	for (int u = 0; u < 2; u++) {
		const int t = tile16 * 2 + u;
		const float square = warp_sum<4>(squares[u]);
		uint32_t bar;

		if (t >= NT)
			continue;
		bar = cluster_map(full, t);
		if (lane % 4 == 0)
			store_async(cluster_map(shared_address(&m.squares[source][lane / 4]), t),
				    __float_as_int(square), bar);
		if (lane / 4 < STREAMS) {
			const uint32_t to = cluster_map(
				shared_address(&m.q[source][lane / 4][lane % 4 * 2]), t);

			store_async(to, __float_as_int(q[u][0]), bar);
			store_async(to + 4, __float_as_int(q[u][1]), bar);
		}
	}
}

/* A block: 64 rows, up to 256 channels of a stream, 64 tokens. A cluster adds sums up. */
HZ_DEVICE void cluster_down(const hzi_mhc_gated_job &p)
{
	extern __shared__ __align__(16) uint32_t memory[];
	down_memory &m = *(down_memory *)memory;
	const hzi_mhc_gated_args &a = p.a;
	const down_block b = make_down_block(p);
	const int rank = blockIdx.x % CLUSTER, row0 = b.group * HZI_MHC_CLUSTER_ROWS;
	const int rows = (int)a.rank - row0, vectors = b.channels / 8;
	const int64_t K = a.s.n * a.s.channels, column = b.stream * a.s.channels + b.first;
	const int few = b.tokens <= 16 ? 16 : TOKENS;

	if (threadIdx.x == 0) {
		const int bytes = few * (int)sizeof(m.sums[0][0][0]) * CLUSTER *
				  (HZI_MHC_CLUSTER_ROWS / CLUSTER);

		mbarrier_init(shared_address(&m.full), 1);
		mbarrier_init_fence();
		mbarrier_expect_tx(shared_address(&m.full),
				   bytes + (rank < few / 8 ? sizeof(m.q) + sizeof(m.squares) : 0));
	}
	__syncwarp();
	cluster_arrive_relaxed();
	/* mhc_gated_cluster_up reads weights and streams before it waits: see gated_fused.cu. */
	pdl_wait();
	pdl_launch_dependents();
#pragma unroll 1
	for (int half = 0; half < 2; half++) {
		copy_rows(m.w[0], (const uint16_t *)a.w_down + row0 * K + column, K,
			  HZI_MHC_CLUSTER_ROWS, rows, vectors, half);
		copy_rows(m.x[0], (const uint16_t *)a.x.data + b.stream * a.x.stream +
			  b.token * a.x.token + b.first, a.x.token, few, b.tokens, vectors, half);
		if (a.q.data)
			copy_rows(m.w_q[0], (const uint16_t *)a.w_q + column, K, STREAMS, a.s.n,
				  vectors, half);
		if (half == 0 && a.gain && threadIdx.x < SLICE / 4)
			cp_async_zfill(shared_address(m.gain + threadIdx.x * 4),
				       a.gain + (threadIdx.x / 2 < vectors ?
						 column + threadIdx.x * 4 : 0),
				       threadIdx.x / 2 < vectors ? 16 : 0);
		cp_async_commit();
	}
	if (few == 16)
		down_warp<2>(p, b, m);
	else
		down_warp<TOKENS / 8>(p, b, m);
	mbarrier_wait(shared_address(&m.full), 0);

	const int64_t at = blockIdx.x / CLUSTER / p.row_tiles * a.s.tokens + b.token;
	const int place = threadIdx.x / 4, token = token_at(place), row = threadIdx.x % 4;
	const int first = rank * 8;
	float v[2] = {};

#pragma unroll 4
	for (int s = 0; s < CLUSTER; s++) {
		v[0] += m.sums[s][row][place];
		v[1] += m.sums[s][row + 4][place];
	}
	if (token < b.tokens) {
		float *const to = p.partial + (at + token) * p.pitch + row0 + first + row;

		if (first + row < rows)
			to[0] = v[0];
		if (first + row + 4 < rows)
			to[4] = v[1];
	}
	/* 32 threads have sums of W_q's rows, 8 have squares. */
	if (threadIdx.x < 40 && first + threadIdx.x % 8 < b.tokens) {
		const int t = threadIdx.x % 8, of = threadIdx.x / 8;
		const bool is_q = of < STREAMS;
		const float *const src = is_q ? &m.q[0][of][t] : &m.squares[0][t];
		const int step = is_q ? STREAMS * 8 : 8;

		v[0] = 0;
#pragma unroll 4
		for (int s = 0; s < CLUSTER; s++)
			v[0] += src[s * step];
		if (is_q)
			p.partial[(at + first + t) * p.pitch + a.rank + b.group * STREAMS + of] =
				v[0];
		else if (b.group == 0)
			p.squares[at + first + t] = v[0];
	}
}

/* ---- Hidden numbers, gates and their sums ---------------------------------------------------- */

#define CHANNELS HZI_MHC_CLUSTER_CHANNELS
#define PIECES (HZI_MHC_CLUSTER_RANK / 32)
#define WORDS (HZI_MHC_CLUSTER_RANK / 2)
#define X_PITCH (CHANNELS + 8)		/* values */

struct up_memory {
	/* For vectors of rows see vector_of(). */
	uint32_t w[STREAMS * CHANNELS][WORDS], hidden[2][TOKENS][WORDS];	/* two terms */
	uint16_t x[STREAMS][TOKENS][X_PITCH];
	float roots[TOKENS][STREAMS], gain[STREAMS][CHANNELS];
	float squares[THREADS / 32][HZI_MHC_CLUSTER_SLICES];
	uint64_t full;			/* hidden numbers and roots have come */
};

static_assert(sizeof(up_memory) <= HZI_MHC_CLUSTER_UP_BYTES, "shared memory");

HZ_DEVICE float inverse_of(float v)
{
	float r;

	asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(v));
	return r;
}

/* A call, so that the code of the common path is short */
HZI_MHC_RARE float rare_root(const hzi_mhc_gated_job &p, int64_t t, float *squares)
{
	float slope;

	return root_of_lane(p, t, squares, slope);
}

/*
 * Hidden numbers and roots of a token by a warp, a lane four of them. They are sent to `blocks`
 * blocks of the cluster from `to` on. The first cluster also stores q.
 */
HZ_DEVICE void make_hidden(const hzi_mhc_gated_job &p, up_memory &m, int64_t t, int token, int to,
			   int blocks)
{
	constexpr int AHEAD = 8;
	const hzi_mhc_gated_args &a = p.a;
	const int lane = threadIdx.x % 32, rank = (int)a.rank, step = (int)a.s.tokens * p.pitch;
	const bool in = lane * 4 < rank, with_q = a.q.data && blockIdx.x < CLUSTER;
	const float *const src = p.partial + t * p.pitch, *at = src + lane * 4;
	const int parts = p.stream_slices;
	const float share = inverse_of((float)a.s.n);
	float4 ahead[AHEAD], sum = {};
	float square = 0, own = 0, q = 0, rho, factor;

#pragma unroll
	for (int e = 0; e < AHEAD; e++) {
		ahead[e] = in && e < p.slices ? *(const float4 *)at : float4{};
		at += step;
	}
	/* W_q's products, of slice lane / 4 */
	if (with_q && lane / STREAMS < p.slices) {
		const float *const at_q = src + lane / STREAMS * step + rank + lane % STREAMS;

		q = at_q[0] + (p.row_tiles > 1 ? at_q[STREAMS] : 0);
	}
	if (lane < p.slices)
		square = p.squares[lane * a.s.tokens + t];
#pragma unroll 1
	for (int e = 0; e < parts; e++)
		own += __shfl_sync(0xffffffff, square, lane * parts + e);
	own *= inverse_of((float)a.s.channels);
	rho = own + a.rule.rms_eps;
	rho = rho == 0 ? 0 : rsqrtf(rho);
	if (__any_sync(0xffffffff, lane < a.s.n &&
		       hzi_mhc_leaves_f32(own, hzi_mhc_least_square(&a.rule))) ||
	    a.rule.rms_eps_rule != HZ_MHC_RMS_EPS_INSIDE)
		rho = rare_root(p, t, m.squares[threadIdx.x / 32]);
	rho = lane < a.s.n ? rho : 0;
	/* Of slice `lane`: that of its stream */
	factor = __shfl_sync(0xffffffff, rho,
			     (int)(((float)lane + 0.5f) * inverse_of((float)parts)));
#pragma unroll
	for (int e = 0; e < AHEAD; e++)
		sum = add_scaled(sum, __shfl_sync(0xffffffff, factor, e), ahead[e]);
#pragma unroll 1
	for (int e = AHEAD; e < p.slices; e++) {
		sum = add_scaled(sum, __shfl_sync(0xffffffff, factor, e),
				 in ? *(const float4 *)at : float4{});
		at += step;
	}

	float h[4] = {sum.x, sum.y, sum.z, sum.w};
	uint32_t high[2], low[2];

#pragma unroll
	for (int e = 0; e < 4; e++) {
		h[e] *= share;
		h[e] *= gate_of(h[e]);
	}
#pragma unroll
	for (int e = 0; e < 2; e++)
		high[e] = split_weights(h[2 * e], h[2 * e + 1], low[e]);

	/* Even lanes send 8 first terms, odd lanes 8 second ones. */
	const bool odd = lane % 2;
	const uint32_t other[2] = {__shfl_xor_sync(0xffffffff, odd ? high[0] : low[0], 1),
				   __shfl_xor_sync(0xffffffff, odd ? high[1] : low[1], 1)};
	const uint32_t words = vector_of<WORDS>(shared_address(m.hidden[odd]), token, lane / 2);
	const uint32_t roots = shared_address(&m.roots[token][lane % STREAMS]);
	const uint32_t full = shared_address(&m.full);

#pragma unroll 1
	for (int block = to; block < to + blocks; block++) {
		const uint32_t bar = cluster_map(full, block);

		store_async(cluster_map(words, block), (int)(odd ? other[0] : high[0]),
			    (int)(odd ? other[1] : high[1]), (int)(odd ? low[0] : other[0]),
			    (int)(odd ? low[1] : other[1]), bar);
		if (lane < STREAMS)
			store_async(cluster_map(roots, block), __float_as_int(rho), bar);
	}
	if (!with_q)
		return;
	q *= __shfl_sync(0xffffffff, factor, lane / STREAMS);
	for (int e = AHEAD; e < p.slices; e++) {
		const float *const at_q = src + e * step + rank + lane % STREAMS;
		const float f = __shfl_sync(0xffffffff, factor, e);

		if (lane < STREAMS)
			q = fmaf(f, at_q[0] + (p.row_tiles > 1 ? at_q[STREAMS] : 0), q);
	}
	q += __shfl_xor_sync(0xffffffff, q, 4);
	q += __shfl_xor_sync(0xffffffff, q, 8);
	q += __shfl_xor_sync(0xffffffff, q, 16);
	if (lane < a.s.n)
		*coef_at(a.q, t, lane, 0) = fmaf(a.rule.q_scale, gate_of(q * share), a.rule.q_eps);
}

/*
 * A block: 32 channels of each stream, 64 tokens; a warp 8 channels and 32 tokens. Each block of a
 * cluster makes the hidden numbers of 8 tokens for all; of up to 8 tokens each makes all. Second
 * terms of hidden numbers are multiplied by finite weights: see finite_pair().
 */
HZ_DEVICE void cluster_up(const hzi_mhc_gated_job &p)
{
	extern __shared__ __align__(16) uint32_t memory[];
	up_memory &m = *(up_memory *)memory;
	const hzi_mhc_gated_args &a = p.a;
	const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, octet = warp % 4 * 8, n = a.s.n;
	const int rank = blockIdx.x % CLUSTER, C = (int)a.s.channels, row0 = warp / 4 * 32;
	const int64_t t0 = (int64_t)blockIdx.y * TOKENS;
	const int tokens = (int)min(a.s.tokens - t0, (int64_t)TOKENS);
	const int c0 = blockIdx.x * CHANNELS, left = C - c0;
	const bool alone = tokens <= 8;
	const float share = inverse_of((float)n);
	float sum[2][STREAMS][4] = {};
	float2 gain[STREAMS];
	bool infinite = false;

	if (threadIdx.x == 0) {
		mbarrier_init(shared_address(&m.full), 1);
		mbarrier_init_fence();
	}
	__syncwarp();
	cluster_arrive_relaxed();
	{
		const int v = threadIdx.x % 16, channel = threadIdx.x / 16;
		const uint16_t *at = (const uint16_t *)a.w_up + (c0 + channel) * a.rank + v * 8;
		uint32_t dst = vector_of<WORDS>(shared_address(m.w), channel, v);

#pragma unroll 2
		for (int e = 0; e < 2 * STREAMS; e++) {
			const int half = e % 2 * 16;
			const bool in = channel + half < left && v * 8 < a.rank && e / 2 < n;

			cp_async_zfill(dst + half * WORDS * 4, in ? at + half * a.rank : a.w_up,
				       in ? 16 : 0);
			if (half) {
				dst += CHANNELS * WORDS * 4;
				at += C * a.rank;
			}
		}
	}
	{
		const int v = threadIdx.x % 4 * 8, token = threadIdx.x / 4;
		const uint16_t *at = (const uint16_t *)a.x.data + (t0 + token) * a.x.token + c0 + v;
		uint32_t dst = shared_address(&m.x[0][token][v]);

#pragma unroll 1
		for (int i = 0; i < STREAMS; i++) {
			const bool in = i < n && token < tokens && v < left;

			cp_async_zfill(dst, in ? at : a.x.data, in ? 16 : 0);
			dst += sizeof(m.x[0]);
			at += a.x.stream;
		}
	}
	cp_async_commit();
	if (threadIdx.x < STREAMS * CHANNELS) {
		const int i = threadIdx.x / CHANNELS, at = threadIdx.x % CHANNELS;

		m.gain[i][at] = a.gain && i < n && at < left ? a.gain[i * C + c0 + at] : 1;
	}
	cp_async_wait<0>();
	__syncthreads();
#pragma unroll 2
	for (int e = threadIdx.x * 4; e < STREAMS * CHANNELS * WORDS; e += THREADS * 4) {
		const uint4 v = *(const uint4 *)(m.w[0] + e);

		infinite |= finite_pair(v.x) != v.x || finite_pair(v.y) != v.y ||
			    finite_pair(v.z) != v.z || finite_pair(v.w) != v.w;
	}
	infinite = __syncthreads_or(infinite);
	if (threadIdx.x == 0)
		mbarrier_expect_tx(shared_address(&m.full),
				   tokens * (int)(2 * sizeof(m.hidden[0][0]) + sizeof(m.roots[0])));
	__syncwarp();
	pdl_launch_dependents();
	pdl_wait();
	cluster_wait();
	{
		const int token = (alone ? 0 : rank * 8) + warp;

		if (token < tokens)
			make_hidden(p, m, t0 + token, token, alone ? rank : 0, alone ? 1 : CLUSTER);
	}
	mbarrier_wait(shared_address(&m.full), 0);
	if (!a.u.data || row0 >= tokens || octet >= left)
		return;

	const auto multiply = [&](auto tiles, int term) {
#pragma unroll
		for (int k = 0; k < PIECES; k++) {
			const int v = k * 4 + lane % 4;
			uint32_t h[2][2][4], w[STREAMS][4];

#pragma unroll
			for (int e = 0; e < 2 * tiles.value; e++)
				shared_load(h[e / 2][e % 2],
					    vector_of<WORDS>(shared_address(m.hidden[term]),
							     row0 + e * 8 + lane / 4, v));
#pragma unroll
			for (int i = 0; i < STREAMS; i++)
				shared_load(w[i], vector_of<WORDS>(shared_address(m.w),
								   i * CHANNELS + octet +
									   lane / 4, v));
			if (term && infinite) {
#pragma unroll
				for (int e = 0; e < STREAMS * 4; e++)
					w[e / 4][e % 4] = finite_pair(w[e / 4][e % 4]);
			}
#pragma unroll
			for (int e = 0; e < 2 * tiles.value * STREAMS; e++) {
				const int tile = e % tiles.value, i = e / tiles.value % STREAMS;

				multiply_add(sum[tile][i], h[tile][0], h[tile][1], w[i],
					     e / tiles.value / STREAMS * 2);
			}
		}
	};

#pragma unroll 1
	for (int term = 0; term < 2; term++) {
		if (row0 + 16 < tokens)
			multiply(std_int<2>(), term);
		else
			multiply(std_int<1>(), term);
	}

	const int at = octet + lane % 4 * 2;

#pragma unroll
	for (int i = 0; i < STREAMS; i++)
		gain[i] = *(const float2 *)&m.gain[i][at];
#pragma unroll
	for (int e = 0; e < 4; e++) {
		const int t = row0 + e * 8 + lane / 4;
		float rho[STREAMS], u[2] = {};

		if (t >= tokens)
			continue;
		shared_load(rho, shared_address(m.roots[t]));
#pragma unroll
		for (int i = 0; i < STREAMS; i++) {
			const uint32_t x = *(const uint32_t *)&m.x[i][t][at];
			const float *const z = sum[e / 2][i] + e % 2 * 2;

			u[0] = fmaf(gate_of(z[0]), bf16_low(x) * (rho[i] * gain[i].x), u[0]);
			u[1] = fmaf(gate_of(z[1]), bf16_high(x) * (rho[i] * gain[i].y), u[1]);
		}
		*(uint32_t *)((uint16_t *)a.u.data + offset(a.u, t0 + t, 0, c0 + at)) =
			to_bf16x2(u[0] * share, u[1] * share);
	}
}
#endif

#define KERNEL(name, call) \
	extern "C" __global__ void __launch_bounds__(HZI_MHC_CLUSTER_THREADS, 2) \
		name(const __grid_constant__ hzi_mhc_gated_job p) \
	{ \
		HZ_HOPPER_BODY(call) \
	}

KERNEL(mhc_gated_cluster_down, cluster_down(p))
KERNEL(mhc_gated_cluster_up, cluster_up(p))
