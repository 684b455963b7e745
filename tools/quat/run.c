/*
 * run.c - hurwitz run of elementwise quaternion operations and matrix products
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#include <config.h>

#include <stdlib.h>
#include <string.h>

#include "tools/core/run.h"

#define TYPES "f32 f16 bf16 f64"
#define END {NULL, 0, NULL, 0, 0, NULL, NULL}
#define LAST {NULL, NULL, 0, NULL, NULL}

const struct word order_words[] = {{"wxyz", 0}, {"xyzw", HZ_QUAT_XYZW}, {NULL, 0}};

const struct word method_words[] = {
	{"auto", HZ_QUAT_AUTO}, {"direct", HZ_QUAT_DIRECT}, {"fast", HZ_QUAT_FAST}, {NULL, 0},
};

const struct word precision_words[] = {
	{"auto", HZ_PRECISION_AUTO}, {"f32", HZ_PRECISION_F32}, {"split", HZ_PRECISION_SPLIT},
	{"3xtf32", HZ_PRECISION_SPLIT}, {"bf16x3", HZ_PRECISION_SPLIT},
	{"tf32", HZ_PRECISION_TF32}, {"half", HZ_PRECISION_HALF}, {"f16", HZ_PRECISION_HALF},
	{"bf16", HZ_PRECISION_HALF}, {NULL, 0},
};

const struct word activation_words[] = {
	{"none", HZ_ACT_NONE}, {"relu", HZ_ACT_RELU}, {"leaky", HZ_ACT_LEAKY},
	{"tanh", HZ_ACT_TANH}, {"sigmoid", HZ_ACT_SIGMOID}, {"gelu", HZ_ACT_GELU},
	{"silu", HZ_ACT_SILU}, {"modrelu", HZ_ACT_MODRELU}, {"normclip", HZ_ACT_NORMCLIP},
	{NULL, 0},
};

/* ---- Keys ------------------------------------------------------------------------------------ */

const struct key order_keys[] = {
	{"order", KEY_WORD, order_words, 0, 0, "wxyz|xyzw",
	 "the order of components everywhere; default wxyz"},
	END,
};

static const struct key accumulate_keys[] = {
	{"accumulate", KEY_WORD, switch_words, 0, 0, "0|1",
	 "1: results are added to what the output's file holds, 0 if there is none"},
	END,
};

static const struct key reversed_keys[] = {
	{"reversed", KEY_WORD, switch_words, 0, 0, "0|1", "1: the factors change places"},
	END,
};

static const struct key conj_keys[] = {
	{"conj_a", KEY_WORD, switch_words, 0, 0, "0|1", "1: the conjugate of a"},
	{"conj_b", KEY_WORD, switch_words, 0, 0, "0|1", "1: the conjugate of b"},
	END,
};

static const struct key dot_keys[] = {
	{"conj_a", KEY_WORD, switch_words, 0, 0, "0|1", "1: a as it is, not its conjugate"},
	{"conj_b", KEY_WORD, switch_words, 0, 0, "0|1", "1: the conjugate of b"},
	{"real", KEY_WORD, switch_words, 0, 0, "0|1", "1: the real part alone"},
	END,
};

static const struct key alpha_keys[] = {
	{"alpha", KEY_QUAT, NULL, 0, 0, "NUMBER|W,X,Y,Z", "a factor from the left; default 1"},
	END,
};

static const struct key squared_keys[] = {
	{"squared", KEY_WORD, switch_words, 0, 0, "0|1", "1: |x|^2"},
	END,
};

static const struct key eps_keys[] = {
	{"eps", KEY_REAL, NULL, 0, 0, "NUMBER", "the least norm to divide by; default 0"},
	END,
};

static const struct key rotate_keys[] = {
	{"normalize", KEY_WORD, switch_words, 0, 0, "0|1", "1: by q / |q|"},
	{"inverse", KEY_WORD, switch_words, 0, 0, "0|1", "1: by conj(q)"},
	END,
};

static uint32_t flag(const struct job *job, const char *key, uint32_t bit)
{
	return value_or(job, key, 0) ? bit : 0;
}

