/* What an updater keeps for a key: slots, masters and counters, over the protocol where it reaches and through
 * service/state.h where it does not, on the CPU and on the late device, where a forgotten wait is a wrong result. */
#include "tests/lib/devices.h"

#include "gpu/half.h"
#include "service/base/mem.h"
#include "service/op.h"
#include "service/store.h"

#include <math.h>
#include <string.h>

static const char async_[] = "\"type\": \"dist_async\"";
static const char sync2[] = "\"type\": \"dist_sync\", \"num_workers\": 2";

enum { STATE_KINDS = ON_THREADS | ON_LATE | ON_SIM };
#define STATE_TEST(name) TEST_ON(STATE_KINDS, name)

enum { COUNT = 6 };

static struct key *key_at(struct client *c, uint64_t id)
{
    struct key *k = store_key_at(store_at(&c->fixture->server->core, c->store), id);
    CHECK(k != NULL);
    return k;
}

static void set_updater(struct client *c, const char *updater, const char *states)
{
    do_json(c, WIRE_SetUpdater, "{\"store\": %u, \"updater\": %s, \"states\": \"%s\"}", c->store, updater, states);
}

/* ---- reading and writing ---------------------------------------------------------------------------------------- */

struct awaited {
    struct task task;
    bool done;
};

static void note(struct task *t, enum status s)
{
    CHECK_EQ(s, STATUS_OK);
    CONTAINER_OF(t, struct awaited, task)->done = true;
}

static struct state_piece piece(struct client *c, uint64_t id, const char *name)
{
    struct state_piece all[STATE_PIECES];
    unsigned n = state_pieces(key_at(c, id), all);

    for (unsigned i = 0; i < n; i++)
        if (strcmp(all[i].name, name) == 0) return all[i];
    test_fail(__FILE__, __LINE__, "there is no %s", name);
}

/* The piece as it is behind everything that was pushed; not settled before, so that order is the queue's. */
static void read_piece(struct client *c, uint64_t id, const char *name, void *out)
{
    struct state_piece p = piece(c, id, name);
    struct awaited a = {.task.run = note};
    struct error e;

    CHECK_OK(state_read(key_at(c, id), &p, out, &a.task, &e), &e);
    fixture_settle(c->fixture);
    CHECK(a.done);
}

static float slot(struct client *c, uint64_t id, const char *name)
{
    float out[COUNT];

    read_piece(c, id, name, out);
    for (int i = 1; i < COUNT; i++) CHECK(out[i] == out[0]);
    return out[0];
}

static bool has_piece(struct client *c, uint64_t id, const char *name)
{
    struct state_piece all[STATE_PIECES];
    unsigned n = state_pieces(key_at(c, id), all);

    for (unsigned i = 0; i < n; i++)
        if (strcmp(all[i].name, name) == 0) return true;
    return false;
}

#define MOMENTUM "{\"type\": \"sgd\", \"learning_rate\": 1, \"momentum\": 0.5}"
#define ADAM "{\"type\": \"adam\", \"learning_rate\": 0.5, \"beta1\": 0.5, \"beta2\": 0.75}"

STATE_TEST(slots_are_read_in_the_order_of_the_pushes)
{
    struct client *c = client_joined(f, 1, async_);

    set_updater(c, MOMENTUM, "keep");
    uint64_t id = do_init(c, 3, 0, COUNT);
    do_push(c, id, 1, 1, COUNT);
    do_push(c, id, 2, 1, COUNT);
    fixture_settle(f);
    CHECK(slot(c, id, "momentum") == -1.5f);
    CHECK_EQ(key_at(c, id)->state.updates, 2);
    CHECK_EQ(piece(c, id, "momentum").count, COUNT);
    CHECK(!has_piece(c, id, "master"));
    client_gone(c);
}

