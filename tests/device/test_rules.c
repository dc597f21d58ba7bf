/* The updaters against formulas written here a second time, in long double and from the reference's text: 50 steps of
 * random data for each updater, each of its options, and every combination of wd, rescale_grad and clip_gradient, in f32,
 * f64, and f16 and bf16 with and without a master. From the document on: parsed, applied to a key, stepped.
 *
 * Tolerance: `slack` in the table of cases, in eps of the type of the arithmetic, of numbers of the size of 1. 50 steps
 * of a dozen roundings that err by chance come to about 10, and to more where a rate is large or a movement goes on. The
 * largest errors seen stand in gpu/updaters.md (RULE_ERRORS=1 prints them). Without a master the value is rounded to 8 or
 * 11 bits in every step; there each step is compared alone, from the state that the device has, to one unit of the
 * value. Epsilons of 0.01 are there because a misplaced 1e-8 could not be seen. */
#include "gpu/array.h"
#include "gpu/half.h"
#include "gpu/rules.h"
#include "service/base/mem.h"
#include "service/updater.h"
#include "tests/lib/late_device.h"
#include "tests/lib/sim_device.h"
#include "tests/lib/test.h"

#include <float.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { STEPS = 50, ROWS = 5, COLUMNS = 13, COUNT = ROWS * COLUMNS, CONTRIBUTORS = 3, SLOTS = STEP_SLOTS_MAX };

typedef long double real;

/* ---- the reference ---------------------------------------------------------------------------------------------- */

struct reference {
    json_t *document;
    unsigned t, ndim;
    real w[COUNT], s[SLOTS][COUNT], product, g[COUNT];
};

static real number(const struct reference *r, const char *name)
{
    const json_t *v = json_object_get(r->document, name);

    if (json_is_boolean(v)) return json_is_true(v);
    if (json_is_null(v)) return (real)NAN;
    if (!json_is_number(v)) test_fail(__FILE__, __LINE__, "the document has no number %s", name);
    return json_number_value(v);
}

#define H(name) number(r, #name)

static bool torch(const struct reference *r)
{
    const char *v = json_string_value(json_object_get(r->document, "convention"));
    return v != NULL && strcmp(v, "torch") == 0;
}

static real clip_to(real x, real bound)
{
    if (isnan((double)bound)) return x;
    return x > bound ? bound : x < -bound ? -bound : x;
}

static real sign_of(real x) { return (real)(x > 0) - (real)(x < 0); }
static real clipped_gradient(const struct reference *r, size_t i) { return clip_to(H(rescale_grad) * r->g[i], H(clip_gradient)); }
static real gradient(const struct reference *r, size_t i) { return clipped_gradient(r, i) + H(wd) * r->w[i]; }

#define EACH(i) for (size_t i = 0; i < COUNT; i++)
#define W r->w[i]
#define S(n) r->s[n][i]

static void ref_assign(struct reference *r) { EACH(i) W = r->g[i]; }
static void ref_add(struct reference *r) { EACH(i) W += r->g[i]; }
static void ref_average(struct reference *r) { EACH(i) W = r->g[i] / CONTRIBUTORS; }
static void ref_test(struct reference *r) { EACH(i) W += H(rescale_grad) * r->g[i]; }

static void ref_ema(struct reference *r)
{
    EACH(i) {
        W = r->g[i] / CONTRIBUTORS;
        S(0) = H(decay) * S(0) + (1 - H(decay)) * W;
    }
}

static void ref_sgd(struct reference *r)
{
    EACH(i) {
        real g = gradient(r, i);
        if (H(momentum) == 0) {
            W -= H(learning_rate) * g;
        } else if (torch(r)) {
            S(0) = H(momentum) * S(0) + g;
            W -= H(learning_rate) * S(0);
        } else {
            S(0) = H(momentum) * S(0) - H(learning_rate) * g;
            W += S(0);
        }
    }
}

static void ref_nag(struct reference *r)
{
    EACH(i) {
        real g = gradient(r, i);
        if (H(momentum) == 0) {
            W -= H(learning_rate) * g;
        } else if (torch(r)) {
            S(0) = H(momentum) * S(0) + g;
            W -= H(learning_rate) * (g + H(momentum) * S(0));
        } else {
            S(0) = H(momentum) * S(0) - H(learning_rate) * g;
            W += H(momentum) * S(0) - H(learning_rate) * g;
        }
    }
}

static void ref_diloco(struct reference *r)
{
    EACH(i) {
        real g = clip_to(H(rescale_grad) * (r->g[i] / CONTRIBUTORS), H(clip_gradient)) + H(wd) * W;
        S(0) = H(momentum) * S(0) + g;
        W -= H(learning_rate) * (H(momentum) > 0 ? g + H(momentum) * S(0) : g);
    }
}

/* The corrected rate of MXNet. */
static real corrected(const struct reference *r)
{
    return H(learning_rate) * sqrtl(1 - powl(H(beta2), r->t)) / (1 - powl(H(beta1), r->t));
}

static real rate(const struct reference *r) { return H(correct_bias) != 0 ? corrected(r) : H(learning_rate); }

static void moments(struct reference *r, size_t i, real g)
{
    S(0) = H(beta1) * S(0) + (1 - H(beta1)) * g;
    S(1) = H(beta2) * S(1) + (1 - H(beta2)) * g * g;
}

/* PyTorch: exp_avg / bias_correction1 by sqrt(exp_avg_sq / bias_correction2) + eps. */
static real torch_direction(const struct reference *r, size_t i)
{
    real c1 = 1 - powl(H(beta1), r->t), c2 = 1 - powl(H(beta2), r->t);
    return S(0) / c1 / (sqrtl(S(1)) / sqrtl(c2) + H(epsilon));
}

static void ref_adam(struct reference *r)
{
    EACH(i) {
        moments(r, i, gradient(r, i));
        if (torch(r)) W -= H(learning_rate) * torch_direction(r, i);
        else W -= rate(r) * S(0) / (sqrtl(S(1)) + H(epsilon));
    }
}

static void ref_adamw(struct reference *r)
{
    EACH(i) {
        moments(r, i, clipped_gradient(r, i));
        if (torch(r)) W = W - H(learning_rate) * H(wd) * W - H(learning_rate) * torch_direction(r, i);
        else W -= rate(r) * (S(0) / (sqrtl(S(1)) + H(epsilon)) + H(wd) * W);
    }
}

static void ref_adabelief(struct reference *r)
{
    EACH(i) {
        real g = clip_to(H(rescale_grad) * r->g[i] + H(wd) * W, H(clip_gradient));
        S(0) = H(beta1) * S(0) + (1 - H(beta1)) * g;
        S(1) = H(beta2) * S(1) + (1 - H(beta2)) * (g - S(0)) * (g - S(0)) + H(epsilon);
        W -= rate(r) * S(0) / (sqrtl(S(1)) + H(epsilon));
    }
}

