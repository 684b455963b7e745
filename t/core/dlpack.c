/*
 * dlpack.c - views to and from DLPack tensors, valid and invalid
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#include <config.h>

#include <stdint.h>
#include <string.h>

/* The part of DLPack 1.x that describes memory, with its ABI's layout */
#define DLPACK_DLPACK_H_
typedef enum {
	kDLCPU = 1,
	kDLCUDA = 2,
	kDLCUDAHost = 3,
	kDLROCM = 10,
	kDLCUDAManaged = 13
} DLDeviceType;
enum {
	kDLInt = 0,
	kDLUInt = 1,
	kDLFloat = 2,
	kDLBfloat = 4,
	kDLComplex = 5,
	kDLBool = 6,
	kDLFloat8_e4m3fn = 10,
	kDLFloat8_e5m2 = 12,
	kDLFloat8_e8m0fnu = 14,
	kDLFloat4_e2m1fn = 17
};
typedef struct {
	DLDeviceType device_type;
	int32_t device_id;
} DLDevice;
typedef struct {
	uint8_t code, bits;
	uint16_t lanes;
} DLDataType;
typedef struct {
	void *data;
	DLDevice device;
	int32_t ndim;
	DLDataType dtype;
	int64_t *shape;
	int64_t *strides;
	uint64_t byte_offset;
} DLTensor;

#include "hurwitz-dlpack.h"
#include "t/core/tap.h"

static const struct {
	int dtype;
	DLDataType dl;
} same[] = {
	{HZ_F32, {kDLFloat, 32, 1}},
	{HZ_F16, {kDLFloat, 16, 1}},
	{HZ_BF16, {kDLBfloat, 16, 1}},
	{HZ_F64, {kDLFloat, 64, 1}},
	{HZ_S8, {kDLInt, 8, 1}},
	{HZ_U8, {kDLUInt, 8, 1}},
	{HZ_S16, {kDLInt, 16, 1}},
	{HZ_U16, {kDLUInt, 16, 1}},
	{HZ_S32, {kDLInt, 32, 1}},
	{HZ_U32, {kDLUInt, 32, 1}},
	{HZ_S64, {kDLInt, 64, 1}},
	{HZ_U64, {kDLUInt, 64, 1}},
	{HZ_S4X2, {kDLInt, 4, 2}},
	{HZ_E4M3, {kDLFloat8_e4m3fn, 8, 1}},
	{HZ_E5M2, {kDLFloat8_e5m2, 8, 1}},
	{HZ_E8M0, {kDLFloat8_e8m0fnu, 8, 1}},
	{HZ_E2M1X2, {kDLFloat4_e2m1fn, 4, 2}},
	{HZ_U4X2, {kDLUInt, 4, 2}},
	{HZ_S2X4, {kDLInt, 2, 4}},
	{HZ_U2X4, {kDLUInt, 2, 4}},
};
#define SAME ((int)(sizeof(same) / sizeof(same[0])))

static float data[24];
static int64_t shape[HZ_MAXDIM + 1] = {2, 3, 4, 1, 1, 1, 1};
static int64_t strides[HZ_MAXDIM + 1] = {1, 8, 2, 1, 1, 1, 1};

/* A valid DLTensor of 2 x 3 x 4 floats, which each case changes */
static DLTensor good(void)
{
	DLTensor d = {data, {kDLCPU, 0}, 3, {kDLFloat, 32, 1}, shape, strides, 0};

	return d;
}

static void dtypes(void)
{
	int i, there = 1, back = 1;

	for (i = 0; i < SAME; i++) {
		DLTensor d = good(), e;
		hz_tensor t;

		d.dtype = same[i].dl;
		d.strides = NULL;
		if (hz_from_dlpack(&t, &d) != HZ_OK || t.dtype != same[i].dtype ||
		    hz_dtype_size(t.dtype) != (size_t)d.dtype.bits * d.dtype.lanes / 8) {
			diag("%s: not from DLPack", hz_dtype_name(same[i].dtype));
			there = 0;
		}
		t = hz_tensor_1d(data, same[i].dtype, HZ_CPU, 4);
		memset(&e, 0xa5, sizeof(e));
		if (hz_to_dlpack(&e, &t) != HZ_OK || e.dtype.code != same[i].dl.code ||
		    e.dtype.bits != same[i].dl.bits || e.dtype.lanes != same[i].dl.lanes) {
			diag("%s: not to DLPack", hz_dtype_name(same[i].dtype));
			back = 0;
		}
	}
	for (i = 1; hz_dtype_size(i); i++)
		;
	is_int(SAME, i - 1, "the table has every dtype");
	ok(there, "each DLPack type becomes its dtype");
	ok(back, "each dtype becomes its DLPack type");
}

