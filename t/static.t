#!/bin/sh
# static.t - programs use the installed library through pkg-config, CMake and Autotools; uninstall
# SPDX-License-Identifier: BSD-2-Clause
# shellcheck disable=SC2086 # NM, CC and CXX may be several words
set -u
: "${top_builddir:=.}" "${top_srcdir:=.}" "${CC:=cc}" "${CXX:=}" "${NM:=nm}" "${PKG_CONFIG:=}" "${MAKE:=make}"
work=$(mktemp -d) || exit 99
trap 'rm -rf "$work"' EXIT
# A make of its own: the job server's pipes of the parent make are not open here.
unset MAKEFLAGS MFLAGS MAKELEVEL
n=0

# report NAME STATUS: a test that passes if STATUS is 0; otherwise it prints $work/log
report()
{
	n=$((n + 1))
	if [ "$2" -eq 0 ]; then
		echo "ok $n - $1"
	else
		echo "not ok $n - $1"
		sed 's/^/# /' "$work/log" | tail -n 20
	fi
}

skip()
{
	n=$((n + 1))
	echo "ok $n - $1 # SKIP $2"
}

# staged MAKEARGS...: make with the stage as DESTDIR
staged()
{
	(cd "$top_builddir" && "$MAKE" "$@" DESTDIR="$work/stage" >"$work/log" 2>&1)
}

# ends WHY: skips the remaining tests
ends()
{
	skip "consumers" "$1"
	echo "1..$n"
	exit 0
}

staged install
report "make install" $?
pc=$(find "$work/stage" -name hurwitz.pc)
[ -n "$pc" ]
report "installs hurwitz.pc" $?
pages=$(dirname "$(find "$work/stage" -name README.md | head -n 1)")
(cd "$pages" && for page in *.md ./*/*.md; do
	grep -o ']([^)]*)' "$page" | sed -e 's/^](//' -e 's/[#)].*//' | grep -v '^https*:' |
		while read -r to; do
			[ -z "$to" ] || [ -e "$(dirname "$page")/$to" ] || echo "$page: no $to"
		done
done) >"$work/log" 2>&1
[ ! -s "$work/log" ]
report "links of installed pages resolve" $?
if [ -z "$pc" ] || [ -z "$PKG_CONFIG" ]; then
	ends "no pkg-config"
fi
libdir=$(dirname "$(dirname "$pc")")
[ "${cross_compiling:-no}" = no ] || ends "a cross build"
if $NM "$libdir"/libhurwitz.a "$libdir"/libhurwitz.so 2>/dev/null |
	grep -Eq ' (U|T) (__asan_|__tsan_|__msan_|__ubsan_|__gcov_)'; then
	ends "an instrumented build: applications would need its flags"
fi

# Paths in hurwitz.pc are those of a real installation; the sysroot prefixes the stage.
PKG_CONFIG_PATH=$(dirname "$pc")
PKG_CONFIG_SYSROOT_DIR=$work/stage
PKG_CONFIG_ALLOW_SYSTEM_CFLAGS=1
PKG_CONFIG_ALLOW_SYSTEM_LIBS=1
export PKG_CONFIG_PATH PKG_CONFIG_SYSROOT_DIR PKG_CONFIG_ALLOW_SYSTEM_CFLAGS PKG_CONFIG_ALLOW_SYSTEM_LIBS

cat >"$work/app.c" <<'END'
#include <hurwitz.h>
#include <stdio.h>
#include <string.h>

int main(void)
{
	static float rows[1024][1024];	/* enough for two threads */
	float row[4] = {1, 2, 3, 4};
	hz_tensor x = hz_tensor_1d(row, HZ_F32, HZ_CPU, 4);
	hz_tensor y = hz_tensor_2d(rows, HZ_F32, HZ_CPU, 1024, 1024);
	hz_options options;
	hz_context *ctx;

	memset(&options, 0, sizeof(options));
	options.device = HZ_CPU;
	options.threads = 2;
	for (int i = 0; i < 1024; i++)
		rows[i][0] = 32;
	if (hz_open(&ctx, &options) || hz_hadamard(ctx, &x, &x, NULL) ||
	    hz_hadamard(ctx, &y, &y, NULL) || rows[0][1] != 1 || rows[1023][1023] != 1)
		return 1;
	hz_close(ctx);
	printf("%s %g %g %g %g\n", hz_version(), row[0], row[1], row[2], row[3]);
	return 0;
}
END
cp "$work/app.c" "$work/app.cc"
version=$("$PKG_CONFIG" --modversion hurwitz)
want="$version 5 -1 -2 0"

