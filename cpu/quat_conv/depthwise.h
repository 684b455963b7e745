/*
 * depthwise.h - the routes of convolutions with one channel in each group
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#ifndef HZI_CPU_QUAT_CONV_DEPTHWISE_H
#define HZI_CPU_QUAT_CONV_DEPTHWISE_H

#include "lib/quat_conv/quat_conv.h"

const char *hzi_cpu_quat_conv_depthwise_unsupported(const struct hz_context *ctx, const void *args);
size_t hzi_cpu_quat_conv_depthwise_workspace(const struct hz_context *ctx, const void *args);
int hzi_cpu_quat_conv_depthwise(struct hz_context *ctx, const void *args);

const char *hzi_cpu_quat_conv_wgrad_depthwise_unsupported(const struct hz_context *ctx,
							  const void *args);
size_t hzi_cpu_quat_conv_wgrad_depthwise_workspace(const struct hz_context *ctx, const void *args);
int hzi_cpu_quat_conv_wgrad_depthwise(struct hz_context *ctx, const void *args);

#endif
