/*
 * base_mma.cuh - transforms of contiguous 16-bit rows of m 2^k elements on tensor cores
 *
 * SPDX-License-Identifier: BSD-2-Clause
 *
 * A row is a matrix X of M = 2^d m rows and 2^(k - d) columns, S_n is the Sylvester matrix of order
 * n, and the transform is (B (x) S_2^d) X S. The product with B (x) S_2^d comes first: its entries
 * are +-1 and X is raw data, so both are operands of tensor cores as they are, products are exact,
 * and accumulators are f32. Strides below 2^(k - d) follow.
 *
 * X has the same layout in shared memory as in global memory, but for an XOR swizzle: the 16-byte
 * pieces of 8 columns are permuted by the number of their row, so that ldmatrix and stmatrix have
 * no bank conflicts. Shared memory bandwidth, 128 bytes a cycle, is the limit of these kernels, and
 * a shuffle costs as much of it as a load. Four kernels:
 *
 *	warp_rows		d = 2; a warp computes 16 rows and all 64 or 128 columns
 *	warp_columns		d <= 1; a warp computes all rows and 64 columns, which it loads
 *	group_rows		d = 2; several warps share the columns of 16 rows
 *	register_columns	d = 2; as warp_columns with X in registers, 16 rows at a time
 *
 * The template parameter OPERANDS brings pieces of X to shared memory. begin(i) announces those
 * from number i on. For piece i, the n-th of a thread, load() is called before the products of the
 * previous X and store() after them; OPERANDS::in_flight holds what is loaded in between.
 * OPERANDS::SPLIT: a thread had better load its pieces a few at a time, where the kernel can.
 *
 * The template parameter RESULTS stores results: out.y is the destination of the first piece of 8
 * results, of type RESULTS::piece. begin(i) announces pieces from number i on; ready(), before the
 * first of them, computes what they need; store() stores 8 results, rows() those of warp_rows.
 */
#ifndef HZI_GPU_HADAMARD_BASE_MMA_CUH
#define HZI_GPU_HADAMARD_BASE_MMA_CUH

#include "gpu/hadamard/base_f32.cuh"
#include "gpu/device/shared.cuh"

/* ---- The product ----------------------------------------------------------------------------- */

HZ_DEVICE uint32_t broadcast_half(uint32_t word, int half)
{
	return __byte_perm(word, 0, half ? 0x3232 : 0x1010);
}

/*
 * Rows 16 t .. and columns 16 l .. of B (x) S_4 as an operand of mma. Row 4 j + s and column 4 i +
 * r have the sign of B_ji times that of s & r. A thread has columns 2 q, 2 q + 1 and those 8
 * further, of rows g and g + 8: i = 4 l + (q >> 1) + 2 h, r = (2 q & 3) + e.
 */
template <int DTYPE>
HZ_DEVICE void base_entries(uint32_t *a, const hzi_hadamard_base_mma &p, int t, int l, int lane)
{
	const int g = lane >> 2, q = lane & 3, j = 4 * t + (g >> 2);
	const uint32_t low = broadcast_half(p.sign[j], q >> 1);
	const uint32_t high = broadcast_half(p.sign[j + 2], q >> 1);
	const uint32_t one = (DTYPE == HZ_BF16 ? 0x3f803f80 : 0x3c003c00) ^
			     (g >> 1 & q & 1 ? 0x80008000 : 0) ^ (g & 1 ? 0x80000000 : 0);

	a[0] = one ^ (low << (15 - 2 * l) & 0x80008000);
	a[1] = one ^ (high << (15 - 2 * l) & 0x80008000);
	a[2] = one ^ (low << (14 - 2 * l) & 0x80008000);
	a[3] = one ^ (high << (14 - 2 * l) & 0x80008000);
}

/*
 * v = rows 16 t .. 16 t + 15 of the product; at[i]: this lane's ldmatrix address of pieces 2 i and
 * 2 i + 1. v[8 n + 4 h + ..] is of piece 2 n + h: of the four values two are of row g, two of row g
 * + 8, all of columns 2 q and 2 q + 1.
 */
