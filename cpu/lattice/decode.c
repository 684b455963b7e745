/*
 * decode.c - decodes lattice codes to values, points or digits on the CPU, and repacks them
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#include <config.h>

#include "cpu/lattice/lattice.h"

/* ---- Decoding -------------------------------------------------------------------------------- */

struct decode_job {
	const struct hzi_lattice_kern *kern;
	const struct hzi_lattice_decode_args *a;
	const struct hz_lattice *lattice;
	const struct hzi_lattice_rule *rule;
	struct hzi_lattice_map map;
	struct hzi_lattice_simd lanes;
	/* by_u8: contiguous codes and values, by lattice_values(); no_sub: sub is all 0 */
	bool by_u8, by_i16, stream, no_sub;
	bool joined;			/* digits: the levels of a block are contiguous */
	int64_t blocks_at_once;		/* with by_i16 */
	struct hzi_lattice_codec codec;		/* with by_i16 */
	int64_t run, runs;
};

#define LONG_RUN (4 * RUN)		/* blocks of a run that has no T */

/* T of blocks first .. first + count - 1, limited to the last scale */
static void get_t(const struct decode_job *job, const struct row_offsets *at, int64_t first,
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

/* Their scales. One T per block (group 1) is the common case. */
static void get_scales(const struct decode_job *job, const struct row_offsets *at, int64_t first,
		       int64_t count, float *scales)
{
	const struct hzi_lattice_rule *r = job->rule;
	const int64_t step = job->map.t_step, group = r->group;
	const uint8_t *from = job->a->t + at->t + first / group * step;
	const int last = r->scales - 1;

	if (step == 1) {
		float contiguous[RUN];
		float *const each = group == 1 ? scales : contiguous;

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
				scales[i++] = contiguous[g];
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

static struct hzi_lattice_code code_of(const struct decode_job *job, const struct row_offsets *at,
				       int64_t block)
{
	const struct hzi_lattice_decode_args *a = job->a;
	const int64_t bytes = size_of(a->code_dtype);

	return hzi_lattice_code_at(offset(a->codes, at->code + block * job->map.code_block, bytes),
				   job->map.code_level, (int)bytes, a->pack);
}

/* The point of a block: from the table of leaders, or computed */
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
			/*
			 * Index values beyond q^d are taken modulo q^d; the test avoids slow
			 * divisions.
			 */
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

/* Values that are decoded at a time on the stack, which may be small in threads */
#define PIECE 1024

/* Stores count values, at most PIECE, of f32 to y. */
static void store_values(const struct decode_job *job, const float *x, int64_t count, void *y)
{
	const struct hzi_lattice_decode_args *a = job->a;
	float contiguous[PIECE];

	job->kern->convert(&(struct hzi_convert){
		.x = x,
		.y = job->map.v_step == 1 ? y : contiguous,
		.rows = 1,
		.count = count,
		.x_dtype = HZ_F32,
		.y_dtype = a->y_dtype,
		.scale = 1,
	});
	if (job->map.v_step != 1)
		scatter(contiguous, job->map.v_step, size_of(a->y_dtype), count, y);
}

/* Decodes blocks of at most PIECE values; ts: their T. */
static void decode_piece(const struct decode_job *job, const struct row_offsets *at, int64_t first,
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
	store_values(job, x, values,
		     offset(a->y, at->v + first * d * job->map.v_step, size_of(a->y_dtype)));
}

static void decode_values(const struct decode_job *job, const struct row_offsets *at, int64_t first,
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

/* ---- 16-bit lanes, structure of arrays ------------------------------------------------------- */

#define ARRAY_ELEMENTS 4096	/* of all arrays that are processed at a time */

static void get_indices(const struct decode_job *job, const struct row_offsets *at, int64_t first,
			int64_t count, int64_t step, uint16_t *index)
{
	const void *codes = offset(job->a->codes, at->code + first * job->map.code_block,
				   size_of(job->a->code_dtype));

	hzi_lattice_unpack_codes(&job->codec, codes, count, step, index);
}

/* p - o for a basis, from the table of leaders */
static void points_from_table(const struct decode_job *job, const uint16_t *index, int64_t count,
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

/* p - o of count blocks, one array per coordinate */
static void points_i16(const struct decode_job *job, const struct row_offsets *at, int64_t first,
			     int64_t count, int64_t step, int16_t *p)
{
	const struct hzi_lattice_rule *r = job->rule;
	uint16_t index[ARRAY_ELEMENTS + HZI_LATTICE_ARRAYS * PADDING];

	get_indices(job, at, first, count, step, index);
	if (r->kind == HZI_LATTICE_BASIS) {
		points_from_table(job, index, count, step, p);
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

/* Decodes at most blocks_at_once whole blocks to contiguous values y. */
static void values_i16(const struct decode_job *job, const struct row_offsets *at, int64_t first,
		       int64_t count, void *y)
{
	const struct hzi_lattice_decode_args *a = job->a;
	const struct hzi_lattice_rule *r = job->rule;
	const int64_t step = (count + PADDING - 1) / PADDING * PADDING;
	int16_t p[ARRAY_ELEMENTS + DIMS * PADDING];
	float scales[RUN + PADDING];

	points_i16(job, at, first, count, step, p);
	if (a->t) {
		get_scales(job, at, first, count, scales);
		memset(scales + count, 0, PADDING * sizeof(*scales));
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
		.sub = job->no_sub ? NULL : a->sub,
	});
}

static void decode_values_i16(const struct decode_job *job, const struct row_offsets *at,
			      int64_t first, int64_t count)
{
	const int64_t d = job->rule->d, step = job->map.v_step, size = size_of(job->a->y_dtype);
	const int64_t end = first + count;
	float contiguous[ARRAY_ELEMENTS];

	while (first < end) {
		int64_t n = min_of(job->blocks_at_once, end - first);
		void *y = offset(job->a->y, at->v + first * d * step, size);
		const int64_t values = min_of(n * d, job->map.n - first * d);

		if (step == 1 && values >= d) {
			/* The incomplete last block is decoded by itself. */
			n = values / d;
			values_i16(job, at, first, n, y);
		} else {
			values_i16(job, at, first, n, contiguous);
			scatter(contiguous, step, size, values, y);
		}
		first += n;
	}
}

/* ---- 8-bit lanes ----------------------------------------------------------------------------- */

/* Decodes whole blocks of contiguous codes and values. */
static void decode_values_u8(const struct decode_job *job, const struct row_offsets *at,
			     int64_t first, int64_t count)
{
	const struct hzi_lattice_decode_args *a = job->a;
	const struct hzi_lattice_rule *r = job->rule;
	const int64_t bytes = size_of(a->code_dtype);
	float scales[RUN + PADDING];

	if (a->t) {
		get_scales(job, at, first, count, scales);
		memset(scales + count, 0, PADDING * sizeof(*scales));
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
		.sub = job->no_sub ? NULL : a->sub,
		.stream = job->stream,
	});
}

/* Makes non-temporal stores visible to other threads. */
static void end_stream(const struct decode_job *job)
{
	job->kern->values(&(struct hzi_lattice_values){
		.rule = job->rule,
		.lanes = &job->lanes,
		.y_dtype = job->a->y_dtype,
		.stream = true,
	});
}

static void store_integer(void *y, int64_t i, int64_t size, int32_t v)
{
	memcpy((char *)y + i * size, &v, (size_t)size);
}

/* POINTS and DIGITS of a block */
static void decode_integers(const struct decode_job *job, const struct row_offsets *at,
			    int64_t block)
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
			store_integer(y, i * job->map.v_step, size, v[i]);
		return;
	}
	for (int m = a->pack == HZ_LATTICE_LEVEL ? a->first : 0; m < r->levels; m++) {
		hzi_lattice_get(&c, r, v);
		for (int i = 0; i < r->d && m >= a->first; i++)
			store_integer(y, (m - a->first) * job->map.v_level + i * job->map.v_step,
				      size, v[i]);
	}
}

/* ---- Points and digits, many blocks at a time ------------------------------------------------ */

/* Digits of a level, whose index arrays begin at index, to one array per digit */
static void split_digits(const struct decode_job *job, const uint16_t *index, int64_t step,
			 int16_t *p)
{
	const struct hzi_lattice_rule *r = job->rule;
	const unsigned q = (unsigned)r->q;
	const int shift = r->log2q;

	for (int n = 0; n < job->codec.layout.per_level; n++, index += step) {
		const int digits = hzi_lattice_array_digits(&job->codec.layout, n);

		for (int64_t i = 0; i < step; i += PADDING) {
			uint16_t left[PADDING], digit[PADDING];

			memcpy(left, index + i, sizeof(left));
			/*
			 * PADDING at a time, a constant, so that the compiler vectorizes the loops
			 */
			for (int j = 0; j < digits; j++) {
				int16_t *const to = p + j * step + i;

				for (int k = 0; k < PADDING && r->log2q < 0; k++) {
					const uint16_t upper = (uint16_t)(left[k] / q);

					to[k] = (int16_t)(left[k] - upper * q);
					left[k] = upper;
				}
				if (r->log2q < 0)
					continue;
				for (int k = 0; k < PADDING; k++) {
					digit[k] = (uint16_t)(left[k] & (q - 1));
					left[k] = (uint16_t)(left[k] >> shift);
				}
				memcpy(to, digit, sizeof(digit));
			}
		}
		p += digits * step;
	}
}

/*
 * Interleaves `width` arrays: the elements of a block, `size` bytes each, become contiguous in y.
 */
static void interleave(const struct decode_job *job, const int16_t *p, int64_t count, int64_t step,
		       int64_t width, int64_t size, void *y)
{
	const struct hzi_lattice_rule arrays = {.embed = (int32_t)width};

	job->kern->scale(&(struct hzi_lattice_scale){
		.rule = &arrays,
		.p = p,
		.y = y,
		.count = count,
		.step = step,
		.y_dtype = size == 1 ? HZ_S8 : size == 2 ? HZ_S16 : HZ_S32,
	});
}

/* Copies width numbers of each of count blocks from contiguous memory to y's strides. */
static void scatter_integers(const struct decode_job *job, const void *contiguous, int64_t count,
			     int64_t width, int64_t size, void *y)
{
	const int64_t step = job->map.v_step;

	for (int64_t i = 0; i < count; i++) {
		const void *from = offset(contiguous, i * width, size);
		void *to = offset(y, i * job->map.v_block, size);

		for (int64_t j = 0; j < width && step != 1; j++)
			memcpy(offset(to, j * step, size), offset(from, j, size), (size_t)size);
		if (step == 1)
			memcpy(to, from, (size_t)(width * size));
	}
}

/* Interleaves arrays of count blocks to y, contiguous or with strides. */
static void store_integers(const struct decode_job *job, const int16_t *p, int64_t count,
			   int64_t step, int64_t width, void *y)
{
	const int64_t size = size_of(job->a->y_dtype);
	int32_t contiguous[ARRAY_ELEMENTS];

	if (job->map.v_step == 1 && job->map.v_block == width) {
		interleave(job, p, count, step, width, size, y);
		return;
	}
	interleave(job, p, count, step, width, size, contiguous);
	scatter_integers(job, contiguous, count, width, size, y);
}

/* At most blocks_at_once blocks */
static void decode_integers_i16(const struct decode_job *job, const struct row_offsets *at,
				int64_t first, int64_t count)
{
	const struct hzi_lattice_decode_args *a = job->a;
	const struct hzi_lattice_rule *r = job->rule;
	const int64_t step = (count + PADDING - 1) / PADDING * PADDING, size = size_of(a->y_dtype);
	void *y = offset(a->y, at->v + first * job->map.v_block, size);
	const int levels = r->levels - a->first, each = job->codec.layout.per_level;
	uint16_t index[ARRAY_ELEMENTS + HZI_LATTICE_ARRAYS * PADDING];
	int16_t p[ARRAY_ELEMENTS + DIMS * PADDING];

	if (a->to == HZ_LATTICE_POINTS) {
		points_i16(job, at, first, count, step, p);
		store_integers(job, p, count, step, r->embed, y);
		return;
	}
	/* The padding behind the last block is split, too. */
	memset(index, 0, sizeof(index));
	get_indices(job, at, first, count, step, index);
	for (int m = 0; m < levels && !job->joined; m++) {
		split_digits(job, index + m * each * step, step, p);
		store_integers(job, p, count, step, r->d, offset(y, m * job->map.v_level, size));
	}
	for (int m = 0; m < levels && job->joined; m++)
		split_digits(job, index + m * each * step, step, p + m * r->d * step);
	if (job->joined)
		store_integers(job, p, count, step, levels * r->d, y);
}

/* Points of whole vectors of blocks in 8-bit lanes, to s8, then widened if y is wider */
static void decode_points_u8(const struct decode_job *job, const struct row_offsets *at,
			     int64_t first, int64_t count)
{
	const struct hzi_lattice_decode_args *a = job->a;
	const struct hzi_lattice_rule *r = job->rule;
	const int64_t size = size_of(a->y_dtype), d = r->d, bytes = size_of(a->code_dtype);
	int8_t *const y = offset(a->y, at->v + first * d, size);
	int8_t contiguous[ARRAY_ELEMENTS];

	for (int64_t i = 0; i < count; i += ARRAY_ELEMENTS / 8) {
		const int64_t n = min_of(ARRAY_ELEMENTS / 8, count - i), code = first + i;
		int8_t *const to = y + i * d * size;

		job->kern->values(&(struct hzi_lattice_values){
			.rule = r,
			.lanes = &job->lanes,
			.codes = offset(a->codes, at->code + code * job->map.code_block, bytes),
			.y = size == 1 ? to : contiguous,
			.count = n,
			.levels = r->levels - a->first,
			.bytes = (int32_t)bytes,
			.first = a->first,
			.y_dtype = HZ_S8,
		});
		for (int64_t j = 0; j < n * d && size == 2; j += PADDING) {
			int16_t wide[PADDING];

			for (int k = 0; k < PADDING; k++)
				wide[k] = contiguous[j + k];
			memcpy(to + 2 * j, wide, sizeof(wide));
		}
		for (int64_t j = 0; j < n * d && size == 4; j += PADDING) {
			int32_t wide[PADDING];

			for (int k = 0; k < PADDING; k++)
				wide[k] = contiguous[j + k];
			memcpy(to + 4 * j, wide, sizeof(wide));
		}
	}
}

static void decode_integers_run(const struct decode_job *job, const struct row_offsets *at,
				int64_t first, int64_t count)
{
	const int64_t whole = job->by_u8 ? count / PADDING * PADDING : 0;

	decode_points_u8(job, at, first, whole);
	for (int64_t i = whole; i < count; i += job->blocks_at_once)
		decode_integers_i16(job, at, first + i, min_of(job->blocks_at_once, count - i));
}

/* A unit is a run of a row. */
static void decode_units(void *data, int thread, int64_t begin, int64_t end)
{
	const struct decode_job *job = data;

	(void)thread;
	for (int64_t u = begin; u < end; u++) {
		const struct row_offsets at = row_offsets_of(&job->map, u / job->runs);
		const int64_t first = u % job->runs * job->run;
		const int64_t count = min_of(job->run, job->map.blocks - first);

		/* Some values of the last block of a row may be missing. */
		const int64_t whole = min_of(count, job->map.n / job->rule->d - first);

		if (job->a->to != HZ_LATTICE_VALUES && job->by_i16) {
			decode_integers_run(job, &at, first, count);
		} else if (job->a->to != HZ_LATTICE_VALUES) {
			for (int64_t i = 0; i < count; i++)
				decode_integers(job, &at, first + i);
		} else if (job->by_u8) {
			decode_values_u8(job, &at, first, whole);
			decode_values_i16(job, &at, first + whole, count - whole);
		} else if (job->by_i16) {
			decode_values_i16(job, &at, first, count);
		} else {
			decode_values(job, &at, first, count);
		}
	}
	if (job->stream)
		end_stream(job);
}

/* Whether the digits of all levels of a block are contiguous */
static bool joins_digits(const struct hzi_lattice_decode_args *a, const struct hzi_lattice_map *map)
{
	const struct hzi_lattice_rule *r = &a->lattice->rule;
	const int levels = r->levels - a->first;

	return levels == 1 ||
	       (map->v_step == 1 && map->v_level == r->d && levels * r->d <= DIMS);
}

/* Whether 16-bit lanes hold the digits, or p - o, computed or from the table of leaders */
static bool fits_i16(const struct hzi_lattice_decode_args *a, struct hzi_lattice_simd *lanes)
{
	const struct hz_lattice *lattice = a->lattice;
	const struct hzi_lattice_rule *r = &lattice->rule;
	int32_t offset = 0, round_max;

	if (a->to == HZ_LATTICE_DIGITS)
		return r->q <= 256 && hzi_lattice_digits_of(r, lanes);
	if (r->kind != HZI_LATTICE_BASIS || !lattice->leaders)
		return hzi_lattice_simd_of(lattice, lanes, &round_max);
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
		.a = a, .map = hzi_lattice_merge_rows(&a->map, r, a->to == HZ_LATTICE_VALUES),
	};
	c->by_i16 = fits_i16(a, &c->lanes);
	in_order = a->to == HZ_LATTICE_VALUES ? c->map.v_step == 1 && !a->matrices :
						a->to == HZ_LATTICE_POINTS &&
						c->map.v_step == 1 && c->map.v_block == r->d;
	c->by_u8 = c->by_i16 && a->pack == HZ_LATTICE_LEVEL && in_order && c->lanes.bytes &&
		      (c->map.code_level == 1 || levels == 1) && c->map.code_block == levels;
}

/* Sets the codec, and how many blocks fit the arrays. */
static void set_codec(struct decode_job *job)
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
	most = most < job->codec.layout.arrays ? job->codec.layout.arrays : most;
	group = r->group > PADDING ? r->group : PADDING / r->group * r->group;
	job->blocks_at_once = min_of(RUN, ARRAY_ELEMENTS / most) / group * group;
}

int hzi_lattice_decode(struct hz_context *ctx, const struct hzi_lattice_decode_call *c, bool by_i16,
		       bool by_u8)
{
	const struct hzi_lattice_decode_args *a = c->a;
	const struct hzi_lattice_rule *r = &a->lattice->rule;
	const int64_t size = size_of(a->y_dtype);
	struct hzi_lattice_rule without_offset = *r;
	struct decode_job job = {
		.kern = hzi_lattice_kern + ctx->level, .a = a, .lattice = a->lattice, .rule = r,
		.map = c->map, .lanes = c->lanes, .by_i16 = by_i16, .by_u8 = by_u8,
		.no_sub = true,
	};
	int64_t elements, bytes;

	for (int i = 0; i < r->d; i++)
		job.no_sub &= a->sub[i] == 0;
	if (a->to == HZ_LATTICE_POINTS) {
		/* Points include the offset. */
		memset(without_offset.offset, 0, sizeof(without_offset.offset));
		job.rule = &without_offset;
	}
	if (by_i16)
		set_codec(&job);
	job.run = a->t ? RUN / r->group * r->group : LONG_RUN;
	job.runs = ceil_div(job.map.blocks, job.run);
	elements = rows_of(&job.map) * job.map.blocks *
		   (a->to == HZ_LATTICE_VALUES ? r->d : a->to == HZ_LATTICE_POINTS ? r->embed :
							 r->levels * r->d);
	bytes = elements * size;
	job.stream = by_u8 && a->to == HZ_LATTICE_VALUES &&
		     bytes > hzi_cache_share(ctx) / 4 * 3 && (uintptr_t)a->y % 64 == 0;
	for (int i = 0; i < job.map.ndim; i++)
		job.stream &= job.map.v_stride[i] * size % 64 == 0;
	hzi_parallel(ctx, hzi_threads(ctx, by_u8 ? 2 * bytes : by_i16 ? 8 * bytes : elements * 64),
		     decode_units, &job, rows_of(&job.map) * job.runs);
	return HZ_OK;
}

/* ---- Repacking ------------------------------------------------------------------------------- */

struct repack_job {
	const struct hzi_lattice_repack_args *a;
	bool by_i16;
	struct hzi_lattice_codec from, to;
	int64_t run, runs;
};

/* Repacks digit by digit. */
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

static void repack_blocks_i16(const struct repack_job *job, const void *from, void *to,
			      int64_t count)
{
	const struct hzi_lattice_rule *r = job->from.rule;
	const uint32_t size = (uint32_t)r->level_size;
	uint16_t index[ARRAY_ELEMENTS + HZI_LATTICE_ARRAYS * PADDING];

	hzi_lattice_unpack_codes(&job->from, from, count, job->run, index);
	/* With one array per level, index values beyond q^d may be left. */
	for (int m = 0; m < r->levels && job->from.pack == HZ_LATTICE_LEVEL &&
	     job->from.layout.per_level == 1 && size < 1u << 8 * job->from.bytes; m++) {
		for (int64_t i = 0; i < count; i++) {
			uint16_t *const one = index + m * job->run + i;

			if (*one >= size)
				*one = (uint16_t)(*one % size);
		}
	}
	hzi_lattice_pack_codes(&job->to, index, count, job->run, to);
}

static void repack_units(void *data, int thread, int64_t begin, int64_t end)
{
	const struct repack_job *job = data;
	const struct hzi_lattice_repack_args *a = job->a;

	(void)thread;
	for (int64_t u = begin; u < end; u++) {
		const int64_t row = u / job->runs, first = u % job->runs * job->run;
		const int64_t count = min_of(job->run, a->from.blocks - first);
		const int64_t from =
			row_offsets_of(&a->from, row).code + first * a->from.code_block;
		const int64_t to = row_offsets_of(&a->to, row).code + first * a->to.code_block;

		if (job->by_i16)
			repack_blocks_i16(job, offset(a->from_codes, from, size_of(a->from_dtype)),
					  offset(a->to_codes, to, size_of(a->to_dtype)), count);
		else
			repack_blocks(job, from, to, count);
	}
}

int hzi_lattice_repack(struct hz_context *ctx, const struct hzi_lattice_repack_args *a,
		       const struct hzi_lattice_simd *lanes)
{
	const struct hzi_lattice_rule *r = &a->lattice->rule;
	struct repack_job job = {.a = a, .run = RUN, .by_i16 = lanes != NULL};
	const int64_t rows = rows_of(&a->from);

	if (lanes) {
		const struct hzi_lattice_kern *const kern = hzi_lattice_kern + ctx->level;

		hzi_lattice_codec(kern, r, lanes, a->from_dtype, a->from_pack, &job.from);
		hzi_lattice_codec(kern, r, lanes, a->to_dtype, a->to_pack, &job.to);
		job.from.block = a->from.code_block;
		job.from.level = a->from.code_level;
		job.to.block = a->to.code_block;
		job.to.level = a->to.code_level;
		job.run = min_of(RUN, ARRAY_ELEMENTS / job.from.layout.arrays / PADDING * PADDING);
	}
	job.runs = ceil_div(a->from.blocks, job.run);
	hzi_parallel(ctx,
		     hzi_threads(ctx, rows * a->from.blocks * r->levels * r->d * (lanes ? 4 : 16)),
		     repack_units, &job, rows * job.runs);
	return HZ_OK;
}
