/*
 * cell_math.h - what a step of a recurrent layer does to one number, shared by C and CUDA
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#ifndef HZI_QUAT_CELL_MATH_H
#define HZI_QUAT_CELL_MATH_H

#include "lib/quat_layer/step_math.h"

/* The time at which a direction is; the steps of a sequence; what is saved for one of them */
HZI_QUAT_INLINE int64_t hzi_quat_cell_time(const struct hzi_quat_cell_step *a, int64_t direction)
{
	return direction ? a->steps - 1 - a->step : a->step;
}

HZI_QUAT_INLINE int64_t hzi_quat_cell_length(const struct hzi_quat_cell_step *a, int64_t item)
{
	const int64_t length = a->lengths ? a->lengths[item * a->length_stride] : a->steps;

	return length < a->steps ? length : a->steps;
}

HZI_QUAT_INLINE float *hzi_quat_cell_saved(const struct hzi_quat_cell_step *a, int64_t time,
					   int64_t item, int64_t direction)
{
	const int64_t row = (time * a->batch + item) * a->directions + direction;

	return a->saved ? a->saved + row * HZI_QUAT_CELL_SAVED(a->cell) * 4 * a->hidden : NULL;
}

/* Number f of the gates, or of a state if gates is 1, in the array of a user, from its row on */
HZI_QUAT_INLINE int64_t hzi_quat_cell_at(const struct hzi_quat_cell_step *a,
					 const struct hzi_quat_array *x, int64_t stride, int gates,
					 int64_t f)
{
	const int64_t channels = gates * a->hidden;
	const int64_t q = a->planar ? hzi_quat_divide(f, channels) : f / 4;

	return a->planar ? (f - q * channels) * stride + x->comp[q] : q * stride + x->comp[f % 4];
}

HZI_QUAT_INLINE int64_t hzi_quat_cell_row(const struct hzi_quat_array *x, int64_t time,
					  int64_t item, int64_t direction)
{
	return time * x->stride[0] + item * x->stride[1] + direction * x->stride[2];
}

/* The derivative of an activation at what has the result y: RELU, LEAKY with slope > 0, TANH */
HZI_QUAT_INLINE float hzi_quat_cell_slope(int activation, float slope, float y)
{
	if (activation == HZ_ACT_TANH)
		return 1 - y * y;
	return activation == HZ_ACT_RELU ? (y <= 0 ? 0.0f : 1.0f) : y < 0 ? slope : 1.0f;
}

/* dz[0 .. 3] of the gates i, f, o, g, given tanh c, the c before, dh and dc; returns dc before. */
HZI_QUAT_INLINE float hzi_quat_lstm_bwd(const float *gate, float tanh_c, float before, float dh,
					float dc, float *dz)
{
	const float i = gate[0], f = gate[1], o = gate[2], g = gate[3];
	const float sum = dc + dh * o * (1 - tanh_c * tanh_c);

	dz[0] = sum * g * i * (1 - i);
	dz[1] = sum * before * f * (1 - f);
	dz[2] = dh * tanh_c * o * (1 - o);
	dz[3] = sum * i * (1 - g * g);
	return sum * f;
}

/* dz[0 .. 1] of the gates a, r; returns the part of dh before that does not go through U. */
HZI_QUAT_INLINE float hzi_quat_ligru_bwd(const float *gate, float slope_a, float before, float dh,
					 float *dz)
{
	const float a = gate[0], r = gate[1];

	dz[0] = dh * (1 - r) * slope_a;
	dz[1] = dh * (before - a) * r * (1 - r);
	return dh * r;
}

#endif
