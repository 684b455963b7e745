/*
 * lattice.h - quantizers and views of any layout, for the tests of lattice codes
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#ifndef T_LATTICE_H
#define T_LATTICE_H

#include "t/core/dev.h"
#include "t/core/record.h"
#include "t/lattice/open.h"

static inline hz_lattice *lattice_new(hz_context *ctx, const hz_lattice_opts *o)
{
	hz_lattice *l;

	if (open_lattice(ctx, &l, o) != HZ_OK)
		bail("hz_lattice_open: %s", hz_errmsg(ctx));
	return l;
}

/* A view of a shape within an image, with `low` elements before its data pointer */
struct view {
	int ndim, dtype;
	int64_t shape[HZ_MAXDIM], stride[HZ_MAXDIM], low, count;
	size_t size, bytes;
};

/* wild 0: contiguous; 1: dimensions in any order, gaps; 2: negative strides, too */
static inline struct view view_new(uint64_t *rnd, int dtype, int ndim, const int64_t *shape,
				   int wild)
{
	struct view v = {.ndim = ndim, .dtype = dtype, .count = 1, .size = hz_dtype_size(dtype)};
	int order[HZ_MAXDIM], i, j, t;
	int64_t step = 1, high = 1;

	for (i = 0; i < ndim; i++) {
		order[i] = i;
		v.shape[i] = shape[i];
		v.count *= shape[i];
	}
	for (i = ndim - 1; wild && i > 0; i--) {
		j = (int)rnd_below(rnd, i + 1);
		t = order[i];
		order[i] = order[j];
		order[j] = t;
	}
	for (i = ndim - 1; i >= 0; i--) {
		v.stride[order[i]] = step;
		step = step * (shape[order[i]] ? shape[order[i]] : 1) +
		       (wild ? rnd_below(rnd, 3) : 0);
	}
	for (i = 0; i < ndim; i++) {
		if (wild == 2 && rnd_below(rnd, 2)) {
			v.stride[i] = -v.stride[i];
			v.low -= v.stride[i] * (shape[i] ? shape[i] - 1 : 0);
		}
		high += llabs(v.stride[i]) * (shape[i] ? shape[i] - 1 : 0);
	}
	v.bytes = (size_t)high * v.size;
	return v;
}

static inline hz_tensor view_tensor(const struct view *v, const struct area *a)
{
	hz_tensor t = {.data = (char *)a->data + (size_t)v->low * v->size,
		       .dtype = (int16_t)v->dtype,
		       .ndim = (int16_t)v->ndim,
		       .device = a->dev->device};

	memcpy(t.shape, v->shape, sizeof(t.shape));
	memcpy(t.stride, v->stride, sizeof(t.stride));
	return t;
}

/* The element at an index: at[] for the last `inner` dimensions, row for the others */
static inline int64_t view_at(const struct view *v, int64_t row, int inner, const int64_t *at)
{
	int64_t e = v->low;
	int i;

	for (i = 0; i < inner; i++)
		e += at[i] * v->stride[v->ndim - inner + i];
	for (i = v->ndim - inner - 1; i >= 0; i--) {
		e += row % v->shape[i] * v->stride[i];
		row /= v->shape[i];
	}
	return e;
}

static inline void put_int(void *p, size_t size, int64_t i, uint64_t v)
{
	memcpy((char *)p + (size_t)i * size, &v, size);
}

#endif
