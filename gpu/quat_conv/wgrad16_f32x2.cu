/*
 * wgrad16_f32x2.cu - gradients of weights of quaternion convolutions of f32 in parts, on Hopper
 *
 * SPDX-License-Identifier: BSD-2-Clause
 *
 * As gpu/quat_conv/wgrad16.cu, but each number is two of f16, what f16 holds of it and what it
 * leaves, and each product is three: of the rests by the others and of these by themselves. Units
 * come as floats, of half as many pixels. Those of big become parts where they are, by two
 * warpgroups; of small, a warp that multiplies has 16 rows, whose parts are in its registers. What
 * a stage has been, in turn: copied (full), parts (ready), and read by all (empty).
 *
 * A unit of big has a scale by the largest so far, a warp's rows of small have another, and sums
 * follow these. The matrix units cut sums off at 24 bits: they have those of a step, which are
 * added up in registers.
 */
#include "gpu/quat_conv/wgrad16.cuh"
#include "gpu/quat_gemm/pack_planar.cuh"
#include "gpu/device/tma.cuh"
#include "gpu/device/wgmma_f16.cuh"

#if HAVE_WGMMA

#define PIXELS HZI_QX_SPLIT_PIXELS
#define HALF (UNIT_BYTES / 2)		/* 32 floats of pixels, or a part of 64 components */
#define CONVERTERS 256			/* threads */

template <bool WIDE>
struct memory {
	union {
		uint8_t of[shape<WIDE>::stages][shape<WIDE>::rows + shape<WIDE>::columns]
			  [UNIT_BYTES];
		float sums[2][64][SUM_ROW];
	};
	/* ready: units of big are parts. */
	uint64_t full[shape<WIDE>::stages], empty[shape<WIDE>::stages], ready[shape<WIDE>::stages];
	uint64_t done;
	/* Of units of big: what takes sums to its scale; the last scale; by warps, in turn */
	float by[shape<WIDE>::stages][COLUMNS_MOST];
	int exponent[COLUMNS_MOST];
	uint4 most[2][COLUMNS_MOST];
	place columns[COLUMNS_MOST];
};

static_assert(sizeof(memory<true>) + 1024 <= HZI_QX_BYTES &&
	      sizeof(memory<false>) + 1024 <= HZI_QX_BYTES, "what the launcher asks for");

/* ---- Copies ---------------------------------------------------------------------------------- */

/* Both halves of a unit */
HZ_DEVICE void copy_unit(bool both, uint32_t to, const hzi_tensor_map &map, int column,
			 const int (&at)[4], uint32_t barrier)
{
#pragma unroll
	for (int h = 0; h < 2; h++) {
		const int byte = 4 * column + 128 * h;

		if (both)
			tma_load_5d_multicast(3, to + h * HALF, map, byte, at, barrier);
		else
			tma_load_5d(to + h * HALF, map, byte, at, barrier);
	}
}

/*
 * A step's units, by a thread each of the warps that multiply; of big, either block of a cluster
 * copies half of the units for both.
 */
template <bool WIDE>
HZ_DEVICE void load(const hzi_quat_direct_weights &p, memory<WIDE> &s, const work &w, int i,
		    ring_position<shape<WIDE>::stages> &ring)
{
	constexpr int ROWS = shape<WIDE>::rows;
	const uint32_t full = shared_address(&s.full[ring.at]);
	const int warp = threadIdx.x / 32;

	if (threadIdx.x % 32 == 0 && i < w.end) {
		int at[4];

		place_of_box(p.b, i, at);
		mbarrier_wait(shared_address(&s.empty[ring.at]), ring.parity ^ 1);
		if (warp == 0)
			mbarrier_expect_tx(full, (ROWS + w.units) * UNIT_BYTES);
		for (int j = warp; j < ROWS + w.units; j += 8) {
			const uint32_t to = shared_address(s.of[ring.at][j]);

			if (j < ROWS) {
				copy_unit(false, to, p.small,
					  w.set * p.row_step + w.row + j * HZI_QD_UNIT, at, full);
			} else if (p.cluster == 1 || j % 2 == cluster_rank()) {
				const place &c = s.columns[j - ROWS];
				const int from[4] = {at[0] * p.b.step[0] + c.at[2],
						     at[1] * p.b.step[1] + c.at[1],
						     at[2] * p.b.step[2] + c.at[0], at[3]};

				copy_unit(p.cluster > 1, to, p.big, c.column, from, full);
			}
		}
	}
	__syncwarp();
	ring.next();
}

/* ---- Parts ----------------------------------------------------------------------------------- */

