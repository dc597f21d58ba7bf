#include "gpu/whole.h"

#include "gpu/clones.h"
#include "gpu/device.h"
#include "gpu/loops.h"

#include <math.h>
#include <string.h>

/* ---- sums in a fixed order -------------------------------------------------------------------------------------- */

struct lanes {
    double v[WHOLE_LANES];
};

CLONES static double lanes_total(struct lanes *l)
{
    for (size_t half = WHOLE_LANES / 2; half > 0; half /= 2)
        for (size_t i = 0; i < half; i++) l->v[i] += l->v[i + half];
    return l->v[0];
}

CLONES static void add_doubles(double *restrict to, const double *restrict from, size_t n)
{
    for (size_t i = 0; i < n; i++) to[i] += from[i];
}

static size_t least_of(size_t a, size_t b) { return a < b ? a : b; }

/* ---- scratch: the totals, then what each part of the last pass came to ------------------------------------------- */

static double *totals_of(const struct step *s) { return s->scratch.at; }
static double *partial_of(const struct step *s, size_t part) { return totals_of(s) + WHOLE_SUMS * (1 + part); }

static size_t parts(size_t whole, size_t part) { return (whole + part - 1) / part; }

/* The sums of columns over a part of the rows, where there are several. */
static double *columns_of(const struct step *s, size_t part)
{
    return totals_of(s) + whole_columns_at(s->count) + part * s->columns;
}

#define REAL float
#define REAL_ROOT sqrtf
#define NAME(x) x##_f32
#include "gpu/whole_real.h"

#define REAL double
#define REAL_ROOT sqrt
#define NAME(x) x##_f64
#include "gpu/whole_real.h"

/* ---- passes ----------------------------------------------------------------------------------------------------- */

enum cut { BY_ELEMENTS, BY_ROWS, BY_ROWS_OF_STRIPS, BY_STRIPS, SUM_UP };

typedef void part_function(const struct step *s, size_t begin, size_t count, double *sums);

struct pass {
    enum cut cut;
    part_function *f32, *f64;
    unsigned first, sums;            /* SUM_UP: which of the last pass's sums become totals */
};

enum { PASSES_MAX = 7 };

#define PASS(cut, name) {cut, name##_f32, name##_f64, 0, 0}
#define SUMS(first, sums) {SUM_UP, NULL, NULL, first, sums}

static const struct pass passes[RULES_END][PASSES_MAX] = {
    [RULE_lars] = {PASS(BY_ELEMENTS, lars_norms), SUMS(0, 2), PASS(BY_ELEMENTS, lars_move)},
    [RULE_lars_momentum] = {PASS(BY_ELEMENTS, lars_norms), SUMS(0, 2), PASS(BY_ELEMENTS, lars_momentum_move)},
    [RULE_lamb] = {PASS(BY_ELEMENTS, lamb_norms), SUMS(0, 2), PASS(BY_ELEMENTS, lamb_move)},
    [RULE_lans] = {PASS(BY_ELEMENTS, lans_gradient), SUMS(3, 1), PASS(BY_ELEMENTS, lans_norms), SUMS(0, 3),
                   PASS(BY_ELEMENTS, lans_move)},
    [RULE_groupadagrad] = {PASS(BY_ROWS, groupadagrad)},
    [RULE_adafactor] = {PASS(BY_ROWS, adafactor_rows), SUMS(0, 2), PASS(BY_ROWS_OF_STRIPS, adafactor_column_parts),
                        PASS(BY_STRIPS, adafactor_columns), PASS(BY_ELEMENTS, adafactor_size), SUMS(2, 1),
                        PASS(BY_ELEMENTS, adafactor_move)},
    [RULE_adafactor_vector] = {PASS(BY_ELEMENTS, adafactor_vector_size), SUMS(0, 3),
                               PASS(BY_ELEMENTS, adafactor_vector_move)},
};

static bool is_pass(const struct pass *p) { return p->f32 != NULL || p->sums > 0; }

unsigned whole_passes(enum rule_id r)
{
    unsigned n = 0;
    while (n < PASSES_MAX && is_pass(&passes[r][n])) n++;
    return n;
}

static size_t rows_in_part(size_t columns) { return columns >= WHOLE_PART ? 1 : WHOLE_PART / columns; }

/* Parts by rows have at least half of WHOLE_PART elements, the last apart. Columns that are summed in several parts have
 * more than WHOLE_ROWS elements, so that two sums for each so many elements are enough. */
size_t whole_scratch_size(enum rule_id r, size_t count)
{
    size_t of_columns = r == RULE_adafactor ? 2 * parts(count, WHOLE_ROWS) : 0;

    return rule_is_whole(r) ? (whole_columns_at(count) + of_columns) * sizeof(double) : 0;
}

size_t whole_parts(const struct step *s, unsigned pass)
{
    switch (passes[s->rule][pass].cut) {
    case BY_ELEMENTS: return parts(s->count, WHOLE_PART);
    case BY_ROWS: return parts(s->count / s->columns, rows_in_part(s->columns));
    case BY_ROWS_OF_STRIPS: return parts(s->count / s->columns, WHOLE_ROWS) * parts(s->columns, WHOLE_STRIP);
    case BY_STRIPS: return parts(s->columns, WHOLE_STRIP);
    case SUM_UP: return 1;
    }
    return 0;
}

static void sum_up(const struct step *s, unsigned pass)
{
    const struct pass *p = &passes[s->rule][pass];
    size_t count = whole_parts(s, pass - 1);

    for (unsigned k = p->first; k < p->first + p->sums; k++) {
        struct lanes l = {{0}};
        for (size_t i = 0; i < count; i++) l.v[i % WHOLE_LANES] += partial_of(s, i)[k];
        totals_of(s)[k] = lanes_total(&l);
    }
}

void whole_run(const struct step *s, unsigned pass, size_t part)
{
    const struct pass *p = &passes[s->rule][pass];
    part_function *run = s->type == DTYPE_f64 ? p->f64 : p->f32;
    size_t whole = s->count, size = WHOLE_PART;
    double sums[WHOLE_SUMS] = {0};

    if (p->cut == SUM_UP) {
        sum_up(s, pass);
        return;
    }
    if (p->cut == BY_ROWS) {
        whole = s->count / s->columns;
        size = rows_in_part(s->columns);
    } else if (p->cut == BY_ROWS_OF_STRIPS) {
        whole = whole_parts(s, pass);
        size = 1;
    } else if (p->cut == BY_STRIPS) {
        whole = s->columns;
        size = WHOLE_STRIP;
    }
    run(s, part * size, least_of(size, whole - part * size), sums);
    if (p->cut == BY_ELEMENTS || p->cut == BY_ROWS) memcpy(partial_of(s, part), sums, sizeof sums);
}
