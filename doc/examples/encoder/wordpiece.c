/*
 * wordpiece.c - the tokenizer of uncased BERT models
 *
 * SPDX-License-Identifier: BSD-2-Clause
 *
 * Text is cut at white space, punctuation and CJK ideographs; words are then cut into the longest
 * pieces that the vocabulary has, from the left, all but the first with "##" before them (Devlin et
 * al. 2019). Latin letters become lower case without accents; letters of other scripts stay as they
 * are, where the original tokenizer looks into the tables of Unicode.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "encoder.h"

#define WORD_MAX 100		/* characters; longer words are [UNK] */

struct vocabulary {
	char *text;		/* of the file, lines end in 0 */
	const char **slot;	/* an open hash table of lines, slots - 1 is a mask */
	int32_t *id;
	size_t slots;
	int32_t cls, sep, unk;
};

static size_t hash(const char *s, size_t n)
{
	uint64_t h = 14695981039346656037u;	/* FNV-1a */

	for (size_t i = 0; i < n; i++)
		h = (h ^ (unsigned char)s[i]) * 1099511628211u;
	return (size_t)(h ^ h >> 29);
}

/* The number of a piece, or -1 */
static int32_t find(const struct vocabulary *v, const char *s, size_t n)
{
	for (size_t i = hash(s, n);; i++) {
		const char *const line = v->slot[i & (v->slots - 1)];

		if (!line)
			return -1;
		if (strncmp(line, s, n) == 0 && !line[n])
			return v->id[i & (v->slots - 1)];
	}
}

static int32_t need(const struct vocabulary *v, const char *s)
{
	const int32_t id = find(v, s, strlen(s));

	if (id < 0)
		fail("the vocabulary has no %s", s);
	return id;
}

struct vocabulary *vocabulary_open(const char *path)
{
	struct vocabulary *const v = calloc(1, sizeof(*v));
	FILE *const file = fopen(path, "rb");
	long bytes = -1;
	int32_t lines = 1;

	if (file && fseek(file, 0, SEEK_END) == 0)
		bytes = ftell(file);
	if (!v || bytes < 0 || !(v->text = calloc(1, (size_t)bytes + 1)))
		fail("cannot read %s", path);
	rewind(file);
	if (fread(v->text, 1, (size_t)bytes, file) != (size_t)bytes)
		fail("cannot read %s", path);
	fclose(file);
	for (long i = 0; i < bytes; i++)
		lines += v->text[i] == '\n';
	for (v->slots = 16; v->slots < 2 * (size_t)lines;)
		v->slots *= 2;
	v->slot = calloc(v->slots, sizeof(*v->slot));
	v->id = calloc(v->slots, sizeof(*v->id));
	if (!v->slot || !v->id)
		fail("no memory");
	lines = 0;
	for (char *line = v->text, *end; line < v->text + bytes; line = end + 1, lines++) {
		size_t i;

		end = strchr(line, '\n');
		end = end ? end : v->text + bytes;
		*end = 0;
		for (i = hash(line, strlen(line)); v->slot[i & (v->slots - 1)];)
			i++;
		v->slot[i & (v->slots - 1)] = line;
		v->id[i & (v->slots - 1)] = lines;
	}
	v->cls = need(v, "[CLS]");
	v->sep = need(v, "[SEP]");
	v->unk = need(v, "[UNK]");
	return v;
}

void vocabulary_close(struct vocabulary *v)
{
	free(v->text);
	free(v->slot);
	free(v->id);
	free(v);
}

/* ---- Characters ------------------------------------------------------------------------------ */

/* The next character of a string that is not at its end; U+FFFD for bytes that are no UTF-8 */
static uint32_t next(const char **text)
{
	const unsigned char *s = (const unsigned char *)*text;
	const int more = s[0] < 0xc0 ? 0 : s[0] < 0xe0 ? 1 : s[0] < 0xf0 ? 2 : s[0] < 0xf8 ? 3 : 0;
	uint32_t c = more ? s[0] & (0x3fu >> more) : s[0] < 0x80 ? s[0] : 0xfffd;

	(*text)++;
	for (int i = 1; i <= more; i++, (*text)++) {
		if ((s[i] & 0xc0) != 0x80)
			return 0xfffd;
		c = c << 6 | (s[i] & 0x3f);
	}
	return c;
}

static size_t put(char *to, uint32_t c)
{
	if (c < 0x80) {
		to[0] = (char)c;
		return 1;
	}
	if (c < 0x800) {
		to[0] = (char)(0xc0 | c >> 6);
		to[1] = (char)(0x80 | (c & 0x3f));
		return 2;
	}
	if (c < 0x10000) {
		to[0] = (char)(0xe0 | c >> 12);
		to[1] = (char)(0x80 | (c >> 6 & 0x3f));
		to[2] = (char)(0x80 | (c & 0x3f));
		return 3;
	}
	to[0] = (char)(0xf0 | c >> 18);
	to[1] = (char)(0x80 | (c >> 12 & 0x3f));
	to[2] = (char)(0x80 | (c >> 6 & 0x3f));
	to[3] = (char)(0x80 | (c & 0x3f));
	return 4;
}

