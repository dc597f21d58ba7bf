/* Prints a program as CUDA text. What is printed is made of the program's numbers and of the formulas in program_ops.h and
 * program_math.h; names and numbers of the user are not known here, so nothing of theirs can reach a compiler. */
#include "gpu/program.h"

#include <string.h>

/* ---- formulas as text: the operands are A, B, C, D, E ---------------------------------------------------------------- */

#define TEXT_OF(...) #__VA_ARGS__
#define TEXT(...) TEXT_OF(__VA_ARGS__)

#define LETTERS_v(F) F(A)
#define LETTERS_u(F) F(A)
#define LETTERS_vv(F) F(A, B)
#define LETTERS_vu(F) F(A, B)
#define LETTERS_uv(F) F(A, B)
#define LETTERS_vvv(F) F(A, B, C)
#define LETTERS_vvu(F) F(A, B, C)
#define LETTERS_vuv(F) F(A, B, C)
#define LETTERS_vuu(F) F(A, B, C)
#define LETTERS_uvv(F) F(A, B, C)
#define LETTERS_uvu(F) F(A, B, C)
#define LETTERS_uuv(F) F(A, B, C)
#define LETTERS_uvuv(F) F(A, B, C, D)
#define LETTERS_vuvvu(F) F(A, B, C, D, E)

static const char *const formulas[PROGRAM_OPS_END] = {
#define FORMULA(name, form) [PROGRAM_##name##_##form] = TEXT(LETTERS_##form(DO_##name)),
    PROGRAM_OPS(FORMULA)
#undef FORMULA
};

const char *program_op_formula(enum program_op op) { return formulas[op]; }

#define MATH(...) #__VA_ARGS__
static const char math_text[] =
#include "gpu/program_math.h"
;

static const char math_prelude[] =
    "#define MATH_INLINE static __device__ __forceinline__\n"
    "MATH_INLINE unsigned long long math_bits(double x) { return (unsigned long long)__double_as_longlong(x); }\n"
    "MATH_INLINE double math_real(unsigned long long bits) { return __longlong_as_double((long long)bits); }\n"
    "#define REAL_EXP math_exp\n"
    "#define REAL_LOG math_log\n"
    "#define REAL_TANH math_tanh\n";

/* ---- a kernel ---------------------------------------------------------------------------------------------------- */

static bool needs_math(const struct program *p)
{
    for (unsigned i = 0; i < p->insn_count; i++)
        if (p->insns[i].op == PROGRAM_exp_v || p->insns[i].op == PROGRAM_log_v || p->insns[i].op == PROGRAM_tanh_v)
            return true;
    return false;
}

static void print_operand(const struct program_insn *q, unsigned k, struct buf *out)
{
    if (program_op_form((enum program_op)q->op)[k] == 'v') buf_format(out, "p%u", (unsigned)q->from[k]);
    else buf_format(out, "a.scalars[%u]", (unsigned)q->from[k]);
}

static bool in_word(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
}

/* A word of one letter is an operand, everything else is printed as it is. */
static void print_instruction(const struct program_insn *q, struct buf *out)
{
    buf_format(out, "        p%u = ", (unsigned)q->to);
    for (const char *f = formulas[q->op]; *f != '\0';) {
        size_t n = 1;
        while (in_word(f[0]) && in_word(f[n])) n++;
        if (n == 1 && f[0] >= 'A' && f[0] <= 'E') print_operand(q, (unsigned)(f[0] - 'A'), out);
        else buf_add(out, f, n);
        f += n;
    }
    buf_text(out, ";\n");
}

static void print_loads(const struct program *p, struct buf *out)
{
    buf_text(out, "        REAL p0 = a.from[i];\n"
                  "        REAL p1 = a.sum == 0 ? a.last[i] : a.last == 0 ? a.sum[i] : a.sum[i] + a.last[i];\n");
    for (unsigned i = 0; i < p->slot_count; i++) {
        if (p->reads[PROGRAM_SLOT0 + i]) buf_format(out, "        REAL p%u = a.slots[%u][i];\n", PROGRAM_SLOT0 + i, i);
        else buf_format(out, "        REAL p%u;\n", PROGRAM_SLOT0 + i);
    }
    for (unsigned i = 0; i < p->register_count; i++) buf_format(out, "        REAL p%u;\n", PROGRAM_SCRATCH0 + i);
}

static void print_stores(const struct program *p, struct buf *out)
{
    buf_text(out, "        a.to[i] = p0;\n");
    for (unsigned i = 0; i < p->slot_count; i++)
        if (p->writes[PROGRAM_SLOT0 + i]) buf_format(out, "        a.slots[%u][i] = p%u;\n", i, PROGRAM_SLOT0 + i);
}

void program_cuda(const struct program *p, enum dtype type, struct buf *out)
{
    bool is_float = type == DTYPE_f32;

    buf_format(out, "typedef %s REAL;\n#define REAL_ROOT %s\n#define REAL_SIZE %s\n", is_float ? "float" : "double",
               is_float ? "sqrtf" : "sqrt", is_float ? "fabsf" : "fabs");
    if (needs_math(p)) buf_format(out, "%s%s\n", math_prelude, math_text);
    buf_format(out, "struct arguments {\n"
                    "    unsigned long long count;\n"
                    "    const REAL *sum, *last, *from;\n"
                    "    REAL *to, *slots[%d], scalars[%d];\n"
                    "};\n", PROGRAM_SLOTS_MAX, PROGRAM_SCALARS_MAX);
    buf_text(out, "extern \"C\" __global__ void __launch_bounds__(256) " PROGRAM_KERNEL "(const __grid_constant__ arguments a)\n"
                  "{\n"
                  "    unsigned long long stride = gridDim.x * (unsigned long long)blockDim.x;\n"
                  "    for (unsigned long long i = blockIdx.x * (unsigned long long)blockDim.x + threadIdx.x; i < a.count;\n"
                  "         i += stride) {\n");
    print_loads(p, out);
    for (unsigned i = 0; i < p->insn_count; i++) print_instruction(&p->insns[i], out);
    print_stores(p, out);
    buf_text(out, "    }\n}\n");
}
