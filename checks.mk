# checks.mk - builds that look for faults
# SPDX-License-Identifier: BSD-2-Clause

# doc/testing.md says what for. Each is made of the files of the tarball, in a fresh directory,
# checks/TARGET/b. Instrumented or emulated, kernels take long, to compile with -O3 as to run.
.PHONY: check-reproducible check-asan check-asan-clang check-msan check-tsan check-analyzer \
	check-source check-valgrind check-o0 check-lto check-aarch64 check-musl check-fuzz \
	check-afl check-malloc check-all-arch
check_at = rm -rf checks/$@ && $(MKDIR_P) checks/$@/b checks/$@/b2 && \
	$(MAKE) -s distdir distdir=checks/$@/src && cd checks/$@/b
check_build = $(check_at) && ../src/configure --quiet --without-cuda
check_make = HZ_TEST_QUICK=1 $(MAKE) KERNEL_OPT=-O1
level_c = --with-isa=c

# Two builds in two directories are the same bits.
check-reproducible:
	$(check_at) && for at in b b2; do (cd ../$$at && ../src/configure --quiet --enable-shared \
			$(HZ_REPRODUCIBLE) CFLAGS="-O2 -g -ffile-prefix-map=$$PWD=." && \
		$(MAKE) libhurwitz.la hurwitz) || exit; done && \
	for file in .libs/libhurwitz.a .libs/libhurwitz.so hurwitz; do \
		cmp ../b/$$file ../b2/$$file || exit; done
# GCC 13 with a stack protector, Ubuntu's default, puts 64-byte vectors at odd multiples of 32 in
# the frames that it keeps to see use after return, and faults where it stores them.
check-asan:
	+$(check_build) --disable-shared CFLAGS="-O1 -g -fsanitize=address,undefined \
		-fno-sanitize-recover=all -fno-stack-protector" && $(check_make) check
# Clang looks at offsets of pointers, too. Kernels with that or by -O1 take it very long.
check-asan-clang:
	+$(check_build) --disable-shared CC=clang CXX=clang++ $(level_c) CFLAGS="-O1 -g \
		-fsanitize=address,undefined -fno-sanitize-recover=all" && \
		$(check_make) KERNEL_OPT="-O0 -fno-sanitize=pointer-overflow" check
check-msan:
	+$(check_build) --without-hwloc --without-jansson --disable-openmp CC=clang $(level_c) \
		CFLAGS="-O1 -g -fsanitize=memory" && $(check_make) check
# With libomp, whose own synchronisation archer tells of; libgomp's is not seen. On level c, since
# what differs between the levels shares nothing between threads. Not t/core/pool, which has a
# pthread_create() of its own: the sanitizer does not see its threads, and ends the process.
TSAN_TESTS = t/core/context t/hadamard/hadamard t/lattice/lattice t/mhc/mhc t/qgemm/qgemm t/qgemm/linear t/quat_gemm/quat_gemm t/quat_layer/quat_layer \
	t/core/threads t/vlut/vlut
check-tsan:
	+$(check_build) --without-hwloc CC=clang $(level_c) CFLAGS="-O1 -g -fsanitize=thread" && \
		$(check_make) $(TSAN_TESTS) && for test in $(TSAN_TESTS); do \
		HZ_TEST_QUICK=1 TSAN_OPTIONS="ignore_noninstrumented_modules=1 die_after_fork=0" \
		OMP_TOOL_LIBRARIES=$(ARCHER) $$test || exit; done
ARCHER = /usr/lib/llvm-14/lib/libarcher.so
# With -entropic=1 it counts each feature of each input, and is fifty times slower; with -reload=1 it
# looks for new files every second. After each input all counters are looked at, one for each branch:
# kernels would have most, and the checks of each access through a pointer (null, object size,
# alignment), which check-asan and check-asan-clang have, two thirds of the rest: a second of a processor
# is 11000 arguments or codes with them, 17000 arguments or 15000 codes without. Recorded comparisons
# help readers of files alone: of lattice codes half of the time went into them, so that the library has
# none.
FUZZ_RUNS = 100000
FUZZ_TARGETS = args codes model npy
FUZZ_CFLAGS = -O1 -g -fsanitize=fuzzer-no-link,address,undefined -fno-sanitize-recover=all \
	-fno-sanitize=pointer-overflow,null,object-size,alignment
