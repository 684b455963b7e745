/*
 * mix.cu - mixing of streams, and chains of layers
 *
 * SPDX-License-Identifier: BSD-2-Clause
 *
 * Memory bandwidth bounds all of these kernels. Vectorized kernels: a thread has one 16-byte vector
 * of channels of all streams of a token and issues all loads before the first use. Strided kernels:
 * a thread has single channels.
 */
#include "gpu/device/cp_async.cuh"
#include "gpu/device/pdl.cuh"
#include "gpu/mhc/mhc.cuh"
#include "lib/mhc/mhc_math.h"

#define KERNEL(name, threads, blocks, type) \
	extern "C" __global__ void __launch_bounds__(threads, blocks) \
		name(const __grid_constant__ type p)

/* ---- Streams --------------------------------------------------------------------------------- */

/* Token t and vector v of a thread; returns the group. */
HZ_DEVICE int64_t thread_vector(const hzi_mhc_streams_job &p, int64_t &t, int64_t &v)
{
	const int64_t row = p.tiles == 1 ? blockIdx.x : blockIdx.x / (uint32_t)p.tiles;

	t = row * (HZI_MHC_THREADS >> p.lanes_log2) + ((int)threadIdx.x >> p.lanes_log2);
	v = ((blockIdx.x - row * p.tiles) << p.lanes_log2) +
	    ((int)threadIdx.x & ((1 << p.lanes_log2) - 1));
	return mhc_divide(t, p.per);
}

/*
 * Grid: tiles of vectors of a token, then tokens. A thread reads its vector of all streams before
 * it writes: y may be x.
 */
template <int DT, int N, int KIND>
HZ_DEVICE void streams(const hzi_mhc_streams_job &p)
{
	typedef word_format<DT> word;
	constexpr bool mixed = (KIND & HZI_TERM_MIX) != 0, added = (KIND & HZI_TERM_ADD) != 0;
	int64_t t, v;
	const int64_t s = thread_vector(p, t, v);
	const bool have_x = !added || p.a.x.data, have_f = (mixed || added) && p.a.f.data;
	vector16 x[N], f = {}, u;
	float cp[N], cq[N], ca[N][N];

	if (v >= p.vectors || t >= p.a.s.tokens)
		return;
	pdl_wait();
	pdl_launch_dependents();
#pragma unroll
	for (int j = 0; j < N; j++)
		x[j] = have_x ? load_stream<DT>(p.a.x, t, j, v) : vector16{};
	if (have_f)
		f = load_stream<DT>(p.a.f, t, 0, v);
	if (KIND & HZI_TERM_U)
		load_row<N>(p.a.p, s, p.layout & HZI_MHC_P_FLOAT4, 1, cp);
	if (mixed)
		load_matrix<N>(p.a.a, s, p.layout & HZI_MHC_A_FLOAT4, ca);
	if (have_f)
		load_row<N>(p.a.q, s, p.layout & HZI_MHC_Q_FLOAT4, 1, cq);
#pragma unroll
	for (int e = 0; e < 4; e++) {
		float in[word::count][N], out[N][word::count], sum[word::count];

#pragma unroll
		for (int c = 0; c < word::count; c++) {
			float g = 0;

#pragma unroll
			for (int j = 0; j < N; j++)
				in[c][j] = word::get(x[j].w[e], c);
			if (KIND & HZI_TERM_U)
				sum[c] = mix_row<N>(cp, in[c]);
			if (have_f) {
				g = word::get(f.w[e], c);
				if (p.a.bias)
					g += p.a.bias[(v * 4 + e) * word::count + c];
			}
#pragma unroll
			for (int i = 0; i < N; i++) {
				out[i][c] = mixed ? mix_row<N>(ca[i], in[c]) : in[c][i];
				if (have_f)
					out[i][c] = fmaf(cq[i], g, out[i][c]);
			}
		}
		if (KIND & HZI_TERM_U)
			u.w[e] = word::put(sum);
#pragma unroll
		for (int i = 0; i < N; i++)
			x[i].w[e] = word::put(out[i]);
	}
	if (KIND & HZI_TERM_U)
		store_stream<DT>(p.a.u, t, 0, v, u);
	if (mixed || added) {
#pragma unroll
		for (int i = 0; i < N; i++)
			store_stream<DT>(p.a.y, t, i, v, x[i]);
	}
}

