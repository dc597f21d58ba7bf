/* The daemon by itself: how soon it is there, and what it holds beyond the values. */
#include "tests/bench/peer.h"

#include "api/client/paramd.h"
#include "service/base/clock.h"

#include <string.h>
#include <unistd.h>

/* ---- what is printed -------------------------------------------------------------------------------------------- */

static const struct column columns[] = {
    {"id", -3}, {"what", -44}, {"median", 9}, {"least..most", -16}, {"unit", -11}, {"goal", 8}, {"met", -3},
};
enum { COLUMNS = sizeof columns / sizeof columns[0] };

static void print(struct bench *b, const char *id, const char *what, const struct figures *f, const char *unit, double most)
{
    char median[16], range[40], least[16], greatest[16], goal[16] = "";
    bool met = figures_median(f) <= most;

    figures_text(figures_median(f), median);
    figures_text(figures_least(f), least);
    figures_text(figures_most(f), greatest);
    snprintf(range, sizeof range, "%s..%s", least, greatest);
    if (most > 0) snprintf(goal, sizeof goal, "<= %g", most);
    bench_row(b, (const char *[COLUMNS]){id, what, median, range, unit, goal, most > 0 ? (met ? "yes" : "no") : ""});
}

/* ---- S1 --------------------------------------------------------------------------------------------------------- */

static void must(int status, const struct paramd_error *e)
{
    if (status != 0) bench_fail("paramd: %s", e->text);
}

static struct paramd *connect_to(const char *address)
{
    struct paramd_error e;
    struct paramd *kv;
    char options[ADDRESS_MAX + 64];

    snprintf(options, sizeof options, "{\"url\": \"%s\", \"num_workers\": 1}", address);
    must(paramd_create("dist_async", options, &kv, &e), &e);
    must(paramd_set_updater(kv, "{\"type\": \"add\"}", &e), &e);
    return kv;
}

static double ms_since(uint64_t begin_ns) { return (double)(clock_ns() - begin_ns) * 1e-6; }

static void measure_start(struct bench *b)
{
    struct figures ready = {.count = 0}, joined = {.count = 0};

    if (!bench_wants(b, "S1", "start")) return;
    for (unsigned n = 0; n < b->repetitions; n++) {
        char address[ADDRESS_MAX];
        pid_t pid;
        uint64_t begin = clock_ns();
        peer_paramd.start(address, &pid);
        figures_add(&ready, ms_since(begin));
        struct paramd *kv = connect_to(address);
        figures_add(&joined, ms_since(begin));
        paramd_close(kv);
        child_end(pid);
    }
    print(b, "S1", "start of the daemon, until it says it is ready", &ready, "ms", 50);
    print(b, "S1", "and until a client has joined a store", &joined, "ms", 50);
}

/* ---- S2 --------------------------------------------------------------------------------------------------------- */

static double resident(pid_t pid)
{
    char path[64];
    unsigned long size, pages = 0;

    snprintf(path, sizeof path, "/proc/%d/statm", (int)pid);
    FILE *f = fopen(path, "r");
    if (f == NULL || fscanf(f, "%lu %lu", &size, &pages) != 2) bench_fail("%s cannot be read", path);
    fclose(f);
    return (double)pages * (double)sysconf(_SC_PAGESIZE);
}

struct load {
    unsigned keys;
    size_t size;
    struct paramd_key *names;
    struct paramd_tensor *values;
    int64_t shape[1];
};

/* All keys have the same memory as their value, which is zeros. */
static void load_make(struct load *l, unsigned keys, size_t size)
{
    void *value = bench_memory(size);

    memset(value, 0, size);
    *l = (struct load){.keys = keys, .size = size, .shape = {(int64_t)(size / sizeof(float))}};
    l->names = bench_memory(keys * sizeof *l->names);
    l->values = bench_memory(keys * sizeof *l->values);
    for (unsigned i = 0; i < keys; i++) {
        l->names[i] = (struct paramd_key)PARAMD_INT((int64_t)i);
        l->values[i] = (struct paramd_tensor){value, PARAMD_F32, 1, l->shape};
    }
}

/* What the daemon grows by for a key: once all are there, and once each has been pushed. */
static void grow(const struct load *l, struct figures *made, struct figures *pushed)
{
    char address[ADDRESS_MAX];
    struct paramd_error e;
    pid_t pid;

    peer_paramd.start(address, &pid);
    struct paramd *kv = connect_to(address);
    double before = resident(pid);
    must(paramd_init(kv, l->keys, l->names, l->values, &e), &e);
    figures_add(made, (resident(pid) - before) / l->keys);
    must(paramd_push(kv, l->keys, l->names, l->values, 0, &e), &e);
    must(paramd_wait(kv, l->keys, l->names, &e), &e);
    figures_add(pushed, (resident(pid) - before) / l->keys);
    paramd_close(kv);
    child_end(pid);
}

static void measure_memory(struct bench *b)
{
    enum { SMALL = 64, KIB = 1024 };
    const size_t large = (size_t)64 << 20;
    struct figures made[2] = {{.count = 0}}, pushed[2] = {{.count = 0}};
    struct load l;

    if (!bench_wants(b, "S2", "memory")) return;
    for (unsigned n = 0; n < (b->repetitions < 3 ? b->repetitions : 3); n++) {
        load_make(&l, 100000, SMALL);
        grow(&l, &made[0], &pushed[0]);
        load_make(&l, 4, large);
        grow(&l, &made[1], &pushed[1]);
    }
    for (unsigned i = 0; i < made[0].count; i++) {
        made[0].at[i] -= SMALL;
        pushed[0].at[i] -= SMALL;
        made[1].at[i] /= (double)large;
        pushed[1].at[i] /= (double)large;
    }
    print(b, "S2", "100000 keys of 64 B: beyond the value", &made[0], "B a key", KIB);
    print(b, "S2", "and once each has been pushed", &pushed[0], "B a key", KIB);
    print(b, "S2", "4 keys of 64 MiB: in all", &made[1], "x the value", 2.1);
    print(b, "S2", "and once each has been pushed, with staging", &pushed[1], "x the value", 0);
}

int main(int argc, char **argv)
{
    struct bench b;

    bench_begin(&b, argc, argv, "The daemon by itself: its start, and its memory (resident, updater add, one worker)");
    bench_table(&b, columns, COLUMNS);
    measure_start(&b);
    measure_memory(&b);
    bench_end(&b);
    return 0;
}
