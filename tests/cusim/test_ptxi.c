/* The PTX interpreter: single instructions against what PTX says of them, real PTX of nvcc and of NVRTC against C,
 * and what it refuses. */
#include "tests/cusim/ptxi.h"

#include "gpu/half.h"
#include "gpu/program.h"
#include "tests/cusim/cusim.h"
#include "tests/cusim/sample/kernels.h"
#include "tests/lib/nvrtc.h"
#include "tests/lib/test.h"

#include <cuda_runtime_api.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct error error;
static char why[200];

/* ---- single instructions --------------------------------------------------------------------------------------- */

static const char head[] = ".version 9.0\n.target sm_90\n.address_size 64\n"
                           ".visible .entry one(\n\t.param .align 8 .b8 one_param_0[32]\n)\n{\n";

/* x and y are the first two words of the arguments; %rd4 is stored where the third says, of the fourth nothing is
 * known. */
static struct ptxi *loaded(const char *body)
{
    char text[2000];

    snprintf(text, sizeof text,
             "%s\tld.param.b64 \t%%rd1, [one_param_0];\n\tld.param.b64 \t%%rd2, [one_param_0+8];\n"
             "\tld.param.b64 \t%%rd3, [one_param_0+16];\n\tmov.b64 \t%%rd4, 0;\n%s"
             "\tst.global.b64 \t[%%rd3], %%rd4;\n\tret;\n\n}\n",
             head, body);
    return ptxi_load(text, "one", why, sizeof why);
}

static int run(const struct ptxi *p, uint64_t x, uint64_t y, uint64_t *out)
{
    uint64_t arguments[4] = {x, y, (uint64_t)(uintptr_t)out, 0};
    struct ptxi_range range = {out, sizeof *out};
    struct ptxi_launch l = {arguments, sizeof arguments, {1, 1, 1}, {1, 1, 1}, &range, 1, 0};
    struct ptxi_count count = {0};
    return ptxi_run(p, &l, &count, why, sizeof why);
}

#define F32(op) "cvt.u32.u64 %r1, %rd1;\ncvt.u32.u64 %r2, %rd2;\n" op " %r3, %r1, %r2;\ncvt.u64.u32 %rd4, %r3;\n"
#define F32_1(op) "cvt.u32.u64 %r1, %rd1;\n" op " %r3, %r1;\ncvt.u64.u32 %rd4, %r3;\n"
#define I64(op) op " %rd4, %rd1, %rd2;\n"
#define I64_1(op) op " %rd4, %rd1;\n"
#define SET(op) op " %p1, %rd1, %rd2;\nselp.b64 %rd4, 1, 0, %p1;\n"

