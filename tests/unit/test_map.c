/* The map, against a plain array that does the same. */
#include "service/base/map.h"

#include "service/base/mem.h"
#include "tests/lib/test.h"

#include <signal.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static const uint8_t seed[16] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16};

struct name {
    uint8_t at[48];
    size_t size;
    bool number;             /* the key is the first eight bytes, as a number */
};

/* What the map should hold: values[i] is the value of names[i], NULL where there is none. */
struct model {
    struct map *map;
    struct name *names;
    void **values;
    size_t count, held;
};

static struct bytes bytes_name(const struct name *n) { return bytes_of(n->at, n->size); }

static uint64_t number_of(const struct name *n)
{
    uint64_t number;
    memcpy(&number, n->at, sizeof number);
    return number;
}

static void *find(const struct map *m, const struct name *n)
{
    return n->number ? map_find_u64(m, number_of(n)) : map_find(m, bytes_name(n));
}

static enum status put(struct map *m, const struct name *n, void *value, struct error *e)
{
    return n->number ? map_put_u64(m, number_of(n), value, e) : map_put(m, bytes_name(n), value, e);
}

static void *drop(struct map *m, const struct name *n)
{
    return n->number ? map_remove_u64(m, number_of(n)) : map_remove(m, bytes_name(n));
}

/* Names that differ in their first four bytes, of any length and content; every third is a number. */
static void names_fill(struct name *names, size_t count, uint64_t *rng)
{
    for (size_t i = 0; i < count; i++) {
        struct name *n = &names[i];
        for (size_t k = 0; k < sizeof n->at; k++) n->at[k] = (uint8_t)rng_next(rng);
        uint32_t index = (uint32_t)i;
        memcpy(n->at, &index, sizeof index);
        n->number = i % 3 == 0;
        n->size = n->number ? 8 : 4 + rng_next(rng) % (sizeof n->at - 3);
    }
}

static void model_init(struct model *x, size_t count)
{
    *x = (struct model){.map = map_new(seed), .count = count};
    x->names = mem_array(count, sizeof *x->names);
    x->values = mem_array(count, sizeof *x->values);
    CHECK(x->map != NULL && x->names != NULL && x->values != NULL);
}

static void model_fini(struct model *x)
{
    map_free(x->map);
    mem_free(x->names);
    mem_free(x->values);
}

/* The walk meets each value that is held once and no other. */
static void check_walk(const struct model *x)
{
    size_t at = 0, met = 0;
    bool *seen = mem_array(x->count, sizeof *seen);

    CHECK(seen != NULL);
    for (struct name *v; (v = map_next(x->map, &at)) != NULL; met++) {
        size_t i = (size_t)(v - x->names);
        CHECK(i < x->count && x->values[i] == v && !seen[i]);
        seen[i] = true;
    }
    mem_free(seen);
    CHECK_EQ(met, x->held);
    CHECK_EQ(map_count(x->map), x->held);
}

static void check_all(const struct model *x)
{
    for (size_t i = 0; i < x->count; i++) CHECK(find(x->map, &x->names[i]) == x->values[i]);
    check_walk(x);
}

static void model_step(struct model *x, size_t i, bool more)
{
    struct name *n = &x->names[i];
    struct error e;

    CHECK(find(x->map, n) == x->values[i]);
    if (more && x->values[i] == NULL) {
        CHECK_OK(put(x->map, n, n, &e), &e);
        x->values[i] = n;
        x->held++;
    } else if (!more) {
        CHECK(drop(x->map, n) == x->values[i]);
        x->held -= x->values[i] != NULL;
        x->values[i] = NULL;
    }
    CHECK_EQ(map_count(x->map), x->held);
}

TEST(two_hundred_thousand_random_operations_agree_with_an_array)
{
    struct model x;
    uint64_t rng = 7;

    model_init(&x, 3000);
    names_fill(x.names, x.count, &rng);
    for (size_t step = 0; step < 200000; step++) {
        /* Waves: mostly filling, then mostly emptying. */
        unsigned bias = step / 20000 % 2 == 0 ? 75 : 25;
        model_step(&x, rng_next(&rng) % x.count, rng_next(&rng) % 100 < bias);
        if (step % 5000 == 0) check_all(&x);
    }
    check_all(&x);
    for (size_t i = 0; i < x.count; i++) model_step(&x, i, false);
    CHECK_EQ(map_count(x.map), 0);
    check_all(&x);
    model_fini(&x);
}

