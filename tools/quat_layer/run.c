/*
 * run.c - hurwitz run of the layers of quaternion networks
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

static const struct word side_words[] = {
	{"left", HZ_QUAT_LEFT}, {"right", HZ_QUAT_RIGHT}, {NULL, 0},
};

static const struct word pool_words[] = {
	{"max", HZ_POOL_MAX}, {"average", HZ_POOL_AVERAGE}, {NULL, 0},
};

static const struct word distribution_words[] = {
	{"polar", HZ_QUAT_POLAR}, {"unitary", HZ_QUAT_UNITARY}, {"normal", HZ_QUAT_NORMAL},
	{NULL, 0},
};

static const struct word init_type_words[] = {
	{"f32", HZ_F32}, {"f16", HZ_F16}, {"bf16", HZ_BF16}, {"f64", HZ_F64}, {NULL, 0},
};

/* ---- Keys ------------------------------------------------------------------------------------ */

static const struct key product_keys[] = {
	{"side", KEY_WORD, side_words, 0, 0, "left|right",
	 "left, the default: weights are the left factors, w x; right: x w"},
	{"method", KEY_WORD, method_words, 0, 0, "auto|direct|fast",
	 "direct: a product of quaternions by 16 real ones, fast: by 8"},
	{"precision", KEY_WORD, precision_words, 0, 0, "auto|f32|split|tf32|half",
	 "the arithmetic of real products"},
	{"activation", KEY_WORD, activation_words, 0, 0,
	 "none|relu|leaky|tanh|sigmoid|gelu|silu|modrelu|normclip",
	 "default none"},
	{"slope", KEY_REAL, NULL, 0, 0, "NUMBER",
	 "of leaky; the bias of modrelu, the largest norm of normclip"},
	END,
};

static const struct word eps_words[] = {
	{"squared", HZ_QUAT_EPS_SQUARED}, {"norm", HZ_QUAT_EPS_NORM}, {NULL, 0},
};

static const struct word pad_words[] = {
	{"zero", HZ_PAD_ZERO}, {"causal", HZ_PAD_CAUSAL}, {"reflect", HZ_PAD_REFLECT}, {NULL, 0},
};

static const struct key spinor_keys[] = {
	{"rotation", KEY_WORD, switch_words, 0, 0, "0|1",
	 "1: weights rotate vectors: s w x w^* / |w|^2"},
	{"eps", KEY_REAL, NULL, 0, 0, "NUMBER",
	 "of the normalisation of weights that rotate; default 0"},
	{"eps_rule", KEY_WORD, eps_words, 0, 0, "squared|norm",
	 "they are divided by sqrt(|w|^2 + eps), the default, or |w| + eps"},
	END,
};

#define PLACES "N[,N[,N]]"

static const struct key conv_keys[] = {
	{"stride", KEY_LIST, NULL, 1, INT32_MAX, PLACES,
	 "of each spatial dimension, or one for all; default 1"},
	{"pad", KEY_LIST, NULL, 0, INT32_MAX, PLACES, "elements at either end; default 0"},
	{"pad_mode", KEY_WORD, pad_words, 0, 0, "zero|causal|reflect",
	 "zeros, zeros before the first element alone, or what the ends reflect;\n"
	 "default zero"},
	{"dilation", KEY_LIST, NULL, 1, INT32_MAX, PLACES, "steps between taps; default 1"},
	{"groups", KEY_INT, NULL, 1, INT32_MAX, "N", "of channels; default 1"},
	{"transposed", KEY_WORD, switch_words, 0, 0, "0|1",
	 "1: the adjoint of the convolution: x has its outputs' shape"},
	{"conj", KEY_WORD, switch_words, 0, 0, "0|1",
	 "0: transposed without conjugating the weights; default 1"},
	{"output_pad", KEY_LIST, NULL, 0, INT32_MAX, PLACES,
	 "transposed: so much larger than the least shape; default 0"},
	END,
};

static const struct key norm_keys[] = {
	{"whiten", KEY_WORD, switch_words, 0, 0, "0|1",
	 "1: by the 4 x 4 covariance; 0, the default: by one variance"},
	{"eval", KEY_WORD, switch_words, 0, 0, "0|1",
	 "1: by the running values instead of those of the batch"},
	{"per_step", KEY_WORD, switch_words, 0, 0, "0|1",
	 "1: statistics of each step, over the first dimension alone"},
	{"eps", KEY_REAL, NULL, 0, 0, "NUMBER", "added to variances; default 1e-5"},
	END,
};

static const struct key momentum_keys[] = {
	{"momentum", KEY_REAL, NULL, 0, 0, "NUMBER",
	 "the part of the batch in running values; default 0.1"},
	END,
};

static const struct word cell_words[] = {
	{"rnn", HZ_QUAT_CELL_RNN}, {"lstm", HZ_QUAT_CELL_LSTM}, {"ligru", HZ_QUAT_CELL_LIGRU},
	{NULL, 0},
};

static const struct word gates_words[] = {
	{"neurons", HZ_QUAT_GATES_NEURONS}, {"components", HZ_QUAT_GATES_COMPONENTS}, {NULL, 0},
};

static const struct word cell_activation_words[] = {
	{"relu", HZ_ACT_RELU}, {"leaky", HZ_ACT_LEAKY}, {"tanh", HZ_ACT_TANH}, {NULL, 0},
};

