/*
 * mix_bwd.cu - gradients of mixing of streams
 *
 * SPDX-License-Identifier: BSD-2-Clause
 *
 * Vectorized kernels as in gpu/mhc/mix.cu; unaligned operands, accumulation and other combinations
 * of operands take the strided kernel.
 */
#include "gpu/device/pdl.cuh"
#include "gpu/device/reduce.cuh"
#include "gpu/mhc/mhc.cuh"

#define KERNEL(name, threads, blocks, type) \
	extern "C" __global__ void __launch_bounds__(threads, blocks) \
		name(const __grid_constant__ type p)

/* ---- Streams --------------------------------------------------------------------------------- */

/*
 * Stores sum l of a group; sums are in the order of `partial`: those of dp, dq, da that `terms`
 * contains.
 */
HZ_DEVICE void store_sum(const hzi_mhc_streams_bwd_args &a, int terms, int64_t s, int l, float sum)
{
	const int n = a.s.n;

	if (terms & HZI_TERM_U) {
		if (l < n) {
			if (a.dp.data)
				a.dp.data[s * a.dp.group + l * a.dp.row] = sum;
			return;
		}
		l -= n;
	}
	if (terms & HZI_TERM_F) {
		if (l < n) {
			if (a.dq.data)
				a.dq.data[s * a.dq.group + l * a.dq.row] = sum;
			return;
		}
		l -= n;
	}
	if (a.da.data)
		a.da.data[s * a.da.group + l / n * a.da.row + l % n * a.da.column] = sum;
}

HZ_DEVICE int sums_of(int terms, int n)
{
	return ((terms & HZI_TERM_U) != 0) * n + ((terms & HZI_TERM_F) != 0) * n +
	       ((terms & HZI_TERM_MIX) != 0) * n * n;
}

/* Group, chunk, first token and end of the tokens of this block */
struct tokens {
	int64_t s, k, first, end;
};

HZ_DEVICE tokens tokens_of(const hzi_mhc_streams_bwd_job &p, int at_a_time)
{
	tokens r;

	if (p.per == 1) {
		r.k = 0;
		r.s = r.first = (int64_t)blockIdx.x * at_a_time;
		r.end = r.first + at_a_time < p.a.s.tokens ? r.first + at_a_time : p.a.s.tokens;
	} else {
		r.s = mhc_divide(blockIdx.x, p.chunks);
		r.k = blockIdx.x - r.s * p.chunks;
		r.first = r.s * p.per + r.k * p.chunk;
		r.end = r.k == p.chunks - 1 ? (r.s + 1) * p.per : r.first + p.chunk;
	}
	return r;
}

/* Sums of up to 32 values over the lanes of a warp: value l ends in lane l */
HZ_DEVICE float transposed_sums(const float *value, const int count)
{
	float v[32];

#pragma unroll
	for (int i = 0; i < 32; i++)
		v[i] = i < count ? value[i] : 0;
	reduce_scatter_lanes<16>(v);
	return v[0];
}

/*
 * One or more warps per token; lanes stride over its vectors of channels. With more than four
 * streams the loop over the words of vectors is not unrolled, which would make 96 KB of code.
 */
