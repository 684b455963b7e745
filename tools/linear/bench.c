/*
 * bench.c - hurwitz bench of linear layers with quantized weights
 *
 * SPDX-License-Identifier: BSD-2-Clause
 *
 * Operations are 2 out in rows, as in a dense product. On the CPU up to 8 rows are measured against
 * a read of W in f32, more against multiply-adds of f32 alone; on a GPU against those and a copy.
 */
#include <config.h>

#include <stdlib.h>
#include <string.h>

#include "lib/linear/linear.h"
#include "tools/core/bench_grid.h"

enum { QUICK = 1, ROTATE = 2, GELU = 4, BWD = 8, DEQUANTIZE = 16, FUSED = 32 };

static const struct row {
	int flags, format;
	int64_t out, in, rows;
} rows[] = {
	{QUICK, HZ_LINEAR_S8_ROW, 768, 768, 1},
	{0, HZ_LINEAR_S8_ROW, 768, 768, 8},
	{0, HZ_LINEAR_S8_ROW, 768, 768, 32},
	{0, HZ_LINEAR_S8_ROW, 768, 768, 512},
	{0, HZ_LINEAR_S8_ROW, 3072, 768, 1},
	{0, HZ_LINEAR_S8_ROW, 3072, 768, 8},
	{0, HZ_LINEAR_S8_ROW, 3072, 768, 32},
	{0, HZ_LINEAR_S8_ROW, 3072, 768, 512},
	{GELU, HZ_LINEAR_S8_ROW, 3072, 768, 512},
	{0, HZ_LINEAR_S8_ROW, 4096, 4096, 1},
	{ROTATE, HZ_LINEAR_S8_ROW, 4096, 4096, 1},
	{0, HZ_LINEAR_S8_ROW, 4096, 4096, 8},
	{0, HZ_LINEAR_S8_ROW, 4096, 4096, 32},
	{0, HZ_LINEAR_S8_ROW, 4096, 4096, 512},
	{QUICK | ROTATE, HZ_LINEAR_E8_4_50_FAST, 768, 768, 1},
	{ROTATE, HZ_LINEAR_E8_4_50_FAST, 768, 768, 8},
	{ROTATE, HZ_LINEAR_E8_4_50_FAST, 768, 768, 32},
	{ROTATE, HZ_LINEAR_E8_4_50_FAST, 768, 768, 512},
	{ROTATE, HZ_LINEAR_E8_4_50_FAST, 3072, 768, 1},
	{ROTATE, HZ_LINEAR_E8_4_50_FAST, 3072, 768, 8},
	{ROTATE, HZ_LINEAR_E8_4_50_FAST, 3072, 768, 32},
	{ROTATE, HZ_LINEAR_E8_4_50_FAST, 3072, 768, 512},
	{ROTATE, HZ_LINEAR_E8_4_50_FAST, 4096, 4096, 1},
	{ROTATE, HZ_LINEAR_E8_4_50_FAST, 4096, 4096, 8},
	{ROTATE, HZ_LINEAR_E8_4_50_FAST, 4096, 4096, 32},
	{ROTATE, HZ_LINEAR_E8_4_50_FAST, 4096, 4096, 512},
	{ROTATE, HZ_LINEAR_E8_4_25, 4096, 4096, 1},
	{ROTATE, HZ_LINEAR_D4_4_50, 4096, 4096, 1},
	{ROTATE, HZ_LINEAR_S4_G32, 4096, 4096, 1},
	{ROTATE, HZ_LINEAR_S4_G32, 4096, 4096, 512},
	{ROTATE, HZ_LINEAR_NVFP4, 4096, 4096, 1},
	{BWD | QUICK, HZ_LINEAR_S8_ROW, 768, 768, 512},
	{BWD | ROTATE, HZ_LINEAR_E8_4_50_FAST, 3072, 768, 512},
	{DEQUANTIZE | QUICK, HZ_LINEAR_S8_ROW, 768, 768, 1},
	{DEQUANTIZE | ROTATE, HZ_LINEAR_E8_4_50_FAST, 4096, 4096, 1},
};

#define ROWS (sizeof(rows) / sizeof(*rows))

struct linear_case {
	struct bench_case c;
	const struct row *row;
	hz_linear *layer;
	hz_tensor x, y;
	float *dense;
};

