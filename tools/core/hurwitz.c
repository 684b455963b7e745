/*
 * hurwitz.c - the command line: verbs, messages, shared functions
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#include <config.h>

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "tools/core/tool.h"

static const struct verb {
	const char *name;
	int (*run)(int argc, char **argv);
	const char *summary;
} verbs[] = {
	{"info", verb_info, "what the library found on this machine, and what it will use"},
	{"check", verb_check, "test the library here and now against definitions"},
	{"bench", verb_bench, "measure each primitive against this machine's own roofline"},
	{"demo", verb_demo, "train a network, quantize it and test it; or a chapter on a family"},
	{"run", verb_run, "apply a primitive to arrays in files"},
	{"inspect", verb_inspect, "list the tensors of a .safetensors, .gguf or .npy file"},
	{"quantize", verb_quantize, "compress the matrices of a .safetensors file"},
	{"dequantize", verb_dequantize, "decompress the matrices of such a file"},
};

#define VERBS (sizeof(verbs) / sizeof(*verbs))

/* ---- Messages -------------------------------------------------------------------------------- */

static bool progress_shown;

/* Replaces control characters: what files are called, or hold, is not for the terminal to obey. */
static void one_line(char *text)
{
	for (; *text; text++) {
		if ((unsigned char)*text < 0x20 || *text == 0x7f)
			*text = '?';
	}
}

int complain(int status, const char *format, ...)
{
	char text[8192];	/* longer text is cut off */
	va_list ap;

	progress_clear();
	fflush(stdout);
	va_start(ap, format);
	vsnprintf(text, sizeof(text), format, ap);
	va_end(ap);
	one_line(text);
	fprintf(stderr, "hurwitz: %s\n", text);
	return status;
}

int next_option(int argc, char **argv, const char *verb, const char *shorts,
		const struct option *longs)
{
	/* A leading ':' makes getopt distinguish a missing argument from an unknown option. */
	char with_colon[64];
	const int at = optind ? optind : 1;
	int c;

	opterr = 0;
	snprintf(with_colon, sizeof(with_colon), ":%s", shorts);
	c = getopt_long(argc, argv, with_colon, longs, NULL);
	if (c == ':') {
		complain(EXIT_BAD, "%s: the option %s needs an argument", verb, argv[optind - 1]);
		return '?';
	}
	if (c == '?') {
		if (optopt && optopt < 128 && strchr(shorts, optopt) == NULL)
			complain(EXIT_BAD, "%s: there is no option -%c; try 'hurwitz %s --help'",
				 verb, optopt, verb);
		else
			complain(EXIT_BAD, "%s: the option %s is not known, not unique or takes no "
				 "argument; try 'hurwitz %s --help'", verb,
				 argv[optind - 1 >= at ? optind - 1 : at], verb);
	}
	return c;
}

const char *style(FILE *stream, enum style s)
{
	static const char *const code[] = {
		[PLAIN] = "\033[0m", [BOLD] = "\033[1m", [RED] = "\033[31m", [GREEN] = "\033[32m",
		[YELLOW] = "\033[33m",
	};
	const char *no_color = getenv("NO_COLOR");
	const char *term = getenv("TERM");

	if ((no_color && *no_color) || (term && strcmp(term, "dumb") == 0) ||
	    !isatty(fileno(stream)))
		return "";
	return code[s];
}

void progress(const char *format, ...)
{
	static double last;
	const double t = now();
	char text[256];
	va_list ap;

	if (!isatty(STDERR_FILENO) || (progress_shown && t - last < 0.1))
		return;
	last = t;
	progress_shown = true;
	va_start(ap, format);
	vsnprintf(text, sizeof(text), format, ap);
	va_end(ap);
	one_line(text);
	fprintf(stderr, "\r\033[K%s", text);
	fflush(stderr);
}

void progress_clear(void)
{
	if (!progress_shown)
		return;
	progress_shown = false;
	fputs("\r\033[K", stderr);
	fflush(stderr);
}

