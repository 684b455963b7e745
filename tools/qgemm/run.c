/*
 * run.c - hurwitz run of quantization, quantized multiplication and linear layers
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#include <config.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tools/core/run.h"

static const struct word code_words[] = {{"u8", HZ_U8}, {"s8", HZ_S8}, {NULL, 0}};

static const struct word c_words[] = {
	{"u8", HZ_U8}, {"s8", HZ_S8}, {"s32", HZ_S32}, {"f32", HZ_F32}, {"f16", HZ_F16},
	{"bf16", HZ_BF16}, {NULL, 0},
};

static const struct word requant_words[] = {
	{"exact", HZ_REQUANT_EXACT}, {"float", HZ_REQUANT_FLOAT}, {"ruy", HZ_REQUANT_RUY},
	{"gemmlowp", HZ_REQUANT_GEMMLOWP}, {"litert_ref", HZ_REQUANT_LITERT_REF}, {NULL, 0},
};

static const struct word symmetric_words[] = {
	{"0", 0}, {"127", HZ_QPARAMS_SYMMETRIC}, {"127.5", HZ_QPARAMS_SYMMETRIC_127_5}, {NULL, 0},
};

static const struct word arith_words[] = {{"f64", 0}, {"f32", HZ_QPARAMS_F32}, {NULL, 0}};

enum { PER_TENSOR, PER_ROW, PER_COLUMN };

static const struct word per_words[] = {
	{"tensor", PER_TENSOR}, {"row", PER_ROW}, {"column", PER_COLUMN}, {NULL, 0},
};

#define END {NULL, 0, NULL, 0, 0, NULL, NULL}

/* ---- quantize, dequantize -------------------------------------------------------------------- */

static const struct key scale_keys[] = {
	{"scale", KEY_NUMBER, NULL, 0, 0, "NUMBER", "one scale for all; this or a file is needed"},
	{"zero", KEY_INT, NULL, INT32_MIN, INT32_MAX, "N", "one zero for all; default 0"},
	END,
};

static const struct key rotate_keys[] = {
	{"rotate", KEY_WORD, switch_words, 0, 0, "0|1",
	 "1: with a transform of rows, as hadamard makes it; default 1 with one of\n"
	 "the keys below, pre or post"},
	END,
};

static const struct key type_keys[] = {
	{"type", KEY_WORD, code_words, 0, 0, "u8|s8", "what q holds; default u8, or as zero=FILE"},
	END,
};

static const struct key out_keys[] = {
	{"out", KEY_WORD, float_words, 0, 0, "f32|f16|bf16", "the dtype of y; default f32"},
	END,
};

#define SCALE_SHAPE "or of sizes as the data, 1, or a divisor"

static const struct operand quantize_operands[] = {
	{"x", NULL, 0, "f32 f16 bf16", "any shape"},
	{"q", NULL, OUTPUT, "u8 s8", "the shape of x"},
	{"scale", NULL, OPTIONAL | OR_KEY, "f32", SCALE_SHAPE},
	{"zero", NULL, OPTIONAL | OR_KEY, "u8 s8", "the shape of scale, the dtype of q"},
	{"pre", NULL, OPTIONAL | SIGNS, "u8 f32 f16 bf16", SIGNS_SHAPE},
	{"post", NULL, OPTIONAL | SIGNS, "u8 f32 f16 bf16", "as pre, but after the transform"},
	{NULL, NULL, 0, NULL, NULL},
};

static const struct operand dequantize_operands[] = {
	{"q", NULL, 0, "u8 s8", "any shape"},
	{"y", "x", OUTPUT, "f32 f16 bf16", "the shape of q"},
	{"scale", NULL, OPTIONAL | OR_KEY, "f32", SCALE_SHAPE},
	{"zero", NULL, OPTIONAL | OR_KEY, "u8 s8", "the shape of scale, the dtype of q"},
	{"pre", NULL, OPTIONAL | SIGNS, "u8 f32 f16 bf16", SIGNS_SHAPE},
	{"post", NULL, OPTIONAL | SIGNS, "u8 f32 f16 bf16", "as pre, but after the transform"},
	{NULL, NULL, 0, NULL, NULL},
};