STATE_TEST(a_state_that_is_written_back_goes_on_as_the_one_that_was_read)
{
    struct client *c = client_joined(f, 1, async_);
    float mean[COUNT], var[COUNT], value[COUNT], out[2][COUNT];
    struct awaited a = {.task.run = note}, b = a;
    struct error e;

    set_updater(c, ADAM, "keep");
    uint64_t id = do_init(c, 3, 2, COUNT);
    for (uint64_t step = 1; step <= 5; step++) do_push(c, id, step, (float)step, COUNT);
    fixture_settle(f);
    read_piece(c, id, "mean", mean);
    read_piece(c, id, "var", var);
    CHECK_OK(try_pull(c, id, 0, value, sizeof value, NULL, &e), &e);
    uint64_t other = do_init(c, 4, value[0], COUNT);
    struct state_piece m = piece(c, other, "mean"), v = piece(c, other, "var");
    CHECK_OK(state_write(key_at(c, other), &m, mean, &a.task, &e), &e);
    CHECK_OK(state_write(key_at(c, other), &v, var, &b.task, &e), &e);
    CHECK_OK(state_restore(key_at(c, other), 5, 5, 1, &e), &e);
    for (uint64_t step = 1; step <= 5; step++) {
        do_push(c, id, step + 5, (float)step, COUNT);
        do_push(c, other, step, (float)step, COUNT);
    }
    fixture_settle(f);
    CHECK(a.done && b.done);
    CHECK_OK(try_pull(c, id, 0, out[0], sizeof value, NULL, &e), &e);
    CHECK_OK(try_pull(c, other, 0, out[1], sizeof value, NULL, &e), &e);
    CHECK(memcmp(out[0], out[1], sizeof value) == 0);
    CHECK(out[0][0] != value[0]);
    CHECK_EQ(state_restore(key_at(c, other), 5, 6, 1, &e), STATUS_INVALID_ARGUMENT);
    CHECK_EQ(state_restore(key_at(c, other), 5, 5, (double)NAN, &e), STATUS_INVALID_ARGUMENT);
    client_gone(c);
}

STATE_TEST(a_slot_may_begin_as_the_value)
{
    struct client *c = client_joined(f, 1, async_);

    uint64_t id = do_init(c, 3, 7, COUNT);
    set_updater(c, "{\"type\": \"dcasgd\", \"learning_rate\": 1, \"lamda\": 1}", "keep");
    do_push(c, id, 1, 2, COUNT); /* previous is w: d = 2, w 5, previous 7 */
    do_push(c, id, 2, 2, COUNT); /* d = 2 + 4 * (5 - 7) = -6, w 11 */
    fixture_settle(f);
    CHECK(slot(c, id, "previous") == 5);
    CHECK(do_pull(c, id, COUNT) == 11);
    client_gone(c);
}

/* ---- swaps ------------------------------------------------------------------------------------------------------ */

/* Of the stack below its caller's. */
static __attribute__((noinline)) void scribble(int byte)
{
    volatile char room[4096];

    for (size_t i = 0; i < sizeof room; i++) room[i] = (char)byte;
}

/* What a swap would do is computed, whatever the last question has left behind. */
STATE_TEST(the_outlook_is_that_of_the_updater_it_is_asked_for)
{
    static const struct { const char *document; enum rule_id rule; unsigned slots; } rows[] = {
        {"{\"type\": \"adam\"}", RULE_adam, 2}, {"{\"type\": \"add\"}", RULE_add, 0},
        {"{\"type\": \"sgd\", \"momentum\": 0.9}", RULE_momentum, 1},
        {"{\"type\": \"program\", \"text\": \"slot m = 0\\nm = grad\\nstored -= m\"}", RULE_program, 1},
    };
    struct client *c = client_joined(f, 1, async_);
    const struct key *k = key_at(c, do_init(c, 1, 1, COUNT));
    struct state_outlook o;
    struct updater *u;
    struct error e;

    for (unsigned i = 0; i < 8; i++) {
        CHECK_OK(updater_parse(bytes_text(rows[i % 4].document), &u, &e), &e);
        scribble(i % 2 ? 0xff : 0x32);
        state_outlook(k, u, &o);
        CHECK_EQ(o.use.program != NULL, rows[i % 4].rule == RULE_program);
        CHECK(rows[i % 4].rule == RULE_program || o.use.rule == rows[i % 4].rule);
        CHECK_EQ(use_slots(&o.use), rows[i % 4].slots);
        updater_drop(u);
    }
    client_gone(c);
}

