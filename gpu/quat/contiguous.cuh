/*
 * contiguous.cuh - contiguous quaternions in 16-byte pieces
 *
 * SPDX-License-Identifier: BSD-2-Clause
 *
 * A warp has portions of COUNT pieces per lane. A piece is one f32 quaternion or two of 16 bits.
 * Its words: a QUATERNION has four; a VECTOR has x, y, z in three and real parts in the fourth; a
 * REAL has one.
 */
#ifndef HZI_GPU_QUAT_CONTIGUOUS_CUH
#define HZI_GPU_QUAT_CONTIGUOUS_CUH

#include "gpu/quat/strided.cuh"

template <int DTYPE>
struct piece {
	static constexpr int each = DTYPE == HZ_F32 ? 1 : 2;

	uint32_t w[4];

	__device__ __forceinline__ float at(int i) const { return number_in<DTYPE>(w, i); }

	/* real: with the real part of a vector */
	__device__ __forceinline__ quat get(operand_kind kind, bool real, int e) const
	{
		if (kind == REAL)
			return {at(e), 0, 0, 0};
		if (kind == VECTOR)
			return {real ? at(3 * each + e) : 0, at(3 * e), at(3 * e + 1),
				at(3 * e + 2)};
		return {at(4 * e), at(4 * e + 1), at(4 * e + 2), at(4 * e + 3)};
	}

	__device__ __forceinline__ void put(operand_kind kind, const quat (&q)[each])
	{
		const quat a = q[0], b = q[each - 1];

		if (kind == REAL) {
			w[0] = word_of<DTYPE>(a.w, b.w);
		} else if (kind == VECTOR) {
			w[0] = word_of<DTYPE>(a.x, a.y);
			w[1] = DTYPE == HZ_F32 ? word_of<DTYPE>(a.y, 0) : word_of<DTYPE>(a.z, b.x);
			w[2] = DTYPE == HZ_F32 ? word_of<DTYPE>(a.z, 0) : word_of<DTYPE>(b.y, b.z);
			w[3] = word_of<DTYPE>(a.w, b.w);
		} else if (DTYPE == HZ_F32) {
			w[0] = word_of<DTYPE>(a.w, 0), w[1] = word_of<DTYPE>(a.x, 0);
			w[2] = word_of<DTYPE>(a.y, 0), w[3] = word_of<DTYPE>(a.z, 0);
		} else {
			w[0] = word_of<DTYPE>(a.w, a.x), w[1] = word_of<DTYPE>(a.y, a.z);
			w[2] = word_of<DTYPE>(b.w, b.x), w[3] = word_of<DTYPE>(b.y, b.z);
		}
	}

	/* From the words of contiguous quaternions to those of a VECTOR, and back */
	__device__ __forceinline__ void to_vector(void)
	{
		const uint32_t a = w[0], b = w[1], c = w[2], d = w[3];

		if (DTYPE == HZ_F32) {
			w[0] = b, w[1] = c, w[2] = d, w[3] = a;
		} else {
			w[0] = __byte_perm(a, b, 0x5432);
			w[1] = __byte_perm(b, c, 0x7632);
			w[2] = d;
			w[3] = __byte_perm(a, c, 0x5410);
		}
	}

	__device__ __forceinline__ void from_vector(void)
	{
		const uint32_t a = w[0], b = w[1], c = w[2], d = w[3];

		if (DTYPE == HZ_F32) {
			w[0] = d, w[1] = a, w[2] = b, w[3] = c;
		} else {
			w[0] = __byte_perm(d, a, 0x5410);
			w[1] = __byte_perm(a, b, 0x5432);
			w[2] = __byte_perm(d, b, 0x7632);
			w[3] = c;
		}
	}

	/* From the words of contiguous quaternions in memory order to those of `kind`, and back */
	__device__ __forceinline__ void unpack(operand_kind kind, bool xyzw)
	{
		if (xyzw)
			words_xyzw<DTYPE, false>(w);
		if (kind == VECTOR)
			to_vector();
	}

	__device__ __forceinline__ void pack(operand_kind kind, bool xyzw)
	{
		if (kind == VECTOR)
			from_vector();
		if (xyzw)
			words_xyzw<DTYPE, true>(w);
	}
};

/*
 * A warp's portion of an operand. scratch: 12 bytes of shared memory per piece, for VECTORs.
 */
template <int DTYPE, int COUNT>
struct portion {
	static constexpr int each = piece<DTYPE>::each, size = DTYPE == HZ_F32 ? 4 : 2;
	static constexpr int quaternions = COUNT * 32 * each;

	piece<DTYPE> of[COUNT];

	/* Three units of COUNT words per lane: the warp's vectors in memory order */
	static __device__ __forceinline__ uint32_t *unit(void *first, int i)
	{
		return (uint32_t *)first + (32 * i + threadIdx.x % 32) * COUNT;
	}

