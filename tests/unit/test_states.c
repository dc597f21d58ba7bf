/* GetStates and SetStates over the protocol: what they give and take, in parts, between steps under way, and what they
 * refuse. On the CPU and on the late device, where a forgotten wait is a wrong result. */
#include "tests/lib/devices.h"

#include "service/base/mem.h"
#include "service/op.h"
#include "service/store.h"

#include <string.h>

static const char async_[] = "\"type\": \"dist_async\"";
static const struct bytes none;

#define STATES_TEST(name) TEST_ON(ON_THREADS | ON_LATE, name)

enum { COUNT = 5, SLOTS = 8, ROOM = 4096 };

#define MOMENTUM "{\"type\": \"sgd\", \"learning_rate\": 1, \"momentum\": 0.5}"
#define ADAM "{\"type\": \"adam\", \"learning_rate\": 0.5, \"beta1\": 0.5, \"beta2\": 0.75}"

static struct client *joined(struct fixture *f, unsigned number, const char *updater)
{
    struct client *c = client_joined(f, number, async_);

    if (updater != NULL) do_json(c, WIRE_SetUpdater, "{\"store\": %u, \"updater\": %s}", c->store, updater);
    return c;
}

/* ---- reading ---------------------------------------------------------------------------------------------------- */

/* A state as an answer tells it. */
struct told {
    struct wire_state state;
    char updater[64];
    struct wire_slot slots[SLOTS];
    char names[SLOTS][64];
    uint8_t bytes[ROOM];
};

static void read_name(struct reader *r, const uint8_t *start, size_t size, char out[64])
{
    const void *at = reader_take(r, size);

    CHECK(at != NULL && size < 64);
    memcpy(out, at, size);
    out[size] = '\0';
    reader_pad(r, start, 8);
}

static void read_told(struct reader *r, struct bytes body, uint64_t *at, struct told *t)
{
    const uint8_t *start = r->at;

    memset(t, 0, sizeof *t);
    CHECK(wire_get_state(r, &t->state) && t->state.slots <= SLOTS && t->state.size <= ROOM);
    read_name(r, start, t->state.updater_size, t->updater);
    for (unsigned i = 0; i < t->state.slots; i++) {
        CHECK(wire_get_slot(r, &t->slots[i]));
        read_name(r, start, t->slots[i].name_size, t->names[i]);
    }
    *at = wire_aligned(*at);
    CHECK(t->state.size == 0 || (*at <= body.size && t->state.size <= body.size - *at));
    if (t->state.size > 0) memcpy(t->bytes, (const uint8_t *)body.at + *at, t->state.size);
    *at += t->state.size;
}

static uint32_t ask(struct client *c, unsigned flags, const struct wire_states_entry *entries, uint32_t count)
{
    struct wire_states fixed = {.store = c->store, .count = count};
    struct buf f = {0}, d = {0};

    wire_put_states(&f, &fixed);
    for (uint32_t i = 0; i < count; i++) wire_put_states_entry(&d, &entries[i]);
    uint32_t id = client_send(c, WIRE_GetStates, flags, 0, bytes_of(f.at, f.size), bytes_of(d.at, d.size), none);
    buf_fini(&f), buf_fini(&d);
    return id;
}

/* The answers; OK, or the reason of the whole or of the first fault. */
static enum reason take(struct client *c, uint32_t id, struct told *out, uint32_t room, uint32_t *count)
{
    struct answered *a = client_await(c, id);
    struct reader fixed = reader_of(a->fixed), desc = reader_of(a->desc);
    enum reason reason = (enum reason)a->header.reason;
    struct wire_states_done done = {0};
    struct wire_fault fault;
    uint64_t at = 0;

    if (reason == REASON_NONE) {
        CHECK(wire_get_states_done(&fixed, &done) && done.count <= room);
        for (uint32_t i = 0; i < done.count; i++) read_told(&desc, a->body, &at, &out[i]);
        if (done.faults > 0 && wire_get_fault(&desc, &fault)) reason = (enum reason)fault.reason;
    }
    if (count != NULL) *count = done.count;
    answered_free(a);
    return reason;
}

static enum reason get(struct client *c, struct wire_states_entry x, struct told *out)
{
    return take(c, ask(c, 0, &x, 1), out, 1, NULL);
}

