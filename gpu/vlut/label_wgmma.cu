/*
 * label_wgmma.cu - the kernels of table_wgmma.cuh for packed labels of E8, and the packing of x
 *
 * SPDX-License-Identifier: BSD-2-Clause
 *
 * Tiles of x are [chunk of 128 values][half step][column][8 values] of f16: value e of half step h
 * is k = 16 e + h of the chunk. x of f32 has two columns, f16(x) and 2^11 times what that leaves.
 */
#include "gpu/vlut/table_wgmma.cuh"

#define VECTORS HZI_VLUT_LABEL_X_VECTORS
#define X_THREADS HZI_VLUT_LABEL_X_THREADS

template <int DTYPE>
struct label_element {
	using type = uint16_t;
};

template <>
struct label_element<HZ_F32> {
	using type = uint32_t;
};

/* What a thread loads of a chunk of a vector: 8 successive values of each 16 */
template <int DTYPE>
struct label_x {
	static constexpr int TERMS = DTYPE == HZ_F32 ? 2 : 1, PER_WORD = 2 / TERMS;

	uint32_t raw[8][8 / PER_WORD];

	/* From value k of the vector that begins at element `at` of x; 0 where there is none */
	template <typename P>
	__device__ __forceinline__ void load(const P &p, bool exists, int64_t at, int k)
	{
		using element = typename label_element<DTYPE>::type;
		const element *const x = (const element *)p.x + at + k * p.x_k;

#pragma unroll
		for (int e = 0; e < 8; e++) {
#pragma unroll
			for (int i = 0; i < 8 / PER_WORD; i++)
				raw[e][i] = 0;
		}
		if (!exists)
			return;
		if (p.x_vectorized) {
#pragma unroll
			for (int e = 0; e < 8; e++) {
				if (k + 16 * e >= p.k)
					break;
#pragma unroll
				for (int i = 0; i < TERMS; i++) {
					const uint4 u = ((const uint4 *)(x + 16 * e))[i];

					raw[e][4 * i] = u.x;
					raw[e][4 * i + 1] = u.y;
					raw[e][4 * i + 2] = u.z;
					raw[e][4 * i + 3] = u.w;
				}
			}
			return;
		}
#pragma unroll
		for (int e = 0; e < 8; e++) {
#pragma unroll
			for (int j = 0; j < 8; j++) {
				if (k + 16 * e + j < p.k)
					raw[e][j / PER_WORD] |= (uint32_t)x[(16 * e + j) * p.x_k]
								<< 16 * (j % PER_WORD);
			}
		}
	}

	__device__ __forceinline__ float value(int e, int j) const
	{
		const uint32_t w = raw[e][j / PER_WORD];

		return DTYPE == HZ_F32 ? __uint_as_float(w) :
		       DTYPE == HZ_F16 ? (j % 2 ? f16_high(w) : f16_low(w)) :
					 (j % 2 ? bf16_high(w) : bf16_low(w));
	}

	/* The largest finite magnitude */
	__device__ __forceinline__ float most(void) const
	{
		float m = 0;

#pragma unroll
		for (int i = 0; i < 64; i++) {
			const float f = fabsf(value(i / 8, i % 8));

			m = f < INFINITY ? fmaxf(m, f) : m;
		}
		return m;
	}

	/* Stores them times factor to 8 half steps, `step` bytes apart. */
	__device__ __forceinline__ void store(uint8_t *dst, int step, float factor) const
	{
#pragma unroll
		for (int j = 0; j < 8; j++) {
			uint32_t w[TERMS][4];

#pragma unroll
			for (int i = 0; i < 4; i++) {
				if constexpr (DTYPE == HZ_F16) {
					w[0][i] = __byte_perm(raw[2 * i][j / 2],
							      raw[2 * i + 1][j / 2],
							      j % 2 ? 0x7632 : 0x5410);
					continue;
				}
				const float low = value(2 * i, j) * factor,
					    high = value(2 * i + 1, j) * factor;

				w[0][i] = to_f16x2(low, high);
				if constexpr (TERMS == 2)
					w[1][i] = to_f16x2(rest(low, f16_low(w[0][i])),
							   rest(high, f16_high(w[0][i])));
			}
#pragma unroll
			for (int i = 0; i < TERMS; i++)
				*(uint4 *)(dst + j * step + 16 * i) =
					make_uint4(w[i][0], w[i][1], w[i][2], w[i][3]);
		}
	}

private:
	/* Inf leaves nothing. */
	__device__ __forceinline__ static float rest(float v, float rounded)
	{
		return fabsf(v) < INFINITY ? (v - rounded) * 0x1p11f : 0;
	}
};

