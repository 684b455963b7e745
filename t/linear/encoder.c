/*
 * encoder.c - doc/examples/encoder with a small made model, against its definition in double
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#include <config.h>

#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "doc/examples/encoder/encoder.h"
#include "t/core/dev.h"

#define LAYERS 2
#define WIDTH 48
#define HEADS 3
#define FFN 80
#define POSITIONS 20
#define SENTENCES 5

static const char *const pieces[] = {
	"[PAD]", "[UNK]", "[CLS]", "[SEP]", "the", "un", "##want", "##ed", "runn", "##ing", ",",
	"!", "a", "##b", "cafe", "\xe4\xb8\xad", "\xe2\x80\x94", "\xc3\xb8re", "\xc5\x82od", "hat",
};

#define WORDS ((int64_t)(sizeof(pieces) / sizeof(*pieces)))

static char directory[] = "/tmp/hz-encoder-XXXXXX", path[64];
static uint64_t rnd;

void fail(const char *format, ...)
{
	va_list list;

	va_start(list, format);
	vfprintf(stderr, format, list);
	va_end(list);
	fflush(NULL);
	_exit(9);
}

void try(const hz_context *ctx, int status)
{
	if (status != HZ_OK)
		fail("# %s\n", hz_errmsg(ctx));
}

static const char *in_directory(const char *name)
{
	snprintf(path, sizeof(path), "%s/%s", directory, name);
	return path;
}

static void write_file(const char *name, const char *head, size_t head_bytes, const void *data,
		       size_t bytes)
{
	FILE *const file = fopen(in_directory(name), "wb");

	if (!file || fwrite(head, 1, head_bytes, file) != head_bytes ||
	    (bytes && fwrite(data, 1, bytes, file) != bytes) || fclose(file))
		bail("cannot write %s", path);
}

/* ---- A model --------------------------------------------------------------------------------- */

enum { WORD, POSITION, TYPE, SCALE, SHIFT, EMBEDDINGS };
enum {
	QUERY, QUERY_BIAS, KEY, KEY_BIAS, VALUE, VALUE_BIAS, OUT, OUT_BIAS, OUT_SCALE, OUT_SHIFT,
	UP, UP_BIAS, DOWN, DOWN_BIAS, DOWN_SCALE, DOWN_SHIFT, OF_LAYER
};

struct shape {
	const char *name;
	int64_t rows, columns;		/* rows 0: one dimension */
};

static const struct shape of_model[] = {
	{"embeddings.word_embeddings.weight", WORDS, WIDTH},
	{"embeddings.position_embeddings.weight", POSITIONS, WIDTH},
	{"embeddings.token_type_embeddings.weight", 2, WIDTH},
	{"embeddings.LayerNorm.weight", 0, WIDTH}, {"embeddings.LayerNorm.bias", 0, WIDTH},
}, of_layer[] = {
	{"attention.self.query.weight", WIDTH, WIDTH}, {"attention.self.query.bias", 0, WIDTH},
	{"attention.self.key.weight", WIDTH, WIDTH}, {"attention.self.key.bias", 0, WIDTH},
	{"attention.self.value.weight", WIDTH, WIDTH}, {"attention.self.value.bias", 0, WIDTH},
	{"attention.output.dense.weight", WIDTH, WIDTH}, {"attention.output.dense.bias", 0, WIDTH},
	{"attention.output.LayerNorm.weight", 0, WIDTH},
	{"attention.output.LayerNorm.bias", 0, WIDTH},
	{"intermediate.dense.weight", FFN, WIDTH}, {"intermediate.dense.bias", 0, FFN},
	{"output.dense.weight", WIDTH, FFN}, {"output.dense.bias", 0, WIDTH},
	{"output.LayerNorm.weight", 0, WIDTH}, {"output.LayerNorm.bias", 0, WIDTH},
};

static float data[1 << 16];
static const float *embedding[EMBEDDINGS], *weight[LAYERS][OF_LAYER];
static char header[16384];

