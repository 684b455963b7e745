/*
 * coef_small_batch.cu - coefficients and branch inputs of few tokens in one launch, sm_90a
 *
 * SPDX-License-Identifier: BSD-2-Clause
 *
 * Latency bounds this kernel. A cluster of 16 blocks has up to 16 tokens, each block a slice of the
 * channels. A warp issues loads of 64 channels of phi before it uses the first. Blocks send their
 * sums of a token to the block that owns it. There one warp makes p and sends it to all blocks, for
 * u, while another makes the matrix; for up to 48 tokens separate clusters do these.
 */
#define HZI_MHC_COMMON_RULES
#include "gpu/mhc/coef_lanes.cuh"
#include "gpu/mhc/coef_small_batch.h"

#if __CUDA_ARCH__ >= 900
#include "gpu/device/cluster.cuh"
#include "gpu/device/mbarrier.cuh"
#include "gpu/device/mma.cuh"
#include "gpu/device/pdl.cuh"

#define TILE HZI_MHC_SMALL_BATCH_BLOCKS		/* tokens */
#define MAX_ROWS HZI_MHC_FOUR_ROWS
#define COLUMNS (MAX_ROWS + 4)		/* sums of a token; the 25th is that of squares */
#define WARPS (HZI_MHC_SMALL_BATCH_THREADS / 32)
#define STEPS 4				/* of 16 channels, loaded ahead by a warp */
#define STRIDE (WARPS / 4 * 16)		/* channels from a step of a warp to its next */

struct memory {
	float sums[WARPS][TILE][COLUMNS];
	float received[HZI_MHC_SMALL_BATCH_BLOCKS][COLUMNS];	/* of this block's token */
	float p[TILE][4];
	uint64_t arrived, weights;
};

/* Work of a block: the tokens of its cluster, a slice of the channels */
struct block_work {
	int token, channel;		/* first token, first channel */
	int rank, tokens, channels;
};

/* Rows of phi of a cluster, in tiles of 8, and what they give */
template <int FIRST, int COUNT>
struct rows_of {
	static constexpr int first = FIRST, count = COUNT;
	static constexpr bool gates = FIRST == 0, matrix = FIRST + COUNT == 3;
	static constexpr int vectors = COUNT * 2 + 1;	/* of 4 sums of a token, to send */

	static __device__ __forceinline__ bool has(int row)
	{
		return row >= FIRST * 8 && row < (FIRST + COUNT) * 8;
	}
};

/* 4 channels of a token as pairs of bf16, and the remainders */
struct split_values {
	uint32_t high[2], low[2];
};

template <int DTYPE>
struct raw {
	uint2 v;
};

template <>
struct raw<HZ_F32> {
	float4 v;
};

/* volatile keeps program order: all loads before the first use */
HZ_DEVICE void load_volatile(float4 &v, const void *p)
{
	asm volatile("ld.global.v4.f32 {%0, %1, %2, %3}, [%4];"
		     : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w) : "l"(p));
}

HZ_DEVICE void load_volatile(uint2 &v, const void *p)
{
	asm volatile("ld.global.v2.u32 {%0, %1}, [%2];" : "=r"(v.x), "=r"(v.y) : "l"(p));
}

template <int DTYPE>
HZ_DEVICE split_values split4(const raw<DTYPE> &x, float &squares)
{
	float v[4];
	split_values r = {};

	if constexpr (DTYPE == HZ_F32) {
		v[0] = x.v.x, v[1] = x.v.y, v[2] = x.v.z, v[3] = x.v.w;
	} else {
		unpack(DTYPE, x.v.x, v[0], v[1]);
		unpack(DTYPE, x.v.y, v[2], v[3]);
	}
#pragma unroll
	for (int e = 0; e < 4; e++)
		squares = fmaf(v[e], v[e], squares);
	if constexpr (DTYPE == HZ_BF16) {
		r.high[0] = x.v.x;
		r.high[1] = x.v.y;
	} else {
		r.high[0] = split_pair(v[0], v[1], r.low[0]);
		r.high[1] = split_pair(v[2], v[3], r.low[1]);
	}
	return r;
}

/* Addresses that a lane reads: rows of phi, two tokens, gain or NULL */
template <class ROWS>
struct sources {
	const float *phi[ROWS::count], *gain;
	const char *x[2];
};

/*
 * A warp has one stream, 16 channels at a time; a lane has four contiguous ones of up to three rows
 * of phi and of two tokens. Rows and tokens beyond the last repeat the first: their sums are not
 * used. Addresses are computed before griddepcontrol.wait.
 */
