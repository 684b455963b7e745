/*
 * wgrad8.cu - gradients of weights of quaternion convolutions by wgmma, 8 real products each
 *
 * SPDX-License-Identifier: BSD-2-Clause
 *
 * For each tap the gradient is a product of two matrices, small and big, with pixels as k. Both are
 * packed as f16 planes [pixel][channel], of which wgmma reads the transpose. Each of the eight
 * products is computed by blocks of its own; the reduce kernel adds up products and splits of the
 * pixels in a fixed order.
 *
 * A block multiplies 64 channels of small by 64 channels of big for up to nine taps, three for each
 * of three warpgroups. Pixels of big go through a ring in shared memory, where all taps read them:
 * three equally spaced taps are 192 columns of one matrix.
 *
 * All pixels have one scale, by their largest finite magnitude.
 */
#include "gpu/quat_conv/implicit_gemm8.cuh"
#include "gpu/quat_conv/wgrad8.h"
#include "gpu/device/reduce.cuh"
#include "gpu/device/tma.cuh"
#include "gpu/device/wgmma_f16.cuh"

#if HAVE_WGMMA

/* ---- Packing --------------------------------------------------------------------------------- */

/* Offset in x of a pixel of a phase's plane; OUTSIDE where it is padding */
HZ_DEVICE int64_t pixel_offset(const hzi_quat_wgrad8_pack &p, const hzi_quat_wgrad8_operand &s,
			       int phase, int pixel)
{
	int i = pixel - s.lead;
	int64_t at;

	if (i < 0)
		return HZI_CONV_OUTSIDE;

	const int col = s.step[2] * (i % p.box[2]) + s.phase_offset[phase][2];
	i /= p.box[2];
	const int row = s.step[1] * (i % p.box[1]) + s.phase_offset[phase][1];
	i /= p.box[1];
	const int slab = s.step[0] * (i % p.box[0]) + s.phase_offset[phase][0];
	i /= p.box[0];
	if (i >= p.images || slab >= s.size[0] || row >= s.size[1] || col >= s.size[2])
		return HZI_CONV_OUTSIDE;
	at = i * s.x.stride[0] + slab * s.x.stride[1] + row * s.x.stride[2] + col * s.x.stride[3];
	return at;
}

/*
 * GROUP pixels of a tile of channels of a phase, by a warp. Each thread computes the offset of one
 * pixel, since the divisions take longer than all else.
 */
#define GROUP 4

template <int DTYPE>
struct piece {
	int channel, pixel, phase;	/* channel: counted with the padding of tiles */
	channel_pair<DTYPE> of[GROUP];

	__device__ __forceinline__ piece(const hzi_quat_wgrad8_pack &p,
					 const hzi_quat_wgrad8_operand &s, int i)
	{
		const int tiles = s.columns / HZI_WGRAD8_TILE, groups = s.pixels / GROUP;
		const int lane = threadIdx.x % 32, tile = i % tiles;
		const int src = 2 * lane < s.each ? tile * s.each + 2 * lane : s.x.channels;

		channel = tile * HZI_WGRAD8_TILE + 2 * lane, i /= tiles;
		pixel = i % groups * GROUP;
		phase = i / groups;

		const int64_t at = pixel_offset(p, s, phase, pixel + lane % GROUP);

#pragma unroll
		for (int j = 0; j < GROUP; j++)
			of[j].load(s.x, __shfl_sync(~0u, at, j), src);
	}

	static __device__ __forceinline__ int count(const hzi_quat_wgrad8_operand &s)
	{
		return s.phases * (s.pixels / GROUP) * (s.columns / HZI_WGRAD8_TILE);
	}
};

/* The largest of all threads of a block */
HZ_DEVICE float absmax_of_block(float most)
{
	__shared__ float most_of[HZI_WGRAD8_PACK_THREADS / 32];

	most = warp_max(most);
	if (threadIdx.x % 32 == 0)
		most_of[threadIdx.x / 32] = most;
	__syncthreads();
#pragma unroll
	for (int i = 0; i < HZI_WGRAD8_PACK_THREADS / 32; i++)
		most = fmaxf(most, most_of[i]);
	return most;
}

#define WARPS (HZI_WGRAD8_PACK_THREADS / 32)

