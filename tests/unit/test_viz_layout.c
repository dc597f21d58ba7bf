#include "tests/lib/nets.h"
#include "tests/lib/test.h"
#include "web/viz/read.h"
#include "web/viz/shape.h"
#include "web/viz/view.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

struct drawn {
    struct viz_graph g;
    struct viz_picture p;
};

static void draw(struct drawn *d, struct bytes file, enum viz_view view)
{
    struct viz_look look = {.view = view, .show_weights = true};
    struct error e;

    *d = (struct drawn){0};
    CHECK_OK(viz_read(&d->g, file, &e), &e);
    viz_roles(&d->g);
    viz_infer(&d->g);
    CHECK_OK(viz_picture_make(&d->g, &look, &d->p, &e), &e);
    CHECK_OK(viz_picture_place(&d->p, &e), &e);
}

static void drawn_fini(struct drawn *d)
{
    viz_picture_fini(&d->p);
    viz_graph_fini(&d->g);
}

static bool is_inside(const struct layout_box *b, double x, double y)
{
    return fabs(x - b->x) < b->width / 2 - 0.5 && fabs(y - b->y) < b->height / 2 - 0.5;
}

/* A point of the curve that the writers draw between two points. */
static struct layout_point along(struct layout_point a, struct layout_point b, double t)
{
    double u = 1 - t, middle = (a.y + b.y) / 2;

    return (struct layout_point){a.x * (u * u * u + 3 * u * u * t) + b.x * (3 * u * t * t + t * t * t),
                                 u * u * u * a.y + 3 * u * u * t * middle + 3 * u * t * t * middle +
                                     t * t * t * b.y};
}

/* Boxes are bucketed by rank, so that this is quick for thousands. */
static void check_geometry(const struct layout *l)
{
    struct layout_box **by_rank = mem_array(l->box_count + 1, sizeof *by_rank);
    size_t *first = mem_array(l->box_count + 2, sizeof *first);

    for (size_t i = 0; i < l->box_count; i++) first[l->boxes[i].rank + 2]++;
    for (size_t r = 2; r < l->box_count + 2; r++) first[r] += first[r - 1];
    for (size_t i = 0; i < l->box_count; i++) by_rank[first[l->boxes[i].rank + 1]++] = &l->boxes[i];
    for (size_t r = 0; r < l->box_count; r++)
        for (size_t i = first[r]; i < first[r + 1]; i++)
            for (size_t k = i + 1; k < first[r + 1]; k++)
                CHECK(fabs(by_rank[i]->x - by_rank[k]->x) >= (by_rank[i]->width + by_rank[k]->width) / 2 + 4);
    for (size_t i = 0; i < l->arrow_count; i++) {
        const struct layout_arrow *a = &l->arrows[i];
        const struct layout_box *from = &l->boxes[a->from], *to = &l->boxes[a->to];
        const struct layout_point *p = &l->points[a->point_first], *end = &p[a->point_count - 1];
        CHECK(from->rank < to->rank);
        CHECK(fabs(p->x - from->x) <= from->width / 2 && fabs(p->y - (from->y + from->height / 2)) < 0.01);
        CHECK(fabs(end->x - to->x) <= to->width / 2 && fabs(end->y - (to->y - to->height / 2)) < 0.01);
        for (; p < end; p++)
            for (int t = 0; t <= 16; t++) {
                struct layout_point at = along(p[0], p[1], t / 16.0);
                CHECK(at.x >= -0.01 && at.x <= l->width + 0.01 && at.y >= -0.01 && at.y <= l->height + 0.01);
                for (size_t k = first[from->rank]; k < first[to->rank + 1]; k++)
                    if (is_inside(by_rank[k], at.x, at.y))
                        test_fail(__FILE__, __LINE__, "arrow %zu runs through a box", i);
            }
    }
    mem_free(by_rank);
    mem_free(first);
}

static void check_net(struct bytes file)
{
    for (enum viz_view v = 0; v < VIEW_COUNT; v++) {
        struct drawn d;
        draw(&d, file, v);
        check_geometry(&d.p.layout);
        drawn_fini(&d);
    }
}

TEST(no_arrow_runs_through_a_box_and_no_boxes_touch)
{
    static struct bytes (*const nets[])(struct net *, unsigned) = {net_residual, net_inception};

    for (size_t i = 0; i < 2; i++)
        for (unsigned size = 1; size <= 64; size *= 4) {
            struct net n = {0};
            check_net(nets[i](&n, size));
            net_fini(&n);
        }
}

TEST(no_arrow_runs_through_a_box_of_a_random_network)
{
    for (uint64_t seed = 1; seed <= 60; seed++) {
        struct net n = {0};
        check_net(net_random(&n, 3 + (unsigned)(seed * 7 % 200), seed));
        net_fini(&n);
    }
}

