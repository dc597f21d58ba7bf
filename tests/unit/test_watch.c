/* Statistics of keys for who looks, over the protocol, on each device. The numbers are computed here by themselves. */
#include "tests/lib/devices.h"

#include "service/base/mem.h"
#include "service/op.h"
#include "service/watch.h"

#include <math.h>
#include <string.h>

static const char sync2[] = "\"type\": \"dist_sync\", \"num_workers\": 2";
static const char async_[] = "\"type\": \"dist_async\"";

#define WATCH_TEST(name) TEST_ON(ON_CPU | ON_THREADS | ON_LATE, name)

static json_t *look(struct client *c, int key)
{
    struct error e;
    json_t *j = try_json(c, WIRE_KeyStats, &e, "{\"store\": %u, \"key\": %d}", c->store, key);

    if (j == NULL) test_fail(__FILE__, __LINE__, "%s", e.text);
    return j;
}

static double at(const json_t *j, const char *part, const char *name)
{
    const json_t *v = json_object_get(part != NULL ? json_object_get(j, part) : j, name);

    if (!json_is_number(v)) test_fail(__FILE__, __LINE__, "%s of %s is no number", name, part != NULL ? part : "it");
    return json_number_value(v);
}

static bool is_null(const json_t *j, const char *name) { return json_is_null(json_object_get(j, name)); }

static struct key *key_of(struct fixture *f, struct client *c, uint64_t id)
{
    return store_key_at(store_at(&f->server->core, c->store), id);
}

enum { COUNT = 30000 };              /* not small: its measuring takes turns */
static float a_[COUNT], b_[COUNT], w_[COUNT];

static void fill(float *v, uint64_t seed)
{
    for (size_t i = 0; i < COUNT; i++) v[i] = (float)((double)(int64_t)rng_next(&seed) * 0x1p-63);
}

static double norm_of(const float *a, const float *minus)
{
    long double sum = 0;
    for (size_t i = 0; i < COUNT; i++) {
        double x = (double)a[i] - (minus != NULL ? (double)minus[i] : 0);
        sum += (long double)x * x;
    }
    return sqrt((double)sum);
}

static uint64_t init(struct client *c, const float *value)
{
    uint64_t id = 0;
    struct error e;

    CHECK_OK(try_init(c, 3, value, COUNT, 7, 0, NULL, &id, &e), &e);
    return id;
}

static void push(struct client *c, uint64_t id, uint64_t step, const float *g)
{
    struct error e;
    CHECK_OK(try_push(c, id, step, g, COUNT * 4, DTYPE_f32, &e), &e);
}

WATCH_TEST(the_first_look_tells_the_value_and_the_next_step_the_rest)
{
    struct client *a = client_joined(f, 1, sync2), *b = client_joined(f, 2, sync2);
    static float to[COUNT], sum[COUNT];
    struct error e;

    fill(a_, 1), fill(b_, 2), fill(w_, 3);
    a_[17] = -INFINITY;
    b_[4] = NAN;
    uint64_t id = init(a, w_);
    do_json(a, WIRE_SetUpdater, "{\"store\": %u, \"updater\": {\"type\": \"sgd\", \"learning_rate\": 0.5}}", a->store);
    json_t *j = look(a, 3);
    CHECK_NEAR(at(j, "value", "norm"), norm_of(w_, NULL), 1e-9);
    CHECK_EQ(at(j, "value", "count"), COUNT);
    CHECK_EQ(at(j, "value", "version"), 1);
    CHECK(is_null(j, "gradient") && is_null(j, "update") && is_null(j, "update_ratio") && is_null(j, "contributors"));
    json_decref(j);
    push(a, id, 1, a_);
    push(b, id, 1, b_);
    fixture_settle(f);
    CHECK_OK(try_pull(a, id, 0, to, sizeof to, NULL, &e), &e);
    j = look(a, 3);
    CHECK_EQ(at(j, NULL, "version"), 2);
    CHECK_EQ(at(j, NULL, "contributors"), 2);
    CHECK_EQ(at(j, "gradient", "version"), 2);
    CHECK_EQ(at(j, "gradient", "nans"), 1);
    CHECK_EQ(at(j, "gradient", "infinities"), 1);
    for (size_t i = 0; i < COUNT; i++) sum[i] = a_[i] + b_[i];
    sum[4] = sum[17] = 0;
    CHECK_NEAR(at(j, "gradient", "norm"), norm_of(sum, NULL), 1e-9);
    to[4] = w_[4], to[17] = w_[17];
    CHECK_NEAR(at(j, "update", "norm"), norm_of(to, w_), 1e-9);
    double update = at(j, "update", "norm"), value = at(j, "value", "norm");
    CHECK_NEAR(at(j, NULL, "update_ratio"), update / value, 1e-12);
    CHECK_EQ(at(j, "value", "version"), 2);
    json_decref(j);
    client_gone(a);
    client_gone(b);
}

