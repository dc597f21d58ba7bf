#include "web/viz/read.h"

#include <stdlib.h>
#include <string.h>

enum { LEVELS_MAX = 8 };             /* prefixes of one name that may become nodes */

/* Sorted by group the tree is a walk: a group is a run of keys, and a prefix that several groups share is a run
 * too. */
struct tree {
    struct viz_graph *g;
    const struct viz_key **keys;
    size_t count;
    struct {
        size_t size, first, end;
        uint32_t node;
    } open[LEVELS_MAX + 1]; /* prefixes that the key in hand lies under */
    size_t depth;
    struct error *e;
};

/* "fc1" of "fc1_weight"; a name without a separator is its own. */
static size_t prefix_size(const char *name)
{
    size_t size = strlen(name);

    for (size_t i = size; i > 1; i--)
        if (strchr("._/", name[i - 1]) != NULL && i < size) return i - 1;
    return size;
}

/* BatchNorm's moving_mean belongs to its gamma, not beside it. */
static size_t group_size(const char *name)
{
    static const char *const ends[] = {"_moving_mean", "_moving_var", "_running_mean", "_running_var"};
    size_t size = strlen(name);

    for (size_t i = 0; i < sizeof ends / sizeof ends[0]; i++)
        if (size > strlen(ends[i]) && strcmp(name + size - strlen(ends[i]), ends[i]) == 0)
            return size - strlen(ends[i]);
    return prefix_size(name);
}

static int by_group(const void *a, const void *b)
{
    const char *x = (*(const struct viz_key *const *)a)->name, *y = (*(const struct viz_key *const *)b)->name;
    int c = bytes_compare(bytes_of(x, group_size(x)), bytes_of(y, group_size(y)));

    return c != 0 ? c : strcmp(x, y);
}

/* One behind the last key, from `from` on, whose group begins with the first `size` bytes of that one's name. */
static size_t run_end(const struct tree *t, size_t from, size_t size)
{
    size_t low = from + 1, high = t->count;

    while (low < high) {
        size_t mid = low + (high - low) / 2;
        if (strncmp(t->keys[mid]->name, t->keys[from]->name, size) == 0 && group_size(t->keys[mid]->name) >= size)
            low = mid + 1;
        else high = mid;
    }
    return low;
}

static enum status open_prefix(struct tree *t, size_t from, size_t size, size_t end)
{
    uint32_t node;
    enum status s = viz_node_add(t->g, bytes_of(t->keys[from]->name, size - 1), bytes_text("(keys)"), &node, t->e);

    if (s != STATUS_OK) return s;
    struct viz_input *input = viz_inputs_new(t->g, 1, t->e);
    if (input == NULL) return t->e->status;
    *input = (struct viz_input){t->open[t->depth - 1].node, 0};
    t->open[t->depth].size = size;
    t->open[t->depth].first = from;
    t->open[t->depth].end = end;
    t->open[t->depth++].node = node;
    return viz_outputs_set(t->g, node, 1, t->e);
}

/* A prefix becomes a node where the groups below it part. */
static enum status open_prefixes(struct tree *t, size_t from, size_t group)
{
    const char *name = t->keys[from]->name;
    size_t ends[LEVELS_MAX], sizes[LEVELS_MAX], levels = 0;
    enum status s = STATUS_OK;

    while (t->open[t->depth - 1].end <= from) t->depth--;
    for (size_t i = t->open[t->depth - 1].size + 1; i < group && levels < LEVELS_MAX; i++) {
        if (strchr("._/", name[i]) == NULL) continue;
        sizes[levels] = i + 1;
        ends[levels++] = run_end(t, from, i + 1);
    }
    size_t own = run_end(t, from, group);
    for (size_t i = 0; i < levels && s == STATUS_OK && t->depth <= LEVELS_MAX; i++)
        if (ends[i] > (i + 1 < levels ? ends[i + 1] : own) &&
            (ends[i] != t->open[t->depth - 1].end || from != t->open[t->depth - 1].first))
            s = open_prefix(t, from, sizes[i], ends[i]);
    return s;
}

static enum status add_leaf(struct tree *t, const struct viz_key *k, uint32_t *at)
{
    enum status s = viz_node_add(t->g, bytes_text(k->name), (struct bytes){0}, at, t->e);

    if (s == STATUS_OK) s = viz_outputs_set(t->g, *at, 1, t->e);
    if (s == STATUS_OK) t->g->nodes[*at].is_kept = true;
    return s;
}

/* The keys [from, to), which are one group, and the node that has them. */
static enum status add_group(struct tree *t, size_t from, size_t to)
{
    const char *name = t->keys[from]->name;
    uint32_t group, *leaves = ARENA_NEW(&t->g->arena, to - from, uint32_t);
    enum status s = leaves != NULL ? STATUS_OK : viz_no_memory(t->e);

    for (size_t i = from; i < to && s == STATUS_OK; i++) s = add_leaf(t, t->keys[i], &leaves[i - from]);
    if (s == STATUS_OK)
        s = viz_node_add(t->g, bytes_of(name, group_size(name)), bytes_text("(keys)"), &group, t->e);
    if (s != STATUS_OK) return s;
    struct viz_input *inputs = viz_inputs_new(t->g, to - from + 1, t->e);
    if (inputs == NULL) return t->e->status;
    inputs[0] = (struct viz_input){t->open[t->depth - 1].node, 0};
    for (size_t i = from; i < to; i++) inputs[i - from + 1] = (struct viz_input){leaves[i - from], 0};
    return viz_outputs_set(t->g, group, 1, t->e);
}

static enum status add_groups(struct tree *t)
{
    enum status s = STATUS_OK;

    for (size_t from = 0, to; from < t->count && s == STATUS_OK; from = to) {
        size_t size = group_size(t->keys[from]->name);
        for (to = from + 1; to < t->count; to++)
            if (group_size(t->keys[to]->name) != size || memcmp(t->keys[to]->name, t->keys[from]->name, size) != 0)
                break;
        s = open_prefixes(t, from, size);
        if (s == STATUS_OK) s = add_group(t, from, to);
    }
    return s;
}

enum status viz_read_keys(struct viz_graph *g, const char *store, const struct viz_key *keys, size_t count,
                          struct error *e)
{
    struct tree t = {.g = g, .count = count, .e = e};

    g->is_tree = true;
    t.keys = ARENA_NEW(&g->arena, count, const struct viz_key *);
    if (t.keys == NULL) return viz_no_memory(e);
    for (size_t i = 0; i < count; i++) t.keys[i] = &keys[i];
    if (count > 0) qsort(t.keys, count, sizeof *t.keys, by_group);
    t.open[0].end = count > 0 ? count : 1;
    t.depth = 1;
    enum status s = viz_node_add(g, bytes_text(store), bytes_text("(keys)"), &t.open[0].node, e);
    if (s == STATUS_OK && viz_inputs_new(g, 0, e) == NULL) s = e->status;
    if (s == STATUS_OK) s = viz_outputs_set(g, t.open[0].node, 1, e);
    return s == STATUS_OK ? add_groups(&t) : s;
}