/* Without a matrix: fewer registers, more blocks per SM */
template <int DT, int N>
HZ_DEVICE void streams_gates(const hzi_mhc_streams_job &p)
{
	if (p.terms == HZI_TERM_U)
		streams<DT, N, HZI_TERM_U>(p);
	else
		streams<DT, N, HZI_TERM_ADD>(p);
}

template <int DT, int N>
HZ_DEVICE void streams_matrix(const hzi_mhc_streams_job &p)
{
	if (p.terms == HZI_TERM_MIX)
		streams<DT, N, HZI_TERM_MIX>(p);
	else
		streams<DT, N, HZI_TERM_MIX | HZI_TERM_U>(p);
}

/*
 * With a matrix, for n other than 2 and 4. A warp has at most one token, whose coefficients pass
 * through shared memory. Output streams are computed one after another.
 */
template <int DT, int N>
HZ_DEVICE void streams_by_rows(const hzi_mhc_streams_job &p)
{
	typedef word_format<DT> word;
	constexpr int width = 4 * word::count, count = N * N + 2 * N;
	__shared__ __align__(16) float coefs[HZI_MHC_THREADS / 32][(count + 3) / 4 * 4];
	float *const own = coefs[(int)threadIdx.x >> p.lanes_log2];
	int64_t t, v;
	const int64_t s = thread_vector(p, t, v);
	const bool in = v < p.vectors && t < p.a.s.tokens;
	vector16 x[N], f = {};
	float value[width][N], g[width], sum[width];

	pdl_wait();
	pdl_launch_dependents();
#pragma unroll
	for (int j = 0; j < N; j++)
		x[j] = in ? load_stream<DT>(p.a.x, t, j, v) : vector16{};
	if (in && p.a.f.data)
		f = load_stream<DT>(p.a.f, t, 0, v);
	/* Rows of a, p, q */
	for (int e = (int)threadIdx.x & ((1 << p.lanes_log2) - 1); e < count && t < p.a.s.tokens;
	     e += 1 << p.lanes_log2) {
		const int i = e / N, j = e % N;
		const hzi_mhc_coef &src = i < N ? p.a.a : i == N ? p.a.p : p.a.q;

		own[e] = !src.data ? 1 : src.data[s * src.group +
						  (i < N ? i * src.row + j * src.column :
							   j * src.row)];
	}
	__syncthreads();
	if (!in)
		return;
#pragma unroll
	for (int c = 0; c < width; c++) {
		g[c] = word::get(f.w[c / word::count], c % word::count);
		if (p.a.f.data && p.a.bias)
			g[c] += p.a.bias[v * width + c];
#pragma unroll
		for (int j = 0; j < N; j++)
			value[c][j] = word::get(x[j].w[c / word::count], c % word::count);
	}
	/* u last, as row N */
#pragma unroll 1
	for (int i = 0; i < N + (p.terms & HZI_TERM_U); i++) {
		vector16 out;

#pragma unroll
		for (int c = 0; c < width; c++) {
			sum[c] = mix_row<N>(own + i * N, value[c]);
			if (i < N && p.a.f.data)
				sum[c] = fmaf(own[(N + 1) * N + i], g[c], sum[c]);
		}
#pragma unroll
		for (int e = 0; e < 4; e++)
			out.w[e] = word::put(sum + e * word::count);
		if (i == N)
			store_stream<DT>(p.a.u, t, 0, v, out);
		else
			store_stream<DT>(p.a.y, t, i, v, out);
	}
}

/* n other than 2 and 4; blocks: resident on an SM */
#define OTHERS(type, dtype) \
	OTHER(type, dtype, 1, 8) OTHER(type, dtype, 3, 8) OTHER(type, dtype, 5, 6) \
	OTHER(type, dtype, 6, 5) OTHER(type, dtype, 7, 5) OTHER(type, dtype, 8, 4)
