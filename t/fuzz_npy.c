/*
 * fuzz_npy.c - a fuzz target for the reader of .npy files, and its replay without a fuzz engine
 *
 * SPDX-License-Identifier: BSD-2-Clause
 *
 * "make fuzz" compiles it for libFuzzer. With -DHZ_FUZZ_REPLAY and any compiler it is a program
 * that takes files and reads each, which is what t/run.t does with good and bad ones.
 */
#include "../tools/npy.c"

#define HZ_DTYPE(constant, name, bytes) [constant] = bytes,
static const size_t dtype_bytes[] = {
#include "dtype.def"
};
#undef HZ_DTYPE

size_t hz_dtype_size(int dtype)
{
	return dtype_bytes[dtype];
}

void *allocate(size_t bytes)
{
	/* Exact, so that an access beyond the end is seen. */
	return bytes > PTRDIFF_MAX ? NULL : malloc(bytes ? bytes : 1);
}

static void must(bool condition, const char *what)
{
	if (condition)
		return;
	fprintf(stderr, "fuzz_npy: %s\n", what);
	abort();
}

static bool same_header(const struct npy *a, const struct npy *b)
{
	return a->dtype == b->dtype && a->ndim == b->ndim && a->count == b->count &&
	       a->bytes == b->bytes &&
	       memcmp(a->shape, b->shape, (size_t)a->ndim * sizeof(*a->shape)) == 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static int fd = -1;
	char why[NPY_WHY] = "", again_why[NPY_WHY];
	struct npy a, again;
	const int status = npy_read_memory(&a, data, size, why);

	if (status) {
		must(!a.data && strlen(why) > 0 && strlen(why) < NPY_WHY,
		     "a refusal without a sentence");
		must(strchr(why, '\n') == NULL, "a sentence of two lines");
		return 0;
	}
	/* What was read, when written, must be read again as it was. */
	must(a.ndim >= 0 && a.ndim <= HZ_MAXDIM &&
		     a.bytes == (size_t)a.count * hz_dtype_size(a.dtype) && a.bytes <= size,
	     "sizes that do not agree");
	if (fd < 0)
		fd = fileno(tmpfile());
	must(ftruncate(fd, 0) == 0 && lseek(fd, 0, SEEK_SET) == 0 &&
	     npy_write(fd, a.dtype, a.ndim, a.shape, a.data) && lseek(fd, 0, SEEK_SET) == 0,
	     "what was read cannot be written");
	{
		struct source s = {.fd = fd, .why = again_why};

		/* As from a pipe: of unknown size. */
		must(read_source(&s, &again) == 0, "what was written cannot be read");
	}
	must(same_header(&a, &again), "another shape or dtype when read again");
	must(a.bytes == 0 || memcmp(a.data, again.data, a.bytes) == 0,
	     "other data when read again");
	npy_free(&a);
	npy_free(&again);
	return 0;
}

#ifdef HZ_FUZZ_REPLAY

int main(int argc, char **argv)
{
	static uint8_t data[1 << 20];

	for (int i = 1; i < argc; i++) {
		FILE *in = fopen(argv[i], "rb");
		size_t n;

		if (!in) {
			perror(argv[i]);
			return 1;
		}
		n = fread(data, 1, sizeof(data), in);
		fclose(in);
		LLVMFuzzerTestOneInput(data, n);
	}
	printf("%d files\n", argc - 1);
	return 0;
}

#endif
