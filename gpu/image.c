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

#include "cuda.h"

#if HZ_HAVE_CUDA

#define HIDDEN __attribute__((visibility("hidden")))
#define HZ_FAMILY(name, NAME) \
	extern const unsigned char hzi_image_##name[] HIDDEN, hzi_image_##name##_end[] HIDDEN; \
	__asm__(".pushsection .rodata,\"a\"\n" \
		".balign 64\n" \
		".globl hzi_image_" #name "\n" \
		".hidden hzi_image_" #name "\n" \
		"hzi_image_" #name ":\n" \
		".incbin \"gpu/" #name ".fatbin\"\n" \
		".globl hzi_image_" #name "_end\n" \
		".hidden hzi_image_" #name "_end\n" \
		"hzi_image_" #name "_end:\n" \
		".byte 0\n" \
		".popsection\n");
#include "families.def"
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
#include "hadamard.kernels.def"
END
KERNELS(hadamard_fast)
#include "hadamard_fast.kernels.def"
END
KERNELS(hadamard_base)
#include "hadamard_base.kernels.def"
END
KERNELS(hadamard_base_mma)
#include "hadamard_base_mma.kernels.def"
END
KERNELS(hadamard_base_codes)
#include "hadamard_base_codes.kernels.def"
END
KERNELS(hadamard_base_values)
#include "hadamard_base_values.kernels.def"
END
KERNELS(hadamard_columns)
#include "hadamard_columns.kernels.def"
END
KERNELS(hadamard_quantize)
#include "hadamard_quantize.kernels.def"
END
KERNELS(hadamard_dequantize)
#include "hadamard_dequantize.kernels.def"
END
KERNELS(hadamard_static)
#include "hadamard_static.kernels.def"
END
KERNELS(qgemm)
#include "qgemm.kernels.def"
END
KERNELS(qlinear)
#include "qlinear.kernels.def"
END
KERNELS(qgemm_few)
#include "qgemm_few.kernels.def"
END
KERNELS(qgemm_tma)
#include "qgemm_tma.kernels.def"
END
KERNELS(qgemm_quantize)
#include "qgemm_quantize.kernels.def"
END
KERNELS(quat)
#include "quat.kernels.def"
END
KERNELS(quat_conv)
#include "quat_conv.kernels.def"
END
KERNELS(quat_conv_split)
#include "quat_conv_split.kernels.def"
END
KERNELS(quat_conv_few)
#include "quat_conv_few.kernels.def"
END
KERNELS(quat_conv_groups)
#include "quat_conv_groups.kernels.def"
END
KERNELS(quat_conv_weights)
#include "quat_conv_weights.kernels.def"
END
KERNELS(quat_direct_conv)
#include "quat_direct_conv.kernels.def"
END
KERNELS(quat_direct_split)
#include "quat_direct_split.kernels.def"
END
KERNELS(quat_direct_weights)
#include "quat_direct_weights.kernels.def"
END
KERNELS(quat_tiles)
#include "quat_tiles.kernels.def"
END
KERNELS(quat_dot)
#include "quat_dot.kernels.def"
END
KERNELS(quat_gemv)
#include "quat_gemv.kernels.def"
END
KERNELS(quat_planes)
#include "quat_planes.kernels.def"
END
KERNELS(quat_tma)
#include "quat_tma.kernels.def"
END
KERNELS(quat_simt)
#include "quat_simt.kernels.def"
END
KERNELS(quat_layer)
#include "quat_layer.kernels.def"
END
KERNELS(quat_norm)
#include "quat_norm.kernels.def"
END
KERNELS(quat_pool)
#include "quat_pool.kernels.def"
END
KERNELS(lattice)
#include "lattice.kernels.def"
END
KERNELS(lattice_mapped)
#include "lattice_mapped.kernels.def"
END
KERNELS(lattice_fast)
#include "lattice_fast.kernels.def"
END
KERNELS(lattice_near)
#include "lattice_near.kernels.def"
END
KERNELS(mhc)
#include "mhc.kernels.def"
END
KERNELS(mhc_bwd)
#include "mhc_bwd.kernels.def"
END
KERNELS(mhc_sinkhorn)
#include "mhc_sinkhorn.kernels.def"
END
KERNELS(mhc_pre)
#include "mhc_pre.kernels.def"
END
KERNELS(mhc_pre_few)
#include "mhc_pre_few.kernels.def"
END
KERNELS(mhc_pre_fused)
#include "mhc_pre_fused.kernels.def"
END
KERNELS(mhc_pre_wide)
#include "mhc_pre_wide.kernels.def"
END
KERNELS(mhc_pre_joint)
#include "mhc_pre_joint.kernels.def"
END
KERNELS(mhc_weights)
#include "mhc_weights.kernels.def"
END
KERNELS(mhc_pre_bwd)
#include "mhc_pre_bwd.kernels.def"
END
KERNELS(vlut)
#include "vlut.kernels.def"
END
KERNELS(vlut_fields)
#include "vlut_fields.kernels.def"
END
KERNELS(vlut_half)
#include "vlut_half.kernels.def"
END
KERNELS(vlut_rules)
#include "vlut_rules.kernels.def"
END
KERNELS(vlut_octets)
#include "vlut_octets.kernels.def"
END
KERNELS(vlut_planes)
#include "vlut_planes.kernels.def"
END
KERNELS(vlut_stream)
#include "vlut_stream.kernels.def"
END
KERNELS(vlut_batch)
#include "vlut_batch.kernels.def"
END
KERNELS(vlut_mma)
#include "vlut_mma.kernels.def"
END
KERNELS(vlut_wgmma)
#include "vlut_wgmma.kernels.def"
END
KERNELS(peak)
#include "peak.kernels.def"
END

const struct hzi_image hzi_images[HZI_FAMILIES] = {
#define HZ_FAMILY(name, NAME) \
	[HZI_FAMILY_##NAME] = { \
		.family = #name, \
		.code = CODE(hzi_image_##name), \
		.end = CODE(hzi_image_##name##_end), \
		.kernels = name##_kernels, \
		.kernels_count = sizeof(name##_kernels) / sizeof(*name##_kernels), \
	},
#include "families.def"
#undef HZ_FAMILY
};
