/*
 * kern.c - the tables of micro-kernels of linear layers with quantized weights
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#include <config.h>

#include "cpu/linear/kern.h"

HZI_KERN_TABLES(linear)
