#include "tests/cusim/sample/kernels.h"

#include "gpu/half.h"

#ifndef CUSIM
#define CUSIM_KERNEL(...) static_assert(true, "")
#endif

struct bf16 { uint16_t bits; };
struct f16 { uint16_t bits; };
static __device__ __forceinline__ float widened(float x) { return x; }
static __device__ __forceinline__ float widened(bf16 x) { return half_widen_bf16(x.bits); }
static __device__ __forceinline__ float widened(f16 x) { return half_widen_f16(x.bits); }
template <class T> struct alignas(4 * sizeof(T)) four { T x[4]; };

template <class T>
static __global__ void __launch_bounds__(SAMPLE_THREADS) add_kernel(const __grid_constant__ sample_add a)
{
    const T *g = (const T *)a.gradient;
    uint64_t step = (uint64_t)gridDim.x * blockDim.x, first = (uint64_t)blockIdx.x * blockDim.x + threadIdx.x;

    for (uint64_t i = first; i < a.count / 4; i += step) {
        four<T> x = ((const four<T> *)g)[i];
        four<float> y = {};
        if (!a.sets) y = ((four<float> *)a.sum)[i];
        for (int k = 0; k < 4; k++) y.x[k] = a.sets ? widened(x.x[k]) * a.scale : y.x[k] + widened(x.x[k]) * a.scale;
        ((four<float> *)a.sum)[i] = y;
    }
    for (uint64_t i = a.count / 4 * 4 + first; i < a.count; i += step)
        a.sum[i] = a.sets ? widened(g[i]) * a.scale : a.sum[i] + widened(g[i]) * a.scale;
}

static __global__ void __launch_bounds__(SAMPLE_THREADS) adam_kernel(const __grid_constant__ sample_adam a)
{
    int low = 0, high = a.count - 1;

    while (low < high) { /* the tensor of this block */
        int middle = (low + high + 1) / 2;
        if (a.first[middle] <= blockIdx.x) low = middle;
        else high = middle - 1;
    }
    const sample_tensor &t = a.tensors[low];
    uint64_t begin = (uint64_t)(blockIdx.x - a.first[low]) * SAMPLE_CHUNK;
    uint64_t end = begin + SAMPLE_CHUNK < t.count ? begin + SAMPLE_CHUNK : t.count;
    for (uint64_t i = begin + threadIdx.x; i < end; i += blockDim.x) {
        float g = t.sum[i], m = a.beta1 * t.mean[i] + a.rest1 * g, v = a.beta2 * t.var[i] + a.rest2 * g * g;
        t.mean[i] = m;
        t.var[i] = v;
        t.to[i] = t.from[i] - a.rate * (m / (sqrtf(v) + a.epsilon));
    }
}

static __device__ __forceinline__ float squares(const sample_norm &a)
{
    float s = 0;
    for (uint64_t i = (uint64_t)blockIdx.x * blockDim.x + threadIdx.x; i < a.count;
         i += (uint64_t)gridDim.x * blockDim.x)
        s += a.x[i] * a.x[i];
    return s;
}

static __global__ void __launch_bounds__(SAMPLE_THREADS) norm_kernel(const __grid_constant__ sample_norm a)
{
    static __shared__ float parts[SAMPLE_THREADS / 32];
    float s = squares(a);

    for (int by = 16; by > 0; by /= 2) s += __shfl_xor_sync(0xffffffffu, s, by);
    if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = s;
    __syncthreads();
    if (threadIdx.x != 0) return;
    s = 0;
    for (unsigned i = 0; i < blockDim.x / 32; i++) s += parts[i];
    atomicAdd(a.sum, s);
}

template <bool SYNCED>
static __global__ void __launch_bounds__(SAMPLE_THREADS) total_kernel(const __grid_constant__ sample_norm a)
{
    static __shared__ float parts[SAMPLE_THREADS];

    parts[threadIdx.x] = squares(a);
    for (unsigned half = SAMPLE_THREADS / 2; half > 0; half /= 2) {
        if (SYNCED || half < SAMPLE_THREADS / 4) __syncthreads();
        if (threadIdx.x < half) parts[threadIdx.x] += parts[threadIdx.x + half];
    }
    if (threadIdx.x == 0) *a.sum = parts[0];
}

static __global__ void chain_kernel(const __grid_constant__ sample_add a)
{
    if (threadIdx.x == 0) a.sum[blockIdx.x] = (blockIdx.x == 0 ? 0 : a.sum[blockIdx.x - 1]) + a.scale;
}

static __global__ void clash_kernel(const __grid_constant__ sample_add a) { a.sum[0] = a.scale; }

CUSIM_KERNEL(sample_add, CUSIM_PLAIN, add_kernel<float>);
CUSIM_KERNEL(sample_add, CUSIM_PLAIN, add_kernel<bf16>);
CUSIM_KERNEL(sample_add, CUSIM_PLAIN, add_kernel<f16>);
CUSIM_KERNEL(sample_adam, CUSIM_PLAIN, adam_kernel);
CUSIM_KERNEL(sample_norm, CUSIM_BARRIER, norm_kernel);
CUSIM_KERNEL(sample_norm, CUSIM_BARRIER, total_kernel<true>);
CUSIM_KERNEL(sample_norm, CUSIM_BARRIER, total_kernel<false>);
CUSIM_KERNEL(sample_add, CUSIM_PLAIN, chain_kernel);
CUSIM_KERNEL(sample_add, CUSIM_PLAIN, clash_kernel);

extern "C" const void *sample_kernel(enum sample_kernel k)
{
    switch (k) {
    case SAMPLE_ADD_F32: return (const void *)(void (*)(sample_add))add_kernel<float>;
    case SAMPLE_ADD_BF16: return (const void *)(void (*)(sample_add))add_kernel<bf16>;
    case SAMPLE_ADD_F16: return (const void *)(void (*)(sample_add))add_kernel<f16>;
    case SAMPLE_ADAM: return (const void *)adam_kernel;
    case SAMPLE_NORM: return (const void *)norm_kernel;
    case SAMPLE_TOTAL: return (const void *)(void (*)(sample_norm))total_kernel<true>;
    case SAMPLE_TOTAL_UNSYNCED: return (const void *)(void (*)(sample_norm))total_kernel<false>;
    case SAMPLE_CHAIN: return (const void *)chain_kernel;
    case SAMPLE_CLASH: return (const void *)clash_kernel;
    }
    return NULL;
}
