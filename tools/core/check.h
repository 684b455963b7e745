/*
 * check.h - what hurwitz check shares between families
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#ifndef CHECK_H
#define CHECK_H

#include "tools/core/tool.h"

/* A context to test, and for the CPU one with the lowest ISA, whose bits it must give. */
struct subject {
	hz_context *ctx, *plain;
	char name[64];
};

/* One line of TAP */
__attribute__((format(printf, 2, 3))) void test(bool good, const char *format, ...);

/* A comment line that says what is wrong; false */
__attribute__((format(printf, 1, 2))) bool wrong(const char *format, ...);

extern const int float_types[3];	/* f32 f16 bf16 */

/* Random numbers of a normal distribution */
void fill_normal(void *p, int dtype, int64_t count, uint64_t *seed);

/* check_hadamard.c, check_qgemm.c, check_quat.c: the lines of a subject, and of base matrices */
void check_bases(void);
void check_hadamard(const struct subject *s);
void check_qgemm(const struct subject *s);
void check_quat(const struct subject *s);

/* check_lattice.c: codes of a context, whose name begins sentences; and products with them */
bool check_lattices(hz_context *ctx, const char *name);
bool check_vluts(hz_context *ctx, const char *name);

/* check_mhc.c: a layer of hyper-connections */
bool check_mhc(hz_context *ctx, const char *name);

#endif
