/*
 * gated_wgmma.cu - products of gated branch inputs of many tokens by TMA and wgmma, sm_90a
 *
 * SPDX-License-Identifier: BSD-2-Clause
 *
 * Takes the places of mhc_gated_down_many and mhc_gated_up_many of gated_fused.cu, whose other
 * kernels run before and between. One thread loads tiles by TMA; two warpgroups multiply, with the
 * A operand in registers: reads of shared memory would be the limit.
 */
#include "gpu/mhc/gated_hidden.cuh"
#include "gpu/device/wgmma_f16.cuh"

/* ---- Hidden numbers -------------------------------------------------------------------------- */

#define AHEAD HZI_MHC_WARPS_AHEAD

/*
 * What mhc_gated_hidden does, for more tokens and fewer slices: a warp has a token, a lane four
 * hidden numbers, and of q a slice of two times four.
 */
extern "C" __global__ void __launch_bounds__(HZI_MHC_WARPS_TOKENS * 32)
	mhc_gated_hidden_warps(const __grid_constant__ hzi_mhc_gated_job p)
{
	__shared__ float squares[HZI_MHC_WARPS_TOKENS][HZI_MHC_GATED_SLICES];
	const hzi_mhc_gated_args &a = p.a;
	const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, n = a.s.n;
	const int rank = (int)a.rank, row = lane * 4, of_q = p.rows > rank ? (n + 3) / 4 : 0;
	const int64_t t = (int64_t)blockIdx.x * HZI_MHC_WARPS_TOKENS + warp, T = a.s.tokens;
	const int64_t step = T * p.pitch / 4;
	const float4 *const src = (const float4 *)(p.partial + t * p.pitch);
	const float share = 1.0f / (float)n;
	float4 ahead[AHEAD], q[2] = {}, sum = {};
	float rho, slope, unused;

	pdl_launch_dependents();
	pdl_wait();
	if (t >= T)
		return;
	const auto load = [&](int first) {
#pragma unroll
		for (int e = 0; e < AHEAD; e++) {
			if (row < rank && first + e < p.slices)
				ahead[e] = src[lane + (first + e) * step];
		}
	};

	load(0);
	rho = root_of_lane(p, t, squares[warp], unused);
	if (lane < n)
		p.roots[t * n + lane] = rho;
	for (int first = 0; of_q && first < p.slices; first += 32) {
		const int s = first + lane, i = s / p.stream_slices;
		const float factor = __shfl_sync(0xffffffff, rho, i % 32);

#pragma unroll
		for (int v = 0; v < 2; v++) {
			if (s < p.slices && v < of_q)
				q[v] = add_scaled(q[v], factor, src[rank / 4 + v + s * step]);
		}
	}
	for (int first = 0; first < p.slices; first += AHEAD) {
#pragma unroll
		for (int e = 0; e < AHEAD; e++) {
			const int i = (first + e) / p.stream_slices;
			const float factor = __shfl_sync(0xffffffff, rho, i % 32);

			if (first + e < p.slices)
				sum = add_scaled(sum, factor, ahead[e]);
		}
		load(first + AHEAD);
	}
	if (row < rank) {
		float h[4] = {sum.x, sum.y, sum.z, sum.w};
		uint32_t high[2], low[2];

#pragma unroll
		for (int e = 0; e < 4; e++) {
			h[e] *= p.scales[row + e] * share;
			h[e] *= hzi_mhc_sigma(h[e], &slope);
		}
#pragma unroll
		for (int e = 0; e < 2; e++)
			high[e] = split_weights(h[2 * e], h[2 * e + 1], low[e]);
		*(uint2 *)(p.hidden + t * rank + row) = {high[0], high[1]};
		*(uint2 *)(p.hidden + (T + t) * rank + row) = {low[0], low[1]};
	}
	if (!a.q.data)
		return;
#pragma unroll
	for (int e = 0; e < 8; e++) {
		const float *const of = (const float *)&q[e / 4];
		float z = warp_sum(of[e % 4]);

		if (lane != e || e >= n)
			continue;
		z *= p.scales[rank + e] * share;
		*coef_at(a.q, t, e, 0) =
			fmaf(a.rule.q_scale, hzi_mhc_sigma(z, &slope), a.rule.q_eps);
	}
}

