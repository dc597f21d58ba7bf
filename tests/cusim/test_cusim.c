/* The stand-in itself: what it refuses, and that it finds the faults it is there to find. What runs under a
 * sanitizer and shall be caught by it runs in a child, whose words are looked at. */
#include "tests/cusim/cusim.h"

#include "gpu/half.h"
#include "tests/cusim/sample/backend.h"
#include "tests/cusim/sample/kernels.h"
#include "tests/lib/test.h"

#include <cuda_runtime_api.h>
#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#if defined(__has_feature)
#define ASAN __has_feature(address_sanitizer)
#define TSAN __has_feature(thread_sanitizer)
#elif defined(__SANITIZE_ADDRESS__)
#define ASAN 1
#define TSAN 0
#elif defined(__SANITIZE_THREAD__)
#define ASAN 0
#define TSAN 1
#else
#define ASAN 0
#define TSAN 0
#endif

/* ---- children -------------------------------------------------------------------------------------------------- */

struct outcome {
    int status;              /* of the work, 0 to 100; or -1 when it died */
    size_t size;
    char said[1 << 16];
};

static void read_all(int from, struct outcome *o)
{
    char rest[4096];
    ssize_t n;

    o->size = 0;
    while ((n = read(from, rest, sizeof rest)) > 0) {
        size_t room = sizeof o->said - 1 - o->size, take = (size_t)n < room ? (size_t)n : room;
        memcpy(o->said + o->size, rest, take);
        o->size += take;
    }
    o->said[o->size] = '\0';
}

static void in_child(int (*work)(int), int argument, struct outcome *o)
{
    int ends[2], status;

    CHECK_EQ(pipe(ends), 0);
    fflush(NULL);
    /* To the thread sanitizer streams are threads, and after a fork among threads it looks no more. */
    cusim_reset(0, 0, CUSIM_LAZY, 1);
    pid_t process = fork();
    if (process == 0) {
        dup2(ends[1], 1);
        dup2(ends[1], 2);
        close(ends[0]);
        close(ends[1]);
        alarm(60);
        status = work(argument);
        cusim_reset(0, 0, CUSIM_LAZY, 1); /* for streams that are left it would sleep a second */
        _exit(status);
    }
    close(ends[1]);
    read_all(ends[0], o);
    close(ends[0]);
    CHECK_EQ(waitpid(process, &status, 0), process);
    o->status = WIFEXITED(status) && WEXITSTATUS(status) <= 100 ? WEXITSTATUS(status) : -1;
}

static struct outcome child;

/* ---- a small training on the sample back end ------------------------------------------------------------------- */

enum { KEYS = 6, STEPS = 6 };

struct shadow {              /* what a key must be */
    size_t count;
    float *value, *mean, *var, *sum;
    bool has_sum;
};

struct expected {
    float *value;
    size_t count;
};

static int wrong, delivered;

static void check_pull(void *ctx, const float *value, size_t count, int error)
{
    struct expected *x = ctx;

    delivered++;
    if (error != 0 || count != x->count || memcmp(value, x->value, count * sizeof *value) != 0) wrong++;
    free(x->value);
    free(x);
}

static float next_float(uint64_t *random) { return (float)(rng_next(random) >> 40) * 0x1p-23f - 1; }

static void *array(size_t count)
{
    void *p = calloc(count, sizeof(float));
    if (p == NULL) abort();
    return p;
}

static struct shadow shadow_new(size_t count, uint64_t *random)
{
    struct shadow s = {count, array(count), array(count), array(count), array(count), false};
    for (size_t i = 0; i < count; i++) s.value[i] = next_float(random);
    return s;
}

static void shadow_free(struct shadow *s)
{
    free(s->value);
    free(s->mean);
    free(s->var);
    free(s->sum);
}

static int push_one(struct backend *b, struct backend_key *k, struct shadow *s, bool is_bf16, uint64_t *random)
{
    float *g = array(s->count);
    uint16_t *half = array(s->count);

    for (size_t i = 0; i < s->count; i++) {
        half[i] = half_narrow_bf16(next_float(random));
        g[i] = half_widen_bf16(half[i]);
        float scaled = g[i] * 0.5f;
        s->sum[i] = s->has_sum ? s->sum[i] + scaled : scaled;
    }
    s->has_sum = true;
    int e = backend_push(b, k, is_bf16 ? (const void *)half : (const void *)g, is_bf16, 0.5f);
    memset(g, 0x55, s->count * sizeof *g); /* the sender's memory is the sender's again */
    memset(half, 0x55, s->count * sizeof *half);
    free(g);
    free(half);
    return e;
}

static void shadow_step(struct shadow *s, float rate)
{
    for (size_t i = 0; i < s->count; i++) {
        float g = s->sum[i], m = 0.9f * s->mean[i] + 0.1f * g, v = 0.99f * s->var[i] + 0.01f * g * g;
        s->mean[i] = m;
        s->var[i] = v;
        s->value[i] = s->value[i] - rate * (m / (sqrtf(v) + 1e-6f));
    }
    s->has_sum = false;
}

