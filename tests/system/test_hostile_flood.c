/* Frames by the hundred thousand, at full speed over real connections: good ones whose fields are partly what exists and
 * partly anything, many to a write. The daemon must answer each with a frame that is one, stay within its memory, count
 * every push of a good client beside them once, and end well. LONG=1: a million. SEED=n repeats a run. */
#include "tests/lib/daemon.h"
#include "tests/lib/test.h"

#include "api/client/paramd.h"
#include "api/wire.h"
#include "service/base/mem.h"

#include <arpa/inet.h>
#include <endian.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

enum {
    PEERS = 4,                   /* connections of attackers at each door */
    KEYS = 6,
    BATCH = 256 << 10,           /* bytes to a write */
    BODY_MAX = 70000,
    SILENCE_MS = 20000,          /* a daemon that says nothing for so long is stuck */
    GOOD_SIZES = 2
};

/* ---- numbers ---------------------------------------------------------------------------------------------------- */

static uint64_t state;

static uint64_t any(void) { return rng_next(&state); }
static uint64_t below(uint64_t n) { return any() % n; }
static bool chance(unsigned percent) { return below(100) < percent; }

/* Where arithmetic goes wrong. */
static uint64_t edge(void)
{
    static const uint64_t ends[] = {0, 1, 2, 7, 15, 16, 17, 255, 4096, 65535, 65536, INT32_MAX, (uint64_t)INT32_MAX + 1,
                                    UINT32_MAX, (uint64_t)UINT32_MAX + 1, (uint64_t)1 << 40, ((uint64_t)1 << 40) + 1,
                                    INT64_MAX, (uint64_t)INT64_MAX + 1, UINT64_MAX - 15, UINT64_MAX - 1, UINT64_MAX};
    uint64_t n = ends[below(sizeof ends / sizeof ends[0])];

    return chance(80) ? n : n + below(33) - 16;
}

static uint64_t mostly(uint64_t good) { return chance(92) ? good : chance(50) ? edge() : any(); }

/* ---- a peer ----------------------------------------------------------------------------------------------------- */

struct peer {
    const char *url;
    int fd;                      /* -1: to be opened */
    bool ipc;
    struct wire_id id;
    uint32_t epoch, session, store;
    uint32_t next_id;
    uint64_t sequence, call;
    uint64_t keys[KEYS], steps[KEYS];
    uint8_t *in;                 /* what has come and is not yet a whole answer */
    size_t have, capacity;
    uint64_t asked, answered, refused;
    unsigned opened;
};

static uint32_t good_store;      /* is left alone: attackers may do anything to stores, and it would count */

static uint64_t now_ms(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000 + (uint64_t)t.tv_nsec / 1000000;
}

