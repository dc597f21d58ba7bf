/* Finds what repeats, so that a picture need not show it twelve times. Pure; any thread. */
#ifndef WEB_VIZ_BLOCKS_H
#define WEB_VIZ_BLOCKS_H

#include "web/viz/arena.h"

#include <stdint.h>

struct viz_item {                    /* in topological order */
    uint64_t sign;                   /* equal for items that look alike and are connected alike */
    bool fixed;                      /* stays alone: a variable that is data */
    bool expanded;                   /* a block that begins with it stays open */
    const uint32_t *back;            /* how many items before it each of its inputs stands */
    uint32_t back_count;
};

struct viz_run {                     /* items [first, first + length * copies) are `copies` times the same */
    uint32_t first, length, copies;
};

enum { BLOCK_LENGTH_MAX = 200, BLOCK_COPIES_MIN = 3, BLOCK_SAVED_MIN = 4 };

/* Runs in which each copy hangs on the one before, that do not overlap, the most saving first, then sorted by place; in the arena. */
enum status viz_runs_find(const struct viz_item *items, size_t count, struct arena *a, struct viz_run **out,
                          size_t *run_count, struct error *e) MUST_CHECK;

#endif
