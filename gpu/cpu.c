/* The CPU as a device: a pool of workers that share out the parts of large work.
 *
 * Who touches what. The caller (one thread) gives work, and does small work itself when its queue is empty: then no
 * lock is taken and no thread is woken. Everything that workers share lies under `lock`, which is never held while
 * computing or telling. Two numbers of a queue are read without it: `passed`, and `pending`, whose zero says that the
 * workers have nothing more to do with the queue until the caller gives it something.
 *
 * Where a queue is. Its node is in one list at a time: `runnable` (its first item has parts that nobody has taken),
 * the `waiters` of a queue whose mark its first item awaits, `fresh` (to be placed before the lock is let go), or none
 * (empty, or all parts taken). */
#include "gpu/device.h"

#include "gpu/loops.h"
#include "gpu/whole.h"
#include "service/base/list.h"
#include "service/base/mem.h"

#include <assert.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/mman.h>

enum {
    THREADS_DEFAULT_MAX = 16,
    THREADS_MAX = 256,
    INLINE_ELEMENTS_MAX = 16 << 10,    /* waking a thread costs about what 16 Ki elements do */
    FEW_CORES = 2,                     /* then whoever sends the next value competes with the workers, and to hand a */
    FEW_INLINE_MAX = 256 << 10,        /* value of 1 MiB over costs a quarter of the throughput */
    CHUNK_ELEMENTS = 64 << 10,         /* long beside a lock, short enough to share out evenly */
    CHUNK_BYTES = 4 * CHUNK_ELEMENTS,
    SMALL_SIZE = 512,                  /* aligning a block costs 64 bytes of it, as much as a small value is */
    HUGE_SIZE = 2 << 20,               /* of a huge page; what is as large asks for them */
};

/* One call, as parts of it are computed: run(w, begin, count) for parts that make up the whole. */
struct work {
    void (*run)(const struct work *w, size_t begin, size_t count);
    size_t count;                      /* elements, or bytes */
    size_t inline_max, chunk;          /* in the same unit */
    char *to;
    const char *from;
    enum dtype type;
    uint32_t *flags;
    struct stats *stats;
    pthread_mutex_t *merging;          /* of stats */
    const struct step *step;
    unsigned pass;                     /* of a whole rule's step, whose count is that of the pass */
};

/* Work, or (run NULL) an await; it is satisfied when `other` is NULL. */
struct item {
    struct item *next;
    struct work work;
    struct step step;                  /* what work.step points to */
    struct cpu_queue *other;
    uint64_t await;
    size_t taken;                      /* of work.count, by threads */
    unsigned running;                  /* threads at it */
    uint64_t mark;                     /* passes with it; 0: none */
};

struct cpu_queue {
    struct queue queue;
    struct list_node node;             /* see above */
    struct list_node all;              /* in cpu.queues */
    struct list waiters;
    struct item *first, *last;
    struct item *spare;
    _Atomic uint64_t passed;
    _Atomic size_t pending;            /* items */
};

struct cpu {
    struct device device;
    unsigned threads_wanted, threads_running;
    bool threads_asked;
    size_t inline_max;                 /* elements of small work */
    pthread_t threads[THREADS_MAX];

    pthread_mutex_t merging;           /* parts of statistics, for a moment; taken with no other */
    pthread_mutex_t lock;
    pthread_cond_t work_there, mark_passed;
    struct list runnable, fresh, queues;
    bool news;                         /* a mark has passed and nobody has been told */
    bool waiting;                      /* the caller sleeps on mark_passed */
    bool stopping;
};

static struct cpu *cpu_of(const struct queue *q) { return (struct cpu *)q->device; }
static struct cpu_queue *queue_of(struct queue *q) { return (struct cpu_queue *)q; }

static bool has_passed(struct cpu_queue *q, uint64_t mark)
{
    return atomic_load_explicit(&q->passed, memory_order_acquire) >= mark;
}

/* Caller's thread: only it adds items, so an empty queue stays so while it looks. */
static bool is_idle(struct cpu_queue *q) { return atomic_load_explicit(&q->pending, memory_order_acquire) == 0; }

/* ---- order; all with the lock held ------------------------------------------------------------------------------ */