template <int DTYPE, class ROWS>
HZ_DEVICE sources<ROWS> find_sources(const hzi_mhc_small_batch &p, const block_work &b)
{
	const int lane = threadIdx.x % 32, row = lane / 4, stream = threadIdx.x / 32 % 4;
	const int channels = (int)p.channels, at = b.channel + threadIdx.x / 128 * 16 +
		lane % 4 * 4;
	sources<ROWS> src = {};

#pragma unroll
	for (int i = 0; i < ROWS::count; i++) {
		const int of_i = (ROWS::first + i) * 8 + row, k = of_i < p.rule.m ? of_i : 0;

		src.phi[i] = p.phi + ((k * 4 + stream) * channels + at);
		asm volatile("" : "+l"(src.phi[i]));
	}
#pragma unroll
	for (int i = 0; i < 2; i++) {
		const int t = b.token + (i * 8 + row < b.tokens ? i * 8 + row : 0);

		src.x[i] = (const char *)p.x.data +
			   offset32(p.x, t, stream, at) * (DTYPE == HZ_F32 ? 4 : 2);
		asm volatile("" : "+l"(src.x[i]));
	}
	if (p.gain)
		src.gain = p.gain + (stream * channels + at);
	return src;
}

/*
 * STEPS steps from channel c on; FULL false: only `left` channels of them. The four channels of a
 * lane are columns 2q, 2q + 1, 2q + 8, 2q + 9 of the mma: the order does not change sums.
 */
template <int DTYPE, bool FULL, class ROWS>
HZ_DEVICE void project_steps(const sources<ROWS> &src, int c, int left, float (*sum)[4],
			     float *squares)
{
	float4 w[STEPS][ROWS::count];
	raw<DTYPE> x[STEPS][2];

#pragma unroll
	for (int j = 0; j < STEPS; j++) {
		const bool in = FULL || j * STRIDE < left;

#pragma unroll
		for (int i = 0; i < 2; i++) {
			x[j][i].v = {};
			if (in)
				load_volatile(x[j][i].v,
					 src.x[i] + (c + j * STRIDE) * (DTYPE == HZ_F32 ? 4 : 2));
		}
#pragma unroll
		for (int i = 0; i < ROWS::count; i++) {
			w[j][i] = {};
			if (in)
				load_volatile(w[j][i], src.phi[i] + (c + j * STRIDE));
		}
	}
#pragma unroll
	for (int j = 0; j < STEPS; j++) {
		const split_values v[2] = {split4<DTYPE>(x[j][0], squares[0]),
					   split4<DTYPE>(x[j][1], squares[1])};
		const uint32_t high[4] = {v[0].high[0], v[1].high[0], v[0].high[1], v[1].high[1]};
		const uint32_t low[4] = {v[0].low[0], v[1].low[0], v[0].low[1], v[1].low[1]};

		if (!FULL && src.gain && j * STRIDE < left) {
			const float4 gain = *(const float4 *)(src.gain + (c + j * STRIDE));

#pragma unroll
			for (int i = 0; i < ROWS::count; i++) {
				w[j][i].x *= gain.x;
				w[j][i].y *= gain.y;
				w[j][i].z *= gain.z;
				w[j][i].w *= gain.w;
			}
		}
#pragma unroll
		for (int i = 0; i < ROWS::count; i++) {
			uint32_t remainder[2];
			const uint32_t phi[2] = {split_weights(w[j][i].x, w[j][i].y, remainder[0]),
						 split_weights(w[j][i].z, w[j][i].w, remainder[1])};

			mma_m16n8k16<HZ_BF16>(sum[i], high, phi[0], phi[1]);
			mma_m16n8k16<HZ_BF16>(sum[i], high, remainder[0], remainder[1]);
			if (DTYPE != HZ_BF16)
				mma_m16n8k16<HZ_BF16>(sum[i], low, phi[0], phi[1]);
		}
	}
}

/* Projects the block's channels; leaves the sums of a warp. */
template <int DTYPE, class ROWS>
HZ_DEVICE void project(const sources<ROWS> &src, const block_work &b, memory &m)
{
	const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, row = lane / 4;
	float sum[ROWS::count][4] = {}, squares[2] = {};

	for (int c = 0, left; left = b.channels - c - warp / 4 * 16,
	     left > 0; c += STEPS * STRIDE) {
		if (left >= (STEPS - 1) * STRIDE + 16 && !src.gain)
			project_steps<DTYPE, true>(src, c, left, sum, squares);
		else
			project_steps<DTYPE, false>(src, c, left - lane % 4 * 4, sum, squares);
	}
#pragma unroll
	for (int half = 0; half < 2; half++) {
#pragma unroll
		for (int i = 0; i < ROWS::count; i++)
			*(float2 *)&m.sums[warp][half * 8 + row]
					  [(ROWS::first + i) * 8 + lane % 4 * 2] =
				{sum[i][half * 2], sum[i][half * 2 + 1]};
		squares[half] = warp_sum<4>(squares[half]);
		if (lane % 4 == 0)
			m.sums[warp][half * 8 + row][MAX_ROWS] = squares[half];
	}
}

