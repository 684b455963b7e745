/*
 * calls.c - invalid arguments of transforms, also with quantization
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#include <config.h>

#include "t/core/dev.h"

/* ---- hz_hadamard() --------------------------------------------------------------------------- */

static float *wx, *wy;			/* 64 KiB each, on the device */
static unsigned char *w_image;

static void refused(struct dev *dev, const hz_tensor *x, hz_tensor *y,
		    const hz_hadamard_opts *o, int status, const char *message)
{
	hz_tensor host = hz_tensor_1d(w_image, HZ_U8, HZ_CPU, 65536);
	hz_tensor there = hz_tensor_1d(wy, HZ_U8, dev->device, 65536);
	size_t bytes = 4321;
	int i, untouched = 1;

	is_int(hz_hadamard(dev->ctx, x, y, o), status, "refused: %s", message);
	is_str(hz_errmsg(dev->ctx), message, "its message");
	memset(w_image, 0, 65536);
	hz_copy(dev->ctx, &there, &host);
	hz_sync(dev->ctx);
	for (i = 0; i < 65536; i++)
		untouched &= w_image[i] == GUARD_BYTE;
	/* A recorded call needs no data. */
	ok(untouched && (strstr(message, "data is NULL") ||
			 (RECORD(dev->ctx, hz_hadamard(dev->ctx, x, y, o), &bytes) == status &&
			  bytes == 4321)), "y is untouched; recording is refused, too");
}

#define OPTS(...) (&(hz_hadamard_opts){ __VA_ARGS__ })

