/* Statistics of a key's values, gradients and updates, for who looks. A key that nobody looks at has none, and its pushes
 * pay one comparison.
 *
 * Looking at a key makes a *watch* of it, which stays WATCH_MS after the last look. The value is measured when somebody
 * looks and its version has not been measured; the gradient, the update (new value - old value) and the value that it
 * made are measured at one step, the next that is due. All is work of the device behind the key's other work
 * (device_stats), so that no thread waits for it.
 *
 * What it costs is bounded whatever is asked: a watched key is due once in (elements of all watched keys) / WATCH_RATE
 * seconds, so that measuring takes the device below one hundredth of a second a second and processor. Keys of up to
 * WATCH_SMALL elements count as that many; their value is measured at each look, which costs less than the asking.
 *
 * Core thread only. */
#ifndef SERVICE_WATCH_H
#define SERVICE_WATCH_H

#include "service/core.h"

struct key;
struct step;
struct update;

enum {
    WATCH_MS = 30000,
    WATCH_SMALL = 4096,
    WATCH_RATE = 2 << 20,            /* elements a second; one takes about 8 ns at a step */
    WATCH_AT_ONCE = 32 << 20,        /* so many are measured at the first look; what is more waits for its turn */
    WATCHES_MAX = 4096               /* then the one that has not been looked at for longest goes */
};

/* Versions 0: not measured yet. */
struct watch_results {
    uint64_t value_version;
    struct stats value;
    uint64_t step_version;           /* that the measured step made */
    struct stats gradient;           /* the sum of its pushes */
    struct stats update;
    double ratio;                    /* of the norms of update and value made; NaN when that is 0 or not finite */
    uint32_t contributors;
    int64_t staleness;               /* versions made between the last pull of who pushed and this step; -1: not known,
                                      * or a round */
};

struct watch {
    struct list_node node;           /* core->watches, the longest unlooked first */
    struct key *key;
    uint64_t looked_ms, value_due_ms, step_due_ms;
    struct watch_results known;
    struct watch_value {             /* under way */
        struct task task;
        struct version *version;     /* held; NULL: none is */
        struct stats stats;
    } value;
    struct watch_step {
        bool busy, whole;
        struct stats gradient, update, value;
        int64_t staleness;
    } step;
};

/* Looks at k: makes or keeps its watch, and lines up what is due. `surely`: the value is measured also before its turn
 * when nothing is known of it. *pending: something is under way; a task given to the key's queue with core_after runs
 * when it is known. NO_MEMORY, LIMIT. */
enum status watch_look(struct key *k, bool surely, bool *pending, struct error *e) MUST_CHECK;
/* What is known of k; NULL: it is not watched. The key's; changes when tasks run. */
const struct watch_results *watch_results(const struct key *k);
/* By how many versions the present worker that is furthest behind has not pulled k; -1: none ever has. */
int64_t watch_behind(const struct key *k);

/* Around a step of k that is given to the device (key.c): begin may take s->last into s->sum, which gives the same bits;
 * end follows when it is done, also when it failed, and never while it runs. */
void watch_step_begin(struct key *k, const struct update *u, struct step *s);
void watch_step_given(struct key *k, const struct update *u);
void watch_step_end(struct key *k, const struct update *u, bool good);

/* Drops watches that nobody looks at; answers when the next is due to go. */
uint64_t watches_tick(struct core *c);
/* The key goes; nothing is under way. */
void watch_free(struct key *k);

double stats_norm(const struct stats *s);

#endif
