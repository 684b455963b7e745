/*
 * lattice.c - encoding by a lattice quantizer on the CPU: runs of blocks, policies
 *
 * SPDX-License-Identifier: BSD-2-Clause
 *
 * A run of up to HZI_LATTICE_RUN blocks of a row is encoded at once by lattice_points(), as a first
 * try; blocks that miss are gathered and tried again, with the scale that the policy says. What
 * lanes cannot hold goes through the functions of lattice_rule.h, block after block.
 */
#include <config.h>

#include "cpu/lattice.h"

/* ---- Lanes ----------------------------------------------------------------------------------- */

/* For x mod n of |x| <= range; false if 16 bits do not do. */
static bool make_divisor(struct hzi_lane_divisor *l, int64_t n, int64_t range)
{
	const int64_t bias = (range / (2 * n) + 1) * 2 * n, mul = 65536 / n + 1;

	*l = (struct hzi_lane_divisor){(int32_t)n, (int32_t)bias, (int32_t)mul};
	/*
	 * x mul / 65536 exceeds x / n by x (mul n - 65536) / (65536 n), which is to be below 1 / n.
	 */
	return (bias + range) * (mul * n - 65536) < 65536;
}

/*
 * How large coordinates that are rounded at level 0 may be for lanes that hold up to limit; margin
 * is what is added to them: the offset, a correction, and by remainder() q or q^M.
 */
static int64_t farthest(const struct hzi_lattice_rule *r, int64_t limit, int64_t weight,
			int64_t offset)
{
	return r->kind == HZI_LATTICE_E8 ? (limit - offset - weight - 3) / 2 :
					   limit - offset - weight / 2 - 2;
}

bool hzi_lattice_lanes(const struct hz_lattice *lattice, struct hzi_lane_rule *l, int32_t *far)
{
	const struct hzi_lattice_rule *r = &lattice->rule;
	const bool tabular = r->kind == HZI_LATTICE_E8 || (r->kind == HZI_LATTICE_D && r->d == 4);
	/* A number of A2 is at most 2 |y|. */
	const double beyond = (r->kind == HZI_LATTICE_A2 ? 2 : 1) * (double)r->reach + 2;
	int64_t point = 0, offset = 0, weight = 1, largest;

	memset(l, 0, sizeof(*l));
	if (r->kind == HZI_LATTICE_BASIS || (r->flags & HZI_LATTICE_MAPPED) ||
	    r->level_size == 0 || r->level_size > 65536 || r->q > 256)
		return false;
	for (int m = 0; m < r->levels; m++) {
		point = point * r->q + lattice->leader_max;
		weight *= r->q;
		if (point > 16384 || weight > 4096)
			return false;
	}
	for (int i = 0; i < r->embed; i++)
		offset = abs(r->offset[i]) > offset ? abs(r->offset[i]) : offset;
	l->pow2 = r->log2q >= 0;
	l->shift = __builtin_ctz((unsigned)r->q);
	l->inverse = 1;
	/* Newton's iteration, modulo 2^16, doubles the bits that are right. */
	for (int i = 0; i < 4; i++) {
		const unsigned odd = (unsigned)(r->q >> l->shift), u = (uint16_t)l->inverse;

		l->inverse = (int16_t)(uint16_t)(u * (2 - odd * u));
	}
	if (l->pow2) {
		l->q.n = r->q;
		largest = farthest(r, 127, weight, offset);
		/*
		 * Digits lie in one byte each, and so do coordinates in the basis up to their
		 * digit.
		 */
		l->bytes = tabular && point + offset <= 127 && r->q <= 16 && weight <= 64 &&
			   (r->kind == HZI_LATTICE_D || weight <= 16) &&
			   (r->level_size <= 256 || 8 % l->shift == 0);
		l->largest = (int32_t)(point + offset);
		l->byte_points = l->bytes && (double)largest >= beyond;
		if (!l->byte_points)
			largest = farthest(r, 16383, weight, offset);
		*far = (int32_t)largest;
		return (double)largest >= beyond;
	}
	if (!(beyond < 16384))
		return false;
	*far = 2 * (int32_t)beyond;
	largest = (r->kind == HZI_LATTICE_E8 ? 2 : 1) * ((int64_t)*far + 2) + offset;
	/* Coordinates of leaders, within 2 q: sums of E8 are of 8, of D_d of d. */
	return make_divisor(&l->q, r->q, largest + r->q) &&
	       make_divisor(&l->q2, 2 * r->q, largest + 2 * r->q) &&
	       make_divisor(&l->digit, r->q, (int64_t)(r->d > 8 ? 2 * r->d : 16) * r->q);
}

