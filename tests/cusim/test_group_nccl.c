/* The group by NCCL, of CUDA devices, on the stand-ins for both: right sums in every order of work, and a group that
 * breaks in bounded time, and whose next epoch works, where ranks do not come, differ, end or fail. Each rank is a
 * thread with a device and a group of its own, as processes would be; but for one test, where one process brings
 * all. */
#include "gpu/group_nccl.h"
#include "gpu/plugin.h"
#include "service/base/mem.h"
#include "tests/cusim/cusim.h"
#include "tests/lib/test.h"

#include <cuda_runtime_api.h>
#include <nccl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

/* What we say NCCL's words are. */
_Static_assert(NCCL_OK == (int)ncclSuccess && NCCL_IN_PROGRESS == (int)ncclInProgress, "results");
_Static_assert(NCCL_SUM == (int)ncclSum && NCCL_TYPE_U8 == (int)ncclUint8, "types");
_Static_assert(NCCL_TYPE_F32 == (int)ncclFloat32 && NCCL_TYPE_F64 == (int)ncclFloat64, "types");
_Static_assert(sizeof(struct nccl_id) == sizeof(ncclUniqueId), "ids");
_Static_assert(offsetof(struct nccl_config, magic) == offsetof(ncclConfig_t, magic) &&
               offsetof(struct nccl_config, version) == offsetof(ncclConfig_t, version) &&
               offsetof(struct nccl_config, blocking) == offsetof(ncclConfig_t, blocking), "configuration");
_Static_assert(NCCL_CONFIG_VERSION == NCCL_VERSION(2, 14, 0), "version");

enum { RANKS = 3, COUNT = 96, JOIN_MS = 2000, BOUND_MS = 20000 };

static atomic_int failures;

static void expect(bool is_true)
{
    if (!is_true) atomic_fetch_add(&failures, 1);
}

/* ---- NCCL as the group knows it -------------------------------------------------------------------------------- */

static int init_rank(void **comm, int ranks, struct nccl_id id, int rank, struct nccl_config *config)
{
    ncclConfig_t full = NCCL_CONFIG_INITIALIZER;
    ncclUniqueId same;

    expect(config->size == sizeof *config && config->magic == full.magic);
    memcpy(&same, &id, sizeof same);
    full.blocking = config->blocking;
    return (int)ncclCommInitRankConfig((ncclComm_t *)comm, ranks, same, rank, &full);
}

static int get_id(struct nccl_id *id) { return (int)ncclGetUniqueId((ncclUniqueId *)(void *)id); }
static int async_error(void *comm, int *error)
{
    ncclResult_t r = ncclSuccess, told = ncclCommGetAsyncError(comm, &r);
    *error = (int)r;
    return (int)told;
}
static int comm_abort(void *comm) { return (int)ncclCommAbort(comm); }
static int comm_destroy(void *comm) { return (int)ncclCommDestroy(comm); }
static const char *error_string(int r) { return ncclGetErrorString((ncclResult_t)r); }
static int reduce(const void *from, void *to, size_t n, int type, int op, int root, void *comm, void *stream)
{
    return (int)ncclReduce(from, to, n, (ncclDataType_t)type, (ncclRedOp_t)op, root, comm, stream);
}
static int all_reduce(const void *from, void *to, size_t n, int type, int op, void *comm, void *stream)
{
    return (int)ncclAllReduce(from, to, n, (ncclDataType_t)type, (ncclRedOp_t)op, comm, stream);
}
static int broadcast(const void *from, void *to, size_t n, int type, int root, void *comm, void *stream)
{
    return (int)ncclBroadcast(from, to, n, (ncclDataType_t)type, root, comm, stream);
}
static int reduce_scatter(const void *from, void *to, size_t n, int type, int op, void *comm, void *stream)
{
    return (int)ncclReduceScatter(from, to, n, (ncclDataType_t)type, (ncclRedOp_t)op, comm, stream);
}
static int all_gather(const void *from, void *to, size_t n, int type, void *comm, void *stream)
{
    return (int)ncclAllGather(from, to, n, (ncclDataType_t)type, comm, stream);
}

