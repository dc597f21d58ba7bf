/* Mailboxes as the server has them, on the late device, whose shared memory this test writes and reads as the trainer
 * would: a copy that is answered too early finds the wrong bytes, memory freed under a copy ends the run. */
#include "service/base/mem.h"
#include "tests/lib/direct.h"
#include "tests/lib/faulty_device.h"
#include "tests/lib/late_device.h"
#include "tests/lib/test.h"

#include <stdlib.h>
#include <string.h>

enum { COUNT = 1000, SIZE = COUNT * 4, BOX = 64 << 10 };

static struct error e;
static uint64_t seed;

static struct fixture *on_late(void)
{
    struct device *d;

    CHECK_OK(late_device_new(++seed, &d, &e), &e);
    return fixture_new(d, 64 << 20);
}

/* A mailbox, opened. */
struct open_box {
    uint64_t id;
    uint8_t *at;
};

static struct open_box read_box(json_t *j)
{
    const char *hex = json_string_value(json_object_get(j, "handle"));
    struct open_box b = {.id = (uint64_t)json_integer_value(json_object_get(j, "mailbox"))};

    for (size_t i = 0; i < sizeof b.at; i++) {
        unsigned byte;
        CHECK_EQ(sscanf(hex + 2 * i, "%2x", &byte), 1);
        ((uint8_t *)&b.at)[i] = (uint8_t)byte;
    }
    json_decref(j);
    return b;
}

static struct open_box box_of(struct client *c)
{
    json_t *j = try_json(c, WIRE_Mailbox, &e, "{\"host\": \"here\", \"size\": %d}", BOX);
    if (j == NULL) test_fail(__FILE__, __LINE__, "mailbox: %s", e.text);
    return read_box(j);
}

static void fill(struct open_box b, uint64_t offset, float value, size_t count)
{
    for (size_t i = 0; i < count; i++) memcpy(b.at + offset + 4 * i, &value, 4);
}

static float first_of(struct open_box b, uint64_t offset, size_t count)
{
    float first, one;

    memcpy(&first, b.at + offset, 4);
    for (size_t i = 0; i < count; i++) {
        memcpy(&one, b.at + offset + 4 * i, 4);
        CHECK_EQ(one, first);
    }
    return first;
}

struct part {
    uint64_t key, step, offset, size, total;
    struct wire_place place;
};

static uint32_t send_push(struct client *c, const struct part *p, size_t count, uint64_t sequence)
{
    struct wire_push fixed = {.store = c->store, .count = (uint32_t)count};
    struct buf f = {0}, d = {0}, b = {0};

    wire_put_push(&f, &fixed);
    for (size_t i = 0; i < count; i++) {
        wire_put_push_entry(&d, &(struct wire_push_entry){.key = p[i].key, .step = p[i].step, .offset = p[i].offset,
                                                           .size = p[i].size, .total = p[i].total});
        wire_put_place(&b, &p[i].place);
    }
    uint32_t id = client_send(c, WIRE_Push, WIRE_FLAG_MAILBOX, sequence, bytes_of(f.at, f.size), bytes_of(d.at, d.size),
                              bytes_of(b.at, b.size));
    buf_fini(&f), buf_fini(&d), buf_fini(&b);
    return id;
}

/* What an answer says: of the whole, or of its only fault. */
static enum status said(struct answered *a, size_t results)
{
    struct reader r = reader_of(a->desc);
    struct wire_fault f;
    enum status s = STATUS_OK;

    if (a->header.status != 0)
        s = error_set(&e, reason_from_wire(a->header.reason), "%.*s", (int)a->body.size, (const char *)a->body.at);
    else if (a->desc.size > results && reader_take(&r, results) != NULL && wire_get_fault(&r, &f))
        s = error_set(&e, reason_from_wire(f.reason), "%.*s", (int)f.text_size,
                      (const char *)a->body.at + f.text_offset);
    answered_free(a);
    return s;
}