void print_padded(const char *text, int width)
{
	for (; *text; text++, width--)
		putchar((unsigned char)*text < 0x20 || *text == 0x7f ? '?' : *text);
	printf("%*s", width > 0 ? width : 0, "");
}

/* Characters of UTF-8 */
static int characters(const char *text)
{
	int n = 0;

	for (; *text; text++)
		n += ((unsigned char)*text & 0xc0) != 0x80 && n < 1000000;
	return n;
}

int name_column(int width, const char *name)
{
	const int n = characters(name);

	return n <= width ? width : n < 60 ? n : 60;
}

void print_name(const char *name, int width)
{
	const int n = characters(name);

	print_padded(name, 0);
	if (n > width)
		putchar('\n');
	printf("%*s", n > width ? width : width - n, "");
}

const char *open_reason(void)
{
	static const char *const heads[] = {"open: ", "cuda:0: "};
	const char *sentence = hz_open_errmsg();

	for (size_t i = 0; i < sizeof(heads) / sizeof(*heads); i++) {
		if (strncmp(sentence, heads[i], strlen(heads[i])) == 0)
			sentence += strlen(heads[i]);
	}
	return sentence;
}

/* ---- Arguments ------------------------------------------------------------------------------- */

bool parse_int(const char *s, int64_t low, int64_t high, int64_t *value)
{
	const char *digits = *s == '-' || *s == '+' ? s + 1 : s;
	const bool hex = digits[0] == '0' && (digits[1] == 'x' || digits[1] == 'X');
	char *end;
	long long v;

	/* strtoll() accepts leading blanks; numbers here have none. */
	if (*digits < '0' || *digits > '9')
		return false;
	errno = 0;
	v = strtoll(s, &end, hex ? 16 : 10);
	if (errno || end == s || *end || v < low || v > high)
		return false;
	*value = v;
	return true;
}

bool parse_number(const char *s, double *value)
{
	char *end;

	if (strchr("+-.0123456789", *s) == NULL || *s == '\0')
		return false;
	*value = strtod(s, &end);
	return end != s && *end == '\0' && isfinite(*value);
}

int parse_device(const char *verb, const char *name, int32_t *device)
{
	int64_t ordinal;

	if (strcmp(name, "auto") == 0)
		*device = HZ_AUTO;
	else if (strcmp(name, "cpu") == 0)
		*device = HZ_CPU;
	else if (strcmp(name, "cuda") == 0)
		*device = HZ_CUDA;
	else if (strncmp(name, "cuda:", 5) == 0 && parse_int(name + 5, 0, 9999, &ordinal))
		*device = HZ_CUDA + (int32_t)ordinal;
	else
		return complain(EXIT_BAD, "%s: the device '%s' is none of cpu, cuda, cuda:N, auto",
				verb, name);
	return 0;
}

int parse_threads(const char *verb, const char *text, int32_t *threads)
{
	int64_t n;

	if (!parse_int(text, 1, 1024, &n))
		return complain(EXIT_BAD, "%s: --threads=%s: the value must be an integer, 1 to "
				"1024", verb, text);
	*threads = (int32_t)n;
	return 0;
}

int exit_status(int status)
{
	switch (status) {
	case HZ_OK:
		return EXIT_SUCCESS;
	case HZ_EINVAL:
	case HZ_EDTYPE:
	case HZ_ESHAPE:
	case HZ_ESTRIDE:
	case HZ_EALIAS:
	case HZ_ENOTSUP:
		return EXIT_BAD;
	default:
		return EXIT_FAILURE;
	}
}

int open_context(hz_context **ctx, int32_t device, int32_t threads, int32_t isa)
{
	hz_options o = {.device = device, .threads = threads, .isa = isa};
	const int status = hz_open(ctx, &o);

	if (status == HZ_OK)
		return EXIT_SUCCESS;
	return complain(exit_status(status), "%s", hz_open_errmsg());
}

