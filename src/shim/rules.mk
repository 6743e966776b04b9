# libnccl.so.2: NCCL's interface as a client of symccl.h, the library inside: one file to copy. In a
# folder of its own, so that nothing finds it by accident.
NCCL_DIR := $(O)/lib/symccl
NCCL_LIB := $(NCCL_DIR)/libnccl.so.2
NCCL_AUDIT := $(NCCL_DIR)/symccl-audit.so
NCCL_RUN := $(O)/bin/symccl-run
NCCL_OBJ := $(call objs,$(wildcard $(S)src/shim/*.c))
NCCL_TESTS := $(addprefix $(O)/tests/nccl/,abi calls loader linked foreign/libnccl.so.2)
# NVIDIA's header where it is new enough to have every call; NCCL_INCLUDE=DIR says where to look.
NCCL_INCLUDE ?= /usr/include
nccl_real := $(if $(NVCC),$(if $(shell grep -ls ncclParamBind $(NCCL_INCLUDE)/nccl.h), \
	-isystem $(NCCL_INCLUDE) -isystem $(NVCC:%/bin/nvcc=%/include)))

all: $(NCCL_LIB) $(NCCL_AUDIT) $(NCCL_RUN)
tests: $(NCCL_TESTS)

$(NCCL_LIB): $(NCCL_OBJ) $(LIB).a $(S)src/shim/nccl.map
	$(call say,LINK,$@)
	@mkdir -p $(@D)
	$(Q)$(LINK) -shared $(if $(D),,-Wl$(comma)-z$(comma)defs) -Wl,-soname,libnccl.so.2 \
		-Wl,-Bsymbolic -Wl,--version-script=$(S)src/shim/nccl.map -o $@ $(NCCL_OBJ) \
		$(LIB).a $(SODIUM_LIBS) -ldl
# Runs inside the dynamic linker, before anything else: no sanitizers.
$(NCCL_AUDIT): $(S)src/shim/audit/audit.c $(O)/obj/flags
	$(call say,LINK,$@)
	@mkdir -p $(@D)
	$(Q)$(CC) -std=gnu11 $(CFLAGS) -Wall -Wextra $(if $(W),-Werror) -fPIC -shared -o $@ $< -ldl
$(NCCL_RUN): $(S)tools/symccl-run
	@mkdir -p $(@D)
	$(Q)install -m 755 $< $@

# ---- Tests ------------------------------------------------------------------------------------

$(O)/obj/tests/nccl/%.o: OBJ_FLAGS = -I$(S)tests $(or $(nccl_real),-I$(S)src/shim)
$(O)/obj/tests/nccl/abi_own.o: $(S)tests/nccl/abi.c $(O)/obj/flags
	@mkdir -p $(@D)
	$(Q)$(CC) $(FLAGS) $(INCLUDES) -I$(S)src/shim -MMD -MP -c -o $@ $<
nccl_linked = -L$(NCCL_DIR) -l:libnccl.so.2 -Wl,-rpath,'$$ORIGIN/../../lib/symccl'
$(O)/tests/nccl/calls: $(O)/obj/tests/nccl/calls.o $(O)/obj/tests/oracle.o $(O)/obj/tests/mem.o $(NCCL_LIB)
	$(call say,LINK,$@)
	@mkdir -p $(@D)
	$(Q)$(LINK) -o $@ $(filter %.o,$^) $(nccl_linked) -lm
$(O)/tests/nccl/abi: $(O)/obj/tests/nccl/abi.o $(O)/obj/tests/nccl/abi_own.o $(NCCL_LIB)
	$(call say,LINK,$@)
	@mkdir -p $(@D)
	$(Q)$(LINK) -o $@ $(O)/obj/tests/nccl/abi.o $(nccl_linked)
	$(Q)$(LINK) -o $@_own $(O)/obj/tests/nccl/abi_own.o $(nccl_linked)
$(O)/tests/nccl/loader: $(O)/obj/tests/nccl/loader.o
	$(call say,LINK,$@)
	@mkdir -p $(@D)
	$(Q)$(LINK) -o $@ $^ -ldl
$(O)/obj/tests/nccl/linked.o: $(S)tests/nccl/loader.c $(O)/obj/flags
	@mkdir -p $(@D)
	$(Q)$(CC) $(FLAGS) $(INCLUDES) -DLINKED -MMD -MP -c -o $@ $<
$(O)/tests/nccl/linked: $(O)/obj/tests/nccl/linked.o $(NCCL_LIB)
	$(call say,LINK,$@)
	$(Q)$(LINK) -o $@ $< -L$(NCCL_DIR) -l:libnccl.so.2 \
		-Wl,--enable-new-dtags,-rpath,'$$ORIGIN/foreign'
$(O)/tests/nccl/foreign/libnccl.so.2: $(S)tests/nccl/foreign.c $(O)/obj/flags
	@mkdir -p $(@D)
	$(Q)$(CC) -std=gnu11 $(CFLAGS) $(INCLUDES) -fPIC -shared -Wl,-soname,libnccl.so.2 -o $@ $<

# Exports, layouts and values as NVIDIA's; loading; every call.
check-nccl: $(NCCL_LIB) $(NCCL_AUDIT) $(NCCL_RUN) $(NCCL_TESTS)
	@nm -D --defined-only $(NCCL_LIB) | awk '$$3 ~ /^p?nccl/ { print $$3 }' | LC_ALL=C sort | \
		diff $(S)tests/nccl/exports.expected - || { echo 'check-nccl: exports differ'; exit 1; }
	@$(O)/tests/nccl/abi_own | diff $(S)tests/nccl/abi.expected -
	$(if $(nccl_real),@$(O)/tests/nccl/abi | diff $(S)tests/nccl/abi.expected -)
	$(if $(D),,@$(S)tests/nccl/loaders.sh $(O))
	@SYMCCL_DEVICE=host SYMCCL_DEBUG=none timeout -k 5 $(TEST_TIMEOUT) $(O)/tests/nccl/calls
	@echo 'check-nccl: exports, layouts, loading and calls agree'
.PHONY: check-nccl
-include $(NCCL_OBJ:.o=.d) $(wildcard $(O)/obj/tests/nccl/*.d)
