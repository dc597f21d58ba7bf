/* Memory of the stand-in: device, page-locked and registered blocks, and device memory that processes share. */
#include "tests/cusim/sim.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

/* Fresh memory is full of NaN, in every type. Behind a block lies a guard, except where the address sanitizer has
 * one. */
enum { ALIGN = 256, FRESH = 0xff, GUARD = 0xfb, GUARD_SIZE = 256, GRANULE = 8 };

static int open_device = NO_DEVICE;

/* ---- who may touch what ---------------------------------------------------------------------------------------- */

bool memory_reaches(int device, const struct block *b)
{
    if (b->kind != BLOCK_DEVICE || device == ALL_DEVICES) return true;
    return device != NO_DEVICE && (b->device == device || (sim.peers[device] >> b->device & 1) != 0);
}

void memory_open(int device)
{
    if (device == open_device) return;
    for (const struct block *b = memory_watched() ? sim.blocks : NULL; b != NULL; b = b->next) {
        bool before = memory_reaches(open_device, b), after = memory_reaches(device, b);
        if (before && !after) memory_forbid(b->at, b->size);
        if (!before && after) memory_allow(b->at, b->size);
    }
    open_device = device;
}

/* The sanitizer knows whole granules: what is lent begins and ends with them. */
static void lend(const void *at, size_t size, void (*change)(void *, size_t))
{
    struct block *b = memory_watched() ? block_find(at, size) : NULL;
    char *begin = (char *)((uintptr_t)at & ~(uintptr_t)(GRANULE - 1));
    char *end = (char *)(((uintptr_t)at + size + GRANULE - 1) & ~(uintptr_t)(GRANULE - 1));

    if (b == NULL || memory_reaches(open_device, b)) return;
    if (end > b->at + b->size) end = b->at + b->size;
    change(begin, (size_t)(end - begin));
}

void memory_copy(void *to, const void *from, size_t size)
{
    lend(to, size, memory_allow);
    lend(from, size, memory_allow);
    memmove(to, from, size);
    lend(to, size, memory_forbid);
    lend(from, size, memory_forbid);
}

void memory_set(void *to, int value, size_t size)
{
    lend(to, size, memory_allow);
    memset(to, value, size);
    lend(to, size, memory_forbid);
}

/* ---- blocks ---------------------------------------------------------------------------------------------------- */

struct block *block_find(const void *at, size_t size)
{
    for (struct block *b = sim.blocks; b != NULL; b = b->next)
        if ((const char *)at >= b->at && (const char *)at < b->at + b->size &&
            size <= (size_t)(b->at + b->size - (const char *)at))
            return b;
    return NULL;
}

static struct block *block_at(const void *at)
{
    struct block *b = block_find(at, 1);
    return b != NULL && b->at == at ? b : NULL;
}

static struct block *block_add(void *at, size_t size, enum block_kind kind, int file)
{
    struct block *b = sim_new(sizeof *b);

    *b = (struct block){sim.blocks, at, size, kind, *sim_current_device(), file, 0};
    sim.blocks = b;
    if (kind == BLOCK_DEVICE) {
        sim.used[b->device] += size;
        sim.stats.live_bytes += size;
    } else {
        sim.stats.live_pinned += size;
    }
    return b;
}

static void *shared_map(size_t size, int file)
{
    void *at = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    return at != MAP_FAILED ? at : NULL;
}

static cudaError_t shared_new(size_t size, void **at, int *file)
{
    *file = memfd_create("cusim", MFD_CLOEXEC);
    if (*file < 0) return cudaErrorMemoryAllocation;
    if (ftruncate(*file, (off_t)size) == 0) *at = shared_map(size, *file);
    if (*at != NULL) return cudaSuccess;
    close(*file);
    return cudaErrorMemoryAllocation;
}

static cudaError_t block_new(void **at, size_t size, enum block_kind kind)
{
    size_t guard = memory_watched() ? 0 : GUARD_SIZE;
    int device = *sim_current_device(), file = -1;
    void *p = NULL;

    *at = NULL;
    if (size == 0) return cudaSuccess;
    if (kind == BLOCK_DEVICE && (size > sim.memory || sim.used[device] > sim.memory - size))
        return cudaErrorMemoryAllocation;
    if (kind == BLOCK_DEVICE && sim.share) {
        guard = 0;
        if (shared_new(size, &p, &file) != cudaSuccess) return cudaErrorMemoryAllocation;
    } else if (posix_memalign(&p, ALIGN, size + guard) != 0) {
        return cudaErrorMemoryAllocation;
    }
    struct block *b = block_add(p, size, kind, file);
    b->guard = guard;
    memset(b->at, FRESH, size);
    memset(b->at + size, GUARD, guard);
    if (!memory_reaches(open_device, b)) memory_forbid(b->at, size);
    sim.stats.allocs++;
    *at = p;
    return cudaSuccess;
}

