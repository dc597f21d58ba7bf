/* A device: a processor with memory that does the arithmetic of the store.
 *
 * Three notions. *dmem* is a piece of the device's memory. A *queue* does what it is given in order; queues run side
 * by side. A *mark* is a point in a queue, a number that rises: it has passed when everything given to the queue
 * before it is done. (A timeline in place of fence objects: nothing to allocate, nothing to forget to free, and "all
 * up to here" is one comparison.)
 *
 * Rule of ownership: the buffers named in a work call belong to the device until a mark taken after it has passed.
 *
 * Threads: one thread at a time may call into one device (the core's). `notify` is called from the device's own
 * threads and only says "a mark may have passed".
 *
 * Failures: what is wrong with a call comes back from it; what goes wrong later comes out of device_passed and
 * device_wait. A lost device answers DEVICE_LOST to everything and stays a status, never an abort.
 *
 * All calls go through the front functions below, which check device, bounds, alignment and types once for every
 * kind of device, and count. Back ends may assume valid arguments; those that do not answer OK say why, in `e` or in the
 * device's error. That reason, not its status, says that the device is lost. */
#ifndef GPU_DEVICE_H
#define GPU_DEVICE_H

#include "api/limits.h"
#include "gpu/dtype.h"
#include "gpu/rule.h"
#include "gpu/stats.h"
#include "service/base/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

enum { DMEM_ALIGN = 64, DMEM_ALIGN_SMALL = 16, STEP_SLOTS_MAX = PROGRAM_SLOTS_MAX, UUID_TEXT_SIZE = 48 };
_Static_assert((int)STEP_SLOTS_MAX >= (int)RULE_SLOTS_MAX, "a step has room for the slots of every rule");

struct device;
struct program;
struct queue;

/* Where memory lies on a device that is made of several (gpu/array.h). A home is drawn once for a value; all memory that
 * one work call takes has the same home, and then element i of one piece lies beside element i of every other. On any
 * other device there is one home, 0, and nobody has to ask. Made by mem_place_of, so that it can be compared. */
enum {                       /* bits of a home */
    HOME_IN_PARTS = 1,       /* memory there may be cut, between two elements */
    HOME_ON_CPU = 2          /* of a value for which no GPU had room */
};
struct mem_place {
    uint32_t home;
    uint32_t element;        /* bytes of one; 0 where nothing is cut */
};

static inline struct mem_place mem_place_of(uint32_t home, size_t element)
{
    return (struct mem_place){home, home & HOME_IN_PARTS ? (uint32_t)element : 0};
}

static inline bool mem_place_equal(struct mem_place a, struct mem_place b)
{
    return a.home == b.home && a.element == b.element;
}

/* A piece of device memory. Zeroed: none. Copies of the struct name the same memory; one of them is freed. */
struct dmem {
    struct device *device;
    void *at;                /* an address on the device */
    void *host;              /* the same bytes for the CPU, or NULL when the CPU cannot reach them */
    size_t size;             /* bytes */
    struct mem_place place;
    void *own;               /* what the device keeps with it */
};

/* With this another process of the machine opens the memory that device_shared_new gave (gpu/trainer.h). */
struct mem_handle {
    uint8_t at[64];
};

/* Bits that work may raise in a host word of the caller, or-ed in before the next mark passes. */
enum { WORK_OVERFLOW = 1 };  /* a result does not fit its integer type; what was written is of no use */

/* One update of one value: to = rule(from, sum + last, slots). */
struct step {
    enum rule_id rule;
    enum dtype type;                 /* of the value */
    size_t count;                    /* elements */
    struct dmem sum;                 /* in dtype_sum(type); size 0: none */
    struct dmem last;                /* in `type`, added to sum in the same pass; size 0: none. Not both none. */
    struct dmem from;                /* the value as it is */
    struct dmem to;                  /* the value as it becomes; may be the same memory as from, or as sum or last
                                      * when their types are equal */
    struct dmem master;              /* f16 and bf16: the value in f32, changed in place, of which `to` becomes the
                                      * rounded copy; `from` is then not read. Size 0: none. */
    struct dmem scratch;             /* step_scratch_size bytes; what is in it before does not matter */
    size_t columns;                  /* of a row, for rules that have rows; else not looked at */
    uint64_t stream;                 /* where the random numbers of this step begin */
    const struct program *program;   /* of RULE_program; must live until a mark taken after the step has passed */
    uint32_t *flags;                 /* WORK_ bits; must not be NULL */
    struct rule_scalars scalars;         /* all set: steps with the same ones go to a GPU together */
    /* Of these only what the rule has is looked at. */
    struct dmem slots[STEP_SLOTS_MAX];   /* step_slots of them, in dtype_sum(type), changed in place */
    double program_scalars[PROGRAM_SCALARS_MAX];
};