#if !defined(__CUDA_ARCH__) || defined(__CUDA_ARCH_FEAT_SM90_ALL)
#include "gpu/device/tma.cuh"

#define CHUNK HZI_MHC_GATED_CHUNK

/* ---- W_down and W_q times x ------------------------------------------------------------------ */

#define DOWN_TOKENS HZI_MHC_GATED_DOWN_TOKENS
#define DOWN_ROWS HZI_MHC_GATED_DOWN_ROWS
#define DOWN_STAGES 3

struct down_memory {
	uint8_t x[DOWN_STAGES][DOWN_TOKENS * 128];
	uint8_t w[DOWN_STAGES][2][DOWN_ROWS * 128];	/* two terms */
	uint64_t full[DOWN_STAGES], empty[DOWN_STAGES];
};

static_assert(sizeof(down_memory) + 1024 <= HZI_MHC_GATED_BYTES, "shared memory");

/* The chunks of a block, of one stream: those of a slice */
struct down_work {
	int stream, begin, end;
};

HZ_DEVICE down_work make_down_work(const hzi_mhc_gated_job &p)
{
	const int stream = blockIdx.y / p.stream_slices;
	const int begin = blockIdx.y % p.stream_slices * (int)(p.slice / CHUNK);
	const int chunks = ((int)p.a.s.channels + CHUNK - 1) / CHUNK;

	return {stream, begin, min(begin + (int)(p.slice / CHUNK), chunks)};
}

/* One thread. Each block of a cluster loads a term of the weights for both. */
HZ_DEVICE void load_down(const hzi_mhc_gated_wgmma &p, const down_work &b, down_memory &m)
{
	const int rank = blockIdx.x % p.cluster, rows = p.job.rows;
	ring_position<DOWN_STAGES> now;

	tma_prefetch_map(p.x);
	tma_prefetch_map(p.w);
	for (int chunk = b.begin; chunk < b.end; chunk++, now.next()) {
		const uint32_t full = shared_address(&m.full[now.at]);
		const int c = chunk * CHUNK * 2;

		mbarrier_wait(shared_address(&m.empty[now.at]), now.parity ^ 1);
		mbarrier_expect_tx(full, sizeof(m.x[0]) + sizeof(m.w[0]));
		tma_load_3d(shared_address(m.x[now.at]), p.x, c, (int)blockIdx.x * DOWN_TOKENS,
			    b.stream, full);
		if (p.cluster > 1) {
			tma_load_3d_multicast((1 << HZI_MHC_GATED_CLUSTER) - 1,
					      shared_address(m.w[now.at][rank]), p.w, c,
					      rank * rows, b.stream, full);
			continue;
		}
		for (int term = 0; term < 2; term++)
			tma_load_3d(shared_address(m.w[now.at][term]), p.w, c, term * rows,
				    b.stream, full);
	}
}

