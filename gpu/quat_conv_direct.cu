/*
 * quat_conv_direct.cu - quaternion convolutions of 16 bits by sixteen products, on Hopper
 *
 * SPDX-License-Identifier: BSD-2-Clause
 *
 * Pixels are operands of the matrix units as they lie in memory: no planes, no scales. These are
 * twice as many products as there need be, but of few channels planes take longer than products.
 *
 * Gradients of weights: all products of a component of small and one of big are made, of which four
 * make a component of the result, at the end. A block has a tile of rows and columns, of a piece of the pixels: two warpgroups multiply, by 64
 * rows and up to 256 columns each, and a thread copies. Two blocks of a cluster, of different rows,
 * load one half of the columns each for both. What pieces add up to is put together by
 * quat_conv_few_sum, always in the same order.
 *
 * Convolutions: each weight is a matrix of 4 x 4, made before, and what is multiplied is a matrix of
 * pixels by components, for each tap.
 */
#include "gpu/quat_conv_direct.h"
#include "gpu/quat_gemm.cuh"
#include "gpu/tma.cuh"
#include "gpu/wgmma_f16.cuh"

#if HAVE_WGMMA

#define UNIT_BYTES HZI_QX_UNIT_BYTES
#define COLUMNS_MOST HZI_QX_COLUMNS_WIDE
/* A warpgroup's sums in shared memory at the end: 64 rows of so many floats */
#define SUM_ROW (64 * HZI_QX_COLUMNS + 4)

template <bool WIDE>
struct shape {
	static constexpr int rows = WIDE ? HZI_QX_ROWS_WIDE : HZI_QX_ROWS;
	static constexpr int columns = WIDE ? HZI_QX_COLUMNS_WIDE : HZI_QX_COLUMNS;
	static constexpr int stages = WIDE ? HZI_QX_STAGES_WIDE : HZI_QX_STAGES;
};

/* Where a box of big begins, but for that of pixels: column and places of a tap */
struct place {
	int column, at[3], tap, channel;
};

template <bool WIDE>
struct memory {
	union {
		uint8_t of[shape<WIDE>::stages][shape<WIDE>::rows + shape<WIDE>::columns]
			  [UNIT_BYTES];
		float sums[2][64][SUM_ROW];
	};
	uint64_t full[shape<WIDE>::stages], empty[shape<WIDE>::stages];
	place columns[COLUMNS_MOST];
};

static_assert(sizeof(memory<true>) + 1024 <= HZI_QX_BYTES &&
	      sizeof(memory<false>) + 1024 <= HZI_QX_BYTES, "what the launcher asks for");

/* What a block does. */
struct work {
	int row, set, first, units;	/* row: the first of components; units of columns */
	int begin, end;			/* boxes of pixels */
	int split;

	__device__ __forceinline__ work(const hzi_quat_direct &p, int rows)
	{
		int i = blockIdx.x;

		row = i % p.tiles_m * rows * HZI_QX_UNIT, i /= p.tiles_m;
		first = i % p.tiles_n, i /= p.tiles_n;
		set = i % p.sets, split = i / p.sets;

		const int tile = first;

		first = tile * p.units / p.tiles_n;
		units = (tile + 1) * p.units / p.tiles_n - first;
		begin = (int)((int64_t)split * p.b.all / p.splits);
		end = (int)((int64_t)(split + 1) * p.b.all / p.splits);
	}
};

/* ---- Copies ---------------------------------------------------------------------------------- */

HZ_DEVICE void copy_pixels(uint32_t to, const hzi_tensor_map &map, int column, const int (&at)[4],
			   uint32_t barrier)
{
	asm volatile("cp.async.bulk.tensor.5d.shared::cluster.global.mbarrier::complete_tx::bytes "
		     "[%0], [%1, {%3, %4, %5, %6, %7}], [%2];"
		     :: "r"(to), "l"(&map), "r"(barrier), "r"(column), "r"(at[0]), "r"(at[1]),
			"r"(at[2]), "r"(at[3]) : "memory");
}

