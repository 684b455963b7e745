/*
 * cuda.c - launches of quaternion calls on the stand-in driver
 *
 * SPDX-License-Identifier: BSD-2-Clause
 *
 * Nothing is computed: the tests see which kernels are launched, and that the driver accepts the
 * launches. Results are for the tests of the calls with HZ_TEST_DEVICE=cuda.
 */
#include <config.h>

#include "t/core/cuda_calls.h"
#include "t/core/record.h"
#include "gpu/quat_conv/launch.h"
#include "gpu/quat_gemm/gemv.h"

#if HZ_HAVE_CUDA

#define OPERAND_BYTES ((size_t)1 << 27)

static hz_context *ctx;
static char *a, *b, *c, *d;

/* ---- Elementwise ----------------------------------------------------------------------------- */

static hz_tensor quats(void *data, int dtype, int64_t n)
{
	return hz_tensor_2d(data, dtype, HZ_CUDA, n, 4);
}

static hz_tensor planes(void *data, int dtype, int64_t n)
{
	hz_tensor t = quats(data, dtype, n);

	t.stride[0] = 1;
	t.stride[1] = n;
	return t;
}

static void test_elementwise(void)
{
	hz_tensor x = quats(a, HZ_F32, 1000), y = quats(b, HZ_F32, 1000);
	hz_tensor z = quats(c, HZ_F32, 1000), one = quats(b, HZ_F32, 1);
	hz_tensor h = quats(a, HZ_BF16, 1001), g = quats(b, HZ_BF16, 1001);
	const hz_tensor odd = quats(a + 8, HZ_BF16, 1001), skew = quats(a + 4, HZ_F32, 1000);
	hz_tensor p = planes(a, HZ_F16, 1000), q = quats(c, HZ_F16, 1000);
	hz_tensor norms = hz_tensor_1d(c, HZ_F32, HZ_CUDA, 1000);
	const hz_tensor v = hz_tensor_2d(b, HZ_F32, HZ_CUDA, 1000, 3);
	hz_tensor w = hz_tensor_2d(c, HZ_F32, HZ_CUDA, 1000, 3);
	const hz_tensor rows = hz_tensor_3d(a, HZ_F32, HZ_CUDA, 50, 1024, 4);
	const hz_tensor row = hz_tensor_3d(b, HZ_F32, HZ_CUDA, 1, 1024, 4);
	hz_tensor out = hz_tensor_3d(c, HZ_F32, HZ_CUDA, 50, 1024, 4);
	const double alpha[4] = {1, 2, 3, 4};

	is_int(hz_quat_mul(ctx, &x, &y, &z, 0), HZ_OK, "mul");
	is_str(taken(), "quat_mul_contiguous_f32", "mul of whole quaternions in f32");
	is_int(fake->launch(fake->launches() - 1)->grid[0], 1, "one block for 1000 of them");
	hz_quat_mul(ctx, &x, &one, &z, 0);
	is_str(taken(), "quat_mul_contiguous_f32", "mul by one quaternion");
	hz_quat_mul(ctx, &h, &g, &g, 0);
	is_str(taken(), "quat_mul_contiguous_bf16", "mul in bf16");
	hz_quat_mul(ctx, &odd, &g, &g, 0);
	is_str(taken(), "quat_mul_strided", "mul in bf16 of pairs that are not aligned");
	hz_quat_mul(ctx, &skew, &y, &z, 0);
	is_str(taken(), "quat_mul_strided", "mul in f32 of quaternions that are not aligned");
	hz_quat_mul(ctx, &p, &p, &q, 0);
	is_str(taken(), "quat_mul_planar_f16", "mul of planes");
	is_int(fake->launch(fake->launches() - 1)->grid[0], 1, "one block for 1000 of them");
	hz_quat_mul(ctx, &h, &g, &g, HZ_QUAT_XYZW);
	is_str(taken(), "quat_mul_contiguous_bf16", "mul in bf16 of x, y, z, w");
	hz_quat_mul(ctx, &p, &q, &q, HZ_QUAT_XYZW);
	is_str(taken(), "quat_mul_planar_f16", "mul of planes by x, y, z, w");
	hz_quat_mul(ctx, &rows, &row, &out, 0);
	is_str(taken(), "quat_mul_contiguous_f32", "mul of rows by one row");
	is_int(fake->launch(fake->launches() - 1)->grid[0], 50, "a block for each row");
	hz_quat_mul_bwd(ctx, &y, &y, &x, &z, NULL, 0);
	is_str(taken(), "quat_mul_contiguous_f32", "gradient of one factor, which is a product");
	hz_quat_mul_bwd(ctx, &rows, &row, &rows, NULL, &(hz_tensor){0}, 0);
	is_str(taken(), "", "a refused call starts nothing");
	hz_quat_axpy(ctx, alpha, &x, &y, 0);
	is_str(taken(), "quat_axpy_contiguous_f32", "axpy");
	hz_quat_to_axis_angle(ctx, &x, &w, 0);
	is_str(taken(), "quat_to_axis_angle", "rotation vectors");
	is_int(fake->launch(fake->launches() - 1)->grid[0], 4, "four blocks for 1000 of them");
	hz_quat_slerp(ctx, &x, &one, &norms, &x, 0);
	is_str(taken(), "quat_slerp", "slerp to one quaternion");
	hz_quat_conj(ctx, &x, &y, 0);
	hz_quat_inverse(ctx, &x, &y, 0);
	hz_quat_normalize(ctx, &x, &y, 0, 0);
	is_str(taken(), "quat_map_contiguous_f32 quat_map_contiguous_f32 quat_map_contiguous_f32",
	       "conj, inverse, normalize");
	hz_quat_conj(ctx, &x, &y, HZ_QUAT_XYZW);
	hz_quat_norm(ctx, &x, &norms, HZ_QUAT_XYZW);
	hz_quat_rotate(ctx, &x, &y, &z, HZ_QUAT_XYZW);
	is_str(taken(), "quat_map_contiguous_f32 quat_norm_contiguous_f32 "
	       "quat_rotate_contiguous_f32", "of x, y, z, w");
	hz_quat_norm(ctx, &x, &norms, 0);
	hz_quat_norm_bwd(ctx, &x, &norms, &y, 0);
	is_str(taken(), "quat_norm_contiguous_f32 quat_norm_bwd_contiguous_f32",
	       "norm and its gradient");
	hz_quat_inverse_bwd(ctx, &y, &x, &z, 0);
	is_str(taken(), "quat_map_bwd_contiguous_f32", "the gradient of inverse");
	hz_quat_rotate(ctx, &x, &v, &w, 0);
	is_str(taken(), "quat_rotate_contiguous_f32", "rotation of vectors of three");
}

static void test_sums(void)
{
	const hz_tensor x = quats(a, HZ_F32, 100000), y = quats(b, HZ_F32, 100000);
	hz_tensor s = hz_tensor_1d(c, HZ_F32, HZ_CUDA, 4);
	const hz_tensor few = quats(a, HZ_F32, 100), p = planes(b, HZ_F32, 100);
	const hz_tensor rows = hz_tensor_3d(a, HZ_F32, HZ_CUDA, 5000, 100, 4);
	const hz_tensor dy = hz_tensor_3d(d, HZ_F32, HZ_CUDA, 5000, 100, 4);
	const hz_tensor row = hz_tensor_3d(b, HZ_F32, HZ_CUDA, 1, 100, 4);
	hz_tensor drow = hz_tensor_3d(c, HZ_F32, HZ_CUDA, 1, 100, 4);
	const hz_tensor h = quats(a, HZ_BF16, 100001), g = quats(b, HZ_BF16, 100001);
	const hz_tensor odd = quats(a + 8, HZ_BF16, 100001);
	hz_tensor t = hz_tensor_1d(c, HZ_BF16, HZ_CUDA, 4);
	const struct fakecuda_launch *l;

	is_int(hz_quat_dot(ctx, &x, &y, &s, 0), HZ_OK, "dot");
	is_str(taken(), "quat_dot_contiguous_f32 quat_sum_finish",
	       "dot of many terms, in two steps");
	l = fake->launch(fake->launches() - 2);
	is_int(l->grid[0], 13, "a block for each 8192 terms");
	hz_quat_dot(ctx, &few, &p, &s, 0);
	is_str(taken(), "quat_dot_strided", "dot of few terms and any strides, in one step");
	hz_quat_dot(ctx, &h, &g, &t, 0);
	is_str(taken(), "quat_dot_pairs_bf16 quat_sum_finish", "dot of bf16, two in 16 bytes");
	l = fake->launch(fake->launches() - 2);
	is_int(l->block[0], 128, "with half the threads");
	is_int(fake->launch(fake->launches() - 1)->block[0], 256, "but for the sums of chunks");
	hz_quat_dot(ctx, &h, &g, &t, HZ_QUAT_XYZW);
	is_str(taken(), "quat_dot_pairs_bf16 quat_sum_finish", "of x, y, z, w");
	hz_quat_dot(ctx, &odd, &g, &t, 0);
	is_str(taken(), "quat_dot_contiguous_bf16 quat_sum_finish",
	       "dot of quaternions that are not aligned");
	is_int(hz_quat_mul_bwd(ctx, &rows, &row, &dy, NULL, &drow, 0), HZ_OK, "a summed gradient");
	is_str(taken(), "quat_dot_contiguous_f32 quat_sum_finish", "a gradient summed over rows");
	l = fake->launch(fake->launches() - 2);
	is_int(l->grid[0], 4 * 20, "32 sums side by side, blocks of 256 terms");
	is_int(hz_quat_rotate_bwd(ctx, &row, &rows, &dy, &drow, NULL, 0), HZ_OK,
	       "the gradient of one rotation of many vectors");
	is_str(taken(), "quat_rotate_sum quat_sum_finish", "in two steps");
}

