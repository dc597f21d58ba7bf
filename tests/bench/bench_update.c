/* The updaters over a large value on the CPU device, beside the memory bound of the same machine and PyTorch's AdamW.
 *
 * The bound is a loop that reads the sum and reads and writes the value and every slot in place, with the same arrays,
 * threads and shares, and next to no arithmetic: nothing that updates the value moves fewer bytes. Counted are the
 * bytes that are read and written: 4 for the sum, 8 for the value, 8 for each slot of an element. */
#include "tests/bench/bench.h"

#include "gpu/device.h"
#include "service/base/clock.h"

#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define PYTHON "/usr/bin/python3"

enum { COUNT = 64 << 20, SLOTS = STEP_SLOTS_MAX, PROBES = 1000, TORCH_START_MS = 60000, TORCH_STEP_MS = 60000, THREADS_MAX = 16 };

/* ---- the rows --------------------------------------------------------------------------------------------------- */

/* One for each element rule that does arithmetic, as the updater that chooses it. */
static const struct row {
    const char *updater, *option;    /* NULL: none; a number of the updater that is not as in the catalogue */
    double value;
    bool is_probed, torch;
} rows[] = {
    {"adam", NULL, 0, true, true},
    {"sgd", "momentum", 0.9, true, false},
    {"sgd", NULL, 0, true, false},
    {"add", NULL, 0, true, false},
    {"test", NULL, 0, true, false},
    {"ema", NULL, 0, false, false},
    {"nag", NULL, 0, false, false},
    {"diloco", NULL, 0, false, false},
    {"adamw", NULL, 0, false, false},
    {"adabelief", NULL, 0, false, false},
    {"adamax", NULL, 0, false, false},
    {"nadam", NULL, 0, false, false},
    {"radam", NULL, 0, false, false},
    {"yogi", NULL, 0, false, false},
    {"adagrad", NULL, 0, false, false},
    {"adadelta", NULL, 0, false, false},
    {"rmsprop", NULL, 0, false, false},
    {"rmsprop", "centered", 1, false, false},
    {"ftrl", NULL, 0, false, false},
    {"ftml", NULL, 0, false, false},
    {"signum", NULL, 0, false, false},
    {"signum", "momentum", 0, false, false},
    {"dcasgd", NULL, 0, false, false},
    {"dcasgd", "momentum", 0.9, false, false},
    {"sgld", NULL, 0, false, false},
    {"lion", NULL, 0, false, false},
};

static const struct column columns[] = {
    {"id", -3}, {"work", -32}, {"threads", 7}, {"peer", -24}, {"bytes/element", 13}, {"median", 7},
    {"least..most", -14}, {"unit", -5}, {"Melem/s", 7}, {"paramd is", 9}, {"goal", 7}, {"met", -3},
};
enum { COLUMNS = sizeof columns / sizeof columns[0] };

struct arrays {
    struct device *device;
    struct queue *queue;
    struct dmem sum, value, slots[SLOTS];
    unsigned threads;
};

/* ---- paramd ----------------------------------------------------------------------------------------------------- */

static void must(enum status s, const struct error *e)
{
    if (s != STATUS_OK) bench_fail("%s", e->text);
}

/* The rates of what is probed are said, the rest is as the catalogue has it. */
static double hyper_of(const struct row *r, const struct hyper_row *h)
{
    if (r->is_probed && strcmp(h->name, "learning_rate") == 0) return strcmp(r->updater, "adam") == 0 ? 0.001 : 0.1;
    if (r->option != NULL && strcmp(h->name, r->option) == 0) return r->value;
    return h->standard;
}

static enum rule_id rule_of(const struct row *r, uint64_t t, struct rule_scalars *scalars)
{
    const struct updater_row *u = updater_row_find(bytes_text(r->updater));
    const int64_t dims[1] = {COUNT};
    const struct rule_key key = {.name = bytes_text("0"), .ndim = 1, .dims = dims, .count = COUNT};
    struct update_moment m = {.t = t, .num_update = t, .contributors = 1, .lr_mult = 1, .product = 1};
    double hypers[UPDATER_HYPERS_MAX];

    for (unsigned i = 0; i < u->hyper_count; i++) hypers[i] = hyper_of(r, &u->hypers[i]);
    memset(scalars, 0, sizeof *scalars);
    u->scalars(hypers, &m, scalars);
    return u->rule(hypers, &key);
}