/* The same to that place in both blocks of the cluster */
HZ_DEVICE void copy_pixels_to_both(uint32_t to, const hzi_tensor_map &map, int column,
				   const int (&at)[4], uint32_t barrier)
{
	asm volatile("cp.async.bulk.tensor.5d.shared::cluster.global.mbarrier::complete_tx::bytes"
		     ".multicast::cluster [%0], [%1, {%3, %4, %5, %6, %7}], [%2], %8;"
		     :: "r"(to), "l"(&map), "r"(barrier), "r"(column), "r"(at[0]), "r"(at[1]),
			"r"(at[2]), "r"(at[3]), "h"((uint16_t)3) : "memory");
}

template <bool WIDE>
HZ_DEVICE void load(const hzi_quat_direct &p, memory<WIDE> &s, const work &w, int rank)
{
	constexpr int ROWS = shape<WIDE>::rows;
	turn<shape<WIDE>::stages> ring;

	for (int i = w.begin; i < w.end; i++) {
		const uint32_t full = shared_address(&s.full[ring.at]);
		int at[4], rest = i;

#pragma unroll
		for (int d = 0; d < 4; d++) {
			at[d] = rest % p.b.boxes[d] * p.b.box[d];
			rest /= p.b.boxes[d];
		}
		barrier_wait(shared_address(&s.empty[ring.at]), ring.parity ^ 1);
		barrier_expect(full, (ROWS + w.units) * UNIT_BYTES);
#pragma unroll
		for (int r = 0; r < ROWS; r++)
			copy_pixels(shared_address(s.of[ring.at][r]), p.small,
				    2 * (w.set * p.row_step + w.row + r * HZI_QX_UNIT), at, full);
#pragma unroll
		for (int d = 0; d < 4; d++)
			at[d] *= p.b.step[d];
		for (int j = 0; j < w.units; j++) {
			const place &c = s.columns[j];
			const int from[4] = {at[0] + c.at[2], at[1] + c.at[1], at[2] + c.at[0],
					     at[3]};
			const uint32_t to = shared_address(s.of[ring.at][ROWS + j]);

			if (p.cluster == 1)
				copy_pixels(to, p.big, 2 * c.column, from, full);
			else if (j % 2 == rank)
				copy_pixels_to_both(to, p.big, 2 * c.column, from, full);
		}
		ring.next();
	}
}

/* ---- Products -------------------------------------------------------------------------------- */

/* Of both warpgroups, when nothing is read any more; of one of them */
HZ_DEVICE void all_meet(void)
{
	asm volatile("bar.sync 1, 256;" ::: "memory");
}

HZ_DEVICE void group_meets(int group)
{
	asm volatile("bar.sync %0, 128;" :: "r"(2 + group) : "memory");
}

/* Of 4 x 4 products of components, SUM_ROW apart, their quaternion */
HZ_DEVICE float4 quaternion_of(const float *sums, bool conj_small, bool conj_big)
{
	/* Of component a of the left factor and b of the right one, in component a ^ b */
	const float sign[4][4] = {{1, 1, 1, 1}, {1, -1, 1, -1}, {1, -1, -1, 1}, {1, 1, -1, -1}};
	float q[4] = {};

#pragma unroll
	for (int a = 0; a < 4; a++) {
		const float4 f = *(const float4 *)(sums + a * SUM_ROW);
		const float v[4] = {f.x, f.y, f.z, f.w};

#pragma unroll
		for (int b = 0; b < 4; b++) {
			const bool turned = (conj_small && a) != (conj_big && b);

			q[a ^ b] += turned ? -sign[a][b] * v[b] : sign[a][b] * v[b];
		}
	}
	return make_float4(q[0], q[1], q[2], q[3]);
}

