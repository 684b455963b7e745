/*
 * memory.c - host memory: allocation, copies between views, the workspace
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#include <config.h>

#include "lib/core/internal.h"
#include "t/core/tap.h"

static hz_context *open_cpu(void)
{
	const hz_options o = {.device = HZ_CPU, .threads = 1};
	hz_context *ctx;

	if (hz_open(&ctx, &o) != HZ_OK)
		bail("%s", hz_open_errmsg());
	return ctx;
}

static void memory(void)
{
	static const size_t sizes[] = {0, 1, 63, 64, 65, 4095, 1 << 20};
	hz_context *ctx = open_cpu();
	void *p[7], *kept = &kept;
	char text[100];

	for (int i = 0; i < 7; i++) {
		is_int(hz_alloc(ctx, &p[i], sizes[i], HZ_CPU), HZ_OK, "alloc of %zu bytes",
		       sizes[i]);
		ok(p[i] && (uintptr_t)p[i] % 64 == 0, "is aligned");
		memset(p[i], i, sizes[i]);
	}
	for (int i = 0; i < 7; i++)
		is_int(hz_free(ctx, p[i], HZ_CPU), HZ_OK, "free");
	is_int(hz_free(ctx, NULL, HZ_CPU), HZ_OK, "free of NULL");
	is_int(hz_alloc(ctx, &kept, SIZE_MAX, HZ_CPU), HZ_ENOMEM, "alloc of SIZE_MAX");
	snprintf(text, sizeof(text), "alloc: no memory for %zu bytes on the host", SIZE_MAX);
	is_str(hz_errmsg(ctx), text, "its message");
	is_int(hz_alloc(ctx, &kept, SIZE_MAX - 63, HZ_CPU), HZ_ENOMEM, "alloc of SIZE_MAX - 63");
	is_int(hz_alloc(ctx, &kept, PTRDIFF_MAX, HZ_CPU), HZ_ENOMEM, "alloc of PTRDIFF_MAX");
	is_int(hz_alloc(ctx, &kept, 1, HZ_AUTO), HZ_EDEVICE, "alloc on HZ_AUTO");
	is_int(hz_alloc(ctx, &kept, 1, HZ_CUDA), HZ_EDEVICE, "alloc on a GPU");
	has_str(hz_errmsg(ctx), "alloc: device is 2, must be HZ_CPU, as the context",
		"its message");
	is_int(hz_alloc(ctx, &kept, 1, -1), HZ_EDEVICE, "alloc on -1");
	ok(kept == &kept, "the pointer is as it was");
	is_int(hz_free(ctx, NULL, HZ_CUDA), HZ_EDEVICE, "free on a GPU");
	is_int(hz_free(ctx, (char *)&ctx + 1, HZ_CPU), HZ_EINVAL, "free of an odd pointer");
	has_str(hz_errmsg(ctx), "which is not from hz_alloc()", "its message");
	hz_close(ctx);
}

/* Copies element by element to the place of dst in another buffer: the definition. */
static void copy_slowly(const hz_tensor *src, const hz_tensor *dst, char *dst_data)
{
	const size_t size = hz_dtype_size(src->dtype);
	int64_t index[HZ_MAXDIM] = {0};

	for (;;) {
		int64_t s = 0, d = 0;
		int i;

		for (i = 0; i < src->ndim; i++) {
			s += index[i] * src->stride[i];
			d += index[i] * dst->stride[i];
		}
		memcpy(dst_data + d * (int64_t)size, (const char *)src->data + s * (int64_t)size,
		       size);
		for (i = src->ndim - 1; i >= 0 && ++index[i] == src->shape[i]; i--)
			index[i] = 0;
		if (i < 0)
			return;
	}
}