/* Adds a tensor to the header, behind the others. */
static const float *add(const char *prefix, const struct shape *s, int64_t *at)
{
	const int64_t n = (s->rows ? s->rows : 1) * s->columns;
	float *const to = data + *at;
	char shape[64];

	for (int64_t i = 0; i < n; i++)
		to[i] = (float)(rnd_normal(&rnd) * (s->rows ? 0.15 : 0.1) +
				(strstr(s->name, "Norm.weight") ? 1 : 0));
	snprintf(shape, sizeof(shape), s->rows ? "[%d, %d]" : "[%d]",
		 (int)(s->rows ? s->rows : s->columns), (int)s->columns);
	snprintf(header + strlen(header), sizeof(header) - strlen(header),
		 "%s \"%s%s\": {\"dtype\": \"F32\", \"shape\": %s, \"data_offsets\": [%d, %d]}",
		 *at ? "," : "{", prefix, s->name, shape, (int)(4 * *at), (int)(4 * (*at + n)));
	*at += n;
	return to;
}

static void write_model(void)
{
	static const char config[] = "{\"num_attention_heads\": 3}";
	static char head[sizeof(header) + 8];
	char vocabulary[1024] = "";
	int64_t at = 0;
	uint64_t size;

	for (int i = 0; i < EMBEDDINGS; i++)
		embedding[i] = add("", &of_model[i], &at);
	for (int l = 0; l < LAYERS; l++) {
		char prefix[32];

		snprintf(prefix, sizeof(prefix), "encoder.layer.%d.", l);
		for (int i = 0; i < OF_LAYER; i++)
			weight[l][i] = add(prefix, &of_layer[i], &at);
	}
	strcat(header, "}");
	while (strlen(header) % 8)
		strcat(header, " ");
	size = strlen(header);
	memcpy(head, &size, 8);
	memcpy(head + 8, header, size);
	write_file("model.safetensors", head, 8 + size, data, 4 * (size_t)at);
	write_file("config.json", config, strlen(config), NULL, 0);
	for (int i = 0; i < WORDS; i++) {
		strcat(vocabulary, pieces[i]);
		strcat(vocabulary, "\n");
	}
	write_file("vocab.txt", vocabulary, strlen(vocabulary), NULL, 0);
}

/* ---- Its definition -------------------------------------------------------------------------- */

static void dense_in_double(const float *w, const float *bias, const double *x, int out, int in,
			    double *y)
{
	for (int o = 0; o < out; o++) {
		y[o] = (double)bias[o];
		for (int k = 0; k < in; k++)
			y[o] += (double)w[o * in + k] * x[k];
	}
}

static void norm_in_double(const float *scale, const float *shift, double *x)
{
	double mean = 0, square = 0;

	for (int i = 0; i < WIDTH; i++)
		mean += x[i] / WIDTH;
	for (int i = 0; i < WIDTH; i++)
		square += (x[i] - mean) * (x[i] - mean) / WIDTH;
	for (int i = 0; i < WIDTH; i++)
		x[i] = (x[i] - mean) / sqrt(square + 1e-12) * (double)scale[i] + (double)shift[i];
}

static void layer_in_double(const float *const *w, int64_t n, double x[][WIDTH])
{
	static double q[POSITIONS][WIDTH], k[POSITIONS][WIDTH], v[POSITIONS][WIDTH];
	double up[FFN], y[WIDTH], a[WIDTH];

	for (int64_t t = 0; t < n; t++) {
		dense_in_double(w[QUERY], w[QUERY_BIAS], x[t], WIDTH, WIDTH, q[t]);
		dense_in_double(w[KEY], w[KEY_BIAS], x[t], WIDTH, WIDTH, k[t]);
		dense_in_double(w[VALUE], w[VALUE_BIAS], x[t], WIDTH, WIDTH, v[t]);
	}
	for (int64_t t = 0; t < n; t++) {
		for (int i = 0; i < WIDTH; i++) {
			const int first = i / (WIDTH / HEADS) * (WIDTH / HEADS);
			double sum = 0;

			a[i] = 0;
			for (int64_t j = 0; j < n; j++) {
				double score = 0;

				for (int c = first; c < first + WIDTH / HEADS; c++)
					score += q[t][c] * k[j][c];
				score = exp(score / sqrt(WIDTH / HEADS));
				sum += score;
				a[i] += score * v[j][i];
			}
			a[i] /= sum;
		}
		dense_in_double(w[OUT], w[OUT_BIAS], a, WIDTH, WIDTH, y);
		for (int i = 0; i < WIDTH; i++)
			x[t][i] += y[i];
		norm_in_double(w[OUT_SCALE], w[OUT_SHIFT], x[t]);
		dense_in_double(w[UP], w[UP_BIAS], x[t], FFN, WIDTH, up);
		for (int i = 0; i < FFN; i++)
			up[i] *= 0.5 * (1 + erf(up[i] / sqrt(2)));
		dense_in_double(w[DOWN], w[DOWN_BIAS], up, WIDTH, FFN, y);
		for (int i = 0; i < WIDTH; i++)
			x[t][i] += y[i];
		norm_in_double(w[DOWN_SCALE], w[DOWN_SHIFT], x[t]);
	}
}