static int pull_one(struct backend *b, struct backend_key *k, const struct shadow *s)
{
    struct expected *x = calloc(1, sizeof *x);

    if (x == NULL) abort();
    *x = (struct expected){array(s->count), s->count};
    memcpy(x->value, s->value, s->count * sizeof *s->value);
    return backend_pull(b, k, check_pull, x);
}

static int train(struct backend *b, struct backend_key **keys, struct shadow *shadows, uint64_t *random)
{
    int e = 0;

    for (int step = 0; step < STEPS && e == 0; step++) {
        for (int i = 0; i < 2 * KEYS && e == 0; i++) e = push_one(b, keys[i / 2], &shadows[i / 2], i % 2 != 0, random);
        if (e == 0) e = backend_update(b, keys, KEYS, 0.01f);
        for (int i = 0; i < KEYS; i++) shadow_step(&shadows[i], 0.01f);
        for (int i = 0; i < KEYS && e == 0; i++) e = pull_one(b, keys[i], &shadows[i]);
        if (step == 1) backend_deliver(b, false);
    }
    return e;
}

static bool is_clean(void)
{
    struct cusim_stats s;

    cusim_get_stats(&s);
    return s.live_bytes == 0 && s.live_pinned == 0 && s.live_streams == 0 && s.live_events == 0 && s.mistakes == 0 &&
           s.default_stream_uses == 0 && s.pageable_copies == KEYS;
}

/* Whether anything at all was not as it must be. */
static bool run_is_wrong(enum fault fault, enum cusim_policy policy, uint64_t seed)
{
    static const size_t counts[KEYS] = {1, 3, 64, 1000, 4097, 9000};
    struct backend *b = NULL;
    struct backend_key *keys[KEYS] = {NULL};
    struct shadow shadows[KEYS];
    bool has_spares = seed % 2 != 0; /* what waits for a step in place waits for much else, too */
    uint64_t random = seed;

    wrong = delivered = 0;
    cusim_reset(2, 1 << 26, policy, seed);
    if (backend_open(1, fault, &b) != 0) return true;
    for (int i = 0; i < KEYS; i++) {
        shadows[i] = shadow_new(counts[i], &random);
        if (backend_key_new(b, shadows[i].value, counts[i], i % 2 != 0 || has_spares, &keys[i]) != 0) return true;
    }
    int e = train(b, keys, shadows, &random);
    for (int i = 0; i < KEYS; i += 2) backend_key_free(b, keys[i]);
    backend_deliver(b, true);
    for (int i = 1; i < KEYS; i += 2) backend_key_free(b, keys[i]);
    backend_close(b);
    for (int i = 0; i < KEYS; i++) shadow_free(&shadows[i]);
    return e != 0 || wrong > 0 || delivered != STEPS * KEYS || !is_clean();
}

/* ---- what finds which fault ------------------------------------------------------------------------------------ */

/* BY_VALUE: in a plain build some run with work in odd orders is wrong. BY_ACCESS: the address sanitizer stops it.
 * BY_RACE: the thread sanitizer reports it in one run. */
enum { BY_VALUE = 1, BY_ACCESS = 2, BY_RACE = 4 };

static const struct {
    const char *name;
    unsigned by;
} faults[FAULT_COUNT] = {
#define FOUND(fault, how) [FAULT_##fault] = {#fault, how}
    FOUND(none, 0),
    FOUND(state_not_zeroed, BY_VALUE),
    FOUND(slot_reused, BY_VALUE | BY_RACE),
    FOUND(staging_reused, BY_VALUE | BY_RACE),
    FOUND(add_does_not_wait, BY_VALUE | BY_RACE),
    FOUND(kernel_too_far, BY_VALUE | BY_ACCESS),
    FOUND(update_overtakes_pull, BY_VALUE | BY_RACE),
    FOUND(pull_does_not_wait, BY_VALUE | BY_RACE),
    FOUND(pull_delivered_early, BY_VALUE | BY_RACE),
    FOUND(freed_on_wrong_stream, BY_ACCESS | BY_RACE),
    FOUND(event_before_work, BY_VALUE | BY_RACE),
    FOUND(slot_freed, BY_VALUE | BY_ACCESS),
    FOUND(wrong_device_launch, BY_VALUE),
    FOUND(wrong_device_memory, BY_ACCESS),
    FOUND(queues_do_not_wait, BY_VALUE | BY_RACE),
    FOUND(spare_reused, BY_VALUE | BY_RACE),
#undef FOUND
};

enum { SEEDS = ASAN || TSAN ? 2 : 30 };

static int runs_in_odd_orders(int fault)
{
    int n = 0;

    for (int seed = 0; seed < SEEDS; seed++) {
        n += run_is_wrong((enum fault)fault, CUSIM_LAZY, (uint64_t)seed);
        n += run_is_wrong((enum fault)fault, CUSIM_RANDOM, (uint64_t)seed);
    }
    return n;
}

