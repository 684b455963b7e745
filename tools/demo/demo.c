/*
 * demo.c - hurwitz demo: a story, and a chapter per family of primitives
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#include <config.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include <unistd.h>

#include "tools/demo/story.h"
#include "tools/core/npy.h"
#include "tools/core/output.h"
#include "tools/demo/terrain.h"

#define LARGE 20

/* Elements of a file that are shown at most, so that it takes seconds */
#define ELEMENTS_MAX ((int64_t)1 << 24)

/* ---- Printed in every chapter ---------------------------------------------------------------- */

const char *name_of(const char *primitive)
{
	static char text[4][64];
	static int at;

	at = (at + 1) % 4;
	snprintf(text[at], sizeof(text[at]), "%s%s%s", style(stdout, BOLD), primitive,
		 style(stdout, PLAIN));
	return text[at];
}

void print_device(hz_context *ctx)
{
	hz_info info = {0};

	hz_device_info(ctx, &info);
	if (hz_device(ctx) == HZ_CPU)
		printf("%s: %s, %s, threads %d\n", name_of("On the CPU"),
		       *info.cpu_name ? info.cpu_name : "name not known", info.isa_name,
		       info.threads);
	else
		printf("%s: %s\n", name_of("On the GPU"), info.gpu_name);
}

int demo_status(hz_context *ctx, int status)
{
	if (!status)
		return 0;
	return complain(EXIT_FAILURE, "demo: %s",
			*hz_errmsg(ctx) ? hz_errmsg(ctx) : hz_strerror(status));
}

int time_calls(hz_context *ctx, int (*f)(void *data), void *data, double at_least,
	       double *seconds)
{
	double elapsed = 0;
	int64_t calls = 1;
	int status = f(data), runs = 0;

	if (!status)
		status = hz_sync(ctx);
	*seconds = INFINITY;
	while (!status && runs < (at_least > 0 ? 3 : 1)) {
		const double start = now();

		for (int64_t i = 0; i < calls && !status; i++)
			status = f(data);
		if (!status)
			status = hz_sync(ctx);
		elapsed = now() - start;
		if (elapsed < at_least) {
			calls *= 2;
			continue;
		}
		runs++;
		*seconds = fmin(*seconds, elapsed / (double)calls);
	}
	return status;
}

/* ---- Data ------------------------------------------------------------------------------------ */

static int make_data(struct data *d, const char *name, int64_t rows, int64_t columns)
{
	*d = (struct data){
		.name = name, .rows = rows, .columns = columns, .n = (columns + 3) / 4 * 4};
	d->x = allocate((size_t)(rows * d->n) * sizeof(float));
	return d->x ? 0 : complain(EXIT_FAILURE, "demo: there is not enough memory");
}

static void fill_up(struct data *d)
{
	for (int64_t k = 0; k < d->rows; k++) {
		for (int64_t i = d->columns; i < d->n; i++)
			d->x[k * d->n + i] = d->x[k * d->n + d->columns - 1];
	}
}

/* Three data sets: the heights; their curvature, which has sharp edges; the heights with some
 * columns enlarged */
static int volcano_data(struct data *data)
{
	struct data *heights = &data[0], *bend = &data[1], *outliers = &data[2];
	int status = make_data(heights, "heights", TERRAIN_ROWS, TERRAIN_COLUMNS);

	if (!status)
		status = make_data(bend, "curvature", TERRAIN_ROWS - 2, TERRAIN_COLUMNS - 2);
	if (!status)
		status = make_data(outliers, "three columns x 20", TERRAIN_ROWS, TERRAIN_COLUMNS);
	if (status)
		return status;
	outliers->large_every = 20;
	for (int i = 0; i < TERRAIN_ROWS; i++) {
		for (int j = 0; j < TERRAIN_COLUMNS; j++) {
			const float h = terrain_height(i, j);

			heights->x[i * heights->n + j] = h;
			outliers->x[i * outliers->n + j] = j % 20 == 10 ? LARGE * h : h;
		}
	}
	for (int i = 1; i < TERRAIN_ROWS - 1; i++) {
		for (int j = 1; j < TERRAIN_COLUMNS - 1; j++)
			bend->x[(i - 1) * bend->n + j - 1] =
				terrain_height(i - 1, j) + terrain_height(i + 1, j) +
				terrain_height(i, j - 1) + terrain_height(i, j + 1) -
				4 * terrain_height(i, j);
	}
	for (int d = 0; d < DATA_MAX; d++)
		fill_up(&data[d]);
	return 0;
}

/* Explains the data; only the chapter on rotations uses more than the heights. */
static void introduce_volcano(bool rotations)
{
	printf("The data: %d x %d heights of a made-up volcano in whole metres, 106 to 193, on a\n"
	       "grid of 10 m, computed by a formula%s\n",
	       TERRAIN_ROWS, TERRAIN_COLUMNS, rotations ? "; their curvature," : ".\n");
	if (rotations)
		printf("the difference of each height from its neighbours; and the heights with every\n"
		       "20th column made %d times as large, like the few channels that stand out in\n"
		       "the activations of language models.\n\n",
		       LARGE);
}

