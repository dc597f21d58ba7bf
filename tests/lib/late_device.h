/* A device for tests that does its work as late as it may, in any order that is legal: so on a machine without a GPU a
 * forgotten wait becomes a wrong result.
 *
 * Nothing runs when it is given. device_passed runs a random number of items (also none), device_wait what it takes
 * until the mark has passed; each queue in order, awaits respected, queues mixed by the seed. Uploads and downloads
 * touch host memory when they run. Memory is out of the CPU's reach (dmem.host is NULL and dmem.at an address that
 * faults) and is filled with a pattern that is no zero; shared memory alone has an address that the CPU reaches, which
 * is also its handle, so that a test can be the other process. Memory freed under unfinished work ends the test run
 * with a sentence. `notify` is called from inside record, passed and wait for as long as work is left. */
#ifndef TESTS_LIB_LATE_DEVICE_H
#define TESTS_LIB_LATE_DEVICE_H

#include "gpu/device.h"

enum status late_device_new(uint64_t seed, struct device **out, struct error *e) MUST_CHECK;
/* Items given and not run, over all queues. */
size_t late_device_pending(const struct device *d);

#endif
