/* Everything that can fail, failing once: a scenario of requests of every method is played against a server again and
 * again, and each time the next allocation is refused, jansson's included; then the same with each call of the device.
 * Every request is answered with a status that has a name, nothing crashes or is lost, and afterwards the store works.
 *
 * The scenario is recorded first, frame by frame, so that the player allocates nothing of its own. */
#include "service/base/log.h"
#include "service/base/mem.h"
#include "service/op.h"
#include "tests/lib/books.h"
#include "tests/lib/direct.h"
#include "tests/lib/faulty_device.h"
#include "tests/lib/late_device.h"
#include "tests/lib/test.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PEERS = 4, FRAMES_MAX = 128, COUNT = 300, FRAME_ROOM = 8192 };

/* ---- the scenario ------------------------------------------------------------------------------------------------ */

/* A frame as bytes; or time passing, or a connection that ends. */
struct frame {
    enum { SEND, TIME, GONE, SETTLE } what;
    unsigned peer;               /* its number is its worker's, too */
    uint64_t ms;
    struct wire_header header;
    size_t head_size, body_size;
    uint8_t head[1024], body[FRAME_ROOM];
};

static struct frame frames[FRAMES_MAX];
static unsigned frame_count;

static void write_frame(unsigned peer, unsigned method, unsigned flags, uint64_t sequence, const struct buf *fixed,
                        const struct buf *desc, const void *body, size_t size)
{
    struct frame *f = &frames[frame_count++];
    struct wire_header h = {.method = (uint8_t)method, .flags = (uint16_t)flags, .sequence = sequence,
                            .worker = {{1, (uint8_t)(peer + 1)}}, .epoch = method == WIRE_Hello ? 0 : peer + 1,
                            .session = method == WIRE_Hello ? 0 : peer + 1};
    struct buf head = {0};
    struct bytes b = bytes_of(body, size);

    CHECK(frame_count <= FRAMES_MAX && size <= sizeof f->body);
    CHECK(wire_head_write(&head, &h, bytes_of(fixed->at, fixed->size), bytes_of(desc->at, desc->size), size, &b, 1));
    CHECK(head.size <= sizeof f->head);
    *f = (struct frame){.what = SEND, .peer = peer, .header = h, .head_size = head.size, .body_size = size};
    memcpy(f->head, head.at, head.size);
    if (size > 0) memcpy(f->body, body, size);
    buf_fini(&head);
}

static void json(unsigned peer, unsigned method, const char *text)
{
    static uint64_t sequence = 1000;
    struct buf none = {0};

    uint64_t name = wire_method_flags(method) & WIRE_WRITES ? ++sequence : 0;

    write_frame(peer, method, 0, name, &none, &none, text, strlen(text));
}

/* Ids are numbered in the order of creation, and name the slot in their store. */
static uint64_t id_of(uint64_t key)
{
    static const uint64_t slots[] = {0, 0, 1, 2, 0, 0, 0};

    return key < sizeof slots / sizeof slots[0] ? key * KEYS_MAX + slots[key] : key;
}

static void init(unsigned peer, uint32_t store, int64_t key, const char *name, enum dtype t, unsigned flags,
                 int on_reinit, uint64_t from, uint64_t to)
{
    static const uint8_t zeros[FRAME_ROOM];
    static uint64_t call;
    struct wire_init fixed = {.store = store, .count = 1, .call = from > 0 ? call : ++call,
                              .on_reinit = (uint32_t)on_reinit};
    struct wire_init_entry x = {.number = key, .offset = from, .size = to - from, .total = COUNT * dtype_size(t),
                                .ndim = 1, .dtype = (uint8_t)t, .key_type = name != NULL,
                                .name_size = (uint16_t)(name ? 1 : 0)};
    struct buf f = {0}, d = {0};
    int64_t dim = COUNT;

    if (flags & WIRE_FLAG_CHECK) x.size = 0;
    wire_put_init(&f, &fixed);
    wire_put_init_entry(&d, &x);
    buf_add(&d, &dim, sizeof dim);
    if (name != NULL) buf_add(&d, name, 1);
    buf_pad(&d, 8);
    write_frame(peer, WIRE_Init, flags, 0, &f, &d, zeros, (size_t)x.size);
    buf_fini(&f);
    buf_fini(&d);
}

