#include "web/viz/arena.h"

#include <stdalign.h>
#include <string.h>

enum { BLOCK_SIZE = 64 << 10, ALIGN = alignof(max_align_t) };

struct arena_block {
    struct arena_block *before;
    alignas(max_align_t) char bytes[];
};

static bool add_block(struct arena *a, size_t size)
{
    size_t capacity = size > BLOCK_SIZE ? size : BLOCK_SIZE;
    struct arena_block *b;

    if (a->limit > 0 && (a->total > a->limit || capacity > a->limit - a->total)) return false;
    b = mem_zero(sizeof *b + capacity);
    if (b == NULL) return false;
    b->before = a->last;
    a->last = b;
    a->total += capacity;
    a->capacity = capacity;
    a->used = 0;
    return true;
}

void *arena_new(struct arena *a, size_t count, size_t size)
{
    if (size != 0 && count > (SIZE_MAX / 4) / size) return NULL;
    size = (count * size + ALIGN - 1) / ALIGN * ALIGN;
    if (a->last == NULL || size > a->capacity - a->used)
        if (!add_block(a, size)) return NULL;
    void *p = a->last->bytes + a->used;
    a->used += size;
    return p;
}

char *arena_text(struct arena *a, const char *from, size_t size)
{
    char *p = size < SIZE_MAX ? arena_new(a, size + 1, 1) : NULL;

    if (p != NULL && size > 0) memcpy(p, from, size);
    return p;
}

void arena_fini(struct arena *a)
{
    while (a->last != NULL) {
        struct arena_block *b = a->last;
        a->last = b->before;
        mem_free(b);
    }
    *a = (struct arena){.limit = a->limit};
}
