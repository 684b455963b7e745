/*
 * recurrent_persistent.cu - all steps of a recurrent layer of 16 bits in one kernel
 *
 * SPDX-License-Identifier: BSD-2-Clause
 *
 * Block x has 32 rows of U, which are all gates of 32 / K neurons, y is a slice of up to 32
 * sequences, z a direction. Its rows of U stay on the SM for all steps: the warps share the columns
 * of U, in units of four, and each has the first of its units in registers and the last in shared
 * memory; of 32 sequences, which need the registers, each step reads some again from L2. All blocks
 * run at the same time. A step reads states from one buffer and writes them to the other; a warp
 * waits only for the blocks that make the states which it multiplies.
 */
#include "gpu/quat_gemm/gemv_mma.cuh"
#include "gpu/quat_layer/recurrent_cells.cuh"

#define WARPS (HZI_QUAT_PERSISTENT_THREADS / 32)
#define STAGE 1024		/* bytes of states that a warp copies at a time */

/* Four columns of U in a lane: [tile] rows g and g + 8, quaternion t, as its conjugate */
struct unit {
	uint4 a[2];
};

template <int CELL, int DTYPE, int GROUPS>
struct persistent : block_cells<DTYPE, CELL, 8 * GROUPS> {
	using cells = block_cells<DTYPE, CELL, 8 * GROUPS>;
	using cells::column, cells::COLUMNS_STEP, cells::direction, cells::GATES, cells::has,
	      cells::item, cells::neuron, cells::NEURONS, cells::p, cells::QUATS, cells::slice;

	static constexpr int COLUMNS = 8 * GROUPS;
	static constexpr int KEPT = HZI_QUAT_PERSISTENT_KEPT(GROUPS);	/* units in registers */
	static constexpr int RING = HZI_QUAT_PERSISTENT_RING(GROUPS), STAGES = RING / STAGE;
	static constexpr int UNITS = 4 / GROUPS;			/* of a stage */

	const int warp, g, t;
	int first, units;		/* of this warp */
	uint32_t kept, ring;		/* shared memory of this warp */
	mma_sums sum[GROUPS];

	__device__ __forceinline__ explicit persistent(const hzi_quat_persistent &p_)
		: cells(p_), warp(threadIdx.x / 32), g(threadIdx.x % 32 / 4), t(threadIdx.x % 4)
	{
		extern __shared__ float4 shared[];
		const int all = (int)p.cell.hidden / 4;
		const int base = (int)shared_address(shared);

		first = min(warp * p.units, all);
		units = min(p.units, all - first);
		ring = base + warp * RING;
		kept = base + WARPS * RING + threadIdx.x % 32 * 16 +
		       warp * max(p.units - KEPT - p.streamed, 0) * HZI_QUAT_PERSISTENT_UNIT;
	}

	/* Unit i of this warp from memory, conjugated; 0 beyond the last */
	__device__ __forceinline__ unit load(int i) const
	{
		const char *const u = (const char *)p.u + 2 * direction * p.u_direction;
		uint2 v[4];

#pragma unroll
		for (int k = 0; k < 4; k++) {
			const int r = 8 * k + g;
			const int64_t row = r / NEURONS * p.cell.hidden + blockIdx.x * NEURONS +
					    r % NEURONS;

			v[k] = i < units ? *(const uint2 *)(u + 2 * row * p.u_row +
							    8 * (4 * (first + i) + t)) :
					   make_uint2(0, 0);
		}
#pragma unroll
		for (int k = 0; k < 4; k++) {
			v[k].x ^= 0x80000000;
			v[k].y ^= 0x80008000;
		}
		return {{make_uint4(v[0].x, v[1].x, v[0].y, v[1].y),
			 make_uint4(v[2].x, v[3].x, v[2].y, v[3].y)}};
	}

	/* Starts the copy of a stage of the states of a step. */
	__device__ __forceinline__ void fetch(const char *states, int stage) const
	{
		const int lane = threadIdx.x % 32, piece = lane % (4 * GROUPS);
		const bool any = slice * COLUMNS + 2 * piece < p.cell.batch;

#pragma unroll
		for (int h = 0; h < 2; h++) {
			const int l = (4 * UNITS) * stage + (lane + 32 * h) / (4 * GROUPS);
			const bool in = any && l < 4 * units;

			cp_async_zfill(ring + stage % STAGES * STAGE + (lane + 32 * h) * 16,
				       states + (in ? (int64_t)l * p.pitch + piece * 16 : 0),
				       in ? 16 : 0);
		}
	}