static void guard_check(const struct block *b)
{
    for (size_t i = 0; i < b->guard; i++)
        if ((unsigned char)b->at[b->size + i] != GUARD) {
            sim_say("byte %zu behind a block of %zu bytes was written", i, b->size);
            sim.stats.mistakes++;
            return;
        }
}

void block_free(struct block *b)
{
    struct block **at = &sim.blocks;

    while (*at != b) at = &(*at)->next;
    *at = b->next;
    if (b->kind == BLOCK_DEVICE) {
        sim.used[b->device] -= b->size;
        sim.stats.live_bytes -= b->size;
        memory_allow(b->at, b->size);
    } else {
        sim.stats.live_pinned -= b->size;
    }
    guard_check(b);
    if (b->file >= 0) {
        munmap(b->at, b->size);
        close(b->file);
    } else if (b->kind != BLOCK_REGISTERED) {
        free(b->at);
    }
    free(b);
}

void memory_reset(void)
{
    memory_open(NO_DEVICE);
    while (sim.blocks != NULL) block_free(sim.blocks);
}

/* As the real one, it waits for all work first, of its device if it is a device's; when that is lost, the memory goes all
 * the same. */
static cudaError_t release(void *at, enum block_kind kind)
{
    struct block *b = block_at(at);
    cudaError_t e;

    if (at == NULL) return cudaSuccess;
    e = queue_wait_all(b != NULL && b->kind == BLOCK_DEVICE ? b->device : ALL_DEVICES);
    if (e == cudaErrorContextIsDestroyed) return e;      /* and the block with it */
    b = block_at(at);
    if (b == NULL || b->kind != kind) {
        sim_say("%p is freed, which is no such block", at);
        sim.stats.mistakes++;
        return cudaErrorInvalidValue;
    }
    sim.stats.frees++;
    block_free(b);
    return e;
}

/* ---- calls ----------------------------------------------------------------------------------------------------- */

cudaError_t cudaMalloc(void **at, size_t size)
{
    cudaError_t e = sim_enter(__func__);
    if (e == cudaSuccess) e = block_new(at, size, BLOCK_DEVICE);
    return sim_leave(e);
}

cudaError_t cudaMallocAsync(void **at, size_t size, cudaStream_t s)
{
    cudaError_t e = sim_enter(__func__);
    if (e == cudaSuccess && stream_of(s) == NULL) e = cudaErrorInvalidResourceHandle;
    if (e == cudaSuccess) e = block_new(at, size, BLOCK_DEVICE);
    return sim_leave(e);
}

cudaError_t cudaHostAlloc(void **at, size_t size, unsigned flags)
{
    cudaError_t e = sim_enter(__func__);
    (void)flags;
    if (e == cudaSuccess) e = block_new(at, size, BLOCK_PINNED);
    return sim_leave(e);
}

cudaError_t cudaMallocHost(void **at, size_t size)
{
    cudaError_t e = sim_enter(__func__);
    if (e == cudaSuccess) e = block_new(at, size, BLOCK_PINNED);
    return sim_leave(e);
}

/* What is lost can still be freed, so that a program that ends after a fault is seen to leave nothing behind. */
static cudaError_t free_call(const char *name, void *at, enum block_kind kind)
{
    cudaError_t e = sim_enter(name);
    if (e == cudaSuccess || (e == sim.sticky && !sim.in_host_function)) e = release(at, kind);
    return sim_leave(e);
}

cudaError_t cudaFree(void *at) { return free_call(__func__, at, BLOCK_DEVICE); }
cudaError_t cudaFreeHost(void *at) { return free_call(__func__, at, BLOCK_PINNED); }
cudaError_t cudaHostUnregister(void *at) { return free_call(__func__, at, BLOCK_REGISTERED); }
cudaError_t cudaIpcCloseMemHandle(void *at) { return free_call(__func__, at, BLOCK_DEVICE); }

cudaError_t cudaFreeAsync(void *at, cudaStream_t s)
{
    cudaError_t e = sim_enter(__func__);
    struct CUstream_st *stream = e == cudaSuccess ? stream_of(s) : NULL;

    if (e == cudaSuccess && (stream == NULL || block_at(at) == NULL)) e = cudaErrorInvalidValue;
    if (e == cudaSuccess) {
        struct op *o = op_new(OP_FREE);
        o->to = at;
        sim.stats.frees++;
        queue_push(stream, o);
    }
    return sim_leave(e);
}

