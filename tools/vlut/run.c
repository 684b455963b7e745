/*
 * run.c - hurwitz run of products with lattice codes
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#include <config.h>

#include <stdlib.h>
#include <string.h>

#include "tools/core/run.h"

#define END {NULL, 0, NULL, 0, 0, NULL, NULL}
#define LAST {NULL, NULL, 0, NULL, NULL}
#define CODES "u8 u16 u32"

static const struct word route_words[] = {
	{"auto", HZ_VLUT_AUTO}, {"table", HZ_VLUT_TABLE}, {"decode", HZ_VLUT_DECODE}, {NULL, 0},
};

static const struct word table_words[] = {
	{"f32", HZ_F32}, {"f16", HZ_F16}, {"bf16", HZ_BF16}, {"u8", HZ_U8}, {"u16", HZ_U16},
	{"s8", HZ_S8}, {"s16", HZ_S16}, {NULL, 0},
};

static const struct word sum_words[] = {{"f32", HZ_F32}, {"s32", HZ_S32}, {NULL, 0}};

static const struct word x_format_words[] = {{"s8", HZ_S8}, {NULL, 0}};

static const struct word y_words[] = {
	{"f32", HZ_F32}, {"f16", HZ_F16}, {"bf16", HZ_BF16}, {"s32", HZ_S32}, {NULL, 0},
};

static const struct key vlut_keys[] = {
	{"route", KEY_WORD, route_words, 0, 0, "auto|table|decode",
	 "tables of products, or points times x; auto, the default: the faster"},
	{"table_dtype", KEY_WORD, table_words, 0, 0, "f32|f16|bf16|u8|u16|s8|s16",
	 "what tables hold: s8, s16 of two sides, the others of one; default chosen"},
	{"sum", KEY_WORD, sum_words, 0, 0, "f32|s32", "what sums are in; default chosen"},
	{"x_format", KEY_WORD, x_format_words, 0, 0, "s8",
	 "s8: x may be rounded to 8 bits with a scale for 32 values; default exact"},
	{"compensated", KEY_WORD, switch_words, 0, 0, "0|1",
	 "1: sums in f32 with compensation, through tables"},
	{"out", KEY_WORD, y_words, 0, 0, "f32|f16|bf16|s32",
	 "the dtype of y; default f32; s32: products of integers, without scales"},
	END,
};

/* Of codes that are an operand */
static const struct key coded_keys[] = {
	{"pack_w", KEY_WORD, switch_words, 0, 0, "0|1",
	 "1: pack w first, which gives the same results"},
	{"use_levels", KEY_INT, NULL, 0, HZ_LATTICE_MAXLEVELS, "N",
	 "the coarsest levels to use, or those that codes have; 0, the default: all"},
	{"k", KEY_INT, NULL, 1, INT64_MAX, "N",
	 "values of a row; default as x, or all of all blocks"},
	END,
};

static const struct word activation_names[] = {
	{"none", HZ_ACT_NONE}, {"relu", HZ_ACT_RELU}, {"tanh", HZ_ACT_TANH},
	{"sigmoid", HZ_ACT_SIGMOID}, {"gelu", HZ_ACT_GELU}, {"silu", HZ_ACT_SILU},
	{"gelu_tanh", HZ_ACT_GELU_TANH}, {NULL, 0},
};

static const struct key activation_keys[] = {
	{"activation", KEY_WORD, activation_names, 0, 0,
	 "none|relu|tanh|sigmoid|gelu|silu|gelu_tanh", "of y; default none"},
	{"rotate", KEY_WORD, switch_words, 0, 0, "0|1",
	 "1: rows were transformed before they were coded, and x is transformed\n"
	 "likewise; default 1 with keys or operands of a transform"},
	END,
};

static const struct key append_keys[] = {
	{"step", KEY_INT, NULL, 1, INT64_MAX, "N", "rows to append at a time; default 1"},
	END,
};

