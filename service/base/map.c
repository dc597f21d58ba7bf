/* Open addressing with linear probing and removal by shifting back, at most three quarters full. */
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

struct map {
    struct slot *slots;
    size_t mask;             /* slots - 1, a power of two less one */
    size_t count;
    uint64_t k0, k1;
};

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

struct map *map_new(const uint8_t seed[16])
{
    struct map *m = mem_zero(sizeof *m);

    if (m == NULL) return NULL;
    m->mask = 15;
    m->slots = mem_array(m->mask + 1, sizeof *m->slots);
    if (m->slots == NULL) {
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
    for (size_t i = 0; i <= m->mask; i++) mem_free(m->slots[i].key);
    mem_free(m->slots);
    mem_free(m);
}

size_t map_count(const struct map *m) { return m->count; }

static bool same(const struct slot *s, uint64_t hash, const void *key, uint64_t number)
{
    if (s->hash != hash || (s->key == NULL) != (key == NULL) || s->number != number) return false;
    return key == NULL || number == 0 || memcmp(s->key, key, number) == 0;
}

/* The slot that holds the key, or the free one where it would go. */
static struct slot *probe(const struct map *m, uint64_t hash, const void *key, uint64_t number)
{
    size_t i = hash & m->mask;

    while (m->slots[i].value != NULL && !same(&m->slots[i], hash, key, number)) i = (i + 1) & m->mask;
    return &m->slots[i];
}

static const void *key_at(struct bytes key) { return key.at != NULL ? key.at : ""; }
static uint64_t hash_number(const struct map *m, uint64_t number) { return sip(m, &number, sizeof number); }

void *map_find(const struct map *m, struct bytes key)
{
    return probe(m, sip(m, key.at, key.size), key_at(key), key.size)->value;
}

void *map_find_u64(const struct map *m, uint64_t key) { return probe(m, hash_number(m, key), NULL, key)->value; }

static enum status grow(struct map *m, struct error *e)
{
    size_t mask = m->mask * 2 + 1;
    struct slot *old = m->slots, *slots = mem_array(mask + 1, sizeof *slots);
    size_t old_count = m->mask + 1;

    if (slots == NULL) return error_set(e, REASON_NO_MEMORY, "no memory for a table of %zu entries", mask + 1);
    m->slots = slots;
    m->mask = mask;
    for (size_t i = 0; i < old_count; i++)
        if (old[i].value != NULL) *probe(m, old[i].hash, old[i].key, old[i].number) = old[i];
    mem_free(old);
    return STATUS_OK;
}

static enum status put(struct map *m, struct slot s, const void *key, struct error *e)
{
    if ((m->count + 1) * 4 > (m->mask + 1) * 3) {
        enum status st = grow(m, e);
        if (st != STATUS_OK) return st;
    }
    struct slot *to = probe(m, s.hash, key, s.number);
    assert(to->value == NULL && s.value != NULL);
    if (key != NULL) {
        s.key = (uint8_t *)mem_text(key, s.number);
        if (s.key == NULL) return error_set(e, REASON_NO_MEMORY, "no memory for a name");
    }
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

static void *take(struct map *m, struct slot *s)
{
    void *value = s->value;

    if (value == NULL) return NULL;
    mem_free(s->key);
    m->count--;
    /* Shift back what probed over the hole, so that no search stops there too early. */
    size_t hole = (size_t)(s - m->slots), i = hole;
    for (;;) {
        i = (i + 1) & m->mask;
        if (m->slots[i].value == NULL) break;
        size_t home = m->slots[i].hash & m->mask;
        if (((i - home) & m->mask) < ((i - hole) & m->mask)) continue;
        m->slots[hole] = m->slots[i];
        hole = i;
    }
    m->slots[hole] = (struct slot){0};
    return value;
}

void *map_remove(struct map *m, struct bytes key)
{
    return take(m, probe(m, sip(m, key.at, key.size), key_at(key), key.size));
}

void *map_remove_u64(struct map *m, uint64_t key) { return take(m, probe(m, hash_number(m, key), NULL, key)); }

void *map_next(const struct map *m, size_t *at)
{
    while (*at <= m->mask) {
        void *value = m->slots[(*at)++].value;
        if (value != NULL) return value;
    }
    return NULL;
}
