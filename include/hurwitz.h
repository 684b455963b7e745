/*
 * hurwitz.h - neural-network primitives for CPU and CUDA: the whole public interface
 *
 * SPDX-License-Identifier: BSD-2-Clause
 *
 * One file for all families, as there is one library. Half of the lines are comments, which are the
 * manual's source; a section can be read alone.
 */
#ifndef HURWITZ_H
#define HURWITZ_H

#include <stddef.h>
#include <stdint.h>

/*
 * HZ_API_CHECK is for calls that give results or memory: compilers warn where their status is not
 * used. HZ_API is for all others, such as those that free what a program holds.
 */
#if defined(__GNUC__)
#define HZ_API __attribute__((visibility("default")))
#define HZ_API_CHECK HZ_API __attribute__((warn_unused_result))
#else
#define HZ_API
#define HZ_API_CHECK HZ_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

#define HZ_VERSION_MAJOR 0
#define HZ_VERSION_MINOR 2
#define HZ_VERSION_PATCH 0

/* The version of this header as one number that grows: 0.1.2 is 102, 1.2.3 is 10203. */
#define HZ_VERSION (HZ_VERSION_MAJOR * 10000 + HZ_VERSION_MINOR * 100 + HZ_VERSION_PATCH)

/* ---- Status ---------------------------------------------------------------------------------- */

/*
 * Status codes. Every function that can fail returns one of these. HZ_OK is 0, errors are negative
 * and never renumbered. A call that is refused leaves every output as it was; one in which the CUDA
 * driver fails (HZ_ECUDA, or HZ_ENOMEM from the driver) may have written some. hz_errmsg() has the
 * sentence.
 */
enum hz_status {
	HZ_OK = 0,
	HZ_EINVAL = -1,		/* a NULL, an option or a value out of its range */
	HZ_EDTYPE = -2,		/* an operand has a dtype that the call does not support */
	HZ_ESHAPE = -3,		/* an operand has the wrong ndim or shape, or a size overflows */
	HZ_ESTRIDE = -4,	/* an operand has strides that the call does not support */
	HZ_EALIAS = -5,		/* operands overlap where the contract does not allow it */
	HZ_EDEVICE = -6,	/* an operand lies on another device than the context's */
	HZ_ENODEV = -7,		/* the device asked for is not there, or cannot be used */
	HZ_ENOMEM = -8,		/* there is not enough memory */
	HZ_EWORKSPACE = -9,	/* the workspace is too small: see hz_reserve() */
	HZ_ENOTSUP = -10,	/* a valid request that this build or device cannot do */
	HZ_ECUDA = -11,		/* the CUDA driver reported an error */
	HZ_EFORK = -12		/* a context with a GPU was used in a child of fork() */
};

/* The name and meaning of a status in English; never NULL. */
HZ_API const char *hz_strerror(int status);

/* The version of the library linked, as "0.2.0". */
HZ_API const char *hz_version(void);

/*
 * The version of the library linked as a number: its HZ_VERSION. If it is not that of the header, a
 * program was compiled for another version.
 */
HZ_API int hz_version_number(void);

/* ---- Types and views ------------------------------------------------------------------------- */

/* Element types. Values are never renumbered. */
enum hz_dtype {
	HZ_F32 = 1,		/* IEEE binary32 */
	HZ_F16 = 2,		/* IEEE binary16 */
	HZ_BF16 = 3,		/* bfloat16: the upper half of binary32 */
	HZ_F64 = 4,		/* IEEE binary64 */
	HZ_S8 = 5,		/* signed and unsigned integers, two's complement */
	HZ_U8 = 6,
	HZ_S16 = 7,
	HZ_U16 = 8,
	HZ_S32 = 9,
	HZ_U32 = 10,
	HZ_S64 = 11,
	HZ_U64 = 12,
	HZ_S4X2 = 13,		/* two signed 4-bit integers, the earlier in the byte's low half */
	HZ_E4M3 = 14,		/* 8-bit float, OCP FP8 E4M3: no Inf, NaN 0x7f, largest 448 */
	HZ_E5M2 = 15,		/* 8-bit float, OCP FP8 E5M2: Inf and NaN, largest 57344 */
	HZ_E8M0 = 16,		/* a power of two, 2^(v - 127), OCP MX scale; 255 is NaN */
	HZ_E2M1X2 = 17,		/* two 4-bit floats, OCP FP4 E2M1: 0 .5 1 1.5 2 3 4 6 and sign */
	HZ_U4X2 = 18,		/* two unsigned 4-bit integers; halves as in S4X2, also above */
	HZ_S2X4 = 19,		/* four signed 2-bit integers, the earliest in the low bits */
	HZ_U2X4 = 20		/* four unsigned 2-bit integers, likewise */
};

/*
 * Bytes of one element, 0 for a value that is no dtype. The packed types S4X2, U4X2, E2M1X2, S2X4
 * and U2X4 have elements of one byte, and the last dimension of a view counts these: pairs or
 * quads.
 */
HZ_API size_t hz_dtype_size(int dtype);

/* The name of a dtype ("f32"), "?" for a value that is no dtype. */
HZ_API const char *hz_dtype_name(int dtype);

/*
 * Where calls run and memory is. HZ_CUDA + i is the i-th CUDA device. HZ_AUTO is for hz_open()
 * alone: a view always names the device of its memory, so a zeroed view is refused.
 */
enum hz_device {
	HZ_AUTO = 0,		/* a GPU if one works, else the CPU */
	HZ_CPU = 1,
	HZ_CUDA = 2
};

#define HZ_MAXDIM 6

/*
 * A view of memory that the caller owns. Element (i0, i1, ...) lies at data plus
 * i0 * stride[0] + i1 * stride[1] + ... elements. Sizes and strides count elements. Strides may be
 * negative in inputs; in outputs no two elements may share an address. Pointers need the alignment
 * of one element only (16 bytes is faster). The layout of this struct is frozen.
 */
typedef struct hz_tensor {
	void *data;
	int16_t dtype;			/* enum hz_dtype */
	int16_t ndim;			/* 0 .. HZ_MAXDIM */
	int32_t device;			/* HZ_CPU or HZ_CUDA + i */
	int64_t shape[HZ_MAXDIM];
	int64_t stride[HZ_MAXDIM];
} hz_tensor;

/* Views of contiguous memory, last dimension fastest. They check nothing; the calls do. */
HZ_API hz_tensor hz_tensor_1d(void *data, int dtype, int device, int64_t n0);
HZ_API hz_tensor hz_tensor_2d(void *data, int dtype, int device, int64_t n0, int64_t n1);
HZ_API hz_tensor hz_tensor_3d(void *data, int dtype, int device, int64_t n0, int64_t n1,
			      int64_t n2);
HZ_API hz_tensor hz_tensor_4d(void *data, int dtype, int device, int64_t n0, int64_t n1,
			      int64_t n2, int64_t n3);

/*
 * A view of contiguous memory with any number of dimensions up to HZ_MAXDIM; ndim is clipped to
 * that.
 */
HZ_API hz_tensor hz_tensor_nd(void *data, int dtype, int device, int ndim, const int64_t *shape);

/* The number of elements, or -1 if the view is malformed or the product overflows. */
HZ_API int64_t hz_tensor_count(const hz_tensor *t);

/* The bytes from the first to the last element of a view; 0 if it is empty, or -1 likewise. */
HZ_API int64_t hz_tensor_bytes(const hz_tensor *t);

/* Whether a view is contiguous, in row-major order: 1 or 0. */
HZ_API int hz_tensor_contiguous(const hz_tensor *t);

/* Whether two views overlap: 1 if their address ranges on one device meet, else 0. */
HZ_API int hz_tensor_overlap(const hz_tensor *a, const hz_tensor *b);

/*
 * Views of the same memory with other dimensions. transpose exchanges dimensions a and b; slice
 * keeps elements begin .. end - 1 of dimension d, begin and end counted from the end if negative
 * and then clipped to the dimension; reshape gives contiguous views another shape, in which one
 * size may be -1: what is left. Dimensions are counted as in NumPy: -1 is the last. They check no
 * memory; what cannot be done gives a view of dtype 0, which every call refuses.
 * HZ_VIEW() is a contiguous view as an argument: HZ_VIEW(data, HZ_F32, HZ_CPU, 3, 96). Not in C++.
 */
#if !defined(__cplusplus) && defined(__STDC_VERSION__) && __STDC_VERSION__ >= 199901L
#define HZ_VIEW(data, dtype, device, ...) \
	((hz_tensor[1]){hz_tensor_nd(data, dtype, device, \
				     (int)(sizeof((int64_t[]){__VA_ARGS__}) / sizeof(int64_t)), \
				     (int64_t[]){__VA_ARGS__})})
#endif
HZ_API hz_tensor hz_view_transpose(const hz_tensor *t, int a, int b);
HZ_API hz_tensor hz_view_slice(const hz_tensor *t, int d, int64_t begin, int64_t end);
HZ_API hz_tensor hz_view_reshape(const hz_tensor *t, int ndim, const int64_t *shape);

/* ---- Context --------------------------------------------------------------------------------- */

/*
 * A context for calls on one device: the implementation chosen for it, a workspace and the last
 * error. It is used by one thread at a time; any number of contexts may be used by as many threads
 * at once.
 */
typedef struct hz_context hz_context;

/* CPU instruction-set levels, each including those before it on its architecture. */
enum hz_isa {
	HZ_ISA_AUTO = 0,	/* the highest that the machine and HURWITZ_ISA allow */
	HZ_ISA_C = 1,		/* what the compiler's baseline has: x86-64-v1, armv8-a */
	HZ_ISA_AVX2 = 2,	/* AVX2, FMA, F16C */
	HZ_ISA_AVX512 = 3,	/* AVX-512 F, BW, DQ, VL, CD */
	HZ_ISA_VNNI = 4,	/* and VNNI, VBMI, BITALG, GFNI, BF16 conversion */
	HZ_ISA_AMX = 5,		/* and AMX tiles, int8 and bf16 */
	HZ_ISA_NEON = 16,	/* armv8-a Advanced SIMD */
	HZ_ISA_DOTPROD = 17	/* and the int8 dot product */
};

/* Memory for the library's own host allocations; align is a power of two. alloc may return NULL. */
typedef struct hz_allocator {
	void *(*alloc)(void *user, size_t bytes, size_t align);
	void (*free)(void *user, void *p, size_t bytes);
	void *user;
} hz_allocator;

/* Levels of the messages that the log function of hz_options gets. */
enum hz_log_level { HZ_LOG_WARNING = 1, HZ_LOG_INFO = 2, HZ_LOG_DEBUG = 3 };

/* Which threads run CPU work. The results have the same bits with all of them. */
enum hz_threading {
	HZ_THREADING_AUTO = 0,	/* CALLBACK if options.parallel_for is set, else HURWITZ_THREADING,
				 * else OPENMP if a variable OMP_... is set, else POOL */
	HZ_THREADING_OPENMP = 1, /* those of the compiler's OpenMP runtime */
	HZ_THREADING_POOL = 2,	/* the library's own; they end when the last context is closed */
	HZ_THREADING_CALLBACK = 3	/* the application's, by options.parallel_for */
};

/* Options of hz_open(). Zeroed fields have their defaults. */
typedef struct hz_options {
	int32_t device;			/* HZ_AUTO, HZ_CPU or HZ_CUDA + i */
	int32_t threads;		/* CPU threads; 0: HURWITZ_THREADS, else automatic */
	int32_t isa;			/* enum hz_isa, the highest level to use */
	uint32_t flags;			/* HZ_NO_TOPOLOGY, _QUAT_PREFER_FAST or _DIRECT */
	int32_t threading;		/* enum hz_threading */
	void *topology;			/* a loaded hwloc_topology_t to read instead of its own */
	const hz_allocator *allocator;	/* copied; NULL: aligned_alloc and free */
	void (*log)(void *user, int level, const char *message);
	void *log_user;
	/*
	 * Runs body(arg, i) once for each i = 0 .. n - 1, in any order, on any threads, even all on
	 * the calling one, and returns when all have returned. No body waits for another. n is at
	 * most the number of threads of the context. NULL: threading says which threads run.
	 */
	void (*parallel_for)(void *user, int n, void (*body)(void *arg, int i), void *arg);
	void *parallel_user;		/* first argument of parallel_for */
	int64_t reserved[4];		/* 0 */
} hz_options;

#define HZ_NO_TOPOLOGY 1u		/* do not call hwloc: ask the operating system alone */
#define HZ_QUAT_PREFER_FAST 2u		/* HZ_QUAT_AUTO means HZ_QUAT_FAST */
#define HZ_QUAT_PREFER_DIRECT 4u	/* HZ_QUAT_AUTO means HZ_QUAT_DIRECT */

/*
 * Opens a context. On failure *ctx is NULL and the reason is in hz_open_errmsg(). options may be
 * NULL. The environment is read here: HURWITZ_DEVICE=cpu|cuda|cuda:N|auto, HURWITZ_THREADS=N,
 * HURWITZ_THREADING=openmp|pool, HURWITZ_ISA=c|avx2|..., HURWITZ_QUAT=auto|direct|fast; options
 * that are set win over it, except that an ISA cap is the lower of both. With HZ_AUTO a GPU that
 * cannot be used is no error: hz_device_info() says why it was not.
 *
 * hz_open() picks device and ISA level once, from hwloc and CUDA device queries; no call decides
 * again. Two more variables are for finding out what happens: HURWITZ_VERBOSE=1 logs one line a
 * call: operation, shapes, dtypes and route, on a CPU also the wall time. It neither times nor
 * waits on a GPU, so that it may be set during graph capture. 2 logs also each route that did not
 * support the call, with the reason. Lines go to options.log at HZ_LOG_DEBUG; without a log
 * function to stderr, each in one write, which is the only thing that the library ever prints.
 * HURWITZ_ROUTE=op:route[,op:route] forces routes (code paths; `hurwitz info --routes` lists them):
 * a route that does not support a call gives HZ_ENOTSUP with the reason. Calls of other operations
 * are not affected, also where their implementation uses op inside.
 *
 * The automatic number of threads is the least of: the machine's cores; those in the affinity mask
 * of the calling thread; OMP_NUM_THREADS (its first number); OMP_THREAD_LIMIT; the quota of CPU
 * time of the process's control groups divided by its period, at least 1. Where OMP_PROC_BIND has
 * bound the initial thread to one place, all places count. hz_info.threads_source says which
 * decided.
 * Errors: HZ_EINVAL, HZ_ENODEV, HZ_ENOMEM, HZ_ENOTSUP (a build without OpenMP), HZ_ECUDA.
 *
 * Example:
 *
 *     const hz_options options = {.threads = 4};	// zeroed fields have their defaults
 *     hz_context *ctx;
 *     if (hz_open(&ctx, &options) != HZ_OK) {
 *             fprintf(stderr, "%s\n", hz_open_errmsg());
 *             return;
 *     }
 *     printf("runs on %s\n", hz_device(ctx) == HZ_CPU ? "the CPU" : "a GPU");
 *     hz_close(ctx);
 */
HZ_API_CHECK int hz_open(hz_context **ctx, const hz_options *options);

/*
 * Closes a context. What it holds is freed, device code included, so a CUDA graph that captured its
 * calls must not run any more; waits for its work on the GPU. NULL is allowed.
 *
 * The threads of the library's own pool end when the last context of the process is closed. In a
 * child of fork() a CPU context works on and starts threads of its own, those of the pool where its
 * parent's were OpenMP's. On a context with a GPU every call there gives HZ_EFORK but hz_close(),
 * hz_device_info(), hz_device() and hz_errmsg().
 */
HZ_API void hz_close(hz_context *ctx);

/* The sentence of the last call on this context that failed; "" if none has. Never NULL. */
HZ_API const char *hz_errmsg(const hz_context *ctx);

/* The sentence of this thread's last hz_open() that failed; "" if none has. */
HZ_API const char *hz_open_errmsg(void);

/* What the context runs on. Strings live as long as the context. */
typedef struct hz_info {
	int32_t device;			/* HZ_CPU or HZ_CUDA + i */
	int32_t isa;			/* enum hz_isa, in use for CPU work */
	int32_t isa_max;		/* the highest that machine and build have */
	int32_t threads;		/* CPU threads that a large call uses */
	int32_t cores;			/* physical cores that the thread of hz_open() may use */
	int32_t numa_nodes;
	int64_t l1d_bytes, l2_bytes, l3_bytes;	/* one core's caches; 0: not known */
	int32_t sm;			/* CUDA: compute capability, 90 for 9.0; else 0 */
	int32_t sm_count;		/* CUDA: number of SMs; else 0 */
	int64_t memory_bytes;		/* of the device in use; 0: not known */
	int32_t cuda_driver;		/* 13000 for 13.0; 0 without a driver */
	int32_t cuda_devices;		/* devices that the driver shows */
	const char *isa_name;		/* "avx512" */
	const char *isa_reason;		/* why no higher level is in use; "" if the highest is */
	const char *cpu_name;		/* "" if not known */
	const char *gpu_name;		/* "" without a GPU in use */
	const char *gpu_reason;		/* why no GPU is in use; "" if one is */
	const char *topology_source;	/* "hwloc 2.9.0", "the application", "sched_getaffinity" */
	const char *threading_name;	/* "openmp", "pool", "callback" */
	const char *threads_source;	/* what decided the number: "OMP_NUM_THREADS" */
	int32_t threading;		/* enum hz_threading, in use */
	int64_t reserved[8];		/* 0 */
} hz_info;

/* Describes what a context runs on: fills *info. Errors: HZ_EINVAL. */
HZ_API int hz_device_info(hz_context *ctx, hz_info *info);

/*
 * Sets the number of CPU threads that later calls on this context use. 0: the number that hz_open()
 * takes where options.threads is 0, that of HURWITZ_THREADS or the automatic one, both as hz_open()
 * found them. More than 1024 are 1024. Nothing is started or ended: the pool starts threads when a
 * call first needs them. Results keep their bits; the workspace that a call needs follows the
 * number, and so do hz_info.threads and threads_source. No effect on calls on a GPU.
 * Errors: HZ_EINVAL (threads is negative; the number stays as it was), HZ_EFORK.
 */
HZ_API_CHECK int hz_set_threads(hz_context *ctx, int threads);

/* The name of an ISA level ("avx512"), "?" for a value that is none. */
HZ_API const char *hz_isa_name(int isa);

/* The device of a context, HZ_CPU or HZ_CUDA + i, as views want it; 0 for NULL. */
HZ_API int hz_device(const hz_context *ctx);

/*
 * Whether a device has an operation with these dtypes: 1 or 0. No context is needed, and no GPU
 * looked at; shapes and options may still be refused.
 *
 *   op      the name of a call without hz_: "hadamard", "quat_mul_bwd"; calls that count bytes or
 *           describe objects, as "lattice_design" and "linear_load", are none and give 0
 *   dtypes  of its operands, enum hz_dtype, in order, without those in structs; 0: any that goes
 *           with the others
 *   n       how many of them are given; 0: whether there is the operation at all
 *   device  HZ_CPU, or HZ_CUDA + i for the device code of this build
 */
HZ_API int hz_supports(const char *op, const int *dtypes, int n, int device);

/* ---- Memory and streams ---------------------------------------------------------------------- */

/*
 * Allocates and frees memory. It is on the context's device (device = hz_device(ctx)) or on the
 * host (device = HZ_CPU), aligned to 64 bytes or better. bytes = 0 gives a pointer that may be
 * freed and not read.
 * Errors: HZ_EINVAL, HZ_EDEVICE, HZ_ENOMEM, HZ_ECUDA, HZ_EFORK.
 */
HZ_API_CHECK int hz_alloc(hz_context *ctx, void **p, size_t bytes, int device);
HZ_API int hz_free(hz_context *ctx, void *p, int device);

/*
 * Copies elements: dst = src, between the host and the context's device or within either. Same
 * dtype and shape; contiguous, or for copies within the host any strides. A copy from or to the GPU
 * is put on the context's stream and may not be finished on return: host memory stays untouched by
 * the caller until hz_sync(). A device-to-host copy that fails half way leaves dst undefined.
 * Errors: HZ_EINVAL, HZ_EDTYPE, HZ_ESHAPE, HZ_ESTRIDE, HZ_EALIAS, HZ_EDEVICE, HZ_ECUDA, HZ_EFORK.
 */
HZ_API_CHECK int hz_copy(hz_context *ctx, const hz_tensor *src, hz_tensor *dst);

/*
 * Sets the CUDA stream that later calls are put on. It is a CUstream, which is what a cudaStream_t
 * is; NULL is the default stream. The caller keeps it alive. No effect on a CPU context. A call may
 * read a packed matrix before the previous kernel of the stream has ended: after a kernel of your
 * own wrote packed data, call hz_set_stream() again, even with the same stream, and the next call
 * waits for that kernel.
 * Errors: HZ_EINVAL, HZ_ECUDA, HZ_EFORK.
 */
HZ_API int hz_set_stream(hz_context *ctx, void *stream);

/*
 * Waits for the context's work. It reports errors that surfaced late. CPU calls never need it.
 * Errors: HZ_EINVAL, HZ_ECUDA, HZ_EFORK.
 */
HZ_API int hz_sync(hz_context *ctx);

/*
 * Reserves or lends the workspace of a context. Some calls need scratch memory on the device;
 * hz_record_begin() finds out how many bytes. hz_reserve() makes the context's own at least that
 * large: it may allocate and synchronise, so it is called before the work and never during graph
 * capture. hz_set_workspace() lends the caller's memory instead (64-byte aligned; NULL, 0 gives it
 * back). On a CPU context the workspace grows by itself. A GPU call never allocates: it returns
 * HZ_EWORKSPACE and says the number. A graph keeps the workspace that it was captured with: one
 * that hz_reserve() replaced is gone.
 * Errors: HZ_EINVAL, HZ_ENOMEM, HZ_EWORKSPACE (during capture), HZ_ECUDA, HZ_EFORK.
 */
HZ_API_CHECK int hz_reserve(hz_context *ctx, size_t bytes);
HZ_API int hz_set_workspace(hz_context *ctx, void *p, size_t bytes);

/*
 * Finds out how much workspace calls need. Between hz_record_begin() and hz_record_end() calls
 * check their arguments as usual, but read and write no operand, launch nothing and return HZ_OK,
 * whatever the workspace is. hz_record_end() sets *bytes to the most that any of them needs.
 *
 * The data of a view may be NULL meanwhile: then *bytes covers every alignment of it, and it
 * overlaps no other operand. Where NULL means that an operand is not given, in the structs
 * hz_mhc_block and hz_mhc_layer, it does so here, too. A packed matrix whose pack call was recorded
 * has no data: recorded calls take it, others refuse it until it is packed. Results depend on
 * shapes, strides, dtypes, options and the number of threads. Calls that manage memory, contexts
 * and objects do what they always do.
 *
 * Example:
 *
 *     if (hz_record_begin(ctx) == HZ_OK)
 *             forward(ctx, model, x, y);	// the calls of a program
 *     if (hz_record_end(ctx, &bytes) == HZ_OK && hz_reserve(ctx, bytes) == HZ_OK)
 *             forward(ctx, model, x, y);
 *
 * Errors: HZ_EINVAL (begin twice, end without begin), HZ_EFORK.
 */
HZ_API_CHECK int hz_record_begin(hz_context *ctx);
HZ_API int hz_record_end(hz_context *ctx, size_t *bytes);

/*
 * Loads all device code. Otherwise the first call of each family does it, and is slower and must
 * not be captured into a graph. No effect on a CPU context.
 * Errors: HZ_EINVAL, HZ_ENOMEM, HZ_ENOTSUP (no code for this GPU), HZ_ECUDA, HZ_EFORK.
 */
HZ_API_CHECK int hz_prepare(hz_context *ctx);

/* ---- Walsh-Hadamard transforms --------------------------------------------------------------- */

/* How a length is made of Hadamard matrices. */
enum hz_plan {
	HZ_PLAN_AUTO = 0,	/* SYLVESTER for powers of two up to max_block, else GREEDY */
	HZ_PLAN_SYLVESTER = 1,	/* one block: n is a power of two */
	HZ_PLAN_GREEDY = 2,	/* powers of two, largest first: 96 = 64 + 32, 21 = 16 + 4 + 1 */
	HZ_PLAN_UNIFORM = 3,	/* the largest power of two that divides n, repeated: 96 = 3 x 32 */
	HZ_PLAN_TRUE = 4	/* one block, n = m 2^k, by a base matrix of order m: 96 = 12 x 8 */
};

/*
 * The base matrix of HZ_PLAN_TRUE, of order m <= 256, no power of two. Each kind also gives 2^j
 * times its orders, as S_2^j (x) B. Named tables let a checkpoint that another library rotated be
 * undone: DAO and QUIP are those libraries' tables entry for entry.
 */
enum hz_base {
	HZ_BASE_AUTO = 0,	/* the first of PALEY2, PALEY1, WILLIAMSON that has the order */
	HZ_BASE_PALEY1 = 1,	/* m = q + 1, q = 3 mod 4 a prime power: skew, not symmetric */
	HZ_BASE_PALEY2 = 2,	/* m = 2 (q + 1), q = 1 mod 4 a prime power: symmetric */
	HZ_BASE_WILLIAMSON = 3,	/* m = 20 28 52 92 116 124 156 172: not symmetric */
	HZ_BASE_DAO = 4,	/* fast-hadamard-transform's and MLX's: 12 20 28 40 */
	HZ_BASE_QUIP = 5	/* QuIP#'s, QuaRot's and SpinQuant's: 12 20 28 36 40 44 52 60 108
				   116 124 140 156 172 */
};

