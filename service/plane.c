/* An epoch: all ask -> the id -> the group comes together -> calls -> something breaks it. A call: all announce it ->
 * REDUCE of every key -> the sums become whole rounds -> their updates -> BROADCAST of every value. */
#include "service/plane.h"

#include "service/account.h"
#include "service/base/log.h"
#include "service/base/mem.h"
#include "service/wait.h"

#include <assert.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum stage { STAGE_ANNOUNCED, STAGE_SUMS, STAGE_UPDATES, STAGE_VALUES };

struct part {
    struct key *key;                 /* held */
    uint64_t step;
    struct dmem sum;
    struct round *round;             /* while it is counted */
    uint64_t opened;                 /* key->opened_step before */
    struct version *value;           /* held and lent while it is spread */
};

struct call {
    uint64_t number;
    enum stage stage;
    uint64_t until_ms;
    bool pulls;
    unsigned announced;              /* by so many */
    uint64_t mark;                   /* with which the collectives are done */
    uint64_t size;                   /* bytes of all sums */
    size_t updated;                  /* parts whose update has ended */
    size_t count;
    struct part parts[];
};

struct member {
    struct worker *worker;           /* held */
    uint64_t announced;              /* number of its last call */
    bool has_id;
};

struct plane {
    struct list_node node;           /* core->planes unless broken */
    struct store *store;
    uint64_t epoch;
    enum plane_state state;
    struct error why;                /* of BROKEN */
    uint64_t until_ms;               /* to form, then to join */
    uint64_t look_ms;                /* when the group is asked next */
    uint64_t verdict_ms;             /* the group has broken, and by then it is told; 0: it has not */
    struct list waiters;             /* conditions */
    struct member *members;          /* those who asked; from JOINING on all, member i is rank i + 1 */
    size_t count, capacity;
    struct nccl_id id;
    struct queue *queue;
    struct group *group;
    uint64_t called, counted;
    struct call *gathering, *running;
};

/* ---- small things ------------------------------------------------------------------------------------------------ */

static struct member *member_of(const struct plane *p, const struct worker *w)
{
    for (size_t i = 0; p != NULL && p->state != PLANE_BROKEN && i < p->count; i++)
        if (p->members[i].worker == w) return &p->members[i];
    return NULL;
}

static bool is_over(const struct store *s, uint64_t epoch)
{
    return s->plane == NULL || s->plane->epoch != epoch || s->plane->state == PLANE_BROKEN;
}

/* Why this epoch is over. */
static enum status tell_over(const struct store *s, uint64_t epoch, struct error *e)
{
    const struct plane *p = s->plane;

    if (p == NULL || epoch != p->epoch)
        return error_set(e, REASON_PLANE_BROKEN, "epoch %" PRIu64 " of the plane of store '%s' is not the present one: "
                         "join the next", epoch, s->name);
    *e = p->why;
    return e->status;
}

/* ---- the end of a call, and of an epoch -------------------------------------------------------------------------- */

static void part_fini(struct core *c, struct part *t)
{
    if (t->sum.size > 0) core_mem_free(c, &t->sum);
    if (t->value != NULL) {
        t->value->lent--;
        version_drop(t->value);
    }
    key_drop(t->key);
}

static void let_keys_go(struct call *l)
{
    for (size_t i = 0; i < l->count; i++) l->parts[i].key->on_plane = false;
}

/* No work of the device may name its memory any more. */
static void call_free(struct core *c, struct call *l)
{
    if (l == NULL) return;
    if (l->stage != STAGE_ANNOUNCED && --c->collectives == 0) device_keep_memory(c->device, false);
    if (l->stage < STAGE_UPDATES) let_keys_go(l);
    if (l->stage == STAGE_SUMS) c->staging_used -= l->size;
    for (size_t i = 0; i < l->count; i++) part_fini(c, &l->parts[i]);
    mem_free(l);
}

static void forget_members(struct plane *p)
{
    for (size_t i = 0; i < p->count; i++) worker_drop(p->members[i].worker);
    p->count = 0;
}

/* The abort lets go what waits on the queue, so that it ends and its memory can be freed. */
static void release_group(struct plane *p, const char *why)
{
    if (p->group != NULL) {
        group_abort(p->group, why);
        group_leave(p->group);
        p->group = NULL;
    }
    if (p->queue != NULL) device_queue_free(p->queue);
    p->queue = NULL;
}

