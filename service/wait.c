#include "service/wait.h"

#include "service/base/mem.h"
#include "service/plane.h"

#include <assert.h>
#include <inttypes.h>
#include <string.h>

struct wait *wait_new(struct core *c, uint32_t count)
{
    struct wait *w = mem_zero(sizeof *w + count * sizeof w->conditions[0]);

    if (w == NULL) return NULL;
    w->core = c;
    w->count = count;
    for (uint32_t i = 0; i < count; i++) w->conditions[i].wait = w;
    return w;
}

void wait_free(struct wait *w)
{
    if (w == NULL) return;
    for (uint32_t i = 0; i < w->count; i++) {
        list_remove(&w->conditions[i].node);
        mem_free(w->conditions[i].text);
        worker_drop(w->conditions[i].worker);
    }
    list_remove(&w->node);
    mem_free(w);
}

/* ---- deciding ---------------------------------------------------------------------------------------------------- */

static void done(struct condition *c, uint64_t version)
{
    c->state = WAIT_DONE;
    c->version = version;
}

static void failed(struct condition *c, enum reason reason, const char *text)
{
    c->state = WAIT_FAILED;
    c->reason = reason;
    c->text = text != NULL ? mem_text(text, strlen(text)) : NULL;
}

static void look_ticket(struct condition *c)
{
    struct worker *w = c->worker;
    const struct progress *p = w != NULL ? worker_seen(w, c->key) : NULL;
    const struct note *n = w != NULL ? worker_note_find(w, c->key->id, c->number) : NULL;
    char name[KEY_PRINT_SIZE];
    struct error why;

    if (n != NULL) {
        failed(c, n->reason, n->text);
    } else if (p != NULL && worker_failed(p, c->number)) {
        failed(c, p->failed_reason, NULL); /* its note had to make room for newer ones */
    } else if (p == NULL || p->recorded < c->number) {
        error_set(&why, REASON_BAD_ARGUMENT, "no push %" PRIu64 " by this worker is recorded of %s", c->number,
                  key_name_print(&c->key->name, name));
        failed(c, why.reason, why.text);
    } else if (!worker_pending(p, c->number)) {
        done(c, p->applied_version);
    }
}

/* An init waits for rank 0's value; when rank 0 is gone the lowest present rank has to send its own, and learns so. */
static void look_init(struct condition *c)
{
    struct key *k = store_key_find(c->store, &c->name);

    if (k != NULL && k->job == c->store->job) done(c, key_version(k));
    else if (c->worker == NULL || store_lowest(c->store) == c->worker) done(c, 0);
}

static struct barrier *barrier_of(struct condition *c)
{
    size_t at = 0;

    for (struct barrier *b; (b = map_next(c->store->barriers, &at)) != NULL;)
        if (b->ticket == c->number) return b;
    return NULL;
}

static void look_barrier(struct condition *c)
{
    const struct note *n = c->worker != NULL ? worker_note_find(c->worker, 0, c->number) : NULL;

    if (n != NULL) failed(c, n->reason, n->text);
    else if (barrier_of(c) == NULL) done(c, 0);
}

static void look_plane(struct condition *c)
{
    struct error why;

    switch (plane_decides(c->store, c->kind, c->epoch, c->number, &why)) {
    case WAIT_PENDING: return;
    case WAIT_DONE: done(c, c->number); return;
    case WAIT_FAILED: failed(c, why.reason, why.text); return;
    }
}

static void look(struct condition *c)
{
    switch (c->kind) {
    case WAIT_TICKET: look_ticket(c); break;
    case WAIT_VERSION:
        if (key_version(c->key) >= c->number) done(c, key_version(c->key));
        break;
    case WAIT_INIT: look_init(c); break;
    case WAIT_BARRIER: look_barrier(c); break;
    case WAIT_PLANE:
    case WAIT_COUNTED: look_plane(c); break;
    }
}

static struct list *home(struct condition *c)
{
    switch (c->kind) {
    case WAIT_TICKET:
    case WAIT_VERSION: return &c->key->waiters;
    case WAIT_INIT: return &c->store->init_waiters;
    case WAIT_PLANE:
    case WAIT_COUNTED: return plane_waiters(c->store);
    case WAIT_BARRIER: break;
    }
    struct barrier *b = barrier_of(c);
    return b != NULL ? &b->waiters : &c->store->init_waiters;
}

