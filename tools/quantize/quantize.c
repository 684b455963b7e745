/*
 * quantize.c - hurwitz quantize: the matrices of a .safetensors file as compressed layers
 *
 * SPDX-License-Identifier: BSD-2-Clause
 *
 * Memory: the input is mapped and one tensor is used at a time, so that its pages, the layer and
 * the layer's bytes are what is needed beside the tables.
 */
#include <config.h>

#include <fnmatch.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tools/core/output.h"
#include "tools/quantize/quantize.h"

#define SKIPS_MAX 64

struct request {
	const char *input, *output, *calibrate;
	const char *skip[SKIPS_MAX];
	int skips;
	int format;
	double bits;		/* 0: one format for all */
	uint32_t flags;
	int32_t device, threads;
};

struct work {
	const struct request *r;
	hz_context *ctx;
	struct model m;			/* the input */
	struct model out;		/* the output, in the order in which tensors are written;
					 * strings are the input's or constants */
	bool *written;			/* of the input's tensors */
	struct layer_plan *plan;
	int64_t plans;
	float *moment;			/* NULL: none */
	hz_tensor moments;
	struct writer writer;
	double weights, bytes, error, power;	/* of all layers */
};

/* ---- Calibration ----------------------------------------------------------------------------- */

/* The mean square of each column of n */
static int mean_squares(const struct npy *a, int64_t n, float *to, const char *path)
{
	const int64_t rows = a->count / n;

	for (int64_t i = 0; i < n; i++) {
		double sum = 0;

		for (int64_t r = 0; r < rows; r++) {
			const double x = load_element(a->data, r * n + i, a->dtype);

			sum += x * x;
		}
		to[i] = (float)(sum / (double)rows);
		if (!isfinite(to[i]))
			return complain(EXIT_BAD, "%s: the mean square of feature %lld is not "
					"finite", path, (long long)i);
	}
	return 0;
}

static int read_moments(struct work *k)
{
	const char *path = k->r->calibrate;
	char why[NPY_WHY];
	struct npy a;
	int status = array_read(&a, path, why);
	int64_t n;

	if (status)
		return complain(status, "%s: %s", path, why);
	n = a.ndim ? a.shape[a.ndim - 1] : 0;
	if (a.raw || (a.dtype != HZ_F32 && a.dtype != HZ_F16 && a.dtype != HZ_BF16 &&
		      a.dtype != HZ_F64) || !n || !a.count)
		status = complain(EXIT_BAD, "%s: activations are an array [.., in] of f32, f16, "
				  "bf16 or f64 with a row at least", path);
	else if (!(k->moment = allocate((size_t)n * sizeof(float))))
		status = complain(EXIT_FAILURE, "%s: there is not enough memory for it", path);
	else
		status = mean_squares(&a, n, k->moment, path);
	k->moments = hz_tensor_nd(k->moment, HZ_F32, HZ_CPU, 1, &n);
	npy_free(&a);
	return status;
}

/* ---- What becomes a layer -------------------------------------------------------------------- */

static bool skipped(const struct request *r, const char *name)
{
	for (int i = 0; i < r->skips; i++) {
		if (fnmatch(r->skip[i], name, 0) == 0)
			return true;
	}
	return false;
}

static bool becomes_layer(const struct request *r, const struct model_tensor *t)
{
	return t->ndim == 2 && t->bytes &&
	       (t->dtype == HZ_F32 || t->dtype == HZ_F16 || t->dtype == HZ_BF16) &&
	       !skipped(r, t->name);
}

