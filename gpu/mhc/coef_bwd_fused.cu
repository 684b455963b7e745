/*
 * coef_bwd_fused.cu - dx and dphi of four 16-bit streams in one pass over x, sm_90a
 *
 * SPDX-License-Identifier: BSD-2-Clause
 *
 * A block has 128 channels of all four streams and a split of the tiles of 16 tokens. Tiles go
 * through a ring of stages in shared memory: one warp loads them by TMA, eight compute, one stores
 * dx, which overwrites x in the stage. Each of the eight has 16 channels, with phi in two terms of
 * bf16 and the accumulators of dphi in registers. Blocks that run at the same time read whole
 * tokens.
 */
#include "gpu/mhc/coef.cuh"
#include "gpu/mhc/coef_bwd_fused.h"

#define TILE HZI_MHC_BWD_FUSED_TILE

/* Only sm_90a has this code. */
#if !defined(__CUDA_ARCH__) || defined(__CUDA_ARCH_FEAT_SM90_ALL)
#include "gpu/device/mma.cuh"
#include "gpu/device/tma.cuh"

#define ROW_BYTES 128			/* bytes of a stream of a token, swizzled */
#define PLANE_BYTES (TILE * ROW_BYTES)		/* of a stream of a tile */
#define STAGES HZI_MHC_BWD_FUSED_STAGES
#define HALVES 2			/* of 64 channels each */
#define WORKERS (4 * HALVES)		/* warps; two more load and store */

struct tile_stage {
	uint8_t x[HALVES][4 * PLANE_BYTES], dy[HALVES][4 * PLANE_BYTES], du[HALVES][PLANE_BYTES];
	uint8_t draw[HZI_MHC_BWD_FUSED_WORDS * 4];
	float coefs[TILE][HZI_MHC_BWD_FUSED_COEFS];
	uint8_t pad[-(HALVES * 9 * PLANE_BYTES + HZI_MHC_BWD_FUSED_RECORD * 4) & 1023];
};

struct memory {
	tile_stage stage[STAGES];
	uint64_t full[STAGES], done[STAGES], empty[STAGES];
};

static_assert(sizeof(memory) + 1024 <= HZI_MHC_BWD_FUSED_BYTES, "shared memory");

struct block_work {
	int channel, channels;		/* first channel, number of channels */
	int tiles, split;		/* tiles: of this block */
	int stages;			/* in use */
};

/* The stage of a tile and the parity of its barrier */
struct ring_slot {
	int at;
	uint32_t parity;

	__device__ void next(const block_work &b)
	{
		if (++at == b.stages) {
			at = 0;
			parity ^= 1;
		}
	}
};

HZ_DEVICE int first_token(const hzi_mhc_bwd_fused &p, const block_work &b, int t)
{
	return (b.split + t * p.splits) * TILE;
}

/* ---- Loads and stores, one thread each ------------------------------------------------------- */

/* Loads both halves of `streams` streams of a tile. */
HZ_DEVICE void load_planes(uint8_t *dst, int half_bytes, int streams, const hzi_tensor_map &map,
			   const block_work &b, int token, uint32_t barrier)
{
	for (int e = 0; e < streams * HALVES; e++) {
		const int i = e / HALVES, h = e % HALVES;

		tma_load_3d(shared_address(dst + h * half_bytes + i * PLANE_BYTES), map,
			    2 * b.channel + h * ROW_BYTES, token, i, barrier);
	}
}

