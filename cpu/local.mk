# local.mk - cpu/: threads and blocking; micro-kernels, one library per ISA level
# SPDX-License-Identifier: BSD-2-Clause

libhz_la_SOURCES += \
	cpu/core/cpu.c cpu/core/parallel.c cpu/core/pool.c cpu/core/transpose.c cpu/hadamard/hadamard.c cpu/hadamard/kern.c \
	cpu/hadamard/overflow.c cpu/hadamard/quantize.c cpu/hadamard/routes.c cpu/hadamard/tiles.c cpu/lattice/decode.c \
	cpu/lattice/kern.c cpu/lattice/lattice.c cpu/lattice/packing.c cpu/lattice/routes.c cpu/lattice/rows.c \
	cpu/lattice/simd.c cpu/linear/kern.c cpu/linear/linear.c cpu/mhc/coef.c cpu/mhc/coef_bwd.c cpu/mhc/gated.c cpu/mhc/kern.c cpu/mhc/mhc.c \
	cpu/mhc/project.c cpu/mhc/routes.c cpu/peak/kern.c cpu/qgemm/group.c cpu/qgemm/kern.c cpu/qgemm/linear.c \
	cpu/qgemm/qgemm.c cpu/qgemm/routes.c cpu/qgemm/skinny.c cpu/qgemm/small.c cpu/quantize/kern.c cpu/quantize/quantize.c \
	cpu/quantize/formats.c \
	cpu/quantize/routes.c cpu/quat/kern.c cpu/quat/quat.c cpu/quat_conv/depthwise.c \
	cpu/quat_conv/kern.c cpu/quat_conv/routes.c cpu/quat_gemm/kern.c cpu/quat_gemm/quat_gemm.c \
	cpu/quat_gemm/routes.c cpu/quat_gemm/small.c cpu/quat_layer/kern.c cpu/quat_layer/quat_layer.c \
	cpu/quat_layer/routes.c cpu/vlut/bias_act.c cpu/vlut/d4_bitfield.c cpu/vlut/f32.c cpu/vlut/gemm.c \
	cpu/vlut/gemm2.c cpu/vlut/kern.c cpu/vlut/label.c cpu/vlut/regtable.c cpu/vlut/routes.c cpu/vlut/s8.c \
	cpu/vlut/table.c cpu/vlut/vlut.c
noinst_HEADERS += \
	cpu/core/convert.inc cpu/core/cpu.h cpu/core/elements.inc cpu/core/formats.inc \
	cpu/core/inline.h \
	cpu/core/kern.h cpu/core/pool.h cpu/core/sizes.h cpu/core/tiles.h cpu/core/transpose.inc cpu/core/vec.h \
	cpu/core/vec_i16.h cpu/core/vec_quat.h cpu/core/vec_u8.h cpu/core/vec_w16.h cpu/core/vec_w8.h \
	cpu/hadamard/hadamard.h \
	cpu/hadamard/hadamard.inc cpu/hadamard/kern.h cpu/hadamard/quantize.inc \
	cpu/hadamard/stages.inc cpu/hadamard/transposed.inc cpu/lattice/cells.inc \
	cpu/lattice/e8.inc cpu/lattice/kern.h cpu/lattice/lattice.h cpu/lattice/lattice.inc \
	cpu/lattice/shaped.inc cpu/lattice/simd.inc \
	cpu/lattice/soa.inc cpu/linear/kern.h cpu/linear/bwd.inc cpu/mhc/bwd.inc cpu/mhc/coef.h cpu/mhc/coef.inc cpu/mhc/kern.h \
	cpu/mhc/mhc.h cpu/mhc/mhc.inc cpu/mhc/pairs.inc cpu/mhc/project.inc cpu/peak/kern.h \
	cpu/qgemm/epilogue512.inc cpu/qgemm/group.inc cpu/qgemm/kern.h cpu/qgemm/qgemm.h cpu/qgemm/qgemm.inc \
	cpu/qgemm/skinny.inc cpu/qgemm/skinny_amx.inc cpu/qgemm/small.inc cpu/qgemm/vnni.inc cpu/quantize/kern.h cpu/quantize/quantize.h \
	cpu/quantize/codes.inc cpu/quantize/formats.inc cpu/quantize/transposed.inc \
	cpu/quantize/quantize.inc cpu/quat/f64.inc cpu/quat/kern.h cpu/quat/math.inc \
	cpu/quat/convert.inc \
	cpu/quat/quat.inc cpu/quat/vec.inc cpu/quat_conv/depthwise.h cpu/quat_conv/depthwise.inc \
	cpu/quat_conv/kern.h cpu/quat_gemm/activation.inc cpu/quat_gemm/gemv.inc \
	cpu/quat_gemm/kern.h cpu/quat_gemm/quat_gemm.h cpu/quat_gemm/quat_gemm.inc cpu/quat_gemm/small.inc \
	cpu/quat_layer/gather.h cpu/quat_layer/gather.inc cpu/quat_layer/kern.h \
	cpu/quat_layer/pool.inc cpu/quat_layer/quads.inc cpu/quat_layer/quat_layer.h \
	cpu/quat_layer/quat_layer.inc cpu/quat_layer/recurrent.inc cpu/vlut/bias_act.inc cpu/vlut/d4_bitfield.inc cpu/vlut/d4_bitfield512.inc \
	cpu/vlut/label.inc cpu/vlut/kern.h cpu/vlut/vlut.h cpu/vlut/vlut.inc