static void encode_in_double(const int32_t *tokens, int64_t n, double *vector)
{
	static double x[POSITIONS][WIDTH];
	double square = 0;

	for (int64_t t = 0; t < n; t++) {
		for (int i = 0; i < WIDTH; i++)
			x[t][i] = (double)embedding[WORD][tokens[t] * WIDTH + i] +
				  (double)embedding[POSITION][t * WIDTH + i] +
				  (double)embedding[TYPE][i];
		norm_in_double(embedding[SCALE], embedding[SHIFT], x[t]);
	}
	for (int l = 0; l < LAYERS; l++)
		layer_in_double(weight[l], n, x);
	for (int i = 0; i < WIDTH; i++) {
		vector[i] = 0;
		for (int64_t t = 0; t < n; t++)
			vector[i] += x[t][i] / (double)n;
		square += vector[i] * vector[i];
	}
	for (int i = 0; i < WIDTH; i++)
		vector[i] /= sqrt(square);
}

/* ---- Tests ----------------------------------------------------------------------------------- */

static void test_tokens(void)
{
	static const struct {
		const char *text;
		int64_t most, n;
		int32_t tokens[9];
	} rows[] = {
		{"", 9, 2, {2, 3}},
		{"Unwanted, running\n", 9, 8, {2, 5, 6, 7, 10, 8, 9, 3}},
		{"the zebra!", 9, 5, {2, 4, 1, 11, 3}},
		{"Caf\xc3\xa9  CAFE\xcc\x81\tcafe", 9, 5, {2, 14, 14, 14, 3}},
		{"\xc3\x98RE \xc5\x81\xc3\x93" "D", 9, 4, {2, 17, 18, 3}},
		{"a\xe4\xb8\xad" "a\xe2\x80\x94" "abb", 9, 9, {2, 12, 15, 12, 16, 12, 13, 13, 3}},
		{"unwanted the", 4, 4, {2, 5, 6, 3}},
		{"!!!!", 2, 2, {2, 3}},
		{"ba \xff\xc3 a", 9, 4, {2, 1, 12, 3}},
	};
	struct vocabulary *const v = vocabulary_open(in_directory("vocab.txt"));
	char word[202] = "a";
	int32_t tokens[128];

	for (size_t i = 0; i < sizeof(rows) / sizeof(*rows); i++) {
		const int64_t n = tokenize(v, rows[i].text, tokens, rows[i].most);

		ok(n == rows[i].n && memcmp(tokens, rows[i].tokens, 4 * (size_t)n) == 0,
		   "tokens of row %d", (int)i);
	}
	memset(word + 1, 'b', 99);
	ok(tokenize(v, word, tokens, 128) == 102 && tokens[1] == 12 && tokens[100] == 13,
	   "a word of 100 characters");
	memset(word + 1, 'b', 200);
	ok(tokenize(v, word, tokens, 128) == 3 && tokens[1] == 1, "longer words are [UNK]");
	vocabulary_close(v);
}

static double least_cosine(const float *v, const double *want)
{
	double least = 1;

	for (int i = 0; i < SENTENCES; i++) {
		double sum = 0;

		for (int k = 0; k < WIDTH; k++)
			sum += (double)v[i * WIDTH + k] * want[i * WIDTH + k];
		least = sum < least ? sum : least;
	}
	return least;
}

