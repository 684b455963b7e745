/*
 * quat.cu - elementwise operations of quaternions, and sums of them
 *
 * SPDX-License-Identifier: BSD-2-Clause
 *
 * An operation is a struct that says what its operands are and computes one quaternion. Three kernels
 * are made of each: for whole quaternions one after the other, in 16-byte pieces of which a thread has
 * several under way, with f32 and with 16 bits; and for anything else.
 */
#include "gpu/quat.h"
#include "gpu/quat_gemm.cuh"

enum operand_kind {
	QUATERNION,
	VECTOR,				/* x, y, z; read w as 0 */
	REAL				/* in w */
};

/* ---- Arithmetic ------------------------------------------------------------------------------ */

HZ_DEVICE quat quat_add(quat a, quat b)
{
	return {a.w + b.w, a.x + b.x, a.y + b.y, a.z + b.z};
}

HZ_DEVICE float quat_inner(quat a, quat b)
{
	return fmaf(a.w, b.w, fmaf(a.x, b.x, fmaf(a.y, b.y, a.z * b.z)));
}

HZ_DEVICE quat quat_over(quat a, float f)
{
	return {a.w / f, a.x / f, a.y / f, a.z / f};
}

HZ_DEVICE float quat_largest(quat a)
{
	return fmaxf(fmaxf(fabsf(a.w), fabsf(a.x)), fmaxf(fabsf(a.y), fabsf(a.z)));
}

/* A power of two that brings the largest component near 1; 0 stays 0. */
HZ_DEVICE float quat_scale_of(quat a)
{
	const int e = __float_as_int(quat_largest(a)) >> 23;

	return e >= 254 ? 0x1p-127f : __int_as_float((254 - e) << 23);
}

HZ_DEVICE quat quat_inverse(quat x)
{
	const float s = quat_scale_of(x);

	x = quat_scale(s, x);
	return quat_scale(s, quat_over(quat_conj(x), quat_inner(x, x)));
}

/* The norm and x / |x|, 0 where x is 0; exact to the last digits where the norm is not normal too. */
struct polar {
	float norm, scale, scaled;	/* scaled: |scale x| */
	quat unit;

	__device__ __forceinline__ explicit polar(quat x)
	{
		scale = quat_scale_of(x);
		x = quat_scale(scale, x);
		scaled = sqrtf(quat_inner(x, x));
		norm = scaled / scale;
		unit = scaled == 0 ? quat{0, 0, 0, 0} : quat_over(x, scaled);
	}

	/* a / |x|; 0 where x is 0 */
	__device__ __forceinline__ quat over(quat a) const
	{
		return scaled == 0 ? quat{0, 0, 0, 0} : quat_scale(scale, quat_over(a, scaled));
	}
};

/* q v conj(q), v without real part */
HZ_DEVICE quat quat_turn(quat q, quat v)
{
	const float d = fmaf(q.x, v.x, fmaf(q.y, v.y, q.z * v.z));
	const float x = fmaf(q.w, v.x, fmaf(q.y, v.z, -(q.z * v.y)));
	const float y = fmaf(q.w, v.y, fmaf(q.z, v.x, -(q.x * v.z)));
	const float z = fmaf(q.w, v.z, fmaf(q.x, v.y, -(q.y * v.x)));

	return {0, fmaf(q.w, x, fmaf(q.y, z, fmaf(-q.z, y, d * q.x))),
		fmaf(q.w, y, fmaf(q.z, x, fmaf(-q.x, z, d * q.y))),
		fmaf(q.w, z, fmaf(q.x, y, fmaf(-q.y, x, d * q.z)))};
}

/* ---- Operations ------------------------------------------------------------------------------ */

/*
 * inputs, outputs; kind() of each; run(), from inputs to outputs. adds(): to what outputs hold, if
 * the caller wants that.
 */
struct op_mul {
	static constexpr int inputs = 2, outputs = 1;
	HZ_DEVICE constexpr operand_kind kind(int) { return QUATERNION; }

	HZ_DEVICE bool adds(const hzi_quat_job &p) { return p.accumulate; }

	HZ_DEVICE void run(const hzi_quat_job &p, const quat *in, quat *out)
	{
		const quat a = p.conj_a ? quat_conj(in[0]) : in[0];
		const quat b = p.conj_b ? quat_conj(in[1]) : in[1];

		out[0] = quat_mul(a, b);
	}
};

