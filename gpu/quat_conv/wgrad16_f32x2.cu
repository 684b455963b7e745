/*
 * wgrad16_f32x2.cu - gradients of weights of f32 quaternion convolutions in split precision, wgmma
 *
 * SPDX-License-Identifier: BSD-2-Clause
 *
 * As wgrad16.cu, but each number x is two f16 terms, high = f16(x) and low = f16(x - high), and
 * each product is three: low high, high low, high high. TMA loads units of f32, of half as many
 * pixels. Two converting warpgroups split units of big in place; a multiplying warp has 16 rows of
 * small and splits them in registers. A stage is loaded (full), split (ready), and read by all
 * (empty).
 *
 * Each unit of big and a warp's rows of small have a scale each, a power of two by the largest
 * magnitude so far; accumulators are rescaled when it changes. Tensor cores truncate accumulators
 * to 24 bits, so that they accumulate the products of one step, which registers add up.
 */
#include "gpu/quat_conv/wgrad16.cuh"
#include "gpu/quat_gemm/pack_planar.cuh"
#include "gpu/device/tma.cuh"
#include "gpu/device/wgmma_f16.cuh"

#if HAVE_WGMMA

#define PIXELS HZI_WGRAD16_SPLIT_PIXELS
#define HALF_BYTES (UNIT_BYTES / 2)	/* 32 components in f32, or 64 in one term */
#define CONVERTERS 256			/* threads */

template <bool N512>
struct memory : stage_memory<N512> {
	/* ready: units of big are split. */
	uint64_t full[shape<N512>::stages], empty[shape<N512>::stages], ready[shape<N512>::stages];
	uint64_t done;
	/* Of units of big: the factor that rescales accumulators; the last exponent; magnitudes */
	float by[shape<N512>::stages][COLUMNS_MAX];
	int exponent[COLUMNS_MAX];
	uint4 most[2][COLUMNS_MAX];
	tap_columns columns[COLUMNS_MAX];
};

static_assert(sizeof(memory<true>) + 1024 <= HZI_WGRAD16_SHARED_BYTES &&
	      sizeof(memory<false>) + 1024 <= HZI_WGRAD16_SHARED_BYTES,
	      "what the launcher asks for");

/* ---- Copies ---------------------------------------------------------------------------------- */

/* Loads both halves of a unit of f32: 32 components each. */
HZ_DEVICE void load_unit(bool both, uint32_t dst, const hzi_tensor_map &map, int column,
			 const int (&at)[4], uint32_t barrier)
{
#pragma unroll
	for (int h = 0; h < 2; h++) {
		const int byte = 4 * column + 128 * h;

		if (both)
			tma_load_5d_multicast(3, dst + h * HALF_BYTES, map, byte, at, barrier);
		else
			tma_load_5d(dst + h * HALF_BYTES, map, byte, at, barrier);
	}
}

/*
 * Loads the units of step i, by one thread of each multiplying warp. Each block of a cluster loads
 * half of the units of big and multicasts them.
 */
template <bool N512>
HZ_DEVICE void load(const hzi_quat_wgrad16 &p, memory<N512> &s, const work &w, int i,
		    ring_position<shape<N512>::stages> &ring)
{
	constexpr int ROWS = shape<N512>::rows;
	const uint32_t full = shared_address(&s.full[ring.at]);
	const int warp = threadIdx.x / 32;

	if (threadIdx.x % 32 == 0 && i < w.end) {
		int at[4];

		tma_tile_origin(p.b, i, at);
		mbarrier_wait(shared_address(&s.empty[ring.at]), ring.parity ^ 1);
		if (warp == 0)
			mbarrier_expect_tx(full, (ROWS + w.units) * UNIT_BYTES);
		for (int j = warp; j < ROWS + w.units; j += 8) {
			const uint32_t dst = shared_address(s.of[ring.at][j]);

			if (j < ROWS) {
				load_unit(false, dst, p.small,
					  w.set * p.row_step + w.row + j * HZI_GEMM16_UNIT, at,
					  full);
			} else if (p.cluster == 1 || j % 2 == cluster_rank()) {
				const tap_columns &c = s.columns[j - ROWS];
				const int src[4] = {at[0] * p.b.step[0] + c.at[2],
						    at[1] * p.b.step[1] + c.at[1],
						    at[2] * p.b.step[2] + c.at[0], at[3]};

				load_unit(p.cluster > 1, dst, p.big, c.column, src, full);
			}
		}
	}
	__syncwarp();
	ring.next();
}

