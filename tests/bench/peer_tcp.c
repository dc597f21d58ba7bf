/* Raw TCP, two peers with one server: a thread a connection, which receives a value into memory and answers eight bytes,
 * or sends it back. No server that keeps what it is sent can be faster on this transport. The other peer has it add what
 * comes to what is there, as it comes: no store that sums can be faster, and it knows no keys, versions or repeats. */
#include "tests/bench/peer.h"

#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

enum { READ_SIZE = 64 << 10 };

/* ---- loopback sockets ------------------------------------------------------------------------------------------- */

void tcp_set_up(int fd)
{
    int on = 1;

    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
}

static struct sockaddr_in loopback(unsigned port)
{
    return (struct sockaddr_in){.sin_family = AF_INET, .sin_port = htons((uint16_t)port),
                                .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
}

int tcp_listen(unsigned *port)
{
    struct sockaddr_in a = loopback(0);
    socklen_t size = sizeof a;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    if (fd < 0 || bind(fd, (struct sockaddr *)&a, size) != 0 || listen(fd, 64) != 0 ||
        getsockname(fd, (struct sockaddr *)&a, &size) != 0)
        bench_fail("no port of the loopback to listen at");
    *port = ntohs(a.sin_port);
    return fd;
}

int tcp_connect(unsigned port)
{
    struct sockaddr_in a = loopback(port);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    if (fd < 0 || connect(fd, (struct sockaddr *)&a, sizeof a) != 0) bench_fail("port %u does not answer", port);
    tcp_set_up(fd);
    return fd;
}

bool tcp_read(int fd, void *to, size_t size)
{
    char *at = to;

    while (size > 0) {
        ssize_t n = recv(fd, at, size < READ_SIZE ? size : READ_SIZE, 0);
        if (n <= 0) return false;
        at += n;
        size -= (size_t)n;
    }
    return true;
}

bool tcp_write(int fd, const void *head, size_t head_size, const void *body, size_t body_size)
{
    struct iovec v[2] = {{(void *)(uintptr_t)head, head_size}, {(void *)(uintptr_t)body, body_size}};

    while (v[0].iov_len + v[1].iov_len > 0) {
        struct msghdr m = {.msg_iov = v, .msg_iovlen = 2};
        ssize_t n = sendmsg(fd, &m, MSG_NOSIGNAL);
        if (n <= 0) return false;
        for (int i = 0; i < 2; i++) {
            size_t k = (size_t)n < v[i].iov_len ? (size_t)n : v[i].iov_len;
            v[i].iov_base = (char *)v[i].iov_base + k;
            v[i].iov_len -= k;
            n -= (ssize_t)k;
        }
    }
    return true;
}

/* ---- server ----------------------------------------------------------------------------------------------------- */

struct head {
    uint16_t work, add;
    uint32_t size;               /* bytes that come after it, or are wanted */
    uint64_t offset;             /* in the value memory of the connection */
};

struct acknowledgement {
    uint64_t size;
};

/* Piece by piece, while it lies in the cache. */
static bool read_and_add(int fd, float *to, size_t size)
{
    static _Thread_local float piece[READ_SIZE / sizeof(float)];

    while (size > 0) {
        size_t n = size < READ_SIZE ? size : READ_SIZE;
        if (!tcp_read(fd, piece, n)) return false;
        for (size_t i = 0; i < n / sizeof *to; i++) to[i] += piece[i];
        to += n / sizeof *to;
        size -= n;
    }
    return true;
}

static bool serve_request(int fd, const struct head *h, char *at)
{
    struct acknowledgement a = {h->size};

    if (h->work == WORK_PULL) return tcp_write(fd, NULL, 0, at, h->size);
    if (h->add ? !read_and_add(fd, (float *)(void *)at, h->size) : !tcp_read(fd, at, h->size)) return false;
    return tcp_write(fd, &a, sizeof a, NULL, 0);
}

static void *serve_connection(void *arg)
{
    int fd = (int)(intptr_t)arg;
    char *memory = bench_memory(PAYLOAD_MAX);
    struct head h;

    tcp_set_up(fd);
    memset(memory, 0, PAYLOAD_MAX);
    while (tcp_read(fd, &h, sizeof h) && h.offset <= PAYLOAD_MAX && h.size <= PAYLOAD_MAX - h.offset &&
           serve_request(fd, &h, memory + h.offset)) continue;
    close(fd);
    return NULL;
}

static void serve(int listener, void *(*serve_fd)(void *fd))
{
    for (;;) {
        pthread_t t;
        int fd = accept(listener, NULL, NULL);
        if (fd < 0) continue;
        if (pthread_create(&t, NULL, serve_fd, (void *)(intptr_t)fd) != 0) bench_fail("no thread");
        pthread_detach(t);
    }
}

bool tcp_start(void *(*serve_fd)(void *fd), char address[ADDRESS_MAX], pid_t *pid)
{
    unsigned port;
    int listener = tcp_listen(&port);

    *pid = child_fork();
    if (*pid == 0) serve(listener, serve_fd);
    close(listener);
    snprintf(address, ADDRESS_MAX, "%u", port);
    return true;
}

static bool start(char address[ADDRESS_MAX], pid_t *pid) { return tcp_start(serve_connection, address, pid); }

/* ---- client ----------------------------------------------------------------------------------------------------- */

struct tcp_client {
    struct peer_client client;
    int fd;
    uint16_t add;
};

static void open_client(struct peer_client *c)
{
    ((struct tcp_client *)c)->fd = tcp_connect((unsigned)strtoul(c->address, NULL, 10));
}

static void open_adding(struct peer_client *c)
{
    open_client(c);
    ((struct tcp_client *)c)->add = 1;
}

static void begin(struct peer_client *c, enum work w, unsigned op)
{
    int fd = ((struct tcp_client *)c)->fd;
    size_t size = job_op_size(c->job), offset = size * op;
    struct head push = {WORK_PUSH, ((struct tcp_client *)c)->add, (uint32_t)size, offset};
    struct head pull = {WORK_PULL, 0, (uint32_t)size, offset};

    if ((w != WORK_PULL && !tcp_write(fd, &push, sizeof push, (char *)c->grad + offset, size)) ||
        (w != WORK_PUSH && !tcp_write(fd, &pull, sizeof pull, NULL, 0)))
        bench_fail("raw TCP: the server is gone");
}

static void finish(struct peer_client *c, enum work w, unsigned op)
{
    int fd = ((struct tcp_client *)c)->fd;
    size_t size = job_op_size(c->job);
    struct acknowledgement a;

    if ((w != WORK_PULL && (!tcp_read(fd, &a, sizeof a) || a.size != size)) ||
        (w != WORK_PUSH && !tcp_read(fd, (char *)c->out + size * op, size)))
        bench_fail("raw TCP: the server is gone");
}

const struct peer peer_tcp = {
    .name = "raw TCP", .checksum = "off", .pushed = "received", .pulled = "bytes",
    .start = start,
    .client_size = sizeof(struct tcp_client), .open = open_client, .begin = begin, .finish = finish,
};

const struct peer peer_tcp_adds = {
    .name = "TCP adds", .own_memory = true, .sums = true, .checksum = "off", .pushed = "summed", .pulled = "bytes",
    .start = start,
    .client_size = sizeof(struct tcp_client), .open = open_adding, .begin = begin, .finish = finish,
};
