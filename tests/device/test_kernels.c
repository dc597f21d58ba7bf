/* The kernels as nvcc makes them, their PTX run by the stand-in (build/paramd-ptx.so): they give the bits of the CPU, and
 * load and store no byte that the arithmetic does not need. */
#include "gpu/device.h"
#include "gpu/expr.h"
#include "gpu/half.h"
#include "gpu/plugin.h"
#include "gpu/program.h"
#include "tests/lib/sim_device.h"
#include "tests/lib/test.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Odd, so that something is left of four at once; and a place further on, where nothing is aligned for that. */
enum { COUNT = 301, ROOM = COUNT + 1, SIZE_MAX_OF_ONE = 8 };
enum { SUM, LAST, FROM, TO, MASTER, SLOT, ARRAYS = SLOT + RULE_SLOTS_MAX };

static struct error error;
static uint8_t before[ARRAYS][ROOM * SIZE_MAX_OF_ONE];

/* ---- a CPU and a GPU with the same in their memory --------------------------------------------------------------- */

struct side {
    struct device *d;
    struct queue *q;
    struct dmem all, array[ARRAYS];
    uint8_t after[ARRAYS][ROOM * SIZE_MAX_OF_ONE];
    uint32_t flags;
};

static struct side cpu, gpu;

static struct dmem from_byte(struct dmem m, size_t offset)
{
    m.at = (char *)m.at + offset;
    if (m.host != NULL) m.host = (char *)m.host + offset;
    m.size -= offset;
    return m;
}

static void side_open(struct side *s)
{
    CHECK_OK(device_queue_new(s->d, &s->q, &error), &error);
    CHECK_OK(device_mem_new(s->d, sizeof before, &s->all, &error), &error);
    for (int i = 0; i < ARRAYS; i++) s->array[i] = from_byte(s->all, (size_t)i * sizeof before[i]);
}

static void side_close(struct side *s)
{
    device_mem_free(&s->all);
    device_queue_free(s->q);
    device_free(s->d);
}

/* Kernels for many tensors at once are others than those for one. */
static void open_both(const char *ptx, bool gathers)
{
    struct card card = {.chunk_size = 1, .slot_size = 64 << 10, .gather_max = gathers ? 0 : 1};

    setenv("PARAMD_TEST_SIM", "paramd-ptx.so", 1);
    setenv("CUSIM_PTX", ptx, 1);
    if (sim_replaced() || !sim_present()) test_skip("it needs nvcc: package cuda-nvcc-13-0, see README.md");
    CHECK_OK(sim_device_new(4, &gpu.d, &error), &error);
    device_free(gpu.d);
    CHECK_OK(cuda_device_new(&card, &gpu.d, &error), &error);
    CHECK_OK(cpu_device_new(1, &cpu.d, &error), &error);
    side_open(&cpu), side_open(&gpu);
}

static void close_both(void)
{
    side_close(&cpu), side_close(&gpu);
    if (sim_remains() != NULL) test_fail(__FILE__, __LINE__, "%s", sim_remains());
}

static const char *const texts[] = {"90", "100"};
enum { TEXTS = sizeof texts / sizeof texts[0] };

/* Every kernel of either text, alone and gathered. */
static void on_each(void (*body)(void))
{
    test_time_limit(300);            /* each step is handed to a thread, which takes its time where others are at work */
    for (int i = 0; i < 2 * TEXTS; i++) {
        open_both(texts[i / 2], i % 2 == 1);
        body();
        close_both();
    }
}

static void finish(struct queue *q)
{
    uint64_t mark;
    CHECK_EQ(device_record(q, &mark), STATUS_OK);
    CHECK_EQ(device_wait(q, mark), STATUS_OK);
}

/* ---- values ------------------------------------------------------------------------------------------------------ */

static double awkward(uint64_t random)
{
    static const double list[] = {0, -0.0, 1, -1, 1e30, -1e30, 0x1p-126, 0x1p-149, 0x1.fffffep127, (double)INFINITY,
                                  -(double)INFINITY, (double)NAN};
    return random % 7 == 0 ? list[random / 7 % 12] : (double)(random >> 11) * 0x1p-51 - 1;
}

