/* libnanomsg's door: one raw REP socket.
 *
 * A thread of its own receives and posts each request to the core's mailbox; as many requests as it owns may be on
 * their way, and when all are, it reads no more and libnanomsg's own back-pressure reaches the senders. The core
 * thread answers with nn_sendmsg, which on a raw REP takes the whole answer and never waits.
 *
 * What libnanomsg 1.1 forces:
 * - It drops an answer silently while an earlier one to the same connection is not yet in the kernel. Answers up to
 *   REP_IN_FLIGHT_REPLY_MAX never meet that at IN_FLIGHT_SMALL requests; of larger ones a client has one request in
 *   flight, and the server keeps to one_large_answer.
 * - It does not tell when a peer leaves. A peer is a return path (connection key, then the hops of devices); one that
 *   is silent for PEER_IDLE_MS is ended, and so is the one silent longest when there are too many.
 * - Its WebSocket and PUB code, and an ipc byte that is not 1, abort the process: only TCP REP and, with a socket that
 *   only our own user may connect to, ipc REP are opened.
 * - A chunk handed to nn_sendmsg is the library's only when that succeeds, but a control chunk is gone in any case; so
 *   controls lie on the stack. */
#include "service/transport_common.h"

#include "service/base/log.h"
#include "service/base/map.h"
#include "service/base/mem.h"
#include "service/transport_accept.h"

#include <nanomsg/nn.h>
#include <nanomsg/reqrep.h>
#include <nanomsg/tcp.h>

#include <arpa/inet.h>
#include <assert.h>
#include <errno.h>
#include <netdb.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

enum {
    REQUESTS = 64,               /* received and not yet handled, at most FRAME_SIZE_MAX each */
    ROUTE_SIZE_MAX = 4 + 4 * 16, /* connection key and hops; libnanomsg itself drops what has more than NN_MAXTTL */
    PEER_IDLE_MS = 900000,       /* a person's client may be silent for long; workers send heartbeats */
    SWEEP_MS = 1000,
    FLUSH_MS = 100,              /* libnanomsg tells not when an answer is out; it is given so long before a close */
    PORT_TRIES = 16, URL_SIZE = NI_MAXHOST + 32,
    PAUSE_MS = 100               /* after a failure of nn_recvmsg that should not be */
};

struct door;

struct request {
    struct mail mail;
    struct list_node node;       /* in door.free, or in remote.later */
    struct door *door;
    void *chunk;                 /* libnanomsg's; the frame */
    size_t size;
    uint32_t id;
    size_t route_size;
    uint8_t route[ROUTE_SIZE_MAX];
};

struct door {
    struct transport base;
    struct address address;
    int socket;
    int cap;
    bool bound;                  /* a Unix socket's path is ours to remove */
    bool receiving;              /* the thread runs or is to be joined */
    pthread_t thread;
    int stop_fd;                 /* readable for ever once the thread shall end */

    pthread_mutex_t lock;        /* guards the next three; never held across a call that waits but for the condition */
    pthread_cond_t freed;
    struct list free;
    size_t in_use;
    bool stop;
    struct request requests[REQUESTS];

    struct map *peers;           /* by route */
    struct list by_use;          /* peers, longest silent first */
    uint64_t answered_ms;
    uint64_t sweep_ms;           /* when connections are next looked through */
    struct accept_refusals told; /* of the cap, counted already */
};

struct remote {
    struct list_node node;
    struct loop_task task;       /* ends it, after an answer that could not be sent */
    struct door *door;
    struct peer *peer;
    struct loop_task go_on;      /* serves `later`, when it is held no more */
    bool holds;                  /* what the server last said */
    struct request *held;        /* the server works on it in later turns; NULL: none */
    struct list later;           /* requests that came behind it */
    unsigned waiting;            /* requests without answer yet */
    uint64_t used_ms;
    size_t route_size;
    uint8_t route[ROUTE_SIZE_MAX];
};

static struct door *door_of(struct transport *t) { return CONTAINER_OF(t, struct door, base); }

/* ---- receiving thread ----------------------------------------------------------------------------------------- */

/* Waits for a free request. NULL: the thread shall end. */
static struct request *request_take(struct door *d)
{
    struct request *r = NULL;

