/*
 * tensor.c - views of memory: constructors, queries and the checks that every call makes
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#include <config.h>

#include <inttypes.h>
#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lib/core/internal.h"

/* ---- Dtypes ---------------------------------------------------------------------------------- */

static const struct {
	const char *name;
	size_t bytes;
} dtype_table[] = {
#define HZ_DTYPE(constant, name, bytes) [constant] = {name, bytes},
#include "lib/core/dtype.def"
#undef HZ_DTYPE
};

static bool is_dtype(int dtype)
{
	return dtype > 0 && dtype < (int)(sizeof(dtype_table) / sizeof(*dtype_table));
}

size_t hz_dtype_size(int dtype)
{
	return is_dtype(dtype) ? dtype_table[dtype].bytes : 0;
}

const char *hz_dtype_name(int dtype)
{
	return is_dtype(dtype) ? dtype_table[dtype].name : "?";
}

/* ---- Constructors ---------------------------------------------------------------------------- */

hz_tensor hz_tensor_nd(void *data, int dtype, int device, int ndim, const int64_t *shape)
{
	hz_tensor t = {.data = data, .dtype = (int16_t)dtype, .device = device};
	int64_t stride = 1;

	if (ndim < 0)
		ndim = 0;
	if (ndim > HZ_MAXDIM)
		ndim = HZ_MAXDIM;
	t.ndim = (int16_t)ndim;
	for (int i = ndim - 1; i >= 0; i--) {
		t.shape[i] = shape[i];
		t.stride[i] = stride;
		/* Sizes that overflow fail by their shape; the strides then do not matter. */
		if (shape[i] > 1 && __builtin_mul_overflow(stride, shape[i], &stride))
			stride = 0;
	}
	return t;
}

hz_tensor hz_tensor_1d(void *data, int dtype, int device, int64_t n0)
{
	return hz_tensor_nd(data, dtype, device, 1, (int64_t[]){n0});
}

hz_tensor hz_tensor_2d(void *data, int dtype, int device, int64_t n0, int64_t n1)
{
	return hz_tensor_nd(data, dtype, device, 2, (int64_t[]){n0, n1});
}

hz_tensor hz_tensor_3d(void *data, int dtype, int device, int64_t n0, int64_t n1, int64_t n2)
{
	return hz_tensor_nd(data, dtype, device, 3, (int64_t[]){n0, n1, n2});
}

hz_tensor hz_tensor_4d(void *data, int dtype, int device, int64_t n0, int64_t n1, int64_t n2,
		       int64_t n3)
{
	return hz_tensor_nd(data, dtype, device, 4, (int64_t[]){n0, n1, n2, n3});
}

/* ---- Queries --------------------------------------------------------------------------------- */

int64_t hz_tensor_count(const hz_tensor *t)
{
	int64_t count = 1;
	bool empty = false;

	if (!t || t->ndim < 0 || t->ndim > HZ_MAXDIM)
		return -1;
	for (int i = 0; i < t->ndim; i++) {
		if (t->shape[i] < 0)
			return -1;
		if (t->shape[i] == 0)
			empty = true;
		else if (!hzi_mul(count, t->shape[i], &count))
			return -1;
	}
	return empty ? 0 : count;
}

/*
 * The byte offsets, from data, of the first byte and of one past the last; false if the view is
 * malformed or an offset does not fit. Both are 0 if the view is empty.
 */