static void plane_break(struct plane *p, const char *why)
{
    struct core *c = p->store->core;

    if (p->state == PLANE_BROKEN) return;
    error_set(&p->why, REASON_PLANE_BROKEN, "epoch %" PRIu64 " of the plane of store '%s' is over: %s", p->epoch,
              p->store->name, why);
    log_warn("plane", "%s", p->why.text);
    p->state = PLANE_BROKEN;
    list_remove(&p->node);
    release_group(p, why);
    call_free(c, p->gathering);
    call_free(c, p->running);
    p->gathering = p->running = NULL;
    forget_members(p);
    waits_check(&p->waiters);
}

static void break_by(struct plane *p, const struct worker *w, const char *what)
{
    char who[WORKER_PRINT_SIZE], text[ERROR_TEXT_SIZE];

    snprintf(text, sizeof text, "%s %.250s", worker_print(w, who), what);
    plane_break(p, text);
}

static void break_by_device(struct plane *p) { plane_break(p, device_error(p->store->core->device)->text); }

void plane_free(struct store *s)
{
    struct plane *p = s->plane;

    if (p == NULL) return;
    plane_break(p, "the store is deleted");
    s->plane = NULL;
    mem_free(p->members);
    mem_free(p);
}

/* ---- who is missing ---------------------------------------------------------------------------------------------- */

static void add_name(struct buf *out, const struct worker *w, bool *first)
{
    char who[WORKER_PRINT_SIZE];

    buf_format(out, "%s%s", *first ? "waiting for " : ", ", worker_print(w, who));
    *first = false;
}

static void missing_askers(const struct plane *p, struct buf *out, bool *first)
{
    const struct store *s = p->store;

    for (size_t i = 0; i < s->worker_count; i++)
        if (s->workers[i] != NULL && s->workers[i]->state == WORKER_MEMBER && member_of(p, s->workers[i]) == NULL)
            add_name(out, s->workers[i], first);
}

void plane_missing(const struct store *s, uint64_t number, struct buf *out)
{
    const struct plane *p = s->plane;
    bool first = true;

    if (p == NULL || p->state == PLANE_BROKEN) return;
    if (!s->started) {
        store_missing_joins(s, out);
        return;
    }
    if (p->state == PLANE_FORMING) missing_askers(p, out, &first);
    for (size_t i = 0; p->state != PLANE_FORMING && i < p->count; i++)
        if (number == 0 ? !p->members[i].has_id : p->members[i].announced < number)
            add_name(out, p->members[i].worker, &first);
    if (first) buf_text(out, "waiting for the group");
}

static void break_for_missing(struct plane *p, uint64_t number, const char *what, uint64_t after_ms)
{
    struct buf who = {0};
    char text[ERROR_TEXT_SIZE];

    plane_missing(p->store, number, &who);
    snprintf(text, sizeof text, "%s in %.1f s: %.*s", what, (double)after_ms / 1000.0, (int)who.size,
             who.failed ? "" : (const char *)who.at);
    buf_fini(&who);
    plane_break(p, text);
}

/* ---- forming ----------------------------------------------------------------------------------------------------- */

static enum status open_nccl(struct core *c, struct error *e)
{
    if (c->nccl != NULL) return STATUS_OK;
    struct nccl *n = mem_new(sizeof *n);
    if (n == NULL) return error_set(e, REASON_NO_MEMORY, "no memory for a plane");
    enum status st = nccl_open(n, e);
    if (st != STATUS_OK) mem_free(n);
    else c->nccl = c->nccl_own = n;
    return st;
}

enum status plane_check(const struct store *s, struct error *e)
{
    const struct device *d = s->core->device;

    if (s->options.mode != MODE_SYNC || s->core->embedded)
        return error_set(e, REASON_NO_PLANE, "store '%s' is of type '%s': a plane is for a daemon's stores of type "
                         "dist_sync", s->name, s->options.type);
    if (d->ops->queue_call == NULL)
        return error_set(e, REASON_NO_GPU, "a plane needs a daemon with one GPU (--device cuda:0), and this one has the "
                         "%s device: push the ordinary way", device_kind(d));
    return open_nccl(s->core, e);
}

