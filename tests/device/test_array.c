/* Several devices as one: where values lie, what is refused, and what becomes of the whole when a member goes. That
 * its work is right is tested with every other device's (test_device.c, test_store.c). */
#include "gpu/array.h"
#include "service/base/mem.h"
#include "tests/lib/faulty_device.h"
#include "tests/lib/late_device.h"
#include "tests/lib/test.h"

#include <stdatomic.h>
#include <string.h>

enum { PART = DMEM_ALIGN, COUNT = 5 * PART + 7, SIZE = COUNT * 4 };

static struct error error;

static struct device *late(uint64_t seed)
{
    struct device *d = NULL;
    CHECK_OK(late_device_new(seed, &d, &error), &error);
    return d;
}

static struct device *faulty(void)
{
    struct device *d = NULL;
    CHECK_OK(faulty_device_new(late(7), &d, &error), &error);
    return d;
}

static struct device *several(struct device *a, struct device *b, struct device *c)
{
    struct device *members[] = {a, b, c}, *d = NULL;
    struct array_config config = {.members = members, .count = c != NULL ? 3 : 2, .part = PART};
    CHECK_OK(array_device_new(&config, &d, &error), &error);
    return d;
}

static struct dmem room(struct device *d, size_t size, uint32_t home)
{
    struct dmem m;
    CHECK_OK(device_mem_new_at(d, size, mem_place_of(home, 4), &m, &error), &error);
    return m;
}

static struct queue *open_queue(struct device *d)
{
    struct queue *q = NULL;
    CHECK_OK(device_queue_new(d, &q, &error), &error);
    return q;
}

#define REFUSED(call, part)                                  \
    do {                                                     \
        CHECK_EQ(call, STATUS_INVALID_ARGUMENT);             \
        CHECK_SAYS(device_error(d)->text, part);             \
    } while (0)

TEST(a_value_lies_where_most_room_is)
{
    struct device *d = several(late(1), late(2), late(3));
    struct dmem m[3];
    uint32_t homes[3];

    for (size_t i = 0; i < 3; i++) {
        homes[i] = device_home_new(d, 10, false, 100 - 10 * i);
        m[i] = room(d, 100 - 10 * i, homes[i]);
    }
    CHECK_EQ(array_member(d, 0)->bytes_held, 100);
    CHECK_EQ(array_member(d, 1)->bytes_held, 90);
    CHECK_EQ(array_member(d, 2)->bytes_held, 80);
    CHECK_EQ(d->bytes_held, 270);
    for (size_t i = 0; i < 3; i++) CHECK_TEXT(device_home_name(d, homes[i]), "late");
    device_home_keep(d, homes[1], 10, -90);
    CHECK_EQ(device_home_new(d, 10, false, 50), homes[1]);
    CHECK_EQ(device_home_new(d, 10, false, 50), homes[1]);
    CHECK_EQ(device_home_new(d, 10, false, 50), homes[2]);
    for (size_t i = 0; i < 3; i++) device_mem_free(&m[i]);
    device_free(d);
}

/* ---- the last resort --------------------------------------------------------------------------------------------- */

enum { CAPACITY = 1000 };

static struct device *with_cpu(struct device *a, struct device *b)
{
    struct device *members[] = {a, b}, *cpu = NULL, *d = NULL;

    a->capacity = b->capacity = CAPACITY;
    CHECK_OK(cpu_device_new(1, &cpu, &error), &error);
    struct array_config config = {.members = members, .count = 2, .part = PART, .cpu = cpu};
    CHECK_OK(array_device_new(&config, &d, &error), &error);
    CHECK(d->cpu == cpu);
    CHECK_EQ(array_member_count(d), 2);
    return d;
}

TEST(a_value_for_which_no_member_has_room_lies_on_the_cpu)
{
    struct device *d = with_cpu(late(1), late(2));
    uint32_t first = device_home_new(d, 10, false, CAPACITY), second = device_home_new(d, 10, false, CAPACITY - 1);
    uint32_t third = device_home_new(d, 10, false, 2);
    struct dmem m = room(d, 40, third);

    CHECK(first != second && !(first & HOME_ON_CPU) && !(second & HOME_ON_CPU));
    CHECK_EQ(third, HOME_ON_CPU);
    CHECK_TEXT(device_home_name(d, third), "cpu");
    CHECK_EQ(d->cpu->bytes_held, 40);
    CHECK(m.host != NULL);
    CHECK_EQ(device_home_new(d, 10, false, 1), second);
    device_mem_free(&m);
    device_free(d);
}

