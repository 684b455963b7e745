/*
 * quat.cu - elementwise operations of quaternions, and sums of them
 *
 * SPDX-License-Identifier: BSD-2-Clause
 *
 * Of each operation of quat_ops.cuh a kernel for every dtype is made, for whole quaternions one
 * after the other, in 16-byte pieces of which a thread has several under way; and one for anything
 * else.
 */
#include "gpu/quat_ops.cuh"

/* ---- Operands of any strides ----------------------------------------------------------------- */

HZ_DEVICE quat operand_load(const hzi_quat_operand &o, operand_kind kind, int dtype, int64_t at)
{
	quat q = {0, 0, 0, 0};

	if (o.whole && dtype == HZ_F32) {
		const float4 f = *(const float4 *)((const float *)o.data + at);

		q = {f.x, f.y, f.z, f.w};
	} else if (o.whole) {
		q = quat_unpack(dtype, *(const uint2 *)((const uint16_t *)o.data + at));
	} else {
		if (kind != VECTOR)
			q.w = load_any(dtype, o.data, at + o.comp[0]);
		if (kind != REAL) {
			q.x = load_any(dtype, o.data, at + o.comp[1]);
			q.y = load_any(dtype, o.data, at + o.comp[2]);
			q.z = load_any(dtype, o.data, at + o.comp[3]);
		}
	}
	if (kind == VECTOR)
		q.w = 0;
	return q;
}

/* real: a vector has a real part. */
HZ_DEVICE void operand_store(const hzi_quat_operand &o, operand_kind kind, int dtype, int real,
			     int64_t at, quat q)
{
	if (o.whole && dtype == HZ_F32) {
		*(float4 *)((float *)o.data + at) = make_float4(q.w, q.x, q.y, q.z);
		return;
	}
	if (o.whole) {
		*(uint2 *)((uint16_t *)o.data + at) = quat_pack(dtype, q);
		return;
	}
	if (kind != VECTOR || real)
		store_any(dtype, o.data, at + o.comp[0], q.w);
	if (kind != REAL) {
		store_any(dtype, o.data, at + o.comp[1], q.x);
		store_any(dtype, o.data, at + o.comp[2], q.y);
		store_any(dtype, o.data, at + o.comp[3], q.z);
	}
}

/* With real, a vector's real part is read too: what outputs hold, where that part stays. */
HZ_DEVICE quat operand_old(const hzi_quat_operand &o, operand_kind kind, int dtype, int real,
			   int64_t at)
{
	return operand_load(o, kind == VECTOR && real ? QUATERNION : kind, dtype, at);
}

/* Adds i's place in dimensions first .. last - 1 to the operands'. */
template <int N, typename INDEX>
HZ_DEVICE void places(const hzi_quat_job &p, int first, int last, INDEX i, int64_t (&at)[N])
{
	for (int d = last - 1; d >= first; d--) {
		const INDEX size = (INDEX)p.shape[d], next = i / size;
		const int64_t here = (int64_t)(i - next * size);

#pragma unroll
		for (int n = 0; n < N; n++)
			at[n] += here * p.at[n].stride[d];
		i = next;
	}
}

template <int N>
HZ_DEVICE void places_of(const hzi_quat_job &p, int first, int last, int64_t i, int64_t (&at)[N])
{
	if (i >> 31)
		places<N, uint64_t>(p, first, last, (uint64_t)i, at);
	else
		places<N, uint32_t>(p, first, last, (uint32_t)i, at);
}

template <class OP>
HZ_DEVICE void run_any(const hzi_quat_job &p)
{
	constexpr int N = OP::inputs + OP::outputs;
	const int64_t step = (int64_t)gridDim.x * HZI_QUAT_THREADS;
	OP op;

	for (int64_t i = (int64_t)blockIdx.x * HZI_QUAT_THREADS + threadIdx.x; i < p.count;
	     i += step) {
		int64_t at[N] = {};
		quat in[OP::inputs], out[OP::outputs];

		places_of<N>(p, 0, p.ndim, i, at);
#pragma unroll
		for (int n = 0; n < OP::inputs; n++)
			in[n] = operand_load(p.at[n], OP::kind(n), p.dtype, at[n]);
		op.run(p, in, out);
#pragma unroll
		for (int n = 0; n < OP::outputs; n++) {
			const int m = OP::inputs + n;

			if (!p.at[m].data)
				continue;
			if (op.adds(p))
				out[n] = quat_add(out[n], operand_old(p.at[m], OP::kind(m), p.dtype,
								      p.real, at[m]));
			operand_store(p.at[m], OP::kind(m), p.dtype, p.real, at[m], out[n]);
		}
	}
}