/* Gradients of a broadcast rotation or factor, which are sums, fused with the elementwise ones */
static void test_fused_sum(void)
{
	const hz_tensor x = quats(a, HZ_BF16, 100000), dy = quats(b, HZ_BF16, 100000);
	hz_tensor dx = quats(c, HZ_BF16, 100000);
	hz_tensor q = quats(d, HZ_BF16, 1), dq = quats(d + 16, HZ_BF16, 1);
	hz_tensor few = x, dfew = dx;

	is_int(hz_quat_rotate_bwd(ctx, &q, &x, &dy, &dq, &dx, 0), HZ_OK, "both, of one rotation");
	is_str(taken(), "quat_rotate_fused_sum_bf16 quat_sum_finish", "in one pass");
	is_int(fake->launch(fake->launches() - 2)->grid[0], 13, "a block for each 8192");
	is_int(hz_quat_rotate_bwd(ctx, &q, &x, &dy, &dq, &dx, HZ_QUAT_XYZW), HZ_OK,
	       "of x, y, z, w");
	is_str(taken(), "quat_rotate_fused_sum_bf16 quat_sum_finish", "in one pass, too");
	is_int(hz_quat_mul_bwd(ctx, &x, &q, &dy, &dx, &dq, 0), HZ_OK, "of products with one");
	is_str(taken(), "quat_mul_fused_sum_bf16 quat_sum_finish", "in one pass");
	is_int(hz_quat_mul_bwd(ctx, &x, &q, &dy, NULL, &dq, 0), HZ_OK, "that of the one alone");
	is_str(taken(), "quat_dot_pairs_bf16 quat_sum_finish", "a sum");
	few.shape[0] = dfew.shape[0] = 100;
	is_int(hz_quat_rotate_bwd(ctx, &q, &few, &few, &dq, &dfew, 0), HZ_OK, "of few");
	is_str(taken(), "quat_rotate_bwd_contiguous_bf16 quat_rotate_sum", "one after the other");
	is_int(hz_quat_mul_bwd(ctx, &few, &q, &few, &dfew, &dq, 0), HZ_OK, "of few products");
	is_str(taken(), "quat_mul_contiguous_bf16 quat_dot_pairs_bf16", "one after the other");
}

/* ---- Products of matrices -------------------------------------------------------------------- */

/* precision F32: the same kernels on every GPU */
static const struct row {
	int64_t m, n, k;
	int dtype, op_a, method;
	const char *kernels;
} table[] = {
	{4096, 1, 4096, HZ_F32, HZ_QUAT_N, HZ_QUAT_DIRECT, "quat_gemv_rows_f32_1"},
	{4096, 2, 4096, HZ_F32, HZ_QUAT_C, HZ_QUAT_DIRECT, "quat_gemv_rows_f32_2"},
	{4096, 3, 4096, HZ_F32, HZ_QUAT_N, HZ_QUAT_FAST, "quat_gemv_rows_f32_4"},
	{4096, 8, 4096, HZ_F32, HZ_QUAT_N, HZ_QUAT_DIRECT, "quat_gemv_rows_f32_8"},
	{64, 1, 4096, HZ_F32, HZ_QUAT_N, HZ_QUAT_DIRECT, "quat_gemv_rows_f32_1 quat_gemv_finish"},
	{4096, 1, 4096, HZ_F32, HZ_QUAT_H, HZ_QUAT_DIRECT,
	 "quat_gemv_transposed_f32_1 quat_gemv_finish"},
	{4096, 5, 4096, HZ_BF16, HZ_QUAT_T, HZ_QUAT_DIRECT,
	 "quat_gemv_transposed_bf16_8 quat_gemv_finish"},
	{4096, 8, 4096, HZ_BF16, HZ_QUAT_N, HZ_QUAT_DIRECT, "quat_gemv_mma_bf16"},
	{4096, 1, 4096, HZ_F16, HZ_QUAT_N, HZ_QUAT_DIRECT, "quat_gemv_mma_f16"},
	{512, 1, 4096, HZ_F16, HZ_QUAT_N, HZ_QUAT_DIRECT, "quat_gemv_mma_f16 quat_gemv_finish"},
	{256, 1, 4096, HZ_F16, HZ_QUAT_N, HZ_QUAT_DIRECT, "quat_gemv_rows_f16_1 quat_gemv_finish"},
	{512, 3, 4096, HZ_BF16, HZ_QUAT_C, HZ_QUAT_DIRECT, "quat_gemv_mma_bf16 quat_gemv_finish"},
	{256, 2, 1024, HZ_BF16, HZ_QUAT_C, HZ_QUAT_DIRECT, "quat_gemv_rows_bf16_2"},
	{4096, 16, 4096, HZ_BF16, HZ_QUAT_N, HZ_QUAT_DIRECT, "quat_gemv_mma16_bf16"},
	{1024, 9, 1024, HZ_BF16, HZ_QUAT_C, HZ_QUAT_FAST, "quat_gemv_mma16_bf16 quat_gemv_finish"},
	{1024, 64, 1024, HZ_F16, HZ_QUAT_N, HZ_QUAT_DIRECT, "quat_gemv_mma16_f16"},
	{100, 1, 101, HZ_F16, HZ_QUAT_N, HZ_QUAT_DIRECT,
	 /* odd k: rows are not pairs of quaternions */
	 "quat_planar_f32 quat_gemm_simt_f32_direct_64x64"},
	{100, 9, 101, HZ_F32, HZ_QUAT_N, HZ_QUAT_DIRECT,
	 "quat_planar_f32 quat_gemm_simt_f32_direct_64x64"},
	{1024, 1024, 1024, HZ_F32, HZ_QUAT_T, HZ_QUAT_FAST,
	 "quat_planar_f32 quat_gemm_simt_f32_fast_64x64"},
	{7, 9, 0, HZ_F32, HZ_QUAT_N, HZ_QUAT_FAST, "quat_gemm_simt_f32_fast_64x64"},
};

static void test_gemm(const struct row *r)
{
	const int transposed = r->op_a == HZ_QUAT_T || r->op_a == HZ_QUAT_H;
	const hz_tensor x = hz_tensor_3d(a, r->dtype, HZ_CUDA, transposed ? r->k : r->m,
					 transposed ? r->m : r->k, 4);
	const hz_tensor w = hz_tensor_3d(b, r->dtype, HZ_CUDA, r->k, r->n, 4);
	hz_tensor y = hz_tensor_3d(c, r->dtype, HZ_CUDA, r->m, r->n, 4);
	const hz_quat_gemm_opts o = {
		.op_a = r->op_a, .method = r->method, .precision = HZ_PRECISION_F32,
	};
	char name[128];

	snprintf(name, sizeof(name), "%lld x %lld x %lld of %s, op %d", (long long)r->m,
		 (long long)r->n, (long long)r->k, hz_dtype_name(r->dtype), r->op_a);
	is_int(hz_quat_gemm(ctx, &x, &w, &y, &o), HZ_OK, "%s", name);
	is_str(taken(), r->kernels, "%s: the kernels", name);
}

