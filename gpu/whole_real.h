/* The parts of the whole rules for one real type: a template for whole.c, which defines REAL, REAL_ROOT and NAME
 * first. Values of f16 and bf16 are taken as f32, from the master if there is one. */
#include "gpu/rules.h"
#include "gpu/whole_rules.h"

struct NAME(whole) {
    REAL a[RULE_SCALARS_MAX];
    REAL g[BLOCK], w[BLOCK], u[BLOCK], q[BLOCK];
    struct lanes lanes[WHOLE_SUMS];
};

static void NAME(whole_begin)(const struct step *s, struct NAME(whole) *x)
{
    for (unsigned i = 0; i < RULE_SCALARS_MAX; i++) x->a[i] = (REAL)s->scalars.v[i];
    memset(x->lanes, 0, sizeof x->lanes);
}

static REAL *NAME(slot_at)(const struct step *s, unsigned slot, size_t at) { return (REAL *)s->slots[slot].at + at; }

/* The blocks of a part begin at multiples of the lanes' number. */
#define EACH_BLOCK(at, n)                                                                        \
    for (size_t at = begin, n = 0; at < begin + count && (n = least_of(BLOCK, begin + count - at)) > 0; at += n)

CLONES static void NAME(add_squares)(struct lanes *l, const REAL *x, size_t n)
{
    size_t i = 0;

    for (; i + WHOLE_LANES <= n; i += WHOLE_LANES)
        for (size_t j = 0; j < WHOLE_LANES; j++) l->v[j] += (double)x[i + j] * (double)x[i + j];
    for (size_t j = 0; i + j < n; j++) l->v[j] += (double)x[i + j] * (double)x[i + j];
}

CLONES static void NAME(scale)(REAL *x, REAL by, size_t n)
{
    for (size_t i = 0; i < n; i++) x[i] = by * x[i];
}

/* ---- lars ------------------------------------------------------------------------------------------------------- */

static void NAME(lars_norms)(const struct step *s, size_t begin, size_t count, double *sums)
{
    struct NAME(whole) x;

    NAME(whole_begin)(s, &x);
    EACH_BLOCK(at, n) {
        loops_value(s, at, n, x.w);
        loops_sum(s, at, n, x.g);
        NAME(scale)(x.g, x.a[GRAD_RESCALE], n);
        NAME(add_squares)(&x.lanes[0], x.w, n);
        NAME(add_squares)(&x.lanes[1], x.g, n);
    }
    sums[0] = lanes_total(&x.lanes[0]);
    sums[1] = lanes_total(&x.lanes[1]);
}

CLONES static void NAME(sgd_loop)(const REAL *restrict a, const REAL *restrict g, REAL *restrict w, size_t n)
{
    for (size_t i = 0; i < n; i++) NAME(rule_sgd)(a, random_place(0), g[i], &w[i], NULL);
}

CLONES static void NAME(momentum_loop)(const REAL *restrict a, const REAL *restrict g, REAL *restrict w,
                                       REAL *restrict m, size_t n)
{
    for (size_t i = 0; i < n; i++) NAME(rule_momentum)(a, random_place(0), g[i], &w[i], &m[i]);
}

static void NAME(lars_move_part)(const struct step *s, size_t begin, size_t count, bool momentum)
{
    struct NAME(whole) x;

    NAME(whole_begin)(s, &x);
    x.a[MOMENTUM_LR] = (REAL)whole_lars_rate(s->scalars.v, totals_of(s));
    EACH_BLOCK(at, n) {
        loops_value(s, at, n, x.w);
        loops_sum(s, at, n, x.g);
        if (momentum) NAME(momentum_loop)(x.a, x.g, x.w, NAME(slot_at)(s, 0, at), n);
        else NAME(sgd_loop)(x.a, x.g, x.w, n);
        loops_store(s, at, n, x.w);
    }
}

static void NAME(lars_move)(const struct step *s, size_t begin, size_t count, double *sums)
{
    (void)sums;
    NAME(lars_move_part)(s, begin, count, false);
}

