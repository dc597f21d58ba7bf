/* The trainer's side of a GPU: what libparamd does with addresses of CUDA's, and with memory that a daemon on the same
 * machine has opened to it. The plug-in (gpu/plugin.h) has it, on the same runtime as the daemon's device.
 *
 * A *copier* has a stream on each GPU that it meets. The streams are blocking ones: what the caller gave to CUDA's
 * default stream comes before a copy by itself; what he gave to other streams he has waited for. Calls leave the
 * thread's current GPU as it was, and no error of CUDA's for the caller's own checks to find, but for one that cannot be
 * undone. One thread at a time may use a copier. */
#ifndef GPU_TRAINER_H
#define GPU_TRAINER_H

#include "gpu/device.h"

struct copier;

struct trainer_ops {
    enum status (*copier_new)(struct copier **out, struct error *e);
    /* Waits for its copies. NULL is nothing. */
    void (*copier_free)(struct copier *c);
    /* Tells whether all of these bytes lie on one GPU. */
    enum status (*on_gpu)(const void *at, size_t size, bool *there, struct error *e);
    /* Queues a copy; one end lies on a GPU, the other there or in host memory: else BAD_ARGUMENT. Both stay untouched
     * until settle, or until this or another copy fails: then what was queued before has been waited for. */
    enum status (*copy)(struct copier *c, void *to, const void *from, size_t size, struct error *e);
    /* Waits for what was queued. After an error, too, nothing is under way; what was copied is not known. */
    enum status (*settle)(struct copier *c, struct error *e);
    /* Opens memory of another process that lies on the GPU of this UUID. UNIMPLEMENTED when this process does not see
     * that GPU; SYSTEM with what CUDA says. */
    enum status (*open)(const char *uuid, const struct mem_handle *handle, void **out, struct error *e);
    void (*close)(void *at);         /* no copy may be under way there */
};

#endif
