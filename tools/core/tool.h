/*
 * tool.h - what the files of the command line share
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#ifndef TOOL_H
#define TOOL_H

#include <getopt.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "hurwitz.h"

/*
 * Exit statuses: 0; EXIT_FAILURE (1) if something went wrong; EXIT_BAD for invalid usage or input
 */
enum { EXIT_BAD = 2 };

/* ---- Verbs (one file each) ------------------------------------------------------------------- */

int verb_info(int argc, char **argv);
int verb_check(int argc, char **argv);
int verb_bench(int argc, char **argv);
int verb_demo(int argc, char **argv);
int verb_run(int argc, char **argv);
int verb_inspect(int argc, char **argv);
int verb_quantize(int argc, char **argv);
int verb_dequantize(int argc, char **argv);

/* Whether the summary of ops.def is that of a part of calls that other primitives stand for */
bool is_part(const char *summary);

/* ---- Messages (hurwitz.c) -------------------------------------------------------------------- */

/* Prints "hurwitz: <message>" to stderr; returns status, for return complain(...). */
int complain(int status, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* getopt_long() with our own messages for unknown options; returns '?' for all errors. */
int next_option(int argc, char **argv, const char *verb, const char *shorts,
		const struct option *longs);

/* Escape sequences for text on a terminal; "" if the stream is none, or NO_COLOR is set. */
enum style { PLAIN, BOLD, RED, GREEN, YELLOW };
const char *style(FILE *stream, enum style s);

/* Prints text of a file to stdout without characters that a terminal obeys, padded to a width. */
void print_padded(const char *text, int width);

/* The width of a column of names: grows to that of `name`, but to 60 at most. A longer name is
 * printed on a line of its own, the row goes on below it. */
int name_column(int width, const char *name);
void print_name(const char *name, int width);

/* A line on stderr that the next one overwrites; prints nothing unless stderr is a terminal. */
void progress(const char *format, ...) __attribute__((format(printf, 1, 2)));
void progress_clear(void);

/* Why hz_open() failed, without the names of the function and the device */
const char *open_reason(void);

/* Writes a string as a JSON literal with quotes (json.c). */
void put_json_string(FILE *out, const char *s);

/* ---- Opening a context ----------------------------------------------------------------------- */

/* Parse the arguments of -d (cpu, cuda, cuda:N, auto; a value of hz_options.device) and of -t. Both
 * print errors and return the exit status. */
int parse_device(const char *verb, const char *name, int32_t *device);
int parse_threads(const char *verb, const char *text, int32_t *threads);

/* Parses a decimal (or 0x...) integer from low to high and nothing else. */
bool parse_int(const char *s, int64_t low, int64_t high, int64_t *value);
bool parse_number(const char *s, double *value);

/* The exit status for a library status: 2 if the arguments are at fault, otherwise 1 */
int exit_status(int status);

/* hz_open(); prints errors and returns the exit status. */
int open_context(hz_context **ctx, int32_t device, int32_t threads, int32_t isa);

/*
 * Sets *on to a contiguous host view on the context's device: the view itself on the CPU, otherwise
 * device memory, with the elements copied if copy is set. from_device() copies back and waits. All
 * return a library status.
 */
int to_device(hz_context *ctx, const hz_tensor *host, bool copy, hz_tensor *on);
int from_device(hz_context *ctx, const hz_tensor *on, hz_tensor *host);
void free_device(hz_context *ctx, const hz_tensor *on);

/* Reserves the workspace that a call needs; a library status */
#define RESERVE_FOR(ctx, call) \
	__extension__({ \
		size_t bytes_ = 0; \
		int status_ = hz_record_begin(ctx); \
		if (status_ == HZ_OK) { \
			status_ = (call); \
			hz_record_end(ctx, &bytes_); \
		} \
		status_ == HZ_OK ? hz_reserve(ctx, bytes_) : status_; \
	})

/* Makes a call after reserving the workspace that it needs; its status */
#define WITH_WORKSPACE(ctx, call) \
	__extension__({ \
		const int reserved_ = RESERVE_FOR(ctx, call); \
		reserved_ == HZ_OK ? (call) : reserved_; \
	})

/* ---- Numbers --------------------------------------------------------------------------------- */

double now(void);	/* seconds, monotonic */

/* splitmix64: the next 64 random bits; an approximately normal number of mean 0 and variance 1 */
uint64_t random_u64(uint64_t *state);
float random_normal(uint64_t *state);

/* An element of any dtype as a double, exactly */
double load_element(const void *p, int64_t i, int dtype);

/* Rounds to nearest even, to f32 f16 bf16 e4m3 e5m2; the small formats saturate. */
void store_element(void *p, int64_t i, int dtype, double value);

/* The median of n numbers, which it sorts; 0 if n is 0 */
double median(double *values, int n);

/* 64-byte aligned memory, or NULL; free() releases it. */
void *allocate(size_t bytes);

/* ---- References (tools/hadamard/check.c) ----------------------------------------------------- */

/* The operator of hz_hadamard() for a row of n elements, by definition. reference_make() returns
 * false if the plan does not support n, or without memory. */
struct reference {
	int64_t n, blocks;
	int64_t *start;		/* start of each block, and n */
	int8_t *base;		/* m x m; NULL if m is 1 */
	int m;
	bool transpose, raw;
	double scale;
};

bool reference_make(struct reference *r, int64_t n, const hz_hadamard_opts *opts);
void reference_free(struct reference *r);

/* Element i of scale * D_post H D_pre x, or of the transpose; pre, post: n factors or NULL */
double reference_at(const struct reference *r, const double *x, const double *pre,
		    const double *post, int64_t i);

/* The contract's bound of ||error||_2 / ||x||_2 for f32 arithmetic and a result of that dtype */
double reference_bound(const struct reference *r, int dtype);

#endif
