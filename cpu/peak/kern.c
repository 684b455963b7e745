/*
 * kern.c - the tables of micro-kernels of `hurwitz bench`
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#include <config.h>

#include "cpu/peak/kern.h"

HZI_KERN_TABLES(peak, HZI_FILL_VNNI(peak) HZI_FILL_AMX(peak))