/* wgmma products: the kernel depends on the tiles per cluster. */
static void test_tiles(void)
{
	const hz_tensor x = hz_tensor_3d(a, HZ_BF16, HZ_CUDA, 1024, 1024, 4);
	const hz_quat_gemm_opts o = {.method = HZ_QUAT_FAST};

	for (int i = 0; i < 2; i++) {
		const int64_t n = i ? 4096 : 1024;
		const hz_tensor w = hz_tensor_3d(b, HZ_BF16, HZ_CUDA, 1024, n, 4);
		hz_tensor y = hz_tensor_3d(c, HZ_BF16, HZ_CUDA, 1024, n, 4);

		is_int(hz_quat_gemm(ctx, &x, &w, &y, &o), HZ_OK, "%d columns", (int)n);
		is_str(taken(),
		       i ? "quat_planar_f16_from_bf16 quat_planar_f16_transposed_from_bf16 "
			   "quat_gemm_wgmma_256x192"
			 : "quat_planar_f16_from_bf16 quat_planar_f16_transposed_from_bf16 "
			   "quat_gemm_wgmma_256x160_single",
		       i ? "several tiles a cluster" : "one tile a cluster");
	}
}

static void test_packed(void)
{
	const hz_tensor x = hz_tensor_3d(a, HZ_F32, HZ_CUDA, 200, 300, 4);
	const hz_tensor w = hz_tensor_3d(b, HZ_F32, HZ_CUDA, 300, 64, 4);
	hz_tensor y = hz_tensor_3d(c, HZ_F32, HZ_CUDA, 200, 64, 4);
	const hz_tensor wt = hz_tensor_3d(b, HZ_F32, HZ_CUDA, 200, 64, 4);
	hz_tensor yt = hz_tensor_3d(c, HZ_F32, HZ_CUDA, 300, 64, 4);
	hz_quat_gemm_opts o = {.method = HZ_QUAT_FAST, .precision = HZ_PRECISION_F32};
	hz_packed packed;
	size_t bytes = 0;

	is_int(hz_quat_gemm_pack_bytes(ctx, &x, &o, &bytes), HZ_OK, "the bytes of packed A");
	is_int(hz_quat_gemm_pack(ctx, &x, d, bytes, &packed, &o), HZ_OK, "packs");
	is_str(taken(), "quat_planar_f32", "packing makes planes");
	o.packed = &packed;
	is_int(hz_quat_gemm(ctx, NULL, &w, &y, &o), HZ_OK, "a packed product");
	is_str(taken(), "quat_planar_f32 quat_gemm_simt_f32_fast_64x64", "planes of B alone");
	o.op_a = HZ_QUAT_H;
	is_int(hz_quat_gemm(ctx, NULL, &wt, &yt, &o), HZ_OK, "by the conjugate transpose");
	is_str(taken(), "quat_planar_f32 quat_gemm_simt_f32_fast_64x64",
	       "planes of it from the packed ones");
}

/* Products of few columns with packed A read the copy behind its planes and scales. */
static void test_packed_few(void)
{
	static const struct {
		int64_t n;
		unsigned blocks, shares;
		const char *kernel;
	} rows[] = {
		{1, 256, 1, "quat_gemv_rows_bf16_1"}, {5, 32, 2, "quat_gemv_mma_bf16"},
		{16, 32, 4, "quat_gemv_mma16_bf16"}, {17, 64, 2, "quat_gemv_mma16_bf16"},
		{64, 128, 1, "quat_gemv_mma16_bf16"},
	};
	const hz_tensor x = hz_tensor_3d(a, HZ_BF16, HZ_CUDA, 1024, 1000, 4);
	hz_packed packed;
	size_t bytes = 0;

	for (int method = HZ_QUAT_DIRECT; method <= HZ_QUAT_FAST; method++) {
		hz_quat_gemm_opts o = {.method = method};
		hz_tensor w, y;

		is_int(hz_quat_gemm_pack_bytes(ctx, &x, &o, &bytes), HZ_OK, "the bytes of A");
		is_int(hz_quat_gemm_pack(ctx, &x, d, bytes, &packed, &o), HZ_OK, "packs it");
		o.packed = &packed;
		o.op_a = HZ_QUAT_C;
		for (size_t i = 0; i < sizeof(rows) / sizeof(*rows); i++) {
			const struct fakecuda_launch *l;
			struct hzi_quat_gemv p;
			long before = fake->launches();

			w = hz_tensor_3d(b, HZ_BF16, HZ_CUDA, 1000, rows[i].n, 4);
			y = hz_tensor_3d(c, HZ_BF16, HZ_CUDA, 1024, rows[i].n, 4);
			taken();
			is_int(hz_quat_gemm(ctx, NULL, &w, &y, &o), HZ_OK, "%d columns",
			       (int)rows[i].n);
			l = fake->launch(before);
			is_str(l->kernel, rows[i].kernel, "the kernel");
			is_int(l->grid[0], rows[i].blocks, "rows by slices");
			is_int(l->grid[1], rows[i].shares, "shares of k");
			is_int(fake->launches() - before, rows[i].shares > 1 ? 2 : 1, "launches");
			memcpy(&p, l->params, sizeof(p));
			ok((char *)p.a.data == d + (method == HZ_QUAT_FAST ? 16 << 20 : 8 << 20) +
						       4096 &&
				   p.a.row == 4000 && p.a.whole && p.a.conj == 1,
			   "the copy");
		}
		taken();
		w = hz_tensor_3d(b, HZ_BF16, HZ_CUDA, 1000, 65, 4);
		y = hz_tensor_3d(c, HZ_BF16, HZ_CUDA, 1024, 65, 4);
		is_int(hz_quat_gemm(ctx, NULL, &w, &y, &o), HZ_OK, "65 columns");
		has_str(taken(), "quat_gemm_wgmma_256x160_single", "by wgmma");
	}
}

/* wgmma kernels alone read their packed planes for many columns, of which some go in turns. */
static void test_packed_columns(void)
{
	const int64_t n = ((int64_t)1 << 26) + 5;
	char *const far = (char *)((uintptr_t)1 << 44);	/* C is larger than a, b, c, d */
	const hz_tensor x = hz_tensor_3d(a, HZ_F16, HZ_CUDA, 1, 4, 4);
	hz_tensor y = hz_tensor_3d(far, HZ_F16, HZ_CUDA, 1, n, 4);
	hz_tensor w = hz_tensor_3d(b, HZ_F16, HZ_CUDA, 4, n, 4);
	hz_quat_gemm_opts o = {.method = HZ_QUAT_FAST};
	const struct fakecuda_launch *l;
	hz_packed packed;
	size_t bytes, need = 0;
	long before;

	is_int(hz_quat_gemm_pack_bytes(ctx, &x, &o, &bytes), HZ_OK, "the bytes of a small A");
	is_int(hz_quat_gemm_pack(ctx, &x, d, bytes, &packed, &o), HZ_OK, "packs it");
	o.packed = &packed;
	w.stride[0] = 4;
	w.stride[1] = 0;
	is_int(RECORD(ctx, hz_quat_gemm(ctx, NULL, &w, &y, &o), &need), HZ_OK, "its workspace");
	is_int(hz_set_workspace(ctx, far - need / 64 * 64 - 64, need), HZ_OK, "%lld bytes",
	       (long long)need);
	before = fake->launches();
	is_int(hz_quat_gemm(ctx, NULL, &w, &y, &o), HZ_OK, "2^26 columns and 5");
	is_int(fake->launches() - before, 2 * 17, "in 17 steps");
	taken();
	l = last();
	is_str(l->kernel, "quat_gemm_wgmma_256x160_single", "the last");
	is_int(l->grid[0], l->cluster, "of a tile");
	hz_set_workspace(ctx, NULL, 0);
}

/* Items of a batch share launches; operands that are broadcast are transposed into planes once. */
static void test_batch(void)
{
	hz_tensor x = hz_tensor_4d(a, HZ_F32, HZ_CUDA, 12, 33, 20, 4);
	hz_tensor w = hz_tensor_4d(b, HZ_F32, HZ_CUDA, 12, 20, 10, 4);
	hz_tensor y = hz_tensor_4d(c, HZ_F32, HZ_CUDA, 12, 33, 10, 4);
	const hz_quat_gemm_opts o = {.precision = HZ_PRECISION_F32};
	const struct fakecuda_launch *l;

	is_int(hz_quat_gemm(ctx, &x, &w, &y, &o), HZ_OK, "a batch");
	is_str(taken(), "quat_planar_f32 quat_gemm_simt_f32_direct_64x64", "its kernels");
	l = fake->launch(fake->launches() - 1);
	is_int(l->grid[1], 12, "all items in one launch");
	w.shape[0] = 1;
	is_int(hz_quat_gemm(ctx, &x, &w, &y, &o), HZ_OK, "a batch with one B");
	taken();
	l = fake->launch(fake->launches() - 2);
	is_int(l->grid[0], 2 + 2, "A and B share a launch, of which B has a part");
}