/* 128 tokens of a warpgroup */
template <int DT>
HZ_DEVICE void multiply_down(const hzi_mhc_gated_wgmma &p, const down_work &b, down_memory &m,
			     int group)
{
	const hzi_mhc_gated_job &job = p.job;
	const int lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4;
	const uint32_t own = shared_address(m.x[0]) + (group * 128 + warp * 16 + lane % 16) * 128;
	ring_position<DOWN_STAGES> now;
	float sum[2][DOWN_ROWS / 2], squares[2][2] = {};

	for (int chunk = b.begin; chunk < b.end; chunk++, now.next()) {
		const uint64_t w = wgmma_desc_k(shared_address(m.w[now.at][0]));
		const uint32_t src = own + now.at * sizeof(m.x[0]);
		uint32_t x[2][CHUNK / 16][4];

		mbarrier_wait(shared_address(&m.full[now.at]), now.parity);
#pragma unroll
		for (int e = 0; e < 2 * CHUNK / 16; e++)
			ldmatrix_x4(x[e / 4][e % 4], src + e / 4 * (64 * 128) +
				    ((e % 4 * 2 + lane / 16) ^ (lane & 7)) * 16);
		wgmma_fence();
#pragma unroll
		for (int e = 0; e < CHUNK / 16 * 4; e++) {
			const int k = e / 4, term = e / 2 % 2, h = e % 2;

			wgmma_rs_add<DT>(sum[h], x[h][k], w + k * 2 + term * (DOWN_ROWS * 128 / 16),
					 k > 0 || term > 0 || chunk > b.begin);
		}
		wgmma_commit();
#pragma unroll
		for (int e = 0; e < 2 * CHUNK / 16 * 4; e++) {
			float &to = squares[e / 16][e % 2], low, high;

			unpack(DT, x[e / 16][e / 4 % 4][e % 4], low, high);
			to = fmaf(low, low, to);
			to = fmaf(high, high, to);
		}
		wgmma_wait<0>();
		if (threadIdx.x % 128 < p.cluster)
			mbarrier_arrive_cluster(cluster_map(shared_address(&m.empty[now.at]),
							    threadIdx.x % 128));
	}
	wgmma_keep(sum[0]);
	wgmma_keep(sum[1]);
#pragma unroll
	for (int i = 0; i < 4; i++) {
		const int64_t t = (int64_t)blockIdx.x * DOWN_TOKENS + group * 128 + i / 2 * 64 +
				  warp * 16 + i % 2 * 8 + lane / 4;
		const int64_t at = blockIdx.y * job.a.s.tokens + t;
		const float square = warp_sum<4>(squares[i / 2][i % 2]);

		if (t >= job.a.s.tokens)
			continue;
		if (lane % 4 == 0)
			job.squares[at] = square;
#pragma unroll
		for (int tile = 0; tile < DOWN_ROWS / 8; tile++) {
			const float *const v = sum[i / 2] + tile * 4 + i % 2 * 2;

			if (tile * 8 < job.pitch)
				*(float2 *)(job.partial + at * job.pitch + tile * 8 +
					    lane % 4 * 2) = {v[0], v[1]};
		}
	}
}

/* ---- Gates and their sums -------------------------------------------------------------------- */

#define UP_TOKENS HZI_MHC_GATED_UP_TOKENS
#define UP_STAGES 3
#define UP_STREAMS HZI_MHC_GATED_UP_STREAMS	/* wgmma of fewer than 128 columns is slower */
#define UP_STEPS (HZI_MHC_GATED_UP_RANK / 16)
#define WARP_TOKENS HZI_MHC_GATED_UP_WARP_TOKENS

struct up_memory {
	uint8_t x[UP_STAGES][UP_STREAMS][UP_TOKENS * 128];
	uint8_t w[UP_STAGES][2][UP_STREAMS * CHUNK * 128];	/* halves of r */
	uint8_t u[UP_TOKENS * 128];			/* to be stored */
	float gain[UP_STAGES][UP_STREAMS][CHUNK];
	float roots[UP_TOKENS][HZI_MHC_STREAMS];
	uint64_t full[UP_STAGES], empty[UP_STAGES];
};

static_assert(sizeof(up_memory) + 1024 <= HZI_MHC_GATED_BYTES, "shared memory");

/* Chunks of a block; each takes a step for each two streams. */
struct up_work {
	int token, begin, pairs, steps;	/* pairs: of streams */
};

HZ_DEVICE up_work make_up_work(const hzi_mhc_gated_job &p)
{
	const int begin = blockIdx.x % p.splits * p.chunks;
	const int chunks = ((int)p.a.s.channels + CHUNK - 1) / CHUNK;
	const int pairs = (p.a.s.n + UP_STREAMS - 1) / UP_STREAMS;

	return {(int)(blockIdx.x / p.splits) * UP_TOKENS, begin, pairs,
		(min(begin + p.chunks, chunks) - begin) * pairs};
}

