/*
 * run.c - hurwitz run: any primitive on arrays in files
 *
 * SPDX-License-Identifier: BSD-2-Clause
 *
 * A primitive is a row of ops[]: its operands, its keys, a function that sets the outputs' dtypes
 * and shapes, and one that makes the call. Everything else is common to all primitives.
 */
#include <config.h>

#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tools/core/model.h"
#include "tools/core/output.h"
#include "tools/core/run.h"

/* ---- Tables ---------------------------------------------------------------------------------- */

/* Key i, counted through all tables of an op; NULL after the last */
static const struct key *key_at(const struct op *op, int i)
{
	for (int t = 0; op->keys[t]; t++) {
		for (const struct key *k = op->keys[t]; k->name; k++) {
			if (i-- == 0)
				return k;
		}
	}
	return NULL;
}

static int key_index(const struct op *op, const char *name)
{
	const struct key *k;

	for (int i = 0; (k = key_at(op, i)) != NULL; i++) {
		if (strcmp(k->name, name) == 0)
			return i;
	}
	return -1;
}

static int operand_index(const struct op *op, const char *name)
{
	for (int i = 0; op->operands[i].name; i++) {
		const struct operand *o = &op->operands[i];

		if (strcmp(o->name, name) == 0 || (o->other && strcmp(o->other, name) == 0))
			return i;
	}
	return -1;
}

const struct value *value_of(const struct job *job, const char *key)
{
	static const struct value none;
	const int i = key_index(job->op, key);

	return i < 0 ? &none : &job->value[i];
}

int64_t value_or(const struct job *job, const char *key, int64_t absent)
{
	const struct value *v = value_of(job, key);

	return v->given ? v->n : absent;
}

struct slot *slot_of(struct job *job, const char *name)
{
	return &job->slot[operand_index(job->op, name)];
}

/* Optional outputs without a file are computed and printed, unless they are ONLY. */
static bool in_use(const struct job *job, int i)
{
	const unsigned flags = job->op->operands[i].flags;

	return job->slot[i].path || (flags & OUTPUT && !(flags & ONLY));
}

hz_tensor *view_of(struct job *job, const char *name)
{
	const int i = operand_index(job->op, name);

	return i >= 0 && in_use(job, i) ? &job->slot[i].view : NULL;
}

const struct word float_words[] = {
	{"f32", HZ_F32}, {"f16", HZ_F16}, {"bf16", HZ_BF16}, {NULL, 0},
};

const struct word switch_words[] = {{"0", 0}, {"1", 1}, {NULL, 0}};

int output_dtype(struct job *job, struct slot *y, const char *name, int absent)
{
	const struct value *out = value_of(job, "out");

	if (out->given && y->dtype_said && out->n != y->dtype_said)
		return complain(EXIT_BAD, "%s: out=%s and %s:%s= disagree", job->op->name,
				hz_dtype_name((int)out->n), name, hz_dtype_name(y->dtype_said));
	y->array.dtype = out->given ? (int)out->n : y->dtype_said ? y->dtype_said : absent;
	return 0;
}

static const struct op *const ops[] = {
	&op_hadamard, &op_hadamard_quantize, &op_dequantize_hadamard,
	&op_quantize, &op_dequantize, &op_choose_qparams, &op_qgemm, &op_qlinear,
	&op_qlinear_group,
	&op_quat_mul, &op_quat_mul_bwd, &op_quat_dot, &op_quat_axpy, &op_quat_conj,
	&op_quat_norm, &op_quat_norm_bwd, &op_quat_normalize, &op_quat_normalize_bwd,
	&op_quat_inverse, &op_quat_inverse_bwd, &op_quat_rotate, &op_quat_rotate_bwd,
	&op_quat_to_matrix, &op_quat_to_matrix_bwd, &op_quat_from_matrix, &op_quat_from_matrix_bwd,
	&op_quat_to_axis_angle, &op_quat_from_axis_angle, &op_quat_exp, &op_quat_log,
	&op_quat_slerp, &op_quat_gemm,
	&op_quat_linear, &op_quat_linear_bwd, &op_quat_conv1d, &op_quat_conv1d_bwd,
	&op_quat_conv2d, &op_quat_conv2d_bwd, &op_quat_conv3d, &op_quat_conv3d_bwd,
	&op_quat_batchnorm, &op_quat_batchnorm_bwd, &op_quat_recurrent, &op_quat_recurrent_bwd,
	&op_quat_pool, &op_quat_pool_bwd, &op_quat_dropout, &op_quat_init,
	&op_lattice_design, &op_lattice_encode, &op_lattice_decode, &op_lattice_repack,
	&op_vlut_gemv, &op_vlut_gemm, &op_vlut_append, &op_vlut_gemm2,
	&op_linear_forward, &op_linear_bwd, &op_linear_dequantize,
	&op_mhc_presets, &op_mhc_sinkhorn, &op_mhc_sinkhorn_bwd, &op_mhc_mix, &op_mhc_mix_bwd,
	&op_mhc_add, &op_mhc_add_bwd, &op_mhc_post, &op_mhc_post_bwd, &op_mhc_weights, &op_mhc_weights_bwd,
	&op_mhc_pre, &op_mhc_pre_bwd, &op_mhc_post_pre, &op_mhc_post_pre_bwd,
	&op_mhc_gated_pre, &op_mhc_gated_pre_bwd, &op_mhc_expand, &op_mhc_expand_bwd,
	&op_mhc_head, &op_mhc_head_bwd, &op_mhc_recompute, &op_mhc_diagnose, &op_mhc_init,
};

