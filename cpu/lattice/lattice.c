/*
 * lattice.c - encoding by a lattice quantizer on the CPU: runs of blocks, policies
 *
 * SPDX-License-Identifier: BSD-2-Clause
 *
 * lattice_points() first tries a run of up to HZI_LATTICE_RUN blocks of a row; blocks that miss are
 * gathered and tried again with the next scale of the policy. Quantizers that do not fit SIMD lanes
 * use lib/lattice/lattice_math.h, block by block.
 */
#include <config.h>

#include <assert.h>
#include <math.h>

#include "cpu/lattice/lattice.h"

/* ---- Encoding block by block, scalar --------------------------------------------------------- */

struct encode_job {
	const struct hzi_lattice_kern *kern;
	const struct hzi_lattice_encode_args *a;
	const struct hzi_lattice_rule *rule;
	const struct hzi_lattice_matrices *matrices;
	struct hzi_lattice_map map;
	struct hzi_lattice_simd lanes;
	bool by_simd;
	int32_t round_max;
	struct hzi_lattice_codec codec;	/* with by_simd */
	float norm;			/* see reach_squared(); with GROUP */
	int64_t run, runs;		/* blocks of a run, runs of a row */
	int64_t overload[2];		/* sums over all threads */
	struct scratch *scratches;		/* one per thread, with by_simd */
	struct hzi_lattice_cells *cells;	/* of codes with a shaping; NULL: not used */
};

#define RUN_VALUES 8192			/* of a run, at most */
#define LEAST_RUN 256			/* blocks of a run, where threads need work */

/* The results of a run */
struct encoded {
	const void *x;			/* contiguous blocks */
	int64_t count;
	int64_t overload[2];
	uint8_t t[RUN];			/* of a group: at its first block */
	uint16_t index[HZI_LATTICE_ARRAYS * RUN + PADDING];
	uint16_t miss[RUN + PADDING];
	float gathered[RUN_VALUES + PADDING];	/* x, if its values are not contiguous */
};

/* Converts count values to f32. */
static void to_f32(const struct encode_job *job, const void *x, int64_t count, float *to)
{
	job->kern->convert(&(struct hzi_convert){
		.x = x,
		.y = to,
		.rows = 1,
		.count = count,
		.x_dtype = job->a->x_dtype,
		.y_dtype = HZ_F32,
		.scale = 1,
	});
}

/* Blocks that share T; one block without GROUP */
struct group {
	float v[GROUP];
	uint8_t skip[GROUP];
	int t;				/* without GROUP: set with the point */
};

/* Maps the count blocks of x in g->v, and with GROUP chooses their scale. */
static void map_group(const struct encode_job *job, int64_t count, int64_t *overload,
		      struct group *g)
{
	const struct hzi_lattice_rule *r = job->rule;

	for (int64_t i = 0; i < count; i++) {
		float *const v = g->v + i * r->d;
		const int met = hzi_lattice_map(r, job->matrices, v, v);

		overload[1] += met != 0;
		g->skip[i] = (met & HZI_LATTICE_IS_NAN) != 0;
	}
	g->t = hzi_lattice_grouped(r) ?
		       hzi_lattice_group(r, job->matrices, (int)count, g->v, g->skip) : 0;
}

/* flatten: otherwise GCC 12 warns that coordinates may be uninitialized. */
static __attribute__((flatten)) void point_of(const struct encode_job *job, struct group *g,
					      int64_t i, int64_t *overload, int32_t *p)
{
	const struct hzi_lattice_rule *r = job->rule;
	const float *const v = g->v + i * r->d;

	if (g->skip[i])
		memcpy(p, r->offset, sizeof(r->offset));
	else if (hzi_lattice_grouped(r))
		overload[0] += hzi_lattice_at(r, job->matrices, v, g->t, p);
	else
		overload[0] += hzi_lattice_choose_any(r, job->matrices, v, &g->t, p);
}