static unsigned slots_of(const struct row *r)
{
    struct rule_scalars scalars;
    return rule_slots(rule_of(r, 1, &scalars));
}

static double step(const struct arrays *a, const struct row *r, uint64_t t)
{
    uint32_t flags = 0;
    uint64_t mark, begin = clock_ns();
    struct step s = {.type = DTYPE_f32, .count = COUNT, .sum = a->sum, .from = a->value, .to = a->value,
                     .flags = &flags};

    s.rule = rule_of(r, t, &s.scalars);
    for (unsigned i = 0; i < rule_slots(s.rule); i++) s.slots[i] = a->slots[i];
    must(device_step(a->queue, &s), device_error(a->device));
    must(device_record(a->queue, &mark), device_error(a->device));
    must(device_wait(a->queue, mark), device_error(a->device));
    return (double)(clock_ns() - begin) * 1e-9;
}

static float *floats(struct dmem m) { return m.host; }

/* Values that stay far from zero and from overflow however often they are added: either would change the speed. */
static void fill(const struct arrays *a)
{
    for (size_t i = 0; i < COUNT; i++) {
        floats(a->sum)[i] = ((float)(((uint32_t)i * 2654435761u) >> 24) - 127.5f) / 1024;
        floats(a->value)[i] = 0;
    }
    for (unsigned s = 0; s < SLOTS; s++) memset(a->slots[s].host, 0, a->slots[s].size);
}

/* ---- what must come out, in double for a sample of elements ------------------------------------------------------ */

struct probe {
    double value, slots[SLOTS];
};

static void probe_step(const struct row *r, uint64_t t, double g, struct probe *p)
{
    if (strcmp(r->updater, "adam") == 0) {
        p->slots[0] = 0.9 * p->slots[0] + 0.1 * g;
        p->slots[1] = 0.999 * p->slots[1] + 0.001 * g * g;
        p->value -= 0.001 * sqrt(1 - pow(0.999, (double)t)) / (1 - pow(0.9, (double)t)) * p->slots[0] /
                    (sqrt(p->slots[1]) + 1e-8);
    } else if (strcmp(r->updater, "sgd") == 0) {
        p->slots[0] = r->value * p->slots[0] - 0.1 * g;
        p->value += p->slots[0];
    } else {
        p->value += g;
    }
}

static void check(const struct arrays *a, const struct row *r, uint64_t steps)
{
    for (size_t n = 0; n < PROBES; n++) {
        size_t i = n * (COUNT / PROBES) + n % 7;
        struct probe p = {.value = 0};
        for (uint64_t t = 1; t <= steps; t++) probe_step(r, t, (double)floats(a->sum)[i], &p);
        if (!(fabs((double)floats(a->value)[i] - p.value) <= 1e-5 + 1e-4 * fabs(p.value)))
            bench_fail("%s: element %zu is %g after %llu steps, not %g", r->updater, i, (double)floats(a->value)[i],
                       (unsigned long long)steps, p.value);
    }
}

/* ---- the memory bound ------------------------------------------------------------------------------------------- */

struct share {
    const struct arrays *arrays;
    unsigned slots, number;
    float nothing;                   /* 0: nothing changes, which the compiler does not know */
};

/* With vectors of 32 bytes, like the device's own loops. */
#if defined(__x86_64__) && defined(__GLIBC__) && __has_attribute(target_clones)
#define CLONES __attribute__((target_clones("default", "arch=x86-64-v3")))
#else
#define CLONES
#endif

CLONES static void move_1(size_t n, float x, const float *restrict s, float *restrict w)
{
    for (size_t i = 0; i < n; i++) w[i] += x * s[i];
}

CLONES static void move_2(size_t n, float x, const float *restrict s, float *restrict w, float *restrict a)
{
    for (size_t i = 0; i < n; i++) {
        w[i] += x * s[i];
        a[i] += x * s[i];
    }
}

CLONES static void move_3(size_t n, float x, const float *restrict s, float *restrict w, float *restrict a,
                          float *restrict b)
{
    for (size_t i = 0; i < n; i++) {
        w[i] += x * s[i];
        a[i] += x * s[i];
        b[i] += x * s[i];
    }
}

CLONES static void move_4(size_t n, float x, const float *restrict s, float *restrict w, float *restrict a,
                          float *restrict b, float *restrict c)
{
    for (size_t i = 0; i < n; i++) {
        w[i] += x * s[i];
        a[i] += x * s[i];
        b[i] += x * s[i];
        c[i] += x * s[i];
    }
}