/* Keys of the second lattice of vlut_gemm2 if it differs from the first */
static const struct key second_keys[] = {
	{"x_lattice", KEY_TEXT, NULL, 0, 0, "as lattice", "keys of x; default those of w"},
	{"x_q", KEY_INT, NULL, 2, 1 << 20, "N", ""},
	{"x_levels", KEY_INT, NULL, 1, HZ_LATTICE_MAXLEVELS, "N", ""},
	{"x_beta", KEY_NUMBER, NULL, 0, 0, "NUMBER", ""},
	{"x_alpha", KEY_NUMBER, NULL, 0, 0, "NUMBER", ""},
	{"x_policy", KEY_WORD, policy_words, 0, 0, "as policy", ""},
	{"x_bank", KEY_TEXT, NULL, 0, 0, "as bank", ""},
	{"x_group", KEY_INT, NULL, 8, 128, "N", ""},
	{"x_dither", KEY_TEXT, NULL, 0, 0, "as dither", ""},
	{"x_dim", KEY_INT, NULL, 1, HZ_LATTICE_MAXDIM, "N", ""},
	{"x_offset", KEY_TEXT, NULL, 0, 0, "as offset", ""},
	END,
};

/* A process runs one job; its quantizers are closed at exit. */
static hz_lattice *w_lattice, *x_lattice;

static bool is_given(struct job *job, const char *name)
{
	return slot_of(job, name)->path != NULL;
}

/* ---- Shapes ---------------------------------------------------------------------------------- */

/* Codes are [..., rows, blocks, levels]: all dimensions before blocks count as rows. */
static int rows_of(struct job *job, const char *name, int *ndim)
{
	const struct npy *a = &slot_of(job, name)->array;

	*ndim = a->ndim - 2;
	if (*ndim < 0)
		return complain(EXIT_BAD, "%s: %s has %d dimensions, must be [..., blocks, levels]",
				job->op->name, name, a->ndim);
	return 0;
}

static int open_lattices(struct job *job, bool two_sided)
{
	int status = lattice_of(job, "", is_given(job, "t"), &w_lattice);

	if (!status && two_sided)
		status = lattice_of(job, "x_", is_given(job, "x_t"), &x_lattice);
	return status;
}

/* Values per row of w: k=, or as many as all blocks have */
static int64_t row_length(struct job *job)
{
	const struct npy *w = &slot_of(job, "w")->array;
	const struct value *k = value_of(job, "k");
	hz_lattice_info info;
	int64_t n;

	hz_lattice_get_info(w_lattice, &info);
	if (k->given || __builtin_mul_overflow(w->shape[w->ndim - 2], (int64_t)info.dim, &n))
		return k->n;
	return n;
}

/* The leading dimensions, and the rows of w */
static int y_shape(struct job *job, const int64_t *leading, int count)
{
	const struct npy *w = &slot_of(job, "w")->array;
	struct slot *y = slot_of(job, "y");
	int rows, status = rows_of(job, "w", &rows);

	if (status)
		return status;
	if (rows + count > HZ_MAXDIM)
		return complain(EXIT_BAD, "%s: y would have more than %d dimensions", job->op->name,
				HZ_MAXDIM);
	y->array.ndim = rows + count;
	for (int i = 0; i < count; i++)
		y->array.shape[i] = leading[i];
	for (int i = 0; i < rows; i++)
		y->array.shape[count + i] = w->shape[i];
	return output_dtype(job, y, "y", HZ_F32);
}

/* Keeps the last `keep` dimensions of a contiguous view and merges those before. */
static hz_tensor flat(const hz_tensor *t, int keep)
{
	int64_t shape[HZ_MAXDIM] = {1};

	for (int i = 0; i < t->ndim - keep; i++)
		shape[0] *= t->shape[i];
	for (int i = 0; i < keep; i++)
		shape[1 + i] = t->shape[t->ndim - keep + i];
	return hz_tensor_nd(t->data, t->dtype, t->device, 1 + keep, shape);
}

/* ---- Calls ----------------------------------------------------------------------------------- */

struct coded {
	hz_coded c;
	hz_tensor t, scale;
};

static void coded_of(struct job *job, const char *codes, const char *t, const char *scale,
		     struct coded *out)
{
	memset(out, 0, sizeof(*out));
	out->c.codes = flat(view_of(job, codes), 2);
	out->c.use_levels = (int32_t)value_or(job, "use_levels", 0);
	out->c.k = value_or(job, "k", 0);
	if (is_given(job, t)) {
		out->t = flat(view_of(job, t), 1);
		out->c.t = &out->t;
	}
	if (is_given(job, scale)) {
		out->scale = flat(view_of(job, scale), 0);
		out->c.row_scale = &out->scale;
	}
}