HZ_DEVICE void load_up(const hzi_mhc_gated_wgmma &p, const up_work &b, up_memory &m)
{
	const hzi_mhc_gated_args &a = p.job.a;
	ring_position<UP_STAGES> now;

	tma_prefetch_map(p.x);
	tma_prefetch_map(p.w);
	for (int step = 0; step < b.steps; step++, now.next()) {
		const uint32_t full = shared_address(&m.full[now.at]);
		const int c = (b.begin + step / b.pairs) * CHUNK, i = step % b.pairs * UP_STREAMS;
		const int streams = min(UP_STREAMS, a.s.n - i);
		const uint32_t gains = a.gain ? min(CHUNK, (int)a.s.channels - c) * 4 : 0;

		mbarrier_wait(shared_address(&m.empty[now.at]), now.parity ^ 1);
		mbarrier_expect_tx(full, sizeof(m.x[0]) + sizeof(m.w[0]) + streams * gains);
		for (int j = 0; gains && j < streams; j++)
			bulk_copy(shared_address(m.gain[now.at][j]),
				  a.gain + (i + j) * a.s.channels + c, gains, full);
		tma_load_3d(shared_address(m.x[now.at][0]), p.x, 2 * c, b.token, i, full);
		for (int h = 0; h < 2; h++)
			tma_load_3d(shared_address(m.w[now.at][h]), p.w, h * 128, c, i, full);
	}
}

/*
 * One element of u, without tensor cores: infinite weights times second terms of hidden numbers,
 * which are small or 0, are taken as finite.
 */
template <int DT>
HZ_DEVICE float one_branch_value(const hzi_mhc_gated_job &p, const float *roots, int64_t t, int c)
{
	const hzi_mhc_gated_args &a = p.a;
	const uint16_t *const high = p.hidden + t * a.rank, *const low = high + a.s.tokens * a.rank;
	float u = 0;

#pragma unroll 1
	for (int i = 0; i < a.s.n; i++) {
		const int64_t row = i * a.s.channels + c;
		const uint16_t *const w = (const uint16_t *)a.w_up + row * a.rank;
		float z = 0;

#pragma unroll 1
		for (int r = 0; r < (int)a.rank; r++) {
			const float v = bf16_low(w[r]);

			z = fmaf(bf16_low(high[r]), v, z);
			z = fmaf(bf16_low(low[r]),
				 v - v == 0 ? v : fmaxf(fminf(v, 3.38e38f), -3.38e38f), z);
		}
		u = fmaf(gate_of(z), load_value(DT, a.x.data, offset(a.x, t, i, c)) *
			 (roots[i] * (a.gain ? a.gain[row] : 1)), u);
	}
	return u / (float)a.s.n;
}

/*
 * Computes 16 tokens of a warp. The two warpgroups take turns: one multiplies while the other makes
 * gates, which takes as long.
 */
template <int DT>
struct up_warp {
	const hzi_mhc_gated_wgmma &p;
	const up_work &b;
	up_memory &m;
	const int lane, row;		/* row: first of the warp, in the block */
	uint32_t hidden[2][UP_STEPS][4];	/* A fragments of two terms */
	float u[CHUNK / 2];
	ring_position<UP_STAGES> now;

	__device__ __forceinline__ void load_hidden(void)
	{
		const hzi_mhc_gated_args &a = p.job.a;
		const int rank = (int)a.rank;

#pragma unroll
		for (int e = 0; e < 2 * UP_STEPS * 4; e++) {
			const int term = e / (UP_STEPS * 4), k = e / 4 % UP_STEPS;
			const int r = k * 16 + e % 4 / 2 * 8 + lane % 4 * 2;
			const int64_t t = b.token + row + lane / 4 + e % 2 * 8;

			hidden[term][k][e % 4] = r < rank && t < a.s.tokens ?
				*(const uint32_t *)(p.job.hidden + (term * a.s.tokens + t) * rank +
						    r) : 0;
		}
	}

