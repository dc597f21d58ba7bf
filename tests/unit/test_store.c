/* What the store does (steps, rounds, joins, leaves, dead workers, barriers, dedupe, versions, staging), over the
 * protocol, without sockets, on each device: the CPU, and the late one under several seeds, where a forgotten wait is
 * a wrong result. Time is the test's own. */
#include "gpu/array.h"
#include "tests/lib/devices.h"

#include "service/base/mem.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char sync2[] = "\"type\": \"dist_sync\", \"num_workers\": 2";
static const char sync3[] = "\"type\": \"dist_sync\", \"num_workers\": 3";
static const char async_[] = "\"type\": \"dist_async\"";
static const char elastic[] = "\"type\": \"dist_sync\", \"elastic\": true";

/* Several devices as one, late ones but for the first, with the smallest parts that there are. */
#define STORE_TEST(name) TEST_ON(ON_CPU | ON_THREADS | ON_LATE | ON_ARRAYS | ON_FULL | ON_SIM, name)

/* ---- values ------------------------------------------------------------------------------------------------------ */

STORE_TEST(pull_gives_what_init_gave)
{
    struct client *c = client_joined(f, 1, async_);
    uint64_t id = do_init(c, 3, 2.0f, 16);
    CHECK_NEAR(do_pull(c, id, 16), 2, 0);
    client_gone(c);
}

STORE_TEST(push_without_updater_assigns)
{
    struct client *c = client_joined(f, 1, async_);
    uint64_t id = do_init(c, 3, 2.0f, 16);
    do_push(c, id, 1, 8.0f, 16);
    fixture_settle(f);
    CHECK_NEAR(do_pull(c, id, 16), 8, 0);
    do_push(c, id, 2, 5.0f, 16);
    fixture_settle(f);
    CHECK_NEAR(do_pull(c, id, 16), 5, 0);
    client_gone(c);
}

STORE_TEST(large_values_travel_whole)
{
    enum { COUNT = 300000 };
    struct client *c = client_joined(f, 1, async_);
    uint64_t id = do_init(c, 3, 2.0f, COUNT);
    do_push(c, id, 1, 8.0f, COUNT);
    fixture_settle(f);
    CHECK_NEAR(do_pull(c, id, COUNT), 8, 0);
    client_gone(c);
}

STORE_TEST(add_updater_accumulates)
{
    struct client *c = client_joined(f, 1, async_);
    do_json(c, WIRE_SetUpdater, "{\"store\": %u, \"updater\": {\"type\": \"add\"}}", c->store);
    uint64_t id = do_init(c, 3, 1.0f, 100);
    for (uint64_t step = 1; step <= 50; step++) do_push(c, id, step, 2.0f, 100);
    fixture_settle(f);
    CHECK_NEAR(do_pull(c, id, 100), 101, 0);
    client_gone(c);
}

STORE_TEST(two_async_workers_with_sgd_give_exactly_minus_24)
{
    struct client *a = client_joined(f, 1, async_), *b = client_joined(f, 2, async_);
    do_json(a, WIRE_SetUpdater, "{\"store\": %u, \"updater\": {\"type\": \"sgd\", \"learning_rate\": 0.125}}", a->store);
    uint64_t id = do_init(a, 7, 1.0f, 10);
    for (uint64_t step = 1; step <= 100; step++) {
        do_push(a, id, step, 1.0f, 10);
        do_push(b, id, step, 1.0f, 10);
    }
    fixture_settle(f);
    CHECK_NEAR(do_pull(b, id, 10), -24, 0);
    client_gone(a);
    client_gone(b);
}

STORE_TEST(integer_sums_that_do_not_fit_fail_and_leave_the_value)
{
    struct client *c = client_joined(f, 1, async_);
    struct wire_init fixed = {.store = c->store, .count = 1, .call = 5};
    struct wire_init_entry x = {.number = 1, .size = 4, .total = 4, .ndim = 1, .dtype = DTYPE_i8};
    struct buf fb = {0}, d = {0};
    int64_t dim = 4;
    int8_t value[4] = {100, 1, 2, 3}, out[4];
    uint64_t id = 0;
    struct error e;

    do_json(c, WIRE_SetUpdater, "{\"store\": %u, \"updater\": {\"type\": \"add\"}}", c->store);
    wire_put_init(&fb, &fixed);
    wire_put_init_entry(&d, &x);
    buf_add(&d, &dim, 8);
    struct answered *a = client_await(c, client_send(c, WIRE_Init, 0, 0, bytes_of(fb.at, fb.size), bytes_of(d.at, d.size),
                                                     bytes_of(value, 4)));
    struct reader in = reader_of(a->desc);
    struct wire_init_result r;
    CHECK(wire_get_init_result(&in, &r));
    id = r.key;
    answered_free(a);
    buf_fini(&fb);
    buf_fini(&d);
    CHECK_OK(try_push(c, id, 1, value, 4, DTYPE_i8, &e), &e);
    CHECK_EQ(do_wait(c, WAIT_TICKET, id, 1, 100, &e), WAIT_FAILED);
    CHECK_EQ(e.reason, REASON_SUM_OVERFLOW);
    CHECK_OK(try_pull(c, id, 0, out, 4, NULL, &e), &e);
    CHECK_EQ(memcmp(out, value, 4), 0);
    int8_t small[4] = {1, 1, 1, 1};
    CHECK_OK(try_push(c, id, 2, small, 4, DTYPE_i8, &e), &e);
    CHECK_EQ(do_wait(c, WAIT_TICKET, id, 2, 100, &e), WAIT_DONE);
    CHECK_OK(try_pull(c, id, 0, out, 4, NULL, &e), &e);
    CHECK_EQ(out[0], 101);
    client_gone(c);
}

STORE_TEST(wrong_shape_and_type_are_refused_naming_both)
{
    struct client *c = client_joined(f, 1, async_);
    uint64_t id = do_init(c, 3, 2.0f, 16);
    float v[20] = {0};
    struct error e;

    CHECK_EQ(try_push(c, id, 1, v, 15 * 4, DTYPE_f32, &e), STATUS_INVALID_ARGUMENT);
    CHECK_EQ(try_push(c, id, 1, v, 16 * 4, DTYPE_i32, &e), STATUS_INVALID_ARGUMENT);
    CHECK_SAYS(e.text, "float32 (16,)");
    CHECK_SAYS(e.text, "int32");
    CHECK_EQ(try_push(c, id + 99, 1, v, 16 * 4, DTYPE_f32, &e), STATUS_NOT_FOUND);
    CHECK_NEAR(do_pull(c, id, 16), 2, 0);
    do_push(c, id, 1, 1, 16); /* the refused ones took no step */
    client_gone(c);
}

STORE_TEST(an_empty_value_is_a_value)
{
    struct client *c = client_joined(f, 1, async_);
    uint64_t id = do_init(c, 3, 2.0f, 0), version = 0;
    struct error e;
    char nothing[1];

    CHECK_OK(try_push(c, id, 1, nothing, 0, DTYPE_f32, &e), &e);
    CHECK_OK(try_pull(c, id, 0, nothing, 0, &version, &e), &e);
    client_gone(c);
}

