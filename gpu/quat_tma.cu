/*
 * quat_tma.cu - products of quaternion matrices on Hopper
 *
 * SPDX-License-Identifier: BSD-2-Clause
 *
 * Four blocks of a cluster do a tile of 256 rows by COLUMNS columns of quaternions. Two have its
 * upper half and two its lower; of these blocks the one of even rank has components 0 and 1 of the
 * sums in its registers and the other 2 and 3. Planes of both operands come by the copy engine into
 * a ring in shared memory, columns for upper and lower half at once.
 *
 * Eight products: with H the Hadamard matrix of order 4, P = (H left / 4) (H right), plane by plane,
 * and Q = (2 a e, 2 d g, 2 b h, 2 c f) for left (a, b, c, d) and right (e, f, g, h), the result is
 * (Q0 - G0, G1 - Q1, G2 - Q2, G3 - Q3), where G = H P. Phase 0 sums P over all of k; then a block
 * has P0 + P1 and P0 - P1, or these of P2 and P3, gives one of them away, gets the other's and has
 * -G0 and -G1, or -G2 and -G3, on which phase 1 adds Q: so a result's conjugate.
 */
#include "gpu/quat_gemm.cuh"
#include "gpu/quat_tma.h"
#include "gpu/tma.cuh"
#include "gpu/wgmma_f16.cuh"

/* Not while nvcc reads the host's side, which has no code of its own here, are kernels left out. */
#if !defined(__CUDA_ARCH__) || defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define HAVE_WGMMA 1
#else
#define HAVE_WGMMA 0
#endif

#if HAVE_WGMMA

#define STAGES HZI_QT_STAGES

template <int COLUMNS>
struct memory {
	/* For what blocks give each other: 8 sums of each thread; an exchange is two rounds. */
	static constexpr int slots = COLUMNS / 32;

	uint8_t a[STAGES][HZI_QT_ROWS * 128];
	uint8_t b[STAGES][COLUMNS * 128];
	float4 swap[2][slots][2][128];	/* of two warpgroups */
	uint64_t full[STAGES], empty[STAGES];
	uint64_t got[2][slots], taken[2][slots];
};

static_assert(sizeof(memory<192>) + 1024 <= HZI_QT_BYTES(192) &&
	      sizeof(memory<128>) + 1024 <= HZI_QT_BYTES(128), "what the launcher asks for");

/* Tile t of the clusters' tiles: bands of rows, each done column by column, so that L2 has both. */
HZ_DEVICE void tile_of(const hzi_quat_tma &p, int t, int &i, int &j)
{
	const int whole = p.band * p.tiles_n, first = t / whole * p.band;
	const int rows = min(p.band, p.tiles_m - first), rest = t % whole;

	i = first + rest % rows;
	j = rest / rows;
}

/* Where in the ring, and which time round. */
struct turn {
	int at = 0;
	uint32_t parity = 0;

	__device__ __forceinline__ void next(void)
	{
		if (++at == STAGES) {
			at = 0;
			parity ^= 1;
		}
	}
};

