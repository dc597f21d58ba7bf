#include "gpu/group_nccl.h"

#include "service/base/mem.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { PAUSE_NS = 50000 };       /* between two looks at a call that is in progress */

struct nccl_ranks;

/* One member. `lock` guards comm and error; it is held across calls of NCCL, which do not wait. */
struct rank {
    struct nccl_ranks *all;
    unsigned number;
    pthread_mutex_t lock;
    void *comm;                  /* NULL: not begun, or aborted */
    int error;                   /* the first of NCCL's that is none of its good ones */
    bool begun;                  /* the device's thread has called init */
};

struct nccl_ranks {
    struct group group;
    const struct nccl *nccl;
    struct nccl_id id;

    pthread_mutex_t lock;        /* of what follows; taken alone */
    pthread_cond_t none_left;
    unsigned underway;           /* calls that the devices' threads have not come to */
    bool ending;

    struct rank ranks[GROUP_MEMBERS_MAX];
};

/* What a device's thread is to do. */
struct errand {
    struct rank *rank;
    struct group_call call;
    const void *from;
    void *to;
};

/* ---- the library ------------------------------------------------------------------------------------------------ */

enum status nccl_open(struct nccl *out, struct error *e)
{
    static const char *const names[] = {
#define NCCL_NAME(result, name, arguments) "nccl" #name,
        NCCL_FUNCTIONS(NCCL_NAME)
#undef NCCL_NAME
    };
    const char *told = secure_getenv("PARAMD_NCCL"), *path = told != NULL && told[0] != '\0' ? told : "libnccl.so.2";
    void *found[sizeof names / sizeof *names], *so = dlopen(path, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);

    _Static_assert(sizeof found == sizeof *out, "a place for each function");
    if (so == NULL)
        return error_set(e, REASON_UNIMPLEMENTED, "NCCL is not here (PARAMD_NCCL can name the file): %.300s", dlerror());
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        found[i] = dlsym(so, names[i]);
        if (found[i] == NULL)
            return error_set(e, REASON_UNIMPLEMENTED, "%.200s has no %s; version 2.14 or later is wanted", path,
                             names[i]);
    }
    memcpy(out, found, sizeof *out);
    return STATUS_OK;
}

enum status nccl_id_new(const struct nccl *n, struct nccl_id *out, struct error *e)
{
    int r = n->GetUniqueId(out);
    return r == NCCL_OK ? STATUS_OK : error_set(e, REASON_SYSTEM, "NCCL gives no id: %s", n->GetErrorString(r));
}

/* ---- on the devices' threads ------------------------------------------------------------------------------------ */

static bool is_good(int r) { return r == NCCL_OK || r == NCCL_IN_PROGRESS; }

/* With the rank's lock held. */
static void note(struct rank *k, int r)
{
    if (!is_good(r) && k->error == NCCL_OK) k->error = r;
}

static bool is_ending(struct nccl_ranks *g)
{
    pthread_mutex_lock(&g->lock);
    bool ending = g->ending;
    pthread_mutex_unlock(&g->lock);
    return ending;
}

static void errand_end(struct errand *r)
{
    struct nccl_ranks *g = r->rank->all;

    mem_free(r);
    pthread_mutex_lock(&g->lock);
    if (--g->underway == 0) pthread_cond_signal(&g->none_left);
    pthread_mutex_unlock(&g->lock);
}

static void run_init(void *ctx, void *stream)
{
    struct errand *r = ctx;
    struct rank *k = r->rank;
    struct nccl_ranks *g = k->all;
    struct nccl_config config = {sizeof config, NCCL_CONFIG_MAGIC, NCCL_CONFIG_VERSION, 0};

    if (stream != NULL && !is_ending(g)) {
        pthread_mutex_lock(&k->lock);
        note(k, g->nccl->CommInitRankConfig(&k->comm, (int)g->group.ranks, g->id, (int)k->number, &config));
        k->begun = true;
        pthread_mutex_unlock(&k->lock);
    }
    errand_end(r);
}

/* What is not summed moves as bytes. */
static int nccl_type(enum dtype t)
{
    return t == DTYPE_f64 ? NCCL_TYPE_F64 : t == DTYPE_f32 ? NCCL_TYPE_F32 : NCCL_TYPE_U8;
}

static size_t nccl_count(const struct group_call *c)
{
    return nccl_type(c->type) == NCCL_TYPE_U8 ? c->count * dtype_size(c->type) : c->count;
}

