/* The plane of a store, over the protocol: who is on it, how a call counts, and what breaks it. The server is on card 0
 * of the stand-in for CUDA, trainers on cards 1 and 2, their groups by the stand-in for NCCL: all in one thread, but for
 * the devices' own. Sums are of whole numbers, so that they are exact in any order. */
#include "gpu/group_nccl.h"
#include "service/base/clock.h"
#include "tests/lib/books.h"
#include "tests/lib/direct.h"
#include "tests/lib/sim_device.h"
#include "tests/lib/test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { RANKS = 2, KEYS = 2, SIZE_MOST = 700, BOUND_MS = 20000 };
static const size_t counts[KEYS] = {SIZE_MOST, 5};

/* Time that passes while something is awaited shall break nothing. */
static const char patient[] = "\"type\": \"dist_sync\", \"num_workers\": 2, \"round_timeout\": 500000, "
                              "\"worker_timeout\": 600000";
static const char strict[] = "\"type\": \"dist_sync\", \"num_workers\": 2, \"round_timeout\": 30, \"worker_timeout\": 600000";

struct trainer {
    struct client *client;
    struct device *device;
    struct queue *queue;
    struct group *group;             /* NULL: in none */
    struct dmem gradients[KEYS], values[KEYS];
    uint64_t mark;
};

struct plane_test {
    struct fixture *f;
    struct nccl nccl;
    struct trainer trainers[RANKS];
    uint64_t keys[KEYS];
    uint64_t epoch, call, step;
};

/* ---- set-up ------------------------------------------------------------------------------------------------------ */

static float gradient(unsigned rank, size_t key, size_t i, uint64_t step)
{
    return (float)((i * 3 + rank * 17 + key * 5 + step) % 64);
}

static void trainer_open(struct plane_test *t, unsigned rank, struct device *card)
{
    struct trainer *r = &t->trainers[rank];
    struct error e;

    r->client = client_new(t->f, rank + 1);
    r->device = card;
    CHECK_OK(device_queue_new(r->device, &r->queue, &e), &e);
    for (size_t k = 0; k < KEYS; k++) {
        CHECK_OK(device_mem_new(r->device, counts[k] * sizeof(float), &r->gradients[k], &e), &e);
        CHECK_OK(device_mem_new(r->device, counts[k] * sizeof(float), &r->values[k], &e), &e);
    }
}

static void open_test(struct plane_test *t, unsigned seed, const char *options)
{
    struct device *cards[RANKS + 1];
    struct error e;

    if (!sim_present() || sim_replaced()) test_skip("it needs CUDA's headers: packages cuda-cudart-dev-13-0 cuda-crt-13-0, see README.md");
    *t = (struct plane_test){.step = 1};
    sim_nccl(true);
    CHECK_OK(sim_cards_new(seed, RANKS + 1, cards, &e), &e);
    t->f = fixture_new(cards[0], 0);
    CHECK_OK(nccl_open(&t->nccl, &e), &e);
    for (unsigned r = 0; r < RANKS; r++) trainer_open(t, r, cards[r + 1]);
    for (unsigned r = 0; r < RANKS; r++) client_join(t->trainers[r].client, options);
    do_json(t->trainers[0].client, WIRE_SetUpdater, "{\"store\": \"s\", \"updater\": {\"type\": \"sgd\", "
            "\"learning_rate\": 0.5, \"momentum\": 0.5}}");
    for (size_t k = 0; k < KEYS; k++) t->keys[k] = do_init(t->trainers[0].client, (int64_t)k, 1, counts[k]);
}

static void leave_group(struct trainer *r)
{
    if (r->group == NULL) return;
    group_abort(r->group, "this rank leaves");
    group_leave(r->group);
    r->group = NULL;
}

static void trainer_close(struct trainer *r)
{
    leave_group(r);
    device_queue_free(r->queue);
    for (size_t k = 0; k < KEYS; k++) {
        device_mem_free(&r->gradients[k]);
        device_mem_free(&r->values[k]);
    }
    device_free(r->device);
    if (r->client != NULL) client_gone(r->client);
}

static void close_test(struct plane_test *t)
{
    const char *wrong = books_wrong(t->f->server);

    if (wrong != NULL) test_fail(__FILE__, __LINE__, "%s", wrong);
    for (unsigned r = 0; r < RANKS; r++) trainer_close(&t->trainers[r]);
    fixture_free(t->f);
    if (sim_remains() != NULL) test_fail(__FILE__, __LINE__, "%s", sim_remains());
}

