/*
 * implicit_gemm8.cu - convolutions of quaternions on Hopper
 *
 * SPDX-License-Identifier: BSD-2-Clause
 *
 * A tile is 64 output channels by 160 pixels: 20 rows of 8, or where there is but one column 160
 * rows. A step of it is a group of taps and 32 input channels: seven warps put what pixels of the
 * input these taps see into shared memory, as planes of f16, once for all taps; the taps' products
 * read them there from different places on. Weights, whose planes were made before, come by the
 * copy engine, half of them from each of two blocks for both.
 *
 * Each of two warpgroups multiplies for half of the pixels and has all four sums of 64 x 80. Eight
 * products, of P = (H left / 4) (H right) and Q, give the result's conjugate Q - H P:
 * gpu/quat_gemm/wgmma.cu. Phase 0 sums Q, of w, x, y and z as they are, over all steps. H Q / 4 is what
 * phase 1 adds -P to, plane by plane, and H times that is the result. Where there are two steps or
 * one, all pixels of a tile stay where they are, and their planes of phase 0 become those of phase
 * 1 there.
 *
 * All pixels of a step have one scale, by the largest of them and of the steps ahead; sums follow
 * when it changes. Inf and NaN do not count. Pixels are on their way to L2 a tile ahead.
 */
#include "gpu/quat_conv/mainloop.cuh"

#if HAVE_WGMMA

#define STAGES HZI_QC_STAGES
#define LINES HZI_QC_LINES
#define PLANE HZI_QC_PLANE
/*
 * So many taps of the first group one warpgroup is ahead of the other, so that one multiplies while
 * the other stores: less than the ring has.
 */
#define LEAD 2
#define WEIGHTS (HZI_QC_OUT * HZI_QC_IN * 2)

struct memory {
	uint8_t w[STAGES][4][WEIGHTS];
	uint8_t x[2][4][PLANE];
	/* Of tiles by turns: where a line's pixel is in x, or nowhere */
	int64_t from[2][LINES];
	int64_t to[2][PIXELS], pre[2][PIXELS];	/* where pixels go */
	/* Of steps by turns: the largest magnitude that a warp saw, as bits */
	uint32_t most[2][HZI_QC_CONVERTERS];
	int exponent[2];		/* of the scale of what is in x */
	uint64_t full[STAGES], empty[STAGES];
	uint64_t x_full[2], x_empty[2];
};

static_assert(sizeof(memory) + 1024 <= HZI_QC_BYTES, "what the launcher asks for");

/* ---- Weights --------------------------------------------------------------------------------- */

HZ_DEVICE void load_weights(const hzi_quat_conv &p, memory &s, int rank)
{
	ring_position<STAGES> ring;

	for (int t = blockIdx.x / HZI_QC_CLUSTER; t < p.tiles; t += gridDim.x / HZI_QC_CLUSTER) {
		const int channel = tile_of(p, t, rank).channel;

		for (int phase = 0; phase < 2; phase++) {
			for (int g = 0; g < p.groups; g++) {
				for (int k = 0; k < p.x.channels; k += HZI_QC_IN) {
					for (int i = 0; i < p.group[g].taps; i++) {
						const int tap = p.at[p.group[g].tap + i].number;
						const uint32_t full =
							shared_address(&s.full[ring.at]);

						mbarrier_wait(shared_address(&s.empty[ring.at]),
							      ring.parity ^ 1);
						mbarrier_expect_tx(full, 4 * WEIGHTS);
#pragma unroll
						for (int h = 0; h < 2; h++) {
							const int sum = 2 * rank + h;

							tma_load_2d_multicast(
								3,
								shared_address(s.w[ring.at][sum]),
								p.weights,
								2 * (tap * p.tap_step + k),
								left_plane(phase, sum) *
										p.plane_lines +
									channel,
								full);
						}
						ring.next();
					}
				}
			}
		}
	}
}

/* ---- Pixels ---------------------------------------------------------------------------------- */

/* The largest magnitude that the converters saw in a step. */
HZ_DEVICE float largest_of_all(memory &s, float most, int at)
{
	const int warp = threadIdx.x / 32 % 8, lane = threadIdx.x % 32;
	const uint32_t here = __reduce_max_sync(~0u, __float_as_uint(most));

	if (lane == 0)
		s.most[at][warp] = here;
	converters_meet();
	return __uint_as_float(
		__reduce_max_sync(~0u, lane < HZI_QC_CONVERTERS ? s.most[at][lane] : 0));
}

