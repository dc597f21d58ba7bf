/* Lists of keys in pages, against a model, while keys come and go between the pages. */
#include "tests/lib/direct.h"
#include "tests/lib/test.h"

#include "service/base/mem.h"
#include "service/order.h"

#include <stdlib.h>

enum { NAMES = 60, LIMIT = 7 };

static struct fixture *fixture;
static struct client *one;
static bool there[NAMES];

static void set_up(void)
{
    struct device *d;
    struct error e;

    CHECK_OK(cpu_device_new(1, &d, &e), &e);
    fixture = fixture_new(d, 0);
    one = client_new(fixture, 1);
    client_join(one, "\"type\": \"dist_async\"");
    for (int i = 0; i < NAMES; i++) there[i] = false;
}

/* Names are -30 .. 29, so that the order is not that of their bits. */
static int name_of(int i) { return i - NAMES / 2; }

static void toggle(int i)
{
    if (there[i]) do_json(one, WIRE_Delete, "{\"store\": %u, \"keys\": [%d]}", one->store, name_of(i));
    else do_init(one, name_of(i), 1, 1);
    there[i] = !there[i];
}

/* One page behind `after` (or from the first on): what the model has there, how many in all, and where the next begins. */
static void check_page(int after)
{
    struct error e;
    char from[40] = "";
    size_t total = 0, seen = 0;
    int at = after + 1, last = after;

    if (after >= 0) snprintf(from, sizeof from, ", \"after\": %d", name_of(after));
    json_t *j = try_json(one, WIRE_List, &e, "{\"store\": %u, \"limit\": %d%s}", one->store, LIMIT, from);
    if (j == NULL) test_fail(__FILE__, __LINE__, "%s", e.text);
    json_t *items = json_object_get(j, "items"), *next = json_object_get(j, "next");
    for (int i = 0; i < NAMES; i++) total += there[i];
    CHECK_EQ((size_t)json_integer_value(json_object_get(j, "total")), total);
    for (; at < NAMES && seen < LIMIT; at++) {
        if (!there[at]) continue;
        CHECK_EQ(json_integer_value(json_object_get(json_array_get(items, seen++), "key")), name_of(at));
        last = at;
    }
    CHECK_EQ(json_array_size(items), seen);
    while (at < NAMES && !there[at]) at++;
    CHECK_EQ(json_is_null(next), at == NAMES);
    if (at < NAMES) CHECK_EQ(json_integer_value(next), name_of(last));
    json_decref(j);
}

TEST(a_page_has_what_comes_behind_a_name_whether_it_is_there_or_not)
{
    int64_t live = mem_live();
    unsigned seed = 7;

    set_up();
    check_page(-1);
    for (int n = 0; n < 400; n++) {
        seed = seed * 1103515245 + 12345;
        if (seed >> 30) toggle((int)(seed >> 16) % NAMES);
        check_page((int)(seed >> 8) % (NAMES + 1) - 1);
    }
    client_gone(one);
    fixture_free(fixture);
    CHECK_EQ(mem_live(), live);
}

TEST(a_prefix_or_a_name_of_the_other_kind_finds_no_numbers)
{
    struct error e;

    set_up();
    for (int i = 0; i < 3; i++) toggle(i);
    json_t *j = try_json(one, WIRE_List, &e, "{\"store\": %u, \"prefix\": \"w\"}", one->store);
    CHECK_EQ(json_integer_value(json_object_get(j, "total")), 0);
    CHECK_EQ(json_array_size(json_object_get(j, "items")), 0);
    json_decref(j);
    j = try_json(one, WIRE_List, &e, "{\"store\": %u, \"after\": \"w\"}", one->store);
    CHECK_EQ(json_integer_value(json_object_get(j, "total")), 3);
    CHECK_EQ(json_array_size(json_object_get(j, "items")), 0);
    json_decref(j);
    client_gone(one);
    fixture_free(fixture);
}

/* ---- the tree itself --------------------------------------------------------------------------------------------- */

enum { MANY = 3000 };

static struct key *keys[MANY];       /* by their numbers; numbers are even */
static bool in_tree[MANY];
static struct order order;

static void keys_make(void)
{
    for (int i = 0; i < MANY; i++) {
        keys[i] = mem_zero(sizeof *keys[i]);
        CHECK(keys[i] != NULL);
        keys[i]->name.number = 2 * i;
        in_tree[i] = false;
    }
}

static void keys_free(void)
{
    order_fini(&order);
    for (int i = 0; i < MANY; i++) mem_free(keys[i]);
}

static void check_tree(unsigned seed)
{
    size_t count = 0;

    for (int i = 0; i < MANY; i++) count += in_tree[i];
    CHECK_EQ(order_count(&order), count);
    size_t place = 0;
    for (int i = 0; i < MANY; i++) {
        if (!in_tree[i]) continue;
        if (place % 7 == seed % 7) CHECK(order_at(&order, place) == keys[i]);
        place++;
    }
    for (int n = 0; n < 5; n++) {
        struct key_name after = {.number = (int64_t)((seed >> n) % (2 * MANY)) - 1};
        size_t behind = 0;
        for (int i = 0; i < MANY; i++) behind += in_tree[i] && 2 * i > after.number;
        struct order_page page = order_find(&order, bytes_of(NULL, 0), &after);
        CHECK_EQ(page.count, behind);
        CHECK_EQ(page.first + page.count, count);
    }
}

static void change(int i)
{
    struct error e;

    if (in_tree[i]) order_remove(&order, keys[i]);
    else CHECK_OK(order_add(&order, keys[i], &e), &e);
    in_tree[i] = !in_tree[i];
}

TEST(a_tree_that_grows_and_shrinks_is_as_a_sorted_list)
{
    int64_t live = mem_live();
    unsigned seed = 3;

    keys_make();
    for (int round = 0; round < 12; round++) {
        /* Rounds differ in what mostly happens: keys come, or go, at random, upwards or downwards. */
        for (int n = 0; n < MANY; n++) {
            seed = seed * 1103515245 + 12345;
            int i = round % 3 == 0 ? (int)(seed >> 8) % MANY : round % 3 == 1 ? n : MANY - 1 - n;
            if (in_tree[i] == (round % 2 == 1) || seed >> 28 == 0) change(i);
            if (n % 500 == 0) check_tree(seed >> 4);
        }
        check_tree(seed >> 4);
    }
    for (int i = 0; i < MANY; i++)
        if (in_tree[i]) change(i);
    CHECK(order.root == NULL);
    keys_free();
    CHECK_EQ(mem_live(), live);
}

TEST(names_that_come_in_order_fill_the_leaves)
{
    int64_t live;

    keys_make();
    live = mem_live();
    for (int i = 0; i < MANY; i++) change(i);
    CHECK(mem_live() - live <= MANY / 60 + 2);
    check_tree(5);
    keys_free();
}

TEST(a_key_for_which_there_is_no_memory_changes_nothing)
{
    struct error e;
    unsigned failed = 0;

    keys_make();
    for (int i = 0; i < MANY; i++) {
        int at = i * 1009 % MANY;
        for (uint64_t n = 1;; n++) {
            mem_fault_at(n);
            enum status s = order_add(&order, keys[at], &e);
            bool hit = mem_fault_hit();
            mem_fault_at(0);
            CHECK_EQ(s != STATUS_OK, hit);
            if (!hit) break;
            failed++;
            if (i % 50 == 0) check_tree((unsigned)i);
        }
        in_tree[at] = true;
    }
    CHECK(failed > 50);
    check_tree(9);
    keys_free();
}