static bool extent(const hz_tensor *t, int64_t *low, int64_t *high)
{
	int64_t count = 1, first = 0, last = 0, size;
	bool empty = false, far = false;

	*low = *high = 0;
	if (!t || t->ndim < 0 || t->ndim > HZ_MAXDIM || !is_dtype(t->dtype))
		return false;
	for (int i = 0; i < t->ndim; i++) {
		int64_t *end = t->stride[i] < 0 ? &first : &last;
		int64_t reach;

		if (t->shape[i] < 0)
			return false;
		if (t->shape[i] == 0) {
			empty = true;
			continue;
		}
		if (!hzi_mul(count, t->shape[i], &count))
			return false;
		far |= __builtin_mul_overflow(t->stride[i], t->shape[i] - 1, &reach) ||
		       __builtin_add_overflow(*end, reach, end);
	}
	if (empty)
		return true;
	size = (int64_t)dtype_table[t->dtype].bytes;
	if (far || __builtin_add_overflow(last, 1, &last) ||
	    __builtin_mul_overflow(last, size, high) || __builtin_mul_overflow(first, size, low))
		return false;
	/* No object spans half of the address space; pointer differences stay exact. */
	return *high <= PTRDIFF_MAX / 2 && *low >= -(PTRDIFF_MAX / 2);
}

int64_t hz_tensor_bytes(const hz_tensor *t)
{
	int64_t low, high;

	return extent(t, &low, &high) ? high - low : -1;
}

int hz_tensor_contiguous(const hz_tensor *t)
{
	int64_t stride = 1;
	const int64_t count = hz_tensor_count(t);

	if (count < 0)
		return 0;
	if (count == 0)
		return 1;
	for (int i = t->ndim - 1; i >= 0; i--) {
		if (t->shape[i] == 1)
			continue;
		if (t->stride[i] != stride)
			return 0;
		stride *= t->shape[i];
	}
	return 1;
}

int hz_tensor_overlap(const hz_tensor *a, const hz_tensor *b)
{
	int64_t a_low, a_high, b_low, b_high;

	if (!extent(a, &a_low, &a_high) || !extent(b, &b_low, &b_high) || a->device != b->device ||
	    a_high == a_low || b_high == b_low)
		return 0;
	return (uintptr_t)a->data + (uintptr_t)a_low < (uintptr_t)b->data + (uintptr_t)b_high &&
	       (uintptr_t)b->data + (uintptr_t)b_low < (uintptr_t)a->data + (uintptr_t)a_high;
}

/* ---- Views of views -------------------------------------------------------------------------- */

static const hz_tensor no_view;	/* dtype 0: every call refuses it */

/* Sets *d to a dimension of t, as in NumPy; false if there is none. */
static bool dimension(const hz_tensor *t, int *d)
{
	if (!t || t->ndim < 0 || t->ndim > HZ_MAXDIM || *d < -t->ndim || *d >= t->ndim)
		return false;
	*d += *d < 0 ? t->ndim : 0;
	return true;
}

hz_tensor hz_view_transpose(const hz_tensor *t, int a, int b)
{
	hz_tensor v;

	if (!dimension(t, &a) || !dimension(t, &b))
		return no_view;
	v = *t;
	v.shape[a] = t->shape[b];
	v.stride[a] = t->stride[b];
	v.shape[b] = t->shape[a];
	v.stride[b] = t->stride[a];
	return v;
}

static int64_t clip(int64_t i, int64_t size)
{
	i += i < 0 ? size : 0;
	return i < 0 ? 0 : i > size ? size : i;
}

hz_tensor hz_view_slice(const hz_tensor *t, int d, int64_t begin, int64_t end)
{
	int64_t low, high, size;
	hz_tensor v;

	if (!dimension(t, &d) || !extent(t, &low, &high))
		return no_view;
	v = *t;
	begin = clip(begin, t->shape[d]);
	end = clip(end, t->shape[d]);
	size = (int64_t)hz_dtype_size(t->dtype);
	v.shape[d] = end > begin ? end - begin : 0;
	if (t->data && v.shape[d] > 0 && high > low)
		v.data = (char *)t->data + begin * t->stride[d] * size;
	return v;
}