static const struct {
    const char *body;
    uint64_t x, y, want;
} instructions[] = {
    {F32("add.f32"), 0x3f800000, 0x40000000, 0x40400000},
    {F32("add.rn.f32"), 0x7f800000, 0xff800000, 0x7fffffff}, /* the NaN of a GPU */
    {F32("mul.f32"), 0x7fc01234, 0x40000000, 0x7fffffff},
    {F32("div.rn.f32"), 0x3f800000, 0x40400000, 0x3eaaaaab},
    {F32("min.f32"), 0x7fc00000, 0x40400000, 0x40400000},
    {F32("max.f32"), 0x80000000, 0, 0},
    {F32("min.f32"), 0, 0x80000000, 0x80000000},
    {F32("copysign.f32"), 0xbf800000, 0x40000000, 0xc0000000},
    {F32_1("neg.f32"), 0x7fc00000, 0, 0xffc00000},
    {F32_1("abs.f32"), 0xbf800000, 0, 0x3f800000},
    {F32_1("sqrt.rn.f32"), 0x40000000, 0, 0x3fb504f3},
    {F32_1("rcp.rn.f32"), 0x40400000, 0, 0x3eaaaaab},
    {F32_1("cvt.rzi.s32.f32"), 0xcf800000, 0, 0x80000000}, /* what does not fit is the nearest that does */
    {F32_1("cvt.rzi.u32.f32"), 0xbf800000, 0, 0},
    {F32_1("cvt.rni.s32.f32"), 0x40200000, 0, 2}, /* 2.5, ties to even */
    {F32_1("cvt.rmi.f32.f32"), 0xbfc00000, 0, 0xc0000000},
    {F32_1("cvt.rn.f32.s32"), 0xffffffff, 0, 0xbf800000},
    {F32_1("cvt.rn.bf16.f32"), 0x3f818000, 0, 0x3f82},
    {F32_1("cvt.f32.f16"), 0x3c01, 0, 0x3f802000},
    {F32_1("popc.b32"), 0xf0f0, 0, 8},
    {F32_1("clz.b32"), 1, 0, 31},
    {I64("add.s64"), ~0ull, 2, 1},
    {I64("mul.lo.s64"), 1ull << 63, 3, 1ull << 63},
    {I64("mul.hi.u64"), ~0ull, ~0ull, ~0ull - 1},
    {I64("mul.hi.s64"), ~0ull, 2, ~0ull},
    {I64("div.s64"), (uint64_t)-7, 2, (uint64_t)-3},
    {I64("rem.s64"), (uint64_t)-7, 2, (uint64_t)-1},
    {I64("min.s64"), ~0ull, 1, ~0ull},
    {I64("max.u64"), ~0ull, 1, ~0ull},
    {I64("shl.b64"), 1, 64, 0},
    {I64("shr.s64"), 1ull << 63, 100, ~0ull},
    {I64("shr.u64"), 1ull << 63, 63, 1},
    {I64("add.f64"), 0x3ff0000000000000, 0x4000000000000000, 0x4008000000000000},
    {I64("sub.rn.f64"), 0x3ff0000000000000, 0x4000000000000000, 0xbff0000000000000},
    {I64_1("sqrt.rn.f64"), 0x4000000000000000, 0, 0x3ff6a09e667f3bcd},
    {I64_1("cvt.s64.s32"), 0xfffffffe, 0, ~1ull},
    {I64_1("cvt.u64.u8"), 0x1ff, 0, 0xff},
    {I64_1("cvt.rn.f64.u64"), 1ull << 63, 0, 0x43e0000000000000},
    {I64_1("cvt.rzi.u64.f64"), 0x43f0000000000000, 0, ~0ull},
    {SET("setp.lt.f64"), 0x7ff8000000000000, 0, 0},
    {SET("setp.ltu.f64"), 0x7ff8000000000000, 0, 1},
    {SET("setp.neu.f64"), 0x8000000000000000, 0, 0}, /* -0 and 0 */
    {SET("setp.nan.f64"), 0x7ff8000000000000, 0, 1},
    {SET("setp.lt.s64"), ~0ull, 0, 1},
    {SET("setp.lo.u64"), ~0ull, 0, 0},
    {SET("setp.ge.u64"), ~0ull, 0, 1},
    {"setp.eq.s64 %p1, %rd1, 1;\nsetp.eq.and.s64 %p2, %rd2, 2, %p1;\nselp.b64 %rd4, 1, 0, %p2;\n", 1, 2, 1},
    {"mov.b64 {%r1, %r2}, %rd1;\nmov.b64 %rd4, {%r2, %r1};\n", 0x0000000100000002, 0, 0x0000000200000001},
    {"mov.b64 {_, %r2}, %rd1;\ncvt.u64.u32 %rd4, %r2;\n", 0x0000000100000002, 0, 1},
    {"{ .reg .b32 tmp; mov.b64 {tmp, %r2}, %rd1; }\ncvt.u64.u32 %rd4, %r2;\n", 0x0000000300000002, 0, 3},
    {"cvt.u32.u64 %r1, %rd1;\nmul.wide.s32 %rd4, %r1, -2;\n", 0xffffffff, 0, 2},
    {"cvt.u32.u64 %r1, %rd1;\nbfe.u32 %r2, %r1, 4, 8;\ncvt.u64.u32 %rd4, %r2;\n", 0xabcd, 0, 0xbc},
    {"cvt.u32.u64 %r1, %rd1;\nprmt.b32 %r2, %r1, 0, 0x0123;\ncvt.u64.u32 %rd4, %r2;\n", 0x01020304, 0, 0x04030201},
    {"fma.rn.f64 %rd4, %rd1, %rd1, %rd2;\n", 0x3ff0000000000001, 0xbff0000000000002, 0x3970000000000000},
    {"st.global.b64 [%rd3], %rd1;\natom.global.add.u64 %rd5, [%rd3], %rd2;\nld.global.b64 %rd4, [%rd3];\n"
     "add.s64 %rd4, %rd4, %rd5;\n",
     5, 7, 17},
    {"st.global.b64 [%rd3], %rd1;\natom.global.cas.b64 %rd5, [%rd3], 5, %rd2;\nld.global.b64 %rd4, [%rd3];\n", 5, 7,
     7},
    {"st.global.b64 [%rd3], %rd1;\nred.global.max.s64 [%rd3], %rd2;\nld.global.b64 %rd4, [%rd3];\n", ~0ull, 7, 7},
    {"setp.ne.s64 %p1, %rd1, 0;\n@%p1 bra $L1;\nmov.b64 %rd4, 5;\n$L1:\n@!%p1 add.s64 %rd4, %rd4, 1;\n", 0, 0, 6},
    {"setp.ne.s64 %p1, %rd1, 0;\n@%p1 bra $L1;\nmov.b64 %rd4, 5;\n$L1:\n@!%p1 add.s64 %rd4, %rd4, 1;\n", 1, 0, 0},
};

