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
#include <sys/stat.h>
#include <unistd.h>
#ifdef __GLIBC__
#include <malloc.h>
#endif

#include "tools/core/output.h"
#include "tools/quantize/quantize.h"

#define SKIPS_MAX 64
#define CALIBRATIONS_MAX 1024
#define PRODUCTS_MOST 4096	/* features: their factors take in^3 / 3 multiply-adds a tensor */

struct request {
	const char *input, *output;
	const char *calibrate[CALIBRATIONS_MAX];	/* [GLOB=]X.npy */
	int calibrations;
	const char *skip[SKIPS_MAX];
	int skips;
	bool matched[SKIPS_MAX];	/* the pattern matches a tensor */
	int format;
	double bits;		/* 0: one format for all */
	uint32_t flags;
	int32_t device, threads;
};

struct work {
	struct request *r;
	hz_context *ctx;
	struct model m;			/* the input */
	struct model out;		/* the output, in the order in which tensors are written;
					 * strings are the input's or constants */
	bool *written;			/* of the input's tensors */
	struct layer_plan *plan;
	int64_t plans;
	struct moments moments[CALIBRATIONS_MAX];
	struct moments *made;		/* the last whose products were made */
	struct writer writer;
	double weights, bytes, error;	/* of all layers */
	int name_width;			/* of the table */
};

/* ---- Calibration ----------------------------------------------------------------------------- */

#define ROWS 64			/* that are multiplied at a time */
#define COLUMNS HZI_LINEAR_COLUMNS	/* of a panel */

typedef float four __attribute__((vector_size(16)));

/*
 * sum[i][j] = the sum of a[r][i] b[r][j] over ROWS rows of two panels. Four sums of each j fit
 * registers.
 */
static void multiply_panels(const float *a, const float *b, float sum[COLUMNS][COLUMNS])
{
	for (int first = 0; first < COLUMNS; first += 4) {
		four s[4][2] = {{{0}}};

		for (int r = 0; r < ROWS; r++) {
			four x[2];

			memcpy(x, b + r * COLUMNS, sizeof(x));
			for (int i = 0; i < 4; i++) {
				const float f = a[r * COLUMNS + first + i];
				const four same = {f, f, f, f};

				s[i][0] += same * x[0];
				s[i][1] += same * x[1];
			}
		}
		memcpy(sum[first], s, sizeof(s));
	}
}

/* The rotation of activations that weights have, too: nothing without a context */
struct rotation {
	hz_context *cpu;
	hz_hadamard_opts opts;
	hz_tensor signs;
};

/*
 * Adds the means of products of two columns, [n, n], in panels above the diagonal and in it. No sum
 * exceeds the larger of two mean squares, since x is divided by the root of the number of rows
 * first.
 */
static int mean_products(const struct npy *a, int64_t n, const struct rotation *rotation, float *to)
{
	const int64_t rows = a->count / n, panels = (n + COLUMNS - 1) / COLUMNS;
	const double share = 1 / sqrt((double)rows);
	float *const x = allocate((size_t)panels * ROWS * COLUMNS * sizeof(float));
	float *const some = allocate((size_t)n * ROWS * sizeof(float));
	int status = x && some ? HZ_OK : HZ_ENOMEM;

	for (int64_t first = 0; first < rows && !status; first += ROWS) {
		const int64_t count = rows - first < ROWS ? rows - first : ROWS;
		hz_tensor t = hz_tensor_2d(some, HZ_F32, HZ_CPU, count, n);

		for (int64_t i = 0; i < count * n; i++)
			some[i] = (float)(load_element(a->data, first * n + i, a->dtype) * share);
		if (rotation->cpu)
			status = hz_hadamard(rotation->cpu, &t, &t, &rotation->opts);
		memset(x, 0, (size_t)panels * ROWS * COLUMNS * sizeof(*x));
		for (int64_t i = 0; i < count * n; i++)
			x[(i % n / COLUMNS * ROWS + i / n) * COLUMNS + i % n % COLUMNS] = some[i];
		for (int64_t p = 0; p < panels; p++) {
			float *const panel = to + hzi_linear_panels(p);

			for (int64_t q = 0; q <= p; q++) {
				float sum[COLUMNS][COLUMNS], *y = panel + q * COLUMNS * COLUMNS;

				multiply_panels(x + q * ROWS * COLUMNS, x + p * ROWS * COLUMNS,
						sum);
				for (int i = 0; i < COLUMNS * COLUMNS; i++)
					y[i] += sum[i / COLUMNS][i % COLUMNS];
			}
		}
	}
	free(x);
	free(some);
	return status;
}

