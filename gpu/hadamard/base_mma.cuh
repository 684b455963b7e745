/*
 * base_mma.cuh - transforms of rows of m 2^k elements of 16 bits back to back
 *
 * SPDX-License-Identifier: BSD-2-Clause
 *
 * A row is a matrix X of M = 2^d m rows of 2^(k - d) places, and the transform (B (x) S_2^d) X S.
 * The product with B (x) S_2^d comes first: its entries are +-1 and X is raw data, so the matrix
 * units take both as they are, products are exact and sums in f32. Strides below 2^(k - d) follow.
 *
 * X lies in shared memory as it does in memory, pieces of 8 places in an order that an exclusive or
 * with the row's number makes, so that ldmatrix and stmatrix meet no bank twice. What limits these
 * kernels is shared memory, 128 bytes a cycle, where a shuffle costs as much as a load. Four ways:
 *
 *	base_rows	d = 2; a warp computes 16 rows at 64 or 128 places, all that there are
 *	base_wide	d <= 1; a warp computes all rows at 64 places, loads its part of X alone
 *	base_long	d = 2; several warps share the places of 16 rows
 *	base_held	d = 2; as base_wide, 16 rows after the other
 *
 * How pieces of X come to shared memory is an IN's business. begin(i) says that those from number i
 * on follow; for piece i, the n-th of a thread, fetch() is called before the products of the X
 * before and put() behind them, with an IN::way for what is held between these. IN::PARTS: a
 * thread's pieces had better come a few at a time where that can be.
 *
 * What becomes of sums is an OUT's: out.y is where the first piece of 8 results goes, of
 * OUT::piece; begin(i), that pieces from number i on follow, and ready(), before the first of them,
 * get what they need; put() takes 8 sums, rows() those of base_rows.
 */
#ifndef HZI_GPU_HADAMARD_BASE_MMA_CUH
#define HZI_GPU_HADAMARD_BASE_MMA_CUH

#include "gpu/hadamard/base_f32.cuh"
#include "gpu/device/shared.cuh"

/* ---- The product ----------------------------------------------------------------------------- */

HZ_DEVICE uint32_t repeat_half(uint32_t word, int half)
{
	return __byte_perm(word, 0, half ? 0x3232 : 0x1010);
}

/*
 * Rows 16 t .. and columns 16 l .. of B (x) S_4, as the matrix units take them. Row 4 j + s and
 * column 4 i + r have the sign of B_ji and of s & r. A thread has columns 2 q, 2 q + 1, and 8
 * behind, of rows g and g + 8: i = 4 l + (q >> 1) + 2 h, r = (2 q & 3) + e.
 */
template <int DTYPE>
HZ_DEVICE void base_entries(uint32_t *a, const hzi_hadamard_base_mma &p, int t, int l, int lane)
{
	const int g = lane >> 2, q = lane & 3, j = 4 * t + (g >> 2);
	const uint32_t low = repeat_half(p.sign[j], q >> 1);
	const uint32_t high = repeat_half(p.sign[j + 2], q >> 1);
	const uint32_t one = (DTYPE == HZ_BF16 ? 0x3f803f80 : 0x3c003c00) ^
			     (g >> 1 & q & 1 ? 0x80008000 : 0) ^ (g & 1 ? 0x80000000 : 0);

	a[0] = one ^ (low << (15 - 2 * l) & 0x80008000);
	a[1] = one ^ (high << (15 - 2 * l) & 0x80008000);
	a[2] = one ^ (low << (14 - 2 * l) & 0x80008000);
	a[3] = one ^ (high << (14 - 2 * l) & 0x80008000);
}

/*
 * v = rows 16 t .. 16 t + 15 of the product, at[i]: where this lane's address for the pieces 2 i
 * and 2 i + 1 of 8 is. v[8 n + 4 h + ..]: piece 2 n + h; of the four the first two are of row g,
 * the others of row g + 8, at places 2 q and 2 q + 1.
 */
