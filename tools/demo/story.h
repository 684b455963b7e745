/*
 * story.h - the network of hurwitz demo, which is trained and then quantized
 *
 * SPDX-License-Identifier: BSD-2-Clause
 *
 * 16 quaternions, what is known of a place, become UNITS by a matrix of quaternions. These are
 * copied to four residual streams, which pass LAYERS layers of hyper-connections; the branch of
 * each is a perceptron of quaternions, UNITS to HIDDEN to UNITS with silu between. A last matrix
 * makes two quaternions of what the head mixes of the streams: eight numbers, one a direction.
 *
 * Quaternions of a token, and of a row of a matrix, lie in blocks, all real parts first. So a token
 * is a contiguous row of numbers for the streams as well as for products of real matrices.
 */
#ifndef DEMO_STORY_H
#define DEMO_STORY_H

#include "tools/demo/demo.h"

#define UNITS 16
#define HIDDEN 32
#define LAYERS 4
#define STREAMS 4
#define CHANNELS (4 * UNITS)
#define INPUTS (4 * POINTS)
#define CLASSES 8
#define ROWS 24			/* hz_mhc_rows(STREAMS, DEEPSEEK) */

struct weights {
	float in[UNITS * INPUTS], out[CLASSES * UNITS];
	struct {
		float up[HIDDEN * CHANNELS], down[CHANNELS * HIDDEN];
		float phi[ROWS * STREAMS * CHANNELS], bias[32], norm[CHANNELS], alpha[16];
	} layer[LAYERS];
	float phi[STREAMS * STREAMS * CHANNELS], bias[16], alpha[16];	/* of the head */
};

#define WEIGHTS ((int64_t)(sizeof(struct weights) / sizeof(float)))

/* The matrices of quaternions: in, then up and down of each layer, then out */
#define MATRICES (2 * LAYERS + 2)

struct shape {
	int rows, columns;	/* quaternions */
	bool active;		/* silu follows */
};

struct shape shape_of(int matrix);
float *matrix_of(struct weights *w, int matrix);

/* The network on a device for so many tokens at once; pointers are to memory there. */
struct net {
	hz_context *ctx;
	int64_t tokens;
	struct weights *value, *gradient;	/* gradient: NULL unless it is trained */
	float *input, *ends, *answer;
	struct {
		float *x, *u, *pre, *hidden, *f;
	} at[LAYERS + 1];			/* the last: x alone */
	float *dx[2], *du, *df, *dhidden;
	void *kept, *memory;
	hz_mhc_layer layer[LAYERS];
	/* y = the product of a matrix and x, with what follows; pre: NULL, or as of quat_linear */
	int (*product)(struct net *n, int matrix, const hz_tensor *x, const hz_tensor *y,
		       const hz_tensor *pre);
	void *form;				/* of product */
};

/* Quaternions of tokens as blocks: [tokens, units, 4] */
hz_tensor blocks(const struct net *n, float *at, int64_t units);

/* value (and gradient) on the device of ctx; a library status. Closed with free_net() always. */
int make_net(struct net *n, hz_context *ctx, int64_t tokens, struct weights *value,
	     struct weights *gradient);
void free_net(struct net *n);

/* Bytes of all matrices of quaternions in f32 */
double matrix_bytes(void);

/* Where the largest of n numbers is */
int largest_of(const float *y, int n);

/* n->answer for n->input */
int net_forward(struct net *n);

/* ---- The story ------------------------------------------------------------------------------- */

/* What there is to show it on, and where its picture goes: NULL is none */
struct demo {
	hz_context *cpu, *gpu;
	const char *no_gpu;	/* why none is shown, where one was asked for */
	const char *plot;
	bool gnuplot;		/* is there, and the file of plot is open */
	bool quick;		/* a short training */
};

/* demo_story.c: the exit status */
int tell_story(const struct demo *d, const struct ground *g);

/* What inference in one form came to */
struct outcome {
	double right, same;	/* shares: of answers, and of answers that are those of f32 */
	double seconds;		/* of all places */
};

struct form {
	const char *name;
	int q, levels;		/* of E8; 0: f32, or 8 bits if levels is 1 */
	bool rotate;
	double bits;		/* a weight, with scales */
	double kilobytes;	/* of the matrices of quaternions */
	double noise;		/* dB: signal to noise of weights */
	struct outcome cpu, gpu;
};

/*
 * demo_forms.c: measures a form on the device of ctx; f32 are the answers that same is about, which
 * the first form that is measured gives. A library status.
 */
int measure_form(struct form *f, hz_context *ctx, struct weights *trained,
		 const struct places *test, float *f32, bool first, struct outcome *o);

/* demo_plot.c: what --plot draws */
struct plot {
	const struct model *training;
	const struct form *forms;
	int count;
	bool cpu, gpu;		/* were asked */
};

/* Whether there is a gnuplot; the picture, as the ending of path says, to fd: the exit status */
bool have_gnuplot(void);
int draw_plot(const struct plot *p, const char *path, int fd);

#endif
