/*
 * cuda.c - the CUDA driver, opened at run time: devices, memory, streams, launches
 *
 * SPDX-License-Identifier: BSD-2-Clause
 *
 * A context uses the primary context of the device, which it shares with the CUDA runtime and other
 * libraries of the process: pointers and streams can be exchanged freely. The primary context is
 * never configured, and is current only during a call, so the caller's current context is
 * unchanged.
 *
 * This is one file so that the table of driver functions and the error state stay static.
 */
#include <config.h>

#include <assert.h>
#include <dlfcn.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "gpu/runtime/cuabi.h"
#include "gpu/runtime/cuda.h"
#include "gpu/runtime/unpack.h"

#ifndef HZ_HAVE_CUDA
#define HZ_HAVE_CUDA 0
#endif

#define SM_MIN 80 /* the kernels use mma.sync on 16-bit types and cp.async */
#define SHARED_FREE 49152	/* bytes of dynamic shared memory that need no attribute */
#define CLUSTER_PORTABLE 8	/* blocks per cluster that every GPU with clusters supports */

/* ---- The driver, once per process ------------------------------------------------------------ */

static struct cu_functions cu;

static struct {
	int status;		/* HZ_OK, or why nothing below can be used */
	int version, devices;
	unsigned fork_generation;
	bool takes_packed;	/* images as they are: a stand-in for tests */
	char reason[HZI_ERRMSG_BYTES];
} driver;

static pthread_once_t driver_once = PTHREAD_ONCE_INIT;
static atomic_bool driver_tried;

/* Formats a driver error as "an illegal memory access (CUDA_ERROR_ILLEGAL_ADDRESS)". */
static const char *error_text(CUresult error, char *buffer, size_t size)
{
	const char *name = NULL, *text = NULL;

	if (!cu.GetErrorName || cu.GetErrorName(error, &name) != CUDA_SUCCESS || !name)
		snprintf(buffer, size, "CUDA error %d", error);
	else if (cu.GetErrorString(error, &text) != CUDA_SUCCESS || !text)
		snprintf(buffer, size, "%s", name);
	else
		snprintf(buffer, size, "%s (%s)", text, name);
	return buffer;
}

__attribute__((format(printf, 1, 2))) static void no_driver(const char *format, ...)
{
	va_list ap;

	driver.status = HZ_ENODEV;
	va_start(ap, format);
	vsnprintf(driver.reason, sizeof(driver.reason), format, ap);
	va_end(ap);
}

/*
 * The name of the driver library. HURWITZ_LIBCUDA replaces it, for tests with a stand-in, unless
 * the process runs with raised privileges (see secure_getenv()).
 */
static const char *driver_path(void)
{
#ifdef HAVE_SECURE_GETENV
	const char *path = secure_getenv("HURWITZ_LIBCUDA");

	if (path && *path)
		return path;
#endif
	return "libcuda.so.1";
}

/* memcpy() because ISO C has no conversion from object to function pointers */
static void find_symbol(void *library, const char *name, void *function)
{
	void *symbol = dlsym(library, name);

	memcpy(function, &symbol, sizeof(symbol));
}

static void too_old(void *library, const char *path, const char *missing)
{
	CUresult (*get_version)(int *version) = NULL;

	find_symbol(library, "cuDriverGetVersion", &get_version);
	if (get_version && get_version(&driver.version) == CUDA_SUCCESS)
		no_driver("the NVIDIA driver is too old: it has CUDA %d.%d, must have 12.0 or "
			  "later (no %s)",
			  driver.version / 1000, driver.version % 1000 / 10, missing);
	else
		no_driver("no NVIDIA driver, or a very old one: %s has no %s", path, missing);
}

/* Fills cu. On failure returns false with driver.reason set. */
static bool find_functions(const char *path)
{
	void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
	cu_get_proc_address *get = NULL;
	int (*takes_packed)(void) = NULL;
	void *symbol, *functions[] = {
#define CU_NEED(name, params) &cu.name,
#define CU_MAY(version, name, params) &cu.name,
		CU_FUNCTIONS
#undef CU_NEED
#undef CU_MAY
	};
	static const struct {
		const char *name;
		int version;		/* 0: required */
	} rows[] = {
#define CU_NEED(name, params) {"cu" #name, 0},
#define CU_MAY(version, name, params) {"cu" #name, version},
		CU_FUNCTIONS
#undef CU_NEED
#undef CU_MAY
	};

	if (!library) {
		no_driver("no NVIDIA driver: %s", dlerror());
		return false;
	}
	find_symbol(library, "cuGetProcAddress_v2", &get);
	if (!get) {
		too_old(library, path, "cuGetProcAddress_v2");
		return false;
	}
	for (size_t i = 0; i < sizeof(rows) / sizeof(*rows); i++) {
		CUresult r;
		int found = 0;

		symbol = NULL;
		r = get(rows[i].name, &symbol, rows[i].version ? rows[i].version : HZ_CUDA_ABI,
			CU_GET_PROC_ADDRESS_DEFAULT, &found);
		if (r == CUDA_ERROR_STUB_LIBRARY) {
			no_driver("no NVIDIA driver: %s is the CUDA toolkit's stub of it", path);
			return false;
		}
		if (r != CUDA_SUCCESS)
			symbol = NULL;
		if (!symbol && !rows[i].version) {
			too_old(library, path, rows[i].name);
			return false;
		}
		memcpy(functions[i], &symbol, sizeof(symbol));
	}
	find_symbol(library, "fakecuda_takes_packed", &takes_packed);
	driver.takes_packed = takes_packed && takes_packed();
	return true;
}