/* ---- Rows ------------------------------------------------------------------------------------ */

struct hzi_lattice_map hzi_lattice_join(const struct hzi_lattice_map *from,
					const struct hzi_lattice_rule *r, bool values)
{
	struct hzi_lattice_map m = *from;
	const int64_t row = values ? m.n * m.v_step : m.blocks * m.v_block;
	const int64_t groups = ceil_div(m.blocks, r->group);

	if (m.ndim == 0 || m.n != m.blocks * (values ? r->d : 1) || m.blocks % r->group)
		return m;
	if (m.v_stride[m.ndim - 1] != row ||
	    m.code_stride[m.ndim - 1] != m.blocks * m.code_block ||
	    m.t_stride[m.ndim - 1] != groups * m.t_step)
		return m;
	m.ndim--;
	m.n *= m.shape[m.ndim];
	m.blocks *= m.shape[m.ndim];
	return m;
}

/* count elements, step apart, side by side; what is beyond valid is 0. */
static void gather(const void *from, int64_t step, int64_t size, int64_t valid, int64_t count,
		   void *to)
{
	if (size == 4) {
		for (int64_t i = 0; i < valid; i++)
			((uint32_t *)to)[i] = ((const uint32_t *)from)[i * step];
	} else {
		for (int64_t i = 0; i < valid; i++)
			((uint16_t *)to)[i] = ((const uint16_t *)from)[i * step];
	}
	memset((char *)to + valid * size, 0, (size_t)((count - valid) * size));
}

/* ---- Encoding: block after block ------------------------------------------------------------- */

struct encode_job {
	const struct hz_kern *kern;
	const struct hzi_lattice_encode_args *a;
	const struct hzi_lattice_rule *rule;
	const struct hzi_lattice_matrices *matrices;
	struct hzi_lattice_map map;
	struct hzi_lane_rule lanes;
	bool in_lanes;
	int32_t far;
	int64_t run, runs;		/* blocks of a run, runs of a row */
	int64_t overload[2];		/* sums of all threads */
	struct room *rooms;		/* of threads, in lanes */
};

/*
 * What a run has by now. Runs are of blocks that lanes hold: 2^d <= level_size <= 65536, and 2^M <=
 * q^M <= 4096.
 */
#define LEVELS 12
#define VALUES 8192			/* of a run at most */
#define LEAST_RUN 256			/* blocks of one, if each thread is to have some */

struct encoded {
	const void *x;			/* blocks back to back */
	int64_t count;
	int64_t overload[2];
	uint8_t t[RUN];			/* of a group: at its first block */
	uint16_t index[LEVELS * RUN + ROOM];
	uint16_t miss[RUN + ROOM];
	float apart[VALUES + ROOM];	/* x, if it does not lie like that */
};

/* count values as f32 */
static void floats_of(const struct encode_job *job, const void *x, int64_t count, float *to)
{
	job->kern->head(&(struct hzi_head){
		.x = x,
		.y = to,
		.rows = 1,
		.count = count,
		.x_dtype = job->a->x_dtype,
		.y_dtype = HZ_F32,
	});
}

/* Blocks that share T, one block without GROUP */
struct group {
	float v[GROUP];
	uint8_t skip[GROUP];
	int t;				/* without GROUP: known when its point is */
};

/* g->v holds count blocks of x. */
static void take_group(const struct encode_job *job, int64_t count, int64_t *overload,
		       struct group *g)
{
	const struct hzi_lattice_rule *r = job->rule;