/* A step of assign without operands, whose scalars are still to be set. A small push is over before the kilobyte from
 * there on would be zeroed. */
static inline void step_init(struct step *s, enum dtype type, size_t count, uint32_t *flags)
{
    memset(s, 0, offsetof(struct step, scalars));
    s->type = type;
    s->count = count;
    s->flags = flags;
}

/* stream: the queue's (a cudaStream_t), or NULL when the device was lost before it could come. */
typedef void queue_function(void *ctx, void *stream);

/* What becomes of updaters that are texts on a device that compiles them beside its work (gpu/cuda.md). */
struct device_programs {
    uint64_t compiled, interpreted;      /* steps, by how they were computed; the bits are the same */
    unsigned ready, waiting, refused;    /* programs kept: with a kernel; being compiled; interpreted for good */
    char why[160];                       /* why the last one was refused; empty: none was */
};

struct device_ops {
    const char *kind;                /* "cpu" */
    void (*close)(struct device *d);

    /* memory */
    enum status (*mem_new)(struct device *d, size_t size, struct dmem *out, struct error *e);
    /* These only for a device of several; else NULL. */
    uint32_t (*home_new)(struct device *d, size_t count, bool whole, uint64_t size);
    void (*home_keep)(struct device *d, uint32_t home, size_t count, int64_t more);
    const char *(*home_name)(const struct device *d, uint32_t home);
    enum status (*mem_new_at)(struct device *d, size_t size, struct mem_place place, struct dmem *out, struct error *e);
    enum status (*shared_new)(struct device *d, size_t size, struct dmem *out, struct mem_handle *handle,
                              struct error *e);          /* NULL: it has none */
    void (*mem_free)(struct dmem *m);
    enum status (*pin_new)(struct device *d, size_t size, void **out, struct error *e);
    void (*pin_free)(struct device *d, void *pin);

    /* order */
    enum status (*queue_new)(struct device *d, struct queue **out, struct error *e);
    void (*queue_free)(struct queue *q);
    enum status (*record)(struct queue *q, uint64_t *mark);
    enum status (*await)(struct queue *q, struct queue *other, uint64_t mark);
    enum status (*passed)(struct queue *q, uint64_t *mark);
    enum status (*wait)(struct queue *q, uint64_t mark);
    bool (*idle)(struct queue *q);   /* NULL: it never knows at once */

    /* work */
    enum status (*upload)(struct queue *q, struct dmem to, size_t to_offset, const void *from, size_t size);
    enum status (*download)(struct queue *q, void *to, struct dmem from, size_t from_offset, size_t size);
    enum status (*copy)(struct queue *q, struct dmem to, struct dmem from, size_t size);
    enum status (*zero)(struct queue *q, struct dmem to, size_t size);
    enum status (*widen)(struct queue *q, struct dmem to, struct dmem from, enum dtype type, size_t count);
    enum status (*add)(struct queue *q, struct dmem to, struct dmem from, enum dtype type, size_t count,
                       uint32_t *flags);
    enum status (*step)(struct queue *q, const struct step *s);
    enum status (*stats)(struct queue *q, struct dmem a, struct dmem minus, enum dtype type, size_t count,
                         struct stats *out);
    /* Only for a device whose queues are streams; else NULL. */
    enum status (*queue_call)(struct queue *q, queue_function *run, void *ctx);

