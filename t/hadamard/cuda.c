/*
 * cuda.c - launches of the Hadamard calls on a stand-in driver
 *
 * SPDX-License-Identifier: BSD-2-Clause
 *
 * Which kernel a call launches, its geometry and its parameters; nothing is computed. The tests of
 * the calls with HZ_TEST_DEVICE=cuda test results.
 */
#include <config.h>

#include "t/core/fakecuda.h"
#include "gpu/hadamard/hadamard.h"
#include "gpu/hadamard/contiguous.h"
#include "gpu/hadamard/quantize.h"
#include "hurwitz.h"
#include "t/core/tap.h"

#if !HZ_HAVE_CUDA

int main(void)
{
	skip_all("this build has no device code");
}

#else

#define SHARED_MAX 232448	/* shared memory of a block on the stand-in */

static const struct fakecuda *fake;
static hz_context *ctx;

enum { HADAMARD, QUANTIZE, DEQUANTIZE };

/* A call on a rows x n matrix, and the launches that it must make */
struct row {
	int op, x, y;			/* dtypes */
	int64_t rows, n;
	int64_t x_stride, x_step;	/* 0: contiguous */
	int64_t group;			/* quantization; 0: the row */
	hz_hadamard_opts o;
	const char *kernel;		/* of each launch */
	int launches;
	unsigned threads, cluster;
	unsigned split;			/* blocks of a vector; 0: 1 */
	int64_t grid;			/* 0: any */
};

#define BLOCK(b) {.block = (b)}
#define COLUMNS(b) {.axis = HZ_AXIS(0), .block = (b)}
#define TRUE_ORDER(m) {.plan = HZ_PLAN_TRUE, .order = (m)}

