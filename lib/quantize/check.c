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
	const int32_t low = dtype == HZ_S32 ? INT32_MIN : hzi_format_low(dtype);
	const int32_t high = dtype == HZ_S32 ? INT32_MAX : hzi_format_high(dtype);

	if (zero < low || zero > high)
		return hzi_fail(ctx, HZ_EINVAL, "%s: opts->%s is %d, must be %d to %d for %s", op,
				name, zero, low, high, hz_dtype_name(dtype));
	return HZ_OK;
}
