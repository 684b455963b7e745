#!/bin/sh
# link.t - what programs and plugins link of the archive; no circles between families
# SPDX-License-Identifier: BSD-2-Clause
# shellcheck disable=SC2086 # NM and CC may be several words
set -u
: "${top_builddir:=.}" "${top_srcdir:=.}" "${CC:=cc}" "${NM:=nm}"
# shellcheck source=t/tap.sh
. "$top_srcdir/t/tap.sh"
archive=$top_builddir/.libs/libhurwitz.a
families="hadamard quantize qgemm quat quat_gemm quat_conv quat_layer lattice vlut linear mhc"
work=$(mktemp -d) || exit 99
trap 'rm -rf "$work"' EXIT

if [ ! -e "$archive" ]; then
	echo "1..0 # SKIP no archive in this build"
	exit 0
fi
if [ "${cross_compiling:-no}" != no ]; then
	echo "1..0 # SKIP a cross build"
	exit 0
fi

# Global symbols with the directory of the object that defines (D) or needs (U) them:
# DIRECTORY U|D NAME.
# Reads the objects of the build, since an archive does not keep directories.
(cd "$top_builddir" && for directory in lib/core cpu/core gpu/runtime $(
	for family in $families; do echo lib/$family cpu/$family gpu/$family; done); do
	for object in "$directory"/*.o "$directory"/.libs/*.o; do
		[ ! -e "$object" ] || $NM -g "$object" 2>/dev/null |
			awk -v at="$directory" 'NF == 2 && $1 == "U" { print at, "U", $2 }
				NF == 3 && $2 ~ /[TDRBC]/ { print at, "D", $3 }'
	done
done) | grep ' hzi\{0,1\}_' | sort -u >"$work/symbols"

# Weak references pull nothing in, so they are not edges.
awk '$2 == "D" { at[$3] = at[$3] == "" ? $1 : at[$3] }
	$2 == "U" { want[$1 " " $3] = 1 }
	END {
		for (w in want) {
			split(w, part, " ")
			if (at[part[2]] != "" && at[part[2]] != part[1])
				print part[1], at[part[2]]
		}
	}' "$work/symbols" | sort -u >"$work/edges"
report "lib/core names no family and no backend but the device row" \
	"$(awk '$1 == "lib/core" && $2 !~ /^(cpu\/core|gpu\/runtime)$/' "$work/edges")"
report "no directory of cpu/ needs one of gpu/, nor the other way round" \
	"$(awk '($1 ~ /^cpu/ && $2 ~ /^gpu/) || ($1 ~ /^gpu/ && $2 ~ /^cpu/)' "$work/edges")"
# The three directories of a family count as one.
report "no circle between families" \
	"$(awk '{ split($1, a, "/"); split($2, b, "/") }
		a[2] != b[2] && a[2] b[2] !~ /core|runtime/ { print a[2], b[2] }' "$work/edges" |
		sort -u | tsort 2>&1 >/dev/null)"

# links FAMILY ALLOWED CALL [MOST]: a program with one call has no symbols of families that are not
# allowed, and stripped, without device code, at most that many bytes
links()
{
	cat >"$work/app.c" <<END
#include <hurwitz.h>

int main(void)
{
	hz_context *ctx;
	int status = hz_open(&ctx, NULL);

	if (!status)
		status = $3;
	hz_close(ctx);
	return status != HZ_EINVAL;
}
END
	if ! $CC ${CFLAGS:-} -o "$work/app" -I"$top_srcdir/include" "$work/app.c" "$archive" $libs \
		>"$work/log" 2>&1; then
		report "a program that calls $1 links" "$(cat "$work/log")"
		return
	fi
	$NM "$work/app" | awk 'NF == 3 { print $3 }' | sort -u >"$work/names"
	report "a program that calls $1 has symbols of ${2:-no other family}" \
		"$(awk -v allowed=" $1 $2 " '
			NR == FNR { name[$1] = 1; next }
			$2 == "D" && $3 in name {
				split($1, part, "/")
				if (part[2] !~ /^(core|runtime)$/ && !index(allowed, " " part[2] " "))
					print $1 ": " $3
			}' "$work/names" "$work/symbols" | head -n 20)"
	report "it runs" "$("$work/app" 2>&1 || echo "status $?")"
	if grep -q '^hzi_code_' "$work/names"; then
		report "it loads its device code" "$(loads || echo "status $?")"
	fi
	[ $# -lt 4 ] || report "it has at most $4 bytes" "$(too_large "$4")"
}

# loads: whether the program opens a context on the stand-in for the driver, and so unpacks device
# code, of one of the GPUs that there may be code for
loads()
{
	for sm in 90 80 86 87 89 100 103 110 120 121; do
		HURWITZ_DEVICE=cuda FAKECUDA_UNPACK=1 FAKECUDA_SM=$sm \
			HURWITZ_LIBCUDA=$(cd "$top_builddir" && pwd)/t/core/fakecuda.so \
			"$work/app" 2>&1 && return
	done
	return 1
}

# too_large MOST: says the size of the stripped program without its device code, if it is larger
too_large()
{
	if ! ${STRIP:-strip} -o "$work/stripped" "$work/app" 2>&1; then
		return
	fi
	size=$(wc -c <"$work/stripped")
	# Device code is between two symbols, NAME and NAME_end.
	for bounds in $($NM "$work/app" | sed -n -e 's/^\([0-9a-f]*\) . hzi_code_.*_end$/-0x\1/p;t' \
		-e 's/^\([0-9a-f]*\) . hzi_code_.*/0x\1/p'); do
		size=$((size + bounds))
	done
	[ "$size" -le "$1" ] || echo "it has $size"
}

