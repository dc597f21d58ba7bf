#include "web/viz/layout.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { NONE = UINT32_MAX };

/* A box, or a bend of an arrow that passes a rank. Arrows of one box share their bends: a bundle that parts late. */
struct vertex {
    double x, width;
    double key;                      /* what the rank is being sorted by */
    uint32_t rank, at;               /* at: place in the rank */
    uint32_t box;                    /* NONE: a bend */
    bool is_main;                    /* of the longest chain, which stands in the middle */
};

/* From one rank to the next. */
struct link {
    uint32_t from, to;               /* vertices */
    double weight;                   /* how much it wants to be upright */
    double x_from, x_to;             /* ends, once the boxes stand */
};

/* What is being sorted; `at` keeps equal ones in their order. */
struct keyed {
    double key;
    uint32_t what, at;
};

struct work {
    struct layout *l;
    struct arena *a;
    struct vertex *v;
    size_t vertex_count;
    struct link *links;
    size_t link_count;
    uint32_t *bend_first;            /* of a box: its first bend; the others follow, one for each rank */
    uint32_t *bend_count;
    uint32_t *last_link;             /* of an arrow: into its end */
    uint32_t *first_link;            /* of a box: to its first bend */
    uint32_t *rank_first;            /* of a rank: where it begins in `order` */
    uint32_t *order;                 /* vertices, rank by rank */
    size_t rank_count;
    uint32_t *up, *up_first, *down, *down_first;     /* links of a vertex: up[up_first[v]] .. up[up_first[v + 1]] */
    double *top, *bottom;            /* of a rank */
    double *pool_mean, *pool_weight; /* scratch of the regression */
    uint32_t *pool_count, *best, *scratch;
    struct keyed *keyed;
};

/* ---- ranks --------------------------------------------------------------------------------------------------- */

static void rank_boxes(struct layout *l, uint32_t *in, uint32_t *out)
{
    for (size_t i = 0; i < l->box_count; i++) l->boxes[i].rank = 0;
    /* Arrows are sorted by their end, so one pass sees every start before it. */
    for (size_t i = 0; i < l->arrow_count; i++) {
        struct layout_box *from = &l->boxes[l->arrows[i].from], *to = &l->boxes[l->arrows[i].to];
        if (to->rank <= from->rank) to->rank = from->rank + 1;
        in[l->arrows[i].to]++;
        out[l->arrows[i].from]++;
    }
}

/* What has more readers than sources, such as a variable, goes down to its first reader: its arrows get shorter. */
static void tighten(struct layout *l, const uint32_t *in, const uint32_t *out, uint32_t *lowest)
{
    for (size_t i = 0; i < l->box_count; i++) lowest[i] = NONE;
    for (size_t i = l->arrow_count, at = l->box_count; at-- > 0;) {
        struct layout_box *b = &l->boxes[at];
        if (in[at] < out[at] && lowest[at] != NONE) b->rank = lowest[at] - 1;
        for (; i > 0 && l->arrows[i - 1].to == at; i--) {
            uint32_t *low = &lowest[l->arrows[i - 1].from];
            if (b->rank < *low) *low = b->rank;
        }
    }
}

static enum status no_memory(struct error *e)
{
    return error_set(e, REASON_NO_MEMORY, "no memory for the drawing");
}

static enum status rank(struct work *w, struct error *e)
{
    struct layout *l = w->l;
    uint32_t *in = ARENA_NEW(w->a, l->box_count, uint32_t), *out = ARENA_NEW(w->a, l->box_count, uint32_t);
    uint32_t *lowest = ARENA_NEW(w->a, l->box_count, uint32_t);

    if (in == NULL || out == NULL || lowest == NULL) return no_memory(e);
    rank_boxes(l, in, out);
    tighten(l, in, out, lowest);
    for (size_t i = 0; i < l->box_count; i++)
        if (l->boxes[i].rank >= w->rank_count) w->rank_count = l->boxes[i].rank + 1;
    return STATUS_OK;
}

/* ---- bends and links ----------------------------------------------------------------------------------------- */