static void put(enum dtype t, uint8_t *at, uint64_t random)
{
    double x = awkward(random);
    float f = (float)x;
    int64_t n = (int64_t)(random % 5);       /* nothing overflows: that is another test's */
    uint16_t half = t == DTYPE_f16 ? half_narrow_f16(f) : half_narrow_bf16(f);

    if (t == DTYPE_f64) memcpy(at, &x, sizeof x);
    else if (t == DTYPE_f32) memcpy(at, &f, sizeof f);
    else if (dtype_is_half(t)) memcpy(at, &half, sizeof half);
    else memcpy(at, &n, dtype_size(t));
}

static double real_at(enum dtype t, const uint8_t *at)
{
    double x = 0;
    float f = 0;
    uint16_t half = 0;

    if (t == DTYPE_f64) memcpy(&x, at, sizeof x);
    else if (t == DTYPE_f32) memcpy(&f, at, sizeof f);
    else memcpy(&half, at, sizeof half);
    if (t == DTYPE_f64) return x;
    return t == DTYPE_f32 ? (double)f : (double)(t == DTYPE_f16 ? half_widen_f16(half) : half_widen_bf16(half));
}

/* A NaN is a NaN. */
static bool same(enum dtype t, const uint8_t *a, const uint8_t *b)
{
    if (memcmp(a, b, dtype_size(t)) == 0) return true;
    return !dtype_is_integer(t) && isnan(real_at(t, a)) && isnan(real_at(t, b));
}

static enum dtype type_of(int array, enum dtype t)
{
    return array == LAST || array == FROM || array == TO ? t : dtype_sum(t);
}

static struct dmem from_element(struct dmem m, size_t elements, enum dtype t)
{
    return from_byte(m, elements * dtype_size(t));
}

/* Bytes that kernels have loaded and stored, both together, since it was last asked. */
static uint64_t bytes_moved(void)
{
    static uint64_t last;
    struct cusim_stats s = sim_stats();
    uint64_t all = s.ptx_loaded + s.ptx_stored, since = all >= last ? all - last : all;

    last = all;
    return since;
}

static void begin(enum dtype t, uint64_t seed)
{
    for (int k = 0; k < ARRAYS; k++) {
        size_t size = dtype_size(type_of(k, t));
        for (size_t i = 0; i < ROOM; i++) put(type_of(k, t), before[k] + i * size, rng_next(&seed));
    }
    CHECK_EQ(device_upload(cpu.q, cpu.all, 0, before, sizeof before), STATUS_OK);
    CHECK_EQ(device_upload(gpu.q, gpu.all, 0, before, sizeof before), STATUS_OK);
    cpu.flags = gpu.flags = 0;
    (void)bytes_moved();
}

/* And brings back what is there now. */
static void end(void)
{
    CHECK_EQ(device_download(cpu.q, cpu.after, cpu.all, 0, sizeof cpu.after), STATUS_OK);
    CHECK_EQ(device_download(gpu.q, gpu.after, gpu.all, 0, sizeof gpu.after), STATUS_OK);
    finish(cpu.q), finish(gpu.q);
}

static void check_same(enum dtype t, const char *of)
{
    CHECK_EQ(gpu.flags, cpu.flags);
    for (int k = 0; k < ARRAYS && cpu.flags == 0; k++) {
        size_t size = dtype_size(type_of(k, t));
        for (size_t i = 0; i < ROOM; i++)
            if (!same(type_of(k, t), cpu.after[k] + i * size, gpu.after[k] + i * size))
                test_fail(__FILE__, __LINE__, "%s of %s: element %zu of array %d is another", of, dtype_name(t), i, k);
    }
}