static const struct nccl stand_in = {
    .GetUniqueId = get_id, .CommInitRankConfig = init_rank, .CommGetAsyncError = async_error, .CommAbort = comm_abort,
    .CommDestroy = comm_destroy, .GetErrorString = error_string, .Reduce = reduce, .AllReduce = all_reduce,
    .Broadcast = broadcast, .ReduceScatter = reduce_scatter, .AllGather = all_gather,
};

/* ---- a rank's device: a card, and one queue of it ----------------------------------------------------------------- */

extern const struct device_plugin paramd_device_plugin;

struct side {
    struct device *device;
    struct queue *queue;
    struct dmem given, taken;        /* RANKS * COUNT floats each */
    float host[RANKS * COUNT];
    unsigned rank;
};

static float element(unsigned rank, size_t i) { return (float)((i * 7 + rank * 100) % 251); }

static bool finish(struct side *s)
{
    uint64_t mark;

    return device_record(s->queue, &mark) == STATUS_OK && device_wait(s->queue, mark) == STATUS_OK;
}

static void side_open(struct side *s, unsigned rank)
{
    struct card card = {.number = rank, .chunk_size = 1, .slot_size = 4096};
    struct error e;

    *s = (struct side){.rank = rank};
    expect(paramd_device_plugin.open(&card, &s->device, &e) == STATUS_OK);
    expect(device_queue_new(s->device, &s->queue, &e) == STATUS_OK);
    expect(device_mem_new(s->device, sizeof s->host, &s->given, &e) == STATUS_OK);
    expect(device_mem_new(s->device, sizeof s->host, &s->taken, &e) == STATUS_OK);
    for (size_t i = 0; i < RANKS * COUNT; i++) s->host[i] = element(rank, i);
    expect(device_upload(s->queue, s->given, 0, s->host, sizeof s->host) == STATUS_OK);
    expect(finish(s));
}

static void side_close(struct side *s)
{
    device_queue_free(s->queue);
    device_mem_free(&s->given), device_mem_free(&s->taken);
    device_free(s->device);
}

static uint64_t now_ms(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000 + (uint64_t)t.tv_nsec / 1000000;
}

static struct group *join_group(struct side *s, struct nccl_id id)
{
    struct nccl_group w = {&stand_in, id, RANKS, s->rank, 1, &s->queue, now_ms() + JOIN_MS};
    struct group *g = NULL;
    struct error e;

    expect(group_nccl_new(&w, &g, &e) == STATUS_OK);
    return g;
}

/* Until it is so, or too long. */
static bool comes_to(struct group *g, enum group_state state)
{
    for (uint64_t end = now_ms() + BOUND_MS; now_ms() < end;) {
        enum group_state now = group_look(g, now_ms());
        if (now == state) return true;
        if (now == GROUP_BROKEN) return false;
        nanosleep(&(struct timespec){.tv_nsec = 100000}, NULL);
    }
    return false;
}

static enum status give(struct group *g, struct side *s, enum group_kind kind, unsigned root)
{
    struct group_call c = {.kind = kind, .type = DTYPE_f32, .count = COUNT, .root = root};
    struct group_piece p = {s->queue, s->taken, s->given};

    return group_give(g, &c, &p);
}

static float total(size_t i) { return element(0, i) + element(1, i) + element(2, i); }

/* Whether rank has what is due to it. */
static bool is_right(struct side *s, enum group_kind kind, unsigned root)
{
    size_t size = kind == GROUP_ALL_GATHER ? RANKS * COUNT : kind == GROUP_REDUCE && s->rank != root ? 0 : COUNT;

    if (device_download(s->queue, s->host, s->taken, 0, size * sizeof(float)) != STATUS_OK || !finish(s)) return false;
    for (size_t i = 0; i < size; i++) {
        float want = kind == GROUP_BROADCAST ? element(root, i)
                   : kind == GROUP_REDUCE_SCATTER ? total(s->rank * COUNT + i)
                   : kind == GROUP_ALL_GATHER ? element((unsigned)(i / COUNT), i % COUNT) : total(i);
        if (s->host[i] != want) return false;
    }
    return true;
}

