/*
 * coef_mma.cu - products of streams and phi on tensor cores, any number of streams
 *
 * SPDX-License-Identifier: BSD-2-Clause
 *
 * Channels are contiguous and aligned. Streams do not pass through shared memory: channels may be
 * assigned to the columns of an mma in any order, so a lane gets contiguous ones and loads them as
 * one vector. draw, phi, and x of f32 or f16 are split into two terms of bf16.
 */
#include "gpu/mhc/coef.cuh"
#include "gpu/device/mma.cuh"
#include "gpu/device/pdl.cuh"

#define THREADS HZI_MHC_MMA_THREADS
#define WARPS (THREADS / 32)

/* 8 channels of a token, unconverted; 0 beyond the last */
template <int DT>
HZ_DEVICE void load_raw_eight(uint4 *raw, const hzi_mhc_array &x, int64_t at, bool in)
{
#pragma unroll
	for (int e = 0; e < (is_f32<DT> ? 2 : 1); e++) {
		raw[e] = {};
		if (in)
			raw[e] = ((const uint4 *)((const char *)x.data +
						  at * (is_f32<DT> ? 4 : 2)))[e];
	}
}

/* Splits these into pairs of bf16 and their remainders. */
template <int DT>
HZ_DEVICE void split_eight(const uint4 *raw, uint32_t *high, uint32_t *low)
{
	const uint32_t w[8] = {raw[0].x, raw[0].y, raw[0].z, raw[0].w,
			       raw[is_f32<DT>].x, raw[is_f32<DT>].y, raw[is_f32<DT>].z,
			       raw[is_f32<DT>].w};

#pragma unroll
	for (int e = 0; e < 4; e++) {
		if (DT == HZ_F32)
			high[e] = split_pair(__uint_as_float(w[e * 2]),
					     __uint_as_float(w[e * 2 + 1]), low[e]);
		else if (DT == HZ_F16)
			high[e] = split_pair(f16_low(w[e]), f16_high(w[e]), low[e]);
		else
			high[e] = w[e];
	}
}

/* ---- Projection ------------------------------------------------------------------------------ */

#define CHUNK HZI_MHC_MMA_CHUNK		/* channels at a time */
#define STEPS (CHUNK / 16)
#define PIECES (CHUNK / 32)		/* pieces of 8 channels per token and lane */

/* A position in the block's split of the columns */
struct chunk_of {
	int stream;
	int64_t c;

	__device__ void next(int64_t channels)
	{
		c += CHUNK;
		if (c >= channels) {
			c = 0;
			stream++;
		}
	}
};

/* phi of a chunk: a thread's pieces of 4 channels of a row */
template <int TILES>
struct phi_pieces {
	static constexpr int count = (TILES * 8 * (CHUNK / 4) + THREADS - 1) / THREADS;
	float4 v[count];

	__device__ void load(const hzi_mhc_project &p, const chunk_of &at)
	{
#pragma unroll
		for (int e = 0; e < count; e++) {
			const int piece = e * THREADS + threadIdx.x, k = piece / (CHUNK / 4);
			const int64_t c = at.c + piece % (CHUNK / 4) * 4;
			const int64_t src = at.stream * p.channels + c;

			v[e] = {};
			if (k >= p.m || c >= p.channels)
				continue;
			v[e] = *(const float4 *)(p.phi + k * p.n * p.channels + src);
			if (p.gain) {
				const float4 gain = *(const float4 *)(p.gain + src);

				v[e].x *= gain.x;
				v[e].y *= gain.y;
				v[e].z *= gain.z;
				v[e].w *= gain.w;
			}
		}
	}

	/*
	 * Stores B fragments of 16 channels by 8 rows, lane by lane. Lane q of four has 8
	 * contiguous channels of 32; each of two steps uses 4.
	 */
	__device__ void store(uint4 *dst) const
	{
#pragma unroll
		for (int e = 0; e < count; e++) {
			const int piece = e * THREADS + threadIdx.x, k = piece / (CHUNK / 4);
			const int four = piece % (CHUNK / 4), q = four / 2 % 4;
			const int step = four / 8 * 2 + four % 2;
			uint4 parts;

			if (k >= TILES * 8)
				break;
			parts.x = split_weights(v[e].x, v[e].y, parts.z);
			parts.y = split_weights(v[e].z, v[e].w, parts.w);
			dst[(k / 8 * STEPS + step) * 32 + k % 8 * 4 + q] = parts;
		}
	}
};

