# symccl. `make help` lists the targets. Everything made lies under $(O).
#
#   make                      in the tree: build/
#   make O=/tmp/b             somewhere else
#   make -f ../symccl/Makefile    out of tree: ./build
#
# Variables: V=1 shows commands, W=1 makes warnings errors, D=asan,ubsan or D=tsan builds with
# sanitizers (in build-asan-ubsan/, build-tsan/), CC, CFLAGS, LDFLAGS, PREFIX, DESTDIR,
# CONFIGURE_ARGS (kept and replayed), CHECK_JOBS, TEST_TIMEOUT, SYMCCL_NO_INSTALL=1.
# SRC='src/*.c src/mem/*.c' puts only these into the libraries, for work on one part.

comma := ,
S := $(patsubst ./%,%,$(dir $(lastword $(MAKEFILE_LIST))))
O ?= build$(if $(D),-$(subst $(comma),-,$(D)))
CHECK_JOBS ?= 2
TEST_TIMEOUT ?= 150
Q := $(if $(V),,@)
say = $(if $(V),,@printf '  %-7s %s\n' $(1) $(2))
MAKEFLAGS += --no-builtin-rules --no-print-directory
SHELL := /bin/bash
.DELETE_ON_ERROR:
.SUFFIXES:

all:

# ---- Goals that need no configuration: set-up, then the real work in a second make -----------

FRONT := demo check check-arm64 check-full soak setup setup-check clean distclean help check-format
.PHONY: $(FRONT)

setup:
	@D='$(D)' $(if $(filter-out default,$(origin CC)),CC='$(CC)') $(S)tools/install-deps.sh build
setup-check:
	@D='$(D)' $(if $(filter-out default,$(origin CC)),CC='$(CC)') $(S)tools/install-deps.sh check

# All CPUs, unless the user said how many.
second = $(MAKE) -f $(S)Makefile $(if $(filter -j%,$(MAKEFLAGS)),,-j$(shell nproc))

DEMO := -P 4 -R 2 -b 16 -e 1M -f 8
demo: setup
	@+$(second) $(O)/perf/all_gather_perf
	$(O)/perf/all_gather_perf $(DEMO)
# A configuration from before the set-up may not know of Criterion.
redetect = @grep -qs "^HAVE_CRITERION := 1" $(O)/config.mk || rm -f $(O)/config.mk
check: setup-check
	$(redetect)
	@+$(second) run-check
check-full: setup-check
	$(redetect)
	@+$(second) run-check SYMCCL_TEST_FULL=1 TEST_TIMEOUT=3600
# The host's half for aarch64, cross-compiled and emulated: values and protocols. Emulation keeps the
# order of this machine's memory, which may be stronger.
check-arm64:
	@$(S)tools/install-deps.sh arm64
	@+PKG_CONFIG_LIBDIR=/usr/lib/aarch64-linux-gnu/pkgconfig:/usr/share/pkgconfig $(second) run-arm64 \
		O=$(O)-arm64 CC=aarch64-linux-gnu-gcc AR=aarch64-linux-gnu-ar NVCC= MPICC= \
		CONFIGURE_ARGS=--host=aarch64-linux-gnu CRITERION_CFLAGS=-I$(S)tests/qemu CRITERION_LIBS=
soak: setup-check
	$(redetect)
	@+$(second) check-tests SYMCCL_TEST_SOAK=1 TEST_TIMEOUT=3600

clean distclean:
	rm -rf $(O)

check-format:
	@cd $(or $(S),.) && tools/check-format.sh

help:
	@sed -n '2,/^$$/s/^# \{0,1\}//p' $(S)Makefile
	@echo 'Targets:'
	@echo '  all               library, tools, perf programs, examples (default)'
	@echo '  examples          the examples, and with nvcc those for GPUs'
	@echo '  demo              install what is missing, build, run an all-gather between processes'
	@echo '  check             install what is missing, build, run the whole suite'
	@echo '  check-full soak   the same with every case; the long random ones'
	@echo '  check-arm64       the host part for aarch64, cross-compiled, under qemu'
	@echo '  check-tests       unit, ranks and stress tests only (check-unit check-ranks check-stress)'
	@echo '  check-headers check-symbols check-format check-docs check-nccl'
	@echo '  man install uninstall clean setup'