/* Flags of an elementwise call; a key that the call lacks is absent. */
static uint32_t flags_of(const struct job *job)
{
	return (uint32_t)value_or(job, "order", 0) | flag(job, "conj_a", HZ_QUAT_CONJ_A) |
	       flag(job, "conj_b", HZ_QUAT_CONJ_B) | flag(job, "reversed", HZ_QUAT_REVERSED) |
	       flag(job, "accumulate", HZ_QUAT_ACCUMULATE) |
	       flag(job, "squared", HZ_QUAT_SQUARED) |
	       flag(job, "normalize", HZ_QUAT_NORMALIZE) | flag(job, "inverse", HZ_QUAT_INVERSE);
}

static double eps_of(const struct job *job)
{
	const struct value *v = value_of(job, "eps");

	return v->given ? v->number : 0;
}

/* ---- Outputs --------------------------------------------------------------------------------- */

static void as_input(struct job *job, struct slot *y, const struct npy *x)
{
	y->array.dtype = x->dtype;
	y->read = value_or(job, "accumulate", 0);
}

static int same_shape(struct job *job, const char *of, const char *name)
{
	const struct npy *x = &slot_of(job, of)->array;
	struct slot *y = slot_of(job, name);

	as_input(job, y, x);
	y->array.ndim = x->ndim;
	memcpy(y->array.shape, x->shape, sizeof(x->shape));
	return 0;
}

/* The shape to which the dimensions before the last cut_a and cut_b broadcast, as in NumPy; returns
 * their number. The library reports shapes that do not fit. */
static int broadcast(const struct npy *a, int cut_a, const struct npy *b, int cut_b, int64_t *shape)
{
	const int na = a->ndim > cut_a ? a->ndim - cut_a : 0;
	const int nb = b->ndim > cut_b ? b->ndim - cut_b : 0, n = na > nb ? na : nb;

	for (int d = 0; d < n; d++) {
		const int64_t size_a = d < n - na ? 1 : a->shape[d - (n - na)];
		const int64_t size_b = d < n - nb ? 1 : b->shape[d - (n - nb)];

		shape[d] = size_a == 1 ? size_b : size_a;
	}
	return n;
}

static int few_dims(struct job *job, const char *name, int ndim)
{
	const struct npy *x = &slot_of(job, name)->array;

	if (x->ndim < ndim)
		return complain(EXIT_BAD, "%s: %s has %d dimensions, must have %d at least",
				job->op->name, name, x->ndim, ndim);
	return 0;
}

static int mul_outputs(struct job *job)
{
	const struct npy *a = &slot_of(job, "a")->array, *b = &slot_of(job, "b")->array;
	struct slot *y = slot_of(job, "y");
	const int n = broadcast(a, 1, b, 1, y->array.shape);

	y->array.shape[n] = 4;
	y->array.ndim = n + 1;
	as_input(job, y, a);
	return 0;
}

static int dot_outputs(struct job *job)
{
	const struct npy *a = &slot_of(job, "a")->array, *b = &slot_of(job, "b")->array;
	struct slot *y = slot_of(job, "y");
	int n, status = few_dims(job, "a", 2);

	if (!status)
		status = few_dims(job, "b", 2);
	if (status)
		return status;
	n = broadcast(a, 2, b, 2, y->array.shape);
	y->array.shape[n] = value_or(job, "real", 0) ? 1 : 4;
	y->array.ndim = n + 1;
	as_input(job, y, a);
	return 0;
}

static int x_to_y(struct job *job)
{
	return same_shape(job, "x", "y");
}

static int x_to_dx(struct job *job)
{
	return same_shape(job, "x", "dx");
}

static int axpy_outputs(struct job *job)
{
	const int status = same_shape(job, "x", "y");

	slot_of(job, "y")->read = true;
	return status;
}

static int norm_outputs(struct job *job)
{
	int status = few_dims(job, "x", 1);

	if (!status)
		status = same_shape(job, "x", "n");
	if (!status)
		slot_of(job, "n")->array.ndim--;
	return status;
}

static int mul_bwd_outputs(struct job *job)
{
	same_shape(job, "a", "da");
	return same_shape(job, "b", "db");
}

