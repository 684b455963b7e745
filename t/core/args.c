/*
 * args.c - invalid arguments of every function: status, message, and nothing written
 *
 * SPDX-License-Identifier: BSD-2-Clause
 *
 * Each operand of each row of calls.def is made invalid in every way, on the CPU and on the
 * stand-in for a GPU. A call that returns an error must name the operand and must not have written
 * a byte; a call that succeeds must have written nothing outside its outputs.
 */
#include <config.h>

#include "t/core/calls.h"
#include "t/core/fakecuda.h"
#include "t/core/ref.h"
#include "t/core/tap.h"

#define S(status) (1u << -(status))
#define OK S(HZ_OK)
#define SHAPE S(HZ_ESHAPE)
#define STRIDE S(HZ_ESTRIDE)
#define SIZES (OK | SHAPE | STRIDE | S(HZ_EINVAL) | S(HZ_ENOTSUP))

#define SENTINEL ((size_t)0x5eed)

static const struct fakecuda *fake;

/* The row under test */
static struct {
	struct scene *s;
	const struct call *c;
	hz_tensor t[CALL_OPERANDS];
	bool given[CALL_OPERANDS];
	int n;
	size_t used;
	unsigned char *image, *other;	/* contents of the arena; scratch of the same size */
	long tried, bad;
} now;

/* The stand-in's device memory is host memory. */
static unsigned char *arena(void)
{
	return now.s->arena;
}

static void restore(void)
{
	memcpy(arena(), now.image, now.used);
}

static void reset_views(void)
{
	now.n = scene_views(now.s, now.c, now.t, &now.used);
	for (int i = 0; i < now.n; i++)
		now.given[i] = true;
}

/* Whether the arena is unchanged, except for the outputs of a call that succeeded */
static bool untouched(bool refused)
{
	if (refused)
		return memcmp(arena(), now.image, now.used) == 0;
	memcpy(now.other, now.image, now.used);
	for (int i = 0; i < now.n; i++) {
		const hz_tensor *const t = &now.t[i];
		int64_t low = 0, high = 1;
		ptrdiff_t from;

		if (!(now.c->operand[i].flags & WRITES) || !now.given[i] || !t->data)
			continue;
		for (int d = 0; d < t->ndim; d++)
			*(t->stride[d] < 0 ? &low : &high) += t->stride[d] * (t->shape[d] - 1);
		if (hz_tensor_count(t) < 1)
			continue;
		from = (unsigned char *)t->data + low * (int64_t)hz_dtype_size(t->dtype) - arena();
		if (from >= 0 && from + hz_tensor_bytes(t) <= (ptrdiff_t)now.used)
			memcpy(now.other + from, arena() + from, (size_t)hz_tensor_bytes(t));
	}
	return memcmp(arena(), now.other, now.used) == 0;
}

/* Whether the call makes an object of its operands, which may take launches while recording, too */
static bool makes_object(const struct call *c)
{
	return c->operand[0].flags & READ;
}

/* Makes the call and checks the result. allowed: bits of statuses; name: the operand that the error
 * message must name, or NULL. */
__attribute__((format(printf, 3, 4))) static void try(unsigned allowed, const char *name,
						      const char *format, ...)
{
	struct scene *const s = now.s;
	hz_tensor *t[CALL_OPERANDS] = {NULL};
	const long launches = fake && s->device != HZ_CPU ? fake->launches() : 0;
	const char *wrong = NULL, *message;
	int status;

	/* Messages call opts->pre "pre". */
	if (name && strrchr(name, '>'))
		name = strrchr(name, '>') + 1;
	for (int i = 0; i < now.n; i++)
		t[i] = now.given[i] ? &now.t[i] : NULL;
	hz_alloc(s->ctx, NULL, 0, HZ_CPU);	/* leaves another message behind */
	s->bytes = SENTINEL;
	status = scene_run(s, now.c, t);
	message = hz_errmsg(s->ctx);
	now.tried++;
	if (status > 0 || status < -31 || !(allowed & S(status)))
		wrong = "status";
	else if (status != HZ_OK && (strncmp(message, "alloc", 5) == 0 || !strstr(message, ": ")))
		wrong = "no message";
	else if (status != HZ_OK && name && !strstr(message, name))
		wrong = "the message does not name it";
	else if (!untouched(status != HZ_OK || s->record))
		wrong = "memory was touched";
	else if (status != HZ_OK && s->bytes != SENTINEL)
		wrong = "bytes were written";
	else if ((status != HZ_OK || (s->record && !makes_object(now.c))) && fake &&
		 s->device != HZ_CPU && fake->launches() != launches)
		wrong = "something was launched";
	if (wrong) {
		va_list ap;

		now.bad++;
		if (now.bad < 20) {
			char what[160];

			va_start(ap, format);
			vsnprintf(what, sizeof(what), format, ap);
			va_end(ap);
			diag("%s%s: %s: %s: %d \"%s\"", s->record ? "recorded: " : "", now.c->name,
			     what, wrong, status, status == HZ_OK ? "" : message);
		}
	}
	restore();
	if (fake && fake->launches() > 200) {
		char first[256];

		if (fake->complaints(first, sizeof(first))) {
			diag("%s: %s", now.c->name, first);
			now.bad++;
		}
		fake->reset();
	}
}

