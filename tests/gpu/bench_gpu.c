/* What a GPU does with the work of a store, over gpu/device.h: the copy on the device as the ceiling, and add, SGD and Adam
 * beside it; many small keys in one step; the ways up and down. The plug-in is the one that PARAMD_CUDA_PLUGIN tells.
 *
 *     bench_gpu [ELEMENTS]        of a large value, a multiple of 65536 [268435456]
 *
 * Each repetition measures every row in turn, and a row is compared with the copy of its own repetition. Figures are medians.
 * A row is as many calls as move about 40 GB, so that what it costs to begin and to wait is little of it. Afterwards the
 * CPU device has done the same calls in the same order on the first 65536 elements, of which all the others are copies,
 * and every bit is compared: a wrong result ends with status 1. That a goal is missed is said, and is no error. */
#include "gpu/plugin.h"
#include "service/base/clock.h"
#include "service/base/mem.h"
#include "tests/bench/bench.h"

#include <stdlib.h>
#include <string.h>

enum {
    PATTERN = 65536, REPEATS = 7, WARM = 2, KEYS = 8192, KEYS_REHEARSED = 64, KEY_COUNT = 1000, KEY_ROUNDS = 15,
    WAY_SIZE_MAX = 64 << 20,
};
static const size_t REHEARSAL = 64 * PATTERN;        /* below, nothing is worth its figure */
static const double BATCH_BYTES = 40e9, GOAL_SHARE = 0.9, GOAL_KEYS_MS = 0.5;

enum array { SUM, LAST, VALUE, MEAN, VAR, COPY, ARRAYS };

/* The same arrays on the GPU and, PATTERN elements of them, on the CPU. */
struct side {
    struct device *device;
    struct queue *queue;
    size_t count;
    struct dmem at[ARRAYS];
};

struct progress {
    uint64_t t;                      /* calls so far, which is t to an updater */
    uint32_t flags;
};

static unsigned calls_of(size_t count, unsigned bytes)
{
    return count < REHEARSAL ? 2 : 1 + (unsigned)(BATCH_BYTES / bytes / (double)count);
}

static void must(enum status s, const struct error *e)
{
    if (s != STATUS_OK) bench_fail("%s", e->text);
}

static void done(enum status s, const struct side *x) { must(s, device_error(x->device)); }

static uint64_t mark_of(const struct side *x)
{
    uint64_t mark;
    done(device_record(x->queue, &mark), x);
    return mark;
}

static void finish(const struct side *x) { done(device_wait(x->queue, mark_of(x)), x); }

static double seconds_since(uint64_t begin) { return (double)(clock_ns() - begin) * 1e-9; }

/* ---- the work --------------------------------------------------------------------------------------------------------- */

/* An updater as it is without anything said: the rule, and its scalars at step t. */
static struct step step_of(const char *updater, uint64_t t, struct progress *c)
{
    const struct updater_row *u = updater_row_find(bytes_text(updater));
    const int64_t dims[1] = {PATTERN};
    const struct rule_key key = {.name = bytes_text("0"), .ndim = 1, .dims = dims, .count = PATTERN};
    struct update_moment m = {.t = t, .num_update = t, .contributors = 1, .lr_mult = 1, .product = 1};
    struct step s = {.type = DTYPE_f32, .flags = &c->flags};
    double hypers[UPDATER_HYPERS_MAX];

    for (unsigned i = 0; i < u->hyper_count; i++) hypers[i] = u->hypers[i].standard;
    u->scalars(hypers, &m, &s.scalars);
    s.rule = u->rule(hypers, &key);
    return s;
}

static void copy(const struct side *x, struct progress *c)
{
    (void)c;
    done(device_copy(x->queue, x->at[COPY], x->at[VALUE], x->count * sizeof(float)), x);
}

static void add(const struct side *x, struct progress *c)
{
    done(device_add(x->queue, x->at[SUM], x->at[LAST], DTYPE_f32, x->count, &c->flags), x);
}

static void update(const struct side *x, struct step s)
{
    s.count = x->count;
    s.sum = x->at[SUM];
    s.from = s.to = x->at[VALUE];
    s.slots[0] = x->at[MEAN];
    s.slots[1] = x->at[VAR];
    done(device_step(x->queue, &s), x);
}

static void sgd(const struct side *x, struct progress *c) { update(x, step_of("sgd", c->t, c)); }
static void adam(const struct side *x, struct progress *c) { update(x, step_of("adam", c->t, c)); }

