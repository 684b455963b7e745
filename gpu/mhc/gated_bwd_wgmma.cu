/*
 * gated_bwd_wgmma.cu - gradients of gated branch inputs by TMA and wgmma, bf16 streams, sm_90a
 *
 * SPDX-License-Identifier: BSD-2-Clause
 *
 * Of a token, with z = W_down x^ / n, h = silu(z), s = sigma(W_up h), u = sum_i s x^ / n:
 *
 *     mhc_gated_gate_bwd    dv = du x^ s (1 - s) / n, dh = W_up' dv, and <du s / n, x^> of a stream
 *     mhc_gated_hidden_bwd  dz of dh, and of dq; <dx^, x^> of a stream, which dx needs:
 *                           dx^ = du s / n + W_down' dz, so it is <dz, W_down x^> more than above
 *     mhc_gated_dw          dw_up = dv h', dw_down = dz x^', dw_q likewise
 *     mhc_gated_dx          dx^, then dx and dgain
 *
 * One thread loads tiles by TMA, two warpgroups multiply. What is not bf16 already is two terms of
 * bf16 in products; the root of a stream of x is multiplied into the terms of dz instead.
 */
#include "gpu/mhc/gated_bwd_wgmma.h"
#include "gpu/mhc/gated_hidden.cuh"
#include "gpu/device/wgmma_f16.cuh"

#if !defined(__CUDA_ARCH__) || defined(__CUDA_ARCH_FEAT_SM90_ALL)
#include "gpu/device/tma.cuh"

#define CHUNK HZI_MHC_GATED_CHUNK
#define TOKENS HZI_MHC_BWD_TOKENS
#define TILE (TOKENS * 128)		/* bytes of TOKENS rows of a chunk */
#define HALF (TILE / 2)			/* of a warpgroup */
#define HIDDEN_STEPS (HZI_MHC_GATED_UP_RANK / 16)
#define ROOT_MOST 65535.0f		/* of the root of a gate, which is 1 */

/* Steps of a block, of 64 channels of a stream each, stream by stream */
struct bwd_work {
	int token, split, begin, end, chunks;

	__device__ __forceinline__ bwd_work(const hzi_mhc_gated_bwd_wgmma &p)
		: token((int)(blockIdx.x / p.splits) * TOKENS), split(blockIdx.x % p.splits),
		  begin(split * p.steps), chunks(((int)p.job.a.s.channels + CHUNK - 1) / CHUNK)
	{
		end = min(begin + p.steps, chunks * p.job.a.s.n);
	}
};

HZ_DEVICE void bulk_gain(const hzi_mhc_gated_args &a, float *to, int i, int c, uint32_t bytes,
			 uint32_t full)
{
	if (bytes)
		bulk_copy(shared_address(to), a.gain + i * a.s.channels + c, bytes, full);
}

/* Bytes of gain of the channels from c on */
HZ_DEVICE uint32_t gain_bytes(const hzi_mhc_gated_args &a, int c)
{
	return a.gain ? min(CHUNK, (int)a.s.channels - c) * 4 : 0;
}

/* ---- Gates and the gradient of hidden numbers ------------------------------------------------ */

#define GATE_STAGES 3

struct gate_memory {
	uint8_t hidden[2][2][TILE];			/* two terms, halves of r */
	uint8_t w[GATE_STAGES][2][CHUNK * 128];		/* halves of r */
	uint8_t x[GATE_STAGES][TILE], du[GATE_STAGES][TILE];	/* then two terms of dv */
	uint8_t roots[TILE];
	float gain[GATE_STAGES][CHUNK];
	uint64_t full[GATE_STAGES], empty[GATE_STAGES], hidden_full;
};

static_assert(sizeof(gate_memory) + 1024 <= HZI_MHC_GATED_BYTES, "shared memory");

HZ_DEVICE void load_gate(const hzi_mhc_gated_bwd_wgmma &p, const bwd_work &b, gate_memory &m)
{
	const uint32_t hidden_full = shared_address(&m.hidden_full);
	ring_position<GATE_STAGES> now;

	mbarrier_expect_tx(hidden_full, sizeof(m.hidden));
	for (int e = 0; e < 4; e++)
		tma_load_3d(shared_address(m.hidden[e / 2][e % 2]), p.hidden, e % 2 * 128, b.token,
			    e / 2, hidden_full);
	for (int step = b.begin; step < b.end; step++, now.next()) {
		const uint32_t full = shared_address(&m.full[now.at]);
		const int i = step / b.chunks, c = step % b.chunks * CHUNK;
		const uint32_t gain = gain_bytes(p.job.a, c);

		mbarrier_wait(shared_address(&m.empty[now.at]), now.parity ^ 1);
		mbarrier_expect_tx(full, sizeof(m.w[0]) + 2 * TILE + gain);
		for (int h = 0; h < 2; h++)
			tma_load_3d(shared_address(m.w[now.at][h]), p.w_up, h * 128, c, i, full);
		tma_load_3d(shared_address(m.x[now.at]), p.x, 2 * c, b.token, i, full);
		tma_load_3d(shared_address(m.du[now.at]), p.du, 2 * c, b.token, 0, full);
		bulk_gain(p.job.a, m.gain[now.at], i, c, gain, full);
	}
}