static int dial(const char *url)
{
    struct sockaddr_in in = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    struct sockaddr_un un = {.sun_family = AF_UNIX};
    bool ipc = strncmp(url, "ipc://", 6) == 0;
    int fd = socket(ipc ? AF_UNIX : AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    snprintf(un.sun_path, sizeof un.sun_path, "%s", url + 6);
    in.sin_port = htons((uint16_t)atoi(strrchr(url, ':') + 1));
    const struct sockaddr *to = ipc ? (const void *)&un : (const void *)&in;
    if (connect(fd, to, ipc ? sizeof un : sizeof in) != 0) test_fail(__FILE__, __LINE__, "%s: %s", url, strerror(errno));
    return fd;
}

static void peer_close(struct peer *p)
{
    if (p->fd >= 0) close(p->fd);
    p->fd = -1;
    p->have = 0;
}

/* A frame with its length and request id. */
static void put_message(struct peer *p, struct buf *out, const void *frame, size_t size)
{
    uint64_t length = htobe64(size + 4);
    uint32_t id = htobe32(0x80000000u | (p->next_id++ & 0x7fffffff));

    if (p->ipc) buf_add(out, "\1", 1);
    buf_add(out, &length, sizeof length);
    buf_add(out, &id, sizeof id);
    buf_add(out, frame, size);
    p->asked++;
}

/* An answer is a frame, of a request that was made. */
static size_t take_answer(struct peer *p, struct wire_header *h, struct bytes *body)
{
    size_t lead = p->ipc ? 9 : 8;
    uint64_t size;
    uint32_t id;
    struct error e;

    if (p->have < lead) return 0;
    if (p->ipc) CHECK_EQ(p->in[0], 1);
    memcpy(&size, p->in + lead - 8, sizeof size);
    size = be64toh(size);
    CHECK(size >= 4 + WIRE_HEADER_SIZE && size <= FRAME_SIZE_MAX);
    if (p->have < lead + size) return 0;
    memcpy(&id, p->in + lead, sizeof id);
    id = be32toh(id);
    CHECK((id & 0x80000000u) != 0);
    CHECK((id & 0x7fffffff) < (p->next_id & 0x7fffffff));
    const uint8_t *frame = p->in + lead + 4;
    CHECK_OK(wire_header_read(bytes_of(frame, size - 4), size - 4, h, &e), &e);
    CHECK(h->flags & WIRE_FLAG_ANSWER);
    CHECK(status_from_wire(h->status) == (enum status)h->status && h->status != STATUS_INTERNAL);
    CHECK_EQ(h->reason == 0, h->status == 0);
    size_t head = wire_head_size(h);
    *body = bytes_of(frame + head, (size_t)h->body_size);
    if (h->status != STATUS_OK) {
        CHECK(bytes_is_utf8(*body) && body->size > 0);
        p->refused++;
    }
    p->answered++;
    return lead + size;
}

/* Reads what is there. False: the daemon ended the connection. */
static bool peer_read(struct peer *p)
{
    struct wire_header h;
    struct bytes body;

    for (;;) {
        if (p->capacity - p->have < (64 << 10)) {
            p->capacity += 1 << 20;
            p->in = mem_resize(p->in, p->capacity);
            if (p->in == NULL) abort();
        }
        ssize_t n = recv(p->fd, p->in + p->have, p->capacity - p->have, MSG_DONTWAIT);
        if (n < 0 && (errno == EAGAIN || errno == EINTR)) return true;
        if (n <= 0) return false;
        p->have += (size_t)n;
        size_t at = 0;
        for (size_t used; (used = take_answer(p, &h, &body)) > 0; at = 0) {
            at += used;
            memmove(p->in, p->in + at, p->have -= at);
        }
    }
}

/* Writes all of it, reading meanwhile. False: the connection is over. */
static bool peer_write(struct peer *p, const uint8_t *at, size_t size)
{
    while (size > 0) {
        struct pollfd f = {.fd = p->fd, .events = POLLIN | POLLOUT};
        if (poll(&f, 1, SILENCE_MS) <= 0)
            test_fail(__FILE__, __LINE__, "%s has been stuck for %d ms", p->url, SILENCE_MS);
        if ((f.revents & (POLLIN | POLLHUP)) && !peer_read(p)) return false;
        ssize_t n = send(p->fd, at, size, MSG_DONTWAIT | MSG_NOSIGNAL);
        if (n < 0 && errno != EAGAIN && errno != EINTR) return false;
        if (n > 0) {
            at += n;
            size -= (size_t)n;
        }
    }
    return true;
}

/* Waits for one answer to one request; its body is ended by a 0. */
static bool peer_ask(struct peer *p, const struct buf *message, struct wire_header *h, struct buf *body)
{
    uint64_t until = now_ms() + SILENCE_MS;
    struct bytes b;
    size_t used;

    if (!peer_write(p, message->at, message->size)) return false;
    while ((used = take_answer(p, h, &b)) == 0) {
        struct pollfd f = {.fd = p->fd, .events = POLLIN};
        if (now_ms() > until) test_fail(__FILE__, __LINE__, "%s gives no answer", p->url);
        if (poll(&f, 1, 1000) <= 0) continue;
        ssize_t n = recv(p->fd, p->in + p->have, p->capacity - p->have, 0);
        if (n <= 0) return false;
        p->have += (size_t)n;
    }
    buf_clear(body);
    buf_add(body, b.at, b.size);
    buf_add(body, "", 1);
    memmove(p->in, p->in + used, p->have -= used);
    return true;
}

/* ---- good requests ---------------------------------------------------------------------------------------------- */

static void put_frame(struct peer *p, struct buf *out, struct wire_header *h, const struct buf *fixed,
                      const struct buf *desc, const void *body, size_t size)
{
    h->worker = p->id;
    h->epoch = p->epoch;
    h->session = p->session;
    struct bytes all = bytes_of(body, size);
    if (!wire_head_write(out, h, bytes_of(fixed->at, fixed->size), bytes_of(desc->at, desc->size), size, &all, 1))
        abort();
    buf_add(out, body, size);
}

static void put_json(struct peer *p, struct buf *out, unsigned method, const char *text)
{
    struct wire_header h = {.method = (uint8_t)method, .sequence = p->sequence++};
    struct buf none = {0};

    put_frame(p, out, &h, &none, &none, text, strlen(text));
}

static uint64_t number_after(const struct buf *body, const char *name)
{
    const char *at = strstr((const char *)body->at, name);

    return at != NULL ? strtoull(at + strlen(name), NULL, 10) : 0;
}

static bool ask_json(struct peer *p, unsigned method, const char *text, struct buf *body)
{
    struct buf frame = {0}, message = {0};
    struct wire_header h = {0};

    put_json(p, &frame, method, text);
    put_message(p, &message, frame.at, frame.size);
    bool done = peer_ask(p, &message, &h, body) && h.status == STATUS_OK;
    buf_fini(&frame);
    buf_fini(&message);
    return done;
}

static size_t key_size(unsigned k) { return k == 0 ? 0 : (size_t)16 << (2 * k); } /* bytes: 0, 64 .. 16 KiB */

static bool make_keys(struct peer *p)
{
    struct buf fixed = {0}, desc = {0}, frame = {0}, message = {0}, body = {0};
    uint8_t zeros[40000] = {0};
    struct wire_init f = {.store = p->store, .count = KEYS, .call = ++p->call, .on_reinit = REINIT_KEEP};
    struct wire_header h = {.method = WIRE_Init};
    size_t size = 0;

    wire_put_init(&fixed, &f);
    for (unsigned k = 0; k < KEYS; k++) {
        struct wire_init_entry x = {.number = k, .size = key_size(k), .total = key_size(k), .ndim = 1};
        uint64_t dim = htole64(key_size(k) / 4);
        wire_put_init_entry(&desc, &x);
        buf_add(&desc, &dim, sizeof dim);
        size += key_size(k); /* each is a multiple of 16 */
    }
    put_frame(p, &frame, &h, &fixed, &desc, zeros, size);
    put_message(p, &message, frame.at, frame.size);
    bool done = peer_ask(p, &message, &h, &body) && h.status == STATUS_OK;
    buf_fini(&fixed);
    buf_fini(&desc);
    buf_fini(&frame);
    buf_fini(&message);
    buf_fini(&body);
    return done;
}

static void learn_keys(struct peer *p, const struct buf *body)
{
    const char *at = (const char *)body->at;

    for (unsigned k = 0; k < KEYS; k++) {
        p->keys[k] = p->steps[k] = 0;
        at = at != NULL ? strstr(at, "\"id\":") : NULL;
        if (at == NULL) continue;
        p->keys[k] = strtoull(at + 5, NULL, 10);
        at = strstr(at, "\"next_step\":");
        if (at != NULL) p->steps[k] = strtoull(at + 12, NULL, 10);
    }
}

/* Greeting, HELLO, a store, its keys. Whatever of it fails: the frames that follow find less that exists. */
static void peer_open(struct peer *p)
{
    static const uint8_t greeting[8] = {0, 'S', 'P', 0, 0, 0x30, 0, 0};
    uint8_t theirs[8];
    struct buf body = {0};
    char text[200];

    p->fd = dial(p->url);
    p->opened++;
    CHECK_EQ(send(p->fd, greeting, sizeof greeting, MSG_NOSIGNAL), 8);
    CHECK_EQ(recv(p->fd, theirs, sizeof theirs, MSG_WAITALL), 8);
    p->next_id = 1;
    p->epoch = p->session = 0;
    p->sequence = 1;
    for (int i = 0; i < 16; i++) p->id.at[i] = (uint8_t)(any() | 1);
    if (ask_json(p, WIRE_Hello, "{\"client\":\"flood\"}", &body)) {
        p->session = (uint32_t)number_after(&body, "\"session\":");
        p->epoch = (uint32_t)number_after(&body, "\"epoch\":");
    }
    static const char *const types[] = {"\"dist_async\"", "\"dist_sync\",\"elastic\":true",
                                        "\"dist_sync\",\"num_workers\":1"};
    unsigned which = (unsigned)below(12);
    snprintf(text, sizeof text, "{\"store\":\"a%u\",\"type\":%s}", which, types[which % 3]);
    if (ask_json(p, WIRE_Create, text, &body)) p->store = (uint32_t)number_after(&body, "\"id\":");
    snprintf(text, sizeof text, "{\"store\":%u}", p->store);
    (void)ask_json(p, WIRE_Join, text, &body);
    (void)make_keys(p);
    snprintf(text, sizeof text, "{\"store\":%u,\"keys\":[0,1,2,3,4,5]}", p->store);
    if (ask_json(p, WIRE_Describe, text, &body)) learn_keys(p, &body);
    buf_fini(&body);
}

/* ---- frames whose fields are partly anything -------------------------------------------------------------------- */

static uint32_t some_store(const struct peer *p)
{
    uint32_t id = (uint32_t)mostly(p->store);

    return id == good_store ? 0 : id;
}

static uint64_t some_size(uint64_t good) { return chance(85) ? good : chance(50) ? edge() : below(good + 1); }

static void put_push_entries(struct peer *p, struct buf *desc, uint32_t count, size_t *body)
{
    for (uint32_t i = 0; i < count; i++) {
        unsigned k = (unsigned)below(KEYS);
        uint64_t total = key_size(k), offset = chance(80) ? 0 : below(total + 1), size = total - offset;
        struct wire_push_entry x = {.key = mostly(p->keys[k]), .step = mostly(p->steps[k]), .offset = some_size(offset),
                                    .size = some_size(chance(90) ? size : below(size + 1)), .total = some_size(total),
                                    .dtype = (uint8_t)(chance(95) ? 0 : any()),
                                    .codec = (uint8_t)(chance(98) ? 0 : any()),
                                    .flags = (uint16_t)(chance(98) ? 0 : any())};
        if (x.key == p->keys[k] && x.step == p->steps[k] && x.size == total && chance(90)) p->steps[k]++;
        *body = (*body + 15) / 16 * 16 + (x.size <= 40000 ? x.size : 16);
        wire_put_push_entry(desc, &x);
    }
}

static void put_init_entries(struct buf *desc, uint32_t count, size_t *body)
{
    for (uint32_t i = 0; i < count; i++) {
        char name[600];
        uint64_t elements = below(64);
        struct wire_init_entry x = {.number = (int64_t)(chance(80) ? below(5000) : edge()), .offset = some_size(0),
                                    .size = some_size(elements * 4), .total = some_size(elements * 4),
                                    .key_type = (uint8_t)(chance(70) ? 0 : below(4)),
                                    .dtype = (uint8_t)(chance(85) ? 0 : below(12)),
                                    .ndim = (uint8_t)(chance(90) ? 1 : below(12)),
                                    .storage = (uint8_t)(chance(97) ? 0 : any()),
                                    .reserved = (uint16_t)(chance(97) ? 0 : any())};
        x.name_size = (uint16_t)(x.key_type == 1 ? below(40) : chance(95) ? 0 : below(600));
        wire_put_init_entry(desc, &x);
        for (unsigned d = 0; d < x.ndim; d++) {
            uint64_t dim = htole64(d == 0 && x.ndim == 1 ? mostly(elements) : chance(70) ? below(5) : edge());
            buf_add(desc, &dim, sizeof dim);
        }
        for (unsigned c = 0; c < x.name_size; c++) name[c] = (char)(chance(95) ? 'a' + (char)below(26) : (char)any());
        buf_add(desc, name, x.name_size);
        if (desc->size % 8 != 0 && chance(98)) buf_add(desc, "\0\0\0\0\0\0\0", 8 - desc->size % 8);
        *body = (*body + 15) / 16 * 16 + (x.size <= 4096 ? x.size : 16);
    }
}

static void put_pull_entries(struct peer *p, struct buf *desc, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        struct wire_pull_entry x = {.key = mostly(p->keys[below(KEYS)]), .version = chance(70) ? 0 : edge(),
                                    .newer = chance(70) ? 0 : edge(), .offset = some_size(0), .size = some_size(0)};
        wire_put_pull_entry(desc, &x);
    }
}

