/*
 * code.c - encoding, decoding and repacking: argument checks, calls through the operation table
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#include <config.h>

#include <assert.h>
#include <string.h>

#include "lib/hadamard/hadamard.h"
#include "lib/lattice/lattice.h"

static const char row_scale_name[] = "opts->row_scale";
static const int scale_types[] = {HZ_F32, 0};
static const int value_types[] = {HZ_F32, HZ_F16, HZ_BF16, 0};
static const int point_types[] = {HZ_S8, HZ_S16, HZ_S32, 0};
static const int digit_types[] = {HZ_U8, HZ_U16, HZ_U32, 0};
static const int t_types[] = {HZ_U8, 0};
static const int count_types[] = {HZ_S64, 0};

static const hz_lattice_code_opts default_opts;

/* ---- Shapes ---------------------------------------------------------------------------------- */

/* The arguments of one encoding or decoding; v: x or y */
struct call {
	const char *op, *v_name;
	const hz_lattice *l;
	const hz_tensor *v, *codes, *t;
	const hz_lattice_code_opts *o;
	bool decode;
	bool empty;
	int inner;			/* dimensions of v behind the rows: 1, 2 or 3 */
	int64_t n, blocks;
};

static int64_t ceil_div(int64_t a, int64_t b)
{
	return a / b + (a % b != 0);
}

static int check_opts(struct hz_context *ctx, const struct call *c)
{
	const hz_lattice_code_opts *o = c->o;
	const int top = c->l->rule.levels;

	if (o->pack < HZ_LATTICE_LEVEL || o->pack > HZ_LATTICE_LIMBS)
		return hzi_fail(ctx, HZ_EINVAL, "%s: opts->pack is %d, must be 0 to %d", c->op,
				o->pack, HZ_LATTICE_LIMBS);
	if (!c->decode && (o->use_levels || o->to))
		return hzi_fail(ctx, HZ_EINVAL, "%s: opts->%s is %d, must be 0: decoding alone has "
				"it", c->op, o->use_levels ? "use_levels" : "to",
				o->use_levels ? o->use_levels : o->to);
	if (o->use_levels < 0 || o->use_levels > top)
		return hzi_fail(ctx, HZ_EINVAL, "%s: opts->use_levels is %d, must be 0 to %d",
				c->op, o->use_levels, top);
	if (o->to < 0 || o->to > HZ_LATTICE_DIGITS)
		return hzi_fail(ctx, HZ_EINVAL, "%s: opts->to is %d, must be 0 to %d", c->op, o->to,
				HZ_LATTICE_DIGITS);
	HZ_CHECK(hzi_check_flags(ctx, c->op, "opts->flags", o->flags, 0, NULL));
	if (o->hadamard && o->to != HZ_LATTICE_VALUES)
		return hzi_fail(ctx, HZ_EINVAL,
				"%s: opts->hadamard is given, but there are no values to rotate",
				c->op);
	if (o->row_scale && o->to != HZ_LATTICE_VALUES)
		return hzi_fail(ctx, HZ_EINVAL,
				"%s: opts->row_scale is given, but there are no values to scale",
				c->op);
	return hzi_check_reserved(ctx, c->op, o->reserved, 3);
}

/* The dtype of a packing, and its last dimension (0: none); fails for packings that do not fit. */
static int check_pack(struct hz_context *ctx, const char *op, const hz_lattice *l, int pack,
		      int *dtype, int64_t *last)
{
	hz_lattice_info info = {0};

	hz_lattice_get_info(l, &info);
	*dtype = pack == HZ_LATTICE_LEVEL ? info.level_dtype :
		 pack == HZ_LATTICE_FULL64 ? HZ_U64 : HZ_U32;
	*last = pack == HZ_LATTICE_LEVEL ? info.levels : pack == HZ_LATTICE_FULL64 ? 0 : info.limbs;
	if (pack == HZ_LATTICE_LEVEL && !info.level_dtype)
		return hzi_fail(
			ctx, HZ_ENOTSUP,
			"%s: a level has %d digits of %d, more than 32 bits: must be packed as "
			"HZ_LATTICE_LIMBS",
			op, info.dim, info.q);
	if (pack == HZ_LATTICE_FULL64 && !info.full64)
		return hzi_fail(
			ctx, HZ_ENOTSUP,
			"%s: a block has %d digits of %d, more than 64 bits: must not be packed as "
			"HZ_LATTICE_FULL64",
			op, info.dim * info.levels, info.q);
	return HZ_OK;
}

