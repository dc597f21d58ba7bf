/* Programs on the CUDA device (gpu/cuda_program.h), on the stand-in or on a GPU (PARAMD_TEST_PLUGIN): interpreted until
 * their kernel is there, then by the kernel, with the bits of the CPU both ways; and whatever goes wrong with the compiler,
 * interpreted. */
#include "gpu/device.h"

#include "gpu/plugin.h"
#include "gpu/program.h"
#include "service/base/mem.h"
#include "tests/lib/nvrtc.h"
#include "tests/lib/sim_device.h"
#include "tests/lib/test.h"

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { COUNT = 300, SLOTS = 2, FAILURE = 6, OUT_OF_MEMORY = 2, UNKNOWN_ERROR = 999 };

/* Every kind of operation, and the functions whose bits are the language's own. */
static const char text[] =
    "param lr = 0.1, beta = 0.9\nslot mean = 0, top = stored\n"
    "mean = beta * mean + (1 - beta) * clamp(grad, -3, 3)\ntop = max(top, exp(grad) * tanh(mean) - log(abs(stored) + 1))\n"
    "stored -= lr * mean / (sqrt(abs(top)) + where(grad < 0, 1e-3, 2))";

static struct error error;

static void need_sim(void)
{
    if (!sim_present()) test_skip("it needs CUDA's headers: packages cuda-cudart-dev-13-0 cuda-crt-13-0, see README.md");
}

/* What open_compiling asks for; a test that has anything open by then asks first. */
static void need_compiler(void)
{
    need_sim();
    need_nvrtc();
}

/* For what CUDA and the compiler are told to answer, and when. */
static void need_control(void)
{
    need_sim();
    if (sim_replaced()) test_skip("CUDA and NVRTC are told what to do by the stand-in");
}

/* Where there is no control the compiler goes on, and a test finds it where it is. */
static void hold_compiler(bool on)
{
    if (!sim_replaced()) sim_hold_compiler(on);
}

static struct device *open_compiling(unsigned seed)
{
    struct device *d = NULL;

    need_compiler();
    CHECK_OK(sim_compiling_device_new(seed, &d, &error), &error);
    return d;
}

static void close_sim(struct device *d)
{
    device_free(d);
    if (sim_remains() != NULL) test_fail(__FILE__, __LINE__, "%s", sim_remains());
}

/* Its memory cannot be given back. */
static void close_lost(struct device *d)
{
    device_free(d);
    CHECK_EQ(sim_plugin()->mem_live(), 0);
    CHECK_EQ(sim_stats().live_libraries, 0);
}

static struct program *program_of(const char *from)
{
    struct program *p = NULL;
    CHECK_OK(program_new(bytes_text(from), &p, &error), &error);
    return p;
}

static struct device_programs look(struct device *d)
{
    struct device_programs now;
    device_programs(d, &now);
    return now;
}

/* ---- a value that is stepped ------------------------------------------------------------------------------------------ */

enum piece { VALUE, SUM, LAST, MASTER, SLOT, PIECES = SLOT + SLOTS };

struct value {
    struct device *d;
    struct queue *q;
    enum dtype type;
    size_t count;                    /* of a step */
    struct dmem m[PIECES];
    uint32_t flags;
};

static enum dtype type_of(const struct value *v, enum piece p) { return p == VALUE || p == LAST ? v->type : dtype_sum(v->type); }
static size_t size_of(const struct value *v, enum piece p) { return COUNT * dtype_size(type_of(v, p)); }

static void wait_for(struct queue *q)
{
    uint64_t mark;
    CHECK_EQ(device_record(q, &mark), STATUS_OK);
    CHECK_EQ(device_wait(q, mark), STATUS_OK);
}

/* Numbers of some size, of which every type has the bits; zeros, and one that is none. */
static void fill(struct value *v, enum piece p, uint64_t *random)
{
    static double bytes[COUNT];
    enum dtype type = type_of(v, p);

    for (size_t i = 0; i < COUNT; i++) {
        uint64_t r = rng_next(random);
        float f = i == 7 ? 0 : (float)((double)(r >> 11) * 0x1p-50 - 4);
        uint32_t bits;
        memcpy(&bits, &f, sizeof bits);
        if (i == 8) bits = 0x7fc00000, memcpy(&f, &bits, sizeof f);
        if (type == DTYPE_f64) bytes[i] = (double)f;
        else if (type == DTYPE_f32) memcpy((char *)bytes + 4 * i, &f, 4);
        else memcpy((char *)bytes + 2 * i, &(uint16_t){(uint16_t)(type == DTYPE_bf16 ? bits >> 16 : r & 0xbfff)}, 2);
    }
    CHECK_EQ(device_upload(v->q, v->m[p], 0, bytes, size_of(v, p)), STATUS_OK);
    wait_for(v->q);
}