/* ---- moving ------------------------------------------------------------------------------------------------------ */

static void move(struct plane_test *t)
{
    server_poll(t->f->server);
    fixture_advance(t->f, PLANE_LOOK_MS);
    for (unsigned r = 0; r < RANKS; r++)
        if (t->trainers[r].group != NULL) (void)group_look(t->trainers[r].group, 0);
    nanosleep(&(struct timespec){.tv_nsec = 50000}, NULL);
}

static bool all_are(const struct plane_test *t, enum group_state state)
{
    for (unsigned r = 0; r < RANKS; r++)
        if (t->trainers[r].group != NULL && t->trainers[r].group->state != state) return false;
    return true;
}

static json_t *look(struct client *c)
{
    struct error e;
    json_t *j = try_json(c, WIRE_Plane, &e, "{\"store\": \"s\"}");

    if (j == NULL) test_fail(__FILE__, __LINE__, "Plane: %s", e.text);
    return j;
}

static bool is_state(struct plane_test *t, const char *state)
{
    json_t *j = look(t->trainers[0].client);
    bool is = strcmp(json_string_value(json_object_get(j, "state")), state) == 0;

    json_decref(j);
    return is;
}

/* Until the group is in that state at every rank, and at the daemon. */
static void move_until(struct plane_test *t, enum group_state state, const char *word)
{
    for (uint64_t end = clock_ms() + BOUND_MS; !all_are(t, state) || !is_state(t, word);) {
        if (clock_ms() > end) test_fail(__FILE__, __LINE__, "the group does not become %s", word);
        move(t);
    }
}

/* ---- joining ----------------------------------------------------------------------------------------------------- */

static void ask(struct plane_test *t, unsigned rank)
{
    struct error e;
    json_t *j = try_json(t->trainers[rank].client, WIRE_PlaneJoin, &e, "{\"store\": \"s\"}");

    if (j == NULL) test_fail(__FILE__, __LINE__, "PlaneJoin: %s", e.text);
    t->epoch = (uint64_t)json_integer_value(json_object_get(j, "epoch"));
    t->call = 0;
    json_decref(j);
}

static void begin_group(struct plane_test *t, unsigned rank)
{
    struct trainer *r = &t->trainers[rank];
    struct nccl_group w = {.nccl = &t->nccl, .count = 1, .queues = &r->queue, .join_by_ms = UINT64_MAX};
    json_t *j = look(r->client);
    const char *id = json_string_value(json_object_get(j, "id"));
    struct error e;

    CHECK(id != NULL);
    CHECK_EQ(strlen(id), 2 * sizeof w.id.bytes);
    for (size_t i = 0; i < sizeof w.id.bytes; i++) {
        unsigned byte = 0;
        CHECK_EQ(sscanf(id + 2 * i, "%2x", &byte), 1);
        w.id.bytes[i] = (char)byte;
    }
    w.ranks = (unsigned)json_integer_value(json_object_get(j, "ranks"));
    w.first = (unsigned)json_integer_value(json_object_get(j, "rank"));
    CHECK_EQ(w.ranks, RANKS + 1);
    CHECK_EQ(w.first, rank + 1);
    json_decref(j);
    CHECK_OK(group_nccl_new(&w, &r->group, &e), &e);
}

static void join_all(struct plane_test *t)
{
    struct error e;

    for (unsigned r = 0; r < RANKS; r++) ask(t, r);
    for (unsigned r = 0; r < RANKS; r++) {
        CHECK_EQ(do_wait(t->trainers[r].client, WAIT_PLANE, t->epoch, 0, 1, &e), WAIT_DONE);
        begin_group(t, r);
    }
    move_until(t, GROUP_READY, "ready");
}

/* ---- calls ------------------------------------------------------------------------------------------------------- */

static enum status announce(struct plane_test *t, unsigned rank, bool pulls, const uint64_t keys[KEYS], struct error *e)
{
    json_t *j = try_json(t->trainers[rank].client, WIRE_PlaneCall, e, "{\"store\": \"s\", \"epoch\": %llu, \"call\": %llu, "
                         "\"pull\": %s, \"keys\": [[%llu, %llu], [%llu, %llu]]}", (unsigned long long)t->epoch,
                         (unsigned long long)t->call, pulls ? "true" : "false", (unsigned long long)keys[0],
                         (unsigned long long)t->step, (unsigned long long)keys[1], (unsigned long long)t->step);

