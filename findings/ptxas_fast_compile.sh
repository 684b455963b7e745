#!/bin/sh
# ptxas_fast_compile.sh - the mildest fast-compile level of CUDA 13.0 drops setmaxnreg
# SPDX-License-Identifier: BSD-2-Clause
#
# nvcc and ptxas 13.0 have --Ofast-compile=min|mid|max. Their help says of min that its impact on both
# compile time and run time is minimal, so most people expect slightly slower kernels.
#
# What happens: from min on ptxas ignores setmaxnreg, by which a warp-specialized kernel moves
# registers from the warps that load to those that multiply. It says so in an info line, with exit
# status 0. A kernel that counts on 200 and more registers a thread for accumulators of wgmma then
# spills them. On an H200 a quantized GEMM of 4096 x 4096 x 4096 took 50 times as long with min
# (90 us and 4.5 ms), other wgmma kernels 2 to 17 times; kernels without setmaxnreg 1.0 to 2.
#
# Why it matters: a build system that takes min to speed up builds, or a JIT that hands it to ptxas,
# silently loses the speed of every warp-specialized kernel of Hopper and later. Only code that is
# never run should be built so.
#
# Seen with nvidia-cuda-nvcc 13.0.88 (PyPI), 2026-11-28, x86_64 Linux. No GPU is needed.
set -eu

directory=$(mktemp -d)
trap 'rm -rf "$directory"' EXIT
trap 'exit 1' HUP INT TERM
cd "$directory"
python3 -m venv venv
venv/bin/pip install --quiet --no-deps nvidia-cuda-nvcc==13.0.88
ptxas=$(find venv -name ptxas -type f)

# Two groups of warps, one of which gives up registers that the other takes
cat >kernel.ptx <<'END'
.version 8.0
.target sm_90a
.address_size 64

.visible .entry specialized(.param .u64 out)
.maxntid 256, 1, 1
.minnctapersm 1
{
	.reg .pred p;
	.reg .b32 thread;
	.reg .b64 address;

	mov.u32 thread, %tid.x;
	setp.lt.u32 p, thread, 128;
	@p bra consumer;
	setmaxnreg.dec.sync.aligned.u32 40;
	bra.uni done;
consumer:
	setmaxnreg.inc.sync.aligned.u32 216;
done:
	ld.param.u64 address, [out];
	cvta.to.global.u64 address, address;
	st.global.u32 [address], thread;
	ret;
}
END

for level in 0 min mid max; do
	"$ptxas" -arch=sm_90a --Ofast-compile "$level" -o "$level.cubin" kernel.ptx >"$level.log" 2>&1
	echo "--Ofast-compile $level: $(cat "$level.log")"
done

# Output seen:
#   --Ofast-compile 0:
#   --Ofast-compile min: ptxas info    : (C7504) Potential Performance Loss: 'setmaxnreg' ignored to maintain compatibility across compilation units.
#   --Ofast-compile mid: (the same)
#   --Ofast-compile max: (the same)
if grep -q setmaxnreg 0.log; then
	exit 1
fi
for level in min mid max; do
	grep -q "'setmaxnreg' ignored" "$level.log"
done
