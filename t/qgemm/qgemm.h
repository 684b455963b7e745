/*
 * qgemm.h - codes and vectors for tests of quantized matrix products
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#ifndef HZ_T_QGEMM_H
#define HZ_T_QGEMM_H

#include "hurwitz.h"
#include "t/core/tap.h"
#include "t/core/dev.h"

static uint64_t rnd;

static const int code_dtypes[] = { HZ_U8, HZ_S8 };

/* MIDDLE: most codes near a third of their range, as of activations */
enum values { RANDOM, ALL_HIGH, ALL_LOW, ENDS, MIDDLE };

/* A host array and its copy on a device */
struct vec {
	void *host;
	hz_tensor t, there;
	struct area area;
};

static inline void vec_new(struct vec *v, int dtype, int ndim, const int64_t *shape)
{
	v->t = hz_tensor_nd(NULL, dtype, HZ_CPU, ndim, shape);
	v->host = calloc((size_t)hz_tensor_count(&v->t) + 1, hz_dtype_size(dtype));
	v->t.data = v->host;
}

static inline const hz_tensor *vec_there(struct vec *v, struct dev *dev)
{
	if (!v->host)
		return NULL;
	v->there = to_device(dev, &v->t, &v->area);
	return &v->there;
}

static inline void vec_drop(struct vec *v)
{
	if (v->host)
		area_free(&v->area);
}

static inline int32_t code(const void *p, int dtype, int64_t i)
{
	return dtype == HZ_U8 ? ((const uint8_t *)p)[i] : ((const int8_t *)p)[i];
}

static inline int code_min(int dtype)
{
	return dtype == HZ_U8 ? 0 : -128;
}

static inline void put_code(void *p, int64_t i, int v)
{
	((uint8_t *)p)[i] = (uint8_t)v;
}

static inline int random_code(int dtype, enum values values)
{
	const int low = code_min(dtype);

	switch (values) {
	case ALL_HIGH:
		return low + 255;
	case ALL_LOW:
		return low;
	case ENDS:
		return rnd_below(&rnd, 2) ? low : low + 255;
	case MIDDLE:
		if (rnd_below(&rnd, 40))
			return low + 60 + (int)rnd_below(&rnd, 64);
		return low + (int)rnd_below(&rnd, 256);
	default:
		return low + (int)rnd_below(&rnd, 256);
	}
}

static inline int reserve(struct dev *dev, const hz_tensor *a, const hz_tensor *b,
			  hz_tensor *c, const hz_qgemm_opts *o)
{
	size_t bytes;

	return RECORD(dev->ctx, hz_qgemm(dev->ctx, a, b, c, o), &bytes) ||
	       hz_reserve(dev->ctx, bytes);
}

#endif