#define HZ_HADAMARD_TRANSPOSE 1u	/* apply the transpose of the whole operator */
#define HZ_HADAMARD_RAW 2u		/* entries +-1: leave out 1/sqrt(length) of each block */
#define HZ_AXIS(i) ((i) < 0 ? (i) : (i) + 1)	/* opts->axis: i as in NumPy, 0 first, -1 last */

/* Options of hz_hadamard() and the calls with a transform. Zeroed fields have their defaults. */
typedef struct hz_hadamard_opts {
	int32_t plan;		/* enum hz_plan */
	int32_t axis;		/* HZ_AXIS(i), the dimension to transform; 0: the last one */
	int64_t block;		/* the plan is for this length, repeated; 0: the whole axis */
	int64_t max_block;	/* AUTO, GREEDY, UNIFORM: largest power of two to use; 0: no limit */
	int64_t min_block;	/* AUTO, GREEDY: a length that needs a smaller one is refused */
	int32_t base;		/* TRUE: enum hz_base */
	int32_t order;		/* TRUE: the order m of the base matrix; 0: 4 x the odd part of n */
	uint32_t flags;		/* HZ_HADAMARD_TRANSPOSE | HZ_HADAMARD_RAW */
	int32_t round_to;	/* HZ_F16 or HZ_BF16: calls that choose scales round to it before
				 * they quantize, others ignore it; 0: no */
	double factor;		/* a further factor of the result, not 0; 0: 1 */
	const hz_tensor *pre;	/* signs or factors before the transform; NULL: none */
	const hz_tensor *post;	/* signs or factors after it; NULL: none */
	int64_t reserved[4];	/* 0 */
} hz_hadamard_opts;

/*
 * Walsh-Hadamard transform along one axis: y = factor * D_post H D_pre x, and with
 * HZ_HADAMARD_TRANSPOSE y = factor * D_pre H^T D_post x, which is the inverse (factor 1, signs) and
 * the backward pass.
 *
 * H is block diagonal: the axis of length N is cut into N / block blocks, each block by the plan
 * into transforms of length b = m 2^k with entries +-1/sqrt(b): B_m (x) S_2^k with S_ij =
 * (-1)^popcount(i & j), natural order, the m part outermost.
 *
 *   x     f32 f16 bf16, any shape of 1 to 6 dimensions, any strides
 *   y     f32 f16 bf16, the shape of x, any strides
 *   opts  NULL: the orthonormal transform of the last axis with HZ_PLAN_AUTO
 *   opts->pre, opts->post  one dimension, contiguous, on the same device: f32 f16 bf16 factors, N
 *         or block of them; or u8 packed signs, ceil(N / 8) or ceil(block / 8) bytes, bit i % 8 of
 *         byte i / 8 set = minus; where both are as many bytes, the signs are those of N
 *
 * Aliasing: y may be x exactly (same data, dtype and strides); any other overlap is refused.
 * Arithmetic is f32 with one rounding to the dtype of y. Butterflies (a + b, a - b) run in
 * ascending strides, then the m part as a sum in ascending order, then one product with
 * fl(factor / sqrt(b)) (and one with post): every ISA, any number of threads gives the same bits.
 * On the GPU f32 results have these bits too; f16 and bf16 results may come from tensor cores,
 * which add in another order, within the accuracy below.
 * Accuracy: ||y - exact||_2 <= (k + m + 2) 2^-24 ||x||_2 (m = 0 if b is a power of two), plus half
 * an ulp of the dtype of y. f16 results beyond 65504 are Inf. NaN and Inf stay inside their block.
 * Overflow: on the CPU, finite results are right although sums on the way to them exceed f32: such
 * transforms are made from x 2^-e. On the GPU they are Inf or NaN if such a sum exceeds 3.4e38,
 * which |x pre| b < 3.4e38 excludes.
 * Lengths b: to 2^24 on the CPU, to 65536 on the GPU; opts->max_block cuts longer ones.
 * Workspace: see hz_record_begin(); none on the GPU.
 * Errors: HZ_EINVAL, HZ_EDTYPE, HZ_ESHAPE, HZ_ESTRIDE, HZ_EALIAS, HZ_EDEVICE, HZ_ENOTSUP,
 * HZ_ENOMEM, HZ_ECUDA, HZ_EFORK.
 * Source: Sylvester 1867; Paley 1933; Williamson 1944; scipy.linalg.hadamard for the order.
 *
 * Example:
 *
 *     float data[4][64] = {{1}};
 *     hz_tensor x = hz_tensor_2d(data, HZ_F32, HZ_CPU, 4, 64);
 *     if (hz_hadamard(ctx, &x, &x, NULL) != HZ_OK)	// 4 transforms of 64, in place
 *             fprintf(stderr, "%s\n", hz_errmsg(ctx));
 */
HZ_API_CHECK int hz_hadamard(hz_context *ctx, const hz_tensor *x, hz_tensor *y,
			     const hz_hadamard_opts *opts);

/*
 * Walsh-Hadamard transform and quantization in one pass: t = hadamard(x) in f32 (rounded to
 * opts->round_to if set), then for each group of G successive elements of a row amax = max |t|, s =
 * amax / qmax, q = clamp(rne(t / s)).
 *
 *   x      f32 f16 bf16, [..., N], any strides; the axis is the last dimension
 *   q      s8 (qmax 127) e4m3 (448) e5m2 (57344) [..., N], or s4x2 (7) [..., N / 2]; the last
 *          dimension contiguous; integers lie in -qmax .. qmax, floats saturate
 *   scale  f32, or e8m0: s rounded up to 2^ceil(log2(amax / qmax)); [..., N / G], contiguous in the
 *          last dimension. Its shape says G: N (one scale a row), or 32, 64 or 128
 *
 * amax = 0 gives s = 1 and q = 0. A group with a NaN, or an Inf, has s = NaN, or Inf (e8m0: 255 for
 * both); its q are 0 in integer formats, in float formats NaN where t or t / s is NaN.
 * A scale below FLT_MIN becomes FLT_MIN; e8m0: below 2^-127, 2^-127. Every q * s is finite: amax =
 * FLT_MAX counts as FLT_MAX - 2^104, and e8m0 is rounded down where qmax * s would be Inf.
 * Codes and scales are the same bits on every ISA and thread count as hadamard() to f32 followed by
 * this definition. On the GPU they are that for x f32; for x f16 and bf16 they are the definition's
 * for some t with ||t - exact||_2 <= (k + m + 3) 2^-24 ||x||_2 in each block, and the same bits
 * where sums are exact (integers) and s is a power of two. No operand may overlap another.
 * Errors: as hz_hadamard().
 */
HZ_API_CHECK int hz_hadamard_quantize(hz_context *ctx, const hz_tensor *x, hz_tensor *q,
				      hz_tensor *scale, const hz_hadamard_opts *opts);

/*
 * Dequantization and the inverse transform: y = the transpose of hz_hadamard() with the same opts,
 * applied to q * s. So with factor 1 it undoes hz_hadamard_quantize() up to the rounding of q;
 * HZ_HADAMARD_TRANSPOSE gives the forward transform instead. Operands as there; y f32 f16 bf16
 * [..., N], any strides.
 * opts->round_to is ignored. Errors: as hz_hadamard().
 */
HZ_API_CHECK int hz_dequantize_hadamard(hz_context *ctx, const hz_tensor *q, const hz_tensor *scale,
					hz_tensor *y, const hz_hadamard_opts *opts);

/*
 * The blocks that a plan makes of a length n: writes up to max lengths, in order, to blocks and
 * returns their number (which may exceed max), or a negative status if the plan cannot make n.
 * opts->plan, block, max_block, min_block, base and order are read; NULL: HZ_PLAN_AUTO.
 * Errors: HZ_EINVAL, HZ_ESHAPE, HZ_ENOTSUP.
 */
HZ_API int64_t hz_hadamard_plan(int64_t n, const hz_hadamard_opts *opts, int64_t *blocks,
				int64_t max);

/*
 * A base matrix of HZ_PLAN_TRUE: writes its order x order entries, +1 and -1, row by row, to
 * entries (unless NULL) and returns 1 if it is symmetric, 0 if not.
 * Errors: HZ_ENOTSUP if there is none of that kind and order.
 */
HZ_API int hz_hadamard_base(int base, int order, int8_t *entries);

/*
 * Makes random signs as packed bits for opts->pre and post, on the host: word w of 64 bits, little
 * endian, is the first output of splitmix64 started at seed + w. bits has ceil(n / 8) bytes; unused
 * bits of the last byte are 0.
 * Errors: HZ_EINVAL.
 */
HZ_API int hz_hadamard_signs(uint8_t *bits, int64_t n, uint64_t seed);

/* ---- Quantized matrix multiplication --------------------------------------------------------- */

/*
 * A code q of an integer type stands for the real number scale * (q - zero), one of a float type
 * for scale * q. The three calls below have one scale and zero point for all elements, or
 * contiguous tensors of them, both of one shape: each dimension is 1 or has the size of the data's,
 * and the last one may divide it, for groups of successive elements. Leading dimensions that the
 * tensors lack are 1, as in NumPy; a tensor of one dimension has the size of the data's last one.
 * For an m x n matrix [1, 1] or [1] is per tensor, [m, 1] per row, [1, n] or [n] per column and [m,
 * n / 64] per group of 64 in a row.
 *
 * Small scales: a scale that the library chooses (hz_choose_qparams(), hz_qlinear(),
 * hz_hadamard_quantize()) is never subnormal: one below FLT_MIN becomes FLT_MIN, and of e8m0 the
 * least is 2^-127. A scale that the caller gives may be subnormal and counts as it is.
 */
#define HZ_QPARAMS_SYMMETRIC 1u		/* zero is 0 for s8 and 128 for u8; max |x| is code 127 */
#define HZ_QPARAMS_SYMMETRIC_127_5 2u	/* likewise, max |x| is 127.5: as PyTorch */
#define HZ_QPARAMS_F32 4u		/* quotients in f32: as ONNX DynamicQuantizeLinear */
#define HZ_QPARAMS_REDUCE_RANGE 8u	/* codes of 7 bits: 0 .. 127 or -64 .. 63 */

/*
 * How hz_quantize() chooses scales: that of a group from amax, its largest magnitude, for a format
 * whose largest number is F = m 2^P, 1 <= m < 2: e2m1 6, e4m3 448, e5m2 57344; s2 s4 s8 s16: 1, 7,
 * 127, 32767. Every step rounds to f32. b is amax, S = min(2688 / G, FLT_MAX) and G the largest
 * magnitude of all of x after the transform; S is 1 if G is 0, Inf or NaN, or if the quotient is 0.
 */
enum hz_scale_rule {
	HZ_SCALE_AUTO = 0,	/* f32: AMAX; e8m0: RCEIL; e4m3: NV_TE */
	HZ_SCALE_AMAX = 1,	/* f32: amax / F, at least FLT_MIN, 1 if amax is 0; FLT_MAX counts as
				 * FLT_MAX - 2^104: q = rne(t/s) */
	HZ_SCALE_FLOOR = 2,	/* e8m0, floats: 2^(floor(log2 amax) - P), OCP MX 1.0 section 6.3 */
	HZ_SCALE_CEIL = 3,	/* e8m0, floats: 2^(ceil(log2 amax) - P) */
	HZ_SCALE_EVEN = 4,	/* e8m0, floats: FLOOR of amax rounded half up to q's mantissa */
	HZ_SCALE_RCEIL = 5,	/* e8m0: 2^ceil(log2(amax / F)), as cuBLAS does; Inf: 2^127 */
	HZ_SCALE_NV_TE = 6,	/* e4m3, e2m1 alone: e4m3(b (S (1 / 6))), as TransformerEngine */
	HZ_SCALE_NV_TORCHAO = 7, /* the same: e4m3(max(b / 6 / p, 2^-6)), p = G / 2688: torchao */
	HZ_SCALE_NV46 = 8	/* groups of 16: e4m3(b / 6 S), or 1.5 times that before the
				 * rounding where the squared error of the group is less (arXiv
				 * 2512.02010) */
};

/* hz_quantize_opts.given: a number whose bit is set holds, 0 too; without its bit it must be 0. */
#define HZ_QUANTIZE_GIVEN_MIN 1u
#define HZ_QUANTIZE_GIVEN_MAX 2u
#define HZ_QUANTIZE_GIVEN_STOCHASTIC 4u

/* Options of hz_quantize() and hz_dequantize(). Zeroed fields have their defaults. */
typedef struct hz_quantize_opts {
	double scale;			/* one for all, > 0, taken as f32; 0: not set */
	int32_t zero;			/* one for all */
	uint32_t flags;			/* 0 */
	const hz_tensor *scales;	/* f32 e8m0 e4m3, instead of scale */
	const hz_tensor *zeros;		/* the dtype of q, with scales; NULL: all 0, so that
					   u8 codes hold no values below 0 */
	const hz_hadamard_opts *hadamard;	/* a rotation of the last axis; NULL: none */
	int64_t group;			/* elements of the last dimension that share a scale; 0: the
					 * shape of the scales says */
	const hz_tensor *tensor_scale;	/* f32, one: a further factor of decoding; NULL: 1 */
	hz_tensor *new_scales;		/* quantize: scales to choose, instead of scale, scales */
	hz_tensor *new_tensor_scale;	/* quantize, with e4m3 scales: their factor to choose */
	int32_t scale_rule;		/* enum hz_scale_rule, with new_scales */
	uint32_t given;			/* HZ_QUANTIZE_GIVEN_MIN | _MAX | _STOCHASTIC */
	int32_t min, max;		/* quantize, integers: bounds of q */
	uint64_t stochastic;		/* quantize: the seed of stochastic rounding */
	int64_t reserved[4];		/* 0 */
} hz_quantize_opts;

/*
 * Quantizes a tensor: q = clamp(zero + rne(t / scale)) to the range of its type, t being x or, with
 * opts->hadamard, what hz_hadamard() makes of x as f32, in the same pass over memory. For a float
 * type q is t / scale rounded to nearest, ties to even, beyond the largest number to that.
 *
 *   x     f32 f16 bf16, any shape of 0 to 6 dimensions, any strides
 *   q     u8 s8 u16 s16 e4m3 e5m2, the shape of x, any strides; or u4x2 s4x2 e2m1x2, whose last
 *         dimension is half of x's, or u2x4 s2x4, a quarter of it, and is contiguous
 *   opts  scale, scales or new_scales must be set: no default fits data
 *   opts->scales  f32 e8m0 e4m3, for example from hz_choose_qparams(). With opts->group the last
 *         dimension counts groups, of which the last one may be shorter, or is 1
 *   opts->zeros  the shape of scales; the dtype of q, but s8 or u8 for packed integers; not for
 *         floats, whose zero is 0 and leaves -0 as it is; onnx 1.23 adds it for e2m1 alone, so
 *         that its node test codes -0 as 0
 *   opts->tensor_scale  each scale counts as fl(scale * tensor_scale)
 *   opts->new_scales  f32, e8m0, or e4m3 for q e2m1x2, the shape that scales would have, not shared
 *         by rows: scales by opts->scale_rule are written. q is a float, or signed and clamped to
 *         -F .. F where opts->min and max are not given. Groups have a whole number of bytes of q.
 *         Nothing is written if x has no elements
 *   opts->new_tensor_scale  f32, one, written: 1 / S, or p by NV_TORCHAO, where x as a whole is read
 *         first. With opts->tensor_scale instead, p is that, S = 1 / p and G = 2688 p; with neither
 *         p is 1
 *   opts->min, max  q is clamped to these instead of the range of its type
 *   opts->hadamard  the transform of the last dimension, of 1 to 6 dimensions; its round_to is
 *         ignored without new_scales
 *
 * Chosen scales: a group with NaN has a NaN scale (e8m0 255, e4m3 0x7f); e8m0 is at least 2^-127,
 * also for amax = 0, and log2 of Inf counts as 128. Values become quotients as their engines do it:
 * t 2^-e for e8m0; t r, r = min(1 / (d p), FLT_MAX) with d the e4m3 scale, or r = 1 / p / d by
 * NV_TORCHAO. By NV46 an error is the sum of (v - t)^2 in ascending order, v = code d G / 2688; a
 * tie keeps the scale of 6, and so does a G of Inf or NaN.
 * TransformerEngine's recipe is new_scales e4m3 and new_tensor_scale with group = 16, and a
 * transform with block = 16, round_to = HZ_BF16 and pre = signs of bytes e8 d7. Stochastic rounding
 * (opts->given has HZ_QUANTIZE_GIVEN_STOCHASTIC): a quotient between two codes becomes the upper
 * one, for floats the one of larger magnitude, if u < (its distance to the other) / (the distance
 * of the two). u of element i, counted in C order of x, is the upper 24 bits of the first output of
 * splitmix64 started at stochastic + i, times 2^-24. NV46 chooses as if it rounded to nearest.
 * Aliasing: no operand may overlap another.
 * Arithmetic: the quotient is that of IEEE division in f32, rne() goes to the nearest integer, ties
 * to even, and nothing overflows: +-Inf saturate. NaN gives zero, in e4m3 and e5m2 NaN (0x7f);
 * of integers ONNX Runtime 1.32 gives the least one and PyTorch 2.11 the greatest. Quotients from
 * 2^31 on, which become the greatest code here, are the least one to onnx 1.23's evaluator.
 * Codes are the same bits on every ISA, thread count and GPU; but with a transform of f16 or bf16
 * on the GPU those of some t as hz_hadamard_quantize() says. Values in scales are not checked: the
 * formula holds for all of them. For ranges of transformed data, give hz_choose_qparams() the
 * result of hz_hadamard().
 * Workspace: see hz_record_begin(); none without a transform or new_tensor_scale.
 * Errors: HZ_EINVAL, HZ_EDTYPE, HZ_ESHAPE, HZ_ESTRIDE, HZ_EALIAS, HZ_EDEVICE, HZ_ECUDA, HZ_EFORK;
 * with a transform HZ_ENOTSUP, HZ_ENOMEM and HZ_EWORKSPACE too.
 * Source: ONNX QuantizeLinear; OCP Microscaling Formats 1.0; TransformerEngine's and torchao's
 * quantization to NVFP4.
 *
 * Example:
 *
 *     float data[4][64] = {{1}}, scales[4];
 *     int8_t codes[4][64];
 *     const hz_tensor x = hz_tensor_2d(data, HZ_F32, HZ_CPU, 4, 64);
 *     hz_tensor q = hz_tensor_2d(codes, HZ_S8, HZ_CPU, 4, 64);
 *     hz_tensor s = hz_tensor_2d(scales, HZ_F32, HZ_CPU, 4, 1);	// one for each row
 *     const hz_quantize_opts opts = {.scales = &s};
 *     if (hz_choose_qparams(ctx, &x, &s, NULL, HZ_QPARAMS_SYMMETRIC) != HZ_OK ||
 *         hz_quantize(ctx, &x, &q, &opts) != HZ_OK)
 *             fprintf(stderr, "%s\n", hz_errmsg(ctx));
 */
HZ_API_CHECK int hz_quantize(hz_context *ctx, const hz_tensor *x, hz_tensor *q,
			     const hz_quantize_opts *opts);

/*
 * Dequantizes a tensor, the inverse of hz_quantize(): y = scale * (q - zero), f32 with one
 * rounding, then one to the dtype of y; with opts->hadamard the transpose of that transform is
 * applied in between, in f32. With opts->tensor_scale y = fl(fl(scale * (q - zero)) *
 * tensor_scale). Operands as of hz_quantize(); min, max, stochastic, new_scales, new_tensor_scale
 * and scale_rule must not be set.
 * Errors: as hz_quantize().
 */
HZ_API_CHECK int hz_dequantize(hz_context *ctx, const hz_tensor *q, hz_tensor *y,
			       const hz_quantize_opts *opts);

/*
 * Scales and zero points from the range of values: of lo .. hi of x, in which 0 is always counted,
 * scale = (hi - lo) / 255, zero = clamp(rne(qmin - lo / scale)), qmin being 0 or -128; with
 * HZ_QPARAMS_SYMMETRIC scale = max(-lo, hi) / 127, with HZ_QPARAMS_SYMMETRIC_127_5 max(-lo, hi) /
 * 127.5. With HZ_QPARAMS_REDUCE_RANGE qmin is 0 or -64, the divisors are 127, 63 and 63.5, and the
 * zero point of a symmetric u8 is 64.
 *
 *   x      f32 f16 bf16, any shape, any strides
 *   scale  f32; its shape says what has parameters of its own, as above
 *   zero   u8 s8, the shape of scale: its dtype is the one to quantize to; NULL with a symmetric
 *          flag stands for s8, whose zero points are 0: hz_quantize() and hz_dequantize() then
 *          have opts->zeros = NULL. u8 needs its zero points, 128: without them hz_quantize()
 *          makes 0 of every x < 0
 *   flags  HZ_QPARAMS_SYMMETRIC or HZ_QPARAMS_SYMMETRIC_127_5, HZ_QPARAMS_F32,
 *          HZ_QPARAMS_REDUCE_RANGE
 *
 * Aliasing: no operand may overlap another. scale and zero are contiguous.
 * Arithmetic: differences and quotients are taken in double, scale is rounded once to f32, and zero
 * is computed from the scale so rounded. With HZ_QPARAMS_F32 each of them is rounded to f32, and
 * FLT_MAX stands for a difference beyond it. A scale below FLT_MIN becomes FLT_MIN, or 1 if lo = hi
 * = 0, as of no elements. Every code dequantizes to a finite f32: where scale * k, k the largest |q
 * - zero| of any code q, exceeds FLT_MAX, scale becomes (FLT_MAX - 2^104) / k, rounded to f32; zero
 * stays. NaN is left out of the range. With an Inf the call is refused on the CPU; on the GPU,
 * which would have to be waited for, such a scale is Inf and its zero that of a symmetric range.
 * The same bits on every ISA, thread count and GPU.
 * Workspace: see hz_record_begin().
 * Errors: as hz_quantize().
 */
HZ_API_CHECK int hz_choose_qparams(hz_context *ctx, const hz_tensor *x, hz_tensor *scale,
				   hz_tensor *zero, uint32_t flags);

/*
 * A packed matrix: B, or several, in the order in which hz_qgemm() reads it, with the sums of its
 * columns: filled by hz_qgemm_pack() and read-only then; likewise by hz_quat_gemm_pack() and
 * hz_vlut_pack(). The struct lies on the host and may be copied, the data on a device. What one
 * context has packed every context with the same kind of device can use, whatever its ISA, and any
 * number at once. Both may be kept in a file, for this version of the library.
 */
typedef struct hz_packed {
	void *data;			/* 64-byte aligned, on device */
	size_t bytes;			/* all of it */
	int32_t device;			/* HZ_CPU or HZ_CUDA + i */
	int16_t dtype, ndim;		/* of B */
	int64_t shape[HZ_MAXDIM];	/* of B: [..., k, n] */
	uint32_t layout;		/* how data is laid out: internal */
	uint32_t check;			/* a sum over all of these but data and device */
	int64_t reserved[4];		/* 0 */
} hz_packed;

/* How an integer accumulator becomes a result: y is about acc * sigma, see hz_qgemm(). */
enum hz_requant {
	HZ_REQUANT_EXACT = 0,		/* rounded once, in integers */
	HZ_REQUANT_FLOAT = 1,		/* in f32: ONNX Runtime, XNNPACK, FBGEMM, PyTorch */
	HZ_REQUANT_RUY = 2,		/* rounded twice, up: LiteRT's optimized kernels */
	HZ_REQUANT_GEMMLOWP = 3,	/* rounded twice: gemmlowp, TensorFlow Lite Micro */
	HZ_REQUANT_LITERT_REF = 4	/* in f64: LiteRT's reference kernels */
};

#define HZ_QGEMM_RELU 1u		/* results are at least c_zero (0 if they are float) */
#define HZ_QLINEAR_SYMMETRIC 2u		/* qlinear: rows are quantized with HZ_QPARAMS_SYMMETRIC */

/* hz_qgemm_opts.given: a number whose bit is set holds, 0 too; without its bit it must be 0. */
#define HZ_QGEMM_GIVEN_MIN 1u
#define HZ_QGEMM_GIVEN_MAX 2u

/* Options of hz_qgemm() and hz_qlinear(). Zeroed fields have their defaults. */
typedef struct hz_qgemm_opts {
	int32_t a_zero, b_zero, c_zero;	/* in the range of the type; s32: any; float C: 0 */
	uint32_t flags;			/* HZ_QGEMM_RELU, HZ_QLINEAR_SYMMETRIC */
	double a_scale, b_scale, c_scale;	/* > 0, taken as f32; 0 stands for 1 */
	double sigma;			/* integer C: instead of the scales, > 0 */
	int32_t multiplier, shift;	/* integer C: instead, sigma = multiplier / 2^shift, > 0,
					   1 .. 62 */
	int32_t requant;		/* enum hz_requant */
	int32_t x_dtype;		/* qlinear: HZ_U8 or HZ_S8, what x is quantized to; 0: u8 */
	double min, max;		/* further bounds of C, if given says so */
	uint32_t given;			/* HZ_QGEMM_GIVEN_MIN | HZ_QGEMM_GIVEN_MAX */
	/* For rows: [..., m] or [..., m, 1] as C, or one element; for columns: [n] or [1, n] */
	const hz_tensor *a_zeros;	/* a_dtype, for rows, instead of a_zero */
	const hz_tensor *b_zeros;	/* b_dtype [n], instead of b_zero */
	const hz_tensor *a_scales;	/* f32, for rows, instead of a_scale; float C alone */
	const hz_tensor *b_scales;	/* f32 [n] or one element, instead of b_scale */
	const hz_tensor *multipliers;	/* s32 [n], instead of multiplier and shift */
	const hz_tensor *shifts;	/* s32 [n] */
	const hz_tensor *bias;		/* s32 [n]; float C or HZ_REQUANT_FLOAT: f32 [n] as well */
	const hz_packed *packed;	/* B, instead of the operand b, which is then NULL */
	int64_t reserved[4];		/* 0 */
} hz_qgemm_opts;

