/* The CUDA text of programs: what is in it, and, where NVRTC is present, that it compiles to PTX, which needs no GPU, moves
 * no more memory than it must, and contracts nothing. */
#include "gpu/program.h"
#include "tests/lib/nvrtc.h"
#include "tests/lib/test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct error error;

static struct buf printed(const char *text, enum dtype type)
{
    struct program *p = NULL;
    struct buf b = {0};

    CHECK_OK(program_new(bytes_text(text), &p, &error), &error);
    program_cuda(p, type, &b);
    buf_add(&b, "", 1);
    CHECK(!b.failed);
    program_free(p);
    return b;
}

TEST(a_kernel_is_printed_from_the_program)
{
    struct buf b = printed("param lr = 0.5\nslot mine = 0\nmine = 0.25 * mine + grad; stored -= lr * mine", DTYPE_f32);

    CHECK_TEXT((const char *)b.at,
               "typedef float ELEMENT;\n"
               "typedef float REAL;\n"
               "#define REAL_ROOT sqrtf\n"
               "#define REAL_SIZE fabsf\n"
               "#define WIDEN \n"
               "#define NARROW \n"
               "struct arguments {\n"
               "    unsigned long long count;\n"
               "    const REAL *sum;\n"
               "    const ELEMENT *last, *from;\n"
               "    ELEMENT *to;\n"
               "    REAL *master, *slots[8], scalars[48];\n"
               "};\n"
               "extern \"C\" __global__ void __launch_bounds__(256) program_step(const __grid_constant__ arguments a)\n"
               "{\n"
               "    unsigned long long stride = gridDim.x * (unsigned long long)blockDim.x;\n"
               "    for (unsigned long long i = blockIdx.x * (unsigned long long)blockDim.x + threadIdx.x; i < a.count;\n"
               "         i += stride) {\n"
               "        REAL p0 = a.from[i];\n"
               "        REAL p1 = a.sum == 0 ? WIDEN(a.last[i]) : a.last == 0 ? a.sum[i] : a.sum[i] + WIDEN(a.last[i]);\n"
               "        REAL p2 = a.slots[0][i];\n"
               "        p2 = ((a.scalars[0]) * (p2) + (p1));\n"
               "        p0 = ((p0) - (a.scalars[1]) * (p2));\n"
               "        a.to[i] = NARROW(p0);\n"
               "        a.slots[0][i] = p2;\n"
               "    }\n"
               "}\n");
    buf_fini(&b);
}

/* So a cache by the text's hash holds when params change, and nothing a user writes reaches a compiler. */
TEST(names_numbers_and_comments_of_the_user_are_not_printed)
{
    struct buf a = printed("param secret_rate = 0.123 # #include \"/etc/passwd\"\nslot hidden = 0\n"
                           "hidden += grad; stored -= secret_rate * hidden", DTYPE_f64);
    struct buf b = printed("slot m = stored\nm = m + grad\nstored = stored - 0.77 * m", DTYPE_f64);

    CHECK_TEXT((const char *)a.at, (const char *)b.at);
    CHECK(strstr((const char *)a.at, "secret") == NULL);
    CHECK(strstr((const char *)a.at, "hidden") == NULL);
    CHECK(strstr((const char *)a.at, "0.123") == NULL);
    CHECK(strstr((const char *)a.at, "include") == NULL);
    buf_fini(&a);
    buf_fini(&b);
}

TEST(every_operation_has_a_formula_of_its_operands)
{
    for (unsigned op = 0; op < PROGRAM_OPS_END; op++) {
        const char *formula = program_op_formula((enum program_op)op), *form = program_op_form((enum program_op)op);
        CHECK(formula != NULL);
        for (unsigned k = 0; k < PROGRAM_OPERANDS_MAX; k++) {
            const char letter[] = {'(', (char)('A' + k), ')', '\0'};
            CHECK_EQ(strstr(formula, letter) != NULL, k < strlen(form));
        }
    }
    CHECK_TEXT(program_op_formula(PROGRAM_mul_add_uvv), "((A) * (B) + (C))");
    CHECK_TEXT(program_op_name(PROGRAM_mul_add_uvv), "mul_add");
    CHECK_TEXT(program_op_form(PROGRAM_mul_add_uvv), "uvv");
}