static enum status push(struct client *c, struct open_box b, uint64_t key, uint64_t step, uint64_t offset)
{
    struct part p = {.key = key, .step = step, .size = SIZE, .total = SIZE, .place = {b.id, offset}};
    return said(client_await(c, send_push(c, &p, 1, ++c->sequence)), 0);
}

static uint32_t send_pull(struct client *c, const struct wire_pull_entry *x, const struct wire_place *at, size_t count)
{
    struct wire_pull fixed = {.store = c->store, .count = (uint32_t)count};
    struct buf f = {0}, d = {0}, b = {0};

    wire_put_pull(&f, &fixed);
    for (size_t i = 0; i < count; i++) {
        wire_put_pull_entry(&d, &x[i]);
        wire_put_place(&b, &at[i]);
    }
    uint32_t id = client_send(c, WIRE_Pull, WIRE_FLAG_MAILBOX, 0, bytes_of(f.at, f.size), bytes_of(d.at, d.size),
                              bytes_of(b.at, b.size));
    buf_fini(&f), buf_fini(&d), buf_fini(&b);
    return id;
}

static enum status pull(struct client *c, struct open_box b, uint64_t key, uint64_t offset)
{
    struct wire_pull_entry x = {.key = key};
    struct wire_place at = {b.id, offset};
    return said(client_await(c, send_pull(c, &x, &at, 1)), wire_pull_result_size);
}

#define ASYNC "\"type\": \"dist_async\", \"async_default\": \"add\""

TEST(hello_offers_mailboxes_with_host_and_gpu)
{
    struct fixture *f = on_late();
    struct client *c = client_new(f, 1);
    json_t *j = try_json(c, WIRE_Hello, &e, "{}"), *m = json_object_get(j, "mailbox");

    CHECK_TEXT(json_string_value(json_object_get(m, "host")), "here");
    CHECK_TEXT(json_string_value(json_object_get(m, "gpu")), "late");
    CHECK_EQ(json_integer_value(json_object_get(m, "size_max")), MAILBOX_SIZE_MAX);
    json_decref(j);
    client_gone(c);
    fixture_free(f);
}

TEST(the_cpu_offers_none_and_says_why)
{
    struct device *d;

    CHECK_OK(cpu_device_new(1, &d, &e), &e);
    struct fixture *f = fixture_new(d, 1 << 20);
    struct client *c = client_new(f, 1);
    json_t *j = try_json(c, WIRE_Hello, &e, "{}");
    CHECK(json_is_null(json_object_get(j, "mailbox")));
    json_decref(j);
    CHECK(try_json(c, WIRE_Mailbox, &e, "{\"host\": \"here\", \"size\": %d}", BOX) == NULL);
    CHECK_EQ(e.reason, REASON_UNIMPLEMENTED);
    CHECK_SAYS(e.text, "cpu");
    client_gone(c);
    fixture_free(f);
}

TEST(a_push_and_a_pull_through_a_mailbox_are_those_of_frames)
{
    for (int turn = 0; turn < 20; turn++) {
        struct fixture *f = on_late();
        struct client *c = client_joined(f, 1, ASYNC);
        uint64_t key = do_init(c, 1, 1, COUNT);
        struct open_box b = box_of(c);
        fill(b, 4096, 2, COUNT);
        CHECK_EQ(push(c, b, key, 1, 4096), STATUS_OK);
        fill(b, 4096, 77, COUNT); /* it is ours again */
        fixture_settle(f);
        CHECK_EQ(do_pull(c, key, COUNT), 3);
        CHECK_EQ(pull(c, b, key, 16), STATUS_OK);
        CHECK_EQ(first_of(b, 16, COUNT), 3);
        CHECK_EQ(first_of(b, 4096, COUNT), 77);
        client_gone(c);
        fixture_free(f);
    }
}

