/* Raw TCP with keys: the least that a store of many values does. A push is a list of (key, size, value), of which the
 * server finds each key in a table and adds the value to the block that the key has; a pull is a list of keys, whose
 * values it collects. There are no types, versions, repeats, faults or readers of half a value to think of, one thread
 * does all for a connection, and values are the connection's own. For rows of many keys an operation. */
#include "tests/bench/peer.h"

#include <arpa/inet.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { WINDOW_SIZE = 64 << 10, SLOTS = 1 << 15, VALUE_MAX = WINDOW_SIZE / 4 };

struct head {
    uint32_t work, count;
};

struct entry {
    uint64_t key, size;
};

static const size_t entry_size = sizeof(struct entry);

/* ---- a stream in windows ---------------------------------------------------------------------------------------- */

struct window {
    int fd;
    size_t begin, end;           /* of what is there */
    char bytes[WINDOW_SIZE];
};

/* The next `size` bytes, valid until the next call. NULL: the other end is gone. */
static const void *take(struct window *w, size_t size)
{
    if (w->end - w->begin < size) {
        memmove(w->bytes, w->bytes + w->begin, w->end - w->begin);
        w->end -= w->begin;
        w->begin = 0;
    }
    while (w->end - w->begin < size) {
        ssize_t n = read(w->fd, w->bytes + w->end, WINDOW_SIZE - w->end);
        if (n <= 0) return NULL;
        w->end += (size_t)n;
    }
    w->begin += size;
    return w->bytes + w->begin - size;
}

/* What a window holds goes out when it is full. */
static bool flush(struct window *w)
{
    size_t size = w->end;

    w->end = 0;
    return tcp_write(w->fd, w->bytes, size, NULL, 0);
}

static bool give(struct window *w, const void *from, size_t size)
{
    if (w->end + size > WINDOW_SIZE && !flush(w)) return false;
    memcpy(w->bytes + w->end, from, size);
    w->end += size;
    return true;
}

/* ---- server ----------------------------------------------------------------------------------------------------- */

struct slot {
    float *value;                /* NULL: free */
    uint64_t key, size, version;
};

struct connection {
    struct window in, out;
    struct slot slots[SLOTS];
    uint64_t wanted[SLOTS];      /* by a pull */
};

static struct slot *find(struct connection *c, uint64_t key, size_t size)
{
    size_t at = (size_t)(key * 0x9e3779b97f4a7c15u >> 49);

    while (c->slots[at].value != NULL && c->slots[at].key != key) at = (at + 1) % SLOTS;
    struct slot *s = &c->slots[at];
    if (s->value != NULL) return s;
    *s = (struct slot){.value = bench_memory(size), .key = key, .size = size};
    memset(s->value, 0, size);
    return s;
}

static bool take_push(struct connection *c, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        const struct entry *at = take(&c->in, entry_size);
        if (at == NULL || at->size > VALUE_MAX) return false;
        struct entry x = *at;
        const float *from = take(&c->in, x.size);
        struct slot *s = find(c, x.key, x.size);
        if (from == NULL || s->size != x.size) return false;
        float *to = s->value;
        for (size_t k = 0; k < x.size / sizeof *to; k++) to[k] += from[k];
        s->version++;
    }
    return give(&c->out, &count, sizeof count) && flush(&c->out);
}

static bool take_pull(struct connection *c, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        const struct entry *at = take(&c->in, entry_size);
        if (at == NULL || i == SLOTS) return false;
        c->wanted[i] = at->key;
    }
    for (uint32_t i = 0; i < count; i++) {
        struct slot *s = find(c, c->wanted[i], 0);
        struct entry x = {s->key, s->size};
        if (!give(&c->out, &x, entry_size) || !give(&c->out, s->value, s->size)) return false;
    }
    return flush(&c->out);
}

static void *serve_connection(void *arg)
{
    struct connection *c = bench_memory(sizeof *c);
    const struct head *at;

    memset(c, 0, sizeof *c);
    c->in.fd = c->out.fd = (int)(intptr_t)arg;
    tcp_set_up(c->in.fd);
    while ((at = take(&c->in, sizeof *at)) != NULL && at->count <= SLOTS / 2)
        if (at->work == WORK_PULL ? !take_pull(c, at->count) : !take_push(c, at->count)) break;
    close(c->in.fd);
    return NULL;
}

static bool start(char address[ADDRESS_MAX], pid_t *pid) { return tcp_start(serve_connection, address, pid); }

/* ---- client ----------------------------------------------------------------------------------------------------- */

struct keys_client {
    struct peer_client client;
    struct window in, out;
};

static void open_client(struct peer_client *c)
{
    struct keys_client *k = (struct keys_client *)c;

    k->in.fd = k->out.fd = tcp_connect((unsigned)strtoul(c->address, NULL, 10));
}

static bool send_list(struct keys_client *c, enum work w, unsigned op)
{
    const struct job *j = c->client.job;
    struct head h = {w, j->keys_per_op};
    bool good = give(&c->out, &h, sizeof h);

    for (unsigned key = op * j->keys_per_op; good && key < (op + 1) * j->keys_per_op; key++) {
        struct entry x = {key, j->size};
        good = give(&c->out, &x, entry_size) &&
               (w == WORK_PULL || give(&c->out, (char *)c->client.grad + key * j->size, j->size));
    }
    return good && flush(&c->out);
}

static void begin(struct peer_client *c, enum work w, unsigned op)
{
    struct keys_client *k = (struct keys_client *)c;

    if ((w != WORK_PULL && !send_list(k, WORK_PUSH, op)) || (w != WORK_PUSH && !send_list(k, WORK_PULL, op)))
        bench_fail("TCP keys: the server is gone");
}

static bool take_values(struct keys_client *c, unsigned op)
{
    const struct job *j = c->client.job;

    for (unsigned key = op * j->keys_per_op; key < (op + 1) * j->keys_per_op; key++) {
        const struct entry *x = take(&c->in, entry_size);
        if (x == NULL || x->key != key || x->size != j->size) return false;
        const void *from = take(&c->in, j->size);
        if (from == NULL) return false;
        memcpy((char *)c->client.out + key * j->size, from, j->size);
    }
    return true;
}

static void finish(struct peer_client *c, enum work w, unsigned op)
{
    struct keys_client *k = (struct keys_client *)c;
    const uint32_t *count = NULL;

    if ((w != WORK_PULL && ((count = take(&k->in, sizeof *count)) == NULL || *count != c->job->keys_per_op)) ||
        (w != WORK_PUSH && !take_values(k, op)))
        bench_fail("TCP keys: the server is gone");
}

const struct peer peer_tcp_keys = {
    .name = "TCP keys", .own_memory = true, .sums = true, .many_keys = true, .checksum = "off", .pushed = "summed",
    .pulled = "bytes",
    .start = start,
    .client_size = sizeof(struct keys_client), .open = open_client, .begin = begin, .finish = finish,
};
