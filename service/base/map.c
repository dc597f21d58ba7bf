/* Open addressing with linear probing and removal by shifting back, at most three quarters full.
 *
 * A table lies in pages that come to be when something is put there, and a larger one takes the entries of the smaller a
 * few at a time, with each that is put: with millions of entries no put takes long. */
#include "service/base/map.h"

#include "service/base/mem.h"

#include <assert.h>
#include <string.h>

struct slot {
    void *value;             /* NULL: free */
    uint8_t *key;            /* NULL: the key is `number` */
    uint64_t number;         /* the key itself, or the size of it */
    uint64_t hash;
};

/* Of a table. An entry that has left it stands as a mark, over which searches go on. */
enum { PAGE = 256, MOVES = 16 };

struct table {
    struct slot **pages;     /* NULL: all of the page is free */
    size_t mask;             /* slots - 1, a power of two less one */
};

struct map {
    struct table now;
    struct table old;        /* pages NULL: there is none */
    size_t old_at;           /* slots of it before this one have been moved */
    size_t count;
    uint64_t k0, k1;
};

static char moved_mark;
#define MOVED ((void *)&moved_mark)

static uint64_t rotl(uint64_t x, unsigned b) { return (x << b) | (x >> (64 - b)); }

static void sip_round(uint64_t v[4])
{
    v[0] += v[1]; v[1] = rotl(v[1], 13); v[1] ^= v[0]; v[0] = rotl(v[0], 32);
    v[2] += v[3]; v[3] = rotl(v[3], 16); v[3] ^= v[2];
    v[0] += v[3]; v[3] = rotl(v[3], 21); v[3] ^= v[0];
    v[2] += v[1]; v[1] = rotl(v[1], 17); v[1] ^= v[2]; v[2] = rotl(v[2], 32);
}

/* SipHash-1-3 (Aumasson and Bernstein): one round a word, three at the end. */
static uint64_t sip(const struct map *m, const void *at, size_t size)
{
    uint64_t v[4] = {m->k0 ^ 0x736f6d6570736575, m->k1 ^ 0x646f72616e646f6d,
                     m->k0 ^ 0x6c7967656e657261, m->k1 ^ 0x7465646279746573};
    const uint8_t *p = at;
    uint64_t word, last = (uint64_t)size << 56;

    for (; size >= 8; p += 8, size -= 8) {
        memcpy(&word, p, 8);
        v[3] ^= word;
        sip_round(v);
        v[0] ^= word;
    }
    for (size_t i = 0; i < size; i++) last |= (uint64_t)p[i] << (8 * i);
    v[3] ^= last;
    sip_round(v);
    v[0] ^= last;
    v[2] ^= 0xff;
    for (int i = 0; i < 3; i++) sip_round(v);
    return v[0] ^ v[1] ^ v[2] ^ v[3];
}

static size_t page_size(const struct table *t) { return t->mask < PAGE ? t->mask + 1 : PAGE; }
static size_t page_count(const struct table *t) { return (t->mask + PAGE) / PAGE; }

static bool table_new(struct table *t, size_t mask)
{
    *t = (struct table){.mask = mask};
    t->pages = mem_array(page_count(t), sizeof *t->pages);
    return t->pages != NULL;
}

/* NULL: a free one, in a page that is not there. */
static struct slot *slot_at(const struct table *t, size_t i)
{
    struct slot *page = t->pages[i / PAGE];
    return page != NULL ? &page[i % PAGE] : NULL;
}

/* NULL: no memory. */
static struct slot *slot_make(struct table *t, size_t i)
{
    struct slot **page = &t->pages[i / PAGE];

    if (*page == NULL) *page = mem_array(page_size(t), sizeof **page);
    return *page != NULL ? &(*page)[i % PAGE] : NULL;
}

static void table_free(struct table *t)
{
    for (size_t i = 0; t->pages != NULL && i < page_count(t); i++) {
        for (size_t j = 0; t->pages[i] != NULL && j < page_size(t); j++) mem_free(t->pages[i][j].key);
        mem_free(t->pages[i]);
    }
    mem_free(t->pages);
    t->pages = NULL;
}

struct map *map_new(const uint8_t seed[16])
{
    struct map *m = mem_zero(sizeof *m);

    if (m == NULL) return NULL;
    if (!table_new(&m->now, 15)) {
        mem_free(m);
        return NULL;
    }
    memcpy(&m->k0, seed, 8);
    memcpy(&m->k1, seed + 8, 8);
    return m;
}

void map_free(struct map *m)
{
    if (m == NULL) return;
    table_free(&m->now);
    table_free(&m->old);
    mem_free(m);
}

size_t map_count(const struct map *m) { return m->count; }

static bool same(const struct slot *s, uint64_t hash, const void *key, uint64_t number)
{
    if (s->value == MOVED || s->hash != hash || (s->key == NULL) != (key == NULL) || s->number != number) return false;
    return key == NULL || number == 0 || memcmp(s->key, key, number) == 0;
}

/* The place of the key, or of the free slot where it would go. */
static size_t probe(const struct table *t, uint64_t hash, const void *key, uint64_t number)
{
    size_t i = hash & t->mask;

    for (;; i = (i + 1) & t->mask) {
        const struct slot *s = slot_at(t, i);
        if (s == NULL || s->value == NULL || same(s, hash, key, number)) return i;
    }
}

