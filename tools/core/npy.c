/*
 * npy.c - NumPy's .npy files: reading untrusted files, writing what NumPy reads
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#include <config.h>

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tools/core/npy.h"
#include "tools/core/tool.h"

static const char magic[6] = {'\x93', 'N', 'U', 'M', 'P', 'Y'};

/* longest header accepted; NumPy itself evaluates at most 10000 bytes */
#define HEADER_MAX 65535

#define PIPE_STEP ((size_t)1 << 20)	/* first allocation for data whose size is not known */

/* Reads bytes from a file or from memory. */
struct source {
	int fd;			/* -1: from memory */
	const unsigned char *p;
	bool sized;		/* `left` is known */
	uint64_t left;
	char *why;
};

__attribute__((format(printf, 2, 3))) static int refuse(struct source *s, const char *format, ...)
{
	va_list ap;

	va_start(ap, format);
	vsnprintf(s->why, NPY_WHY, format, ap);
	va_end(ap);
	return EXIT_BAD;
}

static int failed(struct source *s, const char *what)
{
	refuse(s, "%s", what);
	return EXIT_FAILURE;
}

/* Reads up to n bytes; *got is less only at the end of the file. */
static int get(struct source *s, void *buffer, size_t n, size_t *got)
{
	*got = 0;
	if (s->fd < 0) {
		*got = n < s->left ? n : (size_t)s->left;
		if (*got)
			memcpy(buffer, s->p, *got);
		s->p += *got;
		s->left -= *got;
		return 0;
	}
	while (*got < n) {
		const size_t want = n - *got < (size_t)1 << 30 ? n - *got : (size_t)1 << 30;
		const ssize_t r = read(s->fd, (char *)buffer + *got, want);

		if (r < 0 && errno == EINTR)
			continue;
		if (r < 0 && errno == EISDIR)
			return refuse(s, "is a directory");
		if (r < 0)
			return failed(s, strerror(errno));
		if (r == 0)
			break;
		*got += (size_t)r;
		s->left -= s->sized && s->left >= (uint64_t)r ? (uint64_t)r : 0;
	}
	return 0;
}

/* ---- The header: a Python dictionary --------------------------------------------------------- */

struct header {
	int dtype;
	char raw;
	bool swapped;		/* opposite byte order */
	bool fortran;
	int ndim;
	int64_t shape[HZ_MAXDIM];
	bool has_descr, has_order, has_shape;
};

/* A position in the text of the header */
struct text {
	struct source *s;
	const char *p, *end;
};

static void skip_blanks(struct text *t)
{
	while (t->p < t->end && (*t->p == ' ' || *t->p == '\t' || *t->p == '\n' || *t->p == '\r'))
		t->p++;
}

/* Skips blanks; consumes c if it is next. */
static bool take(struct text *t, char c)
{
	skip_blanks(t);
	if (t->p == t->end || *t->p != c)
		return false;
	t->p++;
	return true;
}

static bool take_word(struct text *t, const char *word)
{
	const size_t n = strlen(word);

	skip_blanks(t);
	if ((size_t)(t->end - t->p) < n || memcmp(t->p, word, n) != 0)
		return false;
	t->p += n;
	return true;
}

/* A string in single or double quotes without escapes; false if there is none or it does not fit */
static bool take_string(struct text *t, char *value, size_t size)
{
	const char *start;
	char quote;
	size_t n;

	skip_blanks(t);
	if (t->p == t->end || (*t->p != '\'' && *t->p != '"'))
		return false;
	quote = *t->p;
	start = t->p + 1;
	for (n = 0; start + n < t->end && start[n] != quote && start[n] != '\\'; n++)
		;
	if (start + n == t->end || start[n] != quote || n >= size)
		return false;
	memcpy(value, start, n);
	value[n] = '\0';
	t->p = start + n + 1;
	return true;
}

