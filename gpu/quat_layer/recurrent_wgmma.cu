/*
 * recurrent_wgmma.cu - all steps of a recurrent layer of 16 bits, 17 to 32 sequences, by wgmma
 *
 * SPDX-License-Identifier: BSD-2-Clause
 *
 * The two blocks of a cluster have the 64 rows of U of both (recurrent_cells.cuh), and each of them
 * a half of the columns. A block's U is the B operand of wgmma, 64 columns, in tiles of 16
 * quaternions: p.units tiles stay in shared memory, the others in registers of a third warpgroup,
 * which copies them at each step to slots that the sums replace. It also copies the states, by bulk
 * copies when all blocks that make them have stored them.
 *
 * The A operand is the states of 32 sequences, as 4 x 4 real numbers each, of which the first two
 * warpgroups make two rows: with (e, f, g, h) of a state,
 *
 *   w  e -f -g -h     x  f e h -g     y  g -h e f     z  h g -f e
 *
 * Each block sends the sums of the other one's rows to it.
 */
#include "gpu/device/shared.cuh"
#include "gpu/device/tma.cuh"
#include "gpu/device/wgmma_f16.cuh"
#include "gpu/quat_layer/recurrent_cells.cuh"

#define COLUMNS HZI_QUAT_WGMMA_COLUMNS
#define U_TILE HZI_QUAT_WGMMA_U_TILE
#define H_TILE HZI_QUAT_WGMMA_H_TILE
#define STAGES HZI_QUAT_WGMMA_STAGES
#define HELD HZI_QUAT_WGMMA_HELD
#define SLOTS 4				/* of tiles of U from registers */
#define CONSUMERS HZI_QUAT_PERSISTENT_THREADS
#define PITCH HZI_QUAT_WGMMA_PITCH
/* Bytes of the sums that a block gets from the other one */
#define SENT (COLUMNS * 4 * ROWS * 4)

#if HAVE_WGMMA
HZ_DEVICE void add_release(uint32_t *p)
{
	asm volatile("red.release.gpu.global.add.u32 [%0], 1;" :: "l"(p) : "memory");
}

static_assert(SLOTS * U_TILE <= HZI_QUAT_WGMMA_SUMS, "slots replace the sums");
static_assert(STAGES > SLOTS, "a stage's tile of U has been read before its slot is filled again");

/* What the roles of a block share */
struct wgmma_block {
	const hzi_quat_persistent &p;
	const int slice, direction, neurons, rank, tiles, held, first;
	const uint32_t resident, sums, ring, full, empty, staged, unused, arrived, read;

	__device__ __forceinline__ explicit wgmma_block(const hzi_quat_persistent &p_)
		: p(p_), slice(p.slice + blockIdx.y), direction(p.direction + blockIdx.z),
		  neurons(ROWS / (p.cell.cell == HZ_QUAT_CELL_LSTM ? 4 :
				  p.cell.cell == HZ_QUAT_CELL_LIGRU ? 2 : 1)),
		  rank(blockIdx.x % 2), tiles((int)p.cell.hidden / 32), held(tiles - p.units),
		  first(blockIdx.x / 2 % tiles), resident(shared_address(shared_start())),
		  sums(resident + p.units * U_TILE), ring(sums + HZI_QUAT_WGMMA_SUMS),
		  full(ring + STAGES * H_TILE), empty(full + 8 * STAGES),
		  staged(empty + 8 * STAGES), unused(staged + 8 * SLOTS), arrived(unused + 8),
		  read(arrived + 8)
	{
	}

	/* How many states the blocks of a half of the columns have stored, over all steps */
	__device__ __forceinline__ uint32_t *stored(int half) const
	{
		return p.done + ((int64_t)direction * p.slices + slice) * gridDim.x +
		       half * (gridDim.x / 2);
	}

	/* The j-th tile of a step, in quaternions; clusters begin at different ones. */
	__device__ __forceinline__ int tile_at(int j) const
	{
		const int tile = first + j;

		return rank * ((int)p.cell.hidden / 2) + 16 * (tile < tiles ? tile : tile - tiles);
	}

	/* Two quaternions of row n of the j-th tile of U */
	__device__ __forceinline__ uint4 load_u(int j, int n, int pair) const
	{
		const int block = blockIdx.x / 2 * 2 + n / ROWS, r = n % ROWS;
		const int64_t row = r / neurons * p.cell.hidden + block * neurons + r % neurons;
		const uint2 *const u = (const uint2 *)((const uint16_t *)p.u +
						       direction * p.u_direction + row * p.u_row) +
				       tile_at(j) + 2 * pair;

		return make_uint4(u[0].x, u[0].y, u[1].x, u[1].y);
	}

