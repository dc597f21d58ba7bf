/* The client's logic against links and a daemon that are made of this file: what is sent when, under which names, and
 * what becomes of it when the network, the daemon or the memory does not play along. The clock is the test's. */
#include "api/client/engine.h"
#include "api/client/documents.h"
#include "gpu/dtype.h"
#include "service/base/mem.h"
#include "tests/lib/test.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- links and daemon -------------------------------------------------------------------------------------------- */

enum { REQUESTS = 128, BYTES = 3 << 20, LINKS = 3, CONTROL = 0, WAITING = 1, DATA = 2 };

struct request {
    uint32_t id;
    struct wire_header header;
    struct bytes fixed, desc, body;      /* in `bytes` */
    uint8_t *bytes;
    bool answered;
};

struct fake {
    struct link link;
    bool open, up, hold;                 /* hold: what is sent stays with the link */
    unsigned opens, detached, discarded;
    struct address to;
    struct request requests[REQUESTS];
    size_t count;
    struct list held;
};

static struct error e;
static struct fake fakes[LINKS];
static struct client_options options;
static struct engine *en;
static uint64_t now;

/* What the daemon says. */
static struct {
    char instance[33];
    unsigned bulk_port;
    uint64_t window;
    uint64_t next_step, recorded;
    unsigned heartbeat_ms;               /* at Join; 0: not said */
    int64_t count;                       /* elements of every key */
    bool knows_keys, has_store;
} says;

static struct fake *fake_of(struct link *l) { return CONTAINER_OF(l, struct fake, link); }

static void fake_open(struct link *l, const struct address *to)
{
    fake_of(l)->open = true;
    fake_of(l)->opens++;
    fake_of(l)->to = *to;
}

/* Bytes are taken as they are now, so a later change of the caller's array shows. */
static void take(struct fake *f, const struct outgoing *o)
{
    size_t size = o->head.size, at = o->head.size;
    struct request *r = &f->requests[f->count++];

    CHECK(f->count <= REQUESTS);
    for (size_t i = 0; i < o->segment_count; i++) size += o->segments[i].size;
    *r = (struct request){.id = o->id, .bytes = malloc(size)};
    memcpy(r->bytes, o->head.at, o->head.size);
    for (size_t i = 0; i < o->segment_count; i++) {
        if (o->segments[i].size > 0) memcpy(r->bytes + at, o->segments[i].at, o->segments[i].size);
        at += o->segments[i].size;
    }
    CHECK_OK(wire_header_read(bytes_of(r->bytes, size), size, &r->header, &e), &e);
    r->fixed = bytes_of(r->bytes + WIRE_HEADER_SIZE, r->header.fixed_size);
    r->desc = bytes_of(r->bytes + WIRE_HEADER_SIZE + r->header.fixed_size, r->header.desc_size);
    r->body = bytes_of(r->bytes + wire_head_size(&r->header), r->header.body_size);
}

static void fake_send(struct link *l, struct outgoing *o)
{
    struct fake *f = fake_of(l);

    CHECK(f->up);
    take(f, o);
    if (f->hold) list_append(&f->held, &o->node);
    else o->done(o, true);
}

static void fake_close(struct link *l)
{
    struct fake *f = fake_of(l);

    f->open = f->up = false;
    for (struct outgoing *o; (o = LIST_FIRST(struct outgoing, node, &f->held)) != NULL;) {
        list_remove(&o->node);
        o->done(o, false);
    }
}

static bool fake_detach(struct link *l, const void *owner)
{
    (void)owner;
    fake_of(l)->detached++;
    return true;
}

static void fake_discard(struct link *l) { fake_of(l)->discarded++; }

static const struct link_ops fake_ops = {
    .open = fake_open, .send = fake_send, .close = fake_close, .detach = fake_detach, .discard = fake_discard,
};

static uint8_t room[4][BYTES];

/* A buffer that never allocates, so that the sweep counts the engine's allocations only. */
static struct buf roomy(unsigned which) { return (struct buf){.at = room[which], .capacity = BYTES}; }

struct reply {
    enum reason reason;
    uint32_t retry_ms;
    struct buf fixed, desc, body;
};

static struct reply reply_ok(void)
{
    return (struct reply){.fixed = roomy(0), .desc = roomy(1), .body = roomy(2)};
}

static void give(unsigned link, struct request *r, const struct reply *reply)
{
    struct fake *f = &fakes[link];
    struct incoming in = {
        .id = r->id, .error = &e,
        .header = {.method = r->header.method, .flags = WIRE_FLAG_ANSWER, .reason = (uint16_t)reply->reason,
                   .status = (uint16_t)reason_status(reply->reason), .body_size = reply->body.size},
        .fixed = bytes_of(reply->fixed.at, reply->fixed.size), .desc = bytes_of(reply->desc.at, reply->desc.size),
    };
    void *at = NULL;

    r->answered = true;
    if (reply->body.size > 0) {
        enum placement p = engine_place(&f->link, &in, &at);
        if (p == PLACE_AT) memcpy(at, reply->body.at, reply->body.size);
        in.body = p == PLACE_AT ? at : p == PLACE_SCRATCH ? reply->body.at : NULL;
    }
    engine_answer(&f->link, &in);
}

static void refuse(unsigned link, struct request *r, enum reason reason, uint32_t retry_ms)
{
    struct reply reply = reply_ok();

    reply.reason = reason;
    wire_put_error(&reply.fixed, &(struct wire_error){retry_ms});
    buf_text(&reply.body, "the daemon says no");
    give(link, r, &reply);
}

static void add_fault(struct reply *reply, uint32_t index, enum reason reason, uint32_t retry_ms, const char *text)
{
    wire_put_fault(&reply->desc, &(struct wire_fault){
        .index = index, .status = (uint16_t)reason_status(reason), .reason = (uint16_t)reason, .retry_ms = retry_ms,
        .text_offset = (uint32_t)reply->body.size, .text_size = (uint32_t)strlen(text),
    });
    buf_text(&reply->body, text);
}

static void put_text(struct buf *b, const char *format, ...) PRINTF_LIKE(2, 3);
static void put_text(struct buf *b, const char *format, ...)
{
    char text[1024];
    va_list args;

    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    buf_text(b, text);
}

/* ---- the daemon's usual answers ---------------------------------------------------------------------------------- */

static void say_hello(struct reply *a)
{
    put_text(&a->body, "{\"instance\":\"%s\",\"session\":5,\"epoch\":3,\"limits\":{\"frame\":4259840,\"part\":1048576,"
             "\"in_flight_bulk\":4,\"in_flight_small\":16,\"window\":%" PRIu64 "},\"heartbeat_ms\":2000,\"bulk\":",
             says.instance, says.window);
    if (says.bulk_port != 0) put_text(&a->body, "{\"port\":%u}}", says.bulk_port);
    else put_text(&a->body, "null}");
}

static void say_described(struct reply *a, const struct request *r)
{
    json_t *doc = json_loadb(r->body.at, r->body.size, 0, NULL), *keys = json_object_get(doc, "keys");

    put_text(&a->body, "{\"items\":[");
    for (size_t i = 0; i < json_array_size(keys); i++) {
        long long key = json_integer_value(json_array_get(keys, i));
        if (!says.knows_keys) put_text(&a->body, "%snull", i > 0 ? "," : "");
        else
            put_text(&a->body, "%s{\"key\":%lld,\"id\":%lld,\"dtype\":\"f32\",\"shape\":[%" PRId64 "],\"version\":1,"
                     "\"next_step\":%" PRIu64, i > 0 ? "," : "", key, key + 100, says.count, says.next_step);
        if (says.knows_keys && says.recorded > 0) put_text(&a->body, ",\"recorded\":%" PRIu64, says.recorded);
        if (says.knows_keys) put_text(&a->body, "}");
    }
    put_text(&a->body, "]}");
    json_decref(doc);
}