libs=$(sed -n 's/^Libs.private: *//p' "$top_builddir/hurwitz.pc")
if $NM "$archive" 2>/dev/null | grep -Eq ' (__asan_init|__tsan_init|__msan_init|__gcov_init)'; then
	skip "what programs link" "an instrumented build"
else
	links hadamard "" "hz_hadamard(ctx, NULL, NULL, NULL)" 1000000
	links quantize "hadamard" "hz_quantize(ctx, NULL, NULL, NULL)"
	links qgemm "quantize" "hz_qgemm(ctx, NULL, NULL, NULL, NULL)" 1300000
	links quat "" "hz_quat_mul(ctx, NULL, NULL, NULL, 0)"
	links quat_gemm "" "hz_quat_gemm(ctx, NULL, NULL, NULL, NULL)"
	links quat_layer "quat_gemm" "hz_quat_linear(ctx, NULL, NULL, NULL, NULL, NULL)"
	links quat_conv "quat_layer quat_gemm" "hz_quat_conv(ctx, NULL, NULL, NULL, NULL, NULL)"
	links lattice "hadamard" "hz_lattice_decode(ctx, NULL, NULL, NULL, NULL, NULL)"
	links vlut "lattice hadamard qgemm quantize quat_gemm" "hz_vlut_gemm(ctx, NULL, NULL, NULL, NULL)"
	links linear "vlut lattice hadamard qgemm quantize quat_gemm" \
		"hz_linear_forward(ctx, NULL, NULL, NULL, NULL, NULL)"
	links mhc "" "hz_mhc_sinkhorn(ctx, NULL, NULL, NULL)"

	# A plugin that holds the archive, as a Python module does. Its code is unmapped while the
	# threads that ran it may still wait for more.
	cat >"$work/plugin.c" <<'END'
#include <hurwitz.h>

static float rows[1024][1024];

int plugin(void);

int plugin(void)
{
	hz_tensor x = hz_tensor_2d(rows, HZ_F32, HZ_CPU, 1024, 1024);
	hz_options options = {.device = HZ_CPU, .threads = 2};
	hz_context *ctx;
	int status;

	for (int i = 0; i < 1024; i++)
		rows[i][0] = 32;
	if (hz_open(&ctx, &options))
		return 1;
	status = hz_hadamard(ctx, &x, &x, NULL);
	hz_close(ctx);
	return status || rows[0][1] != 1 || rows[1023][1023] != 1;
}
END
	cat >"$work/host.c" <<'END'
#include <dlfcn.h>
#include <stdio.h>
#include <time.h>

int main(int argc, char **argv)
{
	const struct timespec pause = {0, 50000000};

	for (int i = 0; i < 3 && argc > 1; i++) {
		void *library = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL);
		int (*plugin)(void);

		if (!library || !(*(void **)&plugin = dlsym(library, "plugin"))) {
			printf("%s\n", dlerror());
			return 1;
		}
		if (plugin())
			return 2;
		dlclose(library);
#ifdef __GLIBC__
		if (dlopen(argv[1], RTLD_NOW | RTLD_NOLOAD))
			return 3;
#endif
		nanosleep(&pause, NULL);
	}
	return 0;
}
END
	report "the archive links into a shared object" "$($CC ${CFLAGS:-} -shared -fPIC -Wl,-z,text \
		-I"$top_srcdir/include" -o "$work/plugin.so" "$work/plugin.c" "$archive" $libs 2>&1 ||
		echo failed)"
	report "which is loaded, calls with two threads, and is unloaded, three times" "$(
		{ $CC -o "$work/host" "$work/host.c" -ldl && "$work/host" "$work/plugin.so"; } 2>&1 ||
		echo "status $?")"
fi
echo "1..$n"