static void value_open(struct value *v, struct device *d, enum dtype type, uint64_t seed)
{
    *v = (struct value){.d = d, .type = type, .count = COUNT};
    CHECK_OK(device_queue_new(d, &v->q, &error), &error);
    for (unsigned p = 0; p < PIECES; p++) {
        CHECK_OK(device_mem_new(d, size_of(v, p), &v->m[p], &error), &error);
        fill(v, p, &seed);
    }
}

static void value_close(struct value *v)
{
    device_queue_free(v->q);
    for (unsigned p = 0; p < PIECES; p++) device_mem_free(&v->m[p]);
}

/* Which of the pieces a step has. */
struct shape { bool sum, last, master; };
static const struct shape plain = {true, true, false};

static enum status step_as(struct value *v, const struct program *p, struct shape has)
{
    struct step s = {.rule = RULE_program, .type = v->type, .count = v->count, .from = v->m[VALUE], .to = v->m[VALUE],
                     .program = p, .flags = &v->flags};
    double params[PROGRAM_PARAMS_MAX], moments[EXPR_MOMENT_COUNT] = {3, 2, 4, 1};

    for (unsigned i = 0; i < p->param_count; i++) params[i] = p->params[i].standard;
    program_scalars(p, params, moments, s.program_scalars);
    if (has.sum) s.sum = v->m[SUM];
    if (has.last) s.last = v->m[LAST];
    if (has.master) s.master = v->m[MASTER];
    for (unsigned i = 0; i < p->slot_count; i++) s.slots[i] = v->m[SLOT + i];
    return device_step(v->q, &s);
}

static void step(struct value *v, const struct program *p) { CHECK_EQ(step_as(v, p, plain), STATUS_OK); }

/* A step, and what it asked of the compiler. */
static void step_and_settle(struct value *v, const struct program *p)
{
    step(v, p);
    wait_for(v->q);
    while (look(v->d).waiting > 0) sched_yield();
}

/* Steps until one was by a kernel of the program's own: the first, or the second. Answers how many there were. */
static unsigned step_until_compiled(struct value *v, const struct program *p)
{
    struct device_programs before = look(v->d);
    unsigned n = 0;

    while (look(v->d).compiled == before.compiled) {
        step_and_settle(v, p);
        if (look(v->d).refused > before.refused || ++n > 2) test_fail(__FILE__, __LINE__, "not compiled: %s", look(v->d).why);
    }
    return n;
}

static void step_until_refused(struct value *v, const struct program *p)
{
    unsigned before = look(v->d).refused;

    step_and_settle(v, p);
    CHECK_EQ(look(v->d).refused, before + 1);
}

static void same(struct value *a, struct value *b)
{
    static uint8_t x[COUNT * 8], y[COUNT * 8];

    for (unsigned p = 0; p < PIECES; p++) {
        CHECK_EQ(device_download(a->q, x, a->m[p], 0, size_of(a, p)), STATUS_OK);
        CHECK_EQ(device_download(b->q, y, b->m[p], 0, size_of(b, p)), STATUS_OK);
        wait_for(a->q), wait_for(b->q);
        for (size_t i = 0, n = dtype_size(type_of(a, p)); i < COUNT; i++)
            if (memcmp(x + n * i, y + n * i, n) != 0 && i != 8)
                test_fail(__FILE__, __LINE__, "%s: piece %u, element %zu differs", dtype_name(a->type), p, i);
    }
}

static struct device *open_cpu(void)
{
    struct device *d = NULL;
    CHECK_OK(cpu_device_new(1, &d, &error), &error);
    return d;
}

/* ---- the bits ------------------------------------------------------------------------------------------------------- */