static void check_moved(uint64_t an_element, const char *of, enum dtype t)
{
    uint64_t moved = bytes_moved();

    if (moved != an_element * COUNT)
        test_fail(__FILE__, __LINE__, "%s of %s: %.3f bytes an element, not %llu", of, dtype_name(t),
                  (double)moved / COUNT, (unsigned long long)an_element);
}

/* ---- steps ------------------------------------------------------------------------------------------------------- */

struct shape { bool sum, last, master; size_t offset; };

static struct step step_of(struct side *s, enum rule_id rule, enum dtype t, struct shape shape)
{
    struct dmem none = {0};
    struct step step = {.rule = rule, .type = t, .count = COUNT, .stream = 5, .flags = &s->flags};
    struct dmem at[ARRAYS];

    for (int k = 0; k < ARRAYS; k++) at[k] = from_element(s->array[k], shape.offset, type_of(k, t));
    step.sum = shape.sum ? at[SUM] : none;
    step.last = shape.last ? at[LAST] : none;
    step.from = at[FROM], step.to = at[TO];
    step.master = shape.master ? at[MASTER] : none;
    for (unsigned i = 0; i < RULE_SLOTS_MAX; i++) step.slots[i] = at[SLOT + i];
    for (unsigned i = 0; i < RULE_SCALARS_MAX; i++) step.scalars.v[i] = 0.0625 + 0.0625 * i;
    if (rule == RULE_average) step.scalars.v[0] = 3;
    return step;
}

/* What a step cannot do without: the gradient, the value and its slots in and out. */
static uint64_t bytes_of_step(unsigned slots, bool reads_value, enum dtype t, struct shape s)
{
    uint64_t own = dtype_size(t), real = dtype_size(dtype_sum(t)), value = s.master ? real : own;

    return (s.sum ? real : 0) + (s.last ? own : 0) + (reads_value ? value : 0) + own + (s.master ? real : 0) +
           2 * slots * real;
}

static void run_step(const struct step *on_cpu, const struct step *on_gpu)
{
    CHECK_OK(device_step(cpu.q, on_cpu), device_error(cpu.d));
    CHECK_OK(device_step(gpu.q, on_gpu), device_error(gpu.d));
    end();
}

static void try_rule(enum rule_id rule, enum dtype t, struct shape shape)
{
    struct step on_cpu = step_of(&cpu, rule, t, shape), on_gpu = step_of(&gpu, rule, t, shape);

    begin(t, 100 * rule + t);
    run_step(&on_cpu, &on_gpu);
    check_moved(bytes_of_step(rule_slots(rule), rule_reads_value(rule), t, shape), rule_name(rule), t);
    check_same(t, rule_name(rule));
}

static void every_rule(void)
{
    static const enum dtype types[] = {DTYPE_f32, DTYPE_f64, DTYPE_f16, DTYPE_bf16};
    static const struct shape shapes[] = {{.sum = true}, {.sum = true, .last = true, .offset = 1}, {.last = true}};

    for (int r = 0; r < RULE_COUNT; r++)
        for (int t = 0; t < 4 && !rule_is_whole((enum rule_id)r); t++)
            for (unsigned k = 0; k < 3; k++) {
                struct shape s = shapes[k];
                s.master = dtype_is_half(types[t]) && (r + (int)k) % 2 == 0;
                try_rule((enum rule_id)r, types[t], s);
            }
}

TEST(every_element_rule_gives_the_bits_of_the_CPU_and_moves_no_byte_too_many) { on_each(every_rule); }

static void every_integer_rule(void)
{
    static const struct shape shapes[] = {{.sum = true}, {.sum = true, .last = true, .offset = 1}, {.last = true}};

    for (int r = 0; r < RULE_COUNT; r++)
        for (int t = DTYPE_i8; t <= DTYPE_i64 && rule_takes_integers((enum rule_id)r); t++)
            for (unsigned k = 0; k < 3; k++) try_rule((enum rule_id)r, (enum dtype)t, shapes[k]);
}

TEST(every_rule_of_integers_gives_those_of_the_CPU_and_moves_no_byte_too_many) { on_each(every_integer_rule); }

