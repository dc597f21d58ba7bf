/* What the server does with requests that come at the wrong time, twice, half, out of order, too many or malformed, and
 * with clients that go in the middle of it. Each of these has been a fault once. In process, on the CPU and on the late
 * device, where a forgotten wait is a wrong result. */
#include "service/base/log.h"
#include "service/base/mem.h"
#include "service/op.h"
#include "tests/lib/devices.h"
#include "tests/lib/faulty_device.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char sync2[] = "\"type\": \"dist_sync\", \"num_workers\": 2";
static const char sync3[] = "\"type\": \"dist_sync\", \"num_workers\": 3";
static const char async_[] = "\"type\": \"dist_async\"";

#define SERVER_TEST(name) TEST_ON(ON_CPU | ON_LATE | ON_LATE_LONG, name)

static const struct bytes none = {"", 0};

static enum status status_of(struct client *c, uint32_t id)
{
    struct answered *a = client_await(c, id);
    enum status s = (enum status)a->header.status;

    answered_free(a);
    return s;
}

/* The reason of an answer or of its first fault, which follows `results` bytes of descriptors. */
static enum reason reason_of(struct client *c, uint32_t id, size_t results)
{
    struct answered *a = client_await(c, id);
    enum reason r = (enum reason)a->header.reason;
    struct reader in = reader_of(a->desc);
    struct wire_fault fault;

    if (r == REASON_NONE && a->desc.size > results && reader_take(&in, results) != NULL && wire_get_fault(&in, &fault))
        r = (enum reason)fault.reason;
    answered_free(a);
    return r;
}

/* A request whose head has been placed and whose body is still on its way. */
struct flight {
    struct client *client;
    struct incoming in;
    struct buf head;
    struct bytes body;
    void *at;
    enum placement where;
};

static struct flight flight_begin(struct client *c, unsigned method, const struct buf *fixed, const struct buf *desc,
                                  struct bytes body)
{
    struct flight f = {.client = c, .in = {.id = 0x80000000u | ++c->next_id}, .body = body};

    f.in.header = (struct wire_header){.method = (uint8_t)method, .worker = c->id, .epoch = c->epoch,
                                       .session = c->session, .sequence = 0};
    CHECK(wire_head_write(&f.head, &f.in.header, bytes_of(fixed->at, fixed->size), bytes_of(desc->at, desc->size),
                          body.size, &body, 1));
    f.in.fixed = bytes_of(f.head.at + WIRE_HEADER_SIZE, fixed->size);
    f.in.desc = bytes_of(f.head.at + WIRE_HEADER_SIZE + fixed->size, desc->size);
    f.where = server_place(c->peer, &f.in, &f.at);
    return f;
}

static uint32_t flight_end(struct flight *f)
{
    CHECK(f->where != PLACE_SCRATCH);
    if (f->where == PLACE_AT) f->in.body = memcpy(f->at, f->body.at, f->body.size);
    server_frame(f->client->peer, &f->in);
    buf_fini(&f->head);
    return f->in.id;
}

/* One entry of a Push or Set, as given. */
static uint32_t send_entry(struct client *c, unsigned method, uint64_t sequence, struct wire_push_entry x,
                           const void *from)
{
    struct wire_push fixed = {.store = c->store, .count = 1};
    struct buf f = {0}, d = {0};

    wire_put_push(&f, &fixed);
    wire_put_push_entry(&d, &x);
    uint32_t id = client_send(c, method, 0, sequence, bytes_of(f.at, f.size), bytes_of(d.at, d.size),
                              bytes_of(from, (size_t)x.size));
    buf_fini(&f);
    buf_fini(&d);
    return id;
}

static uint32_t send_set(struct client *c, uint64_t sequence, uint64_t key, uint64_t offset, uint64_t size,
                         const float value[4])
{
    struct wire_push_entry x = {.key = key, .offset = offset, .size = size, .total = 16};
    return send_entry(c, WIRE_Set, sequence, x, value);
}

static uint32_t send_part(struct client *c, uint64_t key, uint64_t step, uint64_t sequence, uint64_t from, uint64_t to,
                          uint64_t total, float value)
{
    float v[4096];

    for (uint64_t i = 0; i < to - from; i++) v[i] = value;
    struct wire_push_entry x = {.key = key, .step = step, .offset = from * 4, .size = (to - from) * 4,
                                .total = total * 4};
    return send_entry(c, WIRE_Push, sequence, x, v);
}

static uint32_t send_init(struct client *c, int64_t key, unsigned flags, uint64_t call, uint64_t from, uint64_t to,
                          uint64_t total, float value)
{
    struct wire_init fixed = {.store = c->store, .count = 1, .call = call};
    struct wire_init_entry x = {.number = key, .offset = from * 4, .size = (to - from) * 4, .total = total * 4,
                                .ndim = 1};
    struct buf f = {0}, d = {0};
    int64_t dim = (int64_t)total;
    float v[64];

    for (uint64_t i = 0; i < to - from; i++) v[i] = value;
    wire_put_init(&f, &fixed);
    wire_put_init_entry(&d, &x);
    buf_add(&d, &dim, 8);
    uint32_t id = client_send(c, WIRE_Init, flags, 0, bytes_of(f.at, f.size), bytes_of(d.at, d.size),
                              bytes_of(v, (size_t)x.size));
    buf_fini(&f);
    buf_fini(&d);
    return id;
}

static void live_on(struct fixture *f, struct client *const *clients, unsigned count, uint64_t ms)
{
    for (; ms > 0; ms -= 2000) {
        fixture_advance(f, 2000);
        for (unsigned i = 0; i < count; i++) do_json(clients[i], WIRE_Heartbeat, "{}");
    }
}

enum { FIRST_KEY = KEYS_MAX };       /* the id of the first key that a daemon makes */

/* ---- frames ------------------------------------------------------------------------------------------------------ */

SERVER_TEST(a_document_that_is_no_object_is_refused)
{
    struct client *c = client_new(f, 1);
    static const char *const texts[] = {"[]", "[1, [2]]", "[{}]"};

    for (unsigned i = 0; i < 3; i++) {
        uint32_t id = client_send(c, WIRE_ListStores, 0, 0, none, none, bytes_text(texts[i]));
        CHECK_EQ(reason_of(c, id, 0), REASON_BAD_JSON);
    }
    client_gone(c);
}