/* The thread that loads: its own rows, and its share of the columns for blocks with the same sums. */
template <int COLUMNS, int HALVES, bool ACROSS>
HZ_DEVICE void load(const hzi_quat_tma &p, memory<COLUMNS> &s, int rank)
{
	constexpr int share = COLUMNS / HALVES;
	const int part = rank & 1, half = rank >> 1;
	const uint16_t both = (HALVES == 2 ? 5 : 1) << part;
	turn ring;

	grid_wait();
	for (int t = blockIdx.x / (2 * HALVES); t < p.tiles_m * p.tiles_n; t += gridDim.x / (2 * HALVES)) {
		int i, j;

		tile_of(p, t, i, j);
		const int m0 = (HALVES * i + half) * HZI_QT_ROWS, n0 = j * COLUMNS;

		for (int phase = 0; phase < p.phases; phase++) {
			const uint8_t *row_plane = p.row_plane[part][phase];
			const uint8_t *col_plane = p.col_plane[part][phase];

			for (int k = 0; k < p.blocks; k++) {
				for (int e = 0; e < 2 * p.per; e++) {
					const uint32_t full = shared_address(&s.full[ring.at]);
					const uint32_t b = shared_address(s.b[ring.at]);

					barrier_wait(shared_address(&s.empty[ring.at]),
						     ring.parity ^ 1);
					barrier_expect(full, (HZI_QT_ROWS + COLUMNS) * 128);
					copy_box(shared_address(s.a[ring.at]), p.rows, k * 128,
						 row_plane[e] * p.row_lines + m0, full);
					if (!ACROSS)
						copy_box_to(both, b + half * share * 128,
							    p.cols, k * 128,
							    col_plane[e] * p.col_lines + n0 +
								    half * share,
							    full);
					for (int c = 0; ACROSS && c < COLUMNS / 64; c++)
						copy_box_to(both, b + c * 8192 + half * 4096,
							    p.cols, 2 * n0 + c * 128,
							    col_plane[e] * p.col_lines + k * 64 +
								    half * 32,
							    full);
					ring.next();
				}
			}
		}
	}
}

/*
 * What warpgroups of the same number of the two blocks with one half of a tile give each other, in
 * steps of 8 sums of a thread. Two rounds through the slots are one exchange, so that parities begin
 * anew.
 */
template <int COLUMNS>
struct exchange {
	static constexpr int slots = memory<COLUMNS>::slots;
	uint32_t swap, got, taken;			/* here */
	uint32_t there_swap, there_got, there_taken;

	__device__ __forceinline__ exchange(memory<COLUMNS> &s, int group, int partner)
	{
		swap = shared_address(&s.swap[group][0][0][threadIdx.x % 128]);
		got = shared_address(s.got[group]);
		taken = shared_address(s.taken[group]);
		there_swap = cluster_map(swap, partner);
		there_got = cluster_map(got, partner);
		there_taken = cluster_map(taken, partner);
	}

	__device__ __forceinline__ void give(int step, const float (&v)[8]) const
	{
		const int slot = step % slots;

		barrier_wait(taken + 8 * slot, step / slots & 1 ^ 1);
		if (threadIdx.x % 128 == 0)
			barrier_expect(got + 8 * slot, 128 * 32);
#pragma unroll
		for (int h = 0; h < 2; h++)
			store_async(there_swap + (2 * slot + h) * 2048, v[4 * h], v[4 * h + 1],
				    v[4 * h + 2], v[4 * h + 3], there_got + 8 * slot);
	}

	__device__ __forceinline__ void take(int step, float (&v)[8]) const
	{
		const int slot = step % slots;

		barrier_wait(got + 8 * slot, step / slots & 1);
#pragma unroll
		for (int h = 0; h < 2; h++)
			asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
				     : "=f"(v[4 * h]), "=f"(v[4 * h + 1]), "=f"(v[4 * h + 2]),
				       "=f"(v[4 * h + 3])
				     : "r"(swap + (2 * slot + h) * 2048) : "memory");
		__syncwarp();
		if (threadIdx.x % 32 == 0)
			barrier_arrive_at(there_taken + 8 * slot);
	}
};

/* What a thread has of a step: sums of rows row and row + 8 at columns col and col + 1. */
struct four {
	quat q[4];
};

HZ_DEVICE void store(const hzi_quat_matrix &c, int64_t at, quat q)
{
	if (c.dtype == HZ_F32)
		*(float4 *)((float *)c.data + at) = make_float4(q.w, q.x, q.y, q.z);
	else
		*(uint2 *)((uint16_t *)c.data + at) = quat_pack(c.dtype, q);
}

