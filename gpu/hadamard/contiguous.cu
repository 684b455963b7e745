/*
 * contiguous.cu - contiguous rows of one dtype, at memory bandwidth
 *
 * SPDX-License-Identifier: BSD-2-Clause
 *
 * Up to 2^13 a warp has 1024 elements, 32 values a thread, and blocks are not persistent: blocks
 * that are started in order copy 10 % faster on Hopper than persistent blocks that stride.
 * Registers: 32 values, 16 of raw data, 8 of H_32; with 64 in all an SM holds 32 warps.
 *
 * Longer 16-bit rows leave too few blocks per SM for some to load while others compute. A thread
 * has 64 values there, so that fewer stages remain that need shared memory, and those use wider
 * accesses; it loads the next row while it computes.
 */
#include "gpu/device/pdl.cuh"
#include "gpu/hadamard/contiguous.cuh"
#include "gpu/device/cluster.cuh"

/* ---- 16 bits --------------------------------------------------------------------------------- */

/* Rows of 32 to 1024 elements: a warp is a block. */
template <int DTYPE, bool SIGNS>
HZ_DEVICE void rows_of_warp(const hzi_hadamard_contiguous &p)
{
	const int lane = threadIdx.x % 32, g = lane >> 2, q = lane & 3;
	const int64_t e0 = ((int64_t)blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32) * 1024;
	const bool whole = e0 + 1024 <= p.total;
	float v[32];
	uint4 w[4];

	if (e0 >= p.total)
		return;
	load_tile(w, p, e0, lane);
	first_stages<DTYPE, SIGNS>(v, w, p, e0, lane);
	second_stages(v, p.k - 5, lane);
	auto element = [&](int c) {
		return e0 + (c | q << 3) * 32 + 4 * g;
	};
	scale_and_flip<4, SIGNS>(v, p, element);
	char *y = y_at<DTYPE>(p, element(0));

#pragma unroll
	for (int c = 0; c < 8; c++) {
		if (whole || element(c) < p.total)
			store_at<DTYPE, 4>(y, 32 * c, &v[4 * c]);
	}
}

/*
 * Rows of 2048 to 8192 elements: a row is a block. Up to 4 warps, shuffles are no slower than mma.
 */
template <int DTYPE, int WARPS, bool SIGNS>
HZ_DEVICE void row_of_block(const hzi_hadamard_contiguous &p)
{
	const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
	const int64_t e0 = (int64_t)blockIdx.x * (1024 * WARPS);
	char *memory = (char *)shared;
	float v[32];
	uint4 w[4];

	load_full_tile(w, p, e0 + warp * 1024, lane);
	first_stages<DTYPE, SIGNS>(v, w, p, e0 + warp * 1024, lane);
	if (WARPS > 4)
		second_stages_mma(v, lane);
	else
		second_stages(v, 5, lane);
	store_tile<DTYPE>(v, memory + warp * HZI_WARP_BYTES, lane);
	__syncthreads();
	last_stages<DTYPE, WARPS, SIGNS>(v, p, e0, memory, threadIdx.x);
}

/*
 * Rows of 16384 and 32768 elements, 2048 a warp. BLOCK_ROWS: rows of a block, one after the other,
 * unless there are as many blocks as rows; 0: persistent blocks stride through all rows. Throughput
 * on an H200 relative to a copy: 16384, two rows 0.93, one 0.89, persistent 0.89; 32768, 8 rows
 * 0.87, persistent 0.90.
 */
