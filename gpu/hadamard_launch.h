/*
 * hadamard_launch.h - the launchers that gpu/hadamard.c tries before its own
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#ifndef HZI_HADAMARD_LAUNCH_H
#define HZI_HADAMARD_LAUNCH_H

#include "lib/hadamard.h"

/* Rows of one dtype back to back, at the rate of memory; *done says whether it was launched. */
int hzi_hadamard_fast(struct hz_context *ctx, const struct hzi_hadamard_args *a, bool *done);

#endif
