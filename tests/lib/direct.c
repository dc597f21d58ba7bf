#include "tests/lib/direct.h"

#include "service/base/mem.h"
#include "tests/lib/test.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- fixture ---------------------------------------------------------------------------------------------------- */

struct fixture *fixture_new(struct device *device, uint64_t staging_max)
{
    struct fixture *f = calloc(1, sizeof *f);
    struct server_config c = {.device = device, .seed = {1, 2, 3}, .instance = {{9, 9}}, .staging_max = staging_max,
                              .host = "here"};
    struct error e;

    f->device = device;
    f->now_ms = 1000;
    CHECK_OK(server_new(&c, f->now_ms, &f->server, &e), &e);
    return f;
}

void fixture_free(struct fixture *f)
{
    server_free(f->server);
    device_free(f->device);
    free(f);
}

void fixture_advance(struct fixture *f, uint64_t ms)
{
    f->now_ms += ms;
    server_tick(f->server, f->now_ms);
}

void fixture_begin_turns(struct fixture *f)
{
    f->in_turns = true;
    fixture_turn(f);
}

void fixture_turn(struct fixture *f)
{
    server_turn(f->server);
    server_poll(f->server);
}

void fixture_settle(struct fixture *f)
{
    if (!f->in_turns) server_settle(f->server);
    while (f->in_turns && server_busy(f->server)) fixture_turn(f);
}

/* ---- a connection ------------------------------------------------------------------------------------------------ */

static void take_answer(void *link, struct outgoing *o)
{
    struct client *c = link;
    struct answered *a = calloc(1, sizeof *a);
    size_t size = o->head.size, at = o->head.size;
    struct error e;

    for (size_t i = 0; i < o->segment_count; i++) size += o->segments[i].size;
    a->id = o->id;
    a->bytes = malloc(size + 1);
    memcpy(a->bytes, o->head.at, o->head.size);
    for (size_t i = 0; i < o->segment_count; at += o->segments[i++].size)
        if (o->segments[i].size > 0) memcpy(a->bytes + at, o->segments[i].at, o->segments[i].size);
    CHECK_OK(wire_header_read(bytes_of(a->bytes, size), size, &a->header, &e), &e);
    a->fixed = bytes_of(a->bytes + WIRE_HEADER_SIZE, a->header.fixed_size);
    a->desc = bytes_of((const uint8_t *)a->fixed.at + a->fixed.size, a->header.desc_size);
    a->body = bytes_of(a->bytes + wire_head_size(&a->header), (size_t)a->header.body_size);
    a->next = c->answers;
    c->answers = a;
    o->done(o, true);
}

static void no_detach(void *link, const void *owner) { (void)link; (void)owner; }
static void no_discard(void *link) { (void)link; }

static void forget_frame(struct client *c)
{
    buf_fini(&c->head);
    free(c->body);
    c->body = NULL;
}

static void hold(void *link, bool on)
{
    struct client *c = link;

    c->held = on;
    if (!on) forget_frame(c);
}

static const struct peer_ops ops = {.door = "direct", .answer = take_answer, .detach = no_detach, .discard = no_discard,
                                    .hold = hold};

void answered_free(struct answered *a)
{
    if (a == NULL) return;
    free(a->bytes);
    free(a);
}

static struct client *connect_as(struct fixture *f, struct wire_id id, uint32_t epoch)
{
    struct client *c = calloc(1, sizeof *c);
    struct error e;

    c->fixture = f;
    c->id = id;
    c->epoch = epoch;
    CHECK_OK(server_peer_new(f->server, &ops, c, "test", &c->peer, &e), &e);
    return c;
}

static struct client *greeted(struct client *c)
{
    struct error e;
    json_t *j = try_json(c, WIRE_Hello, &e, "{\"client\": \"test\"}");
    if (j == NULL) test_fail(__FILE__, __LINE__, "hello: %s", e.text);
    c->epoch = (uint32_t)json_integer_value(json_object_get(j, "epoch"));
    c->session = (uint32_t)json_integer_value(json_object_get(j, "session"));
    json_decref(j);
    return c;
}