template <int DTYPE>
HZ_DEVICE void absmax_pixels(const hzi_quat_wgrad8_pack &p)
{
	const hzi_quat_wgrad8_operand &s = p.side[blockIdx.y];
	const int count = piece<DTYPE>::count(s), step = WARPS * gridDim.x;
	absmax<DTYPE> all;
	float most;

	pdl_launch_dependents();
	pdl_wait();
	for (int i = blockIdx.x * WARPS + threadIdx.x / 32; i < count; i += step) {
		const piece<DTYPE> at(p, s, i);

#pragma unroll
		for (int j = 0; j < GROUP; j++)
			all.add(at.of[j]);
	}
	most = absmax_of_block(all.get());
	if (threadIdx.x == 0)
		p.most[blockIdx.y * HZI_WGRAD8_PACK_BLOCKS + blockIdx.x] = most;
}

/*
 * Product i multiplies plane i of small by plane i of big: four planes of H q, then w, z, x, y of
 * the left factor and w, y, z, x of the right one.
 */
template <int DTYPE, bool SPLIT>
HZ_DEVICE void pack_planar(const hzi_quat_wgrad8_pack &p)
{
	const hzi_quat_wgrad8_operand &s = p.side[blockIdx.y];
	const int count = piece<DTYPE>::count(s), step = WARPS * gridDim.x;
	const int64_t plane = (int64_t)s.pixels * s.columns;
	float most = 0;

	pdl_launch_dependents();
	pdl_wait();
	for (int i = threadIdx.x; i < HZI_WGRAD8_PACK_BLOCKS; i += HZI_WGRAD8_PACK_THREADS)
		most = fmaxf(most, p.most[blockIdx.y * HZI_WGRAD8_PACK_BLOCKS + i]);

	const int e = scale_exponent(absmax_of_block(most));
	const float by = power_of_two(e), by_xyz = s.x.q.conj ? -by : by;
	const float sums_by = s.left ? 0.25f : 1, raw_by = s.left ? 2 : 1;

	if (blockIdx.x == 0 && threadIdx.x == 0)
		p.scales[blockIdx.y] = power_of_two(-e);
	for (int i = blockIdx.x * WARPS + threadIdx.x / 32; i < count; i += step) {
		const piece<DTYPE> at(p, s, i);
		uint16_t *const dst = s.planes + 8 * s.parts * at.phase * plane +
				      (int64_t)at.pixel * s.columns + at.channel;

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
				uint16_t *const slot = dst + j * plane + (int64_t)l * s.columns;

				*(uint32_t *)slot = v;
				if (SPLIT)
					*(uint32_t *)(slot + 8 * plane) =
						to_f16x2(f[j].x - f16_low(v), f[j].y - f16_high(v));
			}
		}
	}
}

/* ---- Products -------------------------------------------------------------------------------- */

#define SMALL_STAGES HZI_WGRAD8_SMALL_STAGES
#define BIG_STAGES HZI_WGRAD8_BIG_STAGES
#define BLOCK_BYTES (HZI_WGRAD8_TILE_K * 128)

struct memory {
	uint8_t small[SMALL_STAGES][BLOCK_BYTES];
	uint8_t big[BIG_STAGES + 1][BLOCK_BYTES];
	uint64_t full[SMALL_STAGES], empty[SMALL_STAGES], first;
};

static_assert(sizeof(memory) + 1024 <= HZI_WGRAD8_SHARED_BYTES, "what the launcher asks for");

/* The work of a block */
struct work {
	int product, pair, split, set, tile_m, tile_n, column;	/* column: of p.parts */
	int small_plane, big_plane;
	int pixel, blocks;		/* first pixel of small; steps of TILE_K pixels */

	__device__ __forceinline__ work(const hzi_quat_wgrad8 &p)
	{
		int i = blockIdx.x;

		tile_n = i % p.tiles_n, i /= p.tiles_n;
		tile_m = i % p.tiles_m, i /= p.tiles_m;
		column = HZI_WGRAD8_TILE * tile_n;
		if (p.diagonal)
			tile_n = tile_m;
		set = i % p.sets, i /= p.sets;
		product = i % 8, i /= 8;
		pair = i % p.pairs, split = i / p.pairs;
		/* Split precision: high high, high low, low high */
		small_plane = product + (pair == 2 ? 8 : 0);
		big_plane = product + (pair == 1 ? 8 : 0);
		pixel = split * p.each;
		blocks = (min(p.each, p.pixels - pixel) + HZI_WGRAD8_TILE_K -
			  1) / HZI_WGRAD8_TILE_K;
	}
};

