/* The pool over chunks of the heap, whose bytes tell whether pieces overlap. */
#include "gpu/pool.h"

#include "service/base/mem.h"
#include "tests/lib/test.h"

#include <string.h>

enum { CHUNK = 64 << 10, PIECES = 200 };

struct books { unsigned chunks; size_t largest; bool empty; };

static struct error error;

static enum status take(void *ctx, size_t size, void **out, struct error *e)
{
    struct books *b = ctx;

    if (b->empty) return error_set(e, REASON_NO_MEMORY, "a test wants no more");
    *out = mem_aligned(size);
    b->chunks++;
    if (size > b->largest) b->largest = size;
    return *out != NULL ? STATUS_OK : error_set(e, REASON_NO_MEMORY, "none");
}

static void give(void *ctx, void *at)
{
    ((struct books *)ctx)->chunks--;
    mem_free(at);
}

static struct pool *open_pool(struct books *b, size_t limit)
{
    struct pool *a = pool_new(&(struct pool_source){.ctx = b, .take = take, .give = give, .what = "test memory",
                                                       .chunk_size = CHUNK, .limit = limit});
    CHECK(a != NULL);
    return a;
}

static void *piece(struct pool *a, size_t size)
{
    void *p = NULL;
    CHECK_OK(pool_take(a, size, &p, &error), &error);
    return p;
}

TEST(pieces_never_overlap_and_come_back)
{
    struct books b = {0};
    struct pool *a = open_pool(&b, 0);
    unsigned char *at[PIECES] = {NULL};
    size_t size[PIECES];
    uint64_t random = 3;
    int64_t before = mem_live();

    for (int turn = 0; turn < 20000; turn++) {
        unsigned i = (unsigned)(rng_next(&random) % PIECES);
        if (at[i] == NULL) {
            size[i] = 1 + rng_next(&random) % (rng_next(&random) % 50 == 0 ? 3 * CHUNK : 5000);
            at[i] = piece(a, size[i]);
            CHECK(pool_holds(a, at[i], size[i]));
            memset(at[i], (int)i, size[i]);
            continue;
        }
        CHECK(at[i][0] == i && at[i][size[i] / 2] == i && at[i][size[i] - 1] == i);
        pool_give(a, at[i]);
        at[i] = NULL;
    }
    for (int i = 0; i < PIECES; i++)
        if (at[i] != NULL) pool_give(a, at[i]);
    CHECK_EQ(b.chunks, 1);           /* one stays, whole */
    CHECK_EQ(pool_bytes(a), CHUNK);
    at[0] = piece(a, CHUNK - 10);
    CHECK_EQ(b.chunks, 1);
    pool_give(a, at[0]);
    pool_free(a);
    CHECK_EQ(b.chunks, 0);
    CHECK(mem_live() < before);
}

TEST(what_nobody_holds_is_told_and_goes_when_it_is_trimmed)
{
    struct books b = {0};
    struct pool *a = open_pool(&b, 0);
    void *p = piece(a, 1000), *large = piece(a, 3 * CHUNK);

    CHECK_EQ(pool_free_bytes(a), CHUNK - 1024);
    pool_trim(a);
    CHECK_EQ(b.chunks, 2);
    pool_give(a, large);
    pool_give(a, p);
    CHECK_EQ(pool_free_bytes(a), CHUNK);
    pool_keep(a, true);
    pool_trim(a);
    CHECK_EQ(b.chunks, 1);
    pool_keep(a, false);
    pool_trim(a);
    CHECK_EQ(b.chunks, 0);
    CHECK_EQ(pool_free_bytes(a), 0);
    p = piece(a, 10);
    pool_give(a, p);
    pool_free(a);
}