/* Checks scales while they are on the host: calls on a GPU cannot. Returns the exit status. */
static int check_scales(struct job *job, const char *name)
{
	const struct slot *slot = slot_of(job, name);
	const float *scale = slot->array.data;

	if (!slot->path)
		return 0;
	for (int64_t i = 0; i < slot->array.count && slot->array.dtype == HZ_F32; i++)
		if (!(scale[i] > 0 && isfinite(scale[i])))
			return complain(EXIT_BAD, "%s: element %lld of %s is %g, must be positive"
				" and finite", job->op->name, (long long)i, name, scale[i]);
	return 0;
}

/* Codes without a scale would mean nothing: there is no default. */
static int need_scale(struct job *job)
{
	if (slot_of(job, "scale")->path || value_of(job, "scale")->given)
		return check_scales(job, "scale");
	return complain(EXIT_BAD, "%s: scale= is missing: give a number or a file, for example "
			"what choose_qparams prints", job->op->name);
}

static int check_range(struct job *job, const char *name, int32_t high)
{
	const struct slot *slot = slot_of(job, name);
	const int32_t *v = slot->array.data;

	if (!slot->path)
		return 0;
	for (int64_t i = 0; i < slot->array.count && slot->array.dtype == HZ_S32; i++)
		if (v[i] < 1 || v[i] > high)
			return complain(EXIT_BAD, "%s: element %lld of %s is %d, must be 1 to %d",
					job->op->name, (long long)i, name, (int)v[i], (int)high);
	return 0;
}

/* Whether the call has a transform: with rotate=1, or with an option of one */
static bool is_rotated(struct job *job)
{
	const struct value *rotate = value_of(job, "rotate");
	bool given = view_of(job, "pre") || view_of(job, "post");

	for (const struct key *k = rotation_keys; k->name; k++)
		given |= value_of(job, k->name)->given;
	return rotate->given ? rotate->n != 0 : given;
}

/* The options that keys and operands give */
static void quantize_opts(struct job *job, hz_quantize_opts *o, hz_hadamard_opts *hadamard)
{
	const struct value *number = value_of(job, "scale");

	*o = (hz_quantize_opts){
		.scale = number->given ? number->number : 0,
		.zero = (int32_t)value_or(job, "zero", 0),
		.scales = view_of(job, "scale"),
		.zeros = view_of(job, "zero"),
	};
	if (is_rotated(job)) {
		*hadamard = hadamard_opts(job);
		o->hadamard = hadamard;
	}
}

static int quantize_outputs(struct job *job)
{
	const struct npy *x = &slot_of(job, "x")->array;
	struct slot *q = slot_of(job, "q"), *zero = slot_of(job, "zero");
	const int status = need_scale(job);

	q->array.dtype = (int)value_or(job, "type", zero->path ? zero->array.dtype : HZ_U8);
	q->array.ndim = x->ndim;
	memcpy(q->array.shape, x->shape, sizeof(x->shape));
	return status ? status : hadamard_common(job, x->ndim, x->shape);
}

static int quantize_call(hz_context *ctx, struct job *job)
{
	const hz_tensor *x = view_of(job, "x");
	hz_hadamard_opts hadamard;
	hz_quantize_opts o;

	quantize_opts(job, &o, &hadamard);
	return WITH_WORKSPACE(ctx, hz_quantize(ctx, x, view_of(job, "q"), &o));
}

static int dequantize_outputs(struct job *job)
{
	const struct npy *q = &slot_of(job, "q")->array;
	struct slot *y = slot_of(job, "y");
	int status = need_scale(job);

	y->array.ndim = q->ndim;
	memcpy(y->array.shape, q->shape, sizeof(q->shape));
	if (!status)
		status = hadamard_common(job, q->ndim, q->shape);
	return status ? status : output_dtype(job, y, "y", HZ_F32);
}