SERVER_TEST(a_check_that_brings_a_body_leaves_nothing_behind)
{
    struct client *c = client_joined(f, 1, async_);
    struct error e;

    CHECK_EQ(status_of(c, send_init(c, 1, WIRE_FLAG_CHECK, 1, 0, 4, 4, 9)), STATUS_OK);
    uint64_t id = do_init(c, 1, 2.0f, 4);
    CHECK_NEAR(do_pull(c, id, 4), 2, 0);
    CHECK_EQ(status_of(c, send_init(c, 2, WIRE_FLAG_CHECK, 7, 0, 4, 4, 9)), STATUS_OK);
    CHECK_EQ(try_init(c, 2, NULL, 4, 8, 0, NULL, NULL, &e), STATUS_OK);
    CHECK_EQ(f->server->core.staging_used, 0);
    client_gone(c);
}

SERVER_TEST(what_was_decided_for_one_frame_is_not_taken_for_the_next)
{
    struct client *a = client_joined(f, 1, async_), *b = client_new(f, 2);
    struct wire_push fixed = {.store = a->store, .count = 1};
    enum { COUNT = PUSH_NOW_SIZE / 4 + 1 };          /* smaller ones are decided when they are there */
    static float v[COUNT];
    struct wire_push_entry x = {.step = 1, .size = sizeof v, .total = sizeof v};
    struct buf fb = {0}, d = {0};
    struct error e;

    x.key = do_init(a, 1, 0.0f, COUNT);
    do_push(a, x.key, 1, 1, COUNT);
    wire_put_push(&fb, &fixed);
    wire_put_push_entry(&d, &x);
    struct flight repeat = flight_begin(a, WIRE_Push, &fb, &d, bytes_of(v, sizeof v));
    CHECK_EQ(repeat.where, PLACE_DROP);
    do_json(b, WIRE_DeleteStore, "{\"store\": \"s\"}");
    CHECK_EQ(reason_of(a, flight_end(&repeat), 0), REASON_NO_STORE);
    client_join(a, async_);
    uint64_t empty = do_init(a, 1, 0.0f, 0);
    CHECK_OK(try_push(a, empty, 1, v, 0, DTYPE_f32, &e), &e);
    CHECK_EQ(do_wait(a, WAIT_TICKET, empty, 1, 50, &e), WAIT_DONE); /* was taken for the repeat, and not recorded */
    buf_fini(&fb), buf_fini(&d);
    client_gone(a);
    client_gone(b);
}

/* One frame with the next push of each key: how many does the answer call applied? */
static uint32_t push_frame(struct client *c, const uint64_t *ids, unsigned count, uint64_t step, float value)
{
    struct wire_push fixed = {.store = c->store, .count = count};
    float v[4] = {value, value, value, value};
    struct buf fb = {0}, d = {0}, body = {0};
    struct wire_push_done done;

    wire_put_push(&fb, &fixed);
    for (unsigned i = 0; i < count; i++) {
        wire_put_push_entry(&d, &(struct wire_push_entry){.key = ids[i], .step = step, .size = 16, .total = 16});
        buf_add(&body, v, sizeof v);
    }
    uint32_t id = client_send(c, WIRE_Push, 0, 0, bytes_of(fb.at, fb.size), bytes_of(d.at, d.size),
                              bytes_of(body.at, body.size));
    struct answered *a = client_await(c, id);
    struct reader r = reader_of(a->fixed);
    CHECK(wire_get_push_done(&r, &done));
    CHECK_EQ(done.recorded, count);
    answered_free(a);
    buf_fini(&fb), buf_fini(&d), buf_fini(&body);
    return done.applied;
}

SERVER_TEST(an_answer_counts_the_pushes_that_are_applied_already)
{
    struct client *c = client_joined(f, 1, async_);
    uint64_t ids[3] = {do_init(c, 1, 0.0f, 4), do_init(c, 2, 0.0f, 4), do_init(c, 3, 0.0f, 4)};
    struct error e;

    do_json(c, WIRE_SetUpdater, "{\"store\": %u, \"updater\": {\"type\": \"sgd\", \"learning_rate\": 1}}", c->store);
    for (uint64_t step = 1; step <= 4; step++) {
        uint32_t applied = push_frame(c, ids, 3, step, 1);
        CHECK(applied <= 3);
        if (applied == 3) /* then it is so */
            for (unsigned k = 0; k < 3; k++) CHECK_EQ(do_wait(c, WAIT_TICKET, ids[k], step, 0, &e), WAIT_DONE);
        CHECK(push_frame(c, ids, 3, step, 9) >= applied); /* repeats count once, and are as far as the first ones */
    }
    for (unsigned k = 0; k < 3; k++) {
        CHECK_EQ(do_wait(c, WAIT_TICKET, ids[k], 4, 50, &e), WAIT_DONE);
        CHECK_NEAR(do_pull(c, ids[k], 4), -4, 0);
    }
    client_gone(c);
}

SERVER_TEST(entries_behind_a_refused_one_keep_their_bytes)
{
    struct client *c = client_joined(f, 1, async_);
    struct wire_push fixed = {.store = c->store, .count = 4};
    struct buf fb = {0}, d = {0}, body = {0};
    struct wire_push_done done;
    uint64_t ids[2] = {do_init(c, 1, 0.0f, 4), do_init(c, 2, 0.0f, 0)};

    wire_put_push(&fb, &fixed);
    wire_put_push_entry(&d, &(struct wire_push_entry){.key = 99, .step = 1, .size = 16, .total = 16, .codec = 7});
    wire_put_push_entry(&d, &(struct wire_push_entry){.key = ids[0], .step = 1, .size = 16, .total = 16});
    wire_put_push_entry(&d, &(struct wire_push_entry){.key = 98, .step = 1, .size = UINT64_MAX - 7, .total = 16});
    wire_put_push_entry(&d, &(struct wire_push_entry){.key = ids[1], .step = 1});
    for (float v = 1; v <= 8; v++) buf_add(&body, &v, 4);
    uint32_t id = client_send(c, WIRE_Push, 0, 1, bytes_of(fb.at, fb.size), bytes_of(d.at, d.size),
                              bytes_of(body.at, body.size));
    struct answered *a = client_await(c, id);
    struct reader r = reader_of(a->fixed);
    CHECK(wire_get_push_done(&r, &done));
    CHECK_EQ(done.recorded, 2);
    CHECK_EQ(done.faults, 2);
    answered_free(a);
    float got[4];
    struct error e;
    CHECK_OK(try_pull(c, ids[0], 0, got, 16, NULL, &e), &e);
    CHECK_NEAR(got[0], 5, 0);
    CHECK_NEAR(got[3], 8, 0);
    buf_fini(&fb), buf_fini(&d), buf_fini(&body);
    client_gone(c);
}

