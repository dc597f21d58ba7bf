/* What a step computes: the rules by number, and the updaters by name.
 *
 * A *rule* is arithmetic for one element (gpu/rules.h); its scalars are made on the host in double, once a step, and
 * rounded once to the type of the arithmetic. An *updater* is what a person names ("sgd" with its hyperparameters);
 * it chooses the rule and makes its scalars. One row of RULES and one function in rules.h add a rule; one row of the
 * table in rule.c adds an updater. Any thread; nothing here allocates. */
#ifndef GPU_RULE_H
#define GPU_RULE_H

#include "service/base/bytes.h"

#include <stdint.h>

/*    name      slots  their names */
#define RULES(X)                      \
    X(assign,   0, "", "")            \
    X(add,      0, "", "")            \
    X(average,  0, "", "")            \
    X(sgd,      0, "", "")            \
    X(momentum, 1, "momentum", "")    \
    X(adam,     2, "mean", "var")     \
    X(test,     0, "", "")

enum rule_id {
#define RULE_ENUM(name, slots, slot0, slot1) RULE_##name,
    RULES(RULE_ENUM)
#undef RULE_ENUM
    RULE_COUNT
};

enum { RULE_SCALARS_MAX = 10, UPDATER_HYPERS_MAX = 12, UPDATERS_MAX = 40 };

struct rule_scalars {
    double v[RULE_SCALARS_MAX];
};

unsigned rule_slots(enum rule_id r);
const char *rule_slot_name(enum rule_id r, unsigned slot);
const char *rule_name(enum rule_id r);
/* Integers take only rules that need no fractions. */
bool rule_takes_integers(enum rule_id r);

/* What a step is made from besides the numbers of the document. */
struct update_moment {
    uint64_t t;              /* the key's update counter: 1 at the first update */
    uint32_t contributors;   /* contributions in the sum */
};

struct hyper_row {
    const char *name;        /* MXNet's: "learning_rate" */
    double standard;         /* when left out; NAN: null, the option is off */
    double least, most;
    const char *text;
};

struct updater_row {
    const char *name;        /* "sgd" */
    const char *text;        /* what it does, with the formula and its source */
    const struct hyper_row *hypers;
    unsigned hyper_count;
    enum rule_id (*rule)(const double *hypers);
    void (*scalars)(const double *hypers, const struct update_moment *m, struct rule_scalars *out);
};

/* The catalogue, in the order of documents; NULL at the end of it. */
const struct updater_row *updater_row_at(unsigned index);
const struct updater_row *updater_row_find(struct bytes name);

#endif