static __attribute__((cold)) void load_driver(void)
{
	char text[160];
	CUresult r;

	driver.fork_generation = hzi_fork_generation();
	if (!find_functions(driver_path())) {
		atomic_store(&driver_tried, true);
		return;
	}
	r = cu.DriverGetVersion(&driver.version);
	if (r == CUDA_SUCCESS)
		r = cu.Init(0);
	if (r == CUDA_SUCCESS)
		r = cu.DeviceGetCount(&driver.devices);
	if (r == CUDA_ERROR_NO_DEVICE || (r == CUDA_SUCCESS && driver.devices == 0))
		no_driver("the NVIDIA driver shows no GPU (is there one, and does "
			  "CUDA_VISIBLE_DEVICES "
			  "allow it?)");
	else if (r == CUDA_ERROR_NOT_INITIALIZED)
		no_driver(
			"the NVIDIA driver does not start: %s; it was perhaps in use before fork()",
			error_text(r, text, sizeof(text)));
	else if (r != CUDA_SUCCESS)
		no_driver("the NVIDIA driver does not start: %s",
			  error_text(r, text, sizeof(text)));
	atomic_store(&driver_tried, true);
}

/* ---- The CUDA part of a context -------------------------------------------------------------- */

struct kernel {
	CUfunction function;	/* NULL until its first launch */
	unsigned shared_bytes;	/* of the attribute set so far */
	bool large_cluster;	/* clusters above CLUSTER_PORTABLE are enabled */
	int clusters;		/* result of hzi_cuda_clusters(); 0: not known */
	unsigned clusters_blocks;	/* blocks per cluster of that result */
};

struct hzi_cuda {
	struct hzi_cuda_device info;
	CUdevice device;
	CUcontext context;
	CUstream stream;
	CUresult dead; /* the error that made the context unusable, or CUDA_SUCCESS */
	bool used;		/* work was ever submitted to a stream */
	bool pending;		/* work was submitted to this stream since hz_sync() */
	bool other_streams;	/* and to streams set earlier */
	bool early;		/* the last work on this stream is a kernel launched with PDL */
	CUlibrary library[HZI_IMAGES];
	struct kernel kernel[HZI_KERNELS];
};

/* Errors after which every later call on the context fails as well */
static bool is_fatal(CUresult r)
{
	switch (r) {
	case CUDA_ERROR_DEINITIALIZED:
	case CUDA_ERROR_ECC_UNCORRECTABLE:
	case CUDA_ERROR_NVLINK_UNCORRECTABLE:
	case CUDA_ERROR_CONTAINED:
	case CUDA_ERROR_ILLEGAL_ADDRESS:
	case CUDA_ERROR_LAUNCH_TIMEOUT:
	case CUDA_ERROR_CONTEXT_IS_DESTROYED:
	case CUDA_ERROR_ASSERT:
	case CUDA_ERROR_HARDWARE_STACK_ERROR:
	case CUDA_ERROR_ILLEGAL_INSTRUCTION:
	case CUDA_ERROR_MISALIGNED_ADDRESS:
	case CUDA_ERROR_INVALID_ADDRESS_SPACE:
	case CUDA_ERROR_INVALID_PC:
	case CUDA_ERROR_LAUNCH_FAILED:
		return true;
	default:
		return false;
	}
}

static int status_of(CUresult r)
{
	switch (r) {
	case CUDA_SUCCESS:
		return HZ_OK;
	case CUDA_ERROR_OUT_OF_MEMORY:
		return HZ_ENOMEM;
	case CUDA_ERROR_INVALID_IMAGE:
	case CUDA_ERROR_NO_BINARY_FOR_GPU:
	case CUDA_ERROR_INVALID_PTX:
	case CUDA_ERROR_JIT_COMPILER_NOT_FOUND:
	case CUDA_ERROR_UNSUPPORTED_PTX_VERSION:
	case CUDA_ERROR_JIT_COMPILATION_DISABLED:
	case CUDA_ERROR_INVALID_SOURCE:
		return HZ_ENOTSUP;
	default:
		return HZ_ECUDA;
	}
}

/* Turns the result of a driver call into a status and a message; `what` describes the call. */
static int report(struct hz_context *ctx, const char *op, const char *what, CUresult r)
{
	char text[160];

	if (r == CUDA_SUCCESS)
		return HZ_OK;
	error_text(r, text, sizeof(text));
	if (is_fatal(r)) {
		if (!ctx->cuda->dead)
			hzi_log(ctx, HZ_LOG_WARNING, "%s: %s: %s: the context is lost", op, what,
				text);
		ctx->cuda->dead = r;
	}
	return hzi_fail(ctx, status_of(r), "%s: %s: %s", op, what, text);
}

static int enter(struct hz_context *ctx, const char *op)
{
	struct hzi_cuda *g = ctx->cuda;
	char text[160];

	if (g->dead)
		return hzi_fail(ctx, HZ_ECUDA,
				"%s: the GPU failed earlier and the context can only be "
				"closed: %s",
				op, error_text(g->dead, text, sizeof(text)));
	return report(ctx, op, "making the context current", cu.CtxPushCurrent(g->context));
}

static void leave(void)
{
	CUcontext mine;

	cu.CtxPopCurrent(&mine);
}

