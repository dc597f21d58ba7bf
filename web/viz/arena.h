/* Memory that is freed all at once: a graph, or the scratch of a layout, is thousands of small things that live
 * and die together. One thread at a time. */
#ifndef WEB_VIZ_ARENA_H
#define WEB_VIZ_ARENA_H

#include "service/base/mem.h"

#include <stdbool.h>
#include <stddef.h>

struct arena_block;

struct arena {                       /* zeroed: empty, with no limit */
    struct arena_block *last;
    size_t used, capacity;           /* of the last block */
    size_t total, limit;             /* bytes of all blocks; 0: as many as there are */
};

/* count * size zeroed bytes, aligned for any type. NULL: there is none, or the limit is reached. */
void *arena_new(struct arena *a, size_t count, size_t size) MUST_CHECK;
/* A copy with a zero at the end. */
char *arena_text(struct arena *a, const char *from, size_t size) MUST_CHECK;
void arena_fini(struct arena *a);

#define ARENA_NEW(a, count, type) ((type *)arena_new((a), (count), sizeof(type)))

#endif