    void (*programs)(struct device *d, struct device_programs *out);   /* NULL: it compiles none */
    /* Only for a device that waits for its work where memory goes back to it; else NULL. */
    void (*keep_memory)(struct device *d, bool keep);
    /* Only for a device that takes memory in chunks; else NULL. */
    void (*trim)(struct device *d);
    uint64_t (*cached)(const struct device *d);
};

/* What all devices begin with; a back end's own struct has it as its first member. */
struct device {
    const struct device_ops *ops;
    void (*notify)(void *ctx);       /* from any thread, also inside a call; may be NULL. Set before the first work;
                                      * ctx must live until device_free has returned. */
    void *notify_ctx;
    uint64_t bytes_held;             /* by mem_new and not freed */
    uint64_t work_count;             /* work calls accepted */
    uint64_t capacity;               /* bytes that mem_new can come to; 0: not known. The back end's */
    const struct device *cpu;        /* of a device of several: its last resort, where HOME_ON_CPU is; NULL: none */
    bool lost;
    char why[160];                   /* of a lost one: what its back end said */
    char name[48];                   /* "cuda:0"; empty: the kind will do */
    char card[96];                   /* what the maker calls it: "NVIDIA H200"; empty: no name */
    char uuid[UUID_TEXT_SIZE];       /* "GPU-..." of the card on which shared_new finds memory; empty: it finds none */
    struct error error;              /* the last refusal, see device_error */
};

struct queue {
    struct device *device;
    uint64_t mark;                   /* the last one recorded; the front functions' */
};

/* The CPU: `threads` workers (0: one a core, at most 16). Small work runs at once on the caller's thread when its
 * queue is empty, so that a small request changes no thread; large work is cut among the workers. With threads 0 and one
 * or two cores small means 1 MiB of f32, else 64 KiB. */
enum status cpu_device_new(unsigned threads, struct device **out, struct error *e) MUST_CHECK;
/* Every queue and every piece of memory must have been freed. NULL is nothing. */
void device_free(struct device *d);

const char *device_kind(const struct device *d);               /* "cpu", "cuda:0", "cuda:0,1" */
/* Why the last call that did not answer OK did so: the sentence for calls that have no `e`. The device's own; the next
 * refusal writes over it. */
const struct error *device_error(const struct device *d);

/* A home for a value of `count` elements, where there is most room. whole: it has to lie in one piece, as whole-tensor rules
 * want it; else it may be cut (HOME_IN_PARTS). size: bytes that all memory of the value will come to. So much is kept for
 * it there, of what is handed out to the next: those who ask must give it back with device_home_keep. Where there is a last
 * resort (d->cpu) and no GPU has so much left, the home is HOME_ON_CPU. */
uint32_t device_home_new(struct device *d, size_t count, bool whole, uint64_t size);
/* What is kept there for such a value becomes more, or less. It may come to more than there is: then memory is refused
 * when it is asked for. */
void device_home_keep(struct device *d, uint32_t home, size_t count, int64_t more);
/* "cuda:1"; of a value in parts all of them. Valid as long as the device. */
const char *device_home_name(const struct device *d, uint32_t home);
/* Memory of at least one byte (size 0 gives one), aligned to DMEM_ALIGN (below 512 bytes to
 * DMEM_ALIGN_SMALL), not cleared. The first has home 0. */
enum status device_mem_new_at(struct device *d, size_t size, struct mem_place place, struct dmem *out,
                              struct error *e) MUST_CHECK;
enum status device_mem_new(struct device *d, size_t size, struct dmem *out, struct error *e) MUST_CHECK;
/* Memory in an allocation of its own, which a process that has the handle can open: nothing else lies in it, and it
 * goes back to the card as soon as it is freed. Its address `at` may be the host's end of uploads and downloads of this
 * device. UNIMPLEMENTED where other processes cannot reach the device's memory. */
enum status device_shared_new(struct device *d, size_t size, struct dmem *out, struct mem_handle *handle,
                              struct error *e) MUST_CHECK;
/* Frees and zeroes *m; a zeroed one is nothing. No work that names it may be unfinished. */
void device_mem_free(struct dmem *m);
/* keep: until told otherwise freed memory stays the device's, so that no call here waits for work that others have to
 * come to, such as a sum over ranks (cudaFree waits for all work of the GPU). */
