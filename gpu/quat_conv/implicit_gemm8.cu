/*
 * implicit_gemm8.cu - quaternion convolutions by wgmma, 8 real products for each product
 *
 * SPDX-License-Identifier: BSD-2-Clause
 *
 * The tile of a block is 64 output channels by 160 pixels: 20 rows of 8 pixels, or 160 rows where
 * there is one column. A step is a tap group and 32 input channels. Seven warps load the inputs
 * that the taps read and convert them to f16 planes in shared memory, once for all taps; the wgmma
 * of a tap reads them from an offset of its own. Packed weights come by TMA; each of the two blocks
 * of a cluster loads half of them and multicasts it.
 *
 * Two warpgroups multiply half of the pixels each; a warpgroup has four accumulators of 64 x 80.
 * Eight products, of P = (H left / 4) (H right) and Q, give the conjugate of the result, Q - H P:
 * gpu/quat_gemm/wgmma.cu. Phase 0 accumulates Q from planes w, x, y, z, over all steps. Phase 1
 * begins with H Q / 4, adds -P plane by plane, and H times its accumulators is the result. Where a
 * tile has no more than two steps, its planes of phase 0 stay in shared memory, and are transformed
 * to the planes of phase 1 there.
 *
 * All pixels of a step have one scale, a power of two by their largest finite magnitude and that of
 * the steps before; accumulators are rescaled when it changes. The inputs of the next tile are
 * prefetched to L2.
 */
#include "gpu/quat_conv/mainloop.cuh"

#if HAVE_WGMMA

#define STAGES HZI_CONV8_STAGES
#define INPUTS HZI_CONV8_INPUTS
#define PLANE_BYTES HZI_CONV8_PLANE_BYTES
/*
 * Taps of the first group by which warpgroup 0 is ahead of warpgroup 1, so that one multiplies while
 * the other stores. Less than STAGES.
 */
#define LEAD 2
#define WEIGHTS_BYTES (HZI_CONV8_TILE_M * HZI_CONV8_TILE_K * 2)

struct memory {
	uint8_t w[STAGES][4][WEIGHTS_BYTES];
	uint8_t x[2][4][PLANE_BYTES];
	/* Of alternate tiles: the offsets of inputs in x, or OUTSIDE */
	int64_t src[2][INPUTS];
	int64_t dst[2][PIXELS], pre[2][PIXELS];	/* offsets of output pixels */
	/* Of alternate steps: the largest magnitude that a warp saw, as bits */
	uint32_t most[2][HZI_CONV8_CONVERTERS];
	int exponent[2];		/* of the scale of what is in x */
	uint64_t full[STAGES], empty[STAGES];
	uint64_t x_full[2], x_empty[2];
};

static_assert(sizeof(memory) + 1024 <= HZI_CONV8_SHARED_BYTES, "what the launcher asks for");

/* ---- Weights --------------------------------------------------------------------------------- */

