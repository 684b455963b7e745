/*
 * mma_sync.cu - quantized matrix multiplication on any GPU, and the packing of operands
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#include "gpu/qgemm/epilogue.cuh"
#include "gpu/device/cp_async.cuh"
#include "gpu/device/mma.cuh"
#include "gpu/device/reduce.cuh"

/* ---- Packing --------------------------------------------------------------------------------- */

#define LINES 64
#define PITCH 33 /* words of a line in shared memory: other banks each time */

/* The word at p, which may begin anywhere; both aligned words that have a part of it are read. */
HZ_DEVICE uint32_t load_word(const uint8_t *p)
{
	const uint32_t off = (uint32_t)(uintptr_t)p & 3;
	const uint32_t *w = (const uint32_t *)(p - off);

	return off ? __funnelshift_r(w[0], w[1], 8 * off) : w[0];
}

/* Bytes i of four words become word i. */
HZ_DEVICE void turn_words(uint32_t (&v)[4])
{
	const uint32_t a = __byte_perm(v[0], v[1], 0x5140), b = __byte_perm(v[2], v[3], 0x5140);
	const uint32_t c = __byte_perm(v[0], v[1], 0x7362), d = __byte_perm(v[2], v[3], 0x7362);

	v[0] = __byte_perm(a, b, 0x5410);
	v[1] = __byte_perm(a, b, 0x7632);
	v[2] = __byte_perm(c, d, 0x5410);
	v[3] = __byte_perm(c, d, 0x7632);
}

/*
 * Reads the codes of 64 lines in one block of k, 0 beyond the end of either. Words are read where
 * they and what lies up to 3 bytes behind them are codes too.
 */
HZ_DEVICE void lines_read(const hzi_qgemm_lines &p, const uint8_t *x, uint32_t (*tile)[PITCH],
			  int64_t line0, int64_t k0)
{
	const uint32_t flip = (uint32_t)p.flip * 0x01010101;
	const bool along = p.x_k == 1;
	const bool even = (((uintptr_t)x | (along ? p.x_line : p.x_k)) & 3) == 0;
	const int64_t over = even ? 0 : 4;

	if (along && line0 + LINES <= p.lines && k0 + HZI_QK_BLOCK + over <= p.k) {
#pragma unroll
		for (int i = threadIdx.x; i < LINES * 32; i += 256)
			tile[i / 32][i % 32] =
				load_word(x + (line0 + i / 32) * p.x_line + k0 + i % 32 * 4) ^ flip;
		return;
	}
	if (p.x_line == 1 && line0 + LINES + over <= p.lines && k0 + HZI_QK_BLOCK <= p.k) {
		uint32_t v[2][4];

#pragma unroll
		for (int i = 0; i < 8; i++) {
			const int at = threadIdx.x + i / 4 * 256;

			v[i / 4][i % 4] = load_word(x + line0 + at % 16 * 4 +
						    (k0 + at / 16 * 4 + i % 4) * p.x_k);
		}
#pragma unroll
		for (int i = 0; i < 8; i++) {
			const int at = threadIdx.x + i / 4 * 256;

			if (i % 4 == 0)
				turn_words(v[i / 4]);
			tile[at % 16 * 4 + i % 4][at / 16] = v[i / 4][i % 4] ^ flip;
		}
		return;
	}
	for (int i = threadIdx.x; i < LINES * HZI_QK_BLOCK; i += 256) {
		const int line = along ? i / HZI_QK_BLOCK : i % LINES;
		const int k = along ? i % HZI_QK_BLOCK : i / LINES;
		uint8_t v = 0;

		if (line0 + line < p.lines && k0 + k < p.k)
			v = x[(line0 + line) * p.x_line + (k0 + k) * p.x_k] ^ (uint8_t)flip;
		((uint8_t *)tile[line])[k] = v;
	}
}