static void do_get(struct client *c, uint64_t id, struct told *out)
{
    CHECK_EQ(get(c, (struct wire_states_entry){.key = id}, out), REASON_NONE);
    CHECK_EQ(out->state.size, out->state.total);
}

static float element(const struct told *t, const char *name)
{
    uint64_t at = 0;
    float v;

    for (unsigned i = 0; i < t->state.slots; at += t->slots[i++].count * 4) {
        at = wire_aligned(at);
        if (strcmp(t->names[i], name) != 0) continue;
        memcpy(&v, t->bytes + at, sizeof v);
        return v;
    }
    test_fail(__FILE__, __LINE__, "there is no %s", name);
}

/* ---- writing ---------------------------------------------------------------------------------------------------- */

static void put_given(struct buf *d, const struct told *t)
{
    wire_put_state(d, &t->state);
    buf_add(d, t->updater, t->state.updater_size);
    buf_pad(d, 8);
    for (unsigned i = 0; i < t->state.slots; i++) {
        wire_put_slot(d, &t->slots[i]);
        buf_add(d, t->names[i], t->slots[i].name_size);
        buf_pad(d, 8);
    }
}

/* Sends bytes offset.. of it, as said there. */
static uint32_t send_set(struct client *c, uint64_t sequence, unsigned flags, const struct told *t)
{
    struct wire_states fixed = {.store = c->store, .count = 1};
    struct buf f = {0}, d = {0};
    struct bytes body = bytes_of(t->bytes + t->state.offset, flags == 0 ? (size_t)t->state.size : 0);

    wire_put_states(&f, &fixed);
    put_given(&d, t);
    uint32_t id = client_send(c, WIRE_SetStates, flags, sequence, bytes_of(f.at, f.size), bytes_of(d.at, d.size), body);
    buf_fini(&f), buf_fini(&d);
    return id;
}

/* How many states the answer counts. */
static enum reason set_result(struct client *c, uint32_t id, uint32_t *count)
{
    struct answered *a = client_await(c, id);
    struct reader fixed = reader_of(a->fixed);
    enum reason reason = (enum reason)a->header.reason;
    struct wire_states_done done = {0};

    if (reason == REASON_NONE) CHECK(wire_get_states_done(&fixed, &done));
    if (count != NULL) *count = done.count;
    answered_free(a);
    return reason;
}

static enum reason set(struct client *c, const struct told *t)
{
    uint32_t count = 0;
    enum reason r = set_result(c, send_set(c, ++c->sequence, 0, t), &count);

    CHECK_EQ(count, r == REASON_NONE);
    return r;
}

static enum reason set_part(struct client *c, uint64_t sequence, const struct told *t, uint64_t from, uint64_t to,
                            uint32_t *count)
{
    struct told part = *t;

    part.state.offset = from;
    part.state.size = to - from;
    return set_result(c, send_set(c, sequence, 0, &part), count);
}

static bool same(const struct told *a, const struct told *b)
{
    return a->state.updates == b->state.updates && a->state.since_begun == b->state.since_begun &&
           a->state.product == b->state.product && strcmp(a->updater, b->updater) == 0 &&
           memcmp(a->bytes, b->bytes, sizeof a->bytes) == 0;
}

/* ---- reading: facts --------------------------------------------------------------------------------------------- */

STATES_TEST(a_state_is_told_with_its_slots_and_counters)
{
    struct client *c = joined(f, 1, ADAM);
    uint64_t id = do_init(c, 1, 0, COUNT);
    struct told t;

    do_push(c, id, 1, 2, COUNT);
    do_get(c, id, &t);
    CHECK_TEXT(t.updater, "adam");
    CHECK_EQ(t.state.slots, 2);
    CHECK_TEXT(t.names[0], "mean");
    CHECK_TEXT(t.names[1], "var");
    CHECK_EQ(t.slots[0].count, COUNT);
    CHECK_EQ(t.slots[0].dtype, DTYPE_f32);
    CHECK_EQ(t.state.total, 32 + COUNT * 4); /* the second begins at a multiple of 16 */
    CHECK(element(&t, "mean") == 1 && element(&t, "var") == 1);
    CHECK_EQ(t.state.updates, 1);
    CHECK_EQ(t.state.since_begun, 1);
    CHECK_EQ(f->server->core.staging_used, 0);
    client_gone(c);
}