static void test_vectors(hz_context *ctx)
{
	static const struct {
		int format;
		uint32_t flags;
		bool calibrates;
		double least;
	} rows[] = {
		{0, 0, false, 1 - 1e-6}, {HZ_LINEAR_S8_ROW, 0, false, 0.98},
		{HZ_LINEAR_S4_G32, 0, false, 0.9}, {HZ_LINEAR_S4_G32, 0, true, 0.95},
		{HZ_LINEAR_E8_4_25, HZ_LINEAR_ROTATE, false, 0.9},
		{HZ_LINEAR_E8_4_25, HZ_LINEAR_ROTATE, true, 0.95},
	};
	static const int64_t start[SENTENCES + 1] = {0, 7, 9, 29, 30, 41};
	static double want[SENTENCES * WIDTH];
	float got[SENTENCES * WIDTH], alone[SENTENCES * WIDTH];
	int32_t tokens[41];
	double least;

	for (int i = 0; i < 41; i++)
		tokens[i] = (int32_t)rnd_below(&rnd, WORDS);
	for (int i = 0; i < SENTENCES; i++)
		encode_in_double(tokens + start[i], start[i + 1] - start[i], want + i * WIDTH);
	for (size_t i = 0; i < sizeof(rows) / sizeof(*rows); i++) {
		struct encoder *const e = encoder_open(ctx, directory);

		if (rows[i].format)
			encoder_quantize(e, rows[i].format, rows[i].flags, tokens, start,
					 rows[i].calibrates ? SENTENCES : 0);
		is_int(encoder_width(e), WIDTH, "width");
		encoder_run(e, tokens, start, 1, alone);
		encoder_run(e, tokens, start, SENTENCES, got);
		for (int s = 1; s < SENTENCES; s++)
			encoder_run(e, tokens, start + s, 1, alone + s * WIDTH);
		least = least_cosine(got, want);
		ok(least >= rows[i].least && least < 1 + 1e-6, "%s%s: cosine %.6f",
		   rows[i].format ? hz_linear_format_name(rows[i].format) : "f32",
		   rows[i].calibrates ? ", calibrated" : "", least);
		least = least_cosine(alone, want);
		ok(least >= rows[i].least && least < 1 + 1e-6, "one at a time: cosine %.6f", least);
		encoder_close(e);
	}
}

/* Files that are no model end the program with a message. */
static void test_refusals(void)
{
	static const struct {
		const char *bytes;
		size_t n;
	} rows[] = {
		{"", 0}, {"\xff\xff\xff\xff\xff\xff\xff\xff{}..", 12},
		{"\x40\0\0\0\0\0\0\0{}..", 12},
		{"\4\0\0\0\0\0\0\0{}  ", 12},
	};
	const hz_options cpu = {.device = HZ_CPU};

	for (size_t i = 0; i < sizeof(rows) / sizeof(*rows); i++) {
		int status = 0;
		pid_t child;

		write_file("model.safetensors", rows[i].bytes, rows[i].n, NULL, 0);
		fflush(NULL);
		child = fork();
		if (child == 0) {
			hz_context *ctx;

			if (freopen("/dev/null", "w", stderr) && hz_open(&ctx, &cpu) == HZ_OK)
				encoder_open(ctx, directory);
			_exit(0);
		}
		ok(child > 0 && waitpid(child, &status, 0) == child && WIFEXITED(status) &&
		   WEXITSTATUS(status) == 9, "file %d is refused", (int)i);
	}
}

int main(void)
{
	rnd = tap_seed();
	if (!mkdtemp(directory))
		bail("no directory in /tmp");
	write_model();
	test_tokens();
	dev_open_all();
	for (int i = 0; i < ndevs; i++)
		test_vectors(devs[i].ctx);
	dev_close_all();
	test_refusals();
	unlink(in_directory("model.safetensors"));
	unlink(in_directory("config.json"));
	unlink(in_directory("vocab.txt"));
	rmdir(directory);
	return done_testing();
}
