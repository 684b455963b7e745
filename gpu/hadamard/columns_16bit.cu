/*
 * columns_16bit.cu - columns of 2^4 to 2^9 16-bit elements, contiguous along rows in x and in y
 *
 * SPDX-License-Identifier: BSD-2-Clause
 *
 * A slice is 8 columns, 16 bytes, of a vector's 2^K rows. A block copies several slices into shared
 * memory, in pieces of 128 bytes or more where slices are adjacent. A warp then transforms each
 * slice in place without another barrier: 16 rows by 8 columns are an operand of mma as they are,
 * so a product with H_16, with f32 accumulators, is the first four stages; the others are between
 * registers.
 *
 * Slices are adjacent in shared memory as in global memory, so that each 32-byte sector is
 * requested once. Within 128 bytes their order is XOR-swizzled by the row, so that no access
 * pattern has bank conflicts.
 */
#include "gpu/hadamard/hadamard.h"
#include "gpu/hadamard/contiguous.cuh"

/* The operands of two products, 32 rows, or without PAIR of one product, 16 rows */
template <bool PAIR>
HZ_DEVICE void load_rows(uint32_t *b, uint32_t src)
{
	if constexpr (PAIR)
		ldmatrix_x4_trans(b, src);
	else
		ldmatrix_x2_trans(b, src);
}

/* Transforms a slice in place by one warp. memory: the tile, whose rows have PITCH bytes */
template <int DTYPE, int K, int PITCH>
HZ_DEVICE void transform_slice(char *memory, int slice, float factor, int lane)
{
	constexpr int TILES = 1 << (K - 4), PAIR = TILES > 1;
	const int g = lane >> 2, q = lane & 3;
	/*
	 * Entry (i, j) of H_16 has the parity of i & j as its sign; rows from 8 on differ in one
	 * quadrant.
	 */
	const uint32_t odd = (((g >> 1) & q) ^ ((g >> 2) & (q >> 1))) & 1;
	const uint32_t h = (DTYPE == HZ_BF16 ? 0x3f803f80 : 0x3c003c00) ^ (odd ? 0x80008000 : 0) ^
			   (g & 1 ? 0x80000000 : 0);
	const uint32_t src = shared_address(memory) + lane * PITCH + ((slice ^ (lane & 7)) << 4);
	char *dst = memory + g * PITCH + ((slice ^ g) << 4) + q * 4;
	float v[4 * TILES];

#pragma unroll
	for (int i = 0; i < TILES; i += 1 + PAIR) {
		uint32_t b[4];

		load_rows<PAIR>(b, src + i * 16 * PITCH);
#pragma unroll
		for (int j = 0; j < 1 + PAIR; j++) {
			float *c = &v[4 * (i + j)];

			c[0] = c[1] = c[2] = c[3] = 0;
			mma_m16n8k16<DTYPE>(c, h, h, h, h ^ 0x80008000, b[2 * j], b[2 * j + 1]);
		}
	}
	stages<4 * TILES, 2, K - 2>(v, K - 4);
	__syncwarp();		/* all lanes have read */
#pragma unroll
	for (int i = 0; i < 2 * TILES; i++)
		*(uint32_t *)(dst + i * 8 * PITCH) = to_16x2<DTYPE>(
			__fmul_rn(v[2 * i], factor), __fmul_rn(v[2 * i + 1], factor));
}

template <int DTYPE, int K>
HZ_DEVICE void columns(const hzi_hadamard_rows &p)
{
	constexpr int SLICES = HZI_COLUMNS_SLICES(K), PITCH = 16 * SLICES;
	constexpr int THREADS = HZI_COLUMNS_THREADS(K);
	constexpr int STEP = THREADS / SLICES, TIMES = (1 << K) / STEP;	/* rows of a thread */
	const int t = threadIdx.x, row = t / SLICES;
	const uint32_t pieces = (uint32_t)(p.columns / 8);
	const uint32_t slice = blockIdx.x * SLICES + t % SLICES, vector = slice / pieces;
	const bool here = slice < p.job.vectors * pieces;
	const split s = split_vector(p, vector);
	const int64_t x_step = p.job.x_step * 2, y_step = p.job.y_step * 2;
	const int64_t column = (int64_t)(slice - vector * pieces) * 8;
	const char *x = (const char *)p.job.x + row * x_step +
			(s.hi * p.dim[0].x + s.lo * p.dim[1].x + column) * 2;
	char *y = (char *)p.job.y + row * y_step +
		  (s.hi * p.dim[0].y + s.lo * p.dim[1].y + column) * 2;
	char *memory = (char *)shared;
	/* This thread's piece of its i-th row */
	auto own = [&](int i) {
		return memory + (row + i * STEP) * PITCH +
		       ((t % SLICES ^ (row & 7) ^ (i * STEP & 7)) << 4);
	};

	if (here) {
#pragma unroll
		for (int i = 0; i < TIMES; i++, x += STEP * x_step)
			cp_async(shared_address(own(i)), x);
	}
	cp_async_wait_all();
	__syncthreads();
#pragma unroll 1
	for (int i = t / 32; i < SLICES; i += THREADS / 32)
		transform_slice<DTYPE, K, PITCH>(memory, i, p.job.factor, t % 32);
	__syncthreads();
	if (here) {
#pragma unroll
		for (int i = 0; i < TIMES; i++, y += STEP * y_step)
			*(uint4 *)y = *(const uint4 *)own(i);
	}
}

/* blocks: per SM */
#define COLUMNS(dtype, DTYPE, k, blocks) \
	extern "C" __global__ void __launch_bounds__(HZI_COLUMNS_THREADS(k), blocks) \
	hadamard_columns_##dtype##_##k(const __grid_constant__ hzi_hadamard_rows p) \
	{ \
		columns<DTYPE, k>(p); \
	}

COLUMNS(f16, HZ_F16, 4, 8)
COLUMNS(f16, HZ_F16, 5, 8)
COLUMNS(f16, HZ_F16, 6, 8)
COLUMNS(f16, HZ_F16, 7, 4)
COLUMNS(f16, HZ_F16, 8, 5)
COLUMNS(f16, HZ_F16, 9, 3)
COLUMNS(bf16, HZ_BF16, 4, 8)
COLUMNS(bf16, HZ_BF16, 5, 8)
COLUMNS(bf16, HZ_BF16, 6, 8)
COLUMNS(bf16, HZ_BF16, 7, 4)
COLUMNS(bf16, HZ_BF16, 8, 5)
COLUMNS(bf16, HZ_BF16, 9, 3)
