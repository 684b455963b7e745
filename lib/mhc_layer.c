/*
 * mhc_layer.c - layers of hyper-connections
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#include <config.h>

#include "hz.h"
#include "mhc.h"