struct client *client_connect(struct fixture *f, unsigned number)
{
    struct wire_id id = {{1}};
    memcpy(id.at + 4, &number, sizeof number);
    return connect_as(f, id, 0);
}

struct client *client_new(struct fixture *f, unsigned number) { return greeted(client_connect(f, number)); }

struct client *client_again(struct client *c)
{
    struct client *n = greeted(connect_as(c->fixture, c->id, c->epoch));

    n->store = c->store;
    n->rank = c->rank;
    n->sequence = c->sequence;
    return n;
}

void client_gone(struct client *c)
{
    server_peer_gone(c->peer);
    forget_frame(c);
    for (struct answered *a; (a = c->answers) != NULL;) {
        c->answers = a->next;
        answered_free(a);
    }
    free(c);
}

uint32_t client_send(struct client *c, unsigned method, unsigned flags, uint64_t sequence, struct bytes fixed,
                     struct bytes desc, struct bytes body)
{
    struct wire_header h = {.method = (uint8_t)method, .flags = (uint16_t)flags, .worker = c->id, .epoch = c->epoch,
                            .session = c->session, .sequence = sequence};
    struct incoming in = {.id = 0x80000000u | ++c->next_id};
    struct buf head = {0};
    void *copy = malloc(body.size + 1), *at = NULL;

    if (c->fixture->in_turns) fixture_turn(c->fixture);
    while (c->held) fixture_turn(c->fixture); /* as a door does */
    CHECK(wire_head_write(&head, &h, fixed, desc, body.size, &body, 1));
    in.header = h;
    in.fixed = bytes_of(head.at + WIRE_HEADER_SIZE, fixed.size);
    in.desc = bytes_of(head.at + WIRE_HEADER_SIZE + fixed.size, desc.size);
    in.body = copy;
    if (body.size > 0) {
        memcpy(copy, body.at, body.size);
        switch (server_place(c->peer, &in, &at)) {
        case PLACE_AT: memcpy(at, body.at, body.size); in.body = at; break;
        case PLACE_DROP: in.body = NULL; break;
        case PLACE_SCRATCH: break;
        }
    }
    c->head = head;
    c->body = copy;
    server_frame(c->peer, &in);
    if (!c->held) forget_frame(c);
    return in.id;
}

struct answered *client_take(struct client *c, uint32_t id)
{
    for (struct answered **at = &c->answers; *at != NULL; at = &(*at)->next) {
        struct answered *a = *at;
        if (a->id != id) continue;
        *at = a->next;
        return a;
    }
    return NULL;
}

struct answered *client_await(struct client *c, uint32_t id)
{
    fixture_settle(c->fixture);
    struct answered *a = client_take(c, id);
    if (a == NULL) test_fail(__FILE__, __LINE__, "no answer to request %u", id & 0x7fffffff);
    return a;
}

static enum status status_of(const struct answered *a, struct error *e)
{
    if (a->header.status == STATUS_OK) return STATUS_OK;
    return error_set(e, reason_from_wire(a->header.reason), "%.*s", (int)a->body.size, (const char *)a->body.at);
}

/* The answer's only fault, if it has one; it follows `results` bytes of descriptors. */
static enum status fault_of(const struct answered *a, size_t results, struct error *e)
{
    struct reader r = reader_of(a->desc);
    struct wire_fault f;

    if (a->desc.size <= results) return STATUS_OK;
    reader_take(&r, results);
    CHECK(wire_get_fault(&r, &f));
    CHECK(f.text_offset + f.text_size <= a->body.size);
    return error_set(e, reason_from_wire(f.reason), "%.*s", (int)f.text_size, (const char *)a->body.at + f.text_offset);
}

/* ---- JSON -------------------------------------------------------------------------------------------------------- */

static json_t *call(struct client *c, unsigned method, struct error *e, const char *text)
{
    uint64_t sequence = wire_method_flags(method) & WIRE_WRITES ? ++c->sequence : 0;
    uint32_t id = client_send(c, method, 0, sequence, bytes_of(NULL, 0), bytes_of(NULL, 0), bytes_text(text));
    struct answered *a = client_await(c, id);
    json_t *j = status_of(a, e) == STATUS_OK ? json_loadb(a->body.at, a->body.size, 0, NULL) : NULL;

    answered_free(a);
    return j;
}

