/*
 * calls.c - a valid call of every public function that takes operands, as a table
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#include <config.h>

#include <string.h>

#include "t/core/calls.h"

/* ---- Memory and quantized matrices --------------------------------------------------------- */

static int alloc_and_free(struct scene *s, views t)
{
	void *p = NULL;
	const int status = hz_alloc(s->ctx, &p, 1000, s->device);

	(void)t;
	return status == HZ_OK ? hz_free(s->ctx, p, s->device) : status;
}

static int reserve(struct scene *s, views t)
{
	(void)t;
	return hz_reserve(s->ctx, (size_t)5 << 20);
}

static int prepare(struct scene *s, views t)
{
	(void)t;
	return hz_prepare(s->ctx);
}

static int wait(struct scene *s, views t)
{
	(void)t;
	return hz_sync(s->ctx);
}

static int copy(struct scene *s, views t)
{
	return hz_copy(s->ctx, t[0], t[1]);
}

static int hadamard(struct scene *s, views t)
{
	const hz_hadamard_opts o = {.plan = HZ_PLAN_TRUE, .pre = t[2], .post = t[3]};

	return hz_hadamard(s->ctx, t[0], t[1], &o);
}

static int hadamard_quantize(struct scene *s, views t)
{
	const hz_hadamard_opts o = {.pre = t[3]};

	return hz_hadamard_quantize(s->ctx, t[0], t[1], t[2], &o);
}

static int dequantize_hadamard(struct scene *s, views t)
{
	const hz_hadamard_opts o = {.post = t[3]};

	return hz_dequantize_hadamard(s->ctx, t[0], t[1], t[2], &o);
}

static int quantize_by(struct scene *s, views t, const hz_hadamard_opts *hadamard)
{
	const hz_quantize_opts o = {.scale = t[2] ? 0 : 1, .scales = t[2], .zeros = t[3],
				    .hadamard = hadamard};

	return hz_quantize(s->ctx, t[0], t[1], &o);
}

static int quantize(struct scene *s, views t)
{
	return quantize_by(s, t, NULL);
}

static int quantize_rotated(struct scene *s, views t)
{
	const hz_hadamard_opts h = {.pre = t[4]};

	return quantize_by(s, t, &h);
}

static int quantize_groups_by(struct scene *s, views t, const hz_hadamard_opts *hadamard)
{
	const hz_quantize_opts o = {.new_scales = t[2], .new_tensor_scale = t[3], .group = 16,
				    .hadamard = hadamard};

	return hz_quantize(s->ctx, t[0], t[1], &o);
}

static int quantize_groups(struct scene *s, views t)
{
	return quantize_groups_by(s, t, NULL);
}

static int quantize_groups_rotated(struct scene *s, views t)
{
	const hz_hadamard_opts h = {.block = 16, .round_to = HZ_BF16, .pre = t[4]};

	return quantize_groups_by(s, t, &h);
}

static int quantize_tensor(struct scene *s, views t)
{
	const hz_quantize_opts o = {.scale = t[2] ? 0 : 1, .scales = t[2], .zeros = t[3],
				    .tensor_scale = t[4], .stochastic = 5,
				    .given = HZ_QUANTIZE_GIVEN_STOCHASTIC};

	return hz_quantize(s->ctx, t[0], t[1], &o);
}

static int dequantize_groups(struct scene *s, views t)
{
	const hz_quantize_opts o = {.scale = t[2] ? 0 : 1, .scales = t[2], .zeros = t[3],
				    .group = t[2] ? 16 : 0, .tensor_scale = t[4]};

	return hz_dequantize(s->ctx, t[0], t[1], &o);
}

static int dequantize_by(struct scene *s, views t, const hz_hadamard_opts *hadamard)
{
	const hz_quantize_opts o = {.scale = t[2] ? 0 : 1, .scales = t[2], .zeros = t[3],
				    .hadamard = hadamard};

	return hz_dequantize(s->ctx, t[0], t[1], &o);
}

static int dequantize(struct scene *s, views t)
{
	return dequantize_by(s, t, NULL);
}

static int dequantize_rotated(struct scene *s, views t)
{
	const hz_hadamard_opts h = {.post = t[4]};

	return dequantize_by(s, t, &h);
}

static int choose_qparams(struct scene *s, views t)
{
	return hz_choose_qparams(s->ctx, t[0], t[1], t[2], 0);
}

static void *raw(const hz_tensor *t)
{
	return t ? t->data : NULL;
}

static int qgemm_pack_bytes(struct scene *s, views t)
{
	return hz_qgemm_pack_bytes(s->ctx, t[0], &s->bytes);
}

static int qgemm_pack(struct scene *s, views t)
{
	hz_packed p;

	return hz_qgemm_pack(s->ctx, t[0], raw(t[1]), PACK_BYTES, &p);
}

static int product(struct scene *s, views t, const hz_qgemm_opts *o)
{
	return hz_qgemm(s->ctx, t[0], t[1], t[2], o);
}

static int qgemm(struct scene *s, views t)
{
	const hz_qgemm_opts o = {.c_zero = 3, .a_zeros = t[3], .b_zeros = t[4],
				 .multipliers = t[5], .shifts = t[6], .bias = t[7]};

	return product(s, t, &o);
}