/* The workspace of the gradient of weights for a batch whose items have no common stride */
static void test_linear_workspace(void)
{
	const int64_t xs[] = {5, 70, 5, 4, 4}, ys[] = {5, 70, 5, 16, 4}, ws[] = {16, 4, 4};
	hz_tensor x = hz_tensor_nd(a, HZ_F32, HZ_CUDA, 5, xs);
	hz_tensor dy = hz_tensor_nd(b, HZ_F32, HZ_CUDA, 5, ys);
	hz_tensor w = hz_tensor_nd(c, HZ_F32, HZ_CUDA, 3, ws);
	hz_tensor dw = hz_tensor_nd(d, HZ_F32, HZ_CUDA, 3, ws);
	size_t of_many = 0, of_few = 0;

	dy.stride[1] = 6 * 64;
	dy.stride[0] = 70 * dy.stride[1] + 1;
	is_int(RECORD(ctx, hz_quat_linear_bwd(ctx, &x, &w, NULL, &dy, NULL, &dw, NULL, NULL),
		      &of_many), HZ_OK, "a workspace");
	x.shape[1] = dy.shape[1] = 2;
	is_int(RECORD(ctx, hz_quat_linear_bwd(ctx, &x, &w, NULL, &dy, NULL, &dw, NULL, NULL),
		      &of_few), HZ_OK, "one of few items");
	is_int((int64_t)of_many, (int64_t)of_few, "which is the same");
}

/* Split-K: blocks share the terms of one product; their partial sums are added in order. */
static void test_linear_split(void)
{
	const hz_tensor x = hz_tensor_3d(a, HZ_F32, HZ_CUDA, 4200, 4, 4);
	const hz_tensor dy = hz_tensor_3d(b, HZ_F32, HZ_CUDA, 4200, 16, 4);
	const hz_tensor w = hz_tensor_3d(c, HZ_F32, HZ_CUDA, 16, 4, 4);
	hz_tensor dw = hz_tensor_3d(d, HZ_F32, HZ_CUDA, 16, 4, 4);
	size_t bytes = 0;

	is_int(RECORD(ctx, hz_quat_linear_bwd(ctx, &x, &w, NULL, &dy, NULL, &dw, NULL, NULL),
		      &bytes), HZ_OK, "the workspace of a gradient of many terms");
	is_int(hz_reserve(ctx, bytes), HZ_OK, "which there is");
	taken();
	is_int(hz_quat_linear_bwd(ctx, &x, &w, NULL, &dy, NULL, &dw, NULL, NULL), HZ_OK,
	       "the gradient of weights");
	ok(strstr(taken(), " quat_layer_sum_f32 quat_layer_finish") != NULL,
	   "partial sums, then their sum");
}

static void test_pool(void)
{
	hz_tensor x = hz_tensor_4d(a, HZ_F32, HZ_CUDA, 2, 64, 32, 4);
	hz_tensor y = hz_tensor_4d(b, HZ_F32, HZ_CUDA, 2, 32, 32, 4);
	const hz_tensor index = hz_tensor_3d(c, HZ_S32, HZ_CUDA, 2, 32, 32);
	hz_quat_pool_opts o = {.window = {2}};

	is_int(hz_quat_pool_bwd(ctx, &index, &y, &x, &o), HZ_OK, "a gradient of pooling");
	is_str(taken(), "quat_pool_bwd_tiled", "window by window");
	is_int(fake->launch(fake->launches() - 1)->grid[0], 8, "of which there are 2048");
	o.stride[0] = 1;
	y.shape[1] = 63;
	o.kind = HZ_POOL_AVERAGE;
	is_int(hz_quat_pool_bwd(ctx, NULL, &y, &x, &o), HZ_OK, "of windows that overlap");
	is_str(taken(), "quat_pool_bwd_generic", "element by element");
}

/* Pooling in two dimensions: kernels and blocks */
static void test_pool_2d(void)
{
	const int64_t xs[] = {2, 28, 28, 16, 4}, ys[] = {2, 14, 14, 16, 4};
	hz_tensor x = hz_tensor_nd(a, HZ_BF16, HZ_CUDA, 5, xs);
	hz_tensor y = hz_tensor_nd(b, HZ_BF16, HZ_CUDA, 5, ys);
	hz_tensor index = hz_tensor_4d(c, HZ_S32, HZ_CUDA, 2, 14, 14, 16);
	const hz_tensor places = hz_tensor_4d(c, HZ_S32, HZ_CUDA, 2, 28, 28, 16);
	hz_tensor same = hz_tensor_nd(b, HZ_BF16, HZ_CUDA, 5, xs);
	hz_quat_pool_opts o = {.window = {2, 2}};
	hz_tensor odd = x;

	is_int(hz_quat_pool(ctx, &x, &y, &index, &o), HZ_OK, "pooling, 2 x 2");
	is_str(taken(), "quat_pool_2x2_bf16", "by a kernel of its own");
	is_int(fake->launch(fake->launches() - 1)->grid[1], 28, "a line of blocks for each row");
	is_int(hz_quat_pool_bwd(ctx, &index, &y, &x, &o), HZ_OK, "its gradient");
	is_str(taken(), "quat_pool_bwd_2x2_stride2_bf16", "by another");
	o = (hz_quat_pool_opts){.window = {3, 3}, .stride = {2, 2}, .pad = {1, 1}};
	is_int(hz_quat_pool_bwd(ctx, &index, &y, &x, &o), HZ_OK, "of 3 x 3 by 2");
	is_str(taken(), "quat_pool_bwd_3x3_stride2_bf16", "by a third");
	is_int(fake->launch(fake->launches() - 1)->grid[1], 30, "cells reach behind x");
	o.stride[0] = o.stride[1] = 1;
	is_int(hz_quat_pool(ctx, &x, &same, NULL, &o), HZ_OK, "3 x 3 at each place");
	is_int(hz_quat_pool_bwd(ctx, &places, &same, &x, &o), HZ_OK, "its gradient");
	is_str(taken(), "quat_pool_max_3x3_stride1_bf16 quat_pool_max_bwd_3x3_stride1_bf16",
	       "in strips");
	is_int(fake->launch(fake->launches() - 1)->grid[1], 8, "of eight rows");
	o.stride[0] = o.stride[1] = 2;
	odd.data = (char *)a + 2;
	is_int(hz_quat_pool_bwd(ctx, &index, &y, &odd, &o), HZ_OK, "of what is not aligned");
	is_str(taken(), "quat_pool_bwd_generic", "element by element");
	o.stride[1] = 3;
	odd = y;
	odd.shape[2] = 10;
	is_int(hz_quat_pool(ctx, &x, &odd, NULL, &o), HZ_OK, "of windows that step unlike");
	is_str(taken(), "quat_pool_3x3_bf16", "which only gradients mind");
}

/* Batch normalization: mean and covariance in one pass */
static void test_norm(void)
{
	const int64_t shape[] = {32, 28, 28, 48, 4};
	hz_tensor x = hz_tensor_nd(a, HZ_F16, HZ_CUDA, 5, shape);
	hz_tensor apart = x;
	size_t bytes = 0;

	is_int(RECORD(ctx, hz_quat_batchnorm(ctx, &x, NULL, NULL, &x, NULL), &bytes), HZ_OK,
	       "a workspace");
	is_int(hz_reserve(ctx, bytes), HZ_OK, "which there is");
	is_int(hz_quat_batchnorm(ctx, &x, NULL, NULL, &x, NULL), HZ_OK, "batch normalization");
	is_str(taken(), "quat_layer_moments_f16 quat_layer_finish quat_layer_affine_f16",
	       "two passes over x");
	is_int(fake->launch(fake->launches() - 2)->grid[0], 48, "a block for each channel");
	apart.stride[3] = 1;
	apart.stride[4] = 48;
	is_int(hz_quat_batchnorm(ctx, &apart, NULL, NULL, &apart, NULL), HZ_OK, "of planes");
	is_str(taken(), "quat_layer_moments_strided quat_layer_finish quat_layer_affine_strided",
	       "the same");
}

