/*
 * recurrent_wgmma.cu - all steps of a recurrent layer of 16 bits, 17 to 32 sequences, by wgmma
 *
 * SPDX-License-Identifier: BSD-2-Clause
 *
 * The two blocks of a cluster have the 64 rows of U of both (recurrent_cells.cuh), and each of them
 * a half of the columns. A block's U is the B operand of wgmma, 64 columns, in tiles of 16
 * quaternions: p.units tiles stay in shared memory, the others in registers of the third
 * warpgroup, which copies them at each step, one after the other, to a slot of each group.
 *
 * The first two warpgroups have a group of 16 sequences each. Groups do not wait for each other:
 * while one exchanges sums, makes its cells and waits for the states of other blocks, the other
 * one has the tensor cores. The A operand is the states of a group, as 4 x 4 real numbers each, of
 * which even warps make the first two rows and odd warps the others: with (e, f, g, h) of a state,
 *
 *   w  e -f -g -h     x  f e h -g     y  g -h e f     z  h g -f e
 *
 * A thread of the fourth warpgroup copies the states of a group, by bulk copies, when all blocks
 * that make them have stored them. Each block sends the sums of the other one's rows to it; they
 * replace the slot.
 */
#include "gpu/device/shared.cuh"
#include "gpu/device/tma.cuh"
#include "gpu/device/wgmma_f16.cuh"
#include "gpu/quat_layer/recurrent_cells.cuh"

#define COLUMNS HZI_QUAT_WGMMA_COLUMNS
#define U_TILE HZI_QUAT_WGMMA_U_TILE
#define H_TILE HZI_QUAT_WGMMA_H_TILE
#define GROUP HZI_QUAT_WGMMA_GROUP
#define HELD HZI_QUAT_WGMMA_HELD
#define STAGES HZI_QUAT_WGMMA_STAGES
/* Bytes of the sums that a group gets from the other block */
#define SENT (COLUMNS / 2 * 4 * ROWS * 4)
#define PITCH (4 * ROWS + 16)			/* numbers of a sequence: no bank conflicts */
#define CONSUMERS HZI_QUAT_PERSISTENT_THREADS

#if HAVE_WGMMA
HZ_DEVICE void add_release(uint32_t *p)
{
	asm volatile("red.release.gpu.global.add.u32 [%0], 1;" :: "l"(p) : "memory");
}

static_assert(SENT <= U_TILE && COLUMNS / 2 * PITCH * 4 <= GROUP, "sums replace the slot");

/* A group of sequences in shared memory */
struct wgmma_group {
	/* The slot of a tile of U, and the sums; states; mbarriers */
	uint32_t slot, ring, full, empty, staged, freed, unused, arrived, read;

	__device__ __forceinline__ wgmma_group(uint32_t memory, uint32_t barriers)
		: slot(memory), ring(slot + U_TILE), full(barriers), empty(full + 8 * STAGES),
		  staged(empty + 8 * STAGES), freed(staged + 8), unused(freed + 8),
		  arrived(unused + 8), read(arrived + 8)
	{
	}
};

/* What the roles of a block share */
struct wgmma_block {
	const hzi_quat_persistent &p;
	const int slice, direction, neurons, rank, tiles, held, every, first;
	const uint32_t resident;

	__device__ __forceinline__ explicit wgmma_block(const hzi_quat_persistent &p_)
		: p(p_), slice(p.slice + blockIdx.y), direction(p.direction + blockIdx.z),
		  neurons(ROWS / (p.cell.cell == HZ_QUAT_CELL_LSTM ? 4 :
				  p.cell.cell == HZ_QUAT_CELL_LIGRU ? 2 : 1)),
		  rank(blockIdx.x % 2), tiles((int)p.cell.hidden / 32),
		  held(tiles - p.units), every(held ? tiles / held : 1),
		  first(blockIdx.x / 2 % tiles), resident(shared_address(shared_start()))
	{
	}

	__device__ __forceinline__ wgmma_group group(int g) const
	{
		const uint32_t memory = resident + p.units * U_TILE;

		return wgmma_group(memory + g * GROUP, memory + 2 * GROUP + g * 192);
	}