static int make_plans(struct work *k)
{
	bool calibrated = false;

	k->plan = calloc((size_t)k->m.count + 1, sizeof(*k->plan));
	k->out.tensor = calloc((size_t)k->m.count + 1, sizeof(*k->out.tensor));
	k->written = calloc((size_t)k->m.count + 1, sizeof(*k->written));
	if (!k->plan || !k->out.tensor || !k->written)
		return complain(EXIT_FAILURE, "quantize: there is not enough memory");
	for (int64_t i = 0; i < k->m.count; i++) {
		struct model_tensor *t = &k->m.tensor[i];

		if (!becomes_layer(k->r, t))
			continue;
		k->plan[k->plans++] = (struct layer_plan){
			.t = t, .format = k->r->format,
			.weights = (double)t->shape[0] * (double)t->shape[1],
		};
		calibrated |= k->moment && t->shape[1] == k->moments.shape[0];
	}
	if (!k->plans)
		return complain(EXIT_BAD, "%s: has no tensor of two dimensions of F32, F16 or BF16 "
				"to quantize", k->r->input);
	if (k->moment && !calibrated)
		return complain(EXIT_BAD, "%s: has %lld features, and no tensor to quantize as "
				"many in-features", k->r->calibrate,
				(long long)k->moments.shape[0]);
	return 0;
}

/* The tensor as a layer's bytes */
static struct model_tensor layer_tensor(const struct model_tensor *t, const char *format,
					size_t bytes)
{
	return (struct model_tensor){
		.name = t->name, .type = "U8", .ndim = 1, .shape = {(int64_t)bytes}, .bytes = bytes,
		.layer = {(char *)(uintptr_t)format, (char *)(uintptr_t)t->type,
			  {t->shape[0], t->shape[1]}},
	};
}

/* Opens the output with a header for any outcome: of a tensor that may become a layer the longer */
static int open_output(struct work *k)
{
	static const char longest_name[] = "0123456789012345678901234567890";
	struct model longest = k->m;

	longest.tensor = calloc((size_t)k->m.count + 1, sizeof(*longest.tensor));
	if (!longest.tensor)
		return complain(EXIT_FAILURE, "quantize: there is not enough memory");
	memcpy(longest.tensor, k->m.tensor, (size_t)k->m.count * sizeof(*longest.tensor));
	for (int64_t i = 0; i < k->plans; i++)
		longest.tensor[k->plan[i].t - k->m.tensor] =
			layer_tensor(k->plan[i].t, longest_name, WRITER_MOST);
	for (int64_t i = 1; i < k->m.count; i++)
		longest.tensor[i].bytes = 0;
	longest.tensor[0].bytes = WRITER_MOST;
	{
		const int status = writer_open(&k->writer, k->r->output, &longest);

		free(longest.tensor);
		return status;
	}
}

/* ---- Layers ---------------------------------------------------------------------------------- */

static void print_row(const struct model_tensor *t, const char *format, size_t bytes,
		      double weights, const char *error, double seconds)
{
	char shape[48];

	snprintf(shape, sizeof(shape), "[%lld, %lld]", (long long)t->shape[0],
		 (long long)t->shape[1]);
	print_padded(t->name, 40);
	printf(" %-16s %-14s %12zu %7.3f %8s %8.2f\n", shape, format, bytes,
	       8 * (double)bytes / weights, error, seconds);
}

static void print_same(const struct layer_plan *plan)
{
	print_row(plan->t, "not smaller", plan->t->bytes, plan->weights, "-", 0);
}

/* Writes the layer's bytes, or leaves the tensor for later if they are not fewer. */
static int write_layer(struct work *k, const struct layer_plan *plan, const hz_linear *layer,
		       double start)
{
	const struct model_tensor *t = plan->t;
	const char *name = hz_linear_format_name(plan->format);
	char error[32];
	hz_linear_info info;
	void *data;
	int status = hz_linear_get_info(layer, &info);
	const size_t bytes = status ? 0 : (size_t)info.bytes;

	if (!status && bytes >= t->bytes) {
		print_same(plan);
		return 0;
	}
	data = allocate(bytes);
	if (!data)
		return complain(EXIT_FAILURE, "quantize: %s: there is not enough memory for it",
				t->name);
	if (!status)
		status = hz_linear_save(k->ctx, layer, data, bytes);
	if (status)
		status = complain(exit_status(status), "quantize: %s: %s", t->name,
				  hz_errmsg(k->ctx));
	else
		status = writer_put(&k->writer, data, bytes);
	free(data);
	if (status)
		return status;
	k->out.tensor[k->out.count++] = layer_tensor(t, name, bytes);
	k->written[t - k->m.tensor] = true;
	k->weights += plan->weights;
	k->bytes += (double)bytes;
	k->error += info.error * plan->weights;
	snprintf(error, sizeof(error), "%.2f", info.error_db);
	print_row(t, name, bytes, plan->weights, error, now() - start);
	return 0;
}