static void say_recorded(struct reply *a, const struct request *r)
{
    struct reader fixed = reader_of(r->fixed), desc = reader_of(r->desc);
    struct wire_push push;
    struct wire_push_entry entry;

    wire_get_push(&fixed, &push);
    wire_get_push_entry(&desc, &entry);
    bool last = entry.offset + entry.size == entry.total;
    uint32_t whole = last ? push.count : 0;
    if (r->header.method == WIRE_Push) wire_put_push_done(&a->fixed, &(struct wire_push_done){.recorded = whole});
    else wire_put_set_done(&a->fixed, &(struct wire_set_done){whole, 0, 2});
}

static void say_initialised(struct reply *a, const struct request *r)
{
    struct reader fixed = reader_of(r->fixed);
    struct wire_init init;
    bool check = (r->header.flags & WIRE_FLAG_CHECK) != 0;

    wire_get_init(&fixed, &init);
    wire_put_init_done(&a->fixed, &(struct wire_init_done){init.count, 0});
    uint32_t outcome = check ? INIT_NEED_VALUE : INIT_CREATED;
    for (uint32_t i = 0; i < init.count; i++)
        wire_put_init_result(&a->desc, &(struct wire_init_result){101 + i, 1, 1, outcome, 0});
}

static void say_decided(struct reply *a, const struct request *r)
{
    struct reader fixed = reader_of(r->fixed);
    struct wire_wait wait;

    wire_get_wait(&fixed, &wait);
    wire_put_wait_done(&a->fixed, &(struct wire_wait_done){wait.count, 0});
    for (uint32_t i = 0; i < wait.count; i++)
        wire_put_wait_result(&a->desc, &(struct wire_wait_result){i, WAIT_DONE, 2});
}

/* The bytes of version v are all v. */
static void say_values(struct reply *a, const struct request *r, uint64_t newest)
{
    struct reader fixed = reader_of(r->fixed), desc = reader_of(r->desc);
    struct wire_pull pull;
    struct wire_pull_entry x;
    uint64_t total = (uint64_t)says.count * 4;

    wire_get_pull(&fixed, &pull);
    wire_put_pull_done(&a->fixed, &(struct wire_pull_done){pull.count, 0});
    for (uint32_t i = 0; i < pull.count && wire_get_pull_entry(&desc, &x); i++) {
        uint64_t version = x.version > 0 ? x.version : newest, size = x.size > 0 ? x.size : total;
        if (x.newer > 0 && version <= x.newer) size = 0;
        wire_put_pull_result(&a->desc, &(struct wire_pull_result){.key = x.key, .version = version, .offset = x.offset,
                                                                  .size = size, .total = total, .dtype = DTYPE_f32});
        buf_pad(&a->body, 16);
        void *to = buf_room(&a->body, size);
        if (to != NULL) memset(to, (int)version, size);
    }
}

static void reply_usual(unsigned link, struct request *r)
{
    struct reply a = reply_ok();

    switch (r->header.method) {
    case WIRE_Hello: say_hello(&a); break;
    case WIRE_Create: put_text(&a.body, "{\"id\":9,\"created\":true,\"round_timeout\":60}"); break;
    case WIRE_Join:
        put_text(&a.body, "{\"rank\":1,\"num_workers\":2");
        if (says.heartbeat_ms > 0) put_text(&a.body, ",\"heartbeat_ms\":%u", says.heartbeat_ms);
        put_text(&a.body, "}");
        break;
    case WIRE_Heartbeat:
        put_text(&a.body, "{\"stores\":[%s]}", says.has_store ? "{\"id\":9,\"num_workers\":3,\"dead\":1}" : "");
        break;
    case WIRE_Barrier: put_text(&a.body, "{\"ticket\":77}"); break;
    case WIRE_Describe: say_described(&a, r); break;
    case WIRE_Init: say_initialised(&a, r); break;
    case WIRE_Push:
    case WIRE_Set: say_recorded(&a, r); break;
    case WIRE_Wait: say_decided(&a, r); break;
    case WIRE_Pull: say_values(&a, r, 2); break;
    default: put_text(&a.body, "{}"); break;
    }
    give(link, r, &a);
}

/* ---- moving ------------------------------------------------------------------------------------------------------ */

static void advance(uint64_t ms)
{
    now += ms;
    engine_tick(en, now);
}

static void bring_up(unsigned link)
{
    struct fake *f = &fakes[link];

    if (!f->open || f->up) return;
    f->up = true;
    engine_link_up(&f->link);
}

static void cut(unsigned link)
{
    struct error why;

    error_set(&why, REASON_UNREACHABLE, "cut by the test");
    fake_close(&fakes[link].link);
    engine_link_down(&fakes[link].link, &why);
    for (size_t i = 0; i < fakes[link].count; i++) fakes[link].requests[i].answered = true;
}

/* The first request that waits for an answer, or NULL. */
static struct request *pending(unsigned link)
{
    for (size_t i = 0; i < fakes[link].count; i++)
        if (!fakes[link].requests[i].answered) return &fakes[link].requests[i];
    return NULL;
}

static size_t pending_count(unsigned link)
{
    size_t n = 0;

    for (size_t i = 0; i < fakes[link].count; i++) n += !fakes[link].requests[i].answered;
    return n;
}

/* The pending request must be of this method. */
static struct request *expect(unsigned link, unsigned method)
{
    struct request *r = pending(link);

    if (r == NULL) test_fail(__FILE__, __LINE__, "%s was not sent", wire_method_name(method));
    if (r->header.method != method)
        test_fail(__FILE__, __LINE__, "%s was sent, not %s", wire_method_name(r->header.method),
                  wire_method_name(method));
    return r;
}

/* Answers everything in the usual way until nothing is sent any more. */
static void settle(void)
{
    for (bool more = true; more;) {
        more = false;
        for (unsigned l = 0; l < LINKS; l++) {
            bring_up(l);
            struct request *r = pending(l);
            if (r == NULL) continue;
            reply_usual(l, r);
            more = true;
        }
        engine_tick(en, now);
    }
}

static void forget(void)
{
    for (unsigned l = 0; l < LINKS; l++) {
        for (size_t i = 0; i < fakes[l].count; i++) free(fakes[l].requests[i].bytes);
        fakes[l].count = 0;
    }
}

static enum status make_engine(void)
{
    static const enum role roles[] = {ROLE_CONTROL, ROLE_WAIT, ROLE_DATA};
    struct engine_config c = {.options = &options, .seed = {1, 2, 3, 4, 5}};

    forget();
    memset(fakes, 0, sizeof fakes);
    memset(&says, 0, sizeof says);
    memset(says.instance, 'a', 32);
    says.window = MIB(64);
    says.next_step = 1;
    says.count = 4;
    says.knows_keys = says.has_store = true;
    now = 1000;
    en = NULL;
    enum status s = engine_new(&c, now, &en, &e);
    for (unsigned l = 0; s == STATUS_OK && l < LINKS; l++) {
        fakes[l].link.ops = &fake_ops;
        list_init(&fakes[l].held);
        s = engine_add_link(en, roles[l], &fakes[l].link, &e);
    }
    return s;
}

static void read_options(const char *document)
{
    struct client_type t;

    unsetenv("PARAMD_TOKEN");
    unsetenv("PARAMD_ON_REINIT");
    CHECK_OK(client_type_parse("dist_sync", &t, &e), &e);
    CHECK_OK(client_options_read(&t, document, &options, &e), &e);
    options.worker.at[0] = 42;
}

static void begin(const char *document)
{
    struct op *op;

    read_options(document);
    CHECK_OK(make_engine(), &e);
    CHECK_OK(op_create(en, &op, &e), &e);
    engine_tick(en, now);
    settle();
    CHECK(op_result(op)->finished);
    CHECK_EQ(op_result(op)->error.status, STATUS_OK);
    op_release(op);
    CHECK(engine_joined(en));
    forget();
}

static void end(void)
{
    engine_free(en);
    client_options_fini(&options);
    forget();
}

