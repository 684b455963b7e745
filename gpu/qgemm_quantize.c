/*
 * qgemm_quantize.c - launchers of quantization
 *
 * SPDX-License-Identifier: BSD-2-Clause
 *
 * What lies back to back goes through a flat kernel, all else through one that finds each element
 * by its index.
 */
#include <config.h>

#include <string.h>

#include "cuda.h"
#include "gpu/qgemm_quantize.h"
#include "gpu/quantize_rotated.h"
#include "lib/qgemm.h"

/* The kernel of three that is for a dtype: those for f32, f16 and bf16 follow each other. */
static int kernel_of(int f32_kernel, int dtype)
{
	return f32_kernel + (dtype == HZ_F16 ? 1 : dtype == HZ_BF16 ? 2 : 0);
}

static int64_t elements_of(const struct hzi_qmap *map)
{
	int64_t total = map->n;

	for (int d = 0; d < map->ndim; d++)
		total *= map->shape[d];
	return total;
}

/* Whether the outer dimensions are one with the step of the last, whose items take that many. */
static bool joined(const struct hzi_qmap *map, const int64_t *stride, int64_t item)
{
	for (int d = map->ndim - 1; d >= 0; d--) {
		if (map->shape[d] != 1 && stride[d] != item)
			return false;
		item *= map->shape[d];
	}
	return true;
}

/* The step from row to row of the parameters, or -1 if there is none. */
static int64_t parameter_step(const struct hzi_qmap *map)
{
	const int64_t step = map->ndim ? map->p_stride[map->ndim - 1] : 0;

	return joined(map, map->p_stride, step) ? step : -1;
}

/*
 * Fills what says which parameter a piece has; false if it is no flat case. Codes have bytes of a
 * piece each, and floats 16.
 */
static bool make_flat(const struct hzi_qmap *map, const void *floats, const void *codes,
		      int64_t f_step, const int64_t *f_stride, int64_t c_step,
		      const int64_t *c_stride, int dtype, struct hzi_quantize_flat *p)
{
	const int64_t piece = dtype == HZ_F32 ? 4 : 8, step = parameter_step(map);

	p->elements = elements_of(map);
	p->pieces = p->elements / piece;
	if ((uintptr_t)floats % 16 || (uintptr_t)codes % (uintptr_t)piece ||
	    (f_step != 1 && map->n > 1) || (c_step != 1 && map->n > 1) ||
	    !joined(map, f_stride, map->n) || !joined(map, c_stride, map->n) ||
	    p->pieces > INT32_MAX)
		return false;
	if (map->params <= 1)
		return true;
	if (map->n % piece || map->group % piece || step < 0)
		return false;
	p->row_step = step;
	p->row = hzi_make_quotient(map->n / piece);
	p->group = hzi_make_quotient(map->group / piece);
	return true;
}

static struct hzi_quantize_any make_any(const struct hzi_qmap *map, int64_t x_step,
					const int64_t *x_stride, int64_t y_step,
					const int64_t *y_stride, int dtype)
{
	struct hzi_quantize_any p = {
		.total = elements_of(map), .n = map->n, .group = map->group, .x_step = x_step,
		.y_step = y_step, .ndim = map->ndim, .dtype = dtype,
	};

	for (int d = 0; d < map->ndim; d++) {
		p.shape[d] = map->shape[d];
		p.x_stride[d] = x_stride[d];
		p.y_stride[d] = y_stride ? y_stride[d] : 0;
		p.p_stride[d] = map->p_stride[d];
	}
	return p;
}

/* Blocks for a kernel that goes on by the grid. */
static unsigned grid_any(const struct hz_context *ctx, int64_t total)
{
	return (unsigned)min_of(ceil_div(total, HZI_FLAT_THREADS),
				16 * (int64_t)hzi_cuda_device(ctx)->multiprocessors);
}