static int by_rank(const void *a, const void *b)
{
    uint32_t x = ((const struct member *)a)->worker->rank, y = ((const struct member *)b)->worker->rank;

    return x < y ? -1 : x > y;
}

/* Everybody has asked: the id, and the daemon's own part. */
static enum status form(struct plane *p, struct error *e)
{
    struct core *c = p->store->core;
    enum status st = nccl_id_new(c->nccl, &p->id, e);

    if (st == STATUS_OK) st = device_queue_new(c->device, &p->queue, e);
    if (st != STATUS_OK) return st;
    p->until_ms = c->now_ms + p->store->options.round_timeout;
    struct nccl_group w = {.nccl = c->nccl, .id = p->id, .ranks = (unsigned)p->count + 1, .count = 1,
                           .queues = &p->queue, .join_by_ms = p->until_ms};
    return group_nccl_new(&w, &p->group, e);
}

static void form_if_complete(struct plane *p)
{
    const struct store *s = p->store;
    struct error e;

    if (p->state != PLANE_FORMING || !s->started || p->count == 0 || p->count < s->members) return;
    qsort(p->members, p->count, sizeof *p->members, by_rank);
    if (form(p, &e) != STATUS_OK) {
        plane_break(p, e.text);
        return;
    }
    p->state = PLANE_JOINING;
    p->look_ms = s->core->now_ms;
    waits_check(&p->waiters);
}

static enum status begin_epoch(struct store *s, struct error *e)
{
    struct plane *p = s->plane;

    if (p == NULL) {
        p = mem_zero(sizeof *p);
        if (p == NULL) return error_set(e, REASON_NO_MEMORY, "no memory for a plane");
        p->store = s;
        p->state = PLANE_BROKEN;
        list_init(&p->waiters);
        s->plane = p;
    }
    p->epoch++;
    p->state = PLANE_FORMING;
    p->called = p->counted = p->verdict_ms = 0;
    p->until_ms = s->core->now_ms + s->options.round_timeout;
    list_append(&s->core->planes, &p->node);
    return STATUS_OK;
}

enum status plane_join(struct store *s, struct worker *w, uint64_t *epoch, struct error *e)
{
    enum status st = plane_check(s, e);

    if (st == STATUS_OK) st = store_dead_blocks(s, e);
    if (st != STATUS_OK) return st;
    if (s->plane != NULL && s->plane->state != PLANE_FORMING) break_by(s->plane, w, "joins the plane anew");
    if (s->plane == NULL || s->plane->state == PLANE_BROKEN) {
        st = begin_epoch(s, e);
        if (st != STATUS_OK) return st;
    }
    struct plane *p = s->plane;
    if (p->count + 1 >= GROUP_RANKS_MAX)
        return error_set(e, REASON_LIMIT, "a plane has at most %d workers", GROUP_RANKS_MAX - 1);
    *epoch = p->epoch;
    if (member_of(p, w) != NULL) return STATUS_OK;
    st = mem_grow((void **)&p->members, &p->capacity, p->count + 1, sizeof *p->members, e);
    if (st != STATUS_OK) return st;
    p->members[p->count++] = (struct member){.worker = worker_hold(w)};
    form_if_complete(p);
    return STATUS_OK;
}

struct plane_facts plane_look(struct store *s, const struct worker *w)
{
    const struct plane *p = s->plane;
    struct member *m = w != NULL ? member_of(p, w) : NULL;

    if (p == NULL) return (struct plane_facts){.state = PLANE_BROKEN};
    struct plane_facts f = {.epoch = p->epoch, .state = p->state, .called = p->called, .counted = p->counted};
    if (p->state == PLANE_BROKEN) f.why = p->why.text;
    if (p->state != PLANE_JOINING && p->state != PLANE_READY) return f;
    f.ranks = (unsigned)p->count + 1;
    if (m == NULL) return f;
    m->has_id = true;
    f.rank = (unsigned)(m - p->members) + 1;
    f.id = &p->id;
    f.left_ms = p->until_ms > s->core->now_ms ? p->until_ms - s->core->now_ms : 0;
    return f;
}

/* ---- who comes and goes ------------------------------------------------------------------------------------------ */

void plane_worker_came(struct store *s, const struct worker *w)
{
    struct plane *p = s->plane;

    if (p != NULL && (p->state == PLANE_JOINING || p->state == PLANE_READY))
        break_by(p, w, "has joined the store; the next epoch has it, too");
}

