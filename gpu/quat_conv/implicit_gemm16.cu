/*
 * implicit_gemm16.cu - 16-bit quaternion convolutions by 16 real products, wgmma
 *
 * SPDX-License-Identifier: BSD-2-Clause
 *
 * The pack kernel makes a 4 x 4 matrix of each weight. A block multiplies 128 pixels by 64 output
 * channels: rows are pixels, columns components of outputs, k components of input channels, for
 * each tap. The two blocks of a cluster have different pixels and the same outputs; each loads half
 * of the weights and multicasts them. See gemm16.cuh.
 */
#include "gpu/quat_conv/gemm16.cuh"
#include "gpu/device/tma.cuh"
#include "gpu/device/wgmma_f16.cuh"

#if HAVE_WGMMA

/* Packs one weight per thread; zeros where there is only padding. */
template <int DTYPE>
HZ_DEVICE void pack_weights(const hzi_quat_conv16 &p)
{
	const int channels = p.units * (HZI_GEMM16_UNIT / 4);
	const int64_t i = (int64_t)blockIdx.x * HZI_CONV16_PACK_THREADS + threadIdx.x;
	const int channel = (int)(i % channels);
	const int64_t index = i / channels;
	const int tap = (int)(index % p.taps), out = (int)(index / p.taps);
	const float sign = p.conj_x ? -1 : 1;
	quat w = {0, 0, 0, 0};

	pdl_launch_dependents();
	pdl_wait();
	if (out >= p.tiles_n * HZI_CONV16_TILE_OUTS)
		return;
	if (out < p.outs && channel < p.channels) {
		w = quat_load(p.w, out * p.w.row +
					   ((int64_t)tap * p.channels + channel) * p.w.col);
		if (p.w.conj)
			w = quat_conj(w);
	}
#pragma unroll
	for (int r = 0; r < 4; r++) {
		const float4 f = quat_row(w, r);
		const quat q = {f.x, sign * f.y, sign * f.z, sign * f.w};

		const int64_t dst = ((int64_t)4 * out + r) * p.taps + tap;

		*(uint2 *)(p.matrix + (dst * channels + channel) * 4) = quat_pack(DTYPE, q);
	}
}

struct memory {
	uint8_t x[HZI_CONV16_STAGES][HZI_CONV16_TMA_TILES][UNIT_BYTES];
	uint8_t w[HZI_CONV16_STAGES][4 * HZI_CONV16_TILE_OUTS * 128];
	uint64_t full[HZI_CONV16_STAGES], empty[HZI_CONV16_STAGES];
};

static_assert(sizeof(memory) + 1024 <= HZI_CONV16_SHARED_BYTES, "what the launcher asks for");

/* Tile t of a cluster: the blocks have neighbouring tiles of pixels, and the same outputs. */
struct tile {
	int m, n;

	__device__ __forceinline__ tile(const hzi_quat_conv16 &p, int t, int rank)
		: m(2 * (t / p.tiles_n) + rank), n(t % p.tiles_n)
	{
	}
};

/* The producer thread: its block's pixels, and half of the weights for both blocks */
HZ_DEVICE void load(const hzi_quat_conv16 &p, memory &s, int rank)
{
	const hzi_quat_tma_tiles &b = p.b;
	ring_position<HZI_CONV16_STAGES> ring;

	for (int t = blockIdx.x / 2; t < p.pairs; t += gridDim.x / 2) {
		const tile o(p, t, rank);
		int at[HZI_CONV16_TMA_TILES][4], step = 0;

#pragma unroll
		for (int i = 0; i < HZI_CONV16_TMA_TILES; i++) {
			tma_tile_origin(b, o.m * HZI_CONV16_TMA_TILES + i, at[i]);
#pragma unroll
			for (int d = 0; d < 4; d++)
				at[i][d] *= b.step[d];
		}
		for (int tap = 0; tap < p.taps; tap++) {
			const int t2 = tap % b.taps[2], outer = tap / b.taps[2];
			const int t1 = outer % b.taps[1], t0 = outer / b.taps[1];

			for (int u = 0; u < p.units; u++, step++) {
				const uint32_t full = shared_address(&s.full[ring.at]);

				mbarrier_wait(shared_address(&s.empty[ring.at]), ring.parity ^ 1);
				mbarrier_expect_tx(full, HZI_CONV16_STAGE_BYTES);
#pragma unroll
				for (int i = 0; i < HZI_CONV16_TMA_TILES; i++) {
					const int src[4] = {
						at[i][0] + b.each[2] * t2 + b.base[2],
						at[i][1] + b.each[1] * t1 + b.base[1],
						at[i][2] + b.each[0] * t0 + b.base[0], at[i][3],
					};

					tma_load_5d(shared_address(s.x[ring.at][i]), p.x,
						    2 * HZI_GEMM16_UNIT * u, src, full);
				}
				tma_load_2d_multicast(3, shared_address(s.w[ring.at]) +
								 rank * 2 * HZI_CONV16_TILE_OUTS *
						      128, p.weights, 2 * HZI_GEMM16_UNIT * step,
						      (2 * o.n + rank) * 2 * HZI_CONV16_TILE_OUTS,
						      full);
				ring.next();
			}
		}
	}
}