static int read_activations(struct npy *a, const char *path)
{
	char why[NPY_WHY];
	const int status = array_read(a, path, why);

	return status ? complain(status, "%s: %s", path, why) : 0;
}

static int open_rotation(const struct request *r, int64_t n, struct rotation *to)
{
	struct hzi_linear_header h = {.in = n};
	uint8_t *const signs = allocate((size_t)(n + 7) / 8);
	int status = signs ? open_context(&to->cpu, HZ_CPU, r->threads, HZ_ISA_AUTO) :
			     EXIT_FAILURE;

	if (status) {
		free(signs);
		return status;
	}
	hzi_linear_choose_plan(&h);
	hz_hadamard_signs(signs, n, h.seed);
	to->signs = hz_tensor_1d(signs, HZ_U8, HZ_CPU, (n + 7) / 8);
	to->opts = hzi_linear_rotation(&h);
	to->opts.pre = &to->signs;
	return 0;
}

static void drop_products(struct moments *m)
{
	free(m->products.u);
	free(m->products.d);
	m->products = (struct hzi_linear_factors){0};
}

/* Makes the means of products, of a itself or of the file again if that is NULL. */
static int make_products(const struct request *r, struct moments *m, const struct npy *a)
{
	const int64_t n = m->squares.shape[0], panels = (n + COLUMNS - 1) / COLUMNS;
	struct rotation rotation = {0};
	struct npy again = {0};
	int status = a ? 0 : read_activations(&again, m->path);

	if (!status && !a && (!again.ndim || again.shape[again.ndim - 1] != n || !again.count))
		status = complain(EXIT_BAD, "%s: has changed since it was read first", m->path);
	if (!status && r->flags & HZ_LINEAR_ROTATE)
		status = open_rotation(r, n, &rotation);
	if (!status) {
		m->products.d = allocate((size_t)n * sizeof(double));
		m->products.u = calloc((size_t)hzi_linear_panels(panels), sizeof(float));
		if (!m->products.d || !m->products.u ||
		    mean_products(a ? a : &again, n, &rotation, m->products.u))
			status = complain(EXIT_FAILURE, "%s: there is not enough memory for it",
					  m->path);
	}
	npy_free(&again);
	hz_close(rotation.cpu);
	free(rotation.signs.data);
	if (status)
		drop_products(m);
	return status;
}

/* The mean squares of activations of n columns; products are wanted up to PRODUCTS_MOST columns */
static int fill_moments(const struct request *r, const struct npy *a, int64_t n, struct moments *m)
{
	const int64_t rows = a->count / n;
	float *const squares = allocate((size_t)n * sizeof(float));
	double *const sum = allocate((size_t)n * sizeof(double));
	double all = 0;
	struct stat st;
	bool again;
	int status = squares && sum ? 0 :
		     complain(EXIT_FAILURE, "%s: there is not enough memory for it", m->path);

	for (int64_t i = 0; !status && i < n; i++)
		sum[i] = 0;
	for (int64_t i = 0; !status && i < a->count; i++) {
		const double x = (double)(float)load_element(a->data, i, a->dtype);

		sum[i % n] += x * x;
	}
	for (int64_t i = 0; !status && i < n; i++) {
		squares[i] = (float)(sum[i] / (double)rows);
		all += (double)squares[i];
		if (!isfinite(squares[i]))
			status = complain(EXIT_BAD, "%s: the mean square of feature %lld is not "
					  "finite", m->path, (long long)i);
	}
	if (!status && !(all > 0))
		status = complain(EXIT_BAD, "%s: the mean squares of all features are 0 in "
				  "f32", m->path);
	free(sum);
	m->squares = hz_tensor_1d(squares, HZ_F32, HZ_CPU, n);
	m->wanted = n <= PRODUCTS_MOST;
	/* FILE.safetensors:TENSOR is no path of a pipe. */
	again = model_path(m->path) || (!stat(m->path, &st) && S_ISREG(st.st_mode));
	return status || again || !m->wanted ? status : make_products(r, m, a);
}