/* A gate and its derivative, s and s (1 - s); NaN of NaN */
HZ_DEVICE float gate_and_slope(float z, float &slope)
{
	float e, s;

	asm("min.NaN.f32 %0, %1, 0f42fc0000;" : "=f"(e) : "f"(z * -1.442695041f));	/* 126 */
	asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(e) : "f"(e));
	asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(s) : "f"(1 + e));
	slope = e * s * s;
	return s;
}

HZ_DEVICE uint32_t root_of_gate(float s)
{
	float root;

	asm("sqrt.approx.ftz.f32 %0, %1;" : "=f"(root) : "f"(s));
	return __float2uint_rn(root * ROOT_MOST);
}

/*
 * 16 tokens of a warp. The products of the next step run while this one's gates are made, and those
 * of dv, from shared memory, while the next begins.
 */
struct gate_warp {
	const hzi_mhc_gated_bwd_wgmma &p;
	const bwd_work &b;
	gate_memory &m;
	const int lane, row;		/* row: first of the warp, in the block */
	float rho[2], dot[2];		/* of two tokens of a lane */
	ring_position<GATE_STAGES> now;

	__device__ __forceinline__ int64_t token(int h) const
	{
		return b.token + row + lane / 4 + h * 8;
	}

	__device__ __forceinline__ void begin_stream(int i)
	{
		const int64_t T = p.job.a.s.tokens;

#pragma unroll
		for (int h = 0; h < 2; h++) {
			rho[h] = token(h) < T ? p.job.roots[token(h) * p.job.a.s.n + i] : 0;
			dot[h] = 0;
		}
	}

	__device__ __forceinline__ void end_stream(int i)
	{
		const int64_t T = p.job.a.s.tokens;

#pragma unroll
		for (int h = 0; h < 2; h++) {
			const float sum = warp_sum<4>(dot[h]);

			if (lane % 4 == 0 && token(h) < T)
				p.dots[(b.split * T + token(h)) * p.job.a.s.n + i] = sum;
		}
	}

	/* Two terms of dv of a step replace x and du. */
	__device__ __forceinline__ void differentiate(const float *acc)
	{
		const float share = 1.0f / (float)p.job.a.s.n;
		const int r = row + lane % 16;

#pragma unroll
		for (int k = 0; k < CHUNK / 16; k++) {
			const int at = r * 128 + ((k * 2 + lane / 16) ^ (lane & 7)) * 16;
			const uint32_t x_at = shared_address(m.x[now.at]) + at;
			const uint32_t du_at = shared_address(m.du[now.at]) + at;
			uint32_t x[4], du[4], roots[4], high[4], low[4];

			ldmatrix_x4(x, x_at);
			ldmatrix_x4(du, du_at);
#pragma unroll
			for (int e = 0; e < 4; e++) {
				const int half = e / 2, h = e % 2;
				const float2 gain = *(const float2 *)(m.gain[now.at] + k * 16 +
								      half * 8 + lane % 4 * 2);
				const float *const z = acc + (k * 2 + half) * 4 + h * 2;
				const float w0 = bf16_low(du[e]) * share *
						 (bf16_low(x[e]) * (rho[h] * gain.x));
				const float w1 = bf16_high(du[e]) * share *
						 (bf16_high(x[e]) * (rho[h] * gain.y));
				float slope0, slope1;
				const float s0 = gate_and_slope(z[0], slope0);
				const float s1 = gate_and_slope(z[1], slope1);

				dot[h] = fmaf(w0, s0, dot[h]);
				dot[h] = fmaf(w1, s1, dot[h]);
				high[e] = split_pair(w0 * slope0, w1 * slope1, low[e]);
				roots[e] = root_of_gate(s0) | root_of_gate(s1) << 16;
			}
			stmatrix_x4(x_at, high);
			stmatrix_x4(du_at, low);
			stmatrix_x4(shared_address(m.roots) + at, roots);
		}
	}

	/* Waits until the tiles of the step before are stored, and frees its stage. */
	__device__ __forceinline__ void finish_stores(int stage)
	{
		if (lane == 0) {
			tma_store_wait_read<0>();
			mbarrier_arrive(shared_address(&m.empty[stage]));
		}
		__syncwarp();
	}

	/* The hidden numbers times W_up, of the step in stage `at` */
	__device__ __forceinline__ void begin_gates(float (&acc)[CHUNK / 2],
						    const ring_position<GATE_STAGES> &at)
	{
		const uint64_t w = wgmma_desc_k(shared_address(m.w[at.at][0]));
		const uint64_t h = wgmma_desc_k(shared_address(m.hidden[0][0]) + row / 64 * HALF);

		mbarrier_wait(shared_address(&m.full[at.at]), at.parity);
		wgmma_fence();
#pragma unroll
		for (int e = 0; e < 2 * HIDDEN_STEPS; e++) {
			const int term = e / HIDDEN_STEPS, k = e % HIDDEN_STEPS;

			wgmma<false, false, HZ_BF16>(
				acc, h + (term * 2 + k / 4) * (TILE / 16) + k % 4 * 2,
				w + k / 4 * (sizeof(m.w[0][0]) / 16) + k % 4 * 2, e > 0);
		}
		wgmma_commit();
	}

