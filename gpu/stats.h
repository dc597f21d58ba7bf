/* Statistics of an array, defined once for every processor: gcc, g++ and nvcc compile this header, and what they make
 * of it agrees bit for bit but for the order of the two sums.
 *
 * Element i is the double x = a[i] - minus[i] (a[i] alone without minus), each converted to double first: exactly, but
 * for i64, which rounds to nearest even. It goes to one of STATS_PLACES by stats_place; so count = nans + infinities +
 * zeros + all bins. The other four look at the finite elements only.
 *
 * Exact on every device: all counts, min, max (a zero is +0). Of the sums the order is free, so of n elements
 *     |sum - S| <= n * 2^-53 * (sum of the |x|),  |sum_squares - Q| <= (n + 1) * 2^-53 * Q + n * 2^-1074,
 * S and Q the sums without rounding; a sum that is too large for a double is infinite.
 * Any thread. */
#ifndef GPU_STATS_H
#define GPU_STATS_H

#include "gpu/half.h"

#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#ifdef __CUDACC__
#define STATS_INLINE static __host__ __device__ __forceinline__
#define STATS_READ static __device__ __forceinline__          /* the halves are read on the device only */
#else
#define STATS_INLINE static inline __attribute__((always_inline, unused))
#define STATS_READ STATS_INLINE
#endif

/* bins[0] has 0 < |x| < 2^STATS_EXPONENT_MIN, bins[i] has 2^(m + i - 1) <= |x| < 2^(m + i) with m =
 * STATS_EXPONENT_MIN, and the last has all that is finite from 2^(m + STATS_BINS - 2) = 2^18 on. */
enum { STATS_BINS = 64, STATS_EXPONENT_MIN = -44 };
enum { STATS_ZERO = STATS_BINS, STATS_INFINITE, STATS_NAN, STATS_PLACES };

struct stats {
    uint64_t count, nans, infinities, zeros;
    uint64_t bins[STATS_BINS];
    double sum, sum_squares;         /* 0 when no element is finite */
    double min, max;                 /* NaN when no element is finite */
};

#define STATS_READER(name, from, value)                                              \
    STATS_READ double stats_read_##name(const void *at, size_t i)                    \
    {                                                                                \
        const from x = ((const from *)at)[i];                                        \
        return (double)(value);                                                      \
    }
STATS_READER(f32, float, x)
STATS_READER(f64, double, x)
STATS_READER(f16, uint16_t, half_widen_f16(x))
STATS_READER(bf16, uint16_t, half_widen_bf16(x))
STATS_READER(i8, int8_t, x)
STATS_READER(u8, uint8_t, x)
STATS_READER(i32, int32_t, x)
STATS_READER(i64, int64_t, x)
#undef STATS_READER

/* x, of both numbers as doubles; minus is 0 where there is none. The last addition makes -0 to 0. */
STATS_INLINE double stats_element(double a, double minus) { return a - minus + 0.0; }

/* Where x is counted: a bin, or STATS_ZERO, STATS_INFINITE, STATS_NAN. Subnormal doubles have an exponent of -1023,
 * which is in the first bin as they are. */
STATS_INLINE int32_t stats_place(double x)
{
    uint64_t bits;
    memcpy(&bits, &x, sizeof bits);
    int32_t biased = (int32_t)(bits >> 52 & 0x7ff), place = biased - (1023 + STATS_EXPONENT_MIN - 1);

    place = place < 0 ? 0 : place;
    place = place > STATS_BINS - 1 ? STATS_BINS - 1 : place;
    place = biased == 0x7ff ? STATS_INFINITE : place;
    place = x != x ? STATS_NAN : place;
    return x == 0 ? STATS_ZERO : place;
}

/* The statistics of nothing. */
STATS_INLINE void stats_clear(struct stats *s)
{
    memset(s, 0, sizeof *s);
    s->min = s->max = NAN;
}

/* `into` becomes the statistics of both. In whatever order pieces are merged, what is exact stays exact. */
STATS_INLINE void stats_merge(struct stats *into, const struct stats *piece)
{
    into->count += piece->count;
    into->nans += piece->nans;
    into->infinities += piece->infinities;
    into->zeros += piece->zeros;
    for (int i = 0; i < STATS_BINS; i++) into->bins[i] += piece->bins[i];
    into->sum += piece->sum;
    into->sum_squares += piece->sum_squares;
    if (piece->min != piece->min) return;
    if (!(into->min <= piece->min)) into->min = piece->min;
    if (!(into->max >= piece->max)) into->max = piece->max;
}

#endif