static void NAME(lars_momentum_move)(const struct step *s, size_t begin, size_t count, double *sums)
{
    (void)sums;
    NAME(lars_move_part)(s, begin, count, true);
}

/* ---- lamb, lans ------------------------------------------------------------------------------------------------- */

CLONES static void NAME(lamb_direction)(const REAL *restrict a, const REAL *restrict m, const REAL *restrict v,
                                        const REAL *restrict w, REAL *restrict u, size_t n)
{
    for (size_t i = 0; i < n; i++)
        u[i] = NAME(lamb_u)(a, m[i], v[i], w[i]);
}

CLONES static void NAME(lans_direction)(const REAL *restrict a, const REAL *restrict g, const REAL *restrict v,
                                        const REAL *restrict w, REAL *restrict q, size_t n)
{
    for (size_t i = 0; i < n; i++) q[i] = NAME(lans_q)(a, g[i], v[i], w[i]);
}

CLONES static void NAME(moments_loop)(const REAL *restrict a, const REAL *restrict g, REAL *restrict m,
                                      REAL *restrict v, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        REAL slot[2] = {m[i], v[i]};
        NAME(moments)(a, g[i], slot);
        m[i] = slot[0];
        v[i] = slot[1];
    }
}

CLONES static void NAME(clip_loop)(const REAL *restrict a, REAL *restrict g, size_t n)
{
    for (size_t i = 0; i < n; i++) g[i] = NAME(clipped)(a, g[i]);
}

CLONES static void NAME(move_loop)(REAL *restrict w, REAL by, const REAL *restrict u, size_t n)
{
    for (size_t i = 0; i < n; i++) w[i] = w[i] - by * u[i];
}

static void NAME(lamb_norms)(const struct step *s, size_t begin, size_t count, double *sums)
{
    struct NAME(whole) x;

    NAME(whole_begin)(s, &x);
    EACH_BLOCK(at, n) {
        REAL *m = NAME(slot_at)(s, 0, at), *v = NAME(slot_at)(s, 1, at);
        loops_value(s, at, n, x.w);
        loops_sum(s, at, n, x.g);
        NAME(clip_loop)(x.a, x.g, n);
        NAME(moments_loop)(x.a, x.g, m, v, n);
        NAME(lamb_direction)(x.a, m, v, x.w, x.u, n);
        NAME(add_squares)(&x.lanes[0], x.w, n);
        NAME(add_squares)(&x.lanes[1], x.u, n);
    }
    sums[0] = lanes_total(&x.lanes[0]);
    sums[1] = lanes_total(&x.lanes[1]);
}

static void NAME(lamb_move)(const struct step *s, size_t begin, size_t count, double *sums)
{
    struct NAME(whole) x;
    double ratio = whole_ratio(whole_bounded_norm(s->scalars.v, totals_of(s)[0]), sqrt(totals_of(s)[1]));

    (void)sums;
    NAME(whole_begin)(s, &x);
    EACH_BLOCK(at, n) {
        loops_value(s, at, n, x.w);
        NAME(lamb_direction)(x.a, NAME(slot_at)(s, 0, at), NAME(slot_at)(s, 1, at), x.w, x.u, n);
        NAME(move_loop)(x.w, (REAL)(s->scalars.v[ADAM_LR] * ratio), x.u, n);
        loops_store(s, at, n, x.w);
    }
}

static void NAME(lans_gradient)(const struct step *s, size_t begin, size_t count, double *sums)
{
    struct NAME(whole) x;

    NAME(whole_begin)(s, &x);
    EACH_BLOCK(at, n) {
        loops_sum(s, at, n, x.g);
        NAME(scale)(x.g, x.a[GRAD_RESCALE], n);
        NAME(add_squares)(&x.lanes[3], x.g, n);
    }
    sums[3] = lanes_total(&x.lanes[3]);
}

