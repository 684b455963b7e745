/*
 * lattice_decode.c - lattice codes to values, points or digits on the CPU; other packings of them
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#include <config.h>

#include "cpu/lattice.h"

static void scatter(const void *from, int64_t step, int64_t size, int64_t count, void *to)
{
	for (int64_t i = 0; i < count; i++)
		memcpy((char *)to + i * step * size, (const char *)from + i * size, (size_t)size);
}

/* ---- Decoding -------------------------------------------------------------------------------- */

struct decode_job {
	const struct hz_kern *kern;
	const struct hzi_lattice_decode_args *a;
	const struct hz_lattice *lattice;
	const struct hzi_lattice_rule *rule;
	struct hzi_lattice_map map;
	struct hzi_lane_rule lanes;
	bool in_lanes, stream, plain;	/* plain: no sub */
	int64_t run, runs;
};

#define PLAIN_RUN (4 * RUN)		/* blocks that are done at once, if they have no T */

/* T of blocks first .. first + count - 1 */
static void get_t(const struct decode_job *job, const struct place *at, int64_t first,
		  int64_t count, uint8_t *t)
{
	const struct hzi_lattice_decode_args *a = job->a;
	const int group = job->rule->group, last = job->rule->scales - 1;
	const uint8_t *from = a->t + at->t + first / group * job->map.t_step;
	int64_t i = 0;

	while (i < count) {
		const int64_t end = min_of(i + group, count);

		for (; i < end; i++)
			t[i] = (uint8_t)(*from < last ? *from : last);
		from += job->map.t_step;
	}
}

/* The scales of these, of which a T for each block is the common case */
static void get_scales(const struct decode_job *job, const struct place *at, int64_t first,
		       int64_t count, float *scales)
{
	const struct hzi_lattice_rule *r = job->rule;
	const int64_t step = job->map.t_step;
	const uint8_t *from = job->a->t + at->t + first / r->group * step;
	const int last = r->scales - 1;

	if (r->group == 1) {
		for (int64_t i = 0; i < count; i++, from += step)
			scales[i] = r->scale[*from < last ? *from : last];
		return;
	}
	for (int64_t i = 0; i < count; from += step) {
		const int64_t end = min_of(i + r->group, count);
		const float scale = r->scale[*from < last ? *from : last];

		for (; i < end; i++)
			scales[i] = scale;
	}
}

static struct hzi_lattice_code code_of(const struct decode_job *job, const struct place *at,
				       int64_t block)
{
	const struct hzi_lattice_decode_args *a = job->a;
	const int64_t bytes = size_of(a->code_dtype);

	return hzi_lattice_code_at(offset(a->codes, at->code + block * job->map.code_block, bytes),
				   job->map.code_level, (int)bytes, a->pack);
}

/* The point of a block: by the table of leaders, or by the rule */
static void point_of(const struct decode_job *job, struct hzi_lattice_code c, int32_t *p)
{
	const struct hzi_lattice_rule *r = job->rule;
	const int first = job->a->first, embed = r->embed;
	int32_t weight = 1;
	uint64_t whole = 0;

	if (!job->lattice->leaders || c.pack == HZI_LATTICE_LIMBS) {
		hzi_lattice_read(r, job->a->matrices, c, first, p);
		return;
	}
	memset(p, 0, (size_t)embed * sizeof(*p));
	if (c.pack == HZI_LATTICE_FULL64)
		whole = hzi_lattice_load(&c, 0);
	for (int m = 0; m < r->levels; m++) {
		uint64_t index = 0;

		if (c.pack == HZI_LATTICE_FULL64) {
			index = whole % r->level_size;
			whole /= r->level_size;
		} else if (m >= first) {
			index = hzi_lattice_load(&c, m - first);
			/* What no digits have; divisions take their time. */
			if (index >= r->level_size)
				index %= r->level_size;
		}
		if (m >= first) {
			const int32_t *leader = job->lattice->leaders + (int64_t)index * embed;

			for (int i = 0; i < embed; i++)
				p[i] += weight * leader[i];
		}
		weight *= r->q;
	}
}

/*
 * Values that are made of points at a time, and lie on the stack, of which threads may have little
 */
#define PIECE 1024

/* count values, at most PIECE, in f32, to y */
static void put_floats(const struct decode_job *job, const float *x, int64_t count, void *y)
{
	const struct hzi_lattice_decode_args *a = job->a;
	float apart[PIECE];

	job->kern->head(&(struct hzi_head){
		.x = x,
		.y = job->map.v_step == 1 ? y : apart,
		.rows = 1,
		.count = count,
		.x_dtype = HZ_F32,
		.y_dtype = a->y_dtype,
	});
	if (job->map.v_step != 1)
		scatter(apart, job->map.v_step, size_of(a->y_dtype), count, y);
}

