/*
 * fuzz_codes.c - a fuzz target for lattice codes: any bytes decode, and alike from every packing
 *
 * SPDX-License-Identifier: BSD-2-Clause
 *
 * The first bytes select the quantizer, how many of the coarsest levels to use, a second packing,
 * and T; the others are codes of 4 blocks. Digits must be below q and the same from each packing
 * that the codes can be converted to. Points must be within the quantizer's bound. Values must be
 * finite, and points of the code must give the same digits when encoded again.
 */
#define FUZZ_NAME "codes"

#include <config.h>

#include <math.h>

#include "hurwitz.h"

#include "t/core/fuzz.h"
#include "t/lattice/open.h"

#define BLOCKS 4
#define VALUES (BLOCKS * HZ_LATTICE_MAXDIM)
#define WORDS (BLOCKS * HZ_LATTICE_MAXLEVELS * HZ_LATTICE_MAXDIM)

static const double basis[] = {2, 1, 0, 0, 1.5, 0.5, 0, 0, 1};
static const double bank[] = {1, 1.5, 2.25};

static const hz_lattice_opts kinds[] = {
	{.kind = HZ_LATTICE_Z, .q = 256, .levels = 1},
	{.kind = HZ_LATTICE_Z, .dim = 3, .q = 3, .levels = 5, .policy = HZ_LATTICE_T},
	{.kind = HZ_LATTICE_Z, .dim = 24, .q = 2, .levels = 2, .flags = HZ_LATTICE_CENTER},
	{.kind = HZ_LATTICE_A2, .q = 5, .levels = 3, .policy = HZ_LATTICE_CLIP},
	{.kind = HZ_LATTICE_D, .dim = 2, .q = 7, .levels = 4},
	{.kind = HZ_LATTICE_D, .dim = 4, .q = 4, .levels = 2, .policy = HZ_LATTICE_T},
	{.kind = HZ_LATTICE_D, .dim = 4, .q = 16, .levels = 4, .policy = HZ_LATTICE_BANK,
	 .banks = 3, .bank = bank},
	{.kind = HZ_LATTICE_D, .dim = 9, .q = 3, .levels = 3},
	{.kind = HZ_LATTICE_E8, .q = 2, .levels = 8, .flags = HZ_LATTICE_CENTER},
	{.kind = HZ_LATTICE_E8, .q = 4, .levels = 2, .policy = HZ_LATTICE_GROUP, .group = 16},
	{.kind = HZ_LATTICE_E8, .q = 3, .levels = 4, .policy = HZ_LATTICE_T},
	{.kind = HZ_LATTICE_BASIS, .dim = 3, .q = 5, .levels = 2, .basis = basis},
	{.kind = HZ_LATTICE_BASIS, .dim = 3, .q = 4, .levels = 3, .basis = basis,
	 .flags = HZ_LATTICE_SPHERE},
};
#define KINDS (sizeof(kinds) / sizeof(*kinds))

static hz_context *ctx;
static hz_lattice *lattice[KINDS];

static void must_work(int status)
{
	fuzz_must(status == HZ_OK, "refused", hz_errmsg(ctx));
}

static void open_all(void)
{
	static const hz_options o = {.device = HZ_CPU, .threads = 1, .flags = HZ_NO_TOPOLOGY};

	fuzz_must(hz_open(&ctx, &o) == HZ_OK, "no context", hz_open_errmsg());
	for (size_t i = 0; i < KINDS; i++)
		must_work(open_lattice(ctx, &lattice[i], &kinds[i]));
}

static hz_tensor codes_view(const hz_lattice_info *info, int pack, void *data)
{
	if (pack == HZ_LATTICE_LEVEL)
		return hz_tensor_2d(data, info->level_dtype, HZ_CPU, BLOCKS, info->levels);
	if (pack == HZ_LATTICE_LIMBS)
		return hz_tensor_2d(data, HZ_U32, HZ_CPU, BLOCKS, info->limbs);
	return hz_tensor_1d(data, HZ_U64, HZ_CPU, BLOCKS);
}