SERVER_TEST(a_pull_whose_faults_do_not_fit_one_head_is_answered_in_pieces)
{
    struct client *c = client_joined(f, 1, async_);
    struct wire_pull fixed = {.store = c->store, .count = ENTRIES_MAX};
    struct buf fb = {0}, d = {0};
    struct wire_pull_done done;

    wire_put_pull(&fb, &fixed);
    for (uint64_t i = 0; i < ENTRIES_MAX; i++) wire_put_pull_entry(&d, &(struct wire_pull_entry){.key = 1000 + i});
    uint32_t id = client_send(c, WIRE_Pull, 0, 0, bytes_of(fb.at, fb.size), bytes_of(d.at, d.size), none);
    struct answered *a = client_await(c, id);
    struct reader r = reader_of(a->fixed);
    CHECK(wire_get_pull_done(&r, &done));
    CHECK(done.count > ENTRIES_MAX / 2 && done.count < ENTRIES_MAX && done.faults == done.count);
    answered_free(a);
    buf_fini(&fb), buf_fini(&d);
    client_gone(c);
}

/* The name of a key lies where its number says that there is one; what else stands there is never taken for it. */
SERVER_TEST(a_number_that_comes_with_a_name_is_malformed_and_makes_no_key)
{
    struct client *c = client_joined(f, 1, "\"type\": \"dist_async\"");
    struct wire_init fixed = {.store = c->store, .count = 1, .call = 1};
    struct wire_init_entry x = {.number = 3, .size = 4, .total = 4, .ndim = 1, .name_size = 8};
    struct buf head = {0}, desc = {0};
    int64_t dim = 1;
    float value = 1;

    wire_put_init(&head, &fixed);
    wire_put_init_entry(&desc, &x);
    buf_add(&desc, &dim, sizeof dim);
    buf_add(&desc, "eight by", 8);
    uint32_t id = client_send(c, WIRE_Init, 0, 0, bytes_of(head.at, head.size), bytes_of(desc.at, desc.size),
                              bytes_of(&value, sizeof value));
    struct answered *a = client_await(c, id);
    CHECK(a->header.status != STATUS_OK);
    answered_free(a);
    struct error e;
    json_t *list = try_json(c, WIRE_List, &e, "{\"store\": %u}", c->store);
    CHECK(list != NULL);
    CHECK_EQ(json_integer_value(json_object_get(list, "total")), 0);
    json_decref(list);
    buf_fini(&head);
    buf_fini(&desc);
    client_gone(c);
}

SERVER_TEST(an_init_whose_descriptors_are_cut_off_is_refused_as_a_whole)
{
    struct client *c = client_joined(f, 1, async_);
    struct wire_init fixed = {.store = c->store, .count = 2, .call = 1};
    struct wire_init_entry x = {.number = 1, .total = 16, .size = 16, .ndim = 1};
    struct buf fb = {0}, d = {0};
    int64_t dim = 4;

    wire_put_init(&fb, &fixed);
    wire_put_init_entry(&d, &x);
    buf_add(&d, &dim, 8);
    x.ndim = 8;
    wire_put_init_entry(&d, &x);
    uint32_t id = client_send(c, WIRE_Init, WIRE_FLAG_CHECK, 0, bytes_of(fb.at, fb.size), bytes_of(d.at, d.size), none);
    CHECK_EQ(reason_of(c, id, 0), REASON_MALFORMED);
    buf_fini(&fb), buf_fini(&d);
    client_gone(c);
}

/* ---- clients ----------------------------------------------------------------------------------------------------- */

TEST(a_server_may_go_while_waits_hang)
{
    int64_t live = mem_live();
    struct fixture *f = fixture_new(device_of_kinds(ON_CPU, 0), 0);
    struct client *c = client_joined(f, 1, async_);
    struct wire_wait fixed = {.count = 1, .want = 1, .time_ms = 900};
    struct wire_wait_entry x = {.kind = WAIT_INIT, .store = c->store, .key_type = KEY_STR, .name_size = 1};
    struct buf fb = {0}, d = {0};
    struct client *low = client_joined(f, 2, async_);

    wire_put_wait(&fb, &fixed);
    wire_put_wait_entry(&d, &x);
    buf_text(&d, "k");
    buf_pad(&d, 8);
    (void)client_send(low, WIRE_Wait, 0, 0, bytes_of(fb.at, fb.size), bytes_of(d.at, d.size), none);
    buf_fini(&fb), buf_fini(&d);
    client_gone(c);
    client_gone(low);
    fixture_free(f);
    CHECK_EQ(mem_live(), live);
}

TEST(a_wait_that_has_to_be_asked_again_is_no_refusal)
{
    struct fixture *f = fixture_new(device_of_kinds(ON_CPU, 0), 0);
    struct client *a = client_joined(f, 1, sync2), *b = client_joined(f, 2, sync2);
    struct error e;
    uint64_t id = do_init(a, 1, 0.0f, 4);

    do_push(a, id, 1, 1.0f, 4);
    for (int i = 0; i < 3; i++) {
        CHECK_EQ(do_wait(a, WAIT_TICKET, id, 1, 500, &e), WAIT_PENDING);
        CHECK_SAYS(e.text, "rank 1");                /* who is missing is told all the same */
    }
    CHECK_EQ(f->server->refused[REASON_DEADLINE], 0);
    client_gone(a);
    client_gone(b);
    fixture_free(f);
}

SERVER_TEST(a_client_that_is_superseded_and_gone_stays_until_its_requests_are_done)
{
    struct client *c = client_joined(f, 1, async_);
    float v[4] = {7, 7, 7, 7};
    uint64_t id = do_init(c, 1, 0.0f, 4);

    (void)send_set(c, 500, id, 0, 16, v);
    struct client *again = client_new(f, 1);
    client_join(again, async_);
    client_gone(c);
    fixture_advance(f, 1500); /* the old one is looked for and would be freed, its Set perhaps on the device */
    fixture_settle(f);
    CHECK_NEAR(do_pull(again, id, 4), 7, 0);
    client_gone(again);
}

