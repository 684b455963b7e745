/*
 * calls.h - a valid call of every public function with operands, as a table, and its memory
 *
 * SPDX-License-Identifier: BSD-2-Clause
 *
 * Tests that hold for all functions are loops over this table: invalid arguments, failing
 * allocations, graphs, threads. A new function is a row in calls.def.
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
	MAY_MISS = 2,		/* may be NULL, at least if another operand is given */
	RAW = 4,		/* a pointer and a size in bytes instead of a view */
	OBJECT = 8,		/* a quantizer or a packed matrix: present or NULL */
	ANYWHERE = 16,		/* may be in host memory in a GPU context too, in any dtype */
	HOST = 32,		/* in host memory */
	READ = 64,		/* read also while the context records: an object is made of it */
	UNUSED = 128		/* only its presence is checked */
};

struct operand {
	const char *name;	/* as error messages name it */
	unsigned flags;
	unsigned same;		/* bit i: may be exactly operand i */
	int dtype, ndim;
	int64_t shape[HZ_MAXDIM];
};

typedef hz_tensor *const *views;	/* one per operand, NULL if absent */

#define SCENE_GUARD 256
#define PACK_BYTES 294912	/* capacity for a packed matrix */

/* A context, the objects that calls need, and one arena that holds all operands. It contains
 * pointers to itself: do not copy it. */
struct scene {
	hz_context *ctx;
	int device;
	bool record;		/* scene_run() records the call instead of making it */
	int64_t times;		/* operands of call_rows() have that many times the rows, if > 0 */
	size_t bytes;		/* the workspace of the recorded call */
	hz_lattice *lattice, *shaped;
	hz_vlut *vlut, *vlut2, *vlut_shaped;
	hz_linear *layer;
	void *layer_data;		/* its bytes, on the host */
	size_t layer_bytes;
	hz_packed packed, quat_packed, codes_packed, group_packed,
		appended;	/* with data of their own */
	void *packed_data, *quat_packed_data, *codes_data, *group_data, *appended_data;
	unsigned char *arena;	/* in device memory */
	unsigned char *host;	/* as large as the arena, for operands in host memory */
	size_t arena_bytes;
};

struct call {
	const char *name;	/* without hz_ */
	int (*run)(struct scene *s, views t);
	struct operand operand[CALL_OPERANDS];	/* ends at a name of NULL */
};

extern const struct call calls[];
extern const int calls_count;

/* Whether the call writes an operand */
bool call_writes(const struct call *c);

/* The size in calls.def of the first dimension of operands with independent rows; 0: there is none */
int64_t call_rows(const struct call *c);

/*
 * Loads the driver from that file beside the program; contexts opened afterwards use it. Ends the
 * program if the file is missing and this build has device code. Without device code it returns
 * NULL: a static program cannot load a driver.
 */
struct fakecuda;
const struct fakecuda *scene_driver(const char *file);

/*
 * Opens a context with these options and what the calls need; ends the program on failure.
 * bytes: of the arena
 */
void scene_open_sized(struct scene *s, const hz_options *options, size_t bytes);
/* The same with an arena for the calls as in calls.def */
void scene_open(struct scene *s, const hz_options *options);
void scene_close(struct scene *s);

/* Views of the operands of a call. Each view is in the middle of a slot of four times its size,
 * with guards around the slot. *used: bytes of the arena in use. */
int scene_views(const struct scene *s, const struct call *c, hz_tensor *t, size_t *used);

/* Bytes of the arena that the call needs */
size_t scene_bytes(const struct scene *s, const struct call *c);

/* Makes the call with these views, or records it if s->record; returns its status. */
int scene_run(struct scene *s, const struct call *c, views t);

/* The same with the views of scene_views() */
int scene_call(struct scene *s, const struct call *c);

/* Random contents of the arena for a call: the same for the same call and seed */
void scene_image(const struct scene *s, const struct call *c, uint64_t seed, unsigned char *image);

/* Copies the first `used` bytes of the arena from or to the host, and waits. */
void scene_write(const struct scene *s, const unsigned char *image, size_t used);
/* Makes the views and their image from tap_seed(), and writes it; returns the bytes used. */
size_t scene_fill(struct scene *s, const struct call *c, unsigned char *image);
void scene_read(const struct scene *s, unsigned char *image, size_t used);

#endif