static void push(unsigned peer, unsigned method, uint32_t store, uint64_t key, uint64_t step, enum dtype t,
                 uint64_t from, uint64_t to)
{
    static const uint8_t ones[FRAME_ROOM] = {1};
    static uint64_t sequence = 100;
    struct wire_push fixed = {.store = store, .count = 1, .force = 1};
    struct wire_push_entry x = {.key = id_of(key), .step = step, .offset = from, .size = to - from,
                                .total = COUNT * dtype_size(t), .dtype = (uint8_t)t};
    struct buf f = {0}, d = {0};

    wire_put_push(&f, &fixed);
    wire_put_push_entry(&d, &x);
    write_frame(peer, method, 0, from > 0 ? sequence : ++sequence, &f, &d, ones, (size_t)x.size);
    buf_fini(&f);
    buf_fini(&d);
}

static void push_batch(unsigned peer, uint32_t store, const uint64_t *keys, unsigned count, uint64_t step)
{
    static const uint8_t ones[FRAME_ROOM] = {1};
    struct wire_push fixed = {.store = store, .count = count};
    struct buf f = {0}, d = {0};

    wire_put_push(&f, &fixed);
    for (unsigned i = 0; i < count; i++) {
        struct wire_push_entry x = {.key = id_of(keys[i]), .step = step, .size = COUNT * 4, .total = COUNT * 4};
        wire_put_push_entry(&d, &x);
    }
    write_frame(peer, WIRE_Push, 0, 50, &f, &d, ones, count * COUNT * 4);
    buf_fini(&f);
    buf_fini(&d);
}

static void pull(unsigned peer, uint32_t store, const uint64_t *keys, unsigned count, uint64_t size)
{
    struct wire_pull fixed = {.store = store, .count = count};
    struct buf f = {0}, d = {0};

    wire_put_pull(&f, &fixed);
    for (unsigned i = 0; i < count; i++) {
        struct wire_pull_entry x = {.key = id_of(keys[i]), .size = size};
        wire_put_pull_entry(&d, &x);
    }
    write_frame(peer, WIRE_Pull, 0, 0, &f, &d, NULL, 0);
    buf_fini(&f);
    buf_fini(&d);
}

/* The first mailbox that the server gives has number 1. */
static void through_mailbox(unsigned peer, uint32_t store, uint64_t key, uint64_t step)
{
    struct wire_push push_fixed = {.store = store, .count = 1};
    struct wire_pull pull_fixed = {.store = store, .count = 1};
    struct wire_push_entry x = {.key = id_of(key), .step = step, .size = COUNT * 4, .total = COUNT * 4};
    struct buf f = {0}, d = {0}, b = {0};

    json(peer, WIRE_Mailbox, "{\"host\": \"here\", \"size\": 65536}");
    wire_put_push(&f, &push_fixed);
    wire_put_push_entry(&d, &x);
    wire_put_place(&b, &(struct wire_place){.mailbox = 1, .offset = 4096});
    write_frame(peer, WIRE_Push, WIRE_FLAG_MAILBOX, 90, &f, &d, b.at, b.size);
    buf_clear(&f), buf_clear(&d);
    wire_put_pull(&f, &pull_fixed);
    wire_put_pull_entry(&d, &(struct wire_pull_entry){.key = id_of(key)});
    write_frame(peer, WIRE_Pull, WIRE_FLAG_MAILBOX, 0, &f, &d, b.at, b.size);
    buf_fini(&f), buf_fini(&d), buf_fini(&b);
}