static int runs_at_once(int fault)
{
    int n = 0;
    for (int seed = 0; seed < SEEDS; seed++) n += run_is_wrong((enum fault)fault, CUSIM_EAGER, (uint64_t)seed);
    return n;
}

static unsigned times_said(const char *words)
{
    unsigned n = 0;
    for (const char *at = child.said; (at = strstr(at, words)) != NULL; at++) n++;
    return n;
}

static unsigned found_by(void)
{
    unsigned by = 0;

    if (!ASAN && !TSAN && child.status != 0) by |= BY_VALUE;
    if (times_said("AddressSanitizer") > 0) by |= BY_ACCESS;
    if (times_said("ThreadSanitizer: data race") + times_said("ThreadSanitizer: heap-use-after-free") > 0)
        by |= BY_RACE;
    return by;
}

TEST(without_a_fault_nothing_is_found)
{
    in_child(runs_in_odd_orders, FAULT_none, &child);
    if (child.status != 0 || found_by() != 0)
        test_fail(__FILE__, __LINE__, "status %d, said:\n%s", child.status, child.said);
    in_child(runs_at_once, FAULT_none, &child);
    if (child.status != 0 || found_by() != 0)
        test_fail(__FILE__, __LINE__, "status %d, said:\n%s", child.status, child.said);
}

TEST(each_planted_fault_is_found_by_the_check_for_it)
{
    unsigned here = ASAN ? BY_ACCESS : TSAN ? BY_RACE : BY_VALUE;

    for (int f = FAULT_none + 1; f < FAULT_COUNT; f++) {
        if ((faults[f].by & here) == 0) continue;
        in_child(runs_in_odd_orders, f, &child);
        if ((found_by() & here) == 0)
            test_fail(__FILE__, __LINE__, "%s is not found; status %d, said:\n%s", faults[f].name, child.status,
                      child.said);
    }
}

TEST(every_fault_has_a_check)
{
    for (int f = FAULT_none + 1; f < FAULT_COUNT; f++) CHECK(faults[f].by != 0);
}

/* What a stand-in that runs everything at once would see: why this one does not. */
TEST(faults_of_order_hide_when_work_runs_at_once)
{
    static const enum fault hidden[] = {
        FAULT_slot_reused,        FAULT_staging_reused,       FAULT_add_does_not_wait, FAULT_spare_reused,
        FAULT_pull_does_not_wait, FAULT_pull_delivered_early, FAULT_queues_do_not_wait};
    if (TSAN) test_skip("the thread sanitizer sees them also then");
    for (size_t i = 0; i < sizeof hidden / sizeof hidden[0]; i++) CHECK_EQ(runs_at_once((int)hidden[i]), 0);
}

/* ---- kernels --------------------------------------------------------------------------------------------------- */

static cudaStream_t stream;

static void begin(int devices, enum cusim_policy policy, uint64_t seed)
{
    cusim_reset(devices, 1 << 24, policy, seed);
    CHECK_EQ(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), cudaSuccess);
}

static void *device_new(size_t size)
{
    void *p = NULL;
    CHECK_EQ(cudaMalloc(&p, size), cudaSuccess);
    return p;
}

static cudaError_t launch(enum sample_kernel k, unsigned blocks, void *argument)
{
    void *args[] = {argument};
    return cudaLaunchKernel(sample_kernel(k), (dim3){blocks, 1, 1}, (dim3){SAMPLE_THREADS, 1, 1}, args, 0, stream);
}

/* The sum of squares of 0, 1/64, ... in an exact sum, by a kernel. */
static float sum_by(enum sample_kernel k, unsigned blocks, size_t count)
{
    float host[1000], result = 0;
    struct sample_norm a = {count, device_new(count * sizeof(float)), device_new(sizeof(float))};

    for (size_t i = 0; i < count; i++) host[i] = (float)(i % 8);
    CHECK_EQ(cudaMemcpyAsync((void *)(uintptr_t)a.x, host, count * sizeof(float), cudaMemcpyHostToDevice, stream),
             cudaSuccess);
    CHECK_EQ(cudaMemsetAsync(a.sum, 0, sizeof(float), stream), cudaSuccess);
    CHECK_EQ(launch(k, blocks, &a), cudaSuccess);
    CHECK_EQ(cudaMemcpyAsync(&result, a.sum, sizeof result, cudaMemcpyDeviceToHost, stream), cudaSuccess);
    CHECK_EQ(cudaStreamSynchronize(stream), cudaSuccess);
    return result;
}

TEST(barriers_shuffles_and_atomics_of_kernels_work)
{
    for (int policy = 0; policy < CUSIM_POLICIES; policy++)
        for (uint64_t seed = 0; seed < 3; seed++) {
            begin(1, (enum cusim_policy)policy, seed);
            CHECK_EQ(sum_by(SAMPLE_NORM, 3, 800), 100 * 140);
            CHECK_EQ(sum_by(SAMPLE_TOTAL, 1, 800), 100 * 140);
        }
}

