# hz_isa.m4 - which instruction-set levels the compiler can make
# SPDX-License-Identifier: BSD-2-Clause

# HZ_ISA_LEVEL(NAME, CPU, FLAGS, PROLOGUE, BODY): sets HZ_NAME_CFLAGS, HAVE_NAME (automake) and
# HZ_HAVE_NAME (config.h) if the host's processor matches CPU and the compiler takes FLAGS and BODY.
AC_DEFUN([HZ_ISA_LEVEL], [
	AS_VAR_PUSHDEF([level], [hz_cv_isa_$1])
	AC_CACHE_CHECK([whether $CC can make $1], [level], [
		AS_VAR_SET([level], [no])
		AS_CASE([$host_cpu], [$2], [
			hz_save_CFLAGS=$CFLAGS
			CFLAGS="$CFLAGS $3"
			AC_COMPILE_IFELSE([AC_LANG_PROGRAM([$4], [$5])], [AS_VAR_SET([level], [yes])])
			CFLAGS=$hz_save_CFLAGS
		])
	])
	AS_VAR_IF([level], [yes], [
		AC_DEFINE([HZ_HAVE_]m4_toupper([$1]), [1], [Define to 1 if the $1 level is built.])
		hz_isa_summary="$hz_isa_summary $1"
	])
	AM_CONDITIONAL([HAVE_]m4_toupper([$1]), [AS_VAR_TEST_SET([level]) && test "$hz_cv_isa_$1" = yes])
	AC_SUBST([HZ_]m4_toupper([$1])[_CFLAGS], ["$3"])
	AS_VAR_POPDEF([level])
])

m4_define([HZ_AVX2_FLAGS], [-mavx2 -mfma -mf16c])
m4_define([HZ_AVX512_FLAGS], [HZ_AVX2_FLAGS -mavx512f -mavx512bw -mavx512dq -mavx512vl -mavx512cd])

# HZ_ISA: the levels; and HZ_KERNEL_CFLAGS, which the micro-kernels of all of them are compiled with
AC_DEFUN([HZ_ISA], [
	hz_isa_summary=c
	# Where a debugger finds each variable of so much unrolled code takes gcc longer than the
	# code: without, it needs half the time and memory.
	AC_CACHE_CHECK([whether $CC takes -fno-var-tracking], [hz_cv_no_var_tracking],
		[hz_save_CFLAGS=$CFLAGS
		CFLAGS="$CFLAGS -Werror -fno-var-tracking"
		AC_COMPILE_IFELSE([AC_LANG_PROGRAM()],
			[hz_cv_no_var_tracking=yes], [hz_cv_no_var_tracking=no])
		CFLAGS=$hz_save_CFLAGS])
	AC_SUBST([HZ_KERNEL_CFLAGS], [])
	AS_VAR_IF([hz_cv_no_var_tracking], [yes], [HZ_KERNEL_CFLAGS=-fno-var-tracking])
	HZ_ISA_LEVEL([avx2], [x86_64], [HZ_AVX2_FLAGS],
		[[#include <immintrin.h>]],
		[[__m256 a = _mm256_cvtph_ps(_mm_setzero_si128()); a = _mm256_fmadd_ps(a, a, a); (void)a;]])
	HZ_ISA_LEVEL([avx512], [x86_64], [HZ_AVX512_FLAGS],
		[[#include <immintrin.h>]],
		[[__m512 a = _mm512_setzero_ps(); a = _mm512_fmadd_ps(a, a, a); (void)a;]])
	HZ_ISA_LEVEL([vnni], [x86_64],
		[HZ_AVX512_FLAGS -mavx512vnni -mavx512bf16 -mavx512vbmi -mavx512bitalg -mgfni],
		[[#include <immintrin.h>]],
		[[__m256bh a = _mm512_cvtneps_pbh(_mm512_setzero_ps());
		  __m512i b = _mm512_permutexvar_epi8(_mm512_setzero_si512(), _mm512_setzero_si512());
		  b = _mm512_gf2p8affine_epi64_epi8(_mm512_popcnt_epi8(b), b, 0);
		  (void)a; (void)b;]])
	HZ_ISA_LEVEL([amx], [x86_64], [HZ_AVX512_FLAGS -mavx512vnni -mamx-tile -mamx-int8 -mamx-bf16],
		[[#include <immintrin.h>]],
		[[_tile_loadd(0, "", 0); _tile_dpbuud(0, 1, 2); _tile_dpbf16ps(0, 1, 2); _tile_release();]])
	HZ_ISA_LEVEL([neon], [aarch64], [],
		[[#include <arm_neon.h>]],
		[[float32x4_t a = vdupq_n_f32(0); a = vfmaq_f32(a, a, a); (void)a;]])
])
