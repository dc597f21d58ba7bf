/* The updaters: their names and numbers, which rule each chooses, and the scalars that it makes for a step. How to add one
 * stands in gpu/updaters.md, "To add an updater". */
#include "gpu/rules.h"
#include "gpu/whole.h"

#include <assert.h>
#include <math.h>
#include <string.h>
#include <strings.h>

const char *const hyper_flag[] = {"false", "true", NULL};
const char *const hyper_convention[] = {"mxnet", "torch", NULL};

/* ---- members ---------------------------------------------------------------------------------------------------- */

/* Bounds are wide: they keep out what no one means (a rate of 1e300) and what has no float. */
#define NUMBER2(name, standard, torch, least, most, text) {name, standard, torch, least, most, text, NULL, false}
#define NUMBER(name, standard, least, most, text) NUMBER2(name, standard, standard, least, most, text)
#define FLAG(name, standard, text) {name, standard, standard, 0, 1, text, hyper_flag, false}

#define RESCALE_GRAD NUMBER("rescale_grad", 1, -1e9, 1e9, "factor of the gradient, before anything else")
#define RATE(standard, torch) NUMBER2("learning_rate", standard, torch, 0, 1e6, "size of a step")
#define WD(standard, torch) NUMBER2("wd", standard, torch, 0, 1e6, "weight decay")
#define COMMON_OF(rate, wd)                                                                                          \
    [H_RATE] = rate, [H_WD] = wd, [H_RESCALE] = RESCALE_GRAD,                                                        \
    [H_CLIP] = NUMBER("clip_gradient", NAN, 1e-30, 1e30, "bound of each rescaled element; null is no bound"),        \
    [H_PRECISION] = FLAG("multi_precision", 1, "f16 and bf16 values keep an f32 master")
#define COMMON(rate) COMMON_OF(RATE(rate, rate), WD(0, 0))

/* The betas stop short of 1, where the bias correction divides by zero. */
#define BETA1(standard) NUMBER("beta1", standard, 0, 0.9999999, "how much of the mean is kept")
#define BETA2(standard) NUMBER("beta2", standard, 0, 0.9999999, "how much of the variance is kept")
#define EPSILON(standard, torch)                                                                                     \
    NUMBER2("epsilon", standard, torch, 1e-30, 1, "added where the division is, so that nothing divides by zero")
#define MOMENTUM(standard, torch)                                                                                    \
    NUMBER2("momentum", standard, torch, 0, 1, "how much of the last movement goes on; 0 keeps no slot")
#define CORRECT_BIAS(name, standard) FLAG(name, standard, "the means are freed of their start at zero")
#define CONVENTION {"convention", 0, 0, 0, 1, "whose defaults, epsilon and weight decay", hyper_convention, false}

/* ---- what many updaters share ----------------------------------------------------------------------------------- */

/* An updater that is one rule, whatever its numbers are. */
#define ONE_RULE(name)                                                              \
    static enum rule_id name##_rule(const double *h, const struct rule_key *key)    \
    {                                                                               \
        (void)h, (void)key;                                                         \
        return RULE_##name;                                                         \
    }

static void no_scalars(const double *h, struct update_moment *m, struct rule_scalars *out)
{
    (void)h, (void)m, (void)out;
}

/* NAN is no bound. */
static double bound_of(double h) { return isnan(h) ? (double)INFINITY : h; }

/* wd: as part of the gradient; 0 where the rule has it elsewhere. */
static void grad_scalars(const double *h, double wd, struct rule_scalars *out)
{
    out->v[GRAD_RESCALE] = h[H_RESCALE];
    out->v[GRAD_CLIP] = bound_of(h[H_CLIP]);
    out->v[GRAD_WD] = wd;
}

/* What rules divide by is never zero. */
static double divisor(double rate) { return rate > 1e-12 ? rate : 1e-12; }

/* Where the members of the adam family begin. */
enum { A_BETA1 = H_OWN, A_BETA2, A_EPSILON, A_OWN };

struct correction {
    double mean, root;       /* 1 - beta1^t, sqrt(1 - beta2^t); 1 when the bias is not corrected */
};

static struct correction correction_of(const double *h, const struct update_moment *m, bool correct)
{
    assert(m->t > 0);
    if (!correct) return (struct correction){1, 1};
    return (struct correction){1 - pow(h[A_BETA1], (double)m->t), sqrt(1 - pow(h[A_BETA2], (double)m->t))};
}

static void adam_family(const double *h, double wd, struct correction c, bool torch, struct rule_scalars *out)
{
    grad_scalars(h, wd, out);
    out->v[ADAM_LR] = h[H_RATE] * c.root / c.mean;
    out->v[ADAM_BETA1] = h[A_BETA1];
    out->v[ADAM_REST1] = 1 - h[A_BETA1];
    out->v[ADAM_BETA2] = h[A_BETA2];
    out->v[ADAM_REST2] = 1 - h[A_BETA2];
    /* PyTorch adds epsilon to the corrected root: the same as so much to the uncorrected one. */
    out->v[ADAM_EPSILON] = torch ? h[A_EPSILON] * c.root : h[A_EPSILON];
}

