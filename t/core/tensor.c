/*
 * tensor.c - tests of views: constructors, counts, contiguity, overlap, and the checks of operands
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#include <config.h>

#include "lib/core/internal.h"
#include "t/core/tap.h"

static float memory[4096];

static void test_dtypes(void)
{
	static const struct {
		int dtype;
		const char *name;
		size_t bytes;
	} all[] = {
		{ HZ_F32, "f32", 4 }, { HZ_F16, "f16", 2 }, { HZ_BF16, "bf16", 2 },
		{ HZ_F64, "f64", 8 }, { HZ_S8, "s8", 1 }, { HZ_U8, "u8", 1 },
		{ HZ_S16, "s16", 2 }, { HZ_U16, "u16", 2 }, { HZ_S32, "s32", 4 },
		{ HZ_U32, "u32", 4 }, { HZ_S64, "s64", 8 }, { HZ_U64, "u64", 8 },
		{ HZ_S4X2, "s4x2", 1 }, { HZ_E4M3, "e4m3", 1 }, { HZ_E5M2, "e5m2", 1 },
		{ HZ_E8M0, "e8m0", 1 }, { HZ_E2M1X2, "e2m1x2", 1 }, { HZ_U4X2, "u4x2", 1 },
		{ HZ_S2X4, "s2x4", 1 }, { HZ_U2X4, "u2x4", 1 }, { 0, "?", 0 }, { -1, "?", 0 },
		{ HZ_U2X4 + 1, "?", 0 }, { 1 << 20, "?", 0 },
	};
	int i, good = 1;

	for (i = 0; i < (int)(sizeof(all) / sizeof(*all)); i++)
		good &= hz_dtype_size(all[i].dtype) == all[i].bytes &&
			strcmp(hz_dtype_name(all[i].dtype), all[i].name) == 0;
	ok(good, "names and sizes of dtypes");
}

static int is_view(const hz_tensor *t, int ndim, const int64_t *shape, const int64_t *stride)
{
	int i, good = t->data == memory && t->dtype == HZ_F16 && t->device == HZ_CUDA + 3 &&
		      t->ndim == ndim;

	for (i = 0; i < HZ_MAXDIM; i++)
		good &= t->shape[i] == (i < ndim ? shape[i] : 0) &&
			t->stride[i] == (i < ndim ? stride[i] : 0);
	return good;
}

#define LIST(...) (const int64_t[]){ __VA_ARGS__ }

static void test_constructors(void)
{
	hz_tensor t;

	t = hz_tensor_1d(memory, HZ_F16, HZ_CUDA + 3, 7);
	ok(is_view(&t, 1, LIST(7), LIST(1)), "1d");
	t = hz_tensor_2d(memory, HZ_F16, HZ_CUDA + 3, 2, 7);
	ok(is_view(&t, 2, LIST(2, 7), LIST(7, 1)), "2d");
	t = hz_tensor_3d(memory, HZ_F16, HZ_CUDA + 3, 5, 2, 7);
	ok(is_view(&t, 3, LIST(5, 2, 7), LIST(14, 7, 1)), "3d");
	t = hz_tensor_4d(memory, HZ_F16, HZ_CUDA + 3, 3, 5, 2, 7);
	ok(is_view(&t, 4, LIST(3, 5, 2, 7), LIST(70, 14, 7, 1)), "4d");
	t = hz_tensor_nd(memory, HZ_F16, HZ_CUDA + 3, 6, LIST(2, 2, 3, 5, 2, 7));
	ok(is_view(&t, 6, LIST(2, 2, 3, 5, 2, 7), LIST(420, 210, 70, 14, 7, 1)), "6d");
	t = hz_tensor_nd(memory, HZ_F16, HZ_CUDA + 3, 0, NULL);
	ok(is_view(&t, 0, LIST(0), LIST(0)), "0d");
	is_int(hz_tensor_count(&t), 1, "which is one element");
	is_int(hz_tensor_bytes(&t), 2, "of two bytes");
	t = hz_tensor_nd(memory, HZ_F16, HZ_CUDA + 3, 9, LIST(2, 2, 3, 5, 2, 7, 9, 9, 9));
	is_int(t.ndim, 6, "ndim is clipped to 6");
	t = hz_tensor_nd(memory, HZ_F16, HZ_CUDA + 3, -4, NULL);
	is_int(t.ndim, 0, "and to 0");
	t = hz_tensor_3d(memory, HZ_F16, HZ_CUDA + 3, INT64_MAX, INT64_MAX, INT64_MAX);
	is_int(hz_tensor_count(&t), -1, "a product that overflows is seen by the count");
	t = hz_tensor_2d(memory, HZ_F16, HZ_CUDA + 3, -1, 4);
	is_int(hz_tensor_count(&t), -1, "so is a negative size");
}

static int same_views(const hz_tensor *a, const hz_tensor *b)
{
	return a->data == b->data && a->dtype == b->dtype && a->device == b->device &&
	       a->ndim == b->ndim &&
	       memcmp(a->shape, b->shape, (size_t)a->ndim * sizeof(*a->shape)) == 0 &&
	       memcmp(a->stride, b->stride, (size_t)a->ndim * sizeof(*a->stride)) == 0;
}

/* Views of views: against strides and addresses by hand */
static void test_views_of_views(void)
{
	const hz_tensor t = hz_tensor_3d(memory, HZ_F32, HZ_CPU, 4, 5, 6);
	hz_tensor want = t, got;

	want.shape[0] = 6, want.stride[0] = 1, want.shape[2] = 4, want.stride[2] = 30;
	got = hz_view_transpose(&t, 0, -1);
	ok(same_views(&got, &want), "transpose");
	got = hz_view_transpose(&got, -1, 0);
	ok(same_views(&got, &t), "and back");
	got = hz_view_transpose(&t, 1, 1);
	ok(same_views(&got, &t), "of one dimension");
	want = t;
	want.shape[1] = 2, want.data = memory + 3 * 6;
	got = hz_view_slice(&t, 1, 3, 5);
	ok(same_views(&got, &want), "slice");
	got = hz_view_slice(&t, -2, -2, INT64_MAX);
	ok(same_views(&got, &want), "counted from the end, and clipped");
	got = hz_view_slice(&t, 0, 3, 1);
	is_int(hz_tensor_count(&got), 0, "a slice of nothing");
	got = hz_view_slice(&t, 2, INT64_MIN, INT64_MIN);
	is_int(hz_tensor_count(&got), 0, "and one before the beginning");
	want = t;
	want.shape[0] = 2, want.data = memory + 29, want.stride[0] = -30;
	got = t;
	got.data = memory + 89, got.stride[0] = -30;
	got = hz_view_slice(&got, 0, 2, 4);
	ok(same_views(&got, &want), "slice along a negative stride");
	want = hz_tensor_2d(memory, HZ_F32, HZ_CPU, 8, 15);
	got = hz_view_reshape(&t, 2, LIST(8, 15));
	ok(same_views(&got, &want), "reshape");
	got = hz_view_reshape(&t, 2, LIST(-1, 15));
	ok(same_views(&got, &want), "with a size that is left");
	want = hz_tensor_1d(memory, HZ_F32, HZ_CPU, 120);
	got = hz_view_reshape(&t, 1, LIST(-1));
	ok(same_views(&got, &want), "to one dimension");
	got = *HZ_VIEW(memory, HZ_F32, HZ_CPU, 4, 5, 6);
	ok(same_views(&got, &t), "HZ_VIEW");
	got = hz_view_transpose(&t, 0, 1);
	got = hz_view_reshape(&got, 1, LIST(120));
	is_int(got.dtype, 0, "what is not contiguous has no other shape");
	is_int(hz_view_reshape(&t, 2, LIST(8, 14)).dtype, 0, "nor another number of elements");
	is_int(hz_view_reshape(&t, 2, LIST(-1, -1)).dtype, 0, "two sizes left");
	is_int(hz_view_reshape(&t, 2, LIST(-1, 0)).dtype, 0, "a size left beside 0");
	is_int(hz_view_reshape(&t, 2, LIST(-2, -60)).dtype, 0, "negative sizes");
	is_int(hz_view_reshape(&t, 7, LIST(1, 1, 1, 1, 1, 1, 120)).dtype, 0, "7 dimensions");
	is_int(hz_view_transpose(&t, 0, 3).dtype, 0, "no such dimension");
	is_int(hz_view_transpose(&t, -4, 0).dtype, 0, "nor before the first");
	is_int(hz_view_slice(&t, 3, 0, 1).dtype, 0, "nor for a slice");
	is_int(hz_view_slice(NULL, 0, 0, 1).dtype, 0, "no view");
}