TEST(the_factorization_is_nine_boxes_and_eight_arrows_towards_the_loss)
{
    struct net n = {0};
    struct drawn d;

    draw(&d, net_factorization(&n, false), VIEW_default);
    const struct layout *l = &d.p.layout;
    CHECK_EQ(l->box_count, 9);
    CHECK_EQ(l->arrow_count, 8);
    for (size_t i = 0; i < 8; i++) CHECK(l->boxes[l->arrows[i].from].y < l->boxes[l->arrows[i].to].y);
    CHECK_TEXT(d.g.nodes[d.p.boxes[8].first].name, "loss");
    for (size_t i = 0; i < 8; i++) CHECK(l->boxes[i].y < l->boxes[8].y);
    drawn_fini(&d);
    draw(&d, (struct bytes){n.text.at, n.text.size - 1}, VIEW_full);
    CHECK_EQ(d.p.layout.box_count, 11);
    CHECK_EQ(d.p.layout.arrow_count, 10);
    drawn_fini(&d);
    net_fini(&n);
}

TEST(the_longest_chain_is_straight)
{
    struct net n = {0};
    struct drawn d;

    draw(&d, net_residual(&n, 50), VIEW_full);
    double x = NAN;
    size_t on_chain = 0;
    for (size_t i = 0; i < d.p.layout.box_count; i++) {
        const struct viz_node *node = &d.g.nodes[d.p.boxes[i].first];
        if (node->op == NULL) continue;
        if (isnan(x)) x = d.p.layout.boxes[i].x;
        CHECK_NEAR(d.p.layout.boxes[i].x, x, 0.5);
        on_chain++;
    }
    CHECK_EQ(on_chain, 50 * 6 + 4);
    drawn_fini(&d);
    net_fini(&n);
}

TEST(repeated_blocks_are_one_box_until_they_are_expanded)
{
    struct net n = {0};
    struct drawn d;
    const char *expanded[] = {NULL, NULL};
    struct viz_look look = {.view = VIEW_default, .expanded = expanded};
    struct error e;
    char id[16];

    draw(&d, net_residual(&n, 12), VIEW_default);
    uint32_t block = UINT32_MAX;
    for (uint32_t i = 0; i < d.p.layout.box_count; i++)
        if (d.p.boxes[i].is_group) block = i;
    CHECK(block != UINT32_MAX);
    CHECK_EQ(d.p.boxes[block].copies, 12);
    CHECK_EQ(d.p.layout.box_count, 7); /* data, conv0, the blocks, flatten, fc, label, softmax */
    CHECK_SAYS(d.p.lines[d.p.boxes[block].line_first].text, "12 \u00d7");
    snprintf(id, sizeof id, "n%u", d.p.boxes[block].first);
    expanded[0] = id;
    viz_picture_fini(&d.p);
    CHECK_OK(viz_picture_make(&d.g, &look, &d.p, &e), &e);
    CHECK_EQ(d.p.layout.box_count, 6 + 12 * 6);
    drawn_fini(&d);
    net_fini(&n);
}

TEST(two_of_a_kind_are_not_collapsed)
{
    struct net n = {0};
    struct drawn d;

    draw(&d, net_residual(&n, 2), VIEW_default);
    for (size_t i = 0; i < d.p.layout.box_count; i++) CHECK(!d.p.boxes[i].is_group);
    drawn_fini(&d);
    net_fini(&n);
}

TEST(the_blocks_view_groups_by_prefix)
{
    struct net n = {0};
    struct drawn d;

    draw(&d, net_inception(&n, 3), VIEW_blocks);
    size_t groups = 0;
    for (size_t i = 0; i < d.p.layout.box_count; i++) groups += d.p.boxes[i].is_group;
    CHECK(groups >= 3);
    CHECK(d.p.layout.box_count < 12 * 3);
    drawn_fini(&d);
    net_fini(&n);
}

TEST(the_same_network_is_drawn_the_same)
{
    struct net n = {0};
    struct bytes file = net_random(&n, 300, 7);
    struct drawn a, b;

    draw(&a, file, VIEW_full);
    draw(&b, file, VIEW_full);
    CHECK_EQ(a.p.layout.point_count, b.p.layout.point_count);
    CHECK(memcmp(a.p.layout.points, b.p.layout.points, a.p.layout.point_count * sizeof *a.p.layout.points) == 0);
    drawn_fini(&a);
    drawn_fini(&b);
    net_fini(&n);
}

TEST(twelve_thousand_nodes_are_drawn)
{
    struct net n = {0};
    struct drawn d;

    draw(&d, net_residual(&n, 750), VIEW_full);
    CHECK(d.p.layout.box_count >= 12000);
    CHECK(d.p.layout.width < 3000);
    drawn_fini(&d);
    net_fini(&n);
}

TEST(arrows_over_thousands_of_ranks_are_refused)
{
    struct net n = {0};
    struct viz_graph g = {0};
    struct viz_picture p;
    struct viz_look look = {.view = VIEW_full};
    struct error e;

    net_var(&n, "data");
    for (int i = 0; i < 4000; i++) net_op(&n, "add", "x", "", i, i / 2, -1);
    CHECK_OK(viz_read(&g, net_end(&n, 4000), &e), &e);
    viz_roles(&g);
    CHECK_OK(viz_picture_make(&g, &look, &p, &e), &e);
    CHECK_EQ(viz_picture_place(&p, &e), STATUS_INVALID_ARGUMENT);
    CHECK_EQ(e.reason, REASON_TOO_LARGE);
    CHECK_SAYS(e.text, "view=blocks");
    viz_picture_fini(&p);
    viz_graph_fini(&g);
    net_fini(&n);
}
