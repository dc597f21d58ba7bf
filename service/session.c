#include "service/op.h"

#include "service/base/log.h"
#include "service/base/mem.h"
#include "service/plane.h"

#include <assert.h>
#include <inttypes.h>
#include <string.h>

/* A client without a connection and without a place in a store is remembered this long, so that the repeat of a named
 * request after a broken connection is still recognised. */
enum { IDLE_MS = 120000, WINDOW_SIZE_MIN = 8 };

static struct bytes id_bytes(const struct wire_id *id) { return bytes_of(id->at, sizeof id->at); }

static void unpin(struct pin *p)
{
    if (p->version == NULL) return;
    p->version->pins--;
    version_drop(p->version);
    p->version = NULL;
}

static void session_free(struct session *s)
{
    struct server *server = s->server;

    list_remove(&s->node);
    if (map_find(server->by_id, id_bytes(&s->id)) == s) map_remove(server->by_id, id_bytes(&s->id));
    for (size_t i = 0; i < PINS_MAX; i++) unpin(&s->pins[i]);
    state_copies_fini(&s->copies);
    for (size_t i = 0; i < s->worker_count; i++) worker_drop(s->workers[i]);
    mem_free(s->workers);
    share_drop(s->share);
    mem_free(s->window);
    buf_fini(&s->packed);
    mem_free(s->name);
    mem_free(s);
    server->session_count--;
}

static bool is_idle(const struct session *s)
{
    if (s->peers > 0 || s->requests > 0) return false;
    for (size_t i = 0; i < s->worker_count; i++)
        if (s->workers[i]->state == WORKER_MEMBER && s->workers[i]->epoch == s->epoch) return false;
    return true;
}

/* ---- the window of named requests --------------------------------------------------------------------------------- */

/* One that is older is no longer remembered. */
static bool is_forgotten(const struct session *s, uint64_t sequence)
{
    return s->highest >= DEDUPE_WINDOW && sequence <= s->highest - DEDUPE_WINDOW;
}

static struct named_result *window_at(const struct session *s, uint64_t sequence)
{
    return &s->window[sequence & (s->window_size - 1)];
}

static bool window_resize(struct session *s, size_t size)
{
    struct named_result *to = mem_array(size, sizeof *to);

    if (to == NULL) return false;
    for (size_t i = 0; i < s->window_size; i++) {
        const struct named_result *r = &s->window[i];
        if (!is_forgotten(s, r->sequence)) to[r->sequence & (size - 1)] = *r;
    }
    mem_free(s->window);
    s->window = to;
    s->window_size = size;
    return true;
}

/* The results alone, one behind the other: what a client leaves that does not come back is small. */
static void window_pack(struct session *s)
{
    struct buf b = {0};

    for (size_t i = 0; i < s->window_size; i++) {
        const struct named_result *r = &s->window[i];
        if (r->sequence == 0 || is_forgotten(s, r->sequence)) continue;
        buf_add(&b, r, offsetof(struct named_result, bytes));
        buf_add(&b, r->bytes, r->size);
    }
    if (b.failed) {
        buf_fini(&b);
        return;
    }
    mem_free(s->window);
    s->window = NULL;
    s->window_size = 0;
    s->packed = b;
}

static bool window_unpack(struct session *s)
{
    size_t size = s->packed.size > 0 ? DEDUPE_WINDOW : WINDOW_SIZE_MIN;

    if (s->window != NULL) return true;
    if (!window_resize(s, size)) return false;
    for (size_t at = 0; at < s->packed.size;) {
        struct named_result r = {0};
        memcpy(&r, s->packed.at + at, offsetof(struct named_result, bytes));
        at += offsetof(struct named_result, bytes);
        memcpy(r.bytes, s->packed.at + at, r.size);
        at += r.size;
        *window_at(s, r.sequence) = r;
    }
    buf_fini(&s->packed);
    return true;
}

/* ---- ends --------------------------------------------------------------------------------------------------------- */

