/*
 * run.h - helpers of hurwitz run for all calls of hyper-connections
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#ifndef RUN_MHC_H
#define RUN_MHC_H

#include "tools/core/run.h"

#define TYPES "f32 f16 bf16"
#define END {NULL, 0, NULL, 0, 0, NULL, NULL}
#define LAST {NULL, NULL, 0, NULL, NULL}
#define WANTED (OUTPUT | OPTIONAL | ONLY)

#define STREAMS "[..., n, C], of streams=cn [..., C, n]"
#define BRANCH "[..., C]"
#define ROW "[..., n]; [n]: of all tokens"
#define MATRIX "[..., n, n], a[new, old]"

extern const struct key mhc_sinkhorn_keys[], mhc_weights_keys[];

/* The options that the keys of a call give */
hz_mhc_opts mhc_opts(const struct job *job);

const struct npy *mhc_array_of(struct job *job, const char *name);
bool mhc_given(struct job *job, const char *name);
int mhc_check_ndim(struct job *job, const char *name, int least);

/* Sets the shape of an output: leading dimensions, and one or two more (last < 0: one). */
void mhc_shape(struct job *job, const char *name, int dtype, int lead, const int64_t *leading,
	       int64_t size, int64_t last);

/* Sets the shape of an output to that of another operand, which must be given. */
int mhc_shape_as(struct job *job, const char *name, const char *as);
int mhc_shape_all(struct job *job, const char *const (*pairs)[2]);

/* n and C of streams x, in the order that the keys streams and preset say */
int64_t mhc_streams_of(const struct job *job, const struct npy *x);
int64_t mhc_channels_of(const struct job *job, const struct npy *x);

/* Sets the shape of branch values for the tokens of streams x. */
void mhc_shape_branch(struct job *job, const char *name, const struct npy *x);

#endif