STATE_TEST(keep_reset_and_convert_do_what_they_say)
{
    struct client *c = client_joined(f, 1, async_);

    set_updater(c, MOMENTUM, "keep");
    uint64_t id = do_init(c, 3, 0, COUNT);
    do_push(c, id, 1, 1, COUNT);
    set_updater(c, "{\"type\": \"nag\", \"learning_rate\": 1, \"momentum\": 0.5}", "keep");
    do_push(c, id, 2, 1, COUNT);
    CHECK(slot(c, id, "momentum") == -1.5f);
    CHECK_EQ(key_at(c, id)->state.begun, 0);
    set_updater(c, MOMENTUM, "reset");
    do_push(c, id, 3, 1, COUNT);
    CHECK(slot(c, id, "momentum") == -1);
    CHECK_EQ(key_at(c, id)->state.begun, 2);
    set_updater(c, ADAM, "convert");
    do_push(c, id, 4, 0, COUNT);
    /* One step of momentum 0.5 from zero: mean -(1 - 0.5) / 1 * -1 = 0.5, var 0.25 * 0.25 / 0.25 = 0.25; then a zero. */
    CHECK(slot(c, id, "mean") == 0.25f);
    CHECK_NEAR(slot(c, id, "var"), 0.1875, 1e-6);
    CHECK_EQ(key_at(c, id)->state.begun, 2);
    set_updater(c, "{\"type\": \"lion\"}", "keep");
    do_push(c, id, 5, 0, COUNT);
    CHECK_NEAR(slot(c, id, "mean"), 0.25 * 0.99, 1e-6);
    CHECK(!has_piece(c, id, "var"));
    set_updater(c, ADAM, "keep");
    do_push(c, id, 6, 0, COUNT);
    CHECK(slot(c, id, "mean") == 0);
    CHECK_EQ(key_at(c, id)->state.begun, 5);
    CHECK_EQ(key_at(c, id)->state.updates, 6);
    client_gone(c);
}

STATE_TEST(an_equal_updater_with_a_reset_begins_its_slots_anew)
{
    struct client *c = client_joined(f, 1, async_);
    struct error e;

    set_updater(c, MOMENTUM, "keep");
    uint64_t id = do_init(c, 3, 0, COUNT);
    do_push(c, id, 1, 1, COUNT);
    set_updater(c, MOMENTUM, "reset");
    do_push(c, id, 2, 1, COUNT);
    CHECK(slot(c, id, "momentum") == -1);
    CHECK(try_json(c, WIRE_SetUpdater, &e, "{\"store\": %u, \"updater\": null, \"states\": \"drop\"}", c->store) == NULL);
    CHECK_SAYS(e.text, "/states: must be keep, reset or convert");
    client_gone(c);
}

/* Neither an updater that does not fit nor one that finds no memory changes what a key has. */
TEST(a_swap_that_finds_no_memory_leaves_the_state)
{
    for (uint64_t n = 1;; n++) {
        struct device *d = device_of_kinds(ON_THREADS, 0);
        struct fixture *f = fixture_new(d, 0);
        struct client *c = client_joined(f, 1, async_);
        struct error e;
        set_updater(c, MOMENTUM, "keep");
        uint64_t id = do_init(c, 3, 0, COUNT);
        do_push(c, id, 1, 1, COUNT);
        fixture_settle(f);
        struct updater *u = NULL;
        CHECK_OK(updater_parse(bytes_text(ADAM), &u, &e), &e);
        updater_follow(u, key_at(c, id)->state.updater, STATES_CONVERT);
        mem_fault_at(n);
        enum status s = state_fit(key_at(c, id), u, &e);
        bool hit = mem_fault_hit();
        mem_fault_at(0);
        if (s != STATUS_OK) {
            CHECK_EQ(s, STATUS_RESOURCE_EXHAUSTED);
            CHECK(slot(c, id, "momentum") == -1);
        } else {
            CHECK(slot(c, id, "mean") == 0.5f);
        }
        updater_drop(u);
        client_gone(c);
        fixture_free(f);
        if (!hit) break;
        CHECK(n < 20);
    }
}

/* ---- schedules -------------------------------------------------------------------------------------------------- */

