/*
 * decode.h - codes of a linear layer as they are stored, and the weights they mean: for C and CUDA
 *
 * SPDX-License-Identifier: BSD-2-Clause
 *
 * doc/linear.md has the layouts: s8 codes are those of hz_qgemm_pack() on the CPU, lattice codes
 * those of hz_vlut_pack() there (cpu/vlut/kern.h).
 */
#ifndef HZI_LINEAR_DECODE_H
#define HZI_LINEAR_DECODE_H

#include <stdint.h>

#include "lib/lattice/label.h"

#define HZI_LINEAR_PANEL 64	/* rows of a panel of lattice codes */

/*
 * bits: of a field of a label, 0: codes are s8; t_bits: stored for the index of a scale. shaping 0
 * is D4 with q = 4 and two levels, whose leaders are leader[fields], o is offset.
 */
struct hzi_linear_layout {
	int64_t out, in;
	int32_t bits, t_bits, shaping, pad_;
	float scale[16];
	int8_t offset[8];
	int8_t leader[256][4];
};

/* Where the s8 code of (row, k) is */
HZI_LATTICE_FN int64_t hzi_linear_s8_at(int64_t in, int64_t row, int64_t k)
{
	return (row / 32 * ((in + 63) / 64) + k / 64) * 2048 + row / 16 % 2 * 1024 +
	       k % 64 / 4 * 64 + row % 16 * 4 + k % 4;
}

HZI_LATTICE_FN int64_t hzi_linear_unit_bytes(const struct hzi_linear_layout *l)
{
	return (4 * l->bits + l->t_bits / 2) * HZI_LINEAR_PANEL;
}

/* The planes of eight values of a row: byte 64 j of them is plane j, of unit t_at the index */
struct hzi_linear_eight {
	const uint8_t *planes;
	int32_t t;
};

HZI_LATTICE_FN struct hzi_linear_eight hzi_linear_eight(const struct hzi_linear_layout *l,
							const uint8_t *codes, int64_t row,
							int64_t eight)
{
	const int64_t units = (l->in + 31) / 32;
	const int32_t i = (int32_t)(row % HZI_LINEAR_PANEL), e = (int32_t)(eight % 4);
	const uint8_t *const unit =
		codes + (row / HZI_LINEAR_PANEL * units + eight / 4) * hzi_linear_unit_bytes(l) +
		i / 4 % 4 * 16 + i / 16 * 4 + i % 4;
	const int32_t t = unit[(4 * l->bits + e * l->t_bits / 8) * HZI_LINEAR_PANEL];
	struct hzi_linear_eight at;

	at.planes = unit + e * l->bits * HZI_LINEAR_PANEL;
	at.t = t >> e * l->t_bits % 8 & ((1 << l->t_bits) - 1);
	if (l->shaping == HZI_SHAPING_D8STAR && l->t_bits == 2)
		at.t |= (at.planes[l->bits == 3 ? 2 * HZI_LINEAR_PANEL : 0] >>
			 (l->bits == 3 ? 0 : l->bits - 1) & 1) << 2;
	return at;
}

/* A label of E8 */
HZI_LATTICE_FN uint32_t hzi_linear_label(const struct hzi_linear_layout *l, const uint8_t *planes)
{
	uint32_t label = 0;

	for (int i = 0; i < 8; i++) {
		const int plane = l->bits == 4 ? i / 2 : i / 4;
		const int shift = l->bits == 4 ? i % 2 * 4 : i % 4 * 2;
		uint32_t n = (uint32_t)planes[plane * HZI_LINEAR_PANEL] >> shift &
			     (l->bits == 4 ? 15 : 3);

		if (l->bits == 3)
			n |= ((uint32_t)planes[2 * HZI_LINEAR_PANEL] >> i & 1) << 2;
		label |= n << i * l->bits;
	}
	return l->shaping == HZI_SHAPING_D8STAR ? label & ~(1u << (l->bits - 1)) : label;
}

/* The fields of a leader of D4: of block 0 or 1 of eight values, level 0 or 1 */
HZI_LATTICE_FN int32_t hzi_linear_fields(const uint8_t *planes, int block, int level)
{
	int32_t fields = 0;

	for (int e = 0; e < 4; e++)
		fields |= (planes[e * HZI_LINEAR_PANEL] >> (4 * block + 2 * level) & 3) << 2 * e;
	return fields;
}

/* The eight values, without the scale of the row */
HZI_LATTICE_FN void hzi_linear_values(const struct hzi_linear_layout *l, const uint8_t *codes,
				      int64_t row, int64_t eight, float *v)
{
	const struct hzi_linear_eight at = hzi_linear_eight(l, codes, row, eight);
	const float scale = l->scale[at.t];
	int32_t p[8];

	if (l->shaping) {
		hzi_label_point(l->shaping, l->bits, hzi_linear_label(l, at.planes), p);
		for (int i = 0; i < 8; i++)
			v[i] = 0.5f * (float)p[i] * scale;
		return;
	}
	for (int b = 0; b < 2; b++) {
		const int8_t *const low = l->leader[hzi_linear_fields(at.planes, b, 0)];
		const int8_t *const high = l->leader[hzi_linear_fields(at.planes, b, 1)];

		for (int e = 0; e < 4; e++)
			v[4 * b + e] = (float)(low[e] + 4 * high[e] - l->offset[e]) * scale;
	}
}

#endif