static void put_wait_entries(struct peer *p, struct buf *desc, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        unsigned k = (unsigned)below(KEYS);
        struct wire_wait_entry x = {.kind = (uint32_t)mostly(1 + below(4)), .store = some_store(p),
                                    .key = mostly(p->keys[k]),
                                    .number = mostly(p->steps[k] > 0 ? p->steps[k] - 1 : 0),
                                    .name_size = (uint16_t)(chance(80) ? 0 : below(20)), .key_type = (uint8_t)below(3)};
        wire_put_wait_entry(desc, &x);
        buf_add(desc, "abcdefghijklmnopqrst", x.name_size);
        if (desc->size % 8 != 0) buf_add(desc, "\0\0\0\0\0\0\0", 8 - desc->size % 8);
    }
}

static void put_states_entries(struct peer *p, struct buf *desc, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        struct wire_states_entry x = {.key = mostly(p->keys[below(KEYS)]), .copy = chance(50) ? 0 : mostly(below(40)),
                                      .offset = chance(80) ? 0 : edge(), .size = chance(50) ? 0 : edge(),
                                      .slot = (uint32_t)(chance(80) ? 0 : mostly(below(4)))};
        wire_put_states_entry(desc, &x);
    }
}

static void put_state(struct peer *p, struct buf *desc, size_t *body)
{
    struct wire_state x = {.key = mostly(p->keys[below(KEYS)]), .updates = mostly(below(100)), .since_begun = mostly(0),
                           .product = mostly(0), .offset = mostly(0), .size = mostly(below(4096)), .total = edge(),
                           .slots = (uint16_t)mostly(below(3)), .updater_size = 4};

    wire_put_state(desc, &x);
    buf_add(desc, chance(50) ? "adam\0\0\0" : "test\0\0\0", 8);
    for (unsigned i = 0; i < x.slots && i < 4; i++) {
        struct wire_slot slot = {.count = edge(), .dtype = (uint8_t)mostly(0), .name_size = (uint8_t)mostly(4)};
        wire_put_slot(desc, &slot);
        buf_add(desc, "mean\0\0\0", 8);
    }
    *body = (size_t)x.size;
}