static int qgemm_float(struct scene *s, views t)
{
	const hz_qgemm_opts o = {.a_scales = t[3], .b_scales = t[4], .bias = t[5]};

	return product(s, t, &o);
}

static int qgemm_requant(struct scene *s, views t)
{
	const hz_qgemm_opts o = {.requant = HZ_REQUANT_FLOAT, .c_zero = 3, .a_scale = 0.01,
				 .b_scales = t[3], .bias = t[4]};

	return product(s, t, &o);
}

static int qgemm_packed(struct scene *s, views t)
{
	const hz_qgemm_opts o = {.packed = t[2] ? &s->packed : NULL};

	return product(s, (hz_tensor *const[]){t[0], NULL, t[1]}, &o);
}

static int qlinear(struct scene *s, views t)
{
	const hz_qgemm_opts o = {.b_scales = t[3], .b_zeros = t[4], .bias = t[5]};

	return hz_qlinear(s->ctx, t[0], t[1], t[2], &o);
}

static int qlinear_group_pack_bytes(struct scene *s, views t)
{
	const hz_qlinear_group_opts o = {.zeros = t[2]};

	return hz_qlinear_group_pack_bytes(s->ctx, t[0], t[1], &o, &s->bytes);
}

static int qlinear_group_pack(struct scene *s, views t)
{
	const hz_qlinear_group_opts o = {.zeros = t[3], .tensor_scale = t[4]};
	hz_packed p;

	return hz_qlinear_group_pack(s->ctx, t[0], t[1], &o, raw(t[2]), PACK_BYTES, &p);
}

static int qlinear_group(struct scene *s, views t)
{
	const hz_qlinear_group_opts o = {.zeros = t[4], .tensor_scale = t[5], .bias = t[6],
					 .x_dtype = HZ_S8, .x_group = 32};

	return hz_qlinear_group(s->ctx, t[0], t[1], t[2], t[3], &o);
}

static int qlinear_group_floats(struct scene *s, views t)
{
	const hz_qlinear_group_opts o = {.tensor_scale = t[4]};

	return hz_qlinear_group(s->ctx, t[0], t[1], t[2], t[3], &o);
}

static int qlinear_group_codes(struct scene *s, views t)
{
	const hz_qlinear_group_opts o = {.x_scales = t[4]};

	return hz_qlinear_group(s->ctx, t[0], t[1], t[2], t[3], &o);
}

static int qlinear_group_packed(struct scene *s, views t)
{
	const hz_qlinear_group_opts o = {.packed = t[2] ? &s->group_packed : NULL};

	return hz_qlinear_group(s->ctx, t[0], NULL, NULL, t[1], &o);
}

/* ---- Quaternions --------------------------------------------------------------------------- */

static int quat_mul(struct scene *s, views t)
{
	return hz_quat_mul(s->ctx, t[0], t[1], t[2], 0);
}

static int quat_mul_bwd(struct scene *s, views t)
{
	return hz_quat_mul_bwd(s->ctx, t[0], t[1], t[2], t[3], t[4], 0);
}

static int quat_dot(struct scene *s, views t)
{
	return hz_quat_dot(s->ctx, t[0], t[1], t[2], 0);
}

static int quat_conj(struct scene *s, views t)
{
	return hz_quat_conj(s->ctx, t[0], t[1], 0);
}

static int quat_axpy(struct scene *s, views t)
{
	return hz_quat_axpy(s->ctx, (const double[]){1, 2, 3, 4}, t[0], t[1], 0);
}

static int quat_norm(struct scene *s, views t)
{
	return hz_quat_norm(s->ctx, t[0], t[1], 0);
}

static int quat_norm_bwd(struct scene *s, views t)
{
	return hz_quat_norm_bwd(s->ctx, t[0], t[1], t[2], 0);
}

static int quat_normalize(struct scene *s, views t)
{
	return hz_quat_normalize(s->ctx, t[0], t[1], 1e-6, 0);
}

static int quat_normalize_bwd(struct scene *s, views t)
{
	return hz_quat_normalize_bwd(s->ctx, t[0], t[1], t[2], 1e-6, 0);
}

static int quat_inverse(struct scene *s, views t)
{
	return hz_quat_inverse(s->ctx, t[0], t[1], 0);
}

static int quat_inverse_bwd(struct scene *s, views t)
{
	return hz_quat_inverse_bwd(s->ctx, t[0], t[1], t[2], 0);
}

static int quat_rotate(struct scene *s, views t)
{
	return hz_quat_rotate(s->ctx, t[0], t[1], t[2], HZ_QUAT_NORMALIZE);
}

static int quat_rotate_bwd(struct scene *s, views t)
{
	return hz_quat_rotate_bwd(s->ctx, t[0], t[1], t[2], t[3], t[4], 0);
}

static int quat_to_matrix(struct scene *s, views t)
{
	return hz_quat_to_matrix(s->ctx, t[0], t[1], 0);
}

static int quat_to_matrix_bwd(struct scene *s, views t)
{
	return hz_quat_to_matrix_bwd(s->ctx, t[0], t[1], t[2], 0);
}

