/*
 * check.h - what hurwitz check shares between families
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#ifndef CHECK_H
#define CHECK_H

#include "tool.h"

/* A comment line that says what is wrong; false */
__attribute__((format(printf, 1, 2))) bool wrong(const char *format, ...);

/* check_lattice.c: codes of a context, whose name begins sentences; and products with them */
bool check_lattices(hz_context *ctx, const char *name);
bool check_vluts(hz_context *ctx, const char *name);

/* check_mhc.c: a layer of hyper-connections */
bool check_mhc(hz_context *ctx, const char *name);

#endif
