/* Redis: SET and GET of one key, MSET and MGET of many, spoken without a library: commands are made once and sent as
 * they are, so the client costs as little as one can. */
#include "tests/bench/peer.h"

#include <fcntl.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { BUFFER_SIZE = 64 << 10, KEY_SIZE = 8, HEAD_MAX = 64, START_TRIES = 500 };

/* ---- server ----------------------------------------------------------------------------------------------------- */

static void become_redis(unsigned port)
{
    char text[16];
    int null = open("/dev/null", O_WRONLY);

    snprintf(text, sizeof text, "%u", port);
    dup2(null, STDOUT_FILENO);
    execlp("redis-server", "redis-server", "--port", text, "--bind", "127.0.0.1", "--save", "", "--appendonly", "no",
           "--proto-max-bulk-len", "1gb", (char *)NULL);
    _exit(1);
}

static bool is_on_path(const char *program)
{
    char line[256];

    snprintf(line, sizeof line, "command -v %s >/dev/null 2>&1", program);
    return system(line) == 0;
}

/* Redis says nothing when it listens: it is asked until it answers. */
static bool answers(unsigned port)
{
    const struct timespec pause = {0, 10000000};

    for (int i = 0; i < START_TRIES; i++) {
        char line[128];
        snprintf(line, sizeof line, "redis-cli -p %u ping 2>/dev/null | grep -q PONG", port);
        if (system(line) == 0) return true;
        nanosleep(&pause, NULL);
    }
    return false;
}

static bool start(char address[ADDRESS_MAX], pid_t *pid)
{
    unsigned port;

    *pid = 0;
    if (!is_on_path("redis-server")) return false;
    close(tcp_listen(&port));
    *pid = child_fork();
    if (*pid == 0) become_redis(port);
    if (!answers(port)) bench_fail("redis-server does not answer at port %u", port);
    snprintf(address, ADDRESS_MAX, "%u", port);
    return true;
}

/* ---- client ----------------------------------------------------------------------------------------------------- */

struct command {
    char *at;
    size_t size;
};

struct redis_client {
    struct peer_client client;
    int fd;
    struct command *push, *pull;         /* one an operation */
    char buffer[BUFFER_SIZE];            /* received and not read */
    size_t begin, end;
};

static void put(struct command *c, const void *from, size_t size)
{
    memcpy(c->at + c->size, from, size);
    c->size += size;
}

static void put_text(struct command *c, const char *format, ...) PRINTF_LIKE(2, 3);
static void put_text(struct command *c, const char *format, ...)
{
    va_list args;

    va_start(args, format);
    c->size += (size_t)vsnprintf(c->at + c->size, HEAD_MAX, format, args);
    va_end(args);
}

static struct command make(const struct peer_client *c, unsigned op, bool push)
{
    const struct job *j = c->job;
    unsigned n = j->keys_per_op;
    struct command out = {.at = bench_memory((HEAD_MAX + (push ? HEAD_MAX + j->size : 0)) * n + HEAD_MAX)};

    put_text(&out, "*%u\r\n$%d\r\n%s\r\n", (push ? 2 * n : n) + 1, n > 1 ? 4 : 3,
             push ? (n > 1 ? "MSET" : "SET") : (n > 1 ? "MGET" : "GET"));
    for (unsigned key = op * n; key < (op + 1) * n; key++) {
        put_text(&out, "$%d\r\nk%0*u\r\n", KEY_SIZE, KEY_SIZE - 1, key);
        if (!push) continue;
        put_text(&out, "$%zu\r\n", j->size);
        put(&out, (char *)c->grad + j->size * key, j->size);
        put(&out, "\r\n", 2);
    }
    return out;
}

static void open_client(struct peer_client *c)
{
    struct redis_client *r = (struct redis_client *)c;
    unsigned ops = job_ops(c->job);

    r->fd = tcp_connect((unsigned)strtoul(c->address, NULL, 10));
    r->push = bench_memory(ops * sizeof *r->push);
    r->pull = bench_memory(ops * sizeof *r->pull);
    for (unsigned op = 0; op < ops; op++) {
        r->push[op] = make(c, op, true);
        r->pull[op] = make(c, op, false);
    }
}

static void send_command(struct redis_client *r, const struct command *c)
{
    if (!tcp_write(r->fd, c->at, c->size, NULL, 0)) bench_fail("Redis: the server is gone");
}

static void begin(struct peer_client *c, enum work w, unsigned op)
{
    struct redis_client *r = (struct redis_client *)c;

    if (w != WORK_PULL) send_command(r, &r->push[op]);
    if (w != WORK_PUSH) send_command(r, &r->pull[op]);
}

static void fill(struct redis_client *r)
{
    ssize_t n = read(r->fd, r->buffer, BUFFER_SIZE);

    if (n <= 0) bench_fail("Redis: the server is gone");
    r->begin = 0;
    r->end = (size_t)n;
}

/* A line without its end, as a text. */
static void read_line(struct redis_client *r, char out[HEAD_MAX])
{
    size_t n = 0;

    for (;;) {
        if (r->begin == r->end) fill(r);
        char byte = r->buffer[r->begin++];
        if (byte == '\n') break;
        if (byte != '\r' && n + 1 < HEAD_MAX) out[n++] = byte;
    }
    out[n] = '\0';
}

/* What lies in the buffer is copied, the rest of a large value is received in its place. */
static void read_bytes(struct redis_client *r, char *to, size_t size)
{
    while (size > 0) {
        size_t n = r->end - r->begin < size ? r->end - r->begin : size;
        memcpy(to, r->buffer + r->begin, n);
        r->begin += n;
        to += n;
        size -= n;
        if (size >= BUFFER_SIZE) {
            if (!tcp_read(r->fd, to, size)) bench_fail("Redis: the server is gone");
            return;
        }
        if (size > 0) fill(r);
    }
}

static void expect(struct redis_client *r, const char *format, ...) PRINTF_LIKE(2, 3);
static void expect(struct redis_client *r, const char *format, ...)
{
    char wanted[HEAD_MAX], line[HEAD_MAX];
    va_list args;

    va_start(args, format);
    vsnprintf(wanted, sizeof wanted, format, args);
    va_end(args);
    read_line(r, line);
    if (strcmp(line, wanted) != 0) bench_fail("Redis answers \"%s\" in place of \"%s\"", line, wanted);
}

static void finish(struct peer_client *c, enum work w, unsigned op)
{
    struct redis_client *r = (struct redis_client *)c;
    unsigned n = c->job->keys_per_op;
    char end[2];

    if (w != WORK_PULL) expect(r, "+OK");
    if (w == WORK_PUSH) return;
    if (n > 1) expect(r, "*%u", n);
    for (unsigned key = op * n; key < (op + 1) * n; key++) {
        expect(r, "$%zu", c->job->size);
        read_bytes(r, (char *)c->out + c->job->size * key, c->job->size);
        read_bytes(r, end, sizeof end);
    }
}

const struct peer peer_redis = {
    .name = "Redis", .checksum = "off", .pushed = "stored", .pulled = "bytes",
    .start = start,
    .client_size = sizeof(struct redis_client), .open = open_client, .begin = begin, .finish = finish,
};
