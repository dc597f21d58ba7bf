/* Clients that come and go, and what they make and delete, leave nothing: after twice as many of them as many blocks are
 * allocated, and as many bytes of the heap, as after half. Everything that is remembered for a while is forgotten by the
 * test's own clock. Beside it stands tests/system/test_churn.py, which looks at a daemon's resident memory. */
#include "service/base/log.h"
#include "service/base/mem.h"
#include "tests/lib/books.h"
#include "tests/lib/devices.h"

#include <string.h>

/* The allocator gives a block up to 16 bytes more or less, as its neighbours leave them. */
enum { CYCLES = 100, FORGOTTEN_MS = 125000, ROUNDING = 256 };

static struct error error;

static const char async_[] = "\"type\": \"dist_async\"";

/* What one client does between its HELLO and its end. number: never the same again. */
typedef void churn_function(struct fixture *f, unsigned number);

static struct client *joined_store(struct fixture *f, unsigned number, const char *options)
{
    struct client *c = client_new(f, number);

    client_join(c, options);
    return c;
}

static void says_hello(struct fixture *f, unsigned number) { client_gone(client_new(f, number)); }

static void joins_and_leaves(struct fixture *f, unsigned number)
{
    struct client *c = joined_store(f, number, async_);

    do_json(c, WIRE_Leave, "{\"store\": %u}", c->store);
    client_gone(c);
}

/* Without a word: it is found dead, and dismissed by whoever comes next. */
static void joins_and_dies(struct fixture *f, unsigned number)
{
    struct client *c = joined_store(f, number, async_), *next;
    uint32_t store = c->store;

    client_gone(c);
    fixture_advance(f, 15000);
    next = client_new(f, number + (1u << 30));
    json_t *j = try_json(next, WIRE_Dismiss, &error, "{\"store\": %u, \"rank\": 0}", store);
    json_decref(j);
    client_gone(next);
}

static void makes_a_store(struct fixture *f, unsigned number)
{
    struct client *c = client_new(f, number);
    json_t *j = try_json(c, WIRE_Create, &error, "{\"store\": \"churn%u\", \"type\": \"dist_async\"}", number);

    CHECK(j != NULL);
    json_decref(j);
    do_json(c, WIRE_SetUpdater, "{\"store\": \"churn%u\", \"updater\": {\"type\": \"adam\", \"overrides\": "
            "[{\"match\": \"a*\", \"lr_mult\": 0.5}]}}", number);
    do_json(c, WIRE_DeleteStore, "{\"store\": \"churn%u\"}", number);
    client_gone(c);
}

/* Values of all ways: small ones, large ones that are staged and cached. */
static void trains_keys(struct fixture *f, unsigned number)
{
    static const size_t counts[] = {1, 100, 5000, 40000};
    struct client *c = joined_store(f, number, async_);
    uint64_t ids[4];

    do_json(c, WIRE_SetUpdater, "{\"store\": %u, \"updater\": {\"type\": \"%s\"}}", c->store, number % 2 ? "adam" : "sgd");
    for (unsigned i = 0; i < 4; i++) ids[i] = do_init(c, i, 0, counts[i]);
    for (uint64_t step = 1; step <= 2; step++)
        for (unsigned i = 0; i < 4; i++) {
            do_push(c, ids[i], step, 1, counts[i]);
            fixture_settle(f);
        }
    for (unsigned i = 0; i < 4; i++) (void)do_pull(c, ids[i], counts[i]);
    json_t *j = try_json(c, WIRE_KeyStats, &error, "{\"store\": %u, \"key\": 1}", c->store);
    json_decref(j);
    do_json(c, WIRE_Delete, "{\"store\": %u, \"keys\": [0, 1, 2, 3]}", c->store);
    do_json(c, WIRE_Leave, "{\"store\": %u}", c->store);
    client_gone(c);
}