/* ---- Whole quaternions one after the other --------------------------------------------------- */

/*
 * Rows of the last dimension, a block each HZI_QUAT_BLOCK pieces of 16 bytes: one quaternion of f32
 * or two of 16 bits. Quaternion operands are whole and step by 4, or by 0, which is one for the
 * row; others step as they like.
 */
template <int DTYPE>
struct piece {
	static constexpr int each = DTYPE == HZ_F32 ? 1 : 2;

	uint4 bits;			/* of quaternions, as they lie in memory */
	quat q[each];			/* of others */

	__device__ __forceinline__ void load(const hzi_quat_operand &o, operand_kind kind, int real,
					     int64_t at, int64_t step, bool both)
	{
		if (kind != QUATERNION) {
#pragma unroll
			for (int e = 0; e < each; e++)
				if (e == 0 || both)
					q[e] = operand_old(o, kind, DTYPE, real, at + e * step);
		} else if (DTYPE == HZ_F32) {
			bits = *(const uint4 *)((const float *)o.data + at);
		} else if (both && step) {
			bits = *(const uint4 *)((const uint16_t *)o.data + at);
		} else {
			const uint2 u = *(const uint2 *)((const uint16_t *)o.data + at);

			bits = make_uint4(u.x, u.y, u.x, u.y);
		}
	}

	__device__ __forceinline__ quat get(operand_kind kind, int e) const
	{
		if (kind != QUATERNION)
			return q[e];
		if (DTYPE == HZ_F32)
			return {__uint_as_float(bits.x), __uint_as_float(bits.y),
				__uint_as_float(bits.z), __uint_as_float(bits.w)};
		return quat_unpack(DTYPE,
				   e ? make_uint2(bits.z, bits.w) : make_uint2(bits.x, bits.y));
	}

	static __device__ __forceinline__ void store(const hzi_quat_operand &o, operand_kind kind,
						     int real, int64_t at, int64_t step, bool both,
						     const quat *q)
	{
		if (kind != QUATERNION || !both) {
#pragma unroll
			for (int e = 0; e < each; e++)
				if (e == 0 || both)
					operand_store(o, kind, DTYPE, real, at + e * step, q[e]);
		} else if (DTYPE == HZ_F32) {
			*(float4 *)((float *)o.data + at) = make_float4(q->w, q->x, q->y, q->z);
		} else {
			const uint2 low = quat_pack(DTYPE, q[0]);
			const uint2 high = quat_pack(DTYPE, q[each - 1]);

			*(uint4 *)((uint16_t *)o.data + at) =
				make_uint4(low.x, low.y, high.x, high.y);
		}
	}
};

/* Quaternions that a block takes at a time: what is under way is in registers. */
template <class OP, int DTYPE>
struct portion {
	static constexpr int pieces = OP::inputs + OP::outputs > 3 ? 2 : 4;	/* of a thread */
	static constexpr int quaternions = pieces * HZI_QUAT_THREADS * piece<DTYPE>::each;
};