int to_device(hz_context *ctx, const hz_tensor *host, bool copy, hz_tensor *on)
{
	const int device = hz_device(ctx);
	void *p;
	int status;

	*on = *host;
	if (device == HZ_CPU)
		return HZ_OK;
	on->data = NULL;
	status = hz_alloc(ctx, &p, (size_t)hz_tensor_bytes(host), device);
	if (status)
		return status;
	on->data = p;
	on->device = device;
	return copy ? hz_copy(ctx, host, on) : HZ_OK;
}

int from_device(hz_context *ctx, const hz_tensor *on, hz_tensor *host)
{
	const int status = on->device == HZ_CPU ? HZ_OK : hz_copy(ctx, on, host);

	return status ? status : hz_sync(ctx);
}

void free_device(hz_context *ctx, const hz_tensor *on)
{
	if (on->data && on->device > HZ_CPU)
		hz_free(ctx, on->data, on->device);
}

/* ---- Numbers --------------------------------------------------------------------------------- */

double now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

uint64_t random_u64(uint64_t *state)
{
	uint64_t z = *state += 0x9e3779b97f4a7c15u;

	z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
	z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
	return z ^ (z >> 31);
}

/* The sum of eight uniform 8-bit numbers: mean 0 and variance 8 (256^2 - 1) / 12 before scaling */
float random_normal(uint64_t *state)
{
	const uint64_t bits = random_u64(state);
	int sum = 0;

	for (int i = 0; i < 8; i++)
		sum += (int)(bits >> (8 * i) & 255);
	return ((float)sum - 1020.0f) * 0.0047844f;	/* 1 / sqrt(8 (256^2 - 1) / 12) */
}

/* The parameters of a binary floating-point format */
struct format {
	int dtype, bytes, mantissa, bias;
	double max;	/* largest finite */
	bool infinite;	/* has Inf: values beyond max become Inf, otherwise they saturate */
};

static const struct format formats[] = {
	{HZ_F32, 4, 23, 127, 0x1.fffffep127, true},
	{HZ_F16, 2, 10, 15, 65504, true},
	{HZ_BF16, 2, 7, 127, 0x1.fep127, true},
	{HZ_E4M3, 1, 3, 7, 448, false},
	{HZ_E5M2, 1, 2, 15, 57344, false},
};

/* f32 for any other dtype */
static const struct format *format_of(int dtype)
{
	for (size_t i = 1; i < sizeof(formats) / sizeof(*formats); i++) {
		if (formats[i].dtype == dtype)
			return &formats[i];
	}
	return &formats[0];
}

static double decode(uint64_t bits, const struct format *f)
{
	const int width = 8 * f->bytes;
	const uint64_t mantissa = bits & ((1ull << f->mantissa) - 1);
	const int exponent_max = (1 << (width - 1 - f->mantissa)) - 1;
	const int exponent = (int)(bits >> f->mantissa) & exponent_max;
	const double sign = bits >> (width - 1) & 1 ? -1 : 1;

	if (f->dtype == HZ_E4M3 && (bits & 0x7f) == 0x7f)
		return (double)NAN;
	if (f->dtype != HZ_E4M3 && exponent == exponent_max)
		return mantissa ? (double)NAN : sign * (double)INFINITY;
	if (exponent == 0)
		return sign * ldexp((double)mantissa, 1 - f->bias - f->mantissa);
	return sign *
	       ldexp((double)(mantissa | 1ull << f->mantissa), exponent - f->bias - f->mantissa);
}

