/* The store against a model of it: several clients do what comes to mind, over the protocol, and a plain model in
 * this file, which knows nothing of devices, stagings or versions held, says after every operation what must be there:
 * values bit for bit, versions, who is in which round, and of every acknowledged push whether it counts, waits or has
 * failed. Numbers are such that sums are exact in any order.
 *
 *   SEED=17 build/tests/unit/test_store_model     one seed, as a failure names it
 *   LONG=1 build/tests/unit/test_store_model      many more */
#include "service/base/log.h"
#include "service/base/mem.h"
#include "service/op.h"
#include "tests/lib/books.h"
#include "tests/lib/direct.h"
#include "tests/lib/late_device.h"
#include "tests/lib/test.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    COUNT = 12, PARTS = 3, PART_COUNT = COUNT / PARTS,
    KEYS = 3, CLIENTS = 5, NAMES = 2, TICKETS = 48, BARRIERS = 6, HISTORY = 64,
    WORKER_TIMEOUT = 6000, ROUND_TIMEOUT = 14000, START_TIMEOUT = 20000
};

struct vec { float v[COUNT]; };

/* ---- what the model knows ---------------------------------------------------------------------------------------- */

enum rule { ASSIGN, ADD, AVERAGE, SGD, MOMENTUM };
enum ending { PENDING, DONE, FAILED };

struct ticket {
    uint64_t key, step;
    enum ending ending;
};

struct mworker {
    bool known;                  /* of this job */
    enum worker_state state;
    uint32_t rank, slot, epoch;
    uint64_t stamp, seen_ms;
    struct mprogress {
        uint64_t key, recorded, next, call;
    } progress[KEYS];
    struct partial {             /* a push that has arrived in part */
        uint64_t key, step, sequence, begun_ms;      /* parts as small as these are no progress */
        unsigned have;
        struct vec v;
    } partial[KEYS];
    struct ticket tickets[TICKETS];      /* the newest */
    unsigned ticket_count;
    struct { uint64_t ticket; unsigned name; enum ending ending; } barriers[BARRIERS];
    unsigned barrier_count;
};

struct mround {
    bool open;
    uint64_t step, stamp, opened_ms;
    enum rule rule;
    unsigned count;
    bool has[CLIENTS];
    struct vec sum;
    struct { unsigned client; uint64_t step; } carried[64];
    unsigned carried_count;
};

struct mkey {
    uint64_t id, version, job, opened, closed;
    bool has_momentum;
    struct vec value, momentum;
    struct mround rounds[2];     /* the older first */
    struct vec history[HISTORY]; /* by version */
};

struct mbarrier {
    bool open, come[CLIENTS];
    uint64_t ticket;
};

struct config {
    const char *name, *options;
    enum store_mode mode;
    enum on_missing on_missing;
    enum on_late on_late;
    enum async_default fallback;
    uint32_t num_workers;
};

/* One run: the fixture with its clients, and the model beside it. */
struct run {
    uint64_t seed, random;
    unsigned operation, device, client_count;
    const char *doing;
    const struct config *config;
    struct fixture *f;
    struct client *observer;
    struct actor {
        struct client *links[2];         /* of the present start; NULL: none */
        struct client *ghost;            /* a connection of an earlier start */
        uint32_t epoch;
        uint64_t lost_ms;                /* when the last connection went */
        bool in_store;                   /* this start has joined, and has not left */
        struct { uint64_t key, version, offset; } cursor;
    } actors[CLIENTS];
    uint64_t sequence, calls;

    uint32_t store;
    uint64_t job, stamp, last_join_ms;
    bool started, updater_set;
    uint32_t joined, slots;
    enum rule rule;
    struct mworker workers[CLIENTS];
    struct mkey keys[KEYS];
    struct mbarrier barriers[NAMES];
};