#define OPS (sizeof(ops) / sizeof(*ops))

/* ---- Help ------------------------------------------------------------------------------------ */

static void help_op(const struct op *op)
{
	const struct key *k;

	printf("Usage: hurwitz run [-v] [-d DEVICE] [-t N] %s [KEY=VALUE]... OPERAND=FILE...\n"
	       "'hurwitz run --help' describes options and files.\n"
	       "\n"
	       "%s: %s\n"
	       "Operands that are read (<) and written (>), optional ones (?), and keys:\n",
	       op->name, op->name, op->summary);
	for (const struct operand *o = op->operands; o->name; o++) {
		printf("  %c%c %-16s %-18s %s\n", o->flags & OUTPUT ? '>' : '<',
		       o->flags & OPTIONAL ? '?' : ' ', o->name, o->dtypes, o->shape);
	}
	for (int i = 0; (k = key_at(op, i)) != NULL; i++) {
		printf("  %s=%s\n      ", k->name, k->values);
		for (const char *p = k->help; *p; p++)
			printf(*p == '\n' ? "\n      " : "%c", *p);
		printf("\n");
	}
}

static void help_all(void)
{
	printf("Usage: hurwitz run [-v] [-d DEVICE] [-t N] OP [KEY=VALUE]... OPERAND=FILE...\n"
	       "Apply a primitive to arrays in files: NumPy's FILE.npy, for inputs also\n"
	       "FILE.safetensors:TENSOR and FILE.gguf:TENSOR, which 'hurwitz inspect' lists.\n"
	       "\n"
	       "  -d, --device DEVICE  cpu, cuda, cuda:N, or auto, the default: a GPU if one\n"
	       "                       works and can do it\n"
	       "  -t, --threads N      CPU threads; default: the cores allowed\n"
	       "  -v, --verbose        say on stderr which route (code path) each call takes\n"
	       "                       and, on a CPU, the time; -vv: also why not others\n"
	       "  -h, --help           this; 'hurwitz run OP --help': operands and keys of OP\n"
	       "\n"
	       "A file may be '-': standard input or output. Output files appear only when\n"
	       "they are complete, and may be input files at the same time. NumPy has no\n"
	       "bfloat16, which travels as uint16: OPERAND:bf16=FILE says so, of inputs and\n"
	       "of outputs. y:f32= and y:f16= choose the dtype of an output likewise.\n"
	       "\n"
	       "Primitives:\n\n");
	for (size_t i = 0; i < OPS; i++)
		printf("%s: %s\n", ops[i]->name, ops[i]->summary);
	printf("\n"
	       "Examples:\n"
	       "  hurwitz run hadamard x=in.npy y=out.npy\n"
	       "  hurwitz run hadamard plan=true seed=7 x:bf16=in.npy y:bf16=out.npy\n"
	       "  hurwitz run hadamard_quantize format=e4m3 group=128 \\\n"
	       "          x=w.npy q=q.npy scale=s.npy\n");
}

/* ---- Arguments ------------------------------------------------------------------------------- */

/* 2^63 .. 2^64 - 1, stored as negative numbers with the same bits */
static bool parse_u64(const char *text, int64_t *value)
{
	char *end;
	unsigned long long v;

	errno = 0;
	v = strtoull(text, &end, 10);
	*value = (int64_t)v;
	return *text >= '0' && *text <= '9' && *end == '\0' && errno == 0;
}