static uint64_t encode(double value, const struct format *f)
{
	const int width = 8 * f->bytes;
	const uint64_t sign = signbit(value) ? 1ull << (width - 1) : 0;
	const uint64_t top = (1ull << (width - 1)) - 1;	/* all ones except the sign */
	const uint64_t infinity = top >> f->mantissa << f->mantissa;
	double a = fabs(value), ulp;
	uint64_t bits;
	int exponent;

	if (isnan(value))
		return sign | top;
	if (a == 0)
		return sign;
	if (f->infinite && a >= 2 * f->max)
		return sign | infinity;
	if (!f->infinite && a > f->max)
		a = f->max;
	frexp(a, &exponent);	/* a = m 2^exponent, 1/2 <= m < 1 */
	if (exponent < 2 - f->bias)
		exponent = 2 - f->bias;
	ulp = ldexp(1, exponent - 1 - f->mantissa);
	/* Adds the significand, as an integer, to the exponent: a carry increments the exponent. */
	bits = ((uint64_t)(exponent - 2 + f->bias) << f->mantissa) + (uint64_t)rint(a / ulp);
	return sign | (f->infinite && bits > infinity ? infinity : bits);
}

double load_element(const void *p, int64_t i, int dtype)
{
	const struct format *f = format_of(dtype);
	uint8_t u8;
	uint16_t u16;
	uint32_t u32;
	float f32;
	double f64;
	int64_t s64;

	switch (dtype) {
	case HZ_F32:
		memcpy(&f32, (const char *)p + 4 * i, 4);
		return (double)f32;
	case HZ_F16:
	case HZ_BF16:
		memcpy(&u16, (const char *)p + 2 * i, 2);
		return decode(u16, f);
	case HZ_E4M3:
	case HZ_E5M2:
		memcpy(&u8, (const char *)p + i, 1);
		return decode(u8, f);
	case HZ_E8M0:
		memcpy(&u8, (const char *)p + i, 1);
		return u8 == 255 ? (double)NAN : ldexp(1, u8 - 127);
	case HZ_F64:
		memcpy(&f64, (const char *)p + 8 * i, 8);
		return f64;
	case HZ_S8:
		return (double)((const int8_t *)p)[i];
	case HZ_U8:
		return (double)((const uint8_t *)p)[i];
	case HZ_S16:
		memcpy(&u16, (const char *)p + 2 * i, 2);
		return (double)(int16_t)u16;
	case HZ_U16:
		memcpy(&u16, (const char *)p + 2 * i, 2);
		return (double)u16;
	case HZ_S32:
		memcpy(&u32, (const char *)p + 4 * i, 4);
		return (double)(int32_t)u32;
	case HZ_U32:
		memcpy(&u32, (const char *)p + 4 * i, 4);
		return (double)u32;
	default:
		memcpy(&s64, (const char *)p + 8 * i, 8);
		return dtype == HZ_U64 ? (double)(uint64_t)s64 : (double)s64;
	}
}

void store_element(void *p, int64_t i, int dtype, double value)
{
	const struct format *f = format_of(dtype);
	const uint64_t bits = encode(value, f);
	const uint8_t u8 = (uint8_t)bits;
	const uint16_t u16 = (uint16_t)bits;
	const float f32 = (float)value;

	if (dtype == HZ_F32)
		memcpy((char *)p + 4 * i, &f32, 4);
	else if (f->bytes == 2)
		memcpy((char *)p + 2 * i, &u16, 2);
	else
		memcpy((char *)p + i, &u8, 1);
}

