#include "service/base/mem.h"

#include <malloc.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

static _Atomic uint64_t fault_countdown;
static _Atomic int fault_was_hit;
static _Atomic int64_t live, live_bytes;
static _Atomic int counts_bytes;

static int faulted(void)
{
    if (atomic_load_explicit(&fault_countdown, memory_order_relaxed) == 0) return 0;
    if (atomic_fetch_sub(&fault_countdown, 1) != 1) return 0;
    atomic_store(&fault_was_hit, 1);
    return 1;
}

/* way: 1 of a block that has come, -1 of one that goes. */
static void count_bytes(void *p, int way)
{
    if (!atomic_load_explicit(&counts_bytes, memory_order_relaxed)) return;
    atomic_fetch_add_explicit(&live_bytes, way * (int64_t)malloc_usable_size(p), memory_order_relaxed);
}

static void *counted(void *p)
{
    if (p == NULL) return NULL;
    atomic_fetch_add_explicit(&live, 1, memory_order_relaxed);
    count_bytes(p, 1);
    return p;
}

void *mem_new(size_t size) { return faulted() ? NULL : counted(malloc(size > 0 ? size : 1)); }
void *mem_zero(size_t size) { return faulted() ? NULL : counted(calloc(1, size > 0 ? size : 1)); }

void *mem_array(size_t count, size_t size)
{
    if (size != 0 && count > SIZE_MAX / size) return NULL;
    return mem_zero(count * size);
}

void *mem_resize(void *old, size_t size)
{
    if (old == NULL) return mem_new(size);
    if (faulted()) return NULL;
    count_bytes(old, -1);
    void *p = realloc(old, size > 0 ? size : 1);
    count_bytes(p != NULL ? p : old, 1);
    return p;
}

void *mem_aligned(size_t size)
{
    size_t align = size >= ((size_t)1 << 16) ? 4096 : 64;

    if (size > SIZE_MAX - align || faulted()) return NULL;
    size_t rounded = (size + align - 1) / align * align;
    return counted(aligned_alloc(align, rounded > 0 ? rounded : align));
}

char *mem_text(const char *from, size_t size)
{
    char *p = size < SIZE_MAX ? mem_new(size + 1) : NULL;

    if (p == NULL) return NULL;
    if (size > 0) memcpy(p, from, size);
    p[size] = '\0';
    return p;
}

void mem_free(void *p)
{
    if (p == NULL) return;
    atomic_fetch_sub_explicit(&live, 1, memory_order_relaxed);
    count_bytes(p, -1);
    free(p);
}

enum status mem_grow(void **array, size_t *capacity, size_t count, size_t size, struct error *e)
{
    if (count <= *capacity) return STATUS_OK;
    size_t want = *capacity > 0 ? *capacity : 8;
    while (want < count) {
        if (want > SIZE_MAX / 2) return error_set(e, REASON_NO_MEMORY, "%zu elements are too many", count);
        want *= 2;
    }
    void *p = want <= SIZE_MAX / size ? mem_resize(*array, want * size) : NULL;
    if (p == NULL) return error_set(e, REASON_NO_MEMORY, "no memory for %zu elements of %zu bytes", want, size);
    memset((char *)p + *capacity * size, 0, (want - *capacity) * size);
    *array = p;
    *capacity = want;
    return STATUS_OK;
}

void mem_fault_at(uint64_t n)
{
    atomic_store(&fault_was_hit, 0);
    atomic_store(&fault_countdown, n);
}

void mem_trim(void) { malloc_trim(0); }

uint64_t mem_heap(void)
{
    struct mallinfo2 m = mallinfo2();
    return m.uordblks + m.hblkhd;
}

int mem_fault_hit(void) { return atomic_load(&fault_was_hit); }
int64_t mem_live(void) { return atomic_load(&live); }
void mem_count_bytes(int on) { atomic_store(&counts_bytes, on); }
int64_t mem_live_bytes(void) { return atomic_load(&live_bytes); }
