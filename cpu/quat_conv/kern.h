/*
 * kern.h - the micro-kernel of convolutions with one channel in each group
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#ifndef HZI_QUAT_CONV_KERN_H
#define HZI_QUAT_CONV_KERN_H

#include "cpu/core/kern.h"
#include "lib/quat_conv/quat_conv.h"

/*
 * y[p, c] = the sum over taps of w[c, t] x[..., c], or x w if reversed, with a bias and an
 * activation. x: its patches, of the pixels of y; groups are channels, which are contiguous.
 */
struct hzi_quat_depthwise {
	struct hzi_quat_patch_step x;
	struct hzi_quat_array w, y, pre, b;	/* w: strides of channels, taps; pre, b: optional */
	int32_t conj, reversed, activation, pad_;
	double slope;
	float *coef;			/* scratch: hzi_quat_depthwise_floats() */
};

static inline int64_t hzi_quat_depthwise_row(int64_t channels)
{
	return (4 * channels + 15) / 16 * 16;
}

static inline int64_t hzi_quat_depthwise_floats(int64_t taps, int64_t channels)
{
	return (4 * taps + 1) * hzi_quat_depthwise_row(channels);
}

struct hzi_quat_conv_kern {
	/* Pixels begin to end - 1 of y, for f32, f16 or bf16 */
	void (*depthwise)(const struct hzi_quat_depthwise *a, int64_t begin, int64_t end);
};

HZI_KERN(quat_conv)

#endif