/* Takes the finished first item off. Its queue and those that waited for its mark are to be placed anew. */
static void retire(struct cpu *c, struct cpu_queue *q)
{
    struct item *it = q->first;

    q->first = it->next;
    if (q->first == NULL) q->last = NULL;
    if (it->mark != 0) {
        atomic_store_explicit(&q->passed, it->mark, memory_order_release);
        c->news = true;
        LIST_EACH(struct cpu_queue, w, node, &q->waiters) {
            if (w->first->await > it->mark) continue;
            list_remove(&w->node);
            list_append(&c->fresh, &w->node);
        }
    }
    it->next = q->spare;
    q->spare = it;
    list_append(&c->fresh, &q->node);
    /* Last: the caller that sees zero goes on without the lock. */
    atomic_fetch_sub_explicit(&q->pending, 1, memory_order_release);
}

static void place(struct cpu *c, struct cpu_queue *q)
{
    struct item *it = q->first;

    if (it == NULL) return;
    if (it->work.run != NULL) {
        list_append(&c->runnable, &q->node);
        if (it->work.count > it->work.chunk) pthread_cond_broadcast(&c->work_there);
        else pthread_cond_signal(&c->work_there);
    } else if (it->other == NULL || has_passed(it->other, it->await)) {
        retire(c, q);
    } else {
        list_append(&it->other->waiters, &q->node);
    }
}

static void place_fresh(struct cpu *c)
{
    struct cpu_queue *q;

    while ((q = LIST_FIRST(struct cpu_queue, node, &c->fresh)) != NULL) {
        list_remove(&q->node);
        place(c, q);
    }
}

/* Takes the next part of the first item; a queue with more goes to the end, so that queues run side by side. */
static size_t take_part(struct cpu *c, struct cpu_queue *q, size_t *begin)
{
    struct item *it = q->first;
    size_t left = it->work.count - it->taken, size = left < it->work.chunk ? left : it->work.chunk;

    *begin = it->taken;
    it->taken += size;
    it->running++;
    list_remove(&q->node);
    if (it->taken < it->work.count) list_append(&c->runnable, &q->node);
    return size;
}

/* Lets the lock go to tell: notify may do as it likes. */
static void tell_news(struct cpu *c)
{
    if (!c->news) return;
    c->news = false;
    if (c->waiting) pthread_cond_signal(&c->mark_passed);
    if (c->device.notify == NULL) return;
    pthread_mutex_unlock(&c->lock);
    c->device.notify(c->device.notify_ctx);
    pthread_mutex_lock(&c->lock);
}

/* What is to be done once a whole rule's pass is done: the next. */
static bool next_pass(struct work *w)
{
    if (w->step == NULL || ++w->pass >= whole_passes(w->step->rule)) return false;
    w->count = whole_parts(w->step, w->pass);
    return true;
}

/* Computes one part of something, without the lock; false: there is nothing to take. */
static bool run_part(struct cpu *c)
{
    struct cpu_queue *q = LIST_FIRST(struct cpu_queue, node, &c->runnable);
    size_t begin;

    if (q == NULL) return false;
    struct item *it = q->first;
    size_t size = take_part(c, q, &begin);
    pthread_mutex_unlock(&c->lock);
    it->work.run(&it->work, begin, size);
    pthread_mutex_lock(&c->lock);
    it->running--;
    if (it->running > 0 || it->taken < it->work.count) return true;
    if (next_pass(&it->work)) {
        it->taken = 0;
        place(c, q);
        return true;
    }
    retire(c, q);
    place_fresh(c);
    tell_news(c);
    return true;
}

/* ---- workers ---------------------------------------------------------------------------------------------------- */

static void *worker(void *arg)
{
    struct cpu *c = arg;

    pthread_mutex_lock(&c->lock);
    while (!c->stopping)
        if (!run_part(c)) pthread_cond_wait(&c->work_there, &c->lock);
    pthread_mutex_unlock(&c->lock);
    return NULL;
}

/* At the first large work. Signals are for other threads. If the system gives no thread at all, the caller does all
 * work itself, which is slow but right. */
