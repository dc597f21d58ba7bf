/* A private store: the server and its device live in the link, and what the engine sends is served on the thread that
 * waits for it. Bytes go from the caller's array to the store's memory, and back, with one copy. */
#include "api/client/engine.h"
#include "gpu/cards.h"
#include "service/base/mem.h"
#include "service/server.h"

#include <stdlib.h>
#include <string.h>

struct link_direct {
    struct link link;
    struct device *device;
    struct server *server;
    struct peer *peer;           /* NULL: closed */
    bool opening;
    bool broken;                 /* an answer could not be kept for lack of memory */
    bool discarded;              /* the memory that the body in hand went to is gone */
    struct list requests;        /* struct outgoing, not served yet */
    struct list answers;         /* not handed over yet */
    size_t unanswered;
    struct buf scratch;
};

static struct link_direct *direct(struct link *l) { return CONTAINER_OF(l, struct link_direct, link); }

static uint64_t body_size(const struct outgoing *o)
{
    uint64_t size = 0;

    for (size_t i = 0; i < o->segment_count; i++) size += o->segments[i].size;
    return size;
}

static void gather(const struct outgoing *o, void *to)
{
    uint8_t *at = to;

    for (size_t i = 0; i < o->segment_count; i++) {
        if (o->segments[i].size > 0) memcpy(at, o->segments[i].at, o->segments[i].size);
        at += o->segments[i].size;
    }
}

static void finish(struct outgoing *o, bool sent)
{
    list_remove(&o->node);
    buf_fini(&o->copies);
    o->done(o, sent);
}

/* ---- what the server calls --------------------------------------------------------------------------------------- */

static void take_answer(void *link, struct outgoing *o)
{
    struct link_direct *d = link;

    o->copies = (struct buf){0};
    list_append(&d->answers, &o->node);
}

/* Room for the whole body is made at once, so that what was copied before does not move. */
static bool copy_aside(struct outgoing *o, const void *owner)
{
    for (size_t i = 0; i < o->segment_count; i++) {
        struct segment *s = &o->segments[i];
        if (s->owner != owner || s->size == 0) continue;
        if (o->copies.at == NULL) {
            if (buf_room(&o->copies, body_size(o)) == NULL) return false;
            buf_clear(&o->copies);
        }
        void *to = buf_room(&o->copies, s->size);
        memcpy(to, s->at, s->size);
        *s = (struct segment){to, s->size, NULL};
    }
    return true;
}

static void detach_answers(void *link, const void *owner)
{
    struct link_direct *d = link;

    LIST_EACH(struct outgoing, o, node, &d->answers)
        if (!copy_aside(o, owner)) d->broken = true;
}

static void discard_request(void *link) { ((struct link_direct *)link)->discarded = true; }

static const struct peer_ops peer_ops = {
    .door = "direct", .answer = take_answer, .detach = detach_answers, .discard = discard_request,
};

/* ---- frames ------------------------------------------------------------------------------------------------------ */

static void read_head(const struct outgoing *o, struct incoming *in, struct error *e)
{
    uint64_t size = o->head.size + body_size(o);

    *in = (struct incoming){.id = o->id, .error = e, .values = o->values, .value_count = o->value_count};
    in->status = wire_header_read(bytes_of(o->head.at, o->head.size), size, &in->header, e);
    if (in->status != STATUS_OK) return;
    in->fixed = bytes_of(o->head.at + WIRE_HEADER_SIZE, in->header.fixed_size);
    in->desc = bytes_of(o->head.at + WIRE_HEADER_SIZE + in->header.fixed_size, in->header.desc_size);
}

/* The body as the receiver shall see it. One run of bytes is lent as it lies: it is only read. */
static void *lend_body(struct link_direct *d, const struct outgoing *o, enum placement p, void *at)
{
    if (p == PLACE_DROP) return NULL;
    if (p == PLACE_SCRATCH && o->segment_count == 1) return (void *)(uintptr_t)o->segments[0].at;
    if (p == PLACE_SCRATCH) {
        buf_clear(&d->scratch);
        d->scratch.failed = false;
        at = buf_room(&d->scratch, body_size(o));
    }
    if (at != NULL) gather(o, at);
    return at;
}

static void serve(struct link_direct *d, struct outgoing *o)
{
    struct incoming in;
    struct error e;
    void *at = NULL;

    list_remove(&o->node);
    read_head(o, &in, &e);
    d->discarded = false;
    if (in.header.body_size > 0) {
        enum placement p = server_place(d->peer, &in, &at);
        in.body = lend_body(d, o, p, at);
        if (d->discarded) in.body = NULL;
    }
    d->unanswered++;
    server_frame(d->peer, &in);
    finish(o, true);
}

static void hand_over(struct link_direct *d, struct outgoing *o)
{
    struct incoming in;
    struct error e;
    void *at = NULL;

    list_remove(&o->node);
    d->unanswered--;
    read_head(o, &in, &e);
    if (in.header.body_size > 0) {
        enum placement p = engine_place(&d->link, &in, &at);
        in.body = lend_body(d, o, p, at);
    }
    engine_answer(&d->link, &in);
    finish(o, true);
}

static bool step(struct link_direct *d)
{
    struct outgoing *o = LIST_FIRST(struct outgoing, node, &d->answers);

    if (o != NULL) {
        hand_over(d, o);
        return true;
    }
    o = d->peer != NULL ? LIST_FIRST(struct outgoing, node, &d->requests) : NULL;
    if (o != NULL) {
        serve(d, o);
        return true;
    }
    if (d->unanswered == 0 || !server_busy(d->server)) return false;
    server_settle(d->server);
    return true;
}

