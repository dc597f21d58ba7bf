#include "service/order.h"

#include "service/base/mem.h"
#include "service/store.h"

#include <stdlib.h>
#include <string.h>

void order_fini(struct order *o)
{
    mem_free(o->keys);
    *o = (struct order){.keys = NULL};
}

/* All keys of a store are of one kind. */
static int compare(const struct key_name *a, const struct key_name *b)
{
    if (!a->is_text) return a->number < b->number ? -1 : a->number > b->number;
    return bytes_compare(a->text, b->text);
}

static int by_name(const void *a, const void *b)
{
    return compare(&(*(struct key *const *)a)->name, &(*(struct key *const *)b)->name);
}

static enum status sort(struct store *s, struct error *e)
{
    struct order *o = &s->order;
    struct key **keys = mem_array(s->slot_count + 1, sizeof *keys);

    if (keys == NULL) return error_set(e, REASON_NO_MEMORY, "no memory to list %zu keys", s->slot_count);
    order_fini(o);
    for (size_t i = 0; i < s->slot_count; i++)
        if (s->by_slot[i] != NULL) keys[o->count++] = s->by_slot[i];
    qsort(keys, o->count, sizeof *keys, by_name);
    o->keys = keys;
    o->sorted = true;
    return STATUS_OK;
}

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

/* How many come before it; with those that are equal to it, if `equal`. */
static size_t count_before(const struct order *o, relation *to, const void *what, bool equal)
{
    size_t low = 0, high = o->count;

    while (low < high) {
        size_t middle = low + (high - low) / 2;
        int r = to(&o->keys[middle]->name, what);
        if (r < 0 || (r == 0 && equal)) low = middle + 1;
        else high = middle;
    }
    return low;
}

enum status order_find(struct store *s, struct bytes prefix, const struct key_name *after, struct order_page *out,
                       struct error *e)
{
    struct order *o = &s->order;
    enum status st = o->sorted ? STATUS_OK : sort(s, e);

    if (st != STATUS_OK) return st;
    size_t first = count_before(o, to_prefix, &prefix, false), end = count_before(o, to_prefix, &prefix, true), at = first;
    if (after != NULL && o->count > 0 && after->is_text != o->keys[0]->name.is_text) at = end;
    else if (after != NULL) at = count_before(o, to_name, after, true);
    if (at < first) at = first;
    if (at > end) at = end;
    *out = (struct order_page){.keys = o->keys + at, .count = end - at, .total = end - first};
    return STATUS_OK;
}
