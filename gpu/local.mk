# local.mk - gpu/: launchers, and device code, one image per .cu file
# SPDX-License-Identifier: BSD-2-Clause

libhz_la_SOURCES += \
	gpu/hadamard/base.c gpu/hadamard/columns.c gpu/hadamard/contiguous.c gpu/hadamard/images.c \
	gpu/hadamard/quantize.c gpu/hadamard/routes.c gpu/hadamard/rows.c gpu/hadamard/segments.c \
	gpu/hadamard/strided.c gpu/lattice/closest_point.c gpu/lattice/common.c \
	gpu/lattice/contiguous_d4_e8.c gpu/lattice/generic.c gpu/lattice/images.c \
	gpu/lattice/routes.c gpu/linear/images.c gpu/linear/linear.c gpu/mhc/coef.c gpu/mhc/coef_bwd.c gpu/mhc/coef_bwd_fused.c gpu/mhc/coef_bwd_wgmma.c \
	gpu/mhc/coef_generic.c gpu/mhc/coef_generic_bwd.c gpu/mhc/coef_input_fused.c \
	gpu/mhc/coef_gemv.c gpu/mhc/coef_mma.c gpu/mhc/coef_persistent.c gpu/mhc/coef_small_batch.c gpu/mhc/coef_splitk.c gpu/mhc/coef_wgmma.c \
	gpu/mhc/common.c \
	gpu/mhc/gated.c gpu/mhc/gated_bwd_wgmma.c gpu/mhc/gated_cluster.c \
	gpu/mhc/gated_fused.c gpu/mhc/gated_gemv.c gpu/mhc/gated_wgmma.c \
	gpu/mhc/images.c gpu/mhc/mix.c gpu/mhc/mix_bwd.c gpu/mhc/routes.c gpu/mhc/sinkhorn.c \
	gpu/qgemm/group.c gpu/qgemm/images.c gpu/qgemm/linear.c gpu/qgemm/matrices.c gpu/qgemm/mma_sync.c \
	gpu/qgemm/pack.c gpu/qgemm/routes.c gpu/qgemm/skinny_splitk.c gpu/qgemm/wgmma.c \
	gpu/quantize/contiguous.c gpu/quantize/dims.c gpu/quantize/formats.c gpu/quantize/hadamard_chunked.c \
	gpu/quantize/images.c gpu/quantize/microscaling.c gpu/quantize/minmax.c gpu/quantize/routes.c gpu/quantize/strided.c \
	gpu/quat/images.c gpu/quat/quat.c gpu/quat/routes.c gpu/quat_conv/common.c \
	gpu/quat_conv/depthwise.c gpu/quat_conv/gemm16.c gpu/quat_conv/grouped.c \
	gpu/quat_conv/images.c gpu/quat_conv/implicit_gemm8.c gpu/quat_conv/routes.c \
	gpu/quat_conv/taps_to_channels.c gpu/quat_conv/wgrad8.c gpu/quat_gemm/gemv.c \
	gpu/quat_gemm/images.c gpu/quat_gemm/operands.c gpu/quat_gemm/pack_planar.c \
	gpu/quat_gemm/routes.c gpu/quat_gemm/simt_f32.c gpu/quat_gemm/wgmma.c \
	gpu/quat_gemm/wgmma_in_place.c \
	gpu/quat_layer/images.c gpu/quat_layer/pool.c gpu/quat_layer/recurrent.c gpu/quat_layer/routes.c \
	gpu/quat_layer/steps.c gpu/runtime/cuda.c gpu/runtime/unpack.c gpu/vlut/append.c gpu/vlut/bias_act.c gpu/vlut/common.c gpu/vlut/d4_bitfield.c \
	gpu/vlut/d4_f16_skinny.c gpu/vlut/d4_f16_wgmma.c gpu/vlut/decoded_wgmma.c gpu/vlut/e8_bitplane.c gpu/vlut/generic.c \
	gpu/vlut/images.c gpu/vlut/label.c gpu/vlut/pack.c gpu/vlut/routes.c gpu/vlut/table_f16_skinny.c \
	gpu/vlut/table_s8_skinny.c gpu/vlut/table_wgmma.c gpu/vlut/via_f16.c gpu/vlut/via_qgemm.c