static const struct {
	const char *code;
	int dtype;
	char raw;
} descrs[] = {
	{"f2", HZ_F16, 0}, {"f4", HZ_F32, 0}, {"f8", HZ_F64, 0}, {"i1", HZ_S8, 0},
	{"u1", HZ_U8, 0},  {"i2", HZ_S16, 0}, {"u2", HZ_U16, 0}, {"i4", HZ_S32, 0},
	{"u4", HZ_U32, 0}, {"i8", HZ_S64, 0}, {"u8", HZ_U64, 0},
	/* The types of Python's ml_dtypes: bfloat16; float8_e4m3fn, float8_e8m0fnu and int4, one
	 * byte an element; float8_e5m2 */
	{"V2", HZ_U16, 'V'}, {"V1", HZ_U8, 'V'}, {"f1", HZ_U8, 'f'},
};

/* Names of unsupported NumPy types, by the first letter of descr */
static const struct {
	char kind;
	const char *name;
} kinds[] = {
	{'O', "Python objects"}, {'c', "complex numbers"}, {'?', "booleans"}, {'b', "booleans"},
	{'S', "strings"}, {'a', "strings"}, {'U', "strings"}, {'T', "strings"}, {'M', "dates"},
	{'m', "times"}, {'V', "structures or raw bytes"},
};

static bool little_endian(void)
{
	const uint16_t one = 1;
	unsigned char first;

	memcpy(&first, &one, 1);
	return first == 1;
}

/* Copies a name from the file into a message; unprintable characters become '?'. */
static const char *printable(const char *s, char *to, size_t size)
{
	size_t i;

	for (i = 0; s[i] && i + 1 < size; i++)
		to[i] = s[i] >= 0x20 && s[i] < 0x7f ? s[i] : '?';
	to[i] = '\0';
	return to;
}

static int parse_descr(struct text *t, struct header *h)
{
	char descr[64], clean[64];
	const char *code = descr;
	char order = '=';

	skip_blanks(t);
	if (t->p < t->end && (*t->p == '[' || *t->p == '('))
		return refuse(t->s, "holds structures; arrays of numbers are read");
	if (!take_string(t, descr, sizeof(descr)))
		return refuse(t->s, "is not a .npy file: its dtype cannot be read");
	if (*code && strchr("<>=|", *code))
		order = *code++;
	for (size_t i = 0; i < sizeof(descrs) / sizeof(*descrs); i++) {
		if (strcmp(code, descrs[i].code) == 0) {
			h->dtype = descrs[i].dtype;
			h->raw = descrs[i].raw;
		}
	}
	for (size_t i = 0; i < sizeof(kinds) / sizeof(*kinds); i++) {
		if (!h->dtype && *code == kinds[i].kind)
			return refuse(t->s, "holds %s ('%s'); arrays of numbers are read",
				      kinds[i].name, printable(descr, clean, sizeof(clean)));
	}
	if (!h->dtype || (order == '|' && !h->raw && hz_dtype_size(h->dtype) > 1))
		return refuse(t->s, "has the dtype '%s', which is not read",
			      printable(descr, clean, sizeof(clean)));
	h->swapped = order == (little_endian() ? '>' : '<');
	return 0;
}

static int parse_shape(struct text *t, struct header *h)
{
	int ndim = 0;

	if (!take(t, '('))
		return refuse(t->s, "is not a .npy file: its shape is no tuple");
	while (!take(t, ')')) {
		int64_t n = 0;

		if (take(t, '-'))
			return refuse(t->s, "has a negative size in its shape");
		if (t->p == t->end || *t->p < '0' || *t->p > '9')
			return refuse(t->s, "is not a .npy file: its shape cannot be read");
		for (; t->p < t->end && *t->p >= '0' && *t->p <= '9'; t->p++) {
			if (__builtin_mul_overflow(n, 10, &n) ||
			    __builtin_add_overflow(n, *t->p - '0', &n))
				return refuse(t->s,
					      "has a size in its shape that is beyond 64 bits");
		}
		if (t->p < t->end && *t->p == 'L')	/* suffix of long integers in Python 2 */
			t->p++;
		if (ndim < HZ_MAXDIM)
			h->shape[ndim] = n;
		ndim++;
		if (ndim > 1 && take(t, ')'))	/* (3) is a number, (3,) a tuple */
			break;
		if (!take(t, ','))
			return refuse(t->s, "is not a .npy file: its shape cannot be read");
	}
	if (ndim > HZ_MAXDIM)
		return refuse(t->s, "has %d dimensions, at most %d are read", ndim, HZ_MAXDIM);
	h->ndim = ndim;
	return 0;
}

