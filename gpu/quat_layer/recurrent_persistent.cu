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
#include "gpu/device/dtype.cuh"
#include "gpu/quat_gemm/gemv_mma.cuh"
#include "gpu/quat_layer/quat_layer.cuh"
#include "gpu/quat_layer/recurrent.h"
#include "lib/quat_layer/cell_math.h"

#define ROWS HZI_QUAT_CELL_ROWS
#define WARPS (HZI_QUAT_PERSISTENT_THREADS / 32)
#define STAGE 1024		/* bytes of states that a warp copies at a time */

HZ_DEVICE uint32_t load_acquire(const uint32_t *p)
{
	uint32_t v;

	asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
	return v;
}

HZ_DEVICE void store_release(uint32_t *p, uint32_t v)
{
	asm volatile("st.release.gpu.global.u32 [%0], %1;" :: "l"(p), "r"(v) : "memory");
}

/* Four columns of U in a lane: [tile] rows g and g + 8, quaternion t, as its conjugate */
struct unit {
	uint4 a[2];
};

template <int DTYPE, int CELL, int GROUPS>
struct persistent {
	static constexpr int COLUMNS = 8 * GROUPS;
	static constexpr int KEPT = HZI_QUAT_PERSISTENT_KEPT(GROUPS);	/* units in registers */
	static constexpr int RING = HZI_QUAT_PERSISTENT_RING(GROUPS), STAGES = RING / STAGE;
	static constexpr int UNITS = 4 / GROUPS;			/* of a stage */
	static constexpr int GATES = HZI_QUAT_CELL_GATES(CELL), NEURONS = ROWS / GATES;
	static constexpr int CANDIDATE = CELL == HZ_QUAT_CELL_LSTM ? 3 : 0;
	/* A thread has a quaternion of the state of each COLUMNS_STEP-th sequence. */
	static constexpr int COLUMNS_STEP = HZI_QUAT_PERSISTENT_THREADS / NEURONS;
	static constexpr int QUATS = COLUMNS > COLUMNS_STEP ? COLUMNS / COLUMNS_STEP : 1;

	/* What a step of the cell reads: z of 16 bits, c or h */
	struct inputs {
		uint2 z[QUATS][GATES];
		float state[QUATS][4];
		int length[QUATS];
	};

	const hzi_quat_persistent &p;
	const int warp, g, t, slice, direction;
	int neuron, column;		/* of this thread's first quaternion */
	int64_t item;			/* its sequence */
	int first, units;		/* of this warp */
	uint32_t kept, ring;		/* shared memory of this warp */
	mma_sums sum[GROUPS];

