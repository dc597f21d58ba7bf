/* Memory: what each kind promises, fault points, and the count of live blocks. */
#include "service/base/mem.h"

#include "tests/lib/test.h"

#include <pthread.h>
#include <string.h>

static bool is_zero(const void *at, size_t size)
{
    const uint8_t *p = at;

    for (size_t i = 0; i < size; i++)
        if (p[i] != 0) return false;
    return true;
}

TEST(size_zero_gives_a_pointer)
{
    void *all[] = {mem_new(0), mem_zero(0), mem_array(0, 8), mem_array(8, 0), mem_resize(NULL, 0), mem_aligned(0),
                   mem_text(NULL, 0)};

    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        CHECK(all[i] != NULL);
        mem_free(all[i]);
    }
}

TEST(zero_and_array_are_zeroed_even_in_used_memory)
{
    for (size_t size = 1; size < 3000; size += 97) {
        void *p = mem_new(size);
        CHECK(p != NULL);
        memset(p, 0xEE, size);
        mem_free(p);
        void *z = mem_zero(size), *a = mem_array(size, 3);
        CHECK(z != NULL && a != NULL);
        CHECK(is_zero(z, size) && is_zero(a, size * 3));
        mem_free(z);
        mem_free(a);
    }
}

TEST(an_array_whose_product_does_not_fit_is_null)
{
    CHECK(mem_array(SIZE_MAX, 2) == NULL);
    CHECK(mem_array(2, SIZE_MAX) == NULL);
    CHECK(mem_array(SIZE_MAX / 8 + 1, 8) == NULL);
    CHECK(mem_array((size_t)1 << 32, (size_t)1 << 32) == NULL);
}

TEST(resize_keeps_the_content)
{
    char *p = mem_text("0123456789", 10);

    CHECK(p != NULL);
    char *more = mem_resize(p, 100000);
    CHECK(more != NULL && memcmp(more, "0123456789", 11) == 0);
    char *less = mem_resize(more, 4);
    CHECK(less != NULL && memcmp(less, "0123", 4) == 0);
    mem_free(less);
}

TEST(a_resize_that_fails_leaves_the_block)
{
    int64_t before = mem_live();
    char *p = mem_text("kept", 4);

    CHECK(p != NULL);
    mem_fault_at(1);
    CHECK(mem_resize(p, 1000) == NULL);
    mem_fault_at(0);
    CHECK_TEXT(p, "kept");
    mem_free(p);
    CHECK_EQ(mem_live(), before);
}

TEST(aligned_is_to_64_bytes_and_to_pages_when_big)
{
    for (size_t size = 0; size < 300000; size += size < 300 ? 1 : 4093) {
        uint8_t *p = mem_aligned(size);
        CHECK(p != NULL);
        CHECK_EQ((uintptr_t)p % (size >= 65536 ? 4096 : 64), 0);
        memset(p, 1, size);
        mem_free(p);
    }
}

TEST(sizes_that_cannot_be_are_null)
{
    static const size_t sizes[] = {SIZE_MAX, SIZE_MAX - 1, SIZE_MAX - 63, SIZE_MAX - 64, SIZE_MAX - 4095,
                                   SIZE_MAX - 4096, SIZE_MAX / 2 + 1};
    int64_t before = mem_live();

    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        CHECK(mem_new(sizes[i]) == NULL);
        CHECK(mem_zero(sizes[i]) == NULL);
        CHECK(mem_aligned(sizes[i]) == NULL);
        CHECK(mem_text("x", sizes[i]) == NULL);
    }
    CHECK_EQ(mem_live(), before);
}

TEST(text_is_copied_ended_and_not_read_further)
{
    char *from = guard_new(5);

    memcpy(from, "ab\0cd", 5);
    char *p = mem_text(from, 5);
    CHECK(p != NULL && memcmp(p, "ab\0cd\0", 6) == 0);
    mem_free(p);
    guard_free(from, 5);
}

TEST(grow_keeps_the_elements_and_zeroes_the_new)
{
    uint32_t *array = NULL;
    size_t capacity = 0;
    struct error e;

    for (uint32_t count = 1; count < 5000; count++) {
        void *at = array;
        CHECK_OK(mem_grow(&at, &capacity, count, sizeof *array, &e), &e);
        array = at;
        CHECK(capacity >= count);
        CHECK(is_zero(array + count - 1, (capacity - (count - 1)) * sizeof *array));
        array[count - 1] = count;
    }
    for (uint32_t i = 0; i < 4999; i++) CHECK_EQ(array[i], i + 1);
    mem_free(array);
}