/* ---- ranks as threads ------------------------------------------------------------------------------------------- */

static struct nccl_id id;
static pthread_barrier_t all_there;      /* nobody may break the group before all have seen it whole */

static void run_ranks(void *(*rank)(void *), unsigned ranks)
{
    pthread_t threads[RANKS];
    struct error e;

    CHECK_OK(nccl_id_new(&stand_in, &id, &e), &e);
    atomic_store(&failures, 0);
    CHECK_EQ(pthread_barrier_init(&all_there, NULL, ranks), 0);
    for (uintptr_t i = 0; i < ranks; i++) CHECK_EQ(pthread_create(&threads[i], NULL, rank, (void *)i), 0);
    for (unsigned i = 0; i < ranks; i++) CHECK_EQ(pthread_join(threads[i], NULL), 0);
    CHECK_EQ(pthread_barrier_destroy(&all_there), 0);
    CHECK_EQ(failures, 0);
}

static void *each_call(void *arg)
{
    struct side s;

    side_open(&s, (unsigned)(uintptr_t)arg);
    struct group *g = join_group(&s, id);
    expect(comes_to(g, GROUP_READY));
    for (int kind = 0; kind < GROUP_KINDS_END; kind++) {
        expect(give(g, &s, (enum group_kind)kind, 1) == STATUS_OK);
        expect(is_right(&s, (enum group_kind)kind, 1));
        expect(group_look(g, now_ms()) == GROUP_READY);
    }
    group_leave(g);
    side_close(&s);
    return NULL;
}

TEST(every_call_is_right_in_every_order_of_work)
{
    int64_t before = mem_live();

    for (int policy = 0; policy < CUSIM_POLICIES; policy++)
        for (uint64_t seed = 1; seed <= 4; seed++) {
            cusim_reset(RANKS, 1 << 20, (enum cusim_policy)policy, seed);
            run_ranks(each_call, RANKS);
        }
    CHECK_EQ(mem_live(), before);
}

static void *without_the_last(void *arg)
{
    struct side s;

    side_open(&s, (unsigned)(uintptr_t)arg);
    struct group *g = join_group(&s, id);
    expect(!comes_to(g, GROUP_READY));
    expect(group_look(g, now_ms()) == GROUP_BROKEN);
    expect(give(g, &s, GROUP_ALL_REDUCE, 0) != STATUS_OK);
    group_leave(g);
    side_close(&s);
    return NULL;
}

TEST(a_rank_that_does_not_come_breaks_the_group_and_the_next_epoch_works)
{
    cusim_reset(RANKS, 1 << 20, CUSIM_RANDOM, 1);
    run_ranks(without_the_last, RANKS - 1);
    run_ranks(each_call, RANKS);
}

static void *another_call(void *arg)
{
    struct side s;

    side_open(&s, (unsigned)(uintptr_t)arg);
    struct group *g = join_group(&s, id);
    expect(comes_to(g, GROUP_READY));
    pthread_barrier_wait(&all_there);
    (void)!give(g, &s, s.rank == 1 ? GROUP_ALL_GATHER : GROUP_ALL_REDUCE, 0);
    expect(comes_to(g, GROUP_BROKEN));
    expect(strstr(group_error(g)->text, "NCCL") != NULL);
    group_leave(g);
    side_close(&s);
    return NULL;
}

TEST(ranks_that_call_different_things_break_the_group_and_the_next_epoch_works)
{
    cusim_reset(RANKS, 1 << 20, CUSIM_RANDOM, 2);
    run_ranks(another_call, RANKS);
    run_ranks(each_call, RANKS);
}

