/* A round: opens with the first contribution -> each further one is added -> nobody is missing -> its update is lined
 * up -> the update has run -> every contributor's step counts as applied. Or: time is up, a needed worker is dead, the
 * key goes -> it fails, every contributor is told at its next wait. */
#include "service/round.h"

#include "service/base/log.h"
#include "service/base/mem.h"
#include "service/plane.h"
#include "service/share.h"
#include "service/store.h"
#include "service/wait.h"

#include <assert.h>
#include <inttypes.h>
#include <string.h>

struct round *round_find(const struct key *k, uint64_t step)
{
    for (int i = 0; i < 2; i++)
        if (k->rounds[i] != NULL && k->rounds[i]->step == step) return k->rounds[i];
    return NULL;
}

enum status round_none_open(const struct key *k, struct error *e)
{
    char name[KEY_PRINT_SIZE];

    if (k->rounds[0] == NULL) return plane_not_busy(k, e);
    return error_set(e, REASON_ROUND_OPEN, "round %" PRIu64 " of %s is open; wait for it, or let it fail by force (Python "
                     "force=True, paramctl --force, REST ?force=true)", k->rounds[0]->step, key_name_print(&k->name, name));
}

bool round_has(const struct round *r, const struct worker *w) { return bits_get(r->bits, r->words, w->slot); }

bool round_needs(const struct round *r, const struct worker *w)
{
    return w->state == WORKER_MEMBER && w->stamp < r->stamp;
}

void round_missing(const struct round *r, struct buf *out)
{
    const struct store *s = r->key->store;
    char name[WORKER_PRINT_SIZE];
    bool first = true;

    if (!s->started) {
        store_missing_joins(s, out);
        return;
    }
    buf_text(out, "waiting for ");
    for (size_t i = 0; i < s->worker_count; i++) {
        const struct worker *w = s->workers[i];
        if (w == NULL || !round_needs(r, w) || round_has(r, w)) continue;
        buf_format(out, "%s%s", first ? "" : ", ", worker_print(w, name));
        first = false;
    }
    if (first) buf_text(out, "the device");
}

/* ---- the end ---------------------------------------------------------------------------------------------------- */

static void charge(struct round *r, uint64_t size)
{
    r->charged += size;
    r->key->core->staging_used += size;
    share_add(r->share, (int64_t)size);
}

static void set_reservation(struct round *r, bool want)
{
    int64_t size = (int64_t)r->key->shape.size;

    r->has_reservation = want;
    r->key->core->staging_reserved += (uint64_t)(want ? size : -size);
    share_add(r->share, want ? size : -size);
}

static void unlink_round(struct round *r)
{
    struct key *k = r->key;

    list_remove(&r->node);
    k->store->round_count--;
    if (k->rounds[0] == r) {
        k->rounds[0] = k->rounds[1];
        k->rounds[1] = NULL;
    } else if (k->rounds[1] == r) {
        k->rounds[1] = NULL;
    }
    if (r->step > k->closed_step) k->closed_step = r->step;
    if (r->has_reservation) set_reservation(r, false);
}

static void round_free(struct round *r)
{
    struct key *k = r->key;

    k->core->staging_used -= r->charged;
    share_add(r->share, -(int64_t)r->charged);
    share_drop(r->share);
    if (r->update.sum.size > 0) core_mem_free(k->core, &r->update.sum);
    for (struct staging *s; (s = LIST_FIRST(struct staging, node, &r->held)) != NULL;) staging_free(s);
    for (size_t i = 0; i < r->carried_count; i++) worker_drop(r->carried[i].worker);
    mem_free(r->carried);
    updater_drop(r->update.updater);
    mem_free(r->bits);
    mem_free(r);
    key_drop(k);
}

static void freed(struct task *t, enum status s)
{
    (void)s;
    round_free(CONTAINER_OF(CONTAINER_OF(t, struct update, task), struct round, update));
}

