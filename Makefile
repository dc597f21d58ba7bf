# paramd: one makefile, not recursive. `make help` lists what it can do.
#
#   make BUILD=release|debug|asan|tsan  CC=gcc|clang
#
# Variants live side by side: release in build/, the others in build/<variant>/.

BUILD ?= release
CC := $(if $(filter default,$(origin CC)),gcc,$(CC))
PYTHON := /usr/bin/python3
# As many jobs as there are processors; makes below this one share them.
ifeq ($(MAKELEVEL),0)
MAKEFLAGS += -j$(shell nproc)
endif

# Contraction (a*b+c in one rounding) is off, so that gcc, clang, nvcc and NVRTC give the same bits for the same rule.
# Vector loops may not trap or set errno; that changes no result.
WARN := -Wall -Wextra -Wshadow -Wconversion -Wvla -Wpointer-arith -Wstrict-prototypes -Wmissing-prototypes -Werror
BASE := -std=c17 -D_GNU_SOURCE -I. -fPIC -fvisibility=hidden -pthread -ffp-contract=off -fno-math-errno $(WARN) -MMD -MP
FLAGS_release := -O3 -g
FLAGS_debug := -O1 -g
IS_CLANG := $(findstring clang,$(CC))
# gcc warns of uninitialised variables by following its own instrumentation; the release build looks for real ones. clang would
# look for the types of functions in what the stand-in's C++ leaves out.
NO_MAYBE := $(if $(IS_CLANG),,-Wno-maybe-uninitialized)
FLAGS_asan := $(NO_MAYBE) -O1 -g -fsanitize=address,undefined $(if $(IS_CLANG),-fno-sanitize=function) -fno-sanitize-recover=all -fno-omit-frame-pointer
FLAGS_tsan := $(NO_MAYBE) -O1 -g -fsanitize=thread
FLAGS_fuzz := -O1 -g -fsanitize=fuzzer-no-link,address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer
ifeq ($(origin FLAGS_$(BUILD)),undefined)
$(error BUILD=$(BUILD) is none of release debug asan tsan)
endif
CFLAGS := $(BASE) $(FLAGS_$(BUILD))
LIBS := -lnanomsg -lmicrohttpd -ljansson -lm
CLIENT_LIBS := -lnanomsg -ljansson -lm

OUT := $(if $(filter release,$(BUILD)),build,build/$(BUILD))
OBJ := build/obj/$(BUILD)-$(notdir $(CC))

# CUDA's headers are enough for the stand-in; nvcc makes the real plug-in.
CUDA_HOME ?= $(firstword $(wildcard /usr/local/cuda /opt/cuda) /usr/local/cuda)
HAVE_CUDA := $(wildcard $(CUDA_HOME)/include/cuda_runtime_api.h)

