# hz_cuda.m4 - find nvcc and choose the GPUs to make code for
# SPDX-License-Identifier: BSD-2-Clause

# The default of --with-cuda-arch
m4_define([HZ_CUDA_ARCH_DEFAULT], [80 90a 100 120 90+ptx])

# HZ_CUDA: --with-cuda[=DIR], --with-cuda-arch=LIST; sets NVCC, HZ_NVCC_ARCH, HZ_NVCC_COMPRESS,
# hz_cuda, HZ_HAVE_CUDA.
# An arch N gives machine code for sm_N, N+ptx gives PTX that later GPUs compile at load time, native
# machine code for the GPUs of this machine. Code for 10.x is made of the PTX for 9.0, since nothing
# is in it that only 10.x has: for both the compiler runs once, the assembler alone twice.
# HZ_CUDA_ARCH_ALL is the default list.
AC_DEFUN([HZ_CUDA], [
	AC_ARG_WITH([cuda],
		[AS_HELP_STRING([--with-cuda@<:@=DIR@:>@],
			[device code, with nvcc from DIR/bin, the path or the usual places @<:@auto@:>@])],
		[], [with_cuda=auto])
	AC_ARG_WITH([cuda-arch],
		[AS_HELP_STRING([--with-cuda-arch=LIST],
			[GPUs to make code for @<:@"]HZ_CUDA_ARCH_DEFAULT["@:>@; native: those of this machine])],
		[], [with_cuda_arch=auto])
	AC_ARG_VAR([NVCC], [the CUDA compiler])
	AC_ARG_VAR([NVCCFLAGS], [its flags @<:@-O3@:>@])

	AC_SUBST([HZ_CUDA_ARCH_ALL], ["HZ_CUDA_ARCH_DEFAULT"])

	hz_cuda=no
	hz_cuda_summary="no (--without-cuda)"
	HZ_NVCC_ARCH=
	HZ_NVCC_COMPRESS=
	AS_IF([test "$with_cuda" = no], [], [
		hz_cuda_path=$PATH:/usr/local/cuda/bin:/opt/cuda/bin:/usr/lib/nvidia-cuda-toolkit/bin
		AS_CASE([$with_cuda], [auto|yes], [], [hz_cuda_path=$with_cuda/bin:$with_cuda])
		AC_PATH_PROG([NVCC], [nvcc], [], [$hz_cuda_path])
		hz_cuda_summary="no (nvcc was not found: a CPU-only build)"
		AS_CASE([$host], [x86_64-*-linux*|aarch64-*-linux*], [],
			[NVCC= hz_cuda_summary="no (not for $host)"])
		AS_IF([test -n "$NVCC"], [
			AS_CASE([$with_cuda_arch],
				[auto], [hz_cuda_arch="HZ_CUDA_ARCH_DEFAULT"],
				[native], [
					hz_cuda_arch=`nvidia-smi --query-gpu=compute_cap --format=csv,noheader \
						2>/dev/null | tr -d . | sed 's/^90$/90a/' | sort -u`
					AS_IF([test -z "$hz_cuda_arch"],
						[AC_MSG_ERROR([--with-cuda-arch=native: nvidia-smi shows no GPU])])],
				[hz_cuda_arch=$with_cuda_arch])
			hz_cuda_made=
			for hz_arch in $hz_cuda_arch; do
				AC_MSG_CHECKING([whether $NVCC can make code for $hz_arch])
				hz_sm=`AS_ECHO(["$hz_arch"]) | sed 's/+ptx$//'`
				AS_CASE([$hz_arch],
					[*+ptx], [hz_gencode="-gencode arch=compute_$hz_sm,code=compute_$hz_sm"],
					[10?], [hz_gencode="-gencode arch=compute_90,code=sm_$hz_sm"],
					[hz_gencode="-gencode arch=compute_$hz_sm,code=sm_$hz_sm"])
				AS_ECHO(['extern "C" __global__ void k(float *x) { x@<:@threadIdx.x@:>@ = 0; }']) > conftest.cu
				AS_IF([$NVCC --fatbin $hz_gencode -o conftest.fatbin conftest.cu >&AS_MESSAGE_LOG_FD 2>&1],
					[AC_MSG_RESULT([yes])
					 HZ_NVCC_ARCH="$HZ_NVCC_ARCH $hz_gencode"
					 hz_cuda_made="$hz_cuda_made $hz_arch"],
					[AC_MSG_RESULT([no])
					 AS_IF([test "$with_cuda_arch" != auto],
						[AC_MSG_ERROR([--with-cuda-arch: $NVCC cannot make code for $hz_arch])])])
				rm -f conftest.cu conftest.fatbin
			done
			AS_IF([test -n "$hz_cuda_made"],
				[hz_cuda=yes hz_cuda_summary="$NVCC for$hz_cuda_made"],
				[hz_cuda_summary="no ($NVCC does not work: a CPU-only build)"])
		])
		AS_IF([test "$hz_cuda" = no && test "$with_cuda" != auto],
			[AC_MSG_ERROR([--with-cuda was given, but there is no working nvcc])])
	])
	AS_IF([test "$hz_cuda" = yes],
		[AC_DEFINE([HZ_HAVE_CUDA], [1], [Define to 1 if device code is built.])])
	AS_CASE([" $hz_cuda_made "], [*" 90a "*], [hz_cuda_90a=1], [hz_cuda_90a=0])
	AC_DEFINE_UNQUOTED([HZ_CUDA_90A], [$hz_cuda_90a], [Whether there is code for sm_90a: 0 or 1.])
	AS_IF([test -z "$NVCCFLAGS"], [
		NVCCFLAGS=-O3
		AS_IF([test "$enable_debug" = yes], [NVCCFLAGS="$NVCCFLAGS -lineinfo"])
	])
	AC_DEFINE_UNQUOTED([HZ_NVCCFLAGS], ["$NVCCFLAGS"], [Flags that device code is compiled with.])
	AS_IF([test "$hz_cuda" = yes], [
		AC_MSG_CHECKING([whether $NVCC can make small fatbins])
		AS_ECHO(['extern "C" __global__ void k(float *x) { x@<:@threadIdx.x@:>@ = 0; }']) > conftest.cu
		AS_IF([$NVCC --fatbin --threads 0 --compress-mode=size -o conftest.fatbin conftest.cu >&AS_MESSAGE_LOG_FD 2>&1],
			[AC_MSG_RESULT([yes])
			 HZ_NVCC_ARCH="$HZ_NVCC_ARCH --threads 0"
			 HZ_NVCC_COMPRESS=--compress-mode=size],
			[AC_MSG_RESULT([no])])
		rm -f conftest.cu conftest.fatbin
	])
	AC_SUBST([HZ_NVCC_ARCH])
	AC_SUBST([HZ_NVCC_COMPRESS])
])