TEST(instructions_do_what_ptx_says)
{
    for (size_t i = 0; i < sizeof instructions / sizeof instructions[0]; i++) {
        struct ptxi *p = loaded(instructions[i].body);
        uint64_t got = 0;
        if (p == NULL || run(p, instructions[i].x, instructions[i].y, &got) != 0)
            test_fail(__FILE__, __LINE__, "%s%s", instructions[i].body, why);
        if (got != instructions[i].want)
            test_fail(__FILE__, __LINE__, "%#llx, not %#llx:\n%s", (unsigned long long)got,
                      (unsigned long long)instructions[i].want, instructions[i].body);
        ptxi_free(p);
    }
}

TEST(what_it_does_not_know_it_refuses_to_load)
{
    static const char *const bodies[][2] = {
        {"sqrt.approx.f32 %r1, %r2;\n", "approx"},
        {"add.ftz.f32 %r1, %r2, %r3;\n", "ftz"},
        {"tex.2d.v4.f32 %r1, %r2;\n", "unknown instruction tex"},
        {"mov.u32 %r1, %laneid.x;\n", "%laneid"},
        {"mov.u64 %rd1, elsewhere;\n", "operand elsewhere"},
        {".branchtargets $L1;\n", "unknown line .branchtargets"},
        {"setp.lt.s32 %p1|%p2, %r1, %r2;\n", "%p1|%p2"},
    };
    for (size_t i = 0; i < sizeof bodies / sizeof bodies[0]; i++) {
        CHECK(loaded(bodies[i][0]) == NULL);
        CHECK_SAYS(why, bodies[i][1]);
    }
    CHECK(ptxi_load(head, "two", why, sizeof why) == NULL);
    CHECK_SAYS(why, "no such kernel");
}

TEST(every_access_is_checked)
{
    static const char *const bodies[][2] = {
        {"ld.global.b64 %rd4, [%rd3+8];\n", "stray access"},
        {"st.global.b32 [%rd3+6], %r1;\n", "misaligned access"},
        {"st.global.v2.b64 [%rd3], {%rd1, %rd2};\n", "access"},
        {"ld.param.b64 %rd4, [one_param_0+32];\n", "stray access"},
        {"ld.shared.b32 %r1, [0];\n", "stray access"},
        {"st.param.b64 [one_param_0], %rd1;\n", "stray access"},
        {"div.s64 %rd4, %rd1, %rd2;\n", "division of a whole number by zero"},
        {"$L1:\nbra $L1;\n", "does not end"},
    };
    for (size_t i = 0; i < sizeof bodies / sizeof bodies[0]; i++) {
        _Alignas(16) uint64_t out[2] = {0};
        struct ptxi *p = loaded(bodies[i][0]);
        if (p == NULL) test_fail(__FILE__, __LINE__, "%s%s", bodies[i][0], why);
        CHECK_EQ(run(p, 1, 0, out), -1);
        CHECK_SAYS(why, bodies[i][1]);
        ptxi_free(p);
    }
}