static void ref_adamax(struct reference *r)
{
    EACH(i) {
        real g = gradient(r, i), step = H(learning_rate) / (1 - powl(H(beta1), r->t));
        S(0) = H(beta1) * S(0) + (1 - H(beta1)) * g;
        if (torch(r)) S(1) = fmaxl(H(beta2) * S(1), fabsl(g) + H(epsilon));
        else S(1) = fmaxl(H(beta2) * S(1), fabsl(g));
        W -= step * S(0) / (torch(r) ? S(1) : S(1) + H(epsilon));
    }
}

static void ref_nadam(struct reference *r)
{
    real t = r->t, now = H(beta1) * (1 - 0.5L * powl(0.96L, t * H(schedule_decay)));
    real next = H(beta1) * (1 - 0.5L * powl(0.96L, (t + 1) * H(schedule_decay)));

    r->product *= now;
    EACH(i) {
        real g = gradient(r, i), root;
        moments(r, i, g);
        root = sqrtl(S(1) / (1 - powl(H(beta2), t)));
        W -= H(learning_rate) * (next * S(0) / (1 - r->product * next) + (1 - now) * g / (1 - r->product)) /
             (root + H(epsilon));
    }
}

static void ref_radam(struct reference *r)
{
    real t = r->t, b2 = powl(H(beta2), t), infinite = 2 / (1 - H(beta2)) - 1, now = infinite - 2 * t * b2 / (1 - b2);

    EACH(i) {
        moments(r, i, gradient(r, i));
        real mean = S(0) / (1 - powl(H(beta1), t));
        if (now <= 5) {
            W -= H(learning_rate) * mean;
            continue;
        }
        real rect = sqrtl((now - 4) * (now - 2) * infinite / ((infinite - 4) * (infinite - 2) * now));
        W -= H(learning_rate) * mean * rect * sqrtl(1 - b2) / (sqrtl(S(1)) + H(epsilon));
    }
}

static void ref_yogi(struct reference *r)
{
    EACH(i) {
        real g = gradient(r, i);
        S(0) = H(beta1) * S(0) + (1 - H(beta1)) * g;
        S(1) -= (1 - H(beta2)) * sign_of(S(1) - g * g) * g * g;
        W -= rate(r) * S(0) / (sqrtl(S(1)) + H(epsilon));
    }
}

static void ref_adagrad(struct reference *r)
{
    EACH(i) {
        real g = gradient(r, i);
        S(0) += g * g;
        W -= H(learning_rate) * g / (sqrtl(S(0)) + H(epsilon));
    }
}

static void ref_groupadagrad(struct reference *r)
{
    size_t columns = r->ndim < 2 ? 1 : COLUMNS;

    for (size_t row = 0; row < COUNT / columns; row++) {
        real sum = 0;
        for (size_t i = row * columns; i < (row + 1) * columns; i++) sum += gradient(r, i) * gradient(r, i);
        r->s[0][row] += sum / (real)columns;
        for (size_t i = row * columns; i < (row + 1) * columns; i++)
            W -= H(learning_rate) * gradient(r, i) / (sqrtl(r->s[0][row]) + H(epsilon));
    }
}

static void ref_adadelta(struct reference *r)
{
    EACH(i) {
        real g = gradient(r, i), d;
        S(0) = H(rho) * S(0) + (1 - H(rho)) * g * g;
        d = sqrtl(S(1) + H(epsilon)) / sqrtl(S(0) + H(epsilon)) * g;
        S(1) = H(rho) * S(1) + (1 - H(rho)) * d * d;
        W -= H(learning_rate) * d;
    }
}

static void rmsprop_torch(struct reference *r, size_t i, real g)
{
    real root;

    if (H(centered) != 0) S(1) = H(rho) * S(1) + (1 - H(rho)) * g;
    root = sqrtl(S(0) - (H(centered) != 0 ? S(1) * S(1) : 0)) + H(epsilon);
    if (H(momentum) == 0) {
        W -= H(learning_rate) * g / root;
    } else {
        real *pace = H(centered) != 0 ? &S(2) : &S(1);
        *pace = H(momentum) * *pace + g / root;
        W -= H(learning_rate) * *pace;
    }
}

static void ref_rmsprop(struct reference *r)
{
    EACH(i) {
        real g = gradient(r, i);
        S(0) = H(rho) * S(0) + (1 - H(rho)) * g * g;
        if (torch(r)) {
            rmsprop_torch(r, i, g);
        } else if (H(centered) != 0) {
            S(1) = H(rho) * S(1) + (1 - H(rho)) * g;
            S(2) = H(momentum) * S(2) - H(learning_rate) * g / sqrtl(S(0) - S(1) * S(1) + H(epsilon));
            W += S(2);
        } else {
            W -= H(learning_rate) * g / (sqrtl(S(0)) + H(epsilon));
        }
        W = clip_to(W, H(clip_weights));
    }
}

static void ref_ftrl(struct reference *r)
{
    EACH(i) {
        real g = clipped_gradient(r, i), sigma = (sqrtl(S(1) + g * g) - sqrtl(S(1))) / H(learning_rate);
        S(0) += g - sigma * W;
        S(1) += g * g;
        W = -sign_of(S(0)) * fmaxl(fabsl(S(0)) - H(lamda1), 0) / ((H(beta) + sqrtl(S(1))) / H(learning_rate) + H(wd));
    }
}

static void ref_ftml(struct reference *r)
{
    EACH(i) {
        real g = gradient(r, i), d;
        S(1) = H(beta2) * S(1) + (1 - H(beta2)) * g * g;
        d = (1 - powl(H(beta1), r->t)) / H(learning_rate) *
            (sqrtl(S(1) / (1 - powl(H(beta2), r->t))) + H(epsilon));
        S(2) = H(beta1) * S(2) + (1 - H(beta1)) * g - (d - H(beta1) * S(0)) * W;
        W = -S(2) / d;
        S(0) = d;
    }
}

static void ref_signum(struct reference *r)
{
    EACH(i) {
        if (H(momentum) == 0) {
            W = (1 - H(learning_rate) * (H(wd) + H(wd_lh))) * W - H(learning_rate) * sign_of(r->g[i]);
            continue;
        }
        S(0) = H(momentum) * S(0) + (1 - H(momentum)) * gradient(r, i);
        W = (1 - H(learning_rate) * H(wd_lh)) * W - H(learning_rate) * sign_of(S(0));
    }
}

static void ref_dcasgd(struct reference *r)
{
    EACH(i) {
        real g = gradient(r, i), d = g + H(lamda) * g * g * (W - S(0));
        S(0) = W;
        S(1) = H(momentum) * S(1) - H(learning_rate) * d;
        W += S(1);
    }
}

