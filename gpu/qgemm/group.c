/*
 * group.c - launchers of linear layers with group-wise quantized weights
 *
 * SPDX-License-Identifier: BSD-2-Clause
 *
 * W is packed to the workspace unless the caller has packed it. A launch makes codes of rows of x,
 * or copies them as 16-bit floats where the products do not read them in place.
 */
#include <config.h>

#include <string.h>

#include "gpu/qgemm/group.h"
#include "gpu/qgemm/launch.h"
#include "gpu/quantize/quantize.h"

#define BLOCKS_MAX 65535

static const char op[] = "qlinear_group";

static int launch_pack(struct hz_context *ctx, const char *name, const struct hzi_group_layout *l,
		       const struct hzi_group_weights *w, void *data)
{
	const struct hzi_group_pack p = {.l = *l, .w = *w, .data = data};
	const struct hzi_launch launch = {
		.grid = {(unsigned)min_of(ceil_div(l->bytes / 4, HZI_GROUP_THREADS), BLOCKS_MAX)},
		.block = {HZI_GROUP_THREADS},
	};

	return l->bytes ? hzi_cuda_launch(ctx, name, HZI_KERNEL_qgemm_group_pack, &launch, &p,
					  sizeof(p)) : HZ_OK;
}

HZI_NO_WORKSPACE(cuda, qlinear_group_pack)

int hzi_cuda_qlinear_group_pack(struct hz_context *ctx, const struct hzi_qlinear_group_pack_args *a)
{
	return launch_pack(ctx, "qlinear_group_pack", &a->l, &a->w, a->data);
}

/* Fills *p and returns the bytes of the workspace, which begins there. copied: x is copied. */
static size_t parameters(const struct hzi_qlinear_group_args *a, char *workspace, bool copied,
			 struct hzi_group_gemm *p)
{
	const int64_t k = hzi_round_up(a->l.k, HZI_GROUP_UNIT);
	const int64_t padded = hzi_round_up(a->rows, HZI_GROUP_X_ROWS);
	size_t at = 0;

	*p = (struct hzi_group_gemm){
		.l = a->l, .packed = a->packed, .x = a->x, .x_given = a->x_scale, .bias = a->bias,
		.y = a->y, .rows = a->rows, .x_k = a->x_k, .y_n = a->y_n, .k_padded = k,
		.unit = (int32_t)hzi_group_unit(a->l.group, a->by_32),
		.group_shift = 31, .pieces = (int32_t)(k / HZI_GROUP_UNIT), .ndim = a->ndim,
		.x_dtype = a->x_dtype, .y_dtype = a->y_dtype, .integer = a->integer,
		.by_32 = a->by_32, .low = a->low, .high = a->high,
		.terms = !a->integer && a->x_dtype == HZ_F32 ? HZI_GROUP_TERMS : 1,
	};
	for (int shift = 4; shift < 8; shift++) {
		if (p->unit == 1 << shift)
			p->unit_shift = shift;
		if (a->l.group == 1 << shift)
			p->group_shift = shift;
	}
	p->piece_groups = p->group_shift < 7 ? HZI_GROUP_UNIT >> p->group_shift : 1;
	p->piece_bytes = HZI_GROUP_PIECE_BYTES(a->l.kind) +
			 p->piece_groups * (a->l.zero_at ? 96 : 64);
	memcpy(p->shape, a->shape, sizeof(p->shape));
	memcpy(p->x_stride, a->x_stride, sizeof(p->x_stride));
	memcpy(p->y_stride, a->y_stride, sizeof(p->y_stride));
	if (!a->packed) {
		p->packed = (const uint8_t *)workspace;
		at += hzi_qgemm_padded((size_t)a->l.bytes);
	}
	if (!copied)
		return at;
	p->plane = (int64_t)hzi_qgemm_padded((size_t)(a->rows * k) * (a->integer ? 1 : 2));
	p->copy = (uint8_t *)workspace + at;
	at += (size_t)(p->plane * p->terms);
	if (a->integer) {
		p->records = (struct hzi_group_record *)(void *)(workspace + at);
		at += hzi_qgemm_padded(sizeof(*p->records) * (size_t)(padded / 2 * k / p->unit));
	}
	return at;
}

/* Packs W and copies x where needed. */
static int prepare(struct hz_context *ctx, const struct hzi_qlinear_group_args *a,
		   const struct hzi_group_gemm *p)
{
	const int64_t parts = p->integer && (a->by_32 || a->x_dtype == HZ_S8)
				      ? ceil_div(p->k_padded, 4 * HZI_GROUP_THREADS) : 1;
	const struct hzi_launch launch = {
		.grid = {(unsigned)min_of(hzi_round_up(a->rows, HZI_GROUP_X_ROWS), BLOCKS_MAX),
			 (unsigned)(parts > 0 ? parts : 1)},
		.block = {HZI_GROUP_THREADS}, .early = true,
	};

	if (a->l.panels > INT32_MAX)
		return hzi_fail(ctx, HZ_ENOTSUP, "%s: n is %lld, must be below 2^35 on a GPU", op,
				(long long)a->l.n);
	if (!a->packed)
		HZ_CHECK(launch_pack(ctx, op, &a->l, &a->w, ctx->workspace));
	return p->copy ? hzi_cuda_launch(ctx, op, HZI_KERNEL_qgemm_group_rows, &launch, p,
					 sizeof(*p)) : HZ_OK;
}

