/*
 * dequantize.c - hurwitz dequantize: compressed layers as matrices again
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#include <config.h>

#include <stdlib.h>
#include <string.h>

#include "tools/core/output.h"
#include "tools/quantize/quantize.h"

static int dtype_of(const char *name)
{
	return strcmp(name, "F16") == 0 ? HZ_F16 : strcmp(name, "BF16") == 0 ? HZ_BF16 : HZ_F32;
}

/* The tensor that a layer becomes: the dtype and shape are those of the weights. */
static int matrix_tensor(const struct model_tensor *t, struct model_tensor *to, const char *path)
{
	char why[NPY_WHY];
	int status;

	*to = *t;
	to->type = t->layer.dtype;
	to->dtype = dtype_of(t->layer.dtype);
	to->ndim = 2;
	memcpy(to->shape, t->layer.shape, sizeof(t->layer.shape));
	memset(&to->layer, 0, sizeof(to->layer));
	status = model_bytes(to, 1, 8 * (int)hz_dtype_size(to->dtype), why);
	return status ? complain(status, "%s: %s", path, why) : 0;
}

/* The bytes are a layer of the format and the shape that the file's entry says. */
static int check_layer(const hz_linear *layer, const struct model_tensor *t, const char *path)
{
	hz_linear_info info;
	const int status = hz_linear_get_info(layer, &info);

	if (status)
		return complain(EXIT_FAILURE, "%s: layer '%s' cannot be asked", path, t->name);
	if (strcmp(info.format_name, t->layer.format) == 0 && info.out == t->layer.shape[0] &&
	    info.in == t->layer.shape[1])
		return 0;
	return complain(EXIT_BAD, "%s: layer '%s' is %s [%lld, %lld], its entry says %s "
			"[%lld, %lld]", path, t->name, info.format_name, (long long)info.out,
			(long long)info.in, t->layer.format, (long long)t->layer.shape[0],
			(long long)t->layer.shape[1]);
}

/* Decodes layer t to the matrix `to`, and writes it. */
static int write_matrix(hz_context *ctx, const struct model *m, const struct model_tensor *t,
			const struct model_tensor *to, const struct writer *w, const char *path)
{
	void *copy, *data = NULL;
	const void *bytes = model_aligned(m, t, 64, &copy);
	hz_linear *layer = NULL;
	hz_tensor host, on = {0};
	int status;

	if (bytes)
		data = allocate(to->bytes);
	if (!data) {
		free(copy);
		return complain(EXIT_FAILURE, "%s: '%s': there is not enough memory", path,
				t->name);
	}
	host = hz_tensor_nd(data, to->dtype, HZ_CPU, 2, to->shape);
	status = hz_linear_load(ctx, &layer, bytes, t->bytes);
	if (status) {
		status = complain(exit_status(status), "%s: layer '%s': %s", path, t->name,
				  hz_errmsg(ctx));
	} else if ((status = check_layer(layer, t, path)) == 0) {
		status = to_device(ctx, &host, false, &on);
		if (!status)
			status = WITH_WORKSPACE(ctx, hz_linear_dequantize(ctx, layer, &on));
		if (!status)
			status = from_device(ctx, &on, &host);
		if (status)
			status = complain(exit_status(status), "%s: layer '%s': %s", path, t->name,
					  hz_errmsg(ctx));
		free_device(ctx, &on);
	}
	hz_linear_close(layer);
	free(copy);
	model_release(m, t);
	if (!status)
		status = writer_put(w, data, to->bytes);
	free(data);
	return status;
}

struct place {
	int align;
	int64_t index;
};

/* Larger elements first, so that all are aligned; otherwise as in the input */
static int compare_places(const void *a, const void *b)
{
	const struct place *x = a, *y = b;

	if (x->align != y->align)
		return y->align - x->align;
	return (x->index > y->index) - (x->index < y->index);
}

