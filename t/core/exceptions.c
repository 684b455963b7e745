/*
 * exceptions.c - no call raises a floating-point exception on finite input with a finite result
 *
 * SPDX-License-Identifier: BSD-2-Clause
 *
 * Each row of calls.def runs on the CPU at every ISA level with its own shapes, dtypes and optional
 * operands and with others that it accepts, so that vectors have tails of every length. Invalid
 * operations, divisions by zero and overflows are errors unless a result is not finite; underflow
 * and inexact results are not. Where the C library can enable traps, the calls run with traps, as
 * applications do that look for such errors; elsewhere the flags are looked at.
 */
#include <config.h>

#include <fenv.h>
#include <math.h>
#include <setjmp.h>
#include <signal.h>

#include "lib/core/internal.h"
#include "t/core/calls.h"
#include "t/core/isa.h"
#include "t/core/ref.h"
#include "t/core/tap.h"

#define ERRORS (FE_INVALID | FE_DIVBYZERO | FE_OVERFLOW)
#define IMAGE_BYTES ((size_t)1 << 20)
#define POISON_BYTES ((size_t)1 << 20)
#define STACK_BYTES ((size_t)1 << 18)
#define POISON 0x7fa07fa0u

/* Inputs: uniform in -1 .. 1; zeros; half of them zeros; large; small */
enum values { UNIFORM, ZEROS, MIXED, LARGE, SMALL, VALUES };

static const char *const value_names[VALUES] = {
	"uniform", "zeros", "half zeros", "1e6", "1e-6",
};

static struct {
	struct scene s;
	unsigned char *image;
	const char *level;
	int isa;
	long calls, refused, infinite, bad, printed;
} now;

static sigjmp_buf trapped;
static volatile sig_atomic_t trap_code;

static void on_trap(int number, siginfo_t *info, void *context)
{
	(void)number;
	(void)context;
	trap_code = info->si_code;
	siglongjmp(trapped, 1);
}

static void traps(bool enable)
{
#ifdef __GLIBC__
	if (enable)
		feenableexcept(ERRORS);
	else
		fedisableexcept(ERRORS);
#else
	(void)enable;
#endif
}

static bool is_real(int dtype)
{
	return dtype == HZ_F32 || dtype == HZ_F16 || dtype == HZ_BF16;
}

/* A scale that is not 0 is a condition of its call. */
static bool is_scale(const struct operand *o)
{
	return strstr(o->name, "scale") != NULL;
}

/* Gives the reals of the arena other values: those of the image are uniform. */
static void set_values(const struct call *c, const hz_tensor *t, int n, enum values v)
{
	uint64_t seed = tap_seed() + 1;

	for (int i = 0; i < n; i++) {
		if (!is_real(c->operand[i].dtype) || c->operand[i].flags & (RAW | OBJECT | HOST))
			continue;
		for (int64_t j = 0; j < hz_tensor_count(&t[i]); j++) {
			const double x = ref_get(t[i].dtype, t[i].data, j);
			const double y = v == ZEROS ? 0 : v == LARGE ? x * 1e6 :
					 v == SMALL ? x * 1e-6 :
					 v == MIXED && rnd_below(&seed, 2) ? 0 : x;

			ref_put(t[i].dtype, t[i].data, j,
				is_scale(&c->operand[i]) ? fabs(x) + 0x1p-6 : y);
		}
	}
}

/* Whether all real outputs are finite, and all real inputs */
static bool all_finite(const struct call *c, const hz_tensor *t, const bool *given, int n,
		       bool outputs)
{
	for (int i = 0; i < n; i++) {
		if (!given[i] || !is_real(c->operand[i].dtype) ||
		    c->operand[i].flags & (RAW | OBJECT | HOST) ||
		    !(c->operand[i].flags & WRITES) == outputs)
			continue;
		for (int64_t j = 0; j < hz_tensor_count(&t[i]); j++) {
			if (!isfinite(ref_get(t[i].dtype, t[i].data, j)))
				return false;
		}
	}
	return true;
}

/*
 * Fills the workspace, the stack below and the registers of vectors with signaling NaN, of f32 and of
 * bf16: operations on lanes that nothing was written to would be invalid.
 */