	for (int64_t i = 0; i < count; i++) {
		float *const v = g->v + i * r->d;
		const int met = hzi_lattice_map(r, job->matrices, v, v);

		overload[1] += met != 0;
		g->skip[i] = (met & HZI_LATTICE_IS_NAN) != 0;
	}
	g->t = r->policy == HZI_LATTICE_GROUP ?
		       hzi_lattice_group(r, job->matrices, (int)count, g->v, g->skip) : 0;
}

/* flatten: otherwise GCC 12 thinks that coordinates may not have been set. */
static __attribute__((flatten)) void point_of(const struct encode_job *job, struct group *g,
					      int64_t i, int64_t *overload, int32_t *p)
{
	const struct hzi_lattice_rule *r = job->rule;
	const float *const v = g->v + i * r->d;

	if (g->skip[i])
		memcpy(p, r->offset, sizeof(r->offset));
	else if (r->policy == HZI_LATTICE_GROUP)
		overload[0] += hzi_lattice_at(r, job->matrices, v, g->t, p);
	else
		overload[0] += hzi_lattice_choose(r, job->matrices, v, &g->t, p);
}

/* Block or group `first` by the rule alone, into the indices */
static void index_by_rule(const struct encode_job *job, struct encoded *e, int64_t first)
{
	const struct hzi_lattice_rule *r = job->rule;
	const int64_t count = min_of(r->group, e->count - first);
	struct group group;
	int32_t p[DIMS], digits[DIMS];

	floats_of(job, offset(e->x, first * r->d, size_of(job->a->x_dtype)), count * r->d, group.v);
	take_group(job, count, e->overload, &group);
	for (int64_t i = 0; i < count; i++) {
		point_of(job, &group, i, e->overload, p);
		for (int m = 0; m < r->levels; m++) {
			hzi_lattice_digits(r, p, digits);
			e->index[m * RUN + first + i] = (uint16_t)hzi_lattice_index(r, digits);
			hzi_lattice_parent(r, job->matrices, p);
		}
	}
	e->t[first] = (uint8_t)group.t;
}

/* ---- Encoding in lanes ----------------------------------------------------------------------- */

/* What is known of a group: the best scale by now, or -1, and the first that is not to be tried */
struct group_state {
	int best, end;
	float least;
};

/* Blocks that are tried together */
struct pending {
	int64_t count;
	int16_t block[RUN + ROOM];
	uint8_t t[RUN];			/* of GROUP, by now */
	float inverse[RUN + ROOM], factor[RUN + ROOM];
	float error[RUN + ROOM];
	struct group_state state[RUN];	/* of a group: at its first block */
	uint16_t index[LEVELS * RUN + ROOM], miss[RUN + ROOM];
	float x[VALUES + ROOM];
};

/* Of a thread, in the workspace: stacks may be small. */
struct room {
	struct encoded encoded;
	struct pending pending;
};

/* The blocks that are to be tried, back to back; their size is known when this is compiled. */
static inline void gather_blocks(const struct encoded *e, struct pending *p, const int64_t bytes)
{
	for (int64_t i = 0; i < p->count; i++)
		memcpy((char *)p->x + i * bytes, (const char *)e->x + p->block[i] * bytes,
		       (size_t)bytes);
}

static inline void copy_index(const struct encode_job *job, struct encoded *e, int64_t block,
			      const uint16_t *index, int64_t i)
{
	for (int m = 0; m < job->rule->levels; m++)
		e->index[m * RUN + block] = index[m * RUN + i];
}

/* Fills p->x, p->index, p->miss and p->error of a, which says how they are scaled. */
static void try_pending(const struct encode_job *job, const struct encoded *e, struct pending *p,
			struct hzi_lattice_points *a)
{
	const int64_t bytes = job->rule->d * size_of(job->a->x_dtype);

	switch (bytes) {
	case 8:
		gather_blocks(e, p, 8);
		break;
	case 16:
		gather_blocks(e, p, 16);
		break;
	case 32:
		gather_blocks(e, p, 32);
		break;
	default:
		gather_blocks(e, p, bytes);
		break;
	}
	a->rule = job->rule;
	a->lanes = &job->lanes;
	a->x = p->x;
	a->count = p->count;
	a->x_dtype = job->a->x_dtype;
	a->far = job->far;
	a->index = p->index;
	a->miss = p->miss;
	job->kern->lattice_points(a);
}

