/*
 * mhc_pre_few.cu - coefficients and branch inputs of few tokens in one launch, on Hopper
 *
 * SPDX-License-Identifier: BSD-2-Clause
 *
 * What this takes is latency. A cluster of 16 blocks has up to 16 tokens, each block a slice of the
 * channels, of which a warp has 64 of phi on their way before it uses the first. Blocks send their
 * sums of a token to the one that owns it. There one warp makes p, which it sends to all, for u, and
 * another the matrix at the same time.
 */
#include "gpu/mhc_pre.cuh"
#include "gpu/mhc_pre_few.h"

#if __CUDA_ARCH__ >= 900
#include "gpu/tma.cuh"

#define TILE HZI_PRE_FEW_BLOCKS		/* tokens */
#define ROWS_MOST HZI_PRE_FEW_ROWS
#define COLUMNS (ROWS_MOST + 4)		/* sums of a token; the 25th: of squares */
#define WARPS (HZI_PRE_FEW_THREADS / 32)
#define STEPS 4				/* of 16 channels, whose loads a warp has under way */
#define STRIDE (WARPS / 4 * 16)		/* channels from a warp's step to its next */

struct memory {
	float sums[WARPS][TILE][COLUMNS];
	float received[HZI_PRE_FEW_BLOCKS][COLUMNS];	/* of this block's token */
	float p[TILE][4];
	uint64_t came, weights;
};

/* What a block does: the tokens are its cluster's */
struct place_of {
	int token, channel;		/* the first */
	int rank, tokens, channels;
};

/* 4 channels of a token, as pairs of bf16, and what these leave */
struct quad {
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

/* In the order of the program: all loads before the first use */
HZ_DEVICE void load_now(float4 &v, const void *p)
{
	asm volatile("ld.global.v4.f32 {%0, %1, %2, %3}, [%4];"
		     : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w) : "l"(p));
}

HZ_DEVICE void load_now(uint2 &v, const void *p)
{
	asm volatile("ld.global.v2.u32 {%0, %1}, [%2];" : "=r"(v.x), "=r"(v.y) : "l"(p));
}

