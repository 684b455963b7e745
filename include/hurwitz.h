/*
 * hurwitz.h - neural-network primitives for CPU and CUDA: the whole public interface
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#ifndef HURWITZ_H
#define HURWITZ_H

#include <stddef.h>
#include <stdint.h>

#if defined(__GNUC__)
#define HZ_API __attribute__((visibility("default")))
#else
#define HZ_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

#define HZ_VERSION_MAJOR 0
#define HZ_VERSION_MINOR 1
#define HZ_VERSION_PATCH 0

/* ---- Status ---------------------------------------------------------------------------------- */

/*
 * Every function that can fail returns one of these. HZ_OK is 0, errors are negative and never
 * renumbered. A call that is refused leaves every output as it was. hz_errmsg() has the sentence.
 */
enum hz_status {
	HZ_OK = 0,
	HZ_EINVAL = -1,		/* a NULL, an option or a value out of its range */
	HZ_EDTYPE = -2,		/* an operand has a dtype that the call does not take */
	HZ_ESHAPE = -3,		/* an operand has the wrong ndim or shape, or a size overflows */
	HZ_ESTRIDE = -4,	/* an operand has strides that the call does not take */
	HZ_EALIAS = -5,		/* operands overlap where the contract does not allow it */
	HZ_EDEVICE = -6,	/* an operand lies on another device than the context's */
	HZ_ENODEV = -7,		/* the device asked for is not there, or cannot be used */
	HZ_ENOMEM = -8,		/* memory could not be had */
	HZ_EWORKSPACE = -9,	/* the workspace is too small: see hz_reserve() */
	HZ_ENOTSUP = -10,	/* a valid request that this build or device cannot do */
	HZ_ECUDA = -11,		/* the CUDA driver reported an error */
	HZ_EFORK = -12		/* a context with a GPU was used in a child of fork() */
};

/* The name and meaning of a status in English; never NULL. */
HZ_API const char *hz_strerror(int status);

/* The version of the library linked, as "0.1.0". */
HZ_API const char *hz_version(void);

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
	HZ_E8M0 = 16		/* a power of two, 2^(v - 127), OCP MX scale; 255 is NaN */
};

/* Bytes of one element, 0 for a value that is no dtype. */
HZ_API size_t hz_dtype_size(int dtype);

/* The name of a dtype ("f32"), "?" for a value that is no dtype. */
HZ_API const char *hz_dtype_name(int dtype);

/*
 * Devices. HZ_CUDA + i is the i-th CUDA device. HZ_AUTO is for hz_open() alone: views always say
 * where they lie, so a view that was only zeroed is refused.
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

/* The same for any number of dimensions up to HZ_MAXDIM; ndim is clipped to that. */
HZ_API hz_tensor hz_tensor_nd(void *data, int dtype, int device, int ndim, const int64_t *shape);

/* The number of elements, or -1 if the view is malformed or the product overflows. */
HZ_API int64_t hz_tensor_count(const hz_tensor *t);

/* The bytes from the first to the last element touched, or -1 likewise; 0 if it is empty. */
HZ_API int64_t hz_tensor_bytes(const hz_tensor *t);

/* 1 if the elements lie back to back with the last dimension fastest, else 0. */
HZ_API int hz_tensor_contiguous(const hz_tensor *t);

/* 1 if the address ranges of two views on one device meet, else 0. */
HZ_API int hz_tensor_overlap(const hz_tensor *a, const hz_tensor *b);

/* ---- Context --------------------------------------------------------------------------------- */

/*
 * A context holds the device, the implementation chosen for it, a workspace and the last error. It
 * is used by one thread at a time; any number of contexts may be used by as many threads at once.
 */
typedef struct hz_context hz_context;