static const struct key recurrent_keys[] = {
	{"cell", KEY_WORD, cell_words, 0, 0, "rnn|lstm|ligru", "default rnn"},
	{"gates", KEY_WORD, gates_words, 0, 0, "neurons|components",
	 "gates are neurons of z, the default, or its components, as in speechbrain"},
	{"activation", KEY_WORD, cell_activation_words, 0, 0, "relu|leaky|tanh",
	 "default tanh, of ligru relu"},
	{"slope", KEY_REAL, NULL, 0, 0, "NUMBER", "of leaky, above 0"},
	{"method", KEY_WORD, method_words, 0, 0, "auto|direct|fast",
	 "direct: a product of quaternions by 16 real ones, fast: by 8"},
	{"precision", KEY_WORD, precision_words, 0, 0, "auto|f32|split|tf32|half",
	 "the arithmetic of real products"},
	END,
};

static const struct key pool_keys[] = {
	{"kind", KEY_WORD, pool_words, 0, 0, "max|average",
	 "max, the default: the quaternion of the largest norm"},
	{"window", KEY_LIST, NULL, 1, INT32_MAX, PLACES, "its sizes, or one for all"},
	{"stride", KEY_LIST, NULL, 1, INT32_MAX, PLACES, "default: the window"},
	{"pad", KEY_LIST, NULL, 0, INT32_MAX, PLACES, "at either end; default 0"},
	END,
};

static const struct key size_keys[] = {
	{"size", KEY_LIST, NULL, 0, INT32_MAX, PLACES, "the spatial sizes of dx, as of x"},
	END,
};

static const struct key dropout_keys[] = {
	{"p", KEY_REAL, NULL, 0, 0, "NUMBER", "the probability of 0, 0 to 1; default 0.5"},
	{"seed", KEY_SEED, NULL, 0, 0, "N", "of the random numbers; default 0"},
	{"offset", KEY_SEED, NULL, 0, 0, "N", "the number of the first quaternion; default 0"},
	END,
};

static const struct key init_keys[] = {
	{"shape", KEY_LIST, NULL, 0, INT32_MAX, "N[,N...]", "of the quaternions, without the 4"},
	{"distribution", KEY_WORD, distribution_words, 0, 0, "polar|unitary|normal",
	 "default polar"},
	{"scale", KEY_NUMBER, NULL, 0, 0, "NUMBER", "default 1"},
	{"seed", KEY_SEED, NULL, 0, 0, "N", "of the random numbers; default 0"},
	{"offset", KEY_SEED, NULL, 0, 0, "N", "the number of the first quaternion; default 0"},
	{"out", KEY_WORD, init_type_words, 0, 0, "f32|f16|bf16|f64", "the dtype of y; default f32"},
	END,
};

static uint32_t order_flag(const struct job *job)
{
	return (uint32_t)value_or(job, "order", 0);
}

static double real_or(const struct job *job, const char *key, double absent)
{
	const struct value *v = value_of(job, key);

	return v->given ? v->number : absent;
}

/* Reads a list for n dimensions; a single number applies to all. */
static int read_list(struct job *job, const char *key, int n, int64_t absent, int64_t *to)
{
	const struct value *v = value_of(job, key);

	if (v->given && v->count != 1 && v->count != n)
		return complain(EXIT_BAD, "%s: %s= has %d numbers, must have 1%s", job->op->name,
				key, v->count, n == 1 ? "" : n == 2 ? " or 2" : " or 3");
	for (int d = 0; d < n; d++)
		to[d] = !v->given ? absent : v->list[v->count == 1 ? 0 : d];
	return 0;
}

static void shape_like(struct job *job, const char *name, const struct npy *as)
{
	struct slot *s = slot_of(job, name);

	s->array.dtype = as->dtype;
	s->array.ndim = as->ndim;
	memcpy(s->array.shape, as->shape, sizeof(as->shape));
}

static const struct npy *array_of(struct job *job, const char *name)
{
	return &slot_of(job, name)->array;
}

/* Gives an output the shape of an optional operand, which must be given. */
static int shape_as_given(struct job *job, const char *name, const char *as)
{
	if (!slot_of(job, name)->path)
		return 0;
	if (!slot_of(job, as)->path)
		return complain(EXIT_BAD, "%s: %s= needs %s=", job->op->name, name, as);
	shape_like(job, name, array_of(job, as));
	return 0;
}

/* A vector with an element per channel of dy */
static void shape_bias(struct job *job, const struct npy *dy)
{
	struct npy *db = &slot_of(job, "db")->array;

	db->dtype = dy->dtype;
	db->ndim = 2;
	db->shape[0] = dy->ndim > 1 ? dy->shape[dy->ndim - 2] : 0;
	db->shape[1] = 4;
}

/* Sets running values to zero. */
static int clear(hz_context *ctx, hz_tensor *t)
{
	hz_tensor host;
	int status;

	if (!t)
		return HZ_OK;
	host = *t;
	host.device = HZ_CPU;
	host.data = allocate((size_t)hz_tensor_bytes(t));
	if (!host.data)
		return HZ_ENOMEM;
	memset(host.data, 0, (size_t)hz_tensor_bytes(t));
	status = hz_copy(ctx, &host, t);
	if (status == HZ_OK)
		status = hz_sync(ctx);
	free(host.data);
	return status;
}

/* ---- Linear layers --------------------------------------------------------------------------- */

static const struct operand linear_operands[] = {
	{"x", NULL, 0, TYPES, "[..., M, 4]"},
	{"w", NULL, 0, TYPES, "[N, M, 4]"},
	{"b", NULL, OPTIONAL, TYPES, "[N, 4]"},
	{"y", NULL, OUTPUT, TYPES, "[..., N, 4]"},
	{"pre", NULL, OUTPUT | OPTIONAL | ONLY, TYPES, "as y: the input of the activation"},
	{"scale", NULL, OPTIONAL, TYPES, "[N, M], factors of rotations"},
	LAST,
};