static void ref_lion(struct reference *r)
{
    EACH(i) {
        real g = clipped_gradient(r, i);
        W -= H(learning_rate) * (sign_of(H(beta1) * S(0) + (1 - H(beta1)) * g) + H(wd) * W);
        S(0) = H(beta2) * S(0) + (1 - H(beta2)) * g;
    }
}

/* ---- whole tensors ---- */

static real norm_of(const real *x)
{
    real sum = 0;
    EACH(i) sum += x[i] * x[i];
    return sqrtl(sum);
}

static void ref_lars(struct reference *r)
{
    real scaled[COUNT], lr = H(learning_rate), w = norm_of(r->w), g;

    EACH(i) scaled[i] = H(rescale_grad) * r->g[i];
    g = norm_of(scaled);
    if (w > 0 && g > 0) lr *= H(eta) * w / (g + H(wd) * w + H(epsilon));
    EACH(i) {
        S(0) = H(momentum) * S(0) - lr * gradient(r, i);
        W += S(0);
    }
}

static real bounded(const struct reference *r, real norm)
{
    if (!isnan((double)H(lower_bound))) norm = fmaxl(norm, H(lower_bound));
    if (!isnan((double)H(upper_bound))) norm = fminl(norm, H(upper_bound));
    return norm;
}

static real ratio(real w, real u) { return w == 0 || u == 0 ? 1 : w / u; }

static void ref_lamb(struct reference *r)
{
    real u[COUNT], c1 = 1, c2 = 1, by;

    if (H(bias_correction) != 0) c1 = 1 - powl(H(beta1), r->t), c2 = 1 - powl(H(beta2), r->t);
    EACH(i) {
        moments(r, i, clipped_gradient(r, i));
        u[i] = S(0) / c1 / (sqrtl(S(1) / c2) + H(epsilon)) + H(wd) * W;
    }
    by = H(learning_rate) * ratio(bounded(r, norm_of(r->w)), norm_of(u));
    EACH(i) W -= by * u[i];
}

static void ref_lans(struct reference *r)
{
    real u[COUNT], q[COUNT], c1 = 1 - powl(H(beta1), r->t), c2 = 1 - powl(H(beta2), r->t), norm, w, by, by_q;

    EACH(i) r->g[i] *= H(rescale_grad);
    norm = norm_of(r->g);
    EACH(i) {
        real g = clip_to(r->g[i] / (norm == 0 ? 1 : norm), H(clip_gradient)), root;
        moments(r, i, g);
        root = sqrtl(S(1) / c2) + H(epsilon);
        u[i] = S(0) / c1 / root + H(wd) * W;
        q[i] = g / root + H(wd) * W;
    }
    w = bounded(r, norm_of(r->w));
    by = H(learning_rate) * H(beta1) * ratio(w, norm_of(u));
    by_q = H(learning_rate) * (1 - H(beta1)) * ratio(w, norm_of(q));
    EACH(i) W -= by * u[i] + by_q * q[i];
}

static void adafactor_direction(struct reference *r, real beta, real *u)
{
    real rows[ROWS] = {0}, columns[COLUMNS] = {0}, mean = 0;

    EACH(i) {
        real g = clipped_gradient(r, i), square = g * g + H(epsilon);
        rows[i / COLUMNS] += square / COLUMNS;
        columns[i % COLUMNS] += square / ROWS;
        if (r->ndim < 2) S(0) = beta * S(0) + (1 - beta) * square, u[i] = g / sqrtl(S(0));
    }
    if (r->ndim < 2) return;
    for (size_t k = 0; k < ROWS; k++) r->s[0][k] = beta * r->s[0][k] + (1 - beta) * rows[k], mean += r->s[0][k] / ROWS;
    for (size_t k = 0; k < COLUMNS; k++) r->s[1][k] = beta * r->s[1][k] + (1 - beta) * columns[k];
    EACH(i) u[i] = clipped_gradient(r, i) / sqrtl(r->s[0][i / COLUMNS] * r->s[1][i % COLUMNS] / mean);
}

static void ref_adafactor(struct reference *r)
{
    real u[COUNT], t = r->t, lr = H(learning_rate), root = sqrtl(COUNT), w = norm_of(r->w) / root, over;

    adafactor_direction(r, 1 - powl(t, -H(decay_rate)), u);
    if (isnan((double)lr)) lr = fminl(0.01L, 1 / sqrtl(t));
    if (H(scale_parameter) != 0) lr *= fmaxl(H(epsilon2), w);
    over = fmaxl(1, norm_of(u) / root / H(clip_threshold));
    EACH(i) W -= lr * (u[i] / over + H(wd) * W);
}

/* ---- cases ------------------------------------------------------------------------------------------------------ */

