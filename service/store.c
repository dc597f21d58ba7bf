#include "service/store.h"

#include "service/account.h"
#include "service/base/log.h"
#include "service/base/mem.h"
#include "service/plane.h"
#include "service/share.h"
#include "service/wait.h"

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

enum status bits_set(uint64_t **bits, size_t *words, uint32_t at, struct error *e)
{
    enum status s = mem_grow((void **)bits, words, at / 64 + 1, sizeof **bits, e);

    if (s == STATUS_OK) (*bits)[at / 64] |= (uint64_t)1 << (at % 64);
    return s;
}

/* ---- life ------------------------------------------------------------------------------------------------------- */

static enum status name_check(struct bytes name, struct error *e)
{
    if (name.size == 0 || name.size > STORE_NAME_SIZE_MAX || !bytes_is_utf8(name))
        return error_set(e, REASON_BAD_ARGUMENT, "a store's name is UTF-8 of 1 to %d bytes", STORE_NAME_SIZE_MAX);
    for (size_t i = 0; i < name.size; i++)
        if (((const unsigned char *)name.at)[i] < 0x20)
            return error_set(e, REASON_BAD_ARGUMENT, "a store's name has no control characters");
    return STATUS_OK;
}

static void store_free(struct store *s)
{
    if (s == NULL) return;
    share_drop(s->creator);
    map_free(s->keys);
    map_free(s->barriers);
    updater_drop(s->updater);
    updater_drop(s->assign);
    updater_drop(s->add);
    for (size_t i = 0; i < s->slot_pages; i++) mem_free(s->slots[i]);
    mem_free(s->slots);
    order_fini(&s->order);
    mem_free(s->workers);
    mem_free(s->name);
    mem_free(s);
}

static enum status store_fill(struct store *s, struct bytes name, struct error *e)
{
    struct core *c = s->core;

    s->name = mem_text(name.at, name.size);
    s->keys = map_new(c->seed);
    s->barriers = map_new(c->seed);
    if (s->name == NULL || s->keys == NULL || s->barriers == NULL)
        return error_set(e, REASON_NO_MEMORY, "no memory for a store");
    enum status st = updater_parse(bytes_text("{\"type\": \"assign\"}"), &s->assign, e);
    if (st == STATUS_OK) st = updater_parse(bytes_text("{\"type\": \"add\"}"), &s->add, e);
    return st;
}

enum status store_new(struct core *c, struct bytes name, const struct store_options *wanted, struct share *creator,
                      struct store **out, struct error *e)
{
    struct store *s = NULL;
    enum status st = name_check(name, e);

    if (st == STATUS_OK && map_count(c->stores) >= STORES_MAX)
        st = error_set(e, REASON_LIMIT, "there are %d stores; delete one", STORES_MAX);
    if (st == STATUS_OK && creator != NULL && creator->stores >= STORES_OF_CLIENT_MAX)
        st = error_set(e, REASON_LIMIT, "this client has created %d stores; delete one", STORES_OF_CLIENT_MAX);
    if (st == STATUS_OK && wanted->mode == MODE_SYNC && wanted->num_workers == 0 && !wanted->elastic)
        st = error_set(e, REASON_BAD_ARGUMENT, "/num_workers: a %s store needs the number of workers of its first "
                       "round, or elastic = true", wanted->type);
    if (st == STATUS_OK && c->next_store == 0)
        st = error_set(e, REASON_LIMIT, "the daemon has no more numbers for stores; restart it");
    if (st != STATUS_OK) return st;
    s = mem_zero(sizeof *s);
    if (s == NULL) return error_set(e, REASON_NO_MEMORY, "no memory for a store");
    s->core = c;
    s->id = c->next_store;
    s->options = *wanted;
    options_fill(&s->options, &c->limits.standards);
    list_init(&s->rounds);
    list_init(&s->init_waiters);
    list_init(&s->swaps);
    st = store_fill(s, name, e);
    if (st == STATUS_OK) st = map_put_u64(c->stores_by_id, s->id, s, e);
    if (st != STATUS_OK) goto out;
    st = map_put(c->stores, name, s, e);
    if (st != STATUS_OK) {
        map_remove_u64(c->stores_by_id, s->id);
        goto out;
    }
    c->next_store++;
    s->creator = share_hold(creator);
    if (creator != NULL) creator->stores++;
    *out = s;
    s = NULL; /* the core's now */
out:
    store_free(s);
    return st;
}

struct store *store_find(const struct core *c, struct bytes name) { return map_find(c->stores, name); }
struct store *store_at(const struct core *c, uint32_t id) { return map_find_u64(c->stores_by_id, id); }

static void drop_stagings(struct worker *w)
{
    for (struct staging *s; (s = LIST_FIRST(struct staging, of_worker, &w->stagings)) != NULL;) staging_free(s);
}

static void swaps_forget(struct store *s);

static void forget_workers(struct store *s)
{
    for (size_t i = 0; i < s->worker_count; i++) {
        struct worker *w = s->workers[i];
        if (w == NULL) continue;
        drop_stagings(w);
        w->state = WORKER_LEFT;
        w->store = NULL;
        s->workers[i] = NULL;
        worker_drop(w);
    }
    s->worker_count = 0;
    s->members = s->dead = s->joined = 0;
    s->lowest_known = false;
}

