/* Prints a program as CUDA text. What is printed is made of the program's numbers and of the formulas in program_ops.h,
 * program_math.h and half_ops.h; names and numbers of the user are not known here, so nothing of theirs can reach a
 * compiler. */
#include "gpu/program.h"

#include <string.h>

/* ---- operations; the operands of a formula are A, B, C, D, E --------------------------------------------------------- */

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

static const struct op_facts {
    const char *name, *form, *formula;
} op_facts[PROGRAM_OPS_END] = {
#define OP_ROW(name, form) [PROGRAM_##name##_##form] = {#name, #form, TEXT(LETTERS_##form(DO_##name))},
    PROGRAM_OPS(OP_ROW)
#undef OP_ROW
};

const char *program_op_name(enum program_op op) { return op_facts[op].name; }
const char *program_op_form(enum program_op op) { return op_facts[op].form; }
const char *program_op_formula(enum program_op op) { return op_facts[op].formula; }

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

#define HALF(...) #__VA_ARGS__
static const char half_text[] =
#include "gpu/half_ops.h"
;

static const char half_prelude[] =
    "typedef unsigned short uint16_t;\n"
    "typedef unsigned int uint32_t;\n"
    "#define HALF_INLINE static __device__ __forceinline__\n"
    "HALF_INLINE float half_float(uint32_t bits) { return __uint_as_float(bits); }\n"
    "HALF_INLINE uint32_t half_bits(float f) { return __float_as_uint(f); }\n";

/* ---- types ------------------------------------------------------------------------------------------------------- */

/* Elements in memory and in the arithmetic. */
static const struct real {
    const char *element, *real, *root, *size, *widen, *narrow;
} reals[DTYPE_COUNT] = {
    [DTYPE_f32] = {"float", "float", "sqrtf", "fabsf", "", ""},
    [DTYPE_f64] = {"double", "double", "sqrt", "fabs", "", ""},
    [DTYPE_f16] = {"unsigned short", "float", "sqrtf", "fabsf", "half_widen_f16", "half_narrow_f16"},
    [DTYPE_bf16] = {"unsigned short", "float", "sqrtf", "fabsf", "half_widen_bf16", "half_narrow_bf16"},
};

static void print_types(enum dtype type, bool needs_math, struct buf *out)
{
    const struct real *r = &reals[type];

    buf_format(out, "typedef %s ELEMENT;\ntypedef %s REAL;\n#define REAL_ROOT %s\n#define REAL_SIZE %s\n", r->element,
               r->real, r->root, r->size);
    if (dtype_is_half(type)) buf_format(out, "%s%s\n", half_prelude, half_text);
    buf_format(out, "#define WIDEN %s\n#define NARROW %s\n", r->widen, r->narrow);
    if (needs_math) buf_format(out, "%s%s\n", math_prelude, math_text);
}

/* ---- a kernel ---------------------------------------------------------------------------------------------------- */

bool program_equal(const struct program *p, const struct program *other)
{
    return p->insn_count == other->insn_count && p->slot_count == other->slot_count &&
           memcmp(p->insns, other->insns, p->insn_count * sizeof p->insns[0]) == 0;
}

static bool needs_math(const struct program *p)
{
    for (unsigned i = 0; i < p->insn_count; i++)
        if (p->insns[i].op == PROGRAM_exp_v || p->insns[i].op == PROGRAM_log_v || p->insns[i].op == PROGRAM_tanh_v)
            return true;
    return false;
}

static void print_operand(const struct program_insn *q, unsigned k, struct buf *out)
{
    if (op_facts[q->op].form[k] == 'v') buf_format(out, "p%u", (unsigned)q->from[k]);
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
    for (const char *f = op_facts[q->op].formula; *f != '\0';) {
        size_t n = 1;
        while (in_word(f[0]) && in_word(f[n])) n++;
        if (n == 1 && f[0] >= 'A' && f[0] <= 'E') print_operand(q, (unsigned)(f[0] - 'A'), out);
        else buf_add(out, f, n);
        f += n;
    }
    buf_text(out, ";\n");
}

/* Only what is narrow has a master, which takes the place of the value as it was. */
static void print_loads(const struct program *p, enum dtype type, struct buf *out)
{
    buf_format(out, "        REAL p0 = %s;\n", dtype_is_half(type) ? "a.master == 0 ? WIDEN(a.from[i]) : a.master[i]" : "a.from[i]");
    buf_text(out, "        REAL p1 = a.sum == 0 ? WIDEN(a.last[i]) : a.last == 0 ? a.sum[i] : a.sum[i] + WIDEN(a.last[i]);\n");
    for (unsigned i = 0; i < p->slot_count; i++) {
        if (p->reads[PROGRAM_SLOT0 + i]) buf_format(out, "        REAL p%u = a.slots[%u][i];\n", PROGRAM_SLOT0 + i, i);
        else buf_format(out, "        REAL p%u;\n", PROGRAM_SLOT0 + i);
    }
    for (unsigned i = 0; i < p->register_count; i++) buf_format(out, "        REAL p%u;\n", PROGRAM_SCRATCH0 + i);
}

static void print_stores(const struct program *p, enum dtype type, struct buf *out)
{
    if (dtype_is_half(type)) buf_text(out, "        if (a.master != 0) a.master[i] = p0;\n");
    buf_text(out, "        a.to[i] = NARROW(p0);\n");
    for (unsigned i = 0; i < p->slot_count; i++)
        if (p->writes[PROGRAM_SLOT0 + i]) buf_format(out, "        a.slots[%u][i] = p%u;\n", i, PROGRAM_SLOT0 + i);
}

void program_cuda(const struct program *p, enum dtype type, struct buf *out)
{
    print_types(type, needs_math(p), out);
    buf_format(out, "struct arguments {\n"
                    "    unsigned long long count;\n"
                    "    const REAL *sum;\n"
                    "    const ELEMENT *last, *from;\n"
                    "    ELEMENT *to;\n"
                    "    REAL *master, *slots[%d], scalars[%d];\n"
                    "};\n", PROGRAM_SLOTS_MAX, PROGRAM_SCALARS_MAX);
    buf_format(out, "extern \"C\" __global__ void __launch_bounds__(%d) " PROGRAM_KERNEL
                    "(const __grid_constant__ arguments a)\n"
                    "{\n"
                    "    unsigned long long stride = gridDim.x * (unsigned long long)blockDim.x;\n"
                    "    for (unsigned long long i = blockIdx.x * (unsigned long long)blockDim.x + threadIdx.x; i < a.count;\n"
                    "         i += stride) {\n", PROGRAM_THREADS);
    print_loads(p, type, out);
    for (unsigned i = 0; i < p->insn_count; i++) print_instruction(&p->insns[i], out);
    print_stores(p, type, out);
    buf_text(out, "    }\n}\n");
}
