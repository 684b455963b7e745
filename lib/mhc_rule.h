/*
 * mhc_rule.h - the arithmetic of coefficients, for C and CUDA
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#ifndef HZI_MHC_RULE_H
#define HZI_MHC_RULE_H

#include "mhc.h"

#endif
