/*
 * run.c - hurwitz run of the lattice quantizer
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#include <config.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tools/core/run.h"

#define END {NULL, 0, NULL, 0, 0, NULL, NULL}
#define LAST {NULL, NULL, 0, NULL, NULL}
#define CODES "u8 u16 u32 u64"

const struct word policy_words[] = {
	{"none", HZ_LATTICE_NONE}, {"t", HZ_LATTICE_T}, {"clip", HZ_LATTICE_CLIP},
	{"bank", HZ_LATTICE_BANK}, {"group", HZ_LATTICE_GROUP}, {NULL, 0},
};

static const struct word pack_words[] = {
	{"level", HZ_LATTICE_LEVEL}, {"full64", HZ_LATTICE_FULL64}, {"limbs", HZ_LATTICE_LIMBS},
	{NULL, 0},
};

static const struct word to_words[] = {
	{"values", HZ_LATTICE_VALUES}, {"points", HZ_LATTICE_POINTS},
	{"digits", HZ_LATTICE_DIGITS}, {NULL, 0},
};

static const struct word shaping_words[] = {
	{"nested", HZ_LATTICE_SHAPING_NESTED}, {"cube", HZ_LATTICE_SHAPING_CUBE},
	{"d8star", HZ_LATTICE_SHAPING_D8STAR}, {"e8", HZ_LATTICE_SHAPING_E8}, {NULL, 0},
};

const struct word lattice_preset_words[] = {
	{"e8-4.5-fast", HZ_LATTICE_PRESET_E8_4_50_FAST}, {"e8-4.5", HZ_LATTICE_PRESET_E8_4_50},
	{"e8-4.25", HZ_LATTICE_PRESET_E8_4_25}, {"e8-4.25-best", HZ_LATTICE_PRESET_E8_4_25_BEST},
	{"e8-3.25-fast", HZ_LATTICE_PRESET_E8_3_25_FAST}, {"e8-3.25", HZ_LATTICE_PRESET_E8_3_25},
	{"e8-2.25", HZ_LATTICE_PRESET_E8_2_25}, {"d4-4.5", HZ_LATTICE_PRESET_D4_4_50}, {NULL, 0},
};

const struct key lattice_keys[] = {
	{"preset", KEY_WORD, lattice_preset_words, 0, 0,
	 "e8-4.5-fast|e8-4.5|e8-4.25|e8-4.25-best|e8-3.25-fast|e8-3.25|e8-2.25|d4-4.5",
	 "a named quantizer, by its stored bits: sets the keys that are not given"},
	{"wide", KEY_WORD, switch_words, 0, 0, "0|1",
	 "1: with preset=, its scales for rows with outliers"},
	{"lattice", KEY_TEXT, NULL, 0, 0, "Z|Z2..Z24|A2|D2..D24|E8|Zn|Dn|basis",
	 "Zn, Dn: of dim= dimensions, 1 or 4 by default, like Z and D; basis: that of\n"
	 "basis="},
	{"dim", KEY_INT, NULL, 1, HZ_LATTICE_MAXDIM, "N", "the dimension, where lattice= has none"},
	{"q", KEY_INT, NULL, 2, 1 << 20, "N", "digits are 0 .. q - 1"},
	{"levels", KEY_INT, NULL, 1, HZ_LATTICE_MAXLEVELS, "N", "levels of digits: must be given"},
	{"shaping", KEY_WORD, shaping_words, 0, 0, "nested|cube|d8star|e8",
	 "which points a code has; default nested"},
	{"beta", KEY_NUMBER, NULL, 0, 0, "NUMBER", "the scale: must be given"},
	{"alpha", KEY_NUMBER, NULL, 0, 0, "NUMBER",
	 "policy=t, group: scales are beta 2^(alpha t); default 1/3, of group 1/8"},
	{"policy", KEY_WORD, policy_words, 0, 0, "none|t|clip|bank|group",
	 "how blocks whose point is not in the code are coded; default as bank= or\n"
	 "group= say, else that of preset=, else t if t= is given, else none"},
	{"bank", KEY_TEXT, NULL, 0, 0, "B0,B1,..", "policy=bank: factors of beta, up to 16"},
	{"first_fit", KEY_WORD, switch_words, 0, 0, "0|1",
	 "policy=bank, group: 1: the first that fits, not that with the least error"},
	{"group", KEY_INT, NULL, 8, 128, "N", "policy=group, bank: values that share a scale"},
	{"offset", KEY_TEXT, NULL, 0, 0, "none|center|Z0,Z1,..",
	 "the point o: nearest to the code's centre, or its coordinates"},
	{"dither", KEY_TEXT, NULL, 0, 0, "Z0,Z1,..",
	 "added to blocks before, subtracted after; one for each dimension"},
	{"sphere", KEY_WORD, switch_words, 0, 0, "0|1",
	 "lattice=basis: 1: nearest points by search, not by nearest plane"},
	END,
};

static const struct key pack_keys[] = {
	{"pack", KEY_WORD, pack_words, 0, 0, "level|full64|limbs",
	 "an integer a level, the default; uint64; uint32 limbs"},
	{"rotate", KEY_WORD, switch_words, 0, 0, "0|1",
	 "1: with a transform of rows, as hadamard makes it; default 1 with one of\n"
	 "the keys below, pre or post"},
	END,
};

static const struct key decode_keys[] = {
	{"use_levels", KEY_INT, NULL, 0, HZ_LATTICE_MAXLEVELS, "N",
	 "the coarsest levels to use, or those that codes have; 0, the default: all"},
	{"to", KEY_WORD, to_words, 0, 0, "values|points|digits",
	 "values [..., N], the default; points [..., blocks, integers] as int32;\n"
	 "or digits [..., blocks, levels, d]"},
	{"n", KEY_INT, NULL, 0, INT64_MAX, "N", "values of a row; default all of all blocks"},
	{"out", KEY_WORD, float_words, 0, 0, "f32|f16|bf16", "the dtype of values; default f32"},
	END,
};

/* ---- The quantizer --------------------------------------------------------------------------- */

