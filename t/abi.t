#!/bin/sh
# abi.t - the binary interface is that of lib/hurwitz.abi
# SPDX-License-Identifier: BSD-2-Clause
#
# Any difference in functions and types fails, also additions: "make abi" writes the files again,
# and -version-info in Makefile.am must follow. Internal types, such as struct hz_context, are not
# part of it. Constants may be added.
set -u
: "${top_srcdir:=.}" "${top_builddir:=.}" "${AWK:=awk}"
library=$top_builddir/.libs/libhurwitz.so
# shellcheck source=t/tap.sh
. "$top_srcdir/t/tap.sh"

# Why abidiff cannot compare here, if it cannot
obstacle()
{
	if ! command -v abidiff >/dev/null 2>&1; then
		echo "there is no abidiff here"
	elif [ "$(uname -m)" != x86_64 ] || [ "${cross_compiling:-no}" = yes ]; then
		echo "lib/hurwitz.abi is of x86-64"
	elif [ ! -e "$library" ]; then
		echo "no shared library in this build"
	elif ! readelf -S "$library" 2>/dev/null | grep -q '[.]debug_info'; then
		echo "the library has no debugging information"
	fi
}

# shellcheck disable=SC2086 # AWK may be several words
now=$($AWK -f "$top_srcdir/lib/constants.awk" "$top_srcdir/include/hurwitz.h")
[ "$(echo "$now" | wc -l)" -gt 100 ] || now="no constants were found"
report "every constant has the value that it had" "$(while read -r line; do
	echo "$now" | grep -qxF "$line" || echo "$line"
done <"$top_srcdir/lib/hurwitz.constants")"
why=$(obstacle)
if [ -n "$why" ]; then
	skip "functions and types" "$why"
else
	out=$(abidiff "$top_srcdir/lib/hurwitz.abi" "$library" 2>&1) && out=
	report "functions and types" "$out"
fi
echo "1..$n"
