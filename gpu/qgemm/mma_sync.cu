/*
 * mma_sync.cu - packing of operands, and quantized matrix multiplication by mma.sync on any GPU
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#include "gpu/qgemm/epilogue.cuh"
#include "gpu/device/cp_async.cuh"
#include "gpu/device/mma.cuh"
#include "gpu/device/reduce.cuh"

/* ---- Packing --------------------------------------------------------------------------------- */

#define TILE_ROWS 64
#define PITCH 33 /* words per row in shared memory, odd against bank conflicts */

/* The 32-bit word at p of any alignment; reads both aligned words that contain parts of it. */
HZ_DEVICE uint32_t load_word(const uint8_t *p)
{
	const uint32_t off = (uint32_t)(uintptr_t)p & 3;
	const uint32_t *w = (const uint32_t *)(p - off);

	return off ? __funnelshift_r(w[0], w[1], 8 * off) : w[0];
}

/* Transposes 4 x 4 bytes: byte i of the four words becomes word i. */
HZ_DEVICE void transpose_bytes(uint32_t (&v)[4])
{
	const uint32_t a = __byte_perm(v[0], v[1], 0x5140), b = __byte_perm(v[2], v[3], 0x5140);
	const uint32_t c = __byte_perm(v[0], v[1], 0x7362), d = __byte_perm(v[2], v[3], 0x7362);

	v[0] = __byte_perm(a, b, 0x5410);
	v[1] = __byte_perm(a, b, 0x7632);
	v[2] = __byte_perm(c, d, 0x5410);
	v[3] = __byte_perm(c, d, 0x7632);
}

/*
 * Loads the codes of 64 rows in one block of k, 0 beyond the end of either. Loads words only where
 * they and up to 3 bytes after them are codes.
 */
HZ_DEVICE void load_tile(const hzi_qgemm_pack_rows &p, const uint8_t *x, uint32_t (*tile)[PITCH],
			 int64_t row0, int64_t k0)
{
	const uint32_t flip = (uint32_t)p.flip * 0x01010101;
	const bool by_row = p.x_k == 1;
	const bool aligned = (((uintptr_t)x | (by_row ? p.x_row : p.x_k)) & 3) == 0;
	const int64_t over = aligned ? 0 : 4;

	if (by_row && row0 + TILE_ROWS <= p.rows && k0 + HZI_QGEMM_K_BLOCK + over <= p.k) {
#pragma unroll
		for (int i = threadIdx.x; i < TILE_ROWS * 32; i += 256)
			tile[i / 32][i % 32] =
				load_word(x + (row0 + i / 32) * p.x_row + k0 + i % 32 * 4) ^ flip;
		return;
	}
	if (p.x_row == 1 && row0 + TILE_ROWS + over <= p.rows && k0 + HZI_QGEMM_K_BLOCK <= p.k) {
		uint32_t v[2][4];

#pragma unroll
		for (int i = 0; i < 8; i++) {
			const int at = threadIdx.x + i / 4 * 256;

			v[i / 4][i % 4] = load_word(x + row0 + at % 16 * 4 +
						    (k0 + at / 16 * 4 + i % 4) * p.x_k);
		}
#pragma unroll
		for (int i = 0; i < 8; i++) {
			const int at = threadIdx.x + i / 4 * 256;

			if (i % 4 == 0)
				transpose_bytes(v[i / 4]);
			tile[at % 16 * 4 + i % 4][at / 16] = v[i / 4][i % 4] ^ flip;
		}
		return;
	}
	for (int i = threadIdx.x; i < TILE_ROWS * HZI_QGEMM_K_BLOCK; i += 256) {
		const int row = by_row ? i / HZI_QGEMM_K_BLOCK : i % TILE_ROWS;
		const int k = by_row ? i % HZI_QGEMM_K_BLOCK : i / TILE_ROWS;
		uint8_t v = 0;

		if (row0 + row < p.rows && k0 + k < p.k)
			v = x[(row0 + row) * p.x_row + (k0 + k) * p.x_k] ^ (uint8_t)flip;
		((uint8_t *)tile[row])[k] = v;
	}
}