/* Sums in an order of their own would show in the last bits. */
static void steps_with(struct fixture *f, bool watched, const char *options, float out[COUNT])
{
    struct client *a = client_joined(f, 1, options), *b = client_joined(f, 2, options);
    struct error e;

    fill(w_, 9);
    uint64_t id = init(a, w_);
    do_json(a, WIRE_SetUpdater, "{\"store\": %u, \"updater\": {\"type\": \"adam\"}}", a->store);
    for (uint64_t step = 1; step <= 4; step++) {
        fill(a_, step), fill(b_, 100 + step);
        if (watched) json_decref(look(a, 3));
        push(a, id, step, a_);
        push(b, id, step, b_);
        fixture_settle(f);
        fixture_advance(f, 1000);
    }
    CHECK_OK(try_pull(a, id, 0, out, COUNT * 4, NULL, &e), &e);
    if (watched) CHECK_EQ(key_of(f, a, id)->watch->known.step_version, strstr(options, "async") != NULL ? 8 : 5);
    do_json(a, WIRE_DeleteStore, "{\"store\": \"s\"}");
    client_gone(a);
    client_gone(b);
}

WATCH_TEST(a_measured_step_gives_the_same_bits)
{
    static const char *const stores[] = {"\"type\": \"dist_sync\", \"num_workers\": 2",
                                         "\"type\": \"dist_sync\", \"num_workers\": 2, \"sum_order\": \"rank\""};
    static float plain[COUNT], measured[COUNT];

    for (size_t i = 0; i < sizeof stores / sizeof stores[0]; i++) {
        steps_with(f, false, stores[i], plain);
        steps_with(f, true, stores[i], measured);
        CHECK_EQ(memcmp(plain, measured, sizeof plain), 0);
    }
}

WATCH_TEST(an_assigned_sum_is_measured_too)
{
    struct client *c = client_joined(f, 1, async_);
    struct error e;

    fill(a_, 5), fill(w_, 6);
    uint64_t id = init(c, w_);
    json_decref(look(c, 3));
    push(c, id, 1, a_);
    fixture_settle(f);
    json_t *j = look(c, 3);
    CHECK_NEAR(at(j, "gradient", "norm"), norm_of(a_, NULL), 1e-9);
    CHECK_NEAR(at(j, "value", "norm"), norm_of(a_, NULL), 1e-9);
    CHECK_NEAR(at(j, "update", "norm"), norm_of(a_, w_), 1e-9);
    json_decref(j);
    static float got[COUNT];
    CHECK_OK(try_pull(c, id, 0, got, sizeof got, NULL, &e), &e);
    CHECK_EQ(memcmp(got, a_, sizeof got), 0);
    client_gone(c);
}

WATCH_TEST(nobody_looks_nothing_is_measured)
{
    struct client *c = client_joined(f, 1, async_);
    uint64_t id = init(c, w_);

    do_json(c, WIRE_SetUpdater, "{\"store\": %u, \"updater\": {\"type\": \"sgd\"}}", c->store);
    push(c, id, 1, a_);
    fixture_settle(f);
    uint64_t before = f->device->work_count;
    push(c, id, 2, a_);
    fixture_settle(f);
    uint64_t plain = f->device->work_count - before;
    json_decref(look(c, 3));
    before = f->device->work_count;
    push(c, id, 3, a_);
    fixture_settle(f);
    CHECK_EQ(f->device->work_count - before, plain + 3);       /* gradient, update, value */
    fixture_advance(f, WATCH_MS + 1);
    fixture_settle(f);
    CHECK(key_of(f, c, id)->watch == NULL);
    CHECK_EQ(f->server->core.watch_count, 0);
    CHECK_EQ(f->server->core.watch_cost, 0);
    client_gone(c);
}