/* A multiplying warpgroup: one TMA tile of 64 pixels by 64 outputs */
template <int DTYPE>
HZ_DEVICE void convolve_tiles(const hzi_quat_conv16 &p, memory &s, int rank, int group)
{
	const int lane = threadIdx.x % 32, odd = lane % 2;
	const int steps = p.taps * p.units;
	const uint32_t mask_c = p.out.c.conj ? 0x80000000 : 0;
	ring_position<HZI_CONV16_STAGES> ring;

	for (int t = blockIdx.x / 2; t < p.pairs; t += gridDim.x / 2) {
		const tile o(p, t, rank);
		float acc[2 * HZI_CONV16_TILE_OUTS];
		int last = 0;

#pragma unroll
		for (int i = 0; i < 2 * HZI_CONV16_TILE_OUTS; i++)
			acc[i] = 0;
		for (int k = 0; k < steps; k++) {
			const uint64_t a = wgmma_desc_k(shared_address(s.x[ring.at][group]));
			const uint64_t b = wgmma_desc_k(shared_address(s.w[ring.at]));

			mbarrier_wait(shared_address(&s.full[ring.at]), ring.parity);
			wgmma_keep(acc);
			wgmma_fence();
#pragma unroll
			for (int c = 0; c < HZI_GEMM16_UNIT / 16; c++)
				wgmma<false, false, DTYPE>(acc, a + 2 * c, b + 2 * c, 1);
			wgmma_commit();
			wgmma_keep(acc);
			wgmma_wait<1>();
			wgmma_keep(acc);
			if (k && lane < 2)
				mbarrier_arrive_cluster(cluster_map(shared_address(&s.empty[last]),
								    lane));
			last = ring.at;
			ring.next();
		}
		wgmma_wait<0>();
		wgmma_keep(acc);
		if (lane < 2)
			mbarrier_arrive_cluster(cluster_map(shared_address(&s.empty[last]), lane));

		int64_t dst[2], pre[2];
		bool inside[2];

#pragma unroll
		for (int h = 0; h < 2; h++) {
			int at[4], index = threadIdx.x % 128 / 32 * 16 + lane / 4 + 8 * h;

			tma_tile_origin(p.b, o.m * HZI_CONV16_TMA_TILES + group, at);
			dst[h] = pre[h] = 0;
			inside[h] = true;
#pragma unroll
			for (int d = 0; d < 4; d++) {
				at[d] += index % p.b.tile[d];
				index /= p.b.tile[d];
				dst[h] += at[d] * p.c_stride[d];
				pre[h] += at[d] * p.pre_stride[d];
				inside[h] &= at[d] < p.count[d];
			}
		}
		/* Two adjacent lanes have half of two quaternions each: they exchange halves. */
#pragma unroll
		for (int j = 0; j < HZI_CONV16_TILE_OUTS / 2; j += 2) {
			const int row = HZI_CONV16_TILE_OUTS * o.n + 2 * (j + odd) + lane % 4 / 2;

#pragma unroll
			for (int h = 0; h < 2; h++) {
				const float *const even = &acc[4 * j + 2 * h];
				const float *const next = even + 4;
				const float x = __shfl_xor_sync(~0u, odd ? even[0] : next[0], 1);
				const float y = __shfl_xor_sync(~0u, odd ? even[1] : next[1], 1);
				const quat q = odd ? quat{x, y, next[0], next[1]} :
						     quat{even[0], even[1], x, y};

				if (!inside[h] || row >= p.outs)
					continue;
				if (p.no_epilogue)
					quat_store(p.out.c, dst[h] + row * p.out.c.row,
						   quat_flip_signs(q, mask_c));
				else
					quat_finish_row(p.out, dst[h], pre[h], row, q);
			}
		}
	}
}

template <int DTYPE>
HZ_DEVICE void convolve(const hzi_quat_conv16 &p)
{
	memory &s = *(memory *)shared_start();
	const int group = __shfl_sync(~0u, threadIdx.x / 128, 0);
	const uint32_t rank = cluster_rank();

	if (threadIdx.x == 0) {
		for (int i = 0; i < HZI_CONV16_STAGES; i++) {
			mbarrier_init(shared_address(&s.full[i]), 1);
			mbarrier_init(shared_address(&s.empty[i]), 2 * 8);
		}
		mbarrier_init_fence();
	}
	cluster_begin();
	if (group < 2) {
		setmaxnreg_inc<232>();
		convolve_tiles<DTYPE>(p, s, rank, group);
	} else {
		setmaxnreg_dec<40>();
		if (threadIdx.x == 256)
			load(p, s, rank);
	}
	cluster_end();
}

#endif

#define CONV(name, dtype) \
	extern "C" __global__ __launch_bounds__(HZI_CONV16_THREADS, 1) void \
	name(const __grid_constant__ hzi_quat_conv16 p) \
	HZ_HOPPER_BODY(convolve<dtype>(p))
CONV(quat_conv_implicit_gemm16_f16, HZ_F16)
CONV(quat_conv_implicit_gemm16_bf16, HZ_BF16)

extern "C" __global__ __launch_bounds__(HZI_CONV16_PACK_THREADS) void
quat_conv_implicit_gemm16_pack_f16(const __grid_constant__ hzi_quat_conv16 p)
HZ_HOPPER_BODY(pack_weights<HZ_F16>(p))

extern "C" __global__ __launch_bounds__(HZI_CONV16_PACK_THREADS) void
quat_conv_implicit_gemm16_pack_bf16(const __grid_constant__ hzi_quat_conv16 p)
HZ_HOPPER_BODY(pack_weights<HZ_BF16>(p))
