/* Bare libnanomsg: one thread in a raw REP socket that keeps the messages it is sent, and raw REQ clients. Values
 * travel in messages of 1 MiB. An answer above some KiB may be dropped when another one is on its way, so pulls go one
 * by one. */
#include "tests/bench/peer.h"

#include <arpa/inet.h>
#include <nanomsg/nn.h>
#include <nanomsg/reqrep.h>
#include <nanomsg/tcp.h>
#include <string.h>
#include <unistd.h>

enum { MESSAGE_MAX = 1 << 20, SLOTS_MAX = 16384, PUSHES_UNDER_WAY = 4, LOST_MS = 3000 };

struct head {
    uint32_t work, slot;         /* where a message is kept */
    uint64_t size;
};

static int open_socket(int protocol)
{
    int s = nn_socket(AF_SP_RAW, protocol), size = MESSAGE_MAX + 4096, on = 1;

    if (s < 0 || nn_setsockopt(s, NN_SOL_SOCKET, NN_RCVMAXSIZE, &size, sizeof size) < 0 ||
        nn_setsockopt(s, NN_TCP, NN_TCP_NODELAY, &on, sizeof on) < 0)
        bench_fail("nanomsg: %s", nn_strerror(nn_errno()));
    return s;
}

/* ---- server ----------------------------------------------------------------------------------------------------- */

static void *kept[SLOTS_MAX];

static void answer(int s, void *message, size_t size, void *control)
{
    struct head h;
    struct nn_iovec v[2] = {{&h, sizeof h}, {NULL, 0}};
    struct nn_msghdr m = {v, 2, &control, NN_MSG};

    if (size < sizeof h) bench_fail("nanomsg: a message of %zu bytes", size);
    memcpy(&h, message, sizeof h);
    h.slot %= SLOTS_MAX;
    if (h.work == WORK_PUSH) {
        if (kept[h.slot] != NULL) nn_freemsg(kept[h.slot]);
        kept[h.slot] = message;
    } else {
        nn_freemsg(message);
        v[1] = (struct nn_iovec){(char *)kept[h.slot] + sizeof h, (size_t)h.size};
    }
    if (nn_sendmsg(s, &m, 0) < 0) bench_fail("nanomsg: %s", nn_strerror(nn_errno()));
}

static void serve(const char *url)
{
    int s = open_socket(NN_REP);

    if (nn_bind(s, url) < 0) bench_fail("nanomsg: %s", nn_strerror(nn_errno()));
    for (;;) {
        void *message, *control;
        struct nn_iovec v = {&message, NN_MSG};
        struct nn_msghdr m = {&v, 1, &control, NN_MSG};
        int n = nn_recvmsg(s, &m, 0);
        if (n >= 0) answer(s, message, (size_t)n, control);
    }
}

static bool start(char address[ADDRESS_MAX], pid_t *pid)
{
    unsigned port;

    close(tcp_listen(&port));
    snprintf(address, ADDRESS_MAX, "tcp://127.0.0.1:%u", port);
    *pid = child_fork();
    if (*pid == 0) serve(address);
    return true;
}

/* ---- client ----------------------------------------------------------------------------------------------------- */

struct nanomsg_client {
    struct peer_client client;
    int socket;
    uint32_t next_id;
    unsigned under_way;          /* messages */
};

static void open_client(struct peer_client *c)
{
    struct nanomsg_client *n = (struct nanomsg_client *)c;
    int lost_ms = LOST_MS, retry_ms = 5;

    n->socket = open_socket(NN_REQ);
    nn_setsockopt(n->socket, NN_SOL_SOCKET, NN_RCVTIMEO, &lost_ms, sizeof lost_ms);
    nn_setsockopt(n->socket, NN_SOL_SOCKET, NN_RECONNECT_IVL, &retry_ms, sizeof retry_ms);
    if (nn_connect(n->socket, c->address) < 0) bench_fail("nanomsg: %s", nn_strerror(nn_errno()));
}

static void send_message(struct nanomsg_client *n, enum work w, uint32_t slot, const void *body, size_t size)
{
    struct head h = {w, slot, size};
    uint32_t id = htonl(n->next_id++ | 0x80000000u);
    size_t id_size = sizeof id;
    char control[NN_CMSG_SPACE(sizeof id_size + sizeof id)] = {0};
    struct nn_cmsghdr c = {sizeof control, PROTO_SP, SP_HDR};
    struct nn_iovec v[2] = {{&h, sizeof h}, {(void *)(uintptr_t)body, w == WORK_PULL ? 0 : size}};
    struct nn_msghdr m = {v, 2, control, sizeof control};

    memcpy(control, &c, sizeof c);
    memcpy(control + sizeof c, &id_size, sizeof id_size);
    memcpy(control + sizeof c + sizeof id_size, &id, sizeof id);
    if (nn_sendmsg(n->socket, &m, 0) < 0) bench_fail("nanomsg: %s", nn_strerror(nn_errno()));
    n->under_way++;
}

/* Whatever is under way when none comes for so long will not come. */
static void take_message(struct nanomsg_client *n, void *to, size_t size)
{
    struct head h;
    struct nn_iovec v[2] = {{&h, sizeof h}, {to, size}};
    struct nn_msghdr m = {v, 2, NULL, 0};

    if (nn_recvmsg(n->socket, &m, 0) < 0) {
        n->client.lost += n->under_way;
        n->under_way = 0;
    } else {
        n->under_way--;
    }
}

static void begin_pushes(struct nanomsg_client *n, unsigned op, unsigned messages, size_t op_size)
{
    const char *from = (char *)n->client.grad + op_size * op;

    for (unsigned i = 0; i < messages; i++, from += MESSAGE_MAX) {
        size_t left = op_size - (size_t)i * MESSAGE_MAX;
        if (messages > 1 && n->under_way >= PUSHES_UNDER_WAY) take_message(n, NULL, 0);
        send_message(n, WORK_PUSH, op * messages + i, from, left < MESSAGE_MAX ? left : MESSAGE_MAX);
    }
    while (messages > 1 && n->under_way > 0) take_message(n, NULL, 0);
}

static unsigned messages_of(size_t size) { return (unsigned)((size + MESSAGE_MAX - 1) / MESSAGE_MAX); }

static void begin(struct peer_client *c, enum work w, unsigned op)
{
    size_t size = job_op_size(c->job);

    if (w != WORK_PULL) begin_pushes((struct nanomsg_client *)c, op, messages_of(size), size);
}

static void finish_pulls(struct nanomsg_client *n, unsigned op, unsigned messages, size_t op_size)
{
    char *to = (char *)n->client.out + op_size * op;

    for (unsigned i = 0; i < messages; i++, to += MESSAGE_MAX) {
        size_t left = op_size - (size_t)i * MESSAGE_MAX, size = left < MESSAGE_MAX ? left : MESSAGE_MAX;
        send_message(n, WORK_PULL, op * messages + i, NULL, size);
        take_message(n, to, size);
    }
}

static void finish(struct peer_client *c, enum work w, unsigned op)
{
    struct nanomsg_client *n = (struct nanomsg_client *)c;
    size_t size = job_op_size(c->job);

    if (w != WORK_PULL && n->under_way > 0) take_message(n, NULL, 0);
    if (w != WORK_PUSH) finish_pulls(n, op, messages_of(size), size);
}

const struct peer peer_nanomsg = {
    .name = "nanomsg", .frame_max = MESSAGE_MAX, .checksum = "off", .pushed = "received", .pulled = "bytes",
    .start = start,
    .client_size = sizeof(struct nanomsg_client), .open = open_client, .begin = begin, .finish = finish,
};