cudaError_t cudaHostRegister(void *at, size_t size, unsigned flags)
{
    cudaError_t e = sim_enter(__func__);
    (void)flags;
    if (e == cudaSuccess && (at == NULL || size == 0)) e = cudaErrorInvalidValue;
    if (e == cudaSuccess && block_find(at, 1) != NULL) e = cudaErrorHostMemoryAlreadyRegistered;
    if (e == cudaSuccess) block_add(at, size, BLOCK_REGISTERED, -1);
    return sim_leave(e);
}

cudaError_t cudaHostGetDevicePointer(void **on_device, void *on_host, unsigned flags)
{
    cudaError_t e = sim_enter(__func__);
    struct block *b = e == cudaSuccess ? block_find(on_host, 1) : NULL;

    (void)flags;
    if (e == cudaSuccess && (b == NULL || b->kind == BLOCK_DEVICE)) e = cudaErrorInvalidValue;
    if (e == cudaSuccess) *on_device = on_host;
    return sim_leave(e);
}

cudaError_t cudaPointerGetAttributes(struct cudaPointerAttributes *out, const void *at)
{
    cudaError_t e = sim_enter(__func__);

    if (e == cudaSuccess) {
        struct block *b = block_find(at, 1);
        memset(out, 0, sizeof *out);
        out->type = b == NULL                 ? cudaMemoryTypeUnregistered
                    : b->kind == BLOCK_DEVICE ? cudaMemoryTypeDevice
                                              : cudaMemoryTypeHost;
        out->device = b != NULL ? b->device : -2;
        out->devicePointer = b != NULL ? (void *)(uintptr_t)at : NULL;
        out->hostPointer = b == NULL || b->kind == BLOCK_DEVICE ? NULL : (void *)(uintptr_t)at;
    }
    return sim_leave(e);
}

cudaError_t cudaMemGetInfo(size_t *free_size, size_t *size)
{
    cudaError_t e = sim_enter(__func__);
    if (e == cudaSuccess) {
        *size = sim.memory;
        *free_size = sim.memory - sim.used[*sim_current_device()];
    }
    return sim_leave(e);
}

/* ---- memory of another process --------------------------------------------------------------------------------- */

/* What a handle holds. The other side opens the file through /proc, so nothing stays behind when processes die. */
struct shared {
    long process;
    int file;
    size_t size;
};
_Static_assert(sizeof(struct shared) <= sizeof(cudaIpcMemHandle_t), "a handle has room");

cudaError_t cudaIpcGetMemHandle(cudaIpcMemHandle_t *handle, void *at)
{
    cudaError_t e = sim_enter(__func__);
    struct block *b = e == cudaSuccess ? block_find(at, 1) : NULL;

    if (e == cudaSuccess && (b == NULL || b->file < 0)) e = cudaErrorInvalidValue;
    if (e == cudaSuccess) {
        struct shared h = {getpid(), b->file, b->size};
        memset(handle, 0, sizeof *handle);
        memcpy(handle, &h, sizeof h);
    }
    return sim_leave(e);
}

static cudaError_t shared_open(const cudaIpcMemHandle_t *handle, void **at)
{
    struct shared h;
    struct stat st;
    char path[64];

    memcpy(&h, handle, sizeof h);
    if (h.process == getpid()) return cudaErrorDeviceUninitialized; /* as the real one */
    snprintf(path, sizeof path, "/proc/%ld/fd/%d", h.process, h.file);
    int file = open(path, O_RDWR | O_CLOEXEC);
    bool is_whole =
        file >= 0 && fstat(file, &st) == 0 && S_ISREG(st.st_mode) && h.size > 0 && (size_t)st.st_size == h.size;
    *at = is_whole ? shared_map(h.size, file) : NULL;
    if (*at == NULL) {
        if (file >= 0) close(file);
        return cudaErrorMapBufferObjectFailed;
    }
    memory_forbid(block_add(*at, h.size, BLOCK_DEVICE, file)->at, h.size);
    return cudaSuccess;
}

cudaError_t cudaIpcOpenMemHandle(void **at, cudaIpcMemHandle_t handle, unsigned flags)
{
    cudaError_t e = sim_enter(__func__);
    (void)flags;
    if (e == cudaSuccess) e = shared_open(&handle, at);
    return sim_leave(e);
}
