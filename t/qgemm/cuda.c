/*
 * cuda.c - launches of quantized products and of quantization on the stand-in driver
 *
 * SPDX-License-Identifier: BSD-2-Clause
 *
 * Nothing is computed: the tests check which kernels a call launches, and that the driver accepts
 * the launches. The tests of the families with HZ_TEST_DEVICE=cuda check results.
 */
#include <config.h>

#include "t/core/cuda_calls.h"
#include "t/core/record.h"

#if HZ_HAVE_CUDA

#define OPERAND_BYTES ((size_t)1 << 27)

static char *a, *b, *c, *blob;

/* The last kernel of a product, on a GPU with wgmma and on any other */
static const struct row {
	int64_t m, n, k;
	const char *hopper, *other;
} table[] = {
	{1, 4096, 4096, "qgemm_skinny_8_u8", "qgemm_mma_sync_u8"},
	{9, 100, 4096, "qgemm_skinny_16_u8", "qgemm_mma_sync_u8"},
	{32, 64, 48, "qgemm_skinny_32_u8", "qgemm_mma_sync_u8"},
	{64, 4096, 4096, "qgemm_skinny_64_u8", "qgemm_mma_sync_u8"},
	{65, 100, 208, "qgemm_skinny_64_u8", "qgemm_mma_sync_u8"},
	{1024, 1024, 1024, "qgemm_wgmma_128x64_u8", "qgemm_mma_sync_u8"},
	{2048, 2048, 2048, "qgemm_wgmma_128x256_u8", "qgemm_mma_sync_u8"},
	{4096, 4096, 4096, "qgemm_wgmma_128x256_u8", "qgemm_mma_sync_u8"},
	{512, 4096, 4096, "qgemm_wgmma_128x128_u8", "qgemm_mma_sync_u8"},
	{128, 11008, 4096, "qgemm_wgmma_128x96_u8", "qgemm_mma_sync_u8"},
	{256, 11008, 4096, "qgemm_wgmma_128x192_u8", "qgemm_mma_sync_u8"},
	/* A is aligned first */
	{256, 11000, 4090, "qgemm_wgmma_128x192_u8", "qgemm_mma_sync_u8"},
	{512, 8448, 8192, "qgemm_wgmma_128x256_u8", "qgemm_mma_sync_u8"},
	/* As test_wide() of qgemm.c */
	{100, 9008, 129, "qgemm_wgmma_128x96_u8", "qgemm_mma_sync_u8"},
	{90, 12000, 100, "qgemm_wgmma_128x128_c1_u8", "qgemm_mma_sync_u8"},
	{300, 4200, 130, "qgemm_wgmma_128x128_u8", "qgemm_mma_sync_u8"},
	{140, 12000, 200, "qgemm_wgmma_128x192_u8", "qgemm_mma_sync_u8"},
	{130, 16496, 70, "qgemm_wgmma_128x256_u8", "qgemm_mma_sync_u8"},
	{2700, 3000, 260, "qgemm_wgmma_128x256_u8", "qgemm_mma_sync_u8"},
	{2700, 3000, 130, "qgemm_wgmma_128x256_u8", "qgemm_mma_sync_u8"},
	{7, 9, 0, "qgemm_mma_sync_u8", "qgemm_mma_sync_u8"},
	/* Sums exceed 32 bits, but those of a share of k do not; with 100 rows k is not split. */
	{7, 9, 80000, "qgemm_skinny_8_u8", "qgemm_mma_sync_sum64_u8"},
	{7, 9, 262145, "qgemm_mma_sync_sum64_u8", "qgemm_mma_sync_sum64_u8"},
	{100, 9, 80000, "qgemm_mma_sync_sum64_u8", "qgemm_mma_sync_sum64_u8"},
	/* 100 rows more than the largest grid of blocks of 64 */
	{4194340, 9, 80000, "qgemm_mma_sync_sum64_u8", "qgemm_mma_sync_sum64_u8"},
	/* Few tiles: k is split */
	{128, 128, 16384, "qgemm_skinny_64_u8", "qgemm_mma_sync_u8"},
	{512, 512, 4096, "qgemm_skinny_64_u8", "qgemm_mma_sync_u8"},
};