static int call_linear(struct bench *b, struct bench_case *c)
{
	struct linear_case *const q = (struct linear_case *)c;
	const hz_linear_opts o = {.activation = q->row->flags & GELU ? HZ_ACT_GELU : HZ_ACT_NONE};

	if (q->row->flags & DEQUANTIZE)
		return hz_linear_dequantize(b->ctx, q->layer, &q->y);
	return q->row->flags & BWD ? hz_linear_bwd(b->ctx, q->layer, &q->x, &q->y) :
				     hz_linear_forward(b->ctx, q->layer, &q->x, NULL, &q->y, &o);
}

static int call_read(struct bench *b, struct bench_case *c)
{
	const struct linear_case *const q = (const struct linear_case *)c;

	return bench_read(b, q->dense, q->row->out * q->row->in);
}

static const char *op_of(const struct row *r)
{
	return r->flags & DEQUANTIZE ? "linear_dequantize" :
	       r->flags & BWD ? "linear_bwd" : "linear_forward";
}

static int make_case(struct bench *b, struct linear_case *q)
{
	const struct row *const r = q->row;
	const int device = hz_device(b->ctx);
	const hz_linear_open_opts o = {.format = r->format,
				       .flags = r->flags & ROTATE ? HZ_LINEAR_ROTATE : 0};
	const hz_tensor w = hz_tensor_2d(b->y, HZ_F32, device, r->out, r->in);
	hz_linear_info info = {0};
	int status = bench_fill(b, HZ_F32, r->out * r->in, w);

	if (!status)
		status = hz_linear_open(b->ctx, &q->layer, &w, &o);
	if (!status)
		status = hz_linear_get_info(q->layer, &info);
	q->x = hz_tensor_2d(b->x, HZ_F32, device, r->rows, r->flags & BWD ? r->out : r->in);
	q->y = hz_tensor_2d(b->y, HZ_F32, device, r->flags & DEQUANTIZE ? r->out : r->rows,
			    r->flags & (BWD | DEQUANTIZE) ? r->in : r->out);
	if (!status)
		status = bench_fill(b, HZ_F32, hz_tensor_count(&q->x), q->x);
	if (!status)
		status = RESERVE_FOR(b->ctx, call_linear(b, &q->c));
	q->c.call = call_linear;
	q->c.operations = 2 * (double)r->out * (double)r->in * (double)r->rows;
	q->c.moved_bytes = (double)(info.bytes + hz_tensor_bytes(&q->x) + hz_tensor_bytes(&q->y));
	q->c.large = q->c.operations > 1e10;
	if (r->flags & DEQUANTIZE)
		snprintf(q->c.name, sizeof(q->c.name), "%lldx%lld %s%s", (long long)r->out,
			 (long long)r->in, hz_linear_format_name(r->format),
			 r->flags & ROTATE ? " rotated" : "");
	else
		snprintf(q->c.name, sizeof(q->c.name), "%lldx%lldx%lld %s%s%s", (long long)r->out,
			 (long long)r->rows, (long long)r->in, hz_linear_format_name(r->format),
			 r->flags & ROTATE ? " rotated" : "", r->flags & GELU ? " gelu" : "");
	snprintf(q->c.dtype, sizeof(q->c.dtype), "f32");
	if (b->gpu) {
		bench_products_of(b, &q->c, HZ_F32, q->c.operations / 2);
	} else if (r->rows <= 8) {
		if (!status)
			status = hz_alloc(b->ctx, (void **)&q->dense,
					  (size_t)(r->out * r->in) * 4, HZ_CPU);
		if (!status)
			status = bench_fill(b, HZ_F32, r->out * r->in,
					    hz_tensor_1d(q->dense, HZ_F32, HZ_CPU, r->out * r->in));
		q->c.ceiling = call_read;
		q->c.against = "a read of W in f32";
	} else {
		q->c.ceiling = bench_peak;
		q->c.against = "bare multiply-adds";
	}
	return status;
}

/* ---- Rows that repeat ------------------------------------------------------------------------ */

#define GRID_ROWS 64		/* that are quantized; the others repeat them: a panel of codes */

static char *repeat(char *to, const char *from, size_t bytes, int64_t times)
{
	for (int64_t i = 0; i < times; i++, to += bytes)
		memcpy(to, from, bytes);
	return to;
}

