/*
 * bench_mhc.c - hurwitz bench of hyper-connections
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#include <config.h>

#include "bench.h"

int bench_mhc(struct bench *b, void (*head)(struct bench *b))
{
	(void)b;
	(void)head;
	return 0;
}