/*
 * Quantized matrix multiplication: C = clamp(c_zero + round(sigma * acc)) with acc = (A - a_zero)
 * (B - b_zero) + bias and sigma = a_scale * b_scale / c_scale, in integers alone; or with a float C
 * = acc * b_scale * a_scale + bias.
 *
 *   a     u8 s8 [..., m, k], any strides
 *   b     u8 s8 [..., k, n], any strides; NULL with opts->packed
 *   c     u8 s8 s32 f32 f16 bf16 [..., m, n], any strides
 *   opts  NULL: zero points 0, scales 1. Its tensors are contiguous, on the context's device
 *
 * Dimensions before the last two are a batch; those that a or b lacks, or has the size 1 of, are
 * broadcast. A transposed matrix is a view with its last two dimensions swapped, shape and strides:
 * hz_view_transpose(). k is at most 8388608 (2^23); k = 0 gives acc = bias. n or m may be 0.
 *
 * Aliasing: c overlaps no other operand.
 * Arithmetic: acc is exact for any k and any bias, then clamped to s32. sigma is fl(fl(a_scale *
 * b_scale) / c_scale) in f32, as it is for each column of b_scales, and exactly u / 2^s with
 * 2^30 <= u < 2^31; opts->sigma is rounded to such a u, to nearest even. With r = max(s - 31, 0)
 * and v = clamp_s32(acc 2^max(31 - s, 0)) u, opts->requant gives
 *
 *   EXACT       y = floor((acc u + 2^(s-1)) / 2^s), or acc u 2^-s for s < 1: ties go up
 *   FLOAT       y = rne(fl(fl(acc) sigma)), ties to even, with opts->sigma rounded to f32; with an
 *               f32 bias rne(fl(fl(fl(acc) + fl(bias / fl(a_scale b_scale))) sigma)); NaN gives 0
 *   RUY         y = floor((h + 2^(r-1)) / 2^r) of h = floor((v + 2^30) / 2^31), y = h for r = 0
 *   GEMMLOWP    y = RoundingDivideByPOT(SaturatingRoundingDoublingHighMul(..), r): v / 2^31, then
 *               that / 2^r, each rounded to nearest, ties up in the first and away from 0 in the
 *               second
 *   LITERT_REF  y = fl64(acc sigma), ties away from zero, with sigma = fl64(a_scale b_scale /
 *               c_scale), or opts->sigma, in f64
 *
 * FLOAT and LITERT_REF have no multipliers. LiteRT makes those of RUY and GEMMLOWP from a sigma in
 * f64: hz_qgemm_multiplier() does so. Nothing wraps: c_zero + y is clamped to the type of C and by
 * opts. A column whose sigma is not positive and finite, or whose multiplier or shift is out of
 * range, has y = 0.
 * A float C is fl(fl(fl(acc) b_scale) a_scale), plus an f32 bias if there is one, each rounded to
 * f32; then clamped, where NaN stays, then rounded to its dtype.
 * Every result has the same bits on every ISA, thread count and GPU, but for those of a NaN.
 * Workspace: see hz_record_begin(); large if b is not packed.
 * Errors: HZ_EINVAL, HZ_EDTYPE, HZ_ESHAPE, HZ_ESTRIDE, HZ_EALIAS, HZ_EDEVICE, HZ_ENOTSUP,
 * HZ_ENOMEM, HZ_EWORKSPACE, HZ_ECUDA, HZ_EFORK.
 * Source: Jacob et al. 2018, "Quantization and Training of Neural Networks for Efficient
 * Integer-Arithmetic-Only Inference", equations 4 to 8.
 *
 * Example:
 *
 *     uint8_t codes_a[8][64] = {{130}};
 *     int8_t codes_b[64][16] = {{5}};
 *     float result[8][16];
 *     const hz_tensor a = hz_tensor_2d(codes_a, HZ_U8, HZ_CPU, 8, 64);
 *     const hz_tensor b = hz_tensor_2d(codes_b, HZ_S8, HZ_CPU, 64, 16);
 *     hz_tensor c = hz_tensor_2d(result, HZ_F32, HZ_CPU, 8, 16);
 *     const hz_qgemm_opts opts = {.a_scale = 0.05, .a_zero = 128, .b_scale = 0.01};
 *     if (hz_qgemm(ctx, &a, &b, &c, &opts) != HZ_OK)	// 0.05 (a - 128) times 0.01 b
 *             fprintf(stderr, "%s\n", hz_errmsg(ctx));
 */
HZ_API_CHECK int hz_qgemm(hz_context *ctx, const hz_tensor *a, const hz_tensor *b, hz_tensor *c,
			  const hz_qgemm_opts *opts);

/*
 * Packs B for hz_qgemm() and hz_qlinear(): worth it for a B that is used more than once. data has
 * hz_qgemm_pack_bytes() bytes on the context's device, aligned to 64, and stays the caller's.
 *
 *   b       u8 s8 [..., k, n], any strides
 *   packed  filled; data must live as long as it is used
 *
 * Aliasing: data does not overlap b.
 * Errors: HZ_EINVAL, HZ_EDTYPE, HZ_ESHAPE, HZ_EALIAS, HZ_EDEVICE, HZ_ENOTSUP, HZ_ECUDA, HZ_EFORK.
 */
HZ_API_CHECK int hz_qgemm_pack(hz_context *ctx, const hz_tensor *b, void *data, size_t bytes,
			       hz_packed *packed);
HZ_API_CHECK int hz_qgemm_pack_bytes(hz_context *ctx, const hz_tensor *b, size_t *bytes);

/*
 * The multiplier and shift of a factor: sigma = u / 2^s, 2^30 <= u < 2^31, to nearest even where a
 * double has more bits. A sigma below 2^-32 gives u = 0, s = 1, from 2^30 on s is less than 1.
 * Errors: HZ_EINVAL if sigma is not positive and finite.
 */
HZ_API_CHECK int hz_qgemm_multiplier(double sigma, int32_t *multiplier, int32_t *shift);

/*
 * Linear layer with dynamic activation quantization: y = x W + bias. The result is exactly that of
 * hz_choose_qparams() for each row of x, hz_quantize(), then hz_qgemm() of the codes and b to a
 * float y.
 *
 *   x     f32 f16 bf16 [..., m, k], any strides
 *   b     the codes of W, u8 s8 [..., k, n], any strides; NULL with opts->packed
 *   y     f32 f16 bf16 [..., m, n], any strides
 *   opts  b_zero(s), b_scale(s), bias, min, max, given and flags as of hz_qgemm(), x_dtype; a_scale
 *         > 0 quantizes all of x with it and a_zero, instead of each row by its range
 *
 * On a GPU the codes of up to 2 rows, 4 with a_scale, stay inside one launch if opts->packed is
 * given, k is at most 4096 and a multiple of what 16 bytes of x hold, rows begin at multiples of 16
 * bytes, and n is at most 32 for each SM. Else they are in the workspace, written by a
 * launch ahead of that of the product: to make them again for each tile of columns takes longer.
 *
 * A row with an Inf has the scale Inf and codes that are its zero, so it gives NaN, or an Inf where
 * an s32 bias is not 0. A NaN in x counts as 0. All else as of hz_qgemm(). Errors: as hz_qgemm().
 */
HZ_API_CHECK int hz_qlinear(hz_context *ctx, const hz_tensor *x, const hz_tensor *b, hz_tensor *y,
			    const hz_qgemm_opts *opts);

/* hz_qlinear_group_opts.given: a number whose bit is set holds, 0 too; without it it must be 0. */
#define HZ_QLINEAR_GROUP_GIVEN_MIN 1u
#define HZ_QLINEAR_GROUP_GIVEN_MAX 2u

/* Options of hz_qlinear_group() and hz_qlinear_group_pack(). Zeroed fields have their defaults. */
typedef struct hz_qlinear_group_opts {
	int64_t group;			/* 16, 32, 64 or 128 of k; 0: the shape of scales says */
	const hz_tensor *zeros;		/* u8 or s8, the shape of scales; NULL: all 0 */
	const hz_tensor *tensor_scale;	/* f32, one: a further factor of each scale; NULL: 1 */
	const hz_packed *packed;	/* W: w, scales and the three fields above are then unset */
	const hz_tensor *x_scales;	/* f32 [..., m, 1] or [..., m, k / 32], for x of s8 */
	const hz_tensor *bias;		/* f32 [n] */
	int32_t x_dtype;		/* HZ_S8: floats x become s8 codes first; 0: they do not */
	int32_t x_group;		/* with it: 32 values of k share a scale; 0: a row does */
	uint32_t flags;			/* HZ_QGEMM_RELU */
	uint32_t given;			/* HZ_QLINEAR_GROUP_GIVEN_MIN | _MAX */
	double min, max;		/* bounds of y, if given says so */
	int64_t reserved[4];		/* 0 */
} hz_qlinear_group_opts;

/*
 * Linear layer with group-wise quantized weights: y = x W + bias, W(l, j) = scale(l / group, j) *
 * (w(l, j) - zero(l / group, j)): groups of successive l of a column share a scale and zero point.
 *
 *   x       f32 f16 bf16 [..., m, k], any strides; or codes, s8, with opts->x_scales (NULL: 1)
 *   w       u8 s8 e4m3 [k, n] or u4x2 s4x2 e2m1x2 [k / 2, n], bytes of two codes of successive l;
 *           any strides: a checkpoint's [n, k] or [n, k / 2] is given by hz_view_transpose().
 *           NULL with opts->packed
 *   scales  f32 f16 bf16 e8m0 e4m3 [k / group, n], any strides; [1, n]: one for a column. With
 *           opts->group the last group may be shorter. NULL with opts->packed
 *   y       f32 f16 bf16 [..., m, n], any strides
 *   opts    NULL: zero points 0, and x counts as it is
 *   opts->zeros  u8 for w of u4x2 and u8, s8 for s4x2 and s8; any strides; not for floats
 *
 * So MXFP4 is w e2m1x2 with scales e8m0 in groups of 32, NVFP4 e2m1x2 with e4m3 in groups of 16 and
 * a tensor_scale. Codes of AWQ and GPTQ are u4x2 with f16 in groups of 128 and zeros, once their
 * 32-bit words of eight have been unpacked.
 *
 * Floats x (weight-only quantization, W4A16): |y - exact| <= (k + 8) 2^-22 sum_l |x W(l, j)| before
 * y is rounded to its dtype. Sums are f32, also those of x (w - zero) in a group, ahead of its
 * scale: beyond FLT_MAX they are Inf or NaN. w - zero is exact.
 * Codes x, integers (W4A8, W8A8), w not e4m3: with x_dtype = HZ_S8 x becomes s8 as by
 * hz_choose_qparams() with HZ_QPARAMS_SYMMETRIC, of each row or each 32 of its values, and
 * hz_quantize(). A unit of k is min(group, 128), and 32 at most where 32 values of x share a scale.
 * With the exact S = sum of x (w - zero) over a unit and s = fl(scale tensor_scale)
 *
 *   t = fl(S fl(x_scale s)),  c = the sum of t in 512 successive l,  y = the sum of c
 *
 * both sums in ascending order, from 0, each step rounded to f32, without fused multiply-adds.
 * These have the same bits on every ISA, thread count and GPU, but for those of a NaN.
 * Then y + bias in f32, at least 0 with HZ_QGEMM_RELU, clamped where NaN stays, and one rounding.
 * Aliasing: y overlaps no other operand. k is at most 8388608 (2^23).
 * Workspace: see hz_record_begin(); on a GPU large if W is not packed.
 * Errors: as hz_qgemm().
 * Source: Frantar et al. 2022, "GPTQ"; Lin et al. 2023, "AWQ"; OCP Microscaling Formats 1.0.
 *
 * Example:
 *
 *     uint8_t nibbles[16][64 / 2] = {{0x98}};		// [n, k / 2]
 *     float data[2][64] = {{1}}, s[16][2] = {{0.5f}}, result[2][16];
 *     const hz_tensor x = hz_tensor_2d(data, HZ_F32, HZ_CPU, 2, 64);
 *     const hz_tensor w = hz_tensor_2d(nibbles, HZ_U4X2, HZ_CPU, 16, 32);
 *     const hz_tensor scales = hz_tensor_2d(s, HZ_F32, HZ_CPU, 16, 2);	// groups of 32
 *     const hz_tensor wt = hz_view_transpose(&w, 0, 1), st = hz_view_transpose(&scales, 0, 1);
 *     hz_tensor y = hz_tensor_2d(result, HZ_F32, HZ_CPU, 2, 16);
 *     const hz_qlinear_group_opts opts = {.x_dtype = HZ_S8, .x_group = 32};
 *     if (hz_qlinear_group(ctx, &x, &wt, &st, &y, &opts) != HZ_OK)
 *             fprintf(stderr, "%s\n", hz_errmsg(ctx));
 */
HZ_API_CHECK int hz_qlinear_group(hz_context *ctx, const hz_tensor *x, const hz_tensor *w,
				  const hz_tensor *scales, hz_tensor *y,
				  const hz_qlinear_group_opts *opts);

/*
 * Packs W with its scales and zero points for hz_qlinear_group(): worth it for a W that is used
 * more than once. data has hz_qlinear_group_pack_bytes() bytes on the context's device, aligned to
 * 64, and stays the caller's.
 *
 *   w, scales  as of hz_qlinear_group()
 *   opts       group, zeros and tensor_scale count; the others must not be set
 *   packed     filled; data must live as long as it is used
 *
 * Aliasing: data overlaps no operand. Errors: as hz_qgemm_pack().
 */
HZ_API_CHECK int hz_qlinear_group_pack(hz_context *ctx, const hz_tensor *w, const hz_tensor *scales,
				       const hz_qlinear_group_opts *opts, void *data, size_t bytes,
				       hz_packed *packed);
HZ_API_CHECK int hz_qlinear_group_pack_bytes(hz_context *ctx, const hz_tensor *w,
					     const hz_tensor *scales,
					     const hz_qlinear_group_opts *opts, size_t *bytes);

/* ---- Quaternions ----------------------------------------------------------------------------- */

/*
 * A quaternion tensor is a tensor whose last dimension has the size 4: w, x, y, z of q = w + xi +
 * yj + zk, or x, y, z, w in all operands of a call with HZ_QUAT_XYZW. Its shape without that
 * dimension is its quaternion shape. Strides say the layout: [n, 4] contiguous; four planes, of
 * strides {1, n}; [batch, m, 4] of strides {4 m, 1, m} is the r|i|j|k block layout of PyTorch's
 * quaternion libraries, whose [batch, 4 m] tensors need no copy.
 *
 * What the elementwise calls, hz_quat_mul() to hz_quat_slerp(), have in common: operands have
 * one dtype, f32 f16 bf16, or f64 on the CPU, and any strides, with at most five dimensions of
 * quaternions. Where operands are said to be broadcast, dimensions that they lack on the left, or
 * have the size 1 of, are repeated, as in NumPy.
 *
 * Arithmetic is in f32 (f64 for f64) with one rounding to the dtype at the end, and may use
 * multiply-adds. Each component of a product has an error of at most 4 u |a| |b|, u being 2^-24 or
 * 2^-53, plus that rounding; norms, normalization, inverse and rotation by a unit quaternion of at
 * most 8 u of the result's norm. Sums add f32 sums of at most 1024 terms in f64 (on the GPU f32),
 * in an order that depends on shapes and strides alone: the same bits for any number of threads and
 * in every run. NaN and Inf go where the formulas put them, so a product by a NaN or Inf component
 * is NaN or Inf in all components.
 * Errors: HZ_EINVAL, HZ_EDTYPE, HZ_ESHAPE, HZ_ESTRIDE, HZ_EALIAS, HZ_EDEVICE, HZ_ENOTSUP (f64 on a
 * GPU), HZ_ENOMEM, HZ_EWORKSPACE, HZ_ECUDA, HZ_EFORK.
 */
#define HZ_QUAT_XYZW 1u			/* components are in the order x, y, z, w */
#define HZ_QUAT_CONJ_A 2u		/* quat_mul, quat_dot: the conjugate of a, of b */
#define HZ_QUAT_CONJ_B 4u
#define HZ_QUAT_REVERSED 8u		/* factors in the other order: b a instead of a b */
#define HZ_QUAT_ACCUMULATE 16u		/* results are added to what outputs hold */
#define HZ_QUAT_BIAS_COLUMNS 64u	/* quat_gemm: bias has an element for each column of C */
#define HZ_QUAT_SQUARED 128u		/* quat_norm: |x|^2 */
#define HZ_QUAT_NORMALIZE 256u		/* quat_rotate: by q / |q| */
#define HZ_QUAT_INVERSE 512u		/* quat_rotate: by conj(q) */
#define HZ_QUAT_KEEP_SIGN 1024u		/* quat_slerp: to b, not to -b where that is nearer */

/*
 * Hamilton product: y = a b, elementwise, or b a with HZ_QUAT_REVERSED.
 *
 *   a, b   [..., 4], broadcast to the shape of y
 *   y      [..., 4]
 *   flags  HZ_QUAT_XYZW | CONJ_A | CONJ_B | REVERSED | ACCUMULATE
 *
 * Aliasing: y may be a or b exactly (same data, shape and strides) or both.
 * Workspace: none.
 * Source: Hamilton 1844.
 *
 * Example:
 *
 *     float one[2][4] = {{0, 1, 0, 0}, {0, 0, 1, 0}}, other[2][4] = {{0, 0, 1, 0}, {1, 0, 0, 0}};
 *     float result[2][4];
 *     const hz_tensor a = hz_tensor_2d(one, HZ_F32, HZ_CPU, 2, 4);
 *     const hz_tensor b = hz_tensor_2d(other, HZ_F32, HZ_CPU, 2, 4);
 *     hz_tensor y = hz_tensor_2d(result, HZ_F32, HZ_CPU, 2, 4);
 *     if (hz_quat_mul(ctx, &a, &b, &y, 0) != HZ_OK)	// i j = k and j 1 = j
 *             fprintf(stderr, "%s\n", hz_errmsg(ctx));
 */
HZ_API_CHECK int hz_quat_mul(hz_context *ctx, const hz_tensor *a, const hz_tensor *b, hz_tensor *y,
			     uint32_t flags);

/*
 * Its gradients: of y = a b, da = dy conj(b) and db = conj(a) dy, and so on with the flags that
 * hz_quat_mul() had, but that HZ_QUAT_ACCUMULATE adds to da and db. Where a or b was broadcast, the
 * gradient is summed.
 *
 *   a, b    as there
 *   dy      [..., 4], the gradient of y
 *   da, db  the shapes of a and b; either may be NULL: not wanted
 *
 * Aliasing: da and db overlap nothing.
 * Workspace: see hz_record_begin().
 */
HZ_API_CHECK int hz_quat_mul_bwd(hz_context *ctx, const hz_tensor *a, const hz_tensor *b,
				 const hz_tensor *dy, hz_tensor *da, hz_tensor *db, uint32_t flags);

/*
 * Sums of quaternion products over the last dimension but one: y = the sum over l of conj(a[...,
 * l]) b[..., l], or its real part, which is the dot product of vectors of four. With HZ_QUAT_CONJ_A
 * a is not conjugated, with HZ_QUAT_CONJ_B b is; with HZ_QUAT_REVERSED the factors change places.
 *
 *   a, b   [..., l, 4], broadcast to the shape of y, and to each other in l
 *   y      [..., 4], or [..., 1] for the real part; no dimension for l
 *   flags  HZ_QUAT_XYZW | CONJ_A | CONJ_B | REVERSED | ACCUMULATE
 *
 * Its gradients for y of quaternions are db = a dy and da = b conj(dy), by hz_quat_mul().
 * Aliasing: y overlaps nothing.
 * Workspace: see hz_record_begin().
 */
HZ_API_CHECK int hz_quat_dot(hz_context *ctx, const hz_tensor *a, const hz_tensor *b, hz_tensor *y,
			     uint32_t flags);

/*
 * Conjugates of quaternions: y = conj(x) = w - xi - yj - zk. It is its own gradient.
 *
 *   x, y   [..., 4], of one shape
 *   flags  HZ_QUAT_XYZW
 *
 * Aliasing: y may be x exactly. Workspace: none.
 */
HZ_API_CHECK int hz_quat_conj(hz_context *ctx, const hz_tensor *x, hz_tensor *y, uint32_t flags);

/*
 * Scaled addition of quaternions: y = y + alpha x, or y + x alpha with HZ_QUAT_REVERSED. dx +=
 * conj(alpha) dy is its gradient.
 *
 *   alpha  w, x, y, z; taken as f32 unless the operands are f64
 *   x      [..., 4], broadcast to the shape of y
 *   y      [..., 4]
 *   flags  HZ_QUAT_XYZW | REVERSED
 *
 * Aliasing: y may be x exactly. Workspace: none.
 */
HZ_API_CHECK int hz_quat_axpy(hz_context *ctx, const double alpha[4], const hz_tensor *x,
			      hz_tensor *y, uint32_t flags);

/*
 * Norms of quaternions: n = |x| = sqrt(w^2 + x^2 + y^2 + z^2), without overflow or underflow on the
 * way, or with HZ_QUAT_SQUARED |x|^2. The gradient is dx = dn x / |x|, 0 where x is 0, or 2 dn x.
 *
 *   x, dx  [..., 4]
 *   n, dn  the shape of x without the 4
 *   flags  HZ_QUAT_SQUARED; HZ_QUAT_XYZW; for the gradient HZ_QUAT_ACCUMULATE
 *
 * Aliasing: n overlaps nothing; dx may be x exactly. Workspace: none.
 */
HZ_API_CHECK int hz_quat_norm(hz_context *ctx, const hz_tensor *x, hz_tensor *n, uint32_t flags);
HZ_API_CHECK int hz_quat_norm_bwd(hz_context *ctx, const hz_tensor *x, const hz_tensor *dn,
				  hz_tensor *dx, uint32_t flags);

/*
 * Normalization of quaternions: y = x / max(|x|, eps), and 0 where x is 0; |x| as of
 * hz_quat_norm(). The gradient is dx = (dy - u <dy, u>) / |x| with u = x / |x|, but dy / eps where
 * |x| < eps, and 0 where x and eps are 0.
 *
 *   x, y   [..., 4], of one shape; dy and dx likewise
 *   eps    not negative, finite; taken as f32 unless the operands are f64
 *   flags  HZ_QUAT_XYZW; for the gradient HZ_QUAT_ACCUMULATE
 *
 * Aliasing: y may be x exactly, dx may be dy or x exactly. Workspace: none.
 */
HZ_API_CHECK int hz_quat_normalize(hz_context *ctx, const hz_tensor *x, hz_tensor *y, double eps,
				   uint32_t flags);
HZ_API_CHECK int hz_quat_normalize_bwd(hz_context *ctx, const hz_tensor *x, const hz_tensor *dy,
				       hz_tensor *dx, double eps, uint32_t flags);

/*
 * Inverses of quaternions: y = conj(x) / |x|^2, without overflow or underflow on the way; NaN where
 * x is 0. The gradient is dx = -conj(y) dy conj(y). Operands, flags and aliasing as of
 * hz_quat_normalize().
 */
HZ_API_CHECK int hz_quat_inverse(hz_context *ctx, const hz_tensor *x, hz_tensor *y, uint32_t flags);
HZ_API_CHECK int hz_quat_inverse_bwd(hz_context *ctx, const hz_tensor *x, const hz_tensor *dy,
				     hz_tensor *dx, uint32_t flags);

/*
 * Rotation of vectors by quaternions: y = q v conj(q) with v a quaternion without real part. It is
 * a rotation for a q of norm 1; else |y| = |q|^2 |v|, unless HZ_QUAT_NORMALIZE divides by |q|^2
 * (NaN where q is 0). With HZ_QUAT_INVERSE y = conj(q) v q.
 *
 *   q      [..., 4], broadcast to the shape of y: one q may rotate many v
 *   v      [..., 3], or [..., 4] with a real part that is not read; broadcast likewise
 *   y      [..., 3], or [..., 4] with a real part of 0
 *   flags  HZ_QUAT_XYZW | NORMALIZE | INVERSE; a [..., 3] is x, y, z
 *
 * Aliasing: y may be v exactly. Workspace: none.
 */
HZ_API_CHECK int hz_quat_rotate(hz_context *ctx, const hz_tensor *q, const hz_tensor *v,
				hz_tensor *y, uint32_t flags);