static hz_tensor view(int dtype, int64_t offset, int ndim, const int64_t *shape,
		      const int64_t *stride)
{
	hz_tensor t = { .data = (char *)memory + offset * (int64_t)hz_dtype_size(dtype),
			.dtype = (int16_t)dtype, .ndim = (int16_t)ndim, .device = HZ_CPU };
	int i;

	for (i = 0; i < ndim && i < HZ_MAXDIM; i++) {
		t.shape[i] = shape[i];
		t.stride[i] = stride[i];
	}
	return t;
}

#define F32(offset, ndim, shape, stride) view(HZ_F32, offset, ndim, shape, stride)

static void test_queries(void)
{
	const int64_t big = INT64_C(1) << 32;
	static const struct {
		const char *what;
		int ndim;
		int64_t shape[3], stride[3], count, bytes;
		int contiguous;
	} all[] = {
		{ "3 x 5", 2, { 3, 5 }, { 5, 1 }, 15, 60, 1 },
		{ "rows with gaps", 2, { 3, 5 }, { 8, 1 }, 15, 84, 0 },
		{ "transposed", 2, { 3, 5 }, { 1, 3 }, 15, 60, 0 },
		{ "every other", 1, { 5 }, { 2 }, 5, 36, 0 },
		{ "reversed", 1, { 5 }, { -1 }, 5, 20, 0 },
		{ "rows reversed", 2, { 3, 5 }, { -5, 1 }, 15, 60, 0 },
		{ "one row repeated", 2, { 3, 5 }, { 0, 1 }, 15, 20, 0 },
		{ "a size of 1 may have any stride", 2, { 1, 5 }, { 77, 1 }, 5, 20, 1 },
		{ "even the last", 2, { 5, 1 }, { 1, -9 }, 5, 20, 1 },
		{ "empty", 2, { 3, 0 }, { 5, 1 }, 0, 0, 1 },
		{ "empty with strides of any kind", 2, { 0, 5 }, { 7, 9 }, 0, 0, 1 },
		{ "a 0 does not excuse sizes that overflow", 3,
		  { INT64_MAX, INT64_MAX, 0 }, { 1, 1, 1 }, -1, -1, 0 },
		{ "two strides of either sign", 2, { 3, 5 }, { -100, 10 }, 15, 964, 0 },
		{ "the stride overflows", 2, { 3, 5 }, { INT64_MAX, 1 }, 15, -1, 0 },
		{ "half of the address space", 1, { 2 }, { INT64_C(1) << 60 }, 2, -1, 0 },
		{ "and downwards", 1, { 2 }, { -(INT64_C(1) << 60) }, 2, -1, 0 },
		{ "bytes overflow", 1, { INT64_C(1) << 61 }, { 1 }, INT64_C(1) << 61, -1, 1 },
		{ "negative size", 2, { 3, -5 }, { 5, 1 }, -1, -1, 0 },
		{ "negative size beside 0", 2, { 0, -5 }, { 5, 1 }, -1, -1, 0 },
	};
	hz_tensor t;
	int i;

	for (i = 0; i < (int)(sizeof(all) / sizeof(*all)); i++) {
		t = F32(0, all[i].ndim, all[i].shape, all[i].stride);
		ok(hz_tensor_count(&t) == all[i].count && hz_tensor_bytes(&t) == all[i].bytes &&
		   hz_tensor_contiguous(&t) == all[i].contiguous, "count, bytes, contiguous: %s",
		   all[i].what);
	}
	t = F32(0, 2, LIST(big, big), LIST(big, 1));
	is_int(hz_tensor_count(&t), -1, "2^32 x 2^32 overflows");
	t = F32(0, 2, LIST(1, 1), LIST(1, 1));
	t.ndim = 7;
	ok(hz_tensor_count(&t) == -1 && hz_tensor_bytes(&t) == -1 && !hz_tensor_contiguous(&t),
	   "ndim 7 is malformed");
	t.ndim = -1;
	ok(hz_tensor_count(&t) == -1 && hz_tensor_bytes(&t) == -1 && !hz_tensor_contiguous(&t),
	   "ndim -1 is malformed");
	t.ndim = 2;
	t.dtype = 99;
	is_int(hz_tensor_bytes(&t), -1, "a dtype that is none has no bytes");
	ok(hz_tensor_count(NULL) == -1 && hz_tensor_bytes(NULL) == -1 &&
	   !hz_tensor_contiguous(NULL),
	   "NULL is malformed");
}