	/* How many states of group g the blocks of a half of the columns have stored */
	__device__ __forceinline__ uint32_t *stored(int half, int g) const
	{
		const int64_t at = (int64_t)direction * p.slices + slice;

		return p.done + at * 4 * p.cell.hidden + (2 * half + g) * 32;
	}

	/* The states of group g: tiles, of which every other one is the group's */
	__device__ __forceinline__ char *states(int buffer, int g) const
	{
		const int64_t at = (int64_t)direction * p.slices + slice;

		return (char *)p.state[buffer] + (at * 4 * tiles + g) * H_TILE;
	}

	/* The j-th tile of a step; clusters begin at different ones. */
	__device__ __forceinline__ int tile_at(int j) const
	{
		const int tile = first + j;

		return rank * tiles + (tile < tiles ? tile : tile - tiles);
	}

	/*
	 * Which tile of a step the i-th in registers is. Others are between them: multiply() frees
	 * the slot one tile later.
	 */
	__device__ __forceinline__ int held_at(int i) const
	{
		return i < held ? i * every : tiles;
	}

	/* Two quaternions of row n of the j-th tile of U */
	__device__ __forceinline__ uint4 load_u(int j, int n, int pair) const
	{
		const int block = blockIdx.x / 2 * 2 + n / ROWS, r = n % ROWS;
		const int64_t row = r / neurons * p.cell.hidden + block * neurons + r % neurons;
		const uint2 *const u = (const uint2 *)((const uint16_t *)p.u +
						       direction * p.u_direction + row * p.u_row) +
				       16 * tile_at(j) + 2 * pair;

		return make_uint4(u[0].x, u[0].y, u[1].x, u[1].y);
	}

	/* Stores the same to a tile in shared memory. */
	__device__ __forceinline__ static void put_u(uint32_t tile, int n, int pair, uint4 v)
	{
		shared_store(tile + 128 * n + 16 * (pair ^ n % 8), (const uint32_t *)&v);
	}

	__device__ __forceinline__ void begin(void) const
	{
		if (threadIdx.x < 2) {
			const wgmma_group s = group(threadIdx.x);

			for (int i = 0; i < STAGES; i++) {
				mbarrier_init(s.full + 8 * i, 1);
				mbarrier_init(s.empty + 8 * i, 128);
			}
			mbarrier_init(s.staged, 128);
			mbarrier_init(s.freed, 128);
			mbarrier_init(s.unused, 2 * 4);
			mbarrier_init(s.arrived, 1);
			mbarrier_init(s.read, 128);
			mbarrier_init_fence();
		}
		for (int j = 0, i = 0; j < tiles; j++) {
			const uint32_t to = resident + (j - i) * U_TILE;

			if (j == held_at(i)) {
				i++;
				continue;
			}
			for (int k = threadIdx.x; k < U_TILE / 16; k += blockDim.x)
				put_u(to, k / 8, k % 8, load_u(j, k / 8, k % 8));
		}
		fence_proxy_async();
		__syncthreads();
		cluster_arrive();
		cluster_wait();
	}

	/* ---- The third warpgroup: tiles of U ------------------------------------------------- */

	__device__ __forceinline__ void copy_u(void) const
	{
		const int thread = threadIdx.x - CONSUMERS;
		uint4 u[HELD][U_TILE / 2048];
		uint32_t parity[2] = {1, 1};

		if (!held)
			return;
#pragma unroll
		for (int i = 0; i < HELD; i++) {
			if (i >= held)
				break;
#pragma unroll
			for (int k = 0; k < U_TILE / 2048; k++)
				u[i][k] = load_u(held_at(i), 16 * k + thread / 8, thread % 8);
		}
#pragma unroll 1
		for (int step = 0; step < p.cell.steps; step++) {
#pragma unroll
			for (int g = 0; g < 2; g++) {
				const wgmma_group s = group(g);

				/* The sums of the step before have been read. */
				mbarrier_wait(s.read, ~step & 1);
#pragma unroll
				for (int i = 0; i < HELD; i++) {
					if (i >= held)
						break;
					mbarrier_wait(s.freed, parity[g]);
					parity[g] ^= 1;
#pragma unroll
					for (int k = 0; k < U_TILE / 2048; k++)
						put_u(s.slot, 16 * k + thread / 8, thread % 8,
						      u[i][k]);
					fence_proxy_async();
					mbarrier_arrive(s.staged);
				}
			}
		}
	}

