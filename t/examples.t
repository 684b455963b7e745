#!/bin/sh
# examples.t - the examples print what they should, and the README shows the code that is compiled
# SPDX-License-Identifier: BSD-2-Clause
set -u
: "${top_builddir:=.}" "${top_srcdir:=.}" "${CC:=cc}" "${NM:=nm}"
if [ "${cross_compiling:-no}" = yes ]; then
	echo "1..0 # SKIP a cross build"
	exit 0
fi
work=$(mktemp -d) || exit 99
trap 'rm -rf "$work"' EXIT
echo 1..20
builddir=$(cd "$top_builddir" && pwd)
# Other tests use the GPU.
HURWITZ_DEVICE=cpu
export HURWITZ_DEVICE

# result N NAME STATUS LINES: reports one test
result()
{
	if [ "$3" -eq 0 ]; then
		echo "ok $1 - $2"
	else
		echo "not ok $1 - $2"
		echo "$4" | sed 's/^/# /'
	fi
}

# Computed by hand: sums and differences of 1 .. 8, divided by sqrt(8).
out=$("$top_builddir/doc/examples/minimal")
[ "$out" = "12.7279 -1.4142 -2.8284 0.0000 -5.6569 0.0000 0.0000 0.0000" ]
result 1 "minimal" $? "$out"

out=$("$top_builddir/doc/examples/hadamard")
result 2 "hadamard" $? "$out"
echo "$out" | awk '/^4-bit error: [0-9.]+ plain, [0-9.]+ rotated$/ { good = $3 > 2 * $5 && $5 > 0 }
	END { exit !good }'
result 3 "hadamard: the rotation halves the error at least" $? "$out"

out=$("$top_builddir/doc/examples/qgemm")
result 4 "qgemm" $? "$out"
echo "$out" | awk '/error 0\.00[0-9][0-9]$/ { good++ } END { exit good != 2 }'
result 5 "qgemm: 8 bits lose less than a hundredth" $? "$out"

out=$("$top_builddir/doc/examples/quat_layer")
result 6 "quat_layer" $? "$out"
echo "$out" | awk '/^from the real matrix of 160 x 48: [0-9.]+e-0[789]$/ { good = 1 }
	END { exit !good }'
result 7 "quat_layer: what the real matrix gives" $? "$out"

out=$("$top_builddir/doc/examples/mhc")
result 8 "mhc" $? "$out"
echo "$out" | awk '/^gradient of .*: [0-9.]+, by differences [0-9.]+$/ { good++ } END { exit good != 4 }'
result 9 "mhc: gradients are those of differences" $? "$out"

out=$("$top_builddir/doc/examples/lattice")
result 10 "lattice" $? "$out"
echo "$out" | awk '/^4.25 bits a weight: error 0\.0/ { fine = 1 } /^2.25 bits a weight: error 0\.[1-4]/ { coarse = 1 }
	/^product of codes: error 0\.[01]/ { product = 1 } END { exit !(fine && coarse && product) }'
result 11 "lattice: 4 bits, 2 of them, and the product of codes" $? "$out"

# From the #include on: the README omits the file's head.
want=$(sed -n '/^#include/,$p' "$top_srcdir/doc/examples/minimal.c")
# shellcheck disable=SC2016 # these are the fences of Markdown
out=$(awk '/^```/ { inside = $0 == "```c" && !done; if (inside) done = 1; next } inside' \
	"$top_srcdir/README.md")
[ "$out" = "$want" ]
result 12 "README.md shows doc/examples/minimal.c" $? "$out"

skip() # N NAME REASON
{
	echo "ok $1 - $2 # SKIP $3"
}

# instrumented FILE: whether applications need the flags of this build
instrumented()
{
	# shellcheck disable=SC2086 # may be several words
	$NM "$1" 2>/dev/null | grep -Eq ' (U|T) (__asan_|__tsan_|__msan_|__ubsan_|__gcov_)'
}

# The others are built like an application: with the archive and what hurwitz.pc lists.
archive=$top_builddir/.libs/libhurwitz.a
libs=$(sed -n 's/^Libs.private: *//p' "$top_builddir/hurwitz.pc")
why=
[ -e "$archive" ] || why="no archive in this build"
instrumented "$archive" && why="an instrumented build"