	__device__ __forceinline__ explicit persistent(const hzi_quat_persistent &p_)
		: p(p_), warp(threadIdx.x / 32), g(threadIdx.x % 32 / 4), t(threadIdx.x % 4),
		  slice(p.slice + blockIdx.y), direction(p.direction + blockIdx.z)
	{
		extern __shared__ float4 shared[];
		const int all = (int)p.cell.hidden / 4;
		const int base = (int)shared_address(shared);

		neuron = blockIdx.x * NEURONS + threadIdx.x % NEURONS;
		column = threadIdx.x / NEURONS;
		item = slice * COLUMNS + column;
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

	/* Whether the four numbers of gate k, and of y, are a contiguous quaternion */
	__device__ __forceinline__ bool contiguous(const hzi_quat_array &x) const
	{
		return !p.cell.planar && x.whole;
	}

	/* Offset of number c of gate k of this thread's neuron; planar: part 4 k + c, in K rows */
	__device__ __forceinline__ int64_t gate_at(int k, int c) const
	{
		const hzi_quat_array &z = p.cell.z;
		const int part = 4 * k + c;

		return p.cell.planar ? (part % GATES * p.cell.hidden + neuron) * z.stride[3] +
				       z.comp[part / GATES] :
				       (k * p.cell.hidden + neuron) * z.stride[3] + z.comp[c];
	}

	__device__ __forceinline__ int64_t row(const hzi_quat_array &x, int64_t time, int i) const
	{
		return time * x.stride[0] + (item + i * COLUMNS_STEP) * x.stride[1] +
		       direction * x.stride[2];
	}

	/* The index of number c of quaternion i in states of f32 */
	__device__ __forceinline__ int64_t state_at(int i, int c) const
	{
		const int64_t at = (direction * p.cell.batch + item + i * COLUMNS_STEP) * 4 *
				   p.cell.hidden;

		return at + (p.cell.planar ? c * p.cell.hidden + neuron : 4 * neuron + c);
	}

	__device__ __forceinline__ bool has(int i) const
	{
		return column + i * COLUMNS_STEP < COLUMNS &&
		       item + i * COLUMNS_STEP < p.cell.batch;
	}

	__device__ __forceinline__ void load_state(float (&v)[4], const float *state, int i) const
	{
		if (!p.cell.planar) {
			const float4 f = *(const float4 *)(state + state_at(i, 0));

			v[0] = f.x, v[1] = f.y, v[2] = f.z, v[3] = f.w;
			return;
		}
#pragma unroll
		for (int c = 0; c < 4; c++)
			v[c] = state[state_at(i, c)];
	}

	__device__ __forceinline__ void store_state(float *state, int i, const float (&v)[4]) const
	{
		if (!p.cell.planar) {
			*(float4 *)(state + state_at(i, 0)) = make_float4(v[0], v[1], v[2], v[3]);
			return;
		}
#pragma unroll
		for (int c = 0; c < 4; c++)
			state[state_at(i, c)] = v[c];
	}

	/* Loads what the cell needs besides the sums. */
	__device__ __forceinline__ void load_inputs(inputs &in, int64_t time) const
	{
		const uint16_t *const z = (const uint16_t *)p.cell.z.data;

#pragma unroll
		for (int i = 0; i < QUATS; i++) {
			if (!has(i))
				break;
#pragma unroll
			for (int k = 0; k < GATES; k++) {
				const uint16_t *const from = z + row(p.cell.z, time, i);

				if (contiguous(p.cell.z))
					in.z[i][k] = *(const uint2 *)(from + gate_at(k, 0));
				else
					in.z[i][k] = make_uint2(
						from[gate_at(k, 0)] | from[gate_at(k, 1)] << 16,
						from[gate_at(k, 2)] | from[gate_at(k, 3)] << 16);
			}
			if (CELL == HZ_QUAT_CELL_LSTM)
				load_state(in.state[i], p.cell.c, i);
			if (CELL == HZ_QUAT_CELL_LIGRU)
				load_state(in.state[i], p.cell.h, i);
			in.length[i] = (int)hzi_quat_cell_length(&p.cell,
								 item + i * COLUMNS_STEP);
		}
	}

	__device__ __forceinline__ void prefetch_inputs(int64_t time) const
	{
		const uint16_t *const z = (const uint16_t *)p.cell.z.data;

#pragma unroll
		for (int i = 0; i < QUATS; i++)
#pragma unroll
			for (int k = 0; k < GATES; k++)
				if (has(i))
					prefetch_l2(z + row(p.cell.z, time, i) + gate_at(k, 0));
	}

	__device__ __forceinline__ float candidate(float x) const
	{
		if (CELL == HZ_QUAT_CELL_LSTM || p.cell.activation == HZ_ACT_TANH)
			return tanhf(x);
		return x < 0 ? p.cell.activation == HZ_ACT_LEAKY ? p.cell.slope * x : 0 : x;
	}

	static __device__ __forceinline__ float sigmoid(float x)
	{
		return 1 / (1 + expf(-x));
	}

	static __device__ __forceinline__ float from_16(uint2 v, int c)
	{
		const uint32_t pair = c / 2 ? v.y : v.x;

		if (DTYPE == HZ_BF16)
			return c % 2 ? bf16_high(pair) : bf16_low(pair);
		return c % 2 ? f16_high(pair) : f16_low(pair);
	}

	static __device__ __forceinline__ uint2 to_16(const float (&v)[4])
	{
		return quat_pack(DTYPE, {v[0], v[1], v[2], v[3]});
	}

	/* The cell of quaternion i: gates, the last of which is c, and h */
	__device__ __forceinline__ void step_cell(float (&gate)[GATES + 1][4], float (&h)[4],
						  const inputs &in, int i,
						  const float (*sums)[4 * ROWS + 4]) const
	{
		const float *const from = sums[column + i * COLUMNS_STEP] +
					  4 * (threadIdx.x % NEURONS);

#pragma unroll
		for (int k = 0; k < GATES; k++)
#pragma unroll
			for (int c = 0; c < 4; c++) {
				/* Number (4 k + c) hidden + neuron of all w, x, y, z */
				const int part = 4 * k + c;
				const float x = (p.cell.planar ?
					from[4 * NEURONS * (part % GATES) + part / GATES] :
					from[4 * NEURONS * k + c]) + from_16(in.z[i][k], c);

				gate[k][c] = k == CANDIDATE ? candidate(x) : sigmoid(x);
			}
#pragma unroll
		for (int c = 0; c < 4; c++) {
			if (CELL == HZ_QUAT_CELL_LSTM) {
				gate[GATES][c] = gate[0][c] * gate[GATES - 1][c] +
						 gate[1 % GATES][c] * in.state[i][c];
				h[c] = gate[2 % GATES][c] * tanhf(gate[GATES][c]);
			} else if (CELL == HZ_QUAT_CELL_LIGRU) {
				h[c] = gate[GATES - 1][c] * in.state[i][c] +
				       (1 - gate[GATES - 1][c]) * gate[0][c];
				gate[GATES][c] = h[c];
			} else {
				h[c] = gate[0][c];
			}
		}
	}

	/* Stores what other blocks do not wait for. */
	__device__ __forceinline__ void store(const float (&gate)[GATES + 1][4],
					      const float (&h)[4], bool active, int i,
					      int64_t time) const
	{
		const hzi_quat_array &y = p.cell.y;
		uint16_t *const to = (uint16_t *)y.data + row(y, time, i) + neuron * y.stride[3];
		const uint2 v = active ? to_16(h) : make_uint2(0, 0);
		float *const saved = hzi_quat_cell_saved(&p.cell, time, item + i * COLUMNS_STEP,
							 direction);

		if (contiguous(y)) {
			*(uint2 *)to = v;
		} else {
			to[y.comp[0]] = (uint16_t)v.x;
			to[y.comp[1]] = (uint16_t)(v.x >> 16);
			to[y.comp[2]] = (uint16_t)v.y;
			to[y.comp[3]] = (uint16_t)(v.y >> 16);
		}
		if (active) {
			store_state(p.cell.h, i, h);
			if (CELL == HZ_QUAT_CELL_LSTM)
				store_state(p.cell.c, i, gate[GATES]);
		}
		if (!saved)
			return;
#pragma unroll
		for (int k = 0; k < HZI_QUAT_CELL_SAVED(CELL); k++)
#pragma unroll
			for (int c = 0; c < 4; c++)
				saved[4 * k * p.cell.hidden +
				      (p.cell.planar ? c * p.cell.hidden + neuron :
						       4 * neuron + c)] = active ? gate[k][c] : 0;
	}

	__device__ __forceinline__ void run(void)
	{
		extern __shared__ float4 shared[];
		float (*const sums)[4 * ROWS + 4] = (float (*)[4 * ROWS + 4])shared;
		uint32_t *const done = p.done + ((int64_t)direction * p.slices + slice) * gridDim.x;
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
			inputs in;
			unit next = {};

			if (UNITS == 1 && p.streamed)
				next = load(KEPT);
			prefetch_inputs(time);
			if (units)
				for (int b = begin + threadIdx.x % 32; b <= end; b += 32)
					while (load_acquire(done + b) < (uint32_t)step) {}
			__syncwarp();
			multiply_all(u, next, states);
			reduce(sums, [&] { load_inputs(in, time); });
#pragma unroll
			for (int i = 0; i < QUATS; i++) {
				if (!has(i))
					break;
				step_cell(gate[i], h[i], in, i, sums);
				/* The other buffer gets all states, also of ended sequences. */
				if (time >= in.length[i])
					load_state(h[i], p.cell.h, i);
				((uint2 *)p.state[(step + 1) % 2])
					[(direction * p.cell.hidden + neuron) * (p.pitch / 8) +
					 item + i * COLUMNS_STEP] = to_16(h[i]);
			}
			__syncthreads();
			if (threadIdx.x == 0)
				store_release(done + blockIdx.x, (uint32_t)(step + 1));
#pragma unroll
			for (int i = 0; i < QUATS; i++) {
				if (!has(i))
					break;
				store(gate[i], h[i], time < in.length[i], i, time);
			}
		}
	}
};