/* Stores the index of a level. */
static void store_index(const struct encode_job *job, const int32_t *digits, uint16_t *index)
{
	const int count = job->lanes.digits;

	HZI_LATTICE_KNOWN(job->rule);
	assert(count > 0);
	for (int first = 0; first < job->rule->d; first += count, index += RUN) {
		uint32_t sum = 0;

		for (int i = (int)min_of(first + count, job->rule->d) - 1; i >= first; i--)
			sum = sum * (uint32_t)job->rule->q + (uint32_t)digits[i];
		*index = (uint16_t)sum;
	}
}

/* Encodes block or group `first` with scalar code, to the index arrays. */
static void encode_scalar(const struct encode_job *job, struct encoded *e, int64_t first)
{
	const struct hzi_lattice_rule *r = job->rule;
	const int64_t count = min_of(r->group, e->count - first);
	struct group group;
	int32_t p[DIMS], digits[DIMS];

	to_f32(job, offset(e->x, first * r->d, size_of(job->a->x_dtype)), count * r->d, group.v);
	map_group(job, count, e->overload, &group);
	for (int64_t i = 0; i < count; i++) {
		point_of(job, &group, i, e->overload, p);
		for (int m = 0; m < r->levels; m++) {
			hzi_lattice_digits(r, p, digits);
			store_index(job, digits,
				    e->index + m * job->lanes.arrays * RUN + first + i);
			hzi_lattice_parent(r, job->matrices, p);
		}
	}
	e->t[first] = (uint8_t)group.t;
}

/* ---- Encoding, SIMD -------------------------------------------------------------------------- */

/*
 * Search state of a group: its best scale so far, or -1, with its error; the first scale at which
 * all blocks fit, or the current candidate; the probe: the block that is tried alone meanwhile
 */
struct group_state {
	int best, first, probe;
	float least;
};

/* Blocks that are tried together */
struct pending {
	int64_t count;
	int16_t block[RUN + PADDING];
	uint8_t t[RUN + 1];		/* current scale, with GROUP */
	float inverse[RUN + PADDING], factor[RUN + PADDING];
	float error[RUN + PADDING];
	struct group_state state[RUN];	/* of groups, in their order */
	int16_t group[RUN], searching[RUN];	/* of a block; groups still searching */
	uint16_t index[HZI_LATTICE_ARRAYS * RUN + PADDING], miss[RUN + PADDING];
	float x[RUN_VALUES + PADDING];
};

/* Scratch of a thread, in the workspace since stacks may be small */
struct scratch {
	struct encoded encoded;
	struct pending pending;
};

/* Gathers the blocks to be tried. Callers pass a constant number of bytes. */
static inline void gather_blocks(const struct encoded *e, struct pending *p, const int64_t bytes)
{
	for (int64_t i = 0; i < p->count; i++)
		memcpy((char *)p->x + i * bytes, (const char *)e->x + p->block[i] * bytes,
		       (size_t)bytes);
}

static inline void copy_index(const struct encode_job *job, struct encoded *e, int64_t block,
			      const uint16_t *index, int64_t i)
{
	for (int n = 0; n < job->codec.layout.arrays; n++)
		e->index[n * RUN + block] = index[n * RUN + i];
}

/* Fills p->x, p->index, p->miss and p->error; a holds the scales. */
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
	a->matrices = job->matrices;
	a->lanes = &job->lanes;
	a->x = p->x;
	a->count = p->count;
	a->x_dtype = job->a->x_dtype;
	a->round_max = job->round_max;
	a->index = p->index;
	a->miss = p->miss;
	job->kern->points(a);
}

