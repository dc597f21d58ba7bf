/* A group: ranks that each have a device, and work that concerns all of them: sums, and bytes that one has and all
 * need. Ranks may be of one process (several GPUs) or of several (a daemon and its trainers).
 *
 * A `struct group` is the group as one process sees it: `ranks` in all, of which it brings `count` members, the
 * ranks first .. first + count - 1. Every process gives the same calls in the same order.
 *
 * Rule of ownership: the memory named in a call belongs to the group until a mark that was taken after it on the
 * member's queue has passed; and only when group_look then still says GROUP_READY did the call do what it says. So
 * an update is made of a sum after both, and out of memory apart from the state that it changes.
 *
 * Failures. A rank that does not come, a device that is lost, ranks that call different things: the group is broken,
 * as a whole and for good. group_abort does the same by hand. Then calls are refused, what is in `to` is of no use,
 * and everybody leaves. The next epoch is a new group with a new id; ids are never used twice, so that nobody who
 * comes late meets those of the next epoch.
 *
 * Threads: one thread at a time calls into one group (the core's). Nothing here waits, but for group_local. */
#ifndef GPU_GROUP_H
#define GPU_GROUP_H

#include "gpu/device.h"

enum { GROUP_RANKS_MAX = 1024, GROUP_MEMBERS_MAX = 16 };

enum group_state {
    GROUP_JOINING,           /* not all ranks have come */
    GROUP_READY,
    GROUP_BROKEN             /* see group_error */
};

/*    kind            to                       from                     elements, at each rank */
#define GROUP_KINDS(X)                                                                                \
    X(REDUCE,         "count, at root",        "count")                /* to = sum over the ranks */  \
    X(ALL_REDUCE,     "count",                 "count")                                               \
    X(BROADCAST,      "count",                 "count, at root")       /* to = root's from */         \
    X(REDUCE_SCATTER, "count",                 "ranks * count")        /* rank r: r's part of the sum */ \
    X(ALL_GATHER,     "ranks * count",         "count")                /* parts in order of the ranks */

enum group_kind {
#define GROUP_KIND(name, to, from) GROUP_##name,
    GROUP_KINDS(GROUP_KIND)
#undef GROUP_KIND
    GROUP_KINDS_END
};

/* What all ranks have to agree on. Sums: f32 and f64, whose order and so whose last bits are the group's own. */
struct group_call {
    enum group_kind kind;
    enum dtype type;
    size_t count;                    /* elements */
    unsigned root;
};

/* What one member brings. The memory lies whole on the queue's device. REDUCE, ALL_REDUCE and BROADCAST: to may be the
 * same memory as from. What a rank does not need may be zeroed. */
struct group_piece {
    struct queue *queue;
    struct dmem to, from;
};

struct group;

struct group_ops {
    const char *kind;                /* "local" */
    void (*leave)(struct group *g);
    enum status (*give)(struct group *g, const struct group_call *c, const struct group_piece *pieces);
    /* Brings state and error up to date. */
    void (*look)(struct group *g);
    void (*abort)(struct group *g);
};

/* What all groups begin with; a back end's own struct has it as its first member. */
struct group {
    const struct group_ops *ops;
    struct device *devices[GROUP_MEMBERS_MAX];
    unsigned ranks, first, count;
    uint64_t join_by_ms;             /* when JOINING ends in BROKEN */
    enum group_state state;
    struct error error;
};

/* Members of this process alone, by copies through the host and adds on the devices: any devices, also of different
 * kinds. Sums are taken in the order of the ranks. A call waits until it is done. */
enum status group_local_new(struct device *const *devices, unsigned count, struct group **out,
                            struct error *e) MUST_CHECK;
/* Its devices must be there; no work of it may be unfinished unless it is broken. NULL is nothing. */
void group_leave(struct group *g);

/* Where the group stands. To be called at least every 100 ms while it joins or works. */
enum group_state group_look(struct group *g, uint64_t now_ms);
/* Why it is broken, or why the last call was refused. */
const struct error *group_error(const struct group *g);
/* Breaks it, for a reason of the caller's; nothing when it is broken already. */
void group_abort(struct group *g, const char *why);

/* pieces: one for each member. BAD_ARGUMENT leaves the group as it is: nothing was done. */
enum status group_give(struct group *g, const struct group_call *c, const struct group_piece *pieces) MUST_CHECK;

/* For back ends: what broke it is told once, the first one. */
void group_break(struct group *g, const struct error *why);

#endif
