#include "service/staging.h"

#include "api/limits.h"
#include "service/account.h"
#include "service/base/mem.h"
#include "service/key.h"
#include "service/share.h"
#include "service/store.h"

#include <assert.h>
#include <string.h>

/* A value that waits in its round is counted until the round ends. Room for the missing contributions of open rounds
 * is reserved (round.c), so that a push that advances one is never refused because of later rounds. */
static enum status admit(struct core *c, const struct key *k, uint64_t size, bool advances, bool *lent,
                         struct error *e)
{
    uint64_t taken = c->staging_used + (advances ? 0 : c->staging_reserved), most = account_staging_most(c);

    if (size > c->staging_max)
        return error_set(e, REASON_TOO_LARGE, "a value of %llu bytes does not fit the staging memory of %llu; start "
                         "the daemon with a larger --staging-max", (unsigned long long)size,
                         (unsigned long long)c->staging_max);
    if (size > most)
        return error_set(e, REASON_LIMIT, "a value of %llu bytes on its way does not fit the %llu that keys leave of the "
                         "%llu of --memory-max: delete keys, or raise it", (unsigned long long)size,
                         (unsigned long long)most, (unsigned long long)c->limits.memory_max);
    /* One value is always let in, however large: else two halves of the memory could refuse each other for ever. */
    bool fits = c->staging_used == 0 || taken + size <= most;
    bool is_capped = most < c->staging_max && c->staging_used + size > most;
    *lent = !fits && !is_capped && advances && !k->room_lent && size <= c->staging_reserved;
    if (!fits && !*lent)
        return error_retry(e, REASON_STAGING_FULL, RETRY_MS, "staging memory is full: %llu of %llu bytes wait to be "
                           "applied", (unsigned long long)c->staging_used, (unsigned long long)most);
    return STATUS_OK;
}

/* ---- who is slow while others wait ------------------------------------------------------------------------------ */

static void note_waits(struct core *c, const struct share *u)
{
    if (c->staging_waits[0].who != u || c->staging_waits[0].ms == 0) c->staging_waits[1] = c->staging_waits[0];
    c->staging_waits[0].who = u;
    c->staging_waits[0].ms = c->now_ms;
}

static bool another_waits(const struct core *c, const struct share *u)
{
    for (int i = 0; i < 2; i++)
        if (c->staging_waits[i].ms != 0 && c->staging_waits[i].who != u && c->now_ms - c->staging_waits[i].ms < PACE_WAIT_MS)
            return true;
    return false;
}

/* Whether its memory goes to who waits for it. What came before somebody waited counts, too: but for that, the waiting
 * would take PACE_MS. */
static bool gives_way(struct staging *s)
{
    uint64_t now_ms = s->core->now_ms;

    if (now_ms - s->pace_ms >= PACE_MS) {
        s->slow = (s->have - s->pace_have) * 1000 < (uint64_t)PACE_MIN * (now_ms - s->pace_ms);
        s->pace_ms = now_ms;
        s->pace_have = s->have;
    }
    return s->slow && another_waits(s->core, s->share);
}

static void drop_slow(struct core *c)
{
    LIST_EACH(struct staging, s, node, &c->stagings) {
        if (!gives_way(s)) continue;
        if (s->share != NULL) s->share->slow_ms = c->now_ms;
        staging_free(s);
    }
}

/* ---- admission -------------------------------------------------------------------------------------------------- */

/* A client may have half of the room, its reservations included, and one value at any rate. What advances a round that
 * others have opened is let in: it is what they wait for. */
static enum status admit_client(const struct core *c, const struct share *u, uint64_t size, bool advances,
                                struct error *e)
{
    uint64_t most = account_staging_most(c);

    if (u == NULL) return STATUS_OK;
    if (u->stagings >= STAGINGS_MAX)
        return error_retry(e, REASON_IN_FLIGHT, RETRY_MS, "%d values of this client have begun to arrive; send the rest "
                           "of them first", STAGINGS_MAX);
    if (u->slow_ms != 0 && c->now_ms - u->slow_ms < PACE_MS && another_waits(c, u))
        return error_retry(e, REASON_IN_FLIGHT, 1000, "a value of this client came at less than %d bytes a second, and "
                           "other clients wait for the staging memory that it took; send it again later", PACE_MIN);
    if (c->embedded || advances || u->staging == 0 || u->staging + size <= most / 2) return STATUS_OK;
    return error_retry(e, REASON_IN_FLIGHT, RETRY_MS, "%llu bytes of this client wait to be applied, and half of the "
                       "staging memory of %llu is the most for one", (unsigned long long)u->staging,
                       (unsigned long long)most);
}

/* The sum of the round that a push may open, where its memory cannot become that. */
static uint64_t sum_needs(const struct key *k, enum staging_kind kind, bool advances)
{
    if (k == NULL || advances || (kind != STAGING_PUSH && kind != STAGING_SUM)) return 0;
    if (k->store->options.mode != MODE_SYNC || dtype_sum(k->shape.dtype) == k->shape.dtype) return 0;
    return k->shape.count * dtype_size(dtype_sum(k->shape.dtype));
}