static int sums_without_a_barrier(int seeds)
{
    int n = 0;

    for (int seed = 0; seed < seeds; seed++) {
        begin(1, CUSIM_LAZY, (uint64_t)seed);
        n += sum_by(SAMPLE_TOTAL_UNSYNCED, 1, 800) != 100 * 140;
    }
    return n;
}

TEST(a_missing_barrier_is_found)
{
    in_child(sums_without_a_barrier, TSAN ? 1 : 10, &child);
    if (TSAN) CHECK(times_said("data race") > 0);
    else CHECK(child.status > 0);
}

/* How many of so many seeds give another result than blocks that run in order. */
static int chains(enum cusim_policy policy, int seeds)
{
    float host[16];
    int n = 0;

    for (int seed = 0; seed < seeds; seed++) {
        begin(1, policy, (uint64_t)seed);
        struct sample_add a = {.sum = device_new(sizeof host), .scale = 1};
        CHECK_EQ(launch(SAMPLE_CHAIN, 16, &a), cudaSuccess);
        CHECK_EQ(cudaMemcpyAsync(host, a.sum, sizeof host, cudaMemcpyDeviceToHost, stream), cudaSuccess);
        n += host[15] != 16;
    }
    return n;
}

static int chains_in_odd_orders(int seeds) { return chains(CUSIM_LAZY, seeds); }

TEST(a_kernel_that_counts_on_an_order_of_blocks_is_found)
{
    in_child(chains_in_odd_orders, 4, &child);
    if (!TSAN) CHECK(child.status >= 3);
    if (TSAN) CHECK(times_said("data race") > 0);
    else CHECK_EQ(chains(CUSIM_EAGER, 4), 0);
}

static int clash(int threads)
{
    begin(1, CUSIM_LAZY, 1);
    struct sample_add a = {.sum = device_new(sizeof(float)), .scale = 1};
    (void)threads;
    return launch(SAMPLE_CLASH, 2, &a) != cudaSuccess || cudaStreamSynchronize(stream) != cudaSuccess;
}

TEST(two_threads_that_write_one_element_race)
{
    in_child(clash, 0, &child);
    CHECK_EQ(times_said("data race") > 0, TSAN);
}

/* ---- accesses -------------------------------------------------------------------------------------------------- */

static int touch(int what)
{
    float host[64] = {0}, *at;

    begin(2, CUSIM_LAZY, 1);
    at = device_new(sizeof host);
    struct sample_add a = {16, at, at, 1, 1};
    switch (what) {
    case 0: return (int)((volatile float *)at)[3] & 1;                  /* the host reads the device's memory */
    case 1:                                                            /* another device's kernel does */
        if (cudaSetDevice(1) != cudaSuccess || cudaStreamCreate(&stream) != cudaSuccess) return 1;
        break;
    case 2: a.gradient = (const char *)at + 4; break;                  /* four floats at an odd place */
    default: break;
    }
    if (launch(SAMPLE_ADD_F32, 1, &a) != cudaSuccess || cudaStreamSynchronize(stream) != cudaSuccess) return 1;
    memcpy(host, host + 1, sizeof host[0]);
    return 0;
}

TEST(the_sanitizer_keeps_host_and_devices_apart)
{
    if (!ASAN) test_skip("the address sanitizer's");
    in_child(touch, 0, &child);
    CHECK_SAYS(child.said, "use-after-poison");
    in_child(touch, 1, &child);
    CHECK_SAYS(child.said, "use-after-poison");
#ifndef __clang__                        /* whose sanitizer lets four floats be taken from any place */
    in_child(touch, 2, &child);
    CHECK_SAYS(child.said, "misaligned address");
#endif
    in_child(touch, 3, &child);
    CHECK_EQ(child.status, 0);
}

TEST(a_byte_written_behind_a_block_is_found_when_it_is_freed)
{
    struct cusim_stats s;

    if (ASAN) test_skip("the address sanitizer stops it at once");
    begin(1, CUSIM_LAZY, 1);
    char *at = device_new(100);
    at[100] = 1;
    CHECK_EQ(cudaFree(at), cudaSuccess);
    cusim_get_stats(&s);
    CHECK_EQ(s.mistakes, 1);
}

TEST(new_memory_is_full_of_nan)
{
    float host[8];

    begin(1, CUSIM_LAZY, 1);
    CHECK_EQ(cudaMemcpyAsync(host, device_new(sizeof host), sizeof host, cudaMemcpyDeviceToHost, stream), cudaSuccess);
    for (int i = 0; i < 8; i++) CHECK(isnan(host[i]));
}

/* ---- refusals -------------------------------------------------------------------------------------------------- */

static void expect_mistakes(unsigned n)
{
    struct cusim_stats s;
    cusim_get_stats(&s);
    CHECK_EQ(s.mistakes, n);
}

