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
#include "gpu/lattice/generic.cuh"
#include "gpu/lattice/shaped_points.cuh"

#define THREADS HZI_LATTICE_THREADS
#define PAIRS (HZ_LATTICE_MAXBANKS / 2)
#define FOUND (1u << 24)	/* of block_state.flags: there is a point and a label, */
#define FITS (1u << 25)		/* which is the nearest one of its scale; */
#define ALONE (1u << 26)	/* all is left to choose_alone(). */

enum stage { TRIES, FILTER, SHRINK, STEP, QUEUES, FIRST = QUEUES };

/*
 * Each stage but FIRST has a queue. Of stages for which THREADS blocks wait the last one runs, and
 * FIRST if there is none. SHRINK and STEP, which give blocks to each other, have fewer than 3
 * THREADS of them together.
 */
#define SLOTS (2 * THREADS)
#define CLIP_SLOTS (3 * THREADS)
#define ALL_SLOTS(shaping) \
	((shaping) == HZI_SHAPING_CUBE ? SLOTS : 2 * SLOTS + 2 * CLIP_SLOTS)

/*
 * What waits: turn and thread of the block, its least error, label and flags; `extra`: of FILTER
 * scales that passed, of SHRINK the exponent, of STEP the number of steps
 */
template <int SHAPING>
struct queues {
	static constexpr int slots = ALL_SLOTS(SHAPING);

	uint32_t place[slots], label[slots], flags[slots], extra[slots];
	float least[slots];
	/* Of STEP: coordinates as bytes */
	uint32_t point[2][SHAPING == HZI_SHAPING_CUBE ? 1 : CLIP_SLOTS];
	uint32_t waiting[PAIRS][SLOTS];	/* of TRIES: bounds, see bounds_of() */
	uint32_t bounds[PAIRS][THREADS];	/* of the blocks in FIRST */
	int count[QUEUES];
};

/* The scales s; of pairs of them, in f16: the largest by these, and their squares by its square */
struct scale_table {
	float scale[HZ_LATTICE_MAXBANKS], inverse[HZ_LATTICE_MAXBANKS];
	uint32_t ratio[PAIRS], square[PAIRS];
	bool usable;
};

/* flags: the scales to be looked at, the scale t of the point << 16, FOUND, FITS, ALONE */
struct block_state {
	row_offsets at;
	float v[8], least;
	uint32_t place, label, flags, extra;
};

/* ---- Stages ---------------------------------------------------------------------------------- */

/* hzi_shaped_fits() */
HZ_DEVICE bool fits_somewhere(const hzi_lattice_rule &r, const float (&v)[8])
{
#pragma unroll 1
	for (int t = r.scales - 1; t >= 0; t--) {
		float y[8], p[8];

#pragma unroll
		for (int i = 0; i < 8; i++)
			y[i] = hzi_lclamp(hzi_lmul(v[i], r.inverse[t]), HZI_LATTICE_RANGE);
		nearest<HZI_SHAPING_E8>((float)r.q, y, p);
		/* The range is far outside of all codes. */
		if (r.shaping == HZI_SHAPING_CUBE ? inside<HZI_SHAPING_CUBE>(r, (float)r.q, p) :
						    inside<HZI_SHAPING_D8STAR>(r, (float)r.q, p))
			return true;
	}
	return false;
}

/* Eight numbers by value, for functions that are not inlined */
struct eight {
	float v[8];
};

HZ_DEVICE eight copy_of(const float (&v)[8])
{
	eight c;

#pragma unroll
	for (int i = 0; i < 8; i++)
		c.v[i] = v[i];
	return c;
}

struct chosen {
	uint32_t label;
	int t, clipped;
};

/* hzi_shaped_choose(): blocks beyond what the stages can do */
static __device__ __noinline__ chosen choose_alone(const hzi_lattice_rule &r, eight v)
{
	int32_t g[8] = {0, 0, 0, 0, 0, 0, 0, 0};
	chosen c = {0, 0, 0};

	c.clipped = hzi_shaped_choose(&r, v.v, &c.t, g);
	c.label = hzi_label_of(r.shaping, r.log2q, g);
	return c;
}