/* Blocks of a run, of at most PIECE values, with T if there is any */
static void decode_piece(const struct decode_job *job, const struct place *at, int64_t first,
			 int64_t count, const uint8_t *ts)
{
	const struct hzi_lattice_decode_args *a = job->a;
	const struct hzi_lattice_rule *r = job->rule;
	const int64_t d = r->d, values = min_of(count * d, job->map.n - first * d);
	void *y = offset(a->y, at->v + first * d * job->map.v_step, size_of(a->y_dtype));
	const bool direct = r->kind != HZI_LATTICE_A2 && !(r->flags & HZI_LATTICE_MAPPED) &&
			    job->map.v_step == 1;
	int32_t p[PIECE];
	float x[PIECE];

	for (int64_t i = 0; i < count; i++) {
		const int t = ts[i];
		int32_t *const point = p + i * d;

		if (!direct) {
			int32_t g[DIMS];

			point_of(job, code_of(job, at, first + i), g);
			hzi_lattice_value(r, a->matrices, g, a->sub, t, x + i * d);
			continue;
		}
		point_of(job, code_of(job, at, first + i), point);
		for (int64_t j = 0; j < d; j++) {
			point[j] -= r->offset[j];
			x[i * d + j] = r->scale[t];
		}
	}
	if (!direct) {
		put_floats(job, x, values, y);
		return;
	}
	job->kern->lattice_scale(&(struct hzi_lattice_scale){
		.p = p,
		.y = y,
		.count = values,
		.d = (int32_t)d,
		.y_dtype = a->y_dtype,
		.unit = r->kind == HZI_LATTICE_E8 ? 0.5f : 1,
		.scales = x,
		.sub = job->plain ? NULL : a->sub,
	});
}

static void decode_values(const struct decode_job *job, const struct place *at, int64_t first,
			  int64_t count)
{
	const struct hzi_lattice_rule *r = job->rule;
	const int64_t blocks = min_of(RUN, PIECE / r->d) / r->group * r->group;
	uint8_t t[RUN] = {0};

	for (int64_t i = 0; i < count; i += blocks) {
		const int64_t n = min_of(blocks, count - i);

		if (job->a->t)
			get_t(job, at, first + i, n, t);
		decode_piece(job, at, first + i, n, t);
	}
}

/* Whole blocks, codes and values back to back */
static void decode_in_lanes(const struct decode_job *job, const struct place *at, int64_t first,
			    int64_t count)
{
	const struct hzi_lattice_decode_args *a = job->a;
	const struct hzi_lattice_rule *r = job->rule;
	const int64_t bytes = size_of(a->code_dtype);
	float scales[RUN + ROOM];

	if (a->t) {
		get_scales(job, at, first, count, scales);
		memset(scales + count, 0, ROOM * sizeof(*scales));
	}
	job->kern->lattice_values(&(struct hzi_lattice_values){
		.rule = r,
		.lanes = &job->lanes,
		.codes = offset(a->codes, at->code + first * job->map.code_block, bytes),
		.y = offset(a->y, at->v + first * r->d, size_of(a->y_dtype)),
		.count = count,
		.levels = r->levels - a->first,
		.bytes = (int32_t)bytes,
		.first = a->first,
		.y_dtype = a->y_dtype,
		.scale = r->scale[0],
		.scales = a->t ? scales : NULL,
		.sub = job->plain ? NULL : a->sub,
		.stream = job->stream,
	});
}

/* What went past the caches is seen by other threads. */
static void end_stream(const struct decode_job *job)
{
	job->kern->lattice_values(&(struct hzi_lattice_values){
		.rule = job->rule,
		.lanes = &job->lanes,
		.y_dtype = job->a->y_dtype,
		.stream = true,
	});
}

static void put_integer(void *y, int64_t i, int64_t size, int32_t v)
{
	memcpy((char *)y + i * size, &v, (size_t)size);
}

/* POINTS and DIGITS of a block */
static void decode_integers(const struct decode_job *job, const struct place *at, int64_t block)
{
	const struct hzi_lattice_decode_args *a = job->a;
	const struct hzi_lattice_rule *r = job->rule;
	const int64_t size = size_of(a->y_dtype);
	struct hzi_lattice_code c = code_of(job, at, block);
	void *y = offset(a->y, at->v + block * job->map.v_block, size);
	int32_t v[DIMS];

	if (a->to == HZ_LATTICE_POINTS) {
		point_of(job, c, v);
		for (int i = 0; i < r->embed; i++)
			put_integer(y, i * job->map.v_step, size, v[i]);
		return;
	}
	for (int m = a->pack == HZ_LATTICE_LEVEL ? a->first : 0; m < r->levels; m++) {
		hzi_lattice_get(&c, r, v);
		for (int i = 0; i < r->d && m >= a->first; i++)
			put_integer(y, (m - a->first) * job->map.v_level + i * job->map.v_step,
				    size, v[i]);
	}
}