/* Comma-separated integers from low to high */
static bool parse_list(const char *text, const struct key *k, struct value *v)
{
	char part[32];

	for (v->count = 0; v->count < HZ_MAXDIM; text++) {
		const size_t n = strcspn(text, ",");

		if (n >= sizeof(part))
			return false;
		memcpy(part, text, n);
		part[n] = '\0';
		if (!parse_int(part, k->low, k->high, &v->list[v->count++]))
			return false;
		text += n;
		if (!*text)
			return true;
	}
	return false;
}

/* One real number, or four comma-separated ones */
static bool parse_quat(const char *text, double *quat)
{
	char part[64];
	int count = 0;

	memset(quat, 0, 4 * sizeof(*quat));
	for (; count < 4; text++) {
		const size_t n = strcspn(text, ",");

		if (n >= sizeof(part))
			return false;
		memcpy(part, text, n);
		part[n] = '\0';
		if (!parse_number(part, &quat[count++]))
			return false;
		text += n;
		if (!*text)
			return count == 1 || count == 4;
	}
	return false;
}

static int refuse_value(const struct op *op, const struct key *k, const char *text)
{
	static const char *const what[] = {
		[KEY_INT] = "an integer", [KEY_SEED] = "an integer of 64 bits",
		[KEY_NUMBER] = "a number, finite and not 0", [KEY_REAL] = "a finite number",
		[KEY_LIST] = "1 to 6 integers with commas between them",
		[KEY_QUAT] = "a finite number, or four with commas between them",
	};
	const bool ranged = k->kind == KEY_INT || k->kind == KEY_LIST;
	char range[64] = "", files[40];

	snprintf(files, sizeof(files), "%ss", k->name);
	if (ranged && k->high < INT64_MAX)
		snprintf(range, sizeof(range), ", %lld to %lld", (long long)k->low,
			 (long long)k->high);
	else if (ranged)
		snprintf(range, sizeof(range), ", at least %lld", (long long)k->low);
	if (operand_index(op, files) < 0)
		*files = '\0';
	return complain(EXIT_BAD, "%s: %s=%s: the value must be %s%s%s%s%s", op->name, k->name, text,
			k->kind == KEY_WORD ? k->values : what[k->kind], range,
			*files ? "; a file is " : "", files, *files ? "=" : "");
}

static int parse_value(const struct op *op, const struct key *k, const char *text, struct value *v)
{
	const struct word *w;

	switch (k->kind) {
	case KEY_WORD:
		for (w = k->words; w->name; w++) {
			if (strcmp(w->name, text) == 0) {
				v->n = w->value;
				return 0;
			}
		}
		break;
	case KEY_INT:
		if (parse_int(text, k->low, k->high, &v->n))
			return 0;
		break;
	case KEY_SEED:
		if (parse_int(text, INT64_MIN, INT64_MAX, &v->n) || parse_u64(text, &v->n))
			return 0;
		break;
	case KEY_NUMBER:
		if (parse_number(text, &v->number) && v->number != 0)
			return 0;
		break;
	case KEY_REAL:
		if (parse_number(text, &v->number))
			return 0;
		break;
	case KEY_LIST:
		if (parse_list(text, k, v))
			return 0;
		break;
	case KEY_TEXT:
		v->text = text;
		return 0;
	case KEY_QUAT:
		if (parse_quat(text, v->quat))
			return 0;
		break;
	}
	return refuse_value(op, k, text);
}

/* Whether a list of dtypes ("f32 bf16") contains a dtype */
static bool listed(const char *dtypes, int dtype)
{
	const char *name = hz_dtype_name(dtype);
	const size_t n = strlen(name);

	for (const char *p = dtypes; (p = strstr(p, name)) != NULL; p += n) {
		if ((p == dtypes || p[-1] == ' ') && (p[n] == ' ' || p[n] == '\0'))
			return true;
	}
	return false;
}

/* The dtype in OPERAND:DTYPE=FILE: a floating-point dtype that the operand supports */
static int parse_said(const struct op *op, const struct operand *o, const char *text, int *dtype)
{
	static const int real[] = {HZ_F32, HZ_F16, HZ_BF16, HZ_F64};

	for (size_t i = 0; i < sizeof(real) / sizeof(real[0]); i++) {
		if (strcmp(hz_dtype_name(real[i]), text) == 0 && listed(o->dtypes, real[i])) {
			*dtype = real[i];
			return 0;
		}
	}
	return complain(EXIT_BAD, "%s: %s:%s=: an operand that is %s cannot be said to be %s",
			op->name, o->name, text, o->dtypes, text);
}

