# local.mk - t/: tests
# SPDX-License-Identifier: BSD-2-Clause

# The four that take longest come first, so that parallel runs end together.
HZ_TESTS_C = t/quantize/rotated t/vlut/vlut t/quat_layer/batchnorm t/quat_conv/quat_conv \
	t/core/args t/core/context t/core/cuda t/core/cuda_open t/core/dlpack t/core/exceptions \
	t/core/faults t/core/fuzz_args t/core/fuzz_codes t/core/fuzz_model t/core/fuzz_npy \
	t/core/graphs t/core/grid t/core/images t/core/large t/core/launches t/core/memory t/core/model \
	t/core/oom t/core/pool t/core/rounding t/core/route t/core/soak t/core/supports t/core/tensor \
	t/core/thread_count t/core/threads t/hadamard/base t/hadamard/calls t/hadamard/cuda \
	t/hadamard/hadamard t/hadamard/plan t/hadamard/properties t/hadamard/quantize \
	t/lattice/calls t/lattice/cuda t/lattice/design t/lattice/errors t/lattice/lattice \
	t/lattice/shaped t/linear/encoder t/linear/file t/linear/linear t/mhc/calls t/mhc/coef \
	t/mhc/cuda t/mhc/gated t/mhc/gradient t/mhc/mhc t/qgemm/cuda t/qgemm/group \
	t/qgemm/linear t/qgemm/qgemm t/quantize/formats t/quantize/quantize t/quat/convert \
	t/quat/cuda t/quat/properties t/quat/quat t/quat_gemm/quat_gemm t/quat_layer/quat_layer \
	t/quat_layer/recurrent t/vlut/append t/vlut/cuda t/vlut/epilogue t/vlut/label
HZ_TESTS_SH = \
	t/abi.t t/cli.t t/examples.t t/headers.t t/link.t t/manual.t t/model.t t/run.t t/static.t t/symbols.t
HZ_EXAMPLES = doc/examples/hadamard doc/examples/kv_cache doc/examples/lattice doc/examples/linear doc/examples/mhc doc/examples/mhc_checkpoint \
	doc/examples/minimal doc/examples/qgemm doc/examples/quat_layer
check_PROGRAMS = $(HZ_TESTS_C) $(HZ_EXAMPLES) doc/examples/encoder/encode
dist_check_SCRIPTS = $(HZ_TESTS_SH)
noinst_HEADERS += \
	t/core/calls.def t/core/calls.h t/core/cuda_calls.h t/core/dev.h t/core/fakecuda.h \
	t/core/fuzz.h t/core/isa.h t/core/launches.h t/core/meter.h t/core/record.h t/core/ref.h t/core/tap.h t/lattice/lattice.h \
	t/lattice/open.h t/lattice/pair.h t/lattice/ref.h t/lattice/vectors.h t/mhc/mhc.h \
	t/mhc/ref.h t/qgemm/qgemm.h t/qgemm/ref.h \
	t/quantize/quantize.h t/quat/quat.h t/quat_layer/quat_layer.h t/vlut/vlut.h
EXTRA_DIST += t/core/fakecuda.c t/core/proxycuda.c t/core/malloc.c t/cli.sh t/tap.sh \
	t/corpus/args t/corpus/codes t/corpus/model t/corpus/npy t/definitions.py t/definitions/__init__.py \
	t/definitions/common.py t/definitions/hadamard.py t/definitions/lattice.py \
	t/definitions/linear.py t/definitions/mhc.py t/definitions/qgemm.py t/definitions/quat.py \
	t/definitions/quat_layer.py t/definitions/refusals.py t/definitions/vlut.py \
	t/core/launches.golden
LDADD = libhz.la
# libtool -static: real programs, which valgrind and emulators can run, not wrapper scripts.
AM_LDFLAGS = -static $(OPENMP_CFLAGS)

# Programs of several files; each other is made of the one file of its name.
t_core_args_SOURCES = t/core/args.c t/core/calls.c t/core/scene.c
t_core_cuda_SOURCES = t/core/cuda.c tools/core/peak.c
t_core_faults_SOURCES = t/core/faults.c t/core/calls.c t/core/scene.c
t_core_exceptions_SOURCES = t/core/exceptions.c t/core/calls.c t/core/scene.c
t_core_grid_SOURCES = t/core/grid.c tools/core/grid.c
t_core_fuzz_args_SOURCES = t/core/fuzz_args.c t/core/calls.c t/core/scene.c
encoder_sources = doc/examples/encoder/encoder.c doc/examples/encoder/weights.c \
	doc/examples/encoder/wordpiece.c
doc_examples_encoder_encode_SOURCES = doc/examples/encoder/encode.c $(encoder_sources)
doc_examples_encoder_encode_CFLAGS = $(AM_CFLAGS) $(OPENMP_CFLAGS)
t_linear_encoder_SOURCES = t/linear/encoder.c $(encoder_sources)
t_linear_encoder_CFLAGS = $(AM_CFLAGS) $(OPENMP_CFLAGS)
# The readers of the command, without the rest of it
model_sources = tools/core/gguf.c tools/core/json.c tools/core/model.c tools/core/npy.c \
	tools/core/safetensors.c