/* ---- nvcc ------------------------------------------------------------------------------------------------------ */

enum { COUNT = 1003, ROOM = 1024 };

static char *sample_ptx(void)
{
    static const char file[] = "build/obj/cusim/sample.ptx";
    FILE *f = fopen(file, "r");
    char *text = calloc(1, 1 << 20);

    if (f == NULL) test_skip("nvcc is not installed here");
    CHECK(text != NULL && fread(text, 1, (1 << 20) - 1, f) > 0);
    fclose(f);
    return text;
}

static struct ptxi *sample(const char *ptx, const char *part)
{
    char name[160];
    struct ptxi *p;

    if (!ptxi_find_entry(ptx, part, name, sizeof name)) test_fail(__FILE__, __LINE__, "no %s", part);
    p = ptxi_load(ptx, name, why, sizeof why);
    if (p == NULL) test_fail(__FILE__, __LINE__, "%s: %s", name, why);
    return p;
}

static float next_float(uint64_t *random) { return (float)(rng_next(random) >> 40) * 0x1p-23f - 1; }

static struct ptxi_count run_sample(const struct ptxi *p, const void *arguments, size_t size, unsigned blocks,
                                    const struct ptxi_range *ranges, unsigned range_count, uint64_t seed)
{
    struct ptxi_launch l = {arguments, size, {blocks, 1, 1}, {SAMPLE_THREADS, 1, 1}, ranges, range_count, seed};
    struct ptxi_count count = {0};

    CHECK_EQ(ptxi_arguments_size(p), size);
    if (ptxi_run(p, &l, &count, why, sizeof why) != 0) test_fail(__FILE__, __LINE__, "%s", why);
    return count;
}

static void fill_half(uint16_t *to, float *as_float, bool is_bf16, float x)
{
    *to = is_bf16 ? half_narrow_bf16(x) : half_narrow_f16(x);
    *as_float = is_bf16 ? half_widen_bf16(*to) : half_widen_f16(*to);
}

static void check_add(const char *ptx, const char *part, size_t each)
{
    static _Alignas(16) float sum[ROOM], want[ROOM], g[ROOM];
    static _Alignas(16) uint16_t half[ROOM];
    struct ptxi *p = sample(ptx, part);
    uint64_t random = each;

    for (size_t i = 0; i < COUNT; i++) {
        g[i] = next_float(&random);
        if (each == 2) fill_half(&half[i], &g[i], strstr(part, "bf16") != NULL, g[i]);
        sum[i] = next_float(&random);
        want[i] = sum[i] + g[i] * 0.25f;
    }
    struct sample_add a = {COUNT, sum, each == 2 ? (const void *)half : (const void *)g, 0.25f, 0};
    struct ptxi_range ranges[] = {{sum, COUNT * sizeof sum[0]}, {each == 2 ? (void *)half : (void *)g, COUNT * each}};
    struct ptxi_count c = run_sample(p, &a, sizeof a, 3, ranges, 2, 7);
    CHECK_EQ(memcmp(sum, want, COUNT * sizeof sum[0]), 0);
    CHECK_EQ(c.loaded, COUNT * (4 + each));
    CHECK_EQ(c.stored, COUNT * 4);
    ptxi_free(p);
}

TEST(nvcc_adds_as_c_does_and_moves_no_byte_too_many)
{
    char *ptx = sample_ptx();

    check_add(ptx, "add_kernelIf", 4);
    check_add(ptx, "add_kernelI4bf16", 2);
    check_add(ptx, "add_kernelI3f16", 2);
    free(ptx);
}

