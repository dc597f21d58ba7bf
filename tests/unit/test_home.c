/* Where keys lie when a GPU is full and the CPU is its last resort: over the protocol, on late devices and on the stand-in
 * for CUDA. */
#include "gpu/array.h"
#include "gpu/plugin.h"
#include "service/base/log.h"
#include "tests/lib/direct.h"
#include "tests/lib/faulty_device.h"
#include "tests/lib/late_device.h"
#include "tests/lib/sim_device.h"
#include "tests/lib/test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { COUNT = 1000, SIZE = 4 * COUNT };

static struct error error;

static struct device *resort(struct device *gpu)
{
    struct device *cpu = NULL, *d = NULL;

    CHECK_OK(cpu_device_new(1, &cpu, &error), &error);
    CHECK_OK(array_device_new(&(struct array_config){.members = &gpu, .count = 1, .cpu = cpu}, &d, &error), &error);
    return d;
}

/* A device with room for two keys under sgd with momentum: value, spare, momentum, sum and a contribution of each. */
static struct device *room_for_two(unsigned i)
{
    struct device *d = NULL;

    if (i < 3) {
        CHECK_OK(late_device_new(i, &d, &error), &error);
        d->capacity = 2 * 5 * SIZE;
    } else if (i < 3 + SIM_SEEDS && sim_present() && !sim_replaced()) {
        CHECK_OK(sim_device_new(i, &d, &error), &error);
        device_free(d);
        struct card card = {.memory_max = 2 * 5 * SIZE, .chunk_size = 1, .slot_size = 4096};
        CHECK_OK(cuda_device_new(&card, &d, &error), &error);
    } else {
        return NULL;
    }
    return resort(d);
}

#define HOME_TEST(name)                                                       \
    static void body_##name(struct fixture *f, const char *gpu);              \
    TEST(name)                                                                \
    {                                                                         \
        struct device *d;                                                     \
        log_set_level(LOG_OFF);                                               \
        for (unsigned i = 0; (d = room_for_two(i)) != NULL; i++) {            \
            const char *gpu = i < 3 ? "late" : "cuda:0";                      \
            struct fixture *f = fixture_new(d, 0);                            \
            body_##name(f, gpu);                                              \
            fixture_free(f);                                                  \
            if (i >= 3 && sim_remains() != NULL) test_fail(__FILE__, __LINE__, "%s", sim_remains()); \
        }                                                                     \
    }                                                                         \
    static void body_##name(struct fixture *f, const char *gpu)

static struct client *joined(struct fixture *f)
{
    struct client *c = client_new(f, 1);

    client_join(c, "\"type\": \"dist_async\"");
    do_json(c, WIRE_SetUpdater, "{\"store\": %u, \"updater\": {\"type\": \"sgd\", \"learning_rate\": 0.5, \"momentum\": 0.5}}",
            c->store);
    return c;
}

static void check_home(struct client *c, int key, const char *where)
{
    json_t *j = try_json(c, WIRE_Describe, &error, "{\"store\": %u, \"keys\": [%d]}", c->store, key);

    CHECK(j != NULL);
    CHECK_TEXT(json_string_value(json_object_get(json_array_get(json_object_get(j, "items"), 0), "device")), where);
    json_decref(j);
}

static json_int_t told(struct client *c, const char *group, const char *name)
{
    json_t *j = try_json(c, WIRE_Stats, &error, "{}"), *d;

    CHECK(j != NULL);
    d = json_object_get(j, "daemon");
    json_int_t n = json_integer_value(json_object_get(group != NULL ? json_object_get(d, group) : d, name));
    json_decref(j);
    return n;
}

HOME_TEST(keys_lie_on_the_gpu_while_it_has_room_for_them_and_their_pushes)
{
    struct client *c = joined(f);
    uint64_t id[4];

    for (int k = 0; k < 4; k++) {
        id[k] = do_init(c, k, (float)k, COUNT);
        check_home(c, k, k < 2 ? gpu : "cpu");
    }
    CHECK_EQ(told(c, NULL, "keys_on_cpu"), 2);
    CHECK_EQ(told(c, "memory", "cpu"), 2 * 3 * SIZE);
    /* Both kinds give the same numbers, and all pushes at once have room. */
    for (uint64_t step = 1; step <= 3; step++) {
        for (int k = 0; k < 4; k++) do_push(c, id[k], step, 1, COUNT);
        fixture_settle(f);
    }
    for (int k = 0; k < 4; k++) CHECK_NEAR(do_pull(c, id[k], COUNT), (float)k - 0.5f - 0.75f - 0.875f, 0);
    client_gone(c);
}

HOME_TEST(room_of_a_deleted_key_is_the_next_ones)
{
    struct client *c = joined(f);

    for (int k = 0; k < 3; k++) do_init(c, k, 1, COUNT);
    check_home(c, 2, "cpu");
    do_json(c, WIRE_Delete, "{\"store\": %u, \"keys\": [0]}", c->store);
    fixture_settle(f);
    do_init(c, 3, 1, COUNT);
    check_home(c, 3, gpu);
    do_init(c, 4, 1, COUNT);
    check_home(c, 4, "cpu");
    do_json(c, WIRE_Delete, "{\"store\": %u, \"keys\": [2, 4]}", c->store);
    fixture_settle(f);
    CHECK_EQ(told(c, NULL, "keys_on_cpu"), 0);
    CHECK_EQ(f->device->cpu->bytes_held, 0);
    client_gone(c);
}

