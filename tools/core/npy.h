/*
 * npy.h - NumPy's .npy files: reading untrusted files, writing what NumPy reads
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#ifndef NPY_H
#define NPY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "hurwitz.h"

/* An array in C order and in this machine's byte order */
struct npy {
	void *data;		/* from allocate(); NULL if empty */
	size_t bytes;
	int64_t count;
	int dtype;		/* HZ_F16 F32 F64 S8 U8 S16 U16 S32 U32 S64 U64 */
	char raw;		/* 0: numbers. 'V', 'f': bits of a type that NumPy lacks and whose
				 * name the file does not tell, as U8 or U16: '<V1', '<V2', '<f1' */
	int ndim;		/* 0 .. HZ_MAXDIM */
	int64_t shape[HZ_MAXDIM];
};

#define NPY_WHY 256	/* bytes of an error message */

/*
 * Reads a file ("-": standard input): versions 1 to 3, either byte order, C or Fortran order. The
 * data must end at the end of the file. Returns 0, or an exit status with a message in why: 2 if
 * the file is missing or invalid, 1 if memory or a read failed. *a is then empty.
 */
int npy_read(struct npy *a, const char *path, char why[NPY_WHY]);

/* The same from memory */
int npy_read_memory(struct npy *a, const void *p, size_t bytes, char why[NPY_WHY]);

void npy_free(struct npy *a);

/* The number of elements of a shape and its bytes; false if either overflows */
bool npy_size(int ndim, const int64_t *shape, int dtype, int64_t *count, size_t *bytes);

/* Writes n bytes to a file; false with errno on failure */
bool put_bytes(int fd, const void *p, size_t n);

/* Writes a version 1 file in C order. dtypes that NumPy lacks become unsigned integers of their
 * size. Returns false with errno on failure. */
bool npy_write(int fd, int dtype, int ndim, const int64_t *shape, const void *data);

#endif