/* A block packs 64 rows of an item, and every gridDim.y-th block of k. */
extern "C" __global__ __launch_bounds__(256) void
qgemm_pack_rows(const __grid_constant__ hzi_qgemm_pack_rows p)
{
	__shared__ uint32_t tile[TILE_ROWS][PITCH];
	const int64_t row0 = (int64_t)blockIdx.x * TILE_ROWS, item = p.first + blockIdx.z;
	const int chunk = threadIdx.x % 8;
	const uint8_t *x = p.x;
	uint8_t *y = p.y + item * p.y_item;
	int32_t sum[2] = {};

	for (int64_t d = p.ndim - 1, remaining = item; d >= 0; d--) {
		x += remaining % p.shape[d] * p.x_stride[d];
		remaining /= p.shape[d];
	}
	for (int b = blockIdx.y; b < p.blocks; b += gridDim.y) {
		const int64_t k0 = (int64_t)b * HZI_QGEMM_K_BLOCK;

		__syncthreads();
		load_tile(p, x, tile, row0, k0);
		__syncthreads();
#pragma unroll
		for (int j = 0; j < 2; j++) {
			const int i = threadIdx.x / 8 + 32 * j;
			const uint32_t *w = &tile[p.sums ? column_of_row(i) : i][4 * chunk];
			const uint4 v = make_uint4(w[0], w[1], w[2], w[3]);

			if (p.sums) {
				*(uint4 *)(y + (b * p.width + row0 + i) * HZI_QGEMM_K_BLOCK +
					   16 * (chunk ^ (i & 7))) = v;
				sum[j] = add_codes<false>(v.x, sum[j]);
				sum[j] = add_codes<false>(v.y, sum[j]);
				sum[j] = add_codes<false>(v.z, sum[j]);
				sum[j] = add_codes<false>(v.w, sum[j]);
			} else if (row0 + i < p.rows && k0 + 16 * chunk < p.y_row) {
				*(uint4 *)(y + (row0 + i) * p.y_row + k0 + 16 * chunk) = v;
			}
		}
	}
	if (!p.sums)
		return;
#pragma unroll
	for (int j = 0; j < 2; j++) {
		const int64_t column = row0 + column_of_row(threadIdx.x / 8 + 32 * j);
		int32_t *dst = (int32_t *)((uint8_t *)p.sums + item * p.y_item) + column;

#pragma unroll
		for (int i = 1; i < 8; i *= 2)
			sum[j] += __shfl_xor_sync(~0u, sum[j], i);
		if (chunk == 0 && gridDim.y == 1)
			*dst = sum[j];
		else if (chunk == 0 && column < p.rows)
			atomicAdd(dst, sum[j]);
	}
}

/* ---- Multiplication with mma.sync ------------------------------------------------------------ */

#define CHUNK_BLOCKS 256	/* 32768 elements of k: sums of products up to 255^2 fit s32 */

/*
 * Tile 64 MI x 128 per block of 8 warps, 4 along m by 2 along n, each 16 MI x 64; stages of 128
 * bytes of k by cp.async. T: type of the accumulators. With int64_t the 32-bit accumulators are
 * added to 64-bit totals every CHUNK_BLOCKS blocks.
 */
