/*
 * encode.c - encode FILE.txt > vectors.npy: the embedding of each line
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#include <getopt.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "encoder.h"

static const char usage[] =
	"Usage: encode [OPTION]... FILE.txt > vectors.npy\n"
	"Writes the embedding of each line, f32 [lines, width], as a .npy file.\n"
	"  --model=DIR    model.safetensors, config.json and vocab.txt (default: model)\n"
	"  --format=F     f32, or a format of hz_linear: s8-row (default), e8-4.25, ..\n"
	"  --rotate       rotate in-features of linear layers before they are quantized\n"
	"  --calibrate=F  quantize for activations like those of the lines of F\n"
	"  --device=D     where linear layers run: auto, cpu or cuda (default: cpu)\n"
	"  --threads=N    of the CPU\n"
	"  --batch=N      lines at a time (default: 32)\n"
	"  --repeat=N     encode N times and print times to standard error\n";

void fail(const char *format, ...)
{
	va_list list;

	fputs("encode: ", stderr);
	va_start(list, format);
	vfprintf(stderr, format, list);
	va_end(list);
	putc('\n', stderr);
	exit(1);
}

void try(const hz_context *ctx, int status)
{
	if (status != HZ_OK)
		fail("%s", hz_errmsg(ctx));
}

static int format_of(const char *name)
{
	if (strcmp(name, "f32") == 0)
		return 0;
	for (int i = 1; strcmp(hz_linear_format_name(i), "?") != 0; i++) {
		if (strcmp(hz_linear_format_name(i), name) == 0)
			return i;
	}
	fail("the format %s is not known, for example s8-row and e8-4.25 are", name);
}

static int32_t device_of(const char *name)
{
	if (strcmp(name, "auto") == 0)
		return HZ_AUTO;
	if (strcmp(name, "cpu") == 0)
		return HZ_CPU;
	if (strcmp(name, "cuda") == 0)
		return HZ_CUDA;
	fail("the device %s is not auto, cpu or cuda", name);
}

static long number(const char *text)
{
	char *end;
	const long value = strtol(text, &end, 10);

	if (*end || end == text || value < 1 || value > 1 << 20)
		fail("%s is no number from 1 to %d", text, 1 << 20);
	return value;
}

static double seconds(clockid_t clock)
{
	struct timespec now;

	clock_gettime(clock, &now);
	return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/* The tokens of all lines; *starts has *lines + 1 numbers. */
static int32_t *read_lines(const char *path, const struct vocabulary *v, int64_t length,
			   int64_t **starts, int64_t *lines)
{
	FILE *const file = fopen(path, "r");
	int64_t room = 0, lines_room = 0, *start = NULL;
	int32_t *tokens = NULL;
	size_t bytes = 0;
	char *line = NULL;
	ssize_t n;

	if (!file)
		fail("cannot open %s", path);
	for (*lines = 0;; ++*lines) {
		if (*lines + 2 > lines_room) {
			lines_room = 2 * lines_room + 64;
			start = realloc(start, sizeof(*start) * (size_t)lines_room);
			if (!start)
				fail("no memory");
			start[0] = 0;
		}
		n = getline(&line, &bytes, file);
		if (n < 0)
			break;
		if (start[*lines] + length > room) {
			room = 2 * room + length;
			tokens = realloc(tokens, sizeof(*tokens) * (size_t)room);
			if (!tokens)
				fail("no memory");
		}
		start[*lines + 1] = start[*lines] +
				    tokenize(v, line, tokens + start[*lines], length);
	}
	if (ferror(file))
		fail("cannot read %s", path);
	fclose(file);
	free(line);
	*starts = start;
	return tokens;
}

/* Version 1.0 of the format; the header is filled up so that data begins at byte 128. */
static void write_npy(const float *data, int64_t rows, int64_t columns)
{
	char text[119];
	const int n = snprintf(text, sizeof(text), "{'descr': '<f4', 'fortran_order': False, "
			       "'shape': (%lld, %lld), }", (long long)rows, (long long)columns);
	const size_t count = (size_t)(rows * columns);

	printf("\x93NUMPY\x01%c\x76%c%s%*s\n", 0, 0, text, 117 - n, "");
	if (fwrite(data, sizeof(*data), count, stdout) != count || fflush(stdout) != 0)
		fail("cannot write the vectors");
}

