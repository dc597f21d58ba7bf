/* The stand-in for NCCL: right sums in every order of work, and errors in bounded time where the real one may hang.
 * Ranks are threads, a device each. */
#include "tests/cusim/cusim.h"
#include "tests/cusim/sample/kernels.h"
#include "tests/lib/test.h"

#include <cuda_runtime_api.h>
#include <nccl.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#if defined(__has_feature)
#define TSAN __has_feature(thread_sanitizer)
#elif defined(__SANITIZE_THREAD__)
#define TSAN 1
#else
#define TSAN 0
#endif

enum { RANKS = 3, COUNT = 96, SHARE = COUNT / RANKS };

static ncclUniqueId id;
static atomic_int failures;

static void expect(int is_true)
{
    if (!is_true) atomic_fetch_add(&failures, 1);
}

static void run_ranks(void *(*rank)(void *), int ranks)
{
    pthread_t threads[RANKS];

    atomic_store(&failures, 0);
    CHECK_EQ(ncclGetUniqueId(&id), ncclSuccess);
    for (int i = 0; i < ranks; i++) CHECK_EQ(pthread_create(&threads[i], NULL, rank, (void *)(intptr_t)i), 0);
    for (int i = 0; i < ranks; i++) CHECK_EQ(pthread_join(threads[i], NULL), 0);
}

struct side {
    int rank;
    ncclComm_t comm;
    cudaStream_t stream;
    float *gradient, *share, *host;
};

static int side_open(struct side *s, intptr_t rank)
{
    *s = (struct side){.rank = (int)rank};
    return cudaSetDevice(s->rank) == cudaSuccess && ncclCommInitRank(&s->comm, RANKS, id, s->rank) == ncclSuccess &&
           cudaStreamCreateWithFlags(&s->stream, cudaStreamNonBlocking) == cudaSuccess &&
           cudaMalloc((void **)&s->gradient, COUNT * sizeof(float)) == cudaSuccess &&
           cudaMalloc((void **)&s->share, SHARE * sizeof(float)) == cudaSuccess &&
           cudaMallocHost((void **)&s->host, COUNT * sizeof(float)) == cudaSuccess;
}

static void side_close(struct side *s)
{
    expect(cudaStreamSynchronize(s->stream) == cudaSuccess);
    (void)cudaFree(s->gradient);
    (void)cudaFree(s->share);
    (void)cudaFreeHost(s->host);
    (void)cudaStreamDestroy(s->stream);
    if (s->comm != NULL) expect(ncclCommDestroy(s->comm) == ncclSuccess);
}

/* ---- a sharded update: reduce-scatter, a step on the own share, all-gather ------------------------------------- */

static int gathers_on_another_stream;        /* the fault: it waits for nothing */

static void sharded_step(struct side *s)
{
    struct sample_add half = {SHARE, s->share, s->share, 0.5f, 1};
    void *args[] = {&half};
    cudaStream_t gather = s->stream;

    if (gathers_on_another_stream) expect(cudaStreamCreate(&gather) == cudaSuccess);
    expect(ncclReduceScatter(s->gradient, s->share, SHARE, ncclFloat, ncclSum, s->comm, s->stream) == ncclSuccess);
    expect(cudaLaunchKernel(sample_kernel(SAMPLE_ADD_F32), (dim3){1, 1, 1}, (dim3){SAMPLE_THREADS, 1, 1}, args, 0,
                            s->stream) == cudaSuccess);
    expect(ncclAllGather(s->share, s->gradient, SHARE, ncclFloat, s->comm, gather) == ncclSuccess);
    expect(cudaMemcpyAsync(s->host, s->gradient, COUNT * sizeof(float), cudaMemcpyDeviceToHost, gather) ==
           cudaSuccess);
    expect(cudaStreamSynchronize(gather) == cudaSuccess);
}

static void *train(void *rank)
{
    struct side s;
    int wrong = 0;

    if (!side_open(&s, (intptr_t)rank)) {
        expect(0);
        return NULL;
    }
    for (int i = 0; i < COUNT; i++) s.host[i] = (float)((s.rank + 1) * i);
    expect(cudaMemcpyAsync(s.gradient, s.host, COUNT * sizeof(float), cudaMemcpyHostToDevice, s.stream) ==
           cudaSuccess);
    sharded_step(&s);
    for (int i = 0; i < COUNT; i++) wrong += s.host[i] != (float)(6 * i) * 0.5f;
    expect(wrong == 0);
    side_close(&s);
    return NULL;
}

TEST(a_sharded_update_is_right_in_every_order_of_work)
{
    struct cusim_stats s;

    for (int policy = 0; policy < CUSIM_POLICIES; policy++)
        for (uint64_t seed = 0; seed < 3; seed++) {
            cusim_reset(RANKS, 1 << 20, (enum cusim_policy)policy, seed);
            run_ranks(train, RANKS);
            CHECK_EQ(failures, 0);
            cusim_get_stats(&s);
            CHECK_EQ(s.live_bytes + s.live_streams + s.mistakes, 0);
        }
}