/* Whether rows of x are 16-byte aligned vectors of 16-bit floats */
static bool rows_vectorized(const struct hzi_qlinear_group_args *a)
{
	bool vectorized = a->x_dtype != HZ_F32 && a->x_k == 1 && (uintptr_t)a->x % 16 == 0 &&
			  a->l.k % 8 == 0;

	for (int d = 0; d < a->ndim; d++)
		vectorized &= a->shape[d] == 1 || a->x_stride[d] % 8 == 0;
	return vectorized;
}

/* ---- Up to 8 rows ---------------------------------------------------------------------------- */

#define SHARED_BYTES (110 * 1024)	/* of a block, of which an SM has two */

/* Fills what the skinny kernel splits k by, and the threads and shared memory of a block. */
static void split_k(const struct hz_context *ctx, struct hzi_group_gemm *p,
		    struct hzi_launch *launch)
{
	const int64_t most = min_of(hzi_cuda_device(ctx)->shared_block_bytes, SHARED_BYTES) -
			     HZI_GROUP_PART_BYTES - HZI_GROUP_WARPS * HZI_GROUP_STAGES(p->l.kind) *
			     p->piece_bytes;
	const int64_t rows = p->terms > 1 ? p->terms * HZI_GROUP_X_ROWS
					  : min_of(p->rows, HZI_GROUP_X_ROWS);
	const int warps = p->integer && p->pieces <= 4 * HZI_GROUP_CHUNK / HZI_GROUP_UNIT
				  ? 4 : HZI_GROUP_WARPS;

	p->chunk = p->integer ? HZI_GROUP_CHUNK / HZI_GROUP_UNIT
			      : (int32_t)ceil_div(p->pieces, warps) + 1;
	do {
		p->chunk -= !p->integer;
		p->pitch = p->chunk * HZI_GROUP_UNIT * (p->integer ? 1 : 2) + 16;
		p->stage_bytes = (int32_t)rows * p->pitch +
				 (p->integer ? p->chunk * HZI_GROUP_UNIT / p->unit * 64 : 0);
	} while (!p->integer && p->chunk > 1 && warps * p->stage_bytes > most);
	if (p->chunk < 1)
		p->chunk = 1;
	p->rounds = (int32_t)ceil_div(p->pieces, p->chunk * warps);
	if (p->rounds < 1)
		p->rounds = 1;
	p->all_staged = (int64_t)p->rounds * warps * p->stage_bytes <= most;
	launch->block[0] = 32 * (unsigned)warps;
	launch->shared_bytes = (unsigned)(HZI_GROUP_PART_BYTES + warps *
					  (HZI_GROUP_STAGES(p->l.kind) * p->piece_bytes +
					   p->stage_bytes * (p->all_staged ? p->rounds : 1)));
}

const char *hzi_cuda_qlinear_group_skinny_unsupported(const struct hz_context *ctx,
						      const void *args)
{
	const struct hzi_qlinear_group_args *const a = args;
	struct hzi_group_gemm p;
	struct hzi_launch launch = {0};

	parameters(a, (char *)&p, a->integer, &p);
	split_k(ctx, &p, &launch);
	if (launch.shared_bytes > (unsigned)hzi_cuda_device(ctx)->shared_block_bytes)
		return "x does not fit shared memory";
	return a->rows > (int64_t)BLOCKS_MAX * HZI_GROUP_X_ROWS ? "too many rows for a grid" : NULL;
}

size_t hzi_cuda_qlinear_group_skinny_workspace(const struct hz_context *ctx, const void *args)
{
	struct hzi_group_gemm p;

	(void)ctx;
	return parameters(args, (char *)&p, ((const struct hzi_qlinear_group_args *)args)->integer,
			  &p);
}

int hzi_cuda_qlinear_group_skinny(struct hz_context *ctx, const void *args)
{
	static const int kernels[] = {
		[HZ_F32] = HZI_KERNEL_qgemm_group_skinny_f32_u4,
		[HZ_F16] = HZI_KERNEL_qgemm_group_skinny_f16_u4,
		[HZ_BF16] = HZI_KERNEL_qgemm_group_skinny_bf16_u4,
	};
	const struct hzi_qlinear_group_args *const a = args;
	struct hzi_launch launch = {
		.grid = {(unsigned)a->l.panels, (unsigned)ceil_div(a->rows, HZI_GROUP_X_ROWS)},
		.early = a->packed != NULL,
	};
	struct hzi_group_gemm p;

	parameters(a, ctx->workspace, a->integer, &p);
	HZ_CHECK(prepare(ctx, a, &p));
	split_k(ctx, &p, &launch);
	p.vectorized = rows_vectorized(a);
	return hzi_cuda_launch(ctx, op, (a->integer ? HZI_KERNEL_qgemm_group_skinny_s8_u4 :
					  kernels[a->x_dtype]) + a->l.kind, &launch, &p, sizeof(p));
}