static void fused(const struct side *x, struct progress *c)
{
    struct step s = step_of("adam", c->t, c);
    s.last = x->at[LAST];
    update(x, s);
}

static void statistics(const struct side *x, struct progress *c)
{
    static struct stats out;
    (void)c;
    done(device_stats(x->queue, x->at[VALUE], (struct dmem){0}, DTYPE_f32, x->count, &out), x);
}

static const struct row {
    const char *words;
    void (*work)(const struct side *x, struct progress *c);
    unsigned bytes;                  /* an element, read and written */
    bool is_goal;                    /* G1 */
} rows[] = {
    {"copy, device to device", copy, 8, false},
    {"add", add, 12, true},
    {"SGD", sgd, 12, true},
    {"Adam", adam, 28, true},
    {"Adam with the last push", fused, 32, false},
    {"statistics", statistics, 4, false},
};
enum { ROWS = sizeof rows / sizeof rows[0] };

/* ---- arrays ------------------------------------------------------------------------------------------------------------ */

static void upload(const struct side *x, enum array a, const float *pattern)
{
    for (size_t i = 0; i < x->count; i += PATTERN)
        done(device_upload(x->queue, x->at[a], i * sizeof(float), pattern, PATTERN * sizeof(float)), x);
    finish(x);
}

/* Values that stay far from zero and from overflow however often they are added: either would change the speed. */
static void side_open(struct side *x, struct device *d, size_t count)
{
    float *pattern = bench_memory(PATTERN * sizeof(float));
    struct error e;

    *x = (struct side){.device = d, .count = count};
    must(device_queue_new(d, &x->queue, &e), &e);
    for (unsigned a = 0; a < ARRAYS; a++) {
        must(device_mem_new(d, count * sizeof(float), &x->at[a], &e), &e);
        for (uint32_t i = 0; i < PATTERN; i++)
            pattern[i] = a >= MEAN ? 0 : ((float)(((i + a) * 2654435761u) >> 16) - 32767.5f) / 32768;
        upload(x, (enum array)a, pattern);
    }
    mem_free(pattern);
}

static void side_close(struct side *x)
{
    for (unsigned a = 0; a < ARRAYS; a++) device_mem_free(&x->at[a]);
    device_queue_free(x->queue);
    device_free(x->device);
}

/* Every element of the GPU is the CPU's. */
static void compare(const struct side *gpu, const struct side *cpu)
{
    static const char *const names[ARRAYS] = {"the sums", "the gradients", "the values", "the means", "the squares", "the copies"};
    float *got = bench_memory(PATTERN * sizeof(float));

    for (unsigned a = 0; a < ARRAYS; a++)
        for (size_t i = 0; i < gpu->count; i += PATTERN) {
            done(device_download(gpu->queue, got, gpu->at[a], i * sizeof(float), PATTERN * sizeof(float)), gpu);
            finish(gpu);
            if (memcmp(got, cpu->at[a].host, PATTERN * sizeof(float)) != 0)
                bench_fail("%s differ from the CPU's, from element %zu on", names[a], i);
        }
    mem_free(got);
}

/* ---- large values ------------------------------------------------------------------------------------------------------ */

static double batch(const struct side *x, const struct row *r, unsigned calls, struct progress *c)
{
    uint64_t begin = clock_ns();

    for (unsigned i = 0; i < calls; i++) {
        c->t++;
        r->work(x, c);
    }
    finish(x);
    return seconds_since(begin);
}

/* Bytes that a row moves in a repetition. */
static double moved(unsigned r, size_t count) { return rows[r].bytes * (double)calls_of(count, rows[r].bytes) * (double)count; }

static const char *verdict(const struct row *r, double share, size_t count)
{
    if (!r->is_goal) return "";
    if (count < REHEARSAL) return "  G1 not judged in a rehearsal";
    return share >= GOAL_SHARE ? "  G1 met" : "  G1 missed: 90 % wanted";
}

static void print_rows(const struct figures *times, size_t count)
{
    char gb[16], percent[16];

    printf("\nf32, %.4g Mi elements, %u repetitions\n%-26s %8s %9s %8s %12s\n", (double)count / (1 << 20), (unsigned)REPEATS, "", "B/elem",
           "ms", "GB/s", "of the copy");
    for (unsigned r = 0; r < ROWS; r++) {
        struct figures ratio = figures_ratio(&times[0], &times[r]);
        double share = figures_median(&ratio) * moved(r, count) / moved(0, count), seconds = figures_median(&times[r]);
        figures_text(moved(r, count) / seconds * 1e-9, gb);
        figures_text(share * 100, percent);
        printf("%-26s %8u %9.4f %8s %10s %%%s\n", rows[r].words, rows[r].bytes,
               seconds / calls_of(count, rows[r].bytes) * 1e3, gb, percent, verdict(&rows[r], share, count));
    }
}

