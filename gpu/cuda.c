/* A GPU as a device: opening it, its memory, and the calls of the core, which put items into the device thread's list.
 * gpu/cuda.md says how it works. */
#include "gpu/cuda_internal.h"

#include "gpu/plugin.h"
#include "gpu/program.h"
#include "service/base/mem.h"

#include <assert.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>

enum {
    CHUNK_SIZE = 256 << 20,
    PIN_CHUNK_SIZE = 32 << 20,
    SLOT_SIZE = 4 << 20              /* 76 us of a PCIe 5 x16: ten times what starting a copy costs */
};

static struct cuda *cuda_of(struct device *d) { return (struct cuda *)d; }
static struct cuda *owner(struct queue *q) { return (struct cuda *)q->device; }
static struct cuda_queue *queue_of(struct queue *q) { return (struct cuda_queue *)q; }
static bool failed(struct cuda *c) { return atomic_load_explicit(&c->failed, memory_order_acquire); }

static enum status lost(struct cuda *c, struct error *e)
{
    return error_set(e, REASON_DEVICE_LOST, "%s", c->device.why);
}

/* ---- errors that the caller meets ------------------------------------------------------------------------------ */

/* The thread may be at work with buffers of the caller's: it is told, and has stopped when this returns. */
static enum status condemn(struct cuda *c, cudaError_t r, struct error *e)
{
    pthread_mutex_lock(&c->lock);
    c->condemned = r;
    pthread_cond_signal(&c->work_there);
    while (!failed(c)) {
        c->waiting = true;
        pthread_cond_wait(&c->moved, &c->lock);
    }
    c->waiting = false;
    pthread_mutex_unlock(&c->lock);
    return lost(c, e);
}

static enum status refuse(struct cuda *c, cudaError_t r, const char *what, size_t size, struct error *e)
{
    size_t left = 0, all = 0;

    if (r != cudaErrorMemoryAllocation) return condemn(c, r, e);
    (void)cudaGetLastError();        /* it is not one that stays */
    if (cudaMemGetInfo(&left, &all) != cudaSuccess) left = all = 0;
    return error_set(e, REASON_NO_MEMORY, "no %s for %zu bytes: the card has %zu free of %zu", what, size, left, all);
}

static enum status take_memory(void *ctx, size_t size, void **out, struct error *e)
{
    struct cuda *c = ctx;
    cudaError_t r = cudaSetDevice(c->card);

    if (r == cudaSuccess) r = cudaMalloc(out, size);
    return r == cudaSuccess ? STATUS_OK : refuse(c, r, "memory of the GPU", size, e);
}

static void give_memory(void *ctx, void *at)
{
    if (cudaSetDevice(((struct cuda *)ctx)->card) == cudaSuccess) (void)cudaFree(at);
}

static enum status take_pins(void *ctx, size_t size, void **out, struct error *e)
{
    struct cuda *c = ctx;
    cudaError_t r = cudaSetDevice(c->card);

    if (r == cudaSuccess) r = cudaHostAlloc(out, size, cudaHostAllocPortable);
    if (r == cudaSuccess) return STATUS_OK;
    if (r != cudaErrorMemoryAllocation) return condemn(c, r, e);
    (void)cudaGetLastError();
    return error_set(e, REASON_NO_MEMORY, "no pinned host memory for %zu bytes", size);
}

static void give_pins(void *ctx, void *at)
{
    (void)ctx;
    (void)cudaFreeHost(at);
}

/* ---- memory ---------------------------------------------------------------------------------------------------- */

static enum status cuda_mem_new(struct device *d, size_t size, struct dmem *out, struct error *e)
{
    struct cuda *c = cuda_of(d);
    void *at;

    if (failed(c)) return lost(c, e);
    enum status s = pool_take(c->memory, size, &at, e);
    if (s == STATUS_OK) *out = (struct dmem){.device = d, .at = at, .size = size};
    return s;
}

/* In an allocation of its own: the handle opens all of it. A refusal ends nothing: not every machine shares memory. */
static enum status cuda_shared_new(struct device *d, size_t size, struct dmem *out, struct mem_handle *handle,
                                   struct error *e)
{
    struct cuda *c = cuda_of(d);
    cudaIpcMemHandle_t h;
    char why[160];
    void *at;