/* ---- whole rules: several passes, with barriers and shared memory ------------------------------------------------- */

static void try_whole(enum rule_id rule, enum dtype t, size_t columns)
{
    struct shape shape = {.sum = true, .last = columns < COUNT, .master = dtype_is_half(t) && columns < COUNT};
    struct step on_cpu = step_of(&cpu, rule, t, shape), on_gpu = step_of(&gpu, rule, t, shape);
    size_t size = step_scratch_size(rule, COUNT);

    CHECK_OK(device_mem_new(cpu.d, size, &on_cpu.scratch, &error), &error);
    CHECK_OK(device_mem_new(gpu.d, size, &on_gpu.scratch, &error), &error);
    on_cpu.columns = on_gpu.columns = columns;
    begin(t, 100 * rule + t);
    run_step(&on_cpu, &on_gpu);
    check_same(t, rule_name(rule));
    CHECK(bytes_moved() > 0);
    device_mem_free(&on_cpu.scratch), device_mem_free(&on_gpu.scratch);
}

/* 7 short rows, and one long one. */
static void every_whole_rule(void)
{
    static const enum dtype types[] = {DTYPE_f32, DTYPE_f64, DTYPE_f16, DTYPE_bf16};

    for (int r = 0; r < RULE_COUNT; r++)
        for (int t = 0; t < 4 && rule_is_whole((enum rule_id)r); t++)
            for (size_t rows = 1; rows <= 7; rows += 6) try_whole((enum rule_id)r, types[t], COUNT / rows);
}

TEST(every_whole_rule_gives_the_bits_of_the_CPU) { on_each(every_whole_rule); }

/* ---- sums -------------------------------------------------------------------------------------------------------- */

static void try_sum(enum dtype t, bool add, size_t offset)
{
    const struct side *sides[] = {&cpu, &gpu};

    begin(t, 7 + t);
    for (int i = 0; i < 2; i++) {
        struct dmem to = from_element(sides[i]->array[SUM], offset, dtype_sum(t));
        struct dmem from = from_element(sides[i]->array[LAST], offset, t);
        uint32_t *flags = i == 0 ? &cpu.flags : &gpu.flags;
        if (add) CHECK_EQ(device_add(sides[i]->q, to, from, t, COUNT, flags), STATUS_OK);
        else CHECK_EQ(device_widen(sides[i]->q, to, from, t, COUNT), STATUS_OK);
    }
    end();
    check_moved(dtype_size(t) + dtype_size(dtype_sum(t)) * (add ? 2 : 1), add ? "add" : "widen", t);
    check_same(t, add ? "add" : "widen");
}

static void every_sum(void)
{
    for (int t = 0; t < DTYPE_COUNT; t++)
        for (int i = 0; i < 4; i++) try_sum((enum dtype)t, i % 2 == 1, (size_t)i / 2);
}

TEST(sums_give_the_bits_of_the_CPU_and_move_no_byte_too_many) { on_each(every_sum); }

/* ---- the figures that the design counts on: bytes an element, of f32 and with a gradient in bf16 ------------------- */