static void test_overlap(void)
{
	static const struct {
		const char *what;
		int64_t a_offset, a_shape[2], a_stride[2], b_offset, b_shape[2], b_stride[2];
		int want;
	} all[] = {
		{ "the same", 0, { 4, 4 }, { 4, 1 }, 0, { 4, 4 }, { 4, 1 }, 1 },
		{ "contiguous", 0, { 4, 4 }, { 4, 1 }, 16, { 4, 4 }, { 4, 1 }, 0 },
		{ "by one", 0, { 4, 4 }, { 4, 1 }, 15, { 4, 4 }, { 4, 1 }, 1 },
		{ "interleaved: the ranges meet", 0, { 4, 4 }, { 8, 1 }, 4, { 4, 4 }, { 8, 1 }, 1 },
		{ "a reversed view reaches down", 100, { 1, 10 }, { 1, -1 }, 91, { 1, 1 }, { 1, 1 },
		  1 },
		{ "and not below", 100, { 1, 10 }, { 1, -1 }, 90, { 1, 1 }, { 1, 1 }, 0 },
		{ "nor above", 100, { 1, 10 }, { 1, -1 }, 101, { 1, 1 }, { 1, 1 }, 0 },
		{ "empty", 0, { 4, 4 }, { 4, 1 }, 0, { 0, 4 }, { 4, 1 }, 0 },
	};
	hz_tensor a, b;
	int i;

	for (i = 0; i < (int)(sizeof(all) / sizeof(*all)); i++) {
		a = F32(all[i].a_offset, 2, all[i].a_shape, all[i].a_stride);
		b = F32(all[i].b_offset, 2, all[i].b_shape, all[i].b_stride);
		ok(hz_tensor_overlap(&a, &b) == all[i].want &&
		   hz_tensor_overlap(&b, &a) == all[i].want, "overlap: %s", all[i].what);
	}
	b = a = F32(0, 2, LIST(4, 4), LIST(4, 1));
	b.device = HZ_CUDA;
	is_int(hz_tensor_overlap(&a, &b), 0, "other devices have other memory");
	b = view(HZ_U8, 63, 1, LIST(1), LIST(1));
	is_int(hz_tensor_overlap(&a, &b), 1, "the last byte counts");
	b = view(HZ_U8, 64, 1, LIST(1), LIST(1));
	is_int(hz_tensor_overlap(&a, &b), 0, "the next does not");
	is_int(hz_tensor_overlap(&a, NULL), 0, "NULL overlaps nothing");
}