TEST(room_that_is_given_back_is_taken_before_the_cpu)
{
    struct device *d = with_cpu(late(1), late(2));
    uint32_t first = device_home_new(d, 10, false, CAPACITY), second = device_home_new(d, 10, false, CAPACITY);

    CHECK_EQ(device_home_new(d, 10, false, 1), HOME_ON_CPU);
    device_home_keep(d, first, 10, -CAPACITY);
    CHECK_EQ(device_home_new(d, 10, false, CAPACITY), first);
    device_home_keep(d, second, 10, -CAPACITY);
    CHECK_EQ(device_home_new(d, 10, false, CAPACITY + 1), HOME_ON_CPU);
    CHECK_EQ(device_home_new(d, 10, false, CAPACITY), second);
    device_free(d);
}

/* Three parts and a bit of four: two of them and the bit's half on either member. */
TEST(a_value_in_parts_wants_room_on_each_member_for_its_share)
{
    enum { ELEMENTS = 3 * PART + 8, LARGE = 4 * PART };
    struct device *d = with_cpu(late(1), late(2));
    uint32_t home = device_home_new(d, ELEMENTS, false, 5 * ELEMENTS);

    CHECK_EQ(home, HOME_IN_PARTS);
    CHECK_TEXT(device_home_name(d, home), "2xlate");
    /* 640 and 360 bytes are kept. */
    CHECK_EQ(device_home_new(d, PART, false, CAPACITY - 5 * (PART + 8) + 1), HOME_ON_CPU);
    CHECK_EQ(device_home_new(d, ELEMENTS, false, 6 * ELEMENTS), HOME_ON_CPU);
    CHECK(device_home_new(d, ELEMENTS, false, 5 * ELEMENTS) != home);
    CHECK_EQ(device_home_new(d, 1, false, 1), HOME_ON_CPU);
    device_home_keep(d, home, ELEMENTS, -2 * 5 * ELEMENTS); /* of both: with two parts each the shares are alike */
    CHECK_EQ(device_home_new(d, LARGE, false, 3 * LARGE), home);
    CHECK_EQ(device_home_new(d, PART, false, CAPACITY - 3 * LARGE / 2), 0);
    CHECK_EQ(device_home_new(d, PART, true, CAPACITY + 1), HOME_ON_CPU);
    device_free(d);
}

TEST(without_a_last_resort_there_is_no_such_home_and_nothing_is_sent_there)
{
    struct device *d = several(late(1), late(2), NULL);
    struct dmem m;

    CHECK(d->cpu == NULL);
    CHECK_EQ(device_home_new(d, 10, false, (uint64_t)1 << 60), 0);
    CHECK_EQ(device_mem_new_at(d, 4, mem_place_of(HOME_ON_CPU, 4), &m, &error), STATUS_INVALID_ARGUMENT);
    CHECK_SAYS(error.text, "2 is no home");
    device_free(d);
}

TEST(the_cpu_is_lost_with_a_member_and_comes_to_rest)
{
    struct device *bad = faulty(), *d = with_cpu(late(1), bad);
    struct queue *q = open_queue(d);
    struct dmem m = room(d, SIZE, HOME_ON_CPU), n = room(d, SIZE, device_home_new(d, COUNT, false, 0));
    uint64_t mark;

    CHECK_EQ(device_zero(q, m, SIZE), STATUS_OK);
    CHECK_EQ(device_zero(q, n, SIZE), STATUS_OK);
    faulty_device_fail_at(bad, 1, FAULT_REFUSED);
    CHECK_EQ(device_record(q, &mark), STATUS_UNAVAILABLE);
    CHECK_SAYS(device_error(d)->text, "device is lost: faulty");
    CHECK_EQ(device_zero(q, m, SIZE), STATUS_UNAVAILABLE);
    device_queue_free(q);
    device_mem_free(&m), device_mem_free(&n);
    device_free(d);
}