TEST(copies_that_leave_a_block_or_do_not_fit_their_kind_are_refused)
{
    char host[300];

    begin(1, CUSIM_LAZY, 1);
    char *at = device_new(256);
    CHECK_EQ(cudaMemcpyAsync(at, host, 257, cudaMemcpyHostToDevice, stream), cudaErrorInvalidValue);
    CHECK_EQ(cudaMemcpyAsync(at + 200, host, 57, cudaMemcpyHostToDevice, stream), cudaErrorInvalidValue);
    CHECK_EQ(cudaMemcpyAsync(host, at, 256, cudaMemcpyHostToDevice, stream), cudaErrorInvalidValue);
    CHECK_EQ(cudaMemcpyAsync(host, host + 128, 64, cudaMemcpyDeviceToHost, stream), cudaErrorInvalidValue);
    CHECK_EQ(cudaMemsetAsync(at + 1, 0, 256, stream), cudaErrorInvalidValue);
    CHECK_EQ(cudaMemcpyAsync(at, host, 256, cudaMemcpyHostToDevice, stream), cudaSuccess);
    expect_mistakes(5);
}

TEST(handles_are_refused_after_their_end_and_on_the_wrong_device)
{
    cudaEvent_t event;
    struct sample_add a = {0};

    begin(2, CUSIM_LAZY, 1);
    CHECK_EQ(cudaEventCreate(&event), cudaSuccess);
    CHECK_EQ(cudaSetDevice(1), cudaSuccess);
    CHECK_EQ(launch(SAMPLE_ADD_F32, 1, &a), cudaErrorInvalidResourceHandle);
    cudaStream_t other = NULL;
    CHECK_EQ(cudaStreamCreate(&other), cudaSuccess);
    CHECK_EQ(cudaEventRecord(event, other), cudaErrorInvalidResourceHandle);
    CHECK_EQ(cudaStreamDestroy(other), cudaSuccess);
    CHECK_EQ(cudaStreamDestroy(other), cudaErrorInvalidResourceHandle);
    CHECK_EQ(cudaEventDestroy(event), cudaSuccess);
    CHECK_EQ(cudaEventQuery(event), cudaErrorInvalidResourceHandle);
    CHECK_EQ(cudaFree((void *)8), cudaErrorInvalidValue);
    expect_mistakes(5);
    CHECK_EQ(cudaSetDevice(2), cudaErrorInvalidDevice);
    CHECK_EQ(cudaGetLastError(), cudaErrorInvalidDevice);
    CHECK_EQ(cudaGetLastError(), cudaSuccess);
}

TEST(a_device_has_so_much_memory)
{
    void *a, *b = NULL;
    size_t free_size, size;

    cusim_reset(1, 1000, CUSIM_LAZY, 1);
    CHECK_EQ(cudaMalloc(&a, 600), cudaSuccess);
    CHECK_EQ(cudaMalloc(&b, 401), cudaErrorMemoryAllocation);
    CHECK(b == NULL);
    CHECK_EQ(cudaMemGetInfo(&free_size, &size), cudaSuccess);
    CHECK_EQ(free_size, 400);
    CHECK_EQ(cudaFree(a), cudaSuccess);
    CHECK_EQ(cudaMalloc(&b, 1000), cudaSuccess);
}

static cudaError_t called_inside;

static void calls_the_runtime(void *ctx)
{
    int device;
    (void)ctx;
    called_inside = cudaGetDevice(&device);
}

TEST(a_host_function_may_not_call_the_runtime)
{
    begin(1, CUSIM_LAZY, 1);
    CHECK_EQ(cudaLaunchHostFunc(stream, calls_the_runtime, NULL), cudaSuccess);
    CHECK_EQ(cudaStreamSynchronize(stream), cudaSuccess);
    CHECK_EQ(called_inside, cudaErrorNotPermitted);
    expect_mistakes(1);
}

static bool never(void *ctx)
{
    (void)ctx;
    return false;
}

TEST(a_wait_for_what_cannot_come_ends_with_an_error)
{
    begin(1, CUSIM_LAZY, 1);
    cusim_patience_ms(50);
    cusim_enqueue(stream, never, calls_the_runtime, NULL);
    CHECK_EQ(cudaStreamSynchronize(stream), cudaErrorLaunchTimeout);
    CHECK_EQ(cudaGetLastError(), cudaErrorLaunchTimeout);
}

/* ---- faults on purpose ----------------------------------------------------------------------------------------- */