static int quat_from_matrix(struct scene *s, views t)
{
	return hz_quat_from_matrix(s->ctx, t[0], t[1], 0);
}

static int quat_from_matrix_bwd(struct scene *s, views t)
{
	return hz_quat_from_matrix_bwd(s->ctx, t[0], t[1], t[2], 0);
}

static int quat_to_axis_angle(struct scene *s, views t)
{
	return hz_quat_to_axis_angle(s->ctx, t[0], t[1], 0);
}

static int quat_from_axis_angle(struct scene *s, views t)
{
	return hz_quat_from_axis_angle(s->ctx, t[0], t[1], 0);
}

static int quat_exp(struct scene *s, views t)
{
	return hz_quat_exp(s->ctx, t[0], t[1], 0);
}

static int quat_log(struct scene *s, views t)
{
	return hz_quat_log(s->ctx, t[0], t[1], 0);
}

static int quat_slerp(struct scene *s, views t)
{
	return hz_quat_slerp(s->ctx, t[0], t[1], t[2], t[3], 0);
}

static int quat_product(struct scene *s, views t, const hz_quat_gemm_opts *o)
{
	return hz_quat_gemm(s->ctx, t[0], t[1], t[2], o);
}

static int quat_gemm(struct scene *s, views t)
{
	const hz_quat_gemm_opts o = {.activation = HZ_ACT_TANH, .bias = t[3], .pre = t[4]};

	return quat_product(s, t, &o);
}

static int quat_gemm_fast(struct scene *s, views t)
{
	const hz_quat_gemm_opts o = {.method = HZ_QUAT_FAST, .op_a = HZ_QUAT_H, .beta = 1};

	return quat_product(s, t, &o);
}

static int quat_gemm_packed(struct scene *s, views t)
{
	const hz_quat_gemm_opts o = {.packed = t[2] ? &s->quat_packed : NULL};

	return quat_product(s, (hz_tensor *const[]){NULL, t[0], t[1]}, &o);
}

static int quat_gemm_pack_bytes(struct scene *s, views t)
{
	return hz_quat_gemm_pack_bytes(s->ctx, t[0], NULL, &s->bytes);
}

static int quat_gemm_pack(struct scene *s, views t)
{
	hz_packed p;

	return hz_quat_gemm_pack(s->ctx, t[0], raw(t[1]), PACK_BYTES, &p, NULL);
}

static int quat_linear(struct scene *s, views t)
{
	const hz_quat_linear_opts o = {.activation = HZ_ACT_GELU, .pre = t[4]};

	return hz_quat_linear(s->ctx, t[0], t[1], t[2], t[3], &o);
}

static int quat_linear_rotation(struct scene *s, views t)
{
	const hz_quat_linear_opts o = {.flags = HZ_QUAT_ROTATION, .scale = t[4]};

	return hz_quat_linear(s->ctx, t[0], t[1], t[2], t[3], &o);
}

static int linear_bwd(struct scene *s, views t, const hz_quat_linear_opts *o)
{
	return hz_quat_linear_bwd(s->ctx, t[0], t[1], t[2], t[3], t[4], t[5], t[6], o);
}

static int quat_linear_bwd(struct scene *s, views t)
{
	const hz_quat_linear_opts o = {.activation = HZ_ACT_SILU, .pre = t[7]};

	return linear_bwd(s, t, &o);
}

static int quat_linear_rotation_bwd(struct scene *s, views t)
{
	const hz_quat_linear_opts o = {.flags = HZ_QUAT_ROTATION, .scale = t[7], .dscale = t[8]};

	return linear_bwd(s, t, &o);
}

static int quat_conv(struct scene *s, views t)
{
	const hz_quat_conv_opts o = {.activation = HZ_ACT_RELU, .pre = t[4]};

	return hz_quat_conv(s->ctx, t[0], t[1], t[2], t[3], &o);
}

static int quat_conv_bwd(struct scene *s, views t)
{
	const hz_quat_conv_opts o = {.activation = HZ_ACT_RELU, .pre = t[7]};

	return hz_quat_conv_bwd(s->ctx, t[0], t[1], t[2], t[3], t[4], t[5], t[6], &o);
}

/* With reflection at the ends */
static int quat_conv_rotation(struct scene *s, views t)
{
	const hz_quat_conv_opts o = {.flags = HZ_QUAT_ROTATION, .pad = {1, 1}, .eps = 1e-4,
				     .pad_mode = HZ_PAD_REFLECT, .scale = t[4]};

	return hz_quat_conv(s->ctx, t[0], t[1], t[2], t[3], &o);
}

static int quat_conv_rotation_bwd(struct scene *s, views t)
{
	const hz_quat_conv_opts o = {.flags = HZ_QUAT_ROTATION, .pad = {1, 1}, .eps = 1e-4,
				     .pad_mode = HZ_PAD_REFLECT, .scale = t[7], .dscale = t[8]};

	return hz_quat_conv_bwd(s->ctx, t[0], t[1], t[2], t[3], t[4], t[5], t[6], &o);
}

static int batchnorm(struct scene *s, views t, uint32_t flags)
{
	const hz_quat_batchnorm_opts o = {.flags = flags, .running_mean = t[4],
					  .running_var = t[5], .saved = t[6]};

	return hz_quat_batchnorm(s->ctx, t[0], t[1], t[2], t[3], &o);
}

