/*
 * supports.c - hz_supports(): which dtypes each call takes
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#include <config.h>

#include <string.h>

#include "lib/core/internal.h"

#ifndef HZ_HAVE_CUDA
#define HZ_HAVE_CUDA 0
#endif

#define OPERANDS 13

/* Sets of dtypes: bit d is dtype d */
enum {
	F32 = 1 << HZ_F32,
	U8 = 1 << HZ_U8,
	S32 = 1 << HZ_S32,
	F64 = 1 << HZ_F64,
	REAL = F32 | 1 << HZ_F16 | 1 << HZ_BF16,
	QUAT = REAL | F64,
	ANY = (2 << HZ_U2X4) - 2,
	BYTE = U8 | 1 << HZ_S8,
	SMALL = 1 << HZ_S8 | 1 << HZ_S4X2 | 1 << HZ_E4M3 | 1 << HZ_E5M2,
	FORMATS = SMALL | U8 | 1 << HZ_S16 | 1 << HZ_U16 | 1 << HZ_E2M1X2 | 1 << HZ_U4X2 |
		  1 << HZ_S2X4 | 1 << HZ_U2X4,
	GROUP = BYTE | 1 << HZ_E4M3 | 1 << HZ_U4X2 | 1 << HZ_S4X2 | 1 << HZ_E2M1X2,
	SCALES = REAL | 1 << HZ_E8M0 | 1 << HZ_E4M3,
	DIGITS = U8 | 1 << HZ_U16 | 1 << HZ_U32,
	CODES = DIGITS | 1 << HZ_U64,
	POINTS = 1 << HZ_S8 | 1 << HZ_S16 | S32
};

/* Or: the dtype of operand i of the call; with F32 that or f32, which does not go with f64 */
#define AS(i) (1ull << (32 + (i)))
#define WIDE (1ull << 63)	/* with F32: f32, or f64 where operand 0 is f64 */

/*
 * The operands of each call in order, without those in structs. Which of the codes' dtypes a
 * quantizer has depends on its options.
 */