static void get_states(unsigned peer, uint32_t store, const uint64_t *keys, unsigned count, uint64_t size)
{
    struct wire_states fixed = {.store = store, .count = count};
    struct buf f = {0}, d = {0};

    wire_put_states(&f, &fixed);
    for (unsigned i = 0; i < count; i++) {
        struct wire_states_entry x = {.key = id_of(keys[i]), .size = size};
        wire_put_states_entry(&d, &x);
    }
    write_frame(peer, WIRE_GetStates, 0, 0, &f, &d, NULL, 0);
    buf_fini(&f);
    buf_fini(&d);
}

/* Of adam, whose two slots have COUNT elements each, which is a multiple of 16 bytes. */
static void set_states(unsigned peer, uint32_t store, uint64_t key, uint64_t sequence, uint64_t from, uint64_t to)
{
    static const uint8_t zeros[FRAME_ROOM];
    static const struct wire_slot slots[2] = {{.count = COUNT, .name_size = 4}, {.count = COUNT, .name_size = 3}};
    struct wire_states fixed = {.store = store, .count = 1};
    struct wire_state x = {.key = id_of(key), .updates = 3, .since_begun = 2, .offset = from, .size = to - from,
                           .total = 2 * COUNT * 4, .slots = 2, .updater_size = 4};
    struct buf f = {0}, d = {0};

    wire_put_states(&f, &fixed);
    wire_put_state(&d, &x);
    buf_add(&d, "adam\0\0\0", 8);
    wire_put_slot(&d, &slots[0]);
    buf_add(&d, "mean\0\0\0", 8);
    wire_put_slot(&d, &slots[1]);
    buf_add(&d, "var\0\0\0\0", 8);
    write_frame(peer, WIRE_SetStates, 0, sequence, &f, &d, zeros, (size_t)x.size);
    buf_fini(&f);
    buf_fini(&d);
}

static void wait_for(unsigned peer, uint32_t store, uint64_t key, uint64_t number)
{
    struct wire_wait fixed = {.count = 4, .want = 4, .time_ms = 500};
    struct buf f = {0}, d = {0};

    wire_put_wait(&f, &fixed);
    for (unsigned kind = WAIT_TICKET; kind <= WAIT_BARRIER; kind++) {
        struct wire_wait_entry x = {.kind = kind, .store = store, .key = id_of(key), .number = number};
        if (kind == WAIT_INIT) x.key_type = KEY_INT;
        wire_put_wait_entry(&d, &x);
        buf_pad(&d, 8);
    }
    write_frame(peer, WIRE_Wait, 0, 0, &f, &d, NULL, 0);
    buf_fini(&f);
    buf_fini(&d);
}

static void event(int what, unsigned peer, uint64_t ms)
{
    struct frame *f = &frames[frame_count++];
    *f = (struct frame){.peer = peer, .ms = ms};
    f->what = what == TIME ? TIME : what == GONE ? GONE : SETTLE;
}

