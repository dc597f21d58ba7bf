/* Our own engine: api/sp.h on sockets in the core's loop.
 *
 * Reading a connection leads into the server, and the server answers, detaches and discards on any connection from
 * there. None of these calls writes or ends a connection: it puts that off to the loop's tasks, so no connection goes
 * away, and no frame is done, under the server's feet. */
#include "service/transport_origin.h"

#include "service/base/log.h"
#include "service/base/mem.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <linux/sockios.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <unistd.h>

enum {
    READ_TURN = 2 << 20,         /* of one connection, then others have their turn */
    ACCEPT_TURN = 64,
    SCAN_MS = 500,               /* how exactly deadlines are kept */
    TRIM_MS = 10000,
    KEEPALIVE_S = 30,            /* a silent peer is asked after so long, then twice more every third of it */
    BACKLOG = 1024
};

struct listener {
    struct watch watch;
    struct door *door;
};

struct door {
    struct transport base;
    struct address address;
    struct listener listeners[NET_SOCKETS_MAX];  /* one for each address of the host */
    unsigned listener_count;
    bool listening;
    bool draining;
    int reserve;                 /* a descriptor given up for refusing a connection when there are no others; or -1 */
    struct list conns;
    unsigned count;              /* of them */
    struct origins origins;
    uint64_t scan_ms;
    uint64_t trim_ms;
};

struct conn {
    struct list_node node;
    struct watch watch;
    struct loop_task task;       /* flush */
    struct door *door;
    struct sp_conn *sp;          /* NULL while the connection ends */
    struct peer *peer;
    struct origin *origin;
    bool paused;                 /* its queue is full; nothing is read until it is half empty */
    bool held;                   /* by the server: a frame of it is not done */
    bool resting;                /* the turn's work was spent: it goes on in the next one */
    unsigned malformed;          /* frames in a row that were none */
    bool spoken;                 /* a frame has come */
    bool hung_up;                /* it ends when the answers so far are written */
    uint64_t began_ms;
    struct motion in, out;
    struct { uint64_t bytes, since_ms; } taken;  /* while draining: delivered, and since when no more */
    char address[TEXT_ADDRESS_SIZE];
};

static struct door *door_of(struct transport *t) { return CONTAINER_OF(t, struct door, base); }

/* ---- the end of a connection ---------------------------------------------------------------------------------- */

static void listen_on(struct door *d, bool on)
{
    if (d->listener_count == 0 || d->listening == on) return;
    for (unsigned i = 0; i < d->listener_count; i++)
        loop_change(d->base.config.loop, &d->listeners[i].watch, on ? EPOLLIN : 0);
    d->listening = on;
}

/* Frames come back (done) while the peer is still there, then the server is told. */
static void conn_free(struct conn *c)
{
    struct sp_conn *sp = c->sp;

    if (sp != NULL) {
        loop_remove(c->door->base.config.loop, &c->watch);
        c->sp = NULL;
        sp_free(sp);
    }
    c->door->base.config.calls->peer_gone(c->peer);
    origin_leave(&c->door->origins, c->origin);
    list_remove(&c->task.node);
    list_remove(&c->node);
    c->door->count--;
    listen_on(c->door, true);
    mem_free(c);
}

/* The first fault at a door is worth a line, as it may tell of a port scanner or a wrong address; a flood is not. */
static void count_fault(struct door *d, const char *address, const struct error *e)
{
    const char *port = d->address.ipc ? strchr(address, ',') : strrchr(address, ':');

    if (e->reason == REASON_LIMIT) /* who runs the daemon can cure it. Without the port, which differs: it is folded */
        log_warn("door", "%s: %.*s is refused: %s", d->base.url, (int)(port != NULL ? (size_t)(port - address) : strlen(address)),
                 address, e->text);
    else log_write(d->base.refused == 0 ? LOG_INFO : LOG_DEBUG, "door", "%s: %s is refused: %s", d->base.url, address,
              e->text);
    transport_count_refused(&d->base, e->reason, 1);
}

static void conn_end(struct conn *c, const struct error *e)
{
    if (e->reason == REASON_UNREACHABLE || e->reason == REASON_NO_MEMORY)
        log_debug("door", "%s ends: %s", c->address, e->text);
    else
        count_fault(c->door, c->address, e);
    conn_free(c);
}

/* ---- reading and writing -------------------------------------------------------------------------------------- */