/* ---- assign, add, average, ema, test ---------------------------------------------------------------------------- */

ONE_RULE(assign)
ONE_RULE(add)
ONE_RULE(average)
ONE_RULE(ema)
ONE_RULE(test)
ONE_RULE(program)

static void average_scalars(const double *h, struct update_moment *m, struct rule_scalars *out)
{
    (void)h;
    assert(m->contributors > 0);
    out->v[AVERAGE_CONTRIBUTORS] = m->contributors;
}

enum { EMA_H_DECAY, EMA_HYPERS };
static const struct hyper_row ema_hypers[] = {
    [EMA_H_DECAY] = NUMBER("decay", 0.999, 0, 1, "how much of the average is kept"),
};

static void ema_scalars(const double *h, struct update_moment *m, struct rule_scalars *out)
{
    assert(m->contributors > 0);
    out->v[EMA_CONTRIBUTORS] = m->contributors;
    out->v[EMA_DECAY] = h[EMA_H_DECAY];
    out->v[EMA_REST] = 1 - h[EMA_H_DECAY];
}

static const struct hyper_row test_hypers[] = {RESCALE_GRAD};

static void test_scalars(const double *h, struct update_moment *m, struct rule_scalars *out)
{
    (void)m;
    out->v[TEST_RESCALE] = h[0];
}

/* ---- sgd, nag, diloco ------------------------------------------------------------------------------------------- */

enum { SGD_MOMENTUM = H_OWN, SGD_CONVENTION };
static const struct hyper_row sgd_hypers[] = {
    COMMON(0.1), [SGD_MOMENTUM] = MOMENTUM(0, 0), [SGD_CONVENTION] = CONVENTION,
};
static const struct hyper_row nag_hypers[] = {
    COMMON(0.1), [SGD_MOMENTUM] = MOMENTUM(0.9, 0.9), [SGD_CONVENTION] = CONVENTION,
};
static const struct hyper_row diloco_hypers[] = {COMMON(0.7), [SGD_MOMENTUM] = MOMENTUM(0.9, 0.9)};

static enum rule_id sgd_rule(const double *h, const struct rule_key *key)
{
    (void)key;
    if (h[SGD_MOMENTUM] == 0) return RULE_sgd;
    return h[SGD_CONVENTION] != 0 ? RULE_velocity : RULE_momentum;
}

static enum rule_id nag_rule(const double *h, const struct rule_key *key)
{
    (void)key;
    if (h[SGD_MOMENTUM] == 0) return RULE_sgd;
    return h[SGD_CONVENTION] != 0 ? RULE_nesterov : RULE_nag;
}

static enum rule_id diloco_rule(const double *h, const struct rule_key *key)
{
    (void)key;
    return h[SGD_MOMENTUM] == 0 ? RULE_sgd : RULE_nesterov;
}

static void sgd_scalars(const double *h, struct update_moment *m, struct rule_scalars *out)
{
    (void)m;
    _Static_assert((int)SGD_LR == (int)MOMENTUM_LR, "one place for all of these rules");
    grad_scalars(h, h[H_WD], out);
    out->v[MOMENTUM_LR] = h[H_RATE];
    out->v[MOMENTUM_MU] = h[SGD_MOMENTUM];
}

static void diloco_scalars(const double *h, struct update_moment *m, struct rule_scalars *out)
{
    assert(m->contributors > 0);
    sgd_scalars(h, m, out);
    out->v[GRAD_RESCALE] = h[H_RESCALE] / m->contributors;
}

/* ---- adam and its kin ------------------------------------------------------------------------------------------- */

ONE_RULE(adam)
ONE_RULE(adamw)
ONE_RULE(adabelief)
ONE_RULE(adamax)
ONE_RULE(nadam)
ONE_RULE(radam)
ONE_RULE(yogi)
ONE_RULE(lion)

enum { ADAM_CORRECT = A_OWN, ADAM_CONVENTION };
static const struct hyper_row adam_hypers[] = {
    COMMON(0.001), BETA1(0.9), BETA2(0.999), EPSILON(1e-8, 1e-8),
    [ADAM_CORRECT] = CORRECT_BIAS("correct_bias", 1), [ADAM_CONVENTION] = CONVENTION,
};
static const struct hyper_row adamw_hypers[] = {
    COMMON_OF(RATE(0.001, 0.001), WD(0, 0.01)), BETA1(0.9), BETA2(0.999), EPSILON(1e-6, 1e-8),
    [ADAM_CORRECT] = CORRECT_BIAS("correct_bias", 1), [ADAM_CONVENTION] = CONVENTION,
};
static const struct hyper_row adabelief_hypers[] = {
    COMMON(0.001), BETA1(0.9), BETA2(0.999), EPSILON(1e-6, 1e-6),
    [ADAM_CORRECT] = CORRECT_BIAS("correct_bias", 1),
};
static const struct hyper_row yogi_hypers[] = {
    COMMON(0.01), BETA1(0.9), BETA2(0.999), EPSILON(1e-3, 1e-3),
    [ADAM_CORRECT] = CORRECT_BIAS("correct_bias", 0),
};

