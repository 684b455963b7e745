/*
 * recurrent.cu - steps of recurrent layers: gates, states and their gradients
 *
 * SPDX-License-Identifier: BSD-2-Clause
 *
 * A thread computes one number of a state at a time. Neighbouring threads have neighbours in the
 * order of cell steps, so that accesses coalesce where the user's arrays have that order too.
 */
#include "gpu/quat_layer/recurrent.cuh"

template <int CELL>
HZ_DEVICE void forward(const hzi_quat_cell_step &p)
{
	constexpr int GATES = HZI_QUAT_CELL_GATES(CELL);

	for (int64_t i = first_element(); i < p.directions * p.batch * 4 * p.hidden;
	     i += step_elements()) {
		const number n(p, i);
		float pre[GATES];

#pragma unroll
		for (int k = 0; k < GATES; k++)
			pre[k] = p.pre[n.row * GATES * n.size + k * n.size + n.e];
		forward_one<CELL>(p, n, pre);
	}
}

template <int CELL>
HZ_DEVICE void backward(const hzi_quat_cell_step &p)
{
	constexpr int GATES = HZI_QUAT_CELL_GATES(CELL), SAVED = HZI_QUAT_CELL_SAVED(CELL);

	for (int64_t i = first_element(); i < p.directions * p.batch * 4 * p.hidden;
	     i += step_elements()) {
		const number n(p, i);
		float dz[4] = {}, h = 0;

		if (n.active) {
			const int64_t time = n.direction ? n.time + 1 : n.time - 1;
			const float *const saved =
				hzi_quat_cell_saved(&p, n.time, n.item, n.direction) + n.e;
			const bool first = time < 0 || time >= hzi_quat_cell_length(&p, n.item);
			const float *const before = first ? 0 :
				hzi_quat_cell_saved(&p, time, n.item, n.direction) + n.e;
			const float dh = p.h[i] + hzi_quat_component(p.y.dtype, p.y.data,
								     n.at(p, p.y, 1, 0));
			float gate[GATES], down = 0, c = 0;

#pragma unroll
			for (int k = 0; k < GATES; k++)
				gate[k] = saved[k * n.size];
			if (CELL == HZ_QUAT_CELL_LSTM)
				c = first ? p.c0[i] : before[4 * n.size];
			h = first ? p.h0[i] : CELL == HZ_QUAT_CELL_LSTM ?
			    before[2 * n.size] * tanhf(c) : before[(SAVED - 1) * n.size];
			if (CELL == HZ_QUAT_CELL_LSTM) {
				p.c[i] = hzi_quat_lstm_bwd(gate, tanhf(saved[4 * n.size]), c, dh,
							   p.c[i], dz);
			} else {
				const float slope =
					hzi_quat_cell_slope(p.activation, p.slope, gate[0]);

				dz[0] = dh * slope;
				if (CELL == HZ_QUAT_CELL_LIGRU)
					down = hzi_quat_ligru_bwd(gate, slope, h, dh, dz);
			}
			p.h[i] = down;
		}
#pragma unroll
		for (int k = 0; k < GATES; k++) {
			set_number(p.z, n.at(p, p.z, GATES, k), dz[k]);
			set_number(p.operand, n.operand_at(p, GATES, k), dz[k]);
		}
		if (p.before.data)
			set_number(p.before, n.at(p, p.before, 1, 0), h);
	}
}

#define CELL_KERNEL(name, step, cell) \
	KERNEL(quat_layer_##name, hzi_quat_cell_step) \
	{ \
		pdl_launch_dependents(); \
		pdl_wait(); \
		step<cell>(p); \
	}

CELL_KERNEL(rnn, forward, HZ_QUAT_CELL_RNN)
CELL_KERNEL(lstm, forward, HZ_QUAT_CELL_LSTM)
CELL_KERNEL(ligru, forward, HZ_QUAT_CELL_LIGRU)
CELL_KERNEL(rnn_bwd, backward, HZ_QUAT_CELL_RNN)
CELL_KERNEL(lstm_bwd, backward, HZ_QUAT_CELL_LSTM)
CELL_KERNEL(ligru_bwd, backward, HZ_QUAT_CELL_LIGRU)
