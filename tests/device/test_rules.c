/* The rules against formulas written here a second time, in long double and from the reference's text: 50 steps of
 * random data for each combination of options, f32 and f64.
 *
 * Tolerance: a step rounds fewer than 16 times, each time by at most eps/2 of numbers that stay below the scale of the
 * test (values and movements are below 8 in all combinations), and an error made in one step is carried, not
 * multiplied, into the next (momentum and adam forget, wd shrinks). So 50 * 16 * eps/2 * 8 bounds it; the scalars,
 * rounded once to f32, are among the 16. Epsilons of 0.01 are there because a misplaced 1e-8 could not be seen. */
#include "gpu/device.h"
#include "service/base/mem.h"
#include "tests/lib/test.h"

#include <float.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

enum { STEPS = 50, COUNT = 67, CONTRIBUTORS = 3 };

struct options {
    const char *updater;
    long double lr, momentum, beta1, beta2, eps, wd, rescale, clip;   /* clip NAN: off */
};

static long double clipped(const struct options *o, long double g)
{
    g *= o->rescale;
    if (!isnan((double)o->clip) && g > o->clip) g = o->clip;
    if (!isnan((double)o->clip) && g < -o->clip) g = -o->clip;
    return g;
}

/* One element by the formulas of MXNet's reference. */
static void reference(const struct options *o, unsigned t, long double sum, long double *w, long double *s)
{
    long double g = clipped(o, sum) + o->wd * *w;

    if (strcmp(o->updater, "assign") == 0) {
        *w = sum;
    } else if (strcmp(o->updater, "add") == 0) {
        *w += sum;
    } else if (strcmp(o->updater, "average") == 0) {
        *w = sum / CONTRIBUTORS;
    } else if (strcmp(o->updater, "test") == 0) {
        *w += o->rescale * sum;
    } else if (strcmp(o->updater, "sgd") == 0) {
        s[0] = o->momentum * s[0] - o->lr * g;
        *w += s[0];
    } else {
        long double rate = o->lr * sqrtl(1 - powl(o->beta2, t)) / (1 - powl(o->beta1, t));
        s[0] = o->beta1 * s[0] + (1 - o->beta1) * g;
        s[1] = o->beta2 * s[1] + (1 - o->beta2) * g * g;
        *w -= rate * s[0] / (sqrtl(s[1]) + o->eps);
    }
}

static void set_hyper(const struct updater_row *row, double *hypers, const char *name, long double v)
{
    for (unsigned i = 0; i < row->hyper_count; i++)
        if (strcmp(row->hypers[i].name, name) == 0) hypers[i] = (double)v;
}

static void set_hypers(const struct updater_row *row, const struct options *o, double *hypers)
{
    set_hyper(row, hypers, "learning_rate", o->lr);
    set_hyper(row, hypers, "momentum", o->momentum);
    set_hyper(row, hypers, "beta1", o->beta1);
    set_hyper(row, hypers, "beta2", o->beta2);
    set_hyper(row, hypers, "epsilon", o->eps);
    set_hyper(row, hypers, "wd", o->wd);
    set_hyper(row, hypers, "rescale_grad", o->rescale);
    set_hyper(row, hypers, "clip_gradient", o->clip);
}

/* ---- running on the device -------------------------------------------------------------------------------------- */

struct run {
    struct device *device;
    struct queue *queue;
    struct dmem value, sum, last, slots[2];
    enum dtype type;
    uint32_t flags;
    struct error error;
};

static double element(const struct run *r, struct dmem m, size_t i)
{
    return r->type == DTYPE_f32 ? (double)((float *)m.host)[i] : ((double *)m.host)[i];
}

static void set_element(const struct run *r, struct dmem m, size_t i, double v)
{
    if (r->type == DTYPE_f32) ((float *)m.host)[i] = (float)v;
    else ((double *)m.host)[i] = v;
}