static __device__ __noinline__ void store_digits(const hzi_lattice_generic &p, int64_t element,
						 uint32_t label)
{
	hzi_lattice_code code = code_at(p.codes, element, 0);
	int32_t digits[HZI_LATTICE_DIMS];

	hzi_lattice_unindex(&p.rule, label, digits);
	hzi_lattice_put(&code, &p.rule, digits);
	hzi_lattice_flush(&code);
}

/* The block of the thread is done: stores its code and scale; returns whether it was clipped. */
template <int SHAPING>
HZ_DEVICE uint32_t store_block(const hzi_lattice_generic &p, block_state &b)
{
	const hzi_lattice_rule &r = p.rule;
	int t = (int)(b.flags >> 16 & 15);
	const int64_t element = b.at.codes + b.at.unit * p.codes.block;
	float size = 0, sum = 0;

	if (b.flags & ALONE) {
		const chosen c = choose_alone(r, copy_of(b.v));

		b.label = c.label;
		b.flags |= c.clipped ? 0 : FITS;
		t = c.t;
	}
	if (p.codes.pack != HZI_LATTICE_LEVEL)
		store_digits(p, element, b.label);
	else if (p.codes.bytes == 4)
		((uint32_t *)p.codes.codes)[element] = b.label;
	else
		((uint16_t *)p.codes.codes)[element] = (uint16_t)b.label;
	p.t[b.at.t + b.at.unit * p.t_step] = (uint8_t)t;
	if (!p.overload)
		return 0;
	if (SHAPING == HZI_SHAPING_E8 || (b.flags & ALONE))
		return !(b.flags & FITS);

	/* Rounding and a correction move coordinates by less than 1.5: none left the cube. */
	const float safe = 0.5f * (float)r.q - 1.5f;

#pragma unroll
	for (int i = 0; i < 8; i++) {
		size = fmaxf(size, fabsf(b.v[i]));
		sum += fabsf(b.v[i]);
	}
	if ((b.flags & FITS) && hzi_lmul(size, r.inverse[t]) <= safe)
		return 0;
	/* The sum of |p_i - h| / 2 is less than that of |y_i| + sqrt(8) + 4. */
	if (size * r.inverse[r.largest] <= safe &&
	    (SHAPING == HZI_SHAPING_CUBE ||
	     sum * r.inverse[r.largest] < 2 * (float)r.q - 6.84f))
		return 0;
	return !fits_somewhere(r, b.v);
}

static __device__ __noinline__ row_offsets find_any_row(const hzi_lattice_generic &p, int64_t unit)
{
	return find_row(p, unit);
}

/* find_row(), mostly with 32-bit divisions */
HZ_DEVICE row_offsets find_block(const hzi_lattice_generic &p, int64_t unit)
{
	row_offsets at = {0, 0, 0, 0, unit};

	if (p.units > UINT32_MAX)
		return find_any_row(p, unit);
	if (p.ndim > 0) {
		uint32_t row = (uint32_t)unit / (uint32_t)p.row_units;

		at.unit = (uint32_t)unit - row * (uint32_t)p.row_units;
#pragma unroll 1
		for (int d = p.ndim - 1; d >= 0; d--) {
			const uint32_t next = row / (uint32_t)p.shape[d];
			const uint32_t i = row - next * (uint32_t)p.shape[d];

			row = next;
			at.v += i * p.v_stride[d];
			at.codes += i * p.codes.stride[d];
			at.t += i * p.t_stride[d];
		}
	}
	return at;
}