static bool threads_start(struct cpu *c)
{
    sigset_t all, before;

    if (c->threads_asked) return c->threads_running > 0;
    c->threads_asked = true;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    while (c->threads_running < c->threads_wanted) {
        pthread_t *t = &c->threads[c->threads_running];
        if (pthread_create(t, NULL, worker, c) != 0) break;
        pthread_setname_np(*t, "paramd-cpu");
        c->threads_running++;
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return c->threads_running > 0;
}

/* ---- giving work ------------------------------------------------------------------------------------------------ */

static struct item *item_new(struct cpu_queue *q)
{
    struct cpu *c = cpu_of(&q->queue);

    pthread_mutex_lock(&c->lock);
    struct item *it = q->spare;
    if (it != NULL) q->spare = it->next;
    pthread_mutex_unlock(&c->lock);
    if (it == NULL) it = mem_new(sizeof *it);
    if (it == NULL) return NULL;
    it->next = NULL;
    it->work.run = NULL;
    it->other = NULL;
    it->taken = it->running = 0;
    it->mark = 0;
    return it;
}

static void append(struct cpu_queue *q, struct item *it)
{
    struct cpu *c = cpu_of(&q->queue);

    pthread_mutex_lock(&c->lock);
    if (q->last != NULL) q->last->next = it;
    else q->first = it;
    q->last = it;
    atomic_fetch_add_explicit(&q->pending, 1, memory_order_relaxed);
    if (q->first == it) place(c, q);
    place_fresh(c);
    pthread_mutex_unlock(&c->lock);
}

static enum status out_of_items(struct queue *q)
{
    return error_set(&q->device->error, REASON_NO_MEMORY, "no memory to queue work for the cpu");
}

static enum status give(struct queue *queue, struct work *w)
{
    struct cpu_queue *q = queue_of(queue);

    if (is_idle(q) && (w->count <= w->inline_max || !threads_start(cpu_of(queue)))) {
        do w->run(w, 0, w->count);
        while (next_pass(w));
        return STATUS_OK;
    }
    struct item *it = item_new(q);
    if (it == NULL) return out_of_items(queue);
    it->work = *w;
    if (w->step != NULL) {
        it->step = *w->step;
        it->work.step = &it->step;
    }
    append(q, it);
    return STATUS_OK;
}

static void run_copy(const struct work *w, size_t begin, size_t count) { memcpy(w->to + begin, w->from + begin, count); }
static void run_zero(const struct work *w, size_t begin, size_t count) { memset(w->to + begin, 0, count); }

static void raise_flags(uint32_t *flags, uint32_t bits)
{
    if (bits != 0) __atomic_fetch_or(flags, bits, __ATOMIC_RELAXED);
}

static void run_widen(const struct work *w, size_t begin, size_t count)
{
    loops_widen(w->type, w->to + begin * dtype_size(dtype_sum(w->type)), w->from + begin * dtype_size(w->type), count);
}

static void run_add(const struct work *w, size_t begin, size_t count)
{
    raise_flags(w->flags, loops_add(w->type, w->to + begin * dtype_size(dtype_sum(w->type)),
                                   w->from + begin * dtype_size(w->type), count));
}

static void run_step(const struct work *w, size_t begin, size_t count)
{
    raise_flags(w->step->flags, loops_step(w->step, begin, count));
}

static void run_whole(const struct work *w, size_t begin, size_t count)
{
    for (size_t i = begin; i < begin + count; i++) whole_run(w->step, w->pass, i);
}

static enum status give_bytes(struct queue *q, void (*run)(const struct work *, size_t, size_t), void *to,
                              const void *from, size_t size)
{
    return give(q, &(struct work){.run = run, .count = size, .inline_max = 4 * cpu_of(q)->inline_max, .chunk = CHUNK_BYTES,
                                  .to = to, .from = from});
}

static enum status cpu_upload(struct queue *q, struct dmem to, size_t to_offset, const void *from, size_t size)
{
    return give_bytes(q, run_copy, (char *)to.at + to_offset, from, size);
}

static enum status cpu_download(struct queue *q, void *to, struct dmem from, size_t from_offset, size_t size)
{
    return give_bytes(q, run_copy, to, (char *)from.at + from_offset, size);
}

static enum status cpu_copy(struct queue *q, struct dmem to, struct dmem from, size_t size)
{
    return give_bytes(q, run_copy, to.at, from.at, size);
}

static enum status cpu_zero(struct queue *q, struct dmem to, size_t size)
{
    return give_bytes(q, run_zero, to.at, NULL, size);
}

static enum status cpu_widen(struct queue *q, struct dmem to, struct dmem from, enum dtype type, size_t count)
{
    return give(q, &(struct work){.run = run_widen, .count = count, .inline_max = cpu_of(q)->inline_max,
                                  .chunk = CHUNK_ELEMENTS, .to = to.at, .from = from.at, .type = type});
}

static enum status cpu_add(struct queue *q, struct dmem to, struct dmem from, enum dtype type, size_t count,
                           uint32_t *flags)
{
    return give(q, &(struct work){.run = run_add, .count = count, .inline_max = cpu_of(q)->inline_max,
                                  .chunk = CHUNK_ELEMENTS, .to = to.at, .from = from.at, .type = type,
                                  .flags = flags});
}

static enum status cpu_step(struct queue *q, const struct step *s)
{
    struct work w = {.run = run_step, .count = s->count, .inline_max = cpu_of(q)->inline_max, .chunk = CHUNK_ELEMENTS,
                     .step = s};

    if (rule_is_whole(s->rule)) {
        w.run = run_whole;
        w.count = whole_parts(s, 0);
        w.inline_max = s->count <= cpu_of(q)->inline_max ? w.count : 0;
        w.chunk = 1;
    }
    return give(q, &w);
}

static void run_stats(const struct work *w, size_t begin, size_t count)
{
    size_t offset = begin * dtype_size(w->type);
    struct stats part;

    loops_stats(w->type, w->from + offset, w->to == NULL ? NULL : w->to + offset, count, &part);
    pthread_mutex_lock(w->merging);
    stats_merge(w->stats, &part);
    pthread_mutex_unlock(w->merging);
}

/* `to` is what is taken away; it is only read. */
static enum status cpu_stats(struct queue *q, struct dmem a, struct dmem minus, enum dtype type, size_t count,
                             struct stats *out)
{
    stats_clear(out);
    return give(q, &(struct work){.run = run_stats, .count = count, .inline_max = INLINE_ELEMENTS_MAX,
                                  .chunk = CHUNK_ELEMENTS, .from = a.at, .to = minus.size > 0 ? minus.at : NULL,
                                  .type = type, .stats = out, .merging = &cpu_of(q)->merging});
}

/* ---- marks ------------------------------------------------------------------------------------------------------ */

/* A mark is a note on the last item, so it needs no memory; without items it has passed already. */
static enum status cpu_record(struct queue *queue, uint64_t *mark)
{
    struct cpu_queue *q = queue_of(queue);
    struct cpu *c = cpu_of(queue);

    *mark = queue->mark + 1;
    if (is_idle(q)) {
        atomic_store_explicit(&q->passed, *mark, memory_order_release);
        return STATUS_OK;
    }
    pthread_mutex_lock(&c->lock);
    if (q->last != NULL) q->last->mark = *mark;
    else atomic_store_explicit(&q->passed, *mark, memory_order_release);
    pthread_mutex_unlock(&c->lock);
    return STATUS_OK;
}

static enum status cpu_await(struct queue *queue, struct queue *other, uint64_t mark)
{
    if (has_passed(queue_of(other), mark)) return STATUS_OK;
    struct item *it = item_new(queue_of(queue));
    if (it == NULL) return out_of_items(queue);
    it->other = queue_of(other);
    it->await = mark;
    append(queue_of(queue), it);
    return STATUS_OK;
}

static enum status cpu_passed(struct queue *q, uint64_t *mark)
{
    *mark = atomic_load_explicit(&queue_of(q)->passed, memory_order_acquire);
    return STATUS_OK;
}

static bool cpu_idle(struct queue *q) { return is_idle(queue_of(q)); }

/* The caller helps while there is something to take. */
static enum status cpu_wait(struct queue *queue, uint64_t mark)
{
    struct cpu_queue *q = queue_of(queue);
    struct cpu *c = cpu_of(queue);

    if (has_passed(q, mark)) return STATUS_OK;
    pthread_mutex_lock(&c->lock);
    while (!has_passed(q, mark)) {
        if (run_part(c)) continue;
        c->waiting = true;
        pthread_cond_wait(&c->mark_passed, &c->lock);
        c->waiting = false;
    }
    pthread_mutex_unlock(&c->lock);
    return STATUS_OK;
}

/* ---- queues, memory, the whole ---------------------------------------------------------------------------------- */

static enum status cpu_queue_new(struct device *d, struct queue **out, struct error *e)
{
    struct cpu *c = (struct cpu *)d;
    struct cpu_queue *q = mem_zero(sizeof *q);

    if (q == NULL) return error_set(e, REASON_NO_MEMORY, "no memory for a queue of the cpu");
    q->queue.device = d;
    list_init(&q->waiters);
    pthread_mutex_lock(&c->lock);
    list_append(&c->queues, &q->all);
    pthread_mutex_unlock(&c->lock);
    *out = &q->queue;
    return STATUS_OK;
}

/* All marks of a queue that is going have passed: awaits of them, wherever they stand, are satisfied. */
static void forget_awaits(struct cpu *c, const struct cpu_queue *of)
{
    LIST_EACH(struct cpu_queue, q, all, &c->queues)
        for (struct item *it = q->first; it != NULL; it = it->next)
            if (it->other == of) it->other = NULL;
}

static void cpu_queue_free(struct queue *queue)
{
    struct cpu_queue *q = queue_of(queue);
    struct cpu *c = cpu_of(queue);
    uint64_t mark;

    cpu_record(queue, &mark);
    cpu_wait(queue, mark);
    pthread_mutex_lock(&c->lock);
    forget_awaits(c, q);
    list_remove(&q->all);
    pthread_mutex_unlock(&c->lock);
    while (q->spare != NULL) {
        struct item *it = q->spare;
        q->spare = it->next;
        mem_free(it);
    }
    mem_free(q);
}

static enum status cpu_mem_new(struct device *d, size_t size, struct dmem *out, struct error *e)
{
    void *p = size < SMALL_SIZE ? mem_new(size) : mem_aligned(size);

    if (p == NULL) return error_set(e, REASON_NO_MEMORY, "no host memory for %zu bytes", size);
    /* Only a wish: fewer page faults and table walks where the system grants it. */
    if (size >= HUGE_SIZE) (void)madvise(p, size, MADV_HUGEPAGE);
    *out = (struct dmem){.device = d, .at = p, .host = p, .size = size};
    return STATUS_OK;
}

static void cpu_mem_free(struct dmem *m) { mem_free(m->at); }

static enum status cpu_pin_new(struct device *d, size_t size, void **out, struct error *e)
{
    void *p = mem_aligned(size);

    (void)d;
    if (p == NULL) return error_set(e, REASON_NO_MEMORY, "no host memory for %zu bytes", size);
    *out = p;
    return STATUS_OK;
}

static void cpu_pin_free(struct device *d, void *pin)
{
    (void)d;
    mem_free(pin);
}

static void cpu_close(struct device *d)
{
    struct cpu *c = (struct cpu *)d;

    assert(list_empty(&c->queues));
    pthread_mutex_lock(&c->lock);
    c->stopping = true;
    pthread_cond_broadcast(&c->work_there);
    pthread_mutex_unlock(&c->lock);
    for (unsigned i = 0; i < c->threads_running; i++) pthread_join(c->threads[i], NULL);
    pthread_cond_destroy(&c->mark_passed);
    pthread_cond_destroy(&c->work_there);
    pthread_mutex_destroy(&c->lock);
    pthread_mutex_destroy(&c->merging);
    mem_free(c);
}

static const struct device_ops cpu_ops = {
    .kind = "cpu", .close = cpu_close,
    .mem_new = cpu_mem_new, .mem_free = cpu_mem_free, .pin_new = cpu_pin_new, .pin_free = cpu_pin_free,
    .queue_new = cpu_queue_new, .queue_free = cpu_queue_free,
    .record = cpu_record, .await = cpu_await, .passed = cpu_passed, .wait = cpu_wait,
    .idle = cpu_idle,
    .upload = cpu_upload, .download = cpu_download, .copy = cpu_copy, .zero = cpu_zero,
    .widen = cpu_widen, .add = cpu_add, .step = cpu_step, .stats = cpu_stats,
};

/* Cores that this process may use, which in a container are fewer than the machine has. */
static unsigned default_threads(void)
{
    cpu_set_t set;
    int n = sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;

    return n < 1 ? 1 : n > THREADS_DEFAULT_MAX ? THREADS_DEFAULT_MAX : (unsigned)n;
}

enum status cpu_device_new(unsigned threads, struct device **out, struct error *e)
{
    struct cpu *c;

    if (threads > THREADS_MAX)
        return error_set(e, REASON_BAD_ARGUMENT, "%u threads for the cpu; at most %d", threads, THREADS_MAX);
    c = mem_zero(sizeof *c);
    if (c == NULL) return error_set(e, REASON_NO_MEMORY, "no memory for the cpu device");
    c->device.ops = &cpu_ops;
    c->threads_wanted = threads > 0 ? threads : default_threads();
    c->inline_max = threads == 0 && c->threads_wanted <= FEW_CORES ? FEW_INLINE_MAX : INLINE_ELEMENTS_MAX;
    pthread_mutex_init(&c->lock, NULL);
    pthread_mutex_init(&c->merging, NULL);
    pthread_cond_init(&c->work_there, NULL);
    pthread_cond_init(&c->mark_passed, NULL);
    list_init(&c->runnable);
    list_init(&c->fresh);
    list_init(&c->queues);
    *out = &c->device;
    return STATUS_OK;
}