/* ---- One row of 16-bit floats by s4 ---------------------------------------------------------- */

/* Panels of a block, and its shared memory: their sums, and x */
static int64_t one_row_panels(const struct hz_context *ctx, const struct hzi_qlinear_group_args *a)
{
	return ceil_div(a->l.panels, hzi_cuda_device(ctx)->sms);
}

static int64_t one_row_shared(const struct hz_context *ctx, const struct hzi_qlinear_group_args *a)
{
	return one_row_panels(ctx, a) * HZI_GROUP_ONE_ROW_WARPS * HZI_GROUP_COLUMNS * 4 +
	       2 * hzi_round_up(a->l.k, HZI_GROUP_UNIT);
}

const char *hzi_cuda_qlinear_group_one_row_unsupported(const struct hz_context *ctx,
						      const void *args)
{
	const struct hzi_qlinear_group_args *const a = args;

	if (a->integer || !rows_vectorized(a))
		return "x is not an aligned row of 16-bit floats";
	if (a->l.kind != HZI_GROUP_U4 || a->l.zero != 8 || a->l.zero_at)
		return "W is not s4 without zero points";
	if (!a->l.short_at && a->l.group != HZI_GROUP_UNIT)
		return "W has groups other than of 128, and no scales of bf16";
	if (a->rows != 1)
		return "x has more than a row";
	return one_row_shared(ctx, a) > hzi_cuda_device(ctx)->shared_block_bytes ?
		       "x and sums do not fit shared memory" : NULL;
}

int hzi_cuda_qlinear_group_one_row(struct hz_context *ctx, const void *args)
{
	const struct hzi_qlinear_group_args *const a = args;
	const struct hzi_launch launch = {
		.grid = {(unsigned)ceil_div(a->l.panels, one_row_panels(ctx, a))},
		.block = {32 * HZI_GROUP_ONE_ROW_WARPS}, .early = a->packed != NULL,
		.shared_bytes = (unsigned)one_row_shared(ctx, a),
	};
	struct hzi_group_gemm p;
	int kernel = a->x_dtype == HZ_BF16 ? HZI_KERNEL_qgemm_group_one_row_bf16_f32
					   : HZI_KERNEL_qgemm_group_one_row_f16_f32;

	parameters(a, ctx->workspace, false, &p);
	HZ_CHECK(prepare(ctx, a, &p));
	if (a->l.short_at)
		kernel += a->l.group == 32 ? 1 : 2;
	return hzi_cuda_launch(ctx, op, kernel, &launch, &p, sizeof(p));
}

/* ---- Up to 8 rows of 16-bit floats by 4-bit weights in groups of 128 -------------------------- */

static int gemv_columns(const struct hzi_qlinear_group_args *a)
{
	return a->rows > 1 || !a->l.zero_at ? HZI_GROUP_X_ROWS : 1;
}

/*
 * Warps of a block; an SM has 16. One block copies x once and multiplies each panel by all 16
 * warps. Two blocks are faster where as many panels for each block leave SMs without one: an
 * eighth of them, of up to four panels an SM a quarter.
 */
static int gemv_warps(const struct hz_context *ctx, const struct hzi_qlinear_group_args *a)
{
	const int64_t sms = hzi_cuda_device(ctx)->sms, panels = a->l.panels;
	const int64_t blocks = ceil_div(panels, ceil_div(panels, sms));

	if (gemv_columns(a) > 1 || panels <= sms)
		return 16;
	return blocks * 8 >= sms * (panels > 4 * sms ? 7 : 6) ? 16 : 8;
}

/* Bytes of shared memory: sums of two panels, and x */
static int64_t gemv_shared(const struct hz_context *ctx, const struct hzi_qlinear_group_args *a)
{
	return gemv_columns(a) * (2 * gemv_warps(ctx, a) * HZI_GROUP_COLUMNS * 4 +
				  hzi_round_up(a->l.k, HZI_GROUP_UNIT) * 2);
}

const char *hzi_cuda_qlinear_group_gemv_unsupported(const struct hz_context *ctx, const void *args)
{
	const struct hzi_qlinear_group_args *const a = args;

	if (a->integer || !rows_vectorized(a))
		return "x is not of aligned rows of 16-bit floats";
	if (a->l.kind != HZI_GROUP_U4 || a->l.group != HZI_GROUP_UNIT)
		return "W is not of 4-bit integers in groups of 128";
	if (a->rows > HZI_GROUP_X_ROWS)
		return "x has more than 8 rows";
	return gemv_shared(ctx, a) > hzi_cuda_device(ctx)->shared_block_bytes ?
		       "x does not fit shared memory" : NULL;
}