/* Unit: a run of a row */
static void decode_units(void *data, int thread, int64_t begin, int64_t end)
{
	const struct decode_job *job = data;

	(void)thread;
	for (int64_t u = begin; u < end; u++) {
		const struct place at = row_place(&job->map, u / job->runs);
		const int64_t first = u % job->runs * job->run;
		const int64_t count = min_of(job->run, job->map.blocks - first);

		/* Of the last block of a row some values may be missing. */
		const int64_t whole = min_of(count, job->map.n / job->rule->d - first);

		if (job->a->to != HZ_LATTICE_VALUES) {
			for (int64_t i = 0; i < count; i++)
				decode_integers(job, &at, first + i);
		} else if (!job->in_lanes) {
			decode_values(job, &at, first, count);
		} else {
			decode_in_lanes(job, &at, first, whole);
			decode_values(job, &at, first + whole, count - whole);
		}
	}
	if (job->stream)
		end_stream(job);
}

int hzi_cpu_lattice_decode(struct hz_context *ctx, const struct hzi_lattice_decode_args *a)
{
	const struct hzi_lattice_rule *r = &a->lattice->rule;
	const int64_t size = size_of(a->y_dtype);
	struct decode_job job = {
		.kern = ctx->kern,
		.a = a,
		.lattice = a->lattice,
		.rule = r,
		.map = hzi_lattice_join(&a->map, r, a->to == HZ_LATTICE_VALUES),
		.plain = true,
	};
	int64_t elements, bytes;
	int32_t far;

	for (int i = 0; i < r->d; i++)
		job.plain &= a->sub[i] == 0;
	job.in_lanes = a->to == HZ_LATTICE_VALUES && a->pack == HZ_LATTICE_LEVEL &&
		       job.map.v_step == 1 &&
		       (job.map.code_level == 1 || r->levels - a->first == 1) &&
		       job.map.code_block == r->levels - a->first &&
		       hzi_lattice_lanes(a->lattice, &job.lanes, &far) && job.lanes.bytes;
	job.run = a->t ? RUN / r->group * r->group : PLAIN_RUN;
	job.runs = ceil_div(job.map.blocks, job.run);
	elements = rows_of(&job.map) * job.map.blocks *
		   (a->to == HZ_LATTICE_VALUES ? r->d : a->to == HZ_LATTICE_POINTS ? r->embed :
							 r->levels * r->d);
	bytes = elements * size;
	job.stream = job.in_lanes && bytes > hzi_cache_share(ctx) / 4 * 3 &&
		     (uintptr_t)a->y % 64 == 0;
	for (int i = 0; i < job.map.ndim; i++)
		job.stream &= job.map.v_stride[i] * size % 64 == 0;
	hzi_parallel(hzi_threads(ctx, job.in_lanes ? 2 * bytes : elements * 64), decode_units, &job,
		     rows_of(&job.map) * job.runs);
	return HZ_OK;
}

size_t hzi_cpu_lattice_decode_workspace(const struct hz_context *ctx,
					const struct hzi_lattice_decode_args *a)
{
	(void)ctx;
	(void)a;
	return 0;
}

/* ---- Repacking ------------------------------------------------------------------------------- */

struct repack_job {
	const struct hzi_lattice_repack_args *a;
	int64_t runs;
};

static void repack_units(void *data, int thread, int64_t begin, int64_t end)
{
	const struct repack_job *job = data;
	const struct hzi_lattice_repack_args *a = job->a;
	const struct hzi_lattice_rule *r = &a->lattice->rule;
	const int64_t from_size = size_of(a->from_dtype), to_size = size_of(a->to_dtype);

	(void)thread;
	for (int64_t u = begin; u < end; u++) {
		const int64_t row = u / job->runs, first = u % job->runs * RUN;
		const int64_t last = min_of(first + RUN, a->from.blocks);
		const int64_t from = row_place(&a->from, row).code;
		const int64_t to = row_place(&a->to, row).code;

		for (int64_t i = first; i < last; i++) {
			struct hzi_lattice_code in = hzi_lattice_code_at(
				offset(a->from_codes, from + i * a->from.code_block, from_size),
				a->from.code_level, (int)from_size, a->from_pack);
			struct hzi_lattice_code out = hzi_lattice_code_at(
				offset(a->to_codes, to + i * a->to.code_block, to_size),
				a->to.code_level, (int)to_size, a->to_pack);
			int32_t digits[DIMS];

			for (int m = 0; m < r->levels; m++) {
				hzi_lattice_get(&in, r, digits);
				hzi_lattice_put(&out, r, digits);
			}
			hzi_lattice_flush(&out);
		}
	}
}

int hzi_cpu_lattice_repack(struct hz_context *ctx, const struct hzi_lattice_repack_args *a)
{
	struct repack_job job = {.a = a, .runs = ceil_div(a->from.blocks, RUN)};
	const int64_t rows = rows_of(&a->from);

	hzi_parallel(hzi_threads(ctx, rows * a->from.blocks * a->lattice->rule.levels *
				      a->lattice->rule.d * 16),
		     repack_units, &job, rows * job.runs);
	return HZ_OK;
}

size_t hzi_cpu_lattice_repack_workspace(const struct hz_context *ctx,
					const struct hzi_lattice_repack_args *a)
{
	(void)ctx;
	(void)a;
	return 0;
}
