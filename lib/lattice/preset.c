/*
 * preset.c - named operating points of the lattice quantizer
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#include <config.h>

#include <string.h>

#include "lib/lattice/lattice.h"

/*
 * Scales are unit r_t of values whose mean square is 1: [0] those of Gaussian values, [1] of rows
 * with outliers.
 */
static const struct preset {
	int32_t kind, q, levels, shaping, group, banks;
	struct {
		double unit, r[HZ_LATTICE_MAXBANKS];
	} bank[2];
} presets[] = {
	[HZ_LATTICE_PRESET_E8_4_50_FAST] = {
		HZ_LATTICE_E8, 16, 1, HZ_LATTICE_SHAPING_CUBE, 0, 16,
		{{.00797, {20, 23, 25, 27, 30, 31, 32, 34, 35, 37, 40, 42, 46, 50, 54, 62}},
		 {.007, {20, 24, 26, 28, 31, 34, 37, 38, 42, 46, 48, 52, 54, 59, 70, 108}}},
	},
	[HZ_LATTICE_PRESET_E8_4_50] = {
		HZ_LATTICE_E8, 16, 1, HZ_LATTICE_SHAPING_E8, 0, 16,
		{{.00731, {20, 24, 26, 27, 30, 31, 32, 34, 35, 37, 38, 40, 42, 46, 50, 62}},
		 {.00731, {20, 23, 25, 27, 29, 30, 32, 33, 35, 37, 39, 41, 44, 47, 53, 70}}},
	},
	[HZ_LATTICE_PRESET_E8_4_25] = {
		HZ_LATTICE_E8, 16, 1, HZ_LATTICE_SHAPING_D8STAR, 0, 8,
		{{.00948, {20, 25, 28, 31, 34, 37, 42, 50}},
		 {.00908, {20, 25, 28, 32, 37, 44, 59, 167}}},
	},
	[HZ_LATTICE_PRESET_E8_4_25_BEST] = {
		HZ_LATTICE_E8, 16, 1, HZ_LATTICE_SHAPING_E8, 0, 4,
		{{.0099, {20, 25, 30, 38}}, {.0099, {20, 26, 32, 45}}},
	},
	[HZ_LATTICE_PRESET_E8_3_25_FAST] = {
		HZ_LATTICE_E8, 8, 1, HZ_LATTICE_SHAPING_D8STAR, 0, 8,
		{{.01828, {20, 25, 28, 31, 34, 37, 42, 50}},
		 {.01828, {19, 23, 26, 30, 34, 39, 47, 70}}},
	},
	[HZ_LATTICE_PRESET_E8_3_25] = {
		HZ_LATTICE_E8, 8, 1, HZ_LATTICE_SHAPING_E8, 0, 4,
		{{.0175, {20, 26, 31, 40}}, {.0175, {21, 27, 33, 42}}},
	},
	[HZ_LATTICE_PRESET_E8_2_25] = {
		HZ_LATTICE_E8, 4, 1, HZ_LATTICE_SHAPING_E8, 0, 4,
		{{.0318, {20, 26, 32, 42}}, {.0318, {21, 27, 34, 44}}},
	},
	[HZ_LATTICE_PRESET_D4_4_50] = {
		HZ_LATTICE_D, 4, 2, HZ_LATTICE_SHAPING_NESTED, 8, 16,
		{{.00797, {16, 18, 20, 21, 23, 24, 26, 28, 30, 32, 34, 37, 40, 44, 50, 61}},
		 {.0085, {16, 18, 20, 22, 23, 25, 27, 29, 31, 33, 35, 38, 41, 46, 51, 69}}},
	},
};

_Static_assert(sizeof(presets) / sizeof(*presets) == HZ_LATTICE_PRESET_D4_4_50 + 1,
	       "a row for each preset");

static void set_default(int32_t *field, int32_t value)
{
	*field = *field ? *field : value;
}

void hzi_lattice_apply_preset(hz_lattice_opts *o)
{
	const struct preset *const p = presets + o->preset;
	const int wide = (o->flags & HZ_LATTICE_WIDE) != 0;

	if (!o->preset)
		return;
	set_default(&o->kind, p->kind);
	set_default(&o->q, p->q);
	set_default(&o->levels, p->levels);
	set_default(&o->shaping, p->shaping);
	set_default(&o->policy, HZ_LATTICE_BANK);
	o->beta = o->beta != 0 ? o->beta : p->bank[wide].unit;
	if (o->kind == HZ_LATTICE_D && !o->offset)
		o->flags |= HZ_LATTICE_CENTER;
	if (o->policy != HZ_LATTICE_BANK)
		return;
	set_default(&o->group, p->group);
	if (!o->bank && !o->banks) {
		o->banks = p->banks;
		o->bank = p->bank[wide].r;
	}
}