# cpu/<family>/unit.c is one family's micro-kernels, compiled once for each ISA level. VNNI and AMX
# have units of those families alone that gain by them; other kernels stay those of the level below.
cpu_vnni_units = \
	cpu/hadamard/unit.c cpu/hadamard/unit_transposed.c cpu/lattice/unit.c cpu/peak/unit.c \
	cpu/qgemm/unit.c \
	cpu/quantize/unit.c cpu/quat/unit.c cpu/quat_conv/unit.c cpu/quat_layer/unit.c \
	cpu/vlut/unit.c
cpu_units = \
	$(cpu_vnni_units) cpu/linear/unit.c cpu/mhc/unit.c cpu/mhc/unit_general.c cpu/quat_gemm/unit.c
cpu_amx_units = \
	cpu/mhc/amx.c cpu/peak/amx.c cpu/qgemm/amx.c cpu/quat_gemm/amx.c cpu/vlut/amx.c

# The user's CFLAGS come last, so what these units cannot do without is put behind them: the
# optimiser, lanes that wrap around, and no LTO, which would let wide instructions leak into
# baseline code.
KERNEL_OPT ?= -O3
cpu/%-unit.lo cpu/%-unit_general.lo cpu/%-unit_transposed.lo cpu/%-amx.lo: override CFLAGS += \
	$(KERNEL_OPT) $(HZ_KERNEL_CFLAGS) -fwrapv -fno-lto

noinst_LTLIBRARIES += libhz_c.la
libhz_c_la_SOURCES = $(cpu_units)
libhz_c_la_LDFLAGS =
libhz_c_la_CPPFLAGS = $(AM_CPPFLAGS) -DHZ_LEVEL=c -DHZ_VEC=HZ_VEC_C
libhz_c_la_CFLAGS = $(AM_CFLAGS)
libhz_la_LIBADD += libhz_c.la
if HAVE_AVX2
noinst_LTLIBRARIES += libhz_avx2.la
libhz_avx2_la_SOURCES = $(cpu_units)
libhz_avx2_la_LDFLAGS =
libhz_avx2_la_CPPFLAGS = $(AM_CPPFLAGS) -DHZ_LEVEL=avx2 -DHZ_VEC=HZ_VEC_AVX2
libhz_avx2_la_CFLAGS = $(AM_CFLAGS) $(HZ_AVX2_CFLAGS)
libhz_la_LIBADD += libhz_avx2.la
endif
if HAVE_AVX512
noinst_LTLIBRARIES += libhz_avx512.la
libhz_avx512_la_SOURCES = $(cpu_units)
libhz_avx512_la_LDFLAGS =
libhz_avx512_la_CPPFLAGS = $(AM_CPPFLAGS) -DHZ_LEVEL=avx512 -DHZ_VEC=HZ_VEC_AVX512
libhz_avx512_la_CFLAGS = $(AM_CFLAGS) $(HZ_AVX512_CFLAGS)
libhz_la_LIBADD += libhz_avx512.la
endif
if HAVE_VNNI
noinst_LTLIBRARIES += libhz_vnni.la
libhz_vnni_la_SOURCES = $(cpu_vnni_units)
libhz_vnni_la_LDFLAGS =
libhz_vnni_la_CPPFLAGS = $(AM_CPPFLAGS) -DHZ_LEVEL=vnni -DHZ_VEC=HZ_VEC_AVX512 -DHZ_VNNI
libhz_vnni_la_CFLAGS = $(AM_CFLAGS) $(HZ_VNNI_CFLAGS)
libhz_la_LIBADD += libhz_vnni.la
endif
if HAVE_AMX
noinst_LTLIBRARIES += libhz_amx.la
libhz_amx_la_SOURCES = $(cpu_amx_units)
libhz_amx_la_LDFLAGS =
libhz_amx_la_CPPFLAGS = $(AM_CPPFLAGS) -DHZ_LEVEL=amx
libhz_amx_la_CFLAGS = $(AM_CFLAGS) $(HZ_AMX_CFLAGS)
libhz_la_LIBADD += libhz_amx.la
endif
if HAVE_NEON
noinst_LTLIBRARIES += libhz_neon.la
libhz_neon_la_SOURCES = $(cpu_units)
libhz_neon_la_LDFLAGS =
libhz_neon_la_CPPFLAGS = $(AM_CPPFLAGS) -DHZ_LEVEL=neon -DHZ_VEC=HZ_VEC_NEON
libhz_neon_la_CFLAGS = $(AM_CFLAGS) $(HZ_NEON_CFLAGS)
libhz_la_LIBADD += libhz_neon.la
endif
EXTRA_DIST += \
	cpu/core/README.md cpu/hadamard/README.md cpu/lattice/README.md cpu/linear/README.md cpu/mhc/README.md \
	cpu/peak/README.md cpu/qgemm/README.md cpu/quantize/README.md cpu/quat/README.md \
	cpu/quat_conv/README.md cpu/quat_gemm/README.md cpu/quat_layer/README.md \
	cpu/vlut/README.md