template <int DT, int N, int KIND>
HZ_DEVICE void streams_bwd(const hzi_mhc_streams_bwd_job &p)
{
	typedef word_format<DT> word;
	constexpr bool mixed = (KIND & HZI_TERM_MIX) != 0, added = (KIND & HZI_TERM_ADD) != 0;
	constexpr bool have_u = (KIND & HZI_TERM_U) != 0, with_f = (KIND & HZI_TERM_F) != 0;
	constexpr int at_q = have_u ? N : 0, at_a = at_q + (with_f ? N : 0);
	constexpr int count = at_a + (mixed ? N * N : 0);
	constexpr int warps = HZI_MHC_BWD_THREADS / 32;
	constexpr int rounds = (count + 31) / 32;	/* of 32 sums, one per lane */
	constexpr bool rolled = N > 4;
	__shared__ float part[rounds][warps][32];
	const hzi_mhc_streams_bwd_args &a = p.a;
	const int lanes = 1 << p.lanes_log2, lane = (int)threadIdx.x & (lanes - 1);
	const int sub = (int)threadIdx.x >> p.lanes_log2, warp = (int)threadIdx.x / 32;
	const int at_a_time = HZI_MHC_BWD_THREADS >> p.lanes_log2;
	const tokens own = tokens_of(p, at_a_time);
	const bool have_f = with_f && a.f.data, have_x = (mixed || have_u) && a.x.data;
	const bool want_df = with_f && a.df.data, want_dx = a.dx.data != nullptr;
	float sum[count];

#pragma unroll
	for (int i = 0; i < count; i++)
		sum[i] = 0;
	pdl_wait();
	for (int64_t t = own.first + sub; t < own.end; t += at_a_time) {
		const int64_t s = p.per == 1 ? t : own.s;
		float cp[N], cq[N], ca[N][N];

		if (have_u && want_dx)
			load_row<N>(a.p, s, p.layout & HZI_MHC_P_FLOAT4, 1, cp);
		if (mixed && want_dx)
			load_matrix<N>(a.a, s, p.layout & HZI_MHC_A_FLOAT4, ca);
		if (want_df)
			load_row<N>(a.q, s, p.layout & HZI_MHC_Q_FLOAT4, 1, cq);
		for (int64_t v = lane; v < p.vectors; v += lanes) {
			vector16 x[N], dy[N], f = {}, du = {};

#pragma unroll
			for (int j = 0; j < N; j++) {
				if (mixed || added)
					dy[j] = load_stream<DT>(a.dy, t, j, v);
				if (mixed || have_u)
					x[j] = have_x ? load_stream<DT>(a.x, t, j, v) : vector16{};
			}
			if (have_f)
				f = load_stream<DT>(a.f, t, 0, v);
			if (have_u)
				du = load_stream<DT>(a.du, t, 0, v);
#pragma unroll(rolled ? 1 : 4)
			for (int e = 0; e < 4; e++) {
				const int at = rolled ? 0 : e, to = rolled ? 3 : e;
				float df[word::count], dx[N][word::count];

#pragma unroll
				for (int c = 0; c < word::count; c++) {
					float g[N], h[N], b = 0, d = 0;

#pragma unroll
					for (int j = 0; j < N; j++) {
						if (mixed || added)
							g[j] = word::get(dy[j].w[at], c);
						if (mixed || have_u)
							h[j] = word::get(x[j].w[at], c);
					}
					if (have_u)
						d = word::get(du.w[at], c);
					if (have_f) {
						b = word::get(f.w[at], c);
						if (a.bias)
							b += a.bias[(v * 4 + e) * word::count + c];
					}
					if (want_df)
						df[c] = mix_row<N>(cq, g);
#pragma unroll
					for (int j = 0; j < N; j++) {
						if (with_f)
							sum[at_q + j] = fmaf(g[j], b,
									     sum[at_q + j]);
						if (have_u)
							sum[j] = fmaf(d, h[j], sum[j]);
						if (added)
							dx[j][c] = g[j];
						else if (have_u && want_dx)
							dx[j][c] = cp[j] * d;
#pragma unroll
						for (int i = 0; i < (mixed ? N : 0); i++) {
							sum[at_a + i * N + j] =
								fmaf(g[i], h[j],
								     sum[at_a + i * N + j]);
							if (want_dx)
								dx[j][c] = i == 0 && !have_u ?
									ca[i][j] * g[i] :
									fmaf(ca[i][j], g[i],
									     dx[j][c]);
						}
					}
				}
#pragma unroll
				for (int j = 0; rolled && j < N; j++) {
					if (mixed || added)
						next_word(dy[j]);
					if (mixed || have_u)
						next_word(x[j]);
				}
				if (rolled) {
					next_word(f);
					next_word(du);
				}
				if (want_df)
					f.w[to] = word::put(df);
				if (want_dx) {
#pragma unroll
					for (int j = 0; j < N; j++)
						(added ? dy : x)[j].w[to] = word::put(dx[j]);
				}
			}
			if (want_df)
				store_stream<DT>(a.df, t, 0, v, f);
			if (want_dx) {
#pragma unroll
				for (int j = 0; j < N; j++)
					store_stream<DT>(a.dx, t, j, v, (added ? dy : x)[j]);
			}
		}
	}
#pragma unroll
	for (int r = 0; r < rounds; r++)
		part[r][warp][threadIdx.x & 31] = transposed_sums(sum + r * 32, count - r * 32);
	__syncthreads();
	/* Warps to add up: those of a token, or all of the block if tokens share coefficients */
	const int group = p.per == 1 ? lanes / 32 : warps;
	const int64_t s = p.per == 1 ? own.first + warp / group : own.s;

	if (!p.sums || warp % group != 0 || (p.per == 1 && s >= own.end))
		return;
	for (int l = (int)threadIdx.x & 31; l < count; l += 32) {
		float all = part[l / 32][warp][l % 32];

		for (int w = 1; w < group; w++)
			all += part[l / 32][warp + w][l % 32];
		if (p.chunks > 1)
			p.partial[(s * count + l) * p.chunks + own.k] = all;
		else
			store_sum(a, KIND, s, l, all);
	}
}