static const void *key_at(struct bytes key) { return key.at != NULL ? key.at : ""; }
static uint64_t hash_number(const struct map *m, uint64_t number) { return sip(m, &number, sizeof number); }

static void *find_in(const struct table *t, uint64_t hash, const void *key, uint64_t number)
{
    const struct slot *s = slot_at(t, probe(t, hash, key, number));
    return s != NULL ? s->value : NULL;
}

static void *find(const struct map *m, uint64_t hash, const void *key, uint64_t number)
{
    void *value = find_in(&m->now, hash, key, number);
    return value == NULL && m->old.pages != NULL ? find_in(&m->old, hash, key, number) : value;
}

void *map_find(const struct map *m, struct bytes key)
{
    return find(m, sip(m, key.at, key.size), key_at(key), key.size);
}

void *map_find_u64(const struct map *m, uint64_t key) { return find(m, hash_number(m, key), NULL, key); }

/* An entry of the old table goes to the new one. false: no memory, and it stays for now. */
static bool move_one(struct map *m)
{
    struct slot *from = slot_at(&m->old, m->old_at);

    if (from != NULL && from->value != NULL && from->value != MOVED) {
        struct slot *to = slot_make(&m->now, probe(&m->now, from->hash, from->key, from->number));
        if (to == NULL) return false;
        *to = *from;
        *from = (struct slot){.value = MOVED};
    }
    if (++m->old_at > m->old.mask) table_free(&m->old);
    return true;
}

static enum status grow(struct map *m, struct error *e)
{
    struct table larger;

    assert(m->old.pages == NULL); /* it was empty long before the new one is full */
    if (!table_new(&larger, m->now.mask * 2 + 1)) goto failed;
    m->old = m->now;
    m->old_at = 0;
    m->now = larger;
    return STATUS_OK;
failed:
    return error_set(e, REASON_NO_MEMORY, "no memory for a table of %zu entries", m->now.mask * 2 + 2);
}

static enum status put(struct map *m, struct slot s, const void *key, struct error *e)
{
    if ((m->count + 1) * 4 > (m->now.mask + 1) * 3) {
        enum status st = grow(m, e);
        if (st != STATUS_OK) return st;
    }
    for (unsigned i = 0; i < MOVES && m->old.pages != NULL; i++)
        if (!move_one(m)) return error_set(e, REASON_NO_MEMORY, "no memory for a page of a table");
    assert(s.value != NULL && find(m, s.hash, key, s.number) == NULL);
    struct slot *to = slot_make(&m->now, probe(&m->now, s.hash, key, s.number));
    if (to != NULL && key != NULL) s.key = (uint8_t *)mem_text(key, s.number);
    if (to == NULL || (key != NULL && s.key == NULL)) return error_set(e, REASON_NO_MEMORY, "no memory for a name");
    *to = s;
    m->count++;
    return STATUS_OK;
}

enum status map_put(struct map *m, struct bytes key, void *value, struct error *e)
{
    struct slot s = {.value = value, .number = key.size, .hash = sip(m, key.at, key.size)};
    return put(m, s, key_at(key), e);
}

enum status map_put_u64(struct map *m, uint64_t key, void *value, struct error *e)
{
    struct slot s = {.value = value, .number = key, .hash = hash_number(m, key)};
    return put(m, s, NULL, e);
}

/* Shifts back what probed over the hole, so that no search stops there too early. */
static void close_hole(struct table *t, size_t hole)
{
    for (size_t i = (hole + 1) & t->mask;; i = (i + 1) & t->mask) {
        const struct slot *s = slot_at(t, i);
        if (s == NULL || s->value == NULL) break;
        size_t home = s->hash & t->mask;
        if (((i - home) & t->mask) < ((i - hole) & t->mask)) continue;
        *slot_at(t, hole) = *s;
        hole = i;
    }
    *slot_at(t, hole) = (struct slot){0};
}

static void *take(struct map *m, uint64_t hash, const void *key, uint64_t number)
{
    bool is_old = find_in(&m->now, hash, key, number) == NULL;
    struct table *t = is_old ? &m->old : &m->now;

    if (t->pages == NULL) return NULL;
    size_t at = probe(t, hash, key, number);
    struct slot *s = slot_at(t, at);
    void *value = s != NULL ? s->value : NULL;
    if (value == NULL) return NULL;
    mem_free(s->key);
    m->count--;
    if (is_old) *s = (struct slot){.value = MOVED};
    else close_hole(t, at);
    return value;
}

void *map_remove(struct map *m, struct bytes key)
{
    return take(m, sip(m, key.at, key.size), key_at(key), key.size);
}

void *map_remove_u64(struct map *m, uint64_t key) { return take(m, hash_number(m, key), NULL, key); }

static void *next_in(const struct table *t, size_t base, size_t *at)
{
    while (t->pages != NULL && *at - base <= t->mask) {
        size_t i = (*at)++ - base;
        const struct slot *s = slot_at(t, i);
        if (s != NULL && s->value != NULL && s->value != MOVED) return s->value;
    }
    return NULL;
}

void *map_next(const struct map *m, size_t *at)
{
    void *value = *at <= m->now.mask ? next_in(&m->now, 0, at) : NULL;
    return value != NULL ? value : next_in(&m->old, m->now.mask + 1, at);
}
