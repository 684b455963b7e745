/*
 * group_wgmma.cu - 16-bit floats or codes x by group-wise quantized weights, by wgmma; sm_90a
 *
 * SPDX-License-Identifier: BSD-2-Clause
 *
 * D = W^T x^T: a warpgroup multiplies 64 columns of W, four panels, by ROWS rows of x. Each warp
 * loads pieces of its panel ahead into registers and decodes them to the A operand. A producer warp
 * copies x by TMA into a ring of stages in shared memory, the B operand. Each unit of k is summed
 * from 0 and then added with its scale, so that w - zero is exact. Splits of k of floats are the
 * blocks of a cluster, which add their sums in order. With codes x a stage also has the records of
 * its rows, and sums of units become floats as the contract says.
 */
#include "gpu/device/tma.cuh"
#include "gpu/device/wgmma_f16.cuh"
#include "gpu/qgemm/group.cuh"

#if HAVE_WGMMA

#define PIECE HZI_GROUP_UNIT
#define CONSUMERS HZI_GROUP_WGMMA_CONSUMERS

template <int DTYPE, int KIND, int UNIT, int ROWS>
struct group_wgmma_block {
	static constexpr bool ZEROS = KIND == HZI_GROUP_U4 || KIND == HZI_GROUP_U8;
	static constexpr int WORDS = group_step_words<KIND>, LOADS = WORDS, AHEAD = 2;
	static constexpr bool INTEGER = DTYPE == HZ_S8;
	static constexpr int STAGES = HZI_GROUP_WGMMA_STAGES(ROWS), TILE = ROWS * 128;
	static constexpr int UNITS = PIECE / UNIT, PITCH = HZI_GROUP_WGMMA_PITCH;
	/* Of a stage: two tiles of 64 floats of k, or one of 128 codes and records */
	static constexpr int STAGE = 2 * TILE, RECORDS = UNITS * 64;

	/* A lane's codes, and scales and zero points of columns g and g + 8 of each unit */
	struct piece {
		uint32_t codes[4 * LOADS];
		float2 scale[UNITS];
		uint32_t zero[UNITS];
	};

	const hzi_group_wgmma &p;
	const hzi_group_gemm &l;
	const int lane, warp, g, q, panel;
	const group_floats<DTYPE, KIND> floats;
	uint32_t memory, full, empty;

	__device__ __forceinline__ explicit group_wgmma_block(const hzi_group_wgmma &p_)
		: p(p_), l(p_.g), lane(threadIdx.x % 32),
		  warp(__shfl_sync(~0u, threadIdx.x / 32, 0)), g(lane / 4), q(lane % 4),
		  panel(min((int)(blockIdx.x / p.split) * HZI_GROUP_WGMMA_PANELS + warp,
			    (int)l.l.panels - 1)),
		  floats(l.l.zero)
	{
		static_assert(!INTEGER || ROWS / 8 * RECORDS <= TILE, "records fit a stage");
		memory = shared_address(shared_start());
		full = memory + STAGES * STAGE;
		empty = full + 8 * STAGES;
	}

	__device__ __forceinline__ void run(void)
	{
		const int part = blockIdx.x % p.split;
		const int begin = l.pieces * part / p.split, end = l.pieces * (part + 1) / p.split;

		if (threadIdx.x == 0) {
			for (int i = 0; i < STAGES; i++) {
				mbarrier_init(full + 8 * i, 1);
				mbarrier_init(empty + 8 * i, CONSUMERS / 32);
			}
			mbarrier_init_fence();
		}
		pdl_launch_dependents();
		__syncthreads();
		if (warp >= CONSUMERS / 32) {
			if constexpr (ROWS == 128)
				setmaxnreg_dec<40>();
			if (warp == CONSUMERS / 32 && lane == 0)
				produce(begin, end);
			__syncwarp();
			finish(part);
		} else {
			if constexpr (ROWS == 128)
				setmaxnreg_inc<232>();
			if constexpr (INTEGER)
				consume_codes(end);
			else
				consume(begin, end);
			finish(part);
		}
	}

private:
	__device__ __forceinline__ void produce(int begin, int end) const
	{
		const int row_blocks =
			(int)min((l.rows - (int64_t)blockIdx.y * ROWS + 7) / 8, (int64_t)ROWS / 8);
		ring_position<STAGES> at;

		pdl_wait();
		for (int i = begin; i < end; i++, at.next()) {
			const uint32_t tile = memory + at.at * STAGE, bar = full + 8 * at.at;

			mbarrier_wait(empty + 8 * at.at, at.parity ^ 1);
			if constexpr (INTEGER) {
				const hzi_group_record *const from =
					l.records + UNITS * 4 *
					((int64_t)blockIdx.y * (ROWS / 8) * l.pieces + i);

				mbarrier_expect_tx(bar, TILE + row_blocks * RECORDS);
				tma_load_2d(tile, p.x, i * PIECE, blockIdx.y * ROWS, bar);
				for (int r = 0; r < row_blocks; r++)
					bulk_copy(tile + TILE + r * RECORDS,
						  from + (int64_t)r * l.pieces * UNITS * 4, RECORDS,
						  bar);
				continue;
			}
			mbarrier_expect_tx(bar, 2 * TILE);
			for (int h = 0; h < 2; h++)
				tma_load_2d(tile + h * TILE, p.x, i * PIECE * 2 + h * 128,
					    blockIdx.y * ROWS, bar);
		}
	}

