/*
 * group_skinny.cu - up to 8 rows of x by group-wise quantized weights, mma.sync
 *
 * SPDX-License-Identifier: BSD-2-Clause
 *
 * A block multiplies a panel of 16 columns of W by 8 rows of x. Its warps have different chunks of
 * k, whose sums it adds in order. Each warp copies its next pieces of W to shared memory by
 * cp.async, the first ones before the previous kernel has ended, and its chunk of x, from where
 * ldmatrix loads the B operand. Loops are short: most calls run them a few times, and code is as
 * cold as W.
 */
#include "gpu/device/cp_async.cuh"
#include "gpu/device/shared.cuh"
#include "gpu/qgemm/group.cuh"

#define UNIT HZI_GROUP_UNIT
#define STEP HZI_GROUP_STEP

/*
 * Shared memory: sums of two rounds; for each warp stages of W, each a piece of codes, scales of
 * its groups and zero points; for each round and warp x. DTYPE: HZ_S8, HZ_F16 or HZ_BF16
 */
template <int DTYPE, int KIND, int TERMS>
struct group_skinny_block {
	static constexpr bool INTEGER = DTYPE == HZ_S8;
	static constexpr bool ZEROS = KIND == HZI_GROUP_U4 || KIND == HZI_GROUP_U8;
	static constexpr int WORDS = group_step_words<KIND>, CODES = HZI_GROUP_PIECE_BYTES(KIND);
	static constexpr int STAGES = HZI_GROUP_STAGES(KIND), X_BYTES = INTEGER ? 1 : 2;

	/* A piece of this warp, or one that W does not have, and its number in its chunk */
	struct cursor {
		int piece, i;
	};

	const hzi_group_gemm &p;
	const int lane, warp, warps, g, q, panel;
	const int row0, rows;
	const group_floats<DTYPE, KIND> floats;
	const uint32_t stages, staged;
	const uint8_t *const codes, *const scales, *const zeros;	/* of this lane and panel */

	__device__ __forceinline__ explicit group_skinny_block(const hzi_group_gemm &p_)
		: p(p_), lane(threadIdx.x % 32), warp(__shfl_sync(~0u, threadIdx.x / 32, 0)),
		  warps(blockDim.x / 32), g(lane / 4), q(lane % 4), panel(blockIdx.x),
		  row0(blockIdx.y * HZI_GROUP_X_ROWS),
		  rows((int)min(p.rows - row0, (int64_t)HZI_GROUP_X_ROWS)), floats(p.l.zero),
		  stages(shared_address(memory()) + HZI_GROUP_PART_BYTES +
			 warp * STAGES * p.piece_bytes),
		  staged(shared_address(memory()) + HZI_GROUP_PART_BYTES +
			 warps * STAGES * p.piece_bytes + warp * p.stage_bytes),
		  codes(p.packed + panel * p.l.panel_bytes + lane * 16),
		  scales(p.packed + p.l.scale_at + panel * p.l.groups * 64 + lane * 16),
		  zeros(p.packed + p.l.zero_at + panel * p.l.groups * 32 + lane * 16)
	{
	}