template <int DTYPE, int WARPS, int BLOCK_ROWS, bool SIGNS>
HZ_DEVICE void rows_pipelined(const hzi_hadamard_contiguous &p)
{
	constexpr int TILE = 2048 * WARPS;
	const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
	const int64_t rows = p.total / TILE, step = BLOCK_ROWS ? 1 : gridDim.x;
	const int block_rows = BLOCK_ROWS && gridDim.x < rows ? BLOCK_ROWS : 1;
	const int64_t first = blockIdx.x * (int64_t)block_rows;
	const int64_t end = BLOCK_ROWS && first + block_rows < rows ? first + block_rows : rows;
	char *memory = (char *)shared, *own = memory + warp * 2 * HZI_WARP_BYTES;
	float v[64];
	uint4 w[8];
	auto begin = [&](int64_t row) {
		load_full_tile(w, p, row * TILE + warp * 2048, lane);
		load_full_tile(w + 4, p, row * TILE + warp * 2048 + 1024, lane);
	};

	begin(first);
#pragma unroll 1
	for (int64_t row = first; row < end; row += step) {
		first_stages<DTYPE, SIGNS>(v, w, p, warp * 2048, lane);
		first_stages<DTYPE, SIGNS>(v + 32, w + 4, p, warp * 2048 + 1024, lane);
		if (row + step < end)
			begin(row + step);
		second_stages_mma(v, lane);
		second_stages_mma(v + 32, lane);
		stage<64, 5>(v);
		__syncthreads();	/* all have read the previous row */
		store_tile<DTYPE>(v, own, lane);
		store_tile<DTYPE>(v + 32, own + HZI_WARP_BYTES, lane);
		__syncthreads();
		last_stages<DTYPE, WARPS, SIGNS, 64>(v, p, row * TILE, memory, threadIdx.x);
	}
}

/*
 * Rows of 65536 elements. Raw data are in shared memory, as a row's values would not fit. Each half
 * of the results begins with the sum or the difference of the row's halves, which the first
 * products compute, and is exchanged in two rounds. After the last products each thread loads its
 * own part of the next row over the raw data.
 */
template <int DTYPE, bool SIGNS>
HZ_DEVICE void rows_2_16(const hzi_hadamard_contiguous &p)
{
	constexpr int WARPS = 16, THREADS = 32 * WARPS, HALF = 32768;
	const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, t = threadIdx.x;
	const int64_t rows = p.total / (2 * HALF);
	const uint32_t h0 = h32_entry<DTYPE>(lane);
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
				const int index = i / 8 * HALF + warp * 2048 + i / 4 % 2 * 1024;
				const uint32_t minus = i / 8 & half ? 0x80008000 : 0;
				uint4 w = raw[i * THREADS];

				if (SIGNS && p.pre)
					flip_part(w, p, index, i % 4, lane);
				multiply_h32<DTYPE>(&v[i % 8 * 8], w, h0 ^ minus, lane);
			}
			if (half && row + gridDim.x < rows)
				begin(row + gridDim.x);
			second_stages_mma(v, lane);
			second_stages_mma(v + 32, lane);
			stage<64, 5>(v);
#pragma unroll
			for (int round = 0; round < 2; round++) {
				float *u = v + 32 * round;

				__syncthreads();	/* all have read the previous round */
				store_tile<DTYPE>(u, memory + warp * HZI_WARP_BYTES, lane);
				__syncthreads();
				last_stages<DTYPE, WARPS, SIGNS, 32, 2048>(u, p, e0 + round * 1024,
									   memory, t);
			}
		}
	}
}

/* ---- f32 and short 16-bit calls -------------------------------------------------------------- */

/* Elements e to e + 3 of x */
template <int DTYPE>
HZ_DEVICE void load_4(float *v, const hzi_hadamard_contiguous &p, int64_t e)
{
	if constexpr (DTYPE == HZ_F32) {
		load_piece<4>(v, (const float *)p.x + e);
	} else {
		const uint2 w = *(const uint2 *)((const uint16_t *)p.x + e);

		v[0] = DTYPE == HZ_F16 ? f16_low(w.x) : bf16_low(w.x);
		v[1] = DTYPE == HZ_F16 ? f16_high(w.x) : bf16_high(w.x);
		v[2] = DTYPE == HZ_F16 ? f16_low(w.y) : bf16_low(w.y);
		v[3] = DTYPE == HZ_F16 ? f16_high(w.y) : bf16_high(w.y);
	}
}

template <bool SIGNS>
HZ_DEVICE void f32_rows_of_warp(const hzi_hadamard_contiguous &p)
{
	const int lane = threadIdx.x;
	const int64_t e0 = (int64_t)blockIdx.x * 1024;
	float v[32];

	stages_f32<SIGNS>(v, p, e0, (char *)shared, lane, 10);
	auto element = [&](int i) {
		return e0 + 32 * i + lane;
	};
	scale_and_flip<1, SIGNS>(v, p, element);
	char *y = y_at<HZ_F32>(p, element(0));

#pragma unroll
	for (int i = 0; i < 32; i++)
		store_at<HZ_F32, 1>(y, 32 * i, &v[i]);
}