static void run_open(struct run *r, enum dtype type)
{
    struct dmem *all[] = {&r->value, &r->sum, &r->last, &r->slots[0], &r->slots[1]};

    *r = (struct run){.type = type};
    CHECK_OK(cpu_device_new(1, &r->device, &r->error), &r->error);
    CHECK_OK(device_queue_new(r->device, &r->queue, &r->error), &r->error);
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        CHECK_OK(device_mem_new(r->device, COUNT * dtype_size(type), all[i], &r->error), &r->error);
        memset(all[i]->host, 0, COUNT * dtype_size(type));
    }
}

static void run_close(struct run *r)
{
    device_queue_free(r->queue);
    device_mem_free(&r->value);
    device_mem_free(&r->sum);
    device_mem_free(&r->last);
    device_mem_free(&r->slots[0]);
    device_mem_free(&r->slots[1]);
    device_free(r->device);
}

static void run_step(struct run *r, const struct updater_row *row, const double *hypers, unsigned t)
{
    struct update_moment moment = {.t = t, .contributors = CONTRIBUTORS};
    struct step s = {.rule = row->rule(hypers), .type = r->type, .count = COUNT, .sum = r->sum, .last = r->last,
                     .from = r->value, .to = r->value, .slots = {r->slots[0], r->slots[1]}, .flags = &r->flags};

    row->scalars(hypers, &moment, &s.scalars);
    CHECK_EQ(device_step(r->queue, &s), STATUS_OK);
}

static double uniform(uint64_t *random) { return (double)(rng_next(random) >> 11) * 0x1p-52 - 1; }

static void compare(const struct run *r, const struct options *o, const long double *w)
{
    double eps = r->type == DTYPE_f32 ? (double)FLT_EPSILON : DBL_EPSILON, tolerance = STEPS * 16 * eps / 2 * 8;

    for (size_t i = 0; i < COUNT; i++) {
        double got = element(r, r->value, i), want = (double)w[i];
        if (!(fabs(got - want) <= tolerance))
            test_fail(__FILE__, __LINE__, "%s %s, element %zu: %.17g, not %.17g (momentum %g, eps %g, wd %g, rescale %g, "
                      "clip %g)", o->updater, dtype_name(r->type), i, got, want, (double)o->momentum, (double)o->eps,
                      (double)o->wd, (double)o->rescale, (double)o->clip);
    }
    CHECK_EQ(r->flags, 0);
}

static void fifty_steps(const struct options *o, enum dtype type)
{
    const struct updater_row *row = updater_row_find(bytes_text(o->updater));
    long double w[COUNT], slots[COUNT][2];
    double hypers[UPDATER_HYPERS_MAX] = {0};
    uint64_t random = 5;
    struct run r;

    CHECK(row != NULL);
    set_hypers(row, o, hypers);
    run_open(&r, type);
    memset(slots, 0, sizeof slots);
    for (size_t i = 0; i < COUNT; i++) {
        set_element(&r, r.value, i, uniform(&random));
        w[i] = element(&r, r.value, i);
    }
    for (unsigned t = 1; t <= STEPS; t++) {
        for (size_t i = 0; i < COUNT; i++) {
            set_element(&r, r.sum, i, uniform(&random) / 2);
            set_element(&r, r.last, i, uniform(&random) / 2);
            reference(o, t, (long double)element(&r, r.sum, i) + element(&r, r.last, i), &w[i], slots[i]);
        }
        run_step(&r, row, hypers, t);
    }
    compare(&r, o, w);
    run_close(&r);
}

/* Every combination of wd, rescale_grad and clip_gradient. */
static void all_combinations(struct options o)
{
    for (unsigned bits = 0; bits < 8; bits++) {
        o.wd = bits & 1 ? 0.03L : 0;
        o.rescale = bits & 2 ? 0.6L : 1;
        o.clip = bits & 4 ? 0.3L : (long double)NAN;
        fifty_steps(&o, DTYPE_f32);
        fifty_steps(&o, DTYPE_f64);
    }
}

TEST(sgd_agrees_with_its_formula) { all_combinations((struct options){.updater = "sgd", .lr = 0.1L}); }

TEST(sgd_with_momentum_agrees_with_its_formula)
{
    all_combinations((struct options){.updater = "sgd", .lr = 0.1L, .momentum = 0.9L});
}