/* ---- One operand wrong --------------------------------------------------------------------- */

/* Applies the change to now.t[i], makes the call and undoes the change. */
#define WITH(change, allowed, name, ...) \
	do { \
		const hz_tensor kept_ = *t; \
		change; \
		try(allowed, name, __VA_ARGS__); \
		*t = kept_; \
	} while (0)

static void wrong_dtypes(int i)
{
	const struct operand *const o = &now.c->operand[i];
	hz_tensor *const t = &now.t[i];
	static const int never[] = {0, -1, HZ_U2X4 + 1, 99, INT16_MIN};

	for (size_t k = 0; k < sizeof(never) / sizeof(*never); k++)
		WITH(t->dtype = (int16_t)never[k], S(HZ_EDTYPE), o->name, "%s.dtype %d", o->name,
		     never[k]);
	for (int dtype = HZ_F32; dtype <= HZ_U2X4; dtype++) {
		unsigned allowed = OK | S(HZ_EDTYPE) | SHAPE | S(HZ_ENOTSUP) | S(HZ_EINVAL);

		if (dtype == o->dtype)
			continue;
		/* A dtype that no function supports */
		if (dtype == HZ_S64 && !(o->flags & ANYWHERE))
			allowed = S(HZ_EDTYPE);
		WITH(t->dtype = (int16_t)dtype, allowed, NULL, "%s.dtype %s", o->name,
		     hz_dtype_name(dtype));
	}
}

static void wrong_shapes(int i)
{
	const struct operand *const o = &now.c->operand[i];
	hz_tensor *const t = &now.t[i];
	static const int64_t never[] = {-1, INT64_MIN, INT64_MAX, INT64_C(1) << 62};

	WITH(t->ndim = -1, SHAPE, o->name, "%s.ndim -1", o->name);
	WITH(t->ndim = HZ_MAXDIM + 1, SHAPE, o->name, "%s.ndim 7", o->name);
	WITH(t->ndim = INT16_MAX, SHAPE, o->name, "%s.ndim 32767", o->name);
	WITH(t->ndim--, SIZES, NULL, "%s.ndim one less", o->name);
	if (t->ndim < HZ_MAXDIM)
		WITH((t->shape[t->ndim] = t->stride[t->ndim] = 1, t->ndim++), SIZES, NULL,
		     "%s.ndim one more", o->name);
	for (int d = 0; d < t->ndim; d++) {
		for (size_t k = 0; k < sizeof(never) / sizeof(*never); k++)
			WITH(t->shape[d] = never[k], SHAPE, o->name, "%s.shape[%d] %lld", o->name,
			     d, (long long)never[k]);
		for (int64_t size = 0; size <= 1; size++)
			WITH(t->shape[d] = size, SIZES, NULL, "%s.shape[%d] %lld", o->name, d,
			     (long long)size);
		WITH(t->shape[d]++, SIZES, NULL, "%s.shape[%d] one more", o->name, d);
		WITH(t->shape[d]--, SIZES, NULL, "%s.shape[%d] one less", o->name, d);
	}
}

