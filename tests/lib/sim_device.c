#include "tests/lib/sim_device.h"

#include "gpu/plugin.h"
#include "tests/lib/nvrtc.h"
#include "tests/lib/test.h"

#include <dlfcn.h>
#include <libgen.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

enum { MEMORY = 1 << 30, SLOT_SIZE = 64 << 10, PATIENCE_MS = 60000 };

static const char *told(void) { return getenv("PARAMD_TEST_PLUGIN"); }

bool sim_replaced(void) { return told() != NULL; }

/* The test lies in build/.../tests/unit or tests/device. */
static bool find(char out[PATH_MAX + 40])
{
    char own[PATH_MAX];

    if (told() != NULL) {
        snprintf(out, PATH_MAX + 40, "%s", told());
        return true;                 /* that it is not there shall be seen */
    }
    if (test_lacks("cuda") || realpath("/proc/self/exe", own) == NULL) return false;
    const char *other = getenv("PARAMD_TEST_SIM");
    snprintf(out, PATH_MAX + 40, "%s/%.30s", dirname(dirname(dirname(own))), other != NULL ? other : "paramd-cusim.so");
    return access(out, R_OK) == 0;
}

bool sim_is_ptx(void) { return getenv("PARAMD_TEST_SIM") != NULL; }

const char *sim_path(void)
{
    static char path[PATH_MAX + 40];
    return find(path) ? path : NULL;
}

bool sim_present(void) { return sim_path() != NULL; }

/* dlopen again only finds what is open, and the table's address. */
static void *symbol(const char *name)
{
    char path[PATH_MAX + 40];
    void *so = find(path) ? dlopen(path, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE) : NULL, *at = so != NULL ? dlsym(so, name) : NULL;

    if (at == NULL) test_fail(__FILE__, __LINE__, "the stand-in has no %s", name);
    return at;
}

const struct device_plugin *sim_plugin(void) { return symbol(DEVICE_PLUGIN_SYMBOL); }

static enum status replaced_device_new(struct device **out, struct error *e)
{
    const char *chunk = getenv("PARAMD_TEST_CHUNK");

    setenv("PARAMD_CUDA_PLUGIN", told(), 1);
    return cuda_device_new(&(struct card){.chunk_size = chunk != NULL ? strtoul(chunk, NULL, 10) : 0}, out, e);
}

enum status sim_anew(unsigned seed, unsigned cards, struct error *e)
{
    void (*reset)(int, size_t, enum cusim_policy, uint64_t) = (void (*)(int, size_t, enum cusim_policy, uint64_t))symbol("cusim_reset");
    const char *round = getenv("PARAMD_TEST_ROUND");
    char path[PATH_MAX + 40];

    seed += (round != NULL ? (unsigned)atoi(round) : 0) * 30 * CUSIM_POLICIES;
    if (!find(path)) return error_set(e, REASON_UNIMPLEMENTED, "no stand-in was built");
    setenv("PARAMD_CUDA_PLUGIN", path, 1);
    reset((int)cards, MEMORY, (enum cusim_policy)(seed % CUSIM_POLICIES), seed);
    return STATUS_OK;
}

static enum status open_card(unsigned number, struct device **out, struct error *e)
{
    return cuda_device_new(&(struct card){.number = number, .chunk_size = 1, .slot_size = SLOT_SIZE}, out, e);
}

static enum status open_device(unsigned seed, struct device **out, struct error *e)
{
    if (told() != NULL) return replaced_device_new(out, e);
    enum status s = sim_anew(seed, 2, e);
    return s != STATUS_OK ? s : open_card(seed % 2, out, e);
}

enum status sim_device_new(unsigned seed, struct device **out, struct error *e)
{
    setenv("PARAMD_NVRTC", "off", 1);
    return open_device(seed, out, e);
}

enum status sim_compiling_device_new(unsigned seed, struct device **out, struct error *e)
{
    char path[PATH_MAX + 40];

    need_nvrtc();
    if (told() != NULL) unsetenv("PARAMD_NVRTC");
    else if (find(path)) setenv("PARAMD_NVRTC", path, 1);
    return open_device(seed, out, e);
}