/*
 * T, BANK with FIRST_FIT: all that are pending at one scale after the other from 1 on. CLIP: with
 * one factor after the other. Which blocks fit is hard to foretell, so that no jump depends on it.
 */
static void retry(const struct encode_job *job, struct encoded *e, struct pending *p)
{
	const struct hzi_lattice_rule *r = job->rule;
	const bool clip = r->policy == HZI_LATTICE_CLIP;

	for (int k = 1; p->count && k < (clip ? HZI_LATTICE_SHRINKS : r->scales); k++) {
		struct hzi_lattice_points a = {.inverse = r->inverse[clip ? 0 : k]};
		const int64_t count = p->count;
		const float factor = clip ? hzi_lattice_factor(r, k) : 1;

		if (clip) {
			/* Vectors are whole. */
			for (int64_t i = 0; i < count + ROOM; i++)
				p->factor[i] = factor;
			a.factors = p->factor;
		}
		try_pending(job, e, p, &a);
		/* What did not fit is written over once more. */
		for (int m = 0; m < r->levels; m++) {
			for (int64_t i = 0; i < count; i++)
				e->index[m * RUN + p->block[i]] = p->index[m * RUN + i];
		}
		p->count = 0;
		for (int64_t i = 0; i < count; i++) {
			const int16_t block = p->block[i];

			e->t[block] = clip ? 0 : (uint8_t)k;
			e->overload[0] += clip & !p->miss[i];
			if (__builtin_expect(p->miss[i] & HZI_LATTICE_FAR, 0)) {
				index_by_rule(job, e, block);
				continue;
			}
			p->block[p->count] = block;
			p->count += p->miss[i] != 0;
		}
	}
	for (int64_t i = 0; i < p->count; i++)
		index_by_rule(job, e, p->block[i]);
}

/* The first try of all blocks at scale t; error: NULL or to be filled */
static void try_all(const struct encode_job *job, const struct encoded *e, int t, uint16_t *index,
		    uint16_t *miss, float *error)
{
	job->kern->lattice_points(&(struct hzi_lattice_points){
		.rule = job->rule,
		.lanes = &job->lanes,
		.x = e->x,
		.count = e->count,
		.x_dtype = job->a->x_dtype,
		.inverse = job->rule->inverse[t],
		.far = job->far,
		.index = index,
		.miss = miss,
		.error = error,
	});
}

static inline bool none_missed(const uint16_t *miss)
{
	uint64_t four;

	memcpy(&four, miss, 8);
	return four == 0;
}

/* WRAP, T, CLIP, BANK with FIRST_FIT */
static void encode_first_fit(const struct encode_job *job, struct encoded *e, struct pending *p)
{
	const int64_t count = e->count;
	int64_t misses = 0;

	try_all(job, e, 0, e->index, e->miss, NULL);
	memset(e->t, 0, (size_t)count);
	for (int64_t i = 0; i < 4; i++)
		e->miss[count + i] = 0;
	for (int64_t i = 0; i < count; i += 4) {
		/* Most fit, and are passed by four. */
		if (none_missed(e->miss + i))
			continue;
		for (int64_t j = i; j < i + 4; j++) {
			p->block[misses] = (int16_t)j;
			misses += e->miss[j] != 0;
		}
	}
	p->count = 0;
	for (int64_t i = 0; i < misses; i++) {
		const int16_t block = p->block[i];

		if (__builtin_expect(e->miss[block] & HZI_LATTICE_FAR, 0))
			index_by_rule(job, e, block);
		else
			p->block[p->count++] = block;
	}
	if (job->rule->policy == HZI_LATTICE_WRAP)
		e->overload[0] += p->count;
	else
		retry(job, e, p);
}