void store_delete(struct store *s)
{
    struct core *c = s->core;
    struct error e;

    error_set(&e, REASON_NO_STORE, "store '%s' was deleted", s->name);
    map_remove(c->stores, bytes_text(s->name));
    map_remove_u64(c->stores_by_id, s->id);
    if (s->creator != NULL) s->creator->stores--;
    s->deleted = true;
    swaps_forget(s);
    plane_free(s);
    for (size_t i = 0; i < s->slot_count; i++)
        if (store_slot(s, i) != NULL && store_key_delete(s, store_slot(s, i), true, NULL) != STATUS_OK) break;
    barriers_fail(s, &e);
    waits_fail(&s->init_waiters, &e);
    /* Conditions may still point here from waits that have been decided and not yet been answered; none hangs in a
     * list any more. What the device still does for its keys must end before the store goes. */
    forget_workers(s);
    account_add(c, -(int64_t)s->slack);
    core_settle(c);
    store_free(s);
}

static void set_slack(struct store *s, uint64_t slack)
{
    account_add(s->core, (int64_t)(slack - s->slack));
    s->slack = slack;
}

void store_reset(struct store *s)
{
    set_slack(s, 0);
    for (size_t i = 0; i < s->slot_count; i++)
        if (store_slot(s, i) != NULL && store_key_delete(s, store_slot(s, i), true, NULL) != STATUS_OK) break;
    s->kind = KEYS_UNDECIDED;
    s->opened_step = 0;
    updater_drop(s->updater);
    s->updater = NULL;
    s->num_update = 0;
    s->num_update_lowered = false;
    s->first_pusher = 0;
    s->assign_warned = false;
}

/* ---- keys ------------------------------------------------------------------------------------------------------- */

struct key *store_key_find(const struct store *s, const struct key_name *n)
{
    if (s->kind != (n->is_text ? KEYS_STR : KEYS_INT)) return NULL;
    return n->is_text ? map_find(s->keys, n->text) : map_find_u64(s->keys, (uint64_t)n->number);
}

static enum status put_name(struct store *s, struct key *k, struct error *e)
{
    return k->name.is_text ? map_put(s->keys, k->name.text, k, e) : map_put_u64(s->keys, (uint64_t)k->name.number, k, e);
}

static void remove_name(struct store *s, const struct key *k)
{
    if (k->name.is_text) map_remove(s->keys, k->name.text);
    else map_remove_u64(s->keys, (uint64_t)k->name.number);
}

enum status store_key_check(const struct store *s, const struct key_name *n, struct error *e)
{
    enum key_kind kind = n->is_text ? KEYS_STR : KEYS_INT;
    char name[KEY_PRINT_SIZE];

    if (n->is_text && (n->text.size == 0 || n->text.size > KEY_NAME_SIZE_MAX || !bytes_is_utf8(n->text)))
        return error_set(e, REASON_BAD_ARGUMENT, "a key is an integer or UTF-8 text of 1 to %d bytes without NUL",
                         KEY_NAME_SIZE_MAX);
    if (s->kind != KEYS_UNDECIDED && s->kind != kind)
        return error_set(e, REASON_MIXED_KEYS, "Mixed key types are not allowed: store '%s' uses %s keys, %s is none",
                         s->name, s->kind == KEYS_INT ? "integer" : "string", key_name_print(n, name));
    return STATUS_OK;
}

enum status store_no_key(const struct store *s, const struct key_name *n, struct error *e)
{
    char name[KEY_PRINT_SIZE];
    return error_set(e, REASON_NO_KEY, "%s was not initialised in store '%s'; init it first",
                     key_name_print(n, name), s->name);
}

static enum status slot_make(struct store *s, struct error *e)
{
    size_t page = s->slot_count / SLOT_PAGE;
    enum status st = mem_grow((void **)&s->slots, &s->slot_pages, page + 1, sizeof *s->slots, e);

    if (st != STATUS_OK) return st;
    if (s->slots[page] == NULL) s->slots[page] = mem_zero(sizeof *s->slots[page]);
    return s->slots[page] != NULL ? STATUS_OK : error_set(e, REASON_NO_MEMORY, "no memory for the slots of keys");
}

static enum status slot_take(struct store *s, uint32_t *slot, struct error *e)
{
    if (s->free_slot > 0) {
        *slot = s->free_slot - 1;
        s->free_slot = s->slots[*slot / SLOT_PAGE]->next_free[*slot % SLOT_PAGE];
        s->free_count--;
        return STATUS_OK;
    }
    if (s->slot_count >= KEYS_MAX) return error_set(e, REASON_LIMIT, "a store has at most %d keys", KEYS_MAX);
    enum status st = slot_make(s, e);
    if (st == STATUS_OK) *slot = (uint32_t)s->slot_count++;
    return st;
}

static void slot_give(struct store *s, uint32_t slot)
{
    struct slot_page *p = s->slots[slot / SLOT_PAGE];

    p->keys[slot % SLOT_PAGE] = NULL;
    p->next_free[slot % SLOT_PAGE] = s->free_slot;
    s->free_slot = slot + 1;
    s->free_count++;
}

enum status store_key_add(struct store *s, struct key *k, struct error *e)
{
    enum status st = slot_take(s, &k->slot, e);

    if (st != STATUS_OK) return st;
    st = put_name(s, k, e);
    if (st != STATUS_OK) goto failed;
    st = order_add(&s->order, k, e);
    if (st != STATUS_OK) {
        remove_name(s, k);
        goto failed;
    }
    k->id = s->core->next_creation++ * KEYS_MAX | k->slot;
    s->slots[k->slot / SLOT_PAGE]->keys[k->slot % SLOT_PAGE] = k;
    s->bytes += k->shape.size;
    s->kind = k->name.is_text ? KEYS_STR : KEYS_INT;
    if (!list_empty(&s->swaps)) swaps_follow(k);
    waits_check_init(&s->init_waiters, k);
    return STATUS_OK;
failed:
    slot_give(s, k->slot);
    return st;
}