static void put_data(struct peer *p, struct buf *out)
{
    static const uint8_t methods[] = {WIRE_Push, WIRE_Push, WIRE_Push, WIRE_Set, WIRE_Pull, WIRE_Pull, WIRE_Init,
                                      WIRE_Wait, WIRE_GetStates, WIRE_SetStates};
    static uint8_t bytes[BODY_MAX];
    struct wire_header h = {.method = methods[below(sizeof methods)], .sequence = mostly(p->sequence++)};
    struct buf fixed = {0}, desc = {0};
    uint32_t entries = chance(70) ? 1 : (uint32_t)below(chance(95) ? 20 : 300);
    uint32_t count = chance(96) ? entries : (uint32_t)edge();
    size_t body = 0;

    if (h.method == WIRE_Push || h.method == WIRE_Set) {
        struct wire_push f = {.store = some_store(p), .count = count, .force = (uint32_t)below(2)};
        wire_put_push(&fixed, &f);
        put_push_entries(p, &desc, entries < 20 ? entries : 20, &body);
    } else if (h.method == WIRE_Init) {
        struct wire_init f = {.store = some_store(p), .count = count, .call = mostly(chance(50) ? ++p->call : p->call),
                              .on_reinit = (uint32_t)(chance(95) ? below(3) : any())};
        wire_put_init(&fixed, &f);
        put_init_entries(&desc, entries < 20 ? entries : 20, &body);
        if (chance(30)) h.flags |= WIRE_FLAG_CHECK;
    } else if (h.method == WIRE_Pull) {
        struct wire_pull f = {.store = some_store(p), .count = count};
        wire_put_pull(&fixed, &f);
        put_pull_entries(p, &desc, entries);
    } else if (h.method == WIRE_GetStates || h.method == WIRE_SetStates) {
        struct wire_states f = {.store = some_store(p), .count = count};
        wire_put_states(&fixed, &f);
        if (h.method == WIRE_GetStates) put_states_entries(p, &desc, entries);
        else put_state(p, &desc, &body);
        if (chance(30)) h.flags |= WIRE_FLAG_CHECK;
    } else {
        struct wire_wait f = {.count = count, .want = (uint32_t)mostly(entries),
                              .time_ms = (uint32_t)(chance(90) ? 0 : edge())};
        wire_put_wait(&fixed, &f);
        put_wait_entries(p, &desc, entries);
    }
    if (chance(5)) h.flags |= WIRE_FLAG_BODY_CRC;
    if (h.flags & WIRE_FLAG_CHECK) body = 0;
    if (chance(3)) body = below(BODY_MAX);
    if (body > BODY_MAX) body = BODY_MAX;
    put_frame(p, out, &h, &fixed, &desc, bytes, body);
    buf_fini(&fixed);
    buf_fini(&desc);
}

