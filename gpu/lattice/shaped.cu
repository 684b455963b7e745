/*
 * shaped.cu - encodes to codes with a shaping other than NESTED
 *
 * SPDX-License-Identifier: BSD-2-Clause
 *
 * The results are those of hzi_shaped_choose(), bit for bit. Most scales of a block are left out
 * because of a lower bound of their error, and few nearest points are outside of the code. So all
 * threads of a thread block run one stage, each for a block of 8 values; blocks that need another
 * stage wait in a queue in shared memory until there is one for each thread:
 *
 *   FIRST    bounds at all scales, two at a time in f16; the nearest point at the scale that has
 *            the least one
 *   TRIES    the nearest point at another scale with a bound below the error so far
 *   FILTER   a scale at which the nearest point is outside of the code: whether another point of
 *            the code can be near enough
 *   SHRINK   the search of hzi_shaped_clip() for a first point of the code
 *   STEP     a move of that point, hzi_shaped_step()
 */
#include "gpu/lattice/shaped_blocks.cuh"

#define FOUND (1u << 24)	/* of block_state.flags: there is a point and a label, */
#define FITS (1u << 25)		/* which is the nearest one of its scale; */
#define ALONE (1u << 26)	/* all is left to choose_alone<SHAPING>(). */

enum stage { TRIES, FILTER, SHRINK, STEP, QUEUES, FIRST = QUEUES };

/*
 * Each stage but FIRST has a queue. Of stages for which THREADS blocks wait the last one runs, and
 * FIRST if there is none. SHRINK and STEP, which give blocks to each other, have fewer than 3
 * THREADS of them together.
 */
#define SLOTS (2 * THREADS)
#define CLIP_SLOTS (3 * THREADS)
#define ALL_SLOTS (2 * SLOTS + 2 * CLIP_SLOTS)

/*
 * What waits: turn and thread of the block, its least error, label and flags; `extra`: of FILTER
 * scales that passed, of SHRINK the exponent, of STEP the number of steps
 */
template <int SHAPING>
struct queues {
	static constexpr int slots = ALL_SLOTS;

	uint32_t place[slots], label[slots], flags[slots], extra[slots];
	float least[slots];
	/* Of STEP: coordinates as bytes */
	uint32_t point[2][CLIP_SLOTS];
	uint32_t waiting[PAIRS][SLOTS];	/* of TRIES: bounds, see bounds_of() */
	uint32_t bounds[PAIRS][THREADS];	/* of the blocks in FIRST */
	int count[QUEUES];
};

/* flags: the scales to be looked at, the scale t of the point << 16, FOUND, FITS, ALONE */
struct block_state {
	row_offsets at;
	float v[8], least;
	uint32_t place, label, flags, extra;
};

/* ---- Stages ---------------------------------------------------------------------------------- */

/* The block of the thread is done: stores its code and scale; returns whether it was clipped. */
template <int SHAPING>
HZ_DEVICE uint32_t store_block(const hzi_lattice_generic &p, block_state &b, float size)
{
	int t = (int)(b.flags >> 16 & 15);

	if (b.flags & ALONE) {
		const chosen c = choose_alone<SHAPING>(p.rule, copy_of(b.v));

		b.label = c.label;
		b.flags |= c.clipped ? 0 : FITS;
		t = c.t;
	}
	store_label(p, b.at, b.label, t);
	if (!p.overload)
		return 0;
	if (SHAPING == HZI_SHAPING_E8 || (b.flags & ALONE))
		return !(b.flags & FITS);
	if ((b.flags & FITS) && hzi_lmul(size, p.rule.inverse[t]) <= safe_size(p.rule))
		return 0;
	return !fits_largest<SHAPING>(p.rule, b.v, size) && !fits_somewhere(p.rule, copy_of(b.v));
}

HZ_DEVICE int first_slot(int stage)
{
	return stage < SHRINK ? stage * SLOTS : 2 * SLOTS + (stage - SHRINK) * CLIP_SLOTS;
}

/* Appends the blocks of threads that want that to a queue; returns the slot of the thread in it. */
template <int SHAPING>
HZ_DEVICE int append(queues<SHAPING> &m, int stage, bool wants, const block_state &b)
{
	const uint32_t lane = threadIdx.x % 32, all = __ballot_sync(~0u, wants);
	int first = 0;

	if (lane == 0 && all)
		first = atomicAdd(&m.count[stage], __popc(all));
	first = __shfl_sync(~0u, first, 0) + __popc(all & ((1u << lane) - 1));

	const int slot = first_slot(stage) + first;

	if (wants) {
		m.place[slot] = b.place;
		m.label[slot] = b.label;
		m.flags[slot] = b.flags;
		m.extra[slot] = b.extra;
		m.least[slot] = b.least;
	}
	return first;
}