STATES_TEST(what_is_read_is_of_the_moment_between_the_steps_before_and_behind_it)
{
    struct client *c = joined(f, 1, MOMENTUM);
    uint64_t id = do_init(c, 1, 0, COUNT);
    struct wire_states_entry x = {.key = id};
    struct told t;

    do_push(c, id, 1, 1, COUNT);
    do_push(c, id, 2, 1, COUNT);
    uint32_t asked = ask(c, 0, &x, 1);
    do_push(c, id, 3, 1, COUNT);
    do_json(c, WIRE_SetUpdater, "{\"store\": %u, \"updater\": %s, \"states\": \"reset\"}", c->store, ADAM);
    do_push(c, id, 4, 1, COUNT);
    CHECK_EQ(take(c, asked, &t, 1, NULL), REASON_NONE);
    CHECK_EQ(t.state.updates, 2);
    CHECK_EQ(t.state.since_begun, 2);
    CHECK_TEXT(t.updater, "sgd");
    CHECK(element(&t, "momentum") == -1.5f);
    do_get(c, id, &t);
    CHECK_EQ(t.state.updates, 4);
    CHECK_EQ(t.state.since_begun, 1);
    client_gone(c);
}

STATES_TEST(a_check_tells_of_a_state_without_its_bytes)
{
    struct client *c = joined(f, 1, ADAM);
    uint64_t ids[2] = {do_init(c, 1, 0, COUNT), do_init(c, 2, 0, 0)};
    struct wire_states_entry x[2] = {{.key = ids[0]}, {.key = ids[1]}};
    struct told t[2];
    uint32_t count;

    CHECK_EQ(take(c, ask(c, WIRE_FLAG_CHECK, x, 2), t, 2, &count), REASON_NONE);
    CHECK_EQ(count, 2);
    CHECK_EQ(t[0].state.size, 0);
    CHECK_EQ(t[0].state.total, 32 + COUNT * 4);
    CHECK_EQ(t[1].state.slots, 0);
    client_gone(c);
}

STATES_TEST(one_slot_can_be_read_alone)
{
    struct client *c = joined(f, 1, ADAM);
    uint64_t id = do_init(c, 1, 0, COUNT);
    struct told t;

    do_push(c, id, 1, 2, COUNT);
    CHECK_EQ(get(c, (struct wire_states_entry){.key = id, .slot = 2}, &t), REASON_NONE);
    CHECK_EQ(t.state.slots, 1);
    CHECK_TEXT(t.names[0], "var");
    CHECK_EQ(t.state.total, COUNT * 4);
    CHECK_EQ(get(c, (struct wire_states_entry){.key = id, .slot = 3}, &t), REASON_NO_SLOT);
    client_gone(c);
}

STATES_TEST(parts_are_of_the_copy_that_was_taken_first)
{
    struct client *c = joined(f, 1, ADAM);
    uint64_t id = do_init(c, 1, 0, COUNT);
    struct told whole, part;
    struct wire_states_entry x = {.key = id, .size = 20};
    uint8_t bytes[ROOM] = {0};

    do_push(c, id, 1, 2, COUNT);
    do_get(c, id, &whole);
    CHECK_EQ(get(c, x, &part), REASON_NONE);
    x.copy = part.state.copy;
    for (uint64_t at = 0, step = 2;; step++) {
        CHECK_EQ(part.state.offset, at);
        CHECK_EQ(part.state.total, whole.state.total);
        memcpy(bytes + at, part.bytes, part.state.size);
        x.offset = at += part.state.size;
        if (at == whole.state.total) break;
        do_push(c, id, step, 9, COUNT);
        CHECK_EQ(get(c, x, &part), REASON_NONE);
        CHECK(part.state.size > 0);
    }
    CHECK(memcmp(bytes, whole.bytes, sizeof bytes) == 0);
    CHECK_EQ(get(c, x, &part), REASON_VERSION_REVOKED); /* its last byte has gone out */
    CHECK_EQ(f->server->core.staging_used, 0);
    client_gone(c);
}