	__device__ __forceinline__ void load(piece &to, int i, int end) const
	{
		const uint8_t *const codes = l.packed + panel * l.l.panel_bytes + lane * 16 +
					     (int64_t)i * (512 * LOADS);
		const int64_t panel_groups = (int64_t)panel * l.l.groups;

		if (i >= end)
			return;
#pragma unroll
		for (int n = 0; n < LOADS; n++) {
			const uint4 v = __ldcs((const uint4 *)(codes + n * 512));

			to.codes[4 * n] = v.x;
			to.codes[4 * n + 1] = v.y;
			to.codes[4 * n + 2] = v.z;
			to.codes[4 * n + 3] = v.w;
		}
#pragma unroll
		for (int u = 0; u < UNITS; u++) {
			const int64_t group = min((i * PIECE + u * UNIT) >> l.group_shift,
						  (int)l.l.groups - 1) + panel_groups;

			to.scale[u] = __ldg((const float2 *)(l.packed + l.l.scale_at) +
					    group * 8 + g);
			if (ZEROS && l.l.zero_at)
				to.zero[u] = __ldg((const uint32_t *)(l.packed + l.l.zero_at) +
						group * 8 + g);
		}
	}

	__device__ __forceinline__ void consume(int begin, int end)
	{
		ring_position<STAGES> at;
		float sum[ROWS / 2] = {}, acc[ROWS / 2];
		piece ring[AHEAD];

#pragma unroll
		for (int d = 0; d < AHEAD; d++)
			load(ring[d], begin + d, end);
		for (int i = begin; i < end; i += AHEAD) {
#pragma unroll
			for (int d = 0; d < AHEAD; d++) {
				const int left = (int)l.l.k - (i + d) * PIECE;
				uint32_t a[PIECE / 16][4];
				float2 scale[UNITS];
				uint64_t b;

				if (i + d >= end)
					break;
				decode(a, ring[d]);
#pragma unroll
				for (int u = 0; u < UNITS; u++)
					scale[u] = ring[d].scale[u];
				load(ring[d], i + d + AHEAD, end);
				b = wgmma_desc_k(memory + at.at * STAGE);
				mbarrier_wait(full + 8 * at.at, at.parity);
#pragma unroll
				for (int u = 0; u < UNITS; u++) {
					wgmma_fence();
#pragma unroll
					for (int j = 0; j < UNIT / 16; j++) {
						const int k = u * UNIT / 16 + j;
						const int at = k / 4 * (TILE / 16) + k % 4 * 2;

						wgmma_rs_add<DTYPE>(acc, a[k], b + at, j > 0);
					}
					wgmma_commit();
					wgmma_wait<0>();
					wgmma_keep(acc);
					/* No unit begins beyond k. */
					if (u * UNIT >= left)
						continue;
#pragma unroll
					for (int j = 0; j < ROWS / 2; j++)
						sum[j] += acc[j] *
							  (j / 2 % 2 ? scale[u].y : scale[u].x);
				}
				if (lane == 0)
					mbarrier_arrive(empty + 8 * at.at);
				__syncwarp();
				at.next();
			}
		}
		/* All warpgroups have read all of x when the sums take its place. */
		named_barrier();
		store(sum);
	}

