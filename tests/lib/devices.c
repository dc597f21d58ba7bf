#include "tests/lib/devices.h"

#include "gpu/array.h"
#include "service/base/log.h"
#include "service/base/mem.h"
#include "tests/lib/books.h"
#include "tests/lib/late_device.h"
#include "tests/lib/sim_device.h"

static struct device *cpu_of(unsigned threads)
{
    struct device *d;
    struct error e;

    CHECK_OK(cpu_device_new(threads, &d, &e), &e);
    return d;
}

static struct device *late_of(unsigned seed)
{
    struct device *d;
    struct error e;

    CHECK_OK(late_device_new(seed, &d, &e), &e);
    return d;
}

static struct device *sim_of(unsigned seed)
{
    struct device *d;
    struct error e;

    CHECK_OK(sim_device_new(seed, &d, &e), &e);
    return d;
}

struct device *device_array_of(unsigned n)
{
    struct device *members[3] = {cpu_of(1)}, *d;
    struct error e;

    CHECK(n <= 3);
    for (unsigned i = 1; i < n; i++) members[i] = late_of(n + i);
    CHECK_OK(array_device_new(&(struct array_config){.members = members, .count = n, .part = DMEM_ALIGN}, &d, &e), &e);
    return d;
}

static struct device *nearly_full(void)
{
    struct device *late = late_of(5), *d;
    struct error e;

    late->capacity = 1000;
    CHECK_OK(array_device_new(&(struct array_config){.members = &late, .count = 1, .cpu = cpu_of(1)}, &d, &e), &e);
    return d;
}

/* How many there are of a kind. */
static unsigned count_of(unsigned kind)
{
    bool replaced = sim_replaced();

    switch (kind) {
    case ON_SIM: return replaced ? 1 : sim_present() ? SIM_SEEDS : 0;
    case ON_LATE: return replaced ? 0 : 3;
    case ON_LATE_LONG: return replaced ? 0 : 12;
    case ON_ARRAYS: return replaced ? 0 : 2;
    default: return replaced ? 0 : 1;
    }
}

static struct device *of_kind(unsigned kind, unsigned i)
{
    switch (kind) {
    case ON_CPU: return cpu_of(1);
    case ON_THREADS: return cpu_of(2);
    case ON_LATE: return late_of(1 + i);
    case ON_LATE_LONG: return late_of(4 + i);
    case ON_ARRAYS: return device_array_of(2 + i);
    case ON_FULL: return nearly_full();
    default: return sim_of(8 + i);
    }
}

struct device *device_of_kinds(unsigned kinds, unsigned i)
{
    for (unsigned kind = ON_CPU; kind <= ON_SIM; kind *= 2) {
        unsigned count = kinds & kind ? count_of(kind) : 0;
        if (i < count) return of_kind(kind, i);
        i -= count;
    }
    return NULL;
}

void run_on_each(unsigned kinds, void (*body)(struct fixture *f))
{
    struct device *d;
    int64_t live = mem_live();

    log_set_level(LOG_OFF);
    for (unsigned i = 0; (d = device_of_kinds(kinds, i)) != NULL; i++) {
        struct fixture *f = fixture_new(d, 0);
        body(f);
        fixture_settle(f);
        CHECK(books_wrong(f->server) == NULL);
        fixture_free(f);
        CHECK_EQ(mem_live(), live);
    }
}