static int quat_batchnorm(struct scene *s, views t)
{
	return batchnorm(s, t, 0);
}

static int quat_batchnorm_whiten(struct scene *s, views t)
{
	return batchnorm(s, t, HZ_QUAT_WHITEN);
}

static int quat_batchnorm_per_step(struct scene *s, views t)
{
	return batchnorm(s, t, HZ_QUAT_PER_STEP);
}

static int batchnorm_bwd(struct scene *s, views t, uint32_t flags)
{
	const hz_quat_batchnorm_opts o = {.flags = flags, .saved = t[6]};

	return hz_quat_batchnorm_bwd(s->ctx, t[0], t[1], t[2], t[3], t[4], t[5], &o);
}

static int quat_batchnorm_bwd(struct scene *s, views t)
{
	return batchnorm_bwd(s, t, 0);
}

static int quat_batchnorm_per_step_bwd(struct scene *s, views t)
{
	return batchnorm_bwd(s, t, HZ_QUAT_PER_STEP);
}

static int quat_lstm(struct scene *s, views t)
{
	const hz_quat_recurrent_opts o = {.cell = HZ_QUAT_CELL_LSTM,
					  .gates = HZ_QUAT_GATES_COMPONENTS, .lengths = t[7],
					  .saved = t[8]};

	return hz_quat_recurrent(s->ctx, t[0], t[1], t[2], t[3], t[4], t[5], t[6], &o);
}

static int quat_lstm_bwd(struct scene *s, views t)
{
	const hz_quat_recurrent_opts o = {.cell = HZ_QUAT_CELL_LSTM,
					  .gates = HZ_QUAT_GATES_COMPONENTS, .lengths = t[10],
					  .saved = t[11]};

	return hz_quat_recurrent_bwd(s->ctx, t[0], t[1], t[2], t[3], t[4], t[5], t[6], t[7], t[8],
				     t[9], &o);
}

static int quat_ligru(struct scene *s, views t)
{
	const hz_quat_recurrent_opts o = {.cell = HZ_QUAT_CELL_LIGRU, .saved = t[5]};

	return hz_quat_recurrent(s->ctx, t[0], t[1], t[2], NULL, t[3], t[4], NULL, &o);
}

static int quat_ligru_bwd(struct scene *s, views t)
{
	const hz_quat_recurrent_opts o = {.cell = HZ_QUAT_CELL_LIGRU, .saved = t[7]};

	return hz_quat_recurrent_bwd(s->ctx, t[0], t[1], NULL, t[2], t[3], NULL, t[4], t[5], t[6],
				     NULL, &o);
}

static int quat_pool(struct scene *s, views t)
{
	const hz_quat_pool_opts o = {.window = {2, 2}};

	return hz_quat_pool(s->ctx, t[0], t[1], t[2], &o);
}

static int quat_pool_bwd(struct scene *s, views t)
{
	const hz_quat_pool_opts o = {.window = {2, 2}};

	return hz_quat_pool_bwd(s->ctx, t[0], t[1], t[2], &o);
}

static int quat_dropout(struct scene *s, views t)
{
	return hz_quat_dropout(s->ctx, t[0], t[1], 0.5, 1, 2);
}

static int quat_init(struct scene *s, views t)
{
	return hz_quat_init(s->ctx, t[0], HZ_QUAT_POLAR, 0.5, 1, 2, 0);
}

/* ---- Lattice quantizers -------------------------------------------------------------------- */

static int lattice_open(struct scene *s, views t)
{
	const hz_lattice_opts o = {.kind = HZ_LATTICE_E8, .q = 2, .levels = 3, .beta = 1,
				   .flags = HZ_LATTICE_CENTER};
	hz_lattice *l;
	const int status = hz_lattice_open(s->ctx, &l, &o);

	(void)t;
	hz_lattice_close(l);
	return status;
}

static int lattice_design(struct scene *s, views t)
{
	const hz_lattice_opts want = {.kind = HZ_LATTICE_Z, .q = 4, .levels = 1,
				      .policy = HZ_LATTICE_CLIP};
	hz_lattice_opts found;

	return hz_lattice_design(s->ctx, &want, 0, 1, t[0], &found, NULL, NULL);
}

static const hz_lattice *lattice_of(const struct scene *s, const hz_tensor *t)
{
	return t ? s->lattice : NULL;
}

static int encode(struct scene *s, views t, const hz_lattice_code_opts *o)
{
	const hz_lattice *const l = lattice_of(s, t[0]);

	return hz_lattice_encode(s->ctx, l, t[1], t[2], t[3], t[4], o);
}

static int lattice_encode(struct scene *s, views t)
{
	return encode(s, t, NULL);
}

static int lattice_encode_rotated(struct scene *s, views t)
{
	const hz_hadamard_opts h = {.pre = t[5]};
	const hz_lattice_code_opts o = {.pack = HZ_LATTICE_LIMBS, .hadamard = &h};

	return encode(s, t, &o);
}

