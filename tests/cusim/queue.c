/* Streams and events: queues of operations, and the choice of which runs when. */
#include "tests/cusim/sim.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- tokens and operations ------------------------------------------------------------------------------------- */

struct token *token_hold(struct token *t)
{
    if (t != NULL) t->held++;
    return t;
}

void token_drop(struct token *t)
{
    if (t != NULL && --t->held == 0) free(t);
}

struct op *op_new(enum op_kind kind)
{
    struct op *o = sim_new(sizeof *o);

    o->kind = kind;
    if (kind == OP_WAIT) return o;
    o->end = sim_new(sizeof *o->end);
    o->end->held = 1;
    return o;
}

static void op_free(struct op *o)
{
    if (o->kind == OP_KERNEL) free(o->argument);
    token_drop(o->end);
    free(o);
}

static void run_host_function(const struct op *o)
{
    memory_open(NO_DEVICE);
    sim.in_host_function = true;
    o->run(o->argument);
    sim.in_host_function = false;
}

static void run_free(void *at)
{
    struct block *b = block_find(at, 1);

    if (b != NULL) {
        block_free(b);
        return;
    }
    sim_say("%p is freed twice", at);
    sim.stats.mistakes++;
}

/* On the stream's coroutine. */
static void op_run(struct CUstream_st *s, const struct op *o)
{
    switch (o->kind) {
    case OP_COPY: memory_copy(o->to, o->from, o->size); break;
    case OP_SET: memory_set(o->to, o->value, o->size); break;
    case OP_KERNEL: kernel_run(s, o); break;
    case OP_WAIT: race_acquire(&o->end->edge); break;
    case OP_HOST: run_host_function(o); break;
    case OP_FREE: run_free(o->to); break;
    case OP_OTHER:
        memory_open(ALL_DEVICES); /* an action of NCCL's */
        o->run(o->argument);
        break;
    case OP_RECORD: break;
    }
}

static struct {
    struct CUstream_st *stream;              /* whose turn it is */
    struct coro host;
} turn;

static void stream_main(void)
{
    struct CUstream_st *s = turn.stream;

    coro_begin(&s->coro);
    for (;;) {
        struct op *o = s->first;
        race_acquire(&o->edge);
        op_run(s, o);
        if (o->kind != OP_WAIT) race_release(&o->end->edge);
        coro_switch(&s->coro, &turn.host);
    }
}

static void run_first(struct CUstream_st *s)
{
    struct op *o = s->first;

    turn.stream = s;
    coro_switch(&turn.host, &s->coro);
    sim.stats.ops_run++;
    s->first = o->next;
    if (s->first == NULL) s->last = &s->first;
    if (o->kind != OP_WAIT) {
        o->end->done = true;
        o->end->at_s = sim_now_s();
    }
    op_free(o);
}

/* ---- which runs when ------------------------------------------------------------------------------------------- */

static bool can_run(const struct CUstream_st *s)
{
    const struct op *o = s->first;
    return o != NULL && (o->kind != OP_WAIT || o->end->done) && (o->kind != OP_OTHER || o->ready(o->argument));
}

/* Lazy: the stream of the highest priority; these change now and then, so one stream gets far ahead of another and
 * falls far behind. Otherwise: any. */
static struct CUstream_st *pick(void)
{
    struct CUstream_st *picked = NULL;
    unsigned ready = 0;

    for (struct CUstream_st *s = sim.streams; s != NULL && sim.sticky == cudaSuccess; s = s->next) {
        if (!can_run(s)) continue;
        ready++;
        if (sim.policy == CUSIM_LAZY ? picked == NULL || s->priority > picked->priority : sim_chance(ready))
            picked = s;
    }
    if (picked != NULL && sim_chance(32)) picked->priority = (unsigned)(sim_random() >> 20);
    return picked;
}

static bool run_one(void)
{
    struct CUstream_st *s = pick();
    if (s != NULL) run_first(s);
    return s != NULL;
}

static void run_as_policy_says(void)
{
    if (sim.policy == CUSIM_EAGER) {
        while (run_one()) {}
    } else if (sim.policy == CUSIM_RANDOM && sim_chance(3)) {
        for (uint64_t n = sim_random() % 4; n > 0 && run_one(); n--) {}
    }
}

void queue_poll(void)
{
    if (sim_chance(2)) (void)run_one();
}