/* leave(), then report() for the driver call made since enter() */
static int finish(struct hz_context *ctx, const char *op, const char *what, CUresult r)
{
	leave();
	return report(ctx, op, what, r);
}

/*
 * While a thread captures a stream in global mode, the driver rejects calls like cuMemAlloc() in
 * that thread, although they do not touch the stream. Relaxed mode allows them. relax() returns
 * whether restore() has a mode to restore.
 */
static bool relax(int *mode)
{
	*mode = CU_STREAM_CAPTURE_MODE_RELAXED;
	return cu.ThreadExchangeStreamCaptureMode(mode) == CUDA_SUCCESS;
}

static void restore(bool relaxed, int *mode)
{
	if (relaxed)
		cu.ThreadExchangeStreamCaptureMode(mode);
}

/* ---- Images and kernels ---------------------------------------------------------------------- */

/* The families; NULL in a program that does not link them */
#define HZ_FAMILY(family) \
	extern const struct hzi_images hzi_images_##family \
		__attribute__((weak, visibility("hidden")));
#include "gpu/kernels.def"

static const struct hzi_images *const families[] = {
#define HZ_FAMILY(family) &hzi_images_##family,
#include "gpu/kernels.def"
};

#define FAMILIES (sizeof(families) / sizeof(*families))

static const unsigned char image_of[HZI_KERNELS] = {
#define HZ_KERNEL(image, name) [HZI_KERNEL_##name] = HZI_IMAGE_##image,
#include "gpu/kernels.def"
};

static const char *const image_names[HZI_IMAGES] = {
#define HZ_IMAGE(family, file) [HZI_IMAGE_##family##_##file] = #family "/" #file,
#include "gpu/kernels.def"
};

_Static_assert(HZI_IMAGES <= 256, "an image's index fits a byte");

/* The family of a kernel; NULL if the program does not link it */
static const struct hzi_images *family_of(int kernel)
{
	for (size_t f = 0; f < FAMILIES; f++) {
		const struct hzi_images *family = families[f];

		if (family && kernel >= family->first_kernel &&
		    kernel < family->first_kernel + family->kernels)
			return family;
	}
	return NULL;
}

/* The name of a kernel, whose family is linked */
static const char *name_of(int kernel)
{
	const struct hzi_images *family = family_of(kernel);

	return family->kernel[kernel - family->first_kernel];
}

/* Loads an image if it is not loaded yet. The CUDA context is current. */
static int load_image(struct hz_context *ctx, const char *op, const struct hzi_images *family,
		      int image)
{
	struct hzi_cuda *g = ctx->cuda;
	const struct hzi_image *packed = &family->image[image - family->first_image];
	int preserved = CU_LIBRARY_BINARY_IS_PRESERVED, mode;
	void *yes = (void *)1, *code = (void *)packed->code;
	char what[64];
	size_t bytes = 0;
	bool relaxed;
	CUresult r;

	if (g->library[image])
		return HZ_OK;
	if (!driver.takes_packed)
		HZ_CHECK(hzi_cuda_unpack(ctx, op, image_names[image], packed, g->info.sm, &code,
					 &bytes));
	relaxed = relax(&mode);
	/*
	 * An image is constant data of this library, so the driver need not copy it. It copies what
	 * was unpacked.
	 */
	r = cu.LibraryLoadData(&g->library[image], code, NULL, NULL, 0, &preserved, &yes,
			       bytes == 0);
	restore(relaxed, &mode);
	if (bytes)
		hzi_mfree(ctx, code, bytes);
	if (r != CUDA_SUCCESS)
		g->library[image] = NULL;
	snprintf(what, sizeof(what), "loading the %s device code for SM %d.%d", image_names[image],
		 g->info.sm / 10, g->info.sm % 10);
	return report(ctx, op, what, r);
}

/* Loads a kernel if it is not loaded yet. The CUDA context is current. */
static int load_kernel(struct hz_context *ctx, const char *op, int index)
{
	const struct hzi_images *family = family_of(index);
	struct hzi_cuda *g = ctx->cuda;
	struct kernel *k = &g->kernel[index];
	const int image = image_of[index];
	const char *name;
	CUfunction function = NULL;
	CUkernel kernel = NULL;
	bool relaxed;
	char what[160];
	CUresult r;
	int mode;

	if (k->function)
		return HZ_OK;
	if (!family)
		return hzi_fail(ctx, HZ_ENOTSUP,
				"%s: this program does not link the %s device code", op,
				image_names[image]);
	HZ_CHECK(load_image(ctx, op, family, image));
	name = family->kernel[index - family->first_kernel];
	relaxed = relax(&mode);
	r = cu.LibraryGetKernel(&kernel, g->library[image], name);
	if (r == CUDA_SUCCESS)
		r = cu.KernelGetFunction(&function, kernel);
	/*
	 * Without this the driver loads the code at the first launch, which may wait for the GPU.
	 */
	if (r == CUDA_SUCCESS && cu.FuncLoad)
		r = cu.FuncLoad(function);
	restore(relaxed, &mode);
	if (r == CUDA_SUCCESS)
		k->function = function;
	snprintf(what, sizeof(what), "loading the kernel %s for SM %d.%d", name, g->info.sm / 10,
		 g->info.sm % 10);
	return report(ctx, op, what, r);
}