/* A view of the shape with random strides that fits into the buffer, or ndim -1 */
static hz_tensor random_view(uint64_t *rnd, char *buffer, int64_t elements, int dtype, int ndim,
			     const int64_t *shape, int input)
{
	hz_tensor t = hz_tensor_nd(buffer, dtype, HZ_CPU, ndim, shape);
	int order[HZ_MAXDIM];
	int64_t reach = 0, start = 0;

	for (int i = 0; i < ndim; i++) {
		const int j = (int)rnd_below(rnd, i + 1);

		order[i] = order[j];
		order[j] = i;
	}
	for (int i = 0; i < ndim; i++) {
		const int d = order[i];

		t.stride[d] = reach + 1 + rnd_below(rnd, 3) * (rnd_below(rnd, 3) == 0);
		reach += t.stride[d] * (shape[d] - 1);
		if (rnd_below(rnd, 3) == 0) {
			start += t.stride[d] * (shape[d] - 1);
			t.stride[d] = -t.stride[d];
		} else if (input && rnd_below(rnd, 6) == 0) {
			t.stride[d] = 0;
		}
	}
	if (reach + 1 > elements)
		t.ndim = -1;
	t.data = buffer + start * (int64_t)hz_dtype_size(dtype);
	return t;
}

static void copies(void)
{
	enum { BYTES = 1 << 16 };
	static const int dtypes[] = {HZ_U8, HZ_F16, HZ_F32, HZ_F64, HZ_S4X2, HZ_E8M0, HZ_S64};
	static char from[BYTES], to[BYTES], image[BYTES];
	hz_context *ctx = open_cpu();
	uint64_t rnd = tap_seed();
	const int rounds = tap_quick() ? 200 : 5000;
	int bad = 0, done = 0;
	hz_tensor a, b;

	for (int i = 0; i < BYTES; i++)
		from[i] = (char)rnd_u64(&rnd);
	for (int round = 0; round < rounds; round++) {
		const int dtype = dtypes[rnd_below(&rnd, 7)],
			  ndim = (int)rnd_below(&rnd, HZ_MAXDIM + 1);
		const int64_t elements = BYTES / (int64_t)hz_dtype_size(dtype);
		int64_t shape[HZ_MAXDIM];

		for (int i = 0; i < ndim; i++)
			shape[i] = 1 + rnd_below(&rnd, 5);
		a = random_view(&rnd, from, elements, dtype, ndim, shape, 1);
		b = random_view(&rnd, to, elements, dtype, ndim, shape, 0);
		if (a.ndim < 0 || b.ndim < 0)
			continue;
		for (int i = 0; i < BYTES; i++)
			image[i] = to[i] = (char)(i * 7);
		if (hz_copy(ctx, &a, &b) != HZ_OK) {
			diag("%s", hz_errmsg(ctx));
			bad++;
			continue;
		}
		copy_slowly(&a, &b, image + ((char *)b.data - to));
		bad += memcmp(to, image, BYTES) != 0;
		done++;
	}
	ok(done > rounds / 4, "%d views copied", done);
	is_int(bad, 0, "every element and nothing else");

	a = hz_tensor_1d(from, HZ_F32, HZ_CPU, 16);
	b = hz_tensor_1d(to, HZ_F32, HZ_CPU, 16);
	memset(to, 1, 64);
	b.dtype = HZ_S32;
	is_int(hz_copy(ctx, &a, &b), HZ_EDTYPE, "another dtype");
	is_str(hz_errmsg(ctx), "copy: dst.dtype is s32, must be f32, as src", "its message");
	b = hz_tensor_1d(to, HZ_F32, HZ_CPU, 15);
	is_int(hz_copy(ctx, &a, &b), HZ_ESHAPE, "another shape");
	b = hz_tensor_2d(to, HZ_F32, HZ_CPU, 4, 4);
	is_int(hz_copy(ctx, &a, &b), HZ_ESHAPE, "another ndim");
	b = hz_tensor_1d(to, HZ_F32, HZ_CUDA, 16);
	is_int(hz_copy(ctx, &a, &b), HZ_EDEVICE, "another device");
	b = hz_tensor_1d(to, HZ_F32, HZ_AUTO, 16);
	is_int(hz_copy(ctx, &a, &b), HZ_EDEVICE, "no device");
	b = hz_tensor_1d(from + 4, HZ_F32, HZ_CPU, 16);
	is_int(hz_copy(ctx, &a, &b), HZ_EALIAS, "an overlap");
	is_int(hz_copy(ctx, &a, &a), HZ_EALIAS, "the same view");
	b = hz_tensor_1d(to, HZ_F32, HZ_CPU, 16);
	b.stride[0] = 0;
	is_int(hz_copy(ctx, &a, &b), HZ_ESTRIDE, "all to one element");
	b = hz_tensor_1d(NULL, HZ_F32, HZ_CPU, 16);
	is_int(hz_copy(ctx, &a, &b), HZ_EINVAL, "to NULL");
	b = hz_tensor_1d(to + 2, HZ_F32, HZ_CPU, 16);
	is_int(hz_copy(ctx, &a, &b), HZ_ESTRIDE, "misaligned");
	b = hz_tensor_1d(to, 0, HZ_CPU, 16);
	is_int(hz_copy(ctx, &a, &b), HZ_EDTYPE, "no dtype");
	a.ndim = 7;
	b = hz_tensor_1d(to, HZ_F32, HZ_CPU, 16);
	is_int(hz_copy(ctx, &a, &b), HZ_ESHAPE, "7 dimensions");
	a = hz_tensor_2d(from, HZ_F32, HZ_CPU, INT64_MAX, 2);
	b = hz_tensor_2d(to, HZ_F32, HZ_CPU, INT64_MAX, 2);
	is_int(hz_copy(ctx, &a, &b), HZ_ESHAPE, "a size that overflows");
	a.stride[0] = a.stride[1] = 0;
	a.shape[0] = b.shape[0] = (int64_t)1 << 61;
	is_int(hz_copy(ctx, &a, &b), HZ_ESHAPE, "also if one side is a broadcast");
	ok(tap_load(to, 0, 4) == 0x01010101 && tap_load(to, 15, 4) == 0x01010101,
	   "a failed call changed nothing");
	a = hz_tensor_2d(NULL, HZ_F32, HZ_CPU, 0, 5);
	is_int(hz_copy(ctx, &a, &a), HZ_OK, "nothing to copy");
	hz_close(ctx);
}