static int rotate_bwd_outputs(struct job *job)
{
	same_shape(job, "q", "dq");
	return same_shape(job, "v", "dv");
}

static int rotate_outputs(struct job *job)
{
	const struct npy *q = &slot_of(job, "q")->array, *v = &slot_of(job, "v")->array;
	struct slot *y = slot_of(job, "y");
	int n, status = few_dims(job, "v", 1);

	if (status)
		return status;
	n = broadcast(q, 1, v, 1, y->array.shape);
	y->array.shape[n] = v->shape[v->ndim - 1];
	y->array.ndim = n + 1;
	as_input(job, y, q);
	return 0;
}

/* ---- Elementwise calls ----------------------------------------------------------------------- */

static int mul_call(hz_context *ctx, struct job *job)
{
	return hz_quat_mul(ctx, view_of(job, "a"), view_of(job, "b"), view_of(job, "y"),
			   flags_of(job));
}

static int mul_bwd_call(hz_context *ctx, struct job *job)
{
	return WITH_WORKSPACE(ctx, hz_quat_mul_bwd(ctx, view_of(job, "a"), view_of(job, "b"),
						   view_of(job, "dy"), view_of(job, "da"),
						   view_of(job, "db"), flags_of(job)));
}

static int dot_call(hz_context *ctx, struct job *job)
{
	return WITH_WORKSPACE(ctx, hz_quat_dot(ctx, view_of(job, "a"), view_of(job, "b"),
					       view_of(job, "y"), flags_of(job)));
}

static int axpy_call(hz_context *ctx, struct job *job)
{
	const struct value *alpha = value_of(job, "alpha");
	const double one[4] = {1, 0, 0, 0};

	return hz_quat_axpy(ctx, alpha->given ? alpha->quat : one, view_of(job, "x"),
			    view_of(job, "y"), flags_of(job));
}

static int conj_call(hz_context *ctx, struct job *job)
{
	return hz_quat_conj(ctx, view_of(job, "x"), view_of(job, "y"), flags_of(job));
}

static int norm_call(hz_context *ctx, struct job *job)
{
	return hz_quat_norm(ctx, view_of(job, "x"), view_of(job, "n"), flags_of(job));
}

static int norm_bwd_call(hz_context *ctx, struct job *job)
{
	return hz_quat_norm_bwd(ctx, view_of(job, "x"), view_of(job, "dn"), view_of(job, "dx"),
				flags_of(job));
}

static int normalize_call(hz_context *ctx, struct job *job)
{
	return hz_quat_normalize(ctx, view_of(job, "x"), view_of(job, "y"), eps_of(job),
				 flags_of(job));
}

static int normalize_bwd_call(hz_context *ctx, struct job *job)
{
	return hz_quat_normalize_bwd(ctx, view_of(job, "x"), view_of(job, "dy"),
				     view_of(job, "dx"), eps_of(job), flags_of(job));
}

static int inverse_call(hz_context *ctx, struct job *job)
{
	return hz_quat_inverse(ctx, view_of(job, "x"), view_of(job, "y"), flags_of(job));
}

static int inverse_bwd_call(hz_context *ctx, struct job *job)
{
	return hz_quat_inverse_bwd(ctx, view_of(job, "x"), view_of(job, "dy"), view_of(job, "dx"),
				   flags_of(job));
}

static int rotate_call(hz_context *ctx, struct job *job)
{
	return hz_quat_rotate(ctx, view_of(job, "q"), view_of(job, "v"), view_of(job, "y"),
			      flags_of(job));
}

static int rotate_bwd_call(hz_context *ctx, struct job *job)
{
	return WITH_WORKSPACE(ctx, hz_quat_rotate_bwd(ctx, view_of(job, "q"), view_of(job, "v"),
						      view_of(job, "dy"), view_of(job, "dq"),
						      view_of(job, "dv"), flags_of(job)));
}

#define QUATS "[..., 4]"
#define GRADIENT (OUTPUT | OPTIONAL | ONLY)

