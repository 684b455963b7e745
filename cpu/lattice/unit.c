/*
 * unit.c - the micro-kernels of lattice quantizers, once for each ISA level
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#include <config.h>

#include "cpu/lattice/kern.h"
#include "cpu/core/elements.inc"
#include "cpu/core/convert.inc"
#include "cpu/lattice/lattice.inc"
#include "lib/lattice/shaped.h"
#include "cpu/lattice/shaped.inc"

void HZI_FILL(lattice)(void *table)
{
	struct hzi_lattice_kern *const kern = table;

	kern->points = lattice_points;
	kern->codes = lattice_codes;
	kern->limb = lattice_limb;
	kern->values = lattice_values;
	kern->index = lattice_index;
	kern->leaders = lattice_leaders;
	kern->scale = lattice_scale;
	kern->scales = lattice_scales;
	kern->norms = lattice_norms;
	shaped_make_vectors();
	kern->shaped = lattice_shaped;
	kern->cells = lattice_cells;
	kern->convert = convert;
}
