/*
 * wgrad8.c - launchers of the gradients of quaternion convolutions' weights by wgmma, 8 real
 *            products for each product of quaternions
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#include <config.h>

#include <math.h>
#include <stdlib.h>

#include "gpu/quat_conv/wgrad8.h"
#include "gpu/quat_conv/launch.h"
#include "gpu/quat_conv/im2col.h"

HZI_LINK_IMAGES(quat_conv);

/* Pixels of all planes of an operand; floats of the partial sums of a tap */
#define PIXELS_MAX ((int64_t)1 << 30)
/* At least 1 / USE_LEAST of the products is of data; the rest is of padding. */
#define USE_LEAST 64
#define PLANES_BYTES ((int64_t)256 << 20)	/* of a launch's images; at least one image */
#define PLANES_MOST ((int64_t)1 << 30)
/* Blocks that fill the GPU; twice as many in split precision */
#define BLOCKS 128
#define SPLIT_PIXELS 512		/* least pixels of a split */
/*
 * Cost model: real operations per SM and cycle (32 for a quaternion product), split precision and
 * 16 bits; planes' share of the peak bandwidth, written and read
 */
#define SPLIT_OPERATIONS 574
#define OPERATIONS 2104
#define PLANES_SHARE 0.305
/*
 * Fixed cost of a call, us. For a pixel of 64 channels: bytes of memory traffic that take as long
 * as its planes. For its products with 64 channels: SM cycles of each set of taps, and of each tap
 */
#define CALL_US 15
static const struct {
	double pixel_bytes, set_cycles, tap_cycles, set;
} plane_costs[] = {
	{3100, 118, 18.3, HZI_WGRAD8_RUNS * HZI_WGRAD8_RUN},
	{4920, 497, 54.9, HZI_WGRAD8_RUNS * HZI_WGRAD8_RUN_SPLIT},	/* split */
};

/* A call: the kernels' parameters but for pointers */
struct plan {
	struct hzi_quat_wgrad8_pack pack;
	struct hzi_quat_wgrad8 p;
	int64_t images;			/* at a time */
	int64_t groups_of_tile;		/* groups per tile */
	struct hzi_quat_conv_copy copy;
	size_t copy_bytes;		/* copy of big with taps as channels; 0: none */
	int32_t lead;			/* zeros before the pixels of big */
};

struct tap {
	int phase, number;
	int64_t pixel;			/* of big, that it reads for pixel 0 of small */
};

static int by_pixel(const void *a, const void *b)
{
	const struct tap *s = a, *t = b;

	if (s->phase != t->phase)
		return s->phase < t->phase ? -1 : 1;
	return (s->pixel > t->pixel) - (s->pixel < t->pixel);
}

/* Lists the taps and the phases of big that they read. 0: there are too many. */
static int find_taps(const struct hzi_quat_patch_step *x, struct plan *plan, struct tap *taps)
{
	struct hzi_quat_wgrad8_operand *big = &plan->pack.side[1];
	int count = 0;

	for (int64_t i = 0; i < x->taps[0] * x->taps[1] * x->taps[2]; i++) {
		const int64_t t[3] = {i / x->taps[2] / x->taps[1], i / x->taps[2] % x->taps[1],
				      i % x->taps[2]};
		struct tap *const tap = &taps[count];
		int32_t phase_offset[3];
		int g = 0;

		if (count++ == HZI_CONV_TAPS_MAX)
			return 0;
		*tap = (struct tap){.number = (int)i};
		for (int d = 0; d < 3; d++) {
			int64_t r;
			const int64_t at = hzi_quat_conv_phase_of(x, d, t[d], &r);

			tap->pixel = tap->pixel * plan->pack.box[d] + at;
			phase_offset[d] = (int32_t)r;
		}
		while (g < big->phases && (big->phase_offset[g][0] != phase_offset[0] ||
					   big->phase_offset[g][1] != phase_offset[1] ||
					   big->phase_offset[g][2] != phase_offset[2]))
			g++;
		if (g == HZI_WGRAD8_PHASES)
			return 0;
		for (int d = 0; d < 3; d++)
			big->phase_offset[g][d] = phase_offset[d];
		big->phases = g == big->phases ? g + 1 : big->phases;
		tap->phase = g;
	}
	qsort(taps, (size_t)count, sizeof(*taps), by_pixel);
	return count;
}