check-fuzz:
	+$(check_build) --without-hwloc --disable-openmp CC=clang $(level_c) \
		CFLAGS="$(FUZZ_CFLAGS)" && \
		$(check_make) KERNEL_OPT="-O1 -fno-sanitize=fuzzer-no-link,undefined" \
			CFLAGS="$(FUZZ_CFLAGS) -fno-sanitize-coverage=trace-cmp" libhz.la && \
		$(check_make) fuzz $(FUZZ_TARGETS:%=t/core/fuzz_%) && \
		for name in $(FUZZ_TARGETS); do \
		mkdir $$name && top_srcdir=../src t/core/fuzz_$$name $$name && \
		t/core/libfuzzer_$$name -max_len=256 -entropic=0 -reload=0 -runs=$(FUZZ_RUNS) $$name || \
			exit; done
# The same by AFL++
AFL_SECONDS = 300
check-afl:
	+$(check_build) --without-hwloc --disable-openmp CC=afl-clang-fast $(level_c) CFLAGS="-O1 \
		-g -fsanitize=address,undefined -fno-sanitize=pointer-overflow" && \
		$(check_make) fuzz $(FUZZ_TARGETS:%=t/core/fuzz_%) && \
		for name in $(FUZZ_TARGETS); do \
		mkdir $$name && top_srcdir=../src t/core/fuzz_$$name $$name && \
		ASAN_OPTIONS=abort_on_error=1:symbolize=0:detect_leaks=0 AFL_SKIP_CPUFREQ=1 \
		AFL_NO_UI=1 AFL_I_DONT_CARE_ABOUT_MISSING_CRASHES=1 AFL_BENCH_UNTIL_CRASH=1 \
		UBSAN_OPTIONS=halt_on_error=1:abort_on_error=1 \
		afl-fuzz -V $(AFL_SECONDS) -t 2000 -i $$name -o $$name.out -- t/core/libfuzzer_$$name && \
		rmdir $$name.out/default/crashes || exit; done
# Without hwloc and OpenMP, which do not stand it.
check-malloc:
	+$(check_build) --without-hwloc --disable-openmp $(level_c) && $(check_make) malloc
# Device code for every architecture of the default list, of which .ci/run builds two, and the tests
# of the CUDA half on the stand-in for the driver
check-all-arch:
	+$(check_at) && ../src/configure --quiet --with-cuda --with-isa=c NVCC="$(NVCC)" \
		--with-cuda-arch="$(HZ_CUDA_ARCH_ALL)" && \
		$(check_make) check TESTS="$(filter %/cuda t/core/cuda% t/core/images t/core/launches,$(HZ_TESTS_C))"
check-o0:
	+$(check_build) CFLAGS=-O0 && $(check_make) check
check-lto:
	+$(check_build) --disable-shared AR=gcc-ar RANLIB=gcc-ranlib NM=gcc-nm \
		CFLAGS="-O3 -flto=auto" && \
		$(check_make) check
check-aarch64:
	+$(check_build) --host=aarch64-linux-gnu --without-hwloc && \
		$(check_make) check LOG_COMPILER="qemu-aarch64 -L /usr/aarch64-linux-gnu"
check-musl:
	+$(check_build) --without-hwloc --disable-openmp CC=musl-gcc && \
		$(check_make) LDFLAGS=-all-static check
# valgrind 3.19 takes a vmovq of level avx2 for an illegal instruction.
check-valgrind:
	HURWITZ_ISA=c HZ_TEST_QUICK=1 $(MAKE) check LOG_COMPILER="valgrind -q --error-exitcode=9 \
		--leak-check=full --errors-for-leak-kinds=definite"