static void waits_at_a_barrier(struct fixture *f, unsigned number)
{
    struct client *c = joined_store(f, number, async_);

    do_json(c, WIRE_Barrier, "{\"store\": %u, \"name\": \"churn%u\"}", c->store, number);
    client_gone(c);
    fixture_advance(f, 15000);
}

static void errs(struct fixture *f, unsigned number)
{
    struct client *c = client_new(f, number);
    static const char *const wrong[] = {"{\"store\": 999}", "{}", "{\"store\": \"none\", \"updater\": 7}"};

    for (unsigned i = 0; i < 3; i++)
        for (unsigned method = WIRE_Create; method <= WIRE_Mailbox; method++) {
            if (wire_method_name(method) == NULL || !wire_method_is_json(method) || method == WIRE_Workers) continue;
            json_t *j = try_json(c, method, &error, "%s", wrong[i]);
            json_decref(j);
        }
    client_gone(c);
}

static void pushes_half(struct fixture *f, unsigned number)
{
    struct client *c = joined_store(f, number, async_);
    uint64_t id = do_init(c, 9, 0, 5000);
    struct wire_push fixed = {.store = c->store, .count = 1};
    struct wire_push_entry x = {.key = id, .step = 1, .size = 4000, .total = 20000, .dtype = DTYPE_f32};
    struct buf fb = {0}, d = {0};
    static const char half[4000];

    wire_put_push(&fb, &fixed);
    wire_put_push_entry(&d, &x);
    answered_free(client_await(c, client_send(c, WIRE_Push, 0, 70, bytes_of(fb.at, fb.size), bytes_of(d.at, d.size),
                                              bytes_of(half, sizeof half))));
    buf_fini(&fb);
    buf_fini(&d);
    do_json(c, WIRE_Delete, "{\"store\": %u, \"keys\": [9]}", c->store);
    client_gone(c);
    fixture_advance(f, 15000);
}

static const struct { const char *name; churn_function *run; } kinds[] = {
    {"hello", says_hello}, {"join and leave", joins_and_leaves}, {"join and die", joins_and_dies},
    {"store", makes_a_store}, {"keys", trains_keys}, {"barrier", waits_at_a_barrier}, {"errors", errs},
    {"half a push", pushes_half},
};

struct held { int64_t blocks, bytes; };

/* After everybody has been forgotten, and the job of the store is over. */
static struct held rest(struct fixture *f)
{
    const char *wrong;

    for (int i = 0; i < 3; i++) fixture_advance(f, FORGOTTEN_MS);
    fixture_settle(f);
    wrong = books_wrong(f->server);
    if (wrong != NULL) test_fail(__FILE__, __LINE__, "the books: %s", wrong);
    return (struct held){mem_live(), mem_live_bytes()};
}

TEST(after_twice_as_much_of_any_kind_of_churn_no_more_is_held)
{
    log_set_level(LOG_OFF);
    mem_count_bytes(1);
    for (unsigned kind = 0; kind < sizeof kinds / sizeof kinds[0]; kind++)
        for (unsigned devices = 0; devices < 2; devices++) {
            struct device *d = device_of_kinds(devices == 0 ? ON_CPU : ON_SIM, 0);
            if (d == NULL) continue;
            struct fixture *f = fixture_new(d, 0);
            unsigned number = 1;
            struct held at[3];
            for (unsigned part = 0; part < 3; part++) {
                for (unsigned i = 0; i < CYCLES; i++, number++) {
                    kinds[kind].run(f, number);
                    fixture_advance(f, 20);
                }
                at[part] = rest(f);
            }
            /* The first part fills what stays: tables that have grown, the device's items. */
            if (at[2].blocks > at[1].blocks || at[2].bytes > at[1].bytes + ROUNDING)
                test_fail(__FILE__, __LINE__, "'%s' on %s: %lld blocks and %lld bytes more after %d cycles more", kinds[kind].name,
                          device_kind(d), (long long)(at[2].blocks - at[1].blocks),
                          (long long)(at[2].bytes - at[1].bytes), CYCLES);
            fixture_free(f);
        }
}
