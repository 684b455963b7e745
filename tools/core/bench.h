/*
 * bench.h - what hurwitz bench shares between families
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#ifndef BENCH_H
#define BENCH_H

#include "tools/core/tool.h"

/* A case as --json writes it */
struct bench_row {
	char op[32], name[64], dtype[32], device[16], isa[16], ceiling[64];
	int threads;
	double median_us, ratio;	/* ratio: the ceiling's time by this */
	size_t line;			/* in the order of reading */
};

/* Zeroed: none. row is released with free(). */
struct bench_rows {
	struct bench_row *row;
	size_t count, room;
};

struct settings {
	bool quick, quality;
	double seconds;		/* a case */
	int32_t threads;
	char **wanted;		/* families and primitives; all if there are none */
	int wanted_count;
	FILE *json;
	bool table;
	struct bench_rows *measured;	/* gets every case; NULL: nobody asks */
};

#define POOL ((int64_t)1 << 20)	/* elements of random data, which larger arrays repeat */

struct bench {
	const struct settings *set;
	hz_context *ctx;
	hz_info info;
	bool gpu;
	int64_t elements;			/* of a large case */
	void *stream, *start, *stop;		/* GPU */
	/* Device memory for the largest case. */
	void *x, *y, *scale, *from, *to;
	bool head;				/* was printed */
};

struct bench_case;
typedef int (*bench_call)(struct bench *b, struct bench_case *c);

/* What is timed, and against what; the first member of a family's own struct */
struct bench_case {
	const char *op;				/* the primitive */
	bench_call call, ceiling;
	const char *against;			/* the ceiling in words */
	bench_call other;			/* another: the longer one counts; NULL: none */
	const char *other_against;
	int mac_dtype;				/* of bench_products_of() */
	double macs;
	hz_tensor from, to;			/* the copy of bench_copy() */
	double moved_bytes, operations;
	bool large;				/* on a GPU: few calls make a graph */
	char name[64], dtype[32];
};

/* Elements of random normal numbers or, of u8 and s8, codes at x */
int bench_fill(struct bench *b, int dtype, int64_t elements, hz_tensor x);

/* A ceiling: a copy of c->moved_bytes / 2, for which bench_copy_of() has set from and to. */
int bench_copy(struct bench *b, struct bench_case *c);
void bench_copy_of(struct bench *b, struct bench_case *c);

/*
 * Ceilings on a GPU: that copy, and so many multiply-adds alone, of HZ_F32 or, on matrix units, of
 * HZ_F16 or HZ_S8
 */
void bench_products_of(struct bench *b, struct bench_case *c, int dtype, double macs);

/*
 * The same of c->operations of products of quaternions of 16 real ones: half as many by the fast
 * method, three of 16 bits for one of f32 in parts
 */
void bench_quat_products_of(struct bench *b, struct bench_case *c, int dtype, int precision,
			    int method);

/* On the CPU, with all threads: c->operations / 2 multiply-adds of f32; a read of n floats */
int bench_peak(struct bench *b, struct bench_case *c);
int bench_read(struct bench *b, const float *p, int64_t n);

/* Measures a case and prints it; the exit status. */
int bench_run(struct bench *b, struct bench_case *c);

/*
 * The same behind a first call, of a case that was made with such a status; then nothing is under
 * way, and what the case has may be freed.
 */
int bench_made(struct bench *b, struct bench_case *c, int status);

bool bench_wanted(const struct settings *set, const char *op);

/*
 * bench_compare.c. A row from a line of JSON: NULL, or what is wrong with it. Rows of a file and
 * the comparison give exit statuses; EXIT_SLOWER is that of a case that takes longer than before by
 * more than the threshold, a fraction.
 */
enum { EXIT_SLOWER = 3 };
const char *bench_row_read(const char *line, struct bench_row *row);
bool bench_rows_add(struct bench_rows *rows, const struct bench_row *row);
int bench_rows_read(struct bench_rows *rows, const char *file);
int bench_compare(struct bench_rows *old, struct bench_rows *new, const char *file,
		  double threshold);

/* bench_hadamard.c: the cases of that family; head is printed before the first. */
int bench_hadamard(struct bench *b, void (*head)(struct bench *b));

/* bench_qgemm.c: likewise */
int bench_qgemm(struct bench *b, void (*head)(struct bench *b));

/* bench_quat.c: those of quaternions */
int bench_quat(struct bench *b, void (*head)(struct bench *b));

/* bench_quat_layer.c: likewise */
int bench_quat_layer(struct bench *b, void (*head)(struct bench *b));

/* bench_quality.c: error against rate of the lattice quantizer; closes the context. */
int bench_quality(const struct settings *set, hz_context *ctx);

/* bench_lattice.c: those of the lattice quantizer */
int bench_lattice(struct bench *b, void (*head)(struct bench *b));

/* bench_vlut.c: products with lattice codes */
int bench_vlut(struct bench *b, void (*head)(struct bench *b));

/* bench_mhc.c: hyper-connections */
int bench_mhc(struct bench *b, void (*head)(struct bench *b));

/* bench_rest.c: primitives of one case each */
int bench_rest(struct bench *b, void (*head)(struct bench *b));

#endif
