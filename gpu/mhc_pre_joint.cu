/*
 * mhc_pre_joint.cu - gradients of four streams and of phi in one pass, on Hopper
 *
 * SPDX-License-Identifier: BSD-2-Clause
 *
 * A block has 64 channels of all four streams, a warp 8 of these, and takes every so many tiles of
 * 16 tokens. The warp keeps phi of its channels, as two parts of bf16, and its sums of dphi in
 * registers. dx of a tile is put in the place of x in shared memory, and copied from there.
 */
#include "gpu/mhc_pre.cuh"
#include "gpu/mhc_pre_joint.h"

#define TILE HZI_JOINT_TILE

/*
 * A block for each tile. Its words, four of a lane together: draw by tokens, as mma takes a left
 * matrix 16 x 16 and 16 x 8 (6 words; the rest of bf16: 6 more), and by rows of phi, as it takes
 * three right matrices 16 x 8 (12 likewise).
 */
extern "C" __global__ void __launch_bounds__(128)
	mhc_pre_records(const __grid_constant__ hzi_mhc_records p)
{
	__shared__ float draw[TILE][HZI_JOINT_ROWS];
	const int64_t first = (int64_t)blockIdx.x * TILE;
	uint32_t *record = p.records + (int64_t)blockIdx.x * HZI_JOINT_RECORD;

	grid_next();
	grid_wait();
	for (int e = threadIdx.x; e < TILE * HZI_JOINT_ROWS; e += 128) {
		const int r = e / HZI_JOINT_ROWS, k = e % HZI_JOINT_ROWS;
		const int64_t t = first + r;

		draw[r][k] = t < p.tokens && k < p.m ? p.draw[t * p.m + k] : 0;
	}
	for (int e = threadIdx.x; e < TILE * HZI_JOINT_COEFS; e += 128) {
		const int k = e % HZI_JOINT_COEFS;
		const int64_t t = first + e / HZI_JOINT_COEFS;
		float v = 0;

		if (t < p.tokens)
			v = k < 16 ? (p.a ? p.a[t * 16 + k] : 0) :
			    k < 20 ? (p.p ? p.p[t * 4 + k - 16] : 0) : k == 20 ? p.own[t] : 0;
		record[e] = __float_as_uint(v);
	}
	__syncthreads();
	for (int e = threadIdx.x; e < HZI_JOINT_WORDS; e += 128) {
		const int lane = e / 4 % 32, word = e / 128 * 4 + e % 4, w = word % 6;
		const int group = lane / 4, pair = lane % 4 * 2;
		float low, high;
		uint32_t rest, whole;

		if (word < 12) {
			const int token = group + w % 2 * 8, k = w / 2 * 8 + pair;

			low = draw[token][k];
			high = draw[token][k + 1];
		} else {
			const int token = pair + w % 2 * 8, k = w / 2 * 8 + group;

			low = draw[token][k];
			high = draw[token + 1][k];
		}
		whole = split_pair(low, high, rest);
		record[TILE * HZI_JOINT_COEFS + e] = word / 6 % 2 ? rest : whole;
	}
}

#if __CUDA_ARCH__ >= 900
#include "gpu/tma.cuh"

#define PIECE (2 * HZI_JOINT_CHANNELS)	/* bytes of a stream of a token */
#define LINE (4 * PIECE + 16)		/* of a token's: rows meet no bank twice */
#define DU_LINE (PIECE + 16)
#define EIGHTS (HZI_JOINT_CHANNELS / 8)
#define STAGES HZI_JOINT_STAGES

struct joint_memory {
	uint8_t x[STAGES][TILE][LINE], dy[STAGES][TILE][LINE], du[STAGES][TILE][DU_LINE];
	struct {
		float coefs[TILE][HZI_JOINT_COEFS];
		uint4 words[HZI_JOINT_WORDS / 128][32];
	} record[STAGES];
};

static_assert(sizeof(joint_memory) + 1024 <= HZI_JOINT_BYTES, "shared memory");

struct joint_place {
	int channel, channels;		/* the first, of so many */
	int tiles, split;		/* tiles: of this block */
};

HZ_DEVICE int tile_of(const hzi_mhc_joint &p, const joint_place &b, int t)
{
	return b.split + t * p.splits;
}

