/* An updater's document: reading with every fault told at once, and writing. The insides of updater.c. */
#ifndef SERVICE_UPDATER_DOCUMENT_H
#define SERVICE_UPDATER_DOCUMENT_H

#include "api/limits.h"
#include "gpu/program.h"
#include "gpu/schedule.h"
#include "service/updater.h"

#include <jansson.h>

/* What only overrides have: factors of the rate and of wd, and two flags. */
enum { KEY_LR_MULT, KEY_WD_MULT, KEY_FROZEN, KEY_ASSIGN, KEY_MEMBERS };

/* Numbers of the keys whose names match. */
struct override {
    char *match;
    bool has[UPDATER_HYPERS_MAX], has_own[KEY_MEMBERS], has_factor[PROGRAM_PARAMS_MAX];
    double hypers[UPDATER_HYPERS_MAX], own[KEY_MEMBERS];
    double factors[PROGRAM_PARAMS_MAX]; /* of the program's params */
};

struct updater {
    unsigned holds;
    const struct updater_row *row;
    double hypers[UPDATER_HYPERS_MAX];       /* NAN: the option is off */
    struct schedule *schedule;               /* NULL: none */
    struct override *overrides;
    size_t override_count;
    struct program *program;                 /* of type program, else NULL */
    char *program_text;                      /* as it came */
    double params[PROGRAM_PARAMS_MAX];       /* by the program's numbers */
    int scheduled; /* the param that the schedule sets */
    uint64_t resets, conversions;            /* asked for in the store's life up to this updater */
    char *text;
};

/* Fills row, numbers, schedule and overrides; what it made is the caller's to free also when it fails. *all, if there
 * is one, gets every fault as a line. */
enum status document_read(struct bytes json, struct updater *u, struct buf *all, struct error *e) MUST_CHECK;
/* The numbers that `said`, the document that u was read from, does not have and that u has
 * otherwise than `before` of the same type: [{"name": "momentum", "from": 0.9, "to": 0}], empty
 * when there are none; those within another as "params/lr", "schedule/warmup_steps". from and to of
 * overrides are how many there are, of a schedule its type or null. NULL without memory. */
json_t *document_dropped(const struct updater *before, const struct updater *u,
                         const json_t *said) MUST_CHECK;
/* Makes u->text. */
enum status document_write(struct updater *u, struct error *e) MUST_CHECK;

#endif
