/*
 * vlut.h - quantizers, coded matrices and error bounds for tests of products with lattice codes
 *
 * SPDX-License-Identifier: BSD-2-Clause
 *
 * Any digits are valid codes, so the tests use random ones. Their values come from the definitions
 * in lib/lattice/lattice_math.h, which t/lattice/lattice.c tests, in double.
 */
#ifndef T_VLUT_H
#define T_VLUT_H

#include "t/core/dev.h"
#include "t/core/record.h"
#include "t/lattice/open.h"
#include "lib/lattice/lattice.h"

static uint64_t rnd;
static int quick;

/* ---- Lattices -------------------------------------------------------------------------------- */

static const double basis3[] = {1.0, 0.4, 0.3, 0.1, 1.2, -0.2, 0.0, 0.3, 0.9};
static const double transform4[] = {0.5, 0.5, 0.5, 0.5, 0.5, -0.5, 0.5, -0.5,
				    0.6, 0.6, -0.5, -0.5, 0.5, -0.5, -0.5, 0.7};
static const double dither8[] = {0.25, -0.125, 0.5, 0.0, 0.375, 0.0625, -0.5, 0.25};
static const double bank[] = {0.7, 1.0, 1.4, 2.5};
static const int64_t near4[] = {3, -2, 1, 2};
/* 0 is not the value of any of these codes; HZ_LATTICE_NONE allows that. */
static const int64_t far1[] = {70000}, far4[] = {45000, -21000, 33000, 9000},
		     far8[] = {60, -70, 50, 30, -20, 90, 40, 10};