static void large(struct side *gpu, struct side *cpu)
{
    struct figures times[ROWS] = {{.count = 0}};
    struct progress on_gpu = {0}, on_cpu = {0};

    for (unsigned i = 0; i < WARM + REPEATS; i++)
        for (unsigned r = 0; r < ROWS; r++) {
            unsigned calls = calls_of(gpu->count, rows[r].bytes);
            double s = batch(gpu, &rows[r], calls, &on_gpu);
            if (i >= WARM) figures_add(&times[r], s);
            batch(cpu, &rows[r], calls, &on_cpu);
        }
    print_rows(times, gpu->count);
    compare(gpu, cpu);
}

/* ---- small keys -------------------------------------------------------------------------------------------------------- */

struct key { struct dmem sum, value, mean, var; };

static void key_open(const struct side *x, struct key *k)
{
    struct dmem *const all[] = {&k->sum, &k->value, &k->mean, &k->var};
    const enum array from[] = {SUM, VALUE, MEAN, VAR};
    struct error e;

    for (unsigned i = 0; i < 4; i++) {
        must(device_mem_new(x->device, KEY_COUNT * sizeof(float), all[i], &e), &e);
        done(device_copy(x->queue, *all[i], x->at[from[i]], KEY_COUNT * sizeof(float)), x);
    }
}

static void key_close(struct key *k)
{
    device_mem_free(&k->sum), device_mem_free(&k->value), device_mem_free(&k->mean), device_mem_free(&k->var);
}

static void keys_step(const struct side *x, const struct key *keys, unsigned count, struct progress *c)
{
    struct step s = step_of("adam", ++c->t, c);

    s.count = KEY_COUNT;
    for (unsigned k = 0; k < count; k++) {
        s.sum = keys[k].sum;
        s.from = s.to = keys[k].value;
        s.slots[0] = keys[k].mean;
        s.slots[1] = keys[k].var;
        done(device_step(x->queue, &s), x);
    }
}

/* The card's own time: copies lie before the steps in the queue, so that all launches are there when the card comes to them.
 * From the end of the copies to the end of the steps. */
static double keys_on_the_card(const struct side *x, const struct key *keys, unsigned count, struct progress *c, unsigned copies)
{
    for (unsigned i = 0; i < copies; i++) copy(x, c);
    uint64_t before = mark_of(x);
    keys_step(x, keys, count, c);
    uint64_t after = mark_of(x);
    done(device_wait(x->queue, before), x);
    uint64_t begin = clock_ns();
    done(device_wait(x->queue, after), x);
    return seconds_since(begin);
}

static double keys_in_all(const struct side *x, const struct key *keys, unsigned count, struct progress *c)
{
    uint64_t begin = clock_ns();
    keys_step(x, keys, count, c);
    finish(x);
    return seconds_since(begin);
}

static void keys_compare(const struct side *gpu, const struct key *keys, unsigned count, const struct key *want)
{
    float got[KEY_COUNT];

    for (unsigned k = 0; k < count; k++) {
        done(device_download(gpu->queue, got, keys[k].value, 0, sizeof got), gpu);
        finish(gpu);
        if (memcmp(got, want->value.host, sizeof got) != 0) bench_fail("the small key %u differs from the CPU's", k);
    }
}