static const struct row table[] = {
	/* Rows: four warps a block up to 2^11, then a block or a cluster for each */
	{.x = HZ_F16, .y = HZ_F32, .rows = 1000, .n = 16,
	 .kernel = "rows_10", .launches = 1, .threads = 128, .grid = 2},
	{.x = HZ_F16, .y = HZ_F32, .rows = 1000, .n = 32,
	 .kernel = "rows_10", .launches = 1, .threads = 128, .grid = 4},
	{.x = HZ_BF16, .y = HZ_F32, .rows = 129, .n = 64,
	 .kernel = "rows_10", .launches = 1, .threads = 128, .grid = 2},
	{.x = HZ_F32, .y = HZ_F16, .rows = 1, .n = 128,
	 .kernel = "rows_10", .launches = 1, .threads = 128, .grid = 1},
	{.x = HZ_F32, .y = HZ_F16, .rows = 65, .n = 256,
	 .kernel = "rows_10", .launches = 1, .threads = 128, .grid = 3},
	{.x = HZ_F32, .y = HZ_F16, .rows = 17, .n = 512,
	 .kernel = "rows_10", .launches = 1, .threads = 128, .grid = 2},
	{.x = HZ_F32, .y = HZ_F16, .rows = 9, .n = 1024,
	 .kernel = "rows_10", .launches = 1, .threads = 128, .grid = 2},
	{.x = HZ_F32, .y = HZ_F16, .rows = 5, .n = 2048,
	 .kernel = "rows_11", .launches = 1, .threads = 128, .grid = 2},
	{.x = HZ_F32, .y = HZ_F16, .rows = 5, .n = 4096,
	 .kernel = "rows_12", .launches = 1, .threads = 64, .grid = 5},
	{.x = HZ_F32, .y = HZ_F16, .rows = 5, .n = 8192,
	 .kernel = "rows_13", .launches = 1, .threads = 128, .grid = 5},
	{.x = HZ_F32, .y = HZ_F16, .rows = 5, .n = 16384,
	 .kernel = "rows_14", .launches = 1, .threads = 256, .grid = 5},
	{.x = HZ_F32, .y = HZ_F16, .rows = 5, .n = 32768,
	 .kernel = "rows_15", .launches = 1, .threads = 512, .grid = 5},
	{.x = HZ_F32, .y = HZ_F16, .rows = 5, .n = 65536,
	 .kernel = "rows_16_c4", .launches = 1, .threads = 256, .cluster = 4,
	 .grid = 20},
	/* Rows with gaps, multiples of 16 bytes or not */
	{.x = HZ_F16, .y = HZ_F16, .rows = 40, .n = 128, .x_stride = 384,
	 .kernel = "rows_10", .launches = 1, .threads = 128,
	 .grid = 1},
	{.x = HZ_F16, .y = HZ_F16, .rows = 40, .n = 128, .x_stride = 129,
	 .kernel = "strided", .launches = 1, .threads = 256,
	 .grid = 1},
	{.x = HZ_F16, .y = HZ_F16, .rows = 40, .n = 128, .x_stride = 256, .x_step = 2,
	 .kernel = "strided", .launches = 1,
	 .threads = 256, .grid = 1},
	/* Too short for a row of 16 bytes */
	{.x = HZ_F32, .y = HZ_F16, .rows = 7, .n = 8,
	 .kernel = "strided", .launches = 1, .threads = 256, .grid = 1},
	/* A launch for each length of a block */
	{.x = HZ_BF16, .y = HZ_F32, .rows = 1000, .n = 96,
	 .kernel = "rows_10 rows_10", .launches = 2, .threads = 128},
	{.x = HZ_BF16, .y = HZ_F32, .rows = 1000, .n = 112,
	 .kernel = "rows_10 rows_10 rows_10", .launches = 3, .threads = 128},
	{.x = HZ_BF16, .y = HZ_F32, .rows = 10, .n = 387,
	 .kernel = "strided strided strided strided", .launches = 4, .threads = 256},
	{.x = HZ_F32, .y = HZ_F32, .rows = 12, .n = 100, .o = {.axis = HZ_AXIS(0)},
	 .kernel = "strided strided", .launches = 2, .threads = 256},
	{.x = HZ_BF16, .y = HZ_F32, .rows = 10, .n = 96, .o = {.plan = HZ_PLAN_UNIFORM},
	 .kernel = "rows_10", .launches = 1,
	 .threads = 128, .grid = 1},
	{.x = HZ_BF16, .y = HZ_F32, .rows = 10, .n = 512, .o = BLOCK(128),
	 .kernel = "rows_10", .launches = 1, .threads = 128,
	 .grid = 1},
	{.x = HZ_BF16, .y = HZ_BF16, .rows = 3, .n = 10240,
	 .kernel = "rows_13 rows_11", .launches = 2, .threads = 128},
	{.x = HZ_BF16, .y = HZ_BF16, .rows = 88, .n = 14336,
	 .kernel = "row_segments", .launches = 1, .threads = 1024, .grid = 88, .split = 3},
	{.x = HZ_BF16, .y = HZ_BF16, .rows = 528, .n = 96,
	 .kernel = "row_segments", .launches = 1, .threads = 32, .grid = 528, .split = 2},
	{.x = HZ_BF16, .y = HZ_BF16, .rows = 529, .n = 96,
	 .kernel = "rows_10 rows_10", .launches = 2, .threads = 128},
	/* Columns */
	{.x = HZ_F32, .y = HZ_F32, .rows = 256, .n = 100, .o = COLUMNS(32),
	 .kernel = "columns", .launches = 1, .threads = 64,
	 .grid = 16},
	{.x = HZ_F32, .y = HZ_F32, .rows = 256, .n = 100, .o = COLUMNS(128),
	 .kernel = "columns", .launches = 1,
	 .threads = 256, .grid = 4},
	{.x = HZ_F32, .y = HZ_F32, .rows = 1024, .n = 100, .o = COLUMNS(1024),
	 .kernel = "columns_10", .launches = 1,
	 .threads = 512, .grid = 4},
	{.x = HZ_F32, .y = HZ_F32, .rows = 256, .n = 101, .o = COLUMNS(128),
	 .kernel = "strided", .launches = 1, .threads = 256},
	{.x = HZ_F32, .y = HZ_F32, .rows = 2048, .n = 64, .o = COLUMNS(2048),
	 .kernel = "strided", .launches = 1, .threads = 512},
	/* 16-bit columns in slices of 8, and what they do not support */
	{.x = HZ_F16, .y = HZ_F16, .rows = 256, .n = 104, .o = COLUMNS(128),
	 .kernel = "columns_f16_7", .launches = 1, .threads = 256, .grid = 2},
	{.x = HZ_F16, .y = HZ_F16, .rows = 256, .n = 104, .x_stride = 112, .o = COLUMNS(32),
	 .kernel = "columns_f16_5", .launches = 1, .threads = 128, .grid = 4},
	{.x = HZ_BF16, .y = HZ_BF16, .rows = 48, .n = 8, .o = COLUMNS(16),
	 .kernel = "columns_bf16_4", .launches = 1, .threads = 128, .grid = 1},
	{.x = HZ_BF16, .y = HZ_BF16, .rows = 192, .n = 72, .o = COLUMNS(64),
	 .kernel = "columns_bf16_6", .launches = 1, .threads = 128, .grid = 2},
	{.x = HZ_BF16, .y = HZ_BF16, .rows = 768, .n = 80, .o = COLUMNS(256),
	 .kernel = "columns_bf16_8", .launches = 1, .threads = 128, .grid = 4},
	{.x = HZ_F16, .y = HZ_F16, .rows = 512, .n = 64, .o = COLUMNS(512),
	 .kernel = "columns_f16_9", .launches = 1, .threads = 128, .grid = 1},
	{.x = HZ_F16, .y = HZ_F16, .rows = 96, .n = 64, .o = {.axis = HZ_AXIS(0)},
	 .kernel = "columns_f16_6 columns_f16_5", .launches = 2, .threads = 128},
	{.x = HZ_F16, .y = HZ_F16, .rows = 256, .n = 100, .o = COLUMNS(128),
	 .kernel = "columns", .launches = 1, .threads = 256, .grid = 4},
	{.x = HZ_F16, .y = HZ_F16, .rows = 256, .n = 104, .x_stride = 106, .o = COLUMNS(128),
	 .kernel = "columns", .launches = 1, .threads = 256, .grid = 4},
	{.x = HZ_F16, .y = HZ_BF16, .rows = 256, .n = 104, .o = COLUMNS(128),
	 .kernel = "columns", .launches = 1, .threads = 256, .grid = 4},
	{.x = HZ_F16, .y = HZ_F16, .rows = 1024, .n = 64, .o = COLUMNS(1024),
	 .kernel = "columns_10", .launches = 1, .threads = 512, .grid = 2},
	/* Base matrices: contiguous rows, and what their kernels do not support */
	{.x = HZ_F16, .y = HZ_F32, .rows = 3, .n = 6144, .o = TRUE_ORDER(12),
	 .kernel = "base_split", .launches = 1, .threads = 768,
	 .grid = 3, .split = 3},
	{.x = HZ_F16, .y = HZ_F32, .rows = 67, .n = 6144, .o = TRUE_ORDER(12),
	 .kernel = "base_rows", .launches = 1, .threads = 96,
	 .grid = 67},
	{.x = HZ_F32, .y = HZ_F16, .rows = 67, .n = 40960, .o = TRUE_ORDER(20),
	 .kernel = "base_rows", .launches = 1, .threads = 320,
	 .grid = 67},
	{.x = HZ_F32, .y = HZ_F16, .rows = 3, .n = 96, .o = TRUE_ORDER(12),
	 .kernel = "base_split", .launches = 1, .threads = 32,
	 .grid = 3, .split = 3},
	{.x = HZ_F32, .y = HZ_F16, .rows = 3, .n = 48, .o = TRUE_ORDER(12),
	 .kernel = "strided", .launches = 1, .threads = 256,
	 .grid = 1},
	{.x = HZ_F32, .y = HZ_F16, .rows = 300, .n = 156 * 8, .o = TRUE_ORDER(156),
	 .kernel = "base_split_big", .launches = 1,
	 .threads = 160, .grid = 300},
	{.x = HZ_F32, .y = HZ_F16, .rows = 3, .n = 156 * 4, .o = TRUE_ORDER(156),
	 .kernel = "strided_big", .launches = 1,
	 .threads = 256, .grid = 1},
	/* 60 x 1024 elements are more than a block's shared memory holds */
	{.x = HZ_F32, .y = HZ_F16, .rows = 3, .n = 61440, .o = TRUE_ORDER(60),
	 .kernel = "strided", .launches = 1, .threads = 512,
	 .cluster = 2, .grid = 6},
	/* Quantization */
	{.op = QUANTIZE, .x = HZ_F32, .y = HZ_S8, .rows = 100, .n = 128,
	 .kernel = "rows_quantize_10", .launches = 1, .threads = 128,
	 .grid = 2},
	{.op = QUANTIZE, .x = HZ_F32, .y = HZ_E4M3, .rows = 100, .n = 4096,
	 .kernel = "rows_quantize_12", .launches = 1,
	 .threads = 64, .grid = 100},
	{.op = QUANTIZE, .x = HZ_F32, .y = HZ_S4X2, .rows = 100, .n = 4096, .group = 128,
	 .kernel = "rows_quantize_12",
	 .launches = 1, .threads = 64, .grid = 100},
	{.op = QUANTIZE, .x = HZ_F32, .y = HZ_S8, .rows = 3, .n = 65536,
	 .kernel = "rows_quantize_16_c4", .launches = 1,
	 .threads = 256, .cluster = 4, .grid = 12},
	{.op = QUANTIZE, .x = HZ_F32, .y = HZ_S8, .rows = 100, .n = 512, .o = BLOCK(128),
	 .kernel = "strided_quantize",
	 .launches = 1, .threads = 128, .grid = 100},
	{.op = QUANTIZE, .x = HZ_F32, .y = HZ_S8, .rows = 100, .n = 512, .group = 128,
	 .o = BLOCK(128), .kernel = "rows_quantize_10", .launches = 1, .threads = 128, .grid = 7},
	{.op = QUANTIZE, .x = HZ_BF16, .y = HZ_S8, .rows = 9, .n = 96, .group = 32,
	 .kernel = "row_segments_quantize", .launches = 1,
	 .threads = 32, .cluster = 2, .grid = 2, .split = 9},
	{.op = QUANTIZE, .x = HZ_F32, .y = HZ_S8, .rows = 3, .n = 11008,
	 .kernel = "row_segments_quantize", .launches = 1,
	 .threads = 1024, .cluster = 4, .grid = 4, .split = 3},
	{.op = HADAMARD, .x = HZ_BF16, .y = HZ_BF16, .rows = 3, .n = 11008,
	 .kernel = "row_segments", .launches = 1, .threads = 1024, .grid = 3, .split = 4},
	{.op = QUANTIZE, .x = HZ_F32, .y = HZ_S8, .rows = 9, .n = 387,
	 .kernel = "strided_quantize", .launches = 1, .threads = 128, .grid = 9},
	{.op = QUANTIZE, .x = HZ_F32, .y = HZ_S8, .rows = 2, .n = 156 * 4, .o = TRUE_ORDER(156),
	 .kernel = "strided_quantize_big",
	 .launches = 1, .threads = 128, .grid = 2},
	/* Dequantization */
	{.op = DEQUANTIZE, .x = HZ_S8, .y = HZ_F32, .rows = 100, .n = 1024,
	 .kernel = "rows_10", .launches = 1,
	 .threads = 128, .grid = 13},
	{.op = DEQUANTIZE, .x = HZ_S4X2, .y = HZ_F32, .rows = 9, .n = 4096, .group = 32,
	 .kernel = "rows_12", .launches = 1,
	 .threads = 64, .grid = 9},
	{.op = DEQUANTIZE, .x = HZ_S8, .y = HZ_F32, .rows = 9, .n = 12,
	 .kernel = "strided strided", .launches = 2, .threads = 256},
	{.op = DEQUANTIZE, .x = HZ_S8, .y = HZ_F32, .rows = 9, .n = 32, .group = 32,
	 .kernel = "strided", .launches = 1,
	 .threads = 256, .grid = 1},
};

