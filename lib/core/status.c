/*
 * status.c - names of statuses, and the version
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#include <config.h>

#include "lib/core/internal.h"

#define STRING_(x) #x
#define STRING(x) STRING_(x)

const char *hz_strerror(int status)
{
	static const char *const text[] = {
		[-HZ_OK] = "success",
		[-HZ_EINVAL] = "invalid argument",
		[-HZ_EDTYPE] = "wrong dtype",
		[-HZ_ESHAPE] = "wrong shape",
		[-HZ_ESTRIDE] = "wrong strides",
		[-HZ_EALIAS] = "operands overlap",
		[-HZ_EDEVICE] = "operand on another device",
		[-HZ_ENODEV] = "no such device",
		[-HZ_ENOMEM] = "out of memory",
		[-HZ_EWORKSPACE] = "workspace too small",
		[-HZ_ENOTSUP] = "not supported",
		[-HZ_ECUDA] = "CUDA error",
		[-HZ_EFORK] = "GPU context used after fork",
	};
	const int n = sizeof(text) / sizeof(*text);

	if (status > 0 || status <= -n)
		return "unknown status";
	return text[-status];
}

int hz_version_number(void)
{
	return HZ_VERSION;
}

const char *hz_version(void)
{
	return STRING(HZ_VERSION_MAJOR) "." STRING(HZ_VERSION_MINOR) "." STRING(HZ_VERSION_PATCH);
}