    static_assert(sizeof h == sizeof handle->at, "a handle of CUDA's is one");
    if (failed(c)) return lost(c, e);
    enum status s = pool_take_alone(c->memory, size, &at, e);
    if (s != STATUS_OK) return s;
    cudaError_t r = cudaIpcGetMemHandle(&h, at);
    if (r != cudaSuccess) {
        (void)cudaGetLastError();
        pool_give(c->memory, at);
        cuda_sentence(why, sizeof why, r, "sharing memory with another process");
        return error_set(e, REASON_UNIMPLEMENTED, "%s", why);
    }
    memcpy(handle->at, &h, sizeof h);
    *out = (struct dmem){.device = d, .at = at, .size = size};
    return STATUS_OK;
}

static void cuda_mem_free(struct dmem *m) { pool_give(cuda_of(m->device)->memory, m->at); }

static enum status cuda_pin_new(struct device *d, size_t size, void **out, struct error *e)
{
    struct cuda *c = cuda_of(d);

    return failed(c) ? lost(c, e) : pool_take(c->pins, size, out, e);
}

static void cuda_pin_free(struct device *d, void *pin) { pool_give(cuda_of(d)->pins, pin); }

static void cuda_keep_memory(struct device *d, bool keep)
{
    pool_keep(cuda_of(d)->memory, keep);
    pool_keep(cuda_of(d)->pins, keep);
}

static void cuda_trim(struct device *d)
{
    pool_trim(cuda_of(d)->memory);
    pool_trim(cuda_of(d)->pins);
}

static uint64_t cuda_cached(const struct device *d)
{
    const struct cuda *c = (const struct cuda *)d;
    return pool_free_bytes(c->memory) + pool_free_bytes(c->pins);
}

/* ---- items ----------------------------------------------------------------------------------------------------- */

static struct item *item_find(struct cuda *c)
{
    pthread_mutex_lock(&c->lock);
    struct item *it = c->spare;
    if (it != NULL) c->spare = it->next;
    pthread_mutex_unlock(&c->lock);
    return it != NULL ? it : mem_new(sizeof *it);
}

static void item_begin(struct item *it, struct queue *q, enum item_kind kind)
{
    it->next = NULL;
    it->queue = queue_of(q);
    it->kind = kind;
    it->flags = NULL;
    it->place = NO_PLACE;
    it->side = SIDE_PAGEABLE;
    it->add = false;
    it->type = DTYPE_f32;
    it->to = NULL;
    it->from = NULL;
    it->count = 0;
    it->compiled = NULL;
}

static struct item *item_new(struct queue *q, enum item_kind kind)
{
    struct cuda *c = owner(q);
    struct item *it = item_find(c);

    if (it != NULL) item_begin(it, q, kind);
    else error_set(&c->device.error, REASON_NO_MEMORY, "no memory to queue work for the GPU");
    return it;
}

/* A mark never fails for lack of memory: what is to be done when it has passed cannot be done in its place. The queue has one
 * of its own, for which the last record that took it must have passed. */
static struct item *record_new(struct queue *queue)
{
    struct cuda_queue *q = queue_of(queue);
    struct cuda *c = owner(queue);
    struct item *it = item_find(c);

    if (it == NULL) {
        it = &q->reserve;
        pthread_mutex_lock(&c->lock);
        c->waiting = true;
        while (atomic_load_explicit(&q->reserve_used, memory_order_acquire) && !failed(c))
            pthread_cond_wait(&c->moved, &c->lock);
        c->waiting = false;
        pthread_mutex_unlock(&c->lock);
        if (failed(c)) return NULL;
        atomic_store_explicit(&q->reserve_used, true, memory_order_relaxed);
    }
    item_begin(it, queue, ITEM_RECORD);
    return it;
}

static void give(struct item *it)
{
    struct cuda *c = owner(&it->queue->queue);

    pthread_mutex_lock(&c->lock);
    if (c->given.last != NULL) c->given.last->next = it;
    else c->given.first = it;
    c->given.last = it;
    if (c->sleeping) pthread_cond_signal(&c->work_there);
    pthread_mutex_unlock(&c->lock);
}

static enum status no_memory(void) { return reason_status(REASON_NO_MEMORY); }

/* ---- work ------------------------------------------------------------------------------------------------------ */

/* Our own pinned memory is known; of other memory CUDA is asked, whose answer for what it does not know is no error. */
static enum side side_of(const struct cuda *c, const void *at, size_t size)
{
    struct cudaPointerAttributes first, last;