/* A warpgroup, of so many units of columns from one of the tile on */
template <int DTYPE, bool WIDE, int UNITS>
HZ_DEVICE void products(const hzi_quat_direct &p, memory<WIDE> &s, const work &w, int group,
			int first)
{
	constexpr int ROWS = shape<WIDE>::rows;
	const int thread = threadIdx.x % 128, lane = threadIdx.x % 32;
	float acc[32 * UNITS];
	turn<shape<WIDE>::stages> ring;
	int last = 0;

#pragma unroll
	for (int i = 0; i < 32 * UNITS; i++)
		acc[i] = 0;
	for (int i = w.begin; i < w.end; i++) {
		const uint64_t a = wgmma_across(
			shared_address(s.of[ring.at][WIDE ? 0 : group]), UNIT_BYTES);
		const uint64_t b = wgmma_across(shared_address(s.of[ring.at][ROWS + first]),
						UNIT_BYTES);

		barrier_wait(shared_address(&s.full[ring.at]), ring.parity);
		wgmma_keep(acc);
		wgmma_fence();
#pragma unroll
		for (int c = 0; c < HZI_QX_PIXELS / 16; c++)
			wgmma<true, true, DTYPE>(acc, a + c * 128, b + c * 128, 1);
		wgmma_commit();
		wgmma_keep(acc);
		/* Those of the step ahead are done. */
		wgmma_wait<1>();
		wgmma_keep(acc);
		if (i > w.begin && lane < p.cluster)
			barrier_arrive_at(cluster_map(shared_address(&s.empty[last]), lane));
		last = ring.at;
		ring.next();
	}
	wgmma_wait<0>();
	wgmma_keep(acc);
	all_meet();
#pragma unroll
	for (int j = 0; j < 8 * UNITS; j++) {
		const int row = thread / 32 * 16 + lane / 4, column = 8 * j + 2 * (lane % 4);

		*(float2 *)&s.sums[group][row][column] = make_float2(acc[4 * j], acc[4 * j + 1]);
		*(float2 *)&s.sums[group][row + 8][column] =
			make_float2(acc[4 * j + 2], acc[4 * j + 3]);
	}
	group_meets(group);

	const int taps = p.b.taps[0] * p.b.taps[1] * p.b.taps[2];

#pragma unroll 1
	for (int i = thread; i < 16 * 16 * UNITS; i += 128) {
		const int row = i / (16 * UNITS), column = i % (16 * UNITS);
		const place &c = s.columns[first + column / 16];
		const int out = (w.row + (WIDE ? 0 : HZI_QX_UNIT * group)) / 4 + row;
		const int channel = c.channel + column % 16;
		const int of = out / p.outs, seen = channel / p.seen;
		const int group_of = w.set * p.together + of;

		if (of != seen || of >= p.together || group_of >= p.groups ||
		    channel - seen * p.seen >= p.channels)
			continue;

		const int64_t to = (int64_t)w.split * p.groups * p.outs + group_of * p.outs + out -
				   of * p.outs;

		((float4 *)p.parts)[(to * taps + c.tap) * p.channels + channel - seen * p.seen] =
			quaternion_of(&s.sums[group][4 * row][4 * column], p.conj_small,
				      p.conj_big);
	}
}

/* A warpgroup that has no columns: only that memory becomes free */
template <bool WIDE>
HZ_DEVICE void idle(const hzi_quat_direct &p, memory<WIDE> &s, const work &w)
{
	turn<shape<WIDE>::stages> ring;

	for (int i = w.begin; i < w.end; i++) {
		barrier_wait(shared_address(&s.full[ring.at]), ring.parity);
		if (threadIdx.x % 32 < p.cluster)
			barrier_arrive_at(cluster_map(shared_address(&s.empty[ring.at]),
						      threadIdx.x % 32));
		ring.next();
	}
	all_meet();
}