/* What recording gives for calls made one by one, together and without data */
static void recording(void)
{
	static float x[4 * 4096], y[4 * 4096];
	const hz_options o = {.device = HZ_CPU, .threads = 2};
	hz_tensor t = hz_tensor_2d(x, HZ_F32, HZ_CPU, 4, 4096), out = t, none = t;
	hz_tensor wide = hz_tensor_2d(x, HZ_F32, HZ_CPU, 4096, 4);
	size_t bytes = 77, rows = 0, all = 0;
	hz_context *ctx;

	is_int(hz_open(&ctx, &o), HZ_OK, "open");
	out.data = y;
	none.data = NULL;
	is_int(hz_record_end(ctx, &bytes), HZ_EINVAL, "end without begin");
	has_str(hz_errmsg(ctx), "call hz_record_begin() first", "says what to do");
	is_int(hz_record_begin(ctx), HZ_OK, "begin");
	is_int(hz_record_begin(ctx), HZ_EINVAL, "begin twice");
	has_str(hz_errmsg(ctx), "call hz_record_end() first", "says what to do");
	is_int((long long)bytes, 77, "bytes are untouched so far");
	is_int(hz_record_end(ctx, NULL), HZ_EINVAL, "end without bytes");
	is_int(hz_record_end(ctx, &bytes), HZ_OK, "ends nothing; no call");
	is_int((long long)bytes, 0, "needs nothing");
	x[0] = 1, y[0] = 5;
	hz_record_begin(ctx);
	is_int(hz_hadamard(ctx, &t, &out, NULL), HZ_OK, "a call");
	is_int(hz_copy(ctx, &t, &out), HZ_OK, "and a copy");
	is_int(hz_hadamard(ctx, &t, &wide, NULL), HZ_ESHAPE, "a refused one");
	hz_record_end(ctx, &rows);
	ok(y[0] == 5 && x[0] == 1, "write nothing");
	hz_record_begin(ctx);
	is_int(hz_hadamard(ctx, &none, &out, NULL), HZ_OK, "an operand without data");
	is_int(hz_hadamard(ctx, &none, &none, NULL), HZ_OK, "and the call again");
	hz_record_end(ctx, &all);
	ok(all >= rows, "%zu bytes, %zu with data", all, rows);
	is_int(hz_hadamard(ctx, &none, &none, NULL), HZ_EINVAL, "afterwards data must be there");
	is_int(hz_hadamard(ctx, &t, &out, NULL), HZ_OK, "a real call");
	ok(y[0] != 5, "writes");
	hz_close(ctx);
	is_int(hz_record_begin(NULL), HZ_EINVAL, "begin without a context");
	is_int(hz_record_end(NULL, &bytes), HZ_EINVAL, "end without one");
	is_int(hz_version_number(), HZ_VERSION, "the number of the version");
}

