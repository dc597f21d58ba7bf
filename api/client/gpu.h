/* Values of the caller that lie on a GPU: copies from and to them, and the daemon's mailbox on the same GPU. The
 * plug-in for CUDA is opened with the first of them; a handle that never meets one never touches CUDA. Belongs to one
 * handle, under its lock. */
#ifndef API_CLIENT_GPU_H
#define API_CLIENT_GPU_H

#include "gpu/trainer.h"

#include <stdint.h>

struct gpu {
    const struct trainer_ops *ops;   /* NULL: not opened */
    struct copier *copier;
};

/* A zeroed one is closed, and both calls do nothing to it. */
void gpu_fini(struct gpu *g);
/* Whether all bytes of a value that is said to lie on a GPU do so: BAD_ARGUMENT; NO_GPU when there is no plug-in; else
 * what CUDA says. */
enum status gpu_check(struct gpu *g, const void *at, uint64_t size, struct error *e) MUST_CHECK;
/* Queues a copy, one end of which is an address of CUDA's; gpu_settle waits for all. After an error of either nothing is
 * under way any more. */
enum status gpu_copy(struct gpu *g, void *to, const void *from, uint64_t size, struct error *e) MUST_CHECK;
enum status gpu_settle(struct gpu *g, struct error *e) MUST_CHECK;
/* The memory of a mailbox, in this process. */
enum status gpu_open(struct gpu *g, const char *uuid, const struct mem_handle *handle, void **out,
                     struct error *e) MUST_CHECK;
void gpu_close(struct gpu *g, void *at);

#endif