template <int DTYPE, int M, int PLACES, int PITCH>
HZ_DEVICE void base_product(float *v, const hzi_hadamard_base_mma &p, const uint32_t *at, int t,
			    int lane)
{
#pragma unroll
	for (int i = 0; i < PLACES / 2; i++)
		v[i] = 0;
#pragma unroll
	for (int l = 0; l < M / 16; l++) {
		uint32_t a[4];

		base_entries<DTYPE>(a, p, t, l, lane);
#pragma unroll
		for (int n = 0; n < PLACES / 16; n++) {
			uint32_t b[4];

			ldmatrix_x4_trans(b, at[n & 3] + (n >> 2) * 128 + l * 16 * PITCH);
			mma_m16n8k16<DTYPE>(v + 8 * n, a[0], a[1], a[2], a[3], b[0], b[1]);
			mma_m16n8k16<DTYPE>(v + 8 * n + 4, a[0], a[1], a[2], a[3], b[2], b[3]);
		}
	}
}

/* Strides below 8, then the first count from there on */
template <int PLACES>
HZ_DEVICE void base_strides(float *v, int count, int lane)
{
	constexpr int LOG2 = PLACES == 128 ? 6 : 5;

	stage<PLACES / 2, 0>(v);
	lane_stage<PLACES / 2>(v, lane, 1);
	lane_stage<PLACES / 2>(v, lane, 2);
	stages<PLACES / 2, 2, LOG2>(v, count);
}

/* Where this lane's addresses are in a matrix of rows of PITCH bytes; first: its first piece's */
template <int PITCH>
HZ_DEVICE void lane_addresses(uint32_t *at, uint32_t first, int lane)
{
#pragma unroll
	for (int i = 0; i < 4; i++)
		at[i] = first + (lane & 15) * PITCH + ((2 * i) ^ (lane >> 4) ^ (lane & 7)) * 16;
}

/* ---- A warp has all places ------------------------------------------------------------------- */

/* Piece i, in the order of memory, of a warp's 16 rows of X: which of what row it is */
struct place {
	int row, piece;
};

HZ_DEVICE place place_of(int i, int s)
{
	return {i >> s & 15, i >> (s + 4) << s | (i & ((1 << s) - 1))};
}

/*
 * Of short rows beside one another, of so many pieces each, some piece of the row that piece n of X
 * is of; first: the first of all these, of total
 */
HZ_DEVICE int64_t piece_of_row(int64_t first, int n, int s, int pieces, int64_t total)
{
	const int64_t i = first + (int64_t)(n >> s) * pieces;

	return i < total ? i : first;
}

/*
 * Rows to 2^(k - 2) = PLACES = 8 2^S; with S = -1 those to m 2^6, beside one another. A warp
 * loads and stores the 16 rows of X that it computes, which lie back to back. Blocks stay, and have
 * the next rows under way; a warp's results have a place of their own, 16 PITCH bytes.
 */