/* A block does 64 lines of an item, and of the blocks of k every gridDim.y-th. */
extern "C" __global__ __launch_bounds__(256) void
qgemm_lines(const __grid_constant__ hzi_qgemm_lines p)
{
	__shared__ uint32_t tile[LINES][PITCH];
	const int64_t line0 = (int64_t)blockIdx.x * LINES, item = p.first + blockIdx.z;
	const int chunk = threadIdx.x % 8;
	const uint8_t *x = p.x;
	uint8_t *y = p.y + item * p.y_item;
	int32_t sum[2] = {};

	for (int64_t d = p.ndim - 1, rest = item; d >= 0; d--) {
		x += rest % p.shape[d] * p.x_stride[d];
		rest /= p.shape[d];
	}
	for (int b = blockIdx.y; b < p.blocks; b += gridDim.y) {
		const int64_t k0 = (int64_t)b * HZI_QK_BLOCK;

		__syncthreads();
		lines_read(p, x, tile, line0, k0);
		__syncthreads();
#pragma unroll
		for (int j = 0; j < 2; j++) {
			const int i = threadIdx.x / 8 + 32 * j;
			const uint32_t *w = &tile[p.sums ? column_of_line(i) : i][4 * chunk];
			const uint4 v = make_uint4(w[0], w[1], w[2], w[3]);

			if (p.sums) {
				*(uint4 *)(y + (b * p.width + line0 + i) * HZI_QK_BLOCK +
					   16 * (chunk ^ (i & 7))) = v;
				sum[j] = add_codes<false>(v.x, sum[j]);
				sum[j] = add_codes<false>(v.y, sum[j]);
				sum[j] = add_codes<false>(v.z, sum[j]);
				sum[j] = add_codes<false>(v.w, sum[j]);
			} else if (line0 + i < p.lines && k0 + 16 * chunk < p.y_line) {
				*(uint4 *)(y + (line0 + i) * p.y_line + k0 + 16 * chunk) = v;
			}
		}
	}
	if (!p.sums)
		return;
#pragma unroll
	for (int j = 0; j < 2; j++) {
		const int64_t column = line0 + column_of_line(threadIdx.x / 8 + 32 * j);
		int32_t *to = (int32_t *)((uint8_t *)p.sums + item * p.y_item) + column;

#pragma unroll
		for (int i = 1; i < 8; i *= 2)
			sum[j] += __shfl_xor_sync(~0u, sum[j], i);
		if (chunk == 0 && gridDim.y == 1)
			*to = sum[j];
		else if (chunk == 0 && column < p.lines)
			atomicAdd(to, sum[j]);
	}
}

/* ---- Multiplication with mma.sync ------------------------------------------------------------ */

#define CHUNK_BLOCKS 256	/* 32768 of k: sums of 255^2 fit s32 */

/*
 * Warps: 4 along m by 2 along n, each 16 MI x 64. Sums of T: with int64_t those of 32 bits are
 * added to them every CHUNK_BLOCKS.
 */