static void wrong_strides(int i)
{
	const struct operand *const o = &now.c->operand[i];
	hz_tensor *const t = &now.t[i];
	static const int64_t never[] = {INT64_MIN, INT64_MAX, INT64_C(1) << 62};
	const int64_t size = (int64_t)hz_dtype_size(o->dtype);

	for (int d = 0; d < t->ndim; d++) {
		const bool steps = t->shape[d] > 1;

		for (size_t k = 0; k < sizeof(never) / sizeof(*never); k++)
			WITH(t->stride[d] = never[k], steps ? SHAPE | STRIDE : SIZES,
			     steps ? o->name : NULL, "%s.stride[%d] %lld", o->name, d,
			     (long long)never[k]);
		WITH(t->stride[d] = 0, steps && o->flags & WRITES ? STRIDE : SIZES,
		     steps && o->flags & WRITES ? o->name : NULL, "%s.stride[%d] 0", o->name, d);
		WITH(t->stride[d]++, SIZES, NULL, "%s.stride[%d] one more", o->name, d);
		WITH((t->data = (char *)t->data + t->stride[d] * (t->shape[d] - 1) * size,
		      t->stride[d] = -t->stride[d]),
		     SIZES, NULL, "%s.stride[%d] reversed", o->name, d);
	}
}

static void wrong_data(int i)
{
	const struct operand *const o = &now.c->operand[i];
	hz_tensor *const t = &now.t[i];
	const int32_t elsewhere[] = {HZ_AUTO, now.s->device == HZ_CPU ? HZ_CUDA : HZ_CPU,
				     now.s->device + 7, -1, INT32_MAX, INT32_MIN};

	/* A view by value without data means that the operand is absent. */
	WITH(t->data = NULL, now.s->record ? OK | S(HZ_EINVAL) | SHAPE :
			     o->flags & MAY_MISS ? SIZES : S(HZ_EINVAL) | SHAPE, NULL,
	     "%s.data NULL", o->name);
	if (hz_dtype_size(o->dtype) > 1)
		WITH(t->data = (char *)t->data + 1, STRIDE, o->name, "%s.data misaligned", o->name);
	for (size_t k = 0; k < sizeof(elsewhere) / sizeof(*elsewhere); k++) {
		if (o->flags & (ANYWHERE | HOST) && elsewhere[k] == HZ_CPU)
			continue;
		WITH(t->device = elsewhere[k], S(HZ_EDEVICE), o->name, "%s.device %d", o->name,
		     elsewhere[k]);
	}
}

/* Output i in the memory of operand j, at the same address and one element further */
static void overlaps(int i)
{
	const struct operand *const o = &now.c->operand[i];
	hz_tensor *const t = &now.t[i];

	for (int j = 0; j < now.n; j++) {
		const struct operand *const other = &now.c->operand[j];
		const size_t size = o->flags & RAW ? 64 : hz_dtype_size(o->dtype);
		const hz_tensor kept = *t;

		if (j == i || other->flags & (OBJECT | HOST | UNUSED))
			continue;
		t->data = now.t[j].data;
		try(o->same >> j & 1 ? OK : S(HZ_EALIAS), NULL, "%s where %s is", o->name,
		    other->name);
		if ((size_t)hz_tensor_bytes(&now.t[j]) > size) {
			t->data = (char *)now.t[j].data + size;
			try(S(HZ_EALIAS), NULL, "%s into %s", o->name, other->name);
		}
		*t = kept;
	}
}

static void one_operand(int i)
{
	const struct operand *const o = &now.c->operand[i];

	if (o->flags & UNUSED || (o->flags & RAW && now.s->record))
		return;
	now.given[i] = false;
	try(o->flags & MAY_MISS ? OK | SHAPE | S(HZ_EINVAL) : S(HZ_EINVAL) | S(HZ_EDTYPE), NULL,
	    "%s NULL", o->name);
	now.given[i] = true;
	if (!(o->flags & (OBJECT | RAW))) {
		wrong_dtypes(i);
		wrong_shapes(i);
		wrong_strides(i);
		wrong_data(i);
	}
	if (o->flags & RAW) {
		hz_tensor *const t = &now.t[i];

		WITH(t->data = (char *)t->data + 1, S(HZ_EINVAL) | STRIDE, NULL, "%s misaligned",
		     o->name);
	}
	if (o->flags & WRITES && !now.s->record)
		overlaps(i);
}

/* ---- All operands wrong at once ------------------------------------------------------------ */

/* Changes each dimension of size `from` to `to` in all operands, and each other one to `others` (<
 * 0: keeps it). */