static int dequantize_call(hz_context *ctx, struct job *job)
{
	const hz_tensor *q = view_of(job, "q");
	hz_hadamard_opts hadamard;
	hz_quantize_opts o;

	quantize_opts(job, &o, &hadamard);
	return WITH_WORKSPACE(ctx, hz_dequantize(ctx, q, view_of(job, "y"), &o));
}

const struct op op_quantize = {
	"quantize", "q = clamp(zero + rne(x / scale)), x as it is or transformed",
	quantize_operands,
	(const struct key *const[]){scale_keys, type_keys, rotate_keys, rotation_keys, NULL},
	quantize_outputs, quantize_call,
};

const struct op op_dequantize = {
	"dequantize", "y = scale (q - zero), transformed back if so quantized",
	dequantize_operands,
	(const struct key *const[]){scale_keys, out_keys, rotate_keys, rotation_keys, NULL},
	dequantize_outputs, dequantize_call,
};

/* ---- choose_qparams -------------------------------------------------------------------------- */

static const struct key choose_keys[] = {
	{"type", KEY_WORD, code_words, 0, 0, "u8|s8", "what to quantize to; default u8"},
	{"symmetric", KEY_WORD, symmetric_words, 0, 0, "0|127|127.5",
	 "not 0: zero is 0 for s8, 128 for u8, and the largest |x| has that code"},
	{"arith", KEY_WORD, arith_words, 0, 0, "f64|f32", "the dtype of quotients; default f64"},
	{"reduce_range", KEY_WORD, switch_words, 0, 0, "0|1", "1: codes of 7 bits"},
	{"per", KEY_WORD, per_words, 0, 0, "tensor|row|column",
	 "what has a scale and zero of its own; default tensor"},
	{"group", KEY_INT, NULL, 1, INT64_MAX, "N",
	 "each N successive elements of a row have them"},
	END,
};

static const struct operand choose_operands[] = {
	{"x", NULL, 0, "f32 f16 bf16", "any shape"},
	{"scale", NULL, OUTPUT | OPTIONAL, "f32", "sizes 1 where shared; without a file printed"},
	{"zero", NULL, OUTPUT | OPTIONAL, "u8 s8", "the shape of scale, likewise"},
	{NULL, NULL, 0, NULL, NULL},
};

static int choose_outputs(struct job *job)
{
	const struct npy *x = &slot_of(job, "x")->array;
	struct npy *scale = &slot_of(job, "scale")->array, *zero = &slot_of(job, "zero")->array;
	const struct value *group = value_of(job, "group");
	const int64_t per = value_or(job, "per", PER_TENSOR);
	const int last = x->ndim - 1;

	if (x->ndim == 0 && (group->given || per != PER_TENSOR))
		return complain(EXIT_BAD, "%s: x has no dimensions: per=tensor alone",
				job->op->name);
	if (group->given && value_of(job, "per")->given)
		return complain(EXIT_BAD, "%s: per= and group= are two ways: one of them",
				job->op->name);
	scale->ndim = x->ndim;
	for (int d = 0; d < x->ndim; d++)
		scale->shape[d] = (d == last ? per == PER_COLUMN : per == PER_ROW || group->given) ?
				  x->shape[d] : 1;
	if (group->given) {
		if (x->shape[last] % group->n)
			return complain(
				EXIT_BAD,
				"%s: group=%lld does not divide %lld, the last dimension of x",
				job->op->name, (long long)group->n,
					(long long)x->shape[last]);
		scale->shape[last] = x->shape[last] / group->n;
	}
	scale->dtype = HZ_F32;
	zero->ndim = scale->ndim;
	memcpy(zero->shape, scale->shape, sizeof(scale->shape));
	zero->dtype = (int)value_or(job, "type", HZ_U8);
	return 0;
}

static int choose_call(hz_context *ctx, struct job *job)
{
	const hz_tensor *x = view_of(job, "x");
	hz_tensor *scale = view_of(job, "scale"), *zero = view_of(job, "zero");
	const uint32_t flags = (uint32_t)value_or(job, "symmetric", 0) |
			       (uint32_t)value_or(job, "arith", 0) |
			       (value_or(job, "reduce_range", 0) ? HZ_QPARAMS_REDUCE_RANGE : 0);

	return WITH_WORKSPACE(ctx, hz_choose_qparams(ctx, x, scale, zero, flags));
}