/* Where a key lies in a map that is otherwise empty: the walk's index tells. */
static size_t home(struct map *m, const struct name *n)
{
    struct error e;
    size_t at = 0;

    CHECK_EQ(map_count(m), 0);
    CHECK_OK(put(m, n, &at, &e), &e);
    CHECK(map_next(m, &at) != NULL);
    CHECK(drop(m, n) != NULL);
    return at - 1;
}

/* 128 slots, so that there are buckets to choose from: 60 entries fill more than 64 slots may. */
static void widen(struct model *x, uint64_t *rng)
{
    names_fill(x->names, x->count, rng);
    for (size_t i = 0; i < 60; i++) model_step(x, i, true);
    for (size_t i = 0; i < 60; i++) model_step(x, i, false);
}

/* Names whose homes are the `buckets` slots around the end of the table, the wrap included. */
static void crowd(struct model *x, size_t buckets, uint64_t *rng)
{
    enum { SLOTS = 128 };
    size_t from = SLOTS - (buckets + 1) / 2, found = 0;
    struct name n;

    for (size_t tries = 0; found < x->count; tries++) {
        CHECK(tries < 1000000);
        names_fill(&n, 1, rng);
        uint64_t number = rng_next(rng);
        memcpy(n.at, &number, sizeof number);
        n.number = tries % 2 == 0;
        if ((home(x->map, &n) + SLOTS - from) % SLOTS < buckets) x->names[found++] = n;
    }
}

static void check_crowded(size_t buckets)
{
    struct model x;
    uint64_t rng = 11 + buckets;

    model_init(&x, 90);
    widen(&x, &rng);
    crowd(&x, buckets, &rng);
    for (size_t step = 0; step < 20000; step++) {
        model_step(&x, rng_next(&rng) % x.count, rng_next(&rng) % 100 < (step / 1000 % 2 == 0 ? 80 : 20));
        if (step % 50 == 0) check_all(&x);
    }
    check_all(&x);
    model_fini(&x);
}

TEST(keys_of_one_bucket_at_the_end_of_the_table_stay_apart) { check_crowded(1); }
TEST(keys_of_two_buckets_across_the_wrap_stay_apart) { check_crowded(2); }
TEST(keys_of_five_buckets_across_the_wrap_stay_apart) { check_crowded(5); }

TEST(a_number_and_its_eight_bytes_are_two_keys)
{
    struct map *m = map_new(seed);
    uint64_t number = 8; /* also the size of its bytes, which have the same hash */
    struct bytes key = bytes_of(&number, sizeof number);
    int a, b;
    struct error e;

    CHECK(m != NULL);
    CHECK_OK(map_put_u64(m, number, &a, &e), &e);
    CHECK(map_find(m, key) == NULL);
    CHECK_OK(map_put(m, key, &b, &e), &e);
    CHECK(map_find_u64(m, number) == &a && map_find(m, key) == &b);
    CHECK(map_remove_u64(m, number) == &a);
    CHECK(map_find_u64(m, number) == NULL && map_find(m, key) == &b);
    map_free(m);
}

TEST(the_empty_key_is_a_key_with_or_without_a_pointer)
{
    struct map *m = map_new(seed);
    int v;
    struct error e;

    CHECK(m != NULL);
    CHECK(map_find(m, bytes_of(NULL, 0)) == NULL);
    CHECK_OK(map_put(m, bytes_of(NULL, 0), &v, &e), &e);
    CHECK(map_find(m, bytes_text("")) == &v);
    CHECK(map_find_u64(m, 0) == NULL);
    CHECK(map_remove(m, bytes_text("")) == &v);
    CHECK_EQ(map_count(m), 0);
    map_free(m);
}

TEST(keys_that_differ_in_length_or_in_a_zero_byte_are_different)
{
    static const char text[17] = {0};
    struct map *m = map_new(seed);
    int values[17];
    struct error e;

    CHECK(m != NULL);
    for (size_t i = 0; i < 17; i++) CHECK_OK(map_put(m, bytes_of(text, i), &values[i], &e), &e);
    for (size_t i = 0; i < 17; i++) CHECK(map_find(m, bytes_of(text, i)) == &values[i]);
    map_free(m);
}

TEST(a_key_is_copied)
{
    struct map *m = map_new(seed);
    char key[] = "weight";
    int v;
    struct error e;

    CHECK(m != NULL);
    CHECK_OK(map_put(m, bytes_text(key), &v, &e), &e);
    memset(key, 'x', sizeof key - 1);
    CHECK(map_find(m, bytes_text("weight")) == &v);
    CHECK(map_find(m, bytes_text(key)) == NULL);
    map_free(m);
}