HZ_DEVICE float limit_of(const block_state &b, float inverse, float slack)
{
	return 1.00001f * (b.least * inverse * inverse) + slack;
}

/*
 * Bounds of the errors of a block at all scales. Returns the scale that has about the least one, or
 * -1: the block is not to be computed at one, as it is done or must wait for all (*waits).
 */
template <int SHAPING>
HZ_DEVICE int first_scale(const hzi_lattice_rule &r, const scale_table &table,
			  uint32_t (*bounds)[THREADS], int pairs, block_state &b, float size,
			  float sum, bool *waits)
{
	const float q = (float)r.q, inverse = r.inverse[r.largest];
	const uint32_t own = threadIdx.x;
	uint32_t key = 0x7c007c00;
	bound_input input;

	prepare_bounds<SHAPING>(b.v, q, inverse, input);
#pragma unroll 1
	for (int k = 0; k < pairs; k++) {
		uint32_t outside, halves;
		uint32_t low = bounds_of<SHAPING>(input, q, table.pair[k].ratio,
						  table.pair[k].square, outside, halves);

		bounds[k][own] = low;
		low = add_f16x2(low, HZ_ASM_U32("fma.rn.sat.f16x2 %0, %1, %2, %3;",
							"r"(outside), "r"(0x50005000), "r"(0)));
		key = min_x2<HZ_F16>(key, bound_key(low, k));
	}
	int t = (int)(least_of(key) & 15);

	if (hzi_lmul(size, inverse) > 4 * q || !table.usable) {
		b.flags = ALONE;
		return -1;
	}
	if (size == 0 || !(sum <= table.most)) {
		/* Of 0 the first scale is right; bounds are not made for what is so large. */
		for (int k = 0; k < 2 * pairs; k++)
			((uint16_t *)&bounds[k >> 1][own])[k & 1] =
				size == 0 || k >= r.scales ? 0x7c00 : 0;
		t = 0;
		*waits = size != 0;
		if (size != 0)
			return -1;
	}
	((uint16_t *)&bounds[t >> 1][own])[t & 1] = 0x7c00;
	return t;
}

/* Takes the scale with about the least bound that is below the limit; -1: that bound is not. */
HZ_DEVICE int next_scale(uint32_t (*bounds)[SLOTS], int pairs, int slot, float limit)
{
	uint32_t key = 0x7c007c00;

	for (int k = 0; k < pairs; k++)
		key = min_x2<HZ_F16>(key, bound_key(bounds[k][slot], k));
	key = least_of(key);

	const int t = (int)(key & 15);
	uint16_t *const own = (uint16_t *)&bounds[t >> 1][slot] + (t & 1);
	const float bound = f16_low(*own);

	*own = 0x7c00;
	return bound < limit ? t : -1;
}

/* The j at which hzi_shaped_clip() begins */
HZ_DEVICE uint32_t first_exponent(const hzi_lattice_rule &r, const float (&y)[8])
{
	float size = 0;
	int exponent, limit;

#pragma unroll
	for (int i = 0; i < 8; i++)
		size = fmaxf(size, fabsf(y[i]));
	frexpf(size, &exponent);
	frexpf(r.reach, &limit);
	return (uint32_t)max(1, 16 * (exponent - 1 - limit));
}