static int fail_shape(struct hz_context *ctx, const char *op, const char *name, const hz_tensor *t,
		      int d, int64_t wanted, const char *why)
{
	return hzi_fail(ctx, HZ_ESHAPE, "%s: %s.shape[%d] is %lld, must be %lld, %s", op, name, d,
			(long long)t->shape[d], (long long)wanted, why);
}

/* Checks the shape: the row dimensions of v, then the given ones. */
static int check_shape(struct hz_context *ctx, const struct call *c, const char *name,
		       const hz_tensor *t, int inner, const int64_t *wanted, const char *const *why)
{
	const int rows = c->v->ndim - c->inner;

	if (t->ndim != rows + inner)
		return hzi_fail(ctx, HZ_ESHAPE, "%s: %s.ndim is %d, must be %d", c->op, name,
				t->ndim, rows + inner);
	for (int i = 0; i < rows; i++) {
		if (t->shape[i] != c->v->shape[i])
			return hzi_fail(ctx, HZ_ESHAPE,
					"%s: %s.shape[%d] is %lld, must be %lld, as %s", c->op,
					name, i, (long long)t->shape[i], (long long)c->v->shape[i],
					c->v_name);
	}
	for (int i = 0; i < inner; i++) {
		if (t->shape[rows + i] != wanted[i])
			return fail_shape(ctx, c->op, name, t, rows + i, wanted[i], why[i]);
	}
	return HZ_OK;
}

/* Checks codes, of all levels or (LEVEL) the top ones that opts selects; *first: the first level */
static int check_codes(struct hz_context *ctx, const struct call *c, int *first, bool *whole)
{
	static const char *const why[] = {"the number of blocks", "the levels"};
	static const char *const limbs[] = {"the number of blocks", "the limbs of a block"};
	const hz_tensor *t = c->codes;
	int64_t wanted[2] = {c->blocks};
	int dtype;

	HZ_CHECK(check_pack(ctx, c->op, c->l, c->o->pack, &dtype, &wanted[1]));
	HZ_CHECK(hzi_check(ctx, c->op, "codes", t, (int[]){dtype, 0}, !c->decode));
	*first = c->o->use_levels ? c->l->rule.levels - c->o->use_levels : 0;
	*whole = true;
	if (c->o->pack == HZ_LATTICE_LEVEL && *first > 0 && t->ndim > 0 &&
	    t->shape[t->ndim - 1] == c->o->use_levels) {
		wanted[1] = c->o->use_levels;
		*whole = false;
	}
	return check_shape(ctx, c, "codes", t, wanted[1] ? 2 : 1, wanted,
			   c->o->pack == HZ_LATTICE_LIMBS ? limbs : why);
}

static int check_t(struct hz_context *ctx, const struct call *c)
{
	static const char *const why[] = {"the number of blocks"};
	static const char *const groups[] = {"the number of groups"};
	const hz_lattice *l = c->l;
	const int64_t wanted[] = {ceil_div(c->blocks, l->rule.group)};

	if (!hzi_lattice_has_t(l)) {
		if (c->t)
			return hzi_fail(ctx, HZ_EINVAL,
					"%s: t is given, must be NULL: the policy has one scale",
					c->op);
		return HZ_OK;
	}
	HZ_CHECK(hzi_check(ctx, c->op, "t", c->t, t_types, !c->decode));
	return check_shape(ctx, c, "t", c->t, 1, wanted, l->group ? groups : why);
}

