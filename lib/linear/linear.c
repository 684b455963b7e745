/*
 * linear.c - linear layers with quantized weights: objects, argument checks, calls
 *
 * SPDX-License-Identifier: BSD-2-Clause
 *
 * A call is a sequence of calls of other families and of this one's operations: see hzi_parts().
 */
#include <config.h>

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "lib/core/route.h"
#include "lib/lattice/lattice.h"
#include "lib/linear/linear.h"
#include "lib/qgemm/qgemm.h"
#include "lib/vlut/vlut.h"

#define CHUNK 256		/* rows of W' that are decoded at a time */

static const int float_types[] = {HZ_F32, HZ_F16, HZ_BF16, 0};
static const int f32_type[] = {HZ_F32, 0};

static const char open_name[] = "linear_open", load_name[] = "linear_load",
		  save_name[] = "linear_save", forward_name[] = "linear_forward",
		  bwd_name[] = "linear_bwd", dequantize_name[] = "linear_dequantize";

/* ---- Layers from bytes ----------------------------------------------------------------------- */

void hz_linear_close(hz_linear *l)
{
	struct hz_context *ctx;
	void *memory[4];

	if (!l)
		return;
	ctx = l->ctx;
	memory[0] = l->device_codes;
	memory[1] = l->device_scales;
	memory[2] = l->signs;
	memory[3] = l->packed_data;
	for (int i = 0; i < 4; i++) {
		if (memory[i])
			hz_free(ctx, memory[i], ctx->device);
	}
	hz_vlut_close(l->vlut);
	hz_lattice_close(l->lattice);
	if (l->own)
		hzi_mfree(ctx, l->own, (size_t)l->h.bytes);
	hzi_mfree(ctx, l, sizeof(*l));
}

/* *to becomes new memory of the context's device with a copy of host memory. */
static int upload(struct hz_context *ctx, void **to, const void *from, size_t bytes)
{
	HZ_CHECK(hz_alloc(ctx, to, bytes, ctx->device));
	if (!ctx->gpu) {
		memcpy(*to, from, bytes);
		return HZ_OK;
	}
	HZ_CHECK(ctx->gpu->copy(ctx, *to, ctx->device, from, HZ_CPU, bytes));
	return hz_sync(ctx);
}

static bool is_grouped(const hz_linear *l)
{
	return hzi_linear_group_of(&l->h)->group != 0;
}

/* The operands of a format with groups, on the context's device */
struct grouped {
	hz_tensor q, scales, zeros, tensor_scale;
};

static struct grouped grouped_of(const hz_linear *l)
{
	const struct hzi_linear_group *const g = hzi_linear_group_of(&l->h);
	const int64_t groups = hzi_linear_groups(&l->h);
	const int scale_dtype = g->scale_dtype == HZ_BF16 ? HZ_F32 : g->scale_dtype;
	const uint64_t zeros_at = hzi_linear_zeros_at(&l->h, scale_dtype);
	const uint64_t tensor_at = zeros_at + (uint64_t)hzi_round_up(l->h.out * groups, 64);
	char *const scales = l->device_scales;
	const int device = l->ctx->device;

	return (struct grouped){
		.q = hz_tensor_2d((void *)(uintptr_t)l->codes, g->q_dtype, device, l->h.out,
				  hzi_linear_row_bytes(&l->h)),
		.scales = hz_tensor_2d(scales, scale_dtype, device, l->h.out, groups),
		.zeros = hz_tensor_2d(scales + zeros_at, HZ_U8, device, l->h.out, groups),
		.tensor_scale = hz_tensor_1d(scales + tensor_at, HZ_F32, device, 1),
	};
}

/* Scales, zero points and tensor_scale as products and decoding read them */
static int make_group_scales(hz_linear *l, const char *op)
{
	const struct hzi_linear_group *const g = hzi_linear_group_of(&l->h);
	const unsigned char *const from = l->bytes + l->h.scales_at;
	const int64_t count = l->h.out * hzi_linear_groups(&l->h);
	const int scale_dtype = g->scale_dtype == HZ_BF16 ? HZ_F32 : g->scale_dtype;
	const uint64_t zeros_at = hzi_linear_zeros_at(&l->h, scale_dtype);
	const uint64_t tensor_at = zeros_at + (uint64_t)hzi_round_up(count, 64);
	const size_t bytes = (size_t)tensor_at + 64;
	unsigned char *const to = hzi_malloc(l->ctx, bytes, 64);
	int status;

	if (!to)
		return hzi_fail(l->ctx, HZ_ENOMEM, "%s: no memory for %zu bytes", op, bytes);
	memset(to, 0, bytes);
	for (int64_t i = 0; i < count; i++) {
		if (g->scale_dtype == HZ_BF16)
			memcpy(to + 4 * i + 2, from + 2 * i, 2);
		else
			to[i] = from[i];
	}
	if (g->zeros)
		memcpy(to + zeros_at, from + hzi_linear_zeros_at(&l->h, HZ_BF16), (size_t)count);
	memcpy(to + tensor_at, &l->h.tensor_scale, 4);
	status = upload(l->ctx, &l->device_scales, to, bytes);
	hzi_mfree(l->ctx, to, bytes);
	l->scales = l->device_scales;
	return status;
}

/* Packs groups for products: the same on every device. */
static int pack_groups(hz_linear *l)
{
	const struct hzi_linear_group *const g = hzi_linear_group_of(&l->h);
	const struct grouped v = grouped_of(l);
	const bool bf16 = g->scale_dtype == HZ_BF16;
	const size_t scale_bytes = 2 * (size_t)hz_tensor_count(&v.scales);
	const hz_tensor w = hz_view_transpose(&v.q, 0, 1);
	hz_tensor s = hz_view_transpose(&v.scales, 0, 1);
	const hz_tensor z = hz_view_transpose(&v.zeros, 0, 1);
	const hz_qlinear_group_opts o = {
		.group = g->group, .zeros = g->zeros ? &z : NULL,
		.tensor_scale = l->h.tensor_scale > 0 ? &v.tensor_scale : NULL,
	};
	void *scales = NULL;
	size_t bytes;
	int status = HZ_OK;

	/* As stored: a GPU keeps scales of bf16 so, too. */
	if (bf16) {
		s.dtype = HZ_BF16;
		status = upload(l->ctx, &scales, l->bytes + l->h.scales_at, scale_bytes);
		s.data = scales;
	}
	if (status == HZ_OK)
		status = hz_qlinear_group_pack_bytes(l->ctx, &w, &s, &o, &bytes);
	if (status == HZ_OK)
		status = hz_alloc(l->ctx, &l->packed_data, bytes, l->ctx->device);
	if (status == HZ_OK)
		status = hz_qlinear_group_pack(l->ctx, &w, &s, &o, l->packed_data, bytes,
					       &l->packed);
	if (status == HZ_OK)
		status = hz_sync(l->ctx);
	if (scales)
		hz_free(l->ctx, scales, l->ctx->device);
	return status;
}