static int open_vlut(hz_context *ctx, struct job *job, hz_vlut **v)
{
	const hz_vlut_opts o = {
		.route = (int32_t)value_or(job, "route", HZ_VLUT_AUTO),
		.table_dtype = (int32_t)value_or(job, "table_dtype", 0),
		.sum = (int32_t)value_or(job, "sum", 0),
		.flags = value_or(job, "compensated", 0) ? HZ_VLUT_COMPENSATED : 0,
		.x_format = (int32_t)value_or(job, "x_format", 0),
	};

	return hz_vlut_open(ctx, v, w_lattice, x_lattice, &o);
}

/* Whether x is transformed, as in lattice_encode */
static bool is_rotated(struct job *job)
{
	const struct value *rotate = value_of(job, "rotate");
	bool given = is_given(job, "pre") || is_given(job, "post");

	for (const struct key *k = rotation_keys; k->name; k++)
		given |= value_of(job, k->name)->given;
	return rotate->given ? rotate->n != 0 : given;
}

/* With pack_w=1 replaces w by packed codes, whose data is on the device. */
static int pack_w(hz_context *ctx, struct job *job, const hz_vlut *v, hz_coded *w, int64_t k,
		  hz_packed *packed)
{
	size_t bytes;
	int status;

	if (!value_or(job, "pack_w", 0))
		return HZ_OK;
	w->k = k;
	status = hz_vlut_pack_bytes(ctx, v, w, &bytes);
	if (status == HZ_OK)
		status = hz_alloc(ctx, &packed->data, bytes ? bytes : 64, hz_device(ctx));
	if (status == HZ_OK)
		status = hz_vlut_pack(ctx, v, w, packed->data, bytes, packed);
	if (status == HZ_OK)
		*w = (hz_coded){.packed = packed, .use_levels = w->use_levels,
				.row_scale = w->row_scale, .bias = w->bias,
				.activation = w->activation, .hadamard = w->hadamard};
	return status;
}

static int gemm_call(hz_context *ctx, struct job *job)
{
	const hz_tensor *x = view_of(job, "x");
	hz_tensor y = *view_of(job, "y");
	int64_t shape[HZ_MAXDIM];
	const hz_hadamard_opts rotation = hadamard_opts(job);
	hz_packed packed = {0};
	struct coded w;
	hz_tensor bias;
	hz_vlut *v;
	int status = open_vlut(ctx, job, &v);

	if (status != HZ_OK)
		return status;
	coded_of(job, "w", "t", "row_scale", &w);
	w.c.activation = (int32_t)value_or(job, "activation", HZ_ACT_NONE);
	w.c.hadamard = is_rotated(job) ? &rotation : NULL;
	if (is_given(job, "bias")) {
		bias = flat(view_of(job, "bias"), 0);
		w.c.bias = &bias;
	}
	/* All dimensions of w before blocks are its rows. */
	memcpy(shape, x->shape, sizeof(shape));
	shape[x->ndim - 1] = w.c.codes.shape[0];
	y = hz_tensor_nd(y.data, y.dtype, y.device, x->ndim, shape);
	status = pack_w(ctx, job, v, &w.c, value_or(job, "k", x->shape[x->ndim - 1]), &packed);
	if (status == HZ_OK)
		status = WITH_WORKSPACE(ctx, job->op == &op_vlut_gemv ?
						     hz_vlut_gemv(ctx, v, &w.c, x, &y) :
						     hz_vlut_gemm(ctx, v, &w.c, x, &y));
	if (status == HZ_OK)
		status = hz_sync(ctx);
	if (packed.data)
		hz_free(ctx, packed.data, hz_device(ctx));
	hz_vlut_close(v);
	return status;
}

static int gemm2_call(hz_context *ctx, struct job *job)
{
	hz_tensor y = *view_of(job, "y");
	hz_packed packed = {0};
	struct coded w, x;
	hz_vlut *v;
	int status = open_vlut(ctx, job, &v);

	if (status != HZ_OK)
		return status;
	coded_of(job, "w", "t", "row_scale", &w);
	coded_of(job, "x", "x_t", "x_row_scale", &x);
	y = hz_tensor_2d(y.data, y.dtype, y.device, x.c.codes.shape[0], w.c.codes.shape[0]);
	status = pack_w(ctx, job, v, &w.c, row_length(job), &packed);
	if (status == HZ_OK)
		status = WITH_WORKSPACE(ctx, hz_vlut_gemm2(ctx, v, &w.c, &x.c, &y));
	if (status == HZ_OK)
		status = hz_sync(ctx);
	if (packed.data)
		hz_free(ctx, packed.data, hz_device(ctx));
	hz_vlut_close(v);
	return status;
}