TEST(a_program_is_interpreted_until_its_kernel_is_there_and_nobody_sees_the_change)
{
    need_control();
    for (unsigned seed = 0; seed < SIM_SEEDS; seed++) {
        struct device *d = open_compiling(seed), *cpu = open_cpu();
        struct program *p = program_of(text);
        struct value gpu, host;

        sim_hold_compiler(true);
        value_open(&gpu, d, DTYPE_f32, 5), value_open(&host, cpu, DTYPE_f32, 5);
        for (int i = 0; i < 3; i++) step(&gpu, p), step(&host, p);
        same(&gpu, &host);
        CHECK_EQ(look(d).interpreted, 3);
        CHECK_EQ(look(d).compiled, 0);
        CHECK_EQ(look(d).waiting, 1);
        CHECK_EQ(sim_stats().ptx_launches, 0);
        sim_hold_compiler(false);
        for (unsigned n = step_until_compiled(&gpu, p); n > 0; n--) step(&host, p);
        for (int i = 0; i < 3; i++) step(&gpu, p), step(&host, p);
        same(&gpu, &host);
        CHECK_EQ(look(d).compiled, 4);
        CHECK_EQ(look(d).ready, 1);
        CHECK_EQ(sim_stats().ptx_launches, 4);
        CHECK_TEXT(look(d).why, "");
        value_close(&gpu), value_close(&host);
        device_free(cpu);
        close_sim(d);
        program_free(p);
    }
}

TEST(kernels_give_the_bits_of_the_cpu_for_every_type_and_shape_of_step)
{
    static const struct shape shapes[] = {{true, true, false}, {true, false, false}, {false, true, false},
                                          {true, true, true}, {false, true, true}};
    static const enum dtype types[] = {DTYPE_f32, DTYPE_f64, DTYPE_f16, DTYPE_bf16};
    struct device *d = open_compiling(1), *cpu = open_cpu();
    struct program *p = program_of(text);

    for (unsigned t = 0; t < 4; t++) {
        struct value gpu, host;
        value_open(&gpu, d, types[t], t), value_open(&host, cpu, types[t], t);
        for (unsigned n = step_until_compiled(&gpu, p); n > 0; n--) step(&host, p);
        uint64_t before = look(d).compiled;
        for (unsigned s = 0; s < (dtype_is_half(types[t]) ? 5 : 3); s++) {
            CHECK_EQ(step_as(&gpu, p, shapes[s]), STATUS_OK);
            CHECK_EQ(step_as(&host, p, shapes[s]), STATUS_OK);
            same(&gpu, &host);
        }
        CHECK_EQ(look(d).compiled - before, dtype_is_half(types[t]) ? 5 : 3);
        value_close(&gpu), value_close(&host);
    }
    device_free(cpu);
    close_sim(d);
    program_free(p);
}

/* In place of the stand-in's: the machine code is refused, as that of another card, and the PTX is taken. */
TEST(where_the_machine_code_is_refused_ptx_is_loaded)
{
    need_control();
    need_compiler();
    struct device *d = NULL;
    struct program *p = program_of("stored -= 2 * grad");
    struct value v;

    CHECK_OK(sim_device_new(0, &d, &error), &error);
    device_free(d);
    unsetenv("PARAMD_NVRTC");
    CHECK_OK(cuda_device_new(&(struct card){.chunk_size = 1}, &d, &error), &error);
    value_open(&v, d, DTYPE_f32, 1);
    (void)step_until_compiled(&v, p);
    CHECK_EQ(sim_stats().ptx_launches, 1);
    CHECK_EQ(sim_stats().live_libraries, 1);
    CHECK_EQ(sim_stats().compilations, 0);           /* the stand-in's NVRTC was not asked */
    value_close(&v);
    close_sim(d);
    program_free(p);
}

/* ---- what is kept --------------------------------------------------------------------------------------------------- */

/* How many there are, and that none was compiled twice. */
static void check_kernels(struct device *d, unsigned count)
{
    CHECK_EQ(look(d).ready, count);
    if (!sim_replaced()) CHECK_EQ(sim_stats().compilations, count);
}

TEST(programs_that_compute_the_same_share_a_kernel_and_types_do_not)
{
    struct device *d = open_compiling(1);
    struct program *a = program_of("param lr = 0.5\nstored -= lr * grad"), *b = program_of("stored = stored - 0.25 * grad # b");
    struct value first, second, wide;

    value_open(&first, d, DTYPE_f32, 1), value_open(&second, d, DTYPE_f32, 2), value_open(&wide, d, DTYPE_f64, 3);
    (void)step_until_compiled(&first, a);
    CHECK_EQ(step_until_compiled(&second, b), 1);
    check_kernels(d, 1);
    CHECK_EQ(step_until_compiled(&wide, b), 2);
    check_kernels(d, 2);
    value_close(&first), value_close(&second), value_close(&wide);
    close_sim(d);
    program_free(a), program_free(b);
}