	/* dv times W_up' */
	__device__ __forceinline__ void begin_dh(float (&dh)[HZI_MHC_GATED_UP_RANK / 2], int add)
	{
		const uint64_t w = wgmma_desc_mn(shared_address(m.w[now.at][0]), sizeof(m.w[0][0]));
		const uint64_t high = wgmma_desc_k(shared_address(m.x[now.at]) + row / 64 * HALF);
		const uint64_t low = wgmma_desc_k(shared_address(m.du[now.at]) + row / 64 * HALF);

		wgmma_fence();
#pragma unroll
		for (int e = 0; e < 2 * CHUNK / 16; e++)
			wgmma<true, false, HZ_BF16>(dh, (e % 2 ? low : high) + e / 2 * 2,
						    w + e / 2 * 128, add || e > 0);
		wgmma_commit();
	}

	/* After a barrier of the warpgroup */
	__device__ __forceinline__ void store(int step)
	{
		const int steps = p.job.a.s.n * b.chunks, at = row * 128, t = b.token + row;

		if (lane != 0)
			return;
		tma_store_3d(p.planes_warp, 0, t, step, shared_address(m.x[now.at]) + at);
		tma_store_3d(p.planes_warp, 0, t, steps + step, shared_address(m.du[now.at]) + at);
		tma_store_3d(p.planes_warp, 0, t, 2 * steps + step, shared_address(m.roots) + at);
		tma_store_commit();
	}

	__device__ __forceinline__ void run(void)
	{
		const hzi_mhc_gated_args &a = p.job.a;
		const int64_t T = a.s.tokens;
		const int rank = (int)a.rank, last = (b.end - 1) / b.chunks;
		float dh[HZI_MHC_GATED_UP_RANK / 2], acc[CHUNK / 2], gates[CHUNK / 2];
		int i = b.begin / b.chunks;

		for (int e = 0; e < a.s.n; e++) {
			begin_stream(e);
			if (e < i || e > last)
				end_stream(e);
		}
		begin_stream(i);
		mbarrier_wait(shared_address(&m.hidden_full), 0);
		begin_gates(acc, now);
		wgmma_wait<0>();
#pragma unroll 1
		for (int step = b.begin; step < b.end; step++) {
			ring_position<GATE_STAGES> after = now;

			wgmma_keep(acc);
			wgmma_copy(gates, acc);
			/* After the last step those of a tile that is there, which no one reads */
			if (step + 1 < b.end)
				after.next();
			begin_gates(acc, after);
			wgmma_wait<1>();	/* for dh of the step before */
			if (step > b.begin)
				finish_stores((now.at + GATE_STAGES - 1) % GATE_STAGES);
			if (step / b.chunks != i) {
				end_stream(i);
				i = step / b.chunks;
				begin_stream(i);
			}
			differentiate(gates);
			fence_proxy_async();
			bar_sync(1 + row / 64, 128);
			store(step);
			__syncwarp();
			begin_dh(dh, step > b.begin);
			wgmma_wait<1>();	/* for the gates of the next step */
			now.next();
		}
		wgmma_wait<0>();
		wgmma_keep(dh);
		end_stream(i);
		if (lane == 0)
			tma_store_wait_read<0>();
#pragma unroll
		for (int e = 0; e < HZI_MHC_GATED_UP_RANK / 2; e += 2) {
			const int64_t t = token(e / 2 % 2);
			const int column = e / 4 * 8 + lane % 4 * 2;

			if (t < T && column < rank)
				*(float2 *)(p.dhidden + (b.split * T + t) * rank + column) =
					{dh[e], dh[e + 1]};
		}
	}
};

/* Initializes barriers, of which `empty` waits for eight warps, and waits for the kernel before. */
HZ_DEVICE void begin_block(uint64_t *full, uint64_t *empty, int stages, float *gain, int gains)
{
	if (threadIdx.x < stages) {
		mbarrier_init(shared_address(&full[threadIdx.x]), 1);
		mbarrier_init(shared_address(&empty[threadIdx.x]), 8);
	}
	if (threadIdx.x < 32)
		mbarrier_init_fence();
	/* Without gain, and for channels beyond the last */
	for (int e = threadIdx.x; e < gains; e += HZI_MHC_GATED_WGMMA_THREADS)
		gain[e] = 1;
	fence_proxy_async();
	pdl_launch_dependents();
	pdl_wait();
	__syncthreads();
}