const struct op op_choose_qparams = {
	"choose_qparams", "scales and zeros from the ranges of x",
	choose_operands,  (const struct key *const[]){choose_keys, NULL},
	choose_outputs,	  choose_call,
};

/* ---- qgemm, qlinear -------------------------------------------------------------------------- */

static const struct key a_keys[] = {
	{"a_zero", KEY_INT, NULL, INT32_MIN, INT32_MAX, "N", "the zero of A; default 0"},
	{"a_scale", KEY_NUMBER, NULL, 0, 0, "NUMBER", "the scale of A; default 1"},
	END,
};

static const struct key b_keys[] = {
	{"b_zero", KEY_INT, NULL, INT32_MIN, INT32_MAX, "N", "the zero of B; default 0"},
	{"b_scale", KEY_NUMBER, NULL, 0, 0, "NUMBER", "the scale of B; default 1"},
	{"min", KEY_REAL, NULL, 0, 0, "NUMBER", "results are at least this"},
	{"max", KEY_REAL, NULL, 0, 0, "NUMBER", "results are at most this"},
	{"relu", KEY_WORD, switch_words, 0, 0, "0|1", "1: results are at least c_zero, or 0"},
	{"trans_b", KEY_WORD, switch_words, 0, 0, "0|1", "1: b holds the transpose, [..., n, k]"},
	{"pack", KEY_WORD, switch_words, 0, 0, "0|1",
	 "1: pack B first, which gives the same results"},
	END,
};

static const struct key c_keys[] = {
	{"c_zero", KEY_INT, NULL, INT32_MIN, INT32_MAX, "N", "the zero of C; default 0"},
	{"c_scale", KEY_NUMBER, NULL, 0, 0, "NUMBER", "the scale of C; default 1"},
	{"sigma", KEY_NUMBER, NULL, 0, 0, "NUMBER", "a_scale b_scale / c_scale, instead of them"},
	{"multiplier", KEY_INT, NULL, 1, INT32_MAX, "U", "sigma is U / 2^S"},
	{"shift", KEY_INT, NULL, 1, 62, "S", ""},
	{"requant", KEY_WORD, requant_words, 0, 0, "exact|float|ruy|gemmlowp|litert_ref",
	 "exact, the default: rounded once, in integers; else as in that library, float: in f32"},
	{"out", KEY_WORD, c_words, 0, 0, "u8|s8|s32|f32|f16|bf16", "the dtype of C; default u8"},
	{"trans_a", KEY_WORD, switch_words, 0, 0, "0|1", "1: a holds the transpose, [..., k, m]"},
	END,
};

static const struct key linear_keys[] = {
	{"type", KEY_WORD, code_words, 0, 0, "u8|s8", "what x is quantized to; default u8"},
	{"symmetric", KEY_WORD, switch_words, 0, 0, "0|1",
	 "1: zero is 0 for s8, 128 for u8, if rows have scales of their own"},
	{"a_zero", KEY_INT, NULL, INT32_MIN, INT32_MAX, "N", "with a_scale: the zero of x"},
	{"a_scale", KEY_NUMBER, NULL, 0, 0, "NUMBER",
	 "one scale for x; without it each row has one of its range"},
	{"out", KEY_WORD, float_words, 0, 0, "f32|f16|bf16", "the dtype of y; default that of x"},
	END,
};

static const struct operand qgemm_operands[] = {
	{"a", NULL, 0, "u8 s8", "[..., m, k]"},
	{"b", NULL, 0, "u8 s8", "[..., k, n]"},
	{"c", NULL, OUTPUT, "u8 s8 s32 f32 f16 bf16", "[..., m, n]"},
	{"bias", NULL, OPTIONAL, "s32 f32", "[n]; f32 for a float C or requant=float"},
	{"a_zero", NULL, OPTIONAL | OR_KEY, "u8 s8", "[..., m], instead of a number"},
	{"b_zero", NULL, OPTIONAL | OR_KEY, "u8 s8", "[n]"},
	{"a_scale", NULL, OPTIONAL | OR_KEY, "f32", "[..., m], for a float C"},
	{"b_scale", NULL, OPTIONAL | OR_KEY, "f32", "[n]"},
	{"multiplier", NULL, OPTIONAL | OR_KEY, "s32", "[n]"},
	{"shift", NULL, OPTIONAL | OR_KEY, "s32", "[n]"},
	{NULL, NULL, 0, NULL, NULL},
};