template <int DTYPE, bool WIDE>
HZ_DEVICE void kernel(const hzi_quat_direct &p)
{
	memory<WIDE> &s = *(memory<WIDE> *)shared_start();
	const int group = __shfl_sync(~0u, threadIdx.x / 128, 0);
	const work w(p, shape<WIDE>::rows);
	const uint32_t rank = cluster_rank();

	if (threadIdx.x == 0) {
		for (int i = 0; i < shape<WIDE>::stages; i++) {
			barrier_init(shared_address(&s.full[i]), 1);
			barrier_init(shared_address(&s.empty[i]), 8 * p.cluster);
		}
		barrier_init_fence();
	}
	if (threadIdx.x < w.units) {
		const int unit = w.first + threadIdx.x, tap = unit / p.units_of_tap;
		const int channel = (unit - tap * p.units_of_tap) * (HZI_QX_UNIT / 4);
		const int t2 = tap % p.b.taps[2], outer = tap / p.b.taps[2];
		const int t1 = outer % p.b.taps[1], t0 = outer / p.b.taps[1];

		s.columns[threadIdx.x] = {
			w.set * p.column_step + 4 * channel,
			{p.b.each[0] * t0 + p.b.base[0], p.b.each[1] * t1 + p.b.base[1],
			 p.b.each[2] * t2 + p.b.base[2]},
			tap, channel,
		};
	}
	grid_next();
	__syncthreads();
	if (p.cluster > 1) {
		cluster_arrive();
		cluster_wait();
	}
	grid_wait();
	if (group < 2) {
		const int half = (w.units + 1) / 2;
		const int units = !WIDE ? w.units : group ? w.units - half : half;
		const int first = WIDE && group ? half : 0;

		switch (units) {
		case 0:
			idle<WIDE>(p, s, w);
			break;
		case 1:
			products<DTYPE, WIDE, 1>(p, s, w, group, first);
			break;
		case 2:
			products<DTYPE, WIDE, 2>(p, s, w, group, first);
			break;
		case 3:
			products<DTYPE, WIDE, 3>(p, s, w, group, first);
			break;
		case 4:
			products<DTYPE, WIDE, 4>(p, s, w, group, first);
			break;
		}
	} else if (threadIdx.x % 32 == 0) {
		load<WIDE>(p, s, w, rank);
	}
	if (p.cluster > 1)
		cluster_end();
}

/* ---- Convolutions ---------------------------------------------------------------------------- */

/* Row r of the matrix of w, by columns: what becomes component r of w x */
HZ_DEVICE float4 row_of(quat w, int r)
{
	return r == 0 ? make_float4(w.w, -w.x, -w.y, -w.z) :
	       r == 1 ? make_float4(w.x, w.w, -w.z, w.y) :
	       r == 2 ? make_float4(w.y, w.z, w.w, -w.x) :
			make_float4(w.z, -w.y, w.x, w.w);
}

/* A thread has one weight, or zeros where there is none. */
template <int DTYPE>
HZ_DEVICE void make_matrix(const hzi_quat_direct_conv &p)
{
	const int channels = p.units * (HZI_QX_UNIT / 4);
	const int64_t i = (int64_t)blockIdx.x * HZI_QY_WEIGHTS + threadIdx.x;
	const int channel = (int)(i % channels);
	const int64_t rest = i / channels;
	const int tap = (int)(rest % p.taps), out = (int)(rest / p.taps);
	const float sign = p.conj_x ? -1 : 1;
	quat w = {0, 0, 0, 0};

	grid_next();
	grid_wait();
	if (out >= p.tiles_n * HZI_QY_OUTS)
		return;
	if (out < p.outs && channel < p.channels) {
		w = quat_load(p.w, out * p.w.row +
					   ((int64_t)tap * p.channels + channel) * p.w.col);
		if (p.w.conj)
			w = quat_conj(w);
	}
#pragma unroll
	for (int r = 0; r < 4; r++) {
		const float4 f = row_of(w, r);
		const quat q = {f.x, sign * f.y, sign * f.z, sign * f.w};

		const int64_t to = ((int64_t)4 * out + r) * p.taps + tap;

		*(uint2 *)(p.matrix + (to * channels + channel) * 4) = quat_pack(DTYPE, q);
	}
}

struct conv_memory {
	uint8_t x[HZI_QY_STAGES][HZI_QY_BOXES][UNIT_BYTES];
	uint8_t w[HZI_QY_STAGES][4 * HZI_QY_OUTS * 128];
	uint64_t full[HZI_QY_STAGES], empty[HZI_QY_STAGES];
};

static_assert(sizeof(conv_memory) + 1024 <= HZI_QY_BYTES, "what the launcher asks for");

/* Where box i begins; those behind the last are behind the last image. */
HZ_DEVICE void place_of_box(const hzi_quat_boxes &b, int i, int (&at)[4])
{
#pragma unroll
	for (int d = 0; d < 3; d++) {
		at[d] = i % b.boxes[d] * b.box[d];
		i /= b.boxes[d];
	}
	at[3] = i * b.box[3];
}