SERVER_TEST(an_old_start_may_not_set)
{
    struct client *old = client_joined(f, 1, async_);
    float v[4] = {7, 7, 7, 7};
    uint64_t id = do_init(old, 1, 1.0f, 4);
    struct client *now = client_joined(f, 1, async_);

    CHECK_EQ(reason_of(old, send_set(old, 500, id, 0, 16, v), 0), REASON_STALE_EPOCH);
    CHECK_NEAR(do_pull(now, id, 4), 1, 0);
    client_gone(old);
    client_gone(now);
}

SERVER_TEST(no_client_uses_up_the_epochs)
{
    struct client *c = client_connect(f, 1);
    struct error e;

    c->epoch = UINT32_MAX;
    CHECK(try_json(c, WIRE_Hello, &e, "{}") == NULL);
    CHECK_EQ(e.reason, REASON_BAD_ARGUMENT);
    c->epoch = 5000;        /* of an earlier life of the daemon */
    do_json(c, WIRE_Hello, "{}");
    struct client *other = client_new(f, 2);
    CHECK(other->epoch > 5000);
    client_gone(c);
    client_gone(other);
}

SERVER_TEST(a_name_is_short_from_the_first_word)
{
    struct client *c = client_connect(f, 1);
    char name[3000];
    struct error e;

    memset(name, 'n', sizeof name);
    name[sizeof name - 1] = '\0';
    CHECK(try_json(c, WIRE_Hello, &e, "{\"name\": \"%s\"}", name) == NULL);
    CHECK_EQ(e.reason, REASON_BAD_ARGUMENT);
    client_gone(c);
}

SERVER_TEST(one_who_comes_back_to_a_place_that_is_taken_gets_a_free_rank)
{
    struct client *a = client_joined(f, 1, async_), *b = client_joined(f, 2, async_);

    do_json(a, WIRE_Leave, "{\"store\": %u}", a->store);
    struct client *c = client_joined(f, 3, async_);
    CHECK_EQ(c->rank, 0);
    client_join(a, async_);
    CHECK_EQ(a->rank, 2);
    do_json(b, WIRE_Leave, "{\"store\": %u}", b->store);
    client_join(b, async_);
    CHECK_EQ(b->rank, 1);
    client_gone(a);
    client_gone(b);
    client_gone(c);
}

SERVER_TEST(barriers_that_wait_are_limited)
{
    struct client *a = client_joined(f, 1, sync2), *b = client_joined(f, 2, sync2);
    struct error e;

    unsigned count = 0;
    json_t *j;
    while ((j = try_json(a, WIRE_Barrier, &e, "{\"store\": %u, \"name\": \"%u\"}", a->store, count)) != NULL) {
        json_decref(j);
        CHECK(++count <= BARRIERS_MAX);
    }
    CHECK_EQ(e.reason, REASON_LIMIT);
    do_json(b, WIRE_Barrier, "{\"store\": %u, \"name\": \"7\"}", a->store);
    do_json(a, WIRE_Barrier, "{\"store\": %u, \"name\": \"more\"}", a->store);
    client_gone(a);
    client_gone(b);
}

/* ---- names of requests ------------------------------------------------------------------------------------------- */

SERVER_TEST(a_set_that_is_sent_again_before_its_end_is_done_once)
{
    struct client *c = client_joined(f, 1, async_);
    struct error e;
    uint64_t id = do_init(c, 1, 0.0f, 4), version = 0;
    float v[4] = {7, 7, 7, 7}, got[4];

    uint32_t first = send_set(c, 500, id, 0, 16, v);
    struct answered *done = client_take(c, first);
    uint32_t second = send_set(c, 500, id, 0, 16, v);
    enum reason r = reason_of(c, second, 0);
    if (done == NULL) CHECK_EQ(r, REASON_IN_FLIGHT);
    answered_free(done);
    fixture_settle(f);
    CHECK_EQ(status_of(c, send_set(c, 500, id, 0, 16, v)), STATUS_OK);
    CHECK_OK(try_pull(c, id, 0, got, 16, &version, &e), &e);
    CHECK_EQ(version, 2);
    CHECK_EQ(f->server->core.staging_used, 0); /* the repeats took no room */
    CHECK_EQ(reason_of(c, send_set(c, 500 - DEDUPE_WINDOW, id, 0, 16, v), 0), REASON_SEQUENCE_OLD);
    client_gone(c);
}

/* Against a table of all that was named, over random orders, idle times and a window that grows. */
TEST(the_last_256_named_requests_are_known_whatever_their_order_and_small_when_the_client_is_idle)
{
    enum { ALL = 3000 };
    struct fixture *f = fixture_new(device_of_kinds(ON_CPU, 0), 0);
    struct client *c = client_new(f, 1);
    struct session *s = c->peer->session;
    uint8_t done[ALL + 1] = {0};
    uint64_t random = 5, highest = 0;
    const struct named_result *r;
    struct error e;

    for (int turn = 0; turn < 20000; turn++) {
        uint64_t ahead = rng_next(&random) % (turn < 200 || turn % 4 != 0 ? 2 : 300), sequence = highest + 2 > ahead ? highest + 2 - ahead : 1;
        if (sequence > ALL) sequence = ALL;
        struct wire_header h = {.method = WIRE_Barrier, .sequence = sequence};
        bool old = highest >= DEDUPE_WINDOW && sequence <= highest - DEDUPE_WINDOW;
        enum repeat got = session_repeat(s, &h, &r, &e);
        CHECK_EQ(got, old ? REPEAT_REFUSED : done[sequence] ? REPEAT_DONE : REPEAT_FRESH);
        if (old) CHECK_EQ(e.reason, REASON_SEQUENCE_OLD);
        if (got == REPEAT_DONE) CHECK(memcmp(r->bytes, &sequence, sizeof sequence) == 0 && r->size == sizeof sequence);
        if (got != REPEAT_FRESH) continue;
        if (sequence > highest) highest = sequence;
        session_result(s, sequence, &sequence, sizeof sequence);
        done[sequence] = 1;
        if (turn < 8) CHECK(s->window_size <= 16);
        if (rng_next(&random) % 100 != 0) continue;
        struct client *next;
        client_gone(c);
        fixture_advance(f, 1100);
        CHECK(s->window_size <= 8);
        CHECK(s->packed.capacity <= 8192);
        next = client_connect(f, 1);
        next->epoch = s->epoch;
        do_json(next, WIRE_Hello, "{\"client\": \"test\"}");
        CHECK(next->peer->session == s);
        c = next;
    }
    CHECK_EQ(highest, ALL);
    client_gone(c);
    fixture_free(f);
}

