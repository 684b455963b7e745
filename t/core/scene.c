/*
 * scene.c - a context, objects and memory for the calls of calls.c
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#include <config.h>

#include "t/core/calls.h"

#include "t/core/fakecuda.h"
#include "t/core/ref.h"
#include "t/core/tap.h"

#define ARENA_BYTES ((size_t)1 << 20)
#define WORKSPACE_BYTES ((size_t)1 << 20)	/* on a GPU */

static void must(const struct scene *s, int status, const char *what)
{
	if (status != HZ_OK)
		bail("%s: %s", what, s->ctx ? hz_errmsg(s->ctx) : hz_open_errmsg());
}

static void *device_memory(const struct scene *s, size_t bytes)
{
	void *p;

	must(s, hz_alloc(s->ctx, &p, bytes, s->device), "memory of a scene");
	return p;
}

/* Packs whatever the memory contains: the values do not matter. */
static void pack(struct scene *s)
{
	const hz_tensor b = hz_tensor_2d(s->arena, HZ_U8, s->device, 16, 24);
	const hz_tensor nibbles = hz_tensor_2d(s->arena, HZ_S4X2, s->device, 32, 24);
	const hz_tensor scales = hz_tensor_2d(s->arena, HZ_F32, s->device, 2, 24);
	const hz_tensor a = hz_tensor_3d(s->arena, HZ_F32, s->device, 5, 6, 4);
	const hz_tensor t = hz_tensor_2d(s->arena, HZ_U8, s->device, 3, 4);
	const hz_coded w = {.codes = hz_tensor_3d(s->arena, HZ_U8, s->device, 3, 4, 2), .t = &t};
	const hz_coded empty = {.rows = 3, .k = 16};
	const hz_tensor weights = hz_tensor_2d(s->arena, HZ_F32, s->device, 6, 24);
	const hz_linear_open_opts layer = {.format = HZ_LINEAR_E8_4_25,
					   .flags = HZ_LINEAR_ROTATE};
	size_t bytes;

	must(s, hz_linear_open(s->ctx, &s->layer, &weights, &layer), "linear_open");
	must(s, hz_linear_save_bytes(s->ctx, s->layer, &s->layer_bytes), "linear_save_bytes");
	must(s, hz_alloc(s->ctx, &s->layer_data, s->layer_bytes, HZ_CPU), "linear_save");
	must(s, hz_linear_save(s->ctx, s->layer, s->layer_data, s->layer_bytes), "linear_save");
	s->packed_data = device_memory(s, PACK_BYTES);
	s->quat_packed_data = device_memory(s, PACK_BYTES);
	must(s, hz_qgemm_pack(s->ctx, &b, s->packed_data, PACK_BYTES, &s->packed), "qgemm_pack");
	s->group_data = device_memory(s, PACK_BYTES);
	must(s, hz_qlinear_group_pack(s->ctx, &nibbles, &scales, NULL, s->group_data, PACK_BYTES,
				      &s->group_packed), "qlinear_group_pack");
	must(s, hz_quat_gemm_pack(s->ctx, &a, s->quat_packed_data, PACK_BYTES, &s->quat_packed,
				  NULL), "quat_gemm_pack");
	must(s, hz_vlut_pack_bytes(s->ctx, s->vlut, &w, &bytes), "vlut_pack_bytes");
	if (bytes > PACK_BYTES)
		bail("packed codes of %zu bytes", bytes);
	s->codes_data = device_memory(s, bytes);
	must(s, hz_vlut_pack(s->ctx, s->vlut, &w, s->codes_data, bytes, &s->codes_packed),
	     "vlut_pack");
	must(s, hz_vlut_pack_bytes(s->ctx, s->vlut_shaped, &empty, &bytes), "vlut_pack_bytes");
	s->appended_data = device_memory(s, bytes);
	must(s, hz_vlut_pack(s->ctx, s->vlut_shaped, &empty, s->appended_data, bytes, &s->appended),
	     "vlut_pack");
}

const struct fakecuda *scene_driver(const char *file)
{
	const struct fakecuda *driver = fakecuda_load_from(file);

#if HZ_HAVE_CUDA
	if (!driver)
		bail("t/core/%s is needed", file);
#endif
	return driver;
}