static const struct test_row {
    const char *updater;
    void (*reference)(struct reference *r);
    double slack;                    /* the tolerance in eps, see above */
    const char *options;             /* of the document, beside the common ones */
} cases[] = {
    {"assign", ref_assign, 1, ""},
    {"add", ref_add, 32, ""},
    {"average", ref_average, 8, ""},
    {"test", ref_test, 32, ""},
    {"ema", ref_ema, 32, "\"decay\": 0.9"},
    {"ema", ref_ema, 32, "\"decay\": 0"},
    {"sgd", ref_sgd, 32, ""},
    {"sgd", ref_sgd, 64, "\"momentum\": 0.9"},
    {"sgd", ref_sgd, 64, "\"momentum\": 0.9, \"convention\": \"torch\""},
    {"sgd", ref_sgd, 32, "\"convention\": \"torch\""},
    {"nag", ref_nag, 64, ""},
    {"nag", ref_nag, 32, "\"momentum\": 0"},
    {"nag", ref_nag, 64, "\"convention\": \"torch\""},
    {"diloco", ref_diloco, 128, ""},
    {"diloco", ref_diloco, 128, "\"momentum\": 0"},
    {"adam", ref_adam, 32, "\"learning_rate\": 0.01"},
    {"adam", ref_adam, 32, "\"learning_rate\": 0.01, \"epsilon\": 0.01"},
    {"adam", ref_adam, 32, "\"learning_rate\": 0.01, \"correct_bias\": false, \"beta1\": 0"},
    {"adam", ref_adam, 32, "\"learning_rate\": 0.01, \"epsilon\": 0.01, \"convention\": \"torch\""},
    {"adamw", ref_adamw, 32, "\"learning_rate\": 0.01"},
    {"adamw", ref_adamw, 32, "\"learning_rate\": 0.01, \"epsilon\": 0.01, \"correct_bias\": false"},
    {"adamw", ref_adamw, 32, "\"learning_rate\": 0.01, \"epsilon\": 0.01, \"convention\": \"torch\""},
    {"adabelief", ref_adabelief, 64, "\"learning_rate\": 0.01"},
    {"adabelief", ref_adabelief, 64, "\"learning_rate\": 0.01, \"epsilon\": 0.01, \"correct_bias\": false"},
    {"adamax", ref_adamax, 32, "\"learning_rate\": 0.01"},
    {"adamax", ref_adamax, 32, "\"learning_rate\": 0.01, \"epsilon\": 0.01"},
    {"adamax", ref_adamax, 32, "\"learning_rate\": 0.01, \"epsilon\": 0.01, \"convention\": \"torch\""},
    {"nadam", ref_nadam, 32, "\"learning_rate\": 0.01"},
    {"nadam", ref_nadam, 32, "\"learning_rate\": 0.01, \"epsilon\": 0.01, \"schedule_decay\": 0.4"},
    {"nadam", ref_nadam, 32, "\"epsilon\": 0.01, \"convention\": \"torch\""},
    {"radam", ref_radam, 32, "\"learning_rate\": 0.01"},
    {"radam", ref_radam, 32, "\"learning_rate\": 0.01, \"epsilon\": 0.01, \"beta2\": 0.5"},
    {"radam", ref_radam, 32, "\"learning_rate\": 0.01, \"epsilon\": 0.01, \"convention\": \"torch\""},
    {"yogi", ref_yogi, 64, ""},
    {"yogi", ref_yogi, 64, "\"correct_bias\": true, \"beta2\": 0.9"},
    {"adagrad", ref_adagrad, 32, ""},
    {"adagrad", ref_adagrad, 32, "\"learning_rate\": 0.1, \"epsilon\": 0.01"},
    {"adagrad", ref_adagrad, 32, "\"convention\": \"torch\""},
    {"groupadagrad", ref_groupadagrad, 32, ""},
    {"groupadagrad", ref_groupadagrad, 32, "\"learning_rate\": 0.1, \"epsilon\": 0.01"},
    {"adadelta", ref_adadelta, 64, ""},
    {"adadelta", ref_adadelta, 64, "\"epsilon\": 0.01, \"rho\": 0.5, \"convention\": \"torch\""},
    {"rmsprop", ref_rmsprop, 32, ""},
    {"rmsprop", ref_rmsprop, 32, "\"learning_rate\": 0.01, \"epsilon\": 0.01, \"clip_weights\": 0.5"},
    {"rmsprop", ref_rmsprop, 64, "\"learning_rate\": 0.01, \"centered\": true"},
    {"rmsprop", ref_rmsprop, 128, "\"learning_rate\": 0.01, \"epsilon\": 0.01, \"centered\": true, \"momentum\": 0"},
    {"rmsprop", ref_rmsprop, 32, "\"epsilon\": 0.01, \"convention\": \"torch\""},
    {"rmsprop", ref_rmsprop, 64, "\"epsilon\": 0.01, \"convention\": \"torch\", \"momentum\": 0.9"},
    {"rmsprop", ref_rmsprop, 64, "\"epsilon\": 0.01, \"convention\": \"torch\", \"momentum\": 0.9, \"centered\": true"},
    {"rmsprop", ref_rmsprop, 64, "\"epsilon\": 0.01, \"convention\": \"torch\", \"centered\": true"},
    {"ftrl", ref_ftrl, 64, ""},
    {"ftrl", ref_ftrl, 64, "\"lamda1\": 0.3, \"beta\": 0.1, \"learning_rate\": 1"},
    {"ftml", ref_ftml, 64, ""},
    {"ftml", ref_ftml, 64, "\"learning_rate\": 0.02, \"epsilon\": 0.01, \"beta1\": 0.9"},
    {"signum", ref_signum, 32, ""},
    {"signum", ref_signum, 32, "\"wd_lh\": 0.1"},
    {"signum", ref_signum, 32, "\"wd_lh\": 0.1, \"momentum\": 0"},
    {"dcasgd", ref_dcasgd, 64, "\"lamda\": 2"},
    {"dcasgd", ref_dcasgd, 64, "\"lamda\": 2, \"momentum\": 0.9"},
    {"lion", ref_lion, 32, "\"learning_rate\": 0.01"},
    {"lion", ref_lion, 32, "\"learning_rate\": 0.01, \"beta1\": 0.5, \"beta2\": 0.9"},
    {"lars", ref_lars, 64, "\"eta\": 0.3"},
    {"lars", ref_lars, 64, "\"eta\": 0.3, \"momentum\": 0.9, \"epsilon\": 0.1"},
    {"lamb", ref_lamb, 32, "\"learning_rate\": 0.01"},
    {"lamb", ref_lamb, 32, "\"learning_rate\": 0.01, \"epsilon\": 0.01, \"bias_correction\": false"},
    {"lamb", ref_lamb, 32, "\"learning_rate\": 0.01, \"lower_bound\": 9, \"upper_bound\": 10"},
    {"lamb", ref_lamb, 32, "\"learning_rate\": 0.01, \"upper_bound\": 1"},
    {"lans", ref_lans, 32, "\"learning_rate\": 0.01"},
    {"lans", ref_lans, 32, "\"learning_rate\": 0.01, \"epsilon\": 0.01, \"lower_bound\": 9"},
    {"adafactor", ref_adafactor, 32, ""},
    {"adafactor", ref_adafactor, 32, "\"learning_rate\": 0.01, \"epsilon\": 0.01, \"scale_parameter\": false"},
    {"adafactor", ref_adafactor, 32, "\"clip_threshold\": 0.5, \"epsilon2\": 1, \"decay_rate\": 0.3"},
};

enum { CASES = sizeof cases / sizeof cases[0] };

/* ---- running on the device -------------------------------------------------------------------------------------- */

struct run {
    struct device *device;
    struct queue *queue;
    struct updater *updater;
    struct updater_use use;
    struct dmem value, sum, last, master, scratch, slots[SLOTS];
    enum dtype type, arithmetic;
    uint32_t home;
    double product;
    uint64_t t;
    uint32_t flags;
    struct error error;
};

static double element(const struct run *r, struct dmem m, size_t i)
{
    (void)r;
    return m.size == COUNT * 4 ? (double)((float *)m.host)[i] : ((double *)m.host)[i];
}

static double get(enum dtype t, const void *at, size_t i)
{
    switch (t) {
    case DTYPE_f16: return (double)half_widen_f16(((const uint16_t *)at)[i]);
    case DTYPE_bf16: return (double)half_widen_bf16(((const uint16_t *)at)[i]);
    case DTYPE_f32: return (double)((const float *)at)[i];
    default: return ((const double *)at)[i];
    }
}

static void put(enum dtype t, void *at, size_t i, double v)
{
    switch (t) {
    case DTYPE_f16: ((uint16_t *)at)[i] = half_narrow_f16((float)v); break;
    case DTYPE_bf16: ((uint16_t *)at)[i] = half_narrow_bf16((float)v); break;
    case DTYPE_f32: ((float *)at)[i] = (float)v; break;
    default: ((double *)at)[i] = v;
    }
}

