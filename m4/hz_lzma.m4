# hz_lzma.m4 - find xz and liblzma, for device code
# SPDX-License-Identifier: BSD-2-Clause

# HZ_LZMA, after HZ_CUDA: --with-lzma; sets LZMA_CFLAGS, LZMA_LIBS, hz_lzma, HZ_HAVE_LZMA, and
# HZ_NVCC_COMPRESS, since xz compresses then. It is for device code alone. A link test follows
# pkg-config, as for hwloc, and a test of tools/pack-fatbin, which expects certain headers of nvcc's.
AC_DEFUN([HZ_LZMA], [
	AC_ARG_WITH([lzma],
		[AS_HELP_STRING([--without-lzma], [nvcc compresses device code, not xz])],
		[], [with_lzma=auto])
	hz_lzma=no
	AS_IF([test "$with_lzma" != no && test "$hz_cuda" = yes], [
		PKG_CHECK_MODULES([LZMA], [liblzma >= 5.2], [], [LZMA_CFLAGS= LZMA_LIBS=-llzma])
		hz_save_CFLAGS=$CFLAGS
		hz_save_LIBS=$LIBS
		CFLAGS="$CFLAGS $LZMA_CFLAGS"
		LIBS="$LZMA_LIBS $LIBS"
		AC_MSG_CHECKING([whether liblzma links])
		AC_LINK_IFELSE([AC_LANG_PROGRAM([[
#include <lzma.h>
]], [[
	uint64_t limit = 0;
	return lzma_stream_buffer_decode(&limit, 0, 0, 0, 0, 0, 0, 0, 0);
]])], [hz_lzma=yes])
		AC_MSG_RESULT([$hz_lzma])
		CFLAGS=$hz_save_CFLAGS
		LIBS=$hz_save_LIBS
		AS_IF([test "$hz_lzma" = yes], [
			AC_MSG_CHECKING([whether xz can compress what $NVCC makes])
			AS_ECHO(['extern "C" __global__ void k(float *x) { x@<:@threadIdx.x@:>@ = 0; }']) > conftest.cu
			AS_IF([{ $NVCC --fatbin $HZ_NVCC_ARCH --no-compress -o conftest.fatbin conftest.cu && \
					"$srcdir/tools/pack-fatbin" conftest.fatbin conftest.packed; } \
					>&AS_MESSAGE_LOG_FD 2>&1],
				[HZ_NVCC_COMPRESS=--no-compress], [hz_lzma=no])
			AC_MSG_RESULT([$hz_lzma])
			rm -f conftest.cu conftest.fatbin conftest.packed*
		])
	])
	AS_IF([test "$hz_lzma" = yes],
		[AC_DEFINE([HZ_HAVE_LZMA], [1], [Define to 1 if xz compresses device code.])
		 hz_cuda_summary="$hz_cuda_summary, compressed by xz"],
		[LZMA_CFLAGS= LZMA_LIBS=
		 AS_IF([test "$with_lzma" = yes],
			[AC_MSG_ERROR([--with-lzma was given, but there is no xz and liblzma 5.2 or later, or no device code])])])
	AC_SUBST([LZMA_CFLAGS])
	AC_SUBST([LZMA_LIBS])
])
