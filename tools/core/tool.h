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

/* Exit statuses: 0, 1 for something that went wrong, 2 for bad usage or bad input. */
enum { EXIT_BAD = 2 };

/* ---- Verbs (one file each) ------------------------------------------------------------------- */

int verb_info(int argc, char **argv);
int verb_check(int argc, char **argv);
int verb_bench(int argc, char **argv);
int verb_demo(int argc, char **argv);
int verb_run(int argc, char **argv);

/* ---- Messages (hurwitz.c) -------------------------------------------------------------------- */

/* "hurwitz: <sentence>" to stderr; returns status, so that one can say return complain(...). */
int complain(int status, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* getopt_long() that reports what it does not know in our words; '?' is returned for all errors. */
int next_option(int argc, char **argv, const char *verb, const char *shorts,
		const struct option *longs);

/* Styles for text on a terminal; "" if the stream is none, or NO_COLOR is set. */
enum style { PLAIN, BOLD, RED, GREEN, YELLOW };
const char *style(FILE *stream, enum style s);

/* A line on stderr that the next one replaces; nothing unless stderr is a terminal. */
void progress(const char *format, ...) __attribute__((format(printf, 1, 2)));
void progress_clear(void);

/* Why hz_open() failed, without the names of the call and of the device asked for */
const char *open_reason(void);

/* A string as a JSON literal with its quotes. */
void json_string(FILE *out, const char *s);

/* ---- Opening a context ----------------------------------------------------------------------- */

/*
 * The arguments of -d (cpu, cuda, cuda:N, auto, to a value of hz_options.device) and of -t; both
 * say what is wrong and return the exit status.
 */
int parse_device(const char *verb, const char *name, int32_t *device);
int parse_threads(const char *verb, const char *text, int32_t *threads);

/* A decimal integer (or 0x...) and nothing else, low to high. */
bool parse_int(const char *s, int64_t low, int64_t high, int64_t *value);
bool parse_number(const char *s, double *value);

/* The exit status of a library status: 2 if the arguments are to blame, 1 if not. */
int exit_status(int status);

/* hz_open(); says why it failed and returns the exit status. */
int open_context(hz_context **ctx, int32_t device, int32_t threads, int32_t isa);

/*
 * The view *on of a contiguous host view on the context's device: itself on the CPU, else memory
 * there, with the elements copied if copy is set. from_device() copies back and waits. All return a
 * library status.
 */
int to_device(hz_context *ctx, const hz_tensor *host, bool copy, hz_tensor *on);
int from_device(hz_context *ctx, const hz_tensor *on, const hz_tensor *host);
void free_device(hz_context *ctx, const hz_tensor *on);

/* ---- Numbers --------------------------------------------------------------------------------- */

double now(void);	/* seconds, monotonic */

/* splitmix64: the next 64 random bits; a nearly normal number of mean 0, variance 1. */
uint64_t random_u64(uint64_t *state);
float random_normal(uint64_t *state);

/* One element of a dtype (f32 f16 bf16 e4m3 e5m2 e8m0 s8 u8 and wider) as a double, exactly. */
double load_element(const void *p, int64_t i, int dtype);

/* Round to nearest even, to f32 f16 bf16 e4m3 e5m2; the small formats saturate. */
void store_element(void *p, int64_t i, int dtype, double value);

/* The median of n numbers, which are sorted; 0 if n is 0. */
double median(double *values, int n);

/* 64-byte aligned; NULL if there is none. Released with free(). */
void *allocate(size_t bytes);

/* ---- References (check_hadamard.c) ----------------------------------------------------------- */

/*
 * The operator of hz_hadamard() for a row of n elements by its definition. reference_make() is
 * false if the plan cannot make n, or memory is short.
 */
struct reference {
	int64_t n, blocks;
	int64_t *start;		/* of each block, and n */
	int8_t *base;		/* m x m, NULL if m is 1 */
	int m;
	bool transpose, raw;
	double scale;
};

bool reference_make(struct reference *r, int64_t n, const hz_hadamard_opts *opts);
void reference_free(struct reference *r);

/* Element i of scale * D_post H D_pre x, or of the transpose; pre, post: n factors or NULL. */
double reference_at(const struct reference *r, const double *x, const double *pre,
		    const double *post, int64_t i);

/* ||error||_2 / ||x||_2 that the contract allows for f32 arithmetic and a result of that dtype. */
double reference_bound(const struct reference *r, int dtype);

#endif