hz_tensor hz_view_reshape(const hz_tensor *t, int ndim, const int64_t *shape)
{
	const int64_t count = t ? hz_tensor_count(t) : -1;
	int64_t known = 1, size[HZ_MAXDIM];
	int rest = -1;

	if (count < 0 || !hz_tensor_contiguous(t) || ndim < 0 || ndim > HZ_MAXDIM ||
	    (ndim && !shape))
		return no_view;
	for (int i = 0; i < ndim; i++) {
		size[i] = shape[i];
		if (shape[i] == -1 && rest < 0)
			rest = i;
		else if (!hzi_mul(known, shape[i], &known))
			return no_view;
	}
	if (rest >= 0) {
		if (known == 0 || count % known)
			return no_view;
		size[rest] = count / known;
	} else if (known != count) {
		return no_view;
	}
	return hz_tensor_nd(t->data, t->dtype, t->device, ndim, size);
}

/* ---- Checks ---------------------------------------------------------------------------------- */

static bool is_among(int dtype, const int *dtypes)
{
	while (*dtypes && *dtypes != dtype)
		dtypes++;
	return *dtypes != 0;
}

static int fail_dtype(struct hz_context *ctx, const char *op, const char *name, const hz_tensor *t,
		      const int *dtypes)
{
	char wanted[96] = "";
	size_t used = 0;

	for (const int *d = dtypes; *d && used < sizeof(wanted); d++)
		used += (size_t)snprintf(wanted + used, sizeof(wanted) - used, "%s%s",
					 d == dtypes ? "" : d[1] ? ", " : " or ",
					 hz_dtype_name(*d));
	if (!is_dtype(t->dtype))
		return hzi_fail(ctx, HZ_EDTYPE, "%s: %s.dtype is %d, must be %s", op, name,
				t->dtype, wanted);
	return hzi_fail(ctx, HZ_EDTYPE, "%s: %s.dtype is %s, must be %s", op, name,
			hz_dtype_name(t->dtype), wanted);
}

static const char *device_text(int device, char *buffer, size_t size)
{
	if (device == HZ_CPU)
		snprintf(buffer, size, "the CPU");
	else if (device >= HZ_CUDA)
		snprintf(buffer, size, "CUDA device %d", device - HZ_CUDA);
	else
		snprintf(buffer, size, "no device (%d)", device);
	return buffer;
}

/*
 * Whether two index tuples may share an address. Sorted by stride, each dimension must step over
 * everything that the smaller ones reach: true of every slice, permutation and reversal of an
 * array.
 */
static bool writes_twice(const hz_tensor *t)
{
	int order[HZ_MAXDIM], n = 0;
	uint64_t reach = 0;

	for (int i = 0; i < t->ndim; i++) {
		int j = n;

		if (t->shape[i] == 1)
			continue;
		for (; j > 0 && llabs(t->stride[order[j - 1]]) > llabs(t->stride[i]); j--)
			order[j] = order[j - 1];
		order[j] = i;
		n++;
	}
	for (int j = 0; j < n; j++) {
		const uint64_t stride = (uint64_t)llabs(t->stride[order[j]]);

		if (stride <= reach)
			return true;
		reach += stride * (uint64_t)(t->shape[order[j]] - 1);
	}
	return false;
}

static inline bool is_contiguous(const struct hz_context *ctx, const hz_tensor *t,
				 const int *dtypes, int64_t *count)
{
	int64_t elements = 1;

	if (!t || !is_among(t->dtype, dtypes) || t->ndim < 0 || t->ndim > HZ_MAXDIM)
		return false;
	for (int i = t->ndim - 1; i >= 0; i--) {
		if (t->shape[i] == 1)
			continue;
		if (t->shape[i] < 1 || t->stride[i] != elements ||
		    __builtin_mul_overflow(elements, t->shape[i], &elements))
			return false;
	}
	*count = elements;
	/* Elements have 1, 2, 4 or 8 bytes. */
	return elements <= PTRDIFF_MAX / 2 / 8 && t->device == ctx->device && t->data &&
	       !((uintptr_t)t->data & (dtype_table[t->dtype].bytes - 1));
}

bool hzi_check_contiguous(const struct hz_context *ctx, const hz_tensor *t, const int *dtypes,
			  int64_t *count)
{
	return is_contiguous(ctx, t, dtypes, count);
}