/* Comma-separated numbers */
static int numbers(const struct job *job, const char *key, const char *list, double *number,
		   int most, int *count)
{
	const char *text = list;
	char part[64];

	for (*count = 0; *count < most; text++) {
		const size_t n = strcspn(text, ",");

		if (n >= sizeof(part))
			break;
		memcpy(part, text, n);
		part[n] = '\0';
		if (!parse_number(part, &number[(*count)++]))
			break;
		text += n;
		if (!*text)
			return 0;
	}
	return complain(EXIT_BAD, "%s: %s=%s: the value must be 1 to %d finite numbers with commas "
			"between them", job->op->name, key, list, most);
}

/* The value of a key: of the one with the prefix, if given */
static const struct value *prefixed(const struct job *job, const char *prefix, const char *key)
{
	char name[32];
	const struct value *v;

	snprintf(name, sizeof(name), "%s%s", prefix, key);
	v = value_of(job, name);
	return v->given ? v : value_of(job, key);
}

static int64_t prefixed_or(const struct job *job, const char *prefix, const char *key,
			   int64_t absent)
{
	const struct value *v = prefixed(job, prefix, key);

	return v->given ? v->n : absent;
}

/* Whether a key is given with this prefix, not one that the second matrix has from the first */
static bool is_own(const struct job *job, const char *prefix, const char *key)
{
	const struct value *v = prefixed(job, prefix, key);

	return v->given && (!*prefix || v != value_of(job, key));
}

/* A square matrix of doubles from an operand; *d: its size */
static int matrix(struct job *job, const char *name, double *m, int *d)
{
	const struct npy *a = &slot_of(job, name)->array;

	if (a->ndim != 2)
		return complain(EXIT_BAD, "%s: %s.ndim is %d, must be 2: [d, d]", job->op->name, name,
				a->ndim);
	if (a->shape[0] != a->shape[1] || a->shape[0] < 1 || a->shape[0] > HZ_LATTICE_MAXDIM)
		return complain(EXIT_BAD, "%s: %s is [%lld, %lld], must be square, 1 to %d",
				job->op->name, name, (long long)a->shape[0],
				(long long)a->shape[1], HZ_LATTICE_MAXDIM);
	*d = (int)a->shape[0];
	for (int i = 0; i < *d * *d; i++)
		m[i] = load_element(a->data, i, a->dtype);
	return 0;
}

/* Arrays that the options of a quantizer point to */
struct parts {
	double bank[HZ_LATTICE_MAXBANKS], dither[HZ_LATTICE_MAXDIM];
	double basis[HZ_LATTICE_MAXDIM * HZ_LATTICE_MAXDIM];
	double transform[HZ_LATTICE_MAXDIM * HZ_LATTICE_MAXDIM];
	int64_t offset[HZ_LATTICE_MAXDIM];
	int dithers, offsets, rows;	/* counts of numbers, and of rows of the transform; 0:
					 * not given */
};

static int matrices(struct job *job, hz_lattice_opts *o, struct parts *p)
{
	const struct operand *operands = job->op->operands;
	int d = 0, status = 0;

	for (int i = 0; operands[i].name && !status; i++) {
		if (!job->slot[i].path)
			continue;
		if (strcmp(operands[i].name, "basis") == 0) {
			status = matrix(job, "basis", p->basis, &d);
			if (!status && o->kind && o->kind != HZ_LATTICE_BASIS)
				status = complain(EXIT_BAD, "%s: basis= is for lattice=basis",
						  job->op->name);
			if (!status && o->dim && o->dim != d)
				status = complain(EXIT_BAD, "%s: basis is of %d dimensions, not %d "
						  "as dim= says", job->op->name, d, o->dim);
			o->basis = p->basis;
			o->kind = HZ_LATTICE_BASIS;
			o->dim = d;
		} else if (strcmp(operands[i].name, "transform") == 0) {
			status = matrix(job, "transform", p->transform, &p->rows);
			o->transform = p->transform;
		}
	}
	return status;
}

