/*
 * cube.cu - encodes to codes shaped by a cube
 *
 * SPDX-License-Identifier: BSD-2-Clause
 *
 * The results are those of hzi_shaped_choose(), bit for bit. A warp encodes 32 blocks at a time, a
 * lane each: bounds of the error at all scales, then the nearest point at the scale and in the coset
 * that have about the least one. Blocks of which another bound is less than that error wait in
 * shared memory, with their bounds, until there are 32 for another point each.
 */
#include "gpu/lattice/shaped_blocks.cuh"

#define WAITING 64	/* at most 31 left and 32 new */
#define INFINITIES 0x7c007c00

/*
 * Blocks that wait; of the best point so far the label, its squared distance in units of s_t^2, and
 * 2 t + coset, before a bit for each scale that was looked at; bounds of pairs k of scales, in whose
 * low bits are k and the coset
 */
struct waiting_blocks {
	int64_t unit[WAITING];
	int64_t later[WAITING];		/* blocks for finish_block(): unit << 1 | alone */
	uint32_t label[WAITING], which[WAITING], bounds[PAIRS][WAITING];
	float error[WAITING];
};

/* Bit 4 i + 3: the sign of x_i */
HZ_DEVICE uint32_t signs_of(const float (&x)[8])
{
	uint32_t half[2];

#pragma unroll
	for (int k = 0; k < 2; k++) {
		const uint32_t low = __byte_perm(__float_as_uint(x[k]), __float_as_uint(x[k + 2]),
						 0x73);
		const uint32_t high = __byte_perm(__float_as_uint(x[k + 4]),
						  __float_as_uint(x[k + 6]), 0x73);

		half[k] = __byte_perm(low, high, 0x5410);
	}
	return (half[0] >> 4 & 0x08080808) | (half[1] & 0x80808080);
}

/*
 * The squared distance of y from the nearest point of the code in coset h, 1: half-integers, and
 * its label, as hzi_shaped_nearest() and hzi_label_of(). other: a lower bound for the other coset,
 * whose points are 1/2 - |r_i| away in each coordinate or at a higher cost, see bounds_of()
 */
HZ_DEVICE float nearest_label(int32_t q, int log2q, uint32_t h, const float (&y)[8],
			      uint32_t &label, float &other)
{
	const float high = (float)(q - 1), offset = 0.5f * (float)(q - (int32_t)h);
	float r[8], s[8], gain[8], most = -FLT_MAX, least = FLT_MAX, sizes = 0, error;
	uint32_t parity = 0, negative = 0, biases = 0;

	label = 0;
#pragma unroll
	for (int i = 7; i >= 0; i--) {
		const float u = hzi_ladd(y[i], offset);
		const float inside = fminf(fmaxf(u, 0), high), f = hzi_ladd(inside, ROUND_BIAS);

		r[i] = hzi_ladd(u, -hzi_ladd(f, -ROUND_BIAS));
		s[i] = hzi_lmul(r[i], r[i]);
		sizes += fabsf(r[i]);
		least = fminf(least, fabsf(r[i]));
		negative ^= __float_as_uint(r[i]);
		parity ^= __float_as_uint(f);
		label = label * (uint32_t)q + __float_as_uint(f);
		biases = biases * (uint32_t)q + __float_as_uint(ROUND_BIAS);
		/* What moving the coordinate gains: |r|, but -|r| where it would leave */
		gain[i] = fmaf(-2.0f, fabsf(hzi_ladd(u, -inside)), fabsf(r[i]));
		most = fmaxf(most, gain[i]);
	}
	error = sum_of(s);
	other = error - sizes + ((parity ^ negative >> 31) & 1 ? 2 + 2 * least : 2.0f);
	other = 0.999f * other - 1e-5f * error;
	label -= biases;
	if (parity & 1) {
		const uint32_t last = (uint32_t)q - 1;

		error = hzi_ladd(error, hzi_ladd(1.0f, -hzi_ladd(most, most)));
#pragma unroll
		for (int i = 0; i < 8; i++)
			gain[i] = hzi_ladd(gain[i], -most);

		const uint32_t marks = signs_of(gain) ^ 0x88888888, first = marks & (0 - marks);
		const int shift = log2q * ((__ffs((int)first) >> 2) - 1);
		/* A coordinate that loses is at an end, where its remainder points outwards. */
		const bool down = most > 0 ? (signs_of(r) & first) != 0 :
				  (label >> shift & last) == last;

		label += down ? 0 - (1u << shift) : 1u << shift;
	}
	label = (label & ~(1u << 7 * log2q)) | h << 7 * log2q;
	return error;
}

/* What load_values() and store_label() do, for a block anywhere */
struct block_values {
	eight v;
	float size;
	int kind;
};

static __device__ __noinline__ block_values load_any_block(const hzi_lattice_generic &p,
							   bool vectors, int64_t unit)
{
	block_values b;

	b.kind = load_values(p, vectors, find_block(p, unit), b.v.v, b.size);
	return b;
}