/*
 * {'descr': '<f4', 'fortran_order': False, 'shape': (3, 4), } with keys in any order, then blanks
 */
static int parse_header(struct source *s, const char *p, size_t n, struct header *h)
{
	struct text t = {.s = s, .p = p, .end = p + n};
	char key[32];
	int status;

	memset(h, 0, sizeof(*h));
	if (!take(&t, '{'))
		return refuse(s, "is not a .npy file: its header is no dictionary");
	while (!take(&t, '}')) {
		if (!take_string(&t, key, sizeof(key)) || !take(&t, ':'))
			return refuse(s, "is not a .npy file: its header cannot be read");
		if (strcmp(key, "descr") == 0 && !h->has_descr) {
			h->has_descr = true;
			status = parse_descr(&t, h);
			if (status)
				return status;
		} else if (strcmp(key, "fortran_order") == 0 && !h->has_order) {
			h->has_order = true;
			h->fortran = take_word(&t, "True");
			if (!h->fortran && !take_word(&t, "False"))
				return refuse(s, "is not a .npy file: fortran_order is neither "
						 "True nor False");
		} else if (strcmp(key, "shape") == 0 && !h->has_shape) {
			h->has_shape = true;
			status = parse_shape(&t, h);
			if (status)
				return status;
		} else {
			return refuse(
				s, "is not a .npy file: its header has unknown or repeated keys");
		}
		if (take(&t, '}'))
			break;
		if (!take(&t, ','))
			return refuse(s, "is not a .npy file: its header cannot be read");
	}
	skip_blanks(&t);
	if (t.p != t.end)
		return refuse(s,
			      "is not a .npy file: its header has something after the dictionary");
	if (!h->has_descr || !h->has_order || !h->has_shape)
		return refuse(s,
			      "is not a .npy file: its header lacks descr, fortran_order or shape");
	return 0;
}

/* ---- The data -------------------------------------------------------------------------------- */

bool npy_size(int ndim, const int64_t *shape, int dtype, int64_t *count, size_t *bytes)
{
	int64_t n = 1;
	bool empty = false;

	/* The other dimensions must fit even if one is 0: views compute strides from them. */
	for (int i = 0; i < ndim; i++) {
		if (shape[i] == 0)
			empty = true;
		else if (shape[i] < 0 || __builtin_mul_overflow(n, shape[i], &n))
			return false;
	}
	if (__builtin_mul_overflow((size_t)n, hz_dtype_size(dtype), bytes) || n < 0 ||
	    (uint64_t)n > SIZE_MAX || *bytes > PTRDIFF_MAX / 2)
		return false;
	*count = empty ? 0 : n;
	*bytes = empty ? 0 : *bytes;
	return true;
}

static void swap_bytes(unsigned char *p, int64_t count, size_t size)
{
	for (int64_t i = 0; i < count; i++, p += size) {
		for (size_t j = 0; j < size / 2; j++) {
			const unsigned char byte = p[j];

			p[j] = p[size - 1 - j];
			p[size - 1 - j] = byte;
		}
	}
}

/* Copies from Fortran order to C order. */
static void from_fortran(unsigned char *to, const unsigned char *from, const struct npy *a)
{
	const size_t size = hz_dtype_size(a->dtype);
	int64_t index[HZ_MAXDIM] = {0}, stride[HZ_MAXDIM], at = 0, step = 1;

	for (int d = 0; d < a->ndim; d++) {
		stride[d] = step;
		step *= a->shape[d];
	}
	for (int64_t i = 0; i < a->count; i++) {
		memcpy(to + (size_t)i * size, from + (size_t)at * size, size);
		for (int d = a->ndim - 1; d >= 0; d--) {
			at += stride[d];
			if (++index[d] < a->shape[d])
				break;
			at -= stride[d] * a->shape[d];
			index[d] = 0;
		}
	}
}