static int read_moments(const struct request *r, struct moments *m, const char *path)
{
	struct npy a;
	int status = read_activations(&a, path);
	int64_t n;

	if (status)
		return status;
	m->path = path;
	n = a.ndim ? a.shape[a.ndim - 1] : 0;
	if (a.raw || (a.dtype != HZ_F32 && a.dtype != HZ_F16 && a.dtype != HZ_BF16 &&
		      a.dtype != HZ_F64) || !n || !a.count)
		status = complain(EXIT_BAD, "%s: activations are an array [.., in] of f32, f16, "
				  "bf16 or f64 with a row at least", path);
	else
		status = fill_moments(r, &a, n, m);
	npy_free(&a);
	return status;
}

/*
 * The activations of [GLOB=]X.npy are those of all tensors that match and have as many in-features.
 * Later ones replace earlier ones.
 */
static int calibrate(struct work *k, const char *option, struct moments *m)
{
	const char *const end = strchr(option, '=');
	const char *const path = end && access(option, F_OK) ? end + 1 : option;
	char *const glob = path == option ? NULL : strndup(option, (size_t)(end - option));
	bool found = false;
	int status = path == option || glob ? read_moments(k->r, m, path) :
		     complain(EXIT_FAILURE, "quantize: there is not enough memory");

	for (int64_t i = 0; i < k->plans && !status; i++) {
		struct layer_plan *plan = &k->plan[i];

		if ((glob && fnmatch(glob, plan->t->name, 0)) ||
		    plan->t->shape[1] != m->squares.shape[0])
			continue;
		plan->moments = m;
		found = true;
	}
	if (!status && !found)
		status = complain(EXIT_BAD, "%s: has %lld features, but no tensor to quantize"
				  "%s%s%s has as many in-features", path,
				  (long long)m->squares.shape[0], glob ? " that matches '" : "",
				  glob ? glob : "", glob ? "'" : "");
	free(glob);
	return status;
}

/* ---- What becomes a layer -------------------------------------------------------------------- */

static bool skipped(struct request *r, const char *name)
{
	bool found = false;

	for (int i = 0; i < r->skips; i++) {
		const bool matches = fnmatch(r->skip[i], name, 0) == 0;

		r->matched[i] |= matches;
		found |= matches;
	}
	return found;
}

static bool is_matrix(const struct model_tensor *t)
{
	return t->ndim == 2 && t->bytes &&
	       (t->dtype == HZ_F32 || t->dtype == HZ_F16 || t->dtype == HZ_BF16);
}

/* Says why no tensor becomes a layer. */
static void say_no_layer(const struct work *k, int64_t matrices)
{
	if (!matrices)
		complain(EXIT_BAD, "%s: has no tensor of two dimensions of F32, F16 or BF16 to "
			 "quantize", k->r->input);
	else if (!k->plans)
		complain(EXIT_BAD, "%s: --skip matches all %lld matrices: there is none to "
			 "quantize", k->r->input, (long long)matrices);
	else
		complain(EXIT_BAD, "%s: no matrix can be quantized: %s", k->r->input,
			 k->plan[0].refused);
}

