/*
 * open.h - quantizers for tests that do not depend on the scale
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#ifndef T_LATTICE_OPEN_H
#define T_LATTICE_OPEN_H

#include "hurwitz.h"

/* hz_lattice_open() with beta 1 where the options do not set it or a preset */
static inline int open_lattice(hz_context *ctx, hz_lattice **l, const hz_lattice_opts *opts)
{
	hz_lattice_opts o = *opts;

	o.beta = o.beta != 0 || o.preset ? o.beta : 1;
	return hz_lattice_open(ctx, l, &o);
}

#endif