template <int DTYPE, int M, int PLACES, int S, typename IN, typename OUT>
HZ_DEVICE void base_rows(const hzi_hadamard_base_mma &p, IN in, OUT out)
{
	constexpr int PITCH = 2 * PLACES, LOG2 = PLACES == 128 ? 4 : 3;
	const int lane = threadIdx.x % 32, t = threadIdx.x / 32;
	const int s = S < 0 ? p.k - 5 : S;	/* log2 of the pieces in a row of X */
	const uint32_t memory = shared_address(shared);
	uint32_t at[4];
	float v[PLACES / 2];

	/* Piece i of the warp's, in the order of memory: where it is there and in shared memory */
	auto outside = [&](int i, int s) {
		return (i >> (s + 4)) * (M << s) + (i & ((16 << s) - 1));
	};
	auto inside = [&](int i, int s) {
		const place at = place_of(i, s);

		return at.row * PITCH + (at.piece ^ (at.row & 7)) * 16;
	};
	typename IN::template way<PLACES / 16, S < 0> way;
	auto each = [&](int64_t tile, int buffer, auto f) {
		const int64_t first = tile << (LOG2 - s), left = p.rows - first;
		const int64_t at_x = first * (M << s) + (16 * t << s);
		const uint32_t own = memory + (buffer * M + 16 * t) * PITCH;

#pragma unroll
		for (int n = 0; n < PLACES / 16; n++) {
			const int i = 32 * n + lane;

			if (S == LOG2 || i >> (s + 4) < left)
				f(n, own + inside(i, s), at_x + outside(i, s));
		}
	};
	auto begin = [&](int64_t tile, int buffer) {
		in.begin(way, (tile << (LOG2 - s)) * (M << s));
		each(tile, buffer,
		     [&](int n, uint32_t to, int64_t i) { in.fetch(way, n, to, i); });
	};
	auto end = [&](int64_t tile, int buffer) {
		each(tile, buffer, [&](int n, uint32_t to, int64_t) { in.put(way, n, to); });
	};

	int64_t tile;
	const int turns = turns_of_block(p.s, &tile);

	begin(tile, 0);
	end(tile, 0);
	for (int turn = 0; turn < turns; turn++, tile++) {
		const int64_t first = tile << (LOG2 - s), left = p.rows - first;
		const int64_t at_y = first * (M << s) + (16 * t << s);
		const int buffer = turn & 1;

		cp_async_wait_all();
		__syncthreads();
		if (turn + 1 < turns)
			begin(tile + 1, buffer ^ 1);
		out.begin(at_y);
		lane_addresses<PITCH>(at, memory + buffer * M * PITCH, lane);
		base_product<DTYPE, M, PLACES, PITCH>(v, p, at, t, lane);
		base_strides<PLACES>(v, s, lane);
		out.ready();
		out.template rows<PLACES, S < 0>(
			v, (char *)shared + (2 * M + 16 * t) * PITCH, out.y + at_y, M << s, s,
			[&](int i) {
				return S == LOG2 || i >> (s + 4) < left ? outside(i, s) : -1;
			});
		if (turn + 1 < turns)
			end(tile + 1, buffer ^ 1);
		__syncwarp();
	}
}

/*
 * The pieces of rows of X for all threads of a block: way has what an IN holds between fetch() and
 * put(). to: a buffer in shared memory
 */
template <typename IN, int PIECES, int THREADS, int PLACES, int UNROLL>
struct row_loader {
	static constexpr int EACH = (PIECES + THREADS - 1) / THREADS;
	const IN &in;
	typename IN::template way<EACH, false> way;

	template <typename F>
	HZ_MEMBER void each(uint32_t to, F f)
	{
#pragma unroll UNROLL
		for (int n = 0; n < EACH; n++) {
			const int i = n * THREADS + threadIdx.x;

			if (PIECES % THREADS == 0 || i < PIECES)
				f(n, to + (i ^ (i / (PLACES / 8) & 7)) * 16, i);
		}
	}
	HZ_MEMBER void begin(int64_t row, uint32_t to)
	{
		in.begin(way, row * PIECES);
		each(to, [&](int n, uint32_t at, int i) {
			in.fetch(way, n, at, row * PIECES + i);
		});
	}
	HZ_MEMBER void end(uint32_t to)
	{
		each(to, [&](int n, uint32_t at, int) { in.put(way, n, at); });
	}
};

/* ---- Sums go through shared memory ----------------------------------------------------------- */

/*
 * Strides that are between lanes and between WARPS warps follow after an exchange through shared
 * memory: shuffles would cost it as much. Rows are of WARPS times 64 places, pieces of 4 of them in
 * an order, by exclusive or, in which neither way of access meets a bank twice.
 *
 * Here v[2 n ..] = places 8 n + 2 q, 8 n + 2 q + 1 of the warp's 64 in a row that to is the
 * beginning of.
 */
HZ_DEVICE void put_sums(const float *v, char *to, int w, int lane)
{
	const int g = lane >> 2, q = lane & 3, order = (q >> 1) ^ (g & 3) << 1;

	to += w * 256 + (q & 1) * 8;
#pragma unroll
	for (int n = 0; n < 8; n++)
		*(float2 *)(to + (((2 * n) ^ (n >> 2)) ^ order) * 16) =
			make_float2(v[2 * n], v[2 * n + 1]);
}

/*
 * Task u is chunk u % 8 of 8 places, of row u / 8: takes it of all warps, does the strides 2 and 4
 * and those of warps, and puts it to y, which lies step pieces of 8 places from one warp's to the
 * next.
 */
