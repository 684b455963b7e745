/*
 * run.h - the description of a primitive for hurwitz run
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#ifndef RUN_H
#define RUN_H

#include "tools/core/npy.h"
#include "tools/core/tool.h"

enum {
	OUTPUT = 1,		/* written; otherwise read */
	OPTIONAL = 2,
	SIGNS = 4,		/* also accepts int8 of +1 and -1, converted to f32 */
	ONLY = 8,		/* an optional output that is computed only if it has a file */
	RAW = 16,		/* also accepts raw bytes, whose type a key tells the op */
	PRINTS = 32		/* an output beside what call() prints: no file is needed */
};

struct operand {
	const char *name;
	const char *other;	/* alias, or NULL */
	unsigned flags;
	const char *dtypes;	/* the library's dtypes: "f32 f16 bf16" */
	const char *shape;	/* for --help */
};

enum key_kind {
	KEY_WORD,		/* one of a list of words */
	KEY_INT,		/* low .. high */
	KEY_SEED,		/* 64 bits, signed or unsigned */
	KEY_NUMBER,		/* not 0, finite */
	KEY_REAL,		/* finite */
	KEY_LIST,		/* comma-separated integers, each low .. high */
	KEY_QUAT,		/* a finite number, or four comma-separated ones */
	KEY_TEXT,		/* any text; the op parses it */
};

struct word {
	const char *name;
	int value;
};

struct key {
	const char *name;
	enum key_kind kind;
	const struct word *words;
	int64_t low, high;
	const char *values;	/* for --help */
	const char *help;
};

#define OPERANDS_MAX 32
#define KEYS_MAX 40

struct value {
	bool given;
	int64_t n;		/* KEY_WORD, KEY_INT, KEY_SEED */
	double number;		/* KEY_NUMBER, KEY_REAL */
	int count;		/* KEY_LIST */
	int64_t list[HZ_MAXDIM];
	double quat[4];		/* KEY_QUAT: w, x, y, z */
	const char *text;	/* KEY_TEXT */
};

struct slot {
	const char *path;	/* NULL: not given */
	int dtype_said;		/* from x:bf16=FILE; 0: none */
	bool read;		/* an output that is accumulated: begins with its file's
				 * contents, or 0 without one */
	struct npy array;	/* inputs; for outputs dtype, ndim, shape and memory */
	hz_tensor view;		/* passed to the library */
};

struct op;

struct job {
	const struct op *op;
	struct value value[KEYS_MAX];
	struct slot slot[OPERANDS_MAX];
};

struct op {
	const char *name;
	const char *summary;
	const struct operand *operands; /* ends with a NULL name */
	const struct key *const *keys; /* tables that end with a NULL name; ends with NULL */
	int (*outputs)(struct job *job); /* sets shapes and dtypes; prints errors and returns the
					  * exit status */
	int (*call)(hz_context *ctx, struct job *job); /* a library status */
};

/* The value of a key; its `given` is false if absent */
const struct value *value_of(const struct job *job, const char *key);

/* The value of a key that is a word or an integer, or `absent` if not given */
int64_t value_or(const struct job *job, const char *key, int64_t absent);

struct slot *slot_of(struct job *job, const char *name);

/* The view of an operand, or NULL if absent */
hz_tensor *view_of(struct job *job, const char *name);

/* What a file holds, in NumPy's words: "uint8", "raw bytes ('V1')" */
const char *held(const struct npy *a);

/* complain() of an error message of the library, in the command's terms */
int complain_library(const struct job *job, int status, const char *message);

/* The dtype of an output, which messages call name: from out=, y:DTYPE=, or `absent` */
int output_dtype(struct job *job, struct slot *y, const char *name, int absent);

extern const struct word float_words[];		/* f32 f16 bf16 */
extern const struct word switch_words[];	/* 0 1 */

