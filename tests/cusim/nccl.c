/* The part of NCCL that the project uses, among threads or devices of one process.
 *
 * A collective is two actions on each rank's stream: it arrives, and once every rank has, each finishes; the first
 * to finish does the work for all. Where the real one may hang or mix up data, this one gives errors: ranks that do
 * not come within the stand-in's patience, and ranks that call different things, which ncclCommGetAsyncError tells
 * of.
 *
 * A clique is what has one unique id; it lives as long as its communicators and their actions. All under the
 * stand-in's lock. */
#include "gpu/half.h"
#include "tests/cusim/sim.h"

#include <nccl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum kind { REDUCE, ALL_REDUCE, BROADCAST, REDUCE_SCATTER, ALL_GATHER };

/* What all ranks must agree on. */
struct terms {
    enum kind kind;
    ncclDataType_t type;
    ncclRedOp_t op;
    int root;
    size_t count;
};

struct part {
    const void *send;
    void *recv;
};

struct collective {
    struct collective *next;
    uint64_t number;
    struct terms terms;
    int arrived, finished;
    bool is_worked;
    double since_s;
    char edge;
    struct part *parts;
};

struct clique {
    struct clique *next;
    ncclUniqueId id;
    int ranks, joined, users;                /* users: communicators and actions */
    ncclResult_t error;
    struct collective *collectives;
};

struct ncclComm {
    struct clique *clique;
    int rank, device;
    bool is_blocking;
    double since_s;
    uint64_t number;                         /* of the next collective */
};

static struct clique *cliques;
static int async_error;
enum { GROUP_MAX = 64 };
static __thread struct {
    int depth, count;
    ncclComm_t begun[GROUP_MAX];
} group;

/* The plug-in finds these by name, in itself. nccl.h declares some without a prototype. */
#pragma GCC visibility push(default)
ncclResult_t ncclGroupStart(void);
ncclResult_t ncclGroupEnd(void);

void cusim_nccl_async_error(int error)
{
    sim_lock();
    async_error = error;
    sim_unlock();
}

/* ---- cliques --------------------------------------------------------------------------------------------------- */

static struct clique *clique_join(const ncclUniqueId *id, int ranks)
{
    struct clique *q = cliques;

    while (q != NULL && memcmp(&q->id, id, sizeof q->id) != 0) q = q->next;
    if (q == NULL) {
        q = sim_new(sizeof *q);
        q->id = *id;
        q->ranks = ranks;
        q->next = cliques;
        cliques = q;
    }
    if (q->ranks != ranks || q->joined == ranks) {
        sim_say("a rank of %d joins %d of %d", ranks, q->joined, q->ranks);
        return NULL;
    }
    q->joined++;
    q->users++;
    return q;
}

static void clique_leave(struct clique *q)
{
    struct clique **at = &cliques;

    if (--q->users > 0) return;
    while (*at != q) at = &(*at)->next;
    *at = q->next;
    while (q->collectives != NULL) {
        struct collective *c = q->collectives;
        q->collectives = c->next;
        free(c->parts);
        free(c);
    }
    free(q);
}

static void clique_fail(struct clique *q, ncclResult_t error)
{
    if (q->error == ncclSuccess) q->error = error;
}

/* The lock is let go of between looks, so that other ranks come in. */
static ncclResult_t await_ranks(struct clique *q)
{
    double since = sim_now_s();

    while (q->joined < q->ranks && q->error == ncclSuccess) {
        if (sim_now_s() - since > sim.patience_ms * 1e-3) {
            sim_say("%d of %d ranks came", q->joined, q->ranks);
            clique_fail(q, ncclSystemError);
        }
        sim_unlock();
        usleep(100);
        sim_lock();
    }
    return q->joined == q->ranks ? ncclSuccess : q->error; /* others may be further on, and have failed there */
}

/* ---- communicators --------------------------------------------------------------------------------------------- */

ncclResult_t ncclGetVersion(int *version)
{
    *version = NCCL_VERSION_CODE;
    return ncclSuccess;
}

const char *ncclGetErrorString(ncclResult_t r)
{
    static const char *const texts[] = {"no error", "unhandled cuda error", "unhandled system error", "internal error",
                                        "invalid argument", "invalid usage", "remote process exited or network error",
                                        "NCCL operation in progress"};
    return (unsigned)r < sizeof texts / sizeof texts[0] ? texts[r] : "unknown result code";
}

const char *ncclGetLastError(ncclComm_t c)
{
    return c != NULL ? ncclGetErrorString(c->clique->error) : "";
}

ncclResult_t ncclGetUniqueId(ncclUniqueId *id)
{
    static int count;
    memset(id, 0, sizeof *id);
    snprintf(id->internal, sizeof id->internal, "cusim %d %d", (int)getpid(),
             __atomic_add_fetch(&count, 1, __ATOMIC_RELAXED));
    return ncclSuccess;
}

