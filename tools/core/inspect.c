/*
 * inspect.c - hurwitz inspect: the tensors of a file
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#include <config.h>

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "tools/core/model.h"
#include "tools/core/run.h"

/* A shape as "[768, 3072]" */
static void shape_text(char *text, int ndim, const int64_t *shape)
{
	strcpy(text, "[");
	for (int i = 0; i < ndim; i++)
		text += sprintf(text, i ? ", %lld" : "[%lld", (long long)shape[i]);
	strcat(text, "]");
}

/* A little-endian number of a layer's header */
static int64_t header_number(const unsigned char *p, int bytes)
{
	uint64_t n = 0;

	while (bytes-- > 0)
		n = n << 8 | p[bytes];
	return (int64_t)n;
}

/* The header of the layer, which doc/linear.md describes, has the entry's format and shape. */
static bool is_layer(const struct model_tensor *t)
{
	const unsigned char *const p = t->data;

	return t->bytes >= 128 && memcmp(p, "HZLINEAR", 8) == 0 &&
	       strcmp(hz_linear_format_name((int)header_number(p + 12, 4)),
		      t->layer.format) == 0 &&
	       header_number(p + 32, 8) == t->layer.shape[0] && t->layer.shape[0] &&
	       header_number(p + 40, 8) == t->layer.shape[1] && t->layer.shape[1];
}

/* A row: of a compressed layer its format and, behind the bytes, the dtype of the weights */
static void print_tensor(const struct model_tensor *t, int name_width)
{
	const struct model_layer *layer = &t->layer;
	char shape[24 * MODEL_DIMS];

	shape_text(shape, layer->format ? 2 : t->ndim, layer->format ? layer->shape : t->shape);
	print_name(t->name, name_width);
	fputs("  ", stdout);
	print_padded(layer->format ? layer->format : t->type, 11);
	printf(" %-18s %14zu", shape, t->bytes);
	if (layer->format && !is_layer(t))
		printf("  damaged: its bytes are no layer of that format and shape");
	else if (layer->format)
		printf("  of %s, %.3f bits a weight", layer->dtype,
		       8.0 * (double)t->bytes /
			       ((double)layer->shape[0] * (double)layer->shape[1]));
	putchar('\n');
}

static void print_model(const struct model *m)
{
	int name_width = 4;
	size_t bytes = 0;

	for (int64_t i = 0; i < m->count; i++) {
		name_width = name_column(name_width, m->tensor[i].name);
		bytes += m->tensor[i].bytes;
	}
	printf("%-*s  %-11s %-18s %14s\n", name_width, "name", "type", "shape", "bytes");
	for (int64_t i = 0; i < m->count; i++)
		print_tensor(&m->tensor[i], name_width);
	printf("%lld tensors, %zu bytes\n", (long long)m->count, bytes);
}

/* An array of a .npy file, which has no name */
static int print_npy(const char *path)
{
	char why[NPY_WHY], shape[24 * HZ_MAXDIM];
	struct npy a;
	const int status = npy_read(&a, path, why);

	if (status)
		return complain(status, "%s: %s", path, why);
	shape_text(shape, a.ndim, a.shape);
	printf("%-11s %-18s %14s\n%-11s %-18s %14zu\n", "type", "shape", "bytes",
	       held(&a), shape, a.bytes);
	npy_free(&a);
	return 0;
}

static bool is_npy(const char *path)
{
	struct stat st;
	/* A pipe, which opening could wait for, is refused by model_open(). */
	FILE *in = stat(path, &st) == 0 && S_ISREG(st.st_mode) ? fopen(path, "rb") : NULL;
	char head[6] = "";
	const bool is = in && fread(head, 1, 6, in) == 6 && memcmp(head, "\x93NUMPY", 6) == 0;

	if (in)
		fclose(in);
	return is;
}

static void help(void)
{
	printf("Usage: hurwitz inspect FILE\n"
	       "List the tensors of a .safetensors, .gguf or .npy file: name, element type,\n"
	       "shape and bytes. Of layers that 'hurwitz quantize' compressed: the format, the\n"
	       "shape and type of the weights, and the bits stored for each; or that the bytes\n"
	       "are damaged.\n"
	       "\n"
	       "  -h, --help  this\n");
}

int verb_inspect(int argc, char **argv)
{
	static const struct option options[] = {
		{"help", no_argument, NULL, 'h'}, {NULL, 0, NULL, 0},
	};
	char why[NPY_WHY];
	struct model m;
	int c, status;

	while ((c = next_option(argc, argv, "inspect", "h", options)) != -1) {
		if (c != 'h')
			return EXIT_BAD;
		help();
		return EXIT_SUCCESS;
	}
	if (optind + 1 != argc)
		return complain(EXIT_BAD, "inspect: one file is needed; try 'hurwitz inspect "
				"--help'");
	if (is_npy(argv[optind]))
		return print_npy(argv[optind]);
	status = model_open(&m, argv[optind], true, why);
	if (status)
		return complain(status, "%s: %s", argv[optind], why);
	print_model(&m);
	model_close(&m);
	return EXIT_SUCCESS;
}