/* The steps are those of a device whose memory is out of the CPU's reach: `host` is then an image of the test's own, which
 * goes up before the first step, the gradient before each, and comes down where it is looked at. */
static struct device *far;       /* NULL: the CPU */

static unsigned step_count(void) { return far != NULL && !sim_replaced() ? 3 : STEPS; }   /* each waits */
static bool alone(const struct run *r) { return dtype_is_half(r->type) && !r->use.has_master; }

/* Elements of so many bytes. On several devices a value lies in parts, unless its rule wants it whole. */
static void room(struct run *r, struct dmem *m, size_t element, size_t count)
{
    CHECK_OK(device_mem_new_at(r->device, element * count, mem_place_of(r->home, element), m, &r->error), &r->error);
    if (far != NULL) CHECK((m->host = mem_new(m->size)) != NULL);
    memset(m->host, 0, m->size);
}

static void room_free(struct dmem *m)
{
    if (far != NULL) mem_free(m->host);
    device_mem_free(m);
}

static void up(struct run *r, struct dmem m) { CHECK_EQ(device_upload(r->queue, m, 0, m.host, m.size), STATUS_OK); }
static void down(struct run *r, struct dmem m) { CHECK_EQ(device_download(r->queue, m.host, m, 0, m.size), STATUS_OK); }

static void images(struct run *r, void (*move)(struct run *r, struct dmem m))
{
    if (far == NULL) return;
    move(r, r->value);
    if (r->use.has_master) move(r, r->master);
    for (unsigned i = 0; i < SLOTS; i++) move(r, r->slots[i]);
}

static void wait_for(struct run *r)
{
    uint64_t mark;

    CHECK_EQ(device_record(r->queue, &mark), STATUS_OK);
    CHECK_EQ(device_wait(r->queue, mark), STATUS_OK);
}

static const int64_t dims[2] = {ROWS, COLUMNS}, dim = COUNT;

static void run_open(struct run *r, const char *document, enum dtype type, unsigned ndim)
{
    struct rule_key key = {bytes_text("layer_weight"), ndim, ndim == 2 ? dims : &dim, COUNT};

    *r = (struct run){.type = type, .arithmetic = dtype_sum(type), .product = 1};
    CHECK_OK(updater_parse(bytes_text(document), &r->updater, &r->error), &r->error);
    updater_use(r->updater, &key, type, &r->use);
    if (far != NULL) r->device = far;
    else CHECK_OK(cpu_device_new(1, &r->device, &r->error), &r->error);
    CHECK_OK(device_queue_new(r->device, &r->queue, &r->error), &r->error);
    r->home = device_home_new(r->device, COUNT, rule_is_whole(r->use.rule), 0);
    room(r, &r->value, dtype_size(type), COUNT);
    room(r, &r->last, dtype_size(type), COUNT);
    room(r, &r->sum, dtype_size(r->arithmetic), COUNT);
    room(r, &r->scratch, 1, 1 + step_scratch_size(r->use.rule, COUNT));
    if (r->use.has_master) room(r, &r->master, dtype_size(r->arithmetic), COUNT);
    for (unsigned i = 0; i < SLOTS; i++) room(r, &r->slots[i], dtype_size(r->arithmetic), COUNT);
}

static void run_close(struct run *r)
{
    device_queue_free(r->queue);
    room_free(&r->value), room_free(&r->sum), room_free(&r->last);
    room_free(&r->master), room_free(&r->scratch);
    for (unsigned i = 0; i < SLOTS; i++) room_free(&r->slots[i]);
    if (far == NULL) device_free(r->device);
    updater_drop(r->updater);
}

static void run_step(struct run *r)
{
    struct update_moment m = {.t = ++r->t, .num_update = r->t, .contributors = CONTRIBUTORS, .product = r->product};
    struct step s = {.type = r->type, .count = COUNT, .sum = r->sum, .last = r->last, .from = r->value, .to = r->value,
                     .flags = &r->flags};

    updater_step(r->updater, &r->use, r->t, &m, &s);
    r->product = m.product;
    for (unsigned i = 0; i < rule_slots(s.rule); i++) s.slots[i] = r->slots[i];
    if (r->use.has_master) s.master = r->master;
    if (step_scratch_size(s.rule, COUNT) > 0) s.scratch = r->scratch;
    if (r->t == 1) images(r, up);
    if (far != NULL) up(r, r->sum), up(r, r->last);
    CHECK_EQ(device_step(r->queue, &s), STATUS_OK);
    if (r->t == step_count() || alone(r)) images(r, down);
    if (far != NULL) wait_for(r);
}

static double uniform(uint64_t *random) { return (double)(rng_next(random) >> 11) * 0x1p-52 - 1; }

static void fill_value(struct run *r, uint64_t *random)
{
    for (size_t i = 0; i < COUNT; i++) {
        put(r->type, r->value.host, i, uniform(random));
        if (r->use.has_master) put(r->arithmetic, r->master.host, i, get(r->type, r->value.host, i));
        for (unsigned k = 0; k < rule_slots(r->use.rule); k++)
            if (rule_slot_from_value(r->use.rule, k)) put(r->arithmetic, r->slots[k].host, i, get(r->type, r->value.host, i));
    }
}

static void take_state(const struct run *r, struct reference *ref)
{
    for (size_t i = 0; i < COUNT; i++) {
        ref->w[i] = get(r->type, r->value.host, i);
        for (unsigned k = 0; k < SLOTS; k++) ref->s[k][i] = get(r->arithmetic, r->slots[k].host, i);
    }
}

static void fill_gradient(struct run *r, struct reference *ref, uint64_t *random)
{
    for (size_t i = 0; i < COUNT; i++) {
        put(r->arithmetic, r->sum.host, i, uniform(random) / 2);
        put(r->type, r->last.host, i, uniform(random) / 2);
        ref->g[i] = (real)get(r->arithmetic, r->sum.host, i) + get(r->type, r->last.host, i);
    }
}

/* ---- comparing -------------------------------------------------------------------------------------------------- */

static double worst[CASES][DTYPE_COUNT];     /* errors in eps of the arithmetic */

static double eps_of(enum dtype t) { return t == DTYPE_f64 ? DBL_EPSILON : (double)FLT_EPSILON; }

/* One unit of the value's type at this size. */
static double unit(enum dtype t, double v)
{
    int bits = t == DTYPE_f16 ? 11 : 8, exponent;
    frexp(v, &exponent);
    return ldexp(1, (t == DTYPE_f16 && exponent < -13 ? -13 : exponent) - bits);
}