void plane_worker_gone(struct store *s, const struct worker *w, const char *why)
{
    struct plane *p = s->plane;
    struct member *m = member_of(p, w);

    if (m != NULL && p->state != PLANE_FORMING) {
        break_by(p, w, why);
    } else if (m != NULL) {
        worker_drop(m->worker);
        *m = p->members[--p->count];
    }
    if (p != NULL) form_if_complete(p);
}

void plane_worker_dies(struct store *s, const struct worker *w, const char *why)
{
    if (s->plane != NULL && s->plane->state == PLANE_FORMING) break_by(s->plane, w, why);
    else plane_worker_gone(s, w, why);
}

void plane_worker_lost(struct store *s, const struct worker *w)
{
    if (s->plane != NULL && s->plane->state != PLANE_FORMING) plane_worker_gone(s, w, "has lost its last connection");
}

uint64_t plane_leave(struct store *s, const struct worker *w, uint64_t epoch, struct bytes why)
{
    char text[ERROR_TEXT_SIZE];

    if (s->plane == NULL || s->plane->epoch != epoch) return 0;
    if (member_of(s->plane, w) != NULL) {
        snprintf(text, sizeof text, "%s%.*s", why.size > 0 ? "reports: " : "has left it", why.size < 300 ? (int)why.size : 300,
                 (const char *)why.at);
        break_by(s->plane, w, text);
    }
    return s->plane->counted;
}

void plane_key_gone(struct store *s, const struct key *k)
{
    char name[KEY_PRINT_SIZE], text[KEY_PRINT_SIZE + 40];

    if (!k->on_plane) return;
    snprintf(text, sizeof text, "%s was deleted", key_name_print(&k->name, name));
    plane_break(s->plane, text);
}

enum status plane_not_busy(const struct key *k, struct error *e)
{
    char name[KEY_PRINT_SIZE];

    if (!k->on_plane) return STATUS_OK;
    return error_set(e, REASON_PLANE_BUSY, "%s is being pushed on the plane of store '%s' (epoch %" PRIu64 "): push it "
                     "there, too, or leave the plane first", key_name_print(&k->name, name), k->store->name,
                     k->store->plane->epoch);
}

/* ---- announcing -------------------------------------------------------------------------------------------------- */

/* What w says of one key: does it fit what the store knows? */
static enum status check_entry(struct store *s, struct worker *w, const struct plane_entry *x, struct key **out,
                               struct error *e)
{
    struct key *k = store_key_at(s, x->key);
    char name[KEY_PRINT_SIZE];

    if (k == NULL)
        return error_set(e, REASON_NO_KEY, "there is no key with id %" PRIu64 " in store '%s'; it may have been deleted "
                         "or replaced", x->key, s->name);
    if (k->shape.dtype != DTYPE_f32 && k->shape.dtype != DTYPE_f64)
        return error_set(e, REASON_UNIMPLEMENTED, "%s is of %s: a plane sums float32 and float64; push it the ordinary "
                         "way", key_name_print(&k->name, name), dtype_numpy(k->shape.dtype));
    uint64_t next = worker_tell_step(w, k);
    if (x->step != next || x->step <= k->closed_step)
        return error_set(e, REASON_STEP_ORDER, "push %" PRIu64 " of %s on the plane: the next one of this worker is %"
                         PRIu64, x->step, key_name_print(&k->name, name), next);
    *out = k;
    enum status st = state_takes_push(k, e);
    return st == STATUS_OK ? round_none_open(k, e) : st;
}

static enum status call_new(struct plane *p, struct worker *w, const struct plane_announcement *a, struct call **out,
                            struct error *e)
{
    struct core *c = p->store->core;
    struct call *l = mem_zero(sizeof *l + a->count * sizeof l->parts[0]);
    enum status st = l != NULL ? STATUS_OK : error_set(e, REASON_NO_MEMORY, "no memory for a call of a plane");

