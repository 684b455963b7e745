/*
 * implicit_gemm8_f32x3.cu - f32 quaternion convolutions in split precision by wgmma
 *
 * SPDX-License-Identifier: BSD-2-Clause
 *
 * As implicit_gemm8.cu, but each number x is two f16 terms, high = f16(x) and low = f16(x - high),
 * and each product is three: low high, high low, high high. A step has half as many channels, so
 * that the planes of its inputs take as much shared memory as the f32 inputs, and replace them in
 * place. There are three buffers for steps: one is multiplied, one is converted, one is loaded.
 *
 * Tensor cores truncate accumulators to 24 bits. They accumulate the products of at most three taps
 * and 16 channels, for one of the four accumulators at a time; registers add these up.
 */
#include "gpu/quat_conv/mainloop.cuh"

#if HAVE_WGMMA

#define INPUTS HZI_CONV8_SPLIT_INPUTS
#define TILE_K HZI_CONV8_SPLIT_TILE_K
#define STAGES HZI_CONV8_SPLIT_STAGES
#define STEPS 3				/* buffers for the inputs of steps */
#define CONVERTERS HZI_CONV8_SPLIT_CONVERTERS
#define PLANES 8			/* four of high terms, four of low terms */
#define PLANE_BYTES (INPUTS * 16)	/* 8 channels of all inputs */
#define CHUNK_BYTES (PLANES * PLANE_BYTES)
#define WEIGHTS_BYTES (HZI_CONV8_TILE_M * TILE_K * 2)
#define CHAIN 3				/* taps that the tensor cores accumulate */

struct memory {
	uint8_t w[STAGES][2][WEIGHTS_BYTES];	/* of an accumulator and tap: terms */
	uint8_t x[STEPS][TILE_K / 8][PLANES][PLANE_BYTES];
	int64_t src[INPUTS];		/* offsets of inputs in x, or OUTSIDE */
	int64_t dst[2][PIXELS], pre[2][PIXELS];	/* offsets of output pixels */
	uint32_t most[STEPS][CONVERTERS];	/* the largest magnitude that a warp saw */
	int exponent[STEPS];		/* of the scale of what is in x */
	uint64_t full[STAGES], empty[STAGES];
	uint64_t x_full[STEPS], x_empty[STEPS];
};

static_assert(sizeof(memory) + 1024 <= HZI_CONV8_SPLIT_SHARED_BYTES, "what the launcher asks for");

/* ---- Weights --------------------------------------------------------------------------------- */

/* The high or the low terms, by the block of rank 0 or 1 for both blocks */
HZ_DEVICE void load_weights(const hzi_quat_conv8 &p, memory &s, int rank)
{
	ring_position<STAGES> ring;

	for (int t = blockIdx.x / HZI_CONV8_CLUSTER; t < p.tiles; t += gridDim.x /
	     HZI_CONV8_CLUSTER) {
		const int channel = tile_of(p, t, rank).channel;

		for (int g = 0; g < 2 * p.groups; g++) {
			const int phase = g >= p.groups;
			const hzi_quat_conv8_group &f = p.group[g - phase * p.groups];

			for (int i = 0; i < (p.x.channels + TILE_K - 1) / TILE_K * f.taps * 4;) {
				/* Chains of a step, four accumulators of a chain, their taps */
				const int k = i / (4 * f.taps) * TILE_K, chain = i / 4 % f.taps;
				const int taps = min(CHAIN, f.taps - chain);

				for (int u = 0; u < 4 * taps; u++) {
					const uint32_t full = shared_address(&s.full[ring.at]);
					const int tap = p.at[f.tap + chain + u % taps].number;
					const int plane =
						left_plane(phase, u / taps) + 8 * rank;

					mbarrier_wait(shared_address(&s.empty[ring.at]),
						      ring.parity ^ 1);
					mbarrier_expect_tx(full, 2 * WEIGHTS_BYTES);
					tma_load_2d_multicast(3, shared_address(s.w[ring.at][rank]),
							      p.weights, 2 * (tap * p.tap_step + k),
							      plane * p.plane_lines + channel,
							      full);
					ring.next();
				}
				i += 4 * taps;
			}
		}
	}
}

/* ---- Pixels ---------------------------------------------------------------------------------- */

/* A step of the converting warps */
struct step {
	int t, g, k;			/* tile; group, of both phases; the first channel */

	__device__ __forceinline__ void next(const hzi_quat_conv8 &p)
	{
		if ((k += TILE_K) < p.x.channels)
			return;
		k = 0;
		if (++g < 2 * p.groups)
			return;
		g = 0;
		t += gridDim.x / HZI_CONV8_CLUSTER;
	}
};