TEST(a_lost_device_answers_the_same_error_until_the_end)
{
    begin(1, CUSIM_LAZY, 1);
    void *at = device_new(64);
    struct sample_add a = {16, at, at, 1, 1};
    cusim_fault_kernel(2, 0);
    CHECK_EQ(launch(SAMPLE_ADD_F32, 1, &a), cudaSuccess);
    CHECK_EQ(cudaStreamSynchronize(stream), cudaSuccess);
    CHECK_EQ(launch(SAMPLE_ADD_F32, 1, &a), cudaSuccess);
    CHECK_EQ(cudaStreamSynchronize(stream), cudaErrorIllegalAddress);
    CHECK_EQ(cudaMalloc(&at, 4), cudaErrorIllegalAddress);
    CHECK_EQ(cudaGetLastError(), cudaErrorIllegalAddress);
    CHECK_EQ(cudaGetLastError(), cudaErrorIllegalAddress);
    begin(1, CUSIM_LAZY, 1);
    CHECK_EQ(cudaMalloc(&at, 4), cudaSuccess);
}

static bool leaves_nothing(const char *function, int nth)
{
    static const float value[100] = {0};
    struct backend *b = NULL;
    struct backend_key *k = NULL;
    struct cusim_stats s;

    cusim_reset(1, 1 << 24, CUSIM_RANDOM, 3);
    cusim_fail(function, nth, cudaErrorMemoryAllocation);
    int e = backend_open(0, FAULT_none, &b);
    if (e == 0) e = backend_key_new(b, value, 100, true, &k);
    if (e == 0) e = backend_push(b, k, value, false, 1);
    if (k != NULL) backend_key_free(b, k);
    if (b != NULL) backend_close(b);
    cusim_get_stats(&s);
    return s.live_bytes + s.live_pinned + s.live_streams + s.live_events == 0;
}

TEST(any_call_can_be_made_to_fail)
{
    static const char *const functions[] = {
        "cudaMalloc",      "cudaHostAlloc",    "cudaEventCreateWithFlags", "cudaStreamCreateWithFlags",
        "cudaMemcpyAsync", "cudaLaunchKernel", "cudaEventRecord",          "cudaStreamWaitEvent",
        "cudaSetDevice",   "cudaMemsetAsync"};
    for (size_t f = 0; f < sizeof functions / sizeof functions[0]; f++)
        for (int nth = 1; nth < 8; nth++)
            if (!leaves_nothing(functions[f], nth)) test_fail(__FILE__, __LINE__, "%s %d", functions[f], nth);
    begin(1, CUSIM_LAZY, 1);
    cusim_fail("cudaDeviceSynchronize", 2, cudaErrorUnknown);
    cusim_fail("cudaDeviceSynchronize", 3, cudaErrorNotReady);
    CHECK_EQ(cudaDeviceSynchronize(), cudaSuccess);
    CHECK_EQ(cudaDeviceSynchronize(), cudaErrorUnknown);
    CHECK_EQ(cudaDeviceSynchronize(), cudaErrorNotReady);
    CHECK_EQ(cudaDeviceSynchronize(), cudaSuccess);
}

TEST(a_reset_leaves_nothing_of_before)
{
    struct cusim_stats s;
    cudaEvent_t event;
    int device;

    begin(2, CUSIM_LAZY, 1);
    CHECK_EQ(cudaSetDevice(1), cudaSuccess);
    CHECK_EQ(cudaEventCreate(&event), cudaSuccess);
    CHECK_EQ(cudaMemset(device_new(64), 0, 65), cudaErrorInvalidValue);
    CHECK_EQ(cudaSetDevice(0), cudaSuccess);
    CHECK_EQ(cudaMemsetAsync(device_new(64), 0, 64, stream), cudaSuccess);
    CHECK_EQ(cusim_pending(), 1);
    cusim_reset(2, 1 << 20, CUSIM_LAZY, 1);
    cusim_get_stats(&s);
    CHECK_EQ(s.live_bytes + s.live_streams + s.live_events + s.allocs + s.mistakes, 0);
    CHECK_EQ(cusim_pending(), 0);
    CHECK_EQ(cudaGetDevice(&device), cudaSuccess);
    CHECK_EQ(device, 0);
    CHECK_EQ(cudaGetLastError(), cudaSuccess);
    cusim_reset(0, 0, CUSIM_LAZY, 1);
    CHECK_EQ(cudaGetDeviceCount(&device), cudaErrorInsufficientDriver);
    CHECK_EQ(device, 0);
}

/* The same seed gives the same run, another another. */
TEST(a_seed_repeats_a_run)
{
    static const uint64_t seeds[] = {5, 5, 6, 7, 8};
    uint64_t after[5];

    for (int i = 0; i < 5; i++) {
        struct cusim_stats s;
        begin(1, CUSIM_RANDOM, seeds[i]);
        for (int k = 0; k < 20; k++) CHECK_EQ(cudaMemsetAsync(device_new(64), 0, 64, stream), cudaSuccess);
        cusim_get_stats(&s);
        after[i] = s.ops_run;
    }
    CHECK_EQ(after[0], after[1]);
    CHECK(after[2] != after[0] || after[3] != after[0] || after[4] != after[0]);
}

/* ---- many threads, many processes ------------------------------------------------------------------------------ */

