/* The element rules: what one step does to one element, once for every processor.
 *
 * An includer that wants the arithmetic defines, before each inclusion,
 *     REAL          the type of the arithmetic: float, or double for f64 values
 *     REAL_ROOT     its square root: sqrtf, sqrt
 *     NAME(x)       the name of x for that type: x##_f32
 * and gets a function NAME(rule_<name>) for each row of ELEMENT_RULES. Without REAL it gets the names of the scalars and
 * the integer rules only.
 *
 * Only + - * / sqrt and comparisons, which IEEE 754 rounds in one way, and no contraction (-ffp-contract=off,
 * -fmad=false): so every processor gives the same bits. Each expression says its order by parentheses or by C's left
 * to right; to reorder one changes stored values. */
#ifndef GPU_RULES_H
#define GPU_RULES_H

#include "gpu/rule.h"

#include <math.h>
#include <string.h>

#ifdef __CUDACC__
#define RULE_INLINE static __device__ __forceinline__
#else
#define RULE_INLINE static inline __attribute__((always_inline, unused))
#endif

/* The scalars of each rule. Those of GRAD begin every rule with a gradient; REST is 1 less the number before it. */
enum { GRAD_RESCALE, GRAD_CLIP, GRAD_WD, GRAD_SCALARS };
enum { AVERAGE_CONTRIBUTORS };
enum { EMA_CONTRIBUTORS, EMA_DECAY, EMA_REST };
enum { SGD_LR = GRAD_SCALARS };
enum { MOMENTUM_LR = GRAD_SCALARS, MOMENTUM_MU, MOMENTUM_SCALARS };
/* LR has the bias corrections in it, and EPSILON fits it. */
enum { ADAM_LR = GRAD_SCALARS, ADAM_BETA1, ADAM_REST1, ADAM_BETA2, ADAM_REST2, ADAM_EPSILON, ADAM_SCALARS };
enum { ADAMW_WD = ADAM_SCALARS };
enum { ADAMAX_EPSILON_IN = ADAM_SCALARS };       /* before the maximum is taken; EPSILON is added to it */
enum { NADAM_LR_GRADIENT = ADAM_SCALARS };       /* the rate of the gradient; LR is that of the mean */
enum { RADAM_ROOT = ADAM_SCALARS };              /* 0: the variance says nothing yet */
enum { ADAGRAD_LR = GRAD_SCALARS, ADAGRAD_EPSILON };
enum { ADADELTA_LR = GRAD_SCALARS, ADADELTA_RHO, ADADELTA_REST, ADADELTA_EPSILON };
/* The movement is IN * gradient / root into the slot and OUT * slot into the value. EPSILON_IN is under the root. */
enum { RMS_LR = GRAD_SCALARS, RMS_RHO, RMS_REST, RMS_EPSILON, RMS_BOUND, RMS_MU, RMS_IN, RMS_OUT, RMS_EPSILON_IN };
enum { FTRL_PER_LR = GRAD_SCALARS, FTRL_LAMBDA, FTRL_BETA, FTRL_WD };
enum { FTML_RATE = ADAM_LR, FTML_CORRECTION = ADAM_SCALARS };
enum { SIGN_LR = GRAD_SCALARS, SIGN_KEEP, SIGN_MU, SIGN_REST };
enum { DCASGD_LR = MOMENTUM_LR, DCASGD_MU = MOMENTUM_MU, DCASGD_LAMBDA = MOMENTUM_SCALARS };
enum { SGLD_HALF_LR = GRAD_SCALARS, SGLD_SIGMA };
enum { LION_LR = ADAM_LR, LION_WD = ADAM_SCALARS };
enum { TEST_RESCALE };
enum { SCALED_BY };
_Static_assert((int)RMS_EPSILON_IN < (int)RULE_SCALARS_MAX, "the scalars have room");

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

/* ---- random numbers: of a place alone, so that no state is kept and every way to cut the work gives the same ------
 *
 * In f32 and 32-bit integers for every type, with vectors in mind: the noise needs no more digits. */

