/* The handle's mailbox: memory on the daemon's GPU that is open here, too (api/protocol.md section 6). It is asked for
 * when the first value on a GPU is pushed or pulled, on the data lane that happens to be free, and ends with that
 * lane's connection; then the next such value asks for another. Where none is to be had, values go through host memory.
 *
 * It is cut into slots of one size; a request has a slot from its making until its answer. Part of the engine. */
#ifndef API_CLIENT_BOX_H
#define API_CLIENT_BOX_H

#include "api/client/op.h"

/* Whether values on a GPU go through the mailbox. BOX_LATER: it is being asked for, and operations are told when to go
 * on; or all slots are taken, the same. */
enum box_use { BOX_NEVER, BOX_LATER, BOX_NOW };
enum box_use box_use(struct engine *en);
/* What a slot holds; after BOX_NOW. */
uint64_t box_slot_size(const struct engine *en);
/* Gives the request a slot; after BOX_NOW. */
void box_take(struct engine *en, struct call *c);
/* The slot's memory, here. */
uint8_t *box_memory(const struct engine *en, const struct call *c);
/* Appends to the request where in the slot a value lies. */
void box_put_place(struct call *c, uint64_t offset);
/* The request is over; one without a slot is nothing. */
void box_give(struct engine *en, struct call *c);
/* Whether the mailbox that the request names is still there. */
bool box_has(const struct engine *en, const struct call *c);
/* The daemon does not know this mailbox. */
void box_refused(struct engine *en, uint64_t box);
/* The lane's connection ends. */
void box_lane_down(struct engine *en, const struct lane *l);
/* Its operation has ended. */
void box_asked(struct engine *en);
void box_fini(struct engine *en);

#endif