static float value_a[4], value_b[4];
static int64_t dims[1] = {4};
static struct paramd_key key_1 = PARAMD_INT(1), key_2 = PARAMD_INT(2);
static struct paramd_tensor tensor_a = {value_a, PARAMD_F32, 1, dims}, tensor_b = {value_b, PARAMD_F32, 1, dims};

static struct op *start_push(struct paramd_key *key, struct paramd_tensor *t)
{
    struct tensors list = {1, key, t, 0};
    struct op *op;
    CHECK_OK(op_push(en, &list, &op, &e), &e);
    return op;
}

static struct op *start_pull(struct paramd_key *key, struct paramd_tensor *t)
{
    struct tensors list = {1, key, t, 0};
    struct op *op;
    CHECK_OK(op_pull(en, &list, NULL, &op, &e), &e);
    return op;
}

static void check_done(struct op *op, enum status want)
{
    CHECK(op_result(op)->finished);
    if (op_result(op)->error.status != want)
        test_fail(__FILE__, __LINE__, "%s: %s", status_name(op_result(op)->error.status), op_result(op)->error.text);
    op_release(op);
}

/* Both keys are known after this, and nothing is on its way. */
static void know_keys(void)
{
    struct paramd_key keys[2] = {PARAMD_INT(1), PARAMD_INT(2)};
    struct paramd_tensor out[2] = {tensor_a, tensor_b};
    struct tensors list = {2, keys, out, 0};
    struct op *op;

    CHECK_OK(op_pull(en, &list, NULL, &op, &e), &e);
    settle();
    check_done(op, STATUS_OK);
    forget();
}

static struct wire_push_entry entry_of(const struct request *r)
{
    struct reader desc = reader_of(r->desc);
    struct wire_push_entry x;
    CHECK(wire_get_push_entry(&desc, &x));
    return x;
}

static struct wire_pull_entry pulled_of(const struct request *r)
{
    struct reader desc = reader_of(r->desc);
    struct wire_pull_entry x;
    CHECK(wire_get_pull_entry(&desc, &x));
    return x;
}

/* ---- sessions ---------------------------------------------------------------------------------------------------- */

TEST(hello_comes_first_on_every_connection)
{
    struct op *op;

    read_options(NULL);
    CHECK_OK(make_engine(), &e);
    CHECK_OK(op_create(en, &op, &e), &e);
    engine_tick(en, now);
    CHECK(fakes[CONTROL].open && !fakes[WAITING].open && !fakes[DATA].open);
    bring_up(CONTROL);
    struct request *r = expect(CONTROL, WIRE_Hello);
    CHECK_EQ(r->header.epoch, 0);
    CHECK_EQ(r->header.worker.at[0], 42);
    reply_usual(CONTROL, r);
    CHECK_EQ(expect(CONTROL, WIRE_Create)->header.epoch, 3);
    engine_tick(en, now);
    CHECK(fakes[WAITING].open && fakes[DATA].open);
    bring_up(DATA);
    r = expect(DATA, WIRE_Hello);
    CHECK_EQ(r->header.epoch, 3);
    CHECK_EQ(r->header.session, 5);
    settle();
    CHECK_EQ(engine_rank(en), 1);
    CHECK_EQ(engine_num_workers(en), 2);
    op_release(op);
    end();
}

TEST(a_daemon_that_does_not_answer_is_named_with_the_cure)
{
    struct op *op;

    read_options("{\"url\": \"tcp://10.0.0.1:5\"}");
    CHECK_OK(make_engine(), &e);
    CHECK_OK(op_create(en, &op, &e), &e);
    advance(1);
    for (int i = 0; i < 60; i++) {
        if (fakes[CONTROL].open) cut(CONTROL);
        advance(100);
    }
    CHECK_SAYS(op_result(op)->error.text, "tcp://10.0.0.1:5");
    CHECK_SAYS(op_result(op)->error.text, "paramd --listen");
    CHECK_SAYS(op_result(op)->error.text, "cut by the test");
    CHECK(fakes[CONTROL].opens > 3);
    check_done(op, STATUS_UNAVAILABLE);
    end();
}

TEST(a_refused_hello_ends_the_handle)
{
    struct op *op;

    read_options(NULL);
    CHECK_OK(make_engine(), &e);
    CHECK_OK(op_create(en, &op, &e), &e);
    engine_tick(en, now);
    bring_up(CONTROL);
    refuse(CONTROL, expect(CONTROL, WIRE_Hello), REASON_BAD_TOKEN, 0);
    CHECK_SAYS(op_result(op)->error.text, "the daemon says no");
    check_done(op, STATUS_UNAUTHENTICATED);
    end();
}

TEST(data_goes_to_the_bulk_door_on_the_host_that_was_dialled)
{
    begin("{\"url\": \"tcp://trainer-7:7700\"}");
    CHECK_TEXT(fakes[DATA].to.host, "trainer-7");
    CHECK_EQ(fakes[DATA].to.port, 7700);
    says.bulk_port = 8801;
    cut(DATA);
    cut(CONTROL);
    advance(100);
    bring_up(CONTROL);
    reply_usual(CONTROL, expect(CONTROL, WIRE_Hello));
    cut(DATA);
    advance(2000);
    CHECK_TEXT(fakes[DATA].to.host, "trainer-7");
    CHECK_EQ(fakes[DATA].to.port, 8801);
    end();
}

TEST(another_instance_is_data_loss_for_all_that_is_under_way)
{
    begin(NULL);
    know_keys();
    struct op *push = start_push(&key_1, &tensor_a), *pull = start_pull(&key_2, &tensor_b);
    cut(CONTROL);
    cut(DATA);
    memset(says.instance, 'b', 32);
    advance(100);
    bring_up(DATA);
    reply_usual(DATA, expect(DATA, WIRE_Hello));
    CHECK_SAYS(op_result(push)->error.text, "was restarted");
    CHECK_SAYS(op_result(push)->error.text, "tcp://127.0.0.1:7700");
    check_done(push, STATUS_DATA_LOSS);
    check_done(pull, STATUS_DATA_LOSS);
    struct tensors list = {1, &key_1, &tensor_a, 0};
    CHECK_EQ(op_push(en, &list, &push, &e), STATUS_DATA_LOSS);
    advance(5000);
    CHECK(pending(DATA) == NULL);
    end();
}

TEST(a_mute_link_is_built_anew)
{
    begin(NULL);
    know_keys();
    struct op *op = start_push(&key_1, &tensor_a);
    unsigned opens = fakes[DATA].opens;
    for (int i = 0; i < 99; i++) advance(100);
    CHECK(fakes[DATA].up);
    advance(200);
    CHECK(!fakes[DATA].up);
    for (size_t i = 0; i < fakes[DATA].count; i++) fakes[DATA].requests[i].answered = true;
    advance(100);
    CHECK_EQ(fakes[DATA].opens, opens + 1);
    settle();
    check_done(op, STATUS_OK);
    end();
}

TEST(heartbeats_go_on_and_tell_the_workers)
{
    begin(NULL);
    advance(1999);
    CHECK(pending(CONTROL) == NULL);
    advance(1);
    reply_usual(CONTROL, expect(CONTROL, WIRE_Heartbeat));
    CHECK_EQ(engine_num_workers(en), 3);
    CHECK_EQ(engine_num_dead(en), 1);
    advance(2000);
    expect(CONTROL, WIRE_Heartbeat);
    end();
}

TEST(who_was_found_dead_joins_again_and_asks_for_its_steps)
{
    begin(NULL);
    know_keys();
    says.has_store = false;
    advance(2000);
    reply_usual(CONTROL, expect(CONTROL, WIRE_Heartbeat));
    struct request *join = expect(CONTROL, WIRE_Join);
    struct op *op = start_push(&key_1, &tensor_a);
    reply_usual(CONTROL, join);
    says.next_step = 12;
    reply_usual(CONTROL, expect(CONTROL, WIRE_Describe));
    CHECK_EQ(entry_of(expect(DATA, WIRE_Push)).step, 12);
    settle();
    check_done(op, STATUS_OK);
    end();
}