static void *device_memory(int64_t bytes)
{
	void *p;

	if (hz_alloc(ctx, &p, (size_t)bytes, HZ_CUDA) != HZ_OK)
		bail("%s", hz_errmsg(ctx));
	return p;
}

/*
 * Contiguous rows of one dtype: the kernel, threads, blocks, and blocks of a cluster. Up to 16384
 * elements an SM are transformed by the kernel for signs, since that is launched early.
 */
static void test_contiguous(void)
{
	static const struct {
		int dtype;
		int64_t rows, n;
		const char *kernel;
		unsigned threads, cluster;
		int64_t grid;
	} t[] = {
		{HZ_F16, 1000, 32, "short_f16_7", 128, 0, 63},
		{HZ_F16, 5, 256, "short_f16_8", 64, 0, 3},
		{HZ_BF16, 5, 128, "short_bf16_7", 128, 0, 2},
		{HZ_BF16, 1056, 512, "short_bf16_9", 32, 0, 1056},
		{HZ_BF16, 1057, 512, "bf16_10", 32, 0, 529},
		{HZ_F16, 7, 1024, "f16_10", 32, 0, 7},
		{HZ_BF16, 2112, 1024, "bf16_10", 32, 0, 2112},
		{HZ_BF16, 2113, 1024, "bf16_10", 32, 0, 2113},
		{HZ_BF16, 5, 2048, "bf16_11", 64, 0, 5},
		{HZ_BF16, 5, 8192, "bf16_13", 256, 0, 5},
		{HZ_F16, 5, 16384, "f16_14", 256, 0, 5},
		{HZ_F16, 301, 16384, "f16_14", 256, 0, 151},
		{HZ_F16, 5, 32768, "f16_15", 512, 0, 5},
		{HZ_BF16, 1000, 32768, "bf16_15", 512, 0, 132},
		{HZ_BF16, 5, 65536, "bf16_16", 512, 0, 5},
		{HZ_F32, 5, 32, "f32_7", 128, 0, 1},
		{HZ_F32, 5, 128, "f32_7", 128, 0, 2},
		{HZ_F32, 5, 256, "f32_8", 64, 0, 3},
		{HZ_F32, 5, 512, "f32_9", 32, 0, 5},
		{HZ_F32, 5, 1024, "f32_10", 32, 0, 5},
		{HZ_F32, 8449, 256, "f32_8", 64, 0, 4225},
		{HZ_F32, 5, 32768, "f32_15", 1024, 0, 5},
		{HZ_F32, 5, 65536, "f32_16", 256, 8, 40},
	};

	for (size_t i = 0; i < sizeof(t) / sizeof(*t); i++) {
		const int64_t bytes = t[i].rows * t[i].n * (int64_t)hz_dtype_size(t[i].dtype);
		void *x = device_memory(bytes), *bits = device_memory(t[i].n / 8);
		hz_tensor tx = hz_tensor_2d(x, t[i].dtype, HZ_CUDA, t[i].rows, t[i].n);
		const hz_tensor signs = hz_tensor_1d(bits, HZ_U8, HZ_CUDA, t[i].n / 8);
		const struct fakecuda_launch *l;

		for (int with = 0; with < 2; with++) {
			const hz_hadamard_opts o = {.pre = with ? &signs : NULL};
			char name[64];

			fake->reset();
			snprintf(name, sizeof(name), "hadamard_contiguous_%s%s", t[i].kernel,
				 t[i].kernel[0] != 's' &&
				 (with || t[i].rows * t[i].n <= 132 * 16384) ? "_signs" : "");
			is_int(hz_hadamard(ctx, &tx, &tx, &o), HZ_OK, "%d rows of %d, %s%s",
			       (int)t[i].rows, (int)t[i].n, hz_dtype_name(t[i].dtype),
			       with ? ", signs" : "");
			l = fake->launch(0);
			is_str(l->kernel, name, "by %s", name);
			ok(fake->launches() == 1 && l->block[0] == t[i].threads &&
				   l->grid[0] == t[i].grid &&
				   (l->cluster > 1 ? l->cluster : 0) == t[i].cluster &&
				   l->shared_bytes <= SHARED_MAX,
			   "geometry");
		}
		hz_free(ctx, x, HZ_CUDA);
		hz_free(ctx, bits, HZ_CUDA);
	}
}