/* One scale for each row of v */
static int check_row_scale(struct hz_context *ctx, const struct call *c)
{
	const hz_tensor *const s = c->o->row_scale, *const v = c->v;

	if (!s)
		return HZ_OK;
	HZ_CHECK(hzi_check(ctx, c->op, row_scale_name, s, scale_types, !c->decode));
	if (s->ndim != v->ndim - 1)
		return hzi_fail(ctx, HZ_ESHAPE, "%s: %s.ndim is %d, must be %d", c->op,
				row_scale_name, s->ndim, v->ndim - 1);
	for (int i = 0; i < s->ndim; i++) {
		if (s->shape[i] != v->shape[i])
			return hzi_fail(ctx, HZ_ESHAPE,
					"%s: %s.shape[%d] is %lld, must be %lld, as %s", c->op,
					row_scale_name, i, (long long)s->shape[i],
					(long long)v->shape[i], c->v_name);
	}
	HZ_CHECK(hzi_check_apart(ctx, c->op, c->v_name, v, row_scale_name, s));
	if (c->decode)
		return HZ_OK;
	HZ_CHECK(hzi_check_apart(ctx, c->op, "codes", c->codes, row_scale_name, s));
	return c->t ? hzi_check_apart(ctx, c->op, "t", c->t, row_scale_name, s) : HZ_OK;
}

/* Work is some hundred operations for each value, and scratch some bytes: both fit 63 bits. */
static int check_size(struct hz_context *ctx, const char *op, const char *name, const hz_tensor *t)
{
	return hz_tensor_count(t) <= INT64_MAX >> 10 ? HZ_OK :
	       hzi_fail(ctx, HZ_ESHAPE, "%s: %s is too large: its size overflows", op, name);
}

/* ---- Rows ------------------------------------------------------------------------------------ */

/* Merges the leading dimensions of three views where strides allow it, without those of size 1. */
static int collapse(const hz_tensor *const *t, int rows, int64_t *shape,
		    int64_t (*stride)[HZ_MAXDIM])
{
	int ndim = 0;

	for (int i = 0; i < rows; i++) {
		bool joins = ndim > 0;

		if (t[0]->shape[i] == 1)
			continue;
		for (int p = 0; p < 3 && joins; p++)
			joins = !t[p] || hzi_continues(stride[p][ndim - 1], t[p]->stride[i],
						       t[0]->shape[i]);
		if (joins)
			ndim--;
		shape[ndim] = t[0]->shape[i] * (joins ? shape[ndim] : 1);
		for (int p = 0; p < 3; p++)
			stride[p][ndim] = t[p] ? t[p]->stride[i] : 0;
		ndim++;
	}
	return ndim;
}

static void set_map(const struct call *c, struct hzi_lattice_map *m)
{
	const hz_tensor v = hzi_canonical_strides(c->v), codes = hzi_canonical_strides(c->codes);
	const hz_tensor t = c->t ? hzi_canonical_strides(c->t) : (hz_tensor){0};
	const int rows = v.ndim - c->inner, last = v.ndim - 1;
	int64_t stride[3][HZ_MAXDIM];

	memset(m, 0, sizeof(*m));
	m->n = c->n;
	m->blocks = c->blocks;
	m->ndim = collapse((const hz_tensor *[]){&v, &codes, c->t ? &t : NULL}, rows, m->shape,
			   stride);
	memcpy(m->v_stride, stride[0], (size_t)m->ndim * sizeof(int64_t));
	memcpy(m->code_stride, stride[1], (size_t)m->ndim * sizeof(int64_t));
	memcpy(m->t_stride, stride[2], (size_t)m->ndim * sizeof(int64_t));
	m->v_step = v.stride[last];
	m->v_block = c->inner > 1 ? v.stride[rows] : 0;
	m->v_level = c->inner > 2 ? v.stride[rows + 1] : 0;
	m->code_block = codes.stride[rows];
	m->code_level = codes.ndim > rows + 1 ? codes.stride[rows + 1] : 1;
	m->t_step = c->t ? t.stride[rows] : 0;
}

/* v: as the implementation sees it, f: contiguous values */
static void set_rows(struct hz_context *ctx, const struct call *c, const hz_tensor *view,
		     float *f, struct hzi_lattice_rows *r)
{
	const hz_tensor v = hzi_canonical_strides(view);
	const hz_tensor scale = hzi_canonical_strides(c->o->row_scale);
	int64_t stride[3][HZ_MAXDIM];

	memset(r, 0, sizeof(*r));
	r->n = c->n;
	r->rows = hz_tensor_count(c->o->row_scale);
	r->ndim = collapse((const hz_tensor *[]){&v, &scale, NULL}, v.ndim - 1, r->shape, stride);
	memcpy(r->v_stride, stride[0], (size_t)r->ndim * sizeof(int64_t));
	memcpy(r->scale_stride, stride[1], (size_t)r->ndim * sizeof(int64_t));
	r->v_step = v.stride[v.ndim - 1];
	r->v_dtype = v.dtype;
	r->v = hzi_data(ctx, view);
	r->f = f;
	r->scale = hzi_data(ctx, c->o->row_scale);
}

