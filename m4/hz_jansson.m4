# hz_jansson.m4 - find jansson 2.11 or later
# SPDX-License-Identifier: BSD-2-Clause

# HZ_JANSSON: --with-jansson; sets JANSSON_CFLAGS, JANSSON_LIBS, hz_jansson, HZ_HAVE_JANSSON. The
# command alone uses it. A link test follows pkg-config, as for hwloc.
AC_DEFUN([HZ_JANSSON], [
	AC_ARG_WITH([jansson],
		[AS_HELP_STRING([--without-jansson], [the command does not read .safetensors files])],
		[], [with_jansson=auto])
	hz_jansson=no
	AS_IF([test "$with_jansson" != no], [
		PKG_CHECK_MODULES([JANSSON], [jansson >= 2.11], [],
			[JANSSON_CFLAGS= JANSSON_LIBS=-ljansson])
		hz_save_CFLAGS=$CFLAGS
		hz_save_LIBS=$LIBS
		CFLAGS="$CFLAGS $JANSSON_CFLAGS"
		LIBS="$JANSSON_LIBS $LIBS"
		AC_MSG_CHECKING([whether jansson links])
		AC_LINK_IFELSE([AC_LANG_PROGRAM([[
#include <jansson.h>
]], [[
	json_error_t error;
	return json_loadb("{}", 2, JSON_REJECT_DUPLICATES, &error) == 0 ||
	       json_error_code(&error) == json_error_unknown;
]])], [hz_jansson=yes])
		AC_MSG_RESULT([$hz_jansson])
		CFLAGS=$hz_save_CFLAGS
		LIBS=$hz_save_LIBS
	])
	AS_IF([test "$hz_jansson" = yes],
		[AC_DEFINE([HZ_HAVE_JANSSON], [1], [Define to 1 if jansson 2.11 or later is used.])],
		[JANSSON_CFLAGS= JANSSON_LIBS=
		 AS_IF([test "$with_jansson" = yes],
			[AC_MSG_ERROR([--with-jansson was given, but jansson 2.11 or later does not link])])])
	AC_SUBST([JANSSON_CFLAGS])
	AC_SUBST([JANSSON_LIBS])
])