static void adam_scalars(const double *h, struct update_moment *m, struct rule_scalars *out)
{
    adam_family(h, h[H_WD], correction_of(h, m, h[ADAM_CORRECT] != 0), h[ADAM_CONVENTION] != 0, out);
}

/* MXNet decays by the corrected rate, PyTorch by the plain one; LR is the former. */
static void adamw_scalars(const double *h, struct update_moment *m, struct rule_scalars *out)
{
    struct correction c = correction_of(h, m, h[ADAM_CORRECT] != 0);
    bool torch = h[ADAM_CONVENTION] != 0;

    adam_family(h, 0, c, torch, out);
    out->v[ADAMW_WD] = torch ? h[H_WD] * c.mean / c.root : h[H_WD];
}

static void adabelief_scalars(const double *h, struct update_moment *m, struct rule_scalars *out)
{
    adam_family(h, h[H_WD], correction_of(h, m, h[ADAM_CORRECT] != 0), false, out);
}

enum { ADAMAX_CONVENTION = A_OWN };
static const struct hyper_row adamax_hypers[] = {
    COMMON(0.002), BETA1(0.9), BETA2(0.999), EPSILON(1e-8, 1e-8), [ADAMAX_CONVENTION] = CONVENTION,
};

static void adamax_scalars(const double *h, struct update_moment *m, struct rule_scalars *out)
{
    bool torch = h[ADAMAX_CONVENTION] != 0;

    adam_family(h, h[H_WD], correction_of(h, m, true), false, out);
    out->v[ADAM_LR] = h[H_RATE] / correction_of(h, m, true).mean;
    out->v[ADAMAX_EPSILON_IN] = torch ? h[A_EPSILON] : 0;
    if (torch) out->v[ADAM_EPSILON] = 0;
}

enum { NADAM_DECAY = A_OWN, NADAM_CONVENTION };
static const struct hyper_row nadam_hypers[] = {
    COMMON_OF(RATE(0.001, 0.002), WD(0, 0)), BETA1(0.9), BETA2(0.999), EPSILON(1e-8, 1e-8),
    [NADAM_DECAY] = NUMBER("schedule_decay", 0.004, 0, 1, "how fast the momentum comes to beta1"),
    [NADAM_CONVENTION] = CONVENTION,
};

/* Both fractions have epsilon under them after the correction of the root; all is multiplied by it. */
static void nadam_scalars(const double *h, struct update_moment *m, struct rule_scalars *out)
{
    struct correction c = correction_of(h, m, true);
    double t = (double)m->t, mu = h[A_BETA1] * (1 - 0.5 * pow(0.96, t * h[NADAM_DECAY]));
    double mu_next = h[A_BETA1] * (1 - 0.5 * pow(0.96, (t + 1) * h[NADAM_DECAY]));

    m->product *= mu;
    adam_family(h, h[H_WD], c, true, out);
    out->v[ADAM_LR] = h[H_RATE] * c.root * mu_next / (1 - m->product * mu_next);
    out->v[NADAM_LR_GRADIENT] = h[H_RATE] * c.root * (1 - mu) / (1 - m->product);
}

enum { RADAM_CONVENTION = A_OWN };
static const struct hyper_row radam_hypers[] = {
    COMMON(0.001), BETA1(0.9), BETA2(0.999), EPSILON(1e-8, 1e-8), [RADAM_CONVENTION] = CONVENTION,
};

static void radam_scalars(const double *h, struct update_moment *m, struct rule_scalars *out)
{
    struct correction c = correction_of(h, m, true);
    double t = (double)m->t, left = pow(h[A_BETA2], t), longest = 2 / (1 - h[A_BETA2]) - 1;
    double length = longest - 2 * t * left / (1 - left);
    bool is_known = length > 5;

    adam_family(h, h[H_WD], c, false, out);
    out->v[RADAM_ROOT] = is_known;
    if (!is_known) {
        out->v[ADAM_LR] = h[H_RATE] / c.mean;
        out->v[ADAM_EPSILON] = 1;
        return;
    }
    out->v[ADAM_LR] *= sqrt((length - 4) * (length - 2) * longest / ((longest - 4) * (longest - 2) * length));
}

static const struct hyper_row lion_hypers[] = {
    COMMON(0.0001), BETA1(0.9),
    [A_BETA2] = NUMBER("beta2", 0.99, 0, 0.9999999, "how much of the mean is kept for the next step"),
};