/* ---- Rotation -------------------------------------------------------------------------------- */

/*
 * View of contiguous f32 values between the transform and the lattice. They are stored behind the
 * workspace that the transform and the lattice use one after the other.
 */
static hz_tensor rotated_view(const struct hz_context *ctx, const hz_tensor *v, void *data)
{
	return hz_tensor_nd(data, HZ_F32, ctx->device, v->ndim, v->shape);
}

/* A placeholder address for a view without memory: far from all others */
static void *placeholder_address(void)
{
	return (void *)(UINTPTR_MAX / 4 * 3 & ~(uintptr_t)63);
}

static size_t align64(size_t bytes)
{
	return (bytes + 63) & ~(size_t)63;
}

/* Workspace of the transform, with all of its checks; and the bytes of the values in f32 */
static int rotation_workspace(struct hz_context *ctx, const struct call *c,
			      const hz_hadamard_opts *h, size_t *bytes, size_t *values)
{
	const hz_tensor middle = rotated_view(ctx, c->v, placeholder_address());
	const int placeholders = ctx->placeholders;
	int status;

	*values = (size_t)hz_tensor_count(c->v) * sizeof(float);
	status = c->decode ? hzi_hadamard_workspace(ctx, &middle, c->v, h, bytes) :
			     hzi_hadamard_workspace(ctx, c->v, &middle, h, bytes);
	ctx->placeholders = placeholders;
	return status;
}

/* Decoding uses the transpose of encoding's transform. */
static hz_hadamard_opts transposed(const hz_hadamard_opts *h)
{
	hz_hadamard_opts o = *h;

	o.flags ^= HZ_HADAMARD_TRANSPOSE;
	return o;
}

/* ---- Encoding -------------------------------------------------------------------------------- */

static const char encode_name[] = "lattice_encode", decode_name[] = "lattice_decode",
		  repack_name[] = "lattice_repack";

static int check_lattice(struct hz_context *ctx, const char *op, const hz_lattice *l)
{
	return l ? HZ_OK : hzi_fail(ctx, HZ_EINVAL, "%s: lattice is NULL", op);
}

/* The transform is that of the last dimension of the values, which have at least one. */
static int check_axis(struct hz_context *ctx, const struct call *c)
{
	const hz_hadamard_opts *const h = c->o->hadamard;

	if (h && hzi_axis(h->axis, c->v->ndim) != c->v->ndim - 1)
		return hzi_fail(ctx, HZ_ENOTSUP,
				"%s: opts->hadamard->axis is HZ_AXIS(%d), must be HZ_AXIS(-1) or 0, "
				"the last dimension", c->op, hzi_axis_said(h->axis));
	return HZ_OK;
}

/*
 * Outputs of encoding must not overlap factors of the transform before it, which are not checked
 * yet.
 */
static int check_factors(struct hz_context *ctx, const struct call *c, const char *name,
			 const hz_tensor *out)
{
	const hz_hadamard_opts *const h = c->o->hadamard;

	for (int i = 0; h && i < 2; i++) {
		const hz_tensor *const factors = i ? h->post : h->pre;

		if (factors && factors->data && out->data && hz_tensor_overlap(factors, out))
			return hzi_fail(ctx, HZ_EALIAS,
					"%s: %s overlaps %s, must be apart from it", c->op, name,
					i ? "post" : "pre");
	}
	return HZ_OK;
}