SERVER_TEST(one_name_is_of_one_request)
{
    struct client *c = client_joined(f, 1, async_);
    float v[4] = {7, 7, 7, 7};
    uint64_t id = do_init(c, 1, 0.0f, 4);

    CHECK_EQ(status_of(c, send_set(c, 500, id, 0, 16, v)), STATUS_OK);
    uint32_t r = client_send(c, WIRE_Barrier, 0, 500, none, none, bytes_text("{\"store\": \"s\", \"name\": \"x\"}"));
    CHECK_EQ(reason_of(c, r, 0), REASON_BAD_ARGUMENT);
    client_gone(c);
}

/* ---- values in parts --------------------------------------------------------------------------------------------- */

SERVER_TEST(an_init_does_not_replace_what_came_to_be_while_its_bytes_came)
{
    struct client *c = client_joined(f, 1, async_), *other = client_again(c);
    struct wire_init fixed = {.store = c->store, .count = 1, .call = 71};
    struct wire_init_entry x = {.number = 1, .size = 16, .total = 16, .ndim = 1};
    struct buf fb = {0}, d = {0};
    float nine[4] = {9, 9, 9, 9};
    int64_t dim = 4;

    wire_put_init(&fb, &fixed);
    wire_put_init_entry(&d, &x);
    buf_add(&d, &dim, 8);
    struct flight late = flight_begin(c, WIRE_Init, &fb, &d, bytes_of(nine, 16));
    uint64_t id = do_init(other, 1, 2.0f, 4);        /* another call */
    CHECK_EQ(reason_of(c, flight_end(&late), wire_init_result_size), REASON_KEY_EXISTS);
    CHECK_NEAR(do_pull(c, id, 4), 2, 0);
    CHECK_EQ(f->server->core.staging_used, 0);
    buf_fini(&fb), buf_fini(&d);
    client_gone(c);
    client_gone(other);
}

SERVER_TEST(a_set_in_parts_does_not_break_a_round_that_has_opened_meanwhile)
{
    struct client *a = client_joined(f, 1, sync2), *b = client_joined(f, 2, sync2);
    float v[4] = {7, 7, 7, 7};
    struct error e;
    uint64_t id = do_init(a, 1, 0.0f, 4);

    CHECK_EQ(status_of(a, send_set(a, 500, id, 0, 8, v)), STATUS_OK);
    do_push(b, id, 1, 1.0f, 4);
    CHECK_EQ(reason_of(a, send_set(a, 500, id, 8, 8, v), 0), REASON_ROUND_OPEN);
    do_push(a, id, 1, 1.0f, 4);
    CHECK_EQ(do_wait(a, WAIT_TICKET, id, 1, 50, &e), WAIT_DONE);
    CHECK_NEAR(do_pull(a, id, 4), 2, 0);
    client_gone(a);
    client_gone(b);
}

SERVER_TEST(parts_that_bring_nothing_new_do_not_keep_a_push_alive)
{
    struct client *c = client_joined(f, 1, async_);
    uint64_t id = do_init(c, 1, 0.0f, 100);

    answered_free(client_await(c, send_part(c, id, 1, 50, 0, 60, 100, 3)));
    for (int i = 0; i < 16; i++) {
        fixture_advance(f, 2000);
        if (i < 14) answered_free(client_await(c, send_part(c, id, 1, 50, 0, i % 2 ? 60 : 0, 100, 3)));
        else do_json(c, WIRE_Heartbeat, "{}");
    }
    CHECK_EQ(f->server->core.staging_used, 0);
    client_gone(c);
}

/* Two clients fill the staging memory with values of 2 MiB, of which a part comes every 16 s: enough to be no stall. */
enum { SLOW_COUNT = 512 << 10, SLOW_PART = 4096 };

static void begin_slow(struct client *c, uint64_t id)
{
    CHECK_EQ(reason_of(c, send_part(c, id, 1, 50, 0, SLOW_PART, SLOW_COUNT, 1), 0), REASON_NONE);
}

TEST(values_that_come_slowly_give_their_memory_to_who_waits_for_it)
{
    struct fixture *f = fixture_new(device_of_kinds(ON_CPU, 0), 4 << 20);
    struct client *slow[2], *other = client_joined(f, 3, async_), *all[3] = {other};
    uint64_t ids[2], id = do_init(other, 3, 0.0f, SLOW_COUNT), from = SLOW_PART;

    for (unsigned i = 0; i < 2; i++) {
        slow[i] = all[i + 1] = client_joined(f, i + 1, async_);
        ids[i] = do_init(other, (int64_t)i + 1, 0.0f, SLOW_COUNT);
    }
    for (unsigned i = 0; i < 2; i++) begin_slow(slow[i], ids[i]);
    for (int turn = 0; turn < 8; turn++, from += SLOW_PART) {   /* nobody waits: they may take their time */
        live_on(f, all, 3, 16000);
        for (unsigned i = 0; i < 2; i++)
            CHECK_EQ(reason_of(slow[i], send_part(slow[i], ids[i], 1, 50, from, from + SLOW_PART, SLOW_COUNT, 1), 0),
                     REASON_NONE);
        CHECK_EQ(f->server->core.staging_used, 4 << 20);
    }
    CHECK_EQ(reason_of(other, send_part(other, id, 1, 50, 0, SLOW_PART, SLOW_COUNT, 1), 0), REASON_STAGING_FULL);
    fixture_advance(f, 1000);
    CHECK_EQ(f->server->core.staging_used, 0);
    begin_slow(other, id);
    CHECK_EQ(reason_of(slow[0], send_part(slow[0], ids[0], 1, 50, from, from + SLOW_PART, SLOW_COUNT, 1), 0),
             REASON_IN_FLIGHT);
    CHECK_EQ(f->server->core.staging_used, 2 << 20);
    for (unsigned i = 0; i < 2; i++) client_gone(slow[i]);
    client_gone(other);
    fixture_free(f);
}

