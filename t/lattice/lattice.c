/*
 * lattice.c - the lattice quantizer against its definition
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#include <config.h>

#include "t/lattice/lattice.h"
#include "t/lattice/ref.h"
#include "t/lattice/vectors.h"

/* ---- Lattices and views ---------------------------------------------------------------------- */

static const struct config {
	int kind, dim, q, levels;
	const char *name;
} configs[] = {
	{HZ_LATTICE_Z, 1, 4, 2, "Z q=4 M=2"},
	{HZ_LATTICE_Z, 1, 2, 5, "Z q=2 M=5"},
	{HZ_LATTICE_Z, 1, 16, 1, "Z q=16 M=1"},
	{HZ_LATTICE_Z, 1, 300, 2, "Z q=300 M=2"},
	{HZ_LATTICE_Z, 3, 5, 2, "Z3 q=5 M=2"},
	{HZ_LATTICE_A2, 2, 4, 2, "A2 q=4 M=2"},
	{HZ_LATTICE_A2, 2, 3, 3, "A2 q=3 M=3"},
	{HZ_LATTICE_A2, 2, 16, 1, "A2 q=16 M=1"},
	{HZ_LATTICE_D, 2, 3, 2, "D2 q=3 M=2"},
	{HZ_LATTICE_D, 3, 6, 2, "D3 q=6 M=2"},
	{HZ_LATTICE_D, 4, 4, 2, "D4 q=4 M=2"},
	{HZ_LATTICE_D, 4, 3, 2, "D4 q=3 M=2"},
	{HZ_LATTICE_D, 4, 2, 4, "D4 q=2 M=4"},
	{HZ_LATTICE_D, 4, 4, 3, "D4 q=4 M=3"},
	{HZ_LATTICE_D, 4, 16, 1, "D4 q=16 M=1"},
	{HZ_LATTICE_D, 24, 2, 3, "D24 q=2 M=3"},
	{HZ_LATTICE_D, 24, 4, 2, "D24 q=4 M=2"},
	{HZ_LATTICE_D, 8, 8, 2, "D8 q=8 M=2"},
	{HZ_LATTICE_Z, 5, 11, 2, "Z5 q=11 M=2"},
	{HZ_LATTICE_E8, 8, 4, 2, "E8 q=4 M=2"},
	{HZ_LATTICE_E8, 8, 3, 2, "E8 q=3 M=2"},
	{HZ_LATTICE_E8, 8, 2, 4, "E8 q=2 M=4"},
	{HZ_LATTICE_E8, 8, 14, 1, "E8 q=14 M=1"},
	{HZ_LATTICE_E8, 8, 16, 2, "E8 q=16 M=2"},
	{HZ_LATTICE_E8, 8, 3, 6, "E8 q=3 M=6"},
	{HZ_LATTICE_E8, 8, 100, 1, "E8 q=100 M=1"},
};

#define CONFIGS ((int)(sizeof(configs) / sizeof(*configs)))

static hz_lattice_opts opts_of(const struct config *c)
{
	return (hz_lattice_opts){.kind = c->kind, .dim = c->dim, .q = c->q, .levels = c->levels};
}

/* The offset as the library computes it, which has tests of its own */
static void ref_offset(struct ref_lattice *r, const hz_lattice *l)
{
	hz_lattice_info info;
	int i;

	hz_lattice_get_info(l, &info);
	for (i = 0; i < r->embed; i++)
		r->o[i] = info.offset[i];
}

/* ---- Packings -------------------------------------------------------------------------------- */

/* The number of codes per block, and the codes of these digits */
static int ref_pack(const struct ref_lattice *r, int pack, int64_t b[REF_M][REF_D], uint64_t *code)
{
	int limb = 0, i, m, n = 0, used = 0;
	uint64_t weight = 1;

	for (weight = (uint64_t)r->q; weight <= UINT64_C(1) << 32; weight *= (uint64_t)r->q)
		limb++;
	weight = 1;
	memset(code, 0, REF_M * REF_D * sizeof(*code));
	for (m = 0; m < r->m; m++) {
		if (pack == HZ_LATTICE_LEVEL) {
			weight = 1;
			n = m;
		}
		for (i = 0; i < r->d; i++) {
			code[n] += (uint64_t)b[m][i] * weight;
			weight *= (uint64_t)r->q;
			if (pack == HZ_LATTICE_LIMBS && ++used == limb) {
				used = 0;
				weight = 1;
				n++;
			}
		}
	}
	return pack == HZ_LATTICE_LEVEL ? r->m : pack == HZ_LATTICE_FULL64 ? 1 : n + (used > 0);
}