TEST(adam_agrees_with_its_formula)
{
    struct options o = {.updater = "adam", .lr = 0.01L, .beta1 = 0.9L, .beta2 = 0.999L};

    for (o.eps = 1e-8L; o.eps < 1; o.eps *= 1e6L) all_combinations(o);
}

TEST(simple_rules_agree_with_their_formulas)
{
    static const char *const names[] = {"assign", "add", "average", "test"};

    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        struct options o = {.updater = names[i], .rescale = 1, .clip = (long double)NAN};
        fifty_steps(&o, DTYPE_f32);
        fifty_steps(&o, DTYPE_f64);
        o.rescale = -0.6L;
        fifty_steps(&o, DTYPE_f32);
    }
}

/* By hand: w 1, g 0.5, lr 0.5, mu 0.5: mom -0.25, w 0.75; then mom -0.375, w 0.375. Exact in binary. */
TEST(momentum_moves_by_the_old_movement_less_the_rate_times_gradient)
{
    const struct updater_row *row = updater_row_find(bytes_text("sgd"));
    double hypers[UPDATER_HYPERS_MAX] = {0};
    struct options o = {.updater = "sgd", .lr = 0.5L, .momentum = 0.5L, .rescale = 1, .clip = (long double)NAN};
    struct run r;

    set_hypers(row, &o, hypers);
    run_open(&r, DTYPE_f32);
    for (size_t i = 0; i < COUNT; i++) {
        set_element(&r, r.value, i, 1);
        set_element(&r, r.sum, i, 0.5);
    }
    run_step(&r, row, hypers, 1);
    CHECK(element(&r, r.value, COUNT - 1) == 0.75);
    run_step(&r, row, hypers, 2);
    CHECK(element(&r, r.value, COUNT - 1) == 0.375);
    CHECK(element(&r, r.slots[0], COUNT - 1) == -0.375);
    run_close(&r);
}

TEST(sgd_without_momentum_needs_no_slot)
{
    const struct updater_row *row = updater_row_find(bytes_text("sgd"));
    double hypers[UPDATER_HYPERS_MAX] = {0.1, 0, 0, 1, NAN};

    CHECK_EQ(row->rule(hypers), RULE_sgd);
    CHECK_EQ(rule_slots(RULE_sgd), 0);
    hypers[1] = 0.9;
    CHECK_EQ(row->rule(hypers), RULE_momentum);
    CHECK_TEXT(rule_slot_name(RULE_momentum, 0), "momentum");
}

TEST(clip_lets_nan_through_and_bounds_infinity)
{
    const struct updater_row *row = updater_row_find(bytes_text("sgd"));
    double hypers[UPDATER_HYPERS_MAX] = {1, 0, 0, 1, 0.25};
    struct run r;

    run_open(&r, DTYPE_f32);
    set_element(&r, r.sum, 0, NAN);
    set_element(&r, r.sum, 1, INFINITY);
    set_element(&r, r.sum, 2, -INFINITY);
    run_step(&r, row, hypers, 1);
    CHECK(isnan(element(&r, r.value, 0)));
    CHECK(element(&r, r.value, 1) == -0.25);
    CHECK(element(&r, r.value, 2) == 0.25);
    run_close(&r);
}

/* f64 values must not pass through float: a third has other bits there. */
TEST(f64_is_computed_in_double)
{
    const struct updater_row *row = updater_row_find(bytes_text("sgd"));
    double hypers[UPDATER_HYPERS_MAX] = {0.1, 0, 0, 1, NAN};
    struct run r;

    run_open(&r, DTYPE_f64);
    set_element(&r, r.value, 0, 1.0 / 3);
    set_element(&r, r.sum, 0, 1.0 / 7);
    run_step(&r, row, hypers, 1);
    CHECK(element(&r, r.value, 0) == 1.0 / 3 - 0.1 * (1.0 / 7));
    run_close(&r);
}

TEST(only_rules_without_fractions_take_integers)
{
    for (unsigned i = 0; i < RULE_COUNT; i++)
        CHECK_EQ(rule_takes_integers((enum rule_id)i), i == RULE_assign || i == RULE_add || i == RULE_average);
}