/* Where a key's home keeps room for a push, others have it that will give it back. */
static enum status wait_for_others(const struct core *c, const struct key *k, enum status s, struct error *e)
{
    char why[ERROR_TEXT_SIZE];

    if (k == NULL || c->staging_used == 0 || !core_may_move(c, k->home, s, e)) return s;
    memcpy(why, e->text, sizeof why);
    return error_retry(e, REASON_NO_MEMORY, RETRY_MS, "%s", why);
}

enum status staging_new(struct core *c, enum staging_kind kind, struct key *k, struct worker *w, uint64_t tag,
                        uint64_t size, struct mem_place place, unsigned how, struct staging **out, struct error *e)
{
    struct staging *s = NULL;
    bool lent = false, advances = how & STAGING_ADVANCES, fed = how & STAGING_FED;
    uint64_t charged = size + sum_needs(k, kind, advances);
    enum status st = admit_client(c, w != NULL ? w->share : NULL, charged, advances, e);

    if (st == STATUS_OK) {
        st = admit(c, k, charged, advances, &lent, e);
        if (st != STATUS_OK && e->reason == REASON_STAGING_FULL) note_waits(c, w != NULL ? w->share : NULL);
    }
    if (st != STATUS_OK) return st;
    s = mem_zero(sizeof *s);
    if (s == NULL) return error_set(e, REASON_NO_MEMORY, "no memory for a push");
    /* A state is several pieces of the device, to which it goes from the host. */
    if (kind != STAGING_STATE) st = core_mem_new(c, (size_t)size, place, &s->mem, e);
    if (st == STATUS_OK && s->mem.host == NULL && kind != STAGING_SUM && !fed)
        st = device_pin_new(c->device, size > 0 ? (size_t)size : 1, &s->pin, e);
    if (st != STATUS_OK) {
        if (s->mem.size > 0) core_mem_free(c, &s->mem);
        mem_free(s);
        return wait_for_others(c, k, st, e);
    }
    s->core = c;
    s->kind = kind;
    s->key = k != NULL ? key_hold(k) : NULL;
    s->worker = w != NULL ? worker_hold(w) : NULL;
    s->share = w != NULL ? share_hold(w->share) : NULL;
    s->tag = tag;
    s->size = size;
    s->charged = charged;
    s->touched_ms = s->pace_ms = c->now_ms;
    s->fed = fed;
    s->lent = lent;
    if (lent) k->room_lent = true;
    c->staging_used += charged;
    share_add(s->share, (int64_t)charged);
    list_init(&s->landings);
    list_append(&c->stagings, &s->node);
    if (w != NULL) {
        list_append(&w->stagings, &s->of_worker);
        w->staging_count++;
        if (s->share != NULL) s->share->stagings++;
    }
    *out = s;
    return STATUS_OK;
}

enum status staging_reserve(struct core *c, struct share *u, uint64_t size, struct error *e)
{
    bool lent;
    enum status st = admit_client(c, u, size, false, e);

    if (st == STATUS_OK) {
        st = admit(c, NULL, size, false, &lent, e);
        if (st != STATUS_OK && e->reason == REASON_STAGING_FULL) note_waits(c, u);
    }
    if (st != STATUS_OK) return st;
    c->staging_used += size;
    share_add(u, (int64_t)size);
    return STATUS_OK;
}

void staging_return(struct core *c, struct share *u, uint64_t size)
{
    c->staging_used -= size;
    share_add(u, -(int64_t)size);
}

static void tear_off_landings(struct staging *s)
{
    LIST_EACH(struct landing, l, node, &s->landings) {
        list_remove(&l->node);
        l->staging = NULL;
        l->discard(l);
    }
}

/* It is complete or goes. */
static void leave_worker(struct staging *s)
{
    if (!list_linked(&s->of_worker)) return;
    list_remove(&s->of_worker);
    s->worker->staging_count--;
    if (s->share != NULL) s->share->stagings--;
    if (s->lent) s->key->room_lent = false;
}

/* Whether copies of staging_feed may be under way. */
static bool is_written(const struct staging *s)
{
    uint64_t passed;

    return s->fed_mark > 0 && device_passed(s->key->queue, &passed) == STATUS_OK && passed < s->fed_mark;
}

void staging_free(struct staging *s)
{
    if (s == NULL) return;
    struct core *c = s->core;
    tear_off_landings(s);
    list_remove(&s->node);
    leave_worker(s);
    if (is_written(s)) {
        s->fed_mark = 0;
        staging_free_after(s, s->key->queue_index);
        return;
    }
    c->staging_used -= s->charged;
    share_add(s->share, -(int64_t)s->charged);
    if (s->mem.size > 0) core_mem_free(c, &s->mem);
    if (s->pin != NULL) device_pin_free(c->device, s->pin);
    core_room_free(c, &s->room);
    updater_drop(s->updater);
    mem_free(s->ranges);
    mem_free(s->init);
    buf_fini(&s->about);
    key_drop(s->key);
    worker_drop(s->worker);
    share_drop(s->share);
    mem_free(s);
}