/* Codes of groups stay in place on the CPU; products have them packed besides. */
static int use_groups(hz_linear *l, const char *op)
{
	HZ_CHECK(make_group_scales(l, op));
	if (l->ctx->gpu) {
		HZ_CHECK(upload(l->ctx, &l->device_codes, l->codes, (size_t)l->h.codes_bytes));
		l->codes = l->device_codes;
	}
	return pack_groups(l);
}

/* On the CPU the stored codes are what products read. */
static void use_in_place(hz_linear *l)
{
	hz_lattice_info info = {.level_dtype = HZ_S8};

	if (l->lattice)
		hz_lattice_get_info(l->lattice, &info);
	l->packed = (hz_packed){
		.data = (void *)(uintptr_t)l->codes, .bytes = (size_t)l->h.codes_bytes,
		.device = HZ_CPU, .dtype = (int16_t)info.level_dtype, .ndim = 2,
		.shape = {l->lattice ? l->h.out : l->h.in, l->lattice ? l->h.in : l->h.out},
		.layout = l->lattice ? l->vlut->layout[0] : HZI_QGEMM_LAYOUT_CPU,
	};
	l->packed.check = hzi_packed_check(l->ctx, &l->packed);
}

/* Memory of layers on a GPU while they are made */
struct transfer {
	void *host[2], *device[2];
	size_t bytes[2];
};

static int take(struct hz_context *ctx, struct transfer *f, const char *op, int i, size_t bytes)
{
	f->bytes[i] = bytes;
	f->host[i] = hzi_malloc(ctx, bytes, 64);
	return f->host[i] ? HZ_OK :
	       hzi_fail(ctx, HZ_ENOMEM, "%s: no memory for %zu bytes", op, bytes);
}

static int send(struct hz_context *ctx, struct transfer *f, int i)
{
	return upload(ctx, &f->device[i], f->host[i], f->bytes[i]);
}

/* Packs codes for the kernels of the GPU: *bytes first, then with data. */
static int pack(hz_linear *l, const hz_tensor *codes, const hz_tensor *t, void *data, size_t *bytes)
{
	const hz_tensor b = l->lattice ? *codes : hz_view_transpose(codes, 0, 1);
	const hz_coded w = {.codes = *codes, .t = t, .k = l->h.in};

	if (!data)
		return l->lattice ? hz_vlut_pack_bytes(l->ctx, l->vlut, &w, bytes) :
				    hz_qgemm_pack_bytes(l->ctx, &b, bytes);
	return l->lattice ? hz_vlut_pack(l->ctx, l->vlut, &w, data, *bytes, &l->packed) :
			    hz_qgemm_pack(l->ctx, &b, data, *bytes, &l->packed);
}

static int make_packed(hz_linear *l, const char *op, const unsigned char *codes,
		       const uint8_t *code_of_fields, struct transfer *f)
{
	struct hz_context *const ctx = l->ctx;
	hz_lattice_info info;
	hz_tensor c = hz_tensor_2d(NULL, HZ_S8, HZ_CPU, l->h.out, l->h.in), t = {0};
	size_t bytes;

	if (l->lattice) {
		hz_lattice_get_info(l->lattice, &info);
		c = hz_tensor_3d(NULL, info.level_dtype, HZ_CPU, l->h.out,
				 (l->h.in + info.dim - 1) / info.dim, info.levels);
		t = hz_tensor_2d(NULL, HZ_U8, HZ_CPU, l->h.out, (l->h.in + 7) / 8);
		HZ_CHECK(take(ctx, f, op, 1, (size_t)hz_tensor_count(&t)));
		t.data = f->host[1];
	}
	HZ_CHECK(take(ctx, f, op, 0, (size_t)hz_tensor_count(&c) * hz_dtype_size(c.dtype)));
	c.data = f->host[0];
	hzi_linear_unpack(&l->layout, codes, code_of_fields, &c, &t);
	HZ_CHECK(send(ctx, f, 0));
	if (l->lattice)
		HZ_CHECK(send(ctx, f, 1));
	c.data = f->device[0];
	t.data = f->device[1];
	c.device = t.device = ctx->device;
	HZ_CHECK(pack(l, &c, l->lattice ? &t : NULL, NULL, &bytes));
	HZ_CHECK(hz_alloc(ctx, &l->packed_data, bytes, ctx->device));
	HZ_CHECK(pack(l, &c, l->lattice ? &t : NULL, l->packed_data, &bytes));
	return hz_sync(ctx);
}

/* On a GPU: the stored codes and scales, and the codes as its products read them */
static int use_on_gpu(hz_linear *l, const char *op, const uint8_t *code_of_fields)
{
	struct hz_context *const ctx = l->ctx;
	const unsigned char *const codes = l->bytes + l->h.codes_at;
	struct transfer f = {{NULL}, {NULL}, {0}};
	int status;

	HZ_CHECK(upload(ctx, &l->device_codes, codes, (size_t)l->h.codes_bytes));
	HZ_CHECK(upload(ctx, &l->device_scales, l->scales, (size_t)l->h.scales_bytes));
	l->codes = l->device_codes;
	l->scales = l->device_scales;
	status = make_packed(l, op, codes, code_of_fields, &f);
	for (int i = 0; i < 2; i++) {
		if (f.device[i])
			hz_free(ctx, f.device[i], ctx->device);
		if (f.host[i])
			hzi_mfree(ctx, f.host[i], f.bytes[i]);
	}
	return status;
}

static int make_signs(hz_linear *l, const char *op)
{
	const size_t bytes = (size_t)(l->h.in + 7) / 8;
	uint8_t *const host = hzi_malloc(l->ctx, bytes, 64);
	int status;

	if (!host)
		return hzi_fail(l->ctx, HZ_ENOMEM, "%s: no memory for %zu bytes", op, bytes);
	hz_hadamard_signs(host, l->h.in, l->h.seed);
	status = upload(l->ctx, &l->signs, host, bytes);
	hzi_mfree(l->ctx, host, bytes);
	return status;
}

static int forward(struct hz_context *ctx, const hz_linear *l, const hz_tensor *x,
		   const hz_tensor *bias, hz_tensor *y, const hz_linear_opts *o);

/* The route of a product by one row: that which counting its workspace picks */
static int find_route(hz_linear *l)
{
	const hz_tensor x = hz_tensor_2d(NULL, HZ_F32, l->ctx->device, 1, l->h.in);
	hz_tensor y = hz_tensor_2d(NULL, HZ_F32, l->ctx->device, 1, l->h.out);
	static const hz_linear_opts none;
	size_t bytes;

	HZ_CHECK(hz_record_begin(l->ctx));
	if (forward(l->ctx, l, &x, NULL, &y, &none) == HZ_OK && l->ctx->picked)
		l->route = l->ctx->picked->name;
	else
		l->route = l->lattice ? "vlut_gemm" : is_grouped(l) ? "qlinear_group" : "qlinear";
	return hz_record_end(l->ctx, &bytes);
}

