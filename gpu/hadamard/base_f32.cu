/*
 * base_f32.cu - contiguous f32 rows of m 2^k elements, m = 12, 20, 28, 40
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#include "gpu/device/pdl.cuh"
#include "gpu/hadamard/base_f32.cuh"

/*
 * Paley's second matrices as lib/hadamard/base.c makes them: [C + I, C - I; C - I, -C - I], where C
 * is the conference matrix of order q + 1 = m / 2: 0 on the diagonal, 1 in the first row and
 * column, chi(j - i) in GF(q) elsewhere.
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
	if constexpr (Q == 9) {		/* elements of GF(9) as two digits of base 3 */
		return chi9[(j % 3 - i % 3 + 3) % 3 + (j / 3 - i / 3 + 3) % 3 * 3];
	} else {
		for (int root = 1; root < Q; root++) {
			if (root * root % Q == (j - i + Q) % Q)
				return 1;
		}
		return -1;
	}
}

/* The signs of a row: bit j is that of column j. */
template <int M>
__host__ __device__ constexpr uint32_t signs_of_row(int i)
{
	constexpr int H = M / 2;
	uint32_t negative = 0;

	for (int j = 0; j < M; j++) {
		const bool diagonal = i % H == j % H, first = i < H && j < H;
		const int sign = diagonal ? (first ? 1 : -1)
					  : (i >= H && j >= H ? -1 : 1) * conference<M>(i % H, j % H);

		negative |= (uint32_t)(sign < 0) << j;
	}
	return negative;
}

/* f(I) .. f(N - 1), with compile-time constants */
template <int I, int N, typename F>
HZ_DEVICE void each(F f)
{
	if constexpr (I < N) {
		f(std_int<I>());
		each<I + 1, N>(f);
	}
}

/* Parameters with any base matrix: struct hzi_hadamard_base_f32_any */
template <int M>
struct any_base : hzi_hadamard_base_f32 {
	float sign[M * M];
};

static_assert(sizeof(any_base<40>) == sizeof(hzi_hadamard_base_f32_any), "the same layout");

/*
 * Multiplies C columns of m values by the base matrix, in the order of additions that hurwitz.h
 * fixes. Calls put(row, results). This one has Paley's second matrix.
 */
template <int M, int C, typename F>
HZ_DEVICE void multiply_in_order(const hzi_hadamard_base_f32 &, const float (*x)[C], F put)
{
	each<0, M>([&](auto row) {
		constexpr uint32_t negative = signs_of_row<M>(decltype(row)::value);
		float sum[C];

#pragma unroll
		for (int c = 0; c < C; c++)
			sum[c] = negative & 1 ? -x[0][c] : x[0][c];
#pragma unroll
		for (int j = 1; j < M; j++) {
#pragma unroll
			for (int c = 0; c < C; c++)
				sum[c] += negative >> j & 1 ? -x[j][c] : x[j][c];
		}
		put(row.value, sum);
	});
}

/*
 * Any base matrix: the sign is an operand in constant memory of the multiply-add, whose product is
 * exact, so that it rounds as the addition does.
 */
template <int M, int C, typename F>
HZ_DEVICE void multiply_in_order(const any_base<M> &p, const float (*x)[C], F put)
{
#pragma unroll
	for (int i = 0; i < M; i++) {
		float sum[C];

#pragma unroll
		for (int c = 0; c < C; c++)
			sum[c] = __fmul_rn(x[0][c], p.sign[i * M]);
#pragma unroll
		for (int j = 1; j < M; j++) {
#pragma unroll
			for (int c = 0; c < C; c++)
				sum[c] = __fmaf_rn(x[j][c], p.sign[i * M + j], sum[c]);
		}
		put(i, sum);
	}
}

/* Transforms a warp's 1024 elements in place in shared memory: strides below 1024. */
HZ_DEVICE void transform_chunk(char *memory, int lane, int k)
{
	float v[32];

	load_line(v, memory, lane);
	stages_by_lines(v, memory, lane, k);
	store_columns(v, memory, lane);
}

/*
 * A tile of rows of m 2^k elements in shared memory, a multiple of 1024 elements: first the
 * transforms of 2^k, warp by warp, then the base matrix for each of the 2^k columns
 */