/* Loads the kernel and raises its shared memory and cluster limits to those of the launch. */
static int set_up(struct hz_context *ctx, const char *op, int index,
		  const struct hzi_launch *launch)
{
	struct kernel *k = &ctx->cuda->kernel[index];
	char what[160];

	HZ_CHECK(load_kernel(ctx, op, index));
	if (launch->shared_bytes > SHARED_FREE && launch->shared_bytes > k->shared_bytes) {
		snprintf(what, sizeof(what),
			 "asking for %u bytes of shared memory for the kernel %s",
			 launch->shared_bytes, name_of(index));
		HZ_CHECK(report(ctx, op, what, cu.FuncSetAttribute(k->function,
				CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES,
				(int)launch->shared_bytes)));
		k->shared_bytes = launch->shared_bytes;
	}
	if (launch->cluster > CLUSTER_PORTABLE && !k->large_cluster) {
		snprintf(what, sizeof(what), "asking for clusters of %u blocks for the kernel %s",
			 launch->cluster, name_of(index));
		HZ_CHECK(report(ctx, op, what, cu.FuncSetAttribute(k->function,
				CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED, 1)));
		k->large_cluster = true;
	}
	return HZ_OK;
}

/* Notes that work is about to be submitted to the stream. */
static void mark_used(struct hzi_cuda *g)
{
	g->used = g->pending = true;
	g->early = false;
}

static unsigned at_least_1(unsigned n)
{
	return n ? n : 1;
}

int hzi_cuda_launch(struct hz_context *ctx, const char *op, int kernel,
		    const struct hzi_launch *launch, const void *params, size_t params_bytes)
{
	struct hzi_cuda *g = ctx->cuda;
	const struct kernel *k;
	/* The driver copies the parameter buffer before it returns. */
	void *extra[] = {
		CU_LAUNCH_PARAM_BUFFER_POINTER, (void *)params,
		CU_LAUNCH_PARAM_BUFFER_SIZE, &params_bytes,
		CU_LAUNCH_PARAM_END,
	};
	void *address[] = {(void *)params};
	CUlaunchAttribute attributes[3];
	CUlaunchConfig config = {
		.grid_x = at_least_1(launch->grid[0]),
		.grid_y = at_least_1(launch->grid[1]),
		.grid_z = at_least_1(launch->grid[2]),
		.block_x = at_least_1(launch->block[0]),
		.block_y = at_least_1(launch->block[1]),
		.block_z = at_least_1(launch->block[2]),
		.shared_bytes = launch->shared_bytes,
		.stream = g->stream,
	};
	char what[160];
	CUresult r;
	int status;

	assert(kernel >= 0 && kernel < HZI_KERNELS);
	HZ_CHECK(enter(ctx, op));
	k = &g->kernel[kernel];
	if (!k->function ||
	    (launch->shared_bytes > SHARED_FREE && launch->shared_bytes > k->shared_bytes) ||
	    (launch->cluster > CLUSTER_PORTABLE && !k->large_cluster)) {
		status = set_up(ctx, op, kernel, launch);
		if (status != HZ_OK) {
			leave();
			return status;
		}
	}
	memset(attributes, 0, sizeof(attributes));
	config.attributes = attributes;
	if (launch->cluster > 1) {
		CUlaunchAttribute *cluster = &attributes[config.attributes_count++];

		cluster->id = CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION;
		cluster->value.cluster.x = launch->cluster;
		cluster->value.cluster.y = cluster->value.cluster.z = 1;
	}
	if (launch->cooperative) {
		CUlaunchAttribute *cooperative = &attributes[config.attributes_count++];

		cooperative->id = CU_LAUNCH_ATTRIBUTE_COOPERATIVE;
		cooperative->value.cooperative = 1;
	}
	if (launch->early && g->early) {
		CUlaunchAttribute *early = &attributes[config.attributes_count++];

		early->id = CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION;
		early->value.programmatic = 1;
	}
	mark_used(g);
	g->early = launch->early;
	r = cu.LaunchKernelEx(&config, k->function, launch->aligned ? address : NULL,
			      launch->aligned ? NULL : extra);
	leave();
	if (r == CUDA_SUCCESS)
		return HZ_OK;
	/* The error may be that of earlier work on the GPU. */
	snprintf(what, sizeof(what), "launching the kernel %s%s", name_of(kernel),
		 is_fatal(r) ? " or earlier work" : "");
	return report(ctx, op, what, r);
}

int hzi_cuda_clusters(struct hz_context *ctx, const char *op, int kernel,
		      const struct hzi_launch *launch, int *count)
{
	struct hzi_cuda *g = ctx->cuda;
	struct kernel *k = &g->kernel[kernel];
	CUlaunchAttribute cluster = {.id = CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION};
	CUlaunchConfig config = {
		.grid_x = launch->cluster, .grid_y = 1, .grid_z = 1,
		.block_x = at_least_1(launch->block[0]), .block_y = at_least_1(launch->block[1]),
		.block_z = at_least_1(launch->block[2]), .shared_bytes = launch->shared_bytes,
		.attributes = &cluster, .attributes_count = 1,
	};
	CUresult r = CUDA_SUCCESS;
	int status;

	if (!k->clusters || k->clusters_blocks != launch->cluster) {
		cluster.value.cluster.x = launch->cluster;
		cluster.value.cluster.y = cluster.value.cluster.z = 1;
		HZ_CHECK(enter(ctx, op));
		status = set_up(ctx, op, kernel, launch);
		if (status == HZ_OK)
			r = cu.OccupancyMaxActiveClusters(&k->clusters, k->function, &config);
		leave();
		HZ_CHECK(status);
		HZ_CHECK(report(ctx, op, "asking how many clusters run at a time", r));
		k->clusters_blocks = launch->cluster;
	}
	/* 0 clusters may become more when other kernels release what they hold. */
	*count = k->clusters > 0 ? k->clusters : 1;
	return HZ_OK;
}