static void *aborts_half_way(void *arg)
{
    struct side s;

    side_open(&s, (unsigned)(uintptr_t)arg);
    struct group *g = join_group(&s, id);
    expect(comes_to(g, GROUP_READY));
    pthread_barrier_wait(&all_there);
    if (s.rank == 2) {
        group_abort(g, "a trainer is dead");
        expect(strstr(group_error(g)->text, "a trainer is dead") != NULL);
    } else {
        (void)!give(g, &s, GROUP_REDUCE_SCATTER, 0);
    }
    expect(comes_to(g, GROUP_BROKEN));
    group_leave(g);
    side_close(&s);
    return NULL;
}

TEST(an_abort_at_one_rank_ends_the_others_and_the_next_epoch_works)
{
    cusim_reset(RANKS, 1 << 20, CUSIM_LAZY, 3);
    run_ranks(aborts_half_way, RANKS);
    run_ranks(each_call, RANKS);
}

/* ---- one process that brings all ranks -------------------------------------------------------------------------- */

static struct group *join_all(struct side sides[RANKS])
{
    struct queue *queues[RANKS] = {sides[0].queue, sides[1].queue, sides[2].queue};
    struct nccl_group w = {&stand_in, id, RANKS, 0, RANKS, queues, now_ms() + JOIN_MS};
    struct group *g = NULL;
    struct error e;

    CHECK_OK(nccl_id_new(&stand_in, &w.id, &e), &e);
    CHECK_OK(group_nccl_new(&w, &g, &e), &e);
    return g;
}

TEST(one_process_may_bring_all_ranks_and_what_nccl_tells_later_breaks_the_group)
{
    struct group_call c = {.kind = GROUP_ALL_REDUCE, .type = DTYPE_f32, .count = COUNT};
    struct group_piece pieces[RANKS];
    struct side sides[RANKS];

    cusim_reset(RANKS, 1 << 20, CUSIM_RANDOM, 4);
    atomic_store(&failures, 0);
    for (unsigned r = 0; r < RANKS; r++) {
        side_open(&sides[r], r);
        pieces[r] = (struct group_piece){sides[r].queue, sides[r].taken, sides[r].given};
    }
    struct group *g = join_all(sides);
    CHECK(comes_to(g, GROUP_READY));
    CHECK_EQ(group_give(g, &c, pieces), STATUS_OK);
    for (unsigned r = 0; r < RANKS; r++) CHECK(is_right(&sides[r], c.kind, 0));
    cusim_nccl_async_error(ncclRemoteError);
    CHECK_EQ(group_look(g, now_ms()), GROUP_BROKEN);
    CHECK_SAYS(group_error(g)->text, "rank 0 of 3: NCCL: ");
    CHECK_EQ(group_give(g, &c, pieces), STATUS_UNAVAILABLE);
    group_leave(g);
    g = join_all(sides);
    CHECK(comes_to(g, GROUP_READY));
    cusim_fail("cudaMemsetAsync", 1, cudaErrorUnknown);
    CHECK_EQ(device_zero(sides[1].queue, sides[1].taken, sides[1].taken.size), STATUS_OK);
    CHECK(!finish(&sides[1]));
    CHECK_EQ(group_look(g, now_ms()), GROUP_BROKEN);
    CHECK_SAYS(group_error(g)->text, "cuda:1 device is lost");
    group_leave(g);
    for (unsigned r = 0; r < RANKS; r++) side_close(&sides[r]);
    CHECK_EQ(failures, 0);
}

TEST(groups_that_cannot_be_are_refused)
{
    struct nccl_group w = {&stand_in, {{0}}, 2, 1, 2, NULL, 0};
    struct group *g;
    struct error e;

    CHECK_EQ(group_nccl_new(&w, &g, &e), STATUS_INVALID_ARGUMENT);
    w.count = 0;
    CHECK_EQ(group_nccl_new(&w, &g, &e), STATUS_INVALID_ARGUMENT);
    w.ranks = GROUP_RANKS_MAX + 1, w.count = 1;
    CHECK_EQ(group_nccl_new(&w, &g, &e), STATUS_INVALID_ARGUMENT);
}