    pthread_mutex_lock(&d->lock);
    while (!d->stop && list_empty(&d->free)) pthread_cond_wait(&d->freed, &d->lock);
    if (!d->stop) {
        r = LIST_FIRST(struct request, node, &d->free);
        list_remove(&r->node);
        d->in_use++;
    }
    pthread_mutex_unlock(&d->lock);
    return r;
}

static void request_give(struct request *r)
{
    struct door *d = r->door;

    if (r->chunk != NULL) nn_freemsg(r->chunk);
    r->chunk = NULL;
    pthread_mutex_lock(&d->lock);
    list_append(&d->free, &r->node);
    d->in_use--;
    pthread_cond_signal(&d->freed);
    pthread_mutex_unlock(&d->lock);
}

/* The control holds a size_t, then so many bytes: the connection's key, hops, and the request id. */
static bool request_route(struct request *r, void *control)
{
    struct nn_msghdr h = {.msg_control = &control, .msg_controllen = NN_MSG};
    struct nn_cmsghdr *c = NN_CMSG_FIRSTHDR(&h);
    size_t size;

    while (c != NULL && (c->cmsg_level != PROTO_SP || c->cmsg_type != SP_HDR)) c = NN_CMSG_NXTHDR(&h, c);
    if (c == NULL || c->cmsg_len < NN_CMSG_LEN(sizeof size)) return false;
    memcpy(&size, NN_CMSG_DATA(c), sizeof size);
    if (size < 8 || size > ROUTE_SIZE_MAX + 4 || size > c->cmsg_len - NN_CMSG_LEN(sizeof size)) return false;
    const uint8_t *at = NN_CMSG_DATA(c) + sizeof size;
    r->route_size = size - 4;
    memcpy(r->route, at, r->route_size);
    memcpy(&r->id, at + r->route_size, 4);
    r->id = ntohl(r->id);
    return true;
}

/* Sleeps until the socket has something or the thread shall end. */
static void await(struct door *d, int receive_fd, int timeout_ms)
{
    struct pollfd fds[] = {{.fd = d->stop_fd, .events = POLLIN}, {.fd = receive_fd, .events = POLLIN}};
    (void)poll(fds, receive_fd >= 0 ? 2 : 1, timeout_ms);
}

/* One attempt. False: nothing has come; *why is errno. */
static bool receive(struct door *d, struct request *r, int *why)
{
    void *body = NULL, *control = NULL;
    struct nn_iovec v = {&body, NN_MSG};
    struct nn_msghdr h = {&v, 1, &control, NN_MSG};
    int size = nn_recvmsg(d->socket, &h, NN_DONTWAIT);

    *why = size < 0 ? errno : EINTR;
    if (size < 0) return false;
    bool good = control != NULL && request_route(r, control);
    if (control != NULL) nn_freemsg(control);
    if (!good) {
        nn_freemsg(body);
        return false;
    }
    r->chunk = body;
    r->size = (size_t)size;
    return true;
}

/* Polling beside nn_recvmsg, and not blocking in it, makes the end clean: the thread is gone before nn_close, so it
 * cannot meet another socket under a number that is used again. Nothing that goes wrong here ends the process. */
static bool request_receive(struct door *d, struct request *r, int receive_fd)
{
    for (int why;;) {
        if (receive(d, r, &why)) return true;
        pthread_mutex_lock(&d->lock);
        bool stop = d->stop;
        pthread_mutex_unlock(&d->lock);
        if (stop || why == EBADF || why == ETERM) return false;
        if (why == EAGAIN) await(d, receive_fd, -1);
        else if (why != EINTR) await(d, -1, PAUSE_MS);
    }
}

static void *receiver(void *arg)
{
    struct door *d = arg;
    int fd = -1;
    size_t size = sizeof fd;

    if (nn_getsockopt(d->socket, NN_SOL_SOCKET, NN_RCVFD, &fd, &size) != 0) {
        log_error("door", "%s: receives nothing: %s", d->base.url, nn_strerror(errno));
        return NULL;
    }
    for (struct request *r; (r = request_take(d)) != NULL;) {
        if (!request_receive(d, r, fd)) {
            request_give(r);
            break;
        }
        /* A notice: it cannot be refused, and REQUESTS bounds how many there are. */
        mailbox_notice(d->base.config.mailbox, &r->mail);
    }
    return NULL;
}

static void receiver_stop(struct door *d)
{
    if (!d->receiving) return;
    pthread_mutex_lock(&d->lock);
    d->stop = true;
    pthread_cond_signal(&d->freed);
    pthread_mutex_unlock(&d->lock);
    (void)eventfd_write(d->stop_fd, 1);
    pthread_join(d->thread, NULL);
    d->receiving = false;
}

