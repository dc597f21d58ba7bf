/* What --memory-max bounds, counted exactly, on every device: keys, their states, versions and
 * values on their way. The books (tests/lib/books.h) check after each test, and here after each
 * step, that no more is held than is counted. */
#include "service/account.h"
#include "service/op.h"
#include "tests/lib/books.h"
#include "tests/lib/devices.h"

#include <stdlib.h>
#include <string.h>

enum { COUNT = 5120, SIZE = 4 * COUNT }; /* a key: 20 KiB, which takes the way of large pushes */

static struct error error;

#define ACCOUNT_TEST(name) TEST_ON(ON_CPU | ON_THREADS | ON_LATE | ON_ARRAYS | ON_SIM, name)

static struct core *core_of(struct fixture *f) { return &f->server->core; }

static void set_cap(struct fixture *f, uint64_t bytes)
{
    struct core_limits l = core_of(f)->limits;

    l.memory_max = bytes;
    server_set_limits(f->server, 0, &l);
}

static uint64_t used(struct fixture *f)
{
    const char *wrong = books_wrong(f->server);

    if (wrong != NULL) test_fail(__FILE__, __LINE__, "the books: %s", wrong);
    return account_used(core_of(f)) - PUSH_NOW_SIZE;
}

static enum status init_key(struct client *c, int64_t key, size_t count, uint64_t *id)
{
    float *v = calloc(count, sizeof *v);
    enum init_outcome outcome;
    enum status s = try_init(c, key, v, count, ++c->sequence + 1000, REINIT_KEEP, &outcome, id,
                             &error);

    free(v);
    return s;
}

static enum status set_updater(struct client *c, const char *updater)
{
    json_t *j = try_json(c, WIRE_SetUpdater, &error, "{\"store\": %u, \"updater\": %s}", c->store,
                         updater);

    json_decref(j);
    return j != NULL ? STATUS_OK : error.status;
}

static void push_all(struct client *c, const uint64_t *ids, unsigned count, uint64_t step)
{
    for (unsigned i = 0; i < count; i++) {
        do_push(c, ids[i], step, 1, COUNT);
        fixture_settle(c->fixture);
        used(c->fixture);
    }
}

static const char async_[] = "\"type\": \"dist_async\"";
static const char adam[] = "{\"type\": \"adam\"}", sgd[] = "{\"type\": \"sgd\"}",
                  momentum[] = "{\"type\": \"sgd\", \"momentum\": 0.5}";

ACCOUNT_TEST(a_key_counts_its_value_a_spare_its_state_and_a_kibibyte)
{
    struct client *c = client_joined(f, 1, async_);
    uint64_t id;

    set_cap(f, 1 << 30);
    CHECK_EQ(used(f), 0);
    do_init(c, 1, 0, COUNT);
    CHECK_EQ(used(f), 2 * SIZE + KEY_COST);
    CHECK_OK(set_updater(c, adam), &error);
    CHECK_EQ(used(f), 4 * SIZE + KEY_COST);
    id = do_init(c, 2, 0, COUNT);
    CHECK_EQ(used(f), 2 * (4 * SIZE + KEY_COST));
    push_all(c, &id, 1, 1);
    CHECK_EQ(used(f), 2 * (4 * SIZE + KEY_COST));
    CHECK_OK(set_updater(c, sgd), &error);
    fixture_settle(f);
    push_all(c, &id, 1, 2);
    CHECK_EQ(used(f), 4 * SIZE + KEY_COST + 2 * SIZE +
                          KEY_COST); /* the one that has not stepped still has all */
    do_json(c, WIRE_Delete, "{\"store\": %u, \"keys\": [1, 2]}", c->store);
    fixture_settle(f);
    CHECK_EQ(used(f), 0);
    client_gone(c);
}