static enum status count_bends(struct work *w, struct error *e)
{
    struct layout *l = w->l;
    size_t bends = 0, passed = 0;

    w->bend_first = ARENA_NEW(w->a, l->box_count, uint32_t);
    w->bend_count = ARENA_NEW(w->a, l->box_count, uint32_t);
    if (w->bend_first == NULL || w->bend_count == NULL) return no_memory(e);
    for (size_t i = 0; i < l->arrow_count; i++) {
        uint32_t from = l->arrows[i].from, span = l->boxes[l->arrows[i].to].rank - l->boxes[from].rank;
        if (span - 1 > w->bend_count[from]) w->bend_count[from] = span - 1;
        passed += span - 1;
    }
    if (passed > LAYOUT_BENDS_MAX)
        return error_set(e, REASON_TOO_LARGE,
                         "the arrows are too long to be drawn: they pass more than %d ranks; try view=blocks",
                         LAYOUT_BENDS_MAX);
    for (size_t i = 0; i < l->box_count; i++) {
        w->bend_first[i] = (uint32_t)(l->box_count + bends);
        bends += w->bend_count[i];
    }
    w->vertex_count = l->box_count + bends;
    return STATUS_OK;
}

enum { BEND_WIDTH = 8 };

static enum status make_vertices(struct work *w, struct error *e)
{
    struct layout *l = w->l;

    w->v = ARENA_NEW(w->a, w->vertex_count, struct vertex);
    if (w->v == NULL) return no_memory(e);
    for (uint32_t i = 0; i < l->box_count; i++) {
        w->v[i] = (struct vertex){.width = l->boxes[i].width, .rank = l->boxes[i].rank, .box = i};
        for (uint32_t k = 0; k < w->bend_count[i]; k++)
            w->v[w->bend_first[i] + k] = (struct vertex){
                .width = BEND_WIDTH, .rank = l->boxes[i].rank + 1 + k, .box = NONE};
    }
    return STATUS_OK;
}

static uint32_t add_link(struct work *w, uint32_t from, uint32_t to, double weight)
{
    w->links[w->link_count] = (struct link){.from = from, .to = to, .weight = weight};
    return (uint32_t)w->link_count++;
}

static enum status make_links(struct work *w, struct error *e)
{
    struct layout *l = w->l;

    w->links = ARENA_NEW(w->a, l->arrow_count + w->vertex_count, struct link);
    w->last_link = ARENA_NEW(w->a, l->arrow_count, uint32_t);
    w->first_link = ARENA_NEW(w->a, l->box_count, uint32_t);
    if (w->links == NULL || w->last_link == NULL || w->first_link == NULL) return no_memory(e);
    for (uint32_t i = 0; i < l->box_count; i++) {
        w->first_link[i] = NONE;
        if (w->bend_count[i] > 0) w->first_link[i] = add_link(w, i, w->bend_first[i], 2);
        for (uint32_t k = 1; k < w->bend_count[i]; k++)
            add_link(w, w->bend_first[i] + k - 1, w->bend_first[i] + k, 8);
    }
    for (size_t i = 0; i < l->arrow_count; i++) {
        uint32_t from = l->arrows[i].from, to = l->arrows[i].to, span = l->boxes[to].rank - l->boxes[from].rank;
        uint32_t start = span == 1 ? from : w->bend_first[from] + span - 2;
        w->last_link[i] = add_link(w, start, to, l->boxes[from].is_side ? 0.05 : span == 1 ? 2 : 1);
    }
    return STATUS_OK;
}

/* Longest way from each box to an end. */
static void measure_heights(const struct layout *l, uint32_t *height)
{
    for (size_t i = l->arrow_count; i-- > 0;) {
        const struct layout_arrow *a = &l->arrows[i];
        if (height[a->from] <= height[a->to]) height[a->from] = height[a->to] + 1;
    }
}

/* The longest chain is what a reader follows: it is drawn straight. Where several chains are equally long, as in
 * branches side by side, none of them is it, and only what they part from and join in stands in the middle. */