static const int f32_u8[] = { HZ_F32, HZ_U8, 0 };

static void refused(hz_context *ctx, const hz_tensor *t, bool output, int status,
		    const char *message)
{
	is_int(hzi_check(ctx, "op", "x", t, f32_u8, output), status, "refused: %s", message);
	is_str(hz_errmsg(ctx), message, "its message");
}

static void test_checks(void)
{
	hz_options options = { .device = HZ_CPU, .threads = 1 };
	hz_tensor t, u;
	hz_context *ctx;
	char message[160];

	if (hz_open(&ctx, &options) != HZ_OK)
		bail("hz_open: %s", hz_open_errmsg());
	t = F32(0, 2, LIST(3, 5), LIST(5, 1));
	is_int(hzi_check(ctx, "op", "x", &t, f32_u8, true), HZ_OK, "a good view");
	refused(ctx, NULL, false, HZ_EINVAL, "op: x is NULL, must be a view");
	u = t;
	u.dtype = HZ_F64;
	refused(ctx, &u, false, HZ_EDTYPE, "op: x.dtype is f64, must be f32 or u8");
	u.dtype = 0;
	refused(ctx, &u, false, HZ_EDTYPE, "op: x.dtype is 0, must be f32 or u8");
	u = t;
	u.ndim = 7;
	refused(ctx, &u, false, HZ_ESHAPE, "op: x.ndim is 7, must be 0 to 6");
	u.ndim = -1;
	refused(ctx, &u, false, HZ_ESHAPE, "op: x.ndim is -1, must be 0 to 6");
	u = t;
	u.shape[1] = -5;
	refused(ctx, &u, false, HZ_ESHAPE, "op: x.shape[1] is -5, must not be negative");
	u = t;
	u.shape[0] = u.shape[1] = INT64_C(1) << 32;
	refused(ctx, &u, false, HZ_ESHAPE, "op: x is too large: its size or strides overflow");
	u = t;
	u.stride[0] = INT64_MIN;
	refused(ctx, &u, false, HZ_ESHAPE, "op: x is too large: its size or strides overflow");
	u = t;
	u.device = HZ_CUDA + 1;
	refused(ctx, &u, false, HZ_EDEVICE, "op: x is on CUDA device 1, the context is on the CPU");
	u.device = 0;
	refused(ctx, &u, false, HZ_EDEVICE, "op: x is on no device (0), the context is on the CPU");
	u = t;
	u.data = NULL;
	refused(ctx, &u, false, HZ_EINVAL, "op: x.data is NULL, must hold 15 elements");
	u.shape[0] = 0;
	is_int(hzi_check(ctx, "op", "x", &u, f32_u8, true), HZ_OK, "NULL is good if it is empty");
	u = t;
	u.data = (char *)memory + 2;
	snprintf(message, sizeof(message), "op: x.data is %p, must be a multiple of 4 bytes",
		 u.data);
	refused(ctx, &u, false, HZ_ESTRIDE, message);
	u = view(HZ_U8, 3, 1, LIST(5), LIST(1));
	is_int(hzi_check(ctx, "op", "x", &u, f32_u8, true), HZ_OK, "bytes need no alignment");

	u = t;
	u.stride[0] = 0;
	is_int(hzi_check(ctx, "op", "x", &u, f32_u8, false), HZ_OK, "a repeated row as an input");
	refused(ctx, &u, true, HZ_ESTRIDE,
		"op: x has strides that put two elements at one address");
	u.stride[0] = 4;
	refused(ctx, &u, true, HZ_ESTRIDE,
		"op: x has strides that put two elements at one address");
	u.stride[0] = -5;
	is_int(hzi_check(ctx, "op", "x", &u, f32_u8, true), HZ_OK, "a reversed output");
	u = F32(0, 2, LIST(3, 5), LIST(1, 3));
	is_int(hzi_check(ctx, "op", "x", &u, f32_u8, true), HZ_OK, "a transposed output");
	u = F32(0, 3, LIST(2, 1, 3), LIST(3, 0, 1));
	is_int(hzi_check(ctx, "op", "x", &u, f32_u8, true), HZ_OK, "a size of 1 with stride 0");

	u = F32(10, 2, LIST(3, 5), LIST(5, 1));
	is_int(hzi_check_apart(ctx, "op", "x", &t, "y", &u), HZ_EALIAS, "overlapping operands");
	is_str(hz_errmsg(ctx), "op: y overlaps x, must be apart from it", "its message");
	is_int(hzi_check_apart_or_same(ctx, "op", "x", &t, "y", &t), HZ_OK, "the same view");
	is_int(hzi_check_apart_or_same(ctx, "op", "x", &t, "y", &u), HZ_EALIAS,
	       "not quite the same");
	is_str(hz_errmsg(ctx), "op: y overlaps x, must be apart from it or the same view",
	       "its message");
	u = t;
	u.stride[1] = 2;
	is_int(hzi_check_apart_or_same(ctx, "op", "x", &t, "y", &u), HZ_EALIAS, "other strides");
	u = F32(0, 3, LIST(3, 5, 1), LIST(5, 1, 1));
	is_int(hzi_check_same_shape(ctx, "op", "x", &t, "y", &u), HZ_ESHAPE, "other ndim");
	is_str(hz_errmsg(ctx), "op: y.ndim is 3, must be 2, as x", "its message");
	u = F32(0, 2, LIST(3, 4), LIST(4, 1));
	is_int(hzi_check_same_shape(ctx, "op", "x", &t, "y", &u), HZ_ESHAPE, "other shape");
	is_str(hz_errmsg(ctx), "op: y.shape[1] is 4, must be 5, as x", "its message");
	is_int(hzi_check_same_shape(ctx, "op", "x", &t, "y", &t), HZ_OK, "the same shape");
	hz_close(ctx);
}

