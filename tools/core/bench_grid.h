/*
 * bench_grid.h - how families describe their products and layers to hurwitz bench --grid
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#ifndef BENCH_GRID_H
#define BENCH_GRID_H

#include "tools/core/bench.h"
#include "tools/core/grid.h"

struct grid_op;

/* Weights of one dtype and width; then x and y of a cell */
struct grid_case {
	struct bench_case c;		/* first: what bench calls get */
	const struct grid_op *op;
	int dtype;			/* of x */
	bool packed;
	int64_t width, batch;
	char *weights;			/* copies, `each` bytes apart, used in turn */
	size_t each;
	int64_t copies, next;
	void *source;			/* the stored weights: the first copy, or what is packed */
	hz_tensor x, w, y;		/* x, y: [batch, numbers of a row]; then as of view() */
	hz_packed pack;			/* of packed weights */
	hz_qgemm_opts qgemm;
	hz_quat_gemm_opts quat_gemm;
	hz_quat_linear_opts quat_linear;
	hz_quat_conv_opts quat_conv;
	hz_lattice *lattice;
	hz_vlut *vlut;
	hz_coded coded;
	void *own;			/* more of the family, which op->release() frees */
};

/* A product or layer of the grid; all functions but release() return a library status. */
struct grid_op {
	const char *op, *variant;	/* variant: the rest of a case's name, or "" */
	int kind;			/* the family's: streams, a format */
	int dtypes[GRID_DTYPES + 1];	/* of x, up to 0 */
	int y_dtype;			/* 0: that of x */
	bool packs;			/* weights are as stored or packed; else in one layout */
	bool contiguous;		/* there are no strided rows */
	double x_width, y_width;	/* numbers of a row of x and y per width; 0: 1 */
	double more_width;		/* of the dtype of x, moved besides */
	double weights;			/* elements per width^2; 0: there are no weights */
	double vectors;			/* weights of f32 per width */
	double weight_bits;		/* of an element; 0: those of x */
	double macs;			/* per width^2 and row of x, beside 16-bit x */
	double macs_f32;		/* beside f32, on a GPU in 16 bits if > 1 */
	double vector_macs;		/* per width and row of x */
	int mac_dtype;			/* HZ_S8, or 0: that of x */
	/* Makes the first copy, after grid_weights() */
	int (*make)(struct bench *b, struct grid_case *g);
	/* x and y of a cell; may be NULL */
	int (*view)(struct bench *b, struct grid_case *g);
	bench_call call;
	void (*release)(struct bench *b, struct grid_case *g);	/* may be NULL */
};

/*
 * Sets g->source to memory for stored weights of that many bytes, and g->weights to that for copies
 * of them, or of `packed` bytes if g->packed, together more than the caches hold.
 */
int grid_weights(struct bench *b, struct grid_case *g, size_t stored, size_t packed);

/* How many copies of that many bytes the caches do not hold */
int64_t grid_copies(const struct bench *b, size_t bytes);

/* The copy whose turn it is */
static inline void *grid_turn(struct grid_case *g)
{
	return g->weights + g->next++ % g->copies * (int64_t)g->each;
}

/*
 * tools/quat/bench.c: grid_op.make of quaternion weights [n, n, 4], n = width / 4, with op->kind
 * [n, kind, kind, n, 4]; grid_op.view: x, y [batch, width / 4, 4]
 */
int grid_make_quats(struct bench *b, struct grid_case *g);
int grid_view_quats(struct bench *b, struct grid_case *g);

/* Tables that end in a row without a name */
extern const struct grid_op grid_hadamard[], grid_linear[], grid_mhc[], grid_qgemm[],
	grid_quat_gemm[], grid_quat_layer[], grid_vlut[];

#endif
