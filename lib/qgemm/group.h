/*
 * group.h - arguments and packed layout of linear layers with group-wise quantized weights
 *
 * SPDX-License-Identifier: BSD-2-Clause
 *
 * Read by the C compiler and by nvcc.
 */
#ifndef HZI_QGEMM_GROUP_H
#define HZI_QGEMM_GROUP_H

#include <stdint.h>

#include "hurwitz.h"
#include "lib/quantize/format.h"

/*
 * Packed W: codes as unsigned numbers u, panels of 16 columns, each of steps of 32 of k, padded to
 * a multiple of HZI_GROUP_UNIT of k. A panel's step has 256 bytes of codes of 4 bits or 512 bytes
 * of codes of 8; gpu/qgemm/group.cuh has the order of a GPU, and the CPU's is:
 *
 *   4 bits  [4][16][4]: byte i of row j has l = 8 j + i in its low half, 8 j + 4 + i in the other
 *   8 bits  [8][16][4]: byte i of row j has l = 4 j + i
 *
 * Then f32 scales, times tensor_scale, [panel][group][16], and, if W has zero points, s32 zeros of
 * u likewise: the caller's w - zero is u - zero, in units of 1/2 for E2M1. There are groups for
 * whole steps. Padding has the bits 0 as codes, which padded x of 0 multiply, and scales 0.
 *
 * On a GPU scales of bf16 and e8m0 of s4 in groups of 32 or 128 are stored again as bf16: for a
 * panel and HZI_GROUP_UNIT of k [8][groups][2], columns j and j + 8.
 */
enum hzi_group_kind {
	HZI_GROUP_U4,			/* u4, and s4 with u = w + 8 */
	HZI_GROUP_E2M1,			/* u is an index of hzi_group_e2m1[]: 2 w + 12 */
	HZI_GROUP_U8,			/* u8, and s8 with u = w + 128 */
	HZI_GROUP_E4M3
};

#define HZI_GROUP_COLUMNS 16		/* of a panel */
#define HZI_GROUP_STEP 32		/* of k */
#define HZI_GROUP_CHUNK 512		/* of k: sums of them are added */
#define HZI_GROUP_UNIT 128		/* the most of k in an integer sum */
#define HZI_GROUP_SHORT_BYTES(group) (HZI_GROUP_UNIT / (group) * HZI_GROUP_COLUMNS * 2)

struct hzi_group_layout {
	int64_t k, n, steps, panels, groups;	/* groups of a packed panel */
	int64_t group;			/* of k; of more than k for one scale a column */
	int64_t panel_bytes;		/* of codes, of HZI_GROUP_UNIT of k at a time */
	int64_t scale_at, zero_at, bytes;	/* offsets; zero_at 0: no zero points */
	int64_t short_at;		/* of scales as bf16; 0: none */
	int32_t kind, zero;		/* zero: what u is larger by than w */
};

/* W with strides: of w in bytes, of the others in elements */
struct hzi_group_weights {
	const void *w, *scales, *zeros;
	const float *tensor_scale;
	int64_t w_k, w_n, s_k, s_n, z_k, z_n;
	int64_t groups;			/* that scales has */
	int32_t w_dtype, scale_dtype, zero_dtype;	/* zero_dtype 0: none */
};

struct hzi_qlinear_group_pack_args {
	struct hzi_group_layout l;
	struct hzi_group_weights w;
	void *data;
};

/*
 * x is codes, s8, with x_scale or without; floats that become codes; or floats. The row of index i
 * of the merged outer dimensions is at the sum of index * x_stride, y's likewise; that of x_scales
 * is i.
 */
struct hzi_qlinear_group_args {
	struct hzi_group_layout l;
	struct hzi_group_weights w;
	const void *packed;		/* or NULL: w */
	const void *x;
	void *y;
	const float *x_scale, *bias;
	int64_t rows, x_k, y_n;
	int32_t ndim, x_dtype, y_dtype;
	bool integer;			/* codes are multiplied */
	bool by_32;			/* 32 values of x share a scale */
	float low, high;		/* bounds of y */
	int64_t shape[HZ_MAXDIM], x_stride[HZ_MAXDIM], y_stride[HZ_MAXDIM];
};

