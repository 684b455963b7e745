/*
 * group_gemv.cuh - up to 8 rows of 16-bit floats by 4-bit weights in groups of 128, mma.sync
 *
 * SPDX-License-Identifier: BSD-2-Clause
 *
 * A block multiplies panels of 16 columns of W by all rows of x. Its warps split k. Each warp keeps
 * the next AHEAD pieces of W in registers, of which it loads the first ones before the previous
 * kernel has ended, as gpu/vlut/label_skinny.cuh does; it then copies its part of x to shared
 * memory, in the order in which lanes use it as the B operand of mma.m16n8k16. Sums of the warps
 * are added in order.
 */
#ifndef HZI_GPU_QGEMM_GROUP_GEMV_CUH
#define HZI_GPU_QGEMM_GROUP_GEMV_CUH

#include "gpu/qgemm/group.cuh"

/*
 * Shared memory of a block: partial sums of two panels, then x: for each piece and step [row][q] of
 * 16 bytes, k 2 q, 2 q + 8, 2 q + 16 and 2 q + 24 of the step and the next one of each. With 8
 * rows the place of q in row r is q ^ r / 2, so that neither stores nor loads have bank conflicts.
 */
template <int DTYPE, bool ZEROS, int COLUMNS, int WARPS, int AHEAD>
struct group_gemv_block {
	static constexpr int PIECE = HZI_GROUP_PIECE_BYTES(HZI_GROUP_U4);
	static constexpr int STEPS = HZI_GROUP_UNIT / HZI_GROUP_STEP;
	static constexpr int SUMS = HZI_GROUP_COLUMNS * COLUMNS;	/* of a warp and panel */
	static constexpr int SETS = 8 / COLUMNS;	/* steps that a warp stages at a time */

	/* Of a lane: words of columns g and g + 8 of each step, and their scales and zero points */
	struct codes {
		uint32_t w[8], zeros;
		float scale[2];
	};

	/* Where this lane's part of a piece is */
	struct place {
		const uint8_t *codes, *scales, *zeros;
	};

	const hzi_group_gemm &p;
	const int lane, warp, g, q;
	const int begin, n;		/* pieces of this warp */
	float *const partials;
	uint4 *const x_memory;		/* of this warp */
	const group_floats<DTYPE, HZI_GROUP_U4> floats;

	__device__ __forceinline__ explicit group_gemv_block(const hzi_group_gemm &p_)
		: p(p_), lane(threadIdx.x % 32), warp(threadIdx.x / 32), g(lane / 4), q(lane % 4),
		  begin(p.pieces * warp / WARPS), n(p.pieces * (warp + 1) / WARPS - begin),
		  partials(shared_floats()),
		  x_memory((uint4 *)(partials + 2 * WARPS * SUMS) + begin * (STEPS * 4 * COLUMNS)),
		  floats(p.l.zero)
	{
	}

	__device__ __forceinline__ void run(void) const
	{
		const int column = threadIdx.x % COLUMNS;
		const int64_t groups = p.l.groups, group = blockIdx.x * groups + begin;
		int64_t j = (int64_t)blockIdx.x * HZI_GROUP_COLUMNS + threadIdx.x / COLUMNS;
		place at = {p.packed + blockIdx.x * p.l.panel_bytes + begin * PIECE + lane * 16,
			    p.packed + p.l.scale_at + group * 64 + g * 8,
			    p.packed + p.l.zero_at + group * 32 + g * 4};
		/* x that this lane copies first */
		int k = begin * HZI_GROUP_UNIT + lane / 4 / COLUMNS * HZI_GROUP_STEP + q * 8;
		const uint16_t *x = (const uint16_t *)p.x + k +
				    (row() < p.rows ? group_offset(p, p.x_stride, row()) : 0);
		codes ring[AHEAD] = {};
		int slot = 0;

		pdl_launch_dependents();
#pragma unroll
		for (int i = 0; i < AHEAD; i++)
			load(ring[i], at, i, i < n);
		/* Computed here, not when the previous kernel has ended */
		asm volatile("" : "+l"(x), "+r"(k));
		pdl_wait();
		stage_x(x, k);
		__syncwarp();
#pragma unroll 1
		for (unsigned panel = blockIdx.x; panel < p.l.panels; panel += gridDim.x) {
			const bool more = panel + gridDim.x < p.l.panels;
			const place next = {at.codes + gridDim.x * p.l.panel_bytes,
					    at.scales + gridDim.x * groups * 64,
					    at.zeros + gridDim.x * groups * 32};
			float sum[4] = {};

			multiply(sum, ring, at, next, more);
			store_partials(sum, slot);
			__syncthreads();
			if (threadIdx.x < SUMS && column < p.rows)
				group_put(p, column, j, add_partials(slot));
			slot ^= WARPS * SUMS;
			at = next;
			j += (int64_t)gridDim.x * HZI_GROUP_COLUMNS;
		}
	}

private:
	__device__ __forceinline__ static float *shared_floats(void)
	{
		extern __shared__ __align__(16) float group_gemv_shared[];

		return group_gemv_shared;
	}