/* ---- Terms ----------------------------------------------------------------------------------- */

/* Two numbers as f16, and the remainders */
HZ_DEVICE void split_f16(uint32_t &high, uint32_t &low, float a, float b)
{
	high = to_f16x2(a, b);
	low = to_f16x2(a - f16_low(high), b - f16_high(high));
}

/*
 * Splits a unit of big in place, by a warpgroup. A warp has four quaternions of each pixel, a
 * thread two of them, chosen so that neither loads nor stores of eight threads have bank conflicts.
 * The unit is rows of 128 bytes, swizzled by TMA: half of the components of a pixel in f32 before,
 * one term of all of them after.
 */
HZ_DEVICE void convert(uint32_t unit, uint4 &most_of, int &e, float &by)
{
	const int lane = threadIdx.x % 32, warp = threadIdx.x % 128 / 32;
	const int h = lane % 2, pixel = lane / 16 * 8 + lane / 2 % 4 * 2 + lane / 8 % 2;
	const uint32_t src = unit + warp / 2 * HALF_BYTES + pixel * 128, dst = unit + pixel * 128;
	const int quaternion = warp % 2 * 4 + h, eight = 2 * warp + h;
	uint32_t most = MAGNITUDE_LEAST;
	uint4 u[PIXELS / 16][2];

#pragma unroll
	for (int t = 0; t < PIXELS / 16; t++) {
#pragma unroll
		for (int i = 0; i < 2; i++) {
			u[t][i] = shared_load(src + t * 2048 +
					  16 * (quaternion + 2 * i ^ pixel % 8));
			most = max(max(max(most, magnitude_of(u[t][i].x)),
				       max(magnitude_of(u[t][i].y), magnitude_of(u[t][i].z))),
				   magnitude_of(u[t][i].w));
		}
	}
	most = __reduce_max_sync(~0u, most);
	if (lane == 0)
		((uint32_t *)&most_of)[warp] = most;
	/* All threads have read before any thread writes. */
	bar_sync(4 + (int)threadIdx.x / 128, 128);

	const uint4 m = shared_load(shared_address(&most_of));
	const int next = next_exponent(e, max(max(m.x, m.y), max(m.z, m.w)));
	const float scale = power_of_two(next);

	by = rescale(e, next);
	e = next;
#pragma unroll
	for (int t = 0; t < PIXELS / 16; t++) {
		const uint32_t tap_columns = dst + t * 2048 + 16 * (eight ^ pixel % 8);
		uint32_t high[4], low[4];

#pragma unroll
		for (int i = 0; i < 2; i++) {
			const uint4 &v = u[t][i];

			split_f16(high[2 * i], low[2 * i], scale * __uint_as_float(v.x),
				  scale * __uint_as_float(v.y));
			split_f16(high[2 * i + 1], low[2 * i + 1], scale * __uint_as_float(v.z),
				  scale * __uint_as_float(v.w));
		}
		shared_store(tap_columns, high);
		shared_store(tap_columns + HALF_BYTES, low);
	}
}

template <bool N512>
HZ_DEVICE void convert_steps(memory<N512> &s, const work &w)
{
	constexpr int STAGES = shape<N512>::stages, ROWS = shape<N512>::rows;
	constexpr int UNITS = shape<N512>::columns / 2;
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
		/* Makes the stores visible to wgmma. */
		fence_proxy_async();
		mbarrier_arrive(shared_address(&s.ready[ring.at]));
		ring.next();
	}
}