/*
 * The power of two by which a vector is multiplied whose largest finite magnitude is m: m becomes
 * 2^14 to 2^15, unless that takes more than f32 has. 1 / scale is exact.
 */
HZ_DEVICE float label_x_scale(float m)
{
	const int shift = m > 0 ? 14 + 127 - (int)(__float_as_uint(m) >> 23) : 0;

	return __int_as_float((127 + min(shift, 126)) << 23);
}

/* Calls f with the dtype of x as a constant. */
template <typename F>
HZ_DEVICE void label_x_with(int dtype, F f)
{
	if (dtype == HZ_F16)
		f(std_int<HZ_F16>());
	else if (dtype == HZ_BF16)
		f(std_int<HZ_BF16>());
	else
		f(std_int<HZ_F32>());
}

/*
 * A block packs VECTORS vectors; of f16, which is not scaled, blocks of a column of the grid share
 * the chunks. Otherwise it first finds the largest magnitude of each.
 */
template <int DTYPE>
HZ_DEVICE void pack_x(const hzi_vlut_label_x &p)
{
	constexpr int TERMS = label_x<DTYPE>::TERMS;
	__shared__ int most[VECTORS];
	const int tile_vectors = p.columns / TERMS, parts = p.chunks * 2 * VECTORS;
	/* X_THREADS is a multiple of VECTORS. */
	const int v = threadIdx.x % VECTORS, b = blockIdx.x * VECTORS + v;
	const int column = b % tile_vectors * TERMS;
	uint8_t *const tile = p.tiles + (int64_t)(b / tile_vectors) * p.chunks * p.columns * 256;
	float scale = 1;

	auto load = [&](label_x<DTYPE> &part, int i) {
		part.load(p, b < p.batch, b * p.x_b,
			  i / (2 * VECTORS) * CHUNK + i / VECTORS % 2 * 8);
	};
	auto store = [&](const label_x<DTYPE> &part, int i) {
		const int64_t half_step = i / (2 * VECTORS) * 16 + i / VECTORS % 2 * 8;

		part.store(tile + (half_step * p.columns + column) * 16, p.columns * 16, scale);
	};
	const int first = blockIdx.y * X_THREADS + threadIdx.x, step = gridDim.y * X_THREADS;
	label_x<DTYPE> part;

	/* The first part stays in registers: there are no others up to k = 4096. */
	if (first < parts)
		load(part, first);
	if constexpr (DTYPE != HZ_F16) {
		float m = first < parts ? part.most() : 0;

		if (threadIdx.x < VECTORS)
			most[threadIdx.x] = 0;
		__syncthreads();
		for (int i = first + step; i < parts; i += step) {
			label_x<DTYPE> other;

			load(other, i);
			m = fmaxf(m, other.most());
		}
		atomicMax(&most[v], __float_as_int(m));
		__syncthreads();
		scale = label_x_scale(__int_as_float(most[v]));
		if (threadIdx.x < VECTORS && b < p.batch)
			p.unscale[b] = 1 / scale;
	}
	if (first < parts)
		store(part, first);
	for (int i = first + step; i < parts; i += step) {
		load(part, i);
		store(part, i);
	}
}

extern "C" __global__ void __launch_bounds__(X_THREADS)
vlut_label_x_pack(const __grid_constant__ hzi_vlut_label_x p)
{
	pdl_wait();
	pdl_launch_dependents();
	label_x_with(p.x_dtype, [&](auto dtype) { pack_x<decltype(dtype)::value>(p); });
}

KERNELS(vlut_label_wgmma_cube, LABELS(HZI_SHAPING_CUBE, 4), false)
KERNELS(vlut_label_wgmma_d8star, LABELS(HZI_SHAPING_D8STAR, 2), false)
KERNELS(vlut_label_wgmma_e8_4, LABELS(HZI_SHAPING_E8, 2), false)
KERNELS(vlut_label_wgmma_e8_16, LABELS(HZI_SHAPING_E8, 4), false)