/*
 * Its gradients: dv = conj(q) dy q and dq = dy q conj(v) + conj(dy) q v, and so on with the flags
 * that hz_quat_rotate() had; with HZ_QUAT_NORMALIZE those of the quotient. HZ_QUAT_ACCUMULATE adds
 * to dq and dv. Where q or v was broadcast, the gradient is summed.
 *
 *   q, v    as there
 *   dy      [..., 3] or [..., 4], the gradient of y; a real part is not read
 *   dq, dv  the shapes of q and v; either may be NULL: not wanted. A real part of dv is 0.
 *
 * Aliasing: dq and dv overlap nothing.
 * Workspace: see hz_record_begin().
 */
HZ_API_CHECK int hz_quat_rotate_bwd(hz_context *ctx, const hz_tensor *q, const hz_tensor *v,
				    const hz_tensor *dy, hz_tensor *dq, hz_tensor *dv,
				    uint32_t flags);

/*
 * Rotation matrices of quaternions: m = the 3 x 3 matrix of the rotation v -> u v conj(u) by u = q
 * / |q|, for column vectors: m v is what hz_quat_rotate() gives with HZ_QUAT_NORMALIZE. NaN where q
 * is 0. The gradient is that of this function of q, in which |q| has no part: dq is orthogonal to
 * q.
 *
 *   q, dq  [..., 4], at most four dimensions of quaternions
 *   m, dm  [..., 3, 3]; the transposed matrix, of the inverse rotation, by exchanged strides
 *   flags  HZ_QUAT_XYZW; for the gradient HZ_QUAT_ACCUMULATE
 *
 * Aliasing: m overlaps nothing; dq may be q exactly. Workspace: none.
 * Agrees with scipy's Rotation.from_quat(xyzw).as_matrix() and numpy-quaternion's
 * as_rotation_matrix().
 */
HZ_API_CHECK int hz_quat_to_matrix(hz_context *ctx, const hz_tensor *q, hz_tensor *m,
				   uint32_t flags);
HZ_API_CHECK int hz_quat_to_matrix_bwd(hz_context *ctx, const hz_tensor *q, const hz_tensor *dm,
				       hz_tensor *dq, uint32_t flags);

/*
 * Quaternions of rotation matrices: q = the unit quaternion of the rotation nearest to m in the sum
 * of squares, which is the orthogonal factor of m's polar decomposition. m may be off a rotation,
 * or a multiple of one: with |m^T m / s^2 - 1| <= 0.2 for some s, q is exact but for rounding. Of q
 * and -q it is the one whose largest component is positive, the first in the order x, y, z, w of
 * equal ones. If det m <= 0, q is some quaternion; NaN where m is 0. The gradient is that of this
 * function, also for an m off a rotation: dm is 0 along changes that keep the nearest rotation.
 *
 *   m, dm  [..., 3, 3], at most four dimensions of matrices
 *   q, dq  [..., 4]
 *   flags  HZ_QUAT_XYZW; for the gradient HZ_QUAT_ACCUMULATE
 *
 * Aliasing: q overlaps nothing; dm may be m exactly. Workspace: none.
 * Agrees with scipy's Rotation.from_matrix(m).as_quat(), the sign too.
 * Source: Davenport 1968, the q-method; Bar-Itzhack 2000, "New Method for Extracting the Quaternion
 * from a Rotation Matrix".
 */
HZ_API_CHECK int hz_quat_from_matrix(hz_context *ctx, const hz_tensor *m, hz_tensor *q,
				     uint32_t flags);
HZ_API_CHECK int hz_quat_from_matrix_bwd(hz_context *ctx, const hz_tensor *m, const hz_tensor *dq,
					 hz_tensor *dm, uint32_t flags);

/*
 * Rotation vectors of quaternions: r = the angle of the rotation by q / |q|, in radians, times its
 * axis (a rotation vector), and back, q = cos(|r| / 2) + sin(|r| / 2) r / |r|. The angle of r is 0
 * to pi, as q and -q are the same rotation; NaN where q is 0. An r of any length has a q of norm 1.
 *
 *   q      [..., 4]
 *   r      [..., 3]
 *   flags  HZ_QUAT_XYZW; r is x, y, z
 *
 * Aliasing: the output overlaps nothing. Workspace: none.
 * Arithmetic: as norms, near the angles 0 and pi too; from a vector 8 u (1 + |r|).
 * Agrees with scipy's as_rotvec() and from_rotvec(); numpy-quaternion's as_rotation_vector() has
 * angles of 0 to 2 pi.
 */
HZ_API_CHECK int hz_quat_to_axis_angle(hz_context *ctx, const hz_tensor *q, hz_tensor *r,
				       uint32_t flags);
HZ_API_CHECK int hz_quat_from_axis_angle(hz_context *ctx, const hz_tensor *r, hz_tensor *q,
					 uint32_t flags);

/*
 * Exponentials of quaternions: with x = w + v, y = e^w (cos |v| + sin |v| v / |v|).
 *
 *   x, y   [..., 4], of one shape
 *   flags  HZ_QUAT_XYZW
 *
 * Aliasing: y may be x exactly. Workspace: none.
 * Arithmetic: an error of at most 8 u (1 + |w| + |v|) |y| for each component.
 * Agrees with numpy-quaternion's exp().
 */
HZ_API_CHECK int hz_quat_exp(hz_context *ctx, const hz_tensor *x, hz_tensor *y, uint32_t flags);

/*
 * Logarithms of quaternions: with x = w + v, y = ln |x| + atan2(|v|, w) v / |v|: an angle of 0 to
 * pi. Where v is 0 y is ln |x|, and ln |x| + pi i if w < 0; the real part is -Inf where x is 0.
 *
 *   x, y   [..., 4], of one shape
 *   flags  HZ_QUAT_XYZW
 *
 * Aliasing: y may be x exactly. Workspace: none.
 * Arithmetic: an error of at most 8 u (1 + |y|) for each component.
 * Agrees with numpy-quaternion's log().
 */
HZ_API_CHECK int hz_quat_log(hz_context *ctx, const hz_tensor *x, hz_tensor *y, uint32_t flags);

/*
 * Spherical linear interpolation of rotations: y = (b conj(a))^t a of a / |a| and b / |b|, from a
 * at t = 0 to b at t = 1, beyond them too, at a constant rate of rotation. Of b and -b, the same
 * rotation, it goes to the nearer one, unless HZ_QUAT_KEEP_SIGN keeps b. It then goes by way of i a
 * where b / |b| is -a / |a| up to rounding. NaN where a or b is 0.
 *
 *   a, b   [..., 4], broadcast to the shape of y
 *   t      [...], numbers, broadcast likewise: its dimensions are those of y without the 4
 *   y      [..., 4]
 *   flags  HZ_QUAT_XYZW | KEEP_SIGN
 *
 * Aliasing: y may be a or b exactly. Workspace: none.
 * Agrees with scipy's Slerp and numpy-quaternion's np.slerp_vectorized().
 * Source: Shoemake 1985, "Animating Rotation with Quaternion Curves".
 */
HZ_API_CHECK int hz_quat_slerp(hz_context *ctx, const hz_tensor *a, const hz_tensor *b,
			       const hz_tensor *t, hz_tensor *y, uint32_t flags);

/* Which form of a matrix of quaternions hz_quat_gemm() multiplies. */
enum hz_quat_op {
	HZ_QUAT_N = 0,		/* the matrix as it is */
	HZ_QUAT_T = 1,		/* transposed; quaternions unchanged */
	HZ_QUAT_C = 2,		/* each quaternion conjugated */
	HZ_QUAT_H = 3		/* both */
};

/* How a product of quaternion matrices is made of real ones. */
enum hz_quat_method {
	HZ_QUAT_AUTO = 0,	/* what the context says (hz_options, HURWITZ_QUAT); else gemm takes
				   DIRECT and layers take FAST where it is faster */
	HZ_QUAT_DIRECT = 1,	/* 16 real products */
	HZ_QUAT_FAST = 2	/* 8 real products: as accurate in norm, not in each component */
};

/* The arithmetic of real products; a level that a device lacks is replaced by a more exact one. */
enum hz_precision {
	HZ_PRECISION_AUTO = 0,	/* f32 storage: F32 or SPLIT, whichever is faster; others: HALF */
	HZ_PRECISION_F32 = 1,	/* f32 multiply-adds */
	HZ_PRECISION_SPLIT = 2,	/* each f32 operand as several 16-bit terms, on tensor
				 * cores: nearly as accurate */
	HZ_PRECISION_TF32 = 3,	/* f32 operands rounded to 11 bits */
	HZ_PRECISION_HALF = 4	/* operands of 11 bits (f16) with scales, or of 8 (bf16) */
};

/*
 * Activation functions: of each component ("split"); but MODRELU and NORMCLIP keep its direction.
 */
enum hz_activation {
	HZ_ACT_NONE = 0,
	HZ_ACT_RELU = 1,
	HZ_ACT_LEAKY = 2,	/* x < 0 ? slope * x : x */
	HZ_ACT_TANH = 3,
	HZ_ACT_SIGMOID = 4,
	HZ_ACT_GELU = 5,	/* x Phi(x), by erf */
	HZ_ACT_SILU = 6,
	HZ_ACT_MODRELU = 7,	/* max(|q| + slope, 0) q / |q|, 0 at q = 0 */
	HZ_ACT_NORMCLIP = 8,	/* q min(1, slope / |q|) */
	HZ_ACT_GELU_TANH = 9	/* x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))) / 2, for
				 * hz_linear_forward() alone */
};

#define HZ_QUAT_GEMM_GIVEN_ALPHA 1u	/* in given: alpha holds, 0 too; else it is 0: the default */

/* Options of hz_quat_gemm(). Zeroed fields have their defaults. */
typedef struct hz_quat_gemm_opts {
	int32_t op_a, op_b;		/* enum hz_quat_op */
	int32_t method;			/* enum hz_quat_method */
	int32_t precision;		/* enum hz_precision */
	int32_t activation;		/* enum hz_activation */
	uint32_t flags;			/* HZ_QUAT_XYZW | REVERSED | BIAS_COLUMNS */
	uint32_t given;			/* HZ_QUAT_GEMM_GIVEN_ALPHA */
	int32_t reserved32;		/* 0 */
	double alpha[4];		/* w, x, y, z: a factor from the left; default 1 */
	double beta;			/* 0: C is not read */
	double slope;			/* LEAKY, MODRELU: finite; NORMCLIP: > 0; others: 0 */
	const hz_tensor *bias;		/* [m, 4] (or [n, 4]), the dtype of C or f32; NULL: none */
	hz_tensor *pre;			/* gets the input of the activation, as C; NULL: no */
	const hz_packed *packed;	/* A, instead of the operand a, which is then NULL */
	int64_t reserved[4];		/* 0 */
} hz_quat_gemm_opts;

/*
 * Product of quaternion matrices: C = act(alpha op(A) op(B) + beta C + bias), with
 * HZ_QUAT_REVERSED the sum over l of op(B)[l, j] op(A)[i, l].
 *
 *   a     f32 f16 bf16, f64 on the CPU: [..., m, k, 4], or [..., k, m, 4] for T and H, any strides;
 *         NULL with opts->packed
 *   b     the dtype of a, [..., k, n, 4], or [..., n, k, 4] for T and H, any strides
 *   c     the dtype of a, or f32: [..., m, n, 4], any strides
 *   opts  NULL: all defaults
 *
 * Dimensions before the matrix are a batch of at most three; those that a or b lacks, or has the
 * size 1 of, are broadcast. k = 0 gives act(beta C + bias).
 *
 * Aliasing: c and pre overlap no other operand.
 * Arithmetic: sums are in f32 (f64 for f64), in an order that depends on shapes and strides alone:
 * the same bits for any number of threads and in every run. With S the sum over l of |a| |b| of an
 * element, u = 2^-24 (2^-53) and HZ_PRECISION_F32, each component of a sum has an error of at most
 * 4 k u S by the direct method. The fast one has at most 3 (k + 7) u S in all: within twice the
 * direct method's where components are of one size, but where one is much larger than the others,
 * these lose digits to it, and a NaN or Inf in one component of an element is in all components of
 * what it is multiplied into. SPLIT is within four times that; TF32, and HALF of f32, add
 * 2^-9 S, HALF of 16-bit types that by the fast method alone: their own products are exact. The
 * fast method adds the four components of an element and halves the sums: beyond the largest finite
 * number they are Inf, and subnormal ones are rounded, which these bounds leave out.
 * Subnormal elements of bf16 count as 0 on CPUs with AMX.
 * NaN and Inf stay in the rows of A and the columns of B that have them.
 * Workspace: see hz_record_begin().
 * Errors: HZ_EINVAL, HZ_EDTYPE, HZ_ESHAPE, HZ_ESTRIDE, HZ_EALIAS, HZ_EDEVICE, HZ_ENOTSUP (f64 on a
 * GPU), HZ_ENOMEM, HZ_EWORKSPACE, HZ_ECUDA, HZ_EFORK.
 * Source: Howell and Lafon 1975, "The Complexity of the Quaternion Product", for eight products.
 */
HZ_API_CHECK int hz_quat_gemm(hz_context *ctx, const hz_tensor *a, const hz_tensor *b, hz_tensor *c,
			      const hz_quat_gemm_opts *opts);

/*
 * Packs A for hz_quat_gemm() and the layers: worth it for weights that are used more than once.
 * What is packed, a or with op_a T its transpose, serves every op_a, which then counts from it, and
 * every n. opts->op_a, method, precision and HZ_QUAT_XYZW are read; later calls have the same
 * method and precision, or AUTO. As hz_qgemm_pack() otherwise. Errors: as hz_qgemm_pack().
 */
HZ_API_CHECK int hz_quat_gemm_pack(hz_context *ctx, const hz_tensor *a, void *data, size_t bytes,
				   hz_packed *packed, const hz_quat_gemm_opts *opts);
HZ_API_CHECK int hz_quat_gemm_pack_bytes(hz_context *ctx, const hz_tensor *a,
					 const hz_quat_gemm_opts *opts, size_t *bytes);

/* ---- Quaternion layers ----------------------------------------------------------------------- */

/*
 * Tensors are as above: their last dimension holds the four components, HZ_QUAT_XYZW says in which
 * order, and strides the layout. All operands of a call have one dtype, unless it says otherwise.
 * Errors: HZ_EINVAL, HZ_EDTYPE, HZ_ESHAPE, HZ_ESTRIDE, HZ_EALIAS, HZ_EDEVICE, HZ_ENOTSUP (f64 on a
 * GPU), HZ_ENOMEM, HZ_EWORKSPACE, HZ_ECUDA, HZ_EFORK.
 */
#define HZ_QUAT_ROTATION 0x10000u	/* linear, conv: weights rotate vectors */
#define HZ_QUAT_TRANSPOSED 0x20000u	/* conv: the adjoint of the convolution */
#define HZ_QUAT_NOCONJ 0x40000u		/* conv, with TRANSPOSED: weights are not conjugated */
#define HZ_QUAT_WHITEN 0x80000u		/* batchnorm: by the 4 x 4 covariance */
#define HZ_QUAT_EVAL 0x100000u		/* batchnorm: by the running values */
#define HZ_QUAT_PER_STEP 0x200000u	/* batchnorm: statistics of each step of time */

/* The side of x that the weights of a quaternion layer stand on. */
enum hz_quat_side {
	HZ_QUAT_LEFT = 0,	/* weights are the left factors: w x */
	HZ_QUAT_RIGHT = 1	/* x w */
};

/* How a weight q is normalized before it rotates: what it is divided by */
enum hz_quat_eps_rule {
	HZ_QUAT_EPS_SQUARED = 0,	/* sqrt(|q|^2 + eps) */
	HZ_QUAT_EPS_NORM = 1		/* |q| + eps */
};

/* How a convolution continues x beyond its ends */
enum hz_pad {
	HZ_PAD_ZERO = 0,	/* by zeros at either end */
	HZ_PAD_CAUSAL = 1,	/* by zeros before the first element alone */
	HZ_PAD_REFLECT = 2	/* by x[1], x[2], ... before x[0], and so at the other end */
};

/* Options of hz_quat_linear(). Zeroed fields have their defaults. */
typedef struct hz_quat_linear_opts {
	int32_t side;			/* enum hz_quat_side */
	int32_t method;			/* enum hz_quat_method */
	int32_t precision;		/* enum hz_precision */
	int32_t activation;		/* enum hz_activation */
	uint32_t flags;			/* HZ_QUAT_XYZW | ACCUMULATE | ROTATION */
	double slope;			/* LEAKY, MODRELU: finite; NORMCLIP: > 0; others: 0 */
	hz_tensor *pre;			/* as y: the input of the activation, which the forward
					   call writes and the backward call reads; NULL: none */
	const hz_packed *packed;	/* w by hz_quat_gemm_pack(), instead of it */
	const hz_tensor *scale;		/* ROTATION: s, [N, M]; NULL: 1 */
	hz_tensor *dscale;		/* ROTATION, backward: its gradient; NULL: not wanted */
	double eps;			/* ROTATION: 0 or more, of the normalisation of w */
	int32_t eps_rule;		/* ROTATION: enum hz_quat_eps_rule */
	int32_t reserved32;		/* 0 */
	int64_t reserved[4];		/* 0 */
} hz_quat_linear_opts;

/*
 * Linear layer of quaternions: y_n = act(sum over m of w_nm x_m + b_n), with HZ_QUAT_RIGHT of
 * x_m w_nm.
 *
 *   x     f32 f16 bf16, f64 on the CPU: [..., M, 4], any strides
 *   w     [N, M, 4], any strides; NULL with opts->packed
 *   b     [N, 4], the dtype of x, or f32 beside 16 bits; NULL: none
 *   y     [..., N, 4], any strides
 *   opts  NULL: all defaults
 *
 * With HZ_QUAT_ROTATION the sum is of s_nm R(q_nm / d_nm) x_m with q = w, where R(u) is the matrix
 * of v -> u v u^* for a u of norm 1, of the conjugate of u with HZ_QUAT_RIGHT: rotations of the
 * vector parts. d = sqrt(|q|^2 + eps) or |q| + eps, by opts->eps_rule. With eps > 0 u is shorter
 * than 1, and R(u) = 1 + 2 ([u]^2 + w [u]) with the cross product [u] v = u x v, as in the
 * libraries below. The real part of x is not looked at, that of the sum is 0; q = 0 contributes 0
 * if eps is 0, else s_nm x_m. speechbrain's QLinear has HZ_QUAT_RIGHT, HZ_QUAT_EPS_NORM and an eps
 * of 1e-4, its convolutions and Orkis' layers HZ_QUAT_LEFT and HZ_QUAT_EPS_SQUARED.
 *
 * Aliasing: no output overlaps another operand.
 * Arithmetic: as hz_quat_gemm(), but HZ_QUAT_AUTO is HZ_QUAT_FAST unless the context says otherwise
 * or one of the sizes is below 32; with opts->packed it is the method of that, which
 * hz_quat_gemm_pack() makes HZ_QUAT_DIRECT unless it is told HZ_QUAT_FAST. A product of rotations
 * is one of real 3N x 3M matrices.
 * Workspace: see hz_record_begin().
 * Source: Parcollet et al. 2019, "Quaternion Recurrent Neural Networks", equations 6 to 8.
 */
HZ_API_CHECK int hz_quat_linear(hz_context *ctx, const hz_tensor *x, const hz_tensor *w,
				const hz_tensor *b, hz_tensor *y, const hz_quat_linear_opts *opts);

/*
 * The gradients of hz_quat_linear(), for the gradient dy of a real loss, taken component by
 * component: with dz that of the activation's input, dx = w^H dz, dw = dz x^H and db = the sum of
 * dz over the batch.
 *
 *   x, w, b     as there; x may be NULL without dw, b is used only where the activation's input is
 *               computed anew: with an activation and no opts->pre
 *   dy          as y
 *   dx, dw, db  as x, w and b; NULL: not wanted
 *   opts        those of hz_quat_linear(); with HZ_QUAT_ACCUMULATE dw, db and dscale are added to
 *
 * Sums over the batch are f32 (f64) and rounded once; with an activation, dz is rounded to the
 * dtype of dy before. All else as there.
 */
HZ_API_CHECK int hz_quat_linear_bwd(hz_context *ctx, const hz_tensor *x, const hz_tensor *w,
				    const hz_tensor *b, const hz_tensor *dy, hz_tensor *dx,
				    hz_tensor *dw, hz_tensor *db, const hz_quat_linear_opts *opts);

/* Options of hz_quat_conv(). Zeroed fields have their defaults. */
typedef struct hz_quat_conv_opts {
	int32_t side;			/* as of hz_quat_linear_opts, down to slope */
	int32_t method;
	int32_t precision;
	int32_t activation;
	uint32_t flags;			/* HZ_QUAT_XYZW | ACCUMULATE | TRANSPOSED | NOCONJ |
					   ROTATION */
	int32_t groups;			/* of quaternion channels; 0: 1 */
	double slope;
	hz_tensor *pre;			/* as of hz_quat_linear_opts */
	int64_t stride[3];		/* of each spatial dimension; 0: 1 */
	int64_t pad[3];			/* elements at either end */
	int64_t dilation[3];		/* 0: 1 */
	const hz_tensor *scale;		/* ROTATION, as of hz_quat_linear_opts, down to eps_rule: */
	hz_tensor *dscale;		/* [Co, taps..., Ci / groups], contiguous */
	double eps;
	int32_t eps_rule;
	int32_t pad_mode;		/* enum hz_pad, of all dimensions */
	int64_t reserved[4];		/* 0 */
} hz_quat_conv_opts;

/*
 * Convolution of quaternions, in one, two or three dimensions as x has them: y[p, o] = act(sum over
 * taps t and channels i of w[o, t, i] x[p stride + t dilation - pad, i] + b[o]).
 *
 *   x     f32 f16 bf16, f64 on the CPU: [n, spatial..., Ci, 4], any strides
 *   w     [Co, taps..., Ci / groups, 4], any strides
 *   b     [Co, 4], the dtype of x, or f32 beside 16 bits; NULL: none
 *   y     [n, spatial'..., Co, 4], spatial' = (spatial + 2 pad - dilation (taps - 1) - 1) / stride
 *         + 1, rounded down; with HZ_PAD_CAUSAL pad instead of 2 pad
 *   opts  NULL: all defaults
 *
 * Group j has Co / groups output channels, from j Co / groups on, and sees Ci / groups input
 * channels, from j Ci / groups on: a quaternion is never divided.
 *
 * HZ_QUAT_TRANSPOSED gives the adjoint of the convolution with the same w, which multiplies by the
 * conjugates of weights; with HZ_QUAT_NOCONJ the transpose, by the weights: x is [n, spatial'...,
 * Co, 4], y any [n, spatial..., Ci, 4] that the convolution maps to the shape of x, b [Ci, 4].
 *
 * With HZ_QUAT_ROTATION weights rotate vectors, as in hz_quat_linear(): a convolution of 3 Co by
 * 3 Ci real channels, in f32 (f64), whose four-fold images are the components of quaternions. It
 * takes 36 real products of a weight and a vector by the direct method, where w x takes 16; with
 * fewer than four images as many as with four.
 *
 * HZ_PAD_REFLECT continues x without repeating its ends: pad is below the size of x, in every
 * dimension. It does not go with HZ_QUAT_TRANSPOSED.
 *
 * Aliasing: no output overlaps another operand.
 * Arithmetic: as hz_quat_linear(); but in HALF no component of x counts as smaller than 2^-26 of
 * the largest finite one, in SPLIT than 2^-37, as neighbours have a scale in common. On a GPU
 * HZ_QUAT_AUTO may be HZ_QUAT_FAST from 8 channels on, and groups of few channels, and few outputs,
 * have f32 multiply-adds by the direct method, whatever the method and the precision.
 * Workspace: see hz_record_begin(); it may have patches of x, for a limited number of pixels at
 * a time.
 * Source: Gaudet, Maida 2018, "Deep Quaternion Networks", section 3.
 */
HZ_API_CHECK int hz_quat_conv(hz_context *ctx, const hz_tensor *x, const hz_tensor *w,
			      const hz_tensor *b, hz_tensor *y, const hz_quat_conv_opts *opts);

/* The gradients of hz_quat_conv(); operands as of hz_quat_linear_bwd(), but x is never NULL. */
HZ_API_CHECK int hz_quat_conv_bwd(hz_context *ctx, const hz_tensor *x, const hz_tensor *w,
				  const hz_tensor *b, const hz_tensor *dy, hz_tensor *dx,
				  hz_tensor *dw, hz_tensor *db, const hz_quat_conv_opts *opts);

#define HZ_QUAT_BATCHNORM_GIVEN_EPS 1u	/* in given: the number holds, 0 too; */
#define HZ_QUAT_BATCHNORM_GIVEN_MOMENTUM 2u	/* else it is 0: the default */

/* Options of hz_quat_batchnorm(). Zeroed fields have their defaults. */
typedef struct hz_quat_batchnorm_opts {
	uint32_t flags;			/* HZ_QUAT_XYZW | ACCUMULATE | WHITEN | EVAL | PER_STEP */
	uint32_t given;			/* HZ_QUAT_BATCHNORM_GIVEN_EPS | _MOMENTUM */
	double eps;			/* 0 or more; default 1e-5 */
	double momentum;		/* 0 to 1; default 0.1; not read with EVAL, or without
					 * running values */
	hz_tensor *running_mean;	/* [C, 4]; NULL: none */
	hz_tensor *running_var;		/* [C], with WHITEN [C, 10] */
	hz_tensor *saved;		/* [C, 14], written for the backward call; NULL: none */
	int64_t reserved[4];		/* 0 */
} hz_quat_batchnorm_opts;