/* Convolutions by 8 real products: kernels and blocks */
static void test_conv(void)
{
	const int64_t xs[] = {4, 28, 28, 64, 4}, ws[] = {64, 3, 3, 64, 4};
	const int64_t lines[] = {2, 1000, 32, 4}, line_ws[] = {40, 5, 32, 4};
	const int64_t many[] = {4, 28, 28, 256, 4}, many_ws[] = {256, 3, 3, 256, 4};
	const hz_tensor big = hz_tensor_nd(a, HZ_BF16, HZ_CUDA, 5, many);
	const hz_tensor small = hz_tensor_nd(c, HZ_BF16, HZ_CUDA, 5, many);
	const hz_tensor many_w = hz_tensor_nd(b, HZ_BF16, HZ_CUDA, 5, many_ws);
	hz_tensor many_dw = hz_tensor_nd(d, HZ_BF16, HZ_CUDA, 5, many_ws);
	hz_tensor x = hz_tensor_nd(a, HZ_BF16, HZ_CUDA, 5, xs);
	hz_tensor w = hz_tensor_nd(b, HZ_BF16, HZ_CUDA, 5, ws);
	hz_tensor y = hz_tensor_nd(c, HZ_BF16, HZ_CUDA, 5, xs);
	hz_quat_conv_opts o = {.pad = {1, 1}, .method = HZ_QUAT_FAST};
	const struct fakecuda_launch *l;
	size_t bytes = 0;

	is_int(RECORD(ctx, hz_quat_conv(ctx, &x, &w, NULL, &y, &o), &bytes), HZ_OK, "a workspace");
	ok(bytes < (size_t)9 * 64 * 64 * 4 * 8, "of weights alone");
	is_int(hz_quat_conv(ctx, &x, &w, NULL, &y, &o), HZ_OK, "a convolution");
	is_str(taken(), "quat_planar_f16_from_bf16 quat_conv_implicit_gemm8_bf16", "its kernels");
	l = fake->launch(fake->launches() - 1);
	is_int(l->cluster, 2, "in clusters");
	/* 4 strips of 6 tiles, of 4 times 29 rows */
	is_int(l->grid[0], 24, "a block for each tile");
	is_int(RECORD(ctx, hz_quat_conv_bwd(ctx, &big, &many_w, NULL, &small, NULL, &many_dw, NULL,
					    &o), &bytes), HZ_OK, "a workspace");
	is_int(hz_reserve(ctx, bytes), HZ_OK, "which there is");
	is_int(hz_quat_conv_bwd(ctx, &big, &many_w, NULL, &small, NULL, &many_dw, NULL, &o), HZ_OK,
	       "the gradient of weights of many channels");
	is_str(taken(), "quat_conv_wgrad8_absmax_bf16 quat_conv_wgrad8_pack_planar_bf16 "
	       "quat_conv_wgrad8_wgmma quat_conv_wgrad8_reduce quat_layer_copy_strided",
	       "its kernels");
	l = fake->launch(fake->launches() - 3);
	is_int(l->grid[0], 128, "nine taps at a time, of 4 x 4 tiles, each by eight products");
	o.flags = HZ_QUAT_TRANSPOSED;
	hz_quat_conv(ctx, &x, &w, NULL, &y, &o);
	is_str(taken(), "quat_layer_copy_strided quat_planar_f16_from_bf16 "
	       "quat_conv_implicit_gemm8_bf16",
	       "a transposed one, whose weights are gathered before");
	o.method = HZ_QUAT_DIRECT;
	hz_quat_conv(ctx, &x, &w, NULL, &y, &o);
	ok(!strstr(taken(), "quat_conv_implicit_gemm8_bf16"), "not by 16 products");
	x = hz_tensor_4d(a, HZ_F16, HZ_CUDA, lines[0], lines[1], lines[2], lines[3]);
	w = hz_tensor_4d(b, HZ_F16, HZ_CUDA, line_ws[0], line_ws[1], line_ws[2], line_ws[3]);
	y = hz_tensor_4d(c, HZ_F16, HZ_CUDA, lines[0], lines[1], line_ws[0], lines[3]);
	o = (hz_quat_conv_opts){.pad = {2}, .method = HZ_QUAT_FAST};
	is_int(hz_quat_conv(ctx, &x, &w, NULL, &y, &o), HZ_OK, "one in one dimension");
	is_str(taken(), "quat_planar_f16_from_f16 quat_conv_implicit_gemm8_f16", "its kernels");
	l = fake->launch(fake->launches() - 1);
	is_int(l->grid[0], 14, "a block for each 160 of twice 1002 rows, in pairs");
}

/* The same with f32 in split precision */
static void test_conv_split(void)
{
	const int64_t xs[] = {4, 28, 28, 32, 4}, ws[] = {32, 3, 3, 32, 4};
	hz_tensor x = hz_tensor_nd(a, HZ_F32, HZ_CUDA, 5, xs);
	hz_tensor w = hz_tensor_nd(b, HZ_F32, HZ_CUDA, 5, ws);
	hz_tensor y = hz_tensor_nd(c, HZ_F32, HZ_CUDA, 5, xs);
	hz_tensor dw = hz_tensor_nd(d, HZ_F32, HZ_CUDA, 5, ws);
	hz_quat_conv_opts o = {.pad = {1, 1}, .activation = HZ_ACT_RELU};
	size_t bytes = 0;

	is_int(RECORD(ctx, hz_quat_conv_bwd(ctx, &x, &w, NULL, &y, NULL, &dw, NULL, &o), &bytes),
	       HZ_OK, "a workspace");
	is_int(hz_reserve(ctx, bytes), HZ_OK, "which there is");
	is_int(hz_quat_conv(ctx, &x, &w, NULL, &y, &o), HZ_OK, "a convolution of f32");
	is_str(taken(), "quat_planar_f16_from_f32 quat_conv_implicit_gemm8_bias_act_f32x3",
	       "its kernels");
	is_int(fake->launch(fake->launches() - 1)->grid[0], 24, "a block for each tile");
	o.activation = HZ_ACT_NONE;
	is_int(hz_quat_conv_bwd(ctx, &x, &w, NULL, &y, NULL, &dw, NULL, &o), HZ_OK,
	       "the gradient of weights");
	is_str(taken(), "quat_conv_wgrad16_f32x2_128x256 quat_conv_wgrad_reduce "
	       "quat_layer_copy_strided", "its kernels");
	/* 18 units of columns, up to four in a tile; 98 TMA tiles of pixels in 26 splits */
	is_int(fake->launch(fake->launches() - 3)->grid[0], 5 * 26, "in five tiles");
	x.data = (char *)a + 4;
	is_int(hz_quat_conv(ctx, &x, &w, NULL, &y, &o), HZ_OK, "what is not aligned");
	is_str(taken(), "quat_planar_f16_from_f32 quat_conv_implicit_gemm8_strided_f32x3",
	       "by another");
	is_int(RECORD(ctx, hz_quat_conv_bwd(ctx, &x, &w, NULL, &y, NULL, &dw, NULL, &o), &bytes),
	       HZ_OK, "a workspace");
	is_int(hz_reserve(ctx, bytes), HZ_OK, "which there is");
	is_int(hz_quat_conv_bwd(ctx, &x, &w, NULL, &y, NULL, &dw, NULL, &o), HZ_OK,
	       "the gradient of weights");
	is_str(taken(), "quat_conv_wgrad8_absmax_split_strided "
	       "quat_conv_wgrad8_pack_planar_split_strided quat_conv_wgrad8_wgmma_split "
	       "quat_conv_wgrad8_reduce quat_layer_copy_strided", "its kernels");
	/* Sets of five taps and of four, five splits, eight products by three pairs of terms */
	is_int(fake->launch(fake->launches() - 3)->grid[0], 2 * 5 * 24, "in two sets of taps");
}