void device_keep_memory(struct device *d, bool keep);
/* Gives back to the card and to the system what the device has taken and nobody holds, where that can be given back at
 * once; nothing while it keeps its memory. */
void device_trim(struct device *d);
/* Bytes of the card, and of pinned memory, that the device has taken and nobody holds. */
uint64_t device_cached(const struct device *d);
/* Host memory that copies fast to and from the device. */
enum status device_pin_new(struct device *d, size_t size, void **out, struct error *e) MUST_CHECK;
void device_pin_free(struct device *d, void *pin);

enum status device_queue_new(struct device *d, struct queue **out, struct error *e) MUST_CHECK;
void device_queue_free(struct queue *q);               /* waits for its work */
/* The point after all that the queue has been given so far. Marks of one queue rise. It never fails for lack of memory:
 * like passed and wait it answers OK, or the loss of the device. */
enum status device_record(struct queue *q, uint64_t *mark) MUST_CHECK;
/* Later work of q begins after `mark` of `other` has passed. The mark must have been recorded, so that no two queues
 * can wait for one another. `other` may be freed afterwards. */
enum status device_await(struct queue *q, struct queue *other, uint64_t mark) MUST_CHECK;
/* The highest mark that has passed; 0 when none. Does not wait. */
enum status device_passed(struct queue *q, uint64_t *mark) MUST_CHECK;
/* Whether all that q was given is known to be done, so that no mark is needed; false on a lost device. */
static inline bool device_idle(struct queue *q)
{
    return !q->device->lost && q->device->ops->idle != NULL && q->device->ops->idle(q);
}
/* Blocks until the mark has passed. */
enum status device_wait(struct queue *q, uint64_t mark) MUST_CHECK;

/* Work. Nothing to do (size or count 0) is OK. Where not said otherwise `to` and `from` may not overlap. */
enum status device_upload(struct queue *q, struct dmem to, size_t to_offset, const void *from, size_t size) MUST_CHECK;
enum status device_download(struct queue *q, void *to, struct dmem from, size_t from_offset, size_t size) MUST_CHECK;
enum status device_copy(struct queue *q, struct dmem to, struct dmem from, size_t size) MUST_CHECK;
enum status device_zero(struct queue *q, struct dmem to, size_t size) MUST_CHECK;
/* to (dtype_sum(type)) = from (type). */
enum status device_widen(struct queue *q, struct dmem to, struct dmem from, enum dtype type, size_t count) MUST_CHECK;
/* to (dtype_sum(type)) += from (type). Integers: WORK_OVERFLOW when an i64 sum does not fit. */
enum status device_add(struct queue *q, struct dmem to, struct dmem from, enum dtype type, size_t count,
                       uint32_t *flags) MUST_CHECK;
/* How many slots the step has. */
unsigned step_slots(const struct step *s);
/* What step.scratch needs for a value of `count` elements; 0: nothing. */
size_t step_scratch_size(enum rule_id r, size_t count);
enum status device_step(struct queue *q, const struct step *s) MUST_CHECK;
/* The statistics (gpu/stats.h) of `count` elements of a, or of a - minus when minus has a size; one pass. Both may be the
 * same memory. They are in *out, which is host memory and belongs to the device until then, when a mark taken after
 * this has passed. */
enum status device_stats(struct queue *q, struct dmem a, struct dmem minus, enum dtype type, size_t count,
                         struct stats *out) MUST_CHECK;
/* For libraries that put work on streams themselves: calls run(ctx, stream) exactly once, from the thread that makes the
 * device's calls, with its card current, when all that the queue was given before has been put on the stream; marks
 * recorded after it wait for what it puts there. It may not call into this device, whose other work it holds up while it
 * lasts. It has been called when device_queue_free of the queue returns. Where this is refused run is never called;
 * UNIMPLEMENTED: the queues of this device are no streams. */
enum status device_queue_call(struct queue *q, queue_function *run, void *ctx) MUST_CHECK;

/* All zero by a device that compiles no programs. */
void device_programs(struct device *d, struct device_programs *out);

#endif
