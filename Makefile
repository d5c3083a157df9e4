# cairn: one flat Makefile; everything made lands in build/. `make help` lists the goals.
# Local settings (CC, CUDA=0, SAN=1, ...) may live in an ignored config.mk.
-include config.mk

CC      ?= cc
NVCC    ?= nvcc
B       := build
OPT     ?= -O2 -g
KERNEL_OPT := -O3
,       := ,
STD     := -std=c11 -D_GNU_SOURCE
WARN    := -Wno-psabi -Wall -Wextra -Wvla -Wshadow -Wstrict-prototypes -Wmissing-prototypes
# Numbers: no fast-math, no contraction that the source does not spell out.
NUM     := -ffp-contract=off -fno-math-errno -fno-trapping-math
# Sanitizers, each build in a folder of its own; valgrind takes the ordinary build. See `make test-quick`.
override SAN := $(patsubst 1,address,$(SAN))
ifneq ($(filter-out address thread valgrind,$(SAN)),)
$(error SAN=$(SAN): address (or 1), thread or valgrind)
endif
ifneq ($(filter address thread,$(SAN)),)
SANITIZE := -fsanitize=$(patsubst address,address$(,)undefined -fno-sanitize-recover=undefined,$(SAN))
OPT     := -O1 -g $(SANITIZE) -fno-omit-frame-pointer
KERNEL_OPT :=
LDFLAGS += $(SANITIZE)
CUDA    := 0
B       := build-$(SAN)
endif
# A build with mistakes in it, for make test-planted.
ifeq ($(PLANTED),1)
OPT     += -DCAIRN_PLANTED
CUDA    := 0
B       := build-planted
endif

# --- what this machine has -------------------------------------------------------------------------------------
have     = $(shell pkg-config --exists $(1) 2>/dev/null && echo yes || echo no)
HDF5_PC  := $(shell for p in hdf5-serial hdf5; do pkg-config --exists $$p 2>/dev/null && { echo $$p; break; }; done)
MPI_PC   := $(shell for p in ompi ompi-c mpich; do pkg-config --exists $$p 2>/dev/null && { echo $$p; break; }; done)
# CUDA=0 leaves the GPU back-end out. CUDA_ARCHS: machine code for these, and PTX of sm_80 for all others;
# "80 90a 100" for all that the kernels know.
CUDA     ?= $(shell command -v $(NVCC) >/dev/null 2>&1 && echo 1 || echo 0)
CUDA_ARCHS ?= 90a
NEEDED   := jansson libxxhash libzstd yaml-0.1 libpcre2-8 libutf8proc gmp
MISSING  := $(foreach p,$(NEEDED),$(if $(filter no,$(call have,$(p))),$(p))) $(if $(HDF5_PC),,hdf5)
VERSION  := $(shell git describe --always --dirty 2>/dev/null || echo unknown)
ARCH     := $(shell uname -m)

CPPFLAGS += -I. -Iruntime -MMD -MP
CFLAGS   += $(STD) $(OPT) $(WARN) $(NUM) -fPIC -pthread
LDFLAGS  += -pthread
pc_cflags = $(shell pkg-config --cflags $(1) 2>/dev/null)
pc_libs   = $(shell pkg-config --libs $(1) 2>/dev/null)

# --- rooms: one static library each; a library may use those after it in LINK_<room> ----------------------------------
ROOMS := base kernels ckpt world recipe model text grade common rollout score train sync slurm check tools
DIR_base := runtime/base
DIR_kernels := kernels
DIR_ckpt := ckpt
DIR_world := runtime/world
DIR_recipe := runtime/recipe
DIR_model := runtime/model
DIR_text := runtime/text
DIR_grade := runtime/grade
DIR_common := stages/common
DIR_rollout := stages/rollout
DIR_score := stages/score
DIR_train := stages/train
DIR_sync := stages/sync
DIR_slurm := slurm
DIR_check := tools/check
DIR_tools := tools

CF_ckpt   := $(call pc_cflags,$(HDF5_PC))
CF_recipe := $(call pc_cflags,yaml-0.1)
CF_model  := $(call pc_cflags,libpcre2-8)
CF_text   := $(call pc_cflags,libpcre2-8 libutf8proc)
SECCOMP   := $(call have,libseccomp)
CF_grade  := $(call pc_cflags,gmp libpcre2-8 libutf8proc) $(if $(filter yes,$(SECCOMP)),-DCAIRN_HAVE_SECCOMP $(call pc_cflags,libseccomp))