ACCOUNT_TEST(the_last_key_that_fits_leaves_room_for_one_push_and_the_next_is_refused_with_the_sum)
{
    enum { FIT = 5 };
    uint64_t each = 2 * SIZE + KEY_COST, cap = PUSH_NOW_SIZE + FIT * each + 2 * SIZE, ids[FIT], id;
    struct client *c = client_joined(f, 1, async_);

    set_cap(f, cap);
    for (unsigned i = 0; i < FIT; i++) CHECK_OK(init_key(c, i, COUNT, &ids[i]), &error);
    CHECK_EQ(init_key(c, FIT, 1, &id), STATUS_RESOURCE_EXHAUSTED);
    CHECK_EQ(error.reason, REASON_LIMIT);
    CHECK_SAYS(error.text, "a new key needs 1032 bytes more");
    CHECK_SAYS(error.text, "delete keys, or raise --memory-max");
    CHECK_EQ(used(f), FIT * each);
    for (uint64_t step = 1; step <= 4; step++) push_all(c, ids, FIT, step);
    CHECK_NEAR(do_pull(c, ids[3], COUNT), 1, 0);
    do_json(c, WIRE_Delete, "{\"store\": %u, \"keys\": [2]}", c->store);
    fixture_settle(f);
    CHECK_OK(init_key(c, 77, COUNT, &id), &error);
    CHECK_EQ(used(f), FIT * each);
    client_gone(c);
}

ACCOUNT_TEST(
    a_swap_to_an_updater_that_needs_more_than_is_left_is_refused_with_the_sum_and_changes_nothing)
{
    enum { KEYS = 6 };
    uint64_t each = 2 * SIZE + KEY_COST, ids[KEYS], version;
    struct client *c = client_joined(f, 1, async_);

    CHECK_OK(set_updater(c, sgd), &error);
    set_cap(f, PUSH_NOW_SIZE + KEYS * (each + SIZE) + 2 * SIZE); /* one slot for each, and a push */
    for (unsigned i = 0; i < KEYS; i++) CHECK_OK(init_key(c, i, COUNT, &ids[i]), &error);
    push_all(c, ids, KEYS, 1);
    CHECK_EQ(set_updater(c, adam), STATUS_RESOURCE_EXHAUSTED);
    CHECK_EQ(error.reason, REASON_LIMIT);
    CHECK_SAYS(error.text, "the state of 6 keys under adam needs 245760 bytes more");
    CHECK_SAYS(error.text, "raise --memory-max");
    CHECK_EQ(used(f), KEYS * each);
    push_all(c, ids, KEYS, 2);
    float v[COUNT];
    CHECK_OK(try_pull(c, ids[0], 0, v, sizeof v, &version, &error), &error);
    CHECK_NEAR(v[0], -0.2, 1e-6); /* still sgd's second step */
    CHECK_OK(set_updater(c, momentum), &error);
    CHECK_EQ(used(f), KEYS * (each + SIZE));
    push_all(c, ids, KEYS, 3);
    CHECK_EQ(used(f), KEYS * (each + SIZE));
    client_gone(c);
}

/* Old and new state of a key are there at once for a moment: one key's room is enough for all of
 * them. */
ACCOUNT_TEST(a_swap_between_updaters_of_equal_needs_takes_one_keys_room_beside)
{
    enum { KEYS = 6 };
    uint64_t each = 4 * SIZE + KEY_COST, ids[KEYS],
             bare = PUSH_NOW_SIZE + KEYS * each + 2 * SIZE + 1024;
    static const char other[] = "{\"type\": \"adadelta\"}";
    struct client *c = client_joined(f, 1, async_);

    CHECK_OK(set_updater(c, adam), &error);
    set_cap(f, bare);
    for (unsigned i = 0; i < KEYS; i++) CHECK_OK(init_key(c, i, COUNT, &ids[i]), &error);
    push_all(c, ids, KEYS, 1);
    CHECK_OK(set_updater(c, "{\"type\": \"adam\", \"learning_rate\": 0.5}"),
             &error); /* keeps its slots */
    CHECK_EQ(used(f), KEYS * each);
    push_all(c, ids, KEYS, 2);
    CHECK_EQ(set_updater(c, other), STATUS_RESOURCE_EXHAUSTED);
    CHECK_SAYS(error.text,
               "adadelta, while a key has its old and its new state, needs 20480 bytes more");
    set_cap(f, bare + SIZE);
    CHECK_OK(set_updater(c, other), &error);
    CHECK_EQ(used(f), KEYS * each + SIZE);
    for (unsigned i = 0; i < KEYS; i++) {
        float v[COUNT] = {0};
        while (try_push(c, ids[i], 3, v, sizeof v, DTYPE_f32, &error) != STATUS_OK)
            fixture_settle(f);
        used(f); /* the late device is behind */
    }
    fixture_settle(f);
    CHECK_EQ(used(f), KEYS * each + SIZE);
    do_json(c, WIRE_ResetStore, "{\"store\": %u}", c->store);
    fixture_settle(f);
    CHECK_EQ(used(f), 0);
    client_gone(c);
}