/* What another thread has yet to queue may be what is missing: the lock is let go of for a moment. */
static void let_others_in(void)
{
    memory_open(NO_DEVICE);
    sim_unlock();
    usleep(100);
    sim_lock();
}

cudaError_t queue_wait(struct token *t)
{
    double since = sim_now_s();
    unsigned life = sim.life;

    token_hold(t);
    while (t != NULL && !t->done && sim.sticky == cudaSuccess && sim.life == life) {
        if (run_one()) {
            since = sim_now_s();
        } else if (sim_now_s() - since < sim.patience_ms * 1e-3) {
            let_others_in();
        } else {
            sim_say("a wait for work that nothing can run");
            sim_lose(cudaErrorLaunchTimeout);
        }
    }
    if (t != NULL && t->done) race_acquire(&t->edge);
    token_drop(t);
    return sim.life == life ? sim.sticky : cudaErrorContextIsDestroyed;
}

/* Others are let in meanwhile, and a reset among them frees the streams: what is waited for is noted before. */
cudaError_t queue_wait_all(int device)
{
    cudaError_t e = sim.sticky;
    size_t count = 0, n = 0;

    for (struct CUstream_st *s = sim.streams; s != NULL; s = s->next) count++;
    struct token **ends = sim_new((count + 1) * sizeof *ends);
    for (struct CUstream_st *s = sim.streams; s != NULL; s = s->next)
        if (device == ALL_DEVICES || s->device == device) ends[n++] = token_hold(s->end);
    for (size_t i = 0; i < n; i++) {
        if (e == cudaSuccess) e = queue_wait(ends[i]);
        token_drop(ends[i]);
    }
    free(ends);
    return e;
}

/* ---- streams --------------------------------------------------------------------------------------------------- */

struct CUstream_st *stream_new(int device)
{
    static unsigned count;
    struct CUstream_st *s = sim_new(sizeof *s);
    char name[48];

    *s = (struct CUstream_st){
        .mark = LIVE, .device = device, .priority = (unsigned)(sim_random() >> 20), .next = sim.streams};
    s->last = &s->first;
    snprintf(name, sizeof name, "cusim stream %u of device %d", count++, device);
    coro_init(&s->coro, stream_main, name);
    sim.streams = s;
    return s;
}

struct CUstream_st *stream_of(cudaStream_t s)
{
    bool is_standard = s == NULL || s == cudaStreamLegacy || s == cudaStreamPerThread;

    if (!is_standard && s->mark == LIVE) return s;
    if (!is_standard) {
        sim_say("a stream is used after its end");
        sim.stats.mistakes++;
        return NULL;
    }
    sim.stats.default_stream_uses++;
    return sim.standard[*sim_current_device()];
}

void queue_push(struct CUstream_st *s, struct op *o)
{
    race_release(&o->edge);
    *s->last = o;
    s->last = &o->next;
    if (o->kind != OP_WAIT) {
        token_drop(s->end);
        s->end = token_hold(o->end);
    }
    run_as_policy_says();
}

/* A destroyed stream's work still runs; after that only its mark is of use. */
static void stream_bury(struct CUstream_st *s)
{
    while (s->first != NULL) {
        struct op *o = s->first;
        s->first = o->next;
        op_free(o);
    }
    token_drop(s->end);
    coro_fini(&s->coro);
    for (int i = 0; i < SIM_LANES; i++) coro_fini(&s->lanes[i]);
    free(s);
}

static void event_bury(struct CUevent_st *e)
{
    token_drop(e->end);
    free(e);
}

void queue_reset(void)
{
    while (sim.streams != NULL) {
        struct CUstream_st *s = sim.streams;
        sim.streams = s->next;
        stream_bury(s);
    }
    while (sim.events != NULL) {
        struct CUevent_st *e = sim.events;
        sim.events = e->next;
        event_bury(e);
    }
}

static cudaError_t stream_create(const char *name, cudaStream_t *out)
{
    cudaError_t e = sim_enter(name);
    if (e == cudaSuccess) {
        *out = stream_new(*sim_current_device());
        sim.stats.live_streams++;
    }
    return sim_leave(e);
}

cudaError_t cudaStreamCreate(cudaStream_t *out) { return stream_create(__func__, out); }

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *out, unsigned flags)
{
    (void)flags;
    return stream_create(__func__, out);
}

cudaError_t cudaStreamCreateWithPriority(cudaStream_t *out, unsigned flags, int priority)
{
    (void)flags, (void)priority;
    return stream_create(__func__, out);
}