	__device__ __forceinline__ void run(void)
	{
		float *const part = (float *)memory();
		cursor now = {warp * p.chunk, 0}, ahead = now;
		float y = 0;
		int slot = 0, stage = 0;

		pdl_launch_dependents();
#pragma unroll 1
		for (int i = 0; i < STAGES; i++) {
			load(ahead, i);
			advance(ahead);
		}
		pdl_wait();
#pragma unroll 1
		for (int round = 0; round < p.rounds && p.all_staged; round++)
			stage_x(round, round);
#pragma unroll 1
		for (int round = 0; round < p.rounds; round++) {
			float sum[4] = {};

			if (!p.all_staged)
				stage_x(round, 0);
#pragma unroll 1
			for (int i = 0; i < p.chunk && now.piece < p.pieces; i++) {
				cp_async_wait<STAGES - 1>();
				__syncwarp();
				multiply(sum, stages + stage * p.piece_bytes,
					 p.all_staged ? round : 0, now);
				__syncwarp();
				advance(now);
				load(ahead, stage);
				advance(ahead);
				stage = stage + 1 == STAGES ? 0 : stage + 1;
			}
#pragma unroll
			for (int i = 0; i < 4; i++)
				part[slot + warp * HZI_GROUP_SUMS + 32 * i + lane] = sum[i];
			__syncthreads();
			if (threadIdx.x < HZI_GROUP_SUMS) {
				const int chunks = min((p.pieces - round * warps * p.chunk +
							p.chunk - 1) / p.chunk, warps);

				for (int w = 0; w < chunks; w++)
					y = __fadd_rn(y, part[slot + w * HZI_GROUP_SUMS +
							      threadIdx.x]);
			}
			slot ^= HZI_GROUP_WARPS * HZI_GROUP_SUMS;
		}
		/* The warp is now the number of the accumulator. */
		if (threadIdx.x < HZI_GROUP_SUMS && 2 * q + warp % 2 < rows)
			group_put(p, row0 + 2 * q + warp % 2,
				  (int64_t)panel * HZI_GROUP_COLUMNS + g + warp / 2 * 8, y);
	}

private:
	__device__ __forceinline__ static uint8_t *memory(void)
	{
		extern __shared__ __align__(16) uint8_t group_shared[];

		return group_shared;
	}

	/* ---- W ------------------------------------------------------------------------------- */

	__device__ __forceinline__ void advance(cursor &c) const
	{
		c.piece++;
		if (++c.i == p.chunk) {
			c.i = 0;
			c.piece += (warps - 1) * p.chunk;
		}
	}

	/* Copies a piece, if there is one; commits a group in any case. */
	__device__ __forceinline__ void load(const cursor &c, int stage) const
	{
		const uint32_t to = stages + stage * p.piece_bytes + lane * 16;

		if (c.piece < p.pieces) {
			const uint32_t group = p.group_shift <= 7 ? c.piece * p.piece_groups : 0;
			/* Groups of the last piece may be fewer. */
			const int groups = min(p.piece_groups, (int)p.l.groups - (int)group);

#pragma unroll
			for (int i = 0; i < CODES / 512; i++)
				cp_async(to + i * 512, codes + (uint32_t)c.piece * CODES + i * 512);
			if (lane < groups * 4)
				cp_async(to + CODES, scales + group * 64);
			if (ZEROS && p.l.zero_at && lane < groups * 2)
				cp_async(to + CODES + p.piece_groups * 64, zeros + group * 32);
		}
		cp_async_commit();
	}

	/* ---- x ------------------------------------------------------------------------------- */

	/* Copies x of this warp's chunk of a round. */
	__device__ __forceinline__ void stage_x(int round, int slot) const
	{
		const int first = (round * warps + warp) * p.chunk;
		const int count = min(p.pieces - first, p.chunk), units = UNIT >> p.unit_shift;
		uint8_t *const to = memory() + (staged - shared_address(memory())) +
				    slot * warps * p.stage_bytes;

#pragma unroll 1
		for (int r = 0; r < rows && count > 0; r++) {
			const int64_t x = INTEGER ? 0 : group_offset(p, p.x_stride, row0 + r);

			if (INTEGER)
				copy(to + r * p.pitch,
				     p.copy + (row0 + r) * p.k_padded + first * UNIT,
				     count * (UNIT / 16));
			else if (TERMS == 1 && p.vectorized)
				copy_floats(to + r * p.pitch,
					    (const uint16_t *)p.x + x + first * UNIT,
					    count * (UNIT / 8), ((int)p.l.k - first * UNIT) / 8);
			else
				convert(to + r * p.pitch, x, first * UNIT, count * UNIT);
		}
		if (INTEGER)
			copy(to + rows * p.pitch,
			     p.records + ((int64_t)blockIdx.y * p.pieces + first) * units * 4,
			     count * units * 4);
		__syncwarp();
	}

	__device__ __forceinline__ void copy(uint8_t *to, const void *from, int count) const
	{
#pragma unroll 2
		for (int i = lane; i < count; i += 32)
			((uint4 *)to)[i] = ((const uint4 *)from)[i];
	}

	/* `count` vectors of 16 bytes, those from `inside` on 0 */
	__device__ __forceinline__ void copy_floats(uint8_t *to, const uint16_t *from, int count,
						    int inside) const
	{
#pragma unroll 2
		for (int i = lane; i < count; i += 32)
			((uint4 *)to)[i] = i < inside ? ((const uint4 *)from)[i]
						      : make_uint4(0, 0, 0, 0);
	}