/* A store whose worker_timeout is 300 ms. */
TEST(heartbeats_come_in_the_period_that_the_store_told_at_join)
{
    begin(NULL);
    says.has_store = false;
    says.heartbeat_ms = 100;
    advance(2000);
    reply_usual(CONTROL, expect(CONTROL, WIRE_Heartbeat));
    reply_usual(CONTROL, expect(CONTROL, WIRE_Join));
    CHECK_EQ(engine_heartbeat_ms(en), 100);
    says.has_store = true;
    for (int i = 0; i < 5; i++) {
        advance(99);
        CHECK(pending(CONTROL) == NULL);
        advance(1);
        reply_usual(CONTROL, expect(CONTROL, WIRE_Heartbeat));
    }
    end();
}

/* A trainer that was suspended: the daemon has found it dead and says no step. */
TEST(a_description_without_a_step_makes_it_join_again_and_ask_again)
{
    begin(NULL);
    struct op *op = start_push(&key_1, &tensor_a);
    says.next_step = 0;
    reply_usual(CONTROL, expect(CONTROL, WIRE_Describe));
    reply_usual(CONTROL, expect(CONTROL, WIRE_Join));
    says.next_step = 7;
    reply_usual(CONTROL, expect(CONTROL, WIRE_Describe));
    CHECK_EQ(entry_of(expect(DATA, WIRE_Push)).step, 7);
    settle();
    check_done(op, STATUS_OK);
    end();
}

TEST(a_push_whose_answer_was_lost_before_it_was_found_dead_counts_once)
{
    for (int recorded = 0; recorded <= 1; recorded++) {
        begin(NULL);
        know_keys();
        struct op *op = start_push(&key_1, &tensor_a);
        uint64_t step = entry_of(expect(DATA, WIRE_Push)).step;
        cut(DATA);
        advance(100);
        bring_up(DATA);
        reply_usual(DATA, expect(DATA, WIRE_Hello));
        refuse(DATA, expect(DATA, WIRE_Push), REASON_NOT_JOINED, 0);
        reply_usual(CONTROL, expect(CONTROL, WIRE_Join));
        says.next_step = step + 4; /* rounds went on without it */
        says.recorded = recorded ? step : 0;
        reply_usual(CONTROL, expect(CONTROL, WIRE_Describe));
        if (recorded) CHECK(pending(DATA) == NULL);
        else CHECK_EQ(entry_of(expect(DATA, WIRE_Push)).step, step + 4);
        settle();
        check_done(op, STATUS_OK);
        end();
    }
}

TEST(what_was_recorded_before_it_was_found_dead_is_still_asked_for)
{
    begin(NULL);
    know_keys();
    struct op *op = start_push(&key_1, &tensor_a);
    settle();
    check_done(op, STATUS_OK);
    says.has_store = false;
    advance(2000);
    reply_usual(CONTROL, expect(CONTROL, WIRE_Heartbeat));
    reply_usual(CONTROL, expect(CONTROL, WIRE_Join));
    CHECK_OK(op_wait(en, 0, NULL, &op, &e), &e);
    struct request *r = expect(WAITING, WIRE_Wait);
    struct reply a = reply_ok();
    wire_put_wait_done(&a.fixed, &(struct wire_wait_done){1, 1});
    wire_put_wait_result(&a.desc, &(struct wire_wait_result){0, WAIT_FAILED, 0});
    add_fault(&a, 0, REASON_ROUND_FAILED, 0, "round 1 of key 1 failed");
    give(WAITING, r, &a);
    CHECK_SAYS(op_result(op)->error.text, "round 1 of key 1 failed");
    check_done(op, STATUS_ABORTED);
    end();
}

TEST(a_wait_that_finds_it_dead_joins_again_and_waits_on)
{
    begin(NULL);
    know_keys();
    struct op *op = start_push(&key_1, &tensor_a);
    settle();
    check_done(op, STATUS_OK);
    CHECK_OK(op_wait(en, 1, &key_1, &op, &e), &e);
    struct reply a = reply_ok();
    wire_put_wait_done(&a.fixed, &(struct wire_wait_done){1, 1});
    wire_put_wait_result(&a.desc, &(struct wire_wait_result){0, WAIT_FAILED, 0});
    add_fault(&a, 0, REASON_NOT_JOINED, 0, "found dead");
    give(WAITING, expect(WAITING, WIRE_Wait), &a);
    CHECK(!op_result(op)->finished);
    CHECK(pending(WAITING) == NULL);
    reply_usual(CONTROL, expect(CONTROL, WIRE_Join));
    reply_usual(WAITING, expect(WAITING, WIRE_Wait));
    check_done(op, STATUS_OK);
    end();
}

/* ---- names and order --------------------------------------------------------------------------------------------- */

TEST(what_was_not_answered_is_repeated_under_its_name_and_in_order)
{
    begin(NULL);
    know_keys();
    value_a[0] = 1.5f;
    struct op *a = start_push(&key_1, &tensor_a), *b = start_push(&key_2, &tensor_b);
    CHECK_EQ(pending_count(DATA), 2);
    struct request first = fakes[DATA].requests[0], second = fakes[DATA].requests[1];
    for (int round = 0; round < 3; round++) {
        size_t before = fakes[DATA].count;
        cut(DATA);
        advance(1000);
        bring_up(DATA);
        reply_usual(DATA, expect(DATA, WIRE_Hello));
        CHECK_EQ(pending_count(DATA), 2);
        const struct request *again = &fakes[DATA].requests[before + 1];
        CHECK_EQ(again[0].header.sequence, first.header.sequence);
        CHECK_EQ(again[1].header.sequence, second.header.sequence);
        CHECK(again[0].id != first.id);
        CHECK(bytes_equal(again[0].desc, first.desc) && bytes_equal(again[0].body, first.body));
        CHECK(bytes_equal(again[1].desc, second.desc));
    }
    settle();
    check_done(a, STATUS_OK);
    check_done(b, STATUS_OK);
    end();
}

TEST(an_answer_to_an_earlier_sending_is_ignored)
{
    begin(NULL);
    know_keys();
    struct op *op = start_push(&key_1, &tensor_a);
    struct request old = *expect(DATA, WIRE_Push);
    cut(DATA);
    advance(1000);
    bring_up(DATA);
    reply_usual(DATA, expect(DATA, WIRE_Hello));
    struct request copy = old;
    reply_usual(DATA, &copy);
    CHECK(!op_result(op)->finished);
    settle();
    check_done(op, STATUS_OK);
    end();
}

TEST(pushes_of_one_key_go_one_after_another)
{
    begin(NULL);
    know_keys();
    struct op *ops[3];
    for (int i = 0; i < 3; i++) ops[i] = start_push(&key_1, &tensor_a);
    for (uint64_t step = 1; step <= 3; step++) {
        CHECK_EQ(pending_count(DATA), 1);
        CHECK_EQ(entry_of(pending(DATA)).step, step);
        reply_usual(DATA, pending(DATA));
    }
    for (int i = 0; i < 3; i++) check_done(ops[i], STATUS_OK);
    end();
}

TEST(a_refused_push_is_offered_again_in_time_and_in_its_place)
{
    begin(NULL);
    know_keys();
    struct op *op = start_push(&key_1, &tensor_a), *later = start_push(&key_1, &tensor_b);
    struct reply a = reply_ok();
    wire_put_push_done(&a.fixed, &(struct wire_push_done){.faults = 1});
    add_fault(&a, 0, REASON_STEP_AHEAD, 20, "worker \"x\" is behind");
    give(DATA, expect(DATA, WIRE_Push), &a);
    CHECK_EQ(engine_tick(en, now), now + 20);
    advance(19);
    CHECK_EQ(pending_count(DATA), 0);
    advance(1);
    CHECK_EQ(entry_of(expect(DATA, WIRE_Push)).step, 1);
    refuse(DATA, pending(DATA), REASON_STAGING_FULL, 20);
    CHECK_EQ(pending_count(DATA), 0);
    advance(250);
    CHECK_EQ(entry_of(expect(DATA, WIRE_Push)).step, 1);
    settle();
    check_done(op, STATUS_OK);
    check_done(later, STATUS_OK);
    end();
}