HZ_DEVICE void load_tiles(const hzi_mhc_bwd_fused &p, const block_work &b, memory &m)
{
	const uint32_t bytes =
		HALVES * (4 + (p.dy.data ? 4 : 0) + (p.du.data ? 1 : 0)) * PLANE_BYTES +
		HZI_MHC_BWD_FUSED_RECORD * 4;
	ring_slot ring = {0, 1};

	tma_prefetch_map(p.x_map);
	for (int t = 0; t < b.tiles; t++, ring.next(b)) {
		tile_stage &s = m.stage[ring.at];
		const uint32_t full = shared_address(&m.full[ring.at]);
		const int token = first_token(p, b, t);

		mbarrier_wait(shared_address(&m.empty[ring.at]), ring.parity);
		mbarrier_expect_tx(full, bytes);
		load_planes(s.x[0], sizeof(s.x[0]), 4, p.x_map, b, token, full);
		if (p.dy.data)
			load_planes(s.dy[0], sizeof(s.dy[0]), 4, p.dy_map, b, token, full);
		if (p.du.data)
			load_planes(s.du[0], sizeof(s.du[0]), 1, p.du_map, b, token, full);
		bulk_copy(shared_address(s.draw),
			  p.records + (int64_t)(token / TILE) * HZI_MHC_BWD_FUSED_RECORD,
			  HZI_MHC_BWD_FUSED_RECORD * 4, full);
	}
}

HZ_DEVICE void store_planes(const hzi_mhc_bwd_fused &p, const block_work &b, int token,
			    const tile_stage &s)
{
	for (int e = 0; e < 4 * HALVES; e++) {
		const int i = e / HALVES, h = e % HALVES;

		tma_store_3d(p.dx_map, 2 * b.channel + h * ROW_BYTES, token, i,
			     shared_address(s.x[h] + i * PLANE_BYTES));
	}
	tma_store_commit();
}

/* Stores dx. A stage is free once the TMA store has read it. */
HZ_DEVICE void store_tiles(const hzi_mhc_bwd_fused &p, const block_work &b, memory &m)
{
	ring_slot ring = {0, 0}, old = ring;

	for (int t = 0; t < b.tiles; t++, ring.next(b)) {
		mbarrier_wait(shared_address(&m.done[ring.at]), ring.parity);
		if (p.dx.data)
			store_planes(p, b, first_token(p, b, t), m.stage[ring.at]);
		if (t == 0)
			continue;
		tma_store_wait_read<1>();
		mbarrier_arrive(shared_address(&m.empty[old.at]));
		old.next(b);
	}
	tma_store_wait_read<0>();
}

/* ---- Compute --------------------------------------------------------------------------------- */

/* phi of 16 channels a warp in each stream: B fragments of 24 rows */
struct phi_fragments {
	uint32_t high[2][4][3], low[2][4][3];
};

HZ_DEVICE void load_phi(const hzi_mhc_bwd_fused &p, const block_work &b, phi_fragments &phi)
{
	const int lane = threadIdx.x % 32;

#pragma unroll
	for (int e = 0; e < 24; e++) {
		const int half = e / 12, i = e / 3 % 4, part = e % 3;
		const int c = threadIdx.x / 32 * 16 + half * 8 + lane / 4;
		const int k = part * 8 + lane % 4 * 2;
		const int64_t at = i * p.channels + b.channel + c;
		const float gain = p.gain && c < b.channels ? p.gain[at] : 1;
		const float *src = p.phi + k * 4 * p.channels + at;
		const float low = k < p.m && c < b.channels ? src[0] * gain : 0;
		const float high =
			k + 1 < p.m && c < b.channels ? src[4 * p.channels] * gain : 0;

		phi.high[half][i][part] = split_weights(low, high, phi.low[half][i][part]);
	}
}

template <int DTYPE>
HZ_DEVICE uint32_t pack(float low, float high)
{
	return DTYPE == HZ_F16 ? to_f16x2(low, high) : to_bf16x2(low, high);
}

/*
 * Offset in a stage of the row that this lane gives ldmatrix.x4: 8 channels of tokens 0 to 7 and 8
 * to 15 of a stream, then of the next stream. ^ 16 gives the warp's other 8 channels, swizzled.
 */
HZ_DEVICE uint32_t lane_row(void)
{
	const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, r = lane % 16;

	return (warp / 4 * 4 + lane / 16) * PLANE_BYTES + r * ROW_BYTES +
	       ((warp % 4 * 2 ^ (r & 7)) << 4);
}