/* Store 1 is sync and has the keys 1, 2 (i8) and 3 (in parts); store 2 is async, 4 and then 5; store 3 sums by rank, 6. */
static void record_scenario(void)
{
    if (frame_count > 0) return;
    for (unsigned p = 0; p < PEERS; p++) json(p, WIRE_Hello, "{\"client\": \"sweep\", \"name\": \"w\"}");
    json(0, WIRE_Create, "{\"store\": \"a\", \"type\": \"dist_sync\", \"num_workers\": 3, \"on_late\": \"carry\"}");
    json(1, WIRE_Create, "{\"store\": \"b\", \"type\": \"dist_async\", \"async_default\": \"add\"}");
    json(2, WIRE_Create, "{\"store\": \"c\", \"type\": \"dist_sync\", \"elastic\": true, \"sum_order\": \"rank\"}");
    json(0, WIRE_Join, "{\"store\": \"a\"}");
    json(1, WIRE_Join, "{\"store\": \"a\", \"name\": \"second\"}");
    json(0, WIRE_SetUpdater, "{\"store\": 1, \"updater\": {\"type\": \"add\"}}");
    init(0, 1, 1, NULL, DTYPE_f32, WIRE_FLAG_CHECK, 0, 0, 0);
    init(0, 1, 1, NULL, DTYPE_f32, 0, 0, 0, COUNT * 4);
    init(0, 1, 2, NULL, DTYPE_i8, 0, 0, 0, COUNT);
    init(0, 1, 3, NULL, DTYPE_f32, 0, 0, 0, 400);
    init(0, 1, 3, NULL, DTYPE_f32, 0, 0, 400, COUNT * 4);
    init(1, 1, 1, NULL, DTYPE_f32, WIRE_FLAG_CHECK, 0, 0, 0);
    push(0, WIRE_Push, 1, 1, 1, DTYPE_f32, 0, COUNT * 4);
    push(0, WIRE_Push, 1, 2, 1, DTYPE_i8, 0, COUNT);
    push(1, WIRE_Push, 1, 1, 1, DTYPE_f32, 0, 100);
    push(1, WIRE_Push, 1, 1, 1, DTYPE_f32, 100, COUNT * 4);
    push(1, WIRE_Push, 1, 2, 1, DTYPE_i8, 0, COUNT);
    wait_for(0, 1, 1, 1);
    json(2, WIRE_Join, "{\"store\": \"a\"}");
    push(2, WIRE_Push, 1, 1, 1, DTYPE_f32, 0, COUNT * 4);
    push(2, WIRE_Push, 1, 2, 1, DTYPE_i8, 0, COUNT);
    push_batch(0, 1, (const uint64_t[]){1, 3}, 2, 2);
    push_batch(1, 1, (const uint64_t[]){1, 3}, 2, 2);
    json(0, WIRE_Stats, "{\"store\": \"a\"}");
    json(0, WIRE_Describe, "{\"store\": 1, \"keys\": [1, 2, 9]}");
    json(0, WIRE_List, "{\"store\": 1, \"limit\": 2}");
    json(0, WIRE_ListStores, "{}");
    json(0, WIRE_GetUpdater, "{\"store\": 1}");
    json(0, WIRE_Health, "{}");
    json(0, WIRE_Heartbeat, "{}");
    pull(0, 1, (const uint64_t[]){1, 2, 99}, 3, 0);
    pull(1, 1, (const uint64_t[]){1}, 1, 100);
    event(SETTLE, 0, 0);
    /* async, keys that are texts */
    json(1, WIRE_Join, "{\"store\": \"b\"}");
    json(3, WIRE_Join, "{\"store\": \"b\"}");
    init(1, 2, 0, "k", DTYPE_f32, 0, 0, 0, COUNT * 4);
    json(1, WIRE_SetUpdater, "{\"store\": 2, \"updater\": {\"type\": \"adam\"}}");
    push(1, WIRE_Push, 2, 4, 1, DTYPE_f32, 0, COUNT * 4);
    push(3, WIRE_Push, 2, 4, 1, DTYPE_f32, 0, COUNT * 4);
    push(1, WIRE_Push, 2, 4, 2, DTYPE_f32, 0, COUNT * 4); /* small and plain: straight from the frame */
    push_batch(3, 2, (const uint64_t[]){4, 4}, 2, 2);
    push(3, WIRE_Set, 2, 4, 0, DTYPE_f32, 0, COUNT * 4);
    push(3, WIRE_Set, 2, 4, 0, DTYPE_f32, 0, 400);
    push(3, WIRE_Set, 2, 4, 0, DTYPE_f32, 400, COUNT * 4);
    get_states(1, 2, (const uint64_t[]){4, 99}, 2, 0);
    get_states(3, 2, (const uint64_t[]){4}, 1, 100);
    set_states(3, 2, 4, 900, 0, 2 * COUNT * 4);
    set_states(3, 2, 4, 901, 400, 2 * COUNT * 4);
    set_states(3, 2, 4, 901, 0, 400);
    json(1, WIRE_SetUpdater, "{\"store\": 2, \"updater\": null}");
    push(1, WIRE_Push, 2, 4, 3, DTYPE_f32, 0, COUNT * 4);
    through_mailbox(1, 2, 4, 4);
    init(1, 2, 0, "k", DTYPE_f32, 0, REINIT_REPLACE, 0, COUNT * 4);
    json(1, WIRE_Barrier, "{\"store\": 2, \"name\": \"x\"}");
    wait_for(1, 2, 5, 1);
    json(3, WIRE_Barrier, "{\"store\": 2, \"name\": \"x\"}");
    pull(3, 2, (const uint64_t[]){5}, 1, 0);
    /* summed by rank */
    json(2, WIRE_Join, "{\"store\": \"c\"}");
    json(3, WIRE_Join, "{\"store\": \"c\"}");
    init(2, 3, 7, NULL, DTYPE_f32, 0, 0, 0, COUNT * 4);
    push(3, WIRE_Push, 3, 6, 1, DTYPE_f32, 0, COUNT * 4);
    push(2, WIRE_Push, 3, 6, 1, DTYPE_f32, 0, COUNT * 4);
    push(2, WIRE_Push, 3, 6, 2, DTYPE_f32, 0, COUNT * 4);
    push(2, WIRE_Push, 3, 6, 3, DTYPE_f32, 0, COUNT * 4);
    wait_for(2, 3, 6, 2);
    event(SETTLE, 0, 0);
    json(3, WIRE_Leave, "{\"store\": \"c\"}");
    json(2, WIRE_Delete, "{\"store\": 3, \"keys\": [7], \"force\": true}");
    /* one dies, one is dismissed, one comes again */
    event(GONE, 2, 0);
    for (unsigned i = 0; i < 6; i++) {
        event(TIME, 0, 2000);
        json(0, WIRE_Heartbeat, "{}");
        json(1, WIRE_Heartbeat, "{}");
    }
    json(0, WIRE_Dismiss, "{\"store\": 1, \"worker\": 2}");
    push(0, WIRE_Push, 1, 1, 3, DTYPE_f32, 0, COUNT * 4);
    push(1, WIRE_Push, 1, 1, 3, DTYPE_f32, 0, COUNT * 4);
    json(0, WIRE_Rounds, "{\"store\": \"a\"}");
    json(0, WIRE_Workers, "{\"store\": \"a\"}");
    json(0, WIRE_GetStore, "{\"store\": \"a\"}");
    json(0, WIRE_KeyStats, "{\"store\": 1, \"keys\": [1, 2, 77]}");
    json(0, WIRE_KeyStats, "{\"store\": 1, \"key\": 1}");
    push(0, WIRE_Push, 1, 1, 4, DTYPE_f32, 0, COUNT * 4);
    push(1, WIRE_Push, 1, 1, 4, DTYPE_f32, 0, COUNT * 4);
    json(0, WIRE_KeyStats, "{\"store\": 1, \"key\": 1}");
    json(0, WIRE_UpdaterCheck, "{\"text\": \"stored = grad\"}");
    json(0, WIRE_ResetStore, "{\"store\": \"c\"}");
    json(0, WIRE_DeleteStore, "{\"store\": \"b\"}");
    json(0, WIRE_Leave, "{\"store\": \"a\"}");
    event(TIME, 0, 1000);
}

