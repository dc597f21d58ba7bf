/* No turn of the core's loop is long: what goes over many keys does a bounded number of units of work in each, whatever
 * the machine's speed, and others are served between the pieces.
 *
 *   LONG=1 build/tests/unit/test_turns      2^20 keys; tells the processor time of the longest turn of each step */
#include "tests/lib/direct.h"
#include "tests/lib/test.h"

#include "service/base/mem.h"
#include "service/op.h"

#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* What one piece that cannot be cut may take beyond the turn's: the bytes of a frame, and a last key. */
enum { TURN_MOST = JOB_WORK + TURN_WORK + FRAME_SIZE_MAX / WORK_BYTES + ENTRIES_MAX / 32 };

static struct fixture *fixture;
static struct client *one, *two;
static uint64_t *ids;
static uint32_t count;               /* of keys */
static uint64_t longest_ns, began_ns;

static bool is_long(void) { return getenv("LONG") != NULL; }

static uint64_t thread_ns(void)
{
    struct timespec t;

    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static void set_up(const char *options, uint32_t keys)
{
    struct device *d;
    struct error e;

    if (is_long()) test_time_limit(600);
    mallopt(M_MXFAST, 0); /* as the daemon has it (main.c) */
    CHECK_OK(cpu_device_new(1, &d, &e), &e);
    fixture = fixture_new(d, (uint64_t)8 << 30);
    fixture_begin_turns(fixture);
    one = client_joined(fixture, 1, options);
    two = client_joined(fixture, 2, options);
    count = keys;
    ids = calloc(count, sizeof *ids);
}

static void tear_down(void)
{
    client_gone(one);
    client_gone(two);
    fixture_free(fixture);
    free(ids);
}

/* ---- turns, and their time --------------------------------------------------------------------------------------- */

static void begin_timing(void) { began_ns = thread_ns(); }

static void end_timing(void)
{
    uint64_t ns = thread_ns() - began_ns;
    if (ns > longest_ns) longest_ns = ns;
}

static void turn(void)
{
    begin_timing();
    fixture_turn(fixture);
    end_timing();
}

static uint32_t send(struct client *c, unsigned method, unsigned flags, uint64_t sequence, struct buf *fixed,
                     struct buf *desc, struct buf *body)
{
    begin_timing();
    uint32_t id = client_send(c, method, flags, sequence, bytes_of(fixed->at, fixed->size), bytes_of(desc->at, desc->size),
                              bytes_of(body->at, body->size));
    end_timing();
    return id;
}

static struct answered *await(struct client *c, uint32_t id)
{
    struct answered *a;

    while ((a = client_take(c, id)) == NULL) {
        CHECK(server_busy(fixture->server));
        turn();
    }
    if (a->header.status != STATUS_OK)
        test_fail(__FILE__, __LINE__, "%.*s", (int)a->body.size, (const char *)a->body.at);
    return a;
}

/* No turn so far was long. */
static void check_turns(const char *what)
{
    fixture_turn(fixture);
    uint64_t most = fixture->server->core.turn_work_max;
    if (is_long()) printf("%-40s %8u keys: %6.2f ms, %5llu units\n", what, count, (double)longest_ns / 1e6,
                          (unsigned long long)most);
    if (most > TURN_MOST) test_fail(__FILE__, __LINE__, "%s: %llu units in a turn", what, (unsigned long long)most);
    longest_ns = 0;
    fixture->server->core.turn_work_max = 0;
}

/* ---- frames of many entries -------------------------------------------------------------------------------------- */

struct frame {
    struct buf fixed, desc, body;
};

static void frame_fini(struct frame *f)
{
    buf_fini(&f->fixed);
    buf_fini(&f->desc);
    buf_fini(&f->body);
}

static void put_float(struct buf *b, float v)
{
    float padded[4] = {v};
    buf_add(b, padded, sizeof padded);
}

static void init_frame(struct frame *f, uint32_t from, uint32_t n, bool check)
{
    int64_t dim = 1;

    wire_put_init(&f->fixed, &(struct wire_init){.store = one->store, .count = n, .call = ++one->sequence + 1000,
                                                 .on_reinit = check ? REINIT_KEEP : REINIT_ERROR});
    for (uint32_t i = 0; i < n; i++) {
        /* An order that is not that of the names. */
        int64_t name = (int64_t)((from + i) * (uint64_t)2654435761u % ((uint64_t)1 << 32));
        wire_put_init_entry(&f->desc, &(struct wire_init_entry){.number = name, .size = check ? 0 : 4, .total = 4, .ndim = 1});
        buf_add(&f->desc, &dim, sizeof dim);
        if (!check) put_float(&f->body, 0);
    }
    f->body.size -= f->body.size > 0 ? 12 : 0;
}

static void push_frame(struct frame *f, const struct client *c, uint32_t from, uint32_t n, uint64_t step, float value)
{
    wire_put_push(&f->fixed, &(struct wire_push){.store = c->store, .count = n});
    for (uint32_t i = 0; i < n; i++) {
        wire_put_push_entry(&f->desc, &(struct wire_push_entry){.key = ids[from + i], .step = step, .size = 4, .total = 4});
        put_float(&f->body, value);
    }
    f->body.size -= 12;
}

static void pull_frame(struct frame *f, const struct client *c, uint32_t from, uint32_t n)
{
    wire_put_pull(&f->fixed, &(struct wire_pull){.store = c->store, .count = n});
    for (uint32_t i = 0; i < n; i++) wire_put_pull_entry(&f->desc, &(struct wire_pull_entry){.key = ids[from + i]});
}

static uint32_t part_of(uint32_t from) { return count - from < ENTRIES_MAX ? count - from : ENTRIES_MAX; }

static void init_all(bool check)
{
    for (uint32_t from = 0; from < count; from += ENTRIES_MAX) {
        struct frame f = {.fixed = {0}};
        init_frame(&f, from, part_of(from), check);
        uint32_t id = send(one, WIRE_Init, check ? WIRE_FLAG_CHECK : 0, 0, &f.fixed, &f.desc, &f.body);
        struct answered *a = await(one, id);
        struct reader r = reader_of(a->desc);
        for (uint32_t i = 0; i < part_of(from); i++) {
            struct wire_init_result x;
            CHECK(wire_get_init_result(&r, &x));
            CHECK_EQ(x.outcome, check ? INIT_EXISTED : INIT_CREATED);
            ids[from + i] = x.key;
        }
        answered_free(a);
        frame_fini(&f);
    }
}

static uint32_t push_some(struct client *c, uint32_t from, uint32_t n, uint64_t step, float value)
{
    struct frame f = {.fixed = {0}};

    push_frame(&f, c, from, n, step, value);
    uint32_t id = send(c, WIRE_Push, 0, 0, &f.fixed, &f.desc, &f.body);
    frame_fini(&f);
    return id;
}

static void check_pushed(struct client *c, uint32_t id, uint32_t n)
{
    struct answered *a = await(c, id);
    struct reader r = reader_of(a->fixed);
    struct wire_push_done done;

    CHECK(wire_get_push_done(&r, &done));
    CHECK_EQ(done.recorded, n);
    CHECK_EQ(done.faults, 0);
    answered_free(a);
}

static void push_all(struct client *c, uint64_t step, float value)
{
    for (uint32_t from = 0; from < count; from += ENTRIES_MAX)
        check_pushed(c, push_some(c, from, part_of(from), step, value), part_of(from));
}

/* Keys from one on have this value; answers how many it has seen. */
static uint32_t check_some(struct client *c, uint32_t from, uint32_t n, float value)
{
    struct frame f = {.fixed = {0}};
    struct wire_pull_done done;

    pull_frame(&f, c, from, n);
    struct answered *a = await(c, send(c, WIRE_Pull, 0, 0, &f.fixed, &f.desc, &f.body));
    struct reader r = reader_of(a->fixed);
    CHECK(wire_get_pull_done(&r, &done));
    CHECK(done.count > 0 && done.faults == 0);
    for (uint32_t i = 0; i < done.count; i++) {
        float got;
        memcpy(&got, (const uint8_t *)a->body.at + (size_t)i * 16, sizeof got);
        if (got != value) test_fail(__FILE__, __LINE__, "key %u is %g, not %g", from + i, (double)got, (double)value);
    }
    answered_free(a);
    frame_fini(&f);
    return done.count;
}

static void check_all(struct client *c, float value)
{
    for (uint32_t from = 0; from < count;) from += check_some(c, from, part_of(from), value);
}

static void wait_all(struct client *c, uint64_t step)
{
    for (uint32_t from = 0; from < count; from += ENTRIES_MAX) {
        struct frame f = {.fixed = {0}};
        struct wire_wait_done done;
        uint32_t n = part_of(from);
        wire_put_wait(&f.fixed, &(struct wire_wait){.count = n, .want = n, .time_ms = 1000});
        for (uint32_t i = 0; i < n; i++)
            wire_put_wait_entry(&f.desc, &(struct wire_wait_entry){.kind = WAIT_TICKET, .store = c->store,
                                                                   .key = ids[from + i], .number = step});
        struct answered *a = await(c, send(c, WIRE_Wait, 0, 0, &f.fixed, &f.desc, &f.body));
        struct reader r = reader_of(a->fixed);
        CHECK(wire_get_wait_done(&r, &done));
        CHECK_EQ(done.count, n);
        CHECK_EQ(done.faults, 0);
        answered_free(a);
        frame_fini(&f);
    }
}

/* ---- documents --------------------------------------------------------------------------------------------------- */

static uint32_t ask(struct client *c, unsigned method, const char *text)
{
    struct buf none = {0}, body = {0};
    uint64_t sequence = wire_method_flags(method) & WIRE_WRITES ? ++c->sequence : 0;

    buf_text(&body, text);
    uint32_t id = send(c, method, 0, sequence, &none, &none, &body);
    buf_fini(&body);
    return id;
}

static json_t *told(struct client *c, uint32_t id)
{
    struct answered *a = await(c, id);
    json_t *j = json_loadb(a->body.at, a->body.size, 0, NULL);

    CHECK(j != NULL);
    answered_free(a);
    return j;
}

/* `overrides` of an sgd of rate 1, none of which fits a number. */
static char *sgd_document(unsigned overrides, bool dry_run)
{
    struct buf b = {0};

    buf_format(&b, "{\"store\": %u, \"dry_run\": %s, \"updater\": {\"type\": \"sgd\", \"learning_rate\": 1, \"overrides\": [",
               one->store, dry_run ? "true" : "false");
    for (unsigned i = 0; i < overrides; i++)
        buf_format(&b, "%s{\"match\": \"layer%u.*.weight\", \"lr_mult\": 0.5}", i > 0 ? "," : "", i);
    buf_text(&b, "]}}");
    buf_add(&b, "", 1);
    return (char *)b.at;
}

static uint32_t ask_sgd(struct client *c, unsigned overrides, bool dry_run)
{
    char *text = sgd_document(overrides, dry_run);
    uint32_t id = ask(c, WIRE_SetUpdater, text);

    mem_free(text);
    return id;
}

static void list_all(void)
{
    json_int_t last = INT64_MIN;
    size_t seen = 0;
    bool more = true;

    while (more) {
        char text[200], after[40] = "";
        if (seen > 0) snprintf(after, sizeof after, ", \"after\": %lld", (long long)last);
        snprintf(text, sizeof text, "{\"store\": %u, \"limit\": 5000%s}", one->store, after);
        json_t *j = told(one, ask(one, WIRE_List, text)), *items = json_object_get(j, "items"), *row;
        size_t i;
        CHECK_EQ(json_integer_value(json_object_get(j, "total")), count);
        json_array_foreach(items, i, row) {
            json_int_t name = json_integer_value(json_object_get(row, "key"));
            CHECK(name > last);
            last = name;
            seen++;
        }
        more = !json_is_null(json_object_get(j, "next"));
        if (more) CHECK_EQ(json_integer_value(json_object_get(j, "next")), last);
        json_decref(j);
    }
    CHECK_EQ(seen, count);
}

/* The names of the keys that were made last, as a member. */
static char *names_of(uint32_t n)
{
    struct buf b = {0};

    buf_format(&b, "{\"store\": %u, \"keys\": [", one->store);
    for (uint32_t i = count - n; i < count; i++)
        buf_format(&b, "%s%llu", i > count - n ? "," : "",
                   (unsigned long long)(i * (uint64_t)2654435761u % ((uint64_t)1 << 32)));
    buf_text(&b, "]}");
    buf_add(&b, "", 1);
    return (char *)b.at;
}

/* ---- tests ------------------------------------------------------------------------------------------------------- */

static uint32_t keys_of_test(void) { return is_long() ? 1 << 20 : 20000; }

TEST(no_turn_is_long_whatever_goes_over_all_keys)
{
    set_up("\"type\": \"dist_async\"", keys_of_test());
    init_all(false);
    check_turns("init");
    init_all(true);
    check_turns("init of what is there");
    list_all();
    check_turns("list");
    json_decref(told(one, ask_sgd(one, 100, true)));
    check_turns("dry run of a swap, 100 overrides");
    json_decref(told(one, ask_sgd(one, 100, false)));
    check_turns("swap, 100 overrides");
    push_all(one, 1, 1);
    check_turns("push, states made");
    push_all(one, 2, 1);
    check_turns("push");
    wait_all(one, 2);
    check_turns("wait");
    check_all(two, -2);
    check_turns("pull");
    char *names = names_of(10000);
    json_t *j = told(one, ask(one, WIRE_Describe, names));
    CHECK_EQ(json_array_size(json_object_get(j, "items")), 10000);
    json_decref(j);
    check_turns("describe");
    json_decref(told(one, ask(one, WIRE_Delete, names)));
    count -= 10000;
    mem_free(names);
    check_turns("delete");
    list_all();
    check_turns("list anew");
    char text[100];
    snprintf(text, sizeof text, "{\"store\": %u}", one->store);
    json_decref(told(one, ask(one, WIRE_GetStore, text)));
    check_turns("what is told of the store");
    client_gone(two);
    two = client_joined(fixture, 3, "\"type\": \"dist_async\"");
    check_turns("join");
    tear_down();
}

TEST(others_are_served_between_the_pieces_of_a_frame)
{
    set_up("\"type\": \"dist_async\"", 20000);
    init_all(false);
    uint32_t swap = ask_sgd(one, 0, false);
    json_decref(told(one, swap));
    uint32_t push = push_some(one, 0, count, 1, 1);
    CHECK(one->held && client_take(one, push) == NULL);
    uint32_t health = ask(two, WIRE_Health, "{}");
    struct answered *a = client_take(two, health);
    CHECK(a != NULL);
    answered_free(a);
    CHECK(one->held);
    /* What follows on the same connection waits, and finds what came before done. */
    uint32_t next = push_some(one, 0, count, 2, 1);
    a = client_take(one, push);
    CHECK(a != NULL);
    answered_free(a);
    check_pushed(one, next, count);
    check_all(two, -2);
    tear_down();
}

TEST(a_connection_that_ends_between_two_pieces_leaves_what_has_landed_and_a_repeat_counts_once)
{
    int64_t live = mem_live();

    set_up("\"type\": \"dist_async\"", 20000);
    init_all(false);
    json_decref(told(one, ask_sgd(one, 0, false)));
    struct client *again = client_again(one);
    push_some(one, 0, count, 1, 1);
    turn();
    CHECK(one->held);
    uint64_t landed = fixture->server->core.counters.pushes_recorded;
    CHECK(landed > 0 && landed < count);
    client_gone(one);
    one = again;
    for (int i = 0; i < 50; i++) turn();
    CHECK_EQ(fixture->server->core.counters.pushes_recorded, landed);
    check_pushed(one, push_some(one, 0, count, 1, 1), count);
    CHECK_EQ(fixture->server->core.counters.pushes_recorded, count);
    check_all(two, -1);
    /* The same with the other kinds of frames; nothing is left of them. */
    for (unsigned method = 0; method < 3; method++) {
        struct frame f = {.fixed = {0}};
        if (method == 0) init_frame(&f, 0, count, true);
        else if (method == 1) pull_frame(&f, one, 0, count);
        else wire_put_wait(&f.fixed, &(struct wire_wait){.count = count, .want = count, .time_ms = 1000});
        for (uint32_t i = 0; method == 2 && i < count; i++)
            wire_put_wait_entry(&f.desc, &(struct wire_wait_entry){.kind = WAIT_VERSION, .store = one->store, .key = ids[i],
                                                                   .number = 1000});
        again = client_again(one);
        send(one, method == 0 ? WIRE_Init : method == 1 ? WIRE_Pull : WIRE_Wait, method == 0 ? WIRE_FLAG_CHECK : 0, 0,
             &f.fixed, &f.desc, &f.body);
        CHECK(one->held);
        client_gone(one);
        one = again;
        turn();
        frame_fini(&f);
    }
    tear_down();
    CHECK_EQ(mem_live(), live);
}

TEST(a_store_that_goes_between_two_pieces_refuses_the_rest)
{
    char text[100];

    set_up("\"type\": \"dist_async\"", 20000);
    init_all(false);
    uint32_t push = push_some(one, 0, count, 1, 1);
    CHECK(one->held);
    snprintf(text, sizeof text, "{\"store\": %u}", one->store);
    json_decref(told(two, ask(two, WIRE_DeleteStore, text)));
    struct answered *a = await(one, push);
    struct reader r = reader_of(a->fixed);
    struct wire_push_done done;
    CHECK(wire_get_push_done(&r, &done));
    CHECK(done.recorded > 0 && done.faults > 0);
    CHECK_EQ(done.recorded + done.faults, count);
    answered_free(a);
    tear_down();
}

TEST(a_swap_is_whole_though_keys_come_and_move_while_it_looks)
{
    struct error e;

    set_up("\"type\": \"dist_async\", \"async_default\": \"add\"", 60000);
    init_all(false);
    uint32_t swap = ask_sgd(one, 0, false);
    CHECK(client_take(one, swap) == NULL);
    /* Under the present updater as long as the swap has not been done, also where it has looked already. */
    check_pushed(two, push_some(two, 0, 1, 1, 5), 1);
    check_pushed(two, push_some(two, count - 1, 1, 1, 5), 1);
    check_some(two, 0, 1, 5);
    CHECK(client_take(one, swap) == NULL);
    json_t *j = told(one, swap);
    CHECK(json_is_true(json_object_get(j, "changed")));
    CHECK_EQ(json_integer_value(json_object_get(j, "effective_from_version")), 3);
    json_decref(j);
    check_pushed(two, push_some(two, 0, 1, 2, 5), 1);
    check_some(two, 0, 1, 0);

    /* A key that the updater cannot take comes while it looks: the swap is refused, and names it. */
    struct client *lowest = client_again(one);
    do_json(one, WIRE_SetUpdater, "{\"store\": %u, \"updater\": {\"type\": \"add\"}}", one->store);
    swap = ask_sgd(one, 1, false);
    CHECK(client_take(one, swap) == NULL);
    struct wire_init_entry x = {.number = -7, .size = 4, .total = 4, .ndim = 1, .dtype = DTYPE_i32};
    struct frame f = {.fixed = {0}};
    int64_t dim = 1;
    wire_put_init(&f.fixed, &(struct wire_init){.store = one->store, .count = 1, .call = 77});
    wire_put_init_entry(&f.desc, &x);
    buf_add(&f.desc, &dim, sizeof dim);
    buf_add(&f.body, "\0\0\0", 4);
    answered_free(await(lowest, send(lowest, WIRE_Init, 0, 0, &f.fixed, &f.desc, &f.body)));
    frame_fini(&f);
    struct answered *a;
    while ((a = client_take(one, swap)) == NULL) turn();
    CHECK(a->header.status != STATUS_OK);
    error_set(&e, REASON_INTERNAL, "%.*s", (int)a->body.size, (const char *)a->body.at);
    CHECK_SAYS(e.text, "key -7");
    answered_free(a);
    client_gone(lowest);
    tear_down();
}

TEST(a_swap_ends_with_its_store)
{
    char text[100];
    struct answered *a;

    set_up("\"type\": \"dist_async\"", 60000);
    init_all(false);
    uint32_t swap = ask_sgd(one, 3, true);
    CHECK(client_take(one, swap) == NULL);
    snprintf(text, sizeof text, "{\"store\": %u}", one->store);
    json_decref(told(two, ask(two, WIRE_DeleteStore, text)));
    while ((a = client_take(one, swap)) == NULL) turn();
    CHECK_EQ(a->header.reason, REASON_NO_STORE);
    answered_free(a);
    tear_down();
}