static void figures(void)
{
    static const struct {
        enum rule_id rule;
        bool sum, last;
        uint64_t bytes;
    } steps[] = {{RULE_sgd, true, false, 12}, {RULE_momentum, true, false, 20}, {RULE_adam, true, false, 28},
                 {RULE_adamw, true, false, 28}, {RULE_adam, false, true, 28}, {RULE_adam, true, true, 32}};
    static const struct {
        enum dtype type;
        bool add;
        uint64_t bytes;
    } sums[] = {{DTYPE_f32, false, 8}, {DTYPE_f32, true, 12}, {DTYPE_bf16, false, 6}, {DTYPE_bf16, true, 10}};

    for (size_t i = 0; i < sizeof steps / sizeof steps[0]; i++) {
        struct shape shape = {.sum = steps[i].sum, .last = steps[i].last};
        try_rule(steps[i].rule, DTYPE_f32, shape);
        CHECK_EQ(bytes_of_step(rule_slots(steps[i].rule), true, DTYPE_f32, shape), steps[i].bytes);
    }
    /* A bf16 value with its f32 master, stepped with the last push alone: Adam's 26 bytes, and 2 of the copy for pulls. */
    CHECK_EQ(bytes_of_step(2, true, DTYPE_bf16, (struct shape){.last = true, .master = true}), 28);
    try_rule(RULE_adam, DTYPE_bf16, (struct shape){.last = true, .master = true});
    for (size_t i = 0; i < sizeof sums / sizeof sums[0]; i++) {
        begin(sums[i].type, 1);
        struct dmem to = gpu.array[SUM], from = gpu.array[LAST];
        if (sums[i].add) CHECK_EQ(device_add(gpu.q, to, from, sums[i].type, COUNT, &gpu.flags), STATUS_OK);
        else CHECK_EQ(device_widen(gpu.q, to, from, sums[i].type, COUNT), STATUS_OK);
        finish(gpu.q);
        check_moved(sums[i].bytes, "a sum", sums[i].type);
    }
}

TEST(set_add_sgd_momentum_and_adam_move_the_bytes_of_the_design) { on_each(figures); }

/* ---- many at once ------------------------------------------------------------------------------------------------ */

/* Single elements, more of them than a launch takes, with every element rule and several sets of scalars among them. */
static void many(void)
{
    enum { TENSORS = 300 };
    const struct side *sides[] = {&cpu, &gpu};
    uint64_t want = 0;

    begin(DTYPE_f32, 9);
    for (int i = 0; i < 2; i++)
        for (unsigned k = 0; k < TENSORS; k++) {
            struct shape shape = {.sum = true, .last = k % 2 == 0, .offset = k};
            struct step s = step_of(i == 0 ? &cpu : &gpu, (enum rule_id)(k % RULE_lars), DTYPE_f32, shape);
            s.count = 1;
            s.scalars.v[3] = 0.25 * (k % 5);
            CHECK_OK(device_step(sides[i]->q, &s), device_error(sides[i]->d));
            if (i == 1) want += bytes_of_step(rule_slots(s.rule), rule_reads_value(s.rule), DTYPE_f32, shape);
        }
    end();
    CHECK_EQ(bytes_moved(), want);
    check_same(DTYPE_f32, "many");
}

TEST(tensors_that_share_a_launch_are_told_apart) { on_each(many); }

/* ---- small copies, between pinned memory and the card ------------------------------------------------------------- */

static void copies(void)
{
    static const size_t sizes[] = {1, 15, 16, 17, 301, 1024};
    uint8_t *pin = NULL;

    CHECK_OK(device_pin_new(gpu.d, 4096, (void **)&pin, &error), &error);
    begin(DTYPE_f32, 3);
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++)
        for (size_t offset = 0; offset < 2; offset++) {
            size_t size = sizes[i];
            for (size_t k = 0; k < 4096; k++) pin[k] = (uint8_t)(k * 7 + size);
            (void)bytes_moved();
            CHECK_EQ(device_upload(gpu.q, gpu.array[0], offset, pin + offset, size), STATUS_OK);
            CHECK_EQ(device_download(gpu.q, pin + 2048, gpu.array[0], offset, size), STATUS_OK);
            finish(gpu.q);
            CHECK_EQ(bytes_moved(), 4 * size);
            CHECK(memcmp(pin + 2048, pin + offset, size) == 0);
            CHECK_EQ(pin[2048 + size], (uint8_t)((2048 + size) * 7 + size));
        }
    device_pin_free(gpu.d, pin);
}

TEST(small_copies_move_each_byte_once) { on_each(copies); }

/* ---- programs ---------------------------------------------------------------------------------------------------- */