static const char *some_value(const struct peer *p, char out[64])
{
    static const char *const strange[] = {"null", "true", "[]", "{}", "\"\"", "\"x\"", "-1", "1e400", "0.5", "[[[[[]]]]]",
                                          "18446744073709551616", "\"\\u0000\"", "[1,\"a\",null]"};

    if (chance(15)) return strange[below(sizeof strange / sizeof strange[0])];
    snprintf(out, 64, "%u", some_store(p));
    return out;
}

/* %u becomes the number of an attackers' store, %s any value. */
static void fill_form(const struct peer *p, const char *form, struct buf *out)
{
    char space[64];

    for (const char *c = form; *c != '\0'; c++) {
        if (*c != '%') buf_add(out, c, 1);
        else if (*++c == 'u') buf_format(out, "%u", (unsigned)below(14));
        else buf_text(out, some_value(p, space));
    }
    buf_add(out, "", 1);
    CHECK(!out->failed);
}

static void put_document(struct peer *p, struct buf *out)
{
    static const struct { uint8_t method; const char *form; } forms[] = {
        {WIRE_Create, "{\"store\":\"a%u\",\"type\":\"dist_async\"}"},
        {WIRE_Create, "{\"store\":\"a%u\",\"type\":\"dist_sync\",\"num_workers\":%s}"},
        {WIRE_DeleteStore, "{\"store\":\"a%u\"}"}, {WIRE_ResetStore, "{\"store\":\"a%u\"}"},
        {WIRE_ListStores, "{}"}, {WIRE_Heartbeat, "{}"}, {WIRE_Health, "{}"}, {WIRE_Hello, "{\"client\":\"again\"}"},
        {WIRE_Join, "{\"store\":\"a%u\",\"name\":%s}"}, {WIRE_Join, "{\"store\":\"a%u\"}"},
        {WIRE_Leave, "{\"store\":\"a%u\"}"},
        {WIRE_Barrier, "{\"store\":\"a%u\",\"name\":\"b%s\"}"},
        {WIRE_Delete, "{\"store\":\"a%u\",\"keys\":[%s,3,4],\"force\":true}"},
        {WIRE_Describe, "{\"store\":\"a%u\",\"keys\":[0,1,%s]}"},
        {WIRE_List, "{\"store\":\"a%u\",\"after\":%s,\"limit\":3}"},
        {WIRE_SetUpdater, "{\"store\":\"a%u\",\"updater\":{\"type\":\"sgd\",\"lr\":%s}}"},
        {WIRE_SetUpdater, "{\"store\":\"a%u\",\"updater\":{\"type\":\"add\"}}"},
        {WIRE_SetUpdater, "{\"store\":\"a%u\",\"updater\":{\"type\":\"adam\",\"lr\":0.1}}"},
        {WIRE_GetUpdater, "{\"store\":\"a%u\"}"}, {WIRE_Stats, "{\"store\":\"a%u\"}"},
        {WIRE_GetStore, "{\"store\":\"a%u\"}"}, {WIRE_KeyStats, "{\"store\":\"a%u\",\"keys\":[0,1,2,%s]}"},
        {WIRE_KeyStats, "{\"store\":\"a%u\",\"key\":1}"},
        {WIRE_Workers, "{\"store\":\"a%u\"}"}, {WIRE_Rounds, "{\"store\":\"a%u\"}"},
        {WIRE_Dismiss, "{\"store\":\"a%u\",\"worker\":%s}"},
        {WIRE_Describe, "{\"store\":%s}"}, {WIRE_GetStore, "{\"store\":%s,\"x\":1}"}, {WIRE_Join, "{\"store\":%s}"},
    };
    unsigned at = (unsigned)below(sizeof forms / sizeof forms[0]);
    struct buf text = {0};

    /* Whole stores go seldom, else there is little left to attack. */
    if ((forms[at].method == WIRE_DeleteStore || forms[at].method == WIRE_ResetStore) && chance(90)) return;
    fill_form(p, forms[at].form, &text);
    if (chance(5)) text.at[below(text.size - 1)] = (uint8_t)(1 + below(255));
    put_json(p, out, forms[at].method, (const char *)text.at);
    buf_fini(&text);
}

