/*
 * npy.h - NumPy's .npy files: reading what may be hostile, writing what NumPy reads
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#ifndef NPY_H
#define NPY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "hurwitz.h"

/* An array in C order and in the byte order of this machine. */
struct npy {
	void *data;		/* from allocate(); NULL if it is empty */
	size_t bytes;
	int64_t count;
	int dtype;		/* HZ_F16 F32 F64 S8 U8 S16 U16 S32 U32 S64 U64 */
	int ndim;		/* 0 .. HZ_MAXDIM */
	int64_t shape[HZ_MAXDIM];
};

#define NPY_WHY 256	/* bytes of a sentence */

/*
 * Reads a file ("-": standard input). Versions 1 to 3, either byte order, C and Fortran order; the
 * data must end where the file ends. Returns 0, or the exit status with a sentence in why: 2 for a
 * file that is missing or not such a file, 1 if memory or a read failed. *a is then empty.
 */
int npy_read(struct npy *a, const char *path, char why[NPY_WHY]);

/* The same from memory. */
int npy_read_memory(struct npy *a, const void *p, size_t bytes, char why[NPY_WHY]);

void npy_free(struct npy *a);

/* The product of a shape in *count and its bytes in *bytes; false if either overflows. */
bool npy_size(int ndim, const int64_t *shape, int dtype, int64_t *count, size_t *bytes);

/*
 * Writes a file of version 1 in C order. dtypes that NumPy lacks are written as unsigned integers
 * of their size. False with errno on failure.
 */
bool npy_write(int fd, int dtype, int ndim, const int64_t *shape, const void *data);

#endif
