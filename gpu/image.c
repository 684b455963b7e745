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

#define IMAGE(symbol, path) \
	__asm__(".pushsection .rodata,\"a\"\n" \
		".balign 64\n" \
		".globl " symbol "\n" \
		".hidden " symbol "\n" \
		symbol ":\n" \
		".incbin \"" path "\"\n" \
		".globl " symbol "_end\n" \
		".hidden " symbol "_end\n" \
		symbol "_end:\n" \
		".byte 0\n" \
		".popsection\n")

IMAGE("hzi_image_hadamard", "gpu/hadamard.fatbin");
IMAGE("hzi_image_hadamard_fast", "gpu/hadamard_fast.fatbin");

extern const unsigned char hzi_image_hadamard[] __attribute__((visibility("hidden")));
extern const unsigned char hzi_image_hadamard_end[] __attribute__((visibility("hidden")));
extern const unsigned char hzi_image_hadamard_fast[] __attribute__((visibility("hidden")));
extern const unsigned char hzi_image_hadamard_fast_end[] __attribute__((visibility("hidden")));

#else

#define hzi_image_hadamard NULL
#define hzi_image_hadamard_end NULL
#define hzi_image_hadamard_fast NULL
#define hzi_image_hadamard_fast_end NULL

#endif

static const char *const hadamard_kernels[] = {
#define HZ_KERNEL(name) #name,
#include "hadamard.kernels.def"
#undef HZ_KERNEL
};

static const char *const hadamard_fast_kernels[] = {
#define HZ_KERNEL(name) #name,
#include "hadamard_fast.kernels.def"
#undef HZ_KERNEL
};

const struct hzi_image hzi_images[HZI_FAMILIES] = {
	[HZI_FAMILY_HADAMARD] = {
		.family = "hadamard",
		.code = hzi_image_hadamard,
		.end = hzi_image_hadamard_end,
		.kernels = hadamard_kernels,
		.kernels_count = sizeof(hadamard_kernels) / sizeof(*hadamard_kernels),
	},
	[HZI_FAMILY_HADAMARD_FAST] = {
		.family = "hadamard_fast",
		.code = hzi_image_hadamard_fast,
		.end = hzi_image_hadamard_fast_end,
		.kernels = hadamard_fast_kernels,
		.kernels_count = sizeof(hadamard_fast_kernels) / sizeof(*hadamard_fast_kernels),
	},
};
