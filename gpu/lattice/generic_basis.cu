/*
 * generic_basis.cu - the lattice quantizer with matrices: transforms, and bases given by the caller
 *
 * SPDX-License-Identifier: BSD-2-Clause
 *
 * This is an image of its own because parameters above 4 KB need a driver of CUDA 12.1.
 */
#include "gpu/lattice/generic.cuh"

extern "C" __global__ void __launch_bounds__(HZI_LATTICE_THREADS)
lattice_encode_generic_basis(const __grid_constant__ hzi_lattice_generic_basis p)
{
	encode(p.generic, &p.matrices);
}

extern "C" __global__ void __launch_bounds__(HZI_LATTICE_THREADS)
lattice_decode_generic_basis(const __grid_constant__ hzi_lattice_generic_basis p)
{
	decode(p.generic, &p.matrices);
}