STATE_TEST(schedules_follow_the_largest_counter_of_the_store)
{
    struct client *c = client_joined(f, 1, async_);

    set_updater(c, "{\"type\": \"sgd\", \"learning_rate\": 1, \"schedule\": {\"type\": \"step\", \"step_size\": 2, \"gamma\": 0.5}}",
                "keep");
    uint64_t a = do_init(c, 3, 0, COUNT), b = do_init(c, 4, 0, COUNT);
    for (uint64_t step = 1; step <= 4; step++) { /* 1 + 1 + 0.5 + 0.5 */
        do_push(c, a, step, 1, COUNT);
        fixture_settle(f);
    }
    do_push(c, b, 1, 1, COUNT);                  /* its first, but the store is at 4 */
    fixture_settle(f);
    CHECK(do_pull(c, a, COUNT) == -3);
    CHECK(do_pull(c, b, COUNT) == -0.5f);
    client_gone(c);
}

STATE_TEST(overrides_are_those_of_the_keys_name)
{
    struct client *c = client_joined(f, 1, async_);

    set_updater(c, "{\"type\": \"sgd\", \"learning_rate\": 1, \"overrides\": [{\"match\": \"1?\", \"lr_mult\": 0.5}]}", "keep");
    uint64_t a = do_init(c, 1, 0, COUNT), b = do_init(c, 12, 0, COUNT);
    do_push(c, a, 1, 1, COUNT);
    do_push(c, b, 1, 1, COUNT);
    fixture_settle(f);
    CHECK(do_pull(c, a, COUNT) == -1);
    CHECK(do_pull(c, b, COUNT) == -0.5f);
    client_gone(c);
}

/* ---- f16 and bf16 ----------------------------------------------------------------------------------------------- */

static uint64_t half_key(struct client *c, enum dtype t, uint16_t value)
{
    struct wire_init fixed = {.store = c->store, .count = 1, .call = 5};
    struct wire_init_entry x = {.number = 1, .size = 2 * COUNT, .total = 2 * COUNT, .ndim = 1, .dtype = (uint8_t)t};
    struct buf fb = {0}, d = {0};
    struct wire_init_result r;
    uint16_t values[COUNT];
    int64_t dim = COUNT;

    for (int i = 0; i < COUNT; i++) values[i] = value;
    wire_put_init(&fb, &fixed);
    wire_put_init_entry(&d, &x);
    buf_add(&d, &dim, 8);
    struct answered *a = client_await(c, client_send(c, WIRE_Init, 0, 0, bytes_of(fb.at, fb.size), bytes_of(d.at, d.size),
                                                     bytes_of(values, sizeof values)));
    struct reader in = reader_of(a->desc);
    CHECK(wire_get_init_result(&in, &r));
    answered_free(a);
    buf_fini(&fb), buf_fini(&d);
    return r.key;
}

static void push_half(struct client *c, uint64_t id, enum dtype t, uint64_t step, uint16_t value)
{
    uint16_t values[COUNT];
    struct error e;

    for (int i = 0; i < COUNT; i++) values[i] = value;
    CHECK_OK(try_push(c, id, step, values, sizeof values, t, &e), &e);
}

static uint16_t pull_half(struct client *c, uint64_t id)
{
    uint16_t values[COUNT];
    struct error e;

    CHECK_OK(try_pull(c, id, 0, values, sizeof values, NULL, &e), &e);
    for (int i = 1; i < COUNT; i++) CHECK_EQ(values[i], values[0]);
    return values[0];
}

/* 64 times 2^-9 on 1 in bf16, whose unit there is 2^-7. */
STATE_TEST(small_steps_of_a_bf16_value_add_up_in_its_master)
{
    struct client *c = client_joined(f, 1, async_);

    set_updater(c, "{\"type\": \"test\"}", "keep");
    uint64_t id = half_key(c, DTYPE_bf16, half_narrow_bf16(1));
    for (uint64_t step = 1; step <= 64; step++) push_half(c, id, DTYPE_bf16, step, half_narrow_bf16(0x1p-9f));
    fixture_settle(f);
    CHECK(half_widen_bf16(pull_half(c, id)) == 1.125f);
    CHECK(slot(c, id, "master") == 1.125f);
    set_updater(c, "{\"type\": \"sgd\", \"learning_rate\": 1, \"multi_precision\": false}", "keep");
    for (uint64_t step = 65; step <= 128; step++) push_half(c, id, DTYPE_bf16, step, half_narrow_bf16(-0x1p-9f));
    fixture_settle(f);
    CHECK(half_widen_bf16(pull_half(c, id)) == 1.125f);
    CHECK(!has_piece(c, id, "master"));
    client_gone(c);
}