/* Loads block i of big; where it is the ring's first, also behind the ring's end. */
HZ_DEVICE void load_big(const hzi_quat_wgrad8 &p, memory &s, const work &w, int i, uint32_t full)
{
	const int pixel = p.set[w.set].pixel + w.big_plane * p.big_pixels + w.pixel +
			  i * HZI_WGRAD8_TILE_K;
	const int at = i % BIG_STAGES;

	tma_load_2d(shared_address(s.big[at]), p.big, 128 * w.tile_n, pixel, full);
	if (at == 0)
		tma_load_2d(shared_address(s.big[BIG_STAGES]), p.big, 128 * w.tile_n, pixel, full);
}

HZ_DEVICE int copies_of(int block)
{
	return block % BIG_STAGES ? 1 : 2;
}

HZ_DEVICE void load(const hzi_quat_wgrad8 &p, memory &s, const work &w)
{
	const int ahead = p.set[w.set].ahead;
	const uint32_t first = shared_address(&s.first);
	ring_position<SMALL_STAGES> ring;

	mbarrier_expect_tx(first, ahead ? (ahead + 1) * BLOCK_BYTES : 0);
	for (int i = 0; i < ahead; i++)
		load_big(p, s, w, i, first);
	for (int k = 0; k < w.blocks; k++) {
		const uint32_t full = shared_address(&s.full[ring.at]);

		mbarrier_wait(shared_address(&s.empty[ring.at]), ring.parity ^ 1);
		mbarrier_expect_tx(full, (1 + copies_of(k + ahead)) * BLOCK_BYTES);
		tma_load_2d(shared_address(s.small[ring.at]), p.small, 128 * w.tile_m,
			    w.small_plane * p.small_pixels + w.pixel + k * HZI_WGRAD8_TILE_K, full);
		load_big(p, s, w, k + ahead, full);
		ring.next();
	}
}

/* Matrix descriptor, transposed; the next 64 columns begin `pixels` pixels later. */
HZ_DEVICE uint64_t pixels_desc(uint32_t address, int pixels)
{
	return wgmma_desc_mn(address, 128 * pixels);
}

/*
 * A multiplying warpgroup: a run of up to RUN taps. Tensor cores truncate accumulators to 24 bits:
 * SPLIT starts new ones for each block of pixels and adds them up in registers.
 */
template <int RUN, bool SPLIT>
HZ_DEVICE void multiply(const hzi_quat_wgrad8 &p, memory &s, const work &w, int group)
{
	const hzi_quat_wgrad8_set &set = p.set[w.set];
	const hzi_quat_wgrad8_run &run = set.run[group];
	const int lane = threadIdx.x % 32, spacing = run.spacing;
	constexpr int ACC = RUN * HZI_WGRAD8_TILE / 2;
	ring_position<SMALL_STAGES> ring;
	float acc[ACC], sums[SPLIT ? ACC : 1];
	int pixel = run.pixel;

	if (group >= set.runs) {
		/* No run: only frees the stages. */
		for (int k = 0; k < w.blocks; k++) {
			mbarrier_wait(shared_address(&s.full[ring.at]), ring.parity);
			if (lane == 0)
				mbarrier_arrive(shared_address(&s.empty[ring.at]));
			ring.next();
		}
		return;
	}
#pragma unroll
	for (int i = 0; i < ACC; i++)
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
		for (int c = 0; c < HZI_WGRAD8_TILE_K / 16; c++) {
			const int at = (pixel + 16 * c) % (BIG_STAGES * HZI_WGRAD8_TILE_K);

			const uint64_t a = pixels_desc(small + c * 2048, 0);
			const uint64_t b = pixels_desc(big + at * 128, spacing);

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
		pixel += HZI_WGRAD8_TILE_K;
		ring.next();
#pragma unroll
		for (int i = 0; SPLIT && i < ACC; i++)
			acc[i] += sums[SPLIT ? i : 0];
	}

	const float by = p.scales[0] * p.scales[1];
	const int row = HZI_WGRAD8_TILE * w.tile_m + threadIdx.x % 128 / 32 * 16 + lane / 4;
	const int number = (w.split * p.pairs + w.pair) * 8 + w.product;
	float *const part = p.parts + ((int64_t)number * p.rows + row) * p.taps * p.columns +
			    w.column + 2 * (lane & 3);

#pragma unroll
	for (int t = 0; t < RUN; t++) {
		if (t >= run.taps)
			break;
#pragma unroll
		for (int j = 0; j < HZI_WGRAD8_TILE / 8; j++) {
			const int i = 4 * (HZI_WGRAD8_TILE / 8 * t + j);
			float *const dst = part + run.number[t] * p.columns + 8 * j;

			*(float2 *)dst = make_float2(by * acc[i], by * acc[i + 1]);
			*(float2 *)(dst + (int64_t)8 * p.taps * p.columns) =
				make_float2(by * acc[i + 2], by * acc[i + 3]);
		}
	}
}