static void drop_stagings_of(struct key *k)
{
    LIST_EACH(struct staging, st, node, &k->core->stagings)
        if (st->key == k) staging_free(st);
}

enum status store_key_delete(struct store *s, struct key *k, bool force, struct error *e)
{
    char name[KEY_PRINT_SIZE];
    struct error why;
    enum status st = force ? STATUS_OK : round_none_open(k, e);

    if (st != STATUS_OK) return st;
    error_set(&why, REASON_KEY_DELETED, "%s was deleted from store '%s'", key_name_print(&k->name, name), s->name);
    plane_key_gone(s, k);
    k->deleted = true;
    remove_name(s, k);
    order_remove(&s->order, k);
    s->bytes -= k->shape.size;
    slot_give(s, k->slot);
    while (k->rounds[0] != NULL) round_fail(k->rounds[0], &why);
    waits_fail(&k->waiters, &why);
    drop_stagings_of(k);
    key_drop(k);
    return STATUS_OK;
}

/* ---- workers ---------------------------------------------------------------------------------------------------- */

static struct worker *worker_by_id(const struct store *s, const struct wire_id *id)
{
    for (size_t i = 0; i < s->worker_count; i++)
        if (s->workers[i] != NULL && memcmp(&s->workers[i]->id, id, sizeof *id) == 0) return s->workers[i];
    return NULL;
}

/* The lowest that nobody present has, `wish` if that is free. */
static uint32_t free_rank(const struct store *s, uint32_t wish)
{
    uint64_t taken[WORKERS_MAX / 64 + 1] = {0};
    uint32_t rank = 0;

    for (size_t i = 0; i < s->worker_count; i++) {
        const struct worker *w = s->workers[i];
        if (w != NULL && w->state != WORKER_LEFT) taken[w->rank / 64] |= (uint64_t)1 << (w->rank % 64);
    }
    if (!bits_get(taken, WORKERS_MAX / 64 + 1, wish)) return wish;
    while (bits_get(taken, WORKERS_MAX / 64 + 1, rank)) rank++;
    return rank;
}

static bool is_marked(const struct store *s, uint32_t slot)
{
    size_t at = 0;

    LIST_EACH(struct round, r, node, &s->rounds)
        if (bits_get(r->bits, r->words, slot)) return true;
    for (const struct barrier *b; (b = map_next(s->barriers, &at)) != NULL;)
        if (bits_get(b->bits, b->words, slot)) return true;
    return false;
}

/* The slot of one who has left and of whom nothing speaks any more: else joining and leaving again and again would use
 * them all up. WORKERS_MAX: none. */
static size_t slot_of_the_gone(struct store *s)
{
    unsigned looks = 64; /* each goes through all rounds */

    if (s->rounds_closing > 0) return WORKERS_MAX;
    for (size_t i = 0; i < s->worker_count && looks > 0; i++) {
        struct worker *w = s->workers[i];
        if (w == NULL) return i;
        if (w->state != WORKER_LEFT || w->holds > 1) continue;
        looks--;
        if (is_marked(s, w->slot)) continue;
        s->workers[i] = NULL;
        w->store = NULL;
        worker_drop(w);
        return i;
    }
    return WORKERS_MAX;
}

static enum status worker_add(struct store *s, const struct wire_id *id, struct bytes name, struct worker **out,
                              struct error *e)
{
    struct worker *w = NULL;
    char standard[32];

    size_t slot = s->worker_count >= WORKERS_MAX ? slot_of_the_gone(s) : s->worker_count;
    if (slot >= WORKERS_MAX)
        return error_retry(e, REASON_LIMIT, RETRY_MS, "a job of a store has at most %d workers, those that have left a "
                           "short time ago included", WORKERS_MAX);
    enum status st = mem_grow((void **)&s->workers, &s->worker_capacity, slot + 1, sizeof *s->workers, e);
    if (st != STATUS_OK) return st;
    uint32_t rank = free_rank(s, 0);
    snprintf(standard, sizeof standard, "w%u", rank);
    if (name.size == 0) name = bytes_text(standard);
    w = mem_zero(sizeof *w);
    char *text = mem_text(name.at, name.size);
    if (w == NULL || text == NULL) {
        mem_free(w);
        mem_free(text);
        return error_set(e, REASON_NO_MEMORY, "no memory for a worker");
    }
    *w = (struct worker){.store = s, .slot = (uint32_t)slot, .rank = rank, .id = *id, .name = text,
                         .state = WORKER_LEFT, .holds = 1};
    list_init(&w->stagings);
    s->workers[slot] = w;
    if (slot == s->worker_count) s->worker_count++;
    *out = w;
    return STATUS_OK;
}

static void start_if_complete(struct store *s)
{
    if (s->started || s->joined < s->options.num_workers) return;
    s->started = true;
    log_info("store", "'%s': job %" PRIu64 " starts with %u worker%s", s->name, s->job, s->members,
             s->members == 1 ? "" : "s");
    LIST_EACH(struct round, r, node, &s->rounds) round_check(r);
    barriers_check(s);
}

static void begin_job(struct store *s)
{
    struct error e;

    error_set(&e, REASON_ROUND_FAILED, "the job of store '%s' ended before the round was complete", s->name);
    for (struct round *r; (r = LIST_FIRST(struct round, node, &s->rounds)) != NULL;) round_fail(r, &e);
    barriers_fail(s, &e);
    forget_workers(s);
    s->job++;
    s->started = false;
    s->first_pusher = 0;
}