template <int WARPS, typename OUT>
HZ_DEVICE void take_sums(const char *sums, int u, const OUT &out, typename OUT::piece *y, int step)
{
	constexpr int N = 8 * WARPS, STAGES = WARPS == 2 ? 1 : WARPS == 4 ? 2 : 3;
	const int row = u >> 3, chunk = u & 7, order = (2 * chunk) ^ (chunk >> 2) ^ (row & 3) << 1;
	const char *from = sums + row * (256 * WARPS) + order * 16;
	const char *next = sums + row * (256 * WARPS) + (order ^ 1) * 16;
	float v[N];

#pragma unroll
	for (int i = 0; i < WARPS; i++) {
		*(float4 *)&v[8 * i] = *(const float4 *)(from + i * 256);
		*(float4 *)&v[8 * i + 4] = *(const float4 *)(next + i * 256);
	}
	stages<N, 1, 3 + STAGES>(v, 2 + STAGES);
#pragma unroll
	for (int i = 0; i < WARPS; i++)
		out.put(y + i * step, v + 8 * i);
}

/* ---- A warp has all rows --------------------------------------------------------------------- */

/*
 * Here X has m 2^D rows. A warp computes all of them at 64 places, so that it loads its part of X
 * once, and the multiplier, with rows and columns up to the next multiple of 8, stays in registers.
 */
template <int M, int D>
struct wide {
	static constexpr int ROWS = M << D;
	static constexpr int EIGHTS = (ROWS + 7) / 8;	/* of rows */
	static constexpr int TILES = (EIGHTS + 1) / 2;
	static constexpr bool PADDED = ROWS % 8 != 0;	/* then by 4 */
};

/* Entries (row, column) and (row, column + 1) of the multiplier */
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

