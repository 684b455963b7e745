/*
 * label_wgmma.cu - GEMM of packed labels of E8 by wgmma, and its copies of x; see decoded_gemm.cuh
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#include "gpu/vlut/label_wgmma.cuh"

#define X_THREADS HZI_VLUT_LABEL_X_THREADS

/*
 * The power of two by which a vector is multiplied whose largest finite magnitude is m: m becomes
 * 2^14 to 2^15, unless that takes more than f32 has. 1 / scale is exact.
 */
HZ_DEVICE float label_x_scale(float m)
{
	const int shift = m > 0 ? 14 + 127 - (int)(__float_as_uint(m) >> 23) : 0;

	return __int_as_float((127 + min(shift, 126)) << 23);
}

/* Two f16 terms of f32, the second in units of HZI_DECODED_SECOND */
HZ_DEVICE void label_x_terms(const hzi_vlut_label_x &p, const float *x, uint16_t *to)
{
	__shared__ int most;
	float m = 0;

	if (threadIdx.x == 0)
		most = 0;
	__syncthreads();
	for (int k = threadIdx.x; k < p.k; k += X_THREADS) {
		const float f = fabsf(x[k * p.x_k]);

		m = f < INFINITY ? fmaxf(m, f) : m;
	}
	atomicMax(&most, __float_as_int(m));
	__syncthreads();

	const float scale = label_x_scale(__int_as_float(most));

	if (threadIdx.x == 0)
		p.unscale[blockIdx.x] = 1 / scale;
	for (int k = threadIdx.x; k < p.pitch; k += X_THREADS) {
		const float f = k < p.k ? x[k * p.x_k] * scale : 0;
		const uint32_t first = to_f16x2(f, 0);

		to[k] = (uint16_t)first;
		/* Inf leaves nothing. */
		to[p.pitch + k] = (uint16_t)to_f16x2(
			fabsf(f) < INFINITY ? (f - f16_low(first)) / HZI_DECODED_SECOND : 0, 0);
	}
}

/* Grid: vectors */
extern "C" __global__ void __launch_bounds__(X_THREADS)
vlut_label_x(const __grid_constant__ hzi_vlut_label_x p)
{
	const bool f32 = p.x_dtype == HZ_F32;
	const int64_t at = blockIdx.x * p.x_b;
	uint16_t *const to = p.rows + blockIdx.x * ((f32 ? 2 : 1) * (int64_t)p.pitch);

	pdl_wait();
	pdl_launch_dependents();
	if (f32) {
		label_x_terms(p, (const float *)p.x + at, to);
		return;
	}
	for (int k = threadIdx.x; k < p.pitch; k += X_THREADS)
		to[k] = k < p.k ? ((const uint16_t *)p.x)[at + k * p.x_k] : 0;
}

#if HAVE_WGMMA
#define BODY(dtype, shaping, t_bits, ...) \
	{ decoded_gemm_block<label_codes<dtype, shaping, t_bits>, __VA_ARGS__>(p).run(); }
#else
#define BODY(...) { }
#endif

#define KERNEL(name, shape, ...) \
	extern "C" __global__ void __launch_bounds__(HZI_DECODED_THREADS(shape), 1) \
	name(const __grid_constant__ hzi_vlut_decoded_wgmma p) \
	BODY(__VA_ARGS__, shape)
#define KERNELS(name, ...) \
	KERNEL(name##_64x16, HZI_VLUT_DECODED_64X16, __VA_ARGS__) \
	KERNEL(name##_64x32, HZI_VLUT_DECODED_64X32, __VA_ARGS__) \
	KERNEL(name##_64x64, HZI_VLUT_DECODED_64X64, __VA_ARGS__) \
	KERNEL(name##_64x128, HZI_VLUT_DECODED_64X128, __VA_ARGS__) \
	KERNEL(name##_128x32, HZI_VLUT_DECODED_128X32, __VA_ARGS__) \
	KERNEL(name##_128x64, HZI_VLUT_DECODED_128X64, __VA_ARGS__) \
	KERNEL(name##_128x128, HZI_VLUT_DECODED_128X128, __VA_ARGS__) \
	KERNEL(name##_128x256, HZI_VLUT_DECODED_128X256, __VA_ARGS__)
#define CODES(name, ...) \
	KERNELS(name##_f16, HZ_F16, __VA_ARGS__) \
	KERNELS(name##_bf16, HZ_BF16, __VA_ARGS__)

CODES(vlut_label_wgmma_cube, HZI_SHAPING_CUBE, 4)
CODES(vlut_label_wgmma_d8star, HZI_SHAPING_D8STAR, 2)
CODES(vlut_label_wgmma_e8_4, HZI_SHAPING_E8, 2)
CODES(vlut_label_wgmma_e8_16, HZI_SHAPING_E8, 4)