	/* The hidden numbers times the weights of a step: 64 channels of each stream */
	__device__ __forceinline__ void multiply(float (&acc)[UP_STREAMS * CHUNK / 2], int group)
	{
		const uint64_t w = wgmma_desc_k(shared_address(m.w[now.at][0]));

		mbarrier_wait(shared_address(&m.full[now.at]), now.parity);
		bar_sync(1 + group, 256);
		wgmma_fence();
#pragma unroll
		for (int e = 0; e < 2 * UP_STEPS; e++) {
			const int term = e / UP_STEPS, k = e % UP_STEPS;

			wgmma_rs_add<HZ_BF16>(acc, hidden[term][k],
					      w + k / 4 * (sizeof(m.w[0][0]) / 16) + k % 4 * 2,
					      e > 0);
		}
		wgmma_commit();
		wgmma_wait<0>();
		wgmma_keep(acc);
		bar_arrive(1 + (group ^ 1), 256);
	}

	/* Adds gates of stream i, the step's `which`, times x. */
	__device__ __forceinline__ void add(const float *acc, int i, int which)
	{
		const float rho[2] = {m.roots[row + lane / 4][i], m.roots[row + lane / 4 + 8][i]};
		const uint32_t src = shared_address(m.x[now.at][which]) + (row + lane % 16) * 128;

#pragma unroll
		for (int k = 0; k < CHUNK / 16; k++) {
			uint32_t x[4];

			ldmatrix_x4(x, src + ((k * 2 + lane / 16) ^ (lane & 7)) * 16);
#pragma unroll
			for (int half = 0; half < 2; half++) {
				const int at = k * 16 + half * 8 + lane % 4 * 2;
				const float2 gain =
					*(const float2 *)(m.gain[now.at][which] + at);

#pragma unroll
				for (int h = 0; h < 2; h++) {
					const int e = (k * 2 + half) * 4 + h * 2;
					float low, high;

					unpack(DT, x[half * 2 + h], low, high);
					u[e] = fmaf(gate_of(acc[e]), low * (rho[h] * gain.x), u[e]);
					u[e + 1] = fmaf(gate_of(acc[e + 1]),
							high * (rho[h] * gain.y), u[e + 1]);
				}
			}
		}
	}

	/* Stores u of a chunk. NaN is computed again. */
	__device__ __forceinline__ void store(int c)
	{
		const hzi_mhc_gated_args &a = p.job.a;
		uint8_t *const to = m.u + row * 128;
		const float share = 1.0f / (float)a.s.n;
		bool nan = false;

		if (lane == 0)
			tma_store_wait_read<0>();
		__syncwarp();
#pragma unroll
		for (int k = 0; k < CHUNK / 16; k++) {
			uint32_t v[4];

#pragma unroll
			for (int e = 0; e < 4; e++) {
				const float *const src = u + (k * 2 + e / 2) * 4 + e % 2 * 2;

				nan |= src[0] + src[1] != src[0] + src[1];
				v[e] = DT == HZ_F16 ? to_f16x2(src[0] * share, src[1] * share) :
						      to_bf16x2(src[0] * share, src[1] * share);
			}
			stmatrix_x4(shared_address(to) + lane % 16 * 128 +
				    ((k * 2 + lane / 16) ^ (lane & 7)) * 16, v);
		}
		if (__any_sync(0xffffffff, nan)) {
			__syncwarp();
#pragma unroll 1
			for (int e = lane; e < WARP_TOKENS * CHUNK; e += 32) {
				const int token = e / CHUNK, column = e % CHUNK;
				uint16_t *const at = (uint16_t *)(to + token * 128) +
						     (column / 8 ^ (token & 7)) * 8 + column % 8;
				float v = load_value(DT, at, 0);

				if (v == v || b.token + row + token >= a.s.tokens ||
				    c + column >= a.s.channels)
					continue;
				v = one_branch_value<DT>(p.job, m.roots[row + token],
							 b.token + row + token, c + column);
				*at = (uint16_t)(DT == HZ_F16 ? to_f16x2(v, 0) : to_bf16x2(v, 0));
			}
		}
		fence_proxy_async();
		__syncwarp();
		if (lane == 0) {
			tma_store_3d(p.u, 2 * c, b.token + row, 0, shared_address(to));
			tma_store_commit();
		}
	}