static const struct operand qlinear_operands[] = {
	{"x", NULL, 0, "f32 f16 bf16", "[..., m, k]"},
	{"b", NULL, 0, "u8 s8", "[..., k, n], the codes of the weights"},
	{"y", NULL, OUTPUT, "f32 f16 bf16", "[..., m, n]"},
	{"bias", NULL, OPTIONAL, "s32 f32", "[n]"},
	{"b_zero", NULL, OPTIONAL | OR_KEY, "u8 s8", "[n], instead of a number"},
	{"b_scale", NULL, OPTIONAL | OR_KEY, "f32", "[n]"},
	{NULL, NULL, 0, NULL, NULL},
};

static hz_tensor transposed(const hz_tensor *t, bool wanted)
{
	hz_tensor v = *t;

	if (wanted && t->ndim >= 2) {
		const int i = t->ndim - 2, j = t->ndim - 1;

		v.shape[i] = t->shape[j];
		v.shape[j] = t->shape[i];
		v.stride[i] = t->stride[j];
		v.stride[j] = t->stride[i];
	}
	return v;
}

/* The shape of the product; the library reports operands that do not fit. */
static int product_shape(struct job *job, const struct npy *a, bool trans_a, const struct npy *b,
			 bool trans_b, struct npy *c)
{
	const int ndim = a->ndim > b->ndim ? a->ndim : b->ndim;

	if (a->ndim < 2 || b->ndim < 2)
		return complain(EXIT_BAD, "%s: a matrix has %d dimensions, must have 2 at least",
				job->op->name, a->ndim < 2 ? a->ndim : b->ndim);
	c->ndim = ndim;
	for (int d = 0; d < ndim - 2; d++) {
		const int in_a = d - (ndim - a->ndim), in_b = d - (ndim - b->ndim);
		const int64_t a_size = in_a < 0 ? 1 : a->shape[in_a];

		c->shape[d] = a_size == 1 && in_b >= 0 ? b->shape[in_b] : a_size;
	}
	c->shape[ndim - 2] = a->shape[a->ndim - (trans_a ? 1 : 2)];
	c->shape[ndim - 1] = b->shape[b->ndim - (trans_b ? 2 : 1)];
	return 0;
}

static double number_or_0(const struct job *job, const char *key)
{
	const struct value *v = value_of(job, key);

	return v->given ? v->number : 0;
}

/* Options of qgemm and qlinear */
static hz_qgemm_opts gemm_opts(struct job *job)
{
	const struct value *min = value_of(job, "min"), *max = value_of(job, "max");

	return (hz_qgemm_opts){
		.a_zero = (int32_t)value_or(job, "a_zero", 0),
		.b_zero = (int32_t)value_or(job, "b_zero", 0),
		.c_zero = (int32_t)value_or(job, "c_zero", 0),
		.flags = value_or(job, "relu", 0) ? HZ_QGEMM_RELU : 0,
		.given = (min->given ? HZ_QGEMM_GIVEN_MIN : 0) |
			 (max->given ? HZ_QGEMM_GIVEN_MAX : 0),
		.a_scale = number_or_0(job, "a_scale"),
		.b_scale = number_or_0(job, "b_scale"),
		.c_scale = number_or_0(job, "c_scale"),
		.sigma = number_or_0(job, "sigma"),
		.multiplier = (int32_t)value_or(job, "multiplier", 0),
		.shift = (int32_t)value_or(job, "shift", 0),
		.requant = (int32_t)value_or(job, "requant", HZ_REQUANT_EXACT),
		.min = number_or_0(job, "min"),
		.max = number_or_0(job, "max"),
		.b_zeros = view_of(job, "b_zero"),
		.b_scales = view_of(job, "b_scale"),
		.bias = view_of(job, "bias"),
	};
}