ifneq ($(filter-out $(FRONT),$(or $(MAKECMDGOALS),all)),)

# ---- Configuration ---------------------------------------------------------------------------

ifneq ($(strip $(CONFIGURE_ARGS)),)
ifneq ($(strip $(CONFIGURE_ARGS)),$(strip $(file <$(O)/configure.args)))
$(shell mkdir -p $(O) && rm -f $(O)/config.mk)
$(file >$(O)/configure.args,$(strip $(CONFIGURE_ARGS)))
endif
endif

# CC and CFLAGS hold for one call of make; what configure picks is the default.
$(O)/config.mk: $(S)configure.ac $(S)config.mk.in $(S)config.h.in
	$(call say,CONF,$(O))
	@command -v autoconf >/dev/null || { echo 'autoconf is missing: run make setup'; exit 1; }
	$(Q)mkdir -p $(O) && touch $(O)/configure.args && src=$$(cd $(or $(S),.) && pwd) && cd $(O) && \
	autoconf -o configure $$src/configure.ac && \
	args=$$(cat configure.args) && \
	if ! eval "env -u CC -u CFLAGS -u LDFLAGS ./configure -q --srcdir='$$src' $$args" \
		>configure.log 2>&1; then cat configure.log; exit 1; fi
	$(Q)touch $@

include $(O)/config.mk

ifeq ($(origin CC),default)
CC := $(CONFIG_CC)
endif
CFLAGS ?= -O2 -g
PREFIX ?= $(prefix)
override prefix := $(PREFIX)

sanitize := $(subst asan,address,$(subst ubsan,undefined,$(subst tsan,thread,$(D))))
WARN := -Wall -Wextra -Wmissing-prototypes -Wstrict-prototypes -Wshadow $(if $(W),-Werror)
FLAGS = -std=gnu11 $(CFLAGS) $(WARN) -fvisibility=hidden -ffp-contract=off -fPIC -pthread \
	$(if $(D),-fsanitize=$(sanitize) -fno-sanitize-recover=all -fno-omit-frame-pointer)
INCLUDES := -I$(S)include -I$(S)src -I$(O) $(SODIUM_CFLAGS)
LINK = $(CC) $(FLAGS) $(LDFLAGS)

VERSION := $(shell sed -n 's/^\#define SYMCCL_\(MAJOR\|MINOR\|PATCH\) *//p' $(S)include/symccl.h | \
	paste -sd. )

# ---- What there is ---------------------------------------------------------------------------