static void *copies_of_its_own(void *ctx)
{
    float *host = NULL, *at = NULL;
    cudaStream_t s;

    if (cudaStreamCreate(&s) != cudaSuccess || cudaMalloc((void **)&at, 4096) != cudaSuccess ||
        cudaMallocHost((void **)&host, 4096) != cudaSuccess)
        return NULL;
    for (int i = 0; i < 200; i++) {
        host[0] = (float)i;
        (void)cudaMemcpyAsync(at, host, 4096, cudaMemcpyHostToDevice, s);
        (void)cudaMemcpyAsync(host, at, 4096, cudaMemcpyDeviceToHost, s);
        while (cudaStreamQuery(s) == cudaErrorNotReady) {}
        if (host[0] != (float)i) return NULL;
    }
    (void)cudaFree(at);
    (void)cudaFreeHost(host);
    (void)cudaStreamDestroy(s);
    return ctx;
}

TEST(several_threads_may_call_at_once)
{
    pthread_t threads[4];
    struct cusim_stats s;
    int fine = 0;

    cusim_reset(1, 1 << 20, CUSIM_RANDOM, 1);
    for (int i = 0; i < 4; i++) CHECK_EQ(pthread_create(&threads[i], NULL, copies_of_its_own, &fine), 0);
    for (int i = 0; i < 4; i++) {
        void *result = NULL;
        CHECK_EQ(pthread_join(threads[i], &result), 0);
        fine += result != NULL;
    }
    CHECK_EQ(fine, 4);
    cusim_get_stats(&s);
    CHECK_EQ(s.h2d, 4 * 200 * 4096);
    CHECK_EQ(s.live_bytes + s.live_pinned + s.live_streams, 0);
}

/* ---- a wait for all, while others come and go ------------------------------------------------------------------ */

static atomic_int waiting;               /* threads that have seen the gate closed */
static atomic_bool gate_open;

static bool at_the_gate(void *ctx)
{
    static _Thread_local bool counted;

    (void)ctx;
    if (!counted) atomic_fetch_add(&waiting, 1);
    counted = true;
    return atomic_load(&gate_open);
}

static void nothing(void *ctx) { (void)ctx; }

/* Streams of which the last one, which is looked at first, holds up who waits for all. */
static void gate_new(cudaStream_t *streams, int count)
{
    cusim_reset(1, 1 << 20, CUSIM_LAZY, 1);
    atomic_store(&waiting, 0);
    atomic_store(&gate_open, false);
    for (int i = 0; i < count; i++) CHECK_EQ(cudaStreamCreate(&streams[i]), cudaSuccess);
    cusim_enqueue(streams[count - 1], at_the_gate, nothing, NULL);
}

static void *waits_for_all(void *answer)
{
    *(cudaError_t *)answer = cudaDeviceSynchronize();
    return NULL;
}

static void *frees(void *answer)
{
    *(cudaError_t *)answer = cudaFree(*(void **)answer);
    return NULL;
}

static void begin_waiting(pthread_t *thread, void *(*wait)(void *), void *answer)
{
    int before = atomic_load(&waiting);

    CHECK_EQ(pthread_create(thread, NULL, wait, answer), 0);
    while (atomic_load(&waiting) == before) usleep(100);
}

TEST(a_wait_for_all_is_for_what_was_there_before)
{
    cudaStream_t streams[3];
    cudaError_t answer = cudaErrorUnknown;
    pthread_t thread;

    gate_new(streams, 3);
    begin_waiting(&thread, waits_for_all, &answer);
    cusim_enqueue(streams[0], never, nothing, NULL);
    CHECK_EQ(cudaStreamDestroy(streams[1]), cudaSuccess);
    atomic_store(&gate_open, true);
    CHECK_EQ(pthread_join(thread, NULL), 0);
    CHECK_EQ(answer, cudaSuccess);
    cusim_reset(1, 1 << 20, CUSIM_LAZY, 1);
}

TEST(a_reset_ends_every_wait_and_the_next_life_knows_nothing_of_it)
{
    union { void *at; cudaError_t answer; } freed;
    cudaError_t answer = cudaErrorUnknown;
    cudaStream_t streams[3];
    struct cusim_stats s;
    pthread_t threads[2];

    gate_new(streams, 3);
    CHECK_EQ(cudaMalloc(&freed.at, 64), cudaSuccess);
    begin_waiting(&threads[0], waits_for_all, &answer);
    begin_waiting(&threads[1], frees, &freed);
    cusim_reset(1, 1 << 20, CUSIM_LAZY, 1);
    for (int i = 0; i < 2; i++) CHECK_EQ(pthread_join(threads[i], NULL), 0);
    CHECK_EQ(answer, cudaErrorContextIsDestroyed);
    CHECK_EQ(freed.answer, cudaErrorContextIsDestroyed);
    CHECK_EQ(cudaDeviceSynchronize(), cudaSuccess);
    cusim_get_stats(&s);
    CHECK_EQ(s.mistakes, 0);
}

