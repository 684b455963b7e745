/*
 * implicit_gemm8_f32x3.cu - convolutions of quaternions of f32 in parts, on Hopper
 *
 * SPDX-License-Identifier: BSD-2-Clause
 *
 * As gpu/quat_conv/implicit_gemm8.cu, but each number is two of f16, what f16 holds of it and what it leaves, and
 * each product is three: of the rests by the others and of these by themselves. A step has half as
 * many channels, so that a pixel's take as much memory as floats as in parts, and becomes these
 * where it is. There are three pieces of memory for steps: one is multiplied, one becomes planes,
 * and one is on its way.
 *
 * The matrix units cut sums off at 24 bits. They have sums of three taps and 16 channels at most,
 * of one of the four at a time, which are added up in registers.
 */
#include "gpu/quat_conv/mainloop.cuh"

#if HAVE_WGMMA

#define LINES HZI_QS_LINES
#define IN HZI_QS_IN
#define STAGES HZI_QS_STAGES
#define STEPS 3				/* pieces of memory for these */
#define CONVERTERS HZI_QS_CONVERTERS
#define PLANES 8			/* of four components in two parts */
#define PLANE (LINES * 16)		/* bytes: eight channels of the lines */
#define EIGHTH (PLANES * PLANE)
#define WEIGHTS (HZI_QC_OUT * IN * 2)
#define CHAIN 3				/* taps whose products are added up by the matrix units */

struct memory {
	uint8_t w[STAGES][2][WEIGHTS];	/* of a sum and tap: in two parts */
	uint8_t x[STEPS][IN / 8][PLANES][PLANE];
	int64_t from[LINES];		/* where a line's pixel is in x, or nowhere */
	int64_t to[2][PIXELS], pre[2][PIXELS];	/* where pixels go */
	uint32_t most[STEPS][CONVERTERS];	/* the largest magnitude that a warp saw */
	int exponent[STEPS];		/* of the scale of what is in x */
	uint64_t full[STAGES], empty[STAGES];
	uint64_t x_full[STEPS], x_empty[STEPS];
};

static_assert(sizeof(memory) + 1024 <= HZI_QS_BYTES, "what the launcher asks for");

/* ---- Weights --------------------------------------------------------------------------------- */