static enum status find_main_chain(struct work *w, struct error *e)
{
    struct layout *l = w->l;
    uint32_t *height = ARENA_NEW(w->a, l->box_count, uint32_t), *only = ARENA_NEW(w->a, w->rank_count, uint32_t);
    uint32_t *count = ARENA_NEW(w->a, w->rank_count, uint32_t);

    if (height == NULL || only == NULL || count == NULL) return no_memory(e);
    measure_heights(l, height);
    for (uint32_t i = 0; i < l->box_count; i++) {
        const struct layout_box *b = &l->boxes[i];
        if (b->is_side || b->rank + height[i] + 1 != w->rank_count) continue;
        only[b->rank] = i;
        count[b->rank]++;
    }
    for (size_t r = 0; r < w->rank_count; r++)
        if (count[r] == 1) w->v[only[r]].is_main = true;
    for (size_t i = 0; i < l->arrow_count; i++) {
        const struct layout_arrow *a = &l->arrows[i];
        if (w->v[a->from].is_main && w->v[a->to].is_main && l->boxes[a->from].rank + 1 == l->boxes[a->to].rank)
            w->links[w->last_link[i]].weight = 64;
    }
    return STATUS_OK;
}

/* ---- order --------------------------------------------------------------------------------------------------- */

static enum status index_links(struct work *w, struct error *e)
{
    size_t n = w->vertex_count + 1;

    w->up = ARENA_NEW(w->a, w->link_count, uint32_t);
    w->down = ARENA_NEW(w->a, w->link_count, uint32_t);
    w->up_first = ARENA_NEW(w->a, n + 1, uint32_t);
    w->down_first = ARENA_NEW(w->a, n + 1, uint32_t);
    if (w->up == NULL || w->down == NULL || w->up_first == NULL || w->down_first == NULL) return no_memory(e);
    for (size_t i = 0; i < w->link_count; i++) {
        w->up_first[w->links[i].to + 2]++;
        w->down_first[w->links[i].from + 2]++;
    }
    for (size_t i = 2; i <= n; i++) {
        w->up_first[i] += w->up_first[i - 1];
        w->down_first[i] += w->down_first[i - 1];
    }
    for (uint32_t i = 0; i < w->link_count; i++) {
        w->up[w->up_first[w->links[i].to + 1]++] = i;
        w->down[w->down_first[w->links[i].from + 1]++] = i;
    }
    return STATUS_OK;
}

/* Boxes in the order of the network, bends to the right of them: so a connection that skips runs on one side. */
static enum status first_order(struct work *w, struct error *e)
{
    w->rank_first = ARENA_NEW(w->a, w->rank_count + 2, uint32_t);
    w->order = ARENA_NEW(w->a, w->vertex_count, uint32_t);
    w->best = ARENA_NEW(w->a, w->vertex_count, uint32_t);
    w->scratch = ARENA_NEW(w->a, w->vertex_count + 1, uint32_t);
    if (w->rank_first == NULL || w->order == NULL || w->best == NULL || w->scratch == NULL) return no_memory(e);
    for (size_t i = 0; i < w->vertex_count; i++) w->rank_first[w->v[i].rank + 2]++;
    for (size_t r = 2; r <= w->rank_count + 1; r++) w->rank_first[r] += w->rank_first[r - 1];
    for (uint32_t i = 0; i < w->vertex_count; i++) w->order[w->rank_first[w->v[i].rank + 1]++] = i;
    return STATUS_OK;
}

static void number_rank(struct work *w, size_t r)
{
    for (uint32_t i = w->rank_first[r]; i < w->rank_first[r + 1]; i++) w->v[w->order[i]].at = i - w->rank_first[r];
}

/* Pairs of links between two ranks that cross: inversions, by a tree of counts. */
static uint64_t crossings_above(struct work *w, size_t r, uint32_t *tree)
{
    uint32_t width = w->rank_first[r] - w->rank_first[r - 1];
    uint64_t crossings = 0;
    uint32_t seen = 0;

    memset(tree, 0, (width + 1) * sizeof *tree);
    for (uint32_t i = w->rank_first[r]; i < w->rank_first[r + 1]; i++) {
        uint32_t v = w->order[i], first = w->up_first[v], last = w->up_first[v + 1];
        for (uint32_t k = first; k < last; k++) {
            uint32_t before = 0;
            for (uint32_t at = w->v[w->links[w->up[k]].from].at + 1; at > 0; at &= at - 1) before += tree[at];
            crossings += seen - before;
        }
        for (uint32_t k = first; k < last; k++, seen++)
            for (uint32_t at = w->v[w->links[w->up[k]].from].at + 1; at <= width; at += at & (~at + 1)) tree[at]++;
    }
    return crossings;
}