HZ_DEVICE void load_weights(const hzi_quat_conv8 &p, memory &s, int rank)
{
	ring_position<STAGES> ring;

	for (int t = blockIdx.x / HZI_CONV8_CLUSTER; t < p.tiles; t += gridDim.x /
	     HZI_CONV8_CLUSTER) {
		const int channel = tile_of(p, t, rank).channel;

		for (int phase = 0; phase < 2; phase++) {
			for (int g = 0; g < p.groups; g++) {
				for (int k = 0; k < p.x.channels; k += HZI_CONV8_TILE_K) {
					for (int i = 0; i < p.group[g].taps; i++) {
						const int tap = p.at[p.group[g].tap + i].number;
						const uint32_t full =
							shared_address(&s.full[ring.at]);

						mbarrier_wait(shared_address(&s.empty[ring.at]),
							      ring.parity ^ 1);
						mbarrier_expect_tx(full, 4 * WEIGHTS_BYTES);
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

/* The largest finite magnitude that the converting warps saw in a step */
HZ_DEVICE float absmax_of_step(memory &s, float most, int at)
{
	const int warp = threadIdx.x / 32 % 8, lane = threadIdx.x % 32;
	const uint32_t here = __reduce_max_sync(~0u, __float_as_uint(most));

	if (lane == 0)
		s.most[at][warp] = here;
	converters_sync();
	return __uint_as_float(
		__reduce_max_sync(~0u, lane < HZI_CONV8_CONVERTERS ? s.most[at][lane] : 0));
}

template <int DTYPE>
HZ_DEVICE void load_pixels(const hzi_quat_conv8 &p, memory &s, int rank)
{
	const int first = blockIdx.x / HZI_CONV8_CLUSTER, step = gridDim.x / HZI_CONV8_CLUSTER;
	const int warp = threadIdx.x / 32 % 8, lane = threadIdx.x % 32;
	const int steps = p.groups * ((p.x.channels + HZI_CONV8_TILE_K - 1) / HZI_CONV8_TILE_K);
	ring_position<2> ring;
	int at = 0, e_of[2] = {0, 0};

	for (int t = first; t < p.tiles && t <= first + step; t += step)
		prefetch_inputs<DTYPE>(p, tile_of(p, t, rank));
	if (p.groups == 1 && first < p.tiles) {
		const tile o = tile_of(p, first, rank);

		find_inputs(p, s.src[at], o.row, o.col, 0);
	}
	for (int t = first; t < p.tiles; t += step) {
		const tile o = tile_of(p, t, rank);
		int e = EXPONENT_MAX;

#pragma unroll 1
		for (int g = 0; g < 2 * p.groups; g++) {
			const int phase = g >= p.groups, group = g - phase * p.groups;
			const int inputs = p.group[group].inputs;
			const bool here = DTYPE != HZI_CONV_ANY_DTYPE && phase && steps <= 2;

			/* Here, since phase 1 has to wait for free buffers anyway */
			if (g == p.groups && t + step < p.tiles) {
				if (t + 2 * step < p.tiles)
					prefetch_inputs<DTYPE>(p, tile_of(p, t + 2 * step, rank));
				if (p.groups == 1) {
					const tile next = tile_of(p, t + step, rank);

					find_inputs(p, s.src[at ^ 1], next.row, next.col, 0);
				}
			}
			if (p.groups > 1 && !here)
				find_inputs(p, s.src[at], o.row, o.col, group);
#pragma unroll 1
			for (int k = 0; k < p.x.channels; k += HZI_CONV8_TILE_K) {
				const uint32_t x = shared_address(s.x[ring.at][0]);

				mbarrier_wait(shared_address(&s.x_empty[ring.at]), ring.parity ^ 1);
				if (here) {
					/* With one step, phase 0 used the other buffer. */
					const int src = steps == 1 ? ring.at ^ 1 : ring.at;

					transform_planes(shared_address(s.x[src][0]), x, inputs,
							 warp, rescale(src ? e_of[1] : e_of[0], e));
				} else {
					float most = load_inputs<DTYPE>(p.x, s.src[at], inputs,
									warp, k, x, !phase);

					if (!phase)
						e = next_exponent(e, absmax_of_step(s, most,
										    ring.at));
					if (ring.at)
						e_of[1] = e;
					else
						e_of[0] = e;
					const float by = power_of_two(e);

					convert_inputs<DTYPE>(p.x, s.src[at], inputs, warp, k, x,
							      !phase, by, p.x.q.conj ? -by : by);
				}
				if (threadIdx.x % 256 == 0)
					s.exponent[ring.at] = e;
				/* Makes the planes visible to wgmma. */
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

/* Matrix descriptor of rows of 64 bytes of k, 64-byte swizzle */
HZ_DEVICE uint64_t weights_desc(uint32_t address)
{
	return (uint64_t)((address & 0x3ffff) >> 4) | 1ull << 16 | 32ull << 32 | 2ull << 62;
}

/*
 * Matrix descriptor without swizzle, 16 bytes of k in each row. stride_bytes: from 8 pixels to the
 * next 8
 */
HZ_DEVICE uint64_t pixels_desc(uint32_t address, int stride_bytes)
{
	return (uint64_t)((address & 0x3ffff) >> 4) | (uint64_t)INPUTS << 16 |
	       (uint64_t)(stride_bytes >> 4) << 32;
}

/* A multiplying warpgroup: 80 pixels */
template <int DTYPE, int EPILOGUE>
HZ_DEVICE void multiply(const hzi_quat_conv8 &p, memory &s, int rank, int group)
{
	const int lane = threadIdx.x % 32;
	float acc[4][ACC];
	const int lead = min(LEAD, (int)p.group[0].taps);
	ring_position<STAGES> ring;
	ring_position<2> x_ring;
	int begun = 0;

	if (group == 1)
		bar_sync(4, 256);
	for (int t = blockIdx.x / HZI_CONV8_CLUSTER; t < p.tiles; t += gridDim.x /
	     HZI_CONV8_CLUSTER) {
		const tile o = tile_of(p, t, rank);
		const int row = o.channel + threadIdx.x % 128 / 32 * 16 + lane / 4;
		int e = EXPONENT_MAX;

		find_outputs(p, s.dst[group], s.pre[group], o, group);
#pragma unroll 1
		for (int g = 0; g < 2 * p.groups; g++) {
			const int phase = g >= p.groups;
			const hzi_quat_conv8_group &f = p.group[g - phase * p.groups];
			const int stride_bytes = 16 * (p.flat ? 8 : f.pitch);

			if (phase && g == p.groups) {
				hadamard(acc);
				scale_acc(acc, 0.25f);
			}
#pragma unroll 1
			for (int k = 0; k < p.x.channels; k += HZI_CONV8_TILE_K) {
				const uint32_t x = shared_address(s.x[x_ring.at][0]) +
						   group * (PIXELS / 8) * stride_bytes;

				wait_inputs(s.x_full[x_ring.at], x_ring.parity,
					    s.exponent[x_ring.at], e, !(g | k), acc);
#pragma unroll 1
				for (int i = 0; i < f.taps; i++) {
					const uint64_t a = weights_desc(
						shared_address(s.w[ring.at][0]));
					const uint64_t b = pixels_desc(
						x + p.at[f.tap + i].input * 16, stride_bytes);
					const int add = g | k | i;

					mbarrier_wait(shared_address(&s.full[ring.at]),
						      ring.parity);
					keep_acc(acc);
					wgmma_fence();
#pragma unroll
					for (int c = 0; c < HZI_CONV8_TILE_K / 16; c++) {
#pragma unroll
						for (int sum = 0; sum < 4; sum++)
							wgmma<false>(
								acc[sum],
								a + (sum * WEIGHTS_BYTES + c *
								     32) / 16,
								b + (right_plane(phase, sum) *
								     PLANE_BYTES + c * 2 * INPUTS *
								     16) /
									    16,
								add | c);
					}
					wgmma_commit();
					keep_acc(acc);
					wgmma_wait<0>();
					keep_acc(acc);
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
		finish_tile<EPILOGUE, DTYPE>(p, s.dst[group], s.pre[group], acc, row, e, group);
	}
}

template <int DTYPE, int EPILOGUE>
HZ_DEVICE void kernel(const hzi_quat_conv8 &p)
{
	run_block<memory, 2, HZI_CONV8_CONVERTERS, 56, 200, load_pixels<DTYPE>, load_weights,
		  multiply<DTYPE, EPILOGUE>>(p);
}

#endif

CONV8_KERNELS(f16, HZI_CONV8_THREADS, HZ_F16)
CONV8_KERNELS(bf16, HZI_CONV8_THREADS, HZ_BF16)
CONV8_KERNEL(quat_conv_implicit_gemm8_strided, HZI_CONV8_THREADS, HZI_CONV_ANY_DTYPE,
	     HZI_CONV_EPILOGUE_FULL)