int hzi_cuda_qlinear_group_gemv(struct hz_context *ctx, const void *args)
{
	const struct hzi_qlinear_group_args *const a = args;
	const struct hzi_cuda_device *const device = hzi_cuda_device(ctx);
	const int warps = gemv_warps(ctx, a);
	const int64_t shared = gemv_shared(ctx, a);
	/* Blocks that run at a time, and as many panels for each */
	const int64_t at_once =
		device->sms * (warps == 8 && 2 * shared <= device->shared_block_bytes ? 2 : 1);
	const int64_t rounds = ceil_div(a->l.panels, at_once);
	const struct hzi_launch launch = {
		.grid = {(unsigned)ceil_div(a->l.panels, rounds)}, .block = {32 * (unsigned)warps},
		.shared_bytes = (unsigned)shared, .early = a->packed != NULL,
	};
	struct hzi_group_gemm p;

	parameters(a, ctx->workspace, false, &p);
	HZ_CHECK(prepare(ctx, a, &p));
	return hzi_cuda_launch(ctx, op, (a->x_dtype == HZ_BF16 ?
					 HZI_KERNEL_qgemm_group_gemv_bf16_zeros_1x8 :
					 HZI_KERNEL_qgemm_group_gemv_f16_zeros_1x8) +
				       (a->l.zero_at ? (warps == 16) + (a->rows > 1) : 3),
			       &launch, &p, sizeof(p));
}

/* ---- wgmma ----------------------------------------------------------------------------------- */

/*
 * The kernel of x and W with 64 rows of codes, or the first of those with 16, 64 and 128 rows of
 * floats; 0: none
 */
static int wgmma_kernel(const struct hzi_qlinear_group_args *a)
{
	static const int codes_32[] = {
		[HZI_GROUP_U4] = HZI_KERNEL_qgemm_group_wgmma_s8_u4_32_64,
		[HZI_GROUP_E2M1] = HZI_KERNEL_qgemm_group_wgmma_s8_e2m1_32_64,
		[HZI_GROUP_U8] = HZI_KERNEL_qgemm_group_wgmma_s8_u8_32_64,
		[HZI_GROUP_E4M3] = 0,
	}, codes_128[] = {
		[HZI_GROUP_U4] = HZI_KERNEL_qgemm_group_wgmma_s8_u4_128_64,
		[HZI_GROUP_E2M1] = HZI_KERNEL_qgemm_group_wgmma_s8_e2m1_128_64,
		[HZI_GROUP_U8] = HZI_KERNEL_qgemm_group_wgmma_s8_u8_128_64,
		[HZI_GROUP_E4M3] = 0,
	}, floats_128[] = {
		[HZI_GROUP_U4] = HZI_KERNEL_qgemm_group_wgmma_f16_u4_16,
		[HZI_GROUP_E2M1] = 0,
		[HZI_GROUP_U8] = HZI_KERNEL_qgemm_group_wgmma_f16_u8_16,
		[HZI_GROUP_E4M3] = HZI_KERNEL_qgemm_group_wgmma_f16_e4m3_16,
	};
	const int64_t unit = hzi_group_unit(a->l.group, a->by_32);
	int kernel = 0;

	if (a->integer)
		return unit == 32 ? codes_32[a->l.kind] : unit == 128 ? codes_128[a->l.kind] : 0;
	if (a->x_dtype == HZ_F32)
		return 0;
	if (a->l.kind == HZI_GROUP_E2M1)
		kernel = unit == 32 ? HZI_KERNEL_qgemm_group_wgmma_f16_e2m1_32_16 :
			 unit == 16 ? HZI_KERNEL_qgemm_group_wgmma_f16_e2m1_16_16 : 0;
	else if (unit == 128)
		kernel = floats_128[a->l.kind];
	return kernel && a->x_dtype == HZ_BF16 ? kernel + 3 : kernel;
}

/* Whether TMA can read x where it is */
static bool x_in_place(const struct hzi_qlinear_group_args *a)
{
	return !a->integer && a->x_k == 1 && a->ndim == 1 && (uintptr_t)a->x % 16 == 0 &&
	       (a->rows == 1 || (a->x_stride[0] > 0 && a->x_stride[0] % 8 == 0));
}

const char *hzi_cuda_qlinear_group_wgmma_unsupported(const struct hz_context *ctx, const void *args)
{
	const struct hzi_qlinear_group_args *const a = args;

	(void)ctx;
	if (!a->integer && a->x_dtype == HZ_F32)
		return "x is f32";
	if (!wgmma_kernel(a))
		return "there is no kernel for this kind of W with groups of this size";
	if (a->l.k == 0)
		return "k is 0";
	return a->l.n > INT32_MAX / 64 || a->rows > (int64_t)BLOCKS_MAX * 128
		       ? "the sizes do not fit a grid" : NULL;
}