/* x of a chunk: tokens lane / 4 + 0, 8, 16, 24 of a warp */
template <int DT>
struct x_pieces {
	uint4 v[4][PIECES][is_f32<DT> ? 2 : 1];

	__device__ void load(const hzi_mhc_project &p, int64_t first, const chunk_of &at)
	{
#pragma unroll
		for (int r = 0; r < 4; r++) {
			const int64_t t = first + r * 8;

#pragma unroll
			for (int e = 0; e < PIECES; e++) {
				const int64_t c = at.c + e * 32 + threadIdx.x % 4 * 8;

				load_raw_eight<DT>(v[r][e], p.x, offset(p.x, t, at.stream, c),
						   t < p.groups && c < p.channels);
			}
		}
	}
};

template <int DT>
HZ_DEVICE float squares_of(const uint4 *raw, float sum)
{
	const uint32_t w[8] = {raw[0].x, raw[0].y, raw[0].z, raw[0].w,
			       raw[is_f32<DT>].x, raw[is_f32<DT>].y, raw[is_f32<DT>].z,
			       raw[is_f32<DT>].w};

#pragma unroll
	for (int e = 0; e < 4; e++) {
		float a, b;

		if (is_f32<DT>) {
			a = __uint_as_float(w[e * 2]);
			b = __uint_as_float(w[e * 2 + 1]);
		} else {
			unpack(DT, w[e], a, b);
		}
		sum = fmaf(a, a, sum);
		sum = fmaf(b, b, sum);
	}
	return sum;
}

/*
 * A warp has 32 tokens, a block a split of the columns; the next chunk is loaded during the
 * products of this one. TILES: tiles of 8 rows of phi, at most
 */
template <int DT, int TILES>
HZ_DEVICE void mma_project(const hzi_mhc_project &p)
{
	__shared__ uint4 phi[2][TILES * STEPS * 32];
	const int lane = threadIdx.x % 32;
	const int64_t first = (int64_t)blockIdx.x * HZI_MHC_MMA_TOKENS + threadIdx.x / 32 * 32;
	const int64_t chunks = (p.channels + CHUNK - 1) / CHUNK, all = p.n * chunks;
	const int64_t begin = all * blockIdx.y / p.splits, end = all * (blockIdx.y + 1) / p.splits;
	const bool works = first < p.groups;
	chunk_of at = {(int)(begin / chunks), begin % chunks * CHUNK};
	float sum[2][TILES][4] = {}, squares[4] = {};
	phi_pieces<TILES> weights;
	x_pieces<DT> next;
	int slot = 0;

	pdl_launch_dependents();
	pdl_wait();
	weights.load(p, at);
	next.load(p, first + lane / 4, at);
	weights.store(phi[0]);
	__syncthreads();
	for (int64_t chunk = begin; chunk < end; chunk++, slot ^= 1) {
		const x_pieces<DT> x = next;
		const uint4 *const own = phi[slot] + lane;
		const bool more = chunk + 1 < end;

		at.next(p.channels);
		if (more) {
			weights.load(p, at);
			next.load(p, first + lane / 4, at);
		}
#pragma unroll
		for (int e = 0; works && e < PIECES; e++) {
			uint32_t high[4][4], low[4][4];

#pragma unroll
			for (int r = 0; r < 4; r++) {
				squares[r] = squares_of<DT>(x.v[r][e], squares[r]);
				split_eight<DT>(x.v[r][e], high[r], low[r]);
			}
#pragma unroll
			for (int half = 0; half < 2; half++) {
				const int h = half * 2;

#pragma unroll
				for (int k = 0; k < TILES; k++) {
					const uint4 b = own[(k * STEPS + e * 2 + half) * 32];

#pragma unroll
					for (int i = 0; i < 2; i++) {
						const uint32_t a[4] = {
							high[i * 2][h], high[i * 2 + 1][h],
							high[i * 2][h + 1], high[i * 2 + 1][h + 1],
						};
						const uint32_t remainder[4] = {
							low[i * 2][h], low[i * 2 + 1][h],
							low[i * 2][h + 1], low[i * 2 + 1][h + 1],
						};

						mma_m16n8k16<HZ_BF16>(sum[i][k], a, b.z, b.w);
						if (DT != HZ_BF16)
							mma_m16n8k16<HZ_BF16>(sum[i][k], remainder,
									      b.x, b.y);
						mma_m16n8k16<HZ_BF16>(sum[i][k], a, b.x, b.y);
					}
				}
			}
		}
		if (more)
			weights.store(phi[slot ^ 1]);
		__syncthreads();
	}
#pragma unroll
	for (int r = 0; r < 4; r++) {
		const int64_t t = first + r * 8 + lane / 4;
		float *const out = p.sums + (blockIdx.y * p.groups + t) * (p.m + 1);
		const float square = warp_sum<4>(squares[r]);

		if (t >= p.groups)
			continue;
		if (lane % 4 == 0)
			out[p.m] = square;
#pragma unroll
		for (int e = 0; e < TILES * 2; e++) {
			const int k = e / 2 * 8 + lane % 4 * 2 + e % 2;

			if (k < p.m)
				out[k] = sum[r / 2][e / 2][r % 2 * 2 + e % 2];
		}
	}
}