/* ---- the player -------------------------------------------------------------------------------------------------- */

struct player {
    struct server *server;
    struct device *device;
    uint64_t now_ms;
    struct seat {
        struct player *player;
        struct peer *peer;
        bool discarded;
    } seats[PEERS];
    uint8_t answered[FRAMES_MAX];
    unsigned refused;
};

/* Descriptions come in the order of what was asked: a gap would give one key the id of another. */
static unsigned descriptions(const struct outgoing *o)
{
    unsigned count = 0;

    for (size_t i = 0; i < o->segment_count; i++)
        for (size_t at = 0; at + 5 <= o->segments[i].size; at++) {
            const char *text = (const char *)o->segments[i].at + at;
            count += memcmp(text, "\"id\":", 5) == 0 || memcmp(text, "null,", 5) == 0 || memcmp(text, "null]", 5) == 0;
        }
    return count;
}

static void take_answer(void *link, struct outgoing *o)
{
    struct player *p = ((struct seat *)link)->player;
    unsigned index = o->id & 0xffff;
    struct wire_header h;
    size_t body = 0;
    struct error e;

    for (size_t i = 0; i < o->segment_count; i++) body += o->segments[i].size;
    CHECK_OK(wire_header_read(bytes_of(o->head.at, o->head.size), o->head.size + body, &h, &e), &e);
    CHECK_EQ(reason_status((enum reason)h.reason), h.status);
    if (h.status != STATUS_OK) {
        CHECK(h.reason != REASON_NONE && h.reason != REASON_INTERNAL && body > 0);
        CHECK(h.reason != REASON_DEVICE_LOST || p->device->lost);
        p->refused++;
    } else if (h.method == WIRE_Describe) {
        CHECK_EQ(descriptions(o), 3);
    }
    CHECK_EQ(h.method, frames[index].header.method);
    p->answered[index]++;
    o->done(o, true);
}

