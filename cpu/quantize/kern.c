/*
 * kern.c - the tables of micro-kernels of quantization and of ranges
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#include <config.h>

#include "cpu/quantize/kern.h"

HZI_KERN_TABLES(quantize, HZI_FILL_VNNI(quantize))
