/*
 * decode.c - lattice codes to values, points or digits on the CPU; other packings of them
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#include <config.h>

#include "cpu/lattice/lattice.h"

static void scatter(const void *from, int64_t step, int64_t size, int64_t count, void *to)
{
	if (size == 4) {
		for (int64_t i = 0; i < count; i++)
			((uint32_t *)to)[i * step] = ((const uint32_t *)from)[i];
	} else {
		for (int64_t i = 0; i < count; i++)
			((uint16_t *)to)[i * step] = ((const uint16_t *)from)[i];
	}
}

/* ---- Decoding -------------------------------------------------------------------------------- */

struct decode_job {
	const struct hzi_lattice_kern *kern;
	const struct hzi_lattice_decode_args *a;
	const struct hz_lattice *lattice;
	const struct hzi_lattice_rule *rule;
	struct hzi_lattice_map map;
	struct hzi_lane_rule lanes;
	/* in_lanes: contiguous codes and values, by lattice_values(); plain: sub is 0 */
	bool in_lanes, in_planes, stream, plain;
	bool joined;			/* digits: of all levels side by side */
	int64_t at_once;		/* blocks, by planes */
	struct hzi_lattice_codec codec;		/* by planes */
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
	const int64_t step = job->map.t_step, group = r->group;
	const uint8_t *from = job->a->t + at->t + first / group * step;
	const int last = r->scales - 1;

