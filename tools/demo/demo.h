/*
 * demo.h - what the chapters of hurwitz demo share
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#ifndef DEMO_H
#define DEMO_H

#include "tools/core/tool.h"

/* Heights on a grid; ld: elements from row to row */
struct ground {
	const float *heights;
	int64_t rows, columns, ld;
};

static inline float height(const struct ground *g, int64_t i, int64_t j)
{
	return g->heights[i * g->ld + j];
}

/* ---- Chapters: return the exit status -------------------------------------------------------- */

/* hadamard.c: rotation and quantization of the rows of some matrices */
struct data {
	const char *name;
	int64_t rows, columns;
	int64_t n;		/* columns rounded up to a multiple of 4 by repeating the last
				 * one */
	float *x;
	int64_t large_every;	/* one in so many columns is enlarged; 0: none */
};

#define DATA_MAX 3

int demo_hadamard(hz_context *ctx, const struct data *data, int count);

/* linear.c: the weights of a transformer layer in fewer bits; quick: of a small one */
int demo_linear(hz_context *ctx, bool quick);

/* qgemm.c: a classifier of patches of heights */
int demo_qgemm(hz_context *ctx, const struct ground *g);

/* quat.c: networks of quaternions and of real numbers, trained */
int demo_quat(hz_context *ctx, const struct ground *g);
int demo_equal_weights(hz_context *ctx, const struct ground *g, bool quick);

/* lattice.c: the heights at a few bits each */
int demo_lattice(hz_context *ctx, const struct ground *g);

/* mhc.c: networks with four residual streams, trained */
int demo_mhc(hz_context *ctx, const struct ground *g);
int demo_depth(hz_context *ctx);

/* ---- Printed in every chapter (demo.c) ------------------------------------------------------- */

/* The name of a primitive, highlighted; valid until four more calls */
const char *name_of(const char *primitive);

/* Prints "On the CPU: ..." or "On the GPU: ...". */
void print_device(hz_context *ctx);

/* Prints the message of a library status if it is an error; returns the exit status. */
int demo_status(hz_context *ctx, int status);

/* Times f: seconds per call, the best of three runs of at least that length. A first call, which
 * may load code and allocate memory, is not timed. Returns a library status. */
int time_calls(hz_context *ctx, int (*f)(void *data), void *data, double at_least,
	       double *seconds);

/* ---- Samples of the ground, and training (train.c) ------------------------------------------- */

#define METRES 30.0f		/* unit of the networks' inputs and outputs */

/* Inputs and targets for places on the ground */
struct places {
	int64_t count;
	int inputs, outputs;
	float *x, *t;			/* [count][inputs], [count][outputs] */
};

typedef void (*describe_place)(const struct ground *g, int64_t i, int64_t j, float *x, float *t);

/* All places at least `margin` from the edge. A random quarter is for the test, the others are for
 * training, in random order. Returns false without memory. */
bool make_places(struct places *train, struct places *test, const struct ground *g, int margin,
		 int inputs, int outputs, describe_place describe, uint64_t seed);
void free_places(struct places *p);

/* Describes a place by 16 quaternions on a 4 x 4 grid around it, 20 m apart: height relative to the
 * middle, and the normal of the ground. Component c of point k is at q[k * step + c * part]. */
#define POINTS 16
void describe_around(const struct ground *g, int64_t i, int64_t j, int step, int part, float *q);

/* The same for a single point */
void describe_point(const struct ground *g, int64_t i, int64_t j, float middle, int part,
		    float *q);

/* In which of eight directions the ground is lowest, AWAY grid points or 80 m from the middle: rows
 * run from east to west, columns from south to north */
#define AWAY 8
#define DIRECTIONS 8
extern const int directions[DIRECTIONS][2];
int lowest_direction(const struct ground *g, int64_t i, int64_t j);

#define SHOWN_MAX 16

struct model {
	const char *name;		/* shown while it is trained */
	int inputs, outputs, batch;
	int64_t count;			/* number of parameters */
	float *value, *gradient, *first, *second;
	/* y = answers for count inputs, at most a batch */
	int (*forward)(struct model *m, const float *x, int64_t count, float *y);
	/* gradients of the parameters, given dy of the answers to the last batch */
	int (*backward)(struct model *m, const float *x, const float *dy);
	/* loss of one answer and, unless dy is NULL, its gradient */
	double (*loss)(const float *y, const float *t, int outputs, float *dy);
	bool (*right)(const float *y, const float *t, int outputs);	/* or NULL */
	/* Adam's learning rate, decaying to 0 along a cosine if decay is set; epochs per point */
	double rate;
	bool decay;
	int epochs, shown;
	/* results at each point: mean losses, share of the test that is right */
	int points;
	double train[SHOWN_MAX], test[SHOWN_MAX], correct[SHOWN_MAX], seconds;
	void (*show)(const struct model *m);	/* called at each point, or NULL */
};

/* Allocates count parameters, set to 0; free(m->value) releases them. */
bool make_parameters(struct model *m, int64_t count);

/* Returns a library status. */
int train_model(struct model *m, const struct places *train, const struct places *test);

/* Squared error, for m->loss */
double squared_error(const float *y, const float *t, int outputs, float *dy);

#endif
