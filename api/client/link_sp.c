/* A connection of our own SP engine: non-blocking from the first packet on. */
#include "api/client/engine.h"
#include "service/base/mem.h"
#include "service/base/net.h"

#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

enum {
    READ_BUDGET = 8 << 20,       /* bytes of one run, so that other links have their turn */
    WRITE_AT_ONCE = 256 << 10    /* queued */
};

struct link_sp {
    struct link link;
    int fd;                      /* while connecting; then the connection's */
    bool connecting;             /* the kernel has not said yet */
    struct addrinfo *found, *next;   /* of the host while connecting; what is tried when this address fails */
    bool told;                   /* engine_link_up was called */
    bool ipc;
    bool running;                /* inside the connection's code: it must not be freed */
    bool closed_inside;
    struct sp_conn *conn;        /* NULL: connecting or closed */
    uint64_t progress;
    struct error failed;         /* of open, told by the next run; status OK: none */
};

static struct link_sp *sp(struct link *l) { return CONTAINER_OF(l, struct link_sp, link); }

static enum placement on_place(void *ctx, const struct incoming *in, void **at)
{
    struct link_sp *s = ctx;

    return s->closed_inside ? PLACE_DROP : engine_place(&s->link, in, at);
}

static void on_frame(void *ctx, const struct incoming *in)
{
    struct link_sp *s = ctx;

    if (!s->closed_inside) engine_answer(&s->link, in);
}

static const struct sp_handler handler = {on_place, on_frame};

/* ---- connecting -------------------------------------------------------------------------------------------------- */

static enum status system_failed(const char *what, int number, struct error *e)
{
    return error_set(e, REASON_UNREACHABLE, "%s: %s", what, strerror(number));
}

static enum status start_connect(struct link_sp *s, const struct sockaddr *to, socklen_t size, struct error *e)
{
    int one = 1;