/* Taps as channels for the few channels of a first layer; several groups in one tile */
static void test_conv_tiles(void)
{
	const int64_t xs[] = {4, 28, 28, 3, 4}, ys[] = {4, 14, 14, 64, 4}, ws[] = {64, 7, 7, 3, 4};
	const int64_t gs[] = {4, 14, 14, 96, 4}, gws[] = {96, 3, 3, 8, 4};
	hz_tensor x = hz_tensor_nd(a, HZ_BF16, HZ_CUDA, 5, xs);
	hz_tensor w = hz_tensor_nd(b, HZ_BF16, HZ_CUDA, 5, ws);
	hz_tensor y = hz_tensor_nd(c, HZ_BF16, HZ_CUDA, 5, ys);
	hz_tensor dw = hz_tensor_nd(d, HZ_BF16, HZ_CUDA, 5, ws);
	hz_quat_conv_opts o = {.stride = {2, 2}, .pad = {3, 3}};
	size_t bytes = 0;

	is_int(RECORD(ctx, hz_quat_conv(ctx, &x, &w, NULL, &y, &o), &bytes), HZ_OK, "a workspace");
	is_int(hz_reserve(ctx, bytes), HZ_OK, "which there is");
	is_int(hz_quat_conv(ctx, &x, &w, NULL, &y, &o), HZ_OK, "7 x 7 taps of three channels");
	is_str(taken(), "quat_conv_taps_to_channels quat_layer_copy_strided "
	       "quat_planar_f16_from_bf16 quat_conv_implicit_gemm8_bf16", "seven of 21 and a zero");
	is_int(RECORD(ctx, hz_quat_conv_bwd(ctx, &x, &w, NULL, &y, NULL, &dw, NULL, &o), &bytes),
	       HZ_OK, "a workspace");
	is_int(hz_reserve(ctx, bytes), HZ_OK, "which there is");
	is_int(hz_quat_conv_bwd(ctx, &x, &w, NULL, &y, NULL, &dw, NULL, &o), HZ_OK,
	       "the gradient of weights");
	is_str(taken(), "quat_conv_taps_to_channels quat_conv_wgrad16_128x256_bf16 "
	       "quat_conv_wgrad_reduce quat_layer_copy_strided", "its kernels");
	x = y = hz_tensor_nd(a, HZ_BF16, HZ_CUDA, 5, gs);
	y.data = c;
	w = hz_tensor_nd(b, HZ_BF16, HZ_CUDA, 5, gws);
	dw = hz_tensor_nd(d, HZ_BF16, HZ_CUDA, 5, gws);
	o = (hz_quat_conv_opts){.pad = {1, 1}, .groups = 12};
	is_int(RECORD(ctx, hz_quat_conv_bwd(ctx, &x, &w, NULL, &y, NULL, &dw, NULL, &o), &bytes),
	       HZ_OK, "a workspace");
	is_int(hz_reserve(ctx, bytes), HZ_OK, "which there is");
	is_int(hz_quat_conv_bwd(ctx, &x, &w, NULL, &y, NULL, &dw, NULL, &o), HZ_OK,
	       "the gradient of weights of 12 groups");
	is_str(taken(), "quat_conv_wgrad16_64x512_bf16 quat_conv_wgrad_reduce "
	       "quat_layer_copy_strided", "its kernels");
	/* Six pairs of groups; nine taps in two tiles; 49 TMA tiles of pixels in eleven splits */
	is_int(fake->launch(fake->launches() - 3)->grid[0], 6 * 2 * 11, "in twelve tiles");
}

/* 16 real products, pixels in place: gradients of weights, and convolutions of one tap */
static void test_conv_gemm16(void)
{
	const int64_t xs[] = {4, 56, 56, 128, 4}, ys[] = {4, 56, 56, 256, 4};
	const int64_t ws[] = {256, 1, 1, 128, 4};
	hz_tensor x = hz_tensor_nd(a, HZ_F16, HZ_CUDA, 5, xs);
	hz_tensor w = hz_tensor_nd(b, HZ_F16, HZ_CUDA, 5, ws);
	hz_tensor y = hz_tensor_nd(c, HZ_F16, HZ_CUDA, 5, ys);
	hz_tensor dw = hz_tensor_nd(d, HZ_F16, HZ_CUDA, 5, ws);
	hz_quat_conv_opts o = {.precision = HZ_PRECISION_HALF};
	const struct fakecuda_launch *l;
	size_t bytes = 0;

	is_int(RECORD(ctx, hz_quat_conv(ctx, &x, &w, NULL, &y, &o), &bytes), HZ_OK, "a workspace");
	/* A matrix of 4 x 4 for each weight */
	is_int((int64_t)bytes, 256 * 128 * 16 * 2, "of weights alone");
	is_int(hz_quat_conv(ctx, &x, &w, NULL, &y, &o), HZ_OK, "a convolution of one tap");
	is_str(taken(), "quat_conv_implicit_gemm16_pack_f16 quat_conv_implicit_gemm16_f16",
	       "its kernels");
	l = fake->launch(fake->launches() - 1);
	is_int(l->cluster, 2, "in clusters");
	is_int(l->grid[0], 132, "as many as run at a time");
	is_int(RECORD(ctx, hz_quat_conv_bwd(ctx, &x, &w, NULL, &y, NULL, &dw, NULL, &o), &bytes),
	       HZ_OK, "a workspace");
	is_int(hz_reserve(ctx, bytes), HZ_OK, "which there is");
	is_int(hz_quat_conv_bwd(ctx, &x, &w, NULL, &y, NULL, &dw, NULL, &o), HZ_OK,
	       "the gradient of weights");
	is_str(taken(), "quat_conv_wgrad16_128x256_f16 quat_conv_wgrad_reduce "
	       "quat_layer_copy_strided", "its kernels");
	l = fake->launch(fake->launches() - 3);
	is_int(l->cluster, 2, "in clusters");
	is_int(l->grid[0], 8 * 2 * 8, "8 tiles by two, of pixels in eight pieces");
	x.data = (char *)a + 8;
	is_int(hz_quat_conv_bwd(ctx, &x, &w, NULL, &y, NULL, &dw, NULL, &o), HZ_OK,
	       "what is not aligned");
	is_str(taken(), "quat_conv_wgrad8_absmax_strided quat_conv_wgrad8_pack_planar_strided "
	       "quat_conv_wgrad8_wgmma quat_conv_wgrad8_reduce quat_layer_copy_strided",
	       "by others");
}

/* Split precision of 16-bit operands, which the kernels that read f32 in place do not support */
static void test_conv_split_16bit(void)
{
	const int64_t xs[] = {4, 28, 28, 64, 4}, ws[] = {64, 3, 3, 64, 4};
	const int dtypes[] = {HZ_F32, HZ_F16, HZ_BF16};
	const hz_quat_conv_opts o = {.precision = HZ_PRECISION_SPLIT, .pad = {1, 1}};

	for (int i = 0; i < 3; i++) {
		const hz_tensor x = hz_tensor_nd(a, dtypes[i], HZ_CUDA, 5, xs);
		const hz_tensor w = hz_tensor_nd(b, dtypes[i], HZ_CUDA, 5, ws);
		hz_tensor y = hz_tensor_nd(c, dtypes[i], HZ_CUDA, 5, xs);
		hz_tensor dw = hz_tensor_nd(d, dtypes[i], HZ_CUDA, 5, ws);
		size_t bytes = 0;

		is_int(RECORD(ctx, hz_quat_conv(ctx, &x, &w, NULL, &y, &o), &bytes), HZ_OK,
		       "a workspace");
		is_int(hz_reserve(ctx, bytes), HZ_OK, "which there is");
		is_int(hz_quat_conv(ctx, &x, &w, NULL, &y, &o), HZ_OK, "%s in split precision",
		       hz_dtype_name(dtypes[i]));
		has_str(taken(), i ? "quat_conv_implicit_gemm8_strided_f32x3" :
				     "quat_conv_implicit_gemm8_f32x3", "its kernel");
		is_int(RECORD(ctx, hz_quat_conv_bwd(ctx, &x, &w, NULL, &y, NULL, &dw, NULL, &o),
			      &bytes), HZ_OK, "a workspace");
		is_int(hz_reserve(ctx, bytes), HZ_OK, "which there is");
		is_int(hz_quat_conv_bwd(ctx, &x, &w, NULL, &y, NULL, &dw, NULL, &o), HZ_OK,
		       "the gradient of weights");
		has_str(taken(), i ? "quat_conv_wgrad8_absmax_split_strided "
				     "quat_conv_wgrad8_pack_planar_split_strided" :
				     "quat_conv_wgrad8_absmax_split_f32 "
				     "quat_conv_wgrad8_pack_planar_split_f32",
			"its kernels");
	}
}