/* BANK: all scales, of which the best is kept */
static void encode_best_fit(const struct encode_job *job, struct encoded *e, struct pending *p)
{
	const struct hzi_lattice_rule *r = job->rule;
	float error[RUN + ROOM], least[RUN];

	memset(e->t, 255, (size_t)e->count);
	for (int t = 0; t < r->scales; t++) {
		const float square = r->scale[t] * r->scale[t];

		try_all(job, e, t, p->index, p->miss, error);
		for (int64_t i = 0; i < e->count; i++) {
			const float scaled = error[i] * square;

			if (p->miss[i] || (e->t[i] != 255 && !(scaled < least[i])))
				continue;
			least[i] = scaled;
			e->t[i] = (uint8_t)t;
			copy_index(job, e, i, p->index, i);
		}
	}
	for (int64_t i = 0; i < e->count; i++) {
		if (e->t[i] == 255)
			index_by_rule(job, e, i);
	}
}

/* The first scale at which no block of a group is beyond reach; -1: for the rule alone */
static int first_scale(const struct encode_job *job, const float *x, int64_t elements)
{
	const struct hzi_lattice_rule *r = job->rule;
	const int32_t bits = job->kern->vlut_most(x, elements);
	float most;
	int t = 0;

	memcpy(&most, &bits, 4);
	while (t < r->scales && !(most * r->inverse[t] <= r->reach))
		t++;
	return bits < 0x7f800000 && t < r->scales ? t : -1;
}

/* A try of blocks i .. end - 1 of the pending, a group; whether to try the next scale */
static bool judge_group(const struct encode_job *job, struct encoded *e, const struct pending *p,
			int64_t i, int64_t end, struct group_state *g)
{
	const struct hzi_lattice_rule *r = job->rule;
	const int t = p->t[i], tries = r->flags & HZI_LATTICE_FIRST_FIT ? 1 : HZI_LATTICE_TRIES;
	float sum = 0;
	int any = 0;

	for (int64_t j = i; j < end; j++) {
		any |= p->miss[j];
		sum += p->error[j];
	}
	if (!any) {
		sum *= r->scale[t] * r->scale[t];
		if (g->best < 0)
			g->end = t + tries < r->scales ? t + tries : r->scales;
		if (g->best < 0 || sum < g->least) {
			g->best = t;
			g->least = sum;
			for (int64_t j = i; j < end; j++)
				copy_index(job, e, p->block[j], p->index, j);
		}
	}
	return t + 1 < g->end;
}

/* The blocks of a group, at scale t */
static inline void add_group(const struct encode_job *job, struct pending *p, int64_t first,
			     int64_t blocks, int t)
{
	const float inverse = job->rule->inverse[t];

	for (int64_t j = 0; j < blocks; j++) {
		p->block[p->count] = (int16_t)(first + j);
		p->inverse[p->count] = inverse;
		p->t[p->count++] = (uint8_t)t;
	}
}

/* GROUP, as hzi_lattice_group(): all blocks of a group again at the next scale */
static void encode_groups(const struct encode_job *job, struct encoded *e, struct pending *p)
{
	const struct hzi_lattice_rule *r = job->rule;
	struct group_state *const state = p->state;
	float *const x = p->x;		/* until something is tried */

	floats_of(job, e->x, e->count * r->d, x);
	p->count = 0;
	for (int64_t i = 0; i < e->count; i += r->group) {
		const int64_t blocks = min_of(r->group, e->count - i);
		const int t = first_scale(job, x + i * r->d, blocks * r->d);

		state[i] = (struct group_state){.best = -1, .end = r->scales};
		if (t >= 0)
			add_group(job, p, i, blocks, t);
	}
	while (p->count) {
		const int64_t count = p->count;
		int64_t blocks;

		for (int64_t i = count; i < count + ROOM; i++)
			p->inverse[i] = 0;
		try_pending(job, e, p, &(struct hzi_lattice_points){
			.inverses = p->inverse,
			.error = p->error,
		});
		p->count = 0;
		for (int64_t i = 0; i < count; i += blocks) {
			const int64_t first = p->block[i];
			const int t = p->t[i];

			blocks = min_of(r->group, e->count - first);
			if (judge_group(job, e, p, i, i + blocks, &state[first]))
				add_group(job, p, first, blocks, t + 1);
		}
	}
	for (int64_t i = 0; i < e->count; i += r->group) {
		e->t[i] = (uint8_t)state[i].best;
		if (state[i].best < 0)
			index_by_rule(job, e, i);
	}
}

/* ---- Encoding: codes ------------------------------------------------------------------------- */