static void compare(const struct run *r, const struct reference *ref, size_t c, const char *document, unsigned t)
{
    double eps = eps_of(r->arithmetic), tolerance = cases[c].slack * eps;

    for (size_t i = 0; i < COUNT; i++) {
        double got = r->use.has_master ? get(r->arithmetic, r->master.host, i) : get(r->type, r->value.host, i);
        double want = (double)ref->w[i], error = fabs(got - want), limit = tolerance;
        if (alone(r)) limit += unit(r->type, want);
        else if (error / eps > worst[c][r->type]) worst[c][r->type] = error / eps;
        if (!(error <= limit))
            test_fail(__FILE__, __LINE__, "%s %s, step %u, element %zu: %.17g, not %.17g (%g eps)", document,
                      dtype_name(r->type), t, i, got, want, error / eps);
    }
    CHECK_EQ(r->flags, 0);
}

static void fifty_steps(size_t c, const char *document, enum dtype type, unsigned ndim)
{
    struct reference ref = {.product = 1, .ndim = ndim};
    uint64_t random = 5;
    struct run r;

    run_open(&r, document, type, ndim);
    ref.document = json_loads(updater_text(r.updater), 0, NULL);
    CHECK(ref.document != NULL);
    fill_value(&r, &random);
    take_state(&r, &ref);
    for (unsigned t = 1; t <= step_count(); t++) {
        if (alone(&r)) take_state(&r, &ref);
        ref.t = t;
        fill_gradient(&r, &ref, &random);
        cases[c].reference(&ref);
        run_step(&r);
        if (alone(&r) || t == step_count()) compare(&r, &ref, c, document, t);
    }
    for (size_t i = 0; i < COUNT && r.use.has_master; i++) {
        char value[8];
        put(type, value, 0, get(r.arithmetic, r.master.host, i));
        CHECK(get(type, value, 0) == get(type, r.value.host, i));
    }
    json_decref(ref.document);
    run_close(&r);
}

/* Every combination of wd, rescale_grad and clip_gradient, as far as the updater has them. */
static void all_combinations(size_t c, bool precise, enum dtype type)
{
    const struct updater_row *row = updater_row_find(bytes_text(cases[c].updater));
    bool has_wd = row->common && row->hypers[H_WD].most > 0;
    char document[400];

    for (unsigned bits = 0; bits < (row->common ? 8 : 1); bits++) {
        if ((bits & 1) != 0 && !has_wd) continue;
        if (far != NULL && row->common && bits != (has_wd ? 7 : 6)) continue;
        int n = snprintf(document, sizeof document, "{\"type\": \"%s\"%s%s", cases[c].updater,
                         cases[c].options[0] != '\0' ? ", " : "", cases[c].options);
        if (row->common)
            snprintf(document + n, sizeof document - (size_t)n, ", \"wd\": %s, \"rescale_grad\": %s, "
                     "\"clip_gradient\": %s, \"multi_precision\": %s", bits & 1 ? "0.03" : "0", bits & 2 ? "0.6" : "1",
                     bits & 4 ? "0.3" : "null", precise ? "true" : "false");
        strcat(document, "}");
        fifty_steps(c, document, type, 2);
        if (rule_has_rows(row->rule(row->common ? (double[UPDATER_HYPERS_MAX]){0} : NULL, &(struct rule_key){.ndim = 2})))
            fifty_steps(c, document, type, 1);
    }
}

static void all_cases(enum dtype type, bool precise)
{
    for (size_t c = 0; c < CASES; c++) all_combinations(c, precise, type);
}

TEST(every_updater_agrees_with_its_formula_in_f32) { all_cases(DTYPE_f32, true); }
TEST(every_updater_agrees_with_its_formula_in_f64) { all_cases(DTYPE_f64, true); }
TEST(every_updater_agrees_with_its_formula_in_f16_with_a_master) { all_cases(DTYPE_f16, true); }
TEST(every_updater_agrees_with_its_formula_in_bf16_with_a_master) { all_cases(DTYPE_bf16, true); }
TEST(every_updater_agrees_with_its_formula_in_f16_alone) { all_cases(DTYPE_f16, false); }
TEST(every_updater_agrees_with_its_formula_in_bf16_alone) { all_cases(DTYPE_bf16, false); }

/* A program is what its text says: tests/device/test_program.c. */
static bool is_text(const struct updater_row *row) { return strcmp(row->name, "program") == 0; }

TEST(every_updater_has_a_formula_here_but_the_random_one)
{
    for (unsigned i = 0; updater_row_at(i) != NULL; i++) {
        bool found = strcmp(updater_row_at(i)->name, "sgld") == 0 || is_text(updater_row_at(i));
        for (size_t c = 0; c < CASES; c++) found = found || strcmp(cases[c].updater, updater_row_at(i)->name) == 0;
        if (!found) test_fail(__FILE__, __LINE__, "%s has none", updater_row_at(i)->name);
    }
}

/* The table of gpu/updaters.md. */
__attribute__((destructor)) static void print_errors(void)
{
    if (getenv("RULE_ERRORS") == NULL) return;
    for (unsigned i = 0; updater_row_at(i) != NULL; i++) {
        double most[3] = {0, 0, 0}, slack = 0;
        for (size_t c = 0; c < CASES; c++) {
            if (strcmp(cases[c].updater, updater_row_at(i)->name) != 0) continue;
            double half = fmax(worst[c][DTYPE_f16], worst[c][DTYPE_bf16]);
            most[0] = fmax(most[0], worst[c][DTYPE_f32]);
            most[1] = fmax(most[1], half);
            most[2] = fmax(most[2], worst[c][DTYPE_f64]);
            slack = fmax(slack, cases[c].slack);
        }
        printf("| `%s` | %.1f | %.1f | %.1f | %g |\n", updater_row_at(i)->name, most[0], most[1], most[2], slack);
    }
}

/* ---- by hand ---------------------------------------------------------------------------------------------------- */

/* w 1, g 0.5, lr 0.5, mu 0.5: mom -0.25, w 0.75; then mom -0.375, w 0.375. Exact in binary. */
TEST(momentum_moves_by_the_old_movement_less_the_rate_times_gradient)
{
    struct run r;

    run_open(&r, "{\"type\": \"sgd\", \"learning_rate\": 0.5, \"momentum\": 0.5}", DTYPE_f32, 1);
    for (size_t i = 0; i < COUNT; i++) {
        put(DTYPE_f32, r.value.host, i, 1);
        put(DTYPE_f32, r.sum.host, i, 0.5);
    }
    run_step(&r);
    CHECK(element(&r, r.value, COUNT - 1) == 0.75);
    run_step(&r);
    CHECK(element(&r, r.value, COUNT - 1) == 0.375);
    CHECK(element(&r, r.slots[0], COUNT - 1) == -0.375);
    run_close(&r);
}