TEST(a_value_that_comes_fast_enough_keeps_its_memory_whoever_waits)
{
    struct fixture *f = fixture_new(device_of_kinds(ON_CPU, 0), 4 << 20);
    struct client *c[3];
    uint64_t ids[3], from[2] = {0, 0};

    for (unsigned i = 0; i < 3; i++) {
        c[i] = client_joined(f, i + 1, async_);
        ids[i] = do_init(c[0], (int64_t)i + 1, 0.0f, SLOW_COUNT);
    }
    begin_slow(c[0], ids[0]);
    begin_slow(c[1], ids[1]);
    from[0] = from[1] = SLOW_PART;
    for (int second = 0; second < 60; second++) {                /* one at 16 KiB/s, the other at half of that */
        for (unsigned i = 0; i < 2; i++) {
            if ((i == 1 && second % 2 == 1) || (i == 1 && second >= 30)) continue;
            CHECK_EQ(reason_of(c[i], send_part(c[i], ids[i], 1, 50, from[i], from[i] + SLOW_PART, SLOW_COUNT, 1), 0),
                     REASON_NONE);
            from[i] += SLOW_PART;
        }
        enum reason why = reason_of(c[2], send_part(c[2], ids[2], 1, 50, 0, SLOW_PART, SLOW_COUNT, 1), 0);
        CHECK_EQ(why, second < 30 ? REASON_STAGING_FULL : REASON_NONE);
        fixture_advance(f, 1000);
        do_json(c[1], WIRE_Heartbeat, "{}");
    }
    for (uint64_t at = from[0]; at < SLOW_COUNT; at += SLOW_PART)
        CHECK_EQ(reason_of(c[0], send_part(c[0], ids[0], 1, 50, at, at + SLOW_PART, SLOW_COUNT, 1), 0), REASON_NONE);
    CHECK_NEAR(do_pull(c[0], ids[0], SLOW_COUNT), 1, 0);
    for (unsigned i = 0; i < 3; i++) client_gone(c[i]);
    fixture_free(f);
}

TEST(who_was_too_slow_stands_back_while_others_wait)
{
    struct fixture *f = fixture_new(device_of_kinds(ON_CPU, 0), 4 << 20);
    struct client *c[4];
    uint64_t ids[4];

    for (unsigned i = 0; i < 4; i++) {
        c[i] = client_joined(f, i + 1, async_);
        ids[i] = do_init(c[0], (int64_t)i + 1, 0.0f, SLOW_COUNT);
    }
    begin_slow(c[0], ids[0]);
    begin_slow(c[1], ids[1]);
    live_on(f, c, 4, PACE_MS - 2000);
    for (unsigned i = 0; i < 4; i++)
        if (i != 2) CHECK_EQ(reason_of(c[i], send_part(c[i], ids[i], 1, 50, 4 * SLOW_PART, 5 * SLOW_PART, SLOW_COUNT, 1), 0),
                             i < 2 ? REASON_NONE : REASON_STAGING_FULL);
    live_on(f, c, 4, 2000);
    CHECK_EQ(f->server->core.staging_used, 0);
    CHECK_EQ(reason_of(c[0], send_part(c[0], ids[0], 1, 50, 0, SLOW_PART, SLOW_COUNT, 1), 0), REASON_IN_FLIGHT);
    begin_slow(c[3], ids[3]);                                    /* who waited has it */
    live_on(f, c, 4, PACE_WAIT_MS / 2000 * 2000 + 2000);         /* and nobody waits any more */
    begin_slow(c[0], ids[0]);
    for (unsigned i = 0; i < 4; i++) client_gone(c[i]);
    fixture_free(f);
}

SERVER_TEST(the_gaps_in_a_value_are_limited)
{
    struct client *c = client_joined(f, 1, async_);
    enum { COUNT = 2 * RANGES_MAX + 4 };
    uint64_t id = do_init(c, 1, 0.0f, COUNT);

    for (uint64_t i = 0; i < RANGES_MAX; i++)
        CHECK_EQ(reason_of(c, send_part(c, id, 1, 50, 2 * i, 2 * i + 1, COUNT, 1), 0), REASON_NONE);
    CHECK_EQ(reason_of(c, send_part(c, id, 1, 50, 2 * RANGES_MAX, 2 * RANGES_MAX + 1, COUNT, 1), 0), REASON_LIMIT);
    client_gone(c);
}

SERVER_TEST(a_step_that_was_never_told_is_not_recorded_after_a_later_one)
{
    const char *o = "\"type\": \"dist_sync\", \"elastic\": true, \"on_missing\": \"proceed\", \"round_timeout\": 3";
    struct client *a = client_joined(f, 1, o), *b = client_joined(f, 2, o);
    struct error e;
    uint64_t id = do_init(a, 1, 0.0f, 4);

    do_push(a, id, 1, 1.0f, 4);
    answered_free(client_await(b, send_part(b, id, 1, 50, 0, 2, 4, 3)));
    struct client *both[2] = {a, b};
    live_on(f, both, 2, 4000);       /* round 1 ends without b */
    answered_free(client_await(b, send_part(b, id, 2, 51, 0, 2, 4, 3)));
    answered_free(client_await(b, send_part(b, id, 2, 51, 2, 4, 4, 3)));
    answered_free(client_await(b, send_part(b, id, 1, 50, 2, 4, 4, 3)));
    const struct store *s = store_at(&f->server->core, a->store);
    const struct progress *p = worker_seen(s->workers[1], store_key_at(s, id));
    CHECK_EQ(p->recorded, 1);        /* the late one, told; step 2 was refused and comes next */
    CHECK_EQ(do_wait(b, WAIT_TICKET, id, 1, 50, &e), WAIT_FAILED);
    do_push(b, id, 2, 1.0f, 4);
    client_gone(a);
    client_gone(b);
}

/* ---- rounds ------------------------------------------------------------------------------------------------------ */

SERVER_TEST(a_younger_round_that_fails_first_leaves_the_older_one_open)
{
    struct client *a = client_joined(f, 1, sync3), *b = client_joined(f, 2, sync3), *c = client_joined(f, 3, sync3);
    struct error e;
    uint64_t id = do_init(a, 1, 0.0f, 8);

    CHECK_OK(try_init(b, 1, NULL, 8, 1, 0, NULL, NULL, &e), &e);
    do_push(a, id, 1, 1.0f, 8);
    do_push(a, id, 2, 100.0f, 8);
    do_push(c, id, 1, 2.0f, 8);
    struct client *alive[2] = {a, b};
    live_on(f, alive, 2, 12000);     /* c dies: round 2 needed it, round 1 has its part */
    CHECK_EQ(do_wait(a, WAIT_TICKET, id, 2, 50, &e), WAIT_FAILED);
    CHECK_EQ(do_wait(a, WAIT_TICKET, id, 1, 50, &e), WAIT_PENDING); /* though a later one is decided */
    do_push(b, id, 1, 4.0f, 8);
    CHECK_EQ(do_wait(b, WAIT_TICKET, id, 1, 50, &e), WAIT_DONE);
    CHECK_EQ(do_wait(a, WAIT_TICKET, id, 1, 50, &e), WAIT_DONE);
    CHECK_NEAR(do_pull(a, id, 8), 7, 0);
    client_gone(a);
    client_gone(b);
    client_gone(c);
}