	/* x: where the row begins; a part of it from k on */
	__device__ __forceinline__ void convert(uint8_t *to, int64_t x, int k, int count) const
	{
#pragma unroll 1
		for (int i = lane; i < count; i += 32) {
			const int64_t from = x + (k + i) * p.x_k;
			const bool inside = k + i < p.l.k;
			uint16_t *const dst = (uint16_t *)to + i;

			if (TERMS == 1) {
				*dst = inside ? ((const uint16_t *)p.x)[from] : 0;
				continue;
			}
			float v = inside ? ((const float *)p.x)[from] : 0;

#pragma unroll
			for (int t = 0; t < TERMS; t++)
				dst[t * HZI_GROUP_X_ROWS * p.pitch / 2] = group_take_term(v);
		}
	}

	/* ---- Products ------------------------------------------------------------------------ */

	/* w: the stage of the piece */
	__device__ __forceinline__ void multiply(float (&sum)[4], uint32_t w, int slot,
						 const cursor &c) const
	{
		/* Absent rows are those of the last one; their sums are not used. */
		const uint32_t x = staged + slot * warps * p.stage_bytes;
		const uint32_t b = x + min(lane % 8, rows - 1) * p.pitch + lane / 8 * 16 +
				   c.i * UNIT * X_BYTES;
		/* k from the beginning of the piece on; no unit begins beyond it. */
		const int left = (int)p.l.k - c.piece * UNIT;

		if constexpr (INTEGER) {
			const uint32_t records =
				x + rows * p.pitch + (c.i * UNIT >> p.unit_shift) * 64 + q * 16;

			if (p.unit == STEP && left > UNIT - STEP && !p.l.zero_at)
				integers_by_step(sum, w, b, records);
			else
				integers(sum, w, b, records, left);
		} else if (p.unit != UNIT) {
			products(sum, w, b, left);
		} else if (ZEROS && p.l.zero_at) {
			products_of_unit<true>(sum, w, b);
		} else {
			products_of_unit<false>(sum, w, b);
		}
	}

	/* A lane's words of a step */
	__device__ __forceinline__ void load_words(uint32_t (&words)[4], uint32_t w, int step) const
	{
		if constexpr (WORDS == 2)
			asm volatile("ld.shared.v2.u32 {%0, %1}, [%2];"
				     : "=r"(words[0]), "=r"(words[1])
				     : "r"(w + step / 2 * 512 + lane * 16 + step % 2 * 8)
				     : "memory");
		else
			shared_load(words, w + step * 512 + lane * 16);
	}