/* The slow path: checks each rule by itself, to find the message. */
static int check_rules(struct hz_context *ctx, const char *op, const char *name,
		       const hz_tensor *t, const int *dtypes, bool output)
{
	char here[40], there[40];
	int64_t low, high;
	size_t size;

	if (!t)
		return hzi_fail(ctx, HZ_EINVAL, "%s: %s is NULL, must be a view", op, name);
	if (!is_among(t->dtype, dtypes))
		return fail_dtype(ctx, op, name, t, dtypes);
	if (t->ndim < 0 || t->ndim > HZ_MAXDIM)
		return hzi_fail(ctx, HZ_ESHAPE, "%s: %s.ndim is %d, must be 0 to %d", op, name,
				t->ndim, HZ_MAXDIM);
	for (int i = 0; i < t->ndim; i++) {
		if (t->shape[i] < 0)
			return hzi_fail(ctx, HZ_ESHAPE,
					"%s: %s.shape[%d] is %lld, must not be negative", op, name,
					i, (long long)t->shape[i]);
	}
	if (!extent(t, &low, &high))
		return hzi_fail(ctx, HZ_ESHAPE, "%s: %s is too large: its size or strides overflow",
				op, name);
	if (t->device != ctx->device)
		return hzi_fail(ctx, HZ_EDEVICE, "%s: %s is on %s, the context is on %s", op, name,
				device_text(t->device, there, sizeof(there)),
				device_text(ctx->device, here, sizeof(here)));
	if (high == low)
		return HZ_OK;
	if (!t->data && ctx->recording)
		return HZ_OK;
	if (!t->data)
		return hzi_fail(ctx, HZ_EINVAL, "%s: %s.data is NULL, must hold %lld elements", op,
				name, (long long)hz_tensor_count(t));
	size = hz_dtype_size(t->dtype);
	assert(size > 0);
	if ((uintptr_t)t->data % size)
		return hzi_fail(ctx, HZ_ESTRIDE,
				"%s: %s.data is %p, must be a multiple of %zu bytes", op, name,
				t->data, size);
	if (output && writes_twice(t))
		return hzi_fail(ctx, HZ_ESTRIDE,
				"%s: %s has strides that put two elements at one address",
				op, name);
	return HZ_OK;
}

/* Other views, and all if calls are logged */
static __attribute__((noinline)) int check_other(struct hz_context *ctx, const char *op,
						 const char *name, const hz_tensor *t,
						 const int *dtypes, bool output)
{
	HZ_CHECK(check_rules(ctx, op, name, t, dtypes, output));
	if (ctx->verbose)
		hzi_verbose_operand(ctx, name, t);
	return HZ_OK;
}

void hzi_verbose_operand(struct hz_context *ctx, const char *name, const hz_tensor *t)
{
	const size_t size = sizeof(ctx->operands);
	size_t n = strlen(ctx->operands);

	n += (size_t)snprintf(ctx->operands + n, size - n, " %s=%s[", name,
			      hz_dtype_name(t->dtype));
	for (int d = 0; d < t->ndim && n < size; d++)
		n += (size_t)snprintf(ctx->operands + n, size - n, d ? ",%" PRId64 : "%" PRId64,
				      t->shape[d]);
	if (n < size)
		snprintf(ctx->operands + n, size - n, "]");
}

int hzi_check(struct hz_context *ctx, const char *op, const char *name, const hz_tensor *t,
	      const int *dtypes, bool output)
{
	int64_t count;

	return is_contiguous(ctx, t, dtypes, &count) && !ctx->verbose
		       ? HZ_OK : check_other(ctx, op, name, t, dtypes, output);
}

/* Whether dimension d, with no index to step along, has a stride whose products could overflow */
static inline bool is_far(const hz_tensor *t, int d)
{
	const int64_t far = (int64_t)1 << 28;

	return t->shape[d] == 1 && (t->stride[d] > far || t->stride[d] < -far);
}

