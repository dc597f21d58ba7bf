/* A store: keys with one consistency mode, one key type and one updater, and the workers that joined it. */
#ifndef SERVICE_STORE_H
#define SERVICE_STORE_H

#include "service/key.h"
#include "service/options.h"
#include "service/order.h"
#include "service/round.h"
#include "service/updater.h"
#include "service/worker.h"

struct plane;

enum { SLOT_PAGE = 512 };

enum key_kind { KEYS_UNDECIDED, KEYS_INT, KEYS_STR };

/* One barrier that has not been passed. */
struct barrier {
    char *name;
    uint64_t ticket;
    uint64_t opened_ms;
    uint64_t *bits;                  /* who has come, by worker slot */
    size_t words;
    struct list waiters;
};

struct store {
    struct core *core;
    uint32_t id;
    char *name;
    struct share *creator;           /* held; NULL: nobody's */
    struct store_options options;
    enum key_kind kind;
    struct map *keys;                /* by name */
    struct slot_page {               /* in pages, so that one more key moves nothing */
        struct key *keys[SLOT_PAGE];         /* NULL: free */
        uint32_t next_free[SLOT_PAGE];       /* the next free slot + 1 */
    } **slots;
    size_t slot_count, slot_pages;
    uint32_t free_slot;              /* the first free slot + 1; 0: none */
    size_t free_count;
    struct order order;
    uint64_t bytes;                  /* of the values of its keys */

    struct updater *updater;         /* held; NULL: none was set */
    struct updater *assign, *add;    /* held; what "none" means */
    struct list swaps;               /* that look at the keys */
    uint64_t num_update;             /* the largest update counter that any of its keys had; see store_num_update */
    uint64_t slack;                  /* counted against memory_max: what a key needs beside what is kept for it while it
                                      * goes from one updater to the next; one key does at a time */
    bool num_update_lowered;         /* a state of earlier was put back: to be counted anew */
    uint64_t first_pusher;           /* slot + 1 of the first worker that pushed without updater (async) */
    bool assign_warned;

    uint64_t job;
    bool started;                    /* all have joined once */
    uint32_t joined;                 /* distinct workers of this job */
    uint64_t last_join_ms;
    struct worker **workers;         /* by slot */
    size_t worker_count, worker_capacity;
    uint32_t members;
    uint32_t dead;
    struct worker *lowest;           /* the present one of lowest rank; NULL: none, or not known: lowest_known */
    bool lowest_known;
    uint64_t silent_ms;              /* before this time none can be found dead */

    struct list rounds;              /* open, in the order of opening */
    size_t round_count;              /* of them */
    uint64_t opened_step;            /* highest step that a round of any of its keys ever had */
    uint32_t rounds_closing;         /* whose update is lined up; their bits still speak of workers */
    struct list init_waiters;        /* conditions */
    struct map *barriers;            /* by name */
    struct plane *plane;             /* owned; NULL: nobody ever asked for one */
    bool deleted;
};

/* BAD_ARGUMENT for a bad name, LIMIT. `wanted` as options_parse gave it. creator: on whom it counts; NULL: nobody. */
enum status store_new(struct core *c, struct bytes name, const struct store_options *wanted, struct share *creator,
                      struct store **out, struct error *e) MUST_CHECK;
/* Fails what is open, frees all. */
void store_delete(struct store *s);
/* Drops all keys, the updater and the choice of key type; rounds that are open fail, told. Options and workers stay. */
void store_reset(struct store *s);
struct store *store_find(const struct core *c, struct bytes name);
struct store *store_at(const struct core *c, uint32_t id);

/* ---- keys ---- */

struct key *store_key_find(const struct store *s, const struct key_name *n);
/* The key in a slot below slot_count; NULL: it is free. */
static inline struct key *store_slot(const struct store *s, size_t slot)
{
    return s->slots[slot / SLOT_PAGE]->keys[slot % SLOT_PAGE];
}
static inline struct key *store_key_at(const struct store *s, uint64_t id)
{
    uint64_t slot = id % KEYS_MAX;
    struct key *k = slot < s->slot_count ? store_slot(s, slot) : NULL;
    return k != NULL && k->id == id ? k : NULL;
}
/* MIXED_KEYS when the store uses the other kind; a name that is no name. */
enum status store_key_check(const struct store *s, const struct key_name *n, struct error *e) MUST_CHECK;
/* Registers a new key (from key_new). */
enum status store_key_add(struct store *s, struct key *k, struct error *e) MUST_CHECK;
/* ROUND_OPEN unless forced; then open rounds fail, told. */
enum status store_key_delete(struct store *s, struct key *k, bool force, struct error *e) MUST_CHECK;
/* NO_KEY with the sentence. */
enum status store_no_key(const struct store *s, const struct key_name *n, struct error *e);

/* ---- workers ---- */

/* Joins, or joins again with a higher epoch. */
enum status store_join(struct store *s, const struct wire_id *id, uint32_t epoch, struct bytes name,
                       struct worker **out, struct error *e) MUST_CHECK;