/* FULL: the block has all its pieces. */
template <class OP, int DTYPE, bool FULL>
HZ_DEVICE void run_pieces(const hzi_quat_job &p, int64_t begin, int64_t n, const int64_t *base,
			  const int64_t *step)
{
	constexpr int IN = OP::inputs, OUT = OP::outputs;
	constexpr int EACH = piece<DTYPE>::each, COUNT = portion<OP, DTYPE>::pieces;
	piece<DTYPE> in[COUNT][IN], old[COUNT][OUT];
	OP op;

#pragma unroll
	for (int u = 0; u < COUNT; u++) {
		const int64_t i = begin + (u * HZI_QUAT_THREADS + threadIdx.x) * EACH;
		const bool both = EACH == 1 || FULL || i + 1 < n;

		if (!FULL && i >= n)
			break;
#pragma unroll
		for (int o = 0; o < IN; o++)
			in[u][o].load(p.at[o], OP::kind(o), 0, base[o] + i * step[o], step[o],
				      both);
		if (!op.adds(p))
			continue;
#pragma unroll
		for (int o = IN; o < IN + OUT; o++)
			if (p.at[o].data)
				old[u][o - IN].load(p.at[o], OP::kind(o), p.real,
						    base[o] + i * step[o], step[o], both);
	}
#pragma unroll
	for (int u = 0; u < COUNT; u++) {
		const int64_t i = begin + (u * HZI_QUAT_THREADS + threadIdx.x) * EACH;
		const bool both = EACH == 1 || FULL || i + 1 < n;
		quat out[OUT][EACH];

		if (!FULL && i >= n)
			break;
#pragma unroll
		for (int e = 0; e < EACH; e++) {
			quat one[IN], result[OUT];

#pragma unroll
			for (int o = 0; o < IN; o++)
				one[o] = in[u][o].get(OP::kind(o), e);
			op.run(p, one, result);
#pragma unroll
			for (int o = 0; o < OUT; o++)
				out[o][e] = op.adds(p) ? quat_add(result[o], old[u][o].get(
									OP::kind(IN + o), e))
						       : result[o];
		}
#pragma unroll
		for (int o = IN; o < IN + OUT; o++)
			if (p.at[o].data)
				piece<DTYPE>::store(p.at[o], OP::kind(o), p.real,
						    base[o] + i * step[o], step[o], both,
						    out[o - IN]);
	}
}

template <class OP, int DTYPE>
HZ_DEVICE void run_whole(const hzi_quat_job &p)
{
	constexpr int N = OP::inputs + OP::outputs, BLOCK = HZI_QUAT_BLOCK * piece<DTYPE>::each;
	const int64_t row = blockIdx.x / p.row_blocks, last = p.ndim - 1;
	const int64_t begin = (int64_t)(blockIdx.x % p.row_blocks) * BLOCK;
	const int64_t n = p.ndim ? p.shape[last] : 1;
	int64_t base[N], step[N];

#pragma unroll
	for (int o = 0; o < N; o++) {
		base[o] = p.ndim == 2 ? row * p.at[o].stride[0] : 0;
		step[o] = p.ndim ? p.at[o].stride[last] : 0;
	}
	for (int64_t i = begin; i < begin + BLOCK; i += portion<OP, DTYPE>::quaternions) {
		if (begin + BLOCK <= n)
			run_pieces<OP, DTYPE, true>(p, i, n, base, step);
		else
			run_pieces<OP, DTYPE, false>(p, i, n, base, step);
	}
}

/* ---- Sums ------------------------------------------------------------------------------------ */

/*
 * A block has 2^lanes_log2 results side by side, and of each the terms of a chunk, which the other
 * threads share: thread t takes terms t, t + T, ... and the T sums are added in pairs. Sums of
 * chunks go to memory and are added by quat_sum_finish() in the same way. The order follows from
 * shapes and strides alone.
 */
HZ_DEVICE quat block_sum(quat q, int lanes_log2)
{
	__shared__ float4 room[HZI_QUAT_THREADS];
	const int t = threadIdx.x;

	room[t] = make_float4(q.w, q.x, q.y, q.z);
	for (int half = HZI_QUAT_THREADS / 2; half >= 1 << lanes_log2; half /= 2) {
		__syncthreads();
		if (t < half) {
			const float4 a = room[t], b = room[t + half];

			room[t] = make_float4(a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w);
		}
	}
	__syncthreads();

	const float4 f = room[t & ((1 << lanes_log2) - 1)];

	return {f.x, f.y, f.z, f.w};
}

/* The whole sum of result i: into operand o, whose place is at. */
HZ_DEVICE void sum_store(const hzi_quat_job &p, int o, operand_kind kind, int64_t at, quat q)
{
	if (p.conj_y)
		q = quat_conj(q);
	if (p.accumulate)
		q = quat_add(q, operand_old(p.at[o], kind, p.dtype, p.real, at));
	operand_store(p.at[o], kind, p.dtype, p.real, at, q);
}

