/*
 * wgrad8.cu - gradients of quaternion convolutions' weights on Hopper
 *
 * SPDX-License-Identifier: BSD-2-Clause
 *
 * A gradient is for each tap a product of two matrices whose terms are pixels. Both are made planes
 * of f16 as they are: lines of channels, which the matrix units read across. Each of the eight
 * products is done by blocks of its own; what all of these, of all pieces of the pixels, add to a
 * result is put together at the end, always in the same order.
 *
 * A block multiplies 64 channels of small by 64 channels of big for up to nine taps, three for each
 * of three warpgroups. Lines of big go round a ring in shared memory, where all taps read them; of
 * three taps, lines equally far apart are 192 columns of one matrix.
 *
 * All pixels have one scale, by the largest of them; Inf and NaN do not count.
 */
#include "gpu/quat_conv/implicit_gemm8.cuh"
#include "gpu/quat_conv/wgrad8.h"
#include "gpu/device/reduce.cuh"
#include "gpu/device/tma.cuh"
#include "gpu/device/wgmma_f16.cuh"

#if HAVE_WGMMA

/* ---- Lines ----------------------------------------------------------------------------------- */

/* Where a line's pixel is in memory. */
HZ_DEVICE int64_t place_of_line(const hzi_quat_lines &p, const hzi_quat_lines_side &s, int grid,
				int line)
{
	int i = line - s.lead;
	int64_t at;

	if (i < 0)
		return HZI_QC_NOWHERE;

	const int col = s.step[2] * (i % p.box[2]) + s.rest[grid][2];
	i /= p.box[2];
	const int row = s.step[1] * (i % p.box[1]) + s.rest[grid][1];
	i /= p.box[1];
	const int slab = s.step[0] * (i % p.box[0]) + s.rest[grid][0];
	i /= p.box[0];
	if (i >= p.images || slab >= s.size[0] || row >= s.size[1] || col >= s.size[2])
		return HZI_QC_NOWHERE;
	at = i * s.x.stride[0] + slab * s.x.stride[1] + row * s.x.stride[2] + col * s.x.stride[3];
	return at;
}

/*
 * A warp's next piece: GROUP lines of a tile of channels, of a grid. The places of lines are found
 * by a thread each, since divisions take longer than all else.
 */
#define GROUP 4

template <int DTYPE>
struct piece {
	int channel, line, grid;	/* channel: with those that pad tiles */
	two<DTYPE> of[GROUP];

	__device__ __forceinline__ piece(const hzi_quat_lines &p, const hzi_quat_lines_side &s,
					 int i)
	{
		const int tiles = s.columns / HZI_QW_TILE, groups = s.lines / GROUP;
		const int lane = threadIdx.x % 32, tile = i % tiles;
		const int from = 2 * lane < s.each ? tile * s.each + 2 * lane : s.x.channels;

		channel = tile * HZI_QW_TILE + 2 * lane, i /= tiles;
		line = i % groups * GROUP;
		grid = i / groups;

		const int64_t at = place_of_line(p, s, grid, line + lane % GROUP);

#pragma unroll
		for (int j = 0; j < GROUP; j++)
			of[j].load(s.x, __shfl_sync(~0u, at, j), from);
	}

	static __device__ __forceinline__ int count(const hzi_quat_lines_side &s)
	{
		return s.grids * (s.lines / GROUP) * (s.columns / HZI_QW_TILE);
	}
};

/* Of all threads of a block, in thread 0 */
HZ_DEVICE float most_of_block(float most)
{
	__shared__ float most_of[HZI_QW_LINES_THREADS / 32];

	most = warp_max(most);
	if (threadIdx.x % 32 == 0)
		most_of[threadIdx.x / 32] = most;
	__syncthreads();
#pragma unroll
	for (int i = 0; i < HZI_QW_LINES_THREADS / 32; i++)
		most = fmaxf(most, most_of[i]);
	return most;
}

#define WARPS (HZI_QW_LINES_THREADS / 32)

template <int DTYPE>
HZ_DEVICE void lines_most(const hzi_quat_lines &p)
{
	const hzi_quat_lines_side &s = p.side[blockIdx.y];
	const int count = piece<DTYPE>::count(s), step = WARPS * gridDim.x;
	largest<DTYPE> all;
	float most;

	pdl_launch_dependents();
	pdl_wait();
	for (int i = blockIdx.x * WARPS + threadIdx.x / 32; i < count; i += step) {
		const piece<DTYPE> at(p, s, i);

#pragma unroll
		for (int j = 0; j < GROUP; j++)
			all.add(at.of[j]);
	}
	most = most_of_block(all.get());
	if (threadIdx.x == 0)
		p.most[blockIdx.y * HZI_QW_BLOCKS + blockIdx.x] = most;
}