static uint64_t crossings(struct work *w)
{
    uint64_t sum = 0;

    for (size_t r = 1; r < w->rank_count; r++) sum += crossings_above(w, r, w->scratch);
    return sum;
}

static int by_key(const void *a, const void *b)
{
    const struct keyed *x = a, *y = b;
    if (x->key != y->key) return x->key < y->key ? -1 : 1;
    return x->at < y->at ? -1 : x->at > y->at;
}

/* Sorts a rank by the mean place of the neighbours above or below; who has none stays about where it is. */
static void sort_rank(struct work *w, size_t r, bool above)
{
    uint32_t first = w->rank_first[r], count = w->rank_first[r + 1] - first;

    for (uint32_t i = 0; i < count; i++) {
        uint32_t v = w->order[first + i];
        const uint32_t *list = above ? w->up : w->down, *from = above ? w->up_first : w->down_first;
        double sum = 0;
        for (uint32_t k = from[v]; k < from[v + 1]; k++) {
            const struct link *l = &w->links[list[k]];
            sum += w->v[above ? l->from : l->to].at;
        }
        w->keyed[i] = (struct keyed){from[v] < from[v + 1] ? sum / (from[v + 1] - from[v]) : i, v, i};
    }
    qsort(w->keyed, count, sizeof *w->keyed, by_key);
    for (uint32_t i = 0; i < count; i++) w->order[first + i] = w->keyed[i].what;
    number_rank(w, r);
}

/* Sweeps down and up, and keeps the best order that was met. Fewer for large drawings: the time is bounded by the
 * size, not by a clock, so that the same input gives the same drawing. */
static enum status order(struct work *w, struct error *e)
{
    size_t widest = 0, sweeps = w->vertex_count < 3000 ? 12 : w->vertex_count < 30000 ? 6 : 3;
    uint64_t least = UINT64_MAX;

    for (size_t r = 0; r < w->rank_count; r++) {
        number_rank(w, r);
        if (w->rank_first[r + 1] - w->rank_first[r] > widest) widest = w->rank_first[r + 1] - w->rank_first[r];
    }
    w->keyed = ARENA_NEW(w->a, widest > w->link_count ? widest : w->link_count, struct keyed);
    if (w->keyed == NULL) return no_memory(e);
    for (size_t i = 0; i <= sweeps && least > 0; i++) {
        uint64_t now = crossings(w);
        if (now < least) {
            least = now;
            memcpy(w->best, w->order, w->vertex_count * sizeof *w->order);
        }
        for (size_t r = 1; r < w->rank_count; r++) sort_rank(w, r, true);
        for (size_t r = w->rank_count - 1; r-- > 0;) sort_rank(w, r, false);
    }
    memcpy(w->order, w->best, w->vertex_count * sizeof *w->order);
    for (size_t r = 0; r < w->rank_count; r++) number_rank(w, r);
    return STATUS_OK;
}

/* ---- places -------------------------------------------------------------------------------------------------- */

/* Least distance of the middles of two neighbours. */
static double apart(const struct work *w, uint32_t left, uint32_t right)
{
    const struct vertex *a = &w->v[left], *b = &w->v[right];
    double gap = a->box == NONE && b->box == NONE ? BEND_WIDTH : w->l->gap_x;

    return (a->width + b->width) / 2 + gap;
}