static const struct operand linear_bwd_operands[] = {
	{"x", NULL, OPTIONAL, TYPES, "[..., M, 4]; not needed for dx alone"},
	{"w", NULL, 0, TYPES, "[N, M, 4]"},
	{"b", NULL, OPTIONAL, TYPES, "[N, 4]"},
	{"dy", NULL, 0, TYPES, "[..., N, 4], the gradient of y"},
	{"dx", NULL, OUTPUT | OPTIONAL | ONLY, TYPES, "as x"},
	{"dw", NULL, OUTPUT | OPTIONAL | ONLY, TYPES, "as w"},
	{"db", NULL, OUTPUT | OPTIONAL | ONLY, TYPES, "[N, 4]"},
	{"pre", NULL, OPTIONAL, TYPES, "of the forward call; else it is made anew"},
	{"scale", NULL, OPTIONAL, TYPES, "[N, M], factors of rotations"},
	{"dscale", NULL, OUTPUT | OPTIONAL | ONLY, TYPES, "as scale"},
	LAST,
};

static hz_quat_linear_opts linear_opts(struct job *job)
{
	return (hz_quat_linear_opts){
		.side = (int32_t)value_or(job, "side", 0),
		.method = (int32_t)value_or(job, "method", 0),
		.precision = (int32_t)value_or(job, "precision", 0),
		.activation = (int32_t)value_or(job, "activation", 0),
		.flags = order_flag(job) | (value_or(job, "rotation", 0) ? HZ_QUAT_ROTATION : 0),
		.slope = real_or(job, "slope", 0),
		.pre = view_of(job, "pre"),
		.scale = view_of(job, "scale"),
		.dscale = view_of(job, "dscale"),
		.eps = real_or(job, "eps", 0),
		.eps_rule = (int32_t)value_or(job, "eps_rule", 0),
	};
}

static int linear_outputs(struct job *job)
{
	const struct npy *x = array_of(job, "x"), *w = array_of(job, "w");
	struct npy *y = &slot_of(job, "y")->array;

	if (x->ndim < 2 || w->ndim != 3)
		return complain(EXIT_BAD, "%s: %s.ndim is %d, must be %s", job->op->name,
				x->ndim < 2 ? "x" : "w", x->ndim < 2 ? x->ndim : w->ndim,
				x->ndim < 2 ? "2 at least" : "3");
	shape_like(job, "y", x);
	y->shape[x->ndim - 2] = w->shape[0];
	shape_like(job, "pre", y);
	return 0;
}

static int linear_call(hz_context *ctx, struct job *job)
{
	const hz_quat_linear_opts o = linear_opts(job);

	return WITH_WORKSPACE(ctx, hz_quat_linear(ctx, view_of(job, "x"), view_of(job, "w"),
						  view_of(job, "b"), view_of(job, "y"), &o));
}

static int linear_bwd_outputs(struct job *job)
{
	const struct npy *dy = array_of(job, "dy"), *w = array_of(job, "w");
	struct npy *dx = &slot_of(job, "dx")->array;

	if (dy->ndim < 2 || w->ndim != 3)
		return complain(EXIT_BAD, "%s: %s.ndim is %d, must be %s", job->op->name,
				dy->ndim < 2 ? "dy" : "w", dy->ndim < 2 ? dy->ndim : w->ndim,
				dy->ndim < 2 ? "2 at least" : "3");
	shape_like(job, "dx", dy);
	dx->shape[dy->ndim - 2] = w->shape[1];
	shape_like(job, "dw", w);
	shape_bias(job, dy);
	return shape_as_given(job, "dscale", "scale");
}

static int linear_bwd_call(hz_context *ctx, struct job *job)
{
	const hz_quat_linear_opts o = linear_opts(job);

	return WITH_WORKSPACE(ctx, hz_quat_linear_bwd(ctx, view_of(job, "x"), view_of(job, "w"),
						      view_of(job, "b"), view_of(job, "dy"),
						      view_of(job, "dx"), view_of(job, "dw"),
						      view_of(job, "db"), &o));
}

const struct op op_quat_linear = {
	"quat_linear", "linear layer of quaternions: y = act(w x + b)",
	linear_operands, (const struct key *const[]){product_keys, spinor_keys, order_keys, NULL},
	linear_outputs, linear_call,
};

const struct op op_quat_linear_bwd = {
	"quat_linear_bwd", "gradients of quat_linear: those whose files are given",
	linear_bwd_operands,
	(const struct key *const[]){product_keys, spinor_keys, order_keys, NULL},
	linear_bwd_outputs, linear_bwd_call,
};

/* ---- Convolutions ---------------------------------------------------------------------------- */

static const struct operand conv_operands[] = {
	{"x", NULL, 0, TYPES, "[n, spatial..., channels, 4]"},
	{"w", NULL, 0, TYPES, "[out, taps..., in / groups, 4]"},
	{"b", NULL, OPTIONAL, TYPES, "[channels of y, 4]"},
	{"y", NULL, OUTPUT, TYPES, "[n, spatial'..., channels, 4]"},
	{"pre", NULL, OUTPUT | OPTIONAL | ONLY, TYPES, "as y: the input of the activation"},
	{"scale", NULL, OPTIONAL, TYPES, "[out, taps..., in / groups], factors of rotations"},
	LAST,
};

static const struct operand conv_bwd_operands[] = {
	{"x", NULL, 0, TYPES, "[n, spatial..., channels, 4]"},
	{"w", NULL, 0, TYPES, "[out, taps..., in / groups, 4]"},
	{"b", NULL, OPTIONAL, TYPES, "[channels of y, 4]"},
	{"dy", NULL, 0, TYPES, "as y: its gradient"},
	{"dx", NULL, OUTPUT | OPTIONAL | ONLY, TYPES, "as x"},
	{"dw", NULL, OUTPUT | OPTIONAL | ONLY, TYPES, "as w"},
	{"db", NULL, OUTPUT | OPTIONAL | ONLY, TYPES, "[channels of y, 4]"},
	{"pre", NULL, OPTIONAL, TYPES, "of the forward call; else it is made anew"},
	{"scale", NULL, OPTIONAL, TYPES, "[out, taps..., in / groups], factors of rotations"},
	{"dscale", NULL, OUTPUT | OPTIONAL | ONLY, TYPES, "as scale"},
	LAST,
};