static const struct {
	const char *name;
	hz_lattice_opts o;
} lattices[] = {
	{"D4 q 4 M 2", {.kind = HZ_LATTICE_D, .q = 4, .levels = 2, .beta = 0.2}},
	{"D4 q 4 M 2 T", {.kind = HZ_LATTICE_D, .q = 4, .levels = 2, .policy = HZ_LATTICE_T}},
	{"D4 q 4 M 2 group 16 centred", {.kind = HZ_LATTICE_D, .q = 4, .levels = 2, .beta = 0.3,
	  .policy = HZ_LATTICE_GROUP, .group = 16, .flags = HZ_LATTICE_CENTER}},
	{"D4 q 3 M 3 clip", {.kind = HZ_LATTICE_D, .q = 3, .levels = 3, .policy = HZ_LATTICE_CLIP}},
	{"D4 q 2 M 4 bank dithered", {.kind = HZ_LATTICE_D, .q = 2, .levels = 4, .beta = 0.1,
	  .policy = HZ_LATTICE_BANK, .banks = 4, .bank = bank, .dither = dither8}},
	{"D4 q 4 M 2 transformed",
	 {.kind = HZ_LATTICE_D, .q = 4, .levels = 2, .transform = transform4}},
	{"D4 q 16 M 1", {.kind = HZ_LATTICE_D, .q = 16, .levels = 1}},
	{"D4 q 4 M 4", {.kind = HZ_LATTICE_D, .q = 4, .levels = 4, .flags = HZ_LATTICE_CENTER}},
	{"D3 q 3 M 2", {.kind = HZ_LATTICE_D, .dim = 3, .q = 3, .levels = 2}},
	{"Z q 16 M 2", {.kind = HZ_LATTICE_Z, .q = 16, .levels = 2}},
	{"Z q 4 M 2 group 128",
	 {.kind = HZ_LATTICE_Z, .q = 4, .levels = 2, .policy = HZ_LATTICE_GROUP,
	  .group = 128}},
	{"Z^2 q 5 M 3", {.kind = HZ_LATTICE_Z, .dim = 2, .q = 5, .levels = 3, .dither = dither8}},
	{"A2 q 4 M 2", {.kind = HZ_LATTICE_A2, .q = 4, .levels = 2, .flags = HZ_LATTICE_CENTER}},
	{"A2 q 16 M 1 T", {.kind = HZ_LATTICE_A2, .q = 16, .levels = 1, .policy = HZ_LATTICE_T}},
	{"E8 q 2 M 4", {.kind = HZ_LATTICE_E8, .q = 2, .levels = 4, .flags = HZ_LATTICE_CENTER}},
	{"E8 q 3 M 2", {.kind = HZ_LATTICE_E8, .q = 3, .levels = 2}},
	{"E8 q 4 M 2", {.kind = HZ_LATTICE_E8, .q = 4, .levels = 2, .dither = dither8}},
	{"E8 q 4 M 2 group 32",
	 {.kind = HZ_LATTICE_E8, .q = 4, .levels = 2, .policy = HZ_LATTICE_GROUP,
	  .group = 32, .flags = HZ_LATTICE_CENTER}},
	{"D3 q 6 M 4 centred", {.kind = HZ_LATTICE_D, .dim = 3, .q = 6, .levels = 4, .beta = 2,
	  .flags = HZ_LATTICE_CENTER}},
	{"E8 q 14 M 1", {.kind = HZ_LATTICE_E8, .q = 14, .levels = 1}},
	{"D12 q 2 M 2", {.kind = HZ_LATTICE_D, .dim = 12, .q = 2, .levels = 2}},
	{"Z^24 q 2 M 1", {.kind = HZ_LATTICE_Z, .dim = 24, .q = 2, .levels = 1}},
	{"a basis, q 4 M 2",
	 {.kind = HZ_LATTICE_BASIS, .dim = 3, .q = 4, .levels = 2, .basis = basis3}},
	{"D4 q 4 M 2 bank", {.kind = HZ_LATTICE_D, .q = 4, .levels = 2, .beta = 0.1,
	  .policy = HZ_LATTICE_BANK, .banks = 4, .bank = bank}},
	{"D4 q 4 M 2 group 8", {.kind = HZ_LATTICE_D, .q = 4, .levels = 2,
	  .policy = HZ_LATTICE_GROUP, .group = 8}},
	{"E8 q 2 M 4 T centred", {.kind = HZ_LATTICE_E8, .q = 2, .levels = 4, .beta = 0.3,
	  .policy = HZ_LATTICE_T, .flags = HZ_LATTICE_CENTER}},
	{"D4 q 8 M 2 centred", {.kind = HZ_LATTICE_D, .q = 8, .levels = 2, .beta = 0.1,
	  .flags = HZ_LATTICE_CENTER}},
	{"D4 q 7 M 2 T", {.kind = HZ_LATTICE_D, .q = 7, .levels = 2, .policy = HZ_LATTICE_T}},
	{"D4 q 8 M 2 group 64", {.kind = HZ_LATTICE_D, .q = 8, .levels = 2, .beta = 0.5,
	  .policy = HZ_LATTICE_GROUP, .group = 64}},
	{"E8 q 3 M 2 group 16 centred", {.kind = HZ_LATTICE_E8, .q = 3, .levels = 2,
	  .policy = HZ_LATTICE_GROUP, .group = 16, .flags = HZ_LATTICE_CENTER}},
	{"E8 q 4 M 2 T", {.kind = HZ_LATTICE_E8, .q = 4, .levels = 2, .policy = HZ_LATTICE_T}},
	{"Z q 16 M 1 group 32", {.kind = HZ_LATTICE_Z, .q = 16, .levels = 1,
	  .policy = HZ_LATTICE_GROUP, .group = 32}},
	{"A2 q 15 M 1", {.kind = HZ_LATTICE_A2, .q = 15, .levels = 1}},
	{"D4 q 13 M 1 T", {.kind = HZ_LATTICE_D, .q = 13, .levels = 1, .policy = HZ_LATTICE_T}},
	{"E8 q 16 M 1 T", {.kind = HZ_LATTICE_E8, .q = 16, .levels = 1, .policy = HZ_LATTICE_T}},
	{"D8 q 5 M 1", {.kind = HZ_LATTICE_D, .dim = 8, .q = 5, .levels = 1}},
	{"Z q 16 M 1 far from 0",
	 {.kind = HZ_LATTICE_Z, .q = 16, .levels = 1, .beta = 0.1, .offset = far1}},
	{"D4 q 3 M 3 beside 0",
	 {.kind = HZ_LATTICE_D, .q = 3, .levels = 3, .beta = 0.1, .offset = near4}},
	{"D4 q 4 M 2 far from 0",
	 {.kind = HZ_LATTICE_D, .q = 4, .levels = 2, .beta = 0.2, .offset = far4}},
	{"E8 q 4 M 2 far from 0",
	 {.kind = HZ_LATTICE_E8, .q = 4, .levels = 2, .beta = 0.2, .offset = far8}},
	{"E8 q 4 M 2 alone", {.kind = HZ_LATTICE_E8, .q = 4, .levels = 2, .beta = 0.2}},
	{"E8 q 4 M 2 centred",
	 {.kind = HZ_LATTICE_E8, .q = 4, .levels = 2, .beta = 0.3, .flags = HZ_LATTICE_CENTER}},
	{"D4 q 4 M 2 centred",
	 {.kind = HZ_LATTICE_D, .q = 4, .levels = 2, .beta = 0.3, .flags = HZ_LATTICE_CENTER}},
	{"D4 q 4 M 2 centred, dithered", {.kind = HZ_LATTICE_D, .q = 4, .levels = 2, .beta = 0.3,
	  .flags = HZ_LATTICE_CENTER, .dither = dither8}},
};