template <int DTYPE, int M, int COLUMNS, int PITCH>
HZ_DEVICE void base_product(float *v, const hzi_hadamard_base_mma &p, const uint32_t *at, int t,
			    int lane)
{
#pragma unroll
	for (int i = 0; i < COLUMNS / 2; i++)
		v[i] = 0;
#pragma unroll
	for (int l = 0; l < M / 16; l++) {
		uint32_t a[4];

		base_entries<DTYPE>(a, p, t, l, lane);
#pragma unroll
		for (int n = 0; n < COLUMNS / 16; n++) {
			uint32_t b[4];

			ldmatrix_x4_trans(b, at[n & 3] + (n >> 2) * 128 + l * 16 * PITCH);
			mma_m16n8k16<DTYPE>(v + 8 * n, a[0], a[1], a[2], a[3], b[0], b[1]);
			mma_m16n8k16<DTYPE>(v + 8 * n + 4, a[0], a[1], a[2], a[3], b[2], b[3]);
		}
	}
}

/* Strides below 8, then the first count of the others */
template <int COLUMNS>
HZ_DEVICE void base_strides(float *v, int count, int lane)
{
	constexpr int LOG2 = COLUMNS == 128 ? 6 : 5;

	stage<COLUMNS / 2, 0>(v);
	lane_stage<COLUMNS / 2>(v, lane, 1);
	lane_stage<COLUMNS / 2>(v, lane, 2);
	stages<COLUMNS / 2, 2, LOG2>(v, count);
}

/* This lane's ldmatrix addresses in a matrix with PITCH bytes a row; first: of its first piece */
template <int PITCH>
HZ_DEVICE void ldmatrix_addresses(uint32_t *at, uint32_t first, int lane)
{
#pragma unroll
	for (int i = 0; i < 4; i++)
		at[i] = first + (lane & 15) * PITCH + ((2 * i) ^ (lane >> 4) ^ (lane & 7)) * 16;
}

/* ---- warp_rows: a warp has all columns ------------------------------------------------------- */

/*
 * Row and piece in it of piece i, in memory order, of a warp's 16 rows of X; s: log2 of the pieces
 * of a row
 */
struct tile_index {
	int row, piece;
};

HZ_DEVICE tile_index tile_index_of(int i, int s)
{
	return {i >> s & 15, i >> (s + 4) << s | (i & ((1 << s) - 1))};
}

/*
 * For several short transforms in one X, of `pieces` pieces each: the number of some piece of the
 * transform that piece n of a row belongs to. first: the first piece of all of them, total: pieces
 * of the operand
 */
HZ_DEVICE int64_t piece_of_row(int64_t first, int n, int s, int pieces, int64_t total)
{
	const int64_t i = first + (int64_t)(n >> s) * pieces;

	return i < total ? i : first;
}

/*
 * Rows of 2^(k - 2) = COLUMNS = 8 2^S columns; S = -1: rows up to m 2^6, several side by side. A
 * warp loads and stores the 16 rows of X that it computes, which are contiguous. A block has
 * several tiles and loads the next while it computes; a warp's results have 16 PITCH bytes of their
 * own.
 */
template <int DTYPE, int M, int COLUMNS, int S, typename OPERANDS, typename RESULTS>
HZ_DEVICE void warp_rows(const hzi_hadamard_base_mma &p, OPERANDS in, RESULTS out)
{
	constexpr int PITCH = 2 * COLUMNS, LOG2 = COLUMNS == 128 ? 4 : 3;
	const int lane = threadIdx.x % 32, t = threadIdx.x / 32;
	const int s = S < 0 ? p.k - 5 : S;	/* log2 of the pieces of a row */
	const uint32_t memory = shared_address(shared);
	uint32_t at[4];
	float v[COLUMNS / 2];

	/* The number in memory and the offset in shared memory of the warp's piece i */
	auto piece_index = [&](int i, int s) {
		return (i >> (s + 4)) * (M << s) + (i & ((16 << s) - 1));
	};
	auto shared_offset = [&](int i, int s) {
		const tile_index at = tile_index_of(i, s);

		return at.row * PITCH + (at.piece ^ (at.row & 7)) * 16;
	};
	typename OPERANDS::template in_flight<COLUMNS / 16, S < 0> in_flight;
	auto each = [&](int64_t tile, int buffer, auto f) {
		const int64_t first = tile << (LOG2 - s), left = p.rows - first;
		const int64_t at_x = first * (M << s) + (16 * t << s);
		const uint32_t own = memory + (buffer * M + 16 * t) * PITCH;

#pragma unroll
		for (int n = 0; n < COLUMNS / 16; n++) {
			const int i = 32 * n + lane;

			if (S == LOG2 || i >> (s + 4) < left)
				f(n, own + shared_offset(i, s), at_x + piece_index(i, s));
		}
	};
	auto begin = [&](int64_t tile, int buffer) {
		in.begin(in_flight, (tile << (LOG2 - s)) * (M << s));
		each(tile, buffer,
		     [&](int n, uint32_t dst, int64_t i) { in.load(in_flight, n, dst, i); });
	};
	auto end = [&](int64_t tile, int buffer) {
		each(tile, buffer,
		     [&](int n, uint32_t dst, int64_t) { in.store(in_flight, n, dst); });
	};

	int64_t tile;
	const int iterations = tiles_of_block(p.s, &tile);

	begin(tile, 0);
	end(tile, 0);
	for (int iteration = 0; iteration < iterations; iteration++, tile++) {
		const int64_t first = tile << (LOG2 - s), left = p.rows - first;
		const int64_t at_y = first * (M << s) + (16 * t << s);
		const int buffer = iteration & 1;

		cp_async_wait_all();
		__syncthreads();
		if (iteration + 1 < iterations)
			begin(tile + 1, buffer ^ 1);
		out.begin(at_y);
		ldmatrix_addresses<PITCH>(at, memory + buffer * M * PITCH, lane);
		base_product<DTYPE, M, COLUMNS, PITCH>(v, p, at, t, lane);
		base_strides<COLUMNS>(v, s, lane);
		out.ready();
		out.template rows<COLUMNS, S < 0>(
			v, (char *)shared + (2 * M + 16 * t) * PITCH, out.y + at_y, M << s, s,
			[&](int i) {
				return S == LOG2 || i >> (s + 4) < left ? piece_index(i, s) : -1;
			});
		if (iteration + 1 < iterations)
			end(tile + 1, buffer ^ 1);
		__syncwarp();
	}
}

