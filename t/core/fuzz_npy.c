/*
 * fuzz_npy.c - a fuzz target for the reader of .npy files: what it accepts, it can write and read
 * again
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#define FUZZ_NAME "npy"

#include "tools/core/npy.c"

#include "t/core/fuzz.h"

void *allocate(size_t bytes)
{
	/* Exact sizes, so that a sanitizer finds an access beyond the end */
	return bytes > PTRDIFF_MAX ? NULL : malloc(bytes ? bytes : 1);
}

static bool same_header(const struct npy *a, const struct npy *b)
{
	return a->dtype == b->dtype && a->ndim == b->ndim && a->count == b->count &&
	       a->bytes == b->bytes &&
	       memcmp(a->shape, b->shape, (size_t)a->ndim * sizeof(*a->shape)) == 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static int fd = -1;
	char why[NPY_WHY] = "", again_why[NPY_WHY];
	struct npy a, again;
	const int status = npy_read_memory(&a, data, size, why);

	if (status) {
		fuzz_must(!a.data && strlen(why) > 0 && strlen(why) < NPY_WHY, "npy_read_memory",
			  "an error without a message");
		fuzz_must(strchr(why, '\n') == NULL, "npy_read_memory", "a message of two lines");
		return 0;
	}
	/* Writing and reading again gives the same array. */
	fuzz_must(a.ndim >= 0 && a.ndim <= HZ_MAXDIM &&
		  a.bytes == (size_t)a.count * hz_dtype_size(a.dtype) && a.bytes <= size,
		  "npy_read_memory", "sizes that do not agree");
	if (fd < 0)
		fd = fileno(tmpfile());
	fuzz_must(ftruncate(fd, 0) == 0 && lseek(fd, 0, SEEK_SET) == 0 &&
		  npy_write(fd, a.dtype, a.ndim, a.shape, a.data) && lseek(fd, 0, SEEK_SET) == 0,
		  "npy_write", "what was read cannot be written");
	{
		struct source s = {.fd = fd, .why = again_why};

		/* As from a pipe, whose size is not known */
		fuzz_must(read_source(&s, &again) == 0, "npy_write", again_why);
	}
	fuzz_must(same_header(&a, &again), "npy_write", "another shape or dtype when read again");
	fuzz_must(a.bytes == 0 || memcmp(a.data, again.data, a.bytes) == 0, "npy_write",
		  "other data when read again");
	npy_free(&a);
	npy_free(&again);
	return 0;
}
