/* The device thread: takes items in the order in which they were given, makes launches, copies and events of them, and
 * tells when marks have passed. */
#include "gpu/cuda_internal.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

enum {
    SPINS = 64,                      /* looks at the events before the thread sleeps between two */
    PAUSE_NS = 50000
};

/* ---- failure ------------------------------------------------------------------------------------------------------ */

void cuda_sentence(char *out, size_t room, cudaError_t r, const char *what)
{
    snprintf(out, room, "%s: CUDA error %d %s: %s", what, (int)r, cudaGetErrorName(r), cudaGetErrorString(r));
}

bool cuda_ok(struct cuda *c, cudaError_t r, const char *what)
{
    if (r == cudaSuccess) return true;
    if (!c->dead) cuda_sentence(c->device.why, sizeof c->device.why, r, what);
    c->dead = true;
    return false;
}

/* ---- lists -------------------------------------------------------------------------------------------------------- */

static void append(struct item_list *l, struct item *it)
{
    it->next = NULL;
    if (l->last != NULL) l->last->next = it;
    else l->first = it;
    l->last = it;
}

static struct item *take_first(struct item_list *l)
{
    struct item *it = l->first;

    if (it == NULL) return NULL;
    l->first = it->next;
    if (l->first == NULL) l->last = NULL;
    return it;
}

static void recycle(struct cuda *c, struct item *it)
{
    if (it == &it->queue->reserve) {
        atomic_store_explicit(&it->queue->reserve_used, false, memory_order_release);
        c->news = true;
        return;
    }
    it->next = c->done;
    c->done = it;
}

/* ---- what has passed ------------------------------------------------------------------------------------------------ */

static void complete(struct cuda *c, struct item *it)
{
    if (it->kind == ITEM_DOWNLOAD) ring_settle(c, it);
    if (it->place != NO_PLACE) place_give(c, it);
    if (it->compiled != NULL) compiled_passed(it->compiled);
    recycle(c, it);
}

static void give_event(struct cuda *c, cudaEvent_t e)
{
    if (c->event_count < EVENTS_KEPT) c->events[c->event_count++] = e;
    else (void)cudaEventDestroy(e);
}

static void mark_passed(struct cuda *c, struct cuda_queue *q)
{
    struct item *m = take_first(&q->marks);

    while (q->work.first != NULL && q->work.first->order < m->order) complete(c, take_first(&q->work));
    atomic_store_explicit(&q->passed, m->mark, memory_order_release);
    c->news = true;
    c->awaited--;
    give_event(c, m->event);
    recycle(c, m);
}

bool cuda_reap(struct cuda *c)
{
    bool moved = false;

    LIST_EACH(struct cuda_queue, q, node, &c->queues)
        while (q->marks.first != NULL && !c->dead) {
            cudaError_t r = cudaEventQuery(q->marks.first->event);
            if (r == cudaErrorNotReady) break;
            if (!cuda_ok(c, r, "waiting for work")) return moved;
            mark_passed(c, q);
            moved = true;
        }
    return moved;
}

bool cuda_drain(struct cuda *c)
{
    if (!cuda_ok(c, cudaDeviceSynchronize(), "waiting for the card")) return false;
    LIST_EACH(struct cuda_queue, q, node, &c->queues)
        for (struct item *it; (it = take_first(&q->work)) != NULL;) complete(c, it);
    return true;
}

/* ---- marks ---------------------------------------------------------------------------------------------------------- */

/* Nothing came in between: the last mark's event says it as well. */
static bool extends_last(const struct cuda_queue *q)
{
    return q->marks.last != NULL && q->marks.last->order == q->order;
}

static bool take_event(struct cuda *c, cudaEvent_t *out)
{
    if (c->event_count > 0) {
        *out = c->events[--c->event_count];
        return true;
    }
    return cuda_ok(c, cudaEventCreateWithFlags(out, cudaEventDisableTiming), "making an event");
}

