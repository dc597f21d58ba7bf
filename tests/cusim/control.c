/* The stand-in's state, its lock, what a test or the environment sets, and what they may read. */
#include "tests/cusim/sim.h"

#include <inttypes.h>
#include <sched.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

struct sim sim;

static unsigned next_ticket, served;
static __thread struct {
    unsigned life;
    int device;
    cudaError_t error;
    unsigned locks; /* a host function of a stream runs under the lock, and may not call; that is told, not hung */
} mine;

void *sim_new(size_t size)
{
    void *p = calloc(1, size > 0 ? size : 1);
    if (p == NULL) {
        sim_say("no memory for the stand-in itself");
        abort();
    }
    return p;
}

void sim_say(const char *format, ...)
{
    char line[300];
    va_list args;

    va_start(args, format);
    vsnprintf(line, sizeof line, format, args);
    va_end(args);
    fprintf(stderr, "cusim: %s\n", line);
}

double sim_now_s(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* ---- random numbers -------------------------------------------------------------------------------------------- */

uint64_t sim_random(void)
{
    sim.random ^= sim.random << 13;
    sim.random ^= sim.random >> 7;
    sim.random ^= sim.random << 17;
    return sim.random >> 11;
}

bool sim_chance(unsigned in) { return sim_random() % in == 0; }

static uint64_t common_divisor(uint64_t a, uint64_t b)
{
    while (b != 0) {
        uint64_t rest = a % b;
        a = b;
        b = rest;
    }
    return a;
}

struct order order_of(uint64_t count, uint64_t seed)
{
    struct order o = {count, 0, 1};

    if (seed == 0 || count < 2) return o;
    o.at = seed % count;
    o.step = 1 + (seed >> 16) % count;
    while (common_divisor(o.step, count) != 1) o.step++;
    return o;
}

struct order order_new(uint64_t count) { return order_of(count, sim.policy == CUSIM_EAGER ? 0 : sim_random() | 1); }

uint64_t order_next(struct order *o)
{
    uint64_t now = o->at;
    o->at = (o->at + o->step) % o->count;
    return now;
}

/* ---- the lock -------------------------------------------------------------------------------------------------- */

/* Not a mutex of the C library, in which the thread sanitizer would see an edge that CUDA does not promise. By
 * tickets: a thread that asks again and again must not keep others out. */
void sim_lock(void)
{
    if (mine.locks++ > 0) return;
    unsigned ticket = __atomic_fetch_add(&next_ticket, 1, __ATOMIC_RELAXED);
    for (unsigned tries = 0; __atomic_load_n(&served, __ATOMIC_ACQUIRE) != ticket; tries++) {
        if (tries < 100) sched_yield();
        else usleep(50);
    }
    race_ignore_begin();
}

void sim_unlock(void)
{
    if (--mine.locks > 0) return;
    race_ignore_end();
    __atomic_store_n(&served, served + 1, __ATOMIC_RELEASE);
}

static void thread_begin(void)
{
    if (mine.life == sim.life) return;
    mine.life = sim.life;
    mine.device = 0;
    mine.error = cudaSuccess;
}

int *sim_current_device(void)
{
    thread_begin();
    return &mine.device;
}

cudaError_t sim_take_last_error(bool keep)
{
    thread_begin();
    cudaError_t e = sim.sticky != cudaSuccess ? sim.sticky : mine.error;
    if (!keep) mine.error = cudaSuccess;
    return e;
}

void sim_lose(cudaError_t why)
{
    if (sim.sticky == cudaSuccess) sim.sticky = why;
}

cudaError_t sim_injected(const char *name)
{
    cudaError_t e = cudaSuccess;

    for (unsigned i = 0; i < SIM_FAILURES_MAX; i++)
        if (sim.failures[i].nth > 0 && strcmp(sim.failures[i].name, name) == 0 && --sim.failures[i].nth == 0)
            e = sim.failures[i].error;
    if (e == cudaSuccess && strcmp(sim.skip.name, name) == 0) {
        if (sim.skip.nth <= 1) e = SIM_SKIPPED;
        if (sim.skip.nth > 0 && --sim.skip.nth == 0) sim.skip.name[0] = '\0';
    }
    if (e != cudaSuccess) sim.stats.met++;
    return e;
}

static void start_from_environment(void);

cudaError_t sim_enter(const char *name)
{
    cudaError_t e;

    sim_lock();
    if (!sim.started) start_from_environment();
    thread_begin();
    if (sim.in_host_function) {
        sim_say("%s is called by a host function on a stream", name);
        sim.stats.mistakes++;
        return cudaErrorNotPermitted;
    }
    if (sim.devices == 0) return cudaErrorInsufficientDriver;
    e = sim_injected(name);
    return e != cudaSuccess ? e : sim.sticky;
}

cudaError_t sim_leave(cudaError_t e)
{
    memory_open(NO_DEVICE);
    if (e == SIM_SKIPPED) e = cudaSuccess;
    if (e != cudaSuccess) mine.error = e; /* also "not ready", as the real one */
    sim_unlock();
    return e;
}

/* ---- what tests set -------------------------------------------------------------------------------------------- */

static void reset(int devices, size_t memory_each, enum cusim_policy policy, uint64_t seed)
{
    unsigned life = sim.life + 1;

    queue_reset();
    memory_reset();
    library_reset();
    sim = (struct sim){.started = true, .life = life, .policy = policy, .memory = memory_each, .patience_ms = 5000};
    sim.devices = devices < SIM_DEVICES_MAX ? devices : SIM_DEVICES_MAX;
    sim.random = (seed + 1) * 0x9e3779b97f4a7c15u | 1;
    for (int d = 0; d < sim.devices; d++) sim.standard[d] = stream_new(d);
}

void cusim_reset(int devices, size_t memory_each, enum cusim_policy policy, uint64_t seed)
{
    sim_lock();
    reset(devices, memory_each, policy, seed);
    sim_unlock();
}

static void fail(const char *function, unsigned nth, cudaError_t error)
{
    for (unsigned i = 0; i < SIM_FAILURES_MAX; i++)
        if (sim.failures[i].nth == 0) {
            snprintf(sim.failures[i].name, sizeof sim.failures[i].name, "%s", function);
            sim.failures[i].nth = nth;
            sim.failures[i].error = error;
            return;
        }
    sim_say("more than %d failures at once: %s is left out", SIM_FAILURES_MAX, function);
    abort();
}

static void forget(const char *function)
{
    for (unsigned i = 0; i < SIM_FAILURES_MAX; i++)
        if (strcmp(sim.failures[i].name, function) == 0) sim.failures[i].nth = 0;
}

void cusim_fail(const char *function, int nth, int error)
{
    sim_lock();
    if (nth > 0) fail(function, (unsigned)nth, (cudaError_t)error);
    else forget(function);
    sim_unlock();
}

void cusim_skip(const char *function, int nth)
{
    sim_lock();
    snprintf(sim.skip.name, sizeof sim.skip.name, "%s", function);
    sim.skip.nth = nth > 0 ? (unsigned)nth : 0;
    sim_unlock();
}

static void fault(unsigned nth, cudaError_t error)
{
    sim.fault_nth = nth;
    sim.fault_error = error != cudaSuccess ? error : cudaErrorIllegalAddress;
}

void cusim_fault_kernel(int nth, int error)
{
    sim_lock();
    fault(nth > 0 ? (unsigned)nth : 0, (cudaError_t)error);
    sim_unlock();
}

void cusim_thread(int *device, int *error)
{
    sim_lock();
    *device = *sim_current_device();
    *error = (int)sim_take_last_error(true);
    sim_unlock();
}

void cusim_thread_set(int device)
{
    sim_lock();
    *sim_current_device() = device;
    sim_unlock();
}

void cusim_share_memory(int on)
{
    sim_lock();
    sim.share = on != 0;
    sim_unlock();
}

void cusim_hold_compiler(int on)
{
    sim_lock();
    sim.compiler_held = on != 0;
    sim_unlock();
}

void cusim_patience_ms(unsigned ms)
{
    sim_lock();
    sim.patience_ms = ms;
    sim_unlock();
}

int cusim_array_new(void **at, size_t size) { return (int)cudaMalloc(at, size); }

int cusim_array_copy(void *to, const void *from, size_t size)
{
    return (int)cudaMemcpy(to, from, size, cudaMemcpyDefault);
}

void cusim_get_stats(struct cusim_stats *s)
{
    sim_lock();
    *s = sim.stats;
    sim_unlock();
}

int cusim_pending(void)
{
    int n = 0;

    sim_lock();
    for (const struct CUstream_st *s = sim.streams; s != NULL; s = s->next)
        for (const struct op *o = s->first; o != NULL; o = o->next) n++;
    sim_unlock();
    return n;
}

/* ---- the environment ------------------------------------------------------------------------------------------- */

/* What the environment says must be right: a typing error there would make a test that tests nothing. */
static void refuse(const char *name, const char *text)
{
    sim_say("%s=%s cannot be read", name, text);
    abort();
}

static uint64_t number_of(const char *name, uint64_t standard)
{
    static const char units[] = "KMG";
    const char *text = getenv(name), *unit;
    char *end;

    if (text == NULL || text[0] == '\0') return standard;
    uint64_t n = strtoull(text, &end, 10);
    if (end == text) refuse(name, text);
    if (*end == '\0') return n;
    unit = strchr(units, *end);
    if (unit == NULL || end[1] != '\0') refuse(name, text);
    return n << 10 * (unit - units + 1);
}

static enum cusim_policy policy_of_environment(void)
{
    static const char *const names[CUSIM_POLICIES] = {"lazy", "random", "eager"};
    const char *text = getenv("CUSIM_POLICY");

    if (text == NULL || text[0] == '\0') return CUSIM_RANDOM;
    for (int i = 0; i < CUSIM_POLICIES; i++)
        if (strcmp(text, names[i]) == 0) return (enum cusim_policy)i;
    refuse("CUSIM_POLICY", text);
    return CUSIM_RANDOM;
}

static void failures_of_environment(void)
{
    const char *text = getenv("CUSIM_FAIL");
    char name[48];
    unsigned nth;
    int error, size;

    while (text != NULL && *text != '\0') {
        if (sscanf(text, "%47[A-Za-z]:%u:%d%n", name, &nth, &error, &size) != 3) refuse("CUSIM_FAIL", text);
        fail(name, nth, (cudaError_t)error);
        text += size;
        if (*text == ',') text++;
        else if (*text != '\0') refuse("CUSIM_FAIL", text);
    }
}

static void fault_of_environment(void)
{
    const char *text = getenv("CUSIM_FAULT");
    unsigned nth;
    int error = 0;

    if (text == NULL || text[0] == '\0') return;
    if (sscanf(text, "%u:%d", &nth, &error) < 1) refuse("CUSIM_FAULT", text);
    fault(nth, (cudaError_t)error);
}

static void write_report(void)
{
    const char *file = getenv("CUSIM_REPORT");
    FILE *f = file != NULL ? fopen(file, "w") : NULL;
    const char *between = "{";

    if (f == NULL) return;
#define WRITE(name)                                                                \
    fprintf(f, "%s\"" #name "\": %" PRIu64, between, sim.stats.name);              \
    between = ", ";
    CUSIM_STATS(WRITE)
#undef WRITE
    fprintf(f, "}\n");
    fclose(f);
}

static void start_from_environment(void)
{
    reset((int)number_of("CUSIM_DEVICES", 1), number_of("CUSIM_MEMORY", 1u << 30), policy_of_environment(),
          number_of("CUSIM_SEED", 1));
    sim.patience_ms = (unsigned)number_of("CUSIM_PATIENCE_MS", sim.patience_ms);
    sim.share = number_of("CUSIM_SHARE", 0) != 0;
    failures_of_environment();
    fault_of_environment();
    if (getenv("CUSIM_REPORT") != NULL) atexit(write_report);
}
