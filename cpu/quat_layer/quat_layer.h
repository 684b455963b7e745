/*
 * quat_layer.h - the steps of quaternion layers on the CPU, also for convolutions
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#ifndef HZI_CPU_QUAT_LAYER_H
#define HZI_CPU_QUAT_LAYER_H

#include "cpu/quat_layer/kern.h"

/* The argument that the threads of a step get */
struct hzi_quat_job {
	const struct hzi_quat_layer_kern *kern;
	const void *args;
};

#endif
