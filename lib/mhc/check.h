/*
 * check.h - argument checks of hyper-connections: each call lists its operands in a table
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#ifndef HZI_MHC_CHECK_H
#define HZI_MHC_CHECK_H

#include "lib/core/internal.h"
#include "lib/mhc/mhc.h"

/* The kinds of operands: shape, and the type of what `at` points to */
enum hzi_mhc_kind {
	HZI_MHC_X,		/* streams [..., n, C]: struct hzi_mhc_array */
	HZI_MHC_U,		/* branch values [..., C]: struct hzi_mhc_array */
	HZI_MHC_P,		/* f32 [..., n]: struct hzi_mhc_coef */
	HZI_MHC_A,		/* f32 [..., n, n]: struct hzi_mhc_coef */
	/* Contiguous f32: float *, unless it says otherwise */
	HZI_MHC_SAVED,		/* [..., m + 1] */
	HZI_MHC_PHI,		/* [m, n C], may be of 16 bits */
	HZI_MHC_DPHI,		/* [m, n C] */
	HZI_MHC_ALPHA,		/* float *[3]: [3]; [2] or [3] if m is 2 n; [1] if m is n */
	HZI_MHC_ALPHA_OF_ONE,	/* [1] */
	HZI_MHC_BIAS,		/* [m] */
	HZI_MHC_GAIN,		/* [n C] */
	HZI_MHC_CHANNELS,	/* [C] */
	HZI_MHC_DOWN, HZI_MHC_UP, HZI_MHC_INJECT	/* matrices that gated.c checks */
};

#define HZI_MHC_OUTPUT 1u
#define HZI_MHC_NEEDED 2u	/* NULL is an error */

struct hzi_mhc_operand {
	const char *name;
	const hz_tensor *t;	/* NULL: not given */
	enum hzi_mhc_kind kind;
	unsigned flags;
	void *at;		/* filled by hzi_mhc_fill() */
	const char *same;	/* the operand that it may be identical to, or NULL */
};

/*
 * Sizes that all operands share, and the name of the first operand with each; -1, dtype 0: unknown
 */
struct hzi_mhc_dims {
	int64_t tokens, groups, channels, n, m;
	int dtype;
	bool cn;		/* streams are [..., C, n] */
	const char *tokens_of, *groups_of, *channels_of, *n_of;
};

#define HZI_MHC_NO_DIMS ((struct hzi_mhc_dims){.tokens = -1, .groups = -1, .channels = -1, \
					       .n = -1, .m = -1})

/*
 * Checks operands with leading dimensions (tokens, sets of coefficients); fills d and compares with
 * it.
 */
int hzi_mhc_check(struct hz_context *ctx, const char *op, struct hzi_mhc_dims *d,
		  const struct hzi_mhc_operand *list, int count);

/*
 * Checks that scratch of a few times the numbers of the streams, of 1024 and of `each` for a token
 * fits 63 bits. hzi_mhc_check() does so with `each` 0.
 */
int hzi_mhc_check_scratch(struct hz_context *ctx, const char *op, const struct hzi_mhc_dims *d,
			  int64_t each);

/* Checks weights against the sizes and m in d; unknown sizes count as 0. */
int hzi_mhc_check_weights(struct hz_context *ctx, const char *op, const struct hzi_mhc_dims *d,
			  const struct hzi_mhc_operand *list, int count);

/* Checks that no output overlaps another operand, except the one that it may be identical to. */
int hzi_mhc_check_apart(struct hz_context *ctx, const char *op,
			const struct hzi_mhc_operand *list, int count);

/* Checks that groups divides tokens; fills *s and what `at` of each operand points to. */
int hzi_mhc_fill(struct hz_context *ctx, const char *op, struct hzi_mhc_dims *d,
		 const struct hzi_mhc_operand *list, int count, struct hzi_mhc_shape *s);

/* Runs these four in order. */
int hzi_mhc_operands(struct hz_context *ctx, const char *op, struct hzi_mhc_dims *d,
		     const struct hzi_mhc_operand *list, int count, struct hzi_mhc_shape *s);

/* Checks options (NULL: the default); fills the rule for n streams, with the rows of p, q and a. */
int hzi_mhc_rule_of(struct hz_context *ctx, const char *op, int64_t n, const hz_mhc_opts *opts,
		    struct hzi_mhc_rule *rule);

/* Adapts a rule to the number of channels, on which rms_eps of HZ_MHC_RMS_EPS_FLOOR depends. */
void hzi_mhc_rule_for(struct hzi_mhc_rule *rule, int64_t channels);

/* The name of one of enum hz_mhc_coefficients */
const char *hzi_mhc_coefficients_name(int coefficients);

/* The residual of options (NULL: the default), which need not be valid */
int hzi_mhc_residual(const hz_mhc_opts *opts);

/* One of enum hz_mhc_heads that options say, or HZ_MHC_HEAD_WEIGHTS */
int hzi_mhc_head_of(const hz_mhc_opts *opts);

/* Whether options say HZ_MHC_STREAMS_CN */
bool hzi_mhc_is_cn(const hz_mhc_opts *opts);

/* The workspace of hzi_mhc_streams_bwd(), which runs mhc_streams_bwd if any output is wanted */
size_t hzi_mhc_streams_bwd_bytes(struct hz_context *ctx, struct hzi_mhc_streams_bwd_args *a);
int hzi_mhc_streams_bwd(struct hz_context *ctx, const char *op,
			struct hzi_mhc_streams_bwd_args *a);

/* hz_mhc_pre() and hz_mhc_pre_bwd() of a layer; messages name its members. */
int hzi_mhc_layer_pre(struct hz_context *ctx, const char *op, const hz_tensor *x,
		      const hz_mhc_layer *l, const hz_tensor *u, const hz_mhc_opts *opts);
int hzi_mhc_layer_pre_bwd(struct hz_context *ctx, const char *op, const hz_tensor *x,
			  const hz_mhc_layer *l, const hz_mhc_grads *g, const hz_mhc_opts *opts);

/* hz_mhc_post(); names: those of q, a and branch_bias in messages; cn: x and y are [..., C, n] */
int hzi_mhc_post(struct hz_context *ctx, const char *op, const hz_tensor *x, const hz_tensor *f,
		 const hz_tensor *q, const hz_tensor *a, const hz_tensor *branch_bias,
		 const hz_tensor *y, const char *const *names, bool cn);

/* Gives the first bytes of the workspace to the caller of an operation, or with bytes < 0 back. */
static inline void hzi_mhc_move_workspace(struct hz_context *ctx, int64_t bytes)
{
	if (bytes == 0)
		return;
	ctx->workspace = (char *)ctx->workspace + bytes;
	ctx->workspace_bytes = (size_t)((int64_t)ctx->workspace_bytes - bytes);
}

#define LISTED(list) ((int)(sizeof(list) / sizeof(*(list))))

#endif
