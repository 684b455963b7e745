/*
 * contiguous.cu - rows of one dtype back to back: the kernels that run at the rate of memory
 *
 * SPDX-License-Identifier: BSD-2-Clause
 *
 * Up to 2^13 a warp owns 1024 elements, 32 values a thread, and starts once: blocks that come and
 * go in order copy 10 % faster on Hopper than blocks that stay and stride. Registers: 32 values, 16
 * of raw data, 8 of H_32; 64 in all let a multiprocessor hold 32 warps.
 *
 * Longer rows of 16 bits leave no room for so many blocks that some load while others compute. A
 * thread has 64 values there, so that fewer stages are left for fewer and wider accesses to shared
 * memory, and loads the next row while it computes.
 */
#include "gpu/hadamard/contiguous.cuh"
#include "gpu/device/cluster.cuh"

/* ---- 16 bits --------------------------------------------------------------------------------- */

/* Lengths 32 to 1024: a warp is a block. */
template <int DTYPE, bool SIGNS>
HZ_DEVICE void fast_short(const hzi_hadamard_contiguous &p)
{
	const int lane = threadIdx.x % 32, g = lane >> 2, q = lane & 3;
	const int64_t e0 = ((int64_t)blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32) * 1024;
	const bool whole = e0 + 1024 <= p.total;
	float v[32];
	uint4 w[4];

	if (e0 >= p.total)
		return;
	fast_load(w, p, e0, lane);
	fast_first<DTYPE, SIGNS>(v, w, p, e0, lane);
	fast_second(v, p.k - 5, lane);
	auto element = [&](int c) {
		return e0 + (c | q << 3) * 32 + 4 * g;
	};
	fast_finish<4, SIGNS>(v, p, element);
	char *y = result_at<DTYPE>(p, element(0));

#pragma unroll
	for (int c = 0; c < 8; c++) {
		if (whole || element(c) < p.total)
			fast_store<DTYPE, 4>(y, 32 * c, &v[4 * c]);
	}
}

/* Lengths 2048 to 8192: a row is a block. Up to 4 warps shuffles are no slower than products. */
template <int DTYPE, int WARPS, bool SIGNS>
HZ_DEVICE void fast_long(const hzi_hadamard_contiguous &p)
{
	const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
	const int64_t e0 = (int64_t)blockIdx.x * (1024 * WARPS);
	char *memory = (char *)shared;
	float v[32];
	uint4 w[4];

	fast_load_whole(w, p, e0 + warp * 1024, lane);
	fast_first<DTYPE, SIGNS>(v, w, p, e0 + warp * 1024, lane);
	if (WARPS > 4)
		fast_second_mma(v, lane);
	else
		fast_second(v, 5, lane);
	fast_put<DTYPE>(v, memory + warp * HZI_WARP_BYTES, lane);
	__syncthreads();
	fast_last<DTYPE, WARPS, SIGNS>(v, p, e0, memory, threadIdx.x);
}

/*
 * Lengths 16384 and 32768, 2048 elements a warp. TURNS: rows that a block does one after the other,
 * unless there are as many blocks as rows, or 0: it stays to the end and strides. On an H200, in
 * ratio to a copy: 16384 in 2 turns 0.93, alone 0.89, staying 0.89; 32768 in 8 turns 0.87, staying
 * 0.90.
 */
