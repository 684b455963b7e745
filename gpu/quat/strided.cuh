/*
 * strided.cuh - quaternion operands of any strides
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#ifndef HZI_GPU_QUAT_STRIDED_CUH
#define HZI_GPU_QUAT_STRIDED_CUH

#include "gpu/quat/ops.cuh"

HZ_DEVICE float load_one(const hzi_quat_operand &o, int dtype, int64_t at)
{
	if (dtype == HZ_F32)
		return ((const float *)o.data)[at];
	return dtype == HZ_F16 ? f16_low(((const uint16_t *)o.data)[at])
			       : bf16_low(((const uint16_t *)o.data)[at]);
}

/* From x, y, z, w in memory order, and back */
HZ_DEVICE quat quat_from_xyzw(quat q)
{
	return {q.z, q.w, q.x, q.y};
}

HZ_DEVICE quat quat_to_xyzw(quat q)
{
	return {q.x, q.y, q.z, q.w};
}

/*
 * The same for the words of a 16-byte piece, one f32 quaternion or two of 16 bits. TO: to x, y, z,
 * w, else from that order
 */
template <int DTYPE, bool TO>
HZ_DEVICE void words_xyzw(uint32_t (&w)[4])
{
	const uint32_t a = w[0], b = w[1], c = w[2], d = w[3];

	if (DTYPE == HZ_F32) {
		w[0] = TO ? b : d, w[1] = TO ? c : a, w[2] = TO ? d : b, w[3] = TO ? a : c;
	} else {
		w[0] = TO ? __byte_perm(a, b, 0x5432) : __byte_perm(b, a, 0x5432);
		w[1] = TO ? __byte_perm(b, a, 0x5432) : __byte_perm(a, b, 0x5432);
		w[2] = TO ? __byte_perm(c, d, 0x5432) : __byte_perm(d, c, 0x5432);
		w[3] = TO ? __byte_perm(d, c, 0x5432) : __byte_perm(c, d, 0x5432);
	}
}

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
			q.w = load_one(o, dtype, at + o.comp[0]);
		if (kind != REAL) {
			q.x = load_one(o, dtype, at + o.comp[1]);
			q.y = load_one(o, dtype, at + o.comp[2]);
			q.z = load_one(o, dtype, at + o.comp[3]);
		}
	}
	if (o.whole == HZI_QUAT_XYZW)
		q = quat_from_xyzw(q);
	if (kind == VECTOR)
		q.w = 0;
	return q;
}

/* real: a vector has a real part */
HZ_DEVICE void operand_store(const hzi_quat_operand &o, operand_kind kind, int dtype, int real,
			     int64_t at, quat q)
{
	if (o.whole == HZI_QUAT_XYZW)
		q = quat_to_xyzw(q);
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

/* The old value of an output. real: a vector's real part is read, too, since it is kept. */
HZ_DEVICE quat operand_old(const hzi_quat_operand &o, operand_kind kind, int dtype, int real,
			   int64_t at)
{
	return operand_load(o, kind == VECTOR && real ? QUATERNION : kind, dtype, at);
}

/* Adds the offsets of index i in dimensions first .. last - 1 to those of the operands. */
template <int N, typename INDEX>
HZ_DEVICE void add_offsets_as(const hzi_quat_job &p, int first, int last, INDEX i, int64_t (&at)[N])
{
#pragma unroll 1
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
HZ_DEVICE void add_offsets(const hzi_quat_job &p, int first, int last, int64_t i, int64_t (&at)[N])
{
	if (i >> 31)
		add_offsets_as<N, uint64_t>(p, first, last, (uint64_t)i, at);
	else
		add_offsets_as<N, uint32_t>(p, first, last, (uint32_t)i, at);
}

/* Runs an operation on one quaternion of each operand, at these offsets. */
template <class OP>
HZ_DEVICE void run_one(const hzi_quat_job &p, const int64_t (&at)[OP::inputs + OP::outputs])
{
	quat in[OP::inputs], out[OP::outputs];
	OP op;

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
			out[n] = quat_add(out[n], operand_old(p.at[m], OP::kind(m), p.dtype, p.real,
							      at[m]));
		operand_store(p.at[m], OP::kind(m), p.dtype, p.real, at[m], out[n]);
	}
}

/* ---- Words: one f32 number, or two 16-bit numbers -------------------------------------------- */

template <int DTYPE>
HZ_DEVICE uint32_t word_of(float a, float b)
{
	return DTYPE == HZ_F32 ? __float_as_uint(a)
	       : DTYPE == HZ_F16 ? to_f16x2(a, b) : to_bf16x2(a, b);
}

/* Number i of the words from w on */
template <int DTYPE>
HZ_DEVICE float number_in(const uint32_t *w, int i)
{
	if (DTYPE == HZ_F32)
		return __uint_as_float(w[i]);
	if (DTYPE == HZ_F16)
		return i % 2 ? f16_high(w[i / 2]) : f16_low(w[i / 2]);
	return i % 2 ? bf16_high(w[i / 2]) : bf16_low(w[i / 2]);
}

/* ---- Sums ------------------------------------------------------------------------------------ */

/* The sum over a block. PAIRS: thread t of half a block has the sums of threads 2 t and 2 t + 1. */
template <bool PAIRS>
HZ_DEVICE quat block_sum(const quat (&sums)[1 + PAIRS], int lanes_log2)
{
	__shared__ float4 scratch[HZI_QUAT_THREADS];
	const int t = threadIdx.x;
	quat of[HZI_QUAT_THREADS / 32], q = sums[0];

#pragma unroll
	for (int e = 0; e <= PAIRS; e++)
		scratch[(1 + PAIRS) * t + e] =
			make_float4(sums[e].w, sums[e].x, sums[e].y, sums[e].z);
	__syncthreads();
	if (t >= 32)
		return q;
#pragma unroll
	for (int i = 0; i < HZI_QUAT_THREADS / 32; i++) {
		const float4 f = scratch[t + 32 * i];

		of[i] = {f.x, f.y, f.z, f.w};
	}
#pragma unroll
	for (int half = HZI_QUAT_THREADS / 64; half; half /= 2)
#pragma unroll
		for (int i = 0; i < half; i++)
			of[i] = quat_add(of[i], of[i + half]);
	q = of[0];
	for (int half = 16; half >= 1 << lanes_log2; half /= 2) {
		const quat other = {
			__shfl_down_sync(~0u, q.w, half), __shfl_down_sync(~0u, q.x, half),
			__shfl_down_sync(~0u, q.y, half), __shfl_down_sync(~0u, q.z, half),
		};

		q = quat_add(q, other);
	}
	return q;
}

#endif