/* A run of equally spaced taps from taps[first] on; returns their number. */
static int make_run(const struct tap *taps, int count, int first, int most,
		    struct hzi_quat_wgrad8_run *run)
{
	*run = (struct hzi_quat_wgrad8_run){.taps = 1, .number = {(int16_t)taps[first].number}};
	for (int i = first + 1; i < count && run->taps < most; i++) {
		const int64_t step = taps[i].pixel - taps[i - 1].pixel;

		if (taps[i].phase != taps[first].phase || step == 0 || step > HZI_WGRAD8_SPACING ||
		    (run->taps > 1 && step != run->spacing))
			break;
		run->spacing = (int16_t)step;
		run->number[run->taps++] = (int16_t)taps[i].number;
	}
	return run->taps;
}

/* Puts all taps into sets. The ring of big holds what the taps of a set read. */
static bool make_sets(struct plan *plan, const struct tap *taps, int count)
{
	struct hzi_quat_wgrad8 *p = &plan->p;
	struct hzi_quat_wgrad8_set *set = NULL;
	const int parts = plan->pack.side[1].parts;
	const int most = parts > 1 ? HZI_WGRAD8_RUN_SPLIT : HZI_WGRAD8_RUN;
	int64_t low = 0, phase = -1;

	for (int i = 0; i < count;) {
		struct hzi_quat_wgrad8_run run;
		const int n = make_run(taps, count, i, most, &run);
		int64_t last = taps[i + n - 1].pixel;
		/* Blocks of big ahead of a step's own that its last pixel reaches */
		const int64_t ahead = (last - low + HZI_WGRAD8_TILE_K - 1) / HZI_WGRAD8_TILE_K;

		if (!set || taps[i].phase != phase || set->runs == HZI_WGRAD8_RUNS ||
		    ahead > HZI_WGRAD8_AHEAD) {
			if (p->sets == HZI_WGRAD8_SETS)
				return false;
			set = &p->set[p->sets++];
			phase = taps[i].phase;
			low = taps[i].pixel;
			set->pixel = (int32_t)(phase * 8 * parts * p->big_pixels + plan->lead +
					       low);
		}
		last -= low;
		set->ahead = (int16_t)((last + HZI_WGRAD8_TILE_K - 1) / HZI_WGRAD8_TILE_K);
		run.pixel = (int32_t)(taps[i].pixel - low);
		set->run[set->runs++] = run;
		i += n;
	}
	return true;
}

/* Groups of channels per tile; tiles start at even channels. 0: the groups are not supported. */
static int64_t count_groups_of_tile(const struct hzi_quat_wgrad_step *a)
{
	const int64_t in = a->x.channels, out = a->g.m, most = in > out ? in : out;
	int64_t n;

	if (a->x.groups == 1)
		return 1;
	if (most == 0 || most > HZI_WGRAD8_TILE)
		return 0;
	n = HZI_WGRAD8_TILE / most;
	return (n * in) % 2 == 0 && (n * out) % 2 == 0 ? n : n - 1;
}

static int64_t absolute(int64_t x)
{
	return x < 0 ? -x : x;
}

/* NULL, or why a call is not supported */
static const char *make_plan(const struct hz_context *ctx, const struct hzi_quat_wgrad_step *a,
			     struct plan *plan)
{
	const struct hzi_quat_gemm_args *g = &a->g;
	const struct hzi_quat_patch_step *x = &a->x;
	struct hzi_quat_wgrad8_operand *small = &plan->pack.side[0], *big = &plan->pack.side[1];
	struct hzi_quat_wgrad8 *p = &plan->p;
	struct tap taps[HZI_CONV_TAPS_MAX];
	int64_t box = 1, reach = 0, pixels, bytes, blocks, splits, tiles;
	int count, split;

