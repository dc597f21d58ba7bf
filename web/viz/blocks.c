#include "web/viz/blocks.h"

#include <stdlib.h>

struct finder {
    const struct viz_item *items;
    size_t count;
    struct viz_run *runs;            /* grows on the heap */
    size_t run_count, run_capacity;
    struct error *e;
};

static enum status add_run(struct finder *f, size_t first, size_t length, size_t copies)
{
    if (copies < BLOCK_COPIES_MIN || length * (copies - 1) < BLOCK_SAVED_MIN) return STATUS_OK;
    void *runs = f->runs;
    enum status s = mem_grow(&runs, &f->run_capacity, f->run_count + 1, sizeof *f->runs, f->e);
    f->runs = runs;
    if (s == STATUS_OK)
        f->runs[f->run_count++] = (struct viz_run){(uint32_t)first, (uint32_t)length, (uint32_t)copies};
    return s;
}

static bool same(const struct finder *f, size_t i, size_t k)
{
    return f->items[i].sign == f->items[k].sign && !f->items[i].fixed && !f->items[k].fixed;
}

/* Whether the second copy has an input from the first. As the copies are equal, so have all others. */
static bool is_chain(const struct finder *f, size_t first, size_t length)
{
    for (size_t i = 0; i < length; i++) {
        const struct viz_item *item = &f->items[first + length + i];
        for (uint32_t k = 0; k < item->back_count; k++)
            if (item->back[k] > i && item->back[k] <= i + length) return true;
    }
    return false;
}

/* Places where `length` items are followed by the same again and again. */
static enum status find_length(struct finder *f, size_t length)
{
    enum status s = STATUS_OK;

    for (size_t i = 0, equal; i + length < f->count && s == STATUS_OK; i += equal + 1) {
        for (equal = 0; i + equal + length < f->count && same(f, i + equal, i + equal + length);) equal++;
        if (equal >= length && is_chain(f, i, length)) s = add_run(f, i, length, equal / length + 1);
    }
    return s;
}

static size_t saved(const struct viz_run *r) { return (size_t)r->length * (r->copies - 1); }

/* What saves most comes first; of equals the shorter block, as it is what repeats. */
static int by_saving(const void *a, const void *b)
{
    const struct viz_run *x = a, *y = b;

    if (saved(x) != saved(y)) return saved(x) > saved(y) ? -1 : 1;
    if (x->length != y->length) return x->length < y->length ? -1 : 1;
    return x->first < y->first ? -1 : x->first > y->first;
}

static int by_place(const void *a, const void *b)
{
    const struct viz_run *x = a, *y = b;
    return x->first < y->first ? -1 : x->first > y->first;
}

/* Keeps the best that are free. One that is expanded takes its place and is left out. */
static enum status choose(struct finder *f, struct arena *a, struct viz_run **out, size_t *out_count)
{
    bool *taken = ARENA_NEW(a, f->count, bool);
    size_t kept = 0;

    if (taken == NULL) return error_set(f->e, REASON_NO_MEMORY, "no memory for the picture");
    if (f->run_count > 0) qsort(f->runs, f->run_count, sizeof *f->runs, by_saving);
    for (size_t i = 0; i < f->run_count; i++) {
        struct viz_run r = f->runs[i];
        size_t end = r.first + (size_t)r.length * r.copies, at = r.first;
        while (at < end && !taken[at]) at++;
        if (at < end) continue;
        for (at = r.first; at < end; at++) taken[at] = true;
        if (!f->items[r.first].expanded) f->runs[kept++] = r;
    }
    if (kept > 0) qsort(f->runs, kept, sizeof *f->runs, by_place);
    *out = ARENA_NEW(a, kept, struct viz_run);
    if (*out == NULL) return error_set(f->e, REASON_NO_MEMORY, "no memory for the picture");
    for (size_t i = 0; i < kept; i++) (*out)[i] = f->runs[i];
    *out_count = kept;
    return STATUS_OK;
}

enum status viz_runs_find(const struct viz_item *items, size_t count, struct arena *a, struct viz_run **out,
                          size_t *run_count, struct error *e)
{
    struct finder f = {.items = items, .count = count, .e = e};
    enum status s = STATUS_OK;

    for (size_t length = 1; length <= BLOCK_LENGTH_MAX && length < count && s == STATUS_OK; length++)
        s = find_length(&f, length);
    if (s == STATUS_OK) s = choose(&f, a, out, run_count);
    mem_free(f.runs);
    return s;
}
