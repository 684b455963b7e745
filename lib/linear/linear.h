/*
 * linear.h - linear layers with quantized weights: the object, the file header, arguments
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#ifndef HZI_LINEAR_H
#define HZI_LINEAR_H

#include "lib/core/internal.h"
#include "lib/linear/decode.h"
#include "lib/vlut/vlut.h"

/* ---- Stored layers (lib/linear/format.c, encode.c) ------------------------------------------- */

#define HZI_LINEAR_MAGIC "HZLINEAR"
#define HZI_LINEAR_VERSION 1
#define HZI_LINEAR_WIDE 2u	/* in flags, beside HZ_LINEAR_ROTATE: HZ_LATTICE_WIDE */
#define HZI_LINEAR_IN_MAX ((int64_t)1 << 23)
#define HZI_LINEAR_OUT_MAX ((int64_t)1 << 40)
#define HZI_LINEAR_SCALE_MAX 0x1p104f	/* 2^96 sqrt(HZI_LINEAR_BLOCK_MAX) */
#define HZI_LINEAR_BLOCK_MAX 65536	/* of a rotation: what a GPU transforms */

/* The first bytes, little-endian; offsets count from the first byte and are multiples of 64. */
struct hzi_linear_header {
	char magic[8];
	uint32_t version, format, flags;
	uint32_t plan, base, order;	/* of the rotation; 0: none */
	int64_t out, in;
	uint64_t seed;
	double error;
	uint64_t scales_at, scales_bytes, codes_at, codes_bytes, bytes;
	float tensor_scale;		/* NVFP4; else 0 */
	uint32_t reserved0;
	uint64_t reserved[2];
};
_Static_assert(sizeof(struct hzi_linear_header) == 128, "as stored");

struct hz_linear {
	hz_context *ctx;
	struct hzi_linear_header h;
	struct hzi_linear_layout layout;
	const unsigned char *bytes;	/* on the host: `own`, or the caller's */
	void *own;			/* h.bytes of them; NULL: none */
	/* On the context's device; on the CPU the first two are in `bytes`. */
	const void *codes;
	const float *scales;
	/*
	 * device_scales: of groups f32 instead of bf16, behind them zero points as in the bytes,
	 * then tensor_scale from a multiple of 64 bytes on
	 */
	void *device_codes, *device_scales, *signs, *packed_data;
	hz_packed packed;
	hz_lattice *lattice;
	hz_vlut *vlut;
	const char *route;
};

/*
 * Formats with groups: codes are [out, in] or, two in a byte, [out, in / 2]; scales [out, groups],
 * behind which, from a multiple of 64 bytes on, are zero points. All are contiguous.
 */
struct hzi_linear_group {
	int32_t group;			/* 0: the format has none */
	int32_t q_dtype, scale_dtype;
	bool zeros;
};

const struct hzi_linear_group *hzi_linear_group_of(const struct hzi_linear_header *h);

static inline int64_t hzi_linear_groups(const struct hzi_linear_header *h)
{
	const int64_t group = hzi_linear_group_of(h)->group;

	return (h->in + group - 1) / group;
}

/* Bytes of a row of codes */
static inline int64_t hzi_linear_row_bytes(const struct hzi_linear_header *h)
{
	return hzi_linear_group_of(h)->q_dtype == HZ_S8 ? h->in : h->in / 2;
}

/* Where zero points begin behind scales of that dtype */
static inline uint64_t hzi_linear_zeros_at(const struct hzi_linear_header *h, int scale_dtype)
{
	return ((uint64_t)(h->out * hzi_linear_groups(h)) * hz_dtype_size(scale_dtype) + 63) / 64 *
	       64;
}

/* Sets offsets and sizes from format, out and in, which are valid. */
void hzi_linear_sizes(struct hzi_linear_header *h);

/* The rotation that a header describes; pre is not set. */
hz_hadamard_opts hzi_linear_rotation(const struct hzi_linear_header *h);

