#include "service/order.h"

#include "service/base/mem.h"

#include <assert.h>
#include <string.h>

/* A leaf holds keys; any other node holds nodes, of each the number of keys and the first one below it. A node that is
 * full is split: in the middle or, when what comes is the last of all, at its end, so that names which come in order fill
 * their leaves. One that is empty goes, and small neighbours become one. */
enum { WIDTH = 64, SMALL = WIDTH / 2, DEPTH_MAX = 8 };

struct order_node {
    unsigned count;
    struct key *keys[WIDTH];         /* of a leaf; else the first below each node */
};

/* What any other node has besides. */
struct order_inner {
    struct order_node node;
    struct order_node *below[WIDTH];
    size_t sizes[WIDTH];
};

static struct order_inner *inner(const struct order_node *n)
{
    return CONTAINER_OF((struct order_node *)(uintptr_t)n, struct order_inner, node);
}

/* All keys of a store are of one kind. */
static int compare(const struct key_name *a, const struct key_name *b)
{
    if (!a->is_text) return a->number < b->number ? -1 : a->number > b->number;
    return bytes_compare(a->text, b->text);
}

static void node_free(struct order_node *n, unsigned depth)
{
    if (n == NULL) return;
    for (unsigned i = 0; depth > 0 && i < n->count; i++) node_free(inner(n)->below[i], depth - 1);
    mem_free(depth > 0 ? (void *)inner(n) : (void *)n);
}

void order_fini(struct order *o)
{
    node_free(o->root, o->depth);
    *o = (struct order){.root = NULL};
}

static size_t size_of(const struct order_node *n, unsigned depth)
{
    size_t size = 0;

    if (n == NULL) return 0;
    if (depth == 0) return n->count;
    for (unsigned i = 0; i < n->count; i++) size += inner(n)->sizes[i];
    return size;
}

size_t order_count(const struct order *o) { return size_of(o->root, o->depth); }

/* ---- searching -------------------------------------------------------------------------------------------------- */

/* Where a name stands to what is looked for: < 0 before it, > 0 behind it. */
typedef int relation(const struct key_name *n, const void *what);

static int to_name(const struct key_name *n, const void *what) { return compare(n, what); }

static int to_prefix(const struct key_name *n, const void *what)
{
    const struct bytes *prefix = what;
    struct bytes head = n->text;

    if (prefix->size == 0) return 0;
    if (!n->is_text) return -1;
    if (head.size > prefix->size) head.size = prefix->size;
    return bytes_compare(head, *prefix);
}

/* How many of a node's keys come before it; with those that are equal to it, if `equal`. */
static unsigned before_in(const struct order_node *n, relation *to, const void *what, bool equal)
{
    unsigned low = 0, high = n->count;

    while (low < high) {
        unsigned middle = low + (high - low) / 2;
        int r = to(&n->keys[middle]->name, what);
        if (r < 0 || (r == 0 && equal)) low = middle + 1;
        else high = middle;
    }
    return low;
}

static size_t count_before(const struct order *o, relation *to, const void *what, bool equal)
{
    const struct order_node *n = o->root;
    size_t count = 0;

    if (n == NULL) return 0;
    for (unsigned depth = o->depth; depth > 0; depth--) {
        unsigned at = before_in(n, to, what, equal);
        if (at > 0) at--; /* the last node that begins before it */
        for (unsigned i = 0; i < at; i++) count += inner(n)->sizes[i];
        n = inner(n)->below[at];
    }
    return count + before_in(n, to, what, equal);
}

struct order_page order_find(const struct order *o, struct bytes prefix, const struct key_name *after)
{
    size_t first = count_before(o, to_prefix, &prefix, false), end = count_before(o, to_prefix, &prefix, true), at = first;

    if (after != NULL && o->root != NULL && after->is_text != o->root->keys[0]->name.is_text) at = end;
    else if (after != NULL) at = count_before(o, to_name, after, true);
    if (at < first) at = first;
    if (at > end) at = end;
    return (struct order_page){.first = at, .count = end - at, .total = end - first};
}

struct key *order_at(const struct order *o, size_t place)
{
    const struct order_node *n = o->root;

