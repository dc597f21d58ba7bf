/* A connection of libnanomsg: one raw REQ socket with one endpoint, and request ids of our own.
 *
 * Raw, because a cooked REQ sends again by itself and breaks on late answers. Its automatic reconnect cannot be trusted
 * (bytes left over from the old connection poison the new one), so a connection that broke is noticed by the socket's
 * counters, and the engine has the whole socket made anew. Nothing here ever calls nn_term: it would end the sockets
 * of everybody in the process. */
#include "api/client/engine.h"
#include "service/base/mem.h"

#include <endian.h>
#include <errno.h>
#include <nanomsg/nn.h>
#include <nanomsg/reqrep.h>
#include <nanomsg/tcp.h>
#include <string.h>

enum {
    LOOK_MS = 100,               /* how often the counters are looked at while an answer is awaited */
    FRAMES_A_RUN = 64
};

struct link_nn {
    struct link link;
    int socket;                  /* -1: closed */
    bool told;                   /* engine_link_up was called */
    uint64_t unanswered;         /* requests */
    uint64_t broken;             /* connections, as of the time it came up */
    struct list queue;           /* struct outgoing, not taken by the library yet */
    struct error failed;
};

static struct link_nn *nn(struct link *l) { return CONTAINER_OF(l, struct link_nn, link); }

static int pollable(const struct link_nn *n, int option)
{
    int fd = -1;
    size_t size = sizeof fd;

    return nn_getsockopt(n->socket, NN_SOL_SOCKET, option, &fd, &size) == 0 ? fd : -1;
}

static bool is_ready(int fd)
{
    struct pollfd p = {.fd = fd, .events = POLLIN};

    return fd >= 0 && poll(&p, 1, 0) == 1;
}

static enum status failed(const char *what, struct error *e)
{
    return error_set(e, REASON_UNREACHABLE, "%s: %s", what, nn_strerror(nn_errno()));
}

/* ---- opening ----------------------------------------------------------------------------------------------------- */

static enum status set_up(struct link_nn *n, const struct address *to, struct error *e)
{
    int receive = FRAME_SIZE_MAX + 4096, one = 1;
    char url[ADDRESS_TEXT_MAX];

    /* NN_IPV4ONLY off aborts the process inside libnanomsg 1.1.5 at the first connect. */
    if (strchr(to->host, ':') != NULL)
        return error_set(e, REASON_UNREACHABLE, "libnanomsg does not reach IPv6 addresses: use \"engine\": \"own\"");
    n->socket = nn_socket(AF_SP_RAW, NN_REQ);
    if (n->socket < 0) return failed("nn_socket", e);
    address_text(to, url);
    if (nn_setsockopt(n->socket, NN_SOL_SOCKET, NN_RCVMAXSIZE, &receive, sizeof receive) != 0 ||
        nn_setsockopt(n->socket, NN_TCP, NN_TCP_NODELAY, &one, sizeof one) != 0)
        return failed("nn_setsockopt", e);
    return nn_connect(n->socket, url) >= 0 ? STATUS_OK : failed("nn_connect", e);
}

static void nn_link_open(struct link *l, const struct address *to)
{
    struct link_nn *n = nn(l);

    n->told = false;
    n->unanswered = 0;
    n->failed.status = STATUS_OK;
    (void)set_up(n, to, &n->failed);
}

static void nn_link_close(struct link *l)
{
    struct link_nn *n = nn(l);

    if (n->socket >= 0) nn_close(n->socket);
    n->socket = -1;
    n->failed.status = STATUS_OK;
    for (struct outgoing *o; (o = LIST_FIRST(struct outgoing, node, &n->queue)) != NULL;) {
        list_remove(&o->node);
        o->done(o, false);
    }
}

/* ---- sending ----------------------------------------------------------------------------------------------------- */

static void nn_link_send(struct link *l, struct outgoing *o) { list_append(&nn(l)->queue, &o->node); }