/*
 * T, BANK with FIRST_FIT: tries all pending blocks at one scale after the other from 1 on. CLIP:
 * with one factor after the other. Branchless, because which blocks fit is hard to predict.
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
			/* Kernels read whole vectors. */
			for (int64_t i = 0; i < count + PADDING; i++)
				p->factor[i] = factor;
			a.factors = p->factor;
		}
		try_pending(job, e, p, &a);
		/* Blocks that did not fit are overwritten by the next try. */
		for (int n = 0; n < job->codec.layout.arrays; n++) {
			for (int64_t i = 0; i < count; i++)
				e->index[n * RUN + p->block[i]] = p->index[n * RUN + i];
		}
		p->count = 0;
		for (int64_t i = 0; i < count; i++) {
			const int16_t block = p->block[i];

			e->t[block] = clip ? 0 : (uint8_t)k;
			e->overload[0] += clip & !p->miss[i];
			if (__builtin_expect(p->miss[i] & HZI_LATTICE_FAR, 0)) {
				encode_scalar(job, e, block);
				continue;
			}
			p->block[p->count] = block;
			p->count += p->miss[i] != 0;
		}
	}
	for (int64_t i = 0; i < p->count; i++)
		encode_scalar(job, e, p->block[i]);
}

/* Tries all blocks at scale t; error may be NULL. */
static void try_all(const struct encode_job *job, const struct encoded *e, int t, uint16_t *index,
		    uint16_t *miss, float *error)
{
	job->kern->points(&(struct hzi_lattice_points){
		.rule = job->rule,
		.matrices = job->matrices,
		.lanes = &job->lanes,
		.x = e->x,
		.count = e->count,
		.x_dtype = job->a->x_dtype,
		.inverse = job->rule->inverse[t],
		.round_max = job->round_max,
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

/* NONE, T, CLIP, BANK with FIRST_FIT */
static void encode_first_fit(const struct encode_job *job, struct encoded *e, struct pending *p)
{
	const int64_t count = e->count;
	int64_t misses = 0;

	try_all(job, e, 0, e->index, e->miss, NULL);
	memset(e->t, 0, (size_t)count);
	for (int64_t i = 0; i < 4; i++)
		e->miss[count + i] = 0;
	for (int64_t i = 0; i < count; i += 4) {
		/* Most blocks fit; four are tested at a time. */
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
			encode_scalar(job, e, block);
		else
			p->block[p->count++] = block;
	}
	if (job->rule->policy == HZI_LATTICE_NONE)
		e->overload[0] += p->count;
	else
		retry(job, e, p);
}

/* BANK: tries all scales and keeps the best. */
static void encode_best_fit(const struct encode_job *job, struct encoded *e, struct pending *p)
{
	const struct hzi_lattice_rule *r = job->rule;
	float error[RUN + PADDING], least[RUN] = {0};

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
			encode_scalar(job, e, i);
	}
}

/* The same for groups of blocks, as hzi_lattice_group() */
static void encode_best_groups(const struct encode_job *job, struct encoded *e, struct pending *p)
{
	const struct hzi_lattice_rule *r = job->rule;
	const bool first_fit = r->flags & HZI_LATTICE_FIRST_FIT;
	float error[RUN + PADDING], least[RUN] = {0};

	memset(e->t, 255, (size_t)e->count);
	for (int t = 0; t < r->scales; t++) {
		const float square = r->scale[t] * r->scale[t];

		try_all(job, e, t, p->index, p->miss, error);
		for (int64_t i = 0; i < e->count; i += r->group) {
			const int64_t end = min_of(i + r->group, e->count);
			float sum = 0;
			int missed = first_fit && e->t[i] != 255;

			for (int64_t j = i; j < end; j++) {
				missed |= p->miss[j];
				sum += error[j];
			}
			sum *= square;
			if (missed || (e->t[i] != 255 && !(sum < least[i])))
				continue;
			least[i] = sum;
			e->t[i] = (uint8_t)t;
			for (int64_t j = i; j < end; j++)
				copy_index(job, e, j, p->index, j);
		}
	}
	for (int64_t i = 0; i < e->count; i += r->group) {
		if (e->t[i] == 255)
			encode_scalar(job, e, i);
	}
}

/*
 * Upper bound of |v / s|^2 for blocks that fit: a leader is no longer than q times the covering
 * radius, and a block is no further than that from its point.
 */
static float reach_squared(const struct hzi_lattice_rule *r)
{
	double radius = r->kind == HZI_LATTICE_Z || r->d > 4 ? sqrt(r->d) / 2 : 1;
	double leaders = 0, weight = r->q, norm = 0, dither = 0;

	if (r->kind == HZI_LATTICE_E8)
		radius = 1;
	for (int m = 0; m < r->levels; m++, weight *= r->q)
		leaders += weight;
	for (int i = 0; i < r->embed; i++)
		norm += (double)r->offset[i] * r->offset[i] * (r->kind == HZI_LATTICE_E8 ? .25 : 1);
	for (int i = 0; i < r->d; i++)
		dither += (double)r->dither[i] * r->dither[i];
	radius = (radius * (leaders + 1) + sqrt(norm) + sqrt(dither)) * 1.001;
	return (float)(radius * radius);
}

/* The first scale at which a group with these largest |v|^2 and |v_i| may fit, or `scales` */
static int first_scale(const struct encode_job *job, float norm, float most)
{
	const struct hzi_lattice_rule *r = job->rule;
	int t = 0;

	while (t < r->scales && !(most * r->inverse[t] <= r->reach &&
				  norm * r->inverse[t] * r->inverse[t] <= job->norm))
		t++;
	return t;
}

static inline void add_blocks(const struct encode_job *job, struct pending *p, int64_t first,
			      int64_t blocks, int64_t group, int t)
{
	const float inverse = job->rule->inverse[t];

	for (int64_t j = first; j < first + blocks; j++) {
		p->block[p->count] = (int16_t)j;
		p->group[p->count] = (int16_t)group;
		p->t[p->count] = (uint8_t)t;
		p->inverse[p->count++] = inverse;
	}
}

static void try_groups(const struct encode_job *job, const struct encoded *e, struct pending *p)
{
	for (int64_t i = p->count; i < p->count + PADDING; i++)
		p->inverse[i] = 0;
	try_pending(job, e, p, &(struct hzi_lattice_points){
		.inverses = p->inverse,
		.error = p->error,
	});
}

/*
 * Moves the probes of the `count` searching groups to larger scales until they fit. Branchless,
 * because when they fit is hard to predict.
 */
static void advance_probes(const struct encode_job *job, const struct encoded *e, struct pending *p,
			   int64_t count)
{
	const struct hzi_lattice_rule *r = job->rule;

	p->count = 0;
	for (int64_t i = 0; i < count; i++) {
		const int64_t group = p->searching[i];

		add_blocks(job, p, p->state[group].probe, 1, group, p->state[group].first);
	}
	while (p->count) {
		const int64_t tried = p->count;

		try_groups(job, e, p);
		p->count = 0;
		for (int64_t i = 0; i < tried; i++) {
			const int16_t group = p->group[i], block = p->block[i];
			const int miss = p->miss[i] != 0, t = p->t[i] + miss;

			p->state[group].first = t;
			p->block[p->count] = block;
			p->group[p->count] = group;
			p->t[p->count] = (uint8_t)t;
			p->inverse[p->count] = r->inverse[t & (HZI_LATTICE_SCALES - 1)];
			p->count += miss & (t < r->scales);
		}
	}
}

/*
 * The error of blocks i .. i + count - 1 of the last try; -1 if one of them does not fit (*which)
 */
static float error_of(const struct pending *p, int64_t i, int64_t count, int64_t *which)
{
	float sum = 0;
	int any = 0;

	for (int64_t j = i; j < i + count; j++) {
		any |= p->miss[j];
		sum += p->error[j];
	}
	for (int64_t j = i; any && j < i + count; j++)
		*which = p->miss[j] ? j : *which;
	return any ? -1 : sum;
}

/* Records the result from i on, at scale t, as the best so far. */
static void keep_group(const struct encode_job *job, struct encoded *e, const struct pending *p,
		       int64_t i, int64_t first, int64_t count, int t, float error,
		       struct group_state *g)
{
	g->best = t;
	g->least = error;
	for (int n = 0; n < job->codec.layout.arrays; n++)
		memcpy(e->index + n * RUN + first, p->index + n * RUN + i,
		       (size_t)count * sizeof(*e->index));
}

/*
 * Tries all blocks of the `count` searching groups whose probes fit; returns how many still search.
 */
static int64_t try_probed_groups(const struct encode_job *job, struct encoded *e, struct pending *p,
				 int64_t count)
{
	const struct hzi_lattice_rule *r = job->rule;
	int64_t on = 0, i = 0;

	p->count = 0;
	for (int64_t s = 0; s < count; s++) {
		const int64_t group = p->searching[s], first = group * r->group;

		if (p->state[group].first < r->scales)
			add_blocks(job, p, first, min_of(r->group, e->count - first), group,
				   p->state[group].first);
	}
	if (p->count == 0)
		return 0;
	try_groups(job, e, p);
	while (i < p->count) {
		const int16_t group = p->group[i];
		const int64_t first = group * r->group;
		const int64_t blocks = min_of(r->group, e->count - first);
		struct group_state *g = &p->state[group];
		int64_t which = 0;
		const float error = error_of(p, i, blocks, &which), scale = r->scale[g->first];

		if (error >= 0) {
			keep_group(job, e, p, i, first, blocks, g->first,
				   error * (scale * scale), g);
		} else if (++g->first < r->scales) {
			g->probe = p->block[which];
			p->searching[on++] = group;
		}
		i += blocks;
	}
	return on;
}

/* Tries all groups `more` scales beyond the first one that fits. */
static void try_larger_scales(const struct encode_job *job, struct encoded *e, struct pending *p,
			      int64_t groups, int more)
{
	const struct hzi_lattice_rule *r = job->rule;

	p->count = 0;
	for (int64_t g = 0; g < groups; g++) {
		const int64_t first = g * r->group;
		const int t = p->state[g].first + more;

		if (p->state[g].best >= 0 && t < r->scales)
			add_blocks(job, p, first, min_of(r->group, e->count - first), g, t);
	}
	if (p->count == 0)
		return;
	try_groups(job, e, p);
	for (int64_t i = 0; i < p->count;) {
		struct group_state *g = &p->state[p->group[i]];
		const int64_t first = p->group[i] * r->group;
		const int64_t blocks = min_of(r->group, e->count - first);
		const float scale = r->scale[p->t[i]];
		int64_t which;
		float error = error_of(p, i, blocks, &which);

		error = error < 0 ? INFINITY : error * (scale * scale);
		if (error < g->least)
			keep_group(job, e, p, i, first, blocks, p->t[i], error, g);
		i += blocks;
	}
}

/*
 * GROUP, as hzi_lattice_group(). A group fits only if all of its blocks do, so the longest block is
 * tried alone first, as a probe.
 */
static void encode_groups(const struct encode_job *job, struct encoded *e, struct pending *p)
{
	const struct hzi_lattice_rule *r = job->rule;
	const int64_t groups = ceil_div(e->count, r->group);
	float *const norm = p->factor, *const most = p->error;	/* reused before the first try */
	int64_t search = 0;

	job->kern->norms(&(struct hzi_lattice_norms){
		.matrices = job->matrices,
		.x = e->x,
		.norm = norm,
		.most = most,
		.count = e->count,
		.d = r->d,
		.x_dtype = job->a->x_dtype,
	});
	for (int64_t g = 0; g < groups; g++) {
		const int64_t first = g * r->group, end = min_of(first + r->group, e->count);
		int64_t longest = first;
		float largest = 0;
		bool finite = true;

		for (int64_t j = first; j < end; j++) {
			finite &= norm[j] <= FLT_MAX;
			longest = norm[j] > norm[longest] ? j : longest;
			largest = most[j] > largest ? most[j] : largest;
		}
		p->state[g] = (struct group_state){
			.best = -1,
			.first = finite ? first_scale(job, norm[longest], largest) : r->scales,
			.probe = (int)longest,
		};
		p->searching[search] = (int16_t)g;
		search += p->state[g].first < r->scales;
	}
	while (search) {
		advance_probes(job, e, p, search);
		search = try_probed_groups(job, e, p, search);
	}
	for (int k = 1; k < HZI_LATTICE_TRIES && !(r->flags & HZI_LATTICE_FIRST_FIT); k++)
		try_larger_scales(job, e, p, groups, k);
	for (int64_t g = 0; g < groups; g++) {
		e->t[g * r->group] = (uint8_t)p->state[g].best;
		if (p->state[g].best < 0)
			encode_scalar(job, e, g * r->group);
	}
}

/* ---- Runs ------------------------------------------------------------------------------------ */

/* A unit is a run of a row. */
struct run {
	const void *x;
	int64_t valid;			/* values that exist; the others count as 0 */
	int64_t count;
	void *codes;
	uint8_t *t;			/* NULL: no T */
};

static struct run run_of(const struct encode_job *job, int64_t unit)
{
	const struct hzi_lattice_encode_args *a = job->a;
	const struct row_offsets at = row_offsets_of(&job->map, unit / job->runs);
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

/* The blocks of a run, contiguous: in place, or gathered */
static const void *blocks_of(const struct encode_job *job, const struct run *run, float *gathered)
{
	const int64_t step = job->map.v_step, values = run->count * job->rule->d;

	if (step == 1 && run->valid == values)
		return run->x;
	gather(run->x, step, size_of(job->a->x_dtype), run->valid, values, gathered);
	return gathered;
}

/* Loads values begin .. begin + count - 1 of a run, at most GROUP, as f32. */
static void load_values(const struct encode_job *job, const struct run *run, int64_t begin,
			int64_t count, float *to)
{
	const int64_t size = size_of(job->a->x_dtype), step = job->map.v_step;
	float gathered[GROUP];

	gather(offset(run->x, begin * step, size), step, size, min_of(count, run->valid - begin),
	       count, gathered);
	to_f32(job, gathered, count, to);
}

static void add_overload(struct encode_job *job, const int64_t *overload)
{
	for (int i = 0; i < 2; i++)
		__atomic_fetch_add(&job->overload[i], overload[i], __ATOMIC_RELAXED);
}

static void encode_generic(void *data, int thread, int64_t begin, int64_t end)
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

			load_values(job, &run, i * r->d, count * r->d, group.v);
			map_group(job, count, overload, &group);
			for (int64_t j = 0; j < count; j++) {
				void *const code = offset(run.codes, (i + j) * job->map.code_block,
							  bytes);

				const struct hzi_lattice_code at = hzi_lattice_code_at(
					code, job->map.code_level, (int)bytes, a->pack);

				point_of(job, &group, j, overload, p);
				if (r->shaping)
					hzi_shaped_write(r, p, at);
				else
					hzi_lattice_write(r, job->matrices, p, at);
			}
			if (run.t)
				run.t[i / r->group * job->map.t_step] = (uint8_t)group.t;
		}
	}
	add_overload(job, overload);
}