	/* Stores the same to a tile in shared memory. */
	__device__ __forceinline__ static void put_u(uint32_t tile, int n, int pair, uint4 v)
	{
		shared_store(tile + 128 * n + 16 * (pair ^ n % 8), (const uint32_t *)&v);
	}

	__device__ __forceinline__ void begin(void) const
	{
		if (threadIdx.x == 0) {
			for (int i = 0; i < STAGES; i++) {
				mbarrier_init(full + 8 * i, 1);
				mbarrier_init(empty + 8 * i, CONSUMERS);
			}
			for (int i = 0; i < SLOTS; i++)
				mbarrier_init(staged + 8 * i, 128);
			mbarrier_init(unused, 2 * CONSUMERS / 32);
			mbarrier_init(arrived, 1);
			mbarrier_init(read, CONSUMERS);
			mbarrier_init_fence();
		}
		for (int i = threadIdx.x; i < p.units * (U_TILE / 16); i += blockDim.x) {
			const int tile = i / (U_TILE / 16), n = i / 8 % 64;

			put_u(resident + tile * U_TILE, n, i % 8, load_u(held + tile, n, i % 8));
		}
		fence_proxy_async();
		__syncthreads();
		cluster_arrive();
		cluster_wait();
	}

	/* ---- The third warpgroup ------------------------------------------------------------- */

	__device__ __forceinline__ void copy(void) const
	{
		const int thread = threadIdx.x - CONSUMERS;
		const uint32_t *const done = stored(rank);
		ring_position<STAGES> at;
		ring_position<SLOTS> slot;
		uint4 u[HELD][4];

#pragma unroll
		for (int i = 0; i < HELD; i++) {
			if (i >= held)
				break;
#pragma unroll
			for (int k = 0; k < 4; k++)
				u[i][k] = load_u(i, 16 * k + thread / 8, thread % 8);
		}

		auto stage = [&](const uint4 (&v)[4]) {
#pragma unroll
			for (int k = 0; k < 4; k++)
				put_u(sums + slot.at * U_TILE, 16 * k + thread / 8, thread % 8,
				      v[k]);
			fence_proxy_async();
			mbarrier_arrive(staged + 8 * slot.at);
			slot.next();
		};

		if (thread >= 32 && !held)
			return;
		for (int step = 0; step < p.cell.steps; step++) {
			const char *const states = (const char *)p.state[step % 2] +
				((int64_t)direction * p.slices + slice) *
				(p.cell.hidden / 16) * H_TILE;
			const uint32_t all = gridDim.x / 2 * (uint32_t)(step + 1);

			/*
			 * Copies the states of tile j when the tile STAGES ahead was read. Threads that
			 * store no tile of U do not wait, since nobody waits for them: the mbarrier
			 * could be two phases further on.
			 */
			auto feed = [&](int j, bool stages) {
				if (stages || thread == 0)
					mbarrier_wait(empty + 8 * at.at, at.parity ^ 1);
				if (thread == 0) {
					mbarrier_expect_tx(full + 8 * at.at, H_TILE);
					bulk_copy(ring + at.at * H_TILE,
						  states + tile_at(j) / 16 * H_TILE, H_TILE,
						  full + 8 * at.at);
				}
				__syncwarp();
				at.next();
			};

#pragma unroll
			for (int i = 0; i < SLOTS; i++)
				if (i < held)
					stage(u[i]);
			if (thread == 0) {
				while ((int32_t)(load_acquire(done) - all) < 0) {}
				asm volatile("fence.proxy.async.global;" ::: "memory");
			}
			__syncwarp();
#pragma unroll
			for (int j = 0; j <= HELD; j++) {
				if (j >= tiles)
					break;
				const bool stages = j > SLOTS && j - 1 < held;

				feed(j, stages);
				if (stages)
					stage(u[j > 0 ? j - 1 : 0]);
			}
#pragma unroll 1
			for (int j = HELD + 1; j < tiles; j++)
				feed(j, false);
			/* The sums have been read. */
			mbarrier_wait(read, step & 1);
		}
	}
};

