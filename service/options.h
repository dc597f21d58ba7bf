/* The options of a store, one row each: what a person writes, what holds when it is left out, and its bounds.
 * From the rows come the struct, the reader of the Create document, the comparison with an existing store, and the
 * answer. Any thread; no state. */
#ifndef SERVICE_OPTIONS_H
#define SERVICE_OPTIONS_H

#include "api/limits.h"
#include "service/base/bytes.h"

#include <jansson.h>

enum store_mode { MODE_LOCAL, MODE_SYNC, MODE_ASYNC };       /* local: each push is applied at once, as a round */
enum on_missing { ON_MISSING_FAIL, ON_MISSING_PROCEED };
enum on_late { ON_LATE_DROP, ON_LATE_CARRY, ON_LATE_APPLY };
enum sum_order { SUM_ARRIVAL, SUM_RANK };
enum async_default { ASYNC_ASSIGN, ASYNC_ADD, ASYNC_ERROR };

/*    kind     name            standard          least most             words of a choice
 * seconds are written as such (fractions allowed) and kept in ms; the field has the row's name. */
#define STORE_OPTIONS(X)                                                                                \
    X(count,   num_workers,    0,                0,    WORKERS_MAX,     "")                            \
    X(flag,    elastic,        0,                0,    1,               "")                            \
    X(seconds, start_timeout,  START_TIMEOUT_MS, 1,    TIMEOUT_MAX_MS,  "")                            \
    X(seconds, round_timeout,  ROUND_TIMEOUT_MS, 1,    TIMEOUT_MAX_MS,  "")                            \
    X(seconds, worker_timeout, WORKER_TIMEOUT_MS, 1,   TIMEOUT_MAX_MS,  "")                            \
    X(choice,  on_missing,     ON_MISSING_FAIL,  0,    1,               "fail proceed")                \
    X(count,   min_workers,    1,                1,    WORKERS_MAX,     "")                            \
    X(choice,  on_late,        ON_LATE_DROP,     0,    2,               "drop carry apply")            \
    X(choice,  sum_order,      SUM_ARRIVAL,      0,    1,               "arrival rank")                \
    X(choice,  async_default,  ASYNC_ASSIGN,     0,    2,               "assign add error")            \
    X(count,   versions_max,   VERSIONS_MAX,     2,    64,              "")

struct store_options {
    char type[64];               /* as given, in lower case */
    enum store_mode mode;
#define OPTION_FIELD(kind, name, standard, least, most, words) uint32_t name;
    STORE_OPTIONS(OPTION_FIELD)
#undef OPTION_FIELD
    bool needs_gpu;              /* of the type: nccl */
    uint64_t given;              /* bit i: row i was written */
};

/* Reads a type name: words joined by '_'. BAD_ARGUMENT lists the words; UNIMPLEMENTED for what is planned. */
enum status type_parse(struct bytes name, char out[64], enum store_mode *mode, struct error *e) MUST_CHECK;

/* Reads "type" and the options out of a Create document; other members are left alone if they are in `known`
 * (NULL-ended), else UNKNOWN_FIELD with the nearest name. */
enum status options_parse(json_t *document, const char *const *known, struct store_options *out,
                          struct error *e) MUST_CHECK;

/* STORE_DIFFERS, naming both values, when `wanted` states something else than `have`. */
enum status options_agree(const struct store_options *have, const struct store_options *wanted, const char *store,
                          struct error *e) MUST_CHECK;

/* What is to hold for options that were not given, in ms. */
struct option_standards { uint32_t start_timeout, round_timeout, worker_timeout; };
void options_fill(struct store_options *o, const struct option_standards *s);

/* Sets "type" and every option in a JSON object; false: no memory. */
bool options_json(const struct store_options *o, json_t *object);

#endif
