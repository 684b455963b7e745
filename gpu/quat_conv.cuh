/*
 * quat_conv.cuh - what kernels of quaternion convolutions share: pixels, and their planes of f16
 *
 * SPDX-License-Identifier: BSD-2-Clause
 *
 * Planes lie in shared memory as 16 bytes of a pixel's channels, those of the next pixel behind them,
 * so that a product may begin at any pixel and go on from row to row.
 */
#ifndef HZI_QUAT_CONV_CUH
#define HZI_QUAT_CONV_CUH

#include "gpu/quat_conv.h"
#include "gpu/quat_planes.cuh"
#include "gpu/tma.cuh"
#include "gpu/wgmma_f16.cuh"

/* Of so many in a ring: which, and which time round. */
template <int N>
struct turn {
	int at = 0;
	uint32_t parity = 0;

	__device__ __forceinline__ void next(void)
	{
		if (++at == N) {
			at = 0;
			parity ^= 1;
		}
	}
};

/* Where there is no pixel: strides may be negative, and so may places. */
#define HZI_QC_NOWHERE INT64_MIN

HZ_DEVICE bool is_somewhere(int64_t at)
{
	return (int32_t)(at >> 32) != (int32_t)(HZI_QC_NOWHERE >> 32);
}

/* The slab of a row of all, and the row in it; false: there is none. */
HZ_DEVICE bool slab_of(const hzi_quat_conv &p, int row, int &image, int &slab, int &inside)
{
	const uint32_t of_all = (uint32_t)row / (uint32_t)p.virtual_rows;

	if (row < 0 || row >= p.all_rows)
		return false;
	inside = row - (int)of_all * p.virtual_rows;
	image = (int)(of_all / (uint32_t)p.count[0]);
	slab = (int)of_all - image * p.count[0];
	return true;
}

/* Two channels of a pixel, as they lie in memory: whole quaternions of 16 bits in pairs. */
template <int DTYPE>
struct two {
	uint4 bits;

	__device__ __forceinline__ void load(const hzi_quat_conv_side &p, int64_t at, int channel)
	{
		bits = {};
		if (is_somewhere(at) && channel < p.channels)
			bits = __ldg((const uint4 *)((const uint16_t *)p.q.data + at + 4 * channel));
	}

	__device__ __forceinline__ quat get(int i) const
	{
		return i ? quat_unpack(DTYPE, {bits.z, bits.w}) : quat_unpack(DTYPE, {bits.x, bits.y});
	}

	/* Magnitudes are ordered as their bits are. */
	__device__ __forceinline__ float most(void) const
	{
		const uint32_t m = larger(larger(bits.x & 0x7fff7fff, bits.y & 0x7fff7fff),
					  larger(bits.z & 0x7fff7fff, bits.w & 0x7fff7fff));

		return max_nan(load_any(DTYPE, &m, 0), load_any(DTYPE, &m, 1));
	}

	static __device__ __forceinline__ uint32_t larger(uint32_t a, uint32_t b)
	{
		uint32_t c;

		asm("max.u16x2 %0, %1, %2;" : "=r"(c) : "r"(a), "r"(b));
		return c;
	}
};

#define HZI_QC_OTHERS (-1)	/* as a dtype: of any, which quaternions in any memory have */

/* Apart, and a call each: else there would be many copies of it. */
static __device__ __noinline__ quat load_other(const hzi_quat_conv_side &p, int64_t at)
{
	return quat_load(p.q, at);
}

template <>
struct two<HZI_QC_OTHERS> {
	quat q[2];

	__device__ __forceinline__ void load(const hzi_quat_conv_side &p, int64_t at, int channel)
	{
#pragma unroll
		for (int i = 0; i < 2; i++) {
			q[i] = {};
			if (is_somewhere(at) && channel + i < p.channels)
				q[i] = load_other(p, at + (channel + i) * p.q.col);
		}
	}

	__device__ __forceinline__ quat get(int i) const
	{
		return q[i];
	}

	__device__ __forceinline__ float most(void) const
	{
		return fmaxf(magnitude(q[0]), magnitude(q[1]));
	}
};

#define HZI_QC_BATCH 2

HZ_DEVICE int units_of(int lines)
{
	return (lines + 3) / 4 * 2;
}

HZ_DEVICE void converters_meet(void)
{
	asm volatile("bar.sync 1, %0;" :: "n"(32 * HZI_QC_CONVERTERS) : "memory");
}

