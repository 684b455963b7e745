/*
 * cuda.c - launches of the lattice quantizer on the stand-in driver
 *
 * SPDX-License-Identifier: BSD-2-Clause
 *
 * Nothing is computed: the tests check which kernels a call launches, and that the driver would
 * accept the launches. t/lattice/lattice with HZ_TEST_DEVICE=cuda checks results.
 */
#include <config.h>

#include "t/core/cuda_calls.h"
#include "t/lattice/open.h"

#if HZ_HAVE_CUDA

#define OPERAND_BYTES ((size_t)1 << 22)
#define BLOCKS 100

static char *x, *codes, *t;

/* gap: elements between rows; shift: offset of the values from 16-byte alignment, in bytes */
static const struct row {
	int kind, dim, q, levels, policy, dtype, gap, shift;
	const char *encode, *decode;
} rows[] = {
	{HZ_LATTICE_E8, 0, 4, 2, HZ_LATTICE_NONE, HZ_F16, 0, 0, "lattice_encode_e8q4",
	 "lattice_decode_e8q4_f16"},
	{HZ_LATTICE_E8, 0, 4, 2, HZ_LATTICE_T, HZ_F32, 0, 0, "lattice_encode_e8q4",
	 "lattice_decode_e8q4_f32"},
	{HZ_LATTICE_E8, 0, 2, 4, HZ_LATTICE_CLIP, HZ_BF16, 0, 0, "lattice_encode_e8q2",
	 "lattice_decode_d8_bf16"},
	{HZ_LATTICE_D, 0, 4, 2, HZ_LATTICE_T, HZ_F16, 0, 0, "lattice_encode_d4q4",
	 "lattice_decode_d4_f16"},
	{HZ_LATTICE_D, 0, 2, 4, HZ_LATTICE_NONE, HZ_F16, 0, 0, "lattice_encode_d4q2",
	 "lattice_decode_d4_f16"},
	/* Groups are decoded like other blocks, unless rows do not consist of whole groups. */
	{HZ_LATTICE_E8, 0, 4, 2, HZ_LATTICE_GROUP, HZ_F16, 0, 0, "lattice_encode_groups_e8q4",
	 "lattice_decode_e8q4_f16"},
	{HZ_LATTICE_D, 0, 4, 2, HZ_LATTICE_GROUP, HZ_BF16, 0, 0, "lattice_encode_groups_d4q4",
	 "lattice_decode_d4"},
	{HZ_LATTICE_E8, 0, 14, 1, HZ_LATTICE_GROUP, HZ_F16, 0, 0, "lattice_encode_e8",
	 "lattice_decode_e8"},
	{HZ_LATTICE_D, 0, 3, 2, HZ_LATTICE_T, HZ_F16, 0, 0, "lattice_encode_d4",
	 "lattice_decode_d4_f16"},
	/* Three levels of E8 with q = 4 do not fit bytes; nor do four of D4. */
	{HZ_LATTICE_E8, 0, 4, 3, HZ_LATTICE_NONE, HZ_F16, 0, 0, "lattice_encode_e8",
	 "lattice_decode_e8"},
	{HZ_LATTICE_E8, 0, 4, 3, HZ_LATTICE_T, HZ_F16, 0, 0, "lattice_encode_e8",
	 "lattice_decode_e8"},
	{HZ_LATTICE_D, 0, 4, 4, HZ_LATTICE_NONE, HZ_F16, 0, 0, "lattice_encode_d4",
	 "lattice_decode_d4"},
	{HZ_LATTICE_A2, 0, 4, 2, HZ_LATTICE_NONE, HZ_F16, 0, 0, "lattice_encode_a2",
	 "lattice_decode_a2"},
	{HZ_LATTICE_Z, 1, 16, 1, HZ_LATTICE_GROUP, HZ_F32, 0, 0, "lattice_encode_z1",
	 "lattice_decode_z1"},
	{HZ_LATTICE_D, 8, 4, 2, HZ_LATTICE_CLIP, HZ_F16, 0, 0, "lattice_encode_d8",
	 "lattice_decode_d8"},
	/* Rows that are not contiguous, or unaligned values */
	{HZ_LATTICE_E8, 0, 4, 2, HZ_LATTICE_NONE, HZ_F16, 8, 0, "lattice_encode_e8",
	 "lattice_decode_e8"},
	{HZ_LATTICE_E8, 0, 4, 2, HZ_LATTICE_NONE, HZ_F16, 0, 2, "lattice_encode_e8",
	 "lattice_decode_e8"},
	/* Lattices without a kernel of their own use the generic one. */
	{HZ_LATTICE_D, 16, 4, 1, HZ_LATTICE_T, HZ_F16, 0, 0, "lattice_encode_generic",
	 "lattice_decode_generic"},
	{HZ_LATTICE_Z, 5, 4, 2, HZ_LATTICE_CLIP, HZ_F16, 0, 0, "lattice_encode_generic",
	 "lattice_decode_generic"},
	{HZ_LATTICE_Z, 1, 2, 9, HZ_LATTICE_NONE, HZ_F16, 0, 0, "lattice_encode_generic",
	 "lattice_decode_generic"},
};