/* Whenever the answer comes, the place may be written again from then on; a pull's answer says that it may be read. */
TEST(an_answer_comes_when_the_bytes_have_been_copied)
{
    unsigned later = 0;

    for (int turn = 0; turn < 60; turn++) {
        struct fixture *f = on_late();
        struct client *c = client_joined(f, 1, ASYNC);
        uint64_t key = do_init(c, 1, 0, COUNT);
        struct open_box b = box_of(c);
        struct part p = {.key = key, .step = 1, .size = SIZE, .total = SIZE, .place = {b.id, 0}};
        struct wire_pull_entry x = {.key = key};
        struct wire_place at = {b.id, 8192};
        struct answered *a;
        fill(b, 0, 5, COUNT);
        uint32_t id = send_push(c, &p, 1, ++c->sequence);
        for (; (a = client_take(c, id)) == NULL; later++) server_poll(f->server);
        fill(b, 0, 77, COUNT);
        struct reader r = reader_of(a->fixed);
        struct wire_push_done done;
        CHECK(wire_get_push_done(&r, &done));
        CHECK_EQ(done.recorded, 1);
        answered_free(a);
        fixture_settle(f);
        id = send_pull(c, &x, &at, 1);
        for (; (a = client_take(c, id)) == NULL; later++) server_poll(f->server);
        CHECK_EQ(first_of(b, 8192, COUNT), 5);
        answered_free(a);
        client_gone(c);
        fixture_free(f);
    }
    CHECK(later > 10);
}

TEST(rounds_count_pushes_of_either_way)
{
    for (int by_rank = 0; by_rank < 2; by_rank++) {
        struct fixture *f = on_late();
        struct client *c[2];
        struct open_box b[2];
        char options[100];
        snprintf(options, sizeof options, "\"type\": \"dist_sync\", \"num_workers\": 2, \"sum_order\": \"%s\"",
                 by_rank ? "rank" : "arrival");
        for (unsigned i = 0; i < 2; i++) c[i] = client_joined(f, i + 1, options);
        uint64_t key = do_init(c[0], 1, 0, COUNT);
        for (unsigned i = 0; i < 2; i++) b[i] = box_of(c[i]);
        fill(b[0], 0, 1, COUNT);
        fill(b[1], 0, 10, COUNT);
        CHECK_EQ(push(c[0], b[0], key, 1, 0), STATUS_OK);
        CHECK_EQ(push(c[1], b[1], key, 1, 0), STATUS_OK);
        fixture_settle(f);
        CHECK_EQ(do_pull(c[0], key, COUNT), 11);
        fill(b[0], 0, 4, COUNT);
        CHECK_EQ(push(c[0], b[0], key, 2, 0), STATUS_OK);
        do_push(c[1], key, 2, 3, COUNT);
        fixture_settle(f);
        CHECK_EQ(do_pull(c[0], key, COUNT), 7);
        for (unsigned i = 0; i < 2; i++) client_gone(c[i]);
        fixture_free(f);
    }
}

TEST(a_repeat_counts_once_and_needs_no_mailbox_any_more)
{
    struct fixture *f = on_late();
    struct client *c = client_joined(f, 1, ASYNC), *again;
    uint64_t key = do_init(c, 1, 0, COUNT);
    struct open_box b = box_of(c);
    struct part p = {.key = key, .step = 1, .size = SIZE, .total = SIZE, .place = {b.id, 0}};

    fill(b, 0, 5, COUNT);
    CHECK_EQ(said(client_await(c, send_push(c, &p, 1, 9)), 0), STATUS_OK);
    again = client_again(c);
    client_gone(c);
    CHECK_EQ(said(client_await(again, send_push(again, &p, 1, 9)), 0), STATUS_OK);
    CHECK_EQ(do_pull(again, key, COUNT), 5);
    p.step = 2;
    CHECK_EQ(said(client_await(again, send_push(again, &p, 1, 10)), 0), STATUS_NOT_FOUND);
    CHECK_EQ(e.reason, REASON_NO_MAILBOX);
    client_gone(again);
    fixture_free(f);
}

