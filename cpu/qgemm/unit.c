/*
 * unit.c - the micro-kernels of quantized multiplication, once for each ISA level
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#include <config.h>

#include "cpu/qgemm/kern.h"
#include "cpu/core/elements.inc"
#include "cpu/qgemm/qgemm.inc"
#ifdef HZ_VNNI
#include "cpu/qgemm/vnni.inc"
#endif

void HZI_FILL(qgemm)(void *table)
{
	struct hzi_qgemm_kern *const kern = table;

	kern->rows = 1;
	kern->pack_a_bytes = qpack_a_bytes;
	kern->pack_a_less = qpack_a_less;
	kern->pack_a = qpack_a;
	kern->pack_b = qpack_b;
	kern->mul = qmul;
	kern->out = qout;
#ifdef HZ_VNNI
	kern->rows = BLOCK;
	kern->floats = true;
	kern->pack_a_bytes = vnni_pack_a_bytes;
	kern->pack_a_less = vnni_pack_a_less;
	kern->pack_a = vnni_pack_a;
	kern->pack_b = vnni_pack_b;
	kern->mul = vnni_mul;
#endif
}