/* Where a vertex would be upright with its neighbours, and how much it minds. */
static double wish(const struct work *w, uint32_t v, bool above, bool below, double *weight)
{
    double sum = 0;

    *weight = 0;
    for (uint32_t k = w->up_first[v]; above && k < w->up_first[v + 1]; k++) {
        const struct link *l = &w->links[w->up[k]];
        sum += l->weight * w->v[l->from].x;
        *weight += l->weight;
    }
    for (uint32_t k = w->down_first[v]; below && k < w->down_first[v + 1]; k++) {
        const struct link *l = &w->links[w->down[k]];
        sum += l->weight * w->v[l->to].x;
        *weight += l->weight;
    }
    return *weight > 0 ? sum / *weight : w->v[v].x;
}

/* The next element of a row that shall not overtake itself: it is pooled with those before it until the means
 * rise. */
static uint32_t pool_add(struct work *w, uint32_t pools, double mean, double weight)
{
    double *means = w->pool_mean, *weights = w->pool_weight;

    means[pools] = mean;
    weights[pools] = weight;
    w->pool_count[pools] = 1;
    for (; pools > 0 && means[pools - 1] > means[pools]; pools--) {
        double sum = weights[pools - 1] + weights[pools];
        means[pools - 1] = (means[pools - 1] * weights[pools - 1] + means[pools] * weights[pools]) / sum;
        weights[pools - 1] = sum;
        w->pool_count[pools - 1] += w->pool_count[pools];
    }
    return pools + 1;
}

/* Moves a rank as near to its wishes as the order and the distances allow: least squares, by pooling neighbours
 * that would overtake each other. */
static void place_rank(struct work *w, size_t r, bool above, bool below)
{
    uint32_t first = w->rank_first[r], count = w->rank_first[r + 1] - first, pools = 0;
    double shift = 0, weight;

    for (uint32_t i = 0; i < count; i++) {
        uint32_t v = w->order[first + i];
        if (i > 0) shift += apart(w, w->order[first + i - 1], v);
        double mean = wish(w, v, above, below, &weight) - shift;
        if (w->v[v].is_main) pools = pool_add(w, pools, -shift, 4096); /* else a long one would drift */
        else pools = pool_add(w, pools, mean, weight > 0 ? weight : 0.01);
    }
    shift = 0;
    for (uint32_t p = 0, i = 0; p < pools; p++)
        for (uint32_t k = 0; k < w->pool_count[p]; k++, i++) {
            if (i > 0) shift += apart(w, w->order[first + i - 1], w->order[first + i]);
            w->v[w->order[first + i]].x = w->pool_mean[p] + shift;
        }
}

static void pack(struct work *w)
{
    for (size_t r = 0; r < w->rank_count; r++) {
        double x = 0, width;
        uint32_t first = w->rank_first[r], last = w->rank_first[r + 1];
        for (uint32_t i = first; i < last; i++) {
            if (i > first) x += apart(w, w->order[i - 1], w->order[i]);
            w->v[w->order[i]].x = x;
        }
        width = x;
        for (uint32_t i = first; i < last; i++) w->v[w->order[i]].x -= width / 2;
    }
}

/* The bends of a box shall stand under each other: all go to one x if in every rank there is room for it. */
static void straighten_bends(struct work *w, uint32_t box)
{
    double low = -INFINITY, high = INFINITY, mean = 0;
    uint32_t count = w->bend_count[box], first = w->bend_first[box];

    for (uint32_t k = 0; k < count; k++) {
        const struct vertex *v = &w->v[first + k];
        uint32_t at = w->rank_first[v->rank] + v->at;
        if (v->at > 0) low = fmax(low, w->v[w->order[at - 1]].x + apart(w, w->order[at - 1], first + k));
        if (at + 1 < w->rank_first[v->rank + 1])
            high = fmin(high, w->v[w->order[at + 1]].x - apart(w, first + k, w->order[at + 1]));
        mean += v->x / count;
    }
    if (low > high) return;
    for (uint32_t k = 0; k < count; k++) w->v[first + k].x = fmax(low, fmin(high, mean));
}

static enum status place(struct work *w, struct error *e)
{
    size_t rounds = w->vertex_count < 3000 ? 10 : w->vertex_count < 30000 ? 6 : 3;