static struct program *nth_program(unsigned n)
{
    char line[400] = "stored -= grad";

    for (unsigned i = 0; i < n; i++) strcat(line, " * grad");
    return program_of(line);
}

TEST(one_program_more_than_are_kept_is_interpreted_until_another_has_rested)
{
    struct device *d = open_compiling(2);
    struct program *p[PROGRAM_KERNELS_MAX + 1];
    struct value v;

    value_open(&v, d, DTYPE_f32, 1);
    v.count = 5;
    for (unsigned i = 0; i < PROGRAM_KERNELS_MAX; i++) {
        p[i] = nth_program(i);
        (void)step_until_compiled(&v, p[i]);
    }
    struct program *more = p[PROGRAM_KERNELS_MAX] = nth_program(PROGRAM_KERNELS_MAX);
    struct device_programs before = look(d);
    step(&v, more);
    wait_for(v.q);
    CHECK_EQ(look(d).interpreted, before.interpreted + 1);
    CHECK_EQ(look(d).waiting, 0);
    /* All but the first are used again and again. */
    for (unsigned i = 0; i < PROGRAM_RESTED_STEPS; i++) {
        step(&v, p[1 + i % (PROGRAM_KERNELS_MAX - 1)]);
        if (i % 64 == 0) wait_for(v.q);
    }
    wait_for(v.q);
    (void)step_until_compiled(&v, more);
    CHECK_EQ(look(d).ready, PROGRAM_KERNELS_MAX);
    if (!sim_replaced()) CHECK_EQ(sim_stats().live_libraries, PROGRAM_KERNELS_MAX);
    CHECK_EQ(step_until_compiled(&v, p[1]), 1);
    value_close(&v);
    close_sim(d);
    for (unsigned i = 0; i <= PROGRAM_KERNELS_MAX; i++) program_free(p[i]);
}

/* The step's own must live until its mark has passed, no longer. */
TEST(a_program_may_go_while_it_is_compiled)
{
    struct device *d = open_compiling(1);
    struct program *p = program_of(text);
    struct value v;

    hold_compiler(true);
    value_open(&v, d, DTYPE_bf16, 1);
    step(&v, p);
    wait_for(v.q);
    program_free(p);
    hold_compiler(false);
    p = program_of(text);
    (void)step_until_compiled(&v, p);
    check_kernels(d, 1);
    value_close(&v);
    close_sim(d);
    program_free(p);
}

/* ---- failures --------------------------------------------------------------------------------------------------------- */

struct failure {
    const char *function;            /* NULL: none is made to fail */
    int nth, number;
    bool refused;
    const char *why;
    unsigned left;                   /* what cannot be unloaded goes with the process */
};

/* Whatever the compiler comes to, the device goes on and the bits are right. */
static void goes_on(struct device *d, struct value *gpu, const struct program *p, const struct failure *f)
{
    struct device *cpu = open_cpu();
    struct value host, fresh;

    value_open(&host, cpu, DTYPE_f32, 9), value_open(&fresh, d, DTYPE_f32, 9);
    if (f->function != NULL) sim_fail(f->function, f->nth, f->number);
    if (f->refused) step_until_refused(gpu, p);
    else (void)step_until_compiled(gpu, p);
    uint64_t interpreted = look(d).interpreted;
    step(&host, p), step(&fresh, p);
    same(&host, &fresh);
    CHECK_EQ(look(d).interpreted - interpreted, f->refused);
    CHECK_SAYS(look(d).why, f->why);
    CHECK(!d->lost);
    value_close(&host), value_close(&fresh);
    device_free(cpu);
}