/* dtype and last dimension (0: none); returns 0 if the lattice does not have that packing. */
static int pack_of(const hz_lattice *l, int pack, int *dtype, int64_t *last)
{
	hz_lattice_info info;

	hz_lattice_get_info(l, &info);
	*dtype = pack == HZ_LATTICE_LEVEL  ? info.level_dtype :
		 pack == HZ_LATTICE_FULL64 ? HZ_U64 : HZ_U32;
	*last = pack == HZ_LATTICE_LEVEL ? info.levels : pack == HZ_LATTICE_FULL64 ? 0 : info.limbs;
	return pack == HZ_LATTICE_LEVEL ? info.level_dtype != 0 :
	       pack == HZ_LATTICE_FULL64 ? info.full64 : 1;
}

/* ---- Test vectors ---------------------------------------------------------------------------- */

static void vectors_on(struct dev *dev)
{
	int i, j, pack, good = 1;

	for (i = 0; i < (int)(sizeof(lattice_vectors) / sizeof(*lattice_vectors)); i++) {
		const struct lattice_vector *v = &lattice_vectors[i];
		const int embed = v->kind == HZ_LATTICE_A2 ? 3 : v->dim;
		hz_lattice_opts o = {.kind = v->kind, .dim = v->dim, .q = v->q, .levels = v->levels,
				     .beta = v->beta, .alpha = v->alpha, .policy = HZ_LATTICE_T,
				     .flags = v->centred ? HZ_LATTICE_CENTER : 0};
		hz_lattice *l = lattice_new(dev->ctx, &o);
		hz_lattice_info info;

		hz_lattice_get_info(l, &info);
		for (j = 0; j < embed; j++)
			good &= info.offset[j] == v->offset[j];
		if (!good) {
			diag("%s: offset", v->tag);
			hz_lattice_close(l);
			break;
		}
		for (pack = 0; pack <= HZ_LATTICE_LIMBS && good; pack++) {
			struct area x = area_new(dev, 32, 0), codes = area_new(dev, 64, 0);
			struct area t = area_new(dev, 1, 0), y = area_new(dev, 32, 0);
			hz_lattice_code_opts co = {.pack = pack};
			hz_tensor xt = hz_tensor_1d(x.data, HZ_F32, dev->device, v->dim), ct, tt,
				  yt;
			unsigned char *image;
			uint64_t want[8] = {0};
			int64_t last;
			int dtype, n;
			void *p;

			if (!pack_of(l, pack, &dtype, &last)) {
				good &= pack == HZ_LATTICE_FULL64 && !v->full64;
				area_free(&x);
				area_free(&codes);
				area_free(&t);
				area_free(&y);
				continue;
			}
			good &= pack != HZ_LATTICE_FULL64 || v->full64;
			image = image_new(32, 0, &p);
			memcpy(p, v->x, sizeof(v->x));
			area_write(&x, image);
			free(image);
			ct = last ? hz_tensor_2d(codes.data, dtype, dev->device, 1, last) :
				    hz_tensor_1d(codes.data, dtype, dev->device, 1);
			tt = hz_tensor_1d(t.data, HZ_U8, dev->device, 1);
			yt = hz_tensor_1d(y.data, HZ_F32, dev->device, v->dim);
			if (hz_lattice_encode(dev->ctx, l, &xt, &ct, &tt, NULL, &co) != HZ_OK ||
			    hz_lattice_decode(dev->ctx, l, &ct, &tt, &yt, &co) != HZ_OK)
				bail("%s: %s", v->tag, hz_errmsg(dev->ctx));
			n = last ? (int)last : 1;
			for (j = 0; j < n; j++)
				put_int(want, hz_dtype_size(dtype), j,
					pack == HZ_LATTICE_LEVEL  ? v->level[j] :
					pack == HZ_LATTICE_FULL64 ? v->full :
								    v->limb[j]);
			image = image_new(64, 0, &p);
			area_read(&codes, image);
			good &= same_bits(p, want, (size_t)n, hz_dtype_size(dtype));
			free(image);
			image = image_new(1, 0, &p);
			area_read(&t, image);
			good &= *(uint8_t *)p == v->t;
			free(image);
			image = image_new(32, 0, &p);
			area_read(&y, image);
			for (j = 0; j < v->dim; j++)
				good &= fabs((double)((float *)p)[j] -
					     v->point[j] * v->beta * exp2(v->alpha * v->t)) <=
					1e-6 * fabs((double)((float *)p)[j]) + 1e-30;
			free(image);
			if (!good)
				diag("%s, q=%d, pack %d", v->tag, v->q, pack);
			area_free(&x);
			area_free(&codes);
			area_free(&t);
			area_free(&y);
		}
		hz_lattice_close(l);
	}
	ok(good, "%s: the published vectors, every packing", dev->name);
}

static uint32_t crc32_add(uint32_t crc, const void *p, size_t bytes)
{
	const uint8_t *b = p;
	int bit;

	crc = ~crc;
	while (bytes--) {
		crc ^= *b++;
		for (bit = 0; bit < 8; bit++)
			crc = crc >> 1 ^ (crc & 1 ? 0xedb88320u : 0);
	}
	return ~crc;
}