/* A new start of a worker that is known: what it had begun is void, what was recorded stays. */
static void restart(struct worker *w, uint32_t epoch)
{
    plane_worker_gone(w->store, w, "has started anew");
    drop_stagings(w);
    w->epoch = epoch;
    worker_begin_anew(w);
}

static void become_member(struct store *s, struct worker *w)
{
    if (w->state == WORKER_MEMBER) return;
    if (w->state == WORKER_DEAD) s->dead--;
    else w->rank = free_rank(s, w->rank); /* while it was gone another may have come to its place */
    w->state = WORKER_MEMBER;
    s->lowest_known = false;
    s->silent_ms = 0;
    s->members++;
    w->stamp = s->started ? s->core->next_stamp++ : 0;
    plane_worker_came(s, w);
    rounds_joined(s, w);
}

enum status store_join(struct store *s, const struct wire_id *id, uint32_t epoch, struct bytes name,
                       struct worker **out, struct error *e)
{
    struct worker *w = worker_by_id(s, id);
    enum status st;

    if (name.size > WORKER_NAME_SIZE_MAX || (name.size > 0 && !bytes_is_utf8(name)))
        return error_set(e, REASON_BAD_ARGUMENT, "a worker's name is UTF-8 of at most %d bytes", WORKER_NAME_SIZE_MAX);
    if (w != NULL && epoch < w->epoch)
        return error_set(e, REASON_STALE_EPOCH, "worker '%s' has joined with epoch %u; this start has %u and is over",
                         w->name, w->epoch, epoch);
    /* The job is over when nobody is left; a worker that comes back to its place goes on in it. */
    if (s->members == 0 && (w == NULL || w->state == WORKER_LEFT)) {
        begin_job(s);
        w = NULL;
    }
    if (w == NULL) {
        st = worker_add(s, id, name, &w, e);
        if (st != STATUS_OK) return st;
        s->joined++;
        if (!s->started && s->options.num_workers > 0 && s->joined > s->options.num_workers) s->started = true;
    }
    if (epoch > w->epoch) restart(w, epoch);
    w->seen_ms = s->last_join_ms = s->core->now_ms;
    become_member(s, w);
    start_if_complete(s);
    *out = w;
    return STATUS_OK;
}

void store_leave(struct store *s, struct worker *w)
{
    if (w->state == WORKER_LEFT) return;
    bool was_member = w->state == WORKER_MEMBER;
    if (w->state == WORKER_DEAD) s->dead--;
    w->state = WORKER_LEFT;
    s->lowest_known = false;
    drop_stagings(w);
    plane_worker_gone(s, w, "has left the store");
    barriers_left(s, w);
    if (was_member) {
        s->members--;
        rounds_left(s, w, NULL);
    }
    barriers_check(s);
    waits_check(&s->init_waiters);
}

void store_worker_dies(struct store *s, struct worker *w)
{
    double silent_s = (double)(s->core->now_ms - w->seen_ms) / 1000.0;
    char who[WORKER_PRINT_SIZE], silent[80];
    struct error e;

    assert(w->state == WORKER_MEMBER);
    error_set(&e, REASON_WORKER_DEAD, "%s of store '%s' is dead: no sign of life for %.1f s", worker_print(w, who),
              s->name, silent_s);
    log_warn("store", "%s", e.text);
    w->state = WORKER_DEAD;
    s->lowest_known = false;
    s->members--;
    s->dead++;
    drop_stagings(w);
    snprintf(silent, sizeof silent, "is dead: no sign of life for %.1f s", silent_s);
    plane_worker_dies(s, w, silent);
    bool fail = s->options.on_missing == ON_MISSING_FAIL || s->members < s->options.min_workers;
    rounds_left(s, w, fail ? &e : NULL);
    if (fail) barriers_fail(s, &e);
    else barriers_check(s);
    waits_check(&s->init_waiters);
}

void store_dismiss(struct store *s, struct worker *w) { store_leave(s, w); }

struct worker *store_lowest(struct store *s)
{
    if (s->lowest_known) return s->lowest; /* Waits ask it once a key */
    s->lowest = NULL;
    for (size_t i = 0; i < s->worker_count; i++) {
        struct worker *w = s->workers[i];
        if (w != NULL && w->state == WORKER_MEMBER && (s->lowest == NULL || w->rank < s->lowest->rank)) s->lowest = w;
    }
    s->lowest_known = true;
    return s->lowest;
}

uint32_t store_num_workers(const struct store *s)
{
    bool counts = s->options.num_workers > 0 && (s->options.mode != MODE_SYNC || !s->started);
    return counts ? s->options.num_workers : s->members;
}

void store_missing_joins(const struct store *s, struct buf *out)
{
    bool first = true;

    buf_format(out, "%u of %u workers have not joined yet; there %s: ", s->options.num_workers - s->joined,
               s->options.num_workers, s->members == 1 ? "is" : "are");
    for (size_t i = 0; i < s->worker_count; i++) {
        char who[WORKER_PRINT_SIZE];
        const struct worker *w = s->workers[i];
        if (w == NULL || w->state != WORKER_MEMBER) continue;
        buf_format(out, "%s%s", first ? "" : ", ", worker_print(w, who));
        first = false;
    }
    if (first) buf_text(out, "nobody");
}

/* ---- pushes ----------------------------------------------------------------------------------------------------- */