static int make_plans(struct work *k)
{
	int64_t matrices = 0, plans = 0, refused = 0;

	k->plan = calloc((size_t)k->m.count + 1, sizeof(*k->plan));
	k->out.tensor = calloc((size_t)k->m.count + 1, sizeof(*k->out.tensor));
	k->written = calloc((size_t)k->m.count + 1, sizeof(*k->written));
	if (!k->plan || !k->out.tensor || !k->written) {
		complain(EXIT_FAILURE, "quantize: there is not enough memory");
		return EXIT_FAILURE;
	}
	for (int64_t i = 0; i < k->m.count; i++) {
		struct model_tensor *t = &k->m.tensor[i];
		const bool skip = skipped(k->r, t->name);

		matrices += is_matrix(t);
		if (skip || !is_matrix(t))
			continue;
		k->plan[plans] = (struct layer_plan){
			.t = t, .format = k->r->format,
			.weights = (double)t->shape[0] * (double)t->shape[1],
			.refused = shape_fault(k->r->format, t->shape),
		};
		refused += k->plan[plans++].refused != NULL;
		k->name_width = name_column(k->name_width, t->name);
	}
	k->plans = plans;
	if (refused == plans) {
		say_no_layer(k, matrices);
		return EXIT_BAD;
	}
	for (int i = 0; i < k->r->skips; i++) {
		if (!k->r->matched[i])
			complain(0, "quantize: --skip=%s matches no tensor", k->r->skip[i]);
	}
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
	/* Layers of an earlier run may get padding. */
	for (int64_t i = 0; i < k->m.count; i++) {
		if (k->m.tensor[i].layer.format)
			longest.tensor[i].shape[0] = (int64_t)WRITER_MOST;
	}
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

static void print_row(const struct work *k, const struct model_tensor *t, const char *format,
		      size_t bytes, double weights, const char *error, double seconds)
{
	char shape[48];

	snprintf(shape, sizeof(shape), "[%lld, %lld]", (long long)t->shape[0],
		 (long long)t->shape[1]);
	print_name(t->name, k->name_width);
	printf(" %-16s %-14s %12zu %7.3f %8s %8.2f\n", shape, format, bytes,
	       8 * (double)bytes / weights, error, seconds);
}

/* The row of a tensor that is copied, and why */
static void print_same(const struct work *k, const struct layer_plan *plan)
{
	print_row(k, plan->t, plan->refused ? plan->refused : "not smaller", plan->t->bytes,
		  plan->weights, "-", 0);
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
	const size_t layer_bytes = status ? 0 : (size_t)info.bytes;
	const size_t bytes = layer_file_bytes(layer_bytes);

	if (!status && bytes >= t->bytes) {
		print_same(k, plan);
		return 0;
	}
	data = allocate(bytes);
	if (!data)
		return complain(EXIT_FAILURE, "quantize: %s: there is not enough memory for it",
				t->name);
	memset((char *)data + layer_bytes, 0, bytes - layer_bytes);
	if (!status)
		status = hz_linear_save(k->ctx, layer, data, layer_bytes);
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
	print_row(k, t, name, bytes, plan->weights, error, now() - start);
	return 0;
}

/* The products that a plan is quantized with, or NULL; they replace those of another file. */
static int take_products(struct work *k, const struct layer_plan *plan,
			 struct hzi_linear_factors **products)
{
	struct moments *const m = plan->moments;

	*products = m && m->wanted ? &m->products : NULL;
	if (!*products || m->products.u)
		return 0;
	if (k->made)
		drop_products(k->made);
	k->made = m;
	return make_products(k->r, m, NULL);
}

static int write_layers(struct work *k)
{
	int status = 0;

	printf("%-*s %-16s %-14s %12s %7s %8s %8s\n", k->name_width, "tensor", "shape", "format",
	       "bytes", "bits", "dB", "s");
	for (int64_t i = 0; i < k->plans && !status; i++) {
		struct layer_plan *plan = &k->plan[i];
		hz_linear_open_opts opts = {.format = plan->format, .flags = k->r->flags,
					    .moments = plan->moments ? &plan->moments->squares :
								       NULL};
		struct hzi_linear_factors *products;
		const double start = now();
		hz_linear *layer;

		if (plan->refused || !plan->format) {
			print_same(k, plan);
			continue;
		}
		progress("%lld of %lld: %s", (long long)i + 1, (long long)k->plans, plan->t->name);
		status = take_products(k, plan, &products);
		if (status) {
			progress_clear();
			break;
		}
		status = open_rows(k->ctx, &k->m, plan, &opts, products, plan->t->shape[0], 1,
				   &layer);
		if (status)
			status = layer_refused(k->ctx, status, plan);
		model_release(&k->m, plan->t);
		progress_clear();
		if (plan->refused)
			print_same(k, plan);
		else if (!status)
			status = write_layer(k, plan, layer, start);
		hz_linear_close(layer);
	}
	if (!status && !k->out.count)
		status = complain(EXIT_BAD, "%s: no matrix can be quantized and made smaller",
				  k->r->input);
	return status;
}

/* Copies a tensor; a layer of an earlier run is padded as new ones are. */
static int write_other(struct work *k, const struct model_tensor *t)
{
	static const char zeros[64];
	const size_t bytes = t->layer.format ? layer_file_bytes(t->bytes) : t->bytes;
	struct model_tensor *to = &k->out.tensor[k->out.count++];
	int status = writer_put(&k->writer, t->data, t->bytes);

	*to = *t;
	if (!status && bytes > t->bytes) {
		status = writer_put(&k->writer, zeros, bytes - t->bytes);
		to->bytes = bytes;
		to->shape[0] = (int64_t)bytes;
	}
	model_release(&k->m, t);
	k->written[t - k->m.tensor] = true;
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
			status = write_other(k, t);
			if (status)
				return status;
		}
	}
	return 0;
}