struct op_mul_bwd {
	static constexpr int inputs = 3, outputs = 2;
	HZ_DEVICE constexpr operand_kind kind(int) { return QUATERNION; }

	HZ_DEVICE bool adds(const hzi_quat_job &p) { return p.accumulate; }

	HZ_DEVICE void run(const hzi_quat_job &p, const quat *in, quat *out)
	{
		const quat a = p.conj_a ? in[1] : quat_conj(in[1]);
		const quat b = p.conj_b ? in[2] : quat_conj(in[2]);
		const quat da = quat_mul(in[0], b), db = quat_mul(a, in[0]);

		out[0] = p.conj_a ? quat_conj(da) : da;
		out[1] = p.conj_b ? quat_conj(db) : db;
	}
};

struct op_axpy {
	static constexpr int inputs = 1, outputs = 1;
	HZ_DEVICE constexpr operand_kind kind(int) { return QUATERNION; }

	HZ_DEVICE bool adds(const hzi_quat_job &) { return true; }

	HZ_DEVICE void run(const hzi_quat_job &p, const quat *in, quat *out)
	{
		const quat a = {p.alpha[0], p.alpha[1], p.alpha[2], p.alpha[3]};

		out[0] = p.conj_a ? quat_mul(in[0], a) : quat_mul(a, in[0]);
	}
};

struct op_map {
	static constexpr int inputs = 1, outputs = 1;
	HZ_DEVICE constexpr operand_kind kind(int) { return QUATERNION; }

	HZ_DEVICE bool adds(const hzi_quat_job &) { return false; }

	HZ_DEVICE void run(const hzi_quat_job &p, const quat *in, quat *out)
	{
		if (p.kind == HZI_MAP_CONJ) {
			out[0] = quat_conj(in[0]);
		} else if (p.kind == HZI_MAP_INVERSE) {
			out[0] = quat_inverse(in[0]);
		} else {
			const polar x(in[0]);

			out[0] = x.norm < p.eps ? quat_over(in[0], p.eps) : x.unit;
		}
	}
};

struct op_norm {
	static constexpr int inputs = 1, outputs = 1;
	HZ_DEVICE constexpr operand_kind kind(int i) { return i ? REAL : QUATERNION; }

	HZ_DEVICE bool adds(const hzi_quat_job &) { return false; }

	HZ_DEVICE void run(const hzi_quat_job &p, const quat *in, quat *out)
	{
		out[0].w = p.kind == HZI_MAP_NORM ? quat_norm(in[0]) : quat_inner(in[0], in[0]);
	}
};

struct op_map_bwd {
	static constexpr int inputs = 2, outputs = 1;
	HZ_DEVICE constexpr operand_kind kind(int) { return QUATERNION; }

	HZ_DEVICE bool adds(const hzi_quat_job &p) { return p.accumulate; }

	HZ_DEVICE void run(const hzi_quat_job &p, const quat *in, quat *out)
	{
		if (p.kind == HZI_MAP_INVERSE) {
			const quat y = quat_conj(quat_inverse(in[1]));

			out[0] = quat_scale(-1, quat_mul(quat_mul(y, in[0]), y));
			return;
		}

		const polar x(in[1]);

		if (x.norm < p.eps) {
			out[0] = quat_over(in[0], p.eps);
		} else {
			const quat u = x.unit;
			const float d = -quat_inner(in[0], u);

			out[0] = x.over({fmaf(d, u.w, in[0].w), fmaf(d, u.x, in[0].x),
					 fmaf(d, u.y, in[0].y), fmaf(d, u.z, in[0].z)});
		}
	}
};

struct op_norm_bwd {
	static constexpr int inputs = 2, outputs = 1;
	HZ_DEVICE constexpr operand_kind kind(int i) { return i ? QUATERNION : REAL; }

	HZ_DEVICE bool adds(const hzi_quat_job &p) { return p.accumulate; }

	HZ_DEVICE void run(const hzi_quat_job &p, const quat *in, quat *out)
	{
		const float dn = in[0].w;

		out[0] = p.kind == HZI_MAP_NORM2 ? quat_scale(2 * dn, in[1])
						 : quat_scale(dn, polar(in[1]).unit);
	}
};