TEST(nvcc_steps_as_c_does_and_moves_no_byte_too_many)
{
    enum { FROM, TO, MEAN, VAR, SUM, ARRAYS, LONG = 9000 };
    static float arrays[ARRAYS][LONG], want[ARRAYS][LONG];
    char *ptx = sample_ptx();
    struct ptxi *p = sample(ptx, "adam_kernel");
    struct sample_adam a = {
        .count = 2, .rate = 1e-2f, .beta1 = 0.9f, .rest1 = 0.1f, .beta2 = 0.99f, .rest2 = 0.01f, .epsilon = 1e-6f};
    uint64_t random = 3;

    for (size_t i = 0; i < LONG; i++) {
        for (int k = 0; k < ARRAYS; k++) arrays[k][i] = next_float(&random);
        float g = arrays[SUM][i], v = fabsf(arrays[VAR][i]);
        arrays[VAR][i] = v;
        want[MEAN][i] = a.beta1 * arrays[MEAN][i] + a.rest1 * g;
        want[VAR][i] = a.beta2 * v + a.rest2 * g * g;
        want[TO][i] = arrays[FROM][i] - a.rate * (want[MEAN][i] / (sqrtf(want[VAR][i]) + a.epsilon));
    }
    for (int t = 0; t < 2; t++) { /* one tensor of one element, one of the rest */
        size_t at = (size_t)t, n = t == 0 ? 1 : LONG - 1;
        a.tensors[t] = (struct sample_tensor){&arrays[FROM][at], &arrays[TO][at],  &arrays[MEAN][at],
                                              &arrays[VAR][at],  &arrays[SUM][at], n};
        a.first[t + 1] = a.first[t] + (uint32_t)((n + SAMPLE_CHUNK - 1) / SAMPLE_CHUNK);
    }
    struct ptxi_range range = {arrays, sizeof arrays};
    struct ptxi_count c = run_sample(p, &a, sizeof a, a.first[2], &range, 1, 0);
    for (int k = TO; k <= VAR; k++) CHECK_EQ(memcmp(arrays[k], want[k], sizeof want[k]), 0);
    CHECK_EQ(c.loaded, LONG * 16);
    CHECK_EQ(c.stored, LONG * 12);
    ptxi_free(p);
    free(ptx);
}

TEST(barriers_and_shared_memory_of_nvcc_work)
{
    static _Alignas(16) float x[800], sum;
    char *ptx = sample_ptx();
    struct ptxi *p = sample(ptx, "total_kernelILb1");

    for (size_t i = 0; i < 800; i++) x[i] = (float)(i % 8);
    struct sample_norm a = {800, x, &sum};
    struct ptxi_range ranges[] = {{x, sizeof x}, {&sum, sizeof sum}};
    (void)run_sample(p, &a, sizeof a, 1, ranges, 2, 0);
    CHECK_EQ(sum, 100 * 140);
    ptxi_free(p);
    free(ptx);
}

/* ---- NVRTC: programs of the updater language ------------------------------------------------------------------- */

enum { ELEMENTS = 70, SLOTS = 2 };

struct writer {
    uint64_t random;
    struct buf text;
};

static unsigned below(struct writer *w, unsigned n) { return (unsigned)(rng_next(&w->random) % n); }

static void leaf(struct writer *w)
{
    static const char *const names[] = {"stored", "grad", "s0", "s1", "p0", "step", "stored", "grad", "s0"};
    static const char *const numbers[] = {"0", "1", "0.5", "3", "1e-8", "1e30", "0.1"};

    if (below(w, 4) == 0) buf_text(&w->text, numbers[below(w, 7)]);
    else buf_text(&w->text, names[below(w, 9)]);
}