/* ---- answers -------------------------------------------------------------------------------------------------- */

static void *gather(const struct outgoing *o, size_t size)
{
    uint8_t *chunk = nn_allocmsg(size, 0), *to = chunk;

    if (chunk == NULL) return NULL;
    if (o->head.size > 0) memcpy(to, o->head.at, o->head.size);
    to += o->head.size;
    for (size_t i = 0; i < o->segment_count; i++) {
        if (o->segments[i].size > 0) memcpy(to, o->segments[i].at, o->segments[i].size);
        to += o->segments[i].size;
    }
    return chunk;
}

/* Into a chunk of the library at once: an iovec of ours it would gather into one too, and abort without memory. */
static bool send_frame(struct door *d, const uint8_t *route, size_t route_size, const struct outgoing *o)
{
    _Alignas(struct nn_cmsghdr) uint8_t control[NN_CMSG_SPACE(sizeof(size_t) + ROUTE_SIZE_MAX + 4)] = {0};
    struct nn_cmsghdr *c = (struct nn_cmsghdr *)(void *)control;
    size_t size = o->head.size, path = route_size + 4;
    uint32_t id = htonl(o->id);
    int sent;

    for (size_t i = 0; i < o->segment_count; i++) size += o->segments[i].size;
    void *chunk = gather(o, size);
    if (chunk == NULL) return false;
    c->cmsg_len = NN_CMSG_SPACE(sizeof path + path);
    c->cmsg_level = PROTO_SP;
    c->cmsg_type = SP_HDR;
    uint8_t *at = NN_CMSG_DATA(c);
    memcpy(at, &path, sizeof path);
    memcpy(at + sizeof path, route, route_size);
    memcpy(at + sizeof path + route_size, &id, sizeof id);
    struct nn_iovec v = {&chunk, NN_MSG};
    struct nn_msghdr h = {&v, 1, control, c->cmsg_len};
    do sent = nn_sendmsg(d->socket, &h, NN_DONTWAIT);
    while (sent < 0 && errno == EINTR);
    if (sent < 0) nn_freemsg(chunk);
    d->answered_ms = d->base.config.now_ms();
    return sent >= 0;
}

static void remote_answer(void *link, struct outgoing *o)
{
    struct remote *p = link;
    bool sent = send_frame(p->door, p->route, p->route_size, o);

    assert(p->waiting > 0);
    p->waiting--;
    if (!sent) {
        log_debug("door", "%s: an answer could not be sent: %s", p->door->base.url, nn_strerror(errno));
        loop_later(p->door->base.config.loop, &p->task);
    }
    o->done(o, sent);
}

/* Answers are copied when they are given, and bodies are whole before the server hears of them. */
static void remote_detach(void *link, const void *owner) { (void)link, (void)owner; }
static void remote_discard(void *link) { (void)link; }

/* The request that is being handed over is kept by request_serve. */
static void remote_hold(void *link, bool on)
{
    struct remote *p = link;

    p->holds = on;
    if (!on) loop_later(p->door->base.config.loop, &p->go_on);
}

static const struct peer_ops remote_ops = {.door = "nanomsg", .one_large_answer = true, .answer = remote_answer,
                                           .detach = remote_detach, .discard = remote_discard, .hold = remote_hold};

static void done_nothing(struct outgoing *o, bool sent) { (void)o, (void)sent; }

/* To a sender for whom there is no peer, so the server cannot answer. */
static void refuse(struct request *r, const struct incoming *in, const struct error *e)
{
    struct wire_header h = in->header;
    struct wire_error fixed = {.retry_ms = RETRY_MS};
    struct segment text = {e->text, strlen(e->text), NULL};
    struct outgoing o = {.id = r->id, .segments = &text, .segment_count = 1, .done = done_nothing};
    struct buf encoded = {0};

    h.flags = WIRE_FLAG_ANSWER;
    h.status = (uint16_t)e->status;
    h.reason = (uint16_t)e->reason;
    wire_put_error(&encoded, &fixed);
    if (!encoded.failed && wire_head_write(&o.head, &h, bytes_of(encoded.at, encoded.size), (struct bytes){0},
                                           text.size, NULL, 0))
        (void)send_frame(r->door, r->route, r->route_size, &o);
    buf_fini(&encoded);
    buf_fini(&o.head);
    transport_count_refused(&r->door->base, e->reason, 1);
    log_debug("door", "%s: a request is refused: %s", r->door->base.url, e->text);
}