#define SHAPED HZI_LATTICE_SHAPED

/* Blocks i .. i + count - 1, at most SHAPED, as f32: in place, or in v */
static const float *shaped_values(const struct encode_job *job, const struct run *run, int64_t i,
				  int64_t count, float *v)
{
	const void *const x = offset(run->x, 8 * i, size_of(job->a->x_dtype));

	if (job->map.v_step != 1 || 8 * (i + count) > run->valid) {
		for (int64_t j = 0; j < 8 * count; j += GROUP)
			load_values(job, run, 8 * i + j, min_of(GROUP, 8 * count - j), v + j);
		return v;
	}
	if (job->a->x_dtype == HZ_F32)
		return x;
	to_f32(job, x, 8 * count, v);
	return v;
}

/* Stores codes, which every packing holds as one number, and t. */
static void store_labels(const struct encode_job *job, const struct run *run, int64_t i,
			 int64_t count, const uint32_t *label, const uint8_t *t)
{
	const int bytes = (int)size_of(job->a->code_dtype);
	void *const codes = offset(run->codes, i * job->map.code_block, bytes);
	const struct hzi_lattice_code c =
		hzi_lattice_code_at(codes, job->map.code_block, bytes, job->a->pack);

	if (bytes == 4 && job->map.code_block == 1) {
		memcpy(codes, label, (size_t)count * 4);
	} else {
		for (int64_t j = 0; j < count; j++)
			hzi_lattice_store(&c, j, label[j]);
	}
	if (job->map.t_step == 1) {
		memcpy(run->t + i, t, (size_t)count);
		return;
	}
	for (int64_t j = 0; j < count; j++)
		run->t[(i + j) * job->map.t_step] = t[j];
}