    if (pool_holds(c->pins, at, size)) return SIDE_PINNED;
    if (cudaPointerGetAttributes(&first, at) != cudaSuccess ||
        cudaPointerGetAttributes(&last, (const char *)at + size - 1) != cudaSuccess) {
        (void)cudaGetLastError();
        return SIDE_PAGEABLE;
    }
    if (first.type != last.type || first.type == cudaMemoryTypeUnregistered) return SIDE_PAGEABLE;
    return first.type == cudaMemoryTypeHost ? SIDE_PINNED : SIDE_CUDA;
}

static enum status give_copy(struct queue *q, enum item_kind kind, void *to, const void *from, size_t size, const void *host)
{
    struct cuda *c = owner(q);

    if (failed(c)) return lost(c, &c->device.error);
    struct item *it = item_new(q, kind);
    if (it == NULL) return no_memory();
    it->to = to;
    it->from = from;
    it->count = size;
    if (host != NULL) it->side = side_of(c, host, size);
    give(it);
    return STATUS_OK;
}

static enum status cuda_upload(struct queue *q, struct dmem to, size_t to_offset, const void *from, size_t size)
{
    return give_copy(q, ITEM_UPLOAD, (char *)to.at + to_offset, from, size, from);
}

static enum status cuda_download(struct queue *q, void *to, struct dmem from, size_t from_offset, size_t size)
{
    return give_copy(q, ITEM_DOWNLOAD, to, (const char *)from.at + from_offset, size, to);
}

static enum status cuda_copy(struct queue *q, struct dmem to, struct dmem from, size_t size)
{
    return give_copy(q, ITEM_COPY, to.at, from.at, size, NULL);
}

static enum status cuda_zero(struct queue *q, struct dmem to, size_t size)
{
    return give_copy(q, ITEM_ZERO, to.at, NULL, size, NULL);
}

static enum status give_sum(struct queue *q, struct dmem to, struct dmem from, enum dtype type, size_t count, bool add,
                            uint32_t *flags)
{
    struct cuda *c = owner(q);

    if (failed(c)) return lost(c, &c->device.error);
    struct item *it = item_new(q, ITEM_SUM);
    if (it == NULL) return no_memory();
    it->to = to.at;
    it->from = from.at;
    it->count = count;
    it->type = type;
    it->add = add;
    it->flags = dtype_is_integer(type) && add ? flags : NULL;
    give(it);
    return STATUS_OK;
}

static enum status cuda_widen(struct queue *q, struct dmem to, struct dmem from, enum dtype type, size_t count)
{
    return give_sum(q, to, from, type, count, false, NULL);
}

static enum status cuda_add(struct queue *q, struct dmem to, struct dmem from, enum dtype type, size_t count, uint32_t *flags)
{
    return give_sum(q, to, from, type, count, true, flags);
}

static void *address(struct dmem m) { return m.size > 0 ? m.at : NULL; }

static enum status cuda_step(struct queue *q, const struct step *s)
{
    struct cuda *c = owner(q);

    if (failed(c)) return lost(c, &c->device.error);
    struct item *it = item_new(q, ITEM_STEP);
    if (it == NULL) return no_memory();
    it->type = s->type;
    it->count = s->count;
    it->flags = dtype_is_integer(s->type) ? s->flags : NULL;
    struct cuda_step *k = &it->step;
    k->rule = s->rule;
    k->scalars = s->scalars;
    k->sum = address(s->sum);
    k->last = address(s->last);
    k->from = s->from.at;
    k->to = s->to.at;
    k->master = address(s->master);
    k->scratch = address(s->scratch);
    k->scratch_size = s->scratch.size;
    k->columns = s->columns;
    k->stream = s->stream;
    k->program = s->program;
    k->slot_count = s->rule == RULE_program ? s->program->slot_count : rule_slots(s->rule);
    memset(k->slots, 0, sizeof k->slots);
    for (unsigned i = 0; i < k->slot_count; i++) k->slots[i] = s->slots[i].at;
    if (s->rule == RULE_program) memcpy(k->program_scalars, s->program_scalars, sizeof k->program_scalars);
    give(it);
    return STATUS_OK;
}

