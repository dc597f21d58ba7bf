/* GPUs by name, one or several as one device: what --device and PARAMD_DEVICE say. One thread. */
#ifndef GPU_CARDS_H
#define GPU_CARDS_H

#include "gpu/array.h"

struct cards {
    unsigned count, numbers[ARRAY_MEMBERS_MAX];
};

/* "cuda" (the first), "cuda:N", "cuda:N,M,..." (none twice); false for anything else. */
bool cards_parse(const char *name, struct cards *out);

/* memory_max: of each, 0: what it has free. Several become one (gpu/array.h). Errors as cuda_device_new's. */
enum status cards_open(const struct cards *c, uint64_t memory_max, struct device **out, struct error *e) MUST_CHECK;

#endif