int main(int argc, char **argv)
{
	static const struct option options[] = {
		{"model", required_argument, NULL, 'm'}, {"format", required_argument, NULL, 'f'},
		{"rotate", no_argument, NULL, 'r'}, {"device", required_argument, NULL, 'd'},
		{"threads", required_argument, NULL, 't'}, {"batch", required_argument, NULL, 'b'},
		{"repeat", required_argument, NULL, 'n'},
		{"calibrate", required_argument, NULL, 'c'}, {"help", no_argument, NULL, 'h'},
		{NULL, 0, NULL, 0},
	};
	hz_options open = {.device = HZ_CPU};
	const char *model = "model", *calibrate = NULL;
	long batch = 32, repeat = 0;
	int format = HZ_LINEAR_S8_ROW, option;
	uint32_t flags = 0;
	int64_t lines, *start;
	struct vocabulary *v;
	struct encoder *e;
	hz_context *ctx;
	int32_t *tokens;
	float *vectors;
	char path[4096];

	while ((option = getopt_long(argc, argv, "", options, NULL)) != -1) {
		switch (option) {
		case 'm':
			model = optarg;
			break;
		case 'f':
			format = format_of(optarg);
			break;
		case 'r':
			flags = HZ_LINEAR_ROTATE;
			break;
		case 'c':
			calibrate = optarg;
			break;
		case 'd':
			open.device = device_of(optarg);
			break;
		case 't':
			open.threads = (int32_t)number(optarg);
			break;
		case 'b':
			batch = number(optarg);
			break;
		case 'n':
			repeat = number(optarg);
			break;
		case 'h':
			fputs(usage, stdout);
			return 0;
		default:
			fputs(usage, stderr);
			return 2;
		}
	}
	if (argc - optind != 1) {
		fputs(usage, stderr);
		return 2;
	}
	if (hz_open(&ctx, &open) != HZ_OK)
		fail("%s", hz_open_errmsg());
	snprintf(path, sizeof(path), "%s/vocab.txt", model);
	v = vocabulary_open(path);
	e = encoder_open(ctx, model);
	if (format && calibrate) {
		tokens = read_lines(calibrate, v, encoder_length(e), &start, &lines);
		encoder_quantize(e, format, flags, tokens, start, lines);
		free(tokens);
		free(start);
	} else if (format) {
		encoder_quantize(e, format, flags, NULL, NULL, 0);
	}
	tokens = read_lines(argv[optind], v, encoder_length(e), &start, &lines);
	vectors = malloc(sizeof(*vectors) * (size_t)(lines * encoder_width(e)) + 1);
	if (!vectors)
		fail("no memory");
	for (long i = 0; i <= repeat; i++) {
		const struct encoder_times before = encoder_times(e);
		const double wall = seconds(CLOCK_MONOTONIC);
		const double cpu = seconds(CLOCK_PROCESS_CPUTIME_ID);

		for (int64_t j = 0; j < lines; j += batch)
			encoder_run(e, tokens, start + j, lines - j < batch ? lines - j : batch,
				    vectors + j * encoder_width(e));
		/* The first time memory is allocated and code loaded. */
		if (i > 0)
			fprintf(stderr, "%lld lines, %lld tokens, %lld bytes: %.4f s, %.4f s of "
				"CPU; linear layers %.4f s, %.4f s of CPU\n", (long long)lines,
				(long long)start[lines], (long long)encoder_bytes(e),
				seconds(CLOCK_MONOTONIC) - wall,
				seconds(CLOCK_PROCESS_CPUTIME_ID) - cpu,
				encoder_times(e).wall - before.wall,
				encoder_times(e).cpu - before.cpu);
	}
	write_npy(vectors, lines, encoder_width(e));
	free(vectors);
	free(tokens);
	free(start);
	encoder_close(e);
	vocabulary_close(v);
	hz_close(ctx);
	return 0;
}