HZ_DEVICE void gate_bwd(const hzi_mhc_gated_bwd_wgmma &p)
{
	gate_memory &m = *(gate_memory *)shared_start();
	const bwd_work b(p);

	if (threadIdx.x == 0)
		mbarrier_init(shared_address(&m.hidden_full), 1);
	begin_block(m.full, m.empty, GATE_STAGES, m.gain[0], GATE_STAGES * CHUNK);
	if (threadIdx.x >= 128) {
		setmaxnreg_inc<232>();

		gate_warp own = {p, b, m, (int)threadIdx.x % 32, (int)(threadIdx.x / 32 - 4) * 16};

		own.run();
	} else {
		setmaxnreg_dec<40>();
		if (threadIdx.x == 0)
			load_gate(p, b, m);
	}
}

/* ---- The gradient of the products of W_down and W_q ------------------------------------------ */

HZ_DEVICE float dot(const float4 &a, const float4 &b)
{
	return fmaf(a.x, b.x, fmaf(a.y, b.y, fmaf(a.z, b.z, a.w * b.w)));
}

HZ_DEVICE void store_ddown(const hzi_mhc_gated_bwd_wgmma &p, int64_t t, int plane, int column,
			   const float4 &v, float factor)
{
	const int64_t T = p.job.a.s.tokens, planes = p.job.a.s.n + 1;
	uint16_t *const to = p.ddown + (plane * T + t) * p.job.pitch + column;
	uint32_t high[2], low[2];

	high[0] = split_pair(v.x * factor, v.y * factor, low[0]);
	high[1] = split_pair(v.z * factor, v.w * factor, low[1]);
	*(uint2 *)to = {high[0], high[1]};
	*(uint2 *)(to + planes * T * p.job.pitch) = {low[0], low[1]};
}

/* A warp has a token, a lane four hidden numbers, and the first two lanes four of q each. */
HZ_DEVICE void hidden_bwd(const hzi_mhc_gated_bwd_wgmma &p)
{
	__shared__ float squares[HZI_MHC_WARPS_TOKENS][HZI_MHC_GATED_SLICES];
	const hzi_mhc_gated_job &j = p.job;
	const hzi_mhc_gated_args &a = j.a;
	const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, n = a.s.n, rank = (int)a.rank;
	const int of_q = (j.pitch - rank) / 4;		/* lanes, 0 or 2 */
	const int64_t t = (int64_t)blockIdx.x * HZI_MHC_WARPS_TOKENS + warp, T = a.s.tokens;
	const int64_t step = T * j.pitch / 4;
	const float4 *const src = (const float4 *)(j.partial + t * j.pitch);
	const float share = 1.0f / (float)n;
	float4 z = {}, q = {}, dh = {};
	float rho, slope, own = 0, unused;

	pdl_launch_dependents();
	pdl_wait();
	if (t >= T)
		return;
#pragma unroll 4
	for (int s = 0; s < p.splits; s++) {
		if (lane * 4 < rank)
			dh = add_scaled(dh, 1, ((const float4 *)(p.dhidden +
								 (s * T + t) * rank))[lane]);
		if (lane < n)
			own += p.dots[(s * T + t) * n + lane];
	}
	rho = root_of_lane(j, t, squares[warp], slope);
#pragma unroll 4
	for (int s = 0; s < j.slices; s++) {
		const float factor = __shfl_sync(0xffffffff, rho, s / j.stream_slices % 32);

		if (lane * 4 < rank)
			z = add_scaled(z, factor, src[lane + s * step]);
		if (lane < of_q)
			q = add_scaled(q, factor, src[rank / 4 + lane + s * step]);
	}
#pragma unroll
	for (int e = 0; e < 4; e++) {
		float *const d = (float *)&dh + e, *const of_gate = (float *)&q + e;
		float at = ((const float *)&z)[e] * share;
		const float s = hzi_mhc_sigma(at, &unused);

		*d *= fmaf(at, unused, s) * share;
		at = hzi_mhc_sigma(*of_gate * share, &unused);
		*of_gate = lane * 4 + e < n && lane < of_q && p.g.dq.data ?
			*coef_at(p.g.dq, t, lane * 4 + e, 0) * a.rule.q_scale * unused * share : 0;
	}
	for (int i = 0; i < n; i++) {
		float sum = 0;

		for (int s = i * j.stream_slices; s < (i + 1) * j.stream_slices; s++) {
			if (lane * 4 < rank)
				sum += dot(dh, src[lane + s * step]);
			if (lane < of_q)
				sum += dot(q, src[rank / 4 + lane + s * step]);
		}
		sum = warp_sum(sum);
		if (lane == i)
			own = fmaf(rho, sum, own);
	}
	if (lane < n)
		*(float2 *)(p.factors + (t * n + lane) * 2) =
			{rho, slope * rho * (own / (float)a.s.channels)};
	for (int i = 0; i <= n; i++) {
		const float root = __shfl_sync(0xffffffff, rho, i % 32);
		const float factor = i < n ? root : 1;

		if (lane * 4 < rank)
			store_ddown(p, t, i, lane * 4, dh, factor);
		if (lane < of_q)
			store_ddown(p, t, i, rank + lane * 4, q, factor);
	}
}

/* ---- Gradients of weights -------------------------------------------------------------------- */