static int launch_flat(struct hz_context *ctx, const char *op, int kernel, int64_t each,
		       const struct hzi_quantize_flat *p)
{
	const struct hzi_launch launch = {
		.grid = {(unsigned)max_of(1, ceil_div(p->pieces, HZI_FLAT_THREADS * each))},
		.block = {HZI_FLAT_THREADS},
	};

	return hzi_cuda_launch(ctx, op, HZI_FAMILY_QGEMM_QUANTIZE, kernel, &launch, p, sizeof(*p));
}

static int launch_any(struct hz_context *ctx, const char *op, int kernel,
		      const struct hzi_quantize_any *p)
{
	const struct hzi_launch launch = {
		.grid = {grid_any(ctx, p->total)}, .block = {HZI_FLAT_THREADS},
	};

	return hzi_cuda_launch(ctx, op, HZI_FAMILY_QGEMM_QUANTIZE, kernel, &launch, p, sizeof(*p));
}

/* ---- quantize, dequantize -------------------------------------------------------------------- */

/* Floats to codes, or back. Of p what does not follow from the map is filled in. */
static int launch_codes(struct hz_context *ctx, const char *op, const struct hzi_qmap *map,
			int dtype, struct hzi_quantize_flat *p, bool back)
{
	struct hzi_quantize_any any;

	if (make_flat(map, back ? p->y : p->x, back ? p->x : p->y, map->x_step, map->x_stride,
		      map->q_step, map->q_stride, dtype, p))
		return launch_flat(ctx, op,
				   kernel_of(back ? HZI_KERNEL_dequantize_flat_f32
						  : HZI_KERNEL_quantize_flat_f32, dtype),
				   back ? HZI_BACK_PIECES : HZI_FLAT_PIECES(dtype), p);
	any = back ? make_any(map, map->q_step, map->q_stride, map->x_step, map->x_stride, dtype)
		   : make_any(map, map->x_step, map->x_stride, map->q_step, map->q_stride, dtype);
	any.x = p->x;
	any.y = p->y;
	any.scales = p->scales;
	any.zeros = p->zeros;
	any.is_signed = p->is_signed;
	any.scale = p->scale;
	any.zero = p->zero;
	return launch_any(ctx, op, back ? HZI_KERNEL_dequantize_any : HZI_KERNEL_quantize_any,
			  &any);
}

static int run_codes(struct hz_context *ctx, const char *op, const struct hzi_codes_args *a)
{
	struct hzi_quantize_flat p = {
		.x = a->back ? a->q : a->x, .y = a->back ? a->x : a->q, .scales = a->scales,
		.zeros = a->zeros, .is_signed = a->q_dtype == HZ_S8, .scale = a->scale,
		.zero = a->zero,
	};

	if (a->rotated)
		return hzi_cuda_rotated_codes(ctx, a);
	return launch_codes(ctx, op, &a->map, a->x_dtype, &p, a->back);
}

static size_t codes_workspace(const struct hz_context *ctx, const struct hzi_codes_args *a)
{
	return a->rotated ? hzi_cuda_rotated_workspace(ctx, a->rotated) : 0;
}

size_t hzi_cuda_quantize_workspace(const struct hz_context *ctx, const struct hzi_quantize_args *a)
{
	return codes_workspace(ctx, &a->codes);
}

int hzi_cuda_quantize(struct hz_context *ctx, const struct hzi_quantize_args *a)
{
	return run_codes(ctx, "quantize", &a->codes);
}

size_t hzi_cuda_dequantize_workspace(const struct hz_context *ctx,
				     const struct hzi_dequantize_args *a)
{
	return codes_workspace(ctx, &a->codes);
}

int hzi_cuda_dequantize(struct hz_context *ctx, const struct hzi_dequantize_args *a)
{
	return run_codes(ctx, "dequantize", &a->codes);
}

/* ---- choose_qparams -------------------------------------------------------------------------- */

size_t hzi_cuda_choose_qparams_workspace(const struct hz_context *ctx,
					 const struct hzi_choose_qparams_args *a)
{
	(void)ctx;
	return (size_t)a->map.params * 8;
}

#define RANGE_WARP_PIECES 4096	/* a warp does a segment of so many: 64 KiB */