ACCOUNT_TEST(a_dry_run_is_refused_as_the_swap_is)
{
    struct client *c = client_joined(f, 1, async_);
    uint64_t id;

    set_cap(f, PUSH_NOW_SIZE + 5 * SIZE);
    CHECK_OK(init_key(c, 1, COUNT, &id), &error);
    CHECK(try_json(c, WIRE_SetUpdater, &error,
                   "{\"store\": %u, \"updater\": %s, \"dry_run\": true}", c->store, adam) == NULL);
    CHECK_EQ(error.reason, REASON_LIMIT);
    CHECK(try_json(c, WIRE_UpdaterCheck, &error, "{\"store\": %u, \"updater\": %s}", c->store,
                   adam) == NULL);
    CHECK_EQ(error.reason, REASON_LIMIT);
    do_json(c, WIRE_SetUpdater, "{\"store\": %u, \"updater\": %s, \"dry_run\": true}", c->store,
            sgd);
    CHECK_EQ(used(f), 2 * SIZE + KEY_COST);
    client_gone(c);
}

/* Readers hold all old versions; at the cap a step takes the oldest from them in place of a further
 * buffer. */
ACCOUNT_TEST(further_versions_are_counted_and_never_pass_the_cap)
{
    struct client *c = client_joined(f, 1, async_);

    for (int tight = 0; tight < 2; tight++) {
        uint64_t id = do_init(c, tight, 0, COUNT), before = used(f);
        struct version *held[4];
        struct key *k = store_key_at(store_at(core_of(f), c->store), id);
        set_cap(f, PUSH_NOW_SIZE + before + (tight ? 2 * SIZE : 6 * SIZE));
        for (unsigned i = 0; i < 4; i++) {
            held[i] = version_hold(k->current);
            push_all(c, &id, 1, i + 1);
        }
        CHECK_EQ(used(f), before + (tight ? 0 : 2 * SIZE));
        CHECK_EQ(held[0]->revoked, true);
        CHECK_EQ(held[2]->revoked, tight == 1);
        for (unsigned i = 0; i < 4; i++) version_drop(held[i]);
        CHECK_EQ(used(f), before);
        do_json(c, WIRE_Delete, "{\"store\": %u, \"keys\": [%d]}", c->store, tight);
        fixture_settle(f);
    }
    client_gone(c);
}

ACCOUNT_TEST(values_on_their_way_wait_at_the_cap_and_are_taken_when_it_has_room)
{
    uint64_t each = 2 * SIZE + KEY_COST, ids[4];
    struct client *a = client_joined(f, 1, "\"type\": \"dist_sync\", \"num_workers\": 2"),
                  *b = client_joined(f, 2, "\"type\": \"dist_sync\", \"num_workers\": 2");
    float v[COUNT] = {0};
    unsigned taken = 0;

    set_cap(f, PUSH_NOW_SIZE + 4 * each + 4 * SIZE); /* two rounds: the sum and who is missing */
    for (unsigned i = 0; i < 4; i++) CHECK_OK(init_key(a, i, COUNT, &ids[i]), &error);
    for (unsigned i = 0; i < 4; i++) {
        enum status s = try_push(a, ids[i], 1, v, sizeof v, DTYPE_f32, &error);
        if (s == STATUS_OK)
            taken++;
        else
            CHECK(error.reason == REASON_STAGING_FULL || error.reason == REASON_IN_FLIGHT);
        fixture_settle(f);
        used(f);
    }
    CHECK(taken >= 1 && taken <= 2);
    for (unsigned i = 0; i < taken; i++)
        CHECK_OK(try_push(b, ids[i], 1, v, sizeof v, DTYPE_f32, &error), &error);
    fixture_settle(f);
    CHECK_EQ(used(f), 4 * each);
    for (unsigned i = taken; i < 4; i++) {
        CHECK_OK(try_push(a, ids[i], 1, v, sizeof v, DTYPE_f32, &error), &error);
        CHECK_OK(try_push(b, ids[i], 1, v, sizeof v, DTYPE_f32, &error), &error);
        fixture_settle(f);
    }
    client_gone(a);
    client_gone(b);
}