#define DW_STAGES 4
#define DW_TOKENS HZI_MHC_DW_TOKENS
#define DW_BOX (DW_TOKENS * 128)	/* bytes of 64 columns */

struct dw_memory {
	uint8_t boxes[DW_STAGES][12][DW_BOX];	/* of the left operand, then of the right one */
	uint64_t full[DW_STAGES], empty[DW_STAGES];
};

static_assert(sizeof(dw_memory) + 1024 <= HZI_MHC_GATED_BYTES, "shared memory");

/* The 256 channels of a block, of one stream */
struct dw_work {
	int stream, c, steps;

	__device__ __forceinline__ dw_work(const hzi_mhc_gated_args &a)
		: steps((int)((a.s.tokens + DW_TOKENS - 1) / DW_TOKENS))
	{
		const int chunks = ((int)a.s.channels + HZI_MHC_DW_CHANNELS - 1) /
				   HZI_MHC_DW_CHANNELS;

		stream = blockIdx.x / chunks;
		c = blockIdx.x % chunks * HZI_MHC_DW_CHANNELS;
	}
};

/* DOWN: x and terms of ddown, three boxes each; else terms of dv and of hidden numbers */
template <bool DOWN>
HZ_DEVICE void load_dw(const hzi_mhc_gated_bwd_wgmma &p, const dw_work &b, dw_memory &m)
{
	const int n = p.job.a.s.n, width = DOWN ? 3 : 2;
	const int chunks = ((int)p.job.a.s.channels + CHUNK - 1) / CHUNK;
	ring_position<DW_STAGES> now;

	for (int step = 0; step < b.steps; step++, now.next()) {
		const uint32_t full = shared_address(&m.full[now.at]);
		const int t = step * DW_TOKENS;
		uint32_t to = shared_address(m.boxes[now.at][0]);

		mbarrier_wait(shared_address(&m.empty[now.at]), now.parity ^ 1);
		mbarrier_expect_tx(full, (DOWN ? 10 : 12) * DW_BOX);
		for (int e = 0; e < (DOWN ? 4 : 8); e++, to += DW_BOX) {
			const int c = b.c + e % 4 * CHUNK;

			if (DOWN)
				tma_load_3d(to, p.x_step, 2 * c, t, b.stream, full);
			else
				tma_load_3d(to, p.planes_step, 0, t,
					    c < chunks * CHUNK ? (e / 4 * n + b.stream) * chunks +
								 c / CHUNK : 2 * n * chunks, full);
		}
		for (int e = 0; e < 2 * width; e++, to += DW_BOX)
			tma_load_3d(to, DOWN ? p.ddown_step : p.hidden_step, e % width * 128, t,
				    DOWN ? e / width * (n + 1) + b.stream : e / width, full);
	}
}

HZ_DEVICE void add_to(float *to, float v, bool adds)
{
	*to = adds ? *to + v : v;
}

/* 128 channels of a warpgroup */
template <bool DOWN>
HZ_DEVICE void multiply_dw(const hzi_mhc_gated_bwd_wgmma &p, const dw_work &b, dw_memory &m,
			   int group)
{
	constexpr int COUNT = DOWN ? 68 : 64, LEFT = DOWN ? 4 : 8, WIDTH = DOWN ? 3 : 2;
	const hzi_mhc_gated_args &a = p.job.a;
	const int lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4, rank = (int)a.rank;
	const int n = a.s.n;
	const int64_t C = a.s.channels, K = n * C;
	ring_position<DW_STAGES> now;
	float sum[2][COUNT];

#pragma unroll 1
	for (int step = 0; step < b.steps; step++, now.next()) {
		const uint64_t left = wgmma_desc_mn(shared_address(m.boxes[now.at][group * 2]),
						    DW_BOX);
		const uint64_t right = wgmma_desc_mn(shared_address(m.boxes[now.at][LEFT]), DW_BOX);

		mbarrier_wait(shared_address(&m.full[now.at]), now.parity);
		wgmma_fence();
#pragma unroll
		for (int e = 0; e < DW_TOKENS / 16 * 2 * (DOWN ? 2 : 3); e++) {
			const int h = e % 2, k = e / 2 % (DW_TOKENS / 16);
			const int term = e / 2 / (DW_TOKENS / 16);

			wgmma<true, true, HZ_BF16>(
				sum[h], left + ((term == 2 ? 4 : 0) + h) * (DW_BOX / 16) + k * 128,
				right + (term == 1 ? WIDTH * (DW_BOX / 16) : 0) + k * 128,
				step > 0 || e > 1);
		}
		wgmma_commit();
		wgmma_wait<1>();
		if (step > 0 && lane == 0)
			mbarrier_arrive(shared_address(
				&m.empty[(now.at + DW_STAGES - 1) % DW_STAGES]));
	}
	wgmma_wait<0>();
	wgmma_keep(sum[0]);
	wgmma_keep(sum[1]);
#pragma unroll
	for (int e = 0; e < 4; e++) {
		const int c = b.c + group * 128 + e / 2 * 64 + warp * 16 + lane / 4 + e % 2 * 8;
		const int64_t k = b.stream * C + c;
		const float gain = DOWN && a.gain && c < C ? a.gain[k] : 1;

#pragma unroll
		for (int j = 0; j < COUNT / 4; j++) {
			const float *const v = sum[e / 2] + j * 4 + e % 2 * 2;
			const int column = j * 8 + lane % 4 * 2;

			if (c >= C)
				break;
			if (DOWN) {
				/* rank is a multiple of 16 */
				float *const to = j * 8 < rank ? p.g.dw_down : p.g.dw_q;
				const int row = j * 8 < rank ? column : column - rank;

				if (to && column < p.job.rows)
					add_to(to + row * K + k, v[0] * gain, p.g.accumulate);
				if (to && column + 1 < p.job.rows)
					add_to(to + (row + 1) * K + k, v[1] * gain, p.g.accumulate);
			} else if (column < rank) {
				float2 *const to = (float2 *)(p.g.dw_up + k * rank + column);
				const float2 old = p.g.accumulate ? *to : float2{};

				*to = {old.x + v[0], old.y + v[1]};
			}
		}
	}
}