static void test_row(hz_context *ctx, int device, const struct row *r, const char *kernel)
{
	const hz_tensor x = hz_tensor_2d(a, HZ_U8, device, r->m, r->k);
	const hz_tensor w = hz_tensor_2d(b, HZ_S8, device, r->k, r->n);
	hz_tensor y = hz_tensor_2d(c, HZ_U8, device, r->m, r->n);
	hz_qgemm_opts o = {.a_zero = 3, .multiplier = 1 << 30, .shift = 40};
	const struct fakecuda_launch *l;
	hz_packed packed;
	size_t bytes = 0;
	char name[128];

	snprintf(name, sizeof(name), "%lld x %lld x %lld", (long long)r->m, (long long)r->n,
		 (long long)r->k);
	is_int(hz_qgemm(ctx, &x, &w, &y, &o), HZ_OK, "%s", name);
	l = last();
	is_str(l->kernel, kernel, "%s: the kernel", name);
	is_int(l->early, 0, "%s: B was packed by the previous kernel", name);
	hz_qgemm_pack_bytes(ctx, &w, &bytes);
	is_int(hz_qgemm_pack(ctx, &w, blob, bytes, &packed), HZ_OK, "%s: packs", name);
	o.packed = &packed;
	for (int i = 0; i < 2; i++) {
		/* If not, a kernel that aligns A comes before. */
		const int early = i && l->params_bytes == 0 && r->k % 16 == 0;

		is_int(hz_qgemm(ctx, &x, NULL, &y, &o), HZ_OK, "%s, packed", name);
		l = last();
		is_str(l->kernel, kernel, "%s, packed: the kernel", name);
		is_int(l->early, early, "%s, packed: beside the previous kernel", name);
	}
}

/* A linear layer of up to 2 rows is one launch; more rows are quantized first. */
static void test_linear(hz_context *ctx, int device, const char *product)
{
	const hz_tensor w = hz_tensor_2d(b, HZ_S8, device, 4096, 256);
	hz_packed packed;
	const hz_qgemm_opts o = {.packed = &packed};
	size_t bytes = 0;

	hz_qgemm_pack_bytes(ctx, &w, &bytes);
	is_int(hz_qgemm_pack(ctx, &w, blob, bytes, &packed), HZ_OK, "weights are packed");
	for (int m = 1; m <= 3; m++) {
		const hz_tensor x = hz_tensor_2d(a, HZ_F16, device, m, 4096);
		hz_tensor y = hz_tensor_2d(c, HZ_F16, device, m, 256);
		const int before = fake->launches();

		is_int(hz_qlinear(ctx, &x, NULL, &y, &o), HZ_OK, "a linear layer, %d rows", m);
		is_int(fake->launches() - before, m < 3 ? 1 : 2, "%d rows: launches", m);
		is_str(fake->launch(before)->kernel, m < 3 ? "qlinear_gemv" : "quantize_rows_f16",
		       "%d rows: the first kernel", m);
		is_str(last()->kernel, m < 3 ? "qlinear_gemv" : product, "%d rows: the last", m);
	}
}

#define Q(kernel) "hadamard_quantize_static_" kernel
#define BASE_Q(kernel) "hadamard_base_mma_quantize_" kernel
#define BASE_D(kernel) "hadamard_base_mma_dequantize_" kernel