TEST(a_large_value_goes_in_parts_that_come_in_any_order)
{
    struct fixture *f = on_late();
    struct client *c = client_joined(f, 1, ASYNC);
    uint64_t key = do_init(c, 1, 0, COUNT);
    struct open_box b = box_of(c);
    struct part p = {.key = key, .step = 1, .offset = SIZE / 2, .size = SIZE / 2, .total = SIZE, .place = {b.id, 0}};

    fill(b, 0, 6, COUNT / 2);
    CHECK_EQ(said(client_await(c, send_push(c, &p, 1, 5)), 0), STATUS_OK);
    CHECK_EQ(do_pull(c, key, COUNT), 0);
    p.offset = 0;
    CHECK_EQ(said(client_await(c, send_push(c, &p, 1, 5)), 0), STATUS_OK);
    fixture_settle(f);
    CHECK_EQ(do_pull(c, key, COUNT), 6);

    struct wire_pull_entry x = {.key = key, .size = SIZE / 2};
    struct wire_place at = {b.id, 1024};
    struct answered *a = client_await(c, send_pull(c, &x, &at, 1));
    struct reader r = reader_of(a->desc);
    struct wire_pull_result got;
    CHECK(wire_get_pull_result(&r, &got));
    CHECK_EQ(got.flags, RESULT_IN_MAILBOX);
    CHECK_EQ(got.size, SIZE / 2);
    CHECK_EQ(a->body.size, 0);
    answered_free(a);
    x.version = got.version, x.offset = SIZE / 2;
    CHECK_EQ(said(client_await(c, send_pull(c, &x, &at, 1)), wire_pull_result_size), STATUS_OK);
    CHECK_EQ(first_of(b, 1024, COUNT / 2), 6);
    client_gone(c);
    fixture_free(f);
}

TEST(parts_of_one_push_come_the_same_way)
{
    struct fixture *f = on_late();
    struct client *c = client_joined(f, 1, ASYNC);
    uint64_t key = do_init(c, 1, 0, COUNT);
    struct open_box b = box_of(c);
    struct part p = {.key = key, .step = 1, .size = SIZE / 2, .total = SIZE, .place = {b.id, 0}};
    struct wire_push fixed = {.store = c->store, .count = 1};
    struct wire_push_entry x = {.key = key, .step = 1, .offset = SIZE / 2, .size = SIZE / 2, .total = SIZE};
    struct buf fb = {0}, d = {0};
    float half[COUNT / 2] = {0};

    CHECK_EQ(said(client_await(c, send_push(c, &p, 1, 5)), 0), STATUS_OK);
    wire_put_push(&fb, &fixed);
    wire_put_push_entry(&d, &x);
    uint32_t id = client_send(c, WIRE_Push, 0, 5, bytes_of(fb.at, fb.size), bytes_of(d.at, d.size),
                              bytes_of(half, sizeof half));
    CHECK_EQ(said(client_await(c, id), 0), STATUS_INVALID_ARGUMENT);
    CHECK_SAYS(e.text, "through a mailbox");
    /* Under a new name it begins anew, the other way. */
    c->sequence = 5;
    do_push(c, key, 1, 3, COUNT);
    fixture_settle(f);
    CHECK_EQ(do_pull(c, key, COUNT), 3);
    buf_fini(&fb), buf_fini(&d);
    client_gone(c);
    fixture_free(f);
}

TEST(places_outside_the_mailbox_are_refused_and_change_nothing)
{
    static const struct { uint64_t offset; } table[] = {
        {BOX}, {BOX - SIZE + 96}, {UINT64_MAX - 15}, {UINT64_MAX}, {8}, {1}, {(uint64_t)BOX + 16},
    };
    struct fixture *f = on_late();
    struct client *c = client_joined(f, 1, ASYNC);
    uint64_t key = do_init(c, 1, 0, COUNT);
    struct open_box b = box_of(c);

    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++) {
        CHECK_EQ(push(c, b, key, 1, table[i].offset), STATUS_INVALID_ARGUMENT);
        CHECK_SAYS(e.text, "do not lie in a mailbox");
        CHECK_EQ(pull(c, b, key, table[i].offset), STATUS_INVALID_ARGUMENT);
    }
    CHECK_EQ(do_pull(c, key, COUNT), 0);
    fill(b, BOX - SIZE + BOX % 16, 4, COUNT);
    CHECK_EQ(push(c, b, key, 1, BOX - SIZE), STATUS_OK);
    fixture_settle(f);
    CHECK_EQ(do_pull(c, key, COUNT), 4);
    client_gone(c);
    fixture_free(f);
}