/* The gradient is divided by its norm before it is clipped. */
static void NAME(lans_begin)(const struct step *s, struct NAME(whole) *x)
{
    NAME(whole_begin)(s, x);
    x->a[GRAD_RESCALE] = (REAL)whole_lans_rescale(s->scalars.v, totals_of(s)[3]);
}

static void NAME(lans_load)(const struct step *s, size_t at, size_t n, struct NAME(whole) *x)
{
    loops_value(s, at, n, x->w);
    loops_sum(s, at, n, x->g);
    NAME(clip_loop)(x->a, x->g, n);
}

static void NAME(lans_norms)(const struct step *s, size_t begin, size_t count, double *sums)
{
    struct NAME(whole) x;

    NAME(lans_begin)(s, &x);
    EACH_BLOCK(at, n) {
        REAL *m = NAME(slot_at)(s, 0, at), *v = NAME(slot_at)(s, 1, at);
        NAME(lans_load)(s, at, n, &x);
        NAME(moments_loop)(x.a, x.g, m, v, n);
        NAME(lamb_direction)(x.a, m, v, x.w, x.u, n);
        NAME(lans_direction)(x.a, x.g, v, x.w, x.q, n);
        NAME(add_squares)(&x.lanes[0], x.w, n);
        NAME(add_squares)(&x.lanes[1], x.u, n);
        NAME(add_squares)(&x.lanes[2], x.q, n);
    }
    for (unsigned k = 0; k < 3; k++) sums[k] = lanes_total(&x.lanes[k]);
}

static void NAME(lans_move)(const struct step *s, size_t begin, size_t count, double *sums)
{
    struct NAME(whole) x;
    const double *a = s->scalars.v, w = whole_bounded_norm(s->scalars.v, totals_of(s)[0]);
    double by_mean = a[ADAM_LR] * a[ADAM_BETA1] * whole_ratio(w, sqrt(totals_of(s)[1]));
    double by_gradient = a[ADAM_LR] * a[ADAM_REST1] * whole_ratio(w, sqrt(totals_of(s)[2]));

    (void)sums;
    NAME(lans_begin)(s, &x);
    EACH_BLOCK(at, n) {
        REAL *v = NAME(slot_at)(s, 1, at);
        NAME(lans_load)(s, at, n, &x);
        NAME(lamb_direction)(x.a, NAME(slot_at)(s, 0, at), v, x.w, x.u, n);
        NAME(lans_direction)(x.a, x.g, v, x.w, x.q, n);
        NAME(move_loop)(x.w, (REAL)by_mean, x.u, n);
        NAME(move_loop)(x.w, (REAL)by_gradient, x.q, n);
        loops_store(s, at, n, x.w);
    }
}

/* ---- by rows ---------------------------------------------------------------------------------------------------- */

/* Rows shorter than the lanes are summed from left to right. */
static double NAME(squares_of)(const REAL *g, size_t n)
{
    struct lanes l = {{0}};
    double sum = 0;

    if (n >= WHOLE_LANES) {
        NAME(add_squares)(&l, g, n);
        return lanes_total(&l);
    }
    for (size_t i = 0; i < n; i++) sum += (double)g[i] * (double)g[i];
    return sum;
}

/* The sum of squares of the clipped gradient in one long row. */
static double NAME(long_row_squares)(const struct step *s, struct NAME(whole) *x, size_t begin, size_t count)
{
    struct lanes l = {{0}};

    EACH_BLOCK(at, n) {
        loops_sum(s, at, n, x->g);
        NAME(clip_loop)(x->a, x->g, n);
        NAME(add_squares)(&l, x->g, n);
    }
    return lanes_total(&l);
}

CLONES static void NAME(adagrad_row)(const REAL *restrict a, REAL root, const REAL *restrict g, REAL *restrict w,
                                     size_t n)
{
    for (size_t i = 0; i < n; i++) w[i] = NAME(adagrad_moved)(a, root, g[i], w[i]);
}