struct updater *store_updater(const struct store *s)
{
    if (s->updater != NULL) return s->updater;
    return s->options.mode == MODE_ASYNC && s->options.async_default == ASYNC_ADD ? s->add : s->assign;
}

uint64_t store_num_update(struct store *s)
{
    if (!s->num_update_lowered) return s->num_update;
    s->num_update_lowered = false;
    s->num_update = 0;
    for (size_t i = 0; i < s->slot_count; i++)
        if (store_slot(s, i) != NULL && store_slot(s, i)->state.updates > s->num_update)
            s->num_update = store_slot(s, i)->state.updates;
    return s->num_update;
}

enum status store_dead_blocks(const struct store *s, struct error *e)
{
    char who[WORKER_PRINT_SIZE];

    if (s->dead == 0 || s->options.on_missing != ON_MISSING_FAIL) return STATUS_OK;
    for (size_t i = 0; i < s->worker_count; i++)
        if (s->workers[i] != NULL && s->workers[i]->state == WORKER_DEAD)
            return error_set(e, REASON_WORKER_DEAD, "%s of store '%s' is dead; no new round begins until it joins "
                             "again or is dismissed (paramctl workers dismiss)", worker_print(s->workers[i], who), s->name);
    return STATUS_OK;
}

/* A store of async mode may be made to insist on an updater. */
static bool takes_pushes(const struct store *s)
{
    return s->options.mode != MODE_ASYNC || s->updater != NULL ||
           s->options.async_default != ASYNC_ERROR;
}

/* Its round has ended. A younger one may end before an older one does, when somebody died between his two pushes. */
static bool is_late(const struct key *k, uint64_t step)
{
    return step <= k->closed_step && round_find(k, step) == NULL;
}

/* May a push of `step` open a round now? */
static enum status may_open(const struct store *s, const struct key *k, uint64_t step, struct error *e)
{
    const struct round *oldest = k->rounds[0];
    char name[KEY_PRINT_SIZE];
    struct buf who = {0};
    enum status st = store_dead_blocks(s, e);

    if (st == STATUS_OK) st = state_takes_push(k, e);
    if (st != STATUS_OK || oldest == NULL || (step == oldest->step + 1 && k->rounds[1] == NULL)) return st;
    round_missing(oldest, &who);
    st = error_retry(e, REASON_STEP_AHEAD, RETRY_MS, "push %" PRIu64 " of %s is more than one step ahead of round %"
                     PRIu64 ", %.*s", step, key_name_print(&k->name, name), oldest->step, (int)who.size,
                     who.failed ? "" : (const char *)who.at);
    buf_fini(&who);
    return st;
}

enum status store_push_check(struct store *s, struct key *k, struct worker *w, uint64_t step, bool *repeat,
                             bool *late, struct error *e)
{
    /* Told, be it in a refusal: bytes of two steps must not be on their way side by side. */
    uint64_t next = worker_tell_step(w, k);
    const struct progress *p = worker_seen(w, k);
    char name[KEY_PRINT_SIZE];

    *late = false;
    *repeat = step > 0 && p != NULL && step <= p->recorded;
    if (*repeat) return STATUS_OK;
    if (step != next)
        return error_retry(e, REASON_STEP_ORDER, RETRY_MS, "push %" PRIu64 " of %s: the next one of this worker is %"
                           PRIu64, step, key_name_print(&k->name, name), next);
    if (!takes_pushes(s))
        return error_set(e, REASON_UPDATER_NEEDED, "store '%s': an updater needs to be set for async mode", s->name);
    if (s->options.mode != MODE_SYNC) return state_takes_push(k, e);
    enum status st = plane_not_busy(k, e);
    if (st != STATUS_OK) return st;
    *late = is_late(k, step);
    return *late || round_find(k, step) != NULL ? STATUS_OK : may_open(s, k, step, e);
}

struct push {
    struct update update;
    struct worker *worker;
    uint64_t step;
};

static void push_done(struct update *u, const struct error *e)
{
    struct push *p = CONTAINER_OF(u, struct push, update);

    worker_applied(p->worker, u->key, p->step, key_version(u->key), e);
    worker_drop(p->worker);
    key_drop(u->key);
    mem_free(p);
}

static enum status apply_alone(struct staging *st, struct error *e)
{
    struct push *p = mem_zero(sizeof *p);

    if (p == NULL) {
        staging_free(st);
        return error_set(e, REASON_NO_MEMORY, "no memory for a push");
    }
    p->worker = worker_hold(st->worker);
    p->step = st->tag;
    const struct progress *seen = worker_seen(st->worker, st->key);
    p->update = (struct update){.kind = UPDATE_PUSH, .key = key_hold(st->key), .last = st, .contributors = 1,
                                .based_on = seen != NULL ? seen->pulled : 0,
                                .updater = updater_hold(store_updater(st->key->store)), .done = push_done};
    key_update(&p->update);
    return STATUS_OK;
}

/* One push that lies in memory of its own, so that neither a staging nor an update is made for it. There is one of a
 * daemon: a device that is not done at once has it to itself, and the pushes behind take the usual way. */
struct small_push {
    struct push push;
    struct dmem mem;
    bool busy;
};

void small_push_free(struct core *c)
{
    if (c->small == NULL) return;
    device_mem_free(&c->small->mem);
    mem_free(c->small);
    c->small = NULL;
}

static void small_done(struct update *u, const struct error *e)
{
    struct push *p = CONTAINER_OF(u, struct push, update);

    worker_applied(p->worker, u->key, p->step, key_version(u->key), e);
    CONTAINER_OF(p, struct small_push, push)->busy = false;
    worker_drop(p->worker);
    key_drop(u->key);
}