#define PROJECT(rows) \
	PROJECT_OF(f32, HZ_F32, rows) PROJECT_OF(f16, HZ_F16, rows) \
	PROJECT_OF(bf16, HZ_BF16, rows)
#define PROJECT_OF(type, dtype, rows) \
	extern "C" __global__ void __launch_bounds__(THREADS, 1) \
		mhc_coef_mma_project_##type##_##rows(const __grid_constant__ hzi_mhc_project p) \
	{ \
		mma_project<dtype, rows / 8>(p); \
	}

PROJECT(8)
PROJECT(24)
PROJECT(32)
PROJECT(48)
PROJECT(80)

/* ---- Gradients of streams -------------------------------------------------------------------- */

/*
 * phi of the block's channels as B fragments of 16 rows by 8 columns, lane by lane: the first
 * terms, then the second. A lane has rows 4q to 4q + 3 of 16; column e of its two fragments is
 * channel 4 (n / 2) + 2 e + n % 2 of 16.
 */
template <int N>
HZ_DEVICE void store_phi(const hzi_mhc_dx &p, uint4 *dst, int64_t first, int steps)
{
	const int channels = p.channel_groups * 16, count = N * steps * 4 * channels;

	for (int k = threadIdx.x; k < count; k += THREADS) {
		const int c = k % channels, remainder = k / channels, q = remainder % 4;
		const int step = remainder / 4 % steps;
		const int i = remainder / 4 / steps, e = c / 2 % 2, n = c % 16 / 4 * 2 + c % 2;
		const int64_t at = i * p.channels + first + c;
		const bool in = first + c < p.channels;
		const float gain = in && p.gain ? p.gain[at] : 1;
		float v[4];
		uint4 parts;

#pragma unroll
		for (int r = 0; r < 4; r++) {
			const int row = step * 16 + q * 4 + r;

			v[r] = in && row < p.m ? p.phi[row * N * p.channels + at] * gain : 0;
		}
		parts.x = split_weights(v[0], v[1], parts.z);
		parts.y = split_weights(v[2], v[3], parts.w);
		dst[(((c / 16 * N + i) * 2 + e) * steps + step) * 32 + n * 4 + q] = parts;
	}
}

/* draw of 16 tokens, rows 16 step to 16 step + 15: the values of a lane, columns as above */
struct draw_of_step {
	float4 v[2];

	__device__ __forceinline__ void load(const hzi_mhc_dx &p, const int64_t *t, int step)
	{
		const int k = step * 16 + threadIdx.x % 4 * 4;

#pragma unroll
		for (int half = 0; half < 2; half++) {
			v[half] = {};
			if (t[half] < p.tokens) {
				const float *src = p.draw + t[half] * p.m + k;

				if (p.m % 4 == 0) {
					if (k < p.m)
						v[half] = *(const float4 *)src;
				} else {
					v[half].x = k < p.m ? src[0] : 0;
					v[half].y = k + 1 < p.m ? src[1] : 0;
					v[half].z = k + 2 < p.m ? src[2] : 0;
					v[half].w = k + 3 < p.m ? src[3] : 0;
				}
			}
		}
	}

	/* As an A fragment, in two terms */
	__device__ __forceinline__ void split(uint32_t *high, uint32_t *low) const
	{
#pragma unroll
		for (int half = 0; half < 2; half++) {
			high[half] = split_pair(v[half].x, v[half].y, low[half]);
			high[half + 2] = split_pair(v[half].z, v[half].w, low[half + 2]);
		}
	}
};