TEST(another_clients_mailbox_is_refused)
{
    struct fixture *f = on_late();
    struct client *a = client_joined(f, 1, ASYNC), *b = client_joined(f, 2, ASYNC);
    uint64_t key = do_init(a, 1, 0, COUNT);
    struct open_box of_a = box_of(a);

    CHECK_EQ(push(b, of_a, key, 1, 0), STATUS_NOT_FOUND);
    CHECK_EQ(e.reason, REASON_NO_MAILBOX);
    CHECK_EQ(pull(b, of_a, key, 0), STATUS_NOT_FOUND);
    struct open_box of_b = box_of(b);
    CHECK(of_a.id != of_b.id);
    CHECK_EQ(push(b, of_a, key, 1, 0), STATUS_NOT_FOUND);
    client_gone(a);
    client_gone(b);
    fixture_free(f);
}

TEST(a_mailbox_serves_all_connections_of_its_client_and_ends_with_its_own)
{
    struct fixture *f = on_late();
    struct client *a = client_joined(f, 1, ASYNC), *other = client_again(a);
    uint64_t key = do_init(a, 1, 0, COUNT);
    struct open_box b = box_of(a);

    fill(b, 0, 2, COUNT);
    CHECK_EQ(push(other, b, key, 1, 0), STATUS_OK);
    client_gone(a);
    CHECK_EQ(push(other, b, key, 2, 0), STATUS_NOT_FOUND);
    struct open_box next = box_of(other);
    CHECK(next.id != b.id);
    fill(next, 0, 3, COUNT);
    CHECK_EQ(push(other, next, key, 2, 0), STATUS_OK);
    fixture_settle(f);
    CHECK_EQ(do_pull(other, key, COUNT), 5);
    client_gone(other);
    fixture_free(f);
}

TEST(memory_of_a_mailbox_whose_client_is_gone_stays_while_copies_are_under_way)
{
    unsigned kept = 0;

    for (int turn = 0; turn < 20; turn++) {
        struct fixture *f = on_late();
        struct client *c = client_joined(f, 1, ASYNC), *other = client_joined(f, 2, ASYNC);
        uint64_t key = do_init(c, 1, 0, COUNT);
        uint64_t before = f->device->bytes_held;
        struct open_box b = box_of(c);
        struct part p = {.key = key, .step = 1, .size = SIZE, .total = SIZE, .place = {b.id, 0}};
        struct wire_pull_entry x = {.key = key};
        struct wire_place at = {b.id, 8192};
        fill(b, 0, 7, COUNT);
        (void)send_push(c, &p, 1, 1);
        (void)send_pull(c, &x, &at, 1);
        client_gone(c);
        kept += f->device->bytes_held >= before + BOX;
        fixture_settle(f);
        CHECK_EQ(do_pull(other, key, COUNT), 7); /* what was recorded counts */
        CHECK(f->device->bytes_held < before + BOX);
        client_gone(other);
        fixture_free(f);
    }
    CHECK(kept > 5);
}

TEST(a_push_begun_anew_or_dropped_waits_for_its_copies)
{
    for (int turn = 0; turn < 20; turn++) {
        struct fixture *f = on_late();
        struct client *c = client_joined(f, 1, ASYNC);
        uint64_t key = do_init(c, 1, 0, COUNT), next = do_init(c, 2, 0, COUNT);
        struct open_box b = box_of(c);
        struct part p = {.key = key, .step = 1, .size = SIZE / 2, .total = SIZE, .place = {b.id, 0}};
        fill(b, 0, 9, COUNT);
        (void)send_push(c, &p, 1, 5);
        p.size = SIZE;
        (void)send_push(c, &p, 1, 6);
        p.key = next, p.size = SIZE / 2;
        (void)send_push(c, &p, 1, 7);
        do_json(c, WIRE_Delete, "{\"store\": %u, \"keys\": [2], \"force\": true}", c->store);
        fixture_settle(f);
        CHECK_EQ(do_pull(c, key, COUNT), 9);
        client_gone(c);
        fixture_free(f);
    }
}

