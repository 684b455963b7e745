/*
 * unit.c - the micro-kernels of products with lattice codes, once for each ISA level
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#include <config.h>

#include "cpu/vlut/kern.h"
#include "cpu/core/elements.inc"
#include "cpu/core/convert.inc"
#include "cpu/core/transpose.inc"
#include "cpu/vlut/vlut.inc"
#ifdef HZ_VNNI
#include "cpu/vlut/d4_bitfield512.inc"
#endif

void HZI_FILL(vlut)(void *table)
{
	struct hzi_vlut_kern *const kern = table;

	kern->sum = vlut_sum;
	kern->range = vlut_range;
	kern->table = vlut_table;
	kern->points = vlut_points;
	kern->quads = vlut_quads;
	kern->computes = LANES > 4;
	kern->widen = vlut_widen;
	kern->transpose64 = vlut_transpose64;
	kern->split_digits = vlut_split_digits;
	kern->abs_max = vlut_abs_max;
	kern->fields_rows = 2;
	kern->fields_most = 6;
	kern->fields = vlut_fields;
	kern->fields_points = vlut_fields_points;
	kern->fields_codes = vlut_fields_codes;
	kern->fields_order = vlut_fields_order;
	kern->transpose = transpose;
	kern->convert = convert;
#ifdef HZ_VNNI
	kern->fields_rows = 3;
	kern->fields = fields512_few;
#endif
}