/* ---- rounds ------------------------------------------------------------------------------------------------------ */

STORE_TEST(a_round_closes_when_every_member_has_pushed)
{
    struct client *a = client_joined(f, 1, sync2), *b = client_joined(f, 2, sync2);
    struct error e;
    uint64_t id = do_init(a, 3, 1.0f, 1000);

    do_push(a, id, 1, 2.0f, 1000);
    CHECK_EQ(do_wait(a, WAIT_TICKET, id, 1, 50, &e), WAIT_PENDING);
    CHECK_SAYS(e.text, "waiting for worker 'w1' (rank 1)");
    CHECK_NEAR(do_pull(a, id, 1000), 1, 0);
    do_push(b, id, 1, 3.0f, 1000);
    CHECK_EQ(do_wait(a, WAIT_TICKET, id, 1, 50, &e), WAIT_DONE);
    CHECK_NEAR(do_pull(b, id, 1000), 5, 0);
    client_gone(a);
    client_gone(b);
}

STORE_TEST(a_push_before_all_have_joined_is_held)
{
    struct client *a = client_joined(f, 1, sync2);
    struct error e;
    uint64_t id = do_init(a, 3, 1.0f, 8);

    do_push(a, id, 1, 2.0f, 8);
    CHECK_EQ(do_wait(a, WAIT_TICKET, id, 1, 50, &e), WAIT_PENDING);
    CHECK_SAYS(e.text, "1 of 2 workers have not joined");
    struct client *b = client_joined(f, 2, sync2);
    CHECK_EQ(do_wait(a, WAIT_TICKET, id, 1, 50, &e), WAIT_PENDING);
    do_push(b, id, 1, 3.0f, 8);
    CHECK_EQ(do_wait(a, WAIT_TICKET, id, 1, 50, &e), WAIT_DONE);
    CHECK_NEAR(do_pull(a, id, 8), 5, 0);
    client_gone(a);
    client_gone(b);
}

STORE_TEST(the_same_push_twice_counts_once)
{
    struct client *a = client_joined(f, 1, sync2), *b = client_joined(f, 2, sync2);
    struct error e;
    uint64_t id = do_init(a, 3, 1.0f, 8);

    do_push(a, id, 1, 2.0f, 8);
    do_push(a, id, 1, 2.0f, 8);
    CHECK_EQ(do_wait(a, WAIT_TICKET, id, 1, 50, &e), WAIT_PENDING);
    do_push(b, id, 1, 3.0f, 8);
    do_push(b, id, 1, 3.0f, 8);
    CHECK_EQ(do_wait(b, WAIT_TICKET, id, 1, 50, &e), WAIT_DONE);
    CHECK_NEAR(do_pull(a, id, 8), 5, 0);
    client_gone(a);
    client_gone(b);
}

STORE_TEST(a_worker_may_be_one_step_ahead_and_no_more)
{
    struct client *a = client_joined(f, 1, sync2), *b = client_joined(f, 2, sync2);
    struct error e;
    uint64_t id = do_init(a, 3, 0.0f, 8);
    float v[8] = {1, 1, 1, 1, 1, 1, 1, 1};

    do_push(a, id, 1, 1.0f, 8);
    do_push(a, id, 2, 10.0f, 8);
    CHECK_EQ(try_push(a, id, 3, v, sizeof v, DTYPE_f32, &e), STATUS_RESOURCE_EXHAUSTED);
    CHECK_SAYS(e.text, "more than one step ahead of round 1");
    CHECK_SAYS(e.text, "w1");
    do_push(b, id, 1, 2.0f, 8);
    CHECK_EQ(do_wait(a, WAIT_TICKET, id, 1, 50, &e), WAIT_DONE);
    CHECK_NEAR(do_pull(a, id, 8), 3, 0);
    do_push(a, id, 3, 100.0f, 8);
    do_push(b, id, 2, 20.0f, 8);
    CHECK_EQ(do_wait(a, WAIT_TICKET, id, 2, 50, &e), WAIT_DONE);
    CHECK_NEAR(do_pull(a, id, 8), 30, 0);
    client_gone(a);
    client_gone(b);
}

STORE_TEST(a_gap_in_the_steps_is_refused)
{
    struct client *a = client_joined(f, 1, async_);
    struct error e;
    uint64_t id = do_init(a, 3, 0.0f, 8);
    float v[8] = {0};

    CHECK_EQ(try_push(a, id, 2, v, sizeof v, DTYPE_f32, &e), STATUS_ABORTED);
    CHECK_SAYS(e.text, "the next one of this worker is 1");
    client_gone(a);
}

STORE_TEST(many_rounds_of_many_keys_in_any_order_are_exact)
{
    enum { WORKERS = 4, KEYS = 20, ROUNDS = 60, COUNT = 33 };
    struct client *w[WORKERS];
    uint64_t ids[KEYS], seed = 7;
    struct error e;

    for (unsigned i = 0; i < WORKERS; i++) w[i] = client_joined(f, i + 1, "\"type\": \"dist_sync\", \"num_workers\": 4");
    do_json(w[0], WIRE_SetUpdater, "{\"store\": %u, \"updater\": {\"type\": \"add\"}}", w[0]->store);
    for (unsigned k = 0; k < KEYS; k++) ids[k] = do_init(w[0], k, 0.0f, COUNT);
    for (uint64_t step = 1; step <= ROUNDS; step++)
        for (unsigned i = 0; i < WORKERS; i++) {
            unsigned order[KEYS];
            for (unsigned k = 0; k < KEYS; k++) order[k] = k;
            for (unsigned k = KEYS - 1; k > 0; k--) {
                unsigned j = (unsigned)(rng_next(&seed) % (k + 1)), t = order[k];
                order[k] = order[j];
                order[j] = t;
            }
            for (unsigned k = 0; k < KEYS; k++) do_push(w[i], ids[order[k]], step, (float)(i + 1), COUNT);
        }
    for (unsigned k = 0; k < KEYS; k++) {
        CHECK_EQ(do_wait(w[1], WAIT_TICKET, ids[k], ROUNDS, 50, &e), WAIT_DONE);
        CHECK_NEAR(do_pull(w[2], ids[k], COUNT), 10 * ROUNDS, 0);
    }
    for (unsigned i = 0; i < WORKERS; i++) client_gone(w[i]);
}