cudaError_t cudaStreamDestroy(cudaStream_t s)
{
    cudaError_t e = sim_enter(__func__);

    if (e == cudaSuccess || e == sim.sticky) {
        if (s == NULL || stream_of(s) == NULL) e = cudaErrorInvalidResourceHandle;
        else {
            s->mark = DEAD;
            sim.stats.live_streams--;
        }
    }
    return sim_leave(e);
}

cudaError_t cudaStreamSynchronize(cudaStream_t s)
{
    cudaError_t e = sim_enter(__func__);
    struct CUstream_st *stream = e == cudaSuccess ? stream_of(s) : NULL;

    sim.stats.syncs++;
    if (e == cudaSuccess) e = stream != NULL ? queue_wait(stream->end) : cudaErrorInvalidResourceHandle;
    return sim_leave(e);
}

cudaError_t cudaDeviceSynchronize(void)
{
    cudaError_t e = sim_enter(__func__);
    sim.stats.syncs++;
    if (e == cudaSuccess) e = queue_wait_all(ALL_DEVICES);
    return sim_leave(e);
}

static cudaError_t token_query(struct token *t)
{
    queue_poll();
    if (sim.sticky != cudaSuccess) return sim.sticky;
    if (t == NULL) return cudaSuccess;
    if (!t->done) return cudaErrorNotReady;
    race_acquire(&t->edge);
    return cudaSuccess;
}

cudaError_t cudaStreamQuery(cudaStream_t s)
{
    cudaError_t e = sim_enter(__func__);
    struct CUstream_st *stream = e == cudaSuccess ? stream_of(s) : NULL;

    if (e == cudaSuccess) e = stream != NULL ? token_query(stream->end) : cudaErrorInvalidResourceHandle;
    return sim_leave(e);
}

/* ---- events ---------------------------------------------------------------------------------------------------- */

static bool is_event(const struct CUevent_st *e)
{
    if (e != NULL && e->mark == LIVE) return true;
    sim_say("an event is used %s", e == NULL ? "that is none" : "after its end");
    sim.stats.mistakes++;
    return false;
}

static cudaError_t event_create(const char *name, cudaEvent_t *out, unsigned flags)
{
    cudaError_t e = sim_enter(name);

    if (e == cudaSuccess) {
        *out = sim_new(sizeof **out);
        **out = (struct CUevent_st){LIVE, *sim_current_device(), (flags & cudaEventDisableTiming) == 0, NULL,
                                    sim.events};
        sim.events = *out;
        sim.stats.live_events++;
    }
    return sim_leave(e);
}

cudaError_t cudaEventCreate(cudaEvent_t *out) { return event_create(__func__, out, 0); }

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *out, unsigned flags) { return event_create(__func__, out, flags); }

cudaError_t cudaEventDestroy(cudaEvent_t event)
{
    cudaError_t e = sim_enter(__func__);

    if (e == cudaSuccess || e == sim.sticky) {
        if (!is_event(event)) e = cudaErrorInvalidResourceHandle;
        else {
            event->mark = DEAD;
            sim.stats.live_events--;
        }
    }
    return sim_leave(e);
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t s)
{
    cudaError_t e = sim_enter(__func__);
    struct CUstream_st *stream = e == cudaSuccess ? stream_of(s) : NULL;

    if (e == cudaSuccess && (stream == NULL || !is_event(event))) e = cudaErrorInvalidResourceHandle;
    if (e == cudaSuccess && event->device != stream->device) {
        sim_say("an event of device %d is recorded on a stream of device %d", event->device, stream->device);
        sim.stats.mistakes++;
        e = cudaErrorInvalidResourceHandle;
    }
    if (e == cudaSuccess) {
        struct op *o = op_new(OP_RECORD);
        token_drop(event->end);
        event->end = token_hold(o->end);
        queue_push(stream, o);
    }
    return sim_leave(e);
}

/* Of an event that was never recorded there is nothing to wait for. */
cudaError_t cudaStreamWaitEvent(cudaStream_t s, cudaEvent_t event, unsigned flags)
{
    cudaError_t e = sim_enter(__func__);
    struct CUstream_st *stream = e == cudaSuccess ? stream_of(s) : NULL;

    (void)flags;
    if (e == cudaSuccess && (stream == NULL || !is_event(event))) e = cudaErrorInvalidResourceHandle;
    if (e == cudaSuccess && event->end != NULL) {
        struct op *o = op_new(OP_WAIT);
        o->end = token_hold(event->end);
        queue_push(stream, o);
    }
    return sim_leave(e);
}