struct op_rotate {
	static constexpr int inputs = 2, outputs = 1;
	HZ_DEVICE constexpr operand_kind kind(int i) { return i ? VECTOR : QUATERNION; }

	HZ_DEVICE bool adds(const hzi_quat_job &) { return false; }

	HZ_DEVICE void run(const hzi_quat_job &p, const quat *in, quat *out)
	{
		quat q = p.inverse ? quat_conj(in[0]) : in[0];

		if (p.normalize)
			q = quat_scale(quat_scale_of(q), q);
		out[0] = quat_turn(q, in[1]);
		if (p.normalize)
			out[0] = quat_over(out[0], quat_inner(q, q));
		out[0].w = 0;
	}
};

struct op_rotate_bwd {
	static constexpr int inputs = 3, outputs = 2;
	HZ_DEVICE constexpr operand_kind kind(int i) { return i == 1 || i == 3 ? QUATERNION : VECTOR; }

	HZ_DEVICE bool adds(const hzi_quat_job &p) { return p.accumulate; }

	HZ_DEVICE void run(const hzi_quat_job &p, const quat *in, quat *out)
	{
		const quat dy = in[0], v = in[2];
		quat q = p.inverse ? quat_conj(in[1]) : in[1], dv, dq;
		float s = 1;

		/* y does not change with the scale of q if it is normalized. */
		if (p.normalize) {
			s = quat_scale_of(q);
			q = quat_scale(s, q);
		}
		dv = quat_turn(quat_conj(q), dy);
		/* dy q conj(v) + conj(dy) q v, of two without real parts */
		dq = quat_scale(-2, quat_mul(quat_mul(dy, q), v));
		if (p.normalize) {
			const float n = quat_inner(q, q);
			const float d = -2 * (quat_inner(dy, quat_turn(q, v)) / n);

			dv = quat_over(dv, n);
			dq = quat_add(dq, quat_scale(d, q));
			dq = quat_scale(s, quat_over(dq, n));
		}
		dv.w = 0;
		out[0] = p.inverse ? quat_conj(dq) : dq;
		out[1] = dv;
	}
};

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

/* ---- Whole quaternions one after the other ---------------------------------------------------- */

/*
 * Rows of the last dimension, a block each HZI_QUAT_BLOCK quaternions. Quaternion operands are whole
 * and step by 4, or by 0, which is one for the row; others step as they like. With 16 bits a piece
 * is a pair of quaternions.
 */
template <int BITS>
struct pieces {
	static constexpr int each = BITS == 16 ? 2 : 1;	/* quaternions of a piece */
	static constexpr int count = HZI_QUAT_BLOCK / HZI_QUAT_THREADS / each;	/* of a thread */
};

template <int BITS>
HZ_DEVICE void piece_load(const hzi_quat_operand &o, operand_kind kind, int dtype, int real,
			  int64_t at, int64_t step, bool both, quat *q)
{
	if (kind != QUATERNION) {
		q[0] = operand_old(o, kind, dtype, real, at);
		if (BITS == 16)
			q[1] = both ? operand_old(o, kind, dtype, real, at + step) : q[0];
		return;
	}
	if (BITS == 32) {
		const float4 f = *(const float4 *)((const float *)o.data + at);

		q[0] = {f.x, f.y, f.z, f.w};
		return;
	}
	if (both && step) {
		const uint4 u = *(const uint4 *)((const uint16_t *)o.data + at);

		q[0] = quat_unpack(dtype, make_uint2(u.x, u.y));
		q[1] = quat_unpack(dtype, make_uint2(u.z, u.w));
	} else {
		q[0] = q[1] = quat_unpack(dtype, *(const uint2 *)((const uint16_t *)o.data + at));
	}
}

template <int BITS>
HZ_DEVICE void piece_store(const hzi_quat_operand &o, operand_kind kind, int dtype, int real,
			   int64_t at, int64_t step, bool both, const quat *q)
{
	if (kind != QUATERNION || (BITS == 16 && !both)) {
		operand_store(o, kind, dtype, real, at, q[0]);
		if (BITS == 16 && both)
			operand_store(o, kind, dtype, real, at + step, q[1]);
	} else if (BITS == 32) {
		*(float4 *)((float *)o.data + at) = make_float4(q[0].w, q[0].x, q[0].y, q[0].z);
	} else {
		const uint2 low = quat_pack(dtype, q[0]), high = quat_pack(dtype, q[1]);

		*(uint4 *)((uint16_t *)o.data + at) = make_uint4(low.x, low.y, high.x, high.y);
	}
}