WATCH_TEST(a_version_is_measured_once_and_turns_are_kept)
{
    struct client *c = client_joined(f, 1, async_);
    uint64_t id = init(c, w_);

    json_decref(look(c, 3));
    uint64_t before = f->device->work_count;
    for (int i = 0; i < 5; i++) json_decref(look(c, 3));
    CHECK_EQ(f->device->work_count, before);
    /* the step after the first look is measured; then its turn is over until time has passed */
    for (uint64_t step = 1; step <= 5; step++) {
        push(c, id, step, a_);
        fixture_settle(f);
    }
    json_t *j = look(c, 3);
    CHECK_EQ(at(j, "gradient", "version"), 2);
    CHECK_EQ(at(j, "value", "version"), 2);
    CHECK_EQ(at(j, NULL, "version"), 6);
    json_decref(j);
    fixture_advance(f, 1 + (uint64_t)COUNT * 1000 / WATCH_RATE);
    j = look(c, 3);
    CHECK_EQ(at(j, "value", "version"), 6);
    json_decref(j);
    fixture_advance(f, 1 + (uint64_t)COUNT * 1000 / WATCH_RATE);
    push(c, id, 6, a_);
    fixture_settle(f);
    j = look(c, 3);
    CHECK_EQ(at(j, "gradient", "version"), 7);
    json_decref(j);
    client_gone(c);
}

WATCH_TEST(a_small_value_is_told_as_it_is)
{
    struct client *c = client_joined(f, 1, async_);
    uint64_t id = do_init(c, 3, 2, 100);

    for (uint64_t step = 1; step <= 4; step++) {
        do_push(c, id, step, (float)step, 100);
        fixture_settle(f);
        json_t *j = look(c, 3);
        CHECK_EQ(at(j, "value", "version"), step + 1);
        CHECK_NEAR(at(j, "value", "mean"), step, 0);
        CHECK_NEAR(at(j, "value", "max"), step, 0);
        json_decref(j);
    }
    client_gone(c);
}

WATCH_TEST(staleness_and_who_is_behind_are_counted_in_versions)
{
    struct client *a = client_joined(f, 1, async_), *b = client_joined(f, 2, async_);
    uint64_t id = do_init(a, 3, 2, 10);

    json_t *j = look(a, 3);
    CHECK(is_null(j, "behind"));             /* nobody has pulled */
    json_decref(j);
    CHECK_NEAR(do_pull(a, id, 10), 2, 0);
    CHECK_NEAR(do_pull(b, id, 10), 2, 0);
    for (uint64_t step = 1; step <= 3; step++) do_push(a, id, step, 1, 10);
    fixture_settle(f);
    do_pull(a, id, 10);
    fixture_advance(f, 100);
    json_decref(look(a, 3));
    do_push(b, id, 1, 1, 10);                /* computed from version 1, applied to 4 */
    fixture_settle(f);
    j = look(a, 3);
    CHECK_EQ(at(j, "gradient", "version"), 5);
    CHECK_EQ(at(j, NULL, "staleness"), 3);
    CHECK_EQ(at(j, NULL, "behind"), 4);
    json_decref(j);
    client_gone(a);
    client_gone(b);
}

WATCH_TEST(many_keys_are_asked_for_their_norms)
{
    struct client *c = client_joined(f, 1, async_);
    struct error e;
    uint64_t id = do_init(c, 3, 2, 100);

    do_init(c, 4, 0, 16);
    json_t *j = try_json(c, WIRE_KeyStats, &e, "{\"store\": %u, \"keys\": [4, 99, 3]}", c->store);
    const json_t *items = json_object_get(j, "items");
    CHECK_EQ(json_array_size(items), 3);
    CHECK(json_is_null(json_array_get(items, 1)));
    CHECK_NEAR(at(json_array_get(items, 2), NULL, "norm"), 20, 0);
    CHECK_NEAR(at(json_array_get(items, 0), NULL, "norm"), 0, 0);
    CHECK(is_null(json_array_get(items, 2), "grad_norm"));
    json_decref(j);
    do_push(c, id, 1, 3, 100);
    fixture_settle(f);
    j = try_json(c, WIRE_KeyStats, &e, "{\"store\": %u, \"keys\": [3]}", c->store);
    const json_t *x = json_array_get(json_object_get(j, "items"), 0);
    CHECK_NEAR(at(x, NULL, "norm"), 30, 0);
    CHECK_NEAR(at(x, NULL, "grad_norm"), 30, 0);
    CHECK_NEAR(at(x, NULL, "update_ratio"), 10.0 / 30, 1e-15);
    json_decref(j);
    client_gone(c);
}