static enum status cuda_stats(struct queue *q, struct dmem a, struct dmem minus, enum dtype type, size_t count,
                              struct stats *out)
{
    struct cuda *c = owner(q);

    if (failed(c)) return lost(c, &c->device.error);
    struct item *it = item_new(q, ITEM_STATS);
    if (it == NULL) return no_memory();
    stats_clear(out);
    it->from = a.at;
    it->to = address(minus);         /* which is only read */
    it->type = type;
    it->count = count;
    it->stats = out;
    give(it);
    return STATUS_OK;
}

static enum status cuda_queue_call(struct queue *q, queue_function *run, void *ctx)
{
    struct cuda *c = owner(q);

    if (failed(c)) return lost(c, &c->device.error);
    struct item *it = item_new(q, ITEM_CALL);
    if (it == NULL) return no_memory();
    it->run = run;
    it->ctx = ctx;
    give(it);
    return STATUS_OK;
}

/* ---- marks ----------------------------------------------------------------------------------------------------- */

static enum status cuda_record(struct queue *q, uint64_t *mark)
{
    struct cuda *c = owner(q);

    if (failed(c)) return lost(c, &c->device.error);
    struct item *it = record_new(q);
    if (it == NULL) return lost(c, &c->device.error);
    *mark = it->mark = q->mark + 1;
    give(it);
    return STATUS_OK;
}

static bool has_passed(struct queue *q, uint64_t mark)
{
    return atomic_load_explicit(&queue_of(q)->passed, memory_order_acquire) >= mark;
}

static enum status cuda_await(struct queue *q, struct queue *other, uint64_t mark)
{
    struct cuda *c = owner(q);

    if (failed(c)) return lost(c, &c->device.error);
    if (has_passed(other, mark)) return STATUS_OK;
    struct item *it = item_new(q, ITEM_AWAIT);
    if (it == NULL) return no_memory();
    it->other = queue_of(other);
    it->mark = mark;
    give(it);
    return STATUS_OK;
}

static enum status cuda_passed(struct queue *q, uint64_t *mark)
{
    struct cuda *c = owner(q);

    if (failed(c)) return lost(c, &c->device.error);
    *mark = atomic_load_explicit(&queue_of(q)->passed, memory_order_acquire);
    return STATUS_OK;
}

static enum status cuda_wait(struct queue *q, uint64_t mark)
{
    struct cuda *c = owner(q);

    if (!has_passed(q, mark)) {
        pthread_mutex_lock(&c->lock);
        c->waiting = true;
        while (!has_passed(q, mark) && !failed(c)) pthread_cond_wait(&c->moved, &c->lock);
        c->waiting = false;
        pthread_mutex_unlock(&c->lock);
    }
    return failed(c) ? lost(c, &c->device.error) : STATUS_OK;
}

/* ---- queues ---------------------------------------------------------------------------------------------------- */

static enum status cuda_queue_new(struct device *d, struct queue **out, struct error *e)
{
    struct cuda *c = cuda_of(d);

    if (failed(c)) return lost(c, e);
    struct cuda_queue *q = mem_zero(sizeof *q);
    if (q == NULL) return error_set(e, REASON_NO_MEMORY, "no memory for a queue of the GPU");
    cudaError_t r = cudaSetDevice(c->card);
    if (r == cudaSuccess) r = cudaStreamCreateWithFlags(&q->stream, cudaStreamNonBlocking);
    if (r != cudaSuccess) {
        mem_free(q);
        return refuse(c, r, "stream of the GPU", 0, e);
    }
    q->queue.device = d;
    *out = &q->queue;
    return STATUS_OK;
}

/* The thread lets go of it after all that was given before; its own last item needs no memory. */
static void cuda_queue_free(struct queue *queue)
{
    struct cuda_queue *q = queue_of(queue);
    struct cuda *c = owner(queue);

    q->goodbye = (struct item){.queue = q, .kind = ITEM_GONE, .place = NO_PLACE};
    give(&q->goodbye);
    pthread_mutex_lock(&c->lock);
    c->waiting = true;
    while (!q->gone) pthread_cond_wait(&c->moved, &c->lock);
    c->waiting = false;
    pthread_mutex_unlock(&c->lock);
    mem_free(q);
}

/* ---- opening and closing --------------------------------------------------------------------------------------- */

static void free_items(struct item *it)
{
    while (it != NULL) {
        struct item *next = it->next;
        mem_free(it);
        it = next;
    }
}