void store_leave(struct store *s, struct worker *w);
void store_worker_dies(struct store *s, struct worker *w);
/* A dead worker is no longer waited for. */
void store_dismiss(struct store *s, struct worker *w);
/* WORKER_DEAD, which names one, while no new round may begin for its sake. */
enum status store_dead_blocks(const struct store *s, struct error *e) MUST_CHECK;
/* The present member with the lowest rank; NULL: none. */
struct worker *store_lowest(struct store *s);
/* What num_workers tells: the members, or until the job has started what was asked for. */
uint32_t store_num_workers(const struct store *s);
/* "2 of 4 workers have not joined; there are: ..." */
void store_missing_joins(const struct store *s, struct buf *out);

/* ---- the work ---- */

/* May w push `step` of k now, and is it needed? *repeat: it has been recorded already. *late: its round is over. */
enum status store_push_check(struct store *s, struct key *k, struct worker *w, uint64_t step, bool *repeat,
                             bool *late, struct error *e) MUST_CHECK;
enum { PUSH_NOW_SIZE = 16 << 10 };
/* The way of most small pushes, in which nothing is allocated: the whole value lies at `from` and is copied. It is recorded
 * and given to the device, and *applied tells whether that is done with it. False: nothing has happened. It is larger than
 * PUSH_NOW_SIZE, a round or the first of a key, or something of the kind is still under way: take the usual way. */
bool store_push_now(struct key *k, struct worker *w, uint64_t step, const void *from, bool *applied);
void small_push_free(struct core *c);
/* A push is whole: records it. Takes the staging. */
enum status store_push_record(struct staging *st, struct error *e) MUST_CHECK;
struct updater *store_updater(const struct store *s);        /* never NULL: what the next push is under */
/* What schedules go by. Where the state of a key was put back to an earlier one it is that of the keys that are there. */
uint64_t store_num_update(struct store *s);

/* ---- another updater ---- */

/* What the states of a store's keys need under an updater that it gets. */
struct swap_needs {
    uint64_t more, slack, floor;
    size_t keys;                     /* whose state grows */
    bool behind;                     /* one has not stepped since the swap before */
};

/* A swap of the updater, or the question what one would do. All keys are looked at, in pieces; keys that come meanwhile
 * are looked at as they come, and what keys do is followed. The swap itself is one assignment at the end: a key takes the
 * new updater with its next step. So nobody sees half a swap, pushes go on all the time, and of two swaps that are under
 * way the one that ends last counts. */
struct store_swap {
    struct list_node node;           /* store->swaps */
    struct store *store;             /* NULL: it was deleted */
    struct updater *updater;         /* held */
    enum updater_states how;
    size_t at;                       /* slots before it have been looked at */
    uint64_t version;                /* from which on every one that any key makes is under the updater. Where a key is
                                      * behind, its own first one is lower (key_version_ahead) */
    struct error why;                /* its reason is not NONE: it cannot be, UPDATER_UNFIT or NO_STORE */
    struct swap_needs needs;         /* as swap_check_room found them */
};
/* u, which no store has yet, is held until the end. */
void swap_begin(struct store_swap *x, struct store *s, struct updater *u, enum updater_states how);
/* Looks at more keys; false: the turn has no time for the rest. */
bool swap_look(struct store_swap *x);
/* Would it change anything by now? An updater equal to the present one does not, unless a reset is asked for. */
bool swap_changes(const struct store_swap *x);
/* Under --memory-max, whether the states of the keys have room under the new updater; looks at all keys in one go. LIMIT,
 * with the sum. All keys have been looked at, and it changes something. */
enum status swap_check_room(struct store_swap *x, struct error *e) MUST_CHECK;
/* Does it, if it changes anything; an equal updater is set where none was. There is room, all keys have been looked at, and
 * `why` says nothing. */
void swap_commit(struct store_swap *x);
void swap_end(struct store_swap *x);
/* A key of the store has come, or got an update or a round. */
void swaps_follow(struct key *k);

/* ---- barriers ---- */

/* Arrives at a barrier. */
enum status store_barrier(struct store *s, struct worker *w, struct bytes name, uint64_t *ticket,
                          struct error *e) MUST_CHECK;
void barriers_check(struct store *s);
/* w goes: barriers that nobody else has come to are over. */
void barriers_left(struct store *s, const struct worker *w);
void barriers_fail(struct store *s, const struct error *why);
void barrier_missing(const struct store *s, const struct barrier *b, struct buf *out);

uint64_t store_tick(struct store *s, uint64_t now_ms);

/* Bits by worker slot. */
enum status bits_set(uint64_t **bits, size_t *words, uint32_t at, struct error *e) MUST_CHECK;
static inline bool bits_get(const uint64_t *bits, size_t words, uint32_t at)
{
    return at / 64 < words && (bits[at / 64] >> (at % 64) & 1);
}

#endif