static int quantize(struct work *k)
{
	const double start = now();
	int status = make_plans(k);

	/* Opened before all the work, since the path may not be writable. */
	if (!status)
		status = open_output(k);
	for (int i = 0; i < k->r->calibrations && !status; i++)
		status = calibrate(k, k->r->calibrate[i], &k->moments[i]);
	if (!status)
		status = open_context(&k->ctx, k->r->device, k->r->threads, HZ_ISA_AUTO);
	if (!status && k->r->bits != 0)
		status = choose_formats(k->ctx, &k->m, k->plan, k->plans, k->r->bits, k->r->flags);
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
	       "F16 or BF16 become layers as of hz_linear_open(3); all others are copied, and so\n"
	       "are those that the format does not hold or not make smaller. OUT appears only\n"
	       "when it is complete. A table says what became of each.\n"
	       "\n"
	       "  -o, --output OUT     the file to write\n"
	       "  -f, --format F       one format for all; default s8-row\n"
	       "  -b, --bits B         instead: a format for each, with B bits a weight in all\n"
	       "                       and the least error\n"
	       "  -r, --rotate         rotate in-features by a randomized Hadamard transform\n"
	       "  -c, --calibrate [GLOB=]X.npy\n"
	       "                       activations [.., in], the input of tensors whose names\n"
	       "                       match, with as many in-features (without GLOB: of all\n"
	       "                       these). Errors are weighed by mean squares of features;\n"
	       "                       up to 4096 features also make up for errors of those\n"
	       "                       before. Those of another layer can do harm. May be\n"
	       "                       repeated\n"
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
			if (r->calibrations == CALIBRATIONS_MAX)
				return complain(EXIT_BAD, "quantize: --calibrate is given more "
						"than %d times", CALIBRATIONS_MAX);
			r->calibrate[r->calibrations++] = optarg;
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
	static struct request r = {.device = HZ_CPU};
	static struct work k = {.r = &r, .name_width = 6};
	char why[NPY_WHY];
	int status = parse(argc, argv, &r);

	if (status)
		return status < 0 ? EXIT_SUCCESS : status;
#ifdef __GLIBC__
	/* It would keep what large arrays take: it raises this when one is freed. */
	mallopt(M_MMAP_THRESHOLD, 1 << 20);
#endif
	status = model_open(&k.m, r.input, false, why);
	if (status)
		return complain(status, "%s: %s", r.input, why);
	status = quantize(&k);
	outputs_drop();
	hz_close(k.ctx);
	for (int i = 0; i < r.calibrations; i++)
		free(k.moments[i].squares.data), drop_products(&k.moments[i]);
	free(k.plan);
	free(k.written);
	free(k.out.tensor);
	model_close(&k.m);
	return status;
}