/* Reads a->bytes bytes. Memory grows with the data unless the file's size proves it. */
static int read_data(struct source *s, struct npy *a)
{
	size_t capacity = s->sized || a->bytes < PIPE_STEP ? a->bytes : PIPE_STEP, have = 0, got;
	int status;

	a->data = allocate(capacity);
	if (!a->data)
		return failed(s, "there is not enough memory for it");
	for (;;) {
		status = get(s, (char *)a->data + have, capacity - have, &got);
		if (status)
			return status;
		have += got;
		if (have < capacity)
			return refuse(s, "is truncated: %zu bytes of data, the shape needs %zu",
				      have, a->bytes);
		if (capacity == a->bytes)
			return 0;
		capacity = a->bytes / 2 > capacity ? 2 * capacity : a->bytes;
		{
			void *larger = allocate(capacity);

			if (!larger)
				return failed(s, "there is not enough memory for it");
			memcpy(larger, a->data, have);
			free(a->data);
			a->data = larger;
		}
	}
}

static int read_array(struct source *s, struct npy *a)
{
	unsigned char head[12];
	char *text;
	struct header h;
	size_t got, length, trailing;
	int status;

	status = get(s, head, 10, &got);
	if (status)
		return status;
	if (got == 0)
		return refuse(s, "is empty");
	if (got < sizeof(magic) || memcmp(head, magic, sizeof(magic)) != 0)
		return refuse(s, "is not a .npy file: it does not begin with \\x93NUMPY");
	if (got < 10)
		return refuse(s, "is truncated in its header");
	if (head[6] < 1 || head[6] > 3 || head[7] != 0)
		return refuse(s, "is a .npy file of version %d.%d; 1.0, 2.0 and 3.0 are read",
			      head[6], head[7]);
	length = head[8] | (size_t)head[9] << 8;
	if (head[6] > 1) {
		status = get(s, head + 10, 2, &got);
		if (status)
			return status;
		if (got < 2)
			return refuse(s, "is truncated in its header");
		length |= (size_t)head[10] << 16 | (size_t)head[11] << 24;
	}
	if (s->sized && length > s->left)
		return refuse(s, "is truncated: a header of %zu bytes is announced, %llu follow",
			      length, (unsigned long long)s->left);
	if (length > HEADER_MAX)
		return refuse(s, "has a header of %zu bytes, at most %d are read", length,
			      HEADER_MAX);
	text = allocate(length);
	if (!text)
		return failed(s, "there is not enough memory for it");
	status = get(s, text, length, &got);
	if (!status && got < length)
		status = refuse(s, "is truncated in its header");
	if (!status)
		status = parse_header(s, text, length, &h);
	free(text);
	if (status)
		return status;

	a->dtype = h.dtype;
	a->raw = h.raw;
	a->ndim = h.ndim;
	memcpy(a->shape, h.shape, sizeof(a->shape));
	if (!npy_size(a->ndim, a->shape, a->dtype, &a->count, &a->bytes))
		return refuse(s, "has a shape whose size overflows");
	if (s->sized && a->bytes > s->left)
		return refuse(s, "is truncated: %llu bytes of data, the shape needs %zu",
			      (unsigned long long)s->left, a->bytes);
	if (s->sized && a->bytes < s->left)
		return refuse(s, "has %llu bytes after its data",
			      (unsigned long long)(s->left - a->bytes));
	if (a->bytes) {
		status = read_data(s, a);
		if (status)
			return status;
	}
	/* Detects data after the end in a pipe, or in a file that grew meanwhile. */
	status = get(s, head, 1, &trailing);
	if (status)
		return status;
	if (trailing)
		return refuse(s, "has bytes after its data");
	if (h.swapped)
		swap_bytes(a->data, a->count, hz_dtype_size(a->dtype));
	if (h.fortran && a->ndim > 1 && a->bytes) {
		void *data = allocate(a->bytes);

		if (!data)
			return failed(s, "there is not enough memory for it");
		from_fortran(data, a->data, a);
		free(a->data);
		a->data = data;
	}
	return 0;
}