/* CPU instruction-set levels, each including those before it on its architecture. */
enum hz_isa {
	HZ_ISA_AUTO = 0,	/* the highest that the machine and HURWITZ_ISA allow */
	HZ_ISA_C = 1,		/* what the compiler's baseline has: x86-64-v1, armv8-a */
	HZ_ISA_AVX2 = 2,	/* AVX2, FMA, F16C */
	HZ_ISA_AVX512 = 3,	/* AVX-512 F, BW, DQ, VL, CD */
	HZ_ISA_VNNI = 4,	/* and VNNI, BF16 conversion */
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

enum hz_log_level { HZ_LOG_WARNING = 1, HZ_LOG_INFO = 2, HZ_LOG_DEBUG = 3 };

/* Zero the struct and set what is wanted: zero is the default of every field. */
typedef struct hz_options {
	int32_t device;			/* HZ_AUTO, HZ_CPU or HZ_CUDA + i */
	int32_t threads;		/* CPU threads; 0: HURWITZ_THREADS, else cores allowed */
	int32_t isa;			/* enum hz_isa, the highest level to use */
	uint32_t flags;			/* HZ_NO_TOPOLOGY */
	void *topology;			/* a loaded hwloc_topology_t to read instead of its own */
	const hz_allocator *allocator;	/* copied; NULL: aligned_alloc and free */
	void (*log)(void *user, int level, const char *message);
	void *log_user;
	int64_t reserved[4];		/* 0 */
} hz_options;

#define HZ_NO_TOPOLOGY 1u		/* do not call hwloc: ask the operating system alone */

/*
 * Opens a context. On failure *ctx is NULL and the reason is in hz_open_errmsg(). options may be
 * NULL. The environment is read here: HURWITZ_DEVICE=cpu|cuda|cuda:N|auto, HURWITZ_THREADS=N,
 * HURWITZ_ISA=c|avx2|...; options that are set win over it, except that an ISA cap is the lower of
 * both. With HZ_AUTO a GPU that cannot be used is no error: hz_device_info() says why it was not.
 * Errors: HZ_EINVAL, HZ_ENODEV, HZ_ENOMEM, HZ_ECUDA.
 */
HZ_API int hz_open(hz_context **ctx, const hz_options *options);

/*
 * Closes a context and frees what it holds, device code included, so a CUDA graph that captured its
 * calls must not run any more; waits for its work on the GPU. NULL is allowed.
 *
 * In a child of fork() a CPU context works on, with one thread. On a context with a GPU every call
 * there gives HZ_EFORK but hz_close(), hz_device_info(), hz_device() and hz_errmsg().
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
	int32_t cores;			/* physical cores that this process may use */
	int32_t numa_nodes;
	int64_t l1d_bytes, l2_bytes, l3_bytes;	/* one core's caches; 0: not known */
	int32_t sm;			/* CUDA: compute capability, 90 for 9.0; else 0 */
	int32_t multiprocessors;	/* CUDA; else 0 */
	int64_t memory_bytes;		/* of the device in use; 0: not known */
	int32_t cuda_driver;		/* 13000 for 13.0; 0 without a driver */
	int32_t cuda_devices;		/* devices that the driver shows */
	const char *isa_name;		/* "avx512" */
	const char *isa_reason;		/* why no higher level is in use; "" if the highest is */
	const char *cpu_name;		/* "" if not known */
	const char *gpu_name;		/* "" without a GPU in use */
	const char *gpu_reason;		/* why no GPU is in use; "" if one is */
	const char *topology_source;	/* "hwloc 2.9.0", "the application", "sched_getaffinity" */
} hz_info;

HZ_API int hz_device_info(hz_context *ctx, hz_info *info);

/* The name of an ISA level ("avx512"), "?" for a value that is none. */
HZ_API const char *hz_isa_name(int isa);

/* The device of a context, HZ_CPU or HZ_CUDA + i, as views want it; 0 for NULL. */
HZ_API int hz_device(const hz_context *ctx);

/* ---- Memory and streams ---------------------------------------------------------------------- */

/*
 * Memory on the context's device (device = hz_device(ctx)) or on the host (device = HZ_CPU),
 * aligned to 64 bytes or better. bytes = 0 gives a pointer that may be freed and not read.
 * Errors: HZ_EINVAL, HZ_EDEVICE, HZ_ENOMEM, HZ_ECUDA, HZ_EFORK.
 */
HZ_API int hz_alloc(hz_context *ctx, void **p, size_t bytes, int device);
HZ_API int hz_free(hz_context *ctx, void *p, int device);

/*
 * dst = src, elementwise, between the host and the context's device or within either. Same dtype
 * and shape; contiguous, or for copies within the host any strides. A copy from or to the GPU is
 * put on the context's stream and may not be finished on return: host memory stays untouched by the
 * caller until hz_sync(). A device-to-host copy that fails half way leaves dst undefined.
 * Errors: HZ_EINVAL, HZ_EDTYPE, HZ_ESHAPE, HZ_ESTRIDE, HZ_EALIAS, HZ_EDEVICE, HZ_ECUDA, HZ_EFORK.
 */