void sessions_expire(struct server *s)
{
    uint64_t now = s->core.now_ms;

    LIST_EACH(struct session, at, node, &s->sessions) {
        for (size_t i = 0; i < PINS_MAX; i++)
            if (at->pins[i].version != NULL && now - at->pins[i].touched_ms >= PROGRESS_MS) unpin(&at->pins[i]);
        state_copies_expire(&at->copies, now);
        if (at->peers == 0 && at->requests == 0 && at->window_size > WINDOW_SIZE_MIN) window_pack(at);
        if (is_idle(at) && (at->stale || now - at->seen_ms > IDLE_MS)) session_free(at);
    }
}

void sessions_free(struct server *s)
{
    for (struct session *at; (at = LIST_FIRST(struct session, node, &s->sessions)) != NULL;) session_free(at);
}

/* When clients are as many as can be, the one longest silent of those without a connection goes early: one peer that
 * says HELLO again and again must not lock the others out. A worker that goes so stays in its stores while it counts as
 * alive there, and finds itself again when it comes back. */
static enum status make_room(struct server *s, struct error *e)
{
    if (s->session_count < SESSIONS_MAX) return STATUS_OK;
    LIST_EACH(struct session, at, node, &s->sessions) {
        if (at->peers > 0 || at->requests > 0) continue;
        session_free(at);
        return STATUS_OK;
    }
    return error_set(e, REASON_LIMIT, "the daemon knows %d clients already", SESSIONS_MAX);
}

static enum status session_new(struct server *s, const struct wire_id *id, uint32_t epoch, struct bytes name,
                               struct session **out, struct error *e)
{
    enum status st = make_room(s, e);

    if (st != STATUS_OK) return st;
    struct session *old = map_find(s->by_id, id_bytes(id)), *n = mem_zero(sizeof *n);
    if (n == NULL) return error_set(e, REASON_NO_MEMORY, "no memory for a client");
    n->server = s;
    n->id = *id;
    n->epoch = epoch;
    n->number = s->next_session;
    state_copies_init(&n->copies);
    n->name = mem_text(name.at, name.size);
    n->share = share_new();
    st = n->name != NULL && n->share != NULL ? STATUS_OK : error_set(e, REASON_NO_MEMORY, "no memory for a client");
    if (st != STATUS_OK) goto out;
    if (old != NULL) map_remove(s->by_id, id_bytes(id));
    st = map_put(s->by_id, id_bytes(id), n, e);
    if (st != STATUS_OK) goto out;
    if (old != NULL) old->stale = true;
    s->next_session++;
    s->session_count++;
    list_append(&s->sessions, &n->node);
    *out = n;
    n = NULL; /* the server's now */
out:
    if (n != NULL) {
        mem_free(n->name);
        share_drop(n->share);
        mem_free(n);
    }
    return st;
}

enum status session_hello(struct server *s, const struct wire_header *h, struct bytes name, struct session **out,
                          struct error *e)
{
    static const struct wire_id nobody;
    struct session *known = map_find(s->by_id, id_bytes(&h->worker));

    if (memcmp(&h->worker, &nobody, sizeof nobody) == 0)
        return error_set(e, REASON_BAD_ARGUMENT, "HELLO needs a worker id that is not all zero; take a random one");
    if (name.size > WORKER_NAME_SIZE_MAX)
        return error_set(e, REASON_BAD_ARGUMENT, "/name: a worker's name is UTF-8 of at most %d bytes",
                         WORKER_NAME_SIZE_MAX);
    /* The half of the numbers that no client may claim is for new starts, so that no peer can use them up. */
    if (h->epoch > INT32_MAX && (known == NULL || h->epoch != known->epoch))
        return error_set(e, REASON_BAD_ARGUMENT, "epoch %u was not given by this daemon", h->epoch);
    if (h->epoch == 0 && s->next_epoch == UINT32_MAX)
        return error_set(e, REASON_LIMIT, "the daemon has no more epochs to give; restart it");
    if (h->epoch == 0) return session_new(s, &h->worker, s->next_epoch++, name, out, e);
    if (known != NULL && known->epoch > h->epoch)
        return error_set(e, REASON_STALE_EPOCH, "this start of the worker (epoch %u) is over: epoch %u has begun",
                         h->epoch, known->epoch);
    if (known != NULL && known->epoch == h->epoch) {
        *out = known;
        return STATUS_OK;
    }
    /* A client of an earlier life of the daemon, or one long silent. It sees by `instance` which. */
    if (h->epoch >= s->next_epoch) s->next_epoch = h->epoch + 1;
    return session_new(s, &h->worker, h->epoch, name, out, e);
}