HZ_DEVICE quat load_bias(const hzi_quat_out &o, int row, int col)
{
	const int64_t at = row * o.bias_row + col * o.bias_col;

	if (o.bias_dtype == HZ_F32) {
		const float4 v = *(const float4 *)((const float *)o.bias + at);

		return {v.x, v.y, v.z, v.w};
	}
	return quat_unpack(o.bias_dtype, *(const uint2 *)((const uint16_t *)o.bias + at));
}

/* All that is not plain, apart: there would be many copies of it, which take time to fetch. */
static __device__ __noinline__ void put_other(const hzi_quat_tma &p, int row, int col, four f)
{
	const hzi_quat_out &o = p.out;

#pragma unroll
	for (int e = 0; e < 4; e++) {
		const int i = row + e / 2 * 8, j = col + e % 2;
		quat t = f.q[e];

		if (i >= o.m || j >= o.n)
			continue;
		if (!p.usual) {
			quat_finish(o, 0, 0, i, j, t);
			continue;
		}
		if (o.bias) {
			const quat b = load_bias(o, i, j);

			t = {t.w + b.w, t.x + b.x, t.y + b.y, t.z + b.z};
		}
		if (o.activation != HZ_ACT_NONE) {
			const float slope = o.activation == HZ_ACT_RELU ? 0 : o.slope;

			t = {t.w < 0 ? slope * t.w : t.w, t.x < 0 ? slope * t.x : t.x,
			     t.y < 0 ? slope * t.y : t.y, t.z < 0 ? slope * t.z : t.z};
		}
		store(o.c, i * o.c.row + j * o.c.col, t);
	}
}

/* Of a whole tile without bias and activation. */
HZ_DEVICE void put_plain(const hzi_quat_tma &p, int row, int col, const four &f)
{
	const hzi_quat_matrix &c = p.out.c;

#pragma unroll
	for (int e = 0; e < 4; e += 2) {
		const int64_t at = (row + e / 2 * 8) * c.row + col * c.col;

		if (p.pairs) {
			const uint2 x = quat_pack(c.dtype, f.q[e]),
				    y = quat_pack(c.dtype, f.q[e + 1]);

			*(uint4 *)((uint16_t *)c.data + at) = make_uint4(x.x, x.y, y.x, y.y);
		} else {
			store(c, at, f.q[e]);
			store(c, at + c.col, f.q[e + 1]);
		}
	}
}

HZ_DEVICE float flipped(float v, uint32_t bits)
{
	return __uint_as_float(__float_as_uint(v) ^ bits);
}

/*
 * Adds up a phase's products of 64 rows, or begins with the first. No product is left under way at
 * the end of a turn, since ptxas then puts waits between all; the other warpgroup has the matrix
 * units meanwhile. The matrix units cut sums off at 24 bits: EXACT has them begin anew with every
 * block of k.
 */
template <int HALVES, bool ACROSS, bool EXACT, int COLUMNS>
HZ_DEVICE void multiply_blocks(const hzi_quat_tma &p, memory<COLUMNS> &s,
			       float (&acc)[2][COLUMNS / 2], turn &ring, int part, int group,
			       int phase)
{
	const int lane = threadIdx.x % 32;
	const int turns = EXACT ? p.blocks : p.blocks * p.per, per = EXACT ? p.per : 1;

#pragma unroll 1
	for (int k = 0; k < turns; k++) {
#pragma unroll
		for (int h = 0; h < 2; h++) {
			float part_sum[EXACT ? COLUMNS / 2 : 1];

#pragma unroll 1
			for (int e = 0; e < per; e++) {
				const uint64_t a = wgmma_lines(shared_address(s.a[ring.at]) +
							       group * 64 * 128);
				const uint32_t to = shared_address(s.b[ring.at]);
				const uint64_t b =
					ACROSS ? wgmma_across(to, 8192) : wgmma_lines(to);

				barrier_wait(shared_address(&s.full[ring.at]), ring.parity);
				wgmma_keep(acc[0]);
				wgmma_keep(acc[1]);
				wgmma_keep(part_sum);
				wgmma_fence();
#pragma unroll
				for (int c = 0; c < 4; c++) {
					const uint64_t bc = b + (ACROSS ? 128 : 2) * c;

					if constexpr (EXACT)
						wgmma<ACROSS>(part_sum, a + 2 * c, bc, e | c);
					else
						wgmma<ACROSS>(acc[h], a + 2 * c, bc, phase | k | c);
				}
				wgmma_commit();
				wgmma_keep(part_sum);
				wgmma_keep(acc[0]);
				wgmma_keep(acc[1]);
				wgmma_wait<0>();
				wgmma_keep(part_sum);
				wgmma_keep(acc[0]);
				wgmma_keep(acc[1]);
				if (lane < HALVES)
					barrier_arrive_at(
						cluster_map(shared_address(&s.empty[ring.at]),
							    part + 2 * lane));
				ring.next();
			}
			if constexpr (EXACT) {
				if (phase == 0 && k == 0) {
#pragma unroll
					for (int i = 0; i < COLUMNS / 2; i++)
						acc[h][i] = 0;
				}
#pragma unroll
				for (int i = 0; i < COLUMNS / 2; i++)
					acc[h][i] += part_sum[i];
			}
		}
	}
}