TEST(the_sum_of_a_round_of_halves_is_counted_before_its_first_push_is_taken)
{
    struct fixture *f = fixture_new(device_of_kinds(ON_CPU, 0), 0);
    struct client *c = client_joined(f, 1, "\"type\": \"dist_sync\", \"num_workers\": 2");
    uint64_t id = do_init(c, 1, 0, COUNT);

    struct key *k = store_key_at(store_at(core_of(f), c->store), id);
    struct staging *s;
    struct key half = *k;
    half.shape.dtype = DTYPE_f16;
    half.shape.size /= 2;
    CHECK_OK(staging_new(core_of(f), STAGING_PUSH, &half, NULL, 1, half.shape.size,
                         (struct mem_place){0}, 0, &s, &error),
             &error);
    CHECK_EQ(core_of(f)->staging_used, SIZE / 2 + SIZE);
    k->holds++; /* half's hold is of a copy */
    staging_free(s);
    k->holds--;
    CHECK_EQ(core_of(f)->staging_used, 0);
    client_gone(c);
    fixture_free(f);
}

/* ---- what is cached
 * ---------------------------------------------------------------------------------------------- */

ACCOUNT_TEST(cached_buffers_are_told_apart_and_go_after_a_rest)
{
    enum { LARGE = 64 << 10 }; /* elements: buffers that are kept */
    struct client *c = client_joined(f, 1, async_);
    uint64_t id = do_init(c, 1, 0, LARGE), trims = core_of(f)->trims;

    float *v = calloc(LARGE, sizeof *v);
    CHECK_OK(try_push(c, id, 1, v, LARGE * 4, DTYPE_f32, &error), &error);
    free(v);
    fixture_settle(f);
    for (int64_t key = 2; key < 6; key++) do_init(c, key, 0, LARGE);
    do_json(c, WIRE_Delete, "{\"store\": %u, \"keys\": [1, 2, 3, 4, 5]}", c->store);
    fixture_settle(f);
    CHECK(core_of(f)->cache_bytes > 0);
    CHECK(core_mem_cached(core_of(f)) >= core_of(f)->cache_bytes);
    CHECK_EQ(used(f), 0);
    fixture_advance(f, 9000);
    CHECK(core_of(f)->cache_bytes > 0);
    fixture_advance(f, 2000);
    CHECK_EQ(core_of(f)->cache_bytes, 0);
    fixture_advance(f, 11000);
    CHECK_EQ(core_of(f)->trims, trims + 1);
    CHECK_EQ(device_cached(f->device) >> 20, 0); /* of a GPU what stays lies in chunks in use */
    for (int i = 0; i < 5; i++) fixture_advance(f, 11000);
    CHECK_EQ(core_of(f)->trims, trims + 1);
    client_gone(c);
}

ACCOUNT_TEST(at_the_cap_cached_buffers_make_room)
{
    enum { LARGE = 64 << 10 };
    struct client *c = client_joined(f, 1, async_);
    uint64_t id, each = 2 * 4 * LARGE + KEY_COST;

    set_cap(f, PUSH_NOW_SIZE + 2 * each + 2 * 4 * LARGE);
    for (int round = 0; round < 3; round++) {
        /* Of other sizes than those before, so that no cached buffer fits. */
        for (int64_t key = 0; key < 2; key++)
            CHECK_OK(init_key(c, key, LARGE - 100 * (size_t)round, &id), &error);
        CHECK(f->device->bytes_held <= core_of(f)->limits.memory_max);
        used(f);
        do_json(c, WIRE_Delete, "{\"store\": %u, \"keys\": [0, 1]}", c->store);
        fixture_settle(f);
    }
    client_gone(c);
}