static void test_checksums(void)
{
	size_t i;

	for (i = 0; i < sizeof(lattice_checksums) / sizeof(*lattice_checksums); i++) {
		const struct lattice_checksum *s = &lattice_checksums[i];
		hz_lattice_opts o = {.kind = s->kind, .dim = s->dim, .q = s->q, .levels = 1};
		hz_lattice *l = lattice_new(devs[0].ctx, &o);
		uint32_t leaders = 0, products = 0;
		hz_lattice_info info;
		int64_t a, b;
		int j;

		hz_lattice_get_info(l, &info);
		for (a = 0; a <= info.level_max; a++) {
			for (j = 0; j < info.embed; j++) {
				int8_t c = (int8_t)info.leaders[a * info.embed + j];

				leaders = crc32_add(leaders, &c, 1);
			}
			for (b = 0; s->products && b <= info.level_max; b++) {
				int32_t sum = 0;
				uint8_t le[2];

				for (j = 0; j < info.embed; j++)
					sum += info.leaders[a * info.embed + j] *
					       info.leaders[b * info.embed + j];
				le[0] = (uint8_t)sum;
				le[1] = (uint8_t)(sum >> 8);
				products = crc32_add(products, le, 2);
			}
		}
		ok(!s->leaders || leaders == s->leaders, "checksum of leaders, kind %d q=%d",
		   s->kind, s->q);
		ok(!s->products || products == s->products, "checksum of products, kind %d q=%d",
		   s->kind, s->q);
		hz_lattice_close(l);
	}
}

/* ---- Random encodings ------------------------------------------------------------------------ */

/* Values of several kinds, rounded to the dtype */
static double random_value(uint64_t *rnd, int mode, double scale)
{
	switch (mode) {
	case 0:
		return rnd_normal(rnd) * scale * 3;
	case 1:				/* multiples of half a step: ties everywhere */
		return (double)(rnd_below(rnd, 33) - 16) / 2 * scale;
	case 2:
		return (double)(rnd_below(rnd, 257) - 128) / 64 * scale;
	case 3:
		return rnd_normal(rnd) * scale * 40;
	default:
		return rnd_normal(rnd) * scale * exp2((double)(rnd_below(rnd, 60) - 20));
	}
}

static double random_special(uint64_t *rnd)
{
	static const double special[] = {NAN, INFINITY, -INFINITY, 0.0, -0.0, 3e38, -1e-45};

	return special[rnd_below(rnd, 7)];
}

struct encode_case {
	hz_lattice_opts o;
	double bank[16], dither[REF_D];
	int64_t offset[REF_D];
	int pack, dtype;
	int64_t n, blocks, rows;
	struct view x, codes, t;
	unsigned char *x_image;
	void *x_data;
};

static void describe_case(const struct encode_case *c, const struct config *f,
			  const struct dev *dev)
{
	diag("%s: %s, policy %d, beta %g alpha %g group %d banks %d flags %u dither %d, pack %d, x "
	     "%s "
	     "[%lld][%lld]",
	     dev->name, f->name, c->o.policy, c->o.beta, c->o.alpha, c->o.group, c->o.banks,
	     c->o.flags, c->o.dither != NULL, c->pack, hz_dtype_name(c->dtype), (long long)c->rows,
	     (long long)c->n);
}

static void random_opts(uint64_t *rnd, const struct config *f, struct encode_case *c)
{
	static const double alphas[] = {0, 1, 1.0 / 3, 0.125, 0.7};
	int i;

	c->o = opts_of(f);
	c->o.policy = (int)rnd_below(rnd, 5);
	c->o.beta = rnd_below(rnd, 2) ? exp2((double)(rnd_below(rnd, 7) - 3)) :
				       0.1 + fabs(rnd_uniform(rnd));
	if (c->o.policy == HZ_LATTICE_T || c->o.policy == HZ_LATTICE_GROUP)
		c->o.alpha = alphas[rnd_below(rnd, 5)];
	c->o.flags = rnd_below(rnd, 2) ? HZ_LATTICE_CENTER : 0;
	if (c->o.policy == HZ_LATTICE_GROUP ||
	    (c->o.policy == HZ_LATTICE_BANK && rnd_below(rnd, 2))) {
		c->o.group = f->dim * (int)(1 + rnd_below(rnd, 128 / f->dim));
		if (c->o.group < 8)
			c->o.group = f->dim * ((8 + f->dim - 1) / f->dim);
		c->o.flags |= rnd_below(rnd, 4) ? 0 : HZ_LATTICE_FIRST_FIT;
	}
	if (c->o.policy == HZ_LATTICE_BANK) {
		c->o.banks = 1 + (int)rnd_below(rnd, 16);
		for (i = 0; i < c->o.banks; i++)
			c->bank[i] = exp2(rnd_uniform(rnd) * 3);
		c->o.bank = c->bank;
		c->o.flags |= rnd_below(rnd, 2) ? HZ_LATTICE_FIRST_FIT : 0;
	}
	if (rnd_below(rnd, 4) == 0) {
		for (i = 0; i < f->dim; i++)
			c->dither[i] = rnd_uniform(rnd) / 4;
		c->o.dither = c->dither;
	}
}