/* overload: two counters that a call sets, or NULL */
static int check_overload(struct hz_context *ctx, const struct call *c, const hz_tensor *overload)
{
	if (!overload)
		return HZ_OK;
	HZ_CHECK(hzi_check(ctx, c->op, "overload", overload, count_types, true));
	if (overload->ndim != 1 || overload->shape[0] != 2 || overload->stride[0] != 1)
		return hzi_fail(ctx, HZ_ESHAPE,
				"%s: overload has ndim %d and %lld elements, must be [2] and "
				"contiguous", c->op, overload->ndim,
				(long long)hz_tensor_count(overload));
	HZ_CHECK(hzi_check_apart(ctx, c->op, c->v_name, c->v, "overload", overload));
	HZ_CHECK(hzi_check_apart(ctx, c->op, "codes", c->codes, "overload", overload));
	if (c->t)
		HZ_CHECK(hzi_check_apart(ctx, c->op, "t", c->t, "overload", overload));
	if (c->o->row_scale)
		HZ_CHECK(hzi_check_apart(ctx, c->op, row_scale_name, c->o->row_scale, "overload",
					 overload));
	return check_factors(ctx, c, "overload", overload);
}

static int encode_args(struct hz_context *ctx, struct call *c, const hz_tensor *overload,
		       struct hzi_lattice_encode_args *a)
{
	int first;
	bool whole;

	HZI_ENTER(ctx, c->op);
	HZ_CHECK(check_lattice(ctx, c->op, c->l));
	c->o = c->o ? c->o : &default_opts;
	HZ_CHECK(check_opts(ctx, c));
	HZ_CHECK(hzi_check(ctx, c->op, "x", c->v, value_types, false));
	if (c->v->ndim < 1)
		return hzi_fail(ctx, HZ_ESHAPE, "%s: x.ndim is 0, must be 1 to %d", c->op,
				HZ_MAXDIM);
	HZ_CHECK(check_axis(ctx, c));
	c->inner = 1;
	c->n = c->v->shape[c->v->ndim - 1];
	c->blocks = ceil_div(c->n, c->l->rule.d);
	HZ_CHECK(check_codes(ctx, c, &first, &whole));
	HZ_CHECK(check_t(ctx, c));
	HZ_CHECK(hzi_check_apart(ctx, c->op, "x", c->v, "codes", c->codes));
	if (c->t) {
		HZ_CHECK(hzi_check_apart(ctx, c->op, "x", c->v, "t", c->t));
		HZ_CHECK(hzi_check_apart(ctx, c->op, "codes", c->codes, "t", c->t));
		HZ_CHECK(check_factors(ctx, c, "t", c->t));
	}
	HZ_CHECK(check_factors(ctx, c, "codes", c->codes));
	HZ_CHECK(check_row_scale(ctx, c));
	if (c->o->row_scale)
		HZ_CHECK(check_factors(ctx, c, row_scale_name, c->o->row_scale));
	HZ_CHECK(check_overload(ctx, c, overload));
	HZ_CHECK(check_size(ctx, c->op, c->v_name, c->v));
	c->empty = hz_tensor_count(c->v) == 0;
	if (c->empty)
		return HZ_OK;
	memset(a, 0, sizeof(*a));
	set_map(c, &a->map);
	a->lattice = c->l;
	a->matrices = hzi_lattice_matrices_of(c->l);
	a->x = hzi_data(ctx, c->v);
	a->x_dtype = c->v->dtype;
	a->codes = hzi_data(ctx, c->codes);
	a->code_dtype = c->codes->dtype;
	a->pack = c->o->pack;
	a->t = c->t ? hzi_data(ctx, c->t) : NULL;
	a->overload = overload ? hzi_data(ctx, overload) : NULL;
	return HZ_OK;
}

/* Replaces x by rotated or scaled values, contiguous f32. */
static void use_rotated(const struct call *c, const hz_tensor *middle, struct hzi_lattice_map *m)
{
	struct call other = *c;

	other.v = middle;
	set_map(&other, m);
}

/* The workspace of a call, and where in it rotated values begin */
static int encode_workspace(struct hz_context *ctx, const struct call *c,
			    struct hzi_lattice_encode_args *a, size_t *bytes, size_t *begin)
{
	size_t rotation = 0, values = 0;

	if (c->o->hadamard)
		HZ_CHECK(rotation_workspace(ctx, c, c->o->hadamard, &rotation, &values));
	if (c->o->hadamard || c->o->row_scale) {
		const hz_tensor middle = rotated_view(ctx, c->v, placeholder_address());

		values = (size_t)hz_tensor_count(c->v) * sizeof(float);
		use_rotated(c, &middle, &a->map);
		a->x_dtype = HZ_F32;
	}
	*bytes = HZI_WORKSPACE(ctx, lattice, lattice_encode, a);
	*begin = align64(*bytes > rotation ? *bytes : rotation);
	if (values)
		*bytes = *begin + values;
	return HZ_OK;
}