/* Where the pixels are that the taps of a group see. */
HZ_DEVICE void find_lines(const hzi_quat_conv &p, int64_t *from, int first_row, int first_col,
			  int group)
{
	const hzi_quat_conv_group &g = p.group[group];

	converters_meet();
	for (int l = threadIdx.x % 256; l < g.lines; l += 32 * HZI_QC_CONVERTERS) {
		const int a = l / g.pitch, col = p.col_step * (first_col + g.col + l - a * g.pitch) +
						 g.col_rest;
		int64_t at = HZI_QC_NOWHERE;
		int image, slab, row;

		if (slab_of(p, first_row + g.row + a, image, slab, row)) {
			slab = p.slab_step * slab + g.slab;
			row = p.row_step * row + g.row_rest;
			if (slab >= 0 && slab < p.size[0] && row < p.size[1] && col >= 0 &&
			    col < p.size[2])
				at = image * p.x.stride[0] + slab * p.x.stride[1] +
				     row * p.x.stride[2] + col * p.x.stride[3];
		}
		from[l] = at;
	}
	converters_meet();
}

HZ_DEVICE float finite_magnitude(quat q)
{
	const float m[4] = {fabsf(q.w), fabsf(q.x), fabsf(q.y), fabsf(q.z)};
	float most = 0;

#pragma unroll
	for (int i = 0; i < 4; i++)
		most = m[i] < INFINITY ? fmaxf(most, m[i]) : most;
	return most;
}

HZ_DEVICE void store_pair(uint32_t to, float a, float b)
{
	asm volatile("st.shared.b32 [%0], %1;" :: "r"(to), "r"(to_f16x2(a, b)) : "memory");
}

/*
 * Two channels of a line to four planes, plane bytes apart: w, x, y, z if raw, else the sums of
 * hadamard_of().
 */
template <int DTYPE>
HZ_DEVICE void convert_two(const two<DTYPE> &from, uint32_t to, uint32_t plane, bool raw, float by,
		       float by_xyz)
{
	quat q[2];

#pragma unroll
	for (int h = 0; h < 2; h++) {
		q[h] = from.get(h);
		q[h] = {by * q[h].w, by_xyz * q[h].x, by_xyz * q[h].y, by_xyz * q[h].z};
		q[h] = raw ? q[h] : quat{hadamard_of(q[h], 0), hadamard_of(q[h], 1),
				  hadamard_of(q[h], 2), hadamard_of(q[h], 3)};
	}
	store_pair(to, q[0].w, q[1].w);
	store_pair(to + plane, q[0].x, q[1].x);
	store_pair(to + 2 * plane, q[0].y, q[1].y);
	store_pair(to + 3 * plane, q[0].z, q[1].z);
}

/*
 * A warp takes 4 lines by 16 channels at a time, so that eight threads read 128 bytes of a line, and
 * HZI_QC_BATCH such, so that several are under way.
 */

template <int DTYPE>
struct batch {
	static constexpr int size = DTYPE == HZI_QC_OTHERS ? 1 : HZI_QC_BATCH;
	static constexpr int step = size * HZI_QC_CONVERTERS;	/* units */
	two<DTYPE> of[size];

	/* Of unit, its line and its channel of a step */
	static __device__ __forceinline__ int line(int unit)
	{
		return unit / 2 * 4 + threadIdx.x % 32 / 8;
	}

	static __device__ __forceinline__ int channel(int unit)
	{
		return unit % 2 * 16 + threadIdx.x % 8 * 2;
	}

	/* Units from first on, of lines that are at from in memory; zeros beyond them */
	__device__ __forceinline__ void load(const hzi_quat_conv_side &p, const int64_t *from,
					     int lines, int first, int k)
	{
#pragma unroll
		for (int i = 0; i < size; i++) {
			const int unit = first + i * HZI_QC_CONVERTERS, l = line(unit);

			of[i].load(p, l < lines ? from[l] : HZI_QC_NOWHERE, k + channel(unit));
		}
	}

	/* The largest finite magnitude */
	__device__ __forceinline__ float most(void) const
	{
		float r = 0;

#pragma unroll
		for (int i = 0; i < size; i++) {
			float all = of[i].most();

			if (!(all < INFINITY))
				all = fmaxf(finite_magnitude(of[i].get(0)),
					    finite_magnitude(of[i].get(1)));
			r = fmaxf(r, all);
		}
		return r;
	}

	/* To planes of plane bytes and, in them, room for so many pixels */
	__device__ __forceinline__ void convert(uint32_t to, int room, uint32_t plane, int lines,
						int first, bool raw, float by, float by_xyz) const
	{
#pragma unroll
		for (int i = 0; i < size; i++) {
			const int unit = first + i * HZI_QC_CONVERTERS, l = line(unit);
			const int c = channel(unit);

			if (l < lines)
				convert_two(of[i], to + (c / 8 * room + l) * 16 + c % 8 * 2, plane,
					    raw, by, by_xyz);
		}
	}
};

#endif