/* Adds weight v to row `half` of a lane, 4 channels. */
HZ_DEVICE void add_four(float (*sum)[4], int half, float weight, const float *v)
{
#pragma unroll
	for (int e = 0; e < 4; e++)
		sum[e / 2][half * 2 + e % 2] = fmaf(weight, v[e], sum[e / 2][half * 2 + e % 2]);
}

HZ_DEVICE void scale_four(float *v, float by)
{
#pragma unroll
	for (int e = 0; e < 4; e++)
		v[e] *= by;
}

/* N coefficients of a token from the workspace, by the widest loads that N allows */
template <int N>
HZ_DEVICE void load_coefs(float *dst, const float *src)
{
	constexpr int step = N % 4 == 0 ? 4 : N % 2 == 0 ? 2 : 1;

	struct __align__(step * 4) pack {
		float v[step];
	};

#pragma unroll
	for (int i = 0; i < N; i += step) {
		const pack all = *(const pack *)(src + i);

#pragma unroll
		for (int e = 0; e < step; e++)
			dst[i + e] = all.v[e];
	}
}

/* 4 channels of a stream or of du, unconverted */
template <int DT>
struct raw_four {
	uint2 v;

	__device__ __forceinline__ void load(const hzi_mhc_array &x, int64_t at)
	{
		v = *(const uint2 *)((const uint16_t *)x.data + at);
	}
	__device__ __forceinline__ void get(float *to) const
	{
		unpack(DT, v.x, to[0], to[1]);
		unpack(DT, v.y, to[2], to[3]);
	}
};

template <>
struct raw_four<HZ_F32> {
	float4 v;

	__device__ __forceinline__ void load(const hzi_mhc_array &x, int64_t at)
	{
		v = *(const float4 *)((const float *)x.data + at);
	}
	__device__ __forceinline__ void get(float *to) const
	{
		to[0] = v.x, to[1] = v.y, to[2] = v.z, to[3] = v.w;
	}
};

/*
 * Adds dx of a lane's tokens from FIRST on, of two, without the term of phi. What is loaded of both
 * is requested before it is used: latency bounds this kernel; dy of f32, which takes the most
 * registers, where it is used. Tokens beyond the last repeat an earlier one.
 */
template <int N, int DT, int FIRST, int END>
HZ_DEVICE void add_tokens(const hzi_mhc_dx &p, float (*sum)[2][4], const int64_t *t, int64_t c)
{
	const int64_t each = p.groups == p.tokens ? 1 : p.tokens / p.groups;
	const int64_t s[2] = {mhc_divide(t[0], each), mhc_divide(t[1], each)};
	raw_four<DT> raw[2][N];
	float v[4], weight[N];

	if (p.own) {
#pragma unroll
		for (int half = FIRST; half < END; half++) {
#pragma unroll
			for (int j = 0; j < N; j++)
				raw[half][j].load(p.x, offset(p.x, t[half], j, c));
		}
#pragma unroll
		for (int half = FIRST; half < END; half++) {
			const float2 own = *(const float2 *)(p.own + t[half] * 2);

#pragma unroll
			for (int j = 0; j < N; j++) {
				raw[half][j].get(v);
				if (own.y != 1)
					scale_four(v, own.y);
				add_four(sum[j], half, own.x, v);
			}
		}
	}
	if (p.dy.data && !is_f32<DT>) {
#pragma unroll
		for (int half = FIRST; half < END; half++) {
#pragma unroll
			for (int i = 0; i < N; i++)
				raw[half][i].load(p.dy, offset(p.dy, t[half], i, c));
		}
	}
	if (p.du.data) {
#pragma unroll
		for (int half = FIRST; half < END; half++) {
			if (p.du_dtype == HZ_F32)
				load_vector<HZ_F32, 4>(v, p.du, offset(p.du, t[half], 0, c));
			else
				load_vector<DT, 4>(v, p.du, offset(p.du, t[half], 0, c));
			load_coefs<N>(weight, p.p + s[half] * N);
#pragma unroll
			for (int j = 0; j < N; j++)
				add_four(sum[j], half, weight[j], v);
		}
	}
	if (p.dy.data) {
#pragma unroll
		for (int i = 0; i < N; i++) {
#pragma unroll
			for (int half = FIRST; half < END; half++) {
				if (is_f32<DT>)
					raw[half][i].load(p.dy, offset(p.dy, t[half], i, c));
				load_coefs<N>(weight, p.a + (s[half] * N + i) * N);
				raw[half][i].get(v);
#pragma unroll
				for (int j = 0; j < N; j++)
					add_four(sum[j], half, weight[j], v);
			}
		}
	}
	for (int half = FIRST; p.shared && half < END; half++) {
#pragma unroll
		for (int j = 0; j < N; j++) {
			const float4 a = *(const float4 *)(p.shared +
							   (s[half] * N + j) * p.channels + c);
			const float shared[4] = {a.x, a.y, a.z, a.w};

#pragma unroll
			for (int at = 0; at < 2; at++) {
				if (at == half)
					add_four(sum[j], at, 1, shared);
			}
		}
	}
}