	/* ---- The fourth warpgroup: states, a thread for each group --------------------------- */

	__device__ __forceinline__ void copy_states(int g) const
	{
		const wgmma_group s = group(g);
		const uint32_t *const done = stored(rank, g);
		ring_position<STAGES> at;

#pragma unroll 1
		for (int step = 0; step < p.cell.steps; step++) {
			const char *const from = states(step % 2, g);

			mbarrier_wait(s.read, ~step & 1);
			while ((int32_t)(load_acquire(done) - gridDim.x / 2 * (step + 1)) < 0) {}
			asm volatile("fence.proxy.async.global;" ::: "memory");
#pragma unroll 1
			for (int j = 0; j < tiles; j++) {
				mbarrier_wait(s.empty + 8 * at.at, at.parity ^ 1);
				mbarrier_expect_tx(s.full + 8 * at.at, H_TILE);
				bulk_copy(s.ring + at.at * H_TILE,
					  from + (int64_t)tile_at(j) * (2 * H_TILE), H_TILE,
					  s.full + 8 * at.at);
				at.next();
			}
		}
	}
};

template <int DTYPE, int CELL>
struct wgmma_cells : block_cells<DTYPE, CELL, COLUMNS> {
	using cells = block_cells<DTYPE, CELL, COLUMNS>;
	using cells::column, cells::COLUMNS_STEP, cells::direction, cells::GATES, cells::has,
	      cells::item, cells::neuron, cells::p, cells::QUATS, cells::slice;

	const wgmma_block &b;
	const int lane, warp, g;		/* warp of its warpgroup; group */
	const wgmma_group s;
	ring_position<STAGES> at;
	uint32_t staged;			/* parity */

	__device__ __forceinline__ wgmma_cells(const hzi_quat_persistent &p_, const wgmma_block &b_)
		: cells(p_), b(b_), lane(threadIdx.x % 32),
		  warp(__shfl_sync(~0u, threadIdx.x / 32 % 4, 0)),
		  g(__shfl_sync(~0u, threadIdx.x / 128, 0)), s(b.group(g)), staged(0)
	{
	}

	/* Index of the sequence of this thread's quaternion i in its group */
	__device__ __forceinline__ int sequence(int i) const
	{
		return column % (COLUMNS_STEP / 2) + i * (COLUMNS_STEP / 2);
	}

	/*
	 * The A operand of the next tile of states. A lane has (w, x) or (y, z) of two states in
	 * each 16 real columns: those whose position in U its registers of A have. All lanes
	 * arrive: racecheck sees no order of their reads otherwise.
	 */
	__device__ __forceinline__ void load_a(uint32_t (&a)[4][4])
	{
		const int odd = lane % 2, yz = warp % 2;
		const uint32_t first = yz ? (odd ? 0 : 0x80000000) : odd ? 0x80008000 : 0x80000000;
		const uint32_t second = yz ? (odd ? 0x8000 : 0) : odd ? 0x80000000 : 0;
		const uint32_t from = s.ring + at.at * H_TILE + 512 * (warp / 2) + 16 * (lane ^ yz);

		mbarrier_wait(s.full + 8 * at.at, at.parity);
#pragma unroll
		for (int h = 0; h < 2; h++) {
			const uint4 v = shared_load(from + H_TILE / 2 * h);
			const uint32_t x[4] = {v.x, v.y, v.z, v.w};

#pragma unroll
			for (int i = 0; i < 4; i++) {
				uint32_t *const to = a[2 * h + i / 2] + 2 * (i % 2);

				to[0] = x[i] ^ first;
				to[1] = __byte_perm(x[i], 0, 0x1032) ^ second;
			}
		}
		mbarrier_arrive(s.empty + 8 * at.at);
		at.next();
		/* A is written before the fence of its products: ptxas adds fences otherwise. */
#pragma unroll
		for (int i = 0; i < 16; i++)
			asm volatile("" : "+r"(a[i / 4][i % 4]) :: "memory");
	}

	/* This warp does not read the slot, or the sums that replace it, until the next step. */
	__device__ __forceinline__ void release_slot(void) const
	{
		if (lane < 2)
			mbarrier_arrive_cluster(cluster_map(s.unused, lane));
		__syncwarp();
	}

