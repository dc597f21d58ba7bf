/* U1: updaters written in the updater language beside the compiled rules that do the same, on the CPU device, over 16 Mi
 * elements (from memory) and 64 Ki (from the cache). Both sides step the same arrays in turn within a repetition, and must
 * leave the same bits. */
#include "tests/bench/bench.h"

#include "gpu/device.h"
#include "gpu/program.h"
#include "service/base/clock.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { LARGE = 16 << 20, SMALL = 64 << 10, SLOTS = 2, THREADS_MAX = 16, SMALL_STEPS = 64 };

static const struct row {
    const char *what, *updater, *text;
    double rescale;
    unsigned slots;
    double goal;                     /* of the large size */
} rows[] = {
    {"adam", "adam",
     "param lr = 0.001, beta1 = 0.9, beta2 = 0.999, epsilon = 1e-8\n"
     "slot mean = 0, var = 0\n"
     "mean = beta1 * mean + (1 - beta1) * grad\n"
     "var = beta2 * var + (1 - beta2) * (grad * grad)\n"
     "stored -= lr * sqrt(1 - beta2^step) / (1 - beta1^step) * (mean / (sqrt(var) + epsilon))\n", 1, 2, 0.9},
    {"stored += grad * 2", "test", "stored += grad * 2", 2, 0, 0.95},
    {"stored += grad", "add", "stored += grad", 1, 0, 0},
};

static const struct column columns[] = {
    {"id", -3}, {"work", -28}, {"elements", 8}, {"threads", 7}, {"rule Melem/s", 12}, {"text Melem/s", 12}, {"text is", 8},
    {"goal", 7}, {"met", -3},
};
enum { COLUMNS = sizeof columns / sizeof columns[0] };

struct arrays {
    struct device *device;
    struct queue *queue;
    struct dmem sum, value, slots[SLOTS];
    size_t count;
    unsigned threads;
};

static void must(enum status s, const struct error *e)
{
    if (s != STATUS_OK) bench_fail("%s", e->text);
}

static float *floats(struct dmem m) { return m.host; }

static void fill(const struct arrays *a)
{
    for (size_t i = 0; i < a->count; i++) {
        floats(a->sum)[i] = ((float)(((uint32_t)i * 2654435761u) >> 24) - 127.5f) / 1024;
        floats(a->value)[i] = 0;
    }
    for (unsigned s = 0; s < SLOTS; s++) memset(a->slots[s].host, 0, a->count * sizeof(float));
}

static uint64_t hash(struct dmem m, size_t count)
{
    uint64_t h = 14695981039346656037u;
    for (size_t i = 0; i < count; i++) {
        uint32_t bits;
        memcpy(&bits, floats(m) + i, sizeof bits);
        h = (h ^ bits) * 1099511628211u;
    }
    return h;
}

static void set_rule(const struct row *r, uint64_t t, struct step *s)
{
    const struct updater_row *u = updater_row_find(bytes_text(r->updater));
    struct update_moment m = {.t = t, .num_update = t, .contributors = 1, .lr_mult = 1, .product = 1};
    double hypers[UPDATER_HYPERS_MAX];

    for (unsigned i = 0; i < u->hyper_count; i++) {
        hypers[i] = u->hypers[i].standard;
        if (strcmp(u->hypers[i].name, "rescale_grad") == 0) hypers[i] = r->rescale;
    }
    s->rule = u->rule(hypers, NULL);
    u->scalars(hypers, &m, &s->scalars);
}

static void set_text(const struct program *p, uint64_t t, struct step *s)
{
    const double moments[EXPR_MOMENT_COUNT] = {(double)t, 1, 1, 0};
    double params[PROGRAM_PARAMS_MAX];

    for (unsigned i = 0; i < p->param_count; i++) params[i] = p->params[i].standard;
    s->rule = RULE_program;
    s->program = p;
    program_scalars(p, params, moments, s->program_scalars);
}

/* Seconds of the steps t, t + 1, ...; p: the text, NULL the rule. */
static double steps(const struct arrays *a, const struct row *r, const struct program *p, uint64_t t, unsigned count)
{
    uint32_t flags = 0;
    uint64_t mark, begin = clock_ns();

    for (unsigned i = 0; i < count; i++) {
        struct step s = {.type = DTYPE_f32, .count = a->count, .sum = a->sum, .from = a->value, .to = a->value,
                         .columns = a->count, .flags = &flags};
        if (p != NULL) set_text(p, t + i, &s);
        else set_rule(r, t + i, &s);
        for (unsigned k = 0; k < r->slots; k++) s.slots[k] = a->slots[k];
        must(device_step(a->queue, &s), device_error(a->device));
    }
    must(device_record(a->queue, &mark), device_error(a->device));
    must(device_wait(a->queue, mark), device_error(a->device));
    return (double)(clock_ns() - begin) * 1e-9;
}