/* Loads values; returns flags as hzi_lattice_map(). */
HZ_DEVICE int load_values(const hzi_lattice_generic &p, bool vectors, const row_offsets &at,
			  float (&v)[8])
{
	float most = 0;
	int kind = 0;

	if (!vectors) {
#pragma unroll
		for (int i = 0; i < 8; i++) {
			const int64_t n = at.unit * 8 + i, from = at.v + n * p.v_step;

			v[i] = n >= p.n ? 0 : p.v_dtype == HZ_F32 ? ((const float *)p.v)[from] :
			       p.v_dtype == HZ_F16 ? f16_low(((const uint16_t *)p.v)[from]) :
						     bf16_low(((const uint16_t *)p.v)[from]);
		}
	} else if (p.v_dtype == HZ_F32) {
		const float4 *src = (const float4 *)((const float *)p.v + at.v + at.unit * 8);
		const float4 a = src[0], b = src[1];

		v[0] = a.x, v[1] = a.y, v[2] = a.z, v[3] = a.w;
		v[4] = b.x, v[5] = b.y, v[6] = b.z, v[7] = b.w;
	} else {
		const uint4 a = *(const uint4 *)((const uint16_t *)p.v + at.v + at.unit * 8);
		const uint32_t x[4] = {a.x, a.y, a.z, a.w};

#pragma unroll
		for (int i = 0; i < 4; i++) {
			v[2 * i] = p.v_dtype == HZ_F16 ? f16_low(x[i]) : bf16_low(x[i]);
			v[2 * i + 1] = p.v_dtype == HZ_F16 ? f16_low(x[i] >> 16) : bf16_high(x[i]);
		}
	}
#pragma unroll
	for (int i = 0; i < 8; i++)
		most = max_nan(most, fabsf(v[i]));
	if (most <= FLT_MAX)
		return 0;
#pragma unroll
	for (int i = 0; i < 8; i++) {
		kind |= fabsf(v[i]) > FLT_MAX ? HZI_LATTICE_IS_INF : 0;
		kind |= v[i] != v[i] ? HZI_LATTICE_IS_NAN : 0;
		v[i] = hzi_lclamp(v[i], FLT_MAX);
	}
	return kind;
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

/* Bounds of b.least in their units; see bounds_of() */
HZ_DEVICE float slack_of(const float (&v)[8], float inverse)
{
	float sum = 0;

#pragma unroll
	for (int i = 0; i < 8; i++)
		sum = fmaf(v[i], v[i], sum);
	return 1.06e-4f * sum * inverse * inverse + 2e-7f;
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
			  uint32_t (*bounds)[THREADS], int pairs, block_state &b, bool *waits)
{
	const float q = (float)r.q, inverse = r.inverse[r.largest];
	const uint32_t own = threadIdx.x;
	uint32_t key = 0x7c007c00;
	bound_input input;
	float size = 0;

#pragma unroll
	for (int i = 0; i < 8; i++)
		size = fmaxf(size, fabsf(b.v[i]));
	const float largest = hzi_lmul(size, inverse);

	prepare_bounds<SHAPING>(b.v, q, inverse, input);
#pragma unroll 1
	for (int k = 0; k < pairs; k++) {
		uint32_t outside, low = bounds_of<SHAPING>(input, q, table.ratio[k],
							   table.square[k], outside);

		bounds[k][own] = low;
		if (SHAPING != HZI_SHAPING_CUBE)
			low = add_f16x2(low, HZ_ASM_U32("fma.rn.sat.f16x2 %0, %1, %2, %3;",
							"r"(outside), "r"(0x50005000), "r"(0)));
		key = min_x2<HZ_F16>(key, bound_key(low, k));
	}
	int t = (int)(least_of(key) & 15);

	if (largest > 4 * q || !table.usable) {
		b.flags = ALONE;
		return -1;
	}
	if (size == 0 || !(largest <= q)) {
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
			     queues<SHAPING> &m, bool vectors)
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
		float y[8], z[8], x[8], e[8], error = 0, factor = 1;
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
			if (SHAPING != HZI_SHAPING_CUBE && stage == STEP) {
				point[0] = m.point[0][slot];
				point[1] = m.point[1][slot];
			}
		}
		if (active) {
			b.at = find_block(p, first + b.place % THREADS +
					     (b.place / THREADS) * turn_step);
			const int kind = load_values(p, vectors, b.at, b.v);

			if (kind & HZI_LATTICE_IS_NAN) {
#pragma unroll
				for (int i = 0; i < 8; i++)
					b.v[i] = 0;
			}
			nonfinite += is_first && kind != 0;
		}
		const float slack = stage == TRIES || is_first ? slack_of(b.v, inverse) : 0;

		if (is_first && active)
			t = first_scale<SHAPING>(r, table, m.bounds, pairs, b, &waits);
		if (stage == TRIES && active)
			t = next_scale(m.waiting, pairs, slot, limit_of(b, inverse, slack));
		if (stage == FILTER && active && (b.flags & FOUND))
			t = __ffs(b.flags & 0xffff) - 1;
		if (stage >= SHRINK && !is_first && active)
			t = 31 - __clz(b.flags & 0xffff);

		const float scale = table.scale[t < 0 ? 0 : t], square = hzi_lmul(scale, scale);

		divide(b.v, table.inverse[t < 0 ? 0 : t], y);
		if (SHAPING != HZI_SHAPING_CUBE && stage == SHRINK && b.extra) {
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
				if (SHAPING == HZI_SHAPING_CUBE || stage != SHRINK || in ||
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
					   other_bound(y, x, error) < b.least)) {
				b.flags |= 1u << t;
			}
		}
		if constexpr (SHAPING != HZI_SHAPING_CUBE) {
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
				far = far > 0 ? far * far : 0;
				most = 0.999f + 0.5f * (error - least);
				moves = 0.9999f * error < least && least < far;
				b.flags &= b.flags - 1;
				b.extra |= 0.9999f * error < least && !moves ? 1u << t : 0;
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
		if constexpr (SHAPING != HZI_SHAPING_CUBE) {
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
		}
		if (active && next == QUEUES)
			overloaded += store_block<SHAPING>(p, b);
	}
	if (p.overload)
		count_overload(p.overload, overloaded, nonfinite);
}