TEST(grow_starts_at_eight_doubles_and_does_nothing_when_there_is_room)
{
    static const struct { size_t from, count, want; } rows[] = {{0, 1, 8}, {0, 8, 8}, {0, 9, 16}, {8, 9, 16},
                                                                 {8, 100, 128}, {3, 4, 6}, {5, 11, 20}};
    struct error e;

    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        void *p = rows[i].from > 0 ? mem_new(rows[i].from * 2) : NULL;
        size_t capacity = rows[i].from;
        CHECK_OK(mem_grow(&p, &capacity, rows[i].count, 2, &e), &e);
        CHECK_EQ(capacity, rows[i].want);
        void *same = p;
        mem_fault_at(1);
        CHECK_OK(mem_grow(&p, &capacity, capacity, 2, &e), &e);
        CHECK(!mem_fault_hit() && p == same);
        mem_fault_at(0);
        mem_free(p);
    }
}

TEST(a_grow_that_fails_leaves_array_and_capacity)
{
    static const size_t counts[] = {17, SIZE_MAX, SIZE_MAX / 2 + 2, SIZE_MAX / 64, (size_t)1 << 62};
    size_t capacity = 0;
    void *p = NULL;
    struct error e;

    CHECK_OK(mem_grow(&p, &capacity, 16, 64, &e), &e);
    memset(p, 0x5A, 16 * 64);
    for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++) {
        void *before = p;
        if (i == 0) mem_fault_at(1);
        CHECK_EQ(mem_grow(&p, &capacity, counts[i], 64, &e), STATUS_RESOURCE_EXHAUSTED);
        mem_fault_at(0);
        CHECK_EQ(e.reason, REASON_NO_MEMORY);
        CHECK(p == before && capacity == 16 && ((uint8_t *)p)[1023] == 0x5A);
    }
    mem_free(p);
}

/* One call of each kind; tells which of them answered NULL, or -1. */
static int allocate_each(void)
{
    void *all[] = {mem_new(10), mem_zero(10), mem_array(2, 5), mem_resize(NULL, 10), mem_aligned(10), mem_text("x", 1)};
    int failed = -1;

    for (int i = 0; i < 6; i++) {
        if (all[i] == NULL) failed = failed == -1 ? i : 99;
        mem_free(all[i]);
    }
    return failed;
}

TEST(the_nth_allocation_fails_once_whatever_its_kind)
{
    for (int n = 1; n <= 6; n++) {
        mem_fault_at((uint64_t)n);
        CHECK(!mem_fault_hit());
        CHECK_EQ(allocate_each(), n - 1);
        CHECK(mem_fault_hit());
        CHECK_EQ(allocate_each(), -1);
        CHECK(mem_fault_hit());
    }
    mem_fault_at(7);
    CHECK_EQ(allocate_each(), -1);
    CHECK(!mem_fault_hit());
    mem_fault_at(0);
    CHECK_EQ(allocate_each(), -1);
    CHECK(!mem_fault_hit());
}

TEST(live_counts_blocks_of_every_kind)
{
    int64_t before = mem_live();
    void *all[] = {mem_new(1), mem_zero(1), mem_array(1, 1), mem_resize(NULL, 1), mem_aligned(1), mem_text("", 0)};

    CHECK_EQ(mem_live(), before + 6);
    all[0] = mem_resize(all[0], 5000);
    CHECK_EQ(mem_live(), before + 6);
    for (int i = 0; i < 6; i++) {
        mem_free(all[i]);
        CHECK_EQ(mem_live(), before + 5 - i);
    }
    mem_free(NULL);
    CHECK_EQ(mem_live(), before);
}

static void *churn(void *argument)
{
    void *held[16] = {0};
    uint64_t rng = (uint64_t)(uintptr_t)argument;

    for (int i = 0; i < 20000; i++) {
        void **at = &held[rng_next(&rng) % 16];
        mem_free(*at);
        *at = mem_new(rng_next(&rng) % 200);
    }
    for (int i = 0; i < 16; i++) mem_free(held[i]);
    return NULL;
}

TEST(bytes_are_counted_when_asked_for)
{
    mem_count_bytes(1);
    int64_t before = mem_live_bytes();
    void *a = mem_new(1000), *b = mem_aligned(100000);
    CHECK(mem_live_bytes() - before >= 101000 && mem_live_bytes() - before < 120000);
    a = mem_resize(a, 50000);
    CHECK(mem_live_bytes() - before >= 150000 && mem_live_bytes() - before < 170000);
    mem_free(a);
    mem_free(b);
    CHECK_EQ(mem_live_bytes(), before);
    mem_count_bytes(0);
}

TEST(live_is_right_over_four_threads)
{
    int64_t before = mem_live();
    pthread_t threads[4];

    for (uintptr_t i = 0; i < 4; i++) CHECK_EQ(pthread_create(&threads[i], NULL, churn, (void *)(i + 1)), 0);
    for (int i = 0; i < 4; i++) CHECK_EQ(pthread_join(threads[i], NULL), 0);
    CHECK_EQ(mem_live(), before);
}