/* The bytes of a layer of GRID_ROWS times `times` rows that repeat those of a layer at `from` */
static void repeat_rows(const char *from, int64_t times, char *to)
{
	struct hzi_linear_header h;
	size_t codes, sums = 0;
	uint64_t codes_at;

	memcpy(&h, from, sizeof(h));
	codes_at = h.codes_at;
	if (h.format == HZ_LINEAR_S8_ROW)
		sums = 4 * GRID_ROWS;
	codes = h.codes_bytes - sums;
	h.out *= times;
	hzi_linear_sizes(&h);
	memset(to, 0, h.bytes);
	repeat(to + h.scales_at, from + h.scales_at, (size_t)h.scales_bytes / (size_t)times, times);
	memcpy(to, &h, sizeof(h));
	repeat(repeat(to + h.codes_at, from + codes_at, codes, times), from + codes_at + codes,
	       sums, times);
}

/* Saves a layer of the rows w; the caller frees *data. */
static int save_rows(struct bench *b, const hz_tensor *w, const hz_linear_open_opts *o, char **data)
{
	hz_linear *layer;
	size_t bytes = 0;
	int status = hz_linear_open(b->ctx, &layer, w, o);

	*data = NULL;
	if (status)
		return status;
	status = hz_linear_save_bytes(b->ctx, layer, &bytes);
	if (!status)
		*data = allocate(bytes);
	if (!status && !*data)
		status = HZ_ENOMEM;
	if (!status)
		status = hz_linear_save(b->ctx, layer, *data, bytes);
	hz_linear_close(layer);
	return status;
}

/* ---- The linear layers of a decoder ---------------------------------------------------------- */

/*
 * One call is all products of the 32 blocks of Llama-3-8B by one token, whose 3.7 GB and more are
 * read once, or of two blocks by many tokens. FUSED: matrices of the same input are one, as
 * inference engines store them: q, k and v, and gate and up. Each matrix has memory of its own; the
 * codes are those of 64 random rows, repeated.
 */
#define BLOCKS 32
#define MATRICES 7

static const int64_t llama[2][MATRICES][2] = {
	{{4096, 4096}, {1024, 4096}, {1024, 4096}, {4096, 4096}, {14336, 4096}, {14336, 4096},
	 {4096, 14336}},
	{{6144, 4096}, {4096, 4096}, {28672, 4096}, {4096, 14336}},
};

static const struct row decoders[] = {
	{FUSED, HZ_LINEAR_S4_G128, 28672, 14336, 1},
	{0, HZ_LINEAR_S4_G128, 14336, 14336, 1},
	{FUSED, HZ_LINEAR_S4_G32, 28672, 14336, 1},
	{FUSED, HZ_LINEAR_MXFP4, 28672, 14336, 1},
	{FUSED, HZ_LINEAR_NVFP4, 28672, 14336, 1},
	{FUSED, HZ_LINEAR_E8_4_50_FAST, 28672, 14336, 1},
	{0, HZ_LINEAR_E8_4_50_FAST, 14336, 14336, 1},
	{FUSED | ROTATE, HZ_LINEAR_E8_4_50_FAST, 28672, 14336, 1},
	{FUSED, HZ_LINEAR_E8_4_25, 28672, 14336, 1},
	{FUSED, HZ_LINEAR_S4_G128, 28672, 14336, 2048},
	{0, HZ_LINEAR_E8_4_50_FAST, 14336, 14336, 2048},
};

struct decoder_case {
	struct bench_case c;
	const struct row *row;
	int blocks;
	hz_linear *layer[MATRICES];	/* of the first block */
	hz_linear *copy;		/* [blocks - 1][MATRICES]: with packed codes of their own */
};

/* Matrix i of a case, [out, in]; 0: there is none. */
static const int64_t *decoder_size(const struct decoder_case *q, int i)
{
	return llama[q->row->flags & FUSED ? 1 : 0][i];
}

static int call_decoder(struct bench *b, struct bench_case *c)
{
	const struct decoder_case *const q = (struct decoder_case *)c;
	const hz_linear_opts o = {
		.flags = q->row->format >= HZ_LINEAR_S8_G128 ? HZ_LINEAR_WEIGHT_ONLY : 0,
	};
	const int device = hz_device(b->ctx);
	int status = 0;

	for (int i = 0; i < q->blocks * MATRICES && !status; i++) {
		const int64_t *const size = decoder_size(q, i % MATRICES);
		const hz_tensor x = hz_tensor_2d(b->x, HZ_BF16, device, q->row->rows, size[1]);
		hz_tensor y = hz_tensor_2d(b->y, HZ_BF16, device, q->row->rows, size[0]);

		if (size[0])
			status = hz_linear_forward(b->ctx, i < MATRICES ? q->layer[i] :
							   &q->copy[i - MATRICES], &x, NULL, &y, &o);
	}
	return status;
}

