#include "tests/cusim/sample/backend.h"

#include "tests/cusim/sample/kernels.h"

#include <cuda_runtime_api.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum { SLOTS = 3, STAGES = 2, SLOT_SIZE = 8192 };

struct slot {
    void *at;
    cudaEvent_t is_free;
};

struct stage {
    void *at;
    cudaEvent_t is_filled, is_read;
};

struct pull {
    struct pull *next;
    float *at;
    size_t count;
    cudaEvent_t has_come;
    backend_done done;
    void *ctx;
};

struct backend {
    int device;
    enum fault fault;
    cudaStream_t up, add[2], down;
    struct slot slots[SLOTS];
    struct stage stages[STAGES];
    unsigned slot, stage;
    bool slot_gone;
    cudaEvent_t is_updated;
    struct pull *first, **last;
};

struct backend_key {
    size_t count;
    float *value[2], *mean, *var, *sum;      /* value[1] is NULL without a spare */
    unsigned current;
    bool has_sum;
    cudaEvent_t is_added, is_read[2];
};

#define TRY(call)                                          \
    do {                                                   \
        cudaError_t e_ = (call);                           \
        if (e_ != cudaSuccess) return (int)e_;             \
    } while (0)

static bool has(const struct backend *b, enum fault f) { return b->fault == f; }
static cudaError_t event_new(cudaEvent_t *e) { return cudaEventCreateWithFlags(e, cudaEventDisableTiming); }
static cudaError_t stream_new(cudaStream_t *s) { return cudaStreamCreateWithFlags(s, cudaStreamNonBlocking); }

/* ---- open and close -------------------------------------------------------------------------------------------- */

static int fill(struct backend *b)
{
    TRY(cudaSetDevice(b->device));
    TRY(stream_new(&b->up));
    TRY(stream_new(&b->add[0]));
    TRY(stream_new(&b->add[1]));
    TRY(stream_new(&b->down));
    TRY(event_new(&b->is_updated));
    for (int i = 0; i < SLOTS; i++) {
        TRY(cudaHostAlloc(&b->slots[i].at, SLOT_SIZE, cudaHostAllocDefault));
        TRY(event_new(&b->slots[i].is_free));
    }
    for (int i = 0; i < STAGES; i++) {
        TRY(cudaMalloc(&b->stages[i].at, SLOT_SIZE));
        TRY(event_new(&b->stages[i].is_filled));
        TRY(event_new(&b->stages[i].is_read));
    }
    return 0;
}

int backend_open(int device, enum fault fault, struct backend **out)
{
    struct backend *b = calloc(1, sizeof *b);

    if (b == NULL) return (int)cudaErrorMemoryAllocation;
    b->device = device;
    b->fault = fault;
    b->last = &b->first;
    int e = fill(b);
    if (e != 0) backend_close(b);
    else *out = b;
    return e;
}

static void event_free(cudaEvent_t e)
{
    if (e != NULL) (void)cudaEventDestroy(e);
}

static void stream_free(cudaStream_t s)
{
    if (s != NULL) (void)cudaStreamDestroy(s);
}

static void pull_free(struct pull *p)
{
    (void)cudaFreeHost(p->at);
    event_free(p->has_come);
    free(p);
}

void backend_close(struct backend *b)
{
    (void)cudaDeviceSynchronize();
    while (b->first != NULL) {
        struct pull *p = b->first;
        b->first = p->next;
        pull_free(p);
    }
    for (int i = b->slot_gone; i < SLOTS; i++) (void)cudaFreeHost(b->slots[i].at);
    for (int i = 0; i < SLOTS; i++) event_free(b->slots[i].is_free);
    for (int i = 0; i < STAGES; i++) {
        (void)cudaFree(b->stages[i].at);
        event_free(b->stages[i].is_filled);
        event_free(b->stages[i].is_read);
    }
    event_free(b->is_updated);
    stream_free(b->up);
    stream_free(b->add[0]);
    stream_free(b->add[1]);
    stream_free(b->down);
    free(b);
}

/* ---- keys ------------------------------------------------------------------------------------------------------ */

