/*
 * bench_compare.c - hurwitz bench --compare: times of cases against earlier ones
 *
 * SPDX-License-Identifier: BSD-2-Clause
 *
 * Both sides are lines that --json wrote. Cases are matched by op, case, dtype, device, isa and
 * threads. A user notices the ratio of the new time to the old. The library answers for that ratio
 * divided by the same ratio of the ceiling, which was timed alternately: a machine that is slower
 * today slows both down. If the ceilings differ in kind, they are not used.
 *
 * A file's contents are checked completely before use, since anyone may have written it.
 */
#include <config.h>

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tools/core/bench.h"

#define LINE_MOST 4096		/* bytes per line; lines of --json have 250 */
#define ROWS_MOST 100000

/* ---- A line of JSON -------------------------------------------------------------------------- */

struct text {
	const char *at, *why;	/* why: the first error, or NULL */
};

static bool wrong(struct text *t, const char *why)
{
	if (!t->why)
		t->why = why;
	return false;
}

/* Skips blanks; consumes c if it is next. */
static bool accept(struct text *t, char c)
{
	t->at += strspn(t->at, " \t\r\n");
	if (*t->at != c)
		return false;
	t->at += c != '\0';
	return true;
}

/* The value of the four hexadecimal digits after \u, or -1 */
static int four_digits(struct text *t)
{
	int value = 0;

	for (int i = 0; i < 4; i++) {
		static const char digits[] = "0123456789abcdefABCDEF";
		const char *d = *t->at ? strchr(digits, *t->at) : NULL;

		if (!d)
			return -1;
		value = 16 * value + (int)(d - digits < 16 ? d - digits : d - digits - 6);
		t->at++;
	}
	return value;
}

/* Reads a string into out. Anything but printable ASCII is an error, so that it is safe to print on
 * a terminal. */
static bool read_string(struct text *t, char *out, size_t size)
{
	static const char letters[] = "\"\\/", plain[] = "bfnrt";
	size_t used = 0;

	if (!accept(t, '"'))
		return wrong(t, "a string is missing");
	while (*t->at != '"') {
		int c = (unsigned char)*t->at++;

		if (c == '\\') {
			c = (unsigned char)*t->at++;
			if (c == 'u')
				c = four_digits(t);
			else if (c == 0 || strchr(plain, c))
				return wrong(t, "a control character in a string");
			else if (!strchr(letters, c))
				return wrong(t, "an escape that JSON does not have");
		}
		if (c < ' ' || c > '~')
			return wrong(t, c == 0 || c == '\n' ?
						"a string without an end" :
						"a string that is no printable ASCII");
		if (used + 1 >= size)
			return wrong(t, "a string that is too long");
		out[used++] = (char)c;
	}
	t->at++;
	out[used] = '\0';
	return true;
}

/* JSON's numbers are a subset of strtod()'s, which also accepts nan, 0x10 and leading blanks. */
static bool read_number(struct text *t, double *value)
{
	const size_t length = strspn(t->at, "0123456789+-.eE");
	char copy[64], *end;

	if (length == 0 || length >= sizeof(copy) || *t->at == '+' || *t->at == '.')
		return wrong(t, "a value that is neither string nor number");
	memcpy(copy, t->at, length);
	copy[length] = '\0';
	*value = strtod(copy, &end);
	if (*end != '\0' || !isfinite(*value))
		return wrong(t, "a number that is none");
	t->at += length;
	return true;
}

/* Where the value of a known key is stored: a string or a number */
struct field {
	const char *key;
	char *string;
	size_t size;
	double *number;
};

static bool read_value(struct text *t, const struct field *f)
{
	char unused_string[LINE_MOST];
	double unused_number;

	t->at += strspn(t->at, " \t");
	if (*t->at == '"') {
		if (f && !f->string)
			return wrong(t, "a string where a number belongs");
		return f ? read_string(t, f->string, f->size)
			 : read_string(t, unused_string, sizeof(unused_string));
	}
	if (f && !f->number)
		return wrong(t, "a number where a string belongs");
	return read_number(t, f ? f->number : &unused_number);
}