static void random_case(uint64_t *rnd, const struct config *f, struct encode_case *c,
			hz_lattice **l)
{
	int64_t shape[HZ_MAXDIM], last;
	int ndim, i, mode, dtype;
	int64_t e;

	random_opts(rnd, f, c);
	*l = lattice_new(devs[0].ctx, &c->o);
	do {
		c->pack = (int)rnd_below(rnd, 3);
	} while (!pack_of(*l, c->pack, &dtype, &last));
	c->dtype = floats[rnd_below(rnd, 3)];
	ndim = (int)rnd_below(rnd, 4);
	c->rows = 1;
	for (i = 0; i < ndim; i++) {
		shape[i] = 1 + rnd_below(rnd, 4);
		c->rows *= shape[i];
	}
	c->n = rnd_below(rnd, 3) ? f->dim * (1 + rnd_below(rnd, 40)) : 1 + rnd_below(rnd, 300);
	c->blocks = (c->n + f->dim - 1) / f->dim;
	shape[ndim] = c->n;
	c->x = view_new(rnd, c->dtype, ndim + 1, shape, (int)rnd_below(rnd, 3));
	shape[ndim] = c->blocks;
	shape[ndim + 1] = last;
	c->codes = view_new(rnd, dtype, ndim + (last ? 2 : 1), shape, (int)rnd_below(rnd, 3));
	shape[ndim] = c->o.group ? (c->n + c->o.group - 1) / c->o.group : c->blocks;
	c->t = view_new(rnd, HZ_U8, ndim + 1, shape, (int)rnd_below(rnd, 3));
	c->x_image = image_new(c->x.bytes, 0, &c->x_data);
	mode = (int)rnd_below(rnd, 5);
	for (e = 0; e < (int64_t)(c->x.bytes / c->x.size); e++)
		ref_put(c->dtype, c->x_data, e, rnd_below(rnd, 400) == 0 ? random_special(rnd) :
			random_value(rnd, mode, c->o.beta));
}

static int has_t(const hz_lattice_opts *o)
{
	return o->policy == HZ_LATTICE_T || o->policy == HZ_LATTICE_BANK ||
	       o->policy == HZ_LATTICE_GROUP;
}

/* The expected codes, t and counts */
static void expect(const struct encode_case *c, const struct ref_lattice *r, void *codes, void *t,
		   int64_t *overload)
{
	static struct ref_block block[128];
	static float v[128 * REF_D];
	static uint64_t code[REF_M * REF_D];
	int64_t row, b0;

	overload[0] = overload[1] = 0;
	for (row = 0; row < c->rows; row++) {
		for (b0 = 0; b0 < c->blocks; b0 += r->group) {
			int n = (int)(c->blocks - b0 < r->group ? c->blocks - b0 : r->group), i, j;

			for (i = 0; i < n * r->d; i++) {
				int64_t e = b0 * r->d + i;

				v[i] = e < c->n ? (float)ref_get(c->dtype, c->x_data,
								 view_at(&c->x, row, 1, &e)) : 0;
			}
			ref_encode(r, v, n, block);
			for (i = 0; i < n; i++) {
				int64_t at[2] = {b0 + i, 0};
				int count = ref_pack(r, c->pack, block[i].b, code);

				overload[0] += block[i].bad;
				overload[1] += block[i].special != 0;
				for (j = 0; j < count; j++) {
					at[1] = j;
					put_int(codes, c->codes.size,
						view_at(&c->codes, row,
							c->pack == HZ_LATTICE_FULL64 ? 1 : 2, at),
						code[j]);
				}
				at[0] /= r->group;
				if (has_t(&c->o))
					((uint8_t *)t)[view_at(&c->t, row, 1, at)] =
						(uint8_t)block[i].t;
			}
		}
	}
}