static void test_refusals(struct dev *dev)
{
	const char *here = dev->device == HZ_CPU ? "the CPU" : "CUDA device 0";
	int elsewhere = dev->device == HZ_CPU ? HZ_CUDA + 1 : HZ_CPU;
	size_t bytes;
	char message[200];
	hz_tensor x, y, t, u, s;
	void *p;

	if (hz_alloc(dev->ctx, &p, 65536, dev->device) != HZ_OK)
		bail("hz_alloc: %s", hz_errmsg(dev->ctx));
	wx = p;
	if (hz_alloc(dev->ctx, &p, 65536, dev->device) != HZ_OK)
		bail("hz_alloc: %s", hz_errmsg(dev->ctx));
	wy = p;
	w_image = malloc(65536);
	memset(w_image, GUARD_BYTE, 65536);
	t = hz_tensor_1d(w_image, HZ_U8, HZ_CPU, 65536);
	u = hz_tensor_1d(wy, HZ_U8, dev->device, 65536);
	hz_copy(dev->ctx, &t, &u);
	u.data = wx;
	hz_copy(dev->ctx, &t, &u);
	hz_sync(dev->ctx);

	x = hz_tensor_2d(wx, HZ_F32, dev->device, 10, 96);
	y = hz_tensor_2d(wy, HZ_F32, dev->device, 10, 96);
	is_int(hz_hadamard(NULL, &x, &y, NULL), HZ_EINVAL, "refused: the context is NULL");
	refused(dev, NULL, &y, NULL, HZ_EINVAL, "hadamard: x is NULL, must be a view");
	refused(dev, &x, NULL, NULL, HZ_EINVAL, "hadamard: y is NULL, must be a view");
	t = x;
	t.dtype = HZ_F64;
	refused(dev, &t, &y, NULL, HZ_EDTYPE, "hadamard: x.dtype is f64, must be f32, f16 or bf16");
	t = y;
	t.dtype = HZ_S8;
	refused(dev, &x, &t, NULL, HZ_EDTYPE, "hadamard: y.dtype is s8, must be f32, f16 or bf16");
	t = x;
	t.ndim = 0;
	u = y;
	u.ndim = 0;
	refused(dev, &t, &u, NULL, HZ_ESHAPE, "hadamard: x.ndim is 0, must be 1 to 6");
	t.ndim = 7;
	refused(dev, &t, &y, NULL, HZ_ESHAPE, "hadamard: x.ndim is 7, must be 0 to 6");
	t = hz_tensor_2d(wy, HZ_F32, dev->device, 10, 80);
	refused(dev, &x, &t, NULL, HZ_ESHAPE, "hadamard: y.shape[1] is 80, must be 96, as x");
	t = hz_tensor_1d(wy, HZ_F32, dev->device, 960);
	refused(dev, &x, &t, NULL, HZ_ESHAPE, "hadamard: y.ndim is 1, must be 2, as x");
	t = x;
	t.shape[0] = -1;
	refused(dev, &t, &y, NULL, HZ_ESHAPE, "hadamard: x.shape[0] is -1, must not be negative");
	t = x;
	t.shape[0] = t.stride[0] = INT64_C(1) << 60;
	refused(dev, &t, &y, NULL, HZ_ESHAPE,
		"hadamard: x is too large: its size or strides overflow");
	t = y;
	t.stride[0] = 0;
	refused(dev, &x, &t, NULL, HZ_ESTRIDE,
		"hadamard: y has strides that put two elements at one address");
	t = x;
	t.data = (char *)wx + 2;
	snprintf(message, sizeof(message),
		 "hadamard: x.data is %p, must be a multiple of 4 bytes",
		 t.data);
	refused(dev, &t, &y, NULL, HZ_ESTRIDE, message);
	t.data = NULL;
	refused(dev, &t, &y, NULL, HZ_EINVAL, "hadamard: x.data is NULL, must hold 960 elements");
	t = y;
	t.data = wx + 1;
	refused(dev, &x, &t, NULL, HZ_EALIAS,
		"hadamard: y overlaps x, must be apart from it or the same view");
	t.data = wx;
	t.dtype = HZ_F16;
	refused(dev, &x, &t, NULL, HZ_EALIAS,
		"hadamard: y overlaps x, must be apart from it or the same view");
	t = x;
	t.device = elsewhere;
	snprintf(message, sizeof(message), "hadamard: x is on %s, the context is on %s",
		 elsewhere == HZ_CPU ? "the CPU" : "CUDA device 1", here);
	refused(dev, &t, &y, NULL, HZ_EDEVICE, message);
	t.device = 0;
	snprintf(message, sizeof(message),
		 "hadamard: x is on no device (0), the context is on %s",
		 here);
	refused(dev, &t, &y, NULL, HZ_EDEVICE, message);

	refused(dev, &x, &y, OPTS(.plan = 5), HZ_EINVAL,
		"hadamard: opts->plan is 5, must be 0 to 4");
	refused(dev, &x, &y, OPTS(.axis = HZ_AXIS(2)), HZ_EINVAL,
		"hadamard: opts->axis is HZ_AXIS(2), must be HZ_AXIS(-2) to HZ_AXIS(1), or 0: the "
		"last dimension");
	refused(dev, &x, &y, OPTS(.axis = HZ_AXIS(-3)), HZ_EINVAL,
		"hadamard: opts->axis is HZ_AXIS(-3), must be HZ_AXIS(-2) to HZ_AXIS(1), or 0: the "
		"last dimension");
	refused(dev, &x, &y, OPTS(.axis = INT32_MIN), HZ_EINVAL,
		"hadamard: opts->axis is HZ_AXIS(-2147483648), must be HZ_AXIS(-2) to HZ_AXIS(1), "
		"or 0: the last dimension");
	refused(dev, &x, &y, OPTS(.flags = 4), HZ_EINVAL,
		"hadamard: opts->flags has unknown bits 0x4 (valid: HZ_HADAMARD_TRANSPOSE, "
		"HZ_HADAMARD_RAW)");
	refused(dev, &x, &y, OPTS(.base = 6), HZ_EINVAL,
		"hadamard: opts->base is 6, must be 0 to 5");
	refused(dev, &x, &y, OPTS(.block = -8), HZ_EINVAL,
		"hadamard: opts->block is -8, must not be negative");
	refused(dev, &x, &y, OPTS(.reserved = { 0, 0, 7 }), HZ_EINVAL,
		"hadamard: opts->reserved[2] is 7, must be 0");
	refused(dev, &x, &y, OPTS(.factor = INFINITY), HZ_EINVAL,
		"hadamard: opts->factor is inf, must be finite in f32");
	refused(dev, &x, &y, OPTS(.round_to = HZ_F32), HZ_EINVAL,
		"hadamard: opts->round_to is f32, must be f16, bf16 or 0");
	refused(dev, &x, &y, OPTS(.block = 64), HZ_ESHAPE,
		"hadamard: opts->block is 64, must divide 96, the length of axis 1");
	/* In a recording, which needs no memory */
	t = hz_tensor_2d(NULL, HZ_F16, dev->device, INT64_C(1) << 58, 2);
	is_int(hz_record_begin(dev->ctx), HZ_OK, "recording");
	is_int(hz_hadamard(dev->ctx, &t, &t, OPTS(.axis = HZ_AXIS(0), .max_block = 64)),
	       HZ_ESHAPE, "an axis whose scratch overflows");
	has_str(hz_errmsg(dev->ctx), "x.shape[0] is 288230376151711744, must be at most "
		"36028797018963967", "its message");
	is_int(hz_record_end(dev->ctx, &bytes), HZ_OK, "recorded");
	refused(dev, &x, &y, OPTS(.plan = HZ_PLAN_SYLVESTER), HZ_ESHAPE,
		"hadamard: x.shape[1] is 96, which the sylvester plan cannot make: must be a power "
		"of two; the greedy plan makes any length");
	refused(dev, &x, &y, OPTS(.axis = HZ_AXIS(0), .min_block = 16), HZ_ESHAPE,
		"hadamard: x.shape[0] is 10, which the greedy plan cannot make: it needs a block "
		"of 8, less than opts->min_block 16");
	refused(dev, &x, &y, OPTS(.block = 12, .min_block = 5), HZ_ESHAPE,
		"hadamard: opts->block is 12, which the greedy plan cannot make: it needs a block "
		"of 4, less than opts->min_block 5");
	refused(dev, &x, &y, OPTS(.plan = HZ_PLAN_TRUE, .order = 20), HZ_ESHAPE,
		"hadamard: x.shape[1] is 96, which the true plan cannot make: must be 20 times a "
		"power of two; the greedy plan makes any length");
	s = hz_tensor_2d(wx, HZ_F32, dev->device, 1, 258);
	refused(dev, &s, &s, OPTS(.plan = HZ_PLAN_TRUE), HZ_ESHAPE,
		"hadamard: x.shape[1] is 258, which the true plan cannot make: it takes a base "
		"matrix of order 516, and these have up to 256; the greedy plan makes any length");
	refused(dev, &x, &y, OPTS(.plan = HZ_PLAN_TRUE, .base = HZ_BASE_WILLIAMSON), HZ_ENOTSUP,
		"hadamard: x.shape[1] is 96, which the true plan cannot make: opts->base has no "
		"base matrix of order 12; the greedy plan makes any length");

	s = hz_tensor_1d(wx + 4096, HZ_F64, dev->device, 96);
	refused(dev, &x, &y, OPTS(.pre = &s), HZ_EDTYPE,
		"hadamard: opts->pre.dtype is f64, must be u8, f32, f16 or bf16");
	s = hz_tensor_2d(wx + 4096, HZ_F32, dev->device, 1, 96);
	refused(dev, &x, &y, OPTS(.post = &s), HZ_ESHAPE,
		"hadamard: opts->post.ndim is 2, must be 1");
	s = hz_tensor_1d(wx + 4096, HZ_F32, dev->device, 95);
	refused(dev, &x, &y, OPTS(.pre = &s), HZ_ESHAPE,
		"hadamard: opts->pre.shape[0] is 95, must be 96");
	s = hz_tensor_1d(wx + 4096, HZ_U8, dev->device, 96);
	refused(dev, &x, &y, OPTS(.pre = &s), HZ_ESHAPE,
		"hadamard: opts->pre.shape[0] is 96, must be 12");
	s = hz_tensor_1d(wx + 4096, HZ_F32, dev->device, 96);
	s.stride[0] = 2;
	refused(dev, &x, &y, OPTS(.pre = &s), HZ_ESTRIDE,
		"hadamard: opts->pre.stride[0] is 2, must be 1");
	s = hz_tensor_1d(wy + 10, HZ_F32, dev->device, 96);
	refused(dev, &x, &y, OPTS(.pre = &s), HZ_EALIAS,
		"hadamard: y overlaps opts->pre, must be apart from it");
	s = hz_tensor_1d(wx + 4096, HZ_F32, elsewhere, 96);
	snprintf(message, sizeof(message), "hadamard: opts->post is on %s, the context is on %s",
		 elsewhere == HZ_CPU ? "the CPU" : "CUDA device 1", here);
	refused(dev, &x, &y, OPTS(.post = &s), HZ_EDEVICE, message);

	t = hz_tensor_1d(wx, HZ_F32, dev->device, dev->device == HZ_CPU ? 1 << 25 : 1 << 17);
	u = t;
	u.data = (char *)wx - ((int64_t)1 << 29);
	snprintf(message, sizeof(message),
		 "hadamard: x.shape[0] is %lld, which takes a block of %lld: must be up to %lld on "
		 "the %s; opts->max_block limits blocks", (long long)t.shape[0],
		 (long long)t.shape[0], dev->device == HZ_CPU ? 1LL << 24 : 65536LL,
		 dev->device == HZ_CPU ? "CPU" : "GPU");
	refused(dev, &t, &u, NULL, HZ_ENOTSUP, message);
	free(w_image);
	hz_free(dev->ctx, wx, dev->device);
	hz_free(dev->ctx, wy, dev->device);
}