template <class OP, int BITS>
HZ_DEVICE void run_whole(const hzi_quat_job &p)
{
	constexpr int EACH = pieces<BITS>::each, COUNT = pieces<BITS>::count;
	constexpr int IN = OP::inputs, OUT = OP::outputs;
	const int64_t row = blockIdx.x / p.row_blocks, last = p.ndim - 1;
	const int64_t begin = (int64_t)(blockIdx.x % p.row_blocks) * HZI_QUAT_BLOCK;
	const int64_t n = p.ndim ? p.shape[last] : 1;
	int64_t base[IN + OUT], step[IN + OUT];
	quat in[COUNT][IN][EACH], old[COUNT][OUT][EACH];
	OP op;

#pragma unroll
	for (int o = 0; o < IN + OUT; o++) {
		base[o] = p.ndim == 2 ? row * p.at[o].stride[0] : 0;
		step[o] = p.ndim ? p.at[o].stride[last] : 0;
	}
#pragma unroll
	for (int u = 0; u < COUNT; u++) {
		const int64_t i = begin + (u * HZI_QUAT_THREADS + threadIdx.x) * EACH;

		if (i >= n)
			break;
#pragma unroll
		for (int o = 0; o < IN; o++)
			piece_load<BITS>(p.at[o], OP::kind(o), p.dtype, 0, base[o] + i * step[o],
					 step[o], i + 1 < n, in[u][o]);
		if (!op.adds(p))
			continue;
#pragma unroll
		for (int o = 0; o < OUT; o++)
			if (p.at[IN + o].data)
				piece_load<BITS>(p.at[IN + o], OP::kind(IN + o), p.dtype, p.real,
						 base[IN + o] + i * step[IN + o], step[IN + o],
						 i + 1 < n, old[u][o]);
	}
#pragma unroll
	for (int u = 0; u < COUNT; u++) {
		const int64_t i = begin + (u * HZI_QUAT_THREADS + threadIdx.x) * EACH;
		quat out[OUT][EACH];

		if (i >= n)
			break;
#pragma unroll
		for (int e = 0; e < EACH; e++) {
			quat one[IN], result[OUT];

#pragma unroll
			for (int o = 0; o < IN; o++)
				one[o] = in[u][o][e];
			op.run(p, one, result);
#pragma unroll
			for (int o = 0; o < OUT; o++)
				out[o][e] = op.adds(p) ? quat_add(result[o], old[u][o][e]) : result[o];
		}
#pragma unroll
		for (int o = 0; o < OUT; o++)
			if (p.at[IN + o].data)
				piece_store<BITS>(p.at[IN + o], OP::kind(IN + o), p.dtype, p.real,
						  base[IN + o] + i * step[IN + o], step[IN + o],
						  i + 1 < n, out[o]);
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

/* WHOLE: operands of one summed dimension, in 16-byte pieces of f32 or 8 bytes of 16 bits. */
template <class SUM, bool WHOLE>
HZ_DEVICE void run_sum(const hzi_quat_job &p, operand_kind kind)
{
	constexpr int N = SUM::inputs;
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
				if (WHOLE && p.dtype == HZ_F32) {
					const float4 f = *(const float4 *)((const float *)p.at[n].data +
									   at[n]);

					in[n] = {f.x, f.y, f.z, f.w};
				} else if (WHOLE) {
					in[n] = quat_unpack(p.dtype, *(const uint2 *)(
						(const uint16_t *)p.at[n].data + at[n]));
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
		run_whole<op_##name, 32>(p); \
	} \
	KERNEL(quat_##name##_16)(const __grid_constant__ hzi_quat_job p) \
	{ \
		run_whole<op_##name, 16>(p); \
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
	run_sum<sum_dot, false>(p, p.real ? REAL : QUATERNION);
}

KERNEL(quat_dot_whole)(const __grid_constant__ hzi_quat_job p)
{
	run_sum<sum_dot, true>(p, p.real ? REAL : QUATERNION);
}

KERNEL(quat_rotate_sum)(const __grid_constant__ hzi_quat_job p)
{
	run_sum<sum_rotate, false>(p, p.kind ? VECTOR : QUATERNION);
}