hz_tensor hzi_canonical_strides(const hz_tensor *t)
{
	bool empty = false;
	hz_tensor canonical = *t;

	for (int d = 0; d < t->ndim; d++)
		empty |= t->shape[d] == 0;
	for (int d = 0; d < t->ndim; d++) {
		if (empty || is_far(t, d))
			canonical.stride[d] = 0;
	}
	return canonical;
}

const hz_tensor *hzi_canonical_view(const hz_tensor *t, hz_tensor *copy)
{
	for (int d = 0; d < t->ndim; d++) {
		if (t->shape[d] == 0 || is_far(t, d)) {
			*copy = hzi_canonical_strides(t);
			return copy;
		}
	}
	return t;
}

/*
 * Sets *begin to the address of a view's first byte, and *end to one past the last; false if it is
 * empty. It has passed hzi_check(): where it is not empty, nothing overflows.
 */
static bool range_of(const hz_tensor *t, uintptr_t *begin, uintptr_t *end)
{
	uintptr_t first = 0, last = 1;
	const size_t bytes = dtype_table[t->dtype].bytes;

	for (int i = 0; i < t->ndim; i++) {
		const uintptr_t reach = (uintptr_t)t->stride[i] * (uintptr_t)(t->shape[i] - 1);

		if (t->shape[i] == 0)
			return false;
		if (t->stride[i] < 0)
			first += reach;
		else
			last += reach;
	}
	*begin = (uintptr_t)t->data + first * bytes;
	*end = (uintptr_t)t->data + last * bytes;
	return true;
}

/*
 * As hz_tensor_overlap(), of views on one device; what has no data while ctx records overlaps
 * nothing.
 */
static bool overlap(const struct hz_context *ctx, const hz_tensor *a, const hz_tensor *b)
{
	uintptr_t a_begin, a_end, b_begin, b_end;

	return !(ctx->recording && (!a->data || !b->data)) && range_of(a, &a_begin, &a_end) &&
	       range_of(b, &b_begin, &b_end) && a_begin < b_end && b_begin < a_end;
}

int hzi_check_apart(struct hz_context *ctx, const char *op, const char *a_name, const hz_tensor *a,
		    const char *b_name, const hz_tensor *b)
{
	if (overlap(ctx, a, b))
		return hzi_fail(ctx, HZ_EALIAS, "%s: %s overlaps %s, must be apart from it", op,
				b_name, a_name);
	return HZ_OK;
}

static bool same_view(const hz_tensor *a, const hz_tensor *b)
{
	if (a == b)
		return true;
	if (a->data != b->data || a->dtype != b->dtype || a->ndim != b->ndim)
		return false;
	for (int i = 0; i < a->ndim; i++) {
		if (a->shape[i] != b->shape[i] || (a->shape[i] > 1 && a->stride[i] != b->stride[i]))
			return false;
	}
	return true;
}

int hzi_check_apart_or_same(struct hz_context *ctx, const char *op, const char *a_name,
			    const hz_tensor *a, const char *b_name, const hz_tensor *b)
{
	if (!same_view(a, b) && overlap(ctx, a, b))
		return hzi_fail(ctx, HZ_EALIAS,
				"%s: %s overlaps %s, must be apart from it or the same view",
				op, b_name, a_name);
	return HZ_OK;
}

int hzi_check_same_shape(struct hz_context *ctx, const char *op, const char *a_name,
			 const hz_tensor *a, const char *b_name, const hz_tensor *b)
{
	if (a->ndim != b->ndim)
		return hzi_fail(ctx, HZ_ESHAPE, "%s: %s.ndim is %d, must be %d, as %s", op, b_name,
				b->ndim, a->ndim, a_name);
	for (int i = 0; i < a->ndim; i++) {
		if (a->shape[i] != b->shape[i])
			return hzi_fail(ctx, HZ_ESHAPE,
					"%s: %s.shape[%d] is %lld, must be %lld, as %s", op, b_name,
					i, (long long)b->shape[i], (long long)a->shape[i], a_name);
	}
	return HZ_OK;
}