static void try_program(const char *text, unsigned slots, enum dtype t)
{
    struct program *p = NULL;
    double params[PROGRAM_PARAMS_MAX], moments[EXPR_MOMENT_COUNT] = {3, 2, 4, 1};
    struct shape shape = {.sum = true, .last = true, .master = dtype_is_half(t)};

    CHECK_OK(program_new(bytes_text(text), &p, &error), &error);
    for (unsigned i = 0; i < p->param_count; i++) params[i] = p->params[i].standard;
    begin(t, 11);
    struct step on_cpu = step_of(&cpu, RULE_program, t, shape), on_gpu = step_of(&gpu, RULE_program, t, shape);
    program_scalars(p, params, moments, on_cpu.program_scalars);
    memcpy(on_gpu.program_scalars, on_cpu.program_scalars, sizeof on_cpu.program_scalars);
    on_cpu.program = on_gpu.program = p;
    run_step(&on_cpu, &on_gpu);
    check_moved(bytes_of_step(slots, true, t, shape), text, t);
    check_same(t, text);
    program_free(p);
}

static void programs(void)
{
    static const enum dtype types[] = {DTYPE_f32, DTYPE_f64, DTYPE_f16, DTYPE_bf16};

    for (int i = 0; i < 4; i++) {
        try_program("stored -= 0.1 * grad", 0, types[i]);
        try_program("slot m = 0; m = 0.9 * m + grad; stored -= 0.1 * m", 1, types[i]);
        try_program("slot m = 0, v = 0\nm = 0.9 * m + 0.1 * grad\nv = 0.99 * v + 0.01 * (grad * grad)\n"
                    "stored -= 0.1 * (m / (sqrt(v) + 1e-8))", 2, types[i]);
        try_program("slot s = 0\ns = tanh(log(abs(grad) + 1)) + exp(min(s, 1))\n"
                    "stored = where(grad < s, stored, clamp(s, -1, 1))", 1, types[i]);
    }
}

TEST(the_interpreter_of_programs_gives_the_bits_of_the_CPU_and_moves_no_byte_too_many) { on_each(programs); }

/* ---- statistics -------------------------------------------------------------------------------------------------- */

static void put_few(enum dtype t, uint8_t *at, size_t i)
{
    int64_t n = (int64_t)(i * i % 50);
    float f = i % 9 == 0 ? INFINITY : i % 11 == 0 ? NAN : (float)n / 4;
    double x = (double)f;
    uint16_t half = t == DTYPE_f16 ? half_narrow_f16(f) : half_narrow_bf16(f);
    const void *value = &n;

    if (t == DTYPE_f64) value = &x;
    else if (t == DTYPE_f32) value = &f;
    else if (dtype_is_half(t)) value = &half;
    memcpy(at, value, dtype_size(t));
}

/* Counts, least and greatest are exact; the sums of values with few bits as well, in any order. */
static void try_stats(enum dtype t, bool minus)
{
    static uint8_t few[2][ROOM * SIZE_MAX_OF_ONE];
    struct side *sides[] = {&cpu, &gpu};
    struct stats got[2];

    for (size_t i = 0; i < 2 * ROOM; i++) put_few(t, few[i / ROOM] + i % ROOM * dtype_size(t), i);
    (void)bytes_moved();
    for (int i = 0; i < 2; i++) {
        struct side *s = sides[i];
        for (int k = 0; k < 2; k++) CHECK_EQ(device_upload(s->q, s->array[k], 0, few[k], sizeof few[k]), STATUS_OK);
        CHECK_EQ(device_stats(s->q, s->array[0], minus ? s->array[1] : (struct dmem){0}, t, COUNT, &got[i]), STATUS_OK);
        finish(s->q);
    }
    CHECK_EQ(bytes_moved(), COUNT * dtype_size(t) * (minus ? 2 : 1) + sizeof(struct stats));
    CHECK(memcmp(&got[0], &got[1], sizeof got[0]) == 0);
}

static void statistics(void)
{
    for (int t = 0; t < DTYPE_COUNT; t++)
        for (int minus = 0; minus < 2; minus++) try_stats((enum dtype)t, minus != 0);
}

TEST(statistics_are_those_of_the_CPU_and_read_each_element_once) { on_each(statistics); }