	/* The slot has been read `times` times in this step. */
	__device__ __forceinline__ void free_slot(int times) const
	{
		mbarrier_arrive(s.freed);
		if (times == b.held)
			release_slot();
	}

	__device__ __forceinline__ void multiply(float (&acc)[32])
	{
		uint32_t a[2][4][4], u = b.resident;
		int held = 0;
		bool slot = false;

		if (!b.held)
			release_slot();

		auto tile = [&](uint32_t (&a)[4][4], int j) {
			const bool was = slot;

			load_a(a);
			slot = j == b.held_at(held);
			if (slot) {
				mbarrier_wait(s.staged, staged);
				staged ^= 1;
				held++;
			}
			const uint64_t desc = wgmma_desc_k(slot ? s.slot : u);

			wgmma_fence();
#pragma unroll
			for (int k = 0; k < 4; k++)
				wgmma_rs_add<DTYPE>(acc, a[k], desc + 2 * k, j | k);
			wgmma_commit();
			wgmma_wait<1>();
			if (was)
				free_slot(held - slot);
			if (!slot)
				u += U_TILE;
		};
#pragma unroll 1
		for (int j = 0; j < b.tiles; j += 2) {
			tile(a[0], j);
			if (j + 1 == b.tiles)
				break;
			tile(a[1], j + 1);
		}
		wgmma_wait<0>();
		if (slot)
			free_slot(held);
	}

	/*
	 * Sends sums to the other block, adds its sums, and stores those of this block's rows:
	 * [sequence][two components][row][component]
	 */
	__device__ __forceinline__ void exchange(const float (&acc)[32], int step) const
	{
		const uint32_t at = s.slot + threadIdx.x % 128 * 16;
		const uint32_t other = cluster_map(at, b.rank ^ 1);
		const uint32_t arrived = cluster_map(s.arrived, b.rank ^ 1);
		float sum[16];

		mbarrier_wait_acquire_cluster(s.unused, step & 1);
#pragma unroll
		for (int i = 0; i < 4; i++) {
			float sent[4];

#pragma unroll
			for (int k = 0; k < 4; k++) {
				const float low = acc[4 * i + k % 2 * 2 + k / 2];
				const float high = acc[16 + 4 * i + k % 2 * 2 + k / 2];

				sum[4 * i + k] = b.rank ? high : low;
				sent[k] = b.rank ? low : high;
			}
			store_async(other + 2048 * i, sent[0], sent[1], sent[2], sent[3], arrived);
		}
		mbarrier_wait_acquire_cluster(s.arrived, step & 1);
#pragma unroll
		for (int i = 0; i < 4; i++) {
			float v[4];

			shared_load(v, at + 2048 * i);
#pragma unroll
			for (int k = 0; k < 4; k++)
				sum[4 * i + k] += v[k];
		}
		bar_sync(1 + g, 128);
#pragma unroll
		for (int i = 0; i < 4; i++)
			shared_store(s.slot + (8 * (warp / 2) + lane / 4) * (4 * PITCH) +
				     warp % 2 * (8 * ROWS) + lane % 4 * 16 + 64 * i, sum + 4 * i);
		bar_sync(1 + g, 128);
	}

	/* U h of quaternion i */
	__device__ __forceinline__ void load_sums(float (&x)[GATES + 1][4], int i) const
	{
		const float *const sums = (const float *)(shared_start() +
							  (s.slot - b.resident)) +
					  sequence(i) * PITCH;

		if (p.cell.planar) {
#pragma unroll
			for (int n = 0; n < 4 * GATES; n++) {
				const int at = cells::sum_at(n / 4, n % 4);

				x[n / 4][n % 4] = sums[at % 4 / 2 * (2 * ROWS) + at / 4 * 2 +
						       at % 2];
			}
			return;
		}
#pragma unroll
		for (int n = 0; n < 2 * GATES; n++) {
			const float2 v = *(const float2 *)(sums + n % 2 * (2 * ROWS) +
							   cells::sum_at(n / 2, 0) / 2);

			x[n / 2][n % 2 * 2] = v.x;
			x[n / 2][n % 2 * 2 + 1] = v.y;
		}
	}

