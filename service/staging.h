/* Bytes on their way in: a push, a set or an init whose value arrives in parts. It becomes a contribution when all of
 * it is there; until then it leaves no trace. Parts are idempotent by offset and may come on any connection. */
#ifndef SERVICE_STAGING_H
#define SERVICE_STAGING_H

#include "service/core.h"

struct key;
struct share;
struct store;
struct worker;
struct updater;

enum staging_kind {
    STAGING_PUSH, STAGING_SET, STAGING_INIT, STAGING_STATE,
    STAGING_SUM                              /* a push that the device makes itself: no bytes land */
};

struct range { uint64_t from, to; };

/* One run of bytes that a connection is writing at this moment. Lies in the connection's struct. */
struct landing {
    struct list_node node;
    struct staging *staging;                 /* NULL: none */
    uint64_t offset, size;
    void (*discard)(struct landing *l);      /* the memory goes: write the rest nowhere */
};

struct staging {
    struct task task;                        /* its end after device work */
    struct list_node node;                   /* core->stagings while incomplete; then a round's or an update's */
    struct list_node of_worker;              /* worker->stagings while incomplete */
    enum staging_kind kind;
    struct core *core;
    struct key *key;                         /* held; NULL for an init */
    struct worker *worker;                   /* held; NULL: nobody's */
    struct share *share;                     /* held; of the client that the worker was; NULL: nobody's */
    uint64_t tag;                            /* push: step; set, state: sequence; init: number of the call */
    uint64_t sequence;                       /* push: its name */
    struct updater *updater;                 /* held: the one at recording (async) */
    struct dmem mem;                         /* size 0: none, of a state */
    void *pin;                               /* where bytes land when the CPU cannot reach mem */
    uint64_t size, charged;                  /* charged: with the sum that it may have to open */
    uint64_t have;
    struct range *ranges;                    /* what is there, sorted, merged */
    size_t range_count, range_capacity;
    struct list landings;
    uint64_t touched_ms;                     /* when it last moved on by enough, and what was there then */
    uint64_t touched_have;
    uint64_t pace_ms;                        /* the present stretch of PACE_MS began, and what was there then */
    uint64_t pace_have;
    bool slow;                               /* the last whole stretch was slower than PACE_MIN */
    bool complete;
    bool fed;                                /* the device copies its bytes from where they are: it has no pin */
    uint64_t fed_mark;                       /* of the key's queue: until it has passed the device writes to mem */
    bool lent;                               /* took the room that is kept for its round, which admits one at a time */
    struct init_wanted *init;                /* init: owned; what is to be created */
    struct room room;                        /* init: kept for the key that it becomes */
    struct buf about;                        /* state: what it consists of, as its parts say */
};

enum {
    STAGING_ADVANCES = 1,        /* it belongs to the oldest open round of its key, whose room is reserved */
    STAGING_FED = 2              /* all its bytes come by staging_feed, none by staging_land */
};
/* Room for `size` bytes at this place; how: bits from above.
 * STAGING_FULL with a retry time when there is none, IN_FLIGHT when this client has its half of it. worker and key are
 * held. */
enum status staging_new(struct core *c, enum staging_kind kind, struct key *k, struct worker *w, uint64_t tag,
                        uint64_t size, struct mem_place place, unsigned how, struct staging **out,
                        struct error *e) MUST_CHECK;
/* Room for bytes of another kind, such as a copy of a state, under the same bounds. u: the client's share; NULL:
 * nobody's. It is given back by staging_return. */
enum status staging_reserve(struct core *c, struct share *u, uint64_t size, struct error *e) MUST_CHECK;
void staging_return(struct core *c, struct share *u, uint64_t size);
/* Frees it now, or when staging_feed's copies are done; no other device work may name it. */
void staging_free(struct staging *s);
/* Frees it when all work given to the queue so far is done. */
void staging_free_after(struct staging *s, unsigned queue_index);

/* The worker's incomplete one, or NULL. */
struct staging *staging_find(struct worker *w, enum staging_kind kind, const struct key *k, uint64_t tag);

/* Where bytes offset.. of it are to be written; l is linked until done or cancelled. */
void *staging_land(struct staging *s, struct landing *l, uint64_t offset, uint64_t size);
/* The run has been written whole. Sets s->complete when nothing is missing, and then tears off all other landings. */
enum status staging_landed(struct landing *l, struct error *e) MUST_CHECK;
/* Has the device copy bytes offset.. of it from where they are (an address that uploads may have), in the order of the
 * key's queue, and counts them as written. */
enum status staging_feed(struct staging *s, uint64_t offset, const void *from, uint64_t size,
                         struct error *e) MUST_CHECK;
void landing_cancel(struct landing *l);      /* a connection died or gave up; nothing when not linked */

/* Drops those without progress since before_ms, and, while another client waits for staging memory, those that come
 * slower than PACE_MIN. */
void staging_expire(struct core *c, uint64_t before_ms);
/* Brings the bytes to s->mem (an upload where the CPU cannot reach it). */
enum status staging_settle(struct staging *s, struct queue *q, struct error *e) MUST_CHECK;

#endif
