/* The list, against an array in the same order. */
#include "service/base/list.h"

#include "tests/lib/test.h"

#include <stdlib.h>
#include <string.h>

struct item {
    int before;              /* so that the node is not the item's first byte */
    struct list_node node;
    int id;
};

enum { ITEMS = 20 };

/* Both directions say what the array says. */
static void check_order(struct list *l, const int *want, size_t count)
{
    size_t at = 0;

    LIST_EACH(struct item, x, node, l) {
        CHECK(at < count);
        CHECK_EQ(x->id, want[at++]);
    }
    CHECK_EQ(at, count);
    for (struct list_node *n = l->head.prev; n != &l->head; n = n->prev) {
        CHECK(at > 0);
        CHECK_EQ(CONTAINER_OF(n, struct item, node)->id, want[--at]);
    }
    CHECK_EQ(at, 0);
    CHECK_EQ(list_empty(l), count == 0);
    struct item *first = LIST_FIRST(struct item, node, l);
    CHECK(count == 0 ? first == NULL : first != NULL && first->id == want[0]);
}

static void array_insert(int *array, size_t *count, size_t at, int id)
{
    memmove(array + at + 1, array + at, (*count - at) * sizeof *array);
    array[at] = id;
    ++*count;
}

static size_t array_find(const int *array, size_t count, int id)
{
    size_t at = 0;

    while (at < count && array[at] != id) at++;
    return at;
}

TEST(random_insertions_and_removals_agree_with_an_array)
{
    struct item items[ITEMS] = {0};
    int want[ITEMS + 1];
    size_t count = 0;
    struct list l;
    uint64_t rng = 1;

    list_init(&l);
    for (int i = 0; i < ITEMS; i++) items[i].id = i;
    for (int step = 0; step < 20000; step++) {
        int id = (int)(rng_next(&rng) % ITEMS);
        size_t at = array_find(want, count, id);
        CHECK_EQ(list_linked(&items[id].node), at < count);
        if (at < count) {
            list_remove(&items[id].node);
            memmove(want + at, want + at + 1, (count - at - 1) * sizeof *want);
            count--;
        } else if (rng_next(&rng) % 3 == 0) {
            list_append(&l, &items[id].node);
            array_insert(want, &count, count, id);
        } else if (count == 0 || rng_next(&rng) % 2 == 0) {
            list_prepend(&l, &items[id].node);
            array_insert(want, &count, 0, id);
        } else {
            size_t before = rng_next(&rng) % count;
            list_insert_before(&items[want[before]].node, &items[id].node);
            array_insert(want, &count, before, id);
        }
        check_order(&l, want, count);
    }
}

TEST(removing_what_is_in_no_list_does_nothing)
{
    struct item x = {0};
    struct list l;

    list_remove(&x.node);
    CHECK(!list_linked(&x.node));
    list_init(&l);
    list_append(&l, &x.node);
    CHECK(list_linked(&x.node));
    list_remove(&x.node);
    list_remove(&x.node);
    CHECK(!list_linked(&x.node) && list_empty(&l));
}

TEST(the_element_in_hand_may_be_removed_and_freed)
{
    struct list l;
    int met = 0;

    list_init(&l);
    for (int i = 0; i < ITEMS; i++) {
        struct item *x = calloc(1, sizeof *x);
        CHECK(x != NULL);
        x->id = i;
        list_append(&l, &x->node);
    }
    LIST_EACH(struct item, x, node, &l) {
        CHECK_EQ(x->id, met);
        met++;
        list_remove(&x->node);
        memset(x, 0xEE, sizeof *x);
        free(x);
    }
    CHECK_EQ(met, ITEMS);
    CHECK(list_empty(&l));
}

static void three(struct list *l, struct item items[3])
{
    list_init(l);
    for (int i = 0; i < 3; i++) {
        items[i] = (struct item){.id = i};
        list_append(l, &items[i].node);
    }
}

TEST(break_leaves_the_walk)
{
    struct item items[3];
    struct list l;
    int met = 0;

    three(&l, items);
    LIST_EACH(struct item, x, node, &l) {
        met++;
        if (x->id == 1) break;
    }
    CHECK_EQ(met, 2);
}

TEST(continue_goes_to_the_next_element)
{
    struct item items[3];
    struct list l;
    int met = 0, sum = 0;

    three(&l, items);
    LIST_EACH(struct item, x, node, &l) {
        met++;
        if (x->id == 1) continue;
        sum += x->id;
    }
    CHECK_EQ(met, 3);
    CHECK_EQ(sum, 2);
}

TEST(what_is_appended_during_the_walk_is_met_unless_the_last_is_in_hand)
{
    struct item items[3], more = {.id = 3};
    struct list l;
    int met = 0;

    three(&l, items);
    LIST_EACH(struct item, x, node, &l) {
        met++;
        if (x->id == 0) list_append(&l, &more.node);
    }
    CHECK_EQ(met, 4);
}

TEST(walks_nest)
{
    struct item items[3];
    struct list l;
    int pairs = 0;

    three(&l, items);
    LIST_EACH(struct item, a, node, &l)
        LIST_EACH(struct item, b, node, &l)
            if (a->id < b->id) pairs++;
    CHECK_EQ(pairs, 3);
}
