/*
 * pair.h - operands for encoding and then decoding, for tests of calls
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#ifndef T_LATTICE_PAIR_H
#define T_LATTICE_PAIR_H

#include "t/lattice/lattice.h"

/* Host values for encoding [rows][n] f32, and for decoding to f32, on a device */
struct pair {
	struct dev *dev;
	hz_lattice *l;
	hz_lattice_info info;
	hz_lattice_code_opts o;
	int64_t rows, n, blocks, groups;
	struct area x, codes, t, y, over;
	hz_tensor xt, ct, tt, yt, ot;
};

static inline struct pair pair_new(struct dev *dev, hz_lattice *l, int pack, int64_t rows,
				   int64_t n)
{
	struct pair p = {.dev = dev, .l = l, .rows = rows, .n = n, .o = {.pack = pack}};
	int64_t inner;
	int dtype;

	hz_lattice_get_info(l, &p.info);
	p.blocks = (n + p.info.dim - 1) / p.info.dim;
	p.groups = p.info.group ? (n + p.info.group - 1) / p.info.group : p.blocks;
	dtype = pack == HZ_LATTICE_LEVEL  ? p.info.level_dtype :
		pack == HZ_LATTICE_FULL64 ? HZ_U64 :
					    HZ_U32;
	inner = pack == HZ_LATTICE_LEVEL  ? p.info.levels :
		pack == HZ_LATTICE_FULL64 ? 1 :
					    p.info.limbs;
	p.x = area_new(dev, (size_t)(rows * n) * 4, 0);
	p.y = area_new(dev, (size_t)(rows * n) * 4, 0);
	p.codes = area_new(dev, (size_t)(rows * p.blocks * inner) * hz_dtype_size(dtype), 0);
	p.t = area_new(dev, (size_t)(rows * p.groups), 0);
	p.over = area_new(dev, 16, 0);
	p.xt = hz_tensor_2d(p.x.data, HZ_F32, dev->device, rows, n);
	p.yt = hz_tensor_2d(p.y.data, HZ_F32, dev->device, rows, n);
	p.ct = pack == HZ_LATTICE_FULL64 ?
		       hz_tensor_2d(p.codes.data, dtype, dev->device, rows, p.blocks) :
		       hz_tensor_3d(p.codes.data, dtype, dev->device, rows, p.blocks, inner);
	p.tt = hz_tensor_2d(p.t.data, HZ_U8, dev->device, rows, p.groups);
	p.ot = hz_tensor_1d(p.over.data, HZ_S64, dev->device, 2);
	return p;
}

static inline void pair_free(struct pair *p)
{
	area_free(&p->x);
	area_free(&p->y);
	area_free(&p->codes);
	area_free(&p->t);
	area_free(&p->over);
}

static inline void put(const struct area *a, const void *from)
{
	void *data;
	unsigned char *image = image_new(a->bytes, 0, &data);

	memcpy(data, from, a->bytes);
	area_write(a, image);
	free(image);
}

static inline void get(const struct area *a, void *to)
{
	void *data;
	unsigned char *image = image_new(a->bytes, 0, &data);

	area_read(a, image);
	memcpy(to, data, a->bytes);
	free(image);
}

static inline int encode_call(struct pair *p)
{
	return hz_lattice_encode(p->dev->ctx, p->l, &p->xt, &p->ct,
				 p->info.scales ? &p->tt : NULL, &p->ot, &p->o);
}

static inline void encode(struct pair *p, const float *x, int64_t *overload)
{
	size_t bytes = 0;

	put(&p->x, x);
	if (RECORD(p->dev->ctx, encode_call(p), &bytes) != HZ_OK ||
	    hz_reserve(p->dev->ctx, bytes) != HZ_OK || encode_call(p) != HZ_OK)
		bail("encode: %s", hz_errmsg(p->dev->ctx));
	get(&p->over, overload);
}

static inline int decode_call(struct pair *p)
{
	return hz_lattice_decode(p->dev->ctx, p->l, &p->ct, p->info.scales ? &p->tt : NULL, &p->yt,
				 &p->o);
}

static inline void decode(struct pair *p, float *y)
{
	size_t bytes = 0;

	if (RECORD(p->dev->ctx, decode_call(p), &bytes) != HZ_OK ||
	    hz_reserve(p->dev->ctx, bytes) != HZ_OK || decode_call(p) != HZ_OK)
		bail("decode: %s", hz_errmsg(p->dev->ctx));
	get(&p->y, y);
}

#endif
