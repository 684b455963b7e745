/*
 * label_wgmma.cu - the kernels of table_wgmma.cuh for packed labels of E8
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#include "gpu/vlut/table_wgmma.cuh"

KERNELS(vlut_label_wgmma_cube, LABELS(HZI_SHAPING_CUBE, 4), false)
KERNELS(vlut_label_wgmma_d8star, LABELS(HZI_SHAPING_D8STAR, 2), false)
KERNELS(vlut_label_wgmma_e8_4, LABELS(HZI_SHAPING_E8, 2), false)
KERNELS(vlut_label_wgmma_e8_16, LABELS(HZI_SHAPING_E8, 4), false)