noinst_HEADERS += \
	gpu/device/base.cuh gpu/device/cluster.cuh gpu/device/cp_async.cuh gpu/device/decoded_gemm.cuh \
	gpu/device/decoded_gemm.h gpu/device/dtype.cuh \
	gpu/device/mbarrier.cuh gpu/device/mma.cuh gpu/device/pdl.cuh gpu/device/reduce.cuh \
	gpu/device/shared.cuh gpu/device/tma.cuh gpu/device/wgmma_f16.cuh gpu/device/wgmma_s8.cuh \
	gpu/hadamard/base_f32.cuh gpu/hadamard/base_mma.cuh gpu/hadamard/butterflies.cuh \
	gpu/hadamard/contiguous.cuh gpu/hadamard/contiguous.h gpu/hadamard/factors.cuh gpu/hadamard/hadamard.h \
	gpu/hadamard/launch.h gpu/hadamard/quantize.h gpu/hadamard/quantize_epilogue.cuh \
	gpu/hadamard/segments.h gpu/hadamard/shared_rows.cuh gpu/hadamard/strided.cuh \
	gpu/kernels.def \
	gpu/lattice/closest_point.cuh \
	gpu/lattice/closest_point.h gpu/lattice/contiguous_d4_e8.h gpu/lattice/e8_tables.cuh \
	gpu/lattice/generic.cuh gpu/lattice/lattice.h gpu/lattice/launch.h \
	gpu/lattice/overload.cuh gpu/lattice/points_s8.cuh gpu/lattice/shaped_blocks.cuh gpu/lattice/shaped_points.cuh gpu/linear/linear.h gpu/mhc/coef.cuh gpu/mhc/coef.h gpu/mhc/coef_bwd_fused.h \
	gpu/mhc/coef_input_fused.h gpu/mhc/coef_lanes.cuh gpu/mhc/coef_persistent.h gpu/mhc/coef_rows.cuh gpu/mhc/sinkhorn.cuh gpu/mhc/coef_small_batch.h gpu/mhc/coef_splitk.h \
	gpu/mhc/coef_wgmma.h gpu/mhc/coef_bwd_wgmma.h \
	gpu/mhc/launch.h gpu/mhc/mhc.cuh gpu/mhc/mhc.h gpu/qgemm/epilogue.cuh gpu/qgemm/group.cuh gpu/qgemm/group.h gpu/qgemm/group_one_row.cuh gpu/qgemm/group_gemv.cuh gpu/qgemm/group_results.cuh gpu/qgemm/launch.h \
	gpu/mhc/gated.h \
	gpu/mhc/gated_bwd_wgmma.h \
	gpu/mhc/gated_fused.h \
	gpu/mhc/gated_cluster.h \
	gpu/mhc/gated_gemv.h \
	gpu/mhc/gated_hidden.cuh \
	gpu/mhc/gated_tile.cuh \
	gpu/mhc/gated_wgmma.h \
	gpu/qgemm/qgemm.h gpu/qgemm/skinny_splitk.cuh gpu/quantize/formats.h gpu/quantize/launch.h \
	gpu/quantize/microscaling.cuh gpu/quantize/microscaling.h \
	gpu/quantize/minmax.cuh gpu/quantize/prologue.cuh gpu/quantize/quantize.cuh \
	gpu/quantize/quantize.h gpu/quantize/strided.cuh gpu/quat/contiguous.cuh \
	gpu/quat/convert.h gpu/quat/launch.h \
	gpu/quat/ops.cuh gpu/quat/planar.h gpu/quat/quat.h gpu/quat/strided.cuh \
	gpu/quat_conv/depthwise.h gpu/quat_conv/gemm16.cuh gpu/quat_conv/gemm16.h \
	gpu/quat_conv/im2col.h gpu/quat_conv/implicit_gemm8.cuh gpu/quat_conv/launch.h \
	gpu/quat_conv/mainloop.cuh gpu/quat_conv/quat_conv.h gpu/quat_conv/wgrad16.cuh \
	gpu/quat_conv/wgrad8.h \
	gpu/quat_gemm/epilogue.cuh gpu/quat_gemm/gemv.h gpu/quat_gemm/gemv_mma.cuh gpu/quat_gemm/launch.h \
	gpu/quat_gemm/pack_planar.cuh gpu/quat_gemm/quat_gemm.h gpu/quat_gemm/simt_f32.h \
	gpu/quat_gemm/wgmma.h gpu/quat_gemm/wgmma_in_place.h gpu/quat_layer/launch.h gpu/quat_layer/pool.h \
	gpu/quat_layer/quat_layer.cuh gpu/quat_layer/quat_layer.h gpu/quat_layer/recurrent.cuh \
	gpu/quat_layer/recurrent.h gpu/quat_layer/recurrent_cells.cuh gpu/runtime/cuabi.h \
	gpu/runtime/cuda.h gpu/runtime/images.inc gpu/runtime/tensor_map.h gpu/runtime/unpack.h \
	gpu/vlut/append.h gpu/vlut/bias_act.h gpu/vlut/d4_bitfield.cuh gpu/vlut/d4_bitfield.h gpu/vlut/d4_f16_skinny.h \
	gpu/vlut/d4_f16_wgmma.h gpu/vlut/d4_wgmma.cuh gpu/vlut/decoded_wgmma.h gpu/vlut/e8_bitplane.cuh \
	gpu/vlut/e8_bitplane.h gpu/vlut/label.cuh gpu/vlut/label.h \
	gpu/vlut/label_skinny.cuh gpu/vlut/label_wgmma.cuh gpu/vlut/launch.h \
	gpu/vlut/table_f16_skinny.cuh gpu/vlut/table_f16_skinny.h gpu/vlut/table_s8.cuh \
	gpu/vlut/table_s8_skinny.h gpu/vlut/table_wgmma.cuh gpu/vlut/table_wgmma.h gpu/vlut/vlut.h