/* The other process: opens what came through the pipe, writes to it, and says so. */
static int writes_into(int from, int to)
{
    cudaIpcMemHandle_t handle;
    float *at, host[16];

    cusim_reset(1, 1 << 20, CUSIM_LAZY, 1);
    if (read(from, &handle, sizeof handle) != (ssize_t)sizeof handle) return 1;
    if (cudaIpcOpenMemHandle((void **)&at, handle, cudaIpcMemLazyEnablePeerAccess) != cudaSuccess) return 2;
    for (int i = 0; i < 16; i++) host[i] = (float)i;
    if (cudaMemcpy(at, host, sizeof host, cudaMemcpyHostToDevice) != cudaSuccess) return 3;
    if (cudaIpcCloseMemHandle(at) != cudaSuccess) return 4;
    return write(to, "x", 1) == 1 ? 0 : 5;
}

TEST(memory_can_be_handed_to_another_process)
{
    cudaIpcMemHandle_t handle;
    int down[2], up[2], status;
    float host[16];
    void *other;
    char done;

    CHECK_EQ(pipe(down), 0);
    CHECK_EQ(pipe(up), 0);
    fflush(NULL);
    pid_t process = fork();
    if (process == 0) _exit(writes_into(down[0], up[1]));
    close(down[0]);
    close(up[1]);
    begin(1, CUSIM_LAZY, 1);
    cusim_share_memory(1);
    void *at = device_new(sizeof host);
    CHECK_EQ(cudaIpcGetMemHandle(&handle, at), cudaSuccess);
    CHECK_EQ(cudaIpcOpenMemHandle(&other, handle, 0), cudaErrorDeviceUninitialized);
    CHECK_EQ(write(down[1], &handle, sizeof handle), sizeof handle);
    CHECK_EQ(read(up[0], &done, 1), 1);
    CHECK_EQ(waitpid(process, &status, 0), process);
    CHECK_EQ(status, 0);
    CHECK_EQ(cudaMemcpy(host, at, sizeof host, cudaMemcpyDeviceToHost), cudaSuccess);
    for (int i = 0; i < 16; i++) CHECK_EQ(host[i], i);
    close(down[1]);
    close(up[0]);
    CHECK_EQ(cudaFree(at), cudaSuccess);
}

/* ---- the environment ------------------------------------------------------------------------------------------- */

static int as_in_a_daemon(int unused)
{
    int devices = 0;
    size_t free_size, size;
    void *at;

    (void)unused;
    if (cudaGetDeviceCount(&devices) != cudaSuccess || devices != 3) return 1;
    if (cudaMemGetInfo(&free_size, &size) != cudaSuccess || size != 64 << 20) return 2;
    if (cudaMalloc(&at, 100) != cudaSuccess || cudaMalloc(&at, 100) != cudaErrorMemoryAllocation) return 3;
    if (cudaDeviceSynchronize() != cudaErrorUnknown) return 4;
    if (cudaStreamCreate(&stream) != cudaSuccess) return 5;
    struct sample_add a = {16, at, at, 1, 1};
    if (launch(SAMPLE_ADD_F32, 1, &a) != cudaSuccess || cudaStreamSynchronize(stream) != cudaErrorECCUncorrectable)
        return 6;
    exit(0);
}

/* A fresh process: in this one a reset has been. */
static int in_a_fresh_process(int unused)
{
    (void)unused;
    setenv("CUSIM_TEST_FRESH", "1", 1);
    execl("/proc/self/exe", "test_cusim", "the_environment", (char *)NULL);
    return 99;
}

TEST(the_environment_sets_what_a_daemon_cannot)
{
    char file[] = "/tmp/cusim-report-XXXXXX", text[1000] = {0};

    if (getenv("CUSIM_TEST_FRESH") != NULL) {
        CHECK_EQ(as_in_a_daemon(0), 0);
        return;
    }
    int fd = mkstemp(file);
    CHECK(fd >= 0);
    setenv("CUSIM_DEVICES", "3", 1);
    setenv("CUSIM_MEMORY", "64M", 1);
    setenv("CUSIM_POLICY", "eager", 1);
    setenv("CUSIM_FAIL", "cudaMalloc:2:2,cudaDeviceSynchronize:1:999", 1);
    setenv("CUSIM_FAULT", "1:214", 1);
    setenv("CUSIM_REPORT", file, 1);
    in_child(in_a_fresh_process, 0, &child);
    if (child.status != 0) test_fail(__FILE__, __LINE__, "%d: %s", child.status, child.said);
    CHECK(read(fd, text, sizeof text - 1) > 0);
    CHECK_SAYS(text, "\"launches\": 1, ");
    CHECK_SAYS(text, "\"mistakes\": 0}");
    setenv("CUSIM_POLICY", "sometimes", 1);
    in_child(in_a_fresh_process, 0, &child);
    CHECK_SAYS(child.said, "CUSIM_POLICY=sometimes cannot be read");
    unlink(file);
    close(fd);
}
