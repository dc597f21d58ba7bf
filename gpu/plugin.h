/* Devices that are opened at run time, so that the same program starts with and without a GPU, a driver or CUDA: a shared
 * object beside it, paramd-cuda.so, which has one symbol.
 *
 * It is looked for beside the shared object or program that this code is part of (libparamd.so, paramd), or where
 * PARAMD_CUDA_PLUGIN says, and opened by its absolute path; nothing is searched. Once opened it stays until the process
 * ends: the CUDA runtime has threads and exit handlers of its own. One thread. */
#ifndef GPU_PLUGIN_H
#define GPU_PLUGIN_H

#include "gpu/trainer.h"

/* A GPU and what may be taken of it. */
struct card {
    unsigned number;                 /* as CUDA counts: CUDA_VISIBLE_DEVICES */
    uint64_t memory_max;             /* bytes, a hard limit; 0: what the card has */
    size_t chunk_size;               /* of device and pinned memory; 0: the standard. This and what follows for tests */
    size_t slot_size;                /* of the ring for copies of pageable memory; 0: the standard */
    size_t gather_max;               /* elements of work that shares a launch; 0: the standard */
};

/* "cuda" and "cuda:N". */
bool card_parse(const char *name, struct card *out);

/* Opens the plug-in and the card. UNIMPLEMENTED: there is no plug-in, or it is of another build; SYSTEM: CUDA says no, with
 * its number, name and text. Does not change anything of the process where it fails, but that the plug-in stays. */
enum status cuda_device_new(const struct card *c, struct device **out, struct error *e) MUST_CHECK;

/* ---- what the plug-in shows --------------------------------------------------------------------------------------- */

/* The layouts that both sides must have in common, and the number of this table. */
#define DEVICE_PLUGIN_ABI                                                                                          \
    ((uint64_t)2 << 48 ^ (uint64_t)sizeof(struct error) << 36 ^ (uint64_t)sizeof(struct device) << 24 ^           \
     (uint64_t)sizeof(struct step) << 8 ^ (uint64_t)sizeof(struct device_ops) ^                                  \
     (uint64_t)sizeof(struct trainer_ops) << 16)
#define DEVICE_PLUGIN_SYMBOL "paramd_device_plugin"

struct device_plugin {
    uint64_t abi;                    /* first, whatever follows */
    enum status (*open)(const struct card *c, struct device **out, struct error *e);
    const struct trainer_ops *trainer;
    /* For tests: service/base/mem.h of the plug-in's own copy. */
    int64_t (*mem_live)(void);
    void (*mem_fault_at)(uint64_t n);
    int (*mem_fault_hit)(void);
};

/* The plug-in's table, opened. */
enum status plugin_open(const struct device_plugin **out, struct error *e) MUST_CHECK;

#endif
