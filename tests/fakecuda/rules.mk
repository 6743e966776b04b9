# Tests that run collectives over the double link the kernels, compiled for threads of the CPU by
# what $(CC) has of C++; without that they are left out.
KERNEL_TESTS := $(filter %/comm_cuda_test %/comm_cuda_calls_test %/comm_cuda_fail_test \
	%/perf_cuda_test %/devcomm_cuda_test %/multicast_cuda_test,$(RANKS))
HAVE_CXX := $(shell echo | $(CC) -fsyntax-only -x c++ - 2>/dev/null && echo 1)
CXX_FLAGS = $(filter-out -std=% $(WARN),$(FLAGS)) -std=c++17 -O1 -fno-exceptions -fno-rtti \
	-fno-threadsafe-statics -w -DDEV_CTA_THREADS=2 -I$(S)src/coll/cuda -I$(S)tests/gpu
ifeq ($(HAVE_CXX),)
$(if $(filter check% run-check tests,$(MAKECMDGOALS)),$(warning no C++ compiler: without $(KERNEL_TESTS)))
RANKS := $(filter-out $(KERNEL_TESTS),$(RANKS))
endif
$(O)/obj/tests/fakecuda/kernels.o: $(S)tests/fakecuda/kernels.cc $(O)/obj/flags
	$(call say,C++,$<)
	@mkdir -p $(@D)
	$(Q)$(CC) -x c++ $(CXX_FLAGS) $(INCLUDES) -MMD -MP -c -o $@ $<
$(KERNEL_TESTS): $(O)/obj/tests/fakecuda/kernels.o
-include $(O)/obj/tests/fakecuda/kernels.d
# How kernels wait for each other, by themselves.
KERNELS_CPU := $(if $(HAVE_CXX),$(O)/tests/stress/kernels_cpu)
$(O)/tests/stress/kernels_cpu: $(S)tests/gpu/kernels_cpu.cc $(O)/obj/flags
	$(call say,C++,$<)
	@mkdir -p $(@D)
	$(Q)$(CC) -x c++ $(CXX_FLAGS) -DEMULATE_FEW $(INCLUDES) -MMD -MP -MF $@.d -o $@ $< $(LDFLAGS) -lm
-include $(O)/tests/stress/kernels_cpu.d
# Objects after the archive: once more.
$(O)/tests/ranks/perf_cuda_test: private CRITERION_LIBS += $(LIB).a
$(O)/tests/ranks/perf_cuda_test: $(PERF_COMMON)
$(O)/obj/tests/ranks/perf_cuda_test.o: OBJ_FLAGS := -I$(S)tests -I$(S)perf $(CRITERION_CFLAGS)