static int file_data(struct data *d, const char *path)
{
	struct npy a;
	char why[NPY_WHY];
	int64_t rows, n;
	int status = npy_read(&a, path, why);

	path = strcmp(path, "-") ? path : "standard input";
	if (status)
		return complain(status, "%s: %s", path, why);
	if (a.raw) {
		npy_free(&a);
		return complain(EXIT_BAD, "%s: holds raw bytes, not numbers", path);
	}
	if (a.count == 0 || a.ndim == 0) {
		npy_free(&a);
		return complain(EXIT_BAD, "%s: has no rows to show anything on", path);
	}
	n = a.shape[a.ndim - 1];
	rows = a.count / n;
	if (rows * n > ELEMENTS_MAX)
		rows = n < ELEMENTS_MAX ? ELEMENTS_MAX / n : 1;
	status = make_data(d, "your data", rows, n);
	for (int64_t k = 0; k < rows * n && !status; k++) {
		const double value = load_element(a.data, k, a.dtype);

		d->x[k / n * d->n + k % n] = (float)value;
		if (!isfinite((float)value))
			status = complain(EXIT_BAD,
					  "%s: element %lld is %g, which cannot be quantized", path,
					  (long long)k, value);
	}
	if (!status)
		fill_up(d);
	npy_free(&a);
	return status;
}

/* ---- The chapters ---------------------------------------------------------------------------- */

static int show_linear(hz_context *ctx, const struct ground *g)
{
	(void)g;
	return demo_linear(ctx, false);
}

static const struct chapter {
	const char *name, *summary;
	int (*show)(hz_context *ctx, const struct ground *g);	/* NULL: demo_hadamard() */
} chapters[] = {
	{"hadamard", "rotations, and what they do to the quantization of rows", NULL},
	{"linear", "the weights of a transformer layer in fewer bits", show_linear},
	{"qgemm", "a classifier in 8 bits, its weights rotated and not", demo_qgemm},
	{"quat", "a network of quaternions beside one of real numbers", demo_quat},
	{"lattice", "a matrix at 2, 3 and 4 bits a value, and its products", demo_lattice},
	{"mhc", "deep networks of four residual streams, mixed by doubly stochastic matrices or not", demo_mhc},
};

#define CHAPTERS (sizeof(chapters) / sizeof(*chapters))

static const struct chapter *find_chapter(const char *name)
{
	for (size_t i = 0; i < CHAPTERS; i++) {
		if (strcmp(chapters[i].name, name) == 0)
			return &chapters[i];
	}
	return NULL;
}

static void introduce(const struct chapter *c, const struct data *data, const char *path)
{
	if (path)
		printf("The data: %lld rows of %lld from %s.\n\n", (long long)data->rows,
		       (long long)data->columns, strcmp(path, "-") ? path : "standard input");
	else
		introduce_volcano(!c->show);
}

/* Runs a chapter on one device. */
static int show_chapter(hz_context *ctx, const struct chapter *c, const struct data *data,
			const char *path)
{
	const struct ground g = {data->x, data->rows, data->columns, data->n};

	print_device(ctx);
	printf("\n");
	return c->show ? c->show(ctx, &g) : demo_hadamard(ctx, data, path ? 1 : DATA_MAX);
}

static int show_chapters(const struct demo *d, const struct chapter *c, const struct data *data,
			 const char *path)
{
	int status = 0;

	if (c->show != show_linear)
		introduce(c, data, path);
	if (d->cpu)
		status = show_chapter(d->cpu, c, data, path);
	if (d->cpu && d->gpu)
		printf("\n");
	if (!status && d->gpu)
		status = show_chapter(d->gpu, c, data, path);
	if (!status && d->no_gpu)
		printf("\nNo GPU is shown:\n  %s\n", d->no_gpu);
	return status;
}

/* The layer on all devices, before the story */
static int show_layers(const struct demo *d)
{
	hz_context *const devices[] = {d->cpu, d->gpu};
	int status = 0;

	for (int i = 0; i < 2 && !status; i++) {
		if (!devices[i])
			continue;
		print_device(devices[i]);
		printf("\n");
		status = demo_linear(devices[i], d->quick);
		printf("\n");
	}
	return status;
}

/* Two facts on one device, before the network */
static int show_facts(const struct demo *d, const struct ground *g)
{
	hz_context *const ctx = d->cpu ? d->cpu : d->gpu;
	int status = demo_equal_weights(ctx, g, d->quick);

	printf("\n");
	if (!status)
		status = demo_depth(ctx);
	printf("\n");
	return status;
}

