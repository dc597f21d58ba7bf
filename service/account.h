/* The account of --memory-max: bytes that clients' doings may come to. What is counted may be
 * allocated later; nothing is allocated that has not been counted, so a step that has been admitted
 * never lacks the memory.
 *
 * Counted are: of each key its value, one spare buffer, its state under the updater that needs most
 * (that which it has or that which it is about to get) and KEY_COST; further versions while readers
 * hold old ones; mailboxes; values on their way (staging, and what is reserved for open rounds).
 * Kept free beside them is the floor: the most that one key's push, or a copy of its state, needs
 * at once, so that a full daemon still trains and can be saved. Cached buffers are not counted:
 * they go as soon as memory is wanted (core_mem_new).
 *
 * With a GPU the account bounds its memory and, apart from it, this machine's pinned memory: no
 * value has more bytes pinned than it has counted. Without a cap it is kept as well, but for keys
 * that have not stepped since a swap of the updater. Core thread only. */
#ifndef SERVICE_ACCOUNT_H
#define SERVICE_ACCOUNT_H

#include "service/core.h"

/* What is counted, and on its way. */
uint64_t account_used(const struct core *c);
/* May so much more be counted, while `floor` bytes, or more if another key needs them, stay free?
 * LIMIT, with the sum and the cure; STAGING_FULL with a retry time when it only has to wait until
 * values on their way are applied. what: "a new key". */
enum status account_check(struct core *c, uint64_t more, uint64_t floor, const char *what,
                          struct error *e) MUST_CHECK;
/* The same without a sentence, for what there is another way. */
bool account_has_room(struct core *c, uint64_t more);
/* Counts more, or less. */
void account_add(struct core *c, int64_t more);
/* A key that needs this floor has come, or one has gone. */
void account_floor_comes(struct core *c, uint64_t floor);
void account_floor_goes(struct core *c);
/* All that values on their way may come to: --staging-max, or less where the cap leaves less, but
 * never less than the floor. */
uint64_t account_staging_most(const struct core *c);

#endif