static void cuda_close(struct device *d)
{
    struct cuda *c = cuda_of(d);

    pthread_mutex_lock(&c->lock);
    c->stopping = true;
    pthread_cond_signal(&c->work_there);
    pthread_mutex_unlock(&c->lock);
    if (c->started) pthread_join(c->thread, NULL);
    free_items(c->spare);
    (void)cudaSetDevice(c->card);
    programs_free(c->programs);
    while (c->event_count > 0) (void)cudaEventDestroy(c->events[--c->event_count]);
    for (unsigned i = 0; i < RING_SLOTS; i++)
        if (c->ring[i].event != NULL) (void)cudaEventDestroy(c->ring[i].event);
    pool_free(c->memory);
    pool_free(c->pins);
    pthread_cond_destroy(&c->moved);
    pthread_cond_destroy(&c->work_there);
    pthread_mutex_destroy(&c->lock);
    mem_free(c);
}

static void cuda_programs(struct device *d, struct device_programs *out) { programs_look(cuda_of(d)->programs, out); }

static const struct device_ops cuda_ops = {
    .kind = "cuda", .close = cuda_close,
    .mem_new = cuda_mem_new, .shared_new = cuda_shared_new, .mem_free = cuda_mem_free,
    .pin_new = cuda_pin_new, .pin_free = cuda_pin_free,
    .queue_new = cuda_queue_new, .queue_free = cuda_queue_free,
    .record = cuda_record, .await = cuda_await, .passed = cuda_passed, .wait = cuda_wait,
    .upload = cuda_upload, .download = cuda_download, .copy = cuda_copy, .zero = cuda_zero,
    .widen = cuda_widen, .add = cuda_add, .step = cuda_step, .stats = cuda_stats, .queue_call = cuda_queue_call,
    .programs = cuda_programs,
    .keep_memory = cuda_keep_memory, .trim = cuda_trim, .cached = cuda_cached,
};

static enum status not_usable(cudaError_t r, const char *what, struct error *e)
{
    const char *cure = r == cudaErrorInsufficientDriver ? " (no NVIDIA driver, or one older than the 580 series)" : "";
    char why[160];

    cuda_sentence(why, sizeof why, r, what);
    return error_set(e, r == cudaErrorMemoryAllocation ? REASON_NO_MEMORY : REASON_SYSTEM, "%s%s", why, cure);
}

/* Without a driver this ends after a fraction of a millisecond. */
static enum status find_card(const struct card *wanted, struct error *e)
{
    int count = 0;
    cudaError_t r = cudaGetDeviceCount(&count);

    if (r != cudaSuccess) return not_usable(r, "looking for cards", e);
    if (wanted->number < (unsigned)count) return STATUS_OK;
    return error_set(e, REASON_SYSTEM, "there is no cuda:%u; CUDA sees %d card%s", wanted->number, count, count == 1 ? "" : "s");
}

static enum status learn_card(struct cuda *c, uint64_t memory_max, struct error *e)
{
    struct cudaDeviceProp properties;
    size_t left = 0, all = 0;
    cudaError_t r = cudaSetDevice(c->card);

    if (r == cudaSuccess) r = cudaGetDeviceProperties(&properties, c->card);
    if (r == cudaSuccess) r = cudaMemGetInfo(&left, &all);
    if (r != cudaSuccess) return not_usable(r, "opening the card", e);
    c->processors = properties.multiProcessorCount > 0 ? (unsigned)properties.multiProcessorCount : 1;
    c->capability = 10 * (unsigned)properties.major + (unsigned)properties.minor;
    snprintf(c->device.name, sizeof c->device.name, "cuda:%d", c->card);
    snprintf(c->device.card, sizeof c->device.card, "%.95s", properties.name);
    cuda_uuid_text(&properties, c->device.uuid);
    c->device.capacity = memory_max > 0 && memory_max < left ? memory_max : left;
    return STATUS_OK;
}

static void free_places(struct places *p, unsigned count)
{
    for (unsigned i = 0; i < count; i++) p->free[i] = (uint16_t)i;
    p->count = count;
}

/* Taken at once, as the thread may not run out of it later. */
static enum status take_ring(struct cuda *c, struct error *e)
{
    void *at = NULL;
    cudaError_t r = cudaSuccess;