static void resize(int64_t from, int64_t to, int64_t others)
{
	for (int i = 0; i < now.n; i++) {
		const struct operand *const o = &now.c->operand[i];
		hz_tensor *const t = &now.t[i];
		int64_t shape[HZ_MAXDIM];

		if (o->flags & (OBJECT | RAW))
			continue;
		for (int d = 0; d < o->ndim; d++)
			shape[d] = o->shape[d] == from ? to : others >= 0 ? others : o->shape[d];
		*t = hz_tensor_nd(t->data, o->dtype, t->device, o->ndim, shape);
	}
}

static void all_sizes(void)
{
	static const int64_t large[] = {(INT64_C(1) << 31) + 8, INT64_C(1) << 33, INT64_C(1) << 50};
	const bool device = now.s->device != HZ_CPU;
	int64_t seen[64];
	int count = 0;

	for (int i = 0; i < now.n; i++) {
		const struct operand *const o = &now.c->operand[i];

		if (o->flags & (RAW | UNUSED))
			continue;
		for (int d = 0; d < o->ndim; d++) {
			const int64_t size = o->shape[d];
			int k = 0;

			while (k < count && seen[k] != size)
				k++;
			if (k < count)
				continue;
			seen[count++] = size;
			resize(size, INT64_C(1) << 62, -1);
			try(SHAPE | S(HZ_ENOTSUP) | S(HZ_EDTYPE), NULL, "all %lld are 2^62",
			    (long long)size);
			resize(size, INT64_MAX, 0);
			try(SIZES, NULL, "all %lld are 2^63 - 1, others 0", (long long)size);
			resize(size, 0, -1);
			try(SIZES, NULL, "all %lld are 0", (long long)size);
			resize(size, 0, INT64_C(1) << 40);
			try(SIZES, NULL, "all %lld are 0, others 2^40", (long long)size);
			/* Where nothing is computed, the memory behind the views need not exist. */
			for (size_t l = 0; l < 3 && !(o->flags & (HOST | READ)) &&
			     (now.s->record || device); l++) {
				resize(size, large[l], -1);
				try(SIZES | S(HZ_EWORKSPACE) | S(HZ_EALIAS), NULL,
				    "all %lld are %lld", (long long)size, (long long)large[l]);
			}
			reset_views();
		}
	}
}

/* ---- Recorded workspaces ------------------------------------------------------------------- */

/* Leaves values on the stack, where later the padding of structs is. */
static __attribute__((noinline)) void soil_stack(uint32_t value)
{
	volatile uint32_t soil[8192];

	for (size_t i = 0; i < sizeof(soil) / sizeof(*soil); i++)
		soil[i] = value;
}

static size_t recorded(uint32_t soil)
{
	hz_tensor *t[CALL_OPERANDS] = {NULL};

	for (int i = 0; i < now.n; i++)
		t[i] = &now.t[i];
	now.s->bytes = 0;
	soil_stack(soil);
	if (scene_run(now.s, now.c, t) != HZ_OK)
		now.bad++;
	now.tried++;
	return now.s->bytes;
}

/* Without data a recorded call needs at least what it needs with any alignment of operands. */
static void recorded_sizes(void)
{
	uint64_t rng = tap_seed();
	size_t most;
	uint32_t soil;

	/* Where NULL data means an absent operand */
	if (strncmp(now.c->name, "mhc_layer", 9) == 0 || strcmp(now.c->name, "mhc_recompute") == 0)
		return;
	for (int i = 0; i < now.n; i++) {
		if (!(now.c->operand[i].flags & (OBJECT | READ)))
			now.t[i].data = NULL;
	}
	most = recorded(0);
	/* Upper halves of addresses that stand for operands without data, and of doubles */
	for (int i = 0; i < 16; i++) {
		rng = rng * 6364136223846793005u + 1442695040888963407u;
		soil = (UINT32_C(1) << 30) + (i % 2 ? (uint32_t)(rng >> 40) : (uint32_t)i << 15);
		if (recorded(soil) != most) {
			diag("%s: %zu bytes, another number after other calls", now.c->name, most);
			now.bad++;
			break;
		}
	}
	for (int round = 0; round < 32; round++) {
		size_t bytes;

		reset_views();
		for (int i = 0; i < now.n && round; i++) {
			const unsigned flags = now.c->operand[i].flags;

			rng = rng * 6364136223846793005u + 1442695040888963407u;
			if (!(flags & (OBJECT | RAW | UNUSED)))
				now.t[i].data = (char *)now.t[i].data +
						(rng >> 40) % 8 * hz_dtype_size(now.t[i].dtype);
		}
		bytes = recorded(0);
		if (bytes > most) {
			diag("%s: %zu bytes without data, %zu with", now.c->name, most, bytes);
			now.bad++;
			break;
		}
	}
	reset_views();
}