/*
 * A context on the CPU like ctx, where quantization takes place: it has a workspace of its own and
 * works while ctx records.
 */
static int open_cpu(struct hz_context *ctx, const char *op, hz_context **cpu)
{
	const hz_options o = {
		.device = HZ_CPU, .threads = ctx->threads, .isa = ctx->isa, .flags = HZ_NO_TOPOLOGY,
		.threading = ctx->threading,
		.allocator = ctx->allocator.alloc ? &ctx->allocator : NULL,
		.parallel_for = ctx->parallel_for, .parallel_user = ctx->parallel_user,
	};
	const int status = hz_open(cpu, &o);

	return status == HZ_OK ? HZ_OK : hzi_fail(ctx, status, "%s: %s", op, hz_open_errmsg());
}

/* Which code each value of the fields of D4 is: objects on the CPU alone have that. */
static int find_codes(const hz_linear *l, const char *op, uint8_t *code_of_fields)
{
	hz_lattice *lattice;
	hz_context *cpu;
	hz_vlut *vlut;
	int status;

	if (!l->lattice || l->lattice->rule.shaping)
		return HZ_OK;
	if (!l->ctx->gpu) {
		memcpy(code_of_fields, l->vlut->bitfield_code_table, 256);
		return HZ_OK;
	}
	HZ_CHECK(open_cpu(l->ctx, op, &cpu));
	status = hzi_linear_open_lattice(cpu, &l->h, &lattice, &vlut);
	if (status == HZ_OK) {
		memcpy(code_of_fields, vlut->bitfield_code_table, 256);
		hz_vlut_close(vlut);
		hz_lattice_close(lattice);
	} else {
		hzi_fail(l->ctx, status, "%s: %s", op, hz_errmsg(cpu));
	}
	hz_close(cpu);
	return status;
}

/* The parts of a layer whose header, bytes and `own` are set */
static int make_parts(hz_linear *l, const char *op)
{
	uint8_t code_of_fields[256] = {0};

	l->codes = l->bytes + l->h.codes_at;
	l->scales = (const float *)(const void *)(l->bytes + l->h.scales_at);
	if (l->h.format != HZ_LINEAR_S8_ROW && !is_grouped(l))
		HZ_CHECK(hzi_linear_open_lattice(l->ctx, &l->h, &l->lattice, &l->vlut));
	HZ_CHECK(find_codes(l, op, code_of_fields));
	hzi_linear_make_layout(&l->h, l->lattice, code_of_fields, &l->layout);
	if (l->h.flags & HZ_LINEAR_ROTATE)
		HZ_CHECK(make_signs(l, op));
	if (is_grouped(l))
		HZ_CHECK(use_groups(l, op));
	else if (l->ctx->gpu)
		HZ_CHECK(use_on_gpu(l, op, code_of_fields));
	else
		use_in_place(l);
	return find_route(l);
}

static int new_layer(struct hz_context *ctx, const char *op, hz_linear **layer)
{
	hz_linear *const l = hzi_malloc(ctx, sizeof(*l), 64);

	if (!l)
		return hzi_fail(ctx, HZ_ENOMEM, "%s: no memory for %zu bytes", op, sizeof(*l));
	memset(l, 0, sizeof(*l));
	l->ctx = ctx;
	*layer = l;
	return HZ_OK;
}

static int new_bytes(hz_linear *l, const char *op)
{
	l->own = l->h.bytes <= PTRDIFF_MAX ? hzi_malloc(l->ctx, (size_t)l->h.bytes, 64) : NULL;
	if (!l->own)
		return hzi_fail(l->ctx, HZ_ENOMEM, "%s: no memory for %llu bytes", op,
				(unsigned long long)l->h.bytes);
	l->bytes = l->own;
	return HZ_OK;
}

/*
 * Makes the parts of a layer, outside of a recording, unless status says that it failed before;
 * *layer becomes l, or l is closed.
 */
static int finish(hz_linear **layer, const char *op, hz_linear *l, int status)
{
	struct hz_context *const ctx = l->ctx;
	const bool recording = ctx->recording;
	const size_t recorded = ctx->recorded_bytes;

	ctx->recording = false;
	if (status == HZ_OK)
		status = make_parts(l, op);
	ctx->recording = recording;
	ctx->recorded_bytes = recorded;
	if (status == HZ_OK)
		*layer = l;
	else
		hz_linear_close(l);
	return status;
}

int hz_linear_load(hz_context *ctx, hz_linear **layer, const void *data, size_t bytes)
{
	struct hzi_linear_header h;
	hz_linear *l = NULL;
	int status = HZ_OK;

	if (layer)
		*layer = NULL;
	HZI_ENTER(ctx, load_name);
	if (!layer)
		return hzi_fail(ctx, HZ_EINVAL, "%s: layer is NULL", load_name);
	HZ_CHECK(hzi_linear_check_bytes(ctx, load_name, data, bytes, &h));
	HZ_CHECK(new_layer(ctx, load_name, &l));
	l->h = h;
	l->bytes = data;
	if (ctx->gpu)
		status = new_bytes(l, load_name);
	if (status == HZ_OK && l->own)
		memcpy(l->own, data, (size_t)h.bytes);
	return finish(layer, load_name, l, status);
}

/* ---- Layers from weights --------------------------------------------------------------------- */

static int check_open_opts(struct hz_context *ctx, const hz_linear_open_opts *o)
{
	static const struct hzi_flag flags[] = {HZI_FLAG(HZ_LINEAR_ROTATE), {0, NULL}};

	if (o->format < 0 || o->format > HZ_LINEAR_NVFP4)
		return hzi_fail(ctx, HZ_EINVAL, "%s: opts->format is %d, must be 0 to %d",
				open_name, o->format, HZ_LINEAR_NVFP4);
	HZ_CHECK(hzi_check_flags(ctx, open_name, "opts->flags", o->flags, HZ_LINEAR_ROTATE, flags));
	if (o->seed && !(o->flags & HZ_LINEAR_ROTATE))
		return hzi_fail(ctx, HZ_EINVAL,
				"%s: opts->seed is %llu, but opts->flags lacks HZ_LINEAR_ROTATE: "
				"set it, or seed to 0", open_name, (unsigned long long)o->seed);
	return hzi_check_reserved(ctx, open_name, o->reserved, 4);
}

