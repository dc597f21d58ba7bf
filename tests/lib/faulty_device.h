/* A device for tests that wraps another one and fails one call, for sweeps: the first call fails, then the second,
 * until a scenario runs to its end without meeting the fault. */
#ifndef TESTS_LIB_FAULTY_DEVICE_H
#define TESTS_LIB_FAULTY_DEVICE_H

#include "gpu/device.h"

#include <stdbool.h>

enum fault_mode {
    FAULT_REFUSED,           /* mem_new and pin_new answer NO_MEMORY, once; any other call that the device is lost */
    FAULT_ACCEPTED,          /* as above, but a work call is accepted and not done, and the device is lost at the first
                              * passed or wait after it */
    FAULT_MEMORY,            /* only mem_new and pin_new count, and answer NO_MEMORY, once */
    FAULT_SYSTEM,            /* all but record, passed and wait count, and answer SYSTEM, once: the status of a loss,
                              * which it is not */
    FAULT_SYSTEM_MARK        /* only record, passed and wait count, and answer SYSTEM, once */
};

/* Takes `inner`, which goes with it, also when this fails. */
enum status faulty_device_new(struct device *inner, struct device **out, struct error *e) MUST_CHECK;
/* The n-th call from now fails (1: the next); 0: none. All that can fail counts: memory, queues, order, work. */
void faulty_device_fail_at(struct device *d, uint64_t n, enum fault_mode mode);
/* Whether the fault has been met since. */
bool faulty_device_hit(const struct device *d);

#endif
