# hz_hwloc.m4 - find hwloc 2.1 or later
# SPDX-License-Identifier: BSD-2-Clause

# HZ_HWLOC: --with-hwloc; sets HWLOC_CFLAGS, HWLOC_LIBS, hz_hwloc, HZ_HAVE_HWLOC. A link test
# follows pkg-config, which in a cross build finds the build machine's library.
AC_DEFUN([HZ_HWLOC], [
	AC_ARG_WITH([hwloc],
		[AS_HELP_STRING([--without-hwloc], [ask the operating system alone for the topology])],
		[], [with_hwloc=auto])
	hz_hwloc=no
	AS_IF([test "$with_hwloc" != no], [
		PKG_CHECK_MODULES([HWLOC], [hwloc >= 2.1.0], [],
			[HWLOC_CFLAGS= HWLOC_LIBS=-lhwloc])
		hz_save_CFLAGS=$CFLAGS
		hz_save_LIBS=$LIBS
		CFLAGS="$CFLAGS $HWLOC_CFLAGS"
		LIBS="$HWLOC_LIBS $LIBS"
		AC_MSG_CHECKING([whether hwloc links])
		AC_LINK_IFELSE([AC_LANG_PROGRAM([[
#include <hwloc.h>
#if HWLOC_API_VERSION < 0x00020100
#error too old
#endif
]], [[
	hwloc_topology_t t;
	return hwloc_topology_init(&t);
]])], [hz_hwloc=yes])
		AC_MSG_RESULT([$hz_hwloc])
		CFLAGS=$hz_save_CFLAGS
		LIBS=$hz_save_LIBS
	])
	AS_IF([test "$hz_hwloc" = yes],
		[AC_DEFINE([HZ_HAVE_HWLOC], [1], [Define to 1 if hwloc 2.1 or later is used.])],
		[HWLOC_CFLAGS= HWLOC_LIBS=
		 AS_IF([test "$with_hwloc" = yes],
			[AC_MSG_ERROR([--with-hwloc was given, but hwloc 2.1 or later does not link])])])
	AC_SUBST([HWLOC_CFLAGS])
	AC_SUBST([HWLOC_LIBS])
])