/*
 * Starts copies of 32 inputs, unconverted, to the place of their planes: channel j of 8 channels,
 * 16 bytes, to that of plane j. Zeros outside x.
 */
template <int DTYPE>
HZ_DEVICE void copy_inputs(const hzi_quat_conv_array &p, const int64_t *src, int inputs, int first,
			   int k, uint32_t dst)
{
	const int lane = threadIdx.x % 32, channel = k + lane % 8;

	dst += lane % 8 * PLANE_BYTES + (first + lane / 8) * 16;
#pragma unroll
	for (int i = 0; i < 8; i++) {
		const int l = first + 4 * i + lane / 8;
		const int64_t at = l < inputs ? src[l] : HZI_CONV_OUTSIDE;

#pragma unroll
		for (int h = 0; h < TILE_K / 8 && l < inputs; h++) {
			const bool inside = is_inside(at) && channel + 8 * h < p.channels;
			const uint32_t slot = dst + h * CHUNK_BYTES + 64 * i;
			quat q = {};

			if constexpr (DTYPE == HZ_F32) {
				const float *const data = (const float *)p.q.data;

				cp_async_zfill(slot,
					       inside ? data + at + 4 * (channel + 8 * h) : data,
					       inside ? 16 : 0);
				continue;
			}
			if (inside)
				q = load_strided(p, at + (channel + 8 * h) * p.q.col);
			const float v[4] = {q.w, q.x, q.y, q.z};

			shared_store(slot, v);
		}
	}
}

/* Starts the loads of a step. */
template <int DTYPE>
HZ_DEVICE void start_step(const hzi_quat_conv8 &p, memory &s, const step &n,
			  const ring_position<STEPS> &ring, int rank)
{
	const int group = n.g < p.groups ? n.g : n.g - p.groups;

	if (n.k == 0 && (n.g == 0 || p.groups > 1)) {
		const tile o = tile_of(p, n.t, rank);

		find_inputs<CONVERTERS>(p, s.src, o.row, o.col, group);
	}
	mbarrier_wait(shared_address(&s.x_empty[ring.at]), ring.parity ^ 1);
	for (int l = threadIdx.x / 32 * 32; l < p.group[group].inputs; l += 32 * CONVERTERS)
		copy_inputs<DTYPE>(p.x, s.src, p.group[group].inputs, l, n.k,
				   shared_address(s.x[ring.at]));
	cp_async_commit();
}

/* The largest finite magnitude of the inputs of a warp, as bits of magnitude_of() */
HZ_DEVICE uint32_t absmax_of_warp(const memory &s, int at, int inputs)
{
	uint32_t most = MAGNITUDE_LEAST;

	for (int l = threadIdx.x; l < inputs; l += 32 * CONVERTERS) {
#pragma unroll 1
		for (int e = 0; e < TILE_K / 8; e++) {
			uint4 u[8];

#pragma unroll
			for (int j = 0; j < 8; j++)
				u[j] = shared_load(shared_address(s.x[at][e][j]) + 16 * l);
#pragma unroll
			for (int j = 0; j < 8; j++)
				most = max(max(max(most, magnitude_of(u[j].x)),
					       max(magnitude_of(u[j].y), magnitude_of(u[j].z))),
					   magnitude_of(u[j].w));
		}
	}
	return __reduce_max_sync(~0u, most);
}

/* The largest finite magnitude of all inputs of a step */
HZ_DEVICE float absmax_of_step(memory &s, int at, int inputs)
{
	const int lane = threadIdx.x % 32;
	const uint32_t here = absmax_of_warp(s, at, inputs);

	if (lane == 0)
		s.most[at][threadIdx.x / 32] = here;
	converters_sync<CONVERTERS>();

	const uint32_t most = __reduce_max_sync(~0u, s.most[at][min(lane, CONVERTERS - 1)]);

	return from_magnitude(most);
}

/* Two numbers as f16, and the remainders */
HZ_DEVICE void split_f16(uint32_t (&high)[4], uint32_t (&low)[4], int i, float a, float b)
{
	high[i] = to_f16x2(a, b);
	low[i] = to_f16x2(a - f16_low(high[i]), b - f16_high(high[i]));
}