static int check_weights(struct hz_context *ctx, const hz_tensor *w, const hz_linear_open_opts *o)
{
	hz_tensor m;
	bool fits;

	HZ_CHECK(hzi_check(ctx, open_name, "w", w, float_types, false));
	if (w->ndim != 2)
		return hzi_fail(ctx, HZ_ESHAPE, "%s: w.ndim is %d, must be 2: w is [out, in]",
				open_name, w->ndim);
	for (int i = 0; i < 2; i++) {
		const int64_t most = i ? HZI_LINEAR_IN_MAX : HZI_LINEAR_OUT_MAX;

		if (w->shape[i] < 1 || w->shape[i] > most)
			return hzi_fail(ctx, w->shape[i] < 1 ? HZ_ESHAPE : HZ_ENOTSUP,
					"%s: w.shape[%d] is %lld, must be 1 to %lld", open_name, i,
					(long long)w->shape[i], (long long)most);
	}
	if (w->shape[1] % 2 && o->format >= HZ_LINEAR_S4_G32)
		return hzi_fail(ctx, HZ_ESHAPE, "%s: w.shape[1] is %lld, must be even for %s",
				open_name, (long long)w->shape[1],
				hz_linear_format_name(o->format));
	if (!w->data)
		return hzi_fail(ctx, HZ_EINVAL, "%s: w has no data: it is read also while the "
				"context records", open_name);
	if (!o->moments)
		return HZ_OK;
	m = *o->moments;
	fits = m.ndim == 1 || m.ndim == 2;
	if (m.device == HZ_CPU)
		m.device = ctx->device;	/* as the check wants it; it is read on the host */
	else if (m.device == ctx->device)
		return hzi_fail(ctx, HZ_EDEVICE, "%s: opts->moments is on the GPU, must be on the "
				"host", open_name);
	HZ_CHECK(hzi_check(ctx, open_name, "opts->moments", &m, f32_type, false));
	for (int d = 0; d < m.ndim; d++)
		fits &= m.shape[d] == w->shape[1];
	if (!fits)
		return hzi_fail(ctx, HZ_ESHAPE, "%s: opts->moments has ndim %d and %lld elements, "
				"must be [in] or [in, in] of %lld", open_name, m.ndim,
				(long long)hz_tensor_count(&m), (long long)w->shape[1]);
	if (!hz_tensor_contiguous(o->moments))
		return hzi_fail(ctx, HZ_ESTRIDE, "%s: opts->moments must be contiguous", open_name);
	return o->moments->data ? HZ_OK :
	       hzi_fail(ctx, HZ_EINVAL, "%s: opts->moments has no data", open_name);
}

/* w on the host with its strides: on a GPU a view of a copy of all bytes between its ends */
static int to_host(struct hz_context *ctx, const hz_tensor *t, hz_tensor *host, void **memory,
		   size_t *bytes)
{
	int64_t before = 0;

	*host = hzi_canonical_strides(t);
	if (!ctx->gpu)
		return HZ_OK;
	for (int d = 0; d < t->ndim; d++)
		before += host->stride[d] < 0 ? -host->stride[d] * (t->shape[d] - 1) : 0;
	before *= (int64_t)hz_dtype_size(t->dtype);
	*bytes = (size_t)hz_tensor_bytes(host);
	*memory = hzi_malloc(ctx, *bytes, 64);
	if (!*memory)
		return hzi_fail(ctx, HZ_ENOMEM, "%s: no memory for %zu bytes", open_name, *bytes);
	host->data = (char *)*memory + before;
	host->device = HZ_CPU;
	HZ_CHECK(ctx->gpu->copy(ctx, *memory, HZ_CPU, (const char *)t->data - before, ctx->device,
				*bytes));
	return hz_sync(ctx);
}

/*
 * Shares of in-features in the error, the largest is 1, of moments that are `each` elements
 * apart. After a rotation that of all of a block is their mean: entries of H are +-1 / sqrt(block).
 */
static int make_weight(struct hz_context *ctx, const struct hzi_linear_header *h, const float *from,
		       int64_t each, float *to)
{
	const hz_hadamard_opts o = hzi_linear_rotation(h);
	const bool rotates = h->flags & HZ_LINEAR_ROTATE;
	float most = 0;
	int64_t block[64] = {h->in}, blocks = 1, first = 0;

	for (int64_t k = 0; k < h->in; k++) {
		const float m = from[k * each];
		char column[24] = "";

		if (!(m >= 0 && isfinite(m))) {
			if (each > 1)
				snprintf(column, sizeof(column), "[%lld]", (long long)k);
			return hzi_fail(ctx, HZ_EINVAL, "%s: opts->moments[%lld]%s is %g, must be "
					"0 or positive, and finite", open_name,
					(long long)k, column, (double)m);
		}
		most = m > most ? m : most;
	}
	if (!(most > 0))
		return hzi_fail(ctx, HZ_EINVAL, "%s: opts->moments are all 0", open_name);
	for (int64_t k = 0; k < h->in; k++)
		to[k] = from[k * each] / most;
	/* Greedy blocks of 65536 repeat; the others are fewer than 64. */
	while (rotates && first < h->in) {
		const int64_t left = h->in - first;
		double sum = 0;
		float mean;

		blocks = left > HZI_LINEAR_BLOCK_MAX ? 0 : hz_hadamard_plan(left, &o, block, 64);
		if (blocks < 1)
			block[0] = HZI_LINEAR_BLOCK_MAX;
		for (int64_t k = first; k < first + block[0]; k++)
			sum += (double)to[k];
		mean = (float)(sum / (double)block[0]);
		for (int64_t k = first; k < first + block[0]; k++)
			to[k] = mean;
		first += block[0];
	}
	return HZ_OK;
}

/* Quantizes w to l->own. */
static int encode(hz_linear *l, const hz_tensor *w, const hz_tensor *moments,
		  struct hzi_linear_factors *f)
{
	struct hz_context *const ctx = l->ctx;
	void *memory[2] = {NULL};	/* of w, of the weights of errors */
	size_t bytes[2] = {0, 4 * (size_t)l->h.in};
	const bool matrix = moments && moments->ndim == 2;
	hz_context *cpu = NULL;
	hz_tensor host;
	int status = to_host(ctx, w, &host, &memory[0], &bytes[0]);

	if (status == HZ_OK && moments) {
		memory[1] = hzi_malloc(ctx, bytes[1], 64);
		status = memory[1] ? make_weight(ctx, &l->h, moments->data,
						 matrix ? l->h.in + 1 : 1, memory[1]) :
			 hzi_fail(ctx, HZ_ENOMEM, "%s: no memory for %zu bytes", open_name,
				  bytes[1]);
	}
	if (status == HZ_OK)
		status = open_cpu(ctx, open_name, &cpu);
	if (status == HZ_OK) {
		status = hzi_linear_encode(cpu, &l->h, &host, memory[1],
					   matrix ? moments->data : NULL, f, l->own);
		if (status != HZ_OK)
			hzi_fail(ctx, status, "%s", hz_errmsg(cpu));
	}
	hz_close(cpu);
	for (int i = 0; i < 2; i++) {
		if (memory[i])
			hzi_mfree(ctx, memory[i], bytes[i]);
	}
	return status;
}