static int open_devices(struct demo *d, int32_t device)
{
	const hz_options gpu = {.device = device == HZ_AUTO ? HZ_CUDA : device};
	int status;

	if (device == HZ_AUTO || device == HZ_CPU) {
		status = open_context(&d->cpu, HZ_CPU, 0, HZ_ISA_AUTO);
		if (status || device == HZ_CPU)
			return status;
	}
	status = hz_open(&d->gpu, &gpu);
	if (status && device == HZ_AUTO) {
		d->no_gpu = open_reason();
		return 0;
	}
	return status ? complain(exit_status(status), "%s", hz_open_errmsg()) : 0;
}

static void help(void)
{
	printf("Usage: hurwitz demo [-q] [-d DEVICE] [-p FILE] [CHAPTER] [FILE.npy]\n"
	       "The weights of a linear layer in 8 to 2 bits: size, error, time of a token.\n"
	       "Quaternions against real numbers with as many weights, on heights of a volcano.\n"
	       "Hyper-connections in 1 to 64 layers: what they enlarge a signal by. Then a\n"
	       "network of quaternions in four residual streams is trained, quantized to 8, 4, 3\n"
	       "and 2 bits, and tested in each form: how often it is right, how large it is, how\n"
	       "long it takes. Chapters show one family each; 'hadamard' those of a file, too:\n"
	       "the rows (the last dimension) of FILE.npy, '-' being standard input.\n"
	       "\n"
	       "  -d, --device DEVICE  cpu, cuda, cuda:N, or auto, the default: all there are\n"
	       "  -p, --plot FILE      a picture of the story, a .png or .svg, by gnuplot\n"
	       "  -q, --quick          a small layer, and a short training\n"
	       "  -h, --help           this\n"
	       "\n"
	       "Chapters:\n");
	for (size_t i = 0; i < CHAPTERS; i++)
		printf("  %-9s %s\n", chapters[i].name, chapters[i].summary);
}

/* Parses the arguments after the options: a chapter and a file, or a file alone for the first
 * chapter. */
static int parse_arguments(int argc, char **argv, const struct chapter **c, const char **path)
{
	*c = optind < argc ? find_chapter(argv[optind]) : NULL;
	if (*c)
		optind++;
	*path = optind < argc ? argv[optind++] : NULL;
	if (optind < argc)
		return complain(EXIT_BAD, "demo: one chapter and one file at most, '%s' is more",
				argv[optind]);
	if (*path && !*c && strcmp(*path, "-") != 0 && access(*path, F_OK) != 0)
		return complain(EXIT_BAD,
				"demo: '%s' is neither a chapter nor a file; "
				"try 'hurwitz demo --help'",
				*path);
	if (*path && !*c)
		*c = &chapters[0];
	if (*path && (*c)->show)
		return complain(EXIT_BAD, "demo: '%s' is about the volcano, and takes no file",
				(*c)->name);
	return 0;
}

int verb_demo(int argc, char **argv)
{
	static const struct option options[] = {
		{"device", required_argument, NULL, 'd'}, {"help", no_argument, NULL, 'h'},
		{"plot", required_argument, NULL, 'p'}, {"quick", no_argument, NULL, 'q'},
		{NULL, 0, NULL, 0},
	};
	struct data data[DATA_MAX] = {{0}};
	struct demo d = {.plot = NULL};
	const struct chapter *chapter;
	const char *path;
	int32_t device = HZ_AUTO;
	int c, status;

	while ((c = next_option(argc, argv, "demo", "d:hp:q", options)) != -1) {
		switch (c) {
		case 'd':
			if (parse_device("demo", optarg, &device))
				return EXIT_BAD;
			break;
		case 'h':
			help();
			return EXIT_SUCCESS;
		case 'p':
			d.plot = optarg;
			break;
		case 'q':
			d.quick = true;
			break;
		default:
			return EXIT_BAD;
		}
	}
	status = parse_arguments(argc, argv, &chapter, &path);
	if (!status && d.plot && chapter)
		status = complain(EXIT_BAD, "demo: --plot is for the story, without a chapter");
	if (!status && d.plot && strcmp(d.plot, "-") == 0)
		status = complain(EXIT_BAD, "demo: --plot wants a file: the story takes '-'");
	if (!status)
		status = path ? file_data(&data[0], path) : volcano_data(data);
	if (!status)
		status = open_devices(&d, device);
	/* Opened before all the work, since the path may not be writable. */
	if (!status && d.plot && have_gnuplot()) {
		d.gnuplot = true;
		status = output_open(d.plot);
	}
	if (!status && chapter)
		status = show_chapters(&d, chapter, data, path);
	else if (!status) {
		const struct ground g = {data->x, data->rows, data->columns, data->n};

		status = show_layers(&d);
		if (!status)
			introduce_volcano(false);
		if (!status)
			status = show_facts(&d, &g);
		if (!status)
			status = tell_story(&d, &g);
	}
	outputs_drop();
	hz_close(d.cpu);
	hz_close(d.gpu);
	for (int i = 0; i < DATA_MAX; i++)
		free(data[i].x);
	return status;
}