	/* Scales of columns g and g + 8 for k from l of the piece on, and zero points */
	__device__ __forceinline__ void load_scales(float (&scale)[2], uint32_t w, int l) const
	{
		asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];"
			     : "=f"(scale[0]), "=f"(scale[1])
			     : "r"(w + CODES + (l >> p.group_shift) * 64 + g * 8) : "memory");
	}

	__device__ __forceinline__ void load_zeros(int32_t (&zero)[2], uint32_t w, int l) const
	{
		uint32_t pair;

		asm volatile("ld.shared.u32 %0, [%1];" : "=r"(pair)
			     : "r"(w + CODES + p.piece_groups * 64 + (l >> p.group_shift) * 32 +
				   g * 4)
			     : "memory");
		zero[0] = group_zero(pair, 0);
		zero[1] = group_zero(pair, 1);
	}

	/* A piece that is a unit, without branches, which would keep steps from overlapping */
	template <bool HAS_ZEROS>
	__device__ __forceinline__ void products_of_unit(float (&sum)[4], uint32_t w,
							 uint32_t x) const
	{
		float acc[2][4] = {}, scale[2];
		uint32_t less[2];
		int32_t zero[2];

		load_scales(scale, w, 0);
		if (HAS_ZEROS) {
			load_zeros(zero, w, 0);
#pragma unroll
			for (int h = 0; h < 2; h++)
				less[h] = group_pair<DTYPE>((float)(p.l.zero - zero[h]));
		}
#pragma unroll
		for (int l = 0; l < UNIT; l += STEP) {
			uint32_t words[4], v[2][4];

			load_words(words, w, l / STEP);
#pragma unroll
			for (int h = 0; h < 2; h++) {
				floats.decode(v[h], words, h);
#pragma unroll
				for (int i = 0; i < 4 && HAS_ZEROS; i++)
					v[h][i] = group_add<DTYPE>(v[h][i], less[h]);
			}
			multiply_step(acc, v, x, l);
		}
#pragma unroll
		for (int i = 0; i < 4; i++)
			sum[i] += (acc[0][i] + acc[1][i]) * scale[i / 2];
	}

	__device__ __forceinline__ void multiply_step(float (&acc)[2][4], const uint32_t (&v)[2][4],
						      uint32_t x, int l) const
	{
#pragma unroll
		for (int t = 0; t < TERMS; t++) {
			uint32_t b[4];

			ldmatrix_x4(b, x + t * HZI_GROUP_X_ROWS * p.pitch + l * 2);
#pragma unroll
			for (int i = 0; i < 2; i++)
				mma_m16n8k16<INTEGER ? HZ_F16 : DTYPE>(
					acc[i], v[0][2 * i], v[1][2 * i], v[0][2 * i + 1],
					v[1][2 * i + 1], b[2 * i], b[2 * i + 1]);
		}
	}

	__device__ __forceinline__ void products(float (&sum)[4], uint32_t w, uint32_t x,
						 int left) const
	{
		float acc[2][4] = {};

#pragma unroll
		for (int l = 0; l < UNIT; l += STEP) {
			uint32_t words[4], v[2][4];

			load_words(words, w, l / STEP);
#pragma unroll
			for (int h = 0; h < 2; h++)
				floats.decode(v[h], words, h);
			if (ZEROS && p.l.zero_at)
				subtract_zeros(v, w, l);
			multiply_step(acc, v, x, l);
			if (p.unit == 16) {
				add(sum, acc[0], w, l, left);
				add(sum, acc[1], w, l + 16, left);
			} else if (((l + STEP) & (p.unit - 1)) == 0) {
#pragma unroll
				for (int i = 0; i < 4; i++) {
					acc[0][i] += acc[1][i];
					acc[1][i] = 0;
				}
				add(sum, acc[0], w, l + STEP - p.unit, left);
			}
		}
	}

	__device__ __forceinline__ void subtract_zeros(uint32_t (&v)[2][4], uint32_t w, int l) const
	{
#pragma unroll
		for (int i = 0; i < 2; i++) {
			int32_t zero[2];

			load_zeros(zero, w, l + 16 * i);
#pragma unroll
			for (int h = 0; h < 2; h++) {
				const uint32_t less =
					group_pair<DTYPE>((float)(p.l.zero - zero[h]));

				v[h][2 * i] = group_add<DTYPE>(v[h][2 * i], less);
				v[h][2 * i + 1] = group_add<DTYPE>(v[h][2 * i + 1], less);
			}
		}
	}

	/* Adds a unit that begins at l, and leaves 0. */
	__device__ __forceinline__ void add(float (&sum)[4], float (&acc)[4], uint32_t w, int l,
					    int left) const
	{
		float scale[2];

		load_scales(scale, w, l);
#pragma unroll
		for (int i = 0; i < 4; i++) {
			if (l < left)
				sum[i] += acc[i] * scale[i / 2];
			acc[i] = 0;
		}
	}

	/* A whole piece with units of a step and no zero points, without branches */
	__device__ __forceinline__ void integers_by_step(float (&sum)[4], uint32_t w, uint32_t x,
							 uint32_t records) const
	{
		uint32_t b[2][4];

		ldmatrix_x4(b[0], x);
		ldmatrix_x4(b[1], x + 2 * STEP);
#pragma unroll
		for (int s = 0; s < UNIT / STEP; s++) {
			uint32_t words[4], u[4], r[4];
			int32_t acc[4];

			load_words(words, w, s);
			shared_load(r, records + s * 64);
#pragma unroll
			for (int i = 0; i < 4; i++)
				acc[i] = group_first_sum<KIND>() - (int32_t)r[2 + i % 2] * p.l.zero;
			group_bytes<KIND>(u, words);
			mma_m16n8k32<false, true>(acc, u, b[s / 2][s % 2 * 2],
						  b[s / 2][s % 2 * 2 + 1]);
			add(sum, acc, r, w, s * STEP, UNIT);
		}
	}

	__device__ __forceinline__ void integers(float (&sum)[4], uint32_t w, uint32_t x,
						 uint32_t records, int left) const
	{
		uint32_t b[4], r[4];
		int32_t acc[4];

#pragma unroll
		for (int l = 0; l < UNIT; l += STEP) {
			uint32_t words[4], u[4];

			load_words(words, w, l / STEP);
			if (l % (2 * STEP) == 0)
				ldmatrix_x4(b, x + l);
			group_bytes<KIND>(u, words);
			if (p.unit == 16) {
#pragma unroll
				for (int h = 0; h < 2; h++) {
					start(acc, r, w, records, l + 16 * h);
					mma_m16n8k16<false, true>(acc, u[2 * h], u[2 * h + 1],
								  b[l / STEP % 2 * 2 + h]);
					add(sum, acc, r, w, l + 16 * h, left);
				}
				continue;
			}
			if ((l & (p.unit - 1)) == 0)
				start(acc, r, w, records, l);
			mma_m16n8k32<false, true>(acc, u, b[l / STEP % 2 * 2],
						  b[l / STEP % 2 * 2 + 1]);
			if (((l + STEP) & (p.unit - 1)) == 0)
				add(sum, acc, r, w, l + STEP - p.unit, left);
		}
	}

	/* Begins a unit: r becomes the record of rows 2 q and 2 q + 1. */
	__device__ __forceinline__ void start(int32_t (&acc)[4], uint32_t (&r)[4], uint32_t w,
					      uint32_t records, int l) const
	{
		int32_t zero[2] = {p.l.zero, p.l.zero};

		shared_load(r, records + (l >> p.unit_shift) * 64);
		if (ZEROS && p.l.zero_at)
			load_zeros(zero, w, l);
#pragma unroll
		for (int i = 0; i < 4; i++)
			acc[i] = group_first_sum<KIND>() - (int32_t)r[2 + i % 2] * zero[i / 2];
	}

	/* In this order, each operation rounded, as the contract says */
	__device__ __forceinline__ void add(float (&sum)[4], const int32_t (&acc)[4],
					    const uint32_t (&r)[4], uint32_t w, int l,
					    int left) const
	{
		float scale[2];

		load_scales(scale, w, l);
#pragma unroll
		for (int i = 0; i < 4; i++) {
			const float by = __fmul_rn(__uint_as_float(r[i % 2]), scale[i / 2]);
			const float t = __fmul_rn(group_sum<KIND>(acc[i]), by);

			if (l < left)
				sum[i] = __fadd_rn(sum[i], t);
		}
	}
};

