/*
 * hurwitz-dlpack.h - views to and from DLPack tensors, for those who use both
 *
 * SPDX-License-Identifier: BSD-2-Clause
 *
 * Include your own dlpack.h (0.6 or later) first. These are inline functions: the library knows
 * nothing of DLPack. Only DLTensor is dealt with, the part that describes memory; who owns it, and
 * whether it may be written, stays with the managed tensor that it came in. In C99 and C++11.
 */
#ifndef HURWITZ_DLPACK_H
#define HURWITZ_DLPACK_H

#include "hurwitz.h"

#if !defined(DLPACK_DLPACK_H_) && !defined(DLPACK_VERSION) && !defined(DLPACK_MAJOR_VERSION)
#error "hurwitz-dlpack.h: include dlpack.h first (DLPack 0.6 or later)"
#endif

/* Numbers, not the names in dlpack.h: older versions of it lack the later ones. */
static const struct {
	int16_t dtype;		/* enum hz_dtype */
	uint8_t code, bits;	/* DLDataType */
	uint16_t lanes;
} hz_dlpack_dtypes[] = {
	{HZ_F32, 2, 32, 1},	/* kDLFloat */
	{HZ_F16, 2, 16, 1},
	{HZ_BF16, 4, 16, 1},	/* kDLBfloat */
	{HZ_F64, 2, 64, 1},
	{HZ_S8, 0, 8, 1},	/* kDLInt */
	{HZ_U8, 1, 8, 1},	/* kDLUInt */
	{HZ_S16, 0, 16, 1},
	{HZ_U16, 1, 16, 1},
	{HZ_S32, 0, 32, 1},
	{HZ_U32, 1, 32, 1},
	{HZ_S64, 0, 64, 1},
	{HZ_U64, 1, 64, 1},
	{HZ_S4X2, 0, 4, 2},	/* the earlier in the low half, in both */
	{HZ_E4M3, 10, 8, 1},	/* kDLFloat8_e4m3fn */
	{HZ_E5M2, 12, 8, 1},	/* kDLFloat8_e5m2 */
	{HZ_E8M0, 14, 8, 1},	/* kDLFloat8_e8m0fnu */
	{HZ_E2M1X2, 17, 4, 2},	/* kDLFloat4_e2m1fn, as PyTorch's float4_e2m1fn_x2 */
	{HZ_U4X2, 1, 4, 2},
	{HZ_S2X4, 0, 2, 4},
	{HZ_U2X4, 1, 2, 4}
};

/*
 * Makes a view of what DLPack describes: *t views the memory of *d. Strides that are NULL mean
 * contiguous. kDLCPU and kDLCUDAHost become HZ_CPU, kDLCUDA and kDLCUDAManaged HZ_CUDA + device_id.
 * *t is untouched unless HZ_OK is returned. Errors: HZ_EINVAL, HZ_EDTYPE, HZ_ESHAPE, HZ_EDEVICE.
 */
static inline int hz_from_dlpack(hz_tensor *t, const DLTensor *d)
{
	const size_t dtypes = sizeof(hz_dlpack_dtypes) / sizeof(hz_dlpack_dtypes[0]);
	size_t i = 0;
	int32_t device;
	hz_tensor view;

	if (!t || !d || (d->ndim > 0 && !d->shape))
		return HZ_EINVAL;
	while (i < dtypes && (hz_dlpack_dtypes[i].code != d->dtype.code ||
			      hz_dlpack_dtypes[i].bits != d->dtype.bits ||
			      hz_dlpack_dtypes[i].lanes != d->dtype.lanes))
		i++;
	if (i == dtypes)
		return HZ_EDTYPE;
	if (d->ndim < 0 || d->ndim > HZ_MAXDIM)
		return HZ_ESHAPE;
	switch ((int)d->device.device_type) {
	case 1:		/* kDLCPU */
	case 3:		/* kDLCUDAHost */
		device = HZ_CPU;
		break;
	case 2:		/* kDLCUDA */
	case 13:	/* kDLCUDAManaged */
		if (d->device.device_id < 0 || d->device.device_id > INT32_MAX - HZ_CUDA)
			return HZ_EDEVICE;
		device = HZ_CUDA + d->device.device_id;
		break;
	default:
		return HZ_EDEVICE;
	}
	view = hz_tensor_nd(d->data ? (char *)d->data + d->byte_offset : NULL,
			    hz_dlpack_dtypes[i].dtype, device, d->ndim, d->shape);
	if (hz_tensor_count(&view) < 0)
		return HZ_ESHAPE;
	if (d->strides) {
		int32_t j;

		for (j = 0; j < d->ndim; j++)
			view.stride[j] = d->strides[j];
	}
	*t = view;
	return HZ_OK;
}

/*
 * Describes a view as DLPack does: *d has the memory of *t. Its shape and strides point into *t,
 * which has to live as long as *d. byte_offset is 0, and data is aligned as t->data is. *d is
 * untouched unless HZ_OK is returned. Errors: HZ_EINVAL, HZ_EDTYPE, HZ_ESHAPE, HZ_EDEVICE.
 */
static inline int hz_to_dlpack(DLTensor *d, hz_tensor *t)
{
	const size_t dtypes = sizeof(hz_dlpack_dtypes) / sizeof(hz_dlpack_dtypes[0]);
	size_t i = 0;

	if (!d || !t)
		return HZ_EINVAL;
	while (i < dtypes && hz_dlpack_dtypes[i].dtype != t->dtype)
		i++;
	if (i == dtypes)
		return HZ_EDTYPE;
	if (hz_tensor_count(t) < 0)
		return HZ_ESHAPE;
	if (t->device < HZ_CPU)
		return HZ_EDEVICE;
	d->data = t->data;
	/* 1 is kDLCPU, 2 kDLCUDA. */
	d->device.device_type = t->device == HZ_CPU ? (DLDeviceType)1 : (DLDeviceType)2;
	d->device.device_id = t->device == HZ_CPU ? 0 : t->device - HZ_CUDA;
	d->ndim = t->ndim;
	d->dtype.code = hz_dlpack_dtypes[i].code;
	d->dtype.bits = hz_dlpack_dtypes[i].bits;
	d->dtype.lanes = hz_dlpack_dtypes[i].lanes;
	d->shape = t->shape;
	d->strides = t->stride;
	d->byte_offset = 0;
	return HZ_OK;
}

#endif
