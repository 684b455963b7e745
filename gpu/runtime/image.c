/*
 * image.c - device code, embedded as data
 *
 * SPDX-License-Identifier: BSD-2-Clause
 *
 * .incbin takes a fatbin of many megabytes in no time, where a C array would cost the compiler
 * minutes. Paths are relative to the build directory. The C objects at the end are what link-time
 * optimisation finds: it does not look into top-level assembly.
 */
#include <config.h>

#include "gpu/runtime/cuda.h"

#if HZ_HAVE_CUDA

#define HIDDEN __attribute__((visibility("hidden")))
#define HZ_FAMILY(name, NAME, path) \
	extern const unsigned char hzi_image_##name[] HIDDEN, hzi_image_##name##_end[] HIDDEN; \
	__asm__(".pushsection .rodata,\"a\"\n" \
		".balign 64\n" \
		".globl hzi_image_" #name "\n" \
		".hidden hzi_image_" #name "\n" \
		"hzi_image_" #name ":\n" \
		".incbin \"gpu/" #path ".fatbin\"\n" \
		".globl hzi_image_" #name "_end\n" \
		".hidden hzi_image_" #name "_end\n" \
		"hzi_image_" #name "_end:\n" \
		".byte 0\n" \
		".popsection\n");
#include "gpu/runtime/images.def"
#undef HZ_FAMILY
#define CODE(symbol) symbol

#else
#define CODE(symbol) NULL
#endif

/* The names of the kernels: KERNELS(family) before its list, END behind it. */
#define HZ_KERNEL(name) #name,
#define KERNELS(family) static const char *const family##_kernels[] = {
#define END };