STORE_TEST(summing_by_rank_gives_the_same_bits_whatever_the_order)
{
    static const float parts[3] = {1e8f, 3.0f, -1e8f}; /* (1e8 + 3) - 1e8 is not 1e8 - 1e8 + 3 */
    static const unsigned orders[6][3] = {{0, 1, 2}, {0, 2, 1}, {1, 0, 2}, {1, 2, 0}, {2, 0, 1}, {2, 1, 0}};
    struct client *w[3];
    struct error e;
    float want = (parts[0] + parts[1]) + parts[2];

    for (unsigned i = 0; i < 3; i++)
        w[i] = client_joined(f, i + 1, "\"type\": \"dist_sync\", \"num_workers\": 3, \"sum_order\": \"rank\"");
    uint64_t id = do_init(w[0], 1, 0.0f, 5);
    for (unsigned o = 0; o < 6; o++) {
        for (unsigned i = 0; i < 3; i++) do_push(w[orders[o][i]], id, o + 1, parts[orders[o][i]], 5);
        CHECK_EQ(do_wait(w[0], WAIT_TICKET, id, o + 1, 50, &e), WAIT_DONE);
        CHECK_NEAR(do_pull(w[0], id, 5), want, 0);
    }
    for (unsigned i = 0; i < 3; i++) client_gone(w[i]);
}

STORE_TEST(average_divides_by_the_contributors)
{
    struct client *a = client_joined(f, 1, sync2), *b = client_joined(f, 2, sync2);
    struct error e;

    do_json(a, WIRE_SetUpdater, "{\"store\": %u, \"updater\": {\"type\": \"average\"}}", a->store);
    uint64_t id = do_init(a, 3, 1.0f, 8);
    do_push(a, id, 1, 2.0f, 8);
    do_push(b, id, 1, 4.0f, 8);
    CHECK_EQ(do_wait(a, WAIT_TICKET, id, 1, 50, &e), WAIT_DONE);
    CHECK_NEAR(do_pull(a, id, 8), 3, 0);
    client_gone(a);
    client_gone(b);
}

/* ---- who is missing ---------------------------------------------------------------------------------------------- */

STORE_TEST(a_worker_that_leaves_is_not_waited_for)
{
    struct client *a = client_joined(f, 1, sync3), *b = client_joined(f, 2, sync3), *c = client_joined(f, 3, sync3);
    struct error e;
    uint64_t id = do_init(a, 3, 1.0f, 8);

    do_push(a, id, 1, 2.0f, 8);
    do_push(b, id, 1, 3.0f, 8);
    do_json(c, WIRE_Leave, "{\"store\": %u}", c->store);
    CHECK_EQ(do_wait(a, WAIT_TICKET, id, 1, 50, &e), WAIT_DONE);
    CHECK_NEAR(do_pull(a, id, 8), 5, 0);
    client_gone(a);
    client_gone(b);
    client_gone(c);
}

static void heartbeat(struct client *c)
{
    do_json(c, WIRE_Heartbeat, "{}");
}

STORE_TEST(a_dead_worker_fails_the_round_and_is_named)
{
    struct client *a = client_joined(f, 1, sync2), *b = client_joined(f, 2, sync2);
    struct error e;
    float v[8] = {0};
    uint64_t id = do_init(a, 3, 1.0f, 8);

    do_push(a, id, 1, 2.0f, 8);
    client_gone(b);
    for (int i = 0; i < 6; i++) {
        fixture_advance(f, 2000);
        heartbeat(a);
    }
    CHECK_EQ(do_wait(a, WAIT_TICKET, id, 1, 50, &e), WAIT_FAILED);
    CHECK_EQ(e.reason, REASON_WORKER_DEAD);
    CHECK_SAYS(e.text, "worker 'w1' (rank 1)");
    CHECK_NEAR(do_pull(a, id, 8), 1, 0);
    CHECK_EQ(try_push(a, id, 2, v, sizeof v, DTYPE_f32, &e), STATUS_FAILED_PRECONDITION);
    CHECK_SAYS(e.text, "w1");
    do_json(a, WIRE_Dismiss, "{\"store\": %u, \"worker\": \"w1\"}", a->store);
    do_push(a, id, 2, 4.0f, 8);
    CHECK_EQ(do_wait(a, WAIT_TICKET, id, 2, 50, &e), WAIT_DONE);
    CHECK_NEAR(do_pull(a, id, 8), 4, 0);
    client_gone(a);
}

STORE_TEST(under_proceed_a_round_goes_on_without_the_dead)
{
    const char *o = "\"type\": \"dist_sync\", \"num_workers\": 2, \"on_missing\": \"proceed\"";
    struct client *a = client_joined(f, 1, o), *b = client_joined(f, 2, o);
    struct error e;
    uint64_t id = do_init(a, 3, 1.0f, 8);

    do_push(a, id, 1, 2.0f, 8);
    client_gone(b);
    for (int i = 0; i < 6; i++) {
        fixture_advance(f, 2000);
        heartbeat(a);
    }
    CHECK_EQ(do_wait(a, WAIT_TICKET, id, 1, 50, &e), WAIT_DONE);
    CHECK_NEAR(do_pull(a, id, 8), 2, 0);
    client_gone(a);
}

STORE_TEST(a_round_whose_time_is_up_names_who_did_not_push)
{
    const char *o = "\"type\": \"dist_sync\", \"num_workers\": 2, \"round_timeout\": 5";
    struct client *a = client_joined(f, 1, o), *b = client_joined(f, 2, o);
    struct error e;
    uint64_t id = do_init(a, 3, 1.0f, 8);

    CHECK_OK(try_init(b, 3, NULL, 8, 1, 0, NULL, NULL, &e), &e); /* is told that its first step is 1 */
    do_push(a, id, 1, 2.0f, 8);
    for (int i = 0; i < 5; i++) {
        fixture_advance(f, 1500);
        heartbeat(a);
        heartbeat(b);
    }
    CHECK_EQ(do_wait(a, WAIT_TICKET, id, 1, 50, &e), WAIT_FAILED);
    CHECK_SAYS(e.text, "round 1 of key 3 in store 's'");
    CHECK_SAYS(e.text, "waiting for worker 'w1' (rank 1)");
    /* The one who lives but is late is told, and both go on. */
    do_push(b, id, 1, 9.0f, 8);
    CHECK_EQ(do_wait(b, WAIT_TICKET, id, 1, 50, &e), WAIT_FAILED);
    CHECK_EQ(e.reason, REASON_PUSH_LATE);
    do_push(a, id, 2, 2.0f, 8);
    do_push(b, id, 2, 3.0f, 8);
    CHECK_EQ(do_wait(b, WAIT_TICKET, id, 2, 50, &e), WAIT_DONE);
    CHECK_NEAR(do_pull(a, id, 8), 5, 0);
    client_gone(a);
    client_gone(b);
}

STORE_TEST(a_start_that_is_not_complete_in_time_says_who_is_there)
{
    const char *o = "\"type\": \"dist_sync\", \"num_workers\": 3, \"start_timeout\": 5";
    struct client *a = client_joined(f, 1, o);
    struct error e;
    uint64_t id = do_init(a, 3, 1.0f, 8);

    do_push(a, id, 1, 2.0f, 8);
    for (int i = 0; i < 4; i++) {
        fixture_advance(f, 2000);
        heartbeat(a);
    }
    CHECK_EQ(do_wait(a, WAIT_TICKET, id, 1, 50, &e), WAIT_FAILED);
    CHECK_EQ(e.reason, REASON_START_TIMEOUT);
    CHECK_SAYS(e.text, "2 of 3 workers have not joined");
    CHECK_SAYS(e.text, "w0");
    client_gone(a);
}

