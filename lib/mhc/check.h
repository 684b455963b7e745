/*
 * check.h - what calls of hyper-connections share: tables of operands, checked together
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#ifndef HZI_MHC_CALLS_H
#define HZI_MHC_CALLS_H

#include "lib/core/internal.h"
#include "lib/mhc/mhc.h"

/* What an operand is, and where it goes to */
enum hzi_mhc_kind {
	HZI_MHC_X,		/* [..., n, C]: struct hzi_mhc_array */
	HZI_MHC_U,		/* [..., C]: the same */
	HZI_MHC_P,		/* [..., n] of f32: struct hzi_mhc_coef */
	HZI_MHC_A,		/* [..., n, n] of f32: the same */
	HZI_MHC_SAVED,		/* [..., m + 1], contiguous, as all below; like them a float * */
	HZI_MHC_PHI,		/* [m, n C] */
	HZI_MHC_ALPHA,		/* [3], or [1] if m is n */
	HZI_MHC_BIAS,		/* [m] */
	HZI_MHC_GAIN,		/* [n C] */
	HZI_MHC_CHANNELS	/* [C] */
};

#define HZI_MHC_OUTPUT 1u
#define HZI_MHC_NEEDED 2u	/* NULL is refused */

struct hzi_mhc_operand {
	const char *name;
	const hz_tensor *t;	/* NULL: not given */
	enum hzi_mhc_kind kind;
	unsigned flags;
	void *at;
	const char *same;	/* the operand that it may be, or NULL */
};

/* Sizes that operands agree on, and which said so first; -1 and dtype 0: none has */
struct hzi_mhc_dims {
	int64_t tokens, groups, channels, n, m;
	int dtype;
	const char *tokens_of, *groups_of, *channels_of, *n_of;
};

#define HZI_MHC_NO_DIMS ((struct hzi_mhc_dims){.tokens = -1, .groups = -1, .channels = -1, \
					       .n = -1, .m = -1})

/* Checks what has tokens or sets of coefficients, by itself and against d. */
int hzi_mhc_check(struct hz_context *ctx, const char *op, struct hzi_mhc_dims *d,
		  const struct hzi_mhc_operand *list, int count);

/* The same of weights, when d has sizes and m; those that nothing said count as 0. */
int hzi_mhc_check_weights(struct hz_context *ctx, const char *op, const struct hzi_mhc_dims *d,
			  const struct hzi_mhc_operand *list, int count);

/* No output overlaps anything but what it may be. */
int hzi_mhc_check_apart(struct hz_context *ctx, const char *op,
			const struct hzi_mhc_operand *list, int count);

/* When groups are known to divide tokens: fills *s, and what `at` of the table points to. */
int hzi_mhc_fill(struct hz_context *ctx, const char *op, struct hzi_mhc_dims *d,
		 const struct hzi_mhc_operand *list, int count, struct hzi_mhc_shape *s);

/* All of these; apart only if it is a call and no question for bytes. */
int hzi_mhc_operands(struct hz_context *ctx, const char *op, struct hzi_mhc_dims *d,
		     const struct hzi_mhc_operand *list, int count, bool only_bytes,
		     struct hzi_mhc_shape *s);

/* The rule of options (NULL: the default) for n streams, with all rows */
int hzi_mhc_rule_of(struct hz_context *ctx, const char *op, int64_t n, const hz_mhc_opts *opts,
		    struct hzi_mhc_rule *rule);

/* A call, or with only_bytes its workspace; nothing where nothing is to be written */
int hzi_mhc_streams_bwd(struct hz_context *ctx, const char *op,
			const struct hzi_mhc_streams_bwd_args *a, bool only_bytes, size_t *bytes);

#define LISTED(list) ((int)(sizeof(list) / sizeof(*(list))))

#endif