static int write_layers(struct work *k)
{
	int status = 0;

	printf("%-40s %-16s %-14s %12s %7s %8s %8s\n", "tensor", "shape", "format", "bytes", "bits",
	       "dB", "s");
	for (int64_t i = 0; i < k->plans && !status; i++) {
		const struct layer_plan *plan = &k->plan[i];
		hz_linear_open_opts opts = {.format = plan->format, .flags = k->r->flags};
		const double start = now();
		hz_linear *layer;

		if (!plan->format) {
			print_same(plan);
			continue;
		}
		progress("%lld of %lld: %s", (long long)i + 1, (long long)k->plans, plan->t->name);
		status = open_rows(k->ctx, &k->m, plan->t, &opts, k->moment ? &k->moments : NULL,
				   plan->t->shape[0], 1, &layer);
		if (status)
			status = layer_refused(k->ctx, status, plan->t);
		model_release(&k->m, plan->t);
		progress_clear();
		if (!status)
			status = write_layer(k, plan, layer, start);
		hz_linear_close(layer);
	}
	return status;
}

/* Copies all other tensors, those with larger elements first, so that all are aligned. Layers of an
 * earlier run come first of all: their bytes are aligned to 64. */
static int write_others(struct work *k)
{
	for (int align = 64; align > 0; align /= 2) {
		for (int64_t i = 0; i < k->m.count; i++) {
			const struct model_tensor *t = &k->m.tensor[i];
			int status;

			if (k->written[i] || (t->layer.format ? 64 : model_align(t)) != align)
				continue;
			status = writer_put(&k->writer, t->data, t->bytes);
			if (status)
				return status;
			model_release(&k->m, t);
			k->out.tensor[k->out.count++] = *t;
			k->written[i] = true;
		}
	}
	return 0;
}

static int quantize(struct work *k)
{
	const double start = now();
	int status = make_plans(k);

	if (!status)
		status = open_context(&k->ctx, k->r->device, k->r->threads, HZ_ISA_AUTO);
	if (!status && k->r->bits != 0)
		status = choose_formats(k->ctx, &k->m, k->plan, k->plans, k->r->bits, k->r->flags,
					k->moment ? &k->moments : NULL);
	if (!status)
		status = open_output(k);
	if (!status)
		status = write_layers(k);
	if (!status)
		status = write_others(k);
	k->out.text = k->m.text;
	k->out.texts = k->m.texts;
	if (!status)
		status = writer_finish(&k->writer, &k->out);
	if (!status && k->weights != 0)
		printf("total: %.0f weights in %.0f bytes, %.3f bits a weight, error %.2f dB, "
		       "%.2f s\n", k->weights, k->bytes, 8 * k->bytes / k->weights,
		       k->error > 0 ? 10 * log10(k->error / k->weights) : -400, now() - start);
	return status;
}

/* ---- The command ----------------------------------------------------------------------------- */

static void help(void)
{
	int column = 8;

	printf("Usage: hurwitz quantize MODEL.safetensors -o OUT.safetensors [OPTION]...\n"
	       "Compress the matrices of a model: tensors of two dimensions [out, in] of F32,\n"
	       "F16 or BF16 become layers as of hz_linear_open(3); all others are copied. OUT\n"
	       "appears only when it is complete. A table says what became of each.\n"
	       "\n"
	       "  -o, --output OUT     the file to write\n"
	       "  -f, --format F       one format for all; default s8-row\n"
	       "  -b, --bits B         instead: a format for each, with B bits a weight in all\n"
	       "                       and the least error\n"
	       "  -r, --rotate         rotate in-features by a randomized Hadamard transform\n"
	       "  -c, --calibrate X    activations, X.npy [.., in]: their mean squares weigh the\n"
	       "                       errors of matrices with as many in-features\n"
	       "  -s, --skip GLOB      copy tensors whose names match; may be repeated\n"
	       "  -d, --device DEVICE  cpu, the default, cuda, cuda:N or auto; the same bytes\n"
	       "  -t, --threads N      CPU threads; default: the cores allowed\n"
	       "  -h, --help           this\n"
	       "\n"
	       "Formats:");
	for (const char *name = format_names(); *name; name += strspn(name, " ")) {
		const int n = (int)strcspn(name, " ");

		printf("%s %.*s", column + n > 78 ? "\n        " : "", n, name);
		column = column + n > 78 ? 9 + n : column + 1 + n;
		name += n;
	}
	printf(".\n");
}

