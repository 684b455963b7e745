#!/bin/sh
# headers.t - the public headers compile alone and without warnings in all supported C and C++
# SPDX-License-Identifier: BSD-2-Clause
set -u
: "${top_srcdir:=.}" "${CC:=cc}" "${CXX:=}"
work=$(mktemp -d) || exit 99
trap 'rm -rf "$work"' EXIT
n=0

# What hurwitz-dlpack.h needs from the user's dlpack.h
cat >"$work/dlpack.h" <<'END'
#define DLPACK_DLPACK_H_
#include <stdint.h>
typedef enum { kDLCPU = 1 } DLDeviceType;
typedef struct { DLDeviceType device_type; int32_t device_id; } DLDevice;
typedef struct { uint8_t code, bits; uint16_t lanes; } DLDataType;
typedef struct {
	void *data; DLDevice device; int32_t ndim; DLDataType dtype; int64_t *shape, *strides;
	uint64_t byte_offset;
} DLTensor;
END
echo '#include <hurwitz.h>' >"$work/hurwitz.c"
# Twice, in the other order, and used: a wrong inline function may only fail when called.
cat >"$work/dlpack.c" <<'END'
#include "dlpack.h"
#include <hurwitz-dlpack.h>
#include <hurwitz.h>
#include <hurwitz-dlpack.h>
int both(hz_tensor *t, DLTensor *d);
int both(hz_tensor *t, DLTensor *d) { return hz_from_dlpack(t, d) + hz_to_dlpack(d, t); }
END
cp "$work/hurwitz.c" "$work/hurwitz.cc"
cp "$work/dlpack.c" "$work/dlpack.cc"

# compile WORDS... FILE: reports one test
compile()
{
	n=$((n + 1))
	file=
	for word in "$@"; do file=$word; done
	if out=$("$@" -I"$top_srcdir/include" -I"$work" 2>&1); then
		echo "ok $n - $(echo "$*" | sed "s|$work/||g")"
	else
		echo "not ok $n - $(echo "$*" | sed "s|$work/||g")"
		echo "$out" | sed 's/^/# /' | head -n 20
	fi
}

# has SUFFIX WORDS...: whether that compiler runs and supports that standard
has()
{
	probe=$work/probe.$1
	echo 'int x;' >"$probe"
	shift
	"$@" -fsyntax-only "$probe" >/dev/null 2>&1
}

strict="-pedantic -Wall -Wextra -Werror -fsyntax-only"
seen=
for compiler in "$CC" gcc clang; do
	case " $seen " in *" $compiler "*) continue ;; esac
	seen="$seen $compiler"
	for std in c99 c11 c17 c2x gnu11; do
		# shellcheck disable=SC2086 # compiler and strict are lists of words
		has c $compiler -std=$std || continue
		for file in hurwitz dlpack; do
			# shellcheck disable=SC2086
			compile $compiler -std=$std $strict "$work/$file.c"
		done
	done
done
seen=
for compiler in ${CXX:+"$CXX"} g++ clang++; do
	case " $seen " in *" $compiler "*) continue ;; esac
	seen="$seen $compiler"
	for std in c++11 c++17 c++20; do
		# shellcheck disable=SC2086
		has cc $compiler -std=$std || continue
		for file in hurwitz dlpack; do
			# shellcheck disable=SC2086
			compile $compiler -std=$std $strict "$work/$file.cc"
		done
	done
done

n=$((n + 1))
echo '#include <hurwitz-dlpack.h>' >"$work/alone.c"
# shellcheck disable=SC2086
if $CC -fsyntax-only -I"$top_srcdir/include" "$work/alone.c" 2>&1 | grep -q 'include dlpack.h first'; then
	echo "ok $n - hurwitz-dlpack.h asks for dlpack.h"
else
	echo "not ok $n - hurwitz-dlpack.h asks for dlpack.h"
fi

# The headers define no names without the library's prefix.
n=$((n + 1))
macros()
{
	# shellcheck disable=SC2086
	$CC -E -dM -I"$top_srcdir/include" "$1" | sed -n 's/^#define \([A-Za-z_0-9]*\).*/\1/p' | sort
}
printf '#include <stddef.h>\n#include <stdint.h>\n' >"$work/without.c"
macros "$work/hurwitz.c" >"$work/with"
macros "$work/without.c" >"$work/without"
strangers=$(comm -23 "$work/with" "$work/without" | grep -v -e '^HZ_' -e '^HURWITZ_H$')
if [ -s "$work/with" ] && [ -z "$strangers" ]; then
	echo "ok $n - hurwitz.h defines no macro but HZ_*"
else
	echo "not ok $n - hurwitz.h defines no macro but HZ_*"
	echo "$strangers" | sed 's/^/# /'
fi
echo "1..$n"