static int lists(const struct job *job, const char *prefix, hz_lattice_opts *o, struct parts *p)
{
	const struct value *bank = prefixed(job, prefix, "bank");
	const struct value *offset = prefixed(job, prefix, "offset");
	const struct value *dither = prefixed(job, prefix, "dither");
	double coordinate[HZ_LATTICE_MAXDIM];
	int status = 0;

	if (bank->given && o->policy == HZ_LATTICE_BANK) {
		status = numbers(job, "bank", bank->text, p->bank, HZ_LATTICE_MAXBANKS, &o->banks);
		o->bank = p->bank;
	}
	if (!status && dither->given) {
		status = numbers(job, "dither", dither->text, p->dither, HZ_LATTICE_MAXDIM,
				 &p->dithers);
		o->dither = p->dither;
	}
	if (status || !offset->given || strcmp(offset->text, "none") == 0)
		return status;
	if (strcmp(offset->text, "center") == 0) {
		o->flags |= HZ_LATTICE_CENTER;
		return 0;
	}
	status = numbers(job, "offset", offset->text, coordinate, HZ_LATTICE_MAXDIM,
			 &p->offsets);
	for (int i = 0; i < p->offsets && !status; i++) {
		if (coordinate[i] != rint(coordinate[i]) || fabs(coordinate[i]) > INT32_MAX)
			return complain(EXIT_BAD, "%s: offset=: coordinates must be integers",
					job->op->name);
		p->offset[i] = (int64_t)coordinate[i];
	}
	o->offset = p->offset;
	return status;
}

/* Checks that there is a number, and a row of the transform, per dimension. */
static int check_sizes(const struct job *job, const hz_lattice_opts *o, const struct parts *p)
{
	const int kind = o->kind ? o->kind : o->preset == HZ_LATTICE_PRESET_D4_4_50 ?
			 HZ_LATTICE_D : HZ_LATTICE_E8;
	const int d = o->dim ? o->dim : kind == HZ_LATTICE_E8 ? 8 : kind == HZ_LATTICE_A2 ? 2 :
		      kind == HZ_LATTICE_D ? 4 : 1;
	const struct {
		const char *name;
		int count;
	} lists[] = {{"dither=", p->dithers}, {"offset=", p->offsets}, {"transform", p->rows}};

	for (int i = 0; i < 3; i++) {
		if (lists[i].count && lists[i].count != d)
			return complain(EXIT_BAD, "%s: %s has %d %s, must have %d", job->op->name,
					lists[i].name, lists[i].count,
					i < 2 ? "numbers" : "rows", d);
	}
	return 0;
}

/* Kind and dimension (0: not given) of lattice=; false if unknown */
static bool kind_of(const char *name, hz_lattice_opts *o)
{
	static const struct word words[] = {
		{"A", HZ_LATTICE_A2}, {"D", HZ_LATTICE_D},	   {"E", HZ_LATTICE_E8},
		{"Z", HZ_LATTICE_Z},  {"basis", HZ_LATTICE_BASIS}, {NULL, 0},
	};
	const struct word *w = words;
	const char *rest;
	int64_t dim = 0;

	while (w->name && strncmp(w->name, name, strlen(w->name)) != 0)
		w++;
	if (!w->name)
		return false;
	rest = name + strlen(w->name);
	if (*rest && strcmp(rest, "n") != 0 &&
	    (w->value == HZ_LATTICE_BASIS || !parse_int(rest, 1, HZ_LATTICE_MAXDIM, &dim)))
		return false;
	o->kind = w->value;
	o->dim = (int32_t)dim;
	return true;
}

/* A key whose value is the 0 that a preset replaces; NULL: none */
static const char *lost_to_preset(const struct job *job, const char *prefix, int32_t preset)
{
	const bool d4 = preset == HZ_LATTICE_PRESET_D4_4_50;
	const struct value *offset = prefixed(job, prefix, "offset");

	if (prefixed_or(job, prefix, "policy", HZ_LATTICE_BANK) == HZ_LATTICE_NONE)
		return is_own(job, prefix, "policy") && *prefix ? "x_policy=none" : "policy=none";
	if (!d4 && prefixed_or(job, prefix, "shaping", -1) == HZ_LATTICE_SHAPING_NESTED)
		return "shaping=nested";
	return d4 && offset->given && strcmp(offset->text, "none") == 0 ? "offset=none" : NULL;
}