static __attribute__((noinline)) void poison(struct hz_context *ctx)
{
	volatile uint32_t stack[STACK_BYTES / 4];
	uint32_t *const p = ctx->workspace;

	for (size_t i = 0; i < ctx->workspace_bytes / 4 && i < POISON_BYTES / 4; i++)
		p[i] = POISON;
	for (size_t i = 0; i < STACK_BYTES / 4; i++)
		stack[i] = POISON;
#ifdef __x86_64__
#define FILL(r) "vbroadcastss %0, %%" r "\n\t"
#define FILL8(r, a, b, c, d, e, f, g, h) \
	FILL(r #a) FILL(r #b) FILL(r #c) FILL(r #d) FILL(r #e) FILL(r #f) FILL(r #g) FILL(r #h)
	if (__builtin_cpu_supports("avx512f"))
		__asm__ volatile(FILL8("zmm", 0, 1, 2, 3, 4, 5, 6, 7)
				 FILL8("zmm", 8, 9, 10, 11, 12, 13, 14, 15)
				 FILL8("zmm", 16, 17, 18, 19, 20, 21, 22, 23)
				 FILL8("zmm", 24, 25, 26, 27, 28, 29, 30, 31)
				 :: "m"(stack[0]));
	else if (__builtin_cpu_supports("avx2"))
		__asm__ volatile(FILL8("ymm", 0, 1, 2, 3, 4, 5, 6, 7)
				 FILL8("ymm", 8, 9, 10, 11, 12, 13, 14, 15)
				 :: "m"(stack[0]));
#endif
}

/* Makes a call. optional: with all operands, not only those that are necessary. what: for messages
 * Returns whether the call accepted its operands. */
static bool try(const struct call *c, enum values v, bool optional, const char *what)
{
	hz_tensor *operand[CALL_OPERANDS] = {NULL};
	hz_tensor t[CALL_OPERANDS];
	bool given[CALL_OPERANDS] = {false};
	size_t used;
	const int n = scene_views(&now.s, c, t, &used);
	volatile int status = HZ_OK;
	int raised = 0;

	scene_image(&now.s, c, tap_seed(), now.image);
	scene_write(&now.s, now.image, used);
	set_values(c, t, n, v);
	for (int i = 0; i < n; i++) {
		given[i] = optional || !(c->operand[i].flags & MAY_MISS) ||
			   c->operand[i].flags & WRITES;
		operand[i] = given[i] ? &t[i] : NULL;
	}
	if (!all_finite(c, t, given, n, false))
		return true;
	poison(now.s.ctx);
	trap_code = 0;
	feclearexcept(FE_ALL_EXCEPT);
	if (sigsetjmp(trapped, 1) == 0) {
		traps(true);
		status = scene_run(&now.s, c, operand);
		raised = fetestexcept(ERRORS);
	}
	traps(false);
	feclearexcept(FE_ALL_EXCEPT);
	if (status != HZ_OK) {
		now.refused++;
		return false;
	}
	now.calls++;
	/* Once more if a trap ended the call, whose results are needed */
	if (trap_code && (scene_run(&now.s, c, operand) != HZ_OK))
		bail("%s: %s", c->name, hz_errmsg(now.s.ctx));
	if (!trap_code && !raised)
		return true;
	if (!all_finite(c, t, given, n, true)) {
		now.infinite++;
		return true;
	}
	now.bad++;
	if (now.printed++ < 3)	/* of a row */
		diag("%s, %s, %s, %s%s:%s%s%s", c->name, now.level, what, value_names[v],
		     optional ? "" : ", no options",
		     trap_code == FPE_FLTINV || raised & FE_INVALID ? " FE_INVALID" : "",
		     trap_code == FPE_FLTDIV || raised & FE_DIVBYZERO ? " FE_DIVBYZERO" : "",
		     trap_code == FPE_FLTOVF || raised & FE_OVERFLOW ? " FE_OVERFLOW" : "");
	return true;
}

/* ---- Variants of a row ------------------------------------------------------------------------ */

static void all_values(const struct call *c, const char *what)
{
	for (int v = 0; v < VALUES; v++) {
		if (v != UNIFORM && v != MIXED && what[0] != 'a')
			continue;
		for (int optional = 0; optional < 2; optional++) {
			/* What is refused is so whatever the values. */
			if (!try(c, (enum values)v, optional, what) && v == 0 && optional)
				return;
		}
	}
}

/* Bytes that operands need at most: see slot_bytes() of scene.c. */
static bool fits(const struct call *c)
{
	size_t total = 0;

	for (int i = 0; i < CALL_OPERANDS && c->operand[i].name; i++) {
		size_t count = 1;

		for (int d = 0; d < c->operand[i].ndim; d++)
			count *= (size_t)c->operand[i].shape[d];
		total += 48 * count + 1024;
	}
	return total < IMAGE_BYTES;
}

/* The row with size `from` replaced by `to`, and multiples of it likewise if `multiples` */
static void other_size(const struct call *c, int64_t from, int64_t to, bool multiples)
{
	struct call other = *c;
	char what[64];

	for (int i = 0; i < CALL_OPERANDS && other.operand[i].name; i++) {
		struct operand *const o = &other.operand[i];

		for (int d = 0; d < o->ndim; d++) {
			if (o->shape[d] == from || (multiples && o->shape[d] % from == 0))
				o->shape[d] = o->shape[d] / from * to;
		}
	}
	snprintf(what, sizeof(what), "%lld -> %lld%s", (long long)from, (long long)to,
		 multiples ? " and multiples" : "");
	if (fits(&other))
		all_values(&other, what);
}

static void other_sizes(const struct call *c)
{
	static const int64_t sizes[] = {3, 9, 17, 40, 128};
	bool seen[512] = {false};

	for (int i = 0; i < CALL_OPERANDS && c->operand[i].name; i++) {
		for (int d = 0; d < c->operand[i].ndim; d++) {
			const int64_t from = c->operand[i].shape[d];

			if (from < 2 || from >= 512 || seen[from] || c->operand[i].flags & RAW)
				continue;
			seen[from] = true;
			for (size_t k = 0; k < sizeof(sizes) / sizeof(*sizes); k++) {
				/* Each level has half of them, the next one the others. */
				if (tap_quick() && (k + (size_t)from + (size_t)now.isa) % 2)
					continue;
				other_size(c, from, sizes[k], false);
				other_size(c, from, sizes[k], true);
			}
		}
	}
}

/* Dtypes for all reals, and for all but optional operands */
static void other_dtypes(const struct call *c)
{
	static const int dtypes[] = {HZ_F32, HZ_F16, HZ_BF16};
	char what[64];

	for (int k = 0; k < 6; k++) {
		struct call other = *c;
		const int dtype = dtypes[k % 3];

		for (int i = 0; i < CALL_OPERANDS && other.operand[i].name; i++) {
			struct operand *const o = &other.operand[i];

			if (is_real(o->dtype) && (k < 3 || !(o->flags & MAY_MISS)))
				o->dtype = dtype;
		}
		snprintf(what, sizeof(what), "%s%s", hz_dtype_name(dtype), k < 3 ? "" : ", some");
		all_values(&other, what);
	}
}

static void level(int isa)
{
	const hz_options o = {.device = HZ_CPU, .isa = isa, .threads = 1};

	scene_open(&now.s, &o);
	now.isa = isa;
	now.level = hz_isa_name(isa);
	now.calls = now.refused = now.infinite = now.bad = 0;
	for (int i = 0; i < calls_count; i++) {
		now.printed = 0;
		all_values(&calls[i], "as in the table");
		other_sizes(&calls[i]);
		other_dtypes(&calls[i]);
	}
	ok(now.bad == 0, "%s: %ld calls raise no exception, %ld refused, %ld not finite",
	   now.level, now.calls, now.refused, now.infinite);
	if (now.bad)
		diag("%ld calls raised one", now.bad);
	scene_close(&now.s);
}

int main(void)
{
	const struct sigaction action = {.sa_sigaction = on_trap, .sa_flags = SA_SIGINFO};

#ifdef __clang__
	skip_all("Clang assumes that nobody looks at exceptions, and divides where the quotient is "
		 "not used");
#endif
	sigaction(SIGFPE, &action, NULL);
	now.image = malloc(IMAGE_BYTES);
	if (!now.image)
		bail("no memory");
	for (int isa = HZ_ISA_AUTO; (isa = isa_above(isa)) != HZ_ISA_AUTO;)
		level(isa);
	free(now.image);
	return done_testing();
}