size_t hzi_cuda_qlinear_group_wgmma_workspace(const struct hz_context *ctx, const void *args)
{
	struct hzi_group_gemm p;

	(void)ctx;
	return parameters(args, (char *)&p, !x_in_place(args), &p);
}

int hzi_cuda_qlinear_group_wgmma(struct hz_context *ctx, const void *args)
{
	static const int tiles[] = {16, 64, 128};
	const struct hzi_qlinear_group_args *const a = args;
	const bool in_place = x_in_place(a);
	const int64_t sms = hzi_cuda_device(ctx)->sms;
	struct hzi_group_wgmma p = {.split = 1};
	struct hzi_launch launch = {.early = a->packed != NULL, .aligned = true};
	const int64_t bytes = a->integer ? 1 : 2;
	int64_t columns, blocks;
	int size = 0, rows;

	while (size < (a->integer ? 1 : 2) && (a->integer || tiles[size] < a->rows))
		size++;
	rows = tiles[size];
	parameters(a, ctx->workspace, !in_place, &p.g);
	HZ_CHECK(prepare(ctx, a, &p.g));
	HZ_CHECK(hzi_cuda_tensor_map_2d(ctx, op, &p.x, in_place ? a->x : p.g.copy,
					bytes * (in_place ? a->l.k : p.g.k_padded), a->rows,
					bytes * (!in_place ? p.g.k_padded : a->rows > 1 ?
						 a->x_stride[0] : hzi_round_up(a->l.k, 8)), 128,
					rows));
	columns = ceil_div(a->l.panels, HZI_GROUP_WGMMA_PANELS);
	blocks = columns * ceil_div(a->rows, rows);
	/*
	 * The most blocks that run at a time; of those with 16 rows an SM has two. Sums of codes
	 * are in order of k.
	 */
	for (int split = 2; split <= 8 && p.g.pieces >= 2 * split && !a->integer; split++) {
		const int64_t clusters = split == 2 ? sms / 2 : (sms - 12) / 16 * (16 / split);

		if (blocks <= clusters * (rows == 16 ? 2 : 1))
			p.split = split;
	}
	p.y_vectorized = a->y_dtype != HZ_F32 && a->y_n == 1 && (uintptr_t)a->y % 8 == 0;
	for (int d = 0; d < a->ndim; d++)
		p.y_vectorized &= a->shape[d] == 1 || a->y_stride[d] % 4 == 0;
	launch.grid[0] = (unsigned)(columns * p.split);
	launch.grid[1] = (unsigned)ceil_div(a->rows, rows);
	launch.block[0] = (unsigned)HZI_GROUP_WGMMA_THREADS(rows);
	launch.cluster = (unsigned)p.split;
	launch.shared_bytes = (unsigned)HZI_GROUP_WGMMA_BYTES(rows);
	return hzi_cuda_launch(ctx, op, wgmma_kernel(a) + (a->integer ? 0 : size), &launch, &p,
			       sizeof(p));
}

/* ---- wgmma, many rows of codes --------------------------------------------------------------- */

/* The kernel of units of 128, followed by those of 64 and 32; 0: none */
static int codes_kernel(const struct hzi_qlinear_group_args *a)
{
	if (a->l.kind == HZI_GROUP_U4)
		return a->l.zero == 8 && !a->l.zero_at ? HZI_KERNEL_qgemm_group_codes_s4_128
						       : HZI_KERNEL_qgemm_group_codes_u4_128;
	return a->l.kind == HZI_GROUP_U8 && a->l.zero == 128 && !a->l.zero_at
		       ? HZI_KERNEL_qgemm_group_codes_s8_128 : 0;
}

const char *hzi_cuda_qlinear_group_codes_unsupported(const struct hz_context *ctx, const void *args)
{
	const struct hzi_qlinear_group_args *const a = args;

	(void)ctx;
	if (!a->integer || a->by_32)
		return "x is not of codes with one scale a row";
	if (!codes_kernel(a) || hzi_group_unit(a->l.group, false) < 32)
		return "W is not of s4, u4 or s8, s8 without zero points, in groups of 32 or more";
	if (a->l.k == 0)
		return "k is 0";
	if (a->x_dtype == HZ_S8 &&
	    (a->ndim != 1 || a->x_k != 1 || (uintptr_t)a->x % 16 ||
	     (a->rows > 1 && (a->x_stride[0] < a->l.k || a->x_stride[0] % 16))))
		return "x is not of rows of codes with a stride, aligned to 16 bytes";
	return a->l.n > INT32_MAX / 64 || a->rows > INT32_MAX / 2 ||
			       ceil_div(a->rows, HZI_GROUP_CODES_ROWS) * ceil_div(a->l.n, 256) >
				       INT32_MAX / 2 ? "the sizes do not fit 32 bits" : NULL;
}

