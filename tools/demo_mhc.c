/*
 * demo_mhc.c - hurwitz demo of hyper-connections
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#include <config.h>

#include "demo.h"
