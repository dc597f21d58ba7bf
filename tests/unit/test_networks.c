/* Which drawings a client is told it has already. */
#include "tests/lib/test.h"
#include "web/networks.h"

#include <stdio.h>

TEST(a_drawing_is_recalled_by_the_same_inputs_only)
{
    struct networks *n = networks_new();
    char tag[DRAWING_TAG_SIZE];

    CHECK(!networks_recall(n, networks_drawing(1, "{}"), tag));
    networks_remember(n, networks_drawing(1, "{\"version\":3}"), "9.a");
    CHECK(networks_recall(n, networks_drawing(1, "{\"version\":3}"), tag));
    CHECK_TEXT(tag, "9.a");
    CHECK(!networks_recall(n, networks_drawing(1, "{\"version\":4}"), tag)); /* the store went on */
    CHECK(!networks_recall(n, networks_drawing(2, "{\"version\":3}"), tag)); /* another file of that name */
    networks_free(n);
}

TEST(drawings_remembered_are_bounded_and_the_oldest_go_first)
{
    struct networks *n = networks_new();
    char inputs[16], tag[DRAWING_TAG_SIZE];

    for (int i = 0; i <= DRAWINGS_REMEMBERED; i++) {
        snprintf(inputs, sizeof inputs, "%d", i);
        networks_remember(n, networks_drawing(1, inputs), inputs);
    }
    CHECK(!networks_recall(n, networks_drawing(1, "0"), tag));
    CHECK(networks_recall(n, networks_drawing(1, "1"), tag));
    CHECK_TEXT(tag, "1");
    CHECK(networks_recall(n, networks_drawing(1, inputs), tag));
    networks_free(n);
}