TEST(clip_lets_nan_through_and_bounds_infinity)
{
    struct run r;

    run_open(&r, "{\"type\": \"sgd\", \"learning_rate\": 1, \"clip_gradient\": 0.25}", DTYPE_f32, 1);
    put(DTYPE_f32, r.sum.host, 0, NAN);
    put(DTYPE_f32, r.sum.host, 1, INFINITY);
    put(DTYPE_f32, r.sum.host, 2, -INFINITY);
    run_step(&r);
    CHECK(isnan(element(&r, r.value, 0)));
    CHECK(element(&r, r.value, 1) == -0.25);
    CHECK(element(&r, r.value, 2) == 0.25);
    run_close(&r);
}

/* What is wrong in a gradient is to be seen in the value, whatever the updater. */
TEST(nan_in_a_gradient_is_seen_in_the_value)
{
    for (unsigned i = 0; updater_row_at(i) != NULL; i++) {
        char document[64];
        struct run r;
        if (is_text(updater_row_at(i))) continue;
        snprintf(document, sizeof document, "{\"type\": \"%s\"}", updater_row_at(i)->name);
        run_open(&r, document, DTYPE_f32, 2);
        for (size_t k = 0; k < COUNT; k++) put(DTYPE_f32, r.value.host, k, 1);
        put(DTYPE_f32, r.sum.host, 7, NAN);
        run_step(&r);
        if (!isnan(element(&r, r.value, 7))) test_fail(__FILE__, __LINE__, "%s swallows it", updater_row_at(i)->name);
        run_close(&r);
    }
}

/* f64 values must not pass through float: a third has other bits there. */
TEST(f64_is_computed_in_double)
{
    struct run r;

    run_open(&r, "{\"type\": \"sgd\"}", DTYPE_f64, 1);
    put(DTYPE_f64, r.value.host, 0, 1.0 / 3);
    put(DTYPE_f64, r.sum.host, 0, 1.0 / 7);
    run_step(&r);
    CHECK(element(&r, r.value, 0) == 1.0 / 3 - 0.1 * (1.0 / 7));
    run_close(&r);
}

/* Constant gradients make the mean of squares and the square of the mean the same; their difference is rounding alone,
 * and may be below zero. */
TEST(a_centered_rmsprop_of_constant_gradients_stays_a_number)
{
    static const char *const documents[] = {
        "{\"type\": \"rmsprop\", \"centered\": true, \"epsilon\": 1e-30}",
        "{\"type\": \"rmsprop\", \"centered\": true, \"convention\": \"torch\"}",
    };

    for (int d = 0; d < 2; d++) {
        struct run r;
        run_open(&r, documents[d], DTYPE_f32, 1);
        for (size_t i = 0; i < COUNT; i++) put(DTYPE_f32, r.sum.host, i, 100.0 / (double)(i + 3));
        for (int t = 0; t < 3000; t++) run_step(&r);
        for (size_t i = 0; i < COUNT; i++) CHECK(!isnan(element(&r, r.value, i)));
        run_close(&r);
    }
}

TEST(rates_of_zero_divide_nothing)
{
    for (unsigned i = 0; updater_row_at(i) != NULL; i++) {
        char document[64];
        struct run r;
        if (!updater_row_at(i)->common) continue;
        snprintf(document, sizeof document, "{\"type\": \"%s\", \"learning_rate\": 0}", updater_row_at(i)->name);
        run_open(&r, document, DTYPE_f32, 2);
        for (size_t k = 0; k < COUNT; k++) put(DTYPE_f32, r.sum.host, k, 0.5);
        run_step(&r);
        run_step(&r);
        for (size_t k = 0; k < COUNT; k++) CHECK(isfinite(element(&r, r.value, k)));
        run_close(&r);
    }
}

TEST(lars_takes_the_plain_rate_for_names_that_end_in_bias_gamma_or_beta)
{
    static const char *const names[] = {"fc_bias", "bn_gamma", "bn_beta", "beta"};
    struct updater_use use;
    struct updater *u = NULL;
    struct error e;

    CHECK_OK(updater_parse(bytes_text("{\"type\": \"lars\"}"), &u, &e), &e);
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        updater_use(u, &(struct rule_key){bytes_text(names[i]), 1, &dim, COUNT}, DTYPE_f32, &use);
        CHECK_EQ(use.rule, RULE_sgd);
    }
    updater_use(u, &(struct rule_key){bytes_text("bias_weight"), 1, &dim, COUNT}, DTYPE_f32, &use);
    CHECK_EQ(use.rule, RULE_lars);
    updater_drop(u);
}

TEST(only_rules_without_fractions_take_integers)
{
    for (unsigned i = 0; i < RULE_COUNT; i++)
        CHECK_EQ(rule_takes_integers((enum rule_id)i), i == RULE_assign || i == RULE_add || i == RULE_average);
}

/* ---- random numbers --------------------------------------------------------------------------------------------- */

static real normal_below(double x) { return erfcl(-(real)x / sqrtl(2)) / 2; }

/* 4 million places: moments to 5 standard errors, and the part below each of a few bounds. */
TEST(the_normal_numbers_are_normal)
{
    static const double bounds[] = {-4, -3, -2, -1, -0.5, 0, 0.1, 1, 2, 3, 4};
    enum { N = 1 << 22, BOUNDS = sizeof bounds / sizeof bounds[0] };
    double sum[5] = {0}, below[BOUNDS] = {0}, root = sqrt(N);

    for (uint64_t i = 0; i < N; i++) {
        double x = (double)random_normal(random_place(0x1234567890abcdef + i)), power = 1;
        for (int k = 1; k <= 4; k++) sum[k] += power *= x;
        for (int b = 0; b < BOUNDS; b++) below[b] += x < bounds[b];
    }
    CHECK_NEAR(sum[1] / N, 0, 5 / root);
    CHECK_NEAR(sum[2] / N, 1, 5 * sqrt(2) / root);
    CHECK_NEAR(sum[3] / N, 0, 5 * sqrt(15) / root);
    CHECK_NEAR(sum[4] / N, 3, 5 * sqrt(96) / root);
    for (int b = 0; b < BOUNDS; b++) {
        double p = (double)normal_below(bounds[b]);
        CHECK_NEAR(below[b] / N, p, 5 * sqrt(p * (1 - p)) / root);
    }
}

/* The series of the rule against the library's functions, on the same bits. */
TEST(the_normal_numbers_are_those_of_box_and_muller)
{
    for (uint64_t i = 0; i < 100000; i++) {
        uint64_t place = i * 0x123456789abcdu;
        uint32_t low = (uint32_t)place ^ random_bits((uint32_t)(place >> 32) ^ 0x9e3779b9u), bits = random_bits(low);
        double u = (double)(2 * (bits / 2) + 1) / 4294967296.0;
        double v = (double)(random_other_bits(bits) / 256) / 16777216.0;
        CHECK_NEAR((double)random_normal(random_place(place)), sqrt(-2 * log(u)) * cos(2 * M_PI * v), 4e-6);
    }
}

