/*
 * encoder.h - sentence embeddings by a BERT encoder whose linear layers are hz_linear
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#ifndef ENCODER_H
#define ENCODER_H

#include <stdint.h>

#include <hurwitz.h>

/* Prints a message and exits: an example has nobody to return an error to. */
void fail(const char *format, ...) __attribute__((format(printf, 1, 2), noreturn));
void try(const hz_context *ctx, int status);

/* ---- WordPiece (wordpiece.c) ----------------------------------------------------------------- */

struct vocabulary;

struct vocabulary *vocabulary_open(const char *path);
void vocabulary_close(struct vocabulary *v);

/* Writes at most `most` tokens of a line of UTF-8, [CLS] .. [SEP]; their number */
int64_t tokenize(const struct vocabulary *v, const char *text, int32_t *tokens, int64_t most);

/* ---- A .safetensors file (weights.c) --------------------------------------------------------- */

struct weights;

struct weights *weights_open(const char *path);
void weights_close(struct weights *w);

/* An f32 tensor in the mapped file; NULL if there is none of the name. Fewer dimensions: 1 each. */
const float *weights_find(const struct weights *w, const char *name, int64_t shape[2]);

/* Likewise, of [rows, columns], or of any size where that is 0 */
const float *weights_need(const struct weights *w, int64_t rows, int64_t columns,
			  const char *format, ...) __attribute__((format(printf, 4, 5)));

/* ---- The encoder (encoder.c) ----------------------------------------------------------------- */

struct encoder;

struct encoder_times {
	double wall, cpu;	/* seconds in linear layers, with copies to and from a GPU */
};

/*
 * Reads model.safetensors and config.json of a directory, in f32. Linear layers run on the device
 * of ctx once they are quantized, all else on the host.
 */
struct encoder *encoder_open(hz_context *ctx, const char *directory);

/*
 * Quantizes to a format of enum hz_linear_format. flags: HZ_LINEAR_ROTATE. With n sentences, as of
 * encoder_run(), each layer is calibrated by its inputs as these run in f32.
 */
void encoder_quantize(struct encoder *e, int format, uint32_t flags, const int32_t *tokens,
		      const int64_t *start, int64_t n);
void encoder_close(struct encoder *e);

int64_t encoder_width(const struct encoder *e);
int64_t encoder_length(const struct encoder *e);	/* the most tokens of a sentence */
int64_t encoder_bytes(const struct encoder *e);		/* of all weights as stored */
struct encoder_times encoder_times(const struct encoder *e);

/*
 * The embeddings of n sentences, each of length 1: vectors [n, width]. Tokens of sentence i are
 * tokens[start[i]] .. tokens[start[i + 1] - 1]; nothing is padded.
 */
void encoder_run(struct encoder *e, const int32_t *tokens, const int64_t *start, int64_t n,
		 float *vectors);

#endif