template <int DT, int N>
HZ_DEVICE void streams_bwd_gates(const hzi_mhc_streams_bwd_job &p)
{
	if (p.terms == HZI_TERM_U)
		streams_bwd<DT, N, HZI_TERM_U>(p);
	else
		streams_bwd<DT, N, HZI_TERM_ADD | HZI_TERM_F>(p);
}

template <int DT, int N>
HZ_DEVICE void streams_bwd_matrix(const hzi_mhc_streams_bwd_job &p)
{
	if (p.terms == (HZI_TERM_MIX | HZI_TERM_U))
		streams_bwd<DT, N, HZI_TERM_MIX | HZI_TERM_U>(p);
	else
		streams_bwd<DT, N, HZI_TERM_MIX | HZI_TERM_F>(p);
}

/* gates, mixed: blocks per SM. The sums of n streams take up to n + n^2 registers. */
#define VECTORS(type, dtype) \
	VECTORS_OF(type, dtype, 1, 8, 8) VECTORS_OF(type, dtype, 2, 7, 4) \
	VECTORS_OF(type, dtype, 3, 7, 4) VECTORS_OF(type, dtype, 4, 7, 4) \
	VECTORS_OF(type, dtype, 5, 5, 3) VECTORS_OF(type, dtype, 6, 4, 2) \
	VECTORS_OF(type, dtype, 7, 4, 2) VECTORS_OF(type, dtype, 8, 4, 2)
#define VECTORS_OF(type, dtype, n, gates, mixed) \
	KERNEL(mhc_mix_bwd_gates_##type##_##n, HZI_MHC_BWD_THREADS, gates, \
	       hzi_mhc_streams_bwd_job) { streams_bwd_gates<dtype, n>(p); } \
	KERNEL(mhc_mix_bwd_matrix_##type##_##n, HZI_MHC_BWD_THREADS, mixed, \
	       hzi_mhc_streams_bwd_job) { streams_bwd_matrix<dtype, n>(p); }

VECTORS(f32, HZ_F32)
VECTORS(f16, HZ_F16)
VECTORS(bf16, HZ_BF16)