static void encode_shaped(void *data, int thread, int64_t begin, int64_t end)
{
	struct encode_job *job = data;
	const struct hzi_lattice_rule *r = job->rule;
	int64_t overload[2] = {0, 0};
	uint32_t label[SHAPED + PADDING];
	float values[8 * SHAPED], t[SHAPED + PADDING], redo[SHAPED + PADDING];
	uint8_t t8[SHAPED + PADDING];
	bool any;

	(void)thread;
	for (int64_t u = begin; u < end; u++) {
		const struct run run = run_of(job, u);

		for (int64_t i = 0; i < run.count; i += SHAPED) {
			const int64_t count = min_of(SHAPED, run.count - i);
			const float *const v = shaped_values(job, &run, i, count, values);

			job->kern->shaped(&(struct hzi_lattice_shaped){
				.rule = r, .cells = job->cells, .v = v, .label = label, .t = t,
				.redo = redo, .t8 = t8, .any = &any, .count = count,
			});
			for (int64_t j = 0; j < count && (any || job->a->overload); j++) {
				if (redo[j] == 1) {
					struct group group;
					int32_t p[DIMS];

					memcpy(group.v, v + 8 * j, 8 * sizeof(*v));
					map_group(job, 1, overload, &group);
					point_of(job, &group, 0, overload, p);
					label[j] = hzi_label_of(r->shaping, r->log2q, p);
					t8[j] = (uint8_t)group.t;
				} else if (redo[j] != 0 && job->a->overload) {
					overload[0] += redo[j] == 3 ||
						       !hzi_shaped_fits(r, v + 8 * j);
				}
			}
			store_labels(job, &run, i, count, label, t8);
		}
	}
	add_overload(job, overload);
}

