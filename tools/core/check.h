/*
 * check.h - what hurwitz check shares between families
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#ifndef CHECK_H
#define CHECK_H

#include "tools/core/tool.h"

/* A context under test; for the CPU also one of the lowest ISA level, whose bits it must match. */
struct subject {
	hz_context *ctx, *plain;
	char name[80];
};

/* Prints a line of TAP. */
__attribute__((format(printf, 2, 3))) void test(bool good, const char *format, ...);

/* Prints a comment line that says what is wrong; returns false. */
__attribute__((format(printf, 1, 2))) bool wrong(const char *format, ...);

extern const int float_types[3];	/* f32 f16 bf16 */

/* Fills p with normal random numbers. */
void fill_normal(void *p, int dtype, int64_t count, uint64_t *seed);

/* tools/<family>/check.c: the tests of a subject, and of the base matrices */
void check_bases(void);
void check_hadamard(const struct subject *s);
void check_qgemm(const struct subject *s);
void check_quat(const struct subject *s);

/* Lattice codes in a context, and products with them; name begins the messages */
bool check_lattices(hz_context *ctx, const char *name);
bool check_vluts(hz_context *ctx, const char *name);

/* Linear layers in each format */
bool check_linears(hz_context *ctx, const char *name);

/* A layer of hyper-connections */
bool check_mhc(hz_context *ctx, const char *name);

#endif