    json_decref(j);
    return j != NULL ? STATUS_OK : e->status;
}

static void announce_all(struct plane_test *t, bool pulls)
{
    struct error e;

    t->call++;
    for (unsigned r = 0; r < RANKS; r++) CHECK_OK(announce(t, r, pulls, t->keys, &e), &e);
    for (unsigned r = 0; r < RANKS; r++)
        CHECK_EQ(do_wait(t->trainers[r].client, WAIT_PLANE, t->epoch, t->call, 1, &e), WAIT_DONE);
}

static void settle(struct trainer *r)
{
    CHECK_EQ(device_record(r->queue, &r->mark), STATUS_OK);
    CHECK_EQ(device_wait(r->queue, r->mark), STATUS_OK);
}

static void upload(struct plane_test *t, unsigned rank)
{
    struct trainer *r = &t->trainers[rank];
    float host[KEYS][SIZE_MOST];

    for (size_t k = 0; k < KEYS; k++) {
        for (size_t i = 0; i < counts[k]; i++) host[k][i] = gradient(rank, k, i, t->step);
        CHECK_EQ(device_upload(r->queue, r->gradients[k], 0, host[k], counts[k] * sizeof(float)), STATUS_OK);
    }
    settle(r);
}

static void give(struct plane_test *t, unsigned rank, enum group_kind kind)
{
    struct trainer *r = &t->trainers[rank];

    if (kind == GROUP_REDUCE) upload(t, rank);
    for (size_t k = 0; k < KEYS; k++) {
        struct group_call c = {.kind = kind, .type = DTYPE_f32, .count = counts[k]};
        struct group_piece p = {.queue = r->queue};
        *(kind == GROUP_REDUCE ? &p.from : &p.to) = kind == GROUP_REDUCE ? r->gradients[k] : r->values[k];
        CHECK_EQ(group_give(r->group, &c, &p), STATUS_OK);
    }
    CHECK_EQ(device_record(r->queue, &r->mark), STATUS_OK);
}

static bool marks_passed(struct plane_test *t)
{
    for (unsigned r = 0; r < RANKS; r++) {
        uint64_t at = 0;
        CHECK_EQ(device_passed(t->trainers[r].queue, &at), STATUS_OK);
        if (at < t->trainers[r].mark) return false;
    }
    return true;
}

static uint64_t counted(struct plane_test *t)
{
    json_t *j = look(t->trainers[0].client);
    uint64_t n = (uint64_t)json_integer_value(json_object_get(j, "counted"));

    json_decref(j);
    return n;
}

static void move_until_counted(struct plane_test *t)
{
    for (uint64_t end = clock_ms() + BOUND_MS; !marks_passed(t) || counted(t) < t->call;) {
        if (clock_ms() > end) test_fail(__FILE__, __LINE__, "call %llu does not count", (unsigned long long)t->call);
        move(t);
    }
    CHECK(all_are(t, GROUP_READY));
}

/* A whole call of all ranks, which ends their step. */
static void call_all(struct plane_test *t, bool pulls)
{
    announce_all(t, pulls);
    for (unsigned r = 0; r < RANKS; r++) {
        give(t, r, GROUP_REDUCE);
        if (pulls) give(t, r, GROUP_BROADCAST);
    }
    move_until_counted(t);
    t->step++;
}

/* ---- what should be ---------------------------------------------------------------------------------------------- */

/* sgd as the daemon has it, after `steps` rounds of these gradients. */
static float expected(size_t key, size_t i, uint64_t steps)
{
    float w = 1, m = 0;

    for (uint64_t s = 1; s <= steps; s++) {
        m = 0.5f * m + (gradient(0, key, i, s) + gradient(1, key, i, s));
        w -= 0.5f * m;
    }
    return w;
}

static void check_values(struct plane_test *t, uint64_t steps)
{
    float host[SIZE_MOST];
    uint64_t version = 0;
    struct error e;

    fixture_settle(t->f);
    for (size_t k = 0; k < KEYS; k++) {
        CHECK_OK(try_pull(t->trainers[0].client, t->keys[k], 0, host, counts[k] * sizeof(float), &version, &e), &e);
        CHECK_EQ(version, steps + 1); /* the updater ran once a round */
        for (size_t i = 0; i < counts[k]; i++) CHECK_NEAR(host[i], expected(k, i, steps), 0);
    }
}