static void tell_contributors(struct round *r, uint64_t version, const struct error *why)
{
    struct store *s = r->key->store;

    for (size_t i = 0; i < r->carried_count; i++)
        worker_applied(r->carried[i].worker, r->key, r->carried[i].step, version, why);
    for (size_t i = 0; r->job == s->job && i < s->worker_count; i++)
        if (s->workers[i] != NULL && round_has(r, s->workers[i]))
            worker_applied(s->workers[i], r->key, r->step, version, why);
}

static void round_done(struct update *u, const struct error *e)
{
    struct round *r = CONTAINER_OF(u, struct round, update);
    struct core *c = r->key->core;

    if (e == NULL) c->counters.rounds_closed++;
    else c->counters.rounds_failed++;
    tell_contributors(r, key_version(r->key), e);
    r->key->store->rounds_closing--;
    round_free(r);
}

void round_fail(struct round *r, const struct error *why)
{
    struct key *k = r->key;

    unlink_round(r);
    k->core->counters.rounds_failed++;
    tell_contributors(r, key_version(k), why);
    key_hold(k);
    waits_check(&k->waiters);
    /* Sums may still be under way on the device. */
    r->update.task.run = freed;
    core_after(k->core, k->queue_index, &r->update.task);
    key_drop(k);
}

/* ---- sums ------------------------------------------------------------------------------------------------------- */

/* The first contribution becomes the accumulator: its memory if it has the type of sums, else a widened copy. */
static enum status start_sum(struct round *r, struct staging *s, struct error *e)
{
    struct key *k = r->key;
    enum dtype t = k->shape.dtype;
    enum status st = staging_settle(s, k->queue, e);

    if (st != STATUS_OK) return st;
    if (dtype_sum(t) == t) {
        r->update.sum = s->mem;
        s->mem = (struct dmem){0};
        charge(r, s->size);
        return STATUS_OK;
    }
    size_t size = (size_t)k->shape.count * dtype_size(dtype_sum(t));
    st = core_mem_new(k->core, size, key_place(k, dtype_sum(t)), &r->update.sum, e);
    if (st != STATUS_OK) return st;
    charge(r, size);
    st = device_widen(k->queue, r->update.sum, s->mem, t, (size_t)k->shape.count);
    if (st != STATUS_OK) *e = *device_error(k->core->device);
    return st;
}

static enum status add(struct round *r, struct staging *s, struct error *e)
{
    struct key *k = r->key;
    enum status st;

    if (r->update.sum.size == 0) {
        st = start_sum(r, s, e);
    } else {
        st = staging_settle(s, k->queue, e);
        if (st != STATUS_OK) return st;
        st = device_add(k->queue, r->update.sum, s->mem, k->shape.dtype, (size_t)k->shape.count, &r->update.flags);
        if (st != STATUS_OK) *e = *device_error(k->core->device);
    }
    return st;
}

/* Takes what was held for summing by rank: all but the last into the sum. */
static enum status sum_held(struct round *r, struct error *e)
{
    for (struct staging *s; (s = LIST_FIRST(struct staging, node, &r->held)) != NULL;) {
        list_remove(&s->node);
        if (list_empty(&r->held)) {
            r->update.last = s;
            return STATUS_OK;
        }
        enum status st = add(r, s, e);
        staging_free_after(s, r->key->queue_index);
        if (st != STATUS_OK) return st;
    }
    return STATUS_OK;
}

static void hold_by_rank(struct round *r, struct staging *s)
{
    struct list_node *at = r->held.head.next;

    while (at != &r->held.head && CONTAINER_OF(at, struct staging, node)->worker->rank <= s->worker->rank)
        at = at->next;
    list_insert_before(at, &s->node);
}

/* ---- opening and closing ---------------------------------------------------------------------------------------- */

static void round_close(struct round *r)
{
    struct error e;

    if (sum_held(r, &e) != STATUS_OK) {
        round_fail(r, &e);
        return;
    }
    unlink_round(r);
    r->closed = true;
    r->key->store->rounds_closing++;
    r->update.done = round_done;
    key_update(&r->update);
}

void round_check(struct round *r)
{
    if (r->missing == 0 && r->key->store->started && !r->closed) round_close(r);
}