TEST(a_push_that_fails_for_good_leaves_no_gap)
{
    begin(NULL);
    know_keys();
    struct op *op = start_push(&key_1, &tensor_a), *next = start_push(&key_1, &tensor_b);
    refuse(DATA, expect(DATA, WIRE_Push), REASON_WORKER_DEAD, 0);
    check_done(op, STATUS_FAILED_PRECONDITION);
    CHECK_EQ(entry_of(expect(DATA, WIRE_Push)).step, 1);
    settle();
    check_done(next, STATUS_OK);
    end();
}

TEST(one_refused_key_does_not_stop_the_others)
{
    begin(NULL);
    know_keys();
    struct paramd_key keys[2] = {PARAMD_INT(2), PARAMD_INT(1)};
    struct paramd_tensor values[2] = {tensor_b, tensor_a};
    struct tensors list = {2, keys, values, 0};
    struct op *op, *next;
    CHECK_OK(op_push(en, &list, &op, &e), &e);
    CHECK_EQ(entry_of(expect(DATA, WIRE_Push)).key, 101); /* ascending */
    struct reply a = reply_ok();
    wire_put_push_done(&a.fixed, &(struct wire_push_done){.recorded = 1, .faults = 1});
    add_fault(&a, 0, REASON_PUSH_LATE, 0, "too late");
    give(DATA, pending(DATA), &a);
    check_done(op, STATUS_ABORTED);
    next = start_push(&key_1, &tensor_a);
    CHECK_EQ(entry_of(expect(DATA, WIRE_Push)).step, 1);
    op_release(next);
    settle();
    next = start_push(&key_2, &tensor_b);
    CHECK_EQ(entry_of(expect(DATA, WIRE_Push)).step, 2);
    settle();
    check_done(next, STATUS_OK);
    end();
}

TEST(a_gap_in_the_steps_is_asked_about)
{
    begin(NULL);
    know_keys();
    struct op *op = start_push(&key_1, &tensor_a);
    refuse(DATA, expect(DATA, WIRE_Push), REASON_STEP_ORDER, 0);
    says.next_step = 4;
    advance(100);
    reply_usual(CONTROL, expect(CONTROL, WIRE_Describe));
    CHECK_EQ(entry_of(expect(DATA, WIRE_Push)).step, 4);
    settle();
    check_done(op, STATUS_OK);
    end();
}

TEST(a_key_that_was_replaced_is_looked_up_again)
{
    begin(NULL);
    know_keys();
    struct op *op = start_pull(&key_1, &tensor_a);
    struct reply a = reply_ok();
    wire_put_pull_done(&a.fixed, &(struct wire_pull_done){1, 1});
    wire_put_pull_result(&a.desc, &(struct wire_pull_result){.key = 101});
    add_fault(&a, 0, REASON_NO_KEY, 0, "no such id");
    give(DATA, expect(DATA, WIRE_Pull), &a);
    expect(CONTROL, WIRE_Describe);
    settle();
    check_done(op, STATUS_OK);
    op = start_push(&key_1, &tensor_a);
    says.knows_keys = false;
    refuse(DATA, expect(DATA, WIRE_Push), REASON_NO_KEY, 0);
    settle();
    CHECK_SAYS(op_result(op)->error.text, "was not initialised");
    check_done(op, STATUS_NOT_FOUND);
    end();
}

TEST(a_refused_json_request_keeps_its_name)
{
    begin(NULL);
    struct op *op;
    CHECK_OK(op_json(en, WIRE_Delete, bytes_text("\"keys\":[1]"), false, &op, &e), &e);
    uint64_t sequence = expect(CONTROL, WIRE_Delete)->header.sequence;
    CHECK(sequence > 0);
    refuse(CONTROL, pending(CONTROL), REASON_IN_FLIGHT, 20);
    advance(20);
    CHECK_EQ(expect(CONTROL, WIRE_Delete)->header.sequence, sequence);
    settle();
    CHECK_TEXT(op_answer(op), "{}");
    check_done(op, STATUS_OK);
    end();
}

/* ---- large values ------------------------------------------------------------------------------------------------ */

enum { LARGE = 900001 };        /* elements: four parts */
static float large_in[LARGE], large_out[LARGE];
static int64_t large_dims[1] = {LARGE};
static struct paramd_tensor tensor_in = {large_in, PARAMD_F32, 1, large_dims};
static struct paramd_tensor tensor_out = {large_out, PARAMD_F32, 1, large_dims};

TEST(a_large_value_goes_in_parts_under_one_name)
{
    begin(NULL);
    says.count = LARGE;
    struct op *op = start_push(&key_1, &tensor_in);
    reply_usual(CONTROL, expect(CONTROL, WIRE_Describe));
    CHECK_EQ(pending_count(DATA), 4);
    uint64_t at = 0, sequence = pending(DATA)->header.sequence;
    for (size_t i = 0; i < 4; i++) {
        const struct request *r = &fakes[DATA].requests[i];
        CHECK_EQ(r->header.sequence, sequence);
        CHECK_EQ(entry_of(r).offset, at);
        CHECK_EQ(entry_of(r).total, LARGE * sizeof(float));
        CHECK_EQ(entry_of(r).size, r->body.size);
        at += r->body.size;
    }
    CHECK_EQ(at, LARGE * sizeof(float));
    settle();
    check_done(op, STATUS_OK);
    end();
}

TEST(a_refused_large_value_sends_one_part_ahead)
{
    begin(NULL);
    says.count = LARGE;
    struct op *op = start_push(&key_1, &tensor_in);
    reply_usual(CONTROL, expect(CONTROL, WIRE_Describe));
    while (pending(DATA) != NULL) refuse(DATA, pending(DATA), REASON_STEP_AHEAD, 20);
    advance(20);
    CHECK_EQ(pending_count(DATA), 1);
    CHECK_EQ(entry_of(pending(DATA)).offset, 0);
    reply_usual(DATA, pending(DATA));
    CHECK_EQ(pending_count(DATA), 3);
    settle();
    check_done(op, STATUS_OK);
    end();
}

TEST(parts_that_the_daemon_dropped_are_sent_again)
{
    begin(NULL);
    says.count = LARGE;
    struct op *op = start_push(&key_1, &tensor_in);
    reply_usual(CONTROL, expect(CONTROL, WIRE_Describe));
    for (int i = 0; i < 4; i++) {
        struct reply a = reply_ok();
        wire_put_push_done(&a.fixed, &(struct wire_push_done){0});
        give(DATA, pending(DATA), &a);
    }
    CHECK(!op_result(op)->finished);
    CHECK_EQ(pending_count(DATA), 4);
    settle();
    check_done(op, STATUS_OK);
    end();
}

TEST(no_more_bytes_than_the_window_are_on_their_way)
{
    begin(NULL);
    says.count = LARGE;
    says.window = 2 << 20;
    cut(DATA);
    advance(1000);
    struct op *op = start_push(&key_1, &tensor_in);
    reply_usual(CONTROL, expect(CONTROL, WIRE_Describe));
    bring_up(DATA);
    reply_usual(DATA, expect(DATA, WIRE_Hello));
    CHECK_EQ(pending_count(DATA), 2);
    settle();
    check_done(op, STATUS_OK);
    end();
}