int lattice_of(struct job *job, const char *prefix, bool has_t, hz_lattice **lattice)
{
	const hz_options host = {.device = HZ_CPU, .threads = 1};
	const struct value *beta = prefixed(job, prefix, "beta");
	const struct value *alpha = prefixed(job, prefix, "alpha");
	const struct value *name = prefixed(job, prefix, "lattice");
	const int32_t preset = (int32_t)prefixed_or(job, prefix, "preset", 0);
	static struct parts parts;
	hz_lattice_opts o = {
		.preset = preset,
		.shaping = (int32_t)prefixed_or(job, prefix, "shaping", 0),
		.q = (int32_t)prefixed_or(job, prefix, "q", 0),
		.levels = (int32_t)prefixed_or(job, prefix, "levels", 0),
		.beta = beta->number,
		.alpha = alpha->given ? alpha->number : 0,
		.policy = (int32_t)prefixed_or(
			job, prefix, "policy",
			prefixed(job, prefix, "bank")->given  ? HZ_LATTICE_BANK :
			preset ? HZ_LATTICE_NONE :
			prefixed(job, prefix, "group")->given ? HZ_LATTICE_GROUP :
			has_t				      ? HZ_LATTICE_T :
								HZ_LATTICE_NONE),
	};
	hz_context *ctx;
	const char *lost;
	int32_t dim;
	bool has_group;
	int status;

	if (name->given && !kind_of(name->text, &o))
		return complain(
			EXIT_BAD,
			"%s: lattice=%s: the value must be Z, Z2 to Z24, A2, D2 to D24, E8, Zn, Dn "
			"or basis",
			job->op->name, name->text);
	dim = (int32_t)prefixed_or(job, prefix, "dim", 0);
	if (o.dim && dim && o.dim != dim)
		return complain(EXIT_BAD, "%s: lattice=%s is not of %d dimensions, as dim= says",
				job->op->name, name->text, dim);
	if (!o.dim)
		o.dim = dim;
	lost = preset ? lost_to_preset(job, prefix, preset) : NULL;
	if (lost)
		return complain(EXIT_BAD, "%s: %s does not go with preset=, which sets another",
				job->op->name, lost);
	/* Those of the first matrix do not count for a second one whose policy does not read them. */
	if (!is_own(job, prefix, "alpha") && o.policy != HZ_LATTICE_T && o.policy != HZ_LATTICE_GROUP)
		o.alpha = 0;
	/* The group of the first matrix is also that of a second one with the same policy. */
	has_group = is_own(job, prefix, "group") ||
		    (value_of(job, "group")->given &&
		     (preset || o.policy == value_or(job, "policy", value_of(job, "bank")->given ?
						     HZ_LATTICE_BANK : HZ_LATTICE_GROUP)));
	if (o.policy == HZ_LATTICE_GROUP && !has_group)
		return complain(EXIT_BAD, "%s: policy=group needs %sgroup=", job->op->name, prefix);
	if (o.policy == HZ_LATTICE_BANK && !preset && !prefixed(job, prefix, "bank")->given)
		return complain(EXIT_BAD, "%s: policy=bank needs bank=", job->op->name);
	if (o.policy == HZ_LATTICE_GROUP || o.policy == HZ_LATTICE_BANK || preset)
		o.group = has_group ? (int32_t)prefixed_or(job, prefix, "group", 0) : 0;
	else if (is_own(job, prefix, "group"))
		return complain(EXIT_BAD, "%s: %sgroup= is for policy=group or bank", job->op->name,
				prefix);
	if (o.policy != HZ_LATTICE_BANK && is_own(job, prefix, "bank"))
		return complain(EXIT_BAD, "%s: %sbank= is for policy=bank", job->op->name, prefix);
	if (prefixed_or(job, prefix, "wide", 0))
		o.flags |= HZ_LATTICE_WIDE;
	if (prefixed_or(job, prefix, "sphere", 0))
		o.flags |= HZ_LATTICE_SPHERE;
	if (prefixed_or(job, prefix, "first_fit", 0) && (!*prefix || o.policy == HZ_LATTICE_BANK ||
							 o.policy == HZ_LATTICE_GROUP))
		o.flags |= HZ_LATTICE_FIRST_FIT;
	memset(&parts, 0, sizeof(parts));
	status = lists(job, prefix, &o, &parts);
	if (!status)
		status = matrices(job, &o, &parts);
	if (status)
		return status;
	if (!o.kind && !preset)
		return complain(EXIT_BAD, "%s: the key lattice= or preset= is missing", job->op->name);
	if (!o.q && !preset)
		return complain(EXIT_BAD, "%s: the key q= is missing", job->op->name);
	if (!o.levels && !preset)
		return complain(EXIT_BAD, "%s: the key levels= is missing", job->op->name);
	if (!beta->given && !preset)
		return complain(EXIT_BAD, "%s: the key beta= is missing: give the scale of the "
				"values", job->op->name);
	status = check_sizes(job, &o, &parts);
	if (status)
		return status;
	/* Quantizers do not depend on the device. */
	if (hz_open(&ctx, &host) != HZ_OK)
		return complain(EXIT_FAILURE, "%s", open_reason());
	status = hz_lattice_open(ctx, lattice, &o);
	if (status)
		status = complain_library(job, status, hz_errmsg(ctx));
	hz_close(ctx);
	return status;
}

static bool is_given(struct job *job, const char *name)
{
	return slot_of(job, name)->path != NULL;
}

/* ---- lattice_design -------------------------------------------------------------------------- */

static const struct operand design_operands[] = {
	{"x", NULL, OPTIONAL, "f32 f16 bf16", "any shape of 384 values or more: the samples"},
	{"report", NULL, OUTPUT | OPTIONAL | ONLY | PRINTS, "f64",
	 "[5]: mse, bits, overload, bits of t, dB"},
	LAST,
};

static const struct key design_keys[] = {
	{"preset", KEY_WORD, lattice_preset_words, 0, 0, "as in lattice_encode",
	 "chooses its scales and the rotation; default the best preset if no key but\n"
	 "rate= or sigma= is given"},
	{"rate", KEY_REAL, NULL, 0, 0, "NUMBER",
	 "the most bits a value, with t by its entropy; without it lattice=, q= and\n"
	 "levels= must be given, and the gap to the rate-distortion bound is made least"},
	{"sigma", KEY_NUMBER, NULL, 0, 0, "NUMBER",
	 "instead of x: Gaussian samples of this standard deviation"},
	{"lattice", KEY_TEXT, NULL, 0, 0, "Z|Z2..Z24|A2|D2..D24|E8|Zn|Dn",
	 "the lattice; default the best of Z, A2, D4 and E8"},
	{"dim", KEY_INT, NULL, 1, HZ_LATTICE_MAXDIM, "N", "the dimension, where lattice= has none"},
	{"q", KEY_INT, NULL, 2, 1 << 20, "N", "digits are 0 .. q - 1; default the best up to 16"},
	{"levels", KEY_INT, NULL, 1, HZ_LATTICE_MAXLEVELS, "N",
	 "levels of digits; default the best"},
	{"alpha", KEY_NUMBER, NULL, 0, 0, "NUMBER", "as in lattice_encode"},
	{"policy", KEY_WORD, policy_words, 0, 0, "none|t|clip|bank|group",
	 "as in lattice_encode; default as banks= or group= say, else none"},
	{"banks", KEY_INT, NULL, 1, HZ_LATTICE_MAXBANKS, "N",
	 "policy=bank: how many scales bank= gets"},
	{"group", KEY_INT, NULL, 8, 128, "N", "policy=group, bank: values that share a scale"},
	{"first_fit", KEY_WORD, switch_words, 0, 0, "0|1", "as in lattice_encode"},
	{"dither", KEY_TEXT, NULL, 0, 0, "Z0,Z1,..", "as in lattice_encode"},
	END,
};