#define MUST(m, condition)                                                                                   \
    do {                                                                                                     \
        if (!(condition))                                                                                    \
            test_fail(__FILE__, __LINE__, "SEED=%llu (%s, device %u), operation %u, %s: %s",                 \
                      (unsigned long long)(m)->seed, (m)->config->name, (m)->device, (m)->operation,         \
                      (m)->doing, #condition);                                                               \
    } while (0)

static unsigned draw(struct run *m, unsigned below) { return (unsigned)(rng_next(&m->random) % below); }

/* ---- the model: values ------------------------------------------------------------------------------------------- */

static void apply(struct run *m, struct mkey *k, enum rule rule, const struct vec *sum, unsigned contributors)
{
    bool momentum = rule == MOMENTUM;

    (void)m;
    if (momentum && !k->has_momentum) k->momentum = (struct vec){{0}};
    k->has_momentum = momentum;
    for (unsigned i = 0; i < COUNT; i++) {
        float g = sum->v[i], *w = &k->value.v[i], *s = &k->momentum.v[i];
        switch (rule) {
        case ASSIGN: *w = g; break;
        case ADD: *w = *w + g; break;
        case AVERAGE: *w = g / (float)contributors; break;
        case SGD: *w = *w - 0.5f * (g + 0.0f * *w); break;
        case MOMENTUM: *s = 0.5f * *s - 0.5f * (g + 0.0f * *w); *w = *w + *s; break;
        }
    }
    k->version++;
    k->history[k->version % HISTORY] = k->value;
}

static void settle_ticket(struct mworker *w, uint64_t key, uint64_t step, enum ending ending)
{
    for (unsigned i = 0; i < w->ticket_count; i++)
        if (w->tickets[i].key == key && w->tickets[i].step == step) w->tickets[i].ending = ending;
}

static void add_ticket(struct mworker *w, uint64_t key, uint64_t step)
{
    if (w->ticket_count == TICKETS) memmove(w->tickets, w->tickets + 1, sizeof w->tickets[0] * (TICKETS - 1));
    else w->ticket_count++;
    w->tickets[w->ticket_count - 1] = (struct ticket){key, step, PENDING};
}

/* ---- the model: rounds ------------------------------------------------------------------------------------------- */

static enum rule rule_now(const struct run *m)
{
    if (m->updater_set) return m->rule;
    return m->config->mode == MODE_ASYNC && m->config->fallback == ASYNC_ADD ? ADD : ASSIGN;
}

static bool is_member(const struct run *m, unsigned c)
{
    return m->workers[c].known && m->workers[c].state == WORKER_MEMBER;
}

static unsigned members(const struct run *m, enum worker_state state)
{
    unsigned n = 0;
    for (unsigned c = 0; c < m->client_count; c++) n += m->workers[c].known && m->workers[c].state == state;
    return n;
}

static bool needs(const struct run *m, const struct mround *r, unsigned c)
{
    return is_member(m, c) && m->workers[c].stamp < r->stamp;
}

static void round_ends(struct run *m, struct mkey *k, struct mround *r, enum ending ending)
{
    struct mround ended = *r;

    if (r == &k->rounds[0]) k->rounds[0] = k->rounds[1];
    k->rounds[1].open = false;
    if (ended.step > k->closed) k->closed = ended.step;
    for (unsigned c = 0; c < m->client_count; c++)
        if (ended.has[c]) settle_ticket(&m->workers[c], k->id, ended.step, ending);
    for (unsigned i = 0; i < ended.carried_count; i++)
        settle_ticket(&m->workers[ended.carried[i].client], k->id, ended.carried[i].step, ending);
    if (ending == DONE) apply(m, k, ended.rule, &ended.sum, ended.count);
}

static bool is_complete(const struct run *m, const struct mround *r)
{
    for (unsigned c = 0; c < m->client_count; c++)
        if (needs(m, r, c) && !r->has[c]) return false;
    return m->started;
}

/* The open round that was opened first, after `stamp`. */
static struct mround *next_round(struct run *m, uint64_t stamp, struct mkey **of)
{
    struct mround *first = NULL;

    for (unsigned i = 0; i < KEYS * 2; i++) {
        struct mround *r = &m->keys[i / 2].rounds[i % 2];
        if (!r->open || r->stamp <= stamp || (first != NULL && first->stamp < r->stamp)) continue;
        first = r;
        *of = &m->keys[i / 2];
    }
    return first;
}

static void check_all_rounds(struct run *m)
{
    struct mkey *k;
    uint64_t at = 0;

    for (struct mround *r; (r = next_round(m, at, &k)) != NULL;) {
        at = r->stamp;
        if (is_complete(m, r)) round_ends(m, k, r, DONE);
    }
}

static struct mround *find_round(struct mkey *k, uint64_t step)
{
    for (unsigned i = 0; i < 2; i++)
        if (k->rounds[i].open && k->rounds[i].step == step) return &k->rounds[i];
    return NULL;
}

static void contribute(struct run *m, struct mkey *k, unsigned c, uint64_t own_step, uint64_t step, const struct vec *v)
{
    struct mround *r = find_round(k, step);

    if (r == NULL) {
        r = &k->rounds[k->rounds[0].open];
        *r = (struct mround){.open = true, .step = step, .stamp = ++m->stamp, .opened_ms = m->f->now_ms,
                             .rule = rule_now(m)};
        if (step > k->opened) k->opened = step;
    }
    r->count++;
    for (unsigned i = 0; i < COUNT; i++) r->sum.v[i] += v->v[i];
    if (own_step == step) {
        r->has[c] = true;
    } else {
        r->carried[r->carried_count].client = c;
        r->carried[r->carried_count++].step = own_step;
    }
    if (is_complete(m, r)) round_ends(m, k, r, DONE);
}

/* ---- the model: barriers and members ----------------------------------------------------------------------------- */

static void barrier_ends(struct run *m, unsigned name, enum ending ending)
{
    struct mbarrier *b = &m->barriers[name];

    for (unsigned c = 0; c < m->client_count; c++)
        for (unsigned i = 0; i < m->workers[c].barrier_count; i++)
            if (m->workers[c].barriers[i].ticket == b->ticket) m->workers[c].barriers[i].ending = ending;
    b->open = false;
}

static void check_barriers(struct run *m)
{
    for (unsigned n = 0; n < NAMES; n++) {
        bool complete = m->started && m->barriers[n].open;
        for (unsigned c = 0; c < m->client_count; c++)
            complete = complete && (!is_member(m, c) || m->barriers[n].come[c]);
        if (complete) barrier_ends(m, n, DONE);
    }
}

static void fail_barriers(struct run *m)
{
    for (unsigned n = 0; n < NAMES; n++)
        if (m->barriers[n].open) barrier_ends(m, n, FAILED);
}

static void drop_partials(struct mworker *w)
{
    for (unsigned k = 0; k < KEYS; k++) w->partial[k].key = 0;
}

static bool rank_is_taken(const struct run *m, uint32_t rank)
{
    for (unsigned c = 0; c < m->client_count; c++)
        if (m->workers[c].known && m->workers[c].state != WORKER_LEFT && m->workers[c].rank == rank) return true;
    return false;
}

static uint32_t free_rank(const struct run *m, uint32_t wish)
{
    uint32_t rank = 0;

    if (!rank_is_taken(m, wish)) return wish;
    while (rank_is_taken(m, rank)) rank++;
    return rank;
}

static void begin_job(struct run *m)
{
    struct mkey *k;

    for (struct mround *r; (r = next_round(m, 0, &k)) != NULL;) round_ends(m, k, r, FAILED);
    fail_barriers(m);
    memset(m->workers, 0, sizeof m->workers);
    m->job++;
    m->started = false;
    m->joined = m->slots = 0;
}

static void joins(struct run *m, unsigned c)
{
    struct mworker *w = &m->workers[c];
    uint32_t epoch = m->actors[c].epoch;

    if (members(m, WORKER_MEMBER) == 0 && (!w->known || w->state == WORKER_LEFT)) begin_job(m);
    if (!w->known) {
        *w = (struct mworker){.known = true, .state = WORKER_LEFT, .slot = m->slots++};
        w->rank = free_rank(m, 0);
        m->joined++;
    }
    if (epoch > w->epoch) {
        drop_partials(w);
        w->epoch = epoch;
        for (unsigned k = 0; k < KEYS; k++) w->progress[k].next = w->progress[k].call = 0;
    }
    w->seen_ms = m->last_join_ms = m->f->now_ms;
    if (w->state != WORKER_MEMBER) {
        if (w->state == WORKER_LEFT) w->rank = free_rank(m, w->rank);
        w->state = WORKER_MEMBER;
        w->stamp = m->started ? ++m->stamp : 0;
    }
    m->actors[c].in_store = true;
    if (m->started || m->joined < m->config->num_workers) return;
    m->started = true;
    check_all_rounds(m);
    check_barriers(m);
}

/* Rounds that needed this one and have nothing of it close without it, or fail. */
static void rounds_without(struct run *m, unsigned c, uint64_t stamp, bool fail)
{
    struct mkey *k;
    uint64_t at = stamp;

    for (struct mround *r; (r = next_round(m, at, &k)) != NULL;) {
        at = r->stamp;
        if (r->has[c]) continue;
        if (fail) round_ends(m, k, r, FAILED);
        else if (is_complete(m, r)) round_ends(m, k, r, DONE);
    }
}

/* A barrier of whom nobody is left who came to it is over. */
static void forget_barriers(struct run *m, unsigned c)
{
    for (unsigned n = 0; n < NAMES; n++) {
        bool anybody = !m->barriers[n].open || !m->barriers[n].come[c];
        for (unsigned i = 0; i < m->client_count; i++)
            anybody = anybody || (m->barriers[n].come[i] && m->workers[i].known && m->workers[i].state != WORKER_LEFT);
        if (!anybody) barrier_ends(m, n, DONE);
    }
}

static void leaves(struct run *m, unsigned c)
{
    struct mworker *w = &m->workers[c];
    bool was_member = w->state == WORKER_MEMBER;

    w->state = WORKER_LEFT;
    drop_partials(w);
    forget_barriers(m, c);
    if (was_member) rounds_without(m, c, w->stamp, false);
    check_barriers(m);
}

static void dies(struct run *m, unsigned c)
{
    struct mworker *w = &m->workers[c];

    w->state = WORKER_DEAD;
    drop_partials(w);
    bool fail = m->config->on_missing == ON_MISSING_FAIL || members(m, WORKER_MEMBER) < 1;
    rounds_without(m, c, w->stamp, fail);
    if (fail) fail_barriers(m);
    else check_barriers(m);
}

static void time_has_come(struct run *m)
{
    uint64_t now = m->f->now_ms, limit = m->started ? ROUND_TIMEOUT : START_TIMEOUT;
    struct mkey *k;

    for (unsigned i = 0; i < CLIENTS * KEYS; i++) {
        struct partial *p = &m->workers[i / KEYS].partial[i % KEYS];
        if (p->key != 0 && p->begun_ms + PROGRESS_MS < now) p->key = 0;
    }
    for (struct mround *r; (r = next_round(m, 0, &k)) != NULL;) {
        uint64_t from = r->opened_ms > m->last_join_ms ? r->opened_ms : m->last_join_ms;
        if (now < from + limit) break;
        round_ends(m, k, r, m->config->on_missing == ON_MISSING_PROCEED && m->started ? DONE : FAILED);
    }
    for (uint32_t slot = 0; slot < m->slots; slot++)
        for (unsigned c = 0; c < m->client_count; c++) {
            const struct mworker *w = &m->workers[c];
            if (is_member(m, c) && w->slot == slot && now >= w->seen_ms + WORKER_TIMEOUT) dies(m, c);
        }
}

static bool dead_block(const struct run *m)
{
    return m->config->on_missing == ON_MISSING_FAIL && members(m, WORKER_DEAD) > 0;
}

/* ---- the model: steps and pushes --------------------------------------------------------------------------------- */

static struct mprogress *progress(struct run *m, unsigned c, unsigned key)
{
    struct mprogress *p = &m->workers[c].progress[key];

    if (p->key != m->keys[key].id) *p = (struct mprogress){.key = m->keys[key].id};
    return p;
}

static uint64_t next_step(struct run *m, unsigned c, unsigned key)
{
    const struct mprogress *p = progress(m, c, key);
    const struct mkey *k = &m->keys[key];

    if (p->next > 0) return p->next;
    if (m->config->mode != MODE_SYNC) return p->recorded + 1;
    for (unsigned i = 0; i < 2; i++) {
        const struct mround *r = &k->rounds[i];
        if (r->open && r->step > p->recorded && needs(m, r, c)) return r->step;
    }
    return (p->recorded > k->opened ? p->recorded : k->opened) + 1;
}

static bool is_late(struct mkey *k, uint64_t step) { return step <= k->closed && find_round(k, step) == NULL; }

static enum status may_open(const struct run *m, const struct mkey *k, uint64_t step)
{
    if (dead_block(m)) return STATUS_FAILED_PRECONDITION;
    if (!k->rounds[0].open || (step == k->rounds[0].step + 1 && !k->rounds[1].open)) return STATUS_OK;
    return STATUS_RESOURCE_EXHAUSTED;
}

/* The push is whole. */
static enum status record(struct run *m, unsigned c, unsigned key, uint64_t step, const struct vec *v)
{
    struct mkey *k = &m->keys[key];
    struct mworker *w = &m->workers[c];
    bool sync = m->config->mode == MODE_SYNC, late = sync && is_late(k, step);

    if (sync && !late && find_round(k, step) == NULL && may_open(m, k, step) != STATUS_OK) return may_open(m, k, step);
    struct mprogress *p = progress(m, c, key);
    p->recorded = step;
    p->next = step + 1;
    add_ticket(w, k->id, step);
    if (sync && !late) {
        contribute(m, k, c, step, step, v);
    } else if (late && m->config->on_late == ON_LATE_DROP) {
        settle_ticket(w, k->id, step, FAILED);
    } else if (late && m->config->on_late == ON_LATE_CARRY) {
        contribute(m, k, c, step, k->rounds[0].open ? k->rounds[0].step : k->closed + 1, v);
    } else {
        apply(m, k, rule_now(m), v, 1);
        settle_ticket(w, k->id, step, DONE);
    }
    return STATUS_OK;
}

/* Whether this client's requests to the store are those of a member. */
static enum status who(const struct run *m, unsigned c)
{
    const struct mworker *w = &m->workers[c];
    return m->actors[c].in_store && w->known && w->state == WORKER_MEMBER && w->epoch == m->actors[c].epoch
               ? STATUS_OK : STATUS_FAILED_PRECONDITION;
}

/* Bytes of a push arrive: part 0.. or PARTS: all of it. */
static enum status arrives(struct run *m, unsigned c, unsigned key, uint64_t id, uint64_t step, unsigned part,
                           const struct vec *v, uint64_t sequence)
{
    struct mkey *k = &m->keys[key];
    struct partial *p = &m->workers[c].partial[key];
    enum status s = who(m, c);

    if (s != STATUS_OK) return s;
    if (id == 0 || id != k->id) return STATUS_NOT_FOUND;
    if (p->key == id && p->step == step && sequence < p->sequence) return STATUS_CANCELLED;
    if (p->key != id || p->step != step || sequence > p->sequence) {
        if (p->key == id && p->step == step) p->key = 0; /* it has begun anew */
        uint64_t next = progress(m, c, key)->next = next_step(m, c, key);
        if (step > 0 && step <= progress(m, c, key)->recorded) return STATUS_OK;
        if (step != next) return STATUS_ABORTED;
        if (m->config->mode == MODE_ASYNC && !m->updater_set && m->config->fallback == ASYNC_ERROR)
            return STATUS_FAILED_PRECONDITION;
        if (m->config->mode == MODE_SYNC && !is_late(k, step) && find_round(k, step) == NULL) s = may_open(m, k, step);
        if (s != STATUS_OK) return s;
        *p = (struct partial){.key = id, .step = step, .sequence = sequence, .begun_ms = m->f->now_ms};
    }
    for (unsigned i = 0; i < PARTS; i++) {
        if (part != PARTS && part != i) continue;
        memcpy(&p->v.v[i * PART_COUNT], &v->v[i * PART_COUNT], PART_COUNT * sizeof(float));
        p->have |= 1u << i;
    }
    if (p->have != (1u << PARTS) - 1) return STATUS_OK;
    p->key = 0;
    struct vec whole = p->v;
    return record(m, c, key, step, &whole);
}

/* ---- the world: connections -------------------------------------------------------------------------------------- */

static bool is_connected(const struct run *m, unsigned c)
{
    return m->actors[c].links[0] != NULL || m->actors[c].links[1] != NULL;
}

/* For a request that is sent at once: it is a sign of life, for the store that this start has joined. */
static struct client *link_of(struct run *m, unsigned c)
{
    struct actor *a = &m->actors[c];
    struct client *l = a->links[draw(m, 2)];

    if (l == NULL) l = a->links[0] != NULL ? a->links[0] : a->links[1];
    l->store = m->store;
    l->sequence = m->sequence++; /* direct.c takes the next for a request that it names */
    if (a->in_store && m->workers[c].known && m->workers[c].epoch == a->epoch) m->workers[c].seen_ms = m->f->now_ms;
    return l;
}

static void all_gone(struct run *m, unsigned c, bool keep_ghost)
{
    struct actor *a = &m->actors[c];

    for (unsigned i = 0; i < 2; i++) {
        if (a->links[i] == NULL) continue;
        if (keep_ghost && a->ghost == NULL) a->ghost = a->links[i];
        else client_gone(a->links[i]);
        a->links[i] = NULL;
    }
    a->cursor.key = 0;
    a->lost_ms = m->f->now_ms;
}

static void start_anew(struct run *m, unsigned c)
{
    struct actor *a = &m->actors[c];

    all_gone(m, c, draw(m, 2) != 0);
    a->links[0] = client_new(m->f, c + 1);
    a->epoch = a->links[0]->epoch;
    a->in_store = false;
}

static void another_link(struct run *m, unsigned c)
{
    struct actor *a = &m->actors[c];
    unsigned free = a->links[0] == NULL ? 0 : 1;
    struct client *l = client_connect(m->f, c + 1);
    struct error e;

    if (a->links[free] != NULL) client_gone(a->links[free]);
    l->epoch = a->epoch;
    json_t *j = try_json(l, WIRE_Hello, &e, "{}");
    MUST(m, j != NULL && json_integer_value(json_object_get(j, "epoch")) == a->epoch);
    l->session = (uint32_t)json_integer_value(json_object_get(j, "session"));
    json_decref(j);
    a->links[free] = l;
    if (a->in_store && m->workers[c].known && m->workers[c].epoch == a->epoch) m->workers[c].seen_ms = m->f->now_ms;
}

/* ---- the operations ---------------------------------------------------------------------------------------------- */

static void op_join(struct run *m, unsigned c)
{
    struct client *l = link_of(m, c);
    struct error e;
    json_t *j = try_json(l, WIRE_Join, &e, "{\"store\": %u}", m->store);

    joins(m, c);
    MUST(m, j != NULL);
    MUST(m, json_integer_value(json_object_get(j, "rank")) == m->workers[c].rank);
    MUST(m, (uint64_t)json_integer_value(json_object_get(j, "job")) == m->job);
    json_decref(j);
}

static void op_leave(struct run *m, unsigned c)
{
    do_json(link_of(m, c), WIRE_Leave, "{\"store\": %u}", m->store);
    if (who(m, c) != STATUS_OK) return;
    leaves(m, c);
    m->actors[c].in_store = false;
}

static struct vec some_values(struct run *m)
{
    struct vec v;
    int base = (int)draw(m, 64) - 32;
    for (int i = 0; i < COUNT; i++) v.v[i] = (float)(base + i);
    return v;
}

/* Sends part `part` (PARTS: all) of a push. */
static enum status send_push(struct run *m, struct client *l, uint64_t id, uint64_t step, unsigned part,
                             const struct vec *v, uint64_t sequence)
{
    struct wire_push fixed = {.store = m->store, .count = 1};
    struct wire_push_entry x = {.key = id, .step = step, .size = sizeof *v, .total = sizeof *v};
    struct buf f = {0}, d = {0};
    struct wire_push_done done;
    enum status s;

    if (part < PARTS) {
        x.offset = part * PART_COUNT * sizeof(float);
        x.size = PART_COUNT * sizeof(float);
    }
    wire_put_push(&f, &fixed);
    wire_put_push_entry(&d, &x);
    struct answered *a = client_take(l, client_send(l, WIRE_Push, 0, sequence, bytes_of(f.at, f.size),
                                                    bytes_of(d.at, d.size),
                                                    bytes_of((const char *)v + x.offset, x.size)));
    MUST(m, a != NULL);
    s = (enum status)a->header.status;
    if (s == STATUS_OK) {
        struct reader r = reader_of(a->fixed);
        MUST(m, wire_get_push_done(&r, &done));
        if (done.faults > 0) {
            struct wire_fault fault;
            r = reader_of(a->desc);
            MUST(m, wire_get_fault(&r, &fault));
            s = (enum status)fault.status;
        }
    }
    answered_free(a);
    buf_fini(&f);
    buf_fini(&d);
    return s;
}

static void op_push(struct run *m, unsigned c)
{
    unsigned key = draw(m, KEYS), odd = draw(m, 24), part = PARTS;
    uint64_t id = m->keys[key].id, step = id != 0 ? next_step(m, c, key) : 1;
    const struct partial *p = &m->workers[c].partial[key];
    struct vec v = some_values(m);

    if (draw(m, 3) == 0 || (p->key != 0 && draw(m, 4) != 0)) part = draw(m, PARTS);
    if (p->key != 0 && p->key == id && draw(m, 8) != 0) step = p->step;
    if (odd == 0) step++;
    if (odd == 1 || odd == 2) step--;
    if (odd == 3) step = 0;
    if (odd == 4) id += 1000;
    if (odd == 5) step -= draw(m, 5);
    struct client *l = link_of(m, c);
    /* Parts of one value share a name; one that begins anew gets another. */
    bool goes_on = p->key == id && p->step == step && draw(m, 8) != 0;
    uint64_t sequence = goes_on ? p->sequence - (draw(m, 24) == 0) : ++m->sequence;
    enum status got = send_push(m, l, id, step, part, &v, sequence);
    MUST(m, got == arrives(m, c, key, id, step, part, &v, sequence));
    if (draw(m, 6) != 0 || got != STATUS_OK) return;
    /* The same again, as a client does whose answer was lost. */
    l = link_of(m, c);
    if (draw(m, 4) == 0) sequence = ++m->sequence;
    got = send_push(m, l, id, step, part, &v, sequence);
    MUST(m, got == arrives(m, c, key, id, step, part, &v, sequence));
}

static void op_ghost(struct run *m, unsigned c)
{
    struct client *g = m->actors[c].ghost;
    unsigned key = draw(m, KEYS);
    struct vec v = some_values(m);

    if (g == NULL) return;
    if (draw(m, 4) == 0) {
        client_gone(g);
        m->actors[c].ghost = NULL;
    } else if (m->keys[key].id != 0) {
        MUST(m, send_push(m, g, m->keys[key].id, 1, PARTS, &v, ++m->sequence) == STATUS_FAILED_PRECONDITION);
    }
}

static void delete_key(struct run *m, unsigned key)
{
    struct mkey *k = &m->keys[key];

    while (k->rounds[0].open) round_ends(m, k, &k->rounds[0], FAILED);
    for (unsigned c = 0; c < CLIENTS; c++) {
        struct mworker *w = &m->workers[c];
        if (w->partial[key].key == k->id) w->partial[key].key = 0;
        for (unsigned i = 0; i < w->ticket_count; i++)
            if (w->tickets[i].key == k->id) w->tickets[i].ending = FAILED; /* there is no such key */
    }
    *k = (struct mkey){.id = 0};
}

static enum init_outcome decide(struct run *m, unsigned c, unsigned key, uint64_t call, int on_reinit)
{
    struct mkey *k = &m->keys[key];
    bool lowest = true, ours = k->job == m->job;

    for (unsigned i = 0; i < m->client_count; i++)
        lowest = lowest && (!is_member(m, i) || m->workers[i].rank >= m->workers[c].rank);
    if (k->id == 0) return lowest ? INIT_NEED_VALUE : INIT_WAIT;
    uint64_t called = progress(m, c, key)->call;
    if (ours && called == call) return INIT_EXISTED;
    if (ours && called == 0) return INIT_EXISTED;
    if (on_reinit == REINIT_REPLACE) return lowest || ours ? INIT_NEED_VALUE : INIT_WAIT;
    return on_reinit == REINIT_ERROR ? INIT_REFUSED : INIT_EXISTED;
}

static void op_init(struct run *m, unsigned c)
{
    unsigned key = draw(m, KEYS);
    int on_reinit = (int)draw(m, 3);
    bool check = draw(m, 2), same_call = draw(m, 5) == 0 && m->keys[key].id != 0;
    uint64_t call = same_call && progress(m, c, key)->call != 0 ? progress(m, c, key)->call : ++m->calls, id = 0;
    struct vec v = some_values(m);
    struct client *l = link_of(m, c);
    enum init_outcome outcome, want;
    struct error e;

    enum status s = try_init(l, key, check ? NULL : v.v, COUNT, call, on_reinit, &outcome, &id, &e);
    if (who(m, c) != STATUS_OK) {
        MUST(m, s == STATUS_FAILED_PRECONDITION);
        return;
    }
    want = decide(m, c, key, call, on_reinit);
    MUST(m, s == (want == INIT_REFUSED ? STATUS_ALREADY_EXISTS : STATUS_OK));
    if (want == INIT_NEED_VALUE && !check) {
        if (m->keys[key].id != 0) delete_key(m, key);
        m->keys[key] = (struct mkey){.id = id, .version = 1, .value = v, .job = m->job,
                                     .has_momentum = rule_now(m) == MOMENTUM};
        m->keys[key].history[1] = v;
        progress(m, c, key)->call = call;
        want = INIT_CREATED;
    } else if (want == INIT_EXISTED && check) {
        progress(m, c, key)->call = call;
        m->keys[key].job = m->job;
    } else if (want == INIT_EXISTED && progress(m, c, key)->call == call) {
        want = INIT_CREATED; /* a repeat */
    }
    MUST(m, outcome == want);
    if (m->keys[key].id == 0 || want == INIT_REFUSED) return;
    MUST(m, id == m->keys[key].id);
    progress(m, c, key)->next = next_step(m, c, key);
}

static void op_describe(struct run *m, unsigned c)
{
    struct client *l = link_of(m, c);
    struct error e;

    json_t *j = try_json(l, WIRE_Describe, &e, "{\"store\": %u, \"keys\": [0, 1, 2]}", m->store);
    MUST(m, j != NULL);
    for (unsigned key = 0; key < KEYS; key++) {
        json_t *item = json_array_get(json_object_get(j, "items"), key);
        MUST(m, (m->keys[key].id != 0) == json_is_object(item));
        if (m->keys[key].id == 0) continue;
        MUST(m, (uint64_t)json_integer_value(json_object_get(item, "id")) == m->keys[key].id);
        uint64_t next = (uint64_t)json_integer_value(json_object_get(item, "next_step"));
        MUST(m, next == (who(m, c) == STATUS_OK ? next_step(m, c, key) : 0));
        if (who(m, c) == STATUS_OK) progress(m, c, key)->next = next;
    }
    json_decref(j);
}

/* Of the difference, where less is given. */
static double norm_of(const struct vec *v, const struct vec *less)
{
    double sum = 0, x;

    for (unsigned i = 0; i < COUNT; i++) {
        x = (double)v->v[i] - (less != NULL ? (double)less->v[i] : 0);
        sum += x * x;
    }
    return sqrt(sum);
}

/* The version of the part, if it is known; its norm must be that of then. */
static void check_norm(struct run *m, const struct mkey *k, const json_t *stats, bool is_update)
{
    uint64_t version = (uint64_t)json_integer_value(json_object_get(stats, "version"));
    double norm = json_number_value(json_object_get(stats, "norm"));

    if (json_is_null(stats) || version + HISTORY <= k->version + 1) return;
    MUST(m, version >= (is_update ? 2 : 1) && version <= k->version);
    const struct vec *less = is_update ? &k->history[(version - 1) % HISTORY] : NULL;
    double want = norm_of(&k->history[version % HISTORY], less);
    MUST(m, fabs(norm - want) <= 1e-12 * want);
}

static void op_look(struct run *m, unsigned c)
{
    unsigned key = draw(m, KEYS), settled = draw(m, 2);
    const struct mkey *k = &m->keys[key];
    struct error e;

    if (settled) fixture_settle(m->f);
    json_t *j = try_json(link_of(m, c), WIRE_KeyStats, &e, "{\"store\": %u, \"key\": %u}", m->store, key);
    MUST(m, (j != NULL) == (k->id != 0));
    if (j == NULL) return;
    uint64_t version = (uint64_t)json_integer_value(json_object_get(j, "version"));
    MUST(m, version == k->version || (version < k->version && !settled)); /* an update may be under way */
    MUST(m, json_is_object(json_object_get(j, "value")));
    check_norm(m, k, json_object_get(j, "value"), false);
    check_norm(m, k, json_object_get(j, "update"), true);
    json_decref(j);
}

static void op_set(struct run *m, unsigned c)
{
    unsigned key = draw(m, KEYS), force = draw(m, 2);
    struct mkey *k = &m->keys[key];
    struct vec v = some_values(m);
    struct wire_push fixed = {.store = m->store, .count = 1, .force = force};
    struct wire_push_entry x = {.key = k->id, .size = sizeof v, .total = sizeof v};
    struct buf f = {0}, d = {0};

    if (k->id == 0) return;
    struct client *l = link_of(m, c);
    wire_put_push(&f, &fixed);
    wire_put_push_entry(&d, &x);
    uint64_t sequence = ++m->sequence;
    for (unsigned again = 0; again < 2; again++) {
        uint32_t request = client_send(l, WIRE_Set, 0, sequence, bytes_of(f.at, f.size), bytes_of(d.at, d.size),
                                       bytes_of(&v, sizeof v));
        struct answered *a = client_await(l, request);
        enum status want = STATUS_OK; /* also for one who has not joined */
        if (again == 0 && k->rounds[0].open && !force) want = STATUS_FAILED_PRECONDITION;
        if (want == STATUS_OK && again == 0) {
            while (k->rounds[0].open) round_ends(m, k, &k->rounds[0], FAILED);
            bool momentum = k->has_momentum;
            apply(m, k, ASSIGN, &v, 1);
            k->has_momentum = momentum;
        }
        enum status got = (enum status)a->header.status;
        answered_free(a);
        MUST(m, got == want);
        if (got != STATUS_OK) break;
    }
    buf_fini(&f);
    buf_fini(&d);
}

static void op_delete(struct run *m, unsigned c)
{
    unsigned key = draw(m, KEYS), force = draw(m, 2);
    struct error e;

    if (m->keys[key].id == 0) return;
    json_t *j = try_json(link_of(m, c), WIRE_Delete, &e, "{\"store\": %u, \"keys\": [%u], \"force\": %s}", m->store,
                         key, force ? "true" : "false");
    MUST(m, (j != NULL) == (force || !m->keys[key].rounds[0].open));
    if (j != NULL) delete_key(m, key);
    json_decref(j);
}

static void op_updater(struct run *m, unsigned c)
{
    static const char *const documents[] = {
        [ASSIGN] = "null", [ADD] = "{\"type\": \"add\"}", [AVERAGE] = "{\"type\": \"average\"}",
        [SGD] = "{\"type\": \"sgd\", \"learning_rate\": 0.5}",
        [MOMENTUM] = "{\"type\": \"sgd\", \"learning_rate\": 0.5, \"momentum\": 0.5}",
    };
    unsigned rule = draw(m, 5);

    do_json(link_of(m, c), WIRE_SetUpdater, "{\"store\": %u, \"updater\": %s}", m->store, documents[rule]);
    m->updater_set = true;
    m->rule = (enum rule)rule;
}

static void op_dismiss(struct run *m, unsigned c)
{
    unsigned other = draw(m, m->client_count);
    const struct mworker *w = &m->workers[other];
    struct error e;

    if (!w->known || w->state == WORKER_LEFT) return;
    json_t *j = try_json(link_of(m, c), WIRE_Dismiss, &e, "{\"store\": %u, \"worker\": %u}", m->store, w->rank);
    MUST(m, (j != NULL) == (w->state == WORKER_DEAD));
    if (j != NULL) leaves(m, other);
    json_decref(j);
}

static void op_barrier(struct run *m, unsigned c)
{
    unsigned name = draw(m, NAMES);
    struct mbarrier *b = &m->barriers[name];
    struct mworker *w = &m->workers[c];
    struct error e;

    json_t *j = try_json(link_of(m, c), WIRE_Barrier, &e, "{\"store\": %u, \"name\": \"b%u\"}", m->store, name);
    MUST(m, (j != NULL) == (who(m, c) == STATUS_OK && !dead_block(m)));
    if (j == NULL) return;
    uint64_t ticket = (uint64_t)json_integer_value(json_object_get(j, "ticket"));
    json_decref(j);
    if (b->open) MUST(m, ticket == b->ticket);
    else *b = (struct mbarrier){.open = true, .ticket = ticket};
    b->come[c] = true;
    if (w->barrier_count == BARRIERS) memmove(w->barriers, w->barriers + 1, sizeof w->barriers[0] * (BARRIERS - 1));
    else w->barrier_count++;
    w->barriers[w->barrier_count - 1].ticket = ticket;
    w->barriers[w->barrier_count - 1].ending = PENDING;
    check_barriers(m);
}

static void op_wait(struct run *m, unsigned c)
{
    static const enum wait_state states[] = {[PENDING] = WAIT_PENDING, [DONE] = WAIT_DONE, [FAILED] = WAIT_FAILED};
    const struct mworker *w = &m->workers[c];
    struct error e;

    if (who(m, c) != STATUS_OK) return;
    if (w->ticket_count > 0) {
        const struct ticket *t = &w->tickets[draw(m, w->ticket_count)];
        MUST(m, do_wait(link_of(m, c), WAIT_TICKET, t->key, t->step, 0, &e) == states[t->ending]);
    }
    if (w->barrier_count > 0) {
        unsigned i = draw(m, w->barrier_count);
        MUST(m, do_wait(link_of(m, c), WAIT_BARRIER, w->barriers[i].ticket, 0, 0, &e) == states[w->barriers[i].ending]);
    }
    unsigned key = draw(m, KEYS);
    if (m->keys[key].id == 0) return;
    uint64_t version = 1 + draw(m, 1 + (unsigned)m->keys[key].version);
    MUST(m, do_wait(link_of(m, c), WAIT_VERSION, m->keys[key].id, version, 0, &e) ==
            (version <= m->keys[key].version ? WAIT_DONE : WAIT_PENDING));
}

/* A value read piece by piece, while it changes: of one version, or told that it is gone. */
static void op_pull_part(struct run *m, unsigned c)
{
    struct actor *a = &m->actors[c];
    unsigned key = draw(m, KEYS);
    struct wire_pull fixed = {.store = m->store, .count = 1};
    struct buf f = {0}, d = {0};
    struct wire_pull_result r;

    if (m->keys[key].id == 0) return;
    struct client *l = link_of(m, c);
    if (a->cursor.key != m->keys[key].id) a->cursor.key = m->keys[key].id, a->cursor.version = a->cursor.offset = 0;
    struct wire_pull_entry x = {.key = a->cursor.key, .version = a->cursor.version, .offset = a->cursor.offset,
                                .size = 16};
    wire_put_pull(&f, &fixed);
    wire_put_pull_entry(&d, &x);
    uint32_t request = client_send(l, WIRE_Pull, 0, 0, bytes_of(f.at, f.size), bytes_of(d.at, d.size),
                                   bytes_of(NULL, 0));
    struct answered *got = client_await(l, request);
    struct reader in = reader_of(got->desc);
    MUST(m, got->header.status == STATUS_OK && wire_get_pull_result(&in, &r));
    if (in.left > 0) {
        struct wire_fault fault;
        MUST(m, wire_get_fault(&in, &fault) && fault.reason == REASON_VERSION_REVOKED);
        MUST(m, x.version != m->keys[key].version);
        a->cursor.key = 0;
    } else {
        MUST(m, r.size == 16 && (x.version == 0 ? r.version <= m->keys[key].version : r.version == x.version));
        const struct vec *then = &m->keys[key].history[r.version % HISTORY];
        if (m->keys[key].version - r.version < HISTORY)
            MUST(m, memcmp(got->body.at, (const char *)then->v + r.offset, 16) == 0);
        a->cursor.version = r.version;
        a->cursor.offset = (r.offset + r.size) % r.total;
        if (a->cursor.offset == 0) a->cursor.key = 0;
    }
    answered_free(got);
    buf_fini(&f);
    buf_fini(&d);
}

static void op_time(struct run *m)
{
    static const unsigned steps[] = {1, 100, 500, 1500, 2500, 4000};
    unsigned ms = steps[draw(m, 6)];

    /* Most live on. */
    for (unsigned c = 0; c < m->client_count; c++)
        if (draw(m, 8) != 0 && is_connected(m, c)) do_json(link_of(m, c), WIRE_Heartbeat, "{}");
    m->f->now_ms += ms;
    server_tick(m->f->server, m->f->now_ms);
    time_has_come(m);
}

/* ---- what must hold ---------------------------------------------------------------------------------------------- */

static void check_round(struct run *m, const struct round *r, struct mround *want)
{
    const struct store *s = store_at(&m->f->server->core, m->store);

    MUST(m, (r != NULL) == want->open);
    if (r == NULL) return;
    MUST(m, r->step == want->step && r->update.contributors == want->count);
    for (unsigned c = 0; c < m->client_count; c++) {
        if (!m->workers[c].known) continue;
        const struct worker *w = s->workers[m->workers[c].slot];
        MUST(m, round_has(r, w) == want->has[c] && round_needs(r, w) == needs(m, want, c));
    }
}

static void check_all(struct run *m)
{
    struct core *core = &m->f->server->core;
    const struct store *s = store_at(core, m->store);
    struct error e;

    fixture_settle(m->f);
    MUST(m, core->task_count == 0);
    MUST(m, books_wrong(m->f->server) == NULL);
    MUST(m, s->members == members(m, WORKER_MEMBER) && s->dead == members(m, WORKER_DEAD));
    MUST(m, s->started == m->started);
    for (unsigned c = 0; c < m->client_count; c++) {
        if (!m->workers[c].known) continue;
        const struct worker *w = s->workers[m->workers[c].slot];
        MUST(m, w->state == m->workers[c].state && w->rank == m->workers[c].rank);
    }
    m->observer->store = m->store;
    for (unsigned key = 0; key < KEYS; key++) {
        struct mkey *k = &m->keys[key];
        struct vec got;
        uint64_t version = 0;
        if (k->id == 0) continue;
        const struct key *real = store_key_at(s, k->id);
        MUST(m, real != NULL);
        check_round(m, real->rounds[0], &k->rounds[0]);
        check_round(m, real->rounds[1], &k->rounds[1]);
        MUST(m, try_pull(m->observer, k->id, 0, &got, sizeof got, &version, &e) == STATUS_OK);
        MUST(m, version == k->version);
        MUST(m, memcmp(&got, &k->value, sizeof got) == 0);
    }
}

/* ---- a run ------------------------------------------------------------------------------------------------------- */

#define SYNC "\"type\": \"dist_sync\", \"round_timeout\": 14, \"start_timeout\": 20, "

static const struct config configs[] = {
    {"sync", SYNC "\"num_workers\": 2", MODE_SYNC, ON_MISSING_FAIL, ON_LATE_DROP, 0, 2},
    {"sync rank", SYNC "\"num_workers\": 3, \"sum_order\": \"rank\"", MODE_SYNC, ON_MISSING_FAIL, ON_LATE_DROP, 0, 3},
    {"sync proceed", SYNC "\"num_workers\": 2, \"on_missing\": \"proceed\"", MODE_SYNC, ON_MISSING_PROCEED, ON_LATE_DROP,
     0, 2},
    {"sync carry", SYNC "\"elastic\": true, \"on_late\": \"carry\"", MODE_SYNC, ON_MISSING_FAIL, ON_LATE_CARRY, 0, 0},
    {"sync carry rank proceed", SYNC "\"elastic\": true, \"on_late\": \"carry\", \"sum_order\": \"rank\", "
     "\"on_missing\": \"proceed\", \"versions_max\": 2", MODE_SYNC, ON_MISSING_PROCEED, ON_LATE_CARRY, 0, 0},
    {"sync apply", SYNC "\"num_workers\": 2, \"on_late\": \"apply\", \"on_missing\": \"proceed\"", MODE_SYNC,
     ON_MISSING_PROCEED, ON_LATE_APPLY, 0, 2},
    {"async", "\"type\": \"dist_async\", \"versions_max\": 2", MODE_ASYNC, ON_MISSING_FAIL, ON_LATE_DROP, ASYNC_ASSIGN, 0},
    {"async add", "\"type\": \"dist_async\", \"async_default\": \"add\"", MODE_ASYNC, ON_MISSING_FAIL, ON_LATE_DROP,
     ASYNC_ADD, 0},
    {"async error", "\"type\": \"dist_async\", \"async_default\": \"error\", \"on_missing\": \"proceed\"", MODE_ASYNC,
     ON_MISSING_PROCEED, ON_LATE_DROP, ASYNC_ERROR, 0},
    {"local", "\"type\": \"local\"", MODE_LOCAL, ON_MISSING_FAIL, ON_LATE_DROP, ASYNC_ASSIGN, 0},
};

enum { CONFIGS = sizeof configs / sizeof configs[0] };

static void one_operation(struct run *m)
{
    unsigned c = draw(m, m->client_count), what = draw(m, 100);
    struct actor *a = &m->actors[c];

    if (!is_connected(m, c)) {
        m->doing = "connect";
        if (what >= 50) op_time(m);
        else if (a->epoch != 0 && m->f->now_ms - a->lost_ms < 100000 && draw(m, 2)) another_link(m, c);
        else start_anew(m, c);
        return;
    }
#define DO(below, op) else if (what < (below)) m->doing = #op, op
    if (who(m, c) != STATUS_OK && what < 50) m->doing = "op_join", op_join(m, c);
    DO(45, op_push)(m, c);
    DO(55, op_init)(m, c);
    DO(63, op_wait)(m, c);
    DO(71, op_pull_part)(m, c);
    DO(73, op_describe)(m, c);
    DO(75, op_look)(m, c);
    DO(77, op_barrier)(m, c);
    DO(79, op_updater)(m, c);
    DO(81, op_set)(m, c);
    DO(82, op_delete)(m, c);
    DO(83, op_dismiss)(m, c);
    DO(84, op_ghost)(m, c);
    DO(92, op_time)(m);
    else if (what < 94) m->doing = "gone", all_gone(m, c, false);
    else if (what < 96) m->doing = "another link", another_link(m, c);
    else if (what < 97) m->doing = "start anew", start_anew(m, c);
    else m->doing = "op_leave", op_leave(m, c);
#undef DO
}

static struct device *device_at(unsigned i, uint64_t seed)
{
    struct device *d = NULL;
    struct error e;

    if (i < 2) CHECK_OK(cpu_device_new(i + 1, &d, &e), &e);
    else CHECK_OK(late_device_new(seed, &d, &e), &e);
    return d;
}

static void run_seed(uint64_t seed, unsigned operations)
{
    static struct run run;
    struct run *m = &run;
    int64_t live = mem_live();
    struct error e;

    *m = (struct run){.seed = seed, .random = seed, .config = &configs[seed % CONFIGS], .doing = "start"};
    m->device = (unsigned)(seed / CONFIGS % 4);
    m->client_count = 2 + draw(m, CLIENTS - 1);
    m->f = fixture_new(device_at(m->device, seed), 0);
    m->observer = client_new(m->f, 99);
    json_t *j = try_json(m->observer, WIRE_Create, &e, "{\"store\": \"s\", \"worker_timeout\": 6, %s}",
                         m->config->options);
    MUST(m, j != NULL);
    m->store = (uint32_t)json_integer_value(json_object_get(j, "id"));
    json_decref(j);
    for (m->operation = 1; m->operation <= operations; m->operation++) {
        one_operation(m);
        if (m->device < 2 || draw(m, 3) == 0) check_all(m);
    }
    m->doing = "end";
    check_all(m);
    for (unsigned c = 0; c < CLIENTS; c++) {
        all_gone(m, c, false);
        if (m->actors[c].ghost != NULL) client_gone(m->actors[c].ghost);
    }
    fixture_advance(m->f, 10 * START_TIMEOUT);
    fixture_settle(m->f);
    struct core *core = &m->f->server->core;
    MUST(m, core->staging_used == 0 && core->staging_reserved == 0 && core->task_count == 0);
    client_gone(m->observer);
    fixture_free(m->f);
    MUST(m, mem_live() == live);
}

TEST(the_store_does_what_the_model_says)
{
    const char *one = getenv("SEED"), *more = getenv("LONG");
    unsigned seeds = more != NULL ? 4000 : 200, operations = more != NULL ? 6000 : 2500;

    log_set_level(LOG_OFF);
    test_time_limit(more != NULL ? 7200 : 300);
    if (one != NULL) {
        run_seed(strtoull(one, NULL, 10), operations);
        return;
    }
    for (uint64_t seed = 0; seed < seeds; seed++) run_seed(seed, operations);
}
