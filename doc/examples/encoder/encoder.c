/*
 * encoder.c - a BERT encoder, its linear layers by hz_linear; mean pooling
 *
 * SPDX-License-Identifier: BSD-2-Clause
 *
 * Devlin et al. 2019; pooling and normalization as in Reimers and Gurevych 2019. Tokens of all
 * sentences of a batch are rows of one matrix: linear layers take them all at once, attention each
 * sentence alone, so that nothing is padded.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "encoder.h"

#define LAYERS_MAX 48
#define LENGTH_MAX 256	/* tokens of a sentence that the model was trained with */
#define EPSILON 1e-12	/* of LayerNorm */

#ifdef _OPENMP
#define OMP(...) _Pragma(#__VA_ARGS__)
#else
#define OMP(...)
#endif

struct norm {
	const float *weight, *bias;
};

struct dense {
	hz_linear *layer;	/* NULL: f32 */
	float *w;		/* f32 [out, in] */
	float *bias;		/* on the device of the layer */
	int64_t out, in;
	double *moments;	/* [in, in], while calibrating: sums of x_j x_k, k <= j */
};

struct layer {
	struct dense qkv, out, up, down;
	struct norm after_attention, after_ffn;
};

/* The embeddings of words, rotated, in E8 lattice codes: 5 bits a value and a scale for each row */
struct table {
	hz_lattice *lattice;		/* NULL: f32, in the file */
	hz_tensor codes, t, scale;
};

struct encoder {
	hz_context *ctx, *cpu;	/* cpu: another one if ctx has a GPU */
	struct weights *weights;
	struct layer layer[LAYERS_MAX];
	int64_t layers, width, ffn, heads, length, words;
	const float *word, *position, *type;
	struct norm norm;
	struct table table;
	int threads;
	int64_t bytes, calibrated;	/* calibrated: rows in the moments of each layer */
	int64_t room;			/* tokens that the arrays below have */
	float *x, *wide, *y;		/* [room, width], x and y; the widest of a layer */
	void *from, *to;		/* operands of a layer on a GPU; else NULL */
	struct encoder_times times;
};

static void *memory(hz_context *ctx, int64_t bytes, int device)
{
	void *p;

	try(ctx, hz_alloc(ctx, &p, (size_t)bytes, device));
	return p;
}

/* ---- Loading --------------------------------------------------------------------------------- */

/* Weights of the named matrices, below each other, and their bias */
static void open_dense(struct encoder *e, struct dense *d, int64_t layer, const char *const *name,
		       int names, int64_t rows, int64_t in)
{
	float *b;

	d->out = names * rows;
	d->in = in;
	d->w = memory(e->cpu, 4 * d->out * in, HZ_CPU);
	b = memory(e->cpu, 4 * d->out, HZ_CPU);
	for (int i = 0; i < names; i++) {
		memcpy(d->w + i * rows * in,
		       weights_need(e->weights, rows, in, "encoder.layer.%lld.%s.weight",
				    (long long)layer, name[i]), (size_t)(4 * rows * in));
		memcpy(b + i * rows, weights_need(e->weights, 1, rows, "encoder.layer.%lld.%s.bias",
						  (long long)layer, name[i]), (size_t)(4 * rows));
	}
	d->bias = b;
	e->bytes += 4 * d->out * (in + 1);
}