# The images of device code, as in gpu/kernels.def
HZ_CU = \
	gpu/hadamard/base_f32.cu gpu/hadamard/base_mma.cu gpu/hadamard/base_mma_any.cu \
	gpu/hadamard/base_mma_dequantize.cu gpu/hadamard/base_mma_microscaling.cu \
	gpu/hadamard/base_mma_quantize.cu gpu/hadamard/base_split.cu gpu/hadamard/columns_16bit.cu gpu/hadamard/contiguous.cu \
	gpu/hadamard/row_segments.cu \
	gpu/hadamard/quantize.cu gpu/hadamard/rows.cu gpu/lattice/closest_point.cu \
	gpu/lattice/contiguous_d4_e8.cu gpu/lattice/cube.cu \
	gpu/lattice/generic.cu gpu/lattice/generic_basis.cu gpu/lattice/rows.cu gpu/lattice/shaped.cu \
	gpu/linear/decode.cu gpu/mhc/coef_bwd_fused.cu \
	gpu/mhc/coef_gemv.cu gpu/mhc/coef_generic.cu gpu/mhc/coef_generic_bwd.cu gpu/mhc/coef_input_fused.cu \
	gpu/mhc/coef_mma.cu gpu/mhc/coef_persistent.cu gpu/mhc/coef_small_batch.cu gpu/mhc/coef_splitk.cu \
	gpu/mhc/coef_wgmma.cu gpu/mhc/coef_bwd_wgmma.cu gpu/mhc/mix.cu \
	gpu/mhc/mix_bwd.cu gpu/mhc/sinkhorn.cu gpu/mhc/sinkhorn_4.cu gpu/mhc/sinkhorn_8.cu gpu/qgemm/group.cu gpu/qgemm/group_codes.cu gpu/qgemm/group_one_row.cu gpu/qgemm/group_floats.cu gpu/qgemm/group_gemv.cu gpu/qgemm/group_skinny.cu gpu/qgemm/group_wgmma.cu gpu/qgemm/linear_gemv.cu gpu/qgemm/mma_sync.cu \
	gpu/mhc/gated.cu gpu/mhc/gated_bwd_wgmma.cu \
	gpu/mhc/gated_cluster.cu gpu/mhc/gated_fused.cu gpu/mhc/gated_gemv.cu gpu/mhc/gated_wgmma.cu \
	gpu/qgemm/skinny_splitk.cu gpu/qgemm/wgmma.cu gpu/quantize/quantize.cu \
	gpu/quat/convert.cu \
	gpu/quantize/formats.cu gpu/quantize/microscaling.cu \
	gpu/quat/elementwise.cu gpu/quat/planar.cu gpu/quat/reduce.cu gpu/quat_conv/depthwise.cu \
	gpu/quat_conv/grouped.cu gpu/quat_conv/im2col.cu gpu/quat_conv/implicit_gemm16.cu \
	gpu/quat_conv/implicit_gemm8.cu gpu/quat_conv/implicit_gemm8_f32x3.cu \
	gpu/quat_conv/wgrad16.cu gpu/quat_conv/wgrad16_f32x2.cu gpu/quat_conv/wgrad8.cu \
	gpu/quat_gemm/gemv.cu \
	gpu/quat_gemm/pack_planar.cu gpu/quat_gemm/simt_f32.cu gpu/quat_gemm/wgmma.cu \
	gpu/quat_gemm/wgmma_in_place.cu \
	gpu/quat_layer/batchnorm_contiguous.cu gpu/quat_layer/pool.cu gpu/quat_layer/quat_layer.cu \
	gpu/quat_layer/recurrent.cu gpu/quat_layer/recurrent_fused.cu \
	gpu/quat_layer/recurrent_persistent.cu gpu/quat_layer/recurrent_wgmma.cu \
	gpu/vlut/append.cu gpu/vlut/bias_act.cu gpu/vlut/closest_point_skinny.cu gpu/vlut/d4_bitfield.cu gpu/vlut/d4_f16_skinny.cu \
	gpu/vlut/d4_f16_wgmma.cu gpu/vlut/d4_wgmma.cu gpu/vlut/e8_bitplane.cu gpu/vlut/generic.cu \
	gpu/vlut/label_pack.cu gpu/vlut/label_skinny.cu gpu/vlut/label_wgmma.cu \
	 gpu/vlut/table_f16_skinny.cu gpu/vlut/table_s8_skinny.cu gpu/vlut/table_wgmma.cu \
	tools/core/peak.cu
