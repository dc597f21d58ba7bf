/* A small back end for CUDA with faults that can be planted, to see which check of the stand-in finds which.
 *
 * gradient -> pinned ring -> upload -> staging -> add to the sum -> Adam over all keys -> download -> pinned ->
 * caller. Gradients in f32 are added on one stream, those in bf16 on another. Keys with a spare step from one buffer
 * into the other; the rest step in place. One thread. Functions answer a cudaError_t as an int. */
#ifndef TESTS_CUSIM_SAMPLE_BACKEND_H
#define TESTS_CUSIM_SAMPLE_BACKEND_H

#include <stdbool.h>
#include <stddef.h>

#define FAULTS(X)                                                                               \
    X(none)                                                                                     \
    X(state_not_zeroed)                                                                         \
    X(slot_reused)               /* a pinned slot is filled before its upload has ended */      \
    X(staging_reused)            /* an upload before the kernel that reads the old one */       \
    X(add_does_not_wait)         /* a kernel before the upload of what it reads */              \
    X(kernel_too_far)            /* four elements past the end */                               \
    X(update_overtakes_pull)     /* a step in place before an earlier download */               \
    X(pull_does_not_wait)        /* a download before the step it shall show */                 \
    X(pull_delivered_early)      /* to the caller, before the download has ended */             \
    X(freed_on_wrong_stream)                                                                    \
    X(event_before_work)         /* recorded before the upload that it shall cover */           \
    X(slot_freed)                /* a pinned slot is used after its end */                      \
    X(wrong_device_launch)       /* another device is current when a kernel is launched */      \
    X(wrong_device_memory)       /* or when memory is allocated */                              \
    X(queues_do_not_wait)        /* two streams add to one sum */                               \
    X(spare_reused)              /* a step into a buffer that is still downloaded */

enum fault {
#define FAULT_ENUM(name) FAULT_##name,
    FAULTS(FAULT_ENUM)
#undef FAULT_ENUM
    FAULT_COUNT
};

struct backend;
struct backend_key;

typedef void (*backend_done)(void *ctx, const float *value, size_t count, int error);

int backend_open(int device, enum fault fault, struct backend **out);
void backend_close(struct backend *b);                       /* keys are freed before */
int backend_key_new(struct backend *b, const float *value, size_t count, bool has_spare, struct backend_key **out);
void backend_key_free(struct backend *b, struct backend_key *k);
/* The gradient is the caller's again when this returns. */
int backend_push(struct backend *b, struct backend_key *k, const void *gradient, bool is_bf16, float scale);
int backend_update(struct backend *b, struct backend_key **keys, int count, float rate);
/* done is called by backend_deliver, with the value as the last update before this call left it. */
int backend_pull(struct backend *b, struct backend_key *k, backend_done done, void *ctx);
void backend_deliver(struct backend *b, bool wait);

#endif
