/*
 * launches.h - the launch trace: making a call on every GPU and describing it
 *
 * SPDX-License-Identifier: BSD-2-Clause
 *
 * A family's launches.c has a structure for the parameters of a call, a function that describes the
 * operands and makes the call, and a loop over parameters that passes each set to trace().
 */
#ifndef LAUNCHES_H
#define LAUNCHES_H

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "t/core/calls.h"
#include "t/core/record.h"
#include "t/core/tap.h"

#define GPUS 4

/* The call that is being made: its context, GPU and device. Functions that make calls set
 * workspace to what the recorded call needs; it is 0 before. */
extern hz_context *ctx;
extern int gpu, device;
extern size_t workspace;
extern struct scene scenes[GPUS];

/* Notes the workspace of a call and makes it; its status */
#define CALL(call) (RECORD(ctx, call, &workspace), (call))

/* Makes a call on each GPU, run(row), and records its launches. */
void trace(const char *name, int (*run)(const void *row), const void *row);

/* Appends to the description of the call; note_clear() empties it. */
__attribute__((format(printf, 1, 2))) void note(const char *format, ...);
void note_clear(void);

/* The next operand, which it notes: contiguous, at an address of its own plus `skew` bytes */
hz_tensor view_at(int dtype, int ndim, const int64_t *shape, int skew);

/* Operand i's address, where no memory is: nothing reads or writes operands */
char *operand_at(int i);

/* The address of packed matrices, behind the operands of any call */
#define PACKED_AT operand_at(30)

#define SHAPE(...) \
	(int)(sizeof((int64_t[]){__VA_ARGS__}) / sizeof(int64_t)), (int64_t[]){__VA_ARGS__}
#define V(dtype, ...) view_at(dtype, SHAPE(__VA_ARGS__), 0)

#define COUNT(array) (sizeof(array) / sizeof(*(array)))
#define EACH(i, array) for (size_t i = 0; i < COUNT(array); i++)

static const int floats[] = {HZ_F32, HZ_F16, HZ_BF16};

/* The quantizers of lattice and vlut, of t/lattice/launches.c, which opens them on each GPU */
extern const struct quantizer {
	const char *name;
	hz_lattice_opts opts;
} quantizers[];
extern const size_t quantizers_count;

struct opened_quantizer {
	hz_lattice *lattice;
	hz_lattice_info info;
};
const struct opened_quantizer *opened_quantizer(const struct quantizer *q, int on_gpu);

void quantizers_open(void);
void quantizers_close(void);

void trace_calls(void);		/* rows of calls.def with other shapes */
void trace_hadamard(void);
void trace_quantize(void);
void trace_qgemm(void);
void trace_quat(void);
void trace_quat_gemm(void);
void trace_quat_linear(void);
void trace_quat_conv(void);
void trace_quat_layer(void);	/* normalization, pooling */
void trace_lattice(void);
void trace_vlut(void);
void trace_linear(void);
void trace_mhc(void);

#endif
