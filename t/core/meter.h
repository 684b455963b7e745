/*
 * meter.h - an allocator that counts, checks what it is asked to free, and fails
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#ifndef T_METER_H
#define T_METER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

struct meter {
	long calls, live, bad;	/* bad: requests that an allocator need not take */
	long fail_at;		/* the call that fails; 0: none */
	bool ever, failed;	/* ever: all later calls fail, too */
	size_t bytes, most;	/* held now, and the most at any time */
};

struct meter_block {
	size_t bytes;
	char *base;
	unsigned magic;
};

/* hz_allocator.alloc; user is the struct meter. */
static inline void *meter_alloc(void *user, size_t bytes, size_t align)
{
	struct meter *m = user;
	struct meter_block b = {.bytes = bytes, .magic = 0x600d};
	char *p;

	m->calls++;
	m->bad += bytes == 0 || align == 0 || (align & (align - 1)) || align < sizeof(void *);
	if (m->fail_at && (m->calls == m->fail_at || (m->ever && m->calls > m->fail_at))) {
		m->failed = true;
		return NULL;
	}
	b.base = malloc(bytes + 2 * align + sizeof(b));
	if (!b.base)
		return NULL;
	p = b.base + sizeof(b);
	p += align - (uintptr_t)p % align;
	memcpy(p - sizeof(b), &b, sizeof(b));
	memset(p, 0xee, bytes);
	m->live++;
	m->bytes += bytes;
	if (m->bytes > m->most)
		m->most = m->bytes;
	return p;
}

/* hz_allocator.free */
static inline void meter_free(void *user, void *p, size_t bytes)
{
	struct meter *m = user;
	struct meter_block b;

	memcpy(&b, (char *)p - sizeof(b), sizeof(b));
	if (b.magic != 0x600d || b.bytes != bytes) {
		m->bad++;
		return;
	}
	b.magic = 0;
	memcpy((char *)p - sizeof(b), &b, sizeof(b));
	m->live--;
	m->bytes -= bytes;
	free(b.base);
}

#endif