static void expression(struct writer *w, unsigned depth)
{
    static const char *const signs[] = {" + ", " - ", " * ",  " / ",  " + ", " - ",
                                        " * ", " < ", " <= ", " == ", " != "};
    static const struct {
        const char *name;
        unsigned operands;
    } functions[] = {{"min", 2}, {"max", 2}, {"abs", 1}, {"sqrt", 1}, {"sign", 1}, {"clamp", 3}, {"where", 3},
                     {"exp", 1}, {"log", 1}, {"tanh", 1}};

    if (depth == 0 || below(w, 5) == 0) {
        leaf(w);
    } else if (below(w, 3) != 0) {
        buf_text(&w->text, "(");
        expression(w, depth - 1);
        buf_text(&w->text, signs[below(w, 11)]);
        expression(w, depth - 1);
        buf_text(&w->text, ")");
    } else {
        unsigned f = below(w, below(w, 4) == 0 ? 10 : 7); /* exp, log and tanh are long: some programs have them */
        buf_format(&w->text, "%s(", functions[f].name);
        for (unsigned k = 0; k < functions[f].operands; k++) {
            if (k > 0) buf_text(&w->text, ", ");
            expression(w, depth - 1);
        }
        buf_text(&w->text, ")");
    }
}

/* Whatever is declared is used, or the text would be refused. */
static void make_text(struct writer *w, uint64_t seed)
{
    w->random = seed;
    buf_clear(&w->text);
    buf_text(&w->text, "param p0 = 0.3\nslot s0 = 0, s1 = stored\nx = ");
    expression(w, 3);
    buf_text(&w->text, "\ns0 = 0.9 * s0 + ");
    expression(w, 2);
    buf_text(&w->text, "\ns1 = ");
    expression(w, 2);
    buf_text(&w->text, "\nstored = p0 * s1 + x - grad * ");
    expression(w, 3);
    buf_add(&w->text, "", 1);
    CHECK(!w->text.failed);
}

static double awkward(uint64_t *random)
{
    static const double list[] = {0, -0.0, 1, -1, 1e30, -1e30, 0x1p-126, 0x1p-149, 0x1.fffffep127, (double)INFINITY,
                                  -(double)INFINITY, (double)NAN};
    uint64_t r = rng_next(random);
    return r % 5 == 0 ? list[r / 5 % 12] : (double)(r >> 11) * 0x1p-52 - 1;
}

/* Both types in one: sum, last, stored and slots before a step, and what the CPU and the PTX make of them. */
union values {
    float f32[ELEMENTS];
    double f64[ELEMENTS];
};

struct trial {
    bool is_float;
    union values sum, last, cpu[1 + SLOTS], gpu[1 + SLOTS], grad;
};

static void put(const struct trial *t, union values *v, size_t i, double x)
{
    if (t->is_float) v->f32[i] = (float)x;
    else v->f64[i] = x;
}

static double at(const struct trial *t, const union values *v, size_t i)
{
    return t->is_float ? (double)v->f32[i] : v->f64[i];
}

static void begin(struct trial *t, uint64_t *random, bool has_sum, bool has_last)
{
    for (size_t i = 0; i < ELEMENTS; i++) {
        put(t, &t->sum, i, awkward(random));
        put(t, &t->last, i, awkward(random));
        for (int k = 0; k <= SLOTS; k++) put(t, &t->cpu[k], i, awkward(random));
        double a = has_sum ? at(t, &t->sum, i) : 0, b = has_last ? at(t, &t->last, i) : 0;
        put(t, &t->grad, i, !has_sum ? b : !has_last ? a : t->is_float ? (double)((float)a + (float)b) : a + b);
    }
    memcpy(t->gpu, t->cpu, sizeof t->cpu);
}

static void on_cpu(struct trial *t, const struct program *p, const double *scalars)
{
    float *f32[PROGRAM_SCRATCH0] = {t->cpu[0].f32, t->grad.f32, t->cpu[1].f32, t->cpu[2].f32};
    double *f64[PROGRAM_SCRATCH0] = {t->cpu[0].f64, t->grad.f64, t->cpu[1].f64, t->cpu[2].f64};

    if (t->is_float) program_run_f32(p, scalars, f32, ELEMENTS);
    else program_run_f64(p, scalars, f64, ELEMENTS);
}

static struct program_arguments arguments_of(struct trial *t, const struct program *p, const double *scalars,
                                             bool has_sum, bool has_last)
{
    struct program_arguments a = {.count = ELEMENTS, .sum = has_sum ? &t->sum : NULL, .last = has_last ? &t->last : NULL,
                                  .from = &t->gpu[0], .to = &t->gpu[0], .slots = {&t->gpu[1], &t->gpu[2]}};

    for (unsigned i = 0; i < p->scalar_count; i++) {
        if (t->is_float) a.scalars.f32[i] = (float)scalars[i];
        else a.scalars.f64[i] = scalars[i];
    }
    return a;
}