static int encode_on(struct dev *dev, const struct config *f, const struct encode_case *c,
		     const hz_lattice *l, const unsigned char *codes_want,
		     const unsigned char *t_want, const int64_t *overload)
{
	struct area x = area_new(dev, c->x.bytes, 0), codes = area_new(dev, c->codes.bytes, 0);
	struct area t = area_new(dev, c->t.bytes, 0), over = area_new(dev, 16, 0);
	hz_tensor xt = view_tensor(&c->x, &x), ct = view_tensor(&c->codes, &codes);
	hz_tensor tt = view_tensor(&c->t, &t), ot = hz_tensor_1d(over.data, HZ_S64, dev->device, 2);
	hz_lattice_code_opts co = {.pack = c->pack};
	unsigned char *image = malloc(codes.total), *t_image = malloc(t.total), *o_image;
	size_t bytes = 1;
	void *p;
	int good = 1;

	area_write(&x, c->x_image);
	if (RECORD(dev->ctx, hz_lattice_encode(dev->ctx, l, &xt, &ct, has_t(&c->o) ? &tt : NULL,
					       &ot, &co), &bytes) != HZ_OK ||
	    hz_reserve(dev->ctx, bytes) != HZ_OK)
		bail("workspace of lattice_encode: %s", hz_errmsg(dev->ctx));
	if (hz_lattice_encode(dev->ctx, l, &xt, &ct, has_t(&c->o) ? &tt : NULL, &ot, &co) != HZ_OK)
		bail("lattice_encode: %s", hz_errmsg(dev->ctx));
	area_read(&codes, image);
	area_read(&t, t_image);
	o_image = image_new(16, 0, &p);
	area_read(&over, o_image);
	good &= same_bits(image, codes_want, codes.total, 1);
	good &= same_bits(t_image, t_want, t.total, 1);
	good &= same_bits(p, overload, 2, 8);
	if (!good)
		describe_case(c, f, dev);
	free(image);
	free(t_image);
	free(o_image);
	area_free(&x);
	area_free(&codes);
	area_free(&t);
	area_free(&over);
	return good;
}

static void test_encode(uint64_t *rnd)
{
	const int cases = tap_quick() ? 6 : 40;
	int f, i, k;

	for (f = 0; f < CONFIGS; f++) {
		int good = 1;

		for (i = 0; i < cases && good; i++) {
			unsigned char *codes_want, *t_want;
			void *codes, *t;
			struct encode_case c = {.pack = 0};
			struct ref_lattice r;
			int64_t overload[2];
			hz_lattice *l;

			random_case(rnd, &configs[f], &c, &l);
			ref_lattice_init(&r, &c.o);
			ref_offset(&r, l);
			codes_want = image_new(c.codes.bytes, 0, &codes);
			t_want = image_new(c.t.bytes, 0, &t);
			expect(&c, &r, codes, t, overload);
			for (k = 0; k < ndevs && good; k++)
				good &= encode_on(&devs[k], &configs[f], &c, l, codes_want, t_want,
						  overload);
			free(codes_want);
			free(t_want);
			free(c.x_image);
			hz_lattice_close(l);
		}
		ok(good, "encode: %s", configs[f].name);
	}
}

/* ---- Decoding -------------------------------------------------------------------------------- */

struct decode_case {
	hz_lattice_opts o;
	double bank[16], dither[REF_D];
	hz_lattice_code_opts co;
	int64_t n, blocks, rows;
	int all_levels;			/* LEVEL: codes of all levels are given */
	struct view y, codes, t;
	unsigned char *codes_image, *t_image;
	void *codes_data, *t_data;
};

/* Codes of random digits; if bits are left over, some codes that no digits have */
static void random_codes(uint64_t *rnd, struct decode_case *c, const struct ref_lattice *r)
{
	static uint64_t code[REF_M * REF_D];
	int64_t b[REF_M][REF_D], row, at[2];
	const int first = c->co.use_levels ? r->m - c->co.use_levels : 0;
	int i, m, count;

	c->codes_image = image_new(c->codes.bytes, 0, &c->codes_data);
	c->t_image = image_new(c->t.bytes, 0, &c->t_data);
	for (i = 0; i < (int)c->t.bytes; i++)
		((uint8_t *)c->t_data)[i] = (uint8_t)rnd_below(rnd, r->scales);
	for (row = 0; row < c->rows; row++) {
		for (at[0] = 0; at[0] < c->blocks; at[0]++) {
			for (m = 0; m < r->m; m++) {
				for (i = 0; i < r->d; i++)
					b[m][i] = rnd_below(rnd, r->q);
			}
			count = ref_pack(r, c->co.pack, b, code);
			for (i = 0; i < count; i++) {
				int skip = c->co.pack == HZ_LATTICE_LEVEL && !c->all_levels ?
					   first : 0;

				at[1] = i - skip;
				if (i >= skip)
					put_int(c->codes_data, c->codes.size,
						view_at(&c->codes, row,
							c->co.pack == HZ_LATTICE_FULL64 ? 1 : 2,
							at),
						code[i]);
			}
		}
	}
}

static uint64_t get_int(const void *p, size_t size, int64_t i)
{
	uint64_t v = 0;

	memcpy(&v, (const char *)p + (size_t)i * size, size);
	return v;
}