template <int DTYPE, int M, int D, int WARPS, typename IN, typename OUT>
HZ_DEVICE void base_wide(const hzi_hadamard_base_mma &p, IN in, OUT out)
{
	using X = wide<M, D>;
	constexpr int E = X::EIGHTS, TILES = X::TILES, PLACES = 64 * WARPS, PITCH = 2 * PLACES;
	constexpr int THREADS = 32 * WARPS, BYTES = X::ROWS * PITCH, PIECES = BYTES / 16;
	const int lane = threadIdx.x % 32, w = threadIdx.x / 32, g = lane >> 2, q = lane & 3;
	const uint32_t memory = shared_address(shared), keep = q < 2 ? 0xffffffff : 0;
	char *sums = (char *)shared + 2 * BYTES;
	uint32_t a[TILES][E][2];

#pragma unroll
	for (int t = 0; t < TILES; t++) {
#pragma unroll
		for (int l = 0; l < E; l++) {
			a[t][l][0] = entries<DTYPE, D>(p, 16 * t + g, 8 * l + 2 * q);
			/* Of rows beyond the last 8 nobody looks at the results. */
			a[t][l][1] = 2 * t + 1 < E
					     ? entries<DTYPE, D>(p, 16 * t + 8 + g, 8 * l + 2 * q)
					     : a[t][l][0];
		}
	}

	row_loader<IN, PIECES, THREADS, PLACES, (PIECES + THREADS - 1) / THREADS> load = {in};
	int64_t row;
	const int turns = turns_of_block(p.s, &row);

	load.begin(row, memory);
	load.end(memory);
	for (int turn = 0; turn < turns; turn++, row++) {
		const int buffer = turn & 1;
		uint32_t at[4], half[4];
		float c[8][TILES][4];

		cp_async_wait_all();
		__syncthreads();
		if (turn + 1 < turns)
			load.begin(row + 1, memory + (buffer ^ 1) * BYTES);
		out.begin(row * PIECES);
		lane_addresses<PITCH>(at, memory + buffer * BYTES + w * 128, lane);
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
					b[h][E - 1] &= keep;	/* it need not be finite */
#pragma unroll
				for (int t = 0; t < TILES; t++) {
					float *to = c[2 * i + h][t];

					to[0] = to[1] = to[2] = to[3] = 0;
#pragma unroll
					for (int l = 0; l < E / 2; l++)
						mma_m16n8k16<DTYPE>(to, a[t][2 * l][0],
								    a[t][2 * l][1],
								    a[t][2 * l + 1][0],
								    a[t][2 * l + 1][1], b[h][2 * l],
								    b[h][2 * l + 1]);
					if (E % 2)
						mma_m16n8k8<DTYPE>(to, a[t][E - 1][0],
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
				put_sums(v, sums + (8 * l + g) * (2 * PITCH), w, lane);
		}
		out.ready();
		__syncthreads();
#pragma unroll
		for (int n = 0; n < (8 * X::ROWS + THREADS - 1) / THREADS; n++) {
			const int u = n * THREADS + threadIdx.x;

			if (8 * X::ROWS % THREADS == 0 || u < 8 * X::ROWS)
				take_sums<WARPS>(sums, u, out, out.y + row * PIECES +
						 (u >> 3) * (PLACES / 8) + (u & 7), 8);
		}
		if (turn + 1 < turns)
			load.end(memory + (buffer ^ 1) * BYTES);
	}
}

/* ---- Long rows: a group of warps has 16 rows of X -------------------------------------------- */

/*
 * Rows of 2^(k - 2) = 128 WARPS places. A group of WARPS warps computes 16 rows of X and exchanges
 * sums in two rounds of 64 places a warp. If there is a group for each 16 rows, they go to where X
 * was, and the next X is under way meanwhile.
 */
template <int DTYPE, int M, int WARPS, int GROUPS, typename IN, typename OUT>
HZ_DEVICE void base_long(const hzi_hadamard_base_mma &p, IN in, OUT out)
{
	constexpr int PLACES = 128 * WARPS, PITCH = 2 * PLACES, THREADS = 32 * WARPS * GROUPS;
	constexpr int BYTES = M * PITCH, PIECES = BYTES / 16;
	constexpr bool ALL = GROUPS == M / 16;
	const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, w = warp % WARPS;
	const int group = warp / WARPS;
	const uint32_t memory = shared_address(shared);
	uint32_t at[4];
	float v[64];

	static_assert(PIECES % THREADS == 0, "all threads have as many pieces");
	row_loader<IN, PIECES, THREADS, PLACES, IN::PARTS ? PIECES / THREADS : 4> load = {in};
	int64_t row;
	const int turns = turns_of_block(p.s, &row);

	load.begin(row, memory);
	load.end(memory);
	for (int turn = 0; turn < turns; turn++, row++) {
		const int buffer = ALL ? turn & 1 : 0;
		char *sums = (char *)shared + (ALL ? buffer : 1) * BYTES + group * 16 * PITCH;

		cp_async_wait_all();
		__syncthreads();
		if (ALL && turn + 1 < turns)
			load.begin(row + 1, memory + (buffer ^ 1) * BYTES);
		out.begin(row * PIECES);
		lane_addresses<PITCH>(at, memory + buffer * BYTES + w * 256, lane);
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
					put_sums(f, sums + (8 * h + (lane >> 2)) * PITCH, w, lane);
				}
				bar_sync(1 + group, 32 * WARPS);
				for (int u = threadIdx.x % (32 * WARPS); u < 128; u += 32 * WARPS)
					take_sums<WARPS>(sums, u, out, out.y + row * PIECES +
							 (16 * t + (u >> 3)) * (PLACES / 8) +
							 8 * round + (u & 7), 16);
			}
		}
		if (!ALL) {
			/* racecheck loses count unless all groups wait as often, four times a t. */
			if (M / 16 % GROUPS && group >= M / 16 % GROUPS) {
				for (int i = 0; i < 4; i++)
					bar_sync(1 + group, 32 * WARPS);
			}
			__syncthreads();
			if (turn + 1 < turns)
				load.begin(row + 1, memory);
		}
		if (turn + 1 < turns)
			load.end(memory + (ALL ? buffer ^ 1 : 0) * BYTES);
	}
}

/* ---- Long rows: a warp holds its part of X --------------------------------------------------- */

/*
 * Rows of 2^(k - 2) = 512 places. Each of 8 warps takes 64 places of X into registers, once, and
 * makes 16 rows of the product after the other; 4 more warps take the sums of the 16 before, from
 * another buffer. X's place is free as soon as it is in registers.
 */