HZ_DEVICE void gated_dw(const hzi_mhc_gated_bwd_wgmma &p)
{
	dw_memory &m = *(dw_memory *)shared_start();
	const dw_work b(p.job.a);
	const bool down = blockIdx.y + p.first_dw > 0;

	begin_block(m.full, m.empty, DW_STAGES, NULL, 0);
	if (threadIdx.x >= 128) {
		setmaxnreg_inc<232>();
		if (down)
			multiply_dw<true>(p, b, m, threadIdx.x / 128 - 1);
		else
			multiply_dw<false>(p, b, m, threadIdx.x / 128 - 1);
	} else {
		setmaxnreg_dec<40>();
		if (threadIdx.x == 0 && down)
			load_dw<true>(p, b, m);
		else if (threadIdx.x == 0)
			load_dw<false>(p, b, m);
	}
}

/* ---- Gradients of streams -------------------------------------------------------------------- */

#define DX_STAGES 3
#define DX_WEIGHTS 2			/* stages of weights, needed for a shorter time */
#define DX_STEPS (HZI_MHC_BWD_STEPS / 16)

struct dx_memory {
	uint8_t w[DX_WEIGHTS][2][HZI_MHC_BWD_STEPS * 128];	/* two terms */
	uint8_t x[DX_STAGES][TILE];			/* then dx */
	uint8_t du[DX_STAGES][TILE], roots[DX_STAGES][TILE];
	float gain[DX_STAGES][CHUNK];
	float sums[2][8][CHUNK];			/* of dgain, of two steps, by warps */
	uint64_t full[DX_STAGES], empty[DX_STAGES];
	uint64_t w_full[DX_WEIGHTS], w_empty[DX_WEIGHTS];
};

static_assert(sizeof(dx_memory) + 1024 <= HZI_MHC_GATED_BYTES, "shared memory");

HZ_DEVICE void load_dx(const hzi_mhc_gated_bwd_wgmma &p, const bwd_work &b, dx_memory &m)
{
	const int n = p.job.a.s.n;
	ring_position<DX_STAGES> now;
	ring_position<DX_WEIGHTS> w;

	for (int step = b.begin; step < b.end; step++, now.next(), w.next()) {
		const uint32_t full = shared_address(&m.full[now.at]);
		const uint32_t w_full = shared_address(&m.w_full[w.at]);
		const int i = step / b.chunks, c = step % b.chunks * CHUNK;
		const uint32_t gain = gain_bytes(p.job.a, c);

		mbarrier_wait(shared_address(&m.w_empty[w.at]), w.parity ^ 1);
		mbarrier_expect_tx(w_full, p.terms * sizeof(m.w[0][0]));
		for (int term = 0; term < p.terms; term++) {
			const int row = term * p.job.rows;

			tma_load_3d(shared_address(m.w[w.at][term]), p.w_down, 2 * c, row, i,
				    w_full);
			tma_load_3d(shared_address(m.w[w.at][term]) + HZI_MHC_GATED_UP_RANK * 128,
				    p.w_q, 2 * c, row + p.first_q, i, w_full);
		}
		mbarrier_wait(shared_address(&m.empty[now.at]), now.parity ^ 1);
		mbarrier_expect_tx(full, 3 * TILE + gain);
		tma_load_3d(shared_address(m.x[now.at]), p.x, 2 * c, b.token, i, full);
		tma_load_3d(shared_address(m.du[now.at]), p.du, 2 * c, b.token, 0, full);
		tma_load_3d(shared_address(m.roots[now.at]), p.planes, 0, b.token,
			    2 * n * b.chunks + step, full);
		bulk_gain(p.job.a, m.gain[now.at], i, c, gain, full);
	}
}

/* The product of the next step runs while dx of this one is made. */
struct dx_warp {
	const hzi_mhc_gated_bwd_wgmma &p;
	const bwd_work &b;
	dx_memory &m;
	const int lane, row;
	float2 factor[2];		/* of dx: see hzi_mhc_gated_bwd_wgmma */
	uint32_t ddown[2][DX_STEPS][4];	/* A operands of two terms */
	ring_position<DX_STAGES> now;
	ring_position<DX_WEIGHTS> w;