/* One chunk of the library, which takes it over. */
static void *gather(const struct outgoing *o, size_t *size)
{
    *size = o->head.size;
    for (size_t i = 0; i < o->segment_count; i++) *size += o->segments[i].size;
    uint8_t *chunk = nn_allocmsg(*size, 0), *at = chunk;
    if (chunk == NULL) return NULL;
    memcpy(at, o->head.at, o->head.size);
    at += o->head.size;
    for (size_t i = 0; i < o->segment_count; i++) {
        if (o->segments[i].size > 0) memcpy(at, o->segments[i].at, o->segments[i].size);
        at += o->segments[i].size;
    }
    return chunk;
}

/* Sends one frame. The control part lies on the stack: the library frees a chunk of its own even when it fails. */
static int send_one(struct link_nn *n, const struct outgoing *o)
{
    union {
        struct nn_cmsghdr header;
        uint8_t bytes[NN_CMSG_SPACE(sizeof(size_t) + sizeof(uint32_t))];
    } control = {.bytes = {0}};
    size_t id_size = sizeof(uint32_t), size;
    uint32_t id = htobe32(o->id);
    void *chunk = gather(o, &size);

    if (chunk == NULL) {
        errno = ENOMEM;
        return -1;
    }
    control.header.cmsg_len = sizeof control.bytes;
    control.header.cmsg_level = PROTO_SP;
    control.header.cmsg_type = SP_HDR;
    memcpy(NN_CMSG_DATA(&control.header), &id_size, sizeof id_size);
    memcpy(NN_CMSG_DATA(&control.header) + sizeof id_size, &id, sizeof id);
    struct nn_iovec body = {&chunk, NN_MSG};
    struct nn_msghdr message = {&body, 1, &control, sizeof control.bytes};
    int sent = nn_sendmsg(n->socket, &message, NN_DONTWAIT);
    if (sent < 0) nn_freemsg(chunk);
    return sent;
}

static enum status flush(struct link_nn *n, struct error *e)
{
    for (struct outgoing *o; (o = LIST_FIRST(struct outgoing, node, &n->queue)) != NULL;) {
        if (!is_ready(pollable(n, NN_SNDFD))) return STATUS_OK;
        if (send_one(n, o) < 0) return nn_errno() == EAGAIN ? STATUS_OK : failed("nn_sendmsg", e);
        list_remove(&o->node);
        n->unanswered++;
        o->done(o, true);
    }
    return STATUS_OK;
}

/* Frames wait here only until the connection takes them. One whose bytes go is dropped with the connection. */
static bool nn_link_detach(struct link *l, const void *owner)
{
    LIST_EACH(struct outgoing, o, node, &nn(l)->queue)
        for (size_t i = 0; i < o->segment_count; i++)
            if (o->segments[i].owner == owner) return false;
    return true;
}

static void nn_link_discard(struct link *l) { (void)l; }

/* ---- receiving --------------------------------------------------------------------------------------------------- */

static bool read_id(struct nn_msghdr *message, uint32_t *id)
{
    struct nn_cmsghdr *c = NN_CMSG_FIRSTHDR(message);
    size_t size;

    if (c == NULL || c->cmsg_level != PROTO_SP || c->cmsg_type != SP_HDR) return false;
    memcpy(&size, NN_CMSG_DATA(c), sizeof size);
    if (size != sizeof *id) return false;
    memcpy(id, NN_CMSG_DATA(c) + sizeof size, sizeof *id);
    *id = be32toh(*id);
    return true;
}

static void hand_over(struct link_nn *n, uint32_t id, uint8_t *bytes, size_t size)
{
    struct error e;
    struct incoming in = {.id = id, .error = &e};
    void *at = NULL;

    in.status = wire_header_read(bytes_of(bytes, size), size, &in.header, &e);
    if (in.status == STATUS_OK) {
        size_t head = wire_head_size(&in.header);
        in.fixed = bytes_of(bytes + WIRE_HEADER_SIZE, in.header.fixed_size);
        in.desc = bytes_of(bytes + WIRE_HEADER_SIZE + in.header.fixed_size, in.header.desc_size);
        enum placement p = in.header.body_size > 0 ? engine_place(&n->link, &in, &at) : PLACE_DROP;
        if (p == PLACE_SCRATCH) in.body = bytes + head;
        if (p == PLACE_AT) in.body = memcpy(at, bytes + head, in.header.body_size);
    }
    engine_answer(&n->link, &in);
}