t_core_fuzz_model_SOURCES = t/core/fuzz_model.c $(model_sources)
t_core_fuzz_model_CFLAGS = $(AM_CFLAGS) $(JANSSON_CFLAGS)
t_core_fuzz_model_LDADD = libhz.la $(JANSSON_LIBS)
t_core_model_SOURCES = t/core/model.c $(model_sources)
t_core_model_CFLAGS = $(AM_CFLAGS) $(JANSSON_CFLAGS)
t_core_model_LDADD = libhz.la $(JANSSON_LIBS)
t_core_graphs_SOURCES = t/core/graphs.c t/core/calls.c t/core/scene.c
t_core_large_SOURCES = t/core/large.c t/core/calls.c t/core/scene.c
t_core_launches_SOURCES = t/core/launches.c t/core/calls.c t/core/scene.c
if HAVE_CUDA
t_core_launches_SOURCES += \
	t/core/launches_calls.c t/hadamard/launches.c t/lattice/launches.c t/linear/launches.c t/mhc/launches.c \
	t/qgemm/launches.c t/quantize/launches.c t/quat/launches.c t/quat_conv/launches.c \
	t/quat_gemm/launches.c t/quat_layer/launches.c t/vlut/launches.c
endif
t_core_oom_SOURCES = t/core/oom.c t/core/calls.c t/core/scene.c
t_core_pool_SOURCES = t/core/pool.c t/core/calls.c t/core/scene.c
t_core_pool_CFLAGS = $(AM_CFLAGS) $(OPENMP_CFLAGS)
t_core_rounding_SOURCES = t/core/rounding.c t/core/calls.c t/core/scene.c
t_core_soak_SOURCES = t/core/soak.c t/core/calls.c t/core/scene.c
t_core_thread_count_CFLAGS = $(AM_CFLAGS) $(OPENMP_CFLAGS) $(HWLOC_CFLAGS)
t_core_route_SOURCES = t/core/route.c t/core/calls.c t/core/scene.c
t_core_supports_SOURCES = t/core/supports.c t/core/calls.c t/core/scene.c
t_core_threads_SOURCES = t/core/threads.c t/core/calls.c t/core/scene.c
t_core_threads_CFLAGS = $(AM_CFLAGS) $(OPENMP_CFLAGS)

# Those that are more than a program, or need other libraries, t/examples.t and t/static.t build.
exampledir = $(docdir)/examples
exampleappdir = $(docdir)/examples/app
dist_example_DATA = $(HZ_EXAMPLES:%=%.c) doc/examples/dlpack.py doc/examples/mpi.c \
	doc/examples/stream.c
dist_exampleapp_DATA = doc/examples/app/CMakeLists.txt doc/examples/app/Makefile \
	doc/examples/app/app.c
exampleencoderdir = $(docdir)/examples/encoder
dist_exampleencoder_DATA = $(encoder_sources) doc/examples/encoder/Makefile \
	doc/examples/encoder/README.md doc/examples/encoder/compare.py \
	doc/examples/encoder/encode.c doc/examples/encoder/encoder.h \
	doc/examples/encoder/requirements.txt

# A plain rule: libtool builds no module under --disable-shared.
check_DATA = t/core/fakecuda.so t/core/malloc.so t/core/proxycuda.so
CLEANFILES += $(check_DATA)
$(check_DATA): t/core/%.so: t/core/%.c t/core/fakecuda.h gpu/runtime/cuabi.h
	@$(MKDIR_P) t/core
	$(AM_V_CCLD)$(CC) $(DEFS) $(AM_CPPFLAGS) $(CPPFLAGS) $(HZ_WARNINGS) -O1 -g -fPIC -shared \
		-o $@ $(top_srcdir)/t/core/$*.c -ldl -lpthread

TESTS = $(HZ_TESTS_C) $(HZ_TESTS_SH)
TEST_EXTENSIONS = .t
LOG_DRIVER = env AM_TAP_AWK='$(AWK)' $(SHELL) $(top_srcdir)/build-aux/tap-driver.sh
T_LOG_DRIVER = $(LOG_DRIVER)
T_LOG_COMPILER = $(SHELL)
AM_TESTS_ENVIRONMENT = \
	srcdir='$(srcdir)'; top_srcdir='$(top_srcdir)'; top_builddir='$(top_builddir)'; \
	AWK='$(AWK)'; CC='$(CC)'; CXX='$(CXX)'; NM='$(NM)'; MAKE='$(MAKE)'; \
	PKG_CONFIG='$(PKG_CONFIG)'; \
	HURWITZ='$(abs_top_builddir)/hurwitz$(EXEEXT)'; cross_compiling='$(cross_compiling)'; \
	export srcdir top_srcdir top_builddir AWK CC CXX NM PKG_CONFIG MAKE HURWITZ cross_compiling;
EXTRA_DIST += \
	t/README.md t/core/README.md t/hadamard/README.md t/lattice/README.md t/linear/README.md t/mhc/README.md \
	t/qgemm/README.md t/quantize/README.md t/quat/README.md t/quat_conv/README.md \
	t/quat_gemm/README.md t/quat_layer/README.md t/vlut/README.md