/* Tokens of a tile */
HZ_DEVICE int tokens_of(const hzi_mhc_joint &p, int tile)
{
	const int left = (int)p.tokens - tile * TILE;

	return left < TILE ? left : TILE;
}

/* Pieces of 16 bytes, the e-th of a stage's: its token, stream and channel */
HZ_DEVICE void piece_of(int e, int &token, int &i, int &c)
{
	token = e / (4 * EIGHTS);
	i = e / EIGHTS % 4;
	c = e % EIGHTS * 8;
}

/* A tile, if it is one, on its way into its stage */
HZ_DEVICE void load_tile(const hzi_mhc_joint &p, const joint_place &b, joint_memory &m, int t)
{
	const int stage = t % STAGES, e = threadIdx.x;
	const int tile = tile_of(p, b, t), first = tile * TILE;

	if (t < b.tiles) {
		const int tokens = tokens_of(p, tile);
		int token, i, c;

#pragma unroll
		for (int pass = 0; pass < 2; pass++) {
			piece_of(pass * HZI_JOINT_THREADS + e, token, i, c);

			const bool copies = token < tokens && c < b.channels;
			const int64_t t_x =
				copies ? near_place(p.x, first + token, i, b.channel + c) : 0;

			copy_or_clear(shared_address(&m.x[stage][token][i * PIECE + c * 2]),
				      (const uint16_t *)p.x.data + t_x, copies);
			if (p.dy.data) {
				const int64_t t_dy = copies ? near_place(p.dy, first + token, i,
									 b.channel + c) : 0;

				copy_or_clear(
					shared_address(&m.dy[stage][token][i * PIECE + c * 2]),
					(const uint16_t *)p.dy.data + t_dy, copies);
			}
		}
		if (p.du.data && e < TILE * EIGHTS) {
			token = e / EIGHTS;
			c = e % EIGHTS * 8;

			const bool copies = token < tokens && c < b.channels;
			const int64_t at =
				copies ? near_place(p.du, first + token, 0, b.channel + c) : 0;

			copy_or_clear(shared_address(&m.du[stage][token][c * 2]),
				      (const uint16_t *)p.du.data + at, copies);
		}
		for (int piece = e; piece < HZI_JOINT_RECORD / 4; piece += HZI_JOINT_THREADS)
			copy_async(shared_address((uint32_t *)&m.record[stage] + piece * 4),
				   p.records + (int64_t)tile * HZI_JOINT_RECORD + piece * 4);
	}
	copy_group();
}

/* dx of a tile from its stage */
HZ_DEVICE void store_tile(const hzi_mhc_joint &p, const joint_place &b, joint_memory &m, int t)
{
	const int tile = tile_of(p, b, t);
	const int tokens = tokens_of(p, tile);

#pragma unroll
	for (int pass = 0; pass < 2; pass++) {
		int token, i, c;

		piece_of(pass * HZI_JOINT_THREADS + threadIdx.x, token, i, c);
		if (token < tokens && c < b.channels)
			*(uint4 *)((uint16_t *)p.dx.data +
				   near_place(p.dx, tile * TILE + token, i, b.channel + c)) =
				*(const uint4 *)&m.x[t % STAGES][token][i * PIECE + c * 2];
	}
}

HZ_DEVICE void load_turned(uint32_t *r, uint32_t address)
{
	asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
		     : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(address) : "memory");
}

/* c += A b: A 16 x 8 by rows, b 8 x 8 by columns */
HZ_DEVICE void multiply_half(float *c, const uint32_t *a, uint32_t b)
{
	asm("mma.sync.aligned.m16n8k8.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, "
	    "{%4, %5}, {%6}, {%0, %1, %2, %3};"
	    : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]) : "r"(a[0]), "r"(a[1]), "r"(b));
}

/* A product of 16 x 24 and 24 x 8 */
HZ_DEVICE void multiply_rows(float *c, const uint32_t *a, const uint32_t *b)
{
	multiply_bf16(c, a, b[0], b[1]);
	multiply_half(c, a + 4, b[2]);
}

/* phi of a warp's 8 channels in each stream: right matrices of 24 rows */
struct joint_slice {
	uint32_t high[4][3], low[4][3];
};