WATCH_TEST(bad_looks_are_refused)
{
    struct client *c = client_joined(f, 1, async_);
    struct buf many = {0};
    struct error e;

    do_init(c, 3, 2, 4);
    CHECK(try_json(c, WIRE_KeyStats, &e, "{\"store\": %u, \"key\": 5}", c->store) == NULL);
    CHECK_EQ(e.reason, REASON_NO_KEY);
    CHECK(try_json(c, WIRE_KeyStats, &e, "{\"store\": %u, \"key\": \"w\"}", c->store) == NULL);
    CHECK_EQ(e.reason, REASON_MIXED_KEYS);
    CHECK(try_json(c, WIRE_KeyStats, &e, "{\"store\": %u}", c->store) == NULL);
    CHECK_EQ(e.reason, REASON_BAD_ARGUMENT);
    CHECK(try_json(c, WIRE_KeyStats, &e, "{\"store\": %u, \"keys\": 3}", c->store) == NULL);
    CHECK_EQ(e.reason, REASON_BAD_ARGUMENT);
    CHECK(try_json(c, WIRE_KeyStats, &e, "{\"store\": %u, \"keys\": [[1]]}", c->store) == NULL);
    CHECK_EQ(e.reason, REASON_BAD_ARGUMENT);
    for (int i = 0; i <= STATS_KEYS_MAX; i++) buf_format(&many, "%s3", i > 0 ? "," : "");
    buf_add(&many, "", 1);
    CHECK(try_json(c, WIRE_KeyStats, &e, "{\"store\": %u, \"keys\": [%s]}", c->store, (char *)many.at) == NULL);
    CHECK_EQ(e.reason, REASON_BAD_ARGUMENT);
    buf_fini(&many);
    client_gone(c);
}

/* The answer is still to come when the key goes, or its asker. */
WATCH_TEST(a_key_may_go_while_it_is_measured)
{
    struct client *a = client_joined(f, 1, async_), *b = client_joined(f, 2, async_);
    char text[64];

    uint64_t id = init(a, w_);
    snprintf(text, sizeof text, "{\"store\": %u, \"key\": 3}", a->store);
    uint32_t asked = client_send(a, WIRE_KeyStats, 0, 0, (struct bytes){0}, (struct bytes){0}, bytes_text(text));
    (void)client_send(b, WIRE_KeyStats, 0, 0, (struct bytes){0}, (struct bytes){0}, bytes_text(text));
    push(a, id, 1, a_);
    client_gone(b);
    do_json(a, WIRE_Delete, "{\"store\": %u, \"keys\": [3], \"force\": true}", a->store);
    answered_free(client_await(a, asked));
    fixture_settle(f);
    CHECK_EQ(f->server->core.watch_count, 0);
    client_gone(a);
}

/* A reader that holds old versions, steps under way and measurements, with as few buffers as there may be. */
WATCH_TEST(measuring_goes_on_among_steps_that_nobody_waits_for)
{
    struct client *c = client_joined(f, 1, "\"type\": \"dist_async\", \"versions_max\": 2");
    char text[64];

    uint64_t id = init(c, w_);
    snprintf(text, sizeof text, "{\"store\": %u, \"key\": 3}", c->store);
    for (uint64_t step = 1; step <= 40; step++) {
        fill(a_, step);
        push(c, id, step, a_);
        uint32_t asked = client_send(c, WIRE_KeyStats, 0, 0, (struct bytes){0}, (struct bytes){0}, bytes_text(text));
        fixture_advance(f, 50);
        if (step % 3 == 0) answered_free(client_await(c, asked));
    }
    fixture_settle(f);
    fixture_advance(f, 50);
    json_t *j = look(c, 3);
    CHECK_NEAR(at(j, "value", "norm"), norm_of(a_, NULL), 1e-9);
    json_decref(j);
    client_gone(c);
}
