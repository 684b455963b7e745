/*
 * demo.h - what the chapters of hurwitz demo share
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#ifndef DEMO_H
#define DEMO_H

#include "tools/core/tool.h"

/* Heights on a grid, ld elements a row */
struct ground {
	const float *heights;
	int64_t rows, columns, ld;
};

static inline float height(const struct ground *g, int64_t i, int64_t j)
{
	return g->heights[i * g->ld + j];
}

/* ---- Chapters: each the exit status ---------------------------------------------------------- */

/* demo_hadamard.c: rotation and quantization of the rows of some matrices */
struct data {
	const char *name;
	int64_t rows, columns;
	int64_t n;		/* columns rounded up to 4: the last is there again, to fill */
	float *x;
	int64_t large_every;	/* one column of so many was made larger; 0: none */
};

#define DATA_MAX 3

int demo_hadamard(hz_context *ctx, const struct data *data, int count);

/* demo_qgemm.c: a classifier of patches of heights */
int demo_qgemm(hz_context *ctx, const struct ground *g);

/* demo_quat.c: networks of quaternions and of real numbers trained */
int demo_quat(hz_context *ctx, const struct ground *g);

/* demo_lattice.c: the heights at few bits each */
int demo_lattice(hz_context *ctx, const struct ground *g);

/* demo_mhc.c: networks of four residual streams trained */
int demo_mhc(hz_context *ctx, const struct ground *g);

/* ---- Said in every chapter (demo.c) ---------------------------------------------------------- */

/* "hadamard" in the style of names of primitives; there are four at a time. */
const char *name_of(const char *primitive);

/* "On the CPU: ...", "On the GPU: ..." */
void print_device(hz_context *ctx);

/* Says what a library status means, if it is an error; the exit status. */
int demo_status(hz_context *ctx, int status);

/*
 * Seconds of one call of f: the best of three runs of as many calls as take so long, after one that
 * is not counted, since it may load code and grow memory. A library status.
 */
int time_calls(hz_context *ctx, int (*f)(void *data), void *data, double at_least,
	       double *seconds);

/* ---- Places of the ground, and training (demo_train.c) --------------------------------------- */

#define METRES 30.0f		/* that count as 1 in what networks see */

/* What is known of places, and what is to be learnt of them */
struct places {
	int64_t count;
	int inputs, outputs;
	float *x, *t;			/* [count][inputs], [count][outputs] */
};

typedef void (*describe_place)(const struct ground *g, int64_t i, int64_t j, float *x, float *t);

/*
 * All places that far from the edge. Every fourth, as random numbers have it, is for the test, the
 * others are for training, in random order. False if memory is short.
 */
bool make_places(struct places *train, struct places *test, const struct ground *g, int margin,
		 int inputs, int outputs, describe_place describe, uint64_t seed);
void free_places(struct places *p);

/*
 * 16 quaternions of 4 x 4 places around a middle, 20 m apart: height above the middle, and the
 * normal of the ground. Component c of place k is at q[k * step + c * part].
 */
#define POINTS 16
void describe_around(const struct ground *g, int64_t i, int64_t j, int step, int part, float *q);

/* The same of one place */
void describe_point(const struct ground *g, int64_t i, int64_t j, float middle, int part,
		    float *q);

/*
 * In which of eight directions the ground is lowest, AWAY grid points or 80 m from a middle: east
 * to west by rows, south to north by columns
 */
#define AWAY 8
#define DIRECTIONS 8
extern const int directions[DIRECTIONS][2];
int lowest_direction(const struct ground *g, int64_t i, int64_t j);

#define SHOWN_MAX 16

struct model {
	const char *name;		/* what progress says is trained */
	int inputs, outputs, batch;
	int64_t count;			/* of parameters */
	float *value, *gradient, *first, *second;
	/* y = the answers for count inputs, at most a batch */
	int (*forward)(struct model *m, const float *x, int64_t count, float *y);
	/* gradients of the parameters for those dy of the answers to a batch, which was the last */
	int (*backward)(struct model *m, const float *x, const float *dy);
	/* of one answer: its loss and, unless dy is NULL, the gradient of that */
	double (*loss)(const float *y, const float *t, int outputs, float *dy);
	bool (*right)(const float *y, const float *t, int outputs);	/* or NULL */
	/* Adam's rate, falling to 0 along a cosine if decay is set; epochs, from point to point */
	double rate;
	bool decay;
	int epochs, shown;
	/* a point each time: mean losses, the share of the test that is right */
	int points;
	double train[SHOWN_MAX], test[SHOWN_MAX], correct[SHOWN_MAX], seconds;
	void (*show)(const struct model *m);	/* called at each point, or NULL */
};

/* Memory for count parameters, which are 0; released by free(m->value) */
bool make_parameters(struct model *m, int64_t count);

/* A library status */
int train_model(struct model *m, const struct places *train, const struct places *test);

/* Squared error, for m->loss */
double squared_error(const float *y, const float *t, int outputs, float *dy);

#endif