STORE_TEST(a_late_joiner_takes_part_from_the_next_round_on)
{
    struct client *a = client_joined(f, 1, elastic);
    struct error e;
    uint64_t id = do_init(a, 3, 1.0f, 8);

    for (uint64_t step = 1; step <= 5; step++) do_push(a, id, step, 2.0f, 8);
    struct client *b = client_joined(f, 2, elastic);
    json_t *j = try_json(b, WIRE_Describe, &e, "{\"store\": %u, \"keys\": [3]}", b->store);
    CHECK_EQ(json_integer_value(json_object_get(json_array_get(json_object_get(j, "items"), 0), "next_step")), 6);
    json_decref(j);
    do_push(a, id, 6, 2.0f, 8);
    CHECK_EQ(do_wait(a, WAIT_TICKET, id, 6, 50, &e), WAIT_PENDING);
    do_push(b, id, 6, 3.0f, 8);
    CHECK_EQ(do_wait(a, WAIT_TICKET, id, 6, 50, &e), WAIT_DONE);
    CHECK_NEAR(do_pull(b, id, 8), 5, 0);
    client_gone(a);
    client_gone(b);
}

STORE_TEST(a_restarted_worker_keeps_its_rank_and_its_recorded_push)
{
    struct client *a = client_joined(f, 1, sync2), *b = client_joined(f, 2, sync2);
    struct error e;
    uint64_t id = do_init(a, 3, 1.0f, 8);

    do_push(b, id, 1, 3.0f, 8);
    client_gone(b);
    b = client_joined(f, 2, sync2);
    CHECK_EQ(b->rank, 1);
    json_t *j = try_json(b, WIRE_Describe, &e, "{\"store\": %u, \"keys\": [3]}", b->store);
    CHECK_EQ(json_integer_value(json_object_get(json_array_get(json_object_get(j, "items"), 0), "next_step")), 2);
    json_decref(j);
    do_push(a, id, 1, 2.0f, 8);
    CHECK_EQ(do_wait(a, WAIT_TICKET, id, 1, 50, &e), WAIT_DONE);
    CHECK_NEAR(do_pull(a, id, 8), 5, 0);
    client_gone(a);
    client_gone(b);
}

STORE_TEST(an_old_epoch_is_refused_after_a_restart)
{
    struct client *old = client_joined(f, 1, async_);
    struct error e;
    float v[8] = {0};
    uint64_t id = do_init(old, 3, 1.0f, 8);
    struct client *now = client_joined(f, 1, async_);

    CHECK_EQ(try_push(old, id, 1, v, sizeof v, DTYPE_f32, &e), STATUS_FAILED_PRECONDITION);
    CHECK_EQ(e.reason, REASON_STALE_EPOCH);
    client_gone(old);
    client_gone(now);
}

/* ---- init -------------------------------------------------------------------------------------------------------- */

STORE_TEST(rank_0_creates_and_the_others_wait_for_it)
{
    struct client *a = client_joined(f, 1, sync2), *b = client_joined(f, 2, sync2);
    enum init_outcome outcome;
    uint64_t id, id2;
    struct error e;
    float one[4] = {1, 1, 1, 1};

    CHECK_OK(try_init(b, 10, NULL, 4, 1, 0, &outcome, NULL, &e), &e);
    CHECK_EQ(outcome, INIT_WAIT);
    CHECK_OK(try_init(a, 10, NULL, 4, 1, 0, &outcome, NULL, &e), &e);
    CHECK_EQ(outcome, INIT_NEED_VALUE);
    CHECK_OK(try_init(a, 10, one, 4, 1, 0, &outcome, &id, &e), &e);
    CHECK_EQ(outcome, INIT_CREATED);
    CHECK_OK(try_init(b, 10, NULL, 4, 1, 0, &outcome, &id2, &e), &e);
    CHECK_EQ(outcome, INIT_EXISTED);
    CHECK_EQ(id, id2);
    /* A repeat of the same call is no second init; another call is. */
    CHECK_OK(try_init(b, 10, NULL, 4, 1, 0, &outcome, &id2, &e), &e);
    CHECK_EQ(try_init(b, 10, NULL, 4, 2, 0, &outcome, &id2, &e), STATUS_ALREADY_EXISTS);
    CHECK_SAYS(e.text, "duplicate init of key 10");
    CHECK_SAYS(e.text, "on_reinit");
    client_gone(a);
    client_gone(b);
}

/* What looks at several frames before it begins: call 0. */
STORE_TEST(a_check_of_call_0_takes_nothing_over)
{
    struct client *a = client_joined(f, 1, sync2), *b = client_joined(f, 2, sync2);
    enum init_outcome outcome;
    struct error e;

    do_init(a, 10, 1.0f, 4);
    for (int i = 0; i < 2; i++) {
        CHECK_OK(try_init(b, 10, NULL, 4, 0, 0, &outcome, NULL, &e), &e);
        CHECK_EQ(outcome, INIT_EXISTED);
    }
    CHECK_OK(try_init(b, 10, NULL, 4, 7, 0, &outcome, NULL, &e), &e);
    CHECK_EQ(outcome, INIT_EXISTED);
    CHECK_EQ(try_init(b, 10, NULL, 4, 0, 0, &outcome, NULL, &e), STATUS_ALREADY_EXISTS);
    client_gone(a);
    client_gone(b);
}

static json_int_t told(struct client *c, unsigned method, const char *request, const char *item, const char *name)
{
    struct error e;
    json_t *j = try_json(c, method, &e, "{\"store\": %u%s}", c->store, request);

    if (j == NULL) test_fail(__FILE__, __LINE__, "%s: %s", wire_method_name(method), e.text);
    const json_t *from = item != NULL ? json_array_get(json_object_get(j, item), 0) : j;
    json_int_t number = json_integer_value(json_object_get(from, name));
    json_decref(j);
    return number;
}

STORE_TEST(a_worker_that_was_found_dead_is_told_what_was_recorded_when_it_joins_again)
{
    struct client *c = client_joined(f, 1, "\"type\": \"dist_async\", \"worker_timeout\": 0.3");
    struct error e;
    float one[4] = {1, 1, 1, 1};

    CHECK_EQ(told(c, WIRE_Join, "", NULL, "heartbeat_ms"), 100);
    uint64_t id = do_init(c, 10, 0.0f, 4);
    do_push(c, id, 1, 1.0f, 4);
    fixture_settle(f);
    fixture_advance(f, 400);
    CHECK_EQ(told(c, WIRE_Describe, ", \"keys\": [10]", "items", "next_step"), 0);
    CHECK_EQ(try_push(c, id, 1, one, sizeof one, DTYPE_f32, &e), STATUS_FAILED_PRECONDITION);
    CHECK_EQ(e.reason, REASON_NOT_JOINED);
    told(c, WIRE_Join, "", NULL, "rank");
    CHECK_EQ(told(c, WIRE_Describe, ", \"keys\": [10]", "items", "recorded"), 1);
    CHECK_EQ(told(c, WIRE_Describe, ", \"keys\": [10]", "items", "next_step"), 2);
    CHECK_EQ(do_wait(c, WAIT_TICKET, id, 1, 50, &e), WAIT_DONE);
    client_gone(c);
}