static void store_t(const struct encoded *e, int64_t group, int64_t step, uint8_t *t)
{
	for (int64_t i = 0; i < e->count; i += group, t += step)
		*t = e->t[i];
}

static void encode_simd(void *data, int thread, int64_t begin, int64_t end)
{
	struct encode_job *job = data;
	const struct hzi_lattice_rule *r = job->rule;
	struct scratch *scratch = &job->scratches[thread];
	struct encoded *e = &scratch->encoded;
	struct pending *p = &scratch->pending;

	e->overload[0] = e->overload[1] = 0;
	for (int64_t u = begin; u < end; u++) {
		const struct run run = run_of(job, u);

		e->count = run.count;
		e->x = blocks_of(job, &run, e->gathered);
		if (r->policy == HZI_LATTICE_GROUP)
			encode_groups(job, e, p);
		else if (r->group > 1)
			encode_best_groups(job, e, p);
		else if (r->policy == HZI_LATTICE_BANK && !(r->flags & HZI_LATTICE_FIRST_FIT))
			encode_best_fit(job, e, p);
		else
			encode_first_fit(job, e, p);
		hzi_lattice_pack_codes(&job->codec, e->index, e->count, RUN, run.codes);
		if (run.t)
			store_t(e, r->group, job->map.t_step, run.t);
	}
	add_overload(job, e->overload);
}