    for (unsigned i = 0; i < RING_SLOTS && r == cudaSuccess; i++) {
        enum status s = pool_take(c->pins, c->slot_size, &c->ring[i].at, e);
        if (s != STATUS_OK) return s;
        r = cudaEventCreateWithFlags(&c->ring[i].event, cudaEventDisableTiming);
    }
    if (r != cudaSuccess) return not_usable(r, "making an event", e);
    enum status s = pool_take(c->pins, FLAGS_MAX * sizeof *c->flags, &at, e);
    if (s != STATUS_OK) return s;
    c->flags = at;
    memset(c->flags, 0, FLAGS_MAX * sizeof *c->flags);
    s = pool_take(c->pins, STATS_AT_ONCE * sizeof *c->stats, &at, e);
    if (s != STATUS_OK) return s;
    c->stats = at;
    free_places(&c->free_flags, FLAGS_MAX);
    free_places(&c->free_stats, STATS_AT_ONCE);
    return STATUS_OK;
}

static enum status start_thread(struct cuda *c, struct error *e)
{
    sigset_t all, before;

    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int r = pthread_create(&c->thread, NULL, cuda_thread, c);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (r != 0) return error_set(e, REASON_SYSTEM, "no thread for the GPU: %s", strerror(r));
    c->started = true;
    pthread_setname_np(c->thread, "paramd-cuda");
    return STATUS_OK;
}

static enum status take_pins_at_start(void *ctx, size_t size, void **out, struct error *e)
{
    struct cuda *c = ctx;

    if (c->started) return take_pins(ctx, size, out, e);
    cudaError_t r = cudaHostAlloc(out, size, cudaHostAllocPortable);
    return r == cudaSuccess ? STATUS_OK : not_usable(r, "taking pinned memory", e);
}

static enum status cuda_open(const struct card *card, struct device **out, struct error *e)
{
    enum status s = find_card(card, e);
    pthread_condattr_t clock;

    if (s != STATUS_OK) return s;
    struct cuda *c = mem_zero(sizeof *c);
    if (c == NULL) return error_set(e, REASON_NO_MEMORY, "no memory for the cuda device");
    c->device.ops = &cuda_ops;
    c->card = (int)card->number;
    c->slot_size = card->slot_size > 0 ? card->slot_size : SLOT_SIZE;
    c->gather_max = card->gather_max > 0 ? card->gather_max : SMALL_ELEMENTS;
    list_init(&c->queues);
    pthread_condattr_init(&clock);
    pthread_condattr_setclock(&clock, CLOCK_MONOTONIC);
    pthread_mutex_init(&c->lock, NULL);
    pthread_cond_init(&c->work_there, &clock);
    pthread_cond_init(&c->moved, NULL);
    pthread_condattr_destroy(&clock);
    c->memory = pool_new(&(struct pool_source){
        .ctx = c, .take = take_memory, .give = give_memory, .what = "memory of the GPU",
        .chunk_size = card->chunk_size > 0 ? card->chunk_size : CHUNK_SIZE, .limit = card->memory_max});
    c->pins = pool_new(&(struct pool_source){.ctx = c, .take = take_pins_at_start, .give = give_pins,
                                              .what = "pinned memory",
                                              .chunk_size = card->chunk_size > 0 ? card->chunk_size : PIN_CHUNK_SIZE});
    if (c->memory == NULL || c->pins == NULL) s = error_set(e, REASON_NO_MEMORY, "no memory for the cuda device");
    if (s == STATUS_OK) s = learn_card(c, card->memory_max, e);
    if (s == STATUS_OK && (c->programs = programs_new(c->card, c->capability)) == NULL)
        s = error_set(e, REASON_NO_MEMORY, "no memory for the cuda device");
    if (s == STATUS_OK) s = take_ring(c, e);
    if (s == STATUS_OK) s = start_thread(c, e);
    if (s != STATUS_OK) {
        cuda_close(&c->device);
        return s;
    }
    *out = &c->device;
    return STATUS_OK;
}

__attribute__((visibility("default"))) extern const struct device_plugin paramd_device_plugin;
const struct device_plugin paramd_device_plugin = {
    .abi = DEVICE_PLUGIN_ABI, .open = cuda_open, .trainer = &cuda_trainer, .mem_live = mem_live,
    .mem_fault_at = mem_fault_at, .mem_fault_hit = mem_fault_hit,
};