	/* ---- W ------------------------------------------------------------------------------- */

	/* Loads a piece if `some`, without a branch, which would keep pieces from overlapping. */
	__device__ __forceinline__ void load(codes &c, const place &at, int piece, int some) const
	{
		asm volatile("{.reg .pred p; setp.ne.s32 p, %9, 0;"
			     "@p ld.global.cs.v4.u32 {%0, %1, %2, %3}, [%8];"
			     "@p ld.global.cs.v4.u32 {%4, %5, %6, %7}, [%8 + 512];}"
			     : "+r"(c.w[0]), "+r"(c.w[1]), "+r"(c.w[2]), "+r"(c.w[3]),
			       "+r"(c.w[4]), "+r"(c.w[5]), "+r"(c.w[6]), "+r"(c.w[7])
			     : "l"(at.codes + piece * PIECE), "r"(some));
		asm volatile("{.reg .pred p; setp.ne.s32 p, %3, 0;"
			     "@p ld.global.cs.v2.f32 {%0, %1}, [%2];}"
			     : "+f"(c.scale[0]), "+f"(c.scale[1])
			     : "l"(at.scales + piece * 64), "r"(some));
		if constexpr (ZEROS)
			asm volatile("{.reg .pred p; setp.ne.s32 p, %2, 0;"
				     "@p ld.global.cs.u32 %0, [%1];}"
				     : "+r"(c.zeros) : "l"(at.zeros + piece * 32), "r"(some));
	}

	/* Leaves the first pieces of the next panel in the ring, if there is one. */
	__device__ __forceinline__ void multiply(float (&sum)[4], codes (&ring)[AHEAD], place at,
						 const place &next, int more) const
	{
		const uint4 *x = x_memory + (COLUMNS == 8 ? g * 4 + (q ^ g / 2) :
							    g % COLUMNS * 4 + q);
		int left = n;

		/* As long as all pieces that are loaded are of this panel: without selections */
#pragma unroll 1
		for (; left >= 2 * AHEAD; left -= AHEAD) {
			forward(at);
#pragma unroll
			for (int i = 0; i < AHEAD; i++) {
				multiply_piece(sum, ring[i], x + i * STEPS * 4 * COLUMNS);
				load(ring[i], at, i, 1);
			}
			x += AHEAD * STEPS * 4 * COLUMNS;
		}
#pragma unroll 1
		for (; left > 0; left -= AHEAD) {
			forward(at);
#pragma unroll
			for (int i = 0; i < AHEAD; i++) {
				if (i == 0 || i < left) {
					const bool inside = i + AHEAD < left;
					const place from = {inside ? at.codes : next.codes,
							    inside ? at.scales : next.scales,
							    inside ? at.zeros : next.zeros};

					multiply_piece(sum, ring[i], x + i * STEPS * 4 * COLUMNS);
					load(ring[i], from, i, inside || more);
				}
			}
			x += AHEAD * STEPS * 4 * COLUMNS;
		}
	}