/* Any strides. N = 8: up to 8 streams. part: 32 sums per warp */
template <bool F32, int N>
HZ_DEVICE void streams_bwd_strided(const hzi_mhc_streams_bwd_job &p,
				   float (*part)[HZI_MHC_BWD_THREADS / 32][32])
{
	typedef channel_of<F32, N> channel;
	constexpr int warps = HZI_MHC_BWD_THREADS / 32, count = 2 * N + N * N;
	constexpr int rounds = (count + 31) / 32;
	constexpr int64_t threads = HZI_MHC_BWD_THREADS;
	const hzi_mhc_streams_bwd_args &a = p.a;
	const tokens own = tokens_of(p, 1);
	const int n = N == 8 ? a.s.n : N, dtype = a.s.dtype;
	const int warp = (int)threadIdx.x / 32;
	const bool u = (p.terms & HZI_TERM_U) != 0, with_f = (p.terms & HZI_TERM_F) != 0;
	const bool mixes = (p.terms & HZI_TERM_MIX) != 0;
	float cp[N], cq[N], sum[count] = {};

	pdl_wait();
	load_row<N>(a.p, own.s, false, 1, cp, n);
	load_row<N>(a.q, own.s, false, 1, cq, n);
	for (int64_t t = own.first; t < own.end; t++) {
		const token_row<F32> of_x(a.x, t, dtype), of_dy(a.dy, t, dtype);
		const token_row<F32> of_f(a.f, t, dtype), of_du(a.du, t, dtype);
		const token_row<F32> of_dx(a.dx, t, dtype), of_df(a.df, t, dtype);

		for (int64_t c = threadIdx.x; c < a.s.channels; c += threads) {
			typename channel::pack raw_x = {}, raw_g = {};
			float x[N], g[N], f = 0, du = 0;

			if (a.x.data)
				raw_x = channel::load(of_x, c, n, p.layout);
			if (a.dy.data)
				raw_g = channel::load(of_dy, c, n, p.layout);
			if (a.f.data)
				f = of_f.load(c) + (a.bias ? a.bias[c] : 0);
			if (a.du.data)
				du = of_du.load(c);
			channel::convert(dtype, raw_x, x);
			channel::convert(dtype, raw_g, g);
#pragma unroll
			for (int j = 0; j < N; j++) {
				if (u)
					sum[j] = fmaf(du, x[j], sum[j]);
				if (with_f)
					sum[N + j] = fmaf(g[j], f, sum[N + j]);
			}
			if (mixes) {
#pragma unroll
				for (int i = 0; i < N * N; i++)
					sum[2 * N + i] = fmaf(g[i / N], x[i % N], sum[2 * N + i]);
			}
			if (a.df.data)
				of_df.store(c, mix_row<N>(cq, g, n));
			if (!a.dx.data)
				continue;
			if (a.a.data) {
				float row[N], dx[N] = {};

				/* Rows come from L1 again: registers hold the sums. */
#pragma unroll
				for (int i = 0; i < N; i++) {
					if (i >= n)
						break;
#pragma unroll
					for (int j = 0; j < N; j++)
						row[j] = j >= n ? 0 :
							 a.a.data[own.s * a.a.group + i * a.a.row +
								  j * a.a.column];
#pragma unroll
					for (int j = 0; j < N; j++)
						dx[j] = fmaf(row[j], g[i], dx[j]);
				}
#pragma unroll
				for (int j = 0; j < N; j++)
					g[j] = dx[j];
			}
			if (a.du.data) {
#pragma unroll
				for (int j = 0; j < N; j++)
					g[j] = fmaf(cp[j], du, g[j]);
			}
			if (a.accumulate) {
				channel::convert(dtype, channel::load(of_dx, c, n, p.layout), x);
#pragma unroll
				for (int j = 0; j < N; j++)
					g[j] += x[j];
			}
			channel::store(of_dx, c, n, p.layout, g);
		}
	}
#pragma unroll
	for (int r = 0; r < rounds; r++)
		part[r][warp][threadIdx.x & 31] = transposed_sums(sum + r * 32, count - r * 32);
	__syncthreads();
	if (!p.sums)
		return;
	/* dst: index of the sum among those that `terms` contains */
	for (int l = (int)threadIdx.x; l < count; l += HZI_MHC_BWD_THREADS) {
		const int term = l < N ? HZI_TERM_U : l < 2 * N ? HZI_TERM_F : HZI_TERM_MIX;
		const int i = l / N - 2, j = l % N, wanted = sums_of(p.terms, n);
		const int dst = j + (l >= N && u ? n : 0) + (l >= 2 * N && with_f ? n : 0) +
				(i > 0 ? i * n : 0);
		float all = part[l / 32][0][l % 32];

		if (!(p.terms & term) || i >= n || j >= n)
			continue;
		for (int w = 1; w < warps; w++)
			all += part[l / 32][w][l % 32];
		if (p.chunks > 1)
			p.partial[(own.s * wanted + dst) * p.chunks + own.k] = all;
		else
			store_sum(a, p.terms, own.s, dst, all);
	}
}

KERNEL(mhc_mix_bwd_strided, HZI_MHC_BWD_THREADS, 3, hzi_mhc_streams_bwd_job)
{
	__shared__ float part[3][HZI_MHC_BWD_THREADS / 32][32];

	STRIDED_STREAMS(streams_bwd_strided, p.a.s, p, part)
}