/* Sends the block's sums of each token to the block that owns it, four per thread. */
template <class ROWS>
HZ_DEVICE void send_sums(const block_work &b, memory &m)
{
	const int token = threadIdx.x / ROWS::vectors, v = threadIdx.x % ROWS::vectors;
	const int k = v < ROWS::vectors - 1 ? ROWS::first * 8 + v * 4 : MAX_ROWS;
	float4 sum;

	if (token >= b.tokens)
		return;
	sum = *(const float4 *)&m.sums[0][token][k];
#pragma unroll
	for (int w = 1; w < WARPS; w++) {
		const float4 v = *(const float4 *)&m.sums[w][token][k];

		sum.x += v.x;
		sum.y += v.y;
		sum.z += v.z;
		sum.w += v.w;
	}
	store_async(cluster_map(shared_address(&m.received[b.rank][k]), token), sum.x, sum.y, sum.z,
		    sum.w, cluster_map(shared_address(&m.arrived), token));
}

/* z of row k of the block's own token, in lane k */
template <int DTYPE, class ROWS>
HZ_DEVICE float receive(const hzi_mhc_small_batch &p, const block_work &b, memory &m, float alpha,
			float bias, float *saved)
{
	const int lane = threadIdx.x % 32;
	const bool has = ROWS::has(lane), square = lane == MAX_ROWS;
	float part = 1 / (float)(4 * p.channels);
	float sum = 0, y, kept, mean, slope;

	asm volatile("" : "+f"(part));	/* before the wait */
	mbarrier_wait(shared_address(&m.arrived), 0);
#pragma unroll
	for (int r = 0; r < HZI_MHC_SMALL_BATCH_BLOCKS; r++)
		sum += has || square ? m.received[r][lane] : 0;
	kept = __shfl_sync(0xffffffff, sum, MAX_ROWS) * part;
	mean = kept + p.rule.rms_eps;
	y = mean == 0 ? 0 : sum * rsqrtf(mean);
	if (__any_sync(0xffffffff, hzi_mhc_leaves_f32(kept, hzi_mhc_least_square(&p.rule)))) {
		kept = wide_root(p.x, DTYPE, b.token + b.rank, 4, p.channels, kept);
		if (kept < 0)
			y = sum * wide_inverse(kept, p.rule.rms_eps);
	}
	if (saved && has && lane < p.rule.m)
		saved[lane] = sum;
	if (saved && square && ROWS::gates)
		saved[p.rule.m] = kept;
	return hzi_m_fma(alpha, hzi_mhc_input(&p.rule, y, &slope), bias);
}

/* Makes p, sent to all blocks if u is wanted, and q. */
HZ_DEVICE void make_gates(const hzi_mhc_small_batch &p, const block_work &b, memory &m, float z)
{
	const int lane = threadIdx.x % 32;

	gates_of_lanes<32>(p, b.token + b.rank, true, z, [&](float p0, float p1, float p2, float p3) {
		if (p.u.data && lane < HZI_MHC_SMALL_BATCH_BLOCKS)
			store_async(cluster_map(shared_address(m.p[b.rank]), lane), p0, p1, p2, p3,
				    cluster_map(shared_address(&m.weights), lane));
	});
}

template <int DTYPE>
HZ_DEVICE void store_eight(const hzi_mhc_array &u, int64_t token, int64_t c, const float *v)
{
	char *dst = (char *)u.data + offset(u, token, 0, c) * (DTYPE == HZ_F32 ? 4 : 2);

	if (DTYPE == HZ_F32) {
		((float4 *)dst)[0] = {v[0], v[1], v[2], v[3]};
		((float4 *)dst)[1] = {v[4], v[5], v[6], v[7]};
	} else {
		*(uint4 *)dst = pack_eight<DTYPE>(v);
	}
}

/* u of the block's channels, 8 of a token per thread */
template <int DTYPE>
HZ_DEVICE void mix(const hzi_mhc_small_batch &p, const block_work &b, memory &m)
{
	const int eights = b.channels / 8, first = threadIdx.x - 64;

	for (int e = first; e == first ||
	     e < b.tokens * eights; e += HZI_MHC_SMALL_BATCH_THREADS - 64) {
		const bool works = e < b.tokens * eights;
		const int t = works ? e / eights : 0;
		const int c = b.channel + (works ? e % eights : 0) * 8;
		float v[4][8], u[8];

		if (works) {
#pragma unroll
			for (int i = 0; i < 4; i++)
				load_eight(v[i], p.x, DTYPE, true, b.token + t, i, c, p.channels);
		}
		mbarrier_wait(shared_address(&m.weights), 0);
		if (!works)
			break;
#pragma unroll
		for (int k = 0; k < 8; k++) {
			u[k] = m.p[t][0] * v[0][k];
#pragma unroll
			for (int i = 1; i < 4; i++)
				u[k] = fmaf(m.p[t][i], v[i][k], u[k]);
		}
		store_eight<DTYPE>(p.u, b.token + t, c, u);
	}
}