	/* Waits for a stage, loads it, and starts another copy to its place. */
	__device__ __forceinline__ void next_stage(uint2 (&x)[UNITS][GROUPS], const char *states,
						   int stage) const
	{
		const uint32_t src = ring + stage % STAGES * STAGE + (8 * t + g) * (8 * GROUPS);

		cp_async_wait<STAGES - 1>();
		__syncwarp();
#pragma unroll
		for (int u = 0; u < UNITS; u++)
#pragma unroll
			for (int i = 0; i < GROUPS; i += 2) {
				if (GROUPS == 1) {
					asm volatile("ld.shared.v2.u32 {%0, %1}, [%2];"
						     : "=r"(x[u][0].x), "=r"(x[u][0].y)
						     : "r"(src + u * 256) : "memory");
				} else {
					const uint4 v =
						shared_load(src + u * (256 * GROUPS) + 8 * i);

					x[u][i] = make_uint2(v.x, v.y);
					x[u][GROUPS == 1 ? 0 : i + 1] = make_uint2(v.z, v.w);
				}
			}
		__syncwarp();
		fetch(states, stage + STAGES);
		cp_async_commit();
	}

	/*
	 * With (a, -b, -c, -d) of U and (e, f, g, h) of a state the factors of the components are
	 * (e, f, g, h), (f, -e, -h, g), (g, h, -e, -f) and (h, -g, f, -e).
	 */
	__device__ __forceinline__ void multiply(const unit &u, const uint2 (&x)[GROUPS])
	{
#pragma unroll
		for (int i = 0; i < GROUPS; i++) {
			const uint32_t v = __byte_perm(x[i].x, 0, 0x1032) ^ 0x80000000;
			const uint32_t w = __byte_perm(x[i].y, 0, 0x1032);
			const uint32_t b[4][2] = {{x[i].x, x[i].y}, {v, w ^ 0x8000},
						  {x[i].y, x[i].x ^ 0x80008000},
						  {w ^ 0x80000000, v}};

#pragma unroll
			for (int tile = 0; tile < 2; tile++)
#pragma unroll
				for (int o = 0; o < 4; o++)
					mma_m16n8k16<DTYPE>(sum[i][tile][o], u.a[tile].x,
							    u.a[tile].y, u.a[tile].z,
							    u.a[tile].w, b[o][0], b[o][1]);
		}
	}

	/*
	 * The sums of this warp's columns of U. Units that are neither in registers nor in shared
	 * memory are read from L2 at each step, one ahead; `next` is the first of them.
	 */
	__device__ __forceinline__ void multiply_all(const unit (&u)[KEPT ? KEPT : 1], unit next,
						     const char *states)
	{
		uint2 x[UNITS][GROUPS];

#pragma unroll
		for (int i = 0; i < GROUPS; i++)
#pragma unroll
			for (int j = 0; j < 32; j++)
				(&sum[i][0][0][0])[j] = 0;
#pragma unroll
		for (int s = 0; s < STAGES; s++) {
			fetch(states, s);
			cp_async_commit();
		}
#pragma unroll
		for (int s = 0; s < KEPT / UNITS; s++) {
			if (s * UNITS >= units)
				break;
			next_stage(x, states, s);
#pragma unroll
			for (int i = 0; i < UNITS; i++)
				multiply(u[KEPT ? s * UNITS + i : 0], x[i]);
		}
#pragma unroll 1
		for (int s = KEPT / UNITS; s * UNITS < units; s++) {
			next_stage(x, states, s);
#pragma unroll
			for (int i = 0; i < UNITS; i++) {
				const int at = s * UNITS + i;
				unit v;

				if (i && at >= units)
					break;
				if (UNITS == 1 && at < KEPT + p.streamed) {
					v = next;
					next = load(at + 1 < KEPT + p.streamed ? at + 1 : units);
				} else {
					const uint32_t from = kept + (at - KEPT - p.streamed) *
								     HZI_QUAT_PERSISTENT_UNIT;

					v.a[0] = shared_load(from);
					v.a[1] = shared_load(from + 512);
				}
				multiply(v, x[i]);
			}
		}
		cp_async_wait<0>();
	}