static enum status receive(struct link_nn *n, struct error *e)
{
    for (unsigned i = 0; i < FRAMES_A_RUN && n->socket >= 0; i++) {
        void *bytes = NULL, *control = NULL;
        struct nn_iovec body = {&bytes, NN_MSG};
        struct nn_msghdr message = {&body, 1, &control, NN_MSG};
        uint32_t id;
        int size = nn_recvmsg(n->socket, &message, NN_DONTWAIT);
        if (size < 0) return nn_errno() == EAGAIN || nn_errno() == EINTR ? STATUS_OK : failed("nn_recvmsg", e);
        bool whole = read_id(&message, &id);
        if (control != NULL) nn_freemsg(control);
        n->unanswered -= n->unanswered > 0;
        if (whole) hand_over(n, id, bytes, (size_t)size);
        nn_freemsg(bytes);
    }
    return STATUS_OK;
}

/* ---- as a link --------------------------------------------------------------------------------------------------- */

static unsigned nn_watch(struct link *l, struct pollfd fds[LINK_FDS_MAX])
{
    struct link_nn *n = nn(l);
    unsigned count = 0;

    if (n->socket < 0) return 0;
    fds[count++] = (struct pollfd){.fd = pollable(n, NN_RCVFD), .events = POLLIN};
    if (!n->told || !list_empty(&n->queue))
        fds[count++] = (struct pollfd){.fd = pollable(n, NN_SNDFD), .events = POLLIN};
    return count;
}

/* The library connects again by itself and says nothing; its counter of broken connections does. */
static enum status look(struct link_nn *n, struct error *e)
{
    uint64_t broken = nn_get_statistic(n->socket, NN_STAT_BROKEN_CONNECTIONS);

    if (!n->told && is_ready(pollable(n, NN_SNDFD))) {
        n->told = true;
        n->broken = broken;
        engine_link_up(&n->link);
    } else if (n->told && broken != n->broken) {
        return error_set(e, REASON_UNREACHABLE, "the connection broke");
    } else if (!n->told && nn_get_statistic(n->socket, NN_STAT_CONNECT_ERRORS) > 0) {
        return error_set(e, REASON_UNREACHABLE, "connect: refused");
    }
    return STATUS_OK;
}

static uint64_t nn_run(struct link *l, uint64_t now_ms, bool readable)
{
    struct link_nn *n = nn(l);
    struct error e = n->failed;
    enum status st = e.status;

    if (n->socket < 0 && st == STATUS_OK) return UINT64_MAX;
    if (st == STATUS_OK) st = look(n, &e);
    if (st == STATUS_OK && n->socket >= 0 && readable) st = receive(n, &e);
    if (st == STATUS_OK && n->socket >= 0) st = flush(n, &e);
    if (st != STATUS_OK) {
        nn_link_close(l);
        engine_link_down(l, &e);
    }
    bool look_again = n->socket >= 0 && (!n->told || n->unanswered > 0 || !list_empty(&n->queue));
    return look_again ? now_ms + LOOK_MS : UINT64_MAX;
}

static void nn_link_free(struct link *l)
{
    if (l == NULL) return;
    nn_link_close(l);
    mem_free(nn(l));
}

static const struct link_ops nn_ops = {
    .open = nn_link_open, .send = nn_link_send, .close = nn_link_close, .detach = nn_link_detach,
    .discard = nn_link_discard, .watch = nn_watch, .run = nn_run, .free = nn_link_free,
};

enum status link_nn_new(struct link **out, struct error *e)
{
    struct link_nn *n = mem_zero(sizeof *n);

    if (n == NULL) return error_set(e, REASON_NO_MEMORY, "no memory for a connection");
    n->link.ops = &nn_ops;
    n->socket = -1;
    list_init(&n->queue);
    *out = &n->link;
    return STATUS_OK;
}