SERVER_TEST(every_failed_push_is_told_however_many_have_failed)
{
    enum { KEYS = 40 };
    struct client *a = client_joined(f, 1, sync2), *b = client_joined(f, 2, sync2);
    struct error e;
    uint64_t ids[KEYS];

    for (unsigned k = 0; k < KEYS; k++) {
        ids[k] = do_init(a, k, 0.0f, 4);
        do_push(a, ids[k], 1, 1.0f, 4);
    }
    do_json(a, WIRE_Barrier, "{\"store\": %u, \"name\": \"x\"}", a->store);
    client_gone(b);
    live_on(f, &a, 1, 12000);
    for (unsigned k = 0; k < KEYS; k++) {
        CHECK_EQ(do_wait(a, WAIT_TICKET, ids[k], 1, 50, &e), WAIT_FAILED);
        CHECK_EQ(e.reason, REASON_WORKER_DEAD);
    }
    CHECK_EQ(do_wait(a, WAIT_BARRIER, 1, 0, 50, &e), WAIT_FAILED);
    client_gone(a);
}

SERVER_TEST(a_carried_push_is_told_when_the_round_that_took_it_fails)
{
    const char *o = "\"type\": \"dist_sync\", \"num_workers\": 2, \"on_late\": \"carry\", \"round_timeout\": 3";
    struct client *a = client_joined(f, 1, o), *b = client_joined(f, 2, o);
    struct error e;
    uint64_t id = do_init(a, 1, 0.0f, 4);
    struct client *both[2] = {a, b};

    CHECK_OK(try_init(b, 1, NULL, 4, 1, 0, NULL, NULL, &e), &e);
    do_push(a, id, 1, 1.0f, 4);
    live_on(f, both, 2, 4000);                       /* round 1 fails, b is late */
    do_push(b, id, 1, 2.0f, 4);                      /* carried into round 2, which it opens */
    CHECK_EQ(do_wait(b, WAIT_TICKET, id, 1, 0, &e), WAIT_PENDING);
    live_on(f, both, 2, 4000);
    CHECK_EQ(do_wait(b, WAIT_TICKET, id, 1, 0, &e), WAIT_FAILED);
    CHECK_NEAR(do_pull(a, id, 4), 0, 0);
    client_gone(a);
    client_gone(b);
}

TEST(a_push_that_found_no_memory_for_its_sum_may_be_pushed_again)
{
    struct device *d;
    struct error e;
    int8_t value[4] = {1, 2, 3, 4}, got[4];

    CHECK_OK(faulty_device_new(device_of_kinds(ON_CPU, 0), &d, &e), &e);
    struct fixture *f = fixture_new(d, 0);
    struct client *a = client_joined(f, 1, sync2), *b = client_joined(f, 2, sync2);
    struct wire_init fixed = {.store = a->store, .count = 1, .call = 5};
    struct wire_init_entry x = {.number = 1, .size = 4, .total = 4, .ndim = 1, .dtype = DTYPE_i8};
    struct buf fb = {0}, desc = {0};
    int64_t dim = 4;
    wire_put_init(&fb, &fixed);
    wire_put_init_entry(&desc, &x);
    buf_add(&desc, &dim, 8);
    CHECK_EQ(status_of(a, client_send(a, WIRE_Init, 0, 0, bytes_of(fb.at, fb.size), bytes_of(desc.at, desc.size),
                                      bytes_of(value, 4))), STATUS_OK);
    buf_fini(&fb), buf_fini(&desc);
    faulty_device_fail_at(d, 2, FAULT_REFUSED);      /* staging, then the wider sum */
    CHECK_EQ(try_push(a, FIRST_KEY, 1, value, 4, DTYPE_i8, &e), STATUS_RESOURCE_EXHAUSTED);
    CHECK_EQ(e.reason, REASON_NO_MEMORY);
    CHECK_OK(try_push(a, FIRST_KEY, 1, value, 4, DTYPE_i8, &e), &e);
    CHECK_OK(try_push(b, FIRST_KEY, 1, value, 4, DTYPE_i8, &e), &e);
    CHECK_EQ(do_wait(a, WAIT_TICKET, FIRST_KEY, 1, 50, &e), WAIT_DONE);
    CHECK_OK(try_pull(a, FIRST_KEY, 0, got, 4, NULL, &e), &e);
    CHECK_EQ(got[3], 8);
    client_gone(a);
    client_gone(b);
    fixture_free(f);
}

TEST(the_room_kept_for_a_round_admits_one_contribution_at_a_time)
{
    enum { COUNT = 1000, WORKERS = 4 };
    struct fixture *f = fixture_new(device_of_kinds(ON_CPU, 0), 3 * COUNT * 4);
    struct client *w[WORKERS];
    unsigned begun = 0, full = 0;
    struct error e;

    for (unsigned i = 0; i < WORKERS; i++) w[i] = client_joined(f, i + 1, "\"type\": \"dist_sync\", \"num_workers\": 4");
    uint64_t id = do_init(w[0], 1, 0.0f, COUNT), other = do_init(w[0], 2, 0.0f, COUNT);
    do_push(w[0], id, 1, 1.0f, COUNT);
    (void)send_part(w[1], other, 1, 50, 0, 1, COUNT, 1);     /* takes of what is free */
    for (unsigned i = 1; i < WORKERS; i++) {                 /* half of each arrives */
        enum reason r = reason_of(w[i], send_part(w[i], id, 1, 60, 0, COUNT / 2, COUNT, 1), 0);
        begun += r == REASON_NONE;
        full += r == REASON_STAGING_FULL;
    }
    CHECK_EQ(begun, 2);      /* one in free room, one in the room kept */
    CHECK_EQ(full, 1);
    CHECK(f->server->core.staging_used <= 4 * COUNT * 4);
    /* One after the other all come to their end. */
    for (unsigned i = 1; i < WORKERS; i++)
        CHECK_EQ(reason_of(w[i], send_part(w[i], id, 1, 60, i < 3 ? COUNT / 2 : 0, COUNT, COUNT, 1), 0), REASON_NONE);
    CHECK_EQ(do_wait(w[0], WAIT_TICKET, id, 1, 50, &e), WAIT_DONE);
    for (unsigned i = 0; i < WORKERS; i++) client_gone(w[i]);
    fixture_free(f);
}