HOME_TEST(a_swap_takes_keys_of_both_kinds_and_its_slots_are_room_that_is_kept)
{
    struct client *c = joined(f);
    uint64_t id[2];

    do_json(c, WIRE_SetUpdater, "{\"store\": %u, \"updater\": {\"type\": \"sgd\", \"learning_rate\": 0.5}}", c->store);
    id[0] = do_init(c, 0, 1, COUNT);
    id[1] = do_init(c, 1, 1, 3 * COUNT);
    check_home(c, 0, gpu);
    check_home(c, 1, "cpu");
    do_json(c, WIRE_SetUpdater, "{\"store\": %u, \"updater\": {\"type\": \"adagrad\", \"learning_rate\": 0.5}}", c->store);
    for (int k = 0; k < 2; k++) do_push(c, id[k], 1, 1, k == 0 ? COUNT : 3 * COUNT);
    fixture_settle(f);
    CHECK_NEAR(do_pull(c, id[0], COUNT), do_pull(c, id[1], 3 * COUNT), 0);
    CHECK_NEAR(do_pull(c, id[0], COUNT), 0.5, 1e-4);
    do_init(c, 2, 1, COUNT + 1);             /* fits beside the four of before, not beside the five */
    check_home(c, 2, "cpu");
    do_init(c, 3, 1, COUNT);
    check_home(c, 3, gpu);
    client_gone(c);
}

HOME_TEST(an_init_that_never_comes_whole_gives_its_room_back)
{
    struct client *c = joined(f);
    struct wire_init fixed = {.store = c->store, .count = 1, .call = 5};
    struct wire_init_entry x = {.number = 9, .size = 4, .total = 2 * SIZE, .ndim = 1, .dtype = DTYPE_f32};
    struct buf fb = {0}, d = {0};
    int64_t dim = 2 * COUNT;

    wire_put_init(&fb, &fixed);
    wire_put_init_entry(&d, &x);
    buf_add(&d, &dim, sizeof dim);
    answered_free(client_await(c, client_send(c, WIRE_Init, 0, 0, bytes_of(fb.at, fb.size), bytes_of(d.at, d.size),
                                              bytes_of("abcd", 4))));
    do_init(c, 1, 1, COUNT);
    check_home(c, 1, "cpu");
    fixture_advance(f, PROGRESS_MS + 1);
    client_gone(c);
    c = client_new(f, 2);
    client_join(c, "\"type\": \"dist_async\"");
    do_init(c, 2, 1, COUNT);
    check_home(c, 2, gpu);
    buf_fini(&fb);
    buf_fini(&d);
    client_gone(c);
}

/* What was counted as room may be none: another program has it, or it lies in pieces. */
TEST(an_init_for_which_the_gpu_refuses_memory_after_all_lies_on_the_cpu_whole)
{
    bool hit = true;

    log_set_level(LOG_OFF);
    for (uint64_t n = 1; hit; n++) {
        struct device *late = NULL, *gpu = NULL;
        CHECK_OK(late_device_new(n, &late, &error), &error);
        CHECK_OK(faulty_device_new(late, &gpu, &error), &error);
        struct fixture *f = fixture_new(resort(gpu), 0);
        struct client *c = joined(f);

        faulty_device_fail_at(gpu, n, FAULT_MEMORY);
        uint64_t id = do_init(c, 1, 3, COUNT);
        hit = faulty_device_hit(gpu);
        faulty_device_fail_at(gpu, 0, FAULT_MEMORY);
        check_home(c, 1, hit ? "cpu" : "faulty");
        CHECK_NEAR(do_pull(c, id, COUNT), 3, 0);
        do_push(c, id, 1, 1, COUNT);
        fixture_settle(f);
        CHECK_NEAR(do_pull(c, id, COUNT), 2.5, 0);
        if (hit) CHECK_EQ(gpu->bytes_held, 0);
        CHECK_EQ(hit, n <= 4);       /* the value, the pinned memory in which it arrives, its spare, its slot */
        client_gone(c);
        fixture_free(f);
    }
}

TEST(with_the_gpu_keys_on_the_cpu_are_lost)
{
    struct device *d;
    float value[COUNT] = {0};
    uint64_t id[3];

    log_set_level(LOG_OFF);
    for (unsigned i = 3; (d = room_for_two(i)) != NULL; i++) {
        struct fixture *f = fixture_new(d, 0);
        struct client *c = joined(f);
        for (int k = 0; k < 3; k++) id[k] = do_init(c, k, 1, COUNT);
        fixture_settle(f);
        sim_fault_kernel(1, 0);
        do_push(c, id[0], 1, 1, COUNT);
        fixture_settle(f);
        CHECK(f->device->lost);
        CHECK_EQ(try_push(c, id[2], 1, value, SIZE, DTYPE_f32, &error), STATUS_UNAVAILABLE);
        CHECK_SAYS(error.text, "device is lost: cuda:0: ");
        client_gone(c);
        fixture_free(f);
    }
}