/* One row, or a piece of it, whose clipped gradient is in x->g. */
static void NAME(groupadagrad_move)(const struct step *s, struct NAME(whole) *x, REAL squares, size_t at, size_t n)
{
    loops_value(s, at, n, x->w);
    NAME(adagrad_row)(x->a, REAL_ROOT(squares) + x->a[ADAGRAD_EPSILON], x->g, x->w, n);
    loops_store(s, at, n, x->w);
}

static void NAME(groupadagrad_long_row)(const struct step *s, struct NAME(whole) *x, size_t row)
{
    size_t begin = row * s->columns, count = s->columns;
    REAL *squares = NAME(slot_at)(s, 0, row);

    *squares = *squares + (REAL)(NAME(long_row_squares)(s, x, begin, count) / (double)count);
    EACH_BLOCK(at, n) {
        loops_sum(s, at, n, x->g);
        NAME(clip_loop)(x->a, x->g, n);
        NAME(groupadagrad_move)(s, x, *squares, at, n);
    }
}

/* As many short rows as a block has room for. */
static void NAME(groupadagrad_rows)(const struct step *s, struct NAME(whole) *x, size_t row, size_t rows)
{
    size_t columns = s->columns, at = row * columns;
    REAL *squares = NAME(slot_at)(s, 0, row);

    loops_sum(s, at, rows * columns, x->g);
    loops_value(s, at, rows * columns, x->w);
    NAME(clip_loop)(x->a, x->g, rows * columns);
    for (size_t r = 0; r < rows; r++) {
        REAL *g = x->g + r * columns;
        squares[r] = squares[r] + (REAL)(NAME(squares_of)(g, columns) / (double)columns);
        REAL root = REAL_ROOT(squares[r]) + x->a[ADAGRAD_EPSILON];
        if (columns > 8) NAME(adagrad_row)(x->a, root, g, x->w + r * columns, columns);
        else for (size_t i = r * columns; i < (r + 1) * columns; i++)
            x->w[i] = NAME(adagrad_moved)(x->a, root, x->g[i], x->w[i]);
    }
    loops_store(s, at, rows * columns, x->w);
}

static void NAME(groupadagrad)(const struct step *s, size_t begin, size_t count, double *sums)
{
    size_t at_once = s->columns > BLOCK ? 1 : BLOCK / s->columns;
    struct NAME(whole) x;

    (void)sums;
    NAME(whole_begin)(s, &x);
    for (size_t row = begin, n; row < begin + count; row += n) {
        n = least_of(at_once, begin + count - row);
        if (s->columns > BLOCK) NAME(groupadagrad_long_row)(s, &x, row);
        else NAME(groupadagrad_rows)(s, &x, row, n);
    }
}

/* ---- adafactor -------------------------------------------------------------------------------------------------- */

static void NAME(add_values)(const struct step *s, struct NAME(whole) *x, size_t begin, size_t count)
{
    EACH_BLOCK(at, n) {
        loops_value(s, at, n, x->w);
        NAME(add_squares)(&x->lanes[0], x->w, n);
    }
}

/* The means of rows, their sum, and the squares of the value. */
static void NAME(adafactor_rows)(const struct step *s, size_t begin, size_t count, double *sums)
{
    size_t columns = s->columns, at_once = columns > BLOCK ? 1 : BLOCK / columns;
    struct NAME(whole) x;

    NAME(whole_begin)(s, &x);
    for (size_t row = begin, n; row < begin + count; row += n) {
        n = least_of(at_once, begin + count - row);
        if (columns <= BLOCK) {
            loops_sum(s, row * columns, n * columns, x.g);
            NAME(clip_loop)(x.a, x.g, n * columns);
        }
        for (size_t r = 0; r < n; r++) {
            double squares = columns <= BLOCK ? NAME(squares_of)(x.g + r * columns, columns)
                                              : NAME(long_row_squares)(s, &x, row * columns, columns);
            REAL *mean = NAME(slot_at)(s, 0, row + r);
            *mean = NAME(adafactor_mean)(x.a, *mean, squares, columns);
            sums[1] += (double)*mean;
        }
    }
    NAME(add_values)(s, &x, begin * columns, count * columns);
    sums[0] = lanes_total(&x.lanes[0]);
}