void scene_open_sized(struct scene *s, const hz_options *options, size_t arena_bytes)
{
	const hz_lattice_opts d4 = {.kind = HZ_LATTICE_D, .q = 4, .levels = 2, .beta = 1,
				    .policy = HZ_LATTICE_T};
	const hz_lattice_opts e8 = {.preset = HZ_LATTICE_PRESET_E8_4_25};
	hz_tensor zeros, there;

	memset(s, 0, sizeof(*s));
	s->arena_bytes = arena_bytes;
	must(s, hz_open(&s->ctx, options), "hz_open");
	s->device = hz_device(s->ctx);
	must(s, hz_lattice_open(s->ctx, &s->lattice, &d4), "lattice_open");
	must(s, hz_lattice_open(s->ctx, &s->shaped, &e8), "lattice_open");
	must(s, hz_vlut_open(s->ctx, &s->vlut, s->lattice, NULL, NULL), "vlut_open");
	must(s, hz_vlut_open(s->ctx, &s->vlut2, s->lattice, s->lattice, NULL), "vlut_open");
	must(s, hz_vlut_open(s->ctx, &s->vlut_shaped, s->shaped, NULL, NULL), "vlut_open");
	s->arena = device_memory(s, arena_bytes);
	s->host = calloc(1, arena_bytes);
	if (!s->host)
		bail("no memory");
	zeros = hz_tensor_1d(s->host, HZ_U8, HZ_CPU, (int64_t)arena_bytes);
	there = hz_tensor_1d(s->arena, HZ_U8, s->device, (int64_t)arena_bytes);
	must(s, hz_copy(s->ctx, &zeros, &there), "copy");
	pack(s);
	must(s, hz_sync(s->ctx), "sync");
	if (s->device != HZ_CPU)
		must(s, hz_reserve(s->ctx, WORKSPACE_BYTES), "reserve");
	memset(s->host, 0x3f, arena_bytes);	/* normal numbers, if read as f32 */
}

void scene_open(struct scene *s, const hz_options *options)
{
	scene_open_sized(s, options, ARENA_BYTES);
}

void scene_close(struct scene *s)
{
	hz_linear_close(s->layer);
	hz_free(s->ctx, s->layer_data, HZ_CPU);
	hz_vlut_close(s->vlut);
	hz_vlut_close(s->vlut2);
	hz_vlut_close(s->vlut_shaped);
	hz_lattice_close(s->lattice);
	hz_lattice_close(s->shaped);
	hz_free(s->ctx, s->packed_data, s->device);
	hz_free(s->ctx, s->quat_packed_data, s->device);
	hz_free(s->ctx, s->codes_data, s->device);
	hz_free(s->ctx, s->appended_data, s->device);
	hz_free(s->ctx, s->group_data, s->device);
	hz_free(s->ctx, s->arena, s->device);
	hz_close(s->ctx);
	free(s->host);
}

/* The sizes of an operand */
static void shape_of(const struct scene *s, const struct call *c, const struct operand *o,
		     int64_t *shape)
{
	memcpy(shape, o->shape, sizeof(o->shape));
	if (s->times > 0 && o->ndim > 0 && !(o->flags & (OBJECT | RAW)) &&
	    shape[0] == call_rows(c))
		shape[0] *= s->times;
}

/* Bytes of an operand's slot; *middle: where the operand begins in it */
static size_t slot_bytes(const struct scene *s, const struct call *c, const struct operand *o,
			 size_t *middle)
{
	int64_t shape[HZ_MAXDIM];
	size_t count = 1;

	shape_of(s, c, o, shape);
	for (int d = 0; d < o->ndim; d++)
		count *= (size_t)shape[d];
	if (o->flags & RAW)
		*middle = 64;
	else
		*middle = (16 * count + 127) / 64 * 64;
	return o->flags & RAW ? count + 128 : 2 * *middle + 16 * count;
}

size_t scene_bytes(const struct scene *s, const struct call *c)
{
	size_t bytes = SCENE_GUARD, middle;

	for (int i = 0; i < CALL_OPERANDS && c->operand[i].name; i++)
		bytes += (slot_bytes(s, c, &c->operand[i], &middle) + 63) / 64 * 64 + SCENE_GUARD;
	return bytes;
}

