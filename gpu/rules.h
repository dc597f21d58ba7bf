/* The rules: what one step does to one element, once for every processor.
 *
 * An includer that wants the arithmetic defines, before each inclusion,
 *     REAL          the type of the arithmetic: float, or double for f64 values
 *     REAL_ROOT     its square root: sqrtf, sqrt
 *     NAME(x)       the name of x for that type: x##_f32
 * and gets a function NAME(rule_<name>) for each row of RULES. Without REAL it gets the names of the scalars and the
 * integer rules only.
 *
 * Only + - * / sqrt and comparisons, which IEEE 754 rounds in one way, and no contraction (-ffp-contract=off,
 * -fmad=false): so every processor gives the same bits. Each expression says its order by parentheses or by C's left
 * to right; to reorder one changes stored values. */
#ifndef GPU_RULES_H
#define GPU_RULES_H

#include "gpu/rule.h"

#ifdef __CUDACC__
#define RULE_INLINE static __device__ __forceinline__
#else
#define RULE_INLINE static inline __attribute__((always_inline))
#endif

/* The scalars of each rule. Those of GRAD begin every rule of the sgd family. */
enum { GRAD_RESCALE, GRAD_CLIP, GRAD_WD, GRAD_SCALARS };
enum { AVERAGE_CONTRIBUTORS };
enum { SGD_LR = GRAD_SCALARS };
enum { MOMENTUM_LR = GRAD_SCALARS, MOMENTUM_MU };
/* REST is 1 - BETA, and LR has the bias corrections in it. */
enum { ADAM_LR = GRAD_SCALARS, ADAM_BETA1, ADAM_REST1, ADAM_BETA2, ADAM_REST2, ADAM_EPSILON, ADAM_SCALARS };
enum { TEST_RESCALE };
_Static_assert((int)ADAM_SCALARS <= (int)RULE_SCALARS_MAX, "the scalars have room");

/* Integers are computed in i64 whatever their type. A result that does not fit sets a bit of *over; which one does
 * not matter. */
#define INTEGER_RULES(X) X(assign) X(add) X(average)

RULE_INLINE int64_t integer_sum(int64_t x, int64_t y, uint64_t *over)
{
    int64_t sum = (int64_t)((uint64_t)x + (uint64_t)y);
    *over |= (uint64_t)((sum ^ x) & (sum ^ y)) >> 63;
    return sum;
}

/* n: contributors, at least 1. */
#define RULE_INTEGER(name)                                                                               \
    RULE_INLINE void integer_##name(int64_t n __attribute__((unused)), int64_t g, int64_t *w,            \
                                    uint64_t *over __attribute__((unused)))

RULE_INTEGER(assign) { *w = g; }
RULE_INTEGER(add) { *w = integer_sum(*w, g, over); }
RULE_INTEGER(average) { *w = g / n; } /* towards zero, as C divides */

#endif

#ifdef REAL

/* a: scalars rounded to REAL, g: the sum of the gradients, w: the value, s: the slots, in the order of RULES. */
#define RULE(name)                                                                                       \
    RULE_INLINE void NAME(rule_##name)(const REAL *a __attribute__((unused)), REAL g, REAL *w,           \
                                       REAL *s __attribute__((unused)))

/* clip(rescale * g) + wd * w. Both comparisons are false for a NaN, so it comes through and is seen; a bound of
 * infinity is no bound. */
RULE_INLINE REAL NAME(gradient_of)(const REAL *a, REAL g, REAL w)
{
    g = a[GRAD_RESCALE] * g;
    g = g > a[GRAD_CLIP] ? a[GRAD_CLIP] : g;
    g = g < -a[GRAD_CLIP] ? -a[GRAD_CLIP] : g;
    return g + a[GRAD_WD] * w;
}

RULE(assign) { *w = g; }
RULE(add) { *w = *w + g; }
RULE(average) { *w = g / a[AVERAGE_CONTRIBUTORS]; }
RULE(sgd) { *w = *w - a[SGD_LR] * NAME(gradient_of)(a, g, *w); }

RULE(momentum)
{
    s[0] = a[MOMENTUM_MU] * s[0] - a[MOMENTUM_LR] * NAME(gradient_of)(a, g, *w);
    *w = *w + s[0];
}

RULE(adam)
{
    g = NAME(gradient_of)(a, g, *w);
    s[0] = a[ADAM_BETA1] * s[0] + a[ADAM_REST1] * g;
    s[1] = a[ADAM_BETA2] * s[1] + a[ADAM_REST2] * (g * g);
    *w = *w - a[ADAM_LR] * (s[0] / (REAL_ROOT(s[1]) + a[ADAM_EPSILON]));
}

RULE(test) { *w = *w + a[TEST_RESCALE] * g; }

#undef RULE
#endif
