#include "gpu/rule.h"

#include "gpu/rules.h"

#include <assert.h>
#include <math.h>

static const struct {
    const char *name;
    unsigned slots;
    const char *slot[2];
} facts[RULE_COUNT] = {
#define RULE_FACTS(name, slots, slot0, slot1) [RULE_##name] = {#name, slots, {slot0, slot1}},
    RULES(RULE_FACTS)
#undef RULE_FACTS
};

unsigned rule_slots(enum rule_id r) { return facts[r].slots; }
const char *rule_slot_name(enum rule_id r, unsigned slot) { return facts[r].slot[slot]; }
const char *rule_name(enum rule_id r) { return facts[r].name; }

bool rule_takes_integers(enum rule_id r)
{
#define RULE_IS(name) || r == RULE_##name
    return false INTEGER_RULES(RULE_IS);
#undef RULE_IS
}

/* Bounds are wide: they keep out what no one means (a rate of 1e300) and what has no float. */
#define HYPER_LEARNING_RATE(standard) {"learning_rate", standard, 0, 1e6, "size of a step"}
#define HYPER_WD {"wd", 0, 0, 1e6, "weight decay: this much of the value is added to the gradient"}
#define HYPER_RESCALE_GRAD {"rescale_grad", 1, -1e9, 1e9, "factor of the gradient, before anything else"}
#define HYPER_CLIP_GRADIENT {"clip_gradient", NAN, 1e-30, 1e30, "bound of each rescaled element; null is no bound"}

static void grad_scalars(double rescale, double clip, double wd, struct rule_scalars *out)
{
    out->v[GRAD_RESCALE] = rescale;
    out->v[GRAD_CLIP] = isnan(clip) ? (double)INFINITY : clip;
    out->v[GRAD_WD] = wd;
}

/* An updater that is one rule, whatever its numbers are. */
#define ONE_RULE(name)                                  \
    static enum rule_id name##_rule(const double *h)    \
    {                                                   \
        (void)h;                                        \
        return RULE_##name;                             \
    }
ONE_RULE(assign)
ONE_RULE(add)
ONE_RULE(average)
ONE_RULE(adam)
ONE_RULE(test)

static void no_scalars(const double *h, const struct update_moment *m, struct rule_scalars *out)
{
    (void)h, (void)m, (void)out;
}

static void average_scalars(const double *h, const struct update_moment *m, struct rule_scalars *out)
{
    (void)h;
    assert(m->contributors > 0);
    out->v[AVERAGE_CONTRIBUTORS] = m->contributors;
}

enum { SGD_LEARNING_RATE, SGD_MOMENTUM, SGD_WD, SGD_RESCALE_GRAD, SGD_CLIP_GRADIENT, SGD_HYPERS };

static const struct hyper_row sgd_hypers[SGD_HYPERS] = {
    [SGD_LEARNING_RATE] = HYPER_LEARNING_RATE(0.1),
    [SGD_MOMENTUM] = {"momentum", 0, 0, 1, "how much of the last movement goes on; 0 keeps no slot"},
    [SGD_WD] = HYPER_WD,
    [SGD_RESCALE_GRAD] = HYPER_RESCALE_GRAD,
    [SGD_CLIP_GRADIENT] = HYPER_CLIP_GRADIENT,
};

static enum rule_id sgd_rule(const double *h) { return h[SGD_MOMENTUM] > 0 ? RULE_momentum : RULE_sgd; }

static void sgd_scalars(const double *h, const struct update_moment *m, struct rule_scalars *out)
{
    (void)m;
    _Static_assert((int)SGD_LR == (int)MOMENTUM_LR, "one place for both rules");
    grad_scalars(h[SGD_RESCALE_GRAD], h[SGD_CLIP_GRADIENT], h[SGD_WD], out);
    out->v[MOMENTUM_LR] = h[SGD_LEARNING_RATE];
    out->v[MOMENTUM_MU] = h[SGD_MOMENTUM];
}

enum { ADAM_H_LEARNING_RATE, ADAM_H_BETA1, ADAM_H_BETA2, ADAM_H_EPSILON, ADAM_H_WD, ADAM_H_RESCALE_GRAD,
       ADAM_H_CLIP_GRADIENT, ADAM_HYPERS };