static int parse_operand(struct job *job, int i, char *said, const char *path)
{
	const struct operand *o = &job->op->operands[i];
	struct slot *s = &job->slot[i];

	if (s->path)
		return complain(EXIT_BAD, "%s: the operand %s is given twice", job->op->name,
				o->name);
	if (!*path)
		return complain(EXIT_BAD, "%s: %s= needs a file", job->op->name, o->name);
	if (o->flags & OUTPUT && model_path(path))
		return complain(EXIT_BAD, "%s: %s=%s: outputs are .npy files", job->op->name,
				o->name, path);
	s->path = path;
	return said ? parse_said(job->op, o, said, &s->dtype_said) : 0;
}

/* Parses NAME=VALUE or NAME:DTYPE=FILE; modifies the string. */
static int parse_argument(struct job *job, char *argument)
{
	const struct op *op = job->op;
	char *value = strchr(argument, '='), *said;
	int i;

	if (!value || value == argument)
		return complain(EXIT_BAD, "%s: '%s' is neither KEY=VALUE nor OPERAND=FILE",
				op->name, argument);
	*value++ = '\0';
	said = strchr(argument, ':');
	if (said)
		*said++ = '\0';
	i = operand_index(op, argument);
	if (i >= 0)
		return parse_operand(job, i, said, value);
	i = key_index(op, argument);
	if (i < 0 || said)
		return complain(EXIT_BAD,
				"%s: there is no %s '%s%s%s'; try 'hurwitz run %s --help'",
				op->name, said ? "operand" : "key or operand", argument,
				said ? ":" : "", said ? said : "", op->name);
	if (job->value[i].given)
		return complain(EXIT_BAD, "%s: the key %s is given twice", op->name, argument);
	job->value[i].given = true;
	return parse_value(op, key_at(op, i), value, &job->value[i]);
}

/* Checks required operands, and that no two operands share a file they may not share. */
static int check_operands(const struct job *job)
{
	const struct operand *o = job->op->operands;
	const char *output = NULL;
	bool made = false;

	for (int i = 0; o[i].name; i++) {
		if (!job->slot[i].path && !(o[i].flags & OPTIONAL))
			return complain(EXIT_BAD, "%s: the operand %s= is missing", job->op->name,
					o[i].name);
		if (!(o[i].flags & OUTPUT))
			continue;
		output = output ? output : o[i].name;
		made |= in_use(job, i) || o[i].flags & PRINTS;
	}
	if (!made && output)
		return complain(EXIT_BAD, "%s: no output is given, such as %s=", job->op->name,
				output);
	for (int i = 0; o[i].name; i++) {
		for (int j = 0; j < i; j++) {
			const char *a = job->slot[i].path, *b = job->slot[j].path;
			const unsigned both = o[i].flags & o[j].flags & OUTPUT;
			const unsigned either = (o[i].flags | o[j].flags) & OUTPUT;

			if (!a || !b || strcmp(a, b))
				continue;
			if (both || (!either && strcmp(a, "-") == 0))
				return complain(EXIT_BAD, "%s: %s and %s are both %s",
						job->op->name, o[j].name, o[i].name, a);
		}
	}
	return 0;
}

/* ---- Inputs ---------------------------------------------------------------------------------- */

/* Converts int8 of +1 and -1, or float64, to f32. */
static int convert(const struct job *job, const struct operand *o, struct slot *s)
{
	const bool signs = s->array.dtype == HZ_S8;
	struct npy f = s->array;

	f.dtype = HZ_F32;
	if (!npy_size(f.ndim, f.shape, f.dtype, &f.count, &f.bytes) ||
	    !(f.data = allocate(f.bytes)))
		return complain(EXIT_FAILURE, "%s: there is not enough memory for %s",
				job->op->name, o->name);
	for (int64_t i = 0; i < f.count; i++) {
		const double value = load_element(s->array.data, i, s->array.dtype);

		((float *)f.data)[i] = (float)value;
		if (signs ? fabs(value) == 1 : isfinite((float)value) || !isfinite(value))
			continue;
		free(f.data);
		if (signs)
			return complain(EXIT_BAD,
					"%s: %s: %s holds int8 and so must be +1 or -1 everywhere, "
					"but [%lld] is %g",
					job->op->name, s->path, o->name, (long long)i, value);
		return complain(EXIT_BAD, "%s: %s: [%lld] is %g, beyond float32, which %s must be",
				job->op->name, s->path, (long long)i, value, o->name);
	}
	free(s->array.data);
	s->array = f;
	if (!signs)
		complain(0, "%s: %s: %s is rounded from float64 to float32", job->op->name, s->path,
			 o->name);
	return 0;
}

