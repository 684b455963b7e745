/*
 * cuabi.h - the part of the CUDA driver API that hurwitz uses, as of CUDA 12.0
 *
 * SPDX-License-Identifier: BSD-2-Clause
 *
 * The host code needs no file of the CUDA toolkit. Names and values are those of the driver's
 * binary interface, which NVIDIA keeps stable. cuGetProcAddress() is asked for CUDA 12.0 and
 * returns the variants declared here whatever the version of the driver.
 */
#ifndef HZI_CUABI_H
#define HZI_CUABI_H

#include <stddef.h>
#include <stdint.h>

#define HZ_CUDA_ABI 12000

typedef int CUresult;
typedef int CUdevice;
typedef unsigned long long CUdeviceptr;
typedef struct CUctx_st *CUcontext;
typedef struct CUstream_st *CUstream;
typedef struct CUevent_st *CUevent;
typedef struct CUgraph_st *CUgraph;
typedef struct CUgraphExec_st *CUgraphExec;
typedef struct CUlib_st *CUlibrary;
typedef struct CUkern_st *CUkernel;
typedef struct CUfunc_st *CUfunction;

enum {
	CUDA_SUCCESS = 0,
	CUDA_ERROR_INVALID_VALUE = 1,
	CUDA_ERROR_OUT_OF_MEMORY = 2,
	CUDA_ERROR_NOT_INITIALIZED = 3,
	CUDA_ERROR_DEINITIALIZED = 4,
	CUDA_ERROR_STUB_LIBRARY = 34,
	CUDA_ERROR_DEVICE_UNAVAILABLE = 46,
	CUDA_ERROR_NO_DEVICE = 100,
	CUDA_ERROR_INVALID_DEVICE = 101,
	CUDA_ERROR_INVALID_IMAGE = 200,
	CUDA_ERROR_INVALID_CONTEXT = 201,
	CUDA_ERROR_NO_BINARY_FOR_GPU = 209,
	CUDA_ERROR_ECC_UNCORRECTABLE = 214,
	CUDA_ERROR_INVALID_PTX = 218,
	CUDA_ERROR_NVLINK_UNCORRECTABLE = 220,
	CUDA_ERROR_JIT_COMPILER_NOT_FOUND = 221,
	CUDA_ERROR_UNSUPPORTED_PTX_VERSION = 222,
	CUDA_ERROR_JIT_COMPILATION_DISABLED = 223,
	CUDA_ERROR_CONTAINED = 226,
	CUDA_ERROR_INVALID_SOURCE = 300,
	CUDA_ERROR_INVALID_HANDLE = 400,
	CUDA_ERROR_NOT_FOUND = 500,
	CUDA_ERROR_ILLEGAL_ADDRESS = 700,
	CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES = 701,
	CUDA_ERROR_LAUNCH_TIMEOUT = 702,
	CUDA_ERROR_CONTEXT_IS_DESTROYED = 709,
	CUDA_ERROR_ASSERT = 710,
	CUDA_ERROR_HARDWARE_STACK_ERROR = 714,
	CUDA_ERROR_ILLEGAL_INSTRUCTION = 715,
	CUDA_ERROR_MISALIGNED_ADDRESS = 716,
	CUDA_ERROR_INVALID_ADDRESS_SPACE = 717,
	CUDA_ERROR_INVALID_PC = 718,
	CUDA_ERROR_LAUNCH_FAILED = 719,
	CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED = 900,
	CUDA_ERROR_STREAM_CAPTURE_INVALIDATED = 901,
	CUDA_ERROR_STREAM_CAPTURE_UNMATCHED = 903,
	CUDA_ERROR_STREAM_CAPTURE_IMPLICIT = 906,
	CUDA_ERROR_INVALID_CLUSTER_SIZE = 912,
	CUDA_ERROR_UNKNOWN = 999
};