/* A float's arguments end before the room that a double's scalars take. */
static struct ptxi_count on_gpu(struct trial *t, const char *ptx, const struct program_arguments *a)
{
    struct ptxi *p = ptxi_load(ptx, PROGRAM_KERNEL, why, sizeof why);
    struct ptxi_range range = {t, sizeof *t};
    struct ptxi_count count = {0};

    if (p == NULL) test_fail(__FILE__, __LINE__, "%s\n%s", why, ptx);
    CHECK(ptxi_arguments_size(p) <= sizeof *a);
    struct ptxi_launch l = {a, ptxi_arguments_size(p), {2, 1, 1}, {16, 1, 1}, &range, 1, 5};
    if (ptxi_run(p, &l, &count, why, sizeof why) != 0) test_fail(__FILE__, __LINE__, "%s\n%s", why, ptx);
    ptxi_free(p);
    return count;
}

static void compare(const struct trial *t, const char *text)
{
    for (int k = 0; k <= SLOTS; k++)
        for (size_t i = 0; i < ELEMENTS; i++) {
            double got = at(t, &t->gpu[k], i), want = at(t, &t->cpu[k], i);
            if (memcmp(&got, &want, sizeof got) != 0 && !(isnan(got) && isnan(want)))
                test_fail(__FILE__, __LINE__, "array %d, element %zu: %a, not %a, in %s of\n%s", k, i, got, want,
                          t->is_float ? "f32" : "f64", text);
        }
}

static struct ptxi_count try_program(const struct program *p, const char *text, uint64_t seed, bool is_float,
                                     bool has_sum, bool has_last)
{
    static struct trial t;
    double params[PROGRAM_PARAMS_MAX], moments[EXPR_MOMENT_COUNT] = {3, 2, 4, 1}, scalars[PROGRAM_SCALARS_MAX] = {0};
    struct buf cuda = {0};
    uint64_t random = seed;

    t.is_float = is_float;
    for (unsigned i = 0; i < p->param_count; i++) params[i] = p->params[i].standard;
    program_scalars(p, params, moments, scalars);
    program_cuda(p, is_float ? DTYPE_f32 : DTYPE_f64, &cuda);
    buf_add(&cuda, "", 1);
    CHECK(!cuda.failed);
    char *ptx = nvrtc_ptx((const char *)cuda.at);
    begin(&t, &random, has_sum, has_last);
    struct program_arguments a = arguments_of(&t, p, scalars, has_sum, has_last);
    on_cpu(&t, p, scalars);
    struct ptxi_count count = on_gpu(&t, ptx, &a);
    compare(&t, text);
    free(ptx);
    buf_fini(&cuda);
    return count;
}

/* 200 in a release build; a sanitizer's build looks at the interpreter's own accesses, for which fewer do. */
#if defined(__has_feature)
#define SLOW (__has_feature(address_sanitizer) || __has_feature(thread_sanitizer))
#elif defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SLOW 1
#else
#define SLOW 0
#endif
enum { PROGRAMS = SLOW ? 20 : 200 };

TEST(random_programs_give_the_same_bits_through_nvrtc_as_on_the_cpu)
{
    struct writer w = {0};
    unsigned tried = 0;

    for (uint64_t seed = 1; tried < PROGRAMS; seed++) {
        struct program *p = NULL;
        make_text(&w, seed);
        if (program_new(bytes_text((const char *)w.text.at), &p, &error) != STATUS_OK) {
            CHECK_SAYS(error.text, "too ");
            continue;
        }
        (void)try_program(p, (const char *)w.text.at, seed, seed % 4 != 0, seed % 3 != 0, seed % 3 != 1);
        program_free(p);
        tried++;
    }
    buf_fini(&w.text);
}