#define KERNEL(name, dtype, kind, terms) \
	extern "C" __global__ void __launch_bounds__(HZI_GROUP_THREADS, 4) \
	name(const __grid_constant__ hzi_group_gemm p) \
	{ \
		group_skinny_block<dtype, kind, terms>(p).run(); \
	}
/* In the order of enum hzi_group_kind */
#define KERNELS(x, dtype, terms) \
	KERNEL(qgemm_group_skinny_##x##_u4, dtype, HZI_GROUP_U4, terms) \
	KERNEL(qgemm_group_skinny_##x##_e2m1, dtype, HZI_GROUP_E2M1, terms) \
	KERNEL(qgemm_group_skinny_##x##_u8, dtype, HZI_GROUP_U8, terms)

KERNELS(s8, HZ_S8, 1)
KERNELS(f16, HZ_F16, 1)
KERNEL(qgemm_group_skinny_f16_e4m3, HZ_F16, HZI_GROUP_E4M3, 1)
KERNELS(bf16, HZ_BF16, 1)
KERNEL(qgemm_group_skinny_bf16_e4m3, HZ_BF16, HZI_GROUP_E4M3, 1)
KERNELS(f32, HZ_BF16, HZI_GROUP_TERMS)
KERNEL(qgemm_group_skinny_f32_e4m3, HZ_BF16, HZI_GROUP_E4M3, HZI_GROUP_TERMS)