STATES_TEST(a_client_holds_so_many_copies_and_for_so_long)
{
    struct client *c = joined(f, 1, MOMENTUM);
    uint64_t id = do_init(c, 1, 0, COUNT), first = 0, last = 0;
    struct told t;

    for (unsigned i = 0; i <= STATE_COPIES_MAX; i++) {
        CHECK_EQ(get(c, (struct wire_states_entry){.key = id, .size = 4}, &t), REASON_NONE);
        if (i == 0) first = t.state.copy;
        last = t.state.copy;
    }
    CHECK_EQ(f->server->core.staging_used, STATE_COPIES_MAX * COUNT * 4);
    CHECK_EQ(get(c, (struct wire_states_entry){.key = id, .copy = first, .offset = 4}, &t), REASON_VERSION_REVOKED);
    CHECK_EQ(get(c, (struct wire_states_entry){.key = id + 1, .copy = last}, &t), REASON_VERSION_REVOKED);
    fixture_advance(f, PROGRESS_MS);
    CHECK_EQ(f->server->core.staging_used, 0);
    CHECK_EQ(get(c, (struct wire_states_entry){.key = id, .size = 4}, &t), REASON_NONE);
    CHECK_EQ(get(c, (struct wire_states_entry){.key = id, .copy = t.state.copy, .offset = 21}, &t), REASON_BAD_ARGUMENT);
    client_gone(c);
}

TEST(an_answer_holds_the_states_that_fit_and_a_part_of_a_large_one)
{
    struct fixture *f = fixture_new(device_of_kinds(ON_THREADS, 0), 0);
    struct client *c = joined(f, 1, MOMENTUM);
    uint64_t large = FRAME_SIZE_MAX / 4;
    struct wire_states_entry x[3] = {{0}};
    struct wire_states_done done;
    struct wire_state s;

    for (int i = 0; i < 3; i++) x[i].key = do_init(c, i, 0, i == 0 ? 10 : (size_t)large);
    for (int from = 0; from < 2; from++) {
        struct answered *a = client_await(c, ask(c, 0, x + from, 2));
        struct reader fixed = reader_of(a->fixed), desc = reader_of(a->desc);
        CHECK(wire_get_states_done(&fixed, &done) && wire_get_state(&desc, &s));
        CHECK_EQ(done.count, 1);
        CHECK(from == 0 ? s.size == s.total : s.size < s.total && s.size > MIB(3));
        answered_free(a);
    }
    client_gone(c);
    fixture_free(f);
}

TEST(copies_are_refused_where_staging_memory_is_full)
{
    struct fixture *f = fixture_new(device_of_kinds(ON_THREADS, 0), 1000);
    struct client *c = joined(f, 1, MOMENTUM);
    uint64_t id = do_init(c, 1, 0, 100); /* 400 bytes */
    struct told t;

    CHECK_EQ(get(c, (struct wire_states_entry){.key = id, .size = 4}, &t), REASON_NONE);
    CHECK_EQ(get(c, (struct wire_states_entry){.key = id, .size = 4}, &t), REASON_IN_FLIGHT);
    client_gone(c);
    fixture_free(f);
}

/* ---- writing: facts --------------------------------------------------------------------------------------------- */

/* NADAM has a product, and the rate follows the count of all updates. */
#define NADAM "{\"type\": \"nadam\", \"learning_rate\": 0.5, \"schedule\": {\"type\": \"factor\", \"step\": 2, \"factor\": 0.5}}"