/* Two numbers in f16, and what these leave of them */
HZ_DEVICE void split(uint32_t &first, uint32_t &rest, float a, float b)
{
	first = to_f16x2(a, b);
	rest = to_f16x2(a - f16_low(first), b - f16_high(first));
}

/*
 * A unit of big in place, by a warpgroup: of its pixels a warp has four quaternions, and a thread
 * two of these, which lie apart so that neither loads nor stores of eight threads meet in a bank.
 * Lines are 128 bytes of a pixel, floats of half its components or parts of all, with the swizzle.
 */
HZ_DEVICE void convert(uint32_t unit, uint4 &most_of, int &e, float &by)
{
	const int lane = threadIdx.x % 32, warp = threadIdx.x % 128 / 32;
	const int h = lane % 2, pixel = lane / 16 * 8 + lane / 2 % 4 * 2 + lane / 8 % 2;
	const uint32_t from = unit + warp / 2 * HALF + pixel * 128, to = unit + pixel * 128;
	const int quaternion = warp % 2 * 4 + h, eight = 2 * warp + h;
	uint32_t most = MAGNITUDE_LEAST;
	uint4 u[PIXELS / 16][2];

#pragma unroll
	for (int t = 0; t < PIXELS / 16; t++) {
#pragma unroll
		for (int i = 0; i < 2; i++) {
			u[t][i] = shared_load(from + t * 2048 +
					  16 * (quaternion + 2 * i ^ pixel % 8));
			most = max(max(max(most, magnitude_of(u[t][i].x)),
				       max(magnitude_of(u[t][i].y), magnitude_of(u[t][i].z))),
				   magnitude_of(u[t][i].w));
		}
	}
	most = __reduce_max_sync(~0u, most);
	if (lane == 0)
		((uint32_t *)&most_of)[warp] = most;
	/* All have read before any writes. */
	bar_sync(4 + (int)threadIdx.x / 128, 128);

	const uint4 m = shared_load(shared_address(&most_of));
	const int next = next_exponent(e, max(max(m.x, m.y), max(m.z, m.w)));
	const float scale = power_of_two(next);

	by = rescale(e, next);
	e = next;
#pragma unroll
	for (int t = 0; t < PIXELS / 16; t++) {
		const uint32_t place = to + t * 2048 + 16 * (eight ^ pixel % 8);
		uint32_t first[4], rest[4];

#pragma unroll
		for (int i = 0; i < 2; i++) {
			const uint4 &v = u[t][i];

			split(first[2 * i], rest[2 * i], scale * __uint_as_float(v.x),
			      scale * __uint_as_float(v.y));
			split(first[2 * i + 1], rest[2 * i + 1], scale * __uint_as_float(v.z),
			      scale * __uint_as_float(v.w));
		}
		shared_store(place, first);
		shared_store(place + HALF, rest);
	}
}

template <bool WIDE>
HZ_DEVICE void convert_steps(memory<WIDE> &s, const work &w)
{
	constexpr int STAGES = shape<WIDE>::stages, ROWS = shape<WIDE>::rows;
	constexpr int UNITS = shape<WIDE>::columns / 2;
	const int group = threadIdx.x / 128 - 2;
	ring_position<STAGES> ring;
	int e[UNITS];

#pragma unroll
	for (int j = 0; j < UNITS; j++)
		e[j] = EXPONENT_MAX;
	for (int i = w.begin; i < w.end; i++) {
		mbarrier_wait(shared_address(&s.full[ring.at]), ring.parity);
#pragma unroll
		for (int j = 0; j < UNITS; j++) {
			const int unit = 2 * j + group;
			float by;

			if (unit >= w.units)
				break;
			convert(shared_address(s.of[ring.at][ROWS + unit]),
				s.most[(i - w.begin) % 2][unit], e[j], by);
			if (threadIdx.x % 128 == 0) {
				s.by[ring.at][unit] = by;
				s.exponent[unit] = e[j];
			}
		}
		/* The matrix units are to see it. */
		fence_proxy_async();
		mbarrier_arrive(shared_address(&s.ready[ring.at]));
		ring.next();
	}
}

/* ---- Products -------------------------------------------------------------------------------- */

/*
 * A warp's 16 rows of a unit of small: rows r and r + 8 are components 2 r and 2 r + 1 of its 16.
 * by: what takes sums so far to their scale, of exponent e.
 */