/*
 * Rows of up to 2^9 elements, without shared memory: a warp has 128 C elements, a thread four
 * successive ones of each 128. A block has 512. Throughput on an H200 relative to a copy, f32 rows
 * of 128: blocks of 2 KiB 1.008, of 8 KiB 0.99; with a thread's 32 values through shared memory
 * 0.993. A few 16-bit rows take 0.97 us where products on tensor cores take 1.37 (256 elements).
 */
template <int DTYPE, int C, bool SIGNS>
HZ_DEVICE void rows_in_registers(const hzi_hadamard_contiguous &p)
{
	const int lane = threadIdx.x % 32;
	const int64_t e0 = ((int64_t)blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32) *
			   (128 * C) + 4 * lane;
	const bool there = e0 < p.total;	/* and the whole row exists */
	float v[4 * C] = {};

	if (there) {
#pragma unroll
		for (int c = 0; c < C; c++)
			load_4<DTYPE>(&v[4 * c], p, e0 + 128 * c);
	}
	auto element = [&](int i) {
		return e0 + 128 * i;
	};
	if (SIGNS && p.pre)
		flip_values<4, 4 * C>(v, p.pre, [&](int i) { return (int)(element(i) & p.mask); });
	stages<4 * C, 0, 2>(v, 2);
#pragma unroll
	for (int bit = 2; bit < 7; bit++) {
		if (bit < p.k)
			lane_stage<4 * C>(v, lane, 1 << (bit - 2));
	}
	stages<4 * C, 2, C == 4 ? 4 : C == 2 ? 3 : 2>(v, p.k - 7);
	scale_and_flip<4, SIGNS, 4 * C>(v, p, element);
	if (there) {
#pragma unroll
		for (int c = 0; c < C; c++)
			store_at<DTYPE, 4>(y_at<DTYPE>(p, e0), 128 * c, &v[4 * c]);
	}
}

template <int WARPS, bool SIGNS>
HZ_DEVICE void f32_row_of_block(const hzi_hadamard_contiguous &p)
{
	const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
	const int64_t e0 = (int64_t)blockIdx.x * (1024 * WARPS);
	char *memory = (char *)shared, *own = memory + warp * HZI_WARP_BYTES;
	float v[32];

	stages_f32<SIGNS>(v, p, e0 + warp * 1024, own, lane, 10);
	store_columns(v, own, lane);
	__syncthreads();
	last_stages<HZ_F32, WARPS, SIGNS>(v, p, e0, memory, threadIdx.x);
}

/*
 * Rows of 65536 elements: each block of a cluster of 8 has 8192 elements. As above, but for the
 * last three stages: for these a block takes the same eighth of the elements of all blocks, 4
 * elements a thread of each block.
 */
template <bool SIGNS>
HZ_DEVICE void f32_row_of_cluster(const hzi_hadamard_contiguous &p)
{
	constexpr int WARPS = 8, TILE = 1024 * WARPS, BLOCKS = 65536 / TILE;
	const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, rank = blockIdx.x % BLOCKS;
	const int64_t e0 = (int64_t)blockIdx.x * TILE;
	const int index = rank * (TILE / BLOCKS) + threadIdx.x * 4;
	char *memory = (char *)shared, *own = memory + warp * HZI_WARP_BYTES;
	char *piece = memory + swizzled<HZ_F32>(threadIdx.x * 4);
	const uint32_t src = shared_address(memory + swizzled<HZ_F32>(index));
	float v[32];

	stages_f32<SIGNS>(v, p, e0 + warp * 1024, own, lane, 10);
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
		const float4 f = cluster_load4(cluster_map(src, b));

		v[4 * b] = f.x;
		v[4 * b + 1] = f.y;
		v[4 * b + 2] = f.z;
		v[4 * b + 3] = f.w;
	}
	stages<32, 2, 5>(v, 3);
	const int64_t first = (int64_t)(blockIdx.x / BLOCKS) * 65536 + index;

	scale_and_flip<4, SIGNS>(v, p, [&](int i) {
		return first + i * TILE;
	});
	char *y = y_at<HZ_F32>(p, first);

