/* A handle's place on the plane of its store: a GPU, a queue of it and the group. Calls that are made of it wait, and
 * look every millisecond whether the GPU is done, and all the while at what the daemon says, which knows first who is
 * gone. When an epoch is over everything here is given back.
 *
 * seat_lock is held around each of these by the caller, who has not entered the handle. */
#ifndef API_CLIENT_SEAT_H
#define API_CLIENT_SEAT_H

#include "api/client/drive.h"

struct seat;

/* device: "cuda:N". An epoch that the handle is in is left first. */
enum status seat_join(struct paramd *kv, const char *device, struct error *e) MUST_CHECK;
/* Tensors lie on that GPU. outputs: as many as gradients; NULL: not wanted. */
enum status seat_push(struct paramd *kv, const struct tensors *gradients, const struct paramd_tensor *outputs,
                       struct error *e) MUST_CHECK;
enum status seat_leave(struct paramd *kv, struct error *e) MUST_CHECK;
/* Without a word to the daemon. NULL is nothing. */
void seat_free(struct seat *p);

#endif