/* Of floats x the workspace has codes, rows of k rounded up to 16, scales and zero points. */
struct codes_layout {
	int64_t pitch;
	size_t codes, scales, zeros, bytes;
};

static struct codes_layout codes_layout(const struct hzi_qlinear_group_args *a)
{
	struct codes_layout r = {.pitch = hzi_round_up(a->l.k, 16)};

	r.bytes = r.codes = a->packed ? 0 : hzi_qgemm_padded((size_t)a->l.bytes);
	if (a->x_dtype != HZ_S8) {
		r.scales = r.codes + hzi_qgemm_padded((size_t)(a->rows * r.pitch));
		r.zeros = r.scales + hzi_qgemm_padded(4 * (size_t)a->rows);
		r.bytes = r.zeros + hzi_qgemm_padded((size_t)a->rows);
	}
	return r;
}

size_t hzi_cuda_qlinear_group_codes_workspace(const struct hz_context *ctx, const void *args)
{
	(void)ctx;
	return codes_layout(args).bytes;
}

static int quantize_rows(struct hz_context *ctx, const struct hzi_qlinear_group_args *a,
			 const struct codes_layout *r)
{
	char *const workspace = ctx->workspace;
	struct hzi_quantize_rows p = {
		.x = a->x, .y = (uint8_t *)workspace + r->codes,
		.scales = (float *)(void *)(workspace + r->scales),
		.zeros = (uint8_t *)workspace + r->zeros, .rows = a->rows, .k = a->l.k,
		.y_row = r->pitch, .x_k = a->x_k, .ndim = a->ndim, .q_dtype = HZ_S8, .symmetric = 1,
	};
	const struct hzi_launch launch = {
		.grid = {(unsigned)a->rows}, .block = {HZI_QUANT_ROWS_THREADS}, .early = true,
	};

	memcpy(p.shape, a->shape, sizeof(p.shape));
	memcpy(p.x_stride, a->x_stride, sizeof(p.x_stride));
	return hzi_cuda_launch(ctx, op, a->x_dtype == HZ_F32 ? HZI_KERNEL_quantize_rows_f32 :
			       a->x_dtype == HZ_F16 ? HZI_KERNEL_quantize_rows_f16 :
						      HZI_KERNEL_quantize_rows_bf16,
			       &launch, &p, sizeof(p));
}

/*
 * Describes eight panels of packed W: so many bytes of codes of each; scales and zero points of
 * HZI_GROUP_UNIT of k
 */
static int weight_maps(struct hz_context *ctx, const struct hzi_qlinear_group_args *a,
		       const struct hzi_group_gemm *g, int bytes, struct hzi_tensor_map *w,
		       struct hzi_tensor_map *scales, struct hzi_tensor_map *zeros)
{
	HZ_CHECK(hzi_cuda_tensor_map_3d(ctx, op, w, g->packed, 128, a->l.panel_bytes / 128, 128,
					(int)a->l.panels, a->l.panel_bytes, 128,
					bytes / 128, HZI_GROUP_CODES_PANELS));
	HZ_CHECK(hzi_cuda_tensor_map_2d(ctx, op, scales, g->packed + a->l.scale_at,
					a->l.groups * 64, a->l.panels, a->l.groups * 64,
					g->unit == 128 ? 64 : 128, HZI_GROUP_CODES_PANELS));
	return a->l.zero_at ?
		hzi_cuda_tensor_map_2d(ctx, op, zeros, g->packed + a->l.zero_at, a->l.groups * 32,
				       a->l.panels, a->l.groups * 32,
				       32 * (HZI_GROUP_UNIT / g->unit), HZI_GROUP_CODES_PANELS) :
		HZ_OK;
}

int hzi_cuda_qlinear_group_codes(struct hz_context *ctx, const void *args)
{
	const struct hzi_qlinear_group_args *const a = args;
	const struct codes_layout r = codes_layout(a);
	const bool in_place = a->x_dtype == HZ_S8;
	struct hzi_launch launch = {
		.block = {HZI_GROUP_CODES_THREADS}, .cluster = 2, .early = true, .aligned = true,
		.shared_bytes = (unsigned)HZI_GROUP_CODES_BYTES(
			a->l.kind, hzi_group_unit(a->l.group, false)),
	};
	struct hzi_group_codes p = {.tiles_m = (int32_t)ceil_div(a->rows, HZI_GROUP_CODES_ROWS)};

	parameters(a, ctx->workspace, false, &p.g);
	HZ_CHECK(prepare(ctx, a, &p.g));
	if (!in_place) {
		p.g.x = (char *)ctx->workspace + r.codes;
		p.g.x_given = (const float *)(const void *)((char *)ctx->workspace + r.scales);
		HZ_CHECK(quantize_rows(ctx, a, &r));
	}
	HZ_CHECK(hzi_cuda_tensor_map_2d(ctx, op, &p.x, p.g.x, a->l.k, a->rows,
					in_place && a->rows > 1 ? a->x_stride[0] : r.pitch,
					HZI_GROUP_UNIT, HZI_GROUP_CODES_ROWS / 2));
	HZ_CHECK(weight_maps(ctx, a, &p.g, HZI_GROUP_PIECE_BYTES(a->l.kind), &p.w, &p.scales,
			     &p.zeros));
	p.units = (int32_t)ceil_div(a->l.k, p.g.unit);
	p.tiles = p.tiles_m * (int32_t)ceil_div(a->l.panels, 2 * HZI_GROUP_CODES_PANELS);
	p.y_vectorized = a->y_dtype != HZ_F32 && a->y_n == 1 && (uintptr_t)a->y % 16 == 0 &&
			 a->ndim == 1 && (a->rows == 1 || a->y_stride[0] % 8 == 0);
	launch.grid[0] = 2 * (unsigned)min_of(p.tiles, hzi_cuda_device(ctx)->sms / 2);
	return hzi_cuda_launch(ctx, op, codes_kernel(a) + 7 - p.g.unit_shift, &launch, &p,
			       sizeof(p));
}