/* Digits of a block's codes, by division */
static void unpack(const struct decode_case *c, const struct ref_lattice *r, int64_t row,
		   int64_t block, int first, int64_t b[REF_M][REF_D])
{
	const int skip = c->co.pack == HZ_LATTICE_LEVEL && !c->all_levels ? first : 0;
	const int inner = c->co.pack == HZ_LATTICE_FULL64 ? 1 : 2;
	int64_t at[2] = {block, 0};
	uint64_t word = 0;
	int limb = 0, m, i, left = 0;

	for (word = (uint64_t)r->q; word <= UINT64_C(1) << 32; word *= (uint64_t)r->q)
		limb++;
	for (m = 0; m < r->m; m++) {
		if (c->co.pack == HZ_LATTICE_LEVEL) {
			at[1] = m - skip;
			if (m >= skip)
				word = get_int(c->codes_data, c->codes.size,
					       view_at(&c->codes, row, 2, at));
		}
		for (i = 0; i < r->d; i++) {
			if (c->co.pack != HZ_LATTICE_LEVEL && left == 0) {
				word = get_int(c->codes_data, c->codes.size,
					       view_at(&c->codes, row, inner, at));
				at[1]++;
				left = c->co.pack == HZ_LATTICE_LIMBS ? limb : 1 << 30;
			}
			b[m][i] = (int64_t)(word % (uint64_t)r->q);
			word /= (uint64_t)r->q;
			left--;
		}
	}
}

/* What is subtracted from points: z, less the mean of the levels left out */
static void ref_sub(const struct ref_lattice *r, const hz_lattice *l, const hz_lattice_opts *o,
		    int first, float *sub)
{
	double mean[REF_D] = {0}, weight = (pow(r->q, first) - 1) / (r->q - 1);
	int64_t p[REF_D], a;
	hz_lattice_info info;
	int i;

	hz_lattice_get_info(l, &info);
	for (a = 0; info.leaders && a <= info.level_max; a++) {
		for (i = 0; i < r->embed; i++)
			p[i] = info.leaders[a * r->embed + i];
		for (i = 0; i < r->d; i++)
			mean[i] += ref_real(r, p, i) / (double)(info.level_max + 1);
	}
	for (i = 0; i < r->d; i++)
		sub[i] = first ? (float)((o->dither ? o->dither[i] : 0) - weight * mean[i]) :
				 r->z[i];
}

static int decode_on(struct dev *dev, const struct decode_case *c, const hz_lattice *l,
		     const unsigned char *want, double slack)
{
	struct area y = area_new(dev, c->y.bytes, 0), codes = area_new(dev, c->codes.bytes, 0);
	struct area t = area_new(dev, c->t.bytes, 0);
	hz_tensor yt = view_tensor(&c->y, &y), ct = view_tensor(&c->codes, &codes);
	hz_tensor tt = view_tensor(&c->t, &t);
	unsigned char *image = malloc(y.total);
	size_t bytes = 1, i;
	int good = 1;

	area_write(&codes, c->codes_image);
	area_write(&t, c->t_image);
	if (RECORD(dev->ctx, hz_lattice_decode(dev->ctx, l, &ct, has_t(&c->o) ? &tt : NULL, &yt,
					       &c->co), &bytes) != HZ_OK ||
	    hz_reserve(dev->ctx, bytes) != HZ_OK)
		bail("workspace of lattice_decode: %s", hz_errmsg(dev->ctx));
	if (hz_lattice_decode(dev->ctx, l, &ct, has_t(&c->o) ? &tt : NULL, &yt, &c->co) != HZ_OK)
		bail("lattice_decode: %s", hz_errmsg(dev->ctx));
	area_read(&y, image);
	/* With slack: the mean of the levels left out may differ by a rounding of its sum. */
	for (i = 0; i < c->y.bytes / c->y.size && slack > 0; i++) {
		unsigned char *a = image + GUARD + i * c->y.size;
		const unsigned char *b = want + GUARD + i * c->y.size;
		const double was = ref_get(c->y.dtype, a, 0), wanted = ref_get(c->y.dtype, b, 0);

		if (fabs(was - wanted) <= 0.01 * fabs(wanted) + slack)
			memcpy(a, b, c->y.size);
	}
	good &= same_bits(image, want, y.total, 1);
	free(image);
	area_free(&y);
	area_free(&codes);
	area_free(&t);
	return good;
}