static int key_fill(struct backend *b, struct backend_key *k, const float *value, bool has_spare)
{
    size_t size = k->count * sizeof(float);

    if (has(b, FAULT_wrong_device_memory)) TRY(cudaSetDevice(0));
    TRY(cudaMalloc((void **)&k->value[0], size));
    if (has_spare) TRY(cudaMalloc((void **)&k->value[1], size));
    TRY(cudaMalloc((void **)&k->mean, size));
    TRY(cudaMalloc((void **)&k->var, size));
    TRY(cudaMalloc((void **)&k->sum, size));
    TRY(cudaSetDevice(b->device));
    TRY(event_new(&k->is_added));
    TRY(event_new(&k->is_read[0]));
    TRY(event_new(&k->is_read[1]));
    TRY(cudaMemcpyAsync(k->value[0], value, size, cudaMemcpyHostToDevice, b->add[0]));
    if (has(b, FAULT_state_not_zeroed)) return 0;
    TRY(cudaMemsetAsync(k->mean, 0, size, b->add[0]));
    TRY(cudaMemsetAsync(k->var, 0, size, b->add[0]));
    return 0;
}

int backend_key_new(struct backend *b, const float *value, size_t count, bool has_spare, struct backend_key **out)
{
    struct backend_key *k = calloc(1, sizeof *k);

    if (k == NULL) return (int)cudaErrorMemoryAllocation;
    k->count = count;
    int e = key_fill(b, k, value, has_spare);
    if (e != 0) backend_key_free(b, k);
    else *out = k;
    return e;
}

static void array_free(float *at, cudaStream_t s)
{
    if (at != NULL && cudaFreeAsync(at, s) != cudaSuccess) (void)cudaFree(at);
}

/* In stream order: the memory goes when all that was queued before has run. */
void backend_key_free(struct backend *b, struct backend_key *k)
{
    cudaStream_t s = has(b, FAULT_freed_on_wrong_stream) ? b->up : b->add[0];

    if (!has(b, FAULT_freed_on_wrong_stream)) {
        if (k->is_added != NULL) (void)cudaStreamWaitEvent(s, k->is_added, 0);
        for (int i = 0; i < 2; i++)
            if (k->is_read[i] != NULL) (void)cudaStreamWaitEvent(s, k->is_read[i], 0);
    }
    array_free(k->value[0], s);
    array_free(k->value[1], s);
    array_free(k->mean, s);
    array_free(k->var, s);
    array_free(k->sum, s);
    event_free(k->is_added);
    event_free(k->is_read[0]);
    event_free(k->is_read[1]);
    free(k);
}

/* ---- push ------------------------------------------------------------------------------------------------------ */

static int launch(enum sample_kernel k, unsigned blocks, void *argument, cudaStream_t s)
{
    void *args[] = {argument};
    TRY(cudaLaunchKernel(sample_kernel(k), (dim3){blocks, 1, 1}, (dim3){SAMPLE_THREADS, 1, 1}, args, 0, s));
    return 0;
}

static int upload(struct backend *b, const void *from, size_t size, struct stage *stage)
{
    struct slot *slot = &b->slots[b->slot];

    b->slot = (b->slot + 1) % SLOTS;
    if (!has(b, FAULT_slot_reused)) TRY(cudaEventSynchronize(slot->is_free));
    memcpy(slot->at, from, size);
    if (!has(b, FAULT_staging_reused)) TRY(cudaStreamWaitEvent(b->up, stage->is_read, 0));
    if (has(b, FAULT_event_before_work)) TRY(cudaEventRecord(stage->is_filled, b->up));
    TRY(cudaMemcpyAsync(stage->at, slot->at, size, cudaMemcpyHostToDevice, b->up));
    TRY(cudaEventRecord(slot->is_free, b->up));
    if (!has(b, FAULT_event_before_work)) TRY(cudaEventRecord(stage->is_filled, b->up));
    return 0;
}

static int add(struct backend *b, struct backend_key *k, size_t at, size_t count, struct stage *stage, bool is_bf16,
               float scale)
{
    cudaStream_t s = b->add[is_bf16];
    struct sample_add a = {count, k->sum + at, stage->at, scale, !k->has_sum};

    if (has(b, FAULT_kernel_too_far)) a.count += 4;
    if (!has(b, FAULT_add_does_not_wait)) TRY(cudaStreamWaitEvent(s, stage->is_filled, 0));
    if (!has(b, FAULT_queues_do_not_wait)) TRY(cudaStreamWaitEvent(s, k->is_added, 0));
    int e = launch(is_bf16 ? SAMPLE_ADD_BF16 : SAMPLE_ADD_F32, count < 1024 ? 1 : 3, &a, s);
    if (e != 0) return e;
    TRY(cudaEventRecord(stage->is_read, s));
    TRY(cudaEventRecord(k->is_added, s));
    return 0;
}