# What a daemon or an embedded store consists of; mains and test code apart.
MAINS := service/main.c api/paramctl/main.c
DAEMON_SOURCES := $(filter-out $(MAINS) gpu/cuda%,$(wildcard service/base/*.c api/*.c gpu/*.c service/*.c web/*.c web/viz/*.c))
SOURCES := $(DAEMON_SOURCES) $(filter-out $(MAINS),$(wildcard api/client/*.c api/paramctl/*.c))
CLIENT_SOURCES := $(filter-out service/main.c service/settings.c service/notify.c service/transport_% web/% api/paramctl/%,$(SOURCES)) \
	$(wildcard web/viz/*.c)
# All but the doors: what fuzzers ask for.
FUZZED := $(filter-out service/transport_% web/%,$(DAEMON_SOURCES)) $(wildcard web/viz/*.c)
TEST_LIB := $(wildcard tests/lib/*.c)
TESTS := $(wildcard tests/unit/test_*.c tests/device/test_*.c tests/system/test_*.c) $(if $(HAVE_CUDA),$(wildcard tests/cusim/test_*.c))
FUZZERS := $(patsubst tests/fuzz/%.c,%,$(wildcard tests/fuzz/fuzz_*.c))
BENCHES := $(wildcard tests/bench/bench_*.c)
BENCH_LIB := $(filter-out $(BENCHES),$(wildcard tests/bench/*.c))

# Each step says [done/all], its kind and its file; V=1 shows the commands instead. A dry run of the same goals counts the
# steps first, and every make below this one counts on in the same file, one byte a step.
ifeq ($(MAKELEVEL)$(V)$(findstring n,$(firstword -$(MAKEFLAGS))),0)
export STEPS := $(shell mkdir -p build; rm -f build/steps.*; mktemp build/steps.XXXXXX)
export STEP_COUNT := $(shell $(MAKE) -n $(MAKEOVERRIDES) $(MAKECMDGOALS) 2>/dev/null | grep -c '^printf . >>')
endif
say = $(if $(V),,@printf . >>$(STEPS); stat -c '[%s/$(STEP_COUNT)] $(1) $@' $(STEPS);)

objects = $(patsubst %.c,$(OBJ)/%.o,$(1))
TEST_BINS := $(patsubst tests/%.c,$(OUT)/tests/%,$(TESTS))
BENCH_BINS := $(patsubst tests/bench/%.c,$(OUT)/bench/%,$(BENCHES))

.PHONY: all cuda gpu-check-bundle deps demo run test test-bins test-long bench bench-bins fuzz-bins fuzz-long help clean
.DEFAULT_GOAL := all
.SECONDARY:

all: $(OUT)/paramd $(OUT)/paramctl $(OUT)/libparamd.so $(OUT)/libparamd.a cuda

# The loops become vectors only where comparisons may not trap; no result changes. A loop of five instructions takes half as
# long again when it lies across two cache lines, and whether it does is luck.
$(OBJ)/gpu/%.o: CFLAGS += -fno-trapping-math -falign-loops=64

$(OBJ)/%.o: %.c | deps-build
	@mkdir -p $(@D)
	$(call say,CC) $(CC) $(CFLAGS) -c $< -o $@

# brought in by the assembler
$(OBJ)/web/page.o: $(wildcard web/ui/*)

$(OBJ)/all.a: $(call objects,$(if $(filter fuzz,$(BUILD)),$(FUZZED),$(SOURCES)))
	@rm -f $@
	$(call say,AR) ar rcs $@ $^

$(OUT)/paramd: $(OBJ)/service/main.o $(call objects,$(DAEMON_SOURCES))
	@mkdir -p $(@D)
	$(call say,LD) $(CC) $(CFLAGS) -rdynamic $^ $(LIBS) -ldl -o $@

$(OUT)/paramctl: $(OBJ)/api/paramctl/main.o $(OBJ)/all.a
	@mkdir -p $(@D)
	$(call say,LD) $(CC) $(CFLAGS) $^ $(LIBS) -ldl -o $@

$(OUT)/libparamd.so: $(call objects,$(CLIENT_SOURCES))
	@mkdir -p $(@D)
	$(call say,LD) $(CC) $(CFLAGS) -shared -Wl,-soname,libparamd.so $^ $(CLIENT_LIBS) -ldl -o $@

$(OUT)/libparamd.a: $(call objects,$(CLIENT_SOURCES))
	@mkdir -p $(@D)
	@rm -f $@
	$(call say,AR) ar rcs $@ $^

$(OUT)/tests/%: $(OBJ)/tests/%.o $(call objects,$(TEST_LIB)) $(OBJ)/all.a
	@mkdir -p $(@D)
	$(call say,LD) $(CC) $(CFLAGS) $^ $(LIBS) -ldl -o $@

$(OUT)/bench/%: $(OBJ)/tests/bench/%.o $(call objects,$(BENCH_LIB)) $(OBJ)/all.a
	@mkdir -p $(@D)
	$(call say,LD) $(CC) $(CFLAGS) $^ $(LIBS) -ldl -o $@

# ---- the CUDA plug-in --------------------------------------------------------------------------------------------

# paramd-cuda.so: the GPU as a device, apart from the daemon, so that the same daemon starts where there is no CUDA. Built
# where nvcc is; the CUDA runtime is linked in, the driver never.
CUDA_SOURCES := $(wildcard gpu/cuda*.c)
CUDA_KERNELS := $(wildcard gpu/cuda*.cu)
# What the plug-in has of the daemon's, which lends it nothing.
CUDA_SUPPORT := service/base/mem.c service/base/status.c service/base/bytes.c service/base/map.c gpu/pool.c gpu/dtype.c gpu/rule.c \
	gpu/nvrtc.c gpu/program_cuda.c
NVCC := $(wildcard $(CUDA_HOME)/bin/nvcc)
NVCC_TARGETS := 80 90 100
# A contraction would round once where the CPU rounds twice. The three -fno keep the objects free of libstdc++.
NVCC_FLAGS := -O3 -std=c++17 -I. -D_GNU_SOURCE -fmad=false -Xcompiler -fPIC,-fvisibility=hidden,-fno-threadsafe-statics \
	-Xcompiler -fno-exceptions,-fno-rtti $(foreach n,$(NVCC_TARGETS),-gencode arch=compute_$(n),code=sm_$(n)) \
	-gencode arch=compute_100,code=compute_100 -Werror all-warnings -Xptxas -warn-spills --compress-mode=size
CUSIM_SOURCES := $(filter-out tests/cusim/test_%,$(wildcard tests/cusim/*.c))
CXX := $(if $(findstring clang,$(CC)),$(subst clang,clang++,$(CC)),$(subst gcc,g++,$(CC)))
CXX_BASE := -std=c++17 $(filter-out -std=% -Wstrict-prototypes -Wmissing-prototypes,$(BASE)) -fno-exceptions -fno-rtti \
	-fno-threadsafe-statics -Wno-unused-function -Wno-sign-conversion
CUDA_INCLUDE := -isystem $(CUDA_HOME)/include
# a comma where make would take it for its own
, := ,
cuda_objects = $(patsubst %,$(OBJ)/cuda/%.o,$(1))

# Of what nvcc leaves between its steps the PTX stays, X.cu.compute_90.ptx and the like: the stand-in runs it.
$(OBJ)/cuda/%.cu.o $(foreach n,$(NVCC_TARGETS),$(OBJ)/cuda/%.cu.compute_$(n).ptx): %.cu
	@mkdir -p $(OBJ)/cuda/$<.steps
	$(call say,NVC) $(NVCC) $(NVCC_FLAGS) --keep --keep-dir $(OBJ)/cuda/$<.steps -MMD -MF $(OBJ)/cuda/$<.d -MT $(OBJ)/cuda/$<.o \
		-c $< -o $(OBJ)/cuda/$<.o
	@for n in $(NVCC_TARGETS); do mv $(OBJ)/cuda/$<.steps/*.compute_$$n.ptx $(OBJ)/cuda/$<.compute_$$n.ptx; done
	@rm -r $(OBJ)/cuda/$<.steps
$(OBJ)/cuda/%.c.o: %.c
	@mkdir -p $(@D)
	$(call say,CC) $(CC) $(CFLAGS) $(CUDA_INCLUDE) -c $< -o $@

# Sanitizers have no say in what the driver does, so other variants have no plug-in but the stand-in's.
ifeq ($(BUILD),release)
ifneq ($(NVCC),)
cuda: $(OUT)/paramd-cuda.so
else
# Part of `all`, so it says something only to those who ask for it by name.
cuda:
ifneq ($(filter cuda,$(MAKECMDGOALS)),)
	@echo "paramd-cuda.so needs nvcc, which is not in $(CUDA_HOME); README.md says how to get it under \"A GPU\""; false
endif
endif
endif
$(OUT)/paramd-cuda.so: $(call cuda_objects,$(CUDA_SOURCES) $(CUDA_KERNELS)) $(call objects,$(CUDA_SUPPORT))
	@mkdir -p $(@D)
	$(call say,LD) $(CC) $(CFLAGS) -shared -Wl,--no-undefined -Wl,--exclude-libs,ALL -Wl,-z,relro,-z,now $^ \
		-L$(CUDA_HOME)/lib64 -lcudart_static -ldl -lrt -lpthread -lm -o $@

# ---- the stand-in for CUDA ---------------------------------------------------------------------------------------

# paramd-cusim.so is the CUDA plug-in on a stand-in for the CUDA runtime, with kernels compiled as C++: it runs without a
# GPU. It needs CUDA's headers, no more. See tests/README.md.
# What runs on the stand-in is built apart from the plug-in for nvcc: same sources, other kernels.
cusim_objects = $(patsubst %,$(OBJ)/cusim/%.o,$(1))

# The stand-in's own queues are no business of the sanitizers': it tells them what CUDA promises, by hand. What it runs
# for others (kernels, PTX) is instrumented.
$(OBJ)/tests/cusim/%.o: CFLAGS := $(BASE) -O2 -g $(CUDA_INCLUDE)
$(OBJ)/tests/cusim/test_%.o $(OBJ)/tests/cusim/ptxi_run.o: CFLAGS := $(BASE) $(FLAGS_$(BUILD)) $(CUDA_INCLUDE)

$(OBJ)/cusim/%.cu.o: %.cu tests/cusim/cusim_device.h
	@mkdir -p $(@D)
	$(call say,CXX) $(CXX) $(CXX_BASE) $(FLAGS_$(BUILD)) $(CUDA_INCLUDE) -x c++ \
		-include tests/cusim/cusim_device.h -c $< -o $@
$(OBJ)/cusim/%.c.o: %.c
	@mkdir -p $(@D)
	$(call say,CC) $(CC) $(CFLAGS) $(CUDA_INCLUDE) -c $< -o $@

ifneq ($(HAVE_CUDA),)
# The functions of CUDA that each source of the plug-in calls, but for those that cannot fail, for the tests that make each of
# them fail.
$(OBJ)/cusim/calls.c: $(call cusim_objects,$(CUDA_SOURCES)) Makefile
	$(call say,GEN) { echo '#include "tests/cusim/cusim.h"'; echo 'const struct cusim_call cusim_calls[] = {'; \
		nm -A -u $(filter %.o,$^) | grep -v 'cudaGet\(LastError\|Error.*\)$$' | \
		sed -n 's/.*\/\(\w*\)\.c\.o:.* U \(cuda[A-Z]\w*\)$$/{"\1", "\2"},/p' | sort -u; echo '{0, 0}};'; } > $@
$(OBJ)/cusim/calls.o: $(OBJ)/cusim/calls.c tests/cusim/cusim.h
	$(call say,CC) $(CC) $(CFLAGS) -c $< -o $@
$(OUT)/paramd-cusim.so: $(call cusim_objects,$(CUDA_SOURCES) $(CUDA_KERNELS)) $(OBJ)/cusim/calls.o \
		$(call objects,$(CUSIM_SOURCES) $(CUDA_SUPPORT))
	@mkdir -p $(@D)
	$(call say,LD) $(CC) $(CFLAGS) -shared -Wl,-Bsymbolic $(if $(filter release,$(BUILD)),-Wl$(,)-z$(,)defs) $^ -ldl -lm -o $@

# paramd-ptx.so is the real plug-in's objects on the stand-in, which runs the PTX that nvcc made of their kernels.
PTX_TEXTS := $(foreach n,$(NVCC_TARGETS),$(OBJ)/cusim/compute_$(n).ptx)
$(PTX_TEXTS): $(OBJ)/cusim/%.ptx: $(foreach k,$(CUDA_KERNELS),$(OBJ)/cuda/$(k).%.ptx)
	@mkdir -p $(@D)
	$(call say,PTX) cat $^ > $@
$(OBJ)/cusim/tests/cusim/nvcc/nvcc.c.o: CFLAGS += -DKEPT='"$(OBJ)/cusim/"'
$(OBJ)/cusim/tests/cusim/nvcc/nvcc.c.o: $(PTX_TEXTS)
$(OUT)/paramd-ptx.so: $(call cuda_objects,$(CUDA_SOURCES) $(CUDA_KERNELS)) $(call cusim_objects,tests/cusim/nvcc/nvcc.c) \
		$(call objects,$(CUSIM_SOURCES) $(CUDA_SUPPORT))
	@mkdir -p $(@D)
	$(call say,LD) $(CC) $(CFLAGS) -shared -Wl,-Bsymbolic,-z,defs $^ -ldl -lm -o $@

# Tests of the stand-in itself, with a small back end in which faults can be planted.
CUSIM_SAMPLE := $(call cusim_objects,tests/cusim/sample/backend.c tests/cusim/sample/kernels.cu)
$(OUT)/tests/cusim/%: $(OBJ)/tests/cusim/%.o $(CUSIM_SAMPLE) $(call objects,$(CUSIM_SOURCES) $(TEST_LIB)) $(OBJ)/all.a
	@mkdir -p $(@D)
	$(call say,LD) $(CC) $(CFLAGS) $(filter %.o,$^) $(OBJ)/all.a $(LIBS) -ldl -o $@
$(OUT)/tests/cusim/test_group_nccl: $(call cusim_objects,$(CUDA_SOURCES) $(CUDA_KERNELS))
# The same kernels as real PTX, for every variant, of which two may be built at once.
CUSIM_PTX := build/obj/cusim/sample.ptx
$(CUSIM_PTX): tests/cusim/sample/kernels.cu tests/cusim/sample/kernels.h gpu/half.h
	@mkdir -p $(@D)
	$(call say,PTX) $(CUDA_HOME)/bin/nvcc -ptx -std=c++17 -fmad=false -arch=compute_90 -I. $< -o $@.$(BUILD) && mv $@.$(BUILD) $@
$(OUT)/tests/cusim/test_ptxi: | $(if $(wildcard $(CUDA_HOME)/bin/nvcc),$(CUSIM_PTX))
else
$(OUT)/paramd-cusim.so:
	@echo "$@ is not built: no CUDA headers in $(CUDA_HOME)"
endif

# ---- the check on a GPU ------------------------------------------------------------------------------------------

# build/paramd-gpu-check.tar.gz is all that tests/gpu/check.sh wants: nothing is built on the machine that has the GPU.
# tests/system/test_gpu_check.py makes one with the stand-in's plug-in in place of the real one, and runs it.
GPU_CHECK_PARTS := paramd libparamd.so tests/device/test_device tests/device/test_rules tests/device/test_program \
	tests/device/test_cuda_program tests/device/test_sums tests/unit/test_store tests/system/test_same_host tests/gpu/bench_gpu
$(OUT)/tests/gpu/bench_gpu: $(OBJ)/tests/gpu/bench_gpu.o $(OBJ)/tests/bench/bench.o $(OBJ)/all.a
	@mkdir -p $(@D)
	$(call say,LD) $(CC) $(CFLAGS) $^ $(LIBS) -ldl -o $@
gpu-check-bundle: $(addprefix build/,$(GPU_CHECK_PARTS)) build/paramd-cuda.so
	@sh tests/gpu/bundle.sh build/paramd-cuda.so build/paramd-gpu-check.tar.gz

# ---- what the build needs ---------------------------------------------------------------------------------------

# What these packages are for stands in README.md. Debian 12 has no libclang-rt-dev, later releases no libclang-rt-14-dev.
DEBIAN := $(shell . /etc/os-release; echo $$VERSION_ID)
DEPS_BUILD := gcc libc6-dev libnanomsg-dev libmicrohttpd-dev libjansson-dev
DEPS_RUN := python3 python3-numpy python3-sklearn
DEPS_TEST := $(DEPS_RUN) clang $(if $(filter 12,$(DEBIAN)),libclang-rt-14-dev,libclang-rt-dev) nanomsg-utils curl procps \
	librsvg2-bin fonts-liberation
DEPS_BENCH := redis-server python3

# Installs the packages that are missing. A machine that has everything never asks the package manager. Waits while another
# program holds apt's lock.
need = @missing=$$(for p in $(1); do dpkg-query -W -f '$${Status}' $$p 2>/dev/null | grep -q 'ok installed' || printf '%s ' $$p; done); \
	[ -n "$$missing" ] || exit 0; \
	apt="apt-get -qq -o DPkg::Lock::Timeout=300"; \
	sudo=$$([ "$$(id -u)" = 0 ] || command -v sudo); \
	if [ "$$(id -u)" != 0 ] && [ -z "$$sudo" ]; then \
		echo "packages are missing, and there is no sudo to install them with. As root: apt-get update && apt-get install -y --no-install-recommends $$missing"; \
		exit 1; \
	fi; \
	echo "installing: $$missing"; \
	mkdir -p build && \
	{ $$sudo $$apt update && \
	$$sudo env DEBIAN_FRONTEND=noninteractive $$apt install -y --no-install-recommends $$missing; } >build/apt.log 2>&1 || \
	{ cat build/apt.log; exit 1; }

.PHONY: deps-build deps-run deps-test deps-bench
deps-build:
	$(call need,$(DEPS_BUILD))
deps-run: deps-build
	$(call need,$(DEPS_RUN))
deps-test: deps-run
	$(call need,$(DEPS_TEST))
deps-bench: deps-run
	$(call need,$(DEPS_BENCH))
# One call, since a package manager serves one at a time.
deps:
	$(call need,$(DEPS_BUILD) $(DEPS_TEST) $(DEPS_BENCH))

# ---- what one does with it --------------------------------------------------------------------------------------

demo: deps-run all
	@$(PYTHON) api/python/examples/demo.py $(ARGS)

run: all
	@build/paramd

test-bins: $(TEST_BINS) $(OUT)/tests/gpu/bench_gpu $(if $(HAVE_CUDA),$(OUT)/paramd-cusim.so) \
	$(if $(filter release,$(BUILD)),$(if $(NVCC),$(OUT)/paramd-ptx.so))

# The unit, device and system tests in release and asan builds, those with threads in a tsan build, unit tests by clang, the
# Python tests, the document checks, and each fuzzer for FUZZ_SECONDS. All of it on a machine without a GPU, traffic on loopback only.
FUZZ_SECONDS ?= 20
SCRIPTS := $(wildcard tests/unit/test_*.sh tests/unit/test_*.py tests/device/test_*.sh tests/system/test_*.sh tests/system/test_*.py) \
	$(if $(HAVE_CUDA),,tests/cusim/without_cuda.sh)
# those in which several threads take part
THREADED := $(filter tests/cusim/test_cusim.c tests/cusim/test_nccl.c tests/cusim/test_group_nccl.c %test_mailbox.c %test_log.c \
	%test_store.c %test_server.c %test_plane.c tests/device/test_device.c tests/device/test_cuda.c tests/device/test_cuda_program.c \
	tests/system/%,$(TESTS))
# All variants share the processors: none of them waits for the last file of another.
.PHONY: test-builds test-release test-asan test-tsan test-clang
test-builds: test-release test-asan test-tsan test-clang fuzz-bins
test-release test-asan: test-%:
	@$(MAKE) --no-print-directory BUILD=$* all test-bins
test-tsan:
	@$(MAKE) --no-print-directory BUILD=tsan all $(if $(HAVE_CUDA),build/tsan/paramd-cusim.so) $(patsubst tests/%.c,build/tsan/tests/%,$(THREADED))
# The other compiler: without warnings, and what C leaves to it comes out the same.
BY_CLANG := $(patsubst tests/%.c,build/clang/tests/%,$(filter tests/unit/% tests/device/test_device.c tests/device/test_rules.c,$(TESTS)))
test-clang:
	@$(MAKE) --no-print-directory CC=clang OUT=build/clang $(addprefix build/clang/,paramd paramctl libparamd.so) $(BY_CLANG)
# The longest come first, the shortest last, so that none is left over at the end.
RUN := $(patsubst tests/%.c,build/tsan/tests/%,$(THREADED)) $(SCRIPTS) $(patsubst %,build/fuzz/%,$(FUZZERS)) \
	$(patsubst tests/%.c,build/asan/tests/%,$(filter-out tests/device/test_kernels.c,$(TESTS))) \
	$(BY_CLANG) $(patsubst tests/%.c,build/tests/%,$(TESTS))
# Those that mostly wait, for time-outs of a daemon or for one another.
WAITING := $(filter %/test_remote %/test_same_host %/test_rest.py %/test_cuda.py %/test_python.py %/test_paramctl.py \
	%/test_memory.py,$(RUN))
test: deps-test
	@$(MAKE) --no-print-directory test-builds
	@FUZZ_SECONDS=$(FUZZ_SECONDS) tests/run -t $$((580 + $(FUZZ_SECONDS))) -w "$(WAITING)" $(filter-out $(WAITING),$(RUN))

# The suites that run on the CUDA stand-in as on every device, lazy, random and eager; test-long takes other seeds so often.
SIM_ROUNDS := 20
SIM_SUITES := $(addprefix build/tests/,device/test_device device/test_cuda device/test_program unit/test_store unit/test_state \
	unit/test_updater_program)
test-long: deps-test
	@$(MAKE) --no-print-directory test FUZZ_SECONDS=600
	@for round in $$(seq $(SIM_ROUNDS)); do PARAMD_TEST_ROUND=$$round tests/run -t 3600 $(SIM_SUITES) || exit 1; done
	@LONG=1 tests/run -t 3600 -j 1 build/tests/unit/test_store_model tests/system/test_many_keys.py tests/system/test_hostile.py build/tests/system/test_hostile_flood
	@LONG=1 tests/run -t 4200 -j 1 tests/system/test_churn.py

# README's commands in a bare root of the next Debian; continuous integration does it with Debian 12.
.PHONY: test-debian13
test-debian13:
	@tests/bare_root trixie 'make demo' 'make test'

bench: deps-bench all
	@$(MAKE) --no-print-directory bench-bins
	@for b in $(BENCH_BINS); do $$b || exit 1; done
bench-bins: $(BENCH_BINS)

# Fuzzers are a variant of their own: clang, with coverage in everything they test.
fuzz-bins:
	@$(MAKE) --no-print-directory BUILD=fuzz CC=clang $(patsubst %,build/fuzz/%,$(FUZZERS))
$(OBJ)/lib.a: $(call objects,tests/lib/books.c tests/lib/late_device.c)
	@rm -f $@
	$(call say,AR) ar rcs $@ $^
build/fuzz/%: $(OBJ)/tests/fuzz/%.o $(OBJ)/lib.a $(OBJ)/all.a
	@mkdir -p $(@D)
	$(call say,LD) $(CC) $(CFLAGS) -fsanitize=fuzzer $^ $(LIBS) -ldl -o $@
fuzz-long: deps-test fuzz-bins
	@FUZZ_SECONDS=3600 tests/run -t 4000 $(patsubst %,build/fuzz/%,$(FUZZERS))
	@$(MAKE) --no-print-directory BUILD=asan build/asan/paramd build/asan/tests/system/test_hostile_flood
	@LONG=1 tests/run -t 4000 -j 1 build/asan/tests/system/test_hostile_flood

help:
	@echo "make            build/paramd build/paramctl build/libparamd.so build/libparamd.a; build/paramd-cuda.so where nvcc is"
	@echo "make demo       4 trainers learn handwritten digits over the store, sync and async"
	@echo "make run        the daemon alone, on 127.0.0.1"
	@echo "make test       all tests (10 to 20 minutes on 2 cores); make test-long for more"
	@echo "make test-debian13  both of README's commands in a bare Debian 13 made by debootstrap; takes root"
	@echo "make bench      push, pull and update in figures on this machine, beside others"
	@echo "make fuzz-long  each fuzzer for an hour, then a million hostile frames at a daemon under the address sanitizer"
	@echo "make gpu-check-bundle  a tar to unpack on a machine with a GPU, and check.sh in it to run there"
	@echo "make deps       installs the Debian packages that are missing; the targets above do so themselves"
	@echo "BUILD=release|debug|asan|tsan  CC=gcc|clang  V=1"

-include $(shell find $(OBJ) -name '*.d' 2>/dev/null)

clean:
	rm -rf build