HZ_DEVICE void load_left(uint32_t unit, uint2 (&u)[4][2], int &e, float &by)
{
	const int lane = threadIdx.x % 32, warp = threadIdx.x % 128 / 32;
	const int pixel = 2 * (lane % 4), quaternion = warp % 2 * 4 + lane / 8;
	const uint32_t from = unit + warp / 2 * HALF + lane / 4 % 2 * 8;
	uint32_t most = MAGNITUDE_LEAST;

#pragma unroll
	for (int c = 0; c < 4; c++) {
#pragma unroll
		for (int i = 0; i < 2; i++) {
			const uint32_t at = from + (8 * c + pixel + i) * 128 +
					    16 * (quaternion ^ pixel + i);

			asm volatile("ld.shared.v2.b32 {%0, %1}, [%2];"
				     : "=r"(u[c][i].x), "=r"(u[c][i].y) : "r"(at) : "memory");
			most = max(max(most, magnitude_of(u[c][i].x)), magnitude_of(u[c][i].y));
		}
	}

	const int next = next_exponent(e, __reduce_max_sync(~0u, most));

	by = rescale(e, next);
	e = next;
}

/* Their parts: of either 16 pixels four registers are the left operand. */
HZ_DEVICE void split_left(const uint2 (&u)[4][2], float scale, uint32_t (&first)[8],
			  uint32_t (&rest)[8])
{
#pragma unroll
	for (int c = 0; c < 4; c++) {
		split(first[2 * c], rest[2 * c], scale * __uint_as_float(u[c][0].x),
		      scale * __uint_as_float(u[c][1].x));
		split(first[2 * c + 1], rest[2 * c + 1], scale * __uint_as_float(u[c][0].y),
		      scale * __uint_as_float(u[c][1].y));
	}
}

/* Registers have their values here: nothing of the compiler's moves past this place. */
HZ_DEVICE void keep_left(uint32_t (&a)[8])
{
#pragma unroll
	for (int i = 0; i < 8; i++)
		asm volatile("" : "+r"(a[i]) :: "memory");
}

/* A warpgroup, of so many units of columns from one of the tile on */
template <bool WIDE, int UNITS>
HZ_DEVICE void products(const hzi_quat_direct_weights &p, memory<WIDE> &s, const work &w, int group,
			int first_unit)
{
	constexpr int ROWS = shape<WIDE>::rows;
	const int lane = threadIdx.x % 32, row = WIDE ? 0 : group;
	float acc[UNITS][32], sums[32], by = 1;
	uint32_t first[8], rest[8];
	uint2 left[4][2];
	ring_position<shape<WIDE>::stages> ring, ahead;
	int e = EXPONENT_MAX;

#pragma unroll
	for (int i = 0; i < 32 * UNITS; i++)
		acc[i / 32][i % 32] = 0;
	for (int i = 0; i < shape<WIDE>::stages - 1; i++)
		load<WIDE>(p, s, w, w.begin + i, ahead);
	mbarrier_wait(shared_address(&s.full[0]), 0);
	load_left(shared_address(s.of[0][row]), left, e, by);
	for (int i = w.begin; i < w.end; i++) {
		const uint32_t big = shared_address(s.of[ring.at][ROWS + first_unit]);
		const bool last = i + 1 == w.end;
		ring_position<shape<WIDE>::stages> next = ring;
		float next_by = 1;

		if (!last)
			next.next();
		split_left(left, power_of_two(e), first, rest);
		mbarrier_wait(shared_address(&s.ready[ring.at]), ring.parity);
#pragma unroll
		for (int u = 0; u < UNITS; u++) {
			const uint64_t b = wgmma_desc_mn(big + u * UNIT_BYTES, 0);

			/* Of a step that is ahead, where the one before this has been */
			if (u == 0)
				load<WIDE>(p, s, w, i + shape<WIDE>::stages - 1, ahead);
			if (u == UNITS - 1 && !last)
				mbarrier_wait(shared_address(&s.full[next.at]), next.parity);
			wgmma_keep(sums);
			keep_left(first);
			keep_left(rest);
			wgmma_fence();
			/* The least first */
#pragma unroll
			for (int c = 0; c < PIXELS / 16; c++)
				wgmma_rs_b_mn(sums, rest + 4 * c, b + 128 * c, c);
#pragma unroll
			for (int c = 0; c < PIXELS / 16; c++)
				wgmma_rs_b_mn(sums, first + 4 * c, b + HALF / 16 + 128 * c, 1);
#pragma unroll
			for (int c = 0; c < PIXELS / 16; c++)
				wgmma_rs_b_mn(sums, first + 4 * c, b + 128 * c, 1);
			wgmma_commit();
			/*
			 * Rows of the next step meanwhile, at the end this one's again. The matrix
			 * units still read the left operand: in a branch the assembler would take
			 * its registers for others.
			 */
			if (u == UNITS - 1)
				load_left(shared_address(s.of[next.at][row]), left, e, next_by);
			wgmma_wait<0>();
			wgmma_keep(sums);

			const float scale = by * s.by[ring.at][first_unit + u];

#pragma unroll
			for (int j = 0; j < 32; j++)
				acc[u][j] = fmaf(acc[u][j], scale, sums[j]);
		}
		__syncwarp();
		if (lane < p.cluster)
			mbarrier_arrive_cluster(
				cluster_map(shared_address(&s.empty[ring.at]), lane));
		by = next_by;
		ring = next;
	}
	/* Sums take the place of parts, which have all been written: that was waited for. */
	both_meet(s.done);
#pragma unroll
	for (int u = 0; u < UNITS; u++) {
		/* In two steps: their product may be beyond what there is. */
		const int back = -(e + s.exponent[first_unit + u]);
		const float half = power_of_two(back / 2), other = power_of_two(back - back / 2);

#pragma unroll
		for (int j = 0; j < 8; j++) {
#pragma unroll
			for (int h = 0; h < 2; h++) {
				const float *const v = &acc[u][4 * j + 2 * h];
				const int at = threadIdx.x % 128 / 32 * 16 + lane / 4 * 2 + h;

				*(float2 *)&s.sums[group][at][64 * u + 8 * j + 2 * (lane % 4)] =
					make_float2(v[0] * half * other, v[1] * half * other);
			}
		}
	}
	group_meets(group);
	store_results<WIDE, UNITS, true>(p, w, &s.columns[first_unit], s.sums[group], group);
}