template <int DTYPE>
HZ_DEVICE quad split_quad(const raw<DTYPE> &x, float &squares)
{
	float v[4];
	quad r = {};

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

/* What a lane reads: three rows of phi, two tokens, the gain if there is one */
struct sources {
	const float *phi[3], *gain;
	const char *x[2];
};

/*
 * A warp has one stream, 16 channels at a time. Of these a lane has four next to each other, of
 * three rows of phi and of two tokens. What is there for rows and tokens that there are none of,
 * nobody reads. Addresses are known before the kernel ahead has ended.
 */
template <int DTYPE>
HZ_DEVICE sources find_sources(const hzi_mhc_few &p, const place_of &b)
{
	const int lane = threadIdx.x % 32, row = lane / 4, stream = threadIdx.x / 32 % 4;
	const int channels = (int)p.channels, at = b.channel + threadIdx.x / 128 * 16 + lane % 4 * 4;
	sources from = {};

#pragma unroll
	for (int i = 0; i < 3; i++) {
		const int k = i * 8 + row < p.rule.m ? i * 8 + row : 0;

		from.phi[i] = p.phi + ((k * 4 + stream) * channels + at);
		asm volatile("" : "+l"(from.phi[i]));
	}
#pragma unroll
	for (int i = 0; i < 2; i++) {
		const int t = b.token + (i * 8 + row < b.tokens ? i * 8 + row : 0);

		from.x[i] = (const char *)p.x.data +
			    near_place(p.x, t, stream, at) * (DTYPE == HZ_F32 ? 4 : 2);
		asm volatile("" : "+l"(from.x[i]));
	}
	if (p.gain)
		from.gain = p.gain + (stream * channels + at);
	return from;
}

/*
 * STEPS steps from channel c on, or with WHOLE false what there is of them: `left` channels. mma
 * takes a lane's four channels for 2q, 2q + 1, 2q + 8, 2q + 9: sums do not mind.
 */
template <int DTYPE, bool WHOLE>
HZ_DEVICE void project_steps(const sources &from, int c, int left, float (*sum)[4], float *squares)
{
	float4 w[STEPS][3];
	raw<DTYPE> x[STEPS][2];

#pragma unroll
	for (int j = 0; j < STEPS; j++) {
		const bool in = WHOLE || j * STRIDE < left;

#pragma unroll
		for (int i = 0; i < 2; i++) {
			x[j][i].v = {};
			if (in)
				load_now(x[j][i].v,
					 from.x[i] + (c + j * STRIDE) * (DTYPE == HZ_F32 ? 4 : 2));
		}
#pragma unroll
		for (int i = 0; i < 3; i++) {
			w[j][i] = {};
			if (in)
				load_now(w[j][i], from.phi[i] + (c + j * STRIDE));
		}
	}
#pragma unroll
	for (int j = 0; j < STEPS; j++) {
		const quad v[2] = {split_quad<DTYPE>(x[j][0], squares[0]),
				   split_quad<DTYPE>(x[j][1], squares[1])};
		const uint32_t high[4] = {v[0].high[0], v[1].high[0], v[0].high[1], v[1].high[1]};
		const uint32_t low[4] = {v[0].low[0], v[1].low[0], v[0].low[1], v[1].low[1]};

		if (!WHOLE && from.gain && j * STRIDE < left) {
			const float4 gain = *(const float4 *)(from.gain + (c + j * STRIDE));

#pragma unroll
			for (int i = 0; i < 3; i++) {
				w[j][i].x *= gain.x;
				w[j][i].y *= gain.y;
				w[j][i].z *= gain.z;
				w[j][i].w *= gain.w;
			}
		}
#pragma unroll
		for (int i = 0; i < 3; i++) {
			uint32_t rest[2];
			const uint32_t phi[2] = {split_weights(w[j][i].x, w[j][i].y, rest[0]),
						 split_weights(w[j][i].z, w[j][i].w, rest[1])};

			multiply_bf16(sum[i], high, phi[0], phi[1]);
			multiply_bf16(sum[i], high, rest[0], rest[1]);
			if (DTYPE != HZ_BF16)
				multiply_bf16(sum[i], low, phi[0], phi[1]);
		}
	}
}

/* A warp's sums */
template <int DTYPE>
HZ_DEVICE void project(const sources &from, const place_of &b, memory &m)
{
	const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, row = lane / 4;
	float sum[3][4] = {}, squares[2] = {};

	for (int c = 0, left; left = b.channels - c - warp / 4 * 16, left > 0; c += STEPS * STRIDE) {
		if (left >= (STEPS - 1) * STRIDE + 16 && !from.gain)
			project_steps<DTYPE, true>(from, c, left, sum, squares);
		else
			project_steps<DTYPE, false>(from, c, left - lane % 4 * 4, sum, squares);
	}
#pragma unroll
	for (int half = 0; half < 2; half++) {
#pragma unroll
		for (int i = 0; i < 3; i++)
			*(float2 *)&m.sums[warp][half * 8 + row][i * 8 + lane % 4 * 2] =
				{sum[i][half * 2], sum[i][half * 2 + 1]};
		squares[half] = sum_lanes<4>(squares[half]);
		if (lane % 4 == 0)
			m.sums[warp][half * 8 + row][ROWS_MOST] = squares[half];
	}
}

/* The block's sums of each token to the block that owns it, four a thread */
HZ_DEVICE void send_sums(const place_of &b, memory &m)
{
	const int token = threadIdx.x / (COLUMNS / 4), k = threadIdx.x % (COLUMNS / 4) * 4;
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
		    sum.w, cluster_map(shared_address(&m.came), token));
}

/* Lane k's number z of the block's own token; of it alpha and bias, which came before */
HZ_DEVICE float receive(const hzi_mhc_few &p, memory &m, float alpha, float bias, float *saved)
{
	const int lane = threadIdx.x % 32;
	const float part = 1 / (float)(4 * p.channels);
	float sum = 0, mean, slope;

	barrier_wait(shared_address(&m.came), 0);
#pragma unroll
	for (int r = 0; r < HZI_PRE_FEW_BLOCKS; r++)
		sum += lane <= ROWS_MOST ? m.received[r][lane] : 0;
	if (lane == ROWS_MOST)
		sum *= part;
	if (saved && (lane < p.rule.m || lane == ROWS_MOST))
		saved[lane < p.rule.m ? lane : p.rule.m] = sum;
	mean = __shfl_sync(0xffffffff, sum, ROWS_MOST) + p.rule.rms_eps;
	return hzi_m_fma(alpha, hzi_mhc_input(&p.rule, mean == 0 ? 0 : sum * rsqrtf(mean), &slope),
			 bias);
}