	if (step == 1) {
		float apart[RUN];
		float *const each = group == 1 ? scales : apart;

		job->kern->scales(&(struct hzi_lattice_scales){
			.t = from,
			.scale = r->scale,
			.to = each,
			.count = ceil_div(count, group),
			.last = last,
		});
		for (int64_t i = 0, g = 0; group > 1 && i < count; g++) {
			const int64_t end = min_of(i + group, count);

			while (i < end)
				scales[i++] = apart[g];
		}
		return;
	}
	for (int64_t i = 0; i < count; from += step) {
		const int64_t end = min_of(i + group, count);
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

	job->kern->convert(&(struct hzi_convert){
		.x = x,
		.y = job->map.v_step == 1 ? y : apart,
		.rows = 1,
		.count = count,
		.x_dtype = HZ_F32,
		.y_dtype = a->y_dtype,
		.scale = 1,
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
	float x[PIECE];

	for (int64_t i = 0; i < count; i++) {
		int32_t p[DIMS];

		point_of(job, code_of(job, at, first + i), p);
		hzi_lattice_value(r, a->matrices, p, a->sub, ts[i], x + i * d);
	}
	put_floats(job, x, values, offset(a->y, at->v + first * d * job->map.v_step,
					  size_of(a->y_dtype)));
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

/* ---- By planes ------------------------------------------------------------------------------- */

#define PLANE_ELEMENTS 4096	/* of all planes of what is done at once */

static void get_indices(const struct decode_job *job, const struct place *at, int64_t first,
			int64_t count, int64_t step, uint16_t *index)
{
	const void *codes = offset(job->a->codes, at->code + first * job->map.code_block,
				   size_of(job->a->code_dtype));

	hzi_lattice_take_codes(&job->codec, codes, count, step, index);
}

/* Points less o of a basis, from the table of leaders */
static void leaders_of_table(const struct decode_job *job, const uint16_t *index, int64_t count,
			     int64_t step, int16_t *p)
{
	const struct hzi_lattice_rule *r = job->rule;
	const uint32_t size = (uint32_t)r->level_size;

	for (int64_t i = 0; i < count; i++) {
		int32_t sum[DIMS], weight = 1;

		for (int j = 0; j < r->embed; j++)
			sum[j] = -r->offset[j];
		for (int m = 0; m < r->levels; m++, weight *= r->q) {
			const int32_t *leader;
			uint32_t code;

			if (m < job->a->first)
				continue;
			code = index[(m - job->a->first) * step + i];
			leader = job->lattice->leaders +
				 (int64_t)(code >= size ? code % size : code) * r->embed;
			for (int j = 0; j < r->embed; j++)
				sum[j] += weight * leader[j];
		}
		for (int j = 0; j < r->embed; j++)
			p[j * step + i] = (int16_t)sum[j];
	}
}

/* Points less o of count blocks to planes */
static void points_in_planes(const struct decode_job *job, const struct place *at, int64_t first,
			     int64_t count, int64_t step, int16_t *p)
{
	const struct hzi_lattice_rule *r = job->rule;
	uint16_t index[PLANE_ELEMENTS + HZI_LATTICE_PLANES * ROOM];

	get_indices(job, at, first, count, step, index);
	if (r->kind == HZI_LATTICE_BASIS) {
		leaders_of_table(job, index, count, step, p);
		return;
	}
	job->kern->leaders(&(struct hzi_lattice_leaders){
		.rule = r,
		.lanes = &job->lanes,
		.index = index,
		.p = p,
		.count = count,
		.step = step,
		.levels = r->levels - job->a->first,
		.first = job->a->first,
	});
}

/* At most at_once blocks to y, whole blocks of contiguous values */
static void decode_planes(const struct decode_job *job, const struct place *at, int64_t first,
			  int64_t count, void *y)
{
	const struct hzi_lattice_decode_args *a = job->a;
	const struct hzi_lattice_rule *r = job->rule;
	const int64_t step = (count + ROOM - 1) / ROOM * ROOM;
	int16_t p[PLANE_ELEMENTS + DIMS * ROOM];
	float scales[RUN + ROOM];

	points_in_planes(job, at, first, count, step, p);
	if (a->t) {
		get_scales(job, at, first, count, scales);
		memset(scales + count, 0, ROOM * sizeof(*scales));
	}
	job->kern->scale(&(struct hzi_lattice_scale){
		.rule = r,
		.matrices = a->matrices,
		.p = p,
		.y = y,
		.count = count,
		.step = step,
		.y_dtype = a->y_dtype,
		.scale = r->scale[0],
		.scales = a->t ? scales : NULL,
		.sub = job->plain ? NULL : a->sub,
	});
}

static void decode_in_planes(const struct decode_job *job, const struct place *at, int64_t first,
			     int64_t count)
{
	const int64_t d = job->rule->d, step = job->map.v_step, size = size_of(job->a->y_dtype);
	const int64_t end = first + count;
	float apart[PLANE_ELEMENTS];

	while (first < end) {
		int64_t n = min_of(job->at_once, end - first);
		void *y = offset(job->a->y, at->v + first * d * step, size);
		const int64_t values = min_of(n * d, job->map.n - first * d);

		if (step == 1 && values >= d) {
			/* A part of a block comes by itself. */
			n = values / d;
			decode_planes(job, at, first, n, y);
		} else {
			decode_planes(job, at, first, n, apart);
			scatter(apart, step, size, values, y);
		}
		first += n;
	}
}

/* ---- In lanes of bytes ----------------------------------------------------------------------- */

/* Whole blocks of contiguous codes and values */
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
	job->kern->values(&(struct hzi_lattice_values){
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
	job->kern->values(&(struct hzi_lattice_values){
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

/* ---- Points and digits, many at once --------------------------------------------------------- */

/* Digits of level m of those in use, whose planes begin at index, to as many planes as there are */
static void digits_in_planes(const struct decode_job *job, const uint16_t *index, int64_t step,
			     int16_t *p)
{
	const struct hzi_lattice_rule *r = job->rule;
	const unsigned q = (unsigned)r->q;
	const int shift = r->log2q;

	for (int n = 0; n < job->codec.powers.each; n++, index += step) {
		const int digits = hzi_lattice_digits_in(&job->codec.powers, n);

		for (int64_t i = 0; i < step; i += ROOM) {
			uint16_t rest[ROOM], digit[ROOM];

			memcpy(rest, index + i, sizeof(rest));
			/* ROOM at a time, a number the compiler makes vectors of */
			for (int j = 0; j < digits; j++) {
				int16_t *const to = p + j * step + i;

				for (int k = 0; k < ROOM && r->log2q < 0; k++) {
					const uint16_t upper = (uint16_t)(rest[k] / q);

					to[k] = (int16_t)(rest[k] - upper * q);
					rest[k] = upper;
				}
				if (r->log2q < 0)
					continue;
				for (int k = 0; k < ROOM; k++) {
					digit[k] = (uint16_t)(rest[k] & (q - 1));
					rest[k] = (uint16_t)(rest[k] >> shift);
				}
				memcpy(to, digit, sizeof(digit));
			}
		}
		p += digits * step;
	}
}

/* Interleaves `width` planes: the elements of a block, `size` bytes each, to y */
static void weave(const struct decode_job *job, const int16_t *p, int64_t count, int64_t step,
		  int64_t width, int64_t size, void *y)
{
	const struct hzi_lattice_rule planes = {.embed = (int32_t)width};

	job->kern->scale(&(struct hzi_lattice_scale){
		.rule = &planes,
		.p = p,
		.y = y,
		.count = count,
		.step = step,
		.y_dtype = size == 1 ? HZ_S8 : size == 2 ? HZ_S16 : HZ_S32,
	});
}

/* Of count blocks, width numbers each, from apart to their places */
static void spread_integers(const struct decode_job *job, const void *apart, int64_t count,
			    int64_t width, int64_t size, void *y)
{
	const int64_t step = job->map.v_step;

	for (int64_t i = 0; i < count; i++) {
		const void *from = offset(apart, i * width, size);
		void *to = offset(y, i * job->map.v_block, size);

		for (int64_t j = 0; j < width && step != 1; j++)
			memcpy(offset(to, j * step, size), offset(from, j, size), (size_t)size);
		if (step == 1)
			memcpy(to, from, (size_t)(width * size));
	}
}

/* Planes of count blocks, to where level m of them begins */
static void put_planes(const struct decode_job *job, const int16_t *p, int64_t count, int64_t step,
		       int64_t width, void *y)
{
	const int64_t size = size_of(job->a->y_dtype);
	int32_t apart[PLANE_ELEMENTS];

	if (job->map.v_step == 1 && job->map.v_block == width) {
		weave(job, p, count, step, width, size, y);
		return;
	}
	weave(job, p, count, step, width, size, apart);
	spread_integers(job, apart, count, width, size, y);
}

/* At most at_once blocks */
static void integers_in_planes(const struct decode_job *job, const struct place *at, int64_t first,
			       int64_t count)
{
	const struct hzi_lattice_decode_args *a = job->a;
	const struct hzi_lattice_rule *r = job->rule;
	const int64_t step = (count + ROOM - 1) / ROOM * ROOM, size = size_of(a->y_dtype);
	void *y = offset(a->y, at->v + first * job->map.v_block, size);
	const int levels = r->levels - a->first, each = job->codec.powers.each;
	uint16_t index[PLANE_ELEMENTS + HZI_LATTICE_PLANES * ROOM];
	int16_t p[PLANE_ELEMENTS + DIMS * ROOM];

	if (a->to == HZ_LATTICE_POINTS) {
		points_in_planes(job, at, first, count, step, p);
		put_planes(job, p, count, step, r->embed, y);
		return;
	}
	/* What is behind the last one is split too. */
	memset(index, 0, sizeof(index));
	get_indices(job, at, first, count, step, index);
	for (int m = 0; m < levels && !job->joined; m++) {
		digits_in_planes(job, index + m * each * step, step, p);
		put_planes(job, p, count, step, r->d,
			   offset(y, m * job->map.v_level, size));
	}
	for (int m = 0; m < levels && job->joined; m++)
		digits_in_planes(job, index + m * each * step, step, p + m * r->d * step);
	if (job->joined)
		put_planes(job, p, count, step, levels * r->d, y);
}

/* Points of whole vectors of blocks by lanes of bytes, to s8 or, from there, to what is wider */
static void points_in_bytes(const struct decode_job *job, const struct place *at, int64_t first,
			    int64_t count)
{
	const struct hzi_lattice_decode_args *a = job->a;
	const struct hzi_lattice_rule *r = job->rule;
	const int64_t size = size_of(a->y_dtype), d = r->d, bytes = size_of(a->code_dtype);
	int8_t *const y = offset(a->y, at->v + first * d, size);
	int8_t apart[PLANE_ELEMENTS];

	for (int64_t i = 0; i < count; i += PLANE_ELEMENTS / 8) {
		const int64_t n = min_of(PLANE_ELEMENTS / 8, count - i), code = first + i;
		int8_t *const to = y + i * d * size;

		job->kern->values(&(struct hzi_lattice_values){
			.rule = r,
			.lanes = &job->lanes,
			.codes = offset(a->codes, at->code + code * job->map.code_block, bytes),
			.y = size == 1 ? to : apart,
			.count = n,
			.levels = r->levels - a->first,
			.bytes = (int32_t)bytes,
			.first = a->first,
			.y_dtype = HZ_S8,
		});
		for (int64_t j = 0; j < n * d && size == 2; j += ROOM) {
			int16_t wide[ROOM];

			for (int k = 0; k < ROOM; k++)
				wide[k] = apart[j + k];
			memcpy(to + 2 * j, wide, sizeof(wide));
		}
		for (int64_t j = 0; j < n * d && size == 4; j += ROOM) {
			int32_t wide[ROOM];

			for (int k = 0; k < ROOM; k++)
				wide[k] = apart[j + k];
			memcpy(to + 4 * j, wide, sizeof(wide));
		}
	}
}

static void decode_all_integers(const struct decode_job *job, const struct place *at,
				int64_t first, int64_t count)
{
	const int64_t whole = job->in_lanes ? count / ROOM * ROOM : 0;

	points_in_bytes(job, at, first, whole);
	for (int64_t i = whole; i < count; i += job->at_once)
		integers_in_planes(job, at, first + i, min_of(job->at_once, count - i));
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

		if (job->a->to != HZ_LATTICE_VALUES && job->in_planes) {
			decode_all_integers(job, &at, first, count);
		} else if (job->a->to != HZ_LATTICE_VALUES) {
			for (int64_t i = 0; i < count; i++)
				decode_integers(job, &at, first + i);
		} else if (job->in_lanes) {
			decode_in_lanes(job, &at, first, whole);
			decode_in_planes(job, &at, first + whole, count - whole);
		} else if (job->in_planes) {
			decode_in_planes(job, &at, first, count);
		} else {
			decode_values(job, &at, first, count);
		}
	}
	if (job->stream)
		end_stream(job);
}

/* Digits of all levels are side by side. */
static bool joins_digits(const struct hzi_lattice_decode_args *a, const struct hzi_lattice_map *map)
{
	const struct hzi_lattice_rule *r = &a->lattice->rule;
	const int levels = r->levels - a->first;

	return levels == 1 ||
	       (map->v_step == 1 && map->v_level == r->d && levels * r->d <= DIMS);
}

/* Whether 16-bit lanes hold the digits, or the points less o, by rules or a table of leaders */
static bool fits_planes(const struct hzi_lattice_decode_args *a, struct hzi_lane_rule *lanes)
{
	const struct hz_lattice *lattice = a->lattice;
	const struct hzi_lattice_rule *r = &lattice->rule;
	int32_t offset = 0, far;

	if (a->to == HZ_LATTICE_DIGITS)
		return r->q <= 256 && hzi_lattice_digits_of(r, lanes);
	if (r->kind != HZI_LATTICE_BASIS || !lattice->leaders)
		return hzi_lattice_lanes(lattice, lanes, &far);
	for (int i = 0; i < r->d && a->to != HZ_LATTICE_POINTS; i++)
		offset = abs(r->offset[i]) > offset ? abs(r->offset[i]) : offset;
	return lattice->point_max <= INT16_MAX - offset && hzi_lattice_digits_of(r, lanes);
}

void hzi_lattice_decode_begin(struct hzi_lattice_decode_call *c,
			      const struct hzi_lattice_decode_args *a)
{
	const struct hzi_lattice_rule *r = &a->lattice->rule;
	const int levels = r->levels - a->first;
	bool in_order;

	*c = (struct hzi_lattice_decode_call){
		.a = a, .map = hzi_lattice_join(&a->map, r, a->to == HZ_LATTICE_VALUES),
	};
	c->in_planes = fits_planes(a, &c->lanes);
	in_order = a->to == HZ_LATTICE_VALUES ? c->map.v_step == 1 && !a->matrices :
						a->to == HZ_LATTICE_POINTS &&
						c->map.v_step == 1 && c->map.v_block == r->d;
	c->in_lanes = c->in_planes && a->pack == HZ_LATTICE_LEVEL && in_order && c->lanes.bytes &&
		      (c->map.code_level == 1 || levels == 1) && c->map.code_block == levels;
}

/* The codec of planes, and how many blocks they hold */
static void set_planes(struct decode_job *job)
{
	const struct hzi_lattice_decode_args *a = job->a;
	const struct hzi_lattice_rule *r = job->rule;
	int64_t most = r->embed, group;

	hzi_lattice_codec(job->kern, r, &job->lanes, a->code_dtype, a->pack, &job->codec);
	job->codec.block = job->map.code_block;
	job->codec.level = job->map.code_level;
	job->codec.first = a->first;
	job->joined = joins_digits(a, &job->map);
	if (a->to == HZ_LATTICE_DIGITS)
		most = job->joined ? (r->levels - a->first) * r->d : r->d;
	most = most < job->codec.powers.planes ? job->codec.powers.planes : most;
	group = r->group > ROOM ? r->group : ROOM / r->group * r->group;
	job->at_once = min_of(RUN, PLANE_ELEMENTS / most) / group * group;
}

int hzi_lattice_decode(struct hz_context *ctx, const struct hzi_lattice_decode_call *c,
		       bool in_planes, bool in_lanes)
{
	const struct hzi_lattice_decode_args *a = c->a;
	const struct hzi_lattice_rule *r = &a->lattice->rule;
	const int64_t size = size_of(a->y_dtype);
	struct hzi_lattice_rule with_o = *r;
	struct decode_job job = {
		.kern = hzi_lattice_kern + ctx->level, .a = a, .lattice = a->lattice, .rule = r,
		.map = c->map, .lanes = c->lanes, .in_planes = in_planes, .in_lanes = in_lanes,
		.plain = true,
	};
	int64_t elements, bytes;

	for (int i = 0; i < r->d; i++)
		job.plain &= a->sub[i] == 0;
	if (a->to == HZ_LATTICE_POINTS) {
		/* Nothing is taken off. */
		memset(with_o.offset, 0, sizeof(with_o.offset));
		job.rule = &with_o;
	}
	if (in_planes)
		set_planes(&job);
	job.run = a->t ? RUN / r->group * r->group : PLAIN_RUN;
	job.runs = ceil_div(job.map.blocks, job.run);
	elements = rows_of(&job.map) * job.map.blocks *
		   (a->to == HZ_LATTICE_VALUES ? r->d : a->to == HZ_LATTICE_POINTS ? r->embed :
							 r->levels * r->d);
	bytes = elements * size;
	job.stream = in_lanes && a->to == HZ_LATTICE_VALUES &&
		     bytes > hzi_cache_share(ctx) / 4 * 3 && (uintptr_t)a->y % 64 == 0;
	for (int i = 0; i < job.map.ndim; i++)
		job.stream &= job.map.v_stride[i] * size % 64 == 0;
	hzi_parallel(hzi_threads(ctx, in_lanes ? 2 * bytes : in_planes ? 8 * bytes : elements * 64),
		     decode_units, &job, rows_of(&job.map) * job.runs);
	return HZ_OK;
}

/* ---- Repacking ------------------------------------------------------------------------------- */

struct repack_job {
	const struct hzi_lattice_repack_args *a;
	bool in_planes;
	struct hzi_lattice_codec from, to;
	int64_t run, runs;
};

/* Digits one by one */
static void repack_blocks(const struct repack_job *job, int64_t from, int64_t to, int64_t count)
{
	const struct hzi_lattice_repack_args *a = job->a;
	const struct hzi_lattice_rule *r = &a->lattice->rule;
	const int64_t from_size = size_of(a->from_dtype), to_size = size_of(a->to_dtype);

	for (int64_t i = 0; i < count; i++) {
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

static void repack_planes(const struct repack_job *job, const void *from, void *to, int64_t count)
{
	const struct hzi_lattice_rule *r = job->from.rule;
	const uint32_t size = (uint32_t)r->level_size;
	uint16_t index[PLANE_ELEMENTS + HZI_LATTICE_PLANES * ROOM];

	hzi_lattice_take_codes(&job->from, from, count, job->run, index);
	/* Of one plane, what no digits have may be left. */
	for (int m = 0; m < r->levels && job->from.pack == HZ_LATTICE_LEVEL &&
	     job->from.powers.each == 1 && size < 1u << 8 * job->from.bytes; m++) {
		for (int64_t i = 0; i < count; i++) {
			uint16_t *const one = index + m * job->run + i;

			if (*one >= size)
				*one = (uint16_t)(*one % size);
		}
	}
	hzi_lattice_put_codes(&job->to, index, count, job->run, to);
}

static void repack_units(void *data, int thread, int64_t begin, int64_t end)
{
	const struct repack_job *job = data;
	const struct hzi_lattice_repack_args *a = job->a;

	(void)thread;
	for (int64_t u = begin; u < end; u++) {
		const int64_t row = u / job->runs, first = u % job->runs * job->run;
		const int64_t count = min_of(job->run, a->from.blocks - first);
		const int64_t from = row_place(&a->from, row).code + first * a->from.code_block;
		const int64_t to = row_place(&a->to, row).code + first * a->to.code_block;

		if (job->in_planes)
			repack_planes(job, offset(a->from_codes, from, size_of(a->from_dtype)),
				      offset(a->to_codes, to, size_of(a->to_dtype)), count);
		else
			repack_blocks(job, from, to, count);
	}
}

int hzi_lattice_repack(struct hz_context *ctx, const struct hzi_lattice_repack_args *a,
		       const struct hzi_lane_rule *lanes)
{
	const struct hzi_lattice_rule *r = &a->lattice->rule;
	struct repack_job job = {.a = a, .run = RUN, .in_planes = lanes != NULL};
	const int64_t rows = rows_of(&a->from);

	if (lanes) {
		const struct hzi_lattice_kern *const kern = hzi_lattice_kern + ctx->level;

		hzi_lattice_codec(kern, r, lanes, a->from_dtype, a->from_pack, &job.from);
		hzi_lattice_codec(kern, r, lanes, a->to_dtype, a->to_pack, &job.to);
		job.from.block = a->from.code_block;
		job.from.level = a->from.code_level;
		job.to.block = a->to.code_block;
		job.to.level = a->to.code_level;
		job.run = min_of(RUN, PLANE_ELEMENTS / job.from.powers.planes / ROOM * ROOM);
	}
	job.runs = ceil_div(a->from.blocks, job.run);
	hzi_parallel(hzi_threads(ctx, rows * a->from.blocks * r->levels * r->d * (lanes ? 4 : 16)),
		     repack_units, &job, rows * job.runs);
	return HZ_OK;
}