TEST(a_large_pull_stays_with_one_version)
{
    begin(NULL);
    says.count = LARGE;
    says.bulk_port = 7701;
    struct op *op = start_pull(&key_1, &tensor_out);
    reply_usual(CONTROL, expect(CONTROL, WIRE_Describe));
    CHECK_EQ(pending_count(DATA), 1);
    CHECK_EQ(pulled_of(pending(DATA)).version, 0);
    reply_usual(DATA, pending(DATA));
    while (pending(DATA) != NULL) {
        CHECK_EQ(pulled_of(pending(DATA)).version, 2);
        reply_usual(DATA, pending(DATA));
    }
    for (size_t i = 0; i < sizeof large_out; i++) CHECK(((uint8_t *)large_out)[i] == 2);
    check_done(op, STATUS_OK);
    end();
}

/* Through a bulk door, where several parts fly at once. */
static void begin_with_bulk(void)
{
    begin(NULL);
    says.bulk_port = 7701;
    cut(CONTROL);
    advance(100);
    settle();
    cut(DATA);
    advance(100);
    settle();
    CHECK_EQ(fakes[DATA].to.port, 7701);
    forget();
}

TEST(a_revoked_version_begins_anew_when_nothing_old_is_on_its_way)
{
    begin_with_bulk();
    says.count = LARGE;
    struct op *op = start_pull(&key_1, &tensor_out);
    reply_usual(CONTROL, expect(CONTROL, WIRE_Describe));
    reply_usual(DATA, expect(DATA, WIRE_Pull));
    CHECK_EQ(pending_count(DATA), 3);
    struct reply a = reply_ok();
    wire_put_pull_done(&a.fixed, &(struct wire_pull_done){1, 1});
    wire_put_pull_result(&a.desc, &(struct wire_pull_result){.key = 101});
    add_fault(&a, 0, REASON_VERSION_REVOKED, 1, "gone");
    give(DATA, pending(DATA), &a);
    CHECK_EQ(pending_count(DATA), 2);
    reply_usual(DATA, pending(DATA));
    CHECK_EQ(pending_count(DATA), 1);
    reply_usual(DATA, pending(DATA));
    CHECK_EQ(pulled_of(expect(DATA, WIRE_Pull)).version, 0);
    while (pending(DATA) != NULL) {
        a = reply_ok();
        say_values(&a, pending(DATA), 3);
        give(DATA, pending(DATA), &a);
    }
    for (size_t i = 0; i < sizeof large_out; i++) CHECK(((uint8_t *)large_out)[i] == 3);
    check_done(op, STATUS_OK);
    end();
}

TEST(through_the_front_door_large_answers_come_alone)
{
    begin(NULL);
    says.count = LARGE;
    struct op *op = start_pull(&key_1, &tensor_out), *other = start_push(&key_2, &tensor_in);
    reply_usual(CONTROL, expect(CONTROL, WIRE_Describe));
    CHECK_EQ(pending_count(DATA), 1);
    reply_usual(CONTROL, expect(CONTROL, WIRE_Describe));
    for (struct request *r; (r = pending(DATA)) != NULL;) {
        if (r->header.method == WIRE_Pull) CHECK_EQ(pending_count(DATA), 1);
        reply_usual(DATA, r);
    }
    check_done(op, STATUS_OK);
    check_done(other, STATUS_OK);
    end();
}

/* ---- waiting ----------------------------------------------------------------------------------------------------- */

TEST(a_pull_waits_for_the_own_push_and_once_only)
{
    begin(NULL);
    know_keys();
    struct op *push = start_push(&key_1, &tensor_a), *pull = start_pull(&key_1, &tensor_b);
    CHECK(pending(WAITING) == NULL);
    reply_usual(DATA, expect(DATA, WIRE_Push));
    check_done(push, STATUS_OK);
    struct request *r = expect(WAITING, WIRE_Wait);
    struct reader desc = reader_of(r->desc);
    struct wire_wait_entry x;
    CHECK(wire_get_wait_entry(&desc, &x));
    CHECK_EQ(x.kind, WAIT_TICKET);
    CHECK_EQ(x.key, 101);
    CHECK_EQ(x.number, 1);
    CHECK(pending(DATA) == NULL);
    reply_usual(WAITING, r);
    reply_usual(DATA, expect(DATA, WIRE_Pull));
    check_done(pull, STATUS_OK);
    pull = start_pull(&key_1, &tensor_b);
    expect(DATA, WIRE_Pull);
    settle();
    check_done(pull, STATUS_OK);
    end();
}

/* A push whose answer says that it is applied already, or only recorded. */
static void push_answered(uint32_t applied)
{
    struct op *push = start_push(&key_1, &tensor_a);
    struct reply a = reply_ok();

    wire_put_push_done(&a.fixed, &(struct wire_push_done){.recorded = 1, .applied = applied});
    give(DATA, expect(DATA, WIRE_Push), &a);
    check_done(push, STATUS_OK);
}

TEST(a_push_that_was_applied_at_once_is_not_waited_for)
{
    begin(NULL);
    know_keys();
    push_answered(1);
    struct op *pull = start_pull(&key_1, &tensor_b);
    CHECK(pending(WAITING) == NULL);
    reply_usual(DATA, expect(DATA, WIRE_Pull));
    check_done(pull, STATUS_OK);
    end();
}

TEST(an_earlier_push_whose_end_is_not_known_is_still_asked_for)
{
    begin(NULL);
    know_keys();
    push_answered(0);
    push_answered(1);
    struct op *pull = start_pull(&key_1, &tensor_b);
    struct request *r = expect(WAITING, WIRE_Wait);
    struct reader desc = reader_of(r->desc);
    struct wire_wait_entry x;
    CHECK(wire_get_wait_entry(&desc, &x));
    CHECK_EQ(x.number, 1);
    settle();
    check_done(pull, STATUS_OK);
    end();
}

TEST(a_failed_round_is_told_once)
{
    begin(NULL);
    know_keys();
    struct op *push = start_push(&key_1, &tensor_a);
    reply_usual(DATA, expect(DATA, WIRE_Push));
    check_done(push, STATUS_OK);
    struct op *pull = start_pull(&key_1, &tensor_b);
    struct reply a = reply_ok();
    wire_put_wait_done(&a.fixed, &(struct wire_wait_done){1, 1});
    wire_put_wait_result(&a.desc, &(struct wire_wait_result){0, WAIT_FAILED, 0});
    add_fault(&a, 0, REASON_ROUND_FAILED, 0, "worker \"berta\" died");
    give(WAITING, expect(WAITING, WIRE_Wait), &a);
    CHECK_SAYS(op_result(pull)->error.text, "berta");
    check_done(pull, STATUS_ABORTED);
    pull = start_pull(&key_1, &tensor_b);
    settle();
    check_done(pull, STATUS_OK);
    end();
}

static void say_pending(const char *text)
{
    struct reply a = reply_ok();

    wire_put_wait_done(&a.fixed, &(struct wire_wait_done){1, 1});
    wire_put_wait_result(&a.desc, &(struct wire_wait_result){0, WAIT_PENDING, 0});
    add_fault(&a, 0, REASON_DEADLINE, 0, text);
    give(WAITING, expect(WAITING, WIRE_Wait), &a);
}

TEST(a_deadline_says_what_the_daemon_said_last)
{
    begin(NULL);
    know_keys();
    struct op *op = start_push(&key_1, &tensor_a);
    settle();
    check_done(op, STATUS_OK);
    op = start_pull(&key_1, &tensor_b);
    op_set_deadline(op, 3000);
    advance(900);
    say_pending("waiting for worker \"carla\"");
    advance(900);
    say_pending("waiting for worker \"berta\"");
    advance(1200);
    CHECK_SAYS(op_result(op)->error.text, "key 1");
    CHECK_SAYS(op_result(op)->error.text, "berta");
    check_done(op, STATUS_DEADLINE_EXCEEDED);
    settle();
    end();
}

