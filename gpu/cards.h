/* GPUs by name, one or several as one device: what --device and PARAMD_DEVICE say. One thread. */
#ifndef GPU_CARDS_H
#define GPU_CARDS_H

#include "gpu/array.h"

struct cards {
    unsigned count, numbers[ARRAY_MEMBERS_MAX];
    uint64_t memory_max;             /* of each; 0: what it has free */
    bool cpu_when_full;              /* what does not fit lies on the CPU, else it is refused */
    unsigned threads;                /* of that CPU, see cpu_device_new */
};

/* "cuda" (the first), "cuda:N", "cuda:N,M,..." (none twice), with standards for the rest; false for anything else. */
bool cards_parse(const char *name, struct cards *out);

/* Several become one, and so do one and the CPU (gpu/array.h). Errors as cuda_device_new's. */
enum status cards_open(const struct cards *c, struct device **out, struct error *e) MUST_CHECK;

#endif