/* ---- Products -------------------------------------------------------------------------------- */

/*
 * Loads a warp's 16 rows of a unit of small: rows r and r + 8 are components 2 r and 2 r + 1 of its
 * 16. e: exponent of their scale; by: the factor that rescales accumulators to it.
 */
HZ_DEVICE void load_left(uint32_t unit, uint2 (&u)[4][2], int &e, float &by)
{
	const int lane = threadIdx.x % 32, warp = threadIdx.x % 128 / 32;
	const int pixel = 2 * (lane % 4), quaternion = warp % 2 * 4 + lane / 8;
	const uint32_t src = unit + warp / 2 * HALF_BYTES + lane / 4 % 2 * 8;
	uint32_t most = MAGNITUDE_LEAST;

#pragma unroll
	for (int c = 0; c < 4; c++) {
#pragma unroll
		for (int i = 0; i < 2; i++) {
			const uint32_t at = src + (8 * c + pixel + i) * 128 +
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

/* Their terms: four registers are the A fragment of 16 pixels. */
HZ_DEVICE void split_left(const uint2 (&u)[4][2], float scale, uint32_t (&high)[8],
			  uint32_t (&low)[8])
{
#pragma unroll
	for (int c = 0; c < 4; c++) {
		split_f16(high[2 * c], low[2 * c], scale * __uint_as_float(u[c][0].x),
			  scale * __uint_as_float(u[c][1].x));
		split_f16(high[2 * c + 1], low[2 * c + 1], scale * __uint_as_float(u[c][0].y),
			  scale * __uint_as_float(u[c][1].y));
	}
}

/* Compiler barrier: the registers have their values here, no access moves past it. */
HZ_DEVICE void keep_registers(uint32_t (&a)[8])
{
#pragma unroll
	for (int i = 0; i < 8; i++)
		asm volatile("" : "+r"(a[i]) :: "memory");
}

/* A multiplying warpgroup: UNITS units of columns, from first_unit of the tile on */
template <bool N512, int UNITS>
HZ_DEVICE void products(const hzi_quat_wgrad16 &p, memory<N512> &s, const work &w, int group,
			int first_unit)
{
	constexpr int ROWS = shape<N512>::rows;
	const int lane = threadIdx.x % 32, row = N512 ? 0 : group;
	float acc[UNITS][32], sums[32], by = 1;
	uint32_t high[8], low[8];
	uint2 left[4][2];
	ring_position<shape<N512>::stages> ring, ahead;
	int e = EXPONENT_MAX;

#pragma unroll
	for (int i = 0; i < 32 * UNITS; i++)
		acc[i / 32][i % 32] = 0;
	for (int i = 0; i < shape<N512>::stages - 1; i++)
		load<N512>(p, s, w, w.begin + i, ahead);
	mbarrier_wait(shared_address(&s.full[0]), 0);
	load_left(shared_address(s.of[0][row]), left, e, by);
	for (int i = w.begin; i < w.end; i++) {
		const uint32_t big = shared_address(s.of[ring.at][ROWS + first_unit]);
		const bool last = i + 1 == w.end;
		ring_position<shape<N512>::stages> next = ring;
		float next_by = 1;

		if (!last)
			next.next();
		split_left(left, power_of_two(e), high, low);
		mbarrier_wait(shared_address(&s.ready[ring.at]), ring.parity);
#pragma unroll
		for (int u = 0; u < UNITS; u++) {
			const uint64_t b = wgmma_desc_mn(big + u * UNIT_BYTES, 0);

			/* A step ahead, into the stage of the previous step */
			if (u == 0)
				load<N512>(p, s, w, i + shape<N512>::stages - 1, ahead);
			if (u == UNITS - 1 && !last)
				mbarrier_wait(shared_address(&s.full[next.at]), next.parity);
			wgmma_keep(sums);
			keep_registers(high);
			keep_registers(low);
			wgmma_fence();
			/* Smallest products first */
#pragma unroll
			for (int c = 0; c < PIXELS / 16; c++)
				wgmma_rs_b_mn(sums, low + 4 * c, b + 128 * c, c);
#pragma unroll
			for (int c = 0; c < PIXELS / 16; c++)
				wgmma_rs_b_mn(sums, high + 4 * c, b + HALF_BYTES / 16 + 128 * c,
						1);
#pragma unroll
			for (int c = 0; c < PIXELS / 16; c++)
				wgmma_rs_b_mn(sums, high + 4 * c, b + 128 * c, 1);
			wgmma_commit();
			/*
			 * Loads the rows of the next step meanwhile; in the last step its own
			 * again. No branch: wgmma still reads the A fragments, and ptxas would
			 * reuse their registers in one.
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
	/* Accumulators overwrite the stages: all loads and conversions have ended. */
	multipliers_sync(s.done);
#pragma unroll
	for (int u = 0; u < UNITS; u++) {
		/* Two factors, since their product may exceed the range of f32. */
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
	warpgroup_sync(group);
	store_results<N512, UNITS, true>(p, w, &s.columns[first_unit], s.sums[group], group);
}

/* A multiplying warpgroup without columns: only loads, and frees the stages */
template <bool N512>
HZ_DEVICE void idle(const hzi_quat_wgrad16 &p, memory<N512> &s, const work &w)
{
	ring_position<shape<N512>::stages> ring, ahead;

	for (int i = 0; i < shape<N512>::stages - 1; i++)
		load<N512>(p, s, w, w.begin + i, ahead);
	for (int i = w.begin; i < w.end; i++) {
		load<N512>(p, s, w, i + shape<N512>::stages - 1, ahead);
		mbarrier_wait(shared_address(&s.ready[ring.at]), ring.parity);
		if (threadIdx.x % 32 < p.cluster)
			mbarrier_arrive_cluster(cluster_map(shared_address(&s.empty[ring.at]),
							    threadIdx.x % 32));
		ring.next();
	}
	multipliers_sync(s.done);
}

#define CASE(units) \
	case units: \
		products<N512, units>(p, s, w, group, first); \
		break;

template <bool N512>
HZ_DEVICE void kernel(const hzi_quat_wgrad16 &p)
{
	memory<N512> &s = *(memory<N512> *)shared_start();
	const int group = __shfl_sync(~0u, threadIdx.x / 128, 0);
	const work w(p, shape<N512>::rows);

	if (threadIdx.x == 0) {
		ring_init(p, s.full, s.empty, s.done);
		for (int i = 0; i < shape<N512>::stages; i++)
			mbarrier_init(shared_address(&s.ready[i]), CONVERTERS);
		mbarrier_init_fence();
	}
	find_columns(p, w, s.columns);
	begin_blocks(p);
	if (group < 2) {
		/* With N512 each warpgroup has half of the columns. */
		const int half = (w.units + 1) / 2;
		const int units = !N512 ? w.units : group ? w.units - half : half;
		const int first = N512 && group ? half : 0;

		setmaxnreg_inc<208>();
		switch (units) {
		case 0:
			idle<N512>(p, s, w);
			break;
		CASE(1) CASE(2) CASE(3) CASE(4)
		}
	} else {
		setmaxnreg_dec<48>();
		convert_steps<N512>(s, w);
	}
	if (p.cluster > 1)
		cluster_end();
}

#endif

extern "C" __global__ __launch_bounds__(HZI_WGRAD16_SPLIT_THREADS, 1) void
quat_conv_wgrad16_f32x2_128x256(const __grid_constant__ hzi_quat_wgrad16 p)
HZ_HOPPER_BODY(kernel<false>(p))

extern "C" __global__ __launch_bounds__(HZI_WGRAD16_SPLIT_THREADS, 1) void
quat_conv_wgrad16_f32x2_64x512(const __grid_constant__ hzi_quat_wgrad16 p)
HZ_HOPPER_BODY(kernel<true>(p))
