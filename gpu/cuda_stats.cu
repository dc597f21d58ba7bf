/* The statistics of an array (gpu/stats.h): each block looks at a share of the elements and writes what it found to pinned
 * memory, where the host merges it. Counts are exact whoever adds first; the sums are taken in a tree. */
#include "gpu/cuda_types.cuh"

#include "gpu/stats.h"

enum { WARPS = KERNEL_THREADS / 32 };

struct finding { double sum, squares, min, max; };

static __device__ __forceinline__ void look(double x, finding *f, unsigned long long *tally)
{
    int32_t place = stats_place(x);

    atomicAdd(&tally[place], 1ull);
    if (place == STATS_INFINITE || place == STATS_NAN) return;
    f->sum += x;
    f->squares += x * x;
    f->min = x < f->min ? x : f->min;
    f->max = x > f->max ? x : f->max;
}

static __device__ __forceinline__ void join(finding *f, const finding &o)
{
    f->sum += o.sum;
    f->squares += o.squares;
    f->min = o.min < f->min ? o.min : f->min;
    f->max = o.max > f->max ? o.max : f->max;
}

/* All threads of the block call it; the first gets what all have found. Warps count apart, so that fewer wait for one
 * another at a bin that most elements fall into. */
static __device__ __forceinline__ void tell(finding own, const unsigned long long (*tally)[STATS_PLACES], finding *found,
                                            stats *out)
{
    unsigned i = threadIdx.x;

    found[i] = own;
    for (unsigned half = KERNEL_THREADS / 2; half > 0; half /= 2) {
        __syncthreads();
        if (i < half) join(&found[i], found[i + half]);
    }
    __syncthreads();
    if (i < STATS_PLACES) {
        uint64_t n = 0;
        for (int w = 0; w < WARPS; w++) n += tally[w][i];
        if (i < STATS_BINS) out->bins[i] = n;
        if (i == STATS_ZERO) out->zeros = n;
        if (i == STATS_INFINITE) out->infinities = n;
        if (i == STATS_NAN) out->nans = n;
    }
    if (i != 0) return;
    bool none = found[0].min > found[0].max;
    out->sum = found[0].sum;
    out->sum_squares = found[0].squares;
    out->min = none ? NAN : found[0].min;
    out->max = none ? NAN : found[0].max;
}

#define STATS_KERNEL(name)                                                                                             \
    static __global__ void __launch_bounds__(KERNEL_THREADS) stats_kernel_##name(const __grid_constant__ kernel_stats a) \
    {                                                                                                                  \
        __shared__ unsigned long long tally[WARPS][STATS_PLACES];                                               \
        __shared__ finding found[KERNEL_THREADS];                                                               \
        finding own = {0, 0, INFINITY, -INFINITY};                                                                     \
        stats *out = (stats *)a.out + blockIdx.x;                                                                      \
        uint64_t share = (a.count + gridDim.x - 1) / gridDim.x, begin = blockIdx.x * share;                            \
        uint64_t end = begin + share < a.count ? begin + share : a.count;                                              \
                                                                                                                       \
        for (unsigned i = threadIdx.x; i < WARPS * STATS_PLACES; i += KERNEL_THREADS) (&tally[0][0])[i] = 0;           \
        __syncthreads();                                                                                               \
        for (uint64_t i = begin + threadIdx.x; i < end; i += KERNEL_THREADS)                                           \
            look(stats_element(stats_read_##name(a.at, i), a.minus != NULL ? stats_read_##name(a.minus, i) : 0), &own,  \
                 tally[threadIdx.x / 32]);                                                                             \
        if (threadIdx.x == 0) out->count = begin < end ? end - begin : 0;                                              \
        tell(own, tally, found, out);                                                                                  \
    }
#define STATS_KERNEL_OF(number, name, size, sum, numpy) STATS_KERNEL(name)
DTYPES(STATS_KERNEL_OF)

const void *kernel_of_stats(enum dtype type)
{
    switch (type) {
#define STATS_CASE(number, name, size, sum, numpy) \
    case DTYPE_##name: return KERNEL(kernel_stats, CUSIM_BARRIER, stats_kernel_##name);
        DTYPES(STATS_CASE)
    default: return NULL;
    }
}