/* Loads rows of X with all threads of a block. dst: a buffer in shared memory */
template <typename OPERANDS, int PIECES, int THREADS, int COLUMNS, int UNROLL>
struct row_loader {
	static constexpr int EACH = (PIECES + THREADS - 1) / THREADS;
	const OPERANDS &in;
	typename OPERANDS::template in_flight<EACH, false> in_flight;

	template <typename F>
	HZ_MEMBER void each(uint32_t dst, F f)
	{
#pragma unroll UNROLL
		for (int n = 0; n < EACH; n++) {
			const int i = n * THREADS + threadIdx.x;

			if (PIECES % THREADS == 0 || i < PIECES)
				f(n, dst + (i ^ (i / (COLUMNS / 8) & 7)) * 16, i);
		}
	}
	HZ_MEMBER void begin(int64_t row, uint32_t dst)
	{
		in.begin(in_flight, row * PIECES);
		each(dst, [&](int n, uint32_t at, int i) {
			in.load(in_flight, n, at, row * PIECES + i);
		});
	}
	HZ_MEMBER void end(uint32_t dst)
	{
		each(dst, [&](int n, uint32_t at, int) { in.store(in_flight, n, at); });
	}
};

/* ---- Exchange through shared memory ---------------------------------------------------------- */

/*
 * Strides between lanes and between WARPS warps follow after an exchange through shared memory, as
 * shuffles would cost as much of its bandwidth. Rows of the exchange have 64 WARPS columns, and
 * pieces of 4 are XOR-swizzled, so that neither access pattern has bank conflicts.
 *
 * v[2 n ..] = columns 8 n + 2 q and 8 n + 2 q + 1 of the warp's 64, in the row that begins at dst
 */
HZ_DEVICE void store_exchange(const float *v, char *dst, int w, int lane)
{
	const int g = lane >> 2, q = lane & 3, order = (q >> 1) ^ (g & 3) << 1;

	dst += w * 256 + (q & 1) * 8;
#pragma unroll
	for (int n = 0; n < 8; n++)
		*(float2 *)(dst + (((2 * n) ^ (n >> 2)) ^ order) * 16) =
			make_float2(v[2 * n], v[2 * n + 1]);
}

/*
 * Task u is chunk u % 8 of 8 columns, of row u / 8. Reads it for all warps, does strides 2 and 4
 * and those between warps, and stores the results to y; those of successive warps are step pieces
 * apart.
 */
template <int WARPS, typename RESULTS>
HZ_DEVICE void finish_exchange(const char *exchange, int u, const RESULTS &out,
			       typename RESULTS::piece *y, int step)
{
	constexpr int N = 8 * WARPS, STAGES = WARPS == 2 ? 1 : WARPS == 4 ? 2 : 3;
	const int row = u >> 3, chunk = u & 7, order = (2 * chunk) ^ (chunk >> 2) ^ (row & 3) << 1;
	const char *src = exchange + row * (256 * WARPS) + order * 16;
	const char *next = exchange + row * (256 * WARPS) + (order ^ 1) * 16;
	float v[N];

#pragma unroll
	for (int i = 0; i < WARPS; i++) {
		*(float4 *)&v[8 * i] = *(const float4 *)(src + i * 256);
		*(float4 *)&v[8 * i + 4] = *(const float4 *)(next + i * 256);
	}
	stages<N, 1, 3 + STAGES>(v, 2 + STAGES);
#pragma unroll
	for (int i = 0; i < WARPS; i++)
		out.store(y + i * step, v + 8 * i);
}

