/* What a trainer's process does with addresses of CUDA's. Nothing here knows of a device of ours. */
#include "gpu/cuda_internal.h"
#include "gpu/trainer.h"
#include "service/base/mem.h"

#include <stdio.h>
#include <string.h>

enum { GPUS_MAX = 64 };

struct copier {
    cudaStream_t streams[GPUS_MAX];  /* NULL: not needed yet */
};

void cuda_uuid_text(const struct cudaDeviceProp *p, char out[UUID_TEXT_SIZE])
{
    size_t at = (size_t)snprintf(out, UUID_TEXT_SIZE, "GPU-");

    for (unsigned i = 0; i < sizeof p->uuid.bytes; i++) {
        const char *dash = i == 4 || i == 6 || i == 8 || i == 10 ? "-" : "";
        at += (size_t)snprintf(out + at, UUID_TEXT_SIZE - at, "%s%02x", dash, (unsigned char)p->uuid.bytes[i]);
    }
}

static enum status refused(cudaError_t r, const char *what, struct error *e)
{
    char why[160];

    if (r == cudaSuccess) return STATUS_OK;
    (void)cudaGetLastError();        /* the caller's own checks must not find it */
    cuda_sentence(why, sizeof why, r, what);
    return error_set(e, r == cudaErrorMemoryAllocation ? REASON_NO_MEMORY : REASON_SYSTEM, "%s", why);
}

/* The thread is the caller's, and so is its current GPU. One that is current already is not set: on a GPU that is not
 * in use yet that would begin to use it. */
static cudaError_t enter(int gpu, int *before)
{
    cudaError_t r = cudaGetDevice(before);
    return r == cudaSuccess && *before != gpu ? cudaSetDevice(gpu) : r;
}

/* A caller who finds himself on another GPU would take its memory for the other's, so this is tried twice. Where it fails
 * again the context is gone, and every call of his says so. */
static void leave(int gpu, int before)
{
    if (before == gpu || cudaSetDevice(before) == cudaSuccess) return;
    (void)cudaGetLastError();
    (void)cudaSetDevice(before);
}

/* ---- copies ------------------------------------------------------------------------------------------------------ */

static enum status copier_new(struct copier **out, struct error *e)
{
    *out = mem_zero(sizeof **out);
    return *out != NULL ? STATUS_OK : error_set(e, REASON_NO_MEMORY, "no memory for copies of a GPU");
}

/* A wait that fails has not waited, and what the copies read and write must not be given back under them: so it is done
 * once more. Where that fails as well the context is gone, and nothing runs. */
static cudaError_t wait_all(struct copier *c)
{
    cudaError_t first = cudaSuccess;

    for (int i = 0; i < GPUS_MAX; i++) {
        if (c->streams[i] == NULL) continue;
        cudaError_t r = cudaStreamSynchronize(c->streams[i]);
        if (r != cudaSuccess) (void)cudaStreamSynchronize(c->streams[i]);
        if (first == cudaSuccess) first = r;
    }
    return first;
}

static void copier_free(struct copier *c)
{
    if (c == NULL) return;
    bool failed = wait_all(c) != cudaSuccess;
    for (int i = 0; i < GPUS_MAX; i++)
        if (c->streams[i] != NULL) failed |= cudaStreamDestroy(c->streams[i]) != cudaSuccess;
    if (failed) (void)cudaGetLastError();
    mem_free(c);
}

static bool is_there(const struct cudaPointerAttributes *a)
{
    return a->type == cudaMemoryTypeDevice || a->type == cudaMemoryTypeManaged;
}

/* The GPU on which all of these bytes lie; -1: they do not. */
static enum status gpu_of(const void *at, size_t size, int *gpu, struct error *e)
{
    struct cudaPointerAttributes first, last;
    cudaError_t r = cudaPointerGetAttributes(&first, at);