	/*
	 * Adds up the sums of all warps, in order: sums[column][4 row + component]. Scratch: [warp]
	 * [row][slot]; odd rows have their halves swapped, against bank conflicts. meanwhile():
	 * once registers are free
	 */
	template <typename F>
	__device__ __forceinline__ void reduce(float (*sums)[4 * ROWS + 4], F meanwhile)
	{
		extern __shared__ float4 shared[];
		const int r = threadIdx.x / 8, slot = threadIdx.x % 8, s = slot ^ r % 2 * 4;
		float4 q[GROUPS];

#pragma unroll
		for (int i = 0; i < GROUPS; i++) {
			__syncthreads();
#pragma unroll
			for (int tile = 0; tile < 2; tile++)
#pragma unroll
				for (int h = 0; h < 2; h++)
#pragma unroll
					for (int e = 0; e < 2; e++) {
						const int row = 16 * tile + 8 * h + g;
						const int n = 2 * h + e;

						shared[(warp * ROWS + row) * 8 +
						       ((4 * e + t) ^ g % 2 * 4)] = make_float4(
							sum[i][tile][0][n], sum[i][tile][1][n],
							sum[i][tile][2][n], sum[i][tile][3][n]);
					}
			if (i == GROUPS / 2)
				meanwhile();
			__syncthreads();
			q[i] = make_float4(0, 0, 0, 0);
#pragma unroll
			for (int w = 0; w < WARPS; w++) {
				const float4 f = shared[(w * ROWS + r) * 8 + slot];

				q[i].x += f.x, q[i].y += f.y, q[i].z += f.z, q[i].w += f.w;
			}
		}
		__syncthreads();
		/* Column n of group i is column GROUPS n + i. */
#pragma unroll
		for (int i = 0; i < GROUPS; i++)
			*(float4 *)&sums[GROUPS * (2 * (s % 4) + s / 4) + i][4 * r] = q[i];
		__syncthreads();
	}


	__device__ __forceinline__ void run(void)
	{
		extern __shared__ float4 shared[];
		float (*const sums)[4 * ROWS + 4] = (float (*)[4 * ROWS + 4])shared;
		uint32_t *const done = cells::flags();
		/* The blocks that make the states of this warp */
		const int begin = 4 * first / NEURONS, end = (4 * (first + units) - 1) / NEURONS;
		unit u[KEPT ? KEPT : 1];

#pragma unroll
		for (int i = 0; i < KEPT; i++)
			u[i] = load(i);
		for (int i = KEPT + p.streamed; i < units; i++) {
			const unit v = load(i);
			const uint32_t dst = kept + (i - KEPT - p.streamed) *
						    HZI_QUAT_PERSISTENT_UNIT;

			shared_store(dst, (const uint32_t *)&v.a[0]);
			shared_store(dst + 512, (const uint32_t *)&v.a[1]);
		}
		__syncwarp();
#pragma unroll 1
		for (int step = 0; step < p.cell.steps; step++) {
			const char *const states = (const char *)p.state[step % 2] +
				(direction * p.cell.hidden + 4 * first) * p.pitch +
				slice * (8 * COLUMNS);
			const int64_t time = direction ? p.cell.steps - 1 - step : step;
			float gate[QUATS][GATES + 1][4], h[QUATS][4];
			typename cells::inputs in;
			unit next = {};

			if (UNITS == 1 && p.streamed)
				next = load(KEPT);
			cells::prefetch_inputs(time);
			if (units)
				for (int b = begin + threadIdx.x % 32; b <= end; b += 32)
					while (load_acquire(done + b) < (uint32_t)step) {}
			__syncwarp();
			multiply_all(u, next, states);
			reduce(sums, [&] { cells::load_inputs(in, time); });
#pragma unroll
			for (int i = 0; i < QUATS; i++) {
				if (!has(i))
					break;
				const float *const from = sums[column + i * COLUMNS_STEP] +
							  4 * (threadIdx.x % NEURONS);

				cells::step_cell(gate[i], h[i], in, i, [&](int k, int c) {
					const int part = 4 * k + c;

					return p.cell.planar ?
						from[4 * NEURONS * (part % GATES) + part / GATES] :
						from[4 * NEURONS * k + c];
				});
				/* The other buffer gets all states, also of ended sequences. */
				if (time >= in.length[i])
					cells::load_state(h[i], p.cell.h, i);
				((uint2 *)p.state[(step + 1) % 2])
					[(direction * p.cell.hidden + neuron) * (p.pitch / 8) +
					 item + i * COLUMNS_STEP] = cells::to_16(h[i]);
			}
			__syncthreads();
			if (threadIdx.x == 0)
				store_release(done + blockIdx.x, (uint32_t)(step + 1));
#pragma unroll
			for (int i = 0; i < QUATS; i++) {
				if (!has(i))
					break;
				cells::store(gate[i], h[i], time < in.length[i], i, time);
			}
		}
	}
};

#define PERSISTENT(name, ...) \
	PERSISTENT_KERNEL(name, HZI_QUAT_PERSISTENT_THREADS, persistent, __VA_ARGS__)

PERSISTENT(8_f16, HZ_F16, 1)
PERSISTENT(8_bf16, HZ_BF16, 1)
PERSISTENT(16_f16, HZ_F16, 2)
PERSISTENT(16_bf16, HZ_BF16, 2)
PERSISTENT(32_f16, HZ_F16, 4)
PERSISTENT(32_bf16, HZ_BF16, 4)