/*
 * Batch normalization of quaternions over all dimensions but channels: y = gamma z + beta.
 *
 * z = (x - mean) / sqrt(var + eps) with var = the mean of |x - mean|^2. With HZ_QUAT_WHITEN
 * z = L^-1 (x - mean), L L^T = V + eps 1 being the Cholesky decomposition of the covariance V of
 * the components w, x, y, z, and gamma is a symmetric 4 x 4 matrix. With eps = 0 a channel whose
 * var is 0, or whose V is singular, has NaN or Inf.
 *
 *   x      f32 f16 bf16, f64 on the CPU: [..., C, 4], any strides
 *   gamma  [C], with HZ_QUAT_WHITEN [C, 10]: the upper triangle by rows, ww wx wy wz xx xy xz yy yz
 *          zz; NULL: 1
 *   beta   [C, 4]; NULL: 0
 *   y      the shape and dtype of x, any strides; x itself is allowed
 *   opts   NULL: all defaults
 *
 * gamma, beta and the tensors of opts are contiguous and f32, or f64 if x is. Means and variances
 * are divided by the number of quaternions, of which there must be one at least. Without
 * HZ_QUAT_EVAL running values become (1 - momentum) times themselves plus momentum times the
 * batch's; with a momentum of 1 they are not read. With HZ_QUAT_EVAL they take the place of the
 * batch's, and must be given. With HZ_QUAT_WHITEN running_var has V in the layout of gamma.
 *
 * HZ_QUAT_PER_STEP takes means and variances over the first dimension alone: x is [batch, steps...,
 * C, 4], all statistics of opts begin with [steps..., C], gamma and beta are shared by the steps.
 * That is speechbrain's QBatchNorm of [batch, time, channels], whose eps is 1e-4 and whose first
 * batch sets the running values: a momentum of 1 for it, with HZ_QUAT_BATCHNORM_GIVEN_MOMENTUM.
 *
 * Aliasing: no output overlaps another operand, but for y = x.
 * Arithmetic: sums over each of at most 256 parts of the batch in f32 at least, then in f64. The
 * same bits for any number of threads.
 * Workspace: see hz_record_begin().
 * Source: Gaudet, Maida 2018, section 3.3; without HZ_QUAT_WHITEN Parcollet et al., speechbrain.
 */
HZ_API_CHECK int hz_quat_batchnorm(hz_context *ctx, const hz_tensor *x, const hz_tensor *gamma,
				   const hz_tensor *beta, hz_tensor *y,
				   const hz_quat_batchnorm_opts *opts);

/*
 * The gradients of hz_quat_batchnorm(), with what that call left in opts->saved; the same flags.
 * With HZ_QUAT_PER_STEP dgamma and dbeta are sums over the steps.
 *
 *   dx             the shape of x; NULL: not wanted; dy itself is allowed
 *   dgamma, dbeta  as gamma and beta; NULL: not wanted; with HZ_QUAT_ACCUMULATE added to. An
 *                  element of dgamma off the diagonal stands for both of the matrix.
 */
HZ_API_CHECK int hz_quat_batchnorm_bwd(hz_context *ctx, const hz_tensor *x, const hz_tensor *gamma,
				       const hz_tensor *dy, hz_tensor *dx, hz_tensor *dgamma,
				       hz_tensor *dbeta, const hz_quat_batchnorm_opts *opts);

/* Cells of recurrent layers: h and c are the states before a step, h' and c' after it. */
enum hz_quat_cell {
	HZ_QUAT_CELL_RNN = 0,	/* one gate:   h' = act(a) */
	HZ_QUAT_CELL_LSTM = 1,	/* four gates: c' = sigmoid(i) tanh(g) + sigmoid(f) c,
				   h' = sigmoid(o) tanh(c') */
	HZ_QUAT_CELL_LIGRU = 2	/* two gates:  h' = sigmoid(r) h + (1 - sigmoid(r)) act(a) */
};

/* The order of gates: where component c of neuron h of gate k is in the N = K H quaternions of z */
enum hz_quat_gates {
	HZ_QUAT_GATES_NEURONS = 0,	/* component c of quaternion k H + h */
	HZ_QUAT_GATES_COMPONENTS = 1	/* number (4 k + c) H + h of all w, then all x, y and z */
};

/* Options of hz_quat_recurrent(). Zeroed fields have their defaults. */
typedef struct hz_quat_recurrent_opts {
	int32_t cell;			/* enum hz_quat_cell */
	int32_t gates;			/* enum hz_quat_gates */
	int32_t activation;		/* act: HZ_ACT_TANH, RELU or LEAKY; 0: RELU for LIGRU, else
					   TANH, which is the only one of LSTM */
	int32_t method;			/* enum hz_quat_method */
	int32_t precision;		/* enum hz_precision */
	uint32_t flags;			/* HZ_QUAT_XYZW | ACCUMULATE */
	double slope;			/* HZ_ACT_LEAKY: > 0; others: 0 */
	const hz_tensor *lengths;	/* s32 [B]: steps of each sequence; NULL: T of all */
	hz_tensor *saved;		/* f32 [T, B, D, S, H, 4], contiguous, which the forward call
					   writes and the backward call reads; NULL: none */
	int64_t reserved[4];		/* 0 */
} hz_quat_recurrent_opts;

/*
 * Recurrent layer of quaternions, all steps of time: of the gates z_t + U h_(t-1), where U h is a
 * product of quaternion matrices, the cell makes h_t, and y_t = h_t. Functions of gates are of each
 * component.
 *
 *   z     f32 f16 bf16: [T, B, D, K H, 4], any strides: the transformed inputs of the K gates,
 *         hz_quat_linear() of x for all steps at once with the sum of all biases; LIGRU: may go
 *         through hz_quat_batchnorm() first. Gates in order: RNN a; LSTM i, f, o, g; LIGRU a, r
 *   u     the dtype of z, [D, K H, H, 4], any strides
 *   h0    the dtype of z, [D, B, H, 4], any strides: the state before the first step; NULL: 0
 *   c0    LSTM: the same for c; NULL: 0
 *   y     the dtype of z, [T, B, D, H, 4], any strides: all h_t
 *   hn    the dtype of z, [D, B, H, 4], any strides: the state after the last step; NULL: not
 *         wanted
 *   cn    LSTM: the same for c; NULL: not wanted
 *   opts  NULL: all defaults
 *
 * D is 1, or 2 for a bidirectional layer, whose second direction goes from the last step to the
 * first. Where both directions have the same weights, z and u may have a stride of 0 along D. A
 * batch-first tensor has its strides of T and B exchanged. With opts->lengths, y is 0 from step
 * length[b] of sequence b on, the second direction begins at its last step, and z is not looked at
 * there; numbers below 0 count as 0, above T as T.
 *
 * opts->saved has S = 1 values of each component for RNN, 5 for LSTM, 3 for LIGRU.
 *
 * speechbrain's QRNN, QLSTM and QLiGRU have HZ_QUAT_GATES_COMPONENTS, the same weights in both
 * directions, and HZ_ACT_LEAKY with a slope of 0.01 in LIGRU; Orkis has HZ_QUAT_GATES_NEURONS, with
 * a matrix for each gate: stack them in the order above.
 *
 * Aliasing: no output overlaps another operand.
 * Arithmetic: products as hz_quat_linear(), of h rounded to the dtype of z; states, sums and gates
 * in f32. The same bits for any number of threads.
 * Workspace: see hz_record_begin(); it may have a copy of u.
 * Source: Parcollet et al. 2019, "Quaternion Recurrent Neural Networks", section 3.3; Ravanelli et
 * al. 2018, "Light Gated Recurrent Units for Speech Recognition", section 3.
 *
 * Example:
 *
 *     float gates[3 * 4 * 4] = {0}, weights[4 * 4] = {0}, states[3 * 4];	// T = 3, B = D = H = 1
 *     const int64_t z_shape[5] = {3, 1, 1, 4, 4}, y_shape[5] = {3, 1, 1, 1, 4};
 *     const hz_tensor z = hz_tensor_nd(gates, HZ_F32, HZ_CPU, 5, z_shape);
 *     const hz_tensor u = hz_tensor_4d(weights, HZ_F32, HZ_CPU, 1, 4, 1, 4);
 *     hz_tensor y = hz_tensor_nd(states, HZ_F32, HZ_CPU, 5, y_shape);
 *     const hz_quat_recurrent_opts o = {.cell = HZ_QUAT_CELL_LSTM};
 *     if (hz_quat_recurrent(ctx, &z, &u, NULL, NULL, &y, NULL, NULL, &o) != HZ_OK)
 *             fprintf(stderr, "%s\n", hz_errmsg(ctx));
 */
HZ_API_CHECK int hz_quat_recurrent(hz_context *ctx, const hz_tensor *z, const hz_tensor *u,
				   const hz_tensor *h0, const hz_tensor *c0, hz_tensor *y,
				   hz_tensor *hn, hz_tensor *cn,
				   const hz_quat_recurrent_opts *opts);

/*
 * The gradients of hz_quat_recurrent(), backward through time, with what that call left in
 * opts->saved; the same options. The gradients of x, of its weights and of the bias follow from dz
 * by hz_quat_linear_bwd().
 *
 *   u, h0, c0  as there
 *   dy         as y
 *   dhn, dcn   as hn and cn; NULL: 0
 *   dz         [T, B, D, K H, 4], any strides, without an overlap of directions
 *   du         as u, without an overlap of directions; NULL: not wanted; with HZ_QUAT_ACCUMULATE
 *              added to
 *   dh0, dc0   as h0 and c0; NULL: not wanted
 *
 * dz_t is rounded to its dtype before it is multiplied by U^H and, for du, by h_(t-1)^H. All else
 * as there.
 */
HZ_API_CHECK int hz_quat_recurrent_bwd(hz_context *ctx, const hz_tensor *u, const hz_tensor *h0,
				       const hz_tensor *c0, const hz_tensor *dy,
				       const hz_tensor *dhn, const hz_tensor *dcn, hz_tensor *dz,
				       hz_tensor *du, hz_tensor *dh0, hz_tensor *dc0,
				       const hz_quat_recurrent_opts *opts);

/* What hz_quat_pool() makes of a window. */
enum hz_pool {
	HZ_POOL_MAX = 0,	/* the quaternion of the largest norm, the first of several */
	HZ_POOL_AVERAGE = 1	/* the mean of those of the window that are in x */
};

/* Options of hz_quat_pool(). Zeroed fields have their defaults. */
typedef struct hz_quat_pool_opts {
	int32_t kind;			/* enum hz_pool */
	uint32_t flags;			/* HZ_QUAT_XYZW | ACCUMULATE */
	int64_t window[3];		/* of each spatial dimension, at least 1 */
	int64_t stride[3];		/* 0: the window. All three: 0 beyond those of x */
	int64_t pad[3];			/* at either end; at most half the window */
	int64_t reserved[4];		/* 0 */
} hz_quat_pool_opts;

/*
 * Pooling of quaternions in one, two or three dimensions as x has them.
 *
 *   x      f32 f16 bf16, f64 on the CPU: [n, spatial..., C, 4], any strides
 *   y      [n, spatial'..., C, 4], spatial' = (spatial + 2 pad - window) / stride + 1, rounded down
 *   index  HZ_POOL_MAX: s32 [n, spatial'..., C], any strides, gets which spatial element of x was
 *          taken, in index order; NULL: none
 *   opts   with a window at least
 *
 * Aliasing: no output overlaps another operand.
 * Arithmetic: norms are compared as squares in f64; a NaN is larger than all else.
 * Workspace: none.
 */
HZ_API_CHECK int hz_quat_pool(hz_context *ctx, const hz_tensor *x, hz_tensor *y, hz_tensor *index,
			      const hz_quat_pool_opts *opts);

/* Its gradient: dx, the shape of x, from dy and, for HZ_POOL_MAX, the index; else that is NULL. */
HZ_API_CHECK int hz_quat_pool_bwd(hz_context *ctx, const hz_tensor *index, const hz_tensor *dy,
				  hz_tensor *dx, const hz_quat_pool_opts *opts);

/*
 * Dropout of whole quaternions: y = 0 with probability p, else x / (1 - p). The backward pass is
 * the same call on dy.
 *
 *   x, y          f32 f16 bf16, f64 on the CPU: [..., 4], one shape, any strides; y may be x
 *   p             0 to 1
 *   seed, offset  quaternion i, in index order, is dropped if R(offset + i) < p, R(j) being the
 *                 upper 53 bits of output j, from 0, of splitmix64 started at seed, times 2^-53
 *
 * The same quaternions on every device.
 */
HZ_API_CHECK int hz_quat_dropout(hz_context *ctx, const hz_tensor *x, hz_tensor *y, double p,
				 uint64_t seed, uint64_t offset);

/* Distributions of the random quaternions of hz_quat_init(). */
enum hz_quat_distribution {
	HZ_QUAT_POLAR = 0,	/* modulus chi(4) times scale, a uniform angle, a uniform axis */
	HZ_QUAT_UNITARY = 1,	/* uniform on the unit sphere, times scale */
	HZ_QUAT_NORMAL = 2	/* components N(0, scale^2) */
};

/*
 * Fills a tensor with random quaternions: initial weights.
 *
 *   y             f32 f16 bf16, f64 on the CPU: [..., 4], any strides
 *   distribution  enum hz_quat_distribution
 *   scale         > 0; hz_quat_init_scale() for HZ_QUAT_POLAR
 *   seed, offset  quaternion i, in index order, is made of u_k = R(8 (offset + i) + k), as of
 *                 hz_quat_dropout()
 *   flags         HZ_QUAT_XYZW or 0
 *
 * HZ_QUAT_POLAR: scale sqrt(-2 ln((1 - u0) (1 - u1))) (cos a + sin a n), a = 2 pi u2, n = (r cos b,
 * r sin b, c), b = 2 pi u4, c = 2 u3 - 1, r = sqrt(1 - c^2). HZ_QUAT_UNITARY: scale (s cos a, s sin
 * a, t cos b, t sin b), s = sqrt(1 - u0), t = sqrt(u0), a = 2 pi u1, b = 2 pi u2. HZ_QUAT_NORMAL:
 * scale (s cos a, s sin a, t cos b, t sin b), s = sqrt(-2 ln(1 - u0)), t = sqrt(-2 ln(1 - u2)),
 * a = 2 pi u1, b = 2 pi u3. Computed in f64 and rounded; the same bits on every device.
 * Source: Gaudet, Maida 2018, section 3.4.
 */
HZ_API_CHECK int hz_quat_init(hz_context *ctx, hz_tensor *y, int distribution, double scale,
			      uint64_t seed, uint64_t offset, uint32_t flags);

/*
 * The scale of initial weights: 1 / sqrt(2 (fan_in + fan_out)) of Glorot, or with fan_out = 0 1 /
 * sqrt(2 fan_in) of He; fans count quaternions, with the taps of a convolution. 0 if fan_in is
 * below 1 or fan_out below 0.
 */
HZ_API double hz_quat_init_scale(int64_t fan_in, int64_t fan_out);

/* ---- HNLQ: the hierarchical nested lattice quantizer ----------------------------------------- */

/*
 * Lattices, and the codes made of them. A lattice L = { G z : z integer } of dimension d, a radix q
 * and M levels make a code of q^(d M) points: M digit vectors b_m in 0 .. q - 1. The digits of
 * level m mean the coset leader c(b) = G b - q Q(G b / q), a point of least norm of its coset of q
 * L; a point is their sum
 *
 *   p = sum_{m < M} q^m c(b_m)
 *
 * so that one table of q^d leaders serves all levels, and the coarsest levels alone approximate the
 * same vector. Level 0 is the finest. Blocks of d successive values are points.
 *
 * Nearest points Q. At level 0, of real numbers y: each coordinate to the nearest integer, halves
 * to even; D_n: if their sum is odd, the first with the largest error moves to its other
 * neighbour; E8: the nearer of D_8 and D_8 + 1/2, of equals that with the smaller first
 * coordinate; A2: of t = (y_0 + y_1 / sqrt 3, -2 y_1 / sqrt 3, y_1 / sqrt 3 - y_0), if the rounded
 * sum is not 0, the first that was moved most the other way. At the levels above, of points
 * divided by q: the same in integers, with halves up, which makes Q(y + p) = Q(y) + p for every
 * point p: every point that fits decodes exactly. Any other basis is reduced (LLL) and rounded by
 * Babai's nearest plane, or at level 0 with HZ_LATTICE_SPHERE by the search of Schnorr and
 * Euchner.
 *
 * Points as integers: Z, D_n the coordinates; E8 twice the coordinates; A2 the three t, which are
 * (z_0 + z_1, -z_1, -z_0); a basis the coordinates in hz_lattice_info.basis.
 *
 * Source: Kaplan and Ordentlich 2025, "High-Rate Nested-Lattice Quantized Matrix Multiplication
 * with Small Lookup Tables"; Conway and Sloane 1982, "Fast Quantizing and Decoding Algorithms for
 * Lattice Quantizers and Codes".
 */
enum hz_lattice_kind {
	HZ_LATTICE_Z = 1,	/* Z^dim; dim 0 is 1 */
	HZ_LATTICE_A2 = 2,	/* basis columns (1, 0), (1/2, sqrt(3)/2) */
	HZ_LATTICE_D = 3,	/* D_dim, >= 2, 0 is 4: (-1,-1,0..), (1,-1,0..), (0,1,-1,0..), .. */
	HZ_LATTICE_E8 = 4,	/* columns 2 e1, e2 - e1, .., e7 - e6, (1/2)^8 */
	HZ_LATTICE_BASIS = 5	/* the caller's */
};

/* How overload is handled: blocks whose point is not in the code. See hz_lattice_encode(). */
enum hz_lattice_policy {
	HZ_LATTICE_NONE = 0,	/* nothing: its digits mean another point */
	HZ_LATTICE_T = 1,	/* scale beta 2^(alpha t), the first t = 0 .. 31 that fits */
	HZ_LATTICE_CLIP = 2,	/* y is shrunk by the first 2^(-j/16) that fits; it is not stored */
	HZ_LATTICE_BANK = 3,	/* of scales beta bank[t] that with the least error */
	HZ_LATTICE_GROUP = 4	/* beta 2^(alpha t), t = 0 .. 63, for a group of 8 .. 128 values */
};

/*
 * Which points a code has. NESTED is the code above. The others have one level: representatives of
 * the cosets of E8 modulo a coarser lattice, named by 8 fields of log2 q bits; each code word is a
 * point, which takes no search to decode (see HZ_LATTICE_DIGITS in hz_lattice_decode()).
 */
enum hz_lattice_shaping {
	HZ_LATTICE_SHAPING_NESTED = 0,
	HZ_LATTICE_SHAPING_CUBE = 1,	/* E8 / q Z^8: the points in a cube; the fastest */
	HZ_LATTICE_SHAPING_D8STAR = 2,	/* E8 / q D8*: half as many, nearer to 0 */
	HZ_LATTICE_SHAPING_E8 = 3	/* E8 / q E8: as many as CUBE, in the cell of q E8 */
};

/*
 * Named quantizers and their stored bits a value: PRESET_<lattice>_<stored bits a value>. Their
 * scales are for rows of the mean square 1: see row_scale of hz_lattice_code_opts, whose 32 bits a
 * row come on top. Which to take, by the mean squared error of Gaussian rows, and the speed of y =
 * W x by one vector on one core with AVX2, packed codes of 4096 x 14336 read from memory, x_format =
 * s8, as a multiple of GGUF's Q4_K (4.5 bits, -22.9 dB):
 *
 *     preset        bits    error  speed
 *     e8-4.5-fast   4.50  -24.2 dB  1.43
 *     e8-4.5        4.50  -25.1 dB  0.74
 *     d4-4.5        4.50  -24.0 dB  1.18
 *     e8-4.25       4.25  -23.4 dB  1.22
 *     e8-4.25-best  4.25  -23.8 dB  0.75
 *     e8-3.25-fast  3.25  -17.3 dB  1.30
 *     e8-3.25       3.25  -17.8 dB  0.68
 *     e8-2.25       2.25  -11.6 dB  0.76
 */
enum hz_lattice_preset {
	HZ_LATTICE_PRESET_E8_4_50_FAST = 1,	/* E8 / 16 Z^8, 16 scales */
	HZ_LATTICE_PRESET_E8_4_50 = 2,		/* E8 / 16 E8, 16 scales */
	HZ_LATTICE_PRESET_E8_4_25 = 3,		/* E8 / 16 D8*, 8 scales */
	HZ_LATTICE_PRESET_E8_4_25_BEST = 4,	/* E8 / 16 E8, 4 scales */
	HZ_LATTICE_PRESET_E8_3_25_FAST = 5,	/* E8 / 8 D8*, 8 scales */
	HZ_LATTICE_PRESET_E8_3_25 = 6,		/* E8 / 8 E8, 4 scales */
	HZ_LATTICE_PRESET_E8_2_25 = 7,		/* E8 / 4 E8, 4 scales */
	HZ_LATTICE_PRESET_D4_4_50 = 8		/* D4, q = 4, 2 levels, 16 scales for 8 values */
};

/* How lattice codes are stored: shape and dtype of the tensor, for blocks of d values. */
enum hz_lattice_pack {
	HZ_LATTICE_LEVEL = 0,	/* [..., blocks, levels] u8 u16 u32: I_m = sum_j b_m[j] q^j */
	HZ_LATTICE_FULL64 = 1,	/* [..., blocks] u64: sum_m I_m q^(d m); q^(d M) <= 2^64 */
	HZ_LATTICE_LIMBS = 2	/* [..., blocks, limbs] u32: the digits level by level, as many to a
				   limb as 32 bits hold, the first lowest */
};

#define HZ_LATTICE_CENTER 1u		/* o: the point nearest to the mean of the code */
#define HZ_LATTICE_SPHERE 2u		/* BASIS: level 0 finds the nearest point of all */
#define HZ_LATTICE_FIRST_FIT 4u		/* BANK, GROUP: the first scale that fits */
#define HZ_LATTICE_WIDE 8u		/* preset: the bank for rows with outliers */

#define HZ_LATTICE_MAXDIM 24
#define HZ_LATTICE_MAXLEVELS 32
#define HZ_LATTICE_MAXBANKS 16

/*
 * Options of a lattice quantizer. Zero the struct and set what is wanted: preset, or kind, q,
 * levels and beta. hz_lattice_design() finds them for data.
 *
 * q^d may be of any size; that of points is limited: q^M times a small number is at most 2^24. The
 * offset o is a point that is added before digits are taken and subtracted after: where q is even
 * the cell is not symmetric, and HZ_LATTICE_CENTER gains 0.2 to 2 dB (q = 2: far more). Its mean is
 * exact for q^d <= 65536 and Z, else of 131072 leaders.
 */
typedef struct hz_lattice_opts {
	int32_t kind;			/* enum hz_lattice_kind */
	int32_t dim;			/* d; 0: the kind's own */
	int32_t q;			/* >= 2: digits are 0 .. q - 1 */
	int32_t levels;			/* M, 1 .. 32 */
	double beta;			/* > 0: the scale; must be set: no default fits data */
	double alpha;			/* > 0: T and GROUP; 0 stands for 1/3, or 1/8 for GROUP */
	int32_t policy;			/* enum hz_lattice_policy */
	int32_t group;			/* GROUP, BANK: values with one t, 8 .. 128, a multiple of
					   d; BANK: 0 stands for d */
	int32_t banks;			/* BANK: how many, 1 .. 16 */
	uint32_t flags;			/* HZ_LATTICE_CENTER | _SPHERE | _FIRST_FIT | _WIDE */
	int32_t shaping;		/* enum hz_lattice_shaping; other than NESTED: E8, q 4, 8 or
					   16, levels 1, policy BANK, no CENTER, FIRST_FIT,
					   transform, dither, offset */
	int32_t preset;			/* enum hz_lattice_preset: sets the fields that are 0; 0:
					   none */
	const double *bank;		/* BANK: factors of beta, > 0 */
	const double *basis;		/* BASIS: d x d by rows; its columns are the basis */
	const double *transform;	/* T, d x d by rows, applied first; NULL: identity */
	const double *dither;		/* z, d numbers added to y and taken away after; NULL: 0 */
	const int64_t *offset;		/* o, d coordinates in the basis; NULL: 0, or _CENTER */
	int64_t reserved[4];		/* 0 */
} hz_lattice_opts;

/*
 * Opens a lattice quantizer. Options need not outlive the call. A quantizer belongs to no device
 * and does not change: any number of contexts and threads may use it at once, until it is
 * closed. On failure *lattice is NULL.
 *
 * Errors: HZ_EINVAL (also if o and z leave 0 outside of the code, which only NONE allows),
 * HZ_ENOTSUP (points too large), HZ_ENOMEM, HZ_EFORK.
 */
typedef struct hz_lattice hz_lattice;

HZ_API_CHECK int hz_lattice_open(hz_context *ctx, hz_lattice **lattice,
				 const hz_lattice_opts *opts);
HZ_API void hz_lattice_close(hz_lattice *lattice);

