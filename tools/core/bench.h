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
	char op[32], name[80], dtype[32], device[16], isa[16], ceiling[64];
	int threads;
	double median_us, ratio;	/* ratio: time of the ceiling / time of the case */
	size_t line;			/* in the order read */
};

/* Empty if zeroed; free(row) releases it. */
struct bench_rows {
	struct bench_row *row;
	size_t count, capacity;
};

struct settings {
	bool quick, quality, grid;
	double seconds;		/* per case */
	double budget;		/* seconds of the grid */
	struct bench_rows *before;	/* of the grid: cells measured before; may be NULL */
	int32_t threads;
	char **wanted;		/* families and primitives; none: all */
	int wanted_count;
	FILE *json;
	bool table;
	struct bench_rows *measured;	/* receives every case; may be NULL */
};

#define POOL ((int64_t)1 << 20)	/* random elements; larger arrays repeat them */

struct bench {
	const struct settings *set;
	hz_context *ctx;
	hz_info info;
	bool gpu;
	double begin;				/* of the work on the device, by now() */
	int64_t elements;			/* of a large case */
	void *stream, *start, *stop;		/* on a GPU: stream, events */
	void *x, *y, *scale, *from, *to;	/* device memory for the largest case */
	void *pools[32];		/* random elements by dtype, or NULL */
	void *weights;			/* memory for weights of the grid */
	size_t weights_bytes;
	bool head;				/* the table's head has been printed */
};

struct bench_case;
typedef int (*bench_call)(struct bench *b, struct bench_case *c);

/* What is timed, and its ceiling; the first member of a family's own struct */
struct bench_case {
	const char *op;				/* the primitive */
	bench_call call, ceiling;
	const char *against;			/* the ceiling's name */
	bench_call other;			/* a second ceiling or NULL: the slower counts */
	const char *other_against;
	int mac_dtype;				/* of bench_products_of() */
	double macs;
	hz_tensor from, to;			/* of bench_copy() */
	double moved_bytes, operations;
	bool large;				/* on a GPU: a graph has few calls */
	char name[80], dtype[32];
};

/* Fills x with random elements: normal numbers, or codes for HZ_U8 and HZ_S8. */
int bench_fill(struct bench *b, int dtype, int64_t elements, hz_tensor x);

/* A ceiling: a copy of c->moved_bytes / 2, between the arrays that bench_copy_of() sets */
int bench_copy(struct bench *b, struct bench_case *c);
void bench_copy_of(struct bench *b, struct bench_case *c);

/* Sets the ceilings on a GPU: that copy, and as many multiply-adds alone, of HZ_F32, or of HZ_F16
 * or HZ_S8 on tensor cores. */
void bench_products_of(struct bench *b, struct bench_case *c, int dtype, double macs);

/*
 * The same for c->operations of quaternion products, which count 16 real products each. The fast
 * method makes half as many. f32 in split precision takes three 16-bit products for one.
 */
void bench_quat_products_of(struct bench *b, struct bench_case *c, int dtype, int precision,
			    int method);

/* On the CPU with all threads: c->operations / 2 multiply-adds of f32; a read of n floats */
int bench_peak(struct bench *b, struct bench_case *c);
int bench_read(struct bench *b, const float *p, int64_t n);

/*
 * On the CPU: calls work() on each thread's share of 0 .. count - 1, in multiples of unit; several
 * threads leave out a remainder. Returns HZ_OK or a status of work().
 */
typedef int bench_work(const void *arg, int64_t begin, int64_t end);
int bench_parallel(const struct bench *b, int64_t count, int64_t unit, bench_work *work,
		   const void *arg);

/* Measures a case and prints it; returns the exit status. */
int bench_run(struct bench *b, struct bench_case *c);

/* Only times c->call, at least once and for about `limit` seconds; returns a library status. */
int bench_time(struct bench *b, struct bench_case *c, double limit, double *seconds);

/* A row with the device; --json's line of a row, if there is a file. Returns an exit status. */
struct bench_row bench_row_begin(const struct bench *b);
int bench_row_write(const struct bench *b, const struct bench_case *c, const struct bench_row *row,
		    double min_us);

/* bench_grid.c: the grid on one device; returns the exit status. */
int bench_grid(struct bench *b);

/*
 * Makes a first call and runs the case, unless status (of making the case) is an error. Afterwards
 * nothing is in flight, and the case's memory may be freed.
 */
int bench_made(struct bench *b, struct bench_case *c, int status);

/* bench_threads.c: what threads cost while `busy` processes spin; returns the exit status. */
int bench_busy(const struct settings *set, int busy);

bool bench_wanted(const struct settings *set, const char *op);

/*
 * bench_compare.c. bench_row_read() parses a line of JSON and returns NULL or what is wrong with
 * it; bench_rows_read() and bench_compare() return exit statuses. EXIT_SLOWER: a case takes longer
 * than before by more than the threshold, which is a fraction.
 */
enum { EXIT_SLOWER = 3 };
const char *bench_row_read(const char *line, struct bench_row *row);
bool bench_rows_add(struct bench_rows *rows, const struct bench_row *row);
int bench_rows_read(struct bench_rows *rows, const char *file);
void bench_rows_sort(struct bench_rows *rows);
/* The row of the same case among sorted ones; NULL: none */
const struct bench_row *bench_rows_find(const struct bench_rows *rows, const struct bench_row *key);
int bench_compare(struct bench_rows *old, struct bench_rows *new, const char *file,
		  double threshold);

/* tools/<family>/bench.c: run the family's cases; head() prints the table's head once. */
int bench_hadamard(struct bench *b, void (*head)(struct bench *b));
int bench_qgemm(struct bench *b, void (*head)(struct bench *b));
int bench_quat(struct bench *b, void (*head)(struct bench *b));
int bench_quat_layer(struct bench *b, void (*head)(struct bench *b));
int bench_lattice(struct bench *b, void (*head)(struct bench *b));
int bench_vlut(struct bench *b, void (*head)(struct bench *b));
int bench_linear(struct bench *b, void (*head)(struct bench *b));
int bench_mhc(struct bench *b, void (*head)(struct bench *b));

/* bench_single.c: primitives with one case each */
int bench_single(struct bench *b, void (*head)(struct bench *b));

/* tools/lattice/bench_quality.c: error and rate of the lattice quantizer; closes the context. */
int bench_quality(const struct settings *set, hz_context *ctx);

#endif