/* The number of spatial dimensions in the name: quat_conv2d, quat_conv2d_bwd */
static int dimensions(const struct job *job)
{
	return job->op->name[strlen("quat_conv")] - '0';
}

static int conv_opts(struct job *job, hz_quat_conv_opts *o)
{
	const int n = dimensions(job);
	int status;

	*o = (hz_quat_conv_opts){
		.side = (int32_t)value_or(job, "side", 0),
		.method = (int32_t)value_or(job, "method", 0),
		.precision = (int32_t)value_or(job, "precision", 0),
		.activation = (int32_t)value_or(job, "activation", 0),
		.flags = order_flag(job) |
			 (value_or(job, "transposed", 0) ? HZ_QUAT_TRANSPOSED : 0) |
			 (value_or(job, "conj", 1) ? 0 : HZ_QUAT_NOCONJ) |
			 (value_or(job, "rotation", 0) ? HZ_QUAT_ROTATION : 0),
		.groups = (int32_t)value_or(job, "groups", 1),
		.slope = real_or(job, "slope", 0),
		.pre = view_of(job, "pre"),
		.scale = view_of(job, "scale"),
		.dscale = view_of(job, "dscale"),
		.eps = real_or(job, "eps", 0),
		.eps_rule = (int32_t)value_or(job, "eps_rule", 0),
		.pad_mode = (int32_t)value_or(job, "pad_mode", 0),
	};
	status = read_list(job, "stride", n, 1, o->stride);
	if (!status)
		status = read_list(job, "pad", n, 0, o->pad);
	return status ? status : read_list(job, "dilation", n, 1, o->dilation);
}

static int check_conv(struct job *job, const struct npy *x, const struct npy *w)
{
	const int n = dimensions(job);

	if (x->ndim != n + 3 || w->ndim != n + 3)
		return complain(EXIT_BAD, "%s: %s.ndim is %d, must be %d", job->op->name,
				x->ndim != n + 3 ? "x" : "w",
				x->ndim != n + 3 ? x->ndim : w->ndim, n + 3);
	return 0;
}

static int conv_outputs(struct job *job)
{
	const struct npy *x = array_of(job, "x"), *w = array_of(job, "w");
	struct npy *y = &slot_of(job, "y")->array;
	const int n = dimensions(job);
	int64_t more[3];
	hz_quat_conv_opts o;
	int status = check_conv(job, x, w);

	if (!status)
		status = conv_opts(job, &o);
	if (!status)
		status = read_list(job, "output_pad", n, 0, more);
	if (status)
		return status;
	if (!(o.flags & HZ_QUAT_TRANSPOSED) &&
	    (more[0] | (n > 1 ? more[1] : 0) | (n > 2 ? more[2] : 0)))
		return complain(EXIT_BAD, "%s: output_pad= is for transposed=1", job->op->name);
	shape_like(job, "y", x);
	y->shape[n + 1] = o.flags & HZ_QUAT_TRANSPOSED ? w->shape[n + 1] * o.groups : w->shape[0];
	for (int d = 0; d < n; d++) {
		const int64_t span = (w->shape[1 + d] - 1) * o.dilation[d] + 1;
		const int64_t pads = (o.pad_mode == HZ_PAD_CAUSAL ? 1 : 2) * o.pad[d];
		int64_t size = x->shape[1 + d] + pads - span;

		if (!(o.flags & HZ_QUAT_TRANSPOSED) && size < 0 && x->shape[1 + d] > 0)
			return complain(EXIT_BAD, "%s: taps span %lld elements of dimension %d of x"
				", which has %lld with pad=", job->op->name, (long long)span,
				1 + d, (long long)(x->shape[1 + d] + pads));
		if (o.flags & HZ_QUAT_TRANSPOSED)
			size = (x->shape[1 + d] - 1) * o.stride[d] + span - pads + more[d];
		else
			size = size < 0 ? 0 : size / o.stride[d] + 1;
		y->shape[1 + d] = size < 0 ? 0 : size;
	}
	shape_like(job, "pre", y);
	return 0;
}

static int conv_call(hz_context *ctx, struct job *job)
{
	hz_quat_conv_opts o;

	conv_opts(job, &o);
	return WITH_WORKSPACE(ctx, hz_quat_conv(ctx, view_of(job, "x"), view_of(job, "w"),
						view_of(job, "b"), view_of(job, "y"), &o));
}

static int conv_bwd_outputs(struct job *job)
{
	const struct npy *x = array_of(job, "x"), *w = array_of(job, "w");
	hz_quat_conv_opts o;
	int status = check_conv(job, x, w);

	if (!status)
		status = conv_opts(job, &o);
	shape_like(job, "dx", x);
	shape_like(job, "dw", w);
	shape_bias(job, array_of(job, "dy"));
	return status ? status : shape_as_given(job, "dscale", "scale");
}

static int conv_bwd_call(hz_context *ctx, struct job *job)
{
	hz_quat_conv_opts o;

	conv_opts(job, &o);
	return WITH_WORKSPACE(ctx, hz_quat_conv_bwd(ctx, view_of(job, "x"), view_of(job, "w"),
						    view_of(job, "b"), view_of(job, "dy"),
						    view_of(job, "dx"), view_of(job, "dw"),
						    view_of(job, "db"), &o));
}