static uint32_t lower(uint32_t c)
{
	/* U+00C0 to U+017F without accents; a dot: it has none */
	static const char plain[] =
		"aaaaaa.ceeeeiiii.nooooo..uuuuy.."
		"aaaaaa.ceeeeiiii.nooooo..uuuuy.y"
		"aaaaaaccccccccdd..eeeeeeeeeegggggggghh.."
		"iiiiiiiii...jjkk.llllll....nnnnnn...oooooo.."
		"rrrrrrsssssssstttt..uuuuuuuuuuuuwwyyyzzzzzz.";

	_Static_assert(sizeof(plain) == 0x180 - 0xc0 + 1, "a letter each, and the end");
	if (c >= 'A' && c <= 'Z')
		return c + 32;
	if (c < 0xc0 || c >= 0x180)
		return c;
	if (plain[c - 0xc0] != '.')
		return (uint32_t)plain[c - 0xc0];
	if (c < 0x100)
		return c < 0xdf && c != 0xd7 ? c + 32 : c;
	if (c == 0x131 || c == 0x138 || c == 0x149 || c == 0x17f)
		return c;
	return c >= 0x139 && c <= 0x148 ? c + c % 2 : c | 1;
}

static int in_any(const uint32_t (*range)[2], size_t n, uint32_t c)
{
	for (size_t i = 0; i < n; i++) {
		if (c >= range[i][0] && c <= range[i][1])
			return 1;
	}
	return 0;
}

#define IN_ANY(range, c) in_any(range, sizeof(range) / sizeof(*(range)), c)

static int is_space(uint32_t c)
{
	static const uint32_t spaces[][2] = {
		{9, 10}, {13, 13}, {' ', ' '}, {0xa0, 0xa0}, {0x1680, 0x1680}, {0x2000, 0x200a},
		{0x202f, 0x202f}, {0x205f, 0x205f}, {0x3000, 0x3000},
	};

	return IN_ANY(spaces, c);
}

/* Controls, marks that combine, and what stands for bytes that are no text */
static int is_dropped(uint32_t c)
{
	static const uint32_t dropped[][2] = {
		{0, 8}, {11, 12}, {14, 31}, {127, 0x9f}, {0xad, 0xad}, {0x300, 0x36f},
		{0x200b, 0x200f}, {0x202a, 0x202e}, {0x2060, 0x2064}, {0x2066, 0x206f},
		{0xfeff, 0xfeff}, {0xfffd, 0xfffd},
	};

	return IN_ANY(dropped, c);
}

/* Tokens of their own: punctuation and CJK ideographs */
static int is_single(uint32_t c)
{
	static const uint32_t singles[][2] = {
		{33, 47}, {58, 64}, {91, 96}, {123, 126}, {0xa1, 0xa1}, {0xa7, 0xa7}, {0xab, 0xab},
		{0xb6, 0xb7}, {0xbb, 0xbb}, {0xbf, 0xbf}, {0x2010, 0x2027}, {0x2030, 0x2043},
		{0x2045, 0x2051}, {0x2053, 0x205e}, {0x3001, 0x3003}, {0x3008, 0x3011},
		{0x3014, 0x301f}, {0x3400, 0x4dbf}, {0x4e00, 0x9fff}, {0xf900, 0xfaff},
		{0xff01, 0xff03}, {0xff05, 0xff0a}, {0xff0c, 0xff0f}, {0xff1a, 0xff1b},
		{0xff1f, 0xff20}, {0x20000, 0x2a6df}, {0x2a700, 0x2ceaf}, {0x2f800, 0x2fa1f},
	};

	return IN_ANY(singles, c);
}

/* ---- Words ----------------------------------------------------------------------------------- */

/* word: n bytes behind two of room for "##"; pieces of it, in place of one [UNK] */
static int64_t cut(const struct vocabulary *v, char *word, size_t n, int32_t *tokens, int64_t most)
{
	const int32_t unk = v->unk;
	int64_t count = 0;
	size_t first = 0;

	while (first < n && count < most) {
		char *const from = word + 2 + first - (first ? 2 : 0);
		size_t end = n;
		int32_t id = -1;

		if (first)
			memcpy(from, "##", 2);	/* over bytes that have been looked at */
		for (; end > first; end--) {
			id = find(v, from, (size_t)(word + 2 + end - from));
			if (id >= 0)
				break;
		}
		if (id < 0) {
			tokens[0] = unk;
			return 1;
		}
		tokens[count++] = id;
		first = end;
	}
	return count;
}

int64_t tokenize(const struct vocabulary *v, const char *text, int32_t *tokens, int64_t most)
{
	char word[2 + 4 * WORD_MAX + 4];
	int64_t count = 1, characters = 0;
	size_t n = 0;

	if (most < 2)
		fail("no room for [CLS] and [SEP]");
	tokens[0] = v->cls;
	for (;;) {
		const int ends = !*text;
		const uint32_t c = ends ? ' ' : lower(next(&text));
		const int single = is_single(c);

		if (!ends && is_dropped(c))
			continue;
		if (single || is_space(c)) {
			if (characters > WORD_MAX && count < most - 1)
				tokens[count++] = v->unk;
			else if (characters <= WORD_MAX)
				count += cut(v, word, n, tokens + count, most - 1 - count);
			characters = 0;
			n = 0;
		}
		if (single)
			count += cut(v, word, put(word + 2, c), tokens + count, most - 1 - count);
		else if (!is_space(c) && characters++ < WORD_MAX)
			n += put(word + 2 + n, c);
		if (ends)
			break;
	}
	tokens[count] = v->sep;
	return count + 1;
}