static void no_detach(void *link, const void *owner) { (void)link, (void)owner; }
static void discard(void *link) { ((struct seat *)link)->discarded = true; }
static const struct peer_ops seat_ops = {
    .door = "sweep", .answer = take_answer, .detach = no_detach, .discard = discard,
};

static void send_frame(struct player *p, unsigned index)
{
    struct frame *f = &frames[index];
    struct seat *s = &p->seats[f->peer];
    struct incoming in = {.id = 0x80000000u | index, .header = f->header};
    const uint8_t *fixed = f->head + WIRE_HEADER_SIZE;
    void *at = NULL;

    if (s->peer == NULL) {
        p->answered[index] = 1;
        return;
    }
    in.fixed = bytes_of(fixed, f->header.fixed_size);
    in.desc = bytes_of(fixed + f->header.fixed_size, f->header.desc_size);
    in.body = f->body;
    s->discarded = false;
    if (f->body_size > 0) {
        enum placement where = server_place(s->peer, &in, &at);
        if (where == PLACE_DROP) in.body = NULL;
        if (where == PLACE_AT) in.body = memcpy(at, f->body, f->body_size);
        if (s->discarded) in.body = NULL;
    }
    server_frame(s->peer, &in);
}

static void sit_down(struct player *p)
{
    struct error e;

    for (unsigned i = 0; i < PEERS; i++) {
        p->seats[i].player = p;
        CHECK_OK(server_peer_new(p->server, &seat_ops, &p->seats[i], "sweep", &p->seats[i].peer, &e), &e);
    }
}

static void get_up(struct player *p, unsigned i)
{
    if (p->seats[i].peer != NULL) server_peer_gone(p->seats[i].peer);
    p->seats[i].peer = NULL;
}

static void play(struct player *p)
{
    for (unsigned i = 0; i < frame_count; i++) {
        switch (frames[i].what) {
        case SEND: send_frame(p, i); break;
        case TIME: server_tick(p->server, p->now_ms += frames[i].ms); break;
        case GONE: get_up(p, frames[i].peer); break;
        case SETTLE: server_settle(p->server); break;
        }
        const char *wrong = books_wrong(p->server);
        if (wrong != NULL) test_fail(__FILE__, __LINE__, "after frame %u: %s", i, wrong);
    }
    server_settle(p->server);
    server_tick(p->server, p->now_ms += WAIT_MAX_MS);
    server_settle(p->server);
}

static void check_answers(const struct player *p, uint64_t fault)
{
    for (unsigned i = 0; i < frame_count; i++) {
        if (frames[i].what != SEND) continue;
        bool lost = frames[i].peer == 2 && p->seats[2].peer == NULL; /* an answer may have had nobody to go to */
        if (p->answered[i] != 1 && !(lost && p->answered[i] == 0))
            test_fail(__FILE__, __LINE__, "fault %llu: frame %u (%s) has %u answers", (unsigned long long)fault, i,
                      wire_method_name(frames[i].header.method), p->answered[i]);
    }
}