/* to: the tensors of the output, in the order of the input; of: each one's number in the input */
static int plan(const struct model *m, struct model *to, struct place *of, const char *path)
{
	int64_t layers = 0;

	for (int64_t i = 0; i < m->count; i++) {
		struct model_tensor t = m->tensor[i];

		if (m->tensor[i].layer.format) {
			const int status = matrix_tensor(&m->tensor[i], &t, path);

			if (status)
				return status;
			layers++;
		}
		of[i] = (struct place){model_align(&t), i};
	}
	if (!layers)
		return complain(EXIT_BAD, "%s: has no compressed layer", path);
	qsort(of, (size_t)m->count, sizeof(*of), compare_places);
	for (int64_t i = 0; i < m->count; i++) {
		const struct model_tensor *t = &m->tensor[of[i].index];

		to->tensor[i] = *t;
		if (t->layer.format)
			matrix_tensor(t, &to->tensor[i], path);
	}
	return 0;
}

static int dequantize(const struct model *m, struct model *to, struct place *of, const char *path,
		      const char *output, int32_t device, int32_t threads)
{
	hz_context *ctx = NULL;
	struct writer w;
	int status = plan(m, to, of, path);

	if (!status)
		status = open_context(&ctx, device, threads, HZ_ISA_AUTO);
	if (!status)
		status = writer_open(&w, output, to);
	for (int64_t i = 0; i < m->count && !status; i++) {
		const struct model_tensor *t = &m->tensor[of[i].index];

		progress("%lld of %lld: %s", (long long)i + 1, (long long)m->count, t->name);
		if (t->layer.format) {
			status = write_matrix(ctx, m, t, &to->tensor[i], &w, path);
		} else {
			status = writer_put(&w, t->data, t->bytes);
			model_release(m, t);
		}
	}
	progress_clear();
	if (!status)
		status = writer_finish(&w, to);
	outputs_drop();
	hz_close(ctx);
	return status;
}

static void help(void)
{
	printf("Usage: hurwitz dequantize MODEL.safetensors -o OUT.safetensors [OPTION]...\n"
	       "Write the decoded weights of the layers that 'hurwitz quantize' made as tensors\n"
	       "of the type that they were made of; all others are copied.\n"
	       "\n"
	       "  -o, --output OUT     the file to write\n"
	       "  -d, --device DEVICE  cpu, the default, cuda, cuda:N or auto\n"
	       "  -t, --threads N      CPU threads; default: the cores allowed\n"
	       "  -h, --help           this\n");
}

int verb_dequantize(int argc, char **argv)
{
	static const struct option options[] = {
		{"output", required_argument, NULL, 'o'}, {"device", required_argument, NULL, 'd'},
		{"threads", required_argument, NULL, 't'}, {"help", no_argument, NULL, 'h'},
		{NULL, 0, NULL, 0},
	};
	const char *output = NULL, *path;
	int32_t device = HZ_CPU, threads = 0;
	struct model m, to;
	struct place *of;
	char why[NPY_WHY];
	int c, status;

	while ((c = next_option(argc, argv, "dequantize", "o:d:t:h", options)) != -1) {
		if (c == 'h') {
			help();
			return EXIT_SUCCESS;
		}
		if (c == '?' || (c == 'd' && parse_device("dequantize", optarg, &device)) ||
		    (c == 't' && parse_threads("dequantize", optarg, &threads)))
			return EXIT_BAD;
		if (c == 'o')
			output = optarg;
	}
	if (optind + 1 != argc)
		return complain(EXIT_BAD, "dequantize: one MODEL.safetensors is needed; try "
				"'hurwitz dequantize --help'");
	if (!output)
		return complain(EXIT_BAD, "dequantize: --output is missing");
	path = argv[optind];
	status = model_open(&m, path, false, why);
	if (status)
		return complain(status, "%s: %s", path, why);
	to = m;
	to.tensor = calloc((size_t)m.count + 1, sizeof(*to.tensor));
	of = calloc((size_t)m.count + 1, sizeof(*of));
	if (to.tensor && of)
		status = dequantize(&m, &to, of, path, output, device, threads);
	else
		status = complain(EXIT_FAILURE, "dequantize: there is not enough memory");
	free(to.tensor);
	free(of);
	model_close(&m);
	return status;
}