json_t *try_json(struct client *c, unsigned method, struct error *e, const char *format, ...)
{
    char text[4096];
    va_list args;

    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    return call(c, method, e, text);
}

void do_json(struct client *c, unsigned method, const char *format, ...)
{
    char text[4096];
    struct error e;
    va_list args;

    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    json_t *j = call(c, method, &e, text);
    if (j == NULL) test_fail(__FILE__, __LINE__, "%s %s: %s", wire_method_name(method), text, e.text);
    json_decref(j);
}

void client_join(struct client *c, const char *options)
{
    struct error e;
    json_t *j = try_json(c, WIRE_Create, &e, "{\"store\": \"s\", %s}", options);

    if (j == NULL) test_fail(__FILE__, __LINE__, "create: %s", e.text);
    c->store = (uint32_t)json_integer_value(json_object_get(j, "id"));
    json_decref(j);
    j = try_json(c, WIRE_Join, &e, "{\"store\": %u}", c->store);
    if (j == NULL) test_fail(__FILE__, __LINE__, "join: %s", e.text);
    c->rank = (uint32_t)json_integer_value(json_object_get(j, "rank"));
    json_decref(j);
}

struct client *client_joined(struct fixture *f, unsigned number, const char *options)
{
    struct client *c = client_new(f, number);

    client_join(c, options);
    return c;
}

/* ---- data -------------------------------------------------------------------------------------------------------- */

enum status try_init(struct client *c, int64_t key, const float *value, size_t count, uint64_t call_number,
                     int on_reinit, enum init_outcome *outcome, uint64_t *id, struct error *e)
{
    struct wire_init fixed = {.store = c->store, .count = 1, .call = call_number, .on_reinit = (uint32_t)on_reinit};
    struct wire_init_entry x = {.number = key, .size = value != NULL ? count * 4 : 0, .total = count * 4, .ndim = 1};
    struct buf f = {0}, d = {0};
    int64_t dim = (int64_t)count;
    struct wire_init_result r = {0};

    wire_put_init(&f, &fixed);
    wire_put_init_entry(&d, &x);
    buf_add(&d, &dim, sizeof dim);
    uint32_t request = client_send(c, WIRE_Init, value == NULL ? WIRE_FLAG_CHECK : 0, 0, bytes_of(f.at, f.size),
                                   bytes_of(d.at, d.size), bytes_of(value, value != NULL ? count * 4 : 0));
    struct answered *a = client_await(c, request);
    enum status s = status_of(a, e);
    if (s == STATUS_OK) {
        struct reader in = reader_of(a->desc);
        CHECK(wire_get_init_result(&in, &r));
        s = fault_of(a, wire_init_result_size, e);
    }
    if (outcome != NULL) *outcome = (enum init_outcome)r.outcome;
    if (id != NULL) *id = r.key;
    answered_free(a);
    buf_fini(&f);
    buf_fini(&d);
    return s;
}

static float *filled(float value, size_t count)
{
    float *v = malloc(count * sizeof *v + 1);
    for (size_t i = 0; i < count; i++) v[i] = value;
    return v;
}

uint64_t do_init(struct client *c, int64_t key, float value, size_t count)
{
    float *v = filled(value, count);
    enum init_outcome outcome;
    uint64_t id;
    struct error e;

    CHECK_OK(try_init(c, key, v, count, ++c->sequence + 1000, 0, &outcome, &id, &e), &e);
    CHECK_EQ(outcome, INIT_CREATED);
    free(v);
    return id;
}

enum status try_push(struct client *c, uint64_t id, uint64_t step, const void *value, size_t size, enum dtype t,
                     struct error *e)
{
    struct wire_push fixed = {.store = c->store, .count = 1};
    struct wire_push_entry x = {.key = id, .step = step, .size = size, .total = size, .dtype = (uint8_t)t};
    struct buf f = {0}, d = {0};