# consumer NAME FLAGS WORDS...: compiles the application with WORDS and pkg-config's FLAGS, runs it.
# LD_LIBRARY_PATH points to the stage, as the loader's configuration would to an installed library.
consumer()
{
	name=$1
	flags=$2
	shift 2
	rm -f "$work/app"
	# shellcheck disable=SC2046,SC2086 # lists of words
	"$@" -o "$work/app" $("$PKG_CONFIG" --cflags $flags hurwitz) >"$work/log" 2>&1 &&
		LD_LIBRARY_PATH=$libdir${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH} "$work/app" \
			>"$work/out" 2>>"$work/log" &&
		[ "$(cat "$work/out")" = "$want" ]
	status=$?
	[ $status -eq 0 ] || echo "wanted: $want; got: $(cat "$work/out" 2>&1)" >>"$work/log"
	report "$name" $status
}

# plugin NAME VARIABLE: a module that contains the archive is loaded, makes calls of two threads, and is
# unloaded; its threads must not run on in memory that is gone.
cat >"$work/plugin.c" <<'END'
#include <hurwitz.h>
#include <string.h>

int run(void)
{
	static float row[2048 * 256];
	hz_tensor x = hz_tensor_2d(row, HZ_F32, HZ_CPU, 2048, 256);
	hz_options options;
	hz_context *ctx;
	int status;

	memset(&options, 0, sizeof(options));
	options.device = HZ_CPU;
	options.threads = 2;
	status = hz_open(&ctx, &options);
	if (status)
		return status == HZ_ENOTSUP ? 0 : status;
	status = hz_hadamard(ctx, &x, &x, NULL);
	hz_close(ctx);
	return status;
}
END
cat >"$work/host.c" <<'END'
#include <dlfcn.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>

int main(int argc, char **argv)
{
	struct timespec t = {0, 20000000};

	for (int i = 0; i < 20; i++) {
		void *plugin = dlopen(argv[argc - 1], RTLD_NOW | RTLD_LOCAL);
		int (*run)(void) = plugin ? (int (*)(void))dlsym(plugin, "run") : 0;

		if (!run || run())
			return printf("%s\n", plugin ? "the call fails" : dlerror()), 1;
		dlclose(plugin);
		nanosleep(&t, 0);
		if (fork() == 0)
			_exit(0);
	}
	return 0;
}
END
plugin()
{
	# shellcheck disable=SC2046,SC2086 # lists of words
	{ $CC -shared -fPIC -o "$work/plugin.so" "$work/plugin.c" \
		$("$PKG_CONFIG" --cflags --libs --static hurwitz) &&
		$CC -o "$work/host" "$work/host.c" -ldl &&
		env $2 "$work/host" "$work/plugin.so"; } >"$work/log" 2>&1
	report "$1" $?
}

# The application that is installed as an example, built by its Makefile and by CMake
example=$(find "$work/stage" -path '*/examples/app/app.c')
example=${example%/app.c}
example() # NAME PROGRAM WORDS...: runs the words, which build it, then the program
{
	name=$1
	program=$2
	shift 2
	"$@" >"$work/log" 2>&1 &&
		HURWITZ_DEVICE=cpu LD_LIBRARY_PATH=$libdir${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH} \
			"$program" >"$work/out" 2>>"$work/log" &&
		grep -q 'there and back within' "$work/out"
	report "$name" $?
}
cp -r "$example" "$work/example"
example "the example's Makefile" "$work/example/app" \
	"$MAKE" -C "$work/example" CC="$CC" PKG_CONFIG="$PKG_CONFIG"
# The stage is not the prefix that was configured: the package must not depend on where it lies.
by_cmake() # SOURCE BUILD
{
	CC=$CC cmake -S "$1" -B "$2" -DCMAKE_PREFIX_PATH="$libdir/cmake/hurwitz" &&
		cmake --build "$2"
}
if command -v cmake >/dev/null 2>&1; then
	example "the example's CMakeLists.txt" "$work/cmake/app" by_cmake "$example" "$work/cmake"
	if [ -e "$libdir/libhurwitz.a" ]; then
		sed -i.orig 's/hurwitz::hurwitz /hurwitz::hurwitz_static /' "$work/example/CMakeLists.txt"
		example "CMake, the archive" "$work/cmake.static/app" \
			by_cmake "$work/example" "$work/cmake.static"
	else
		skip "CMake, the archive" "no archive in this build"
	fi
	major_minor=$(echo "$version" | sed 's/^\([0-9]*[.][0-9]*\).*/\1/')
	mkdir "$work/versions"
	cat >"$work/versions/CMakeLists.txt" <<-END
		cmake_minimum_required(VERSION 3.19)
		project(versions C)
		foreach(wrong 0.0 $major_minor.999 99 0.0...<$version 99...100)
			find_package(hurwitz \${wrong} CONFIG QUIET)
			if(hurwitz_FOUND)
				message(SEND_ERROR "\${wrong} is found")
			endif()
		endforeach()
		find_package(hurwitz CONFIG QUIET COMPONENTS nothing)
		if(hurwitz_FOUND)
			message(SEND_ERROR "a component that does not exist is found")
		endif()
		foreach(right $major_minor $version 0.0...$version 0.0...<99)
			find_package(hurwitz \${right} CONFIG REQUIRED)
		endforeach()
		find_package(hurwitz $version EXACT CONFIG REQUIRED)
		find_package(hurwitz CONFIG REQUIRED)
		if(NOT hurwitz_VERSION STREQUAL "$version")
			message(SEND_ERROR "hurwitz_VERSION is \${hurwitz_VERSION}")
		endif()
	END
	CC=$CC cmake -S "$work/versions" -B "$work/versions/b" \
		-DCMAKE_PREFIX_PATH="$libdir/cmake/hurwitz" >"$work/log" 2>&1
	report "CMake finds the versions that fit" $?