	__device__ __forceinline__ void run(int group)
	{
		float acc[UP_STREAMS * CHUNK / 2];

		load_hidden();
		if (group == 1)
			bar_arrive(1, 256);
#pragma unroll 1
		for (int step = 0, pair = 0, c = b.begin * CHUNK; step < b.steps; step++) {
			multiply(acc, group);
			if (pair == 0) {
#pragma unroll
				for (int e = 0; e < CHUNK / 2; e++)
					u[e] = 0;
			}
			add(acc, pair * UP_STREAMS, 0);
			if (pair * UP_STREAMS + 1 < p.job.a.s.n)
				add(acc + CHUNK / 2, pair * UP_STREAMS + 1, 1);
			__syncwarp();
			if (lane == 0)
				mbarrier_arrive(shared_address(&m.empty[now.at]));
			now.next();
			if (++pair == b.pairs) {
				store(c);
				pair = 0;
				c += CHUNK;
			}
		}
		if (lane == 0)
			tma_store_wait_read<0>();
	}
};

template <int DT>
HZ_DEVICE void gated_down_wgmma(const hzi_mhc_gated_wgmma &p)
{
	down_memory &m = *(down_memory *)shared_start();
	const down_work b = make_down_work(p.job);

	if (threadIdx.x < DOWN_STAGES) {
		mbarrier_init(shared_address(&m.full[threadIdx.x]), 1);
		mbarrier_init(shared_address(&m.empty[threadIdx.x]), 2 * p.cluster);
	}
	mbarrier_init_fence();
	cluster_begin();
	if (threadIdx.x >= 128) {
		setmaxnreg_inc<232>();
		multiply_down<DT>(p, b, m, threadIdx.x / 128 - 1);
	} else {
		setmaxnreg_dec<40>();
		if (threadIdx.x == 0)
			load_down(p, b, m);
	}
	cluster_end();
}

template <int DT>
HZ_DEVICE void gated_up_wgmma(const hzi_mhc_gated_wgmma &p)
{
	up_memory &m = *(up_memory *)shared_start();
	const up_work b = make_up_work(p.job);
	const int n = p.job.a.s.n;

	if (threadIdx.x < UP_STAGES) {
		mbarrier_init(shared_address(&m.full[threadIdx.x]), 1);
		mbarrier_init(shared_address(&m.empty[threadIdx.x]), 8);
	}
	if (threadIdx.x < 32)
		mbarrier_init_fence();
	/* Without gain, and for channels beyond the last */
	for (int e = threadIdx.x; e < UP_STAGES * UP_STREAMS * CHUNK; e += HZI_MHC_GATED_WGMMA_THREADS)
		m.gain[0][0][e] = 1;
	fence_proxy_async();
	pdl_launch_dependents();
	pdl_wait();
	for (int e = threadIdx.x; e < UP_TOKENS * n; e += HZI_MHC_GATED_WGMMA_THREADS) {
		const int64_t t = b.token + e / n;

		m.roots[e / n][e % n] = t < p.job.a.s.tokens ? p.job.roots[t * n + e % n] : 0;
	}
	__syncthreads();
	if (threadIdx.x >= 128) {
		setmaxnreg_inc<232>();

		const int warp = threadIdx.x / 32 - 4;
		up_warp<DT> own = {p, b, m, (int)threadIdx.x % 32, warp * WARP_TOKENS};

		own.run(warp / 4);
	} else {
		setmaxnreg_dec<40>();
		if (threadIdx.x == 0)
			load_up(p, b, m);
	}
}
#endif

#define KERNEL(name, call) \
	extern "C" __global__ void __launch_bounds__(HZI_MHC_GATED_WGMMA_THREADS, 1) \
		name(const __grid_constant__ hzi_mhc_gated_wgmma p) \
	{ \
		HZ_HOPPER_BODY(call) \
	}

KERNEL(mhc_gated_down_wgmma_f16, gated_down_wgmma<HZ_F16>(p))
KERNEL(mhc_gated_down_wgmma_bf16, gated_down_wgmma<HZ_BF16>(p))
KERNEL(mhc_gated_up_wgmma_f16, gated_up_wgmma<HZ_F16>(p))
KERNEL(mhc_gated_up_wgmma_bf16, gated_up_wgmma<HZ_BF16>(p))