/* A matrix whose pack call was recorded has no data: other calls than recorded ones refuse it. */
static void recorded_pack(void)
{
	static char data[1 << 16] __attribute__((aligned(64)));
	static int8_t a[2 * 32], b[32 * 16];
	static int32_t c[2 * 16];
	static float x[32 * 16 * 4], y[32 * 16];
	const hz_tensor A = hz_tensor_2d(a, HZ_S8, HZ_CPU, 2, 32);
	const hz_tensor B = hz_tensor_2d(b, HZ_S8, HZ_CPU, 32, 16);
	const hz_tensor X = hz_tensor_2d(x, HZ_F32, HZ_CPU, 2, 32);
	const hz_tensor scales = hz_tensor_2d(x, HZ_F32, HZ_CPU, 1, 16);
	const hz_tensor q = hz_tensor_3d(x, HZ_F32, HZ_CPU, 4, 4, 4);
	const hz_lattice_opts preset = {.preset = HZ_LATTICE_PRESET_E8_4_50_FAST};
	const hz_coded rows = {.rows = 2, .k = 32};
	hz_tensor C = hz_tensor_2d(c, HZ_S32, HZ_CPU, 2, 16);
	hz_tensor Y = hz_tensor_2d(y, HZ_F32, HZ_CPU, 2, 16);
	hz_tensor r = hz_tensor_3d(y, HZ_F32, HZ_CPU, 4, 4, 4);
	hz_packed packed, group, quat, vlut;
	const hz_qgemm_opts opts = {.packed = &packed};
	hz_context *ctx = open_cpu();
	hz_lattice *lattice;
	hz_vlut *v;
	size_t bytes;

	a[0] = b[0] = 3, c[0] = 7;
	memset(data, 0x55, sizeof(data));
	is_int(hz_lattice_open(ctx, &lattice, &preset), HZ_OK, "a lattice");
	is_int(hz_vlut_open(ctx, &v, lattice, NULL, NULL), HZ_OK, "its products");
	hz_record_begin(ctx);
	is_int(hz_qgemm_pack(ctx, &B, data, sizeof(data), &packed), HZ_OK, "pack, recorded");
	is_int(hz_qgemm(ctx, &A, NULL, &C, &opts), HZ_OK, "its use, recorded");
	is_int(hz_qlinear_group_pack(ctx, &B, &scales, &(hz_qlinear_group_opts){.group = 32}, data,
				     sizeof(data), &group), HZ_OK, "of groups");
	is_int(hz_quat_gemm_pack(ctx, &q, data, sizeof(data), &quat, NULL), HZ_OK,
	       "of quaternions");
	is_int(hz_vlut_pack(ctx, v, &rows, data, sizeof(data), &vlut), HZ_OK, "of codes");
	hz_record_end(ctx, &bytes);
	is_int(hz_qgemm(ctx, &A, NULL, &C, &opts), HZ_EINVAL, "its use");
	has_str(hz_errmsg(ctx),
		"qgemm: opts->packed has no data: hz_qgemm_pack() was only recorded",
		"its message");
	is_int(hz_qlinear_group(ctx, &X, NULL, NULL, &Y,
				&(hz_qlinear_group_opts){.packed = &group}),
	       HZ_EINVAL, "of groups");
	has_str(hz_errmsg(ctx), "hz_qlinear_group_pack() was only recorded", "its message");
	is_int(hz_quat_gemm(ctx, NULL, &q, &r, &(hz_quat_gemm_opts){.packed = &quat}), HZ_EINVAL,
	       "of quaternions");
	has_str(hz_errmsg(ctx), "hz_quat_gemm_pack() was only recorded", "its message");
	is_int(hz_vlut_append(ctx, v, &X, 0, &vlut, NULL), HZ_EINVAL, "of codes");
	has_str(hz_errmsg(ctx), "hz_vlut_pack() was only recorded", "its message");
	ok(c[0] == 7 && y[0] == 0 && data[0] == 0x55, "nothing is written");
	is_int(hz_qgemm_pack(ctx, &B, data, sizeof(data), &packed), HZ_OK, "pack");
	hz_record_begin(ctx);
	is_int(hz_qgemm(ctx, &A, NULL, &C, &opts), HZ_OK, "its use, recorded");
	hz_record_end(ctx, &bytes);
	is_int(hz_qgemm(ctx, &A, NULL, &C, &opts), HZ_OK, "its use");
	is_int(c[0], 9, "the product");
	hz_vlut_close(v);
	hz_lattice_close(lattice);
	hz_close(ctx);
}

