/* Forced in front of a .cu file that is compiled as C++ for the CPU:
 *   g++ -x c++ -std=c++17 -D__shared__=static -include cusim_device.h k.cu
 * CUDA's own headers define __global__, __device__ ... as nothing for a host compiler. */
#pragma once
#include <cuda_runtime_api.h>
#include <math.h>
#include <string.h>
#include "tests/cusim/cusim.h"
#define __launch_bounds__(...)
#undef __forceinline__
#define __forceinline__ inline __attribute__((always_inline))
#define __restrict__
#define threadIdx cusim_tid
#define blockIdx cusim_bid
#define blockDim cusim_bdim
#define gridDim cusim_gdim
#define warpSize 32
#define __syncthreads() cusim_barrier(__builtin_return_address(0))
#define __syncwarp(...) cusim_syncwarp(0xffffffffu)
#define __threadfence() __atomic_thread_fence(__ATOMIC_SEQ_CST)
template <class T> static inline T cusim_shfl(unsigned mask, T v, int src)
{
    uint64_t w = 0;
    int ok = 0;
    static_assert(sizeof(T) <= 8, "");
    memcpy(&w, &v, sizeof v);
    w = cusim_exchange(mask, w, src, &ok);
    if (ok)
        memcpy(&v, &w, sizeof v);
    return v;
}
static inline int cusim_lane() { return (int)((cusim_tid.x + cusim_bdim.x * (cusim_tid.y + cusim_bdim.y * cusim_tid.z)) & 31); }
template <class T> static inline T __shfl_sync(unsigned m, T v, int l) { return cusim_shfl(m, v, l & 31); }
template <class T> static inline T __shfl_down_sync(unsigned m, T v, unsigned d) { int l = cusim_lane() + (int)d; return cusim_shfl(m, v, l < 32 ? l : cusim_lane()); }
template <class T> static inline T __shfl_up_sync(unsigned m, T v, unsigned d) { int l = cusim_lane() - (int)d; return cusim_shfl(m, v, l >= 0 ? l : cusim_lane()); }
template <class T> static inline T __shfl_xor_sync(unsigned m, T v, int x) { return cusim_shfl(m, v, (cusim_lane() ^ x) & 31); }
static inline unsigned __ballot_sync(unsigned m, int p) { return cusim_ballot(m, p); }
static inline int __any_sync(unsigned m, int p) { return cusim_ballot(m, p) != 0; }
static inline int __all_sync(unsigned m, int p) { return (cusim_ballot(m, p) & m) == m; }
static inline int __popc(unsigned x) { return __builtin_popcount(x); }
static inline int __clz(int x) { return x ? __builtin_clz((unsigned)x) : 32; }
static inline int __ffs(int x) { return __builtin_ffs(x); }
template <class T> static inline T __ldg(const T *p) { return *p; }
template <class T> static inline T __ldcs(const T *p) { return *p; }
template <class T> static inline void __stcs(T *p, T v) { *p = v; }
static inline float atomicAdd(float *p, float v)
{
    uint32_t o, n;
    float f;
    __atomic_load((uint32_t *)p, &o, __ATOMIC_RELAXED);
    do {
        memcpy(&f, &o, 4);
        f += v;
        memcpy(&n, &f, 4);
    } while (!__atomic_compare_exchange((uint32_t *)p, &o, &n, 0, __ATOMIC_RELAXED, __ATOMIC_RELAXED));
    memcpy(&f, &o, 4);
    return f;
}
template <class T> static inline T atomicAdd(T *p, T v) { return __atomic_fetch_add(p, v, __ATOMIC_RELAXED); }
template <class T> static inline T atomicCAS(T *p, T c, T v) { __atomic_compare_exchange_n(p, &c, v, 0, __ATOMIC_RELAXED, __ATOMIC_RELAXED); return c; }
static inline float __int_as_float(int i) { float f; memcpy(&f, &i, 4); return f; }
static inline int __float_as_int(float f) { int i; memcpy(&i, &f, 4); return i; }
/* CUSIM_KERNEL(struct arguments, CUSIM_PLAIN or CUSIM_BARRIER, the __global__ function): registers a kernel, so that
 * cudaLaunchKernel of its address runs it. */
#define CUSIM_KERNEL_(line, argument, flags, ...)                                                     \
    static cusim_reg cusim_reg_##line((const void *)(void (*)(argument))__VA_ARGS__, #__VA_ARGS__,    \
                                      [](void **a) { __VA_ARGS__(*(argument *)a[0]); }, sizeof(argument), flags);
#define CUSIM_KERNEL_AT(line, ...) CUSIM_KERNEL_(line, __VA_ARGS__)
#define CUSIM_KERNEL(...) CUSIM_KERNEL_AT(__COUNTER__, __VA_ARGS__)
struct cusim_reg {
    cusim_reg(const void *f, const char *n, cusim_thunk t, size_t a, int fl) { cusim_register(f, n, t, a, fl); }
};
