/* What the files of the CUDA device share (gpu/cuda.md says how it works).
 *
 * Two threads. The *caller* (the core's) checks nothing, puts items into `given` and takes memory from the pools. The
 * *device thread*, one for each GPU, makes every CUDA call that does work: it turns items into launches, copies and
 * events, polls the events, and tells. `lock` guards the lists between them and is never held across a CUDA call. */
#ifndef GPU_CUDA_INTERNAL_H
#define GPU_CUDA_INTERNAL_H

#include "gpu/pool.h"
#include "gpu/cuda_kernels.h"
#include "gpu/cuda_program.h"
#include "gpu/device.h"
#include "service/base/list.h"

#include <cuda_runtime_api.h>
#include <pthread.h>
#include <stdatomic.h>

enum {
    RING_SLOTS = 4,
    FLAGS_MAX = 1024,                /* integer work whose flags nobody has read yet */
    STATS_AT_ONCE = 8, STATS_BLOCKS = 128,
    EVENTS_KEPT = 256,
    SMALL_ELEMENTS = 16 << 10,       /* work up to this is gathered into launches for many */
    SMALL_BYTES = 64 << 10,
    NO_PLACE = -1,
};

struct cuda_queue;

/* Memory of the caller's: pageable goes through the ring, pinned is reached by the card, and what lies on some GPU (a
 * tensor of a trainer in this process) only CUDA knows how to copy. */
enum side { SIDE_PAGEABLE, SIDE_PINNED, SIDE_CUDA };

enum item_kind {
    ITEM_UPLOAD, ITEM_DOWNLOAD, ITEM_COPY, ITEM_ZERO, ITEM_SUM, ITEM_STEP, ITEM_STATS,
    ITEM_CALL, ITEM_RECORD, ITEM_AWAIT, ITEM_GONE
};

/* A step with bare addresses. */
struct cuda_step {
    enum rule_id rule;
    struct rule_scalars scalars;
    const void *sum, *last, *from;
    void *to, *master, *slots[STEP_SLOTS_MAX];
    double *scratch;
    size_t columns, scratch_size;
    uint64_t stream;
    unsigned slot_count;
    const struct program *program;
    double program_scalars[PROGRAM_SCALARS_MAX];
};

/* Places in pinned memory that kernels write to for the host, and which of them are free. */
struct places {
    uint16_t free[FLAGS_MAX];
    unsigned count;
};

/* One call. Begins in `given`; small work then waits in its queue's `pending`; what has an end of its own (flags, bytes
 * to hand on, a kernel to let go) stays in `work` until its mark passes, a mark in `marks`. Then it is spare. */
struct item {
    struct item *next;
    struct cuda_queue *queue;
    enum item_kind kind;
    enum side side;                  /* the caller's end of a copy up or down */
    bool add;                        /* of a sum; else it begins one */
    enum dtype type;
    void *to;
    const void *from;
    size_t count;                    /* elements, or bytes */
    uint32_t *flags;                 /* the caller's word */
    int place;                       /* in cuda.flags, or of statistics in cuda.stats; NO_PLACE */
    unsigned blocks;                 /* of statistics */
    struct stats *stats;             /* the caller's */
    uint64_t order;                  /* in its queue, when issued */
    uint64_t mark;                   /* of a record; of an await, `other`'s */
    struct cuda_queue *other;
    unsigned set;                    /* of scalars, in its launch */
    cudaEvent_t event;
    struct compiled *compiled;       /* of a step by a program; NULL: it is interpreted */
    queue_function *run;             /* of a call */
    void *ctx;
    struct cuda_step step;
};

struct item_list { struct item *first, *last; };

/* Small work goes out as one launch a phase, in this order: the stages of a push and of a pull after it. */
enum phase { PHASE_UP, PHASE_SUM, PHASE_STEP, PHASE_DOWN, PHASES };

struct range { uintptr_t from, to; };
enum { ITEM_RANGES = 6 + STEP_SLOTS_MAX, PHASE_RANGES = BATCH_MAX * (5 + RULE_SLOTS_MAX) };

struct pending {
    struct item_list items;
    unsigned count, range_count, set_count;
    const struct item *sets[BATCH_SCALARS];  /* one step for each different set of scalars */
    struct range ranges[PHASE_RANGES];       /* what its items read and write: sorted, apart from one another */
};