/* Groups that begin at an odd multiple of 8 bytes: no group may be read in place by TMA */
static void test_conv_odd_groups(void)
{
	const int64_t xs[] = {32, 56, 56, 34, 4}, ws[] = {34, 1, 1, 17, 4};
	const int64_t bs[] = {8, 40, 40, 130, 4}, ss[] = {8, 29, 29, 32, 4};
	const int64_t bws[] = {32, 12, 12, 65, 4};
	hz_tensor x = hz_tensor_nd(a, HZ_F16, HZ_CUDA, 5, xs);
	hz_tensor w = hz_tensor_nd(b, HZ_F16, HZ_CUDA, 5, ws);
	hz_tensor y = hz_tensor_nd(c, HZ_F16, HZ_CUDA, 5, xs);
	hz_tensor dw = hz_tensor_nd(d, HZ_F16, HZ_CUDA, 5, bws);
	hz_quat_conv_opts o = {.groups = 2};
	size_t bytes = 0;

	is_int(RECORD(ctx, hz_quat_conv(ctx, &x, &w, NULL, &y, &o), &bytes), HZ_OK, "a workspace");
	is_int(hz_reserve(ctx, bytes), HZ_OK, "which there is");
	is_int(hz_quat_conv(ctx, &x, &w, NULL, &y, &o), HZ_OK, "two groups of 17 channels");
	ok(!strstr(taken(), "quat_conv_implicit_gemm16"), "not with pixels in place");
	x = hz_tensor_nd(a, HZ_F16, HZ_CUDA, 5, bs);
	w = hz_tensor_nd(b, HZ_F16, HZ_CUDA, 5, bws);
	y = hz_tensor_nd(c, HZ_F16, HZ_CUDA, 5, ss);
	is_int(RECORD(ctx, hz_quat_conv_bwd(ctx, &x, &w, NULL, &y, NULL, &dw, NULL, &o), &bytes),
	       HZ_OK, "a workspace");
	is_int(hz_reserve(ctx, bytes), HZ_OK, "which there is");
	is_int(hz_quat_conv_bwd(ctx, &x, &w, NULL, &y, NULL, &dw, NULL, &o), HZ_OK,
	       "the gradient of weights of two groups of 65 channels");
	ok(!strstr(taken(), "quat_conv_wgrad16"), "not with pixels in place");
}

/* More taps than wgrad8 supports: pixels in place, all groups at once */
static void test_conv_many_taps(void)
{
	static const int64_t channels[][2] = {{128, 1}, {64, 2}};

	for (int i = 0; i < 2; i++) {
		const int64_t n = channels[i][0], groups = channels[i][1];
		const int64_t xs[] = {2, 40, 40, n, 4}, ys[] = {2, 29, 29, n, 4};
		const int64_t ws[] = {n, 12, 12, n / groups, 4};
		const hz_tensor x = hz_tensor_nd(a, HZ_F16, HZ_CUDA, 5, xs);
		const hz_tensor w = hz_tensor_nd(b, HZ_F16, HZ_CUDA, 5, ws);
		const hz_tensor y = hz_tensor_nd(c, HZ_F16, HZ_CUDA, 5, ys);
		hz_tensor dw = hz_tensor_nd(d, HZ_F16, HZ_CUDA, 5, ws);
		const hz_quat_conv_opts o = {.groups = (int32_t)groups};
		size_t bytes = 0;

		is_int(RECORD(ctx, hz_quat_conv_bwd(ctx, &x, &w, NULL, &y, NULL, &dw, NULL, &o),
			      &bytes), HZ_OK, "a workspace");
		/* The gradient and its partial sums */
		ok(bytes < (size_t)96 << 20, "of %zu bytes", bytes);
		is_int(hz_reserve(ctx, bytes), HZ_OK, "which there is");
		is_int(hz_quat_conv_bwd(ctx, &x, &w, NULL, &y, NULL, &dw, NULL, &o), HZ_OK,
		       "the gradient of weights of 12 x 12 taps, %d groups", (int)groups);
		is_str(taken(), "quat_conv_wgrad16_128x256_f16 quat_conv_wgrad_reduce "
		       "quat_layer_copy_strided", "its kernels");
	}
}

/* Routes of convolutions that need no patches support bf16, but no precision of f32. */
static void test_conv_refused(void)
{
	const struct hzi_quat_conv_steps *const steps = &hzi_cuda_quat_conv_steps;
	const struct hzi_quat_array pixels = {
		.data = a, .stride = {28 * 28 * 256, 28 * 28 * 256, 28 * 256, 256, 4},
		.comp = {0, 1, 2, 3}, .dtype = HZ_BF16, .whole = 1,
	};
	const struct hzi_quat_patch_step x = {
		.x = pixels, .groups = 1, .channels = 64, .size = {1, 28, 28},
		.count = {1, 28, 28}, .taps = {1, 3, 3}, .step = {1, 1, 1}, .each = {1, 1, 1},
		.base = {0, -1, -1},
	};
	struct hzi_quat_conv_step y = {
		.g = {.m = 64, .n = 4 * 28 * 28, .k = 9 * 64, .dtype = HZ_BF16,
		      .c_dtype = HZ_BF16, .method = HZ_QUAT_FAST, .a = {.data = b, .row = 9 * 256,
		      .col = 4, .comp = {0, 1, 2, 3}}},
		.x = x, .y = pixels, .images = 4,
	};
	struct hzi_quat_wgrad_step dw = {
		.g = {.m = 64, .n = 9 * 64, .k = 4 * 28 * 28, .dtype = HZ_BF16, .c_dtype = HZ_F32,
		      .method = HZ_QUAT_FAST},
		.x = x, .small = pixels, .images = 4, .sum = d,
	};
	const char *why;

	y.y.data = dw.small.data = c;
	is_str(hzi_route_pick(ctx, steps->conv, &y, &why)->name, "implicit_gemm8", "in bf16");
	is_str(hzi_route_pick(ctx, steps->weights, &dw, &why)->name, "wgrad16", "a gradient");
	y.g.precision = dw.g.precision = HZ_PRECISION_F32;
	is_str(hzi_route_pick(ctx, steps->conv, &y, &why)->name, "patches", "in f32");
	is_str(hzi_route_pick(ctx, steps->weights, &dw, &why)->name, "patches", "a gradient");
}

/* 8 channels in a group, mma.sync on any GPU */
static void test_conv_grouped(void)
{
	const int64_t xs[] = {4, 14, 14, 96, 4}, ws[] = {96, 3, 3, 8, 4};
	hz_tensor x = hz_tensor_nd(a, HZ_BF16, HZ_CUDA, 5, xs);
	hz_tensor w = hz_tensor_nd(b, HZ_BF16, HZ_CUDA, 5, ws);
	hz_tensor y = hz_tensor_nd(c, HZ_BF16, HZ_CUDA, 5, xs);
	hz_quat_conv_opts o = {.pad = {1, 1}, .groups = 12};
	const struct fakecuda_launch *l;
	size_t bytes = 0;

	is_int(RECORD(ctx, hz_quat_conv(ctx, &x, &w, NULL, &y, &o), &bytes), HZ_OK, "a workspace");
	/* A matrix of 4 x 4 for each weight */
	is_int((int64_t)bytes, 96 * 9 * 8 * 16 * 2, "of weights alone");
	is_int(hz_quat_conv(ctx, &x, &w, NULL, &y, &o), HZ_OK, "groups of eight channels");
	is_str(taken(), "quat_conv_grouped_pack_bf16 quat_conv_grouped_8_bf16", "all at once");
	l = fake->launch(fake->launches() - 1);
	is_int(l->grid[0], 4, "256 of 784 pixels to a block");
	is_int(l->grid[1], 12, "of a group");
	x.data = (char *)a + 8;
	is_int(hz_quat_conv(ctx, &x, &w, NULL, &y, &o), HZ_OK, "what is not aligned");
	ok(!strstr(taken(), "quat_conv_grouped"), "by others");
}