/* Layer i of a case; random rows are made in b->y. */
static int make_layer(struct bench *b, const struct decoder_case *q, int i, hz_linear **layer)
{
	const hz_linear_open_opts o = {.format = q->row->format,
				       .flags = q->row->flags & ROTATE ? HZ_LINEAR_ROTATE : 0};
	const int64_t *const size = decoder_size(q, i);
	const hz_tensor w = hz_tensor_2d(b->y, HZ_F32, hz_device(b->ctx), GRID_ROWS, size[1]);
	struct hzi_linear_header h;
	char *rows = NULL;
	void *data = NULL;
	int status = bench_fill(b, HZ_F32, GRID_ROWS * size[1], w);

	if (!status)
		status = save_rows(b, &w, &o, &rows);
	if (!status) {
		memcpy(&h, rows, sizeof(h));
		h.out = size[0];
		hzi_linear_sizes(&h);
		status = hz_alloc(b->ctx, &data, (size_t)h.bytes, HZ_CPU);
	}
	if (!status) {
		repeat_rows(rows, size[0] / GRID_ROWS, data);
		status = hz_linear_load(b->ctx, layer, data, (size_t)h.bytes);
	}
	if (data)
		hz_free(b->ctx, data, HZ_CPU);
	free(rows);
	return status;
}

/* What products read, once more; everything else is that of `from`. */
static int copy_layer(struct bench *b, const hz_linear *from, hz_linear *to)
{
	const int device = hz_device(b->ctx);
	const hz_tensor source = hz_tensor_1d(from->packed_data, HZ_U8, device,
					      (int64_t)from->packed.bytes);
	hz_tensor copy = source;
	int status;

	*to = *from;
	to->packed_data = NULL;
	status = hz_alloc(b->ctx, &to->packed_data, from->packed.bytes, device);
	to->packed.data = copy.data = to->packed_data;
	return status ? status : hz_copy(b->ctx, &source, &copy);
}

static int make_decoder(struct bench *b, struct decoder_case *q)
{
	const struct row *const r = q->row;
	const hz_tensor x = hz_tensor_1d(b->x, HZ_BF16, hz_device(b->ctx), r->rows * r->in);
	int status = 0;

	q->blocks = r->rows > 1 ? 2 : BLOCKS;
	q->copy = calloc((size_t)(q->blocks - 1) * MATRICES, sizeof(*q->copy));
	if (!q->copy)
		return HZ_ENOMEM;
	for (int i = 0; i < MATRICES && !status && decoder_size(q, i)[0]; i++) {
		const int64_t *const size = decoder_size(q, i);
		hz_linear_info info = {0};

		status = make_layer(b, q, i, &q->layer[i]);
		if (!status)
			status = hz_linear_get_info(q->layer[i], &info);
		for (int l = 0; l < q->blocks - 1 && !status; l++)
			status = copy_layer(b, q->layer[i], &q->copy[l * MATRICES + i]);
		q->c.moved_bytes += (double)info.bytes * q->blocks;
		q->c.operations += 2 * (double)(size[0] * size[1] * r->rows) * q->blocks;
	}
	if (!status)
		status = bench_fill(b, HZ_BF16, r->rows * r->in, x);
	if (!status)
		status = RESERVE_FOR(b->ctx, call_decoder(b, &q->c));
	q->c.call = call_decoder;
	q->c.large = true;
	snprintf(q->c.name, sizeof(q->c.name), "llama-8b %d blocks%s x%lld %s%s", q->blocks,
		 r->flags & FUSED ? " fused" : "", (long long)r->rows,
		 hz_linear_format_name(r->format), r->flags & ROTATE ? " rotated" : "");
	snprintf(q->c.dtype, sizeof(q->c.dtype), "bf16");
	bench_products_of(b, &q->c, HZ_F16, q->c.operations / 2);
	return status;
}

static void close_decoder(struct bench *b, struct decoder_case *q)
{
	for (int i = 0; i < (q->blocks - 1) * MATRICES && q->copy; i++) {
		if (q->copy[i].packed_data)
			hz_free(b->ctx, q->copy[i].packed_data, hz_device(b->ctx));
	}
	for (int i = 0; i < MATRICES; i++)
		hz_linear_close(q->layer[i]);
	free(q->copy);
}