static void workspace(void)
{
	static char lent[4096] __attribute__((aligned(64)));
	hz_context *ctx = open_cpu();
	char text[100];
	void *own;

	is_int(hzi_workspace(ctx, "op", 1000), HZ_OK, "the workspace grows by itself");
	ok(ctx->workspace && ctx->workspace_bytes >= 1000 && (uintptr_t)ctx->workspace % 64 == 0,
	   "%zu bytes", ctx->workspace_bytes);
	memset(ctx->workspace, 1, 1000);
	is_int(hz_reserve(ctx, 5000), HZ_OK, "reserve");
	ok(ctx->workspace_bytes >= 5000, "%zu bytes", ctx->workspace_bytes);
	own = ctx->workspace;
	is_int(hz_reserve(ctx, 10), HZ_OK, "reserve less");
	ok(ctx->workspace == own, "keeps it");
	is_int(hz_reserve(ctx, SIZE_MAX), HZ_ENOMEM, "reserve too much");
	snprintf(text, sizeof(text), "reserve: no memory for a workspace of %zu bytes", SIZE_MAX);
	is_str(hz_errmsg(ctx), text, "its message");
	ok(ctx->workspace == own, "leaves it");
	is_int(hz_set_workspace(ctx, lent, sizeof(lent)), HZ_OK, "lend");
	ok(ctx->workspace == lent, "is used");
	is_int(hzi_workspace(ctx, "op", sizeof(lent)), HZ_OK, "up to its size");
	is_int(hzi_workspace(ctx, "op", sizeof(lent) + 1), HZ_EWORKSPACE, "and no further");
	is_str(hz_errmsg(ctx),
	       "op: the workspace lent by hz_set_workspace() has 4096 bytes, must have 4097",
	       "its message");
	is_int(hz_reserve(ctx, 9000), HZ_OK, "the own one can grow meanwhile");
	ok(ctx->workspace == lent && ctx->workspace_bytes == sizeof(lent), "and is not used");
	is_int(hz_set_workspace(ctx, lent + 1, 64), HZ_EINVAL, "an odd pointer");
	is_int(hz_set_workspace(ctx, lent, 0), HZ_EINVAL, "no bytes");
	is_int(hz_set_workspace(ctx, NULL, 64), HZ_EINVAL, "no pointer");
	ok(ctx->workspace == lent, "change nothing");
	is_int(hz_set_workspace(ctx, NULL, 0), HZ_OK, "give back");
	ok(ctx->workspace != lent && ctx->workspace_bytes >= 9000, "the own one again");
	is_int(hz_set_workspace(ctx, lent, sizeof(lent)), HZ_OK, "lend and close");
	hz_close(ctx);
}

int main(void)
{
	memory();
	copies();
	workspace();
	recording();
	recorded_pack();
	return done_testing();
}