/* Quantization and dequantization with a transform: one launch, or two for each 2^22 values */
static const struct rotated {
	int dtype, rows, n, block, columns;	/* columns: a scale for each */
	const char *first, *last;
	int launches;
	const char *back;		/* the last kernel of dequantization */
	int back_launches;
	int order;			/* of a base matrix */
} rotated[] = {
	{HZ_BF16, 5, 4096, 0, 0, Q("bf16_12"), Q("bf16_12"), 1, "hadamard_dequantize_12", 1, 0},
	{HZ_F16, 7, 384, 128, 0, Q("f16_7"), Q("f16_7"), 1, NULL, 2, 0},
	{HZ_F16, 7, 512, 128, 0, Q("f16_7"), Q("f16_7"), 1, "hadamard_dequantize_7", 1, 0},
	{HZ_F32, 8, 4096, 0, 0, Q("f32_12"), Q("f32_12"), 1, NULL, 2, 0},
	{HZ_F32, 9, 384, 128, 0, Q("f32_10"), Q("f32_10"), 1, NULL, 2, 0},
	{HZ_BF16, 8, 768, 0, 0, BASE_Q("bf16_m12_6"), BASE_Q("bf16_m12_6"), 1,
	 BASE_D("bf16_m12_6"), 1, 12},
	{HZ_F16, 5, 5120, 0, 0, BASE_Q("f16_m20_8"), BASE_Q("f16_m20_8"), 1, BASE_D("f16_m20_8"), 1,
	 20},
	{HZ_BF16, 4, 24576, 0, 0, BASE_Q("bf16_m12_11"), BASE_Q("bf16_m12_11"), 1,
	 BASE_D("bf16_m12_11"), 1, 12},
	{HZ_BF16, 4, 10240, 5120, 0, BASE_Q("bf16_m20_8"), BASE_Q("bf16_m20_8"), 1,
	 BASE_D("bf16_m20_8"), 1, 20},
	{HZ_F32, 313, 32768, 0, 0, NULL, "quantize_contiguous_f32", 6, NULL, 6, 0},
	{HZ_BF16, 8, 4096, 0, 1, NULL, "quantize_strided_f32", 2, NULL, 2, 0},
	{HZ_F16, 8, 96, 0, 0, NULL, "quantize_contiguous_f32", 2, NULL, 2, 0},
};

static void test_rotated(hz_context *ctx, int device, const struct rotated *r)
{
	hz_tensor x = hz_tensor_2d(a, r->dtype, device, r->rows, r->n);
	hz_tensor q = hz_tensor_2d(c, HZ_S8, device, r->rows, r->n);
	hz_tensor scales = hz_tensor_2d(b, HZ_F32, device, r->columns ? 1 : r->rows,
					      r->columns ? r->n : 1);
	const hz_hadamard_opts h = {.block = r->block,
				    .plan = r->order ? HZ_PLAN_TRUE : HZ_PLAN_AUTO,
				    .order = r->order};
	const hz_quantize_opts o = {.scales = &scales, .hadamard = &h};
	int before = fake->launches();
	size_t bytes = 0;

	is_int(RECORD(ctx, hz_quantize(ctx, &x, &q, &o), &bytes), HZ_OK,
	       "%d x %d: its workspace", r->rows, r->n);
	ok(bytes <= (size_t)1 << 24, "%d x %d: which is small", r->rows, r->n);
	is_int(hz_quantize(ctx, &x, &q, &o), HZ_OK, "%d x %d to codes", r->rows, r->n);
	is_int(fake->launches() - before, r->launches, "%d x %d: launches", r->rows, r->n);
	if (r->first)
		is_str(fake->launch(before)->kernel, r->first, "%d x %d: first", r->rows, r->n);
	is_str(last()->kernel, r->last, "%d x %d: last", r->rows, r->n);
	before = fake->launches();
	is_int(hz_dequantize(ctx, &q, &x, &o), HZ_OK, "%d x %d back", r->rows, r->n);
	is_int(fake->launches() - before, r->back_launches, "%d x %d back: launches", r->rows,
	       r->n);
	if (r->back)
		is_str(fake->launch(before)->kernel, r->back, "%d x %d back: the kernel", r->rows,
		       r->n);
}

/* One scale; zero points per row; scales per column, for which the transform writes f32 */
static void test_base_back(hz_context *ctx, int device)
{
	hz_tensor x = hz_tensor_2d(a, HZ_BF16, device, 6, 14336);
	hz_tensor q = hz_tensor_2d(c, HZ_U8, device, 6, 14336);
	const hz_hadamard_opts h = {.plan = HZ_PLAN_TRUE, .order = 28};
	hz_tensor scales = hz_tensor_2d(b, HZ_F32, device, 6, 1);
	hz_tensor zeros = hz_tensor_2d((char *)b + 64, HZ_U8, device, 6, 1);
	const hz_tensor columns = hz_tensor_2d(b, HZ_F32, device, 1, 14336);
	const hz_quantize_opts o[] = {
		{.scale = 0.5, .zero = 3, .hadamard = &h},
		{.scales = &scales, .zeros = &zeros, .hadamard = &h},
		{.scales = &columns, .hadamard = &h},
	};
	static const int launches[] = {1, 1, 3};

	for (int i = 0; i < 3; i++) {
		const int before = fake->launches();
		size_t bytes = 0;

		is_int(RECORD(ctx, hz_dequantize(ctx, &q, &x, &o[i]), &bytes), HZ_OK,
		       "28 2^9 back, %d: its workspace", i);
		is_int(hz_reserve(ctx, bytes), HZ_OK, "28 2^9 back, %d: reserved", i);
		is_int(hz_dequantize(ctx, &q, &x, &o[i]), HZ_OK, "28 2^9 back, %d", i);
		is_int(fake->launches() - before, launches[i], "28 2^9 back, %d: launches", i);
		if (launches[i] == 1)
			is_str(last()->kernel, "hadamard_base_mma_dequantize_bf16_m28_9",
			       "28 2^9 back, %d: the kernel", i);
	}
}