    for (unsigned depth = o->depth; depth > 0; depth--) {
        unsigned i = 0;
        for (; place >= inner(n)->sizes[i]; i++) place -= inner(n)->sizes[i];
        n = inner(n)->below[i];
    }
    assert(place < n->count);
    return n->keys[place];
}

/* ---- the way to a key ------------------------------------------------------------------------------------------- */

struct way {
    struct order_node *nodes[DEPTH_MAX + 1];         /* from the root, nodes[0], to a leaf */
    unsigned places[DEPTH_MAX + 1];                  /* in each of them */
};

/* To where the name is or, if it is not there, would be. */
static void find_way(const struct order *o, const struct key_name *name, struct way *w)
{
    struct order_node *n = o->root;

    for (unsigned level = 0; level < o->depth; level++) {
        unsigned at = before_in(n, to_name, name, true);
        w->nodes[level] = n;
        w->places[level] = at > 0 ? at - 1 : 0;
        n = inner(n)->below[w->places[level]];
    }
    w->nodes[o->depth] = n;
    w->places[o->depth] = before_in(n, to_name, name, false);
}

static void *moved(void *array, size_t size, unsigned from, unsigned to, unsigned count)
{
    return memmove((char *)array + to * size, (char *)array + from * size, count * size);
}

/* Makes a gap at a place, or closes one. */
static void shift(struct order_node *n, bool is_leaf, unsigned from, unsigned to)
{
    unsigned count = n->count - from;

    moved(n->keys, sizeof n->keys[0], from, to, count);
    if (is_leaf) return;
    moved(inner(n)->below, sizeof inner(n)->below[0], from, to, count);
    moved(inner(n)->sizes, sizeof inner(n)->sizes[0], from, to, count);
}

/* `count` entries of one node behind those of another. */
static void append(struct order_node *to, const struct order_node *from, bool is_leaf, unsigned at, unsigned count)
{
    memcpy(&to->keys[to->count], &from->keys[at], count * sizeof to->keys[0]);
    if (!is_leaf) {
        memcpy(&inner(to)->below[to->count], &inner(from)->below[at], count * sizeof inner(to)->below[0]);
        memcpy(&inner(to)->sizes[to->count], &inner(from)->sizes[at], count * sizeof inner(to)->sizes[0]);
    }
    to->count += count;
}

/* ---- a key comes ------------------------------------------------------------------------------------------------ */

static struct order_node *node_new(bool is_leaf)
{
    struct order_inner *n;

    if (is_leaf) return mem_zero(sizeof(struct order_node));
    n = mem_zero(sizeof *n);
    return n != NULL ? &n->node : NULL;
}

/* The nodes that the splits along the way need, made before anything is changed; the last one is a new root. */
static enum status find_nodes(const struct order *o, const struct way *w, struct order_node *fresh[DEPTH_MAX + 2],
                              struct error *e)
{
    unsigned count = 0;
    bool full = true;

    for (unsigned level = o->depth + 1; full && level-- > 0; count++) {
        full = w->nodes[level]->count == WIDTH;
        if (full) fresh[count] = node_new(level == o->depth);
        if (full && fresh[count] == NULL) goto failed;
    }
    if (!full) return STATUS_OK;
    fresh[count] = node_new(false);
    if (fresh[count] != NULL) return STATUS_OK;
failed:
    for (unsigned i = 0; i < count; i++) mem_free(i == 0 ? (void *)fresh[i] : (void *)inner(fresh[i]));
    return error_set(e, REASON_NO_MEMORY, "no memory for the order of keys");
}

/* Moves the end of a full node to a new one, where the place may be then. */
static void split(struct order_node *n, struct order_node *right, bool is_leaf, bool is_last, unsigned *place,
                  struct order_node **holds)
{
    unsigned stay = is_last ? WIDTH - 1 : WIDTH / 2;

    append(right, n, is_leaf, stay, n->count - stay);
    n->count = stay;
    *holds = *place > stay ? right : n;
    if (*place > stay) *place -= stay;
}