static int compare_doubles(const void *a, const void *b)
{
	const double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

double median(double *values, int n)
{
	if (n == 0)
		return 0;
	qsort(values, (size_t)n, sizeof(*values), compare_doubles);
	return n % 2 ? values[n / 2] : (values[n / 2 - 1] + values[n / 2]) / 2;
}

void *allocate(size_t bytes)
{
	if (bytes > PTRDIFF_MAX - 64)
		return NULL;
	return aligned_alloc(64, (bytes + 64) / 64 * 64);
}

/* ---- main ------------------------------------------------------------------------------------ */

static void help(void)
{
	printf("Usage: hurwitz COMMAND [OPTION]... [ARGUMENT]...\n"
	       "Neural-network primitives for CPU and CUDA: try, test and measure them.\n"
	       "\n"
	       "Commands:\n");
	for (size_t i = 0; i < VERBS; i++)
		printf("  %-10s %s\n", verbs[i].name, verbs[i].summary);
	printf("\n"
	       "Options:\n"
	       "  -h, --help     print this and exit; 'hurwitz COMMAND --help' says more\n"
	       "  -V, --version  print the version and exit\n"
	       "\n"
	       "Environment:\n"
	       "  HURWITZ_DEVICE     cpu, cuda, cuda:N or auto: the device, unless -d is given\n"
	       "  HURWITZ_THREADS    CPU threads to use\n"
	       "  HURWITZ_THREADING  pool or openmp: whose threads\n"
	       "  HURWITZ_ISA        c, avx2, avx512, ...: the highest instruction set to use\n"
	       "  HURWITZ_QUAT       auto, direct or fast: products of quaternion matrices\n"
	       "  HURWITZ_ROUTE      OP:ROUTE,...: code paths to force, see 'info --routes'\n"
	       "  HURWITZ_VERBOSE    1: a line on stderr for each call; 2: other routes, too\n"
	       "  NO_COLOR           if set, no colours on a terminal\n"
	       "\n"
	       "Exit status: 0 if all went well, 1 for a failure, 2 for bad usage or input,\n"
	       "3 if bench --compare found a case that became slower.\n"
	       "\n"
	       "Examples:\n"
	       "  hurwitz info\n"
	       "  hurwitz run hadamard x=in.npy y=out.npy\n"
	       "  hurwitz bench hadamard --quick\n");
}

static void version(void)
{
	printf("hurwitz %s\n"
	       "Licence BSD-2-Clause: https://opensource.org/license/bsd-2-clause\n"
	       "This is free software: you are free to change and redistribute it.\n"
	       "There is NO WARRANTY, to the extent permitted by law.\n",
	       hz_version());
}

/* Failing to write standard output (full disk, closed pipe) is a failure of any verb. */
static int close_stdout(int status)
{
	const bool failed = ferror(stdout) != 0;

	errno = 0;
	if (fflush(stdout) == 0 && !failed)
		return status;
	complain(EXIT_FAILURE, "standard output: %s", errno ? strerror(errno) : "write error");
	return status ? status : EXIT_FAILURE;
}

/*
 * A descriptor of 0 to 2 that is closed would be that of the next file that is opened, and messages
 * would be written into an output file. /dev/null takes its place, opened the other way round: what
 * reads standard input or writes standard output still fails.
 */
static bool open_standard(void)
{
	for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; fd++) {
		if (fcntl(fd, F_GETFD) < 0 && errno == EBADF &&
		    open("/dev/null", fd == STDIN_FILENO ? O_WRONLY : O_RDONLY) != fd)
			return false;
	}
	return true;
}

int main(int argc, char **argv)
{
	const char *name = argc > 1 ? argv[1] : NULL;

	if (!open_standard())
		return complain(EXIT_FAILURE, "/dev/null, for a standard stream that is closed: %s",
				strerror(errno));
	if (!name)
		return complain(EXIT_BAD, "no command is given; try 'hurwitz --help'");
	if (strcmp(name, "--help") == 0 || strcmp(name, "-h") == 0 || strcmp(name, "help") == 0) {
		help();
		return close_stdout(EXIT_SUCCESS);
	}
	if (strcmp(name, "--version") == 0 || strcmp(name, "-V") == 0) {
		version();
		return close_stdout(EXIT_SUCCESS);
	}
	for (size_t i = 0; i < VERBS; i++) {
		if (strcmp(name, verbs[i].name) == 0)
			return close_stdout(verbs[i].run(argc - 1, argv + 1));
	}
	return complain(EXIT_BAD, "there is no %s %s; try 'hurwitz --help'",
			name[0] == '-' ? "option" : "command", name);
}
