/*
 * wgmma.cu - quaternion matrix products by wgmma on Hopper
 *
 * SPDX-License-Identifier: BSD-2-Clause
 *
 * A cluster of four blocks computes a tile of 256 rows by COLUMNS columns of quaternions: two
 * blocks have its upper half, two its lower. Of each two, the block of even rank has accumulators
 * of components 0 and 1, the other of 2 and 3. TMA loads planes of both operands into a ring in
 * shared memory; columns are multicast to the upper and the lower half.
 *
 * The fast method: with H the Hadamard matrix of order 4, P = (H left / 4) (H right), plane by
 * plane, Q = (2 a e, 2 d g, 2 b h, 2 c f) for left (a, b, c, d) and right (e, f, g, h), and G = H
 * P, the result is (Q0 - G0, G1 - Q1, G2 - Q2, G3 - Q3). Phase 0 sums P over all k. Then a block
 * computes P0 + P1 and P0 - P1 (or of P2 and P3), exchanges one of them with its partner and has
 * -G0 and -G1 (or -G2 and -G3), to which phase 1 adds Q: the conjugate of the result.
 *
 * Three warps do the epilogue of a tile while the next one is multiplied: the multiplying warps put
 * results into shared memory; the block of even rank stores the left half of columns from its own
 * and its partner's memory, the other block the right half.
 *
 * SINGLE: no cluster has a second tile, so nothing hides the exchange and the epilogue. Phase 1
 * begins with the block's own part of -G, while the three warps exchange the partner's, which is
 * added at the end. Multiplying threads pass half of their results to the same thread of the
 * partner, and store. So that both halves are in the same registers, the block of even rank has the
 * right half of the columns in front.
 */
#include "gpu/quat_gemm/epilogue.cuh"
#include "gpu/quat_gemm/wgmma.h"
#include "gpu/device/shared.cuh"
#include "gpu/device/tma.cuh"
#include "gpu/device/wgmma_f16.cuh"

#if HAVE_WGMMA

#define EPILOGUE_WARPS 3	/* at the last tile the other warps help */
#define CLUSTER HZI_QUAT_WGMMA_CLUSTER

/*
 * out: the sums of a thread, by steps of 8 columns in two halves of the columns: two components of
 * 4 quaternions, rows r and r + 8 at columns 2 q and 2 q + 1: 32 bytes in f32, or 16 with the
 * components of a quaternion adjacent. Before that, 8 sums per step are exchanged there.
 */
template <int COLUMNS, bool EXACT>
struct memory {
	static constexpr int sums = COLUMNS / 2, steps = sums / 8;
	static constexpr int groups = steps % 4 ? 5 : 4;	/* of what is exchanged */
	/* as shared memory holds beside out */
	static constexpr int stages = COLUMNS == 192 || EXACT ? 3 : 4;

	uint8_t a[stages][HZI_QUAT_WGMMA_ROWS * 128];
	uint8_t b[stages][COLUMNS * 128];
	float4 out[steps][2][EXACT ? 2 : 1][256];
	float row_scales[HZI_QUAT_WGMMA_ROWS], col_scales[COLUMNS];	/* factors of sums */
	uint64_t full[stages], empty[stages];
	uint64_t got[2][groups];	/* sums from the partner, a barrier per group */
	uint64_t written;			/* out is written here */
	uint64_t ready, stored;		/* out is written, out is read: here and at the partner */
	/* SINGLE: exchanged sums are here; the partner's ring is free; its results are here */
	uint64_t swapped, done, received[2];
};

static_assert(sizeof(memory<192, false>) + 1024 <= HZI_QUAT_WGMMA_SHARED_BYTES &&
	      sizeof(memory<160, false>) + 1024 <= HZI_QUAT_WGMMA_SHARED_BYTES &&
	      sizeof(memory<128, true>) + 1024 <= HZI_QUAT_WGMMA_SHARED_BYTES,
	      "what the launcher asks for");

/* Tile t of a cluster: bands of rows, column by column, so that both operands stay in L2 */
HZ_DEVICE void tile_of(const hzi_quat_wgmma &p, int t, int &i, int &j)
{
	const int whole = p.band * p.tiles_n, first = t / whole * p.band;
	const int rows = min(p.band, p.tiles_m - first), rest = t % whole;

	i = first + rest % rows;
	j = rest / rows;
}

/*
 * The producer thread: loads its block's rows, and half of the columns for both blocks with the
 * same sums.
 */