static void *move_share(void *arg)
{
    const struct share *h = arg;
    const struct arrays *a = h->arrays;
    size_t n = COUNT / a->threads, at = n * h->number;
    const float *s = floats(a->sum) + at;
    float *w = floats(a->value) + at, *m = floats(a->slots[0]) + at, *v = floats(a->slots[1]) + at;
    float *z = floats(a->slots[2]) + at;

    if (h->slots == 0) move_1(n, h->nothing, s, w);
    else if (h->slots == 1) move_2(n, h->nothing, s, w, m);
    else if (h->slots == 2) move_3(n, h->nothing, s, w, m, v);
    else move_4(n, h->nothing, s, w, m, v, z);
    return NULL;
}

static double move(const struct arrays *a, const struct row *r)
{
    struct share shares[THREADS_MAX];
    pthread_t threads[THREADS_MAX];
    uint64_t begin = clock_ns();

    for (unsigned i = 0; i < a->threads; i++) {
        shares[i] = (struct share){a, slots_of(r), i, 0};
        if (pthread_create(&threads[i], NULL, move_share, &shares[i]) != 0) bench_fail("no thread");
    }
    for (unsigned i = 0; i < a->threads; i++) pthread_join(threads[i], NULL);
    return (double)(clock_ns() - begin) * 1e-9;
}

/* ---- PyTorch ---------------------------------------------------------------------------------------------------- */

/* Takes one step a line; says its version first, and how long each step took. */
static const char torch_program[] =
    "import sys, time\n"
    "import torch\n"
    "torch.set_num_threads(int(sys.argv[2]))\n"
    "p = torch.nn.Parameter(torch.zeros(int(sys.argv[1])))\n"
    "p.grad = torch.full_like(p, 0.01)\n"
    "try:\n"
    "    o, how = torch.optim.AdamW([p], fused=True), 'fused'\n"
    "    o.step()\n"
    "except Exception:\n"
    "    o, how = torch.optim.AdamW([p]), 'not fused'\n"
    "    o.step()\n"
    "print('AdamW', torch.__version__.split('+')[0], how, flush=True)\n"
    "for line in sys.stdin:\n"
    "    t = time.perf_counter()\n"
    "    o.step()\n"
    "    print(time.perf_counter() - t, flush=True)\n";

struct torch {
    pid_t pid;                       /* 0: there is none */
    int to, from;
    char name[64];
};

static void become_torch(const int to[2], const int from[2], unsigned threads)
{
    char count[16], number[16];

    snprintf(count, sizeof count, "%d", COUNT);
    snprintf(number, sizeof number, "%u", threads);
    dup2(to[0], STDIN_FILENO);
    dup2(from[1], STDOUT_FILENO);
    close(to[1]);
    execl(PYTHON, PYTHON, "-c", torch_program, count, number, (char *)NULL);
    _exit(1);
}

static void torch_open(struct torch *t, unsigned threads)
{
    int to[2], from[2];

    *t = (struct torch){.pid = 0};
    if (system(PYTHON " -c 'import torch' 2>/dev/null") != 0) return;
    if (pipe(to) != 0 || pipe(from) != 0) bench_fail("no pipe");
    t->pid = child_fork();
    if (t->pid == 0) become_torch(to, from, threads);
    close(to[0]);
    close(from[1]);
    t->to = to[1];
    t->from = from[0];
    if (!child_line(t->from, t->name, sizeof t->name, TORCH_START_MS)) bench_fail("PyTorch does not get ready");
}

static double torch_step(const struct torch *t)
{
    char line[64];

    if (write(t->to, "\n", 1) != 1 || !child_line(t->from, line, sizeof line, TORCH_STEP_MS))
        bench_fail("PyTorch has ended");
    return strtod(line, NULL);
}

static void torch_close(struct torch *t)
{
    child_end(t->pid);
    if (t->pid == 0) return;
    close(t->to);
    close(t->from);
}

/* ---- what is printed -------------------------------------------------------------------------------------------- */

struct line {
    const char *peer;
    const struct figures *seconds, *own;
    double goal;                     /* 0: none */
};