static void issue_mark(struct cuda *c, struct item *it)
{
    struct cuda_queue *q = it->queue;

    if (extends_last(q)) {
        q->marks.last->mark = it->mark;
        recycle(c, it);
        return;
    }
    if (!take_event(c, &it->event)) {
        recycle(c, it);
        return;
    }
    if (!cuda_ok(c, cudaEventRecord(it->event, q->stream), "recording an event")) {
        give_event(c, it->event);
        recycle(c, it);
        return;
    }
    it->order = ++q->order;
    append(&q->marks, it);
    c->awaited++;
}

/* ---- small work, gathered --------------------------------------------------------------------------------------------- */

static unsigned add_range(struct range *r, unsigned n, const void *at, size_t size)
{
    if (at == NULL || size == 0) return n;
    r[n] = (struct range){(uintptr_t)at, (uintptr_t)at + size};
    return n + 1;
}

/* Everything that the item reads or writes, on the device or on the host. */
static unsigned ranges_of(const struct item *it, struct range r[ITEM_RANGES])
{
    const struct cuda_step *s = &it->step;
    size_t own = dtype_size(it->type), real = dtype_size(dtype_sum(it->type));
    unsigned n = 0;

    if (it->kind != ITEM_STEP) {
        bool is_sum = it->kind == ITEM_SUM, is_stats = it->kind == ITEM_STATS;
        n = add_range(r, n, it->to, is_sum ? it->count * real : is_stats ? it->count * own : it->count);
        return add_range(r, n, it->from, is_sum || is_stats ? it->count * own : it->count);
    }
    n = add_range(r, n, s->to, it->count * own);
    n = add_range(r, n, s->from, it->count * own);
    n = add_range(r, n, s->sum, it->count * real);
    n = add_range(r, n, s->last, it->count * own);
    n = add_range(r, n, s->master, it->count * real);
    n = add_range(r, n, s->scratch, s->scratch_size);
    /* Slots of rows and columns are shorter; to take them for whole only makes more of a launch of its own. */
    for (unsigned i = 0; i < s->slot_count; i++) n = add_range(r, n, s->slots[i], it->count * real);
    return n;
}

/* The first of the ranges that ends behind `from`. */
static unsigned place_of(const struct pending *p, uintptr_t from)
{
    unsigned low = 0, high = p->range_count;

    while (low < high) {
        unsigned middle = (low + high) / 2;
        if (p->ranges[middle].to <= from) low = middle + 1;
        else high = middle;
    }
    return low;
}

static bool touches(const struct pending *p, const struct range *r, unsigned n)
{
    for (unsigned i = 0; i < n && p->range_count > 0; i++) {
        unsigned at = place_of(p, r[i].from);
        if (at < p->range_count && p->ranges[at].from < r[i].to) return true;
    }
    return false;
}

/* Joins it with what it overlaps, which are ranges of the same item. */
static void keep_range(struct pending *p, struct range r)
{
    unsigned at = place_of(p, r.from), end = at;

    for (; end < p->range_count && p->ranges[end].from < r.to; end++) {
        if (p->ranges[end].from < r.from) r.from = p->ranges[end].from;
        if (p->ranges[end].to > r.to) r.to = p->ranges[end].to;
    }
    memmove(&p->ranges[at + 1], &p->ranges[end], (p->range_count - end) * sizeof r);
    p->range_count = p->range_count + 1 - (end - at);
    p->ranges[at] = r;
}

/* The set of scalars that is the step's; p->set_count: none of those there. */
static unsigned set_of(const struct pending *p, const struct item *it)
{
    for (unsigned i = p->set_count; i-- > 0;)
        if (memcmp(&p->sets[i]->step.scalars, &it->step.scalars, sizeof it->step.scalars) == 0) return i;
    return p->set_count;
}