/* The server is as good as new for somebody else. */
static void check_works(struct player *p)
{
    struct fixture f = {.device = p->device, .server = p->server, .now_ms = p->now_ms};
    struct client *a = client_new(&f, 70), *b = client_new(&f, 71);
    struct error e;

    client_join(a, "\"type\": \"dist_sync\", \"num_workers\": 2");
    client_join(b, "\"type\": \"dist_sync\", \"num_workers\": 2");
    uint64_t id = do_init(a, 1, 1.0f, COUNT);
    do_push(a, id, 1, 2.0f, COUNT);
    do_push(b, id, 1, 3.0f, COUNT);
    CHECK_EQ(do_wait(a, WAIT_TICKET, id, 1, 50, &e), WAIT_DONE);
    CHECK_NEAR(do_pull(b, id, COUNT), 5, 0);
    p->now_ms = f.now_ms;
    client_gone(a);
    client_gone(b);
}

static void clean_up(struct player *p)
{
    for (unsigned i = 0; i < PEERS; i++) get_up(p, i);
    server_tick(p->server, p->now_ms += 10 * ROUND_TIMEOUT_MS);
    server_settle(p->server);
    CHECK(books_wrong(p->server) == NULL);
    CHECK_EQ(p->server->core.task_count, 0);
    CHECK_EQ(p->server->core.staging_used, 0);
    CHECK_EQ(p->server->core.staging_reserved, 0);
    server_free(p->server);
    device_free(p->device);
}

static void start(struct player *p, struct device *d)
{
    struct server_config c = {.device = d, .seed = {3}, .instance = {{1}}, .host = "here"};
    struct error e;

    *p = (struct player){.device = d, .now_ms = 1000};
    CHECK_OK(server_new(&c, 1000, &p->server, &e), &e);
    sit_down(p);
}

/* ---- allocations ------------------------------------------------------------------------------------------------- */

static void set_up(void)
{
    log_set_level(LOG_OFF);
    json_set_alloc_funcs(mem_new, mem_free);
    json_object_seed(1);
    record_scenario();
}

static struct device *device_of(unsigned kind)
{
    struct device *d = NULL;
    struct error e;

    if (kind == 0) CHECK_OK(cpu_device_new(1, &d, &e), &e);
    else CHECK_OK(late_device_new(kind, &d, &e), &e);
    return d;
}

TEST(the_scenario_runs_without_a_fault)
{
    struct player p;

    set_up();
    for (unsigned kind = 0; kind < 3; kind++) {
        int64_t live = mem_live();
        start(&p, device_of(kind));
        play(&p);
        check_answers(&p, 0);
        CHECK_EQ(p.refused, kind == 0); /* the CPU has no mailbox */
        check_works(&p);
        clean_up(&p);
        CHECK_EQ(mem_live(), live);
    }
}

TEST(a_server_that_finds_no_memory_to_begin_says_so_and_keeps_nothing)
{
    struct server_config c = {.seed = {3}, .token = "t", .advertise = "h", .bulk_path = "/p", .host = "h"};
    struct server *s;
    struct error e;
    int hit = 1;

    set_up();
    c.device = device_of(0);
    for (uint64_t n = 1; hit; n++) {
        int64_t live = mem_live();
        mem_fault_at(n);
        enum status st = server_new(&c, 1, &s, &e);
        hit = mem_fault_hit();
        mem_fault_at(0);
        CHECK_EQ(st, hit ? STATUS_RESOURCE_EXHAUSTED : STATUS_OK);
        if (st == STATUS_OK) server_free(s);
        CHECK_EQ(mem_live(), live);
    }
    device_free(c.device);
}

