/*
 * hadamard_base.cu - rows of m 2^k elements back to back, m = 12, 20, 28, with the symmetric matrix
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#include "gpu/hadamard_fast.cuh"

/*
 * Paley's second matrices as lib/base.c makes them: [C + I, C - I; C - I, -C - I], C the conference
 * matrix of order q + 1 = m / 2: 0 on the diagonal, a border of +1, inside chi(j - i) in GF(q).
 */
template <int M>
__host__ __device__ constexpr int conference(int i, int j)
{
	constexpr int Q = M / 2 - 1;
	constexpr int chi9[9] = {0, 1, 1, -1, 1, -1, -1, -1, 1};

	if (i == 0 || j == 0)
		return 1;
	i--;
	j--;
	if constexpr (Q == 9) {		/* two digits of base 3 */
		return chi9[(j % 3 - i % 3 + 3) % 3 + (j / 3 - i / 3 + 3) % 3 * 3];
	} else {
		for (int root = 1; root < Q; root++) {
			if (root * root % Q == (j - i + Q) % Q)
				return 1;
		}
		return -1;
	}
}

template <int M>
__host__ __device__ constexpr int entry(int i, int j)
{
	constexpr int H = M / 2;

	if (i % H == j % H)
		return i < H && j < H ? 1 : -1;
	return (i >= H && j >= H ? -1 : 1) * conference<M>(i % H, j % H);
}

template <int I>
struct number {
	static constexpr int value = I;
};

/* f(0), f(1), .. f(N - 1), with numbers that are known when compiled */
template <int I, int N, typename F>
HZ_DEVICE void each(F f)
{
	if constexpr (I < N) {
		f(number<I>());
		each<I + 1, N>(f);
	}
}

/* The m values at a place of C = 2 elements, multiplied in the order of the contract, to put(row, sum) */
template <int M, typename F>
HZ_DEVICE void base_in_order(const float (*x)[2], F put)
{
	each<0, M>([&](auto row) {
		float sum[2] = {entry<M>(row.value, 0) > 0 ? x[0][0] : -x[0][0],
				entry<M>(row.value, 0) > 0 ? x[0][1] : -x[0][1]};

		each<1, M>([&](auto j) {
			if constexpr (entry<M>(decltype(row)::value, decltype(j)::value) > 0) {
				sum[0] += x[j.value][0];
				sum[1] += x[j.value][1];
			} else {
				sum[0] -= x[j.value][0];
				sum[1] -= x[j.value][1];
			}
		});
		put(row.value, sum);
	});
}

/*
 * The same with half of the additions, in another order: for results of 16 bits. With u = a + b and
 * w = a - b of the halves of x, the halves of the product are C u + w and C w - u.
 */
template <int M, typename F>
HZ_DEVICE void base_by_halves(float (*x)[2], F put)
{
	constexpr int H = M / 2;

#pragma unroll
	for (int i = 0; i < H; i++) {
#pragma unroll
		for (int c = 0; c < 2; c++) {
			const float a = x[i][c], b = x[i + H][c];

			x[i][c] = a + b;
			x[i + H][c] = a - b;
		}
	}
	each<0, H>([&](auto row) {
		float top[2] = {x[row.value + H][0], x[row.value + H][1]};
		float bottom[2] = {-x[row.value][0], -x[row.value][1]};

		each<0, H>([&](auto j) {
			constexpr int R = decltype(row)::value, J = decltype(j)::value;

			if constexpr (R != J && conference<M>(R, J) > 0) {
				top[0] += x[J][0];
				top[1] += x[J][1];
				bottom[0] += x[J + H][0];
				bottom[1] += x[J + H][1];
			} else if constexpr (R != J) {
				top[0] -= x[J][0];
				top[1] -= x[J][1];
				bottom[0] -= x[J + H][0];
				bottom[1] -= x[J + H][1];
			}
		});
		put(row.value, top);
		put(row.value + H, bottom);
	});
}