static int lattice_encode_shaped(struct scene *s, views t)
{
	const hz_lattice_code_opts o = {.row_scale = t[5]};

	return hz_lattice_encode(s->ctx, t[0] ? s->shaped : NULL, t[1], t[2], t[3], t[4], &o);
}

static int decode(struct scene *s, views t, const hz_lattice_code_opts *o)
{
	const hz_lattice *const l = lattice_of(s, t[0]);

	return hz_lattice_decode(s->ctx, l, t[1], t[2], t[3], o);
}

static int lattice_decode(struct scene *s, views t)
{
	return decode(s, t, NULL);
}

static int lattice_decode_rotated(struct scene *s, views t)
{
	const hz_hadamard_opts h = {.pre = t[4]};
	const hz_lattice_code_opts o = {.pack = HZ_LATTICE_LIMBS, .hadamard = &h};

	return decode(s, t, &o);
}

static int lattice_decode_shaped(struct scene *s, views t)
{
	const hz_lattice_code_opts o = {.row_scale = t[4]};

	return hz_lattice_decode(s->ctx, t[0] ? s->shaped : NULL, t[1], t[2], t[3], &o);
}

static int lattice_repack(struct scene *s, views t)
{
	return hz_lattice_repack(s->ctx, lattice_of(s, t[0]), t[1], t[2], HZ_LATTICE_LEVEL,
				 HZ_LATTICE_FULL64);
}

static int vlut_open(struct scene *s, views t)
{
	const hz_vlut_opts o = {.route = HZ_VLUT_TABLE};
	hz_vlut *v;
	const int status = hz_vlut_open(s->ctx, &v, lattice_of(s, t[0]), s->lattice, &o);

	hz_vlut_close(v);
	return status;
}

static hz_coded coded(const hz_tensor *codes, const hz_tensor *t, const hz_tensor *row_scale)
{
	hz_coded w = {.t = t, .row_scale = row_scale};

	if (codes)
		w.codes = *codes;
	return w;
}

static int vlut_pack_bytes(struct scene *s, views t)
{
	const hz_coded w = coded(t[1], t[2], NULL);

	return hz_vlut_pack_bytes(s->ctx, t[0] ? s->vlut : NULL, &w, &s->bytes);
}

static int vlut_pack(struct scene *s, views t)
{
	const hz_coded w = coded(t[1], t[2], NULL);
	const hz_vlut *const v = t[0] ? s->vlut : NULL;
	hz_packed p;

	return hz_vlut_pack(s->ctx, v, &w, raw(t[3]), PACK_BYTES, &p);
}

static int vlut_append(struct scene *s, views t)
{
	return hz_vlut_append(s->ctx, s->vlut_shaped, t[1], 1, t[0] ? &s->appended : NULL, NULL);
}

static int vlut_append_rotated(struct scene *s, views t)
{
	const hz_hadamard_opts h = {.pre = t[3]};
	const hz_lattice_code_opts o = {.row_scale = t[2], .hadamard = &h};

	return hz_vlut_append(s->ctx, s->vlut_shaped, t[1], 0, t[0] ? &s->appended : NULL, &o);
}

static int vlut_gemv(struct scene *s, views t)
{
	const hz_coded w = coded(t[1], t[2], t[3]);

	return hz_vlut_gemv(s->ctx, t[0] ? s->vlut : NULL, &w, t[4], t[5]);
}

static int vlut_gemm(struct scene *s, views t)
{
	const hz_coded w = coded(t[1], t[2], t[3]);
	const hz_vlut *const v = t[0] ? s->vlut : NULL;

	return hz_vlut_gemm(s->ctx, v, &w, t[4], t[5]);
}

static int vlut_gemm_packed(struct scene *s, views t)
{
	const hz_coded w = {.packed = t[0] ? &s->codes_packed : NULL, .row_scale = t[1]};

	return hz_vlut_gemm(s->ctx, s->vlut, &w, t[2], t[3]);
}

static int vlut_gemm_fused(struct scene *s, views t)
{
	const hz_hadamard_opts h = {.pre = t[4]};
	const hz_coded w = {.packed = t[0] ? &s->codes_packed : NULL, .bias = t[1],
			    .activation = HZ_ACT_SILU, .hadamard = &h};

	return hz_vlut_gemm(s->ctx, s->vlut, &w, t[2], t[3]);
}

static int vlut_gemm2(struct scene *s, views t)
{
	const hz_coded w = coded(t[1], t[2], t[3]), x = coded(t[4], t[5], t[6]);
	const hz_vlut *const v = t[0] ? s->vlut2 : NULL;

	return hz_vlut_gemm2(s->ctx, v, &w, &x, t[7]);
}

/* ---- Linear layers with quantized weights --------------------------------------------------- */

static int linear_open(struct scene *s, views t)
{
	const hz_linear_open_opts o = {.format = HZ_LINEAR_E8_4_25, .flags = HZ_LINEAR_ROTATE,
				       .moments = t[1]};
	hz_linear *l;
	const int status = hz_linear_open(s->ctx, &l, t[0], &o);

	hz_linear_close(l);
	return status;
}

static const hz_linear *quantized(const struct scene *s, const hz_tensor *t)
{
	return t ? s->layer : NULL;
}