TEST(small_pieces_share_a_chunk_and_large_ones_have_their_own)
{
    struct books b = {0};
    struct pool *a = open_pool(&b, 0);
    void *small[CHUNK / POOL_ALIGN], *large;

    for (int i = 0; i < CHUNK / POOL_ALIGN; i++) {
        small[i] = piece(a, 1 + (size_t)i % POOL_ALIGN);
        CHECK_EQ((char *)small[i] - (char *)small[0], i * POOL_ALIGN);
    }
    CHECK_EQ(b.chunks, 1);
    large = piece(a, 5 * CHUNK + 1);
    CHECK_EQ(b.largest, 5 * CHUNK + 1);
    CHECK(pool_holds(a, large, 5 * CHUNK + 1) && !pool_holds(a, large, 5 * CHUNK + 2));
    CHECK(!pool_holds(a, &b, 1));
    pool_give(a, large);
    CHECK_EQ(b.chunks, 1);
    for (int i = 0; i < CHUNK / POOL_ALIGN; i++) pool_give(a, small[i]);
    pool_free(a);
}

TEST(the_limit_is_hard_and_said_with_figures)
{
    struct books b = {0};
    struct pool *a = open_pool(&b, 2 * CHUNK + 1000);
    void *first = piece(a, CHUNK / 2 + 256), *second = piece(a, CHUNK / 2 + 256), *none = NULL, *rest;

    CHECK_EQ(pool_take(a, CHUNK, &none, &error), STATUS_RESOURCE_EXHAUSTED);
    CHECK_SAYS(error.text, "no test memory for 65536 bytes: 131072 of at most 132072 are taken");
    CHECK_EQ(pool_take(a, SIZE_MAX, &none, &error), STATUS_RESOURCE_EXHAUSTED);
    rest = piece(a, CHUNK / 2 - 256);
    CHECK(none == NULL);
    pool_give(a, first), pool_give(a, second), pool_give(a, rest);
    first = piece(a, 2 * CHUNK);         /* an empty chunk was kept, the other went back */
    pool_give(a, first);
    pool_free(a);
}

TEST(less_than_a_chunk_will_do_where_there_is_no_more)
{
    struct books b = {0};
    struct pool *a = open_pool(&b, CHUNK / 2);
    void *p = piece(a, 1000), *none;

    CHECK_EQ(pool_bytes(a), 1000);
    b.empty = true;
    CHECK_EQ(pool_take(a, 5000, &none, &error), STATUS_RESOURCE_EXHAUSTED);
    CHECK_SAYS(error.text, "wants no more");
    pool_give(a, p);
    CHECK_EQ(pool_bytes(a), 0);
    pool_free(a);
}

TEST(while_it_keeps_nothing_goes_back_and_then_all_but_one_chunk_does)
{
    struct books b = {0};
    struct pool *a = open_pool(&b, 0);
    void *large = piece(a, 2 * CHUNK), *first = piece(a, CHUNK), *second = piece(a, CHUNK);

    pool_keep(a, true);
    pool_give(a, large), pool_give(a, first), pool_give(a, second);
    CHECK_EQ(b.chunks, 3);
    large = piece(a, 2 * CHUNK);         /* out of what was kept */
    CHECK_EQ(b.chunks, 3);
    pool_give(a, large);
    pool_keep(a, false);
    CHECK_EQ(b.chunks, 1);
    first = piece(a, CHUNK);
    CHECK_EQ(b.chunks, 1);
    pool_give(a, first);
    pool_free(a);
    CHECK_EQ(b.chunks, 0);
}

TEST(every_failing_allocation_is_a_status)
{
    for (uint64_t n = 1;; n++) {
        struct books b = {0};
        int64_t before = mem_live();
        void *p = NULL, *q = NULL;

        mem_fault_at(n);
        struct pool *a = pool_new(&(struct pool_source){.ctx = &b, .take = take, .give = give, .what = "test memory",
                                                           .chunk_size = CHUNK});
        enum status s = a == NULL ? STATUS_RESOURCE_EXHAUSTED : pool_take(a, 700, &p, &error);
        enum status t = s != STATUS_OK ? s : pool_take(a, 700, &q, &error);
        bool hit = mem_fault_hit();
        mem_fault_at(0);
        if (s == STATUS_OK) pool_give(a, p);
        if (s == STATUS_OK && t == STATUS_OK) pool_give(a, q);
        pool_free(a);
        CHECK_EQ(mem_live(), before);
        if (!hit) break;
        CHECK(n < 20);
    }
}