template <bool SIGNED, int MI, typename T>
HZ_DEVICE void multiply_any(const hzi_qgemm_mma_sync &p)
{
	extern __shared__ __align__(1024) uint8_t memory[];
	constexpr bool wide = sizeof(T) == 8;
	const int rows = 64 * MI, a_bytes = rows * HZI_QK_BLOCK;
	const int stage_bytes = a_bytes + HZI_MMA_SYNC_COLUMNS * HZI_QK_BLOCK;
	const uint32_t base = shared_address(memory);
	const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, wm = warp % 4, wn = warp / 4;
	const int m0 = blockIdx.y * rows, n0 = blockIdx.x * HZI_MMA_SYNC_COLUMNS;
	int32_t acc[MI][8][4] = {}, row_sum[MI][2] = {};
	T total[wide ? MI : 1][8][4] = {};

	auto load = [&](int b) {
		const uint32_t to = base + b % HZI_MMA_SYNC_STAGES * stage_bytes;

#pragma unroll
		for (int i = 0; i < a_bytes / 16 / 256; i++) {
			const int row = threadIdx.x / 8 + 32 * i, chunk = threadIdx.x % 8;
			const int k = b * HZI_QK_BLOCK + 16 * chunk;
			const int bytes = m0 + row < p.out.m ? max(0, min(16, p.out.k - k)) : 0;

			cp_async_zfill(to + row * HZI_QK_BLOCK + 16 * (chunk ^ (row & 7)),
				       bytes ? p.a + (m0 + row) * p.a_m + k : p.a, bytes);
		}
#pragma unroll
		for (int i = 0; i < HZI_MMA_SYNC_COLUMNS * HZI_QK_BLOCK / 16 / 256; i++) {
			const int at = 16 * (threadIdx.x + 256 * i);

			cp_async(to + a_bytes + at,
				 p.b + ((int64_t)b * p.width + n0) * HZI_QK_BLOCK + at);
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
		const int line = lane & 7;

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

				ldmatrix_x4(x[i], a + row * HZI_QK_BLOCK +
					    16 * ((2 * k + (lane >> 4)) ^ line));
				row_sum[i][0] = add_codes<SIGNED>(x[i][0], row_sum[i][0]);
				row_sum[i][1] = add_codes<SIGNED>(x[i][1], row_sum[i][1]);
				row_sum[i][0] = add_codes<SIGNED>(x[i][2], row_sum[i][0]);
				row_sum[i][1] = add_codes<SIGNED>(x[i][3], row_sum[i][1]);
			}
#pragma unroll
			for (int j = 0; j < 8; j += 2) {
				const int column = wn * 64 + (j + (lane >> 4)) * 8 + line;
				uint32_t y[4];

				ldmatrix_x4(y, a + a_bytes + column * HZI_QK_BLOCK +
					    16 * ((2 * k + (lane >> 3 & 1)) ^ line));
#pragma unroll
				for (int i = 0; i < MI; i++) {
					mma_m16n8k32<SIGNED, false>(acc[i][j], x[i], y[0], y[1]);
					mma_m16n8k32<SIGNED, false>(acc[i][j + 1], x[i], y[2],
								    y[3]);
				}
			}
		}
		if (wide && (b % CHUNK_BLOCKS == CHUNK_BLOCKS - 1 || b == p.blocks - 1)) {
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
	int quick = wide ? 0 : p.out.quick;

	__syncthreads();
	if (quick) {
		bool fits = true;

		if (threadIdx.x < HZI_MMA_SYNC_COLUMNS)
			fits = quick_column(p.out, n0 + threadIdx.x, columns, threadIdx.x);
		quick = __syncthreads_and(fits) ? quick : 0;
	}
	T *stage = (T *)(&columns + 1) + warp * 8 * HZI_QSTAGE_WORDS;

#pragma unroll
	for (int i = 0; i < MI; i++) {
		const int r = m0 + (wm * MI + i) * 16, n = n0 + 64 * wn;

		if (quick == HZI_EPILOGUE_CODES) {
			const int at = 64 * wn + 16 * (lane & 3);
			int32_t v[2][16];

#pragma unroll
			for (int e = 0; e < 32; e++)
				v[e / 16][e % 16] = acc[i][e % 16 / 2][e / 16 * 2 + e % 2];
			quick_kind(p.out, [&](auto uniform, auto bounded) {
				quick_put<decltype(uniform)::value, decltype(bounded)::value>(
					p.out, v, columns, at, at, row_sum[i],
					quick_out(p.out, r + lane / 4, n0));
			});
			continue;
		}
#pragma unroll
		for (int h = 0; h < 2; h++) {
			out_row of = quick_row(p.out, r + 8 * h + lane / 4);
			T v[16];

#pragma unroll
			for (int e = 0; e < 16; e++)
				v[e] = wide ? total[wide ? i : 0][e / 2][2 * h + e % 2]
					    : acc[i][e / 2][2 * h + e % 2];
			of.sum = row_sum[i][h];
			stage_put(stage, v, of);
			if (quick)
				quick_rows(p.out, (const int32_t *)stage,
					   load_four(columns, 64 * wn + lane % 16 * 4), r + 8 * h,
					   n);
			else
				general_rows(p.out, stage, r + 8 * h, n);
		}
	}
}

/* An item of a batch. In kernels of their own: what it is copied to takes registers. */
HZ_DEVICE hzi_qgemm_mma_sync item_of(const hzi_qgemm_mma_sync &all)
{
	hzi_qgemm_mma_sync p = all;

	for (int64_t d = all.ndim - 1, rest = all.first + blockIdx.z; d >= 0; d--) {
		const int64_t index = rest % all.shape[d];

		rest /= all.shape[d];
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

#define ANY(name, signed, mi, type, item) \
	extern "C" __global__ __launch_bounds__(256) void \
	name(const __grid_constant__ hzi_qgemm_mma_sync p) \
	{ \
		multiply_any<signed, mi, type>(item(p)); \
	}
ANY(qgemm_mma_sync_u8, false, 2, int32_t, )
ANY(qgemm_mma_sync_s8, true, 2, int32_t, )
ANY(qgemm_mma_sync_sum64_u8, false, 1, int64_t, )
ANY(qgemm_mma_sync_sum64_s8, true, 1, int64_t, )
ANY(qgemm_batch_u8, false, 2, int32_t, item_of)
ANY(qgemm_batch_s8, true, 2, int32_t, item_of)
ANY(qgemm_batch_sum64_u8, false, 1, int64_t, item_of)
ANY(qgemm_batch_sum64_s8, true, 1, int64_t, item_of)