static int linear_load(struct scene *s, views t)
{
	hz_linear *l;
	const int status = hz_linear_load(s->ctx, &l, t[0] ? s->layer_data : NULL, s->layer_bytes);

	hz_linear_close(l);
	return status;
}

static int linear_save(struct scene *s, views t)
{
	unsigned char to[2048];

	return hz_linear_save(s->ctx, quantized(s, t[0]), to, sizeof(to));
}

static int linear_save_bytes(struct scene *s, views t)
{
	return hz_linear_save_bytes(s->ctx, quantized(s, t[0]), &s->bytes);
}

static int linear_product(struct scene *s, views t)
{
	return hz_linear_forward(s->ctx, quantized(s, t[0]), t[1], t[2], t[3], NULL);
}

static int linear_gated(struct scene *s, views t)
{
	const hz_linear_opts o = {.activation = HZ_ACT_SILU, .flags = HZ_LINEAR_GATED};

	return hz_linear_forward(s->ctx, quantized(s, t[0]), t[1], t[2], t[3], &o);
}

static int linear_dx(struct scene *s, views t)
{
	return hz_linear_bwd(s->ctx, quantized(s, t[0]), t[1], t[2]);
}

static int linear_dequantize(struct scene *s, views t)
{
	return hz_linear_dequantize(s->ctx, quantized(s, t[0]), t[1]);
}

/* ---- Hyper-connections ----------------------------------------------------------------------- */

static int mhc_sinkhorn(struct scene *s, views t)
{
	return hz_mhc_sinkhorn(s->ctx, t[0], t[1], NULL);
}

static int mhc_sinkhorn_bwd(struct scene *s, views t)
{
	return hz_mhc_sinkhorn_bwd(s->ctx, t[0], t[1], t[2], NULL);
}

static int mhc_mix(struct scene *s, views t)
{
	return hz_mhc_mix(s->ctx, t[0], t[1], t[2], t[3], t[4]);
}

static int mhc_mix_bwd(struct scene *s, views t)
{
	return hz_mhc_mix_bwd(s->ctx, t[0], t[1], t[2], t[3], t[4], t[5], t[6], t[7]);
}

static int mhc_add(struct scene *s, views t)
{
	return hz_mhc_add(s->ctx, t[0], t[1], t[2], t[3]);
}

static int mhc_add_bwd(struct scene *s, views t)
{
	return hz_mhc_add_bwd(s->ctx, t[0], t[1], t[2], t[3], t[4], t[5]);
}

static int mhc_post(struct scene *s, views t)
{
	return hz_mhc_post(s->ctx, t[0], t[1], t[2], t[3], t[4], t[5]);
}

static int mhc_post_bwd(struct scene *s, views t)
{
	return hz_mhc_post_bwd(s->ctx, t[0], t[1], t[2], t[3], t[4], t[5], t[6], t[7],
					t[8], t[9], t[10]);
}

static int mhc_expand(struct scene *s, views t)
{
	return hz_mhc_expand(s->ctx, t[0], t[1]);
}

static int mhc_expand_bwd(struct scene *s, views t)
{
	return hz_mhc_expand_bwd(s->ctx, t[0], t[1]);
}

static int mhc_weights(struct scene *s, views t)
{
	const hz_mhc_opts o = {.gain = t[7], .saved = t[8]};

	return hz_mhc_weights(s->ctx, t[0], t[1], t[2], t[3], t[4], t[5], t[6], &o);
}

static int mhc_pre(struct scene *s, views t)
{
	const hz_mhc_opts o = {.gain = t[8], .norm = t[9], .saved = t[10], .p_in = t[11]};

	return hz_mhc_pre(s->ctx, t[0], t[1], t[2], t[3], t[4], t[5], t[6], t[7], &o);
}

static int mhc_pre_alphas(struct scene *s, views t)
{
	const hz_mhc_opts o = {.alpha_q = t[8], .alpha_a = t[9]};

	return hz_mhc_pre(s->ctx, t[0], t[1], t[2], t[3], t[4], t[5], t[6], t[7], &o);
}

static int mhc_pre_alphas_bwd(struct scene *s, views t)
{
	const hz_mhc_grads g = {.du = t[6], .dphi = t[8], .dalpha = t[9]};
	const hz_mhc_opts o = {.alpha_q = t[4], .alpha_a = t[5], .p_in = t[7], .dalpha_q = t[10],
			       .dalpha_a = t[11]};

	return hz_mhc_pre_bwd(s->ctx, t[0], t[1], t[2], t[3], &g, &o);
}

static int mhc_pre_p_in_bwd(struct scene *s, views t)
{
	const hz_mhc_grads g = {.du = t[4], .dx = t[6]};
	const hz_mhc_opts o = {.p_in = t[5], .dp_in = t[7]};

	return hz_mhc_pre_bwd(s->ctx, t[0], t[1], t[2], t[3], &g, &o);
}

static int mhc_pre_bwd(struct scene *s, views t)
{
	const hz_mhc_grads g = {.du = t[4], .dp = t[5], .dq = t[6], .da = t[7], .dy = t[8],
				.dx = t[9], .dphi = t[10], .dalpha = t[11], .dbias = t[12]};
	const hz_mhc_opts o = {.gain = t[13], .dgain = t[14], .norm = t[15], .dnorm = t[16],
			       .saved = t[17]};

	return hz_mhc_pre_bwd(s->ctx, t[0], t[1], t[2], t[3], &g, &o);
}