template <bool SIGNED, int MI, typename T>
HZ_DEVICE void multiply(const hzi_qgemm_mma_sync &p)
{
	extern __shared__ __align__(1024) uint8_t memory[];
	constexpr bool sum64 = sizeof(T) == 8;
	const int rows = 64 * MI, a_bytes = rows * HZI_QGEMM_K_BLOCK;
	const int stage_bytes = a_bytes + HZI_MMA_SYNC_COLUMNS * HZI_QGEMM_K_BLOCK;
	const uint32_t base = shared_address(memory);
	const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, wm = warp % 4, wn = warp / 4;
	const int m0 = blockIdx.y * rows, n0 = blockIdx.x * HZI_MMA_SYNC_COLUMNS;
	int32_t acc[MI][8][4] = {}, row_sum[MI][2] = {};
	T total[sum64 ? MI : 1][8][4] = {};

	auto load = [&](int b) {
		const uint32_t dst = base + b % HZI_MMA_SYNC_STAGES * stage_bytes;

#pragma unroll
		for (int i = 0; i < a_bytes / 16 / 256; i++) {
			const int row = threadIdx.x / 8 + 32 * i, chunk = threadIdx.x % 8;
			const int k = b * HZI_QGEMM_K_BLOCK + 16 * chunk;
			const int bytes = m0 + row < p.out.m ? max(0, min(16, p.out.k - k)) : 0;

			cp_async_zfill(dst + row * HZI_QGEMM_K_BLOCK + 16 * (chunk ^ (row & 7)),
				       bytes ? p.a + (m0 + row) * p.a_m + k : p.a, bytes);
		}
#pragma unroll
		for (int i = 0; i < HZI_MMA_SYNC_COLUMNS * HZI_QGEMM_K_BLOCK / 16 / 256; i++) {
			const int at = 16 * (threadIdx.x + 256 * i);

			cp_async(dst + a_bytes + at,
				 p.b + ((int64_t)b * p.width + n0) * HZI_QGEMM_K_BLOCK + at);
		}
	};

#pragma unroll
	for (int s = 0; s < HZI_MMA_SYNC_STAGES - 1; s++) {
		if (s < p.blocks)
			load(s);
		cp_async_commit();
	}
	for (int b = 0; b < p.blocks; b++) {
		const uint32_t a = base + b % HZI_MMA_SYNC_STAGES * stage_bytes;
		const int swizzle = lane & 7;

		cp_async_wait<HZI_MMA_SYNC_STAGES - 2>();
		__syncthreads();
		if (b + HZI_MMA_SYNC_STAGES - 1 < p.blocks)
			load(b + HZI_MMA_SYNC_STAGES - 1);
		cp_async_commit();
#pragma unroll
		for (int k = 0; k < 4; k++) {
			uint32_t x[MI][4];

#pragma unroll
			for (int i = 0; i < MI; i++) {
				const int row = (wm * MI + i) * 16 + (lane & 15);

				ldmatrix_x4(x[i], a + row * HZI_QGEMM_K_BLOCK +
					    16 * ((2 * k + (lane >> 4)) ^ swizzle));
				row_sum[i][0] = add_codes<SIGNED>(x[i][0], row_sum[i][0]);
				row_sum[i][1] = add_codes<SIGNED>(x[i][1], row_sum[i][1]);
				row_sum[i][0] = add_codes<SIGNED>(x[i][2], row_sum[i][0]);
				row_sum[i][1] = add_codes<SIGNED>(x[i][3], row_sum[i][1]);
			}
#pragma unroll
			for (int j = 0; j < 8; j += 2) {
				const int column = wn * 64 + (j + (lane >> 4)) * 8 + swizzle;
				uint32_t y[4];

				ldmatrix_x4(y, a + a_bytes + column * HZI_QGEMM_K_BLOCK +
					    16 * ((2 * k + (lane >> 3 & 1)) ^ swizzle));
#pragma unroll
				for (int i = 0; i < MI; i++) {
					mma_m16n8k32<SIGNED, false>(acc[i][j], x[i], y[0], y[1]);
					mma_m16n8k32<SIGNED, false>(acc[i][j + 1], x[i], y[2],
								    y[3]);
				}
			}
		}
		if (sum64 && (b % CHUNK_BLOCKS == CHUNK_BLOCKS - 1 || b == p.blocks - 1)) {
#pragma unroll
			for (int i = 0; i < MI * 32; i++) {
				total[i / 32 % MI][i / 4 % 8][i % 4] +=
					acc[i / 32][i / 4 % 8][i % 4];
				acc[i / 32][i / 4 % 8][i % 4] = 0;
			}
		}
	}
	cp_async_wait<0>();
#pragma unroll
	for (int i = 0; i < 2 * MI; i++) {
		int32_t &s = row_sum[i / 2][i % 2];

		s = quad_sum(s);
	}

	auto &columns = *(out_columns<HZI_MMA_SYNC_COLUMNS> *)memory;
	int fast_path = sum64 ? 0 : p.out.fast_path;

	__syncthreads();
	if (fast_path) {
		bool fits = true;

		if (threadIdx.x < HZI_MMA_SYNC_COLUMNS)
			fits = prepare_column(p.out, n0 + threadIdx.x, columns, threadIdx.x);
		fast_path = __syncthreads_and(fits) ? fast_path : 0;
	}
	T *stage = (T *)(&columns + 1) + warp * 8 * HZI_QGEMM_STAGE_PITCH;

#pragma unroll
	for (int i = 0; i < MI; i++) {
		const int r = m0 + (wm * MI + i) * 16, n = n0 + 64 * wn;

		if (fast_path == HZI_EPILOGUE_CODES) {
			const int at = 64 * wn + 16 * (lane & 3);
			int32_t v[2][16];

#pragma unroll
			for (int e = 0; e < 32; e++)
				v[e / 16][e % 16] = acc[i][e % 16 / 2][e / 16 * 2 + e % 2];
			dispatch_codes(p.out, [&](auto uniform, auto bounded) {
				store_codes<decltype(uniform)::value, decltype(bounded)::value>(
					p.out, v, columns, at, at, row_sum[i],
					output_rows(p.out, r + lane / 4, n0));
			});
			continue;
		}
#pragma unroll
		for (int h = 0; h < 2; h++) {
			out_row of = fast_row(p.out, r + 8 * h + lane / 4);
			T v[16];

#pragma unroll
			for (int e = 0; e < 16; e++)
				v[e] = sum64 ? total[sum64 ? i : 0][e / 2][2 * h + e % 2]
					    : acc[i][e / 2][2 * h + e % 2];
			of.sum = row_sum[i][h];
			stage_row(stage, v, of);
			if (fast_path)
				store_rows(p.out, (const int32_t *)stage,
					   load_four(columns, 64 * wn + lane % 16 * 4), r + 8 * h,
					   n);
			else
				general_rows(p.out, stage, r + 8 * h, n);
		}
	}
}

