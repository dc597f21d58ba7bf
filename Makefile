# paramd: one makefile, not recursive. `make help` lists what it can do.
#
#   make BUILD=release|debug|asan|tsan  CC=gcc|clang
#
# Variants live side by side: release in build/, the others in build/<variant>/.

BUILD ?= release
CC := $(if $(filter default,$(origin CC)),gcc,$(CC))
PYTHON := /usr/bin/python3

# Contraction (a*b+c in one rounding) is off, so that gcc, clang, nvcc and NVRTC give the same bits for the same rule.
# Vector loops may not trap or set errno; that changes no result.
WARN := -Wall -Wextra -Wshadow -Wconversion -Wvla -Wpointer-arith -Wstrict-prototypes -Wmissing-prototypes -Werror
BASE := -std=c17 -D_GNU_SOURCE -I. -fPIC -fvisibility=hidden -pthread -ffp-contract=off -fno-math-errno $(WARN) -MMD -MP
FLAGS_release := -O3 -g
FLAGS_debug := -O1 -g
FLAGS_asan := -O1 -g -fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer
FLAGS_tsan := -O1 -g -fsanitize=thread
ifeq ($(origin FLAGS_$(BUILD)),undefined)
$(error BUILD=$(BUILD) is none of release debug asan tsan)
endif
CFLAGS := $(BASE) $(FLAGS_$(BUILD))
LIBS := -lnanomsg -lmicrohttpd -ljansson -lm
CLIENT_LIBS := -lnanomsg -ljansson -lm

OUT := $(if $(filter release,$(BUILD)),build,build/$(BUILD))
OBJ := build/obj/$(BUILD)-$(notdir $(CC))

# What a daemon or an embedded store consists of; mains and test code apart.
MAINS := service/main.c api/paramctl/main.c
DAEMON_SOURCES := $(filter-out $(MAINS),$(wildcard service/base/*.c api/*.c gpu/*.c service/*.c web/*.c))
SOURCES := $(DAEMON_SOURCES) $(filter-out $(MAINS),$(wildcard api/client/*.c api/paramctl/*.c))
CLIENT_SOURCES := $(filter-out service/main.c service/settings.c service/transport_% web/% api/paramctl/%,$(SOURCES))
TEST_LIB := $(wildcard tests/lib/*.c)
TESTS := $(wildcard tests/unit/test_*.c tests/device/test_*.c tests/system/test_*.c)
BENCHES := $(wildcard tests/bench/bench_*.c)

# what is done, in a word; V=1 shows the commands
say = $(if $(V),,@printf '%-3s %s\n' $(1) $@;)

objects = $(patsubst %.c,$(OBJ)/%.o,$(1))
TEST_BINS := $(patsubst tests/%.c,$(OUT)/tests/%,$(TESTS))
BENCH_BINS := $(patsubst tests/bench/%.c,$(OUT)/bench/%,$(BENCHES))

.PHONY: all deps demo run test test-long bench fuzz help clean
.DEFAULT_GOAL := all
.SECONDARY:

all: $(OUT)/paramd $(OUT)/paramctl $(OUT)/libparamd.so $(OUT)/libparamd.a

$(OBJ)/%.o: %.c | deps-build
	@mkdir -p $(@D)
	$(call say,CC) $(CC) $(CFLAGS) -c $< -o $@

$(OBJ)/all.a: $(call objects,$(SOURCES))
	@rm -f $@
	$(call say,AR) ar rcs $@ $^

$(OUT)/paramd: $(OBJ)/service/main.o $(call objects,$(DAEMON_SOURCES))
	@mkdir -p $(@D)
	$(call say,LD) $(CC) $(CFLAGS) -rdynamic $^ $(LIBS) -ldl -o $@

$(OUT)/paramctl: $(OBJ)/api/paramctl/main.o $(OBJ)/all.a
	$(call say,LD) $(CC) $(CFLAGS) $^ $(LIBS) -ldl -o $@

$(OUT)/libparamd.so: $(call objects,$(CLIENT_SOURCES))
	@mkdir -p $(@D)
	$(call say,LD) $(CC) $(CFLAGS) -shared -Wl,-soname,libparamd.so $^ $(CLIENT_LIBS) -ldl -o $@

$(OUT)/libparamd.a: $(call objects,$(CLIENT_SOURCES))
	@rm -f $@
	$(call say,AR) ar rcs $@ $^

$(OUT)/tests/%: $(OBJ)/tests/%.o $(call objects,$(TEST_LIB)) $(OBJ)/all.a
	@mkdir -p $(@D)
	$(call say,LD) $(CC) $(CFLAGS) $^ $(LIBS) -ldl -o $@

$(OUT)/bench/%: $(OBJ)/tests/bench/%.o $(call objects,$(TEST_LIB)) $(OBJ)/all.a
	@mkdir -p $(@D)
	$(call say,LD) $(CC) $(CFLAGS) $^ $(LIBS) -ldl -o $@

# ---- what the build needs ---------------------------------------------------------------------------------------

DEPS_BUILD := gcc libc6-dev libnanomsg-dev libmicrohttpd-dev libjansson-dev
DEPS_RUN := python3 python3-numpy python3-sklearn
DEPS_TEST := $(DEPS_RUN) clang libclang-rt-14-dev nanomsg-utils curl procps
DEPS_BENCH := redis-server libhiredis-dev

# install, if missing: one shell line, so that a machine that has everything never asks the package manager
need = @missing=$$(dpkg-query -W -f '$${Package} $${Status}\n' $(1) 2>/dev/null | awk '/ok installed/{print $$1}' > build/.have; \
	for p in $(1); do grep -qx "$$p" build/.have || printf '%s ' "$$p"; done); \
	if [ -n "$$missing" ]; then echo "installing: $$missing"; \
	sudo=$$([ "$$(id -u)" = 0 ] || echo sudo); \
	$$sudo apt-get update -qq && $$sudo env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $$missing; fi

.PHONY: deps-build deps-run deps-test deps-bench
build/.made:
	@mkdir -p build && touch $@
deps-build: | build/.made
	$(call need,$(DEPS_BUILD))
deps-run: | build/.made
	$(call need,$(DEPS_RUN))
deps-test: | build/.made
	$(call need,$(DEPS_TEST))
deps-bench: | build/.made
	$(call need,$(DEPS_BENCH))
deps: deps-build deps-run deps-test deps-bench

-include $(shell find build/obj -name '*.d' 2>/dev/null)

clean:
	rm -rf build