static const char *numpy_name(int dtype)
{
	static const char *const name[] = {
		[HZ_F32] = "float32", [HZ_F16] = "float16", [HZ_F64] = "float64", [HZ_S8] = "int8",
		[HZ_U8] = "uint8", [HZ_S16] = "int16", [HZ_U16] = "uint16", [HZ_S32] = "int32",
		[HZ_U32] = "uint32", [HZ_S64] = "int64", [HZ_U64] = "uint64",
		[HZ_BF16] = "bfloat16", [HZ_E4M3] = "float8_e4m3fn", [HZ_E5M2] = "float8_e5m2",
		[HZ_E8M0] = "float8_e8m0fnu", [HZ_E2M1X2] = "float4_e2m1fn",
	};

	return name[dtype];
}

const char *held(const struct npy *a)
{
	if (!a->raw)
		return numpy_name(a->dtype);
	return a->dtype == HZ_U16 ? "raw bytes ('V2')" :
	       a->raw == 'V'	  ? "raw bytes ('V1')" :
				    "float8_e5m2 ('f1')";
}

static int read_input(struct job *job, const struct operand *o, struct slot *s)
{
	const char *op = job->op->name;
	char why[NPY_WHY];
	const int status = array_read(&s->array, s->path, why);
	const bool narrow = !status && s->array.dtype == HZ_F64 && !listed(o->dtypes, HZ_F64) &&
			    listed(o->dtypes, HZ_F32);

	if (status)
		return complain(status, "%s: %s", strcmp(s->path, "-") ? s->path : "standard input",
				why);
	/* Small floats are bytes to operands whose type a key tells, as in .npy files. */
	if (hz_dtype_size(s->array.dtype) == 1 && !listed(o->dtypes, s->array.dtype) &&
	    s->array.dtype != HZ_S8 && o->flags & RAW && listed(o->dtypes, HZ_U8))
		s->array.dtype = HZ_U8;
	if (s->dtype_said == HZ_BF16 && s->array.dtype == HZ_U16) {
		s->array.dtype = HZ_BF16;
		s->array.raw = 0;
	}
	if (narrow && (!s->dtype_said || s->dtype_said == HZ_F32))
		return convert(job, o, s);
	if (s->dtype_said && s->array.dtype != s->dtype_said)
		return complain(EXIT_BAD, "%s: %s holds %s, %s:%s= wants %s", op, s->path,
				held(&s->array), o->name, hz_dtype_name(s->dtype_said),
				s->dtype_said == HZ_BF16 ? "uint16 or 'V2'" :
							   numpy_name(s->dtype_said));
	if ((o->flags & SIGNS) && s->array.dtype == HZ_S8)
		return convert(job, o, s);
	if (listed(o->dtypes, s->array.dtype) && (!s->array.raw || o->flags & RAW))
		return 0;
	if (s->array.dtype == HZ_U16 && listed(o->dtypes, HZ_BF16))
		return complain(EXIT_BAD, "%s: %s holds %s; if it is bfloat16, say %s:bf16=%s", op,
				s->path, held(&s->array), o->name, s->path);
	if (s->array.raw)
		return complain(EXIT_BAD, "%s: %s holds %s, %s must be one of %s", op, s->path,
				held(&s->array), o->name, o->dtypes);
	return complain(EXIT_BAD, "%s: %s holds %s (%s), %s must be one of %s", op, s->path,
			numpy_name(s->array.dtype), hz_dtype_name(s->array.dtype), o->name,
			o->dtypes);
}

/* ---- Outputs --------------------------------------------------------------------------------- */

static int open_outputs(struct job *job)
{
	const struct operand *o = job->op->operands;
	int status = 0;

	for (int i = 0; o[i].name && !status; i++) {
		if (o[i].flags & OUTPUT && job->slot[i].path)
			status = output_open(job->slot[i].path);
	}
	return status;
}

/* Prints an output that has no file: its elements as NAME=VALUE, the syntax of keys */
static void print_output(const struct operand *o, const struct npy *a)
{
	for (int64_t i = 0; i < a->count; i++)
		printf("%s=%.9g\n", o->name, load_element(a->data, i, a->dtype));
}