/* ---- warp_columns: a warp has all rows ------------------------------------------------------- */

/*
 * X has m 2^D rows. A warp computes all of them for 64 columns, so that it loads its part of X
 * once. The multiplier B (x) S_2^D, padded to multiples of 8 rows and columns, stays in registers.
 */
template <int M, int D>
struct multiplier_shape {
	static constexpr int ROWS = M << D;
	static constexpr int EIGHTS = (ROWS + 7) / 8;	/* rows in units of 8 */
	static constexpr int TILES = (EIGHTS + 1) / 2;
	static constexpr bool PADDED = ROWS % 8 != 0;	/* by 4 rows */
};

/* Entries (row, column) and (row, column + 1) of the multiplier, as 16 bits each */
template <int DTYPE, int D>
HZ_DEVICE uint32_t entries(const hzi_hadamard_base_mma &p, int row, int column)
{
	const uint32_t word = p.sign[row >> D];
	uint32_t pair = DTYPE == HZ_BF16 ? 0x3f803f80 : 0x3c003c00;

#pragma unroll
	for (int e = 0; e < 2; e++) {
		const int j = (column + e) >> D;

		pair ^= ((word >> (j / 2 + j % 2 * 16) ^ (row & e & D)) & 1) << (15 + 16 * e);
	}
	return pair;
}

template <int DTYPE, int M, int D, int WARPS, typename OPERANDS, typename RESULTS>
HZ_DEVICE void warp_columns(const hzi_hadamard_base_mma &p, OPERANDS in, RESULTS out)
{
	using X = multiplier_shape<M, D>;
	constexpr int E = X::EIGHTS, TILES = X::TILES, COLUMNS = 64 * WARPS, PITCH = 2 * COLUMNS;
	constexpr int THREADS = 32 * WARPS, BYTES = X::ROWS * PITCH, PIECES = BYTES / 16;
	const int lane = threadIdx.x % 32, w = threadIdx.x / 32, g = lane >> 2, q = lane & 3;
	const uint32_t memory = shared_address(shared), keep = q < 2 ? 0xffffffff : 0;
	char *exchange = (char *)shared + 2 * BYTES;
	uint32_t a[TILES][E][2];

#pragma unroll
	for (int t = 0; t < TILES; t++) {
#pragma unroll
		for (int l = 0; l < E; l++) {
			a[t][l][0] = entries<DTYPE, D>(p, 16 * t + g, 8 * l + 2 * q);
			/* Results of rows beyond the last 8 are not used. */
			a[t][l][1] = 2 * t + 1 < E
					     ? entries<DTYPE, D>(p, 16 * t + 8 + g, 8 * l + 2 * q)
					     : a[t][l][0];
		}
	}

	row_loader<OPERANDS, PIECES, THREADS, COLUMNS, (PIECES + THREADS - 1) / THREADS> loader = {
		in};
	int64_t row;
	const int iterations = tiles_of_block(p.s, &row);

	loader.begin(row, memory);
	loader.end(memory);
	for (int iteration = 0; iteration < iterations; iteration++, row++) {
		const int buffer = iteration & 1;
		uint32_t at[4], half[4];
		float c[8][TILES][4];

		cp_async_wait_all();
		__syncthreads();
		if (iteration + 1 < iterations)
			loader.begin(row + 1, memory + (buffer ^ 1) * BYTES);
		out.begin(row * PIECES);
		ldmatrix_addresses<PITCH>(at, memory + buffer * BYTES + w * 128, lane);
#pragma unroll
		for (int i = 0; i < 4; i++)
			half[i] = memory + buffer * BYTES + w * 128 +
				  (8 * (E - 1) + (lane & 7)) * PITCH +
				  ((2 * i) ^ (lane >> 3 & 1) ^ (lane & 7)) * 16;
#pragma unroll
		for (int i = 0; i < 4; i++) {
			uint32_t b[2][E];

#pragma unroll
			for (int l = 0; l < E / 2; l++) {
				uint32_t r[4];

				ldmatrix_x4_trans(r, at[i] + l * 16 * PITCH);
				b[0][2 * l] = r[0];
				b[0][2 * l + 1] = r[1];
				b[1][2 * l] = r[2];
				b[1][2 * l + 1] = r[3];
			}
			if (E % 2) {
				uint32_t r[2];

				ldmatrix_x2_trans(r, half[i]);
				b[0][E - 1] = r[0];
				b[1][E - 1] = r[1];
			}
#pragma unroll
			for (int h = 0; h < 2; h++) {
				if (X::PADDED)
					b[h][E - 1] &= keep;	/* beyond X: maybe Inf, NaN */
#pragma unroll
				for (int t = 0; t < TILES; t++) {
					float *dst = c[2 * i + h][t];

					dst[0] = dst[1] = dst[2] = dst[3] = 0;
#pragma unroll
					for (int l = 0; l < E / 2; l++)
						mma_m16n8k16<DTYPE>(dst, a[t][2 * l][0],
								    a[t][2 * l][1],
								    a[t][2 * l + 1][0],
								    a[t][2 * l + 1][1], b[h][2 * l],
								    b[h][2 * l + 1]);
					if (E % 2)
						mma_m16n8k8<DTYPE>(dst, a[t][E - 1][0],
								   a[t][E - 1][1], b[h][E - 1]);
				}
			}
		}
		/* Strides 1, 8, 16, 32 */
#pragma unroll
		for (int l = 0; l < E; l++) {
			float v[16];

#pragma unroll
			for (int i = 0; i < 16; i++)
				v[i] = c[i / 2][l / 2][l % 2 * 2 + i % 2];
			stages<16, 0, 4>(v, 4);
			if (!X::PADDED || l < E - 1 || g < 4)
				store_exchange(v, exchange + (8 * l + g) * (2 * PITCH), w, lane);
		}
		out.ready();
		__syncthreads();
#pragma unroll
		for (int n = 0; n < (8 * X::ROWS + THREADS - 1) / THREADS; n++) {
			const int u = n * THREADS + threadIdx.x;

			if (8 * X::ROWS % THREADS == 0 || u < 8 * X::ROWS)
				finish_exchange<WARPS>(exchange, u, out,
						       out.y + row * PIECES +
							       (u >> 3) * (COLUMNS / 8) + (u & 7),
						       8);
		}
		if (iteration + 1 < iterations)
			loader.end(memory + (buffer ^ 1) * BYTES);
	}
}

