/*
 * kern.c - the tables of micro-kernels of Walsh-Hadamard transforms
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#include <config.h>

#include "cpu/hadamard/kern.h"

HZI_KERN_TABLES(hadamard, HZI_FILL_VNNI(hadamard))
