/*
 * shaped.cu - encodes to codes with a shaping other than NESTED, one thread per block
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#include "gpu/lattice/generic.cuh"
#include "lib/lattice/shaped.h"

extern "C" __global__ void __launch_bounds__(HZI_LATTICE_THREADS)
lattice_encode_shaped(const __grid_constant__ hzi_lattice_generic p)
{
	const hzi_lattice_rule *r = &p.rule;
	const int64_t step = (int64_t)gridDim.x * blockDim.x;
	uint32_t overloaded = 0, nonfinite = 0;

	for (int64_t u = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; u < p.units; u += step) {
		const row_offsets at = find_row(p, u);
		float v[HZI_LATTICE_DIMS];
		int32_t g[8] = {0, 0, 0, 0, 0, 0, 0, 0};
		int t = 0;
		const int kind = load_block(p, nullptr, at.v, at.unit, v);

		nonfinite += kind != 0;
		if (!(kind & HZI_LATTICE_IS_NAN))
			overloaded += (uint32_t)hzi_shaped_choose(r, v, &t, g);
		hzi_shaped_write(r, g, code_at(p.codes, at.codes, at.unit));
		p.t[at.t + at.unit * p.t_step] = (uint8_t)t;
	}
	if (p.overload)
		count_overload(p.overload, overloaded, nonfinite);
}