/* What is the same for every push is set here. */
static struct small_push *small_push_new(struct core *c)
{
    struct small_push *p = mem_zero(sizeof *p);

    if (p == NULL) return NULL;
    if (device_mem_new(c->device, PUSH_NOW_SIZE, &p->mem, NULL) != STATUS_OK) p->mem = (struct dmem){0};
    if (p->mem.host == NULL) device_mem_free(&p->mem); /* the CPU cannot write there */
    p->push.update = (struct update){.kind = UPDATE_PUSH, .lent = p->mem, .contributors = 1, .done = small_done};
    return p;
}

static struct small_push *small_push(struct core *c)
{
    if (c->small == NULL) c->small = small_push_new(c);
    return c->small == NULL || c->small->busy || c->small->mem.host == NULL ? NULL : c->small;
}

/* It is neither late nor early, nor a repeat, and the key is as an earlier push of this worker has left it. */
static bool is_plain(const struct key *k, const struct worker *w, uint64_t step)
{
    const struct store *s = k->store;
    const struct progress *p = worker_seen(w, k);

    return s->options.mode != MODE_SYNC && s->updater != NULL && k->state.updater == s->updater &&
           !k->state.use.frozen && !k->busy &&
           k->shape.size > 0 && k->shape.size <= PUSH_NOW_SIZE && k->home == 0 && w->staging_count == 0 && p != NULL &&
           p->next == step && p->recorded < step;
}

bool store_push_now(struct key *k, struct worker *w, uint64_t step, const void *from, bool *applied)
{
    struct small_push *p = is_plain(k, w, step) ? small_push(k->core) : NULL;

    if (p == NULL) return false;
    struct progress *at = worker_progress(w, k, NULL); /* is there, as the push is plain */
    memcpy(p->mem.host, from, (size_t)k->shape.size);
    p->busy = true;
    p->push.worker = worker_hold(w);
    p->push.step = step;
    p->push.update.key = key_hold(k);
    p->push.update.updater = updater_hold(k->store->updater);
    p->push.update.based_on = at->pulled;
    p->push.update.flags = 0;
    worker_recorded(at, step);
    k->pushes++;
    k->core->counters.pushes_recorded++;
    key_update(&p->push.update);
    *applied = !p->busy;
    return true;
}

static void warn_of_assign(struct store *s, const struct worker *w)
{
    if (s->updater != NULL || s->options.async_default != ASYNC_ASSIGN || s->options.mode != MODE_ASYNC) return;
    if (s->first_pusher == 0) s->first_pusher = w->slot + 1;
    if (s->first_pusher == w->slot + 1 || s->assign_warned) return;
    s->assign_warned = true;
    log_warn("store", "'%s': several workers push without an updater, so each push replaces what the others pushed; "
             "set an updater, or async_default", s->name);
}

static enum status record_late(struct staging *st, struct error *e)
{
    struct key *k = st->key;
    struct store *s = k->store;
    char name[KEY_PRINT_SIZE];
    struct error why;

    switch ((enum on_late)s->options.on_late) {
    case ON_LATE_APPLY: return apply_alone(st, e);
    case ON_LATE_CARRY:
        return round_contribute(k, st->worker, k->rounds[0] != NULL ? k->rounds[0]->step : k->closed_step + 1, st, e);
    case ON_LATE_DROP: break;
    }
    error_set(&why, REASON_PUSH_LATE, "push %" PRIu64 " of %s came after its round had ended; it was dropped",
              st->tag, key_name_print(&k->name, name));
    worker_applied(st->worker, k, st->tag, key_version(k), &why);
    staging_free(st);
    return STATUS_OK;
}

enum status store_push_record(struct staging *st, struct error *e)
{
    struct key *k = key_hold(st->key);
    struct store *s = k->store;
    struct worker *w = worker_hold(st->worker);
    uint64_t step = st->tag;
    bool sync = s->options.mode == MODE_SYNC, late = sync && is_late(k, step);
    struct progress *p = worker_progress(w, k, e);
    enum status status = p != NULL ? STATUS_OK : e->status;

    /* Since it was let in, while its bytes came, others may have opened rounds. */
    if (status == STATUS_OK && step <= p->recorded)
        status = error_set(e, REASON_STEP_ORDER, "push %" PRIu64 " is whole after push %" PRIu64 " has been recorded", step,
                           p->recorded);
    if (status == STATUS_OK) status = plane_not_busy(k, e);
    if (status == STATUS_OK && !sync) status = state_takes_push(k, e);
    if (status == STATUS_OK && sync && !late && round_find(k, step) == NULL) status = may_open(s, k, step, e);
    if (status != STATUS_OK) {
        staging_free(st);
        goto out;
    }
    /* Recorded first: the update may run at once, and then looks here. */
    struct progress before = *p;
    worker_recorded(p, step);
    warn_of_assign(s, w);
    if (late) status = record_late(st, e);
    else if (sync) status = round_contribute(k, w, step, st, e);
    else status = apply_alone(st, e);
    p = worker_progress(w, k, NULL);
    if (status != STATUS_OK && p != NULL) worker_unrecorded(p, &before);
    if (status != STATUS_OK) goto out;
    k->pushes++;
    k->core->counters.pushes_recorded++;
out:
    worker_drop(w);
    key_drop(k);
    return status;
}

/* ---- updater ---------------------------------------------------------------------------------------------------- */

static uint64_t larger(uint64_t a, uint64_t b) { return a > b ? a : b; }

