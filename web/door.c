#include "web/door.h"

#include "service/base/mem.h"
#include "web/json.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>

struct door {
    struct server *server;
    struct mailbox *mailbox;
    struct peer *peer;               /* core thread; NULL: closed */
    struct list calls;               /* core thread: not answered yet */
    uint32_t next_id;                /* core thread */
    struct wire_id worker;           /* these three: fixed since HELLO */
    uint32_t epoch, session;
    pthread_mutex_t lock;            /* guards closed, and answered of all calls */
    pthread_cond_t changed;
    bool closed;
    _Atomic int holds;
};

/* Counted: the thread that asks may stop waiting before the core has answered. */
struct call {
    struct mail mail;
    struct list_node node;           /* door->calls */
    struct door *door;               /* held */
    uint32_t id;
    struct wire_header header;
    struct buf request;              /* fixed, desc and body behind each other */
    struct buf reply;                /* a whole frame */
    bool answered;
    _Atomic int holds;
};

/* ---- life ------------------------------------------------------------------------------------------------------- */

static void door_drop(struct door *d)
{
    if (atomic_fetch_sub(&d->holds, 1) > 1) return;
    pthread_mutex_destroy(&d->lock);
    pthread_cond_destroy(&d->changed);
    mem_free(d);
}

static void call_drop(struct call *c)
{
    if (atomic_fetch_sub(&c->holds, 1) > 1) return;
    buf_fini(&c->request);
    buf_fini(&c->reply);
    door_drop(c->door);
    mem_free(c);
}

static void open_call(struct mail *m);

/* With one hold for the caller and one for the core. NULL: no memory. */
static struct call *call_new(struct door *d, const struct question *q)
{
    struct call *c = mem_zero(sizeof *c);

    if (c == NULL) return NULL;
    buf_add(&c->request, q->fixed.at, q->fixed.size);
    buf_add(&c->request, q->desc.at, q->desc.size);
    buf_add(&c->request, q->body.at, q->body.size);
    if (c->request.failed) {
        buf_fini(&c->request);
        mem_free(c);
        return NULL;
    }
    c->mail.open = open_call;
    c->door = d;
    c->header = (struct wire_header){.method = (uint8_t)q->method, .flags = (uint16_t)q->flags, .worker = d->worker,
                                     .epoch = d->epoch, .session = d->session, .fixed_size = (uint32_t)q->fixed.size,
                                     .desc_size = (uint32_t)q->desc.size, .body_size = q->body.size};
    atomic_fetch_add(&d->holds, 1);
    atomic_store(&c->holds, 2);
    return c;
}

/* ---- on the core's thread --------------------------------------------------------------------------------------- */

/* Drops the core's hold. */
static void call_end(struct call *c)
{
    struct door *d = c->door;

    list_remove(&c->node);
    pthread_mutex_lock(&d->lock);
    c->answered = true;
    pthread_cond_broadcast(&d->changed);
    pthread_mutex_unlock(&d->lock);
    call_drop(c);
}

/* The answer is copied while it is here: what it refers to may change as soon as the core goes on. */
static void take_answer(void *link, struct outgoing *o)
{
    struct door *d = link;
    struct call *c = NULL;

    LIST_EACH(struct call, at, node, &d->calls)
        if (at->id == o->id) c = at;
    if (c != NULL) {
        buf_add(&c->reply, o->head.at, o->head.size);
        for (size_t i = 0; i < o->segment_count; i++) buf_add(&c->reply, o->segments[i].at, o->segments[i].size);
    }
    buf_fini(&o->copies);
    o->done(o, c != NULL);
    if (c != NULL) call_end(c);
}

static void no_detach(void *link, const void *owner) { (void)link; (void)owner; }
static void no_discard(void *link) { (void)link; }

static const struct peer_ops ops = {
    .door = "web", .admin = true, .answer = take_answer, .detach = no_detach, .discard = no_discard,
};