static bool conn_reads(const struct conn *c)
{
    return !c->paused && !c->held && !c->resting && !c->door->draining;
}

static void conn_watch(struct conn *c)
{
    uint32_t events = conn_reads(c) ? EPOLLIN : 0;

    if (sp_wants_write(c->sp)) events |= EPOLLOUT;
    loop_change(c->door->base.config.loop, &c->watch, events);
}

static void conn_pause(struct conn *c)
{
    if (sp_queued(c->sp) >= SEND_QUEUE_MAX) c->paused = true;
    else if (sp_queued(c->sp) <= SEND_QUEUE_MAX / 2) c->paused = false;
    if (c->resting || (conn_reads(c) && sp_wants_read(c->sp))) loop_later(c->door->base.config.loop, &c->task);
}

static void conn_rest(struct conn *c, bool on)
{
    c->resting = on;
    sp_hold(c->sp, c->held || c->resting);
}

/* One turn of a connection. Answers to all requests of one read go out with one call, after it. */
static void conn_turn(struct conn *c, bool readable)
{
    enum status s = STATUS_OK;
    struct error e;

    list_remove(&c->task.node);
    if (c->resting) {
        conn_rest(c, false);
        readable = true;
    }
    if ((readable || sp_wants_read(c->sp)) && conn_reads(c)) s = sp_read(c->sp, READ_TURN, &e);
    if (s == STATUS_OK && sp_wants_write(c->sp)) s = sp_write(c->sp, &e);
    if (s == STATUS_OK && c->malformed >= MALFORMED_MAX)
        s = error_set(&e, REASON_MALFORMED, "the last %u frames were none", c->malformed);
    if (s == STATUS_OK && c->hung_up) s = error_set(&e, REASON_BAD_TOKEN, "%d wrong tokens", WRONG_TOKENS_MAX);
    if (s != STATUS_OK) {
        conn_end(c, &e);
        return;
    }
    conn_pause(c);
    conn_watch(c);
}

static void conn_ready(struct watch *w, uint32_t events)
{
    struct conn *c = CONTAINER_OF(w, struct conn, watch);
    struct error e;

    /* Nothing that would notice it is done with this connection now: neither reading nor writing. */
    if ((events & (EPOLLHUP | EPOLLERR)) && c->watch.events == 0) {
        (void)error_set(&e, REASON_UNREACHABLE, "the other side closed the connection");
        conn_end(c, &e);
        return;
    }
    conn_turn(c, (events & ~(uint32_t)EPOLLOUT) != 0);
}

static void conn_later(struct loop_task *t) { conn_turn(CONTAINER_OF(t, struct conn, task), false); }

/* ---- between sp.h and the server ------------------------------------------------------------------------------ */

static enum placement conn_place(void *ctx, const struct incoming *in, void **at)
{
    struct conn *c = ctx;
    return c->door->base.config.calls->place(c->peer, in, at);
}

/* Who only sends what is none costs an answer each time; it can have that for a while. */
static void conn_frame(void *ctx, const struct incoming *in)
{
    struct conn *c = ctx;

    c->spoken = true;
    if (in->status == STATUS_OK) c->malformed = 0;
    else if (in->error->reason != REASON_NO_MEMORY && in->error->reason != REASON_IN_FLIGHT) c->malformed++;
    c->door->base.config.calls->frame(c->peer, in);
    if (transport_is_spent(&c->door->base)) conn_rest(c, true);
}

static void conn_answer(void *link, struct outgoing *o)
{
    struct conn *c = link;

    if (c->sp == NULL) {
        o->done(o, false);
        return;
    }
    sp_send(c->sp, o);
    loop_later(c->door->base.config.loop, &c->task);
}

static void conn_detach(void *link, const void *owner)
{
    struct conn *c = link;
    struct error e;

    /* When it fails, the next write says so and ends the connection. */
    if (c->sp != NULL && sp_detach(c->sp, owner, &e) != STATUS_OK)
        loop_later(c->door->base.config.loop, &c->task);
}

static void conn_discard(void *link)
{
    struct conn *c = link;
    if (c->sp != NULL) sp_discard(c->sp);
}

static void conn_hang_up(void *link)
{
    struct conn *c = link;

    c->hung_up = true;
    loop_later(c->door->base.config.loop, &c->task);
}