static const struct operand mul_operands[] = {
	{"a", NULL, 0, TYPES, QUATS},
	{"b", NULL, 0, TYPES, "[..., 4], broadcast with a"},
	{"y", NULL, OUTPUT, TYPES, QUATS},
	LAST,
};

static const struct operand mul_bwd_operands[] = {
	{"a", NULL, 0, TYPES, QUATS},
	{"b", NULL, 0, TYPES, QUATS},
	{"dy", NULL, 0, TYPES, "[..., 4], the gradient of y"},
	{"da", NULL, GRADIENT, TYPES, "the shape of a, if wanted"},
	{"db", NULL, GRADIENT, TYPES, "the shape of b, if wanted"},
	LAST,
};

static const struct operand dot_operands[] = {
	{"a", NULL, 0, TYPES, "[..., l, 4]"},
	{"b", NULL, 0, TYPES, "[..., l, 4], broadcast with a"},
	{"y", NULL, OUTPUT, TYPES, "[..., 4]; real=1: [..., 1]"},
	LAST,
};

static const struct operand x_y_operands[] = {
	{"x", NULL, 0, TYPES, QUATS},
	{"y", NULL, OUTPUT, TYPES, "the shape of x"},
	LAST,
};

static const struct operand norm_operands[] = {
	{"x", NULL, 0, TYPES, QUATS},
	{"n", NULL, OUTPUT, TYPES, "[...]"},
	LAST,
};

static const struct operand norm_bwd_operands[] = {
	{"x", NULL, 0, TYPES, QUATS},
	{"dn", NULL, 0, TYPES, "[...], the gradient of n"},
	{"dx", NULL, OUTPUT, TYPES, "the shape of x"},
	LAST,
};

static const struct operand map_bwd_operands[] = {
	{"x", NULL, 0, TYPES, QUATS},
	{"dy", NULL, 0, TYPES, "[..., 4], the gradient of y"},
	{"dx", NULL, OUTPUT, TYPES, "the shape of x"},
	LAST,
};

static const struct operand rotate_operands[] = {
	{"q", NULL, 0, TYPES, "[..., 4], broadcast with v"},
	{"v", NULL, 0, TYPES, "[..., 3] or [..., 4], broadcast with q"},
	{"y", NULL, OUTPUT, TYPES, "[..., 3] or [..., 4], as v"},
	LAST,
};

static const struct operand rotate_bwd_operands[] = {
	{"q", NULL, 0, TYPES, QUATS},
	{"v", NULL, 0, TYPES, "[..., 3] or [..., 4]"},
	{"dy", NULL, 0, TYPES, "[..., 3] or [..., 4], the gradient of y"},
	{"dq", NULL, GRADIENT, TYPES, "the shape of q, if wanted"},
	{"dv", NULL, GRADIENT, TYPES, "the shape of v, if wanted"},
	LAST,
};

#define KEYS(...) (const struct key *const[]){__VA_ARGS__, NULL}

const struct op op_quat_mul = {
	"quat_mul", "Hamilton product: y = a b", mul_operands,
	KEYS(conj_keys, reversed_keys, accumulate_keys, order_keys), mul_outputs, mul_call,
};

const struct op op_quat_mul_bwd = {
	"quat_mul_bwd", "the gradients of quat_mul", mul_bwd_operands,
	KEYS(conj_keys, reversed_keys, accumulate_keys, order_keys), mul_bwd_outputs, mul_bwd_call,
};

const struct op op_quat_dot = {
	"quat_dot", "sums of products: y = sum conj(a) b over the last dimension but one",
	dot_operands, KEYS(dot_keys, reversed_keys, accumulate_keys, order_keys), dot_outputs,
	dot_call,
};

const struct op op_quat_axpy = {
	"quat_axpy", "y = y + alpha x; y is 0 if it has no file yet", x_y_operands,
	KEYS(alpha_keys, reversed_keys, order_keys), axpy_outputs, axpy_call,
};

const struct op op_quat_conj = {
	"quat_conj", "the conjugate of x", x_y_operands, KEYS(order_keys), x_to_y, conj_call,
};

const struct op op_quat_norm = {
	"quat_norm", "n = |x|", norm_operands, KEYS(squared_keys, order_keys), norm_outputs,
	norm_call,
};