static ncclResult_t communicator_new(ncclComm_t *out, int ranks, const ncclUniqueId *id, int rank, bool is_blocking)
{
    struct clique *q;

    *out = NULL;
    if (sim.sticky != cudaSuccess || sim.devices == 0) return ncclUnhandledCudaError;
    if (ranks <= 0 || rank < 0 || rank >= ranks) return ncclInvalidArgument;
    q = clique_join(id, ranks);
    if (q == NULL) return ncclInvalidUsage;
    *out = sim_new(sizeof **out);
    **out = (struct ncclComm){q, rank, *sim_current_device(), is_blocking, sim_now_s(), 0};
    return ncclSuccess;
}

static void communicator_free(ncclComm_t c)
{
    clique_leave(c->clique);
    free(c);
}

static ncclResult_t init(ncclComm_t *out, int ranks, const ncclUniqueId *id, int rank, bool is_blocking)
{
    ncclResult_t r;
    int devices;

    (void)cudaGetDeviceCount(&devices); /* the first call of all may be one of NCCL's */
    sim_lock();
    r = communicator_new(out, ranks, id, rank, is_blocking);
    if (r == ncclSuccess && group.depth > 0) {
        if (group.count == GROUP_MAX) abort();
        group.begun[group.count++] = *out;
    } else if (r == ncclSuccess && is_blocking) {
        r = await_ranks((*out)->clique);
    } else if (r == ncclSuccess) {
        r = ncclInProgress;
    }
    if (r != ncclSuccess && r != ncclInProgress && *out != NULL) {
        communicator_free(*out);
        *out = NULL;
    }
    sim_unlock();
    return r;
}

ncclResult_t ncclCommInitRank(ncclComm_t *out, int ranks, ncclUniqueId id, int rank)
{
    return init(out, ranks, &id, rank, true);
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t *out, int ranks, ncclUniqueId id, int rank, ncclConfig_t *config)
{
    return init(out, ranks, &id, rank, config == NULL || config->blocking != 0);
}

ncclResult_t ncclCommInitAll(ncclComm_t *out, int count, const int *devices)
{
    ncclUniqueId id;
    ncclResult_t r = ncclSuccess, end;

    (void)ncclGetUniqueId(&id);
    (void)ncclGroupStart();
    for (int i = 0; i < count && r == ncclSuccess; i++) {
        if (cudaSetDevice(devices != NULL ? devices[i] : i) != cudaSuccess) r = ncclUnhandledCudaError;
        else r = ncclCommInitRank(&out[i], count, id, i);
    }
    end = ncclGroupEnd();
    return r != ncclSuccess ? r : end;
}

ncclResult_t ncclGroupStart(void)
{
    group.depth++;
    return ncclSuccess;
}

ncclResult_t ncclGroupEnd(void)
{
    ncclResult_t r = ncclSuccess;

    if (group.depth == 0) return ncclInvalidUsage;
    if (--group.depth > 0) return ncclSuccess;
    sim_lock();
    for (int i = 0; i < group.count && r == ncclSuccess; i++)
        r = group.begun[i]->is_blocking ? await_ranks(group.begun[i]->clique) : ncclInProgress;
    group.count = 0;
    sim_unlock();
    return r;
}

ncclResult_t ncclCommCount(const ncclComm_t c, int *count)
{
    *count = c->clique->ranks;
    return ncclSuccess;
}

ncclResult_t ncclCommUserRank(const ncclComm_t c, int *rank)
{
    *rank = c->rank;
    return ncclSuccess;
}

ncclResult_t ncclCommCuDevice(const ncclComm_t c, int *device)
{
    *device = c->device;
    return ncclSuccess;
}

/* A collective that waits for a rank past the patience: that rank is taken for dead. */
static void look_for_dead_ranks(struct clique *q)
{
    double now = sim_now_s();

    for (const struct collective *c = q->collectives; c != NULL; c = c->next)
        if (c->arrived < q->ranks && now - c->since_s > sim.patience_ms * 1e-3) clique_fail(q, ncclRemoteError);
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t c, ncclResult_t *error)
{
    struct clique *q = c->clique;

    sim_lock();
    if (q->joined < q->ranks && sim_now_s() - c->since_s > sim.patience_ms * 1e-3) clique_fail(q, ncclSystemError);
    look_for_dead_ranks(q);
    *error = q->error == ncclSuccess && q->joined < q->ranks ? ncclInProgress : q->error;
    if (async_error != 0) {
        *error = (ncclResult_t)async_error;
        async_error = 0;
    }
    sim_unlock();
    return ncclSuccess;
}

