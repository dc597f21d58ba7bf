/* Calls that name thousands of keys, in slices: what is known of a slice's keys and their values then stays in the
 * processor's cache from when it is sent until it is answered, and the daemon works on one slice while the next is made.
 *
 * Belongs to a handle; called between drive_enter and drive_leave. */
#ifndef API_CLIENT_SLICES_H
#define API_CLIENT_SLICES_H

#include "api/client/drive.h"

/* Whether a push or pull may go in slices: it is long, its keys are distinct and known, and its values fit them, so that
 * nothing is left to be found out after the first slice has been sent. */
bool slices_can_run(struct paramd *kv, const struct tensors *t);
/* Do both name the same keys in the same order? */
bool slices_match(const struct tensors *a, const struct tensors *b);

/* Pushes, and pulls each slice as soon as its push is recorded. Either may be NULL; both match. Waits. The first fault is
 * told when all that was begun has ended. A push never waits for a pull: in a sync store another worker may push the
 * same keys in another order, and a pull ends when all have pushed. */
enum status slices_run(struct paramd *kv, const struct tensors *push, const struct tensors *pull,
                       struct error *e) MUST_CHECK;

#endif