/* The length that u gives and the angle that v gives know nothing of one another: of 64 by 64 boxes each has as many, by
 * chi-square; and so it is for the number at a place and its neighbour's. */
static double evenness(uint64_t (*at)(uint64_t i))
{
    enum { SIDE = 64, BOXES = SIDE * SIDE, N = 1 << 22 };
    static double counts[BOXES];
    double chi = 0, want = (double)N / BOXES;

    memset(counts, 0, sizeof counts);
    for (uint64_t i = 0; i < N; i++) counts[at(i)]++;
    for (int b = 0; b < BOXES; b++) chi += (counts[b] - want) * (counts[b] - want) / want;
    return (chi - (BOXES - 1)) / sqrt(2 * (BOXES - 1)); /* in standard errors */
}

static uint64_t box_of_u_and_v(uint64_t i)
{
    uint32_t bits = random_bits((uint32_t)i);
    return bits >> 26 << 6 | random_other_bits(bits) >> 26;
}

/* The finest digits of the length decide the tails. */
static uint64_t box_of_small_u_and_v(uint64_t i)
{
    uint32_t bits = (uint32_t)i << 10 >> 10;
    return bits >> 16 << 6 | random_other_bits(bits) >> 26;
}

static uint64_t box_of_neighbours(uint64_t i)
{
    return (uint64_t)(random_bits((uint32_t)i) >> 26 << 6 | random_other_bits(random_bits((uint32_t)i + 1)) >> 26);
}

TEST(length_angle_and_neighbours_of_random_numbers_are_independent)
{
    CHECK_NEAR(evenness(box_of_u_and_v), 0, 5);
    CHECK_NEAR(evenness(box_of_neighbours), 0, 5);
    CHECK(evenness(box_of_small_u_and_v) < 5); /* every small u once, so it may be more even than chance */
}

/* What has one bit of its place changed has another half of its bits. */
TEST(each_bit_of_a_place_changes_the_number)
{
    double along = 0, n = 0;

    for (int bit = 0; bit < 64; bit++)
        for (uint64_t i = 1; i <= 1000; i++) {
            uint64_t place = i * 0x9e3779b97f4a7c15u;
            along += (double)random_normal(random_place(place)) * (double)random_normal(random_place(place ^ (uint64_t)1 << bit));
            n++;
        }
    CHECK_NEAR(along / n, 0, 5 / sqrt(n));
}

static void noise_of(const char *document, double *out)
{
    struct run r;

    run_open(&r, document, DTYPE_f64, 1);
    for (int t = 0; t < STEPS; t++) {
        for (size_t i = 0; i < COUNT; i++) put(DTYPE_f64, r.value.host, i, 2), put(DTYPE_f64, r.sum.host, i, 0.5);
        run_step(&r);
        for (size_t i = 0; i < COUNT; i++) out[(size_t)t * COUNT + i] = get(DTYPE_f64, r.value.host, i);
    }
    run_close(&r);
}

/* w 2, g 0.5 + 0.25 * 2, lr 0.04: 2 - 0.02 + 0.2 N. */
TEST(sgld_moves_by_half_the_rate_and_by_its_root_times_normal_noise)
{
    static double a[STEPS * COUNT], b[STEPS * COUNT], other[STEPS * COUNT];
    double mean = 0, square = 0, along = 0, n = STEPS * COUNT;

    noise_of("{\"type\": \"sgld\", \"learning_rate\": 0.04, \"wd\": 0.25}", a);
    noise_of("{\"type\": \"sgld\", \"learning_rate\": 0.04, \"wd\": 0.25}", b);
    noise_of("{\"type\": \"sgld\", \"learning_rate\": 0.04, \"wd\": 0.25, \"seed\": 1}", other);
    CHECK(memcmp(a, b, sizeof a) == 0);
    for (size_t i = 0; i < STEPS * COUNT; i++) {
        double x = (a[i] - 1.98) / 0.2;
        CHECK(a[i] != other[i]);
        mean += x / n;
        square += x * x / n;
        if (i >= COUNT) along += x * (a[i - COUNT] - 1.98) / 0.2 / n;
    }
    CHECK_NEAR(mean, 0, 5 / sqrt(n));
    CHECK_NEAR(square, 1, 5 * sqrt(2 / n));
    CHECK_NEAR(along, 0, 5 / sqrt(n));
}

/* ---- out of the CPU's reach: the last, since one that fails leaves its device open ------------------------------- */

static void close_far(void)
{
    device_free(far);
    far = NULL;
}

TEST(every_updater_agrees_with_its_formula_on_a_gpu)
{
    static const enum dtype types[] = {DTYPE_f32, DTYPE_f64, DTYPE_f16, DTYPE_bf16};
    struct error e;

    if (!sim_present()) test_skip("it needs CUDA's headers: packages cuda-cudart-dev-13-0 cuda-crt-13-0, see README.md");
    CHECK_OK(sim_device_new(4, &far, &e), &e);
    for (unsigned i = 0; i < 4; i++) all_cases(types[i], true);
    all_cases(DTYPE_bf16, false);
    close_far();
    if (sim_remains() != NULL) test_fail(__FILE__, __LINE__, "%s", sim_remains());
}

/* Values of 65 elements in parts of 64. */
static void open_several(struct device *const members[2])
{
    struct error e;

    CHECK_OK(array_device_new(&(struct array_config){.members = members, .count = 2, .part = DMEM_ALIGN}, &far, &e), &e);
}

TEST(every_updater_agrees_with_its_formula_on_several_devices)
{
    struct device *members[2];
    struct error e;

    for (unsigned i = 0; i < 2; i++) CHECK_OK(cpu_device_new(1, &members[i], &e), &e);
    open_several(members);
    all_cases(DTYPE_f32, true);
    all_cases(DTYPE_bf16, false);
    close_far();
    for (unsigned i = 0; i < 2; i++) CHECK_OK(late_device_new(i, &members[i], &e), &e);
    open_several(members);
    all_cases(DTYPE_f64, true);
    all_cases(DTYPE_f16, true);
    close_far();
}

TEST(every_updater_agrees_with_its_formula_on_several_cards)
{
    struct device *members[2];
    struct error e;

    if (!sim_present() || sim_replaced()) test_skip("it needs CUDA's headers: packages cuda-cudart-dev-13-0 cuda-crt-13-0, see README.md");
    CHECK_OK(sim_cards_new(4, 2, members, &e), &e);
    open_several(members);
    all_cases(DTYPE_f32, true);
    close_far();
    if (sim_remains() != NULL) test_fail(__FILE__, __LINE__, "%s", sim_remains());
}