	__device__ __forceinline__ void load(const hzi_quat_operand &o, operand_kind kind,
					     int64_t at)
	{
		const int lane = threadIdx.x % 32;
		char *const src = (char *)o.data + at * size;

		if (kind == REAL) {
#pragma unroll
			for (int u = 0; u < COUNT; u++)
				of[u].w[0] = ((const uint32_t *)src)[32 * u + lane];
		} else if (kind == VECTOR && o.width == 3) {
#pragma unroll
			for (int i = 0; i < 3; i++) {
				if (COUNT == 4) {
					const uint4 v = *(const uint4 *)unit(src, i);

					of[0].w[i] = v.x, of[1 % COUNT].w[i] = v.y;
					of[2 % COUNT].w[i] = v.z, of[3 % COUNT].w[i] = v.w;
				} else {
					const uint2 v = *(const uint2 *)unit(src, i);

					of[0].w[i] = v.x, of[1].w[i] = v.y;
				}
			}
		} else if (o.dense) {
#pragma unroll
			for (int u = 0; u < COUNT; u++) {
				const uint4 v = ((const uint4 *)src)[32 * u + lane];

				of[u].w[0] = v.x, of[u].w[1] = v.y;
				of[u].w[2] = v.z, of[u].w[3] = v.w;
			}
		} else {
			uint4 v;

			if (DTYPE == HZ_F32) {
				v = *(const uint4 *)src;
			} else {
				const uint2 h = *(const uint2 *)src;

				v = make_uint4(h.x, h.y, h.x, h.y);
			}
#pragma unroll
			for (int u = 0; u < COUNT; u++) {
				of[u].w[0] = v.x, of[u].w[1] = v.y;
				of[u].w[2] = v.z, of[u].w[3] = v.w;
			}
		}
	}

	/*
	 * Converts what load() read, once all loads are in flight. xyzw: the order in memory.
	 */
	__device__ __forceinline__ void unpack(const hzi_quat_operand &o, operand_kind kind,
					       bool xyzw, uint32_t *scratch)
	{
		if (kind == REAL)
			return;
		if (kind == QUATERNION || o.width != 3) {
#pragma unroll
			for (int u = 0; u < COUNT; u++)
				of[u].unpack(kind, xyzw);
			return;
		}
#pragma unroll
		for (int i = 0; i < 3; i++)
#pragma unroll
			for (int u = 0; u < COUNT; u++)
				unit(scratch, i)[u] = of[u].w[i];
		__syncwarp();
#pragma unroll
		for (int u = 0; u < COUNT; u++) {
#pragma unroll
			for (int i = 0; i < 3; i++)
				of[u].w[i] = scratch[(32 * u + threadIdx.x % 32) * 3 + i];
			of[u].w[3] = 0;
		}
		__syncwarp();
	}

	__device__ __forceinline__ void store(const hzi_quat_operand &o, operand_kind kind,
					      bool xyzw, int64_t at, uint32_t *scratch)
	{
		const int lane = threadIdx.x % 32;
		char *const dst = (char *)o.data + at * size;

		if (kind == REAL) {
#pragma unroll
			for (int u = 0; u < COUNT; u++)
				((uint32_t *)dst)[32 * u + lane] = of[u].w[0];
			return;
		}
		if (kind == VECTOR && o.width == 3) {
#pragma unroll
			for (int u = 0; u < COUNT; u++)
#pragma unroll
				for (int i = 0; i < 3; i++)
					scratch[(32 * u + lane) * 3 + i] = of[u].w[i];
			__syncwarp();
#pragma unroll
			for (int i = 0; i < 3; i++) {
				if (COUNT == 4)
					*(uint4 *)unit(dst, i) = *(const uint4 *)unit(scratch, i);
				else
					*(uint2 *)unit(dst, i) = *(const uint2 *)unit(scratch, i);
			}
			__syncwarp();
			return;
		}
#pragma unroll
		for (int u = 0; u < COUNT; u++) {
			of[u].pack(kind, xyzw);
			((uint4 *)dst)[32 * u + lane] =
				make_uint4(of[u].w[0], of[u].w[1], of[u].w[2], of[u].w[3]);
		}
	}
};

/* The old value of an output, piece u of a portion */
template <int DTYPE, int COUNT>
HZ_DEVICE piece<DTYPE> old_piece(const hzi_quat_operand &o, operand_kind kind, bool xyzw,
				 const char *src, int u)
{
	const int at = 32 * u + threadIdx.x % 32;
	piece<DTYPE> old;

	if (kind == VECTOR && o.width == 3) {
#pragma unroll
		for (int i = 0; i < 3; i++)
			old.w[i] = ((const uint32_t *)src)[3 * at + i];
		old.w[3] = 0;
		return old;
	}
	const uint4 v = ((const uint4 *)src)[at];

	old.w[0] = v.x, old.w[1] = v.y, old.w[2] = v.z, old.w[3] = v.w;
	old.unpack(kind, xyzw);
	return old;
}

#endif