enum {
	CU_DEVICE_ATTRIBUTE_CLOCK_RATE = 13,			/* kHz */
	CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT = 16,
	CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE = 36,		/* kHz; two transfers a cycle */
	CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH = 37,	/* bits */
	CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE = 38,
	CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR = 75,
	CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR = 76,
	CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR = 81,
	CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN = 97
};

enum {
	CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES = 8,
	CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED = 14
};

enum { CU_LIBRARY_BINARY_IS_PRESERVED = 1 };
enum { CU_STREAM_NON_BLOCKING = 1 };
enum { CU_STREAM_CAPTURE_MODE_GLOBAL = 0, CU_STREAM_CAPTURE_MODE_RELAXED = 2 };
enum { CU_STREAM_CAPTURE_STATUS_NONE = 0, CU_STREAM_CAPTURE_STATUS_ACTIVE = 1 };
enum { CU_GET_PROC_ADDRESS_DEFAULT = 0 };

#define CU_LAUNCH_PARAM_END ((void *)0)
#define CU_LAUNCH_PARAM_BUFFER_POINTER ((void *)1)
#define CU_LAUNCH_PARAM_BUFFER_SIZE ((void *)2)

enum {
	CU_LAUNCH_ATTRIBUTE_COOPERATIVE = 2,
	CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION = 4,
	CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION = 6
};

/* Values for tensor maps, in the order of the parameters of cuTensorMapEncodeTiled() */
enum { CU_TENSOR_MAP_DATA_TYPE_UINT8 = 0 };
enum { CU_TENSOR_MAP_INTERLEAVE_NONE = 0 };
enum {
	CU_TENSOR_MAP_SWIZZLE_32B = 1,
	CU_TENSOR_MAP_SWIZZLE_64B = 2,
	CU_TENSOR_MAP_SWIZZLE_128B = 3
};
enum { CU_TENSOR_MAP_L2_PROMOTION_NONE = 0, CU_TENSOR_MAP_L2_PROMOTION_L2_256B = 3 };
enum { CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE = 0 };

typedef struct {
	int id;
	char pad[4];
	union {
		char pad[64];
		struct { unsigned x, y, z; } cluster;
		int cooperative, programmatic;
	} value;
} CUlaunchAttribute;

typedef struct {
	unsigned grid_x, grid_y, grid_z;
	unsigned block_x, block_y, block_z;
	unsigned shared_bytes;
	CUstream stream;
	CUlaunchAttribute *attributes;
	unsigned attributes_count;
} CUlaunchConfig;

_Static_assert(sizeof(CUlaunchAttribute) == 72, "layout of the driver's launch attribute");
_Static_assert(sizeof(void *) != 8 || sizeof(CUlaunchConfig) == 56,
	       "layout of the driver's launch configuration");

/* The only symbol that is looked up by dlsym(); it finds all others. */
typedef CUresult cu_get_proc_address(const char *symbol, void **function, int version,
				     uint64_t flags, int *found);

/*
 * Every driver function used: CU_NEED(name without "cu", parameters). CU_MAY rows may be missing in
 * the driver; their first argument is the CUDA version that introduced them.
 */