int scene_views(const struct scene *s, const struct call *c, hz_tensor *t, size_t *used)
{
	size_t at = SCENE_GUARD, middle;
	int n = 0;

	for (; n < CALL_OPERANDS && c->operand[n].name; n++) {
		const struct operand *const o = &c->operand[n];
		unsigned char *const base = o->flags & HOST ? s->host : s->arena;
		const size_t bytes = (slot_bytes(s, c, o, &middle) + 63) / 64 * 64;
		int64_t shape[HZ_MAXDIM];

		shape_of(s, c, o, shape);
		t[n] = hz_tensor_nd(base + at + middle, o->dtype, s->device, o->ndim, shape);
		if (o->flags & HOST)
			t[n].device = HZ_CPU;
		at += bytes + SCENE_GUARD;
	}
	*used = at;
	if (at > s->arena_bytes)
		bail("the operands of %s need %zu bytes", c->name, at);
	return n;
}

int scene_run(struct scene *s, const struct call *c, views t)
{
	int status, end;

	if (!s->record)
		return c->run(s, t);
	status = hz_record_begin(s->ctx);
	if (status != HZ_OK)
		return status;
	status = c->run(s, t);
	end = status == HZ_OK ? hz_record_end(s->ctx, &s->bytes) : hz_record_end(s->ctx, &(size_t){0});
	return status == HZ_OK ? end : status;
}

int scene_call(struct scene *s, const struct call *c)
{
	hz_tensor *operand[CALL_OPERANDS] = {NULL};
	hz_tensor t[CALL_OPERANDS];
	size_t used;
	const int n = scene_views(s, c, t, &used);

	for (int i = 0; i < n; i++)
		operand[i] = &t[i];
	return scene_run(s, c, operand);
}

void scene_image(const struct scene *s, const struct call *c, uint64_t seed, unsigned char *image)
{
	hz_tensor t[CALL_OPERANDS];
	size_t used;
	const int n = scene_views(s, c, t, &used);

	memset(image, 0xa5, used);
	for (int i = 0; i < n; i++) {
		const struct operand *const o = &c->operand[i];
		unsigned char *at = (unsigned char *)t[i].data;
		size_t middle, bytes = slot_bytes(s, c, o, &middle);
		const int64_t count = (int64_t)(bytes / (o->dtype ? hz_dtype_size(o->dtype) : 1));

		if (o->flags & (OBJECT | RAW | HOST))
			continue;
		at = image + (at - s->arena) - middle;
		memset(at, 0, bytes);
		for (int64_t j = 0; j < count; j++) {
			if (o->dtype == HZ_F32 || o->dtype == HZ_F16 || o->dtype == HZ_BF16)
				ref_put(o->dtype, at, j, rnd_uniform(&seed));
			else if (hz_dtype_size(o->dtype) == 1)
				at[j] = (unsigned char)rnd_below(&seed, 16);
			else	/* a small integer: valid as an index, a shift or a number of
				 * blocks */
				at[(size_t)j * hz_dtype_size(o->dtype)] =
					(unsigned char)rnd_below(&seed, 16);
		}
	}
}

static void transfer(const struct scene *s, unsigned char *image, size_t used, bool read)
{
	hz_tensor host = hz_tensor_1d(image, HZ_U8, HZ_CPU, (int64_t)used);
	hz_tensor there = hz_tensor_1d(s->arena, HZ_U8, s->device, (int64_t)used);

	must(s, hz_copy(s->ctx, read ? &there : &host, read ? &host : &there), "copy");
	must(s, hz_sync(s->ctx), "sync");
}

void scene_write(const struct scene *s, const unsigned char *image, size_t used)
{
	transfer(s, (unsigned char *)(uintptr_t)image, used, false);
}

size_t scene_fill(struct scene *s, const struct call *c, unsigned char *image)
{
	hz_tensor t[CALL_OPERANDS];
	size_t used;

	scene_views(s, c, t, &used);
	scene_image(s, c, tap_seed(), image);
	scene_write(s, image, used);
	return used;
}

void scene_read(const struct scene *s, unsigned char *image, size_t used)
{
	transfer(s, image, used, true);
}