static void goes_on_from(struct fixture *f, const char *updater)
{
    struct client *c = joined(f, 1, updater);
    uint64_t id = do_init(c, 1, 1, COUNT), other = do_init(c, 2, 1, COUNT), step = 1;
    struct told early, late, again;
    float value[COUNT], end[COUNT], got[COUNT];
    struct error e;

    for (; step <= 3; step++) do_push(c, id, step, (float)step, COUNT);
    do_get(c, id, &early);
    CHECK_OK(try_pull(c, id, 0, value, sizeof value, NULL, &e), &e);
    for (; step <= 7; step++) do_push(c, id, step, (float)step, COUNT);
    do_get(c, id, &late);
    CHECK_OK(try_pull(c, id, 0, end, sizeof end, NULL, &e), &e);
    CHECK(!same(&early, &late));

    struct wire_push fixed = {.store = c->store, .count = 1};
    struct wire_push_entry x = {.key = id, .size = sizeof value, .total = sizeof value};
    struct buf fb = {0}, d = {0};
    wire_put_push(&fb, &fixed);
    wire_put_push_entry(&d, &x);
    answered_free(client_await(c, client_send(c, WIRE_Set, 0, ++c->sequence, bytes_of(fb.at, fb.size),
                                              bytes_of(d.at, d.size), bytes_of(value, sizeof value))));
    CHECK_EQ(set(c, &early), REASON_NONE);
    do_get(c, id, &again);
    CHECK(same(&early, &again));
    for (uint64_t n = 4; n <= 7; n++) do_push(c, id, step++, (float)n, COUNT);
    do_get(c, id, &again);
    CHECK(same(&late, &again));
    CHECK_OK(try_pull(c, id, 0, got, sizeof got, NULL, &e), &e);
    CHECK(memcmp(got, end, sizeof got) == 0);
    (void)other;
    buf_fini(&fb), buf_fini(&d);
    client_gone(c);
}

STATES_TEST(what_was_put_back_goes_on_with_the_same_bits) { goes_on_from(f, ADAM); }
STATES_TEST(so_do_a_product_and_the_schedule_that_goes_by_all_updates) { goes_on_from(f, NADAM); }

STATES_TEST(a_state_is_put_between_the_steps_before_and_behind_it)
{
    struct client *c = joined(f, 1, MOMENTUM);
    uint64_t id = do_init(c, 1, 0, COUNT);
    struct told t, got;

    do_push(c, id, 1, 8, COUNT);
    do_get(c, id, &t);
    do_push(c, id, 2, 1, COUNT);
    do_push(c, id, 3, 1, COUNT);
    uint32_t sent = send_set(c, ++c->sequence, 0, &t);
    do_push(c, id, 4, 1, COUNT);
    CHECK_EQ(set_result(c, sent, NULL), REASON_NONE);
    do_get(c, id, &got);
    CHECK(element(&got, "momentum") == -5); /* 8 / 2 + 1 */
    CHECK_EQ(got.state.updates, 2);
    client_gone(c);
}

STATES_TEST(parts_come_in_any_order_and_twice_and_count_when_the_last_is_there)
{
    struct client *c = joined(f, 1, ADAM);
    uint64_t id = do_init(c, 1, 0, COUNT), sequence = 50;
    struct told t, got;
    uint32_t count;

    do_push(c, id, 1, 2, COUNT);
    do_get(c, id, &t);
    do_push(c, id, 2, 2, COUNT);
    CHECK_EQ(set_part(c, sequence, &t, 30, 52, &count), REASON_NONE);
    CHECK_EQ(count, 0);
    CHECK_EQ(set_part(c, sequence, &t, 0, 20, &count), REASON_NONE);
    CHECK_EQ(set_part(c, sequence, &t, 10, 25, &count), REASON_NONE);
    CHECK_EQ(set_part(c, sequence, &t, 10, 25, &count), REASON_NONE);
    do_get(c, id, &got);
    CHECK_EQ(got.state.updates, 2); /* five bytes are missing */
    CHECK_EQ(set_part(c, sequence, &t, 25, 30, &count), REASON_NONE);
    CHECK_EQ(count, 1);
    do_get(c, id, &got);
    CHECK(same(&t, &got));
    CHECK_EQ(f->server->core.staging_used, 0);
    client_gone(c);
}

STATES_TEST(parts_that_are_not_followed_by_the_rest_leave_no_trace)
{
    struct client *c = joined(f, 1, ADAM);
    uint64_t id = do_init(c, 1, 0, COUNT);
    struct told t, got;

    do_get(c, id, &t);
    do_push(c, id, 1, 2, COUNT);
    CHECK_EQ(set_part(c, 50, &t, 0, 20, NULL), REASON_NONE);
    CHECK(f->server->core.staging_used > 0);
    fixture_advance(f, PROGRESS_MS + 1001);
    CHECK_EQ(f->server->core.staging_used, 0);
    do_get(c, id, &got);
    CHECK_EQ(got.state.updates, 1);
    client_gone(c);
}