#define LATTICES ((int)(sizeof(lattices) / sizeof(*lattices)))

static inline int lattice_named(const char *name)
{
	int i = 0;

	while (strcmp(lattices[i].name, name))
		i++;
	return i;
}

/* Opened once per context: computing the leaders of some takes long */
static hz_lattice *opened[DEV_MAX][LATTICES];

static inline hz_lattice *lattice_of(struct dev *dev, int i)
{
	hz_lattice **l = &opened[dev - devs][i];

	if (!*l && open_lattice(dev->ctx, l, &lattices[i].o) != HZ_OK)
		bail("hz_lattice_open of %s: %s", lattices[i].name, hz_errmsg(dev->ctx));
	return *l;
}

static inline void close_lattices(void)
{
	for (int i = 0; i < ndevs; i++) {
		for (int j = 0; j < LATTICES; j++)
			hz_lattice_close(opened[i][j]);
	}
}

/* ---- Operands -------------------------------------------------------------------------------- */

/* A coded matrix on the host and on the device, and its values */
struct coded {
	hz_coded c;
	hz_tensor t, row_scale;
	hz_packed packed;
	struct area codes_area, t_area, scale_area, packed_area;
	double *values;			/* [rows][k], includes the row scale */
	int32_t *points;		/* [rows][blocks][embed]: p - o */
	float *scale;			/* [rows]: 1 if not given */
	double reach;			/* the largest sum of |values| of a row */
	int64_t rows, k, blocks;
};

enum { PACKED = 1, SCALED = 2, FEWER = 4, PLANAR = 8, ALL_LEVELS = 16 };

static inline void area_put(struct dev *dev, struct area *area, const void *from, size_t bytes)
{
	unsigned char *image;
	void *data;

	*area = area_new(dev, bytes, 0);
	image = image_new(bytes, 0, &data);
	memcpy(data, from, bytes);
	area_write(area, image);
	free(image);
}

/* Decodes blocks; caches leaders if a matrix has many codes. */
struct decoder {
	const hz_lattice *l;
	int first;			/* first level in use */
	float sub[HZI_LATTICE_DIMS];
	int32_t (*leaders)[1 + HZI_LATTICE_DIMS]; /* [q^d]: 1 if cached, and the leader; NULL: no
						   * cache */
};

static inline void leader_of(const struct decoder *d, uint32_t code, int32_t *c)
{
	int32_t b[HZI_LATTICE_DIMS] = {0}, *kept = d->leaders ? d->leaders[code] : NULL;

	if (!kept || !kept[0]) {
		hzi_lattice_unindex(&d->l->rule, code, b);
		hzi_lattice_leader(&d->l->rule, hzi_lattice_matrices_of(d->l), b, c);
		if (!kept)
			return;
		memcpy(kept + 1, c, sizeof(b));
		kept[0] = 1;
	}
	memcpy(c, kept + 1, sizeof(b));
}