STORE_TEST(when_rank_0_is_gone_the_lowest_present_rank_sends_its_value)
{
    struct client *a = client_joined(f, 1, sync2), *b = client_joined(f, 2, sync2);
    enum init_outcome outcome;
    struct error e;

    CHECK_OK(try_init(b, 10, NULL, 4, 1, 0, &outcome, NULL, &e), &e);
    CHECK_EQ(outcome, INIT_WAIT);
    CHECK_EQ(do_wait(b, WAIT_INIT, 0, 10, 50, &e), WAIT_PENDING);
    CHECK_SAYS(e.text, "waiting for the value of worker 'w0' (rank 0)");
    do_json(a, WIRE_Leave, "{\"store\": %u}", a->store);
    CHECK_EQ(do_wait(b, WAIT_INIT, 0, 10, 50, &e), WAIT_DONE);
    CHECK_OK(try_init(b, 10, NULL, 4, 1, 0, &outcome, NULL, &e), &e);
    CHECK_EQ(outcome, INIT_NEED_VALUE);
    client_gone(a);
    client_gone(b);
}

STORE_TEST(a_third_worker_that_joins_later_inits_without_error_and_changes_nothing)
{
    struct client *a = client_joined(f, 1, elastic), *b = client_joined(f, 2, elastic), *c;
    enum init_outcome outcome;
    struct error e;
    float nine[4] = {9, 9, 9, 9};

    uint64_t id = do_init(a, 10, 1.0f, 4);
    CHECK_OK(try_init(b, 10, nine, 4, 1, 0, &outcome, NULL, &e), &e);
    CHECK_EQ(outcome, INIT_EXISTED);
    c = client_joined(f, 3, elastic);
    CHECK_OK(try_init(c, 10, nine, 4, 1, 0, &outcome, NULL, &e), &e);
    CHECK_NEAR(do_pull(c, id, 4), 1, 0);
    client_gone(a);
    client_gone(b);
    client_gone(c);
}

STORE_TEST(a_key_of_an_earlier_job_is_kept_replaced_or_refused_as_asked)
{
    struct client *a = client_joined(f, 1, async_);
    enum init_outcome outcome;
    struct error e;
    float five[4] = {5, 5, 5, 5};
    uint64_t id = do_init(a, 10, 1.0f, 4), id2;

    do_json(a, WIRE_Leave, "{\"store\": %u}", a->store);
    client_gone(a);
    a = client_joined(f, 2, async_);
    CHECK_EQ(try_init(a, 10, NULL, 4, 1, REINIT_ERROR, &outcome, NULL, &e), STATUS_ALREADY_EXISTS);
    CHECK_OK(try_init(a, 10, NULL, 4, 2, REINIT_KEEP, &outcome, &id2, &e), &e);
    CHECK_EQ(outcome, INIT_EXISTED);
    CHECK_EQ(id, id2);
    CHECK_NEAR(do_pull(a, id, 4), 1, 0);
    CHECK_OK(try_init(a, 10, five, 4, 3, REINIT_REPLACE, &outcome, &id2, &e), &e);
    CHECK_EQ(outcome, INIT_CREATED);
    CHECK(id2 != id);
    CHECK_NEAR(do_pull(a, id2, 4), 5, 0);
    CHECK_EQ(try_pull(a, id, 0, five, 16, NULL, &e), STATUS_NOT_FOUND);
    client_gone(a);
}

/* ---- barriers ---------------------------------------------------------------------------------------------------- */

static uint64_t arrive(struct client *c, const char *name)
{
    struct error e;
    json_t *j = try_json(c, WIRE_Barrier, &e, "{\"store\": %u, \"name\": \"%s\"}", c->store, name);

    if (j == NULL) test_fail(__FILE__, __LINE__, "%s", e.text);
    uint64_t ticket = (uint64_t)json_integer_value(json_object_get(j, "ticket"));
    json_decref(j);
    return ticket;
}

STORE_TEST(a_barrier_opens_when_all_members_have_come_and_names_the_missing)
{
    struct client *a = client_joined(f, 1, sync2), *b = client_joined(f, 2, sync2);
    struct error e;
    uint64_t t = arrive(a, "x");

    CHECK_EQ(do_wait(a, WAIT_BARRIER, t, 0, 50, &e), WAIT_PENDING);
    CHECK_SAYS(e.text, "barrier 'x'");
    CHECK_SAYS(e.text, "worker 'w1' (rank 1)");
    CHECK_EQ(arrive(b, "x"), t);
    CHECK_EQ(do_wait(a, WAIT_BARRIER, t, 0, 50, &e), WAIT_DONE);
    CHECK(arrive(a, "x") != t);
    client_gone(a);
    client_gone(b);
}

STORE_TEST(a_dead_worker_fails_the_barrier)
{
    struct client *a = client_joined(f, 1, sync2), *b = client_joined(f, 2, sync2);
    struct error e;
    uint64_t t = arrive(a, "x");

    client_gone(b);
    for (int i = 0; i < 6; i++) {
        fixture_advance(f, 2000);
        heartbeat(a);
    }
    CHECK_EQ(do_wait(a, WAIT_BARRIER, t, 0, 50, &e), WAIT_FAILED);
    CHECK_SAYS(e.text, "w1");
    client_gone(a);
}

/* ---- named requests ---------------------------------------------------------------------------------------------- */

STORE_TEST(a_repeated_barrier_gets_the_first_answer_even_when_it_has_opened_since)
{
    struct client *a = client_joined(f, 1, async_);
    const char *text = "{\"store\": 1, \"name\": \"x\"}";
    struct bytes none = bytes_of(NULL, 0);
    struct answered *one, *two;

    one = client_await(a, client_send(a, WIRE_Barrier, 0, 777, none, none, bytes_text(text)));
    two = client_await(a, client_send(a, WIRE_Barrier, 0, 777, none, none, bytes_text(text)));
    CHECK_EQ(one->header.status, STATUS_OK);
    CHECK(bytes_equal(one->body, two->body));
    answered_free(one);
    answered_free(two);
    one = client_await(a, client_send(a, WIRE_Barrier, 0, 777 - DEDUPE_WINDOW, none, none, bytes_text(text)));
    CHECK_EQ(one->header.reason, REASON_SEQUENCE_OLD);
    answered_free(one);
    client_gone(a);
}

/* ---- parts ------------------------------------------------------------------------------------------------------- */