static const struct key *const all_conv_keys[] = {
	conv_keys, product_keys, spinor_keys, order_keys, NULL,
};

const struct op op_quat_conv1d = {
	"quat_conv1d", "convolution of quaternions in one dimension",
	conv_operands, all_conv_keys, conv_outputs, conv_call,
};
const struct op op_quat_conv2d = {
	"quat_conv2d", "convolution of quaternions in two dimensions", conv_operands, all_conv_keys, conv_outputs, conv_call,
};
const struct op op_quat_conv3d = {
	"quat_conv3d", "convolution of quaternions in three dimensions", conv_operands, all_conv_keys, conv_outputs, conv_call,
};
const struct op op_quat_conv1d_bwd = {
	"quat_conv1d_bwd", "gradients of quat_conv1d: those whose files are given",
	conv_bwd_operands, all_conv_keys, conv_bwd_outputs, conv_bwd_call,
};
const struct op op_quat_conv2d_bwd = {
	"quat_conv2d_bwd", "gradients of quat_conv2d", conv_bwd_operands, all_conv_keys, conv_bwd_outputs,
	conv_bwd_call,
};
const struct op op_quat_conv3d_bwd = {
	"quat_conv3d_bwd", "gradients of quat_conv3d", conv_bwd_operands, all_conv_keys, conv_bwd_outputs,
	conv_bwd_call,
};

/* ---- Batch normalization --------------------------------------------------------------------- */

static const struct operand norm_operands[] = {
	{"x", NULL, 0, TYPES, "[..., C, 4]"},
	{"gamma", NULL, OPTIONAL, "f32 f64", "[C]; whiten=1: [C, 10]"},
	{"beta", NULL, OPTIONAL, "f32 f64", "[C, 4]"},
	{"y", NULL, OUTPUT, TYPES, "as x"},
	{"running_mean", NULL, OPTIONAL, "f32 f64", "[C, 4]; per_step=1: [steps..., C, 4]"},
	{"running_var", NULL, OPTIONAL, "f32 f64", "[C], or with steps; whiten=1: [C, 10]"},
	{"new_mean", NULL, OUTPUT | OPTIONAL | ONLY, "f32 f64", "what running_mean becomes"},
	{"new_var", NULL, OUTPUT | OPTIONAL | ONLY, "f32 f64", "what running_var becomes"},
	{"saved", NULL, OUTPUT | OPTIONAL | ONLY, "f32 f64", "[C, 14], for the backward call"},
	LAST,
};

static const struct operand norm_bwd_operands[] = {
	{"x", NULL, 0, TYPES, "[..., C, 4]"},
	{"gamma", NULL, OPTIONAL, "f32 f64", "[C]; whiten=1: [C, 10]"},
	{"dy", NULL, 0, TYPES, "as x, the gradient of y"},
	{"saved", NULL, 0, "f32 f64", "[C, 14], of the forward call"},
	{"dx", NULL, OUTPUT | OPTIONAL | ONLY, TYPES, "as x"},
	{"dgamma", NULL, OUTPUT | OPTIONAL | ONLY, "f32 f64", "as gamma"},
	{"dbeta", NULL, OUTPUT | OPTIONAL | ONLY, "f32 f64", "[C, 4]"},
	LAST,
};

static void shape_channels(struct job *job, const char *name, const struct npy *x, int columns)
{
	struct npy *a = &slot_of(job, name)->array;

	a->dtype = x->dtype == HZ_F64 ? HZ_F64 : HZ_F32;
	a->ndim = columns ? 2 : 1;
	a->shape[0] = x->shape[x->ndim - 2];
	a->shape[1] = columns;
}

/* Statistics: those of channels, or with per_step=1 [steps..., channels] */
static void shape_statistics(struct job *job, const char *name, const struct npy *x, int columns)
{
	struct npy *a = &slot_of(job, name)->array;

	shape_channels(job, name, x, columns);
	if (!value_or(job, "per_step", 0) || x->ndim < 3)
		return;
	a->ndim = x->ndim - 2;
	memcpy(a->shape, x->shape + 1, (size_t)a->ndim * sizeof(*a->shape));
	if (columns)
		a->shape[a->ndim++] = columns;
}

static int check_norm(struct job *job, const struct npy *x)
{
	if (x->ndim < 2)
		return complain(EXIT_BAD, "%s: x.ndim is %d, must be 2 at least", job->op->name,
				x->ndim);
	return 0;
}

static int norm_outputs(struct job *job)
{
	const struct npy *x = array_of(job, "x");
	const int columns = value_or(job, "whiten", 0) ? 10 : 0;
	const int status = check_norm(job, x);

	if (status)
		return status;
	shape_like(job, "y", x);
	shape_statistics(job, "new_mean", x, 4);
	shape_statistics(job, "new_var", x, columns);
	shape_statistics(job, "saved", x, 14);
	for (int i = 0; i < 2 && !value_or(job, "eval", 0); i++) {
		static const char *const pair[2][2] = {{"running_mean", "new_mean"},
						       {"running_var", "new_var"}};

		if (slot_of(job, pair[i][0])->path && !slot_of(job, pair[i][1])->path)
			return complain(EXIT_BAD, "%s: %s= is not read without eval=1 or %s=",
					job->op->name, pair[i][0], pair[i][1]);
	}
	if (value_or(job, "eval", 0) &&
	    (slot_of(job, "new_mean")->path || slot_of(job, "new_var")->path))
		return complain(EXIT_BAD, "%s: with eval=1 running values stay as they are",
				job->op->name);
	return 0;
}