static int parse(int argc, char **argv, struct request *r)
{
	static const struct option options[] = {
		{"output", required_argument, NULL, 'o'}, {"format", required_argument, NULL, 'f'},
		{"bits", required_argument, NULL, 'b'}, {"rotate", no_argument, NULL, 'r'},
		{"calibrate", required_argument, NULL, 'c'}, {"skip", required_argument, NULL, 's'},
		{"device", required_argument, NULL, 'd'}, {"threads", required_argument, NULL, 't'},
		{"help", no_argument, NULL, 'h'}, {NULL, 0, NULL, 0},
	};
	int c;

	while ((c = next_option(argc, argv, "quantize", "o:f:b:rc:s:d:t:h", options)) != -1) {
		switch (c) {
		case 'o':
			r->output = optarg;
			break;
		case 'f':
			r->format = format_of_name(optarg);
			if (!r->format)
				return complain(EXIT_BAD, "quantize: there is no format '%s' "
						"(valid: %s)", optarg, format_names());
			break;
		case 'b':
			if (!parse_number(optarg, &r->bits) || r->bits <= 0 || r->bits > 32)
				return complain(EXIT_BAD, "quantize: --bits=%s: the value must be "
						"a number above 0, at most 32", optarg);
			break;
		case 'r':
			r->flags |= HZ_LINEAR_ROTATE;
			break;
		case 'c':
			r->calibrate = optarg;
			break;
		case 's':
			if (r->skips == SKIPS_MAX)
				return complain(EXIT_BAD, "quantize: --skip is given more than %d "
						"times", SKIPS_MAX);
			r->skip[r->skips++] = optarg;
			break;
		case 'd':
			if (parse_device("quantize", optarg, &r->device))
				return EXIT_BAD;
			break;
		case 't':
			if (parse_threads("quantize", optarg, &r->threads))
				return EXIT_BAD;
			break;
		case 'h':
			help();
			return -1;
		default:
			return EXIT_BAD;
		}
	}
	if (optind + 1 != argc)
		return complain(EXIT_BAD, "quantize: one MODEL.safetensors is needed; try 'hurwitz "
				"quantize --help'");
	r->input = argv[optind];
	if (!r->output)
		return complain(EXIT_BAD, "quantize: --output is missing");
	if (r->format && r->bits != 0)
		return complain(EXIT_BAD, "quantize: give --format or --bits, not both");
	r->format = r->format ? r->format : HZ_LINEAR_S8_ROW;
	return 0;
}

int verb_quantize(int argc, char **argv)
{
	struct request r = {.device = HZ_CPU};
	struct work k = {.r = &r};
	char why[NPY_WHY];
	int status = parse(argc, argv, &r);

	if (status)
		return status < 0 ? EXIT_SUCCESS : status;
	status = model_open(&k.m, r.input, why);
	if (status)
		return complain(status, "%s: %s", r.input, why);
	if (k.m.gguf)
		status = complain(EXIT_BAD, "%s: is a .gguf file; a .safetensors file is needed",
				  r.input);
	if (!status && r.calibrate)
		status = read_moments(&k);
	if (!status)
		status = quantize(&k);
	outputs_drop();
	hz_close(k.ctx);
	free(k.moment);
	free(k.plan);
	free(k.written);
	free(k.out.tensor);
	model_close(&k.m);
	return status;
}