int hz_linear_open(hz_context *ctx, hz_linear **layer, const hz_tensor *w,
		   const hz_linear_open_opts *opts)
{
	return hzi_linear_open_factored(ctx, layer, w, opts, NULL);
}

int hzi_linear_open_factored(struct hz_context *ctx, hz_linear **layer, const hz_tensor *w,
			     const hz_linear_open_opts *opts, struct hzi_linear_factors *f)
{
	static const hz_linear_open_opts defaults;
	const hz_linear_open_opts *const o = opts ? opts : &defaults;
	hz_linear *l = NULL;
	int status;

	if (layer)
		*layer = NULL;
	HZI_ENTER(ctx, open_name);
	if (!layer)
		return hzi_fail(ctx, HZ_EINVAL, "%s: layer is NULL", open_name);
	HZ_CHECK(check_open_opts(ctx, o));
	HZ_CHECK(check_weights(ctx, w, o));
	HZ_CHECK(new_layer(ctx, open_name, &l));
	l->h = (struct hzi_linear_header){
		.magic = HZI_LINEAR_MAGIC, .version = HZI_LINEAR_VERSION,
		.format = (uint32_t)(o->format ? o->format : HZ_LINEAR_S8_ROW), .flags = o->flags,
		.out = w->shape[0], .in = w->shape[1], .seed = o->seed,
	};
	if (o->flags & HZ_LINEAR_ROTATE)
		hzi_linear_choose_plan(&l->h);
	hzi_linear_sizes(&l->h);
	status = new_bytes(l, open_name);
	if (status == HZ_OK)
		status = encode(l, w, o->moments, f);
	return finish(layer, open_name, l, status);
}

/* ---- Layers to bytes ------------------------------------------------------------------------- */

static int check_layer(struct hz_context *ctx, const char *op, const hz_linear *l)
{
	HZI_ENTER(ctx, op);
	if (!l)
		return hzi_fail(ctx, HZ_EINVAL, "%s: layer is NULL", op);
	if (l->ctx->device != ctx->device)
		return hzi_fail(ctx, HZ_EDEVICE, "%s: layer is on another device than the context",
				op);
	return HZ_OK;
}

int hz_linear_save_bytes(hz_context *ctx, const hz_linear *layer, size_t *bytes)
{
	HZ_CHECK(check_layer(ctx, "linear_save_bytes", layer));
	if (!bytes)
		return hzi_fail(ctx, HZ_EINVAL, "linear_save_bytes: bytes is NULL");
	*bytes = (size_t)layer->h.bytes;
	return HZ_OK;
}

int hz_linear_save(hz_context *ctx, const hz_linear *l, void *data, size_t bytes)
{
	const unsigned char *to = data;

	HZ_CHECK(check_layer(ctx, save_name, l));
	if (!data)
		return hzi_fail(ctx, HZ_EINVAL, "%s: data is NULL", save_name);
	if (bytes < l->h.bytes)
		return hzi_fail(ctx, HZ_EINVAL, "%s: bytes is %zu, must be at least %llu",
				save_name, bytes, (unsigned long long)l->h.bytes);
	if ((uintptr_t)to < (uintptr_t)l->bytes + l->h.bytes &&
	    (uintptr_t)l->bytes < (uintptr_t)to + l->h.bytes)
		return hzi_fail(ctx, HZ_EALIAS, "%s: data overlaps the data of the layer",
				save_name);
	if (!ctx->recording)
		memcpy(data, l->bytes, (size_t)l->h.bytes);
	return HZ_OK;
}

int hz_linear_get_info(const hz_linear *l, hz_linear_info *info)
{
	if (!l || !info)
		return HZ_EINVAL;
	memset(info, 0, sizeof(*info));
	info->out = l->h.out;
	info->in = l->h.in;
	info->format = (int32_t)l->h.format;
	info->flags = l->h.flags & HZ_LINEAR_ROTATE;
	info->seed = l->h.seed;
	info->bytes = (int64_t)l->h.bytes;
	info->bits = 8 * (double)l->h.bytes / ((double)l->h.out * (double)l->h.in);
	info->error = l->h.error;
	info->error_db = l->h.error > 1e-40 ? 10 * log10(l->h.error) : -400;
	info->format_name = hz_linear_format_name(info->format);
	info->route = l->route;
	return HZ_OK;
}

/* ---- Calls of several parts ------------------------------------------------------------------ */

/* Operands of a call, whose parts hzi_parts() runs */
struct parts {
	const hz_linear *l;
	const hz_tensor *x, *bias;
	hz_tensor *y;
	const hz_linear_opts *o;
	size_t scratch_bytes;
};

/* Bytes of rows of f32 as scratch; false if they overflow */
static bool add_scratch(size_t *bytes, int64_t rows, int64_t columns)
{
	int64_t count, all;

	if (!hzi_mul(rows, columns, &count) || !hzi_mul(count, 4, &all) ||
	    all > INT64_MAX / 4 - (int64_t)*bytes)
		return false;
	*bytes += ((size_t)all + 63) / 64 * 64;
	return true;
}

static int too_large(struct hz_context *ctx, const char *op, const char *what)
{
	return hzi_fail(ctx, HZ_ESHAPE, "%s: %s is too large: its size overflows", op, what);
}

/* Takes a contiguous f32 tensor with the leading dimensions of t from scratch. */
static hz_tensor take_scratch(char **scratch, const hz_tensor *t, int64_t last)
{
	hz_tensor like = *t;
	size_t bytes = 0;

	like.shape[like.ndim - 1] = last;
	like = hz_tensor_nd(*scratch, HZ_F32, t->device, t->ndim, like.shape);
	add_scratch(&bytes, 1, hz_tensor_count(&like));
	if (*scratch)
		*scratch += bytes;
	return like;
}

/* A view with one leading dimension, if strides allow that */
static bool flatten(const hz_tensor *t, hz_tensor *to)
{
	const hz_tensor c = hzi_canonical_strides(t);
	int64_t rows = 1, stride = 0;

	for (int d = c.ndim - 2; d >= 0; d--) {
		if (c.shape[d] == 1)
			continue;
		if (rows > 1 && !hzi_continues(c.stride[d], stride, rows))
			return false;
		stride = rows > 1 ? stride : c.stride[d];
		rows *= c.shape[d];
	}
	*to = c;
	to->ndim = 2;
	to->shape[0] = rows;
	to->shape[1] = c.shape[c.ndim - 1];
	to->stride[0] = rows > 1 ? stride : to->shape[1];
	to->stride[1] = c.stride[c.ndim - 1];
	return true;
}

