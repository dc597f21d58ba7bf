/* A hash map from bytes or from a 64-bit number to a pointer. Keys are copied. Seeded SipHash, so that a peer who
 * chooses names cannot choose collisions. One thread at a time. */
#ifndef SERVICE_BASE_MAP_H
#define SERVICE_BASE_MAP_H

#include "service/base/bytes.h"
#include "service/base/status.h"

struct map;

/* seed: 16 random bytes; tests pass fixed ones. NULL when there is no memory. */
struct map *map_new(const uint8_t seed[16]) MUST_CHECK;
void map_free(struct map *m);                    /* not the values; NULL is nothing */

size_t map_count(const struct map *m);
void *map_find(const struct map *m, struct bytes key);          /* NULL: not there */
void *map_find_u64(const struct map *m, uint64_t key);
/* The key must not be there yet (asserted). value must not be NULL. */
enum status map_put(struct map *m, struct bytes key, void *value, struct error *e) MUST_CHECK;
enum status map_put_u64(struct map *m, uint64_t key, void *value, struct error *e) MUST_CHECK;
/* The value that was there, or NULL. */
void *map_remove(struct map *m, struct bytes key);
void *map_remove_u64(struct map *m, uint64_t key);

/* Walks all values in no order: start with *at = 0, NULL ends. The map must not change meanwhile. */
void *map_next(const struct map *m, size_t *at);

#endif