/* k of a unit: see hz_qlinear_group() */
HZI_BOTH int64_t hzi_group_unit(int64_t group, bool by_32)
{
	const int64_t most = by_32 ? HZI_GROUP_STEP : HZI_GROUP_UNIT;

	return group < most ? group : most;
}

HZI_BOTH bool hzi_group_is_4_bit(int kind)
{
	return kind == HZI_GROUP_U4 || kind == HZI_GROUP_E2M1;
}

/* A stored scale as f32 */
HZI_BOTH float hzi_group_scale(const void *scales, int dtype, int64_t i)
{
	uint16_t h;
	float f;

	switch (dtype) {
	case HZ_E8M0:
		return hzi_decode_e8m0(((const uint8_t *)scales)[i]);
	case HZ_E4M3:
		return hzi_decode_float(((const uint8_t *)scales)[i], HZ_E4M3);
	case HZ_F32:
		return ((const float *)scales)[i];
	default:
		h = ((const uint16_t *)scales)[i];
		if (dtype == HZ_BF16)
			return hzi_bits_float((uint32_t)h << 16);
	}
	/* f16: subnormals are multiples of 2^-24. */
	if ((h & 0x7c00) == 0)
		f = (float)(h & 0x3ff) * 0x1p-24f;
	else if ((h & 0x7c00) == 0x7c00)
		f = hzi_bits_float(0x7f800000u | (uint32_t)(h & 0x3ff) << 13);
	else
		f = hzi_bits_float((uint32_t)((h & 0x7fff) + 0x1c000) << 13);
	return h & 0x8000 ? -f : f;
}

/* The scale in packed form */
HZI_BOTH float hzi_group_packed_scale(const struct hzi_group_weights *w, int64_t group, int64_t j)
{
	const float s = hzi_group_scale(w->scales, w->scale_dtype, group * w->s_k + j * w->s_n);

	return w->tensor_scale ? hzi_f32_mul(s, *w->tensor_scale) : s;
}

/* The zero point of u; what pads has that of the kind */
HZI_BOTH int32_t hzi_group_packed_zero(const struct hzi_group_weights *w, int32_t of_kind,
				       int64_t group, int64_t j)
{
	const int64_t i = group * w->z_k + j * w->z_n;

	return of_kind + (w->zero_dtype == HZ_U8 ? ((const uint8_t *)w->zeros)[i]
						 : ((const int8_t *)w->zeros)[i]);
}

/*
 * Four successive codes u from (l, j) on, l a multiple of 4, as stored but in bytes of their own;
 * 0 beyond W
 */
HZI_BOTH uint32_t hzi_group_four(const struct hzi_group_weights *w,
				 const struct hzi_group_layout *g, int64_t l, int64_t j)
{
	const bool four_bit = hzi_group_is_4_bit(g->kind);
	const uint8_t *const from =
		(const uint8_t *)w->w + j * w->w_n + (four_bit ? l / 2 : l) * w->w_k;
	const int64_t k = w->w_k, count = j < g->n ? g->k - l : 0;
	uint32_t four;

	if (count <= 0)
		return 0;
	four = from[0] | (four_bit ? 0 : (count > 1 ? from[k] : 0) << 8);
	if (four_bit && count > 2)
		four |= (uint32_t)from[k] << 8;
	if (four_bit) {
		four = (four | four << 8) & 0xff00ff;
		four = (four | four << 4) & 0xf0f0f0f;
		return four ^ (w->w_dtype == HZ_S4X2 ? 0x08080808 : 0);
	}
	four |= (uint32_t)(count > 2 ? from[2 * k] : 0) << 16;
	four |= (uint32_t)(count > 3 ? from[3 * k] : 0) << 24;
	return four ^ (w->w_dtype == HZ_S8 ? 0x80808080 : 0);
}

/* 32 bits of packed codes, of the column j: word number `word` of its panel's step */
HZI_BOTH uint32_t hzi_group_word(const struct hzi_group_weights *w,
				 const struct hzi_group_layout *g, int64_t step, int64_t j, int word)
{
	const int64_t l = step * HZI_GROUP_STEP;

	if (!hzi_group_is_4_bit(g->kind))
		return hzi_group_four(w, g, l + 4 * word, j);
	return hzi_group_four(w, g, l + 8 * word, j) |
	       hzi_group_four(w, g, l + 8 * word + 4, j) << 4;
}

#endif