/* Hands the wait to the edge when it has what it wants. */
static void pass_on(struct wait *w)
{
    if (w->decided < w->want && w->failed == 0 && w->count > 0) return;
    list_remove(&w->node);
    list_append(&w->core->decided, &w->node);
}

/* Counts a decision. */
static void decided(struct condition *c)
{
    struct wait *w = c->wait;

    list_remove(&c->node);
    w->decided++;
    if (c->state == WAIT_FAILED) w->failed++;
    if (w->begun) pass_on(w);
}

void wait_look(struct wait *w, struct condition *c)
{
    core_spend(w->core, 1);
    if (c->state == WAIT_PENDING) look(c);
    if (c->state != WAIT_PENDING) decided(c);
    else list_append(home(c), &c->node);
}

void wait_begin(struct wait *w)
{
    w->begun = true;
    list_append(&w->core->waits, &w->node);
    pass_on(w);
}

void waits_check(struct list *conditions)
{
    LIST_EACH(struct condition, c, node, conditions) {
        look(c);
        if (c->state != WAIT_PENDING) decided(c);
    }
}

/* There may be as many conditions as workers times keys, and as many keys come one after the other. */
void waits_check_init(struct list *conditions, const struct key *k)
{
    LIST_EACH(struct condition, c, node, conditions) {
        if (!key_name_equal(&c->name, &k->name)) continue;
        look(c);
        if (c->state != WAIT_PENDING) decided(c);
    }
}

void waits_fail(struct list *conditions, const struct error *why)
{
    LIST_EACH(struct condition, c, node, conditions) {
        failed(c, why->reason, why->text);
        decided(c);
    }
}

/* ---- what an undecided one waits for ----------------------------------------------------------------------------- */

static void explain_ticket(struct condition *c, struct buf *out)
{
    const struct round *r = round_find(c->key, c->number);
    char name[KEY_PRINT_SIZE];

    if (r == NULL) {
        buf_format(out, "%s in store '%s': the device has not yet applied push %" PRIu64,
                   key_name_print(&c->key->name, name), c->store->name, c->number);
        return;
    }
    buf_format(out, "round %" PRIu64 " of %s in store '%s' is %.1f s old, ", r->step,
               key_name_print(&c->key->name, name), c->store->name,
               (double)(c->store->core->now_ms - r->opened_ms) / 1000.0);
    round_missing(r, out);
}

static void explain(struct condition *c, struct buf *out)
{
    char name[KEY_PRINT_SIZE], who[WORKER_PRINT_SIZE];
    struct worker *lowest = store_lowest(c->store);
    struct barrier *b;

    switch (c->kind) {
    case WAIT_TICKET: explain_ticket(c, out); return;
    case WAIT_VERSION:
        buf_format(out, "%s in store '%s' is at version %" PRIu64 ", not yet at %" PRIu64,
                   key_name_print(&c->key->name, name), c->store->name, key_version(c->key), c->number);
        return;
    case WAIT_INIT:
        buf_format(out, "%s in store '%s' is not initialised: waiting for the value of %s",
                   key_name_print(&c->name, name), c->store->name,
                   lowest != NULL ? worker_print(lowest, who) : "rank 0");
        return;
    case WAIT_BARRIER:
        b = barrier_of(c);
        if (b != NULL) barrier_missing(c->store, b, out);
        return;
    case WAIT_PLANE:
    case WAIT_COUNTED:
        buf_format(out, "epoch %" PRIu64 " of the plane of store '%s': ", c->epoch, c->store->name);
        plane_missing(c->store, c->number, out);
        return;
    }
}

static void time_is_up(struct wait *w)
{
    for (uint32_t i = 0; i < w->count; i++) {
        struct condition *c = &w->conditions[i];
        if (c->state != WAIT_PENDING || i >= FAULT_TEXTS_MAX) continue;
        struct buf text = {0};
        explain(c, &text);
        core_spend(w->core, WORK_ROUND);
        if (!text.failed && text.size > 0) c->text = mem_text((const char *)text.at, text.size);
        buf_fini(&text);
    }
    list_remove(&w->node);
    list_append(&w->core->decided, &w->node);
}

uint64_t waits_tick(struct core *c, uint64_t now_ms)
{
    uint64_t next = UINT64_MAX;

    LIST_EACH(struct wait, w, node, &c->waits) {
        if (now_ms >= w->deadline_ms && core_is_spent(c)) return now_ms;
        if (now_ms >= w->deadline_ms) time_is_up(w);
        else if (w->deadline_ms < next) next = w->deadline_ms;
    }
    return next;
}