/* A block's value[d] at row scale 1, and p - o */
static inline void decode(const struct decoder *from, const uint32_t *code, int t, double *value,
		   int32_t *p)
{
	const struct hzi_lattice_rule *r = &from->l->rule;
	const struct hzi_lattice_matrices *m = hzi_lattice_matrices_of(from->l);
	double u[HZI_LATTICE_DIMS];
	int64_t weight = 1;

	for (int e = 0; e < r->embed; e++)
		p[e] = -r->offset[e];
	for (int level = 0; level < r->levels; level++, weight *= r->q) {
		int32_t c[HZI_LATTICE_DIMS] = {0};

		if (level < from->first)
			continue;
		leader_of(from, code[level], c);
		for (int e = 0; e < r->embed; e++)
			p[e] += (int32_t)(weight * c[e]);
	}
	for (int i = 0; i < r->d; i++)
		u[i] = r->kind == HZ_LATTICE_E8 ? 0.5 * p[i] : p[i];
	if (r->kind == HZ_LATTICE_A2) {
		u[0] = 0.5 * (p[0] - p[2]);
		u[1] = -sqrt(0.75) * p[1];
	}
	for (int i = 0; i < r->d; i++)
		u[i] = (u[i] - from->sub[i]) * r->scale[t];
	for (int i = 0; i < r->d; i++) {
		value[i] = u[i];
		if (!m)
			continue;
		value[i] = 0;
		for (int j = 0; j < r->d; j++)
			value[i] += (double)m->from[i * r->d + j] * u[j];
	}
}

static inline struct coded coded_new(struct dev *dev, const hz_lattice *l, const hz_vlut *v,
				     int64_t rows, int64_t k, int how)
{
	const struct hzi_lattice_rule *r = &l->rule;
	const int d = r->d, M = r->levels, has_t = hzi_lattice_has_t(l);
	/* The largest T are far larger than others: use them sometimes only. */
	const int scales = r->scales < 9 || rnd_below(&rnd, 3) == 0 ? r->scales : 9;
	const int used = how & FEWER ? 1 + (int)rnd_below(&rnd, M) : M;
	const int stored = how & FEWER && !(how & ALL_LEVELS) ? used : M;
	const int64_t blocks = (k + d - 1) / d, groups = (blocks + r->group - 1) / r->group;
	struct coded w = {.rows = rows, .k = k, .blocks = blocks};
	struct decoder from = {.l = l, .first = M - used};
	double most = 0;
	hz_lattice_info info;
	int64_t size, count = rows * blocks * stored;
	uint8_t *codes, *t;
	float *scale;

	for (int m = 0; m < M; m++)
		most = most * r->q + l->leader_max;
	hzi_lattice_sub(l, from.first, from.sub);
	if (r->level_size <= (uint64_t)count)
		from.leaders = calloc(r->level_size, sizeof(*from.leaders));
	hz_lattice_get_info(l, &info);
	size = (int64_t)hz_dtype_size(info.level_dtype);
	codes = calloc((size_t)(count * size) + 1, 1);
	t = calloc((size_t)(rows * groups) + 1, 1);
	scale = calloc((size_t)rows + 1, 4);
	w.values = calloc((size_t)(rows * k) + 1, sizeof(*w.values));
	w.points = calloc((size_t)(rows * blocks * r->embed) + 1, 4);
	for (int64_t i = 0; i < rows * groups; i++)
		t[i] = (uint8_t)rnd_below(&rnd, scales);
	for (int64_t i = 0; i < rows; i++) {
		double sum = 0;

		scale[i] = (float)(how & SCALED ? 0.5 + rnd_uniform(&rnd) : 1);
		for (int64_t b = 0; b < blocks; b++) {
			uint32_t code[HZ_LATTICE_MAXLEVELS] = {0};
			double value[HZI_LATTICE_DIMS];

			for (int m = M - stored; m < M; m++) {
				const int64_t level = m - (M - stored);
				const int64_t at = how & PLANAR ? (level * rows + i) * blocks + b
								: (i * blocks + b) * stored + level;

				/* A byte or word that is not a valid code counts modulo q^d. */
				code[m] = (uint32_t)(rnd_u64(&rnd) % r->level_size);
				if (size == 1)
					codes[at] = (uint8_t)code[m];
				else if (size == 2)
					((uint16_t *)(void *)codes)[at] = (uint16_t)code[m];
				else
					((uint32_t *)(void *)codes)[at] = code[m];
			}
			decode(&from, code, has_t ? t[i * groups + b / r->group] : 0, value,
			       w.points + (i * blocks + b) * r->embed);
			for (int e = 0; e < d && b * d + e < k; e++) {
				w.values[i * k + b * d + e] = value[e] * scale[i];
				sum += r->scale[has_t ? t[i * groups + b / r->group] : 0] *
				       scale[i] * most;
			}
		}
		w.reach = sum > w.reach ? sum : w.reach;
	}
	area_put(dev, &w.codes_area, codes, (size_t)(count * size));
	area_put(dev, &w.t_area, t, (size_t)(rows * groups));
	area_put(dev, &w.scale_area, scale, (size_t)rows * 4);
	w.c.codes = hz_tensor_3d(w.codes_area.data, info.level_dtype, dev->device, rows, blocks,
				 stored);
	if (how & PLANAR) {
		w.c.codes.stride[0] = blocks;
		w.c.codes.stride[1] = 1;
		w.c.codes.stride[2] = rows * blocks;
	}
	w.t = hz_tensor_2d(w.t_area.data, HZ_U8, dev->device, rows, groups);
	w.row_scale = hz_tensor_1d(w.scale_area.data, HZ_F32, dev->device, rows);
	w.c.use_levels = how & FEWER ? used : 0;
	w.c.rows = rows;
	w.c.k = k;
	if (has_t)
		w.c.t = &w.t;
	if (how & PACKED) {
		size_t bytes;

		if (hz_vlut_pack_bytes(dev->ctx, v, &w.c, &bytes) != HZ_OK)
			bail("hz_vlut_pack_bytes: %s", hz_errmsg(dev->ctx));
		w.packed_area = area_new(dev, bytes, 0);
		if (hz_vlut_pack(dev->ctx, v, &w.c, w.packed_area.data, bytes, &w.packed) != HZ_OK)
			bail("hz_vlut_pack: %s", hz_errmsg(dev->ctx));
		w.c.packed = &w.packed;
		w.c.t = NULL;
		memset(&w.c.codes, 0, sizeof(w.c.codes));
	}
	w.scale = scale;
	free(codes);
	free(t);
	free(from.leaders);
	return w;
}