/* Product i is of planes i of small and big: sums by H, then w z x y of the left, w y z x. */
template <int DTYPE, bool SPLIT>
HZ_DEVICE void lines_planes(const hzi_quat_lines &p)
{
	const hzi_quat_lines_side &s = p.side[blockIdx.y];
	const int count = piece<DTYPE>::count(s), step = WARPS * gridDim.x;
	const int64_t plane = (int64_t)s.lines * s.columns;
	float most = 0;

	pdl_launch_dependents();
	pdl_wait();
	for (int i = threadIdx.x; i < HZI_QW_BLOCKS; i += HZI_QW_LINES_THREADS)
		most = fmaxf(most, p.most[blockIdx.y * HZI_QW_BLOCKS + i]);

	const int e = scale_exponent(most_of_block(most));
	const float by = power_of_two(e), by_xyz = s.x.q.conj ? -by : by;
	const float sums_by = s.left ? 0.25f : 1, raw_by = s.left ? 2 : 1;

	if (blockIdx.x == 0 && threadIdx.x == 0)
		p.scales[blockIdx.y] = power_of_two(-e);
	for (int i = blockIdx.x * WARPS + threadIdx.x / 32; i < count; i += step) {
		const piece<DTYPE> at(p, s, i);
		uint16_t *const to = s.planes + 8 * s.parts * at.grid * plane +
				     (int64_t)at.line * s.columns + at.channel;

#pragma unroll
		for (int l = 0; l < GROUP; l++) {
			quat q[2], h[2];
			float2 f[8];

#pragma unroll
			for (int j = 0; j < 2; j++) {
				q[j] = at.of[l].get(j);
				q[j] = {by * q[j].w, by_xyz * q[j].x, by_xyz * q[j].y,
					by_xyz * q[j].z};
				h[j] = quat_scale(sums_by, q[j]);
				q[j] = quat_scale(raw_by, q[j]);
			}
#pragma unroll
			for (int j = 0; j < 4; j++)
				f[j] = {hadamard_of(h[0], j), hadamard_of(h[1], j)};

			const float2 x = {q[0].x, q[1].x}, y = {q[0].y, q[1].y};
			const float2 z = {q[0].z, q[1].z};

			f[4] = {q[0].w, q[1].w};
			f[5] = s.left ? z : y;
			f[6] = s.left ? x : z;
			f[7] = s.left ? y : x;
#pragma unroll
			for (int j = 0; j < 8; j++) {
				const uint32_t v = to_f16x2(f[j].x, f[j].y);
				uint16_t *const place = to + j * plane + (int64_t)l * s.columns;

				*(uint32_t *)place = v;
				if (SPLIT)
					*(uint32_t *)(place + 8 * plane) =
						to_f16x2(f[j].x - f16_low(v), f[j].y - f16_high(v));
			}
		}
	}
}

/* ---- Products -------------------------------------------------------------------------------- */

#define SMALL_RING HZI_QW_SMALL_RING
#define BIG_RING HZI_QW_BIG_RING
#define BLOCK_BYTES (HZI_QW_BLOCK * 128)

struct memory {
	uint8_t small[SMALL_RING][BLOCK_BYTES];
	uint8_t big[BIG_RING + 1][BLOCK_BYTES];
	uint64_t full[SMALL_RING], empty[SMALL_RING], first;
};

static_assert(sizeof(memory) + 1024 <= HZI_QW_BYTES, "what the launcher asks for");

/* What a block does. */
struct work {
	int product, pair, split, set, tile_m, tile_n, column;	/* column: of parts */
	int small_plane, big_plane;
	int line, blocks;		/* the first of small; steps */

	__device__ __forceinline__ work(const hzi_quat_weights &p)
	{
		int i = blockIdx.x;

		tile_n = i % p.tiles_n, i /= p.tiles_n;
		tile_m = i % p.tiles_m, i /= p.tiles_m;
		column = HZI_QW_TILE * tile_n;
		if (p.diagonal)
			tile_n = tile_m;
		set = i % p.sets, i /= p.sets;
		product = i % 8, i /= 8;
		pair = i % p.pairs, split = i / p.pairs;
		/* In parts: the first by the first, by the rest, and the rest by the first */
		small_plane = product + (pair == 2 ? 8 : 0);
		big_plane = product + (pair == 1 ? 8 : 0);
		line = split * p.each;
		blocks = (min(p.each, p.lines - line) + HZI_QW_BLOCK - 1) / HZI_QW_BLOCK;
	}
};

/* Block number i of big, also behind the ring's end where it is at its beginning */
HZ_DEVICE void load_big(const hzi_quat_weights &p, memory &s, const work &w, int i, uint32_t full)
{
	const int line = p.set[w.set].line + w.big_plane * p.big_lines + w.line + i * HZI_QW_BLOCK;
	const int at = i % BIG_RING;

	tma_load_2d(shared_address(s.big[at]), p.big, 128 * w.tile_n, line, full);
	if (at == 0)
		tma_load_2d(shared_address(s.big[BIG_RING]), p.big, 128 * w.tile_n, line, full);
}