    if (st != STATUS_OK) return st;
    l->number = a->number;
    l->pulls = a->pulls;
    l->until_ms = c->now_ms + p->store->options.round_timeout;
    for (size_t i = 0; i < a->count && st == STATUS_OK; i++) {
        struct key *k = NULL;
        st = check_entry(p->store, w, &a->entries[i], &k, e); /* one that comes twice is busy then */
        if (st != STATUS_OK) break;
        k->on_plane = true;
        l->parts[l->count++] = (struct part){.key = key_hold(k), .step = a->entries[i].step};
        l->size += k->shape.size;
    }
    uint64_t most = account_staging_most(c) / 2;
    if (st == STATUS_OK && l->size > most)
        st = error_set(e, REASON_LIMIT, "a call of %" PRIu64 " bytes; %" PRIu64 " are the most: call for fewer keys at "
                       "once", l->size, most);
    if (st == STATUS_OK) *out = l;
    else call_free(c, l);
    return st;
}

/* The first difference between a call and w's words for it. */
static bool differs(const struct call *l, const struct plane_announcement *a, char text[ERROR_TEXT_SIZE])
{
    size_t i = 0;

    if (a->count != l->count) {
        snprintf(text, ERROR_TEXT_SIZE, "announces %zu keys as call %" PRIu64 ", the others %zu", a->count, l->number,
                 l->count);
        return true;
    }
    if (a->pulls != l->pulls) {
        snprintf(text, ERROR_TEXT_SIZE, "%s as call %" PRIu64 ", the others %s", a->pulls ? "pushes and pulls" : "pushes",
                 l->number, l->pulls ? "push and pull" : "push");
        return true;
    }
    while (i < l->count && a->entries[i].key == l->parts[i].key->id && a->entries[i].step == l->parts[i].step) i++;
    if (i == l->count) return false;
    snprintf(text, ERROR_TEXT_SIZE, "announces push %" PRIu64 " of key id %" PRIu64 " at place %zu of call %" PRIu64
             ", the others push %" PRIu64 " of key id %" PRIu64, a->entries[i].step, a->entries[i].key, i + 1, l->number,
             l->parts[i].step, l->parts[i].key->id);
    return true;
}

static enum status announce(struct plane *p, struct worker *w, const struct plane_announcement *a, struct error *e)
{
    char text[ERROR_TEXT_SIZE];

    if (p->gathering == NULL) return call_new(p, w, a, &p->gathering, e);
    if (differs(p->gathering, a, text)) {
        break_by(p, w, text);
        return tell_over(p->store, a->epoch, e);
    }
    for (size_t i = 0; i < a->count; i++) {
        const struct part *t = &p->gathering->parts[i];
        if (worker_tell_step(w, t->key) != t->step) {
            break_by(p, w, "is at another step than the others");
            return tell_over(p->store, a->epoch, e);
        }
    }
    return STATUS_OK;
}

static void start_call(struct plane *p);

enum status plane_call(struct store *s, struct worker *w, const struct plane_announcement *a, struct error *e)
{
    struct plane *p = s->plane;
    struct member *m = member_of(p, w);

    if (is_over(s, a->epoch)) return tell_over(s, a->epoch, e);
    if (m == NULL || p->state == PLANE_FORMING)
        return error_set(e, REASON_NO_PLANE, "this worker is not on the plane of store '%s': join it first", s->name);
    if (a->number <= m->announced) return STATUS_OK;
    if (a->number != p->called + 1)
        return error_set(e, REASON_BAD_ARGUMENT, "call %" PRIu64 " on the plane of store '%s': the next is %" PRIu64,
                         a->number, s->name, p->called + 1);
    enum status st = announce(p, w, a, e);
    if (st != STATUS_OK) return st;
    m->announced = a->number;
    if (++p->gathering->announced < p->count) return STATUS_OK;
    p->called = a->number;
    waits_check(&p->waiters);
    start_call(p);
    return STATUS_OK;
}

/* ---- a call ------------------------------------------------------------------------------------------------------ */

static enum status give(struct plane *p, enum group_kind kind, const struct key *k, struct dmem m, struct error *e)
{
    struct group_call c = {.kind = kind, .type = k->shape.dtype, .count = (size_t)k->shape.count, .root = 0};
    struct group_piece piece = {p->queue, m, m};
    enum status st = group_give(p->group, &c, &piece);

    if (st != STATUS_OK) *e = *group_error(p->group);
    return st;
}

/* Rank 0 has no gradient of its own: it adds zeros. */
static enum status give_sums(struct plane *p, struct call *l, struct error *e)
{
    struct core *c = p->store->core;
    enum status st = STATUS_OK;