template <int M, typename P>
HZ_DEVICE void base_general(const P &p)
{
	constexpr int C = M > 28 ? 1 : 2;	/* columns whose values fit the registers */
	const int lane = threadIdx.x % 32, k = p.f.k, tiles = p.tile / 1024;
	const int64_t e0 = (int64_t)blockIdx.x * p.tile;
	const int rows = (int)((p.f.total - e0 < p.tile ? p.f.total - e0 : p.tile) / (M << k));
	char *memory = (char *)shared;
	float v[32];

	for (int w = threadIdx.x / 32; w < tiles; w += blockDim.x / 32) {
		const int64_t e = e0 + w * 1024;
		char *own = memory + w * HZI_WARP_BYTES;

		if (e >= p.f.total)
			break;
		stages_f32<false>(v, p.f, e, own, lane, k);
		store_columns(v, own, lane);
	}
	__syncthreads();
	for (int s = 10; s < k; s++) {
		for (int i = threadIdx.x; i < rows * (M << k) / 8; i += blockDim.x) {
			const int e = ((i >> (s - 2) << (s - 1)) + (i & ((1 << (s - 2)) - 1))) * 4;
			float4 *low = (float4 *)(memory + swizzled<HZ_F32>(e));
			float4 *high = (float4 *)(memory + swizzled<HZ_F32>(e + (1 << s)));
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
			const char *src = memory + swizzled<HZ_F32>(e + (j << k));

			if constexpr (C == 2) {
				const float2 f = *(const float2 *)src;

				x[j][0] = f.x;
				x[j][1] = f.y;
			} else {
				x[j][0] = *(const float *)src;
			}
		}
		float *y = (float *)p.f.y + e0 + e;

		multiply_in_order<M, C>(p, x, [&](int row, float *sum) {
#pragma unroll
			for (int c = 0; c < C; c++)
				sum[c] = __fmul_rn(sum[c], p.f.factor);
			store_at<HZ_F32, C>((char *)(y + ((int64_t)row << k)), 0, sum);
		});
	}
}

/*
 * A row whose values fit the registers of a block, C columns a thread, while the next row is
 * loaded: 64 registers a thread and twice the row in shared memory, so that transforms (warp by
 * warp), the base matrix and loads overlap between the blocks of an SM.
 */
template <int M, int K, int C, typename P>
HZ_DEVICE void base_registers(const P &p)
{
	constexpr int N = M << K, THREADS = (1 << K) / C;
	const int lane = threadIdx.x % 32;
	char *memory = (char *)shared;
	float x[M][C];

	auto begin = [&](int64_t row, int buffer) {
		const float *src = (const float *)p.f.x + row * N;
		const uint32_t dst = shared_address(memory) + buffer * N * 4;

#pragma unroll 4
		for (int i = threadIdx.x * 4; i < N; i += THREADS * 4)
			cp_async(dst + swizzled<HZ_F32>(i), src + i);
	};

	int64_t row;
	const int iterations = tiles_of_block(p.s, &row);

	begin(row, 0);
	for (int iteration = 0; iteration < iterations; iteration++, row++) {
		char *own = memory + (iteration & 1 ? N * 4 : 0);

		cp_async_wait_all();
		__syncthreads();
		if (iteration + 1 < iterations)
			begin(row + 1, iteration & 1 ^ 1);
		for (int w = threadIdx.x / 32; w < N / 1024; w += THREADS / 32)
			transform_chunk(own + w * HZI_WARP_BYTES, lane, K);
		__syncthreads();
		const char *src = own + swizzled<HZ_F32>(threadIdx.x);

		/* The swizzle has a period of 256 elements. */
#pragma unroll
		for (int j = 0; j < M; j++) {
#pragma unroll
			for (int c = 0; c < C; c++)
				x[j][c] = *(const float *)(src + ((j << K) + c * THREADS) * 4);
		}
		if constexpr (C == 2) {
#pragma unroll
			for (int j = 0; j < M; j++) {
				const float a = x[j][0], b = x[j][1];

				x[j][0] = a + b;
				x[j][1] = a - b;
			}
		}
		float *y = (float *)p.f.y + row * N + threadIdx.x;

		multiply_in_order<M, C>(p, x, [&](int i, float *sum) {
#pragma unroll
			for (int c = 0; c < C; c++)
				y[(i << K) + c * THREADS] = __fmul_rn(sum[c], p.f.factor);
		});
	}
}

/*
 * The same for any base matrix, whose entries are in shared memory behind the row: a load of four
 * serves 16 multiply-adds of four adjacent columns. As operands in constant memory, more than its
 * cache of 2 KiB holds, they would be the limit. The next row is loaded as soon as this one is in
 * registers.
 */