int hz_lattice_encode(hz_context *ctx, const hz_lattice *l, const hz_tensor *x,
		      hz_tensor *codes, hz_tensor *t, hz_tensor *overload,
		      const hz_lattice_code_opts *opts)
{
	static const int64_t none[2];
	struct call c = {.op = encode_name, .v_name = "x", .l = l, .v = x, .codes = codes, .t = t,
			 .o = opts};
	struct hzi_lattice_encode_args a;
	size_t bytes, begin;

	HZ_CHECK(encode_args(ctx, &c, overload, &a));
	if (c.empty) {
		if (!overload || ctx->recording)
			return HZ_OK;
		if (ctx->device != HZ_CPU)
			return ctx->gpu->copy(ctx, overload->data, ctx->device, none, HZ_CPU,
					      sizeof(none));
		memcpy(overload->data, none, sizeof(none));
		return HZ_OK;
	}
	HZ_CHECK(encode_workspace(ctx, &c, &a, &bytes, &begin));
	HZ_CHECK(hzi_workspace(ctx, c.op, bytes));
	if ((c.o->hadamard || c.o->row_scale) && !ctx->recording) {
		hz_tensor middle = rotated_view(ctx, x, (char *)ctx->workspace + begin);

		if (c.o->hadamard)
			HZ_CHECK(hz_hadamard(ctx, x, &middle, c.o->hadamard));
		if (c.o->row_scale)
			set_rows(ctx, &c, c.o->hadamard ? &middle : x, middle.data, &a.rows);
		a.x = middle.data;
	}
	return HZI_CALL(ctx, lattice, lattice_encode, &a);
}

/* ---- Decoding -------------------------------------------------------------------------------- */

/* Checks y, whose shape has the rows and, for values, n. */
static int check_y(struct hz_context *ctx, struct call *c)
{
	static const char *const embed[] = {"the integers of a point"};
	static const int *const types[] = {value_types, point_types, digit_types};
	const struct hzi_lattice_rule *r = &c->l->rule;
	const hz_tensor *y = c->v;
	const int64_t levels = c->o->use_levels ? c->o->use_levels : r->levels;
	const int to = c->o->to, last = y ? y->ndim - 1 : 0;

	HZ_CHECK(hzi_check(ctx, c->op, "y", y, types[to], true));
	assert(y);
	c->inner = to + 1;
	if (y->ndim < c->inner)
		return hzi_fail(ctx, HZ_ESHAPE, "%s: y.ndim is %d, must be %d to %d", c->op,
				y->ndim, c->inner, HZ_MAXDIM);
	c->n = y->shape[last];
	c->blocks = ceil_div(c->n, r->d);
	if (to == HZ_LATTICE_VALUES)
		return HZ_OK;
	c->blocks = y->shape[last + 1 - c->inner];
	c->n = c->blocks;		/* in blocks: values are not wanted */
	if (to == HZ_LATTICE_POINTS) {
		const int32_t most = c->l->point_max;

		if (y->shape[last] != r->embed)
			return fail_shape(ctx, c->op, "y", y, last, r->embed, embed[0]);
		if (y->dtype != HZ_S32 && most > (y->dtype == HZ_S8 ? 127 : 32767))
			return hzi_fail(ctx, HZ_EDTYPE,
					"%s: y.dtype is %s, but points have integers up to %d",
					c->op, hz_dtype_name(y->dtype), most);
		return HZ_OK;
	}
	if (y->shape[last - 1] != levels)
		return fail_shape(ctx, c->op, "y", y, last - 1, levels, "the levels");
	if (y->shape[last] != r->d)
		return fail_shape(ctx, c->op, "y", y, last, r->d, "the dimension of the lattice");
	if (y->dtype != HZ_U32 && r->q - 1 > (y->dtype == HZ_U8 ? 255 : 65535))
		return hzi_fail(ctx, HZ_EDTYPE, "%s: y.dtype is %s, but digits are up to %d", c->op,
				hz_dtype_name(y->dtype), r->q - 1);
	return HZ_OK;
}