template <int SHAPING>
HZ_DEVICE void encode_blocks(const hzi_lattice_generic &p, const scale_table &table,
			     queues<SHAPING> &m)
{
	const hzi_lattice_rule &r = p.rule;
	const float q = (float)r.q, inverse = r.inverse[r.largest];
	const int pairs = (r.scales + 1) / 2;
	const int64_t first = (int64_t)blockIdx.x * THREADS;
	const int64_t turn_step = (int64_t)gridDim.x * THREADS;
	uint32_t overloaded = 0, nonfinite = 0, turn = 0;

	for (;;) {
		__syncthreads();

		const bool last = first + turn * turn_step >= p.units;
		int stage = last ? QUEUES : FIRST, all = 0;

		if (last) {
			for (int k = QUEUES; k-- > 0;)
				stage = m.count[k] ? k : stage;
			if (stage == QUEUES)
				break;
		}
		for (int k = 0; k < QUEUES; k++)
			stage = m.count[k] >= THREADS ? k : stage;
		if (stage != FIRST || last)
			all = m.count[stage];

		const bool is_first = stage == FIRST;
		const int begin = all > THREADS ? all - THREADS : 0;
		int slot = begin + (int)threadIdx.x, t = -1, next = QUEUES;
		bool active = slot < all, waits = false;
		block_state b = {};
		float y[8], z[8], x[8], e[8], error = 0, factor = 1, size = 0;
		uint32_t point[2] = {0, 0};

		if (is_first) {
			active = first + threadIdx.x + turn * turn_step < p.units;
			b.place = turn++ * THREADS + threadIdx.x;
			b.least = INFINITY;
		} else if (active) {
			const int at = first_slot(stage) + slot;

			b.place = m.place[at];
			b.label = m.label[at];
			b.flags = m.flags[at];
			b.extra = m.extra[at];
			b.least = m.least[at];
			if (stage == STEP) {
				point[0] = m.point[0][slot];
				point[1] = m.point[1][slot];
			}
		}
		if (active) {
			b.at = find_block(p, first + b.place % THREADS +
					     (b.place / THREADS) * turn_step);
			const int kind = load_values(p, table.vectors, b.at, b.v, size);

			if (kind & HZI_LATTICE_IS_NAN) {
#pragma unroll
				for (int i = 0; i < 8; i++)
					b.v[i] = 0;
			}
			nonfinite += is_first && kind != 0;
		}
		const float sum = stage == TRIES || is_first ? norm_of(b.v, inverse) : 0;
		const float slack = SLACK * sum + 2e-7f;

		if (is_first && active)
			t = first_scale<SHAPING>(r, table, m.bounds, pairs, b, size, sum, &waits);
		if (stage == TRIES && active)
			t = next_scale(m.waiting, pairs, slot, limit_of(b, inverse, slack));
		if (stage == FILTER && active && (b.flags & FOUND))
			t = __ffs(b.flags & 0xffff) - 1;
		if (stage >= SHRINK && !is_first && active)
			t = 31 - __clz(b.flags & 0xffff);

		const float scale = table.scale[t < 0 ? 0 : t], square = hzi_lmul(scale, scale);

		divide(b.v, table.inverse[t < 0 ? 0 : t], y);
		if (stage == SHRINK && b.extra) {
			const float reach = reach_of(y);

			/* Of points p of the code <p, w> <= q; of the nearest <z - p, w> <= 1. */
			for (;; b.extra++) {
				factor = b.extra < HZI_LATTICE_SHRINKS ?
					 hzi_lattice_factor(&r, (int)b.extra) : 0;
				if (SHAPING != HZI_SHAPING_E8 || reach * factor < q + 1.001f)
					break;
			}
		}
#pragma unroll
		for (int i = 0; i < 8; i++)
			z[i] = hzi_lmul(y[i], factor);

		bool in = false, better = false;

		if (stage != STEP && t >= 0) {
			for (int tries = 0; ; tries++) {
				error = nearest<SHAPING>(q, z, x);
				in = stage != FILTER && inside<SHAPING>(r, q, x);
				if (stage != SHRINK || in ||
				    !b.extra || tries == 3 || b.extra >= HZI_LATTICE_SHRINKS)
					break;
				b.extra++;
				factor = b.extra < HZI_LATTICE_SHRINKS ?
					 hzi_lattice_factor(&r, (int)b.extra) : 0;
#pragma unroll
				for (int i = 0; i < 8; i++)
					z[i] = hzi_lmul(y[i], factor);
			}
		}
		if ((is_first || stage == TRIES) && t >= 0) {
			const float own = hzi_lmul(error, square);

			better = in && (!(b.flags & FOUND) || own < b.least ||
					(own == b.least && t < (int)(b.flags >> 16 & 15)));
			if (better) {
				b.least = own;
				b.flags = (b.flags & 0xffff) | (uint32_t)t << 16 | FOUND | FITS;
			} else if (!in && (!(b.flags & FOUND) || 0.9999f * square *
					   inside_bound<SHAPING>(q, y, x, error) < b.least)) {
				b.flags |= 1u << t;
			}
		}
		vector w = {0, 0};
		float most = 1, far = 0;
		bool moves = stage == STEP && active;

		if (stage == STEP) {
#pragma unroll
			for (int i = 0; i < 8; i++)
				x[i] = (float)(int8_t)(point[i >> 2] >> 8 * (i & 3));
		}
		if (stage == STEP || stage == FILTER)
			error = error_of(y, x, e);
		if (stage == FILTER && t >= 0) {
			const float least = b.least / square;

			/* Points that differ from x by longer vectors are as far as that. */
			far = 1.99f - sqrtf(error);
			/* Moves are against the signs of e, too: error + 2 and more. */
			far = far > 0 ? fminf(far * far, error + 1.99f) : 0;
			most = 0.999f + 0.5f * (error - least);
			moves = 0.9999f * error < least && least < far;
			b.extra |= 0.9999f * error < least && !moves ? 1u << t : 0;
			b.flags &= b.flags - 1;
		}
		if (moves)
			w = best_move<SHAPING>(r, e, x, most, stage == FILTER);
		if (stage == FILTER && active) {
			b.extra |= w.set ? 1u << t : 0;
			if (!(b.flags & FOUND)) {
				next = SHRINK;
			} else if (b.flags & 0xffff) {
				next = FILTER;
			} else if (b.extra) {
				b.flags |= b.extra;
				next = SHRINK;
			}
			b.extra = next == SHRINK ? 0 : b.extra;
		}
		if (stage == SHRINK && active) {
			next = SHRINK;
			if (in && b.extra) {
				next = STEP;
				b.extra = 0;
			} else if (b.extra) {
				b.extra++;
			} else {
				if (SHAPING == HZI_SHAPING_E8)
					error = fmaxf(error, beyond_of(q, y));
				if ((b.flags & FOUND) &&
				    !(hzi_lmul(error, square) < b.least)) {
					b.flags ^= 1u << t;
					next = b.flags & 0xffff ? SHRINK : QUEUES;
				} else {
					b.extra = first_exponent(r, y);
				}
			}
		}
		if (stage == STEP && active) {
			if (w.set && b.extra < 64) {
				move_point(x, w, x);
				b.extra++;
				next = STEP;
			} else {
				error = hzi_lmul(error, square);
				better = !(b.flags & FOUND) || error < b.least;
				b.flags ^= 1u << t;
				b.extra = 0;
				if (better) {
					b.least = error;
					b.flags = (b.flags & 0xffff) | (uint32_t)t << 16 |
						  FOUND | (SHAPING == HZI_SHAPING_E8 ?
							   b.flags & FITS : 0);
				}
				next = b.flags & 0xffff ? SHRINK : QUEUES;
			}
		}
		if (next == STEP) {
			point[0] = point[1] = 0;
#pragma unroll
			for (int i = 0; i < 8; i++)
				point[i >> 2] |= (uint32_t)(integer_of(x[i]) & 255)
						 << 8 * (i & 3);
		}
		if (better)
			b.label = label_of<SHAPING>(r, x);

		if (is_first || stage == TRIES) {
			uint32_t least = 0x7c007c00;

#pragma unroll 1
			for (int k = 0; k < pairs; k++) {
				if (!is_first)
					m.bounds[k][threadIdx.x] = m.waiting[k][slot];
				least = min_x2<HZ_F16>(least, m.bounds[k][threadIdx.x]);
			}
			const float bound = f16_low(min_x2<HZ_F16>(least, least >> 16));

			if (active && !(b.flags & ALONE)) {
				next = waits || bound < limit_of(b, inverse, slack) ? TRIES :
				       b.flags & 0xffff ? FILTER : QUEUES;
			}
		}
		__syncthreads();
		if (threadIdx.x == 0 && !is_first)
			m.count[stage] = begin;
		__syncthreads();
		if (is_first || stage == TRIES) {
			slot = append(m, TRIES, next == TRIES, b);
#pragma unroll 1
			for (int k = 0; k < pairs && next == TRIES; k++)
				m.waiting[k][slot] = m.bounds[k][threadIdx.x];
		}
		if (is_first || stage == TRIES || stage == FILTER)
			append(m, FILTER, next == FILTER, b);
		if (!is_first && stage != TRIES)
			append(m, SHRINK, next == SHRINK, b);
		if (stage == SHRINK || stage == STEP) {
			slot = append(m, STEP, next == STEP, b);
			if (next == STEP) {
				m.point[0][slot] = point[0];
				m.point[1][slot] = point[1];
			}
		}
		if (active && next == QUEUES)
			overloaded += store_block<SHAPING>(p, b, size);
	}
	if (p.overload)
		count_overload(p.overload, overloaded, nonfinite);
}

#define ENCODE(name, shaping, blocks) \
	extern "C" __global__ void \
		__launch_bounds__(HZI_LATTICE_THREADS, HZ_BLOCKS(HZI_LATTICE_THREADS, blocks)) \
		lattice_encode_##name(const __grid_constant__ hzi_lattice_generic p) \
	{ \
		__shared__ queues<shaping> memory; \
		__shared__ scale_table table; \
 \
		make_table(p, table); \
		if (threadIdx.x < QUEUES) \
			memory.count[threadIdx.x] = 0; \
		encode_blocks<shaping>(p, table, memory); \
	}

/* In the order of enum HZI_SHAPING_*; blocks an SM: as in gpu/lattice/generic.c */
ENCODE(d8star, HZI_SHAPING_D8STAR, 4)
ENCODE(e8_label, HZI_SHAPING_E8, 4)