static hz_lattice *new_lattice(hz_context *ctx, const hz_lattice_opts *o)
{
	hz_lattice *l;

	if (open_lattice(ctx, &l, o) != HZ_OK)
		bail("a lattice: %s", hz_errmsg(ctx));
	return l;
}

static void test_row(hz_context *ctx, int device, const struct row *r)
{
	const hz_lattice_opts o = {.kind = r->kind, .dim = r->dim, .q = r->q, .levels = r->levels,
				   .policy = r->policy,
				   .group = r->policy == HZ_LATTICE_GROUP ? 32 : 0};
	hz_lattice *l = new_lattice(ctx, &o);
	hz_lattice_info info;
	hz_tensor values, c, scales;
	char name[96];

	hz_lattice_get_info(l, &info);
	snprintf(name, sizeof(name),
		 "lattice %d, q %d, %d levels, policy %d, dtype %d, gap %d, %d aside", r->kind,
		 r->q, r->levels, r->policy, r->dtype, r->gap, r->shift);
	values = hz_tensor_2d(x + r->shift, r->dtype, device, 4, BLOCKS * info.dim);
	values.stride[0] += r->gap;
	c = hz_tensor_3d(codes, info.level_dtype, device, 4, BLOCKS, r->levels);
	scales = hz_tensor_2d(t, HZ_U8, device, 4, info.group ? (BLOCKS * info.dim + 31) / 32 :
			      BLOCKS);
	is_int(hz_lattice_encode(ctx, l, &values, &c, info.scales ? &scales : NULL, NULL, NULL),
	       HZ_OK, "%s: encodes", name);
	is_str(last()->kernel, r->encode, "%s: the kernel", name);
	is_int(hz_lattice_decode(ctx, l, &c, info.scales ? &scales : NULL, &values, NULL), HZ_OK,
	       "%s: decodes", name);
	is_str(last()->kernel, r->decode, "%s: the kernel back", name);
	hz_lattice_close(l);
}

/*
 * A basis has matrices. Decoding to points, and repacking of levels that are not one number, are
 * generic.
 */
static void test_others(hz_context *ctx, int device)
{
	static const double basis[4] = {1, 0.5, 0, 1};
	const hz_lattice_opts o = {.kind = HZ_LATTICE_BASIS, .dim = 2, .q = 4, .levels = 2,
				   .basis = basis};
	const hz_lattice_opts e8 = {.kind = HZ_LATTICE_E8, .q = 4, .levels = 2};
	const hz_lattice_opts z20 = {.kind = HZ_LATTICE_Z, .dim = 20, .q = 4, .levels = 1};
	const hz_lattice_code_opts points = {.to = HZ_LATTICE_POINTS};
	const hz_lattice_code_opts whole = {.pack = HZ_LATTICE_FULL64};
	hz_tensor values = hz_tensor_1d(x, HZ_F32, device, 2 * BLOCKS);
	hz_tensor c = hz_tensor_2d(codes, HZ_U8, device, BLOCKS, 2);
	hz_tensor c8 = hz_tensor_2d(codes, HZ_U16, device, BLOCKS, 2);
	hz_tensor full = hz_tensor_1d(x, HZ_U64, device, BLOCKS);
	const hz_tensor limbs = hz_tensor_2d(codes, HZ_U32, device, BLOCKS, 2);
	hz_tensor floats = hz_tensor_1d(t, HZ_F32, device, 8 * BLOCKS);
	hz_tensor integers = hz_tensor_2d(x, HZ_S8, device, BLOCKS, 8);
	hz_lattice *l = new_lattice(ctx, &o);

	is_int(hz_lattice_encode(ctx, l, &values, &c, NULL, NULL, NULL), HZ_OK, "a basis: encodes");
	is_str(last()->kernel, "lattice_encode_generic_basis", "a basis: the kernel");
	is_int(hz_lattice_decode(ctx, l, &c, NULL, &values, NULL), HZ_OK, "a basis: decodes");
	is_str(last()->kernel, "lattice_decode_generic_basis", "a basis: the kernel back");
	hz_lattice_close(l);
	l = new_lattice(ctx, &e8);
	is_int(hz_lattice_repack(ctx, l, &c8, &full, HZ_LATTICE_LEVEL, HZ_LATTICE_FULL64), HZ_OK,
	       "repacking");
	is_str(last()->kernel, "lattice_repack_u32_levels", "repacking: the kernel");
	is_int(hz_lattice_decode(ctx, l, &full, NULL, &floats, &whole), HZ_OK, "levels in 64 bits");
	is_str(last()->kernel, "lattice_decode_e8q4_f32", "levels in 64 bits: the kernel");
	is_int(hz_lattice_decode(ctx, l, &c8, NULL, &integers, &points), HZ_OK, "points");
	is_str(last()->kernel, "lattice_decode_generic", "points: the kernel");
	hz_lattice_close(l);
	l = new_lattice(ctx, &z20);
	is_int(hz_lattice_repack(ctx, l, &limbs, &full, HZ_LATTICE_LIMBS, HZ_LATTICE_FULL64), HZ_OK,
	       "repacking of 40 bits");
	is_str(last()->kernel, "lattice_repack_generic", "repacking of 40 bits: the kernel");
	hz_lattice_close(l);
}