# These print what they take for a fault, which is nothing. They are told what is asserted, and that
# there is code for every GPU. What one is wrong about is left out: .cppcheck and .clang-tidy say
# why; GCC's takes elements of arrays, which loops up to the same number write and read, for not set
# (MSan, valgrind and the compiler look for such), counts the bits of a vector's element wrong, and
# does not know that dup2() gives what is its argument. Micro-kernels are left out of check-source.
check_cpu_c = $(filter-out %/unit.c %/unit_general.c %/unit_transposed.c %/amx.c, \
	$(wildcard $(top_srcdir)/cpu/*/*.c))
ANALYZER = -fanalyzer -Wno-analyzer-use-of-uninitialized-value \
	-Wno-analyzer-shift-count-overflow -Wno-analyzer-fd-leak
check-analyzer:
	+$(check_build) --disable-shared CFLAGS="-O2 -UNDEBUG $(ANALYZER)" && \
		$(MAKE) -s KERNEL_OPT="-O0 -fno-analyzer" libhz.la hurwitz
check-source: config.h
	rm -rf checks/$@ && $(MKDIR_P) checks/$@
	sed 's/HZ_CUDA_90A 0/HZ_CUDA_90A 1/' config.h >checks/$@/config.h
	cppcheck --enable=warning,performance,portability -q --std=c11 --max-configs=4 \
		--suppressions-list=$(top_srcdir)/.cppcheck -DHAVE_CONFIG_H -Ichecks/$@ \
		$(AM_CPPFLAGS) -UNDEBUG $(top_srcdir)/lib $(check_cpu_c) \
		$(top_srcdir)/gpu/*/*.c $(top_srcdir)/tools
	for file in $(top_srcdir)/lib/*/*.c $(check_cpu_c) $(top_srcdir)/gpu/*/*.c \
			$(top_srcdir)/tools/*/*.c; do \
		clang-tidy --quiet $$file -- -std=gnu11 $(OPENMP_CFLAGS) \
			-DHAVE_CONFIG_H -Ichecks/$@ $(AM_CPPFLAGS) -UNDEBUG -O1 2>/dev/null; \
	done

.PHONY: prove bench routes fuzz check-definitions check-oom launches malloc
# The fuzz targets for libFuzzer, for which CC is clang and CFLAGS have -fsanitize=fuzzer-no-link
EXTRA_PROGRAMS = t/core/libfuzzer_args t/core/libfuzzer_codes t/core/libfuzzer_model \
	t/core/libfuzzer_npy
CLEANFILES += $(EXTRA_PROGRAMS)
t_core_libfuzzer_args_SOURCES = $(t_core_fuzz_args_SOURCES)
t_core_libfuzzer_args_CPPFLAGS = $(AM_CPPFLAGS) -DHZ_FUZZ
t_core_libfuzzer_args_LDFLAGS = $(AM_LDFLAGS) -fsanitize=fuzzer
t_core_libfuzzer_codes_SOURCES = t/core/fuzz_codes.c
t_core_libfuzzer_codes_CPPFLAGS = $(AM_CPPFLAGS) -DHZ_FUZZ
t_core_libfuzzer_codes_LDFLAGS = $(AM_LDFLAGS) -fsanitize=fuzzer
t_core_libfuzzer_model_SOURCES = $(t_core_fuzz_model_SOURCES)
t_core_libfuzzer_model_CPPFLAGS = $(AM_CPPFLAGS) -DHZ_FUZZ
t_core_libfuzzer_model_CFLAGS = $(t_core_fuzz_model_CFLAGS)
t_core_libfuzzer_model_LDADD = $(t_core_fuzz_model_LDADD)
t_core_libfuzzer_model_LDFLAGS = $(AM_LDFLAGS) -fsanitize=fuzzer
t_core_libfuzzer_npy_SOURCES = t/core/fuzz_npy.c
t_core_libfuzzer_npy_CPPFLAGS = $(AM_CPPFLAGS) -DHZ_FUZZ
t_core_libfuzzer_npy_LDFLAGS = $(AM_LDFLAGS) -fsanitize=fuzzer
fuzz: $(EXTRA_PROGRAMS)
# The command against definitions in NumPy, which `make check` does not ask for
PYTHON = python3
check-definitions: hurwitz
	$(PYTHON) $(top_srcdir)/t/definitions.py $(DEFINITIONS) ./hurwitz
# Memory and driver calls that fail, one by one, through every function
check-oom: t/core/oom$(EXEEXT) $(check_DATA)
	t/core/oom
# The golden trace of t/core/launches, of a build with code for sm_90a
launches: t/core/launches$(EXEEXT) $(check_DATA)
	t/core/launches --print >t/core/launches.golden.tmp
	mv t/core/launches.golden.tmp $(top_srcdir)/t/core/launches.golden
# All allocations of a process, the C library's among them: no signal ends it.
malloc: $(HZ_EXAMPLES:%=%$(EXEEXT)) t/core/malloc.so
	@for program in $(HZ_EXAMPLES:%=%$(EXEEXT)); do \
		k=0; status=0; while test $$status -lt 128 && test $$status -ne 77; do \
			k=`expr $$k + 1`; HZ_MALLOC_FAIL=$$k LD_PRELOAD=$$PWD/t/core/malloc.so \
				$$program >/dev/null 2>&1; status=$$?; \
		done; \
		echo "$$program: allocation $$k, status $$status"; \
		test $$status -eq 77 || exit 1; \
	done
prove: $(check_PROGRAMS) $(check_DATA) all
	$(AM_TESTS_ENVIRONMENT) prove -e '' $(HZ_TESTS_C) && \
		prove -e '$(SHELL)' $(HZ_TESTS_SH:%=$(srcdir)/%)
bench: hurwitz
	./hurwitz bench
# The page of routes; t/cli.t compares.
routes: hurwitz
	{ ./hurwitz info --routes && printf '\n<!-- SPDX-License-Identifier: BSD-2-Clause -->\n'; } \
		>$(top_srcdir)/doc/routes.md

# ---- The same machine code -----------------------------------------------------------------------

# Proof that moved or renamed code compiles to what it was: the hashes of all kernels and of all
# functions, same-code/list. CFLAGS need -ffunction-sections. Of .cu files the list is all that has
# to be known; a cubin of each for each of SAME_CODE_ARCHS, and what it depends on, go to same-code/.
#	make CFLAGS="-O2 -g -ffunction-sections" code-hashes, before and after, then
#	make check-same-code BEFORE=list-of-before
SAME_CODE_ARCHS = 80 90a
SAME_CODE_CU = $(HZ_CU)
# image.c has no code but data, for which all fatbins would have to be there.
SAME_CODE_OBJECTS = $(filter-out $(HZ_IMAGE),$(libhz_la_OBJECTS) $(libhz_c_la_OBJECTS) \
	$(libhz_avx2_la_OBJECTS) $(libhz_avx512_la_OBJECTS) $(libhz_vnni_la_OBJECTS) \
	$(libhz_amx_la_OBJECTS) $(libhz_neon_la_OBJECTS)) $(hurwitz_OBJECTS)
.PHONY: code-hashes check-same-code
code-hashes: same-code/list
if HAVE_CUDA
same-code/%.list: %.cu gpu/flags tools/same-code
	@$(MKDIR_P) $(@D)
	@rm -f same-code/$*.*.cubin
	$(AM_V_GEN)for arch in $(SAME_CODE_ARCHS); do \
		$(NVCC) --cubin -std=c++17 -gencode arch=compute_$$arch,code=sm_$$arch \
			-I$(top_srcdir)/include -I$(top_srcdir) $(NVCCFLAGS) \
			-MMD -MP -MF same-code/$*.d -MT $@ -o same-code/$*.$$arch.cubin $< || exit; \
	done
	$(AM_V_at)$(top_srcdir)/tools/same-code cuda same-code/$*.*.cubin >$@.tmp && mv $@.tmp $@
SAME_CODE_KERNELS = $(SAME_CODE_CU:%.cu=same-code/%.list)
-include $(SAME_CODE_CU:%.cu=same-code/%.d)
endif
same-code/list: $(SAME_CODE_KERNELS) $(SAME_CODE_OBJECTS)
	@$(MKDIR_P) same-code
	$(AM_V_GEN)$(top_srcdir)/tools/same-code cpu $(SAME_CODE_OBJECTS:.lo=.$(OBJEXT)) >same-code/cpu.list
	$(AM_V_at)cat same-code/cpu.list $(SAME_CODE_KERNELS) | LC_ALL=C sort >$@.tmp
	$(AM_V_at)mv $@.tmp $@
check-same-code: same-code/list
	$(top_srcdir)/tools/same-code --compare $(BEFORE) same-code/list
EXTRA_DIST += tools/same-code tools/check-wgmma