/* One part of a push of `total` floats that all are `value`. */
static struct answered *push_part(struct client *c, uint64_t id, uint64_t step, uint64_t sequence, uint64_t from,
                                  uint64_t to, uint64_t total, float value)
{
    struct wire_push fixed = {.store = c->store, .count = 1};
    struct wire_push_entry x = {.key = id, .step = step, .offset = from * 4, .size = (to - from) * 4, .total = total * 4};
    struct buf fb = {0}, d = {0};
    float *v = malloc((size_t)(to - from) * 4 + 1);

    for (uint64_t i = 0; i < to - from; i++) v[i] = value;
    wire_put_push(&fb, &fixed);
    wire_put_push_entry(&d, &x);
    struct answered *a = client_take(c, client_send(c, WIRE_Push, 0, sequence, bytes_of(fb.at, fb.size),
                                                    bytes_of(d.at, d.size), bytes_of(v, (size_t)(to - from) * 4)));
    CHECK(a != NULL);
    free(v);
    buf_fini(&fb);
    buf_fini(&d);
    return a;
}

static uint32_t recorded(struct answered *a)
{
    struct reader r = reader_of(a->fixed);
    struct wire_push_done f;

    CHECK(wire_get_push_done(&r, &f));
    CHECK_EQ(f.faults, 0);
    answered_free(a);
    return f.recorded;
}

STORE_TEST(parts_may_come_in_any_order_over_any_connection_and_twice)
{
    struct client *a = client_joined(f, 1, async_), *b = client_again(a);
    struct error e;
    uint64_t id = do_init(a, 1, 0.0f, 1000);

    CHECK_EQ(recorded(push_part(a, id, 1, 50, 600, 1000, 1000, 3)), 0);
    CHECK_EQ(recorded(push_part(b, id, 1, 50, 0, 300, 1000, 3)), 0);
    CHECK_EQ(recorded(push_part(b, id, 1, 50, 0, 300, 1000, 3)), 0);
    CHECK_NEAR(do_pull(a, id, 1000), 0, 0);
    CHECK_EQ(recorded(push_part(a, id, 1, 50, 300, 600, 1000, 3)), 1);
    CHECK_EQ(recorded(push_part(a, id, 1, 50, 300, 600, 1000, 3)), 1);
    CHECK_EQ(do_wait(a, WAIT_TICKET, id, 1, 50, &e), WAIT_DONE);
    CHECK_NEAR(do_pull(a, id, 1000), 3, 0);
    client_gone(a);
    client_gone(b);
}

STORE_TEST(a_push_given_up_half_way_does_not_mix_with_the_next_of_the_same_step)
{
    struct client *a = client_joined(f, 1, async_);
    struct error e;
    uint64_t id = do_init(a, 1, 0.0f, 1000);

    CHECK_EQ(recorded(push_part(a, id, 1, 50, 0, 600, 1000, 3)), 0);
    CHECK_EQ(recorded(push_part(a, id, 1, 51, 600, 1000, 1000, 4)), 0);
    struct answered *old = push_part(a, id, 1, 50, 600, 1000, 1000, 3);
    struct reader r = reader_of(old->fixed);
    struct wire_push_done done;
    CHECK(wire_get_push_done(&r, &done));
    CHECK_EQ(done.faults, 1);
    answered_free(old);
    CHECK_EQ(recorded(push_part(a, id, 1, 51, 0, 600, 1000, 4)), 1);
    CHECK_EQ(do_wait(a, WAIT_TICKET, id, 1, 50, &e), WAIT_DONE);
    CHECK_NEAR(do_pull(a, id, 1000), 4, 0);
    client_gone(a);
}

static uint64_t staging_used(struct client *c)
{
    struct error e;
    json_t *j = try_json(c, WIRE_Stats, &e, "{}");
    json_t *memory = json_object_get(json_object_get(j, "daemon"), "memory");
    uint64_t used = (uint64_t)json_integer_value(json_object_get(memory, "staging"));

    json_decref(j);
    return used;
}

STORE_TEST(half_a_push_of_a_dead_worker_leaves_no_trace)
{
    struct client *a = client_joined(f, 1, async_), *b = client_joined(f, 2, async_);
    uint64_t id = do_init(a, 1, 0.0f, 100000);

    CHECK_EQ(recorded(push_part(b, id, 1, 50, 0, 60000, 100000, 3)), 0);
    CHECK_EQ(staging_used(a), 400000);
    client_gone(b);
    for (int i = 0; i < 6; i++) {
        fixture_advance(f, 2000);
        heartbeat(a);
    }
    CHECK_EQ(staging_used(a), 0);
    CHECK_NEAR(do_pull(a, id, 100000), 0, 0);
    client_gone(a);
}

STORE_TEST(a_partial_push_without_progress_is_dropped_after_30_s)
{
    struct client *a = client_joined(f, 1, async_);
    uint64_t id = do_init(a, 1, 0.0f, 1000);

    CHECK_EQ(recorded(push_part(a, id, 1, 50, 0, 600, 1000, 3)), 0);
    for (int i = 0; i < 16; i++) {
        fixture_advance(f, 2000);
        heartbeat(a);
    }
    CHECK_EQ(staging_used(a), 0);
    do_push(a, id, 1, 4.0f, 1000);
    fixture_settle(f);
    CHECK_NEAR(do_pull(a, id, 1000), 4, 0);
    client_gone(a);
}

/* ---- staging memory ---------------------------------------------------------------------------------------------- */

TEST(a_push_that_advances_an_open_round_is_never_refused_because_of_later_ones)
{
    enum { KEYS = 8, COUNT = 1000 };
    struct device *d = device_of_kinds(ON_CPU | ON_SIM, 0);
    struct fixture *f = fixture_new(d, (KEYS + 2) * COUNT * 4); /* too little for two rounds of every key */
    struct client *a = client_joined(f, 1, sync2), *b = client_joined(f, 2, sync2);
    float v[COUNT] = {0};
    uint64_t ids[KEYS];
    struct error e;
    unsigned full = 0;

    for (unsigned k = 0; k < KEYS; k++) ids[k] = do_init(a, k, 0.0f, COUNT);
    for (uint64_t step = 1; step <= 2; step++)
        for (unsigned k = 0; k < KEYS; k++)
            if (try_push(a, ids[k], step, v, sizeof v, DTYPE_f32, &e) != STATUS_OK)
                full += (e.reason == REASON_STAGING_FULL || e.reason == REASON_IN_FLIGHT) &&
                        e.status == STATUS_RESOURCE_EXHAUSTED;
    CHECK(full > 0);
    json_t *j = try_json(a, WIRE_Describe, &e, "{\"store\": %u, \"keys\": [0, 1, 2, 3, 4, 5, 6, 7]}", a->store);
    json_t *items = json_object_get(j, "items");
    for (unsigned k = 0; k < KEYS; k++) {
        uint64_t next = (uint64_t)json_integer_value(json_object_get(json_array_get(items, k), "next_step"));
        if (next > 1) CHECK_OK(try_push(b, ids[k], 1, v, sizeof v, DTYPE_f32, &e), &e);
    }
    json_decref(j);
    client_gone(a);
    client_gone(b);
    fixture_free(f);
}