/*
 * Contiguous codes, successive calls: each kernel uses PDL, also if blocks are counted, since a
 * kernel clears the counts. The generic kernel does not.
 */
static void test_early(hz_context *ctx, int device)
{
	const hz_lattice_opts e8 = {.kind = HZ_LATTICE_E8, .q = 4, .levels = 2};
	const hz_lattice_opts e8_q3 = {.kind = HZ_LATTICE_E8, .q = 3, .levels = 2};
	const hz_lattice_opts z5 = {.kind = HZ_LATTICE_Z, .dim = 5, .q = 3, .levels = 2};
	hz_tensor values = hz_tensor_1d(x, HZ_F16, device, 8 * BLOCKS);
	hz_tensor c = hz_tensor_2d(codes, HZ_U16, device, BLOCKS, 2);
	const hz_tensor fives = hz_tensor_1d(x, HZ_F16, device, 5 * BLOCKS);
	hz_tensor c5 = hz_tensor_2d(codes, HZ_U8, device, BLOCKS, 2);
	hz_tensor counts = hz_tensor_1d(t, HZ_S64, device, 2);
	hz_lattice *l = new_lattice(ctx, &e8);

	taken();
	for (int i = 0; i < 2; i++) {
		is_int(hz_lattice_encode(ctx, l, &values, &c, NULL, &counts, NULL), HZ_OK,
		       "call %d: encodes and counts", i);
		is_str(taken(), "lattice_clear_counts lattice_encode_e8q4", "call %d: the kernels",
		       i);
		is_int(fake->launch(fake->launches() - 2)->early, i, "call %d: clears early", i);
		is_int(last()->early, 1, "call %d: encodes early", i);
		is_int(hz_lattice_decode(ctx, l, &c, NULL, &values, NULL), HZ_OK,
		       "call %d: decodes", i);
		is_str(taken(), "lattice_decode_e8q4_f16", "call %d: the kernel back", i);
		is_int(last()->early, 1, "call %d: decodes early", i);
	}
	hz_lattice_close(l);
	l = new_lattice(ctx, &e8_q3);
	is_int(hz_lattice_encode(ctx, l, &values, &c, NULL, &counts, NULL), HZ_OK,
	       "q 3: encodes and counts");
	is_str(taken(), "lattice_clear_counts lattice_encode_e8", "q 3: the kernels");
	is_int(last()->early, 1, "q 3: early too");
	hz_lattice_close(l);
	l = new_lattice(ctx, &z5);
	is_int(hz_lattice_encode(ctx, l, &fives, &c5, NULL, &counts, NULL), HZ_OK,
	       "Z^5: encodes and counts");
	is_str(taken(), "lattice_encode_generic", "Z^5: the kernel");
	is_int(last()->early, 0, "Z^5: after all that is ahead");
	hz_lattice_close(l);
}

int main(void)
{
	const int device = HZ_CUDA;
	char **const arrays[] = {&x, &codes, &t};
	hz_context *ctx;

	stand_in_load(false);
	ctx = stand_in_open(device, arrays, 3, OPERAND_BYTES, 0);
	for (size_t i = 0; i < sizeof(rows) / sizeof(*rows); i++)
		test_row(ctx, device, &rows[i]);
	test_others(ctx, device);
	test_early(ctx, device);
	stand_in_close(ctx, device, arrays, 3);
	return done_testing();
}

#endif