/* Adds up chunks: one block for each group and sum. */
KERNEL(mhc_mix_bwd_sums_finish, HZI_MHC_BWD_THREADS, 1, hzi_mhc_streams_bwd_job)
{
	__shared__ float part[HZI_MHC_BWD_THREADS / 32];
	const int count = sums_of(p.terms, p.a.s.n);
	const float *src = p.partial + blockIdx.x * p.chunks;
	float sum = 0;

	pdl_wait();
	for (int64_t k = threadIdx.x; k < p.chunks; k += HZI_MHC_BWD_THREADS)
		sum += src[k];
	part[threadIdx.x / 32] = warp_sum(sum);
	__syncthreads();
	if (threadIdx.x > 0)
		return;
	for (int w = 1; w < HZI_MHC_BWD_THREADS / 32; w++)
		part[0] += part[w];
	store_sum(p.a, p.terms, blockIdx.x / count, (int)(blockIdx.x % count), part[0]);
}

/* ---- The gradient of the bias ---------------------------------------------------------------- */

/*
 * sum_i q_i dY[i] over a chunk of tokens, which rows of threads share. DT: dtype of 16-byte
 * vectors; 0: any strides
 */
template <int DT>
HZ_DEVICE void dbias(const hzi_mhc_dbias_job &p)
{
	typedef word_format<DT> word;
	constexpr int lanes = HZI_MHC_DBIAS_LANES, rows = HZI_MHC_THREADS / lanes;
	constexpr int width = DT ? 4 * word::count : 1;
	__shared__ float part[rows][lanes * width];
	const int lane = (int)threadIdx.x % lanes, row = (int)threadIdx.x / lanes;
	const int64_t c = ((int64_t)blockIdx.x * lanes + lane) * width;
	const int64_t first = (int64_t)blockIdx.y * p.chunk;
	const int64_t end = first + p.chunk < p.s.tokens ? first + p.chunk : p.s.tokens;
	float sum[width] = {};

	pdl_wait();
	for (int64_t t = first + row; t < end && c < p.s.channels; t += rows) {
		const float *q = p.q.data + mhc_divide(t, p.per) * p.q.group;

#pragma unroll 4
		for (int i = 0; i < p.s.n; i++) {
			const float by = p.q.data ? q[i * p.q.row] : 1;

			if (DT) {
				const vector16 v = load_vector16((const char *)p.dy.data +
							   (t * p.dy.token + i * p.dy.stream + c) *
							   word::bytes);

#pragma unroll
				for (int e = 0; e < width; e++)
					sum[e] = fmaf(by, word::get(v.w[e / word::count],
								    e % word::count), sum[e]);
			} else {
				sum[0] = fmaf(by, load_at(p.s, p.dy, t, i, c), sum[0]);
			}
		}
	}
#pragma unroll
	for (int e = 0; e < width; e++)
		part[row][e * lanes + lane] = sum[e];
	__syncthreads();
	if (row > 0 || c >= p.s.channels)
		return;
#pragma unroll
	for (int e = 0; e < width; e++) {
		for (int r = 1; r < rows; r++)
			sum[e] += part[r][e * lanes + lane];
		p.partial[blockIdx.y * p.s.channels + c + e] = sum[e];
	}
}

KERNEL(mhc_mix_bwd_dbias, HZI_MHC_THREADS, 4, hzi_mhc_dbias_job)
{
	if (!p.vectors)
		dbias<0>(p);
	else
		SWITCH_DTYPE(p.s.dtype, dbias<DT>(p))
}

KERNEL(mhc_mix_bwd_dbias_finish, HZI_MHC_THREADS, 1, hzi_mhc_dbias_job)
{
	const int64_t c = (int64_t)blockIdx.x * HZI_MHC_THREADS + threadIdx.x;
	float sum = 0;

	pdl_wait();
	if (c >= p.s.channels)
		return;
#pragma unroll 8
	for (int64_t k = 0; k < p.chunks; k++)
		sum += p.partial[k * p.s.channels + c];
	p.dbias[c] = p.accumulate ? p.dbias[c] + sum : sum;
}