/*
 * A warp has 16 channels of all streams and 16 tokens at a time. p.channel_groups warps share the
 * tokens; the next ones have the next tokens.
 */
template <int N, int DT>
HZ_DEVICE void mma_dx(const hzi_mhc_dx &p)
{
	extern __shared__ uint4 phi[];
	const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, group = warp % p.channel_groups;
	const int phases = WARPS / p.channel_groups, steps = p.draw ? (p.m + 15) / 16 : 0;
	const int64_t first = (int64_t)blockIdx.x * (p.channel_groups * 16);
	const int64_t c = first + group * 16 + lane % 4 * 4;
	const uint4 *const own = phi + group * N * 2 * steps * 32 + lane;

	store_phi<N>(p, phi, first, steps);
	__syncthreads();
	for (int64_t tile = (int64_t)blockIdx.y * phases + warp / p.channel_groups;
	     tile * 16 < p.tokens; tile += (int64_t)gridDim.y * phases) {
		const int64_t t[2] = {tile * 16 + lane / 4, tile * 16 + lane / 4 + 8};
		const int64_t inside[2] = {t[0], t[1] < p.tokens ? t[1] : t[0]};
		float sum[N][2][4] = {};
		draw_of_step draw, next = {};

		/* f32 has registers for one step only, beside those of add_tokens(). */
		if (steps && !is_f32<DT>)
			next.load(p, t, 0);
		for (int step = 0; step < steps; step++) {
			uint32_t high[4], low[4];

			if (is_f32<DT>)
				next.load(p, t, step);
			draw = next;
			if (step + 1 < steps && !is_f32<DT>)
				next.load(p, t, step + 1);
			draw.split(high, low);
#pragma unroll
			for (int i = 0; i < N * 2; i++) {
				const uint4 b = own[(i * steps + step) * 32];

				mma_m16n8k16<HZ_BF16>(sum[i / 2][i % 2], low, b.x, b.y);
				mma_m16n8k16<HZ_BF16>(sum[i / 2][i % 2], high, b.z, b.w);
				mma_m16n8k16<HZ_BF16>(sum[i / 2][i % 2], high, b.x, b.y);
			}
		}
		if (c >= p.channels || t[0] >= p.tokens)
			continue;
		if (is_f32<DT>) {
			add_tokens<N, DT, 0, 1>(p, sum, inside, c);
			add_tokens<N, DT, 1, 2>(p, sum, inside, c);
		} else {
			add_tokens<N, DT, 0, 2>(p, sum, inside, c);
		}
#pragma unroll
		for (int half = 0; half < 2; half++) {
			if (t[half] >= p.tokens)
				break;
#pragma unroll
			for (int j = 0; j < N; j++) {
				const int64_t at = offset(p.dx, t[half], j, c);
				float v[4], old[4] = {};

				if (p.accumulate)
					load_vector<DT, 4>(old, p.dx, at);
#pragma unroll
				for (int e = 0; e < 4; e++)
					v[e] = fmaf(sum[j][e / 2][half * 2 + e % 2], p.scale,
						    old[e]);
				store_vector<DT>(p.dx, at, v);
			}
		}
	}
}

/* Up to 4 streams leave registers for twice the threads. */
template <int DT>
HZ_DEVICE void mma_dx_4(const hzi_mhc_dx &p)
{
	switch (p.n) {
	CASES_1_TO_3(mma_dx<N, DT>(p))
	STREAMS_CASE(default, 4, mma_dx<N, DT>(p))
	}
}