/* Loads and stores of an element in f32, with a sum and no last: what gpu/program.h's program_bytes counts. */
TEST(generated_kernels_move_as_many_bytes_as_program_bytes_says)
{
    static const char *const texts[] = {
        "stored += grad * 2",
        "slot m = 0; m = 0.9 * m - 0.1 * grad; stored += m",
        ("slot m = 0, v = 0\nm = 0.9 * m + 0.1 * grad\nv = 0.999 * v + 0.001 * (grad * grad)\n"
         "stored -= 0.1 * (m / (sqrt(v) + 1e-8))"),
        "slot last = 0; last = grad; stored -= grad",
    };
    static const struct {
        unsigned loads, stores;
    } wanted[] = {{2, 1}, {3, 2}, {4, 3}, {2, 2}};

    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        struct program *p = NULL;
        CHECK_OK(program_new(bytes_text(texts[i]), &p, &error), &error);
        struct ptxi_count c = try_program(p, texts[i], i, true, true, false);
        CHECK_EQ(c.loaded, ELEMENTS * 4 * wanted[i].loads);
        CHECK_EQ(c.stored, ELEMENTS * 4 * wanted[i].stores);
        CHECK_EQ(c.loaded + c.stored, ELEMENTS * program_bytes(p, DTYPE_f32));
        program_free(p);
    }
}

/* ---- through the stand-in for the runtime ---------------------------------------------------------------------- */

static const char doubling[] =
    "struct arguments { unsigned long long count; float *x; };\n"
    "extern \"C\" __global__ void doubling(const __grid_constant__ arguments a)\n"
    "{\n"
    "    unsigned long long i = blockIdx.x * (unsigned long long)blockDim.x + threadIdx.x;\n"
    "    if (i < a.count) a.x[i] = 2 * a.x[i];\n"
    "}\n";

TEST(a_library_of_ptx_is_loaded_launched_and_checked)
{
    struct arguments {
        unsigned long long count;
        float *x;
    } a = {100, NULL};
    void *args[] = {&a};
    float host[100];
    cudaLibrary_t library = NULL;
    cudaKernel_t kernel = NULL;
    cudaStream_t s = NULL;
    char *ptx = nvrtc_ptx(doubling);

    cusim_reset(1, 1 << 20, CUSIM_LAZY, 1);
    CHECK_EQ(cudaStreamCreate(&s), cudaSuccess);
    CHECK_EQ(cudaMalloc((void **)&a.x, sizeof host), cudaSuccess);
    for (int i = 0; i < 100; i++) host[i] = (float)i;
    CHECK_EQ(cudaMemcpy(a.x, host, sizeof host, cudaMemcpyHostToDevice), cudaSuccess);
    CHECK_EQ(cudaLibraryLoadData(&library, "no PTX", NULL, NULL, 0, NULL, NULL, 0), cudaErrorInvalidKernelImage);
    CHECK_EQ(cudaLibraryLoadData(&library, ptx, NULL, NULL, 0, NULL, NULL, 0), cudaSuccess);
    CHECK_EQ(cudaLibraryGetKernel(&kernel, library, "tripling"), cudaErrorSymbolNotFound);
    CHECK_EQ(cudaLibraryGetKernel(&kernel, library, "doubling"), cudaSuccess);
    CHECK_EQ(cudaLaunchKernel(kernel, (dim3){4, 1, 1}, (dim3){32, 1, 1}, args, 0, s), cudaSuccess);
    CHECK_EQ(cudaLibraryUnload(library), cudaErrorIllegalState); /* its kernel has not run */
    CHECK_EQ(cudaMemcpyAsync(host, a.x, sizeof host, cudaMemcpyDeviceToHost, s), cudaSuccess);
    for (int i = 0; i < 100; i++) CHECK_EQ(host[i], 2 * i);
    a.count = 101;
    CHECK_EQ(cudaLaunchKernel(kernel, (dim3){4, 1, 1}, (dim3){32, 1, 1}, args, 0, s), cudaSuccess);
    CHECK_EQ(cudaStreamSynchronize(s), cudaErrorIllegalAddress);
    (void)cudaLibraryUnload(library);
    cusim_reset(0, 0, CUSIM_LAZY, 1);
    free(ptx);
}
