/*
 * quat_dot.cu - sums over quaternions: dot products, gradients of what is repeated
 *
 * SPDX-License-Identifier: BSD-2-Clause
 *
 * A block has 2^lanes_log2 results side by side, and of each the terms of a chunk, which the other
 * threads share: thread t takes terms t, t + T, ... and the T sums are added in pairs, t and
 * t + T / 2 first, for the first threads, a result each. Sums of chunks go to memory and are added
 * by quat_sum_finish() in the same way. The order follows from shapes and strides alone.
 */
#include "gpu/quat_any.cuh"

/* The whole sum of result i: into operand o, whose place is at. */
HZ_DEVICE void sum_store(const hzi_quat_job &p, int o, operand_kind kind, int64_t at, quat q)
{
	if (p.conj_y)
		q = quat_conj(q);
	if (p.accumulate)
		q = quat_add(q, operand_old(p.at[o], kind, p.dtype, p.real, at));
	operand_store(p.at[o], kind, p.dtype, p.real, at, q);
}

/* A chunk's sum of result i: the whole of it, or for quat_sum_finish(). */
HZ_DEVICE void chunk_store(const hzi_quat_job &p, int o, operand_kind kind, int64_t chunk,
			   int64_t i, int64_t at, quat q)
{
	if (p.partial)
		*(float4 *)(p.partial + 4 * (chunk * p.count + i)) =
			make_float4(q.w, q.x, q.y, q.z);
	else
		sum_store(p, o, kind, at, q);
}

/* The terms of a sum: from operands in memory, N of them, and what each is. */
struct sum_dot {
	static constexpr int inputs = 2;
	HZ_DEVICE constexpr operand_kind kind(int) { return QUATERNION; }

	HZ_DEVICE quat term(const hzi_quat_job &p, const quat *in)
	{
		return quat_mul(quat_conj_if(p.conj_a, in[0]), quat_conj_if(p.conj_b, in[1]));
	}
};

/* kind: output of op_rotate_bwd. */
struct sum_rotate {
	static constexpr int inputs = 3;
	HZ_DEVICE constexpr operand_kind kind(int i) { return i == 1 ? QUATERNION : VECTOR; }

	HZ_DEVICE quat term(const hzi_quat_job &p, const quat *in)
	{
		quat out[2];

		op_rotate_bwd().run(p, in, out);
		return out[p.kind];
	}
};

/* U terms of whole operands, threads apart; at steps on. */
template <class SUM, int DTYPE, int U, int N>
HZ_DEVICE void add_terms(const hzi_quat_job &p, int threads, int64_t (&at)[N], quat &sum)
{
	quat_raw<DTYPE> q[U][SUM::inputs];
	SUM op;

#pragma unroll
	for (int u = 0; u < U; u++)
#pragma unroll
		for (int n = 0; n < SUM::inputs; n++) {
			q[u][n].load(p.at[n].data, at[n]);
			at[n] += threads * p.at[n].stride[p.kept];
		}
#pragma unroll
	for (int u = 0; u < U; u++) {
		quat in[SUM::inputs];

#pragma unroll
		for (int n = 0; n < SUM::inputs; n++)
			in[n] = q[u][n].get(0);
		sum = quat_add(sum, op.term(p, in));
	}
}

/* DTYPE: whole operands of one summed dimension; 0: any. */
template <class SUM, int DTYPE>
HZ_DEVICE void run_sum(const hzi_quat_job &p, operand_kind kind)
{
	constexpr int N = SUM::inputs;
	constexpr bool WHOLE = DTYPE != 0;
	const int lanes = 1 << p.lanes_log2, lane = threadIdx.x & (lanes - 1);
	const int64_t groups = (p.count + lanes - 1) >> p.lanes_log2;
	const int64_t group = blockIdx.x % groups, chunk = blockIdx.x / groups;
	const int64_t i = (group << p.lanes_log2) + lane, end = min(p.terms, (chunk + 1) * p.chunk);
	const int threads = HZI_QUAT_THREADS >> p.lanes_log2;
	int64_t base[N + 1] = {}, l = chunk * p.chunk + (threadIdx.x >> p.lanes_log2);
	quat sum = {0, 0, 0, 0};
	SUM op;

	if (i < p.count) {
		places_of<N + 1>(p, 0, p.kept, i, base);
		if constexpr (WHOLE) {
			constexpr int U = DTYPE == HZ_F32 ? 4 : 8;	/* under way */
			const int64_t turns = l < end ? (end - l + threads - 1) / threads : 0;
			int64_t r = 0;

#pragma unroll
			for (int n = 0; n < N; n++)
				base[n] += l * p.at[n].stride[p.kept];
			for (; r + U <= turns; r += U)
				add_terms<SUM, DTYPE, U>(p, threads, base, sum);
			for (; r < turns; r++)
				add_terms<SUM, DTYPE, 1>(p, threads, base, sum);
		} else {
			/* A constant number of turns, so that several loads are under way */
#pragma unroll 4
			for (int r = 0; r < HZI_QUAT_TERMS; r++, l += threads) {
				int64_t at[N + 1];
				quat in[N];

				if (l >= end)
					break;
#pragma unroll
				for (int n = 0; n < N; n++)
					at[n] = base[n];
				places_of<N + 1>(p, p.kept, p.ndim, l, at);
#pragma unroll
				for (int n = 0; n < N; n++)
					in[n] = operand_load(p.at[n], SUM::kind(n), p.dtype, at[n]);
				sum = quat_add(sum, op.term(p, in));
			}
		}
	}
	sum = block_sum<false>({sum}, p.lanes_log2);
	if (threadIdx.x < lanes && i < p.count)
		chunk_store(p, N, kind, chunk, i, base[N], sum);
}