static void add_needs(const struct key *k, const struct updater *u, struct swap_needs *n)
{
    struct state_outlook o;
    uint64_t kept = key_kept_state(k);

    state_outlook(k, u, &o);
    uint64_t most = larger(kept, o.size_then);
    /* A key that is behind the store may by then have any state that is kept for. */
    uint64_t at_once = k->state.updater == store_updater(k->store) ? o.size_now + o.size_fresh : kept + o.size_then;
    n->more += most - kept;
    n->keys += most > kept;
    n->behind |= k->state.updater != store_updater(k->store);
    n->slack = larger(n->slack, at_once > most ? at_once - most : 0);
    n->floor = larger(n->floor, key_needs_free(k->store, &k->shape, most));
}

/* Without a cap nothing is looked at: with many keys that takes its time. */
static enum status find_room(const struct store *s, const struct updater *u, struct swap_needs *n, struct error *e)
{
    char what[160];

    *n = (struct swap_needs){.more = 0};
    if (s->core->limits.memory_max == 0) return STATUS_OK;
    for (size_t i = 0; i < s->slot_count; i++)
        if (store_slot(s, i) != NULL) add_needs(store_slot(s, i), u, n);
    if (n->behind) n->slack = larger(n->slack, s->slack);
    uint64_t more = n->more + n->slack;
    if (n->keys > 0) snprintf(what, sizeof what, "the state of %zu key%s under %s", n->keys,
                               n->keys > 1 ? "s" : "", updater_type(u));
    else snprintf(what, sizeof what, "%s, while a key has its old and its new state,", updater_type(u));
    return account_check(s->core, more > s->slack ? more - s->slack : 0, n->floor, what, e);
}

static void keep_room(struct store *s, const struct updater *u, const struct swap_needs *n)
{
    struct state_outlook o;

    set_slack(s, n->slack);
    account_floor_comes(s->core, n->floor);
    for (size_t i = 0; n->keys > 0 && i < s->slot_count; i++) {
        struct key *k = store_slot(s, i);
        if (k == NULL) continue;
        state_outlook(k, u, &o);
        if (o.size_then > key_kept_state(k)) key_keep(k, o.size_then);
    }
}

enum { KEYS_OF_A_UNIT = 8 };             /* looking at a key is cheap */

void swap_begin(struct store_swap *x, struct store *s, struct updater *u, enum updater_states how)
{
    *x = (struct store_swap){.store = s, .updater = updater_hold(u), .how = how, .version = 1};
    list_append(&s->swaps, &x->node);
}

static void swap_look_at(struct store_swap *x, const struct key *k)
{
    uint64_t version = key_version_ahead(k);
    char name[KEY_PRINT_SIZE];
    struct error why;

    if (x->why.reason == REASON_NONE && state_fits(k, x->updater, &why) != STATUS_OK)
        error_set(&x->why, REASON_UPDATER_UNFIT, "%s: %.300s", key_name_print(&k->name, name), why.text);
    if (version > x->version) x->version = version;
}

bool swap_look(struct store_swap *x)
{
    for (; x->store != NULL && x->why.reason == REASON_NONE && x->at < x->store->slot_count; x->at++) {
        const struct key *k = store_slot(x->store, x->at);
        if (x->at % KEYS_OF_A_UNIT == 0) {
            if (core_is_spent(x->store->core)) return false;
            core_spend(x->store->core, 1);
        }
        if (k != NULL) swap_look_at(x, k);
    }
    return true;
}

void swaps_follow(struct key *k)
{
    if (k->deleted) return;
    LIST_EACH(struct store_swap, x, node, &k->store->swaps) swap_look_at(x, k);
}

bool swap_changes(const struct store_swap *x)
{
    const struct store *s = x->store;

    return x->how == STATES_RESET || !takes_pushes(s) || !updater_equal(store_updater(s), x->updater);
}

enum status swap_check_room(struct store_swap *x, struct error *e)
{
    updater_follow(x->updater, x->store->updater, x->how);
    return find_room(x->store, x->updater, &x->needs, e);
}

void swap_commit(struct store_swap *x)
{
    struct store *s = x->store;

    assert(x->at >= s->slot_count && x->why.reason == REASON_NONE);
    /* Where none was set, an equal one is set all the same: from now on it is what somebody chose. */
    if (!swap_changes(x) && s->updater != NULL) return;
    updater_follow(x->updater, s->updater, x->how);
    if (swap_changes(x)) keep_room(s, x->updater, &x->needs);
    updater_drop(s->updater);
    s->updater = updater_hold(x->updater);
}

void swap_end(struct store_swap *x)
{
    list_remove(&x->node);
    updater_drop(x->updater);
    x->updater = NULL;
}

static void swaps_forget(struct store *s)
{
    LIST_EACH(struct store_swap, x, node, &s->swaps) {
        list_remove(&x->node);
        x->store = NULL;
        error_set(&x->why, REASON_NO_STORE, "store '%s' was deleted", s->name);
    }
}

/* ---- barriers --------------------------------------------------------------------------------------------------- */

static void barrier_free(struct barrier *b)
{
    mem_free(b->name);
    mem_free(b->bits);
    mem_free(b);
}

static void barrier_end(struct store *s, struct barrier *b)
{
    map_remove(s->barriers, bytes_text(b->name));
    waits_check(&b->waiters);
    barrier_free(b);
}

static bool barrier_complete(const struct store *s, const struct barrier *b)
{
    for (size_t i = 0; i < s->worker_count; i++) {
        const struct worker *w = s->workers[i];
        if (w != NULL && w->state == WORKER_MEMBER && !bits_get(b->bits, b->words, w->slot)) return false;
    }
    return s->started;
}