	/* All of k: the sum of 512 of k is `chunk`, and y the sum of them. */
	__device__ __forceinline__ void consume_codes(int end)
	{
		ring_position<STAGES> at;
		float sum[ROWS / 2] = {}, chunk[ROWS / 2] = {};
		piece ring[AHEAD];

#pragma unroll
		for (int d = 0; d < AHEAD; d++)
			load(ring[d], d, end);
		for (int i = 0; i < end; i += AHEAD) {
#pragma unroll
			for (int d = 0; d < AHEAD; d++) {
				if (i + d >= end)
					break;
				mbarrier_wait(full + 8 * at.at, at.parity);
				multiply_codes(chunk, ring[d], memory + at.at * STAGE,
					       (int)l.l.k - (i + d) * PIECE);
				load(ring[d], i + d + AHEAD, end);
				__syncwarp();	/* All lanes have read the records. */
				if (lane == 0)
					mbarrier_arrive(empty + 8 * at.at);
				at.next();
			}
			if ((i + AHEAD) % (HZI_GROUP_CHUNK / PIECE) && i + AHEAD < end)
				continue;
#pragma unroll
			for (int j = 0; j < ROWS / 2; j++) {
				sum[j] = __fadd_rn(sum[j], chunk[j]);
				chunk[j] = 0;
			}
		}
		named_barrier();
		store(sum);
	}

	__device__ __forceinline__ void multiply_codes(float (&sum)[ROWS / 2], const piece &c,
						       uint32_t stage, int left) const
	{
		const uint64_t b = wgmma_desc_k(stage);
		const uint32_t records = stage + TILE + q * 16;
		int32_t acc[ROWS / 2];

#pragma unroll
		for (int u = 0; u < UNITS; u++) {
			uint32_t a[UNIT / 32][4];
			int32_t zero[2] = {l.l.zero, l.l.zero};

			/* No unit begins beyond k. */
			if (u * UNIT >= left)
				break;
			if (ZEROS && l.l.zero_at) {
				zero[0] = group_zero(c.zero[u], 0);
				zero[1] = group_zero(c.zero[u], 1);
			}
#pragma unroll
			for (int s = 0; s < UNIT / 32; s++)
				group_bytes<KIND>(a[s], c.codes + WORDS * (u * UNIT / 32 + s));
#pragma unroll
			for (int j = 0; j < ROWS / 8; j++) {
				int32_t r[2];

				asm volatile("ld.shared.v2.s32 {%0, %1}, [%2];"
					     : "=r"(r[0]), "=r"(r[1])
					     : "r"(records + j * RECORDS + u * 64 + 8) : "memory");
#pragma unroll
				for (int e = 0; e < 4; e++)
					acc[4 * j + e] =
						group_first_sum<KIND>() - r[e % 2] * zero[e / 2];
			}
			wgmma_fence();
#pragma unroll
			for (int s = 0; s < UNIT / 32; s++)
				wgmma_rs_u8_s8(acc, a[s], b + (u * UNIT / 32 + s) * 2);
			wgmma_commit();
			wgmma_wait<0>();
			wgmma_keep(acc);
#pragma unroll
			for (int j = 0; j < ROWS / 8; j++) {
				const float scale[2] = {c.scale[u].x, c.scale[u].y};
				float r[2];

				asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];"
					     : "=f"(r[0]), "=f"(r[1])
					     : "r"(records + j * RECORDS + u * 64) : "memory");
#pragma unroll
				for (int e = 0; e < 4; e++)
					sum[4 * j + e] = __fadd_rn(
						sum[4 * j + e],
						__fmul_rn(group_sum<KIND>(acc[4 * j + e]),
							  __fmul_rn(r[e % 2], scale[e / 2])));
			}
		}
	}

	__device__ __forceinline__ static void named_barrier(void)
	{
		asm volatile("bar.sync 1, %0;" :: "n"(CONSUMERS) : "memory");
	}

	__device__ __forceinline__ void decode(uint32_t (&a)[PIECE / 16][4], const piece &c) const
	{
#pragma unroll
		for (int s = 0; s < PIECE / HZI_GROUP_STEP; s++) {
#pragma unroll
			for (int h = 0; h < 2; h++) {
				uint32_t v[4];

				floats.decode(v, c.codes + WORDS * s, h);
#pragma unroll
				for (int i = 0; i < 4; i++)
					a[2 * s + i / 2][i % 2 * 2 + h] = v[i];
			}
		}
		if (ZEROS && l.l.zero_at) {
#pragma unroll
			for (int h = 0; h < 2; h++) {
				const uint32_t less = group_pair<DTYPE>(
					(float)(l.l.zero - group_zero(c.zero[0], h)));

#pragma unroll
				for (int i = 0; i < PIECE / 16; i++) {
					a[i][h] = group_add<DTYPE>(a[i][h], less);
					a[i][2 + h] = group_add<DTYPE>(a[i][2 + h], less);
				}
			}
		}
	}

	/* Sums to shared memory, [row of x][column of W] */
	__device__ __forceinline__ void store(const float (&sum)[ROWS / 2]) const
	{
		float *const to = (float *)shared_start();

#pragma unroll
		for (int i = 0; i < ROWS / 2; i++)
			to[(i / 4 * 8 + 2 * q + i % 2) * PITCH + warp * 16 + g + i / 2 % 2 * 8] =
				sum[i];
	}

	/* Each block of a cluster adds the sums of all for its share of the rows. */
	__device__ __forceinline__ void finish(int part) const
	{
		constexpr int columns = HZI_GROUP_WGMMA_PANELS * HZI_GROUP_COLUMNS;
		const int first = ROWS * part / p.split, last = ROWS * (part + 1) / p.split;
		const int64_t j = (int64_t)(blockIdx.x / p.split) * columns;
		const int64_t row0 = (int64_t)blockIdx.y * ROWS;

		pdl_wait();
		if (p.split > 1) {
			cluster_arrive();
			cluster_wait();
		} else {
			__syncthreads();
		}
#pragma unroll (ROWS == 128 ? 2 : 1)
		for (int i = threadIdx.x + first * (columns / 4); i < last * (columns / 4);
		     i += HZI_GROUP_WGMMA_THREADS(ROWS)) {
			const int row = i / (columns / 4), column = i % (columns / 4) * 4;
			const int at = 4 * (row * PITCH + column);
			float4 v[8] = {}, y = {};

			if (row0 + row >= l.rows || j + column >= l.l.n)
				continue;
			/* These loads are in flight together. */
#pragma unroll
			for (int z = 0; z < 8; z++) {
				if (p.split == 1 && z == 0)
					v[z] = *(const float4 *)(shared_start() + at);
				else if (p.split > 1 && z < p.split)
					v[z] = cluster_load4(cluster_map(memory + at, z));
			}
#pragma unroll
			for (int z = 0; z < 8; z++) {
				y.x += v[z].x;
				y.y += v[z].y;
				y.z += v[z].z;
				y.w += v[z].w;
			}
			group_put4(l, row0 + row, j + column, y, p.y_vectorized);
		}
		__syncwarp();
		if (p.split > 1) {
			cluster_arrive_relaxed();
			cluster_wait();
		}
	}
};