struct cuda_queue {
    struct queue queue;
    _Atomic uint64_t passed;
    /* the device thread's */
    struct list_node node;                   /* in cuda.queues, from its first item on */
    cudaStream_t stream;
    uint64_t order;
    struct item_list work, marks;
    struct item *held;                       /* a record that waits for what is pending */
    struct pending pending[PHASES];
    struct item goodbye;
    struct item reserve;                     /* a record for which there is no other item */
    _Atomic bool reserve_used;
    bool gone;                               /* under the lock */
};

/* Pinned memory for copies from and to memory that is not. */
struct ring_slot {
    void *at;
    cudaEvent_t event;
    bool used;
    void *out;                               /* where the bytes go when the copy down is done, or NULL */
    size_t size;
    const struct item *item;
};

struct cuda {
    struct device device;
    int card;
    unsigned processors, capability;
    struct programs *programs;
    struct pool *memory, *pins;             /* the caller's */

    pthread_t thread;
    bool started;
    pthread_mutex_t lock;
    pthread_cond_t work_there, moved;
    struct item_list given;
    struct item *spare;
    bool sleeping, waiting, stopping;
    cudaError_t condemned;                   /* an error that the caller has met, and which ends the device */
    _Atomic bool failed;                     /* the thread has stopped touching anything; device.why is written */

    /* the device thread's */
    struct list queues;
    struct item *done;
    bool dead, news;
    size_t awaited;                          /* events */
    cudaEvent_t events[EVENTS_KEPT];
    unsigned event_count;
    struct ring_slot ring[RING_SLOTS];
    unsigned ring_next;
    size_t slot_size, gather_max;
    uint32_t *flags;                         /* pinned */
    struct places free_flags;
    struct stats (*stats)[STATS_BLOCKS];     /* pinned */
    struct places free_stats;
    union {                                  /* of the launch in hand */
        struct kernel_step step;
        struct kernel_batch batch;
        struct kernel_sum sum;
        struct kernel_sums sums;
        struct kernel_copies copies;
        struct kernel_stats stats;
        struct kernel_whole whole;
        struct kernel_program program;
        struct program_arguments compiled;
    } arguments;
};

/* ---- cuda_trainer.c ---------------------------------------------------------------------------------------------------- */

struct trainer_ops;
extern const struct trainer_ops cuda_trainer;
/* "GPU-8f21c0de-..." */
void cuda_uuid_text(const struct cudaDeviceProp *p, char out[UUID_TEXT_SIZE]);

/* ---- cuda_thread.c ---------------------------------------------------------------------------------------------------- */

void *cuda_thread(void *cuda);
/* Device thread: false when r is an error, after which the device is dead. */
bool cuda_ok(struct cuda *c, cudaError_t r, const char *what);
/* What CUDA says of r, with what was asked of it. */
void cuda_sentence(char *out, size_t room, cudaError_t r, const char *what);
/* Completes what has passed; answers whether anything has. */
bool cuda_reap(struct cuda *c);
/* In the midst of an item that has to wait for others: does the same and tells of it, and sleeps a little once nothing has
 * passed for some looks, which *idle counts from 0. What the caller has condemned is dead afterwards. */
void cuda_pause(struct cuda *c, unsigned *idle);
/* Waits for all that the card has been given, and completes it, marks apart. */
bool cuda_drain(struct cuda *c);

/* ---- cuda_launch.c: device thread; false: the device is dead ------------------------------------------------------------ */

bool launch_upload(struct cuda *c, struct item *it);
bool launch_download(struct cuda *c, struct item *it);
bool launch_sum(struct cuda *c, const struct item *it);
bool launch_step(struct cuda *c, const struct item *it);
bool launch_stats(struct cuda *c, struct item *it);
/* All items of a phase at once. */
bool launch_pending(struct cuda *c, struct cuda_queue *q, enum phase phase);
/* Hands on the bytes that a download has left in the ring. */
void ring_settle(struct cuda *c, const struct item *it);
/* A place for what the item's kernels find; waits for one that is free. */
bool place_take(struct cuda *c, struct item *it);
/* Hands what stands there to the caller's words, and frees the place. */
void place_give(struct cuda *c, struct item *it);
bool needs_place(const struct item *it);
struct places *places_of(struct cuda *c, const struct item *it);

#endif
