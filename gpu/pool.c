#include "gpu/pool.h"

#include "service/base/list.h"
#include "service/base/map.h"
#include "service/base/mem.h"

#include <assert.h>

enum {
    CLASSES = 256,               /* four for each power of two */
    LOOKS = 8                    /* at pieces of the class that may be too small, before a larger one is cut */
};

struct chunk {
    struct list_node node;
    struct list pieces;          /* by address */
    char *at;
    size_t size;                 /* as taken */
    bool alone;                  /* for one piece, ever */
};

struct piece {
    struct list_node node;       /* in chunk.pieces */
    struct list_node free;       /* in a class; linked: it is free */
    struct chunk *chunk;
    char *at;
    size_t size;                 /* a multiple of POOL_ALIGN */
};

struct pool {
    struct pool_source source;
    struct list chunks;
    struct list classes[CLASSES];
    struct map *taken;           /* by address */
    size_t bytes, taken_bytes, empty_chunks;
    bool keeps;
    struct list parting;         /* chunks of pieces that were alone, while it keeps */
};

static size_t round_up(size_t size, size_t to) { return (size + to - 1) / to * to; }

/* Rising with the size, which is a multiple of POOL_ALIGN. */
static unsigned class_of(size_t size)
{
    size_t units = size / POOL_ALIGN;
    unsigned bit = 63 - (unsigned)__builtin_clzll(units);

    return bit < 2 ? (unsigned)units : 4 * (bit - 1) + (unsigned)(units >> (bit - 2) & 3);
}

static void set_free(struct pool *a, struct piece *p) { list_prepend(&a->classes[class_of(p->size)], &p->free); }

/* ---- chunks ------------------------------------------------------------------------------------------------------ */

static bool is_empty(const struct chunk *c)
{
    const struct piece *p = LIST_FIRST(struct piece, node, &c->pieces);
    return list_linked(&p->free) && p->node.next == &c->pieces.head;
}

static enum status chunk_take(struct pool *a, size_t size, struct chunk *c, struct error *e)
{
    const struct pool_source *s = &a->source;

    if (s->limit > 0 && (size > s->limit || a->bytes > s->limit - size))
        return error_set(e, REASON_NO_MEMORY, "no %s for %zu bytes: %zu of at most %zu are taken", s->what, size, a->bytes,
                         s->limit);
    enum status st = s->take(s->ctx, size, (void **)&c->at, e);
    if (st == STATUS_OK) c->size = size;
    return st;
}

static void chunk_free(struct pool *a, struct chunk *c)
{
    a->source.give(a->source.ctx, c->at);
    a->bytes -= c->size;
    LIST_EACH(struct piece, p, node, &c->pieces) {
        list_remove(&p->free);
        list_remove(&p->node);
        mem_free(p);
    }
    list_remove(&c->node);
    mem_free(c);
}

static void give_empty_chunks(struct pool *a)
{
    LIST_EACH(struct chunk, c, node, &a->chunks)
        if (is_empty(c)) chunk_free(a, c);
    a->empty_chunks = 0;
}

static enum status chunk_of_a_size(struct pool *a, size_t size, struct chunk *c, struct error *e)
{
    size_t usual = a->source.chunk_size;
    enum status s = reason_status(REASON_NO_MEMORY);

    if (size < usual && !c->alone) s = chunk_take(a, usual, c, e);
    return s == reason_status(REASON_NO_MEMORY) ? chunk_take(a, size, c, e) : s;
}

/* With one free piece, of at least `size` bytes. When there is no room for a whole chunk one of just that size will do. */
static enum status chunk_new(struct pool *a, size_t size, bool alone, struct piece **out, struct error *e)
{
    size_t rounded = round_up(size, POOL_ALIGN);
    struct chunk *c = mem_zero(sizeof *c);
    struct piece *p = mem_zero(sizeof *p);
    enum status s = STATUS_OK;

    if (c != NULL) c->alone = alone;
    if (c == NULL || p == NULL) s = error_set(e, REASON_NO_MEMORY, "no memory for the books of %s", a->source.what);
    else s = chunk_of_a_size(a, size, c, e);
    if (s == reason_status(REASON_NO_MEMORY) && c != NULL && p != NULL && a->empty_chunks > 0 && !a->keeps) {
        give_empty_chunks(a);
        s = chunk_of_a_size(a, size, c, e);
    }
    if (s != STATUS_OK) {
        mem_free(c);
        mem_free(p);
        return s;
    }
    list_init(&c->pieces);
    *p = (struct piece){.chunk = c, .at = c->at, .size = c->size == size ? rounded : c->size / POOL_ALIGN * POOL_ALIGN};
    list_append(&c->pieces, &p->node);
    list_append(&a->chunks, &c->node);
    a->bytes += c->size;
    a->empty_chunks++;
    set_free(a, p);
    *out = p;
    return STATUS_OK;
}

/* ---- pieces ------------------------------------------------------------------------------------------------------ */

static struct piece *find_free(struct pool *a, size_t size)
{
    unsigned looks = 0;

    for (unsigned k = class_of(size); k < CLASSES; k++)
        LIST_EACH(struct piece, p, free, &a->classes[k]) {
            if (p->size >= size) return p;
            if (++looks == LOOKS) break;
        }
    return NULL;
}