STATES_TEST(a_repeat_is_answered_again_and_counts_once)
{
    struct client *c = joined(f, 1, MOMENTUM);
    uint64_t id = do_init(c, 1, 0, COUNT);
    struct told t, got;
    uint32_t count;

    do_get(c, id, &t);
    CHECK_EQ(set_result(c, send_set(c, 77, 0, &t), &count), REASON_NONE);
    do_push(c, id, 1, 1, COUNT);
    CHECK_EQ(set_result(c, send_set(c, 77, 0, &t), &count), REASON_NONE);
    CHECK_EQ(count, 1);
    do_get(c, id, &got);
    CHECK_EQ(got.state.updates, 1);
    client_gone(c);
}

STATES_TEST(a_state_that_is_only_checked_is_not_put)
{
    struct client *c = joined(f, 1, MOMENTUM);
    uint64_t id = do_init(c, 1, 0, COUNT);
    struct told t, got;
    uint32_t count;

    do_get(c, id, &t);
    do_push(c, id, 1, 1, COUNT);
    CHECK_EQ(set_result(c, send_set(c, 77, WIRE_FLAG_CHECK, &t), &count), REASON_NONE);
    CHECK_EQ(count, 0);
    t.names[0][0] = 'X';
    CHECK_EQ(set_result(c, send_set(c, 78, WIRE_FLAG_CHECK, &t), &count), REASON_NO_SLOT);
    do_get(c, id, &got);
    CHECK_EQ(got.state.updates, 1);
    client_gone(c);
}

STATES_TEST(slots_may_be_given_in_another_order)
{
    struct client *c = joined(f, 1, ADAM);
    uint64_t id = do_init(c, 1, 0, 4); /* so that both have 16 bytes */
    struct told t, turned, got;

    do_push(c, id, 1, 4, 4);
    do_get(c, id, &t);
    turned = t;
    memcpy(turned.names[0], t.names[1], 64), memcpy(turned.names[1], t.names[0], 64);
    turned.slots[0] = t.slots[1], turned.slots[1] = t.slots[0];
    memcpy(turned.bytes, t.bytes + 16, 16), memcpy(turned.bytes + 16, t.bytes, 16);
    do_push(c, id, 2, 1, 4);
    CHECK_EQ(set(c, &turned), REASON_NONE);
    do_get(c, id, &got);
    CHECK(same(&t, &got));
    client_gone(c);
}

/* The key has not stepped since: its state goes over when one is put. */
STATES_TEST(a_state_is_of_the_updater_that_the_store_has_now)
{
    struct client *c = joined(f, 1, ADAM);
    uint64_t id = do_init(c, 1, 0, COUNT);
    struct told adam, got;

    do_push(c, id, 1, 2, COUNT);
    do_get(c, id, &adam);
    do_json(c, WIRE_SetUpdater, "{\"store\": %u, \"updater\": %s}", c->store, MOMENTUM);
    CHECK_EQ(set(c, &adam), REASON_UPDATER_UNFIT);
    do_get(c, id, &got);
    CHECK(same(&adam, &got));
    do_json(c, WIRE_SetUpdater, "{\"store\": %u, \"updater\": %s, \"states\": \"reset\"}", c->store, ADAM);
    CHECK_EQ(set(c, &adam), REASON_NONE);
    do_push(c, id, 2, 2, COUNT);
    do_get(c, id, &got);
    CHECK_EQ(got.state.since_begun, 2);
    CHECK(element(&got, "mean") == 1.5f);
    client_gone(c);
}

/* ---- what is refused -------------------------------------------------------------------------------------------- */