/* ---- versions ---------------------------------------------------------------------------------------------------- */

STORE_TEST(a_pinned_version_is_read_to_its_end_or_revoked_but_never_mixed)
{
    enum { COUNT = 3 << 20 }; /* 12 MiB: several frames */
    struct client *a = client_joined(f, 1, async_);
    struct error e;
    uint64_t id = do_init(a, 1, 1.0f, COUNT);
    struct wire_pull fixed = {.store = a->store, .count = 1};
    struct wire_pull_entry x = {.key = id};
    struct wire_pull_result r = {0};
    unsigned revoked = 0, whole = 0;

    for (uint64_t step = 1; step <= 12; step++) {
        struct buf fb = {0}, d = {0};
        wire_put_pull(&fb, &fixed);
        wire_put_pull_entry(&d, &x);
        struct answered *got = client_await(a, client_send(a, WIRE_Pull, 0, 0, bytes_of(fb.at, fb.size),
                                                           bytes_of(d.at, d.size), bytes_of(NULL, 0)));
        struct reader in = reader_of(got->desc);
        struct wire_fault fault;
        CHECK(wire_get_pull_result(&in, &r));
        if (in.left > 0) {
            CHECK(wire_get_fault(&in, &fault));
            CHECK_EQ(fault.reason, REASON_VERSION_REVOKED);
            revoked++;
            x = (struct wire_pull_entry){.key = id};
        } else {
            const float *v = got->body.at;
            CHECK(r.version == x.version || x.version == 0);
            for (uint64_t i = 0; i < r.size / 4; i += 997) CHECK_NEAR(v[i], r.version, 0);
            x.version = r.version;
            x.offset += r.size;
            if (x.offset == r.total) {
                whole++;
                x = (struct wire_pull_entry){.key = id};
            }
        }
        answered_free(got);
        buf_fini(&fb);
        buf_fini(&d);
        do_push(a, id, step, (float)(step + 1), COUNT); /* every element is the version's number */
        CHECK_EQ(do_wait(a, WAIT_TICKET, id, step, 50, &e), WAIT_DONE);
    }
    CHECK(whole > 0);
    client_gone(a);
}

/* ---- stores and keys --------------------------------------------------------------------------------------------- */

STORE_TEST(options_that_disagree_are_named)
{
    struct client *a = client_joined(f, 1, sync2);
    struct error e;

    CHECK(try_json(a, WIRE_Create, &e, "{\"store\": \"s\", \"type\": \"dist_sync\", \"num_workers\": 4}") == NULL);
    CHECK_EQ(e.reason, REASON_STORE_DIFFERS);
    CHECK_SAYS(e.text, "num_workers = 2, not 4");
    CHECK(try_json(a, WIRE_Create, &e, "{\"store\": \"s\", \"type\": \"dist_async\"}") == NULL);
    CHECK_SAYS(e.text, "dist_sync");
    do_json(a, WIRE_Create, "{\"store\": \"s\", \"type\": \"dist_sync\"}");
    CHECK(try_json(a, WIRE_Create, &e, "{\"store\": \"t\", \"type\": \"dist_synk\"}") == NULL);
    CHECK_SAYS(e.text, "'synk' is no word of a store type");
    CHECK(try_json(a, WIRE_Create, &e, "{\"store\": \"t\", \"type\": \"dist_sync\", \"num_wokers\": 2}") == NULL);
    CHECK_SAYS(e.text, "did you mean 'num_workers'");
    CHECK(try_json(a, WIRE_Create, &e, "{\"store\": \"t\", \"type\": \"dist_sync\"}") == NULL);
    CHECK_SAYS(e.text, "num_workers");
    client_gone(a);
}

STORE_TEST(key_types_do_not_mix)
{
    struct client *a = client_joined(f, 1, async_);
    struct error e;

    do_init(a, 3, 1.0f, 4);
    CHECK(try_json(a, WIRE_Describe, &e, "{\"store\": %u, \"keys\": [\"three\"]}", a->store) == NULL);
    CHECK_SAYS(e.text, "Mixed key types are not allowed");
    client_gone(a);
}

STORE_TEST(delete_during_a_round_needs_force_and_tells_the_contributors)
{
    struct client *a = client_joined(f, 1, sync2), *b = client_joined(f, 2, sync2);
    struct error e;
    float v[8];
    uint64_t id = do_init(a, 3, 1.0f, 8);

    do_push(a, id, 1, 2.0f, 8);
    CHECK(try_json(a, WIRE_Delete, &e, "{\"store\": %u, \"keys\": [3]}", a->store) == NULL);
    CHECK_EQ(e.reason, REASON_ROUND_OPEN);
    do_json(a, WIRE_Delete, "{\"store\": %u, \"keys\": [3], \"force\": true}", a->store);
    CHECK_EQ(try_pull(b, id, 0, v, sizeof v, NULL, &e), STATUS_NOT_FOUND);
    CHECK_EQ(do_wait(a, WAIT_TICKET, id, 1, 50, &e), WAIT_FAILED);
    uint64_t again = do_init(a, 3, 7.0f, 8);
    CHECK(again != id);
    client_gone(a);
    client_gone(b);
}

STORE_TEST(an_equal_updater_changes_nothing_and_a_swap_keeps_the_slots_of_the_same_name)
{
    struct client *a = client_joined(f, 1, async_);
    struct error e;
    const char *sgd = "{\"store\": %u, \"updater\": {\"type\": \"sgd\", \"learning_rate\": %s, \"momentum\": 0.5}}";
    uint64_t id = do_init(a, 3, 0.0f, 8);
    json_t *j;

    j = try_json(a, WIRE_SetUpdater, &e, sgd, a->store, "1.0");
    CHECK(json_is_true(json_object_get(j, "changed")));
    json_decref(j);
    j = try_json(a, WIRE_SetUpdater, &e, sgd, a->store, "1.0");
    CHECK(json_is_false(json_object_get(j, "changed")));
    json_decref(j);
    do_push(a, id, 1, 1.0f, 8); /* mom -1, w -1 */
    j = try_json(a, WIRE_SetUpdater, &e, sgd, a->store, "2.0");
    json_decref(j);
    do_push(a, id, 2, 1.0f, 8); /* mom -0.5 - 2, w -3.5 */
    fixture_settle(f);
    CHECK_NEAR(do_pull(a, id, 8), -3.5, 0);
    j = try_json(a, WIRE_SetUpdater, &e, "{\"store\": %u, \"updater\": {\"type\": \"sdg\"}}", a->store);
    CHECK(j == NULL);
    CHECK_SAYS(e.text, "sgd");
    client_gone(a);
}