/* tools/hadamard/run.c: keys of a transform except axis=; the shape of pre and post */
extern const struct key rotation_keys[];
#define SIGNS_SHAPE "[N] or [block]; u8: packed, set = minus"

/* The options that a transform's keys give */
hz_hadamard_opts hadamard_opts(struct job *job);

/* Checks axis= against the operand, and makes the operand pre from seed=. */
int hadamard_common(struct job *job, int ndim, const int64_t *shape);

/* The codes of a byte of a dtype: 2 or 4 of the packed ones, else 1 */
int codes_per_byte(int dtype);

/* Packs the codes of q, a byte each as in files of ml_dtypes; name: the word of format= */
int pack_codes(const struct job *job, struct npy *q, int format, const char *name);

extern const struct op op_hadamard, op_hadamard_quantize, op_dequantize_hadamard;

/* tools/quat/run.c, shared with quat_layer */
extern const struct word order_words[], method_words[], precision_words[], activation_words[];
extern const struct key order_keys[];		/* order=wxyz|xyzw, a flag */

/* tools/lattice/run.c, shared with vlut */
extern const struct word policy_words[], lattice_preset_words[];
extern const struct key lattice_keys[];

/* The quantizer that the keys describe; a key with the prefix takes precedence. */
int lattice_of(struct job *job, const char *prefix, bool has_t, hz_lattice **lattice);

extern const struct op op_lattice_design, op_lattice_encode, op_lattice_decode, op_lattice_repack;

/* tools/vlut/run.c */
extern const struct op op_vlut_gemv, op_vlut_gemm, op_vlut_append, op_vlut_gemm2;

/* tools/linear/run.c */
extern const struct op op_linear_forward, op_linear_bwd, op_linear_dequantize;

/* tools/mhc/run.c */
extern const struct op op_mhc_gated_pre, op_mhc_gated_pre_bwd;
extern const struct op op_mhc_presets;
extern const struct op op_mhc_sinkhorn, op_mhc_sinkhorn_bwd, op_mhc_mix, op_mhc_mix_bwd, op_mhc_add,
	op_mhc_add_bwd, op_mhc_post, op_mhc_post_bwd, op_mhc_expand, op_mhc_expand_bwd,
	op_mhc_recompute, op_mhc_diagnose, op_mhc_init;

/* tools/mhc/run_coef.c */
extern const struct op op_mhc_weights, op_mhc_weights_bwd, op_mhc_pre, op_mhc_pre_bwd, op_mhc_head,
	op_mhc_head_bwd, op_mhc_post_pre, op_mhc_post_pre_bwd;

/* tools/qgemm/run.c */
extern const struct op op_quantize, op_dequantize, op_choose_qparams, op_qgemm, op_qlinear,
	op_qlinear_group;

/* tools/quat/run.c */
extern const struct op op_quat_mul, op_quat_mul_bwd, op_quat_dot, op_quat_axpy, op_quat_conj,
	op_quat_norm, op_quat_norm_bwd, op_quat_normalize, op_quat_normalize_bwd, op_quat_inverse,
	op_quat_inverse_bwd, op_quat_rotate, op_quat_rotate_bwd, op_quat_to_matrix,
	op_quat_to_matrix_bwd, op_quat_from_matrix, op_quat_from_matrix_bwd,
	op_quat_to_axis_angle, op_quat_from_axis_angle, op_quat_exp, op_quat_log, op_quat_slerp,
	op_quat_gemm;

/* tools/quat_layer/run.c */
extern const struct op op_quat_linear, op_quat_linear_bwd, op_quat_conv1d, op_quat_conv2d,
	op_quat_conv3d, op_quat_conv1d_bwd, op_quat_conv2d_bwd, op_quat_conv3d_bwd,
	op_quat_batchnorm, op_quat_batchnorm_bwd, op_quat_recurrent, op_quat_recurrent_bwd,
	op_quat_pool, op_quat_pool_bwd, op_quat_dropout, op_quat_init;

#endif