/* Converts the inputs of copy_inputs() to planes in place. */
template <bool RAW>
HZ_DEVICE void convert_inputs(uint32_t x, int inputs, float by, float by_xyz)
{
	for (int l = threadIdx.x; l < inputs; l += 32 * CONVERTERS) {
#pragma unroll 1
		for (int e = 0; e < TILE_K / 8; e++) {
			const uint32_t at = x + e * CHUNK_BYTES + 16 * l;
			uint32_t dst[PLANES][4];

#pragma unroll
			for (int j = 0; j < 4; j++) {
				const uint4 u = shared_load(at + 2 * j * PLANE_BYTES);
				const uint4 v = shared_load(at + (2 * j + 1) * PLANE_BYTES);
				const quat a = plane_values({__uint_as_float(u.x),
							     __uint_as_float(u.y),
							     __uint_as_float(u.z),
							     __uint_as_float(u.w)}, RAW, by,
							    by_xyz);
				const quat b = plane_values({__uint_as_float(v.x),
							     __uint_as_float(v.y),
							     __uint_as_float(v.z),
							     __uint_as_float(v.w)}, RAW, by,
							    by_xyz);

				split_f16(dst[0], dst[4], j, a.w, b.w);
				split_f16(dst[1], dst[5], j, a.x, b.x);
				split_f16(dst[2], dst[6], j, a.y, b.y);
				split_f16(dst[3], dst[7], j, a.z, b.z);
			}
#pragma unroll
			for (int j = 0; j < PLANES; j++)
				shared_store(at + j * PLANE_BYTES, dst[j]);
		}
	}
}

template <int DTYPE>
HZ_DEVICE void load_pixels(const hzi_quat_conv8 &p, memory &s, int rank)
{
	const int tiles = gridDim.x / HZI_CONV8_CLUSTER;
	step at = {(int)blockIdx.x / HZI_CONV8_CLUSTER, 0, 0}, ahead = at;
	ring_position<STEPS> ring, ring_ahead;
	int e = EXPONENT_MAX;

	for (int t = at.t; t < p.tiles && t <= at.t + tiles; t += tiles)
		prefetch_inputs<DTYPE, CONVERTERS>(p, tile_of(p, t, rank));
	if (at.t < p.tiles)
		start_step<DTYPE>(p, s, ahead, ring_ahead, rank);
#pragma unroll 1
	for (; at.t < p.tiles; at.next(p)) {
		const bool raw = at.g < p.groups;
		const int inputs = p.group[raw ? at.g : at.g - p.groups].inputs;

		ahead.next(p);
		ring_ahead.next();
		if (ahead.t < p.tiles) {
			start_step<DTYPE>(p, s, ahead, ring_ahead, rank);
			cp_async_wait<1>();
		} else {
			cp_async_wait<0>();
		}
		__syncwarp();
		if (at.g == p.groups && at.k == 0 && at.t + 2 * tiles < p.tiles)
			prefetch_inputs<DTYPE, CONVERTERS>(p, tile_of(p, at.t + 2 * tiles, rank));
		if (at.g == 0 && at.k == 0)
			e = EXPONENT_MAX;
		if (raw)
			e = next_exponent(e, absmax_of_step(s, ring.at, inputs));

		const float by = power_of_two(e), by_xyz = p.x.q.conj ? -by : by;

		if (raw)
			convert_inputs<true>(shared_address(s.x[ring.at]), inputs, by, by_xyz);
		else
			convert_inputs<false>(shared_address(s.x[ring.at]), inputs, by, by_xyz);
		if (threadIdx.x == 0)
			s.exponent[ring.at] = e;
		/* Makes the planes visible to wgmma. */
		fence_proxy_async();
		__syncwarp();
		if (threadIdx.x % 32 == 0)
			mbarrier_arrive(shared_address(&s.x_full[ring.at]));
		ring.next();
	}
}

/* ---- Products -------------------------------------------------------------------------------- */

/* Matrix descriptor of rows of 32 bytes of k, 32-byte swizzle */
HZ_DEVICE uint64_t weights_desc(uint32_t address)
{
	return (uint64_t)((address & 0x3ffff) >> 4) | 1ull << 16 | 16ull << 32 | 3ull << 62;
}

/*
 * Matrix descriptor without swizzle, 16 bytes of k in each row. stride_bytes: from 8 pixels to the
 * next 8
 */
HZ_DEVICE uint64_t pixels_desc(uint32_t address, int stride_bytes)
{
	return (uint64_t)((address & 0x3ffff) >> 4) | (uint64_t)(CHUNK_BYTES >> 4) << 16 |
	       (uint64_t)(stride_bytes >> 4) << 32;
}