static void lion_scalars(const double *h, struct update_moment *m, struct rule_scalars *out)
{
    (void)m;
    grad_scalars(h, 0, out);
    out->v[LION_LR] = h[H_RATE];
    out->v[ADAM_BETA1] = h[A_BETA1];
    out->v[ADAM_REST1] = 1 - h[A_BETA1];
    out->v[ADAM_BETA2] = h[A_BETA2];
    out->v[ADAM_REST2] = 1 - h[A_BETA2];
    out->v[LION_WD] = h[H_WD];
}

ONE_RULE(ftml)
static const struct hyper_row ftml_hypers[] = {COMMON(0.0025), BETA1(0.6), BETA2(0.999), EPSILON(1e-8, 1e-8)};

static void ftml_scalars(const double *h, struct update_moment *m, struct rule_scalars *out)
{
    struct correction c = correction_of(h, m, true);

    adam_family(h, h[H_WD], c, false, out);
    out->v[FTML_RATE] = c.mean / divisor(h[H_RATE]);
    out->v[FTML_CORRECTION] = c.root * c.root;
}

/* ---- adagrad, adadelta, rmsprop --------------------------------------------------------------------------------- */

ONE_RULE(adagrad)
ONE_RULE(adadelta)
ONE_RULE(groupadagrad)

enum { ADAGRAD_H_EPSILON = H_OWN, ADAGRAD_CONVENTION };
static const struct hyper_row adagrad_hypers[] = {
    COMMON(0.01), [ADAGRAD_H_EPSILON] = EPSILON(1e-6, 1e-10), [ADAGRAD_CONVENTION] = CONVENTION,
};
static const struct hyper_row groupadagrad_hypers[] = {
    COMMON_OF(RATE(0.01, 0.01), NUMBER("wd", 0, 0, 0, "there is none in this updater")),
    [ADAGRAD_H_EPSILON] = EPSILON(1e-6, 1e-6),
};

static void adagrad_scalars(const double *h, struct update_moment *m, struct rule_scalars *out)
{
    (void)m;
    grad_scalars(h, h[H_WD], out);
    out->v[ADAGRAD_LR] = h[H_RATE];
    out->v[ADAGRAD_EPSILON] = h[ADAGRAD_H_EPSILON];
}

#define RHO(standard, torch) NUMBER2("rho", standard, torch, 0, 0.9999999, "how much of the means is kept")

enum { RHO_AT = H_OWN, RHO_EPSILON, ADADELTA_CONVENTION };
static const struct hyper_row adadelta_hypers[] = {
    COMMON(1), [RHO_AT] = RHO(0.9, 0.9), [RHO_EPSILON] = EPSILON(1e-6, 1e-6),
    [ADADELTA_CONVENTION] = CONVENTION,
};

static void adadelta_scalars(const double *h, struct update_moment *m, struct rule_scalars *out)
{
    (void)m;
    grad_scalars(h, h[H_WD], out);
    out->v[ADADELTA_LR] = h[H_RATE];
    out->v[ADADELTA_RHO] = h[RHO_AT];
    out->v[ADADELTA_REST] = 1 - h[RHO_AT];
    out->v[ADADELTA_EPSILON] = h[RHO_EPSILON];
}

enum { RMS_MOMENTUM = RHO_EPSILON + 1, RMS_CENTERED, RMS_CLIP, RMS_CONVENTION };
static const struct hyper_row rmsprop_hypers[] = {
    COMMON_OF(RATE(0.001, 0.01), WD(0, 0)), [RHO_AT] = RHO(0.9, 0.99), [RHO_EPSILON] = EPSILON(1e-8, 1e-8),
    [RMS_MOMENTUM] = NUMBER2("momentum", 0.9, 0, 0, 1, "how much of the last movement goes on; mxnet: only when centered"),
    [RMS_CENTERED] = FLAG("centered", 0, "the square of the mean is taken off the mean of squares"),
    [RMS_CLIP] = NUMBER("clip_weights", NAN, 1e-30, 1e30, "bound of each element of the value; null is no bound"),
    [RMS_CONVENTION] = CONVENTION,
};

static enum rule_id rmsprop_rule(const double *h, const struct rule_key *key)
{
    bool torch = h[RMS_CONVENTION] != 0;

    (void)key;
    if (h[RMS_CENTERED] != 0) return torch ? RULE_rmsprop_torch : RULE_rmsprop_centered;
    return torch && h[RMS_MOMENTUM] != 0 ? RULE_rmsprop_velocity : RULE_rmsprop;
}

static void rmsprop_scalars(const double *h, struct update_moment *m, struct rule_scalars *out)
{
    bool torch = h[RMS_CONVENTION] != 0, outside = torch || h[RMS_CENTERED] == 0;

    (void)m;
    grad_scalars(h, h[H_WD], out);
    out->v[RMS_LR] = h[H_RATE];
    out->v[RMS_RHO] = h[RHO_AT];
    out->v[RMS_REST] = 1 - h[RHO_AT];
    out->v[RMS_EPSILON] = outside ? h[RHO_EPSILON] : 0;
    out->v[RMS_EPSILON_IN] = outside ? 0 : h[RHO_EPSILON];
    out->v[RMS_BOUND] = bound_of(h[RMS_CLIP]);
    out->v[RMS_MU] = h[RMS_MOMENTUM];
    out->v[RMS_IN] = torch ? 1 : -h[H_RATE];
    out->v[RMS_OUT] = torch ? -h[H_RATE] : 1;
}

