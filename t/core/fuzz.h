/*
 * fuzz.h - a fuzz target as a test: replays a corpus, mutations of it, and random bytes
 *
 * SPDX-License-Identifier: BSD-2-Clause
 *
 * A target defines LLVMFuzzerTestOneInput() and FUZZ_NAME, and ends the process if it finds a
 * fault. Compiled with HZ_FUZZ it links with libFuzzer ("make fuzz"); otherwise it is a test
 * program that replays t/corpus/FUZZ_NAME, one input per line in hexadecimal digits. With a
 * directory as its argument it writes the corpus there as files, which libFuzzer can start from.
 */
#ifndef FUZZ_H
#define FUZZ_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* Reads an input from front to back; past its end it yields zeros. */
struct bytes {
	const uint8_t *at;
	size_t left;
};

static inline uint8_t next_byte(struct bytes *b)
{
	if (b->left == 0)
		return 0;
	b->left--;
	return *b->at++;
}

static inline void fuzz_must(int condition, const char *what, const char *detail)
{
	if (condition)
		return;
	fprintf(stderr, "%s: %s: %s\n", FUZZ_NAME, what, detail);
	abort();
}

#ifndef HZ_FUZZ

#include "t/core/tap.h"

#define FUZZ_BYTES 256
#define FUZZ_RANDOM 20000

#define FUZZ_CORPUS 4096

static struct fuzz_input {
	uint8_t data[FUZZ_BYTES];
	size_t size;
} corpus[FUZZ_CORPUS];

/* Decodes a line of hexadecimal digits; returns the number of bytes. */
static size_t from_line(const char *line, uint8_t *data)
{
	unsigned byte;
	size_t n = 0;

	while (n < FUZZ_BYTES && sscanf(line + 2 * n, "%2x", &byte) == 1)
		data[n++] = (uint8_t)byte;
	return n;
}

static void write_input(const char *folder, long number, const uint8_t *data, size_t size)
{
	char path[1024];
	FILE *out;

	snprintf(path, sizeof(path), "%s/%ld", folder, number);
	out = fopen(path, "wb");
	if (!out || fwrite(data, 1, size, out) != size || fclose(out))
		bail("%s cannot be written", path);
}

/* Replays the corpus, or writes it to a directory; returns the number of inputs. */
static long use_corpus(const char *folder)
{
	const char *const top = getenv("top_srcdir");
	char path[1024], line[2 * FUZZ_BYTES + 2];
	long inputs = 0;
	FILE *in;

	snprintf(path, sizeof(path), "%s/t/corpus/" FUZZ_NAME, top ? top : "..");
	in = fopen(path, "r");
	while (in && inputs < FUZZ_CORPUS && fgets(line, sizeof(line), in)) {
		struct fuzz_input *const input = &corpus[inputs];

		input->size = from_line(line, input->data);
		if (folder)
			write_input(folder, inputs, input->data, input->size);
		else
			LLVMFuzzerTestOneInput(input->data, input->size);
		inputs++;
	}
	if (in)
		fclose(in);
	return inputs;
}

/* Random bytes, or a corpus input with up to four bytes changed and possibly truncated */
static struct fuzz_input new_input(uint64_t *rnd, long inputs)
{
	struct fuzz_input input;

	if (inputs == 0 || rnd_below(rnd, 2)) {
		input.size = (size_t)rnd_below(rnd, 48);
		for (size_t j = 0; j < input.size; j++)
			input.data[j] = (uint8_t)rnd_u64(rnd);
		return input;
	}
	input = corpus[rnd_below(rnd, inputs)];
	for (int64_t left = 1 + rnd_below(rnd, 4); left > 0 && input.size > 0; left--)
		input.data[rnd_below(rnd, (int64_t)input.size)] = (uint8_t)rnd_u64(rnd);
	if (rnd_below(rnd, 8) == 0)
		input.size = (size_t)rnd_below(rnd, (int64_t)input.size + 1);
	return input;
}

int main(int argc, char **argv)
{
	const long count = tap_quick() ? FUZZ_RANDOM / 10 : FUZZ_RANDOM;
	uint64_t rnd = tap_seed();
	long inputs;

	unsetenv("HURWITZ_DEVICE");
	inputs = use_corpus(argc > 1 ? argv[1] : NULL);
	if (inputs)
		ok(1, "%ld inputs of the corpus", inputs);
	else
		skip(1, "no t/corpus/" FUZZ_NAME);
	if (argc > 1)
		return done_testing();
	for (long i = 0; i < count; i++) {
		const struct fuzz_input input = new_input(&rnd, inputs);

		LLVMFuzzerTestOneInput(input.data, input.size);
	}
	ok(1, "%ld inputs of random bytes, or with some", count);
	return done_testing();
}

#endif

#endif