/* Traversal strides of a box that skips no element */
static const uint32_t unit_steps[] = {1, 1, 1};

/*
 * Encodes a tensor of bytes. steps: from the second dimension on; steps_in_box: traversal strides
 * inside the box.
 */
static int encode_tensor_map(struct hz_context *ctx, const char *op, struct hzi_tensor_map *map,
			     const void *p, unsigned dimensions, const uint64_t *sizes,
			     const uint64_t *steps, const uint32_t *box,
			     const uint32_t *steps_in_box, int promotion)
{
	HZ_CHECK(enter(ctx, op));
	return finish(ctx, op, "describing a matrix",
		      cu.TensorMapEncodeTiled(
			      map, CU_TENSOR_MAP_DATA_TYPE_UINT8, dimensions,
			      (void *)(uintptr_t)p, sizes, steps, box, steps_in_box,
			      CU_TENSOR_MAP_INTERLEAVE_NONE,
			      box[0] == 32 ? CU_TENSOR_MAP_SWIZZLE_32B :
			      box[0] == 64 ? CU_TENSOR_MAP_SWIZZLE_64B :
					     CU_TENSOR_MAP_SWIZZLE_128B,
			      promotion, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE));
}

int hzi_cuda_tensor_map_2d(struct hz_context *ctx, const char *op, struct hzi_tensor_map *map,
			   const void *p, int64_t columns, int64_t rows, int64_t row_bytes,
			   int box_bytes, int box_rows)
{
	const uint64_t sizes[] = {(uint64_t)columns, (uint64_t)rows};
	const uint64_t steps[] = {(uint64_t)row_bytes};
	const uint32_t box[] = {(uint32_t)box_bytes, (uint32_t)box_rows};

	return encode_tensor_map(ctx, op, map, p, 2, sizes, steps, box, unit_steps,
				 CU_TENSOR_MAP_L2_PROMOTION_L2_256B);
}

int hzi_cuda_tensor_map_3d(struct hz_context *ctx, const char *op, struct hzi_tensor_map *map,
			   const void *p, int64_t columns, int64_t rows, int64_t row_bytes,
			   int depth, int64_t depth_bytes, int box_bytes, int box_rows,
			   int box_depth)
{
	const uint64_t sizes[] = {(uint64_t)columns, (uint64_t)rows, (uint64_t)depth};
	const uint64_t steps[] = {(uint64_t)row_bytes, (uint64_t)depth_bytes};
	const uint32_t box[] = {(uint32_t)box_bytes, (uint32_t)box_rows, (uint32_t)box_depth};

	/*
	 * Rows of less than 128 bytes are not promoted to 256-byte L2 fetches: the other bytes may
	 * not be needed soon.
	 */
	return encode_tensor_map(ctx, op, map, p, 3, sizes, steps, box, unit_steps,
				 box_bytes < 128 ? CU_TENSOR_MAP_L2_PROMOTION_NONE :
					  CU_TENSOR_MAP_L2_PROMOTION_L2_256B);
}

int hzi_cuda_tensor_map_5d(struct hz_context *ctx, const char *op, struct hzi_tensor_map *map,
			   const void *p, const uint64_t *sizes, const uint64_t *steps,
			   const uint32_t *box, const uint32_t *steps_in_box)
{
	return encode_tensor_map(ctx, op, map, p, 5, sizes, steps, box, steps_in_box,
				 CU_TENSOR_MAP_L2_PROMOTION_L2_256B);
}

static int prepare(struct hz_context *ctx)
{
	int status = HZ_OK;

	HZ_CHECK(enter(ctx, "prepare"));
	for (size_t f = 0; f < FAMILIES; f++) {
		for (int i = 0; families[f] && i < families[f]->kernels && status == HZ_OK; i++)
			status = load_kernel(ctx, "prepare", families[f]->first_kernel + i);
	}
	leave();
	return status;
}

int64_t hzi_cuda_code_bytes(void)
{
	int64_t bytes = 0;

	for (size_t f = 0; f < FAMILIES; f++) {
		for (int i = 0; families[f] && i < families[f]->images; i++)
			bytes += families[f]->image[i].end - families[f]->image[i].code;
	}
	return bytes;
}

/* ---- Open and close -------------------------------------------------------------------------- */

__attribute__((format(printf, 3, 4))) static int no_gpu(struct hz_context *ctx, int status,
							 const char *format, ...)
{
	va_list ap;

	va_start(ap, format);
	vsnprintf(ctx->gpu_reason, sizeof(ctx->gpu_reason), format, ap);
	va_end(ap);
	return status;
}