/* ---- ftrl, signum, dcasgd, sgld --------------------------------------------------------------------------------- */

ONE_RULE(ftrl)
ONE_RULE(sgld)

enum { FTRL_H_LAMBDA = H_OWN, FTRL_H_BETA };
static const struct hyper_row ftrl_hypers[] = {
    COMMON(0.1),
    [FTRL_H_LAMBDA] = NUMBER("lamda1", 0.01, 0, 1e6, "below this the value is zero (MXNet's spelling)"),
    [FTRL_H_BETA] = NUMBER("beta", 1, 1e-30, 1e6, "the larger, the smaller the first steps"),
};

static void ftrl_scalars(const double *h, struct update_moment *m, struct rule_scalars *out)
{
    (void)m;
    grad_scalars(h, 0, out);
    out->v[FTRL_PER_LR] = 1 / divisor(h[H_RATE]);
    out->v[FTRL_LAMBDA] = h[FTRL_H_LAMBDA];
    out->v[FTRL_BETA] = h[FTRL_H_BETA];
    out->v[FTRL_WD] = h[H_WD];
}

enum { SIGNUM_MOMENTUM = H_OWN, SIGNUM_WD_LH };
static const struct hyper_row signum_hypers[] = {
    COMMON(0.01), [SIGNUM_MOMENTUM] = MOMENTUM(0.9, 0.9),
    [SIGNUM_WD_LH] = NUMBER("wd_lh", 0, 0, 1e6, "weight decay of the value itself"),
};

static enum rule_id signum_rule(const double *h, const struct rule_key *key)
{
    (void)key;
    return h[SIGNUM_MOMENTUM] == 0 ? RULE_signsgd : RULE_signum;
}

static void signum_scalars(const double *h, struct update_moment *m, struct rule_scalars *out)
{
    bool plain = h[SIGNUM_MOMENTUM] == 0;

    (void)m;
    grad_scalars(h, h[H_WD], out);
    out->v[SIGN_LR] = h[H_RATE];
    out->v[SIGN_KEEP] = 1 - h[H_RATE] * (h[SIGNUM_WD_LH] + (plain ? h[H_WD] : 0));
    out->v[SIGN_MU] = h[SIGNUM_MOMENTUM];
    out->v[SIGN_REST] = 1 - h[SIGNUM_MOMENTUM];
}

enum { DCASGD_MOMENTUM = H_OWN, DCASGD_H_LAMBDA };
static const struct hyper_row dcasgd_hypers[] = {
    COMMON(0.1), [DCASGD_MOMENTUM] = MOMENTUM(0, 0),
    [DCASGD_H_LAMBDA] = NUMBER("lamda", 0.04, 0, 1e6, "how much of the delay is compensated (MXNet's spelling)"),
};

static enum rule_id dcasgd_rule(const double *h, const struct rule_key *key)
{
    (void)key;
    return h[DCASGD_MOMENTUM] == 0 ? RULE_dcasgd : RULE_dcasgd_momentum;
}

static void dcasgd_scalars(const double *h, struct update_moment *m, struct rule_scalars *out)
{
    (void)m;
    grad_scalars(h, h[H_WD], out);
    out->v[DCASGD_LR] = h[H_RATE];
    out->v[DCASGD_MU] = h[DCASGD_MOMENTUM];
    out->v[DCASGD_LAMBDA] = h[DCASGD_H_LAMBDA];
}

/* The seed is a member like others; updater_step makes the place of the random numbers from it. */
static const struct hyper_row sgld_hypers[] = {
    COMMON(0.1), {"seed", 0, 0, 0, 9007199254740991.0, "of the random numbers", NULL, true},
};

static void sgld_scalars(const double *h, struct update_moment *m, struct rule_scalars *out)
{
    (void)m;
    grad_scalars(h, h[H_WD], out);
    out->v[SGLD_HALF_LR] = h[H_RATE] / 2;
    out->v[SGLD_SIGMA] = sqrt(h[H_RATE]);
}

/* ---- whole tensors: lars, lamb, lans, adafactor ----------------------------------------------------------------- */

enum { LARS_MOMENTUM = H_OWN, LARS_H_ETA, LARS_H_EPSILON };
static const struct hyper_row lars_hypers[] = {
    COMMON(0.1), [LARS_MOMENTUM] = MOMENTUM(0, 0),
    [LARS_H_ETA] = NUMBER("eta", 0.001, 0, 1e6, "factor of the ratio of the norms"),
    [LARS_H_EPSILON] = EPSILON(1e-8, 1e-8),
};