/* In a child: its words are looked at. */
static int wrong_runs(void)
{
    int n = 0;

    gathers_on_another_stream = 1;
    for (uint64_t seed = 0; seed < (TSAN ? 1 : 10); seed++) {
        cusim_reset(RANKS, 1 << 20, CUSIM_LAZY, seed);
        run_ranks(train, RANKS);
        n += failures > 0;
    }
    cusim_reset(0, 0, CUSIM_LAZY, 0);
    return n;
}

TEST(a_collective_that_does_not_wait_for_its_input_is_found)
{
    static char said[1 << 16];
    int ends[2], status;
    size_t size = 0;
    ssize_t n;

    cusim_reset(0, 0, CUSIM_LAZY, 0);
    CHECK_EQ(pipe(ends), 0);
    fflush(NULL);
    pid_t process = fork();
    if (process == 0) {
        dup2(ends[1], 2);
        close(ends[0]);
        close(ends[1]);
        alarm(60);
        _exit(wrong_runs());
    }
    close(ends[1]);
    while (size < sizeof said - 1 && (n = read(ends[0], said + size, sizeof said - 1 - size)) > 0) size += (size_t)n;
    close(ends[0]);
    CHECK_EQ(waitpid(process, &status, 0), process);
    if (TSAN) CHECK_SAYS(said, "data race");
    else CHECK(WIFEXITED(status) && WEXITSTATUS(status) >= 3);
}

/* ---- the collectives themselves -------------------------------------------------------------------------------- */

static void *all_kinds(void *rank)
{
    struct side s;
    float *other;

    if (!side_open(&s, (intptr_t)rank) || cudaMalloc((void **)&other, COUNT * sizeof(float)) != cudaSuccess) {
        expect(0);
        return NULL;
    }
    for (int i = 0; i < COUNT; i++) s.host[i] = (float)(s.rank * 10 + i % 4);
    expect(cudaMemcpyAsync(s.gradient, s.host, COUNT * sizeof(float), cudaMemcpyHostToDevice, s.stream) == cudaSuccess);
#define TAKES(call, want)                                                                                          \
    expect((call) == ncclSuccess);                                                                                 \
    expect(cudaMemcpyAsync(s.host, other, COUNT * sizeof(float), cudaMemcpyDeviceToHost, s.stream) == cudaSuccess);    \
    expect(cudaStreamSynchronize(s.stream) == cudaSuccess);                                                        \
    for (int i = 0; i < COUNT; i++) expect(s.host[i] == (float)(want))
    TAKES(ncclAllReduce(s.gradient, other, COUNT, ncclFloat, ncclSum, s.comm, s.stream), 30 + 3 * (i % 4));
    TAKES(ncclAllReduce(s.gradient, other, COUNT, ncclFloat, ncclAvg, s.comm, s.stream), 10 + i % 4);
    TAKES(ncclAllReduce(s.gradient, other, COUNT, ncclFloat, ncclMax, s.comm, s.stream), 20 + i % 4);
    TAKES(ncclBroadcast(s.gradient, other, COUNT, ncclFloat, 2, s.comm, s.stream), 20 + i % 4);
    TAKES(ncclReduce(s.gradient, other, COUNT, ncclFloat, ncclMin, 1, s.comm, s.stream),
          s.rank == 1 ? i % 4 : 20 + i % 4);
#undef TAKES
    (void)cudaFree(other);
    side_close(&s);
    return NULL;
}

TEST(each_collective_does_what_nccl_says)
{
    cusim_reset(RANKS, 1 << 20, CUSIM_RANDOM, 1);
    run_ranks(all_kinds, RANKS);
    CHECK_EQ(failures, 0);
}

TEST(one_thread_may_have_all_ranks)
{
    ncclComm_t comms[RANKS];
    int n;

    cusim_reset(RANKS, 1 << 20, CUSIM_LAZY, 1);
    CHECK_EQ(ncclCommInitAll(comms, RANKS, NULL), ncclSuccess);
    for (int i = 0; i < RANKS; i++) {
        CHECK_EQ(ncclCommCount(comms[i], &n), ncclSuccess);
        CHECK_EQ(n, RANKS);
        CHECK_EQ(ncclCommUserRank(comms[i], &n), ncclSuccess);
        CHECK_EQ(n, i);
        CHECK_EQ(ncclCommCuDevice(comms[i], &n), ncclSuccess);
        CHECK_EQ(n, i);
        CHECK_EQ(ncclCommDestroy(comms[i]), ncclSuccess);
    }
}

/* ---- ranks that do not do their part --------------------------------------------------------------------------- */

TEST(a_rank_that_does_not_come_is_an_error_within_the_patience)
{
    ncclComm_t comm;
    ncclResult_t e = ncclSuccess;
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;

    cusim_reset(2, 1 << 20, CUSIM_LAZY, 1);
    cusim_patience_ms(100);
    CHECK_EQ(ncclGetUniqueId(&id), ncclSuccess);
    CHECK_EQ(ncclCommInitRank(&comm, 2, id, 0), ncclSystemError);
    CHECK(comm == NULL);
    config.blocking = 0;
    CHECK_EQ(ncclGetUniqueId(&id), ncclSuccess);
    CHECK_EQ(ncclCommInitRankConfig(&comm, 2, id, 0, &config), ncclInProgress);
    do CHECK_EQ(ncclCommGetAsyncError(comm, &e), ncclSuccess);
    while (e == ncclInProgress);
    CHECK_EQ(e, ncclSystemError);
    CHECK_EQ(ncclCommAbort(comm), ncclSuccess);
}

