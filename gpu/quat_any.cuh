/*
 * quat_any.cuh - operands of quaternions of any strides
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#ifndef HZI_QUAT_ANY_CUH
#define HZI_QUAT_ANY_CUH

#include "gpu/quat_ops.cuh"

HZ_DEVICE float load_one(const hzi_quat_operand &o, int dtype, int64_t at)
{
	if (dtype == HZ_F32)
		return ((const float *)o.data)[at];
	return dtype == HZ_F16 ? f16_low(((const uint16_t *)o.data)[at])
			       : bf16_low(((const uint16_t *)o.data)[at]);
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

#endif
