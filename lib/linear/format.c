/*
 * format.c - stored linear layers: formats, sizes, the checks of bytes from a file
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#include <config.h>

#include <math.h>
#include <string.h>

#include "lib/hadamard/hadamard.h"
#include "lib/lattice/lattice.h"
#include "lib/linear/linear.h"
#include "lib/qgemm/qgemm.h"

/* bits and t_bits of lattice codes: see struct hzi_linear_layout */
static const struct format {
	const char *name;
	int preset, bits, t_bits;
	struct hzi_linear_group group;
} formats[] = {
	[HZ_LINEAR_S8_ROW] = {.name = "s8-row"},
	[HZ_LINEAR_E8_4_50_FAST] = {"e8-4.5-fast", HZ_LATTICE_PRESET_E8_4_50_FAST, 4, 4, {0}},
	[HZ_LINEAR_E8_4_50] = {"e8-4.5", HZ_LATTICE_PRESET_E8_4_50, 4, 4, {0}},
	[HZ_LINEAR_E8_4_25] = {"e8-4.25", HZ_LATTICE_PRESET_E8_4_25, 4, 2, {0}},
	[HZ_LINEAR_E8_4_25_BEST] = {"e8-4.25-best", HZ_LATTICE_PRESET_E8_4_25_BEST, 4, 2, {0}},
	[HZ_LINEAR_E8_3_25_FAST] = {"e8-3.25-fast", HZ_LATTICE_PRESET_E8_3_25_FAST, 3, 2, {0}},
	[HZ_LINEAR_E8_3_25] = {"e8-3.25", HZ_LATTICE_PRESET_E8_3_25, 3, 2, {0}},
	[HZ_LINEAR_E8_2_25] = {"e8-2.25", HZ_LATTICE_PRESET_E8_2_25, 2, 2, {0}},
	[HZ_LINEAR_D4_4_50] = {"d4-4.5", HZ_LATTICE_PRESET_D4_4_50, 4, 4, {0}},
	[HZ_LINEAR_S8_G128] = {.name = "s8-g128", .group = {128, HZ_S8, HZ_BF16, false}},
	[HZ_LINEAR_S4_G32] = {.name = "s4-g32", .group = {32, HZ_S4X2, HZ_BF16, false}},
	[HZ_LINEAR_S4_G128] = {.name = "s4-g128", .group = {128, HZ_S4X2, HZ_BF16, false}},
	[HZ_LINEAR_U4_G128] = {.name = "u4-g128", .group = {128, HZ_U4X2, HZ_BF16, true}},
	[HZ_LINEAR_MXFP4] = {.name = "mxfp4", .group = {32, HZ_E2M1X2, HZ_E8M0, false}},
	[HZ_LINEAR_NVFP4] = {.name = "nvfp4", .group = {16, HZ_E2M1X2, HZ_E4M3, false}},
};

#define FORMATS ((int)(sizeof(formats) / sizeof(*formats)))

const struct hzi_linear_group *hzi_linear_group_of(const struct hzi_linear_header *h)
{
	return &formats[h->format].group;
}

const char *hz_linear_format_name(int format)
{
	return format > 0 && format < FORMATS ? formats[format].name : "?";
}

void hzi_linear_sizes(struct hzi_linear_header *h)
{
	const struct format *const f = &formats[h->format];
	const struct hzi_linear_layout l = {.bits = f->bits, .t_bits = f->t_bits};

	h->scales_at = sizeof(*h);
	h->scales_bytes = 4 * (uint64_t)h->out;
	if (f->group.zeros)
		h->scales_bytes = hzi_linear_zeros_at(h, f->group.scale_dtype) +
				  (uint64_t)(h->out * hzi_linear_groups(h));
	else if (f->group.group)
		h->scales_bytes = (uint64_t)(h->out * hzi_linear_groups(h)) *
				  hz_dtype_size(f->group.scale_dtype);
	h->codes_at = h->scales_at + (h->scales_bytes + 63) / 64 * 64;
	h->codes_bytes = (uint64_t)(f->preset ? hzi_round_up(h->out, HZI_LINEAR_PANEL) /
				    HZI_LINEAR_PANEL * (hzi_round_up(h->in, 32) / 32) *
				    hzi_linear_unit_bytes(&l) :
				    hzi_qgemm_packed_bytes(HZI_QGEMM_LAYOUT_CPU, h->in, h->out));
	if (f->group.group)
		h->codes_bytes = (uint64_t)(h->out * hzi_linear_row_bytes(h));
	h->bytes = h->codes_at + h->codes_bytes;
}

