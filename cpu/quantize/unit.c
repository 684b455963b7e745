/*
 * unit.c - the micro-kernels of quantization and of ranges, once for each ISA level
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#include <config.h>

#include "cpu/quantize/kern.h"
#include "cpu/core/elements.inc"
#include "cpu/core/formats.inc"
#include "cpu/quantize/quantize.inc"
#include "cpu/quantize/formats.inc"

void HZI_FILL(quantize)(void *table)
{
	struct hzi_quantize_kern *const kern = table;

	kern->dequantize = dequantize;
	kern->to_bf16 = to_bf16;
	/* Without vectors of 16-bit lanes these are a lot of code for little. */
	kern->mx = HZ_VEC == HZ_VEC_C ? NULL : mx;
	kern->nv = HZ_VEC == HZ_VEC_C ? NULL : nv;
	/* The others have no use for what VNNI adds to AVX-512. */
	if (HZI_IN_VNNI)
		return;
	kern->quantize = quantize;
	kern->range = range;
	kern->params = params;
	kern->load = load;
	kern->store = store;
#if LANES > 4
	kern->values = values;
#endif
	kern->stream_end = end_of_stream;
	kern->scales = scales;
	kern->encode = encode;
	kern->decode = decode;
}
