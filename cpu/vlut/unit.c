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
#include "cpu/vlut/label.inc"
#include "cpu/vlut/bias_act.inc"
#ifdef HZ_VNNI
#include "cpu/vlut/d4_bitfield512.inc"
#endif

void HZI_FILL(vlut)(void *table)
{
	struct hzi_vlut_kern *const kern = table;

	kern->sum = vlut_sum;
	kern->points = vlut_points;
	kern->bitfield_codes = vlut_bitfield_codes;
	kern->convert = convert;
	kern->bitfield_rows = 2;
	kern->bitfield = vlut_bitfield;
#ifdef HZ_VNNI
	kern->bitfield_rows = 3;
	kern->bitfield = bitfield512_skinny;
#endif
	/* The others have no use for what VNNI adds to AVX-512. */
	if (HZI_IN_VNNI)
		return;
	kern->range = vlut_range;
	kern->table = vlut_table;
	kern->quads = vlut_quads;
	kern->prefers_simd = LANES > 4;
	kern->widen = vlut_widen;
	kern->transpose64 = vlut_transpose64;
	kern->split_digits = vlut_split_digits;
	kern->abs_max = vlut_abs_max;
	kern->bitfield_rows_max = 6;
	kern->bitfield_points = vlut_bitfield_points;
	kern->bitfield_order = vlut_bitfield_order;
	kern->label = vlut_label;
	kern->label_quantize = vlut_label_quantize;
	kern->label_order = vlut_label_order;
	kern->label_points = vlut_label_points;
	kern->bias_act = bias_act_run;
	kern->transpose = transpose;
}