	__device__ __forceinline__ int64_t token(int h) const
	{
		return b.token + row + lane / 4 + h * 8;
	}

	__device__ __forceinline__ void begin_stream(int i)
	{
		const hzi_mhc_shape &s = p.job.a.s;

#pragma unroll
		for (int h = 0; h < 2; h++) {
			factor[h] = {0, 0};
			if (token(h) < s.tokens)
				factor[h] = ((const float2 *)p.factors)[token(h) * s.n + i];
		}
	}

	/* 128 columns of W_down, then 16 of W_q */
	__device__ __forceinline__ void load_ddown(void)
	{
		const int rank = (int)p.job.a.rank, pitch = p.job.pitch, n = p.job.a.s.n;
		const int64_t T = p.job.a.s.tokens;

#pragma unroll
		for (int e = 0; e < 2 * DX_STEPS * 4; e++) {
			const int term = e / (DX_STEPS * 4), k = e / 4 % DX_STEPS;
			const int column = k % HIDDEN_STEPS * 16 + e % 4 / 2 * 8 + lane % 4 * 2;
			const int from = k < HIDDEN_STEPS ? column : rank + column;
			const int64_t t = token(e % 2);

			ddown[term][k][e % 4] =
				from < (k < HIDDEN_STEPS ? rank : pitch) && t < T ?
				*(const uint32_t *)(p.ddown + (((term * (n + 1) + n) * T + t) *
							       pitch + from)) : 0;
		}
	}

	/* What is added to a pair of dx */
	__device__ __forceinline__ float2 others(int h, int i, int c) const
	{
		float2 sum = {0, 0};

		if (token(h) >= p.job.a.s.tokens || c >= p.job.a.s.channels)
			return sum;
		for (int e = 0; e < 2; e++) {
			const hzi_mhc_array &x = e == 0 ? p.g.dy : p.g.dx;
			uint32_t pair;

			if (!x.data || (e == 1 && !p.g.accumulate))
				continue;
			pair = *(const uint32_t *)((const uint16_t *)x.data +
						   offset(x, token(h), i, c));
			sum.x += bf16_low(pair);
			sum.y += bf16_high(pair);
		}
		return sum;
	}

	/* dx of a step, in place of x. acc: W_down' dz; columns: sums for dgain */
	__device__ __forceinline__ void differentiate(const float *acc, float *columns, int i,
						      int c)
	{
		const float share = 1.0f / (float)p.job.a.s.n / (ROOT_MOST * ROOT_MOST);
		const bool adds = p.g.dx.data && (p.g.dy.data || p.g.accumulate);

#pragma unroll
		for (int k = 0; k < CHUNK / 16; k++) {
			const int at = (row + lane % 16) * 128 +
				       ((k * 2 + lane / 16) ^ (lane & 7)) * 16;
			uint32_t x[4], du[4], roots[4], dx[4];

			ldmatrix_x4(x, shared_address(m.x[now.at]) + at);
			ldmatrix_x4(du, shared_address(m.du[now.at]) + at);
			ldmatrix_x4(roots, shared_address(m.roots[now.at]) + at);
#pragma unroll
			for (int e = 0; e < 4; e++) {
				const int half = e / 2, h = e % 2;
				const int column = k * 16 + half * 8 + lane % 4 * 2;
				const float2 gain = *(const float2 *)(m.gain[now.at] + column);
				const float *const d = acc + (k * 2 + half) * 4 + h * 2;
				float *const sum = columns + (k * 2 + half) * 2;
				const float root0 = (float)(roots[e] & 0xffff);
				const float root1 = (float)(roots[e] >> 16);
				const float x0 = bf16_low(x[e]), x1 = bf16_high(x[e]);
				const float d0 = fmaf(bf16_low(du[e]) * share, root0 * root0, d[0]);
				const float d1 = fmaf(bf16_high(du[e]) * share, root1 * root1,
						      d[1]);
				float2 to = {fmaf(factor[h].x, d0 * gain.x, -(factor[h].y * x0)),
					     fmaf(factor[h].x, d1 * gain.y, -(factor[h].y * x1))};

				sum[0] = fmaf(d0, factor[h].x * x0, h ? sum[0] : 0);
				sum[1] = fmaf(d1, factor[h].x * x1, h ? sum[1] : 0);
				if (adds) {
					const float2 more = others(h, i, c + column);

					to.x += more.x;
					to.y += more.y;
				}
				dx[e] = to_bf16x2(to.x, to.y);
			}
			stmatrix_x4(shared_address(m.x[now.at]) + at, dx);
		}
	}