static void views(void)
{
	DLTensor d = good(), e;
	hz_tensor t, u;
	int i;

	is_int(hz_from_dlpack(&t, &d), HZ_OK, "a tensor with strides");
	ok(t.data == data && t.ndim == 3 && t.device == HZ_CPU, "data, ndim, device");
	ok(t.shape[0] == 2 && t.shape[1] == 3 && t.shape[2] == 4, "shape");
	ok(t.stride[0] == 1 && t.stride[1] == 8 && t.stride[2] == 2, "strides");

	d.strides = NULL;
	hz_from_dlpack(&t, &d);
	ok(hz_tensor_contiguous(&t) && t.stride[0] == 12 && t.stride[2] == 1,
	   "strides of NULL are contiguous");

	d.byte_offset = 20;
	hz_from_dlpack(&t, &d);
	ok(t.data == data + 5, "byte_offset is added");

	d = good();
	d.ndim = 0;
	d.shape = d.strides = NULL;
	is_int(hz_from_dlpack(&t, &d), HZ_OK, "no dimensions");
	is_int(hz_tensor_count(&t), 1, "are one element");

	d = good();
	d.data = NULL;
	d.byte_offset = 256;
	shape[1] = 0;
	is_int(hz_from_dlpack(&t, &d), HZ_OK, "an empty tensor");
	ok(t.data == NULL && hz_tensor_count(&t) == 0, "stays empty and without data");
	shape[1] = 3;

	for (i = 0; i < HZ_MAXDIM; i++) {
		t.shape[i] = i + 2;
		t.stride[i] = 100 - i;
	}
	t = hz_tensor_nd(data, HZ_BF16, HZ_CUDA + 3, HZ_MAXDIM, t.shape);
	t.stride[1] = -7;
	is_int(hz_to_dlpack(&e, &t), HZ_OK, "a view of six dimensions on a GPU");
	ok(e.data == data && e.byte_offset == 0 && e.ndim == HZ_MAXDIM, "data, byte_offset, ndim");
	ok(e.device.device_type == kDLCUDA && e.device.device_id == 3, "device");
	ok(e.shape == t.shape && e.strides == t.stride, "shape and strides are the view's own");
	is_int(hz_from_dlpack(&u, &e), HZ_OK, "and back");
	ok(u.data == t.data && u.dtype == t.dtype && u.ndim == t.ndim && u.device == t.device &&
	   !memcmp(u.shape, t.shape, sizeof(t.shape)) &&
	   !memcmp(u.stride, t.stride, sizeof(t.stride)),
	   "is the same view");
}

static void devices(void)
{
	static const struct {
		DLDeviceType type;
		int32_t id;
		int status, device;
	} cases[] = {
		{kDLCPU, 0, HZ_OK, HZ_CPU},
		{kDLCUDAHost, 1, HZ_OK, HZ_CPU},
		{kDLCUDA, 0, HZ_OK, HZ_CUDA},
		{kDLCUDA, 7, HZ_OK, HZ_CUDA + 7},
		{kDLCUDAManaged, 1, HZ_OK, HZ_CUDA + 1},
		{kDLCUDA, -1, HZ_EDEVICE, 0},
		{kDLCUDA, INT32_MAX, HZ_EDEVICE, 0},
		{kDLROCM, 0, HZ_EDEVICE, 0},
		{(DLDeviceType)0, 0, HZ_EDEVICE, 0},
	};
	size_t i;

	for (i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		DLTensor d = good();
		hz_tensor t;

		t.device = 0;
		d.device.device_type = cases[i].type;
		d.device.device_id = cases[i].id;
		ok(hz_from_dlpack(&t, &d) == cases[i].status &&
		   (cases[i].status != HZ_OK || t.device == cases[i].device),
		   "device type %d, id %d", (int)cases[i].type, (int)cases[i].id);
	}
}