static bool ends_with(struct bytes name, const char *end)
{
    size_t size = strlen(end);
    return name.size >= size && memcmp((const char *)name.at + name.size - size, end, size) == 0;
}

static enum rule_id lars_rule(const double *h, const struct rule_key *key)
{
    bool plain = ends_with(key->name, "gamma") || ends_with(key->name, "beta") || ends_with(key->name, "bias");

    if (h[LARS_MOMENTUM] == 0) return plain ? RULE_sgd : RULE_lars;
    return plain ? RULE_momentum : RULE_lars_momentum;
}

static void lars_scalars(const double *h, struct update_moment *m, struct rule_scalars *out)
{
    (void)m;
    grad_scalars(h, h[H_WD], out);
    out->v[MOMENTUM_LR] = h[H_RATE];
    out->v[MOMENTUM_MU] = h[LARS_MOMENTUM];
    out->v[LARS_ETA] = h[LARS_H_ETA];
    out->v[LARS_EPSILON] = h[LARS_H_EPSILON];
}

ONE_RULE(lamb)
ONE_RULE(lans)

enum { LAMB_H_LOWER = A_OWN, LAMB_H_UPPER, LAMB_CORRECT };
#define LAMB_BOUNDS                                                                                                  \
    [LAMB_H_LOWER] = NUMBER("lower_bound", NAN, 0, 1e30, "least norm of the value that counts; null is none"),       \
    [LAMB_H_UPPER] = NUMBER("upper_bound", NAN, 0, 1e30, "greatest norm of the value that counts; null is none")
static const struct hyper_row lamb_hypers[] = {
    COMMON(0.001), BETA1(0.9), BETA2(0.999), EPSILON(1e-6, 1e-6), LAMB_BOUNDS,
    [LAMB_CORRECT] = CORRECT_BIAS("bias_correction", 1),
};
static const struct hyper_row lans_hypers[] = {
    COMMON(0.001), BETA1(0.9), BETA2(0.999), EPSILON(1e-6, 1e-6), LAMB_BOUNDS,
};

static void lamb_family(const double *h, struct correction c, struct rule_scalars *out)
{
    adam_family(h, 0, c, false, out);
    out->v[ADAM_LR] = h[H_RATE];
    out->v[LAMB_CORRECTION1] = c.mean;
    out->v[LAMB_CORRECTION2] = c.root;
    out->v[LAMB_WD] = h[H_WD];
    out->v[LAMB_LOWER] = isnan(h[LAMB_H_LOWER]) ? 0 : h[LAMB_H_LOWER];
    out->v[LAMB_UPPER] = bound_of(h[LAMB_H_UPPER]);
}

static void lamb_scalars(const double *h, struct update_moment *m, struct rule_scalars *out)
{
    lamb_family(h, correction_of(h, m, h[LAMB_CORRECT] != 0), out);
}

static void lans_scalars(const double *h, struct update_moment *m, struct rule_scalars *out)
{
    lamb_family(h, correction_of(h, m, true), out);
}

enum { AF_CLIP = H_OWN, AF_DECAY, AF_EPSILON, AF_EPSILON2, AF_SCALE };
static const struct hyper_row adafactor_hypers[] = {
    COMMON_OF(NUMBER("learning_rate", NAN, 0, 1e6, "size of a step; null is min(0.01, 1/sqrt(t))"), WD(0, 0)),
    [AF_CLIP] = NUMBER("clip_threshold", 1, 1e-6, 1e6, "the root of the mean square of a movement is at most this"),
    [AF_DECAY] = NUMBER("decay_rate", 0.8, 0, 10, "the means keep 1 - t^-decay_rate"),
    [AF_EPSILON] = NUMBER("epsilon", 1e-30, 1e-37, 1, "added to the square of the gradient"),
    [AF_EPSILON2] = NUMBER("epsilon2", 1e-3, 0, 1, "least size of a value that counts in scale_parameter"),
    [AF_SCALE] = FLAG("scale_parameter", 1, "steps are in proportion to the size of the value"),
};

static enum rule_id adafactor_rule(const double *h, const struct rule_key *key)
{
    (void)h;
    return key->ndim < 2 ? RULE_adafactor_vector : RULE_adafactor;
}

static void adafactor_scalars(const double *h, struct update_moment *m, struct rule_scalars *out)
{
    double t = (double)m->t, rest = pow(t, -h[AF_DECAY]);

    assert(m->t > 0);
    grad_scalars(h, 0, out);
    out->v[ADAFACTOR_LR] = isnan(h[H_RATE]) ? fmin(0.01, 1 / sqrt(t)) * m->lr_mult : h[H_RATE];
    out->v[ADAFACTOR_BETA] = 1 - rest;
    out->v[ADAFACTOR_REST] = rest;
    out->v[ADAFACTOR_CLIP] = h[AF_CLIP];
    out->v[ADAFACTOR_EPSILON] = h[AF_EPSILON];
    out->v[ADAFACTOR_LEAST] = h[AF_EPSILON2];
    out->v[ADAFACTOR_SCALE] = h[AF_SCALE];
    out->v[ADAFACTOR_WD] = h[H_WD];
}