/* The result: it does not depend on the device, and a process runs one job. */
static struct {
	hz_lattice_opts found;
	double bank[HZ_LATTICE_MAXBANKS];
	hz_lattice_report report;
} designed;

/* What is wanted, from keys; parts: what *o points to */
static int wanted_lattice(struct job *job, hz_lattice_opts *o, struct parts *parts)
{
	const struct value *name = value_of(job, "lattice");
	const int32_t dim = (int32_t)value_or(job, "dim", 0);
	int status;

	*o = (hz_lattice_opts){
		.preset = (int32_t)value_or(job, "preset", 0),
		.q = (int32_t)value_or(job, "q", 0), .levels = (int32_t)value_or(job, "levels", 0),
		.alpha = value_of(job, "alpha")->number,
		.group = (int32_t)value_or(job, "group", 0),
		.banks = (int32_t)value_or(job, "banks", 0),
		.policy = (int32_t)value_or(job, "policy",
					    value_of(job, "banks")->given ? HZ_LATTICE_BANK :
					    value_of(job, "group")->given ? HZ_LATTICE_GROUP :
									    HZ_LATTICE_NONE),
		.flags = value_or(job, "first_fit", 0) ? HZ_LATTICE_FIRST_FIT : 0,
	};
	if (name->given && (!kind_of(name->text, o) || o->kind == HZ_LATTICE_BASIS))
		return complain(EXIT_BAD, "%s: lattice=%s: the value must be Z, Z2 to Z24, A2, D2 "
				"to D24, E8, Zn or Dn", job->op->name, name->text);
	if (dim && (!o->kind || (o->dim && o->dim != dim)))
		return complain(EXIT_BAD, "%s: dim=%d is for a lattice= without a dimension",
				job->op->name, dim);
	o->dim = o->dim ? o->dim : dim;
	if (o->policy == HZ_LATTICE_GROUP && !o->group)
		return complain(EXIT_BAD, "%s: policy=group needs group=", job->op->name);
	if (o->group && o->policy != HZ_LATTICE_GROUP && o->policy != HZ_LATTICE_BANK)
		return complain(EXIT_BAD, "%s: group= is for policy=group or bank", job->op->name);
	if ((o->policy == HZ_LATTICE_BANK) != (o->banks != 0))
		return complain(EXIT_BAD, "%s: policy=bank needs banks=, others have none",
				job->op->name);
	if (value_of(job, "rate")->number == 0 && !o->preset && (!o->kind || !o->q || !o->levels))
		return complain(EXIT_BAD, "%s: give rate=, or lattice=, q= and levels=",
				job->op->name);
	if (is_given(job, "x") == value_of(job, "sigma")->given)
		return complain(EXIT_BAD, "%s: give x= or sigma=, one of them", job->op->name);
	memset(parts, 0, sizeof(*parts));
	status = lists(job, "", o, parts);
	if (status || !o->dither)
		return status;
	if (!o->kind)
		return complain(EXIT_BAD, "%s: dither= needs lattice=", job->op->name);
	return check_sizes(job, o, parts);
}

/* Samples on the host as f32; *memory is to be freed. */
static int samples(struct job *job, hz_tensor *x, float **memory)
{
	const struct npy *a = &slot_of(job, "x")->array;

	*memory = allocate((size_t)(a->count ? a->count : 1) * sizeof(float));
	if (!*memory)
		return complain(EXIT_FAILURE, "%s: there is not enough memory for x",
				job->op->name);
	for (int64_t i = 0; i < a->count; i++)
		(*memory)[i] = (float)load_element(a->data, i, a->dtype);
	*x = hz_tensor_nd(*memory, HZ_F32, HZ_CPU, a->ndim, a->shape);
	return 0;
}

static int design_outputs(struct job *job)
{
	const hz_options host = {.device = HZ_CPU, .threads = 1};
	struct npy *report = &slot_of(job, "report")->array;
	static struct parts parts;
	hz_lattice_opts want;
	float *memory = NULL;
	hz_context *ctx;
	hz_tensor x;
	int status = wanted_lattice(job, &want, &parts);

	report->ndim = 1;
	report->shape[0] = 5;
	report->dtype = HZ_F64;
	if (!status && is_given(job, "x"))
		status = samples(job, &x, &memory);
	if (status)
		return status;
	if (hz_open(&ctx, &host) != HZ_OK) {
		free(memory);
		return complain(EXIT_FAILURE, "%s", open_reason());
	}
	status = hz_lattice_design(ctx, &want, value_of(job, "rate")->number,
				   value_of(job, "sigma")->number, memory ? &x : NULL,
				   &designed.found, designed.bank, &designed.report);
	if (status)
		status = complain_library(job, status, hz_errmsg(ctx));
	hz_close(ctx);
	free(memory);
	return status;
}