static hz_quat_batchnorm_opts norm_opts(struct job *job)
{
	return (hz_quat_batchnorm_opts){
		.flags = order_flag(job) | (value_or(job, "whiten", 0) ? HZ_QUAT_WHITEN : 0) |
			 (value_or(job, "eval", 0) ? HZ_QUAT_EVAL : 0) |
			 (value_or(job, "per_step", 0) ? HZ_QUAT_PER_STEP : 0),
		.given = (value_of(job, "eps")->given ? HZ_QUAT_BATCHNORM_GIVEN_EPS : 0) |
			 (value_of(job, "momentum")->given ? HZ_QUAT_BATCHNORM_GIVEN_MOMENTUM : 0),
		.eps = real_or(job, "eps", 0),
		.momentum = real_or(job, "momentum", 0),
		.saved = view_of(job, "saved"),
	};
}

/*
 * Starts the array in which running values are updated: as a copy of the operand, or zero. What has
 * another shape is left to hz_quat_batchnorm() to refuse: returns the array that it gets.
 */
static hz_tensor *begin_running(hz_context *ctx, hz_tensor *given, hz_tensor *to, int *status)
{
	if (!to || *status != HZ_OK)
		return to;
	if (given && (given->dtype != to->dtype || given->ndim != to->ndim ||
		      memcmp(given->shape, to->shape, (size_t)to->ndim * sizeof(*to->shape))))
		return given;
	*status = given ? hz_copy(ctx, given, to) : clear(ctx, to);
	return to;
}

static int norm_call(hz_context *ctx, struct job *job)
{
	hz_tensor *mean = view_of(job, "running_mean"), *var = view_of(job, "running_var");
	hz_tensor *new_mean = view_of(job, "new_mean"), *new_var = view_of(job, "new_var");
	hz_quat_batchnorm_opts o = norm_opts(job);
	int status = HZ_OK;

	o.running_mean = o.flags & HZ_QUAT_EVAL ? mean :
			 begin_running(ctx, mean, new_mean, &status);
	o.running_var = o.flags & HZ_QUAT_EVAL ? var : begin_running(ctx, var, new_var, &status);
	if (status != HZ_OK)
		return status;
	return WITH_WORKSPACE(ctx, hz_quat_batchnorm(ctx, view_of(job, "x"), view_of(job, "gamma"),
						     view_of(job, "beta"), view_of(job, "y"), &o));
}

static int norm_bwd_outputs(struct job *job)
{
	const struct npy *x = array_of(job, "x");
	const int status = check_norm(job, x);

	if (status)
		return status;
	shape_like(job, "dx", x);
	shape_channels(job, "dgamma", x, value_or(job, "whiten", 0) ? 10 : 0);
	shape_channels(job, "dbeta", x, 4);
	return 0;
}

static int norm_bwd_call(hz_context *ctx, struct job *job)
{
	const hz_quat_batchnorm_opts o = norm_opts(job);

	return WITH_WORKSPACE(ctx, hz_quat_batchnorm_bwd(ctx, view_of(job, "x"),
							 view_of(job, "gamma"), view_of(job, "dy"),
							 view_of(job, "dx"), view_of(job, "dgamma"),
							 view_of(job, "dbeta"), &o));
}

const struct op op_quat_batchnorm = {
	"quat_batchnorm", "batch normalization of quaternions",
	norm_operands,
	(const struct key *const[]){norm_keys, momentum_keys, order_keys, NULL},
	norm_outputs, norm_call,
};

const struct op op_quat_batchnorm_bwd = {
	"quat_batchnorm_bwd", "gradients of quat_batchnorm: those whose files are given",
	norm_bwd_operands, (const struct key *const[]){norm_keys, order_keys, NULL},
	norm_bwd_outputs, norm_bwd_call,
};

/* ---- Recurrent layers ------------------------------------------------------------------------ */

#define TYPES_16 "f32 f16 bf16"

static const struct operand recurrent_operands[] = {
	{"z", NULL, 0, TYPES_16, "[T, B, D, K H, 4]: transformed inputs of K gates"},
	{"u", NULL, 0, TYPES_16, "[D, K H, H, 4]"},
	{"h0", NULL, OPTIONAL, TYPES_16, "[D, B, H, 4]; else 0"},
	{"c0", NULL, OPTIONAL, TYPES_16, "[D, B, H, 4], for cell=lstm; else 0"},
	{"lengths", NULL, OPTIONAL, "s32", "[B]: steps of each sequence; else T"},
	{"y", NULL, OUTPUT, TYPES_16, "[T, B, D, H, 4]"},
	{"hn", NULL, OUTPUT | OPTIONAL | ONLY, TYPES_16, "[D, B, H, 4]: the last state"},
	{"cn", NULL, OUTPUT | OPTIONAL | ONLY, TYPES_16, "[D, B, H, 4], for cell=lstm"},
	{"saved", NULL, OUTPUT | OPTIONAL | ONLY, "f32", "[T, B, D, S, H, 4], for the gradients"},
	LAST,
};

static const struct operand recurrent_bwd_operands[] = {
	{"u", NULL, 0, TYPES_16, "[D, K H, H, 4]"},
	{"h0", NULL, OPTIONAL, TYPES_16, "[D, B, H, 4]; else 0"},
	{"c0", NULL, OPTIONAL, TYPES_16, "[D, B, H, 4], for cell=lstm; else 0"},
	{"dy", NULL, 0, TYPES_16, "[T, B, D, H, 4], the gradient of y"},
	{"dhn", NULL, OPTIONAL, TYPES_16, "[D, B, H, 4], that of hn; else 0"},
	{"dcn", NULL, OPTIONAL, TYPES_16, "[D, B, H, 4], that of cn; else 0"},
	{"lengths", NULL, OPTIONAL, "s32", "[B], as in the forward call"},
	{"saved", NULL, 0, "f32", "[T, B, D, S, H, 4], of the forward call"},
	{"dz", NULL, OUTPUT, TYPES_16, "[T, B, D, K H, 4]"},
	{"du", NULL, OUTPUT | OPTIONAL | ONLY, TYPES_16, "as u"},
	{"dh0", NULL, OUTPUT | OPTIONAL | ONLY, TYPES_16, "[D, B, H, 4]"},
	{"dc0", NULL, OUTPUT | OPTIONAL | ONLY, TYPES_16, "[D, B, H, 4], for cell=lstm"},
	LAST,
};