/* ---- the table -------------------------------------------------------------------------------------------------- */

#define HYPERS(name) name##_hypers, sizeof name##_hypers / sizeof name##_hypers[0]
#define ROW_AS(name, other, counts, text) {#name, text, HYPERS(name), true, counts, name##_rule, other##_scalars}
#define ROW(name, counts, text) ROW_AS(name, name, counts, text)

static const struct updater_row updaters[] = {
    {"assign", "w = g: the sum becomes the value. What a store without an updater does (MXNet KVStore).",
     NULL, 0, false, false, assign_rule, no_scalars},
    {"add", "w = w + g: the sums accumulate in the value.",
     NULL, 0, false, false, add_rule, no_scalars},
    {"average", "w = g / contributors: the mean of what was pushed becomes the value.",
     NULL, 0, false, false, average_rule, average_scalars},
    {"ema", "w = g / contributors; average = decay*average + (1-decay)*w, which begins as the value.",
     HYPERS(ema), false, false, ema_rule, ema_scalars},
    ROW(sgd, false, "without momentum w = w - learning_rate*g'; with it mom = momentum*mom - learning_rate*g', "
                    "w = w + mom (MXNet 2.0 SGD)."),
    ROW_AS(nag, sgd, false, "mom = momentum*mom - learning_rate*g'; w = w + momentum*mom - learning_rate*g' (MXNet 2.0 NAG)."),
    ROW(adam, true, "mean = beta1*mean + (1-beta1)*g'; var = beta2*var + (1-beta2)*g'^2; "
                    "w = w - learning_rate*sqrt(1-beta2^t)/(1-beta1^t) * mean/(sqrt(var)+epsilon) (MXNet 2.0 Adam)."),
    ROW(adamw, true, "mean and var as adam, of the gradient without wd; with r = learning_rate*sqrt(1-beta2^t)/(1-beta1^t), "
                     "w = w - r*(mean/(sqrt(var)+epsilon) + wd*w) (MXNet 2.0 AdamW)."),
    ROW(adabelief, true, "g' = clip(rescale_grad*g + wd*w); mean as adam; "
                         "spread = beta2*spread + (1-beta2)*(g'-mean)^2 + epsilon; "
                         "w = w - learning_rate*sqrt(1-beta2^t)/(1-beta1^t) * mean/(sqrt(spread)+epsilon) "
                         "(MXNet 2.0 AdaBelief)."),
    ROW(adamax, true, "mean as adam; peak = max(beta2*peak, |g'|); "
                      "w = w - learning_rate/(1-beta1^t) * mean/(peak+epsilon) (MXNet 2.0 Adamax)."),
    ROW(nadam, true, "mean and var as adam; mu(t) = beta1*(1 - 0.96^(t*schedule_decay)/2); P(t) = mu(1)*...*mu(t); "
                     "w = w - learning_rate * (mu(t+1)*mean/(1-P(t+1)) + (1-mu(t))*g'/(1-P(t))) / "
                     "(sqrt(var/(1-beta2^t))+epsilon) (MXNet 2.0 Nadam, with one P a key)."),
    ROW(radam, true, "mean and var as adam; with N = 2/(1-beta2)-1 and n = N - 2*t*beta2^t/(1-beta2^t): "
                     "w = w - learning_rate*mean/(1-beta1^t) while n <= 5; then w = w - "
                     "learning_rate*sqrt((n-4)*(n-2)*N/((N-4)*(N-2)*n)) * sqrt(1-beta2^t)/(1-beta1^t) * "
                     "mean/(sqrt(var)+epsilon) (Liu and others 2019; PyTorch RAdam)."),
    ROW_AS(yogi, adabelief, true, "mean as adam; var = var - (1-beta2)*sign(var-g'^2)*g'^2; "
                    "w = w - learning_rate*mean/(sqrt(var)+epsilon) (Zaheer and others 2018)."),
    ROW(adagrad, false, "squares = squares + g'^2; w = w - learning_rate*g'/(sqrt(squares)+epsilon) (MXNet 2.0 AdaGrad)."),
    ROW_AS(groupadagrad, adagrad, false, "row_squares = row_squares + mean over the row of g'^2; "
                             "w = w - learning_rate*g'/(sqrt(row_squares)+epsilon) (MXNet contrib GroupAdaGrad)."),
    ROW(adadelta, false, "var = rho*var + (1-rho)*g'^2; d = sqrt(moves+epsilon)/sqrt(var+epsilon)*g'; "
                         "moves = rho*moves + (1-rho)*d^2; w = w - learning_rate*d (MXNet 2.0 AdaDelta)."),
    ROW(rmsprop, false, "var = rho*var + (1-rho)*g'^2; w = w - learning_rate*g'/(sqrt(var)+epsilon); centered: "
                        "mean = rho*mean + (1-rho)*g', "
                        "stride = momentum*stride - learning_rate*g'/sqrt(max(var-mean^2,0)+epsilon), w = w + stride; "
                        "then w is kept within clip_weights (MXNet 2.0 RMSProp)."),
    ROW(ftrl, false, "g' without wd; n = squares + g'^2; dual = dual + g' - (sqrt(n)-sqrt(squares))/learning_rate*w; "
                     "squares = n; w = -sign(dual)*max(|dual|-lamda1,0) / ((beta+sqrt(n))/learning_rate + wd) "
                     "(MXNet 2.0 Ftrl)."),
    ROW(ftml, true, "var as adam; e = (1-beta1^t)/learning_rate * (sqrt(var/(1-beta2^t))+epsilon); "
                    "z = beta1*z + (1-beta1)*g' - (e-beta1*d)*w; w = -z/e; d = e (MXNet 2.0 FTML)."),
    ROW(signum, false, "mean = momentum*mean + (1-momentum)*g'; "
                       "w = (1-learning_rate*wd_lh)*w - learning_rate*sign(mean); without momentum "
                       "w = (1-learning_rate*(wd+wd_lh))*w - learning_rate*sign(g) (MXNet 2.0 Signum)."),
    ROW(dcasgd, false, "d = g' + lamda*g'^2*(w-previous); previous = w; without momentum w = w - learning_rate*d; with it "
                       "mom = momentum*mom - learning_rate*d, w = w + mom (MXNet 2.0 DCASGD)."),
    ROW(sgld, false, "w = w - learning_rate/2*g' + sqrt(learning_rate)*N, N normal, drawn anew for each element and step "
                     "(MXNet 2.0 SGLD)."),
    ROW(lars, false, "learning_rate is multiplied by eta*|w|/(|rescale_grad*g| + wd*|w| + epsilon), of the Euclidean norms "
                     "of the whole value and gradient, unless one of them is 0; then as sgd (MXNet 2.0 LARS)."),
    ROW(lamb, true, "mean and var as adam, of the gradient without wd; "
                    "u = (mean/(1-beta1^t)) / (sqrt(var/(1-beta2^t))+epsilon) + wd*w; "
                    "w = w - learning_rate * (|w| within its bounds)/|u| * u (MXNet 2.0 LAMB)."),
    ROW(lans, true, "g' = clip(rescale_grad*g/|rescale_grad*g|); mean and var as adam; with "
                    "r = sqrt(var/(1-beta2^t))+epsilon, u = (mean/(1-beta1^t))/r + wd*w, q = g'/r + wd*w: w = w - "
                    "learning_rate*(beta1*|w|/|u|*u + (1-beta1)*|w|/|q|*q), |w| within its bounds (MXNet 2.0 LANS)."),
    ROW(adafactor, true, "b = 1 - t^-decay_rate; row_var and column_var are running means, by b, of the means of "
                         "g'^2+epsilon over rows and columns; u = g'/sqrt(row_var*column_var/mean(row_var)); "
                         "w = w - r*(u/max(1, rms(u)/clip_threshold) + wd*w), "
                         "r = learning_rate*max(epsilon2, rms(w)) (Shazeer and Stern 2018)."),
    ROW(lion, false, "w = w - learning_rate*(sign(beta1*mean + (1-beta1)*g') + wd*w), g' without wd; "
                     "mean = beta2*mean + (1-beta2)*g' (Chen and others 2023)."),
    ROW(diloco, false, "g' of g/contributors; v = momentum*v + g'; w = w - learning_rate*(g' + momentum*v): the outer step "
                       "on what workers moved, w - w_worker (Douillard and others 2023)."),
    {"test", "w = w + rescale_grad*g: easy to foresee, for tests (MXNet 1.x Test).",
     HYPERS(test), false, false, test_rule, test_scalars},
    {"program", "what a text in the updater language says, for each element.",
     NULL, 0, false, false, program_rule, no_scalars},
};

enum { UPDATERS = sizeof updaters / sizeof updaters[0] };

_Static_assert((int)UPDATERS < (int)UPDATERS_MAX, "lists of the names have room");
_Static_assert((int)RMS_CONVENTION < (int)UPDATER_HYPERS_MAX && (int)AF_SCALE < (int)UPDATER_HYPERS_MAX,
               "the hyperparameters have room");

const struct updater_row *updater_row_at(unsigned index) { return index < UPDATERS ? &updaters[index] : NULL; }

const struct updater_row *updater_row_find(struct bytes name)
{
    for (unsigned i = 0; i < UPDATERS; i++)
        if (name.size == strlen(updaters[i].name) && strncasecmp(name.at, updaters[i].name, name.size) == 0) return &updaters[i];
    return NULL;
}