EXTRA_DIST += $(HZ_CU) tools/pack-fatbin

if HAVE_CUDA
HZ_FATBINS = $(HZ_CU:.cu=.fatbin)
CLEANFILES += $(HZ_FATBINS) $(HZ_FATBINS:=.d) gpu/flags
# gpu/<family>/images.c takes the family's fatbins in by .incbin, which -MD does not see. The objects
# are named by a variable, since automake leaves out its own rule of a target that has one here.
HZ_IMAGES = libhz_la-images.lo
gpu/hadamard/$(HZ_IMAGES): $(filter gpu/hadamard/%,$(HZ_FATBINS))
gpu/lattice/$(HZ_IMAGES): $(filter gpu/lattice/%,$(HZ_FATBINS))
gpu/linear/$(HZ_IMAGES): $(filter gpu/linear/%,$(HZ_FATBINS))
gpu/mhc/$(HZ_IMAGES): $(filter gpu/mhc/%,$(HZ_FATBINS))
gpu/qgemm/$(HZ_IMAGES): $(filter gpu/qgemm/%,$(HZ_FATBINS))
gpu/quantize/$(HZ_IMAGES): $(filter gpu/quantize/%,$(HZ_FATBINS))
gpu/quat/$(HZ_IMAGES): $(filter gpu/quat/%,$(HZ_FATBINS))
gpu/quat_conv/$(HZ_IMAGES): $(filter gpu/quat_conv/%,$(HZ_FATBINS))
gpu/quat_gemm/$(HZ_IMAGES): $(filter gpu/quat_gemm/%,$(HZ_FATBINS))
gpu/quat_layer/$(HZ_IMAGES): $(filter gpu/quat_layer/%,$(HZ_FATBINS))
gpu/vlut/$(HZ_IMAGES): $(filter gpu/vlut/%,$(HZ_FATBINS))
# Of hurwitz and of t/core/cuda
HZ_PEAK = tools/core/hurwitz-peak.o tools/core/peak.o
$(HZ_PEAK): tools/core/peak.fatbin
if HAVE_LZMA
HZ_PACK = $(top_srcdir)/tools/pack-fatbin
endif
# What a fatbin is made of, nvcc writes beside it. gpu/flags is new only if it says something else.
-include $(HZ_FATBINS:=.d)
$(HZ_FATBINS): gpu/flags $(HZ_PACK)
gpu/flags: Makefile
	@$(MKDIR_P) gpu
	@echo '$(NVCC) $(HZ_NVCC_ARCH) $(HZ_NVCC_COMPRESS) $(NVCCFLAGS)' >$@.tmp
	@if cmp -s $@.tmp $@; then rm $@.tmp; else mv $@.tmp $@; fi
%.fatbin: %.cu
	@$(MKDIR_P) $(@D)
	$(AM_V_GEN)$(NVCC) --fatbin -std=c++17 $(HZ_NVCC_ARCH) $(HZ_NVCC_COMPRESS) \
		-I$(top_srcdir)/include -I$(top_srcdir) $(NVCCFLAGS) -MMD -MP -MF $@.d -MT $@ \
		-o $@.tmp $<
if HAVE_LZMA
	$(AM_V_at)$(HZ_PACK) $@.tmp $@.packed && mv $@.packed $@.tmp
endif
	$(AM_V_at)mv $@.tmp $@
endif
EXTRA_DIST += \
	gpu/device/README.md gpu/hadamard/README.md gpu/lattice/README.md gpu/linear/README.md gpu/mhc/README.md \
	gpu/qgemm/README.md gpu/quantize/README.md gpu/quat/README.md gpu/quat_conv/README.md \
	gpu/quat_gemm/README.md gpu/quat_layer/README.md gpu/runtime/README.md gpu/vlut/README.md