/* One invalid argument at a time, in calls that otherwise take the fast path of the checks */
static void test_refusals_plain(struct dev *dev)
{
	static const char overlap[] =
		"hadamard: y overlaps x, must be apart from it or the same view";
	const int elsewhere = dev->device == HZ_CPU ? HZ_CUDA + 1 : HZ_CPU;
	hz_tensor x, y, t;
	char message[200];
	void *p;
	int i;

	if (hz_alloc(dev->ctx, &p, 65536, dev->device) != HZ_OK)
		bail("hz_alloc: %s", hz_errmsg(dev->ctx));
	wx = wy = p;
	w_image = malloc(65536);
	memset(w_image, GUARD_BYTE, 65536);
	t = hz_tensor_1d(w_image, HZ_U8, HZ_CPU, 65536);
	x = hz_tensor_1d(wx, HZ_U8, dev->device, 65536);
	hz_copy(dev->ctx, &t, &x);
	hz_sync(dev->ctx);

	x = hz_tensor_2d(wx + 4096, HZ_F32, dev->device, 16, 64);
	y = hz_tensor_2d(wx, HZ_F32, dev->device, 16, 64);
	refused(dev, NULL, &y, NULL, HZ_EINVAL, "hadamard: x is NULL, must be a view");
	refused(dev, &x, NULL, NULL, HZ_EINVAL, "hadamard: y is NULL, must be a view");
	for (i = -1023; i < 1024; i += 341) {
		t = x;
		t.data = wx + 4096 + (i ? i : 1);
		refused(dev, &x, &t, NULL, HZ_EALIAS, overlap);
	}
	t = x;
	t.dtype = HZ_BF16;
	refused(dev, &x, &t, NULL, HZ_EALIAS, overlap);
	refused(dev, &t, &x, NULL, HZ_EALIAS, overlap);
	t.data = (char *)(wx + 4096) - 2046;
	refused(dev, &x, &t, NULL, HZ_EALIAS, overlap);
	t.dtype = HZ_U8;
	refused(dev, &x, &t, NULL, HZ_EDTYPE, "hadamard: y.dtype is u8, must be f32, f16 or bf16");
	t = hz_tensor_2d(wx, HZ_F32, dev->device, 15, 64);
	refused(dev, &x, &t, NULL, HZ_ESHAPE, "hadamard: y.shape[0] is 15, must be 16, as x");
	t = hz_tensor_3d(wx, HZ_F32, dev->device, 1, 16, 64);
	refused(dev, &x, &t, NULL, HZ_ESHAPE, "hadamard: y.ndim is 3, must be 2, as x");
	t = y;
	t.stride[0] = 63;
	refused(dev, &x, &t, NULL, HZ_ESTRIDE,
		"hadamard: y has strides that put two elements at one address");
	t = y;
	t.data = (char *)wx + 1;
	snprintf(message, sizeof(message),
		 "hadamard: y.data is %p, must be a multiple of 4 bytes", t.data);
	refused(dev, &x, &t, NULL, HZ_ESTRIDE, message);
	t.data = NULL;
	refused(dev, &x, &t, NULL, HZ_EINVAL, "hadamard: y.data is NULL, must hold 1024 elements");
	t = y;
	t.device = elsewhere;
	snprintf(message, sizeof(message), "hadamard: y is on %s, the context is on %s",
		 elsewhere == HZ_CPU ? "the CPU" : "CUDA device 1",
		 elsewhere == HZ_CPU ? "CUDA device 0" : "the CPU");
	refused(dev, &x, &t, NULL, HZ_EDEVICE, message);
	t = hz_tensor_2d(wx, HZ_F32, dev->device, INT64_C(1) << 40, INT64_C(1) << 20);
	refused(dev, &t, &t, NULL, HZ_ESHAPE,
		"hadamard: x is too large: its size or strides overflow");
	refused(dev, &x, &y, OPTS(.factor = 1e39), HZ_EINVAL,
		"hadamard: opts->factor is 1e+39, must be finite in f32");
	refused(dev, &x, &y, OPTS(.round_to = HZ_F32), HZ_EINVAL,
		"hadamard: opts->round_to is f32, must be f16, bf16 or 0");
	refused(dev, &x, &y, OPTS(.reserved = { 0, 0, 0, 1 }), HZ_EINVAL,
		"hadamard: opts->reserved[3] is 1, must be 0");
	for (i = -1; i < 2; i += 2) {
		t = x;
		t.data = wx + 4096 + i * 1024;
		is_int(hz_hadamard(dev->ctx, &x, &t, NULL), HZ_OK, "side by side is apart");
	}
	hz_sync(dev->ctx);
	free(w_image);
	hz_free(dev->ctx, wx, dev->device);
}

