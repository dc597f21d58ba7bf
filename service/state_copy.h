/* A key's slots and master as they were at one moment, in the memory of the host: for a client that fetches them, in parts
 * if they are large. Counts as staging memory of the client. Core thread only. */
#ifndef SERVICE_STATE_COPY_H
#define SERVICE_STATE_COPY_H

#include "service/core.h"

struct share;

struct state_copy {
    struct list_node node;           /* of state_copies while parts are still to be fetched */
    struct core *core;
    struct share *share;             /* held; NULL: nobody's */
    unsigned holds;
    uint64_t number;                 /* never used again in the daemon's life */
    uint64_t key;                    /* its id */
    uint8_t *bytes;                  /* the device copies well to here; NULL: size 0 */
    uint64_t size, left;             /* left: not yet asked for */
    uint64_t touched_ms;
};

/* Those of one client, the one longest untouched first. */
struct state_copies {
    struct list list;
    unsigned count;
};

/* Held once. TOO_LARGE, STAGING_FULL or IN_FLIGHT as a value that arrives. */
enum status state_copy_new(struct core *c, struct share *u, uint64_t key, uint64_t size, struct state_copy **out,
                           struct error *e) MUST_CHECK;
struct state_copy *state_copy_hold(struct state_copy *s);
void state_copy_drop(struct state_copy *s);      /* NULL is nothing. No device work may name it at the last. */

void state_copies_init(struct state_copies *all);
void state_copies_fini(struct state_copies *all);
/* `sent` bytes of s go out: it is kept while there are more, and let go with the last. One too many takes the place of
 * the one longest untouched, which has to be fetched anew. */
void state_copies_sent(struct state_copies *all, struct state_copy *s, uint64_t sent);
/* NULL: not there any more. */
struct state_copy *state_copies_find(const struct state_copies *all, uint64_t number, uint64_t key);
/* Lets those go that nobody asked for in PROGRESS_MS. */
void state_copies_expire(struct state_copies *all, uint64_t now_ms);

#endif