TEST(one_client_has_one_mailbox_and_all_have_a_bound)
{
    struct fixture *f = on_late();
    struct core_limits limits = {.mailbox_max = 2 * BOX};
    struct client *c[3];

    server_set_limits(f->server, 0, &limits);
    for (unsigned i = 0; i < 3; i++) c[i] = client_new(f, i + 1);
    uint64_t before = f->device->bytes_held;
    box_of(c[0]);
    box_of(c[0]);
    CHECK_EQ(f->device->bytes_held, before + BOX);
    box_of(c[1]);
    CHECK(try_json(c[2], WIRE_Mailbox, &e, "{\"host\": \"here\", \"size\": %d}", BOX) == NULL);
    CHECK_EQ(e.reason, REASON_LIMIT);
    do_json(c[0], WIRE_Mailbox, "{}");
    box_of(c[2]);
    limits.mailbox_max = 1;
    server_set_limits(f->server, 0, &limits);
    json_t *j = try_json(c[0], WIRE_Hello, &e, "{}");
    CHECK(json_is_null(json_object_get(j, "mailbox")));
    json_decref(j);
    for (unsigned i = 0; i < 3; i++) client_gone(c[i]);
    CHECK_EQ(f->device->bytes_held, before);
    fixture_free(f);
}

TEST(wishes_that_cannot_be_met_say_why)
{
    static const struct { const char *document; enum reason reason; const char *says; } table[] = {
        {"{\"host\": \"there\", \"size\": 65536}", REASON_UNIMPLEMENTED, "machine"},
        {"{\"size\": 65536}", REASON_UNIMPLEMENTED, "machine"},
        {"{\"host\": \"here\", \"size\": 100}", REASON_BAD_ARGUMENT, "/size"},
        {"{\"host\": \"here\", \"size\": 268435457}", REASON_BAD_ARGUMENT, "/size"},
        {"{\"host\": \"here\", \"size\": -1}", REASON_BAD_ARGUMENT, "/size"},
        {"{\"host\": 3, \"size\": 65536}", REASON_BAD_ARGUMENT, "/host"},
        {"{\"host\": \"here\", \"sise\": 65536}", REASON_UNKNOWN_FIELD, "size"},
    };
    struct fixture *f = on_late();
    struct client *c = client_new(f, 1);

    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++) {
        CHECK(try_json(c, WIRE_Mailbox, &e, "%s", table[i].document) == NULL);
        CHECK_EQ(e.reason, table[i].reason);
        CHECK_SAYS(e.text, table[i].says);
    }
    client_gone(c);
    c = client_connect(f, 2);
    CHECK(try_json(c, WIRE_Mailbox, &e, "{\"host\": \"here\", \"size\": 65536}") == NULL);
    CHECK_EQ(e.reason, REASON_NO_HELLO);
    client_gone(c);
    fixture_free(f);
}