/* Writes all outputs, then renames them into place. */
static int write_outputs(struct job *job)
{
	const struct operand *o = job->op->operands;
	int at = 0;

	for (int i = 0; o[i].name; i++) {
		struct slot *s = &job->slot[i];

		if (!(o[i].flags & OUTPUT) || !in_use(job, i))
			continue;
		if (!s->path) {
			print_output(&o[i], &s->array);
			continue;
		}
		if (!npy_write(output_fd(at), s->array.dtype, s->array.ndim, s->array.shape,
			       s->array.data))
			return complain(EXIT_FAILURE, "%s: %s",
					strcmp(s->path, "-") ? s->path : "standard output",
					strerror(errno));
		if (output_close(at, s->path))
			return EXIT_FAILURE;
		at++;
	}
	return outputs_finish();
}

/* ---- The run --------------------------------------------------------------------------------- */

/* Reads the old contents of an output that is accumulated; 0 without a file */
static int read_old(struct job *job, const char *name, struct slot *s)
{
	const struct npy *a = &s->array;
	char why[NPY_WHY];
	struct npy old;
	int status;

	memset(a->data, 0, a->bytes);
	if (!s->path || strcmp(s->path, "-") == 0 || access(s->path, F_OK) != 0)
		return 0;
	status = npy_read(&old, s->path, why);
	if (status)
		return complain(status, "%s: %s", s->path, why);
	if (a->dtype == HZ_BF16 && old.dtype == HZ_U16)
		old.dtype = HZ_BF16;
	if (old.dtype != a->dtype || old.ndim != a->ndim ||
	    memcmp(old.shape, a->shape, (size_t)a->ndim * sizeof(*a->shape)) != 0)
		status = complain(EXIT_BAD,
				  "%s: %s, to which results are added, has another dtype or shape "
				  "than %s",
				  job->op->name, s->path, name);
	else
		memcpy(a->data, old.data, a->bytes);
	npy_free(&old);
	return status;
}

/* Allocates host memory for the outputs. */
static int make_outputs(struct job *job)
{
	const struct operand *o = job->op->operands;
	int status = job->op->outputs(job);

	for (int i = 0; o[i].name && !status; i++) {
		struct npy *a = &job->slot[i].array;

		if (!(o[i].flags & OUTPUT) || !in_use(job, i))
			continue;
		/* The dtype requested for the file; the library checks it. */
		if (job->slot[i].dtype_said)
			a->dtype = job->slot[i].dtype_said;
		if (!npy_size(a->ndim, a->shape, a->dtype, &a->count, &a->bytes))
			return complain(EXIT_BAD, "%s: the size of %s overflows", job->op->name,
					o[i].name);
		a->data = allocate(a->bytes);
		if (!a->data)
			status = complain(EXIT_FAILURE, "%s: there is not enough memory for %s",
					  job->op->name, o[i].name);
		else if (job->slot[i].read)
			status = read_old(job, o[i].name, &job->slot[i]);
	}
	return status;
}

static hz_tensor host_view(struct slot *s)
{
	return hz_tensor_nd(s->array.data, s->array.dtype, HZ_CPU, s->array.ndim, s->array.shape);
}

/* Uploads, calls, downloads; returns a library status. */
static int run_job(hz_context *ctx, struct job *job)
{
	const struct operand *o = job->op->operands;
	int status = HZ_OK;

	for (int i = 0; o[i].name && status == HZ_OK; i++) {
		const hz_tensor host = host_view(&job->slot[i]);

		if (in_use(job, i))
			status = to_device(ctx, &host, !(o[i].flags & OUTPUT) || job->slot[i].read,
					   &job->slot[i].view);
	}
	if (status == HZ_OK)
		status = job->op->call(ctx, job);
	for (int i = 0; o[i].name && status == HZ_OK; i++) {
		hz_tensor host = host_view(&job->slot[i]);

		if (o[i].flags & OUTPUT && in_use(job, i))
			status = from_device(ctx, &job->slot[i].view, &host);
	}
	for (int i = 0; o[i].name; i++) {
		free_device(ctx, &job->slot[i].view);
		job->slot[i].view = (hz_tensor){0};
	}
	return status;
}

/* Whether the device is open: neither -d nor the environment names one */
static bool device_open(int32_t device)
{
	const char *name = getenv("HURWITZ_DEVICE");

	return device == HZ_AUTO && (!name || !*name || strcmp(name, "auto") == 0);
}

/* What members of structs are called here: the command has no opts->, and what belongs to x of two
 * coded matrices has x_ before its name. */