cudaError_t cudaEventSynchronize(cudaEvent_t event)
{
    cudaError_t e = sim_enter(__func__);
    sim.stats.syncs++;
    if (e == cudaSuccess) e = is_event(event) ? queue_wait(event->end) : cudaErrorInvalidResourceHandle;
    return sim_leave(e);
}

cudaError_t cudaEventQuery(cudaEvent_t event)
{
    cudaError_t e = sim_enter(__func__);
    if (e == cudaSuccess) e = is_event(event) ? token_query(event->end) : cudaErrorInvalidResourceHandle;
    return sim_leave(e);
}

cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t from, cudaEvent_t to)
{
    cudaError_t e = sim_enter(__func__);

    if (e == cudaSuccess &&
        (!is_event(from) || !is_event(to) || !from->timed || !to->timed || from->end == NULL || to->end == NULL))
        e = cudaErrorInvalidResourceHandle;
    if (e == cudaSuccess && (!from->end->done || !to->end->done)) e = cudaErrorNotReady;
    if (e == cudaSuccess) *ms = (float)((to->end->at_s - from->end->at_s) * 1e3);
    return sim_leave(e);
}

/* ---- work ------------------------------------------------------------------------------------------------------ */

static bool fits(enum cudaMemcpyKind kind, bool to_device, bool from_device)
{
    switch (kind) {
    case cudaMemcpyHostToDevice: return to_device && !from_device;
    case cudaMemcpyDeviceToHost: return !to_device && from_device;
    case cudaMemcpyDeviceToDevice: return to_device && from_device;
    case cudaMemcpyDefault: return to_device || from_device;
    default: return false;
    }
}

static bool is_device(const struct block *b) { return b != NULL && b->kind == BLOCK_DEVICE; }

static void count_copy(bool to_device, bool from_device, size_t size)
{
    if (to_device && from_device) sim.stats.d2d += size;
    else if (to_device) sim.stats.h2d += size;
    else sim.stats.d2h += size;
}

/* A range that begins in a block and leaves it is found in none, so it does not fit its kind, or is pageable. */
static cudaError_t copy(void *to, const void *from, size_t size, enum cudaMemcpyKind kind, struct CUstream_st *s,
                        bool wait)
{
    struct block *b = block_find(to, size), *a = block_find(from, size);
    bool leaves = (b == NULL && block_find(to, 1) != NULL) || (a == NULL && block_find(from, 1) != NULL);

    if (s == NULL) return cudaErrorInvalidResourceHandle;
    if (size == 0) return cudaSuccess;
    if (leaves || !fits(kind, is_device(b), is_device(a))) {
        sim_say("a copy of %zu bytes %s", size, leaves ? "runs past a block" : "does not fit its kind");
        sim.stats.mistakes++;
        return cudaErrorInvalidValue;
    }
    count_copy(is_device(b), is_device(a), size);
    struct op *o = op_new(OP_COPY);
    o->to = to;
    o->from = from;
    o->size = size;
    struct token *end = token_hold(o->end);
    bool pageable = b == NULL || a == NULL;
    if (pageable) sim.stats.pageable_copies++;
    queue_push(s, o);
    cudaError_t e = wait || pageable ? queue_wait(end) : cudaSuccess;
    token_drop(end);
    return e;
}

cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t size, enum cudaMemcpyKind kind, cudaStream_t s)
{
    cudaError_t e = sim_enter(__func__);
    if (e == cudaSuccess) e = copy(to, from, size, kind, stream_of(s), false);
    return sim_leave(e);
}

cudaError_t cudaMemcpy(void *to, const void *from, size_t size, enum cudaMemcpyKind kind)
{
    cudaError_t e = sim_enter(__func__);
    if (e == cudaSuccess) e = copy(to, from, size, kind, stream_of(NULL), true);
    return sim_leave(e);
}

cudaError_t cudaMemcpyPeerAsync(void *to, int to_device, const void *from, int from_device, size_t size,
                                cudaStream_t s)
{
    cudaError_t e = sim_enter(__func__);
    const struct block *b = e == cudaSuccess ? block_find(to, 1) : NULL,
                       *a = e == cudaSuccess ? block_find(from, 1) : NULL;

    if (e == cudaSuccess && (b == NULL || a == NULL || b->device != to_device || a->device != from_device))
        e = cudaErrorInvalidValue;
    if (e == cudaSuccess) e = copy(to, from, size, cudaMemcpyDeviceToDevice, stream_of(s), false);
    return sim_leave(e);
}