static void check_outputs(struct plane_test *t, unsigned rank, uint64_t steps)
{
    struct trainer *r = &t->trainers[rank];
    float host[SIZE_MOST];

    for (size_t k = 0; k < KEYS; k++) {
        CHECK_EQ(device_download(r->queue, host, r->values[k], 0, counts[k] * sizeof(float)), STATUS_OK);
        settle(r);
        for (size_t i = 0; i < counts[k]; i++) CHECK_NEAR(host[i], expected(k, i, steps), 0);
    }
}

/* The same step by ordinary pushes. */
static void push_ordinarily(struct plane_test *t)
{
    float host[SIZE_MOST];
    struct error e;

    for (size_t k = 0; k < KEYS; k++)
        for (unsigned r = 0; r < RANKS; r++) {
            for (size_t i = 0; i < counts[k]; i++) host[i] = gradient(r, k, i, t->step);
            CHECK_OK(try_push(t->trainers[r].client, t->keys[k], t->step, host, counts[k] * sizeof(float), DTYPE_f32, &e),
                     &e);
        }
    t->step++;
}

/* Everybody is told, with these words; nothing counts; and then both ways work. */
static void check_broken(struct plane_test *t, const char *words, uint64_t steps)
{
    struct error e;

    for (unsigned r = 0; r < RANKS; r++) {
        CHECK_EQ(do_wait(t->trainers[r].client, WAIT_PLANE, t->epoch, t->call + 1, 1, &e), WAIT_FAILED);
        CHECK_EQ(e.reason, REASON_PLANE_BROKEN);
        CHECK_SAYS(e.text, words);
    }
    move_until(t, GROUP_BROKEN, "broken");
    for (unsigned r = 0; r < RANKS; r++) leave_group(&t->trainers[r]);
    check_values(t, steps);
    push_ordinarily(t);
    check_values(t, steps + 1);
    join_all(t);
    call_all(t, true);
    check_values(t, steps + 2);
}

/* ---- tests ------------------------------------------------------------------------------------------------------- */

TEST(a_call_counts_as_one_push_of_every_worker_and_brings_the_new_values)
{
    struct plane_test t;

    for (unsigned seed = 0; seed < 2 * SIM_SEEDS; seed++) {
        open_test(&t, seed, patient);
        join_all(&t);
        for (uint64_t step = 1; step <= 3; step++) {
            call_all(&t, true);
            check_values(&t, step);
            for (unsigned r = 0; r < RANKS; r++) check_outputs(&t, r, step);
        }
        push_ordinarily(&t);
        call_all(&t, false);
        check_values(&t, 5);
        close_test(&t);
    }
}

TEST(a_push_on_the_plane_is_a_ticket_like_any_other)
{
    struct plane_test t;
    struct error e;

    open_test(&t, 1, patient);
    join_all(&t);
    call_all(&t, false);
    for (unsigned r = 0; r < RANKS; r++) {
        CHECK_EQ(do_wait(t.trainers[r].client, WAIT_COUNTED, t.epoch, 1, 1, &e), WAIT_DONE);
        CHECK_EQ(do_wait(t.trainers[r].client, WAIT_TICKET, t.keys[0], 1, 1, &e), WAIT_DONE);
    }
    CHECK_EQ(do_wait(t.trainers[0].client, WAIT_COUNTED, t.epoch, 2, 1, &e), WAIT_PENDING);
    close_test(&t);
}

TEST(who_does_not_ask_to_join_is_named_after_the_deadline_and_the_next_epoch_works)
{
    struct plane_test t;
    struct error e;

    open_test(&t, 1, strict);
    ask(&t, 0);
    CHECK_EQ(do_wait(t.trainers[0].client, WAIT_PLANE, t.epoch, 0, 1, &e), WAIT_PENDING);
    CHECK_SAYS(e.text, "waiting for worker 'w1' (rank 1)");
    fixture_advance(t.f, 29000);
    CHECK_EQ(do_wait(t.trainers[0].client, WAIT_PLANE, t.epoch, 0, 1, &e), WAIT_PENDING);
    fixture_advance(t.f, 1000);
    CHECK_EQ(do_wait(t.trainers[0].client, WAIT_PLANE, t.epoch, 0, 1, &e), WAIT_FAILED);
    CHECK_EQ(e.reason, REASON_PLANE_BROKEN);
    CHECK_SAYS(e.text, "worker 'w1' (rank 1)");
    CHECK_SAYS(e.text, "30.0 s");
    for (unsigned r = 0; r < RANKS; r++) ask(&t, r);
    CHECK_EQ(t.epoch, 2);
    CHECK_EQ(do_wait(t.trainers[1].client, WAIT_PLANE, t.epoch, 0, 1, &e), WAIT_DONE);
    close_test(&t);
}