static enum status round_open(struct key *k, uint64_t step, struct share *share, struct round **out, struct error *e)
{
    struct core *c = k->core;
    struct store *s = k->store;
    int place = k->rounds[0] == NULL ? 0 : 1;

    assert(k->rounds[place] == NULL); /* store_push_record has looked */
    struct round *r = mem_zero(sizeof *r);
    if (r == NULL) return error_set(e, REASON_NO_MEMORY, "no memory for a round");
    list_init(&r->held);
    r->key = key_hold(k);
    r->step = step;
    r->stamp = c->next_stamp++;
    r->opened_ms = c->now_ms;
    r->share = share_hold(share);
    r->job = s->job;
    r->missing = s->members;
    r->update = (struct update){.kind = UPDATE_ROUND, .key = k, .updater = updater_hold(store_updater(s))};
    k->rounds[place] = r;
    if (step > k->opened_step) k->opened_step = step;
    if (step > s->opened_step) s->opened_step = step;
    list_append(&s->rounds, &r->node);
    s->round_count++;
    if (!list_empty(&s->swaps)) swaps_follow(k);
    *out = r;
    return STATUS_OK;
}

/* While somebody is missing, room for one more contribution is kept free. */
static void reserve(struct round *r)
{
    bool want = r->missing > 0;

    if (want != r->has_reservation) set_reservation(r, want);
}

static enum status take(struct round *r, struct staging *s, bool last, struct error *e)
{
    if (r->key->store->options.sum_order == SUM_RANK) {
        hold_by_rank(r, s);
        return STATUS_OK;
    }
    if (last) {
        r->update.last = s;
        return STATUS_OK;
    }
    enum status st = add(r, s, e);
    staging_free_after(s, r->key->queue_index);
    return st;
}

/* Writes down whose it is. A late one counts for nobody in the round that takes it. */
static enum status sign(struct round *r, struct worker *w, uint64_t own_step, struct error *e)
{
    enum status st;

    if (own_step == r->step) return bits_set(&r->bits, &r->words, w->slot, e);
    st = mem_grow((void **)&r->carried, &r->carried_capacity, r->carried_count + 1, sizeof *r->carried, e);
    if (st == STATUS_OK) r->carried[r->carried_count++] = (struct carried){worker_hold(w), own_step};
    return st;
}

static void unsign(struct round *r, struct worker *w, bool carried)
{
    if (carried) worker_drop(r->carried[--r->carried_count].worker);
    else r->bits[w->slot / 64] &= ~((uint64_t)1 << (w->slot % 64));
}

/* A contribution to it is refused for lack of something. Its sum is of no use any more, and it ends, told to those who
 * gave to it. If the refused one had opened it there are none, and it has never been: the step may be pushed again. */
static void abandon(struct round *r, bool fresh, uint64_t opened_before, const struct error *why)
{
    struct key *k = key_hold(r->key);
    uint64_t closed_before = k->closed_step;

    round_fail(r, why);
    if (fresh) {
        k->opened_step = opened_before;
        k->closed_step = closed_before;
    }
    key_drop(k);
}

enum status round_contribute(struct key *k, struct worker *w, uint64_t step, struct staging *s, struct error *e)
{
    uint64_t opened_before = k->opened_step;
    struct round *r = round_find(k, step);
    bool carried = s->tag != step, fresh = r == NULL;
    enum status st = fresh ? round_open(k, step, s->share, &r, e) : STATUS_OK;

    if (st != STATUS_OK) {
        staging_free(s);
        return st;
    }
    st = sign(r, w, s->tag, e);
    if (st != STATUS_OK) {
        staging_free(s);
        if (fresh) abandon(r, fresh, opened_before, e);
        return st;
    }
    if (!carried && round_needs(r, w)) r->missing--;
    r->update.contributors++;
    st = take(r, s, r->missing == 0 && k->store->started, e);
    if (st != STATUS_OK) {
        unsign(r, w, carried);
        abandon(r, fresh, opened_before, e);
        return st;
    }
    reserve(r);
    round_check(r);
    return STATUS_OK;
}

