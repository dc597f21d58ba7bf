/* f16 and bf16 as bits: widening is exact, narrowing rounds to nearest, ties to even. In integers and exact float
 * operations, so that every processor gives the same bits and compilers make vectors of the loops. What is too large
 * becomes infinity; NaN stays NaN, quiet, with its sign and the upper bits of its payload. Any thread. */
#ifndef GPU_HALF_H
#define GPU_HALF_H

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#ifdef __CUDACC__
#define HALF_INLINE static __device__ __forceinline__
#else
#define HALF_INLINE static inline __attribute__((always_inline))
#endif

HALF_INLINE float half_float(uint32_t bits)
{
    float f;
    memcpy(&f, &bits, sizeof f);
    return f;
}

HALF_INLINE uint32_t half_bits(float f)
{
    uint32_t bits;
    memcpy(&bits, &f, sizeof bits);
    return bits;
}

#define HALF(...) __VA_ARGS__
#include "gpu/half_ops.h"
#undef HALF

#endif