static hz_quat_recurrent_opts recurrent_opts(struct job *job)
{
	return (hz_quat_recurrent_opts){
		.cell = (int32_t)value_or(job, "cell", 0),
		.gates = (int32_t)value_or(job, "gates", 0),
		.activation = (int32_t)value_or(job, "activation", 0),
		.method = (int32_t)value_or(job, "method", 0),
		.precision = (int32_t)value_or(job, "precision", 0),
		.flags = order_flag(job),
		.slope = real_or(job, "slope", 0),
		.lengths = view_of(job, "lengths"),
		.saved = view_of(job, "saved"),
	};
}

/* Gives outputs the shapes that follow from u and from the steps and sequences of z or dy. */
static int recurrent_shapes(struct job *job, const char *in, const char *out,
			    const char *const states[2])
{
	const struct npy *x = array_of(job, in), *u = array_of(job, "u");
	const bool back = strcmp(in, "dy") == 0;
	struct npy *a = &slot_of(job, out)->array;

	if (x->ndim != 5 || u->ndim != 4)
		return complain(EXIT_BAD, "%s: %s.ndim is %d, must be %d", job->op->name,
				x->ndim != 5 ? in : "u", x->ndim != 5 ? x->ndim : u->ndim,
				x->ndim != 5 ? 5 : 4);
	shape_like(job, out, x);
	a->shape[3] = u->shape[back ? 1 : 2];
	for (int i = 0; i < 2; i++) {
		shape_like(job, states[i], u);
		a = &slot_of(job, states[i])->array;
		a->shape[1] = x->shape[1];
	}
	return 0;
}

static int recurrent_outputs(struct job *job)
{
	const int64_t cell = value_or(job, "cell", 0);
	const struct npy *u = array_of(job, "u"), *z = array_of(job, "z");
	struct npy *saved = &slot_of(job, "saved")->array;
	const int status = recurrent_shapes(job, "z", "y", (const char *const[]){"hn", "cn"});

	if (status)
		return status;
	shape_like(job, "saved", z);
	saved->dtype = HZ_F32;
	saved->ndim = 6;
	saved->shape[3] = cell == HZ_QUAT_CELL_RNN ? 1 : cell == HZ_QUAT_CELL_LSTM ? 5 : 3;
	saved->shape[4] = u->shape[2];
	saved->shape[5] = 4;
	return 0;
}

static int recurrent_call(hz_context *ctx, struct job *job)
{
	const hz_quat_recurrent_opts o = recurrent_opts(job);

	return WITH_WORKSPACE(ctx, hz_quat_recurrent(ctx, view_of(job, "z"), view_of(job, "u"),
						     view_of(job, "h0"), view_of(job, "c0"),
						     view_of(job, "y"), view_of(job, "hn"),
						     view_of(job, "cn"), &o));
}

static int recurrent_bwd_outputs(struct job *job)
{
	shape_like(job, "du", array_of(job, "u"));
	return recurrent_shapes(job, "dy", "dz", (const char *const[]){"dh0", "dc0"});
}

static int recurrent_bwd_call(hz_context *ctx, struct job *job)
{
	const hz_quat_recurrent_opts o = recurrent_opts(job);

	return WITH_WORKSPACE(ctx, hz_quat_recurrent_bwd(ctx, view_of(job, "u"),
		view_of(job, "h0"), view_of(job, "c0"), view_of(job, "dy"), view_of(job, "dhn"),
		view_of(job, "dcn"), view_of(job, "dz"), view_of(job, "du"), view_of(job, "dh0"),
		view_of(job, "dc0"), &o));
}

const struct op op_quat_recurrent = {
	"quat_recurrent", "recurrent layer of quaternions: RNN, LSTM or LiGRU, all steps",
	recurrent_operands, (const struct key *const[]){recurrent_keys, order_keys, NULL},
	recurrent_outputs, recurrent_call,
};

const struct op op_quat_recurrent_bwd = {
	"quat_recurrent_bwd", "gradients of quat_recurrent, backward through time",
	recurrent_bwd_operands, (const struct key *const[]){recurrent_keys, order_keys, NULL},
	recurrent_bwd_outputs, recurrent_bwd_call,
};

/* ---- Pooling --------------------------------------------------------------------------------- */

static const struct operand pool_operands[] = {
	{"x", NULL, 0, TYPES, "[n, spatial..., C, 4]"},
	{"y", NULL, OUTPUT, TYPES, "[n, spatial'..., C, 4]"},
	{"index", NULL, OUTPUT | OPTIONAL | ONLY, "s32", "[n, spatial'..., C]: what was taken"},
	LAST,
};

static const struct operand pool_bwd_operands[] = {
	{"index", NULL, OPTIONAL, "s32", "[n, spatial'..., C], for kind=max"},
	{"dy", NULL, 0, TYPES, "[n, spatial'..., C, 4], the gradient of y"},
	{"dx", NULL, OUTPUT, TYPES, "[n, spatial..., C, 4]"},
	LAST,
};

static int pool_opts(struct job *job, int n, hz_quat_pool_opts *o)
{
	int status;

	*o = (hz_quat_pool_opts){.kind = (int32_t)value_or(job, "kind", HZ_POOL_MAX),
				 .flags = order_flag(job)};
	if (!value_of(job, "window")->given)
		return complain(EXIT_BAD, "%s: window= is missing", job->op->name);
	status = read_list(job, "window", n, 1, o->window);
	if (!status)
		status = read_list(job, "stride", n, 0, o->stride);
	return status ? status : read_list(job, "pad", n, 0, o->pad);
}