static int status_of(const struct row *r, void *x, void *y, void *scale)
{
	hz_tensor tx = hz_tensor_2d(x, r->x, HZ_CUDA, r->rows, r->x == HZ_S4X2 ? r->n / 2 : r->n);
	hz_tensor ty = hz_tensor_2d(y, r->y, HZ_CUDA, r->rows, r->y == HZ_S4X2 ? r->n / 2 : r->n);
	hz_tensor ts =
		hz_tensor_2d(scale, HZ_F32, HZ_CUDA, r->rows, r->group ? r->n / r->group : 1);

	if (r->x_stride)
		tx.stride[0] = r->x_stride;
	if (r->x_step)
		tx.stride[1] = r->x_step;
	switch (r->op) {
	case HADAMARD:
		return hz_hadamard(ctx, &tx, &ty, &r->o);
	case QUANTIZE:
		return hz_hadamard_quantize(ctx, &tx, &ty, &ts, &r->o);
	default:
		return hz_dequantize_hadamard(ctx, &tx, &ts, &ty, &r->o);
	}
}

/* The parameter structs of gpu/hadamard/hadamard.h begin with a job. */
static struct hzi_hadamard_job job_of(const struct fakecuda_launch *l)
{
	struct hzi_hadamard_job job;

	memcpy(&job, l->params, sizeof(job));
	return job;
}

static void test_row(const struct row *r)
{
	const int64_t count = r->rows * (r->x_stride ? r->x_stride : r->n);
	char *x = device_memory(count * 4 + 64), *y = device_memory(r->rows * r->n * 4 + 64);
	char *scale = device_memory(r->rows * r->n * 4);
	char names[256] = "", first[256] = "";
	int64_t covered = 0, offset = 0;
	int good = 1;

	fake->reset();
	is_int(status_of(r, x, y, scale), HZ_OK, "%s of %d x %d, %s to %s",
	       r->op == HADAMARD   ? "hadamard"
	       : r->op == QUANTIZE ? "quantization"
				   : "dequantization",
	       (int)r->rows, (int)r->n, hz_dtype_name(r->x), hz_dtype_name(r->y));
	if (fake->launches() != r->launches) {
		is_int(fake->launches(), r->launches, "the number of launches");
		return;
	}
	for (int i = 0; i < r->launches; i++) {
		const struct fakecuda_launch *l = fake->launch(i);
		const struct hzi_hadamard_job job = job_of(l);
		const int is_strided = !strncmp(l->kernel, "hadamard_strided", 16);
		const int is_whole_row = !strncmp(l->kernel, "hadamard_strided_quantize", 25) ||
					 !strncmp(l->kernel, "hadamard_row_segments", 21);

		snprintf(names + strlen(names), sizeof(names) - strlen(names), "%s%s", i ? " " : "",
			 l->kernel + strlen("hadamard_"));
		good &= l->block[0] == r->threads && l->block[1] == 1 &&
			l->grid[1] == (r->split ? r->split : 1);
		good &= (l->cluster ? l->cluster : 1) == (r->cluster ? r->cluster : 1);
		good &= !r->grid || l->grid[0] == r->grid;
		good &= l->shared_bytes <= SHARED_MAX;
		/* Some kernels get pointers to their segment, others to the rows. */
		offset = is_strided ? 0 : r->o.axis ? job.offset * r->n : job.offset;
		good &= job.y_dtype == r->y && job.x_dtype == r->x;
		good &= (const char *)job.x ==
			x + (r->x == HZ_S4X2 ? offset / 2 : offset * (int64_t)hz_dtype_size(r->x));
		good &= (char *)job.y ==
			y + (r->y == HZ_S4X2 ? offset / 2 : offset * (int64_t)hz_dtype_size(r->y));
		good &= (job.scale != NULL) == (r->op != HADAMARD) &&
			(!job.scale || job.scale == scale);
		if (strncmp(l->kernel, "hadamard_columns", 16))
			covered += is_whole_row ? job.vectors * r->n
						 : job.vectors * ((int64_t)job.m << job.k);
		else
			covered += job.vectors * ((int64_t)1 << job.k) * r->n;
		if (!good)
			diag("%s: grid %u, block %u, cluster %u, shared memory %u", l->kernel,
			     l->grid[0], l->block[0], l->cluster, l->shared_bytes);
	}
	is_str(names, r->kernel, "by %s", r->kernel);
	ok(good, "geometry and operands");
	is_int(covered, r->rows * r->n, "every element once");
	is_int(fake->complaints(first, sizeof(first)), 0, "nothing misused%s%s", *first ? ": " : "",
	       first);
	hz_free(ctx, x, HZ_CUDA);
	hz_free(ctx, y, HZ_CUDA);
	hz_free(ctx, scale, HZ_CUDA);
}