TEST(a_large_value_is_cut_at_the_same_elements_whatever_their_size)
{
    struct device *d = several(late(1), late(2), NULL);
    uint32_t home = device_home_new(d, COUNT, false, 0);
    struct dmem halves, singles;

    CHECK(home & HOME_IN_PARTS);
    CHECK_OK(device_mem_new_at(d, COUNT * 2, mem_place_of(home, 2), &halves, &error), &error);
    CHECK_EQ(array_member(d, 0)->bytes_held, 3 * PART * 2);
    singles = room(d, SIZE, home);
    CHECK_EQ(array_member(d, 0)->bytes_held, 3 * PART * 6);
    CHECK_EQ(array_member(d, 1)->bytes_held, (2 * PART + 7) * 6);
    CHECK(halves.host == NULL && halves.at != singles.at);
    device_mem_free(&halves), device_mem_free(&singles);
    device_free(d);
}

TEST(a_value_that_has_to_be_whole_or_is_small_is_not_cut)
{
    struct device *d = several(late(1), late(2), NULL);

    CHECK(!(device_home_new(d, COUNT, true, 0) & HOME_IN_PARTS));
    CHECK(!(device_home_new(d, PART, false, 0) & HOME_IN_PARTS));
    CHECK(device_home_new(d, PART + 1, false, 0) & HOME_IN_PARTS);
    device_free(d);
}

TEST(a_device_that_is_one_has_one_home)
{
    struct device *d = late(1);
    struct dmem m;

    CHECK_EQ(device_home_new(d, COUNT, false, 0), 0);
    CHECK_EQ(device_mem_new_at(d, 4, mem_place_of(2, 4), &m, &error), STATUS_INVALID_ARGUMENT);
    CHECK_SAYS(error.text, "no home 2");
    device_free(d);
}

TEST(memory_that_does_not_lie_together_is_refused)
{
    struct device *d = several(late(1), late(2), NULL);
    struct queue *q = open_queue(d);
    uint32_t home = device_home_new(d, COUNT, false, 0), flags = 0;
    struct dmem a = room(d, SIZE, home), b = room(d, SIZE, 0), c = room(d, SIZE, home), longs, m;
    struct step s = {.rule = RULE_lars_momentum, .type = DTYPE_f32, .count = COUNT, .sum = a, .from = c, .to = c,
                     .flags = &flags};
    struct stats stats;

    CHECK_OK(device_mem_new_at(d, 2 * SIZE, mem_place_of(home, 8), &longs, &error), &error);
    REFUSED(device_copy(q, a, b, SIZE), "different places");
    REFUSED(device_copy(q, a, longs, SIZE), "different places");
    REFUSED(device_add(q, a, b, DTYPE_f32, COUNT, &flags), "different places");
    REFUSED(device_add(q, a, longs, DTYPE_f32, COUNT, &flags), "different places");
    REFUSED(device_widen(q, b, a, DTYPE_f32, COUNT), "different places");
    REFUSED(device_stats(q, a, b, DTYPE_f32, COUNT, &stats), "different places");
    s.slots[0] = room(d, SIZE, home);
    s.scratch = room(d, step_scratch_size(s.rule, COUNT), home);
    REFUSED(device_step(q, &s), "needs the whole value, which lies in 6 parts");
    s.rule = RULE_momentum;
    s.sum = b;
    REFUSED(device_step(q, &s), "different places");
    CHECK_EQ(device_mem_new_at(d, 4, mem_place_of(7 << 2, 4), &m, &error), STATUS_INVALID_ARGUMENT);
    CHECK_EQ(late_device_pending(array_member(d, 0)) + late_device_pending(array_member(d, 1)), 0);
    device_mem_free(&a), device_mem_free(&b), device_mem_free(&c), device_mem_free(&longs);
    device_mem_free(&s.slots[0]), device_mem_free(&s.scratch);
    device_queue_free(q);
    device_free(d);
}