TEST(who_does_not_fetch_the_id_is_named_after_the_deadline)
{
    struct plane_test t;
    struct error e;

    open_test(&t, 2, strict);
    for (unsigned r = 0; r < RANKS; r++) ask(&t, r);
    begin_group(&t, 0);
    fixture_advance(t.f, 30000);
    CHECK_EQ(do_wait(t.trainers[0].client, WAIT_PLANE, t.epoch, 1, 1, &e), WAIT_FAILED);
    CHECK_SAYS(e.text, "worker 'w1' (rank 1)");
    close_test(&t);
}

TEST(who_does_not_announce_a_call_is_named_after_the_deadline)
{
    struct plane_test t;
    struct error e;

    open_test(&t, 1, patient);
    join_all(&t);
    t.call++;
    CHECK_OK(announce(&t, 0, true, t.keys, &e), &e);
    CHECK_EQ(do_wait(t.trainers[0].client, WAIT_PLANE, t.epoch, t.call, 1, &e), WAIT_PENDING);
    CHECK_SAYS(e.text, "waiting for worker 'w1' (rank 1)");
    fixture_advance(t.f, 500000000);
    CHECK_EQ(do_wait(t.trainers[0].client, WAIT_PLANE, t.epoch, t.call, 1, &e), WAIT_FAILED);
    CHECK_SAYS(e.text, "worker 'w1' (rank 1)");
    close_test(&t);
}

TEST(a_trainer_that_is_gone_within_a_collective_breaks_the_epoch_and_nothing_counts)
{
    struct plane_test t;

    for (unsigned seed = 0; seed < SIM_SEEDS; seed++) {
        open_test(&t, seed, patient);
        join_all(&t);
        call_all(&t, true);
        announce_all(&t, true);
        give(&t, 0, GROUP_REDUCE);
        for (int i = 0; i < 20; i++) move(&t);
        CHECK_EQ(counted(&t), 1);
        struct client kept = *t.trainers[1].client;
        client_gone(t.trainers[1].client);
        t.trainers[1].client = client_again(&kept);
        check_broken(&t, "worker 'w1' (rank 1) has lost its last connection", 1);
        close_test(&t);
    }
}

TEST(a_dead_worker_breaks_the_epoch_and_is_named)
{
    struct plane_test t;
    struct error e;

    open_test(&t, 1, "\"type\": \"dist_sync\", \"num_workers\": 2, \"round_timeout\": 600000, \"worker_timeout\": 100000");
    join_all(&t);
    announce_all(&t, false);
    give(&t, 0, GROUP_REDUCE);
    fixture_advance(t.f, 60000000);
    do_json(t.trainers[0].client, WIRE_Heartbeat, "{}");
    fixture_advance(t.f, 60000000);
    CHECK_EQ(do_wait(t.trainers[0].client, WAIT_PLANE, t.epoch, 2, 1, &e), WAIT_FAILED);
    CHECK_SAYS(e.text, "worker 'w1' (rank 1) is dead: no sign of life for");
    check_values(&t, 0);
    close_test(&t);
}

TEST(ranks_that_call_different_things_break_the_epoch_and_are_told_the_difference)
{
    uint64_t other[KEYS];
    struct plane_test t;
    struct error e;

    open_test(&t, 1, patient);
    join_all(&t);
    other[0] = t.keys[1], other[1] = t.keys[0];
    t.call++;
    CHECK_OK(announce(&t, 0, true, t.keys, &e), &e);
    CHECK_EQ(announce(&t, 1, true, other, &e), STATUS_ABORTED);
    CHECK_SAYS(e.text, "worker 'w1' (rank 1) announces push 1 of key id");
    check_broken(&t, "at place 1 of call 1", 0);
    t.call++;
    CHECK_OK(announce(&t, 0, true, t.keys, &e), &e);
    CHECK_EQ(announce(&t, 1, false, t.keys, &e), STATUS_ABORTED);
    CHECK_SAYS(e.text, "worker 'w1' (rank 1) pushes as call 2, the others push and pull");
    close_test(&t);
}

