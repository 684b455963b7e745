/*
 * wgrad16.cuh - tiles of gradients of weights by sixteen products, and their results
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#ifndef HZI_QUAT_DIRECT_WEIGHTS_CUH
#define HZI_QUAT_DIRECT_WEIGHTS_CUH

#include "gpu/quat_conv/gemm16.cuh"
#include "gpu/device/cluster.cuh"
#include "gpu/device/mbarrier.cuh"
#include "gpu/device/pdl.cuh"
#include "gpu/device/shared.cuh"

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

/* What a block does. */
struct work {
	int row, set, first, units;	/* row: the first of components; units of columns */
	int begin, end;			/* boxes of pixels */
	int split;

	__device__ __forceinline__ work(const hzi_quat_direct_weights &p, int rows)
	{
		int i = blockIdx.x;

		row = i % p.tiles_m * rows * HZI_QD_UNIT, i /= p.tiles_m;
		first = i % p.tiles_n, i /= p.tiles_n;
		set = i % p.sets, split = i / p.sets;

		const int tile = first;

		first = tile * p.units / p.tiles_n;
		units = (tile + 1) * p.units / p.tiles_n - first;
		begin = (int)((int64_t)split * p.b.all / p.splits);
		end = (int)((int64_t)(split + 1) * p.b.all / p.splits);
	}
};

/* Of a unit of columns, by a thread each; before all threads meet */
HZ_DEVICE void find_columns(const hzi_quat_direct_weights &p, const work &w, place *columns)
{
	const int unit = w.first + threadIdx.x, tap = unit / p.units_of_tap;
	const int channel = (unit - tap * p.units_of_tap) * (HZI_QD_UNIT / 4);
	const int t2 = tap % p.b.taps[2], outer = tap / p.b.taps[2];
	const int t1 = outer % p.b.taps[1], t0 = outer / p.b.taps[1];

	if (threadIdx.x >= w.units)
		return;
	columns[threadIdx.x] = {
		w.set * p.column_step + 4 * channel,
		{p.b.each[0] * t0 + p.b.base[0], p.b.each[1] * t1 + p.b.base[1],
		 p.b.each[2] * t2 + p.b.base[2]},
		tap, channel,
	};
}

/*
 * Of stages: one copies, and the warps that multiply, of all blocks, say that they have read; done:
 * all of both warpgroups that do.
 */
template <int STAGES>
HZ_DEVICE void ring_init(const hzi_quat_direct_weights &p, uint64_t (&full)[STAGES],
			 uint64_t (&empty)[STAGES], uint64_t &done)
{
	mbarrier_init(shared_address(&done), 256);
	for (int i = 0; i < STAGES; i++) {
		mbarrier_init(shared_address(&full[i]), 1);
		mbarrier_init(shared_address(&empty[i]), 8 * p.cluster);
	}
}

/* Blocks have their barriers, and the kernel ahead has ended. */
HZ_DEVICE void blocks_begin(const hzi_quat_direct_weights &p)
{
	pdl_launch_dependents();
	__syncthreads();
	if (p.cluster > 1) {
		cluster_arrive();
		cluster_wait();
	}
	pdl_wait();
}

/*
 * Both warpgroups that multiply, when nothing is read any more: through different code, which a
 * barrier in shared memory is made for.
 */
HZ_DEVICE void both_meet(uint64_t &done)
{
	mbarrier_arrive(shared_address(&done));
	mbarrier_wait(shared_address(&done), 0);
}

/* One of them */
HZ_DEVICE void group_meets(int group)
{
	bar_sync(2 + group, 128);
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

/*
 * Results of a warpgroup of so many units of columns, whose sums lie in rows of SUM_ROW. SWAPPED:
 * of each four columns' quaternions the two in the middle have changed places.
 */
template <bool WIDE, int UNITS, bool SWAPPED = false>
HZ_DEVICE void store_results(const hzi_quat_direct_weights &p, const work &w, const place *columns,
			     const float (*sums)[SUM_ROW], int group)
{
	const int thread = threadIdx.x % 128;
	const int taps = p.b.taps[0] * p.b.taps[1] * p.b.taps[2];

#pragma unroll 1
	for (int i = thread; i < 16 * 16 * UNITS; i += 128) {
		const int row = i / (16 * UNITS), column = i % (16 * UNITS);
		const place &c = columns[column / 16];
		const int out = (w.row + (WIDE ? 0 : HZI_QD_UNIT * group)) / 4 + row;
		const int channel = c.channel + column % 16;
		const int of = out / p.outs, seen = channel / p.seen;
		const int group_of = w.set * p.together + of;

		if (of != seen || of >= p.together || group_of >= p.groups ||
		    channel - seen * p.seen >= p.channels)
			continue;

		const int slot = !SWAPPED ? column :
				 column & ~3 | column << 1 & 2 | column >> 1 & 1;

		const int64_t to = (int64_t)w.split * p.groups * p.outs + group_of * p.outs + out -
				   of * p.outs;

		((float4 *)p.parts)[(to * taps + c.tap) * p.channels + channel - seen * p.seen] =
			quaternion_of(&sums[4 * row][4 * slot], p.conj_small,
				      p.conj_big);
	}
}

#endif
