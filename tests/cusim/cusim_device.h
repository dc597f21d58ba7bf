/* Stands in front of a .cu file that is compiled as C++ for the stand-in:
 *     g++ -x c++ -std=c++17 -include tests/cusim/cusim_device.h kernels.cu
 * CUDA's own headers make __global__, __device__ and the like nothing for a host compiler; here is the rest of what
 * kernels use, and CUSIM_KERNEL, with which they make themselves known. Not there: dynamic shared memory, inline
 * PTX, textures.
 *
 * CUSIM is defined. A kernel of which threads wait for one another (barriers, shuffles, ballots) has
 * CUSIM_BARRIER. */
#pragma once

#include <cuda_runtime_api.h>
#include <math.h>
#include <string.h>

#include "tests/cusim/cusim.h"

#define CUSIM 1
#define __launch_bounds__(...)
#undef __forceinline__
#define __forceinline__ inline __attribute__((always_inline))
/* All threads of a block run on one thread of the host. Right with and without a `static` before it. */
#undef __shared__
#define __shared__ thread_local
#define threadIdx cusim_tid
#define blockIdx cusim_bid
#define blockDim cusim_bdim
#define gridDim cusim_gdim
#define warpSize 32
#define __syncthreads() cusim_barrier(__builtin_return_address(0))
#define __threadfence() __atomic_thread_fence(__ATOMIC_SEQ_CST)

static inline void __syncwarp(unsigned mask = 0xffffffffu) { cusim_syncwarp(mask); }

/* ---- warps ----------------------------------------------------------------------------------------------------- */

template <class T> static inline T cusim_shuffle(unsigned mask, T value, int from)
{
    uint64_t bits = 0;
    int valid = 0;

    static_assert(sizeof(T) <= sizeof bits, "a value that travels between lanes has at most 8 bytes");
    memcpy(&bits, &value, sizeof value);
    bits = cusim_exchange(mask, bits, from, &valid);
    if (valid) memcpy(&value, &bits, sizeof value);
    return value;
}

static inline int cusim_lane()
{
    return (int)((cusim_tid.x + cusim_bdim.x * (cusim_tid.y + cusim_bdim.y * cusim_tid.z)) & 31);
}

template <class T> static inline T __shfl_sync(unsigned mask, T v, int lane)
{
    return cusim_shuffle(mask, v, lane & 31);
}

template <class T> static inline T __shfl_down_sync(unsigned mask, T v, unsigned by)
{
    int from = cusim_lane() + (int)by;
    return cusim_shuffle(mask, v, from < 32 ? from : cusim_lane());
}

template <class T> static inline T __shfl_up_sync(unsigned mask, T v, unsigned by)
{
    int from = cusim_lane() - (int)by;
    return cusim_shuffle(mask, v, from >= 0 ? from : cusim_lane());
}

template <class T> static inline T __shfl_xor_sync(unsigned mask, T v, int with)
{
    return cusim_shuffle(mask, v, (cusim_lane() ^ with) & 31);
}

static inline unsigned __ballot_sync(unsigned mask, int predicate) { return cusim_ballot(mask, predicate); }
static inline int __any_sync(unsigned mask, int predicate) { return cusim_ballot(mask, predicate) != 0; }
static inline int __all_sync(unsigned mask, int predicate) { return cusim_ballot(mask, !predicate) == 0; }

/* ---- single functions ------------------------------------------------------------------------------------------ */

static inline int __popc(unsigned x) { return __builtin_popcount(x); }
static inline int __clz(int x) { return x != 0 ? __builtin_clz((unsigned)x) : 32; }
static inline int __ffs(int x) { return __builtin_ffs(x); }
template <class T> static inline T __ldg(const T *at) { return *at; }
template <class T> static inline T __ldcs(const T *at) { return *at; }
template <class T> static inline void __stcs(T *at, T v) { *at = v; }

template <class To, class From> static inline To cusim_bits(From x)
{
    To y;
    static_assert(sizeof x == sizeof y, "as many bits");
    memcpy(&y, &x, sizeof y);
    return y;
}

static inline float __int_as_float(int x) { return cusim_bits<float>(x); }
static inline int __float_as_int(float x) { return cusim_bits<int>(x); }
static inline float __uint_as_float(unsigned x) { return cusim_bits<float>(x); }
static inline unsigned __float_as_uint(float x) { return cusim_bits<unsigned>(x); }
static inline double __longlong_as_double(long long x) { return cusim_bits<double>(x); }
static inline long long __double_as_longlong(double x) { return cusim_bits<long long>(x); }

/* ---- atomics --------------------------------------------------------------------------------------------------- */

template <class T> static inline T atomicAdd(T *at, T v) { return __atomic_fetch_add(at, v, __ATOMIC_RELAXED); }
template <class T> static inline T atomicOr(T *at, T v) { return __atomic_fetch_or(at, v, __ATOMIC_RELAXED); }
template <class T> static inline T atomicExch(T *at, T v) { return __atomic_exchange_n(at, v, __ATOMIC_RELAXED); }

template <class T> static inline T atomicCAS(T *at, T before, T after)
{
    __atomic_compare_exchange_n(at, &before, after, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
    return before;
}

static inline float atomicAdd(float *at, float v)
{
    uint32_t before = __atomic_load_n((uint32_t *)at, __ATOMIC_RELAXED), after;

    do after = cusim_bits<uint32_t>(cusim_bits<float>(before) + v);
    while (!__atomic_compare_exchange_n((uint32_t *)at, &before, after, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED));
    return cusim_bits<float>(before);
}

/* ---- making kernels known -------------------------------------------------------------------------------------- */

struct cusim_reg {
    cusim_reg(const void *function, const char *name, cusim_thunk thunk, size_t argument_size, int flags)
    {
        cusim_register(function, name, thunk, argument_size, flags);
    }
};

/* CUSIM_KERNEL(struct arguments, CUSIM_PLAIN or CUSIM_BARRIER, kernel<T>) outside of functions. */
#define CUSIM_KERNEL_NAMED(number, argument, flags, ...)                                                           \
    static cusim_reg cusim_reg_##number((const void *)(void (*)(argument))__VA_ARGS__, #__VA_ARGS__,               \
                                        [](void **a) { __VA_ARGS__(*(argument *)a[0]); }, sizeof(argument), flags)
#define CUSIM_KERNEL_AT(number, ...) CUSIM_KERNEL_NAMED(number, __VA_ARGS__)
#define CUSIM_KERNEL(...) CUSIM_KERNEL_AT(__COUNTER__, __VA_ARGS__)
