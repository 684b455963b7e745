# hz_isa.m4 - which instruction-set levels the compiler can make
# SPDX-License-Identifier: BSD-2-Clause

# HZ_ISA_LEVEL(NAME, CPU, NEEDS, FLAGS, PROLOGUE, BODY): sets hz_isa_NAME, HZ_NAME_CFLAGS, HAVE_NAME
# (automake) and HZ_HAVE_NAME (config.h) if --with-isa asks for the level, the host's processor
# matches CPU and the compiler takes FLAGS and BODY. NEEDS is empty or the level below, some of
# whose kernels this one uses: without it this one is not built.
AC_DEFUN([HZ_ISA_LEVEL], [
	hz_isa_$1=no
	AS_CASE([" $hz_isa_wanted "], [*" $1 "*], [
		AC_CACHE_CHECK([whether $CC can make $1], [hz_cv_isa_$1], [
			hz_cv_isa_$1=no
			AS_CASE([$host_cpu], [$2], [
				hz_save_CFLAGS=$CFLAGS
				CFLAGS="$CFLAGS $4"
				AC_COMPILE_IFELSE([AC_LANG_PROGRAM([$5], [$6])], [hz_cv_isa_$1=yes])
				CFLAGS=$hz_save_CFLAGS
			])
		])
		hz_isa_$1=$hz_cv_isa_$1
		AS_IF([test "$hz_isa_$1$hz_isa_strict" = noyes],
			[AC_MSG_ERROR([--with-isa: $CC cannot make $1 for $host_cpu])])
		m4_ifval([$3], [AS_IF([test "$hz_isa_$1" = yes && test "$hz_isa_$3" = no], [
			AS_IF([test "$hz_isa_strict" = yes],
				[AC_MSG_ERROR([--with-isa: $1 needs the kernels of $3: add $3 to the list])])
			hz_isa_$1=no
		])])
	])
	AS_IF([test "$hz_isa_$1" = yes], [
		AC_DEFINE([HZ_HAVE_]m4_toupper([$1]), [1], [Define to 1 if the $1 level is built.])
		hz_isa_summary="$hz_isa_summary $1"
	])
	AM_CONDITIONAL([HAVE_]m4_toupper([$1]), [test "$hz_isa_$1" = yes])
	AC_SUBST([HZ_]m4_toupper([$1])[_CFLAGS], ["$4"])
])

# HZ_ISA_CHOOSE: --with-isa=LIST; sets hz_isa_wanted to the levels to build if the compiler can make
# them, and hz_isa_strict to yes if it is an error when it cannot.
m4_define([HZ_ISA_NAMES], [c avx2 avx512 vnni amx neon])
AC_DEFUN([HZ_ISA_CHOOSE], [
	AC_ARG_WITH([isa],
		[AS_HELP_STRING([--with-isa=LIST],
			[CPU levels to build, of "]HZ_ISA_NAMES[" @<:@all that the compiler can make@:>@; c is always built; native: c and the best of this machine])],
		[], [with_isa=all])
	hz_isa_strict=no
	AS_CASE([$with_isa],
		[all|yes], [hz_isa_wanted="HZ_ISA_NAMES"],
		[native], [HZ_ISA_NATIVE],
		[hz_isa_strict=yes
		 hz_isa_wanted=$with_isa
		 for hz_level in $with_isa; do
			AS_CASE([" HZ_ISA_NAMES "], [*" $hz_level "*], [],
				[AC_MSG_ERROR([--with-isa has the unknown level '$hz_level' (valid: HZ_ISA_NAMES, or native alone)])])
		 done])
])

# HZ_ISA_NATIVE: sets hz_isa_wanted to c, the best level that this machine's processor has, and what
# that level needs; to all levels where the system does not list the processor's features.
AC_DEFUN([HZ_ISA_NATIVE], [
	AS_IF([test "$cross_compiling" = yes],
		[AC_MSG_ERROR([--with-isa=native: not in a cross build, name the levels])])
	AC_MSG_CHECKING([which levels this machine has])
	hz_features=" `sed -n 's/^flags@<:@^:@:>@*://p; s/^Features@<:@^:@:>@*://p' /proc/cpuinfo 2>/dev/null | sed 1q` "
	hz_isa_wanted="c avx512 vnni amx"
	for hz_feature in amx_tile amx_int8 amx_bf16; do
		AS_CASE([$hz_features], [*" $hz_feature "*], [], [hz_isa_wanted="c avx512 vnni"])
	done
	for hz_feature in avx512_vnni avx512_bf16 avx512vbmi avx512_bitalg gfni; do
		AS_CASE([$hz_features], [*" $hz_feature "*], [], [hz_isa_wanted="c avx512"])
	done
	for hz_feature in avx512f avx512bw avx512dq avx512vl avx512cd; do
		AS_CASE([$hz_features], [*" $hz_feature "*], [], [hz_isa_wanted="c avx2"])
	done
	for hz_feature in avx2 fma f16c; do
		AS_CASE([$hz_features], [*" $hz_feature "*], [], [hz_isa_wanted=c])
	done
	AS_CASE([$hz_features],
		[*" asimd "*], [hz_isa_wanted="c neon"],
		[*@<:@a-z@:>@*], [],
		[hz_isa_wanted="HZ_ISA_NAMES"])
	AC_MSG_RESULT([$hz_isa_wanted])
])

m4_define([HZ_AVX2_FLAGS], [-mavx2 -mfma -mf16c])
m4_define([HZ_AVX512_FLAGS], [HZ_AVX2_FLAGS -mavx512f -mavx512bw -mavx512dq -mavx512vl -mavx512cd])

# HZ_ISA: the levels; and HZ_KERNEL_CFLAGS, which the micro-kernels of all of them are compiled with
AC_DEFUN([HZ_ISA], [
	HZ_ISA_CHOOSE
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
	HZ_ISA_LEVEL([avx2], [x86_64], [], [HZ_AVX2_FLAGS],
		[[#include <immintrin.h>]],
		[[__m256 a = _mm256_cvtph_ps(_mm_setzero_si128()); a = _mm256_fmadd_ps(a, a, a); (void)a;]])
	HZ_ISA_LEVEL([avx512], [x86_64], [], [HZ_AVX512_FLAGS],
		[[#include <immintrin.h>]],
		[[__m512 a = _mm512_setzero_ps(); a = _mm512_fmadd_ps(a, a, a); (void)a;]])
	HZ_ISA_LEVEL([vnni], [x86_64], [avx512],
		[HZ_AVX512_FLAGS -mavx512vnni -mavx512bf16 -mavx512vbmi -mavx512bitalg -mgfni],
		[[#include <immintrin.h>]],
		[[__m256bh a = _mm512_cvtneps_pbh(_mm512_setzero_ps());
		  __m512i b = _mm512_permutexvar_epi8(_mm512_setzero_si512(), _mm512_setzero_si512());
		  b = _mm512_gf2p8affine_epi64_epi8(_mm512_popcnt_epi8(b), b, 0);
		  (void)a; (void)b;]])
	HZ_ISA_LEVEL([amx], [x86_64], [vnni], [HZ_AVX512_FLAGS -mavx512vnni -mamx-tile -mamx-int8 -mamx-bf16],
		[[#include <immintrin.h>]],
		[[_tile_loadd(0, "", 0); _tile_dpbuud(0, 1, 2); _tile_dpbf16ps(0, 1, 2); _tile_release();]])
	HZ_ISA_LEVEL([neon], [aarch64], [], [],
		[[#include <arm_neon.h>]],
		[[float32x4_t a = vdupq_n_f32(0); a = vfmaq_f32(a, a, a); (void)a;]])
])