static cudaError_t set(void *to, int value, size_t size, struct CUstream_st *s, bool wait)
{
    if (s == NULL) return cudaErrorInvalidResourceHandle;
    if (size == 0) return cudaSuccess;
    if (!is_device(block_find(to, size))) {
        sim_say("%zu bytes are set that are no device memory, or run past it", size);
        sim.stats.mistakes++;
        return cudaErrorInvalidValue;
    }
    struct op *o = op_new(OP_SET);
    o->to = to;
    o->value = value;
    o->size = size;
    queue_push(s, o);
    return wait ? queue_wait(s->end) : cudaSuccess;
}

cudaError_t cudaMemsetAsync(void *to, int value, size_t size, cudaStream_t s)
{
    cudaError_t e = sim_enter(__func__);
    if (e == cudaSuccess) e = set(to, value, size, stream_of(s), false);
    return sim_leave(e);
}

cudaError_t cudaMemset(void *to, int value, size_t size)
{
    cudaError_t e = sim_enter(__func__);
    if (e == cudaSuccess) e = set(to, value, size, stream_of(NULL), true);
    return sim_leave(e);
}

static bool shape_fits(dim3 grid, dim3 block)
{
    uint64_t threads = (uint64_t)block.x * block.y * block.z;
    return threads > 0 && threads <= 1024 && block.z <= 64 && grid.x > 0 && grid.x <= INT32_MAX && grid.y > 0 &&
           grid.y <= 65535 && grid.z > 0 && grid.z <= 65535;
}

static cudaError_t launch(const struct kernel *k, dim3 grid, dim3 block, void **args, struct CUstream_st *s)
{
    if (k == NULL) return cudaErrorInvalidDeviceFunction;
    if (s == NULL) return cudaErrorInvalidResourceHandle;
    if (s->device != *sim_current_device()) {
        sim_say("kernel %s is launched on a stream of device %d while device %d is current", k->name, s->device,
                *sim_current_device());
        sim.stats.mistakes++;
        return cudaErrorInvalidResourceHandle;
    }
    if (!shape_fits(grid, block) || k->argument_size > CUSIM_ARGUMENTS_MAX) return cudaErrorInvalidConfiguration;
    struct op *o = op_new(OP_KERNEL);
    o->kernel = k;
    o->grid = grid;
    o->block = block;
    o->argument = sim_new(k->argument_size);
    memcpy(o->argument, args[0], k->argument_size); /* the real one copies arguments at the call, too */
    sim.stats.launches++;
    sim.stats.ptx_launches += k->ptx != NULL;
    queue_push(s, o);
    return cudaSuccess;
}

cudaError_t cudaLaunchKernel(const void *function, dim3 grid, dim3 block, void **args, size_t shared_size,
                             cudaStream_t s)
{
    cudaError_t e = sim_enter(__func__);
    (void)shared_size;
    if (e == cudaSuccess) e = launch(kernel_find(function), grid, block, args, stream_of(s));
    return sim_leave(e);
}

static struct op *action(enum op_kind kind, void (*run)(void *), void *argument)
{
    struct op *o = op_new(kind);
    o->run = run;
    o->argument = argument;
    return o;
}

cudaError_t cudaLaunchHostFunc(cudaStream_t s, cudaHostFn_t function, void *argument)
{
    cudaError_t e = sim_enter(__func__);
    struct CUstream_st *stream = e == cudaSuccess ? stream_of(s) : NULL;

    if (e == cudaSuccess && stream == NULL) e = cudaErrorInvalidResourceHandle;
    if (e == cudaSuccess) queue_push(stream, action(OP_HOST, function, argument));
    return sim_leave(e);
}

void cusim_enqueue(struct CUstream_st *s, bool (*ready)(void *), void (*run)(void *), void *argument)
{
    sim_lock();
    struct op *o = action(OP_OTHER, run, argument);
    o->ready = ready;
    queue_push(stream_of(s), o);
    memory_open(NO_DEVICE);
    sim_unlock();
}

int cusim_stream_device(struct CUstream_st *s)
{
    sim_lock();
    struct CUstream_st *stream = stream_of(s);
    int device = stream != NULL ? stream->device : -1;
    sim_unlock();
    return device;
}
