/*
 * calls.h - a valid call of every public function that takes operands, as a table; its memory
 *
 * SPDX-License-Identifier: BSD-2-Clause
 *
 * What goes wrong with all functions alike is tried on all of them by one loop over this table: bad
 * arguments, memory that cannot be had, graphs, threads. A new function is a row in calls.def.
 */
#ifndef CALLS_H
#define CALLS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "hurwitz.h"

#define CALL_OPERANDS 20

enum {
	WRITES = 1,		/* the call writes it, or reads and writes it */
	MAY_MISS = 2,		/* NULL is allowed, at least where something else is there */
	RAW = 4,		/* a pointer and a number of bytes instead of a view */
	OBJECT = 8,		/* a quantizer, a packed matrix: there or NULL */
	ANYWHERE = 16,		/* may also lie on the host of a GPU context, in any dtype */
	HOST = 32,		/* lies on the host */
	NOT_ASKED = 64,		/* is no operand of the question for the workspace */
	UNUSED = 128		/* is not looked at but for whether it is there */
};

struct operand {
	const char *name;	/* as sentences say it */
	unsigned flags;
	unsigned same;		/* bit i: may be operand i exactly */
	int dtype, ndim;
	int64_t shape[HZ_MAXDIM];
};

typedef const hz_tensor *const *views;	/* of the operands, NULL for those that are left out */

#define SCENE_GUARD 256
#define PACK_BYTES 294912	/* that a packed matrix may take */

/* A context, objects for the calls, and one stretch of memory in which all operands lie. It
 * points into itself: it is opened where it stays. */
struct scene {
	hz_context *ctx;
	int device;
	bool ask;		/* call what says the workspace instead */
	size_t bytes, *bytes_at;	/* what it said; where it is to say it */
	hz_lattice *lattice;
	hz_vlut *vlut, *vlut2;
	hz_packed packed, quat_packed;	/* in memory of their own */
	void *packed_data, *quat_packed_data, *codes_data;
	unsigned char *arena;	/* on the device */
	unsigned char *host;	/* of as many bytes, for operands that lie on the host */
	size_t arena_bytes;
};

struct call {
	const char *name;	/* without hz_ */
	const char *query;	/* of the function that says its workspace; NULL: none */
	int (*run)(struct scene *s, views t);
	struct operand operand[CALL_OPERANDS];	/* ends with a name of NULL */
};

extern const struct call calls[];
extern const int calls_count;

/* Whether a call has an operand that it writes */
bool call_writes(const struct call *c);

/*
 * The driver in that file beside the program, which contexts use from then on. Ends the program if
 * it is not there and this build has device code; without, NULL: a static program cannot load it.
 */
struct fakecuda;
const struct fakecuda *scene_driver(const char *file);

/* Opens a context with these options and what the calls need; ends the program if that fails. */
void scene_open(struct scene *s, const hz_options *options);
void scene_close(struct scene *s);

/*
 * Views of the operands of a call, each in the middle of a room that holds four times as much, with
 * guards around it. *used: the bytes of the arena that they lie in.
 */
int scene_views(const struct scene *s, const struct call *c, hz_tensor *t, size_t *used);

/* The call of these views; a library status. */
int scene_call(struct scene *s, const struct call *c);

/* An image of that stretch for random operands, the same for a call and a seed. */
void scene_image(const struct scene *s, const struct call *c, uint64_t seed, unsigned char *image);

/* The first `used` bytes of the arena; what is read or written has come through on return. */
void scene_write(const struct scene *s, const unsigned char *image, size_t used);
/* Views, their image of tap_seed(), and that written; returns how many bytes are used. */
size_t scene_fill(struct scene *s, const struct call *c, unsigned char *image);
void scene_read(const struct scene *s, unsigned char *image, size_t used);

#endif
