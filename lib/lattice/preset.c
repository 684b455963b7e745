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
		 {.0181, {5, 9, 11, 12, 13, 15, 16, 17, 19, 21, 24, 30, 42, 55, 82, 124}}},
	},
	[HZ_LATTICE_PRESET_E8_4_50] = {
		HZ_LATTICE_E8, 16, 1, HZ_LATTICE_SHAPING_E8, 0, 16,
		{{.00731, {20, 24, 26, 27, 30, 31, 32, 34, 35, 37, 38, 40, 42, 46, 50, 62}},
		 {.01765, {5, 8, 10, 11, 12, 13, 14, 15, 16, 17, 19, 21, 26, 40, 76, 124}}},
	},
	[HZ_LATTICE_PRESET_E8_4_25] = {
		HZ_LATTICE_E8, 16, 1, HZ_LATTICE_SHAPING_D8STAR, 0, 8,
		{{.00948, {20, 25, 28, 31, 34, 37, 42, 50}},
		 {.02045, {5, 11, 14, 16, 20, 27, 49, 124}}},
	},
	[HZ_LATTICE_PRESET_E8_4_25_BEST] = {
		HZ_LATTICE_E8, 16, 1, HZ_LATTICE_SHAPING_E8, 0, 4,
		{{.0099, {20, 25, 30, 38}}, {.01854, {10, 14, 20, 60}}},
	},
	[HZ_LATTICE_PRESET_E8_3_25_FAST] = {
		HZ_LATTICE_E8, 8, 1, HZ_LATTICE_SHAPING_D8STAR, 0, 8,
		{{.01828, {20, 25, 28, 31, 34, 37, 42, 50}},
		 {.0362, {6, 11, 14, 16, 19, 24, 37, 124}}},
	},
	[HZ_LATTICE_PRESET_E8_3_25] = {
		HZ_LATTICE_E8, 8, 1, HZ_LATTICE_SHAPING_E8, 0, 4,
		{{.0175, {20, 26, 31, 40}}, {.0362, {10, 14, 20, 61}}},
	},
	[HZ_LATTICE_PRESET_E8_2_25] = {
		HZ_LATTICE_E8, 4, 1, HZ_LATTICE_SHAPING_E8, 0, 4,
		{{.0318, {20, 26, 32, 42}}, {.0648, {9, 13, 18, 61}}},
	},
	[HZ_LATTICE_PRESET_D4_4_50] = {
		HZ_LATTICE_D, 4, 2, HZ_LATTICE_SHAPING_NESTED, 8, 16,
		{{.00797, {16, 18, 20, 21, 23, 24, 26, 28, 30, 32, 34, 37, 40, 44, 50, 61}},
		 {.01845, {4, 7, 9, 10, 11, 12, 13, 14, 16, 17, 19, 22, 26, 35, 66, 124}}},
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
