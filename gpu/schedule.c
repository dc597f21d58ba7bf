#include "gpu/schedule.h"

#include <math.h>

#define NUMBER(name, standard, least, most, text) {name, standard, standard, least, most, text, NULL, false}
#define UPDATES(name, standard, least, text) {name, standard, standard, least, 9007199254740991.0, text, NULL, true}

static const char *const warmup_words[] = {"linear", "constant", NULL};
static const char *const anneal_words[] = {"cos", "linear", NULL};

#define BASE NUMBER("base_lr", NAN, 0, 1e6, "the rate to begin with; null is the updater's learning_rate")
#define WARMING                                                                                                      \
    [S_BASE] = BASE, [S_WARMUP] = UPDATES("warmup_steps", 0, 0, "updates before the base rate is reached"),          \
    [S_WARMUP_BEGIN] = NUMBER("warmup_begin_lr", 0, 0, 1e6, "the rate of the warm-up's begin"),                      \
    [S_WARMUP_MODE] = {"warmup_mode", 0, 0, 0, 1, "linear rises to the base rate, constant waits", warmup_words, false}
#define MAX_UPDATE UPDATES("max_update", HYPER_REQUIRED, 1, "the update at which the rate stops changing")
#define FINAL_LR NUMBER("final_lr", 0, 0, 1e6, "the rate from then on")

/* ---- the functions ---------------------------------------------------------------------------------------------- */

static double constant_rate(const struct schedule *s, double base, double n)
{
    (void)s, (void)n;
    return base;
}

enum { FACTOR_STEP = S_OWN, FACTOR_FACTOR, FACTOR_STOP };
static const struct hyper_row factor_hypers[] = {
    WARMING, [FACTOR_STEP] = UPDATES("step", HYPER_REQUIRED, 1, "updates between two drops"),
    [FACTOR_FACTOR] = NUMBER("factor", 1, 0, 1, "of each drop"),
    [FACTOR_STOP] = NUMBER("stop_factor_lr", 1e-8, 0, 1e6, "the rate drops no lower"),
};

/* The first drop is at n = step + 1. */
static double drops(double n, double step) { return n > 1 ? floor((n - 1) / step) : 0; }

static double factor_rate(const struct schedule *s, double base, double n)
{
    double count = drops(n, s->hypers[FACTOR_STEP]);
    return count > 0 ? fmax(base * pow(s->hypers[FACTOR_FACTOR], count), s->hypers[FACTOR_STOP]) : base;
}

enum { MULTI_FACTOR = S_OWN };
static const struct hyper_row multifactor_hypers[] = {WARMING, [MULTI_FACTOR] = NUMBER("factor", 1, 0, 1, "of each drop")};

static double multifactor_rate(const struct schedule *s, double base, double n)
{
    for (unsigned i = 0; i < s->step_count && n > s->steps[i]; i++) base *= s->hypers[MULTI_FACTOR];
    return base;
}

enum { TO_MAX = S_OWN, TO_FINAL, TO_POWER };
static const struct hyper_row poly_hypers[] = {
    WARMING, [TO_MAX] = MAX_UPDATE, [TO_FINAL] = FINAL_LR,
    [TO_POWER] = NUMBER("pwr", 2, 0, 100, "1 is a straight line"),
};
static const struct hyper_row cosine_hypers[] = {WARMING, [TO_MAX] = MAX_UPDATE, [TO_FINAL] = FINAL_LR};

/* How much of the way from the end of the warm-up to max_update is done. */
static double done(const struct schedule *s, double n)
{
    double begin = s->hypers[S_WARMUP];
    return n >= s->hypers[TO_MAX] ? 1 : (n - begin) / (s->hypers[TO_MAX] - begin);
}

static double poly_rate(const struct schedule *s, double base, double n)
{
    double final = s->hypers[TO_FINAL];
    return final + (base - final) * pow(1 - done(s, n), s->hypers[TO_POWER]);
}

static double cosine_rate(const struct schedule *s, double base, double n)
{
    double final = s->hypers[TO_FINAL];
    return final + (base - final) * (1 + cos(M_PI * done(s, n))) / 2;
}

enum { STEP_SIZE = S_OWN, STEP_GAMMA };
static const struct hyper_row step_hypers[] = {
    WARMING, [STEP_SIZE] = UPDATES("step_size", HYPER_REQUIRED, 1, "updates between two drops"),
    [STEP_GAMMA] = NUMBER("gamma", 0.1, 0, 1, "of each drop"),
};

static double step_rate(const struct schedule *s, double base, double n)
{
    return base * pow(s->hypers[STEP_GAMMA], drops(n, s->hypers[STEP_SIZE]));
}

static const struct hyper_row plain_hypers[] = {WARMING};

static double inverse_sqrt_rate(const struct schedule *s, double base, double n)
{
    double begin = fmax(s->hypers[S_WARMUP], 1);
    return base * sqrt(begin / fmax(n, begin));
}

enum { CYCLE_MAX = S_BASE + 1, CYCLE_RISE, CYCLE_DIV, CYCLE_FINAL, CYCLE_ANNEAL };
static const struct hyper_row one_cycle_hypers[] = {
    [S_BASE] = NUMBER("base_lr", NAN, 0, 1e6, "the highest rate; null is the updater's learning_rate"),
    [CYCLE_MAX] = UPDATES("max_update", HYPER_REQUIRED, 2, "the last update of the cycle"),
    [CYCLE_RISE] = NUMBER("pct_start", 0.3, 0, 1, "the part of the cycle that rises"),
    [CYCLE_DIV] = NUMBER("div_factor", 25, 1, 1e9, "how much lower the first rate is than the highest"),
    [CYCLE_FINAL] = NUMBER("final_div_factor", 1e4, 1, 1e9, "how much lower the last rate is than the first"),
    [CYCLE_ANNEAL] = {"anneal_strategy", 0, 0, 0, 1, "the form of the way", anneal_words, false},
};