/* ---- NVRTC, when it is there ----------------------------------------------------------------------------------------- */

static unsigned occurrences(const char *text, const char *part)
{
    unsigned n = 0;
    for (const char *at = text; (at = strstr(at, part)) != NULL; at++) n++;
    return n;
}

/* Bytes moved for an element, beside the gradient's. */
static const struct {
    const char *text;
    unsigned loads, stores;
} kernels[] = {
    {"stored += grad * 2", 1, 1},
    {"slot m = 0; m = 0.9 * m - 0.1 * grad; stored += m", 2, 2},
    {"slot m = 0, v = 0\nm = 0.9 * m + 0.1 * grad\nv = 0.999 * v + 0.001 * (grad * grad)\n"
     "stored -= 0.1 * (m / (sqrt(v) + 1e-8))", 3, 3},
    {"slot last = 0; last = grad; stored = where(abs(last) <= 1, sign(grad), clamp(grad, -stored, stored))", 1, 2},
    {"stored = exp(grad) + log(abs(grad)) * tanh(stored)", 1, 1},
    {"stored = min(grad, 1) + max(stored, -1) + (grad < 1) + (grad >= stored) + (grad == 0) + (grad != 0) - -grad / 3", 1, 1},
};

/* The compiler may make loops of their own for sum alone, last alone and both: then there are three of everything, and
 * gradients are loaded once, once and twice. */
static bool moves_least(unsigned loads, unsigned stores, unsigned loads_wanted, unsigned stores_wanted)
{
    unsigned loops = stores / stores_wanted, gradients = loops < 3 ? 4 : loops / 3 * 4;
    return loops > 0 && stores % stores_wanted == 0 && loads <= loops * loads_wanted + gradients;
}

TEST(kernels_compile_to_ptx_that_moves_no_more_than_it_must)
{
    need_nvrtc();
    for (size_t i = 0; i < sizeof kernels / sizeof kernels[0]; i++)
        for (unsigned wide = 0; wide < 2; wide++) {
            struct buf text = printed(kernels[i].text, wide ? DTYPE_f64 : DTYPE_f32);
            char *ptx = nvrtc_ptx((const char *)text.at);
            CHECK_SAYS(ptx, ".entry program_step");
            unsigned loads = occurrences(ptx, "ld.global"), stores = occurrences(ptx, "st.global");
            if (!moves_least(loads, stores, kernels[i].loads, kernels[i].stores))
                test_fail(__FILE__, __LINE__, "%u loads, %u stores of %s", loads, stores, kernels[i].text);
            CHECK_EQ(occurrences(ptx, "fma.rn"), 0);
            CHECK_EQ(occurrences(ptx, "approx"), 0);
            free(ptx);
            buf_fini(&text);
        }
}

/* Each operation in each form, as a program that is nothing but it. */
TEST(every_operation_compiles)
{
    static const char *const texts[] = {
        "stored = %s + sqrt(stored)", "stored = min(stored, %s)", "stored = max(%s, stored)", "stored = clamp(stored, %s, 3)",
        "stored = clamp(1, stored, %s)", "stored = clamp(stored, 1, 2) * %s", "stored = where(%s < 1, stored, 2)",
        "stored = where(stored, %s, stored)", "stored = where(stored, 3, %s)", "stored = 1 - stored * %s",
        "stored = stored * %s - 1", "stored = 2 * stored - 3 * (%s)", "stored = stored * stored + %s",
        "stored = sqrt(stored) + %s", "stored = 1 / (%s) / 2", "stored = 1 <= %s", "stored = (%s) != stored",
        "stored = abs(-(%s)) + exp(log(stored)) + sign(stored) + tanh(stored)",
    };

    need_nvrtc();
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++)
        for (unsigned k = 0; k < 3; k++) {
            static const char *const operands[] = {"grad", "2.5", "grad + stored"};
            char line[200];
            snprintf(line, sizeof line, texts[i], operands[k]);
            struct buf text = printed(line, i % 2 ? DTYPE_f64 : DTYPE_f32);
            free(nvrtc_ptx((const char *)text.at));
            buf_fini(&text);
        }
}