#define GROUP_WGMMA_BODY(...) { group_wgmma_block<__VA_ARGS__>(p).run(); }
#else
#define GROUP_WGMMA_BODY(...) { }
#endif

#define KERNEL(name, dtype, kind, unit, rows) \
	extern "C" __global__ void __launch_bounds__(HZI_GROUP_WGMMA_THREADS(rows), \
						     rows == 16 && unit == 128 ? 2 : 1) \
	name##_##rows(const __grid_constant__ hzi_group_wgmma p) \
	GROUP_WGMMA_BODY(dtype, kind, unit, rows)
#define KERNELS(name, dtype, kind, unit) \
	KERNEL(name, dtype, kind, unit, 16) \
	KERNEL(name, dtype, kind, unit, 64) \
	KERNEL(name, dtype, kind, unit, 128)

#define DTYPES(name, ...) \
	KERNELS(qgemm_group_wgmma_f16_##name, HZ_F16, __VA_ARGS__) \
	KERNELS(qgemm_group_wgmma_bf16_##name, HZ_BF16, __VA_ARGS__)

#define CODES(unit) \
	KERNEL(qgemm_group_wgmma_s8_u4_##unit, HZ_S8, HZI_GROUP_U4, unit, 64) \
	KERNEL(qgemm_group_wgmma_s8_e2m1_##unit, HZ_S8, HZI_GROUP_E2M1, unit, 64) \
	KERNEL(qgemm_group_wgmma_s8_u8_##unit, HZ_S8, HZI_GROUP_U8, unit, 64)

CODES(128)
CODES(32)
DTYPES(u4, HZI_GROUP_U4, 128)
DTYPES(e2m1_32, HZI_GROUP_E2M1, 32)
DTYPES(e2m1_16, HZI_GROUP_E2M1, 16)
DTYPES(u8, HZI_GROUP_U8, 128)
DTYPES(e4m3, HZI_GROUP_E4M3, 128)