/* ---- peers ---------------------------------------------------------------------------------------------------- */

static void remote_free(struct remote *p)
{
    struct door *d = p->door;

    d->base.config.calls->peer_gone(p->peer);
    (void)map_remove(d->peers, bytes_of(p->route, p->route_size));
    if (p->held != NULL) request_give(p->held);
    for (struct request *r; (r = LIST_FIRST(struct request, node, &p->later)) != NULL;) {
        list_remove(&r->node);
        request_give(r);
    }
    list_remove(&p->go_on.node);
    list_remove(&p->task.node);
    list_remove(&p->node);
    mem_free(p);
}

static void remote_go_on(struct loop_task *t);
static void remote_later(struct loop_task *t) { remote_free(CONTAINER_OF(t, struct remote, task)); }

/* Makes room for one more: the one silent longest that waits for nothing goes. */
static bool make_room(struct door *d)
{
    if (map_count(d->peers) < d->base.config.connections_max) return true;
    LIST_EACH(struct remote, p, node, &d->by_use) {
        if (p->waiting > 0 || !list_empty(&p->later)) continue;
        remote_free(p);
        return true;
    }
    return false;
}

static enum status remote_new(struct request *r, struct remote **out, struct error *e)
{
    struct door *d = r->door;
    struct remote *p = NULL;
    char address[TEXT_ADDRESS_SIZE];
    uint32_t key;
    enum status s;

    if (!make_room(d))
        return error_retry(e, REASON_LIMIT, RETRY_MS, "%zu clients wait for answers at this door; no more are taken",
                           map_count(d->peers));
    p = mem_zero(sizeof *p);
    if (p == NULL) return error_set(e, REASON_NO_MEMORY, "no memory for a client");
    p->door = d;
    p->task.run = remote_later;
    p->go_on.run = remote_go_on;
    list_init(&p->later);
    p->route_size = r->route_size;
    memcpy(p->route, r->route, r->route_size);
    s = map_put(d->peers, bytes_of(p->route, p->route_size), p, e);
    if (s != STATUS_OK) goto out;
    memcpy(&key, r->route, sizeof key);
    snprintf(address, sizeof address, "nanomsg:%08x%s", ntohl(key), r->route_size > 4 ? " (device)" : "");
    s = d->base.config.calls->peer_new(d->base.config.server, &remote_ops, p, address, &p->peer, e);
    if (s != STATUS_OK) {
        (void)map_remove(d->peers, bytes_of(p->route, p->route_size));
        goto out;
    }
    list_append(&d->by_use, &p->node);
    *out = p;
    p = NULL;
out:
    mem_free(p);
    return s;
}

/* ---- requests, on the core thread ----------------------------------------------------------------------------- */

static void request_parse(const struct request *r, struct incoming *in, struct error *e)
{
    *in = (struct incoming){.id = r->id, .error = e};
    in->status = wire_header_read(bytes_of(r->chunk, r->size), r->size, &in->header, e);
    if (in->status != STATUS_OK) return;
    const uint8_t *at = (const uint8_t *)r->chunk + WIRE_HEADER_SIZE;
    in->fixed = bytes_of(at, in->header.fixed_size);
    in->desc = bytes_of(at + in->header.fixed_size, in->header.desc_size);
}

static void request_serve(struct request *r, struct remote *p, struct incoming *in)
{
    const struct transport_server *calls = r->door->base.config.calls;

    if (in->status == STATUS_OK) {
        uint8_t *body = (uint8_t *)r->chunk + wire_head_size(&in->header);
        void *at = NULL;
        enum placement where = in->header.body_size > 0 ? calls->place(p->peer, in, &at) : PLACE_SCRATCH;
        if (where == PLACE_AT) memcpy(at, body, in->header.body_size);
        in->body = where == PLACE_AT ? at : where == PLACE_SCRATCH ? body : NULL;
    }
    p->waiting++;
    calls->frame(p->peer, in);
    if (p->holds) p->held = r;
    else request_give(r);
}

static void request_begin(struct request *r, struct remote *p)
{
    struct incoming in;
    struct error malformed;

    request_parse(r, &in, &malformed);
    request_serve(r, p, &in);
}