/* From sums of P to what the products of phase 1 are added to. */
template <int COLUMNS>
HZ_DEVICE void combine(const exchange<COLUMNS> &x, float (&acc)[2][COLUMNS / 2], int part)
{
	constexpr int sums = COLUMNS / 2, steps = sums / 8, slots = memory<COLUMNS>::slots;

#pragma unroll
	for (int c = 0; c < sums; c++) {
		const float sum = acc[0][c] + acc[1][c], difference = acc[0][c] - acc[1][c];

		acc[0][c] = part ? difference : sum;
		acc[1][c] = part ? sum : difference;
	}
#pragma unroll
	for (int c = 0; c < steps + slots - 1; c++) {
		const int d = c - slots + 1;
		float v[8];

		if (c < steps) {
#pragma unroll
			for (int e = 0; e < 8; e++)
				v[e] = acc[1][8 * c + e];
			x.give(c, v);
		}
		if (d < 0)
			continue;
		x.take(d, v);
#pragma unroll
		for (int e = 0; e < 8; e++) {
			const float mine = acc[0][8 * d + e];

			acc[0][8 * d + e] = -(mine + v[e]);
			acc[1][8 * d + e] = part ? mine - v[e] : v[e] - mine;
		}
	}
}

/* A warpgroup that multiplies: 64 rows. */
template <int COLUMNS, int HALVES, bool ACROSS, bool EXACT>
HZ_DEVICE void multiply(const hzi_quat_tma &p, memory<COLUMNS> &s, int rank, int group)
{
	constexpr int sums = COLUMNS / 2, steps = sums / 8, slots = memory<COLUMNS>::slots;
	const int lane = threadIdx.x % 32, part = rank & 1;
	const exchange<COLUMNS> x(s, group, rank ^ 1);
	float acc[2][sums];
	turn ring;

	for (int t = blockIdx.x / (2 * HALVES); t < p.tiles_m * p.tiles_n; t += gridDim.x / (2 * HALVES)) {
		int i, j;

		tile_of(p, t, i, j);
		/* One place that multiplies: with two ptxas moves sums about and runs out of registers. */
#pragma unroll 1
		for (int phase = 0;; phase++) {
			multiply_blocks<HALVES, ACROSS, EXACT>(p, s, acc, ring, part, group, phase);
			if (phase + 1 == p.phases)
				break;
			combine(x, acc, part);
		}

		/* The block of even rank gets the left half of the columns. */
		const int row = (HALVES * i + (rank >> 1)) * HZI_QT_ROWS + group * 64 +
				threadIdx.x % 128 / 32 * 16 + lane / 4;
		const int col0 = j * COLUMNS + part * COLUMNS / 2 + 2 * (lane & 3);
		const int m = p.out.m - 1, n = p.out.n - 1;
		const bool plain = p.plain && (HALVES * i + HALVES) * HZI_QT_ROWS <= p.out.m &&
				   (j + 1) * COLUMNS <= p.out.n;
		float row_scale[2] = {p.alpha, p.alpha}, col_scale[slots][2];

		if (p.row_scales) {
			row_scale[0] *= p.row_scales[min(row, m)];
			row_scale[1] *= p.row_scales[min(row + 8, m)];
		}
#pragma unroll
		for (int c = 0; c < steps + slots - 1; c++) {
			const int d = c - slots + 1, col = col0 + 8 * d;
			float v[8];

			if (c < steps) {
				const int at = col0 + 8 * c;

				col_scale[c % slots][0] = col_scale[c % slots][1] = 1;
				if (p.col_scales) {
					col_scale[c % slots][0] = p.col_scales[min(at, n)];
					col_scale[c % slots][1] = p.col_scales[min(at + 1, n)];
				}
#pragma unroll
				for (int e = 0; e < 8; e++)
					v[e] = part ? acc[e / 4][4 * c + e % 4]
						    : acc[e / 4][sums / 2 + 4 * c + e % 4];
				x.give(c, v);
			}
			if (d < 0)
				continue;
			x.take(d, v);
			four f;
#pragma unroll
			for (int e = 0; e < 4; e++) {
				const float mine0 =
					part ? acc[0][sums / 2 + 4 * d + e] : acc[0][4 * d + e];
				const float mine1 =
					part ? acc[1][sums / 2 + 4 * d + e] : acc[1][4 * d + e];
				const float by = row_scale[e / 2] * col_scale[d % slots][e % 2];
				const float minus = flipped(by, p.flip);

				f.q[e] = {by * (part ? v[e] : mine0),
					  minus * (part ? v[4 + e] : mine1),
					  minus * (part ? mine0 : v[e]),
					  minus * (part ? mine1 : v[4 + e])};
			}
			if (plain)
				put_plain(p, row, col, f);
			else
				put_other(p, row, col, f);
		}
	}
}