    if (r == cudaSuccess) r = cudaPointerGetAttributes(&last, (const char *)at + size - 1);
    if (r != cudaSuccess) return refused(r, "asking where an address lies", e);
    *gpu = is_there(&first) && is_there(&last) && first.device == last.device ? first.device : -1;
    return STATUS_OK;
}

static enum status on_gpu(const void *at, size_t size, bool *there, struct error *e)
{
    int gpu;
    enum status s = gpu_of(at, size, &gpu, e);

    if (s == STATUS_OK) *there = gpu >= 0;
    return s;
}

static cudaError_t queue_copy(struct copier *c, int gpu, void *to, const void *from, size_t size)
{
    int before;
    cudaError_t r = enter(gpu, &before);

    if (r != cudaSuccess) return r;
    if (c->streams[gpu] == NULL) r = cudaStreamCreate(&c->streams[gpu]);
    if (r == cudaSuccess) r = cudaMemcpyAsync(to, from, size, cudaMemcpyDefault, c->streams[gpu]);
    leave(gpu, before);
    return r;
}

static enum status copy(struct copier *c, void *to, const void *from, size_t size, struct error *e)
{
    int gpu = -1;

    if (size == 0) return STATUS_OK;
    enum status s = gpu_of(from, size, &gpu, e);
    if (s == STATUS_OK && gpu < 0) s = gpu_of(to, size, &gpu, e);
    if (s == STATUS_OK && (gpu < 0 || gpu >= GPUS_MAX))
        s = error_set(e, REASON_BAD_ARGUMENT, "neither end of a copy lies on a GPU");
    if (s == STATUS_OK) s = refused(queue_copy(c, gpu, to, from, size), "copying a value", e);
    if (s != STATUS_OK && wait_all(c) != cudaSuccess) (void)cudaGetLastError();
    return s;
}

static enum status settle_copies(struct copier *c, struct error *e)
{
    return refused(wait_all(c), "waiting for a copy", e);
}

/* ---- memory of the daemon's -------------------------------------------------------------------------------------- */

/* What CUDA calls the GPU here is not what the daemon calls it. */
static enum status find_gpu(const char *uuid, int *out, struct error *e)
{
    struct cudaDeviceProp p;
    char text[UUID_TEXT_SIZE];
    int count = 0;
    enum status s = refused(cudaGetDeviceCount(&count), "looking for GPUs", e);

    for (int i = 0; i < count && s == STATUS_OK; i++) {
        s = refused(cudaGetDeviceProperties(&p, i), "looking at a GPU", e);
        cuda_uuid_text(&p, text);
        *out = i;
        if (s == STATUS_OK && strcmp(text, uuid) == 0) return STATUS_OK;
    }
    if (s != STATUS_OK) return s;
    return error_set(e, REASON_UNIMPLEMENTED, "this process does not see %s, which has the daemon's mailbox: "
                     "CUDA_VISIBLE_DEVICES leaves it out", uuid);
}

static enum status open_memory(const char *uuid, const struct mem_handle *handle, void **out, struct error *e)
{
    cudaIpcMemHandle_t h;
    int gpu, before;
    enum status s = find_gpu(uuid, &gpu, e);

    if (s == STATUS_OK) s = refused(enter(gpu, &before), "choosing a GPU", e);
    if (s != STATUS_OK) return s;
    memcpy(&h, handle->at, sizeof h);
    s = refused(cudaIpcOpenMemHandle(out, h, cudaIpcMemLazyEnablePeerAccess), "opening the daemon's mailbox", e);
    leave(gpu, before);
    return s;
}

static void close_memory(void *at)
{
    if (at != NULL && cudaIpcCloseMemHandle(at) != cudaSuccess) (void)cudaGetLastError();
}

const struct trainer_ops cuda_trainer = {
    .copier_new = copier_new, .copier_free = copier_free, .on_gpu = on_gpu, .copy = copy, .settle = settle_copies,
    .open = open_memory, .close = close_memory,
};