/* Indices of a run to codes of its blocks */
static void put_codes(const struct encode_job *job, const struct encoded *e, void *codes)
{
	const struct hzi_lattice_encode_args *a = job->a;
	const struct hzi_lattice_rule *r = job->rule;
	const int64_t bytes = size_of(a->code_dtype);
	int32_t digits[DIMS];

	if (a->pack == HZ_LATTICE_LEVEL && job->map.code_level == 1 &&
	    job->map.code_block == r->levels && bytes <= 2) {
		job->kern->lattice_codes(&(struct hzi_lattice_codes){
			.index = e->index,
			.codes = codes,
			.count = e->count,
			.levels = r->levels,
			.bytes = (int32_t)bytes,
		});
		return;
	}
	for (int64_t i = 0; i < e->count; i++) {
		struct hzi_lattice_code c =
			hzi_lattice_code_at(offset(codes, i * job->map.code_block, bytes),
					    job->map.code_level, (int)bytes, a->pack);
		uint64_t whole = 0;

		if (a->pack == HZ_LATTICE_LIMBS) {
			for (int m = 0; m < r->levels; m++) {
				hzi_lattice_unindex(r, e->index[m * RUN + i], digits);
				hzi_lattice_put(&c, r, digits);
			}
			hzi_lattice_flush(&c);
		} else if (a->pack == HZ_LATTICE_FULL64) {
			for (int m = r->levels - 1; m >= 0; m--)
				whole = whole * r->level_size + e->index[m * RUN + i];
			hzi_lattice_store(&c, 0, whole);
		} else {
			for (int m = 0; m < r->levels; m++)
				hzi_lattice_store(&c, m, e->index[m * RUN + i]);
		}
	}
}

/* A unit: a run of a row */
struct run {
	const void *x;
	int64_t valid;			/* values of it that are there, the others count as 0 */
	int64_t count;
	void *codes;
	uint8_t *t;			/* NULL: not wanted */
};

static struct run run_of(const struct encode_job *job, int64_t unit)
{
	const struct hzi_lattice_encode_args *a = job->a;
	const struct place at = row_place(&job->map, unit / job->runs);
	const int64_t first = unit % job->runs * job->run, d = job->rule->d;
	const int64_t count = min_of(job->run, job->map.blocks - first);

	return (struct run){
		.x = offset(a->x, at.v + first * d * job->map.v_step, size_of(a->x_dtype)),
		.valid = min_of(count * d, job->map.n - first * d),
		.count = count,
		.codes = offset(a->codes, at.code + first * job->map.code_block,
				size_of(a->code_dtype)),
		.t = a->t ? a->t + at.t + first / job->rule->group * job->map.t_step : NULL,
	};
}

/* Blocks of a run back to back: where they lie, or in apart */
static const void *blocks_of(const struct encode_job *job, const struct run *run, float *apart)
{
	const int64_t step = job->map.v_step, values = run->count * job->rule->d;

	if (step == 1 && run->valid == values)
		return run->x;
	gather(run->x, step, size_of(job->a->x_dtype), run->valid, values, apart);
	return apart;
}

/* Values begin .. begin + count - 1 of a run, at most GROUP, as f32 */
static void take_values(const struct encode_job *job, const struct run *run, int64_t begin,
			int64_t count, float *to)
{
	const int64_t size = size_of(job->a->x_dtype), step = job->map.v_step;
	float apart[GROUP];

	gather(offset(run->x, begin * step, size), step, size, min_of(count, run->valid - begin),
	       count, apart);
	floats_of(job, apart, count, to);
}

static void add_overload(struct encode_job *job, const int64_t *overload)
{
	for (int i = 0; i < 2; i++)
		__atomic_fetch_add(&job->overload[i], overload[i], __ATOMIC_RELAXED);
}