TEST(a_key_is_not_read_past_its_end)
{
    struct map *m = map_new(seed);
    struct error e;

    CHECK(m != NULL);
    for (size_t size = 0; size <= 33; size++) {
        uint8_t *key = guard_new(size);
        memset(key, 0xA5, size);
        CHECK_OK(map_put(m, bytes_of(key, size), &e, &e), &e);
        CHECK(map_find(m, bytes_of(key, size)) == &e);
        guard_free(key, size);
    }
    map_free(m);
}

TEST(every_bit_of_the_seed_moves_some_key)
{
    size_t homes[64];
    struct map *m = map_new(seed);

    CHECK(m != NULL);
    struct name n = {.number = true, .size = 8};
    for (uint8_t i = 0; i < 64; i++) {
        n.at[0] = i;
        homes[i] = home(m, &n);
    }
    map_free(m);
    for (unsigned bit = 0; bit < 128; bit++) {
        uint8_t other[16];
        memcpy(other, seed, sizeof other);
        other[bit / 8] ^= (uint8_t)(1u << bit % 8);
        m = map_new(other);
        CHECK(m != NULL);
        size_t moved = 0;
        for (uint8_t i = 0; i < 64; i++) {
            n.at[0] = i;
            moved += home(m, &n) != homes[i];
        }
        map_free(m);
        CHECK(moved > 32);
    }
}

TEST(a_key_that_is_there_may_not_be_put_again)
{
    pid_t child = fork();
    int how = 0;

    CHECK(child >= 0);
    if (child == 0) {
        struct map *m = map_new(seed);
        struct error e;
        close(STDERR_FILENO);
        signal(SIGABRT, SIG_DFL);
        bool put_twice = map_put_u64(m, 1, &e, &e) == STATUS_OK && map_put_u64(m, 1, &e, &e) == STATUS_OK;
        _exit(put_twice ? 0 : 1);
    }
    CHECK_EQ(waitpid(child, &how, 0), child);
    CHECK(WIFSIGNALED(how) && WTERMSIG(how) == SIGABRT);
}

TEST(a_map_without_memory_is_null)
{
    int64_t before = mem_live();

    for (uint64_t n = 1;; n++) {
        mem_fault_at(n);
        struct map *m = map_new(seed);
        int hit = mem_fault_hit();
        mem_fault_at(0);
        CHECK_EQ(m == NULL, hit);
        map_free(m);
        CHECK_EQ(mem_live(), before);
        if (!hit) {
            CHECK_EQ(n, 3);
            return;
        }
    }
}

/* Puts all names with the n-th allocation failing; tells whether it has been met. */
static bool sweep_put(struct model *x, uint64_t n)
{
    struct error e;
    size_t refused = 0;

    mem_fault_at(n);
    for (size_t i = 0; i < x->count; i++) {
        struct name *name = &x->names[i];
        enum status s = put(x->map, name, name, &e);
        if (s == STATUS_OK) {
            x->values[i] = name;
            x->held++;
            continue;
        }
        CHECK_EQ(s, STATUS_RESOURCE_EXHAUSTED);
        CHECK_EQ(e.reason, REASON_NO_MEMORY);
        CHECK(mem_fault_hit());
        refused++;
    }
    bool hit = mem_fault_hit();
    mem_fault_at(0);
    CHECK_EQ(refused, hit);
    return hit;
}

TEST(a_put_without_memory_changes_nothing_and_can_be_repeated)
{
    int64_t before = mem_live();
    bool hit = true;

    for (uint64_t n = 1; hit; n++) {
        struct model x;
        uint64_t rng = 3;
        model_init(&x, 100);
        names_fill(x.names, x.count, &rng);
        hit = sweep_put(&x, n);
        if (!hit) CHECK(n > 60);
        check_all(&x);
        for (size_t i = 0; i < x.count; i++) model_step(&x, i, true);
        check_all(&x);
        model_fini(&x);
        CHECK_EQ(mem_live(), before);
    }
}

TEST(free_releases_the_keys_that_are_left)
{
    int64_t before = mem_live();
    struct model x;
    uint64_t rng = 5;

    model_init(&x, 500);
    names_fill(x.names, x.count, &rng);
    for (size_t i = 0; i < x.count; i++) model_step(&x, i, true);
    for (size_t i = 0; i < x.count; i += 2) model_step(&x, i, false);
    model_fini(&x);
    CHECK_EQ(mem_live(), before);
    map_free(NULL);
}