static __device__ __noinline__ void store_any_block(const hzi_lattice_generic &p, int64_t unit,
						    uint32_t label, int t)
{
	store_label(p, find_block(p, unit), label, t);
}

/*
 * Blocks that are not finite or beyond what bounds are for (alone), or that may count as clipped.
 * Returns what to add to the overload counts, the second one in the upper half.
 */
static __device__ __noinline__ uint32_t finish_block(const hzi_lattice_generic &p, bool vectors,
						     int64_t unit, bool alone)
{
	const block_values b = load_any_block(p, vectors, unit);

	if (!alone)
		return !fits_somewhere(p.rule, b.v);

	const chosen c = choose_alone<HZI_SHAPING_CUBE>(p.rule, b.kind & HZI_LATTICE_IS_NAN ?
							eight() : b.v);

	store_any_block(p, unit, c.label, c.t);
	return (uint32_t)c.clipped | (b.kind ? 1u << 16 : 0);
}

HZ_DEVICE void load_contiguous(const hzi_lattice_generic &p, int64_t unit, float (&v)[8])
{
	if (p.v_dtype == HZ_F32) {
		const float4 a = ((const float4 *)p.v)[2 * unit];
		const float4 b = ((const float4 *)p.v)[2 * unit + 1];

		v[0] = a.x, v[1] = a.y, v[2] = a.z, v[3] = a.w;
		v[4] = b.x, v[5] = b.y, v[6] = b.z, v[7] = b.w;
		return;
	}
	const uint4 a = ((const uint4 *)p.v)[unit];
	const uint32_t x[4] = {a.x, a.y, a.z, a.w};

#pragma unroll
	for (int i = 0; i < 4; i++) {
		v[2 * i] = p.v_dtype == HZ_F16 ? f16_low(x[i]) : bf16_low(x[i]);
		v[2 * i + 1] = p.v_dtype == HZ_F16 ? f16_high(x[i]) : bf16_high(x[i]);
	}
}