	plan->pack = (struct hzi_quat_wgrad8_pack){.images = 0};
	plan->p = (struct hzi_quat_wgrad8){.pairs = 0};
	plan->images = a->images;
	plan->groups_of_tile = count_groups_of_tile(a);
	if (!plan->groups_of_tile)
		return "groups of more than 64 channels, or of an odd number";
	if (!hzi_quat_uses_planar_f16(ctx, g->dtype, g->precision, &split))
		return "f32 multiply-adds are asked for";
	if (g->method != HZ_QUAT_FAST)
		return "the method is not HZ_QUAT_FAST";
	if (g->k == 0 || g->m > PIXELS_MAX / 4096 / x->groups ||
	    x->channels > PIXELS_MAX / 4096 / x->groups || !hzi_quat_conv_sizes_fit(x))
		return "no pixels, or sizes are too large";
	p->diagonal = x->groups > 1;
	tiles = ceil_div(x->groups, plan->groups_of_tile);
	small->columns = (int32_t)(tiles * round_up(plan->groups_of_tile * g->m, HZI_WGRAD8_TILE));
	big->columns = (int32_t)(tiles * round_up(plan->groups_of_tile * x->channels,
						  HZI_WGRAD8_TILE));
	small->each = (int32_t)(p->diagonal ? plan->groups_of_tile * g->m : HZI_WGRAD8_TILE);
	big->each = (int32_t)(p->diagonal ? plan->groups_of_tile * x->channels : HZI_WGRAD8_TILE);
	if (small->columns / tiles * (big->columns / tiles) >
	    USE_LEAST * plan->groups_of_tile * g->m * x->channels)
		return "most of the products are of padding";
	for (int d = 0; d < 3; d++) {
		const int64_t n = hzi_quat_conv_padded_pitch(x, d);

		if (n > PIXELS_MAX / box)
			return "more lines than 2^30";
		box *= n;
		plan->pack.box[d] = (int32_t)n;
		small->size[d] = (int32_t)x->count[d];
		small->step[d] = 1;
		big->size[d] = (int32_t)x->size[d];
		big->step[d] = (int32_t)x->step[d];
	}
	small->phases = 1;
	small->left = 1;
	small->parts = big->parts = 1 + split;
	p->pairs = split ? 3 : 1;
	count = find_taps(x, plan, taps);
	if (!count)
		return "taps or phases are too many";
	/* Taps reach zeros before the first image and after the last. */
	for (int i = 0; i < count; i++)
		reach = absolute(taps[i].pixel) > reach ? absolute(taps[i].pixel) : reach;
	reach = round_up(reach, HZI_WGRAD8_TILE_K);
	if (reach > PIXELS_MAX)
		return "taps are too far apart";
	for (;; plan->images = (plan->images + 1) / 2) {
		pixels = round_up(plan->images * box, HZI_WGRAD8_TILE_K);
		bytes = 16 * small->parts * (pixels * small->columns +
					     big->phases * (pixels + 2 * reach) *
						     big->columns);
		if (plan->images == 1 || bytes <= PLANES_BYTES * small->parts)
			break;
	}
	if (pixels + 2 * reach > PIXELS_MAX / (16 * big->phases) || bytes > PLANES_MOST)
		return "planes of an image exceed 1 GiB";
	plan->lead = (int32_t)reach;
	small->pixels = p->small_pixels = (int32_t)pixels;
	big->pixels = p->big_pixels = (int32_t)(pixels + 2 * reach);
	big->lead = plan->lead;
	if (!make_sets(plan, taps, count))
		return "taps are too many, or too far apart";
	p->rows = small->columns;
	p->columns = p->diagonal ? HZI_WGRAD8_TILE : big->columns;
	p->tiles_m = p->rows / HZI_WGRAD8_TILE;
	p->tiles_n = p->columns / HZI_WGRAD8_TILE;
	p->taps = count;
	blocks = 8 * (int64_t)p->pairs * p->sets * p->tiles_m * p->tiles_n;
	splits = min_of(BLOCKS * small->parts / blocks, pixels / SPLIT_PIXELS);
	p->pixels = (int32_t)pixels;
	p->each = (int32_t)round_up(ceil_div(pixels, splits > 1 ? splits : 1), HZI_WGRAD8_TILE_K);
	p->splits = (int32_t)ceil_div(pixels, p->each);
	return blocks <= PIXELS_MAX / p->splits &&
	       (int64_t)p->rows * count * p->columns <= PIXELS_MAX ? NULL : "sizes are too large";
}

/* Expected time of planes and products, us */
double hzi_cuda_quat_conv_wgrad8_us(const struct hz_context *ctx,
				    const struct hzi_quat_wgrad_step *a)
{
	const struct hzi_quat_patch_step *x = &a->x;
	const bool diagonal = x->groups > 1, split = a->g.dtype == HZ_F32;
	const double m = (double)ceil_div(x->groups * a->g.m, HZI_WGRAD8_TILE);
	const double n = (double)ceil_div(x->groups * x->channels, HZI_WGRAD8_TILE);
	double phases = 1, taps = 1, cycles, bytes;

	for (int d = 0; d < 3; d++) {
		taps *= (double)x->taps[d];
		phases *= (double)min_of(x->step[d], x->taps[d]);
	}
	taps = ceil(taps / phases);
	cycles = (double)a->g.k * phases * (diagonal ? m : m * n) *
		 (plane_costs[split].set_cycles * ceil(taps / plane_costs[split].set) +
		  plane_costs[split].tap_cycles * taps);
	bytes = (double)a->g.k * plane_costs[split].pixel_bytes * (m + phases * n);
	return CALL_US + hzi_quat_conv_memory_us(ctx, bytes, 1) +
	       hzi_quat_conv_sm_us(ctx, cycles, 1);
}

