/* The formulas of the whole rules for one element, once for every processor: a template like gpu/rules.h, after which it
 * is included with the same REAL, REAL_ROOT and NAME; gpu/whole.h, which has the order of the scalars, before that. `a` are
 * the scalars rounded to REAL. */

#ifndef GPU_WHOLE_RULES_ONCE
#define GPU_WHOLE_RULES_ONCE

/* Of which one is never zero and never NaN. */
RULE_INLINE double whole_ratio(double value, double other) { return value > 0 && other > 0 ? value / other : 1; }

/* v: the scalars as they are. */
RULE_INLINE double whole_bounded_norm(const double *v, double squares)
{
    double norm = sqrt(squares);

    norm = norm < v[LAMB_LOWER] ? v[LAMB_LOWER] : norm;
    return norm > v[LAMB_UPPER] ? v[LAMB_UPPER] : norm;
}

/* squares: of the value and of the gradient. */
RULE_INLINE double whole_lars_rate(const double *v, const double *squares)
{
    double w = sqrt(squares[0]), g = sqrt(squares[1]);
    double ratio = w > 0 && g > 0 ? v[LARS_ETA] * w / (g + v[GRAD_WD] * w + v[LARS_EPSILON]) : 1;

    return v[MOMENTUM_LR] * ratio;
}

/* What lans divides the gradient by is in the rescaling. */
RULE_INLINE double whole_lans_rescale(const double *v, double squares)
{
    double norm = sqrt(squares);
    return v[GRAD_RESCALE] / (norm == 0 ? 1 : norm);
}

/* The rate of the movement and, with the decay, that of the value; totals: as the passes of adafactor number them. */
RULE_INLINE void whole_adafactor_rates(const double *v, const double *totals, double count, double *rate_u, double *rate_w)
{
    double size = sqrt(totals[0] / count), movement = sqrt(totals[2] / count), rate = v[ADAFACTOR_LR];

    if (v[ADAFACTOR_SCALE] != 0) rate *= size > v[ADAFACTOR_LEAST] ? size : v[ADAFACTOR_LEAST];
    double over = movement / v[ADAFACTOR_CLIP];
    *rate_u = rate / (over > 1 ? over : 1);
    *rate_w = rate * v[ADAFACTOR_WD];
}

#endif

RULE_INLINE REAL NAME(lamb_root)(const REAL *a, REAL var)
{
    return REAL_ROOT(var) / a[LAMB_CORRECTION2] + a[ADAM_EPSILON];
}

/* u, from moments that are up to date. */
RULE_INLINE REAL NAME(lamb_u)(const REAL *a, REAL m, REAL v, REAL w)
{
    return m / a[LAMB_CORRECTION1] / NAME(lamb_root)(a, v) + a[LAMB_WD] * w;
}

/* q: the same with the gradient in the place of its mean. */
RULE_INLINE REAL NAME(lans_q)(const REAL *a, REAL g, REAL v, REAL w)
{
    return g / NAME(lamb_root)(a, v) + a[LAMB_WD] * w;
}

RULE_INLINE REAL NAME(adagrad_moved)(const REAL *a, REAL root, REAL g, REAL w) { return w - a[ADAGRAD_LR] * (g / root); }

RULE_INLINE REAL NAME(adafactor_mean)(const REAL *a, REAL before, double squares, size_t of)
{
    return a[ADAFACTOR_BETA] * before + a[ADAFACTOR_REST] * ((REAL)(squares / (double)of) + a[ADAFACTOR_EPSILON]);
}

RULE_INLINE REAL NAME(adafactor_var)(const REAL *a, REAL g, REAL v)
{
    return a[ADAFACTOR_BETA] * v + a[ADAFACTOR_REST] * (g * g + a[ADAFACTOR_EPSILON]);
}

RULE_INLINE REAL NAME(adafactor_u)(REAL by_row, REAL column, REAL g) { return g * by_row / REAL_ROOT(column); }
RULE_INLINE REAL NAME(adafactor_moved)(REAL by, REAL wd, REAL u, REAL w) { return w - (by * u + wd * w); }