template <int DTYPE, int CELL>
struct wgmma_cells : block_cells<DTYPE, CELL, COLUMNS> {
	using cells = block_cells<DTYPE, CELL, COLUMNS>;
	using cells::column, cells::COLUMNS_STEP, cells::direction, cells::GATES, cells::has,
	      cells::item, cells::neuron, cells::p, cells::QUATS, cells::slice;

	const wgmma_block &b;
	const int lane, warp, group;		/* warp of its warpgroup */
	ring_position<STAGES> at;
	ring_position<SLOTS> slot;

	__device__ __forceinline__ wgmma_cells(const hzi_quat_persistent &p_, const wgmma_block &b_)
		: cells(p_), b(b_), lane(threadIdx.x % 32),
		  warp(__shfl_sync(~0u, threadIdx.x / 32 % 4, 0)),
		  group(__shfl_sync(~0u, threadIdx.x / 128, 0))
	{
	}

	/* All lanes arrive: racecheck sees no order of their reads otherwise. */
	__device__ __forceinline__ void release(int stage) const
	{
		mbarrier_arrive(b.empty + 8 * stage);
	}

	/* This warp does not read the slots, or the sums that they replace, until the next step. */
	__device__ __forceinline__ void release_slots(void) const
	{
		if (lane < 2)
			mbarrier_arrive_cluster(cluster_map(b.unused, lane));
		__syncwarp();
	}

	/*
	 * Products of tile j. A lane has (w, x) or (y, z) of two states in each 16 real columns:
	 * those whose position in U its registers of A have.
	 */
	__device__ __forceinline__ void tile(float (&acc)[32], uint32_t (&a)[4][4], int j)
	{
		const int odd = lane % 2;
		const uint32_t first = group ? (odd ? 0 : 0x80000000) : odd ? 0x80008000 :
									      0x80000000;
		const uint32_t second = group ? (odd ? 0x8000 : 0) : odd ? 0x80000000 : 0;
		const uint32_t from = b.ring + at.at * H_TILE + 512 * warp + 16 * (lane ^ group);
		uint32_t u = b.resident + (j - b.held) * U_TILE;

		mbarrier_wait(b.full + 8 * at.at, at.parity);
#pragma unroll
		for (int h = 0; h < 2; h++) {
			const uint4 v = shared_load(from + 2048 * h);
			const uint32_t x[4] = {v.x, v.y, v.z, v.w};

#pragma unroll
			for (int i = 0; i < 4; i++) {
				uint32_t *const to = a[2 * h + i / 2] + 2 * (i % 2);

				to[0] = x[i] ^ first;
				to[1] = __byte_perm(x[i], 0, 0x1032) ^ second;
			}
		}
		if (j < b.held) {
			mbarrier_wait(b.staged + 8 * slot.at, slot.parity);
			u = b.sums + slot.at * U_TILE;
			slot.next();
		}
		const uint64_t desc = wgmma_desc_k(u);

		wgmma_fence();
#pragma unroll
		for (int s = 0; s < 4; s++)
			wgmma_rs_add<DTYPE>(acc, a[s], desc + 2 * s, j | s);
		wgmma_commit();
		wgmma_wait<1>();
		if (j > 0)
			release(at.at ? at.at - 1 : STAGES - 1);
		if (j == b.held)
			release_slots();
		at.next();
	}

	__device__ __forceinline__ void multiply(float (&acc)[32])
	{
		uint32_t a[2][4][4];
		int j = 0;

#pragma unroll 1
		for (; j + 1 < b.tiles; j += 2) {
			tile(acc, a[0], j);
			tile(acc, a[1], j + 1);
		}
		if (j < b.tiles)
			tile(acc, a[0], j);
		wgmma_wait<0>();
		release(at.at ? at.at - 1 : STAGES - 1);
	}

	/* The sums of this block's columns: [sequence][two components][row][component] */
	__device__ __forceinline__ uint32_t sums_of(int rank, int sequence) const
	{
		return b.sums + (rank * COLUMNS + sequence) * (4 * PITCH);
	}