/* What the server has worked on is done; what came behind it has its turn, in order. */
static void remote_go_on(struct loop_task *t)
{
    struct remote *p = CONTAINER_OF(t, struct remote, go_on);

    if (p->held != NULL && !p->holds) {
        request_give(p->held);
        p->held = NULL;
    }
    for (struct request *r; !p->holds && (r = LIST_FIRST(struct request, node, &p->later)) != NULL;) {
        list_remove(&r->node);
        request_begin(r, p);
        if (!transport_is_spent(&p->door->base) || list_empty(&p->later)) continue;
        loop_later(p->door->base.config.loop, t);
        return;
    }
}

static void request_open(struct mail *m)
{
    struct request *r = CONTAINER_OF(m, struct request, mail);
    struct door *d = r->door;
    struct remote *p = map_find(d->peers, bytes_of(r->route, r->route_size));
    struct incoming in;
    struct error malformed, e;

    if (p == NULL && remote_new(r, &p, &e) != STATUS_OK) {
        request_parse(r, &in, &malformed);
        refuse(r, &in, &e);
        request_give(r);
        return;
    }
    p->used_ms = d->base.config.now_ms();
    list_remove(&p->node);
    list_append(&d->by_use, &p->node);
    if (p->holds || p->held != NULL || !list_empty(&p->later)) list_append(&p->later, &r->node);
    else request_begin(r, p);
}

/* ---- deadlines, drain, end ------------------------------------------------------------------------------------ */

/* What the library does not do: it keeps a connection that says nothing, stops half way, or does not read, for ever. */
static void sweep(struct door *d, uint64_t now_ms)
{
    struct accept_refusals now;

    accept_cap_sweep(d->cap, now_ms);
    now = accept_cap_refusals(d->cap);
    transport_count_refused(&d->base, REASON_LIMIT, now.limit - d->told.limit);
    transport_count_refused(&d->base, REASON_DEADLINE, now.deadline - d->told.deadline);
    d->told = now;
}

static uint64_t door_tick(struct transport *t, uint64_t now_ms)
{
    struct door *d = door_of(t);
    uint64_t next = UINT64_MAX;

    if (d->cap >= 0 && now_ms >= d->sweep_ms) {
        sweep(d, now_ms);
        d->sweep_ms = now_ms + SWEEP_MS;
    }
    if (d->cap >= 0 && accept_cap_connections(d->cap) > 0) next = d->sweep_ms;
    LIST_EACH(struct remote, p, node, &d->by_use) {
        uint64_t due = p->used_ms + PEER_IDLE_MS;
        if (due > now_ms) return due < next ? due : next;
        if (p->waiting == 0 && list_empty(&p->later)) remote_free(p);
    }
    return list_empty(&d->by_use) || next < now_ms + WAIT_MAX_MS ? next : now_ms + WAIT_MAX_MS;
}

static void door_drain(struct transport *t) { receiver_stop(door_of(t)); }

static bool door_idle(const struct transport *t)
{
    struct door *d = CONTAINER_OF(t, struct door, base);

    pthread_mutex_lock(&d->lock);
    bool busy = d->in_use > 0;
    pthread_mutex_unlock(&d->lock);
    return !busy && d->base.config.now_ms() >= d->answered_ms + FLUSH_MS;
}

/* Where connections are not counted one by one, clients that were heard of lately stand for them. */
static unsigned door_connections(const struct transport *t)
{
    struct door *d = CONTAINER_OF(t, struct door, base);
    return d->cap >= 0 ? accept_cap_connections(d->cap) : (unsigned)map_count(d->peers);
}

static uint64_t door_refused(const struct transport *t)
{
    const struct door *d = CONTAINER_OF(t, struct door, base);
    struct accept_refusals now = accept_cap_refusals(d->cap);

    return t->refused + (now.limit - d->told.limit) + (now.deadline - d->told.deadline);
}

static void door_close(struct transport *t)
{
    struct door *d = door_of(t);

    receiver_stop(d);
    for (size_t i = 0; i < REQUESTS; i++)
        if (mailbox_withdraw(d->base.config.mailbox, &d->requests[i].mail)) request_give(&d->requests[i]);
    for (struct remote *p; (p = LIST_FIRST(struct remote, node, &d->by_use)) != NULL;) remote_free(p);
    /* Until it has let go of the socket's descriptors; a signal may interrupt it. */
    while (d->socket >= 0 && nn_close(d->socket) != 0 && errno == EINTR) continue;
    if (d->bound && d->address.ipc) unlink(d->address.path);
    accept_cap_close(d->cap);
    map_free(d->peers);
    if (d->stop_fd >= 0) close(d->stop_fd);
    pthread_cond_destroy(&d->freed);
    pthread_mutex_destroy(&d->lock);
    mem_free(d->base.url);
    mem_free(d);
}