/* Whether the launch has room for it: one type, and a bounded number of different scalars. */
static bool has_room(const struct pending *p, const struct item *it)
{
    if (p->count == 0) return true;
    if (p->count == BATCH_MAX || p->items.last->type != it->type) return false;
    return it->kind != ITEM_STEP || set_of(p, it) < BATCH_SCALARS;
}

static bool phase_of(const struct cuda *c, const struct item *it, enum phase *out)
{
    switch (it->kind) {
    case ITEM_UPLOAD: *out = PHASE_UP; return it->side == SIDE_PINNED && it->count <= SMALL_BYTES;
    case ITEM_DOWNLOAD: *out = PHASE_DOWN; return it->side == SIDE_PINNED && it->count <= SMALL_BYTES;
    case ITEM_SUM: *out = PHASE_SUM; return it->count <= c->gather_max;
    case ITEM_STEP:
        *out = PHASE_STEP;
        return it->count <= c->gather_max && it->step.rule != RULE_program && !rule_is_whole(it->step.rule);
    default: return false;
    }
}

/* Work that has been given to the stream: kept for its end if it has one. */
static void issued(struct cuda *c, struct item *it)
{
    bool has_end = it->place != NO_PLACE || it->compiled != NULL || (it->kind == ITEM_DOWNLOAD && it->side == SIDE_PAGEABLE);

    it->order = ++it->queue->order;
    if (has_end) append(&it->queue->work, it);
    else recycle(c, it);
}

static bool has_pending(const struct cuda_queue *q)
{
    for (int p = 0; p < PHASES; p++)
        if (q->pending[p].count > 0) return true;
    return false;
}

static void flush(struct cuda *c, struct cuda_queue *q)
{
    for (int k = 0; k < PHASES && !c->dead; k++) {
        struct pending *p = &q->pending[k];
        struct item *it;
        if (p->count == 0 || !launch_pending(c, q, (enum phase)k)) continue;
        while ((it = take_first(&p->items)) != NULL) issued(c, it);
        p->count = p->set_count = p->range_count = 0;
    }
    if (c->dead || q->held == NULL) return;
    struct item *m = q->held;
    q->held = NULL;
    issue_mark(c, m);
}

/* What is pending in this phase and in later ones goes out after the item would, so it may not touch what they do. */
static bool conflicts(const struct cuda_queue *q, unsigned from_phase, const struct range *r, unsigned n)
{
    for (unsigned k = from_phase; k < PHASES; k++)
        if (touches(&q->pending[k], r, n)) return true;
    return false;
}

static void keep(struct pending *p, struct item *it, const struct range *r, unsigned n)
{
    if (it->kind == ITEM_STEP) {
        it->set = set_of(p, it);
        if (it->set == p->set_count) p->sets[p->set_count++] = it;
    }
    p->count++;
    append(&p->items, it);
    for (unsigned i = 0; i < n; i++) keep_range(p, r[i]);
}

/* ---- items ------------------------------------------------------------------------------------------------------------ */

static bool issue(struct cuda *c, struct item *it)
{
    cudaStream_t stream = it->queue->stream;

    switch (it->kind) {
    case ITEM_UPLOAD: return launch_upload(c, it);
    case ITEM_DOWNLOAD: return launch_download(c, it);
    case ITEM_COPY:
        return cuda_ok(c, cudaMemcpyAsync(it->to, it->from, it->count, cudaMemcpyDeviceToDevice, stream), "copying");
    case ITEM_ZERO: return cuda_ok(c, cudaMemsetAsync(it->to, 0, it->count, stream), "zeroing");
    case ITEM_SUM: return launch_sum(c, it);
    case ITEM_STATS: return launch_stats(c, it);
    default: return launch_step(c, it);
    }
}

static void flush_all(struct cuda *c)
{
    LIST_EACH(struct cuda_queue, q, node, &c->queues)
        if (has_pending(q) && !c->dead) flush(c, q);
}