/* make_plan() for a copy of big with taps as channels where that pays: the caller sets its data. */
static const char *plan_with_copy(const struct hz_context *ctx, const struct hzi_quat_wgrad_step *a,
				  struct hzi_quat_wgrad_step *on_copy, struct plan *plan)
{
	const double rows = (double)a->g.k * (double)round_up(a->g.m, HZI_WGRAD8_TILE);
	struct hzi_quat_conv_copy_costs costs;
	const char *why;
	int split;

	if (!hzi_quat_uses_planar_f16(ctx, a->g.dtype, a->g.precision, &split))
		return "f32 multiply-adds are asked for";
	costs = (struct hzi_quat_conv_copy_costs){
		.tap = hzi_quat_conv_sm_us(ctx, 32 * rows, split ? SPLIT_OPERATIONS : OPERATIONS),
		.grid = hzi_quat_conv_memory_us(ctx, 16 * (1 + split) * (double)a->g.k,
						PLANES_SHARE),
		.unit = HZI_WGRAD8_TILE,
		.set = split ? 0 : HZI_WGRAD8_RUNS * HZI_WGRAD8_RUN,
	};
	*on_copy = *a;
	plan->copy_bytes = hzi_quat_conv_copy_plan(ctx, &a->x, a->images, &costs, &plan->copy,
						   &on_copy->x);
	do {
		why = make_plan(ctx, on_copy, plan);
	} while (why && hzi_quat_conv_copy_drop(&a->x, &on_copy->x, &plan->copy_bytes));
	return why;
}

/* Sets the addresses of all that is in the workspace; returns its size. */
static size_t set_addresses(struct plan *plan, int64_t images, void *workspace)
{
	struct hzi_quat_wgrad8_pack *l = &plan->pack;
	const struct hzi_quat_wgrad8 *p = &plan->p;
	const int64_t parts = ceil_div(images, plan->images) * p->splits * p->pairs;
	char *at = workspace;

	for (int i = 0; i < 2; i++) {
		l->side[i].planes = (uint16_t *)(void *)at;
		at += padded(16 * (int64_t)l->side[i].parts * l->side[i].phases *
			     l->side[i].pixels *
			     l->side[i].columns);
	}
	l->most = (float *)(void *)at;
	at += padded(8 * HZI_WGRAD8_PACK_BLOCKS);
	l->scales = (float *)(void *)at;
	at += padded(8);
	plan->p.parts = (float *)(void *)at;
	at += padded(32 * parts * p->rows * p->taps * p->columns);
	if (plan->copy_bytes)
		plan->copy.out = at;
	at += plan->copy_bytes;
	return (size_t)(at - (char *)workspace);
}

const char *hzi_cuda_quat_conv_wgrad8_unsupported(const struct hz_context *ctx, const void *args)
{
	struct hzi_quat_wgrad_step on_copy;
	struct plan plan;

	return plan_with_copy(ctx, args, &on_copy, &plan);
}

size_t hzi_cuda_quat_conv_wgrad8_workspace(const struct hz_context *ctx, const void *args)
{
	const struct hzi_quat_wgrad_step *a = args;
	struct hzi_quat_wgrad_step on_copy;
	struct plan plan;

	plan_with_copy(ctx, a, &on_copy, &plan);
	return set_addresses(&plan, a->images, NULL);
}

static struct hzi_quat_array images_from(const struct hzi_quat_array *a, int64_t first)
{
	struct hzi_quat_array b = *a;

	b.data = (char *)a->data + first * a->stride[0] * (int64_t)hz_dtype_size(a->dtype);
	return b;
}

static int kernel_of(int kernel_f16, bool vectorized, int dtype, int parts)
{
	if (parts > 1)
		return kernel_f16 + (vectorized && dtype == HZ_F32 ? 3 : 4);
	return kernel_f16 + (!vectorized || dtype == HZ_F32 ? 2 : dtype == HZ_BF16);
}