/* An output view that hzi_check() accepts has no two elements at one address. */
static void test_writes_twice(void)
{
	static const int f32_only[] = { HZ_F32, 0 };
	hz_options options = { .device = HZ_CPU, .threads = 1 };
	uint64_t rnd = tap_seed();
	static uint8_t hits[4096];
	hz_context *ctx;
	int i, d, good = 1, passed = 0;
	hz_tensor t;

	if (hz_open(&ctx, &options) != HZ_OK)
		bail("hz_open: %s", hz_open_errmsg());
	for (i = 0; i < 20000; i++) {
		int64_t at[3], twice = 0, where;

		t = F32(2048, 3, LIST(0, 0, 0), LIST(0, 0, 0));
		for (d = 0; d < 3; d++) {
			t.shape[d] = 1 + rnd_below(&rnd, 4);
			t.stride[d] = rnd_below(&rnd, 41) - 20;
		}
		memset(hits, 0, sizeof(hits));
		for (at[0] = 0; at[0] < t.shape[0]; at[0]++)
			for (at[1] = 0; at[1] < t.shape[1]; at[1]++)
				for (at[2] = 0; at[2] < t.shape[2]; at[2]++) {
					where = 2048;
					for (d = 0; d < 3; d++)
						where += at[d] * t.stride[d];
					twice |= hits[where]++;
				}
		if (hzi_check(ctx, "op", "x", &t, f32_only, true) == HZ_OK) {
			passed++;
			good &= !twice;
		}
	}
	ok(good && passed > 1000, "no output that is let through has two elements at one address");
	hz_close(ctx);
}

int main(void)
{
	test_dtypes();
	test_constructors();
	test_views_of_views();
	test_queries();
	test_overlap();
	test_checks();
	test_writes_twice();
	return done_testing();
}