/* Others learn of it as of a dead peer; what waits on their streams ends without a result. */
ncclResult_t ncclCommAbort(ncclComm_t c)
{
    sim_lock();
    clique_fail(c->clique, ncclRemoteError);
    communicator_free(c);
    sim_unlock();
    return ncclSuccess;
}

ncclResult_t ncclCommFinalize(ncclComm_t c)
{
    (void)c;
    return ncclSuccess;
}

ncclResult_t ncclCommDestroy(ncclComm_t c)
{
    sim_lock();
    communicator_free(c);
    sim_unlock();
    return ncclSuccess;
}

/* ---- arithmetic ------------------------------------------------------------------------------------------------ */

static size_t size_of(ncclDataType_t t)
{
    switch (t) {
    case ncclInt8:
    case ncclUint8: return 1;
    case ncclFloat16:
    case ncclBfloat16: return 2;
    case ncclFloat32: return 4;
    case ncclFloat64: return 8;
    default: return 0; /* not used by the project */
    }
}

static double get(const void *from, size_t i, ncclDataType_t t)
{
    switch (t) {
    case ncclInt8: return ((const int8_t *)from)[i];
    case ncclUint8: return ((const uint8_t *)from)[i];
    case ncclFloat16: return (double)half_widen_f16(((const uint16_t *)from)[i]);
    case ncclBfloat16: return (double)half_widen_bf16(((const uint16_t *)from)[i]);
    case ncclFloat32: return (double)((const float *)from)[i];
    default: return ((const double *)from)[i];
    }
}

static void put(void *to, size_t i, ncclDataType_t t, double x)
{
    switch (t) {
    case ncclInt8: ((int8_t *)to)[i] = (int8_t)x; break;
    case ncclUint8: ((uint8_t *)to)[i] = (uint8_t)x; break;
    case ncclFloat16: ((uint16_t *)to)[i] = half_narrow_f16((float)x); break;
    case ncclBfloat16: ((uint16_t *)to)[i] = half_narrow_bf16((float)x); break;
    case ncclFloat32: ((float *)to)[i] = (float)x; break;
    default: ((double *)to)[i] = x;
    }
}

/* In the order of ranks, rounded to the type after each, as a ring does. `all` has the ranks' elements one after
 * another. */
static void reduce_one(const struct terms *t, char *all, int ranks, size_t count, size_t i)
{
    double sum = get(all, i, t->type);

    for (int r = 1; r < ranks; r++) {
        double x = get(all, (size_t)r * count + i, t->type);
        if (t->op == ncclMax) sum = x > sum ? x : sum;
        else if (t->op == ncclMin) sum = x < sum ? x : sum;
        else sum += x;
        put(all, i, t->type, sum);
        sum = get(all, i, t->type);
    }
    if (t->op == ncclAvg) put(all, i, t->type, sum / ranks);
}

/* Device memory is read and written by memcpy only, which the sanitizers see; this file they do not. */
static void work_reduction(const struct collective *c, int ranks)
{
    bool scatters = c->terms.kind == REDUCE_SCATTER;
    size_t count = scatters ? c->terms.count * (size_t)ranks : c->terms.count, size = size_of(c->terms.type);
    char *all = sim_new(count * size * (size_t)ranks);

    for (int r = 0; r < ranks; r++) memcpy(all + (size_t)r * count * size, c->parts[r].send, count * size);
    for (size_t i = 0; i < count; i++) reduce_one(&c->terms, all, ranks, count, i);
    for (int r = 0; r < ranks; r++) {
        size_t from = scatters ? c->terms.count * (size_t)r : 0;
        if (c->terms.kind == REDUCE && r != c->terms.root) continue;
        memcpy(c->parts[r].recv, all + from * size, c->terms.count * size);
    }
    free(all);
}

static void work(const struct collective *c, int ranks)
{
    size_t size = c->terms.count * size_of(c->terms.type);

    switch (c->terms.kind) {
    case BROADCAST:
        for (int r = 0; r < ranks; r++) /* in place nothing is written, and others may read there */
            if (c->parts[r].recv != c->parts[c->terms.root].send)
                memmove(c->parts[r].recv, c->parts[c->terms.root].send, size);
        break;
    case ALL_GATHER:
        for (int r = 0; r < ranks; r++)
            for (int from = 0; from < ranks; from++)
                memmove((char *)c->parts[r].recv + (size_t)from * size, c->parts[from].send, size);
        break;
    default: work_reduction(c, ranks);
    }
}

/* ---- collectives ----------------------------------------------------------------------------------------------- */

struct action {
    struct clique *clique;
    struct collective *collective;
    int rank;
    struct part part;
};

static bool can_arrive(void *argument)
{
    (void)argument;
    return true;
}