const struct op op_quat_norm_bwd = {
	"quat_norm_bwd", "the gradient of quat_norm", norm_bwd_operands,
	KEYS(squared_keys, accumulate_keys, order_keys), x_to_dx, norm_bwd_call,
};

const struct op op_quat_normalize = {
	"quat_normalize", "y = x / max(|x|, eps)", x_y_operands, KEYS(eps_keys, order_keys),
	x_to_y, normalize_call,
};

const struct op op_quat_normalize_bwd = {
	"quat_normalize_bwd", "the gradient of quat_normalize", map_bwd_operands,
	KEYS(eps_keys, accumulate_keys, order_keys), x_to_dx, normalize_bwd_call,
};

const struct op op_quat_inverse = {
	"quat_inverse", "y = conj(x) / |x|^2", x_y_operands, KEYS(order_keys), x_to_y,
	inverse_call,
};

const struct op op_quat_inverse_bwd = {
	"quat_inverse_bwd", "the gradient of quat_inverse", map_bwd_operands,
	KEYS(accumulate_keys, order_keys), x_to_dx, inverse_bwd_call,
};

const struct op op_quat_rotate = {
	"quat_rotate", "rotation of vectors: y = q v conj(q)", rotate_operands,
	KEYS(rotate_keys, order_keys), rotate_outputs, rotate_call,
};

const struct op op_quat_rotate_bwd = {
	"quat_rotate_bwd", "the gradients of quat_rotate", rotate_bwd_operands,
	KEYS(rotate_keys, accumulate_keys, order_keys), rotate_bwd_outputs, rotate_bwd_call,
};

/* ---- Conversions ----------------------------------------------------------------------------- */

static const struct key slerp_keys[] = {
	{"keep_sign", KEY_WORD, switch_words, 0, 0, "0|1",
	 "1: to b, not to -b where that is nearer"},
	END,
};

/* The output: dimensions of the input without its last `cut`, then two of the sizes a and b if not
 * 0 */
static int converted(struct job *job, const char *from, int cut, const char *to, int64_t a,
		     int64_t b)
{
	struct npy *y = &slot_of(job, to)->array;
	int status = few_dims(job, from, cut);

	if (!status)
		status = same_shape(job, from, to);
	if (status)
		return status;
	y->ndim -= cut;
	if (y->ndim > HZ_MAXDIM - 2)
		return complain(EXIT_BAD, "%s: %s has too many dimensions", job->op->name, from);
	y->shape[y->ndim++] = a;
	if (b)
		y->shape[y->ndim++] = b;
	return 0;
}

static int to_matrix_outputs(struct job *job)
{
	return converted(job, "q", 1, "m", 3, 3);
}

static int from_matrix_outputs(struct job *job)
{
	return converted(job, "m", 2, "q", 4, 0);
}

static int to_axis_angle_outputs(struct job *job)
{
	return converted(job, "q", 1, "r", 3, 0);
}

static int from_axis_angle_outputs(struct job *job)
{
	return converted(job, "r", 1, "q", 4, 0);
}

static int q_to_dq(struct job *job)
{
	return same_shape(job, "q", "dq");
}

static int m_to_dm(struct job *job)
{
	return same_shape(job, "m", "dm");
}

/* The shape to which a, b and t broadcast */
static int slerp_outputs(struct job *job)
{
	const struct npy *a = &slot_of(job, "a")->array, *b = &slot_of(job, "b")->array;
	const struct npy *t = &slot_of(job, "t")->array;
	struct slot *y = slot_of(job, "y");
	struct npy both = {.ndim = broadcast(a, 1, b, 1, both.shape)};
	const int n = broadcast(&both, 0, t, 0, y->array.shape);

	if (n > HZ_MAXDIM - 1)
		return complain(EXIT_BAD, "%s: t has too many dimensions", job->op->name);
	y->array.shape[n] = 4;
	y->array.ndim = n + 1;
	as_input(job, y, a);
	return 0;
}

static int to_matrix_call(hz_context *ctx, struct job *job)
{
	return hz_quat_to_matrix(ctx, view_of(job, "q"), view_of(job, "m"), flags_of(job));
}