/* ---- group_rows: a group of warps has 16 rows of X ------------------------------------------- */

/*
 * Rows of 2^(k - 2) = 128 WARPS columns. A group of WARPS warps computes 16 rows of X and exchanges
 * results in two rounds of 64 columns a warp. If each 16 rows have a group, the exchange replaces X
 * in shared memory, and the next X is loaded meanwhile.
 */
template <int DTYPE, int M, int WARPS, int GROUPS, typename OPERANDS, typename RESULTS>
HZ_DEVICE void group_rows(const hzi_hadamard_base_mma &p, OPERANDS in, RESULTS out)
{
	constexpr int COLUMNS = 128 * WARPS, PITCH = 2 * COLUMNS, THREADS = 32 * WARPS * GROUPS;
	constexpr int BYTES = M * PITCH, PIECES = BYTES / 16;
	constexpr bool ALL = GROUPS == M / 16;
	const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, w = warp % WARPS;
	const int group = warp / WARPS;
	const uint32_t memory = shared_address(shared);
	uint32_t at[4];
	float v[64];

	static_assert(PIECES % THREADS == 0, "all threads have as many pieces");
	row_loader<OPERANDS, PIECES, THREADS, COLUMNS, OPERANDS::SPLIT ? PIECES / THREADS : 4>
		loader = {in};
	int64_t row;
	const int iterations = tiles_of_block(p.s, &row);

	loader.begin(row, memory);
	loader.end(memory);
	for (int iteration = 0; iteration < iterations; iteration++, row++) {
		const int buffer = ALL ? iteration & 1 : 0;
		char *exchange = (char *)shared + (ALL ? buffer : 1) * BYTES + group * 16 * PITCH;

		cp_async_wait_all();
		__syncthreads();
		if (ALL && iteration + 1 < iterations)
			loader.begin(row + 1, memory + (buffer ^ 1) * BYTES);
		out.begin(row * PIECES);
		ldmatrix_addresses<PITCH>(at, memory + buffer * BYTES + w * 256, lane);
		for (int t = group; t < M / 16; t += GROUPS) {
			base_product<DTYPE, M, 128, PITCH>(v, p, at, t, lane);
			/* Strides 1 and 8 to 64 */
			stage<64, 0>(v);
			stages<64, 2, 6>(v, 4);
			if (t == group)
				out.ready();
			if (ALL)
				__syncthreads();	/* all have read X */
#pragma unroll
			for (int round = 0; round < 2; round++) {
				if (round || !ALL)
					bar_sync(1 + group, 32 * WARPS);
#pragma unroll
				for (int h = 0; h < 2; h++) {
					float f[16];

#pragma unroll
					for (int i = 0; i < 16; i++)
						f[i] = v[32 * round + 4 * (i / 2) + 2 * h + i % 2];
					store_exchange(f, exchange + (8 * h + (lane >> 2)) * PITCH,
						       w, lane);
				}
				bar_sync(1 + group, 32 * WARPS);
				for (int u = threadIdx.x % (32 * WARPS); u < 128; u += 32 * WARPS)
					finish_exchange<WARPS>(exchange, u, out,
							       out.y + row * PIECES +
								       (16 * t + (u >> 3)) *
									       (COLUMNS / 8) +
								       8 * round + (u & 7),
							       16);
			}
		}
		if (!ALL) {
			/*
			 * compute-sanitizer's racecheck needs all groups to wait equally often:
			 * four times per t.
			 */
			if (M / 16 % GROUPS && group >= M / 16 % GROUPS) {
				for (int i = 0; i < 4; i++)
					bar_sync(1 + group, 32 * WARPS);
			}
			__syncthreads();
			if (iteration + 1 < iterations)
				loader.begin(row + 1, memory);
		}
		if (iteration + 1 < iterations)
			loader.end(memory + (ALL ? buffer ^ 1 : 0) * BYTES);
	}
}