/* ---- wgmma, many rows of floats -------------------------------------------------------------- */

const char *hzi_cuda_qlinear_group_floats_unsupported(const struct hz_context *ctx,
						       const void *args)
{
	const struct hzi_qlinear_group_args *const a = args;

	(void)ctx;
	if (a->integer || a->x_dtype != HZ_BF16)
		return "x is not of bf16";
	if (a->l.kind != HZI_GROUP_U4 || a->l.group < HZI_GROUP_UNIT)
		return "W is not of 4-bit integers in groups of 128";
	if (a->l.k == 0)
		return "k is 0";
	return a->l.n > INT32_MAX / 64 || a->rows > INT32_MAX / 2 ||
			       ceil_div(a->rows, HZI_GROUP_FLOATS_ROWS) * ceil_div(a->l.n, 256) >
				       INT32_MAX / 2 ?
		       "the sizes do not fit 32 bits" : NULL;
}

/*
 * Fills what says how tiles are shared out. Those that are left for fewer than all clusters are
 * split along k if that saves time. Returns the expected time in ns.
 */
static int64_t floats_plan(const struct hz_context *ctx, const struct hzi_qlinear_group_args *a,
			   struct hzi_group_floats *p)
{
	/* Of a group, of the rest of a tile, and of storing and adding parts: fitted on an H200 */
	const int64_t group_ns = 1560, tile_ns = 5000, parts_ns = 6500;
	const int64_t clusters = hzi_cuda_device(ctx)->sms / 2, pieces = p->g.pieces;
	const int64_t whole_ns = pieces * group_ns + tile_ns;
	int64_t rest, parts, split_ns;

	p->tiles_m = (int32_t)ceil_div(a->rows, HZI_GROUP_FLOATS_ROWS);
	p->tiles = p->tiles_m * (int32_t)ceil_div(a->l.panels, 2 * HZI_GROUP_FLOATS_PANELS);
	p->whole = p->tiles;
	p->parts = 1;
	rest = p->tiles % clusters;
	if (!rest)
		return p->tiles / clusters * whole_ns;
	parts = min_of(min_of(clusters / rest, HZI_GROUP_FLOATS_PARTS), pieces);
	split_ns = ceil_div(pieces, parts) * group_ns + tile_ns + parts_ns;
	if (split_ns >= whole_ns)
		return (p->tiles / clusters + 1) * whole_ns;
	p->parts = (int32_t)parts;
	p->whole = p->tiles - (int32_t)rest;
	return p->tiles / clusters * whole_ns + split_ns;
}

/* Whether it is expected to be faster than `wgmma`, whose tiles are of 128 columns and rows */
bool hzi_cuda_qlinear_group_floats_wins(const struct hz_context *ctx,
					const struct hzi_qlinear_group_args *a)
{
	const int64_t sms = hzi_cuda_device(ctx)->sms, pieces = ceil_div(a->l.k, HZI_GROUP_UNIT);
	const int64_t tiles = ceil_div(a->rows, 128) * ceil_div(a->l.panels, 8);
	const int64_t split = tiles * 3 <= sms - 12 ? 3 : tiles * 2 <= sms ? 2 : 1;
	struct hzi_group_floats p = {.g.pieces = (int32_t)pieces};

	return a->rows > 128 &&
	       floats_plan(ctx, a, &p) < ceil_div(tiles * split, sms) *
						 (ceil_div(pieces, split) * 900 + 7000);
}

static size_t floats_parts_bytes(const struct hzi_group_floats *p)
{
	return (size_t)(p->tiles - p->whole) * (size_t)p->parts * HZI_GROUP_FLOATS_PART_BYTES;
}

