# The kernels: one fat binary a .cu file, all embedded by image.S. Without nvcc there are none, and
# cuda_kernels_load() says so. CUDA_TARGETS: what to build for.
CUDA_TARGETS ?= -gencode arch=compute_90,code=[sm_90,compute_90]
CUDA_FLAGS := -std=c++17 -O3 -fmad=false -Xfatbin=-compress-all -I$(S)src -I$(S)src/coll/cuda
FATBINS := $(if $(NVCC),$(patsubst $(S)%.cu,$(O)/obj/%.fatbin,$(wildcard $(S)src/coll/cuda/*.cu)))

$(O)/obj/%.fatbin: $(S)%.cu $(O)/obj/cuda_flags
	$(call say,NVCC,$<)
	@mkdir -p $(@D)
	$(Q)$(NVCC) -fatbin $(CUDA_TARGETS) $(CUDA_FLAGS) -MD -MP -MF $(@:.fatbin=.d) -o $@ $<
$(eval $(call stamp,$(O)/obj/cuda_flags,$$(NVCC) $$(CUDA_TARGETS) $$(CUDA_FLAGS)))

$(O)/obj/src/coll/cuda/image.o: $(S)src/coll/cuda/image.S $(FATBINS) $(O)/obj/flags
	$(call say,AS,$<)
	@mkdir -p $(@D)
	$(Q)$(CC) -fPIC $(if $(FATBINS),-DCUDA_FATBINS -Wa$(comma)-I$(O)/obj/src/coll/cuda) -c -o $@ $<
-include $(FATBINS:.fatbin=.d)
