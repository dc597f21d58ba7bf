/* Where boxes and arrows go: a layered drawing. Ranks by longest path, long arrows through bends in the ranks
 * between, fewest crossings by barycentres, and coordinates that keep the longest chain straight. Boxes of a rank
 * stand beside each other, and an arrow crosses a rank only where it has a place of its own, so no arrow runs
 * through a box.
 *
 * Everything goes from the top to the bottom; whoever wants another direction turns what comes out. The result
 * depends on the input only. Pure; any thread. */
#ifndef WEB_VIZ_LAYOUT_H
#define WEB_VIZ_LAYOUT_H

#include "web/viz/arena.h"

#include <stdint.h>

enum { LAYOUT_BENDS_MAX = 400000 };  /* each costs as much as a box */

struct layout_box {
    double width, height;            /* in */
    double x, y;                     /* out: the middle */
    uint32_t rank;                   /* out */
    bool is_side;                    /* in: a parameter or the like, which shall not pull its reader out of line */
};

struct layout_point {
    double x, y;
};

/* Between two points that follow each other the arrow goes straight down when x is the same, else along a curve
 * that leaves and arrives upright. */
struct layout_arrow {
    uint32_t from, to;               /* in; from < to: boxes come in topological order */
    uint32_t point_first, point_count;   /* out */
};

struct layout {
    struct layout_box *boxes;        /* in; lent */
    struct layout_arrow *arrows;     /* in; lent */
    size_t box_count, arrow_count;
    double gap_x, gap_y;             /* in: least distances */
    struct layout_point *points;     /* out: in the arena */
    size_t point_count;
    double width, height;            /* out: everything lies in 0 to these */
};

/* The arena holds the result and the scratch. TOO_LARGE: arrows so long that there are more than LAYOUT_BENDS_MAX
 * bends. */
enum status layout_run(struct layout *l, struct arena *a, struct error *e) MUST_CHECK;

#endif