size_t hzi_cuda_qlinear_group_floats_workspace(const struct hz_context *ctx, const void *args)
{
	struct hzi_group_floats p;
	const size_t used = parameters(args, (char *)&p, !x_in_place(args), &p.g);

	floats_plan(ctx, args, &p);
	return used + floats_parts_bytes(&p);
}

int hzi_cuda_qlinear_group_floats(struct hz_context *ctx, const void *args)
{
	const struct hzi_qlinear_group_args *const a = args;
	const bool in_place = x_in_place(a);
	struct hzi_launch launch = {
		.block = {HZI_GROUP_FLOATS_THREADS}, .cluster = 2, .early = a->packed != NULL,
		.aligned = true, .shared_bytes = HZI_GROUP_FLOATS_BYTES,
	};
	struct hzi_group_floats p = {0};
	const size_t used = parameters(a, ctx->workspace, !in_place, &p.g);
	int64_t work;

	floats_plan(ctx, a, &p);
	p.parts_at = (float *)(void *)((char *)ctx->workspace + used);
	p.y_vectorized = a->y_dtype != HZ_F32 && a->y_n == 1 && (uintptr_t)a->y % 16 == 0 &&
			 a->ndim == 1 && (a->rows == 1 || a->y_stride[0] % 8 == 0);
	HZ_CHECK(prepare(ctx, a, &p.g));
	HZ_CHECK(hzi_cuda_tensor_map_2d(ctx, op, &p.x, in_place ? a->x : p.g.copy,
					2 * (in_place ? a->l.k : p.g.k_padded), a->rows,
					2 * (!in_place ? p.g.k_padded : a->rows > 1 ?
					     a->x_stride[0] : hzi_round_up(a->l.k, 8)), 128,
					HZI_GROUP_FLOATS_ROWS / 2));
	HZ_CHECK(weight_maps(ctx, a, &p.g, HZI_GROUP_PIECE_BYTES(a->l.kind) / 2, &p.w, &p.scales,
			     &p.zeros));
	work = p.whole + (int64_t)(p.tiles - p.whole) * p.parts;
	launch.grid[0] = 2 * (unsigned)min_of(work, hzi_cuda_device(ctx)->sms / 2);
	HZ_CHECK(hzi_cuda_launch(ctx, op, a->l.zero_at ? HZI_KERNEL_qgemm_group_floats_u4 :
						HZI_KERNEL_qgemm_group_floats_s4,
				 &launch, &p, sizeof(p)));
	if (p.whole == p.tiles)
		return HZ_OK;

	const struct hzi_launch sum = {
		.grid = {4 * (unsigned)(p.tiles - p.whole),
			 HZI_GROUP_FLOATS_ROWS / HZI_GROUP_FLOATS_SUM_ROWS},
		.block = {128}, .early = true, .aligned = true,
	};

	return hzi_cuda_launch(ctx, op, HZI_KERNEL_qgemm_group_floats_sum, &sum, &p, sizeof(p));
}

/* ---- Tiles of 64 rows ------------------------------------------------------------------------ */

size_t hzi_cuda_qlinear_group_tiled_workspace(const struct hz_context *ctx, const void *args)
{
	struct hzi_group_gemm p;

	(void)ctx;
	return parameters(args, (char *)&p, true, &p);
}

int hzi_cuda_qlinear_group_tiled(struct hz_context *ctx, const void *args)
{
	const struct hzi_qlinear_group_args *const a = args;
	struct hzi_group_gemm p;
	struct hzi_launch launch = {.block = {HZI_GROUP_THREADS}};

	parameters(a, ctx->workspace, true, &p);
	HZ_CHECK(prepare(ctx, a, &p));
	launch.grid[0] = (unsigned)ceil_div(a->l.panels, HZI_GROUP_WARPS);
	launch.grid[1] = (unsigned)min_of(ceil_div(a->rows, HZI_GROUP_TILED_ROWS), BLOCKS_MAX);
	return hzi_cuda_launch(ctx, op, a->integer ? HZI_KERNEL_qgemm_group_tiled_s8 :
			       a->x_dtype == HZ_F16 ? HZI_KERNEL_qgemm_group_tiled_f16 :
						      HZI_KERNEL_qgemm_group_tiled_bf16,
			       &launch, &p, sizeof(p));
}

/*
 * The other kernels read W once for 16 rows or more, not for 8, but those of codes need 8 panels
 * for each block: with fewer blocks than SMs and little to read, more blocks win.
 */
bool hzi_cuda_qlinear_group_skinny_wins(const struct hz_context *ctx,
					const struct hzi_qlinear_group_args *a)
{
	const int64_t blocks = ceil_div(a->l.panels, HZI_GROUP_WARPS) *
			       ceil_div(a->rows, HZI_GROUP_TILED_ROWS);

	return a->rows <= HZI_GROUP_X_ROWS ||
	       ((a->integer || !wgmma_kernel(a)) && a->rows <= 4 * HZI_GROUP_X_ROWS &&
		blocks < hzi_cuda_device(ctx)->sms);
}