/* p, to all blocks if there is u, and q */
HZ_DEVICE void make_gates(const hzi_mhc_few &p, const place_of &b, memory &m, float z)
{
	const int lane = threadIdx.x % 32;
	const int token = b.token + b.rank;
	float of_p[4], gate[4], post;

#pragma unroll
	for (int i = 0; i < 4; i++)
		of_p[i] = __shfl_sync(0xffffffff, z, i);
	hzi_mhc_gates(4, &p.rule, of_p, gate);
	if (p.u.data && lane < HZI_PRE_FEW_BLOCKS)
		store_async(cluster_map(shared_address(m.p[b.rank]), lane), gate[0], gate[1],
			    gate[2], gate[3], cluster_map(shared_address(&m.weights), lane));
	if (p.p.data && lane == 0) {
#pragma unroll
		for (int i = 0; i < 4; i++)
			*coef_at(p.p, token, i, 0) = gate[i];
	}
	hzi_mhc_post_gates(1, &p.rule, &z, &post);
	if (p.q.data && lane / 4 == 1)
		*coef_at(p.q, token, lane % 4, 0) = post;
}

/* sum_d k[d] v of lane l ^ d, and `first` */
HZ_DEVICE float sum_of_four(const float *k, float v, float first)
{
	first = fmaf(k[0], v, first);
#pragma unroll
	for (int d = 1; d < 4; d++)
		first = fmaf(k[d], __shfl_xor_sync(0xffffffff, v, d), first);
	return first;
}

/*
 * As hzi_mhc_sinkhorn(), of whose matrix k lane l, of four, has row l, and to begin with column l: [d]
 * is the element of column, or row, l ^ d. A half of an iteration is a sum, a reciprocal and three
 * exchanges, where one thread would make four of each; here nothing else is to be done meanwhile.
 */
HZ_DEVICE void sinkhorn_of_lanes(const hzi_mhc_rule &rule, const float *z, float *row)
{
	float column[4], most = z[0], sum = 0, one = 1, least = 0, r, c, of_r, of_c;

#pragma unroll
	for (int d = 1; d < 4; d++)
		most = hzi_m_max(most, z[d]);
#pragma unroll
	for (int d = 0; d < 4; d++) {
		column[d] = rule.map == HZ_MHC_ABS ? fabsf(z[d]) + rule.eps : hzi_m_exp(z[d] - most);
		sum += column[d];
		if (rule.map == HZ_MHC_ABS)
			one = fmaf(z[d], 0, one);
	}
	if (rule.map == HZ_MHC_SOFTMAX) {
		sum = hzi_m_inverse(sum);
#pragma unroll
		for (int d = 0; d < 4; d++)
			column[d] = fmaf(column[d], sum, rule.eps);
	}
	sum = 0;
#pragma unroll
	for (int d = 0; d < 4; d++) {
		row[d] = __shfl_xor_sync(0xffffffff, column[d], d);
		sum += row[d];
	}
	one = sum_lanes<4>(one) - 3;
	r = c = of_r = of_c = one;
	if (rule.map == HZ_MHC_EXP && rule.eps != 0 && sum < 1e-37f)
		least = one;
	for (int t = 0; t < rule.iterations; t++) {
		if (t > 0 || rule.map != HZ_MHC_SOFTMAX) {
			of_c = sum_of_four(column, r, of_c * rule.eps);
			c = hzi_m_inverse(of_c);
		}
		of_r = sum_of_four(row, c, fmaf(of_r, rule.eps, least));
		r = hzi_m_inverse(of_r);
	}
#pragma unroll
	for (int d = 0; d < 4; d++)
		row[d] = r * row[d] * __shfl_xor_sync(0xffffffff, c, d);
}

/* The matrix: lane l, of four, has elements (l, l ^ d) */
HZ_DEVICE void make_matrix(const hzi_mhc_few &p, const place_of &b, float z)
{
	const int lane = threadIdx.x % 32, l = lane % 4;
	const bool sinkhorn = p.rule.residual == HZ_MHC_SINKHORN;
	/* Sinkhorn's k, of which lanes want columns, is z or the transposed. */
	const bool turned = sinkhorn && p.rule.order == HZ_MHC_ROWS;
	const bool by_rows = !sinkhorn || turned;
	const bool crossed = turned != ((p.rule.flags & HZ_MHC_OLD_NEW) != 0);
	float of_a[4], a[4];

#pragma unroll
	for (int d = 0; d < 4; d++) {
		of_a[d] = __shfl_sync(0xffffffff, z,
				      8 + (by_rows ? l * 4 + (l ^ d) : (l ^ d) * 4 + l));
		a[d] = p.rule.residual == HZ_MHC_IDENTITY ? d == 0 : of_a[d];
	}
	if (sinkhorn)
		sinkhorn_of_lanes(p.rule, of_a, a);
#pragma unroll
	for (int d = 0; d < 4; d++) {
		const int i = crossed ? l ^ d : l, j = crossed ? l : l ^ d;

		if (lane < 4)
			*coef_at(p.a, b.token + b.rank, i, j) = a[d];
	}
}