/* Prints a quantizer as keys of lattice_encode, with all digits of its numbers. */
static void print_lattice(const struct job *job, const hz_lattice_opts *o)
{
	static const char *const kind[] = {
		[HZ_LATTICE_Z] = "Z", [HZ_LATTICE_A2] = "A2", [HZ_LATTICE_D] = "D",
		[HZ_LATTICE_E8] = "E8",
	};
	const struct word *policy = policy_words;

	if (o->preset) {
		const struct word *preset = lattice_preset_words;

		while (preset->value != o->preset)
			preset++;
		printf("preset=%s\n%s%s", preset->name, o->flags & HZ_LATTICE_WIDE ? "wide=1\n" : "",
		       designed.report.rotate ? "rotate=1\n" : "");
		return;
	}
	while (policy->value != o->policy)
		policy++;
	printf("lattice=%s", kind[o->kind]);
	if (o->kind == HZ_LATTICE_D || o->kind == HZ_LATTICE_Z)
		printf("%d", o->dim);
	printf("\nq=%d\nlevels=%d\nbeta=%.17g\npolicy=%s\n", o->q, o->levels, o->beta,
	       policy->name);
	if (o->alpha != 0)
		printf("alpha=%.17g\n", o->alpha);
	if (o->group)
		printf("group=%d\n", o->group);
	for (int i = 0; i < o->banks; i++)
		printf("%s%.17g%s", i ? "," : "bank=", o->bank[i], i + 1 < o->banks ? "" : "\n");
	if (o->flags & HZ_LATTICE_FIRST_FIT)
		printf("first_fit=1\n");
	if (o->flags & HZ_LATTICE_CENTER)
		printf("offset=center\n");
	if (o->dither)
		printf("dither=%s\n", value_of(job, "dither")->text);
}

static int design_call(hz_context *ctx, struct job *job)
{
	const hz_lattice_report *r = &designed.report;
	double numbers[] = {r->mse, r->rate, r->overload, r->entropy_t, r->gap_db};
	hz_tensor host = hz_tensor_1d(numbers, HZ_F64, HZ_CPU, 5);

	print_lattice(job, &designed.found);
	return is_given(job, "report") ? hz_copy(ctx, &host, view_of(job, "report")) : HZ_OK;
}

const struct op op_lattice_design = {
	"lattice_design", "keys of lattice_encode for samples and a number of bits",
	design_operands, (const struct key *const[]){design_keys, NULL}, design_outputs,
	design_call,
};

/* ---- Shapes ---------------------------------------------------------------------------------- */

/* A process runs one job; its quantizer is closed at exit. */
static hz_lattice *quantizer;

/* Checks that t is given if and only if the policy needs it. */
static int check_t(struct job *job, const hz_lattice_info *info, bool needed)
{
	if (info->scales && !is_given(job, "t") && needed)
		return complain(EXIT_BAD, "%s: the operand t= is missing, which this policy has",
				job->op->name);
	if (!info->scales && is_given(job, "t"))
		return complain(EXIT_BAD, "%s: t= is given, but this policy has one scale",
				job->op->name);
	return 0;
}

static int64_t ceil_div(int64_t a, int64_t b)
{
	return a / b + (a % b != 0);
}

/* The shape of codes in a packing, after `rows` leading dimensions that are already set */
static int codes_shape(struct job *job, const char *name, const hz_lattice_info *info, int pack,
		       struct npy *a, int rows, int64_t blocks)
{
	if (pack == HZ_LATTICE_LEVEL && !info->level_dtype)
		return complain(EXIT_BAD,
				"%s: %s: a level has more than 32 bits: say pack=limbs",
				job->op->name, name);
	if (pack == HZ_LATTICE_FULL64 && !info->full64)
		return complain(EXIT_BAD,
				"%s: %s: a block has more than 64 bits: pack=full64 cannot be",
				job->op->name, name);
	if (rows + 2 > HZ_MAXDIM && pack != HZ_LATTICE_FULL64)
		return complain(EXIT_BAD, "%s: %s would have more than %d dimensions",
				job->op->name, name, HZ_MAXDIM);
	a->ndim = rows + (pack == HZ_LATTICE_FULL64 ? 1 : 2);
	a->shape[rows] = blocks;
	if (pack != HZ_LATTICE_FULL64)
		a->shape[rows + 1] = pack == HZ_LATTICE_LEVEL ? info->levels : info->limbs;
	a->dtype = pack == HZ_LATTICE_LEVEL ? info->level_dtype :
		   pack == HZ_LATTICE_FULL64 ? HZ_U64 : HZ_U32;
	return 0;
}

static bool is_rotated(struct job *job)
{
	const struct value *rotate = value_of(job, "rotate");
	bool given = is_given(job, "pre") || is_given(job, "post");

	for (const struct key *k = rotation_keys; k->name; k++)
		given |= value_of(job, k->name)->given;
	return rotate->given ? rotate->n != 0 : given;
}

