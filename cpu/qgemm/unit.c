/*
 * unit.c - the micro-kernels of quantized multiplication, once for each ISA level
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#include <config.h>

#include "cpu/qgemm/kern.h"
#include "cpu/core/elements.inc"
#include "cpu/core/formats.inc"
#include "cpu/core/vec_i16.h"
#include "cpu/core/vec_u8.h"
#include "cpu/qgemm/qgemm.inc"
#ifdef HZ_VNNI
#include "cpu/qgemm/vnni.inc"
#else
#include "cpu/qgemm/small.inc"
#endif
#include "cpu/qgemm/skinny.inc"
#include "cpu/qgemm/group.inc"

void HZI_FILL(qgemm)(void *table)
{
	struct hzi_qgemm_kern *const kern = table;

	kern->rows = QROWS;
	kern->pack_a_bytes = qgemm_pack_a_bytes;
	kern->pack_a_offset = qgemm_pack_a_offset;
	kern->pack_a = qgemm_pack_a;
	kern->pack_b = qgemm_pack_b;
	kern->mul = qgemm_mul;
	kern->epilogue = qgemm_epilogue;
	kern->skinny_pack = skinny_pack;
	kern->skinny = qgemm_skinny;
	kern->group = qgemm_group;
	kern->group_pack = qgemm_group_pack;
#ifdef HZ_VNNI
	kern->rows = BLOCK;
	kern->float_epilogue = kern->flips_x = true;
	kern->pack_a_bytes = vnni_pack_a_bytes;
	kern->pack_a_offset = vnni_pack_a_offset;
	kern->pack_a = vnni_pack_a;
	kern->pack_b = vnni_pack_b;
	kern->mul = vnni_mul;
	prefetch_to_l2 = hzi_cpu_is_amd();
#else
	kern->small = qgemm_small;
#endif
}
