# local.mk - tools/: the command line
# SPDX-License-Identifier: BSD-2-Clause

bin_PROGRAMS = hurwitz
hurwitz_SOURCES = \
	tools/core/bench.c tools/core/bench_compare.c tools/core/bench_single.c \
	tools/core/bench_threads.c tools/core/bench_grid.c tools/core/check.c tools/core/gguf.c \
	tools/core/grid.c tools/core/hurwitz.c tools/core/info.c tools/core/inspect.c \
	tools/core/json.c tools/core/model.c tools/core/npy.c tools/core/output.c tools/core/peak.c tools/core/run.c \
	tools/core/safetensors.c tools/demo/demo.c tools/demo/forms.c \
	tools/demo/hadamard.c tools/demo/lattice.c tools/demo/linear.c tools/demo/mhc.c tools/demo/plot.c \
	tools/demo/qgemm.c tools/demo/quat.c tools/demo/story.c tools/demo/train.c \
	tools/hadamard/bench.c tools/hadamard/check.c tools/hadamard/run.c tools/lattice/bench.c \
	tools/lattice/bench_quality.c tools/lattice/check.c tools/lattice/run.c \
	tools/linear/bench.c tools/linear/check.c tools/linear/run.c \
	tools/mhc/bench.c tools/mhc/check.c tools/mhc/run.c tools/mhc/run_coef.c \
	tools/qgemm/bench.c tools/qgemm/check.c tools/qgemm/run.c tools/quantize/choose.c \
	tools/quantize/dequantize.c tools/quantize/quantize.c tools/quantize/write.c \
	tools/quat/bench.c tools/quat/check.c tools/quat/run.c \
	tools/quat_layer/bench.c tools/quat_layer/run.c tools/vlut/bench.c tools/vlut/run.c
noinst_HEADERS += \
	tools/core/bench.h tools/core/bench_grid.h tools/core/check.h tools/core/grid.h \
	tools/core/model.h tools/core/npy.h tools/core/output.h \
	tools/core/peak.h tools/core/run.h tools/core/tool.h tools/demo/demo.h \
	tools/demo/story.h tools/demo/terrain.h tools/mhc/run.h \
	tools/quantize/quantize.h
hurwitz_CFLAGS = $(AM_CFLAGS) $(OPENMP_CFLAGS) $(JANSSON_CFLAGS)
hurwitz_LDADD = libhz.la $(JANSSON_LIBS)
hurwitz_LDFLAGS = -static
bashcompletion_DATA = tools/hurwitz.bash-completion
EXTRA_DIST += $(bashcompletion_DATA)
install-data-hook:
	cd $(DESTDIR)$(bashcompletiondir) && mv -f hurwitz.bash-completion hurwitz
# Pages of doc/ are installed beside README.md: links to them and from them lose the folder.
	cd $(DESTDIR)$(docdir) && for page in *.md; do \
		sed -e 's,](doc/,](,g' -e 's,](\.\./,](,g' $$page >$$page.tmp && \
			cat $$page.tmp >$$page && rm -f $$page.tmp || exit; \
	done
uninstall-hook:
	rm -f $(DESTDIR)$(bashcompletiondir)/hurwitz
	for d in $(exampleappdir) $(exampleencoderdir) $(exampledir) $(imgdir) $(notesdir) \
		$(performancedir) $(docdir) $(cmakedir); do \
		rmdir $(DESTDIR)$$d 2>/dev/null || :; \
	done
EXTRA_DIST += \
	tools/README.md tools/core/README.md tools/demo/README.md tools/hadamard/README.md \
	tools/lattice/README.md tools/linear/README.md tools/mhc/README.md tools/qgemm/README.md \
	tools/quantize/README.md tools/quat/README.md tools/quat_layer/README.md \
	tools/vlut/README.md