static const struct transport_ops door_ops = {door_tick, door_drain, door_idle, door_connections, door_refused,
                                              door_close};

/* ---- opening -------------------------------------------------------------------------------------------------- */

static enum status nn_error(struct error *e, const struct address *a, const char *what)
{
    return error_set(e, REASON_SYSTEM, "libnanomsg: %s for %s port %u: %s", what, a->ipc ? a->path : a->host, a->port,
                     nn_strerror(errno));
}

static enum status socket_new(struct door *d, struct error *e)
{
    const int size_max = FRAME_SIZE_MAX + 4096, on = 1, off = 0;

    d->socket = nn_socket(AF_SP_RAW, NN_REP);
    if (d->socket < 0) return nn_error(e, &d->address, "no socket");
    if (nn_setsockopt(d->socket, NN_SOL_SOCKET, NN_RCVMAXSIZE, &size_max, sizeof size_max) != 0 ||
        nn_setsockopt(d->socket, NN_SOL_SOCKET, NN_IPV4ONLY, &off, sizeof off) != 0 ||
        nn_setsockopt(d->socket, NN_TCP, NN_TCP_NODELAY, &on, sizeof on) != 0)
        return nn_error(e, &d->address, "no options");
    return STATUS_OK;
}

/* The numeric address of a bound socket as libnanomsg reads it. */
static enum status numeric_url(int fd, char url[URL_SIZE], struct error *e)
{
    struct sockaddr_storage at;
    socklen_t size = sizeof at;
    char host[NI_MAXHOST] = "", port[8] = "";

    if (getsockname(fd, (struct sockaddr *)&at, &size) != 0 ||
        getnameinfo((const struct sockaddr *)&at, size, host, sizeof host, port, sizeof port,
                    NI_NUMERICHOST | NI_NUMERICSERV) != 0)
        return error_set(e, REASON_SYSTEM, "a socket has no numeric address");
    snprintf(url, URL_SIZE, at.ss_family == AF_INET6 ? "tcp://[%.*s]:%s" : "tcp://%.*s:%s", NI_MAXHOST - 1, host, port);
    return STATUS_OK;
}

/* Own sockets at the addresses first: libnanomsg resolves no names, does not tell the port it was given for 0, and
 * explains little. */
static enum status probe(struct address *a, char urls[NET_SOCKETS_MAX][URL_SIZE], unsigned *count, struct error *e)
{
    struct net_sockets sockets;
    enum status s = address_bind(a, &sockets, e);

    if (s != STATUS_OK) return s;
    *count = sockets.count;
    for (unsigned i = 0; i < sockets.count && s == STATUS_OK; i++) s = numeric_url(sockets.fd[i], urls[i], e);
    net_close(&sockets);
    return s;
}

/* All of them or none; false with libnanomsg's error. */
static bool bind_each(int socket, char urls[NET_SOCKETS_MAX][URL_SIZE], unsigned count)
{
    int endpoints[NET_SOCKETS_MAX];

    for (unsigned n = 0; n < count; n++) {
        endpoints[n] = nn_bind(socket, urls[n]);
        if (endpoints[n] >= 0) continue;
        int why = errno;
        while (n > 0) (void)nn_shutdown(socket, endpoints[--n]);
        errno = why;
        return false;
    }
    return true;
}

static enum status bind_tcp(struct door *d, struct error *e)
{
    char urls[NET_SOCKETS_MAX][URL_SIZE];
    const unsigned wanted = d->address.port;
    unsigned count = 0;

    for (int i = 0; i < PORT_TRIES; i++) {
        d->address.port = wanted;
        enum status s = probe(&d->address, urls, &count, e);
        if (s != STATUS_OK) return s;
        if (bind_each(d->socket, urls, count)) return STATUS_OK;
        /* Somebody took the free port in between: then another. */
        if (wanted != 0 || errno != EADDRINUSE) break;
    }
    return nn_error(e, &d->address, "cannot listen");
}