hz_hadamard_opts hzi_linear_rotation(const struct hzi_linear_header *h)
{
	return (hz_hadamard_opts){
		.plan = (int32_t)h->plan, .base = (int32_t)h->base, .order = (int32_t)h->order,
		.max_block = h->plan == HZ_PLAN_GREEDY ? HZI_LINEAR_BLOCK_MAX : 0,
	};
}

void hzi_linear_choose_plan(struct hzi_linear_header *h)
{
	const int64_t odd = h->in / (h->in & -h->in);
	hz_hadamard_opts o;

	h->plan = HZ_PLAN_TRUE;
	h->order = odd > 1 && odd < HZI_BASE_MAX ? (uint32_t)(4 * odd) : 0;
	h->base = h->order ? (uint32_t)hzi_base_auto((int)h->order) : 0;
	o = hzi_linear_rotation(h);
	if (h->in <= HZI_LINEAR_BLOCK_MAX && hz_hadamard_plan(h->in, &o, NULL, 0) > 0)
		return;
	h->plan = HZ_PLAN_GREEDY;
	h->base = h->order = 0;
}

/* ---- Lattices -------------------------------------------------------------------------------- */

int hzi_linear_open_lattice(struct hz_context *ctx, const struct hzi_linear_header *h,
			    hz_lattice **lattice, hz_vlut **vlut)
{
	const hz_lattice_opts o = {.preset = formats[h->format].preset,
				   .flags = h->flags & HZI_LINEAR_WIDE ? HZ_LATTICE_WIDE : 0};
	const hz_vlut_opts by_32 = {.x_format = HZ_S8};
	int status;

	HZ_CHECK(hz_lattice_open(ctx, lattice, &o));
	status = hz_vlut_open(ctx, vlut, *lattice, NULL, &by_32);
	if (status != HZ_OK) {
		hz_lattice_close(*lattice);
		*lattice = NULL;
		return status;
	}
	hzi_vlut_use_planes(*vlut);
	return HZ_OK;
}

void hzi_linear_make_layout(const struct hzi_linear_header *h, const hz_lattice *lattice,
			    const uint8_t *code_of_fields, struct hzi_linear_layout *l)
{
	const struct format *const f = &formats[h->format];

	memset(l, 0, sizeof(*l));
	l->out = h->out;
	l->in = h->in;
	l->bits = f->bits;
	l->t_bits = f->t_bits;
	if (!lattice)
		return;
	l->shaping = lattice->rule.shaping;
	for (int t = 0; t < 16; t++)
		l->scale[t] = lattice->rule.scale[t < lattice->rule.scales ? t :
						  lattice->rule.scales - 1];
	if (l->shaping)
		return;
	for (int e = 0; e < 4; e++)
		l->offset[e] = (int8_t)lattice->rule.offset[e];
	for (int i = 0; i < 256; i++) {
		for (int e = 0; e < 4; e++)
			l->leader[i][e] = (int8_t)lattice->leaders[4 * code_of_fields[i] + e];
	}
}

/* ---- Codes in rows --------------------------------------------------------------------------- */

static void unpack_lattice(const struct hzi_linear_layout *l, const uint8_t *codes,
			   const uint8_t *code_of_fields, const hz_tensor *to, uint8_t *t)
{
	const int64_t blocks = to->shape[1];

	for (int64_t i = 0; i < l->out; i++) {
		for (int64_t e = 0; e < (l->in + 7) / 8; e++) {
			const struct hzi_linear_eight at = hzi_linear_eight(l, codes, i, e);
			const uint32_t label = l->shaping ? hzi_linear_label(l, at.planes) : 0;

			*t++ = (uint8_t)at.t;
			if (to->dtype == HZ_U32)
				((uint32_t *)to->data)[i * blocks + e] = label;
			else if (to->dtype == HZ_U16)
				((uint16_t *)to->data)[i * blocks + e] = (uint16_t)label;
			for (int b = 0; b < 4 && !l->shaping; b++) {
				const int64_t block = 2 * e + b / 2;

				if (block < blocks)
					((uint8_t *)to->data)[(i * blocks + block) * 2 + b % 2] =
						code_of_fields[hzi_linear_fields(at.planes, b / 2,
										 b % 2)];
			}
		}
	}
}