static void encode_by_rule(void *data, int thread, int64_t begin, int64_t end)
{
	struct encode_job *job = data;
	const struct hzi_lattice_encode_args *a = job->a;
	const struct hzi_lattice_rule *r = job->rule;
	const int64_t bytes = size_of(a->code_dtype);
	int64_t overload[2] = {0, 0};
	struct group group;
	int32_t p[DIMS];

	(void)thread;
	for (int64_t u = begin; u < end; u++) {
		const struct run run = run_of(job, u);

		for (int64_t i = 0; i < run.count; i += r->group) {
			const int64_t count = min_of(r->group, run.count - i);

			take_values(job, &run, i * r->d, count * r->d, group.v);
			take_group(job, count, overload, &group);
			for (int64_t j = 0; j < count; j++) {
				void *const code = offset(run.codes, (i + j) * job->map.code_block,
							  bytes);

				point_of(job, &group, j, overload, p);
				hzi_lattice_write(r, job->matrices, p,
						  hzi_lattice_code_at(code, job->map.code_level,
								      (int)bytes, a->pack));
			}
			if (run.t)
				run.t[i / r->group * job->map.t_step] = (uint8_t)group.t;
		}
	}
	add_overload(job, overload);
}

static void put_t(const struct encoded *e, int64_t group, int64_t step, uint8_t *t)
{
	for (int64_t i = 0; i < e->count; i += group, t += step)
		*t = e->t[i];
}

static void encode_in_lanes(void *data, int thread, int64_t begin, int64_t end)
{
	struct encode_job *job = data;
	const struct hzi_lattice_rule *r = job->rule;
	struct room *room = &job->rooms[thread];
	struct encoded *e = &room->encoded;
	struct pending *p = &room->pending;

	e->overload[0] = e->overload[1] = 0;
	for (int64_t u = begin; u < end; u++) {
		const struct run run = run_of(job, u);

		e->count = run.count;
		e->x = blocks_of(job, &run, e->apart);
		if (r->policy == HZI_LATTICE_GROUP)
			encode_groups(job, e, p);
		else if (r->policy == HZI_LATTICE_BANK && !(r->flags & HZI_LATTICE_FIRST_FIT))
			encode_best_fit(job, e, p);
		else
			encode_first_fit(job, e, p);
		put_codes(job, e, run.codes);
		if (run.t)
			put_t(e, r->group, job->map.t_step, run.t);
	}
	add_overload(job, e->overload);
}

/* Work for a value is that of moving some tens of bytes, by the rule alone thousands. */
static int threads_of(const struct hz_context *ctx, const struct encode_job *job)
{
	const int64_t values = rows_of(&job->map) * job->map.n;

	return hzi_threads(ctx, values * (job->in_lanes ? 16 : 512));
}

static struct encode_job make_job(const struct hz_context *ctx,
				  const struct hzi_lattice_encode_args *a)
{
	const struct hzi_lattice_rule *r = &a->lattice->rule;
	struct encode_job job = {
		.kern = ctx->kern,
		.a = a,
		.rule = r,
		.matrices = a->matrices,
		.map = hzi_lattice_join(&a->map, r, true),
	};
	int64_t most, threads;

	job.in_lanes = hzi_lattice_lanes(a->lattice, &job.lanes, &job.far);
	most = job.in_lanes ? min_of(RUN, VALUES / r->d) : LEAST_RUN;
	threads = threads_of(ctx, &job);
	while (threads > 1 && most > LEAST_RUN &&
	       rows_of(&job.map) * (job.map.blocks / most) < 4 * threads)
		most /= 2;
	job.run = most / r->group * r->group;
	job.runs = ceil_div(job.map.blocks, job.run);
	return job;
}

int hzi_cpu_lattice_encode(struct hz_context *ctx, const struct hzi_lattice_encode_args *a)
{
	struct encode_job job = make_job(ctx, a);

	job.rooms = ctx->workspace;
	hzi_parallel(threads_of(ctx, &job), job.in_lanes ? encode_in_lanes : encode_by_rule, &job,
		     rows_of(&job.map) * job.runs);
	if (a->overload)
		memcpy(a->overload, job.overload, sizeof(job.overload));
	return HZ_OK;
}

size_t hzi_cpu_lattice_encode_workspace(const struct hz_context *ctx,
					const struct hzi_lattice_encode_args *a)
{
	const struct encode_job job = make_job(ctx, a);

	return job.in_lanes ? (size_t)threads_of(ctx, &job) * sizeof(struct room) : 0;
}