	/* Stores a state for the bulk copies: halves of quaternions in the order of load_a(). */
	__device__ __forceinline__ void put_state(int buffer, int i, const float (&h)[4]) const
	{
		const int n = neuron % 16;
		char *const tile = b.states(buffer, g) + neuron / 16 * (2 * H_TILE);
		uint32_t *const to = (uint32_t *)tile + n / 8 * 256 + sequence(i) * 16 +
				     n % 2 * 8 + n / 2 % 4;
		const uint2 v = cells::to_16(h);

		to[0] = v.x;
		to[4] = v.y;
	}

	/* The states of a step are stored. */
	__device__ __forceinline__ void release(void) const
	{
		bar_sync(1 + g, 128);
		if (threadIdx.x % 128 == 0)
			add_release(b.stored(2 * blockIdx.x >= gridDim.x, g));
	}

	__device__ __forceinline__ void run(void)
	{
#pragma unroll
		for (int i = 0; i < QUATS; i++) {
			float h[4];

			if (!has(i))
				break;
			cells::load_state(h, p.cell.h, i);
			put_state(0, i, h);
		}
		release();
#pragma unroll 1
		for (int step = 0; step < p.cell.steps; step++) {
			/* Offsets are made new at each step: no registers are left for them. */
			asm volatile("" : "+r"(neuron), "+l"(item));
			const int64_t time = direction ? p.cell.steps - 1 - step : step;
			float gate[QUATS][GATES + 1][4], h[QUATS][4];
			typename cells::inputs in;
			float acc[32];

			if (threadIdx.x % 128 == 0)
				mbarrier_expect_tx(s.arrived, SENT);
			__syncwarp();
			cells::load_inputs(in, time);
#pragma unroll
			for (int i = 0; i < 32; i++)
				acc[i] = 0;
			wgmma_keep(acc);
			multiply(acc);
			wgmma_keep(acc);
			exchange(acc, step);
#pragma unroll
			for (int i = 0; i < QUATS; i++)
				load_sums(gate[i], i);
			/* The slot and the states may replace the sums. */
			fence_proxy_async();
			mbarrier_arrive(s.read);
#pragma unroll
			for (int i = 0; i < QUATS; i++) {
				if (!has(i))
					break;
				cells::step_cell(gate[i], h[i], in, i,
						 [&](int k, int c) { return gate[i][k][c]; });
				/* The other buffer gets all states, also of ended sequences. */
				if (time >= in.length[i])
					cells::load_state(h[i], p.cell.h, i);
				put_state((step + 1) % 2, i, h[i]);
			}
			release();
#pragma unroll
			for (int i = 0; i < QUATS; i++) {
				if (!has(i))
					break;
				cells::store(gate[i], h[i], time < in.length[i], i, time);
			}
		}
	}
};

template <int DTYPE>
HZ_DEVICE void run_block(const hzi_quat_persistent &p)
{
	const wgmma_block b(p);
	const int warp = __shfl_sync(~0u, threadIdx.x / 32, 0);

	b.begin();
	if (warp >= CONSUMERS / 32 + 4) {
		setmaxnreg_dec<24>();
		if (warp < CONSUMERS / 32 + 6 && threadIdx.x % 32 == 0)
			b.copy_states(warp % 2);
	} else if (warp >= CONSUMERS / 32) {
		setmaxnreg_inc<184>();
		b.copy_u();
	} else {
		setmaxnreg_inc<152>();
		if (p.cell.cell == HZ_QUAT_CELL_LSTM)
			wgmma_cells<DTYPE, HZ_QUAT_CELL_LSTM>(p, b).run();
		else if (p.cell.cell == HZ_QUAT_CELL_LIGRU)
			wgmma_cells<DTYPE, HZ_QUAT_CELL_LIGRU>(p, b).run();
		else
			wgmma_cells<DTYPE, HZ_QUAT_CELL_RNN>(p, b).run();
	}
	cluster_end();
}
#endif

HZ_KERNEL(quat_layer_wgmma_32_f16, hzi_quat_persistent, (HZI_QUAT_WGMMA_THREADS, 1),
	  HZ_HOPPER_BODY(run_block<HZ_F16>(p)))
HZ_KERNEL(quat_layer_wgmma_32_bf16, hzi_quat_persistent, (HZI_QUAT_WGMMA_THREADS, 1),
	  HZ_HOPPER_BODY(run_block<HZ_BF16>(p)))