/* ---- register_columns: a warp holds its part of X -------------------------------------------- */

/*
 * Rows of 2^(k - 2) = 512 columns. Each of 8 warps loads 64 columns of X into registers once, and
 * multiplies 16 rows at a time; 4 more warps finish the previous 16 rows from another buffer. The
 * shared memory of X is free as soon as X is in registers.
 */
template <int DTYPE, int M, typename OPERANDS, typename RESULTS>
HZ_DEVICE void register_columns(const hzi_hadamard_base_mma &p, OPERANDS in, RESULTS out)
{
	constexpr int WARPS = 8, PITCH = 1024, BYTES = M * PITCH, PIECES = BYTES / 16;
	constexpr int TILES = M / 16, EXCHANGE = 16 * 2 * PITCH;
	constexpr int MULTIPLIERS = 32 * WARPS;
	const int lane = threadIdx.x % 32, w = threadIdx.x / 32, u = threadIdx.x - MULTIPLIERS;
	const bool multiplies = w < WARPS;
	const uint32_t memory = shared_address(shared);
	char *exchange = (char *)shared + BYTES;
	int64_t row;
	const int iterations = tiles_of_block(p.s, &row);
	typename RESULTS::piece *y = out.y + row * PIECES + (u >> 3) * 64 + (u & 7);
	int tile = 0;			/* of all rows */
	uint32_t at[4], x[TILES][4][4];

	constexpr int EACH = PIECES / MULTIPLIERS, PART = OPERANDS::SPLIT ? EACH / TILES : EACH;
	constexpr int UNROLL = OPERANDS::SPLIT ? EACH : 4;
	typename OPERANDS::template in_flight<EACH, false> in_flight;
	/* A thread's N pieces from its number first on */
	auto each = [&](int first, auto count, auto f) {
		constexpr int N = decltype(count)::value;

#pragma unroll UNROLL
		for (int n = 0; n < N; n++) {
			const int i = (first + n) * MULTIPLIERS + threadIdx.x;

			f(n, memory + (i ^ (i / 64 & 7)) * 16, i);
		}
	};
	auto begin = [&](int first, auto count) {
		if (first == 0)
			in.begin(in_flight, row * PIECES);
		each(first, count, [&](int n, uint32_t dst, int i) {
			in.load(in_flight, n, dst, row * PIECES + i);
		});
	};
	auto end = [&](int first, auto count) {
		each(first, count, [&](int n, uint32_t dst, int) { in.store(in_flight, n, dst); });
	};
	/* The previous 16 rows */
	auto finish_tile = [&] {
		finish_exchange<WARPS>(exchange + (~tile & 1) * EXCHANGE, u, out, y, 8);
		y += 16 * 64;
	};

	ldmatrix_addresses<PITCH>(at, memory + w * 128, lane);
	if (multiplies) {
		begin(0, std_int<EACH>());
		end(0, std_int<EACH>());
	}
	for (int iteration = 0; iteration < iterations; iteration++) {
		cp_async_wait_all();
		__syncthreads();
		if (multiplies) {
#pragma unroll
			for (int l = 0; l < TILES; l++) {
#pragma unroll
				for (int n = 0; n < 4; n++)
					ldmatrix_x4_trans(x[l][n], at[n] + l * 16 * PITCH);
			}
		}
		__syncthreads();
		row++;
#pragma unroll 1
		for (int t = 0; t < TILES; t++, tile++) {
			const bool more = iteration + 1 < iterations && (OPERANDS::SPLIT || t == 0);

			if (multiplies) {
				if (more)
					begin(t * PART, std_int<PART>());
				char *dst = exchange + (tile & 1) * EXCHANGE +
					    (lane >> 2) * (2 * PITCH);
				float v[32] = {};

#pragma unroll
				for (int l = 0; l < TILES; l++) {
					uint32_t a[4];

					base_entries<DTYPE>(a, p, t, l, lane);
#pragma unroll
					for (int n = 0; n < 4; n++) {
						mma_m16n8k16<DTYPE>(v + 8 * n, a[0], a[1], a[2],
								    a[3], x[l][n][0], x[l][n][1]);
						mma_m16n8k16<DTYPE>(v + 8 * n + 4, a[0], a[1], a[2],
								    a[3], x[l][n][2], x[l][n][3]);
					}
				}
				/* Strides 1, 8, 16, 32 */
#pragma unroll
				for (int h = 0; h < 2; h++) {
					float f[16];

#pragma unroll
					for (int i = 0; i < 16; i++)
						f[i] = v[4 * (i / 2) + 2 * h + i % 2];
					stages<16, 0, 4>(f, 4);
					store_exchange(f, dst + 8 * h * (2 * PITCH), w, lane);
				}
				if (more)
					end(t * PART, std_int<PART>());
			} else {
				if (t == 1)
					out.ready();
				if (tile)
					finish_tile();
				if (t == 0)
					out.begin(y - out.y);
			}
			__syncthreads();
		}
	}
	if (!multiplies)
		finish_tile();
}