/* 2048 + 1 + 1: f16 has no 2049, so a sum taken in f16 would be 2048. */
STATE_TEST(a_round_of_f16_is_summed_in_f32)
{
    struct client *a = client_joined(f, 1, sync2), *b = client_joined(f, 2, sync2);
    struct error e;

    set_updater(a, "{\"type\": \"add\"}", "keep");
    uint64_t id = half_key(a, DTYPE_f16, half_narrow_f16(2048));
    push_half(a, id, DTYPE_f16, 1, half_narrow_f16(1));
    push_half(b, id, DTYPE_f16, 1, half_narrow_f16(1));
    CHECK_EQ(do_wait(a, WAIT_TICKET, id, 1, 50, &e), WAIT_DONE);
    CHECK(half_widen_f16(pull_half(b, id)) == 2050);
    client_gone(a), client_gone(b);
}

STATE_TEST(without_an_updater_a_half_value_is_what_was_pushed)
{
    struct client *c = client_joined(f, 1, async_);
    uint64_t id = half_key(c, DTYPE_f16, 0x3c00);

    push_half(c, id, DTYPE_f16, 1, 0x7e01); /* a NaN, bit for bit: nothing is computed */
    fixture_settle(f);
    CHECK_EQ(pull_half(c, id), 0x7e01);
    CHECK(!has_piece(c, id, "master"));
    client_gone(c);
}

/* ---- swaps between pushes: the same as one after the other -------------------------------------------------------- */

enum { OPERATIONS = 120, KEYS = 3 };

static const char *const updaters[] = {
    MOMENTUM, ADAM, "{\"type\": \"lion\"}", "{\"type\": \"nadam\"}", "{\"type\": \"lamb\"}", "{\"type\": \"dcasgd\"}",
    "{\"type\": \"adafactor\"}", "{\"type\": \"adagrad\"}", "null", "{\"type\": \"adamw\", \"wd\": 0.1}",
};

/* Values, slots and counters of all keys, one behind the other. */
struct history {
    float values[KEYS][COUNT], slots[KEYS][STATE_PIECES][COUNT];
    uint64_t updates[KEYS], begun[KEYS];
};

static void run_history(struct device *d, uint64_t seed, bool serially, struct history *h)
{
    static const char *const states[] = {"keep", "reset", "convert"};
    struct fixture *f = fixture_new(d, 0);
    struct client *c = client_joined(f, 1, async_);
    uint64_t ids[KEYS], steps[KEYS] = {0};
    struct error e;

    memset(h, 0, sizeof *h);
    for (int k = 0; k < KEYS; k++) ids[k] = do_init(c, k, (float)k + 1, COUNT);
    for (int i = 0; i < OPERATIONS; i++) {
        uint64_t r = rng_next(&seed);
        int k = (int)(r / 16 % KEYS);
        if (r % 4 == 0) set_updater(c, updaters[r / 16 % (sizeof updaters / sizeof updaters[0])], states[r / 1024 % 3]);
        else do_push(c, ids[k], ++steps[k], (float)(r / 64 % 17) - 8, COUNT);
        if (serially) fixture_settle(f);
    }
    fixture_settle(f);
    for (int k = 0; k < KEYS; k++) {
        struct state_piece all[STATE_PIECES];
        unsigned n = state_pieces(key_at(c, ids[k]), all);
        CHECK_OK(try_pull(c, ids[k], 0, h->values[k], sizeof h->values[k], NULL, &e), &e);
        for (unsigned i = 0; i < n; i++) read_piece(c, ids[k], all[i].name, h->slots[k][i]);
        h->updates[k] = key_at(c, ids[k])->state.updates;
        h->begun[k] = key_at(c, ids[k])->state.begun;
    }
    client_gone(c);
    fixture_free(f);
}

TEST(swaps_among_pushes_come_to_the_same_bits_as_one_after_the_other)
{
    static struct history want, got;
    struct device *d;

    for (uint64_t seed = 1; seed <= 20; seed++) {
        run_history(device_of_kinds(ON_THREADS, 0), seed, true, &want);
        for (unsigned i = 0; (d = device_of_kinds(STATE_KINDS, i)) != NULL; i++) {
            run_history(d, seed, false, &got);
            if (memcmp(&want, &got, sizeof want) != 0) test_fail(__FILE__, __LINE__, "device %u, seed %d", i, (int)seed);
        }
    }
}
