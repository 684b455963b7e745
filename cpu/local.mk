# local.mk - cpu/: threads and blocking; micro-kernels, one library per ISA level
# SPDX-License-Identifier: BSD-2-Clause

libhz_la_SOURCES += \
	cpu/core/cpu.c cpu/core/transpose.c cpu/hadamard/hadamard.c cpu/hadamard/quantize.c \
	cpu/hadamard/tiles.c cpu/lattice/decode.c cpu/lattice/lattice.c cpu/lattice/packing.c \
	cpu/lattice/simd.c cpu/mhc/coef.c cpu/mhc/coef_bwd.c cpu/mhc/mhc.c cpu/mhc/project.c \
	cpu/qgemm/linear.c cpu/qgemm/qgemm.c cpu/quantize/quantize.c cpu/quat/quat.c \
	cpu/quat_gemm/quat_gemm.c cpu/quat_layer/quat_layer.c cpu/vlut/d4_bitfield.c \
	cpu/vlut/f32.c cpu/vlut/gemm.c cpu/vlut/gemm2.c cpu/vlut/regtable.c cpu/vlut/s8.c \
	cpu/vlut/table.c cpu/vlut/vlut.c
noinst_HEADERS += \
	cpu/core/cpu.h cpu/core/kern.h cpu/core/kern.inc cpu/core/sizes.h cpu/core/vec.h \
	cpu/core/vec_i16.h cpu/core/vec_quat.h cpu/core/vec_u8.h cpu/hadamard/hadamard.h \
	cpu/hadamard/hadamard.inc cpu/hadamard/quantize.inc cpu/lattice/e8.inc \
	cpu/lattice/lattice.h cpu/lattice/lattice.inc cpu/lattice/simd.inc cpu/lattice/soa.inc \
	cpu/mhc/amx.inc cpu/mhc/bwd.inc cpu/mhc/coef.h cpu/mhc/coef.inc cpu/mhc/coef_batch.inc \
	cpu/mhc/coef_batch_generic.inc cpu/mhc/mhc.h cpu/mhc/mhc.inc cpu/qgemm/epilogue512.inc \
	cpu/qgemm/qgemm.h cpu/qgemm/qgemm.inc cpu/qgemm/skinny_amx.inc cpu/quantize/quantize.inc \
	cpu/quat/f64.inc cpu/quat/math.inc cpu/quat/quat.inc cpu/quat/vec.inc \
	cpu/quat_conv/depthwise.inc cpu/quat_gemm/activation.inc cpu/quat_gemm/amx.inc \
	cpu/quat_gemm/gemv.inc cpu/quat_gemm/quat_gemm.inc cpu/quat_layer/gather.h \
	cpu/quat_layer/gather.inc cpu/quat_layer/pool.inc cpu/quat_layer/quat_layer.inc \
	cpu/vlut/d4_bitfield.inc cpu/vlut/d4_bitfield512.inc cpu/vlut/vlut.h cpu/vlut/vlut.inc

# The user's CFLAGS come last, so what these units cannot do without is put behind them: the
# optimiser, lanes that wrap around, and no LTO, which would let wide instructions leak into
# baseline code.
KERNEL_OPT ?= -O3
cpu/core/isa/%.lo: override CFLAGS += $(KERNEL_OPT) $(HZ_KERNEL_CFLAGS) -fwrapv -fno-lto

noinst_LTLIBRARIES += libhz_c.la
libhz_c_la_SOURCES = cpu/core/isa/c.c
libhz_c_la_LDFLAGS =
libhz_c_la_CFLAGS = $(AM_CFLAGS)
libhz_la_LIBADD += libhz_c.la
if HAVE_AVX2
noinst_LTLIBRARIES += libhz_avx2.la
libhz_avx2_la_SOURCES = cpu/core/isa/avx2.c
libhz_avx2_la_LDFLAGS =
libhz_avx2_la_CFLAGS = $(AM_CFLAGS) $(HZ_AVX2_CFLAGS)
libhz_la_LIBADD += libhz_avx2.la
endif
if HAVE_AVX512
noinst_LTLIBRARIES += libhz_avx512.la
libhz_avx512_la_SOURCES = cpu/core/isa/avx512.c
libhz_avx512_la_LDFLAGS =
libhz_avx512_la_CFLAGS = $(AM_CFLAGS) $(HZ_AVX512_CFLAGS)
libhz_la_LIBADD += libhz_avx512.la
endif
if HAVE_VNNI
noinst_LTLIBRARIES += libhz_vnni.la
libhz_vnni_la_SOURCES = cpu/core/isa/vnni.c
libhz_vnni_la_LDFLAGS =
libhz_vnni_la_CFLAGS = $(AM_CFLAGS) $(HZ_VNNI_CFLAGS)
libhz_la_LIBADD += libhz_vnni.la
endif
if HAVE_AMX
noinst_LTLIBRARIES += libhz_amx.la
libhz_amx_la_SOURCES = cpu/core/isa/amx.c
libhz_amx_la_LDFLAGS =
libhz_amx_la_CFLAGS = $(AM_CFLAGS) $(HZ_AMX_CFLAGS)
libhz_la_LIBADD += libhz_amx.la
endif
if HAVE_NEON
noinst_LTLIBRARIES += libhz_neon.la
libhz_neon_la_SOURCES = cpu/core/isa/neon.c
libhz_neon_la_LDFLAGS =
libhz_neon_la_CFLAGS = $(AM_CFLAGS) $(HZ_NEON_CFLAGS)
libhz_la_LIBADD += libhz_neon.la
endif
EXTRA_DIST += \
	cpu/core/README.md