HZ_DEVICE int copies_of(int block)
{
	return block % BIG_RING ? 1 : 2;
}

HZ_DEVICE void load(const hzi_quat_weights &p, memory &s, const work &w)
{
	const int ahead = p.set[w.set].ahead;
	const uint32_t first = shared_address(&s.first);
	ring_position<SMALL_RING> ring;

	mbarrier_expect_tx(first, ahead ? (ahead + 1) * BLOCK_BYTES : 0);
	for (int i = 0; i < ahead; i++)
		load_big(p, s, w, i, first);
	for (int k = 0; k < w.blocks; k++) {
		const uint32_t full = shared_address(&s.full[ring.at]);

		mbarrier_wait(shared_address(&s.empty[ring.at]), ring.parity ^ 1);
		mbarrier_expect_tx(full, (1 + copies_of(k + ahead)) * BLOCK_BYTES);
		tma_load_2d(shared_address(s.small[ring.at]), p.small, 128 * w.tile_m,
			    w.small_plane * p.small_lines + w.line + k * HZI_QW_BLOCK, full);
		load_big(p, s, w, k + ahead, full);
		ring.next();
	}
}

/* 64 columns by k in lines of columns, of which the next 64 begin lines further on. */
HZ_DEVICE uint64_t lines_place(uint32_t address, int lines)
{
	return wgmma_desc_mn(address, 128 * lines);
}

/*
 * A warpgroup that multiplies: a run of up to RUN taps. The matrix units cut sums off at 24 bits:
 * SPLIT has them begin anew with every block of lines.
 */
template <int RUN, bool SPLIT>
HZ_DEVICE void multiply(const hzi_quat_weights &p, memory &s, const work &w, int group)
{
	const hzi_quat_weights_set &set = p.set[w.set];
	const hzi_quat_weights_run &run = set.run[group];
	const int lane = threadIdx.x % 32, spacing = run.spacing;
	constexpr int SUMS = RUN * HZI_QW_TILE / 2;
	ring_position<SMALL_RING> ring;
	float acc[SUMS], sums[SPLIT ? SUMS : 1];
	int line = run.line;

	if (group >= set.runs) {
		/* Only that blocks become free */
		for (int k = 0; k < w.blocks; k++) {
			mbarrier_wait(shared_address(&s.full[ring.at]), ring.parity);
			if (lane == 0)
				mbarrier_arrive(shared_address(&s.empty[ring.at]));
			ring.next();
		}
		return;
	}
#pragma unroll
	for (int i = 0; i < SUMS; i++)
		acc[i] = 0;
	mbarrier_wait(shared_address(&s.first), 0);
	for (int k = 0; k < w.blocks; k++) {
		const uint32_t small = shared_address(s.small[ring.at]);
		const uint32_t big = shared_address(s.big[0]);

		mbarrier_wait(shared_address(&s.full[ring.at]), ring.parity);
		wgmma_keep(acc);
		wgmma_keep(sums);
		wgmma_fence();
#pragma unroll
		for (int c = 0; c < HZI_QW_BLOCK / 16; c++) {
			const int at = (line + 16 * c) % (BIG_RING * HZI_QW_BLOCK);

			const uint64_t a = lines_place(small + c * 2048, 0);
			const uint64_t b = lines_place(big + at * 128, spacing);

			if constexpr (SPLIT)
				wgmma<true, true>(sums, a, b, c);
			else
				wgmma<true, true>(acc, a, b, 1);
		}
		wgmma_commit();
		wgmma_keep(acc);
		wgmma_keep(sums);
		wgmma_wait<0>();
		wgmma_keep(acc);
		wgmma_keep(sums);
		if (lane == 0)
			mbarrier_arrive(shared_address(&s.empty[ring.at]));
		line += HZI_QW_BLOCK;
		ring.next();
#pragma unroll
		for (int i = 0; SPLIT && i < SUMS; i++)
			acc[i] += sums[SPLIT ? i : 0];
	}

	const float by = p.scales[0] * p.scales[1];
	const int row = HZI_QW_TILE * w.tile_m + threadIdx.x % 128 / 32 * 16 + lane / 4;
	const int number = (w.split * p.pairs + w.pair) * 8 + w.product;
	float *const part = p.parts + ((int64_t)number * p.rows + row) * p.taps * p.columns +
			    w.column + 2 * (lane & 3);

#pragma unroll
	for (int t = 0; t < RUN; t++) {
		if (t >= run.taps)
			break;
#pragma unroll
		for (int j = 0; j < HZI_QW_TILE / 8; j++) {
			const int i = 4 * (HZI_QW_TILE / 8 * t + j);
			float *const to = part + run.number[t] * p.columns + 8 * j;

			*(float2 *)to = make_float2(by * acc[i], by * acc[i + 1]);
			*(float2 *)(to + (int64_t)8 * p.taps * p.columns) =
				make_float2(by * acc[i + 2], by * acc[i + 3]);
		}
	}
}