/* The tile of a block of the pair that does number t: two neighbours of the same outputs */
struct conv_tile {
	int m, n;

	__device__ __forceinline__ conv_tile(const hzi_quat_direct_conv &p, int t, int rank)
		: m(2 * (t / p.tiles_n) + rank), n(t % p.tiles_n)
	{
	}
};

/* Half of the weights from either block, for both */
HZ_DEVICE void load_conv(const hzi_quat_direct_conv &p, conv_memory &s, int rank)
{
	const hzi_quat_boxes &b = p.b;
	turn<HZI_QY_STAGES> ring;

	for (int t = blockIdx.x / 2; t < p.pairs; t += gridDim.x / 2) {
		const conv_tile tile(p, t, rank);
		int at[HZI_QY_BOXES][4], step = 0;

#pragma unroll
		for (int i = 0; i < HZI_QY_BOXES; i++) {
			place_of_box(b, tile.m * HZI_QY_BOXES + i, at[i]);
#pragma unroll
			for (int d = 0; d < 4; d++)
				at[i][d] *= b.step[d];
		}
		for (int tap = 0; tap < p.taps; tap++) {
			const int t2 = tap % b.taps[2], outer = tap / b.taps[2];
			const int t1 = outer % b.taps[1], t0 = outer / b.taps[1];

			for (int u = 0; u < p.units; u++, step++) {
				const uint32_t full = shared_address(&s.full[ring.at]);

				barrier_wait(shared_address(&s.empty[ring.at]), ring.parity ^ 1);
				barrier_expect(full, HZI_QY_STAGE_BYTES);
#pragma unroll
				for (int i = 0; i < HZI_QY_BOXES; i++) {
					const int from[4] = {
						at[i][0] + b.each[2] * t2 + b.base[2],
						at[i][1] + b.each[1] * t1 + b.base[1],
						at[i][2] + b.each[0] * t0 + b.base[0], at[i][3],
					};

					copy_pixels(shared_address(s.x[ring.at][i]), p.x,
						    2 * HZI_QX_UNIT * u, from, full);
				}
				copy_box_to(3, shared_address(s.w[ring.at]) +
					       rank * 2 * HZI_QY_OUTS * 128,
					    p.weights, 2 * HZI_QX_UNIT * step,
					    (2 * tile.n + rank) * 2 * HZI_QY_OUTS, full);
				ring.next();
			}
		}
	}
}