static atomic_int calls;

static void *wait_for_rank_two(void *rank)
{
    struct side s;
    ncclResult_t e = ncclSuccess;

    if (!side_open(&s, (intptr_t)rank)) {
        expect(0);
        return NULL;
    }
    if (s.rank < 2) {        /* the third calls nothing: to the others it may be dead */
        expect(ncclAllReduce(s.gradient, s.gradient, COUNT, ncclFloat, ncclSum, s.comm, s.stream) == ncclSuccess);
        atomic_fetch_add(&calls, 1);
    }
    while (atomic_load(&calls) < 2) sched_yield();
    cusim_patience_ms(200);  /* from here: until then a loaded machine may take its time */
    while (ncclCommGetAsyncError(s.comm, &e) == ncclSuccess && e == ncclSuccess) {}
    expect(e == ncclRemoteError);
    if (s.rank < 2)
        expect(ncclAllReduce(s.gradient, s.gradient, COUNT, ncclFloat, ncclSum, s.comm, s.stream) == ncclRemoteError);
    (void)ncclCommAbort(s.comm);
    s.comm = NULL;
    side_close(&s);          /* what waited has ended */
    return NULL;
}

TEST(a_rank_that_leaves_a_collective_out_is_an_error_within_the_patience)
{
    cusim_reset(RANKS, 1 << 20, CUSIM_LAZY, 1);
    atomic_store(&calls, 0);
    run_ranks(wait_for_rank_two, RANKS);
    CHECK_EQ(failures, 0);
}

static void *call_something_else(void *rank)
{
    struct side s;
    ncclResult_t e = ncclSuccess, r;

    if (!side_open(&s, (intptr_t)rank)) {
        expect(0);
        return NULL;
    }
    if (s.rank == 0) r = ncclBroadcast(s.gradient, s.gradient, COUNT, ncclFloat, 0, s.comm, s.stream);
    else r = ncclAllReduce(s.gradient, s.gradient, COUNT, ncclFloat, ncclSum, s.comm, s.stream);
    expect(r == ncclSuccess || r == ncclInvalidUsage);
    while (ncclCommGetAsyncError(s.comm, &e) == ncclSuccess && e == ncclSuccess) {}
    expect(e == ncclInvalidUsage);
    (void)ncclCommAbort(s.comm);
    s.comm = NULL;
    side_close(&s);
    return NULL;
}

TEST(ranks_that_call_different_things_get_an_error)
{
    cusim_reset(RANKS, 1 << 20, CUSIM_LAZY, 1);
    run_ranks(call_something_else, RANKS);
    CHECK_EQ(failures, 0);
}

static void *abort_one(void *rank)
{
    struct side s;
    ncclResult_t e = ncclSuccess;

    if (!side_open(&s, (intptr_t)rank)) {
        expect(0);
        return NULL;
    }
    if (s.rank != 1) {
        expect(ncclAllReduce(s.gradient, s.gradient, COUNT, ncclFloat, ncclSum, s.comm, s.stream) != ncclInvalidUsage);
        while (ncclCommGetAsyncError(s.comm, &e) == ncclSuccess && e == ncclSuccess) {}
        expect(e == ncclRemoteError);
    }
    (void)ncclCommAbort(s.comm);
    s.comm = NULL;
    side_close(&s);
    return NULL;
}

TEST(an_abort_is_told_to_the_others_and_ends_their_work)
{
    cusim_reset(RANKS, 1 << 20, CUSIM_LAZY, 1);
    run_ranks(abort_one, RANKS);
    CHECK_EQ(failures, 0);
}

TEST(an_asynchronous_error_can_be_injected)
{
    ncclComm_t comm;
    ncclResult_t e;

    cusim_reset(1, 1 << 20, CUSIM_LAZY, 1);
    CHECK_EQ(ncclGetUniqueId(&id), ncclSuccess);
    CHECK_EQ(ncclCommInitRank(&comm, 1, id, 0), ncclSuccess);
    cusim_nccl_async_error(ncclInternalError);
    CHECK_EQ(ncclCommGetAsyncError(comm, &e), ncclSuccess);
    CHECK_EQ(e, ncclInternalError);
    CHECK_EQ(ncclCommGetAsyncError(comm, &e), ncclSuccess);
    CHECK_EQ(e, ncclSuccess);
    CHECK_EQ(ncclCommDestroy(comm), ncclSuccess);
}

TEST(without_a_device_there_is_no_communicator)
{
    ncclComm_t comm;

    cusim_reset(0, 0, CUSIM_LAZY, 1);
    CHECK_EQ(ncclGetUniqueId(&id), ncclSuccess);
    CHECK_EQ(ncclCommInitRank(&comm, 1, id, 0), ncclUnhandledCudaError);
}