CLONES static void NAME(add_column_squares)(double *restrict to, const REAL *restrict g, size_t n)
{
    for (size_t i = 0; i < n; i++) to[i] += (double)g[i] * (double)g[i];
}

static void NAME(column_means)(const struct step *s, const struct NAME(whole) *x, size_t begin, size_t count,
                               const double *squares)
{
    for (size_t i = 0; i < count; i++) {
        REAL *mean = NAME(slot_at)(s, 1, begin + i);
        *mean = NAME(adafactor_mean)(x->a, *mean, squares[i], s->count / s->columns);
    }
}

/* A strip of columns over a part of the rows, row by row. `part` counts strips first. */
static void NAME(adafactor_column_parts)(const struct step *s, size_t part, size_t one, double *sums)
{
    size_t rows = s->count / s->columns, strips = parts(s->columns, WHOLE_STRIP);
    size_t first = part / strips * WHOLE_ROWS, end = least_of(first + WHOLE_ROWS, rows);
    size_t begin = part % strips * WHOLE_STRIP, count = least_of(WHOLE_STRIP, s->columns - begin);
    double squares[WHOLE_STRIP];
    struct NAME(whole) x;

    (void)one;
    (void)sums;
    NAME(whole_begin)(s, &x);
    memset(squares, 0, count * sizeof squares[0]);
    for (size_t r = first; r < end; r++) {
        loops_sum(s, r * s->columns + begin, count, x.g);
        NAME(clip_loop)(x.a, x.g, count);
        NAME(add_column_squares)(squares, x.g, count);
    }
    if (rows <= WHOLE_ROWS) NAME(column_means)(s, &x, begin, count, squares);
    else memcpy(columns_of(s, part / strips) + begin, squares, count * sizeof squares[0]);
}

/* The parts of a column become its mean: lane i has the parts i, i + WHOLE_LANES, ... Lanes without any would add zeros. */
static void NAME(adafactor_columns)(const struct step *s, size_t begin, size_t count, double *sums)
{
    size_t n = parts(s->count / s->columns, WHOLE_ROWS);
    struct NAME(whole) x;

    (void)sums;
    if (n == 1) return;
    NAME(whole_begin)(s, &x);
    for (size_t p = WHOLE_LANES; p < n; p++)
        add_doubles(columns_of(s, p % WHOLE_LANES) + begin, columns_of(s, p) + begin, count);
    n = least_of(n, WHOLE_LANES);
    for (size_t half = WHOLE_LANES / 2; half > 0; n = least_of(n, half), half /= 2)
        for (size_t i = 0; i + half < n; i++)
            add_doubles(columns_of(s, i) + begin, columns_of(s, i + half) + begin, count);
    NAME(column_means)(s, &x, begin, count, columns_of(s, 0) + begin);
}

CLONES static void NAME(adafactor_row_direction)(REAL by_row, const REAL *restrict column, const REAL *restrict g,
                                                 REAL *restrict u, size_t n)
{
    for (size_t i = 0; i < n; i++) u[i] = NAME(adafactor_u)(by_row, column[i], g[i]);
}

/* u of a block, which may begin and end within rows. The root of the mean of rows is in the factor of a row, so that
 * nothing as small as the product of both means occurs. */
static void NAME(adafactor_direction)(const struct step *s, struct NAME(whole) *x, size_t at, size_t n)
{
    size_t columns = s->columns, done = 0;
    double mean = totals_of(s)[1] / (double)(s->count / columns);

    loops_sum(s, at, n, x->g);
    NAME(clip_loop)(x->a, x->g, n);
    while (done < n) {
        size_t row = (at + done) / columns, column = (at + done) % columns;
        size_t size = least_of(columns - column, n - done);
        REAL by_row = (REAL)sqrt(mean / (double)*NAME(slot_at)(s, 0, row));
        NAME(adafactor_row_direction)(by_row, NAME(slot_at)(s, 1, column), x->g + done, x->u + done, size);
        done += size;
    }
}