#define OTHER(type, dtype, n, blocks) \
	KERNEL(mhc_mix_gates_##type##_##n, HZI_MHC_THREADS, blocks, hzi_mhc_streams_job) \
	{ streams_gates<dtype, n>(p); } \
	KERNEL(mhc_mix_matrix_##type##_##n, HZI_MHC_THREADS, blocks, hzi_mhc_streams_job) \
	{ streams_by_rows<dtype, n>(p); }

OTHERS(f32, HZ_F32)
OTHERS(f16, HZ_F16)
OTHERS(bf16, HZ_BF16)

/* n = 2 and 4; blocks: resident on an SM */
#define VECTORS(what, blocks) \
	VECTORS_OF(what, f32, HZ_F32, 4, blocks) VECTORS_OF(what, f16, HZ_F16, 4, blocks) \
	VECTORS_OF(what, bf16, HZ_BF16, 4, blocks) VECTORS_OF(what, f32, HZ_F32, 2, blocks) \
	VECTORS_OF(what, f16, HZ_F16, 2, blocks) VECTORS_OF(what, bf16, HZ_BF16, 2, blocks)
#define VECTORS_OF(what, type, dtype, n, blocks) \
	KERNEL(mhc_mix_##what##_##type##_##n, HZI_MHC_THREADS, blocks, hzi_mhc_streams_job) \
	{ streams_##what<dtype, n>(p); }

VECTORS(gates, 8)
VECTORS(matrix, 6)

/* ---- Any strides ----------------------------------------------------------------------------- */

/* N = 8: up to 8 streams */
template <bool F32, int N>
HZ_DEVICE void streams_strided(const hzi_mhc_streams_job &p)
{
	typedef channel_of<F32, N> channel;
	constexpr int K = N > 4 ? 1 : N > 2 ? 2 : 4;	/* loads in flight, channels */
	const hzi_mhc_streams_args &a = p.a;
	const int n = N == 8 ? a.s.n : N, dtype = a.s.dtype;
	const int64_t row = p.tiles == 1 ? blockIdx.x : blockIdx.x / (uint32_t)p.tiles;
	const int64_t t = row * (HZI_MHC_THREADS >> p.lanes_log2) +
			  ((int)threadIdx.x >> p.lanes_log2);
	const int64_t tile = blockIdx.x - row * p.tiles, lanes = (int64_t)1 << p.lanes_log2;
	const int64_t first = tile * HZI_MHC_STRIDED_CHANNELS * lanes +
		((int)threadIdx.x & ((int)lanes - 1));
	const int64_t end = first + HZI_MHC_STRIDED_CHANNELS * lanes < a.s.channels ?
				    first + HZI_MHC_STRIDED_CHANNELS * lanes : a.s.channels;
	const int64_t s = mhc_divide(t, p.per);
	const token_row<F32> of_x(a.x, t, dtype), of_f(a.f, t, dtype);
	const token_row<F32> of_u(a.u, t, dtype), of_y(a.y, t, dtype);
	float cp[N], cq[N], ca[N][N];

	pdl_wait();
	pdl_launch_dependents();
	if (t >= a.s.tokens)
		return;
	if (a.u.data)
		load_row<N>(a.p, s, false, 1, cp, n);
	if (a.y.data && a.f.data)
		load_row<N>(a.q, s, false, 1, cq, n);
	if (a.y.data && a.a.data)
		load_matrix<N>(a.a, s, false, ca, n);
	for (int64_t c = first; c < end; c += K * lanes) {
		typename channel::pack raw[K] = {};
		float x[K][N], f[K] = {};

#pragma unroll
		for (int k = 0; k < K; k++) {
			const int64_t at = c + k * lanes;

			if (at >= end)
				break;
			if (a.x.data)
				raw[k] = channel::load(of_x, at, n, p.layout);
			if (a.f.data)
				f[k] = of_f.load(at) + (a.bias ? a.bias[at] : 0);
		}
#pragma unroll
		for (int k = 0; k < K; k++)
			channel::convert(dtype, raw[k], x[k]);
#pragma unroll
		for (int k = 0; k < K; k++) {
			const int64_t at = c + k * lanes;
			float y[N];

			if (at >= end)
				break;
			if (a.u.data)
				of_u.store(at, mix_row<N>(cp, x[k], n));
			if (!a.y.data)
				continue;
#pragma unroll
			for (int i = 0; i < N; i++) {
				y[i] = a.a.data ? mix_row<N>(ca[i], x[k], n) : x[k][i];
				if (a.f.data)
					y[i] = fmaf(cq[i], f[k], y[i]);
			}
			channel::store(of_y, at, n, p.layout, y);
		}
	}
}

KERNEL(mhc_mix_strided, HZI_MHC_THREADS, 4, hzi_mhc_streams_job)
{
	STRIDED_STREAMS(streams_strided, p.a.s, p)
}

/* ---- Chains of layers ------------------------------------------------------------------------ */

HZ_DEVICE void prefetch(const float *p, int64_t at)
{
	if (p)
		prefetch_l2(p + at);
}

template <int N>
HZ_DEVICE void load_layer(const hzi_mhc_chain_job &p, int l, int64_t s, float *cp, float *cq,
			  float (*ca)[N])
{
	const hzi_mhc_coef row = {(float *)p.layer[l].p, p.p.group, p.p.row, 0};
	const hzi_mhc_coef post = {(float *)p.layer[l].q, p.q.group, p.q.row, 0};
	const hzi_mhc_coef mix = {(float *)p.layer[l].a, p.a.group, p.a.row, p.a.column};

	if (p.layer[l].u)
		load_row<N>(row, s, p.layout & HZI_MHC_P_FLOAT4, 1, cp);
	if (p.layer[l].f)
		load_row<N>(post, s, p.layout & HZI_MHC_Q_FLOAT4, 1, cq);
	if (p.layer[l].a)
		load_matrix<N>(mix, s, p.layout & HZI_MHC_A_FLOAT4, ca);
}

/*
 * Applies all layers to streams that stay in registers: each layer as in streams(), rounded to the
 * dtype after each.
 */
template <int DT, int N>
HZ_DEVICE void chain(const hzi_mhc_chain_job &p)
{
	typedef word_format<DT> word;
	const int64_t i = (int64_t)blockIdx.x * HZI_MHC_THREADS + threadIdx.x;
	const int64_t t = mhc_divide(i, p.vectors), v = i - t * p.vectors, s = mhc_divide(t, p.per);
	vector16 x[N], f, next = {}, u;

	pdl_wait();
	pdl_launch_dependents();
	if (t >= p.s.tokens)
		return;
#pragma unroll
	for (int j = 0; j < N; j++)
		x[j] = load_stream<DT>(p.x, t, j, v);
	/* Prefetches the coefficients of all layers to L2. */
	for (int l = (int)threadIdx.x; l < p.layers; l += HZI_MHC_THREADS) {
		prefetch(p.layer[l].p, s * p.p.group);
		prefetch(p.layer[l].q, s * p.q.group);
		prefetch(p.layer[l].a, s * p.a.group);
	}
	for (int l = 0; l < p.layers; l++) {
		const bool last = l == p.layers - 1;
		float cp[N], cq[N], ca[N][N];

		f = next;
		if (l == 0 && p.layer[0].f)
			f = load_vector16(vector_at<DT>(p.layer[0].f, p.f, t, 0, v));
		if (!last && p.layer[l + 1].f)
			next = load_vector16(vector_at<DT>(p.layer[l + 1].f, p.f, t, 0, v));
		load_layer<N>(p, l, s, cp, cq, ca);
#pragma unroll
		for (int e = 0; e < 4; e++) {
			float in[word::count][N], out[N][word::count], sum[word::count];

#pragma unroll
			for (int c = 0; c < word::count; c++) {
				float g = 0;

#pragma unroll
				for (int j = 0; j < N; j++)
					in[c][j] = word::get(x[j].w[e], c);
				sum[c] = p.layer[l].u ? mix_row<N>(cp, in[c]) : 0;
				if (p.layer[l].f) {
					g = word::get(f.w[e], c);
					if (p.layer[l].bias)
						g += p.layer[l].bias[(v * 4 + e) * word::count + c];
				}
#pragma unroll
				for (int j = 0; j < N; j++) {
					out[j][c] = p.layer[l].a ? mix_row<N>(ca[j], in[c]) :
								   in[c][j];
					if (p.layer[l].f)
						out[j][c] = fmaf(cq[j], g, out[j][c]);
				}
			}
			u.w[e] = word::put(sum);
#pragma unroll
			for (int j = 0; j < N; j++)
				x[j].w[e] = word::put(out[j]);
		}
		if (p.layer[l].u)
			store_vector16(vector_at<DT>(p.layer[l].u, p.u, t, 0, v), u);
		if (p.layer[l].y) {
#pragma unroll
			for (int j = 0; j < N; j++)
				store_vector16(vector_at<DT>(p.layer[l].y, p.y, t, j, v), x[j]);
		}
	}
}

template <int N>
HZ_DEVICE void chain_of(const hzi_mhc_chain_job &p)
{
	SWITCH_DTYPE(p.s.dtype, chain<DT, N>(p))
}

KERNEL(mhc_recompute_4, HZI_MHC_THREADS, 4, hzi_mhc_chain_job)
{
	chain_of<4>(p);
}

KERNEL(mhc_recompute_1_3, HZI_MHC_THREADS, 5, hzi_mhc_chain_job)
{
	switch (p.s.n) {
	case 1: return chain_of<1>(p);
	case 2: return chain_of<2>(p);
	default: return chain_of<3>(p);
	}
}

KERNEL(mhc_recompute_5_8, HZI_MHC_THREADS, 3, hzi_mhc_chain_job)
{
	switch (p.s.n) { CASES_5_TO_8(chain_of<N>(p)) }
}

KERNEL(mhc_recompute_strided, HZI_MHC_THREADS, 1, hzi_mhc_chain_job)
{
	constexpr int N = HZI_MHC_STREAMS;
	const int64_t k = (int64_t)blockIdx.x * HZI_MHC_THREADS + threadIdx.x;
	const int64_t t = mhc_divide(k, p.s.channels), c = k - t * p.s.channels;
	const int64_t s = mhc_divide(t, p.per);
	const int n = p.s.n;
	hzi_mhc_array f = p.f, u = p.u, y = p.y;
	float x[N], out[N], row[N];

	pdl_wait();
	pdl_launch_dependents();
	if (t >= p.s.tokens)
		return;
#pragma unroll
	for (int j = 0; j < N; j++)
		x[j] = j < n ? load_at(p.s, p.x, t, j, c) : 0;
	for (int l = 0; l < p.layers; l++) {
		const float *cp = p.layer[l].p + s * p.p.group, *cq = p.layer[l].q + s * p.q.group;
		const float *ca = p.layer[l].a + s * p.a.group;
		float g = 0;

		f.data = (void *)p.layer[l].f;
		u.data = p.layer[l].u;
		y.data = p.layer[l].y;
		if (u.data) {
#pragma unroll
			for (int j = 0; j < N; j++)
				row[j] = j < n && p.layer[l].p ? cp[j * p.p.row] : 1;
			store_at(p.s, u, t, 0, c, mix_row<N>(row, x, n));
		}
		if (f.data)
			g = load_at(p.s, f, t, 0, c) + (p.layer[l].bias ? p.layer[l].bias[c] : 0);
#pragma unroll
		for (int i = 0; i < N; i++) {
			out[i] = x[i];
			if (i >= n)
				continue;
			if (p.layer[l].a) {
#pragma unroll
				for (int j = 0; j < N; j++)
					row[j] = j < n ? ca[i * p.a.row + j * p.a.column] : 0;
				out[i] = mix_row<N>(row, x, n);
			}
			if (f.data)
				out[i] = fmaf(p.layer[l].q ? cq[i * p.q.row] : 1, g, out[i]);
			out[i] = round_to(p.s.dtype, out[i]);
			if (y.data)
				store_at(p.s, y, t, i, c, out[i]);
		}
#pragma unroll
		for (int i = 0; i < N; i++)
			x[i] = out[i];
	}
}
