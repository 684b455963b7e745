/*
 * model.h - files of named tensors: .safetensors and .gguf, untrusted, mapped
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#ifndef MODEL_H
#define MODEL_H

#include "tools/core/npy.h"

#define MODEL_DIMS 8

/* A compressed layer: what the entry "hurwitz" of __metadata__ says of a tensor of bytes */
struct model_layer {
	char *format;		/* NULL: the tensor is none */
	char *dtype;		/* of the weights: "F32", "F16", "BF16" */
	int64_t shape[2];	/* of the weights */
};

struct model_tensor {
	char *name;		/* UTF-8, of at least one byte */
	const char *type;	/* the file's name of the element type: "BF16", "Q4_K" */
	int dtype;		/* the dtype that model_array() gives; 0: none, it cannot be read */
	int ndim;
	int64_t shape[MODEL_DIMS];	/* the last dimension is contiguous */
	const unsigned char *data;
	size_t bytes;
	struct model_layer layer;
};

struct model_text {
	char *key, *value;
};

struct model {
	struct model_tensor *tensor;	/* in the order of the file's table */
	int64_t count;
	struct model_text *text;	/* of .safetensors: __metadata__ without "hurwitz" */
	int64_t texts;
	bool gguf;
	void *map;
	size_t map_bytes;
};

/*
 * Maps a file and reads its table: .gguf, if that is allowed and the file begins with "GGUF",
 * otherwise .safetensors. Every tensor lies inside the file, none overlaps another, and no two have
 * one name. Returns 0, or an exit status with a message in why, which continues "FILE: "; *m is
 * then empty.
 */
int model_open(struct model *m, const char *path, bool gguf, char why[NPY_WHY]);

/* The same, of either kind, from memory, which stays in use until model_close() */
int model_parse(struct model *m, const void *p, size_t bytes, char why[NPY_WHY]);

void model_close(struct model *m);

/* The tensor of that name, or NULL */
struct model_tensor *model_find(const struct model *m, const char *name);

/* Copies a tensor to an array; GGUF blocks are dequantized to f32. Errors as of model_open() */
int model_array(const struct model_tensor *t, struct npy *a, char why[NPY_WHY]);

/* Reads FILE.npy ("-": standard input), FILE.safetensors:TENSOR or FILE.gguf:TENSOR. */
int array_read(struct npy *a, const char *path, char why[NPY_WHY]);

/* The length of FILE in FILE.safetensors:TENSOR or FILE.gguf:TENSOR; 0 if path is neither */
size_t model_path(const char *path);

/* ---- For the readers ------------------------------------------------------------------------- */

/* Formats a message without control characters; returns EXIT_BAD. */
int model_refuse(char why[NPY_WHY], const char *format, ...)
	__attribute__((format(printf, 2, 3)));

int model_no_memory(char why[NPY_WHY]);

/* The bytes of a tensor whose blocks of so many elements along the last dimension have so many
 * bits, with a message if they overflow or are no whole number of blocks and bytes */
int model_bytes(struct model_tensor *t, int block, int bits, char why[NPY_WHY]);

/* Checks that no two tensors have one name, and none overlaps another; with dense set also that
 * they fill size bytes from begin without gaps. */
int model_check(const struct model *m, const unsigned char *begin, size_t size, bool dense,
		char why[NPY_WHY]);

int safetensors_parse(struct model *m, const unsigned char *p, size_t bytes, char why[NPY_WHY]);
int gguf_parse(struct model *m, const unsigned char *p, size_t bytes, char why[NPY_WHY]);

/* Dequantizes to f32. */
void gguf_dequantize(const struct model_tensor *t, float *y);

/*
 * The header of a .safetensors file with these tensors and texts, from its length on, padded with
 * blanks to a multiple of 64 bytes and to at least that many; *bytes: its size. Data follow in the
 * order of the tensors. NULL without memory. free() releases it.
 */
char *safetensors_header(const struct model *m, size_t least, size_t *bytes);

/* Names of tensors in messages: not longer than this, so that the sentence fits */
#define MODEL_NAME "%.90s"

#endif