static int to_matrix_bwd_call(hz_context *ctx, struct job *job)
{
	return hz_quat_to_matrix_bwd(ctx, view_of(job, "q"), view_of(job, "dm"),
				     view_of(job, "dq"), flags_of(job));
}

static int from_matrix_call(hz_context *ctx, struct job *job)
{
	return hz_quat_from_matrix(ctx, view_of(job, "m"), view_of(job, "q"), flags_of(job));
}

static int from_matrix_bwd_call(hz_context *ctx, struct job *job)
{
	return hz_quat_from_matrix_bwd(ctx, view_of(job, "m"), view_of(job, "dq"),
				       view_of(job, "dm"), flags_of(job));
}

static int to_axis_angle_call(hz_context *ctx, struct job *job)
{
	return hz_quat_to_axis_angle(ctx, view_of(job, "q"), view_of(job, "r"), flags_of(job));
}

static int from_axis_angle_call(hz_context *ctx, struct job *job)
{
	return hz_quat_from_axis_angle(ctx, view_of(job, "r"), view_of(job, "q"), flags_of(job));
}

static int exp_call(hz_context *ctx, struct job *job)
{
	return hz_quat_exp(ctx, view_of(job, "x"), view_of(job, "y"), flags_of(job));
}

static int log_call(hz_context *ctx, struct job *job)
{
	return hz_quat_log(ctx, view_of(job, "x"), view_of(job, "y"), flags_of(job));
}

static int slerp_call(hz_context *ctx, struct job *job)
{
	return hz_quat_slerp(ctx, view_of(job, "a"), view_of(job, "b"), view_of(job, "t"),
			     view_of(job, "y"),
			     flags_of(job) | flag(job, "keep_sign", HZ_QUAT_KEEP_SIGN));
}

#define MATRICES "[..., 3, 3]"

static const struct operand to_matrix_operands[] = {
	{"q", NULL, 0, TYPES, QUATS},
	{"m", NULL, OUTPUT, TYPES, MATRICES},
	LAST,
};

static const struct operand to_matrix_bwd_operands[] = {
	{"q", NULL, 0, TYPES, QUATS},
	{"dm", NULL, 0, TYPES, "[..., 3, 3], the gradient of m"},
	{"dq", NULL, OUTPUT, TYPES, "the shape of q"},
	LAST,
};

static const struct operand from_matrix_operands[] = {
	{"m", NULL, 0, TYPES, MATRICES},
	{"q", NULL, OUTPUT, TYPES, QUATS},
	LAST,
};

static const struct operand from_matrix_bwd_operands[] = {
	{"m", NULL, 0, TYPES, MATRICES},
	{"dq", NULL, 0, TYPES, "[..., 4], the gradient of q"},
	{"dm", NULL, OUTPUT, TYPES, "the shape of m"},
	LAST,
};

static const struct operand to_axis_angle_operands[] = {
	{"q", NULL, 0, TYPES, QUATS},
	{"r", NULL, OUTPUT, TYPES, "[..., 3]"},
	LAST,
};

static const struct operand from_axis_angle_operands[] = {
	{"r", NULL, 0, TYPES, "[..., 3]"},
	{"q", NULL, OUTPUT, TYPES, QUATS},
	LAST,
};

static const struct operand slerp_operands[] = {
	{"a", NULL, 0, TYPES, QUATS},
	{"b", NULL, 0, TYPES, "[..., 4], broadcast with a and t"},
	{"t", NULL, 0, TYPES, "[...], numbers"},
	{"y", NULL, OUTPUT, TYPES, QUATS},
	LAST,
};

const struct op op_quat_to_matrix = {
	"quat_to_matrix", "the rotation matrix of q / |q|", to_matrix_operands, KEYS(order_keys),
	to_matrix_outputs, to_matrix_call,
};

const struct op op_quat_to_matrix_bwd = {
	"quat_to_matrix_bwd", "the gradient of quat_to_matrix", to_matrix_bwd_operands,
	KEYS(accumulate_keys, order_keys), q_to_dq, to_matrix_bwd_call,
};