KERNELS(hadamard)
#include "gpu/hadamard/rows.kernels.def"
END
KERNELS(hadamard_fast)
#include "gpu/hadamard/contiguous.kernels.def"
END
KERNELS(hadamard_base)
#include "gpu/hadamard/base_f32.kernels.def"
END
KERNELS(hadamard_base_mma)
#include "gpu/hadamard/base_mma.kernels.def"
END
KERNELS(hadamard_base_codes)
#include "gpu/hadamard/base_mma_quantize.kernels.def"
END
KERNELS(hadamard_base_values)
#include "gpu/hadamard/base_mma_dequantize.kernels.def"
END
KERNELS(hadamard_columns)
#include "gpu/hadamard/columns_16bit.kernels.def"
END
KERNELS(hadamard_quantize)
#include "gpu/hadamard/quantize.kernels.def"
END
KERNELS(hadamard_dequantize)
#include "gpu/hadamard/dequantize.kernels.def"
END
KERNELS(hadamard_static)
#include "gpu/hadamard/quantize_static.kernels.def"
END
KERNELS(qgemm)
#include "gpu/qgemm/mma_sync.kernels.def"
END
KERNELS(qlinear)
#include "gpu/qgemm/linear_gemv.kernels.def"
END
KERNELS(qgemm_few)
#include "gpu/qgemm/skinny_splitk.kernels.def"
END
KERNELS(qgemm_tma)
#include "gpu/qgemm/wgmma.kernels.def"
END
KERNELS(qgemm_quantize)
#include "gpu/quantize/quantize.kernels.def"
END
KERNELS(quat)
#include "gpu/quat/elementwise.kernels.def"
END
KERNELS(quat_conv)
#include "gpu/quat_conv/implicit_gemm8.kernels.def"
END
KERNELS(quat_conv_split)
#include "gpu/quat_conv/implicit_gemm8_f32x3.kernels.def"
END
KERNELS(quat_conv_few)
#include "gpu/quat_conv/depthwise.kernels.def"
END
KERNELS(quat_conv_groups)
#include "gpu/quat_conv/grouped.kernels.def"
END
KERNELS(quat_conv_weights)
#include "gpu/quat_conv/wgrad8.kernels.def"
END
KERNELS(quat_direct_conv)
#include "gpu/quat_conv/implicit_gemm16.kernels.def"
END
KERNELS(quat_direct_split)
#include "gpu/quat_conv/wgrad16_f32x2.kernels.def"
END
KERNELS(quat_direct_weights)
#include "gpu/quat_conv/wgrad16.kernels.def"
END
KERNELS(quat_tiles)
#include "gpu/quat/planar.kernels.def"
END
KERNELS(quat_dot)
#include "gpu/quat/reduce.kernels.def"
END
KERNELS(quat_gemv)
#include "gpu/quat_gemm/gemv.kernels.def"
END
KERNELS(quat_planes)
#include "gpu/quat_gemm/pack_planar.kernels.def"
END
KERNELS(quat_tma)
#include "gpu/quat_gemm/wgmma.kernels.def"
END
KERNELS(quat_simt)
#include "gpu/quat_gemm/simt_f32.kernels.def"
END
KERNELS(quat_layer)
#include "gpu/quat_layer/quat_layer.kernels.def"
END
KERNELS(quat_norm)
#include "gpu/quat_layer/batchnorm_contiguous.kernels.def"
END
KERNELS(quat_pool)
#include "gpu/quat_layer/pool.kernels.def"
END
KERNELS(lattice)
#include "gpu/lattice/generic.kernels.def"
END
KERNELS(lattice_mapped)
#include "gpu/lattice/generic_basis.kernels.def"
END
KERNELS(lattice_fast)
#include "gpu/lattice/contiguous_d4_e8.kernels.def"
END
KERNELS(lattice_near)
#include "gpu/lattice/closest_point.kernels.def"
END
KERNELS(mhc)
#include "gpu/mhc/mix.kernels.def"
END
KERNELS(mhc_bwd)
#include "gpu/mhc/mix_bwd.kernels.def"
END
KERNELS(mhc_sinkhorn)
#include "gpu/mhc/sinkhorn.kernels.def"
END
KERNELS(mhc_pre)
#include "gpu/mhc/coef_generic.kernels.def"
END
KERNELS(mhc_pre_few)
#include "gpu/mhc/coef_small_batch.kernels.def"
END
KERNELS(mhc_pre_fused)
#include "gpu/mhc/coef_input_fused.kernels.def"
END
KERNELS(mhc_pre_wide)
#include "gpu/mhc/coef_mma.kernels.def"
END
KERNELS(mhc_pre_joint)
#include "gpu/mhc/coef_bwd_fused.kernels.def"
END
KERNELS(mhc_weights)
#include "gpu/mhc/coef_persistent.kernels.def"
END
KERNELS(mhc_pre_bwd)
#include "gpu/mhc/coef_generic_bwd.kernels.def"
END
KERNELS(vlut)
#include "gpu/vlut/generic.kernels.def"
END
KERNELS(vlut_fields)
#include "gpu/vlut/d4_bitfield.kernels.def"
END
KERNELS(vlut_half)
#include "gpu/vlut/table_f16_skinny.kernels.def"
END
KERNELS(vlut_rules)
#include "gpu/vlut/closest_point_skinny.kernels.def"
END
KERNELS(vlut_octets)
#include "gpu/vlut/e8_bitplane.kernels.def"
END
KERNELS(vlut_planes)
#include "gpu/vlut/d4_bitplane.kernels.def"
END
KERNELS(vlut_stream)
#include "gpu/vlut/d4_f16_skinny.kernels.def"
END
KERNELS(vlut_batch)
#include "gpu/vlut/d4_f16_wgmma.kernels.def"
END
KERNELS(vlut_mma)
#include "gpu/vlut/table_s8_skinny.kernels.def"
END
KERNELS(vlut_wgmma)
#include "gpu/vlut/table_wgmma.kernels.def"
END
KERNELS(peak)
#include "gpu/peak/peak.kernels.def"
END

const struct hzi_image hzi_images[HZI_FAMILIES] = {
#define HZ_FAMILY(name, NAME, path) \
	[HZI_FAMILY_##NAME] = { \
		.family = #name, \
		.code = CODE(hzi_image_##name), \
		.end = CODE(hzi_image_##name##_end), \
		.kernels = name##_kernels, \
		.kernels_count = sizeof(name##_kernels) / sizeof(*name##_kernels), \
	},
#include "gpu/runtime/images.def"
#undef HZ_FAMILY
};