static int decode_case(uint64_t *rnd, const struct config *f)
{
	static const int ints[2][3] = {{HZ_S8, HZ_S16, HZ_S32}, {HZ_U8, HZ_U16, HZ_U32}};
	struct encode_case e = {.pack = 0};
	struct decode_case c = {.all_levels = 1};
	int64_t shape[HZ_MAXDIM], last, b[REF_M][REF_D], p[REF_D], row, k;
	int dtype, ndim, i, m, first, good = 1, dev, y_dtype;
	struct ref_lattice r;
	unsigned char *want;
	hz_lattice_info info;
	hz_lattice *l;
	float sub[REF_D], x[REF_D];
	void *y;

	random_opts(rnd, f, &e);
	c.o = e.o;
	l = lattice_new(devs[0].ctx, &e.o);
	hz_lattice_get_info(l, &info);
	ref_lattice_init(&r, &e.o);
	ref_offset(&r, l);
	do {
		c.co.pack = (int)rnd_below(rnd, 3);
	} while (!pack_of(l, c.co.pack, &dtype, &last));
	c.co.to = (int)rnd_below(rnd, 3);
	if (info.leaders && rnd_below(rnd, 2))
		c.co.use_levels = 1 + (int)rnd_below(rnd, f->levels);
	first = c.co.use_levels ? f->levels - c.co.use_levels : 0;
	if (c.co.pack == HZ_LATTICE_LEVEL && first > 0 && rnd_below(rnd, 2)) {
		c.all_levels = 0;
		last = c.co.use_levels;
	}
	c.rows = 1;
	ndim = (int)rnd_below(rnd, 3);
	for (i = 0; i < ndim; i++) {
		shape[i] = 1 + rnd_below(rnd, 4);
		c.rows *= shape[i];
	}
	/* sometimes more blocks than one pass processes */
	c.n = 1 + rnd_below(rnd, rnd_below(rnd, 8) ? 300 : 7000);
	c.blocks = (c.n + f->dim - 1) / f->dim;
	shape[ndim] = c.blocks;
	shape[ndim + 1] = last;
	c.codes = view_new(rnd, dtype, ndim + (last ? 2 : 1), shape, (int)rnd_below(rnd, 3));
	shape[ndim] = (c.blocks + r.group - 1) / r.group;
	c.t = view_new(rnd, HZ_U8, ndim + 1, shape, (int)rnd_below(rnd, 3));
	y_dtype = c.co.to == HZ_LATTICE_VALUES ? floats[rnd_below(rnd, 3)] : 0;
	if (c.co.to == HZ_LATTICE_VALUES) {
		shape[ndim] = c.n;
	} else if (c.co.to == HZ_LATTICE_POINTS) {
		/* bound of leaders: q, twice that for E8 */
		double most = (f->kind == HZ_LATTICE_E8 ? 2 : 1) * f->q * pow(f->q, f->levels) /
			      (f->q - 1);

		shape[ndim] = c.blocks;
		shape[ndim + 1] = r.embed;
		y_dtype = ints[0][most < 127   ? rnd_below(rnd, 3) :
				  most < 32767 ? 1 + rnd_below(rnd, 2) :
						 2];
	} else {
		shape[ndim] = c.blocks;
		shape[ndim + 1] = f->levels - first;
		shape[ndim + 2] = f->dim;
		y_dtype = ints[1][f->q <= 256 ? rnd_below(rnd, 3) : 1 + rnd_below(rnd, 2)];
	}
	c.y = view_new(rnd, y_dtype, ndim + 1 + c.co.to, shape, (int)rnd_below(rnd, 3));
	random_codes(rnd, &c, &r);
	want = image_new(c.y.bytes, 0, &y);
	ref_sub(&r, l, &c.o, first, sub);
	for (row = 0; row < c.rows; row++) {
		for (k = 0; k < c.blocks; k++) {
			int64_t at[3] = {k, 0, 0}, group = k / r.group;
			int t = has_t(&c.o) ? ((uint8_t *)c.t_data)[view_at(&c.t, row, 1, &group)] :
					      0;

			unpack(&c, &r, row, k, first, b);
			ref_sum(&r, b, first, p);
			for (i = 0; c.co.to == HZ_LATTICE_POINTS && i < r.embed; i++) {
				at[1] = i;
				put_int(y, c.y.size, view_at(&c.y, row, 2, at), (uint64_t)p[i]);
			}
			for (m = first; c.co.to == HZ_LATTICE_DIGITS && m < r.m; m++) {
				for (i = 0; i < r.d; i++) {
					at[1] = m - first;
					at[2] = i;
					put_int(y, c.y.size, view_at(&c.y, row, 3, at),
						(uint64_t)b[m][i]);
				}
			}
			ref_value(&r, p, sub, t, x);
			for (i = 0; c.co.to == HZ_LATTICE_VALUES && i < r.d; i++) {
				int64_t e2 = k * r.d + i;

				if (e2 < c.n)
					ref_put(c.y.dtype, y, view_at(&c.y, row, 1, &e2),
						(double)x[i]);
			}
		}
	}
	for (dev = 0; dev < ndevs && good; dev++) {
		good &= decode_on(&devs[dev], &c, l, want, c.co.to == HZ_LATTICE_VALUES && first ?
				  1e-5 * (double)r.scale[r.scales - 1] : 0);
		if (!good)
			diag("%s: %s, to %d as %s, pack %d, levels %d, policy %d, dither %d, "
			     "[%lld][%lld]",
			     devs[dev].name, f->name, c.co.to, hz_dtype_name(c.y.dtype), c.co.pack,
			     c.co.use_levels, c.o.policy, c.o.dither != NULL, (long long)c.rows,
			     (long long)c.n);
	}
	free(want);
	free(c.codes_image);
	free(c.t_image);
	hz_lattice_close(l);
	return good;
}

static void test_decode(uint64_t *rnd)
{
	const int cases = tap_quick() ? 8 : 60;
	int f, i;

	for (f = 0; f < CONFIGS; f++) {
		int good = 1;

		for (i = 0; i < cases && good; i++)
			good &= decode_case(rnd, &configs[f]);
		ok(good, "decode: %s", configs[f].name);
	}
}

