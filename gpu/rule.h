/* What a step computes: the rules by number, and the updaters by name.
 *
 * A *rule* is arithmetic. An element rule sees one element (gpu/rules.h); a whole rule also needs sums over the whole
 * tensor, its rows or its columns (gpu/whole.h). The scalars of a rule are made on the host in double, once a step, and
 * rounded once to the type of the arithmetic. An *updater* is what a person names ("sgd" with its hyperparameters); it
 * chooses the rule and makes its scalars. One row below and one function in rules.h add a rule; an
 * updater takes a row of the table in catalogue.c, its scalars, where it has several rules the function that chooses
 * one, and a test case. Any thread; nothing here allocates. */
#ifndef GPU_RULE_H
#define GPU_RULE_H

#include "service/base/bytes.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Slots of one name hold the same quantity whatever the rule, so that they can be kept when the updater changes:
 * momentum  the last movement: mu * momentum - rate * gradient
 * velocity  the same without the rate: mu * velocity + gradient
 * mean      a running mean of gradients
 * var       a running mean of their squares
 * squares   the sum of their squares
 *    name          slots  their names */
#define ELEMENT_RULES(X)                                                 \
    X(assign,           0, "", "", "")                                   \
    X(add,              0, "", "", "")                                   \
    X(average,          0, "", "", "")                                   \
    X(ema,              1, "average", "", "")                            \
    X(sgd,              0, "", "", "")                                   \
    X(momentum,         1, "momentum", "", "")                           \
    X(velocity,         1, "velocity", "", "")                           \
    X(nag,              1, "momentum", "", "")                           \
    X(nesterov,         1, "velocity", "", "")                           \
    X(adam,             2, "mean", "var", "")                            \
    X(adamw,            2, "mean", "var", "")                            \
    X(adabelief,        2, "mean", "spread", "")                         \
    X(adamax,           2, "mean", "peak", "")                           \
    X(nadam,            2, "mean", "var", "")                            \
    X(radam,            2, "mean", "var", "")                            \
    X(yogi,             2, "mean", "var", "")                            \
    X(adagrad,          1, "squares", "", "")                            \
    X(adadelta,         2, "var", "moves", "")                           \
    X(rmsprop,          1, "var", "", "")                                \
    X(rmsprop_velocity, 2, "var", "pace", "")                            \
    X(rmsprop_centered, 3, "var", "mean", "stride")                      \
    X(rmsprop_torch,    3, "var", "mean", "pace")                        \
    X(ftrl,             2, "dual", "squares", "")                        \
    X(ftml,             3, "d", "var", "z")                              \
    X(signsgd,          0, "", "", "")                                   \
    X(signum,           1, "mean", "", "")                               \
    X(dcasgd,           1, "previous", "", "")                           \
    X(dcasgd_momentum,  2, "previous", "momentum", "")                   \
    X(sgld,             0, "", "", "")                                   \
    X(lion,             1, "mean", "", "")                               \
    X(test,             0, "", "", "")                                   \
    X(scaled,           0, "", "", "")                                   \
    X(squared,          0, "", "", "")

#define WHOLE_RULES(X)                                                   \
    X(lars,             0, "", "", "")                                   \
    X(lars_momentum,    1, "momentum", "", "")                           \
    X(lamb,             2, "mean", "var", "")                            \
    X(lans,             2, "mean", "var", "")                            \
    X(groupadagrad,     1, "row_squares", "", "")                        \
    X(adafactor,        2, "row_var", "column_var", "")                  \
    X(adafactor_vector, 1, "var", "", "")

#define RULES(X) ELEMENT_RULES(X) WHOLE_RULES(X)

/* Slots that begin as the value, not as zero. */
#define SLOTS_FROM_VALUE(X) X(ema, 0) X(dcasgd, 0) X(dcasgd_momentum, 0)
/* Slots with one element a row, or a column, of the value. */
#define SLOTS_OF_ROWS(X) X(groupadagrad, 0) X(adafactor, 0)
#define SLOTS_OF_COLUMNS(X) X(adafactor, 1)
/* Rules that do not read the value as it was, so that it needs no more precision than it has. */
#define RULES_WITHOUT_VALUE(X) X(assign) X(average) X(ema) X(scaled) X(squared)