/* sum [8 channels][pair of streams][8 rows of phi] += draw x of a tile */
template <int DTYPE>
HZ_DEVICE void add_dphi(const tile_stage &s, uint32_t row, float sum[2][2][3][4])
{
	const uint32_t draw = shared_address(s.draw) + threadIdx.x % 32 * 16;
	uint32_t right[3][4];		/* pieces of draw: high 0, 1; high 2, low 2; low 0, 1 */

#pragma unroll
	for (int q = 0; q < 3; q++)
		ldmatrix_x4_trans(right[q], draw + q * 512);
#pragma unroll
	for (int e = 0; e < 4; e++) {
		const int half = e / 2, pair = e % 2;
		float (*const dst)[4] = sum[half][pair];
		uint32_t x[4], remainder[4];

		ldmatrix_x4_trans(x,
				  (shared_address(s.x) + row + pair * 2 * PLANE_BYTES) ^ half * 16);
		/* Rows of the A fragment are channels of two streams. */
		const uint32_t transposed[4] = {x[0], x[2], x[1], x[3]};

#pragma unroll
		for (int i = 0; i < 4; i++)
			x[i] = DTYPE == HZ_F16 ? split_pair(f16_low(transposed[i]),
							    f16_high(transposed[i]), remainder[i]) :
						 transposed[i];
		mma_m16n8k16<HZ_BF16>(dst[0], x, right[0][0], right[0][1]);
		mma_m16n8k16<HZ_BF16>(dst[1], x, right[0][2], right[0][3]);
		mma_m16n8k16<HZ_BF16>(dst[2], x, right[1][0], right[1][1]);
		mma_m16n8k16<HZ_BF16>(dst[0], x, right[2][0], right[2][1]);
		mma_m16n8k16<HZ_BF16>(dst[1], x, right[2][2], right[2][3]);
		mma_m16n8k16<HZ_BF16>(dst[2], x, right[1][2], right[1][3]);
		if (DTYPE == HZ_F16) {
			mma_m16n8k16<HZ_BF16>(dst[0], remainder, right[0][0], right[0][1]);
			mma_m16n8k16<HZ_BF16>(dst[1], remainder, right[0][2], right[0][3]);
			mma_m16n8k16<HZ_BF16>(dst[2], remainder, right[1][0], right[1][1]);
		}
	}
}

/* Accumulators of a token: sum [stream][channel] += weight [stream] v [channel] */
HZ_DEVICE void add_weighted(float (*sum)[4], int half, const float4 &weight, float low, float high)
{
	const float w[4] = {weight.x, weight.y, weight.z, weight.w};

#pragma unroll
	for (int i = 0; i < 4; i++) {
		sum[i][half * 2] = fmaf(w[i], low, sum[i][half * 2]);
		sum[i][half * 2 + 1] = fmaf(w[i], high, sum[i][half * 2 + 1]);
	}
}

/* Multiplies x of two tokens by powers of two. */
template <int DTYPE>
HZ_DEVICE void scale_pairs(uint32_t (&v)[2][4], float even, float odd)
{
#pragma unroll
	for (int e = 0; e < 8; e++) {
		uint32_t &pair = v[e / 4][e % 4];
		float low, high;

		unpack(DTYPE, pair, low, high);
		pair = pack<DTYPE>(low * (e % 2 ? odd : even), high * (e % 2 ? odd : even));
	}
}

