/*
 * generic_basis.cu - the lattice quantizer with matrices: transforms, and bases of the caller's
 *
 * SPDX-License-Identifier: BSD-2-Clause
 *
 * An image of its own, since parameters this large want a driver of CUDA 12.1.
 */
#include "gpu/lattice/generic.cuh"

extern "C" __global__ void __launch_bounds__(HZI_LATTICE_THREADS)
lattice_encode_mapped(const __grid_constant__ hzi_lattice_mapped p)
{
	encode_any(p.any, &p.matrices);
}

extern "C" __global__ void __launch_bounds__(HZI_LATTICE_THREADS)
lattice_decode_mapped(const __grid_constant__ hzi_lattice_mapped p)
{
	decode_any(p.any, &p.matrices);
}