template <int RUN, bool SPLIT>
HZ_DEVICE void product(const hzi_quat_weights &p)
{
	memory &s = *(memory *)shared_start();
	const int group = __shfl_sync(~0u, threadIdx.x / 128, 0);
	const work w(p);

	if (threadIdx.x == 0) {
		for (int i = 0; i < SMALL_RING; i++) {
			mbarrier_init(shared_address(&s.full[i]), 1);
			mbarrier_init(shared_address(&s.empty[i]), 4 * HZI_QW_RUNS);
		}
		mbarrier_init(shared_address(&s.first), 1);
		mbarrier_init_fence();
	}
	pdl_launch_dependents();
	__syncthreads();
	pdl_wait();
	if (group < HZI_QW_RUNS)
		multiply<RUN, SPLIT>(p, s, w, group);
	else if (threadIdx.x % 32 == 0)
		load(p, s, w);
}

/* A result is the conjugate of what eight products add up to: gpu/quat_gemm/wgmma.cu. */
HZ_DEVICE void finish(const hzi_quat_weights_finish &p)
{
	__shared__ float sums[8][HZI_QW_FINISH];
	const int64_t i = (int64_t)blockIdx.x * HZI_QW_FINISH + threadIdx.x;
	const int channel = (int)(i % p.channels), tap = (int)(i / p.channels % p.taps);
	const int64_t row = i / p.channels / p.taps;
	const int group = (int)row / p.outs, of_tile = group % p.together;
	const int64_t at = group / p.together * HZI_QW_TILE + of_tile * p.outs +
			   (int)row % p.outs;
	const int64_t step = (int64_t)p.rows * p.taps * p.columns;
	const float *from = p.parts + threadIdx.y * step + (at * p.taps + tap) * p.columns +
			    of_tile * p.channels + channel;
	float sum = 0;

	pdl_launch_dependents();
	pdl_wait();
	if (row < p.m) {
#pragma unroll 8
		for (int part = 0; part < p.parts_count; part++)
			sum += from[8 * part * step];
	}
	sums[threadIdx.y][threadIdx.x] = sum;
	__syncthreads();
	if (threadIdx.y || row >= p.m)
		return;

	float v[8];
#pragma unroll
	for (int j = 0; j < 8; j++)
		v[j] = sums[j][threadIdx.x];

	const quat h = {v[0], v[1], v[2], v[3]};
	const float sign = p.conj ? -1 : 1;

	((float4 *)p.sum)[i] = make_float4(
		v[4] - hadamard_of(h, 0), sign * (hadamard_of(h, 1) - v[5]),
		sign * (hadamard_of(h, 2) - v[6]), sign * (hadamard_of(h, 3) - v[7]));
}

#endif

/* blocks: of a multiprocessor, that registers are to do for */
#define LINES(name, dtype, split, blocks) \
	extern "C" __global__ __launch_bounds__(HZI_QW_LINES_THREADS, blocks) void \
	quat_lines_most_##name(const __grid_constant__ hzi_quat_lines p) \
	HZ_HOPPER_BODY(lines_most<dtype>(p)) \
	extern "C" __global__ __launch_bounds__(HZI_QW_LINES_THREADS, blocks) void \
	quat_lines_planes_##name(const __grid_constant__ hzi_quat_lines p) \
	HZ_HOPPER_BODY((lines_planes<dtype, split>(p)))
LINES(f16, HZ_F16, false, 6)
LINES(bf16, HZ_BF16, false, 6)
LINES(any, HZI_QC_OTHERS, false, 6)
LINES(split_f32, HZ_F32, true, 4)
LINES(split_any, HZI_QC_OTHERS, true, 4)

extern "C" __global__ __launch_bounds__(HZI_QW_THREADS, 1) void
quat_conv_weights(const __grid_constant__ hzi_quat_weights p)
HZ_HOPPER_BODY((product<HZI_QW_RUN, false>(p)))

extern "C" __global__ __launch_bounds__(HZI_QW_THREADS, 1) void
quat_conv_weights_split(const __grid_constant__ hzi_quat_weights p)
HZ_HOPPER_BODY((product<HZI_QW_RUN_SPLIT, true>(p)))

extern "C" __global__ __launch_bounds__(8 * HZI_QW_FINISH) void
quat_conv_weights_finish(const __grid_constant__ hzi_quat_weights_finish p)
HZ_HOPPER_BODY(finish(p))