/* A value costs as much as moving some tens of bytes; in scalar code thousands. */
static int threads_of(const struct hz_context *ctx, const struct encode_job *job)
{
	const int64_t values = rows_of(&job->map) * job->map.n;

	return hzi_threads(ctx, values * (job->by_simd ? 16 : 512));
}

static struct encode_job make_job(const struct hz_context *ctx,
				  const struct hzi_lattice_encode_call *c, bool by_simd)
{
	const struct hzi_lattice_encode_args *a = c->a;
	const struct hzi_lattice_rule *r = &a->lattice->rule;
	struct encode_job job = {
		.kern = hzi_lattice_kern + ctx->level,
		.a = a,
		.rule = r,
		.matrices = a->matrices,
		.map = hzi_lattice_merge_rows(&a->map, r, true),
		.by_simd = by_simd,
		.lanes = c->lanes,
		.round_max = c->round_max,
		.norm = reach_squared(r),
	};
	int64_t most, threads;

	if (by_simd)
		hzi_lattice_codec(job.kern, r, &job.lanes, a->code_dtype, a->pack, &job.codec);
	job.codec.block = job.map.code_block;
	job.codec.level = job.map.code_level;
	most = by_simd ? min_of(RUN, RUN_VALUES / r->d) : LEAST_RUN;
	threads = threads_of(ctx, &job);
	while (threads > 1 && most > LEAST_RUN &&
	       rows_of(&job.map) * (job.map.blocks / most) < 4 * threads)
		most /= 2;
	job.run = most / r->group * r->group;
	job.runs = ceil_div(job.map.blocks, job.run);
	return job;
}