HZ_API int hz_copy(hz_context *ctx, const hz_tensor *src, const hz_tensor *dst);

/*
 * The CUDA stream (a CUstream, which is what a cudaStream_t is) that later calls enqueue on; NULL
 * is the default stream. The caller keeps it alive. No effect on a CPU context.
 */
HZ_API int hz_set_stream(hz_context *ctx, void *stream);

/* Waits for the context's work and reports errors that surfaced late. CPU calls never need it. */
HZ_API int hz_sync(hz_context *ctx);

/*
 * The workspace. Some calls need scratch memory on the device; hz_<op>_workspace() says how many
 * bytes. hz_reserve() makes the context's own at least that large: it may allocate and synchronise,
 * so it is called before the work and never during graph capture. hz_set_workspace() lends the
 * caller's memory instead (64-byte aligned; NULL, 0 gives it back). On a CPU context the workspace
 * grows by itself. A GPU call never allocates: it returns HZ_EWORKSPACE and says the number. A
 * graph keeps the workspace that it was captured with: one that hz_reserve() replaced is gone.
 */
HZ_API int hz_reserve(hz_context *ctx, size_t bytes);
HZ_API int hz_set_workspace(hz_context *ctx, void *p, size_t bytes);

/*
 * Loads all device code now instead of at the first call of each family, so that the first calls
 * are as fast as the later ones and may be captured into a graph. No effect on a CPU context.
 */
HZ_API int hz_prepare(hz_context *ctx);

/* ---- Walsh-Hadamard transforms --------------------------------------------------------------- */

