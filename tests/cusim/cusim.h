/* cusim: a stand-in for the CUDA runtime, for tests on machines without a GPU.
 *
 * It defines the functions of the real cuda_runtime_api.h that the plug-in calls. Kernels are the plug-in's own .cu
 * files, compiled as C++ (cusim_device.h), or PTX made by NVRTC or nvcc, which ptxi.h interprets. A plug-in of the objects
 * that nvcc made runs the PTX of these (nvcc/nvcc.c).
 *
 * What it is for is to be as unkind as CUDA may be:
 *  - a stream is a queue that runs when somebody waits for it, or at random, never because it was filled; blocks of
 *    a kernel and threads of a block come in no order. A seed decides, so a failure repeats;
 *  - new memory is full of NaN. Copies are checked for kind and length, launches for the current device, handles for
 *    life;
 *  - built with the address sanitizer, device memory may be touched by kernels of its device only; with the thread
 *    sanitizer, only waits that CUDA promises are waits: see coro.h;
 *  - any call can be made to fail, any kernel to lose the device, and everything is counted.
 *
 * Stricter than CUDA: stream 0 waits for no other stream. Not there: graphs, textures, managed memory, machine code,
 * which is refused as that of another card.
 *
 * In a daemon, which loads a plug-in made of it, the environment takes the place of cusim_reset and cusim_fail, read
 * at the first call (what is not set is as in brackets):
 *     CUSIM_DEVICES    how many [1]
 *     CUSIM_MEMORY     bytes of each, with K, M or G [1G]
 *     CUSIM_POLICY     lazy, random or eager [random]
 *     CUSIM_SEED       [1]
 *     CUSIM_SHARE      1: as cusim_share_memory [0]
 *     CUSIM_PATIENCE_MS  as cusim_patience_ms [5000]
 *     CUSIM_FAIL       FUNCTION:NTH:ERROR[,...], as cusim_fail
 *     CUSIM_FAULT      NTH[:ERROR], as cusim_fault_kernel
 *     CUSIM_PTX        90 or 100: whose PTX a plug-in of nvcc's objects runs [90]; read at each launch
 *     CUSIM_REPORT     a file that the counters are written to, as a JSON object, when the program ends
 *
 * Any thread may call the runtime and these functions; one call runs at a time. */
#ifndef TESTS_CUSIM_CUSIM_H
#define TESTS_CUSIM_CUSIM_H

#include <stddef.h>
#include <stdint.h>

/* A plug-in made of the stand-in shows these functions to who opened it. */
#define CUSIM_API __attribute__((visibility("default")))