/* Leaves `size` bytes in p and makes the rest a free piece of its own. Without memory for that p keeps all. */
static void split(struct pool *a, struct piece *p, size_t size)
{
    struct piece *rest = p->size > size ? mem_zero(sizeof *rest) : NULL;

    if (rest == NULL) return;
    *rest = (struct piece){.chunk = p->chunk, .at = p->at + size, .size = p->size - size};
    p->size = size;
    list_insert_before(p->node.next, &rest->node);
    set_free(a, rest);
}

static enum status take(struct pool *a, size_t size, bool alone, void **out, struct error *e)
{
    size_t rounded = round_up(size, POOL_ALIGN);

    assert(size > 0);
    if (rounded < size) return error_set(e, REASON_NO_MEMORY, "no %s for %zu bytes", a->source.what, size);
    struct piece *p = alone ? NULL : find_free(a, rounded);
    enum status s = p == NULL ? chunk_new(a, size, alone, &p, e) : STATUS_OK;
    if (s != STATUS_OK) return s;
    s = map_put_u64(a->taken, (uint64_t)(uintptr_t)p->at, p, e);
    if (s != STATUS_OK && alone) {
        a->empty_chunks--;
        chunk_free(a, p->chunk);
    }
    if (s != STATUS_OK) return s;
    if (is_empty(p->chunk)) a->empty_chunks--;
    list_remove(&p->free);
    split(a, p, rounded);
    a->taken_bytes += p->size;
    *out = p->at;
    return STATUS_OK;
}

enum status pool_take(struct pool *a, size_t size, void **out, struct error *e) { return take(a, size, false, out, e); }

enum status pool_take_alone(struct pool *a, size_t size, void **out, struct error *e)
{
    return take(a, size, true, out, e);
}

/* p takes over the piece behind it. */
static void join(struct piece *p, struct piece *next)
{
    p->size += next->size;
    list_remove(&next->free);
    list_remove(&next->node);
    mem_free(next);
}

static struct piece *neighbour(struct piece *p, struct list_node *n)
{
    struct piece *other = n == &p->chunk->pieces.head ? NULL : CONTAINER_OF(n, struct piece, node);
    return other != NULL && list_linked(&other->free) ? other : NULL;
}

/* Whether other pieces will fit it as well. */
static bool is_usual(const struct pool *a, const struct chunk *c)
{
    return !c->alone && c->size == a->source.chunk_size && c->size >= POOL_ALIGN;
}

void pool_give(struct pool *a, void *at)
{
    struct piece *p = map_remove_u64(a->taken, (uint64_t)(uintptr_t)at), *other;

    assert(p != NULL);
    a->taken_bytes -= p->size;
    if ((other = neighbour(p, p->node.next)) != NULL) join(p, other);
    if ((other = neighbour(p, p->node.prev)) != NULL) {
        list_remove(&other->free);
        join(other, p);
        p = other;
    }
    set_free(a, p);
    if (!is_empty(p->chunk)) return;
    if (a->keeps && p->chunk->alone) {
        /* Others may still reach it: it is nobody's until it goes. */
        list_remove(&p->free);
        list_remove(&p->chunk->node);
        list_append(&a->parting, &p->chunk->node);
        return;
    }
    if (!a->keeps && (!is_usual(a, p->chunk) || a->empty_chunks > 0)) chunk_free(a, p->chunk);
    else a->empty_chunks++;
}

void pool_keep(struct pool *a, bool keep)
{
    size_t stay = 0;

    a->keeps = keep;
    if (keep) return;
    LIST_EACH(struct chunk, c, node, &a->chunks) {
        if (!is_empty(c)) continue;
        if (stay == 0 && is_usual(a, c)) stay++;
        else chunk_free(a, c);
    }
    a->empty_chunks = stay;
    LIST_EACH(struct chunk, c, node, &a->parting) chunk_free(a, c);
}

bool pool_holds(const struct pool *a, const void *at, size_t size)
{
    LIST_EACH(struct chunk, c, node, &a->chunks) {
        uintptr_t offset = (uintptr_t)at - (uintptr_t)c->at;
        if ((uintptr_t)at >= (uintptr_t)c->at && offset <= c->size && size <= c->size - offset) return true;
    }
    return false;
}

void pool_trim(struct pool *a)
{
    if (!a->keeps) give_empty_chunks(a);
}

size_t pool_bytes(const struct pool *a) { return a->bytes; }
/* What is left over at the end of a chunk is no piece; a piece that is alone may round up past its chunk. */
size_t pool_free_bytes(const struct pool *a) { return a->bytes > a->taken_bytes ? a->bytes - a->taken_bytes : 0; }

struct pool *pool_new(const struct pool_source *source)
{
    static const uint8_t seed[16] = {0};         /* addresses are nobody's choice */
    struct pool *a = mem_zero(sizeof *a);

    if (a == NULL) return NULL;
    a->source = *source;
    list_init(&a->chunks);
    list_init(&a->parting);
    for (int i = 0; i < CLASSES; i++) list_init(&a->classes[i]);
    a->taken = map_new(seed);
    if (a->taken != NULL) return a;
    mem_free(a);
    return NULL;
}

void pool_free(struct pool *a)
{
    if (a == NULL) return;
    pool_keep(a, false);
    LIST_EACH(struct chunk, c, node, &a->chunks) chunk_free(a, c);
    map_free(a->taken);
    mem_free(a);
}