/*
 * The parameters of one item of a batch. Batches have kernels of their own, since this copy takes
 * registers.
 */
HZ_DEVICE hzi_qgemm_mma_sync item_of(const hzi_qgemm_mma_sync &all)
{
	hzi_qgemm_mma_sync p = all;

	for (int64_t d = all.ndim - 1, remaining = all.first + blockIdx.z; d >= 0; d--) {
		const int64_t index = remaining % all.shape[d];

		remaining /= all.shape[d];
		p.a += index * all.a_stride[d];
		p.b += index * all.b_stride[d];
		p.out.b_sums = (const int32_t *)((const uint8_t *)p.out.b_sums +
						 index * all.b_stride[d]);
		p.out.c = (uint8_t *)p.out.c + index * all.c_stride[d];
		p.out.zero_row += index * all.row_stride[d] * p.out.zero_step;
		p.out.scale_row += index * all.row_stride[d] * p.out.scale_step;
	}
	return p;
}

#define KERNEL(name, is_signed, mi, type, item) \
	extern "C" __global__ __launch_bounds__(256) void \
	name(const __grid_constant__ hzi_qgemm_mma_sync p) \
	{ \
		multiply<is_signed, mi, type>(item(p)); \
	}
#define KERNELS(name, ...) \
	KERNEL(name##_u8, false, __VA_ARGS__) \
	KERNEL(name##_s8, true, __VA_ARGS__)
KERNELS(qgemm_mma_sync, 2, int32_t, )
KERNELS(qgemm_mma_sync_sum64, 1, int64_t, )
KERNELS(qgemm_mma_sync_batch, 2, int32_t, item_of)
KERNELS(qgemm_mma_sync_batch_sum64, 1, int64_t, item_of)