TEST(with_a_member_the_whole_is_lost_and_the_others_come_to_rest)
{
    struct device *bad = faulty(), *d = several(late(1), bad, late(2));
    struct queue *q = open_queue(d), *side = open_queue(d);
    uint32_t home = device_home_new(d, COUNT, false, 0), flags = 0;
    struct dmem a = room(d, SIZE, home), b = room(d, SIZE, home);
    struct stats stats = {.count = 77};
    uint64_t mark, passed;

    CHECK_EQ(device_zero(q, a, SIZE), STATUS_OK);
    CHECK_EQ(device_zero(side, b, SIZE), STATUS_OK);
    CHECK_EQ(device_record(q, &mark), STATUS_OK);
    CHECK_EQ(device_add(q, a, b, DTYPE_f32, COUNT, &flags), STATUS_OK);
    CHECK_EQ(device_stats(q, a, b, DTYPE_f32, COUNT, &stats), STATUS_OK);
    faulty_device_fail_at(bad, 1, FAULT_REFUSED);
    CHECK_EQ(device_record(q, &mark), STATUS_UNAVAILABLE);
    CHECK_SAYS(device_error(d)->text, "the 3xlate device is lost: faulty");
    CHECK_EQ(device_passed(q, &passed), STATUS_UNAVAILABLE);
    CHECK_EQ(late_device_pending(array_member(d, 0)) + late_device_pending(array_member(d, 2)), 0);
    device_queue_free(q), device_queue_free(side);
    device_mem_free(&a), device_mem_free(&b);
    CHECK_EQ(stats.count, 77); /* nobody writes to whom was told of the loss */
    device_free(d);
}

/* Who cannot say what a value is must not go on with it. */
TEST(a_call_of_which_a_part_was_done_loses_the_whole)
{
    struct device *bad = faulty(), *d = several(late(1), bad, NULL);
    struct queue *q = open_queue(d);
    struct dmem a = room(d, SIZE, device_home_new(d, COUNT, false, 0));

    faulty_device_fail_at(bad, 1, FAULT_REFUSED);
    CHECK_EQ(device_zero(q, a, SIZE), STATUS_UNAVAILABLE);
    CHECK(d->lost);
    device_mem_free(&a);
    device_queue_free(q);
    device_free(d);
}

static void count_news(void *ctx) { atomic_fetch_add((atomic_int *)ctx, 1); }

TEST(what_a_member_tells_is_told)
{
    struct device *d = several(late(1), late(2), NULL);
    struct queue *q = open_queue(d);
    struct dmem a = room(d, SIZE, device_home_new(d, COUNT, false, 0));
    atomic_int news = 0;
    uint64_t mark;

    d->notify = count_news;
    d->notify_ctx = &news;
    CHECK_EQ(device_zero(q, a, SIZE), STATUS_OK);
    CHECK_EQ(device_record(q, &mark), STATUS_OK);
    CHECK(news > 0);
    CHECK_EQ(device_wait(q, mark), STATUS_OK);
    device_mem_free(&a);
    device_queue_free(q);
    device_free(d);
}

TEST(bad_members_are_refused_and_taken)
{
    struct device *members[ARRAY_MEMBERS_MAX + 1], *d = NULL;
    int64_t before = mem_live();

    CHECK_EQ(array_device_new(&(struct array_config){.members = members}, &d, &error), STATUS_INVALID_ARGUMENT);
    for (unsigned i = 0; i <= ARRAY_MEMBERS_MAX; i++) members[i] = late(i);
    CHECK_EQ(array_device_new(&(struct array_config){.members = members, .count = ARRAY_MEMBERS_MAX + 1}, &d, &error), STATUS_INVALID_ARGUMENT);
    members[0] = late(1);
    CHECK_EQ(array_device_new(&(struct array_config){.members = members, .count = 1, .part = PART + 1}, &d, &error), STATUS_INVALID_ARGUMENT);
    CHECK_EQ(mem_live(), before);
}

/* ---- no memory -------------------------------------------------------------------------------------------------- */

static enum status some_work_with(struct device *d, struct mem_place place)
{
    static float in[COUNT], out[COUNT];
    struct queue *q = NULL, *side = NULL;
    struct dmem a = {0}, b = {0};
    uint32_t flags = 0;
    uint64_t mark = 0;
    enum status s;