/* ---- Cosets: every point of a code encodes as itself ----------------------------------------- */

#define COSETS 65536

/* Each coset, with random digits on the other levels, as points: encoding gives the same digits and
 * no overload, decoding the same point. Levels 0 and M - 1 each run through all cosets. */
static int cosets_on(struct dev *dev, const struct config *f, uint64_t *rnd)
{
	hz_lattice_opts o = opts_of(f);
	hz_lattice *l = lattice_new(dev->ctx, &o);
	struct ref_lattice r;
	hz_lattice_info info;
	int64_t n, k, (*b)[REF_M][REF_D] = malloc(sizeof(*b)), p[REF_D], *over;
	struct area x, codes, over_area, y;
	unsigned char *x_image, *want_image, *image;
	float *v;
	void *want, *got;
	int i, m, all = 1, good, code_size;
	uint64_t code[REF_M * REF_D];

	hz_lattice_get_info(l, &info);
	ref_lattice_init(&r, &o);
	n = info.level_max >= 0 && info.level_max < COSETS ? info.level_max + 1 :
	    tap_quick()					   ? 500 :
							     5000;
	if (tap_quick() && n > 2000)
		n = 2000;
	all = info.level_max + 1 == n;
	code_size = (int)hz_dtype_size(info.level_dtype);
	x = area_new(dev, (size_t)(n * r.d) * 4, 0);
	y = area_new(dev, (size_t)(n * r.d) * 4, 0);
	codes = area_new(dev, (size_t)(n * r.m * code_size), 0);
	over_area = area_new(dev, 16, 0);
	x_image = image_new(x.bytes, 0, &v);
	want_image = image_new(codes.bytes, 0, &want);
	for (k = 0; k < n; k++) {
		int64_t index = k;

		for (m = 0; m < r.m; m++) {
			for (i = 0; i < r.d; i++)
				(*b)[m][i] = rnd_below(rnd, r.q);
		}
		for (i = 0; i < r.d && all; i++, index /= r.q)
			(*b)[k % 2 ? 0 : r.m - 1][i] = index % r.q;
		ref_sum(&r, *b, 0, p);
		ref_value(&r, p, r.z, 0, &v[k * r.d]);
		ref_pack(&r, HZ_LATTICE_LEVEL, *b, code);
		for (m = 0; m < r.m; m++)
			put_int(want, (size_t)code_size, k * r.m + m, code[m]);
	}
	area_write(&x, x_image);
	hz_tensor xt = hz_tensor_2d(x.data, HZ_F32, dev->device, n, r.d);
	hz_tensor yt = hz_tensor_2d(y.data, HZ_F32, dev->device, n, r.d);
	hz_tensor ct = hz_tensor_3d(codes.data, info.level_dtype, dev->device, n, 1, r.m);
	hz_tensor ot = hz_tensor_1d(over_area.data, HZ_S64, dev->device, 2);

	if (hz_lattice_encode(dev->ctx, l, &xt, &ct, NULL, &ot, NULL) != HZ_OK ||
	    hz_lattice_decode(dev->ctx, l, &ct, NULL, &yt, NULL) != HZ_OK)
		bail("%s: %s", f->name, hz_errmsg(dev->ctx));
	image = image_new(codes.bytes, 0, &got);
	area_read(&codes, image);
	good = same_bits(got, want, (size_t)(n * r.m), (size_t)code_size);
	free(image);
	image = image_new(y.bytes, 0, &got);
	area_read(&y, image);
	good &= same_bits(got, v, (size_t)(n * r.d), 4);
	free(image);
	image = image_new(16, 0, &over);
	area_read(&over_area, image);
	good &= over[0] == 0 && over[1] == 0;
	free(image);
	free(x_image);
	free(want_image);
	free(b);
	area_free(&x);
	area_free(&y);
	area_free(&codes);
	area_free(&over_area);
	hz_lattice_close(l);
	return good;
}

static void test_cosets(uint64_t *rnd)
{
	int f, k;

	for (f = 0; f < CONFIGS; f++) {
		int good = 1;

		if (pow(configs[f].q, configs[f].dim) > 4294967296.0)
			continue;
		for (k = 0; k < ndevs; k++) {
			if (!devs[k].again)
				good &= cosets_on(&devs[k], &configs[f], rnd);
		}
		ok(good, "every point of the code comes back: %s", configs[f].name);
	}
}

/* ---- main ------------------------------------------------------------------------------------ */

int main(void)
{
	uint64_t rnd = tap_seed();
	int i;

	dev_open_all();
	dev_open_routes(HZI_OP_lattice_encode);
	dev_open_routes(HZI_OP_lattice_decode);
	for (i = 0; i < ndevs; i++)
		vectors_on(&devs[i]);
	test_checksums();
	test_cosets(&rnd);
	test_encode(&rnd);
	test_decode(&rnd);
	dev_close_all();
	return done_testing();
}