int hzi_fail_flags(struct hz_context *ctx, const char *op, const char *name, uint32_t flags,
		   uint32_t valid, const struct hzi_flag *list)
{
	char names[HZI_ERRMSG_BYTES] = "";
	size_t n = 0;

	if (!valid)
		return hzi_fail(ctx, HZ_EINVAL, "%s: %s is %#x, must be 0", op, name, flags);
	for (; list->name; list++) {
		if (valid & list->bit && n < sizeof(names))
			n += (size_t)snprintf(names + n, sizeof(names) - n, "%s%s", n ? ", " : "",
					      list->name);
	}
	return hzi_fail(ctx, HZ_EINVAL, "%s: %s has unknown bits %#x (valid: %s)", op, name,
			flags & ~valid, names);
}

int hzi_fail_reserved(struct hz_context *ctx, const char *op, const int64_t *reserved)
{
	int i = 0;

	while (!reserved[i])
		i++;
	return hzi_fail(ctx, HZ_EINVAL, "%s: opts->reserved[%d] is %lld, must be 0", op, i,
			(long long)reserved[i]);
}

/* ---- Packed matrices ------------------------------------------------------------------------- */

uint32_t hzi_hash(uint32_t h, const int64_t *number, int n)
{
	uint64_t state = h;

	for (int i = 0; i < n; i++) {
		state = (state ^ (uint64_t)number[i]) * UINT64_C(0x9e3779b97f4a7c15);
		state ^= state >> 32;
	}
	return (uint32_t)state;
}

static uint32_t packed_sum(const hz_packed *p)
{
	const int64_t field[] = {
		p->dtype, p->ndim, p->layout, (int64_t)p->bytes,
		p->shape[0], p->shape[1], p->shape[2], p->shape[3], p->shape[4], p->shape[5],
		p->reserved[0], p->reserved[1], p->reserved[2], p->reserved[3],
	};

	return hzi_hash(HZI_HASH, field, (int)(sizeof(field) / sizeof(*field)));
}

uint32_t hzi_packed_check(const struct hz_context *ctx, const hz_packed *p)
{
	return ctx->recording ? ~packed_sum(p) : packed_sum(p);
}

int hzi_check_packed_data(struct hz_context *ctx, const char *op, const char *name,
			  const void *data, size_t bytes)
{
	if (bytes && !data && !ctx->recording)
		return hzi_fail(ctx, HZ_EINVAL, "%s: %s is NULL, must be %zu bytes of memory", op,
				name, bytes);
	if (bytes && (uintptr_t)data % 64)
		return hzi_fail(ctx, HZ_EINVAL, "%s: %s is %p, must be a multiple of 64 bytes", op,
				name, data);
	return HZ_OK;
}

int hzi_check_packed(struct hz_context *ctx, const char *op, const char *name, const char *filler,
		     int min_ndim, const hz_packed *p)
{
	const uint32_t sum = packed_sum(p);
	char data[24];

	if (p->ndim < min_ndim || p->ndim > HZ_MAXDIM || (p->check != sum && p->check != ~sum))
		return hzi_fail(ctx, HZ_EINVAL, "%s: %s is not as %s() filled it", op, name,
				filler);
	if (p->check != sum && !ctx->recording)
		return hzi_fail(ctx, HZ_EINVAL, "%s: %s has no data: %s() was only recorded, must "
				"be called again", op, name, filler);
	if (p->device != ctx->device)
		return hzi_fail(ctx, HZ_EDEVICE, "%s: %s is on another device than the context", op,
				name);
	if (p->data && (uintptr_t)p->data % 64 == 0)
		return HZ_OK;
	snprintf(data, sizeof(data), "%s->data", name);
	return hzi_check_packed_data(ctx, op, data, p->data, p->bytes);
}