/*
 * choose_qparams of columns takes one launch on GPUs with clusters, except for few columns of many
 * rows, and for many columns that are not whole 16-byte vectors. Expected: blocks, threads, blocks
 * per cluster.
 */
static void test_columns(hz_context *ctx, int device)
{
	static const struct {
		int dtype, rows, columns;
		unsigned grid, block, cluster;
	} t[] = {
		{HZ_F32, 16384, 4096, 256, 256, 2},  {HZ_BF16, 16384, 4096, 256, 256, 4},
		{HZ_BF16, 65536, 1024, 128, 512, 8}, {HZ_F32, 4096, 16384, 256, 256, 0},
		{HZ_F16, 4096, 11008, 172, 256, 0},  {HZ_BF16, 40, 4096, 64, 512, 0},
		{HZ_F32, 300, 4095, 256, 256, 2},    {HZ_F16, 900, 7, 4, 512, 4},
		{HZ_F32, 128, 40000, 313, 256, 0},
		{HZ_F32, 1000000, 64, 0, 0, 0},      {HZ_F32, 16384, 4095, 0, 0, 0},
	};

	for (size_t i = 0; i < sizeof(t) / sizeof(*t); i++) {
		const hz_tensor x = hz_tensor_2d(a, t[i].dtype, device, t[i].rows, t[i].columns);
		hz_tensor zeros = hz_tensor_2d(c, HZ_U8, device, 1, t[i].columns);
		hz_tensor scales = hz_tensor_2d(b, HZ_F32, device, 1, t[i].columns);
		const int before = fake->launches();
		const struct fakecuda_launch *l;
		char name[64];

		snprintf(name, sizeof(name), "ranges of %d x %d", t[i].rows, t[i].columns);
		is_int(hz_choose_qparams(ctx, &x, &scales, &zeros, 0), HZ_OK, "%s", name);
		l = last();
		if (device != HZ_CUDA || !t[i].grid) {
			is_int(fake->launches() - before, 2, "%s: launches", name);
			is_str(l->kernel, "quantize_minmax_qparams", "%s: the last", name);
			continue;
		}
		is_int(fake->launches() - before, 1, "%s: launches", name);
		ok(!strncmp(l->kernel, "quantize_minmax_cluster_", 24), "%s: the kernel", name);
		is_int(l->grid[0], t[i].grid, "%s: blocks", name);
		is_int(l->block[0], t[i].block, "%s: threads", name);
		is_int(l->cluster, t[i].cluster, "%s: of a cluster", name);
	}
}

/* Contiguous groups with successive parameters are one launch. */
static void test_ranges(hz_context *ctx, int device)
{
	const hz_tensor x = hz_tensor_2d(a, HZ_BF16, device, 4096, 4096);
	hz_tensor zeros = hz_tensor_2d(c, HZ_U8, device, 4096, 64);
	hz_tensor scales = hz_tensor_2d(b, HZ_F32, device, 4096, 64);
	const int before = fake->launches();
	size_t bytes = 0;

	is_int(hz_choose_qparams(ctx, &x, &scales, &zeros, 0), HZ_OK, "ranges of groups");
	is_int(fake->launches() - before, 1, "ranges of groups: launches");
	is_str(last()->kernel, "quantize_minmax_groups_bf16", "ranges of groups: the kernel");

	/* Zero points that the caller does not want are in the workspace. */
	is_int(RECORD(ctx, hz_choose_qparams(ctx, &x, &scales, NULL, HZ_QPARAMS_SYMMETRIC), &bytes),
	       HZ_OK, "no zero points: the workspace");
	ok(bytes >= 4096 * 64, "no zero points: a byte for each scale");
	is_int(hz_reserve(ctx, bytes), HZ_OK, "no zero points: reserved");
	is_int(hz_choose_qparams(ctx, &x, &scales, NULL, HZ_QPARAMS_SYMMETRIC), HZ_OK,
	       "no zero points");
	is_int(fake->launches() - before, 2, "no zero points: launches");
}