/* Factors, the order of the diagonals, transposition. */
static void test_arguments(void)
{
	enum { ROWS = 3, N = 256 };
	float *x = device_memory(ROWS * N * 4), *post = device_memory(N * 4);
	uint16_t *y = device_memory(ROWS * N * 4);
	uint8_t *signs = device_memory(N / 8);
	hz_tensor tx = hz_tensor_2d(x, HZ_F32, HZ_CUDA, ROWS, N),
		  ty = hz_tensor_2d(y, HZ_F16, HZ_CUDA, ROWS, N);
	const hz_tensor tpre = hz_tensor_1d(signs, HZ_U8, HZ_CUDA, N / 8),
			tpost = hz_tensor_1d(post, HZ_F32, HZ_CUDA, N);
	hz_hadamard_opts o = {.block = 64, .factor = 3, .pre = &tpre, .post = &tpost};
	struct hzi_hadamard_rows p;

	fake->reset();
	is_int(hz_hadamard(ctx, &tx, &ty, &o), HZ_OK, "signs before, factors after");
	memcpy(&p, fake->launch(0)->params, sizeof(p));
	is_int(fake->launch(0)->params_bytes, (long long)sizeof(p), "the struct as it is");
	ok(p.job.pre == signs && p.job.pre_kind == HZ_U8 && p.job.post == post &&
		   p.job.post_kind == HZ_F32,
	   "in their places");
	ok(p.job.factor == 0.375f, "3 / sqrt(64)");
	ok(p.job.vectors == 12 && p.dim[1].size == 4 && p.dim[1].x == 64 && p.dim[1].pre == 64 &&
		   p.dim[0].x == N && p.dim[0].pre == 0,
	   "blocks step through them, rows do not");
	for (uint32_t v = 0, bad = 0; v <= 12; v++) {
		const uint32_t hi = ((uint32_t)((uint64_t)v * p.magic >> 32) + v) >> p.shift;

		bad += hi != v / 4;
		if (v == 12)
			is_int(bad, 0, "the quotient without a division");
	}
	o.flags = HZ_HADAMARD_TRANSPOSE | HZ_HADAMARD_RAW;
	fake->reset();
	is_int(hz_hadamard(ctx, &tx, &ty, &o), HZ_OK, "transposed, raw");
	memcpy(&p, fake->launch(0)->params, sizeof(p));
	ok(p.job.pre == post && p.job.post == signs && p.job.factor == 3,
	   "the other way around, no root");
	hz_free(ctx, x, HZ_CUDA);
	hz_free(ctx, y, HZ_CUDA);
	hz_free(ctx, post, HZ_CUDA);
	hz_free(ctx, signs, HZ_CUDA);
}