/* ---- what is under way on the device ----------------------------------------------------------------------------- */

SERVER_TEST(what_a_deleted_key_had_under_way_does_not_touch_the_key_in_its_place)
{
    struct client *c = client_joined(f, 1, async_);
    struct error e;
    uint64_t id = do_init(c, 1, 0.0f, 64);

    do_push(c, id, 1, 1.0f, 64);
    struct wire_pull fixed = {.store = c->store, .count = 1};
    struct wire_pull_entry x = {.key = id};
    struct buf fb = {0}, d = {0};
    wire_put_pull(&fb, &fixed);
    wire_put_pull_entry(&d, &x);
    uint32_t pull = client_send(c, WIRE_Pull, 0, 0, bytes_of(fb.at, fb.size), bytes_of(d.at, d.size), none);
    uint32_t gone = client_send(c, WIRE_Delete, 0, 900, none, none,
                                bytes_text("{\"store\": \"s\", \"keys\": [1], \"force\": true}"));
    uint32_t made = send_init(c, 2, 0, 55, 0, 64, 64, 5);
    uint64_t now = id + KEYS_MAX;    /* in the slot of the first */
    do_push(c, now, 1, 2.0f, 64);
    CHECK_EQ(status_of(c, pull), STATUS_OK);
    CHECK_EQ(status_of(c, gone), STATUS_OK);
    CHECK_EQ(status_of(c, made), STATUS_OK);
    do_push(c, now, 1, 3.0f, 64);    /* the same step: recorded already */
    CHECK_EQ(do_wait(c, WAIT_TICKET, now, 1, 50, &e), WAIT_DONE);
    CHECK_NEAR(do_pull(c, now, 64), 2, 0);
    buf_fini(&fb), buf_fini(&d);
    client_gone(c);
}

SERVER_TEST(an_updater_may_be_swapped_while_its_state_is_being_cleared)
{
    struct client *c = client_joined(f, 1, async_);

    do_json(c, WIRE_SetUpdater, "{\"store\": %u, \"updater\": {\"type\": \"adam\"}}", c->store);
    uint32_t made = send_init(c, 1, 0, 55, 0, 64, 64, 5);
    (void)client_send(c, WIRE_SetUpdater, 0, 900, none, none,
                      bytes_text("{\"store\": \"s\", \"updater\": {\"type\": \"add\"}}"));
    (void)send_part(c, FIRST_KEY, 1, 901, 0, 64, 64, 2);
    CHECK_EQ(status_of(c, made), STATUS_OK);
    CHECK_NEAR(do_pull(c, FIRST_KEY, 64), 7, 0);
    client_gone(c);
}

SERVER_TEST(a_set_keeps_the_state_of_the_optimizer)
{
    struct client *c = client_joined(f, 1, async_);
    float v[4] = {10, 10, 10, 10};
    uint64_t id = do_init(c, 1, 0.0f, 4);

    do_json(c, WIRE_SetUpdater, "{\"store\": %u, \"updater\": {\"type\": \"sgd\", \"learning_rate\": 1, "
            "\"momentum\": 0.5}}", c->store);
    do_push(c, id, 1, 4.0f, 4);      /* momentum -4 */
    CHECK_EQ(status_of(c, send_set(c, 800, id, 0, 16, v)), STATUS_OK);
    do_push(c, id, 2, 2.0f, 4);      /* -2 - 2 */
    fixture_settle(f);
    CHECK_NEAR(do_pull(c, id, 4), 6, 0);
    client_gone(c);
}

/* A pull of two keys, of which one is copied down while the other changes so often that its version is taken back. */
SERVER_TEST(readers_never_fail_a_push_and_get_whole_values_or_are_told)
{
    enum { COUNT = 64, STEPS = 60 };
    struct client *c = client_joined(f, 1, "\"type\": \"dist_async\", \"versions_max\": 2");
    uint64_t ids[2] = {do_init(c, 1, 1.0f, COUNT), do_init(c, 2, 1.0f, COUNT)}, steps[2] = {0, 0}, seed = 5;
    struct wire_pull fixed = {.store = c->store, .count = 2};
    uint32_t pulls[STEPS];
    struct buf fb = {0}, d = {0};
    struct error e;

    wire_put_pull(&fb, &fixed);
    for (unsigned i = 0; i < 2; i++) wire_put_pull_entry(&d, &(struct wire_pull_entry){.key = ids[i]});
    for (unsigned i = 0; i < STEPS; i++) {
        pulls[i] = client_send(c, WIRE_Pull, 0, 0, bytes_of(fb.at, fb.size), bytes_of(d.at, d.size), none);
        for (unsigned n = (unsigned)rng_next(&seed) % 4; n > 0; n--) {
            unsigned k = (unsigned)rng_next(&seed) % 2;
            do_push(c, ids[k], steps[k] + 1, (float)(steps[k] + 2), COUNT); /* every element is the version's number */
            steps[k]++;
        }
        if (rng_next(&seed) % 2) server_poll(f->server);
    }
    for (unsigned i = 0; i < STEPS; i++) {
        struct answered *a = client_await(c, pulls[i]);
        struct reader r = reader_of(a->desc);
        struct wire_pull_result x[2];
        CHECK_EQ(a->header.status, STATUS_OK);
        CHECK(wire_get_pull_result(&r, &x[0]) && wire_get_pull_result(&r, &x[1]));
        for (unsigned k = 0; k < 2; k++) {
            if (x[k].size == 0) continue;
            const float *v = (const void *)((const char *)a->body.at + (k == 1 && x[0].size > 0 ? COUNT * 4 : 0));
            for (unsigned j = 0; j < COUNT; j++) CHECK_NEAR(v[j], x[k].version, 0);
        }
        answered_free(a);
    }
    for (unsigned k = 0; k < 2; k++)
        if (steps[k] > 0) CHECK_EQ(do_wait(c, WAIT_TICKET, ids[k], steps[k], 50, &e), WAIT_DONE);
    CHECK_NEAR(do_pull(c, ids[0], COUNT), steps[0] + 1, 0);
    buf_fini(&fb), buf_fini(&d);
    client_gone(c);
}