void session_attach(struct session *s, struct peer *p)
{
    if (p->session == s) return;
    session_detach(p);
    if (p->ops->bound != NULL) p->ops->bound(p->link, 0);
    p->session = s;
    s->peers++;
}

void session_detach(struct peer *p)
{
    struct session *s = p->session;

    if (s == NULL) return;
    box_peer_gone(s, p);
    p->session = NULL;
    if (--s->peers > 0 || s->stale) return;
    for (size_t i = 0; i < s->worker_count; i++)
        if (s->workers[i]->store != NULL && s->workers[i]->epoch == s->epoch)
            plane_worker_lost(s->workers[i]->store, s->workers[i]);
}

void session_touch(struct session *s)
{
    uint64_t now = s->server->core.now_ms;

    s->seen_ms = now;
    list_remove(&s->node);
    list_append(&s->server->sessions, &s->node);
    if (s->stale) return;
    for (size_t i = 0; i < s->worker_count; i++)
        if (s->workers[i]->epoch == s->epoch) s->workers[i]->seen_ms = now;
}

/* ---- stores joined ---------------------------------------------------------------------------------------------- */

static struct worker *find_worker(const struct session *s, const struct store *store)
{
    for (size_t i = 0; i < s->worker_count; i++)
        if (s->workers[i]->store == store) return s->workers[i];
    return NULL;
}

enum status session_worker(struct session *s, const struct store *store, struct worker **out, struct error *e)
{
    struct worker *w = find_worker(s, store);

    if (s->stale || (w != NULL && w->epoch != s->epoch))
        return error_set(e, REASON_STALE_EPOCH, "a newer start of this worker has joined store '%s'; this one is over",
                         store->name);
    if (w == NULL || w->state == WORKER_LEFT)
        return error_set(e, REASON_NOT_JOINED, "this worker has not joined store '%s'; join it first", store->name);
    if (w->state == WORKER_DEAD)
        return error_set(e, REASON_NOT_JOINED, "this worker was found dead in store '%s' (no sign of life for %.1f s); "
                         "join again", store->name, store->options.worker_timeout / 1000.0);
    *out = w;
    return STATUS_OK;
}

static void forget_worker(struct session *s, size_t i)
{
    worker_drop(s->workers[i]);
    s->workers[i] = s->workers[--s->worker_count];
}

enum status session_join(struct session *s, struct store *store, struct bytes name, struct worker **out,
                         struct error *e)
{
    struct worker *w;
    enum status st;

    if (s->stale) return error_set(e, REASON_STALE_EPOCH, "a newer start of this worker has begun; this one is over");
    for (size_t i = s->worker_count; i-- > 0;)
        if (s->workers[i]->store == NULL) forget_worker(s, i);
    if (s->worker_count >= STORES_OF_CLIENT_MAX && find_worker(s, store) == NULL)
        return error_set(e, REASON_LIMIT, "this client has joined %d stores; leave one first", STORES_OF_CLIENT_MAX);
    st = mem_grow((void **)&s->workers, &s->worker_capacity, s->worker_count + 1, sizeof *s->workers, e);
    if (st != STATUS_OK) return st;
    st = store_join(store, &s->id, s->epoch, name.size > 0 ? name : bytes_text(s->name), &w, e);
    if (st != STATUS_OK) return st;
    if (find_worker(s, store) != w) s->workers[s->worker_count++] = worker_hold(w);
    if (w->share != s->share) {
        share_drop(w->share);
        w->share = share_hold(s->share);
    }
    *out = w;
    return STATUS_OK;
}

void session_leave(struct session *s, struct worker *w)
{
    if (w->store != NULL && w->epoch == s->epoch) store_leave(w->store, w);
    for (size_t i = 0; i < s->worker_count; i++)
        if (s->workers[i] == w) {
            forget_worker(s, i);
            return;
        }
}

/* ---- named requests --------------------------------------------------------------------------------------------- */

