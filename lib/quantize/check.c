/*
 * check.c - checks of one scale and one zero point, for quantization and quantized products
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#include <config.h>

#include <math.h>

#include "lib/qgemm/qgemm.h"

int hzi_check_scale(struct hz_context *ctx, const char *op, const char *name, double value,
		     float *scale)
{
	*scale = value != 0 ? (float)value : 1;
	if (!(*scale > 0) || !isfinite(*scale))
		return hzi_fail(ctx, HZ_EINVAL,
				"%s: opts->%s is %g, must be positive and finite in f32", op, name,
				value);
	return HZ_OK;
}

int hzi_check_zero(struct hz_context *ctx, const char *op, const char *name, int32_t zero,
		    int dtype)
{
	if (zero < hzi_quant_min(dtype) || zero > hzi_quant_max(dtype))
		return hzi_fail(ctx, HZ_EINVAL, "%s: opts->%s is %d, must be %d to %d for %s", op,
				name, zero, hzi_quant_min(dtype), hzi_quant_max(dtype),
				hz_dtype_name(dtype));
	return HZ_OK;
}