    s->fd = socket(to->sa_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (s->fd < 0) return system_failed("no socket", errno, e);
    if (to->sa_family != AF_UNIX) setsockopt(s->fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    if (connect(s->fd, to, size) != 0 && errno != EINPROGRESS && errno != EAGAIN) {
        enum status st = system_failed("connect", errno, e);
        close(s->fd);
        s->fd = -1;
        return st;
    }
    s->connecting = true;
    return STATUS_OK;
}

static enum status connect_path(struct link_sp *s, const struct address *a, struct error *e)
{
    struct sockaddr_un to = {.sun_family = AF_UNIX};

    memcpy(to.sun_path, a->path, strlen(a->path) + 1);
    return start_connect(s, (const struct sockaddr *)&to, sizeof to, e);
}

/* From s->next on, the first address that can be tried. */
static enum status connect_next(struct link_sp *s, struct error *e)
{
    enum status st = STATUS_UNAVAILABLE;

    while (s->next != NULL && st != STATUS_OK) {
        const struct addrinfo *to = s->next;
        s->next = to->ai_next;
        st = start_connect(s, to->ai_addr, to->ai_addrlen, e);
    }
    return st;
}

static void forget_addresses(struct link_sp *s)
{
    if (s->found != NULL) freeaddrinfo(s->found);
    s->found = s->next = NULL;
}

/* A host that is a name is looked up here, which may wait for a name server; numbers do not. Its addresses are tried one
 * after the other: a daemon on 127.0.0.1 is found as localhost also where that is ::1 first. */
static enum status connect_host(struct link_sp *s, const struct address *a, struct error *e)
{
    int code = net_resolve(a->host, a->port, 0, &s->found);

    if (code != 0) {
        s->found = NULL;
        return error_set(e, REASON_UNREACHABLE, "host %.100s: %s", a->host, gai_strerror(code));
    }
    s->next = s->found;
    return connect_next(s, e);
}

static void sp_open(struct link *l, const struct address *to)
{
    struct link_sp *s = sp(l);

    s->told = false;
    s->ipc = to->is_path;
    s->progress = 0;
    s->failed.status = STATUS_OK;
    if (to->is_path) (void)connect_path(s, to, &s->failed);
    else (void)connect_host(s, to, &s->failed);
}

static enum status connected(struct link_sp *s, struct error *e)
{
    int code = 0;
    socklen_t size = sizeof code;
    struct pollfd p = {.fd = s->fd, .events = POLLOUT};

    if (poll(&p, 1, 0) <= 0) return STATUS_OK;
    getsockopt(s->fd, SOL_SOCKET, SO_ERROR, &code, &size);
    s->connecting = code != 0;
    if (code != 0) {
        (void)system_failed("connect", code, e);
        if (s->next == NULL) return e->status;
        close(s->fd);
        s->fd = -1;
        s->connecting = false;
        return connect_next(s, e);
    }
    forget_addresses(s);
    int fd = s->fd;
    s->fd = -1; /* the connection's now, also when it cannot be made */
    return sp_new(fd, SP_REQ, s->ipc, FRAME_SIZE_MAX, &handler, s, &s->conn, e);
}

/* ---- as a link --------------------------------------------------------------------------------------------------- */

/* A large frame is on its way while the next one is still made. What goes wrong here goes wrong again in the next run,
 * which is where it is told. */
static void sp_link_send(struct link *l, struct outgoing *o)
{
    struct error e;

    sp_send(sp(l)->conn, o);
    if (sp_queued(sp(l)->conn) >= WRITE_AT_ONCE) (void)!sp_write(sp(l)->conn, &e);
}

static void sp_close(struct link *l)
{
    struct link_sp *s = sp(l);

    s->connecting = false;
    s->failed.status = STATUS_OK;
    forget_addresses(s);
    if (s->fd >= 0) close(s->fd);
    s->fd = -1;
    if (s->running) {
        s->closed_inside = true;
        return;
    }
    struct sp_conn *c = s->conn;
    s->conn = NULL;
    sp_free(c);
}

static bool sp_link_detach(struct link *l, const void *owner)
{
    struct error e;

    return sp(l)->conn == NULL || sp_detach(sp(l)->conn, owner, &e) == STATUS_OK;
}

static void sp_link_discard(struct link *l)
{
    if (sp(l)->conn != NULL) sp_discard(sp(l)->conn);
}

static unsigned sp_watch(struct link *l, struct pollfd fds[LINK_FDS_MAX])
{
    struct link_sp *s = sp(l);

    if (s->connecting) {
        fds[0] = (struct pollfd){.fd = s->fd, .events = POLLOUT};
        return 1;
    }
    if (s->conn == NULL) return 0;
    fds[0] = (struct pollfd){.fd = sp_fd(s->conn), .events = POLLIN};
    if (sp_wants_write(s->conn)) fds[0].events |= POLLOUT;
    return 1;
}

static enum status transfer(struct link_sp *s, bool readable, struct error *e)
{
    enum status st = STATUS_OK;

    s->running = true; /* the engine may close the link from inside */
    if (readable || !s->told) st = sp_read(s->conn, READ_BUDGET, e);
    if (st == STATUS_OK && !s->closed_inside && !s->told && sp_greeted(s->conn)) {
        s->told = true;
        engine_link_up(&s->link);
    }
    if (st == STATUS_OK && !s->closed_inside && sp_wants_write(s->conn)) st = sp_write(s->conn, e);
    s->running = false;
    return st;
}

static void note_progress(struct link_sp *s)
{
    uint64_t progress = sp_progress(s->conn);

    if (progress != s->progress) engine_progress(&s->link);
    s->progress = progress;
}

static uint64_t sp_run(struct link *l, uint64_t now_ms, bool readable)
{
    struct link_sp *s = sp(l);
    struct error e = s->failed;
    enum status st = e.status;

    (void)now_ms;
    if (st == STATUS_OK && s->connecting) st = connected(s, &e);
    if (st == STATUS_OK && s->conn != NULL) {
        st = transfer(s, readable, &e);
        if (!s->closed_inside) note_progress(s);
    }
    if (s->closed_inside) {
        s->closed_inside = false;
        sp_close(l);
        return 0; /* the engine opens it again when it is time */
    }
    if (st != STATUS_OK) {
        sp_close(l);
        engine_link_down(l, &e);
    }
    return UINT64_MAX;
}

static void sp_link_free(struct link *l)
{
    if (l == NULL) return;
    sp_close(l);
    mem_free(sp(l));
}

static const struct link_ops sp_ops = {
    .open = sp_open, .send = sp_link_send, .close = sp_close, .detach = sp_link_detach, .discard = sp_link_discard,
    .watch = sp_watch, .run = sp_run, .free = sp_link_free,
};

enum status link_sp_new(struct link **out, struct error *e)
{
    struct link_sp *s = mem_zero(sizeof *s);

    if (s == NULL) return error_set(e, REASON_NO_MEMORY, "no memory for a connection");
    s->link.ops = &sp_ops;
    s->fd = -1;
    *out = &s->link;
    return STATUS_OK;
}