void barriers_check(struct store *s)
{
    size_t at = 0;

    for (struct barrier *b; (b = map_next(s->barriers, &at)) != NULL;) {
        if (!barrier_complete(s, b)) continue;
        barrier_end(s, b);
        at = 0; /* the map has changed */
    }
}

static bool barrier_has_members(const struct store *s, const struct barrier *b)
{
    for (size_t i = 0; i < s->worker_count; i++) {
        const struct worker *w = s->workers[i];
        if (w != NULL && w->state != WORKER_LEFT && bits_get(b->bits, b->words, w->slot)) return true;
    }
    return false;
}

void barriers_left(struct store *s, const struct worker *w)
{
    size_t at = 0;

    for (struct barrier *b; (b = map_next(s->barriers, &at)) != NULL;) {
        if (!bits_get(b->bits, b->words, w->slot) || barrier_has_members(s, b)) continue;
        barrier_end(s, b);
        at = 0; /* the map has changed */
    }
}

void barriers_fail(struct store *s, const struct error *why)
{
    size_t at = 0;

    for (struct barrier *b; (b = map_next(s->barriers, &at)) != NULL; at = 0) {
        for (size_t i = 0; i < s->worker_count; i++)
            if (s->workers[i] != NULL && bits_get(b->bits, b->words, s->workers[i]->slot))
                worker_note(s->workers[i], 0, b->ticket, why);
        waits_fail(&b->waiters, why);
        barrier_end(s, b);
    }
}

void barrier_missing(const struct store *s, const struct barrier *b, struct buf *out)
{
    char who[WORKER_PRINT_SIZE];
    bool first = true;

    buf_format(out, "barrier '%s' of store '%s' is %.1f s old, ", b->name, s->name,
               (double)(s->core->now_ms - b->opened_ms) / 1000.0);
    if (!s->started) {
        store_missing_joins(s, out);
        return;
    }
    buf_text(out, "waiting for ");
    for (size_t i = 0; i < s->worker_count; i++) {
        const struct worker *w = s->workers[i];
        if (w == NULL || w->state != WORKER_MEMBER || bits_get(b->bits, b->words, w->slot)) continue;
        buf_format(out, "%s%s", first ? "" : ", ", worker_print(w, who));
        first = false;
    }
}

static enum status barrier_open(struct store *s, struct bytes name, struct barrier **out, struct error *e)
{
    if (map_count(s->barriers) >= BARRIERS_MAX)
        return error_set(e, REASON_LIMIT, "somebody waits at %d barriers of store '%s'; all members have to come to them "
                         "first", BARRIERS_MAX, s->name);
    struct barrier *b = mem_zero(sizeof *b);
    char *text = mem_text(name.at, name.size);
    enum status st = b != NULL && text != NULL ? map_put(s->barriers, name, b, e)
                                               : error_set(e, REASON_NO_MEMORY, "no memory for a barrier");

    if (st != STATUS_OK) {
        mem_free(b);
        mem_free(text);
        return st;
    }
    b->name = text;
    b->ticket = s->core->next_ticket++;
    b->opened_ms = s->core->now_ms;
    list_init(&b->waiters);
    *out = b;
    return STATUS_OK;
}

static unsigned barriers_of(const struct store *s, const struct worker *w)
{
    unsigned count = 0;
    size_t at = 0;

    for (const struct barrier *b; (b = map_next(s->barriers, &at)) != NULL;)
        count += bits_get(b->bits, b->words, w->slot);
    return count;
}

enum status store_barrier(struct store *s, struct worker *w, struct bytes name, uint64_t *ticket, struct error *e)
{
    struct barrier *b = map_find(s->barriers, name);
    enum status st = store_dead_blocks(s, e);

    if (st != STATUS_OK) return st;
    if (name.size > BARRIER_NAME_SIZE_MAX || !bytes_is_utf8(name))
        return error_set(e, REASON_BAD_ARGUMENT, "a barrier's name is UTF-8 of at most %d bytes", BARRIER_NAME_SIZE_MAX);
    if (b == NULL && barriers_of(s, w) >= BARRIERS_OF_WORKER_MAX)
        return error_set(e, REASON_LIMIT, "this worker waits at %d barriers of store '%s' already", BARRIERS_OF_WORKER_MAX,
                         s->name);
    if (b == NULL) {
        st = barrier_open(s, name, &b, e);
        if (st != STATUS_OK) return st;
    }
    *ticket = b->ticket;
    st = bits_set(&b->bits, &b->words, w->slot, e);
    if (st == STATUS_OK && barrier_complete(s, b)) barrier_end(s, b);
    return st;
}

/* ---- time ------------------------------------------------------------------------------------------------------- */

uint64_t store_tick(struct store *s, uint64_t now_ms)
{
    uint64_t next = rounds_tick(s, now_ms);

    /* Signs of life only put deaths off, so until then there is none to look for. */
    if (now_ms >= s->silent_ms) {
        s->silent_ms = UINT64_MAX;
        for (size_t i = 0; i < s->worker_count; i++) {
            struct worker *w = s->workers[i];
            if (w == NULL || w->state != WORKER_MEMBER) continue;
            uint64_t due = w->seen_ms + s->options.worker_timeout;
            if (now_ms >= due) store_worker_dies(s, w);
            else if (due < s->silent_ms) s->silent_ms = due;
        }
    }
    return next < s->silent_ms ? next : s->silent_ms;
}