#define CU_FUNCTIONS \
	CU_NEED(Init, (unsigned flags)) \
	CU_NEED(DriverGetVersion, (int *version)) \
	CU_NEED(GetErrorName, (CUresult error, const char **text)) \
	CU_NEED(GetErrorString, (CUresult error, const char **text)) \
	CU_NEED(DeviceGetCount, (int *count)) \
	CU_NEED(DeviceGet, (CUdevice *device, int ordinal)) \
	CU_NEED(DeviceGetName, (char *name, int size, CUdevice device)) \
	CU_NEED(DeviceGetAttribute, (int *value, int attribute, CUdevice device)) \
	CU_NEED(DeviceTotalMem, (size_t *bytes, CUdevice device)) \
	CU_NEED(DevicePrimaryCtxRetain, (CUcontext *context, CUdevice device)) \
	CU_NEED(DevicePrimaryCtxRelease, (CUdevice device)) \
	CU_NEED(CtxPushCurrent, (CUcontext context)) \
	CU_NEED(CtxPopCurrent, (CUcontext *context)) \
	CU_NEED(CtxGetCurrent, (CUcontext *context)) \
	CU_NEED(CtxSynchronize, (void)) \
	CU_NEED(MemAlloc, (CUdeviceptr *p, size_t bytes)) \
	CU_NEED(MemFree, (CUdeviceptr p)) \
	CU_NEED(MemcpyHtoDAsync, (CUdeviceptr dst, const void *src, size_t bytes, \
				  CUstream stream)) \
	CU_NEED(MemcpyDtoHAsync, (void *dst, CUdeviceptr src, size_t bytes, CUstream stream)) \
	CU_NEED(MemcpyDtoDAsync, (CUdeviceptr dst, CUdeviceptr src, size_t bytes, \
				  CUstream stream)) \
	CU_NEED(MemsetD8Async, (CUdeviceptr dst, unsigned char value, size_t n, CUstream stream)) \
	CU_NEED(StreamCreate, (CUstream *stream, unsigned flags)) \
	CU_NEED(StreamDestroy, (CUstream stream)) \
	CU_NEED(StreamSynchronize, (CUstream stream)) \
	CU_NEED(StreamBeginCapture, (CUstream stream, int mode)) \
	CU_NEED(StreamEndCapture, (CUstream stream, CUgraph *graph)) \
	CU_NEED(StreamIsCapturing, (CUstream stream, int *status)) \
	CU_NEED(ThreadExchangeStreamCaptureMode, (int *mode)) \
	CU_NEED(GraphInstantiateWithFlags, (CUgraphExec *exec, CUgraph graph, \
					    unsigned long long flags)) \
	CU_NEED(GraphLaunch, (CUgraphExec exec, CUstream stream)) \
	CU_NEED(GraphExecDestroy, (CUgraphExec exec)) \
	CU_NEED(GraphDestroy, (CUgraph graph)) \
	CU_NEED(EventCreate, (CUevent *event, unsigned flags)) \
	CU_NEED(EventRecord, (CUevent event, CUstream stream)) \
	CU_NEED(EventSynchronize, (CUevent event)) \
	CU_NEED(EventElapsedTime, (float *milliseconds, CUevent start, CUevent end)) \
	CU_NEED(EventDestroy, (CUevent event)) \
	CU_NEED(LibraryLoadData, (CUlibrary *library, const void *code, int *jit_options, \
				  void **jit_values, unsigned jit_count, int *options, \
				  void **values, unsigned count)) \
	CU_NEED(LibraryGetKernel, (CUkernel *kernel, CUlibrary library, const char *name)) \
	CU_NEED(LibraryUnload, (CUlibrary library)) \
	CU_NEED(KernelGetFunction, (CUfunction *function, CUkernel kernel)) \
	CU_NEED(FuncSetAttribute, (CUfunction function, int attribute, int value)) \
	CU_NEED(LaunchKernelEx, (const CUlaunchConfig *config, CUfunction function, \
				 void **params, void **extra)) \
	CU_NEED(OccupancyMaxActiveClusters, (int *count, CUfunction function, \
					     const CUlaunchConfig *config)) \
	CU_NEED(TensorMapEncodeTiled, (void *map, int type, uint32_t rank, void *p, \
				       const uint64_t *sizes, const uint64_t *steps, \
				       const uint32_t *box, const uint32_t *element_steps, \
				       int interleave, int swizzle, int promotion, int fill)) \
	CU_MAY(12040, FuncLoad, (CUfunction function))

struct cu_functions {
#define CU_NEED(name, params) CUresult (*name) params;
#define CU_MAY(version, name, params) CUresult (*name) params;
	CU_FUNCTIONS
#undef CU_NEED
#undef CU_MAY
};

#endif
