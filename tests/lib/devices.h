/* Tests of the store whose body runs on one device after another, each time with a fresh server: what the store promises
 * does not depend on when a device does its work, and where a wait is forgotten the late ones give a wrong result. */
#ifndef TESTS_LIB_DEVICES_H
#define TESTS_LIB_DEVICES_H

#include "tests/lib/direct.h"
#include "tests/lib/test.h"

enum device_kinds {
    ON_CPU = 1,
    ON_THREADS = 2,          /* the CPU with two */
    ON_LATE = 4,             /* three seeds */
    ON_LATE_LONG = 8,        /* and twelve more */
    ON_ARRAYS = 16,          /* several as one, values in small parts */
    ON_FULL = 32,            /* one with room for a few small keys, and the CPU for the rest */
    ON_SIM = 64              /* the CUDA device on its stand-in, where there is one; alone where PARAMD_TEST_PLUGIN names another */
};

/* Number i of those kinds; NULL: there are no more. */
struct device *device_of_kinds(unsigned kinds, unsigned i);
/* n of them as one, the first a CPU and the others late. */
struct device *device_array_of(unsigned n);

/* After the body the books of the server are right and no memory is left. */
void run_on_each(unsigned kinds, void (*body)(struct fixture *f));

#define TEST_ON(kinds, name)                                                \
    static void body_##name(struct fixture *f);                             \
    TEST(name) { run_on_each(kinds, body_##name); }                         \
    static void body_##name(struct fixture *f)

#endif