static void check(const struct arrays *a, const struct row *r, const struct program *p)
{
    uint64_t after_rule;

    fill(a);
    steps(a, r, NULL, 1, 3);
    after_rule = hash(a->value, a->count);
    fill(a);
    steps(a, r, p, 1, 3);
    if (hash(a->value, a->count) != after_rule) bench_fail("%s: the text gives other bits than the rule", r->what);
}

static void print_row(struct bench *b, const struct arrays *a, const struct row *r, const struct figures *rule,
                      const struct figures *text)
{
    struct figures ratio = figures_ratio(rule, text);
    unsigned count = a->count == SMALL ? SMALL_STEPS : 1;
    char cells[COLUMNS][48];
    const char *at[COLUMNS];

    memset(cells, 0, sizeof cells);
    snprintf(cells[0], 48, "U1");
    snprintf(cells[1], 48, "%s", r->what);
    snprintf(cells[2], 48, "%zu Ki", a->count >> 10);
    snprintf(cells[3], 48, "%u", a->threads);
    snprintf(cells[4], 48, "%.0f", (double)(a->count * count) / figures_median(rule) * 1e-6);
    snprintf(cells[5], 48, "%.0f", (double)(a->count * count) / figures_median(text) * 1e-6);
    snprintf(cells[6], 48, "%.1f %%", 100 * figures_median(&ratio));
    if (r->goal > 0 && a->count == LARGE) {
        snprintf(cells[7], 48, ">= %.0f %%", 100 * r->goal);
        snprintf(cells[8], 48, "%s", figures_median(&ratio) >= r->goal ? "yes" : "no");
    }
    for (unsigned i = 0; i < COLUMNS; i++) at[i] = cells[i];
    bench_row(b, at);
}

/* The one that goes second finds the cache as the first left it, so they take turns in that, too. */
static void run_row(struct bench *b, const struct arrays *a, const struct row *r)
{
    struct figures rule = {.count = 0}, text = {.count = 0};
    unsigned count = a->count == SMALL ? SMALL_STEPS : 1;
    struct program *p = NULL;
    struct error e;
    uint64_t t = 1;

    must(program_new(bytes_text(r->text), &p, &e), &e);
    check(a, r, p);
    for (unsigned n = 0; n <= 2 * b->repetitions; n++, t += 2 * (uint64_t)count) {
        double first = steps(a, r, n % 2 ? p : NULL, t, count), second = steps(a, r, n % 2 ? NULL : p, t + count, count);
        if (n == 0) continue;
        figures_add(&rule, n % 2 ? second : first);
        figures_add(&text, n % 2 ? first : second);
    }
    print_row(b, a, r, &rule, &text);
    program_free(p);
}

static void arrays_new(struct arrays *a, size_t count, unsigned threads)
{
    struct error e;

    *a = (struct arrays){.count = count, .threads = threads};
    must(cpu_device_new(threads, &a->device, &e), &e);
    must(device_queue_new(a->device, &a->queue, &e), &e);
    must(device_mem_new(a->device, count * sizeof(float), &a->sum, &e), &e);
    must(device_mem_new(a->device, count * sizeof(float), &a->value, &e), &e);
    for (unsigned i = 0; i < SLOTS; i++) must(device_mem_new(a->device, count * sizeof(float), &a->slots[i], &e), &e);
}

static void arrays_free(struct arrays *a)
{
    device_queue_free(a->queue);
    device_mem_free(&a->sum);
    device_mem_free(&a->value);
    for (unsigned i = 0; i < SLOTS; i++) device_mem_free(&a->slots[i]);
    device_free(a->device);
}

static void run_size(struct bench *b, size_t count, unsigned threads)
{
    struct arrays a;

    arrays_new(&a, count, threads);
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        if (bench_wants(b, "U1", rows[i].what)) run_row(b, &a, &rows[i]);
    arrays_free(&a);
}

int main(int argc, char **argv)
{
    long cores = sysconf(_SC_NPROCESSORS_ONLN);
    unsigned threads = cores < 1 ? 1 : cores > THREADS_MAX ? THREADS_MAX : (unsigned)cores;
    struct bench b;

    bench_begin(&b, argc, argv, "Updater programs on the CPU, beside the compiled rules");
    bench_table(&b, columns, COLUMNS);
    run_size(&b, LARGE, 1);
    if (threads > 1) run_size(&b, LARGE, threads);
    run_size(&b, SMALL, 1);
    bench_end(&b);
    return 0;
}