template <int DTYPE, int WARPS, int TURNS, bool SIGNS>
HZ_DEVICE void fast_longer(const hzi_hadamard_contiguous &p)
{
	constexpr int TILE = 2048 * WARPS;
	const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
	const int64_t rows = p.total / TILE, step = TURNS ? 1 : gridDim.x;
	const int turns = TURNS && gridDim.x < rows ? TURNS : 1;
	const int64_t first = blockIdx.x * (int64_t)turns;
	const int64_t end = TURNS && first + turns < rows ? first + turns : rows;
	char *memory = (char *)shared, *own = memory + warp * 2 * HZI_WARP_BYTES;
	float v[64];
	uint4 w[8];
	auto begin = [&](int64_t row) {
		fast_load_whole(w, p, row * TILE + warp * 2048, lane);
		fast_load_whole(w + 4, p, row * TILE + warp * 2048 + 1024, lane);
	};

	begin(first);
#pragma unroll 1
	for (int64_t row = first; row < end; row += step) {
		fast_first<DTYPE, SIGNS>(v, w, p, warp * 2048, lane);
		fast_first<DTYPE, SIGNS>(v + 32, w + 4, p, warp * 2048 + 1024, lane);
		if (row + step < end)
			begin(row + step);
		fast_second_mma(v, lane);
		fast_second_mma(v + 32, lane);
		stage<64, 5>(v);
		__syncthreads();	/* all have read the row before */
		fast_put<DTYPE>(v, own, lane);
		fast_put<DTYPE>(v + 32, own + HZI_WARP_BYTES, lane);
		__syncthreads();
		fast_last<DTYPE, WARPS, SIGNS, 64>(v, p, row * TILE, memory, threadIdx.x);
	}
}

/*
 * Length 65536: a row's raw data are in shared memory, its values would not fit. Each half of the
 * results begins with the sum or the difference of the row's halves, which comes with the first
 * products, and is exchanged in two turns. The last products free the raw data for those of the
 * next row, each thread its own part.
 */
template <int DTYPE, bool SIGNS>
HZ_DEVICE void fast_longest(const hzi_hadamard_contiguous &p)
{
	constexpr int WARPS = 16, THREADS = 32 * WARPS, HALF = 32768;
	const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, t = threadIdx.x;
	const int64_t rows = p.total / (2 * HALF);
	const uint32_t h0 = fast_entry<DTYPE>(lane);
	char *memory = (char *)shared;
	uint4 *raw = (uint4 *)(memory + WARPS * HZI_WARP_BYTES) + t;
	float v[64];
	auto begin = [&](int64_t row) {
		const uint16_t *x = (const uint16_t *)p.x + row * (2 * HALF) + warp * 2048 +
				    chunk_of(0, lane >> 2) * 32 + 8 * (lane & 3);

#pragma unroll
		for (int i = 0; i < 16; i++)
			cp_async(shared_address(raw + i * THREADS),
				 x + i / 8 * HALF + i / 4 % 2 * 1024 + i % 4 * 64);
	};

	begin(blockIdx.x);
#pragma unroll 1
	for (int64_t row = blockIdx.x; row < rows; row += gridDim.x) {
		cp_async_wait_all();
#pragma unroll 1
		for (int half = 0; half < 2; half++) {
			const int64_t e0 = row * (2 * HALF) + half * HALF;

#pragma unroll
			for (int i = 0; i < 64; i++)
				v[i] = 0;
#pragma unroll
			for (int i = 0; i < 16; i++) {
				const int place = i / 8 * HALF + warp * 2048 + i / 4 % 2 * 1024;
				const uint32_t minus = i / 8 & half ? 0x80008000 : 0;
				uint4 w = raw[i * THREADS];

				if (SIGNS && p.pre)
					fast_signs(w, p, place, i % 4, lane);
				fast_product<DTYPE>(&v[i % 8 * 8], w, h0 ^ minus, lane);
			}
			if (half && row + gridDim.x < rows)
				begin(row + gridDim.x);
			fast_second_mma(v, lane);
			fast_second_mma(v + 32, lane);
			stage<64, 5>(v);
#pragma unroll
			for (int turn = 0; turn < 2; turn++) {
				float *u = v + 32 * turn;

				__syncthreads();	/* all have read what was there before */
				fast_put<DTYPE>(u, memory + warp * HZI_WARP_BYTES, lane);
				__syncthreads();
				fast_last<DTYPE, WARPS, SIGNS, 32, 2048>(u, p, e0 + turn * 1024,
									 memory, t);
			}
		}
	}
}

/* ---- f32 ------------------------------------------------------------------------------------- */

