/*
 * supports.c - hz_supports() against calls: recorded ones with every dtype in every operand
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#include <config.h>

#include "t/core/calls.h"
#include "t/core/tap.h"

static struct {
	struct scene s;
	const struct call *c;
	hz_tensor t[CALL_OPERANDS];
	int n;				/* operands of the call */
	int main[CALL_OPERANDS];	/* those that hz_supports() counts */
	int count;
	bool exact;			/* no other operand decides which dtypes it takes */
	int bad, tried;
} now;

static bool in_struct(const struct operand *o)
{
	return strpbrk(o->name, ">.") != NULL;
}

/* The call with the dtypes that now.t has against hz_supports() */
static void compare(void)
{
	hz_tensor *t[CALL_OPERANDS];
	int dtypes[CALL_OPERANDS], status, said;

	for (int i = 0; i < now.n; i++) {
		const struct operand *const o = &now.c->operand[i];

		t[i] = in_struct(o) && o->flags & MAY_MISS ? NULL : &now.t[i];
	}
	for (int k = 0; k < now.count; k++)
		dtypes[k] = now.t[now.main[k]].dtype;
	now.s.record = true;
	status = scene_run(&now.s, now.c, t);
	said = hz_supports(now.c->name, dtypes, now.count, HZ_CPU);
	now.tried++;
	if ((said && status == HZ_EDTYPE && now.exact) || (!said && status != HZ_EDTYPE)) {
		if (now.bad++ < 10) {
			for (int k = 0; k < now.count; k++)
				diag("%s: %s %s", now.c->name, now.c->operand[now.main[k]].name,
				     hz_dtype_name(dtypes[k]));
			diag("%s: supports %d, status %d \"%s\"", now.c->name, said, status,
			     status == HZ_OK ? "" : hz_errmsg(now.s.ctx));
		}
	}
}

static void set(int k, int dtype)
{
	now.t[now.main[k]].dtype = (int16_t)dtype;
}

/* Whether a packed matrix stands for an operand, which has no dtype of its own then */
static bool has_packed(const struct call *c)
{
	for (int i = 1; i < CALL_OPERANDS && c->operand[i].name; i++) {
		if (c->operand[i].flags & OBJECT)
			return true;
	}
	return false;
}

static void one_row(const struct call *c)
{
	size_t used;

	now.c = c;
	now.count = now.bad = now.tried = 0;
	now.exact = true;
	now.n = scene_views(&now.s, c, now.t, &used);
	for (int i = 0; i < now.n; i++) {
		const unsigned flags = c->operand[i].flags;

		if (flags & OBJECT || (in_struct(&c->operand[i]) && !(flags & MAY_MISS)))
			now.exact = false;
		else if (!(flags & (RAW | HOST | UNUSED)) && !in_struct(&c->operand[i]))
			now.main[now.count++] = i;
		now.t[i].data = flags & (RAW | OBJECT) ? now.t[i].data : NULL;
	}
	compare();
	for (int k = 0; k < now.count; k++) {
		for (int d = 1; d <= HZ_U2X4; d++) {
			set(k, d);
			compare();
			for (int l = k + 1; l < now.count; l++) {
				for (int e = 1; e <= HZ_U2X4; e++) {
					set(l, e);
					compare();
				}
				set(l, c->operand[now.main[l]].dtype);
			}
		}
		set(k, c->operand[now.main[k]].dtype);
	}
	/* All operands of one floating-point dtype */
	for (int d = HZ_F32; d <= HZ_F64; d++) {
		for (int k = 0; k < now.count; k++)
			set(k, c->operand[now.main[k]].dtype == c->operand[now.main[0]].dtype
			       ? d : c->operand[now.main[k]].dtype);
		compare();
	}
	ok(now.bad == 0, "%s: %d calls", c->name, now.tried);
}

static void arguments(void)
{
	const int two[] = {HZ_F32, HZ_BF16}, wide[] = {HZ_F64, HZ_F64};

	is_int(hz_supports("hadamard", two, 2, HZ_CPU), 1, "dtypes of all operands");
	is_int(hz_supports("hadamard", two, 1, HZ_CPU), 1, "of the first");
	is_int(hz_supports("hadamard", NULL, 0, HZ_CPU), 1, "of none");
	is_int(hz_supports("hadamard", (int[]){0, HZ_F16}, 2, HZ_CPU), 1, "of the second");
	is_int(hz_supports("hadamard", (int[]){0, HZ_S8}, 2, HZ_CPU), 0, "a wrong one");
	is_int(hz_supports("quat_mul", (int[]){0, HZ_F64, HZ_F64}, 3, HZ_CPU), 1,
	       "the same as one that is not given");
	is_int(hz_supports("quat_mul", (int[]){0, HZ_S8}, 2, HZ_CPU), 0, "which is none of its dtypes");
	is_int(hz_supports("hadamard", (int[]){HZ_F32, HZ_F32, HZ_F32}, 3, HZ_CPU), 0, "too many");
	is_int(hz_supports("hadamard", two, -1, HZ_CPU), 0, "fewer than none");
	is_int(hz_supports("hadamard", NULL, 1, HZ_CPU), 0, "dtypes NULL");
	is_int(hz_supports("mhc_layer_begin", two, 1, HZ_CPU), 1, "layers");
	is_int(hz_supports("vlut_pack", NULL, 0, HZ_CPU), 1, "a call whose operands are in structs");
	is_int(hz_supports("hadamards", two, 2, HZ_CPU), 0, "no such operation");
	is_int(hz_supports(NULL, two, 2, HZ_CPU), 0, "NULL");
	is_int(hz_supports("hadamard", two, 2, HZ_AUTO), 0, "no device");
	is_int(hz_supports("hadamard", (int[]){99, 99}, 2, HZ_CPU), 0, "no dtype");
	is_int(hz_supports("quat_mul", wide, 2, HZ_CPU), 1, "f64 on the CPU");
	is_int(hz_supports("quat_mul", wide, 2, HZ_CUDA), 0, "and not on a GPU");
	is_int(hz_supports("hadamard", two, 2, HZ_CUDA), hz_supports("qgemm", NULL, 0, HZ_CUDA + 1),
	       "a GPU has all operations or this build none for it");
}

int main(void)
{
	const hz_options o = {.device = HZ_CPU, .threads = 1, .flags = HZ_NO_TOPOLOGY};

	arguments();
	scene_open(&now.s, &o);
	for (int i = 0; i < calls_count; i++) {
		const char *const name = calls[i].name;

		/* Memory, quantizers, counts of bytes, bytes of layers, layers bound to structs */
		if (calls[i].operand[0].name && !(calls[i].operand[0].flags & (HOST | ANYWHERE)) &&
		    strncmp(name, "mhc_layer", 9) != 0 && !strstr(name, "_bytes") &&
		    !has_packed(&calls[i]) && strcmp(name, "vlut_open") != 0 &&
		    strcmp(name, "vlut_pack") != 0 && strcmp(name, "linear_load") != 0 &&
		    strcmp(name, "linear_save") != 0)
			one_row(&calls[i]);
	}
	scene_close(&now.s);
	return done_testing();
}