/* Some bytes differ; the header's checksum mostly holds all the same. */
static void mutate(struct buf *frame)
{
    unsigned times = 1 + (unsigned)below(4);

    for (unsigned i = 0; i < times; i++) {
        size_t at = below(chance(40) ? WIRE_HEADER_SIZE - 4 : frame->size);
        switch (below(4)) {
        case 0: frame->at[at] ^= (uint8_t)(1u << below(8)); break;
        case 1: frame->at[at] = (uint8_t)any(); break;
        case 2: frame->at[at] = chance(50) ? 0 : 0xff; break;
        default: if (chance(10)) frame->size = WIRE_HEADER_SIZE + below(frame->size - WIRE_HEADER_SIZE + 1); break;
        }
    }
    uint32_t crc = htole32(crc32c(0, frame->at, WIRE_HEADER_SIZE - 4));
    if (chance(85)) memcpy(frame->at + WIRE_HEADER_SIZE - 4, &crc, sizeof crc);
}

/* A mutated frame might by chance name the good store in a request that changes it. */
static bool hits_the_good_store(const struct buf *frame)
{
    uint32_t fixed = frame->size >= WIRE_HEADER_SIZE + 4 ? 0 : UINT32_MAX;

    if (fixed == 0) memcpy(&fixed, frame->at + WIRE_HEADER_SIZE, sizeof fixed);
    return le32toh(fixed) == good_store || memmem(frame->at, frame->size, "good", 4) != NULL;
}

static void put_any(struct peer *p, struct buf *out)
{
    struct buf frame = {0};

    if (chance(70)) put_data(p, &frame);
    else put_document(p, &frame);
    if (frame.size > 0 && chance(25)) mutate(&frame);
    if (frame.size > 0 && !hits_the_good_store(&frame)) put_message(p, out, frame.at, frame.size);
    buf_fini(&frame);
}