/* How spoil() changes a valid DLTensor, and the status expected */
enum spoiled {
	NULL_SHAPE, COMPLEX, BOOL, LANES, INT4, F8, NDIM, NEGATIVE_NDIM, NEGATIVE_SIZE, HUGE_SIZE,
	SPOILS
};

static int spoil(DLTensor *d, int64_t *sizes, enum spoiled how)
{
	memcpy(sizes, shape, sizeof(shape));
	d->shape = sizes;
	switch (how) {
	case NULL_SHAPE:
		d->shape = NULL;
		return HZ_EINVAL;
	case COMPLEX:
		d->dtype = (DLDataType){kDLComplex, 64, 1};
		return HZ_EDTYPE;
	case BOOL:
		d->dtype = (DLDataType){kDLBool, 8, 1};
		return HZ_EDTYPE;
	case LANES:
		d->dtype.lanes = 4;
		return HZ_EDTYPE;
	case INT4:
		d->dtype = (DLDataType){kDLInt, 4, 1};
		return HZ_EDTYPE;
	case F8:
		d->dtype = (DLDataType){kDLFloat, 8, 1};
		return HZ_EDTYPE;
	case NDIM:
		d->ndim = HZ_MAXDIM + 1;
		return HZ_ESHAPE;
	case NEGATIVE_NDIM:
		d->ndim = -1;
		return HZ_ESHAPE;
	case NEGATIVE_SIZE:
		sizes[1] = -3;
		return HZ_ESHAPE;
	default:
		sizes[0] = sizes[1] = INT64_C(1) << 40;
		return HZ_ESHAPE;
	}
}

static void refused(void)
{
	static const char *const names[SPOILS] = {
		"no shape", "complex", "bool", "four lanes", "single int4", "8-bit kDLFloat",
		"seven dimensions", "minus one dimension", "a negative size", "sizes that overflow",
	};
	hz_tensor t, before;
	DLTensor d = good(), e, untouched;
	int how;

	is_int(hz_from_dlpack(NULL, &d), HZ_EINVAL, "from DLPack: no view");
	is_int(hz_from_dlpack(&t, NULL), HZ_EINVAL, "from DLPack: no tensor");
	memset(&t, 0x5a, sizeof(t));
	memcpy(&before, &t, sizeof(t));
	for (how = 0; how < SPOILS; how++) {
		int64_t sizes[HZ_MAXDIM + 1];
		int want;

		d = good();
		want = spoil(&d, sizes, (enum spoiled)how);
		is_int(hz_from_dlpack(&t, &d), want, "from DLPack: %s", names[how]);
	}
	ok(!memcmp(&t, &before, sizeof(t)), "from DLPack: a refused call leaves the view alone");

	t = hz_tensor_1d(data, HZ_F32, HZ_CPU, 4);
	memset(&e, 0x5a, sizeof(e));
	memcpy(&untouched, &e, sizeof(e));
	is_int(hz_to_dlpack(NULL, &t), HZ_EINVAL, "to DLPack: no tensor");
	is_int(hz_to_dlpack(&e, NULL), HZ_EINVAL, "to DLPack: no view");
	t.dtype = 99;
	is_int(hz_to_dlpack(&e, &t), HZ_EDTYPE, "to DLPack: no dtype");
	t.dtype = HZ_F32;
	t.device = HZ_AUTO;
	is_int(hz_to_dlpack(&e, &t), HZ_EDEVICE, "to DLPack: no device");
	t.device = HZ_CPU;
	t.shape[0] = -1;
	is_int(hz_to_dlpack(&e, &t), HZ_ESHAPE, "to DLPack: a negative size");
	ok(!memcmp(&e, &untouched, sizeof(e)), "to DLPack: a refused call leaves the tensor alone");
}

int main(void)
{
	dtypes();
	views();
	devices();
	refused();
	return done_testing();
}