    wire_put_push(&f, &fixed);
    wire_put_push_entry(&d, &x);
    uint32_t request = client_send(c, WIRE_Push, 0, ++c->sequence, bytes_of(f.at, f.size), bytes_of(d.at, d.size),
                                   bytes_of(value, size));
    struct answered *a = client_take(c, request); /* never waits for another, nor for the device */
    CHECK(a != NULL);
    enum status s = status_of(a, e);
    if (s == STATUS_OK) s = fault_of(a, 0, e);
    answered_free(a);
    buf_fini(&f);
    buf_fini(&d);
    return s;
}

void do_push(struct client *c, uint64_t id, uint64_t step, float value, size_t count)
{
    float *v = filled(value, count);
    struct error e;

    CHECK_OK(try_push(c, id, step, v, count * 4, DTYPE_f32, &e), &e);
    free(v);
}

enum status try_pull(struct client *c, uint64_t id, uint64_t version, void *out, size_t size, uint64_t *got,
                     struct error *e)
{
    struct wire_pull fixed = {.store = c->store, .count = 1};
    struct wire_pull_entry x = {.key = id, .version = version};
    enum status s = STATUS_OK;

    do {
        struct buf f = {0}, d = {0};
        struct wire_pull_result r = {0};
        wire_put_pull(&f, &fixed);
        wire_put_pull_entry(&d, &x);
        struct answered *a = client_await(c, client_send(c, WIRE_Pull, 0, 0, bytes_of(f.at, f.size),
                                                         bytes_of(d.at, d.size), bytes_of(NULL, 0)));
        s = status_of(a, e);
        if (s == STATUS_OK) {
            struct reader in = reader_of(a->desc);
            CHECK(wire_get_pull_result(&in, &r));
            s = fault_of(a, wire_pull_result_size, e);
        }
        if (s == STATUS_OK) {
            CHECK_EQ(r.total, size);
            CHECK_EQ(r.offset, x.offset);
            if (r.size > 0) memcpy((char *)out + r.offset, a->body.at, (size_t)r.size);
            x.version = r.version;
            x.offset += r.size;
            if (got != NULL) *got = r.version;
        }
        answered_free(a);
        buf_fini(&f);
        buf_fini(&d);
    } while (s == STATUS_OK && x.offset < size);
    return s;
}

float do_pull(struct client *c, uint64_t id, size_t count)
{
    float *v = filled(-77, count);
    struct error e;

    CHECK_OK(try_pull(c, id, 0, v, count * 4, NULL, &e), &e);
    for (size_t i = 1; i < count; i++)
        if (v[i] != v[0]) test_fail(__FILE__, __LINE__, "element %zu is %g, the first is %g", i, (double)v[i], (double)v[0]);
    float first = v[0];
    free(v);
    return first;
}

enum wait_state do_wait(struct client *c, unsigned kind, uint64_t key, uint64_t number, uint32_t time_ms,
                        struct error *e)
{
    struct wire_wait fixed = {.count = 1, .want = 1, .time_ms = time_ms};
    struct wire_wait_entry x = {.kind = kind, .store = c->store, .key = key, .number = number};
    struct wire_wait_result r = {0};
    struct buf f = {0}, d = {0};

    wire_put_wait(&f, &fixed);
    wire_put_wait_entry(&d, &x);
    uint32_t id = client_send(c, WIRE_Wait, 0, 0, bytes_of(f.at, f.size), bytes_of(d.at, d.size), bytes_of(NULL, 0));
    fixture_settle(c->fixture);
    struct answered *a = client_take(c, id);
    if (a == NULL) {
        fixture_advance(c->fixture, time_ms);
        a = client_await(c, id);
    }
    if (status_of(a, e) != STATUS_OK) test_fail(__FILE__, __LINE__, "wait: %s", e->text);
    struct reader in = reader_of(a->desc);
    if (wire_get_wait_result(&in, &r)) (void)fault_of(a, wire_wait_result_size, e);
    answered_free(a);
    buf_fini(&f);
    buf_fini(&d);
    return (enum wait_state)r.state;
}