void hzi_linear_unpack(const struct hzi_linear_layout *l, const uint8_t *codes,
		       const uint8_t *code_of_fields, const hz_tensor *to, const hz_tensor *t)
{
	uint8_t *s8 = to->data;

	if (l->bits) {
		unpack_lattice(l, codes, code_of_fields, to, t->data);
		return;
	}
	for (int64_t i = 0; i < l->out; i++) {
		for (int64_t k = 0; k < l->in; k++)
			*s8++ = codes[hzi_linear_s8_at(l->in, i, k)];
	}
}

/* ---- Checks of bytes ------------------------------------------------------------------------- */

static int bad(struct hz_context *ctx, const char *op, const char *what)
{
	return hzi_fail(ctx, HZ_EINVAL, "%s: data %s", op, what);
}

/* The fields of a rotation; any seed is valid. */
static const char *rotation_fault(const struct hzi_linear_header *h)
{
	const hz_hadamard_opts o = hzi_linear_rotation(h);

	if (!(h->flags & HZ_LINEAR_ROTATE))
		return h->plan || h->base || h->order || h->seed ?
		       "has a plan, base, order or seed, but no rotation" : NULL;
	if (h->plan == HZ_PLAN_GREEDY)
		return h->base || h->order ? "has a base or order with the greedy plan" : NULL;
	if (h->plan != HZ_PLAN_TRUE || h->in > HZI_LINEAR_BLOCK_MAX || h->base > HZ_BASE_QUIP ||
	    h->order > HZI_BASE_MAX || hz_hadamard_plan(h->in, &o, NULL, 0) <= 0)
		return "has a rotation that its length, plan, base and order do not make";
	return NULL;
}

static const char *header_fault(const struct hzi_linear_header *h)
{
	struct hzi_linear_header want = *h;

	if (h->flags & ~(HZ_LINEAR_ROTATE | HZI_LINEAR_WIDE) ||
	    (h->flags & HZI_LINEAR_WIDE && !formats[h->format].preset))
		return "has unknown flags";
	if (h->out < 1 || h->out > HZI_LINEAR_OUT_MAX || h->in < 1 || h->in > HZI_LINEAR_IN_MAX ||
	    h->out > INT64_MAX / 2 / h->in)
		return "has sizes out of range: out must be 1 to 2^40, in 1 to 2^23, and less than "
		       "2^62 weights";
	if (!(h->error >= 0 && isfinite(h->error)))
		return "has an error that is negative, NaN or Inf";
	if (h->reserved0 | h->reserved[0] | h->reserved[1])
		return "has reserved bytes other than 0";
	if (h->in % 2 && formats[h->format].group.group &&
	    formats[h->format].group.q_dtype != HZ_S8)
		return "has an odd number of columns, which its format does not hold";
	if (formats[h->format].group.scale_dtype == HZ_E4M3 ?
	    !(h->tensor_scale > 0 && h->tensor_scale <= HZI_LINEAR_SCALE_MAX) :
	    memcmp(&h->tensor_scale, &(float){0}, 4) != 0)
		return "has a scale of the whole matrix that its format does not have";
	hzi_linear_sizes(&want);
	if (memcmp(&want, h, sizeof(want)) != 0)
		return "has offsets or sizes other than its format, out and in need";
	return rotation_fault(h);
}

/* Codes are -127 .. 127 and 0 where padded; behind them the sums of rows. */
static const char *s8_fault(const struct hzi_linear_header *h, const unsigned char *codes)
{
	const int64_t out = hzi_round_up(h->out, 32), in = hzi_round_up(h->in, 64);
	const unsigned char *const sums = codes + out * in;

	for (int64_t i = 0; i < out; i++) {
		int32_t sum = 0, stored;

		for (int64_t k = 0; k < in; k++) {
			const int8_t q = (int8_t)codes[hzi_linear_s8_at(h->in, i, k)];

			if (q == -128)
				return "has a code of -128, must be -127 to 127";
			if (q && (i >= h->out || k >= h->in))
				return "has codes other than 0 where it is padded";
			sum += q;
		}
		memcpy(&stored, sums + 4 * i, 4);
		if (stored != sum)
			return "has a sum of codes that is not theirs";
	}
	return NULL;
}

/*
 * A scale is positive or 0 and at most HZI_LINEAR_SCALE_MAX: weights of up to 2^96 need none above
 * it after a rotation, and what is decoded with it is finite. Floats that are not negative are in
 * the order of their bits; those of bf16 are the upper half of f32's.
 */