/* ---- Kernels --------------------------------------------------------------------------------- */

/*
 * The kernels of an image: KERNEL(name, threads, blocks per SM from 16 to 16 bits, to codes, from
 * codes, function, its template arguments but DTYPE). m12_6 is for rows of 12 2^6 elements. base.c
 * has the same numbers.
 */
#define BASE_MMA_MIDDLE_12(KERNEL) \
	KERNEL(m12_7, 64, 14, 10, 14, warp_columns, 12, 0, 2) \
	KERNEL(m12_8, 96, 10, 8, 8, warp_rows, 12 * 4, 64, 3) \
	KERNEL(m12_9, 96, 6, 5, 5, warp_rows, 12 * 4, 128, 4) \
	KERNEL(m12_10, 192, 3, 3, 2, group_rows, 12 * 4, 2, 3)
#define BASE_MMA_MIDDLE_20(KERNEL) \
	KERNEL(m20_7, 64, 8, 8, 8, warp_columns, 20, 0, 2) \
	KERNEL(m20_8, 128, 5, 5, 4, warp_columns, 20, 0, 4) \
	KERNEL(m20_9, 160, 3, 3, 3, warp_rows, 20 * 4, 128, 4) \
	KERNEL(m20_10, 320, 2, 2, 2, group_rows, 20 * 4, 2, 5)
#define BASE_MMA_MIDDLE_28(KERNEL) \
	KERNEL(m28_7, 64, 7, 7, 7, warp_columns, 28, 0, 2) \
	KERNEL(m28_8, 128, 4, 4, 4, warp_columns, 28, 0, 4) \
	KERNEL(m28_9, 256, 2, 2, 2, warp_columns, 28, 0, 8) \
	KERNEL(m28_10, 448, 1, 1, 1, group_rows, 28 * 4, 2, 7)
#define BASE_MMA_KERNELS(KERNEL) \
	KERNEL(m12_6, 96, 10, 8, 8, warp_rows, 12 * 4, 64, -1) \
	BASE_MMA_MIDDLE_12(KERNEL) \
	KERNEL(m12_11, 384, 1, 1, 1, register_columns, 12 * 4) \
	KERNEL(m12_12, 512, 1, 1, 1, group_rows, 12 * 4, 8, 2) \
	KERNEL(m20_6, 160, 6, 5, 4, warp_rows, 20 * 4, 64, -1) \
	BASE_MMA_MIDDLE_20(KERNEL) \
	KERNEL(m20_11, 384, 1, 1, 1, register_columns, 20 * 4) \
	KERNEL(m28_6, 224, 4, 4, 4, warp_rows, 28 * 4, 64, -1) \
	BASE_MMA_MIDDLE_28(KERNEL) \
	KERNEL(m28_11, 384, 1, 1, 1, register_columns, 28 * 4)