# build NAME COMPILER FLAG...: compiles doc/examples/NAME.c to $work/NAME; errors go to $out
build()
{
	example=$1
	shift
	# shellcheck disable=SC2086 # lists of words
	out=$("$@" -o "$work/$example" -O1 -Wall -Wextra -I"$top_srcdir/include" \
		"$top_srcdir/doc/examples/$example.c" "$archive" $cudart $libs -lm 2>&1)
}

# usable HEADER CALL COMPILER: whether a program with that library links and starts; a library for
# another C library or another word size does not
usable()
{
	printf '#include <%s>\nint main(int n, char **v) { if (n > 9) %s; return v == 0; }\n' "$1" "$2" \
		>"$work/probe.c"
	shift 2
	# shellcheck disable=SC2086 # a list of words
	"$@" -o "$work/probe" "$work/probe.c" $cudart >/dev/null 2>&1 && "$work/probe"
}

# Two ranks on this machine; Open MPI needs options to share a core, and to run as root.
OMPI_CC=$CC MPICH_CC=$CC OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
OMPI_MCA_rmaps_base_oversubscribe=1 PRTE_MCA_rmaps_default_mapping_policy=:oversubscribe
export OMPI_CC MPICH_CC OMPI_ALLOW_RUN_AS_ROOT OMPI_ALLOW_RUN_AS_ROOT_CONFIRM
export OMPI_MCA_rmaps_base_oversubscribe PRTE_MCA_rmaps_default_mapping_policy
cudart=
name="mpi: two ranks learn what one would"
if [ -n "$why" ]; then
	skip 13 "$name" "$why"
elif ! usable mpi.h 'MPI_Finalize()' mpicc || ! mpirun -n 2 true >/dev/null 2>&1; then
	skip 13 "$name" "no MPI"
elif ! build mpi mpicc; then
	result 13 "$name" 1 "$out"
else
	out=$(HURWITZ_THREADS=1 mpirun -n 2 "$work/mpi" 2>&1) && echo "$out" | grep -q '^2 ranks: '
	result 13 "$name" $? "$out"
fi

cuda=${CUDA_HOME:-/usr/local/cuda}
cudart="-isystem $cuda/include -L$cuda/lib64 -lcudart_static -ldl -lrt -lpthread"
# shellcheck disable=SC2086 # may be several words
if [ -n "$why" ] || ! usable cuda_runtime_api.h 'cudaDeviceSynchronize()' $CC; then
	skip 14 "stream: compiles" "${why:-no CUDA runtime}"
	skip 15 "stream: runs" "${why:-no CUDA runtime}"
else
	# shellcheck disable=SC2086 # may be several words
	build stream $CC
	status=$?
	result 14 "stream: compiles" $status "$out"
	[ $status -eq 0 ] && out=$("$work/stream" 2>&1)
	status=$?
	case $status in
	77) skip 15 "stream: runs" "no GPU" ;;
	*) result 15 "stream: runs" $status "$out" ;;
	esac
fi

name="dlpack.py: arrays where they lie"
HURWITZ_LIBRARY=$top_builddir/.libs/libhurwitz.so
export HURWITZ_LIBRARY
if ! [ -e "$HURWITZ_LIBRARY" ]; then
	skip 16 "$name" "no shared library in this build"
elif instrumented "$HURWITZ_LIBRARY"; then
	skip 16 "$name" "an instrumented build"
elif ! python3 -c 'import ctypes, sys; ctypes.CDLL(sys.argv[1])' "$HURWITZ_LIBRARY" 2>/dev/null; then
	skip 16 "$name" "no python3 that can load it"
else
	out=$(python3 "$top_srcdir/doc/examples/dlpack.py" 2>&1)
	status=$?
	case $status in
	77) skip 16 "$name" "neither NumPy nor PyTorch" ;;
	*) result 16 "$name" $status "$out" ;;
	esac
fi

out=$(cd "$work" && "$builddir/doc/examples/mhc_checkpoint")
[ "$out" = "prefill of 16 tokens, then decoding: they differ by 0" ]
result 17 "mhc_checkpoint: decoding gives what prefill does" $? "$out"

out=$("$top_builddir/doc/examples/linear")
result 18 "linear: y within 24 dB" $? "$out"

out=$("$top_builddir/doc/examples/kv_cache")
result 19 "kv_cache" $? "$out"
echo "$out" | awk '/^4.50 bits a number$/ { bits = 1 }
	/^attention over up to 256 tokens: error 0\.[01]/ { error = 1 } END { exit !(bits && error) }'
result 20 "kv_cache: attention over keys and values of 4.5 bits" $? "$out"