/* The terms of a sum: from operands in memory, N of them, and what each is. */
struct sum_dot {
	static constexpr int inputs = 2;
	HZ_DEVICE constexpr operand_kind kind(int) { return QUATERNION; }

	HZ_DEVICE quat term(const hzi_quat_job &p, const quat *in)
	{
		return quat_mul(p.conj_a ? quat_conj(in[0]) : in[0],
				p.conj_b ? quat_conj(in[1]) : in[1]);
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
		/* A constant number of turns, so that several loads are under way */
#pragma unroll 4
		for (int r = 0; r < HZI_QUAT_TERMS; r++, l += threads) {
			int64_t at[N + 1];
			quat in[N];

			if (l >= end)
				break;
#pragma unroll
			for (int n = 0; n < N; n++)
				at[n] = base[n] + (WHOLE ? l * p.at[n].stride[p.kept] : 0);
			if (!WHOLE)
				places_of<N + 1>(p, p.kept, p.ndim, l, at);
#pragma unroll
			for (int n = 0; n < N; n++) {
				if (WHOLE) {
					quat_raw<DTYPE> q;

					q.load(p.at[n].data, at[n]);
					in[n] = q.get(0);
				} else {
					in[n] = operand_load(p.at[n], SUM::kind(n), p.dtype, at[n]);
				}
			}
			sum = quat_add(sum, op.term(p, in));
		}
	}
	sum = block_sum(sum, p.lanes_log2);
	if (threadIdx.x >= lanes || i >= p.count)
		return;
	if (p.partial)
		*(float4 *)(p.partial + 4 * (chunk * p.count + i)) =
			make_float4(sum.w, sum.x, sum.y, sum.z);
	else
		sum_store(p, N, kind, base[N], sum);
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
	sum = block_sum(sum, p.lanes_log2);
	if (threadIdx.x < lanes && i < p.count)
		sum_store(p, 0, (operand_kind)p.kind, at[0], sum);
}

/* ---- The kernels ----------------------------------------------------------------------------- */

#define KERNEL(name) extern "C" __global__ void __launch_bounds__(HZI_QUAT_THREADS) name
#define KERNELS(name) \
	KERNEL(quat_##name##_any)(const __grid_constant__ hzi_quat_job p) \
	{ \
		run_any<op_##name>(p); \
	} \
	KERNEL(quat_##name##_f32)(const __grid_constant__ hzi_quat_job p) \
	{ \
		run_whole<op_##name, HZ_F32>(p); \
	} \
	KERNEL(quat_##name##_f16)(const __grid_constant__ hzi_quat_job p) \
	{ \
		run_whole<op_##name, HZ_F16>(p); \
	} \
	KERNEL(quat_##name##_bf16)(const __grid_constant__ hzi_quat_job p) \
	{ \
		run_whole<op_##name, HZ_BF16>(p); \
	}

KERNELS(mul)
KERNELS(mul_bwd)
KERNELS(axpy)
KERNELS(map)
KERNELS(norm)
KERNELS(map_bwd)
KERNELS(norm_bwd)
KERNELS(rotate)
KERNELS(rotate_bwd)

KERNEL(quat_dot_any)(const __grid_constant__ hzi_quat_job p)
{
	run_sum<sum_dot, 0>(p, p.real ? REAL : QUATERNION);
}

KERNEL(quat_dot_f32)(const __grid_constant__ hzi_quat_job p)
{
	run_sum<sum_dot, HZ_F32>(p, p.real ? REAL : QUATERNION);
}

KERNEL(quat_dot_f16)(const __grid_constant__ hzi_quat_job p)
{
	run_sum<sum_dot, HZ_F16>(p, p.real ? REAL : QUATERNION);
}

KERNEL(quat_dot_bf16)(const __grid_constant__ hzi_quat_job p)
{
	run_sum<sum_dot, HZ_BF16>(p, p.real ? REAL : QUATERNION);
}

KERNEL(quat_rotate_sum)(const __grid_constant__ hzi_quat_job p)
{
	run_sum<sum_rotate, 0>(p, p.kind ? VECTOR : QUATERNION);
}