template <int DT>
HZ_DEVICE void mma_dx_8(const hzi_mhc_dx &p)
{
	switch (p.n) { CASES_5_TO_8(mma_dx<N, DT>(p)) }
}

#define DX(type, dtype, max_streams, blocks) \
	extern "C" __global__ void __launch_bounds__(THREADS, blocks) \
	   mhc_coef_mma_dx_##type##_##max_streams(const __grid_constant__ hzi_mhc_dx p) \
	{ \
		pdl_launch_dependents(); \
		pdl_wait(); \
		mma_dx_##max_streams<dtype>(p); \
	}

DX(f32, HZ_F32, 4, 2)
DX(f16, HZ_F16, 4, 2)
DX(bf16, HZ_BF16, 4, 2)
DX(f32, HZ_F32, 8, 1)
DX(f16, HZ_F16, 8, 1)
DX(bf16, HZ_BF16, 8, 1)

/* ---- Gradients of phi ------------------------------------------------------------------------ */

#define PART HZI_MHC_MMA_PART		/* tokens with draw in shared memory */

/* Transposes an 8 x 8 fragment: row and pair of columns become column and pair of rows. */
HZ_DEVICE uint32_t transposed(uint32_t v)
{
	uint32_t r;

	asm("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(r) : "r"(v));
	return r;
}

/* draw of PART tokens: a thread's values of pairs of tokens, requested before they are used */
template <int TILES>
struct draw_of_part {
	static constexpr int count = PART / 2 * TILES * 16 / THREADS;
	float v[count][2];

	__device__ __forceinline__ void load(const hzi_mhc_dphi &p, int64_t first, int64_t end)
	{
#pragma unroll
		for (int n = 0; n < count; n++) {
			const int e = n * THREADS + threadIdx.x, k = e % (TILES * 16);
			const int64_t t = first + e / (TILES * 16) * 2;
			const float *src = p.draw + t * p.m + k;

			v[n][0] = k < p.m && t < end ? src[0] : 0;
			v[n][1] = k < p.m && t + 1 < end ? src[p.m] : 0;
		}
	}

	/* As A fragments of 16 rows of phi by 16 tokens, lane by lane */
	__device__ __forceinline__ void store(uint32_t *dst) const
	{
#pragma unroll
		for (int n = 0; n < count; n++) {
			const int e = n * THREADS + threadIdx.x, k = e % (TILES * 16);
			const int pair = e / (TILES * 16);
			const int lane = k % 8 * 4 + pair % 4;
			const int number = k / 8 % 2 + pair / 4 % 2 * 2;
			uint32_t *at = dst + (((pair / 8 * TILES + k / 16) * 2 * 32 + lane) * 4 +
					      number);

			at[0] = split_pair(v[n][0], v[n][1], at[32 * 4]);
		}
	}
};

/* x of PART tokens, 8 channels a lane, unconverted */
template <int DT>
struct x_of_part {
	uint4 v[PART / 16][2][is_f32<DT> ? 2 : 1];

	__device__ __forceinline__ void load(const hzi_mhc_dphi &p, int i, int64_t c, int64_t first,
					     int64_t end)
	{
#pragma unroll
		for (int step = 0; step < PART / 16; step++) {
#pragma unroll
			for (int half = 0; half < 2; half++) {
				const int64_t t = first + step * 16 + half * 8 +
						  threadIdx.x % 32 / 4;

				load_raw_eight<DT>(v[step][half], p.x, offset(p.x, t, i, c),
						   t < end && c < p.channels);
			}
		}
	}
};

/*
 * A warp has 32 channels of a stream, a lane 8 contiguous ones of tokens lane / 4 and lane / 4 + 8;
 * a block has a split of the tokens. TILES: tiles of 16 rows of phi, at most
 */
template <int DT, int TILES>
HZ_DEVICE void mma_dphi(const hzi_mhc_dphi &p)
{
	constexpr int fragment_words = TILES * 2 * 32 * 4, steps = PART / 16;
	/* Two parts of f32 do not fit the registers; with few rows two blocks share an SM. */
	constexpr bool AHEAD = !is_f32<DT> && TILES > 2;
	constexpr bool DRAW_AHEAD = !is_f32<DT> || TILES > 2;	/* It would spill. */
	__shared__ __align__(16) uint32_t draw[2][steps * fragment_words];
	const int lane = threadIdx.x % 32, tiles = (p.m + 15) / 16;
	const int64_t strips = (p.channels + THREADS - 1) / THREADS;
	const int i = (int)(blockIdx.x / strips);
	const int64_t c = blockIdx.x % strips * THREADS + threadIdx.x / 32 * 32 + lane % 4 * 8;
	const int64_t begin = p.tokens * blockIdx.y / p.splits;
	const int64_t end = p.tokens * (blockIdx.y + 1) / p.splits;
	float sum[TILES][4][4] = {};
	draw_of_part<TILES> next_draw;
	x_of_part<DT> x, next;
	int slot = 0;

	pdl_launch_dependents();
	pdl_wait();
	if (DRAW_AHEAD)
		next_draw.load(p, begin, end);
	if (AHEAD)
		next.load(p, i, c, begin, end);
	for (int64_t first = begin; first < end; first += PART, slot ^= 1) {
		if (AHEAD)
			x = next;
		else
			x.load(p, i, c, first, end);
		if (!DRAW_AHEAD)
			next_draw.load(p, first, end);
		/* All warps have finished with the buffer of two parts ago. */
		next_draw.store(draw[slot]);
		__syncthreads();
		if (first + PART < end) {
			if (DRAW_AHEAD)
				next_draw.load(p, first + PART, end);
			if (AHEAD)
				next.load(p, i, c, first + PART, end);
		}
#pragma unroll
		for (int step = 0; step < steps; step++) {
			uint32_t high[2][4], low[2][4];

#pragma unroll
			for (int half = 0; half < 2; half++) {
				split_eight<DT>(x.v[step][half], high[half], low[half]);
#pragma unroll
				for (int e = 0; e < 4; e++) {
					high[half][e] = transposed(high[half][e]);
					if (DT != HZ_BF16)
						low[half][e] = transposed(low[half][e]);
				}
			}
#pragma unroll
			for (int k = 0; k < TILES; k++) {
				const uint4 *src =
					(const uint4 *)&draw[slot][step * fragment_words] + k * 64 +
					lane;
				const uint4 a = src[0], b = src[32];
				const uint32_t draw_high[4] = {a.x, a.y, a.z, a.w};
				const uint32_t remainder[4] = {b.x, b.y, b.z, b.w};

				if (k >= tiles)
					break;
#pragma unroll
				for (int e = 0; e < 4; e++) {
					mma_m16n8k16<HZ_BF16>(sum[k][e], remainder, high[0][e],
							      high[1][e]);
					if (DT != HZ_BF16)
						mma_m16n8k16<HZ_BF16>(sum[k][e], draw_high,
								      low[0][e], low[1][e]);
					mma_m16n8k16<HZ_BF16>(sum[k][e], draw_high, high[0][e],
							      high[1][e]);
				}
			}
		}
	}
	if (c >= p.channels)
		return;
#pragma unroll
	for (int k = 0; k < TILES; k++) {
#pragma unroll
		for (int half = 0; half < 2; half++) {
			const int row = k * 16 + half * 8 + lane / 4;
			float4 *dst = (float4 *)(p.partial +
						 ((blockIdx.y * p.m + row) * p.n + i) * p.channels +
						 c);

			if (row >= p.m)
				continue;
			dst[0] = {sum[k][0][half * 2], sum[k][0][half * 2 + 1],
				  sum[k][1][half * 2], sum[k][1][half * 2 + 1]};
			dst[1] = {sum[k][2][half * 2], sum[k][2][half * 2 + 1],
				  sum[k][3][half * 2], sum[k][3][half * 2 + 1]};
		}
	}
}

#define DPHI(type, dtype, rows) \
	extern "C" __global__ void __launch_bounds__(THREADS, rows > 32 ? 1 : 2) \
		mhc_coef_mma_dphi_##type##_##rows(const __grid_constant__ hzi_mhc_dphi p) \
	{ \
		mma_dphi<dtype, rows / 16>(p); \
	}

DPHI(f32, HZ_F32, 32)
DPHI(f16, HZ_F16, 32)
DPHI(bf16, HZ_BF16, 32)
DPHI(f32, HZ_F32, 80)
DPHI(f16, HZ_F16, 80)
DPHI(bf16, HZ_BF16, 80)