#ifdef __cplusplus
extern "C" {
#endif

enum cusim_policy {
    CUSIM_LAZY,              /* work runs when it is waited for or asked about; streams overtake one another far */
    CUSIM_RANDOM,            /* any work that may run runs at any call */
    CUSIM_EAGER              /* at once and in order, as a debugger would show it: finds the least */
};
enum { CUSIM_POLICIES = 3 };

/* Everything anew: queued work is forgotten, memory, streams, events and libraries that are left are freed, counters are
 * 0, no fault is planned, and all threads are on device 0. No handle of before may be used, and calls of other threads
 * that wait end with an error. devices 0: as without a driver. */
CUSIM_API void cusim_reset(int devices, size_t memory_each, enum cusim_policy policy, uint64_t seed);

/* The nth call (1: the next) of the named function from now answers this cudaError_t and does nothing. Up to 16 at
 * once. nth 0: what was planned for the function is forgotten. */
CUSIM_API void cusim_fail(const char *function, int nth, int error);
/* The nth call of the named function from now, or with nth 0 every one, answers that all is well and does nothing: as if the
 * program had forgotten it. One function at a time. */
CUSIM_API void cusim_skip(const char *function, int nth);
/* The nth kernel from now fails as an illegal access would (error 0: cudaErrorIllegalAddress): it does nothing, and
 * from then on its device is lost: every call answers this error. */
CUSIM_API void cusim_fault_kernel(int nth, int error);
/* Whether device memory allocated from now on can be handed to another process (cudaIpcGetMemHandle), which takes it
 * out of the address sanitizer's sight. */
CUSIM_API void cusim_share_memory(int on);
/* While on, compilations that begin do not go on (nvrtc.c), unless they are cancelled. */
CUSIM_API void cusim_hold_compiler(int on);
/* How long a wait may last for what no queued work can bring about, before it answers cudaErrorLaunchTimeout. */
CUSIM_API void cusim_patience_ms(unsigned ms);

/* Since the reset, but for what is live. CUSIM_REPORT has the same words. */
#define CUSIM_STATS(F)                                                                              \
    F(launches)                                                                                     \
    F(ptx_launches)                  /* of them, of kernels that came as PTX */                      \
    F(compilations)                  /* that NVRTC was asked for, by way of nvrtc.c */               \
    F(h2d) F(d2h) F(d2d)             /* bytes of copies queued */                                   \
    F(pageable_copies)               /* from or to memory that is not page-locked: they wait */     \
    F(allocs) F(frees)                                                                              \
    F(syncs)                         /* calls that wait */                                          \
    F(default_stream_uses)                                                                          \
    F(live_bytes) F(live_pinned)     /* bytes of device and of page-locked memory */                \
    F(live_streams) F(live_events) F(live_libraries)                                                \
    F(met)                           /* calls that failed or were left out because cusim_fail, cusim_skip said so */ \
    F(ops_run)                                                                                      \
    F(ptx_loaded) F(ptx_stored)      /* bytes of memory, by kernels that ptxi.h interprets */        \
    F(mistakes)                      /* calls that CUDA would refuse or leave undefined, each with a line on stderr */
struct cusim_stats {
#define CUSIM_STATS_FIELD(name) uint64_t name;
    CUSIM_STATS(CUSIM_STATS_FIELD)
#undef CUSIM_STATS_FIELD
};
CUSIM_API void cusim_get_stats(struct cusim_stats *s);
/* Operations queued and not yet run. */
CUSIM_API int cusim_pending(void);

/* What each source of the plug-in (such as "cuda_trainer") calls of CUDA that can fail, as its object names it; {NULL, NULL}
 * is the last. The makefile writes it. */
struct cusim_call {
    const char *source, *function;
};
CUSIM_API extern const struct cusim_call cusim_calls[];

/* What CUDA keeps for the calling thread: its current device, and the error that cudaGetLastError would answer. */
CUSIM_API void cusim_thread(int *device, int *error);
CUSIM_API void cusim_thread_set(int device);

/* For trainers in tests that are not in C: an array on the current device, which stays until the process
 * ends, and a copy from or to it. 0, or the cudaError_t. */
CUSIM_API int cusim_array_new(void **at, size_t size);
CUSIM_API int cusim_array_copy(void *to, const void *from, size_t size);

/* ---- kernels, as cusim_device.h uses them ---------------------------------------------------------------------- */

typedef void (*cusim_thunk)(void **args);
enum { CUSIM_PLAIN = 0, CUSIM_BARRIER = 1 };         /* whether threads of a block wait for one another */
/* A kernel of one argument; known once, repeats are nothing. Before the first launch of it. */
CUSIM_API void cusim_register(const void *function, const char *name, cusim_thunk thunk, size_t argument_size,
                              int flags);

struct cusim_dim {
    unsigned x, y, z;
};
CUSIM_API extern struct cusim_dim cusim_tid, cusim_bid, cusim_bdim, cusim_gdim;
CUSIM_API void cusim_barrier(const void *site);
/* What lane `from` of the warp gives; *valid is 0 when it gives nothing. */
CUSIM_API uint64_t cusim_exchange(unsigned mask, uint64_t value, int from, int *valid);
CUSIM_API unsigned cusim_ballot(unsigned mask, int predicate);
CUSIM_API void cusim_syncwarp(unsigned mask);

/* ---- NCCL, as nccl.c stands in for it -------------------------------------------------------------------------- */

/* Ranks are threads or devices of one process. A plug-in made of the stand-in has the functions of nccl.h among its
 * symbols: it can open itself where it would open libnccl.so.2. Ranks that do not all come within the patience, or
 * that call different collectives, give errors where the real one may hang: from the call, or from
 * ncclCommGetAsyncError.
 *
 * The next call of ncclCommGetAsyncError tells of this ncclResult_t, once; 0 is none. */
CUSIM_API void cusim_nccl_async_error(int error);

struct CUstream_st;
/* For nccl.c: an action on a stream, which waits until it is ready; and the stream's device, -1 for no live stream. */
#ifndef __cplusplus
#include <stdbool.h>
CUSIM_API void cusim_enqueue(struct CUstream_st *s, bool (*ready)(void *), void (*run)(void *), void *argument);
CUSIM_API int cusim_stream_device(struct CUstream_st *s);
#endif

#ifdef __cplusplus
}
#endif

#endif
