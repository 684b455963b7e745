/*
 * im2col.cu - patches of x for products of matrices, and copies of x with taps as channels
 *
 * SPDX-License-Identifier: BSD-2-Clause
 *
 * Both kernels move bits and convert nothing, so that f16 and bf16 share code.
 */
#include "gpu/quat_conv/im2col.h"
#include "gpu/quat_layer/quat_layer.cuh"

struct of_32_bits {
	typedef float4 quaternion;
	typedef float number;
};

struct of_16_bits {
	typedef ushort4 quaternion;
	typedef uint16_t number;
};

/* The quaternion at `at`, its components where a.comp says */
template <class T>
HZ_DEVICE typename T::quaternion load(const hzi_quat_array &a, const typename T::number *at)
{
	typedef typename T::quaternion quaternion;

	return a.whole ? *(const quaternion *)at :
		quaternion{at[a.comp[0]], at[a.comp[1]], at[a.comp[2]], at[a.comp[3]]};
}

/* ---- Patches: struct hzi_quat_patch_step ----------------------------------------------------- */

/* A thread copies what all taps read of one input channel for one output pixel. */
template <class T>
HZ_DEVICE void im2col(const hzi_quat_patch_step &p)
{
	typedef typename T::quaternion quaternion;
	typedef typename T::number number;
	const int64_t taps = p.taps[0] * p.taps[1] * p.taps[2];

	for (int64_t i = first_element(); i < p.rows * p.groups * p.channels;
	     i += step_elements()) {
		int64_t c, g, u[3], row, image, low[3];
		row = divide(divide(i, p.channels, &c), p.groups, &g);
		image = divide(row + p.first, p.count[2], &u[2]);
		image = divide(image, p.count[1], &u[1]);
		image = divide(image, p.count[0], &u[0]);
		const number *x = (const number *)p.x.data + image * p.x.stride[0] +
				  (g * p.channels + c) * p.x.stride[4];
		quaternion *dst = (quaternion *)p.out + (row * p.groups +
							 g) * taps * p.channels + c;

		for (int d = 0; d < 3; d++)
			low[d] = u[d] * p.step[d] + p.base[d];
		for (int64_t t0 = 0; t0 < p.taps[0]; t0++) {
			const int64_t a0 = low[0] + t0 * p.each[0];

			for (int64_t t1 = 0; t1 < p.taps[1]; t1++) {
				const int64_t a1 = low[1] + t1 * p.each[1];
				const bool inside = a0 >= 0 && a0 < p.size[0] && a1 >= 0 &&
						    a1 < p.size[1];
				const number *src =
					x + a0 * p.x.stride[1] + a1 * p.x.stride[2];

#pragma unroll 3
				for (int64_t t2 = 0; t2 < p.taps[2]; t2++, dst += p.channels) {
					const int64_t a2 = low[2] + t2 * p.each[2];
					const number *at = src + a2 * p.x.stride[3];
					quaternion v = {0, 0, 0, 0};

					if (inside && a2 >= 0 && a2 < p.size[2])
						v = load<T>(p.x, at);
					*dst = v;
				}
			}
		}
	}
}

KERNEL(quat_conv_im2col, hzi_quat_patch_step)
{
	if (p.x.dtype == HZ_F32)
		im2col<of_32_bits>(p);
	else
		im2col<of_16_bits>(p);
}

/* ---- Taps as channels: struct hzi_quat_conv_copy --------------------------------------------- */

#define ROWS 4				/* in flight per thread */

/*
 * A thread has one channel of one pixel of a row, so one tap, in rows blockIdx.y, blockIdx.y +
 * gridDim.y, ...: the divisions that find its tap are done once.
 */
template <class T>
HZ_DEVICE void taps_to_channels(const hzi_quat_conv_copy &p)
{
	typedef typename T::quaternion quaternion;
	typedef typename T::number number;
	const uint32_t i = blockIdx.x * blockDim.x + threadIdx.x;
	const int u2 = (int)(i / (uint32_t)p.pitch), j = (int)(i - (uint32_t)(u2 * p.pitch));
	const int tap = (int)((uint32_t)j / (uint32_t)p.channels), c = j - tap * p.channels;
	const int outer = (int)((uint32_t)tap / (uint32_t)p.taps[2]);
	const int t0 = (int)((uint32_t)outer / (uint32_t)p.taps[1]);
	const int a2 = u2 * p.step[2] + p.base[2] + (tap - outer * p.taps[2]) * p.each[2];
	const int low1 = p.base[1] + (outer - t0 * p.taps[1]) * p.each[1];
	const int low0 = p.base[0] + t0 * p.each[0];
	const bool inside = t0 < p.taps[0] && (uint32_t)a2 < (uint32_t)p.size[2];

	if (u2 >= p.count[2])
		return;
	for (int64_t first = blockIdx.y; first < p.rows; first += ROWS * gridDim.y) {
		quaternion v[ROWS];

#pragma unroll
		for (int k = 0; k < ROWS; k++) {
			const uint32_t row = (uint32_t)first + k * gridDim.y;
			const uint32_t slab = row / (uint32_t)p.count[1];
			const uint32_t image = slab / (uint32_t)p.count[0];
			const int a1 = (int)(row - slab * (uint32_t)p.count[1]) * p.step[1] + low1;
			const int a0 = (int)(slab - image * (uint32_t)p.count[0]) * p.step[0] +
				       low0;
			const number *at = (const number *)p.x.data + image * p.x.stride[0] +
					   a0 * p.x.stride[1] + a1 * p.x.stride[2] +
					   a2 * p.x.stride[3] + c * p.x.stride[4];

			v[k] = {0, 0, 0, 0};
			if (inside && row < p.rows && (uint32_t)a0 < (uint32_t)p.size[0] &&
			    (uint32_t)a1 < (uint32_t)p.size[1])
				v[k] = load<T>(p.x, at);
		}
#pragma unroll
		for (int k = 0; k < ROWS; k++) {
			const int64_t row = first + k * gridDim.y;

			if (row < p.rows)
				((quaternion *)p.out)[row * p.count[2] * p.pitch + i] = v[k];
		}
	}
}

KERNEL(quat_conv_taps_to_channels, hzi_quat_conv_copy)
{
	if (p.x.dtype == HZ_F32)
		taps_to_channels<of_32_bits>(p);
	else
		taps_to_channels<of_16_bits>(p);
}