STORE_TEST(deleting_a_store_with_open_rounds_ends_them)
{
    struct client *a = client_joined(f, 1, sync2);
    struct error e;
    uint64_t id = do_init(a, 3, 1.0f, 8);

    do_push(a, id, 1, 2.0f, 8);
    do_json(a, WIRE_DeleteStore, "{\"store\": \"s\"}");
    CHECK(try_json(a, WIRE_GetUpdater, &e, "{\"store\": \"s\"}") == NULL);
    CHECK_EQ(e.reason, REASON_NO_STORE);
    client_join(a, async_);
    do_init(a, 3, 1.0f, 8);
    client_gone(a);
}

/* ---- several devices --------------------------------------------------------------------------------------------- */

enum { CUT = 5 * DMEM_ALIGN + 3 };

static const char adam[] = "{\"store\": %u, \"updater\": {\"type\": \"adam\", \"learning_rate\": 0.1}}";
static const char lamb[] = "{\"store\": %u, \"updater\": {\"type\": \"lamb\", \"learning_rate\": 0.1}}";

/* A few steps on a key that several devices have in parts, or in one piece if that is what the updater needs. */
static void train(struct device *d, const char *updater, float out[CUT])
{
    struct fixture *f = fixture_new(d, 0);
    struct client *c = client_joined(f, 1, async_);
    struct error e;
    float g[CUT];

    do_json(c, WIRE_SetUpdater, updater, c->store);
    uint64_t id = do_init(c, 3, 1.0f, CUT);
    for (uint64_t step = 1; step <= 5; step++) {
        for (size_t i = 0; i < CUT; i++) g[i] = 1.0f / (float)(i + step) - 0.01f;
        CHECK_OK(try_push(c, id, step, g, sizeof g, DTYPE_f32, &e), &e);
        fixture_settle(f);
    }
    CHECK_OK(try_pull(c, id, 0, out, sizeof g, NULL, &e), &e);
    client_gone(c);
    fixture_free(f);
}

TEST(on_several_devices_updates_give_the_bits_of_one)
{
    float one[CUT], more[CUT];

    for (int i = 0; i < 2; i++)
        for (unsigned n = 2; n <= 3; n++) {
            train(device_of_kinds(ON_CPU | ON_SIM, 0), i == 0 ? adam : lamb, one);
            train(device_array_of(n), i == 0 ? adam : lamb, more);
            CHECK(memcmp(one, more, sizeof one) == 0);
        }
}

TEST(an_updater_that_needs_the_whole_is_refused_for_a_key_in_parts_with_the_cure)
{
    struct fixture *f = fixture_new(device_array_of(2), 0);
    struct client *c = client_joined(f, 1, async_);
    struct error e;
    uint64_t id = do_init(c, 3, 1.0f, CUT);

    CHECK(try_json(c, WIRE_SetUpdater, &e, lamb, c->store) == NULL);
    CHECK_EQ(e.reason, REASON_UPDATER_UNFIT);
    CHECK_SAYS(e.text, "key 3");
    CHECK_SAYS(e.text, "delete the key, set the updater and initialise the key again");
    do_push(c, id, 1, 2.0f, CUT);
    fixture_settle(f);
    CHECK_NEAR(do_pull(c, id, CUT), 2, 0);
    do_json(c, WIRE_Delete, "{\"store\": %u, \"keys\": [3]}", c->store);
    do_json(c, WIRE_SetUpdater, lamb, c->store);
    id = do_init(c, 3, 1.0f, CUT);
    do_push(c, id, 1, 2.0f, CUT);
    fixture_settle(f);
    CHECK(do_pull(c, id, CUT) < 1);
    client_gone(c);
    fixture_free(f);
}

TEST(nccl_wants_a_gpu_and_names_what_works_without)
{
    struct device *d = NULL;
    struct error e;

    CHECK_OK(cpu_device_new(1, &d, &e), &e);
    struct fixture *f = fixture_new(d, 0);
    struct client *c = client_new(f, 1);

    CHECK(try_json(c, WIRE_Create, &e, "{\"store\": \"n\", \"type\": \"nccl\"}") == NULL);
    CHECK_EQ(e.reason, REASON_NO_GPU);
    CHECK_EQ(e.status, STATUS_FAILED_PRECONDITION);
    CHECK_SAYS(e.text, "this one has the cpu device; device, dist_sync and dist_async give the same values");
    snprintf(d->card, sizeof d->card, "a GPU");
    do_json(c, WIRE_Create, "{\"store\": \"n\", \"type\": \"nccl\"}");
    client_gone(c);
    fixture_free(f);
}

TEST(words_of_the_device_change_no_result_of_a_store_of_many_workers)
{
    static const char *const types[] = {"dist_device_sync", "dist_sync_device", "dist_sync_nccl", "dist_gpu_sync"};

    for (size_t i = 0; i < sizeof types / sizeof types[0]; i++) {
        struct fixture *f = fixture_new(device_array_of(2), 0);
        char options[80];
        snprintf(options, sizeof options, "\"type\": \"%s\", \"num_workers\": 2", types[i]);
        struct client *a = client_joined(f, 1, options), *b = client_joined(f, 2, sync2);
        uint64_t id = do_init(a, 3, 1.0f, CUT);
        do_push(a, id, 1, 2.0f, CUT);
        do_push(b, id, 1, 3.0f, CUT);
        fixture_settle(f);
        CHECK_NEAR(do_pull(a, id, CUT), 5, 0);
        client_gone(a);
        client_gone(b);
        fixture_free(f);
    }
}

TEST(keys_go_to_the_device_that_holds_least)
{
    struct device *d = device_array_of(3);
    struct fixture *f = fixture_new(d, 0);
    struct client *c = client_joined(f, 1, async_);

    for (int64_t key = 0; key < 6; key++) do_init(c, key, 1.0f, 32);
    fixture_settle(f);
    for (unsigned i = 0; i < 3; i++) CHECK_EQ(array_member(d, i)->bytes_held, 2 * 2 * 32 * 4);
    client_gone(c);
    fixture_free(f);
}

TEST(the_token_is_asked_for_and_nothing_is_answered_without_hello)
{
    struct server_config config = {.device = device_of_kinds(ON_CPU | ON_SIM, 0), .token = "secret"};
    struct fixture f = {.device = config.device, .now_ms = 1};
    struct error e;

    CHECK_OK(server_new(&config, 1, &f.server, &e), &e);
    struct client *c = client_connect(&f, 1);
    CHECK(try_json(c, WIRE_ListStores, &e, "{}") == NULL);
    CHECK_EQ(e.reason, REASON_NO_HELLO);
    CHECK(try_json(c, WIRE_Hello, &e, "{}") == NULL);
    CHECK_EQ(e.reason, REASON_BAD_TOKEN);
    CHECK_SAYS(e.text, "missing");
    CHECK(try_json(c, WIRE_Hello, &e, "{\"token\": \"secreT\"}") == NULL);
    CHECK_SAYS(e.text, "wrong");
    do_json(c, WIRE_Health, "{}");
    do_json(c, WIRE_Hello, "{\"token\": \"secret\"}");
    client_gone(c);
    server_free(f.server);
    device_free(f.device);
}