template <int DTYPE, int GROUPS>
HZ_DEVICE void run(const hzi_quat_persistent &p)
{
	if (p.cell.cell == HZ_QUAT_CELL_LSTM)
		persistent<DTYPE, HZ_QUAT_CELL_LSTM, GROUPS>(p).run();
	else if (p.cell.cell == HZ_QUAT_CELL_LIGRU)
		persistent<DTYPE, HZ_QUAT_CELL_LIGRU, GROUPS>(p).run();
	else
		persistent<DTYPE, HZ_QUAT_CELL_RNN, GROUPS>(p).run();
}

#define PERSISTENT(name, ...) \
	extern "C" __global__ void __launch_bounds__(HZI_QUAT_PERSISTENT_THREADS, 1) \
	quat_layer_persistent_##name(const __grid_constant__ hzi_quat_persistent p) \
	{ \
		run<__VA_ARGS__>(p); \
	}

PERSISTENT(8_f16, HZ_F16, 1)
PERSISTENT(8_bf16, HZ_BF16, 1)
PERSISTENT(16_f16, HZ_F16, 2)
PERSISTENT(16_bf16, HZ_BF16, 2)
PERSISTENT(32_f16, HZ_F16, 4)
PERSISTENT(32_bf16, HZ_BF16, 4)