/* Partial sums over the images from `first` on */
static int add_images(struct hz_context *ctx, const struct hzi_quat_wgrad_step *a,
		      struct plan *plan, int64_t first)
{
	const char *const op = a->op;
	const struct hzi_launch look = {.grid = {HZI_WGRAD8_PACK_BLOCKS, 2}, .early = true,
					.block = {HZI_WGRAD8_PACK_THREADS}};
	struct hzi_launch launch = {.block = {HZI_WGRAD8_THREADS},
				    .shared_bytes = HZI_WGRAD8_SHARED_BYTES,
				    .early = true, .aligned = true};
	struct hzi_quat_wgrad8_pack *l = &plan->pack;
	struct hzi_quat_wgrad8 *p = &plan->p;
	const struct hzi_quat_array small = images_from(&a->small, first);
	const struct hzi_quat_array big = images_from(&a->x.x, first);
	const int parts = l->side[0].parts;
	const int64_t groups = a->x.groups;
	bool vectorized = hzi_quat_conv_array_of(&l->side[0].x, &small, groups * a->g.m,
						 a->g.conj_a);

	vectorized &= hzi_quat_conv_array_of(&l->side[1].x, &big, groups * a->x.channels,
					     a->g.conj_b);
	l->images = (int32_t)min_of(plan->images, a->images - first);
	HZ_CHECK(hzi_cuda_launch(ctx, op,
				 kernel_of(HZI_KERNEL_quat_conv_wgrad8_absmax_f16, vectorized,
					   a->g.dtype, parts),
				 &look, l, sizeof(*l)));
	HZ_CHECK(hzi_cuda_launch(ctx, op,
				 kernel_of(HZI_KERNEL_quat_conv_wgrad8_pack_planar_f16, vectorized,
					   a->g.dtype, parts),
				 &look, l, sizeof(*l)));
	p->scales = l->scales;
	HZ_CHECK(hzi_cuda_tensor_map_2d(ctx, op, &p->small, l->side[0].planes, 2 * p->rows,
					8 * parts * (int64_t)p->small_pixels, 2 * p->rows, 128,
					HZI_WGRAD8_TILE_K));
	HZ_CHECK(hzi_cuda_tensor_map_2d(ctx, op, &p->big, l->side[1].planes, 2 * l->side[1].columns,
					8 * parts * (int64_t)l->side[1].phases * p->big_pixels,
					2 * l->side[1].columns,
					128, HZI_WGRAD8_TILE_K));
	launch.grid[0] = (unsigned)(8 * p->pairs * p->splits * p->sets * p->tiles_m *
				     p->tiles_n);
	HZ_CHECK(hzi_cuda_launch(ctx, op,
				 parts > 1 ? HZI_KERNEL_quat_conv_wgrad8_wgmma_split :
					     HZI_KERNEL_quat_conv_wgrad8_wgmma,
				 &launch, p, sizeof(*p)));
	p->parts += (int64_t)p->splits * p->pairs * 8 * p->rows * p->taps * p->columns;
	return HZ_OK;
}

int hzi_cuda_quat_conv_wgrad8(struct hz_context *ctx, const void *args)
{
	struct hzi_launch launch = {.block = {HZI_WGRAD8_REDUCE_LANES, 8}, .early = true};
	const struct hzi_quat_wgrad_step *const given = args;
	struct hzi_quat_wgrad_step on_copy;
	const struct hzi_quat_wgrad_step *const a = &on_copy;
	struct plan plan;
	struct hzi_quat_wgrad8_reduce f = {
		.sum = given->sum, .m = (int32_t)(given->x.groups * given->g.m),
		.conj = given->g.conj_c, .outs = (int32_t)given->g.m,
	};

	plan_with_copy(ctx, given, &on_copy, &plan);
	set_addresses(&plan, a->images, ctx->workspace);
	if (plan.copy_bytes) {
		on_copy.x.x.data = plan.copy.out;
		HZ_CHECK(hzi_quat_conv_copy_run(ctx, a->op, &plan.copy, plan.copy.out));
	}
	f.parts = plan.p.parts;
	f.parts_count = (int32_t)(ceil_div(a->images, plan.images) * plan.p.splits * plan.p.pairs);
	f.rows = plan.p.rows;
	f.columns = plan.p.columns;
	f.taps = plan.p.taps;
	f.channels = (int32_t)(a->g.n / f.taps);	/* without padding of big */
	f.groups_of_tile = (int32_t)plan.groups_of_tile;
	for (int64_t i = 0; i < a->images; i += plan.images)
		HZ_CHECK(add_images(ctx, a, &plan, i));
	launch.grid[0] = (unsigned)ceil_div((int64_t)f.m * f.taps * f.channels,
					     HZI_WGRAD8_REDUCE_LANES);
	return hzi_cuda_launch(ctx, a->op, HZI_KERNEL_quat_conv_wgrad8_reduce, &launch, &f,
			       sizeof(f));
}
