/* cusim: test-only stand-in for the CUDA runtime. Control interface.
 * The functions of cuda_runtime_api.h that the back end uses are defined in cusim.c against the
 * real header; kernels are compiled as C++ with cusim_device.h forced in. Streams are queues that
 * run only when the host waits (or at random), so a missing wait shows. */
#ifndef TESTS_CUSIM_CUSIM_H
#define TESTS_CUSIM_CUSIM_H
#include <stddef.h>
#include <stdint.h>

/* The control functions are found by name in a plug-in made of the stand-in. */
#define CUSIM_API __attribute__((visibility("default")))
#ifdef __cplusplus
extern "C" {
#endif
enum cusim_policy {
    CUSIM_LAZY,    /* run an operation only when something waits for it */
    CUSIM_RANDOM,  /* run a random ready operation now and then */
    CUSIM_EAGER    /* run everything at once: the order a debugger would see */
};
CUSIM_API void cusim_reset(int devices, size_t mem_per_device, enum cusim_policy policy, uint64_t seed);
/* Let the nth call (1 = the next) of the named function fail with this error. */
CUSIM_API void cusim_fail(const char *api, int nth, int error);
/* Let the nth kernel from now fail as an illegal access would: sticky, seen at the next wait. */
CUSIM_API void cusim_fault_kernel(int nth);
/* Device memory allocated from now on can be handed to another process (cudaIpcGetMemHandle). */
CUSIM_API void cusim_share_memory(int on);
struct cusim_stats {
    uint64_t launches, h2d, d2h, d2d, pageable_copies, allocs, frees, syncs, default_stream_uses, live_bytes, live_pinned, live_streams, live_events, ops_run;
};
CUSIM_API void cusim_get_stats(struct cusim_stats *s);
CUSIM_API int cusim_pending(void);   /* operations queued and not run */

typedef void (*cusim_thunk)(void **args);
enum { CUSIM_PLAIN = 0, CUSIM_BARRIER = 1 };
CUSIM_API void cusim_register(const void *fn, const char *name, cusim_thunk thunk, size_t argsize, int flags);

/* device side */
struct cusim_dim { unsigned x, y, z; };
CUSIM_API extern struct cusim_dim cusim_tid, cusim_bid, cusim_bdim, cusim_gdim;
CUSIM_API void cusim_barrier(const void *site);
CUSIM_API uint64_t cusim_exchange(unsigned mask, uint64_t v, int src, int *valid);   /* warp shuffle; src is a lane */
CUSIM_API unsigned cusim_ballot(unsigned mask, int pred);
CUSIM_API void cusim_syncwarp(unsigned mask);
/* used by the NCCL stand-in: a host action queued on a stream, ready when ready() says so */
struct CUstream_st;
CUSIM_API void cusim_enqueue(struct CUstream_st *s, int (*ready)(void *), void (*run)(void *), void *arg);
CUSIM_API int cusim_stream_device(struct CUstream_st *s);
#ifdef __cplusplus
}
#endif
#endif