    for (size_t i = 0; i < l->count && st == STATUS_OK; i++) {
        struct part *t = &l->parts[i];
        st = core_mem_new(c, (size_t)t->key->shape.size, key_place(t->key, t->key->shape.dtype), &t->sum, e);
        if (st != STATUS_OK) return st;
        st = device_zero(p->queue, t->sum, (size_t)t->key->shape.size);
        if (st != STATUS_OK) *e = *device_error(c->device);
        else st = give(p, GROUP_REDUCE, t->key, t->sum, e);
    }
    return st;
}

static enum status give_values(struct plane *p, struct call *l, struct error *e)
{
    enum status st = STATUS_OK;

    for (size_t i = 0; i < l->count && st == STATUS_OK; i++) {
        struct part *t = &l->parts[i];
        t->value = version_hold(t->key->current);
        t->value->lent++;
        st = give(p, GROUP_BROADCAST, t->key, t->value->mem, e);
    }
    return st;
}

/* Sums or values have been given, or not: then the ranks wait for what will not come. */
static void mark_stage(struct plane *p, enum status st, const struct error *e)
{
    if (st == STATUS_OK && device_record(p->queue, &p->running->mark) != STATUS_OK) break_by_device(p);
    else if (st != STATUS_OK) plane_break(p, e->text);
}

static void start_call(struct plane *p)
{
    struct core *c = p->store->core;
    struct call *l = p->gathering;
    struct error e;

    if (p->state != PLANE_READY || p->verdict_ms != 0 || p->running != NULL) return;
    if (l == NULL || l->announced < p->count) return;
    p->running = l;
    p->gathering = NULL;
    l->stage = STAGE_SUMS;
    l->until_ms = c->now_ms + p->store->options.round_timeout;
    c->staging_used += l->size;
    /* Who ends a call that hangs is this thread, which must not come to wait for it. */
    if (c->collectives++ == 0) device_keep_memory(c->device, true);
    enum status st = give_sums(p, l, &e);
    mark_stage(p, st, &e);
}

/* All rounds are made before the first is closed, so that lack of memory leaves none. */
static enum status open_rounds(struct plane *p, struct call *l, struct error *e)
{
    struct worker **workers = mem_array(p->count, sizeof *workers);
    enum status st = workers != NULL ? STATUS_OK : error_set(e, REASON_NO_MEMORY, "no memory to count a call of a plane");

    for (size_t i = 0; st == STATUS_OK && i < p->count; i++) workers[i] = p->members[i].worker;
    for (size_t i = 0; st == STATUS_OK && i < l->count; i++) {
        struct part *t = &l->parts[i];
        t->opened = t->key->opened_step;
        st = round_whole_new(t->key, t->step, workers, p->count, &t->round, e);
    }
    mem_free(workers);
    return st;
}

static void void_rounds(struct call *l, const struct error *why)
{
    for (size_t i = 0; i < l->count; i++)
        if (l->parts[i].round != NULL) round_whole_void(l->parts[i].round, l->parts[i].opened, why);
}

static void count_call(struct plane *p)
{
    struct call *l = p->running;
    struct error e;

    if (open_rounds(p, l, &e) != STATUS_OK) {
        void_rounds(l, &e);
        plane_break(p, e.text);
        return;
    }
    let_keys_go(l);
    p->store->core->staging_used -= l->size;
    l->stage = STAGE_UPDATES;
    p->counted = l->number;
    for (size_t i = 0; i < l->count; i++) round_whole_close(l->parts[i].round, &l->parts[i].sum);
    waits_check(&p->waiters);
}

static bool is_updated(const struct plane *p, const struct part *t)
{
    const struct progress *seen = worker_seen(p->members[0].worker, t->key);

    return seen == NULL || !worker_pending(seen, t->step);
}

/* The next one first, so that memory is kept from one to the other. */
static void end_call(struct plane *p)
{
    struct call *ended = p->running;

    p->running = NULL;
    start_call(p);
    call_free(p->store->core, ended);
}

/* What the group has done counts only when it is whole after that. If it is not, time will tell who is gone. */
static bool has_passed(struct plane *p)
{
    uint64_t passed = 0;

    if (device_passed(p->queue, &passed) != STATUS_OK) {
        break_by_device(p);
        return false;
    }
    return passed >= p->running->mark && group_look(p->group, p->store->core->now_ms) == GROUP_READY;
}

