/*
 * base_mma_any.cu - contiguous 16-bit rows of m 2^k elements, m = 36, 40, 44, 52 or 60
 *
 * SPDX-License-Identifier: BSD-2-Clause
 *
 * As in base_mma.cuh a row is a matrix X of 2^d m rows and 2^(k - d) columns, d <= 1, whose product
 * with B (x) S_2^d comes first. X is padded by rows of zeros to ROWS, a multiple of 16, so a kernel
 * serves several orders. Each warp holds its 64 columns of X in registers and multiplies 16 rows of
 * the matrix at a time; an exchange through shared memory follows. The next X arrives meanwhile.
 */
#include "gpu/device/pdl.cuh"
#include "gpu/hadamard/base_mma.cuh"

/*
 * The sign words of a row of B (x) S_2^d, four in shared memory: of columns 2 c and 2 c + 1 bits
 * c % 16 and 16 + c % 16 of word c / 16. D is 2^d - 1.
 */
template <int ROWS, int D>
HZ_DEVICE void store_signs(const hzi_hadamard_base_mma_any &p, uint32_t *dst)
{
	for (int i = threadIdx.x; i < ROWS * 4; i += blockDim.x) {
		const int row = i / 4;

		dst[i] = row < p.m << D ? p.sign[row >> D][i % 4] ^ (row & D ? 0xffff0000 : 0) : 0;
	}
}

/*
 * BUFFERS: of 16 rows of results in the exchange. With two of them a warp that has finished 16 rows
 * need not wait for the others before it stores the next 16.
 */
template <int DTYPE, int ROWS, int D, int WARPS, int BUFFERS>
HZ_DEVICE void padded_columns(const hzi_hadamard_base_mma_any &p)
{
	constexpr int COLUMNS = 64 * WARPS, PITCH = 2 * COLUMNS, THREADS = 32 * WARPS;
	constexpr int TILES = ROWS / 16, EXCHANGE = 16 * 2 * PITCH;
	constexpr uint32_t ONE = DTYPE == HZ_BF16 ? 0x3f803f80 : 0x3c003c00;
	const int lane = threadIdx.x % 32, w = threadIdx.x / 32, q = lane & 3;
	const int rows = p.m << D, pieces = rows * (COLUMNS / 8);
	const uint32_t memory = shared_address(shared);
	char *const exchange = (char *)shared + ROWS * PITCH;
	uint32_t *const signs = (uint32_t *)(exchange + BUFFERS * EXCHANGE);
	const store_16bit<DTYPE> out(p);
	int64_t row;
	const int iterations = tiles_of_block(p.s, &row);
	uint32_t at[4], x[TILES][4][4];
	int slot = 0;

	auto load = [&] {
		const uint4 *const src = (const uint4 *)p.x + row * pieces;

#pragma unroll 4
		for (int i = threadIdx.x; i < pieces; i += THREADS)
			cp_async(memory + (i ^ (i / (COLUMNS / 8) & 7)) * 16, src + i);
	};

	load();
	store_signs<ROWS, D>(p, signs);
	for (int i = pieces + threadIdx.x; i < ROWS * (COLUMNS / 8); i += THREADS)
		((uint4 *)shared)[i] = {};
	ldmatrix_addresses<PITCH>(at, memory + w * 128, lane);
	for (int iteration = 0; iteration < iterations; iteration++) {
		uint4 *const y = out.y + row * pieces;

		cp_async_wait_all();
		__syncthreads();
#pragma unroll
		for (int l = 0; l < TILES; l++) {
#pragma unroll
			for (int n = 0; n < 4; n++)
				ldmatrix_x4_trans(x[l][n], at[n] + l * 16 * PITCH);
		}
		row++;
#pragma unroll 1
		for (int t = 0; t < TILES; t++, slot = (slot + 1) % BUFFERS) {
			uint32_t word[2][4];
			float v[32] = {};

#pragma unroll
			for (int h = 0; h < 2; h++) {
				shared_load(word[h], shared_address(signs) +
						     (16 * t + 8 * h + (lane >> 2)) * 16);
#pragma unroll
				for (int i = 0; i < 4; i++)
					word[h][i] <<= 3 - q;
			}
#pragma unroll
			for (int l = 0; l < TILES; l++) {
				uint32_t a[4];

				/* Columns 2 q and 2 q + 1 of 16, and those 8 further */
#pragma unroll
				for (int i = 0; i < 4; i++)
					a[i] = ONE ^ (word[i & 1][l / 2] <<
							      (12 - 8 * (l & 1) - 4 * (i >> 1)) &
						      0x80008000);
#pragma unroll
				for (int n = 0; n < 4; n++) {
					mma_m16n8k16<DTYPE>(v + 8 * n, a, x[l][n][0], x[l][n][1]);
					mma_m16n8k16<DTYPE>(v + 8 * n + 4, a, x[l][n][2],
							    x[l][n][3]);
				}
			}
			if (BUFFERS == 1 && t)
				__syncthreads();
			/* Strides 1, 8, 16, 32 */
#pragma unroll
			for (int h = 0; h < 2; h++) {
				float f[16];

#pragma unroll
				for (int i = 0; i < 16; i++)
					f[i] = v[4 * (i / 2) + 2 * h + i % 2];
				stages<16, 0, 4>(f, 4);
				store_exchange(f, exchange + slot * EXCHANGE +
						  (8 * h + (lane >> 2)) * (2 * PITCH), w, lane);
			}
			__syncthreads();
			/* All have read X. */
			if (t == 0 && iteration + 1 < iterations)
				load();
#pragma unroll
			for (int i = 0; i < (128 + THREADS - 1) / THREADS; i++) {
				const int u = i * THREADS + threadIdx.x, r = 16 * t + (u >> 3);

				if (u < 128 && r < rows)
					finish_exchange<WARPS>(exchange + slot * EXCHANGE, u, out,
							       y + r * (COLUMNS / 8) + (u & 7), 8);
			}
		}
	}
}

/* ROWS of the padded matrix, log2 of the columns of B's rows, threads, blocks per SM, D, BUFFERS */
#define ANY(rows, k, warps, blocks, d, buffers) \
	ANY_OF(f16, HZ_F16, rows, k, warps, blocks, d, buffers) \
	ANY_OF(bf16, HZ_BF16, rows, k, warps, blocks, d, buffers)
#define ANY_OF(type, dtype, rows, k, warps, blocks, d, buffers) \
	extern "C" __global__ void __launch_bounds__(32 * (warps), blocks) \
	hadamard_base_mma_any_##type##_##rows##_##k( \
		const __grid_constant__ hzi_hadamard_base_mma_any p) \
	{ \
		pdl_wait(); \
		pdl_launch_dependents(); \
		padded_columns<dtype, rows, d, warps, buffers>(p); \
	}

/* base.c has the same numbers. */
ANY(48, 7, 2, 7, 0, 2)
ANY(48, 8, 4, 3, 0, 2)
ANY(48, 9, 8, 2, 0, 1)
ANY(64, 7, 2, 6, 0, 2)
ANY(64, 8, 4, 3, 0, 2)
ANY(64, 9, 8, 2, 0, 1)
ANY(80, 10, 8, 1, 1, 2)
ANY(112, 10, 8, 1, 1, 2)
ANY(128, 10, 8, 1, 1, 2)
