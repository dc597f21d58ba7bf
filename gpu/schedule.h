/* Schedules of the learning rate: pure functions of num_update, the largest update counter of a store, which is 1 at
 * the first update. MXNet's have a memory; for a num_update that rises by one they agree. A schedule is a row with
 * numbers, like an updater. Any thread; nothing here allocates. */
#ifndef GPU_SCHEDULE_H
#define GPU_SCHEDULE_H

#include "gpu/rule.h"

#include "service/base/status.h"

enum { SCHEDULE_HYPERS_MAX = 10, SCHEDULE_STEPS_MAX = 256 };

/* The members with which schedules begin that have a warm-up; all begin with the first. */
enum { S_BASE, S_WARMUP, S_WARMUP_BEGIN, S_WARMUP_MODE, S_OWN };

struct schedule;

struct schedule_row {
    const char *name;        /* "cosine" */
    const char *text;
    const struct hyper_row *hypers;
    unsigned hyper_count;
    bool warms_up;           /* the members begin with S_BASE .. S_WARMUP_MODE */
    bool has_steps;          /* beside the numbers there is "step", a list of rising whole numbers */
    /* After the warm-up. */
    double (*rate)(const struct schedule *s, double base, double n);
    /* The update from which on the rate stays as it is; NULL: none. */
    double (*end)(const struct schedule *s);
    /* What one number alone does not show: a sentence, and whose; NULL when all is well. */
    const char *(*fault)(const double *h, const char **name);
};

struct schedule {
    const struct schedule_row *row;          /* NULL: the rate stays as it is */
    double hypers[SCHEDULE_HYPERS_MAX];
    double steps[SCHEDULE_STEPS_MAX];
    unsigned step_count;
};

const struct schedule_row *schedule_row_at(unsigned index);      /* NULL at the end */
const struct schedule_row *schedule_row_find(struct bytes name);
/* The rate of update n; learning_rate is the base when the schedule names none. */
double schedule_rate(const struct schedule *s, double learning_rate, uint64_t n);
/* The update from which on the rate stays as it is; INFINITY: it never does, or did from the start. */
double schedule_end(const struct schedule *s);

#endif