/* ---- One row ------------------------------------------------------------------------------- */

static void no_context(void)
{
	struct scene none = *now.s;
	hz_tensor *t[CALL_OPERANDS] = {NULL};
	int status;

	none.ctx = NULL;
	for (int i = 0; i < now.n; i++)
		t[i] = &now.t[i];
	status = scene_run(&none, now.c, t);
	if (status != HZ_EINVAL) {
		diag("%s: status %d without a context", now.c->name, status);
		now.bad++;
	}
	now.tried++;
}

static void row(struct scene *s, const struct call *c, bool record, const char *device)
{
	now.s = s;
	now.c = c;
	now.tried = now.bad = 0;
	s->record = record;
	reset_views();
	scene_image(s, c, tap_seed(), now.image);
	restore();
	try(OK, NULL, "the valid call");
	no_context();
	for (int i = 0; i < now.n; i++)
		one_operand(i);
	all_sizes();
	if (record)
		recorded_sizes();
	try(OK, NULL, "the valid call, after all of these");
	ok(now.bad == 0, "%s%s, %s: %ld calls", c->name, record ? " recorded" : "", device,
	   now.tried);
	s->record = false;
}

static void all_rows(int device, const char *name)
{
	const hz_options o = {.device = device, .threads = 1, .flags = HZ_NO_TOPOLOGY};
	struct scene s;

	scene_open(&s, &o);
	now.image = malloc(s.arena_bytes);
	now.other = malloc(s.arena_bytes);
	if (!now.image || !now.other)
		bail("no memory");
	for (int i = 0; i < calls_count; i++) {
		row(&s, &calls[i], false, name);
		row(&s, &calls[i], true, name);
	}
	free(now.image);
	free(now.other);
	scene_close(&s);
}

/* ---- Whether the table has every function -------------------------------------------------- */

static bool in_table(const char *name)
{
	/* Tested in t/core/context.c */
	static const char *const others[] = {"free", "set_workspace", "set_stream", "device_info",
					     "record_begin", "record_end", "set_threads"};

	for (size_t i = 0; i < sizeof(others) / sizeof(*others); i++) {
		if (strcmp(others[i], name) == 0)
			return true;
	}
	for (int i = 0; i < calls_count; i++) {
		if (strcmp(calls[i].name, name) == 0)
			return true;
	}
	return false;
}

/* The table has every function of the header whose first parameter is a context. */
static void completeness(void)
{
	static const char begin[] = "int hz_", argument[] = "(hz_context *ctx";
	const char *const top = getenv("top_srcdir");
	char path[1024], line[256];
	int functions = 0, missing = 0;
	FILE *in;

	snprintf(path, sizeof(path), "%s/include/hurwitz.h", top ? top : "..");
	in = fopen(path, "r");
	if (!in) {
		skip(1, "no %s", path);
		return;
	}
	while (fgets(line, sizeof(line), in)) {
		char *const end = strstr(line, argument);
		const char *name = strstr(line, begin);

		if (strncmp(line, "HZ_API", 6) != 0 || !end || !name)
			continue;
		*end = '\0';
		name += sizeof(begin) - 1;
		functions++;
		if (!in_table(name)) {
			missing++;
			diag("hz_%s has no row in t/core/calls.def", name);
		}
	}
	fclose(in);
	ok(functions > 70 && missing == 0, "all %d functions with a context have a row", functions);
}

int main(void)
{
	char first[256] = "";

	unsetenv("HURWITZ_DEVICE");
	fake = scene_driver("fakecuda.so");
	completeness();
	all_rows(HZ_CPU, "CPU");
#if HZ_HAVE_CUDA
	fake->reset();
	all_rows(HZ_CUDA, "stand-in for a GPU");
#endif
	is_int(fake ? fake->complaints(first, sizeof(first)) : 0, 0,
	       "the driver has no complaint");
	if (*first)
		diag("%s", first);
	return done_testing();
}