static void quantize_dense(struct encoder *e, struct dense *d, int format, uint32_t flags)
{
	const int64_t in = d->in;
	const int device = hz_device(e->ctx);
	float *const m = d->moments ? memory(e->cpu, 4 * in * in, HZ_CPU) : NULL;
	const hz_tensor moments = hz_tensor_2d(m, HZ_F32, HZ_CPU, in, in);
	const hz_linear_open_opts opts = {.format = format, .flags = flags,
					  .moments = m ? &moments : NULL};
	hz_tensor host = hz_tensor_2d(d->w, HZ_F32, HZ_CPU, d->out, in), bias;
	hz_linear_info info;

	for (int64_t i = 0; m && i < in * in; i++)
		m[i] = (float)(d->moments[i] / (double)e->calibrated);
	if (device != HZ_CPU) {
		hz_tensor w = hz_tensor_2d(memory(e->ctx, 4 * d->out * in, device), HZ_F32, device,
					   d->out, in);
		float *const b = d->bias;

		try(e->ctx, hz_copy(e->ctx, &host, &w));
		try(e->ctx, hz_linear_open(e->ctx, &d->layer, &w, &opts));
		d->bias = memory(e->ctx, 4 * d->out, device);
		host = hz_tensor_1d(b, HZ_F32, HZ_CPU, d->out);
		bias = hz_tensor_1d(d->bias, HZ_F32, device, d->out);
		try(e->ctx, hz_copy(e->ctx, &host, &bias));
		try(e->ctx, hz_sync(e->ctx));
		hz_free(e->ctx, w.data, device);
		hz_free(e->cpu, b, HZ_CPU);
	} else {
		try(e->ctx, hz_linear_open(e->ctx, &d->layer, &host, &opts));
	}
	hz_free(e->cpu, d->w, HZ_CPU);
	hz_free(e->cpu, m, HZ_CPU);
	hz_free(e->cpu, d->moments, HZ_CPU);
	d->w = NULL;
	d->moments = NULL;
	try(e->ctx, hz_linear_get_info(d->layer, &info));
	e->bytes += info.bytes - 4 * d->out * in;
}

static struct norm open_norm(struct encoder *e, const char *name)
{
	const struct norm n = {
		weights_need(e->weights, 1, e->width, "%s.LayerNorm.weight", name),
		weights_need(e->weights, 1, e->width, "%s.LayerNorm.bias", name),
	};

	e->bytes += 8 * e->width;
	return n;
}

static void open_layer(struct encoder *e, int64_t i)
{
	static const char *const qkv[] = {"attention.self.query", "attention.self.key",
					  "attention.self.value"};
	static const char *const out[] = {"attention.output.dense"};
	static const char *const up[] = {"intermediate.dense"}, *const down[] = {"output.dense"};
	struct layer *const l = &e->layer[i];
	char name[64];

	open_dense(e, &l->qkv, i, qkv, 3, e->width, e->width);
	open_dense(e, &l->out, i, out, 1, e->width, e->width);
	open_dense(e, &l->up, i, up, 1, e->ffn, e->width);
	open_dense(e, &l->down, i, down, 1, e->width, e->ffn);
	snprintf(name, sizeof(name), "encoder.layer.%lld.attention.output", (long long)i);
	l->after_attention = open_norm(e, name);
	snprintf(name, sizeof(name), "encoder.layer.%lld.output", (long long)i);
	l->after_ffn = open_norm(e, name);
}

static void open_table(struct encoder *e, const float *words)
{
	static const hz_hadamard_opts rotation;
	const hz_lattice_opts preset = {.preset = HZ_LATTICE_PRESET_E8_4_50};
	const int64_t blocks = (e->width + 7) / 8;
	const hz_tensor x = hz_tensor_2d((void *)(uintptr_t)words, HZ_F32, HZ_CPU, e->words,
					 e->width);
	struct table *const t = &e->table;
	const hz_lattice_code_opts opts = {.hadamard = &rotation, .row_scale = &t->scale};

	try(e->cpu, hz_lattice_open(e->cpu, &t->lattice, &preset));
	t->codes = hz_tensor_3d(memory(e->cpu, 4 * e->words * blocks, HZ_CPU), HZ_U32, HZ_CPU,
				e->words, blocks, 1);
	t->t = hz_tensor_2d(memory(e->cpu, e->words * blocks, HZ_CPU), HZ_U8, HZ_CPU, e->words,
			    blocks);
	t->scale = hz_tensor_1d(memory(e->cpu, 4 * e->words, HZ_CPU), HZ_F32, HZ_CPU, e->words);
	try(e->cpu, hz_lattice_encode(e->cpu, t->lattice, &x, &t->codes, &t->t, NULL, &opts));
	e->bytes += e->words * (5 * blocks + 4 - 4 * e->width);
}