/* Contiguous 16-bit rows to codes: kernel, geometry, parameters, and what is unsupported */
static void test_codes(void)
{
	static const struct {
		int x, y;
		int64_t rows, n, group, block, pad;
		const char *kernel;
		unsigned threads, grid, shared;
	} codes[] = {
		{HZ_BF16, HZ_S8, 33, 128, 128, 0, 0, "quantize_bf16_7", 128, 2, 0},
		{HZ_F16, HZ_E4M3, 1, 32, 32, 0, 0, "quantize_f16_5", 128, 1, 0},
		{HZ_F16, HZ_S4X2, 4096, 1024, 64, 0, 0, "quantize_f16_10", 128, 1024, 0},
		{HZ_BF16, HZ_S8, 100, 512, 512, 128, 0, "quantize_bf16_7", 128, 13, 0},
		{HZ_BF16, HZ_S8, 100, 1280, 128, 256, 0, "quantize_bf16_8", 128, 32, 0},
		{HZ_BF16, HZ_E5M2, 3, 2048, 2048, 0, 0, "quantize_bf16_11", 64, 3, 8200},
		{HZ_BF16, HZ_S8, 100, 4096, 4096, 0, 0, "quantize_bf16_12", 128, 100, 16400},
		{HZ_F16, HZ_S8, 100, 16384, 16384, 0, 0, "quantize_f16_14", 512, 100, 65600},
		{HZ_F16, HZ_S4X2, 5, 4096, 128, 0, 0, "quantize_f16_12_groups", 128, 5, 16384},
		{HZ_BF16, HZ_E4M3, 5, 24576, 32, 8192, 0, "quantize_bf16_13_groups", 256, 15,
		 32768},
		/* rows with gaps, rows of several transforms, and what has no kernel */
		{HZ_BF16, HZ_S8, 5, 4096, 4096, 0, 8, "rows_quantize_12", 64, 5, 0},
		{HZ_BF16, HZ_S8, 5, 8192, 8192, 4096, 0, "strided_quantize", 256, 5, 0},
		{HZ_BF16, HZ_S8, 5, 16384, 64, 0, 0, "rows_quantize_14", 256, 5, 0},
		{HZ_BF16, HZ_S8, 5, 32768, 32768, 0, 0, "rows_quantize_15", 512, 5, 0},
		{HZ_F32, HZ_S8, 5, 4096, 4096, 0, 0, "rows_quantize_12", 64, 5, 0},
	};
	char *x = device_memory(1 << 25), *q = device_memory(1 << 24);
	char *scale = device_memory(1 << 20);
	uint8_t *signs = device_memory(4096);

	for (size_t i = 0; i < sizeof(codes) / sizeof(*codes); i++) {
		const int64_t rows = codes[i].rows, n = codes[i].n, groups = n / codes[i].group;
		const int64_t block = codes[i].block ? codes[i].block : n;
		hz_tensor tx = hz_tensor_2d(x, codes[i].x, HZ_CUDA, rows, n);
		hz_tensor tq = hz_tensor_2d(q, codes[i].y, HZ_CUDA, rows,
						  codes[i].y == HZ_S4X2 ? n / 2 : n);
		hz_tensor ts = hz_tensor_2d(scale, HZ_F32, HZ_CUDA, rows, groups);
		const hz_tensor sign = hz_tensor_1d(signs, HZ_U8, HZ_CUDA, block / 8);
		const hz_hadamard_opts o = {.block = block, .pre = &sign, .factor = 3,
					    .flags = HZ_HADAMARD_RAW, .round_to = HZ_F16};
		const struct fakecuda_launch *l;
		struct hzi_hadamard_quantize p;

		tx.stride[0] += codes[i].pad;
		fake->reset();
		is_int(hz_hadamard_quantize(ctx, &tx, &tq, &ts, &o), HZ_OK,
		       "codes of %d x %d, %s to %s", (int)rows, (int)n,
		       hz_dtype_name(codes[i].x), hz_dtype_name(codes[i].y));
		l = fake->launch(0);
		is_str(l->kernel + strlen("hadamard_"), codes[i].kernel, "by %s", codes[i].kernel);
		ok(l->grid[0] == codes[i].grid && l->block[0] == codes[i].threads,
		   "%u blocks of %u", l->grid[0], l->block[0]);
		if (strncmp(codes[i].kernel, "quantize", 8))
			continue;
		memcpy(&p, l->params, sizeof(p));
		is_int(l->params_bytes, (long long)sizeof(p), "the struct as it is");
		is_int(l->shared_bytes, codes[i].shared, "shared memory");
		ok(p.f.x == x && p.f.y == q && p.scales == scale && p.f.pre == signs && !p.f.post &&
			   p.f.total == rows * n && p.f.mask == block - 1 &&
			   (int64_t)1 << p.f.k == block &&
			   p.f.factor == 3 && (int64_t)1 << p.group_log2 == codes[i].group &&
			   p.q_dtype == codes[i].y && p.scale_dtype == HZ_F32 &&
			   p.round_to == HZ_F16,
		   "operands and options in their places");
		ok(p.q_max * p.inverse_q_max > 0.999999f &&
			   p.q_max * p.inverse_q_max < 1.000001f &&
			   p.has_pre && p.post_or_round && p.prefetch_distance > 0,
		   "the largest code and its inverse, signs before, rounding after, prefetches");
	}
	hz_free(ctx, x, HZ_CUDA);
	hz_free(ctx, q, HZ_CUDA);
	hz_free(ctx, scale, HZ_CUDA);
	hz_free(ctx, signs, HZ_CUDA);
}

/* The same for dequantization */
static void test_values(void)
{
	static const struct {
		int x, y;
		int64_t rows, n, group, block, pad;
		double scale;
		const char *kernel;
		unsigned threads, grid, shared;
	} values[] = {
		{HZ_S8, HZ_BF16, 33, 128, 128, 0, 0, 1, "dequantize_7", 128, 2, 0},
		{HZ_S4X2, HZ_F16, 100, 1280, 64, 256, 0, -0.5, "dequantize_8_groups", 128, 32, 0},
		{HZ_E4M3, HZ_BF16, 100, 4096, 128, 0, 0, 1, "dequantize_12_groups", 128, 100,
		 16384},
		{HZ_E5M2, HZ_F16, 7, 16384, 16384, 0, 0, 1, "dequantize_14", 512, 7, 65536},
		{HZ_S8, HZ_BF16, 3, 8192, 8192, 4096, 0, 1, "dequantize_12", 128, 6, 16384},
		{HZ_S8, HZ_BF16, 100, 4096, 4096, 0, 0, 2, "rows_12", 64, 100, 0},
		{HZ_S8, HZ_BF16, 100, 4096, 4096, 0, 8, 1, "rows_12", 64, 100, 0},
		{HZ_S8, HZ_F32, 100, 4096, 4096, 0, 0, 1, "rows_12", 64, 100, 0},
		{HZ_S8, HZ_BF16, 3, 24576, 24576, 8192, 0, 1, "rows_13", 128, 9, 0},
	};
	char *q = device_memory(1 << 24), *y = device_memory(1 << 25);
	char *scale = device_memory(1 << 20);

	for (size_t i = 0; i < sizeof(values) / sizeof(*values); i++) {
		const int64_t rows = values[i].rows, n = values[i].n, groups = n / values[i].group;
		const int64_t block = values[i].block ? values[i].block : n;
		hz_tensor tq = hz_tensor_2d(q, values[i].x, HZ_CUDA, rows,
						  values[i].x == HZ_S4X2 ? n / 2 : n);
		hz_tensor ts = hz_tensor_2d(scale, HZ_F32, HZ_CUDA, rows, groups);
		const hz_hadamard_opts o = {.block = block, .factor = values[i].scale,
					    .flags = HZ_HADAMARD_RAW};
		hz_tensor ty = hz_tensor_2d(y, values[i].y, HZ_CUDA, rows, n);
		const struct fakecuda_launch *l;
		struct hzi_hadamard_quantize p;

		ty.stride[0] += values[i].pad;
		fake->reset();
		is_int(hz_dequantize_hadamard(ctx, &tq, &ts, &ty, &o), HZ_OK,
		       "values of %d x %d, %s to %s", (int)rows, (int)n,
		       hz_dtype_name(values[i].x), hz_dtype_name(values[i].y));
		l = fake->launch(0);
		is_str(l->kernel + strlen("hadamard_"), values[i].kernel, "by %s",
		       values[i].kernel);
		ok(l->block[0] == values[i].threads, "%u threads", l->block[0]);
		if (strncmp(values[i].kernel, "dequantize", 10))
			continue;
		memcpy(&p, l->params, sizeof(p));
		is_int(l->params_bytes, (long long)sizeof(p), "the struct as it is");
		ok(l->grid[0] == values[i].grid && l->shared_bytes == values[i].shared,
		   "%u blocks, %u bytes of shared memory", l->grid[0], l->shared_bytes);
		ok(p.f.x == q && p.f.y == y && p.scales == scale && !p.f.pre && !p.f.post &&
			   !p.has_pre && p.f.total == rows * n && p.f.mask == block - 1 &&
			   (int64_t)1 << p.f.k == block &&
			   p.f.factor == (float)values[i].scale &&
			   (int64_t)1 << p.group_log2 == values[i].group &&
			   p.q_dtype == values[i].x && p.scale_dtype == HZ_F32 &&
			   p.round_to == values[i].y && p.prefetch_distance > 0,
		   "operands and options in their places");
	}
	hz_free(ctx, q, HZ_CUDA);
	hz_free(ctx, y, HZ_CUDA);
	hz_free(ctx, scale, HZ_CUDA);
}