static double between(const struct schedule *s, double from, double to, double part)
{
    if (s->hypers[CYCLE_ANNEAL] != 0) return from + (to - from) * part;
    return to + (from - to) * (1 + cos(M_PI * part)) / 2;
}

/* PyTorch counts from 0, so its turn is at pct_start * max_update - 1. */
static double one_cycle_rate(const struct schedule *s, double base, double n)
{
    double at = fmax(n - 1, 0), last = s->hypers[CYCLE_MAX] - 1, turn = s->hypers[CYCLE_RISE] * (last + 1) - 1;
    double first = base / s->hypers[CYCLE_DIV], lowest = first / s->hypers[CYCLE_FINAL];

    if (at >= last) return lowest;
    if (at <= turn) return turn > 0 ? between(s, first, base, at / turn) : base;
    turn = fmax(turn, 0);
    return between(s, base, lowest, (at - turn) / (last - turn));
}

/* ---- ends ------------------------------------------------------------------------------------------------------ */

static double multifactor_end(const struct schedule *s) { return s->step_count > 0 ? s->steps[s->step_count - 1] + 1 : 1; }
static double max_end(const struct schedule *s) { return s->hypers[TO_MAX]; }
static double one_cycle_end(const struct schedule *s) { return s->hypers[CYCLE_MAX]; }

/* ---- faults ----------------------------------------------------------------------------------------------------- */

static const char *no_fault(const double *h, const char **name)
{
    (void)h, (void)name;
    return NULL;
}

static const char *max_fault(const double *h, const char **name)
{
    *name = "max_update";
    return h[TO_MAX] > h[S_WARMUP] ? NULL : "must be greater than warmup_steps";
}

/* ---- the table -------------------------------------------------------------------------------------------------- */

#define HYPERS(name) name##_hypers, sizeof name##_hypers / sizeof name##_hypers[0]

static const struct schedule_row schedules[] = {
    {"constant", "base_lr, after the warm-up.", HYPERS(plain), true, false, constant_rate, NULL, no_fault},
    {"factor", "base_lr * factor^floor((n-1)/step), not below stop_factor_lr (MXNet FactorScheduler).",
     HYPERS(factor), true, false, factor_rate, NULL, no_fault},
    {"multifactor", "base_lr, multiplied by factor after each of the updates in the list step (MXNet MultiFactorScheduler).",
     HYPERS(multifactor), true, true, multifactor_rate, multifactor_end, no_fault},
    {"poly", "final_lr + (base_lr-final_lr) * (1 - (n-warmup_steps)/(max_update-warmup_steps))^pwr (MXNet PolyScheduler).",
     HYPERS(poly), true, false, poly_rate, max_end, max_fault},
    {"cosine", "final_lr + (base_lr-final_lr) * (1 + cos(pi*(n-warmup_steps)/(max_update-warmup_steps)))/2 "
               "(MXNet CosineScheduler).",
     HYPERS(cosine), true, false, cosine_rate, max_end, max_fault},
    {"step", "base_lr * gamma^floor((n-1)/step_size) (PyTorch StepLR).", HYPERS(step), true, false, step_rate, NULL, no_fault},
    {"inverse_sqrt", "base_lr * sqrt(warmup_steps/n), from the end of the warm-up.",
     HYPERS(plain), true, false, inverse_sqrt_rate, NULL, no_fault},
    {"one_cycle", "from base_lr/div_factor up to base_lr at pct_start of max_update, then down to "
                  "base_lr/div_factor/final_div_factor (PyTorch OneCycleLR, in two phases).",
     HYPERS(one_cycle), false, false, one_cycle_rate, one_cycle_end, no_fault},
};

enum { SCHEDULES = sizeof schedules / sizeof schedules[0] };

_Static_assert((int)TO_POWER < (int)SCHEDULE_HYPERS_MAX && (int)CYCLE_ANNEAL < (int)SCHEDULE_HYPERS_MAX,
               "the numbers have room");

const struct schedule_row *schedule_row_at(unsigned index) { return index < SCHEDULES ? &schedules[index] : NULL; }

const struct schedule_row *schedule_row_find(struct bytes name)
{
    for (unsigned i = 0; i < SCHEDULES; i++)
        if (bytes_equal(name, bytes_text(schedules[i].name))) return &schedules[i];
    return NULL;
}

double schedule_rate(const struct schedule *s, double learning_rate, uint64_t n)
{
    if (s->row == NULL) return learning_rate;
    const double *h = s->hypers;
    double base = isnan(h[S_BASE]) ? learning_rate : h[S_BASE], at = (double)n;

    if (!s->row->warms_up || at >= h[S_WARMUP]) return s->row->rate(s, base, at);
    if (h[S_WARMUP_MODE] != 0) return h[S_WARMUP_BEGIN];
    return h[S_WARMUP_BEGIN] + (base - h[S_WARMUP_BEGIN]) * at / h[S_WARMUP];
}

double schedule_end(const struct schedule *s)
{
    return s->row != NULL && s->row->end != NULL ? s->row->end(s) : INFINITY;
}