static int read_device(struct hzi_cuda *g)
{
	struct hzi_cuda_device *d = &g->info;
	size_t memory_bytes = 0;
	int major = 0, minor = 0, l2 = 0, clock = 0, memory_clock = 0, bus = 0;
	const struct {
		int attribute, *value;
	} rows[] = {
		{CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, &major},
		{CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, &minor},
		{CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, &d->sms},
		{CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN, &d->shared_block_bytes},
		{CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR, &d->shared_sm_bytes},
		{CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE, &l2},
		{CU_DEVICE_ATTRIBUTE_CLOCK_RATE, &clock},
		{CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE, &memory_clock},
		{CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH, &bus},
	};
	CUresult r = cu.DeviceGet(&g->device, d->ordinal);

	for (size_t i = 0; i < sizeof(rows) / sizeof(*rows) && r == CUDA_SUCCESS; i++)
		r = cu.DeviceGetAttribute(rows[i].value, rows[i].attribute, g->device);
	if (r == CUDA_SUCCESS)
		r = cu.DeviceGetName(d->name, sizeof(d->name), g->device);
	if (r == CUDA_SUCCESS)
		r = cu.DeviceTotalMem(&memory_bytes, g->device);
	d->sm = 10 * major + minor;
	d->l2_bytes = l2;
	/* They scale cost models only. A device that does not tell has those of an H200. */
	d->clock_mhz = clock > 0 ? clock * 1e-3 : 1980;
	d->memory_bytes_per_us = memory_clock > 0 && bus > 0 ?
					 memory_clock * 2e-3 * bus / 8 : 4.9e6;
	d->memory_bytes = (int64_t)memory_bytes;
	d->name[sizeof(d->name) - 1] = '\0';
	return r;
}

/* A kernel of the smallest image; -1: this program has no image */
static int kernel_to_try(void)
{
	ptrdiff_t least = PTRDIFF_MAX;
	int kernel = -1;

	for (size_t f = 0; f < FAMILIES; f++) {
		for (int i = 0; families[f] && i < families[f]->kernels; i++) {
			const int k = families[f]->first_kernel + i;
			const struct hzi_image *image =
				&families[f]->image[image_of[k] - families[f]->first_image];

			if (image->end - image->code < least) {
				least = image->end - image->code;
				kernel = k;
			}
		}
	}
	return kernel;
}

/*
 * Loads one kernel, since only loading shows whether the image has code for this GPU that the
 * driver accepts. A context that opens can compute. Unpacking a large image takes 20 ms, and the
 * driver's compiler half a minute for its PTX.
 */
static int try_code(struct hz_context *ctx)
{
	const char *op = ctx->cuda->info.name;
	const int kernel = kernel_to_try();
	int status = enter(ctx, op);

	if (status == HZ_OK) {
		if (kernel >= 0)
			status = load_kernel(ctx, op, kernel);
		leave();
	}
	if (status == HZ_OK)
		return HZ_OK;
	no_gpu(ctx, status, "%s", ctx->errmsg);
	ctx->errmsg[0] = '\0';
	/* hz_open() does not return HZ_ENOTSUP: a GPU without code counts as no usable device. */
	return status == HZ_ENOTSUP ? HZ_ENODEV : status;
}

static void cuda_close(struct hz_context *ctx);

static __attribute__((cold)) int open_ordinal(struct hz_context *ctx, int ordinal)
{
	struct hzi_cuda *g = hzi_malloc(ctx, sizeof(*g), _Alignof(struct hzi_cuda));
	char text[160];
	CUresult r;
	int status;

	if (!g)
		return no_gpu(ctx, HZ_ENOMEM, "no memory for the GPU half of a context, %zu bytes",
			      sizeof(*g));
	memset(g, 0, sizeof(*g));
	g->info.ordinal = ordinal;

	r = read_device(g);
	if (r != CUDA_SUCCESS) {
		status = no_gpu(ctx, HZ_ECUDA, "asking for the device's properties: %s",
				error_text(r, text, sizeof(text)));
		goto out;
	}
	if (g->info.sm < SM_MIN) {
		status = no_gpu(ctx, HZ_ENODEV, "%s is SM %d.%d, must be %d.%d or later",
				g->info.name, g->info.sm / 10, g->info.sm % 10, SM_MIN / 10,
				SM_MIN % 10);
		goto out;
	}
	r = cu.DevicePrimaryCtxRetain(&g->context, g->device);
	if (r != CUDA_SUCCESS) {
		status = no_gpu(ctx, r == CUDA_ERROR_DEVICE_UNAVAILABLE ? HZ_ENODEV : status_of(r),
				"%s cannot be used: %s", g->info.name,
				error_text(r, text, sizeof(text)));
		goto out;
	}
	ctx->cuda = g;
	ctx->device = HZ_CUDA + ordinal;
	ctx->sm = g->info.sm;
	ctx->sm_90a = HZ_CUDA_90A && g->info.sm == 90;
	status = try_code(ctx);
	if (status == HZ_OK)
		return HZ_OK;
	cuda_close(ctx);
	ctx->device = HZ_CPU;
	return status;
out:
	hzi_mfree(ctx, g, sizeof(*g));
	return status;
}