/* An empty matrix of as many rows as x has, which are appended in turn */
static int append_all(hz_context *ctx, struct job *job, const hz_vlut *v, hz_packed *packed,
		      const hz_hadamard_opts *rotation)
{
	const hz_tensor *const x = view_of(job, "x");
	hz_tensor *const scale = view_of(job, "row_scale");
	const hz_coded empty = {.rows = x->shape[0], .k = x->shape[1]};
	const int64_t step = value_or(job, "step", 1);
	size_t bytes;
	int status = hz_vlut_pack_bytes(ctx, v, &empty, &bytes);

	if (status == HZ_OK)
		status = hz_alloc(ctx, &packed->data, bytes ? bytes : 64, hz_device(ctx));
	if (status == HZ_OK)
		status = hz_vlut_pack(ctx, v, &empty, packed->data, bytes, packed);
	for (int64_t i = 0, end; i < x->shape[0] && status == HZ_OK; i = end) {
		end = step < x->shape[0] - i ? i + step : x->shape[0];

		const hz_tensor rows = hz_view_slice(x, 0, i, end);
		hz_tensor of_rows;
		const hz_lattice_code_opts o = {.hadamard = rotation,
						.row_scale = scale ? &of_rows : NULL};

		if (scale)
			of_rows = hz_view_slice(scale, 0, i, end);
		status = WITH_WORKSPACE(ctx, hz_vlut_append(ctx, v, &rows, i, packed, &o));
	}
	return status;
}

static int append_call(hz_context *ctx, struct job *job)
{
	const hz_hadamard_opts rotation = hadamard_opts(job);
	const hz_hadamard_opts *const h = is_rotated(job) ? &rotation : NULL;
	hz_packed packed = {0};
	const hz_coded w = {.packed = &packed, .row_scale = view_of(job, "row_scale"),
			    .hadamard = h,
			    .activation = (int32_t)value_or(job, "activation", HZ_ACT_NONE)};
	hz_vlut *v;
	int status = open_vlut(ctx, job, &v);

	if (status != HZ_OK)
		return status;
	status = append_all(ctx, job, v, &packed, h);
	if (status == HZ_OK)
		status = WITH_WORKSPACE(ctx, hz_vlut_gemm(ctx, v, &w, view_of(job, "v"),
							  view_of(job, "y")));
	if (status == HZ_OK)
		status = hz_sync(ctx);
	if (packed.data)
		hz_free(ctx, packed.data, hz_device(ctx));
	hz_vlut_close(v);
	return status;
}

/* ---- Rows of the table ----------------------------------------------------------------------- */

#define BIAS {"bias", NULL, OPTIONAL, "f32", "[rows], added to results"}
#define ROTATION_OPERANDS \
	{"pre", NULL, OPTIONAL | SIGNS, "u8 f32 f16 bf16", SIGNS_SHAPE}, \
	{"post", NULL, OPTIONAL | SIGNS, "u8 f32 f16 bf16", "as pre, but after the transform"}

#define W_OPERANDS \
	{"w", NULL, 0, CODES, "[rows, blocks, levels]"}, \
	{"t", NULL, OPTIONAL, "u8", "[rows, blocks]; policy=group: [rows, groups]"}, \
	{"row_scale", NULL, OPTIONAL, "f32", "[rows]"}, \
	{"basis", NULL, OPTIONAL, "f32 f64", "[d, d]; columns are the basis"}, \
	{"transform", NULL, OPTIONAL, "f32 f64", "[d, d], of encoding"}

static const struct operand gemv_operands[] = {
	W_OPERANDS,
	{"x", NULL, 0, "f32 f16 bf16 s8", "[k]"},
	{"y", NULL, OUTPUT, "f32 f16 bf16 s32", "[rows]"},
	BIAS, ROTATION_OPERANDS,
	LAST,
};

static const struct operand gemm_operands[] = {
	W_OPERANDS,
	{"x", NULL, 0, "f32 f16 bf16 s8", "[.., batch, k]"},
	{"y", NULL, OUTPUT, "f32 f16 bf16 s32", "[.., batch, rows]"},
	BIAS, ROTATION_OPERANDS,
	LAST,
};