/* The number of heads, which no tensor tells: of config.json */
static int64_t read_heads(const char *path)
{
	static const char key[] = "\"num_attention_heads\"";
	char text[65536];
	FILE *const file = fopen(path, "rb");
	const char *at;
	long long heads;

	if (!file)
		fail("cannot read %s", path);
	text[fread(text, 1, sizeof(text) - 1, file)] = 0;
	fclose(file);
	at = strstr(text, key);
	if (!at || sscanf(at + strlen(key), " : %lld", &heads) != 1 || heads < 1)
		fail("%s does not say %s", path, key);
	return heads;
}

struct encoder *encoder_open(hz_context *ctx, const char *directory)
{
	const hz_options host = {.device = HZ_CPU};
	struct encoder *const e = calloc(1, sizeof(*e));
	int64_t shape[2];
	char path[4096];
	hz_info info;

	if (!e)
		fail("no memory");
	e->ctx = e->cpu = ctx;
	if (hz_device(ctx) != HZ_CPU && hz_open(&e->cpu, &host) != HZ_OK)
		fail("%s", hz_open_errmsg());
	try(e->cpu, hz_device_info(e->cpu, &info));
	e->threads = info.threads;
	snprintf(path, sizeof(path), "%s/config.json", directory);
	e->heads = read_heads(path);
	snprintf(path, sizeof(path), "%s/model.safetensors", directory);
	e->weights = weights_open(path);
	e->word = weights_find(e->weights, "embeddings.word_embeddings.weight", shape);
	if (!e->word)
		fail("%s has no embeddings of words", path);
	e->words = shape[0];
	e->width = shape[1];
	if (e->width % e->heads || e->width % 2)
		fail("a width of %lld has no %lld heads", (long long)e->width, (long long)e->heads);
	e->position = weights_find(e->weights, "embeddings.position_embeddings.weight", shape);
	if (!e->position || shape[1] != e->width || shape[0] < 2)
		fail("%s has no embeddings of positions", path);
	e->length = shape[0] < LENGTH_MAX ? shape[0] : LENGTH_MAX;
	e->type = weights_need(e->weights, 2, e->width, "embeddings.token_type_embeddings.weight");
	if (!weights_find(e->weights, "encoder.layer.0.intermediate.dense.weight", shape))
		fail("%s has no layers", path);
	e->ffn = shape[0];
	e->norm = open_norm(e, "embeddings");
	e->bytes += 4 * (e->length + 1) * e->width;
	for (;; e->layers++) {
		snprintf(path, sizeof(path), "encoder.layer.%lld.output.dense.weight",
			 (long long)e->layers);
		if (!weights_find(e->weights, path, shape))
			break;
		if (e->layers == LAYERS_MAX)
			fail("the model has more than %d layers", LAYERS_MAX);
		open_layer(e, e->layers);
	}
	e->bytes += 4 * e->words * e->width;
	return e;
}

static void close_dense(struct encoder *e, struct dense *d)
{
	hz_linear_close(d->layer);
	hz_free(e->ctx, d->bias, d->layer ? hz_device(e->ctx) : HZ_CPU);
	hz_free(e->cpu, d->w, HZ_CPU);
	hz_free(e->cpu, d->moments, HZ_CPU);
}

static void free_arrays(struct encoder *e)
{
	hz_free(e->cpu, e->x, HZ_CPU);
	hz_free(e->cpu, e->wide, HZ_CPU);
	hz_free(e->cpu, e->y, HZ_CPU);
	hz_free(e->ctx, e->from, hz_device(e->ctx));
	hz_free(e->ctx, e->to, hz_device(e->ctx));
}

void encoder_close(struct encoder *e)
{
	for (int64_t i = 0; i < e->layers; i++) {
		close_dense(e, &e->layer[i].qkv);
		close_dense(e, &e->layer[i].out);
		close_dense(e, &e->layer[i].up);
		close_dense(e, &e->layer[i].down);
	}
	hz_lattice_close(e->table.lattice);
	hz_free(e->cpu, e->table.codes.data, HZ_CPU);
	hz_free(e->cpu, e->table.t.data, HZ_CPU);
	hz_free(e->cpu, e->table.scale.data, HZ_CPU);
	free_arrays(e);
	weights_close(e->weights);
	if (e->cpu != e->ctx)
		hz_close(e->cpu);
	free(e);
}

int64_t encoder_width(const struct encoder *e)
{
	return e->width;
}

