/*
 * dev.h - the contexts that a test walks, and guarded memory on their device
 *
 * SPDX-License-Identifier: BSD-2-Clause
 *
 * Without a GPU asked for (HZ_TEST_DEVICE=cuda) the contexts are every instruction-set level of this
 * machine with one thread, and some with 2, 3 and 4; otherwise one on the GPU.
 */
#ifndef DEV_H
#define DEV_H

#include "hurwitz.h"
#include "tap.h"

#define DEV_MAX 16

struct dev {
	hz_context *ctx;
	int device;
	char name[48];
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
	if (d->device == HZ_CPU)
		snprintf(d->name, sizeof(d->name), "%s, %d threads", info.isa_name, info.threads);
	else
		snprintf(d->name, sizeof(d->name), "%s", info.gpu_name);
	diag("context %d: %s", ndevs, d->name);
	ndevs++;
}

static inline void dev_open_all(void)
{
	hz_info info;
	int isa, highest = HZ_ISA_AUTO;

	if (tap_cuda()) {
		dev_open(HZ_CUDA, 0, 0);
		return;
	}
	for (isa = HZ_ISA_C; isa <= HZ_ISA_DOTPROD; isa++) {
		hz_options options = { .device = HZ_CPU, .isa = isa };
		hz_context *ctx;

		if (hz_open(&ctx, &options) != HZ_OK)
			continue;
		hz_device_info(ctx, &info);
		hz_close(ctx);
		if (info.isa != isa)
			continue;		/* not on this machine, or capped by HURWITZ_ISA */
		dev_open(HZ_CPU, isa, 1);
		dev_open(HZ_CPU, isa, 4);
		highest = isa;
	}
	dev_open(HZ_CPU, highest, 2);
	dev_open(HZ_CPU, highest, 3);
}

static inline void dev_close_all(void)
{
	while (ndevs)
		hz_close(devs[--ndevs].ctx);
}

/*
 * Memory on a device with bytes in front and behind that must stay as they are. An image is the
 * whole of it on the host, guards included; data is where element 0 lies, skew bytes behind a
 * multiple of 64.
 */
#define GUARD 256
#define GUARD_BYTE 0xa5

struct area {
	struct dev *dev;
	unsigned char *base;		/* on the device */
	size_t bytes, skew, total;
	void *data;
};

static inline struct area area_new(struct dev *dev, size_t bytes, size_t skew)
{
	struct area a = { .dev = dev, .bytes = bytes, .skew = skew };
	void *p;

	a.total = GUARD + skew + bytes + GUARD;
	if (hz_alloc(dev->ctx, &p, a.total, dev->device) != HZ_OK)
		bail("hz_alloc of %zu bytes: %s", a.total, hz_errmsg(dev->ctx));
	a.base = p;
	a.data = a.base + GUARD + skew;
	return a;
}

static inline void area_free(struct area *a)
{
	hz_free(a->dev->ctx, a->base, a->dev->device);
}

static inline void area_copy(const struct area *a, void *image, int to_device)
{
	hz_tensor host = hz_tensor_1d(image, HZ_U8, HZ_CPU, (int64_t)a->total);
	hz_tensor there = hz_tensor_1d(a->base, HZ_U8, a->dev->device, (int64_t)a->total);

	if (hz_copy(a->dev->ctx, to_device ? &host : &there, to_device ? &there : &host) != HZ_OK ||
	    hz_sync(a->dev->ctx) != HZ_OK)
		bail("hz_copy: %s", hz_errmsg(a->dev->ctx));
}

static inline void area_write(const struct area *a, const void *image)
{
	area_copy(a, (void *)(uintptr_t)image, 1);
}

static inline void area_read(const struct area *a, void *image)
{
	area_copy(a, image, 0);
}

/* A host image all of guard bytes; *data is where element 0 lies. */
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

#endif