static int bench_decoders(struct bench *b, void (*head)(struct bench *b))
{
	int status = 0;

	for (size_t i = 0; i < sizeof(decoders) / sizeof(*decoders) && !status; i++) {
		struct decoder_case q = {.row = &decoders[i], .c.op = "linear_forward"};

		if (!b->gpu || b->set->quick || !bench_wanted(b->set, q.c.op) ||
		    q.row->out * llama[0][0][1] > b->elements)
			return status;
		head(b);
		progress("bench: %s", q.c.op);
		status = bench_made(b, &q.c, make_decoder(b, &q));
		close_decoder(b, &q);
	}
	return status;
}

int bench_linear(struct bench *b, void (*head)(struct bench *b))
{
	int status = bench_decoders(b, head);

	for (size_t i = 0; i < ROWS && !status; i++) {
		struct linear_case q = {.row = &rows[i], .c.op = op_of(&rows[i])};

		if (!bench_wanted(b->set, q.c.op) ||
		    (b->set->quick && !(rows[i].flags & QUICK)) ||
		    rows[i].out * (rows[i].in > rows[i].rows ? rows[i].in : rows[i].rows) >
			    b->elements)
			continue;
		head(b);
		progress("bench: %s", q.c.op);
		status = bench_made(b, &q.c, make_case(b, &q));
		hz_linear_close(q.layer);
		if (q.dense)
			hz_free(b->ctx, q.dense, HZ_CPU);
	}
	return status;
}

/* ---- The grid -------------------------------------------------------------------------------- */

struct grid_layers {
	hz_linear **layer;
	void *data;			/* copies of the bytes, on the host */
	int64_t count;
};

static int grid_make(struct bench *b, struct grid_case *g)
{
	struct grid_layers *own = g->own = calloc(1, sizeof(*own));
	struct hzi_linear_header h = {0};
	char *rows = NULL;
	size_t each = 0;
	int64_t copies = 0;
	const hz_linear_open_opts o = {.format = g->op->kind};
	const hz_tensor w =
		hz_tensor_2d(b->x, g->dtype, hz_device(b->ctx), GRID_ROWS, g->width);
	int status = own ? save_rows(b, &w, &o, &rows) : HZ_ENOMEM;

	if (!status) {
		memcpy(&h, rows, sizeof(h));
		h.out = g->width;
		hzi_linear_sizes(&h);
		each = ((size_t)h.bytes + 63) & ~(size_t)63;
		copies = grid_copies(b, each);
		own->layer = calloc((size_t)copies, sizeof(*own->layer));
		status = own->layer ? hz_alloc(b->ctx, &own->data, (size_t)copies * each, HZ_CPU) :
				      HZ_ENOMEM;
	}
	for (int64_t i = 0; i < copies && !status; i++) {
		char *const to = (char *)own->data + (size_t)i * each;

		repeat_rows(rows, g->width / GRID_ROWS, to);
		status = hz_linear_load(b->ctx, &own->layer[i], to, each);
		own->count += !status;
	}
	free(rows);
	return status;
}

static void grid_release(struct bench *b, struct grid_case *g)
{
	struct grid_layers *own = g->own;

	for (int64_t i = 0; i < own->count; i++)
		hz_linear_close(own->layer[i]);
	if (own->data)
		hz_free(b->ctx, own->data, HZ_CPU);
	free(own->layer);
	free(own);
}

static int grid_call(struct bench *b, struct bench_case *c)
{
	struct grid_case *g = (struct grid_case *)c;
	const struct grid_layers *own = g->own;

	return hz_linear_forward(b->ctx, own->layer[g->next++ % own->count], &g->x, NULL, &g->y,
				 NULL);
}

#define GRID_FORMAT(name, format, bits, mac) \
	{"linear_forward", name, format, {HZ_F32, HZ_F16, HZ_BF16}, .weights = 1, \
	 .weight_bits = bits, .macs = 1, .macs_f32 = 1, .mac_dtype = mac, .make = grid_make, \
	 .call = grid_call, .release = grid_release}

const struct grid_op grid_linear[] = {
	GRID_FORMAT("s8-row", HZ_LINEAR_S8_ROW, 8, HZ_S8),
	GRID_FORMAT("s4-g128", HZ_LINEAR_S4_G128, 4.125, HZ_S8),
	GRID_FORMAT("e8-4.5-fast", HZ_LINEAR_E8_4_50_FAST, 4.5, 0),
	GRID_FORMAT("e8-4.25", HZ_LINEAR_E8_4_25, 4.25, 0),
	{0},
};