const char *bench_row_read(const char *line, struct bench_row *row)
{
	double threads = -1;
	const struct field fields[] = {
		{"op", row->op, sizeof(row->op), NULL},
		{"case", row->name, sizeof(row->name), NULL},
		{"dtype", row->dtype, sizeof(row->dtype), NULL},
		{"device", row->device, sizeof(row->device), NULL},
		{"isa", row->isa, sizeof(row->isa), NULL},
		{"threads", NULL, 0, &threads},
		{"median_us", NULL, 0, &row->median_us},
		{"ceiling", row->ceiling, sizeof(row->ceiling), NULL},
		{"ratio", NULL, 0, &row->ratio},
	};
	enum { FIELDS = sizeof(fields) / sizeof(*fields) };
	struct text t = {.at = line};
	bool found[FIELDS] = {false};

	memset(row, 0, sizeof(*row));
	if (!accept(&t, '{'))
		return "no JSON object";
	do {
		char key[64];
		size_t i = 0;

		if (!read_string(&t, key, sizeof(key)))
			return t.why;
		while (i < FIELDS && strcmp(fields[i].key, key) != 0)
			i++;
		if (i < FIELDS && found[i])
			return "a key that is there twice";
		if (!accept(&t, ':'))
			return "a colon is missing";
		if (!read_value(&t, i < FIELDS ? &fields[i] : NULL))
			return t.why;
		if (i < FIELDS)
			found[i] = true;
	} while (accept(&t, ','));
	if (!accept(&t, '}') || !accept(&t, '\0'))
		return "something behind the last value";
	for (size_t i = 0; i < FIELDS; i++) {
		if (!found[i])
			return "a key of hurwitz bench --json is missing";
	}
	if (threads < 0 || threads > 1e6 || threads != floor(threads))
		return "threads that are no whole number";
	row->threads = (int)threads;
	if (!(row->median_us > 0) || !(row->ratio > 0))
		return "a time or a ratio that is not above 0";
	return NULL;
}

/* ---- Rows ------------------------------------------------------------------------------------ */

static int compare_keys(const void *a, const void *b)
{
	const struct bench_row *x = a, *y = b;
	const char *const left[] = {x->op, x->name, x->dtype, x->device, x->isa};
	const char *const right[] = {y->op, y->name, y->dtype, y->device, y->isa};

	for (size_t i = 0; i < sizeof(left) / sizeof(*left); i++) {
		const int order = strcmp(left[i], right[i]);

		if (order)
			return order;
	}
	return (x->threads > y->threads) - (x->threads < y->threads);
}

bool bench_rows_add(struct bench_rows *rows, const struct bench_row *row)
{
	if (rows->count == rows->capacity) {
		const size_t capacity = rows->capacity ? 2 * rows->capacity : 64;
		struct bench_row *more = realloc(rows->row, capacity * sizeof(*more));

		if (!more)
			return false;
		rows->row = more;
		rows->capacity = capacity;
	}
	rows->row[rows->count++] = *row;
	return true;
}

/* Sorts by key. Of several rows of one case, as in a file of several runs, the last one stays. */
void bench_rows_sort(struct bench_rows *rows)
{
	size_t kept = 0;

	/* Equal rows stay in the order of the file, which qsort() does not guarantee. */
	for (size_t i = 0; i < rows->count; i++)
		rows->row[i].line = i;
	qsort(rows->row, rows->count, sizeof(*rows->row), compare_keys);
	for (size_t i = 0; i < rows->count; i++) {
		struct bench_row *last = kept ? &rows->row[kept - 1] : NULL;

		if (!last || compare_keys(last, &rows->row[i]) != 0)
			rows->row[kept++] = rows->row[i];
		else if (rows->row[i].line > last->line)
			*last = rows->row[i];
	}
	rows->count = kept;
}

const struct bench_row *bench_rows_find(const struct bench_rows *rows, const struct bench_row *key)
{
	if (rows->count == 0)
		return NULL;
	return bsearch(key, rows->row, rows->count, sizeof(*key), compare_keys);
}

int bench_rows_read(struct bench_rows *rows, const char *file)
{
	char line[LINE_MOST + 2];
	size_t number = 0;
	int status = 0;
	FILE *in = fopen(file, "r");

	if (!in)
		return complain(EXIT_BAD, "bench: %s: %s", file, strerror(errno));
	while (!status && fgets(line, sizeof(line), in)) {
		const size_t length = strlen(line);
		struct bench_row row;
		const char *why;

		number++;
		/* A NUL byte hides the newline as well. */
		if (length == 0 || (line[length - 1] != '\n' && !feof(in)))
			why = "a line that is too long, or no text";
		else if (line[strspn(line, " \t\r\n")] == '\0')
			continue;
		else
			why = rows->count < ROWS_MOST ? bench_row_read(line, &row) :
							"too many lines";
		/* What a run that was killed may leave behind the others */
		if (why && rows->count > 0 && length > 0 && line[length - 1] != '\n' && feof(in))
			break;
		if (why)
			status = complain(EXIT_BAD, "bench: %s: line %zu: %s", file, number, why);
		else if (!bench_rows_add(rows, &row))
			status = complain(EXIT_FAILURE, "bench: %s: no memory", file);
	}
	if (!status && ferror(in))
		status = complain(EXIT_BAD, "bench: %s: %s", file, strerror(errno));
	fclose(in);
	if (!status && rows->count == 0)
		status = complain(EXIT_BAD, "bench: %s: there is no case in it", file);
	return status;
}