/* Segments of whole pieces, one parameter each; false if x is not made of them. */
static bool make_segments(const struct hz_context *ctx, const struct hzi_choose_qparams_args *a,
			  struct hzi_range_flat *p)
{
	const struct hzi_qmap *map = &a->map;
	const int64_t piece = a->x_dtype == HZ_F32 ? 4 : 8, step = parameter_step(map);
	const int64_t total = elements_of(map);
	const int64_t want = 16 * (int64_t)hzi_cuda_device(ctx)->multiprocessors;
	int64_t once;

	if ((uintptr_t)a->x % 16 || (map->x_step != 1 && map->n > 1) ||
	    !joined(map, map->x_stride, map->n))
		return false;
	if (map->params == 1) {
		p->segments = p->row_segments = 1;
		p->pieces = total / piece;
	} else {
		if (map->group % piece || step < 0)
			return false;
		p->segments = total / map->group;
		p->pieces = map->group / piece;
		p->row_segments = map->n / map->group;
		p->row_step = step;
	}
	p->wide = p->pieces > RANGE_WARP_PIECES;
	once = (p->wide ? HZI_FLAT_THREADS : 32) * HZI_RANGE_PIECES;
	p->share = p->wide ? max_of(1, ceil_div(p->pieces * p->segments, want * once)) * once
			   : RANGE_WARP_PIECES;
	p->shares = max_of(1, ceil_div(p->pieces, p->share));
	return p->segments * p->shares <= INT32_MAX;
}

int hzi_cuda_choose_qparams(struct hz_context *ctx, const struct hzi_choose_qparams_args *a)
{
	static const char op[] = "choose_qparams";
	const struct hzi_qmap *map = &a->map;
	const int64_t total = elements_of(map), size = (int64_t)hz_dtype_size(a->x_dtype);
	struct hzi_range_flat flat = {.x = a->x, .range = ctx->workspace};
	struct hzi_quantize_any any =
		make_any(map, map->x_step, map->x_stride, 0, NULL, a->x_dtype);
	const struct hzi_range_params params = {
		.range = ctx->workspace, .scale = a->scale, .zero = a->zero, .count = map->params,
		.q_dtype = a->q_dtype, .symmetric = a->symmetric,
	};
	struct hzi_launch launch = {.block = {HZI_FLAT_THREADS}};

	any.x = a->x;
	any.y = ctx->workspace;
	HZ_CHECK(hzi_cuda_fill(ctx, ctx->workspace, 0, (size_t)map->params * 8));
	if (total && make_segments(ctx, a, &flat)) {
		const int64_t done = flat.segments * flat.pieces * (16 / size);

		launch.grid[0] = (unsigned)ceil_div(flat.segments * flat.shares,
						   flat.wide ? 1 : HZI_FLAT_THREADS / 32);
		HZ_CHECK(hzi_cuda_launch(ctx, op, HZI_FAMILY_QGEMM_QUANTIZE,
					 kernel_of(HZI_KERNEL_range_flat_f32, a->x_dtype), &launch,
					 &flat, sizeof(flat)));
		/* What is left of one segment is a row of its own. */
		any.x = (const char *)a->x + done * size;
		any.ndim = 0;
		any.total = any.n = any.group = total - done;
		any.x_step = 1;
	}
	if (any.total) {
		/* Threads that keep their place in a row keep their parameter. */
		int64_t grid = grid_any(ctx, any.total), whole = any.n;

		while (whole % 2 == 0 && whole / 2 * HZI_FLAT_THREADS % any.n == 0)
			whole /= 2;
		if (grid > whole)
			grid -= grid % whole;
		launch.grid[0] = (unsigned)grid;
		HZ_CHECK(hzi_cuda_launch(ctx, op, HZI_FAMILY_QGEMM_QUANTIZE, HZI_KERNEL_range_any,
					 &launch, &any, sizeof(any)));
	}
	launch.grid[0] = (unsigned)ceil_div(map->params, HZI_FLAT_THREADS);
	return hzi_cuda_launch(ctx, op, HZI_FAMILY_QGEMM_QUANTIZE, HZI_KERNEL_range_params, &launch,
			       &params, sizeof(params));
}