template <int COLUMNS, int HALVES, bool ACROSS, bool EXACT>
HZ_DEVICE void kernel(const hzi_quat_tma &p)
{
	auto &s = *(memory<COLUMNS> *)shared_start();
	const int group = __shfl_sync(~0u, threadIdx.x / 128, 0);
	uint32_t rank;

	asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
	if (threadIdx.x == 0) {
		for (int i = 0; i < STAGES; i++) {
			barrier_init(shared_address(&s.full[i]), 1);
			barrier_init(shared_address(&s.empty[i]), 8 * HALVES);
		}
		for (int i = 0; i < 2 * memory<COLUMNS>::slots; i++) {
			barrier_init(shared_address(&s.got[0][i]), 1);
			barrier_init(shared_address(&s.taken[0][i]), 4);
		}
		barrier_init_fence();
	}
	grid_next();
	cluster_arrive();
	cluster_wait();
	if (group == 0) {
		registers_less<24>();
		if (threadIdx.x == 0)
			load<COLUMNS, HALVES, ACROSS>(p, s, rank);
	} else {
		registers_more<240>();
		multiply<COLUMNS, HALVES, ACROSS, EXACT>(p, s, rank, group - 1);
	}
	/* Others may still write here. */
	cluster_arrive();
	cluster_wait();
}

#define BODY(call) { call; }
#else
#define BODY(call) { }
#endif
#define TMA(name, columns, halves, across, exact) \
	extern "C" __global__ __launch_bounds__(HZI_QT_THREADS, 1) void \
	name(const __grid_constant__ hzi_quat_tma p) \
	BODY((kernel<columns, halves, across, exact>(p)))
TMA(quat_tma, 192, 2, false, false)
TMA(quat_tma_across, 192, 2, true, false)
TMA(quat_tma_exact, 128, 2, false, true)
TMA(quat_tma_exact_across, 128, 2, true, true)