    for (size_t i = 0; i < COUNT; i++) in[i] = (float)i;
    if ((s = device_queue_new(d, &q, &error)) != STATUS_OK) goto out;
    if ((s = device_queue_new(d, &side, &error)) != STATUS_OK) goto out;
    if ((s = device_mem_new_at(d, SIZE, place, &a, &error)) != STATUS_OK) goto out;
    if ((s = device_mem_new_at(d, SIZE, place, &b, &error)) != STATUS_OK) goto out;
    if ((s = device_upload(q, a, 0, in, SIZE)) != STATUS_OK) goto out;
    if ((s = device_record(q, &mark)) != STATUS_OK) goto out;
    if ((s = device_await(side, q, mark)) != STATUS_OK) goto out;
    if ((s = device_copy(side, b, a, SIZE)) != STATUS_OK) goto out;
    if ((s = device_add(side, b, a, DTYPE_f32, COUNT, &flags)) != STATUS_OK) goto out;
    if ((s = device_download(side, out, b, 0, SIZE)) != STATUS_OK) goto out;
    if ((s = device_record(side, &mark)) != STATUS_OK) goto out;
    s = device_wait(side, mark);
    for (size_t i = 0; i < COUNT && s == STATUS_OK; i++) CHECK(out[i] == 2 * (float)i);
out:
    device_queue_free(q), device_queue_free(side);
    device_mem_free(&a), device_mem_free(&b);
    return s;
}

static enum status some_work(struct device *d)
{
    return some_work_with(d, mem_place_of(device_home_new(d, COUNT, false, 0), 4));
}

TEST(every_failing_allocation_is_a_status)
{
    int64_t before = mem_live();

    for (uint64_t n = 1;; n++) {
        struct device *members[2] = {late(n), late(n + 1)}, *d = NULL;
        mem_fault_at(n);
        enum status s = array_device_new(&(struct array_config){.members = members, .count = 2, .part = PART}, &d, &error);
        if (s == STATUS_OK) s = some_work(d);
        bool hit = mem_fault_hit();
        mem_fault_at(0);
        device_free(d);
        CHECK_EQ(mem_live(), before);
        CHECK_EQ(s == STATUS_OK, !hit);
        if (!hit) return;
    }
}

TEST(every_failing_call_of_a_member_is_a_status)
{
    for (int mode = FAULT_REFUSED; mode <= FAULT_SYSTEM_MARK; mode++)
        for (uint64_t n = 1;; n++) {
            struct device *bad = faulty(), *d = several(late(n), bad, NULL);
            faulty_device_fail_at(bad, n, (enum fault_mode)mode);
            enum status s = some_work(d);
            bool hit = faulty_device_hit(bad);
            CHECK_EQ(s == STATUS_OK, !hit);
            if (d->lost && !bad->lost) CHECK_SAYS(d->why, "a part of the work was done");
            device_free(d);
            if (!hit) break;
        }
}

TEST(with_every_call_that_loses_a_member_the_whole_says_which_one)
{
    for (uint64_t n = 1;; n++) {
        struct device *bad = faulty(), *d = several(bad, late(n), NULL);
        struct mem_place on_first = {0};
        faulty_device_fail_at(bad, n, FAULT_REFUSED);
        enum status s = some_work_with(d, on_first);
        bool hit = faulty_device_hit(bad);
        CHECK_EQ(d->lost, bad->lost);
        if (d->lost) CHECK_SAYS(device_error(d)->text, "device is lost: faulty");
        else CHECK_EQ(s, hit ? STATUS_RESOURCE_EXHAUSTED : STATUS_OK);
        device_free(d);
        if (!hit) return;
    }
}

TEST(what_the_system_refuses_a_member_loses_nothing)
{
    for (int mode = FAULT_SYSTEM; mode <= FAULT_SYSTEM_MARK; mode++)
        for (uint64_t n = 1;; n++) {
            struct device *bad = faulty(), *d = several(bad, late(n), NULL);
            struct mem_place on_first = {0};
            faulty_device_fail_at(bad, n, (enum fault_mode)mode);
            enum status s = some_work_with(d, on_first);
            bool hit = faulty_device_hit(bad);
            CHECK_EQ(s, hit ? STATUS_UNAVAILABLE : STATUS_OK);
            if (hit) CHECK_EQ(device_error(d)->reason, REASON_SYSTEM);
            CHECK(!d->lost);
            faulty_device_fail_at(bad, 0, FAULT_SYSTEM);
            CHECK_EQ(some_work_with(d, on_first), STATUS_OK);
            device_free(d);
            if (!hit) break;
        }
}