template <int DTYPE, int M, typename IN, typename OUT>
HZ_DEVICE void base_held(const hzi_hadamard_base_mma &p, IN in, OUT out)
{
	constexpr int WARPS = 8, PITCH = 1024, BYTES = M * PITCH, PIECES = BYTES / 16;
	constexpr int TILES = M / 16, SUMS = 16 * 2 * PITCH;
	constexpr int MAKERS = 32 * WARPS;
	const int lane = threadIdx.x % 32, w = threadIdx.x / 32, u = threadIdx.x - MAKERS;
	const bool maker = w < WARPS;
	const uint32_t memory = shared_address(shared);
	char *sums = (char *)shared + BYTES;
	int64_t row;
	const int turns = turns_of_block(p.s, &row);
	typename OUT::piece *y = out.y + row * PIECES + (u >> 3) * 64 + (u & 7);
	int tile = 0;			/* of all turns */
	uint32_t at[4], x[TILES][4][4];

	constexpr int EACH = PIECES / MAKERS, PART = IN::PARTS ? EACH / TILES : EACH;
	constexpr int UNROLL = IN::PARTS ? EACH : 4;
	typename IN::template way<EACH, false> way;
	/* A thread's next N pieces, behind first */
	auto each = [&](int first, auto count, auto f) {
		constexpr int N = decltype(count)::value;

#pragma unroll UNROLL
		for (int n = 0; n < N; n++) {
			const int i = (first + n) * MAKERS + threadIdx.x;

			f(n, memory + (i ^ (i / 64 & 7)) * 16, i);
		}
	};
	auto begin = [&](int first, auto count) {
		if (first == 0)
			in.begin(way, row * PIECES);
		each(first, count, [&](int n, uint32_t to, int i) {
			in.fetch(way, n, to, row * PIECES + i);
		});
	};
	auto end = [&](int first, auto count) {
		each(first, count, [&](int n, uint32_t to, int) { in.put(way, n, to); });
	};
	/* The sums before, of which the next are 16 rows further */
	auto take = [&] {
		take_sums<WARPS>(sums + (~tile & 1) * SUMS, u, out, y, 8);
		y += 16 * 64;
	};

	lane_addresses<PITCH>(at, memory + w * 128, lane);
	if (maker) {
		begin(0, number<EACH>());
		end(0, number<EACH>());
	}
	for (int turn = 0; turn < turns; turn++) {
		cp_async_wait_all();
		__syncthreads();
		if (maker) {
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
			const bool more = turn + 1 < turns && (IN::PARTS || t == 0);

			if (maker) {
				if (more)
					begin(t * PART, number<PART>());
				char *to = sums + (tile & 1) * SUMS + (lane >> 2) * (2 * PITCH);
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
					put_sums(f, to + 8 * h * (2 * PITCH), w, lane);
				}
				if (more)
					end(t * PART, number<PART>());
			} else {
				if (t == 1)
					out.ready();
				if (tile)
					take();
				if (t == 0)
					out.begin(y - out.y);
			}
			__syncthreads();
		}
	}
	if (!maker)
		take();
}

/* ---- Kernels --------------------------------------------------------------------------------- */

/*
 * The kernels of an image: KERNEL(name, threads, blocks per SM from 16 to 16 bits, to codes, from
 * codes, function, its template arguments but DTYPE). m12_6 is for rows of 12 2^6 elements. base.c
 * has the same numbers.
 */
#define BASE_MMA_KERNELS(KERNEL) \
	KERNEL(m12_6, 96, 10, 8, 8, base_rows, 12 * 4, 64, -1) \
	KERNEL(m12_7, 64, 14, 10, 14, base_wide, 12, 0, 2) \
	KERNEL(m12_8, 96, 10, 8, 8, base_rows, 12 * 4, 64, 3) \
	KERNEL(m12_9, 96, 6, 5, 5, base_rows, 12 * 4, 128, 4) \
	KERNEL(m12_10, 192, 3, 3, 2, base_long, 12 * 4, 2, 3) \
	KERNEL(m12_11, 384, 1, 1, 1, base_held, 12 * 4) \
	KERNEL(m12_12, 512, 1, 1, 1, base_long, 12 * 4, 8, 2) \
	KERNEL(m20_6, 160, 6, 5, 4, base_rows, 20 * 4, 64, -1) \
	KERNEL(m20_7, 64, 8, 8, 8, base_wide, 20, 0, 2) \
	KERNEL(m20_8, 128, 5, 5, 4, base_wide, 20, 0, 4) \
	KERNEL(m20_9, 160, 3, 3, 3, base_rows, 20 * 4, 128, 4) \
	KERNEL(m20_10, 320, 2, 2, 2, base_long, 20 * 4, 2, 5) \
	KERNEL(m20_11, 384, 1, 1, 1, base_held, 20 * 4) \
	KERNEL(m28_6, 224, 4, 4, 4, base_rows, 28 * 4, 64, -1) \
	KERNEL(m28_7, 64, 7, 7, 7, base_wide, 28, 0, 2) \
	KERNEL(m28_8, 128, 4, 4, 4, base_wide, 28, 0, 4) \
	KERNEL(m28_9, 256, 2, 2, 2, base_wide, 28, 0, 8) \
	KERNEL(m28_10, 448, 1, 1, 1, base_long, 28 * 4, 2, 7) \
	KERNEL(m28_11, 384, 1, 1, 1, base_held, 28 * 4)