TEST(an_end_between_the_sum_and_the_values_counts_once)
{
    struct plane_test t;
    struct error e;

    open_test(&t, 1, patient);
    join_all(&t);
    announce_all(&t, true);
    for (unsigned r = 0; r < RANKS; r++) give(&t, r, GROUP_REDUCE);
    move_until_counted(&t);
    json_t *j = try_json(t.trainers[1].client, WIRE_PlaneLeave, &e, "{\"store\": \"s\", \"epoch\": %llu, \"why\": \"tired\"}",
                         (unsigned long long)t.epoch);
    CHECK_EQ(json_integer_value(json_object_get(j, "counted")), 1);
    json_decref(j);
    t.step++;
    for (unsigned r = 0; r < RANKS; r++) {
        CHECK_EQ(do_wait(t.trainers[r].client, WAIT_COUNTED, t.epoch, 1, 1, &e), WAIT_DONE);
        CHECK_EQ(do_wait(t.trainers[r].client, WAIT_TICKET, t.keys[1], 1, 1, &e), WAIT_DONE);
    }
    check_broken(&t, "worker 'w1' (rank 1) reports: tired", 1);
    close_test(&t);
}

TEST(what_nccl_tells_later_breaks_the_epoch)
{
    struct plane_test t;

    open_test(&t, 1, patient);
    join_all(&t);
    announce_all(&t, true);
    give(&t, 0, GROUP_REDUCE);
    group_abort(t.trainers[1].group, "its program ended");
    move_until(&t, GROUP_BROKEN, "broken");
    check_broken(&t, "NCCL: ", 0);
    close_test(&t);
}

TEST(a_key_in_a_call_is_not_pushed_the_ordinary_way_and_one_in_a_round_not_on_the_plane)
{
    struct plane_test t;
    struct error e;
    float host[SIZE_MOST] = {0};

    open_test(&t, 1, patient);
    join_all(&t);
    t.call++;
    CHECK_EQ(try_push(t.trainers[1].client, t.keys[1], 1, host, counts[1] * sizeof(float), DTYPE_f32, &e), STATUS_OK);
    CHECK_EQ(announce(&t, 0, true, t.keys, &e), STATUS_FAILED_PRECONDITION);
    CHECK_EQ(e.reason, REASON_ROUND_OPEN);
    CHECK_EQ(try_push(t.trainers[0].client, t.keys[1], 1, host, counts[1] * sizeof(float), DTYPE_f32, &e), STATUS_OK);
    CHECK(is_state(&t, "ready"));
    CHECK_EQ(announce(&t, 0, true, t.keys, &e), STATUS_ABORTED); /* the second key is at step 2 by now */
    CHECK_EQ(e.reason, REASON_STEP_ORDER);
    json_t *j = try_json(t.trainers[0].client, WIRE_PlaneCall, &e, "{\"store\": \"s\", \"epoch\": %llu, \"call\": 1, \"keys\": "
                         "[[%llu, 1]]}", (unsigned long long)t.epoch, (unsigned long long)t.keys[0]);
    CHECK(j != NULL);
    json_decref(j);
    CHECK_EQ(try_push(t.trainers[1].client, t.keys[0], 1, host, counts[0] * sizeof(float), DTYPE_f32, &e),
             STATUS_FAILED_PRECONDITION);
    CHECK_EQ(e.reason, REASON_PLANE_BUSY);
    close_test(&t);
}

TEST(a_frozen_key_is_not_pushed_on_the_plane)
{
    static const char freeze[] = "{\"store\": \"s\", \"updater\": {\"type\": \"assign\", \"overrides\": ["
                                 "{\"match\": \"*\", \"frozen\": %s}]}}";
    struct plane_test t;
    struct error e;

    open_test(&t, 1, patient);
    join_all(&t);
    t.call++;
    do_json(t.trainers[0].client, WIRE_SetUpdater, freeze, "true");
    for (unsigned rank = 0; rank < 2; rank++) {
        CHECK_EQ(announce(&t, rank, true, t.keys, &e), STATUS_FAILED_PRECONDITION);
        CHECK_EQ(e.reason, REASON_KEY_FROZEN);
        CHECK(is_state(&t, "ready"));
    }
    do_json(t.trainers[0].client, WIRE_SetUpdater, freeze, "false");
    CHECK_EQ(announce(&t, 0, true, t.keys, &e), STATUS_OK);
    close_test(&t);
}