static const struct rename {
	const char *from, *to;
} members[] = {
	{"opts->", ""}, {"want->", ""}, {"w->", ""}, {"x->", "x_"}, {NULL, NULL},
}, enumerators[] = {		/* those that are no word and no key by a part of their name */
	{"HZ_QUAT_NOCONJ", "conj=0"}, {"HZ_QUAT_BIAS_COLUMNS", "bias_of=columns"},
	{"HZ_LATTICE_CENTER", "offset=center"}, {NULL, NULL},
};

static const struct rename *renamed(const struct rename *r, const char *text, size_t length)
{
	for (; r->from; r++) {
		if (strncmp(r->from, text, length ? length : strlen(r->from)) == 0 &&
		    (!length || !r->from[length]))
			return r;
	}
	return NULL;
}

/* The word of a key for a value, or its word that is a name; NULL: none */
static const char *word_of(const struct key *k, const char *name, int64_t value)
{
	for (const struct word *w = k->kind == KEY_WORD ? k->words : NULL; w && w->name; w++) {
		if (name ? strcmp(w->name, name) == 0 : w->value == value)
			return w->name;
	}
	return NULL;
}

/* Writes an enumerator as the word or the key that the end of its name is: leaky, rotation=1. */
static bool put_enumerator(const struct op *op, const char *from, size_t length, char *to,
			   size_t bytes)
{
	const struct rename *const r = renamed(enumerators, from, length);
	char name[64];

	if (r)
		return snprintf(to, bytes, "%s", r->to) > 0;
	if (length >= sizeof(name))
		return false;
	for (size_t i = 0; i < length; i++)
		name[i] = (char)tolower((unsigned char)from[i]);
	name[length] = '\0';
	for (const char *end = strchr(name, '_'); end; end = strchr(end, '_')) {
		const struct key *k;

		end++;
		for (int i = 0; (k = key_at(op, i)) != NULL; i++) {
			if (word_of(k, end, 0))
				return snprintf(to, bytes, "%s", end) > 0;
			if (k->words == switch_words && strcmp(k->name, end) == 0)
				return snprintf(to, bytes, "%s=1", end) > 0;
		}
	}
	return false;
}

/* Writes "KEY is N" as "KEY is WORD", where from is at KEY; its length, 0: it is not that */
static size_t put_value(const struct op *op, const char *from, char *to, size_t bytes)
{
	const size_t length = strspn(from, "abcdefghijklmnopqrstuvwxyz_0123456789");
	char name[64], *end;
	const char *word;
	long long value;
	int i;

	if (!length || length >= sizeof(name) || strncmp(from + length, " is ", 4) != 0)
		return 0;
	memcpy(name, from, length);
	name[length] = '\0';
	value = strtoll(from + length + 4, &end, 10);
	i = end > from + length + 4 ? key_index(op, name) : -1;
	word = i >= 0 ? word_of(key_at(op, i), NULL, value) : NULL;
	if (!word)
		return 0;
	snprintf(to, bytes, "%s is %s", name, word);
	return (size_t)(end - from);
}

/* Writes an error message of the library in the command's terms: keys for members of structs,
 * words for enumerators and their numbers. */
static void in_terms(const struct op *op, char *to, size_t bytes, const char *from)
{
	size_t n = 0;
	bool begins = true;

	to[0] = '\0';
	while (*from && n + 3 < bytes) {
		const struct rename *const r = begins ? renamed(members, from, 0) : NULL;
		const size_t length = strspn(from, "ABCDEFGHIJKLMNOPQRSTUVWXYZ_0123456789");
		size_t used = 0;

		if (r) {
			snprintf(to + n, bytes - n, "%s", r->to);
			from += strlen(r->from);
			n += strlen(to + n);
		}
		if (begins && !r && strncmp(from, "HZ_", 3) == 0 &&
		    put_enumerator(op, from, length, to + n, bytes - n))
			used = length;
		else if (begins)
			used = put_value(op, from, to + n, bytes - n);
		if (used) {
			from += used;
			n += strlen(to + n);
			begins = false;
			continue;
		}
		begins = !isalnum((unsigned char)*from) && *from != '_';
		to[n++] = *from++;
		to[n] = '\0';
	}
}

int complain_library(const struct job *job, int status, const char *message)
{
	char sentence[1024];

	in_terms(job->op, sentence, sizeof(sentence), message);
	return complain(exit_status(status), "%s", sentence);
}

/* Prints the library's error message in the command's terms: keys, and an operand that is missing,
 * or has another name there. */
