# local.mk - lib/: argument checks and plans, the same for every device
# SPDX-License-Identifier: BSD-2-Clause

libhz_la_SOURCES += \
	lib/core/context.c lib/core/error.c lib/core/memory.c lib/core/route.c lib/core/status.c lib/core/supports.c \
	lib/core/tensor.c lib/core/threads.c lib/core/topology.c lib/core/workspace.c lib/hadamard/base.c \
	lib/hadamard/hadamard.c lib/hadamard/ops.c lib/lattice/basis.c lib/lattice/code.c \
	lib/lattice/design.c lib/lattice/lattice.c lib/lattice/ops.c lib/lattice/preset.c \
	lib/linear/encode.c lib/linear/format.c lib/linear/linear.c lib/linear/ops.c lib/mhc/check.c \
	lib/mhc/coef.c lib/mhc/gated.c lib/mhc/gated_chain.c lib/mhc/layer.c lib/mhc/mhc.c lib/mhc/ops.c lib/qgemm/group.c lib/qgemm/ops.c \
	lib/qgemm/qgemm.c lib/quantize/check.c lib/quantize/ops.c lib/quantize/quantize.c \
	lib/quat/ops.c lib/quat/quat.c lib/quat_conv/ops.c lib/quat_conv/plan.c \
	lib/quat_conv/quat_conv.c lib/quat_gemm/ops.c lib/quat_gemm/quat_gemm.c \
	lib/quat_layer/batchnorm.c lib/quat_layer/check.c lib/quat_layer/linear.c \
	lib/quat_layer/ops.c lib/quat_layer/plan.c lib/quat_layer/recurrent.c lib/vlut/ops.c lib/vlut/vlut.c
noinst_HEADERS += \
	lib/core/dtype.def lib/core/fp.h lib/core/internal.h lib/core/ops.def lib/core/ops.inc lib/core/route.h lib/core/threads.h \
	lib/hadamard/hadamard.h lib/lattice/lattice.h lib/lattice/lattice_math.h \
	lib/linear/decode.h lib/linear/linear.h lib/mhc/check.h lib/mhc/gated.h \
	lib/mhc/mhc.h lib/mhc/mhc_math.h lib/qgemm/group.h lib/qgemm/qgemm.h lib/qgemm/requant.h lib/quat/convert_math.h \
	lib/quat/quat.h \
	lib/quantize/format.h \
	lib/lattice/label.h \
	lib/lattice/rows.h lib/lattice/shaped.h \
	lib/quat_conv/quat_conv.h lib/quat_conv/slots.inc lib/quat_gemm/quat_gemm.h \
	lib/quat_layer/cell_math.h lib/quat_layer/plan.h lib/quat_layer/quat_layer.h lib/quat_layer/slots.inc \
	lib/quat_layer/step_math.h lib/quat_layer/sums_math.h lib/vlut/vlut.h
EXTRA_DIST += lib/constants.awk lib/hurwitz.abi lib/hurwitz.constants lib/hurwitz.map
EXTRA_DIST += \
	lib/core/README.md lib/hadamard/README.md lib/lattice/README.md lib/linear/README.md lib/mhc/README.md \
	lib/qgemm/README.md lib/quantize/README.md lib/quat/README.md lib/quat_conv/README.md \
	lib/quat_gemm/README.md lib/quat_layer/README.md lib/vlut/README.md