static void conn_hold(void *link, bool on)
{
    struct conn *c = link;

    c->held = on;
    if (c->sp == NULL) return;
    sp_hold(c->sp, c->held || c->resting);
    loop_later(c->door->base.config.loop, &c->task); /* it goes on reading, or stops being told of what there is to read */
}

static void conn_bound(void *link, size_t frame_max)
{
    struct conn *c = link;
    if (c->sp != NULL) sp_set_soft_max(c->sp, frame_max);
}

static const struct sp_handler conn_handler = {conn_place, conn_frame};
static const struct peer_ops conn_ops = {
    .door = "sp", .answer = conn_answer, .detach = conn_detach, .discard = conn_discard, .hang_up = conn_hang_up,
    .bound = conn_bound, .hold = conn_hold};

/* ---- new connections ------------------------------------------------------------------------------------------ */

static void set_tcp_options(int fd)
{
    const struct { int level, name, value; } options[] = {
        {IPPROTO_TCP, TCP_NODELAY, 1},
        {IPPROTO_TCP, TCP_USER_TIMEOUT, HOST_GONE_MS},
        {SOL_SOCKET, SO_KEEPALIVE, 1},
        {IPPROTO_TCP, TCP_KEEPIDLE, KEEPALIVE_S},
        {IPPROTO_TCP, TCP_KEEPINTVL, KEEPALIVE_S / 3},
        {IPPROTO_TCP, TCP_KEEPCNT, 3},
    };
    for (size_t i = 0; i < sizeof options / sizeof options[0]; i++)
        (void)setsockopt(fd, options[i].level, options[i].name, &options[i].value, sizeof options[i].value);
}

/* Takes fd. */
static enum status conn_new(struct door *d, int fd, const struct sockaddr_storage *from, struct error *e)
{
    struct conn *c = mem_zero(sizeof *c);
    enum status s;

    if (c == NULL) {
        close(fd);
        return error_set(e, REASON_NO_MEMORY, "no memory for a connection");
    }
    c->door = d;
    c->task.run = conn_later;
    c->began_ms = d->base.config.now_ms();
    c->watch = (struct watch){.fd = fd, .ready = conn_ready};
    address_of_peer(fd, from, c->address);
    if (!d->address.ipc) set_tcp_options(fd);
    s = sp_new(fd, SP_REP, d->address.ipc, FRAME_SIZE_MAX, &conn_handler, c, &c->sp, e);
    if (s != STATUS_OK) goto out;
    s = origin_enter(&d->origins, fd, from, &c->origin, e);
    if (s != STATUS_OK) goto out;
    sp_set_account(c->sp, origin_account(c->origin));
    s = d->base.config.calls->peer_new(d->base.config.server, &conn_ops, c, c->address, &c->peer, e);
    if (s != STATUS_OK) goto out;
    s = loop_add(d->base.config.loop, &c->watch, EPOLLIN, e);
    if (s != STATUS_OK) goto out;

    list_append(&d->conns, &c->node);
    d->count++;
    loop_later(d->base.config.loop, &c->task);       /* our greeting */
    c = NULL;
out:
    if (c != NULL) {
        sp_free(c->sp);
        if (c->peer != NULL) d->base.config.calls->peer_gone(c->peer);
        origin_leave(&d->origins, c->origin);
        mem_free(c);
    }
    return s;
}

/* Without a free descriptor a waiting connection can be neither taken nor refused, and the listener would be ready
 * for ever. The reserve is given up for the moment of refusing it; where that fails too, the listener rests. */
static void refuse_without_descriptor(struct door *d, int listener)
{
    if (d->reserve >= 0) close(d->reserve);
    int fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
    if (fd >= 0) close(fd);
    d->reserve = open("/dev/null", O_RDONLY | O_CLOEXEC);
    if (fd < 0 || d->reserve < 0) listen_on(d, false);
}

static void take_connection(struct door *d, int fd, const struct sockaddr_storage *from)
{
    char address[TEXT_ADDRESS_SIZE];
    struct error e;

    if (d->count >= d->base.config.connections_max) {
        (void)error_set(&e, REASON_LIMIT, "%u connections are open, the most for this door; a larger `ulimit -n` allows up to "
                        "%d, then start another daemon", d->count, CONNECTIONS_MAX);
        close(fd);
    } else if (conn_new(d, fd, from, &e) == STATUS_OK) {
        return;
    }
    address_of_peer(-1, from, address);
    count_fault(d, address, &e);
}