static void serve(struct door *d, struct call *c)
{
    struct error e;
    uint8_t *at = c->request.at, *body = at + c->header.fixed_size + c->header.desc_size;
    struct incoming in = {.id = d->next_id++ | 0x80000000u, .error = &e, .header = c->header,
                          .fixed = bytes_of(at, c->header.fixed_size),
                          .desc = bytes_of(at + c->header.fixed_size, c->header.desc_size)};
    void *to = NULL;

    c->id = in.id;
    list_append(&d->calls, &c->node);
    if (c->header.body_size > 0) {
        switch (server_place(d->peer, &in, &to)) {
        case PLACE_SCRATCH: in.body = body; break;
        case PLACE_AT: in.body = memcpy(to, body, (size_t)c->header.body_size); break;
        case PLACE_DROP: break;
        }
    }
    server_frame(d->peer, &in);
}

static void open_call(struct mail *m)
{
    struct call *c = CONTAINER_OF(m, struct call, mail);

    if (c->door->peer != NULL) serve(c->door, c);
    else call_end(c);
}

static enum status read_reply(struct call *c, struct reply *out, struct error *e);

static enum status hello(struct door *d, const char *token, struct error *e)
{
    json_t *in = json_pack("{s:s,s:s*}", "client", "web", "token", token), *said = NULL;
    char *text = in != NULL ? json_dumps(in, JSON_COMPACT) : NULL;
    struct question q = {.method = WIRE_Hello, .body = bytes_of(text, text != NULL ? strlen(text) : 0)};
    struct call *c = text != NULL ? call_new(d, &q) : NULL;
    struct reply r = {.bytes = {0}};
    enum status s = c != NULL ? STATUS_OK : error_set(e, REASON_NO_MEMORY, "no memory for a client");

    if (s == STATUS_OK) {
        open_call(&c->mail);
        s = read_reply(c, &r, e);
    }
    if (s == STATUS_OK) {
        said = json_loadb(r.body.at, r.body.size, 0, NULL);
        d->epoch = (uint32_t)json_integer_value(json_object_get(said, "epoch"));
        d->session = (uint32_t)json_integer_value(json_object_get(said, "session"));
    }
    if (c != NULL) call_drop(c);
    reply_fini(&r);
    json_decref(said);
    json_decref(in);
    json_text_free(text);
    return s;
}

enum status door_open(struct server *s, struct mailbox *m, const char *token, struct door **out, struct error *e)
{
    struct door *d = mem_zero(sizeof *d);
    pthread_condattr_t monotonic;
    enum status st;

    if (d == NULL) return error_set(e, REASON_NO_MEMORY, "no memory for a door");
    d->server = s;
    d->mailbox = m;
    list_init(&d->calls);
    atomic_store(&d->holds, 1);
    pthread_mutex_init(&d->lock, NULL);
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&d->changed, &monotonic);
    pthread_condattr_destroy(&monotonic);
    st = getrandom(&d->worker, sizeof d->worker, 0) == (ssize_t)sizeof d->worker
             ? STATUS_OK : error_set(e, REASON_SYSTEM, "no random numbers");
    if (st == STATUS_OK) st = server_peer_new(s, &ops, d, "http", &d->peer, e);
    if (st == STATUS_OK) st = hello(d, token, e);
    if (st == STATUS_OK) {
        *out = d;
    } else {
        door_close(d);
        door_free(d);
    }
    return st;
}

void door_close(struct door *d)
{
    if (d == NULL) return;
    if (d->peer != NULL) server_peer_gone(d->peer);
    d->peer = NULL;
    pthread_mutex_lock(&d->lock);
    d->closed = true;
    pthread_cond_broadcast(&d->changed);
    pthread_mutex_unlock(&d->lock);
    for (struct call *c; (c = LIST_FIRST(struct call, node, &d->calls)) != NULL;) call_end(c);
}

void door_free(struct door *d)
{
    if (d != NULL) door_drop(d);
}

/* ---- on the web's threads --------------------------------------------------------------------------------------- */

void reply_fini(struct reply *r) { buf_fini(&r->bytes); }

static enum status read_reply(struct call *c, struct reply *out, struct error *e)
{
    struct wire_header h;
    struct error why;