static int decode_args(struct hz_context *ctx, struct call *c, struct hzi_lattice_decode_args *a)
{
	int first;
	bool whole;

	HZI_ENTER(ctx, c->op);
	HZ_CHECK(check_lattice(ctx, c->op, c->l));
	c->o = c->o ? c->o : &default_opts;
	HZ_CHECK(check_opts(ctx, c));
	HZ_CHECK(check_y(ctx, c));
	HZ_CHECK(check_axis(ctx, c));
	HZ_CHECK(check_codes(ctx, c, &first, &whole));
	/* Points and digits have no scale: T is optional. */
	if (c->o->to == HZ_LATTICE_VALUES || c->t)
		HZ_CHECK(check_t(ctx, c));
	HZ_CHECK(hzi_check_apart(ctx, c->op, "codes", c->codes, "y", c->v));
	if (c->t)
		HZ_CHECK(hzi_check_apart(ctx, c->op, "t", c->t, "y", c->v));
	HZ_CHECK(check_row_scale(ctx, c));
	HZ_CHECK(check_size(ctx, c->op, c->v_name, c->v));
	c->empty = hz_tensor_count(c->v) == 0;
	if (c->empty)
		return HZ_OK;
	memset(a, 0, sizeof(*a));
	set_map(c, &a->map);
	a->lattice = c->l;
	a->matrices = hzi_lattice_matrices_of(c->l);
	a->codes = hzi_data(ctx, c->codes);
	a->code_dtype = c->codes->dtype;
	a->pack = c->o->pack;
	a->t = c->t ? hzi_data(ctx, c->t) : NULL;
	a->y = hzi_data(ctx, c->v);
	a->y_dtype = c->v->dtype;
	a->to = c->o->to;
	a->first = first;
	if (a->pack == HZ_LATTICE_LEVEL && whole)
		a->codes = (const char *)a->codes +
			   first * a->map.code_level * (int64_t)hz_dtype_size(a->code_dtype);
	hzi_lattice_sub(c->l, first, a->sub);
	return HZ_OK;
}

static int decode_workspace(struct hz_context *ctx, const struct call *c,
			    struct hzi_lattice_decode_args *a, size_t *bytes, size_t *begin)
{
	size_t rotation = 0, values = 0;

	if (c->o->hadamard) {
		const hz_hadamard_opts back = transposed(c->o->hadamard);

		HZ_CHECK(rotation_workspace(ctx, c, &back, &rotation, &values));
	}
	if (c->o->hadamard || c->o->row_scale) {
		const hz_tensor middle = rotated_view(ctx, c->v, placeholder_address());

		values = (size_t)hz_tensor_count(c->v) * sizeof(float);
		use_rotated(c, &middle, &a->map);
		a->y_dtype = HZ_F32;
	}
	*bytes = HZI_WORKSPACE(ctx, lattice, lattice_decode, a);
	*begin = align64(*bytes > rotation ? *bytes : rotation);
	if (values)
		*bytes = *begin + values;
	return HZ_OK;
}

int hz_lattice_decode(hz_context *ctx, const hz_lattice *l, const hz_tensor *codes,
		      const hz_tensor *t, hz_tensor *y, const hz_lattice_code_opts *opts)
{
	struct call c = {.op = decode_name, .v_name = "y", .l = l, .v = y, .codes = codes, .t = t,
			 .o = opts, .decode = true};
	struct hzi_lattice_decode_args a;
	size_t bytes, begin;
	int status;

	HZ_CHECK(decode_args(ctx, &c, &a));
	if (c.empty)
		return HZ_OK;
	HZ_CHECK(decode_workspace(ctx, &c, &a, &bytes, &begin));
	HZ_CHECK(hzi_workspace(ctx, c.op, bytes));
	if ((c.o->hadamard || c.o->row_scale) && !ctx->recording) {
		hz_tensor middle = rotated_view(ctx, y, (char *)ctx->workspace + begin);

		a.y = middle.data;
		if (c.o->row_scale)
			set_rows(ctx, &c, c.o->hadamard ? &middle : y, middle.data, &a.rows);
		status = HZI_CALL(ctx, lattice, lattice_decode, &a);
		if (status == HZ_OK && c.o->hadamard) {
			const hz_hadamard_opts back = transposed(c.o->hadamard);

			status = hz_hadamard(ctx, &middle, y, &back);
		}
	} else {
		status = HZI_CALL(ctx, lattice, lattice_decode, &a);
	}
	return status;
}