    w->pool_mean = ARENA_NEW(w->a, w->vertex_count, double);
    w->pool_weight = ARENA_NEW(w->a, w->vertex_count, double);
    w->pool_count = ARENA_NEW(w->a, w->vertex_count, uint32_t);
    if (w->pool_mean == NULL || w->pool_weight == NULL || w->pool_count == NULL) return no_memory(e);
    pack(w);
    for (size_t i = 0; i < rounds; i++) {
        for (size_t r = 1; r < w->rank_count; r++) place_rank(w, r, true, i > 0 && i % 2 == 1);
        for (size_t r = w->rank_count - 1; r-- > 0;) place_rank(w, r, i % 2 == 1, true);
    }
    for (int i = 0; i < 2; i++)
        for (uint32_t b = 0; b < w->l->box_count; b++)
            if (w->bend_count[b] > 0) straighten_bends(w, b);
    return STATUS_OK;
}

/* ---- ends of arrows ------------------------------------------------------------------------------------------ */

enum { END_GAP = 9, BORDER = 12 };   /* between arrow heads; from the corner */

/* The links on one side of a vertex. */
struct side {
    const struct vertex *own;
    uint32_t *list, count;
    bool above;
};

static struct side side_of(const struct work *w, uint32_t v, bool above)
{
    const uint32_t *first = above ? w->up_first : w->down_first;
    return (struct side){&w->v[v], (above ? w->up : w->down) + first[v], first[v + 1] - first[v], above};
}

static const struct vertex *other_end(const struct work *w, const struct side *s, uint32_t i)
{
    const struct link *l = &w->links[s->list[i]];
    return &w->v[s->above ? l->from : l->to];
}

/* By where they go. */
static void sort_side(struct work *w, struct side *s)
{
    for (uint32_t i = 0; i < s->count; i++) w->keyed[i] = (struct keyed){other_end(w, s, i)->at, s->list[i], i};
    if (s->count > 1) qsort(w->keyed, s->count, sizeof *w->keyed, by_key);
    for (uint32_t i = 0; i < s->count; i++) s->list[i] = w->keyed[i].what;
}

/* They are spread over the border, each as near as may be to upright: half way between the middles, or at the bend
 * itself, so that both ends choose the same x if both can. Bends have all in their middle. */
static void spread_side(struct work *w, struct side *s)
{
    const struct vertex *own = s->own;
    double room = own->box == NONE ? 0 : fmax(own->width / 2 - BORDER, 0);
    double gap = s->count > 1 ? fmin(END_GAP, 2 * room / (s->count - 1)) : 0, low = own->x - room;
    double high = own->x + room - gap * (s->count > 0 ? s->count - 1 : 0);
    uint32_t pools = 0;

    for (uint32_t i = 0; i < s->count; i++) {
        const struct vertex *other = other_end(w, s, i);
        double x = other->box == NONE ? other->x : (own->x + other->x) / 2;
        pools = pool_add(w, pools, fmax(own->x - room, fmin(own->x + room, x)) - gap * i,
                         w->links[s->list[i]].weight);
    }
    for (uint32_t p = 0, i = 0; p < pools; p++)
        for (uint32_t k = 0; k < w->pool_count[p]; k++, i++) {
            struct link *l = &w->links[s->list[i]];
            *(s->above ? &l->x_to : &l->x_from) = fmax(low, fmin(high, w->pool_mean[p])) + gap * i;
        }
}

static void spread_all_ends(struct work *w)
{
    for (uint32_t i = 0; i < 2 * w->vertex_count; i++) {
        struct side s = side_of(w, i / 2, i % 2 == 0);
        sort_side(w, &s);
        spread_side(w, &s);
    }
}

/* ---- heights and paths --------------------------------------------------------------------------------------- */

/* Ranks are as high as their highest box, and farther apart where arrows go far to the side. */
static enum status place_ranks(struct work *w, struct error *e)
{
    struct layout *l = w->l;
    double *lean = ARENA_NEW(w->a, w->rank_count, double), y = 0;

