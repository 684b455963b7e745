#!/bin/sh
# symbols.t - exports only hz_*; no constructors, no executable stack
# SPDX-License-Identifier: BSD-2-Clause
# shellcheck disable=SC2086 # NM, CC and CXX may be several words
set -u
: "${top_srcdir:=.}" "${top_builddir:=.}" "${NM:=nm}"
shared=$top_builddir/.libs/libhurwitz.so
static=$top_builddir/.libs/libhurwitz.a
# shellcheck source=t/tap.sh
. "$top_srcdir/t/tap.sh"

# Names that compilers add: on i386, and in instrumented builds
compilers='^(__x86[.]get_pc_thunk|__asan|__ubsan|__tsan|__msan|__sanitizer|__gcov|__llvm|__odr|mangle_path|__start_|__stop_)'

if [ ! -e "$shared" ] && [ ! -e "$static" ]; then
	echo "Bail out! neither $shared nor $static was built"
	exit 99
fi

if [ -e "$shared" ]; then
	exported=$($NM -D --defined-only "$shared" | awk '$2 != "A" { sub(/@.*/, "", $3); print $3 }')
	report "the shared library exports hz_version" \
		"$(echo "$exported" | grep -qx hz_version || echo "it does not")"
	report "the shared library exports hz_* alone" \
		"$(echo "$exported" | grep -v '^hz_' | grep -Ev "$compilers")"
	report "each has the version of a release" \
		"$($NM -D --defined-only "$shared" | awk '$3 ~ /@/ { some = 1 }
			$2 != "A" && $3 ~ /^hz_/ && $3 !~ /@@HURWITZ_[0-9]+[.][0-9]+$/ { bad = bad "\n" $3 }
			END { if (some) print substr(bad, 2) }')"
	# Finds functions that are declared but not defined.
	report "the shared library has every function of hurwitz.h" \
		"$(sed -n 's/^HZ_API.*[ *]\(hz_[a-z0-9_]*\)(.*/\1/p' \
			"$top_srcdir/include/hurwitz.h" | while read -r name; do
			echo "$exported" | grep -qx "$name" || echo "$name"
		done)"
	# 9.8 MB with -O3 for all levels of x86-64
	if $NM "$shared" 2>/dev/null | grep -Eq ' (hzi_code_|_*[atm]san_init|__ubsan_|__gcov_|__llvm_)'; then
		skip "its size" "device code, or an instrumented build"
	else
		stripped=$(mktemp) || exit 99
		report "stripped it has at most 10 MB" "$(${STRIP:-strip} -o "$stripped" "$shared" 2>&1
			size=$(wc -c <"$stripped")
			[ "$size" -le 10000000 ] || echo "it has $size")"
		rm -f "$stripped"
	fi
else
	for _ in 1 2 3 4 5; do skip "what it exports" "no shared library in this build"; done
fi

if [ -e "$static" ]; then
	globals=$($NM -g --defined-only "$static" 2>/dev/null | awk 'NF == 3 { print $3 }')
	report "the archive's global names are hz_* and hzi_*" \
		"$(echo "$globals" | grep -Ev '^hzi?_' | grep -Ev "$compilers" | sort -u)"
	n=$((n + 1))
	if echo "$globals" | grep -q '^hz_version$'; then
		echo "ok $n - the archive has hz_version"
	else
		echo "not ok $n - the archive has hz_version"
	fi
else
	for _ in 1 2; do skip "names of the archive" "no archive in this build"; done
fi

# Sanitizers and coverage have constructors; the library itself has none.
if [ ! -e "$static" ] || ! command -v objdump >/dev/null 2>&1; then
	skip "no constructors" "no archive, or no objdump"
	skip "no executable stack" "no archive, or no objdump"
elif $NM "$static" 2>/dev/null | grep -Eq ' (__asan_init|__tsan_init|__msan_init|__gcov_init)'; then
	skip "no constructors" "an instrumented build"
	skip "no executable stack" "an instrumented build"
else
	report "the archive has no constructors" \
		"$(objdump -h "$static" 2>/dev/null |
			grep -E '[.](init_array|fini_array|ctors|dtors|preinit_array)')"
	# Without this note in each object the linker makes the program's stack executable.
	report "every object says that its stack is not executable" \
		"$(objdump -h "$static" 2>/dev/null | awk '
			/file format elf/ { if (name != "" && !noted) print name; name = $1; noted = 0 }
			/[.]note[.]GNU-stack/ { noted = 1 }
			END { if (name != "" && !noted) print name }')"
fi
echo "1..$n"