/* Depthwise: all groups at once, on any GPU */
static void test_conv_depthwise(void)
{
	const int64_t xs[] = {4, 28, 28, 64, 4}, ys[] = {4, 28, 28, 3, 4};
	const int64_t ws[] = {64, 3, 3, 1, 4}, few_outputs[] = {3, 3, 3, 64, 4};
	const int64_t five[] = {64, 5, 5, 1, 4};
	hz_tensor x = hz_tensor_nd(a, HZ_BF16, HZ_CUDA, 5, xs);
	hz_tensor w = hz_tensor_nd(b, HZ_BF16, HZ_CUDA, 5, ws);
	hz_tensor y = hz_tensor_nd(c, HZ_BF16, HZ_CUDA, 5, xs);
	hz_tensor dw = hz_tensor_nd(d, HZ_BF16, HZ_CUDA, 5, ws);
	hz_quat_conv_opts o = {.pad = {1, 1}, .groups = 64};
	size_t bytes = 0;

	is_int(RECORD(ctx, hz_quat_conv_bwd(ctx, &x, &w, NULL, &y, NULL, &dw, NULL, &o), &bytes),
	       HZ_OK, "a workspace");
	is_int(hz_reserve(ctx, bytes), HZ_OK, "which there is");
	is_int(RECORD(ctx, hz_quat_conv(ctx, &x, &w, NULL, &y, &o), &bytes), HZ_OK, "a workspace");
	is_int((int64_t)bytes, 0, "of no bytes");
	is_int(hz_quat_conv(ctx, &x, &w, NULL, &y, &o), HZ_OK, "channel by channel");
	is_str(taken(), "quat_conv_depthwise_3x3_bf16", "in one launch");
	/* 14 times two columns of 8 rows of each channel, the last of 4 */
	is_int(fake->launch(fake->launches() - 1)->grid[0], 4 * 4 * 14 * 64 / 256, "of threads");
	is_int(hz_quat_conv_bwd(ctx, &x, &w, NULL, &y, NULL, &dw, NULL, &o), HZ_OK,
	       "the gradient of weights");
	is_str(taken(), "quat_conv_depthwise_wgrad_3x3_bf16 quat_conv_wgrad_reduce "
	       "quat_layer_copy_strided", "its kernels");
	w = hz_tensor_nd(b, HZ_BF16, HZ_CUDA, 5, five);
	dw = hz_tensor_nd(d, HZ_BF16, HZ_CUDA, 5, five);
	o.pad[0] = o.pad[1] = 2;
	is_int(RECORD(ctx, hz_quat_conv_bwd(ctx, &x, &w, NULL, &y, NULL, &dw, NULL, &o), &bytes),
	       HZ_OK, "a workspace");
	is_int(hz_reserve(ctx, bytes), HZ_OK, "which there is");
	is_int(hz_quat_conv(ctx, &x, &w, NULL, &y, &o), HZ_OK, "of 5 x 5 taps");
	is_int(hz_quat_conv_bwd(ctx, &x, &w, NULL, &y, NULL, &dw, NULL, &o), HZ_OK,
	       "their gradient");
	is_str(taken(), "quat_conv_depthwise_5x5_bf16 quat_conv_depthwise_wgrad_5x5_bf16 "
	       "quat_conv_wgrad_reduce quat_layer_copy_strided", "their kernels");
	is_int(fake->launch(fake->launches() - 3)->grid[1], 5, "a row of taps to a block");
	o.pad[0] = o.pad[1] = 1;
	o.groups = 1;
	w = hz_tensor_nd(b, HZ_BF16, HZ_CUDA, 5, few_outputs);
	y = hz_tensor_nd(c, HZ_BF16, HZ_CUDA, 5, ys);
	is_int(hz_quat_conv(ctx, &x, &w, NULL, &y, &o), HZ_OK, "three outputs of 64 channels");
	is_str(taken(), "quat_conv_depthwise_warp_bf16", "in another");
	is_int(fake->launch(fake->launches() - 1)->grid[0], 4 * 28 * 7 / 8, "of warps");
}

/*
 * A gradient whose product has more rows than a GPU supports is refused before others are written.
 * The addresses are of no memory; nothing reads or writes there.
 */
static void test_linear_rows(void)
{
	char *const far = (char *)((uintptr_t)1 << 44);
	const int64_t rows = (int64_t)1 << 31;
	hz_tensor x = hz_tensor_3d(far, HZ_F16, HZ_CUDA, rows, 1, 4);
	const hz_tensor dy = hz_tensor_3d(far + 8 * rows, HZ_F16, HZ_CUDA, rows, 1, 4);
	hz_tensor dx = hz_tensor_3d(far + 16 * rows, HZ_F16, HZ_CUDA, rows, 1, 4);
	const hz_tensor w = hz_tensor_3d(a, HZ_F16, HZ_CUDA, 1, 1, 4);
	hz_tensor dw = hz_tensor_3d(b, HZ_F16, HZ_CUDA, 1, 1, 4);
	const hz_tensor bias = hz_tensor_2d(c, HZ_F16, HZ_CUDA, 1, 4);
	hz_tensor db = hz_tensor_2d(d, HZ_F16, HZ_CUDA, 1, 4);
	const hz_quat_linear_opts rotate = {.flags = HZ_QUAT_ROTATION};

	is_int(hz_set_workspace(ctx, far + ((size_t)1 << 42), (size_t)1 << 42), HZ_OK,
	       "a large workspace");
	taken();
	is_int(hz_quat_linear_bwd(ctx, &x, &w, &bias, &dy, &dx, &dw, &db, NULL), HZ_ENOTSUP,
	       "gradients of too many rows: %s", hz_errmsg(ctx));
	is_str(taken(), "", "of which nothing is launched");
	is_int(hz_quat_linear_bwd(ctx, &x, &w, NULL, &dy, NULL, &dw, &db, &rotate), HZ_ENOTSUP,
	       "those of rotations: %s", hz_errmsg(ctx));
	is_str(taken(), "", "of which nothing is launched either");
	is_int(hz_set_workspace(ctx, NULL, 0), HZ_OK, "the own one again");
}

/* Gradients of one row, but too many columns; then of a convolution with too many pixels */
static void test_refused_products(void)
{
	char *const far = (char *)((uintptr_t)1 << 44);
	const int64_t most = (int64_t)1 << 31;
	const int64_t pixels[] = {most, 1, 1, 1, 4}, one[] = {1, 1, 1, 1, 4};
	hz_tensor x = hz_tensor_3d(far, HZ_F16, HZ_CUDA, 1, most, 4);
	hz_tensor w = hz_tensor_3d(far + 8 * most, HZ_F16, HZ_CUDA, 1, most, 4);
	hz_tensor dx = hz_tensor_3d(far + 16 * most, HZ_F16, HZ_CUDA, 1, most, 4);
	hz_tensor dy = hz_tensor_3d(a, HZ_F16, HZ_CUDA, 1, 1, 4), dw;
	hz_tensor db = hz_tensor_2d(b, HZ_F16, HZ_CUDA, 1, 4);
	const hz_quat_linear_opts rotate = {.flags = HZ_QUAT_ROTATION};

	is_int(hz_set_workspace(ctx, far + ((size_t)1 << 42), (size_t)1 << 42), HZ_OK,
	       "a large workspace");
	taken();
	is_int(hz_quat_linear_bwd(ctx, &x, &w, NULL, &dy, &dx, NULL, &db, NULL), HZ_ENOTSUP,
	       "gradients of too many columns: %s", hz_errmsg(ctx));
	is_str(taken(), "", "of which nothing is launched");
	x.shape[1] = w.shape[1] = dx.shape[1] = most / 2;
	is_int(hz_quat_linear_bwd(ctx, &x, &w, NULL, &dy, &dx, NULL, &db, &rotate), HZ_ENOTSUP,
	       "of rotations, too many numbers: %s", hz_errmsg(ctx));
	is_str(taken(), "", "of which nothing is launched");

	x = hz_tensor_nd(far, HZ_F16, HZ_CUDA, 5, pixels);
	dy = hz_tensor_nd(far + 8 * most, HZ_F16, HZ_CUDA, 5, pixels);
	dx = hz_tensor_nd(far + 16 * most, HZ_F16, HZ_CUDA, 5, pixels);
	w = hz_tensor_nd(a, HZ_F16, HZ_CUDA, 5, one);
	dw = hz_tensor_nd(c, HZ_F16, HZ_CUDA, 5, one);
	is_int(hz_quat_conv_bwd(ctx, &x, &w, NULL, &dy, &dx, &dw, &db, NULL), HZ_ENOTSUP,
	       "of a convolution, too many pixels: %s", hz_errmsg(ctx));
	is_str(taken(), "", "of which nothing is launched");
	is_int(hz_set_workspace(ctx, NULL, 0), HZ_OK, "the own one again");
}

static void test_all(void)
{
	char **const arrays[] = {&a, &b, &c, &d};

	stand_in_load(false);
	ctx = stand_in_open(HZ_CUDA, arrays, 4, OPERAND_BYTES, 3 * OPERAND_BYTES);
	test_elementwise();
	test_sums();
	test_fused_sum();
	for (size_t i = 0; i < sizeof(table) / sizeof(*table); i++)
		test_gemm(&table[i]);
	test_packed();
	test_batch();
	test_linear_workspace();
	test_linear_split();
	test_linear_rows();
	test_refused_products();
	test_pool();
	test_norm();
	test_pool_2d();
	if (HZ_CUDA_90A) {
		test_packed_few();
		test_packed_columns();
		test_tiles();
		test_conv();
		test_conv_split();
		test_conv_tiles();
		test_conv_gemm16();
		test_conv_many_taps();
		test_conv_refused();
	}
	test_conv_depthwise();
	test_conv_grouped();
	test_conv_split_16bit();
	test_conv_odd_groups();
	stand_in_close(ctx, HZ_CUDA, arrays, 4);
}

int main(void)
{
	stand_in_few(test_all);
	test_all();
	return done_testing();
}

#endif