/* Those of m 2^7 to m 2^10 elements */
#define BASE_MMA_MIDDLE_KERNELS(KERNEL) \
	BASE_MMA_MIDDLE_12(KERNEL) BASE_MMA_MIDDLE_20(KERNEL) BASE_MMA_MIDDLE_28(KERNEL)

/* ---- Operands of 16 bits --------------------------------------------------------------------- */

/* 16-bit operands: cp.async copies them, nothing passes through registers. */
struct copy_operands {
	static constexpr bool SPLIT = false;
	template <int N, bool EACH>
	struct in_flight {
	};
	const uint4 *x;

	HZ_MEMBER copy_operands(const hzi_hadamard_base_mma &p)
		: x((const uint4 *)p.x)
	{
	}
	template <typename W>
	HZ_MEMBER void begin(W &, int64_t) const
	{
	}
	template <typename W>
	HZ_MEMBER void load(W &, int, uint32_t dst, int64_t i) const
	{
		cp_async(dst, x + i);
	}
	template <typename W>
	HZ_MEMBER void store(W &, int, uint32_t) const
	{
	}
};

/* ---- Results of 16 bits ---------------------------------------------------------------------- */

/* Stores two pieces of each of 16 rows to shared memory. */
HZ_DEVICE void store_matrix(uint32_t address, uint32_t a, uint32_t b, uint32_t c, uint32_t d,
			    int lane)
{
	const uint32_t r[4] = {a, b, c, d};

#if __CUDA_ARCH__ >= 900
	stmatrix_x4(address, r);
#else
#pragma unroll
	for (int i = 0; i < 4; i++) {
		const uint32_t row = __shfl_sync(0xffffffff, address, 8 * i + (lane >> 2));

		asm volatile("st.shared.u32 [%0], %1;"
			     :: "r"(row + 4 * (lane & 3)), "r"(r[i]) : "memory");
	}
#endif
}

/* 16-bit results */
template <int DTYPE>
struct store_16bit {
	using piece = uint4;
	uint4 *y;
	float factor;

	template <typename PARAMS>
	HZ_MEMBER store_16bit(const PARAMS &p)
		: y((uint4 *)p.y), factor(p.factor)
	{
	}
	HZ_MEMBER void begin(int64_t) const
	{
	}
	HZ_MEMBER void ready() const
	{
	}
	HZ_MEMBER void store(uint4 *dst, float *f) const
	{
#pragma unroll
		for (int i = 0; i < 8; i++)
			f[i] = __fmul_rn(f[i], factor);
		*dst = make_uint4(to_16x2<DTYPE>(f[0], f[1]), to_16x2<DTYPE>(f[2], f[3]),
				 to_16x2<DTYPE>(f[4], f[5]), to_16x2<DTYPE>(f[6], f[7]));
	}
	/*
	 * own: the warp's scratch in shared memory; piece_index(i): the index in dst of piece i, or
	 * -1
	 */
	template <int COLUMNS, bool SHORT, typename F>
	HZ_MEMBER void rows(float *v, char *own, uint4 *dst, int, int s, F piece_index) const
	{
		constexpr int PITCH = 2 * COLUMNS;
		const int lane = threadIdx.x % 32;
		uint32_t at[4];

		ldmatrix_addresses<PITCH>(at, shared_address(own), lane);
#pragma unroll
		for (int n = 0; n < COLUMNS / 16; n++) {
			float *c = v + 8 * n;

#pragma unroll
			for (int i = 0; i < 8; i++)
				c[i] = __fmul_rn(c[i], factor);
			store_matrix(at[n & 3] + (n >> 2) * 128, to_16x2<DTYPE>(c[0], c[1]),
				     to_16x2<DTYPE>(c[2], c[3]), to_16x2<DTYPE>(c[4], c[5]),
				     to_16x2<DTYPE>(c[6], c[7]), lane);
		}
		__syncwarp();
#pragma unroll
		for (int n = 0; n < COLUMNS / 16; n++) {
			const int i = 32 * n + lane, j = piece_index(i);
			const tile_index src = tile_index_of(i, s);

			if (j >= 0)
				dst[j] = *(const uint4 *)(own + src.row * PITCH +
							  (src.piece ^ (src.row & 7)) * 16);
		}
	}
};

#endif