#pragma unroll
	for (int b = 0; b < BLOCKS; b++)
		store_at<HZ_F32, 4>(y, b * TILE, &v[4 * b]);
	/*
	 * All remote reads are done, as their results are stored: no block exits while others read
	 * it.
	 */
	cluster_arrive_relaxed();
	cluster_wait();
}

/* ---- Kernels --------------------------------------------------------------------------------- */

#define KERNEL(name, ...) \
	hadamard_contiguous_##name(const __grid_constant__ hzi_hadamard_contiguous p) \
	{ \
		__VA_ARGS__(p); \
	}
/* With signs, as rotations in front of a product have them: launched early */
#define KERNEL_SIGNS(name, ...) \
	hadamard_contiguous_##name(const __grid_constant__ hzi_hadamard_contiguous p) \
	{ \
		pdl_wait(); \
		pdl_launch_dependents(); \
		__VA_ARGS__(p); \
	}
#define BOUNDS(...) extern "C" __global__ void __launch_bounds__(__VA_ARGS__)

/* A kernel for rows without signs and one with them, whose last template parameter is SIGNS */
#define CONTIGUOUS(name, threads, blocks, function, ...) \
	BOUNDS(threads, HZ_BLOCKS(threads, blocks)) \
	KERNEL(name, function<__VA_ARGS__ __VA_OPT__(,) false>) \
	BOUNDS(threads, 1) KERNEL_SIGNS(name##_signs, function<__VA_ARGS__ __VA_OPT__(,) true>)

#define CONTIGUOUS_16BIT(name, DTYPE) \
	CONTIGUOUS(name##_10, 32, 32, rows_of_warp, DTYPE) \
	CONTIGUOUS(name##_11, 64, 16, row_of_block, DTYPE, 2) \
	CONTIGUOUS(name##_12, 128, 8, row_of_block, DTYPE, 4) \
	CONTIGUOUS(name##_13, 256, 4, row_of_block, DTYPE, 8) \
	CONTIGUOUS(name##_14, 256, 2, rows_pipelined, DTYPE, 8, HZI_BLOCK_ROWS) \
	CONTIGUOUS(name##_15, 512, 1, rows_pipelined, DTYPE, 16, 0) \
	CONTIGUOUS(name##_16, 512, 1, rows_2_16, DTYPE)

CONTIGUOUS_16BIT(f16, HZ_F16)
CONTIGUOUS_16BIT(bf16, HZ_BF16)

/* Short calls, launched early, with signs and without */
#define SHORT(name, threads, ...) \
	BOUNDS(threads, 1) KERNEL_SIGNS(name, rows_in_registers<__VA_ARGS__, true>)

SHORT(short_f16_7, 128, HZ_F16, 1)
SHORT(short_f16_8, 64, HZ_F16, 2)
SHORT(short_f16_9, 32, HZ_F16, 4)
SHORT(short_bf16_7, 128, HZ_BF16, 1)
SHORT(short_bf16_8, 64, HZ_BF16, 2)
SHORT(short_bf16_9, 32, HZ_BF16, 4)

CONTIGUOUS(f32_7, 128, 16, rows_in_registers, HZ_F32, 1)
CONTIGUOUS(f32_8, 64, 32, rows_in_registers, HZ_F32, 2)
CONTIGUOUS(f32_9, 32, 32, rows_in_registers, HZ_F32, 4)
CONTIGUOUS(f32_10, 32, 24, f32_rows_of_warp)
CONTIGUOUS(f32_11, 64, 12, f32_row_of_block, 2)
CONTIGUOUS(f32_12, 128, 6, f32_row_of_block, 4)
CONTIGUOUS(f32_13, 256, 4, f32_row_of_block, 8)
CONTIGUOUS(f32_14, 512, 2, f32_row_of_block, 16)
CONTIGUOUS(f32_15, 1024, 1, f32_row_of_block, 32)
CONTIGUOUS(f32_16, 256, 4, f32_row_of_cluster)