template <int M, int K>
HZ_DEVICE void base_columns(const any_base<M> &p)
{
	constexpr int N = M << K, THREADS = (1 << K) / 4;
	const int lane = threadIdx.x % 32;
	char *memory = (char *)shared;
	const float4 *const signs = (const float4 *)(memory + N * 4);
	float x[M][4];
	int64_t row;
	const int iterations = tiles_of_block(p.s, &row);

	auto begin = [&] {
		const float *src = (const float *)p.f.x + row * N;

#pragma unroll 4
		for (int i = threadIdx.x * 4; i < N; i += THREADS * 4)
			cp_async(shared_address(memory) + swizzled<HZ_F32>(i), src + i);
	};

	begin();
	for (int i = threadIdx.x; i < M * M; i += THREADS)
		((float *)signs)[i] = p.sign[i];
	for (int iteration = 0; iteration < iterations; iteration++) {
		cp_async_wait_all();
		__syncthreads();
		for (int w = threadIdx.x / 32; w < N / 1024; w += THREADS / 32)
			transform_chunk(memory + w * HZI_WARP_BYTES, lane, K);
		__syncthreads();
#pragma unroll
		for (int j = 0; j < M; j++) {
			const float4 v = *(const float4 *)(memory + swizzled<HZ_F32>(
								    (j << K) + threadIdx.x * 4));

			x[j][0] = v.x, x[j][1] = v.y, x[j][2] = v.z, x[j][3] = v.w;
		}
		__syncthreads();

		float *const y = (float *)p.f.y + row * N + threadIdx.x * 4;

		row++;
		if (iteration + 1 < iterations)
			begin();
#pragma unroll 1
		for (int i = 0; i < M; i++) {
			float sum[4];

#pragma unroll
			for (int j = 0; j < M; j += 4) {
				const float4 v = signs[(i * M + j) / 4];
				const float sign[4] = {v.x, v.y, v.z, v.w};

#pragma unroll
				for (int e = 0; e < 4; e++) {
#pragma unroll
					for (int c = 0; c < 4; c++)
						sum[c] = j + e ? __fmaf_rn(x[j + e][c], sign[e],
									   sum[c]) :
								 __fmul_rn(x[0][c], sign[0]);
				}
			}
#pragma unroll
			for (int c = 0; c < 4; c++)
				sum[c] = __fmul_rn(sum[c], p.f.factor);
			*(float4 *)(y + (i << K)) = make_float4(sum[0], sum[1], sum[2], sum[3]);
		}
	}
}

/*
 * The same for a row of 2^11 columns that takes more than half of the shared memory, two columns a
 * thread. Shared memory is a ring of slots of 2^11 elements: as soon as the row is in registers,
 * the rest of the next row is loaded, and as much of the one after it as fits.
 */
#define RING_SLOTS 28

