/*
 * kern.c - the tables of micro-kernels of the steps of quaternion layers
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#include <config.h>

#include "cpu/quat_layer/kern.h"

HZI_KERN_TABLES(quat_layer, HZI_FILL_VNNI(quat_layer))