/* ---- lattice_encode -------------------------------------------------------------------------- */

static const struct operand encode_operands[] = {
	{"x", NULL, 0, "f32 f16 bf16", "[..., N]"},
	{"codes", NULL, OUTPUT, CODES, "[..., blocks, levels]; full64: [..., blocks]"},
	{"t", NULL, OUTPUT | OPTIONAL | ONLY, "u8", "[..., blocks]; with group= [..., groups]"},
	{"overload", NULL, OUTPUT | OPTIONAL | ONLY, "s64",
	 "[2]: blocks that did not fit, with NaN or Inf"},
	{"row_scale", NULL, OUTPUT | OPTIONAL | ONLY, "f32",
	 "[...]: the root mean square of each row, which is divided by it"},
	{"basis", NULL, OPTIONAL, "f32 f64", "[d, d]; columns are the basis"},
	{"transform", NULL, OPTIONAL, "f32 f64", "[d, d], applied to blocks first"},
	{"pre", NULL, OPTIONAL | SIGNS, "u8 f32 f16 bf16", SIGNS_SHAPE},
	{"post", NULL, OPTIONAL | SIGNS, "u8 f32 f16 bf16", "as pre, but after the transform"},
	LAST,
};

static int encode_outputs(struct job *job)
{
	const struct npy *x = &slot_of(job, "x")->array;
	struct npy *codes = &slot_of(job, "codes")->array, *t = &slot_of(job, "t")->array;
	struct npy *overload = &slot_of(job, "overload")->array;
	struct npy *row_scale = &slot_of(job, "row_scale")->array;
	const int last = x->ndim - 1;
	hz_lattice_info info;
	int64_t blocks;
	int status = lattice_of(job, "", is_given(job, "t"), &quantizer);

	if (status)
		return status;
	hz_lattice_get_info(quantizer, &info);
	status = check_t(job, &info, true);
	if (status)
		return status;
	if (x->ndim < 1)
		return complain(EXIT_BAD, "%s: x has no dimensions", job->op->name);
	blocks = ceil_div(x->shape[last], info.dim);
	memcpy(codes->shape, x->shape, (size_t)last * sizeof(*x->shape));
	memcpy(t->shape, x->shape, (size_t)last * sizeof(*x->shape));
	status = codes_shape(job, "codes", &info, (int)value_or(job, "pack", HZ_LATTICE_LEVEL),
			     codes, last, blocks);
	t->ndim = x->ndim;
	t->shape[last] = info.group ? ceil_div(x->shape[last], info.group) : blocks;
	t->dtype = HZ_U8;
	overload->ndim = 1;
	overload->shape[0] = 2;
	overload->dtype = HZ_S64;
	row_scale->ndim = last;
	memcpy(row_scale->shape, x->shape, (size_t)last * sizeof(*x->shape));
	row_scale->dtype = HZ_F32;
	return status ? status : hadamard_common(job, x->ndim, x->shape);
}

static int encode_call(hz_context *ctx, struct job *job)
{
	const hz_tensor *x = view_of(job, "x");
	const hz_hadamard_opts rotation = hadamard_opts(job);
	const hz_lattice_code_opts o = {
		.pack = (int32_t)value_or(job, "pack", HZ_LATTICE_LEVEL),
		.hadamard = is_rotated(job) ? &rotation : NULL,
		.row_scale = view_of(job, "row_scale"),
	};

	return WITH_WORKSPACE(ctx, hz_lattice_encode(ctx, quantizer, x, view_of(job, "codes"),
						     view_of(job, "t"), view_of(job, "overload"),
						     &o));
}

const struct op op_lattice_encode = {
	"lattice_encode", "codes of the points of a nested lattice nearest to blocks of x",
	encode_operands,
	(const struct key *const[]){lattice_keys, pack_keys, rotation_keys, NULL},
	encode_outputs, encode_call,
};

/* ---- lattice_decode -------------------------------------------------------------------------- */

static const struct operand decode_operands[] = {
	{"codes", NULL, 0, CODES, "[..., blocks, levels]; full64: [..., blocks]"},
	{"y", "x", OUTPUT, "f32 f16 bf16 s32 u8 u32",
	 "[..., N], or as to= says"},
	{"t", NULL, OPTIONAL, "u8", "[..., blocks]; with group= [..., groups]"},
	{"row_scale", NULL, OPTIONAL, "f32", "[...], of encoding: rows are multiplied with it"},
	{"basis", NULL, OPTIONAL, "f32 f64", "[d, d]; columns are the basis"},
	{"transform", NULL, OPTIONAL, "f32 f64", "[d, d], of encoding"},
	{"pre", NULL, OPTIONAL | SIGNS, "u8 f32 f16 bf16", SIGNS_SHAPE},
	{"post", NULL, OPTIONAL | SIGNS, "u8 f32 f16 bf16", "likewise, as in lattice_encode"},
	LAST,
};