static bool is_scale(const unsigned char *p, int dtype)
{
	const float most = HZI_LINEAR_SCALE_MAX;
	const int size = dtype == HZ_BF16 ? 2 : 4;
	uint32_t bits = 0, limit;

	if (dtype == HZ_E4M3)
		return *p < 0x7f;
	memcpy(&limit, &most, 4);
	if (dtype == HZ_E8M0)
		return *p <= limit >> 23;
	memcpy((char *)&bits + 4 - size, p, (size_t)size);
	return bits <= limit;
}

/* Zero points of 4 bits; codes of s8 and s4 are symmetric. */
static const char *group_fault(const struct hzi_linear_header *h, const unsigned char *from)
{
	const struct hzi_linear_group *const g = hzi_linear_group_of(h);
	const unsigned char *const codes = from + h->codes_at;
	const uint64_t zeros = h->scales_at + (g->zeros ? hzi_linear_zeros_at(h, g->scale_dtype) :
					       h->scales_bytes);
	uint64_t i = h->scales_at + (uint64_t)(h->out * hzi_linear_groups(h)) *
				    hz_dtype_size(g->scale_dtype);

	for (; i < zeros; i++) {
		if (from[i])
			return "has bytes other than 0 between scales and zero points";
	}
	for (; i < h->scales_at + h->scales_bytes; i++) {
		if (from[i] > 15)
			return "has a zero point above 15";
	}
	for (i = 0; i < h->codes_bytes && g->q_dtype == HZ_S8; i++) {
		if (codes[i] == 0x80)
			return "has a code of -128, must be -127 to 127";
	}
	for (i = 0; i < h->codes_bytes && g->q_dtype == HZ_S4X2; i++) {
		if ((codes[i] & 15) == 8 || codes[i] >> 4 == 8)
			return "has a code of -8, must be -7 to 7";
	}
	return NULL;
}

int hzi_linear_check_bytes(struct hz_context *ctx, const char *op, const void *data, size_t bytes,
			   struct hzi_linear_header *h)
{
	const unsigned char *const from = data;
	const char *fault;
	int64_t columns;
	int dtype;

	if (!data)
		return hzi_fail(ctx, HZ_EINVAL, "%s: data is NULL", op);
	if (bytes < sizeof(*h))
		return hzi_fail(ctx, HZ_EINVAL, "%s: bytes is %zu, must be at least %zu, a header",
				op, bytes, sizeof(*h));
	if ((uintptr_t)data % 64)
		return hzi_fail(ctx, HZ_EINVAL, "%s: data is %p, must be a multiple of 64", op,
				data);
	memcpy(h, data, sizeof(*h));
	if (memcmp(h->magic, HZI_LINEAR_MAGIC, sizeof(h->magic)) != 0)
		return bad(ctx, op, "is no linear layer: it does not begin with " HZI_LINEAR_MAGIC);
	if (h->version != HZI_LINEAR_VERSION)
		return hzi_fail(ctx, HZ_EINVAL, "%s: data is of version %u, must be %d: a later "
				"library may read it", op, h->version, HZI_LINEAR_VERSION);
	if (h->format < 1 || h->format >= FORMATS)
		return hzi_fail(ctx, HZ_EINVAL, "%s: data has format %u, must be 1 to %d: a later "
				"library may read it", op, h->format, (int)FORMATS - 1);
	fault = header_fault(h);
	if (fault)
		return bad(ctx, op, fault);
	if (h->bytes > bytes)
		return hzi_fail(ctx, HZ_EINVAL, "%s: bytes is %zu, must be at least %llu, as the "
				"header of data says", op, bytes, (unsigned long long)h->bytes);
	dtype = hzi_linear_group_of(h)->group ? hzi_linear_group_of(h)->scale_dtype : HZ_F32;
	columns = hzi_linear_group_of(h)->group ? hzi_linear_groups(h) : 1;
	for (int64_t i = 0; i < h->out * columns; i++) {
		if (!is_scale(from + h->scales_at + (uint64_t)i * hz_dtype_size(dtype), dtype))
			return hzi_fail(ctx, HZ_EINVAL,
					"%s: data has a scale in row %lld that is negative, NaN or "
					"above 2^104", op, (long long)(i / columns));
	}
	for (uint64_t i = h->scales_at + h->scales_bytes; i < h->codes_at; i++) {
		if (from[i])
			return bad(ctx, op, "has bytes other than 0 between scales and codes");
	}
	fault = hzi_linear_group_of(h)->group ? group_fault(h, from) :
		formats[h->format].preset ? NULL : s8_fault(h, from + h->codes_at);
	return fault ? bad(ctx, op, fault) : HZ_OK;
}
