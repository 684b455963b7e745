/*
 * isa.h - the ISA levels that a test can run
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#ifndef ISA_H
#define ISA_H

#include "hurwitz.h"

/*
 * The lowest level above `isa` that this build and machine have and HURWITZ_ISA allows; HZ_ISA_AUTO
 * if there is none:
 *
 *	for (int isa = HZ_ISA_AUTO; (isa = isa_above(isa)) != HZ_ISA_AUTO;)
 */
static inline int isa_above(int isa)
{
	while (++isa <= HZ_ISA_DOTPROD) {
		const hz_options o = {.device = HZ_CPU, .isa = isa};
		hz_context *ctx;
		hz_info info;

		if (hz_open(&ctx, &o) != HZ_OK)
			continue;
		hz_device_info(ctx, &info);
		hz_close(ctx);
		if (info.isa == isa)
			return isa;
	}
	return HZ_ISA_AUTO;
}

#endif