static void sweep_memory(unsigned kind)
{
    struct player p;
    uint64_t n = 1;
    int hit;

    set_up();
    test_time_limit(600);
    do {
        int64_t live = mem_live();
        start(&p, device_of(kind));
        mem_fault_at(n);
        play(&p);
        hit = mem_fault_hit();
        mem_fault_at(0);
        check_answers(&p, n);
        check_works(&p);
        clean_up(&p);
        if (mem_live() != live)
            test_fail(__FILE__, __LINE__, "fault %llu: %lld blocks are lost", (unsigned long long)n,
                      (long long)(mem_live() - live));
        n++;
    } while (hit);
    CHECK(n > 500);
}

TEST(every_allocation_may_fail_on_the_cpu) { sweep_memory(0); }
TEST(every_allocation_may_fail_on_a_late_device) { sweep_memory(1); }

/* ---- calls of the device ----------------------------------------------------------------------------------------- */

static struct device_ops hidden;
static enum status (*mem_new_of)(struct device *d, size_t size, struct dmem *out, struct error *e);

/* Memory that only the device can reach, so that values are brought up and down. */
static enum status hide_memory(struct device *d, size_t size, struct dmem *out, struct error *e)
{
    enum status s = mem_new_of(d, size, out, e);

    if (s == STATUS_OK) out->host = NULL;
    return s;
}

static struct device *faulty_of(bool hide)
{
    struct device *d;
    struct error e;

    CHECK_OK(faulty_device_new(device_of(0), &d, &e), &e);
    if (!hide) return d;
    hidden = *d->ops;
    mem_new_of = hidden.mem_new;
    hidden.mem_new = hide_memory;
    d->ops = &hidden;
    return d;
}

/* A lost device says so to whoever needs it, at once or to the ticket, and keeps nobody waiting. */
static void check_lost(struct player *p)
{
    struct fixture f = {.device = p->device, .server = p->server, .now_ms = p->now_ms};
    struct client *c = client_new(&f, 70);
    float v[COUNT] = {0};
    struct error e;

    client_join(c, "\"type\": \"dist_async\"");
    CHECK_EQ(try_init(c, 1, v, COUNT, 1, 0, NULL, NULL, &e), STATUS_UNAVAILABLE);
    CHECK_EQ(e.reason, REASON_DEVICE_LOST);
    do_json(c, WIRE_Stats, "{}");
    p->now_ms = f.now_ms;
    client_gone(c);
}

static void sweep_device(bool hide, enum fault_mode mode)
{
    struct player p;
    uint64_t n = 1;
    bool hit;

    set_up();
    test_time_limit(600);
    do {
        int64_t live = mem_live();
        start(&p, faulty_of(hide));
        faulty_device_fail_at(p.device, n, mode);
        play(&p);
        hit = faulty_device_hit(p.device);
        faulty_device_fail_at(p.device, 0, mode);
        check_answers(&p, n);
        CHECK(mode != FAULT_SYSTEM || !p.device->lost);
        if (p.device->lost) check_lost(&p);
        else check_works(&p);
        clean_up(&p);
        if (mem_live() != live)
            test_fail(__FILE__, __LINE__, "call %llu: %lld blocks are lost", (unsigned long long)n,
                      (long long)(mem_live() - live));
        n++;
    } while (hit);
    CHECK(n > 50);
}

TEST(every_call_of_the_device_may_be_refused) { sweep_device(false, FAULT_REFUSED); }
TEST(every_call_of_the_device_may_be_accepted_and_not_done) { sweep_device(false, FAULT_ACCEPTED); }
TEST(every_call_of_a_device_with_memory_of_its_own_may_be_refused) { sweep_device(true, FAULT_REFUSED); }
TEST(every_call_of_a_device_with_memory_of_its_own_may_be_accepted_and_not_done) { sweep_device(true, FAULT_ACCEPTED); }
TEST(every_call_of_the_device_may_be_refused_by_the_system) { sweep_device(false, FAULT_SYSTEM); }
TEST(every_call_of_a_device_with_memory_of_its_own_may_be_refused_by_the_system) { sweep_device(true, FAULT_SYSTEM); }