static void listener_ready(struct watch *w, uint32_t events)
{
    struct door *d = CONTAINER_OF(w, struct listener, watch)->door;

    (void)events;
    for (int i = 0; i < ACCEPT_TURN && d->listening; i++) {
        struct sockaddr_storage from = {0};
        socklen_t size = sizeof from;
        int fd = accept4(w->fd, (struct sockaddr *)&from, &size, SOCK_NONBLOCK | SOCK_CLOEXEC);
        if (fd >= 0) {
            take_connection(d, fd, &from);
            continue;
        }
        switch (errno) {
        case EINTR: case ECONNABORTED: case EPROTO: case EPERM:
            break;                                   /* of that connection; the next may be good */
        case EMFILE: case ENFILE:
            transport_count_refused(&d->base, REASON_SYSTEM, 1);
            log_debug("door", "%s: no descriptor for a new connection", d->base.url);
            refuse_without_descriptor(d, w->fd);
            break;
        case EAGAIN:
            return;
        default:                                     /* memory; it is tried again with the next tick */
            log_debug("door", "%s: no new connections now: %s", d->base.url, strerror(errno));
            listen_on(d, false);
            return;
        }
    }
}

/* ---- deadlines, drain, end ------------------------------------------------------------------------------------ */

/* Bytes that have left this machine's buffers. Those that the kernel took are no measure: it has room for megabytes, and
 * asks for more only when a third of that is free. */
static uint64_t delivered(const struct conn *c, bool *more)
{
    uint64_t given = sp_progress(c->sp) - sp_received(c->sp);
    int waiting = 0;

    if (ioctl(sp_fd(c->sp), SIOCOUTQ, &waiting) != 0 || waiting < 0) waiting = 0;
    /* On a Unix socket they wait in the peer's own buffer, where a program that is stopped may leave them. */
    *more = sp_wants_write(c->sp) || (waiting > 0 && !c->door->address.ipc);
    return given > (uint64_t)waiting ? given - (uint64_t)waiting : 0;
}

/* Whether c has outstayed a deadline; which one, in *e. */
static bool conn_is_late(struct conn *c, uint64_t now_ms, struct error *e)
{
    bool more;
    uint64_t received = sp_received(c->sp), sent = delivered(c, &more), age_ms = now_ms - c->began_ms;

    if (!sp_greeted(c->sp) && age_ms >= GREETING_MS)
        (void)error_set(e, REASON_DEADLINE, "no SP greeting within %d ms", GREETING_MS);
    else if (!c->spoken && age_ms >= PROGRESS_MS)
        (void)error_set(e, REASON_DEADLINE, "not one frame within %d ms", PROGRESS_MS);
    else if (motion_stands(&c->in, sp_in_frame(c->sp) && !c->paused, received, now_ms))
        (void)error_set(e, REASON_DEADLINE, "less than %d bytes of a frame came within %d ms", PROGRESS_SIZE_MIN,
                        PROGRESS_MS);
    else if (motion_stands(&c->out, more, sent, now_ms))
        (void)error_set(e, REASON_DEADLINE, "less than %d bytes of an answer were read within %d ms", PROGRESS_SIZE_MIN,
                        PROGRESS_MS);
    else
        return false;
    return true;
}

/* Whoever takes nothing of its answers would use up the time that all others have for theirs. */
static bool conn_keeps_drain(struct conn *c, uint64_t now_ms, struct error *e)
{
    bool more;
    uint64_t sent = delivered(c, &more);

    if (sent != c->taken.bytes || sp_queued(c->sp) == 0) {
        c->taken.bytes = sent;
        c->taken.since_ms = now_ms;
    }
    if (!c->door->draining || now_ms - c->taken.since_ms < DRAIN_STILL_MS) return false;
    (void)error_set(e, REASON_DEADLINE, "nothing of an answer was read within %d ms while the daemon stops",
                    DRAIN_STILL_MS);
    return true;
}

static uint64_t door_tick(struct transport *t, uint64_t now_ms)
{
    struct door *d = door_of(t);
    bool trim = now_ms >= d->trim_ms;
    struct error e;

    if (now_ms < d->scan_ms) return d->scan_ms;
    d->scan_ms = now_ms + SCAN_MS;
    if (trim) d->trim_ms = now_ms + TRIM_MS;
    if (d->reserve < 0) d->reserve = open("/dev/null", O_RDONLY | O_CLOEXEC);
    listen_on(d, true);
    LIST_EACH(struct conn, c, node, &d->conns) {
        if (trim) sp_trim(c->sp);
        if (conn_is_late(c, now_ms, &e) || conn_keeps_drain(c, now_ms, &e)) conn_end(c, &e);
    }
    return list_empty(&d->conns) && d->reserve >= 0 ? UINT64_MAX : d->scan_ms;
}