static int mhc_pre_divided(struct scene *s, views t)
{
	const hz_mhc_opts o = {.streams = HZ_MHC_STREAMS_CN, .rms = HZ_MHC_RMS_STREAM,
			       .gain = t[8]};

	return hz_mhc_pre(s->ctx, t[0], t[1], t[2], t[3], t[4], t[5], t[6], t[7], &o);
}

static int mhc_pre_divided_bwd(struct scene *s, views t)
{
	const hz_mhc_grads g = {.du = t[4], .dy = t[5], .dx = t[6], .dphi = t[7]};
	const hz_mhc_opts o = {.streams = HZ_MHC_STREAMS_CN, .rms = HZ_MHC_RMS_STREAM,
			       .gain = t[8], .dgain = t[9]};

	return hz_mhc_pre_bwd(s->ctx, t[0], t[1], t[2], t[3], &g, &o);
}

static int mhc_pre_codes(struct scene *s, views t)
{
	const hz_quantize_opts q = {.new_scales = t[9]};
	const hz_mhc_opts o = {.u_codes = t[8], .u_quantize = &q};

	return hz_mhc_pre(s->ctx, t[0], t[1], t[2], t[3], t[4], t[5], t[6], t[7], &o);
}

static int mhc_gated_pre(struct scene *s, views t)
{
	const hz_mhc_opts o = {.gain = t[6]};

	return hz_mhc_gated_pre(s->ctx, t[0], t[1], t[2], t[3], t[4], t[5], &o);
}

static int mhc_gated_pre_bwd(struct scene *s, views t)
{
	const hz_mhc_gated_grads g = {.du = t[4], .dq = t[5], .dy = t[6], .dx = t[7],
				      .dw_down = t[8], .dw_up = t[9], .dw_q = t[10]};
	const hz_mhc_opts o = {.gain = t[11], .dgain = t[12]};

	return hz_mhc_gated_pre_bwd(s->ctx, t[0], t[1], t[2], t[3], &g, &o);
}

static int mhc_post_pre(struct scene *s, views t)
{
	const hz_mhc_opts o = {.p_in = t[13]};

	return hz_mhc_post_pre(s->ctx, t[0], t[1], t[2], t[3], t[4], t[5], t[6], t[7],
					t[8], t[9], t[10], t[11], t[12], &o);
}

static int mhc_post_pre_bwd(struct scene *s, views t)
{
	const hz_mhc_grads g = {.du = t[7], .dp = t[8], .dq = t[9], .da = t[10], .dx = t[11],
				.dphi = t[12], .dalpha = t[13], .dbias = t[14]};

	return hz_mhc_post_pre_bwd(s->ctx, t[0], t[1], t[2], t[3], t[4], t[5], t[6], &g,
					    t[15], t[16], t[17], NULL);
}

static int mhc_head(struct scene *s, views t)
{
	return hz_mhc_head(s->ctx, t[0], t[1], t[2], t[3], t[4], t[5], NULL);
}

static int mhc_head_bwd(struct scene *s, views t)
{
	const hz_mhc_grads g = {.du = t[4], .dp = t[5], .dx = t[6], .dphi = t[7], .dalpha = t[8],
				.dbias = t[9]};

	return hz_mhc_head_bwd(s->ctx, t[0], t[1], t[2], t[3], &g, NULL);
}

/* A view by value, without data if the operand is absent */
static hz_tensor value(const hz_tensor *t)
{
	return t ? *t : (hz_tensor){0};
}

static int mhc_recompute(struct scene *s, views t)
{
	const hz_mhc_block block = {.p = value(t[1]), .q = value(t[2]), .a = value(t[3]),
				    .f = value(t[4]), .branch_bias = value(t[5]),
				    .u = value(t[6]), .y = value(t[7])};

	return hz_mhc_recompute(s->ctx, t[0], 1, &block);
}

static int mhc_init(struct scene *s, views t)
{
	return hz_mhc_init(s->ctx, HZ_MHC_INIT_IDENTITY, 0, 1, t[0], t[1], t[2], NULL);
}

static int mhc_diagnose(struct scene *s, views t)
{
	return hz_mhc_diagnose(s->ctx, t[0], t[1]);
}

/* Weights that a layer needs to be bound. Nothing reads them. */
static hz_mhc_layer layer_of(struct scene *s, hz_tensor phi)
{
	static float place[24];

	return (hz_mhc_layer){.phi = phi,
			      .alpha = hz_tensor_1d(place, HZ_F32, hz_device(s->ctx), 3),
			      .bias = hz_tensor_1d(place, HZ_F32, hz_device(s->ctx), 24)};
}