/* Whoever may connect can abort the process with one byte, so only our own user may. */
static enum status bind_ipc(struct door *d, struct error *e)
{
    char url[sizeof d->address.path + 8];
    enum status s = unix_path_clear(d->address.path, e);

    if (s != STATUS_OK) return s;
    snprintf(url, sizeof url, "ipc://%s", d->address.path);
    if (nn_bind(d->socket, url) < 0) return nn_error(e, &d->address, "cannot listen");
    d->bound = true;
    if (chmod(d->address.path, 0600) != 0)
        return error_set(e, REASON_SYSTEM, "%s cannot be kept from other users: %s", d->address.path, strerror(errno));
    return STATUS_OK;
}

/* Where address space is limited, as many as can all have begun a message in half of it: when memory runs out,
 * libnanomsg aborts. */
static unsigned within_space(unsigned wanted)
{
    struct rlimit space;

    if (getrlimit(RLIMIT_AS, &space) != 0 || space.rlim_cur == RLIM_INFINITY) return wanted;
    uint64_t most = space.rlim_cur / 2 / FRAME_SIZE_MAX;
    return most == 0 ? 1 : most < wanted ? (unsigned)most : wanted;
}

/* Signals are the main thread's: none may end up in the receiver or in libnanomsg's thread, which starts here. */
static enum status door_start(struct door *d, struct error *e)
{
    sigset_t all, before;
    enum status s;

    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    s = socket_new(d, e);
    if (s == STATUS_OK) s = d->address.ipc ? bind_ipc(d, e) : bind_tcp(d, e);
    if (s == STATUS_OK) {
        s = accept_cap_open(&d->address, d->base.config.connections_max, d->base.config.address_max, &d->cap, e);
        d->base.port = d->address.port;
        d->base.url = address_url(&d->address);
        if (d->base.url == NULL) s = error_set(e, REASON_NO_MEMORY, "no memory for a door's address");
    }
    if (s == STATUS_OK) {
        int failed = pthread_create(&d->thread, NULL, receiver, d);
        d->receiving = failed == 0;
        if (failed != 0) s = error_set(e, REASON_SYSTEM, "no thread to receive: %s", strerror(failed));
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return s;
}

static struct door *door_new(const struct transport_config *config, struct error *e)
{
    struct door *d = mem_zero(sizeof *d);
    uint8_t seed[16];

    if (d == NULL || getrandom(seed, sizeof seed, 0) != sizeof seed) goto failed;
    d->peers = map_new(seed);
    if (d->peers == NULL) goto failed;
    transport_init(&d->base, &door_ops, config);
    d->base.config.connections_max = within_space(d->base.config.connections_max);
    d->socket = d->cap = d->stop_fd = -1;
    pthread_mutex_init(&d->lock, NULL);
    pthread_cond_init(&d->freed, NULL);
    list_init(&d->free);
    list_init(&d->by_use);
    for (size_t i = 0; i < REQUESTS; i++) {
        d->requests[i].door = d;
        d->requests[i].mail.open = request_open;
        list_append(&d->free, &d->requests[i].node);
    }
    return d;
failed:
    (void)error_set(e, REASON_NO_MEMORY, "no memory for a door");
    mem_free(d);
    return NULL;
}

enum status transport_nanomsg_open(const struct transport_config *config, const char *url, struct transport **out,
                                   struct error *e)
{
    struct door *d;
    enum status s;

    if (strncmp(url, "ws://", 5) == 0)
        return error_set(e, REASON_BAD_ARGUMENT, "ws:// is not offered: any peer can make libnanomsg's WebSocket code "
                         "abort the daemon; use tcp:// or ipc://");
    if (strncmp(url, "inproc://", 9) == 0)
        return error_set(e, REASON_BAD_ARGUMENT, "inproc:// reaches nobody outside the daemon; use tcp:// or ipc://, "
                         "or an embedded store");
    d = door_new(config, e);
    if (d == NULL) return e != NULL ? e->status : STATUS_RESOURCE_EXHAUSTED;
    s = address_parse(url, &d->address, e);
    if (s != STATUS_OK) goto out;
    d->stop_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (d->stop_fd < 0) {
        s = error_set(e, REASON_SYSTEM, "no event descriptor: %s", strerror(errno));
        goto out;
    }
    s = door_start(d, e);
    if (s != STATUS_OK) goto out;
    *out = &d->base;
    d = NULL;
out:
    if (d != NULL) door_close(&d->base);
    return s;
}