/* row_scale, t and packed are within w: points to them at the matrix's current address. */
static inline const hz_coded *coded_view(struct coded *w, int how)
{
	if (w->c.t)
		w->c.t = &w->t;
	if (w->c.packed)
		w->c.packed = &w->packed;
	w->c.row_scale = how & SCALED ? &w->row_scale : NULL;
	return &w->c;
}

/* The bytes around the packed codes, and the operands */
static inline void coded_free(struct coded *w)
{
	area_free(&w->codes_area);
	area_free(&w->t_area);
	area_free(&w->scale_area);
	if (w->packed_area.base)
		area_free(&w->packed_area);
	free(w->scale);
	free(w->values);
	free(w->points);
}

/* ---- Error bounds ---------------------------------------------------------------------------- */

/*
 * In column j |y - exact| is at most rounding + part sum |w x| + unit max |x| sum |w|. On the CPU,
 * and with tables, half of the largest value of leaders is added to |w| in both sums, since o and
 * levels may cancel. part is for f32 accumulation or tables, unit for fixed-point numbers. A GPU
 * multiplies in f16, and rounds scales of blocks to f16.
 */
struct bound {
	double part, unit;
};

static inline struct bound bound_of(const struct dev *dev, int table)
{
	struct bound b = {0x1p-19, 0x1p-15};

	if (table == HZ_F16)
		b.part = 0x1p-10;
	else if (table == HZ_BF16)
		b.part = 0x1p-7;
	if (dev->device != HZ_CPU && b.part < 0x1p-9)
		b.part = 0x1p-9;
	if (table == HZ_U8)
		b.unit = 0x1p-6;
	return b;
}

/* A call that succeeds, on dev, with the workspace that it wants */
#define CALL(call) \
	__extension__({ \
		size_t call_bytes_ = 0; \
		RECORD(dev->ctx, call, &call_bytes_) || hz_reserve(dev->ctx, call_bytes_) || \
			(call) ? bail("%s", hz_errmsg(dev->ctx)) : (void)0; \
	})

/* A call on ctx of dev that is refused with a status and a message */
#define REFUSED(status, message, call) do { \
	is_int(call, status, "%s: %s", dev->name, #call); \
	has_str(hz_errmsg(ctx), message, "%s: its message", dev->name); \
} while (0)

#endif