/* x and y with one leading dimension, or as they are */
static void flatten_both(hz_tensor *x, hz_tensor *y)
{
	hz_tensor x2, y2;

	if (flatten(x, &x2) && flatten(y, &y2)) {
		*x = x2;
		*y = y2;
	}
}

static int64_t rows_of(const hz_tensor *t)
{
	int64_t rows = 1;

	for (int d = 0; d < t->ndim - 1; d++)
		rows *= t->shape[d];
	return rows;
}

/* What HURWITZ_VERBOSE says of a part: the calls before it had operands of their own. */
static void name_operands(struct hz_context *ctx, const char *from_name, const hz_tensor *from,
			  const char *to_name, const hz_tensor *to)
{
	if (!ctx->verbose)
		return;
	ctx->operands[0] = '\0';
	if (from)
		hzi_verbose_operand(ctx, from_name, from);
	hzi_verbose_operand(ctx, to_name, to);
}

/* y = act(from + bias), or a conversion; bias, opts: NULL: none */
static int epilogue(struct hz_context *ctx, const hz_tensor *from, const hz_tensor *bias,
		    const hz_tensor *y, const hz_linear_opts *o)
{
	hz_tensor f = hzi_canonical_strides(from), t = hzi_canonical_strides(y);
	struct hzi_linear_forward_args a;
	int last;

	flatten_both(&f, &t);
	last = t.ndim - 1;
	a.e = (struct hzi_vlut_bias_act){
		.from = from->data, .y = y->data, .bias = bias ? bias->data : NULL,
		.rows = rows_of(y), .n = t.shape[last], .from_step = f.stride[last],
		.y_step = t.stride[last], .ndim = last, .from_dtype = f.dtype, .y_dtype = t.dtype,
		.activation = o ? o->activation : HZ_ACT_NONE,
		.gated = o && o->flags & HZ_LINEAR_GATED,
	};

	for (int d = 0; d < last; d++) {
		a.e.shape[d] = t.shape[d];
		a.e.from_stride[d] = f.stride[d];
		a.e.y_stride[d] = t.stride[d];
	}
	name_operands(ctx, "from", from, "y", y);
	return HZI_CALL(ctx, linear, linear_forward, &a);
}

static hz_tensor signs_of(const hz_linear *l)
{
	return hz_tensor_1d(l->signs, HZ_U8, l->ctx->device, (l->h.in + 7) / 8);
}

/* y = the rotation of x, or its transpose */
static int rotate(struct hz_context *ctx, const hz_linear *l, const hz_tensor *x, hz_tensor *y,
		  uint32_t flags)
{
	const hz_tensor signs = signs_of(l);
	hz_hadamard_opts o = hzi_linear_rotation(&l->h);

	o.pre = &signs;
	o.flags = flags;
	return hz_hadamard(ctx, x, y, &o);
}

static bool rotates(const hz_linear *l)
{
	return l->h.flags & HZ_LINEAR_ROTATE;
}

/* Whether rows of t are contiguous f32 at one distance, which this family's products take */
static bool plain_rows(const hz_tensor *t, hz_tensor *rows)
{
	return t->dtype == HZ_F32 && flatten(t, rows) &&
	       (rows->stride[1] == 1 || rows->shape[1] == 1);
}

/* ---- Forward --------------------------------------------------------------------------------- */

/*
 * Whether bias and activation are a pass behind the product. Products with lattice codes have them,
 * those of the others bias and ReLU; no product is gated.
 */
static bool needs_epilogue(const hz_linear *l, const hz_linear_opts *o)
{
	return o->flags & HZ_LINEAR_GATED || (!l->lattice && o->activation > HZ_ACT_RELU);
}

/* Whether the product is not in y */
static bool needs_sums(const hz_linear *l, const hz_tensor *y, const hz_linear_opts *o)
{
	return needs_epilogue(l, o) && (y->dtype != HZ_F32 || o->flags & HZ_LINEAR_GATED);
}

/* Products with lattice codes rotate x themselves. */
static bool needs_rotation(const hz_linear *l)
{
	return rotates(l) && !l->lattice;
}

static int product(struct hz_context *ctx, const hz_linear *l, hz_tensor x, const hz_tensor *bias,
		   hz_tensor y, int activation, uint32_t flags)
{
	const hz_tensor scales = hz_tensor_1d((void *)(uintptr_t)l->scales, HZ_F32, ctx->device,
					      l->h.out);
	const hz_tensor signs = signs_of(l);
	const hz_qgemm_opts o = {.flags = activation ? HZ_QGEMM_RELU : 0, .b_scales = &scales,
				 .bias = bias, .packed = &l->packed};
	hz_hadamard_opts rotation = hzi_linear_rotation(&l->h);
	const hz_coded w = {.row_scale = &scales, .packed = &l->packed, .bias = bias,
			    .activation = activation,
			    .hadamard = rotates(l) ? &rotation : NULL};

	rotation.pre = &signs;
	flatten_both(&x, &y);
	if (is_grouped(l)) {
		const bool codes = !(flags & HZ_LINEAR_WEIGHT_ONLY);
		const hz_qlinear_group_opts by_32 = {
			.packed = &l->packed, .bias = bias, .x_dtype = codes ? HZ_S8 : 0,
			.x_group = codes ? 32 : 0, .flags = activation ? HZ_QGEMM_RELU : 0,
		};

		return hz_qlinear_group(ctx, &x, NULL, NULL, &y, &by_32);
	}
	return l->lattice ? hz_vlut_gemm(ctx, l->vlut, &w, &x, &y) :
			    hz_qlinear(ctx, &x, NULL, &y, &o);
}

static int forward_parts(struct hz_context *ctx, const void *parts, char *scratch)
{
	const struct parts *const p = parts;
	const hz_linear *const l = p->l;
	const bool pass = needs_epilogue(l, p->o);
	const bool late = pass && l->lattice;	/* bias belongs to the epilogue */
	hz_tensor x = *p->x, sums = *p->y;

	if (needs_rotation(l)) {
		x = take_scratch(&scratch, p->x, l->h.in);
		HZ_CHECK(rotate(ctx, l, p->x, &x, 0));
	}
	if (needs_sums(l, p->y, p->o))
		sums = take_scratch(&scratch, p->y, l->h.out);
	HZ_CHECK(product(ctx, l, x, late ? NULL : p->bias, sums, pass ? 0 : p->o->activation,
			 p->o->flags));
	return pass ? epilogue(ctx, &sums, late ? p->bias : NULL, p->y, p->o) : HZ_OK;
}