/* A layer that is bound for streams, whatever they are; its views are set afterwards. */
static hz_mhc_layer bound_layer(struct scene *s, const hz_tensor *x)
{
	static _Alignas(64) char place[1024];
	hz_mhc_layer l = layer_of(s, (hz_tensor){0});

	/* If it is refused, so are the layer's calls. */
	if (hz_mhc_layer_bind(s->ctx, &l, 4, 1, place, NULL))
		l.bound_rule = 0;
	l = (hz_mhc_layer){.bound_n = 4, .bound_sets = 1, .bound_rule = l.bound_rule};
	if (x && x->ndim >= 2 && x->ndim <= HZ_MAXDIM && x->shape[x->ndim - 2] > 0 &&
	    x->shape[x->ndim - 2] <= INT32_MAX)
		l.bound_n = (int32_t)x->shape[x->ndim - 2];
	for (int i = 0; x && i < x->ndim - 2 && i < HZ_MAXDIM; i++)
		l.bound_sets = (int64_t)((uint64_t)l.bound_sets * (uint64_t)x->shape[i]);
	return l;
}

static int mhc_layer_begin(struct scene *s, views t)
{
	hz_mhc_layer l = bound_layer(s, t[0]);

	l.phi = value(t[2]);
	l.alpha = value(t[3]);
	l.bias = value(t[4]);
	l.p = value(t[5]);
	l.q = value(t[6]);
	l.a = value(t[7]);
	l.saved = value(t[8]);
	return hz_mhc_layer_begin(s->ctx, &l, t[0], t[1]);
}

static int mhc_layer_end(struct scene *s, views t)
{
	hz_mhc_layer l = bound_layer(s, t[0]);

	l.q = value(t[3]);
	l.a = value(t[4]);
	l.branch_bias = value(t[5]);
	return hz_mhc_layer_end(s->ctx, &l, t[0], t[1], t[2]);
}

static int mhc_layer_end_bwd(struct scene *s, views t)
{
	hz_mhc_layer l = bound_layer(s, t[1]);

	l.q = value(t[3]);
	l.branch_bias = value(t[4]);
	l.dq = value(t[5]);
	l.dbranch_bias = value(t[6]);
	return hz_mhc_layer_end_bwd(s->ctx, &l, t[0], t[1], t[2]);
}

static int mhc_layer_begin_bwd(struct scene *s, views t)
{
	hz_mhc_layer l = bound_layer(s, t[0]);

	l.phi = value(t[4]);
	l.alpha = value(t[5]);
	l.bias = value(t[6]);
	l.saved = value(t[7]);
	l.dq = value(t[8]);
	l.dphi = value(t[9]);
	l.dalpha = value(t[10]);
	l.dbias = value(t[11]);
	return hz_mhc_layer_begin_bwd(s->ctx, &l, t[0], t[1], t[2], t[3]);
}

static int mhc_layer_bind(struct scene *s, views t)
{
	hz_mhc_layer l = layer_of(s, value(t[0]));

	return hz_mhc_layer_bind(s->ctx, &l, 4, 5, raw(t[1]), &s->bytes);
}

const struct call calls[] = {
#include "t/core/calls.def"
};
const int calls_count = (int)(sizeof(calls) / sizeof(*calls));

bool call_writes(const struct call *c)
{
	for (int i = 0; i < CALL_OPERANDS && c->operand[i].name; i++) {
		if (c->operand[i].flags & WRITES)
			return true;
	}
	return false;
}

/*
 * Calls whose operands have independent rows along the first dimension, and its size in calls.def
 */
static const struct {
	const char *name;
	int64_t rows;
} batches[] = {
	{"copy", 4}, {"hadamard", 3}, {"hadamard_quantize", 3}, {"dequantize_hadamard", 3},
	{"quantize", 3}, {"dequantize", 3}, {"qgemm", 5}, {"qlinear", 5}, {"quat_mul", 5},
	{"quat_dot", 5}, {"quat_conj", 5}, {"quat_axpy", 5}, {"quat_norm", 5},
	{"quat_norm_bwd", 5}, {"quat_normalize", 5}, {"quat_normalize_bwd", 5},
	{"quat_inverse", 5}, {"quat_inverse_bwd", 5}, {"quat_rotate", 5}, {"quat_gemm", 2},
	{"quat_linear", 5}, {"quat_linear_bwd", 5}, {"quat_conv", 2}, {"quat_conv_bwd", 2},
	{"quat_pool", 2}, {"quat_pool_bwd", 2}, {"lattice_encode", 3}, {"lattice_decode", 3},
	{"lattice_repack", 3}, {"vlut_gemv", 3}, {"vlut_gemm", 5}, {"mhc_sinkhorn", 5},
	{"mhc_sinkhorn_bwd", 5}, {"mhc_mix", 5}, {"mhc_mix_bwd", 5}, {"mhc_add", 5},
	{"mhc_add_bwd", 5}, {"mhc_post", 5}, {"mhc_post_bwd", 5}, {"mhc_expand", 5},
	{"mhc_expand_bwd", 5}, {"mhc_weights", 5}, {"mhc_pre", 5}, {"mhc_pre_bwd", 5},
	{"mhc_post_pre", 5}, {"mhc_head", 5}, {"mhc_recompute", 5},
};

int64_t call_rows(const struct call *c)
{
	for (size_t i = 0; i < sizeof(batches) / sizeof(*batches); i++) {
		if (strcmp(batches[i].name, c->name) == 0)
			return batches[i].rows;
	}
	return 0;
}