/*
 * Some rows of m 2^k elements, in all a multiple of 1024, go through a block's shared memory: their
 * transforms of 2^k first, warp by warp, then the base matrix for each of 2^k places.
 */
template <int DTYPE, int M>
HZ_DEVICE void fast_base(const hzi_hadamard_fast_base &p)
{
	constexpr int C = 2;
	const int lane = threadIdx.x % 32, k = p.f.k, tiles = p.tile / 1024;
	const int64_t e0 = (int64_t)blockIdx.x * p.tile;
	const int rows = (int)((p.f.total - e0 < p.tile ? p.f.total - e0 : p.tile) / (M << k));
	char *memory = (char *)shared;
	float v[32];

	for (int w = threadIdx.x / 32; w < tiles; w += blockDim.x / 32) {
		const int64_t e = e0 + w * 1024;
		char *own = memory + w * HZI_FAST_WARP_BYTES;

		if (e >= p.f.total)
			break;
		if constexpr (DTYPE == HZ_F32) {
			fast_f32<false>(v, p.f, e, own, lane, k);
#pragma unroll
			for (int i = 0; i < 32; i++)
				*(float *)(own + place_of<HZ_F32>(i * 32 + lane)) = v[i];
		} else {
			uint4 raw[4];

			fast_load(raw, p.f, e, lane);
			fast_first<DTYPE, false>(v, raw, p.f, e, lane);
			fast_second(v, k - 5, lane);
			fast_put<HZ_F32>(v, own, lane);
		}
	}
	__syncthreads();
	for (int s = 10; s < k; s++) {
		for (int i = threadIdx.x; i < rows * (M << k) / 8; i += blockDim.x) {
			const int e = ((i >> (s - 2) << (s - 1)) + (i & ((1 << (s - 2)) - 1))) * 4;
			float4 *low = (float4 *)(memory + place_of<HZ_F32>(e));
			float4 *high = (float4 *)(memory + place_of<HZ_F32>(e + (1 << s)));
			const float4 a = *low, b = *high;

			*low = make_float4(a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w);
			*high = make_float4(a.x - b.x, a.y - b.y, a.z - b.z, a.w - b.w);
		}
		__syncthreads();
	}
	for (int i = threadIdx.x * C; i < rows << k; i += blockDim.x * C) {
		const int e = (i >> k) * (M << k) + (i & ((1 << k) - 1));
		float x[M][C];

#pragma unroll
		for (int j = 0; j < M; j++) {
			const float2 f = *(const float2 *)(memory + place_of<HZ_F32>(e + (j << k)));

			x[j][0] = f.x;
			x[j][1] = f.y;
		}
		char *y = result_at<DTYPE>(p.f, e0 + e);
		auto put = [&](int row, float *sum) {
#pragma unroll
			for (int c = 0; c < C; c++)
				sum[c] = __fmul_rn(sum[c], p.f.factor);
			fast_store<DTYPE, C>(y + ((int64_t)row << k) * (DTYPE == HZ_F32 ? 4 : 2), 0, sum);
		};
		if constexpr (DTYPE == HZ_F32)
			base_in_order<M>(x, put);
		else
			base_by_halves<M>(x, put);
	}
}

#define FAST_BASE(name, dtype, m) \
	extern "C" __global__ void __launch_bounds__(32 * HZI_FAST_BASE_WARPS(m), 1) \
	hadamard_base_##name(const __grid_constant__ hzi_hadamard_fast_base p) \
	{ \
		fast_base<dtype, m>(p); \
	}

FAST_BASE(f16_m12, HZ_F16, 12)
FAST_BASE(f16_m20, HZ_F16, 20)
FAST_BASE(f16_m28, HZ_F16, 28)
FAST_BASE(bf16_m12, HZ_BF16, 12)
FAST_BASE(bf16_m20, HZ_BF16, 20)
FAST_BASE(bf16_m28, HZ_BF16, 28)
FAST_BASE(f32_m12, HZ_F32, 12)
FAST_BASE(f32_m20, HZ_F32, 20)
FAST_BASE(f32_m28, HZ_F32, 28)