# src/shim is a library of its own (src/shim/rules.mk).
SRC := $(filter-out $(S)src/shim/%,$(wildcard $(S)src/*.c $(S)src/*/*.c $(S)src/coll/*/*.c))
objs = $(patsubst $(S)%.c,$(O)/obj/%.o,$(1))
OBJ := $(call objs,$(wildcard $(SRC))) $(O)/obj/src/coll/cuda/image.o
LIB := $(O)/lib/libsymccl
SONAME := libsymccl.so.0

PERF := $(patsubst $(S)%.c,$(O)/%,$(wildcard $(S)perf/*_perf.c))
PERF_COMMON := $(call objs,$(wildcard $(S)perf/common*.c) $(S)tests/oracle.c $(S)tests/mem.c)
TOOLS := $(patsubst $(S)tools/%.c,$(O)/bin/%,$(wildcard $(S)tools/*.c))
EXAMPLES := $(patsubst $(S)%.c,$(O)/%,$(wildcard $(S)examples/*.c))
# Where there is an MPI.
MPICC := $(shell command -v mpicc)
EXAMPLES_MPI := $(if $(MPICC),$(patsubst $(S)%.c,$(O)/%,$(wildcard $(S)examples/mpi/*.c)))

UNIT := $(patsubst $(S)%.c,$(O)/%,$(wildcard $(S)tests/unit/*_test.c))
RANKS := $(patsubst $(S)%.c,$(O)/%,$(wildcard $(S)tests/ranks/*_test.c))
STRESS := $(patsubst $(S)%.c,$(O)/%,$(wildcard $(S)tests/stress/*.c))
# Programs that are nothing but the device headers: also built with -fsanitize=thread, always.
TSAN := $(O)/tests/tsan/device_api $(O)/tests/tsan/device_epoch
TEST_COMMON := $(call objs,$(wildcard $(S)tests/*.c))
# A CUDA driver over host memory, for tests without one.
CONFORMANCE_OBJ := $(call objs,$(wildcard $(S)tests/fakecuda/conformance*.c))
FAKECUDA_OBJ := $(filter-out $(CONFORMANCE_OBJ),$(call objs,$(wildcard $(S)tests/fakecuda/*.c)))
FAKECUDA := $(O)/tests/fakecuda/libcuda.so.1 $(O)/tests/cuda_conformance
include $(S)tests/fakecuda/rules.mk
# GPU programs that users could write, with the CUDA runtime and nvcc.
EXAMPLES_GPU := $(if $(NVCC),$(patsubst $(S)%.cu,$(O)/%_gpu,$(wildcard $(S)examples/*.cu)))
DEVICE_TESTS_GPU := $(if $(NVCC),$(O)/tests/gpu/device_calls_gpu)
# For machines with a GPU; they run on the double, too.
GPU := $(patsubst $(S)%.c,$(O)/%,$(wildcard $(S)tests/gpu/*.c))
# Tests with cuda in their name find the double before any driver.
CUDA_TESTS := $(foreach t,$(UNIT) $(RANKS) $(STRESS),$(if $(findstring cuda,$(notdir $t)),$t))

all: $(LIB).so $(LIB).a $(TOOLS) $(PERF) $(EXAMPLES) $(if $(D),,$(EXAMPLES_MPI))
examples: $(EXAMPLES) $(EXAMPLES_GPU)
tests: $(UNIT) $(RANKS) $(STRESS) $(KERNELS_CPU) $(TSAN) $(FAKECUDA) $(GPU)

# ---- Compile and link ------------------------------------------------------------------------

# stamp FILE TEXT: FILE changes when TEXT does, so what depends on it is made again.
define stamp
$(1): FORCE
	@mkdir -p $$(@D); printf '%s\n' '$$(subst ','\'',$(2))' | cmp -s - $$@ || \
	printf '%s\n' '$$(subst ','\'',$(2))' >$$@
endef
$(eval $(call stamp,$(O)/obj/flags,$$(CC) $$(LDFLAGS) $$(FLAGS) $(if $(CC),$(shell $(CC) -dumpfullversion -dumpmachine))))
$(eval $(call stamp,$(O)/obj/list,$$(OBJ) $$(TEST_COMMON)))

$(O)/obj/%.o: $(S)%.c $(O)/obj/flags
	$(call say,CC,$<)
	@mkdir -p $(@D)
	$(Q)$(CC) $(FLAGS) $(INCLUDES) $(OBJ_FLAGS) -MMD -MP -c -o $@ $<

include $(S)src/coll/cuda/rules.mk
include $(S)src/shim/rules.mk

TUNE_OBJ := $(call objs,$(wildcard $(S)tools/tune/*.c))
$(O)/obj/perf/%.o $(O)/obj/tools/%.o: OBJ_FLAGS := -I$(S)perf
# Results say which commit they are of.
ifndef PERF_COMMIT
PERF_COMMIT := $(shell git -C $(or $(S),.) describe --always --dirty --abbrev=12 2>/dev/null)
endif
$(eval $(call stamp,$(O)/obj/commit,$$(PERF_COMMIT)))
$(O)/obj/perf/common_report.o: OBJ_FLAGS := -I$(S)perf -DPERF_COMMIT='"$(PERF_COMMIT)"'
$(O)/obj/perf/common_report.o: $(O)/obj/commit
$(O)/obj/tests/%.o: OBJ_FLAGS := -I$(S)tests $(CRITERION_CFLAGS)
$(O)/obj/examples/%.o: INCLUDES := -I$(S)include
$(O)/obj/src/params.o: $(S)src/params.def

$(LIB).a: $(OBJ)
$(O)/lib/libtest.a: $(TEST_COMMON)
$(LIB).a $(O)/lib/libtest.a: $(O)/obj/list
	$(call say,AR,$@)
	@mkdir -p $(@D); rm -f $@
	$(Q)$(AR) rcs $@ $(filter %.o,$^)

# clang leaves the sanitizers' symbols to the program, so -z defs is for plain builds.
$(O)/lib/$(SONAME): $(OBJ) $(O)/obj/list $(S)src/symccl.map
	$(call say,LINK,$@)
	@mkdir -p $(@D)
	$(Q)$(LINK) -shared $(if $(D),,-Wl$(comma)-z$(comma)defs) -Wl,-soname,$(SONAME) \
		-Wl,--version-script=$(S)src/symccl.map -o $@ $(OBJ) $(SODIUM_LIBS) -ldl
$(LIB).so: $(O)/lib/$(SONAME)
	$(Q)ln -sf $(SONAME) $@

# Programs for users take the shared library, next to them; those that look inside, the static one.
shared_libs = -L$(O)/lib -lsymccl -Wl,-rpath,'$$ORIGIN/../lib'
$(PERF): $(O)/%: $(O)/obj/%.o $(PERF_COMMON) $(LIB).so
	$(call say,LINK,$@)
	@mkdir -p $(@D)
	$(Q)$(LINK) -o $@ $(filter %.o,$^) $(shared_libs) -lm
$(EXAMPLES): $(O)/%: $(O)/obj/%.o $(LIB).so
	$(call say,LINK,$@)
	@mkdir -p $(@D)
	$(Q)$(LINK) -o $@ $(filter %.o,$^) $(shared_libs)
$(EXAMPLES_MPI): $(O)/%: $(S)%.c $(LIB).so
	$(call say,MPICC,$@)
	@mkdir -p $(@D)
	$(Q)$(MPICC) -std=gnu11 $(CFLAGS) $(WARN) -I$(S)include -o $@ $< -L$(O)/lib -lsymccl \
		-Wl,-rpath,'$$ORIGIN/../../lib'
$(O)/bin/symccl-tune: $(TUNE_OBJ)
$(EXAMPLES_GPU) $(DEVICE_TESTS_GPU): $(O)/%_gpu: $(S)%.cu $(LIB).so $(O)/obj/cuda_flags
	$(call say,NVCC,$@)
	@mkdir -p $(@D)
	$(Q)$(NVCC) $(CUDA_TARGETS) -std=c++17 -O3 -Xcompiler -Wall -cudart static -I$(S)include -MD \
		-MP -MF $@.d -o $@ $< -L$(O)/lib -lsymccl \
		-Xlinker -rpath,'$$ORIGIN/../lib:$$ORIGIN/../../lib'
-include $(EXAMPLES_GPU:%=%.d) $(DEVICE_TESTS_GPU:%=%.d)
$(TOOLS): $(O)/bin/%: $(O)/obj/tools/%.o $(LIB).a
	$(call say,LINK,$@)
	@mkdir -p $(@D)
	$(Q)$(LINK) -o $@ $(filter %.o,$^) $(LIB).a $(SODIUM_LIBS) -ldl -lm
$(UNIT) $(RANKS): $(O)/%: $(O)/obj/%.o $(O)/lib/libtest.a $(LIB).a
	$(call say,LINK,$@)
	@mkdir -p $(@D)
	$(Q)$(LINK) -o $@ $^ $(CRITERION_LIBS) $(SODIUM_LIBS) -ldl -lm
$(STRESS): $(O)/%: $(O)/obj/%.o $(O)/lib/libtest.a $(LIB).a
	$(call say,LINK,$@)
	@mkdir -p $(@D)
	$(Q)$(LINK) -o $@ $^ $(SODIUM_LIBS) -ldl -lm
$(TSAN): $(O)/tests/tsan/%: $(S)tests/stress/%.c $(O)/obj/flags
	$(call say,TSAN,$@)
	@mkdir -p $(@D)
	$(Q)$(CC) -std=gnu11 -O1 -g $(WARN) -fsanitize=thread -pthread $(INCLUDES) -MMD -MP -MF $@.d \
		-o $@ $<
-include $(TSAN:%=%.d)
$(O)/tests/unit/tune_test: | $(O)/bin/symccl-tune
$(CUDA_TESTS): private LDFLAGS += -Wl,--disable-new-dtags,-rpath,'$$ORIGIN/../fakecuda'
$(O)/obj/tests/unit/cuda_abi_test.o: OBJ_FLAGS := -I$(S)tests $(CRITERION_CFLAGS) \
	$(addprefix -isystem ,$(wildcard $(NVCC:%/bin/nvcc=%/include)))
# Made here, run there: nothing but the C library is taken from the other machine.
$(GPU): $(O)/%: $(O)/obj/%.o $(O)/lib/libtest.a $(LIB).a
	$(call say,LINK,$@)
	@mkdir -p $(@D)
	$(Q)$(LINK) -o $@ $^ $(SODIUM_LIBS:-lsodium=-l:libsodium.a) -ldl -lm
# On a machine with a GPU: everything that needs one. T=1: times, too.
check-gpu: $(GPU) $(EXAMPLES_GPU) $(DEVICE_TESTS_GPU) $(O)/tests/cuda_conformance
	$(if $(NVCC),$(S)tests/gpu/kernels.sh build $(O)/tests/gpu/kernels)
	$(S)tests/gpu/check.sh $(O) $(if $(T),-t)
.PHONY: check-gpu
$(O)/tests/cuda_conformance: $(CONFORMANCE_OBJ)
	$(call say,LINK,$@)
	@mkdir -p $(@D)
	$(Q)$(LINK) -o $@ $^ -ldl
$(O)/tests/fakecuda/libcuda.so.1: $(FAKECUDA_OBJ)
	$(call say,LINK,$@)
	@mkdir -p $(@D)
	$(Q)$(LINK) -shared -Wl,-soname,libcuda.so.1 -o $@ $^ -ldl

-include $(patsubst %.o,%.d,$(OBJ) $(FAKECUDA_OBJ) $(CONFORMANCE_OBJ) $(PERF_COMMON) $(TEST_COMMON) \
	$(PERF:$(O)/%=$(O)/obj/%.o) $(EXAMPLES:$(O)/%=$(O)/obj/%.o) \
	$(TOOLS:$(O)/bin/%=$(O)/obj/tools/%.o) $(TUNE_OBJ) \
	$(UNIT:$(O)/%=$(O)/obj/%.o) $(RANKS:$(O)/%=$(O)/obj/%.o) $(STRESS:$(O)/%=$(O)/obj/%.o) \
	$(GPU:$(O)/%=$(O)/obj/%.o))

# ---- Checks ----------------------------------------------------------------------------------

HEADERS := $(wildcard $(S)src/*.h $(S)src/*/*.h $(S)src/coll/host/*.h $(S)include/*.h $(S)perf/*.h \
	$(S)tests/*.h)
PUBLIC := $(filter $(S)include/%,$(HEADERS))
check-headers: $(HEADERS:$(S)%=$(O)/obj/%.ok) $(PUBLIC:$(S)%=$(O)/obj/%.c++.ok)
	@CC='$(CC)' $(S)tools/check-device-names.sh $(S)include
$(O)/obj/%.h.ok: $(S)%.h $(O)/obj/flags
	@mkdir -p $(@D)
	$(Q)echo '#include "$(abspath $<)"' | $(CC) $(FLAGS) $(INCLUDES) -I$(S)tests -I$(S)perf \
		-MMD -MP -MF $@.d -MT $@ -fsyntax-only -x c -
	@touch $@
$(O)/obj/%.h.c++.ok: $(S)%.h $(O)/obj/flags
	@mkdir -p $(@D)
	$(Q)if echo | $(CC) -fsyntax-only -x c++ - 2>/dev/null; then \
		echo '#include "$(abspath $<)"' | $(CC) -Wall -Wextra -Werror -fsyntax-only -x c++ -; \
	else echo 'check-headers: $< was not tried as C++: $(CC) has none here'; fi
	@touch $@
-include $(HEADERS:$(S)%=$(O)/obj/%.ok.d)

check-symbols: $(LIB).so
	@$(S)tools/check-symbols.sh $(O)/lib/$(SONAME) $(S)src/symccl.map $(PUBLIC)

# The program in the README is the one that is compiled; the parameters are in the manual.
check-docs: man
	@sed -n '/^```c$$/,/^```$$/{/^```/!p}' $(S)README.md | diff - $(S)examples/all_gather.c
	@for f in $(functions); do grep -q "[ *]$$f(" $(O)/man/symccl.3 || \
		{ echo "check-docs: $$f is not in symccl(3)"; exit 1; }; done

need_criterion = $(if $(HAVE_CRITERION),,$(error criterion was not found: install libcriterion-dev, \
	remove $(O)/config.mk (or run make check, which does it)))
run_tests = $(S)tests/run -j $(CHECK_JOBS) -t $(TEST_TIMEOUT) -l $(O)/tests/log
check-unit: $(UNIT) $(FAKECUDA) $(GPU)
	@$(need_criterion)$(run_tests) $(UNIT)
check-ranks: $(RANKS) $(FAKECUDA)
	@$(need_criterion)$(run_tests) $(RANKS)
check-stress: $(STRESS) $(KERNELS_CPU) $(TSAN) $(O)/examples/device_one_shot $(FAKECUDA)
	@$(run_tests) $(STRESS) $(KERNELS_CPU) $(TSAN) $(O)/examples/device_one_shot
check-tests: $(UNIT) $(RANKS) $(STRESS) $(KERNELS_CPU) $(TSAN) $(O)/examples/device_one_shot $(FAKECUDA) $(GPU)
	@$(need_criterion)$(run_tests) $(UNIT) $(RANKS) $(STRESS) $(KERNELS_CPU) $(TSAN) \
		$(O)/examples/device_one_shot

# The quick static ones first; the tests last, so that their summary is what one sees. All are run.
run-check: all tests
	+@rc=0; \
	$(MAKE) -k -f $(S)Makefile check-headers check-symbols check-format check-docs || rc=1; \
	$(MAKE) -f $(S)Makefile check-nccl || rc=1; \
	$(MAKE) -f $(S)Makefile check-tests || rc=1; \
	[ $$rc = 0 ] && echo 'make check: all passed' || { echo 'make check: FAILED' >&2; exit 1; }

ARM64_TESTS := $(addprefix $(O)/tests/,$(addprefix stress/,allreduce coll_burst comm device_epoch) \
	$(addprefix unit/,$(addsuffix _test,bootstrap coll_fault coll_plan coll_steps device_packet error \
	params reduce space tuning types)))
run-arm64: $(ARM64_TESTS) $(O)/perf/all_gather_perf $(O)/perf/all_reduce_perf
	@$(S)tests/run -j $(CHECK_JOBS) -t 600 -l $(O)/tests/log -w qemu-aarch64-static $(ARM64_TESTS)
	timeout 1200 qemu-aarch64-static $(O)/perf/all_gather_perf -P 2 -R 2 --sizes 8,1K,64K -n 5
	timeout 1200 qemu-aarch64-static $(O)/perf/all_reduce_perf -P 2 -R 2 --sizes 8,1K,64K -n 2 -w 1 -d all
	@echo 'make check-arm64: all passed'

# ---- Install ---------------------------------------------------------------------------------

$(O)/symccl.pc: $(S)symccl.pc.in $(S)include/symccl.h $(O)/config.mk $(O)/obj/prefix
	$(Q)sed -e 's|@prefix@|$(prefix)|; s|@libdir@|$(libdir)|; s|@includedir@|$(includedir)|' \
		-e 's|@VERSION@|$(VERSION)|' $< >$@
$(eval $(call stamp,$(O)/obj/prefix,$$(prefix) $$(libdir) $$(includedir)))

# What symccl_device.h includes. In the tree include/symccl_device is a link to src/device.
DEVICE_HEADERS := $(filter-out %/slot.h,$(wildcard $(S)src/device/*.h $(S)src/device/*.cuh))

man: $(O)/man/symccl.7 $(O)/man/symccl.3 $(O)/man/symccl-tune.1
functions = $(shell sed -n 's/^[[:space:]]*\(symccl[A-Za-z0-9_]*\);.*/\1/p' $(S)src/symccl.map)
$(O)/man/symccl.3: $(S)tools/reference.awk $(PUBLIC)
	@mkdir -p $(@D)
	$(Q)cat $(PUBLIC) | awk -v version=$(VERSION) -f $< >$@
$(O)/man/symccl-tune.1: $(S)docs/symccl-tune.1.in $(S)src/coll/tuning.def
	@mkdir -p $(@D)
	$(Q)sed -n 's/^TUNING(\([a-z_]*\), \([0-9.]*\), .*"\(.*\)")/.TP\n.B \1\n\3; compiled in: \2./p' \
		$(S)src/coll/tuning.def >$@.constants
	$(Q)sed -e 's|@VERSION@|$(VERSION)|' -e '/@CONSTANTS@/{r $@.constants' -e 'd}' $< >$@
$(O)/man/symccl.7: $(S)docs/symccl.7.in $(O)/bin/symccl-info
	@mkdir -p $(@D)
	$(Q)$(O)/bin/symccl-info --man >$@.params
	$(Q)sed -e 's|@VERSION@|$(VERSION)|' -e '/@PARAMS@/{r $@.params' -e 'd}' $< >$@

install: all man $(O)/symccl.pc
	install -d $(DESTDIR)$(bindir) $(DESTDIR)$(libdir)/pkgconfig \
		$(DESTDIR)$(includedir)/symccl_device \
		$(DESTDIR)$(mandir)/man1 $(DESTDIR)$(mandir)/man3 $(DESTDIR)$(mandir)/man7
	install -m 755 $(TOOLS) $(DESTDIR)$(bindir)
	install -m 755 $(O)/lib/$(SONAME) $(DESTDIR)$(libdir)
	ln -sf $(SONAME) $(DESTDIR)$(libdir)/libsymccl.so
	install -d $(DESTDIR)$(libdir)/symccl
	install -m 755 $(NCCL_LIB) $(NCCL_AUDIT) $(DESTDIR)$(libdir)/symccl
	install -m 755 $(NCCL_RUN) $(DESTDIR)$(bindir)
	install -m 644 $(wildcard $(S)include/*.h) $(DESTDIR)$(includedir)
	install -m 644 $(DEVICE_HEADERS) $(DESTDIR)$(includedir)/symccl_device
	install -m 644 $(O)/symccl.pc $(DESTDIR)$(libdir)/pkgconfig
	install -m 644 $(O)/man/symccl-tune.1 $(DESTDIR)$(mandir)/man1
	install -m 644 $(O)/man/symccl.7 $(DESTDIR)$(mandir)/man7
	install -m 644 $(O)/man/symccl.3 $(DESTDIR)$(mandir)/man3
	for f in $(functions); do echo .so man3/symccl.3 >$(DESTDIR)$(mandir)/man3/$$f.3; done
uninstall:
	rm -f $(TOOLS:$(O)/bin/%=$(DESTDIR)$(bindir)/%) $(DESTDIR)$(libdir)/$(SONAME) \
		$(DESTDIR)$(libdir)/libsymccl.so $(DESTDIR)$(libdir)/pkgconfig/symccl.pc \
		$(patsubst $(S)include/%,$(DESTDIR)$(includedir)/%,$(wildcard $(S)include/*.h)) \
		$(DEVICE_HEADERS:$(S)src/device/%=$(DESTDIR)$(includedir)/symccl_device/%) \
		$(DESTDIR)$(mandir)/man7/symccl.7 $(DESTDIR)$(mandir)/man3/symccl.3 \
		$(functions:%=$(DESTDIR)$(mandir)/man3/%.3) $(DESTDIR)$(bindir)/symccl-run \
		$(DESTDIR)$(libdir)/symccl/libnccl.so.2 $(DESTDIR)$(libdir)/symccl/symccl-audit.so

.PHONY: all examples tests FORCE check-headers check-symbols check-docs check-unit check-ranks check-stress check-tests \
	run-check run-arm64 man install uninstall

endif
