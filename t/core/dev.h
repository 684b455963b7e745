/*
 * dev.h - the contexts that a test walks, guarded memory on their device, random operands
 *
 * SPDX-License-Identifier: BSD-2-Clause
 *
 * The contexts are every ISA level of this machine with 1 and 4 threads, and the highest level also
 * with 2 and 3; in quick runs every level with 1 or 4 threads, in turn, and the highest with 3, too.
 * With HZ_TEST_DEVICE=cuda they are one per GPU instead. dev_open_routes() adds one for each route of
 * an operation.
 */
#ifndef DEV_H
#define DEV_H

#include "hurwitz.h"
#include "lib/core/route.h"
#include "t/core/isa.h"
#include "t/core/record.h"
#include "t/core/ref.h"
#include "t/core/tap.h"

#define DEV_MAX 64

struct dev {
	hz_context *ctx;
	int device, isa;
	int again;		/* another number of threads for a level that is there already */
	char name[96];
};

static struct dev devs[DEV_MAX];
static int ndevs;

static inline void dev_open(int device, int isa, int threads)
{
	hz_options options = { .device = device, .isa = isa, .threads = threads };
	struct dev *d = &devs[ndevs];
	hz_info info;

	if (ndevs == DEV_MAX)
		bail("more than %d contexts", DEV_MAX);
	if (hz_open(&d->ctx, &options) != HZ_OK)
		bail("hz_open: %s", hz_open_errmsg());
	hz_device_info(d->ctx, &info);
	d->device = hz_device(d->ctx);
	d->isa = info.isa;
	d->again = 0;
	for (int i = 0; i < ndevs; i++)
		d->again |= d->device == HZ_CPU && devs[i].isa == d->isa;
	if (d->device == HZ_CPU)
		snprintf(d->name, sizeof(d->name), "%s, %d threads", info.isa_name, info.threads);
	else
		snprintf(d->name, sizeof(d->name), "%s %d", info.gpu_name, device - HZ_CUDA);
	diag("context %d: %s", ndevs, d->name);
	ndevs++;
}

static inline void dev_open_all(void)
{
	int highest = HZ_ISA_AUTO;

	if (tap_cuda()) {
		int i, gpus = 1;
		hz_info info;

		for (i = 0; i < gpus; i++) {
			dev_open(HZ_CUDA + i, 0, 0);
			hz_device_info(devs[i].ctx, &info);
			gpus = info.cuda_devices;
		}
		return;
	}
	for (int isa = HZ_ISA_AUTO; (isa = isa_above(isa)) != HZ_ISA_AUTO;) {
		if (tap_quick()) {
			dev_open(HZ_CPU, isa, ndevs % 2 ? 4 : 1);
		} else {
			dev_open(HZ_CPU, isa, 1);
			dev_open(HZ_CPU, isa, 4);
		}
		highest = isa;
	}
	if (!tap_quick())
		dev_open(HZ_CPU, highest, 2);
	dev_open(HZ_CPU, highest, 3);
}

/*
 * Opens a context for each route of an operation. The context takes that route wherever it supports
 * a call, and any other route elsewhere: a route is tested on all input that it supports, not only
 * where it wins.
 */
static inline void dev_open_routes(enum hzi_op op)
{
	const int backend = tap_cuda() ? HZI_CUDA : HZI_CPU;
	const struct hzi_op_routes *const r = hzi_routes_of(op, backend);

	for (int i = 0; r && r->count > 1 && i < r->count; i++) {
		struct dev *const d = &devs[ndevs];
		size_t n;

		dev_open(backend == HZI_CUDA ? HZ_CUDA : HZ_CPU, HZ_ISA_AUTO, 2);
		d->ctx->forced[op] = &r->route[i];
		d->ctx->any_forced = d->ctx->prefer_forced = true;
		d->again = 0;
		n = strlen(d->name);
		snprintf(d->name + n, sizeof(d->name) - n, ", route %s", r->route[i].name);
		diag("context %d: %s", ndevs - 1, d->name);
	}
}

static inline void dev_close_all(void)
{
	while (ndevs)
		hz_close(devs[--ndevs].ctx);
}

/*
 * Memory on a device with guard bytes before and after it, which must not change. An image is a
 * copy of all of it on the host, guards included. data is the address of element 0, skew bytes
 * beyond a multiple of 64.
 */
#define GUARD 256
#define GUARD_BYTE 0xa5

struct area {
	struct dev *dev;
	unsigned char *base;		/* in device memory */
	size_t bytes, skew, total;
	void *data;
};