static void decode(const hz_lattice *l, int pack, int levels, int to, const hz_tensor *codes,
		   const hz_tensor *t, hz_tensor *y)
{
	const hz_lattice_code_opts o = {.pack = pack, .use_levels = levels, .to = to};

	must_work(hz_lattice_decode(ctx, l, codes, t, y, &o));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static uint64_t memory[3][BLOCKS * HZ_LATTICE_MAXLEVELS];
	static uint64_t encoded[BLOCKS * HZ_LATTICE_MAXLEVELS];
	static uint32_t digits[WORDS], other[WORDS];
	static int32_t points[VALUES + BLOCKS];
	static float values[VALUES];
	uint8_t t_of[BLOCKS] = {0};
	struct bytes b = {.at = data, .left = size};
	hz_lattice_info info;
	hz_tensor codes, packed, y, point, t = hz_tensor_1d(t_of, HZ_U8, HZ_CPU, BLOCKS);
	const hz_lattice *l;
	size_t which;
	int levels, pack;
	int64_t count;

	if (!ctx)
		open_all();
	which = next_byte(&b) % KINDS;
	l = lattice[which];
	hz_lattice_get_info(l, &info);
	levels = next_byte(&b) % (info.levels + 1);
	pack = (next_byte(&b) & 1) && info.full64 ? HZ_LATTICE_FULL64 : HZ_LATTICE_LIMBS;
	if (info.group)
		t.shape[0] = (BLOCKS * info.dim + info.group - 1) / info.group;
	for (int i = 0; i < BLOCKS; i++)
		t_of[i] = next_byte(&b);
	memset(memory, 0, sizeof(memory));
	codes = codes_view(&info, HZ_LATTICE_LEVEL, memory[HZ_LATTICE_LEVEL]);
	for (size_t i = 0; b.left && i < (size_t)hz_tensor_bytes(&codes); i++)
		((uint8_t *)memory[HZ_LATTICE_LEVEL])[i] = next_byte(&b);

	/* Digits, directly and through the other packing */
	y = hz_tensor_3d(digits, HZ_U32, HZ_CPU, BLOCKS, info.levels, info.dim);
	count = hz_tensor_count(&y);
	decode(l, HZ_LATTICE_LEVEL, 0, HZ_LATTICE_DIGITS, &codes, NULL, &y);
	for (int64_t i = 0; i < count; i++)
		fuzz_must(digits[i] < (uint32_t)info.q, "a digit", "q or more");
	y.data = other;
	packed = codes_view(&info, pack, memory[pack]);
	must_work(hz_lattice_repack(ctx, l, &codes, &packed, HZ_LATTICE_LEVEL, pack));
	decode(l, pack, 0, HZ_LATTICE_DIGITS, &packed, NULL, &y);
	fuzz_must(memcmp(digits, other, (size_t)count * 4) == 0, "digits",
		  "other ones from another packing");

	/* Points and values, also of the coarsest levels alone */
	point = hz_tensor_2d(points, HZ_S32, HZ_CPU, BLOCKS, info.embed);
	decode(l, HZ_LATTICE_LEVEL, levels, HZ_LATTICE_POINTS, &codes, NULL, &point);
	for (int i = 0; i < BLOCKS * info.embed; i++)
		fuzz_must(abs(points[i]) <= info.point_max, "a point", "beyond point_max");
	y = hz_tensor_1d(values, HZ_F32, HZ_CPU, BLOCKS * info.dim);
	decode(l, HZ_LATTICE_LEVEL, levels, HZ_LATTICE_VALUES, &codes, info.scales ? &t : NULL, &y);
	for (int i = 0; i < BLOCKS * info.dim; i++)
		fuzz_must(isfinite(values[i]), "a value", "not finite");

	/* With a single scale each point of the code is encoded as itself. */
	if (info.policy == HZ_LATTICE_NONE && levels == 0) {
		hz_tensor again = codes_view(&info, HZ_LATTICE_LEVEL, encoded);

		must_work(hz_lattice_encode(ctx, l, &y, &again, NULL, NULL, NULL));
		y = hz_tensor_3d(other, HZ_U32, HZ_CPU, BLOCKS, info.levels, info.dim);
		decode(l, HZ_LATTICE_LEVEL, 0, HZ_LATTICE_DIGITS, &again, NULL, &y);
		fuzz_must(memcmp(digits, other, (size_t)count * 4) == 0, "digits",
			  "do not come back");
	}

	/* Any bytes in the other packing, too */
	memcpy(memory[pack], data, size < (size_t)hz_tensor_bytes(&packed) ?
				   size : (size_t)hz_tensor_bytes(&packed));
	must_work(hz_lattice_repack(ctx, l, &packed, &codes, pack, HZ_LATTICE_LEVEL));
	y = hz_tensor_3d(digits, HZ_U32, HZ_CPU, BLOCKS, info.levels, info.dim);
	decode(l, pack, 0, HZ_LATTICE_DIGITS, &packed, NULL, &y);
	y.data = other;
	decode(l, HZ_LATTICE_LEVEL, 0, HZ_LATTICE_DIGITS, &codes, NULL, &y);
	fuzz_must(memcmp(digits, other, (size_t)count * 4) == 0, "digits",
		  "other ones after repacking");
	return 0;
}
