/*
 * dims.c - dimensions of floats, codes and parameters
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#include <config.h>

#include <string.h>

#include "gpu/quantize/launch.h"

bool hzi_quantize_joined(const struct hzi_quantize_map *map, const int64_t *stride, int64_t item)
{
	for (int d = map->ndim - 1; d >= 0; d--) {
		if (map->shape[d] != 1 && stride[d] != item)
			return false;
		item *= map->shape[d];
	}
	return true;
}

struct hzi_dims hzi_quantize_dims_of(const struct hzi_quantize_map *map)
{
	const bool grouped = map->params > 1 && map->group < map->n;
	struct hzi_dims t = {0};

	for (int d = 0; d < map->ndim; d++) {
		if (map->shape[d] > 1)
			t.d[t.n++] = (struct hzi_dim){
				map->shape[d], map->x_stride[d], map->q_stride[d],
				map->p_stride[d], 1};
	}
	t.d[t.n++] = (struct hzi_dim){
		map->n, map->x_step, map->q_step, grouped, grouped ? map->group : 1};
	return t;
}

void hzi_quantize_remove_dim(struct hzi_dims *t, int d)
{
	t->n--;
	memmove(t->d + d, t->d + d + 1, (size_t)(t->n - d) * sizeof(*t->d));
}

int hzi_quantize_longest(const struct hzi_dims *t)
{
	int longest = 0;

	for (int d = 1; d < t->n; d++) {
		if (t->d[d].size > t->d[longest].size)
			longest = d;
	}
	return longest;
}

int hzi_quantize_closest(const struct hzi_dims *t, bool codes)
{
	int best = 0;

	for (int d = 1; d < t->n; d++) {
		const struct hzi_dim *a = &t->d[d], *b = &t->d[best];

		if (hzi_distance(codes ? a->q : a->x) <= hzi_distance(codes ? b->q : b->x))
			best = d;
	}
	return best;
}

void hzi_quantize_split_group(struct hzi_dims *t, int d)
{
	const struct hzi_dim whole = t->d[d];

	t->d[t->n++] = (struct hzi_dim){whole.group, whole.x, whole.q, 0, 1};
	t->d[d] = (struct hzi_dim){
		whole.size / whole.group, whole.x * whole.group, whole.q * whole.group, whole.p, 1};
}

void hzi_quantize_cut(struct hzi_dim *i, struct hzi_dim *j, int64_t *last)
{
	const int64_t part = ceil_div(HZI_CUT, i->group) * i->group;

	*j = (struct hzi_dim){
		ceil_div(i->size, part), i->x * part, i->q * part, i->p * (part / i->group), 1};
	*last = i->size - (j->size - 1) * part;
	i->size = part;
}