static inline void area_copy(const struct area *a, void *image, int to_device)
{
	hz_tensor host = hz_tensor_1d(image, HZ_U8, HZ_CPU, (int64_t)a->total);
	hz_tensor there = hz_tensor_1d(a->base, HZ_U8, a->dev->device, (int64_t)a->total);

	if (hz_copy(a->dev->ctx, to_device ? &host : &there, to_device ? &there : &host) != HZ_OK ||
	    hz_sync(a->dev->ctx) != HZ_OK)
		bail("hz_copy: %s", hz_errmsg(a->dev->ctx));
}

/* Fills all of it with guard bytes, so that bytes read back have been written by the call. */
static inline void area_fill(const struct area *a)
{
	unsigned char *image = malloc(a->total);

	if (!image)
		bail("no memory for %zu bytes", a->total);
	memset(image, GUARD_BYTE, a->total);
	area_copy(a, image, 1);
	free(image);
}

static inline struct area area_new(struct dev *dev, size_t bytes, size_t skew)
{
	struct area a = { .dev = dev, .bytes = bytes, .skew = skew };
	void *p;

	a.total = GUARD + skew + bytes + GUARD;
	if (hz_alloc(dev->ctx, &p, a.total, dev->device) != HZ_OK)
		bail("hz_alloc of %zu bytes: %s", a.total, hz_errmsg(dev->ctx));
	a.base = p;
	a.data = a.base + GUARD + skew;
	area_fill(&a);
	return a;
}

static inline void area_free(struct area *a)
{
	hz_free(a->dev->ctx, a->base, a->dev->device);
}

static inline void area_write(const struct area *a, const void *image)
{
	area_copy(a, (void *)(uintptr_t)image, 1);
}

static inline void area_read(const struct area *a, void *image)
{
	area_copy(a, image, 0);
}

/* A host image filled with guard bytes; *data: the address of element 0 */
static inline unsigned char *image_new(size_t bytes, size_t skew, void *data)
{
	size_t total = GUARD + skew + bytes + GUARD;
	unsigned char *image = malloc(total);

	if (!image)
		bail("no memory for %zu bytes", total);
	memset(image, GUARD_BYTE, total);
	*(void **)data = image + GUARD + skew;
	return image;
}

/* A copy of a diagonal on the device; the caller frees *area if it has a device. */
static inline hz_tensor to_device(struct dev *dev, const hz_tensor *t, struct area *area)
{
	size_t bytes = (size_t)hz_tensor_bytes(t);
	hz_tensor there = *t;
	unsigned char *image;
	void *data;

	*area = area_new(dev, bytes, 0);
	image = image_new(bytes, 0, &data);
	memcpy(data, t->data, bytes);
	area_write(area, image);
	free(image);
	there.data = area->data;
	there.device = dev->device;
	return there;
}

/* ---- Operands -------------------------------------------------------------------------------- */

static const int floats[] = { HZ_F32, HZ_F16, HZ_BF16 };

/* Offsets, in elements, of the lowest element and of one past the highest */
static inline void reach(int ndim, const int64_t *shape, const int64_t *stride, int64_t *low,
			 int64_t *high)
{
	int d;

	*low = *high = 0;
	for (d = 0; d < ndim; d++)
		*(stride[d] < 0 ? low : high) += stride[d] * (shape[d] - 1);
	++*high;
}

/* Strides of a contiguous array with `pad` elements after each row */
static inline void lay_out(int ndim, const int64_t *shape, int64_t pad, int64_t *stride)
{
	int64_t step = 1;
	int d;

	for (d = ndim - 1; d >= 0; d--) {
		stride[d] = step;
		step = step * shape[d] + (d == ndim - 1 ? pad : 0);
	}
}

/* A random diagonal of n or block elements; the caller frees *memory. */
static inline hz_tensor random_diag(uint64_t *rnd, int64_t n, int64_t block, void **memory)
{
	static const int kinds[] = { HZ_U8, HZ_F32, HZ_F16, HZ_BF16 };
	int dtype = kinds[rnd_below(rnd, 4)];
	int64_t count = rnd_below(rnd, 2) ? n : block, i;

	*memory = calloc((size_t)count + 1, 4);
	if (dtype == HZ_U8)
		hz_hadamard_signs(*memory, count, rnd_u64(rnd));
	for (i = 0; dtype != HZ_U8 && i < count; i++)
		ref_put(dtype, *memory, i, 1 + rnd_uniform(rnd) / 2);
	return hz_tensor_1d(*memory, dtype, HZ_CPU, dtype == HZ_U8 ? (count + 7) / 8 : count);
}