/*
 * The same for pairs of 16 bits, terms without gaps of one result, with half the threads: each adds
 * what two threads of the above do, in the same order.
 */
template <int DTYPE>
HZ_DEVICE void run_pairs(const hzi_quat_job &p, operand_kind kind)
{
	constexpr int T = HZI_QUAT_THREADS / 2, U = 4;	/* U: turns under way */
	const int64_t i = blockIdx.x % p.count, chunk = blockIdx.x / p.count;
	const int64_t end = min(p.terms, (chunk + 1) * p.chunk);
	int64_t base[3] = {}, l = chunk * p.chunk + 2 * threadIdx.x;
	quat sum[2] = {};
	sum_dot op;

	places_of<3>(p, 0, p.kept, i, base);
	const uint4 *a = (const uint4 *)((const uint16_t *)p.at[0].data + base[0] + 4 * l);
	const uint4 *b = (const uint4 *)((const uint16_t *)p.at[1].data + base[1] + 4 * l);

	for (; l + 2 * T * (U - 1) + 1 < end; l += 2 * T * U, a += T * U, b += T * U) {
		uint4 x[U], y[U];

#pragma unroll
		for (int u = 0; u < U; u++) {
			x[u] = a[u * T];
			y[u] = b[u * T];
		}
#pragma unroll
		for (int u = 0; u < U; u++) {
			const quat first[2] = {quat_unpack(DTYPE, make_uint2(x[u].x, x[u].y)),
					       quat_unpack(DTYPE, make_uint2(y[u].x, y[u].y))};
			const quat second[2] = {quat_unpack(DTYPE, make_uint2(x[u].z, x[u].w)),
						quat_unpack(DTYPE, make_uint2(y[u].z, y[u].w))};

			sum[0] = quat_add(sum[0], op.term(p, first));
			sum[1] = quat_add(sum[1], op.term(p, second));
		}
	}
	for (; l < end; l += 2 * T, a += T, b += T) {
#pragma unroll
		for (int e = 0; e < 2; e++) {
			if (l + e >= end)
				continue;
			const quat in[2] = {quat_unpack(DTYPE, ((const uint2 *)a)[e]),
					    quat_unpack(DTYPE, ((const uint2 *)b)[e])};

			sum[e] = quat_add(sum[e], op.term(p, in));
		}
	}
	sum[0] = block_sum<true>(sum, 0);
	if (threadIdx.x == 0)
		chunk_store(p, 2, kind, chunk, i, base[2], sum[0]);
}

/* Operand 0 is the output; terms is the number of chunks. */
extern "C" __global__ void __launch_bounds__(HZI_QUAT_THREADS)
quat_sum_finish(const __grid_constant__ hzi_quat_job p)
{
	const int lanes = 1 << p.lanes_log2, threads = HZI_QUAT_THREADS >> p.lanes_log2;
	const int64_t i = ((int64_t)blockIdx.x << p.lanes_log2) + (threadIdx.x & (lanes - 1));
	quat sum = {0, 0, 0, 0};
	int64_t at[1] = {};

	if (i < p.count) {
		for (int64_t l = threadIdx.x >> p.lanes_log2; l < p.terms; l += threads) {
			const float4 f = *(const float4 *)(p.partial + 4 * (l * p.count + i));

			sum = quat_add(sum, {f.x, f.y, f.z, f.w});
		}
		places_of<1>(p, 0, p.kept, i, at);
	}
	sum = block_sum<false>({sum}, p.lanes_log2);
	if (threadIdx.x < lanes && i < p.count)
		sum_store(p, 0, (operand_kind)p.kind, at[0], sum);
}

/* ---- The kernels ----------------------------------------------------------------------------- */

#define KERNEL(name, threads) \
	extern "C" __global__ void __launch_bounds__(threads) \
	name(const __grid_constant__ hzi_quat_job p)
#define DOT(name, dtype) \
	KERNEL(quat_dot_##name, HZI_QUAT_THREADS) \
	{ \
		run_sum<sum_dot, dtype>(p, p.real ? REAL : QUATERNION); \
	}
#define DOT_PAIRS(name, dtype) \
	KERNEL(quat_dot_pairs_##name, HZI_QUAT_THREADS / 2) \
	{ \
		run_pairs<dtype>(p, p.real ? REAL : QUATERNION); \
	}

DOT(any, 0)
DOT(f32, HZ_F32)
DOT(f16, HZ_F16)
DOT(bf16, HZ_BF16)
DOT_PAIRS(f16, HZ_F16)
DOT_PAIRS(bf16, HZ_BF16)

KERNEL(quat_rotate_sum, HZI_QUAT_THREADS)
{
	run_sum<sum_rotate, 0>(p, p.kind ? VECTOR : QUATERNION);
}