	__device__ __forceinline__ static void forward(place &at)
	{
		at.codes += AHEAD * PIECE;
		at.scales += AHEAD * 64;
		at.zeros += AHEAD * 32;
	}

	__device__ __forceinline__ void multiply_piece(float (&sum)[4], const codes &c,
						       const uint4 *x) const
	{
		float acc[2][4] = {};
		uint32_t less[2];

#pragma unroll
		for (int h = 0; h < 2 && ZEROS; h++)
			less[h] = group_pair<DTYPE>((float)(p.l.zero - group_zero(c.zeros, h)));
#pragma unroll
		for (int s = 0; s < STEPS; s++) {
			const uint4 b = x[s * 4 * COLUMNS];
			uint32_t v[2][4];

#pragma unroll
			for (int h = 0; h < 2; h++) {
				floats.decode(v[h], c.w + 2 * s, h);
#pragma unroll
				for (int i = 0; i < 4 && ZEROS; i++)
					v[h][i] = group_add<DTYPE>(v[h][i], less[h]);
			}
			mma_m16n8k16<DTYPE>(acc[0], v[0][0], v[1][0], v[0][1], v[1][1], b.x, b.y);
			mma_m16n8k16<DTYPE>(acc[1], v[0][2], v[1][2], v[0][3], v[1][3], b.z, b.w);
		}
#pragma unroll
		for (int i = 0; i < 4; i++)
			sum[i] += (acc[0][i] + acc[1][i]) * c.scale[i / 2];
	}

	/* ---- x ------------------------------------------------------------------------------- */

	/* The row of x that this lane copies, eight values of a step at a time */
	__device__ __forceinline__ int row(void) const
	{
		return lane / 4 % COLUMNS;
	}

	/* Copies this warp's part of x; this lane's first values are at x, and at k. */
	__device__ __forceinline__ void stage_x(const uint16_t *x, int k) const
	{
		constexpr int FLIGHT = 4, APART = SETS * HZI_GROUP_STEP;
		const bool in = row() < p.rows;
		uint32_t *to = (uint32_t *)(x_memory + lane / 4 / COLUMNS * (4 * COLUMNS) +
					    row() * 4) + q;

#pragma unroll 1
		for (int left = STEPS * n - lane / 4 / COLUMNS; left > 0; left -= FLIGHT * SETS) {
			uint4 v[FLIGHT];

#pragma unroll
			for (int i = 0; i < FLIGHT; i++)
				v[i] = in && i * SETS < left && k + i * APART < p.l.k ?
				       __ldg((const uint4 *)(x + i * APART)) :
				       make_uint4(0, 0, 0, 0);
#pragma unroll
			for (int i = 0; i < FLIGHT; i++) {
				const uint32_t words[4] = {v[i].x, v[i].y, v[i].z, v[i].w};

				for (int j = 0; j < 4 && i * SETS < left; j++)
					to[(COLUMNS == 8 ? j ^ row() / 2 : j) * 4] = words[j];
				to += SETS * 16 * COLUMNS;
			}
			x += FLIGHT * APART;
			k += FLIGHT * APART;
		}
	}

	/* ---- Sums ---------------------------------------------------------------------------- */

	/* slot: of two panels in turns */
	__device__ __forceinline__ void store_partials(const float (&sum)[4], int slot) const
	{
		float *const sums = partials + slot + warp * SUMS;

#pragma unroll
		for (int i = 0; i < 4; i++) {
			const int column = 2 * q + i % 2;

			if (column < COLUMNS)
				sums[(g + i / 2 * 8) * COLUMNS + column] = sum[i];
		}
	}

	__device__ __forceinline__ float add_partials(int slot) const
	{
		const float *const sums = partials + slot + threadIdx.x;
		float s = 0;

#pragma unroll
		for (int w = 0; w < WARPS; w++)
			s += sums[w * SUMS];
		return s;
	}
};

#endif
