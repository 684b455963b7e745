/*
 * pack.c - the layouts of packed codes, and vlut_pack
 *
 * SPDX-License-Identifier: BSD-2-Clause
 *
 * D4 with q = 4 and two levels is packed as described in d4_bitfield.h, E8 with q = 4 and two
 * levels as in e8_bitplane.h, E8 of labels with q = 16 as in label.h. Other lattices: rows of
 * codes, the levels of a block contiguous, then rows of T; every row starts at a multiple of 16
 * bytes.
 */
#include <config.h>

#include "gpu/vlut/launch.h"

static int64_t packed_row(const hz_lattice *l, int64_t blocks, int code_bytes)
{
	return round_up(blocks * l->rule.levels * code_bytes, 16);
}

static int64_t packed_t_row(const hz_lattice *l, int64_t blocks)
{
	return hzi_lattice_has_t(l) ? round_up(ceil_div(blocks, l->rule.group), 16) : 0;
}

static int level_bytes(const hz_lattice *l)
{
	return l->rule.level_size <= 256 ? 1 : l->rule.level_size <= 65536 ? 2 : 4;
}

bool hzi_cuda_vlut_is_bit_packed(const hz_lattice *l, const struct hzi_coded *c)
{
	return c->packed && (hzi_cuda_vlut_packs_as_label(l) ||
			     hzi_cuda_vlut_packs_as_d4_bitfield(l) ||
			     hzi_cuda_vlut_packs_as_e8_bitplane(l, c));
}

struct hzi_coded hzi_cuda_vlut_code_view(const hz_lattice *l, const struct hzi_coded *c)
{
	struct hzi_coded out = *c;
	const int bytes = level_bytes(l);
	const int64_t row = packed_row(l, c->blocks, bytes);

	if (!c->packed || hzi_cuda_vlut_is_bit_packed(l, c))
		return out;
	out.codes = (const char *)c->packed + (int64_t)c->first * bytes;
	out.code_dtype = bytes == 1 ? HZ_U8 : bytes == 2 ? HZ_U16 : HZ_U32;
	out.row = row / bytes;
	out.block = l->rule.levels;
	out.level = 1;
	if (hzi_lattice_has_t(l)) {
		out.t = (const uint8_t *)c->packed + c->capacity * row;
		out.t_row = packed_t_row(l, c->blocks);
		out.t_step = 1;
	}
	return out;
}

size_t hzi_cuda_vlut_bit_packed_bytes(const hz_lattice *l, const struct hzi_coded *c)
{
	return hzi_cuda_vlut_packs_as_label(l) ? hzi_cuda_vlut_label_bytes(l, c) :
	       hzi_cuda_vlut_packs_as_d4_bitfield(l) ? hzi_cuda_vlut_d4_bitfield_bytes(c) :
	       hzi_cuda_vlut_packs_as_e8_bitplane(l, c) ? hzi_cuda_vlut_e8_bitplane_bytes(c) : 0;
}

size_t hzi_cuda_vlut_pack_workspace(const struct hz_context *ctx,
				    const struct hzi_vlut_pack_args *a)
{
	const hz_lattice *l = a->vlut->w;
	const size_t bytes = hzi_cuda_vlut_bit_packed_bytes(l, &a->w);

	(void)ctx;
	return bytes ? bytes :
	       (size_t)(a->w.rows * (packed_row(l, a->w.blocks, level_bytes(l)) +
				     packed_t_row(l, a->w.blocks)));
}

int hzi_cuda_vlut_pack_rows(struct hz_context *ctx, const struct hzi_vlut_pack_args *a,
			    int64_t row)
{
	const hz_lattice *l = a->vlut->w;
	const int bytes = level_bytes(l);
	struct hzi_vlut_pack p = {
		.codes = a->w.codes, .t = a->w.t, .rows = a->w.rows,
		.blocks = a->w.blocks, .groups = ceil_div(a->w.blocks, l->rule.group),
		.row = a->w.row,
		.block = a->w.block, .level = a->w.level, .t_row = a->w.t_row,
		.t_step = a->w.t_step, .row_bytes = packed_row(l, a->w.blocks, bytes),
		.t_bytes = packed_t_row(l, a->w.blocks), .code_bytes = bytes,
		.levels = l->rule.levels, .first = a->w.first,
	};
	const int64_t blocks = ceil_div(p.rows * p.row_bytes / bytes, HZI_VLUT_THREADS);
	const struct hzi_launch launch = {
		.grid = {(unsigned)min_of(blocks, 4096)}, .block = {HZI_VLUT_THREADS},
	};

	p.packed = (uint8_t *)a->packed + row * p.row_bytes;
	p.packed_t = (uint8_t *)a->packed + a->w.capacity * p.row_bytes + row * p.t_bytes;
	return hzi_cuda_launch(ctx, "vlut_pack", HZI_KERNEL_vlut_pack, &launch, &p, sizeof(p));
}

int hzi_cuda_vlut_pack(struct hz_context *ctx, const struct hzi_vlut_pack_args *a)
{
	const hz_lattice *l = a->vlut->w;

	if (!a->w.codes)
		return hzi_cuda_fill(ctx, a->packed, 0, hzi_cuda_vlut_pack_workspace(ctx, a));
	if (hzi_cuda_vlut_packs_as_label(l))
		return hzi_cuda_vlut_label_pack(ctx, a);
	if (hzi_cuda_vlut_packs_as_d4_bitfield(l))
		return hzi_cuda_vlut_d4_bitfield_pack(ctx, a);
	if (hzi_cuda_vlut_packs_as_e8_bitplane(l, &a->w))
		return hzi_cuda_vlut_e8_bitplane_pack(ctx, a);
	return hzi_cuda_vlut_pack_rows(ctx, a, 0);
}