enum rule_id {
#define RULE_ENUM(name, slots, slot0, slot1, slot2) RULE_##name,
    RULES(RULE_ENUM)
#undef RULE_ENUM
    RULE_COUNT,
    RULE_program = RULE_COUNT,       /* none of these: the step has a program, a user's text (gpu/program.h) */
    RULES_END
};

enum { RULE_SCALARS_MAX = 16, RULE_SLOTS_MAX = 3, UPDATER_HYPERS_MAX = 14, UPDATERS_MAX = 40 };

struct rule_scalars {
    double v[RULE_SCALARS_MAX];
};

unsigned rule_slots(enum rule_id r);
const char *rule_slot_name(enum rule_id r, unsigned slot);
/* How many elements the slot has for a value of `count` elements in rows of `columns`. */
size_t rule_slot_count(enum rule_id r, unsigned slot, size_t count, size_t columns);
bool rule_slot_from_value(enum rule_id r, unsigned slot);
const char *rule_name(enum rule_id r);
bool rule_is_whole(enum rule_id r);
/* Whether count and columns must say where rows end. */
bool rule_has_rows(enum rule_id r);
bool rule_reads_value(enum rule_id r);
/* Integers take only rules that need no fractions. */
bool rule_takes_integers(enum rule_id r);

/* ---- updaters --------------------------------------------------------------------------------------------------- */

/* The value that an updater is for. */
struct rule_key {
    struct bytes name;       /* an integer key's in decimal */
    unsigned ndim;
    const int64_t *dims;
    uint64_t count;
};

/* What a step is made from besides the numbers of the document. */
struct update_moment {
    uint64_t t;              /* updates since the slots began: 1 at the first */
    uint64_t num_update;     /* the largest update counter of the store, this update included */
    uint32_t contributors;   /* contributions in the sum */
    uint32_t num_workers;    /* of the store */
    uint64_t staleness;      /* versions of the key since the one that the gradient was computed from; 0: unknown */
    double lr_mult;          /* the key's; hypers[H_RATE] has it already, it is for rates of a rule's own */
    double product;          /* the key's (nadam): 1 at first, and what the last step left there */
};

/* A member of a document: a number, or one of a few words. */
struct hyper_row {
    const char *name;        /* MXNet's: "learning_rate" */
    double standard;         /* when left out; NAN: null, the option is off; HYPER_REQUIRED: it must be there */
    double torch;            /* the same with convention torch */
    double least, most;
    const char *text;
    const char *const *words;    /* NULL: a number. Else the number is the place of the word in this NULL-ended list. */
    bool is_whole;           /* a number without fraction */
};

#define HYPER_REQUIRED (-HUGE_VAL)
extern const char *const hyper_flag[];           /* words of a member that is true or false in JSON */
extern const char *const hyper_convention[];     /* mxnet, torch */

/* The members with which most updaters begin; what `common` says. */
enum { H_RATE, H_WD, H_RESCALE, H_CLIP, H_PRECISION, H_OWN };

struct updater_row {
    const char *name;        /* "sgd" */
    const char *text;        /* what it does, with the formula and its source */
    const struct hyper_row *hypers;
    unsigned hyper_count;
    bool common;             /* the members begin with H_RATE .. H_PRECISION */
    bool counts;             /* the rule depends on t, so its slots must have begun together */
    enum rule_id (*rule)(const double *hypers, const struct rule_key *key);
    /* hypers[H_RATE] is the rate of this step. Changes m->product. */
    void (*scalars)(const double *hypers, struct update_moment *m, struct rule_scalars *out);
};

/* The catalogue, in the order of documents; NULL at the end of it. */
const struct updater_row *updater_row_at(unsigned index);
/* Case does not count, as in MXNet. NULL: there is none. */
const struct updater_row *updater_row_find(struct bytes name);
/* Columns that the rule sees in the value; count when it sees no rows. */
size_t rule_columns(enum rule_id r, const struct rule_key *key);

#endif