static const struct operand gemm2_operands[] = {
	W_OPERANDS,
	{"x", NULL, 0, CODES, "[batch, blocks, levels]"},
	{"x_t", NULL, OPTIONAL, "u8", "[batch, blocks]"},
	{"x_row_scale", NULL, OPTIONAL, "f32", "[batch]"},
	{"y", NULL, OUTPUT, "f32 f16 bf16 s32", "[batch, rows]"},
	LAST,
};

static const struct operand append_operands[] = {
	{"x", NULL, 0, "f32 f16 bf16", "[rows, k], the rows to append"},
	{"v", NULL, 0, "f32 f16 bf16", "[.., batch, k] or [k]"},
	{"y", NULL, OUTPUT, "f32 f16 bf16", "[.., batch, rows] or [rows]"},
	{"row_scale", NULL, OUTPUT | OPTIONAL | ONLY, "f32",
	 "[rows]: the root mean square of each row, which is divided by it"},
	{"basis", NULL, OPTIONAL, "f32 f64", "[d, d]; columns are the basis"},
	{"transform", NULL, OPTIONAL, "f32 f64", "[d, d], applied to blocks first"},
	ROTATION_OPERANDS,
	LAST,
};

static int append_outputs(struct job *job)
{
	const struct npy *x = &slot_of(job, "x")->array, *v = &slot_of(job, "v")->array;
	struct slot *y = slot_of(job, "y");
	struct npy *scale = &slot_of(job, "row_scale")->array;
	int status = lattice_of(job, "", false, &w_lattice);

	if (status)
		return status;
	if (x->ndim != 2 || v->ndim < 1)
		return complain(EXIT_BAD, "%s: x must be [rows, k] and v have a dimension",
				job->op->name);
	scale->ndim = 1;
	scale->shape[0] = x->shape[0];
	scale->dtype = HZ_F32;
	y->array.ndim = v->ndim;
	for (int i = 0; i < v->ndim - 1; i++)
		y->array.shape[i] = v->shape[i];
	y->array.shape[v->ndim - 1] = x->shape[0];
	status = output_dtype(job, y, "y", HZ_F32);
	return status ? status : hadamard_common(job, x->ndim, x->shape);
}

static int gemm_outputs(struct job *job)
{
	const struct npy *x = &slot_of(job, "x")->array;
	int rows, status = rows_of(job, "w", &rows);

	if (!status)
		status = open_lattices(job, false);
	if (status)
		return status;
	if (x->ndim < 1 || (job->op == &op_vlut_gemv && x->ndim > 1))
		return complain(EXIT_BAD, "%s: x has %d dimensions, must be %s", job->op->name,
				x->ndim, job->op == &op_vlut_gemv ? "[k]" : "[.., batch, k]");
	status = hadamard_common(job, x->ndim, x->shape);
	return status ? status : y_shape(job, x->shape, x->ndim - 1);
}

static int gemm2_outputs(struct job *job)
{
	const struct npy *x = &slot_of(job, "x")->array;
	int rows, status = rows_of(job, "w", &rows);

	if (!status)
		status = rows_of(job, "x", &rows);
	if (!status)
		status = open_lattices(job, true);
	return status ? status : y_shape(job, x->shape, rows);
}

const struct op op_vlut_gemv = {
	"vlut_gemv", "y = W x with lattice codes of W",
	gemv_operands, (const struct key *const[]){lattice_keys, vlut_keys, coded_keys,
						   activation_keys, rotation_keys, NULL},
	gemm_outputs, gemm_call,
};

const struct op op_vlut_gemm = {
	"vlut_gemm", "y = x W^T with lattice codes of W",
	gemm_operands, (const struct key *const[]){lattice_keys, vlut_keys, coded_keys,
						   activation_keys, rotation_keys, NULL},
	gemm_outputs, gemm_call,
};

const struct op op_vlut_append = {
	"vlut_append", "y = v X^T, with rows of X appended to a packed matrix",
	append_operands, (const struct key *const[]){lattice_keys, vlut_keys, append_keys,
						     activation_keys, rotation_keys, NULL},
	append_outputs, append_call,
};

const struct op op_vlut_gemm2 = {
	"vlut_gemm2", "y = X W^T with lattice codes of both",
	gemm2_operands, (const struct key *const[]){lattice_keys, vlut_keys, coded_keys,
						    second_keys, NULL},
	gemm2_outputs, gemm2_call,
};