/* The call without checks of arguments */
static int forward(struct hz_context *ctx, const hz_linear *l, const hz_tensor *x,
		   const hz_tensor *bias, hz_tensor *y, const hz_linear_opts *o)
{
	struct parts p = {l, x, bias, y, o, 0};

	if (needs_rotation(l) && !add_scratch(&p.scratch_bytes, rows_of(x), l->h.in))
		return too_large(ctx, forward_name, "x");
	if (needs_sums(l, y, o) && !add_scratch(&p.scratch_bytes, rows_of(x), l->h.out))
		return too_large(ctx, forward_name, "y");
	return hzi_parts(ctx, forward_name, p.scratch_bytes, forward_parts, &p);
}

/* Checks x [.., in], called by that name, and y, which has its leading dimensions. */
static int check_rows(struct hz_context *ctx, const char *op, const char *x_name,
		      const hz_tensor *x, int64_t in, const char *y_name, const hz_tensor *y,
		      int64_t out, bool gated)
{
	const struct {
		const char *name;
		const hz_tensor *t;
		int64_t size;
		const char *why;
	} side[] = {{x_name, x, in, "for this layer"},
		    {y_name, y, out, gated ? "for this layer with HZ_LINEAR_GATED" :
					     "for this layer"}};

	for (int i = 0; i < 2; i++) {
		const hz_tensor *const t = side[i].t;

		HZ_CHECK(hzi_check(ctx, op, side[i].name, t, float_types, i == 1));
		if (t->ndim < 1)
			return hzi_fail(ctx, HZ_ESHAPE, "%s: %s.ndim is 0, must be 1 or more", op,
					side[i].name);
		if (t->ndim != x->ndim)
			return hzi_fail(ctx, HZ_ESHAPE, "%s: %s.ndim is %d, must be %d, as %s", op,
					side[i].name, t->ndim, x->ndim, x_name);
		if (t->shape[t->ndim - 1] != side[i].size)
			return hzi_fail(ctx, HZ_ESHAPE, "%s: %s.shape[%d] is %lld, must be %lld %s",
					op, side[i].name, t->ndim - 1,
					(long long)t->shape[t->ndim - 1], (long long)side[i].size,
					side[i].why);
	}
	for (int d = 0; d < x->ndim - 1; d++) {
		if (x->shape[d] != y->shape[d])
			return hzi_fail(ctx, HZ_ESHAPE, "%s: %s.shape[%d] is %lld, must be %lld, "
					"as %s", op, y_name, d, (long long)y->shape[d],
					(long long)x->shape[d], x_name);
	}
	return hzi_check_apart(ctx, op, x_name, x, y_name, y);
}

/* y overlaps none of the layer's memory that a call reads. */
static int check_apart(struct hz_context *ctx, const char *op, const hz_linear *l, const char *name,
		       const hz_tensor *y)
{
	const hz_tensor codes = hz_tensor_1d((void *)(uintptr_t)l->codes, HZ_U8, ctx->device,
					     (int64_t)l->h.codes_bytes);
	const hz_tensor scales = hz_tensor_1d((void *)(uintptr_t)l->scales, HZ_F32, ctx->device,
					      l->h.out);

	HZ_CHECK(hzi_check_apart(ctx, op, "layer", &codes, name, y));
	if (is_grouped(l))
		return HZ_OK;		/* Nobody else has the scales. */
	return hzi_check_apart(ctx, op, "layer", &scales, name, y);
}

static int check_opts(struct hz_context *ctx, const hz_linear *l, const hz_linear_opts *o)
{
	static const struct hzi_flag flags[] = {HZI_FLAG(HZ_LINEAR_GATED),
						HZI_FLAG(HZ_LINEAR_WEIGHT_ONLY), {0, NULL}};

	HZ_CHECK(hzi_vlut_check_activation(ctx, forward_name, "opts->activation", o->activation));
	HZ_CHECK(hzi_check_flags(ctx, forward_name, "opts->flags", o->flags,
				 HZ_LINEAR_GATED | HZ_LINEAR_WEIGHT_ONLY, flags));
	if (o->flags & HZ_LINEAR_WEIGHT_ONLY && !is_grouped(l))
		return hzi_fail(ctx, HZ_ENOTSUP, "%s: HZ_LINEAR_WEIGHT_ONLY is for formats with "
				"groups, and the layer is %s", forward_name,
				hz_linear_format_name((int)l->h.format));
	if (o->flags & HZ_LINEAR_GATED && l->h.out % 2)
		return hzi_fail(ctx, HZ_ESHAPE, "%s: layer has %lld rows, must have an even number "
				"for HZ_LINEAR_GATED", forward_name, (long long)l->h.out);
	return hzi_check_reserved(ctx, forward_name, o->reserved, 4);
}

int hz_linear_forward(hz_context *ctx, const hz_linear *layer, const hz_tensor *x,
		      const hz_tensor *bias, hz_tensor *y, const hz_linear_opts *opts)
{
	static const hz_linear_opts defaults;
	const hz_linear_opts *const o = opts ? opts : &defaults;
	int64_t n;

	HZ_CHECK(check_layer(ctx, forward_name, layer));
	HZI_ENTER(ctx, forward_name);
	HZ_CHECK(check_opts(ctx, layer, o));
	n = o->flags & HZ_LINEAR_GATED ? layer->h.out / 2 : layer->h.out;
	HZ_CHECK(check_rows(ctx, forward_name, "x", x, layer->h.in, "y", y, n,
			    o->flags & HZ_LINEAR_GATED));
	HZ_CHECK(check_apart(ctx, forward_name, layer, "y", y));
	if (bias) {
		HZ_CHECK(hzi_check(ctx, forward_name, "bias", bias, f32_type, false));
		if (bias->ndim != 1 || bias->shape[0] != layer->h.out)
			return hzi_fail(ctx, HZ_ESHAPE, "%s: bias has ndim %d and %lld "
					"elements, must be [out] of %lld", forward_name, bias->ndim,
					(long long)hz_tensor_count(bias), (long long)layer->h.out);
		if (!hz_tensor_contiguous(bias))
			return hzi_fail(ctx, HZ_ESTRIDE, "%s: bias must be contiguous",
					forward_name);
		HZ_CHECK(hzi_check_apart(ctx, forward_name, "bias", bias, "y", y));
	}
	return hz_tensor_count(y) ? forward(ctx, layer, x, bias, y, o) : HZ_OK;
}

/* ---- Decoded weights, backward --------------------------------------------------------------- */