enum status sim_cards_new(unsigned seed, unsigned count, struct device **out, struct error *e)
{
    enum status s = sim_anew(seed, count, e);

    setenv("PARAMD_NVRTC", "off", 1);
    /* A rank is late where the machine is busy, too. */
    if (s == STATUS_OK) ((void (*)(unsigned))symbol("cusim_patience_ms"))(PATIENCE_MS);
    for (unsigned i = 0; i < count && s == STATUS_OK; i++) s = open_card(i, &out[i], e);
    return s;
}

void sim_nccl(bool is_there)
{
    if (is_there && sim_replaced()) return;
    setenv("PARAMD_NCCL", is_there && sim_present() ? sim_path() : "/nowhere/libnccl.so.2", 1);
}

void sim_hold_compiler(bool on) { ((void (*)(int))symbol("cusim_hold_compiler"))(on); }

void sim_thread(int *card, int *error) { ((void (*)(int *, int *))symbol("cusim_thread"))(card, error); }

void sim_thread_set(int card) { ((void (*)(int))symbol("cusim_thread_set"))(card); }

void *sim_array_new(size_t size)
{
    void *at = NULL;

    if (((int (*)(void **, size_t))symbol("cusim_array_new"))(&at, size) != 0) test_fail(__FILE__, __LINE__, "no array");
    return at;
}

void sim_array_copy(void *to, const void *from, size_t size)
{
    if (((int (*)(void *, const void *, size_t))symbol("cusim_array_copy"))(to, from, size) != 0)
        test_fail(__FILE__, __LINE__, "an array was not copied");
}

int sim_pending(void) { return ((int (*)(void))symbol("cusim_pending"))(); }

struct cusim_stats sim_stats(void)
{
    struct cusim_stats s;
    ((void (*)(struct cusim_stats *))symbol("cusim_get_stats"))(&s);
    return s;
}

void sim_fail(const char *function, int nth, int error)
{
    ((void (*)(const char *, int, int))symbol("cusim_fail"))(function, nth, error);
}

void sim_skip(const char *function, int nth)
{
    ((void (*)(const char *, int))symbol("cusim_skip"))(function, nth);
}

const struct cusim_call *sim_calls(void) { return symbol("cusim_calls"); }

void sim_fault_kernel(int nth, int error) { ((void (*)(int, int))symbol("cusim_fault_kernel"))(nth, error); }

void sim_nccl_async_error(int error) { ((void (*)(int))symbol("cusim_nccl_async_error"))(error); }

static bool at_once(void *argument)
{
    (void)argument;
    return true;
}

void sim_enqueue(void *stream, bool (*ready)(void *argument), void (*run)(void *argument), void *argument)
{
    void (*enqueue)(void *, bool (*)(void *), void (*)(void *), void *) = symbol("cusim_enqueue");
    enqueue(stream, ready != NULL ? ready : at_once, run, argument);
}

const char *sim_remains(void)
{
    static char text[300];
    struct cusim_stats s = {0};
    long long blocks = (long long)sim_plugin()->mem_live();

    if (told() == NULL) s = sim_stats();

    if (blocks == 0 && s.live_bytes == 0 && s.live_pinned == 0 && s.live_streams == 0 && s.live_events == 0 &&
        s.live_libraries == 0 && s.mistakes == 0 && s.default_stream_uses == 0 && s.pageable_copies == 0) return NULL;
    snprintf(text, sizeof text, "%lld blocks, %llu + %llu bytes, %llu streams, %llu events, %llu libraries; %llu mistakes, "
             "%llu uses of stream 0, %llu copies of pageable memory", blocks, (unsigned long long)s.live_bytes,
             (unsigned long long)s.live_pinned, (unsigned long long)s.live_streams, (unsigned long long)s.live_events,
             (unsigned long long)s.live_libraries, (unsigned long long)s.mistakes,
             (unsigned long long)s.default_stream_uses, (unsigned long long)s.pageable_copies);
    return text;
}