static void small(const struct side *gpu, const struct side *cpu, unsigned count)
{
    struct key *keys = bench_memory(count * sizeof *keys), one;
    struct figures card = {.count = 0}, all = {.count = 0};
    struct progress c = {0}, on_cpu = {0};
    unsigned copies = calls_of(gpu->count, 8);

    for (unsigned k = 0; k < count; k++) key_open(gpu, &keys[k]);
    key_open(cpu, &one);
    finish(gpu);
    finish(cpu);
    for (unsigned i = 0; i < WARM + KEY_ROUNDS; i++) {
        double a = keys_on_the_card(gpu, keys, count, &c, copies), b = keys_in_all(gpu, keys, count, &c);
        for (unsigned k = 0; k < 2; k++) keys_step(cpu, &one, 1, &on_cpu);
        if (i < WARM) continue;
        figures_add(&card, a);
        figures_add(&all, b);
    }
    finish(cpu);
    keys_compare(gpu, keys, count, &one);
    double ms = figures_median(&card) * 1e3;
    printf("\nAdam, %u keys of %u elements, %u rounds\n%-26s %9.4f ms (%.4f..%.4f)%s\n", count, (unsigned)KEY_COUNT,
           (unsigned)KEY_ROUNDS, "on the card", ms, figures_least(&card) * 1e3, figures_most(&card) * 1e3,
           gpu->count < REHEARSAL ? "  G2 not judged in a rehearsal" : ms < GOAL_KEYS_MS ? "  G2 met" : "  G2 missed: 0.5 ms wanted");
    printf("%-26s %9.4f ms (%.4f..%.4f)\n", "asked for and waited for", figures_median(&all) * 1e3, figures_least(&all) * 1e3,
           figures_most(&all) * 1e3);
    for (unsigned k = 0; k < count; k++) key_close(&keys[k]);
    key_close(&one);
    mem_free(keys);
}

/* ---- up and down -------------------------------------------------------------------------------------------------------- */

static double way(const struct side *x, void *host, size_t size, bool up, unsigned times)
{
    uint64_t begin = clock_ns();

    for (unsigned i = 0; i < times; i++)
        done(up ? device_upload(x->queue, x->at[COPY], 0, host, size) : device_download(x->queue, host, x->at[COPY], 0, size), x);
    finish(x);
    return seconds_since(begin);
}

static double way_rate(const struct side *x, void *host, size_t size, bool up)
{
    unsigned times = x->count < REHEARSAL ? 1 : 1 + (unsigned)(WAY_SIZE_MAX / size);
    struct figures f = {.count = 0};

    if (!up) memset(host, 0, size);      /* what comes down is looked at in the end */
    way(x, host, size, up, 1);
    for (unsigned i = 0; i < REPEATS; i++) figures_add(&f, (double)size * times / way(x, host, size, up, times) * 1e-9);
    return figures_median(&f);
}

static void ways(const struct side *x)
{
    static const size_t sizes[] = {4 << 10, 256 << 10, 4 << 20, WAY_SIZE_MAX};
    const size_t most = x->count * sizeof(float) < WAY_SIZE_MAX ? x->count * sizeof(float) : WAY_SIZE_MAX;
    uint8_t *pageable = bench_memory(most);
    void *pin = NULL;
    struct error e;
    char text[16];

    must(device_pin_new(x->device, most, &pin, &e), &e);
    memset(pin, 1, most);
    memset(pageable, 1, most);
    printf("\n%-12s %12s %12s %12s %12s   GB/s\n", "size", "up, pinned", "down, pinned", "up, not", "down, not");
    for (unsigned i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        size_t size = sizes[i] < most ? sizes[i] : most;
        size_text(size, text);
        printf("%-12s", text);
        for (unsigned w = 0; w < 4; w++) printf(" %12.2f", way_rate(x, w < 2 ? pin : pageable, size, w % 2 == 0));
        printf("\n");
    }
    for (size_t i = 0; i < most; i++)
        if (((uint8_t *)pin)[i] != 1 || pageable[i] != 1) bench_fail("byte %zu did not come back as it went", i);
    device_pin_free(x->device, pin);
    mem_free(pageable);
}

int main(int argc, char **argv)
{
    size_t count = argc > 1 ? strtoull(argv[1], NULL, 10) : (size_t)256 << 20;
    struct device *on_gpu = NULL, *on_cpu = NULL;
    struct side gpu, cpu;
    struct error e;

    setvbuf(stdout, NULL, _IOLBF, 0);    /* what was measured is in the log, whatever comes after it */
    if (count == 0 || count % PATTERN != 0) bench_fail("%zu elements are no multiple of %d", count, PATTERN);
    must(cuda_device_new(&(struct card){.number = 0}, &on_gpu, &e), &e);
    must(cpu_device_new(1, &on_cpu, &e), &e);
    printf("%s, the store's work over gpu/device.h\n", on_gpu->card);
    side_open(&gpu, on_gpu, count);
    side_open(&cpu, on_cpu, PATTERN);
    large(&gpu, &cpu);
    small(&gpu, &cpu, count < REHEARSAL ? KEYS_REHEARSED : KEYS);
    ways(&gpu);
    side_close(&gpu);
    side_close(&cpu);
    printf("\nevery result is the CPU's, bit for bit\n");
    return 0;
}