static void free_now(struct task *t, enum status s)
{
    (void)s;
    staging_free(CONTAINER_OF(t, struct staging, task));
}

void staging_free_after(struct staging *s, unsigned queue_index)
{
    s->task.run = free_now;
    core_after(s->core, queue_index, &s->task);
}

struct staging *staging_find(struct worker *w, enum staging_kind kind, const struct key *k, uint64_t tag)
{
    LIST_EACH(struct staging, s, of_worker, &w->stagings)
        if (s->kind == kind && s->key == k && s->tag == tag) return s;
    return NULL;
}

void *staging_land(struct staging *s, struct landing *l, uint64_t offset, uint64_t size)
{
    assert(!list_linked(&l->node) && offset <= s->size && size <= s->size - offset && !s->complete);
    l->staging = s;
    l->offset = offset;
    l->size = size;
    list_append(&s->landings, &l->node);
    uint8_t *base = s->mem.host != NULL ? s->mem.host : s->pin;
    return base != NULL ? base + offset : NULL;     /* an empty value has no place */
}

enum status staging_feed(struct staging *s, uint64_t offset, const void *from, uint64_t size, struct error *e)
{
    struct landing l = {.staging = s, .offset = offset, .size = size};
    struct queue *q = s->key->queue;
    enum status st = device_upload(q, s->mem, (size_t)offset, from, (size_t)size);

    if (st != STATUS_OK) {
        *e = *device_error(q->device);
        return st;
    }
    s->fed_mark = q->mark + 1;
    return staging_landed(&l, e);
}

void landing_cancel(struct landing *l)
{
    list_remove(&l->node);
    l->staging = NULL;
}

/* Adds [from, to) to the sorted ranges, merging what touches. */
static enum status add_range(struct staging *s, uint64_t from, uint64_t to, struct error *e)
{
    size_t first = 0, last;
    enum status st = s->range_count < RANGES_MAX ? STATUS_OK :
                     error_set(e, REASON_LIMIT, "a value arrives in at most %d pieces with gaps between", RANGES_MAX);

    if (st == STATUS_OK)
        st = mem_grow((void **)&s->ranges, &s->range_capacity, s->range_count + 1, sizeof *s->ranges, e);
    if (st != STATUS_OK) return st;
    while (first < s->range_count && s->ranges[first].to < from) first++;
    for (last = first; last < s->range_count && s->ranges[last].from <= to; last++) {
        if (s->ranges[last].from < from) from = s->ranges[last].from;
        if (s->ranges[last].to > to) to = s->ranges[last].to;
        s->have -= s->ranges[last].to - s->ranges[last].from;
    }
    memmove(&s->ranges[first + 1], &s->ranges[last], (s->range_count - last) * sizeof *s->ranges);
    s->range_count += 1 + first - last;
    s->ranges[first] = (struct range){from, to};
    s->have += to - from;
    return STATUS_OK;
}

enum status staging_landed(struct landing *l, struct error *e)
{
    struct staging *s = l->staging;

    landing_cancel(l);
    enum status st = STATUS_OK;
    if (l->size == s->size) s->have = s->size; /* the usual case of a small value, which needs no list of what is there */
    else if (l->size > 0) st = add_range(s, l->offset, l->offset + l->size, e);
    /* What was there already is no progress, and neither are a few bytes now and then. */
    if (st != STATUS_OK || (s->have - s->touched_have < PROGRESS_SIZE_MIN && s->have < s->size)) return st;
    s->touched_ms = s->core->now_ms;
    s->touched_have = s->have;
    list_remove(&s->node);
    if (s->have < s->size) {
        list_append(&s->core->stagings, &s->node);
        return STATUS_OK;
    }
    /* A part that was sent twice may still be on its way over another connection. It must not be written into what is
     * from now on a sum or a value. */
    s->complete = true;
    leave_worker(s);
    tear_off_landings(s);
    return STATUS_OK;
}

void staging_expire(struct core *c, uint64_t before_ms)
{
    if (c->now_ms - c->pace_ms >= 1000) { /* looks at all of them: not each millisecond */
        c->pace_ms = c->now_ms;
        drop_slow(c);
    }
    for (struct staging *s; (s = LIST_FIRST(struct staging, node, &c->stagings)) != NULL;) {
        if (s->touched_ms >= before_ms) return;
        staging_free(s);
    }
}

enum status staging_settle(struct staging *s, struct queue *q, struct error *e)
{
    if (s->pin == NULL || s->size == 0) return STATUS_OK;
    enum status st = device_upload(q, s->mem, 0, s->pin, (size_t)s->size);
    if (st != STATUS_OK) *e = *device_error(q->device);
    return st;
}