HZ_DEVICE void encode_blocks(const hzi_lattice_generic &p, const scale_table &table,
			     waiting_blocks &w, uint32_t *turns)
{
	const hzi_lattice_rule &r = p.rule;
	const float q = (float)r.q, inverse = r.inverse[r.largest];
	const uint32_t lane = threadIdx.x % 32;
	const float safe = safe_size(r);
	uint32_t overloaded = 0, nonfinite = 0, count = 0, laters = 0;
	bool more = true;

	for (;;) {
		/* Few registers are in use here: calls are cheap. */
		if (laters >= 32 || (laters && !count && !more)) {
			const uint32_t taken = min(laters, 32u);

			laters -= taken;
			if (lane < taken) {
				const int64_t one = w.later[laters + lane];
				const uint32_t add = finish_block(p, table.vectors, one >> 1,
								  one & 1);

				overloaded += add & 0xffff;
				nonfinite += add >> 16;
			}
			__syncwarp();
		}
		int64_t unit = 0;
		uint32_t label = 0, best = 63, visited = 0;
		uint32_t key = INFINITIES, second = INFINITIES;
		float v[8] = {}, nearest = INFINITY, size = 0;
		bool fresh = false, active;

		/* Warps take turns as they come, so that those of a thread block end together. */
		if (more && count < 32) {
			const uint32_t turn = __shfl_sync(~0u, lane ? 0 : atomicAdd(turns, 1u), 0);

			unit = ((int64_t)turn * gridDim.x + blockIdx.x) * 32 + lane;
			fresh = more = unit - lane < p.units;
		}
		if (fresh) {
			active = unit < p.units;
		} else {
			if (!count) {
				if (laters)
					continue;
				break;
			}
			const uint32_t taken = min(count, 32u);

			count -= taken;
			active = lane < taken;
			if (active) {
				unit = w.unit[count + lane];
				label = w.label[count + lane];
				nearest = w.error[count + lane];
				best = w.which[count + lane] & 63;
				visited = w.which[count + lane] >> 6;
			}
		}
		if (active && table.contiguous) {
			load_contiguous(p, unit, v);
#pragma unroll
			for (int i = 0; i < 8; i++)
				size = max_nan(size, fabsf(v[i]));
		} else if (active) {
			const block_values b = load_any_block(p, table.vectors, unit);

			size = b.kind ? INFINITY : b.size;
#pragma unroll
			for (int i = 0; i < 8; i++)
				v[i] = b.v.v[i];
		}

		const float sum = norm_of(v, inverse);
		const bool alone = active && !(table.usable && hzi_lmul(size, inverse) <= 4 * q);

		active = active && !alone;
		if (fresh) {
			/* Of 0 the first scale is right; bounds are not for what is so large. */
			const uint32_t mask = size > 0 && sum <= table.most ? 0xfff0fff0 : 0;
			bound_input input;

			prepare_bounds<HZI_SHAPING_CUBE>(v, q, inverse, input);
#pragma unroll
			for (int k = 0; k < PAIRS; k++) {
				uint32_t outside, halves;

				if (k == PAIRS / 2 && r.scales <= PAIRS)
					break;
				const uint32_t bounds = bounds_of<HZI_SHAPING_CUBE>(
					input, q, table.pair[k].ratio, table.pair[k].square, outside,
					halves);
				const uint32_t own = (bounds & mask) | (halves & 0x00080008) |
						     table.pair[k].index;

				second = min_x2<HZ_F16>(second, max_nan_x2(key, own));
				key = min_x2<HZ_F16>(key, own);
				w.bounds[k][count + lane] = own;
			}
		} else {
#pragma unroll
			for (int k = 0; k < PAIRS; k++) {
				if (k == PAIRS / 2 && r.scales <= PAIRS)
					break;
				const uint32_t own = w.bounds[k][count + lane];

				second = min_x2<HZ_F16>(second, max_nan_x2(key, own));
				key = min_x2<HZ_F16>(key, own);
			}
		}
		__syncwarp();

		const uint32_t least = least_of(key), upper = (key & 0xffff) != least;
		const uint32_t t = (2 * (least & 7) + upper) & 15, coset = least >> 3 & 1;
		const float scale = table.scale[t], square = hzi_lmul(scale, scale);
		const float old_scale = table.scale[best >> 1 & 15];
		float y[8], other, error, limit = hzi_lmul(nearest, hzi_lmul(old_scale, old_scale));
		uint32_t own_label;

		second = min_x2<HZ_F16>(min_x2<HZ_F16>(second, second >> 16),
					max_x2<HZ_F16>(key, key >> 16));
		divide(v, table.inverse[t], y);
		error = nearest_label(r.q, r.log2q, coset, y, own_label, other);

		const float own = t == best >> 1 ? error : hzi_lmul(error, square);
		const float against = t == best >> 1 ? nearest : limit;

		if (own < against || (own == against && 2 * t + coset < best)) {
			limit = hzi_lmul(error, square);
			nearest = error;
			label = own_label;
			best = 2 * t + coset;
		}
		const float unit_square = square * inverse * inverse;
		const uint32_t again = visited >> t & 1 ? INFINITIES :
				       (to_f16x2(fminf(fmaxf(other * unit_square, 0), 65504), 0) &
					0xfff0) | (coset ^ 1) << 3 | (least & 7);
		const float next = f16_low(min_x2<HZ_F16>(second, again) & 0xfff0);
		const bool waits = active && size > 0 && next <
				   1.00001f * (limit * inverse * inverse) + SLACK * sum + 2e-7f;
		const uint32_t all = __ballot_sync(~0u, waits);
		const uint32_t slot = count + __popc(all & ((1u << lane) - 1));
		bool later = alone;

		if (waits) {
			uint32_t bounds[PAIRS];

#pragma unroll
			for (int k = 0; k < PAIRS; k++)
				bounds[k] = w.bounds[k][count + lane];
			__syncwarp(all);
			w.unit[slot] = unit;
			w.label[slot] = label;
			w.error[slot] = nearest;
			w.which[slot] = best | (visited | 1u << t) << 6;
#pragma unroll
			for (int k = 0; k < PAIRS; k++)
				w.bounds[k][slot] = bounds[k];
			((uint16_t *)&w.bounds[least & 7][slot])[upper] = (uint16_t)again;
		} else if (active) {
			const int last = (int)best >> 1;

			if (table.contiguous) {
				if (p.codes.bytes == 4)
					((uint32_t *)p.codes.codes)[unit] = label;
				else
					((uint16_t *)p.codes.codes)[unit] = (uint16_t)label;
				p.t[unit] = (uint8_t)last;
			} else {
				store_any_block(p, unit, label, last);
			}
			later = p.overload && size * inverse > safe &&
				hzi_lmul(size, r.inverse[last]) > safe;
		}
		const uint32_t all_later = __ballot_sync(~0u, later);

		if (later)
			w.later[laters + __popc(all_later & ((1u << lane) - 1))] = unit << 1 | alone;
		count += __popc(all);
		laters += __popc(all_later);
		__syncwarp();
	}
	if (p.overload)
		count_overload(p.overload, overloaded, nonfinite);
}

#define CUBE_THREADS HZI_LATTICE_CUBE_THREADS

extern "C" __global__ void
__launch_bounds__(CUBE_THREADS, HZ_BLOCKS(CUBE_THREADS, HZI_LATTICE_CUBE_BLOCKS))
lattice_encode_cube(const __grid_constant__ hzi_lattice_generic p)
{
	__shared__ waiting_blocks waiting[CUBE_THREADS / 32];
	__shared__ scale_table table;
	__shared__ uint32_t turns;

	make_table(p, table);
	if (threadIdx.x == 0)
		turns = 0;
	__syncthreads();
	encode_blocks(p, table, waiting[threadIdx.x / 32], &turns);
}