    if (c->reply.size == 0 && !c->reply.failed)
        return error_set(e, REASON_DRAINING, "the daemon is shutting down");
    if (c->reply.failed) return error_retry(e, REASON_NO_MEMORY, RETRY_MS, "no memory for an answer");
    if (wire_header_read(bytes_of(c->reply.at, c->reply.size), c->reply.size, &h, &why) != STATUS_OK)
        return error_set(e, REASON_INTERNAL, "%s", why.text);
    out->bytes = c->reply;
    c->reply = (struct buf){0};
    out->fixed = bytes_of(out->bytes.at + WIRE_HEADER_SIZE, h.fixed_size);
    out->desc = bytes_of(out->bytes.at + WIRE_HEADER_SIZE + h.fixed_size, h.desc_size);
    out->body = bytes_of(out->bytes.at + wire_head_size(&h), (size_t)h.body_size);
    if (h.status == STATUS_OK) return STATUS_OK;
    struct reader fixed = reader_of(out->fixed);
    struct wire_error f = {.retry_ms = 0};
    (void)wire_get_error(&fixed, &f);
    error_retry(e, reason_from_wire(h.reason), f.retry_ms, "%.*s", (int)out->body.size, (const char *)out->body.at);
    reply_fini(out);
    return e->status;
}

/* Whether it has been answered, or never will be. */
static bool wait_answered(struct door *d, struct call *c, unsigned wait_ms)
{
    struct timespec until;

    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_sec += wait_ms / 1000;
    until.tv_nsec += (long)(wait_ms % 1000) * 1000000;
    if (until.tv_nsec >= 1000000000) {
        until.tv_sec++;
        until.tv_nsec -= 1000000000;
    }
    pthread_mutex_lock(&d->lock);
    while (!c->answered && !d->closed)
        if (pthread_cond_timedwait(&d->changed, &d->lock, &until) != 0) break;
    bool over = c->answered;
    pthread_mutex_unlock(&d->lock);
    return over;
}

static bool is_closed(struct door *d)
{
    pthread_mutex_lock(&d->lock);
    bool closed = d->closed;
    pthread_mutex_unlock(&d->lock);
    return closed;
}

static enum status ask(struct door *d, struct call *c, unsigned wait_ms, struct reply *out, struct error *e)
{
    if (is_closed(d)) {
        call_drop(c);
        return error_set(e, REASON_DRAINING, "the daemon is shutting down");
    }
    if (!mailbox_request(d->mailbox, &c->mail)) {
        call_drop(c);
        return error_retry(e, REASON_LIMIT, RETRY_MS, "too many requests wait for the core");
    }
    if (wait_answered(d, c, wait_ms)) return read_reply(c, out, e);
    if (mailbox_withdraw(d->mailbox, &c->mail)) call_drop(c); /* it will not be opened any more */
    if (is_closed(d)) return error_set(e, REASON_DRAINING, "the daemon is shutting down");
    return error_retry(e, REASON_DEADLINE, 1000, "the core has not answered within %u ms; what was asked may still be "
                       "done", wait_ms);
}

enum status door_call(struct door *d, const struct question *q, struct reply *out, struct error *e)
{
    struct call *c = call_new(d, q);

    *out = (struct reply){.bytes = {0}};
    if (c == NULL) return error_retry(e, REASON_NO_MEMORY, RETRY_MS, "no memory for a request");
    enum status s = ask(d, c, q->wait_ms > 0 ? q->wait_ms : DOOR_WAIT_MS, out, e);
    call_drop(c);
    return s;
}

enum status door_json(struct door *d, unsigned method, json_t *in, unsigned wait_ms, json_t **out, struct error *e)
{
    char *text = in != NULL ? json_dumps(in, JSON_COMPACT) : NULL;
    struct question q = {.method = method, .body = bytes_of(text, text != NULL ? strlen(text) : 0), .wait_ms = wait_ms};
    struct reply r;
    enum status s;

    json_decref(in);
    if (text == NULL) return error_retry(e, REASON_NO_MEMORY, RETRY_MS, "no memory for a request");
    s = door_call(d, &q, &r, e);
    json_text_free(text);
    if (s != STATUS_OK) return s;
    *out = json_loadb(r.body.at, r.body.size, JSON_ALLOW_NUL, NULL);
    reply_fini(&r);
    return *out != NULL ? STATUS_OK : error_retry(e, REASON_NO_MEMORY, RETRY_MS, "no memory to read an answer");
}