TEST(a_key_that_is_deleted_breaks_the_call_it_is_in)
{
    struct plane_test t;
    struct error e;

    open_test(&t, 1, patient);
    join_all(&t);
    announce_all(&t, true);
    json_t *j = try_json(t.trainers[0].client, WIRE_Delete, &e, "{\"store\": \"s\", \"keys\": [1]}");
    CHECK(j == NULL);
    CHECK_EQ(e.reason, REASON_PLANE_BUSY);
    do_json(t.trainers[0].client, WIRE_Delete, "{\"store\": \"s\", \"keys\": [1], \"force\": true}");
    CHECK_EQ(do_wait(t.trainers[1].client, WAIT_PLANE, t.epoch, 2, 1, &e), WAIT_FAILED);
    CHECK_SAYS(e.text, "key 1 was deleted");
    close_test(&t);
}

TEST(who_comes_to_the_store_or_leaves_it_breaks_the_epoch)
{
    struct plane_test t;
    struct error e;

    open_test(&t, 1, "\"type\": \"dist_sync\", \"elastic\": true, \"round_timeout\": 600000, \"worker_timeout\": 600000");
    join_all(&t);
    struct client *third = client_new(t.f, 3);
    client_join(third, "\"type\": \"dist_sync\"");
    CHECK_EQ(do_wait(t.trainers[0].client, WAIT_PLANE, t.epoch, 1, 1, &e), WAIT_FAILED);
    CHECK_SAYS(e.text, "worker 'w2' (rank 2) has joined the store");
    for (unsigned r = 0; r < RANKS; r++) leave_group(&t.trainers[r]);
    do_json(third, WIRE_Leave, "{\"store\": \"s\"}");
    client_gone(third);
    join_all(&t);
    do_json(t.trainers[1].client, WIRE_Leave, "{\"store\": \"s\"}");
    CHECK_EQ(do_wait(t.trainers[0].client, WAIT_PLANE, t.epoch, 1, 1, &e), WAIT_FAILED);
    CHECK_SAYS(e.text, "worker 'w1' (rank 1) has left the store");
    close_test(&t);
}

/* ---- refusals ---------------------------------------------------------------------------------------------------- */

static void check_refused(struct fixture *f, const char *options, enum reason reason, const char *words)
{
    struct client *c = client_new(f, 1);
    struct error e;

    client_join(c, options);
    CHECK(try_json(c, WIRE_PlaneJoin, &e, "{\"store\": \"s\"}") == NULL);
    CHECK_EQ(e.reason, reason);
    CHECK_SAYS(e.text, words);
    client_gone(c);
}

TEST(a_store_without_a_gpu_has_no_plane)
{
    struct device *d;
    struct error e;

    CHECK_OK(cpu_device_new(1, &d, &e), &e);
    struct fixture *f = fixture_new(d, 0);
    check_refused(f, "\"type\": \"dist_sync\", \"num_workers\": 1", REASON_NO_GPU, "this one has the cpu device");
    fixture_free(f);
}

TEST(an_async_store_has_no_plane)
{
    struct device *d;
    struct error e;

    CHECK_OK(cpu_device_new(1, &d, &e), &e);
    struct fixture *f = fixture_new(d, 0);
    check_refused(f, "\"type\": \"dist_async\"", REASON_NO_PLANE, "a plane is for a daemon's stores of type dist_sync");
    fixture_free(f);
}

TEST(without_nccl_there_is_no_plane)
{
    struct device *d;
    struct error e;

    if (!sim_present() || sim_replaced()) test_skip("it needs CUDA's headers: packages cuda-cudart-dev-13-0 cuda-crt-13-0, see README.md");
    CHECK_OK(sim_cards_new(1, 1, &d, &e), &e);
    sim_nccl(false);
    struct fixture *f = fixture_new(d, 0);
    check_refused(f, "\"type\": \"dist_sync\", \"num_workers\": 1", REASON_UNIMPLEMENTED, "NCCL is not here");
    fixture_free(f);
}