/* A warpgroup that has no columns: copies, and says that memory is free */
template <bool WIDE>
HZ_DEVICE void idle(const hzi_quat_direct_weights &p, memory<WIDE> &s, const work &w)
{
	ring_position<shape<WIDE>::stages> ring, ahead;

	for (int i = 0; i < shape<WIDE>::stages - 1; i++)
		load<WIDE>(p, s, w, w.begin + i, ahead);
	for (int i = w.begin; i < w.end; i++) {
		load<WIDE>(p, s, w, i + shape<WIDE>::stages - 1, ahead);
		mbarrier_wait(shared_address(&s.ready[ring.at]), ring.parity);
		if (threadIdx.x % 32 < p.cluster)
			mbarrier_arrive_cluster(cluster_map(shared_address(&s.empty[ring.at]),
							    threadIdx.x % 32));
		ring.next();
	}
	both_meet(s.done);
}

template <bool WIDE>
HZ_DEVICE void kernel(const hzi_quat_direct_weights &p)
{
	memory<WIDE> &s = *(memory<WIDE> *)shared_start();
	const int group = __shfl_sync(~0u, threadIdx.x / 128, 0);
	const work w(p, shape<WIDE>::rows);

	if (threadIdx.x == 0) {
		ring_init(p, s.full, s.empty, s.done);
		for (int i = 0; i < shape<WIDE>::stages; i++)
			mbarrier_init(shared_address(&s.ready[i]), CONVERTERS);
		mbarrier_init_fence();
	}
	find_columns(p, w, s.columns);
	blocks_begin(p);
	if (group < 2) {
		const int half = (w.units + 1) / 2;
		const int units = !WIDE ? w.units : group ? w.units - half : half;
		const int first = WIDE && group ? half : 0;

		setmaxnreg_inc<208>();
		switch (units) {
		case 0:
			idle<WIDE>(p, s, w);
			break;
		case 1:
			products<WIDE, 1>(p, s, w, group, first);
			break;
		case 2:
			products<WIDE, 2>(p, s, w, group, first);
			break;
		case 3:
			products<WIDE, 3>(p, s, w, group, first);
			break;
		case 4:
			products<WIDE, 4>(p, s, w, group, first);
			break;
		}
	} else {
		setmaxnreg_dec<48>();
		convert_steps<WIDE>(s, w);
	}
	if (p.cluster > 1)
		cluster_end();
}

#endif

extern "C" __global__ __launch_bounds__(HZI_QX_SPLIT_THREADS, 1) void
quat_direct_split(const __grid_constant__ hzi_quat_direct_weights p)
HZ_HOPPER_BODY(kernel<false>(p))

extern "C" __global__ __launch_bounds__(HZI_QX_SPLIT_THREADS, 1) void
quat_direct_split_wide(const __grid_constant__ hzi_quat_direct_weights p)
HZ_HOPPER_BODY(kernel<true>(p))