static void place_work(struct cuda *c, struct item *it)
{
    struct cuda_queue *q = it->queue;
    struct range r[ITEM_RANGES];
    unsigned n = ranges_of(it, r);
    enum phase phase = PHASE_UP;
    if (it->kind == ITEM_STEP && it->step.rule == RULE_program)
        it->compiled = programs_find(c->programs, it->step.program, it->type);
    bool is_small = phase_of(c, it, &phase);

    /* Places are given back when marks pass, and those of pending work have none yet. */
    if (needs_place(it) && places_of(c, it)->count == 0) flush_all(c);
    if (needs_place(it) && (c->dead || !place_take(c, it))) {
        recycle(c, it);
        return;
    }
    if (conflicts(q, is_small ? phase : 0, r, n) || (is_small && !has_room(&q->pending[phase], it))) flush(c, q);
    if (c->dead) recycle(c, it);
    else if (is_small) keep(&q->pending[phase], it, r, n);
    else if (issue(c, it)) issued(c, it);
    else recycle(c, it);
}

/* On a dead device, too, so that whoever waits for it is let go. */
static void place_call(struct cuda *c, struct item *it)
{
    if (!c->dead) flush(c, it->queue);
    it->run(it->ctx, c->dead ? NULL : it->queue->stream);
    issued(c, it);
}

static void place_record(struct cuda *c, struct item *it)
{
    struct cuda_queue *q = it->queue;

    if (!has_pending(q)) {
        issue_mark(c, it);
    } else if (q->held != NULL) {
        q->held->mark = it->mark;
        recycle(c, it);
    } else {
        q->held = it;
    }
}

/* The mark has been recorded, so it has passed, or an event of the other queue will say so. */
static void place_await(struct cuda *c, struct item *it)
{
    const struct item *m = NULL;

    if (atomic_load_explicit(&it->other->passed, memory_order_acquire) < it->mark) {
        flush(c, it->other);
        if (!c->dead) flush(c, it->queue);
        for (m = it->other->marks.first; m != NULL && m->mark < it->mark;) m = m->next;
    }
    if (m != NULL && !c->dead && cuda_ok(c, cudaStreamWaitEvent(it->queue->stream, m->event, 0), "awaiting another queue"))
        it->queue->order++;
    recycle(c, it);
}

static void recycle_all(struct cuda *c, struct item_list *l)
{
    for (struct item *it; (it = take_first(l)) != NULL;) recycle(c, it);
}

/* Everything that the queue was given is done, and what has passed is handed on. Other queues wait meanwhile: a queue goes
 * with the daemon or on a way where nothing can be put off. */
static void finish(struct cuda *c, struct cuda_queue *q)
{
    if (!c->dead) flush(c, q);
    if (c->dead || !cuda_ok(c, cudaStreamSynchronize(q->stream), "waiting for a queue")) return;
    while (q->marks.first != NULL) mark_passed(c, q);
    for (struct item *it; (it = take_first(&q->work)) != NULL;) complete(c, it);
}

/* Of a dead device, too, where things are left over. Events that are not waited for any more go with the device. */
static void let_go(struct cuda *c, struct cuda_queue *q)
{
    finish(c, q);
    for (struct item *m; (m = take_first(&q->marks)) != NULL;) {
        c->awaited--;
        (void)cudaEventDestroy(m->event);
        recycle(c, m);
    }
    recycle_all(c, &q->work);
    for (int k = 0; k < PHASES; k++) recycle_all(c, &q->pending[k].items);
    if (q->held != NULL) recycle(c, q->held);
    list_remove(&q->node);
    (void)cudaStreamDestroy(q->stream);
    pthread_mutex_lock(&c->lock);
    q->gone = true;
    pthread_cond_broadcast(&c->moved);
    pthread_mutex_unlock(&c->lock);
}