/* Adds the products of up to CHAIN taps to one accumulator. */
HZ_DEVICE void multiply_chain(const hzi_quat_conv8_tap *at, int taps, memory &s, float (&acc)[ACC],
			      ring_position<STAGES> &ring, uint32_t x, int stride_bytes)
{
	const int lane = threadIdx.x % 32;
	float sums[ACC];
	ring_position<STAGES> done = ring;

#pragma unroll
	for (int u = 0; u < CHAIN; u++) {
		if (u >= taps)
			break;

		const uint64_t a = weights_desc(shared_address(s.w[ring.at][0]));
		const uint64_t b = pixels_desc(x + at[u].input * 16, stride_bytes);

		mbarrier_wait(shared_address(&s.full[ring.at]), ring.parity);
		wgmma_keep(sums);
		wgmma_fence();
		/* Smallest products first */
		wgmma<false>(sums, a + WEIGHTS_BYTES / 16, b, u);
		wgmma<false>(sums, a, b + PLANES / 2 * PLANE_BYTES / 16, 1);
		wgmma<false>(sums, a, b, 1);
		ring.next();
	}
	wgmma_commit();
	wgmma_keep(sums);
	wgmma_wait<0>();
	wgmma_keep(sums);
	for (int u = 0; u < taps; u++) {
		if (lane < 2)
			mbarrier_arrive_cluster(
				cluster_map(shared_address(&s.empty[done.at]), lane));
		done.next();
	}
#pragma unroll
	for (int i = 0; i < ACC; i++)
		acc[i] += sums[i];
}

/* A multiplying warpgroup: 80 pixels */
template <int DTYPE, int EPILOGUE>
HZ_DEVICE void multiply(const hzi_quat_conv8 &p, memory &s, int rank, int group)
{
	const int lane = threadIdx.x % 32;
	float acc[4][ACC];
	ring_position<STAGES> ring;
	ring_position<STEPS> x_ring;
	bool begun = false;

	/*
	 * Warpgroup 0 is one chain ahead, so that one multiplies while the other adds up or stores;
	 * the ring holds two chains.
	 */
	if (group == 1)
		bar_sync(4, 256);
	for (int t = blockIdx.x / HZI_CONV8_CLUSTER; t < p.tiles; t += gridDim.x /
	     HZI_CONV8_CLUSTER) {
		const tile o = tile_of(p, t, rank);
		const int row = o.channel + threadIdx.x % 128 / 32 * 16 + lane / 4;
		int e = EXPONENT_MAX;

		find_outputs(p, s.dst[group], s.pre[group], o, group);
#pragma unroll
		for (int i = 0; i < 4 * ACC; i++)
			acc[i / ACC][i % ACC] = 0;
#pragma unroll 1
		for (int g = 0; g < 2 * p.groups; g++) {
			const int phase = g >= p.groups;
			const hzi_quat_conv8_group &f = p.group[g - phase * p.groups];
			const int stride_bytes = 16 * (p.flat ? 8 : f.pitch);

			if (g == p.groups) {
				hadamard(acc);
				scale_acc(acc, 0.25f);
			}
#pragma unroll 1
			for (int k = 0; k < p.x.channels; k += TILE_K) {
				const uint32_t x = shared_address(s.x[x_ring.at]) +
						   group * (PIXELS / 8) * stride_bytes;

				wait_inputs(s.x_full[x_ring.at], x_ring.parity,
					    s.exponent[x_ring.at], e, !(g | k), acc);
#pragma unroll 1
				for (int i = 0; i < f.taps; i += CHAIN) {
#pragma unroll
					for (int sum = 0; sum < 4; sum++) {
						multiply_chain(
							&p.at[f.tap + i], min(CHAIN, f.taps - i), s,
							acc[sum], ring,
							x + right_plane(phase, sum) * PLANE_BYTES,
							stride_bytes);
						if (sum == 0 && group == 0 && !begun)
							bar_arrive(4, 256);
					}
					begun = true;
				}
				if (lane == 0)
					mbarrier_arrive(shared_address(&s.x_empty[x_ring.at]));
				x_ring.next();
			}
		}
		finish_tile<EPILOGUE, DTYPE>(p, s.dst[group], s.pre[group], acc, row, e, group);
	}
}

template <int DTYPE, int EPILOGUE>
HZ_DEVICE void kernel(const hzi_quat_conv8 &p)
{
	run_block<memory, 1, CONVERTERS, 56, 224, load_pixels<DTYPE>, load_weights,
		  multiply<DTYPE, EPILOGUE>>(p);
}

#endif

CONV8_KERNELS(f32x3, HZI_CONV8_SPLIT_THREADS, HZ_F32)
CONV8_KERNEL(quat_conv_implicit_gemm8_strided_f32x3, HZI_CONV8_SPLIT_THREADS, HZI_CONV_ANY_DTYPE,
	     HZI_CONV_EPILOGUE_FULL)