const struct op op_quat_from_matrix = {
	"quat_from_matrix", "the unit quaternion of the rotation nearest to m",
	from_matrix_operands, KEYS(order_keys), from_matrix_outputs, from_matrix_call,
};

const struct op op_quat_from_matrix_bwd = {
	"quat_from_matrix_bwd", "the gradient of quat_from_matrix", from_matrix_bwd_operands,
	KEYS(accumulate_keys, order_keys), m_to_dm, from_matrix_bwd_call,
};

const struct op op_quat_to_axis_angle = {
	"quat_to_axis_angle", "the angle of q's rotation, 0 to pi, times its axis",
	to_axis_angle_operands, KEYS(order_keys), to_axis_angle_outputs, to_axis_angle_call,
};

const struct op op_quat_from_axis_angle = {
	"quat_from_axis_angle", "the unit quaternion of an angle times an axis",
	from_axis_angle_operands, KEYS(order_keys), from_axis_angle_outputs, from_axis_angle_call,
};

const struct op op_quat_exp = {
	"quat_exp", "the exponential of x", x_y_operands, KEYS(order_keys), x_to_y, exp_call,
};

const struct op op_quat_log = {
	"quat_log", "the logarithm of x", x_y_operands, KEYS(order_keys), x_to_y, log_call,
};

const struct op op_quat_slerp = {
	"quat_slerp", "spherical linear interpolation from a at t = 0 to b at t = 1",
	slerp_operands, KEYS(slerp_keys, order_keys), slerp_outputs, slerp_call,
};

/* ---- Products of matrices -------------------------------------------------------------------- */

static const struct word op_words[] = {
	{"n", HZ_QUAT_N}, {"t", HZ_QUAT_T}, {"c", HZ_QUAT_C}, {"h", HZ_QUAT_H}, {NULL, 0},
};

static const struct word type_words[] = {
	{"f32", HZ_F32}, {"f16", HZ_F16}, {"bf16", HZ_BF16}, {"f64", HZ_F64}, {NULL, 0},
};

enum { BY_ROWS, BY_COLUMNS };

static const struct word bias_words[] = {
	{"rows", BY_ROWS}, {"columns", BY_COLUMNS}, {NULL, 0},
};

static const struct key gemm_keys[] = {
	{"op_a", KEY_WORD, op_words, 0, 0, "n|t|c|h",
	 "a as it is, transposed, conjugated, or both; default n"},
	{"op_b", KEY_WORD, op_words, 0, 0, "n|t|c|h", "b likewise"},
	{"beta", KEY_REAL, NULL, 0, 0, "NUMBER",
	 "that much of what the file of c holds is added; default 0"},
	{"method", KEY_WORD, method_words, 0, 0, "direct|fast|auto",
	 "direct: a product of quaternions by 16 real ones, fast: by 8; default auto"},
	{"precision", KEY_WORD, precision_words, 0, 0, "auto|f32|split|tf32|half",
	 "the arithmetic of real products; 3xtf32 and bf16x3 are split, f16 and\n"
	 "bf16 half; default auto"},
	{"activation", KEY_WORD, activation_words, 0, 0,
	 "none|relu|leaky|tanh|sigmoid|gelu|silu|modrelu|normclip", "default none"},
	{"slope", KEY_REAL, NULL, 0, 0, "NUMBER",
	 "of leaky; the bias of modrelu, the largest norm of normclip"},
	{"bias_of", KEY_WORD, bias_words, 0, 0, "rows|columns",
	 "what has an element of bias; default rows"},
	{"pack", KEY_WORD, switch_words, 0, 0, "0|1", "1: pack A first"},
	{"out", KEY_WORD, type_words, 0, 0, "f32|f16|bf16|f64", "the dtype of c; default as a"},
	END,
};

static const struct operand gemm_operands[] = {
	{"a", NULL, 0, TYPES, "[..., m, k, 4]; op_a=t, h: [..., k, m, 4]"},
	{"b", NULL, 0, TYPES, "[..., k, n, 4]; op_b=t, h: [..., n, k, 4]"},
	{"c", NULL, OUTPUT, TYPES, "[..., m, n, 4]"},
	{"bias", NULL, OPTIONAL, TYPES, "[m, 4]; bias_of=columns: [n, 4]"},
	{"pre", NULL, GRADIENT, TYPES, "as c: the input of the activation"},
	LAST,
};