/* The betas stop short of 1, where the bias correction divides by zero. */
static const struct hyper_row adam_hypers[ADAM_HYPERS] = {
    [ADAM_H_LEARNING_RATE] = HYPER_LEARNING_RATE(0.001),
    [ADAM_H_BETA1] = {"beta1", 0.9, 0, 0.9999999, "how much of the mean is kept"},
    [ADAM_H_BETA2] = {"beta2", 0.999, 0, 0.9999999, "how much of the variance is kept"},
    [ADAM_H_EPSILON] = {"epsilon", 1e-8, 1e-30, 1, "added to the uncorrected root, so that nothing divides by zero"},
    [ADAM_H_WD] = HYPER_WD,
    [ADAM_H_RESCALE_GRAD] = HYPER_RESCALE_GRAD,
    [ADAM_H_CLIP_GRADIENT] = HYPER_CLIP_GRADIENT,
};

static void adam_scalars(const double *h, const struct update_moment *m, struct rule_scalars *out)
{
    double t = (double)m->t, b1 = h[ADAM_H_BETA1], b2 = h[ADAM_H_BETA2];

    assert(m->t > 0);
    grad_scalars(h[ADAM_H_RESCALE_GRAD], h[ADAM_H_CLIP_GRADIENT], h[ADAM_H_WD], out);
    out->v[ADAM_LR] = h[ADAM_H_LEARNING_RATE] * sqrt(1 - pow(b2, t)) / (1 - pow(b1, t));
    out->v[ADAM_BETA1] = b1;
    out->v[ADAM_REST1] = 1 - b1;
    out->v[ADAM_BETA2] = b2;
    out->v[ADAM_REST2] = 1 - b2;
    out->v[ADAM_EPSILON] = h[ADAM_H_EPSILON];
}

enum { TEST_RESCALE_GRAD, TEST_HYPERS };

static const struct hyper_row test_hypers[TEST_HYPERS] = {[TEST_RESCALE_GRAD] = HYPER_RESCALE_GRAD};

static void test_scalars(const double *h, const struct update_moment *m, struct rule_scalars *out)
{
    (void)m;
    out->v[TEST_RESCALE] = h[TEST_RESCALE_GRAD];
}

static const struct updater_row updaters[] = {
    {"assign", "w = g: the sum becomes the value. What a store without an updater does (MXNet KVStore).",
     NULL, 0, assign_rule, no_scalars},
    {"add", "w = w + g: the sums accumulate in the value.",
     NULL, 0, add_rule, no_scalars},
    {"average", "w = g / contributors: the mean of what was pushed becomes the value.",
     NULL, 0, average_rule, average_scalars},
    {"sgd", "g' = clip(rescale_grad*g) + wd*w; without momentum w = w - learning_rate*g'; with it "
            "mom = momentum*mom - learning_rate*g', w = w + mom (MXNet 2.0 SGD).",
     sgd_hypers, SGD_HYPERS, sgd_rule, sgd_scalars},
    {"adam", "g' = clip(rescale_grad*g) + wd*w; mean = beta1*mean + (1-beta1)*g'; var = beta2*var + (1-beta2)*g'^2; "
             "w = w - learning_rate*sqrt(1-beta2^t)/(1-beta1^t) * mean/(sqrt(var)+epsilon) (MXNet 2.0 Adam).",
     adam_hypers, ADAM_HYPERS, adam_rule, adam_scalars},
    {"test", "w = w + rescale_grad*g: easy to foresee, for tests (MXNet 1.x Test).",
     test_hypers, TEST_HYPERS, test_rule, test_scalars},
};

enum { UPDATERS = sizeof updaters / sizeof updaters[0] };

_Static_assert((int)UPDATERS < (int)UPDATERS_MAX, "lists of the names have room");
_Static_assert((int)SGD_HYPERS <= (int)UPDATER_HYPERS_MAX && (int)ADAM_HYPERS <= (int)UPDATER_HYPERS_MAX,
               "the hyperparameters have room");

const struct updater_row *updater_row_at(unsigned index) { return index < UPDATERS ? &updaters[index] : NULL; }

const struct updater_row *updater_row_find(struct bytes name)
{
    for (unsigned i = 0; i < UPDATERS; i++)
        if (bytes_equal(name, bytes_text(updaters[i].name))) return &updaters[i];
    return NULL;
}