static __attribute__((cold)) int cuda_open(struct hz_context *ctx, int ordinal)
{
	char reason[HZI_ERRMSG_BYTES];
	int first_status = HZ_OK, status;

	if (!HZ_HAVE_CUDA)
		return no_gpu(ctx, HZ_ENODEV,
			      "this build has no device code (configured without CUDA)");
	pthread_once(&driver_once, load_driver);
	if (driver.status != HZ_OK)
		return no_gpu(ctx, driver.status, "%s", driver.reason);
	if (driver.fork_generation != hzi_fork_generation())
		return no_gpu(ctx, HZ_ENODEV,
			      "CUDA was in use before fork() and does not work in the child");
	if (ordinal >= 0) {
		if (ordinal >= driver.devices)
			return no_gpu(ctx, HZ_ENODEV, "no such device, the NVIDIA driver shows %d",
				      driver.devices);
		return open_ordinal(ctx, ordinal);
	}
	for (int i = 0; i < driver.devices; i++) {
		status = open_ordinal(ctx, i);
		if (status == HZ_OK)
			return HZ_OK;
		if (i == 0) {
			first_status = status;
			memcpy(reason, ctx->gpu_reason, sizeof(reason));
		}
	}
	memcpy(ctx->gpu_reason, reason, sizeof(reason));
	return first_status;
}

static void cuda_close(struct hz_context *ctx)
{
	struct hzi_cuda *g = ctx->cuda;
	bool relaxed;
	int mode;

	if (!g)
		return;
	/* A child of fork() cannot use the driver; the parent frees what the child inherited. */
	if (ctx->fork_generation == hzi_fork_generation()) {
		const bool entered = cu.CtxPushCurrent(g->context) == CUDA_SUCCESS;

		/*
		 * Errors cannot be reported from here, and each step is useful even if the last one
		 * failed.
		 */
		relaxed = relax(&mode);
		/*
		 * Waits for all streams: code and workspace must not vanish under work on an
		 * earlier stream.
		 */
		if (entered && g->used && !g->dead)
			cu.CtxSynchronize();
		if (entered && ctx->own_workspace)
			cu.MemFree((uintptr_t)ctx->own_workspace);
		for (int i = 0; i < HZI_IMAGES; i++) {
			if (g->library[i])
				cu.LibraryUnload(g->library[i]);
		}
		restore(relaxed, &mode);
		if (entered)
			leave();
		cu.DevicePrimaryCtxRelease(g->device);
	}
	ctx->cuda = NULL;
	ctx->own_workspace = NULL;
	hzi_mfree(ctx, g, sizeof(*g));
}

static void cuda_info(const struct hz_context *ctx, hz_info *info)
{
	if (atomic_load(&driver_tried)) {
		info->cuda_driver = driver.version;
		info->cuda_devices = driver.devices;
	}
	if (!ctx->cuda)
		return;
	info->sm = ctx->cuda->info.sm;
	info->sm_count = ctx->cuda->info.sms;
	info->memory_bytes = ctx->cuda->info.memory_bytes;
	info->gpu_name = ctx->cuda->info.name;
}

const struct hzi_cuda_device *hzi_cuda_device(const struct hz_context *ctx)
{
	return &ctx->cuda->info;
}

/* ---- Memory ---------------------------------------------------------------------------------- */

static int cuda_alloc(struct hz_context *ctx, void **p, size_t bytes)
{
	CUresult r = CUDA_ERROR_OUT_OF_MEMORY;
	CUdeviceptr address = 0;
	bool relaxed;
	int mode;

	HZ_CHECK(enter(ctx, "alloc"));
	relaxed = relax(&mode);
	/* The driver is not trusted to round up sizes near SIZE_MAX. */
	if (bytes <= PTRDIFF_MAX)
		r = cu.MemAlloc(&address, bytes ? bytes : 1);
	restore(relaxed, &mode);
	leave();
	if (r == CUDA_ERROR_OUT_OF_MEMORY)
		return hzi_fail(ctx, HZ_ENOMEM, "alloc: no memory for %zu bytes on the GPU", bytes);
	HZ_CHECK(report(ctx, "alloc", "allocating device memory", r));
	*p = (void *)(uintptr_t)address;
	return HZ_OK;
}

static int cuda_free(struct hz_context *ctx, void *p)
{
	bool relaxed;
	CUresult r;
	int mode;

	HZ_CHECK(enter(ctx, "free"));
	relaxed = relax(&mode);
	r = cu.MemFree((uintptr_t)p);
	restore(relaxed, &mode);
	return finish(ctx, "free", "freeing device memory", r);
}

static int cuda_copy(struct hz_context *ctx, void *dst, int dst_device, const void *src,
		  int src_device, size_t bytes)
{
	struct hzi_cuda *g = ctx->cuda;
	const CUdeviceptr to = (uintptr_t)dst, from = (uintptr_t)src;
	CUresult r;

	HZ_CHECK(enter(ctx, "copy"));
	mark_used(g);
	if (dst_device == HZ_CPU)
		r = cu.MemcpyDtoHAsync(dst, from, bytes, g->stream);
	else if (src_device == HZ_CPU)
		r = cu.MemcpyHtoDAsync(to, src, bytes, g->stream);
	else
		r = cu.MemcpyDtoDAsync(to, from, bytes, g->stream);
	return finish(ctx, "copy", "copying from or to the GPU", r);
}

int hzi_cuda_fill(struct hz_context *ctx, void *p, int byte, size_t bytes)
{
	struct hzi_cuda *g = ctx->cuda;

	HZ_CHECK(enter(ctx, "fill"));
	mark_used(g);
	return finish(ctx, "fill", "filling device memory",
		      cu.MemsetD8Async((uintptr_t)p, (unsigned char)byte, bytes, g->stream));
}

/* ---- Streams --------------------------------------------------------------------------------- */

static int set_stream(struct hz_context *ctx, void *stream)
{
	struct hzi_cuda *g = ctx->cuda;

	if (g->stream != stream && g->pending)
		g->other_streams = true;
	g->stream = stream;
	g->early = false;
	return HZ_OK;
}