	/* Shares the sums with the other block. */
	__device__ __forceinline__ void exchange(const float (&acc)[32], int step) const
	{
		const uint32_t to = sums_of(b.rank, 8 * warp + lane / 4) + group * (8 * ROWS) +
				    lane % 4 * 16;
		const uint32_t other = cluster_map(to, b.rank ^ 1);
		const uint32_t arrived = cluster_map(b.arrived, b.rank ^ 1);

		mbarrier_wait_acquire_cluster(b.unused, step & 1);
#pragma unroll
		for (int i = 0; i < 4; i++) {
			float mine[4], sent[4];

#pragma unroll
			for (int k = 0; k < 4; k++) {
				const float low = acc[4 * i + k], high = acc[16 + 4 * i + k];

				mine[k % 2 * 2 + k / 2] = b.rank ? high : low;
				sent[k % 2 * 2 + k / 2] = b.rank ? low : high;
			}
			store_async(other + 64 * i, sent[0], sent[1], sent[2], sent[3], arrived);
			shared_store(to + 64 * i, mine);
		}
		bar_sync(1, CONSUMERS);
		mbarrier_wait_acquire_cluster(b.arrived, step & 1);
	}

	/* U h of quaternion i */
	__device__ __forceinline__ void load_sums(float (&x)[GATES + 1][4], int i) const
	{
		const float *const sums = (const float *)(shared_start() + p.units * U_TILE) +
					  (column + i * COLUMNS_STEP) * PITCH;

		auto add = [&](int k, int c) {
			const int n = cells::sum_at(k, c);
			const float *const from = sums + n % 4 / 2 * (2 * ROWS) + n / 4 * 2 + n % 2;

			return from[0] + from[COLUMNS * PITCH];
		};
		if (p.cell.planar) {
#pragma unroll
			for (int n = 0; n < 4 * GATES; n++)
				x[n / 4][n % 4] = add(n / 4, n % 4);
			return;
		}
#pragma unroll
		for (int n = 0; n < 2 * GATES; n++) {
			const float *const from = sums + n % 2 * (2 * ROWS) +
						  cells::sum_at(n / 2, 0) / 2;
			const float2 v = *(const float2 *)from;
			const float2 w = *(const float2 *)(from + COLUMNS * PITCH);

			x[n / 2][n % 2 * 2] = v.x + w.x;
			x[n / 2][n % 2 * 2 + 1] = v.y + w.y;
		}
	}

	/* Stores a state for the bulk copies: halves of quaternions in the order of tile(). */
	__device__ __forceinline__ void put_state(void *states, int i, const float (&h)[4]) const
	{
		const int n = neuron % 16, sequence = column + i * COLUMNS_STEP;
		const int64_t tile = ((int64_t)direction * p.slices + slice) *
				     (p.cell.hidden / 16) + neuron / 16;
		uint32_t *const to = (uint32_t *)((char *)states + tile * H_TILE) +
				     n / 8 * 512 + sequence * 16 + n % 2 * 8 + n / 2 % 4;
		const uint2 v = cells::to_16(h);

		to[0] = v.x;
		to[4] = v.y;
	}

	__device__ __forceinline__ void run(void)
	{
		uint32_t *const done = b.stored(2 * blockIdx.x >= gridDim.x);

#pragma unroll
		for (int i = 0; i < QUATS; i++) {
			float h[4];

			if (!has(i))
				break;
			cells::load_state(h, p.cell.h, i);
			put_state(p.state[0], i, h);
		}
		bar_sync(1, CONSUMERS);
		if (threadIdx.x == 0)
			add_release(done);
#pragma unroll 1
		for (int step = 0; step < p.cell.steps; step++) {
			/* Offsets are computed at each step: there are no registers to keep them. */
			asm volatile("" : "+r"(neuron), "+l"(item));
			const int64_t time = direction ? p.cell.steps - 1 - step : step;
			float gate[QUATS][GATES + 1][4], h[QUATS][4];
			typename cells::inputs in;
			float acc[32];

			if (threadIdx.x == 0)
				mbarrier_expect_tx(b.arrived, SENT);
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
			for (int i = 0; i < QUATS; i++) {
				if (!has(i))
					break;
				load_sums(gate[i], i);
				cells::step_cell(gate[i], h[i], in, i,
						 [&](int k, int c) { return gate[i][k][c]; });
				/* The other buffer gets all states, also of ended sequences. */
				if (time >= in.length[i])
					cells::load_state(h[i], p.cell.h, i);
				put_state(p.state[(step + 1) % 2], i, h[i]);
			}
			mbarrier_arrive(b.read);
			bar_sync(1, CONSUMERS);
			if (threadIdx.x == 0)
				add_release(done);
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

	b.begin();
	if (threadIdx.x >= CONSUMERS) {
		setmaxnreg_inc<200>();
		b.copy();
	} else {
		setmaxnreg_dec<152>();
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
