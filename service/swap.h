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
/* {"keys", "keys_looked_at", "overrides", "state_bytes", "slots", "begin_anew", "warnings"} as web/rest.md has it. u is
 * not the store's: store_check_updater has taken it for one that fits, and updater_follow has made it the next. */
json_t *swap_report(struct store *s, const struct updater *u, enum updater_states how);

#endif
