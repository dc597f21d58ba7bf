/* What clients may do to the server: the input is a little program of requests, over several connections of three
 * clients, whose fields are partly what exists and partly anything; between them time passes, connections go, bodies
 * stop half way, answers lie unsent. After each step the store's books must agree with what they count.
 *
 *   build/fuzz/fuzz_server -max_total_time=180 build/fuzz/corpus_server
 *   (links with all of service/base api gpu service but main, settings, notify and transport_*, and with
 *   tests/lib/books.c and tests/lib/late_device.c) */
#include "service/op.h"
#include "service/base/log.h"
#include "service/base/mem.h"
#include "tests/lib/books.h"
#include "tests/lib/late_device.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerInitialize(int *argc, char ***argv);

enum { CLIENTS = 3, CONNECTIONS = 6, KNOWN = 16, STEPS_MAX = 400 };

#define MUST(condition)                                                                             \
    do {                                                                                            \
        if (!(condition)) {                                                                         \
            fprintf(stderr, "%s:%d: does not hold: %s\n", __FILE__, __LINE__, #condition);          \
            abort();                                                                                \
        }                                                                                           \
    } while (0)

/* ---- the program ------------------------------------------------------------------------------------------------- */

static const uint8_t *code;
static size_t code_left;

static unsigned byte(void)
{
    if (code_left == 0) return 0;
    code_left--;
    return *code++;
}

static uint64_t number(unsigned size)
{
    uint64_t n = 0;
    for (unsigned i = 0; i < size; i++) n = n << 8 | byte();
    return n;
}

/* ---- what the clients know --------------------------------------------------------------------------------------- */

struct link {
    struct peer *peer;
    struct wire_id id;
    uint32_t epoch, session, next_id;
    uint32_t asked, answered;
    struct list out;                 /* answers that are not sent yet */
    bool discarded;
    /* a frame whose head has been placed and whose body is on its way */
    bool receiving;
    struct incoming in;
    struct buf head, body;
    enum placement where;
    void *at;
};

static struct server *server;
static struct link links[CONNECTIONS];
static uint64_t now_ms, sequence;
static uint64_t keys[KNOWN], stores[KNOWN];
static unsigned key_count, store_count;

static void remember(uint64_t *list, unsigned *count, uint64_t id)
{
    if (id == 0) return;
    for (unsigned i = 0; i < *count; i++)
        if (list[i] == id) return;
    list[*count < KNOWN ? (*count)++ : id % KNOWN] = id;
}

static uint64_t known(const uint64_t *list, unsigned count)
{
    unsigned b = byte();

    if (b < 250 && count > 0) return list[b % count];
    return number(8);
}

/* ---- answers ----------------------------------------------------------------------------------------------------- */

static unsigned sum;

static void touch(const void *at, size_t size)
{
    for (size_t i = 0; i < size; i++) sum += ((const volatile uint8_t *)at)[i];
}

static void check_faults(struct reader *r, uint32_t count, struct bytes body)
{
    struct wire_fault f;

    for (uint32_t i = 0; i < count; i++) {
        MUST(wire_get_fault(r, &f));
        MUST(f.status != STATUS_OK && f.reason != REASON_NONE && reason_status((enum reason)f.reason) == f.status);
        MUST((uint64_t)f.text_offset + f.text_size <= body.size);
        MUST(bytes_is_utf8(bytes_of((const char *)body.at + f.text_offset, f.text_size)));
    }
    MUST(r->left == 0);
}

static void check_state(struct reader *d)
{
    const uint8_t *start = d->at;
    struct wire_state x;
    struct wire_slot slot;

    MUST(wire_get_state(d, &x) && x.size <= x.total && x.offset <= x.total - x.size && x.since_begun <= x.updates);
    reader_take(d, x.updater_size);
    reader_pad(d, start, 8);
    for (unsigned i = 0; i < x.slots; i++) {
        MUST(wire_get_slot(d, &slot));
        reader_take(d, slot.name_size);
        reader_pad(d, start, 8);
    }
    MUST(!d->failed);
}

static void check_data(const struct wire_header *h, struct bytes fixed, struct bytes desc, struct bytes body)
{
    struct reader f = reader_of(fixed), d = reader_of(desc);
    struct wire_push_done push;
    struct wire_init_done init;
    struct wire_pull_done pull;
    struct wire_wait_done wait;
    struct wire_states_done states;

    switch (h->method) {
    case WIRE_Push: MUST(wire_get_push_done(&f, &push)); check_faults(&d, push.faults, body); break;
    case WIRE_Init:
        MUST(wire_get_init_done(&f, &init));
        for (uint32_t i = 0; i < init.count; i++) {
            struct wire_init_result r;
            MUST(wire_get_init_result(&d, &r));
            remember(keys, &key_count, r.key);
        }
        check_faults(&d, init.faults, body);
        break;
    case WIRE_Pull:
        MUST(wire_get_pull_done(&f, &pull));
        for (uint32_t i = 0; i < pull.count; i++) {
            struct wire_pull_result r;
            MUST(wire_get_pull_result(&d, &r) && r.size <= r.total && r.offset <= r.total - r.size);
        }
        check_faults(&d, pull.faults, body);
        break;
    case WIRE_Wait:
        MUST(wire_get_wait_done(&f, &wait));
        for (uint32_t i = 0; i < wait.count; i++) {
            struct wire_wait_result r;
            MUST(wire_get_wait_result(&d, &r) && r.state <= WAIT_FAILED);
        }
        check_faults(&d, wait.faults, body);
        break;
    case WIRE_GetStates:
        MUST(wire_get_states_done(&f, &states));
        for (uint32_t i = 0; i < states.count; i++) check_state(&d);
        check_faults(&d, states.faults, body);
        break;
    default: break;
    }
}

static void check_json(struct link *l, const struct wire_header *h, struct bytes body)
{
    json_t *j = json_loadb(body.at, body.size, 0, NULL);

    MUST(j != NULL);
    if (h->method == WIRE_Hello) {
        l->epoch = (uint32_t)json_integer_value(json_object_get(j, "epoch"));
        l->session = (uint32_t)json_integer_value(json_object_get(j, "session"));
    }
    if (h->method == WIRE_Create)
        remember(stores, &store_count, (uint64_t)json_integer_value(json_object_get(j, "id")));
    json_decref(j);
}

static void answer(void *link, struct outgoing *o)
{
    struct link *l = link;
    struct wire_header h;
    struct buf body = {0};
    struct error e;

    l->answered++;
    MUST(l->answered <= l->asked);
    for (size_t i = 0; i < o->segment_count; i++) buf_add(&body, o->segments[i].at, o->segments[i].size);
    MUST(wire_header_read(bytes_of(o->head.at, o->head.size), o->head.size + body.size, &h, &e) == STATUS_OK);
    MUST(o->head.size + body.size + 4 <= FRAME_SIZE_MAX);
    struct bytes b = bytes_of(body.at, body.size);
    MUST(h.flags == WIRE_FLAG_ANSWER && reason_status((enum reason)h.reason) == h.status);
    if (h.status != STATUS_OK) MUST(b.size > 0 && bytes_is_utf8(b));
    else if (wire_method_is_json(h.method)) check_json(l, &h, b);
    else check_data(&h, bytes_of(o->head.at + WIRE_HEADER_SIZE, h.fixed_size),
                    bytes_of(o->head.at + WIRE_HEADER_SIZE + h.fixed_size, h.desc_size), b);
    buf_fini(&body);
    list_append(&l->out, &o->node);
}

static void send_out(struct link *l, bool sent)
{
    for (struct outgoing *o; (o = LIST_FIRST(struct outgoing, node, &l->out)) != NULL;) {
        list_remove(&o->node);
        for (size_t i = 0; i < o->segment_count; i++) touch(o->segments[i].at, o->segments[i].size);
        o->done(o, sent);
    }
}

static void detach(void *link, const void *owner)
{
    struct link *l = link;

    LIST_EACH(struct outgoing, o, node, &l->out)
        for (size_t i = 0; i < o->segment_count; i++) {
            if (o->segments[i].owner != owner) continue;
            touch(o->segments[i].at, o->segments[i].size);
            o->segments[i] = (struct segment){NULL, 0, NULL};
        }
}

static void discard(void *link) { ((struct link *)link)->discarded = true; }

static const struct peer_ops ops = {.door = "fuzz", .answer = answer, .detach = detach, .discard = discard};

/* ---- requests ---------------------------------------------------------------------------------------------------- */

static void begin(struct link *l, unsigned method, unsigned flags, uint64_t seq, struct bytes fixed, struct bytes desc,
                  struct bytes body)
{
    struct wire_header h = {.method = (uint8_t)method, .flags = (uint16_t)flags, .worker = l->id, .epoch = l->epoch,
                            .session = l->session, .sequence = seq, .body_size = body.size};

    l->in = (struct incoming){.id = 0x80000000u | ++l->next_id};
    l->head = l->body = (struct buf){0};
    MUST(wire_head_write(&l->head, &h, fixed, desc, body.size, &body, 1));
    buf_add(&l->body, body.at, body.size);
    (void)buf_room(&l->body, 1);
    l->in.header = h;
    l->in.fixed = bytes_of(l->head.at + WIRE_HEADER_SIZE, fixed.size);
    l->in.desc = bytes_of(l->head.at + WIRE_HEADER_SIZE + fixed.size, desc.size);
    l->where = PLACE_SCRATCH;
    l->discarded = false;
    l->asked++;
    l->receiving = true;
    if (body.size > 0) l->where = server_place(l->peer, &l->in, &l->at);
}

static void finish(struct link *l)
{
    if (!l->receiving) return;
    l->receiving = false;
    l->in.body = l->body.at;
    if (l->where == PLACE_DROP || (l->where == PLACE_AT && l->discarded)) l->in.body = NULL;
    else if (l->where == PLACE_AT) {
        memcpy(l->at, l->body.at, (size_t)l->in.header.body_size);
        l->in.body = l->at;
    }
    struct buf head = l->head, body = l->body;
    server_frame(l->peer, &l->in);
    buf_fini(&head);
    buf_fini(&body);
}

static void ask(struct link *l, unsigned method, unsigned flags, uint64_t seq, const struct buf *fixed,
                const struct buf *desc, const struct buf *body)
{
    finish(l);
    begin(l, method, flags, seq, bytes_of(fixed->at, fixed->size), bytes_of(desc->at, desc->size),
          bytes_of(body->at, body->size));
    if (byte() % 8 != 7) finish(l);
}

static void ask_text(struct link *l, unsigned method, const char *text)
{
    struct buf none = {0}, body = {0};
    uint64_t seq = wire_method_flags(method) & WIRE_WRITES ? byte() % 4 != 3 ? ++sequence : sequence - byte() : 0;

    buf_text(&body, text);
    ask(l, method, 0, seq, &none, &none, &body);
    buf_fini(&body);
}

static uint32_t a_store(void) { return (uint32_t)known(stores, store_count); }

static const char *const options[] = {
    "\"type\": \"dist_async\"", "\"type\": \"dist_sync\", \"num_workers\": 2", "\"type\": \"local\"",
    "\"type\": \"dist_sync\", \"elastic\": true, \"on_late\": \"carry\", \"versions_max\": 2",
    "\"type\": \"dist_sync\", \"num_workers\": 3, \"sum_order\": \"rank\", \"on_missing\": \"proceed\"",
    "\"type\": \"dist_sync\", \"elastic\": true, \"on_late\": \"apply\", \"round_timeout\": 1",
    "\"type\": \"dist_async\", \"async_default\": \"add\", \"versions_max\": 2, \"worker_timeout\": 1",
};

static const char *const updaters[] = {
    "null", "{\"type\": \"sgd\", \"momentum\": 0.5}", "{\"type\": \"adam\"}", "{\"type\": \"add\"}",
    "{\"type\": \"average\"}", "{\"type\": \"sgd\"}", "{\"type\": \"none\"}", "3",
};

static void one_json(struct link *l)
{
    static const unsigned methods[] = {WIRE_Create, WIRE_Join, WIRE_Leave, WIRE_Barrier, WIRE_Delete, WIRE_Describe,
        WIRE_List, WIRE_SetUpdater, WIRE_GetUpdater, WIRE_Stats, WIRE_Dismiss, WIRE_DeleteStore, WIRE_ListStores,
        WIRE_Heartbeat, WIRE_Health, WIRE_Hello, WIRE_GetStore, WIRE_ResetStore, WIRE_Workers, WIRE_Rounds,
        WIRE_KeyStats, WIRE_Mailbox};
    unsigned method = methods[byte() % (sizeof methods / sizeof methods[0])];
    char text[512];

    switch (method) {
    case WIRE_Create:
        snprintf(text, sizeof text, "{\"store\": \"s%u\", %s}", byte() % 3, options[byte() % 7]);
        break;
    case WIRE_Barrier: snprintf(text, sizeof text, "{\"store\": %u, \"name\": \"b%u\"}", a_store(), byte() % 3); break;
    case WIRE_Delete:
        snprintf(text, sizeof text, "{\"store\": %u, \"keys\": [%d, \"k%u\", %d], \"force\": %s}", a_store(),
                 (int)(byte() % 4), byte() % 4, (int)(byte() % 4), byte() % 2 ? "true" : "false");
        if (byte() % 2)
            snprintf(text, sizeof text, "{\"store\": %u, \"keys\": [%u], \"force\": true}", a_store(), byte() % 4);
        break;
    case WIRE_Describe:
        snprintf(text, sizeof text, "{\"store\": %u, \"keys\": [%u, %u]}", a_store(), byte() % 4, byte() % 4);
        break;
    case WIRE_KeyStats:
        snprintf(text, sizeof text, byte() % 2 ? "{\"store\": %u, \"key\": %u}" : "{\"store\": %u, \"keys\": [%u, 1]}",
                 a_store(), byte() % 4);
        break;
    case WIRE_List:
        snprintf(text, sizeof text, "{\"store\": %u, \"limit\": %u, \"after\": %u}", a_store(), byte(), byte() % 4);
        break;
    case WIRE_SetUpdater:
        snprintf(text, sizeof text, "{\"store\": %u, \"updater\": %s, \"dry_run\": %s}", a_store(),
                 updaters[byte() % 8], byte() % 8 ? "false" : "true");
        break;
    case WIRE_Mailbox:
        snprintf(text, sizeof text, byte() % 4 ? "{\"host\": \"h\", \"size\": 65536}" : "{}");
        break;
    case WIRE_Dismiss: snprintf(text, sizeof text, "{\"store\": %u, \"worker\": %u}", a_store(), byte() % 4); break;
    case WIRE_ListStores: case WIRE_Heartbeat: case WIRE_Health: case WIRE_Hello:
        snprintf(text, sizeof text, "{}");
        break;
    default: snprintf(text, sizeof text, "{\"store\": %u}", a_store()); break;
    }
    ask_text(l, method, text);
}

static void some_bytes(struct buf *b, uint64_t size)
{
    size_t n = (size_t)(size < 4096 ? size : 4096);
    void *at = buf_room(b, n);
    if (at != NULL) memset(at, (int)byte(), n);
}

/* The size of values, in elements: mostly one of a few, so that shapes agree. */
static uint64_t a_count(void)
{
    static const uint64_t counts[] = {4, 4, 4, 0, 300, 40};
    unsigned b = byte();
    return b < 252 ? counts[b % 6] : number(6);
}

static void one_init(struct link *l)
{
    struct wire_init fixed = {.store = a_store(), .count = 1 + (byte() % 4 == 0), .call = byte() % 8,
                              .on_reinit = byte() % 3};
    struct buf f = {0}, d = {0}, body = {0};
    unsigned flags = byte() % 3 == 0 ? WIRE_FLAG_CHECK : 0;

    for (uint32_t i = 0; i < fixed.count; i++) {
        uint64_t count = a_count(), start = d.size;
        char name[8] = {'k', (char)('0' + byte() % 4)};
        struct wire_init_entry x = {.number = byte() % 4, .ndim = 1, .key_type = byte() % 8 == 0,
                                    .dtype = byte() % 4 == 0 ? (uint8_t)(byte() % 9) : 0};
        x.size = x.total = count * (dtype_known(x.dtype) ? dtype_size((enum dtype)x.dtype) : 4);
        if (x.key_type) x.name_size = 2;
        if (byte() % 4 == 0) x.offset = x.size / 2, x.size -= x.offset;
        if (byte() % 16 == 0) x.size = number(2);
        wire_put_init_entry(&d, &x);
        buf_add(&d, &count, 8);
        if (x.key_type) buf_add(&d, name, 2);
        while ((d.size - start) % 8 != 0) buf_add(&d, "", 1);
        if (!flags || byte() % 4 == 0) some_bytes(&body, x.size);
        if (i + 1 < fixed.count) buf_pad(&body, 16);
    }
    if (byte() % 16 == 0) d.size -= byte() % 8;
    wire_put_init(&f, &fixed);
    ask(l, WIRE_Init, flags, 0, &f, &d, &body);
    buf_fini(&f), buf_fini(&d), buf_fini(&body);
}

/* What a client that reads what it is told would send. */
/* Mostly in the mailbox that the client has. */
static void a_place(const struct link *l, struct buf *b)
{
    const struct session *s = l->peer->session;
    bool known_box = s != NULL && s->box != NULL && byte() % 16 != 0;
    struct wire_place p = {.mailbox = known_box ? s->box->id : byte() % 4, .offset = 16 * byte()};

    if (byte() % 16 == 0) p.offset = number(8);
    wire_put_place(b, &p);
}

static void one_push(struct link *l, unsigned method)
{
    bool in_box = method == WIRE_Push && byte() % 4 == 0;
    struct wire_push fixed = {.store = a_store(), .count = 1 + (byte() % 4 == 0), .force = byte() % 2};
    struct buf f = {0}, d = {0}, body = {0};

    for (uint32_t i = 0; i < fixed.count; i++) {
        struct wire_push_entry x = {.key = known(keys, key_count)};
        struct store *s = store_at(&server->core, fixed.store);
        struct key *k = s != NULL ? store_key_at(s, x.key) : NULL;
        struct worker *w;
        if (k != NULL) {
            x.size = x.total = k->shape.size;
            x.dtype = (uint8_t)k->shape.dtype;
            if (method == WIRE_Push && l->peer->session != NULL &&
                session_worker(l->peer->session, s, &w, NULL) == STATUS_OK)
                x.step = worker_next_step(w, k);
        }
        switch (byte() % 16) {
        case 0: x.offset = x.size / 2, x.size -= x.offset; break;
        case 1: x.size /= 2; break;
        case 2: x.step = number(1); break;
        case 3: x.step--; break;
        case 4: x.size = number(2); break;
        case 5: x.total = number(3); break;
        case 6: x.offset = number(8), x.size = number(8); break;
        case 7: x.dtype = (uint8_t)byte(), x.codec = (uint8_t)byte(); break;
        default: break;
        }
        wire_put_push_entry(&d, &x);
        if (in_box) a_place(l, &body);
        else some_bytes(&body, x.size);
        if (i + 1 < fixed.count) buf_pad(&body, 16);
    }
    wire_put_push(&f, &fixed);
    ask(l, method, in_box ? WIRE_FLAG_MAILBOX : 0, byte() % 4 != 0 ? ++sequence : sequence - byte() % 2, &f, &d, &body);
    buf_fini(&f), buf_fini(&d), buf_fini(&body);
}

static void one_pull(struct link *l)
{
    bool in_box = byte() % 4 == 0;
    struct wire_pull fixed = {.store = a_store(), .count = 1 + byte() % 3};
    struct buf f = {0}, d = {0}, body = {0};

    for (uint32_t i = 0; i < fixed.count; i++) {
        struct wire_pull_entry x = {.key = known(keys, key_count)};
        if (byte() % 4 == 0) x.offset = byte(), x.size = byte();
        if (byte() % 8 == 0) x.version = byte() % 8;
        if (byte() % 8 == 0) x.newer = byte() % 8;
        if (byte() % 32 == 0) x.offset = number(8), x.size = number(8);
        wire_put_pull_entry(&d, &x);
        if (in_box) a_place(l, &body);
    }
    wire_put_pull(&f, &fixed);
    ask(l, WIRE_Pull, in_box ? WIRE_FLAG_MAILBOX : 0, 0, &f, &d, &body);
    buf_fini(&f), buf_fini(&d), buf_fini(&body);
}

static void one_wait(struct link *l)
{
    struct wire_wait fixed = {.count = byte() % 4, .want = byte() % 4, .time_ms = (uint32_t)number(2)};
    struct buf f = {0}, d = {0}, body = {0};

    for (uint32_t i = 0; i < fixed.count; i++) {
        struct wire_wait_entry x = {.kind = byte() % 5, .store = a_store(), .key = known(keys, key_count),
                                    .number = byte() % 8};
        size_t start = d.size;
        if (x.kind == WAIT_BARRIER) x.key = byte() % 8;
        if (x.kind == WAIT_INIT && byte() % 2) x.key_type = KEY_STR, x.name_size = 2;
        wire_put_wait_entry(&d, &x);
        if (x.name_size) buf_add(&d, "k1", 2);
        while ((d.size - start) % 8 != 0) buf_add(&d, "", 1);
    }
    if (byte() % 16 == 0) d.size -= d.size > 0 ? byte() % d.size : 0;
    wire_put_wait(&f, &fixed);
    ask(l, WIRE_Wait, 0, 0, &f, &d, &body);
    buf_fini(&f), buf_fini(&d);
}

static void one_get_states(struct link *l)
{
    struct wire_states fixed = {.store = a_store(), .count = 1 + byte() % 3};
    struct buf f = {0}, d = {0}, body = {0};
    unsigned flags = byte() % 4 == 0 ? WIRE_FLAG_CHECK : 0;

    for (uint32_t i = 0; i < fixed.count; i++) {
        struct wire_states_entry x = {.key = known(keys, key_count)};
        if (byte() % 4 == 0) x.offset = byte(), x.size = byte();
        if (byte() % 4 == 0) x.copy = 1 + byte() % 8;
        if (byte() % 4 == 0) x.slot = byte() % 4;
        if (byte() % 32 == 0) x.offset = number(8), x.size = number(8);
        wire_put_states_entry(&d, &x);
    }
    wire_put_states(&f, &fixed);
    ask(l, WIRE_GetStates, flags, 0, &f, &d, &body);
    buf_fini(&f), buf_fini(&d);
}

static void put_word(struct buf *d, const char *word)
{
    buf_text(d, word);
    buf_pad(d, 8);
}

static void one_set_states(struct link *l)
{
    struct wire_states fixed = {.store = a_store(), .count = 1};
    struct store *s = store_at(&server->core, fixed.store);
    struct wire_state x = {.key = known(keys, key_count), .updates = byte(), .product = wire_of_double(1)};
    struct key *k = s != NULL ? store_key_at(s, x.key) : NULL;
    struct state_piece pieces[STATE_PIECES];
    unsigned n = k != NULL ? state_expects(k, store_updater(s), pieces) : 0;
    const char *type = s != NULL ? updater_type(store_updater(s)) : "sgd";
    struct buf f = {0}, d = {0}, body = {0};

    for (unsigned i = 0; i < n; i++) x.total = wire_aligned(x.total) + pieces[i].size;
    x.size = x.total;
    x.slots = (uint16_t)n;
    switch (byte() % 16) {
    case 0: x.offset = x.size / 2, x.size -= x.offset; break;
    case 1: x.size /= 2; break;
    case 2: x.slots = (uint16_t)number(2); break;
    case 3: x.since_begun = byte(), x.product = number(8); break;
    case 4: x.offset = number(8), x.size = number(8); break;
    case 5: x.total = number(8); break;
    case 6: type = "adam"; break;
    default: break;
    }
    x.updater_size = (uint8_t)strlen(type);
    wire_put_state(&d, &x);
    put_word(&d, type);
    for (unsigned i = 0; i < n; i++) {
        struct wire_slot slot = {.count = pieces[i].count, .dtype = (uint8_t)pieces[i].dtype,
                                 .name_size = (uint8_t)strlen(pieces[i].name)};
        if (byte() % 16 == 0) slot.count = number(8);
        wire_put_slot(&d, &slot);
        put_word(&d, pieces[i].name);
    }
    if (byte() % 16 == 0) d.size -= byte() % 8;
    some_bytes(&body, x.size);
    wire_put_states(&f, &fixed);
    ask(l, WIRE_SetStates, byte() % 16 == 0 ? WIRE_FLAG_CHECK : 0, byte() % 4 != 0 ? ++sequence : sequence - byte() % 2,
        &f, &d, &body);
    buf_fini(&f), buf_fini(&d), buf_fini(&body);
}

static void one_raw(struct link *l)
{
    struct buf f = {0}, d = {0}, body = {0};
    unsigned method = byte() % 34, flags = byte() & WIRE_FLAGS_KNOWN;

    for (unsigned n = byte() % 64; n > 0; n--) buf_add(&f, &(uint8_t){(uint8_t)byte()}, 1);
    for (unsigned n = byte() % 128; n > 0; n--) buf_add(&d, &(uint8_t){(uint8_t)byte()}, 1);
    for (unsigned n = byte(); n > 0; n--) buf_add(&body, &(uint8_t){(uint8_t)byte()}, 1);
    ask(l, method, flags, number(1), &f, &d, &body);
    buf_fini(&f), buf_fini(&d), buf_fini(&body);
}

/* ---- connections ------------------------------------------------------------------------------------------------- */

static void connect_link(unsigned i, bool greet)
{
    struct link *l = &links[i];
    struct error e;
    uint32_t epoch = 0, session = 0;

    for (unsigned k = 0; k < CONNECTIONS && byte() % 4 != 3; k++)
        if (k != i && k % CLIENTS == i % CLIENTS && links[k].peer != NULL) epoch = links[k].epoch, session = 0;
    *l = (struct link){.id = {{(uint8_t)(1 + i % CLIENTS)}}, .epoch = epoch, .session = session};
    list_init(&l->out);
    MUST(server_peer_new(server, &ops, l, "fuzz", &l->peer, &e) == STATUS_OK);
    if (greet) ask_text(l, WIRE_Hello, "{}");
}

static void gone(struct link *l)
{
    if (l->peer == NULL) return;
    if (l->receiving) {
        buf_fini(&l->head);
        buf_fini(&l->body);
    }
    server_peer_gone(l->peer);
    send_out(l, false);
    *l = (struct link){0};
}

static void check_books(void)
{
    const char *wrong = books_wrong(server);

    if (wrong == NULL) return;
    fprintf(stderr, "the books do not hold: %s\n", wrong);
    abort();
}

/* ---- all together ------------------------------------------------------------------------------------------------ */

static void step(void)
{
    unsigned op = byte();
    struct link *l = &links[byte() % CONNECTIONS];

    if (op >= 232) {
        switch (op % 8) {
        case 0: server_tick(server, now_ms += number(2)); return;
        case 1: server_tick(server, now_ms += byte()); return;
        case 2: server_settle(server); return;
        case 3: server_poll(server); return;
        case 4: gone(l); return;
        case 5: if (l->peer != NULL) send_out(l, true); return;
        case 6: if (l->peer != NULL) finish(l); return;
        default: if (byte() == 255) server_drain(server); return;
        }
    }
    if (l->peer == NULL) connect_link((unsigned)(l - links), byte() % 16 != 15);
    if (l->peer->session == NULL && byte() % 16 != 15) finish(l), ask_text(l, WIRE_Hello, "{}");
    if (op < 60) one_json(l);
    else if (op < 100) one_init(l);
    else if (op < 160) one_push(l, WIRE_Push);
    else if (op < 185) one_pull(l);
    else if (op < 205) one_wait(l);
    else if (op < 222) one_push(l, WIRE_Set);
    else if (op < 225) one_get_states(l);
    else if (op < 229) one_set_states(l);
    else one_raw(l);
}

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
    (void)argc, (void)argv;
    log_set_level(LOG_OFF);
    json_set_alloc_funcs(mem_new, mem_free);
    return 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    int64_t live = mem_live();
    struct server_config config = {.seed = {7}, .instance = {{1}}, .host = "h"};
    struct error e;

    code = data;
    code_left = size;
    unsigned kind = byte();
    config.staging_max = kind & 2 ? 4096 : 1 << 20;
    if (kind & 1) MUST(late_device_new(kind, &config.device, &e) == STATUS_OK);
    else MUST(cpu_device_new(1, &config.device, &e) == STATUS_OK);
    now_ms = 1000;
    key_count = store_count = 0;
    sequence = 0;
    MUST(server_new(&config, now_ms, &server, &e) == STATUS_OK);
    /* A start that gets somewhere. */
    for (unsigned i = 0; i < CLIENTS; i++) connect_link(i, true);
    for (unsigned n = 0; n < STEPS_MAX && code_left > 0; n++) {
        step();
        check_books();
    }
    for (unsigned i = 0; i < CONNECTIONS; i++)
        if (links[i].peer != NULL) finish(&links[i]);
    server_settle(server);
    server_tick(server, now_ms += WAIT_MAX_MS);
    server_settle(server);
    check_books();
    for (unsigned i = 0; i < CONNECTIONS; i++) {
        if (links[i].peer != NULL) MUST(links[i].asked == links[i].answered);
        gone(&links[i]);
    }
    server_tick(server, now_ms += 10 * WORKER_TIMEOUT_MS);
    server_settle(server);
    MUST(server->core.staging_reserved == 0 && server->core.staging_used == 0);
    server_free(server);
    device_free(config.device);
    MUST(mem_live() == live);
    return 0;
}