/* What a lattice quantizer is. Pointers live as long as it does; matrices are d x d by rows. */
typedef struct hz_lattice_info {
	int32_t kind, dim, q, levels, policy, group, shaping;
	int32_t embed;			/* integers of a point: d, 3 for A2 */
	int32_t embed_scale;		/* they are its coordinates times this: 2 for E8, else 1 */
	int64_t level_max;		/* q^d - 1; -1 if above 2^32 - 1: then LEVEL is refused */
	int32_t level_dtype;		/* HZ_U8, HZ_U16 or HZ_U32; 0 likewise */
	int32_t full64;			/* 1 if FULL64 is possible */
	int32_t limbs;			/* u32 of a block as LIMBS */
	int32_t scales;			/* how many values t has; 0: policies without t */
	int32_t point_max;		/* no integer of a point is further from 0 */
	double bits;			/* stored bits a value in rows of 4096: packed codes, t as
					   the bits that banks need or a byte, BANK: an f32 scale
					   of the row */
	const double *to_lattice;	/* T_to_lat = Q^T T / beta, for G = Q R */
	const double *from_lattice;	/* T_from_lat, its inverse */
	const double *reduced;		/* R: upper triangular, of nearest plane */
	const double *basis;		/* G, reduced if the caller's */
	const float *scale_table;	/* scale of each t; [0] = beta without t */
	const int32_t *offset;		/* o as integers, embed of them */
	const int32_t *leaders;		/* [q^d][embed], as integers, if q^d <= 65536; else NULL */
	int64_t reserved[8];		/* set to 0 */
} hz_lattice_info;

/* Describes a lattice quantizer: fills *info. Errors: HZ_EINVAL. */
HZ_API int hz_lattice_get_info(const hz_lattice *lattice, hz_lattice_info *info);

/* What hz_lattice_decode() makes of codes. */
enum hz_lattice_to {
	HZ_LATTICE_VALUES = 0,	/* f32 f16 bf16 [..., n] */
	HZ_LATTICE_POINTS = 1,	/* s8 s16 s32 [..., blocks, embed]: p as integers, with o */
	HZ_LATTICE_DIGITS = 2	/* u8 u16 u32 [..., blocks, levels, d] */
};

/* Options of lattice encoding and decoding; zero is the default of every field. */
typedef struct hz_lattice_code_opts {
	int32_t pack;			/* enum hz_lattice_pack */
	int32_t use_levels;		/* decode: the coarsest levels to use; 0: all */
	int32_t to;			/* decode: enum hz_lattice_to */
	uint32_t flags;			/* 0 */
	const hz_hadamard_opts *hadamard;	/* a transform of rows between; NULL: none */
	hz_tensor *row_scale;		/* f32 [...]: a scale of each row; NULL: none */
	int64_t reserved[3];		/* 0 */
} hz_lattice_code_opts;

/*
 * Encodes values as points of a lattice. The last dimension of x, n long, is cut into blocks =
 * ceil(n / d) blocks, the last one filled up with 0. With a scale s a block is
 *
 *   y = T x (1 / s) + z,  g_0 = Q(y) + o,  b_m = (G^-1 g_m) mod q,  g_{m+1} = (g_m - c(b_m)) / q
 *
 * and fits if g_M = 0: then its digits mean the point g_0, and else another one.
 *
 *   x         f32 f16 bf16 [..., n], any strides
 *   codes     the shape and dtype that opts->pack says, any strides: with levels outermost,
 *             level planes
 *   t         u8 [..., blocks], with opts.group of the quantizer [..., ceil(n / group)], any
 *             strides; NULL for NONE and CLIP
 *   overload  s64 [2] or NULL: set to the numbers of blocks that were wrapped or clipped, and of
 *             those with a NaN or Inf
 *   opts      NULL: the defaults; with hadamard rows of x are transformed first, as hz_hadamard()
 *             does, to f32. With row_scale, of the leading dimensions of x, any strides, rows are
 *             then divided by the root of their mean square, which row_scale is set to: presets
 *             expect that. NaN and Inf are no part of the mean; where it is 0, row_scale is 1.
 *             It is not written if x has no elements
 *
 * Policies. T: the first of 32 scales that fits; CLIP: y times the first 2^(-j/16) that fits;
 * BANK: of those that fit the scale with the least s^2 |y - p|^2, the first of equals, with a
 * group of those where all its blocks fit by the sum of errors; GROUP: of the first scale at which
 * all blocks of the group fit, and the two behind it where all fit, likewise. If no scale fits, the
 * largest with CLIP. Blocks wrapped or clipped are counted.
 * Codes with a shaping other than NESTED: the scale with the least error, also of scales that do
 * not fit: at these CUBE takes the nearest point in the cube, the others that of y times the first
 * 2^(-j/16) that fits, which is then moved by the minimal vectors of E8 while the error falls. A
 * block counts as clipped if no scale fits. Where even the largest scale leaves a |y_i| above 4 q,
 * that scale is taken.
 * A value that is Inf, or beyond f32 after T, counts as the largest finite number. A block with a
 * NaN is coded as o, which decodes to -z s, with t = 0; in a group it takes no part in the choice.
 *
 * Aliasing: no operand overlaps another.
 * Arithmetic: T x is a sum of f32 products in the order of columns, each operation rounded; y is
 * fl(fl(fl(v) f) + z) with v times the f32 inverse of the f32 scale, f = 1 or the factor of CLIP,
 * and is cut off at +-2^20, which does not fit. E8 compares costs in f32 that are made of |y -
 * rint(y)|: where both candidates are equally far but for 2^-21 either may be taken. Errors of
 * BANK and GROUP are sums in f32 in the order of coordinates and blocks, with a shaping of pairs of
 * coordinates. The sum of squares of a row is in f64, of 256 sums of values a multiple of 256
 * apart; row_scale and the quotients are rounded to f32. All else is in integers.
 * The same bits on every ISA, thread count and GPU.
 * Workspace: see hz_record_begin().
 * Errors: HZ_EINVAL, HZ_EDTYPE, HZ_ESHAPE, HZ_ESTRIDE, HZ_EALIAS, HZ_EDEVICE, HZ_ENOTSUP,
 * HZ_ENOMEM, HZ_EWORKSPACE, HZ_ECUDA, HZ_EFORK.
 * Source: Kaplan and Ordentlich 2025, algorithms 1 and 2; NestQuant (Savkin et al. 2025) for BANK.
 */
HZ_API_CHECK int hz_lattice_encode(hz_context *ctx, const hz_lattice *lattice, const hz_tensor *x,
				   hz_tensor *codes, hz_tensor *t, hz_tensor *overload,
				   const hz_lattice_code_opts *opts);

/*
 * Decodes lattice codes: y = T^-1 (s (p - o - z)), or the points p, or the digits.
 *
 *   codes  as of hz_lattice_encode(); LEVEL with opts->use_levels may have these alone
 *   t      as there; not needed for points and digits
 *   y      of the dtypes and the shape that opts->to says, any strides; n values of the last
 *          dimension have ceil(n / d) blocks. A dtype must hold every point or digit of the code
 *   opts   NULL: the defaults; with row_scale, that of encoding, values are multiplied with it;
 *          with hadamard they are transformed back last, by the transpose
 *
 * With fewer levels p is the sum of those that are used, and values have the mean of the others
 * added.
 * Any codes decode: the part of a code that is no digits (from q^d on) is left out, t beyond the
 * scales counts as the last.
 *
 * Codes with a shaping other than NESTED are labels of 8 fields f_i of b = log2 q bits, f_0 lowest.
 * DIGITS are the fields, POINTS v = twice the coordinates: v_i = 2 n_i + h - q, where h is the low
 * bit of f_7, n_i = f_i but for the low bit of n_7, which makes the sum of n even, and for the top
 * bit of n_0, which is 0 but in CUBE. D8STAR: if sum |2 n_i - q| > 4 q, the top bits of all n_i are
 * flipped; the top bit of f_0 means nothing. E8: P is the top bit of f_0 and P' that bit plus the
 * sum of the top bits of n, modulo 2; max and min are the largest and the least |v_i|, of equals
 * max that of the lowest i, min that of the highest. The label means v, whose coordinate of max
 * moves by 2 q to the other side of 0 if P is 1; but if
 * sum |v_i| + P (2 q - 2 max) > 4 q + 2 P' min it means v with all top bits flipped, whose
 * coordinate of min moves likewise if P' is 1.
 *
 * Aliasing: y overlaps nothing.
 * Arithmetic: fl(fl(p - o) - z) times the f32 scale, rounded; with T or a basis then a sum of
 * products as in encoding; one rounding to the dtype of y. The same bits everywhere.
 * Workspace: see hz_record_begin(). Errors: as hz_lattice_encode().
 */
HZ_API_CHECK int hz_lattice_decode(hz_context *ctx, const hz_lattice *lattice,
				   const hz_tensor *codes, const hz_tensor *t, hz_tensor *y,
				   const hz_lattice_code_opts *opts);

/*
 * Changes the packing of lattice codes, of all levels. from and to have the shapes and dtypes that
 * the packings say, of the same blocks, any strides.
 *
 * Aliasing: to does not overlap from.
 * Errors: HZ_EINVAL, HZ_EDTYPE, HZ_ESHAPE, HZ_ESTRIDE, HZ_EALIAS, HZ_EDEVICE, HZ_ENOTSUP, HZ_ECUDA,
 * HZ_EFORK.
 */
HZ_API_CHECK int hz_lattice_repack(hz_context *ctx, const hz_lattice *lattice,
				   const hz_tensor *from, hz_tensor *to, int from_pack,
				   int to_pack);

/* How products with lattice codes are computed. */
enum hz_vlut_route {
	HZ_VLUT_AUTO = 0,	/* the fastest that is near to f32 */
	HZ_VLUT_TABLE = 1,	/* through tables: of <c, x_k> for all leaders, or of <c, c'> */
	HZ_VLUT_DECODE = 2	/* points times x */
};

/* Options of hz_vlut_open(); zero is the default of every field. */
typedef struct hz_vlut_opts {
	int32_t route;			/* enum hz_vlut_route */
	int32_t table_dtype;		/* one-sided HZ_F32 F16 BF16 U16 U8, the last two fixed
					   point, of q^d <= 256; two-sided HZ_S8 S16; 0: chosen */
	int32_t sum;			/* HZ_F32 or HZ_S32; 0: chosen */
	uint32_t flags;			/* HZ_VLUT_COMPENSATED */
	int32_t x_format;		/* HZ_S8: dense x may be rounded to 8 bits with a scale for
					   each 32 values, as ggml does; 0: as exact as below */
	int32_t reserved0;		/* 0 */
	int64_t reserved[4];		/* 0 */
} hz_vlut_opts;

#define HZ_VLUT_COMPENSATED 1u		/* route TABLE: sums in f32 with compensation */

/*
 * Prepares products with lattice codes of w on the context's device: by dense vectors (x NULL), or
 * by codes of x, a quantizer of the same d. Both must outlive the vlut. HZ_VLUT_TABLE with two
 * sides allocates the table of <c, c'>, which named lattices without a transform have for q^(2d) up
 * to 2^26; with one side each call makes tables of its x. A vlut is used by one context at a time, of
 * the device it was opened on, while that context is open. On failure *vlut is NULL.
 *
 * Errors: HZ_EINVAL, HZ_EDTYPE, HZ_ENOTSUP (a table that is not supported), HZ_ENOMEM, HZ_ECUDA,
 * HZ_EFORK.
 */
typedef struct hz_vlut hz_vlut;

HZ_API_CHECK int hz_vlut_open(hz_context *ctx, hz_vlut **vlut, const hz_lattice *w,
			      const hz_lattice *x, const hz_vlut_opts *opts);
HZ_API void hz_vlut_close(hz_vlut *vlut);

/*
 * A matrix of lattice codes. Zero the struct and set codes and, where the policy has it, t; or
 * packed.
 */
typedef struct hz_coded {
	hz_tensor codes;		/* LEVEL: [rows, blocks, levels or use_levels] */
	const hz_tensor *t;		/* u8 [rows, blocks or groups]; NULL without t */
	const hz_tensor *row_scale;	/* f32 [rows], a further factor; NULL: 1 */
	const hz_packed *packed;	/* instead of codes and t: filled by hz_vlut_pack() */
	int64_t rows, k;		/* 0, or rows, and values of a row. rows of packed: the
					   first ones alone. k = 0: those of packed; of codes as x
					   has, or all of all blocks */
	int32_t use_levels;		/* the coarsest levels to use; 0: all */
	int32_t activation;		/* enum hz_activation, of hz_vlut_gemm(): NONE, RELU, TANH,
					   SIGMOID, GELU, SILU or GELU_TANH */
	const hz_tensor *bias;		/* f32 [rows], contiguous: it adds; NULL: 0 */
	const hz_hadamard_opts *hadamard;	/* by which rows were transformed before they were
						   coded: it transforms x too; NULL: none */
	int64_t reserved[2];		/* 0 */
} hz_coded;

/*
 * Packs a matrix of lattice codes, with t, in the order that this device's kernels read: worth it
 * for one that is used more than once. data has hz_vlut_pack_bytes() bytes on the context's device,
 * aligned to 64, and stays the caller's.
 *
 *   w       codes, with k, or all values of all blocks; or neither codes nor t, but rows and k: a
 *           matrix of codes 0, for hz_vlut_append()
 *   packed  filled; data must live as long as it is used. All levels are in it. Any vlut of an
 *           equal lattice takes it if its options ask for the same layout; calls refuse others
 *
 * Aliasing: data overlaps no operand.
 * Errors: HZ_EINVAL, HZ_EDTYPE, HZ_ESHAPE, HZ_EALIAS, HZ_EDEVICE, HZ_ENOTSUP, HZ_ECUDA, HZ_EFORK.
 */
HZ_API_CHECK int hz_vlut_pack_bytes(hz_context *ctx, const hz_vlut *vlut, const hz_coded *w,
				    size_t *bytes);
HZ_API_CHECK int hz_vlut_pack(hz_context *ctx, const hz_vlut *vlut, const hz_coded *w,
			      void *data, size_t bytes, hz_packed *packed);

/*
 * Encodes rows into a packed matrix: rows of x, as hz_lattice_encode() does, into rows `row` and so
 * on. Its other rows stay as they are: the keys or values of a new token in a cache, say. All bytes
 * are then those of hz_vlut_pack() of the same codes, in whatever order rows were appended; rows may
 * be written again. hz_coded.rows lets products end with the rows appended so far.
 *
 *   x       f32 f16 bf16 [n, k], any strides
 *   row     0 .. rows of packed - n
 *   packed  filled by hz_vlut_pack() for this vlut: of codes, or of rows and k alone
 *   opts    NULL: the defaults; hadamard and row_scale, f32 [n], as of hz_lattice_encode(), which
 *           presets expect; the others are 0
 *
 * Aliasing: packed and row_scale overlap no other operand.
 * A CUDA graph of this call writes the same rows whenever it is launched.
 * Workspace: see hz_record_begin().
 * Errors: HZ_EINVAL, HZ_EDTYPE, HZ_ESHAPE, HZ_ESTRIDE, HZ_EALIAS, HZ_EDEVICE, HZ_ENOTSUP,
 * HZ_ENOMEM, HZ_EWORKSPACE, HZ_ECUDA, HZ_EFORK.
 *
 * Example:
 *
 *     // A cache of up to 512 keys of 64 values, 4.5 bits each, and the scores of a query
 *     const hz_lattice_opts e8 = {.preset = HZ_LATTICE_PRESET_E8_4_50_FAST};
 *     const hz_coded empty = {.rows = 512, .k = 64};
 *     float scales[512], key[64] = {1}, query[64] = {1}, scores[1];
 *     hz_tensor scale = hz_tensor_1d(scales, HZ_F32, HZ_CPU, 1);
 *     const hz_tensor k = hz_tensor_2d(key, HZ_F32, HZ_CPU, 1, 64);
 *     const hz_tensor q = hz_tensor_1d(query, HZ_F32, HZ_CPU, 64);
 *     hz_tensor y = hz_tensor_1d(scores, HZ_F32, HZ_CPU, 1);
 *     const hz_lattice_code_opts opts = {.row_scale = &scale};
 *     hz_packed cache;
 *     const hz_coded first = {.packed = &cache, .row_scale = &scale, .rows = 1};
 *     hz_lattice *lattice = NULL;
 *     hz_vlut *vlut = NULL;
 *     void *data = NULL;
 *     size_t bytes;
 *     if (hz_lattice_open(ctx, &lattice, &e8) != HZ_OK ||
 *         hz_vlut_open(ctx, &vlut, lattice, NULL, NULL) != HZ_OK ||
 *         hz_vlut_pack_bytes(ctx, vlut, &empty, &bytes) != HZ_OK ||
 *         hz_alloc(ctx, &data, bytes, HZ_CPU) != HZ_OK ||
 *         hz_vlut_pack(ctx, vlut, &empty, data, bytes, &cache) != HZ_OK ||
 *         hz_vlut_append(ctx, vlut, &k, 0, &cache, &opts) != HZ_OK ||
 *         hz_vlut_gemv(ctx, vlut, &first, &q, &y) != HZ_OK)
 *             fprintf(stderr, "%s\n", hz_errmsg(ctx));
 *     hz_vlut_close(vlut);
 *     hz_lattice_close(lattice);
 *     if (data)
 *             hz_free(ctx, data, HZ_CPU);
 */
HZ_API_CHECK int hz_vlut_append(hz_context *ctx, const hz_vlut *vlut, const hz_tensor *x,
				int64_t row, hz_packed *packed,
				const hz_lattice_code_opts *opts);

/*
 * Products with a matrix of lattice codes, y = act(x W^T + bias), without decoding them: y_i =
 * act(r_i sum_k s(t_ik) <p_ik - o - z, x_k> + bias_i). hz_vlut_gemv() is for one x, hz_vlut_gemm()
 * for a batch.
 *
 *   w  codes of [rows, k], with bias, activation and hadamard, whose axis is the last
 *   x  f32 f16 bf16 s8 [k], for gemm [.., batch, k] or [k], any strides; s8 without w->hadamard
 *   y  f32 f16 bf16 [rows], for gemm the leading dimensions of x, and rows, any strides; or with x
 *      of s8 s32: sum_k <p_ik - o, x_k> of points as integers, exactly, mod 2^32, without scales,
 *      bias and activation: Z, D_n and E8 without a transform
 *
 * Leading dimensions of x and y are one batch where the strides of both allow that, as those of
 * contiguous views do; otherwise the product is repeated for each index of those that are left.
 *
 * Aliasing: y overlaps nothing.
 * Arithmetic: sums in f32 or s32, in an order that depends on shapes and options alone. On the CPU
 * AUTO takes fixed-point numbers: for few rows of x 16-bit tables in registers (q^d <= 256), in
 * units of 2^-15 of what a group of up to 32 blocks can reach, 4e-5 of |y| for normal numbers with
 * t and 1.2e-4 without; without t, for more rows of x or packed D4 with q = 4, M = 2, x itself, in
 * units of 2^-22 of a row's most |x_k| (2^-15 for a y of 16 bits, or errors of 4e-5). All is in f32
 * with sum = HZ_F32, or if x has NaN or Inf, or a largest |x_k| outside of 2^-50 .. 2^50. On a
 * GPU products are of f16, to which values with t and those of A2 and of bases are rounded and
 * points beyond 2048, and x in one or two parts; or of integers, x in units of 2^-14 of its most or
 * finer: errors are at most 2^-9 sum_k |w_ik x_k| + 2^-15 max_k |x_k| sum_k |w_ik|, w being what
 * decoding gives; 2^-8 in the first for three or more rows of x of bf16 by packed codes with a
 * shaping, whose values are rounded to bf16. Tables of f16 and bf16 add the roundings of their
 * entries; those of u8, 0.6 % for normal numbers, are taken for up to 8 rows of x, and for more
 * with route TABLE. On a GPU a row of x with NaN or Inf gives what sums in f32 would, or a row of
 * NaN. Then one rounding to the dtype of y. With a bias or an activation the product is
 * rounded to f32, then the sum with bias, then the activation, which is as exact as that of
 * hz_linear_forward(). x that w->hadamard transforms is rounded to f32.
 * Packed codes with a shaping, and those of D4 with q = 4, M = 2 and BANK groups of 8, with a bank
 * of at most 16 integers up to 255, are multiplied on the CPU by x in the same fixed-point numbers
 * for up to 8 rows of x. With opts->x_format = HZ_S8 they are multiplied by round(x_k / d)
 * instead, d = max |x_k| / 127 of each 32 k: sums of 32 k are exact integers, which are added in
 * f32 in the order of k. That is an error of 0.5 % of y for normal numbers. Both have the same bits
 * on every ISA level. Other codes, and a GPU, ignore x_format.
 * Workspace: see hz_record_begin().
 * Errors: HZ_EINVAL, HZ_EDTYPE, HZ_ESHAPE, HZ_ESTRIDE, HZ_EALIAS, HZ_EDEVICE, HZ_ENOTSUP,
 * HZ_ENOMEM, HZ_EWORKSPACE, HZ_ECUDA, HZ_EFORK.
 * Source: Kaplan and Ordentlich 2025, section IV.
 */
HZ_API_CHECK int hz_vlut_gemv(hz_context *ctx, const hz_vlut *vlut, const hz_coded *w,
			      const hz_tensor *x, hz_tensor *y);
HZ_API_CHECK int hz_vlut_gemm(hz_context *ctx, const hz_vlut *vlut, const hz_coded *w,
			      const hz_tensor *x, hz_tensor *y);

/*
 * Products of two matrices of lattice codes, y = X W^T: y_ji = r_i r'_j sum_k s s' <p_ik - o - z,
 * p'_jk - o' - z'>.
 *
 *   w, x  codes of [rows, k] each, with blocks of the same d; without bias, activation and hadamard
 *   y     f32 f16 bf16 [rows of x, rows of w], any strides; or s32: sum_k <p_ik - o, p'_jk - o'> of
 *         points as integers, exactly, mod 2^32, without scales (E8: 4 times, A2: 2 times the
 *         product of points)
 *
 * Aliasing: y overlaps nothing.
 * Arithmetic: where values are points times the scales of lattice and row (no t, basis, transform,
 * dither, mean of levels left out; of A2 whole blocks), r_i fl(S s s' r'_j / c): S is the sum that
 * s32 stands for, exactly, c the 1, 2 or 4 of it, and fl() rounds once, to f32. The same bits on
 * every level; and on a GPU for Z^1, Z^2, Z^4, Z^8, A2, D_3, D_4, D_8 and E8 with q <= 16, integers
 * |p - o| <= 127 and up to 8 bytes of codes a block, k <= 65536, and fewer than 2^31 blocks a side,
 * unless w is packed, of D4 with q = 4, M = 2, and x has fewer than 512 rows. Else points there are
 * rounded to f16, which holds those up to 2048, and sums are in f32. All else, and route TABLE, as
 * hz_vlut_gemm() with x decoded, on a GPU to f16.
 * Workspace: see hz_record_begin(). Errors: as hz_vlut_gemm().
 */
HZ_API_CHECK int hz_vlut_gemm2(hz_context *ctx, const hz_vlut *vlut, const hz_coded *w,
			       const hz_coded *x, hz_tensor *y);

/* What hz_lattice_design() found out about its choice. */
typedef struct hz_lattice_report {
	double mse, rate, overload;	/* a value; bits a value; share of blocks */
	double entropy_t, gap_db;	/* bits of a t; 10 log10(mse 2^(2 rate) / variance) */
	int64_t rotate;			/* 1: of rows after hz_hadamard(), for a preset */
	int64_t reserved[3];		/* set to 0 */
} hz_lattice_report;

/*
 * Chooses a lattice quantizer for sample data and a bit budget: a preset, or the result of a
 * search.
 *
 * NULL or a zeroed want stands for the presets: of those that have the most stored bits within the
 * rate the one with the least error, its scales for Gaussian rows or HZ_LATTICE_WIDE, and if rows
 * are rotated first: pass row_scale, and with report->rotate a zeroed hz_hadamard_opts, to encode.
 * With want->preset these two are chosen for that preset, and no other member may be set. `rate`
 * leaves out the scale of a row; report->rate has it, as hz_lattice_info.bits.
 *
 * Otherwise a search for the least squared error at no more than `rate` bits a value, or with rate
 * 0 the least gap to the rate-distortion bound of Gaussian data.
 *
 *   want    for a search a policy, or kind, q or levels. policy, alpha, group, banks and dither
 *           count and are not searched (NONE wraps the largest values and needs a wide beta; T and
 *           GROUP are several dB better for bell-shaped data). kind, q and levels count too where
 *           they are not 0, else they are searched: Z, A2, D4, E8, q up to 16. beta is always
 *           searched
 *   rate    presets: counts stored bits; a search: log2(q) for each digit, and the entropy of t,
 *           not the bits of storage
 *   x       f32 on the host, at least 384 values, of which up to 49152 count, for presets 98304 in
 *           rows of at most 32768; NULL: Gaussian of sigma, positive and normal in f32, which is
 *           not read otherwise
 *   found   want with the kind, dim, q, levels, beta, offset flag and bank that are best; BANK:
 *           beta is 1; a preset: preset and flags alone
 *   bank    BANK: room for 16 numbers, which found->bank is set to; else NULL
 *   report  NULL: not wanted
 *
 * While the context records, arguments are checked, and nothing is searched or written.
 * beta goes in steps of 5 % from the least sensible one on, scales of a bank are 2^(1/8) apart. The
 * same everywhere; a preset takes less than a second, a search some seconds.
 * Errors: HZ_EINVAL, HZ_EDTYPE, HZ_ESHAPE, HZ_ESTRIDE, HZ_EDEVICE, HZ_ENOTSUP (nothing has such a
 * rate, a basis), HZ_ENOMEM, HZ_EFORK.
 */