static int call(const struct nccl *n, const struct errand *r, void *comm, void *stream)
{
    const struct group_call *c = &r->call;
    size_t count = nccl_count(c);
    int type = nccl_type(c->type), root = (int)c->root;

    switch (c->kind) {
    case GROUP_REDUCE: return n->Reduce(r->from, r->to, count, type, NCCL_SUM, root, comm, stream);
    case GROUP_ALL_REDUCE: return n->AllReduce(r->from, r->to, count, type, NCCL_SUM, comm, stream);
    case GROUP_BROADCAST: return n->Broadcast(r->from, r->to, count, type, root, comm, stream);
    case GROUP_REDUCE_SCATTER: return n->ReduceScatter(r->from, r->to, count, type, NCCL_SUM, comm, stream);
    case GROUP_ALL_GATHER: return n->AllGather(r->from, r->to, count, type, comm, stream);
    case GROUP_KINDS_END: break;
    }
    return NCCL_OK;
}

/* A communicator that is busy with one call must not be given another. */
static bool is_busy(struct rank *k)
{
    int r = NCCL_OK;

    pthread_mutex_lock(&k->lock);
    if (k->comm != NULL && k->error == NCCL_OK) note(k, k->all->nccl->CommGetAsyncError(k->comm, &r));
    bool busy = k->comm != NULL && k->error == NCCL_OK && r == NCCL_IN_PROGRESS;
    note(k, r);
    pthread_mutex_unlock(&k->lock);
    return busy;
}

static void run_call(void *ctx, void *stream)
{
    struct errand *r = ctx;
    struct rank *k = r->rank;
    int result = NCCL_OK;

    pthread_mutex_lock(&k->lock);
    if (stream != NULL && k->comm != NULL && k->error == NCCL_OK) result = call(k->all->nccl, r, k->comm, stream);
    note(k, result);
    pthread_mutex_unlock(&k->lock);
    while (result == NCCL_IN_PROGRESS && is_busy(k)) nanosleep(&(struct timespec){.tv_nsec = PAUSE_NS}, NULL);
    errand_end(r);
}

/* ---- the group -------------------------------------------------------------------------------------------------- */

static struct nccl_ranks *ranks_of(struct group *g) { return (struct nccl_ranks *)g; }

static enum status send(struct nccl_ranks *g, unsigned member, struct queue *q, queue_function *run,
                        const struct errand *what, struct error *e)
{
    struct errand *r = mem_new(sizeof *r);

    if (r == NULL) return error_set(e, REASON_NO_MEMORY, "no memory for a call of a group");
    *r = *what;
    r->rank = &g->ranks[member];
    pthread_mutex_lock(&g->lock);
    g->underway++;
    pthread_mutex_unlock(&g->lock);
    enum status s = device_queue_call(q, run, r);
    if (s == STATUS_OK) return s;
    *e = *device_error(q->device);
    errand_end(r);
    return s;
}

/* Some members have got the call and some have not: those wait for ever, unless they are aborted. */
static enum status nccl_give(struct group *group, const struct group_call *c, const struct group_piece *pieces)
{
    struct nccl_ranks *g = ranks_of(group);
    struct error e;

    for (unsigned i = 0; i < group->count; i++) {
        struct errand what = {.call = *c, .from = pieces[i].from.at, .to = pieces[i].to.at};
        enum status s = send(g, i, pieces[i].queue, run_call, &what, &e);
        if (s == STATUS_OK) continue;
        group->ops->abort(group);
        group_break(group, &e);
        return s;
    }
    return STATUS_OK;
}

static void break_by(struct nccl_ranks *g, const struct rank *k, int r)
{
    struct error e;

    error_set(&e, REASON_UNREACHABLE, "rank %u of %u: NCCL: %s", k->number, g->group.ranks, g->nccl->GetErrorString(r));
    g->group.ops->abort(&g->group);
    group_break(&g->group, &e);
}

/* NCCL's word on a rank: IN_PROGRESS also while its device's thread has not come to it. */
static int ask(struct nccl_ranks *g, struct rank *k)
{
    int r = NCCL_IN_PROGRESS;

    pthread_mutex_lock(&k->lock);
    if (k->begun && k->comm != NULL && k->error == NCCL_OK) note(k, g->nccl->CommGetAsyncError(k->comm, &r));
    note(k, r);
    if (k->error != NCCL_OK) r = k->error;
    pthread_mutex_unlock(&k->lock);
    return r;
}