template <int DTYPE>
HZ_DEVICE void load_pixels(const hzi_quat_conv &p, memory &s, int rank)
{
	const int first = blockIdx.x / HZI_QC_CLUSTER, step = gridDim.x / HZI_QC_CLUSTER;
	const int warp = threadIdx.x / 32 % 8, lane = threadIdx.x % 32;
	const int steps = p.groups * ((p.x.channels + HZI_QC_IN - 1) / HZI_QC_IN);
	ring_position<2> ring;
	int at = 0, e_of[2] = {0, 0};

	for (int t = first; t < p.tiles && t <= first + step; t += step)
		prefetch_lines<DTYPE>(p, tile_of(p, t, rank));
	if (p.groups == 1 && first < p.tiles) {
		const tile o = tile_of(p, first, rank);

		find_lines(p, s.from[at], o.row, o.col, 0);
	}
	for (int t = first; t < p.tiles; t += step) {
		const tile o = tile_of(p, t, rank);
		int e = EXPONENT_MAX;

#pragma unroll 1
		for (int g = 0; g < 2 * p.groups; g++) {
			const int phase = g >= p.groups, group = g - phase * p.groups;
			const int lines = p.group[group].lines;
			const bool here = DTYPE != HZI_QC_OTHERS && phase && steps <= 2;

			/* What phase 1 wants would have to wait for room: there is time. */
			if (g == p.groups && t + step < p.tiles) {
				if (t + 2 * step < p.tiles)
					prefetch_lines<DTYPE>(p, tile_of(p, t + 2 * step, rank));
				if (p.groups == 1) {
					const tile next = tile_of(p, t + step, rank);

					find_lines(p, s.from[at ^ 1], next.row, next.col, 0);
				}
			}
			if (p.groups > 1 && !here)
				find_lines(p, s.from[at], o.row, o.col, group);
#pragma unroll 1
			for (int k = 0; k < p.x.channels; k += HZI_QC_IN) {
				const uint32_t x = shared_address(s.x[ring.at][0]);

				mbarrier_wait(shared_address(&s.x_empty[ring.at]), ring.parity ^ 1);
				if (here) {
					/* Of one step the planes of phase 0 are in the other x. */
					const int from = steps == 1 ? ring.at ^ 1 : ring.at;

					turn_planes(shared_address(s.x[from][0]), x, lines, warp,
						    rescale(from ? e_of[1] : e_of[0], e));
				} else {
					float most = load_lines<DTYPE>(p.x, s.from[at], lines, warp,
								       k, x, !phase);

					if (!phase)
						e = next_exponent(e, largest_of_all(s, most,
										    ring.at));
					if (ring.at)
						e_of[1] = e;
					else
						e_of[0] = e;
					const float by = power_of_two(e);

					make_planes<DTYPE>(p.x, s.from[at], lines, warp, k, x,
							   !phase, by, p.x.q.conj ? -by : by);
				}
				if (threadIdx.x % 256 == 0)
					s.exponent[ring.at] = e;
				/* The matrix units are to see it. */
				fence_proxy_async();
				__syncwarp();
				if (lane == 0)
					mbarrier_arrive(shared_address(&s.x_full[ring.at]));
				ring.next();
			}
		}
		at ^= 1;
	}
}

/* ---- Products -------------------------------------------------------------------------------- */

/* A place of lines of 64 bytes of k, with the swizzle of that size. */
HZ_DEVICE uint64_t weights_place(uint32_t address)
{
	return (uint64_t)((address & 0x3ffff) >> 4) | 1ull << 16 | 32ull << 32 | 2ull << 62;
}

/* One of 16 bytes of k behind each other, by eights of pixels and of k. */
HZ_DEVICE uint64_t pixels_place(uint32_t address, int eight_bytes)
{
	return (uint64_t)((address & 0x3ffff) >> 4) | (uint64_t)LINES << 16 |
	       (uint64_t)(eight_bytes >> 4) << 32;
}