static enum repeat refuse_repeat(const struct named_result *known, const struct wire_header *h, struct error *e)
{
    if (known->sequence > h->sequence)
        error_set(e, REASON_SEQUENCE_OLD, "request %" PRIu64 " is older than the %d that are remembered; it was not "
                  "executed", h->sequence, DEDUPE_WINDOW);
    else if (known->method != h->method)
        error_set(e, REASON_BAD_ARGUMENT, "sequence %" PRIu64 " has named another request, a %s", h->sequence,
                  wire_method_name(known->method));
    else
        error_retry(e, REASON_IN_FLIGHT, RETRY_MS, "the first copy of this request is still being worked on");
    return REPEAT_REFUSED;
}

/* The place of this request in the window, which grows where another that is remembered has it. NULL: no memory. */
static struct named_result *window_place(struct session *s, uint64_t sequence)
{
    if (!window_unpack(s)) return NULL;
    for (;;) {
        struct named_result *r = window_at(s, sequence);
        bool is_taken = r->sequence != 0 && r->sequence != sequence && !is_forgotten(s, r->sequence);
        if (!is_taken || s->window_size == DEDUPE_WINDOW) return r;
        if (!window_resize(s, 2 * s->window_size)) return NULL;
    }
}

enum repeat session_repeat(struct session *s, const struct wire_header *h, const struct named_result **out,
                           struct error *e)
{
    struct named_result *r = window_place(s, h->sequence), newest = {.sequence = s->highest};

    if (r == NULL) {
        error_retry(e, REASON_NO_MEMORY, RETRY_MS, "no memory to remember a request");
        return REPEAT_REFUSED;
    }
    *out = r;
    if (is_forgotten(s, h->sequence)) return refuse_repeat(&newest, h, e);
    if (r->sequence == h->sequence && r->method == h->method && !r->running) return REPEAT_DONE;
    if (r->sequence >= h->sequence) return refuse_repeat(r, h, e);
    *r = (struct named_result){.sequence = h->sequence, .method = h->method, .running = true};
    if (h->sequence > s->highest) s->highest = h->sequence;
    return REPEAT_FRESH;
}

bool session_known(struct session *s, uint64_t sequence)
{
    if (sequence == 0 || (s->window == NULL && s->packed.size == 0) || !window_unpack(s)) return false;
    return is_forgotten(s, sequence) || window_at(s, sequence)->sequence == sequence;
}

static struct named_result *running(struct session *s, uint64_t sequence)
{
    struct named_result *r = s->window != NULL ? window_at(s, sequence) : NULL;
    return r != NULL && r->sequence == sequence && r->running ? r : NULL;
}

void session_result(struct session *s, uint64_t sequence, const void *bytes, size_t size)
{
    struct named_result *r = running(s, sequence);

    if (r == NULL) return;
    assert(size <= RESULT_SIZE_MAX);
    memcpy(r->bytes, bytes, size);
    r->size = (uint8_t)size;
    r->running = false;
}

void session_forget(struct session *s, uint64_t sequence)
{
    struct named_result *r = running(s, sequence);
    if (r != NULL) *r = (struct named_result){0};
}

/* ---- versions pulled in parts ----------------------------------------------------------------------------------- */

void session_pin(struct session *s, struct version *v, uint64_t sent, uint64_t total)
{
    struct pin *at = NULL, *oldest = &s->pins[0];

    for (size_t i = 0; i < PINS_MAX; i++) {
        struct pin *p = &s->pins[i];
        if (p->version == v) at = p;
        if (p->version == NULL || (oldest->version != NULL && p->touched_ms < oldest->touched_ms)) oldest = p;
    }
    if (at == NULL) {
        at = oldest;
        unpin(at); /* more than PINS_MAX at once: the one longest unused has to begin again */
        *at = (struct pin){.version = version_hold(v), .left = total};
        v->pins++;
    }
    at->touched_ms = s->server->core.now_ms;
    at->left -= sent < at->left ? sent : at->left;
    if (at->left == 0) unpin(at);
}

void session_unpin_revoked(struct session *s, const struct version *v)
{
    for (size_t i = 0; i < PINS_MAX; i++)
        if (s->pins[i].version == v) unpin(&s->pins[i]);
}