HZ_API_CHECK int hz_lattice_design(hz_context *ctx, const hz_lattice_opts *want, double rate,
				   double sigma, const hz_tensor *x, hz_lattice_opts *found,
				   double bank[16], hz_lattice_report *report);

/* ---- Linear layers with quantized weights ---------------------------------------------------- */

/*
 * Formats of linear layers with compressed weights: y = activation(x W'^T + bias), W' [out, in]:
 * one object from weights, or from bytes in a file, to products. doc/linear.md describes the bytes.
 *
 * Values are never renumbered. Bits are stored bits a weight, of codes and their scales without the
 * 32 of the scale of a row; errors are those of Gaussian weights. Both are with enum
 * hz_lattice_preset for lattices:
 *
 *     format            bits     error    products
 *     s8-row            8      -41   dB   hz_qlinear(), x as u8 by the range of each row
 *     e8-4.5 to d4-4.5                    hz_vlut_gemm() with x_format = HZ_S8
 *     s8-g128           8.125  -43.8 dB   hz_qlinear_group(), x as s8 with a scale for 32 values,
 *     s4-g32            4.5    -20.8 dB   here and below
 *     s4-g128           4.125  -19.5 dB
 *     u4-g128           4.19   -20.4 dB
 *     mxfp4             4.25   -18.7 dB
 *     nvfp4             4.5    -20.5 dB
 *
 * Scales of groups are bf16, of mxfp4 e8m0, of nvfp4 e4m3 with an f32 of the whole matrix; those of
 * u4-g128 have zero points.
 */
enum hz_linear_format {
	HZ_LINEAR_S8_ROW = 1,		/* s8, a scale for each row */
	HZ_LINEAR_E8_4_50_FAST = 2,	/* HZ_LATTICE_PRESET_E8_4_50_FAST, and so on */
	HZ_LINEAR_E8_4_50 = 3,
	HZ_LINEAR_E8_4_25 = 4,
	HZ_LINEAR_E8_4_25_BEST = 5,
	HZ_LINEAR_E8_3_25_FAST = 6,
	HZ_LINEAR_E8_3_25 = 7,
	HZ_LINEAR_E8_2_25 = 8,
	HZ_LINEAR_D4_4_50 = 9,
	HZ_LINEAR_S8_G128 = 10,		/* groups of 128 in-features, symmetric */
	HZ_LINEAR_S4_G32 = 11,		/* from here on `in` must be even */
	HZ_LINEAR_S4_G128 = 12,
	HZ_LINEAR_U4_G128 = 13,
	HZ_LINEAR_MXFP4 = 14,		/* e2m1 in groups of 32: OCP MX 1.0 */
	HZ_LINEAR_NVFP4 = 15		/* e2m1 in groups of 16 */
};

/* The name of a format ("s8-row", "e8-4.5-fast"), "?" for a value that is none. */
HZ_API const char *hz_linear_format_name(int format);

#define HZ_LINEAR_ROTATE 1u	/* in-features are rotated by a randomized Hadamard transform */

/* Options of hz_linear_open(). Zeroed fields have their defaults. */
typedef struct hz_linear_open_opts {
	int32_t format;			/* enum hz_linear_format; 0: S8_ROW */
	uint32_t flags;			/* HZ_LINEAR_ROTATE */
	uint64_t seed;			/* ROTATE: of the random signs, see hz_hadamard_signs() */
	const hz_tensor *moments;	/* f32, contiguous, on the host, over calibration data:
					 * [in], the mean of x_k^2, not negative, not all 0, or
					 * [in, in], that of x_j x_k, of which the lower triangle
					 * is read; NULL: all features count alike */
	int64_t reserved[4];		/* 0 */
} hz_linear_open_opts;

/*
 * Opens a linear layer: quantizes its weights. It is used by one context at a time, of the
 * device it was opened on, while that context is open. On failure *layer is NULL.
 *
 *   w     f32 f16 bf16 [out, in], any strides, neither size 0, all values at most 2^96 in magnitude
 *   opts  NULL: format S8_ROW without rotation
 *
 * With HZ_LINEAR_ROTATE x W^T is computed as (H D x) (W D H^T): H is the plan HZ_PLAN_TRUE of
 * hz_hadamard() if it makes the length `in` and that is at most 65536, else HZ_PLAN_GREEDY with
 * blocks of at most 65536; D are the signs of opts->seed. That spreads large weights and
 * activations over all features. hz_linear_forward() transforms x itself.
 *
 * With moments the scale of a row minimises sum_k moments_k (W'_k - W_k)^2 instead of the plain sum
 * of squares; a rotation averages them over each block of H. S8_ROW tries 16 scales for each row,
 * 1 - j / 32 times that of the largest weight; lattice codes try 5, 15 where a weight exceeds 5
 * times the row's root mean square, and the better bank (HZ_LATTICE_WIDE) for 2^20 weights. The
 * scale is then that of least squares for the codes. Groups of s8, s4 and u4 are treated as rows of
 * S8_ROW, and codes are those of the scale as stored; mxfp4 and nvfp4 are what hz_quantize() makes,
 * of nvfp4 with the tensor_scale max |W| / 2688, at least FLT_MIN, or 1 if all of W is 0.
 *
 * With a matrix of moments M scales are chosen by its diagonal, and columns are then rounded one
 * after the other, those of lattice codes eight at a time: each makes up for the errors of the ones
 * before, so that the error of products, (W' - W) M (W' - W)^T, becomes small. A tenth of the mean
 * of M's diagonal is added to the diagonal. mxfp4 and nvfp4 are as without. It takes 2 in^2 bytes
 * and in^3 / 6 + out in^2 multiply-adds.
 *
 * The codes have the same bits on every ISA level, thread count and device: on a GPU w is copied to
 * the host and quantized there. The layer is made, and the stream of a GPU waited for, also while
 * the context records.
 * Errors: HZ_EINVAL, HZ_EDTYPE, HZ_ESHAPE, HZ_ESTRIDE, HZ_EDEVICE, HZ_ENOTSUP (in above 8388608),
 * HZ_ENOMEM, HZ_ECUDA, HZ_EFORK.
 * Source: QuaRot (Ashkboos et al. 2024) for the rotation; Kaplan and Ordentlich 2025 for codes;
 * GPTQ (Frantar et al. 2023) and QuIP (Chee et al. 2023) for rounding with a matrix of moments.
 *
 * Example:
 *
 *     float weights[32][64] = {{1}}, in[2][64] = {{1}}, out[2][32];
 *     const hz_tensor w = hz_tensor_2d(weights, HZ_F32, HZ_CPU, 32, 64);
 *     const hz_tensor x = hz_tensor_2d(in, HZ_F32, HZ_CPU, 2, 64);
 *     hz_tensor y = hz_tensor_2d(out, HZ_F32, HZ_CPU, 2, 32);
 *     const hz_linear_open_opts opts = {.format = HZ_LINEAR_E8_4_50, .flags = HZ_LINEAR_ROTATE};
 *     hz_linear *layer;
 *     if (hz_linear_open(ctx, &layer, &w, &opts) != HZ_OK ||
 *         hz_linear_forward(ctx, layer, &x, NULL, &y, NULL) != HZ_OK)
 *             fprintf(stderr, "%s\n", hz_errmsg(ctx));
 *     hz_linear_close(layer);
 */
typedef struct hz_linear hz_linear;

HZ_API_CHECK int hz_linear_open(hz_context *ctx, hz_linear **layer, const hz_tensor *w,
				const hz_linear_open_opts *opts);
HZ_API void hz_linear_close(hz_linear *layer);

/*
 * Makes a linear layer of the bytes that hz_linear_save() wrote, on any device and ISA level. On
 * failure *layer is NULL.
 *
 *   data   bytes on the host, aligned to 64, as those of mmap() are. A layer on the CPU reads them
 *          in place: data stays as it is until hz_linear_close(); formats with groups are packed
 *          besides. A layer on a GPU has a copy on the host, and two on the GPU: as stored, for
 *          hz_linear_bwd() and hz_linear_dequantize(), and as products there read them
 *   bytes  at least as many as the header says
 *
 * The header, all scales, and the codes and sums of S8_ROW are checked, which reads them once; any
 * lattice code is valid. Bytes that are no such layer, or of another version, give HZ_EINVAL. What
 * is loaded decodes to finite weights.
 * Errors: HZ_EINVAL, HZ_ENOMEM, HZ_ECUDA, HZ_EFORK.
 */
HZ_API_CHECK int hz_linear_load(hz_context *ctx, hz_linear **layer, const void *data, size_t bytes);

/*
 * Writes a linear layer to memory on the host, of at least hz_linear_save_bytes() bytes. They are
 * the same on every ISA level and device, little-endian, and may be kept in a file: later versions
 * of the library read them. data does not overlap the data that the layer was loaded from.
 * Errors: HZ_EINVAL, HZ_EALIAS, HZ_EFORK.
 */
HZ_API_CHECK int hz_linear_save(hz_context *ctx, const hz_linear *layer, void *data, size_t bytes);
HZ_API_CHECK int hz_linear_save_bytes(hz_context *ctx, const hz_linear *layer, size_t *bytes);

/* What a linear layer is. Strings live as long as it does. */
typedef struct hz_linear_info {
	int64_t out, in;
	int32_t format;			/* enum hz_linear_format */
	uint32_t flags;			/* HZ_LINEAR_ROTATE */
	uint64_t seed;
	int64_t bytes;			/* stored: codes, scales, header and padding */
	double bits;			/* 8 bytes / (out in): stored bits a weight */
	double error;			/* sum (W' - W)^2 / sum W^2, each term times moments_k where
					 * these were given, as rotated */
	double error_db;		/* 10 log10(error); -400 if error is less than 1e-40 */
	const char *format_name;	/* "s8-row" */
	const char *route;		/* the code path here of a product by one row of f32 */
	int64_t reserved[8];		/* set to 0 */
} hz_linear_info;

/* Describes a linear layer: fills *info. Errors: HZ_EINVAL. */
HZ_API int hz_linear_get_info(const hz_linear *layer, hz_linear_info *info);

#define HZ_LINEAR_GATED 1u	/* y = activation(first half) * (second half) of the layer's out */
#define HZ_LINEAR_WEIGHT_ONLY 2u	/* formats with groups: x is not quantized (W4A16) */

/* Options of hz_linear_forward(). Zeroed fields have their defaults. */
typedef struct hz_linear_opts {
	int32_t activation;		/* enum hz_activation: NONE, RELU, TANH, SIGMOID, GELU,
					 * SILU or GELU_TANH */
	uint32_t flags;			/* HZ_LINEAR_GATED | _WEIGHT_ONLY */
	int64_t reserved[4];		/* 0 */
} hz_linear_opts;

/*
 * Applies a linear layer: y = activation(x W'^T + bias). With HZ_LINEAR_GATED rows 0 .. out / 2 - 1
 * of W' are the gate g, the others u: y = activation(g) u, as in SwiGLU.
 *
 *   x     f32 f16 bf16 [.., in], any strides
 *   bias  f32 [out], contiguous, or NULL
 *   y     f32 f16 bf16 [.., out], with HZ_LINEAR_GATED [.., out / 2], any strides; its other
 *         dimensions are those of x
 *   opts  NULL: the identity
 *
 * Aliasing: y overlaps no other operand.
 * Arithmetic: rotated x are f32. Products round x as those of the format do: S8_ROW as
 * hz_qlinear(), lattices as hz_vlut_gemm() with x_format = HZ_S8, groups as hz_qlinear_group() with
 * x_dtype = HZ_S8 and x_group = 32, to f32. With HZ_LINEAR_WEIGHT_ONLY groups multiply floats x as
 * they are: more exact, and on a GPU faster for x of 16 bits that is not rotated, on a CPU slower.
 * Bias, activation and the product with u are rounded to f32 each, then y to its dtype. Activations
 * are within 1 ulp of f32 on the CPU, on a GPU within 2^-21 |v|, v being what they are of.
 * NaN and Inf in x are what the products make of them: S8_ROW and groups count NaN as 0, and a row
 * with Inf gives NaN, but for HZ_LINEAR_WEIGHT_ONLY. With lattices x of all rows is then multiplied
 * in f32, so that such a row changes the rounding of the others; NaN and Inf stay what they are in
 * exact arithmetic.
 * The same bits for any number of threads; on the CPU those of S8_ROW and groups, but for
 * HZ_LINEAR_WEIGHT_ONLY, and of lattices for up to 8 rows of x whose largest |x_k|, as rotated, is
 * within 2^-50 .. 2^50, are the same on every ISA level.
 * Workspace: see hz_record_begin().
 * Errors: HZ_EINVAL, HZ_EDTYPE, HZ_ESHAPE, HZ_ESTRIDE, HZ_EALIAS, HZ_EDEVICE, HZ_ENOTSUP,
 * HZ_ENOMEM, HZ_EWORKSPACE, HZ_ECUDA, HZ_EFORK.
 * Source: Hendrycks and Gimpel 2016 (GELU, SiLU); Shazeer 2020 (gated units).
 */
HZ_API_CHECK int hz_linear_forward(hz_context *ctx, const hz_linear *layer, const hz_tensor *x,
				   const hz_tensor *bias, hz_tensor *y,
				   const hz_linear_opts *opts);

/*
 * Computes the gradient of the input of a linear layer: dx = dy W', of the layer without bias and
 * activation: dy is the gradient of x W'^T. The rounding of x counts as the identity
 * (straight-through estimator); W' and bias are not trained.
 *
 *   dy  f32 f16 bf16 [.., out], any strides
 *   dx  f32 f16 bf16 [.., in], any strides; its other dimensions are those of dy
 *
 * Aliasing: dx does not overlap dy.
 * Arithmetic: W' is decoded to f32, sums are in f32 in ascending order of out, each product and sum
 * rounded or fused; then the transposed rotation and one rounding to the dtype of dx. The same bits
 * for any number of threads.
 * Workspace: see hz_record_begin(): up to 256 rows of W' as f32, and with a rotation or rounding dx
 * as f32.
 * Errors: as hz_linear_forward().
 */
HZ_API_CHECK int hz_linear_bwd(hz_context *ctx, const hz_linear *layer, const hz_tensor *dy,
			       hz_tensor *dx);

/*
 * Writes the decoded weights of a linear layer, W' without the rotation: those that
 * hz_linear_forward() multiplies x by.
 *
 *   w  f32 f16 bf16 [out, in], any strides
 *
 * Arithmetic: codes times scales in f32, then the transposed rotation; one rounding to the dtype of
 * w. f32 has the same bits on every ISA level, thread count and GPU.
 * Workspace: see hz_record_begin().
 * Errors: as hz_linear_forward().
 */
HZ_API_CHECK int hz_linear_dequantize(hz_context *ctx, const hz_linear *layer, hz_tensor *w);

/* ---- Manifold-constrained hyper-connections -------------------------------------------------- */

/*
 * A residual network whose residual stream is n streams wide. For the streams X [n, C] of a token,
 * a branch F of the network, and coefficients p [n], q [n] and A [n, n]:
 *
 *     u = sum_i p_i X[i],    X'[i] = sum_j A_ij X[j] + q_i F(u)
 *
 * Operands of this section, unless it says otherwise:
 *
 *   streams       [..., n, C], f32 f16 bf16, 1 <= n <= 8; strides are any, but the dimensions
 *                 before n step as one of T tokens: the sizes of these multiply to T. With
 *                 HZ_MHC_STREAMS_CN in options [..., C, n]; calls without options take that with
 *                 its last two dimensions swapped
 *   branch values [..., C], u and F: T tokens likewise, the dtype of the streams
 *   coefficients  f32: p, q [..., n] and a [..., n, n], a[new, old]. The sizes before multiply to
 *                 S sets. Calls that compute them have opts.coefficients, which says what S is;
 *                 calls that only use them take every S that divides T: token t has the set at
 *                 t / (T / S)
 *   weights       f32, contiguous: phi [m, n C], alpha [3], bias [m], gain [n C], norm and
 *                 branch_bias [C]. Rows of phi: n for p, n for q, then those for a. phi may also be
 *                 bf16 or f16; its gradient is f32. alpha may be [2] where there is no a
 *
 * Sums are f32 at least, results are rounded once. Gradients of p, q, a and of weights are sums in
 * an order that depends on shapes and the device alone: the same bits for any number of threads and
 * in every run. Gradients may be NULL: not wanted. No output overlaps another operand, but where it
 * says so. NaN and Inf propagate within their token (and its sequence).
 * Errors: HZ_EINVAL, HZ_EDTYPE, HZ_ESHAPE, HZ_ESTRIDE, HZ_EALIAS, HZ_EDEVICE, HZ_ENOTSUP,
 * HZ_ENOMEM, HZ_EWORKSPACE, HZ_ECUDA, HZ_EFORK.
 * Source: Xie et al. 2025, arXiv 2512.24880, equations 3 to 19; DeepSeek's V4 models.
 */

/*
 * The conventions of models, papers and libraries: options that are not set are the preset's. What
 * a preset does not list is ADD, INSIDE, RMS_ALL, HEAD_WEIGHTS, STREAMS_NC, q_scale 2, 20
 * iterations, no bounds of z, and every other eps 0. `hurwitz run mhc_presets` prints them, with
 * the names of tensors.
 */
enum hz_mhc_presets {
	HZ_MHC_PRESET_DEEPSEEK_V4 = 1,	/* the default: SINKHORN, SOFTMAX, ROWS, OLD_NEW, every eps
					   but q_eps 1e-6 */
	HZ_MHC_PRESET_PAPER = 2,	/* arXiv 2512.24880: SINKHORN, EXP, COLS, every eps 0 */
	HZ_MHC_PRESET_TRITON = 3,	/* mHC-triton: SINKHORN, ABS, ROWS, NORMALIZE, eps, p_eps
					   and rms_eps 1e-6 */
	HZ_MHC_PRESET_TRITON_STATIC = 4, /* its static coefficients: eps 1e-8, p_eps and rms_eps
					   1e-6, q_scale 1, else as TRITON */
	HZ_MHC_PRESET_HC = 5,		/* hyper-connections, arXiv 2409.19606: TANH, rms_eps 1e-6;
					   else as PAPER */
	HZ_MHC_PRESET_LITE = 6,		/* mHC-lite, arXiv 2601.05732: LITE, rms_eps 1e-6; else as
					   PAPER */
	HZ_MHC_PRESET_DEEPSEEK_V41 = 7,	/* as DEEPSEEK_V4, rms_eps 1e-20; each p is the p_in of the
					   next call, also of the head; the first is one-hot, stream
					   0 */
	HZ_MHC_PRESET_GLM5_NEXT = 8,	/* as DEEPSEEK_V4, rms_eps and norm_eps 1e-5, HEAD_MEAN; phi
					   is bf16 */
	HZ_MHC_PRESET_XING4 = 9,	/* SINKHORN, EXP, ROWS, eps 1e-6, z from -30 to 30, rms_eps
					   1e-6, HEAD_MEAN */
	HZ_MHC_PRESET_HY_V4 = 10,	/* IDENTITY, so that alpha is [2]; p_eps and q_eps 1e-6,
					   rms_eps and norm_eps 1e-5 */
	HZ_MHC_PRESET_MEGATRON = 11,	/* Megatron-core: SINKHORN, EXP, ROWS, FLOOR, eps 1e-6,
					   rms_eps 1e-6, ROOT, HEAD_MEAN */
	HZ_MHC_PRESET_TILEKERNELS = 12,	/* TileKernels 1.0's defaults: as DEEPSEEK_V4, 10
					   iterations, q_scale 1 */
	HZ_MHC_PRESET_LIGER = 13,	/* Liger-Kernel 0.8: as DEEPSEEK_V4 without OLD_NEW, p_eps
					   0 */
	HZ_MHC_PRESET_TRANSFORMER_ENGINE = 14, /* TransformerEngine 2: SINKHORN, EXP, ROWS, OLD_NEW,
					   rms_eps 2^-23, STREAMS_CN */
	HZ_MHC_PRESET_LUCIDRAINS = 15,	/* hyper-connections 0.4, mHCv2: SINKHORN, EXP, COLS,
					   OLD_NEW, FLOOR, eps 1e-12, RMS_STREAM, RMS_EPS_FLOOR,
					   rms_eps 1e-12, HEAD_SUM */
	HZ_MHC_PRESET_QWEN4_EXP = 16	/* IDENTITY, RMS_STREAM, rms_eps and norm_eps 1e-6: see
					   hz_mhc_gated_pre() */
};

/* How residual matrices are made: a of its m - 2n numbers z */
enum hz_mhc_residual {
	HZ_MHC_SINKHORN = 1,	/* z [n, n], nearly doubly stochastic by Sinkhorn and Knopp */
	HZ_MHC_LITE = 2,	/* n <= 4: sum over the n! permutations, in lexicographic order, of
				   softmax(z)_k P_k, P_k[i, perm_k(i)] = 1: doubly stochastic */
	HZ_MHC_IDENTITY = 3,	/* a = I; no z */
	HZ_MHC_TANH = 4		/* plain hyper-connections: p, q, a = alpha tanh(y) + bias */
};

/* The first step of Sinkhorn's iteration */
enum hz_mhc_map {
	HZ_MHC_EXP = 1,		/* exp(z - the largest of the row or column normalised first) */
	HZ_MHC_SOFTMAX = 2,	/* softmax over what is normalised first, plus eps, for the first
				   half of the first iteration */
	HZ_MHC_ABS = 3		/* |z| + eps; its slope at 0 is 0 */
};

/* What each of Sinkhorn's iterations normalizes first. */
enum hz_mhc_order {
	HZ_MHC_COLS = 1,	/* each iteration divides columns by their sums + eps, then rows */
	HZ_MHC_ROWS = 2		/* rows, then columns */
};

/* How eps enters Sinkhorn's iteration: the sums of rows and columns that it divides by */
enum hz_mhc_eps_rules {
	HZ_MHC_EPS_ADD = 1,	/* sum + eps */
	HZ_MHC_EPS_FLOOR = 2	/* the larger one of sum and eps; maps still add it to elements */
};

/* Which mean square normalizes y: that by whose root it is divided */
enum hz_mhc_rms {
	HZ_MHC_RMS_ALL = 1,	/* of all n C numbers of a token */
	HZ_MHC_RMS_NONE = 2,	/* none: y = phi g x */
	HZ_MHC_RMS_STREAM = 3	/* of the C numbers of its stream: each stream has its own root */
};

/* How rms_eps enters the root of the mean square */
enum hz_mhc_rms_eps_rules {
	HZ_MHC_RMS_EPS_INSIDE = 1,	/* sqrt(mean square + rms_eps) */
	HZ_MHC_RMS_EPS_ROOT = 2,	/* sqrt(mean square) + rms_eps */
	HZ_MHC_RMS_EPS_FLOOR = 3	/* max(sqrt(sum of squares), rms_eps) / sqrt(count) */
};

/* What hz_mhc_head() makes of streams */
enum hz_mhc_heads {
	HZ_MHC_HEAD_WEIGHTS = 1,	/* sum_i p_i X[i], p by phi, alpha and bias */
	HZ_MHC_HEAD_MEAN = 2,		/* their mean: phi, alpha and bias are NULL */
	HZ_MHC_HEAD_SUM = 3		/* their sum, likewise */
};

/* The layout of streams, and of phi and gain, in calls with options */
enum hz_mhc_streams {
	HZ_MHC_STREAMS_NC = 1,	/* streams are [..., n, C]; column i C + c of phi and gain */
	HZ_MHC_STREAMS_CN = 2	/* streams are [..., C, n]; column c n + i */
};

/* How many sets of coefficients S are computed for T tokens */
enum hz_mhc_coefficients {
	HZ_MHC_PER_TOKEN = 0,		/* S = T: each token has its own */
	HZ_MHC_PER_SEQUENCE = 1,	/* each sequence of T / S tokens has those of its mean. S is
					   the first dimension of streams [S, ..., n, C]; of [T, n,
					   C] it is what the coefficients have */
	HZ_MHC_STATIC = 2		/* S = 1, those of bias alone: phi is NULL */
};

#define HZ_MHC_OLD_NEW 1u	/* z is [old, new]: rows are summed over new streams; what LITE and
				   TANH make of z is transposed, too */
#define HZ_MHC_NORMALIZE 2u	/* p is divided by its sum + p_eps, instead of adding p_eps */
#define HZ_MHC_ACCUMULATE 4u	/* gradients of streams and weights are added to what is there; in
				   other calls it is ignored */

#define HZ_MHC_GIVEN_EPS 1u
#define HZ_MHC_GIVEN_P_EPS 2u
#define HZ_MHC_GIVEN_Q_SCALE 4u
#define HZ_MHC_GIVEN_RMS_EPS 8u
#define HZ_MHC_GIVEN_NORM_EPS 16u
#define HZ_MHC_GIVEN_OLD_NEW 32u
#define HZ_MHC_GIVEN_NORMALIZE 64u
#define HZ_MHC_GIVEN_Q_EPS 128u
#define HZ_MHC_GIVEN_Z_MIN 256u
#define HZ_MHC_GIVEN_Z_MAX 512u

