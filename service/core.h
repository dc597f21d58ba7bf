/* What all stores of a daemon share: the device and its queues, memory and staging budgets, the clock as it was told,
 * and work that waits for the device. The core decides; it has no I/O, no locks and no clock of its own.
 *
 * No turn of the daemon's loop is long, whatever is asked for. What goes over many keys counts what it does (core_spend)
 * and, when the turn's work is spent, goes on in the next turn as a *job*; others are served between its pieces. Nobody
 * bounds the work of an embedded store, nor of one that is told no turns: there all is done at once.
 *
 * Core thread only, like everything in this layer (version, staging, key, round, worker, store, wait). */
#ifndef SERVICE_CORE_H
#define SERVICE_CORE_H

#include "gpu/sums.h"
#include "service/base/list.h"
#include "service/base/map.h"
#include "service/options.h"

enum { CORE_QUEUES = 8 };        /* keys are spread over them; work of one key stays in one */

/* What may be changed while it runs. 0: what stands in limits.h; for memory_max: no cap. */
struct core_limits {
    uint64_t memory_max;                     /* bytes of the account (account.h) */
    uint64_t mailbox_max;                    /* bytes of the device for mailboxes of trainers */
    struct option_standards standards;       /* of new stores that do not state their own */
};

/* Something that goes on when a mark of the device has passed. Lies in what it belongs to, so that completion never
 * needs memory. */
struct task {
    struct list_node node;
    uint64_t mark;
    void (*run)(struct task *t, enum status s);      /* s: OK, or what the device refused; see core_why */
};

/* Work that is cut into pieces. Lies in what it belongs to. */
struct job {
    struct list_node node;                           /* core->jobs between its pieces */
    /* The next piece, until core_is_spent. true: it is done, and may have freed itself. */
    bool (*run)(struct job *j);
};

struct nccl;
struct small_push;

struct core_counters {
    uint64_t pushes_recorded, pushes_repeated, updates, rounds_closed, rounds_failed, pulls, bytes_in, bytes_out,
             versions_revoked, copies_down, lists_summed;
};

struct core {
    uint64_t now_ms;
    struct device *device;
    struct queue *queues[CORE_QUEUES];
    struct list tasks[CORE_QUEUES];          /* in the order of their marks */
    size_t task_count;
    uint8_t seed[16];

    struct map *stores;                      /* by name */
    struct map *stores_by_id;
    uint32_t next_store;
    uint64_t next_key;                       /* spreads keys over the queues */
    uint64_t next_creation;                  /* the high part of their ids */
    uint64_t next_ticket;
    uint64_t next_stamp;                     /* orders joins and rounds */
    uint64_t next_copy;                      /* of a state */

    uint64_t staging_used;                   /* bytes of pushes that are not yet applied */
    uint64_t staging_reserved;               /* kept free for the missing contributions of open rounds */
    uint64_t staging_max;
    struct core_limits limits;
    uint64_t key_count;                      /* of all stores */
    uint64_t counted, floor;                 /* against memory_max, see account.h */
    bool floor_is_old;                       /* keys have gone: it may be too high */
    uint64_t keys_on_cpu;                    /* of them, those for which no GPU had room */
    struct list stagings;                    /* incomplete ones, the one longest without progress first */
    struct {
        const struct share *who;             /* compared only; its client may be gone */
        uint64_t ms;                         /* 0: nobody */
    } staging_waits[2];                      /* the last two clients that were refused for lack of staging memory */
    uint64_t pace_ms;                        /* when their pace was last looked at */

    struct sums *sums;                       /* of lists, see core_sum; NULL: none yet */
    struct small_push *small;                /* see store_push_now; NULL: none yet */

    struct cached {
        struct dmem mem;
        uint64_t since_ms;
    } cache[64];                             /* freed large buffers, the one longest unused first; a fresh one costs a
                                              * page fault every 4 KiB */
    size_t cache_count;
    uint64_t cache_bytes;
    struct list leavings;                    /* state that waits for the device before it is freed (state.c) */
    uint64_t freed;                          /* bytes of the device, since freed memory was last given back */
    int64_t blocks_most;                     /* live at once, since then */
    uint64_t trim_ms;                        /* when it is given back; 0: there is nothing to give */
    uint64_t trims;