/* dx of a tile, over x in the stage */
template <int DTYPE>
HZ_DEVICE void make_dx(const hzi_mhc_bwd_fused &p, const block_work &b, tile_stage &s,
		       uint32_t row, int token, const phi_fragments &phi)
{
	const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
	const uint32_t draw = shared_address(s.draw) + lane * 16;
	const float4 *coefs[2] = {(const float4 *)s.coefs[lane / 4],
				  (const float4 *)s.coefs[lane / 4 + 8]};
	uint32_t left[3][4];		/* as in add_dphi() */

#pragma unroll
	for (int q = 0; q < 3; q++)
		ldmatrix_x4(left[q], draw + q * 512);
#pragma unroll
	for (int group = 0; group < 2; group++) {
		const uint32_t x_row = (shared_address(s.x) + row) ^ group * 16;
		float sum[4][4] = {};
		uint32_t v[2][4];

#pragma unroll
		for (int i = 0; i < 4; i++) {
			const uint32_t *high = phi.high[group][i], *low = phi.low[group][i];

			mma_m16n8k8<HZ_BF16>(sum[i], left[1][0], left[1][1], low[2]);
			mma_m16n8k16<HZ_BF16>(sum[i], left[0], low[0], low[1]);
			mma_m16n8k16<HZ_BF16>(sum[i], left[2], high[0], high[1]);
			mma_m16n8k16<HZ_BF16>(sum[i], left[1], high[2], high[2]);
			mma_m16n8k16<HZ_BF16>(sum[i], left[0], high[0], high[1]);
		}
#pragma unroll
		for (int pair = 0; pair < 2; pair++)
			ldmatrix_x4(v[pair], x_row + pair * 2 * PLANE_BYTES);
		if (coefs[0][5].y != 1 || coefs[1][5].y != 1)
			scale_pairs<DTYPE>(v, coefs[0][5].y, coefs[1][5].y);
#pragma unroll
		for (int e = 0; e < 8; e++) {
			const int i = e / 2, half = e % 2;
			const float own = coefs[half][5].x;
			float low, high;

			unpack(DTYPE, v[i / 2][i % 2 * 2 + half], low, high);
			sum[i][half * 2] = fmaf(own, low, sum[i][half * 2]);
			sum[i][half * 2 + 1] = fmaf(own, high, sum[i][half * 2 + 1]);
		}
		if (p.du.data) {
			const uint32_t du = shared_address(s.du[warp / 4]) + lane / 4 * ROW_BYTES +
					    lane % 4 * 4 +
					    (((warp % 4 * 2 + group) ^ lane / 4) << 4);

#pragma unroll
			for (int half = 0; half < 2; half++) {
				uint32_t word;
				float low, high;

				asm volatile("ld.shared.u32 %0, [%1];"
					     : "=r"(word) : "r"(du + half * 8 * ROW_BYTES)
					     : "memory");
				unpack(DTYPE, word, low, high);
				add_weighted(sum, half, coefs[half][4], low, high);
			}
		}
		if (p.dy.data) {
			const uint32_t dy_row = (shared_address(s.dy) + row) ^ group * 16;

#pragma unroll
			for (int pair = 0; pair < 2; pair++)
				ldmatrix_x4(v[pair], dy_row + pair * 2 * PLANE_BYTES);
#pragma unroll
			for (int e = 0; e < 8; e++) {
				const int j = e / 2, half = e % 2;
				float low, high;

				unpack(DTYPE, v[j / 2][j % 2 * 2 + half], low, high);
				add_weighted(sum, half, coefs[half][j], low, high);
			}
		}
		if (p.accumulate) {
			const int c = warp * 16 + group * 8 + lane % 4 * 2;

#pragma unroll
			for (int e = 0; e < 8; e++) {
				const int i = e / 2, half = e % 2, t = token + lane / 4 + half * 8;
				float low = 0, high = 0;

				if (t < (int)p.tokens && c < b.channels)
					unpack(DTYPE, *(const uint32_t *)((const uint16_t *)
							p.dx.data + offset32(p.dx, t, i,
							b.channel + c)), low, high);
				sum[i][half * 2] += low;
				sum[i][half * 2 + 1] += high;
			}
		}
#pragma unroll
		for (int pair = 0; pair < 2; pair++) {
#pragma unroll
			for (int e = 0; e < 4; e++) {
				const float *const src = &sum[pair * 2 + e / 2][e % 2 * 2];

				v[pair][e] = pack<DTYPE>(src[0], src[1]);
			}
			stmatrix_x4(x_row + pair * 2 * PLANE_BYTES, v[pair]);
		}
	}
}