void npy_free(struct npy *a)
{
	free(a->data);
	memset(a, 0, sizeof(*a));
}

static int read_source(struct source *s, struct npy *a)
{
	int status;

	memset(a, 0, sizeof(*a));
	status = read_array(s, a);
	if (status)
		npy_free(a);
	return status;
}

int npy_read_memory(struct npy *a, const void *p, size_t bytes, char why[NPY_WHY])
{
	struct source s = {.fd = -1, .p = p, .sized = true, .left = bytes, .why = why};

	return read_source(&s, a);
}

int npy_read(struct npy *a, const char *path, char why[NPY_WHY])
{
	const bool standard = strcmp(path, "-") == 0;
	struct source s = {.fd = STDIN_FILENO, .why = why};
	struct stat st;
	int status;

	memset(a, 0, sizeof(*a));
	if (standard && isatty(STDIN_FILENO))
		return refuse(&s, "is a terminal; an array is not typed in");
	if (!standard)
		s.fd = open(path, O_RDONLY | O_CLOEXEC);
	if (s.fd < 0)
		return refuse(&s, "%s", strerror(errno));
	if (fstat(s.fd, &st) == 0 && S_ISREG(st.st_mode)) {
		const off_t at = standard ? lseek(s.fd, 0, SEEK_CUR) : 0;

		s.sized = at >= 0 && at <= st.st_size;
		s.left = s.sized ? (uint64_t)(st.st_size - at) : 0;
	}
	status = read_source(&s, a);
	if (!standard)
		close(s.fd);
	return status;
}

/* ---- Writing --------------------------------------------------------------------------------- */

bool put_bytes(int fd, const void *p, size_t n)
{
	while (n > 0) {
		const ssize_t w = write(fd, p, n < (size_t)1 << 30 ? n : (size_t)1 << 30);

		if (w < 0 && errno == EINTR)
			continue;
		if (w < 0)
			return false;
		p = (const char *)p + w;
		n -= (size_t)w;
	}
	return true;
}

bool npy_write(int fd, int dtype, int ndim, const int64_t *shape, const void *data)
{
	static const char *const by_size[] = {[1] = "u1", [2] = "u2", [4] = "u4", [8] = "u8"};
	const size_t size = hz_dtype_size(dtype);
	char text[512]; /* at most 60 bytes, 22 for each of 6 dimensions, and 63 blanks */
	const char *code = by_size[size];
	int64_t count;
	size_t bytes;
	int n, end;

	for (size_t i = 0; i < sizeof(descrs) / sizeof(*descrs); i++) {
		if (descrs[i].dtype == dtype && !descrs[i].raw)
			code = descrs[i].code;
	}
	if (!npy_size(ndim, shape, dtype, &count, &bytes)) {
		errno = EOVERFLOW;
		return false;
	}
	memcpy(text, magic, sizeof(magic));
	memcpy(text + 6, "\1\0", 2);
	n = 10 + sprintf(text + 10, "{'descr': '%c%s', 'fortran_order': False, 'shape': (",
			 size == 1 ? '|' : little_endian() ? '<' : '>', code);
	for (int i = 0; i < ndim; i++)
		n += sprintf(text + n, "%s%lld", i ? ", " : "", (long long)shape[i]);
	n += sprintf(text + n, "%s), }", ndim == 1 ? "," : "");
	/* As NumPy requires, data begin at a multiple of 64, after blanks and a newline. */
	end = (n + 1 + 63) / 64 * 64;
	memset(text + n, ' ', (size_t)(end - n));
	text[end - 1] = '\n';
	text[8] = (char)((end - 10) & 255);
	text[9] = (char)((end - 10) >> 8);
	return put_bytes(fd, text, (size_t)end) && put_bytes(fd, data, bytes);
}