TEST(a_shorter_deadline_asks_again_in_time)
{
    begin(NULL);
    know_keys();
    struct op *op = start_push(&key_1, &tensor_a);
    settle();
    check_done(op, STATUS_OK);
    op = start_pull(&key_1, &tensor_b);
    struct request *long_one = expect(WAITING, WIRE_Wait);
    long_one->answered = true;
    op_set_deadline(op, 200);
    engine_tick(en, now);
    struct reader fixed = reader_of(expect(WAITING, WIRE_Wait)->fixed);
    struct wire_wait wait;
    CHECK(wire_get_wait(&fixed, &wait));
    CHECK(wait.time_ms <= 100);
    advance(100);
    say_pending("waiting for worker \"berta\"");
    reply_usual(WAITING, long_one); /* it does not count any more */
    CHECK(!op_result(op)->finished);
    advance(100);
    CHECK_SAYS(op_result(op)->error.text, "berta");
    check_done(op, STATUS_DEADLINE_EXCEEDED);
    end();
}

TEST(a_deadline_without_connection_says_so)
{
    begin(NULL);
    know_keys();
    struct op *op = start_push(&key_1, &tensor_a);
    op_set_deadline(op, 700);
    cut(DATA);
    advance(10);
    advance(700);
    CHECK_SAYS(op_result(op)->error.text, "no connection to tcp://127.0.0.1:7700");
    check_done(op, STATUS_UNAVAILABLE);
    end();
}

TEST(a_barrier_arrives_and_then_waits)
{
    begin(NULL);
    struct op *op;
    CHECK_OK(op_barrier(en, "b", &op, &e), &e);
    CHECK(expect(CONTROL, WIRE_Barrier)->header.sequence > 0);
    CHECK(pending(WAITING) == NULL);
    reply_usual(CONTROL, pending(CONTROL));
    struct reader desc = reader_of(expect(WAITING, WIRE_Wait)->desc);
    struct wire_wait_entry x;
    CHECK(wire_get_wait_entry(&desc, &x));
    CHECK_EQ(x.kind, WAIT_BARRIER);
    CHECK_EQ(x.key, 77);
    settle();
    check_done(op, STATUS_OK);
    end();
}

TEST(an_init_waits_for_rank_0_and_checks_again)
{
    begin(NULL);
    struct tensors list = {1, &key_1, &tensor_a, 0};
    struct op *op;
    CHECK_OK(op_init(en, &list, &op, &e), &e);
    struct request *r = expect(DATA, WIRE_Init);
    CHECK_EQ(r->header.flags, WIRE_FLAG_CHECK);
    CHECK_EQ(r->body.size, 0);
    struct reply a = reply_ok();
    wire_put_init_done(&a.fixed, &(struct wire_init_done){1, 0});
    wire_put_init_result(&a.desc, &(struct wire_init_result){.outcome = INIT_WAIT});
    give(DATA, r, &a);
    reply_usual(WAITING, expect(WAITING, WIRE_Wait));
    r = expect(DATA, WIRE_Init);
    CHECK_EQ(r->header.flags, WIRE_FLAG_CHECK);
    a = reply_ok();
    wire_put_init_done(&a.fixed, &(struct wire_init_done){1, 0});
    wire_put_init_result(&a.desc, &(struct wire_init_result){101, 1, 6, INIT_EXISTED, 0});
    give(DATA, r, &a);
    check_done(op, STATUS_OK);
    op = start_push(&key_1, &tensor_a); /* nothing needs to be described */
    CHECK_EQ(entry_of(expect(DATA, WIRE_Push)).step, 6);
    settle();
    check_done(op, STATUS_OK);
    end();
}

TEST(an_init_with_a_refused_key_sends_no_value)
{
    begin(NULL);
    struct paramd_key keys[2] = {PARAMD_INT(1), PARAMD_INT(2)};
    struct paramd_tensor values[2] = {tensor_a, tensor_b};
    struct tensors list = {2, keys, values, 0};
    struct op *op;
    CHECK_OK(op_init(en, &list, &op, &e), &e);
    struct reply a = reply_ok();
    wire_put_init_done(&a.fixed, &(struct wire_init_done){2, 1});
    wire_put_init_result(&a.desc, &(struct wire_init_result){.outcome = INIT_NEED_VALUE});
    wire_put_init_result(&a.desc, &(struct wire_init_result){.outcome = INIT_REFUSED});
    add_fault(&a, 1, REASON_KEY_EXISTS, 0, "duplicate init of key 2");
    give(DATA, expect(DATA, WIRE_Init), &a);
    CHECK(pending(DATA) == NULL);
    CHECK_SAYS(op_result(op)->error.text, "duplicate init of key 2");
    check_done(op, STATUS_ALREADY_EXISTS);
    end();
}

/* Rank 1: key 2 is there, key 1 is awaited. Nothing may be learnt of key 2 before the whole call is known to hold. */
TEST(an_init_that_has_waited_checks_all_its_keys_again)
{
    begin(NULL);
    struct paramd_key keys[2] = {PARAMD_INT(1), PARAMD_INT(2)};
    struct paramd_tensor values[2] = {tensor_a, tensor_b};
    struct tensors list = {2, keys, values, 0};
    struct wire_init init;
    struct op *op;
    CHECK_OK(op_init(en, &list, &op, &e), &e);
    struct reply a = reply_ok();
    wire_put_init_done(&a.fixed, &(struct wire_init_done){2, 0});
    wire_put_init_result(&a.desc, &(struct wire_init_result){.outcome = INIT_WAIT});
    wire_put_init_result(&a.desc, &(struct wire_init_result){102, 1, 1, INIT_EXISTED, 0});
    give(DATA, expect(DATA, WIRE_Init), &a);
    reply_usual(WAITING, expect(WAITING, WIRE_Wait));
    struct request *r = expect(DATA, WIRE_Init);
    struct reader fixed = reader_of(r->fixed);
    CHECK(wire_get_init(&fixed, &init));
    CHECK_EQ(init.count, 2);
    a = reply_ok();
    wire_put_init_done(&a.fixed, &(struct wire_init_done){2, 1});
    wire_put_init_result(&a.desc, &(struct wire_init_result){102, 1, 1, INIT_EXISTED, 0});
    wire_put_init_result(&a.desc, &(struct wire_init_result){.outcome = INIT_REFUSED});
    add_fault(&a, 0, REASON_SHAPE_MISMATCH, 0, "key 1 is [3]");
    give(DATA, r, &a);
    check_done(op, STATUS_INVALID_ARGUMENT);
    end();
}

TEST(an_init_that_fails_halfway_names_what_was_made)
{
    begin(NULL);
    struct paramd_key keys[2] = {PARAMD_INT(1), PARAMD_INT(2)};
    struct paramd_tensor values[2] = {tensor_a, tensor_b};
    struct tensors list = {2, keys, values, 0};
    struct op *op;
    CHECK_OK(op_init(en, &list, &op, &e), &e);
    reply_usual(DATA, expect(DATA, WIRE_Init));
    struct reply a = reply_ok();
    wire_put_init_done(&a.fixed, &(struct wire_init_done){2, 1});
    wire_put_init_result(&a.desc, &(struct wire_init_result){101, 1, 1, INIT_CREATED, 0});
    wire_put_init_result(&a.desc, &(struct wire_init_result){.outcome = INIT_REFUSED});
    add_fault(&a, 1, REASON_NO_MEMORY, 0, "no memory");
    give(DATA, expect(DATA, WIRE_Init), &a);
    CHECK_SAYS(op_result(op)->error.text, "no memory (of 2 keys 1 were made before that: 1)");
    check_done(op, STATUS_RESOURCE_EXHAUSTED);
    end();
}

/* ---- cancelling -------------------------------------------------------------------------------------------------- */

TEST(a_cancelled_push_that_was_recorded_keeps_its_step)
{
    begin(NULL);
    know_keys();
    op_release(start_push(&key_1, &tensor_a));
    CHECK(fakes[DATA].detached > 0);
    struct op *next = start_push(&key_1, &tensor_b);
    CHECK_EQ(pending_count(DATA), 1); /* the answer decides which step the next one has */
    reply_usual(DATA, pending(DATA));
    CHECK_EQ(entry_of(expect(DATA, WIRE_Push)).step, 2);
    settle();
    check_done(next, STATUS_OK);
    end();
}