	/* Sums of 64 tokens of a warpgroup; `which` alternates. */
	__device__ __forceinline__ void sum_columns(const float *columns, int i, int c, int which)
	{
		const int group = row / 64, thread = threadIdx.x % 128;
		const int64_t C = p.job.a.s.channels;

#pragma unroll
		for (int e = 0; e < CHUNK / 4; e++) {
			float v = columns[e];

#pragma unroll
			for (int apart = 4; apart < 32; apart *= 2)
				v += __shfl_xor_sync(0xffffffff, v, apart);
			if (lane < 4)
				m.sums[which][row / 16][e / 2 * 8 + lane * 2 + e % 2] = v;
		}
		bar_sync(1 + group, 128);
		if (thread < CHUNK && c + thread < C) {
			float v = 0;

			for (int e = 0; e < 4; e++)
				v += m.sums[which][group * 4 + e][thread];
			p.dgain[((b.token + row) / 64 * p.job.a.s.n + i) * C + c + thread] = v;
		}
	}

	/* W_down' dz of the next step of `w` */
	__device__ __forceinline__ void begin_product(float (&acc)[CHUNK / 2])
	{
		const uint64_t at = wgmma_desc_mn(shared_address(m.w[w.at][0]), 0);

		mbarrier_wait(shared_address(&m.w_full[w.at]), w.parity);
		wgmma_fence();
#pragma unroll
		for (int e = 0; e < 2 * DX_STEPS; e++)
			wgmma_rs_add<HZ_BF16, true>(acc, ddown[e / DX_STEPS][e % DX_STEPS],
						    at + e % DX_STEPS * 128, e > 0);
		if (p.terms == 2) {
#pragma unroll
			for (int e = 0; e < DX_STEPS; e++)
				wgmma_rs_add<HZ_BF16, true>(
					acc, ddown[0][e], at + sizeof(m.w[0][0]) / 16 + e * 128, 1);
		}
		wgmma_commit();
	}

	__device__ __forceinline__ void run(void)
	{
		float acc[CHUNK / 2], product[CHUNK / 2], columns[CHUNK / 4];
		int i = b.begin / b.chunks;

		load_ddown();
		begin_stream(i);
		begin_product(acc);
#pragma unroll 1
		for (int step = b.begin; step < b.end; step++) {
			const int c = step % b.chunks * CHUNK;

			wgmma_wait<0>();
			wgmma_keep(acc);
			wgmma_copy(product, acc);
			if (lane == 0) {
				mbarrier_arrive(shared_address(&m.w_empty[w.at]));
				if (step > b.begin) {
					tma_store_wait_read<0>();
					mbarrier_arrive(shared_address(
						&m.empty[(now.at + DX_STAGES - 1) % DX_STAGES]));
				}
			}
			__syncwarp();
			/* After the last step that of a tile that is there, which no one reads */
			if (step + 1 < b.end)
				w.next();
			begin_product(acc);
			if (step / b.chunks != i) {
				i = step / b.chunks;
				begin_stream(i);
			}
			mbarrier_wait(shared_address(&m.full[now.at]), now.parity);
			differentiate(product, columns, i, c);
			if (p.dgain)
				sum_columns(columns, i, c, (step - b.begin) % 2);
			fence_proxy_async();
			__syncwarp();
			if (p.g.dx.data && lane == 0) {
				tma_store_3d(p.dx, 2 * c, b.token + row, i,
					     shared_address(m.x[now.at]) + row * 128);
				tma_store_commit();
			}
			now.next();
		}
		wgmma_wait<0>();
		if (lane == 0)
			tma_store_wait_read<0>();
	}
};

HZ_DEVICE void gated_dx(const hzi_mhc_gated_bwd_wgmma &p)
{
	dx_memory &m = *(dx_memory *)shared_start();
	const bwd_work b(p);

	if (threadIdx.x < DX_WEIGHTS) {
		mbarrier_init(shared_address(&m.w_full[threadIdx.x]), 1);
		mbarrier_init(shared_address(&m.w_empty[threadIdx.x]), 8);
	}
	begin_block(m.full, m.empty, DX_STAGES, m.gain[0], DX_STAGES * CHUNK);
	if (threadIdx.x >= 128) {
		setmaxnreg_inc<232>();

		dx_warp own = {p, b, m, (int)threadIdx.x % 32, (int)(threadIdx.x / 32 - 4) * 16};

		own.run();
	} else {
		setmaxnreg_dec<40>();
		if (threadIdx.x == 0)
			load_dx(p, b, m);
	}
}
#endif

#define KERNEL(name, threads, call) \
	extern "C" __global__ void __launch_bounds__(threads, 1) \
		name(const __grid_constant__ hzi_mhc_gated_bwd_wgmma p) \
	{ \
		HZ_HOPPER_BODY(call) \
	}

KERNEL(mhc_gated_gate_bwd, HZI_MHC_GATED_WGMMA_THREADS, gate_bwd(p))
KERNEL(mhc_gated_hidden_bwd, HZI_MHC_WARPS_TOKENS * 32, hidden_bwd(p))
KERNEL(mhc_gated_dw, HZI_MHC_GATED_WGMMA_THREADS, gated_dw(p))
KERNEL(mhc_gated_dx, HZI_MHC_GATED_WGMMA_THREADS, gated_dx(p))