static void print_line(struct bench *b, const struct row *r, unsigned threads, const struct line *l)
{
    double bytes = 12 + 8.0 * slots_of(r), giga = COUNT * bytes * 1e-9;
    struct figures ratio = figures_ratio(l->seconds, l->own);
    char cells[COLUMNS][48], least[16], most[16];
    const char *at[COLUMNS];

    memset(cells, 0, sizeof cells);
    snprintf(cells[0], 48, "P7");
    if (r->option == NULL) snprintf(cells[1], 48, "%s, 256 MiB f32", r->updater);
    else snprintf(cells[1], 48, "%s %s %g, 256 MiB f32", r->updater, r->option, r->value);
    snprintf(cells[2], 48, "%u", threads);
    snprintf(cells[3], 48, "%s", l->peer);
    snprintf(cells[4], 48, "%.0f", bytes);
    figures_text(giga / figures_median(l->seconds), cells[5]);
    figures_text(giga / figures_most(l->seconds), least);
    figures_text(giga / figures_least(l->seconds), most);
    snprintf(cells[6], 48, "%s..%s", least, most);
    snprintf(cells[7], 48, "GB/s");
    snprintf(cells[8], 48, "%.0f", COUNT / figures_median(l->seconds) * 1e-6);
    if (l->seconds != l->own) {
        figures_text(figures_median(&ratio), least);
        snprintf(cells[9], 48, "x %s", least);
    }
    if (l->goal > 0) {
        snprintf(cells[10], 48, ">= %.3g", l->goal);
        snprintf(cells[11], 48, "%s", figures_median(&ratio) >= l->goal ? "yes" : "no");
    }
    for (unsigned i = 0; i < COLUMNS; i++) at[i] = cells[i];
    bench_row(b, at);
}

static void run_row(struct bench *b, const struct arrays *a, const struct row *r)
{
    struct figures own = {.count = 0}, bound = {.count = 0}, theirs = {.count = 0};
    struct torch torch = {.pid = 0};

    if (r->torch) torch_open(&torch, a->threads);
    fill(a);
    for (unsigned n = 0; n <= b->repetitions; n++) {
        double x = step(a, r, n + 1), y = move(a, r), z = torch.pid > 0 ? torch_step(&torch) : 0;
        if (n == 0) continue;
        figures_add(&own, x);
        figures_add(&bound, y);
        if (torch.pid > 0) figures_add(&theirs, z);
    }
    if (r->is_probed) check(a, r, b->repetitions + 1);
    print_line(b, r, a->threads, &(struct line){"paramd", &own, &own, 0});
    print_line(b, r, a->threads, &(struct line){"memory bound", &bound, &own, 0.9});
    if (torch.pid > 0) print_line(b, r, a->threads, &(struct line){torch.name, &theirs, &own, 1});
    else if (r->torch) bench_note("P7   PyTorch's AdamW is left out: " PYTHON " has no torch");
    torch_close(&torch);
}

static void arrays_new(struct arrays *a)
{
    const size_t size = COUNT * sizeof(float);
    struct error e;
    long cores = sysconf(_SC_NPROCESSORS_ONLN);

    *a = (struct arrays){.threads = cores < 1 ? 1 : cores > THREADS_MAX ? THREADS_MAX : (unsigned)cores};
    must(cpu_device_new(a->threads, &a->device, &e), &e);
    must(device_queue_new(a->device, &a->queue, &e), &e);
    must(device_mem_new(a->device, size, &a->sum, &e), &e);
    must(device_mem_new(a->device, size, &a->value, &e), &e);
    for (unsigned i = 0; i < SLOTS; i++) must(device_mem_new(a->device, size, &a->slots[i], &e), &e);
}

static void arrays_free(struct arrays *a)
{
    device_queue_free(a->queue);
    device_mem_free(&a->sum);
    device_mem_free(&a->value);
    for (unsigned i = 0; i < SLOTS; i++) device_mem_free(&a->slots[i]);
    device_free(a->device);
}

int main(int argc, char **argv)
{
    struct arrays a;
    struct bench b;

    bench_begin(&b, argc, argv, "The updaters on the CPU, beside the memory bound with the same streams and threads");
    bench_note("Counted are the bytes read and written in place: 4 for the sum, 8 for the value, 8 for each slot of\n"
               "an element. A sample of elements is compared with the formula in double.\n"
               "\"paramd is\": its speed as a multiple of the peer's, the median over the repetitions.");
    arrays_new(&a);
    bench_table(&b, columns, COLUMNS);
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        if (bench_wants(&b, "P7", rows[i].updater)) run_row(&b, &a, &rows[i]);
    arrays_free(&a);
    bench_end(&b);
    return 0;
}