else
	skip "the example's CMakeLists.txt" "no cmake"
	skip "CMake, the archive" "no cmake"
	skip "CMake finds the versions that fit" "no cmake"
fi
by_autotools()
{
	mkdir "$work/autotools" && cp "$example/app.c" "$work/autotools" && cd "$work/autotools" &&
		cat >configure.ac <<-'END' && cat >Makefile.am <<-'END2' &&
			AC_INIT([app], [1])
			AM_INIT_AUTOMAKE([foreign])
			AC_PROG_CC
			PKG_CHECK_MODULES_STATIC([HURWITZ], [hurwitz])
			AC_CONFIG_FILES([Makefile])
			AC_OUTPUT
		END
			bin_PROGRAMS = app
			app_SOURCES = app.c
			AM_CFLAGS = $(HURWITZ_CFLAGS)
			LDADD = $(HURWITZ_LIBS)
		END2
		ACLOCAL_PATH=$m4 autoreconf -i && ./configure CC="$CC" PKG_CONFIG="$PKG_CONFIG" &&
		"$MAKE"
}
m4=$(cd "$top_srcdir/m4" && pwd)
if command -v autoreconf >/dev/null 2>&1 && command -v automake >/dev/null 2>&1; then
	example "the example by autoconf and automake" "$work/autotools/app" eval "(by_autotools)"
else
	skip "the example by autoconf and automake" "no autoconf and automake"
fi

# pkg-config's flags come last: app.c must precede the libraries that it needs.
{
	if [ -e "$libdir/libhurwitz.so" ]; then
		consumer "C, dynamic" --libs $CC "$work/app.c"
		readelf -d "$work/app" >"$work/log" 2>&1
		grep -Eq 'NEEDED.*(hwloc|gomp|libomp)' "$work/log"
		report "C, dynamic: private libraries are not the application's" $((! $?))
		rm -f "$libdir"/libhurwitz.so*
	else
		skip "C, dynamic" "no shared library in this build"
		skip "C, dynamic: private libraries" "no shared library in this build"
	fi
	if [ -e "$libdir/libhurwitz.a" ]; then
		consumer "C, static" "--libs --static" $CC "$work/app.c"
		consumer "C, static, by words of -L and -l alone" \
			"--libs-only-L --libs-only-l --static" $CC "$work/app.c"
		"$PKG_CONFIG" --libs --static hurwitz | tr ' ' '\n' |
			grep -Ev '^(-[Ll].*)?$|^/' >"$work/log"
		[ ! -s "$work/log" ]
		report "hurwitz.pc has no other words" $?
		if [ -n "$CXX" ]; then
			consumer "C++, static" "--libs --static" $CXX "$work/app.cc"
		else
			skip "C++, static" "no C++ compiler"
		fi
		for how in "" OMP_NUM_THREADS=2 HURWITZ_THREADING=openmp; do
			plugin "a plugin with the archive: called, unloaded${how:+, $how}" "$how"
		done
		for how in -static -static-pie; do
			name="C, wholly static: $how"
			case $("$PKG_CONFIG" --libs --static hurwitz) in
			*hwloc*)
				skip "$name" "hwloc's own libraries have no archives everywhere"
				continue ;;
			esac
			echo 'int main(void) { return 0; }' >"$work/probe.c"
			if $CC $how -o "$work/probe" "$work/probe.c" 2>/dev/null && "$work/probe"; then
				consumer "$name" "--libs --static" $CC $how "$work/app.c"
			else
				skip "$name" "no such program starts here"
			fi
		done
	else
		skip "C, static" "no archive in this build"
		skip "C, static, by words of -L and -l alone" "no archive in this build"
		skip "hurwitz.pc has no other words" "no archive in this build"
		skip "C++, static" "no archive in this build"
		for how in "" OMP_NUM_THREADS=2 HURWITZ_THREADING=openmp; do
			skip "a plugin with the archive${how:+, $how}" "no archive in this build"
		done
		skip "C, wholly static: -static" "no archive in this build"
		skip "C, wholly static: -static-pie" "no archive in this build"
	fi
}

# Uninstall removes all that was installed. The shared library was removed above.
staged uninstall
report "make uninstall" $?
find "$work/stage" ! -type d >"$work/log"
[ ! -s "$work/log" ]
report "leaves no file behind" $?
find "$work/stage" -type d -name hurwitz >"$work/log"
[ ! -s "$work/log" ]
report "leaves no directory of its own behind" $?
echo "1..$n"
