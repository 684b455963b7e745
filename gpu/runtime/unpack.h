/*
 * unpack.h - device code that tools/pack-fatbin has compressed
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#ifndef HZI_UNPACK_H
#define HZI_UNPACK_H

#include "gpu/runtime/cuda.h"

/*
 * Unpacks the target of an image that runs on compute capability sm / 10, sm % 10: *code becomes a
 * cubin, or PTX with a zero byte behind it, and *bytes what hzi_mfree() has to be told. A fatbin is
 * left as it is: *code is the image and *bytes 0. `what` names the image in messages.
 *
 * Errors: HZ_ENOTSUP for an image without a target for this GPU, or a damaged one; HZ_ENOMEM.
 */
int hzi_cuda_unpack(struct hz_context *ctx, const char *op, const char *what,
		    const struct hzi_image *image, int sm, void **code, size_t *bytes);

#endif