/* ---- The comparison -------------------------------------------------------------------------- */

struct pair {
	const struct bench_row *old, *new;
	double time, ceiling, net;	/* new / old; net: time / ceiling, or time alone */
};

static int compare_pairs(const void *a, const void *b)
{
	const struct pair *x = a, *y = b;

	return (x->net < y->net) - (x->net > y->net);
}

static struct pair pair_of(const struct bench_row *old, const struct bench_row *new)
{
	struct pair p = {.old = old, .new = new, .time = new->median_us / old->median_us};

	p.net = p.time;
	if (strcmp(old->ceiling, new->ceiling) == 0) {
		p.ceiling = p.time * new->ratio / old->ratio;
		p.net = old->ratio / new->ratio;
	}
	return p;
}

static void print_pair(const struct pair *p, double threshold)
{
	const bool slower = p->net > 1 + threshold, faster = p->net < 1 / (1 + threshold);
	char ceiling[16] = "other";

	if (p->ceiling > 0)
		snprintf(ceiling, sizeof(ceiling), "%.3f", p->ceiling);
	printf("%-20s%-27s %-10s%-8s%11.2f%11.2f%9.3f%9s%9.3f%s%s%s\n", p->new->op, p->new->name,
	       p->new->dtype, p->new->isa, p->old->median_us, p->new->median_us, p->time, ceiling,
	       p->net, style(stdout, slower ? RED : faster ? GREEN : PLAIN),
	       slower ? "  slower" : faster ? "  faster" : "", style(stdout, PLAIN));
}

/* Pairs rows by key, and counts rows of either side without a partner; false without memory */
static bool match(const struct bench_rows *old, const struct bench_rows *new, struct pair **pairs,
		  size_t *count, size_t *only_old, size_t *only_new)
{
	size_t i = 0, j = 0;

	*pairs = malloc((old->count + 1) * sizeof(**pairs));
	if (!*pairs)
		return false;
	*count = *only_old = *only_new = 0;
	while (i < old->count || j < new->count) {
		const int order = i == old->count   ? 1
				  : j == new->count ? -1
						    : compare_keys(&old->row[i], &new->row[j]);

		if (order == 0)
			(*pairs)[(*count)++] = pair_of(&old->row[i], &new->row[j]);
		*only_old += order < 0;
		*only_new += order > 0;
		i += order <= 0;
		j += order >= 0;
	}
	return true;
}

int bench_compare(struct bench_rows *old, struct bench_rows *new, const char *file,
		  double threshold)
{
	struct pair *pairs;
	double *nets, *ceilings;
	size_t count, only_old, only_new, with_ceiling = 0, slower = 0, faster = 0;

	bench_rows_sort(old);
	bench_rows_sort(new);
	if (!match(old, new, &pairs, &count, &only_old, &only_new))
		return complain(EXIT_FAILURE, "bench: no memory");
	nets = malloc((2 * count + 1) * sizeof(*nets));
	if (!nets || count == 0) {
		free(nets);
		free(pairs);
		if (count)
			return complain(EXIT_FAILURE, "bench: no memory");
		return complain(EXIT_BAD, "bench: none of the %zu cases of %s was measured: op, "
				"case, dtype, device, isa and threads have to be the same",
				old->count, file);
	}
	ceilings = nets + count;
	qsort(pairs, count, sizeof(*pairs), compare_pairs);
	printf("%-20s%-28s%-10s%-8s%11s%11s%9s%9s%9s\n", "", "case", "dtype", "isa", "old us",
	       "new us", "new/old", "ceiling", "net");
	for (size_t i = 0; i < count; i++) {
		print_pair(&pairs[i], threshold);
		nets[i] = pairs[i].net;
		slower += pairs[i].net > 1 + threshold;
		faster += pairs[i].net < 1 / (1 + threshold);
		if (pairs[i].ceiling > 0)
			ceilings[with_ceiling++] = pairs[i].ceiling;
	}
	printf("%zu cases of both: %zu slower and %zu faster by more than %g %%; the median of "
	       "net is %.3f",
	       count, slower, faster, 100 * threshold, median(nets, (int)count));
	if (with_ceiling)
		printf(", of rooflines %.3f", median(ceilings, (int)with_ceiling));
	printf("\n");
	if (only_old || only_new)
		printf("%zu cases only in %s, %zu that are not in it\n", only_old, file, only_new);
	free(nets);
	free(pairs);
	return slower ? EXIT_SLOWER : EXIT_SUCCESS;
}