static void no_change(struct told *t) { (void)t; }
static void other_key(struct told *t) { t->state.key = 999; }
static void other_updater(struct told *t) { strcpy(t->updater, "lion"); }
static void unknown_slot(struct told *t) { strcpy(t->names[1], "velocity"); }
static void slot_twice(struct told *t) { strcpy(t->names[1], "mean"), t->slots[1].name_size = 4; }
static void slot_missing(struct told *t) { t->state.slots = 1, t->state.total = t->state.size = COUNT * 4; }
static void slot_too_long(struct told *t) { t->slots[1].count++; }
static void slot_of_huge_count(struct told *t) { t->slots[1].count = UINT64_MAX; }
static void other_dtype(struct told *t) { t->slots[0].dtype = DTYPE_f64; }
static void unknown_dtype(struct told *t) { t->slots[0].dtype = 200; }
static void total_too_small(struct told *t) { t->state.total -= 4, t->state.size -= 4; }
static void total_huge(struct told *t) { t->state.total = UINT64_MAX; }
static void offset_beyond(struct told *t) { t->state.offset = t->state.total + 1, t->state.size = 0; }
static void runs_over(struct told *t) { t->state.offset = 4; }
static void offset_wraps(struct told *t) { t->state.offset = 64, t->state.total = 52; }
static void since_above_updates(struct told *t) { t->state.since_begun = t->state.updates + 1; }
static void updates_huge(struct told *t) { t->state.updates = UINT64_MAX; }
static void product_above_one(struct told *t) { t->state.product = wire_of_double(1.5); }
static void product_nan(struct told *t) { t->state.product = UINT64_MAX; }
static void name_no_text(struct told *t) { t->names[0][0] = (char)0xff; }

static const struct {
    void (*change)(struct told *t);
    enum reason reason;
} refusals[] = {
    {no_change, REASON_NONE}, {other_key, REASON_NO_KEY}, {other_updater, REASON_UPDATER_UNFIT},
    {unknown_slot, REASON_NO_SLOT}, {slot_twice, REASON_NO_SLOT}, {slot_missing, REASON_BAD_ARGUMENT},
    {slot_too_long, REASON_SHAPE_MISMATCH}, {slot_of_huge_count, REASON_SHAPE_MISMATCH},
    {other_dtype, REASON_SHAPE_MISMATCH}, {unknown_dtype, REASON_SHAPE_MISMATCH},
    {total_too_small, REASON_SHAPE_MISMATCH}, {total_huge, REASON_SHAPE_MISMATCH},
    {offset_beyond, REASON_SHAPE_MISMATCH}, {runs_over, REASON_SHAPE_MISMATCH}, {offset_wraps, REASON_SHAPE_MISMATCH},
    {since_above_updates, REASON_BAD_ARGUMENT}, {updates_huge, REASON_BAD_ARGUMENT},
    {product_above_one, REASON_BAD_ARGUMENT}, {product_nan, REASON_BAD_ARGUMENT}, {name_no_text, REASON_MALFORMED},
};

STATES_TEST(a_state_that_does_not_fit_is_refused_and_changes_nothing)
{
    struct client *c = joined(f, 1, ADAM);
    uint64_t id = do_init(c, 1, 0, COUNT);
    struct told before, t, got;

    do_push(c, id, 1, 2, COUNT);
    do_get(c, id, &before);
    for (size_t i = 0; i < sizeof refusals / sizeof refusals[0]; i++) {
        t = before;
        refusals[i].change(&t);
        enum reason r = set_result(c, send_set(c, ++c->sequence, 0, &t), NULL);
        if (r != refusals[i].reason) test_fail(__FILE__, __LINE__, "row %d: %s", (int)i, reason_code(r));
        do_get(c, id, &got);
        CHECK(same(&before, &got));
        CHECK_EQ(f->server->core.staging_used, 0);
    }
    client_gone(c);
}

STATES_TEST(parts_that_differ_in_what_they_say_are_refused)
{
    struct client *c = joined(f, 1, ADAM);
    uint64_t id = do_init(c, 1, 0, COUNT);
    struct told t;

    do_get(c, id, &t);
    CHECK_EQ(set_part(c, 50, &t, 0, 20, NULL), REASON_NONE);
    t.state.product = wire_of_double(0.5);
    CHECK_EQ(set_part(c, 50, &t, 20, 52, NULL), REASON_BAD_ARGUMENT);
    client_gone(c);
}