/* Contiguous rows of m 2^k: tiles of some rows, shared among the stand-in's 132 SMs */
static void test_base_rows(void)
{
	static const struct {
		int dtype, m, k;
		int64_t rows;
		int base, tile;		/* rows */
		const char *kernel;
		unsigned threads, grid, shared_bytes;
	} t[] = {
		{HZ_F16, 12, 5, 25, HZ_BASE_QUIP, 8, "base_mma_f16_m12_6", 96, 4, 18432},
		{HZ_BF16, 12, 7, 2643, 0, 1, "base_mma_bf16_m12_7", 64, 2643, 12288},
		{HZ_F16, 20, 7, 2113, 0, 1, "base_mma_f16_m20_7", 64, 1585, 20480},
		{HZ_F16, 12, 8, 1, 0, 1, "base_mma_f16_m12_8", 96, 1, 18432},
		{HZ_BF16, 12, 9, 792, 0, 1, "base_mma_bf16_m12_9", 96, 792, 36864},
		{HZ_BF16, 20, 8, 1000, HZ_BASE_DAO, 1, "base_mma_bf16_m20_8", 128, 1000, 40960},
		{HZ_F16, 20, 9, 400, 0, 1, "base_mma_f16_m20_9", 160, 400, 61440},
		{HZ_BF16, 20, 11, 400, 0, 1, "base_mma_bf16_m20_11", 384, 222, 147456},
		{HZ_BF16, 28, 6, 3, 0, 4, "base_mma_bf16_m28_6", 224, 1, 43008},
		{HZ_F16, 28, 8, 3, 0, 1, "base_mma_f16_m28_8", 128, 3, 57344},
		{HZ_BF16, 28, 9, 1000, 0, 1, "base_mma_bf16_m28_9", 256, 510, 114688},
		{HZ_BF16, 28, 11, 3, 0, 1, "base_mma_bf16_m28_11", 384, 3, 180224},
		{HZ_F32, 12, 5, 9, 0, 8, "base_f32_m12", 96, 2, 12288},
		{HZ_F32, 20, 8, 1000, 0, 1, "base_f32_m20_8", 256, 1000, 40960},
		{HZ_F32, 20, 11, 140, 0, 1, "base_f32_m20_11", 1024, 140, 229376},
		{HZ_F32, 28, 9, 3, 0, 1, "base_f32_m28_9", 512, 3, 114688},
		{HZ_F32, 28, 11, 2, 0, 1, "base_f32_m28", 448, 2, 229376},
		{HZ_F32, 12, 5, 9, HZ_BASE_QUIP, 8, "base_f32_any_m12", 96, 2, 12288},
		{HZ_F32, 20, 8, 1000, HZ_BASE_DAO, 1, "base_f32_any_m20_8", 256, 1000, 40960},
		{HZ_F32, 28, 9, 3, HZ_BASE_PALEY1, 1, "base_f32_any_m28_9", 128, 3, 60480},
		{HZ_F32, 40, 6, 3, HZ_BASE_DAO, 2, "base_f32_any_m40", 160, 2, 20480},
		{HZ_F32, 40, 8, 3, HZ_BASE_QUIP, 1, "base_f32_any_m40_8", 64, 3, 47360},
		{HZ_F32, 40, 10, 2, HZ_BASE_DAO, 1, "base_f32_any_m40_10", 256, 2, 170240},
		{HZ_BF16, 36, 7, 1000, HZ_BASE_QUIP, 1, "base_mma_any_bf16_48_7", 64, 1000, 29440},
		{HZ_F16, 44, 8, 3, HZ_BASE_PALEY1, 1, "base_mma_any_f16_48_8", 128, 3, 58112},
		{HZ_BF16, 60, 9, 300, 0, 1, "base_mma_any_bf16_64_9", 256, 300, 99328},
		{HZ_F16, 40, 10, 3, 0, 1, "base_mma_any_f16_80_10", 256, 3, 148736},
		{HZ_BF16, 52, 10, 3, HZ_BASE_QUIP, 1, "base_mma_any_bf16_112_10", 256, 3, 182016},
	};

	for (size_t i = 0; i < sizeof(t) / sizeof(*t); i++) {
		const int64_t n = (int64_t)t[i].m << t[i].k;
		const hz_hadamard_opts o = {.plan = HZ_PLAN_TRUE, .order = t[i].m,
					    .base = t[i].base};
		const int64_t bytes = t[i].rows * n * (int64_t)hz_dtype_size(t[i].dtype);
		char *x = device_memory(bytes), *y = device_memory(bytes);
		hz_tensor tx = hz_tensor_2d(x, t[i].dtype, HZ_CUDA, t[i].rows, n);
		hz_tensor ty = hz_tensor_2d(y, t[i].dtype, HZ_CUDA, t[i].rows, n);
		const struct fakecuda_launch *l;
		struct hzi_hadamard_base_mma mma;
		struct hzi_hadamard_base_mma_any any;
		struct hzi_hadamard_base_f32_any base;
		struct hzi_hadamard_schedule s = {0};
		int8_t entries[60 * 60];
		int64_t tiles;
		int bad = 0;

		fake->reset();
		is_int(hz_hadamard(ctx, &tx, &ty, &o), HZ_OK, "%d x %d 2^%d of %s",
		       (int)t[i].rows, t[i].m, t[i].k, hz_dtype_name(t[i].dtype));
		l = fake->launch(0);
		is_str(l->kernel + strlen("hadamard_"), t[i].kernel, "by %s", t[i].kernel);
		is_int(l->block[0], t[i].threads, "threads");
		is_int(l->grid[0], t[i].grid, "blocks");
		is_int(l->shared_bytes, t[i].shared_bytes, "shared memory");
		hz_hadamard_base(t[i].base, t[i].m, entries);
		if (t[i].dtype == HZ_F32) {
			const int count = t[i].base ? t[i].m * t[i].m : 0;

			memcpy(&base, l->params, sizeof(base.b) + sizeof(float) * (size_t)count);
			s = base.b.s;
			for (int e = 0; e < count; e++)
				bad += base.sign[e] != entries[e];
			ok(base.b.f.x == x && base.b.f.y == y && base.b.f.k == t[i].k &&
				   base.b.f.total == t[i].rows * n && !bad,
			   "the rows and the base matrix");
		} else if (t[i].m > 28) {
			memcpy(&any, l->params, sizeof(any));
			s = any.s;
			for (int e = 0; e < t[i].m * t[i].m; e++) {
				const int column = e % t[i].m, bit = column % 32 / 2;
				const uint32_t *sign = any.sign[e / t[i].m];
				const uint32_t want = entries[e] < 0;

				if (t[i].k < 10)
					bad += (sign[column / 32] >> (bit + column % 2 * 16) & 1) !=
					       want;
				else
					bad += (sign[column / 16] >> column % 16 & 0x10001) !=
					       want * 0x10001;
			}
			ok(any.x == x && any.y == y && any.m == t[i].m && !bad,
			   "the rows and the base matrix");
		} else {
			memcpy(&mma, l->params, sizeof(mma));
			s = mma.s;
			for (int e = 0; e < t[i].m * t[i].m; e++) {
				const int column = e % t[i].m, bit = column / 2 + column % 2 * 16;

				bad += (mma.sign[e / t[i].m] >> bit & 1) != (entries[e] < 0);
			}
			ok(mma.x == x && mma.y == y && mma.k == t[i].k && mma.rows == t[i].rows &&
				   !bad,
			   "the rows and the base matrix");
		}
		tiles = (t[i].rows + t[i].tile - 1) / t[i].tile;
		if (s.tiles_per_block)
			is_int(l->grid[0] + (int64_t)s.long_blocks * (s.tiles_per_block - 1), tiles,
			       "every tile once");
		else
			is_int(l->grid[0], tiles, "every tile once");
		hz_free(ctx, x, HZ_CUDA);
		hz_free(ctx, y, HZ_CUDA);
	}
}