    struct list watches;                     /* of keys that somebody looks at (watch.h) */
    size_t watch_count;
    uint64_t watch_cost;                     /* elements of their keys */

    const struct nccl *nccl;                 /* for planes; NULL: opened when the first one is wanted */
    struct nccl *nccl_own;                   /* so opened */
    struct list planes;                      /* that are not broken */
    unsigned collectives;                    /* calls of theirs that are under way */

    struct list waits;                       /* that hang */
    struct list decided;                     /* that are to be answered; the edge empties it after each turn */
    struct list jobs;                        /* not done; the next to go on first */
    unsigned first_queue;                    /* that is polled first */
    bool unpolled;                           /* marks have passed whose tasks the turn had no time for */
    uint64_t work, work_until;               /* units so far, and where the turn's are spent */
    uint64_t turn_began;                     /* work when the turn began */
    uint64_t turn_work_max;                  /* units of the longest turn that is over */
    bool embedded;                           /* nobody else: no time-outs run */

    void *hook_ctx;
    void (*detach)(void *ctx, const void *owner);    /* a version's memory will be written again */
    struct core_counters counters;
};

enum status core_init(struct core *c, struct device *d, const uint8_t seed[16], uint64_t staging_max, uint64_t now_ms,
                      struct error *e) MUST_CHECK;
/* From now on; what is held already stays. */
void core_set_limits(struct core *c, uint64_t staging_max, const struct core_limits *limits);
void core_fini(struct core *c);              /* drops all stores; waits for the device */

/* Time has come to now_ms: drops stagings without progress, fails rounds and workers whose time is up, decides waits.
 * Answers when the next deadline is. */
uint64_t core_tick(struct core *c, uint64_t now_ms);
/* A turn of the daemon's loop begins: first each of the jobs that lie there goes on, as far as JOB_WORK allows; then
 * TURN_WORK is there for what comes in. */
void core_turn(struct core *c);
/* So much has been done, in the units of limits.h. */
static inline void core_spend(struct core *c, uint64_t units) { c->work += units; }
/* Shall what can go on later do so? */
static inline bool core_is_spent(const struct core *c) { return c->work >= c->work_until; }
/* Is there work for the next turn, so that it must not wait for anything to come in? */
static inline bool core_has_work(const struct core *c) { return !list_empty(&c->jobs) || c->unpolled; }
/* Begins a job: its first piece runs at once. */
void core_begin(struct core *c, struct job *j);

/* Runs the tasks whose marks have passed. */
void core_poll(struct core *c);
/* Blocks until no task and no job is left. */
void core_settle(struct core *c);
/* Blocks until all work given to queue `index` so far is done; nothing on a lost device. For memory that has to go on a
 * way where nothing can be put off, such as the lack of memory. */
void core_quiet(struct core *c, unsigned index);
/* Runs t when all work given to queue `index` so far is done: at once if it is done already. */
void core_after(struct core *c, unsigned index, struct task *t);
/* Within `run` of a task whose status is not OK: why. what: "the device was lost while it updated a key". */
void core_why(const struct core *c, const char *what, struct error *e);

/* Device memory at this place, by way of the cache. It has been counted (account.h). */
enum status core_mem_new(struct core *c, size_t size, struct mem_place place, struct dmem *out, struct error *e) MUST_CHECK;
void core_mem_free(struct core *c, struct dmem *m);
/* Sums values of this process on the device; waits for it (gpu/sums.h). */
enum status core_sum(struct core *c, const struct sum_list *l, struct error *e) MUST_CHECK;

/* Room that is kept for a value, whose elements these are, where it has its home or will have it (device_home_new). */
struct room {
    uint32_t home;
    uint64_t count, size;                    /* size 0: none */
    uint64_t counted;                        /* of that against memory_max */
};
struct room core_room_new(struct core *c, uint64_t count, bool whole, uint64_t size, uint64_t counted);
/* The same on the CPU in place of where it was. */
void core_room_move(struct core *c, struct room *r);
void core_room_free(struct core *c, struct room *r);
/* Would it be on the CPU, if s says that there is no memory where it is? */
bool core_may_move(const struct core *c, uint32_t home, enum status s, const struct error *e);

/* Bytes that are taken from the system and held by nobody: buffers of the cache, and free pieces of the device's pools. */
uint64_t core_mem_cached(const struct core *c);

#endif