/* Sets plan, base and order for a rotation of h->in. */
void hzi_linear_choose_plan(struct hzi_linear_header *h);

/*
 * HZ_OK if `bytes` bytes are a layer, with *h its header; what is wrong otherwise becomes the
 * message of ctx.
 */
int hzi_linear_check_bytes(struct hz_context *ctx, const char *op, const void *data, size_t bytes,
			   struct hzi_linear_header *h);

/* The quantizer of a lattice format, and what products by it need */
int hzi_linear_open_lattice(struct hz_context *ctx, const struct hzi_linear_header *h,
			    hz_lattice **lattice, hz_vlut **vlut);

/* Fills *l; codes_of_fields: of a vlut on the CPU, NULL for formats other than D4. */
void hzi_linear_make_layout(const struct hzi_linear_header *h, const hz_lattice *lattice,
			    const uint8_t *code_of_fields, struct hzi_linear_layout *l);

/*
 * Stored codes in rows: s8 [out, in], or as hz_lattice_encode() writes them, [out, blocks, levels]
 * and t [out, groups]. to and t are contiguous on the host; code_of_fields as above.
 */
void hzi_linear_unpack(const struct hzi_linear_layout *l, const uint8_t *codes,
		       const uint8_t *code_of_fields, const hz_tensor *to, const hz_tensor *t);

#define HZI_LINEAR_COLUMNS 8	/* of a panel of factors: a block of E8, two of D4 that share T */

/*
 * A matrix of moments H = U D U^T, U unit upper triangular: D, and U above its diagonal in panels
 * of columns, each with the rows up to its last one. Before the first layer u has H instead, on and
 * above its diagonal, of in-features rotated as weights are; that layer factors it in place.
 */
struct hzi_linear_factors {
	double *d;			/* [in] */
	float *u;			/* hzi_linear_panels() of all panels */
	enum { HZI_LINEAR_MOMENTS, HZI_LINEAR_FACTORS, HZI_LINEAR_NO_FACTORS } state;
};

/* Numbers of the first `panels` panels of U */
static inline int64_t hzi_linear_panels(int64_t panels)
{
	return panels * (panels + 1) / 2 * HZI_LINEAR_COLUMNS * HZI_LINEAR_COLUMNS;
}

/* hz_linear_open() with factors besides opts->moments, which are [in]; f may be NULL. */
int hzi_linear_open_factored(struct hz_context *ctx, hz_linear **layer, const hz_tensor *w,
			     const hz_linear_open_opts *opts, struct hzi_linear_factors *f);

/*
 * Quantizes w, which lies on the host, on a CPU context, and fills data of h->bytes bytes. h has
 * format, flags, plan, out, in and sizes. weight: in-features' shares of the error, the largest is
 * 1, or NULL. matrix: opts->moments if it is [in, in], else NULL; f: factors instead, or NULL
 */
int hzi_linear_encode(struct hz_context *cpu, struct hzi_linear_header *h, const hz_tensor *w,
		      const float *weight, const float *matrix, struct hzi_linear_factors *f,
		      unsigned char *data);

/* ---- Arguments of implementations ------------------------------------------------------------ */

/* The epilogue of a product, or a conversion */
struct hzi_linear_forward_args {
	struct hzi_vlut_bias_act e;
};

/* dx[t, k] = sum_o dy[t, o] w[o, k] in ascending o, added to dx if `add`; w is contiguous. */
struct hzi_linear_bwd_args {
	const float *dy, *w;
	float *dx;
	int64_t rows, out, in, dy_ld, dx_ld;
	int32_t add;
};

/* w[i, k] = weight of row first + i of the layer as stored, k; rows of w are ld apart. */
struct hzi_linear_dequantize_args {
	const struct hzi_linear_layout *layout;
	const void *codes;
	const float *scales;
	float *w;
	int64_t first, rows, ld;
};

#endif