static bool capturing(const struct hzi_cuda *g)
{
	int status = CU_STREAM_CAPTURE_STATUS_NONE;

	return cu.StreamIsCapturing(g->stream, &status) == CUDA_SUCCESS &&
	       status != CU_STREAM_CAPTURE_STATUS_NONE;
}

static bool stream_capturing(struct hz_context *ctx)
{
	bool yes;

	/* An unusable context captures nothing; the next call reports the error. */
	if (ctx->cuda->dead || cu.CtxPushCurrent(ctx->cuda->context) != CUDA_SUCCESS)
		return false;
	yes = capturing(ctx->cuda);
	leave();
	return yes;
}

static int cuda_sync(struct hz_context *ctx)
{
	struct hzi_cuda *g = ctx->cuda;

	HZ_CHECK(enter(ctx, "sync"));
	if (capturing(g)) {
		/* Checked first, since a synchronizing call would invalidate the capture. */
		leave();
		return hzi_fail(ctx, HZ_ECUDA,
				"sync: the stream is being captured into a graph, there is "
				"nothing to wait for before it runs");
	}
	HZ_CHECK(finish(ctx, "sync", "waiting for the GPU",
			g->other_streams ? cu.CtxSynchronize() : cu.StreamSynchronize(g->stream)));
	g->pending = g->other_streams = false;
	return HZ_OK;
}

int hzi_cuda_stream_new(struct hz_context *ctx, void **stream)
{
	CUstream s = NULL;

	HZ_CHECK(enter(ctx, "stream"));
	HZ_CHECK(finish(ctx, "stream", "making a stream",
			cu.StreamCreate(&s, CU_STREAM_NON_BLOCKING)));
	*stream = s;
	return HZ_OK;
}

int hzi_cuda_stream_free(struct hz_context *ctx, void *stream)
{
	HZ_CHECK(enter(ctx, "stream"));
	return finish(ctx, "stream", "destroying a stream", cu.StreamDestroy(stream));
}

/* ---- Graphs and events ----------------------------------------------------------------------- */

int hzi_cuda_capture_begin(struct hz_context *ctx)
{
	if (!ctx->cuda->stream)
		return hzi_fail(ctx, HZ_EINVAL, "capture: the default stream cannot be captured");
	HZ_CHECK(enter(ctx, "capture"));
	/* The strictest mode: what works in it works in all modes. */
	return finish(ctx, "capture", "beginning to capture",
		      cu.StreamBeginCapture(ctx->cuda->stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
}

int hzi_cuda_capture_end(struct hz_context *ctx, void **graph)
{
	CUgraphExec exec = NULL;
	CUgraph captured = NULL;
	CUresult r;

	HZ_CHECK(enter(ctx, "capture"));
	r = cu.StreamEndCapture(ctx->cuda->stream, &captured);
	if (r == CUDA_SUCCESS) {
		r = cu.GraphInstantiateWithFlags(&exec, captured, 0);
		cu.GraphDestroy(captured);
	}
	HZ_CHECK(finish(ctx, "capture", "making a graph", r));
	*graph = exec;
	return HZ_OK;
}

int hzi_cuda_graph_launch(struct hz_context *ctx, void *graph)
{
	struct hzi_cuda *g = ctx->cuda;

	HZ_CHECK(enter(ctx, "graph"));
	mark_used(g);
	return finish(ctx, "graph", "launching a graph", cu.GraphLaunch(graph, g->stream));
}

int hzi_cuda_graph_free(struct hz_context *ctx, void *graph)
{
	HZ_CHECK(enter(ctx, "graph"));
	return finish(ctx, "graph", "destroying a graph", cu.GraphExecDestroy(graph));
}

int hzi_cuda_event_new(struct hz_context *ctx, void **event)
{
	CUevent e = NULL;

	HZ_CHECK(enter(ctx, "event"));
	HZ_CHECK(finish(ctx, "event", "making an event", cu.EventCreate(&e, 0)));
	*event = e;
	return HZ_OK;
}

int hzi_cuda_event_record(struct hz_context *ctx, void *event)
{
	HZ_CHECK(enter(ctx, "event"));
	return finish(ctx, "event", "recording an event", cu.EventRecord(event, ctx->cuda->stream));
}

int hzi_cuda_event_ms(struct hz_context *ctx, void *start, void *end, double *milliseconds)
{
	float ms = 0;
	CUresult r;

	HZ_CHECK(enter(ctx, "event"));
	r = cu.EventSynchronize(end);
	if (r == CUDA_SUCCESS)
		r = cu.EventElapsedTime(&ms, start, end);
	HZ_CHECK(finish(ctx, "event", "reading an event", r));
	*milliseconds = ms;
	return HZ_OK;
}

int hzi_cuda_event_free(struct hz_context *ctx, void *event)
{
	HZ_CHECK(enter(ctx, "event"));
	return finish(ctx, "event", "destroying an event", cu.EventDestroy(event));
}

/* ---- The device ------------------------------------------------------------------------------ */

const struct hzi_device hzi_device_cuda = {
	.name = "cuda",
	.open = cuda_open,
	.close = cuda_close,
	.info = cuda_info,
	.alloc = cuda_alloc,
	.free = cuda_free,
	.copy = cuda_copy,
	.set_stream = set_stream,
	.sync = cuda_sync,
	.capturing = stream_capturing,
	.prepare = prepare,
};