SYS_base   := $(call pc_libs,jansson libxxhash) -lm -ldl
SYS_ckpt   := $(call pc_libs,$(HDF5_PC))
SYS_world  := $(call pc_libs,libzstd)
SYS_recipe := $(call pc_libs,yaml-0.1)
SYS_model  := $(call pc_libs,libpcre2-8)
SYS_text   := $(call pc_libs,libpcre2-8 libutf8proc)
SYS_grade  := $(call pc_libs,gmp libpcre2-8 libutf8proc) $(if $(filter yes,$(SECCOMP)),$(call pc_libs,libseccomp))

LINK_base    := base
LINK_kernels := kernels base
LINK_ckpt    := ckpt base
LINK_world   := world base
LINK_recipe  := recipe base
LINK_model   := model kernels ckpt world recipe base
LINK_text    := text base
LINK_grade   := grade base
LINK_all     := tools check slurm sync train score rollout common model grade text kernels ckpt world recipe base

# A file with a main() is named main.c (one per stage and for `cairn`); it stays out of its room's library.
$(foreach r,$(ROOMS),$(eval SRC_$(r) := $(filter-out %/main.c,$(wildcard $(DIR_$(r))/*.c))))
# MPI, NCCL and PMIx are shared objects of their own, opened only under mpirun or srun.
SRC_world := $(filter-out runtime/world/mpi.c runtime/world/pmix.c runtime/world/nccl.c,$(SRC_world))
$(foreach r,$(ROOMS),$(eval OBJ_$(r) := $(SRC_$(r):%.c=$(B)/obj/%.o)))
$(foreach r,$(ROOMS),$(eval $(OBJ_$(r)): EXTRA := $(CF_$(r))))
lib  = $(foreach r,$(1),$(if $(SRC_$(r)),$(B)/lib/libcairn_$(r).a))
sys  = $(foreach r,$(1),$(SYS_$(r)))

PROGRAMS := $(foreach s,rollout score train sync,$(if $(wildcard stages/$(s)/main.c),$(B)/bin/cairn-$(s))) \
            $(if $(wildcard tools/main.c),$(B)/bin/cairn $(B)/bin/cairn-check) $(B)/bin/wordproblems

# --- back-ends: shared objects in build/lib, opened at run time --------------------------------------------------------
CPU_SRC := $(wildcard kernels/cpu/*.c)
ifeq ($(ARCH),x86_64)
CPU_ISAS := x86-64-v2 x86-64-v3 x86-64-v4
else
CPU_ISAS := native
endif
CPU_SO  := $(foreach i,$(CPU_ISAS),$(B)/lib/cairn-cpu-$(i).so)
BACKENDS := $(if $(CPU_SRC),$(CPU_SO))
ifeq ($(CUDA),1)
CUDA_HOME ?= $(patsubst %/bin/,%,$(dir $(realpath $(shell command -v $(NVCC)))))
CUDA_LIB  := $(firstword $(wildcard $(CUDA_HOME)/lib64 $(CUDA_HOME)/lib))
CUDA_OBJ  := $(patsubst kernels/cuda/%.c,$(B)/obj/cuda/%.o,$(wildcard kernels/cuda/*.c)) \
             $(patsubst kernels/cuda/%.cu,$(B)/obj/cuda/%.cu.o,$(wildcard kernels/cuda/*.cu))
CUDA_GEN  := $(foreach a,$(CUDA_ARCHS),-gencode arch=compute_$(a),code=sm_$(a)) -gencode arch=compute_80,code=compute_80
NVCCFLAGS ?= -O3 -lineinfo
BACKENDS  += $(B)/lib/cairn-cuda.so
NCCL_H    := $(firstword $(wildcard $(CUDA_HOME)/include/nccl.h /usr/include/nccl.h /usr/local/include/nccl.h))
BACKENDS  += $(if $(NCCL_H),$(B)/lib/cairn-nccl.so)
endif
ifneq ($(MPI_PC),)
BACKENDS += $(if $(wildcard runtime/world/mpi.c),$(B)/lib/cairn-mpi.so)
endif
PMIX     := $(call have,pmix)
ifeq ($(PMIX),yes)
BACKENDS += $(B)/lib/cairn-pmix.so
endif

# --- tests -----------------------------------------------------------------------------------------------------------
TEST_SRC := $(wildcard tests/runtime/*/*_test.c tests/kernels/*_test.c tests/ckpt/*_test.c tests/conformance/*_test.c \
                       tests/stages/*_test.c tests/tools/*_test.c)
# Those that take longest begin first, in this order, so that no core waits for the last one.
LONG     := fixture_test attention_test decode_test ranks_test matmul_test stage_fault_test tasks_test model_test flash_test train_ranks_test \
            mpirun_test decode_flash_test rollout_engine_test grade_process_test ring_test index_test tokenizer_test rollout_stage_test train_resume_test \
            head_test rope_test dynamic_test stage_test delta_test image_test grpo_test base_test
TESTS    := $(foreach t,$(TEST_SRC),$(B)/tests/$(basename $(notdir $(t))))
TESTS    := $(filter $(TESTS),$(LONG:%=$(B)/tests/%)) $(filter-out $(LONG:%=$(B)/tests/%),$(TESTS))
BATS     := $(wildcard tests/*.bats)
test_room = $(if $(filter tests/runtime/%,$(1)),$(word 3,$(subst /, ,$(1))),$(if $(filter tests/kernels/% tests/conformance/%,$(1)),kernels,$(if $(filter tests/ckpt/%,$(1)),ckpt,all)))

.DEFAULT_GOAL := all
.PHONY: all always archs check-needed demo test test-quick test-programs test-faults test-slurm devcluster test-planted fuzz-grade bench bench-demo lint format info clean help bootstrap

all: check-needed $(PROGRAMS) $(BACKENDS)

check-needed:
ifneq ($(strip $(MISSING)),)
	@echo "cairn: missing libraries: $(strip $(MISSING)); run tools/bootstrap" >&2; exit 1
endif

$(B)/obj/%.o: %.c
	@mkdir -p $(@D)
	$(CC) $(CPPFLAGS) $(CFLAGS) $(EXTRA) -c $< -o $@

# The file changes when the version does, and with it what is made from it.
$(B)/obj/runtime/base/build.o: CPPFLAGS += -DCAIRN_VERSION='"$(VERSION)"'
$(B)/obj/ckpt/convert.o: OPT += $(KERNEL_OPT) # its loops are for the vector unit
$(B)/obj/runtime/base/build.o: $(B)/version
$(B)/version: always
	@mkdir -p $(@D)
	@echo '$(VERSION)' | cmp -s - $@ || echo '$(VERSION)' >$@
always:

define room_rule
$(B)/lib/libcairn_$(1).a: $$(OBJ_$(1))
	@mkdir -p $$(@D)
	@rm -f $$@
	ar rcs $$@ $$^
endef
$(foreach r,$(ROOMS),$(if $(SRC_$(r)),$(eval $(call room_rule,$(r)))))

define cpu_rule
$(B)/obj/cpu-$(1)/%.o: kernels/cpu/%.c
	@mkdir -p $$(@D)
	$$(CC) $$(CPPFLAGS) $$(CFLAGS) $(KERNEL_OPT) -march=$(1) -Wno-psabi -DCAIRN_ISA='"$(1)"' -c $$< -o $$@
$(B)/lib/cairn-cpu-$(1).so: $$(CPU_SRC:kernels/cpu/%.c=$(B)/obj/cpu-$(1)/%.o) $(call lib,kernels base)
	@mkdir -p $$(@D)
	$$(CC) -shared $$(LDFLAGS) $$^ -Wl,--exclude-libs,ALL -o $$@ $(SYS_base)
endef
$(foreach i,$(CPU_ISAS),$(eval $(call cpu_rule,$(i))))

# Host code of the GPU back-end is C; kernels are CUDA C++ and may not fuse a*b+c unless they say fmaf. cuBLASLt is
# opened when it is first needed (RUNPATH, then the loader's own path): mapping it takes 0.15 s and more.
$(B)/obj/cuda/%.o: kernels/cuda/%.c
	@mkdir -p $(@D)
	$(CC) $(CPPFLAGS) $(CFLAGS) -isystem $(CUDA_HOME)/include -c $< -o $@

$(B)/obj/cuda/%.cu.o: kernels/cuda/%.cu
	@mkdir -p $(@D)
	$(NVCC) -std=c++17 $(NVCCFLAGS) --fmad=false $(CUDA_GEN) -I. -Iruntime -MMD -MP -MF $(@:.o=.d) \
		-Xcompiler -fPIC,-fvisibility=hidden,-Wall,-Wextra,-Wno-unused-parameter,-Wno-missing-field-initializers,-ffp-contract=off $(NVCC_EXTRA) -c $< -o $@

$(B)/lib/cairn-cuda.so: $(CUDA_OBJ) $(call lib,kernels base)
	@mkdir -p $(@D)
	$(CC) -shared -Wl,--build-id $(LDFLAGS) $^ -Wl,--exclude-libs,ALL -o $@ -L$(CUDA_LIB) -Wl,-rpath,$(CUDA_LIB) -lcudart_static -lstdc++ $(SYS_base) -lrt

$(B)/lib/cairn-nccl.so: runtime/world/nccl.c $(B)/lib/libcairn_world.a $(B)/lib/libcairn_base.a
	@mkdir -p $(@D) $(B)/obj
	$(CC) $(CPPFLAGS) $(CFLAGS) -isystem $(dir $(NCCL_H)) -isystem $(CUDA_HOME)/include -shared -MF $(B)/obj/nccl.d $^ -Wl,--exclude-libs,ALL -o $@ $(SYS_base)

$(B)/lib/cairn-mpi.so: runtime/world/mpi.c $(B)/lib/libcairn_base.a
	@mkdir -p $(@D)
	$(CC) $(CPPFLAGS) $(CFLAGS) $(call pc_cflags,$(MPI_PC)) -shared -MF $(B)/obj/mpi.d $^ -Wl,--exclude-libs,ALL -o $@ $(call pc_libs,$(MPI_PC)) $(SYS_base)

$(B)/bin/cairn: $(B)/obj/tools/main.o $(call lib,$(LINK_all))
	@mkdir -p $(@D)
	$(CC) $(LDFLAGS) $^ $(call lib,$(LINK_all)) -o $@ $(call sys,$(LINK_all))

$(B)/bin/cairn-check: $(B)/obj/tools/check/main.o $(call lib,$(LINK_all))
	@mkdir -p $(@D)
	$(CC) $(LDFLAGS) $^ $(call lib,$(LINK_all)) -o $@ $(call sys,$(LINK_all))

$(B)/bin/cairn-%: $(B)/obj/stages/%/main.o $(call lib,$(LINK_all))
	@mkdir -p $(@D)
	$(CC) $(LDFLAGS) $^ $(call lib,$(LINK_all)) -o $@ $(call sys,$(LINK_all))

$(B)/bin/wordproblems: $(B)/obj/tools/wordproblems/main.o $(B)/lib/libcairn_base.a
	@mkdir -p $(@D)
	$(CC) $(LDFLAGS) $^ -o $@ $(SYS_base)

$(B)/lib/cairn-pmix.so: runtime/world/pmix.c $(B)/lib/libcairn_base.a
	@mkdir -p $(@D)
	$(CC) $(CPPFLAGS) $(CFLAGS) $(call pc_cflags,pmix) -shared -MF $(B)/obj/pmix.d $< $(B)/lib/libcairn_base.a -Wl,--exclude-libs,ALL -o $@ $(call pc_libs,pmix) $(SYS_base)

define test_rule
$(B)/tests/$(basename $(notdir $(1))): $(1:%.c=$(B)/obj/%.o) $(call lib,$(LINK_$(2)))
	@mkdir -p $$(@D)
	$$(CC) $$(LDFLAGS) $$(filter %.o,$$^) $(call lib,$(LINK_$(2))) -o $$@ $(call sys,$(LINK_$(2))) -lcmocka
endef
$(foreach t,$(TEST_SRC),$(eval $(call test_rule,$(t),$(call test_room,$(t)))))

$(B)/tests/fixture_check: $(B)/obj/tests/fixture_check.o $(call lib,$(LINK_all)) $(BACKENDS)
	@mkdir -p $(@D)
	$(CC) $(LDFLAGS) $< $(call lib,$(LINK_all)) -o $@ $(call sys,$(LINK_all))

# The GPU back-end on an emulated GPU, for conformance without one: its own sources, compiled against tests/emu instead of CUDA.
# Dynamic shared memory has no counterpart in C++ and becomes a pointer on the way. Left out: TMA, cuBLASLt.
EMU_NOT := product_wgmma product_lt
EMU_SRC := $(filter-out $(EMU_NOT),$(basename $(notdir $(wildcard kernels/cuda/*.cu))))
EMU_OBJ := $(EMU_SRC:%=$(B)/obj/emu/%.cu.o) $(B)/obj/emu/emu.o $(B)/obj/emu/devices.o $(B)/obj/emu/absent.o \
           $(patsubst %,$(B)/obj/emu/%.o,$(filter-out $(EMU_NOT),$(basename $(notdir $(wildcard kernels/cuda/*.c)))))
EMU_FLAGS := $(if $(filter address,$(SAN)),$(SANITIZE)) -Itests/emu -I. -Iruntime -Ikernels/cuda -MMD -MP -O2 -g -ffp-contract=off -fno-strict-aliasing -fPIC -fvisibility=hidden -Wall
$(B)/obj/emu/%.cc: kernels/cuda/%.cu Makefile
	@mkdir -p $(@D)
	sed -E 's/extern __shared__ (__align__\([0-9]+\) |alignas\([0-9]+\) )?([A-Za-z_0-9 ]+) ([A-Za-z_0-9]+)\[\];/\2 *\3 = (\2 *)emu_dynamic_shared;/' $< >$@
$(B)/obj/emu/%.cu.o: $(B)/obj/emu/%.cc
	$(CXX) -std=c++17 $(EMU_FLAGS) -Wno-unknown-pragmas -c $< -o $@
$(B)/obj/emu/%.o: kernels/cuda/%.c
	@mkdir -p $(@D)
	$(CC) $(STD) -D_GNU_SOURCE $(EMU_FLAGS) -c $< -o $@
$(B)/obj/emu/emu.o $(B)/obj/emu/devices.o $(B)/obj/emu/absent.o: $(B)/obj/emu/%.o: tests/emu/%.cc
	@mkdir -p $(@D)
	$(CXX) -std=c++17 $(EMU_FLAGS) -c $< -o $@
$(B)/lib/cairn-emu.so: $(EMU_OBJ) $(call lib,kernels base)
	@mkdir -p $(@D)
	$(CXX) -shared -Wl,--build-id $^ -Wl,--exclude-libs,ALL -o $@ $(SYS_base)

# What is measured on a GPU by itself: tests/gpu/bench_NAME.c. bench_model runs a whole model, bench_handover two processes.
GPU_BENCHES := $(patsubst tests/gpu/%.c,$(B)/tests/%,$(filter-out tests/gpu/bench_model.c tests/gpu/bench_products.c tests/gpu/bench_handover.c,$(wildcard tests/gpu/bench_*.c))) $(B)/tests/bf16_errors
$(B)/tests/bench_model $(B)/tests/bench_handover: $(B)/tests/%: $(B)/obj/tests/gpu/%.o $(call lib,$(LINK_all))
	@mkdir -p $(@D)
	$(CC) $(LDFLAGS) $< $(call lib,$(LINK_all)) -o $@ $(call sys,$(LINK_all))
$(GPU_BENCHES): $(B)/tests/%: $(B)/obj/tests/gpu/%.o $(call lib,$(LINK_kernels))
	@mkdir -p $(@D)
	$(CC) $(LDFLAGS) $< $(call lib,$(LINK_kernels)) -o $@ $(call sys,$(LINK_kernels))

# The products below the op table: bits and speed of each kernel. Links the back-end's objects.
$(B)/tests/bench_products: $(B)/tests/%: tests/gpu/%.c $(CUDA_OBJ) $(call lib,kernels base)
	@mkdir -p $(@D)
	$(CC) $(CPPFLAGS) $(CFLAGS) -MF $(B)/obj/$*.d -isystem $(CUDA_HOME)/include $^ $(LDFLAGS) -o $@ -L$(CUDA_LIB) -lcudart_static \
		-lstdc++ $(SYS_base) -lrt

# Fuzz targets: for make test beside fuzz_test.c, and by libFuzzer under sanitizers (make fuzz-grade FUZZ_SECONDS=1800).
FUZZ_TARGETS := extract equal
FUZZ_SECONDS ?= 60
FUZZ_JOBS    ?= 1
$(B)/tests/fuzz_test: $(FUZZ_TARGETS:%=$(B)/obj/tests/fuzz/%.o)
$(FUZZ_TARGETS:%=$(B)/obj/tests/fuzz/%.o) $(B)/obj/tests/runtime/grade/fuzz_test.o: CPPFLAGS += -Itests
$(FUZZ_TARGETS:%=$(B)/fuzz/%): $(B)/fuzz/%: tests/fuzz/%.c tests/fuzz/fuzz.h $(SRC_grade) $(SRC_base)
	@mkdir -p $(@D)
	clang $(STD) -D_GNU_SOURCE -DLIBFUZZER -O1 -g -I. -Iruntime -Itests -fsanitize=fuzzer,address,undefined -fno-sanitize-recover=all \
		-Wno-psabi -pthread -DCAIRN_VERSION='"fuzz"' $(CF_grade) $(call pc_cflags,jansson libxxhash) $(filter %.c,$^) -o $@ $(SYS_grade) $(SYS_base)

# Programs that tests/slurm starts under srun.
$(B)/tests/pmi_hello: $(B)/obj/tests/slurm/pmi_hello.o $(call lib,$(LINK_world))
	@mkdir -p $(@D)
	$(CC) $(LDFLAGS) $< $(call lib,$(LINK_world)) -o $@ $(call sys,$(LINK_world))

# What foreign_test lets grade: a shared object that a process of ours opens, and a program of others, so never sanitized.
$(B)/lib/words_grader.so: tests/runtime/grade/words_grader.c runtime/grade/grader_plugin.h
	@mkdir -p $(@D)
	$(CC) -I. -Iruntime $(CFLAGS) -shared $(LDFLAGS) $< -o $@ -lm
$(B)/tests/foreign_test: | $(B)/lib/words_grader.so $(B)/tests/unruly

$(B)/tests/unruly: tests/runtime/grade/unruly.c
	@mkdir -p $(@D)
	$(CC) $(STD) -D_GNU_SOURCE -O2 -g $(WARN) $< -o $@

# Keeps a stage where tests/slurm/phases.bats wants it; never sanitized: it comes first.
$(B)/lib/hold.so: tests/slurm/hold.c
	@mkdir -p $(@D)
	$(CC) $(STD) -D_GNU_SOURCE -O2 -g $(WARN) -fPIC -shared $< -o $@ -ldl

# The fault campaign: a preloaded shim (never sanitized: it comes first) and its drivers.
$(B)/lib/faultshim.so: $(wildcard tests/faults/shim/*.[ch]) tests/faults/plan.h tests/faults/journal.h
	@mkdir -p $(@D)
	$(CC) -I. $(STD) -O2 -g $(WARN) -fPIC -ftls-model=initial-exec -pthread -shared $(filter %.c,$^) -o $@ -ldl

FAULT_OBJ := $(patsubst %.c,$(B)/obj/%.o,$(wildcard tests/faults/*.c))
$(B)/tests/faults: $(FAULT_OBJ) $(call lib,$(LINK_all)) | $(B)/lib/faultshim.so
	@mkdir -p $(@D)
	$(CC) $(LDFLAGS) $(FAULT_OBJ) $(call lib,$(LINK_all)) -o $@ $(call sys,$(LINK_all))

.SECONDARY:
.SECONDEXPANSION:

# --- goals for people ------------------------------------------------------------------------------------------------
JOBS ?= $(shell nproc 2>/dev/null || echo 2)
RUN  ?= $(B)/runs/tiny
SUB  := $(MAKE) --no-print-directory -j$(JOBS) B=$(B)

bootstrap:
	tools/bootstrap

# What is probed above may only be there after the installation: so these goals start make anew.
demo: bootstrap
	@$(SUB) --silent info all
	$(B)/bin/cairn run recipes/tiny.yaml --run "$(RUN)"
	$(B)/bin/cairn inspect "$(RUN)"

bench-demo: bootstrap
	@$(SUB) --silent all
	for seed in 1 2 3; do $(B)/bin/cairn run recipes/tiny.yaml --run "$(RUN)-seed$$seed" run.seed=$$seed || exit; done
	$(B)/bin/cairn inspect "$(RUN)-seed1" "$(RUN)-seed2" "$(RUN)-seed3"

test-programs: all $(B)/lib/cairn-emu.so $(B)/tests/pmi_hello $(TESTS) $(B)/tests/fixture_check $(B)/tests/faults $(B)/lib/faultshim.so

# Quick tests: those that take less than five seconds of a processor in the ordinary build (SLOW_thread: that the thread sanitizer
# makes minutes of, as they compute rather than share), and the command lines that start no cluster. SAN=address, thread or
# valgrind watches every process they start; a report of any, also of those whose output nobody sees, is a failure.
SLOW_TESTS  := decode_test decode_flash_test fixture_test flash_test tokenizer_test train_ranks_test
SLOW_thread := grpo_test image_test matmul_test model_flash_test model_test model_verbs_test rollout_engine_test
# Under valgrind also those that start more than a hundred programs, of which it translates each anew (ranks_test: 48 s of a processor
# without it): single ranks, tasks and attempts of the same programs run in rollout_stage_test, stage_test, trainer_test and others.
# mpirun_guard_test: valgrind 3.19 knows no pidfd_open, so nothing would be tried.
SLOW_valgrind := $(SLOW_thread) mpirun_guard_test ranks_test stage_fault_test train_resume_test tasks_test rollout_units_test mpirun_test
QUICK       := $(filter-out $(addprefix $(B)/tests/,$(SLOW_TESTS) $(SLOW_$(SAN))),$(TESTS))
QUICK_BATS  := $(if $(filter thread valgrind,$(SAN)),,$(filter-out tests/slurm.bats tests/submit.bats,$(BATS)))

test-quick: bootstrap
	@$(SUB) --silent all $(B)/tests/pmi_hello $(QUICK)
	@echo "NOT RUN, as they take minutes$(if $(SAN), under SAN=$(SAN)): $(SLOW_TESTS) $(SLOW_$(SAN)) $(notdir $(filter-out $(QUICK_BATS),$(BATS)))"
	@rm -rf $(B)/tap-quick
	CAIRN_BUILD=$(B) CAIRN_TAP=$(B)/tap-quick CAIRN_SANITIZE=$(SAN) tests/sanitize/watch prove -j$(JOBS) --timer -e tests/tap $(QUICK_BATS) $(QUICK)

# One test more at once than there are cores: some wait for what they have stopped.
test: bootstrap
	@$(SUB) --silent test-programs
	@rm -rf $(B)/tap
	CAIRN_BUILD=$(B) CAIRN_TAP=$(B)/tap prove -j$$(($(JOBS) + 1)) --timer -e tests/tap $(wildcard tests/*/*.t) $(BATS) $(TESTS)

# Machine code for every GPU that the kernels know (others take the PTX), in a build of its own.
archs:
	@$(MAKE) --no-print-directory --silent -j$(JOBS) B=build-archs CUDA_ARCHS="80 90a 100" build-archs/lib/cairn-cuda.so
	tools/fatbin-archs build-archs/lib/cairn-cuda.so sm_80 sm_90a sm_100 compute_80

# Within the hour on two cores; killed, the next call goes on where it was.
test-faults: bootstrap
	@$(SUB) --silent all $(B)/tests/faults
	CAIRN_BUILD=$(B) $(B)/tests/faults all --jobs $(JOBS) --journal $(B)/faults.journal
	tests/model/commit.t --full

# A Slurm cluster of four nodes on this machine (needs root): what concerns jobs, preemption and lost nodes. Minutes.
test-slurm:
	tools/bootstrap --cluster
	@$(SUB) --silent all $(B)/tests/pmi_hello $(B)/lib/hold.so
	@$(SUB) --silent PLANTED=1 B=build-planted all
	CAIRN_BUILD=$(B) bats --timing tests/slurm.bats $(wildcard tests/slurm/*.bats)

# A shell on such a cluster; it goes with the shell.
devcluster:
	tools/bootstrap --cluster
	@$(SUB) --silent all
	@echo "try: sinfo; cairn submit recipes/tiny.yaml --run /tmp/tiny; cairn status /tmp/tiny --watch; exit takes the cluster down"
	@PATH="$(abspath $(B))/bin:$$PATH" tools/devcluster run $${SHELL:-bash}

test-planted: bootstrap
	@$(SUB) --silent PLANTED=1 B=build-planted all
	@tests/planted/run build-planted f32
	@tests/planted/run build-planted bf16
	@tests/planted/midrun build-planted

fuzz-grade: bootstrap
	@command -v clang >/dev/null || { echo "make fuzz-grade needs clang with libFuzzer (Debian: clang libclang-rt-14-dev)" >&2; exit 1; }
	@$(SUB) --silent $(FUZZ_TARGETS:%=$(B)/fuzz/%) $(B)/tests/fuzz_test
	@set -e; for t in $(FUZZ_TARGETS); do mkdir -p $(B)/fuzz/seeds/$$t $(B)/fuzz/corpus/$$t; done; $(B)/tests/fuzz_test --seeds $(B)/fuzz/seeds
	@set -e; for t in $(FUZZ_TARGETS); do echo "fuzz $$t: $(FUZZ_SECONDS) s in $(FUZZ_JOBS) processes; what fails is kept as $(B)/fuzz/$$t-*"; \
		$(B)/fuzz/$$t $(B)/fuzz/corpus/$$t $(B)/fuzz/seeds/$$t -max_total_time=$(FUZZ_SECONDS) -fork=$(FUZZ_JOBS) -timeout=10 -rss_limit_mb=2048 \
			-max_len=4096 -print_final_stats=1 -artifact_prefix=$(B)/fuzz/$$t-; done

bench: bootstrap
	@$(SUB) --silent all
	$(B)/bin/cairn bench

lint:
	shellcheck tools/gpu-check tools/bootstrap tools/devcluster tests/tap tests/tally tests/sanitize/watch tests/sanitize/bin/mpirun .ci/run
	@for f in $$(git ls-files '*.c' ':!tests' $(if $(filter 1,$(CUDA)),,':!kernels/cuda') $(if $(NCCL_H),,':!runtime/world/nccl.c') $(if $(MPI_PC),,':!runtime/world/mpi.c') $(if $(filter yes,$(PMIX)),,':!runtime/world/pmix.c')); do \
		clang -fsyntax-only $(STD) $(WARN) -Werror -I. -Iruntime -iquote runtime/grade $(if $(filter 1,$(CUDA)),-isystem $(CUDA_HOME)/include $(if $(NCCL_H),-isystem $(dir $(NCCL_H)))) $(CF_ckpt) $(CF_text) $(CF_grade) $(CF_recipe) $(call pc_cflags,$(MPI_PC) $(if $(filter yes,$(PMIX)),pmix)) \
			-DCAIRN_ISA='"x"' -Wno-unknown-warning-option $$f || exit 1; done
	@if git grep -nE '^ +! ' -- '*.bats' | grep -v '||'; then echo "lint: a leading ! takes a command out of errexit, so the test goes on: add || false" >&2; exit 1; fi
	@echo "lint: clean"

help:
	@echo "make             build everything into $(B)/ ($(B)/bin/cairn, the four stages and the gate before them)"
	@echo "make demo        install what is missing, build, run recipes/tiny.yaml to the end, show what came out (RUN=DIR: where)"
	@echo "make test        install what is missing, build, run every test that this machine can run"
	@echo "make test-quick  the quick tests; with SAN=address, thread or valgrind also whatever that reports of any process"
	@echo "make archs       the GPU back-end with machine code of compute capabilities 8.0, 9.0 and 10.0 (others take the PTX)"
	@echo "make test-faults every file operation fails, kills at random moments, races, flipped bits; the commit protocol's model (an hour; goes on after a kill)"
	@echo "make test-slurm  runs as Slurm jobs under fire, on a cluster of four nodes made for it (needs root)"
	@echo "make devcluster  a shell on a Slurm cluster of four nodes on this machine (needs root)"
	@echo "make test-planted  the gate against some 90 mistakes that are made on purpose"
	@echo "make fuzz-grade  feed the graders what nobody would write; FUZZ_SECONDS=60 FUZZ_JOBS=1"
	@echo "make bench       measure this machine and this build"
	@echo "make bench-demo  the demo with three seeds, and the means"
	@echo "make lint        shellcheck, and clang's warnings as errors"
	@echo "make bootstrap   only install what is missing (Debian, Ubuntu; needs root)"
	@echo "make info        what was found on this machine"
	@echo "make clean       remove what was made"
	@echo "Variables: CC, JOBS, RUN, CUDA=0 (no GPU back-end), CUDA_ARCHS=\"80 90a 100\" (default 90a), SAN=address (1; with undefined behaviour), thread: sanitizers, into build-NAME; SAN=valgrind; config.mk may set them"
	@echo "Example:"
	@echo "  make demo RUN=/tmp/tiny"

info:
	@echo "cairn $(VERSION) | $(ARCH) | CPU back-ends: $(CPU_ISAS) | CUDA $(if $(filter 1,$(CUDA)),$(CUDA_HOME) sm_$(CUDA_ARCHS),left out) | NCCL $(if $(NCCL_H),yes,no) | MPI $(if $(MPI_PC),$(MPI_PC),no) | PMIx $(PMIX) | seccomp $(SECCOMP) | HDF5 $(if $(HDF5_PC),$(HDF5_PC) $(shell pkg-config --modversion $(HDF5_PC) 2>/dev/null),no)"

format:
	clang-format -i $$(git ls-files '*.c' '*.h')

clean:
	rm -rf build build-address build-thread

-include $(shell find $(B)/obj -name '*.d' 2>/dev/null)