TEST(a_cancelled_push_that_was_lost_is_asked_about)
{
    begin(NULL);
    know_keys();
    op_release(start_push(&key_1, &tensor_a));
    struct op *next = start_push(&key_1, &tensor_b);
    cut(DATA);
    says.next_step = 2;
    advance(1000);
    bring_up(DATA);
    reply_usual(DATA, expect(DATA, WIRE_Hello));
    CHECK(pending(DATA) == NULL);
    reply_usual(CONTROL, expect(CONTROL, WIRE_Describe));
    CHECK_EQ(entry_of(expect(DATA, WIRE_Push)).step, 2);
    settle();
    check_done(next, STATUS_OK);
    end();
}

TEST(a_cancelled_pull_does_not_touch_its_output)
{
    begin_with_bulk();
    says.count = LARGE;
    struct op *op = start_pull(&key_1, &tensor_out);
    reply_usual(CONTROL, expect(CONTROL, WIRE_Describe));
    memset(large_out, 9, sizeof large_out);
    op_release(op);
    settle();
    for (size_t i = 0; i < sizeof large_out; i++) CHECK(((uint8_t *)large_out)[i] == 9);
    end();
}

TEST(a_link_that_holds_frames_gives_them_back_when_it_closes)
{
    begin(NULL);
    know_keys();
    fakes[DATA].hold = true;
    struct op *a = start_push(&key_1, &tensor_a);
    op_release(start_push(&key_2, &tensor_b));
    cut(DATA);
    fakes[DATA].hold = false;
    advance(1000);
    settle();
    check_done(a, STATUS_OK);
    end();
}

/* ---- hostile answers --------------------------------------------------------------------------------------------- */

/* Each answer of a method with its fixed fields, then its descriptors, then its body cut at every byte. */
static void cut_answers(unsigned link, unsigned method, struct op *(*start)(void))
{
    for (int part = 0; part < 3; part++) {
        for (size_t cut_at = 0;; cut_at++) {
            begin_with_bulk();
            know_keys();
            struct op *op = start();
            struct request *r;
            while ((r = pending(link)) == NULL || r->header.method != method) {
                unsigned from = pending(CONTROL) != NULL ? CONTROL : pending(WAITING) != NULL ? WAITING : DATA;
                CHECK(pending(from) != NULL);
                reply_usual(from, pending(from));
            }
            struct reply a = reply_ok();
            switch (method) {
            case WIRE_Push: say_recorded(&a, r); break;
            case WIRE_Pull: say_values(&a, r, 2); break;
            case WIRE_Wait: say_decided(&a, r); break;
            case WIRE_Init: say_initialised(&a, r); break;
            default: say_described(&a, r); break;
            }
            struct buf *b = part == 0 ? &a.fixed : part == 1 ? &a.desc : &a.body;
            bool last = cut_at >= b->size;
            if (!last) b->size = cut_at;
            give(link, r, &a);
            op_release(op);
            end();
            if (last) break;
        }
    }
}

static struct op *some_push(void) { return start_push(&key_1, &tensor_a); }
static struct op *some_pull(void) { return start_pull(&key_1, &tensor_b); }

static struct op *some_wait(void)
{
    struct op *op = some_push();
    settle();
    check_done(op, STATUS_OK);
    CHECK_OK(op_wait(en, 1, &key_1, &op, &e), &e);
    return op;
}

static struct op *some_init(void)
{
    static struct paramd_key key = PARAMD_INT(5);
    struct tensors list = {1, &key, &tensor_a, 0};
    struct op *op;
    CHECK_OK(op_init(en, &list, &op, &e), &e);
    return op;
}

static struct op *some_describe(void)
{
    static struct paramd_key key = PARAMD_INT(6);
    return start_pull(&key, &tensor_b);
}

TEST(answers_cut_short_do_no_harm)
{
    cut_answers(DATA, WIRE_Push, some_push);
    cut_answers(DATA, WIRE_Pull, some_pull);
    cut_answers(DATA, WIRE_Init, some_init);
    cut_answers(CONTROL, WIRE_Describe, some_describe);
    cut_answers(WAITING, WIRE_Wait, some_wait);
}

TEST(numbers_in_answers_are_not_trusted)
{
    begin(NULL);
    know_keys();
    struct op *op = start_pull(&key_1, &tensor_b);
    struct reply a = reply_ok();
    wire_put_pull_done(&a.fixed, &(struct wire_pull_done){UINT32_MAX, UINT32_MAX});
    wire_put_pull_result(&a.desc, &(struct wire_pull_result){101, 2, 0, UINT64_MAX - 8, 16, DTYPE_f32, 0, 0, 0});
    give(DATA, expect(DATA, WIRE_Pull), &a);
    check_done(op, STATUS_INTERNAL);

    op = start_pull(&key_1, &tensor_b);
    a = reply_ok();
    wire_put_pull_done(&a.fixed, &(struct wire_pull_done){1, 0});
    wire_put_pull_result(&a.desc, &(struct wire_pull_result){101, 2, 0, 16, 16, DTYPE_f32, 0, 0, 0});
    buf_text(&a.body, "too few");
    give(DATA, expect(DATA, WIRE_Pull), &a);
    check_done(op, STATUS_INTERNAL);

    op = start_push(&key_1, &tensor_a);
    a = reply_ok();
    wire_put_push_done(&a.fixed, &(struct wire_push_done){.recorded = UINT32_MAX, .faults = UINT32_MAX});
    wire_put_fault(&a.desc, &(struct wire_fault){UINT32_MAX, 9, 9, 9, UINT32_MAX, UINT32_MAX});
    give(DATA, expect(DATA, WIRE_Push), &a);
    check_done(op, STATUS_OK);
    end();
}

/* ---- memory ------------------------------------------------------------------------------------------------------ */

static void finish(struct op *op)
{
    if (op == NULL) return;
    for (int i = 0; i < 40 && !op_result(op)->finished; i++) {
        settle();
        advance(300);
    }
    CHECK(op_result(op)->finished);
    enum status s = op_result(op)->error.status;
    CHECK(s == STATUS_OK || s == STATUS_RESOURCE_EXHAUSTED || s == STATUS_UNAVAILABLE);
    op_release(op);
}

static void life_of_a_trainer(void)
{
    struct paramd_key keys[3] = {PARAMD_INT(2), PARAMD_INT(1), PARAMD_INT(2)};
    struct paramd_tensor values[3] = {tensor_a, tensor_b, tensor_a};
    struct tensors two = {2, keys, values, 0}, three = {3, keys, values, 0};
    struct op *op = NULL;

    if (make_engine() != STATUS_OK) goto out;
    if (op_create(en, &op, &e) != STATUS_OK) goto out;
    finish(op);
    if (!engine_joined(en)) goto out;
    if (op_init(en, &two, &op, &e) == STATUS_OK) finish(op);
    if (op_push(en, &three, &op, &e) == STATUS_OK) finish(op);
    if (op_pull(en, &three, NULL, &op, &e) == STATUS_OK) finish(op);
    if (op_barrier(en, "b", &op, &e) == STATUS_OK) finish(op);
    if (op_json(en, WIRE_List, bytes_of("", 0), false, &op, &e) == STATUS_OK) finish(op);
out:
    engine_free(en);
}

TEST(any_allocation_may_fail)
{
    read_options(NULL);
    for (uint64_t n = 1;; n++) {
        int64_t before = mem_live();
        mem_fault_at(n);
        life_of_a_trainer();
        bool hit = mem_fault_hit();
        mem_fault_at(0);
        CHECK_EQ(mem_live(), before);
        if (!hit) break;
    }
    client_options_fini(&options);
    forget();
}