/* ---- Operands of 16 bits --------------------------------------------------------------------- */

/* See above: they come by themselves. */
struct from_values {
	static constexpr bool PARTS = false;
	template <int N, bool EACH>
	struct way {
	};
	const uint4 *x;

	HZ_MEMBER from_values(const hzi_hadamard_base_mma &p)
		: x((const uint4 *)p.x)
	{
	}
	template <typename W>
	HZ_MEMBER void begin(W &, int64_t) const
	{
	}
	template <typename W>
	HZ_MEMBER void fetch(W &, int, uint32_t to, int64_t i) const
	{
		cp_async(to, x + i);
	}
	template <typename W>
	HZ_MEMBER void put(W &, int, uint32_t) const
	{
	}
};

/* ---- Results of 16 bits ---------------------------------------------------------------------- */

/* Puts two pieces of 16 rows into shared memory. */
HZ_DEVICE void store_pieces(uint32_t address, uint32_t a, uint32_t b, uint32_t c, uint32_t d,
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

/* See above. */
template <int DTYPE>
struct to_values {
	using piece = uint4;
	uint4 *y;
	float factor;

	HZ_MEMBER to_values(const hzi_hadamard_base_mma &p)
		: y((uint4 *)p.y), factor(p.factor)
	{
	}
	HZ_MEMBER void begin(int64_t) const
	{
	}
	HZ_MEMBER void ready() const
	{
	}
	HZ_MEMBER void put(uint4 *to, float *f) const
	{
#pragma unroll
		for (int i = 0; i < 8; i++)
			f[i] = __fmul_rn(f[i], factor);
		*to = make_uint4(to_16x2<DTYPE>(f[0], f[1]), to_16x2<DTYPE>(f[2], f[3]),
				 to_16x2<DTYPE>(f[4], f[5]), to_16x2<DTYPE>(f[6], f[7]));
	}
	/* own: in shared memory; outside(i): where to[] has piece i, or -1 */
	template <int PLACES, bool SHORT, typename F>
	HZ_MEMBER void rows(float *v, char *own, uint4 *to, int, int s,
					     F outside) const
	{
		constexpr int PITCH = 2 * PLACES;
		const int lane = threadIdx.x % 32;
		uint32_t at[4];

		lane_addresses<PITCH>(at, shared_address(own), lane);
#pragma unroll
		for (int n = 0; n < PLACES / 16; n++) {
			float *c = v + 8 * n;

#pragma unroll
			for (int i = 0; i < 8; i++)
				c[i] = __fmul_rn(c[i], factor);
			store_pieces(at[n & 3] + (n >> 2) * 128, to_16x2<DTYPE>(c[0], c[1]),
				     to_16x2<DTYPE>(c[2], c[3]), to_16x2<DTYPE>(c[4], c[5]),
				     to_16x2<DTYPE>(c[6], c[7]), lane);
		}
		__syncwarp();
#pragma unroll
		for (int n = 0; n < PLACES / 16; n++) {
			const int i = 32 * n + lane, j = outside(i);
			const place from = place_of(i, s);

			if (j >= 0)
				to[j] = *(const uint4 *)(own + from.row * PITCH +
							 (from.piece ^ (from.row & 7)) * 16);
		}
	}
};

#endif