static void nccl_look(struct group *group)
{
    struct nccl_ranks *g = ranks_of(group);
    bool ready = true;

    for (unsigned i = 0; i < group->count; i++) {
        int r = ask(g, &g->ranks[i]);
        if (group->devices[i]->lost) {
            group->ops->abort(group);
            group_break(group, device_error(group->devices[i]));
            return;
        }
        if (!is_good(r)) {
            break_by(g, &g->ranks[i], r);
            return;
        }
        ready = ready && r == NCCL_OK;
    }
    if (ready) group->state = GROUP_READY;
}

static void nccl_abort(struct group *group)
{
    struct nccl_ranks *g = ranks_of(group);

    pthread_mutex_lock(&g->lock);
    g->ending = true;
    pthread_mutex_unlock(&g->lock);
    for (unsigned i = 0; i < group->count; i++) {
        struct rank *k = &g->ranks[i];
        pthread_mutex_lock(&k->lock);
        if (k->comm != NULL) (void)g->nccl->CommAbort(k->comm);
        k->comm = NULL;
        pthread_mutex_unlock(&k->lock);
    }
}

static void nccl_free(struct nccl_ranks *g)
{
    for (unsigned i = 0; i < g->group.count; i++) pthread_mutex_destroy(&g->ranks[i].lock);
    pthread_cond_destroy(&g->none_left);
    pthread_mutex_destroy(&g->lock);
    mem_free(g);
}

/* A group that was never whole is aborted: destroying would wait for those who did not come. */
static void nccl_leave(struct group *group)
{
    struct nccl_ranks *g = ranks_of(group);

    if (group->state == GROUP_JOINING) nccl_abort(group);
    pthread_mutex_lock(&g->lock);
    while (g->underway > 0) pthread_cond_wait(&g->none_left, &g->lock);
    pthread_mutex_unlock(&g->lock);
    if (group->state == GROUP_BROKEN) nccl_abort(group); /* who began to join since */
    for (unsigned i = 0; i < group->count; i++)
        if (g->ranks[i].comm != NULL) (void)g->nccl->CommDestroy(g->ranks[i].comm);
    nccl_free(g);
}

static const struct group_ops nccl_ops = {
    .kind = "nccl", .leave = nccl_leave, .give = nccl_give, .look = nccl_look, .abort = nccl_abort,
};

static enum status check(const struct nccl_group *w, struct error *e)
{
    if (w->count >= 1 && w->count <= GROUP_MEMBERS_MAX && w->ranks <= GROUP_RANKS_MAX && w->count <= w->ranks &&
        w->first <= w->ranks - w->count)
        return STATUS_OK;
    return error_set(e, REASON_BAD_ARGUMENT, "first %u, count %u of a group of %u; a process brings 1 to %d, a "
                     "group has %d at most", w->first, w->count, w->ranks, GROUP_MEMBERS_MAX, GROUP_RANKS_MAX);
}

enum status group_nccl_new(const struct nccl_group *w, struct group **out, struct error *e)
{
    enum status s = check(w, e);
    struct nccl_ranks *g = s == STATUS_OK ? mem_zero(sizeof *g) : NULL;

    if (s != STATUS_OK) return s;
    if (g == NULL) return error_set(e, REASON_NO_MEMORY, "no memory for a group");
    g->group = (struct group){.ops = &nccl_ops, .ranks = w->ranks, .first = w->first, .count = w->count,
                              .join_by_ms = w->join_by_ms};
    g->nccl = w->nccl;
    g->id = w->id;
    pthread_mutex_init(&g->lock, NULL);
    pthread_cond_init(&g->none_left, NULL);
    for (unsigned i = 0; i < w->count; i++) {
        g->group.devices[i] = w->queues[i]->device;
        g->ranks[i].all = g;
        g->ranks[i].number = w->first + i;
        pthread_mutex_init(&g->ranks[i].lock, NULL);
    }
    for (unsigned i = 0; i < w->count && s == STATUS_OK; i++)
        s = send(g, i, w->queues[i], run_init, &(struct errand){.call = {.count = 0}}, e);
    if (s != STATUS_OK) {
        nccl_leave(&g->group);
        return s;
    }
    *out = &g->group;
    return STATUS_OK;
}