template <int M, typename P>
HZ_DEVICE void base_ring(const P &p)
{
	constexpr int K = 11, SLOT = 8192, AHEAD = RING_SLOTS - M, THREADS = 1024;
	const int lane = threadIdx.x % 32;
	char *memory = (char *)shared;
	const int own = swizzled<HZ_F32>(threadIdx.x);
	const int raw = swizzled<HZ_F32>(threadIdx.x * 4 % 2048);
	float x[M][2];
	int first = 0;			/* the slot where the row begins */

	auto slot = [&](int j) {
		const int s = first + j;

		return (s < RING_SLOTS ? s : s - RING_SLOTS) * SLOT;
	};
	/*
	 * Loads parts j0 .. j1 - 1 of a row whose first slot is `shift` after the current row's;
	 * each half of the block loads one part at a time.
	 */
	auto begin = [&](int64_t row, int j0, int j1, int shift) {
		const float *src = (const float *)p.f.x + row * (M << K) + threadIdx.x * 4;

#pragma unroll
		for (int j = j0; j < j1; j += 2) {
			const int i = j + (threadIdx.x >> 9);

			if (i < j1)
				cp_async(shared_address(memory) +
					 slot((shift + i) % RING_SLOTS) + raw,
				 src + j * 2048);
		}
		cp_async_commit();
	};

	static_assert(AHEAD % 2 == 0 && AHEAD <= M, "two parts at a time");
	int64_t row;
	const int iterations = tiles_of_block(p.s, &row);

	begin(row, 0, M, 0);
	if (iterations > 1)
		begin(row + 1, 0, AHEAD, M);
	else
		cp_async_commit();
	for (int iteration = 0; iteration < iterations; iteration++, row++) {
		cp_async_wait<1>();
		__syncthreads();
		for (int w = threadIdx.x / 32; w < 2 * M; w += THREADS / 32)
			transform_chunk(memory + slot(w >> 1) + (w & 1) * 4096, lane, K);
		__syncthreads();
#pragma unroll
		for (int j = 0; j < M; j++) {
			const char *src = memory + slot(j) + own;

			x[j][0] = *(const float *)src;
			x[j][1] = *(const float *)(src + 4096);
		}
		__syncthreads();
		first = first + M < RING_SLOTS ? first + M : first + M - RING_SLOTS;
		if (iteration + 1 < iterations)
			begin(row + 1, AHEAD, M, 0);
		else
			cp_async_commit();
		if (iteration + 2 < iterations)
			begin(row + 2, 0, AHEAD, M);
		else
			cp_async_commit();
#pragma unroll
		for (int j = 0; j < M; j++) {
			const float a = x[j][0], b = x[j][1];

			x[j][0] = a + b;
			x[j][1] = a - b;
		}
		float *y = (float *)p.f.y + row * (M << K) + threadIdx.x;

		multiply_in_order<M, 2>(p, x, [&](int i, float *sum) {
			y[i << K] = __fmul_rn(sum[0], p.f.factor);
			y[(i << K) + 1024] = __fmul_rn(sum[1], p.f.factor);
		});
	}
}

#define KERNEL(name, params, threads, blocks, ...) \
	extern "C" __global__ void __launch_bounds__(threads, blocks) \
	hadamard_base_f32_##name(const __grid_constant__ params p) \
	{ \
		pdl_wait(); \
		pdl_launch_dependents(); \
		__VA_ARGS__(p); \
	}
#define PALEY2(order, suffix, threads, blocks, ...) \
	KERNEL(m##order##suffix, hzi_hadamard_base_f32, threads, blocks, __VA_ARGS__)
#define ANY(order, suffix, threads, blocks, ...) \
	KERNEL(any_m##order##suffix, any_base<order>, threads, blocks, __VA_ARGS__)
#define BASE_F32(order, suffix, threads, blocks, ...) \
	PALEY2(order, suffix, threads, blocks, __VA_ARGS__) \
	ANY(order, suffix, threads, blocks, __VA_ARGS__)
BASE_F32(12, , 32 * HZI_BASE_F32_WARPS(12), 1, base_general<12>)
BASE_F32(12, _8, 256, 4, base_registers<12, 8, 1>)
BASE_F32(12, _9, 512, 2, base_registers<12, 9, 1>)
BASE_F32(12, _10, 1024, 1, base_registers<12, 10, 1>)
BASE_F32(12, _11, 1024, 1, base_registers<12, 11, 2>)
BASE_F32(20, , 32 * HZI_BASE_F32_WARPS(20), 1, base_general<20>)
BASE_F32(20, _8, 256, 4, base_registers<20, 8, 1>)
PALEY2(20, _9, 512, 2, base_registers<20, 9, 1>)
BASE_F32(20, _10, 1024, 1, base_registers<20, 10, 1>)
BASE_F32(20, _11, 1024, 1, base_ring<20>)
BASE_F32(28, , 32 * HZI_BASE_F32_WARPS(28), 1, base_general<28>)
PALEY2(28, _8, 256, 4, base_registers<28, 8, 1>)
PALEY2(28, _9, 512, 2, base_registers<28, 9, 1>)
PALEY2(28, _10, 1024, 1, base_registers<28, 10, 1>)
ANY(20, _9, 128, 4, base_columns<20, 9>)
ANY(28, _8, 64, 6, base_columns<28, 8>)
ANY(28, _9, 128, 3, base_columns<28, 9>)
ANY(28, _10, 256, 1, base_columns<28, 10>)
ANY(40, , 32 * HZI_BASE_F32_WARPS(40), 1, base_general<40>)
ANY(40, _7, 32, 8, base_columns<40, 7>)
ANY(40, _8, 64, 4, base_columns<40, 8>)
ANY(40, _9, 128, 2, base_columns<40, 9>)
ANY(40, _10, 256, 1, base_columns<40, 10>)