static void NAME(adafactor_size)(const struct step *s, size_t begin, size_t count, double *sums)
{
    struct NAME(whole) x;

    NAME(whole_begin)(s, &x);
    EACH_BLOCK(at, n) {
        NAME(adafactor_direction)(s, &x, at, n);
        NAME(add_squares)(&x.lanes[2], x.u, n);
    }
    sums[2] = lanes_total(&x.lanes[2]);
}

CLONES static void NAME(adafactor_loop)(REAL by, REAL wd, const REAL *restrict u, REAL *restrict w, size_t n)
{
    for (size_t i = 0; i < n; i++) w[i] = NAME(adafactor_moved)(by, wd, u[i], w[i]);
}

struct NAME(adafactor_rates) {
    REAL u, w;
};

static struct NAME(adafactor_rates) NAME(adafactor_rates_of)(const struct step *s)
{
    double u, w;

    whole_adafactor_rates(s->scalars.v, totals_of(s), (double)s->count, &u, &w);
    return (struct NAME(adafactor_rates)){(REAL)u, (REAL)w};
}

static void NAME(adafactor_move)(const struct step *s, size_t begin, size_t count, double *sums)
{
    struct NAME(adafactor_rates) rate = NAME(adafactor_rates_of)(s);
    struct NAME(whole) x;

    (void)sums;
    NAME(whole_begin)(s, &x);
    EACH_BLOCK(at, n) {
        NAME(adafactor_direction)(s, &x, at, n);
        loops_value(s, at, n, x.w);
        NAME(adafactor_loop)(rate.u, rate.w, x.u, x.w, n);
        loops_store(s, at, n, x.w);
    }
}

CLONES static void NAME(adafactor_vector_var)(const REAL *restrict a, const REAL *restrict g, REAL *restrict v, size_t n)
{
    for (size_t i = 0; i < n; i++) v[i] = NAME(adafactor_var)(a, g[i], v[i]);
}

static void NAME(adafactor_vector_size)(const struct step *s, size_t begin, size_t count, double *sums)
{
    struct NAME(whole) x;

    NAME(whole_begin)(s, &x);
    EACH_BLOCK(at, n) {
        REAL *v = NAME(slot_at)(s, 0, at);
        loops_sum(s, at, n, x.g);
        loops_value(s, at, n, x.w);
        NAME(clip_loop)(x.a, x.g, n);
        NAME(adafactor_vector_var)(x.a, x.g, v, n);
        NAME(adafactor_row_direction)(1, v, x.g, x.u, n);
        NAME(add_squares)(&x.lanes[0], x.w, n);
        NAME(add_squares)(&x.lanes[2], x.u, n);
    }
    sums[0] = lanes_total(&x.lanes[0]);
    sums[2] = lanes_total(&x.lanes[2]);
}

static void NAME(adafactor_vector_move)(const struct step *s, size_t begin, size_t count, double *sums)
{
    struct NAME(adafactor_rates) rate = NAME(adafactor_rates_of)(s);
    struct NAME(whole) x;

    (void)sums;
    NAME(whole_begin)(s, &x);
    EACH_BLOCK(at, n) {
        loops_sum(s, at, n, x.g);
        loops_value(s, at, n, x.w);
        NAME(clip_loop)(x.a, x.g, n);
        NAME(adafactor_row_direction)(1, NAME(slot_at)(s, 0, at), x.g, x.u, n);
        NAME(adafactor_loop)(rate.u, rate.w, x.u, x.w, n);
        loops_store(s, at, n, x.w);
    }
}

#undef EACH_BLOCK
#undef REAL
#undef REAL_ROOT
#undef NAME