static int refused(const struct job *job, int status, const char *message)
{
	const struct operand *o = job->op->operands;
	char sentence[1024];
	const char *what, *op;

	in_terms(job->op, sentence, sizeof(sentence), message);
	op = what = strstr(sentence, ": ");
	for (int i = 0; what && o[i].name; i++) {
		const char *name = o[i].other ? o[i].other : o[i].name;
		const size_t length = strlen(name);
		const char *rest;

		if (strncmp(what + 2, name, length) != 0)
			continue;
		rest = what + 2 + length;
		if (!job->slot[i].path && strncmp(rest, " is NULL", 8) == 0)
			return complain(EXIT_BAD, "%s: the operand %s= is missing", job->op->name,
					o[i].name);
		if (job->slot[i].path && (*rest == '.' || *rest == ' '))
			return complain(exit_status(status), "%s: %s%s", job->op->name, o[i].name,
					rest);
	}
	if (!op)
		return complain(exit_status(status), "%s", sentence);
	return complain(exit_status(status), "%.*s: %s", (int)(op - sentence), sentence, what + 2);
}

/* Opens a context and runs the job; falls back to the CPU for what the GPU does not support, if the
 * device is open. */
static int compute(struct job *job, int32_t device, int32_t threads)
{
	hz_context *ctx = NULL;
	int status = open_context(&ctx, device, threads, HZ_ISA_AUTO);

	if (status)
		return status;
	/* A GPU that has no matching device code is not the arguments' fault. */
	if (hz_prepare(ctx) != HZ_OK) {
		status = complain(EXIT_FAILURE, "%s", hz_errmsg(ctx));
	} else {
		status = run_job(ctx, job);
		if (status == HZ_ENOTSUP && hz_device(ctx) != HZ_CPU && device_open(device)) {
			hz_close(ctx);
			return compute(job, HZ_CPU, threads);
		}
		if (status)
			status = refused(job, status, hz_errmsg(ctx));
	}
	hz_close(ctx);
	return status;
}

static int run_op(struct job *job, int32_t device, int32_t threads)
{
	const struct operand *o = job->op->operands;
	int status = check_operands(job);

	for (int i = 0; o[i].name && !status; i++) {
		if (job->slot[i].path && !(o[i].flags & OUTPUT))
			status = read_input(job, &o[i], &job->slot[i]);
	}
	if (!status)
		status = make_outputs(job);
	if (!status)
		status = open_outputs(job);
	if (!status)
		status = compute(job, device, threads);
	if (!status)
		status = write_outputs(job);
	outputs_drop();
	for (int i = 0; o[i].name; i++)
		npy_free(&job->slot[i].array);
	return status;
}

int verb_run(int argc, char **argv)
{
	static const struct option options[] = {
		{"device", required_argument, NULL, 'd'}, {"threads", required_argument, NULL, 't'},
		{"verbose", no_argument, NULL, 'v'}, {"help", no_argument, NULL, 'h'},
		{NULL, 0, NULL, 0},
	};
	const char *verbose = NULL;
	struct job job = {0};
	int32_t device = HZ_AUTO;
	int32_t threads = 0;
	bool help = false;
	int c, status;

	while ((c = next_option(argc, argv, "run", "d:t:vh", options)) != -1) {
		switch (c) {
		case 'd':
			if (parse_device("run", optarg, &device))
				return EXIT_BAD;
			break;
		case 't':
			if (parse_threads("run", optarg, &threads))
				return EXIT_BAD;
			break;
		case 'v':
			verbose = verbose ? "2" : "1";
			break;
		case 'h':
			help = true;
			break;
		default:
			return EXIT_BAD;
		}
	}
	if (verbose && setenv("HURWITZ_VERBOSE", verbose, 1) != 0)
		return complain(EXIT_FAILURE, "run: no memory");
	if (optind == argc && help) {
		help_all();
		return EXIT_SUCCESS;
	}
	if (optind == argc)
		return complain(EXIT_BAD, "run: no primitive is named; try 'hurwitz run --help'");
	for (size_t i = 0; i < OPS; i++) {
		if (strcmp(ops[i]->name, argv[optind]) == 0)
			job.op = ops[i];
	}
	if (!job.op)
		return complain(EXIT_BAD,
				"run: there is no primitive '%s'; try 'hurwitz run --help'",
				argv[optind]);
	if (help) {
		help_op(job.op);
		return EXIT_SUCCESS;
	}
	for (int i = optind + 1; i < argc; i++) {
		status = parse_argument(&job, argv[i]);
		if (status)
			return status;
	}
	return run_op(&job, device, threads);
}