HZ_DEVICE void load_phi(const hzi_mhc_joint &p, const joint_place &b, joint_slice &phi)
{
	const int lane = threadIdx.x % 32, c = threadIdx.x / 32 * 8 + lane / 4;

#pragma unroll
	for (int i = 0; i < 4; i++) {
		const int64_t at = i * p.channels + b.channel + c;
		const float gain = p.gain && c < b.channels ? p.gain[at] : 1;

#pragma unroll
		for (int e = 0; e < 3; e++) {
			const int k = e * 8 + lane % 4 * 2;
			const float *from = p.phi + k * 4 * p.channels + at;
			const float low = k < p.m && c < b.channels ? from[0] * gain : 0;
			const float high =
				k + 1 < p.m && c < b.channels ? from[4 * p.channels] * gain : 0;

			phi.high[i][e] = split_pair(low, high, phi.low[i][e]);
		}
	}
}

/* sum [pair of streams][8 rows of phi][] += draw x of a tile */
template <int DTYPE>
HZ_DEVICE void add_dphi(joint_memory &m, int stage, const uint4 *words, float sum[2][3][4])
{
	const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
	const int token = lane % 8 + lane / 16 * 8, stream = lane / 8 % 2;
	const uint32_t *high = (const uint32_t *)words, *low = high + 6;

#pragma unroll
	for (int i = 0; i < 2; i++) {
		uint32_t x[4], rest[4];

		load_turned(x, shared_address(
				       &m.x[stage][token][(2 * i + stream) * PIECE + warp * 16]));
		if (DTYPE == HZ_F16) {
#pragma unroll
			for (int e = 0; e < 4; e++)
				x[e] = split_pair(f16_low(x[e]), f16_high(x[e]), rest[e]);
		}
#pragma unroll
		for (int tile = 0; tile < 3; tile++) {
			multiply_bf16(sum[i][tile], x, high[2 * tile], high[2 * tile + 1]);
			multiply_bf16(sum[i][tile], x, low[2 * tile], low[2 * tile + 1]);
			if (DTYPE == HZ_F16)
				multiply_bf16(sum[i][tile], rest, high[2 * tile],
					      high[2 * tile + 1]);
		}
	}
}

template <int DTYPE>
HZ_DEVICE uint32_t pack(float low, float high)
{
	return DTYPE == HZ_F16 ? to_f16x2(low, high) : to_bf16x2(low, high);
}

/* dx of a tile in the place of x; sum: what phi gives, [stream] as mma leaves it */
template <int DTYPE>
HZ_DEVICE void make_dx(const hzi_mhc_joint &p, const joint_place &b, joint_memory &m, int stage,
		       int tile, float sum[4][4])
{
	const int lane = threadIdx.x % 32, c = threadIdx.x / 32 * 8 + lane % 4 * 2;

#pragma unroll
	for (int half = 0; half < 2; half++) {
		const int r = lane / 4 + half * 8;
		const float4 *coefs = (const float4 *)m.record[stage].coefs[r];
		const float own = coefs[5].x;

#pragma unroll
		for (int i = 0; i < 4; i++) {
			float low, high;

			unpack(DTYPE, *(uint32_t *)&m.x[stage][r][i * PIECE + c * 2], low, high);
			sum[i][half * 2] = fmaf(own, low, sum[i][half * 2]);
			sum[i][half * 2 + 1] = fmaf(own, high, sum[i][half * 2 + 1]);
		}
		if (p.du.data) {
			const float4 weight = coefs[4];
			const float w[4] = {weight.x, weight.y, weight.z, weight.w};
			float low, high;

			unpack(DTYPE, *(uint32_t *)&m.du[stage][r][c * 2], low, high);
#pragma unroll
			for (int i = 0; i < 4; i++) {
				sum[i][half * 2] = fmaf(w[i], low, sum[i][half * 2]);
				sum[i][half * 2 + 1] = fmaf(w[i], high, sum[i][half * 2 + 1]);
			}
		}
		if (p.dy.data) {
#pragma unroll
			for (int j = 0; j < 4; j++) {
				const float4 row = coefs[j];
				const float a[4] = {row.x, row.y, row.z, row.w};
				float low, high;

				unpack(DTYPE, *(uint32_t *)&m.dy[stage][r][j * PIECE + c * 2], low,
				       high);
#pragma unroll
				for (int i = 0; i < 4; i++) {
					sum[i][half * 2] = fmaf(a[i], low, sum[i][half * 2]);
					sum[i][half * 2 + 1] =
						fmaf(a[i], high, sum[i][half * 2 + 1]);
				}
			}
		}
#pragma unroll
		for (int i = 0; i < 4; i++) {
			if (p.accumulate && r < tokens_of(p, tile)) {
				float low, high;

				unpack(DTYPE,
				       *(const uint32_t *)((const uint16_t *)p.dx.data +
							   near_place(p.dx, tile * TILE + r, i,
								 b.channel + c)), low, high);
				sum[i][half * 2] += low;
				sum[i][half * 2 + 1] += high;
			}
			*(uint32_t *)&m.x[stage][r][i * PIECE + c * 2] =
				pack<DTYPE>(sum[i][half * 2], sum[i][half * 2 + 1]);
		}
	}
}