/* ---- whole from the start ---------------------------------------------------------------------------------------- */

void round_whole_void(struct round *r, uint64_t opened_before, const struct error *why)
{
    r->words = 0; /* nobody's */
    abandon(r, true, opened_before, why);
}

enum status round_whole_new(struct key *k, uint64_t step, struct worker *const *workers, size_t count,
                            struct round **out, struct error *e)
{
    uint64_t opened_before = k->opened_step;
    struct round *r;
    enum status st = round_open(k, step, workers[0]->share, &r, e);

    if (st != STATUS_OK) return st;
    for (size_t i = 0; st == STATUS_OK && i < count; i++) {
        st = bits_set(&r->bits, &r->words, workers[i]->slot, e);
        if (st == STATUS_OK && worker_progress(workers[i], k, e) == NULL) st = e->status;
        if (round_needs(r, workers[i])) r->missing--;
    }
    r->update.contributors = (uint32_t)count;
    if (st == STATUS_OK) *out = r;
    else round_whole_void(r, opened_before, e);
    return st;
}

void round_whole_close(struct round *r, struct dmem *sum)
{
    struct key *k = r->key;
    struct store *s = k->store;

    assert(r->missing == 0);
    for (size_t i = 0; i < s->worker_count; i++) {
        struct worker *w = s->workers[i];
        if (w != NULL && round_has(r, w)) worker_recorded(worker_progress(w, k, NULL), r->step);
    }
    k->pushes += r->update.contributors;
    k->core->counters.pushes_recorded += r->update.contributors;
    r->update.sum = *sum;
    *sum = (struct dmem){0};
    charge(r, k->shape.size);
    round_close(r);
}

/* ---- changes of membership, time -------------------------------------------------------------------------------- */

void rounds_joined(struct store *s, struct worker *w)
{
    LIST_EACH(struct round, r, node, &s->rounds)
        if (round_needs(r, w) && !round_has(r, w)) {
            r->missing++;
            reserve(r);
        }
}

void rounds_left(struct store *s, struct worker *w, const struct error *fail)
{
    LIST_EACH(struct round, r, node, &s->rounds) {
        if (w->stamp >= r->stamp || round_has(r, w)) continue;
        assert(r->missing > 0);
        r->missing--;
        if (fail != NULL) {
            round_fail(r, fail);
        } else {
            reserve(r);
            round_check(r);
        }
    }
}

static void time_is_up(struct round *r)
{
    struct store *s = r->key->store;
    struct buf text = {0};
    char name[KEY_PRINT_SIZE];
    struct error e;

    if (s->options.on_missing == ON_MISSING_PROCEED && s->started &&
        r->update.contributors >= s->options.min_workers) {
        r->missing = 0;
        reserve(r);
        round_check(r);
        return;
    }
    round_missing(r, &text);
    error_set(&e, s->started ? REASON_ROUND_FAILED : REASON_START_TIMEOUT,
              "round %" PRIu64 " of %s in store '%s' failed after %.1f s: %.*s", r->step,
              key_name_print(&r->key->name, name), s->name, (double)(s->core->now_ms - r->opened_ms) / 1000.0,
              (int)text.size, text.failed ? "" : (const char *)text.at);
    log_warn("round", "%s", e.text);
    buf_fini(&text);
    round_fail(r, &e);
}

uint64_t rounds_tick(struct store *s, uint64_t now_ms)
{
    uint64_t limit = s->started ? s->options.round_timeout : s->options.start_timeout;

    /* The list is in the order of opening, so the first that has time left ends the search. */
    for (struct round *r; (r = LIST_FIRST(struct round, node, &s->rounds)) != NULL;) {
        uint64_t from = r->opened_ms > s->last_join_ms ? r->opened_ms : s->last_join_ms;
        if (now_ms < from + limit) return from + limit;
        if (core_is_spent(s->core)) return now_ms; /* a million may be due at once */
        core_spend(s->core, WORK_ROUND);
        time_is_up(r);
    }
    return UINT64_MAX;
}
