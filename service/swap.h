/* What a swap of a store's updater does to its keys, in JSON: told with the swap, or before it, by a dry run.
 *
 * Core thread only; nothing here waits or changes anything. The caller gets the references; NULL: no memory. */
#ifndef SERVICE_SWAP_H
#define SERVICE_SWAP_H

#include "service/store.h"

#include <jansson.h>

/* [{"key", "version"}] for as many keys as FIRST_VERSIONS_SIZE has room for: the first version of each under an updater
 * that the store gets now. */
json_t *swap_first_versions(const struct store *s);

/* A report of what a swap would do, made of as many looks at keys as it takes; in pieces. */
struct swap_report;
/* u is not the store's: swap_look has taken it for one that fits, and updater_follow has made it the next. It outlives the
 * report. NULL: no memory. */
struct swap_report *swap_report_new(const struct store *s, const struct updater *u, enum updater_states how) MUST_CHECK;
/* Looks at more keys; false: the turn has no time for the rest. s: as above. */
bool swap_report_look(struct swap_report *l, const struct store *s);
/* {"keys", "keys_looked_at", "overrides", "state_bytes", "slots", "begin_anew", "warnings"} as web/rest.md has it. */
json_t *swap_report_json(const struct swap_report *l, struct store *s);
void swap_report_free(struct swap_report *l);        /* NULL is nothing */

#endif