/* Makes the call, after packing B if pack=1. */
static int gemm_call(hz_context *ctx, struct job *job, const hz_tensor *a, const hz_tensor *b,
		     hz_tensor *c, hz_qgemm_opts o, bool linear)
{
	hz_packed packed;
	size_t bytes;
	void *data = NULL;
	int status = HZ_OK;

	if (value_or(job, "pack", 0)) {
		status = hz_qgemm_pack_bytes(ctx, b, &bytes);
		if (status == HZ_OK)
			status = hz_alloc(ctx, &data, bytes, hz_device(ctx));
		if (status == HZ_OK)
			status = hz_qgemm_pack(ctx, b, data, bytes, &packed);
		o.packed = &packed;
		b = NULL;
	}
	if (status == HZ_OK)
		status = WITH_WORKSPACE(ctx, linear ? hz_qlinear(ctx, a, b, c, &o) :
						      hz_qgemm(ctx, a, b, c, &o));
	if (data) {
		hz_sync(ctx);
		hz_free(ctx, data, hz_device(ctx));
	}
	return status;
}

static int qgemm_outputs(struct job *job)
{
	struct slot *c = slot_of(job, "c");
	int status = product_shape(job, &slot_of(job, "a")->array, value_or(job, "trans_a", 0),
				   &slot_of(job, "b")->array, value_or(job, "trans_b", 0),
				   &c->array);

	if (!status)
		status = output_dtype(job, c, "c", HZ_U8);
	/* A float C accepts any scale; 0 is the scale of a row of zeros. */
	if (!status && (c->array.dtype == HZ_U8 || c->array.dtype == HZ_S8 ||
			c->array.dtype == HZ_S32))
		status = check_scales(job, "b_scale");
	if (!status)
		status = check_range(job, "multiplier", INT32_MAX);
	return status ? status : check_range(job, "shift", 62);
}

static int qgemm_call(hz_context *ctx, struct job *job)
{
	const hz_tensor a = transposed(view_of(job, "a"), value_or(job, "trans_a", 0));
	const hz_tensor b = transposed(view_of(job, "b"), value_or(job, "trans_b", 0));
	hz_qgemm_opts o = gemm_opts(job);

	o.a_zeros = view_of(job, "a_zero");
	o.a_scales = view_of(job, "a_scale");
	o.multipliers = view_of(job, "multiplier");
	o.shifts = view_of(job, "shift");
	return gemm_call(ctx, job, &a, &b, view_of(job, "c"), o, false);
}

static int qlinear_outputs(struct job *job)
{
	const struct npy *x = &slot_of(job, "x")->array;
	struct slot *y = slot_of(job, "y");
	const int status = product_shape(job, x, false, &slot_of(job, "b")->array,
					 value_or(job, "trans_b", 0), &y->array);

	return status ? status : output_dtype(job, y, "y", x->dtype);
}

static int qlinear_call(hz_context *ctx, struct job *job)
{
	const hz_tensor b = transposed(view_of(job, "b"), value_or(job, "trans_b", 0));
	hz_qgemm_opts o = gemm_opts(job);

	o.x_dtype = (int32_t)value_or(job, "type", 0);
	if (value_or(job, "symmetric", 0))
		o.flags |= HZ_QLINEAR_SYMMETRIC;
	return gemm_call(ctx, job, view_of(job, "x"), &b, view_of(job, "y"), o, true);
}

const struct op op_qgemm = {
	"qgemm", "C = clamp(c_zero + round(sigma ((A - a_zero) (B - b_zero) + bias)))",
	qgemm_operands, (const struct key *const[]){a_keys, b_keys, c_keys, NULL},
	qgemm_outputs, qgemm_call,
};

const struct op op_qlinear = {
	"qlinear", "y = x W + bias, x being quantized on the way",
	qlinear_operands, (const struct key *const[]){b_keys, linear_keys, NULL},
	qlinear_outputs, qlinear_call,
};
