/*
 * wgrad16.cuh - tiles of the gradient of weights by 16 real products, and their results
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#ifndef HZI_GPU_QUAT_CONV_WGRAD16_CUH
#define HZI_GPU_QUAT_CONV_WGRAD16_CUH

#include "gpu/quat_conv/gemm16.cuh"
#include "gpu/device/cluster.cuh"
#include "gpu/device/mbarrier.cuh"
#include "gpu/device/pdl.cuh"
#include "gpu/device/shared.cuh"

#define COLUMNS_MAX HZI_WGRAD16_COLUMNS_N512
/* Pitch of a warpgroup's 64 rows of accumulators in shared memory, floats */
#define ACC_PITCH (64 * HZI_WGRAD16_COLUMNS + 4)

template <bool N512>
struct shape {
	static constexpr int rows = N512 ? HZI_WGRAD16_ROWS_N512 : HZI_WGRAD16_ROWS;
	static constexpr int columns = N512 ? HZI_WGRAD16_COLUMNS_N512 : HZI_WGRAD16_COLUMNS;
	static constexpr int stages = N512 ? HZI_WGRAD16_STAGES_N512 : HZI_WGRAD16_STAGES;
};

/* The stages, then the accumulators in their place */
template <bool N512>
struct stage_memory {
	union {
		uint8_t of[shape<N512>::stages][shape<N512>::rows + shape<N512>::columns]
			  [UNIT_BYTES];
		float sums[2][64][ACC_PITCH];
	};
};

/* A unit of columns: its first component, the offsets of its tap in pixels, its first channel */
struct tap_columns {
	int column, at[3], tap, channel;
};

/* The tile and the split of a block */
struct work {
	int row, set;			/* row: the first component */
	int first, units;		/* units of columns */
	int begin, end;			/* TMA tiles of pixels */
	int split;

	__device__ __forceinline__ work(const hzi_quat_wgrad16 &p, int rows)
	{
		int i = blockIdx.x;

		row = i % p.tiles_m * rows * HZI_GEMM16_UNIT, i /= p.tiles_m;
		first = i % p.tiles_n, i /= p.tiles_n;
		set = i % p.sets, split = i / p.sets;

		const int tile = first;

		first = tile * p.units / p.tiles_n;
		units = (tile + 1) * p.units / p.tiles_n - first;
		begin = (int)((int64_t)split * p.b.all / p.splits);
		end = (int)((int64_t)(split + 1) * p.b.all / p.splits);
	}
};

/* Fills columns[], a unit by each thread; __syncthreads() must follow. */
HZ_DEVICE void find_columns(const hzi_quat_wgrad16 &p, const work &w, tap_columns *columns)
{
	const int unit = w.first + threadIdx.x, tap = unit / p.units_of_tap;
	const int channel = (unit - tap * p.units_of_tap) * (HZI_GEMM16_UNIT / 4);
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
 * full: one thread's copies have landed. empty: the eight multiplying warps of each block of the
 * cluster have read a stage. done: for multipliers_sync().
 */
template <int STAGES>
HZ_DEVICE void ring_init(const hzi_quat_wgrad16 &p, uint64_t (&full)[STAGES],
			 uint64_t (&empty)[STAGES], uint64_t &done)
{
	mbarrier_init(shared_address(&done), 256);
	for (int i = 0; i < STAGES; i++) {
		mbarrier_init(shared_address(&full[i]), 1);
		mbarrier_init(shared_address(&empty[i]), 8 * p.cluster);
	}
}

/* All barriers of the cluster are initialised, and the previous kernel has ended (PDL). */
HZ_DEVICE void begin_blocks(const hzi_quat_wgrad16 &p)
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
 * Waits until both multiplying warpgroups have read all stages. They may be in different code,
 * which bar.sync does not allow and an mbarrier does.
 */
HZ_DEVICE void multipliers_sync(uint64_t &done)
{
	mbarrier_arrive(shared_address(&done));
	mbarrier_wait(shared_address(&done), 0);
}

/* One of these warpgroups */
HZ_DEVICE void warpgroup_sync(int group)
{
	bar_sync(2 + group, 128);
}

/* The quaternion of 4 x 4 products of components, in rows of ACC_PITCH */
HZ_DEVICE float4 quaternion_of(const float *sums, bool conj_small, bool conj_big)
{
	/* The product of components a (left) and b (right) belongs to component a ^ b. */
	const float sign[4][4] = {{1, 1, 1, 1}, {1, -1, 1, -1}, {1, -1, -1, 1}, {1, 1, -1, -1}};
	float q[4] = {};

#pragma unroll
	for (int a = 0; a < 4; a++) {
		const float4 f = *(const float4 *)(sums + a * ACC_PITCH);
		const float v[4] = {f.x, f.y, f.z, f.w};

#pragma unroll
		for (int b = 0; b < 4; b++) {
			const bool negative = (conj_small && a) != (conj_big && b);

			q[a ^ b] += negative ? -sign[a][b] * v[b] : sign[a][b] * v[b];
		}
	}
	return make_float4(q[0], q[1], q[2], q[3]);
}

/*
 * Stores the results of a warpgroup's UNITS units of columns from accumulators in shared memory.
 * SWAPPED: the second and third of each four quaternions of a row are swapped.
 */
template <bool N512, int UNITS, bool SWAPPED = false>
HZ_DEVICE void store_results(const hzi_quat_wgrad16 &p, const work &w, const tap_columns *columns,
			     const float (*sums)[ACC_PITCH], int group)
{
	const int thread = threadIdx.x % 128;
	const int taps = p.b.taps[0] * p.b.taps[1] * p.b.taps[2];

#pragma unroll 1
	for (int i = thread; i < 16 * 16 * UNITS; i += 128) {
		const int row = i / (16 * UNITS), column = i % (16 * UNITS);
		const tap_columns &c = columns[column / 16];
		const int out = (w.row + (N512 ? 0 : HZI_GEMM16_UNIT * group)) / 4 + row;
		const int channel = c.channel + column % 16;
		const int of = out / p.outs, column_group = channel / p.padded_channels;
		const int group_of = w.set * p.groups_of_set + of;

		if (of != column_group || of >= p.groups_of_set || group_of >= p.groups ||
		    channel - column_group * p.padded_channels >= p.channels)
			continue;

		const int slot = !SWAPPED ? column :
				 column & ~3 | column << 1 & 2 | column >> 1 & 1;

		const int64_t dst = (int64_t)w.split * p.groups * p.outs + group_of * p.outs + out -
				    of * p.outs;

		((float4 *)p.parts)[(dst * taps + c.tap) * p.channels + channel -
				    column_group * p.padded_channels] =
			quaternion_of(&sums[4 * row][4 * slot], p.conj_small,
				      p.conj_big);
	}
}

#endif