/* ---- Repacking ------------------------------------------------------------------------------- */

int hz_lattice_repack(hz_context *ctx, const hz_lattice *l, const hz_tensor *from, hz_tensor *to,
		      int from_pack, int to_pack)
{
	const hz_tensor *const side[] = {from, to};
	const char *const name[] = {"from", "to"};
	const int pack[] = {from_pack, to_pack};
	struct hzi_lattice_repack_args a = {.lattice = l};
	struct hzi_lattice_map *const map[] = {&a.from, &a.to};
	int dtype[2], rows[2], d;
	int64_t last[2], stride[3][HZ_MAXDIM];
	hz_tensor canonical[2];

	HZI_ENTER(ctx, repack_name);
	HZ_CHECK(check_lattice(ctx, repack_name, l));
	for (int s = 0; s < 2; s++) {
		if (pack[s] < HZ_LATTICE_LEVEL || pack[s] > HZ_LATTICE_LIMBS)
			return hzi_fail(ctx, HZ_EINVAL, "%s: %s_pack is %d, must be 0 to %d",
					repack_name, name[s], pack[s], HZ_LATTICE_LIMBS);
		HZ_CHECK(check_pack(ctx, repack_name, l, pack[s], &dtype[s], &last[s]));
		HZ_CHECK(hzi_check(ctx, repack_name, name[s], side[s], (int[]){dtype[s], 0},
				   s == 1));
		rows[s] = side[s]->ndim - (last[s] != 0);
		if (rows[s] < 0)
			return hzi_fail(ctx, HZ_ESHAPE, "%s: %s.ndim is 0, must be 1 to %d",
					repack_name, name[s], HZ_MAXDIM);
		if (last[s] && side[s]->shape[rows[s]] != last[s])
			return fail_shape(ctx, repack_name, name[s], side[s], rows[s], last[s],
					  pack[s] == HZ_LATTICE_LEVEL ? "the levels" :
					  "the limbs of a block");
	}
	if (rows[0] != rows[1])
		return hzi_fail(ctx, HZ_ESHAPE, "%s: to.ndim is %d, must be %d", repack_name,
				to->ndim, rows[0] + (last[1] != 0));
	for (d = 0; d < rows[0]; d++) {
		if (from->shape[d] != to->shape[d])
			return fail_shape(ctx, repack_name, "to", to, d, from->shape[d], "as from");
	}
	HZ_CHECK(hzi_check_apart(ctx, repack_name, "from", from, "to", to));
	HZ_CHECK(check_size(ctx, repack_name, "from", from));
	if (hz_tensor_count(from) == 0)
		return HZ_OK;
	canonical[0] = hzi_canonical_strides(from);
	canonical[1] = hzi_canonical_strides(to);
	d = collapse((const hz_tensor *[]){&canonical[0], &canonical[1], NULL}, rows[0],
		     a.from.shape, stride);
	for (int s = 0; s < 2; s++) {
		struct hzi_lattice_map *m = map[s];

		/* Blocks are the last of these dimensions. */
		m->ndim = d > 0 ? d - 1 : 0;
		memcpy(m->shape, a.from.shape, sizeof(m->shape));
		memcpy(m->code_stride, stride[s], (size_t)d * sizeof(int64_t));
		m->blocks = d > 0 ? m->shape[d - 1] : 1;
		m->n = m->blocks * l->rule.d;
		m->code_block = d > 0 ? stride[s][d - 1] : 0;
		m->code_level = last[s] ? canonical[s].stride[rows[s]] : 1;
	}
	a.from_codes = hzi_data(ctx, from);
	a.to_codes = hzi_data(ctx, to);
	a.from_dtype = dtype[0];
	a.to_dtype = dtype[1];
	a.from_pack = from_pack;
	a.to_pack = to_pack;
	return HZI_RUN(ctx, repack_name, lattice, lattice_repack, &a);
}