/* Unsupported calls and a failing driver: the status, the message, no launches */
static void test_errors(void)
{
	/* So many rows that each length has its own launch */
	static const struct row good = {.x = HZ_F32, .y = HZ_F16, .rows = 600, .n = 96};
	struct row r = good;
	void *x = device_memory(1 << 20), *y = device_memory(1 << 20);
	void *scale = device_memory(1 << 15);

	fake->reset();
	r = (struct row){.op = QUANTIZE, .x = HZ_F16, .y = HZ_S8, .rows = 2, .n = 65568,
			 .group = 32};
	is_int(status_of(&r, x, y, scale), HZ_ENOTSUP, "a block of 65536 and one of 32 to codes");
	is_int(fake->launches(), 0, "and neither was launched");
	r = good;
	r.n = 131072;
	r.rows = 1;
	is_int(status_of(&r, x, y, scale), HZ_ENOTSUP, "a block of 131072");
	ok(strstr(hz_errmsg(ctx), "131072") != NULL, "is too long: %s", hz_errmsg(ctx));
	is_int(fake->launches(), 0, "and nothing was launched");

	is_int(status_of(&good, x, y, scale), HZ_OK, "two launches");
	is_int(fake->launches(), 2, "are made");
	fake->reset();
	fake->fail_at(2, 1, 0);
	is_int(status_of(&good, x, y, scale), HZ_ECUDA, "the first fails");
	is_int(fake->launches(), 0, "so the second is not tried");
	fake->reset();
	fake->fail_at(5, 1, 0);
	is_int(status_of(&good, x, y, scale), HZ_ECUDA, "the second fails");
	hz_free(ctx, x, HZ_CUDA);
	hz_free(ctx, y, HZ_CUDA);
	hz_free(ctx, scale, HZ_CUDA);
}

int main(void)
{
	const hz_options options = {.device = HZ_CUDA, .threads = 1};

	setenv("FAKECUDA_MEMORY", "1000000000", 1);
	fake = fakecuda_load();
	if (!fake)
		bail("no stand-in");
	if (hz_open(&ctx, &options) != HZ_OK)
		bail("%s", hz_open_errmsg());
	for (size_t i = 0; i < sizeof(table) / sizeof(*table); i++)
		test_row(&table[i]);
	test_contiguous();
	test_base_rows();
	test_arguments();
	test_codes();
	test_values();
	test_errors();
	hz_close(ctx);
	return done_testing();
}

#endif