/* ---- hz_hadamard_quantize(), hz_dequantize_hadamard() ---------------------------------------- */

static struct area in, codes, scale;
static unsigned char *image, *guard;

static int untouched(const struct area *a)
{
	area_read(a, image);
	return memcmp(image, guard, a->total) == 0;
}

static void refused_codes(struct dev *dev, const hz_tensor *x, hz_tensor *q,
			  hz_tensor *s, const hz_hadamard_opts *o, int status,
			  const char *message)
{
	size_t bytes = 4321;

	is_int(hz_hadamard_quantize(dev->ctx, x, q, s, o), status, "refused: %s", message);
	is_str(hz_errmsg(dev->ctx), message, "its message");
	ok(untouched(&codes) && untouched(&scale) &&
	   RECORD(dev->ctx, hz_hadamard_quantize(dev->ctx, x, q, s, o), &bytes) == status &&
	   bytes == 4321, "q and scale are untouched; recording is refused, too");
}

static void refused_back(struct dev *dev, const hz_tensor *q, const hz_tensor *s,
			 hz_tensor *y, const hz_hadamard_opts *o, int status, const char *message)
{
	size_t bytes = 4321;

	is_int(hz_dequantize_hadamard(dev->ctx, q, s, y, o), status, "refused: %s", message);
	is_str(hz_errmsg(dev->ctx), message, "its message");
	ok(untouched(&in) &&
	   RECORD(dev->ctx, hz_dequantize_hadamard(dev->ctx, q, s, y, o), &bytes) == status &&
	   bytes == 4321, "y is untouched; recording is refused, too");
}