static const struct failure failures[] = {
    {"nvrtcGetNumSupportedArchs", 1, FAILURE, true, "NVRTC does not tell what it compiles for", 0},
    {"nvrtcCreateProgram", 1, FAILURE, true, "NVRTC does not begin", 0},
    {"nvrtcCompileProgram", 1, FAILURE, true, "NVRTC does not compile it: ", 0},
    {"nvrtcGetCUBIN", 1, FAILURE, true, "NVRTC gives no code", 0},
    {"nvrtcGetPTX", 1, FAILURE, true, "NVRTC gives no code", 0},
    {"cudaSetDevice", 1, UNKNOWN_ERROR, true, "loading a program: CUDA error 999", 0},
    {"cudaLibraryLoadData", 1, UNKNOWN_ERROR, false, "", 0},         /* the machine code, which is refused anyhow */
    {"cudaLibraryLoadData", 2, OUT_OF_MEMORY, true, "loading a program: CUDA error 2 cudaErrorMemoryAllocation", 0},
    {"cudaLibraryGetKernel", 1, UNKNOWN_ERROR, true, "loading a program: CUDA error 999", 0},
    {"cudaFuncGetAttributes", 1, UNKNOWN_ERROR, true, "loading a program: CUDA error 999", 0},
    {"cudaLibraryUnload", 1, UNKNOWN_ERROR, false, "", 1},
};
enum { FAILURES = sizeof failures / sizeof failures[0] };

TEST(a_program_that_cannot_be_compiled_or_loaded_is_interpreted_for_good)
{
    need_control();
    need_compiler();
    struct program *p = program_of(text);

    for (size_t i = 0; i < FAILURES; i++) {
        const struct failure *f = &failures[i];
        struct device *d = open_compiling(1 + (unsigned)i);
        struct value v;
        value_open(&v, d, DTYPE_f32, i);
        goes_on(d, &v, p, f);
        CHECK_EQ(sim_stats().live_libraries, !f->refused);
        value_close(&v);
        device_free(d);
        CHECK_EQ(sim_stats().met, 1);
        CHECK_EQ(sim_stats().live_libraries, f->left);
        if (f->left == 0 && sim_remains() != NULL) test_fail(__FILE__, __LINE__, "%s: %s", f->function, sim_remains());
        CHECK_EQ(sim_plugin()->mem_live(), 0);
    }
    program_free(p);
}

static bool has_failure(const char *function)
{
    for (size_t i = 0; i < FAILURES; i++)
        if (strcmp(failures[i].function, function) == 0) return true;
    return false;
}

TEST(no_function_of_cuda_that_programs_call_is_left_out)
{
    unsigned count = 0;

    need_control();
    for (const struct cusim_call *c = sim_calls(); c->source != NULL; c++) {
        if (strcmp(c->source, "cuda_program") != 0) continue;
        if (!has_failure(c->function)) test_fail(__FILE__, __LINE__, "%s is nowhere among the failures", c->function);
        count++;
    }
    CHECK(count > 3);
}

/* One step, if there is memory for it. */
static void try_step(struct value *v, const struct program *p)
{
    uint64_t mark;
    enum status s = step_as(v, p, plain);

    if (s == STATUS_OK) s = device_record(v->q, &mark);
    if (s == STATUS_OK) s = device_wait(v->q, mark);
    CHECK(s == STATUS_OK || s == STATUS_RESOURCE_EXHAUSTED);
}

/* The one that fails may also be the device's own. */
TEST(every_failing_allocation_leaves_a_program_interpreted)
{
    need_control();
    need_compiler();
    struct program *p = program_of("stored = exp(grad)");
    bool hit = true;
    unsigned refused = 0;

    for (uint64_t n = 1; hit; n++) {
        struct device *d = open_compiling(3);
        struct value v;
        value_open(&v, d, DTYPE_f32, n);
        sim_plugin()->mem_fault_at(n);
        while (look(d).ready + look(d).refused == 0) {
            try_step(&v, p);
            while (look(d).waiting > 0) sched_yield();
        }
        hit = sim_plugin()->mem_fault_hit();
        sim_plugin()->mem_fault_at(0);
        if (look(d).refused > 0) CHECK_SAYS(look(d).why, "no memory");
        refused += look(d).refused;
        CHECK(!d->lost);
        value_close(&v);
        close_sim(d);
        CHECK(n < 100);
    }
    CHECK(refused > 2);      /* of the text, of the machine code, of the PTX */
    program_free(p);
}

/* ---- no compiler ------------------------------------------------------------------------------------------------------ */

/* A device on the stand-in as it was reset last. */
static struct device *open_with(const char *nvrtc)
{
    struct device *d = NULL;