/* One part of them from either block, for both */
HZ_DEVICE void load_weights(const hzi_quat_conv &p, memory &s, int rank)
{
	ring_position<STAGES> ring;

	for (int t = blockIdx.x / HZI_QC_CLUSTER; t < p.tiles; t += gridDim.x / HZI_QC_CLUSTER) {
		const int channel = tile_of(p, t, rank).channel;

		for (int g = 0; g < 2 * p.groups; g++) {
			const int phase = g >= p.groups;
			const hzi_quat_conv_group &f = p.group[g - phase * p.groups];

			for (int i = 0; i < (p.x.channels + IN - 1) / IN * f.taps * 4;) {
				/* Chains of a step, sums of a chain, taps of a sum */
				const int k = i / (4 * f.taps) * IN, chain = i / 4 % f.taps;
				const int taps = min(CHAIN, f.taps - chain);

				for (int u = 0; u < 4 * taps; u++) {
					const uint32_t full = shared_address(&s.full[ring.at]);
					const int tap = p.at[f.tap + chain + u % taps].number;
					const int plane =
						left_plane(phase, u / taps) + 8 * rank;

					mbarrier_wait(shared_address(&s.empty[ring.at]),
						      ring.parity ^ 1);
					mbarrier_expect_tx(full, 2 * WEIGHTS);
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

/* What the converters do next. */
struct step {
	int t, g, k;			/* tile; group, of both phases; the first channel */

	__device__ __forceinline__ void next(const hzi_quat_conv &p)
	{
		if ((k += IN) < p.x.channels)
			return;
		k = 0;
		if (++g < 2 * p.groups)
			return;
		g = 0;
		t += gridDim.x / HZI_QC_CLUSTER;
	}
};

/*
 * Lines as they are in memory, of which a channel is 16 bytes, to the places of what they become:
 * channel j of an eighth to that of plane j. Zeros where there are none.
 */
template <int DTYPE>
HZ_DEVICE void copy_lines(const hzi_quat_conv_side &p, const int64_t *from, int lines, int first,
			  int k, uint32_t to)
{
	const int lane = threadIdx.x % 32, channel = k + lane % 8;

	to += lane % 8 * PLANE + (first + lane / 8) * 16;
#pragma unroll
	for (int i = 0; i < 8; i++) {
		const int l = first + 4 * i + lane / 8;
		const int64_t at = l < lines ? from[l] : HZI_QC_NOWHERE;

#pragma unroll
		for (int h = 0; h < IN / 8 && l < lines; h++) {
			const bool there = is_somewhere(at) && channel + 8 * h < p.channels;
			const uint32_t place = to + h * EIGHTH + 64 * i;
			quat q = {};

			if constexpr (DTYPE == HZ_F32) {
				const float *const data = (const float *)p.q.data;

				cp_async_zfill(place,
					       there ? data + at + 4 * (channel + 8 * h) : data,
					       there ? 16 : 0);
				continue;
			}
			if (there)
				q = load_other(p, at + (channel + 8 * h) * p.q.col);
			const float v[4] = {q.w, q.x, q.y, q.z};

			shared_store(place, v);
		}
	}
}

/* All of a step is on its way. */
template <int DTYPE>
HZ_DEVICE void begin_step(const hzi_quat_conv &p, memory &s, const step &n,
			  const ring_position<STEPS> &ring, int rank)
{
	const int group = n.g < p.groups ? n.g : n.g - p.groups;

	if (n.k == 0 && (n.g == 0 || p.groups > 1)) {
		const tile o = tile_of(p, n.t, rank);

		find_lines<CONVERTERS>(p, s.from, o.row, o.col, group);
	}
	mbarrier_wait(shared_address(&s.x_empty[ring.at]), ring.parity ^ 1);
	for (int l = threadIdx.x / 32 * 32; l < p.group[group].lines; l += 32 * CONVERTERS)
		copy_lines<DTYPE>(p.x, s.from, p.group[group].lines, l, n.k,
				  shared_address(s.x[ring.at]));
	cp_async_commit();
}

/* The largest finite magnitude of what a warp copied, as bits of magnitude_of() */
HZ_DEVICE uint32_t largest_of_warp(const memory &s, int at, int lines)
{
	uint32_t most = MAGNITUDE_LEAST;

	for (int l = threadIdx.x; l < lines; l += 32 * CONVERTERS) {
#pragma unroll 1
		for (int e = 0; e < IN / 8; e++) {
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

/* That of all of them */
HZ_DEVICE float largest_of_step(memory &s, int at, int lines)
{
	const int lane = threadIdx.x % 32;
	const uint32_t here = largest_of_warp(s, at, lines);

	if (lane == 0)
		s.most[at][threadIdx.x / 32] = here;
	converters_meet<CONVERTERS>();

	const uint32_t most = __reduce_max_sync(~0u, s.most[at][min(lane, CONVERTERS - 1)]);

	return from_magnitude(most);
}

/* Two numbers in f16, and what these leave of them */
HZ_DEVICE void put_parts(uint32_t (&first)[4], uint32_t (&rest)[4], int i, float a, float b)
{
	first[i] = to_f16x2(a, b);
	rest[i] = to_f16x2(a - f16_low(first[i]), b - f16_high(first[i]));
}

/* Lines of copy_lines() to their planes, in place */
template <bool RAW>
HZ_DEVICE void make_planes(uint32_t x, int lines, float by, float by_xyz)
{
	for (int l = threadIdx.x; l < lines; l += 32 * CONVERTERS) {
#pragma unroll 1
		for (int e = 0; e < IN / 8; e++) {
			const uint32_t at = x + e * EIGHTH + 16 * l;
			uint32_t to[PLANES][4];

#pragma unroll
			for (int j = 0; j < 4; j++) {
				const uint4 u = shared_load(at + 2 * j * PLANE);
				const uint4 v = shared_load(at + (2 * j + 1) * PLANE);
				const quat a = for_planes({__uint_as_float(u.x),
							   __uint_as_float(u.y),
							   __uint_as_float(u.z),
							   __uint_as_float(u.w)}, RAW, by, by_xyz);
				const quat b = for_planes({__uint_as_float(v.x),
							   __uint_as_float(v.y),
							   __uint_as_float(v.z),
							   __uint_as_float(v.w)}, RAW, by, by_xyz);

				put_parts(to[0], to[4], j, a.w, b.w);
				put_parts(to[1], to[5], j, a.x, b.x);
				put_parts(to[2], to[6], j, a.y, b.y);
				put_parts(to[3], to[7], j, a.z, b.z);
			}
#pragma unroll
			for (int j = 0; j < PLANES; j++)
				shared_store(at + j * PLANE, to[j]);
		}
	}
}

template <int DTYPE>
HZ_DEVICE void load_pixels(const hzi_quat_conv &p, memory &s, int rank)
{
	const int tiles = gridDim.x / HZI_QC_CLUSTER;
	step at = {(int)blockIdx.x / HZI_QC_CLUSTER, 0, 0}, ahead = at;
	ring_position<STEPS> ring, ring_ahead;
	int e = EXPONENT_MAX;

	for (int t = at.t; t < p.tiles && t <= at.t + tiles; t += tiles)
		prefetch_lines<DTYPE, CONVERTERS>(p, tile_of(p, t, rank));
	if (at.t < p.tiles)
		begin_step<DTYPE>(p, s, ahead, ring_ahead, rank);
#pragma unroll 1
	for (; at.t < p.tiles; at.next(p)) {
		const bool raw = at.g < p.groups;
		const int lines = p.group[raw ? at.g : at.g - p.groups].lines;

		ahead.next(p);
		ring_ahead.next();
		if (ahead.t < p.tiles) {
			begin_step<DTYPE>(p, s, ahead, ring_ahead, rank);
			cp_async_wait<1>();
		} else {
			cp_async_wait<0>();
		}
		__syncwarp();
		if (at.g == p.groups && at.k == 0 && at.t + 2 * tiles < p.tiles)
			prefetch_lines<DTYPE, CONVERTERS>(p, tile_of(p, at.t + 2 * tiles, rank));
		if (at.g == 0 && at.k == 0)
			e = EXPONENT_MAX;
		if (raw)
			e = next_exponent(e, largest_of_step(s, ring.at, lines));

		const float by = power_of_two(e), by_xyz = p.x.q.conj ? -by : by;

		if (raw)
			make_planes<true>(shared_address(s.x[ring.at]), lines, by, by_xyz);
		else
			make_planes<false>(shared_address(s.x[ring.at]), lines, by, by_xyz);
		if (threadIdx.x == 0)
			s.exponent[ring.at] = e;
		/* The matrix units are to see it. */
		fence_proxy_async();
		__syncwarp();
		if (threadIdx.x % 32 == 0)
			mbarrier_arrive(shared_address(&s.x_full[ring.at]));
		ring.next();
	}
}

/* ---- Products -------------------------------------------------------------------------------- */

/* A place of lines of 32 bytes of k, with the swizzle of that size. */
HZ_DEVICE uint64_t weights_place(uint32_t address)
{
	return (uint64_t)((address & 0x3ffff) >> 4) | 1ull << 16 | 16ull << 32 | 3ull << 62;
}

/* One of 16 bytes of k behind each other, by eights of pixels and of k. */
HZ_DEVICE uint64_t pixels_place(uint32_t address, int eight_bytes)
{
	return (uint64_t)((address & 0x3ffff) >> 4) | (uint64_t)(EIGHTH >> 4) << 16 |
	       (uint64_t)(eight_bytes >> 4) << 32;
}

/* Adds up to three taps' products to one sum. */
HZ_DEVICE void multiply_chain(const hzi_quat_conv_tap *at, int taps, memory &s, float (&acc)[SUMS],
			      ring_position<STAGES> &ring, uint32_t x, int eight_bytes)
{
	const int lane = threadIdx.x % 32;
	float sums[SUMS];
	ring_position<STAGES> done = ring;

#pragma unroll
	for (int u = 0; u < CHAIN; u++) {
		if (u >= taps)
			break;

		const uint64_t a = weights_place(shared_address(s.w[ring.at][0]));
		const uint64_t b = pixels_place(x + at[u].line * 16, eight_bytes);

		mbarrier_wait(shared_address(&s.full[ring.at]), ring.parity);
		wgmma_keep(sums);
		wgmma_fence();
		/* The least first */
		wgmma<false>(sums, a + WEIGHTS / 16, b, u);
		wgmma<false>(sums, a, b + PLANES / 2 * PLANE / 16, 1);
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
	for (int i = 0; i < SUMS; i++)
		acc[i] += sums[i];
}

/* A warpgroup that multiplies: 80 pixels. */
template <int DTYPE, int KIND>
HZ_DEVICE void multiply(const hzi_quat_conv &p, memory &s, int rank, int group)
{
	const int lane = threadIdx.x % 32;
	float acc[4][SUMS];
	ring_position<STAGES> ring;
	ring_position<STEPS> x_ring;
	bool begun = false;

	/*
	 * One multiplies while the other adds up or stores. It is a chain ahead: the ring has room
	 * for two.
	 */
	if (group == 1)
		bar_sync(4, 256);
	for (int t = blockIdx.x / HZI_QC_CLUSTER; t < p.tiles; t += gridDim.x / HZI_QC_CLUSTER) {
		const tile o = tile_of(p, t, rank);
		const int row = o.channel + threadIdx.x % 128 / 32 * 16 + lane / 4;
		int e = EXPONENT_MAX, next;

		find_places(p, s.to[group], s.pre[group], o, group);
#pragma unroll
		for (int i = 0; i < 4 * SUMS; i++)
			acc[i / SUMS][i % SUMS] = 0;
#pragma unroll 1
		for (int g = 0; g < 2 * p.groups; g++) {
			const int phase = g >= p.groups;
			const hzi_quat_conv_group &f = p.group[g - phase * p.groups];
			const int eight_bytes = 16 * (p.flat ? 8 : f.pitch);

			if (g == p.groups) {
				transform(acc);
				scale_sums(acc, 0.25f);
			}
#pragma unroll 1
			for (int k = 0; k < p.x.channels; k += IN) {
				const uint32_t x = shared_address(s.x[x_ring.at]) +
						   group * (PIXELS / 8) * eight_bytes;

				mbarrier_wait(shared_address(&s.x_full[x_ring.at]), x_ring.parity);
				/* One lane reads, which then says that it has done so. */
				next = lane == 0 ? s.exponent[x_ring.at] : 0;
				next = __shfl_sync(~0u, next, 0);
				if (next != e && (g | k))
					scale_sums(acc, rescale(e, next));
				e = next;
#pragma unroll 1
				for (int i = 0; i < f.taps; i += CHAIN) {
#pragma unroll
					for (int sum = 0; sum < 4; sum++) {
						multiply_chain(
							&p.at[f.tap + i], min(CHAIN, f.taps - i), s,
							acc[sum], ring,
							x + right_plane(phase, sum) * PLANE,
							eight_bytes);
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
		transform(acc);
		/* Other threads of the warpgroup found the places, and find the next ones. */
		bar_sync(2 + group, 128);
		store<KIND, DTYPE>(p, s.to[group], s.pre[group], acc, row, power_of_two(-e));
		bar_sync(2 + group, 128);
	}
}

template <int DTYPE, int KIND>
HZ_DEVICE void kernel(const hzi_quat_conv &p)
{
	memory &s = *(memory *)shared_start();
	const int group = __shfl_sync(~0u, threadIdx.x / 128, 0);
	const uint32_t rank = begin_block<CONVERTERS>(s);

	if (group == 0) {
		setmaxnreg_dec<56>();
		if (threadIdx.x < 32 * CONVERTERS)
			load_pixels<DTYPE>(p, s, rank);
		else if (threadIdx.x == 32 * CONVERTERS)
			load_weights(p, s, rank);
	} else {
		setmaxnreg_inc<224>();
		multiply<DTYPE, KIND>(p, s, rank, group - 1);
	}
	cluster_end();
}

#endif

#define CONV(name, dtype, kind) \
	extern "C" __global__ __launch_bounds__(HZI_QS_THREADS, 1) void \
	name(const __grid_constant__ hzi_quat_conv p) \
	HZ_HOPPER_BODY((kernel<dtype, kind>(p)))
CONV(quat_conv_split_f32, HZ_F32, HZI_QC_PLAIN)
CONV(quat_conv_split_usual_f32, HZ_F32, HZI_QC_USUAL)
CONV(quat_conv_split_finish_f32, HZ_F32, HZI_QC_ANY)
CONV(quat_conv_split_any, HZI_QC_OTHERS, HZI_QC_ANY)