    w->top = ARENA_NEW(w->a, w->rank_count, double);
    w->bottom = ARENA_NEW(w->a, w->rank_count, double);
    if (lean == NULL || w->top == NULL || w->bottom == NULL) return no_memory(e);
    for (size_t i = 0; i < l->box_count; i++) {
        double *height = &w->bottom[l->boxes[i].rank];
        *height = fmax(*height, l->boxes[i].height);
    }
    for (size_t i = 0; i < w->link_count; i++) {
        double *most = &lean[w->v[w->links[i].from].rank];
        *most = fmax(*most, fabs(w->links[i].x_from - w->links[i].x_to));
    }
    for (size_t r = 0; r < w->rank_count; r++) {
        w->top[r] = y;
        w->bottom[r] += y;
        y = w->bottom[r] + l->gap_y + fmin(lean[r] * 0.12, 3 * l->gap_y);
    }
    l->height = w->bottom[w->rank_count - 1];
    return STATUS_OK;
}

static void add_point(struct layout *l, struct layout_arrow *a, double x, double y)
{
    l->points[l->point_count++] = (struct layout_point){x, y};
    a->point_count++;
}

static void trace(struct work *w, size_t i)
{
    struct layout *l = w->l;
    struct layout_arrow *a = &l->arrows[i];
    const struct layout_box *from = &l->boxes[a->from], *to = &l->boxes[a->to];
    const struct link *last = &w->links[w->last_link[i]],
                      *first = to->rank == from->rank + 1 ? last : &w->links[w->first_link[a->from]];

    a->point_first = (uint32_t)l->point_count;
    a->point_count = 0;
    add_point(l, a, first->x_from, from->y + from->height / 2);
    add_point(l, a, first->x_from, w->bottom[from->rank]);
    for (uint32_t r = from->rank + 1; r < to->rank; r++) {
        double x = w->v[w->bend_first[a->from] + r - from->rank - 1].x;
        add_point(l, a, x, w->top[r]);
        add_point(l, a, x, w->bottom[r]);
    }
    add_point(l, a, last->x_to, w->top[to->rank]);
    add_point(l, a, last->x_to, to->y - to->height / 2);
}

static enum status finish(struct work *w, struct error *e)
{
    struct layout *l = w->l;
    double left = INFINITY, right = -INFINITY;
    size_t points = 0;

    for (size_t i = 0; i < w->vertex_count; i++) {
        left = fmin(left, w->v[i].x - w->v[i].width / 2);
        right = fmax(right, w->v[i].x + w->v[i].width / 2);
    }
    for (size_t i = 0; i < w->vertex_count; i++) w->v[i].x -= left;
    l->width = right - left;
    spread_all_ends(w);
    enum status s = place_ranks(w, e);
    if (s != STATUS_OK) return s;
    for (size_t i = 0; i < l->box_count; i++) {
        l->boxes[i].x = w->v[i].x;
        l->boxes[i].y = (w->top[l->boxes[i].rank] + w->bottom[l->boxes[i].rank]) / 2;
    }
    for (size_t i = 0; i < l->arrow_count; i++)
        points += 2 + 2 * (size_t)(l->boxes[l->arrows[i].to].rank - l->boxes[l->arrows[i].from].rank);
    l->points = ARENA_NEW(w->a, points, struct layout_point);
    if (l->points == NULL) return no_memory(e);
    l->point_count = 0;
    for (size_t i = 0; i < l->arrow_count; i++) trace(w, i);
    return STATUS_OK;
}

enum status layout_run(struct layout *l, struct arena *a, struct error *e)
{
    struct work w = {.l = l, .a = a};
    enum status s;

    l->width = l->height = 0;
    l->point_count = 0;
    if (l->box_count == 0) return STATUS_OK;
    s = rank(&w, e);
    if (s == STATUS_OK) s = count_bends(&w, e);
    if (s == STATUS_OK) s = make_vertices(&w, e);
    if (s == STATUS_OK) s = make_links(&w, e);
    if (s == STATUS_OK) s = find_main_chain(&w, e);
    if (s == STATUS_OK) s = index_links(&w, e);
    if (s == STATUS_OK) s = first_order(&w, e);
    if (s == STATUS_OK) s = order(&w, e);
    if (s == STATUS_OK) s = place(&w, e);
    return s == STATUS_OK ? finish(&w, e) : s;
}