static void arrive(void *argument)
{
    struct action *a = argument;

    a->collective->parts[a->rank] = a->part;
    a->collective->arrived++;
    race_release(&a->collective->edge);
}

static bool can_finish(void *argument)
{
    struct action *a = argument;
    look_for_dead_ranks(a->clique);
    return a->collective->arrived == a->clique->ranks || a->clique->error != ncclSuccess;
}

static void collective_drop(struct clique *q, struct collective *c)
{
    struct collective **at = &q->collectives;

    if (++c->finished < q->ranks) return;
    while (*at != c) at = &(*at)->next;
    *at = c->next;
    free(c->parts);
    free(c);
}

static void finish(void *argument)
{
    struct action *a = argument;
    struct collective *c = a->collective;

    race_acquire(&c->edge);
    if (!c->is_worked && a->clique->error == ncclSuccess) work(c, a->clique->ranks);
    c->is_worked = true;
    race_release(&c->edge);
    race_ignore_begin(); /* to free is no access of the stream's */
    collective_drop(a->clique, c);
    clique_leave(a->clique);
    free(a);
    race_ignore_end();
}

static bool same_terms(const struct terms *a, const struct terms *b)
{
    return a->kind == b->kind && a->type == b->type && a->op == b->op && a->root == b->root && a->count == b->count;
}

static struct collective *collective_at(struct clique *q, uint64_t number, const struct terms *t)
{
    struct collective *c = q->collectives;

    while (c != NULL && c->number != number) c = c->next;
    if (c != NULL) return c;
    c = sim_new(sizeof *c);
    *c = (struct collective){.next = q->collectives, .number = number, .terms = *t, .since_s = sim_now_s()};
    c->parts = sim_new((size_t)q->ranks * sizeof *c->parts);
    q->collectives = c;
    return c;
}

static ncclResult_t refusal(ncclComm_t c, const struct terms *t, cudaStream_t s)
{
    struct clique *q = c->clique;

    if (q->joined < q->ranks) return ncclInvalidUsage;
    if (q->error != ncclSuccess) return q->error;
    if (t->root < 0 || t->root >= q->ranks || size_of(t->type) == 0) return ncclInvalidArgument;
    return cusim_stream_device(s) == c->device ? ncclSuccess : ncclInvalidArgument;
}

static ncclResult_t collective(const struct terms *t, const void *send, void *recv, ncclComm_t c, cudaStream_t s)
{
    struct clique *q = c->clique;
    ncclResult_t r;

    sim_lock();
    r = refusal(c, t, s);
    struct collective *k = r == ncclSuccess ? collective_at(q, c->number, t) : NULL;
    if (k != NULL && !same_terms(&k->terms, t)) {
        sim_say("rank %d calls another collective than the others as its number %lu", c->rank,
                (unsigned long)c->number);
        clique_fail(q, ncclInvalidUsage);
        r = ncclInvalidUsage;
    }
    if (r == ncclSuccess) {
        struct action *a = sim_new(sizeof *a);
        *a = (struct action){q, k, c->rank, {send, recv}};
        q->users++;
        c->number++;
        cusim_enqueue(s, can_arrive, arrive, a);
        cusim_enqueue(s, can_finish, finish, a);
    }
    sim_unlock();
    return r;
}

ncclResult_t ncclReduce(const void *send, void *recv, size_t n, ncclDataType_t t, ncclRedOp_t op, int root,
                        ncclComm_t c, cudaStream_t s)
{
    return collective(&(struct terms){REDUCE, t, op, root, n}, send, recv, c, s);
}

ncclResult_t ncclAllReduce(const void *send, void *recv, size_t n, ncclDataType_t t, ncclRedOp_t op, ncclComm_t c,
                           cudaStream_t s)
{
    return collective(&(struct terms){ALL_REDUCE, t, op, 0, n}, send, recv, c, s);
}

ncclResult_t ncclBroadcast(const void *send, void *recv, size_t n, ncclDataType_t t, int root, ncclComm_t c,
                           cudaStream_t s)
{
    return collective(&(struct terms){BROADCAST, t, ncclSum, root, n}, send, recv, c, s);
}

ncclResult_t ncclReduceScatter(const void *send, void *recv, size_t n, ncclDataType_t t, ncclRedOp_t op,
                               ncclComm_t c, cudaStream_t s)
{
    return collective(&(struct terms){REDUCE_SCATTER, t, op, 0, n}, send, recv, c, s);
}

ncclResult_t ncclAllGather(const void *send, void *recv, size_t n, ncclDataType_t t, ncclComm_t c, cudaStream_t s)
{
    return collective(&(struct terms){ALL_GATHER, t, ncclSum, 0, n}, send, recv, c, s);
}
#pragma GCC visibility pop