template <bool SIGNS>
HZ_DEVICE void fast_f32_short(const hzi_hadamard_contiguous &p)
{
	const int lane = threadIdx.x;
	const int64_t e0 = (int64_t)blockIdx.x * 1024;
	float v[32];

	fast_f32<SIGNS>(v, p, e0, (char *)shared, lane, 10);
	auto element = [&](int i) {
		return e0 + 32 * i + lane;
	};
	fast_finish<1, SIGNS>(v, p, element);
	char *y = result_at<HZ_F32>(p, element(0));

#pragma unroll
	for (int i = 0; i < 32; i++)
		fast_store<HZ_F32, 1>(y, 32 * i, &v[i]);
}

/*
 * Rows of 2^9 elements and less: a warp has 128 C of them, a thread four successive ones of each
 * 128, and no shared memory. A block has 2 KiB. On an H200, rows of 128, in ratio to a copy: 2 KiB
 * 1.008, 8 KiB 0.99, a thread's 32 values through shared memory 0.993.
 */
template <int C, bool SIGNS>
HZ_DEVICE void fast_f32_lanes(const hzi_hadamard_contiguous &p)
{
	const int lane = threadIdx.x % 32;
	const int64_t e0 = ((int64_t)blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32) *
			   (128 * C) + 4 * lane;
	const float *x = (const float *)p.x + e0;
	const bool there = e0 < p.total;	/* and so is all of the row */
	float v[4 * C] = {};

	if (there) {
#pragma unroll
		for (int c = 0; c < C; c++)
			load_piece<4>(&v[4 * c], (const char *)(x + 128 * c));
	}
	auto element = [&](int i) {
		return e0 + 128 * i;
	};
	if (SIGNS && p.pre)
		fast_flip<4, 4 * C>(v, p.pre, [&](int i) { return (int)(element(i) & p.mask); });
	stages<4 * C, 0, 2>(v, 2);
#pragma unroll
	for (int bit = 2; bit < 7; bit++) {
		if (bit < p.k)
			lane_stage<4 * C>(v, lane, 1 << (bit - 2));
	}
	stages<4 * C, 2, C == 4 ? 4 : C == 2 ? 3 : 2>(v, p.k - 7);
	fast_finish<4, SIGNS, 4 * C>(v, p, element);
	if (there) {
#pragma unroll
		for (int c = 0; c < C; c++)
			fast_store<HZ_F32, 4>(result_at<HZ_F32>(p, e0), 128 * c, &v[4 * c]);
	}
}

template <int WARPS, bool SIGNS>
HZ_DEVICE void fast_f32_long(const hzi_hadamard_contiguous &p)
{
	const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
	const int64_t e0 = (int64_t)blockIdx.x * (1024 * WARPS);
	char *memory = (char *)shared, *own = memory + warp * HZI_WARP_BYTES;
	float v[32];

	fast_f32<SIGNS>(v, p, e0 + warp * 1024, own, lane, 10);
	store_columns(v, own, lane);
	__syncthreads();
	fast_last<HZ_F32, WARPS, SIGNS>(v, p, e0, memory, threadIdx.x);
}

/*
 * Length 65536: a cluster of 8 blocks, each with 8192 elements, as above but for the last three
 * stages. For these a block takes an eighth of the places of all blocks, 4 elements a thread of
 * each.
 */