/* Makes everything that follows from the cluster's rows of phi, for its tokens. */
template <int DTYPE, class ROWS>
HZ_DEVICE void make(const hzi_mhc_small_batch &p, const block_work &b, memory &m)
{
	const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
	const bool matrix = ROWS::matrix && p.a.data;
	sources<ROWS> src;
	const float *of_alpha = NULL;
	float alpha = 0, bias = 0;

	if (threadIdx.x == 0) {
		mbarrier_init(shared_address(&m.arrived), 1);
		mbarrier_init(shared_address(&m.weights), 1);
		mbarrier_init_fence();
	}
	cluster_arrive_relaxed();
	src = find_sources<DTYPE, ROWS>(p, b);
	if (warp < 2 && lane < p.rule.m)
		of_alpha = p.alpha[hzi_mhc_part(4, lane)];
	asm volatile("" : "+l"(of_alpha));
	cluster_wait();			/* The barriers of all blocks are initialized. */
	if (threadIdx.x == 0) {
		mbarrier_expect_tx(shared_address(&m.arrived),
				   HZI_MHC_SMALL_BATCH_BLOCKS * ROWS::vectors * 16);
		mbarrier_expect_tx(shared_address(&m.weights), b.tokens * 16);
	}
	pdl_launch_dependents();
	pdl_wait();
	if (of_alpha)
		alpha = *of_alpha;
	if (warp < 2 && lane < p.rule.m)
		bias = p.bias[lane];
	project<DTYPE>(src, b, m);
	__syncthreads();
	send_sums<ROWS>(b, m);
	if (warp >= 2) {
		if (ROWS::gates && p.u.data)
			mix<DTYPE>(p, b, m);
	} else if (b.rank < b.tokens && (warp == 0 ? ROWS::gates : matrix)) {
		const bool saves = p.saved && warp == (ROWS::gates ? 0 : 1);
		float *saved = saves ? p.saved + (b.token + b.rank) * (p.rule.m + 1) : NULL;
		const float z = receive<DTYPE, ROWS>(p, b, m, alpha, bias, saved);

		if (warp == 0)
			make_gates(p, b, m, z);
		else
			matrix_of_lanes(p, b.token + b.rank, lane < 16,
					__shfl_sync(0xffffffff, z, row_of_lane(p.rule)));
	}
}

/*
 * Each cluster has 16 tokens; or the first p.matrices clusters make the matrices, and as many
 * others everything else. The blocks of a cluster run on one GPC, whose L2 bandwidth bounds the
 * reading of phi, most of the time: two clusters have twice the bandwidth.
 */
template <int DTYPE>
HZ_DEVICE void small_batch(const hzi_mhc_small_batch &p)
{
	__shared__ memory m;
	const int cluster = blockIdx.x / HZI_MHC_SMALL_BATCH_BLOCKS;
	block_work b;
	int left;

	b.rank = blockIdx.x % HZI_MHC_SMALL_BATCH_BLOCKS;
	b.token = (cluster < p.matrices ? cluster : cluster - p.matrices) * TILE;
	left = (int)p.tokens - b.token;
	b.tokens = left < TILE ? left : TILE;
	b.channel = b.rank * p.width;
	left = (int)p.channels - b.channel;
	b.channels = left < 0 ? 0 : left < p.width ? left : p.width;
	if (p.matrices == 0)
		make<DTYPE, rows_of<0, 3>>(p, b, m);
	else if (cluster < p.matrices)
		make<DTYPE, rows_of<1, 2>>(p, b, m);
	else
		make<DTYPE, rows_of<0, 1>>(p, b, m);
}
#endif

#if __CUDA_ARCH__ >= 900
#define KERNEL(name, dtype) \
	extern "C" __global__ void __launch_bounds__(HZI_MHC_SMALL_BATCH_THREADS, 1) \
		name(const __grid_constant__ hzi_mhc_small_batch p) { small_batch<dtype>(p); }
#else
#define KERNEL(name, dtype) \
	extern "C" __global__ void name(const __grid_constant__ hzi_mhc_small_batch p) {}
#endif
KERNEL(mhc_coef_small_batch_f32, HZ_F32)
KERNEL(mhc_coef_small_batch_f16, HZ_F16)
KERNEL(mhc_coef_small_batch_bf16, HZ_BF16)