/* How a length n that a transform is asked for is made of Hadamard matrices. */
enum hz_plan {
	HZ_PLAN_AUTO = 0,	/* SYLVESTER for powers of two, else GREEDY */
	HZ_PLAN_SYLVESTER = 1,	/* one block: n is a power of two */
	HZ_PLAN_GREEDY = 2,	/* powers of two, largest first: 96 = 64 + 32, 80 = 64 + 16 */
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

/* Zero the struct and set what is wanted: zero is the default of every field. */
typedef struct hz_hadamard_opts {
	int32_t plan;		/* enum hz_plan */
	int32_t axis;		/* counted from the end: 0 the last (rows), 1 columns of a matrix */
	int64_t block;		/* the plan is for this length, repeated; 0: the whole axis */
	int64_t max_block;	/* GREEDY, UNIFORM: largest power of two to use; 0: no limit */
	int64_t min_block;	/* GREEDY: a smaller one is refused; 0: 16 */
	int32_t base;		/* TRUE: enum hz_base */
	int32_t order;		/* TRUE: the order m of the base matrix; 0: 4 x the odd part of n */
	uint32_t flags;		/* HZ_HADAMARD_TRANSPOSE | HZ_HADAMARD_RAW */
	int32_t round_to;	/* hadamard_quantize: HZ_F16 or HZ_BF16 rounds before; 0: no */
	double scale;		/* a further factor; 0 stands for 1 */
	const hz_tensor *pre;	/* signs or factors before the transform; NULL: none */
	const hz_tensor *post;	/* signs or factors after it; NULL: none */
	int64_t reserved[4];	/* 0 */
} hz_hadamard_opts;

/*
 * Walsh-Hadamard transform along one axis: y = scale * D_post H D_pre x, and with
 * HZ_HADAMARD_TRANSPOSE y = scale * D_pre H^T D_post x, which is the inverse (scale 1, signs) and
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
 * fl(scale / sqrt(b)) (and one with post): every ISA, any number of threads gives the same bits. On
 * the GPU f32 results have these bits too; f16 and bf16 results may come from the matrix units,
 * whose sums have another order, within the accuracy below.
 * Accuracy: ||y - exact||_2 <= (k + m + 2) 2^-24 ||x||_2 (m = 0 if b is a power of two), plus half
 * an ulp of the dtype of y. f16 results beyond 65504 are Inf. NaN and Inf stay inside their block.
 * Lengths b: to 2^24 on the CPU, to 65536 on the GPU.
 * Workspace: hz_hadamard_workspace(); none on the GPU.
 * Errors: HZ_EINVAL, HZ_EDTYPE, HZ_ESHAPE, HZ_ESTRIDE, HZ_EALIAS, HZ_EDEVICE, HZ_ENOTSUP,
 * HZ_ENOMEM, HZ_ECUDA, HZ_EFORK.
 * Source: Sylvester 1867; Paley 1933; Williamson 1944; scipy.linalg.hadamard for the order.
 */
HZ_API int hz_hadamard(hz_context *ctx, const hz_tensor *x, const hz_tensor *y,
		       const hz_hadamard_opts *opts);
HZ_API int hz_hadamard_workspace(hz_context *ctx, const hz_tensor *x, const hz_tensor *y,
				 const hz_hadamard_opts *opts, size_t *bytes);

/*
 * The transform with quantization fused: t = hadamard(x) in f32 (rounded to opts->round_to if set),
 * then for each group of G successive elements of a row amax = max |t|, s = amax / qmax,
 * q = clamp(rne(t / s)).
 *
 *   x      f32 f16 bf16, [..., N], any strides; the axis is the last (opts->axis = 0)
 *   q      s8 (qmax 127) e4m3 (448) e5m2 (57344) [..., N], or s4x2 (7) [..., N / 2]; the last
 *          dimension contiguous; integers lie in -qmax .. qmax, floats saturate
 *   scale  f32, or e8m0: s rounded up to 2^ceil(log2(amax / qmax)); [..., N / G], contiguous in the
 *          last dimension. Its shape says G: N (one scale a row), or 32, 64 or 128
 *
 * amax = 0 gives s = 1 and q = 0. A group with a NaN, or an Inf, has s = NaN, or Inf (e8m0: 255 for
 * both); its q are 0 in integer formats, in float formats NaN where t or t / s is NaN.
 * A scale that underflows to 0 is replaced by the smallest positive of its type.
 * Codes and scales are the same bits on every ISA and thread count as hadamard() to f32 followed by
 * this definition. On the GPU they are that for x f32; for x f16 and bf16 they are the definition's
 * for some t with ||t - exact||_2 <= (k + m + 3) 2^-24 ||x||_2 in each block, and the same bits
 * where sums are exact (integers) and s is a power of two. No operand may overlap another.
 * Errors: as hz_hadamard().
 */
HZ_API int hz_hadamard_quantize(hz_context *ctx, const hz_tensor *x, const hz_tensor *q,
				const hz_tensor *scale, const hz_hadamard_opts *opts);
HZ_API int hz_hadamard_quantize_workspace(hz_context *ctx, const hz_tensor *x, const hz_tensor *q,
					  const hz_tensor *scale, const hz_hadamard_opts *opts,
					  size_t *bytes);

/*
 * The way back: y = the transpose of hz_hadamard() with the same opts, applied to q * s. So with
 * scale 1 it undoes hz_hadamard_quantize() up to the rounding of q; HZ_HADAMARD_TRANSPOSE gives the
 * forward transform instead. Operands as there; y f32 f16 bf16 [..., N], any strides.
 * opts->round_to is ignored. Errors: as hz_hadamard().
 */
HZ_API int hz_dequantize_hadamard(hz_context *ctx, const hz_tensor *q, const hz_tensor *scale,
				  const hz_tensor *y, const hz_hadamard_opts *opts);
HZ_API int hz_dequantize_hadamard_workspace(hz_context *ctx, const hz_tensor *q,
					    const hz_tensor *scale, const hz_tensor *y,
					    const hz_hadamard_opts *opts, size_t *bytes);

/*
 * The blocks that a plan makes of a length n: writes up to max lengths, in order, to blocks and
 * returns their number (which may exceed max), or a negative status if the plan cannot make n.
 * opts->plan, block, max_block, min_block, base and order are read; NULL: HZ_PLAN_AUTO.
 */
HZ_API int64_t hz_hadamard_plan(int64_t n, const hz_hadamard_opts *opts, int64_t *blocks,
				int64_t max);

/*
 * A base matrix of HZ_PLAN_TRUE: writes its order x order entries, +1 and -1, row by row, to
 * entries (unless NULL) and returns 1 if it is symmetric, 0 if not, HZ_ENOTSUP if there is none.
 */
HZ_API int hz_hadamard_base(int base, int order, int8_t *entries);

/*
 * n random signs as packed bits for opts->pre and post, on the host: word w of 64 bits, little
 * endian, is the first output of splitmix64 started at seed + w. bits has ceil(n / 8) bytes; unused
 * bits of the last byte are 0.
 */
HZ_API int hz_hadamard_signs(uint8_t *bits, int64_t n, uint64_t seed);

/* ---- Quantized matrix multiplication --------------------------------------------------------- */

/*
 * A code q of u8 or s8 stands for the real number scale * (q - zero), zero being of q's type. What
 * the three calls below take is one scale and zero for all, or contiguous tensors of them, of one
 * shape: with the ndim of the data, each dimension of the data's size or 1, which stands for the
 * whole, and the last possibly a divisor, for groups of successive elements; or of one element. So
 * for an m x n matrix [1, 1] is per tensor, [m, 1] per row, [1, n] per column and [m, n / 64] per
 * group of 64 in a row.
 */

/* Zero the struct and set what is wanted: zero is the default of every field. */
typedef struct hz_quantize_opts {
	double scale;			/* one for all, taken as f32; 0 stands for 1 */
	int32_t zero;			/* one for all */
	uint32_t flags;			/* 0 */
	const hz_tensor *scales;	/* f32, instead of scale */
	const hz_tensor *zeros;		/* the dtype of q, with scales; NULL: all 0 */
	const hz_hadamard_opts *hadamard;	/* a rotation of the last axis; NULL: none */
	int64_t reserved[3];		/* 0 */
} hz_quantize_opts;

/*
 * Quantization: q = clamp(zero + rne(t / scale)) to the range of its type, t being x or, with
 * opts->hadamard, what hz_hadamard() makes of x as f32, in the same pass over memory.
 *
 *   x     f32 f16 bf16, any shape of 0 to 6 dimensions, any strides
 *   q     u8 s8, the shape of x, any strides
 *   opts  NULL: scale 1 and zero 0
 *   opts->hadamard  the transform of the last axis (axis 0), of 1 to 6 dimensions; its round_to is
 *         ignored
 *
 * Aliasing: no operand may overlap another.
 * Arithmetic: the quotient is that of IEEE division in f32, rne() goes to the nearest integer, ties
 * to even, and nothing overflows: +-Inf saturate. NaN gives zero. Codes are the same bits on every
 * ISA, thread count and GPU; but with a transform of f16 or bf16 on the GPU those of some t as
 * hz_hadamard_quantize() says. Values in scales are not checked: the formula holds for all of them.
 * For ranges of transformed data, give hz_choose_qparams() the result of hz_hadamard().
 * Workspace: hz_quantize_workspace(); none without a transform.
 * Errors: HZ_EINVAL, HZ_EDTYPE, HZ_ESHAPE, HZ_ESTRIDE, HZ_EALIAS, HZ_EDEVICE, HZ_ECUDA, HZ_EFORK;
 * with a transform HZ_ENOTSUP, HZ_ENOMEM and HZ_EWORKSPACE too.
 * Source: ONNX QuantizeLinear.
 */
HZ_API int hz_quantize(hz_context *ctx, const hz_tensor *x, const hz_tensor *q,
		       const hz_quantize_opts *opts);
HZ_API int hz_quantize_workspace(hz_context *ctx, const hz_tensor *x, const hz_tensor *q,
				 const hz_quantize_opts *opts, size_t *bytes);

/*
 * The way back: y = scale * (q - zero), f32 with one rounding, then one to the dtype of y; with
 * opts->hadamard the transpose of that transform is applied in between, in f32. Operands and errors
 * as of hz_quantize(): q u8 s8, y f32 f16 bf16.
 */
HZ_API int hz_dequantize(hz_context *ctx, const hz_tensor *q, const hz_tensor *y,
			 const hz_quantize_opts *opts);
HZ_API int hz_dequantize_workspace(hz_context *ctx, const hz_tensor *q, const hz_tensor *y,
				   const hz_quantize_opts *opts, size_t *bytes);

#define HZ_QPARAMS_SYMMETRIC 1u		/* zero is 0 for s8 and 128 for u8 */

/*
 * Scales and zeros from the range lo .. hi of x, in which 0 is always counted: scale = (hi - lo) /
 * 255, zero = clamp(rne(qmin - lo / scale)), qmin being 0 or -128; with HZ_QPARAMS_SYMMETRIC
 * scale = max(-lo, hi) / 127.
 *
 *   x      f32 f16 bf16, any shape, any strides
 *   scale  f32; its shape says what has parameters of its own, as above
 *   zero   u8 s8, the shape of scale: its dtype is the one to quantize to
 *   flags  HZ_QPARAMS_SYMMETRIC
 *
 * Aliasing: no operand may overlap another. scale and zero are contiguous.
 * Arithmetic: quotients are taken in double, scale is rounded once to f32, and zero is computed
 * from the scale so rounded. A scale below FLT_MIN becomes FLT_MIN, or 1 if lo = hi = 0, as of no
 * elements. NaN is left out of the range. With an Inf the call is refused on the CPU; on the GPU,
 * which would have to be waited for, such a scale is Inf and its zero that of
 * HZ_QPARAMS_SYMMETRIC. The same bits on every ISA, thread count and GPU.
 * Workspace: hz_choose_qparams_workspace().
 * Errors: as hz_quantize().
 */
HZ_API int hz_choose_qparams(hz_context *ctx, const hz_tensor *x, const hz_tensor *scale,
			     const hz_tensor *zero, uint32_t flags);
HZ_API int hz_choose_qparams_workspace(hz_context *ctx, const hz_tensor *x, const hz_tensor *scale,
				       const hz_tensor *zero, uint32_t flags, size_t *bytes);

/*
 * A matrix B, or several, in the order in which hz_qgemm() reads it, with the sums of its columns:
 * filled by hz_qgemm_pack() and read-only then. The struct lies on the host and may be copied, the
 * data on a device. What one context has packed every context with the same kind of device can use,
 * whatever its ISA, and any number at once. Both may be kept in a file, for this version
 * of the library.
 */
typedef struct hz_packed {
	void *data;			/* 64-byte aligned, on device */
	size_t bytes;			/* all of it */
	int32_t device;			/* HZ_CPU or HZ_CUDA + i */
	int16_t dtype, ndim;		/* of B */
	int64_t shape[HZ_MAXDIM];	/* of B: [..., k, n] */
	uint32_t layout;		/* how data is laid out: internal */
	uint32_t check;			/* a sum over shape, dtype, layout and bytes */
} hz_packed;

enum hz_rounding {
	HZ_ROUND_EXACT = 0,	/* once: floor(acc * sigma + 1/2) */
	HZ_ROUND_TFLITE = 1	/* twice, as gemmlowp and TensorFlow Lite do */
};

#define HZ_QGEMM_MIN 1u			/* opts->min counts */
#define HZ_QGEMM_MAX 2u			/* opts->max counts */
#define HZ_QGEMM_RELU 4u		/* results are at least c_zero (0 if they are float) */
#define HZ_QLINEAR_SYMMETRIC 8u		/* qlinear: rows are quantized with HZ_QPARAMS_SYMMETRIC */

/* Zero the struct and set what is wanted: zero is the default of every field. */
typedef struct hz_qgemm_opts {
	int32_t a_zero, b_zero, c_zero;	/* in the range of the type; s32: any; float C: 0 */
	uint32_t flags;			/* HZ_QGEMM_MIN | HZ_QGEMM_MAX | HZ_QGEMM_RELU */
	double a_scale, b_scale, c_scale;	/* > 0, taken as f32; 0 stands for 1 */
	double sigma;			/* integer C: instead of the scales, > 0 */
	int32_t multiplier, shift;	/* integer C: instead, sigma = multiplier / 2^shift, > 0,
					   1 .. 62 */
	int32_t rounding;		/* enum hz_rounding */
	int32_t x_dtype;		/* qlinear: HZ_U8 or HZ_S8, what x is quantized to; 0: u8 */
	double min, max;		/* further bounds of C, with their flags */
	const hz_tensor *a_zeros;	/* a_dtype [..., m] or one element, instead of a_zero */
	const hz_tensor *b_zeros;	/* b_dtype [n], instead of b_zero */
	const hz_tensor *a_scales;	/* f32 [..., m] or one element, instead; float C alone */
	const hz_tensor *b_scales;	/* f32 [n] or one element, instead of b_scale */
	const hz_tensor *multipliers;	/* s32 [n], instead of multiplier and shift */
	const hz_tensor *shifts;	/* s32 [n] */
	const hz_tensor *bias;		/* s32 [n]; float C: f32 [n] as well */
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
 *   opts  NULL: zeros 0, scales 1. Its tensors lie on the context's device and are contiguous.
 *
 * Dimensions before the last two are a batch; those that a or b lacks, or has the size 1 of, are
 * repeated. A transposed matrix is a view with its two last strides exchanged. k is at most 8388608
 * (2^23); k = 0 gives acc = bias. n or m may be 0.
 *
 * Aliasing: c overlaps no other operand.
 * Arithmetic: acc is exact for any k and any bias, then clamped to s32. sigma is fl(fl(a_scale *
 * b_scale) / c_scale) in f32, as it is for each column of b_scales, and exactly u / 2^s with
 * 2^30 <= u < 2^31; opts->sigma is rounded to such a u, to nearest even. HZ_ROUND_EXACT gives y =
 * floor((acc u + 2^(s-1)) / 2^s), or acc u 2^-s for s < 1: ties go up. HZ_ROUND_TFLITE gives
 * RoundingDivideByPOT(SaturatingRoundingDoublingHighMul(clamp(acc 2^max(31 - s, 0)), u),
 * max(s - 31, 0)). Nothing wraps: c_zero + y is clamped to the type of C and by opts. A column
 * whose sigma is not positive and finite, or whose multiplier or shift is out of range, has y = 0.
 * A float C is fl(fl(fl(acc) b_scale) a_scale), plus an f32 bias if there is one, each rounded to
 * f32; then clamped, where NaN stays, then rounded to its dtype.
 * Every result has the same bits on every ISA, thread count and GPU, but for those of a NaN.
 * Workspace: hz_qgemm_workspace(); large if b is not packed.
 * Errors: HZ_EINVAL, HZ_EDTYPE, HZ_ESHAPE, HZ_ESTRIDE, HZ_EALIAS, HZ_EDEVICE, HZ_ENOTSUP,
 * HZ_ENOMEM, HZ_EWORKSPACE, HZ_ECUDA, HZ_EFORK.
 * Source: Jacob et al. 2018, "Quantization and Training of Neural Networks for Efficient
 * Integer-Arithmetic-Only Inference", equations 4 to 8.
 */
HZ_API int hz_qgemm(hz_context *ctx, const hz_tensor *a, const hz_tensor *b, const hz_tensor *c,
		    const hz_qgemm_opts *opts);
HZ_API int hz_qgemm_workspace(hz_context *ctx, const hz_tensor *a, const hz_tensor *b,
			      const hz_tensor *c, const hz_qgemm_opts *opts, size_t *bytes);

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
HZ_API int hz_qgemm_pack(hz_context *ctx, const hz_tensor *b, void *data, size_t bytes,
			 hz_packed *packed);
HZ_API int hz_qgemm_pack_bytes(hz_context *ctx, const hz_tensor *b, size_t *bytes);

/*
 * The multiplier u and shift s of a sigma, sigma = u / 2^s, 2^30 <= u < 2^31, to nearest even where
 * a double has more bits. A sigma below 2^-32 gives u = 0, s = 1, from 2^30 on s is less than 1.
 * HZ_EINVAL if sigma is not positive and finite.
 */
HZ_API int hz_qgemm_multiplier(double sigma, int32_t *multiplier, int32_t *shift);

/*
 * Linear layer: y = x W + bias with x quantized on the way: exactly hz_choose_qparams() for each
 * row and hz_quantize() of x, then hz_qgemm() of the codes and b to a float y.
 *
 *   x     f32 f16 bf16 [..., m, k], any strides
 *   b     the codes of W, u8 s8 [..., k, n], any strides; NULL with opts->packed
 *   y     f32 f16 bf16 [..., m, n], any strides
 *   opts  b_zero(s), b_scale(s), bias, min, max and flags as of hz_qgemm(), and x_dtype; a_scale
 *         > 0 quantizes all of x with it and a_zero, instead of each row by its range
 *
 * A row with an Inf has the scale Inf and codes that are its zero, so it gives NaN, or an Inf where
 * an s32 bias is not 0. All else as of hz_qgemm().
 */
HZ_API int hz_qlinear(hz_context *ctx, const hz_tensor *x, const hz_tensor *b, const hz_tensor *y,
		      const hz_qgemm_opts *opts);
HZ_API int hz_qlinear_workspace(hz_context *ctx, const hz_tensor *x, const hz_tensor *b,
				const hz_tensor *y, const hz_qgemm_opts *opts, size_t *bytes);

#ifdef __cplusplus
}
#endif

#endif