static void test_refusals_codes(struct dev *dev)
{
	const char *here = dev->device == HZ_CPU ? "the CPU" : "CUDA device 0";
	const char *there = dev->device == HZ_CPU ? "CUDA device 1" : "the CPU";
	int elsewhere = dev->device == HZ_CPU ? HZ_CUDA + 1 : HZ_CPU;
	char message[200];
	hz_tensor x, q, s, t, u;
	void *data;

	in = area_new(dev, 8192, 0);
	codes = area_new(dev, 8192, 0);
	scale = area_new(dev, 8192, 0);
	guard = image_new(8192, 0, &data);
	image = image_new(8192, 0, &data);
	area_write(&in, guard);
	area_write(&codes, guard);
	area_write(&scale, guard);
	x = hz_tensor_2d(in.data, HZ_F32, dev->device, 10, 64);
	q = hz_tensor_2d(codes.data, HZ_S8, dev->device, 10, 64);
	s = hz_tensor_2d(scale.data, HZ_F32, dev->device, 10, 2);

	is_int(hz_hadamard_quantize(NULL, &x, &q, &s, NULL), HZ_EINVAL,
	       "refused: the context is NULL");
	is_int(hz_dequantize_hadamard(NULL, &q, &s, &x, NULL), HZ_EINVAL, "and of dequantization");
	refused_codes(dev, NULL, &q, &s, NULL, HZ_EINVAL,
		      "hadamard_quantize: x is NULL, must be a view");
	refused_codes(dev, &x, NULL, &s, NULL, HZ_EINVAL,
		      "hadamard_quantize: q is NULL, must be a view");
	refused_codes(dev, &x, &q, NULL, NULL, HZ_EINVAL,
		"hadamard_quantize: scale is NULL, must be a view");
	refused_back(dev, NULL, &s, &x, NULL, HZ_EINVAL,
		     "dequantize_hadamard: q is NULL, must be a view");
	refused_back(dev, &q, NULL, &x, NULL, HZ_EINVAL,
		     "dequantize_hadamard: scale is NULL, must be a view");
	refused_back(dev, &q, &s, NULL, NULL, HZ_EINVAL,
		     "dequantize_hadamard: y is NULL, must be a view");

	t = x;
	t.dtype = HZ_S32;
	refused_codes(dev, &t, &q, &s, NULL, HZ_EDTYPE,
		"hadamard_quantize: x.dtype is s32, must be f32, f16 or bf16");
	refused_back(dev, &q, &s, &t, NULL, HZ_EDTYPE,
		     "dequantize_hadamard: y.dtype is s32, must be f32, f16 or bf16");
	t = q;
	t.dtype = HZ_U8;
	refused_codes(dev, &x, &t, &s, NULL, HZ_EDTYPE,
		"hadamard_quantize: q.dtype is u8, must be s8, s4x2, e4m3 or e5m2");
	t = s;
	t.dtype = HZ_F16;
	refused_codes(dev, &x, &q, &t, NULL, HZ_EDTYPE,
		"hadamard_quantize: scale.dtype is f16, must be f32 or e8m0");
	refused_back(dev, &q, &t, &x, NULL, HZ_EDTYPE,
		     "dequantize_hadamard: scale.dtype is f16, must be f32 or e8m0");

	t = hz_tensor_1d(codes.data, HZ_S8, dev->device, 640);
	refused_codes(dev, &x, &t, &s, NULL, HZ_ESHAPE,
		"hadamard_quantize: q.ndim is 1, must be 2, as x");
	t = hz_tensor_2d(codes.data, HZ_S8, dev->device, 9, 64);
	refused_codes(dev, &x, &t, &s, NULL, HZ_ESHAPE,
		"hadamard_quantize: q.shape[0] is 9, must be 10, as x");
	refused_back(dev, &t, &s, &x, NULL, HZ_ESHAPE,
		     "dequantize_hadamard: q.shape[0] is 9, must be 10, as y");
	t = hz_tensor_2d(codes.data, HZ_S8, dev->device, 10, 32);
	refused_codes(dev, &x, &t, &s, NULL, HZ_ESHAPE,
		"hadamard_quantize: q.shape[1] is 32, must be 64");
	t = hz_tensor_2d(codes.data, HZ_S4X2, dev->device, 10, 64);
	refused_codes(dev, &x, &t, &s, NULL, HZ_ESHAPE,
		"hadamard_quantize: q.shape[1] is 64, must be 32");
	t = hz_tensor_2d(scale.data, HZ_F32, dev->device, 10, 3);
	refused_codes(dev, &x, &q, &t, NULL, HZ_ESHAPE,
		"hadamard_quantize: scale.shape[1] is 3, must be 1, or 64 divided by "
		"32, 64 or 128");
	{
		const hz_tensor x48 = hz_tensor_2d(in.data, HZ_F32, dev->device, 10, 48);
		hz_tensor q48 = hz_tensor_2d(codes.data, HZ_S8, dev->device, 10, 48);

		refused_codes(dev, &x48, &q48, &t, NULL, HZ_ESHAPE,
			      "hadamard_quantize: scale.shape[1] is 3, must be 1: 48 is no multiple of "
			      "32");
	}
	t = hz_tensor_2d(scale.data, HZ_F32, dev->device, 10, 4);
	refused_back(dev, &q, &t, &x, NULL, HZ_ESHAPE,
		     "dequantize_hadamard: scale.shape[1] is 4, must be 1, or 64 divided by "
		     "32, 64 or 128");
	t = hz_tensor_2d(scale.data, HZ_F32, dev->device, 10, 0);
	refused_codes(dev, &x, &q, &t, NULL, HZ_ESHAPE,
		"hadamard_quantize: scale.shape[1] is 0, must be 1, or 64 divided by "
		"32, 64 or 128");
	t = hz_tensor_2d(in.data, HZ_F32, dev->device, 10, 33);
	u = hz_tensor_2d(codes.data, HZ_S4X2, dev->device, 10, 16);
	refused_codes(dev, &t, &u, &s, OPTS(.block = 1), HZ_ESHAPE,
		"hadamard_quantize: x.shape[1] is 33, must be even for s4x2");

	t = q;
	t.shape[1] = 64;
	t.stride[1] = 2;
	t.stride[0] = 128;
	refused_codes(dev, &x, &t, &s, NULL, HZ_ESTRIDE,
		"hadamard_quantize: q.stride[1] is 2, must be 1");
	t = s;
	t.stride[1] = -1;
	t.data = (float *)scale.data + 1;
	refused_codes(dev, &x, &q, &t, NULL, HZ_ESTRIDE,
		"hadamard_quantize: scale.stride[1] is -1, must be 1");
	t = s;
	t.stride[0] = 0;
	refused_codes(dev, &x, &q, &t, NULL, HZ_ESTRIDE,
		"hadamard_quantize: scale has strides that put two elements at one address");
	t = q;
	t.data = (char *)in.data + 100;
	refused_codes(dev, &x, &t, &s, NULL, HZ_EALIAS,
		"hadamard_quantize: q overlaps x, must be apart from it");
	refused_back(dev, &t, &s, &x, NULL, HZ_EALIAS,
		     "dequantize_hadamard: y overlaps q, must be apart from it");
	t = s;
	t.data = in.data;
	refused_codes(dev, &x, &q, &t, NULL, HZ_EALIAS,
		"hadamard_quantize: scale overlaps x, must be apart from it");
	t.data = (char *)codes.data + 600;
	refused_codes(dev, &x, &q, &t, NULL, HZ_EALIAS,
		"hadamard_quantize: scale overlaps q, must be apart from it");
	t = hz_tensor_1d((char *)codes.data + 8, HZ_F32, dev->device, 64);
	refused_codes(dev, &x, &q, &s, OPTS(.pre = &t), HZ_EALIAS,
		"hadamard_quantize: q overlaps opts->pre, must be apart from it");
	t = hz_tensor_1d((char *)scale.data + 8, HZ_F32, dev->device, 64);
	refused_codes(dev, &x, &q, &s, OPTS(.post = &t), HZ_EALIAS,
		"hadamard_quantize: scale overlaps opts->post, must be apart from it");
	t = hz_tensor_1d((char *)in.data + 8, HZ_F32, dev->device, 64);
	refused_back(dev, &q, &s, &x, OPTS(.post = &t), HZ_EALIAS,
		     "dequantize_hadamard: y overlaps opts->post, must be apart from it");
	t = q;
	t.device = elsewhere;
	snprintf(message, sizeof(message), "hadamard_quantize: q is on %s, the context is on %s",
		 there,
		 here);
	refused_codes(dev, &x, &t, &s, NULL, HZ_EDEVICE, message);
	snprintf(message, sizeof(message),
		 "dequantize_hadamard: q is on %s, the context is on %s", there,
		 here);
	refused_back(dev, &t, &s, &x, NULL, HZ_EDEVICE, message);

	refused_codes(dev, &x, &q, &s, OPTS(.axis = HZ_AXIS(-2)), HZ_ENOTSUP,
		"hadamard_quantize: opts->axis is HZ_AXIS(-2), must be HZ_AXIS(-1) or 0, the "
		"last dimension; hz_hadamard() takes every axis");
	refused_codes(dev, &x, &q, &s, OPTS(.round_to = HZ_S8), HZ_EINVAL,
		"hadamard_quantize: opts->round_to is s8, must be f16, bf16 or 0");
	refused_codes(dev, &x, &q, &s, OPTS(.block = 48), HZ_ESHAPE,
		"hadamard_quantize: opts->block is 48, must divide 64, the length of axis 1");
	refused_back(dev, &q, &s, &x, OPTS(.plan = 9), HZ_EINVAL,
		     "dequantize_hadamard: opts->plan is 9, must be 0 to 4");
	refused_back(dev, &q, &s, &x, OPTS(.plan = HZ_PLAN_TRUE, .order = 12), HZ_ESHAPE,
		     "dequantize_hadamard: y.shape[1] is 64, which the true plan cannot make: "
		     "must be 12 times a power of two; the greedy plan makes any length");
	is_int(hz_hadamard_quantize(dev->ctx, &x, &q, &s, NULL), HZ_OK,
	       "and the good ones are taken");
	free(image);
	free(guard);
	area_free(&in);
	area_free(&codes);
	area_free(&scale);
}

int main(void)
{
	tap_seed();
	dev_open_all();
	test_refusals(&devs[0]);
	test_refusals_plain(&devs[0]);
	test_refusals_codes(&devs[0]);
	dev_close_all();
	return done_testing();
}
