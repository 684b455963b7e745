/*
 * dims.c - dimensions of floats, codes and quantization parameters, for launchers that tile them
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#include <config.h>

#include <string.h>

#include "gpu/quantize/launch.h"

bool hzi_quantize_is_contiguous(const struct hzi_quantize_map *map, const int64_t *stride,
				int64_t item)
{
	for (int d = map->ndim - 1; d >= 0; d--) {
		if (map->shape[d] != 1 && stride[d] != item)
			return false;
		item *= map->shape[d];
	}
	return true;
}

struct hzi_quantize_dims hzi_quantize_make_dims(const struct hzi_quantize_map *map)
{
	const bool grouped = map->params > 1 && map->group < map->n;
	struct hzi_quantize_dims t = {0};

	for (int d = 0; d < map->ndim; d++) {
		if (map->shape[d] > 1)
			t.d[t.n++] = (struct hzi_quantize_dim){
				map->shape[d], map->x_stride[d], map->q_stride[d],
				map->p_stride[d], 1};
	}
	t.d[t.n++] = (struct hzi_quantize_dim){
		map->n, map->x_step, map->q_step, grouped, grouped ? map->group : 1};
	return t;
}

void hzi_quantize_remove_dim(struct hzi_quantize_dims *t, int d)
{
	t->n--;
	memmove(t->d + d, t->d + d + 1, (size_t)(t->n - d) * sizeof(*t->d));
}

int hzi_quantize_longest_dim(const struct hzi_quantize_dims *t)
{
	int longest = 0;

	for (int d = 1; d < t->n; d++) {
		if (t->d[d].size > t->d[longest].size)
			longest = d;
	}
	return longest;
}

int hzi_quantize_min_stride_dim(const struct hzi_quantize_dims *t, bool codes)
{
	int best = 0;

	for (int d = 1; d < t->n; d++) {
		const struct hzi_quantize_dim *a = &t->d[d], *b = &t->d[best];

		if (hzi_distance(codes ? a->q : a->x) <= hzi_distance(codes ? b->q : b->x))
			best = d;
	}
	return best;
}

void hzi_quantize_split_group(struct hzi_quantize_dims *t, int d)
{
	const struct hzi_quantize_dim old = t->d[d];

	t->d[t->n++] = (struct hzi_quantize_dim){old.group, old.x, old.q, 0, 1};
	t->d[d] = (struct hzi_quantize_dim){
		old.size / old.group, old.x * old.group, old.q * old.group, old.p, 1};
}

void hzi_quantize_split_long(struct hzi_quantize_dim *i, struct hzi_quantize_dim *j, int64_t *last)
{
	const int64_t length = ceil_div(HZI_QUANTIZE_SPLIT, i->group) * i->group;

	*j = (struct hzi_quantize_dim){
		ceil_div(i->size, length), i->x * length, i->q * length, i->p * (length / i->group),
		1};
	*last = i->size - (j->size - 1) * length;
	i->size = length;
}