static void put(struct order_node *n, bool is_leaf, unsigned at, struct key *first, struct order_node *below, size_t size)
{
    shift(n, is_leaf, at, at + 1);
    n->keys[at] = first;
    if (!is_leaf) {
        inner(n)->below[at] = below;
        inner(n)->sizes[at] = size;
    }
    n->count++;
}

static void grow_root(struct order *o, struct order_node *root, struct order_node *right)
{
    struct order_node *left = o->root;

    put(root, false, 0, left->keys[0], left, size_of(left, o->depth));
    put(root, false, 1, right->keys[0], right, size_of(right, o->depth));
    o->root = root;
    o->depth++;
}

enum status order_add(struct order *o, struct key *k, struct error *e)
{
    struct order_node *fresh[DEPTH_MAX + 2] = {NULL}, *right = NULL, *holds;
    struct way w;

    if (o->root == NULL) o->root = node_new(true);
    if (o->root == NULL) return error_set(e, REASON_NO_MEMORY, "no memory for the order of keys");
    assert(o->depth < DEPTH_MAX);
    find_way(o, &k->name, &w);
    bool is_last = true;
    for (unsigned level = 0; level <= o->depth; level++)
        is_last &= w.places[level] + (level < o->depth) == w.nodes[level]->count;
    enum status s = find_nodes(o, &w, fresh, e);
    if (s != STATUS_OK) return s;
    unsigned depth = o->depth, used = 0;
    for (unsigned level = depth + 1; level-- > 0;) {
        struct order_node *n = w.nodes[level], *below = right;
        bool is_leaf = level == depth;
        unsigned place = w.places[level];
        if (!is_leaf) { /* the node below has changed, and may have got a neighbour behind it */
            inner(n)->sizes[place] = size_of(w.nodes[level + 1], depth - level - 1);
            n->keys[place] = w.nodes[level + 1]->keys[0];
            place++;
        }
        right = NULL;
        if (!is_leaf && below == NULL) continue;
        holds = n;
        if (n->count == WIDTH) {
            right = fresh[used++];
            split(n, right, is_leaf, is_last, &place, &holds);
        }
        put(holds, is_leaf, place, is_leaf ? k : below->keys[0], below, size_of(below, is_leaf ? 0 : depth - level - 1));
    }
    if (right != NULL) grow_root(o, fresh[used], right);
    return STATUS_OK;
}

/* ---- a key goes ------------------------------------------------------------------------------------------------- */

static void drop_node(struct order_node *n, bool is_leaf) { mem_free(is_leaf ? (void *)n : (void *)inner(n)); }

/* Takes node i + 1 below n into node i, if the two are small. */
static void join(struct order_node *n, unsigned i, unsigned depth)
{
    if (i + 1 >= n->count) return;
    struct order_node *left = inner(n)->below[i], *right = inner(n)->below[i + 1];
    bool is_leaf = depth == 1;
    if (left->count + right->count > SMALL) return;
    append(left, right, is_leaf, 0, right->count);
    inner(n)->sizes[i] += inner(n)->sizes[i + 1];
    drop_node(right, is_leaf);
    shift(n, false, i + 2, i + 1);
    n->count--;
}

void order_remove(struct order *o, const struct key *k)
{
    struct way w;

    find_way(o, &k->name, &w);
    for (unsigned level = o->depth + 1; level-- > 0;) {
        struct order_node *n = w.nodes[level];
        bool is_leaf = level == o->depth;
        unsigned place = w.places[level];
        assert(!is_leaf || n->keys[place] == k);
        if (!is_leaf) inner(n)->sizes[place]--;
        if (is_leaf || inner(n)->sizes[place] == 0) { /* an empty node was freed below */
            shift(n, is_leaf, place + 1, place);
            n->count--;
        } else {
            n->keys[place] = w.nodes[level + 1]->keys[0];
            join(n, place, o->depth - level);
            if (place > 0) join(n, place - 1, o->depth - level);
        }
        if (n->count > 0) continue;
        drop_node(n, is_leaf);
        if (level == 0) *o = (struct order){.root = NULL};
    }
    while (o->depth > 0 && o->root->count == 1) {
        struct order_node *root = o->root;
        o->root = inner(root)->below[0];
        o->depth--;
        drop_node(root, false);
    }
}