/* One turn: a batch of frames to one peer, which is opened anew when its connection has ended. */
static uint64_t flood(struct peer *p)
{
    struct buf out = {0};
    uint64_t before = p->asked;

    if (p->fd < 0) peer_open(p);
    while (out.size < BATCH && p->asked - before < 400) put_any(p, &out);
    bool half = chance(2); /* the last one, for ever */
    bool alive = peer_write(p, out.at, out.size - (half ? below(100) : 0)) && peer_read(p);
    buf_fini(&out);
    if (!alive || half || chance(3)) peer_close(p);
    return p->asked - before;
}

/* ---- a good client meanwhile ------------------------------------------------------------------------------------ */

struct good {
    const char *url;
    atomic_bool stop, ready;
    uint64_t rounds;
    char fault[600];
};

static bool is_fault(struct good *g, int status, const struct paramd_error *e)
{
    if (status != 0) snprintf(g->fault, sizeof g->fault, "%s", e->text);
    return status != 0;
}

static void train(struct good *g, struct paramd *kv)
{
    static const int64_t counts[GOOD_SIZES] = {64, 65536};
    static float ones[65536], out[65536], zeros[65536];
    const struct paramd_key keys[GOOD_SIZES] = {PARAMD_INT(0), PARAMD_INT(1)};
    struct paramd_tensor value[GOOD_SIZES], grad[GOOD_SIZES], got;
    struct paramd_error e;

    for (int i = 0; i < 65536; i++) ones[i] = 1;
    for (int i = 0; i < GOOD_SIZES; i++) {
        value[i] = (struct paramd_tensor){zeros, PARAMD_F32, 1, &counts[i]};
        grad[i] = (struct paramd_tensor){ones, PARAMD_F32, 1, &counts[i]};
    }
    if (is_fault(g, paramd_init(kv, GOOD_SIZES, keys, value, &e), &e)) return;
    if (is_fault(g, paramd_set_updater(kv, "{\"type\": \"add\"}", &e), &e)) return;
    atomic_store(&g->ready, true);
    while (!atomic_load(&g->stop)) {
        if (is_fault(g, paramd_push(kv, GOOD_SIZES, keys, grad, 0, &e), &e)) return;
        if (is_fault(g, paramd_wait(kv, 0, NULL, &e), &e)) return;
        g->rounds++;
    }
    for (int i = 0; i < GOOD_SIZES; i++) {
        got = (struct paramd_tensor){out, PARAMD_F32, 1, &counts[i]};
        if (is_fault(g, paramd_pull(kv, 1, &keys[i], &got, 0, &e), &e)) return;
        for (int64_t k = 0; k < counts[i]; k++)
            if (out[k] != (float)g->rounds) snprintf(g->fault, sizeof g->fault, "%llu pushes gave %g",
                                                     (unsigned long long)g->rounds, (double)out[k]);
    }
}

static void *good_run(void *arg)
{
    struct good *g = arg;
    struct paramd *kv = NULL;
    struct paramd_error e;
    char options[300];

    snprintf(options, sizeof options, "{\"url\": \"%s\", \"store\": \"good\"}", g->url);
    if (!is_fault(g, paramd_create("dist_async", options, &kv, &e), &e)) {
        train(g, kv);
        paramd_close(kv);
    }
    atomic_store(&g->ready, true);
    return NULL;
}

/* ---- the test --------------------------------------------------------------------------------------------------- */

static uint64_t resident_most(pid_t pid)
{
    char path[64], line[200];
    uint64_t kib = 0;

    snprintf(path, sizeof path, "/proc/%d/status", pid);
    FILE *f = fopen(path, "r");
    while (f != NULL && fgets(line, sizeof line, f) != NULL)
        if (strncmp(line, "VmHWM:", 6) == 0) kib = strtoull(line + 6, NULL, 10);
    if (f != NULL) fclose(f);
    return kib << 10;
}

static void learn_good_store(const char *url)
{
    struct peer p = {.url = url, .fd = dial(url), .ipc = strncmp(url, "ipc", 3) == 0, .next_id = 1, .sequence = 1};
    uint8_t theirs[8];
    struct buf body = {0};

    for (int i = 0; i < 16; i++) p.id.at[i] = 9;
    CHECK_EQ(send(p.fd, "\0SP\0\0\x30\0", 8, MSG_NOSIGNAL), 8);
    CHECK_EQ(recv(p.fd, theirs, 8, MSG_WAITALL), 8);
    p.in = mem_new(1 << 20);
    p.capacity = 1 << 20;
    CHECK(ask_json(&p, WIRE_Hello, "{}", &body));
    p.session = (uint32_t)number_after(&body, "\"session\":");
    p.epoch = (uint32_t)number_after(&body, "\"epoch\":");
    CHECK(ask_json(&p, WIRE_GetStore, "{\"store\":\"good\"}", &body));
    good_store = (uint32_t)number_after(&body, "\"id\":");
    CHECK(good_store != 0);
    buf_fini(&body);
    mem_free(p.in);
    close(p.fd);
}