HZ_DEVICE void store_dphi(const hzi_mhc_bwd_fused &p, const block_work &b,
			  const float sum[2][2][3][4])
{
	const int lane = threadIdx.x % 32, first = threadIdx.x / 32 * 16 + lane / 4;

#pragma unroll
	for (int e = 0; e < 48; e++) {
		const int half = e / 24, pair = e / 12 % 2, part = e / 4 % 3, at = e % 4;
		const int c = first + half * 8, i = pair * 2 + at / 2;
		const int k = part * 8 + lane % 4 * 2 + at % 2;

		if (k < p.m && c < b.channels)
			p.partial[((int64_t)(b.split * p.m + k) * 4 + i) * p.channels +
				  b.channel + c] = sum[half][pair][part][at];
	}
}

template <int DTYPE>
HZ_DEVICE void compute(const hzi_mhc_bwd_fused &p, const block_work &b, memory &m)
{
	const uint32_t row = lane_row();
	ring_slot ring = {0, 0};
	phi_fragments phi;
	float dphi[2][2][3][4] = {};

	load_phi(p, b, phi);
	for (int t = 0; t < b.tiles; t++, ring.next(b)) {
		tile_stage &s = m.stage[ring.at];

		mbarrier_wait(shared_address(&m.full[ring.at]), ring.parity);
		add_dphi<DTYPE>(s, row, dphi);
		if (p.dx.data) {
			make_dx<DTYPE>(p, b, s, row, first_token(p, b, t), phi);
			/* Makes dx visible to the TMA store. */
			fence_proxy_async();
		}
		__syncwarp();
		if (threadIdx.x % 32 == 0)
			mbarrier_arrive(shared_address(&m.done[ring.at]));
	}
	if (p.partial)
		store_dphi(p, b, dphi);
}
#endif

template <int DTYPE>
HZ_DEVICE void bwd_fused(const hzi_mhc_bwd_fused &p)
{
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
	memory &m = *(memory *)shared_start();
	const int tiles = ((int)p.tokens + TILE - 1) / TILE;
	const int warp = threadIdx.x / 32;
	block_work b;

	b.split = blockIdx.x % p.splits;
	b.channel = blockIdx.x / p.splits * HZI_MHC_BWD_FUSED_CHANNELS;
	b.channels = (int)p.channels - b.channel < HZI_MHC_BWD_FUSED_CHANNELS ?
			     (int)p.channels - b.channel : HZI_MHC_BWD_FUSED_CHANNELS;
	b.tiles = (tiles - b.split + p.splits - 1) / p.splits;
	/* With dy four stages are faster than five: 0.85 ms, not 0.89. */
	b.stages = p.dy.data ? STAGES - 1 : STAGES;
	pdl_launch_dependents();
	if (threadIdx.x < STAGES) {
		mbarrier_init(shared_address(&m.full[threadIdx.x]), 1);
		mbarrier_init(shared_address(&m.done[threadIdx.x]), WORKERS);
		mbarrier_init(shared_address(&m.empty[threadIdx.x]), 1);
	}
	if (threadIdx.x < 32)
		mbarrier_init_fence();
	__syncthreads();
	pdl_wait();
	if (warp < WORKERS) {
		setmaxnreg_inc<232>();
		compute<DTYPE>(p, b, m);
	} else {
		setmaxnreg_dec<40>();
		if (threadIdx.x % 32 == 0 && warp == WORKERS)
			load_tiles(p, b, m);
		else if (threadIdx.x % 32 == 0 && warp == WORKERS + 1)
			store_tiles(p, b, m);
	}
#endif
}

#define JOINT(name, dtype) \
	extern "C" __global__ void __launch_bounds__(HZI_MHC_BWD_FUSED_THREADS, 1) \
		name(const __grid_constant__ hzi_mhc_bwd_fused p) \
	{ \
		bwd_fused<dtype>(p); \
	}

JOINT(mhc_coef_bwd_fused_f16, HZ_F16)
JOINT(mhc_coef_bwd_fused_bf16, HZ_BF16)