/* Rows first .. first + rows - 1 of W' as stored to w, f32 with contiguous rows ld apart */
static int decode(struct hz_context *ctx, const hz_linear *l, int64_t first, int64_t rows, void *w,
		  int64_t ld)
{
	const struct hzi_linear_group *const g = hzi_linear_group_of(&l->h);
	const struct hzi_linear_dequantize_args a = {
		.layout = &l->layout, .codes = l->codes, .scales = l->scales, .w = w,
		.first = first, .rows = rows, .ld = ld,
	};
	const hz_tensor to = hz_tensor_2d(w, HZ_F32, ctx->device, rows, l->h.in);

	if (is_grouped(l)) {
		struct grouped v = grouped_of(l);
		hz_tensor y = to;
		const hz_quantize_opts o = {
			.scales = &v.scales, .zeros = g->zeros ? &v.zeros : NULL, .group = g->group,
			.tensor_scale = l->h.tensor_scale > 0 ? &v.tensor_scale : NULL,
		};

		v.q = hz_view_slice(&v.q, 0, first, first + rows);
		v.scales = hz_view_slice(&v.scales, 0, first, first + rows);
		v.zeros = hz_view_slice(&v.zeros, 0, first, first + rows);
		y.stride[0] = ld;
		return hz_dequantize(ctx, &v.q, &y, &o);
	}
	name_operands(ctx, NULL, NULL, "w", &to);
	return HZI_CALL(ctx, linear, linear_dequantize, &a);
}

static int64_t chunk_of(const hz_linear *l)
{
	return l->h.out < CHUNK ? l->h.out : CHUNK;
}

static int dequantize_parts(struct hz_context *ctx, const void *parts, char *scratch)
{
	const struct parts *const p = parts;
	const hz_linear *const l = p->l;
	hz_tensor plain;

	if (!p->scratch_bytes && plain_rows(p->y, &plain))
		return decode(ctx, l, 0, l->h.out, plain.data, plain.stride[0]);
	for (int64_t i = 0; i < l->h.out; i += CHUNK) {
		const int64_t end = i + CHUNK < l->h.out ? i + CHUNK : l->h.out;
		hz_tensor to = hz_view_slice(p->y, 0, i, end);
		const hz_tensor w = hz_tensor_2d(scratch, HZ_F32, ctx->device, end - i, l->h.in);

		HZ_CHECK(decode(ctx, l, i, end - i, scratch, l->h.in));
		HZ_CHECK(rotates(l) ? rotate(ctx, l, &w, &to, HZ_HADAMARD_TRANSPOSE) :
				      epilogue(ctx, &w, NULL, &to, NULL));
	}
	return HZ_OK;
}

int hz_linear_dequantize(hz_context *ctx, const hz_linear *layer, hz_tensor *w)
{
	struct parts p = {layer, NULL, NULL, w, NULL, 0};
	hz_tensor plain;

	HZ_CHECK(check_layer(ctx, dequantize_name, layer));
	HZI_ENTER(ctx, dequantize_name);
	HZ_CHECK(hzi_check(ctx, dequantize_name, "w", w, float_types, true));
	if (w->ndim != 2)
		return hzi_fail(ctx, HZ_ESHAPE, "%s: w.ndim is %d, must be 2", dequantize_name,
				w->ndim);
	if (w->shape[0] != layer->h.out || w->shape[1] != layer->h.in)
		return hzi_fail(ctx, HZ_ESHAPE, "%s: the shape of w is [%lld, %lld], must be "
				"[%lld, %lld], out and in of the layer", dequantize_name,
				(long long)w->shape[0], (long long)w->shape[1],
				(long long)layer->h.out, (long long)layer->h.in);
	HZ_CHECK(check_apart(ctx, dequantize_name, layer, "w", w));
	if ((rotates(layer) || !plain_rows(w, &plain)) &&
	    !add_scratch(&p.scratch_bytes, chunk_of(layer), layer->h.in))
		return too_large(ctx, dequantize_name, "w");
	return hzi_parts(ctx, dequantize_name, p.scratch_bytes, dequantize_parts, &p);
}

static int bwd_parts(struct hz_context *ctx, const void *parts, char *scratch)
{
	const struct parts *const p = parts;
	const hz_linear *const l = p->l;
	const hz_tensor w = hz_tensor_2d(scratch, HZ_F32, ctx->device, chunk_of(l), l->h.in);
	hz_tensor dy, dx, sums = {.ndim = 0};	/* sums: dx, if it is not made in place */

	take_scratch(&scratch, &w, l->h.in);
	if (!plain_rows(p->x, &dy)) {
		const hz_tensor copy = take_scratch(&scratch, p->x, l->h.out);

		HZ_CHECK(epilogue(ctx, p->x, NULL, &copy, NULL));
		flatten(&copy, &dy);
	}
	if (rotates(l) || !plain_rows(p->y, &dx)) {
		sums = take_scratch(&scratch, p->y, l->h.in);
		flatten(&sums, &dx);
	}
	for (int64_t i = 0; i < l->h.out; i += CHUNK) {
		const int64_t rows = l->h.out - i < CHUNK ? l->h.out - i : CHUNK;
		const struct hzi_linear_bwd_args a = {
			.dy = (const float *)dy.data + (dy.data ? i : 0), .w = w.data,
			.dx = dx.data, .rows = dy.shape[0], .out = rows, .in = l->h.in,
			.dy_ld = dy.stride[0], .dx_ld = dx.stride[0], .add = i > 0,
		};

		HZ_CHECK(decode(ctx, l, i, rows, w.data, l->h.in));
		name_operands(ctx, "dy", &dy, "dx", &dx);
		HZ_CHECK(HZI_CALL(ctx, linear, linear_bwd, &a));
	}
	if (!sums.ndim)
		return HZ_OK;
	return rotates(l) ? rotate(ctx, l, &sums, p->y, HZ_HADAMARD_TRANSPOSE) :
			    epilogue(ctx, &sums, NULL, p->y, NULL);
}

int hz_linear_bwd(hz_context *ctx, const hz_linear *layer, const hz_tensor *dy, hz_tensor *dx)
{
	struct parts p = {layer, dy, NULL, dx, NULL, 0};
	hz_tensor plain;

	HZ_CHECK(check_layer(ctx, bwd_name, layer));
	HZI_ENTER(ctx, bwd_name);
	HZ_CHECK(check_rows(ctx, bwd_name, "dy", dy, layer->h.out, "dx", dx, layer->h.in, false));
	HZ_CHECK(check_apart(ctx, bwd_name, layer, "dx", dx));
	if (hz_tensor_count(dx) == 0)
		return HZ_OK;
	if (!add_scratch(&p.scratch_bytes, chunk_of(layer), layer->h.in) ||
	    (!plain_rows(dy, &plain) &&
	     !add_scratch(&p.scratch_bytes, rows_of(dy), layer->h.out)))
		return too_large(ctx, bwd_name, "dy");
	if ((rotates(layer) || !plain_rows(dx, &plain)) &&
	    !add_scratch(&p.scratch_bytes, rows_of(dx), layer->h.in))
		return too_large(ctx, bwd_name, "dx");
	return hzi_parts(ctx, bwd_name, p.scratch_bytes, bwd_parts, &p);
}