int64_t encoder_length(const struct encoder *e)
{
	return e->length;
}

int64_t encoder_bytes(const struct encoder *e)
{
	return e->bytes;
}

struct encoder_times encoder_times(const struct encoder *e)
{
	return e->times;
}

/* ---- Layers ---------------------------------------------------------------------------------- */

static double seconds(clockid_t clock)
{
	struct timespec now;

	clock_gettime(clock, &now);
	return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static float dot(const float *a, const float *b, int64_t n)
{
	float sum = 0;

	OMP(omp simd reduction(+ : sum))
	for (int64_t i = 0; i < n; i++)
		sum += a[i] * b[i];
	return sum;
}

/* The f32 layer: the library has none, and this is here to compare with, not to be fast. */
static void multiply(const struct dense *d, const float *x, int64_t rows, float *y, int gelu,
		     int threads)
{
	(void)threads;
	OMP(omp parallel for num_threads(threads))
	for (int64_t o = 0; o < d->out; o++) {
		for (int64_t t = 0; t < rows; t++) {
			const float v = dot(x + t * d->in, d->w + o * d->in, d->in) + d->bias[o];

			y[t * d->out + o] = gelu ? 0.5f * v * (1 + erff(v * 0.70710678f)) : v;
		}
	}
}

/* Adds products of the features of x to the moments. */
static void add_moments(struct dense *d, const float *x, int64_t rows, int threads)
{
	(void)threads;
	OMP(omp parallel for num_threads(threads) schedule(dynamic, 8))
	for (int64_t j = 0; j < d->in; j++) {
		for (int64_t t = 0; t < rows; t++) {
			const double f = (double)x[t * d->in + j];

			OMP(omp simd)
			for (int64_t k = 0; k <= j; k++)
				d->moments[j * d->in + k] += f * (double)x[t * d->in + k];
		}
	}
}

/* y [rows, out] = x W^T + bias of x [rows, in], with GELU or without */
static void run_dense(struct encoder *e, struct dense *d, const float *x, int64_t rows,
		      float *y, int gelu)
{
	const hz_linear_opts opts = {.activation = gelu ? HZ_ACT_GELU : HZ_ACT_NONE};
	const int device = hz_device(e->ctx);
	const hz_tensor bias = hz_tensor_1d(d->bias, HZ_F32, device, d->out);
	const hz_tensor host_x = hz_tensor_2d((void *)(uintptr_t)x, HZ_F32, HZ_CPU, rows, d->in);
	const double wall = seconds(CLOCK_MONOTONIC), cpu = seconds(CLOCK_PROCESS_CPUTIME_ID);
	hz_tensor host_y = hz_tensor_2d(y, HZ_F32, HZ_CPU, rows, d->out);
	hz_tensor from = hz_tensor_2d(e->from, HZ_F32, device, rows, d->in);
	hz_tensor to = hz_tensor_2d(e->to, HZ_F32, device, rows, d->out);

	if (d->moments)
		add_moments(d, x, rows, e->threads);
	if (!d->layer) {
		multiply(d, x, rows, y, gelu, e->threads);
	} else if (device == HZ_CPU) {
		try(e->ctx, hz_linear_forward(e->ctx, d->layer, &host_x, &bias, &host_y, &opts));
	} else {
		size_t bytes;

		/* The workspace that a call on a GPU needs is there before it. */
		try(e->ctx, hz_record_begin(e->ctx));
		try(e->ctx, hz_linear_forward(e->ctx, d->layer, &from, &bias, &to, &opts));
		try(e->ctx, hz_record_end(e->ctx, &bytes));
		try(e->ctx, hz_reserve(e->ctx, bytes));
		try(e->ctx, hz_copy(e->ctx, &host_x, &from));
		try(e->ctx, hz_linear_forward(e->ctx, d->layer, &from, &bias, &to, &opts));
		try(e->ctx, hz_copy(e->ctx, &to, &host_y));
		try(e->ctx, hz_sync(e->ctx));
	}
	e->times.wall += seconds(CLOCK_MONOTONIC) - wall;
	e->times.cpu += seconds(CLOCK_PROCESS_CPUTIME_ID) - cpu;
}

/* x = LayerNorm(x + add); add may be NULL */
static void run_norm(const struct norm *n, float *x, const float *add, int64_t rows, int64_t width,
		     int threads)
{
	(void)threads;
	OMP(omp parallel for num_threads(threads))
	for (int64_t t = 0; t < rows; t++) {
		float *const row = x + t * width;
		float mean = 0, square = 0, scale;

		OMP(omp simd reduction(+ : mean))
		for (int64_t i = 0; i < width; i++) {
			row[i] += add ? add[t * width + i] : 0;
			mean += row[i];
		}
		mean /= (float)width;
		OMP(omp simd reduction(+ : square))
		for (int64_t i = 0; i < width; i++)
			square += (row[i] - mean) * (row[i] - mean);
		scale = 1 / sqrtf(square / (float)width + (float)EPSILON);
		OMP(omp simd)
		for (int64_t i = 0; i < width; i++)
			row[i] = (row[i] - mean) * scale * n->weight[i] + n->bias[i];
	}
}

/*
 * One head of one sentence: y = softmax(Q K^T / sqrt(size)) V. Rows of qkv [tokens, 3 width] have
 * queries, then keys, then values.
 */
static void attend(const float *qkv, int64_t tokens, int64_t width, int64_t size, float *y)
{
	const float scale = 1 / sqrtf((float)size);
	float score[LENGTH_MAX];

	for (int64_t i = 0; i < tokens; i++, y += width) {
		float most = -INFINITY, sum = 0;

		for (int64_t j = 0; j < tokens; j++) {
			score[j] = scale * dot(qkv + i * 3 * width, qkv + (j * 3 + 1) * width,
					       size);
			most = score[j] > most ? score[j] : most;
		}
		for (int64_t j = 0; j < tokens; j++) {
			score[j] = expf(score[j] - most);
			sum += score[j];
		}
		memset(y, 0, sizeof(*y) * (size_t)size);
		for (int64_t j = 0; j < tokens; j++) {
			const float *const v = qkv + (j * 3 + 2) * width, p = score[j] / sum;

			OMP(omp simd)
			for (int64_t k = 0; k < size; k++)
				y[k] += p * v[k];
		}
	}
}

/* Room for the rows of a batch */
static void grow(struct encoder *e, int64_t tokens)
{
	const int64_t widest = e->ffn > 3 * e->width ? e->ffn : 3 * e->width;
	const int device = hz_device(e->ctx);

	if (tokens <= e->room)
		return;
	free_arrays(e);
	e->room = tokens;
	e->x = memory(e->cpu, 4 * tokens * e->width, HZ_CPU);
	e->y = memory(e->cpu, 4 * tokens * e->width, HZ_CPU);
	e->wide = memory(e->cpu, 4 * tokens * widest, HZ_CPU);
	e->from = device != HZ_CPU ? memory(e->ctx, 4 * tokens * widest, device) : NULL;
	e->to = device != HZ_CPU ? memory(e->ctx, 4 * tokens * widest, device) : NULL;
}

/* The row of a word, in place or decoded to `to` */
static const float *word(const struct encoder *e, int64_t i, float *to)
{
	static const hz_hadamard_opts rotation;
	const struct table *const t = &e->table;
	const hz_tensor codes = hz_view_slice(&t->codes, 0, i, i + 1);
	const hz_tensor scale_of = hz_view_slice(&t->t, 0, i, i + 1);
	hz_tensor row_scale = hz_view_slice(&t->scale, 0, i, i + 1);
	hz_tensor y = hz_tensor_2d(to, HZ_F32, HZ_CPU, 1, e->width);
	const hz_lattice_code_opts opts = {.hadamard = &rotation, .row_scale = &row_scale};

	if (!t->lattice)
		return e->word + i * e->width;
	try(e->cpu, hz_lattice_decode(e->cpu, t->lattice, &codes, &scale_of, &y, &opts));
	return to;
}

/* Sums of the three embeddings, normalized */
static void embed(struct encoder *e, const int32_t *tokens, const int64_t *start, int64_t n)
{
	for (int64_t i = 0; i < n; i++) {
		for (int64_t t = start[i]; t < start[i + 1]; t++) {
			const int64_t at = (t - start[0]) * e->width;
			const float *const from = word(e, tokens[t], e->y + at);
			const float *const position = e->position + (t - start[i]) * e->width;

			for (int64_t k = 0; k < e->width; k++)
				e->x[at + k] = from[k] + position[k] + e->type[k];
		}
	}
	run_norm(&e->norm, e->x, NULL, start[n] - start[0], e->width, e->threads);
}

static void run_layer(struct encoder *e, struct layer *l, const int64_t *start, int64_t n)
{
	const int64_t width = e->width, rows = start[n] - start[0], size = width / e->heads;

	run_dense(e, &l->qkv, e->x, rows, e->wide, 0);
	OMP(omp parallel for collapse(2) num_threads(e->threads))
	for (int64_t i = 0; i < n; i++) {
		for (int64_t h = 0; h < e->heads; h++) {
			const int64_t first = start[i] - start[0];

			attend(e->wide + first * 3 * width + h * size, start[i + 1] - start[i],
			       width, size, e->y + first * width + h * size);
		}
	}
	run_dense(e, &l->out, e->y, rows, e->wide, 0);
	run_norm(&l->after_attention, e->x, e->wide, rows, width, e->threads);
	run_dense(e, &l->up, e->x, rows, e->wide, 1);
	run_dense(e, &l->down, e->wide, rows, e->y, 0);
	run_norm(&l->after_ffn, e->x, e->y, rows, width, e->threads);
}

void encoder_run(struct encoder *e, const int32_t *tokens, const int64_t *start, int64_t n,
		 float *vectors)
{
	for (int64_t i = 0; i < n; i++) {
		if (start[i + 1] - start[i] > e->length)
			fail("sentence %lld has more than %lld tokens", (long long)i,
			     (long long)e->length);
	}
	for (int64_t t = start[0]; t < start[n]; t++) {
		if (tokens[t] < 0 || tokens[t] >= e->words)
			fail("the model has no token %d: not its vocabulary", tokens[t]);
	}
	grow(e, start[n] - start[0]);
	embed(e, tokens, start, n);
	for (int64_t i = 0; i < e->layers; i++)
		run_layer(e, &e->layer[i], start, n);
	/* The mean of the tokens, of length 1: that makes the division by their number needless. */
	for (int64_t i = 0; i < n; i++, vectors += e->width) {
		float scale;

		memset(vectors, 0, sizeof(*vectors) * (size_t)e->width);
		for (int64_t t = start[i] - start[0]; t < start[i + 1] - start[0]; t++) {
			for (int64_t k = 0; k < e->width; k++)
				vectors[k] += e->x[t * e->width + k];
		}
		scale = 1 / sqrtf(dot(vectors, vectors, e->width));
		for (int64_t k = 0; k < e->width; k++)
			vectors[k] *= scale;
	}
}

#define CALIBRATED 32		/* sentences at a time */

void encoder_quantize(struct encoder *e, int format, uint32_t flags, const int32_t *tokens,
		      const int64_t *start, int64_t n)
{
	struct dense *all[4 * LAYERS_MAX];
	float *vectors;
	int count = 0;

	for (int64_t i = 0; i < e->layers; i++) {
		struct layer *const l = &e->layer[i];

		all[count++] = &l->qkv;
		all[count++] = &l->out;
		all[count++] = &l->up;
		all[count++] = &l->down;
	}
	for (int i = 0; i < count && n > 0; i++) {
		const size_t bytes = sizeof(double) * (size_t)(all[i]->in * all[i]->in);

		all[i]->moments = memory(e->cpu, (int64_t)bytes, HZ_CPU);
		memset(all[i]->moments, 0, bytes);
	}
	vectors = memory(e->cpu, 4 * CALIBRATED * e->width, HZ_CPU);
	for (int64_t i = 0; i < n; i += CALIBRATED)
		encoder_run(e, tokens, start + i, n - i < CALIBRATED ? n - i : CALIBRATED, vectors);
	hz_free(e->cpu, vectors, HZ_CPU);
	e->calibrated = n > 0 ? start[n] - start[0] : 0;
	for (int i = 0; i < count; i++)
		quantize_dense(e, all[i], format, flags);
	open_table(e, e->word);
}