/*
 * Options of hyper-connections: the conventions, and operands that few calls have. NULL and a
 * zeroed struct are HZ_MHC_PRESET_DEEPSEEK_V4 with coefficients of each token. Every other
 * convention that is not set is the preset's:
 *
 *     hz_mhc_opts o = {.preset = HZ_MHC_PRESET_PAPER, .iterations = 5,
 *                      .rms_eps = 1e-5, .given = HZ_MHC_GIVEN_RMS_EPS};
 *
 * A number holds, 0 too, if its bit in given is set; without the bit it must be 0, and the preset's
 * holds. A flag that is set holds; if its bit in given is set, a flag that is clear holds, too.
 * One struct serves all calls of a model: each reads what its formula has and ignores the other
 * conventions, such as map where residual is not SINKHORN, or norm_eps without norm.
 */
typedef struct hz_mhc_opts {
	int32_t preset;			/* enum hz_mhc_presets; 0: the default */
	int32_t coefficients;		/* enum hz_mhc_coefficients */
	int32_t residual;		/* enum hz_mhc_residual */
	int32_t map;			/* enum hz_mhc_map */
	int32_t order;			/* enum hz_mhc_order */
	int32_t eps_rule;		/* enum hz_mhc_eps_rules */
	int32_t rms;			/* enum hz_mhc_rms */
	int32_t rms_eps_rule;		/* enum hz_mhc_rms_eps_rules */
	int32_t head;			/* enum hz_mhc_heads, for hz_mhc_head() */
	int32_t streams;		/* enum hz_mhc_streams */
	int32_t iterations;		/* 1 to 1000; 0: the preset's */
	uint32_t flags;			/* HZ_MHC_OLD_NEW | NORMALIZE | ACCUMULATE */
	uint32_t given;			/* HZ_MHC_GIVEN_EPS | ...: numbers and flags that hold */
	double eps;			/* of sums of rows and columns */
	double p_eps;
	double q_scale;
	double q_eps;			/* added to q */
	double z_min, z_max;		/* with SINKHORN, bounds of z before map; unset: none */
	double rms_eps;			/* by rms_eps_rule */
	double norm_eps;		/* added to the mean square of u, with norm */
	const hz_tensor *gain;		/* of the mean square normalisation of x; NULL: 1 */
	hz_tensor *dgain;
	const hz_tensor *alpha_q;	/* [1]: alpha is [1], that of p, and not [3] */
	const hz_tensor *alpha_a;	/* [1]; NULL with IDENTITY */
	hz_tensor *dalpha_q, *dalpha_a;
	const hz_tensor *p_in;		/* coefficients [..., n] that u is mixed by, instead of p;
					   NULL: p */
	hz_tensor *dp_in;		/* du makes it, instead of adding to the gradient of p */
	const hz_tensor *norm;		/* u over its root mean square, times norm; NULL: not */
	hz_tensor *dnorm;
	hz_tensor *saved;		/* f32 [..., m + 1], as p: see hz_mhc_pre() */
	hz_tensor *u_codes;		/* hz_quantize() of u: see hz_mhc_pre() */
	const hz_quantize_opts *u_quantize;
	int64_t reserved[4];		/* 0 */
} hz_mhc_opts;

/*
 * The number of rows of phi for n streams, m: 2n and those for a. -1 for an n or options that are
 * wrong.
 */
HZ_API int hz_mhc_rows(int n, const hz_mhc_opts *opts);

/*
 * Sinkhorn and Knopp's iteration on its own: p from m, by map, order, iterations, eps, eps_rule,
 * z_min and z_max of opts. Rows are sums over the last dimension, whatever HZ_MHC_OLD_NEW says.
 *
 *   m, p  f32 [..., n, n], 1 <= n <= 8, any strides, but the dimensions before step as one; p may
 *         be m
 *
 * Arithmetic: p_ij = r_i k_ij c_j with vectors r and c that each half iteration updates: after 20
 * iterations within 1e-5, after 1000 within 5e-5 of the exact result relative to each element where
 * no k underflows. Finite m gives finite p, also where all of a row or column underflows: of
 * [[0, 0], [-90, -90]] with eps 0 every p_ij is 0.5.
 * A matrix with NaN or +Inf is NaN as a whole; -Inf is an entry 0, unless all of what is normalised
 * first is.
 */
HZ_API_CHECK int hz_mhc_sinkhorn(hz_context *ctx, const hz_tensor *m, hz_tensor *p,
				 const hz_mhc_opts *opts);

/* Its gradient dm from m and dp, that of the iterations done, eps included. dm may be dp. */
HZ_API_CHECK int hz_mhc_sinkhorn_bwd(hz_context *ctx, const hz_tensor *m, const hz_tensor *dp,
				     hz_tensor *dm, const hz_mhc_opts *opts);

/*
 * Mixes streams: u = sum_i p_i X[i], R[i] = sum_j A_ij X[j]. u (with p) or r (with a) may be NULL,
 * not both. r may be x.
 */
HZ_API_CHECK int hz_mhc_mix(hz_context *ctx, const hz_tensor *x, const hz_tensor *p,
			    const hz_tensor *a, hz_tensor *u, hz_tensor *r);

/*
 * Its gradients: dX[j] = p_j du + sum_i A_ij dR[i], dp_j = <du, X[j]>, dA_ij = <dR[i], X[j]>,
 * summed over the tokens that share coefficients. du (with p) or dr (with a) may be NULL.
 * Workspace: see hz_record_begin().
 */
HZ_API_CHECK int hz_mhc_mix_bwd(hz_context *ctx, const hz_tensor *x, const hz_tensor *p,
				const hz_tensor *a, const hz_tensor *du, const hz_tensor *dr,
				hz_tensor *dx, hz_tensor *dp, hz_tensor *da);

/* Adds what a branch gave to the streams: Y[i] = R[i] + q_i f. y may be r. */
HZ_API_CHECK int hz_mhc_add(hz_context *ctx, const hz_tensor *r, const hz_tensor *f,
			    const hz_tensor *q, hz_tensor *y);

/*
 * Its gradients: dR = dY (a copy: dy itself serves), df = sum_i q_i dY[i], dq_i = <dY[i], f>. dr
 * may be dy. Workspace: see hz_record_begin().
 */
HZ_API_CHECK int hz_mhc_add_bwd(hz_context *ctx, const hz_tensor *f, const hz_tensor *q,
				const hz_tensor *dy, hz_tensor *dr, hz_tensor *df, hz_tensor *dq);

/*
 * Mixes streams and adds what a branch gave, in one pass: Y[i] = sum_j A_ij X[j] + q_i (f +
 * branch_bias). y may be x.
 *
 *   a            NULL: the identity
 *   branch_bias  NULL: none
 */
HZ_API_CHECK int hz_mhc_post(hz_context *ctx, const hz_tensor *x, const hz_tensor *f,
			     const hz_tensor *q, const hz_tensor *a, const hz_tensor *branch_bias,
			     hz_tensor *y);

/*
 * Its gradients: dX[j] = sum_i A_ij dY[i], df = sum_i q_i dY[i], dq_i = <dY[i], f + branch_bias>,
 * dA_ij = <dY[i], X[j]>, dbranch_bias = the sum of df over tokens. What is not needed for the
 * gradients wanted may be NULL. Workspace: see hz_record_begin().
 */
HZ_API_CHECK int hz_mhc_post_bwd(hz_context *ctx, const hz_tensor *x, const hz_tensor *f,
				 const hz_tensor *q, const hz_tensor *a,
				 const hz_tensor *branch_bias, const hz_tensor *dy, hz_tensor *dx,
				 hz_tensor *df, hz_tensor *dq, hz_tensor *da,
				 hz_tensor *dbranch_bias);

/* Copies values to all streams: X[i] = e for every i; and the gradient, de = sum_i dX[i]. */
HZ_API_CHECK int hz_mhc_expand(hz_context *ctx, const hz_tensor *e, hz_tensor *x);
HZ_API_CHECK int hz_mhc_expand_bwd(hz_context *ctx, const hz_tensor *dx, hz_tensor *de);

/*
 * Coefficients of streams, and the branch input of the same pass. With x the n C numbers of a token
 * and g the gain,
 *
 *     y_k = sum_j phi_kj g_j x_j / sqrt(mean of x_j^2 + rms_eps)     (0 where that is 0)
 *     z_k = alpha[0 for p, 1 for q, 2 for a] y_k + bias_k
 *     p_i = sigma(z_i) + p_eps,  q_i = q_scale sigma(z_n+i) + q_eps,  a of the other z by residual
 *     u   = sum_i p_i X[i], divided by its own root mean square and times norm if that is there;
 *           with p_in in opts, sum_i p_in_i X[i]: the p of the call before, as DeepSeek V4.1 has it
 *
 *   x           streams. With HZ_MHC_PER_SEQUENCE y is that of the mean of x over the tokens of
 *               a sequence; u is mixed by their common p
 *   phi         NULL: y = 0, so that coefficients are those of bias, mostly with HZ_MHC_STATIC. x
 *               and alpha may be NULL then, too, x if u is
 *   alpha, bias  weights, m = hz_mhc_rows(n, opts) rows; or m = n, and alpha [1], for p alone
 *   p, q, a     coefficients; NULL: not wanted
 *   u           branch values; NULL: not wanted
 *   opts->u_codes  gets what hz_quantize() with opts->u_quantize makes of u, or of h of
 *               hz_mhc_head(): with new_scales, for example, s8, e4m3, MXFP8 or NVFP4 by groups of
 *               channels, of the normalized u with norm. u itself may be NULL then
 *   opts        p_in, if it is there, has as many sets of coefficients as p. saved [S, m + 1], if
 *               it is there, gets the m numbers sum_j phi_kj g_j x_j and then, for the gradients,
 *               the mean square of a token; where that is less than 2^-100 or does not fit f32, and
 *               matters, minus its root. With HZ_MHC_RMS_STREAM x stands for streams over their own
 *               roots, in y too, which is not divided then; a GPU has them in the workspace, f32
 *
 * hz_mhc_weights() is hz_mhc_pre() without u.
 * Arithmetic: products with f16 and bf16 streams take phi as two parts of 8 bits or more each:
 * within 2^-15 sum_j |phi_kj x_j| of the exact y; f32 likewise. Mean squares neither overflow nor
 * underflow for |x| from 1e-30 to 1e30; only hz_mhc_post_pre() on a GPU may sum squares of its y in
 * f32, which holds for 1e-18 to 1e18.
 * Workspace: see hz_record_begin().
 */
HZ_API_CHECK int hz_mhc_weights(hz_context *ctx, const hz_tensor *x, const hz_tensor *phi,
				const hz_tensor *alpha, const hz_tensor *bias, hz_tensor *p,
				hz_tensor *q, hz_tensor *a, const hz_mhc_opts *opts);
HZ_API_CHECK int hz_mhc_pre(hz_context *ctx, const hz_tensor *x, const hz_tensor *phi,
			    const hz_tensor *alpha, const hz_tensor *bias, hz_tensor *p,
			    hz_tensor *q, hz_tensor *a, hz_tensor *u, const hz_mhc_opts *opts);

/* Gradients that reach hz_mhc_pre(), and those it gives. Zeroed, NULL: none, not wanted. */
typedef struct hz_mhc_grads {
	const hz_tensor *du;		/* in: of u */
	const hz_tensor *dp, *dq, *da;	/* in: of coefficients, beside what u and dy make */
	const hz_tensor *dy;		/* in: of the y of hz_mhc_post() with this x and a: dx and
					   the gradient of a get what hz_mhc_post_bwd() says */
	hz_tensor *dx;
	hz_tensor *dphi, *dalpha, *dbias;	/* as phi, alpha and bias; opts has dgain, dnorm */
	int64_t reserved[4];		/* 0 */
} hz_mhc_grads;

/*
 * The gradients of hz_mhc_pre(), and without du of hz_mhc_weights().
 *
 *   x, phi, alpha, bias, opts  as there; with opts->saved x is read once less
 *   g     with HZ_MHC_ACCUMULATE dx and the gradients of weights are added to
 *
 * Workspace: see hz_record_begin().
 */
HZ_API_CHECK int hz_mhc_pre_bwd(hz_context *ctx, const hz_tensor *x, const hz_tensor *phi,
				const hz_tensor *alpha, const hz_tensor *bias,
				const hz_mhc_grads *g, const hz_mhc_opts *opts);

/*
 * Branch inputs with a gate for each element: as in Qwen4-Exp, instead of a coefficient for each
 * stream. With X^[i] = gain_i X[i] / sqrt(mean of X[i]^2 + rms_eps) and the n C numbers x^ of a
 * token,
 *
 *     h = silu(W_down x^ / n),  G = sigma(W_up h),  u = sum_i G[i] X^[i] / n, element by element
 *     q_i = q_scale sigma(<W_q,i, x^> / n) + q_eps,  for hz_mhc_post() without a
 *
 *   x       streams
 *   w_down  [r, n C], w_up [n C, r], w_q [n, n C]: f32 f16 bf16, contiguous, 1 <= r; their columns,
 *           and the rows of w_up, are in the order that opts->streams says
 *   q       coefficients, each token has its own. NULL, and w_q NULL: not wanted, as at the end of
 *           the network
 *   u       branch values
 *   opts    preset, gain, streams, q_scale, q_eps, rms_eps and rms_eps_rule; the mean square is
 *           that of a stream whatever rms says. What else conventions say means nothing here
 *
 * Arithmetic: products take both operands as two parts of 8 bits or more each.
 * Workspace: see hz_record_begin(); on a CPU 2 n C + 2 r numbers of f32 for each token. A GPU
 * needs from n to 32 times r + n for each token, and of more than 128 tokens of 16 bits the size of
 * w_down and w_q in f32, if r is a multiple of 16 up to 256, C one of 8, channels and weights are
 * contiguous and aligned to 16 bytes, and w_q is f32 or of the dtype of w_down; otherwise it needs
 * what a CPU does.
 * Source: Qwen4-Exp in transformers 5.24, where gain is 1 + hc_norm.weight.
 */
HZ_API_CHECK int hz_mhc_gated_pre(hz_context *ctx, const hz_tensor *x, const hz_tensor *w_down,
				  const hz_tensor *w_up, const hz_tensor *w_q, hz_tensor *q,
				  hz_tensor *u, const hz_mhc_opts *opts);

/* Gradients that reach hz_mhc_gated_pre(), and those it gives. NULL: none, not wanted. */
typedef struct hz_mhc_gated_grads {
	const hz_tensor *du, *dq;	/* in: of u and q */
	const hz_tensor *dy;		/* in: of the y of hz_mhc_post() with this x and without a:
					   it is added to dx */
	hz_tensor *dx;
	hz_tensor *dw_down, *dw_up, *dw_q;	/* f32; opts has dgain */
	int64_t reserved[4];		/* 0 */
} hz_mhc_gated_grads;

/*
 * The gradients of hz_mhc_gated_pre(), from the same operands. HZ_MHC_ACCUMULATE: to dx and the
 * gradients of weights. Workspace: see hz_record_begin(); 4 n C + 4 r numbers of f32 for each
 * token, and the weights and their gradients in f32.
 */
HZ_API_CHECK int hz_mhc_gated_pre_bwd(hz_context *ctx, const hz_tensor *x, const hz_tensor *w_down,
				      const hz_tensor *w_up, const hz_tensor *w_q,
				      const hz_mhc_gated_grads *g, const hz_mhc_opts *opts);

/*
 * hz_mhc_post() of a layer and hz_mhc_pre() of the next in one call: y = hz_mhc_post(x, f, q, a,
 * branch_bias), and hz_mhc_pre() of y as the streams: p_next, q_next, a_next, u, with
 * HZ_MHC_PER_TOKEN in opts. A CPU makes both of some tokens at a time, while they are in its
 * caches; Hopper makes them in one pass over four streams of 16 bits, more than 112 tokens and up
 * to 4096 channels; other GPUs and sizes one after the other.
 * Workspace: see hz_record_begin().
 */
HZ_API_CHECK int hz_mhc_post_pre(hz_context *ctx, const hz_tensor *x, const hz_tensor *f,
				 const hz_tensor *q, const hz_tensor *a,
				 const hz_tensor *branch_bias, const hz_tensor *phi,
				 const hz_tensor *alpha, const hz_tensor *bias, hz_tensor *y,
				 hz_tensor *p_next, hz_tensor *q_next, hz_tensor *a_next,
				 hz_tensor *u, const hz_mhc_opts *opts);

/*
 * Its gradients: hz_mhc_pre_bwd(y, ...) into g->dx, the gradient of y, and of that df = sum_i q_i
 * dY[i], dq_i = <dY[i], f + branch_bias> and dbranch_bias, as hz_mhc_post_bwd(). The gradients of x
 * and a are left to hz_mhc_pre_bwd() of x, with g->dx as its g->dy. HZ_MHC_ACCUMULATE: to dx and
 * the gradients of weights, dbranch_bias being one.
 * Workspace: see hz_record_begin().
 */
HZ_API_CHECK int hz_mhc_post_pre_bwd(hz_context *ctx, const hz_tensor *y, const hz_tensor *phi,
				     const hz_tensor *alpha, const hz_tensor *bias,
				     const hz_tensor *f, const hz_tensor *q,
				     const hz_tensor *branch_bias, const hz_mhc_grads *g,
				     hz_tensor *df, hz_tensor *dq, hz_tensor *dbranch_bias,
				     const hz_mhc_opts *opts);

/*
 * Merges the streams at the end of the network: h = sum_i p_i X[i] with p = sigma(alpha y + bias) +
 * p_eps, or what NORMALIZE or HZ_MHC_TANH make of it, of weights phi [n, n C], alpha [1], bias [n]:
 * hz_mhc_pre() with p alone. p may be NULL. Its gradients are those of hz_mhc_pre_bwd(), without
 * dq, da and dy. With HZ_MHC_HEAD_MEAN h is the mean of the streams, p = 1 / n, with
 * HZ_MHC_HEAD_SUM their sum, p = 1, and phi, alpha and bias are NULL.
 * Workspace: see hz_record_begin().
 */
HZ_API_CHECK int hz_mhc_head(hz_context *ctx, const hz_tensor *x, const hz_tensor *phi,
			     const hz_tensor *alpha, const hz_tensor *bias, hz_tensor *p,
			     hz_tensor *h, const hz_mhc_opts *opts);
HZ_API_CHECK int hz_mhc_head_bwd(hz_context *ctx, const hz_tensor *x, const hz_tensor *phi,
				 const hz_tensor *alpha, const hz_tensor *bias,
				 const hz_mhc_grads *g, const hz_mhc_opts *opts);

/*
 * A layer as hz_mhc_recompute() reads it; a view whose data is NULL is not wanted, or not there (a:
 * I)
 */
typedef struct hz_mhc_block {
	hz_tensor p, q, a;		/* coefficients */
	hz_tensor f;			/* what the branch gave */
	hz_tensor branch_bias;
	hz_tensor u, y;			/* out: branch input, streams after the layer */
	int64_t reserved[4];		/* 0 */
} hz_mhc_block;

/*
 * Recomputes streams and branch inputs of layers: of consecutive layers from the streams x before
 * them, for a backward pass that kept only these: u_l = sum_i p_i X_l[i], X_l+1 =
 * hz_mhc_post(X_l, ...), with every X_l rounded to its dtype: the same bits as the calls one by
 * one. layers <= 64; q and f of the last may be missing if its y is. All have the same number of
 * sets of coefficients.
 */
HZ_API_CHECK int hz_mhc_recompute(hz_context *ctx, const hz_tensor *x, int layers,
				  const hz_mhc_block *block);

/* Kinds of initial weights */
enum hz_mhc_init_kind {
	/* X' = X + F(the mean of streams) nearly, and trains: phi N(0, 1 / (n C)), alpha 0.01,
	   p = 1/n, q = 1, a with 0.9 on its diagonal, equal elsewhere */
	HZ_MHC_INIT_IDENTITY = 0,
	HZ_MHC_INIT_PAPER = 1,	/* alpha 0.01, phi N(0, 0.02^2), bias 0 */
	HZ_MHC_INIT_TRITON = 2,	/* phi 0, alpha 0.1; bias: p one-hot(layer mod n), q 1, a I */
	HZ_MHC_INIT_HC = 3,	/* phi 0, alpha 0.01; bias as TRITON: for HZ_MHC_TANH, lucidrains */
	HZ_MHC_INIT_LITE = 4,	/* phi 0, alpha 0.01; p and q -1 but 1 at layer mod n, -8 for
				   permutations but 0 at the identity */
	HZ_MHC_INIT_HY_V4 = 5	/* phi N(0, 0.02^2), alpha 0.01; bias 0, but -log(n - 1) for p:
				   p is 1 / n and q q_scale / 2 */
};

/*
 * Makes initial weights: phi [m, n C] (NULL: static), alpha [3] and bias [m] as of
 * hz_mhc_pre() with these opts, for the layer of that number; n follows from m. alpha [1]:
 * those of hz_mhc_head(), m = n. Random numbers are those of the seed, the same on every device.
 */
HZ_API_CHECK int hz_mhc_init(hz_context *ctx, int kind, int layer, uint64_t seed, hz_tensor *phi,
			     hz_tensor *alpha, hz_tensor *bias, const hz_mhc_opts *opts);

/*
 * Measures how far matrices are from doubly stochastic, and what a chain of them amplifies.
 *
 *   a    [L, S, n, n] or [S, n, n] or [n, n] (a[new, old]), any strides
 *   out  f32 [S, 4]: the largest |row sum - 1|, the largest |column sum - 1| over the L layers; the
 *        largest sum of |row| and of |column| of the product A_L ... A_2 A_1: the gain of signals
 *        and of gradients
 *
 * Source: arXiv 2512.24880, section 5.4.
 */
HZ_API_CHECK int hz_mhc_diagnose(hz_context *ctx, const hz_tensor *a, hz_tensor *out);

/*
 * A layer around the caller's branch: begin, the branch, end; and backwards end_bwd, the
 * branch's, begin_bwd.
 */
typedef struct hz_mhc_layer {
	hz_tensor phi, alpha, bias;	/* weights; phi.data NULL: of y = 0 */
	hz_tensor alpha_q, alpha_a;	/* as those of hz_mhc_opts; data NULL: alpha is [3] */
	hz_tensor gain, norm, branch_bias;	/* data NULL: none */
	hz_tensor p_in, dp_in;		/* as those of hz_mhc_opts; data NULL: u by p */
	hz_tensor dp;			/* in: the gradient of p by the p_in of another layer; data
					   NULL: none */
	hz_tensor dphi, dalpha, dbias;	/* gradients; data NULL: not wanted */
	hz_tensor dalpha_q, dalpha_a, dgain, dnorm, dbranch_bias;
	hz_mhc_opts opts;		/* conventions; views in it are not read */

	/* Set by hz_mhc_layer_bind() */
	hz_tensor p, q, a, saved;	/* what begin leaves for the other three: m + 1 + 2n + n^2
					   numbers of f32 a set */
	hz_tensor dq;			/* what end_bwd leaves for begin_bwd: n numbers a set */
	int64_t bound_sets;		/* what the layer is bound for; bound_n 0: not bound */
	int32_t bound_n, bound_coefficients;
	int64_t bound_rule;		/* a checksum of opts */
	int64_t reserved[7];		/* 0 */
} hz_mhc_layer;

/*
 * Binds a layer to memory. hz_mhc_layer_bind() says the bytes that a layer keeps for n streams and
 * a number of sets of coefficients: that of tokens, of sequences, or 1, by opts.coefficients. It
 * makes p, q, a, saved and dq views of that memory at data, 64-byte aligned, on the context's
 * device; with data NULL it only counts. bias and opts have to be set before, and phi and alpha if
 * coefficients depend on streams. The four calls refuse a layer that is not bound, also while they
 * are recorded, one whose opts have since changed in more than HZ_MHC_ACCUMULATE, and streams of
 * another n or another number of tokens than it is bound for.
 */
HZ_API_CHECK int hz_mhc_layer_bind(hz_context *ctx, hz_mhc_layer *layer, int n, int64_t sets,
				   void *data, size_t *bytes);

/*
 * Calls around the caller's branch: u = the branch input of x; y = the streams after the
 * branch gave f; df = the gradient of f from dy, that of y; dx = the gradient of x from dy and du,
 * that of u. With HZ_MHC_ACCUMULATE in opts dx and the gradients of weights are added to.
 * hz_mhc_layer_end() and _end_bwd() of one layer and hz_mhc_layer_begin() of the next are
 * hz_mhc_post_pre() and so on in one pass.
 */
HZ_API_CHECK int hz_mhc_layer_begin(hz_context *ctx, const hz_mhc_layer *layer, const hz_tensor *x,
				    hz_tensor *u);
HZ_API_CHECK int hz_mhc_layer_end(hz_context *ctx, const hz_mhc_layer *layer, const hz_tensor *x,
				  const hz_tensor *f, hz_tensor *y);
HZ_API_CHECK int hz_mhc_layer_end_bwd(hz_context *ctx, const hz_mhc_layer *layer,
				      const hz_tensor *f, const hz_tensor *dy, hz_tensor *df);
HZ_API_CHECK int hz_mhc_layer_begin_bwd(hz_context *ctx, const hz_mhc_layer *layer,
					const hz_tensor *x, const hz_tensor *dy,
					const hz_tensor *du, hz_tensor *dx);

#ifdef __cplusplus
}
#endif

#endif