/* Small items share one launch for packing and one for products; on Hopper, large items do not. */
static void test_batch(hz_context *ctx, int device, int hopper)
{
	hz_tensor x = hz_tensor_3d(a, HZ_U8, device, 5, 16, 32);
	hz_tensor w = hz_tensor_3d(b, HZ_S8, device, 5, 32, 64);
	hz_tensor y = hz_tensor_3d(c, HZ_U8, device, 5, 16, 64);
	const hz_qgemm_opts o = {.a_zero = 3, .multiplier = 1 << 30, .shift = 40};
	int before = fake->launches();

	is_int(hz_qgemm(ctx, &x, &w, &y, &o), HZ_OK, "a batch of small items");
	is_int(fake->launches() - before, 2, "a batch of small items: launches");
	is_str(last()->kernel, "qgemm_mma_sync_batch_u8", "a batch of small items: the kernel");
	x = hz_tensor_3d(a, HZ_U8, device, 2, 1024, 2048);
	w = hz_tensor_3d(b, HZ_S8, device, 2, 2048, 2048);
	y = hz_tensor_3d(c, HZ_U8, device, 2, 1024, 2048);
	before = fake->launches();
	is_int(hz_qgemm(ctx, &x, &w, &y, &o), HZ_OK, "a batch of large items");
	is_int(fake->launches() - before, hopper ? 4 : 2, "a batch of large items: launches");
}

/*
 * The largest number of columns that fits 32 bits before padding. Nothing is at these addresses,
 * and nothing accesses them.
 */
static void test_columns_most(hz_context *ctx, int device)
{
	char *const far = (char *)((uintptr_t)1 << 44);
	const int64_t n = (int64_t)INT32_MAX - 100;
	const hz_tensor x = hz_tensor_2d(a, HZ_U8, device, 1, 0);
	const hz_tensor w = hz_tensor_2d(b, HZ_S8, device, 0, n);
	hz_tensor y = hz_tensor_2d(far, HZ_U8, device, 1, n);
	const hz_qgemm_opts o = {.a_zero = 3, .multiplier = 1 << 30, .shift = 40};
	const long before = fake->launches();

	is_int(hz_set_workspace(ctx, far + ((size_t)1 << 40), (size_t)1 << 40), HZ_OK,
	       "a large workspace");
	is_int(hz_qgemm(ctx, &x, &w, &y, &o), HZ_ENOTSUP, "too many columns");
	is_int(fake->launches(), before, "too many columns: nothing is launched");
	is_int(hz_set_workspace(ctx, NULL, 0), HZ_OK, "the own one again");
}

static void test_gpu(int device, int hopper)
{
	char **const arrays[] = {&a, &b, &c, &blob};
	hz_context *ctx = stand_in_open(device, arrays, 4, OPERAND_BYTES, 2 * OPERAND_BYTES);

	for (size_t i = 0; i < sizeof(table) / sizeof(*table); i++)
		test_row(ctx, device, &table[i], hopper ? table[i].hopper : table[i].other);
	test_batch(ctx, device, hopper);
	test_columns_most(ctx, device);
	for (size_t i = 0; i < sizeof(rotated) / sizeof(*rotated); i++)
		test_rotated(ctx, device, &rotated[i]);
	test_base_back(ctx, device);
	test_ranges(ctx, device);
	test_columns(ctx, device);
	test_linear(ctx, device, hopper ? "qgemm_skinny_8_u8" : "qgemm_mma_sync_u8");
	stand_in_close(ctx, device, arrays, 4);
}

static void test_all(void)
{
	/* GPUs 0 and 1: a Hopper and another */
	stand_in_load(true);
	test_gpu(HZ_CUDA, HZ_CUDA_90A);
	test_gpu(HZ_CUDA + 1, 0);
}

int main(void)
{
	stand_in_few(test_all);
	test_all();
	return done_testing();
}

#endif