static const struct {
	const char *op;
	uint64_t operand[OPERANDS];
} table[] = {
	{"copy", {ANY, AS(0)}},
	{"hadamard", {REAL, REAL}},
	{"hadamard_quantize", {REAL, SMALL, F32 | 1 << HZ_E8M0}},
	{"dequantize_hadamard", {SMALL, F32 | 1 << HZ_E8M0, REAL}},
	{"quantize", {REAL, FORMATS}},
	{"dequantize", {FORMATS, REAL}},
	{"choose_qparams", {REAL, F32, BYTE}},
	{"qgemm_pack", {BYTE}},
	{"qgemm", {BYTE, BYTE, BYTE | S32 | REAL}},
	{"qlinear", {REAL, BYTE, REAL}},
	{"qlinear_group_pack", {GROUP, SCALES}},
	{"qlinear_group", {REAL | 1 << HZ_S8, GROUP, SCALES, REAL}},
	{"quat_mul", {QUAT, AS(0), AS(0)}},
	{"quat_mul_bwd", {QUAT, AS(0), AS(0), AS(0), AS(0)}},
	{"quat_dot", {QUAT, AS(0), AS(0)}},
	{"quat_conj", {QUAT, AS(0)}},
	{"quat_axpy", {QUAT, AS(0)}},
	{"quat_norm", {QUAT, AS(0)}},
	{"quat_norm_bwd", {QUAT, AS(0), AS(0)}},
	{"quat_normalize", {QUAT, AS(0)}},
	{"quat_normalize_bwd", {QUAT, AS(0), AS(0)}},
	{"quat_inverse", {QUAT, AS(0)}},
	{"quat_inverse_bwd", {QUAT, AS(0), AS(0)}},
	{"quat_rotate", {QUAT, AS(0), AS(0)}},
	{"quat_rotate_bwd", {QUAT, AS(0), AS(0), AS(0), AS(0)}},
	{"quat_to_matrix", {QUAT, AS(0)}},
	{"quat_to_matrix_bwd", {QUAT, AS(0), AS(0)}},
	{"quat_from_matrix", {QUAT, AS(0)}},
	{"quat_from_matrix_bwd", {QUAT, AS(0), AS(0)}},
	{"quat_to_axis_angle", {QUAT, AS(0)}},
	{"quat_from_axis_angle", {QUAT, AS(0)}},
	{"quat_exp", {QUAT, AS(0)}},
	{"quat_log", {QUAT, AS(0)}},
	{"quat_slerp", {QUAT, AS(0), AS(0), AS(0)}},
	{"quat_gemm_pack", {QUAT}},
	{"quat_gemm", {QUAT, AS(0), AS(0) | F32}},
	{"quat_linear", {QUAT, AS(0), AS(0) | F32, AS(0)}},
	{"quat_linear_bwd", {QUAT, AS(0), AS(0), AS(0), AS(0), AS(0) | F32, AS(0) | F32}},
	{"quat_conv", {QUAT, AS(0), AS(0) | F32, AS(0)}},
	{"quat_conv_bwd", {QUAT, AS(0), AS(0), AS(0), AS(0), AS(0) | F32, AS(0) | F32}},
	{"quat_batchnorm", {QUAT, F32 | WIDE, F32 | WIDE, AS(0)}},
	{"quat_batchnorm_bwd", {QUAT, F32 | WIDE, AS(0), AS(0), F32 | WIDE, F32 | WIDE}},
	{"quat_recurrent", {REAL, AS(0), AS(0), AS(0), AS(0), AS(0), AS(0)}},
	{"quat_recurrent_bwd",
	 {REAL, AS(0), AS(0), AS(0), AS(0), AS(0), AS(0), AS(0), AS(0), AS(0)}},
	{"quat_pool", {QUAT, AS(0), S32}},
	{"quat_pool_bwd", {S32, QUAT, AS(1)}},
	{"quat_dropout", {QUAT, AS(0)}},
	{"quat_init", {QUAT}},
	{"lattice_encode", {REAL, CODES, U8, 1 << HZ_S64}},
	{"lattice_decode", {CODES, U8, REAL | POINTS | DIGITS}},
	{"lattice_repack", {CODES, CODES}},
	{"vlut_pack", {0}},
	{"vlut_append", {REAL}},
	{"vlut_gemv", {REAL | 1 << HZ_S8, REAL | S32}},
	{"vlut_gemm", {REAL | 1 << HZ_S8, REAL | S32}},
	{"vlut_gemm2", {REAL | S32}},
	{"linear_open", {REAL}},
	{"linear_forward", {REAL, F32, REAL}},
	{"linear_bwd", {REAL, REAL}},
	{"linear_dequantize", {REAL}},
	{"mhc_sinkhorn", {F32, F32}},
	{"mhc_sinkhorn_bwd", {F32, F32, F32}},
	{"mhc_mix", {REAL, F32, F32, AS(0), AS(0)}},
	{"mhc_mix_bwd", {REAL, F32, F32, AS(0), AS(0), AS(0), F32, F32}},
	{"mhc_add", {REAL, AS(0), F32, AS(0)}},
	{"mhc_add_bwd", {REAL, F32, AS(0), AS(0), AS(0), F32}},
	{"mhc_post", {REAL, AS(0), F32, F32, F32, AS(0)}},
	{"mhc_post_bwd", {REAL, AS(0), F32, F32, F32, AS(0), AS(0), AS(0), F32, F32, F32}},
	{"mhc_expand", {REAL, AS(0)}},
	{"mhc_expand_bwd", {REAL, AS(0)}},
	{"mhc_weights", {REAL, REAL, F32, F32, F32, F32, F32}},
	{"mhc_pre", {REAL, REAL, F32, F32, F32, F32, F32, AS(0)}},
	{"mhc_pre_bwd", {REAL, REAL, F32, F32}},
	{"mhc_post_pre", {REAL, AS(0), F32, F32, F32, REAL, F32, F32, AS(0), F32, F32, F32, AS(0)}},
	{"mhc_post_pre_bwd", {REAL, REAL, F32, F32, AS(0), F32, F32, AS(0), F32, F32}},
	{"mhc_gated_pre", {REAL, REAL, REAL, REAL, F32, AS(0)}},
	{"mhc_gated_pre_bwd", {REAL, REAL, REAL, REAL}},
	{"mhc_head", {REAL, REAL, F32, F32, F32, AS(0)}},
	{"mhc_head_bwd", {REAL, REAL, F32, F32}},
	{"mhc_layer_begin", {REAL, AS(0)}},
	{"mhc_layer_end", {REAL, AS(0), AS(0)}},
	{"mhc_layer_end_bwd", {REAL, AS(0), AS(0)}},
	{"mhc_layer_begin_bwd", {REAL, AS(0), AS(0), AS(0)}},
	{"mhc_recompute", {REAL}},
	{"mhc_init", {F32, F32, F32}},
	{"mhc_diagnose", {F32, F32}},
};

/* Whether operand i may have its dtype beside those before it; 0 stands for any. */
static bool goes(const uint64_t *operand, const int *dtypes, int i)
{
	if (dtypes[i] == 0)
		return true;
	if (dtypes[i] < 0 || dtypes[i] > HZ_U2X4)
		return false;
	if (operand[i] & WIDE && dtypes[i] == HZ_F64)
		return dtypes[0] == HZ_F64 || dtypes[0] == 0;
	if (operand[i] & 1ull << dtypes[i])
		return !(operand[i] & (WIDE | AS(0)) && dtypes[i] == HZ_F32 && dtypes[0] == HZ_F64);
	for (int j = 0; j < i; j++) {
		if (operand[i] & AS(j) && (dtypes[j] == 0 || dtypes[j] == dtypes[i]))
			return dtypes[j] != 0 || operand[j] & 1ull << dtypes[i];
	}
	return false;
}

int hz_supports(const char *op, const int *dtypes, int n, int device)
{
	size_t row = 0;

	if (!op || n < 0 || n > OPERANDS || (n && !dtypes) || device < HZ_CPU ||
	    (device >= HZ_CUDA && !HZ_HAVE_CUDA))
		return 0;
	while (row < sizeof(table) / sizeof(*table) && strcmp(table[row].op, op) != 0)
		row++;
	if (row == sizeof(table) / sizeof(*table))
		return 0;
	for (int i = 0; i < n; i++) {
		if (table[row].operand[i] == 0 || !goes(table[row].operand, dtypes, i) ||
		    (dtypes[i] == HZ_F64 && device != HZ_CPU))
			return 0;
	}
	return 1;
}