static int decode_outputs(struct job *job)
{
	const struct npy *codes = &slot_of(job, "codes")->array;
	struct slot *y = slot_of(job, "y");
	const int pack = (int)value_or(job, "pack", HZ_LATTICE_LEVEL);
	const int64_t to = value_or(job, "to", HZ_LATTICE_VALUES);
	const int rows = codes->ndim - (pack == HZ_LATTICE_FULL64 ? 1 : 2);
	hz_lattice_info info;
	int64_t levels, n;
	int status = lattice_of(job, "", is_given(job, "t"), &quantizer);

	if (status)
		return status;
	hz_lattice_get_info(quantizer, &info);
	status = check_t(job, &info, to == HZ_LATTICE_VALUES);
	if (status)
		return status;
	if (to != HZ_LATTICE_VALUES && value_of(job, "out")->given)
		return complain(EXIT_BAD, "%s: out= is the dtype of values: points are int32, digits "
				"uint8 or uint32", job->op->name);
	if (to != HZ_LATTICE_VALUES && value_of(job, "n")->given)
		return complain(EXIT_BAD, "%s: n= is how many values a row has: points and digits are "
				"those of whole blocks", job->op->name);
	if (rows < 0)
		return complain(EXIT_BAD, "%s: codes have %d dimensions, must have %d at least",
				job->op->name, codes->ndim, codes->ndim - rows);
	if (rows + 1 + (int)to > HZ_MAXDIM)
		return complain(EXIT_BAD, "%s: y would have more than %d dimensions", job->op->name,
				HZ_MAXDIM);
	levels = value_or(job, "use_levels", 0) ? value_or(job, "use_levels", 0) : info.levels;
	memcpy(y->array.shape, codes->shape, (size_t)rows * sizeof(*codes->shape));
	y->array.ndim = rows + 1 + (int)to;
	y->array.shape[rows] = codes->shape[rows];
	if (to == HZ_LATTICE_POINTS) {
		y->array.shape[rows + 1] = info.embed;
		y->array.dtype = HZ_S32;
		return 0;
	}
	if (to == HZ_LATTICE_DIGITS) {
		y->array.shape[rows + 1] = levels;
		y->array.shape[rows + 2] = info.dim;
		y->array.dtype = info.q <= 256 ? HZ_U8 : HZ_U32;
		return 0;
	}
	if (__builtin_mul_overflow(codes->shape[rows], (int64_t)info.dim, &n))
		return complain(EXIT_BAD, "%s: the size of y overflows", job->op->name);
	y->array.shape[rows] = value_or(job, "n", n);
	status = hadamard_common(job, rows + 1, y->array.shape);
	return status ? status : output_dtype(job, y, "y", HZ_F32);
}

static int decode_call(hz_context *ctx, struct job *job)
{
	hz_tensor *y = view_of(job, "y");
	const hz_hadamard_opts rotation = hadamard_opts(job);
	const hz_lattice_code_opts o = {
		.pack = (int32_t)value_or(job, "pack", HZ_LATTICE_LEVEL),
		.use_levels = (int32_t)value_or(job, "use_levels", 0),
		.to = (int32_t)value_or(job, "to", HZ_LATTICE_VALUES),
		.hadamard = is_rotated(job) ? &rotation : NULL,
		.row_scale = view_of(job, "row_scale"),
	};

	return WITH_WORKSPACE(ctx, hz_lattice_decode(ctx, quantizer, view_of(job, "codes"),
						     view_of(job, "t"), y, &o));
}

const struct op op_lattice_decode = {
	"lattice_decode", "values, points or digits of lattice codes",
	decode_operands,
	(const struct key *const[]){lattice_keys, pack_keys, decode_keys, rotation_keys, NULL},
	decode_outputs, decode_call,
};

/* ---- lattice_repack -------------------------------------------------------------------------- */

static const struct key repack_keys[] = {
	{"from_pack", KEY_WORD, pack_words, 0, 0, "level|full64|limbs",
	 "of from; default level"},
	{"to_pack", KEY_WORD, pack_words, 0, 0, "level|full64|limbs", "of to; default level"},
	END,
};

static const struct operand repack_operands[] = {
	{"from", "codes", 0, CODES, "[..., blocks, levels]; full64: [..., blocks]"},
	{"to", NULL, OUTPUT, CODES, "likewise"},
	LAST,
};

static int repack_outputs(struct job *job)
{
	const struct npy *from = &slot_of(job, "from")->array;
	struct npy *to = &slot_of(job, "to")->array;
	const int rows = from->ndim -
			 (value_or(job, "from_pack", HZ_LATTICE_LEVEL) == HZ_LATTICE_FULL64 ? 1 :
											      2);
	hz_lattice_info info;
	int status = lattice_of(job, "", false, &quantizer);

	if (status)
		return status;
	if (rows < 0)
		return complain(EXIT_BAD, "%s: from has %d dimensions, must have %d at least",
				job->op->name, from->ndim, from->ndim - rows);
	hz_lattice_get_info(quantizer, &info);
	memcpy(to->shape, from->shape, (size_t)rows * sizeof(*from->shape));
	return codes_shape(job, "to", &info, (int)value_or(job, "to_pack", HZ_LATTICE_LEVEL), to,
			   rows, from->shape[rows]);
}

static int repack_call(hz_context *ctx, struct job *job)
{
	return hz_lattice_repack(ctx, quantizer, view_of(job, "from"), view_of(job, "to"),
				 (int)value_or(job, "from_pack", HZ_LATTICE_LEVEL),
				 (int)value_or(job, "to_pack", HZ_LATTICE_LEVEL));
}

const struct op op_lattice_repack = {
	"lattice_repack", "lattice codes from one packing to another",
	repack_operands, (const struct key *const[]){lattice_keys, repack_keys, NULL},
	repack_outputs, repack_call,
};
