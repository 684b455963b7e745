/*
 * mhc_ref.h - hyper-connections by their definition, in double
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#ifndef MHC_REF_H
#define MHC_REF_H

#endif