    need_sim();
    CHECK_OK(sim_device_new(2, &d, &error), &error);
    device_free(d);
    setenv("PARAMD_NVRTC", nvrtc, 1);
    CHECK_OK(cuda_device_new(&(struct card){.chunk_size = 1}, &d, &error), &error);
    return d;
}

TEST(without_nvrtc_programs_are_interpreted_and_it_is_said_why)
{
    struct device *d = open_with("/nowhere/libnvrtc.so");
    struct program *p = program_of(text);
    struct value v;

    value_open(&v, d, DTYPE_f32, 1);
    goes_on(d, &v, p, &(struct failure){.refused = true, .why = "NVRTC is not here: /nowhere/libnvrtc.so: "});
    CHECK_EQ(look(d).refused, 1);
    value_close(&v);
    close_sim(d);
    program_free(p);
}

TEST(a_library_that_is_no_nvrtc_is_refused_by_what_it_lacks)
{
    struct device *d = open_with("libm.so.6");
    struct program *p = program_of(text);
    struct value v;

    value_open(&v, d, DTYPE_f32, 1);
    goes_on(d, &v, p, &(struct failure){.refused = true, .why = "NVRTC has no nvrtcGetNumSupportedArchs"});
    value_close(&v);
    close_sim(d);
    program_free(p);
}

TEST(where_nvrtc_is_off_nothing_is_compiled)
{
    struct device *d = open_with("off");
    struct program *p = program_of(text);
    struct value v;

    value_open(&v, d, DTYPE_f32, 1);
    for (int i = 0; i < 3; i++) step(&v, p);
    wait_for(v.q);
    struct device_programs now = look(d);
    CHECK_EQ(now.interpreted, 3);
    CHECK_EQ(now.ready + now.waiting + now.refused, 0);
    CHECK_TEXT(now.why, "PARAMD_NVRTC is off");
    value_close(&v);
    close_sim(d);
    program_free(p);
}

/* ---- the end ---------------------------------------------------------------------------------------------------------- */

TEST(closing_the_device_cancels_what_is_compiled_and_forgets_what_waits)
{
    struct device *d = open_compiling(1);
    struct program *a = program_of(text), *b = program_of("stored -= grad");
    struct value v;

    hold_compiler(true);
    value_open(&v, d, DTYPE_f32, 1);
    step(&v, a), step(&v, b);
    wait_for(v.q);
    while (!sim_replaced() && sim_stats().compilations == 0) sched_yield();
    value_close(&v);
    close_sim(d);
    program_free(a), program_free(b);
}

TEST(a_kernel_that_fails_loses_the_device)
{
    need_control();
    struct device *d = open_compiling(1);
    struct program *p = program_of(text), *other = program_of("stored -= grad");
    struct value v;
    uint64_t mark;

    value_open(&v, d, DTYPE_f32, 1);
    (void)step_until_compiled(&v, p);
    sim_fault_kernel(1, 0);
    step(&v, p);
    CHECK_EQ(device_record(v.q, &mark), STATUS_OK);
    CHECK_EQ(device_wait(v.q, mark), STATUS_UNAVAILABLE);
    CHECK_EQ(step_as(&v, other, plain), STATUS_UNAVAILABLE);
    CHECK_SAYS(device_error(d)->text, "CUDA error 700 cudaErrorIllegalAddress");
    value_close(&v);
    close_lost(d);
    program_free(p), program_free(other);
}

/* The compiler meets the error first, which is not the device's loss; the next call is. */
TEST(a_card_that_is_lost_while_a_program_is_compiled_is_lost_to_the_device_alone)
{
    need_control();
    struct device *d = open_compiling(1);
    struct program *p = program_of(text);
    struct value v;
    uint64_t mark;

    sim_hold_compiler(true);
    value_open(&v, d, DTYPE_f32, 1);
    step(&v, p);
    wait_for(v.q);
    sim_fault_kernel(1, 0);
    step(&v, p);
    CHECK_EQ(device_record(v.q, &mark), STATUS_OK);
    CHECK_EQ(device_wait(v.q, mark), STATUS_UNAVAILABLE);
    sim_hold_compiler(false);
    while (look(d).waiting > 0) sched_yield();
    CHECK_EQ(look(d).refused, 1);
    CHECK_SAYS(look(d).why, "CUDA error 700");
    value_close(&v);
    close_lost(d);
    program_free(p);
}