HZ_DEVICE void store_dphi(const hzi_mhc_joint &p, const joint_place &b, const float sum[2][3][4])
{
	const int lane = threadIdx.x % 32;
	const int64_t c = b.channel + threadIdx.x / 32 * 8 + lane / 4;

#pragma unroll
	for (int e = 0; e < 24; e++) {
		const int i = e / 12 * 2 + e % 4 / 2, k = e % 12 / 4 * 8 + lane % 4 * 2 + e % 2;

		if (k < p.m)
			p.partial[((int64_t)(b.split * p.m + k) * 4 + i) * p.channels + c] =
				sum[e / 12][e % 12 / 4][e % 4];
	}
}
#endif

template <int DTYPE>
HZ_DEVICE void joint(const hzi_mhc_joint &p)
{
#if __CUDA_ARCH__ >= 900
	joint_memory &m = *(joint_memory *)shared_start();
	const int tiles = ((int)p.tokens + TILE - 1) / TILE;
	const int warp = threadIdx.x / 32;
	joint_place b;
	joint_slice phi;
	float dphi[2][3][4] = {};

	b.split = blockIdx.x % p.splits;
	b.channel = blockIdx.x / p.splits * HZI_JOINT_CHANNELS;
	b.channels = (int)p.channels - b.channel < HZI_JOINT_CHANNELS ?
			     (int)p.channels - b.channel : HZI_JOINT_CHANNELS;
	b.tiles = (tiles - b.split + p.splits - 1) / p.splits;

	const bool has_channels = warp * 8 < b.channels;

	grid_next();
	grid_wait();
#pragma unroll
	for (int t = 0; t < STAGES; t++)
		load_tile(p, b, m, t);
	load_phi(p, b, phi);
	copy_wait_for<STAGES - 1>();
	__syncthreads();
	for (int t = 0; t < b.tiles; t++) {
		const int stage = t % STAGES;
		const int tile = tile_of(p, b, t);

		if (has_channels) {
			const int lane = threadIdx.x % 32;
			float sum[4][4] = {};
			uint4 words[3];

#pragma unroll
			for (int e = 0; e < 3; e++)
				words[e] = m.record[stage].words[3 + e][lane];
			add_dphi<DTYPE>(m, stage, words, dphi);
#pragma unroll
			for (int e = 0; e < 3; e++)
				words[e] = m.record[stage].words[e][lane];

			const uint32_t *high = (const uint32_t *)words, *low = high + 6;

#pragma unroll
			for (int i = 0; i < 4; i++) {
				multiply_rows(sum[i], high, phi.high[i]);
				multiply_rows(sum[i], high, phi.low[i]);
				multiply_rows(sum[i], low, phi.high[i]);
			}
			__syncwarp();
			if (p.dx.data)
				make_dx<DTYPE>(p, b, m, stage, tile, sum);
		}
		/* Of tiles t + 1 .. t + STAGES - 2 the next is there; tile t - 1 was stored. */
		copy_wait_for<STAGES - 3>();
		__syncthreads();
		if (p.dx.data)
			store_tile(p, b, m, t);
		if (t >= 1)
			load_tile(p, b, m, t - 1 + STAGES);
	}
	if (p.partial && has_channels)
		store_dphi(p, b, dphi);
#endif
}

#define JOINT(name, dtype) \
	extern "C" __global__ void __launch_bounds__(HZI_JOINT_THREADS, HZI_JOINT_BLOCKS) \
		name(const __grid_constant__ hzi_mhc_joint p) \
	{ \
		joint<dtype>(p); \
	}

JOINT(mhc_pre_joint_f16, HZ_F16)
JOINT(mhc_pre_joint_bf16, HZ_BF16)