static void flood_daemon(struct daemon *d, const char *const *urls, unsigned count, uint64_t messages)
{
    struct peer peers[2 * PEERS] = {{.url = NULL}};
    static struct good good;     /* outlives a test that fails */
    uint64_t sent = 0, answered = 0, refused = 0, opened = 0, begin = now_ms();
    pthread_t thread;

    good = (struct good){.url = d->data};
    state = getenv("SEED") != NULL ? strtoull(getenv("SEED"), NULL, 10) : now_ms();
    printf("SEED=%llu ", (unsigned long long)state);
    fflush(stdout);
    CHECK_EQ(pthread_create(&thread, NULL, good_run, &good), 0);
    while (!atomic_load(&good.ready)) sched_yield();
    CHECK_TEXT(good.fault, "");
    learn_good_store(d->data);
    for (unsigned i = 0; i < count * PEERS; i++) {
        peers[i] = (struct peer){.url = urls[i % count], .fd = -1, .ipc = strncmp(urls[i % count], "ipc", 3) == 0};
        peers[i].in = mem_new(1 << 20);
        peers[i].capacity = 1 << 20;
    }
    while (sent < messages) sent += flood(&peers[below(count * PEERS)]);
    for (unsigned i = 0; i < count * PEERS; i++) {
        answered += peers[i].answered;
        refused += peers[i].refused;
        opened += peers[i].opened;
        peer_close(&peers[i]);
        mem_free(peers[i].in);
    }
    atomic_store(&good.stop, true);
    pthread_join(thread, NULL);
    double seconds = (double)(now_ms() - begin) / 1000;
    printf("%llu messages in %.1f s over %llu connections, %llu answers, %llu of them refusals, %llu rounds of a good "
           "client, %llu MiB\n", (unsigned long long)sent, seconds, (unsigned long long)opened, (unsigned long long)answered,
           (unsigned long long)refused, (unsigned long long)good.rounds,
           (unsigned long long)(resident_most(d->pid) >> 20));
    CHECK_TEXT(good.fault, "");
    CHECK(good.rounds > 0);
    CHECK(answered > sent / 4 && refused > sent / 20 && refused < answered);
}

static uint64_t messages_of_a_run(void)
{
    const char *more = getenv("LONG");
    return more != NULL && more[0] != '\0' && more[0] != '0' ? 1000000 : 200000;
}

/* With a sanitizer what was freed is kept for a while, up to 256 MiB. */
static uint64_t memory_cap(void)
{
#if defined __SANITIZE_ADDRESS__ || defined __SANITIZE_THREAD__
    return (uint64_t)MIB(2000);
#else
    return (uint64_t)MIB(700);
#endif
}

TEST(mutated_frames_at_full_speed_are_each_answered_and_harm_nobody)
{
    const struct daemon_options o = {.more = {"--staging-max", "64m", "--memory-max", "192m", "--log", "error"}};
    struct daemon *d = daemon_start(&o);
    const char *urls[] = {d->data, d->bulk};

    test_time_limit(3000);
    flood_daemon(d, urls, 2, messages_of_a_run());
    CHECK(resident_most(d->pid) < memory_cap());
    CHECK_EQ(daemon_stop(d), 0);
}

TEST(mutated_frames_at_unix_sockets_do_no_harm_either)
{
    char place[] = "/tmp/hostile_flood_XXXXXX", front[80], bulk[80];
    CHECK(mkdtemp(place) != NULL);
    snprintf(front, sizeof front, "ipc://%s/front", place);
    snprintf(bulk, sizeof bulk, "ipc://%s/bulk", place);
    const struct daemon_options o = {.listen = front, .more = {"--bulk", bulk, "--staging-max", "64m", "--memory-max",
                                                               "192m", "--log", "error"}};
    struct daemon *d = daemon_start(&o);
    const char *urls[] = {front, bulk};

    test_time_limit(3000);
    flood_daemon(d, urls, 2, messages_of_a_run() / 4);
    CHECK(resident_most(d->pid) < memory_cap());
    CHECK_EQ(daemon_stop(d), 0);
    rmdir(place);
}