/* A warpgroup that multiplies: 80 pixels. */
template <int DTYPE, int KIND>
HZ_DEVICE void multiply(const hzi_quat_conv &p, memory &s, int rank, int group)
{
	const int lane = threadIdx.x % 32;
	float acc[4][SUMS];
	const int lead = min(LEAD, (int)p.group[0].taps);
	ring_position<STAGES> ring;
	ring_position<2> x_ring;
	int begun = 0;

	if (group == 1)
		bar_sync(4, 256);
	for (int t = blockIdx.x / HZI_QC_CLUSTER; t < p.tiles; t += gridDim.x / HZI_QC_CLUSTER) {
		const tile o = tile_of(p, t, rank);
		const int row = o.channel + threadIdx.x % 128 / 32 * 16 + lane / 4;
		int e = EXPONENT_MAX, next;

		find_places(p, s.to[group], s.pre[group], o, group);
#pragma unroll 1
		for (int g = 0; g < 2 * p.groups; g++) {
			const int phase = g >= p.groups;
			const hzi_quat_conv_group &f = p.group[g - phase * p.groups];
			const int eight_bytes = 16 * (p.flat ? 8 : f.pitch);

			if (phase && g == p.groups) {
				transform(acc);
				scale_sums(acc, 0.25f);
			}
#pragma unroll 1
			for (int k = 0; k < p.x.channels; k += HZI_QC_IN) {
				const uint32_t x = shared_address(s.x[x_ring.at][0]) +
						   group * (PIXELS / 8) * eight_bytes;

				mbarrier_wait(shared_address(&s.x_full[x_ring.at]), x_ring.parity);
				/* One lane reads, which then says that it has done so. */
				next = lane == 0 ? s.exponent[x_ring.at] : 0;
				next = __shfl_sync(~0u, next, 0);
				if (next != e && (g | k))
					scale_sums(acc, rescale(e, next));
				e = next;
#pragma unroll 1
				for (int i = 0; i < f.taps; i++) {
					const uint64_t a = weights_place(
						shared_address(s.w[ring.at][0]));
					const uint64_t b = pixels_place(
						x + p.at[f.tap + i].line * 16, eight_bytes);
					const int add = g | k | i;

					mbarrier_wait(shared_address(&s.full[ring.at]),
						      ring.parity);
					keep(acc);
					wgmma_fence();
#pragma unroll
					for (int c = 0; c < HZI_QC_IN / 16; c++) {
#pragma unroll
						for (int sum = 0; sum < 4; sum++)
							wgmma<false>(
								acc[sum],
								a + (sum * WEIGHTS + c * 32) / 16,
								b + (right_plane(phase, sum) *
								     PLANE + c * 2 * LINES * 16) /
									    16,
								add | c);
					}
					wgmma_commit();
					keep(acc);
					wgmma_wait<0>();
					keep(acc);
					if (lane < 2)
						mbarrier_arrive_cluster(cluster_map(
							shared_address(&s.empty[ring.at]), lane));
					ring.next();
					if (group == 0 && ++begun == lead)
						bar_arrive(4, 256);
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
	const uint32_t rank = begin_block<HZI_QC_CONVERTERS>(s);

	if (group < 2) {
		setmaxnreg_dec<56>();
		if (threadIdx.x < 32 * HZI_QC_CONVERTERS)
			load_pixels<DTYPE>(p, s, rank);
		else if (threadIdx.x == 32 * HZI_QC_CONVERTERS)
			load_weights(p, s, rank);
	} else {
		setmaxnreg_inc<200>();
		multiply<DTYPE, KIND>(p, s, rank, group - 2);
	}
	cluster_end();
}

#endif

#define CONV(name, dtype, kind) \
	extern "C" __global__ __launch_bounds__(HZI_QC_THREADS, 1) void \
	name(const __grid_constant__ hzi_quat_conv p) \
	HZ_HOPPER_BODY((kernel<dtype, kind>(p)))
#define CONVS(suffix, dtype) \
	CONV(quat_conv_##suffix, dtype, HZI_QC_PLAIN) \
	CONV(quat_conv_usual_##suffix, dtype, HZI_QC_USUAL) \
	CONV(quat_conv_finish_##suffix, dtype, HZI_QC_ANY)
CONVS(f16, HZ_F16)
CONVS(bf16, HZ_BF16)
CONV(quat_conv_any, HZI_QC_OTHERS, HZI_QC_ANY)