static void listener_close(struct door *d)
{
    if (d->listener_count == 0) return;
    for (unsigned i = 0; i < d->listener_count; i++) {
        loop_remove(d->base.config.loop, &d->listeners[i].watch);
        close(d->listeners[i].watch.fd);
    }
    d->listener_count = 0;
    d->listening = false;
    if (d->address.ipc) unlink(d->address.path);
}

static void door_drain(struct transport *t)
{
    struct door *d = door_of(t);

    listener_close(d);
    d->draining = true;
    LIST_EACH(struct conn, c, node, &d->conns) {
        c->taken.since_ms = d->base.config.now_ms();
        conn_watch(c);
    }
}

static bool door_idle(const struct transport *t)
{
    struct door *d = CONTAINER_OF(t, struct door, base);

    LIST_EACH(struct conn, c, node, &d->conns)
        if (sp_queued(c->sp) > 0) return false;
    return true;
}

static unsigned door_connections(const struct transport *t) { return CONTAINER_OF(t, struct door, base)->count; }
static uint64_t door_refused(const struct transport *t) { return t->refused; }

static void door_close(struct transport *t)
{
    struct door *d = door_of(t);

    listener_close(d);
    for (struct conn *c; (c = LIST_FIRST(struct conn, node, &d->conns)) != NULL;) conn_free(c);
    if (d->reserve >= 0) close(d->reserve);
    origins_fini(&d->origins);
    mem_free(d->base.url);
    mem_free(d);
}

static const struct transport_ops door_ops = {door_tick, door_drain, door_idle, door_connections, door_refused,
                                              door_close};

/* A socket that is taken over is listener_close's. */
static enum status listener_open(struct door *d, int fd, struct error *e)
{
    struct listener *l = &d->listeners[d->listener_count];

    *l = (struct listener){.watch = {.fd = fd, .ready = listener_ready}, .door = d};
    if (listen(fd, BACKLOG) != 0) return error_set(e, REASON_SYSTEM, "cannot listen: %s", strerror(errno));
    enum status s = loop_add(d->base.config.loop, &l->watch, EPOLLIN, e);
    if (s == STATUS_OK) d->listener_count++;
    return s;
}

static enum status door_listen(struct door *d, struct error *e)
{
    struct net_sockets sockets = {.count = 0};
    enum status s = d->address.ipc ? unix_path_clear(d->address.path, e) : STATUS_OK;

    if (s == STATUS_OK) s = address_bind(&d->address, &sockets, e);
    for (unsigned i = 0; i < sockets.count; i++) {
        if (s == STATUS_OK) s = listener_open(d, sockets.fd[i], e);
        if (s != STATUS_OK) close(sockets.fd[i]);
    }
    if (s != STATUS_OK && sockets.count > 0 && d->address.ipc) unlink(d->address.path);
    d->listening = s == STATUS_OK;
    return s;
}

enum status transport_sp_open(const struct transport_config *config, const char *url, struct transport **out,
                              struct error *e)
{
    struct door *d = mem_zero(sizeof *d);
    enum status s;

    if (d == NULL) return error_set(e, REASON_NO_MEMORY, "no memory for a door");
    transport_init(&d->base, &door_ops, config);
    list_init(&d->conns);
    d->reserve = open("/dev/null", O_RDONLY | O_CLOEXEC);
    s = origins_init(&d->origins, d->base.config.address_max, e);
    if (s != STATUS_OK) goto out;
    s = address_parse(url, &d->address, e);
    if (s != STATUS_OK) goto out;
    s = door_listen(d, e);
    if (s != STATUS_OK) goto out;
    d->base.port = d->address.port;
    d->base.url = address_url(&d->address);
    if (d->base.url == NULL) {
        s = error_set(e, REASON_NO_MEMORY, "no memory for a door's address");
        goto out;
    }
    *out = &d->base;
    d = NULL;
out:
    if (d != NULL) door_close(&d->base);
    return s;
}