int hzi_lattice_encode(struct hz_context *ctx, const struct hzi_lattice_encode_call *c,
		       bool by_simd)
{
	struct encode_job job = make_job(ctx, c, by_simd);

	job.scratches = ctx->workspace;
	hzi_parallel(ctx, threads_of(ctx, &job), by_simd ? encode_simd : encode_generic, &job,
		     rows_of(&job.map) * job.runs);
	if (c->a->overload)
		memcpy(c->a->overload, job.overload, sizeof(job.overload));
	return HZ_OK;
}

/*
 * A table takes as much time as some 2000 blocks save. Its numbers and squares of scales are normal
 * f32 numbers.
 */
size_t hzi_lattice_encode_shaped_workspace(const struct hz_context *ctx,
					   const struct hzi_lattice_encode_call *c)
{
	const struct encode_job job = make_job(ctx, c, false);
	const float largest = job.rule->scale[job.rule->largest];

	if (!job.kern->cells || job.rule->shaping != HZI_SHAPING_CUBE ||
	    rows_of(&job.map) * job.map.blocks < 2048 || largest < 0x1p-50f || largest > 0x1p50f)
		return 0;
	return sizeof(*job.cells);
}

int hzi_lattice_encode_shaped(struct hz_context *ctx, const struct hzi_lattice_encode_call *c)
{
	struct encode_job job = make_job(ctx, c, false);

	if (hzi_lattice_encode_shaped_workspace(ctx, c)) {
		job.cells = ctx->workspace;
		job.kern->cells(job.rule, job.cells);
	}
	hzi_parallel(ctx, threads_of(ctx, &job), encode_shaped, &job,
		     rows_of(&job.map) * job.runs);
	if (c->a->overload)
		memcpy(c->a->overload, job.overload, sizeof(job.overload));
	return HZ_OK;
}

size_t hzi_lattice_encode_workspace(const struct hz_context *ctx,
				    const struct hzi_lattice_encode_call *c)
{
	const struct encode_job job = make_job(ctx, c, true);

	return (size_t)threads_of(ctx, &job) * sizeof(struct scratch);
}