template <int COLUMNS, bool TRANSPOSED, bool EXACT, bool SINGLE>
HZ_DEVICE void load(const hzi_quat_wgmma &p, memory<COLUMNS, EXACT> &s, int rank)
{
	constexpr int share = COLUMNS / 2;
	const int part = rank & 1, half = rank >> 1;
	const int slot = SINGLE && part == 0 ? 1 - half : half;
	const uint16_t both = 5 << part;
	ring_position<memory<COLUMNS, EXACT>::stages> ring;

	pdl_wait();
	for (int t = blockIdx.x / CLUSTER; t < p.tiles_m * p.tiles_n; t += gridDim.x / CLUSTER) {
		int i, j;

		tile_of(p, t, i, j);
		const int m0 = (2 * i + half) * HZI_QUAT_WGMMA_ROWS, n0 = j * COLUMNS;

		for (int phase = 0; phase < p.phases; phase++) {
			const uint8_t *row_plane = p.row_plane[part][phase];
			const uint8_t *col_plane = p.col_plane[part][phase];

			for (int k = 0; k < p.blocks; k++) {
				for (int e = 0; e < 2 * p.per; e++) {
					const uint32_t full = shared_address(&s.full[ring.at]);
					const uint32_t b = shared_address(s.b[ring.at]);

					mbarrier_wait(shared_address(&s.empty[ring.at]),
						      ring.parity ^ 1);
					mbarrier_expect_tx(full, (HZI_QUAT_WGMMA_ROWS + COLUMNS) *
							   128);
					tma_load_3d(shared_address(s.a[ring.at]), p.rows, k * 128,
						    m0, row_plane[e], full);
					if (!TRANSPOSED)
						tma_load_3d_multicast(both, b + slot * share * 128,
								      p.cols, k * 128,
								      n0 + half * share,
								      col_plane[e], full);
					for (int c = 0; TRANSPOSED && c < COLUMNS / 64; c++)
						tma_load_2d_multicast(
							both, b + c * 8192 + half * 4096, p.cols,
							2 * n0 + c * 128,
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
 * Multiplies a phase's products of 64 rows. No wgmma is in flight at the end of an iteration,
 * because ptxas would otherwise serialize all; the other warpgroup has the tensor cores meanwhile.
 * Tensor cores truncate accumulators to 24 bits: EXACT starts new ones for each block of k and adds
 * them up in registers.
 */
template <bool TRANSPOSED, bool EXACT, int COLUMNS, int STAGES>
HZ_DEVICE void multiply_blocks(const hzi_quat_wgmma &p, memory<COLUMNS, EXACT> &s,
			       float (&acc)[2][COLUMNS / 2], ring_position<STAGES> &ring, int rank,
			       int group, int phase)
{
	const int lane = threadIdx.x % 32;
	const int rounds = EXACT ? p.blocks : p.blocks * p.per, per = EXACT ? p.per : 1;

#pragma unroll 1
	for (int k = 0; k < rounds; k++) {
#pragma unroll
		for (int h = 0; h < 2; h++) {
			float part_sum[EXACT ? COLUMNS / 2 : 1];

#pragma unroll 1
			for (int e = 0; e < per; e++) {
				const uint64_t a = wgmma_desc_k(shared_address(s.a[ring.at]) +
								group * 64 * 128);
				const uint32_t dst = shared_address(s.b[ring.at]);
				const uint64_t b =
					TRANSPOSED ? wgmma_desc_mn(dst, 8192) : wgmma_desc_k(dst);

				mbarrier_wait(shared_address(&s.full[ring.at]), ring.parity);
				wgmma_keep(acc[0]);
				wgmma_keep(acc[1]);
				wgmma_keep(part_sum);
				wgmma_fence();
#pragma unroll
				for (int c = 0; c < 4; c++) {
					const uint64_t bc = b + (TRANSPOSED ? 128 : 2) * c;

					if constexpr (EXACT)
						wgmma<TRANSPOSED>(part_sum, a + 2 * c, bc, e | c);
					else
						wgmma<TRANSPOSED>(acc[h], a + 2 * c, bc,
								  phase | k | c);
				}
				wgmma_commit();
				wgmma_keep(part_sum);
				wgmma_keep(acc[0]);
				wgmma_keep(acc[1]);
				wgmma_wait<0>();
				wgmma_keep(part_sum);
				wgmma_keep(acc[0]);
				wgmma_keep(acc[1]);
				if (lane < 2)
					mbarrier_arrive_cluster(
						cluster_map(shared_address(&s.empty[ring.at]),
							    rank ^ 2 * lane));
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

/*
 * From sums of P to the initial sums of phase 1. Threads of equal number in both blocks exchange
 * half of their sums.
 */
template <int COLUMNS, bool EXACT>
HZ_DEVICE void combine(memory<COLUMNS, EXACT> &s, float (&acc)[2][COLUMNS / 2], int rank, int group,
		       uint32_t parity)
{
	constexpr int GROUPS = memory<COLUMNS, EXACT>::groups;
	constexpr int steps = COLUMNS / 16, share = steps / GROUPS;
	constexpr int pitch = sizeof(s.out[0]) / 2;	/* a step has that much room, or twice */
	const float sign = rank & 1 ? -1 : 1;
	const uint32_t local = shared_address(&s.out[0][0][0][threadIdx.x % 128 + 128 * group]);
	const uint32_t remote = cluster_map(local, rank ^ 1);
	const uint32_t got = shared_address(s.got[group]);
	const uint32_t remote_got = cluster_map(got, rank ^ 1);

	if (threadIdx.x % 128 == 0) {
#pragma unroll
		for (int i = 0; i < GROUPS; i++)
			mbarrier_expect_tx(got + 8 * i, share * 128 * 32);
	}
#pragma unroll
	for (int c = 0; c < 2 * steps; c++) {
		float v[4];

#pragma unroll
		for (int e = 0; e < 4; e++) {
			const float x = acc[0][4 * c + e], y = acc[1][4 * c + e];

			acc[0][4 * c + e] = x + sign * y;
			v[e] = x - sign * y;
		}
		store_async(remote + c * pitch, v[0], v[1], v[2], v[3],
			    remote_got + c / (2 * share) * 8);
	}
#pragma unroll
	for (int c = 0; c < 2 * steps; c++) {
		float v[4];

		if (c % (2 * share) == 0)
			mbarrier_wait(got + c / (2 * share) * 8, parity);
		shared_load(v, local + c * pitch);
#pragma unroll
		for (int e = 0; e < 4; e++) {
			const float own = acc[0][4 * c + e];

			acc[0][4 * c + e] = -(own + v[e]);
			acc[1][4 * c + e] = sign * (v[e] - own);
		}
	}
}

HZ_DEVICE float flipped(float v, uint32_t bits)
{
	return __uint_as_float(__float_as_uint(v) ^ bits);
}

HZ_DEVICE float with_bias(const hzi_quat_out &o, float v, int64_t at)
{
	const float b = o.bias_dtype == HZ_F32 ? ((const float *)o.bias)[at]
			: o.bias_dtype == HZ_F16 ? f16_low(((const uint16_t *)o.bias)[at])
						 : bf16_low(((const uint16_t *)o.bias)[at]);

	return v + b;
}

struct sums8 {
	float v[2][4];
};

/* Step c of the accumulators, times the scales of rows and columns; flip0, flip1: sign bits */
template <int SUMS>
HZ_DEVICE void scale_sums(sums8 &u, const float (&acc)[2][SUMS], int c,
			  const float (&row_scale)[2], const float *col_scales, uint32_t flip0,
			  uint32_t flip1)
{
	const float2 scales = *(const float2 *)col_scales;
	const float col_scale[2] = {scales.x, scales.y};

#pragma unroll
	for (int e = 0; e < 4; e++) {
		const float by = row_scale[e / 2] * col_scale[e % 2];

		u.v[0][e] = acc[0][4 * c + e] * flipped(by, flip0);
		u.v[1][e] = acc[1][4 * c + e] * flipped(by, flip1);
	}
}

/*
 * Bias and componentwise activation of two components. Not inlined: 24 copies would take time to
 * fetch.
 */
static __device__ __noinline__ sums8 bias_act(const hzi_quat_out &o, sums8 s, int row, int col,
					      int component)
{
#pragma unroll
	for (int e = 0; e < 8; e++) {
		const int r = min(row + e % 4 / 2 * 8, o.m - 1), l = min(col + e % 2, o.n - 1);
		float v = s.v[e / 4][e % 4];

		if (o.bias)
			v = with_bias(o, v, r * o.bias_row + l * o.bias_col +
						    o.bias_comp[component + e / 4]);
		if (o.activation != HZ_ACT_NONE && v < 0)
			v *= o.activation == HZ_ACT_RELU ? 0 : o.slope;
		s.v[e / 4][e % 4] = v;
	}
	return s;
}

HZ_DEVICE uint4 pairs_f16(const sums8 &u)
{
	return make_uint4(to_f16x2(u.v[0][0], u.v[1][0]), to_f16x2(u.v[0][1], u.v[1][1]),
			  to_f16x2(u.v[0][2], u.v[1][2]), to_f16x2(u.v[0][3], u.v[1][3]));
}

HZ_DEVICE uint4 pairs_bf16(const sums8 &u)
{
	return make_uint4(to_bf16x2(u.v[0][0], u.v[1][0]), to_bf16x2(u.v[0][1], u.v[1][1]),
			  to_bf16x2(u.v[0][2], u.v[1][2]), to_bf16x2(u.v[0][3], u.v[1][3]));
}

/*
 * Loads the tile's scales into shared memory, by the warps of the epilogue. Multiplying warps,
 * which have read those of the tile before, wait in scales_wait().
 */
template <int COLUMNS, bool EXACT>
HZ_DEVICE void scales_load(const hzi_quat_wgmma &p, memory<COLUMNS, EXACT> &s, int rank,
			   int i, int j, int warp)
{
	const int row0 = (2 * i + (rank >> 1)) * HZI_QUAT_WGMMA_ROWS, col0 = j * COLUMNS;

	for (int l = 32 * warp + threadIdx.x % 32; l < COLUMNS; l += 32 * EPILOGUE_WARPS) {
		s.col_scales[l] = p.col_scales ? p.col_scales[min(col0 + l, p.out.n - 1)] : 1;
		if (l < HZI_QUAT_WGMMA_ROWS)
			s.row_scales[l] = p.alpha * (p.row_scales ? p.row_scales[min(row0 + l,
										p.out.m - 1)]
								  : 1);
	}
	bar_arrive(1, 256 + 32 * EPILOGUE_WARPS);
}

HZ_DEVICE void scales_wait(void)
{
	bar_sync(1, 256 + 32 * EPILOGUE_WARPS);
}

HZ_DEVICE uint4 load_remote(uint32_t address)
{
	uint4 v;

	asm volatile("ld.shared::cluster.v4.u32 {%0, %1, %2, %3}, [%4];"
		     : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "r"(address) : "memory");
	return v;
}

/* Stores 16-bit components 0 and 1, and 2 and 3, of quaternions of rows row and row + 8. */
HZ_DEVICE void store_pairs(const hzi_quat_wgmma &p, int row, int col, uint4 x, uint4 y)
{
	const hzi_quat_out &o = p.out;

#pragma unroll
	for (int h = 0; h < 2; h++) {
		const uint4 v = h ? make_uint4(x.z, y.z, x.w, y.w) : make_uint4(x.x, y.x, x.y, y.y);
		uint16_t *const c = (uint16_t *)o.c.data + (row + 8 * h) * o.c.row + col * o.c.col;

		if (row + 8 * h >= o.m || col >= o.n)
			return;
		if (p.pairs && col + 1 < o.n) {
			__stcs((uint4 *)c, v);
			continue;
		}
		__stcs((uint2 *)c, make_uint2(v.x, v.y));
		if (col + 1 < o.n)
			__stcs((uint2 *)(c + o.c.col), make_uint2(v.z, v.w));
	}
}

/* The same in f32: all of component 0, 1, 2, 3 */
HZ_DEVICE void store_quats(const hzi_quat_wgmma &p, int row, int col, const uint4 (&v)[4])
{
	const hzi_quat_out &o = p.out;
	const quat q[4] = {
		{__uint_as_float(v[0].x), __uint_as_float(v[1].x), __uint_as_float(v[2].x),
		 __uint_as_float(v[3].x)},
		{__uint_as_float(v[0].y), __uint_as_float(v[1].y), __uint_as_float(v[2].y),
		 __uint_as_float(v[3].y)},
		{__uint_as_float(v[0].z), __uint_as_float(v[1].z), __uint_as_float(v[2].z),
		 __uint_as_float(v[3].z)},
		{__uint_as_float(v[0].w), __uint_as_float(v[1].w), __uint_as_float(v[2].w),
		 __uint_as_float(v[3].w)},
	};

	if (p.no_epilogue) {
#pragma unroll
		for (int e = 0; e < 4; e++) {
			if (row + e / 2 * 8 < o.m && col + e % 2 < o.n)
				quat_store(o.c, (row + e / 2 * 8) * o.c.row +
					   (col + e % 2) * o.c.col, q[e]);
		}
		return;
	}
#pragma unroll 1
	for (int e = 0; e < 4; e++) {
		const quat t = e == 0 ? q[0] : e == 1 ? q[1] : e == 2 ? q[2] : q[3];

		if (row + e / 2 * 8 < o.m && col + e % 2 < o.n)
			quat_finish(o, 0, 0, row + e / 2 * 8, col + e % 2, t);
	}
}

/*
 * Epilogue of tile (i, j); warps of both blocks store a share each. Adjacent lanes have adjacent
 * columns: steps of 8 columns by the positions of four threads.
 */
template <int COLUMNS, bool EXACT>
HZ_DEVICE void store_tile(const hzi_quat_wgmma &p, memory<COLUMNS, EXACT> &s, int rank,
			  int i, int j, int warp, int warps)
{
	constexpr int steps = COLUMNS / 16, line = 4 * steps, rounds = EXACT ? 1 : 2;
	const int lane = threadIdx.x % 32, part = rank & 1;

	/* Several iterations at once, to hide the latency of the partner's shared memory */
#pragma unroll 1
	for (int at = 32 * warp + lane; at < steps * 256; at += 32 * warps * rounds) {
		uint4 own[rounds][EXACT ? 2 : 1], other[rounds][EXACT ? 2 : 1];

#pragma unroll
		for (int u = 0; u < rounds; u++) {
			const int l = min(at + 32 * warps * u, steps * 256 - 1);
			const float4 *const src =
				&s.out[l % line / 4][part][0][l / line * 4 + l % 4];
			const uint32_t remote = cluster_map(shared_address(src), rank ^ 1);

#pragma unroll
			for (int h = 0; h < (EXACT ? 2 : 1); h++) {
				own[u][h] = *(const uint4 *)(src + 256 * h);
				other[u][h] = load_remote(remote + 4096 * h);
			}
		}
#pragma unroll
		for (int u = 0; u < rounds; u++) {
			const int l = at + 32 * warps * u, r = l / line;
			const int row = (2 * i +
					 (rank >> 1)) * HZI_QUAT_WGMMA_ROWS + r / 8 * 16 + r % 8;
			const int col = j * COLUMNS + part * (COLUMNS / 2) + l % line * 2;

			if (l >= steps * 256)
				break;
			if constexpr (EXACT) {
				const uint4 v[4] = {part ? other[u][0] : own[u][0],
						    part ? other[u][1] : own[u][1],
						    part ? own[u][0] : other[u][0],
						    part ? own[u][1] : other[u][1]};

				store_quats(p, row, col, v);
			} else {
				store_pairs(p, row, col, part ? other[u][0] : own[u][0],
					    part ? own[u][0] : other[u][0]);
			}
		}
	}
}

/*
 * out is written here and at the partner. The warps of the epilogue tell the partner, since that
 * takes time.
 */
template <int COLUMNS, bool EXACT>
HZ_DEVICE void out_wait(memory<COLUMNS, EXACT> &s, int rank, uint32_t parity)
{
	const uint32_t ready = shared_address(&s.ready);

	mbarrier_wait(shared_address(&s.written), parity);
	if (threadIdx.x == 32) {
		mbarrier_arrive(ready);
		mbarrier_arrive_release_cluster(cluster_map(ready, rank ^ 1));
	}
	__syncwarp();
	mbarrier_wait_acquire_cluster(ready, parity);
}

/* Arrives at a barrier here and at the partner. */
HZ_DEVICE void release_both(uint64_t &barrier, int rank)
{
	const uint32_t local = shared_address(&barrier);

	mbarrier_arrive(local);
	mbarrier_arrive_release_cluster(cluster_map(local, rank ^ 1));
}

/* The warps of the epilogue */
template <int COLUMNS, bool EXACT>
HZ_DEVICE void store(const hzi_quat_wgmma &p, memory<COLUMNS, EXACT> &s, int rank, int warp)
{
	const int tiles = p.tiles_m * p.tiles_n, step = gridDim.x / CLUSTER;
	uint32_t parity = 0;

	pdl_wait();
	for (int t = blockIdx.x / CLUSTER; t < tiles; t += step) {
		int i, j;

		tile_of(p, t, i, j);
		scales_load(p, s, rank, i, j, warp);
		out_wait(s, rank, parity);
		store_tile(p, s, rank, i, j, warp, t + step < tiles ? EPILOGUE_WARPS :
			   EPILOGUE_WARPS + 8);
		release_both(s.stored, rank);
		parity ^= 1;
	}
}

/* A multiplying warpgroup: 64 rows */
template <int COLUMNS, bool TRANSPOSED, bool EXACT>
HZ_DEVICE void multiply(const hzi_quat_wgmma &p, memory<COLUMNS, EXACT> &s, int rank, int group)
{
	constexpr int sums = COLUMNS / 2, steps = sums / 8;
	const int lane = threadIdx.x % 32, part = rank & 1;
	uint32_t parity = 0;
	float acc[2][sums];
	ring_position<memory<COLUMNS, EXACT>::stages> ring;
	int i, j;

	pdl_wait();
	for (int t = blockIdx.x / CLUSTER; t < p.tiles_m * p.tiles_n; t += gridDim.x / CLUSTER) {
		tile_of(p, t, i, j);
		/* One call site: with two, ptxas moves sums around and runs out of registers. */
#pragma unroll 1
		for (int phase = 0;; phase++) {
			multiply_blocks<TRANSPOSED, EXACT>(p, s, acc, ring, rank, group, phase);
			if (phase == 0)
				mbarrier_wait_acquire_cluster(shared_address(&s.stored),
							      parity ^ 1);
			if (phase + 1 == p.phases)
				break;
			combine(s, acc, rank, group, parity);
		}

		const int row = group * 64 + threadIdx.x % 128 / 32 * 16 + lane / 4;
		const int row0 = (2 * i + (rank >> 1)) * HZI_QUAT_WGMMA_ROWS, col0 = j * COLUMNS;
		const uint32_t flip0 = part ? p.flip : 0;

		scales_wait();

		const float row_scale[2] = {s.row_scales[row], s.row_scales[row + 8]};

#pragma unroll
		for (int c = 0; c < 2 * steps; c++) {
			const int col = 2 * (lane & 3) + 8 * c;
			float4 *const dst = &s.out[c % steps][c / steps][0][threadIdx.x % 128 +
									 128 * group];
			sums8 u;

			scale_sums(u, acc, c, row_scale, &s.col_scales[col], flip0, p.flip);
			if (EXACT) {
				dst[0] = make_float4(u.v[0][0], u.v[0][1], u.v[0][2], u.v[0][3]);
				dst[256] = make_float4(u.v[1][0], u.v[1][1], u.v[1][2], u.v[1][3]);
				continue;
			}
			if (!p.no_epilogue)
				u = bias_act(p.out, u, row0 + row, col0 + col, 2 * part);
			*(uint4 *)dst = p.out.c.dtype == HZ_F16 ? pairs_f16(u) : pairs_bf16(u);
		}
		mbarrier_arrive(shared_address(&s.written));
		parity ^= 1;
	}
	mbarrier_wait_acquire_cluster(shared_address(&s.ready), parity ^ 1);
	store_tile(p, s, rank, i, j, EPILOGUE_WARPS + threadIdx.x / 32 - 4, EPILOGUE_WARPS + 8);
}

/* ---- SINGLE: one tile per cluster ------------------------------------------------------------ */

/* From sums of P to the block's own part of -G, and the partner's, in the partner's order */
template <int COLUMNS>
HZ_DEVICE void stage_partner_sums(memory<COLUMNS, false> &s, float (&acc)[2][COLUMNS / 2], int rank,
				  int group)
{
	constexpr int steps = COLUMNS / 16;
	const float sign = rank & 1 ? -1 : 1;
	const uint32_t dst = shared_address(&s.out[0][0][0][threadIdx.x % 128 + 128 * group]);

#pragma unroll
	for (int c = 0; c < 2 * steps; c++) {
		float v[4];

#pragma unroll
		for (int e = 0; e < 4; e++) {
			const float x = acc[0][4 * c + e], y = sign * acc[1][4 * c + e];

			acc[0][4 * c + e] = -(x + y);
			acc[1][4 * c + e] = -sign * (x + y);
			v[e] = x - y;
		}
		shared_store(dst + c * (int)sizeof(s.out[0]) / 2, v);
	}
	mbarrier_arrive(shared_address(&s.written));
}

/* Adds the sums from the thread of equal number of the partner. */
template <int COLUMNS>
HZ_DEVICE void add_partner_sums(memory<COLUMNS, false> &s, float (&acc)[2][COLUMNS / 2], int rank,
				int group)
{
	constexpr int steps = COLUMNS / 16;
	const float sign = rank & 1 ? -1 : 1;
	const uint32_t src = shared_address(&s.out[0][0][0][threadIdx.x % 128 + 128 * group]);

	mbarrier_wait_acquire_cluster(shared_address(&s.swapped), 0);
#pragma unroll
	for (int c = 0; c < 2 * steps; c++) {
		float v[4];

		shared_load(v, src + c * (int)sizeof(s.out[0]) / 2);
#pragma unroll
		for (int e = 0; e < 4; e++) {
			acc[0][4 * c + e] -= v[e];
			acc[1][4 * c + e] = fmaf(sign, v[e], acc[1][4 * c + e]);
		}
	}
}

HZ_DEVICE void store_remote(uint32_t address, uint4 v)
{
	asm volatile("st.shared::cluster.v4.u32 [%0], {%1, %2, %3, %4};"
		     :: "r"(address), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w) : "memory");
}

/* Exchanges what both blocks staged, in place; the warps of each block do a half. */
template <int COLUMNS>
HZ_DEVICE void exchange_staged(memory<COLUMNS, false> &s, int rank, int warp)
{
	constexpr int rounds = 4, steps = COLUMNS / 16;

#pragma unroll 1
	for (int at = 256 * warp; at < steps * 256;
	     at += at % 256 ? 256 * EPILOGUE_WARPS - 32 * rounds : 32 * rounds) {
		const int i = at % 256 + threadIdx.x % 32;
		uint4 *const local = (uint4 *)&s.out[at / 256][rank & 1][0][i];
		const float4 *const slot =
			&s.out[(at / 256 + steps / 2) % steps][rank & 1][0][i];
		const uint32_t remote = cluster_map(shared_address(slot), rank ^ 1);
		uint4 other[rounds];

#pragma unroll
		for (int u = 0; u < rounds; u++)
			other[u] = load_remote(remote + 512 * u);
#pragma unroll
		for (int u = 0; u < rounds; u++) {
			store_remote(remote + 512 * u, local[32 * u]);
			local[32 * u] = other[u];
		}
	}
}

/* The epilogue warps: scales, and the exchange */
template <int COLUMNS>
HZ_DEVICE void exchange(const hzi_quat_wgmma &p, memory<COLUMNS, false> &s, int rank, int warp)
{
	int i, j;

	pdl_wait();
	tile_of(p, blockIdx.x / CLUSTER, i, j);
	scales_load(p, s, rank, i, j, warp);
	if (p.phases == 2) {
		out_wait(s, rank, 0);
		exchange_staged(s, rank, warp);
		release_both(s.swapped, rank);
	}
}

/*
 * Epilogue of the only tile of a cluster: half of the columns goes to the partner, into its former
 * ring; the other half, with the partner's, to C.
 */
template <int COLUMNS>
HZ_DEVICE void store_single(const hzi_quat_wgmma &p, memory<COLUMNS, false> &s,
			    float (&acc)[2][COLUMNS / 2], int rank, int group)
{
	constexpr int steps = COLUMNS / 16, share = COLUMNS / 2;
	const int lane = threadIdx.x % 32, part = rank & 1, slot = threadIdx.x % 128 + 128 * group;
	const int row = group * 64 + threadIdx.x % 128 / 32 * 16 + lane / 4;
	const uint32_t flip0 = part ? p.flip : 0;
	const uint32_t local = shared_address(s.a) + 16 * slot;
	const uint32_t remote = cluster_map(local, rank ^ 1);
	const uint32_t got = shared_address(&s.received[group]);
	const uint32_t remote_got = cluster_map(got, rank ^ 1);
	uint4 kept[steps];
	int i, j;

	tile_of(p, blockIdx.x / CLUSTER, i, j);
	const int row0 = (2 * i + (rank >> 1)) * HZI_QUAT_WGMMA_ROWS, col0 = j * COLUMNS;

	if (threadIdx.x % 128 == 0)
		mbarrier_expect_tx(got, steps * 128 * 16);
	scales_wait();

	const float row_scale[2] = {s.row_scales[row], s.row_scales[row + 8]};

	mbarrier_wait(shared_address(&s.done), 0);
#pragma unroll
	for (int c = 0; c < 2 * steps; c++) {
		const int col = ((c < steps) == (part == 0) ? share : 0) + 2 * (lane & 3) +
				8 * (c % steps);
		sums8 u;
		uint4 v;

		scale_sums(u, acc, c, row_scale, &s.col_scales[col], flip0, p.flip);
		if (!p.no_epilogue)
			u = bias_act(p.out, u, row0 + row, col0 + col, 2 * part);
		v = p.out.c.dtype == HZ_F16 ? pairs_f16(u) : pairs_bf16(u);
		if (c < steps)
			store_async(remote + c * 4096, __uint_as_float(v.x), __uint_as_float(v.y),
				    __uint_as_float(v.z), __uint_as_float(v.w), remote_got);
		else
			kept[c - steps] = v;
	}
	mbarrier_wait(got, 0);
#pragma unroll
	for (int c = 0; c < steps; c++) {
		uint4 v;

		/* The value of shared_load() makes this kernel's code 7 % longer (nvcc 13.0). */
		asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
			     : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "r"(local + c * 4096)
			     : "memory");
		store_pairs(p, row0 + row, col0 + part * share + 2 * (lane & 3) + 8 * c,
			    part ? v : kept[c], part ? kept[c] : v);
	}
}

/* A multiplying warpgroup: 64 rows */
template <int COLUMNS>
HZ_DEVICE void multiply_single(const hzi_quat_wgmma &p, memory<COLUMNS, false> &s, int rank,
			       int group)
{
	float acc[2][COLUMNS / 2];
	ring_position<memory<COLUMNS, false>::stages> ring;

	pdl_wait();
#pragma unroll 1
	for (int phase = 0;; phase++) {
		multiply_blocks<false, false>(p, s, acc, ring, rank, group, phase);
		if (phase + 1 == p.phases)
			break;
		stage_partner_sums(s, acc, rank, group);
	}
	mbarrier_arrive_cluster(cluster_map(shared_address(&s.done), rank ^ 1));
	if (p.phases == 2)
		add_partner_sums(s, acc, rank, group);
	store_single(p, s, acc, rank, group);
}

template <int COLUMNS, bool TRANSPOSED, bool EXACT, bool SINGLE>
HZ_DEVICE void kernel(const hzi_quat_wgmma &p)
{
	auto &s = *(memory<COLUMNS, EXACT> *)shared_start();
	const int group = __shfl_sync(~0u, threadIdx.x / 128, 0);
	const uint32_t rank = cluster_rank();

	if (threadIdx.x == 0) {
		tma_prefetch_map(p.rows);
		tma_prefetch_map(p.cols);
		for (int i = 0; i < s.stages; i++) {
			mbarrier_init(shared_address(&s.full[i]), 1);
			mbarrier_init(shared_address(&s.empty[i]), 16);
		}
		for (int i = 0; i < 2 * s.groups; i++)
			mbarrier_init(shared_address(&s.got[0][i]), 1);
		mbarrier_init(shared_address(&s.written), 256);
		mbarrier_init(shared_address(&s.ready), 2);
		mbarrier_init(shared_address(&s.stored), 2 * 32 * EPILOGUE_WARPS);
		mbarrier_init(shared_address(&s.swapped), 2 * 32 * EPILOGUE_WARPS);
		mbarrier_init(shared_address(&s.done), 256);
		mbarrier_init(shared_address(&s.received[0]), 1);
		mbarrier_init(shared_address(&s.received[1]), 1);
		mbarrier_init_fence();
	}
	pdl_launch_dependents();
	cluster_arrive();
	cluster_wait();
	if (group == 0) {
		setmaxnreg_dec<40>();
		if (threadIdx.x == 0) {
			load<COLUMNS, TRANSPOSED, EXACT, SINGLE>(p, s, rank);
		} else if (threadIdx.x >= 32) {
			if constexpr (SINGLE)
				exchange(p, s, rank, threadIdx.x / 32 - 1);
			else
				store<COLUMNS, EXACT>(p, s, rank, threadIdx.x / 32 - 1);
		}
	} else {
		setmaxnreg_inc<232>();
		if constexpr (SINGLE)
			multiply_single(p, s, rank, group - 1);
		else
			multiply<COLUMNS, TRANSPOSED, EXACT>(p, s, rank, group - 1);
	}
	/* Other blocks may still read and write this block's memory. */
	cluster_end();
}

#endif

#define TMA(name, columns, transposed, exact, single) \
	extern "C" __global__ __launch_bounds__(HZI_QUAT_WGMMA_THREADS, 1) void \
	name(const __grid_constant__ hzi_quat_wgmma p) \
	HZ_HOPPER_BODY((kernel<columns, transposed, exact, single>(p)))
TMA(quat_gemm_wgmma_256x192, 192, false, false, false)
TMA(quat_gemm_wgmma_256x160, 160, false, false, false)
TMA(quat_gemm_wgmma_256x160_single, 160, false, false, true)
TMA(quat_gemm_wgmma_256x192_transposed, 192, true, false, false)
TMA(quat_gemm_wgmma_256x128_exact, 128, false, true, false)
TMA(quat_gemm_wgmma_256x128_exact_transposed, 128, true, true, false)