static void place(struct cuda *c, struct item *it)
{
    struct cuda_queue *q = it->queue;

    if (it->kind == ITEM_GONE) {
        let_go(c, q);
        return;
    }
    if (c->dead && it->kind != ITEM_CALL) {
        recycle(c, it);
        return;
    }
    if (!list_linked(&q->node)) list_append(&c->queues, &q->node);
    if (it->kind == ITEM_CALL) place_call(c, it);
    else if (it->kind == ITEM_RECORD) place_record(c, it);
    else if (it->kind == ITEM_AWAIT) place_await(c, it);
    else place_work(c, it);
}

/* ---- the loop ------------------------------------------------------------------------------------------------------------ */

/* With the lock held. */
static void give_back(struct cuda *c)
{
    struct item *it = c->done;

    if (it == NULL) return;
    while (it->next != NULL) it = it->next;
    it->next = c->spare;
    c->spare = c->done;
    c->done = NULL;
}

/* With the lock held, let go for the telling. The first word of a death is the thread's last touch of anything. */
static void tell(struct cuda *c)
{
    bool died = c->dead && !atomic_load_explicit(&c->failed, memory_order_relaxed);

    if (died) atomic_store_explicit(&c->failed, true, memory_order_release);
    if (!died && !c->news) return;
    c->news = false;
    if (c->waiting || died) pthread_cond_broadcast(&c->moved);
    if (c->device.notify == NULL) return;
    pthread_mutex_unlock(&c->lock);
    c->device.notify(c->device.notify_ctx);
    pthread_mutex_lock(&c->lock);
}

/* With the lock held. Events have no descriptor to sleep on, so the thread looks again after a while. */
static void nap(struct cuda *c)
{
    struct timespec until;

    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_nsec += PAUSE_NS;
    if (until.tv_nsec >= 1000000000) until.tv_sec++, until.tv_nsec -= 1000000000;
    pthread_cond_timedwait(&c->work_there, &c->lock, &until);
}

/* With the lock held. */
static void rest(struct cuda *c, unsigned *idle)
{
    if (c->awaited > 0 && !c->dead && ++*idle < SPINS) return;
    c->sleeping = true;
    if (c->awaited == 0 || c->dead) pthread_cond_wait(&c->work_there, &c->lock);
    else nap(c);
    c->sleeping = false;
}

/* Work that is given meanwhile wakes nobody: its turn has not come. */
void cuda_pause(struct cuda *c, unsigned *idle)
{
    bool moved = cuda_reap(c);

    if (c->dead || (!moved && ++*idle < SPINS)) return;
    if (moved) *idle = 0;
    pthread_mutex_lock(&c->lock);
    give_back(c);
    tell(c);
    if (c->condemned != cudaSuccess) (void)cuda_ok(c, c->condemned, "taking memory");
    else if (!moved) nap(c);
    pthread_mutex_unlock(&c->lock);
}

static bool turn(struct cuda *c, struct item_list given)
{
    bool moved = given.first != NULL;

    for (struct item *it; (it = take_first(&given)) != NULL;) place(c, it);
    if (!c->dead) flush_all(c);
    if (!c->dead && c->awaited > 0) moved |= cuda_reap(c);
    return moved;
}

void *cuda_thread(void *cuda)
{
    struct cuda *c = cuda;
    unsigned idle = 0;

    (void)cuda_ok(c, cudaSetDevice(c->card), "choosing the card");
    pthread_mutex_lock(&c->lock);
    while (!c->stopping || c->given.first != NULL) {
        struct item_list given = c->given;
        c->given = (struct item_list){NULL, NULL};
        if (c->condemned != cudaSuccess) (void)cuda_ok(c, c->condemned, "taking memory");
        pthread_mutex_unlock(&c->lock);
        bool moved = turn(c, given);
        pthread_mutex_lock(&c->lock);
        give_back(c);
        tell(c);
        if (moved) idle = 0;
        else if (c->given.first == NULL && !c->stopping && (c->condemned == cudaSuccess || c->dead)) rest(c, &idle);
    }
    pthread_mutex_unlock(&c->lock);
    return NULL;
}