/* For hosts: 64 bits to 64 bits. */
RULE_INLINE uint64_t random_mix(uint64_t z)
{
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

/* A bijection of 32 bits, and another of its results that tells nothing of them. */
RULE_INLINE uint32_t random_bits(uint32_t x)
{
    x = (x ^ (x >> 16)) * 0x7feb352du;
    x = (x ^ (x >> 15)) * 0x846ca68bu;
    return x ^ (x >> 16);
}

RULE_INLINE uint32_t random_other_bits(uint32_t x)
{
    x = (x ^ (x >> 15)) * 0x31848babu;
    return x ^ (x >> 14);
}

/* A place in two parts: of all in a row that do not cross a multiple of 2^32 the mask is the same, so that a loop makes
 * it once. */
struct place {
    uint32_t low, mask;
};

RULE_INLINE struct place random_place(uint64_t at)
{
    struct place p = {(uint32_t)at, random_bits((uint32_t)(at >> 32) ^ 0x9e3779b9u)};
    return p;
}

/* Natural logarithm of a normal number: the exponent, and the series of atanh for a mantissa from 0.7 to 1.4. */
RULE_INLINE float random_log(float x)
{
    uint32_t bits, offset;
    float m;

    memcpy(&bits, &x, sizeof bits);
    offset = bits - 0x3f3504f3; /* root of one half */
    int32_t exponent = (int32_t)offset >> 23;
    bits = (offset & 0x7fffff) + 0x3f3504f3;
    memcpy(&m, &bits, sizeof m);
    float f = (m - 1) / (m + 1), q = f * f;
    return (float)exponent * 0.693147181f + f * (2 + q * (2.0f / 3 + q * (2.0f / 5 + q * (2.0f / 7))));
}

/* Cosine of v turns, 0 <= v <= 0.5: the sine of what is left to a quarter, by the odd polynomial of degree 9 whose
 * largest error there is least (3e-9). */
RULE_INLINE float random_cos(float v)
{
    float x = 0.25f - v, q = x * x;
    return x * (6.283185005f + q * (-41.34165573f + q * (81.6010056f + q * (-76.5497818f + q * 39.5366974f))));
}

/* Normal with mean 0 and variance 1, up to 6.7 (Box and Muller). */
RULE_INLINE float random_normal(struct place place)
{
    uint32_t bits = random_bits(place.low ^ place.mask);
    int32_t turn = (int32_t)random_other_bits(bits) >> 8;
    float u = ((float)(int32_t)(bits >> 1) + 0.5f) * 0x1p-31f;
    float v = (float)(turn < 0 ? -turn : turn) * 0x1p-24f, spread = -2 * random_log(u);

    /* u may round to 1, and the logarithm of what is just below it to more than zero. */
    return sqrtf(spread > 0 ? spread : 0) * random_cos(v);
}

#endif

#ifdef REAL

/* a: scalars rounded to REAL, place: of the element in the sequence of random numbers, g: the sum of the gradients, w:
 * the value, s: the slots, in the order of ELEMENT_RULES. */
#define RULE(name)                                                                                       \
    RULE_INLINE void NAME(rule_##name)(const REAL *a __attribute__((unused)),                            \
                                       struct place place __attribute__((unused)), REAL g, REAL *w,          \
                                       REAL *s __attribute__((unused)))

RULE_INLINE REAL NAME(absolute)(REAL x) { return x < 0 ? -x : x; }
/* 1, -1, or x itself where it is zero or NaN. */
RULE_INLINE REAL NAME(sign)(REAL x)
{
    x = x > 0 ? (REAL)1 : x;
    return x < 0 ? (REAL)-1 : x;
}

/* Both comparisons are false for a NaN, so it comes through and is seen; a bound of infinity is no bound. */
RULE_INLINE REAL NAME(bounded)(REAL x, REAL bound)
{
    x = x > bound ? bound : x;
    return x < -bound ? -bound : x;
}

RULE_INLINE REAL NAME(clipped)(const REAL *a, REAL g) { return NAME(bounded)(a[GRAD_RESCALE] * g, a[GRAD_CLIP]); }

/* clip(rescale * g) + wd * w */
RULE_INLINE REAL NAME(gradient_of)(const REAL *a, REAL g, REAL w) { return NAME(clipped)(a, g) + a[GRAD_WD] * w; }

/* The running means of the gradient and of its square. */
RULE_INLINE void NAME(moments)(const REAL *a, REAL g, REAL *s)
{
    s[0] = a[ADAM_BETA1] * s[0] + a[ADAM_REST1] * g;
    s[1] = a[ADAM_BETA2] * s[1] + a[ADAM_REST2] * (g * g);
}

RULE(assign) { *w = g; }
RULE(add) { *w = *w + g; }
RULE(average) { *w = g / a[AVERAGE_CONTRIBUTORS]; }

RULE(ema)
{
    *w = g / a[EMA_CONTRIBUTORS];
    s[0] = a[EMA_DECAY] * s[0] + a[EMA_REST] * *w;
}

RULE(sgd) { *w = *w - a[SGD_LR] * NAME(gradient_of)(a, g, *w); }

RULE(momentum)
{
    s[0] = a[MOMENTUM_MU] * s[0] - a[MOMENTUM_LR] * NAME(gradient_of)(a, g, *w);
    *w = *w + s[0];
}

RULE(velocity)
{
    s[0] = a[MOMENTUM_MU] * s[0] + NAME(gradient_of)(a, g, *w);
    *w = *w - a[MOMENTUM_LR] * s[0];
}

RULE(nag)
{
    g = a[MOMENTUM_LR] * NAME(gradient_of)(a, g, *w);
    s[0] = a[MOMENTUM_MU] * s[0] - g;
    *w = *w + (a[MOMENTUM_MU] * s[0] - g);
}

RULE(nesterov)
{
    g = NAME(gradient_of)(a, g, *w);
    s[0] = a[MOMENTUM_MU] * s[0] + g;
    *w = *w - a[MOMENTUM_LR] * (g + a[MOMENTUM_MU] * s[0]);
}

RULE(adam)
{
    NAME(moments)(a, NAME(gradient_of)(a, g, *w), s);
    *w = *w - a[ADAM_LR] * (s[0] / (REAL_ROOT(s[1]) + a[ADAM_EPSILON]));
}

RULE(adamw)
{
    NAME(moments)(a, NAME(clipped)(a, g), s);
    *w = *w - a[ADAM_LR] * (s[0] / (REAL_ROOT(s[1]) + a[ADAM_EPSILON]) + a[ADAMW_WD] * *w);
}

RULE(adabelief)
{
    g = NAME(bounded)(a[GRAD_RESCALE] * g + a[GRAD_WD] * *w, a[GRAD_CLIP]);
    s[0] = a[ADAM_BETA1] * s[0] + a[ADAM_REST1] * g;
    g = g - s[0];
    s[1] = a[ADAM_BETA2] * s[1] + a[ADAM_REST2] * (g * g) + a[ADAM_EPSILON];
    *w = *w - a[ADAM_LR] * (s[0] / (REAL_ROOT(s[1]) + a[ADAM_EPSILON]));
}

RULE(adamax)
{
    g = NAME(gradient_of)(a, g, *w);
    s[0] = a[ADAM_BETA1] * s[0] + a[ADAM_REST1] * g;
    g = NAME(absolute)(g) + a[ADAMAX_EPSILON_IN];
    s[1] = a[ADAM_BETA2] * s[1];
    s[1] = s[1] > g ? s[1] : g;
    *w = *w - a[ADAM_LR] * (s[0] / (s[1] + a[ADAM_EPSILON]));
}

RULE(nadam)
{
    g = NAME(gradient_of)(a, g, *w);
    NAME(moments)(a, g, s);
    *w = *w - (a[ADAM_LR] * s[0] + a[NADAM_LR_GRADIENT] * g) / (REAL_ROOT(s[1]) + a[ADAM_EPSILON]);
}

RULE(radam)
{
    NAME(moments)(a, NAME(gradient_of)(a, g, *w), s);
    *w = *w - a[ADAM_LR] * (s[0] / (a[RADAM_ROOT] * REAL_ROOT(s[1]) + a[ADAM_EPSILON]));
}

RULE(yogi)
{
    g = NAME(gradient_of)(a, g, *w);
    s[0] = a[ADAM_BETA1] * s[0] + a[ADAM_REST1] * g;
    g = g * g;
    s[1] = s[1] - a[ADAM_REST2] * (NAME(sign)(s[1] - g) * g);
    *w = *w - a[ADAM_LR] * (s[0] / (REAL_ROOT(s[1]) + a[ADAM_EPSILON]));
}

RULE(adagrad)
{
    g = NAME(gradient_of)(a, g, *w);
    s[0] = s[0] + g * g;
    *w = *w - a[ADAGRAD_LR] * (g / (REAL_ROOT(s[0]) + a[ADAGRAD_EPSILON]));
}

RULE(adadelta)
{
    g = NAME(gradient_of)(a, g, *w);
    s[0] = a[ADADELTA_RHO] * s[0] + a[ADADELTA_REST] * (g * g);
    g = REAL_ROOT(s[1] + a[ADADELTA_EPSILON]) / REAL_ROOT(s[0] + a[ADADELTA_EPSILON]) * g;
    s[1] = a[ADADELTA_RHO] * s[1] + a[ADADELTA_REST] * (g * g);
    *w = *w - a[ADADELTA_LR] * g;
}

RULE(rmsprop)
{
    g = NAME(gradient_of)(a, g, *w);
    s[0] = a[RMS_RHO] * s[0] + a[RMS_REST] * (g * g);
    *w = NAME(bounded)(*w - a[RMS_LR] * (g / (REAL_ROOT(s[0]) + a[RMS_EPSILON])), a[RMS_BOUND]);
}

RULE(rmsprop_velocity)
{
    g = NAME(gradient_of)(a, g, *w);
    s[0] = a[RMS_RHO] * s[0] + a[RMS_REST] * (g * g);
    s[1] = a[RMS_MU] * s[1] + g / (REAL_ROOT(s[0]) + a[RMS_EPSILON]);
    *w = NAME(bounded)(*w - a[RMS_LR] * s[1], a[RMS_BOUND]);
}

/* A mean of squares is never below the square of the mean, but its rounded value may be, by more than epsilon; the root
 * of that would be NaN. */
RULE(rmsprop_centered)
{
    g = NAME(gradient_of)(a, g, *w);
    s[0] = a[RMS_RHO] * s[0] + a[RMS_REST] * (g * g);
    s[1] = a[RMS_RHO] * s[1] + a[RMS_REST] * g;
    REAL spread = s[0] - s[1] * s[1];
    spread = spread < 0 ? 0 : spread;
    s[2] = a[RMS_MU] * s[2] + a[RMS_IN] * g / (REAL_ROOT(spread + a[RMS_EPSILON_IN]) + a[RMS_EPSILON]);
    *w = NAME(bounded)(*w + a[RMS_OUT] * s[2], a[RMS_BOUND]);
}

/* The same with other numbers in IN and OUT, and so another third slot. */
RULE(rmsprop_torch) { NAME(rule_rmsprop_centered)(a, place, g, w, s); }

/* PER_LR is 1 / lr: a division less. */
RULE(ftrl)
{
    REAL before = REAL_ROOT(s[1]), root;

    g = NAME(clipped)(a, g);
    s[1] = s[1] + g * g;
    root = REAL_ROOT(s[1]);
    s[0] = s[0] + (g - (root - before) * a[FTRL_PER_LR] * *w);
    REAL over = NAME(absolute)(s[0]) - a[FTRL_LAMBDA];
    over = over < 0 ? 0 : over;
    *w = -(NAME(sign)(s[0]) * over) / ((a[FTRL_BETA] + root) * a[FTRL_PER_LR] + a[FTRL_WD]);
}

/* Slots d, var, z. RATE is (1 - beta1^t) / lr. */
RULE(ftml)
{
    g = NAME(gradient_of)(a, g, *w);
    s[1] = a[ADAM_BETA2] * s[1] + a[ADAM_REST2] * (g * g);
    REAL d = a[FTML_RATE] * (REAL_ROOT(s[1] / a[FTML_CORRECTION]) + a[ADAM_EPSILON]);
    s[2] = a[ADAM_BETA1] * s[2] + a[ADAM_REST1] * g - (d - a[ADAM_BETA1] * s[0]) * *w;
    *w = -s[2] / d;
    s[0] = d;
}

RULE(signsgd) { *w = a[SIGN_KEEP] * *w - a[SIGN_LR] * NAME(sign)(g); }

RULE(signum)
{
    s[0] = a[SIGN_MU] * s[0] + a[SIGN_REST] * NAME(gradient_of)(a, g, *w);
    *w = a[SIGN_KEEP] * *w - a[SIGN_LR] * NAME(sign)(s[0]);
}

RULE(dcasgd)
{
    g = NAME(gradient_of)(a, g, *w);
    g = g + a[DCASGD_LAMBDA] * g * g * (*w - s[0]);
    s[0] = *w;
    *w = *w - a[DCASGD_LR] * g;
}

RULE(dcasgd_momentum)
{
    g = NAME(gradient_of)(a, g, *w);
    g = g + a[DCASGD_LAMBDA] * g * g * (*w - s[0]);
    s[0] = *w;
    s[1] = a[DCASGD_MU] * s[1] - a[DCASGD_LR] * g;
    *w = *w + s[1];
}

RULE(sgld)
{
    g = a[SGLD_HALF_LR] * NAME(gradient_of)(a, g, *w);
    *w = *w - g + a[SGLD_SIGMA] * (REAL)random_normal(place);
}

RULE(lion)
{
    g = NAME(clipped)(a, g);
    *w = *w - a[LION_LR] * (NAME(sign)(a[ADAM_BETA1] * s[0] + a[ADAM_REST1] * g) + a[LION_WD] * *w);
    s[0] = a[ADAM_BETA2] * s[0] + a[ADAM_REST2] * g;
}

RULE(test) { *w = *w + a[TEST_RESCALE] * g; }
RULE(scaled) { *w = a[SCALED_BY] * g; }
RULE(squared) { *w = a[SCALED_BY] * (g * g); }

#undef RULE
#endif