/* Whether the values of each block are 16 or 32 aligned bytes */
HZ_DEVICE bool has_vectors(const hzi_lattice_generic &p)
{
	const int bytes = p.v_dtype == HZ_F32 ? 4 : 2;
	bool good = p.v_step == 1 && p.n % 8 == 0 && (uintptr_t)p.v % 16 == 0;

	for (int d = 0; d < p.ndim; d++)
		good = good && p.v_stride[d] * bytes % 16 == 0;
	return good;
}

/* Bounds need scales whose squares f32 holds, and ratios that f16 does. */
HZ_DEVICE void make_table(const hzi_lattice_rule &r, scale_table &table)
{
	const int k = threadIdx.x;

	if (k < HZ_LATTICE_MAXBANKS) {
		const float s = k < r.scales ? r.scale[k] : 1;
		const float ratio = s / r.scale[r.largest];

		table.scale[k] = s;
		table.inverse[k] = k < r.scales ? r.inverse[k] : 1;
		((uint16_t *)table.ratio)[k] = (uint16_t)both(1 / ratio);
		((uint16_t *)table.square)[k] =
			(uint16_t)(k < r.scales ? both(0.979f * ratio * ratio) : 0x7fff);
	}
	if (k == 0) {
		bool usable = r.scale[r.largest] < 1e15f;

		for (int i = 0; i < r.scales; i++)
			usable = usable && r.scale[i] > 1e-15f &&
				 r.scale[r.largest] < 1000 * r.scale[i];
		table.usable = usable;
	}
}

#define ENCODE(name, shaping, blocks) \
	extern "C" __global__ void \
		__launch_bounds__(HZI_LATTICE_THREADS, HZ_BLOCKS(HZI_LATTICE_THREADS, blocks)) \
		lattice_encode_##name(const __grid_constant__ hzi_lattice_generic p) \
	{ \
		__shared__ queues<shaping> memory; \
		__shared__ scale_table table; \
 \
		make_table(p.rule, table); \
		if (threadIdx.x < QUEUES) \
			memory.count[threadIdx.x] = 0; \
		encode_blocks<shaping>(p, table, memory, has_vectors(p)); \
	}

/* In the order of enum HZI_SHAPING_*; blocks an SM: as in gpu/lattice/generic.c */
ENCODE(cube, HZI_SHAPING_CUBE, 6)
ENCODE(d8star, HZI_SHAPING_D8STAR, 4)
ENCODE(e8_label, HZI_SHAPING_E8, 4)