template <bool SIGNS>
HZ_DEVICE void fast_f32_longest(const hzi_hadamard_contiguous &p)
{
	constexpr int WARPS = 8, TILE = 1024 * WARPS, BLOCKS = 65536 / TILE;
	const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, rank = blockIdx.x % BLOCKS;
	const int64_t e0 = (int64_t)blockIdx.x * TILE;
	const int place = rank * (TILE / BLOCKS) + threadIdx.x * 4;
	char *memory = (char *)shared, *own = memory + warp * HZI_WARP_BYTES;
	char *piece = memory + place_of<HZ_F32>(threadIdx.x * 4);
	const uint32_t from = shared_address(memory + place_of<HZ_F32>(place));
	float v[32];

	fast_f32<SIGNS>(v, p, e0 + warp * 1024, own, lane, 10);
	store_columns(v, own, lane);
	__syncthreads();
#pragma unroll
	for (int w = 0; w < WARPS; w++)
		load_piece<4>(&v[4 * w], piece + w * HZI_WARP_BYTES);
	stages<32, 2, 5>(v, 3);
#pragma unroll
	for (int w = 0; w < WARPS; w++)
		store_piece<4>(piece + w * HZI_WARP_BYTES, &v[4 * w]);
	__syncthreads();
	if (warp == 0)
		cluster_arrive();
	else
		cluster_arrive_relaxed();
	cluster_wait();
#pragma unroll
	for (int b = 0; b < BLOCKS; b++) {
		const float4 f = cluster_load4(cluster_map(from, b));

		v[4 * b] = f.x;
		v[4 * b + 1] = f.y;
		v[4 * b + 2] = f.z;
		v[4 * b + 3] = f.w;
	}
	stages<32, 2, 5>(v, 3);
	const int64_t first = (int64_t)(blockIdx.x / BLOCKS) * 65536 + place;

	fast_finish<4, SIGNS>(v, p, [&](int i) {
		return first + i * TILE;
	});
	char *y = result_at<HZ_F32>(p, first);

#pragma unroll
	for (int b = 0; b < BLOCKS; b++)
		fast_store<HZ_F32, 4>(y, b * TILE, &v[4 * b]);
	/* What was read has come, for it is stored: no block goes before. */
	cluster_arrive_relaxed();
	cluster_wait();
}

/* ---- Kernels --------------------------------------------------------------------------------- */

#define KERNEL(name, ...) \
	hadamard_contiguous_##name(const __grid_constant__ hzi_hadamard_contiguous p) \
	{ \
		__VA_ARGS__(p); \
	}
#define BOUNDS(...) extern "C" __global__ void __launch_bounds__(__VA_ARGS__)

/* A kernel for rows without signs and one with them, whose last template parameter is SIGNS */
#define CONTIGUOUS(name, threads, blocks, function, ...) \
	BOUNDS(threads, HZ_BLOCKS(threads, blocks)) \
	KERNEL(name, function<__VA_ARGS__ __VA_OPT__(,) false>) \
	BOUNDS(threads, 1) KERNEL(name##_signs, function<__VA_ARGS__ __VA_OPT__(,) true>)

#define CONTIGUOUS_16BIT(name, DTYPE) \
	CONTIGUOUS(name##_10, 32, 32, fast_short, DTYPE) \
	CONTIGUOUS(name##_11, 64, 16, fast_long, DTYPE, 2) \
	CONTIGUOUS(name##_12, 128, 8, fast_long, DTYPE, 4) \
	CONTIGUOUS(name##_13, 256, 4, fast_long, DTYPE, 8) \
	CONTIGUOUS(name##_14, 256, 2, fast_longer, DTYPE, 8, HZI_BLOCK_ROWS) \
	CONTIGUOUS(name##_15, 512, 1, fast_longer, DTYPE, 16, 0) \
	CONTIGUOUS(name##_16, 512, 1, fast_longest, DTYPE)

CONTIGUOUS_16BIT(f16, HZ_F16)
CONTIGUOUS_16BIT(bf16, HZ_BF16)
CONTIGUOUS(f32_7, 128, 16, fast_f32_lanes, 1)
CONTIGUOUS(f32_8, 64, 32, fast_f32_lanes, 2)
CONTIGUOUS(f32_9, 32, 32, fast_f32_lanes, 4)
CONTIGUOUS(f32_10, 32, 24, fast_f32_short)
CONTIGUOUS(f32_11, 64, 12, fast_f32_long, 2)
CONTIGUOUS(f32_12, 128, 6, fast_f32_long, 4)
CONTIGUOUS(f32_13, 256, 4, fast_f32_long, 8)
CONTIGUOUS(f32_14, 512, 2, fast_f32_long, 16)
CONTIGUOUS(f32_15, 1024, 1, fast_f32_long, 32)
CONTIGUOUS(f32_16, 256, 4, fast_f32_longest)