/* One stage of the running call on; false: there is nothing to be done. */
static bool move(struct plane *p)
{
    struct call *l = p->running;
    struct error e;

    if (l == NULL) return false;
    switch (l->stage) {
    case STAGE_ANNOUNCED: return false;
    case STAGE_SUMS:
        if (!has_passed(p)) return false;
        count_call(p);
        return true;
    case STAGE_UPDATES:
        while (l->updated < l->count && is_updated(p, &l->parts[l->updated])) l->updated++;
        if (l->updated < l->count) return false;
        if (!l->pulls) {
            end_call(p);
            return true;
        }
        l->stage = STAGE_VALUES;
        enum status st = give_values(p, l, &e);
        mark_stage(p, st, &e);
        return true;
    case STAGE_VALUES:
        if (!has_passed(p)) return false;
        end_call(p);
        return true;
    }
    return false;
}

void planes_poll(struct core *c)
{
    LIST_EACH(struct plane, p, node, &c->planes)
        while (move(p)) continue;
}

/* ---- conditions -------------------------------------------------------------------------------------------------- */

enum wait_state plane_decides(const struct store *s, enum wait_kind kind, uint64_t epoch, uint64_t number,
                              struct error *why)
{
    const struct plane *p = s->plane;

    if (kind == WAIT_COUNTED && p != NULL && p->epoch == epoch && p->counted >= number) return WAIT_DONE;
    if (is_over(s, epoch)) {
        (void)!tell_over(s, epoch, why);
        return WAIT_FAILED;
    }
    bool is_so = number == 0 ? p->state != PLANE_FORMING : p->called >= number;
    return is_so && kind == WAIT_PLANE ? WAIT_DONE : WAIT_PENDING;
}

struct list *plane_waiters(struct store *s) { return &s->plane->waiters; }

/* ---- time -------------------------------------------------------------------------------------------------------- */

/* NCCL does not say which rank is gone. The loss of its connections does, and may be known a moment later. */
static void tell_broken(struct plane *p, uint64_t now_ms)
{
    if (p->state == PLANE_JOINING && now_ms >= p->until_ms)
        break_for_missing(p, 0, "the group did not come together", p->store->options.round_timeout);
    else if (p->verdict_ms == 0) p->verdict_ms = now_ms + PLANE_VERDICT_MS;
    else if (now_ms >= p->verdict_ms) plane_break(p, group_error(p->group)->text);
}

static void look_at_group(struct plane *p, uint64_t now_ms)
{
    if (now_ms < p->look_ms) return;
    p->look_ms = now_ms + PLANE_LOOK_MS;
    enum group_state state = group_look(p->group, now_ms);
    if (state == GROUP_BROKEN) {
        tell_broken(p, now_ms);
    } else if (state == GROUP_READY && p->state == PLANE_JOINING) {
        p->state = PLANE_READY;
        log_info("plane", "epoch %" PRIu64 " of the plane of store '%s': %zu workers", p->epoch, p->store->name, p->count);
        start_call(p);
    }
}

static uint64_t tick(struct plane *p, uint64_t now_ms)
{
    uint64_t limit = p->store->options.round_timeout;

    if (p->state == PLANE_FORMING) {
        if (now_ms < p->until_ms) return p->until_ms;
        break_for_missing(p, 0, "not all workers asked to join", limit);
        return UINT64_MAX;
    }
    if (p->gathering != NULL && p->gathering->announced < p->count && now_ms >= p->gathering->until_ms)
        break_for_missing(p, p->gathering->number, "not all workers announced the call", limit);
    else if (p->running != NULL && now_ms >= p->running->until_ms)
        break_for_missing(p, p->called, "a call did not end", limit);
    else look_at_group(p, now_ms);
    return p->state == PLANE_BROKEN ? UINT64_MAX : now_ms + PLANE_LOOK_MS;
}

uint64_t planes_tick(struct core *c)
{
    uint64_t next = UINT64_MAX;

    LIST_EACH(struct plane, p, node, &c->planes) {
        uint64_t at = tick(p, c->now_ms);
        if (at < next) next = at;
    }
    return next;
}