STATES_TEST(who_has_not_joined_sets_whole_states_only)
{
    struct client *c = joined(f, 1, ADAM), *looks = client_new(f, 2);
    uint64_t id = do_init(c, 1, 0, COUNT);
    struct told t;

    looks->store = c->store;
    do_get(looks, id, &t);
    CHECK_EQ(set(looks, &t), REASON_NONE);
    CHECK_EQ(set_part(looks, 50, &t, 0, 20, NULL), REASON_NOT_JOINED);
    client_gone(looks), client_gone(c);
}

STATES_TEST(a_body_that_ends_early_is_refused)
{
    struct client *c = joined(f, 1, ADAM);
    uint64_t id = do_init(c, 1, 0, COUNT);
    struct wire_states fixed = {.store = c->store, .count = 1};
    struct buf fb = {0}, d = {0};
    struct told t;

    do_get(c, id, &t);
    wire_put_states(&fb, &fixed);
    put_given(&d, &t);
    for (size_t size = 0; size < t.state.total; size++)
        CHECK_EQ(set_result(c, client_send(c, WIRE_SetStates, 0, ++c->sequence, bytes_of(fb.at, fb.size),
                                           bytes_of(d.at, d.size), bytes_of(t.bytes, size)), NULL), REASON_MALFORMED);
    CHECK_EQ(f->server->core.staging_used, 0);
    buf_fini(&fb), buf_fini(&d);
    client_gone(c);
}

/* Each byte lies before an unmapped page. */
STATES_TEST(descriptors_that_are_cut_off_anywhere_are_refused)
{
    struct client *c = joined(f, 1, ADAM);
    uint64_t id = do_init(c, 1, 0, COUNT);
    struct wire_states fixed = {.store = c->store, .count = 1};
    struct buf fb = {0}, d = {0};
    struct told t;

    do_get(c, id, &t);
    wire_put_states(&fb, &fixed);
    put_given(&d, &t);
    for (size_t size = 0; size < d.size; size++) {
        uint8_t *cut = guard_new(size > 0 ? size : 1);
        memcpy(cut, d.at, size);
        CHECK_EQ(set_result(c, client_send(c, WIRE_SetStates, 0, ++c->sequence, bytes_of(fb.at, fb.size),
                                           bytes_of(cut, size), bytes_of(t.bytes, (size_t)t.state.total)), NULL),
                 REASON_MALFORMED);
        CHECK_EQ(take(c, client_send(c, WIRE_GetStates, 0, 0, bytes_of(fb.at, size < fb.size ? size : 0),
                                     bytes_of(cut, size), none), &t, 0, NULL), REASON_MALFORMED);
        guard_free(cut, size > 0 ? size : 1);
    }
    buf_fini(&fb), buf_fini(&d);
    client_gone(c);
}

STATES_TEST(states_of_what_is_not_there_are_refused)
{
    struct client *c = joined(f, 1, ADAM);
    uint64_t id = do_init(c, 1, 0, COUNT);
    struct told t;

    CHECK_EQ(get(c, (struct wire_states_entry){.key = id + 1}, &t), REASON_NO_KEY);
    do_get(c, id, &t);
    do_json(c, WIRE_Delete, "{\"store\": %u, \"keys\": [1]}", c->store);
    CHECK_EQ(set_result(c, send_set(c, ++c->sequence, 0, &t), NULL), REASON_NO_KEY);
    c->store++;
    CHECK_EQ(get(c, (struct wire_states_entry){.key = id}, &t), REASON_NO_STORE);
    client_gone(c);
}

/* The turn of a deleted key still comes; nothing of it is used after. */
STATES_TEST(a_key_may_go_while_its_state_is_read_or_put)
{
    struct client *c = joined(f, 1, ADAM);
    uint64_t id = do_init(c, 1, 0, COUNT);
    struct wire_states_entry x = {.key = id};
    struct told t, got;

    do_get(c, id, &t);
    do_push(c, id, 1, 2, COUNT);
    uint32_t asked = ask(c, 0, &x, 1), sent = send_set(c, ++c->sequence, 0, &t);
    do_json(c, WIRE_Delete, "{\"store\": %u, \"keys\": [1]}", c->store);
    CHECK_EQ(take(c, asked, &got, 1, NULL), REASON_NONE);
    CHECK_EQ(set_result(c, sent, NULL), REASON_NONE);
    asked = ask(c, 0, &x, 1);
    client_gone(c);
    fixture_settle(f);
}