/* The diagonals of a case */
struct diags {
	hz_tensor pre, post;
	void *memory[2];
};

/* pre and post, each in a third of the cases */
static inline void random_diags(uint64_t *rnd, hz_hadamard_opts *o, int64_t n, int64_t block,
				struct diags *d)
{
	memset(d, 0, sizeof(*d));
	if (rnd_below(rnd, 3) == 0) {
		d->pre = random_diag(rnd, n, block, &d->memory[0]);
		o->pre = &d->pre;
	}
	if (rnd_below(rnd, 3) == 0) {
		d->post = random_diag(rnd, n, block, &d->memory[1]);
		o->post = &d->post;
	}
}

static inline void free_diags(struct diags *d)
{
	free(d->memory[0]);
	free(d->memory[1]);
}

/* n elements along one axis; random sizes of the others, of at most `most` elements in all */
static inline void random_sizes(uint64_t *rnd, int ndim, int axis, int64_t n, int64_t most,
				int64_t *shape)
{
	int d;

	most /= n;
	for (d = 0; d < ndim; d++) {
		if (d == axis) {
			shape[d] = n;
			continue;
		}
		shape[d] = 1 + rnd_below(rnd, most < 1 ? 1 : most > 40 ? 40 : most);
		most /= shape[d];
	}
}

/* Prints the options of a case that failed. */
static inline void describe_opts(const hz_hadamard_opts *o)
{
	diag("axis %d block %lld plan %d max %lld min %lld base %d order %d flags %u factor %g "
	     "round %d pre %s post %s",
	     o->axis, (long long)o->block, o->plan, (long long)o->max_block,
	     (long long)o->min_block, o->base, o->order, o->flags, o->factor, o->round_to,
	     o->pre ? hz_dtype_name(o->pre->dtype) : "no",
	     o->post ? hz_dtype_name(o->post->dtype) : "no");
}

/* A random length that the plans support, and its options; short ones are more frequent. */
static inline int64_t random_block(uint64_t *rnd, hz_hadamard_opts *o)
{
	static const int64_t composite[] = { 48, 80, 96, 112, 160, 192, 224, 320, 336, 1040 };
	static const struct {
		int base, order;
	} bases[] = {
		{ HZ_BASE_AUTO, 12 }, { HZ_BASE_AUTO, 20 }, { HZ_BASE_AUTO, 28 },
		{ HZ_BASE_AUTO, 36 }, { HZ_BASE_AUTO, 44 }, { HZ_BASE_AUTO, 108 },
		{ HZ_BASE_AUTO, 172 }, { HZ_BASE_AUTO, 156 }, { HZ_BASE_PALEY1, 12 },
		{ HZ_BASE_PALEY1, 20 }, { HZ_BASE_PALEY1, 252 }, { HZ_BASE_PALEY2, 24 },
		{ HZ_BASE_WILLIAMSON, 20 }, { HZ_BASE_DAO, 12 }, { HZ_BASE_DAO, 20 },
		{ HZ_BASE_DAO, 28 }, { HZ_BASE_DAO, 40 }, { HZ_BASE_QUIP, 12 },
		{ HZ_BASE_QUIP, 28 }, { HZ_BASE_QUIP, 52 }, { HZ_BASE_QUIP, 116 },
		{ HZ_BASE_QUIP, 140 },
	};
	int64_t pick;

	switch (rnd_below(rnd, 4)) {
	case 0:
		o->plan = rnd_below(rnd, 2) ? HZ_PLAN_AUTO : HZ_PLAN_SYLVESTER;
		return INT64_C(1) << rnd_below(rnd, 11);
	case 1:
		o->plan = rnd_below(rnd, 2) ? HZ_PLAN_AUTO : HZ_PLAN_GREEDY;
		pick = rnd_below(rnd, 12);
		if (pick < 10)
			return composite[pick];
		o->max_block = rnd_below(rnd, 2) ? INT64_C(1) << rnd_below(rnd, 6) : 0;
		return 1 + rnd_below(rnd, 200);
	case 2:
		o->plan = HZ_PLAN_UNIFORM;
		o->max_block = rnd_below(rnd, 2) ? INT64_C(1) << rnd_below(rnd, 6) : 0;
		return 1 + rnd_below(rnd, 300);
	default:
		o->plan = HZ_PLAN_TRUE;
		pick = rnd_below(rnd, (int64_t)(sizeof(bases) / sizeof(*bases)));
		o->base = bases[pick].base;
		o->order = bases[pick].order;
		return o->order * (INT64_C(1) << rnd_below(rnd, o->order > 100 ? 3 : 6));
	}
}

#endif