/* ---- as a link --------------------------------------------------------------------------------------------------- */

static void direct_open(struct link *l, const struct address *to)
{
    (void)to;
    direct(l)->opening = true;
}

static void direct_send(struct link *l, struct outgoing *o)
{
    o->copies = (struct buf){0};
    list_append(&direct(l)->requests, &o->node);
}

static void drop_all(struct list *l)
{
    for (struct outgoing *o; (o = LIST_FIRST(struct outgoing, node, l)) != NULL;) finish(o, false);
}

static void direct_close(struct link *l)
{
    struct link_direct *d = direct(l);

    d->opening = d->broken = false;
    d->unanswered = 0;
    if (d->peer != NULL) server_peer_gone(d->peer);
    d->peer = NULL;
    drop_all(&d->requests);
    drop_all(&d->answers);
}

/* Requests are served before anybody can end an operation, so there are none whose bytes would have to be kept. */
static bool direct_detach(struct link *l, const void *owner)
{
    LIST_EACH(struct outgoing, o, node, &direct(l)->requests)
        if (!copy_aside(o, owner)) return false;
    return true;
}

static void direct_discard(struct link *l) { (void)l; }

static unsigned direct_watch(struct link *l, struct pollfd fds[LINK_FDS_MAX])
{
    (void)l;
    (void)fds;
    return 0;
}

static void open_now(struct link_direct *d)
{
    struct error e;

    d->opening = false;
    if (server_peer_new(d->server, &peer_ops, d, "this process", &d->peer, &e) == STATUS_OK) engine_link_up(&d->link);
    else engine_link_down(&d->link, &e);
}

static uint64_t direct_run(struct link *l, uint64_t now_ms, bool readable)
{
    struct link_direct *d = direct(l);
    uint64_t due;
    struct error e;

    (void)readable;
    if (d->opening) open_now(d);
    do {
        while (step(d)) continue;
        server_poll(d->server);
        due = server_tick(d->server, now_ms);
    } while (!list_empty(&d->answers));
    /* Nothing runs and nothing hangs: what is not answered by now never will be. The server had no memory for it. */
    bool lost = d->unanswered > 0 && due == UINT64_MAX && list_empty(&d->requests);
    if (d->broken || lost) {
        error_set(&e, REASON_NO_MEMORY, "no memory for an answer");
        direct_close(l);
        engine_link_down(l, &e);
    }
    return d->unanswered > 0 ? due : UINT64_MAX;
}

static void direct_free(struct link *l)
{
    struct link_direct *d = direct(l);

    if (l == NULL) return;
    direct_close(l);
    server_free(d->server);
    device_free(d->device);
    buf_fini(&d->scratch);
    mem_free(d);
}

static const struct link_ops direct_ops = {
    .open = direct_open, .send = direct_send, .close = direct_close, .detach = direct_detach, .discard = direct_discard,
    .watch = direct_watch, .run = direct_run, .free = direct_free,
};

static enum status no_gpu(const char *why, struct error *e)
{
    return error_set(e, REASON_NO_GPU, "nccl sums on GPUs, and none can be used: %.300s; local, device, dist_sync and "
                     "dist_async give the same values without", why);
}

static enum status open_device(bool needs_gpu, struct device **out, struct error *e)
{
    const char *name = getenv("PARAMD_DEVICE"), *full = getenv("PARAMD_DEVICE_FULL");
    bool to_cpu = full != NULL && strcmp(full, "host") == 0;
    struct cards cards = {.count = 1};
    struct error why;

    if (name == NULL || name[0] == '\0') name = needs_gpu ? "cuda" : "cpu";
    bool is_auto = strcmp(name, "auto") == 0, is_cpu = strcmp(name, "cpu") == 0;
    if (is_cpu && needs_gpu) return no_gpu("PARAMD_DEVICE is cpu", e);
    if (is_cpu) return cpu_device_new(0, out, e);
    if (!is_auto && !cards_parse(name, &cards))
        return error_set(e, REASON_BAD_ARGUMENT, "PARAMD_DEVICE=%.80s: one of auto, cpu, cuda:N and cuda:N,M", name);
    if (full != NULL && full[0] != '\0' && !to_cpu && strcmp(full, "refuse") != 0)
        return error_set(e, REASON_BAD_ARGUMENT, "PARAMD_DEVICE_FULL=%.80s: one of refuse and host", full);
    cards.cpu_when_full = to_cpu && !needs_gpu;
    enum status s = cards_open(&cards, out, &why);
    if (s == STATUS_OK) return s;
    if (needs_gpu) return no_gpu(why.text, e);
    if (is_auto) return cpu_device_new(0, out, e);
    *e = why;
    return s;
}

enum status link_direct_new(const uint8_t seed[16], bool needs_gpu, struct link **out, struct error *e)
{
    struct server_config c = {.embedded = true};
    struct link_direct *d = mem_zero(sizeof *d);

    if (d == NULL) return error_set(e, REASON_NO_MEMORY, "no memory for a store");
    list_init(&d->requests);
    list_init(&d->answers);
    d->link.ops = &direct_ops;
    enum status s = open_device(needs_gpu, &d->device, e);
    if (s == STATUS_OK) {
        c.device = d->device;
        memcpy(c.seed, seed, sizeof c.seed);
        for (size_t i = 0; i < sizeof c.instance.at; i++) c.instance.at[i] = (uint8_t)~seed[i];
        s = server_new(&c, 0, &d->server, e);
    }
    if (s != STATUS_OK) {
        device_free(d->device);
        mem_free(d);
        return s;
    }
    *out = &d->link;
    return STATUS_OK;
}