template <int RUN, bool SPLIT>
HZ_DEVICE void product(const hzi_quat_wgrad8 &p)
{
	memory &s = *(memory *)shared_start();
	const int group = __shfl_sync(~0u, threadIdx.x / 128, 0);
	const work w(p);

	if (threadIdx.x == 0) {
		for (int i = 0; i < SMALL_STAGES; i++) {
			mbarrier_init(shared_address(&s.full[i]), 1);
			mbarrier_init(shared_address(&s.empty[i]), 4 * HZI_WGRAD8_RUNS);
		}
		mbarrier_init(shared_address(&s.first), 1);
		mbarrier_init_fence();
	}
	pdl_launch_dependents();
	__syncthreads();
	pdl_wait();
	if (group < HZI_WGRAD8_RUNS)
		multiply<RUN, SPLIT>(p, s, w, group);
	else if (threadIdx.x % 32 == 0)
		load(p, s, w);
}

/* The eight products give the conjugate of the result: gpu/quat_gemm/wgmma.cu. */
HZ_DEVICE void finish(const hzi_quat_wgrad8_reduce &p)
{
	__shared__ float sums[8][HZI_WGRAD8_REDUCE_LANES];
	const int64_t i = (int64_t)blockIdx.x * HZI_WGRAD8_REDUCE_LANES + threadIdx.x;
	const int channel = (int)(i % p.channels), tap = (int)(i / p.channels % p.taps);
	const int64_t row = i / p.channels / p.taps;
	const int group = (int)row / p.outs, of_tile = group % p.groups_of_tile;
	const int64_t at = group / p.groups_of_tile * HZI_WGRAD8_TILE + of_tile * p.outs +
			   (int)row % p.outs;
	const int64_t step = (int64_t)p.rows * p.taps * p.columns;
	const float *src = p.parts + threadIdx.y * step + (at * p.taps + tap) * p.columns +
			   of_tile * p.channels + channel;
	float sum = 0;

	pdl_launch_dependents();
	pdl_wait();
	if (row < p.m) {
#pragma unroll 8
		for (int part = 0; part < p.parts_count; part++)
			sum += src[8 * part * step];
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

/* blocks: least blocks per SM that registers are limited for */
#define PACK(name, dtype, split, blocks) \
	extern "C" __global__ __launch_bounds__(HZI_WGRAD8_PACK_THREADS, blocks) void \
	quat_conv_wgrad8_absmax_##name(const __grid_constant__ hzi_quat_wgrad8_pack p) \
	HZ_HOPPER_BODY(absmax_pixels<dtype>(p)) \
	extern "C" __global__ __launch_bounds__(HZI_WGRAD8_PACK_THREADS, blocks) void \
	quat_conv_wgrad8_pack_planar_##name(const __grid_constant__ hzi_quat_wgrad8_pack p) \
	HZ_HOPPER_BODY((pack_planar<dtype, split>(p)))
PACK(f16, HZ_F16, false, 6)
PACK(bf16, HZ_BF16, false, 6)
PACK(strided, HZI_CONV_ANY_DTYPE, false, 6)
PACK(split_f32, HZ_F32, true, 4)
PACK(split_strided, HZI_CONV_ANY_DTYPE, true, 4)

extern "C" __global__ __launch_bounds__(HZI_WGRAD8_THREADS, 1) void
quat_conv_wgrad8_wgmma(const __grid_constant__ hzi_quat_wgrad8 p)
HZ_HOPPER_BODY((product<HZI_WGRAD8_RUN, false>(p)))

extern "C" __global__ __launch_bounds__(HZI_WGRAD8_THREADS, 1) void
quat_conv_wgrad8_wgmma_split(const __grid_constant__ hzi_quat_wgrad8 p)
HZ_HOPPER_BODY((product<HZI_WGRAD8_RUN_SPLIT, true>(p)))

extern "C" __global__ __launch_bounds__(8 * HZI_WGRAD8_REDUCE_LANES) void
quat_conv_wgrad8_reduce(const __grid_constant__ hzi_quat_wgrad8_reduce p)
HZ_HOPPER_BODY(finish(p))