/* A warpgroup: a box of pixels of each tile */
template <int DTYPE>
HZ_DEVICE void convolve_boxes(const hzi_quat_direct_conv &p, conv_memory &s, int rank, int group)
{
	const int lane = threadIdx.x % 32, odd = lane % 2;
	const int steps = p.taps * p.units;
	const uint32_t turn_c = p.out.c.conj ? 0x80000000 : 0;
	turn<HZI_QY_STAGES> ring;

	for (int t = blockIdx.x / 2; t < p.pairs; t += gridDim.x / 2) {
		const conv_tile tile(p, t, rank);
		float acc[2 * HZI_QY_OUTS];
		int last = 0;

#pragma unroll
		for (int i = 0; i < 2 * HZI_QY_OUTS; i++)
			acc[i] = 0;
		for (int k = 0; k < steps; k++) {
			const uint64_t a = wgmma_lines(shared_address(s.x[ring.at][group]));
			const uint64_t b = wgmma_lines(shared_address(s.w[ring.at]));

			barrier_wait(shared_address(&s.full[ring.at]), ring.parity);
			wgmma_keep(acc);
			wgmma_fence();
#pragma unroll
			for (int c = 0; c < HZI_QX_UNIT / 16; c++)
				wgmma<false, false, DTYPE>(acc, a + 2 * c, b + 2 * c, 1);
			wgmma_commit();
			wgmma_keep(acc);
			wgmma_wait<1>();
			wgmma_keep(acc);
			if (k && lane < 2)
				barrier_arrive_at(cluster_map(shared_address(&s.empty[last]),
							      lane));
			last = ring.at;
			ring.next();
		}
		wgmma_wait<0>();
		wgmma_keep(acc);
		if (lane < 2)
			barrier_arrive_at(cluster_map(shared_address(&s.empty[last]), lane));

		int64_t to[2], pre[2];
		bool there[2];

#pragma unroll
		for (int h = 0; h < 2; h++) {
			int at[4], rest = threadIdx.x % 128 / 32 * 16 + lane / 4 + 8 * h;

			place_of_box(p.b, tile.m * HZI_QY_BOXES + group, at);
			to[h] = pre[h] = 0;
			there[h] = true;
#pragma unroll
			for (int d = 0; d < 4; d++) {
				at[d] += rest % p.b.box[d];
				rest /= p.b.box[d];
				to[h] += at[d] * p.c_stride[d];
				pre[h] += at[d] * p.pre_stride[d];
				there[h] &= at[d] < p.count[d];
			}
		}
		/* Of two neighbours each gets a quaternion of two. */
#pragma unroll
		for (int j = 0; j < HZI_QY_OUTS / 2; j += 2) {
			const int row = HZI_QY_OUTS * tile.n + 2 * (j + odd) + lane % 4 / 2;

#pragma unroll
			for (int h = 0; h < 2; h++) {
				const float *const even = &acc[4 * j + 2 * h];
				const float *const next = even + 4;
				const float x = __shfl_xor_sync(~0u, odd ? even[0] : next[0], 1);
				const float y = __shfl_xor_sync(~0u, odd ? even[1] : next[1], 1);
				const quat q = odd ? quat{x, y, next[0], next[1]} :
						     quat{even[0], even[1], x, y};

				if (!there[h] || row >= p.outs)
					continue;
				if (p.plain)
					quat_store(p.out.c, to[h] + row * p.out.c.row,
						   quat_turn_signs(q, turn_c));
				else
					quat_finish_row(p.out, to[h], pre[h], row, q);
			}
		}
	}
}

template <int DTYPE>
HZ_DEVICE void convolve(const hzi_quat_direct_conv &p)
{
	conv_memory &s = *(conv_memory *)shared_start();
	const int group = __shfl_sync(~0u, threadIdx.x / 128, 0);
	const uint32_t rank = cluster_rank();

	if (threadIdx.x == 0) {
		for (int i = 0; i < HZI_QY_STAGES; i++) {
			barrier_init(shared_address(&s.full[i]), 1);
			barrier_init(shared_address(&s.empty[i]), 2 * 8);
		}
		barrier_init_fence();
	}
	cluster_begin();
	if (group < 2) {
		registers_more<232>();
		convolve_boxes<DTYPE>(p, s, rank, group);
	} else {
		registers_less<40>();
		if (threadIdx.x == 256)
			load_conv(p, s, rank);
	}
	cluster_end();
}

#endif

#define DIRECT(name, dtype, wide) \
	extern "C" __global__ __launch_bounds__(HZI_QX_THREADS, 1) void \
	name(const __grid_constant__ hzi_quat_direct p) \
	HZ_HOPPER_BODY((kernel<dtype, wide>(p)))
DIRECT(quat_conv_direct_f16, HZ_F16, false)
DIRECT(quat_conv_direct_bf16, HZ_BF16, false)
DIRECT(quat_conv_direct_wide_f16, HZ_F16, true)
DIRECT(quat_conv_direct_wide_bf16, HZ_BF16, true)

#define CONV(name, dtype) \
	extern "C" __global__ __launch_bounds__(HZI_QY_THREADS, 1) void \
	name(const __grid_constant__ hzi_quat_direct_conv p) \
	HZ_HOPPER_BODY(convolve<dtype>(p))
CONV(quat_direct_conv_f16, HZ_F16)
CONV(quat_direct_conv_bf16, HZ_BF16)

extern "C" __global__ __launch_bounds__(HZI_QY_WEIGHTS) void
quat_direct_matrix_f16(const __grid_constant__ hzi_quat_direct_conv p)
HZ_HOPPER_BODY(make_matrix<HZ_F16>(p))

extern "C" __global__ __launch_bounds__(HZI_QY_WEIGHTS) void
quat_direct_matrix_bf16(const __grid_constant__ hzi_quat_direct_conv p)
HZ_HOPPER_BODY(make_matrix<HZ_BF16>(p))
