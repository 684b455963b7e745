/*
 * contiguous.c - launchers of quantization and dequantization of contiguous arrays
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#include <config.h>

#include "gpu/quantize/launch.h"

/* The distance between the parameters of successive rows, or -1 if it is not constant */
static int64_t qparam_step(const struct hzi_quantize_map *map)
{
	const int64_t step = map->ndim ? map->p_stride[map->ndim - 1] : 0;

	return hzi_quantize_is_contiguous(map, map->p_stride, step) ? step : -1;
}

/* Elements of a vector: 16 bytes of floats and their codes */
static int64_t vector_elements(const struct hzi_codes_args *a)
{
	return a->x_dtype == HZ_F32 ? 4 : 8;
}

const char *hzi_cuda_quantize_contiguous_unsupported(const struct hz_context *ctx, const void *args)
{
	const struct hzi_codes_args *a = args;
	const struct hzi_quantize_map *map = &a->map;
	const int64_t vector = vector_elements(a);

	(void)ctx;
	if (a->rotated || a->format)
		return a->rotated ? "there is a transform" : "not u8 or s8 by given scales";
	if ((uintptr_t)a->x % 16 || (uintptr_t)a->q % (uintptr_t)vector)
		return "floats are not 16-byte aligned, or codes not as many codes";
	if ((map->n > 1 && (map->x_step != 1 || map->q_step != 1)) ||
	    !hzi_quantize_is_contiguous(map, map->x_stride, map->n) ||
	    !hzi_quantize_is_contiguous(map, map->q_stride, map->n))
		return "floats or codes are not contiguous";
	if (hzi_quantize_elements(map) / vector > INT32_MAX)
		return "there are too many elements";
	if (map->params <= 1)
		return NULL;
	if (map->n % vector || map->group % vector)
		return "groups are not of whole pieces of 16 bytes";
	return qparam_step(map) < 0 ? "parameters of rows are not equally spaced" : NULL;
}

int hzi_cuda_quantize_contiguous(struct hz_context *ctx, const void *args)
{
	const struct hzi_codes_args *a = args;
	const struct hzi_quantize_map *map = &a->map;
	const int64_t elements = hzi_quantize_elements(map), vector = vector_elements(a);
	/* Few enough that all SMs have work */
	const int64_t wave = HZI_QUANT_THREADS * hzi_cuda_device(ctx)->sms;
	const int64_t each = a->dequantize ? HZI_DEQUANTIZE_VECTORS :
			     min_of(HZI_QUANTIZE_VECTORS(a->x_dtype),
				    ceil_div(max_of(1, elements / vector), wave));
	struct hzi_quantize_contiguous p = {
		.x = a->dequantize ? a->q : a->x, .y = a->dequantize ? a->x : a->q,
		.scales = a->scales,
		.zeros = a->zeros, .vectors = elements / vector, .elements = elements,
		.is_signed = a->q_dtype == HZ_S8, .scale = a->scale, .zero = a->zero,
		.each = (int32_t)each,
	};
	const struct hzi_launch launch = {
		.grid = {(unsigned)max_of(1, ceil_div(p.vectors, HZI_QUANT_THREADS * each))},
		.block = {HZI_QUANT_THREADS},
	};

	if (map->params > 1) {
		p.row_step = qparam_step(map);
		p.row = hzi_make_fastdiv(map->n / vector);
		p.group = hzi_make_fastdiv(map->group / vector);
	}
	if (a->dequantize)
		return hzi_cuda_launch(ctx, "dequantize",
				       hzi_quantize_kernel(HZI_KERNEL_dequantize_contiguous_f32,
							   a->x_dtype),
				       &launch, &p, sizeof(p));
	return hzi_cuda_launch(ctx, "quantize",
			       hzi_quantize_kernel(HZI_KERNEL_quantize_contiguous_f32, a->x_dtype),
			       &launch, &p, sizeof(p));
}
