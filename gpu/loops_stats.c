#include "gpu/loops.h"

#include "gpu/clones.h"
#include "gpu/stats.h"

#include <math.h>

/* The sums go side by side in as many lanes as are four vectors of doubles; so do the counts, for neighbours often fall
 * in one bin and would wait for one another. */
enum { LANES = 16, TALLIES = 4 };

struct lanes {
    double sum[LANES], squares[LANES], min[LANES], max[LANES];
};

#define READ_LOOP(type)                                                                                     \
    CLONES static void read_##type(double *restrict x, const void *a, const void *minus, size_t count)      \
    {                                                                                                       \
        if (minus == NULL)                                                                                  \
            for (size_t i = 0; i < count; i++) x[i] = stats_element(stats_read_##type(a, i), 0);            \
        else                                                                                                \
            for (size_t i = 0; i < count; i++)                                                              \
                x[i] = stats_element(stats_read_##type(a, i), stats_read_##type(minus, i));                 \
    }
#define READ_LOOP_OF(number, name, size, sum, numpy) READ_LOOP(name)
DTYPES(READ_LOOP_OF)

static void (*const readers[DTYPE_COUNT])(double *restrict x, const void *a, const void *minus, size_t count) = {
#define READER_OF(number, name, size, sum, numpy) [number] = read_##name,
    DTYPES(READER_OF)
#undef READER_OF
};

/* What is not finite adds nothing and is no extreme. */
CLONES static void add_lanes(struct lanes *restrict l, const double *restrict x)
{
    for (size_t at = 0; at < BLOCK; at += LANES)
        for (size_t i = 0; i < LANES; i++) {
            double v = x[at + i], f = fabs(v) <= 0x1.fffffffffffffp1023 ? v : 0;
            double low = f == v ? v : INFINITY, high = f == v ? v : -INFINITY;
            l->sum[i] += f;
            l->squares[i] += f * f;
            l->min[i] = low < l->min[i] ? low : l->min[i];
            l->max[i] = high > l->max[i] ? high : l->max[i];
        }
}

CLONES static void find_places(uint8_t *restrict place, const double *restrict x, size_t count)
{
    for (size_t i = 0; i < count; i++) place[i] = (uint8_t)stats_place(x[i]);
}

static void add_places(uint64_t tally[TALLIES][STATS_PLACES], const uint8_t *place, size_t count)
{
    size_t i = 0;

    for (; i + TALLIES <= count; i += TALLIES)
        for (size_t k = 0; k < TALLIES; k++) tally[k][place[i + k]]++;
    for (; i < count; i++) tally[0][place[i]]++;
}

static uint64_t total(uint64_t tally[TALLIES][STATS_PLACES], size_t place)
{
    uint64_t n = 0;
    for (size_t k = 0; k < TALLIES; k++) n += tally[k][place];
    return n;
}

static void sum_lanes(const struct lanes *l, struct stats *out)
{
    double min = INFINITY, max = -INFINITY;

    for (size_t i = 0; i < LANES; i++) {
        out->sum += l->sum[i];
        out->sum_squares += l->squares[i];
        min = l->min[i] < min ? l->min[i] : min;
        max = l->max[i] > max ? l->max[i] : max;
    }
    if (min > max) return;       /* nothing is finite */
    out->min = min;
    out->max = max;
}

void loops_stats(enum dtype type, const void *a, const void *minus, size_t count, struct stats *out)
{
    size_t size = dtype_size(type);
    uint64_t tally[TALLIES][STATS_PLACES] = {{0}};
    struct lanes l;
    double x[BLOCK];
    uint8_t place[BLOCK];

    for (size_t i = 0; i < LANES; i++) l.sum[i] = l.squares[i] = 0, l.min[i] = INFINITY, l.max[i] = -INFINITY;
    for (size_t at = 0; at < count; at += BLOCK) {
        size_t n = count - at < BLOCK ? count - at : BLOCK;
        readers[type](x, (const char *)a + at * size, minus == NULL ? NULL : (const char *)minus + at * size, n);
        find_places(place, x, n);
        add_places(tally, place, n);
        for (size_t i = n; i < BLOCK; i++) x[i] = NAN;      /* adds nothing */
        add_lanes(&l, x);
    }
    stats_clear(out);
    out->count = count;
    out->zeros = total(tally, STATS_ZERO);
    out->infinities = total(tally, STATS_INFINITE);
    out->nans = total(tally, STATS_NAN);
    for (size_t i = 0; i < STATS_BINS; i++) out->bins[i] = total(tally, i);
    sum_lanes(&l, out);
}
