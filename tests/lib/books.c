#include "tests/lib/books.h"

#include "service/account.h"
#include "service/op.h"
#include "service/watch.h"

#define MUST(condition) \
    do { \
        if (!(condition)) return #condition; \
    } while (0)

static size_t length(const struct list *l)
{
    size_t n = 0;

    for (const struct list_node *at = l->head.next; at != &l->head; at = at->next) n++;
    return n;
}

static const char *round_wrong(const struct store *s, const struct round *r)
{
    uint32_t missing = 0;

    for (size_t i = 0; i < s->worker_count; i++)
        missing += round_needs(r, s->workers[i]) && !round_has(r, s->workers[i]);
    MUST(r->missing == missing);
    MUST(!r->closed && r->job == s->job && r->key->store == s);
    MUST(r->has_reservation == (r->missing > 0));
    MUST(round_find(r->key, r->step) == r);
    MUST(r->update.contributors > 0);
    return NULL;
}

static const char *key_wrong(const struct store *s, const struct key *k)
{
    MUST(k->holds > 0 && !k->deleted && k->store == s && k->core == s->core);
    MUST(k->rounds[1] == NULL || (k->rounds[0] != NULL && k->rounds[0]->step < k->rounds[1]->step));
    MUST(k->rounds[0] == NULL || k->rounds[0]->step <= k->opened_step);
    MUST(k->closed_step <= k->opened_step);
    MUST(k->buffers == length(&k->versions) + length(&k->spares) + (k->busy && !k->turning ? 1 : 0));
    MUST(k->buffers <= s->options.versions_max + 1);
    MUST(length(&k->spares) <= 1);
    MUST(k->current != NULL && k->versions.head.prev == &k->current->node);
    return NULL;
}

static const char *keys_wrong(const struct store *s)
{
    size_t open = 0;

    MUST(map_count(s->keys) + s->free_count == s->slot_count);
    for (size_t i = 0; i < s->slot_count; i++) {
        const struct key *k = store_slot(s, i);
        if (k == NULL) continue;
        MUST(k->slot == i && store_key_at(s, k->id) == k && store_key_find(s, &k->name) == k);
        const char *wrong = key_wrong(s, k);
        if (wrong != NULL) return wrong;
        open += (k->rounds[0] != NULL) + (size_t)(k->rounds[1] != NULL);
    }
    MUST(open == length(&s->rounds));
    LIST_EACH(const struct round, r, node, &s->rounds) {
        const char *wrong = round_wrong(s, r);
        if (wrong != NULL) return wrong;
    }
    return NULL;
}

static const char *workers_wrong(const struct store *s)
{
    uint32_t members = 0, dead = 0;

    for (size_t i = 0; i < s->worker_count; i++) {
        const struct worker *w = s->workers[i];
        MUST(w->store == s && w->slot == i && w->holds > 0);
        MUST(w->staging_count == length(&w->stagings));
        MUST(w->state == WORKER_MEMBER || list_empty(&w->stagings));
        members += w->state == WORKER_MEMBER;
        dead += w->state == WORKER_DEAD;
        for (size_t j = 0; j < i && w->state != WORKER_LEFT; j++)
            MUST(s->workers[j]->state == WORKER_LEFT || s->workers[j]->rank != w->rank);
    }
    MUST(members == s->members && dead == s->dead);
    MUST(map_count(s->barriers) <= BARRIERS_MAX);
    return NULL;
}

static const char *core_wrong(const struct core *c)
{
    uint64_t staged = 0, reserved = 0, elements = 0, counted = 0, most = c->limits.memory_max;
    size_t at = 0, tasks = 0;

    for (const struct store *s; (s = map_next(c->stores, &at)) != NULL;)
        LIST_EACH(const struct round, r, node, &s->rounds)
            if (r->has_reservation) reserved += r->key->shape.size;
    MUST(reserved == c->staging_reserved);
    for (const struct store *s; (s = map_next(c->stores, &at)) != NULL;) {
        counted += s->slack;
        for (size_t i = 0; i < s->slot_count; i++) counted += store_slot(s, i) != NULL ? store_slot(s, i)->counted : 0;
    }
    MUST(counted <= c->counted);
    if (list_empty(&c->leavings)) MUST(c->device->bytes_held - c->cache_bytes + c->key_count * KEY_COST <= account_used(c));
    MUST(most == 0 || c->device->bytes_held + c->key_count * KEY_COST <= most);
    LIST_EACH(const struct staging, s, node, &c->stagings) {
        staged += s->size;
        MUST(!s->complete && (s->have < s->size || s->size == 0));
    }
    MUST(staged <= c->staging_used);
    for (unsigned i = 0; i < CORE_QUEUES; i++) tasks += length(&c->tasks[i]);
    MUST(tasks == c->task_count);
    MUST(list_empty(&c->decided));
    LIST_EACH(const struct watch, w, node, &c->watches) {
        MUST(w->key->watch == w && w->looked_ms <= c->now_ms);
        elements += w->key->shape.count > WATCH_SMALL ? w->key->shape.count : WATCH_SMALL;
    }
    MUST(elements == c->watch_cost && length(&c->watches) == c->watch_count && c->watch_count <= WATCHES_MAX);
    return NULL;
}

static const char *sessions_wrong(const struct server *s)
{
    size_t waits = 0, kept = 0;

    MUST(length(&s->sessions) == s->session_count);
    LIST_EACH(const struct session, at, node, &s->sessions) {
        unsigned peers = 0;
        LIST_EACH(const struct peer, p, node, &s->peers) peers += p->session == at;
        MUST(peers == at->peers && at->waits <= WAITS_MAX && at->waits <= at->requests);
        waits += at->waits;
        kept += at->requests;
    }
    MUST(waits == length(&s->core.waits));
    if (s->core.task_count == 0) MUST(kept == waits);
    return NULL;
}

const char *books_wrong(const struct server *s)
{
    const char *wrong = core_wrong(&s->core);
    size_t at = 0;

    for (const struct store *x; wrong == NULL && (x = map_next(s->core.stores, &at)) != NULL;) {
        wrong = workers_wrong(x);
        if (wrong == NULL) wrong = keys_wrong(x);
    }
    return wrong != NULL ? wrong : sessions_wrong(s);
}
