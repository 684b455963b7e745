/*
 * story.h - the network of hurwitz demo, which is trained and then quantized
 *
 * SPDX-License-Identifier: BSD-2-Clause
 *
 * A quaternion matrix turns the 16 quaternions that describe a place into UNITS. These are copied
 * to four residual streams, which pass LAYERS layers of hyper-connections; the branch of each is a
 * quaternion perceptron, UNITS to HIDDEN to UNITS with silu between. A last matrix turns the output
 * of the head into two quaternions: eight numbers, one per direction.
 *
 * The quaternions of a token, and of a row of a matrix, are planar: all real parts first. A token
 * is therefore a contiguous row of numbers, for the streams as well as for products of real
 * matrices.
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
#define ROWS 24			/* hz_mhc_rows(STREAMS, NULL) */

struct weights {
	float in[UNITS * INPUTS], out[CLASSES * UNITS];
	struct {
		float up[HIDDEN * CHANNELS], down[CHANNELS * HIDDEN];
		float phi[ROWS * STREAMS * CHANNELS], bias[32], norm[CHANNELS], alpha[16];
	} layer[LAYERS];
	float phi[STREAMS * STREAMS * CHANNELS], bias[16], alpha[16];	/* of the head */
};

#define WEIGHTS ((int64_t)(sizeof(struct weights) / sizeof(float)))

/* The quaternion matrices: in, then up and down of each layer, then out */
#define MATRICES (2 * LAYERS + 2)

struct shape {
	int rows, columns;	/* in quaternions */
	bool active;		/* followed by silu */
};

struct shape shape_of(int matrix);
float *matrix_of(struct weights *w, int matrix);

/* The network on a device for up to `tokens` tokens; pointers are to device memory. */
struct net {
	hz_context *ctx;
	int64_t tokens;
	struct weights *value, *gradient;	/* gradient: NULL unless it is trained */
	float *input, *ends, *answer;
	struct {
		float *x, *u, *pre, *hidden, *f;
	} at[LAYERS + 1];			/* the last element has x only */
	float *dx[2], *du, *df, *dhidden;
	void *kept, *memory;
	hz_mhc_layer layer[LAYERS];
	/* y = matrix times x, and silu if active; pre: as of hz_quat_linear(), or NULL */
	int (*product)(struct net *n, int matrix, const hz_tensor *x, hz_tensor *y,
		       hz_tensor *pre);
	void *form;				/* used by product */
};

/* Planar quaternions of tokens: [tokens, units, 4] */
hz_tensor blocks(const struct net *n, float *at, int64_t units);

/* Makes the network with parameters value (and gradients) on the device of ctx; returns a library
 * status. Call free_net() in any case. */
int make_net(struct net *n, hz_context *ctx, int64_t tokens, struct weights *value,
	     struct weights *gradient);
void free_net(struct net *n);

/* Bytes of all quaternion matrices in f32 */
double matrix_bytes(void);

/* The index of the largest of n numbers */
int largest_of(const float *y, int n);

/* Computes n->answer from n->input. */
int net_forward(struct net *n);

/* ---- The story ------------------------------------------------------------------------------- */

/* Devices to show the story on, and where to draw the figure; NULL: none */
struct demo {
	hz_context *cpu, *gpu;
	const char *no_gpu;	/* why no GPU is shown although one was requested */
	const char *plot;
	bool gnuplot;		/* gnuplot exists, and plot is open */
	bool quick;		/* a short training */
};

/* story.c: tells the story; returns the exit status. */
int tell_story(const struct demo *d, const struct ground *g);

/* Results of inference in one form */
struct outcome {
	double right, same;	/* shares of answers that are right, and that equal those of f32 */
	double seconds;		/* for all places */
};

struct form {
	const char *name;
	int q, levels;		/* of E8; 0: f32, or 8 bits if levels is 1 */
	bool rotate;
	double bits;		/* per weight, with scales */
	double kilobytes;	/* of the quaternion matrices */
	double noise;		/* in dB: signal-to-noise ratio of weights */
	struct outcome cpu, gpu;
};

/* forms.c: measures a form on the device of ctx. The first form measured stores its answers in f32,
 * others compare theirs with it. Returns a library status. */
int measure_form(struct form *f, hz_context *ctx, struct weights *trained,
		 const struct places *test, float *f32, bool first, struct outcome *o);

/* plot.c: the contents of the figure of --plot */
struct plot {
	const struct model *training;
	const struct form *forms;
	int count;
	bool cpu, gpu;		/* which devices were used */
};

/* Whether gnuplot exists; draws the figure to fd in the format of path's suffix and returns the
 * exit status. */
bool have_gnuplot(void);
int draw_plot(const struct plot *p, const char *path, int fd);

#endif