int backend_push(struct backend *b, struct backend_key *k, const void *gradient, bool is_bf16, float scale)
{
    size_t each = is_bf16 ? 2 : 4, most = SLOT_SIZE / each;

    TRY(cudaSetDevice(has(b, FAULT_wrong_device_launch) ? 0 : b->device));
    if (has(b, FAULT_slot_freed) && k->has_sum && !b->slot_gone)
        b->slot_gone = cudaFreeHost(b->slots[0].at) == cudaSuccess;
    for (size_t at = 0; at < k->count; at += most) {
        size_t count = k->count - at < most ? k->count - at : most;
        struct stage *stage = &b->stages[b->stage];
        b->stage = (b->stage + 1) % STAGES;
        int e = upload(b, (const char *)gradient + at * each, count * each, stage);
        if (e == 0) e = add(b, k, at, count, stage, is_bf16, scale);
        if (e != 0) return e;
    }
    k->has_sum = true;
    return 0;
}

/* ---- update ---------------------------------------------------------------------------------------------------- */

static int take_key(struct backend *b, struct backend_key *k, struct sample_adam *a)
{
    unsigned to = k->value[1] != NULL ? 1 - k->current : k->current;
    enum fault fault = k->value[1] != NULL ? FAULT_spare_reused : FAULT_update_overtakes_pull;

    TRY(cudaStreamWaitEvent(b->add[0], k->is_added, 0));
    if (!has(b, fault)) TRY(cudaStreamWaitEvent(b->add[0], k->is_read[to], 0));
    a->tensors[a->count] =
        (struct sample_tensor){k->value[k->current], k->value[to], k->mean, k->var, k->sum, k->count};
    a->first[a->count + 1] = a->first[a->count] + (uint32_t)((k->count + SAMPLE_CHUNK - 1) / SAMPLE_CHUNK);
    a->count++;
    k->current = to;
    k->has_sum = false;
    return 0;
}

int backend_update(struct backend *b, struct backend_key **keys, int count, float rate)
{
    struct sample_adam a = {
        .rate = rate, .beta1 = 0.9f, .rest1 = 0.1f, .beta2 = 0.99f, .rest2 = 0.01f, .epsilon = 1e-6f};
    int e = 0;

    TRY(cudaSetDevice(b->device));
    for (int i = 0; i < count && e == 0; i++)
        if (keys[i]->has_sum) e = take_key(b, keys[i], &a);
    if (e != 0 || a.count == 0) return e;
    e = launch(SAMPLE_ADAM, a.first[a.count], &a, b->add[0]);
    if (e != 0) return e;
    for (int i = 0; i < count; i++) TRY(cudaEventRecord(keys[i]->is_added, b->add[0]));
    TRY(cudaEventRecord(b->is_updated, b->add[0]));
    return 0;
}

/* ---- pull ------------------------------------------------------------------------------------------------------ */

static int download(struct backend *b, struct backend_key *k, struct pull *p)
{
    TRY(cudaHostAlloc((void **)&p->at, k->count * sizeof(float), cudaHostAllocDefault));
    TRY(event_new(&p->has_come));
    if (!has(b, FAULT_pull_does_not_wait)) TRY(cudaStreamWaitEvent(b->down, b->is_updated, 0));
    TRY(cudaMemcpyAsync(p->at, k->value[k->current], k->count * sizeof(float), cudaMemcpyDeviceToHost, b->down));
    TRY(cudaEventRecord(p->has_come, b->down));
    TRY(cudaEventRecord(k->is_read[k->current], b->down));
    return 0;
}

int backend_pull(struct backend *b, struct backend_key *k, backend_done done, void *ctx)
{
    struct pull *p = calloc(1, sizeof *p);

    if (p == NULL) return (int)cudaErrorMemoryAllocation;
    p->count = k->count;
    p->done = done;
    p->ctx = ctx;
    int e = download(b, k, p);
    *b->last = p;
    b->last = &p->next;
    return e;
}

/* false: it has yet to come. */
static bool deliver(struct backend *b, struct pull *p, bool wait)
{
    cudaError_t e = cudaSuccess;

    if (!wait) e = cudaEventQuery(p->has_come);
    else if (!has(b, FAULT_pull_delivered_early)) e = cudaEventSynchronize(p->has_come);
    if (e == cudaErrorNotReady) return false;
    p->done(p->ctx, p->at, p->count, (int)e);
    return true;
}

/* Memory goes when all are delivered: to free it waits for everything. */
void backend_deliver(struct backend *b, bool wait)
{
    struct pull *first = b->first, *left = first;

    while (left != NULL && deliver(b, left, wait)) left = left->next;
    b->first = left;
    if (left == NULL) b->last = &b->first;
    while (first != left) {
        struct pull *p = first;
        first = p->next;
        pull_free(p);
    }
}