static bool transposes(int64_t op)
{
	return op == HZ_QUAT_T || op == HZ_QUAT_H;
}

static int gemm_outputs(struct job *job)
{
	const struct npy *a = &slot_of(job, "a")->array, *b = &slot_of(job, "b")->array;
	struct slot *c = slot_of(job, "c"), *pre = slot_of(job, "pre");
	const struct value *beta = value_of(job, "beta");
	int n, status = few_dims(job, "a", 3);

	if (!status)
		status = few_dims(job, "b", 3);
	if (!status)
		status = output_dtype(job, c, "c", a->dtype);
	if (status)
		return status;
	n = broadcast(a, 3, b, 3, c->array.shape);
	c->array.shape[n] = a->shape[a->ndim - (transposes(value_or(job, "op_a", 0)) ? 2 : 3)];
	c->array.shape[n + 1] = b->shape[b->ndim - (transposes(value_or(job, "op_b", 0)) ? 3 : 2)];
	c->array.shape[n + 2] = 4;
	c->array.ndim = n + 3;
	c->read = beta->given && beta->number != 0;
	pre->array.dtype = c->array.dtype;
	pre->array.ndim = c->array.ndim;
	memcpy(pre->array.shape, c->array.shape, sizeof(c->array.shape));
	return 0;
}

static int gemm_call(hz_context *ctx, struct job *job)
{
	hz_tensor *a = view_of(job, "a"), *b = view_of(job, "b"), *c = view_of(job, "c");
	const struct value *alpha = value_of(job, "alpha"), *beta = value_of(job, "beta");
	const struct value *slope = value_of(job, "slope");
	hz_quat_gemm_opts o = {
		.op_a = (int32_t)value_or(job, "op_a", HZ_QUAT_N),
		.op_b = (int32_t)value_or(job, "op_b", HZ_QUAT_N),
		.method = (int32_t)value_or(job, "method", HZ_QUAT_AUTO),
		.precision = (int32_t)value_or(job, "precision", HZ_PRECISION_AUTO),
		.activation = (int32_t)value_or(job, "activation", HZ_ACT_NONE),
		.flags = flags_of(job),
		.given = alpha->given ? HZ_QUAT_GEMM_GIVEN_ALPHA : 0,
		.beta = beta->given ? beta->number : 0,
		.slope = slope->given ? slope->number : 0,
		.bias = view_of(job, "bias"),
		.pre = view_of(job, "pre"),
	};
	hz_packed packed;
	void *data = NULL;
	size_t bytes;
	int status = HZ_OK;

	if (alpha->given)
		memcpy(o.alpha, alpha->quat, sizeof(o.alpha));
	if (value_or(job, "bias_of", BY_ROWS) == BY_COLUMNS)
		o.flags |= HZ_QUAT_BIAS_COLUMNS;
	if (value_or(job, "pack", 0)) {
		const hz_quat_gemm_opts p = {.method = o.method, .precision = o.precision,
					     .flags = o.flags & HZ_QUAT_XYZW};

		status = hz_quat_gemm_pack_bytes(ctx, a, &p, &bytes);
		if (status == HZ_OK)
			status = hz_alloc(ctx, &data, bytes, hz_device(ctx));
		if (status == HZ_OK)
			status = hz_quat_gemm_pack(ctx, a, data, bytes, &packed, &p);
		o.packed = &packed;
		a = NULL;
	}
	if (status == HZ_OK)
		status = WITH_WORKSPACE(ctx, hz_quat_gemm(ctx, a, b, c, &o));
	if (data) {
		hz_sync(ctx);
		hz_free(ctx, data, hz_device(ctx));
	}
	return status;
}

const struct op op_quat_gemm = {
	"quat_gemm", "C = act(alpha op(A) op(B) + beta C + bias) of quaternion matrices",
	gemm_operands, KEYS(gemm_keys, alpha_keys, reversed_keys, order_keys), gemm_outputs,
	gemm_call,
};