static int check_pool(struct job *job, const char *name, const struct npy *a)
{
	if (a->ndim < 4)
		return complain(EXIT_BAD, "%s: %s.ndim is %d, must be 4 to 6", job->op->name, name,
				a->ndim);
	return 0;
}

static int pool_outputs(struct job *job)
{
	const struct npy *x = array_of(job, "x");
	struct npy *y = &slot_of(job, "y")->array, *index = &slot_of(job, "index")->array;
	hz_quat_pool_opts o;
	int status = check_pool(job, "x", x);

	if (!status)
		status = pool_opts(job, x->ndim - 3, &o);
	if (status)
		return status;
	shape_like(job, "y", x);
	for (int d = 0; d < x->ndim - 3; d++) {
		const int64_t rest = x->shape[1 + d] + 2 * o.pad[d] - o.window[d];

		if (rest < 0 && x->shape[1 + d] > 0)
			return complain(EXIT_BAD, "%s: window= is %lld in dimension %d of x, which "
				"has %lld with pad=", job->op->name, (long long)o.window[d], 1 + d,
				(long long)(x->shape[1 + d] + 2 * o.pad[d]));
		y->shape[1 + d] = rest < 0 ? 0 :
				  rest / (o.stride[d] ? o.stride[d] : o.window[d]) + 1;
	}
	shape_like(job, "index", y);
	index->dtype = HZ_S32;
	index->ndim--;
	return 0;
}

static int pool_call(hz_context *ctx, struct job *job)
{
	const hz_tensor *x = view_of(job, "x");
	hz_quat_pool_opts o;

	pool_opts(job, x->ndim - 3, &o);
	return hz_quat_pool(ctx, x, view_of(job, "y"), view_of(job, "index"), &o);
}

static int pool_bwd_outputs(struct job *job)
{
	const struct npy *dy = array_of(job, "dy");
	struct npy *dx = &slot_of(job, "dx")->array;
	hz_quat_pool_opts o;
	int status = check_pool(job, "dy", dy);

	if (!status && !value_of(job, "size")->given)
		status = complain(EXIT_BAD, "%s: size= is missing", job->op->name);
	if (!status)
		status = pool_opts(job, dy->ndim - 3, &o);
	shape_like(job, "dx", dy);
	return status ? status : read_list(job, "size", dy->ndim - 3, 0, dx->shape + 1);
}

static int pool_bwd_call(hz_context *ctx, struct job *job)
{
	const hz_tensor *dy = view_of(job, "dy");
	hz_quat_pool_opts o;

	pool_opts(job, dy->ndim - 3, &o);
	return hz_quat_pool_bwd(ctx, view_of(job, "index"), dy, view_of(job, "dx"), &o);
}

const struct op op_quat_pool = {
	"quat_pool", "pooling of quaternions: the largest by norm, or the mean",
	pool_operands, (const struct key *const[]){pool_keys, order_keys, NULL},
	pool_outputs, pool_call,
};

const struct op op_quat_pool_bwd = {
	"quat_pool_bwd", "the gradient of quat_pool",
	pool_bwd_operands, (const struct key *const[]){pool_keys, size_keys, order_keys, NULL},
	pool_bwd_outputs, pool_bwd_call,
};

/* ---- Dropout, initial values ----------------------------------------------------------------- */

static const struct operand dropout_operands[] = {
	{"x", NULL, 0, TYPES, "[..., 4]"},
	{"y", NULL, OUTPUT, TYPES, "as x"},
	LAST,
};

static const struct operand init_operands[] = {
	{"y", NULL, OUTPUT, TYPES, "the shape that shape= says, and 4"},
	LAST,
};

static int dropout_outputs(struct job *job)
{
	shape_like(job, "y", array_of(job, "x"));
	return 0;
}

static int dropout_call(hz_context *ctx, struct job *job)
{
	return hz_quat_dropout(ctx, view_of(job, "x"), view_of(job, "y"), real_or(job, "p", 0.5),
			       (uint64_t)value_or(job, "seed", 0),
			       (uint64_t)value_or(job, "offset", 0));
}

static int init_outputs(struct job *job)
{
	const struct value *shape = value_of(job, "shape");
	struct slot *y = slot_of(job, "y");

	if (!shape->given || shape->count > HZ_MAXDIM - 1)
		return complain(EXIT_BAD, "%s: shape= must be given, of 1 to %d numbers",
				job->op->name, HZ_MAXDIM - 1);
	y->array.ndim = shape->count + 1;
	memcpy(y->array.shape, shape->list, (size_t)shape->count * sizeof(*shape->list));
	y->array.shape[shape->count] = 4;
	return output_dtype(job, y, "y", HZ_F32);
}

static int init_call(hz_context *ctx, struct job *job)
{
	return hz_quat_init(ctx, view_of(job, "y"),
			    (int)value_or(job, "distribution", HZ_QUAT_POLAR),
			    real_or(job, "scale", 1), (uint64_t)value_or(job, "seed", 0),
			    (uint64_t)value_or(job, "offset", 0), order_flag(job));
}

const struct op op_quat_dropout = {
	"quat_dropout", "whole quaternions become 0, the others x / (1 - p)",
	dropout_operands, (const struct key *const[]){dropout_keys, NULL},
	dropout_outputs, dropout_call,
};

const struct op op_quat_init = {
	"quat_init", "random quaternions for weights",
	init_operands, (const struct key *const[]){init_keys, order_keys, NULL},
	init_outputs, init_call,
};
