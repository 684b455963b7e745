/*
 * launches_calls.c - the rows of calls.def with other shapes, for the launch trace
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#include <config.h>

#include "t/core/launches.h"

/* How operands differ from those of calls.def */
struct variant {
	const char *calls;		/* a name, or "prefix*" */
	const char *sizes;		/* "FROM=TO ...": replaces sizes in the shapes */
	int dtype;			/* of data; parameters stay f32. 0: as in the table */
	int skew;			/* bytes added to the addresses */
	bool all;			/* optional operands too */
};

/* What `sizes` replaces a size by */
static int64_t size_of(const char *sizes, int64_t size)
{
	char from[32];
	const char *at;
	const int n = snprintf(from, sizeof(from), "%" PRId64 "=", size);

	for (at = sizes; (at = strstr(at, from)); at += n) {
		if (at == sizes || at[-1] == ' ')
			return strtoll(at + n, NULL, 10);
	}
	return size;
}

/* Whether an operand is f32 whatever the dtype of the data is */
static bool is_parameter(const struct call *c, const struct operand *o)
{
	static const char *const names[] = {
		"gamma", "beta", "dgamma", "dbeta", "opts->running_mean", "opts->running_var",
		"opts->saved", "b", "db", "opts->bias",
	};

	if (strncmp(c->name, "mhc_", 4) == 0)
		return o->ndim < 2 || o->shape[o->ndim - 1] != 8;
	EACH(i, names) {
		if (strcmp(c->name, "quat_mul") && strcmp(c->name, "quat_mul_bwd") &&
		    strcmp(c->name, "quat_dot") && strcmp(c->name, "quat_gemm") &&
		    strcmp(names[i], o->name) == 0)
			return true;
	}
	return false;
}

struct variant_row {
	const struct call *c;
	const struct variant *o;
};

static int run_variant(const void *row)
{
	const struct variant_row *const p = row;
	const struct call *const c = p->c;
	struct scene *const s = &scenes[gpu];
	hz_tensor *v[CALL_OPERANDS] = {NULL};
	hz_tensor t[CALL_OPERANDS];

	note("%s", p->o->all ? " all" : "");
	for (int i = 0; i < CALL_OPERANDS && c->operand[i].name; i++) {
		const struct operand *const o = &c->operand[i];
		int64_t shape[HZ_MAXDIM];
		int dtype = o->dtype;

		if ((o->flags & MAY_MISS) && !(o->flags & WRITES) && !p->o->all)
			continue;
		if ((o->flags & OBJECT) || (o->flags & RAW)) {
			t[i] = hz_tensor_1d(operand_at(0), HZ_U8, device, 1);
			v[i] = &t[i];
			continue;
		}
		for (int d = 0; d < o->ndim; d++)
			shape[d] = size_of(p->o->sizes, o->shape[d]);
		if (p->o->dtype && !is_parameter(c, o) &&
		    (dtype == HZ_F32 || dtype == HZ_F16 || dtype == HZ_BF16))
			dtype = p->o->dtype;
		t[i] = view_at(dtype, o->ndim, shape, p->o->skew);
		v[i] = &t[i];
	}
	s->record = true;
	if (scene_run(s, c, v) == HZ_OK)
		workspace = s->bytes;
	s->record = false;
	return scene_run(s, c, v);
}

static bool matches(const char *calls, const char *name)
{
	const size_t n = strlen(calls);

	return n && calls[n - 1] == '*' ? strncmp(calls, name, n - 1) == 0 :
					  strcmp(calls, name) == 0;
}

static void trace_variant(const struct variant *o)
{
	for (int i = 0; i < calls_count; i++) {
		const struct variant_row p = {&calls[i], o};

		if (call_writes(&calls[i]) && matches(o->calls, calls[i].name) &&
		    strcmp(calls[i].name, "copy") != 0)
			trace(calls[i].name, run_variant, &p);
	}
}

void trace_calls(void)
{
	static const char *const mhc[] = {	/* tokens, streams, channels, m, n C, m + 1 */
		"5=64 8=1024 32=4096", "5=1 8=4096 32=16384", "5=8192 8=64 32=256",
		"5=1024 8=4104 32=16416", "5=113 8=1000 32=4000", "5=3 8=1023 32=4092",
		"5=512 8=7168 32=28672",
		"5=64 4=2 8=1024 24=8 32=2048 25=9", "5=30 4=3 8=1024 24=15 32=3072 25=16",
		"5=64 4=8 8=256 24=80 32=2048 25=81", "5=64 4=1 8=512 24=3 32=512 25=4",
		"5=64 4=5 8=1024 24=35 32=5120 25=36", "5=64 4=6 8=1024 24=48 32=6144 25=49",
		"5=64 4=7 8=1024 24=63 32=7168 25=64", "5=64 4=9 8=64 24=99 32=576 25=100",
		"5=64 4=8 8=33 24=80 32=264 25=81", "5=64 4=2 8=33 24=8 32=66 25=9",
	};
	static const char *const quats[] = {"5=1000", "5=1", "5=100000 9=3", "5=1001 9=100"};
	struct variant o = {.calls = "*", .sizes = "", .all = true};

	trace_variant(&o);
	o.all = false;
	trace_variant(&o);
	EACH(i, mhc) {
		EACH(d, floats) {
			for (int all = 0; all < 2; all++) {
				o = (struct variant){"mhc_*", mhc[i], floats[d], 0, all};
				/* To save time: no optional operands for the last sizes in bf16 */
				if (d == 2 && i > 9 && all)
					continue;
				trace_variant(&o);
			}
		}
	}
	o = (struct variant){"mhc_*", mhc[0], HZ_BF16, 2, true};
	trace_variant(&o);
	EACH(i, quats) {
		static const char *const names[] = {
			"quat_mul", "quat_mul_bwd", "quat_dot", "quat_conj", "quat_axpy",
			"quat_norm", "quat_norm_bwd", "quat_normalize", "quat_normalize_bwd",
			"quat_inverse_bwd", "quat_rotate", "quat_rotate_bwd", "quat_dropout",
			"quat_init",
		};
		EACH(d, floats) {
			EACH(k, names) {
				o = (struct variant){names[k], quats[i], floats[d], 0, true};
				trace_variant(&o);
				o.skew = 2 * (int)hz_dtype_size(floats[d]);
				if (i == 0)
					trace_variant(&o);
			}
		}
	}
}
