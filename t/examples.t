#!/bin/sh
# examples.t - the examples run and say what they should, and the README shows the one that is compiled
# SPDX-License-Identifier: BSD-2-Clause
set -u
: "${top_builddir:=.}" "${top_srcdir:=.}"
if [ "${cross_compiling:-no}" = yes ]; then
	echo "1..0 # SKIP a cross build"
	exit 0
fi
echo 1..10
# A GPU, if there is one, is another test's business.
HURWITZ_DEVICE=cpu
export HURWITZ_DEVICE

# result N NAME STATUS LINES: one test
result()
{
	if [ "$3" -eq 0 ]; then
		echo "ok $1 - $2"
	else
		echo "not ok $1 - $2"
		echo "$4" | sed 's/^/# /'
	fi
}

# By hand: the sums and differences of 1 .. 8, over the root of 8.
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

# From the include on: the README leaves out the file's head.
want=$(sed -n '/^#include/,$p' "$top_srcdir/doc/examples/minimal.c")
# shellcheck disable=SC2016 # these are the fences of Markdown
out=$(awk '/^```/ { inside = $0 == "```c" && !done; if (inside) done = 1; next } inside' \
	"$top_srcdir/README.md")
[ "$out" = "$want" ]
result 10 "README.md shows doc/examples/minimal.c" $? "$out"
