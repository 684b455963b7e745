/*
 * record.h - the workspace of one call
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#ifndef RECORD_H
#define RECORD_H

#include "hurwitz.h"

/* Records a call, and sets *bytes to its workspace if it succeeds; its status */
#define RECORD(ctx, call, bytes) \
	__extension__({ \
		size_t record_bytes_; \
		int record_status_ = hz_record_begin(ctx); \
		if (record_status_ == HZ_OK) { \
			record_status_ = (call); \
			hz_record_end(ctx, &record_bytes_); \
			if (record_status_ == HZ_OK) \
				*(bytes) = record_bytes_; \
		} \
		record_status_; \
	})

#endif