template <int DTYPE>
HZ_DEVICE void store_eight(const hzi_mhc_array &u, int64_t token, int64_t c, const float *v)
{
	char *to = (char *)u.data + place(u, token, 0, c) * (DTYPE == HZ_F32 ? 4 : 2);

	if (DTYPE == HZ_F32) {
		((float4 *)to)[0] = {v[0], v[1], v[2], v[3]};
		((float4 *)to)[1] = {v[4], v[5], v[6], v[7]};
	} else {
		*(uint4 *)to = pack_eight<DTYPE>(v);
	}
}

/* u of the block's channels, 8 of a token at a time */
template <int DTYPE>
HZ_DEVICE void mix(const hzi_mhc_few &p, const place_of &b, memory &m)
{
	const int eights = b.channels / 8, first = threadIdx.x - 64;

	for (int e = first; e == first || e < b.tokens * eights; e += HZI_PRE_FEW_THREADS - 64) {
		const bool works = e < b.tokens * eights;
		const int t = works ? e / eights : 0;
		const int c = b.channel + (works ? e % eights : 0) * 8;
		float v[4][8], u[8];

		if (works) {
#pragma unroll
			for (int i = 0; i < 4; i++)
				load_eight(v[i], p.x, DTYPE, true, b.token + t, i, c, p.channels);
		}
		barrier_wait(shared_address(&m.weights), 0);
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

template <int DTYPE>
HZ_DEVICE void few(const hzi_mhc_few &p)
{
	__shared__ memory m;
	const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
	sources from;
	place_of b;
	int left;
	float alpha = 0, bias = 0;

	b.rank = blockIdx.x % HZI_PRE_FEW_BLOCKS;
	b.token = blockIdx.x / HZI_PRE_FEW_BLOCKS * TILE;
	left = (int)p.tokens - b.token;
	b.tokens = left < TILE ? left : TILE;
	b.channel = b.rank * p.width;
	left = (int)p.channels - b.channel;
	b.channels = left < 0 ? 0 : left < p.width ? left : p.width;
	if (threadIdx.x == 0) {
		barrier_init(shared_address(&m.came), 1);
		barrier_init(shared_address(&m.weights), 1);
		barrier_init_fence();
		barrier_expect(shared_address(&m.came), HZI_PRE_FEW_BLOCKS * COLUMNS * 4);
		barrier_expect(shared_address(&m.weights), b.tokens * 16);
	}
	cluster_arrive_relaxed();
	from = find_sources<DTYPE>(p, b);
	cluster_wait();			/* All blocks' barriers are there. */
	grid_next();
	grid_wait();
	if (warp < 2 && lane < p.rule.m) {
		alpha = hzi_mhc_alpha(p.alpha, hzi_mhc_part(4, lane));
		bias = p.bias[lane];
	}
	project<DTYPE>(from, b, m);
	__syncthreads();
	send_sums(b, m);
	if (warp >= 2) {
		if (p.u.data)
			mix<DTYPE>(p, b, m);
	} else if (b.rank < b.tokens && (warp == 0 || p.a.data)) {
		float *saved = warp == 0 && p.saved ?
				       p.saved + (b.token + b.rank) * (p.rule.m + 1) : NULL;
		const float z = receive(p, m, alpha, bias, saved);

		if (warp == 0)
			make_gates(p, b, m, z);
		else
			make_matrix(p, b, z);
	}
}
#endif

#if __CUDA_ARCH__ >= 900
#define FEW(name, dtype) \
	extern "C" __global__ void __launch_bounds__(HZI_PRE_FEW_THREADS, 1) \
		name(const __grid_constant__ hzi_mhc_few p) { few<dtype>(p); }
#else
#define FEW(name, dtype) \
	extern "C" __global__ void name(const __grid_constant__ hzi_mhc_few p) {}
#endif
FEW(mhc_pre_few_f32, HZ_F32)
FEW(mhc_pre_few_f16, HZ_F16)
FEW(mhc_pre_few_bf16, HZ_BF16)
