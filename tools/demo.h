/*
 * demo.h - what the parts of hurwitz demo share
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#ifndef DEMO_H
#define DEMO_H

#include "hurwitz.h"

/* demo_qgemm.c: a classifier of patches of heights, ld elements a row; the exit status. */
int demo_classifier(hz_context *ctx, const float *heights, int64_t rows, int64_t columns,
		    int64_t ld);

/* demo_quat.c: networks trained on the ground's shape, likewise */
int demo_quaternions(hz_context *ctx, const float *heights, int64_t rows, int64_t columns,
		     int64_t ld);

/* demo_lattice.c: the heights at few bits each, likewise */
int demo_lattice(hz_context *ctx, const float *heights, int64_t rows, int64_t columns, int64_t ld);

/* demo_mhc.c: networks of four residual streams trained on the ground's shape, likewise */
int demo_streams(hz_context *ctx, const float *heights, int64_t rows, int64_t columns, int64_t ld);

#endif