TEST(a_body_that_does_not_say_where_each_value_lies_is_refused)
{
    struct fixture *f = on_late();
    struct client *c = client_joined(f, 1, ASYNC);
    uint64_t key = do_init(c, 1, 0, COUNT);
    struct wire_push push_fixed = {.store = c->store, .count = 1};
    struct wire_pull pull_fixed = {.store = c->store, .count = 1};
    struct buf f1 = {0}, d1 = {0}, f2 = {0}, d2 = {0};
    uint8_t zeros[40] = {0};

    box_of(c);
    wire_put_push(&f1, &push_fixed);
    wire_put_push_entry(&d1, &(struct wire_push_entry){.key = key, .step = 1, .size = SIZE, .total = SIZE});
    wire_put_pull(&f2, &pull_fixed);
    wire_put_pull_entry(&d2, &(struct wire_pull_entry){.key = key});
    for (size_t size = 0; size < sizeof zeros; size++) {
        if (size == 16) continue;
        uint32_t id = client_send(c, WIRE_Push, WIRE_FLAG_MAILBOX, 1, bytes_of(f1.at, f1.size),
                                  bytes_of(d1.at, d1.size), bytes_of(zeros, size));
        CHECK_EQ(said(client_await(c, id), 0), STATUS_INVALID_ARGUMENT);
        id = client_send(c, WIRE_Pull, WIRE_FLAG_MAILBOX, 0, bytes_of(f2.at, f2.size), bytes_of(d2.at, d2.size),
                         bytes_of(zeros, size));
        CHECK_EQ(said(client_await(c, id), 0), STATUS_INVALID_ARGUMENT);
    }
    struct bytes none = {0};
    uint32_t id = client_send(c, WIRE_Wait, WIRE_FLAG_MAILBOX, 0, none, none, none);
    CHECK_EQ(said(client_await(c, id), 0), STATUS_INVALID_ARGUMENT);
    CHECK_SAYS(e.text, "Push and Pull have");
    buf_fini(&f1), buf_fini(&d1), buf_fini(&f2), buf_fini(&d2);
    client_gone(c);
    fixture_free(f);
}

/* A mailbox, a push and a pull through it; each is answered, whatever the device does. */
static void play(struct client *c, uint64_t key)
{
    json_t *j = try_json(c, WIRE_Mailbox, &e, "{\"host\": \"here\", \"size\": %d}", BOX);

    if (j == NULL) return;
    struct open_box b = read_box(j);
    fill(b, 0, 3, COUNT);
    (void)push(c, b, key, 1, 0);
    (void)pull(c, b, key, 8192);
}

static struct device_ops hidden;
static enum status (*mem_new_of)(struct device *d, size_t size, struct dmem *out, struct error *e);

static enum status hide_memory(struct device *d, size_t size, struct dmem *out, struct error *why)
{
    enum status s = mem_new_of(d, size, out, why);

    if (s == STATUS_OK) out->host = NULL;
    return s;
}

static enum status share_memory(struct device *d, size_t size, struct dmem *out, struct mem_handle *h,
                                struct error *why)
{
    enum status s = hide_memory(d, size, out, why);

    *h = (struct mem_handle){{0}};
    if (s == STATUS_OK) memcpy(h->at, &out->at, sizeof out->at);
    return s;
}

/* The CPU, which does its work at once, so that a device may be lost while none is under way; with memory out of reach,
 * and some that it shares. */
static struct device *faulty_new(void)
{
    struct device *d;

    CHECK_OK(cpu_device_new(1, &d, &e), &e);
    CHECK_OK(faulty_device_new(d, &d, &e), &e);
    hidden = *d->ops;
    mem_new_of = hidden.mem_new;
    hidden.mem_new = hide_memory;
    hidden.shared_new = share_memory;
    d->ops = &hidden;
    memcpy(d->uuid, "cpu", sizeof "cpu");
    return d;
}

static void sweep(enum fault_mode mode)
{
    uint64_t n = 1;
    bool hit;

    do {
        int64_t live = mem_live();
        struct device *d = faulty_new();
        struct fixture *f = fixture_new(d, 64 << 20);
        struct client *c = client_joined(f, 1, ASYNC);
        uint64_t key = do_init(c, 1, 0, COUNT);
        faulty_device_fail_at(d, n++, mode);
        play(c, key);
        hit = faulty_device_hit(d);
        faulty_device_fail_at(d, 0, mode);
        if (!hit) CHECK_EQ(do_pull(c, key, COUNT), 3);
        client_gone(c);
        fixture_free(f);
        CHECK_EQ(mem_live(), live);
    } while (hit);
    CHECK(n > (mode == FAULT_SYSTEM ? 4 : 8));
}

TEST(every_call_of_the_device_may_be_refused) { sweep(FAULT_REFUSED); }
TEST(every_call_of_the_device_may_be_accepted_and_not_done) { sweep(FAULT_ACCEPTED); }
TEST(every_call_of_the_device_may_be_refused_by_the_system) { sweep(FAULT_SYSTEM); }
