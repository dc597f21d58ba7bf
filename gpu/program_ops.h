/* The operations of a program: each formula once, for the host part, the CPU's loops and the CUDA text.
 *
 * A formula is a macro of operands without side effects. It uses + - * /, comparisons, and these, which the includer
 * defines for its type: REAL, REAL_ROOT, REAL_SIZE (the absolute value), REAL_EXP, REAL_LOG, REAL_TANH. A NaN comes through
 * all of them except comparisons and the unchosen side of where, so that it is seen in the value. To reorder one changes
 * stored values. */
#ifndef GPU_PROGRAM_OPS_H
#define GPU_PROGRAM_OPS_H

/* Those of the language (EXPR_OPS); pow is the host's alone. */
#define DO_neg(A) (-(A))
#define DO_add(A, B) ((A) + (B))
#define DO_sub(A, B) ((A) - (B))
#define DO_mul(A, B) ((A) * (B))
#define DO_div(A, B) ((A) / (B))
#define DO_lt(A, B) ((A) < (B) ? (REAL)1 : (REAL)0)
#define DO_le(A, B) ((A) <= (B) ? (REAL)1 : (REAL)0)
#define DO_eq(A, B) ((A) == (B) ? (REAL)1 : (REAL)0)
#define DO_ne(A, B) ((A) != (B) ? (REAL)1 : (REAL)0)
#define DO_min(A, B) ((((A) < (B)) | ((A) != (A))) ? (A) : (B))
#define DO_max(A, B) ((((A) > (B)) | ((A) != (A))) ? (A) : (B))
#define DO_abs(A) (REAL_SIZE(A))
#define DO_sqrt(A) (REAL_ROOT(A))
#define DO_exp(A) ((REAL)REAL_EXP((double)(A)))
#define DO_log(A) ((REAL)REAL_LOG((double)(A)))
#define DO_tanh(A) ((REAL)REAL_TANH((double)(A)))
#define DO_sign(A) ((A) > 0 ? (REAL)1 : (A) < 0 ? (REAL)-1 : (A))
/* The upper bound first, as the built-in updaters clip. */
#define DO_clamp(A, B, C) (((A) > (C) ? (C) : (A)) < (B) ? (B) : ((A) > (C) ? (C) : (A)))
#define DO_where(A, B, C) ((A) != 0 ? (B) : (C))

/* Several in one pass over a block; each operation in them still rounds for itself. */
#define DO_copy(A) (A)
#define DO_mul_add(A, B, C) ((A) * (B) + (C))
#define DO_mul_sub(A, B, C) ((A) * (B) - (C))
#define DO_sub_mul(A, B, C) ((C) - (A) * (B))
#define DO_mul_add_mul(A, B, C, D) ((A) * (B) + (C) * (D))
#define DO_mul_sub_mul(A, B, C, D) ((A) * (B) - (C) * (D))
#define DO_sqrt_add(A, B) (REAL_ROOT(A) + (B))
/* What most adaptive updaters end with, of which root and quotient take longer than all the rest: apart, nothing would go
 * on beside them. */
#define DO_div_sqrt_add(A, B, C) ((A) / (REAL_ROOT(B) + (C)))
#define DO_sub_mul_div_sqrt_add(A, B, C, D, E) ((A) - (B) * ((C) / (REAL_ROOT(D) + (E))))
#define DO_mul_add_mul_square(A, B, C, D) ((A) * (B) + (C) * ((D) * (D)))

/* Each with the forms of its operands: v is a value for each element, u one for all. Without a v it is the host's. */
#define PROGRAM_UNARY(X, name) X(name, v)
#define PROGRAM_BINARY(X, name) X(name, vv) X(name, vu) X(name, uv)
#define PROGRAM_TERNARY(X, name) X(name, vvv) X(name, vvu) X(name, vuv) X(name, vuu) X(name, uvv) X(name, uvu) X(name, uuv)
#define PROGRAM_PRODUCT(X, name) X(name, uvv) X(name, uvu) X(name, vvv) X(name, vvu)

#define PROGRAM_OPS(X)                                                                                          \
    X(copy, v) X(copy, u)                                                                                       \
    PROGRAM_UNARY(X, neg) PROGRAM_UNARY(X, abs) PROGRAM_UNARY(X, sqrt) PROGRAM_UNARY(X, exp)                    \
    PROGRAM_UNARY(X, log) PROGRAM_UNARY(X, tanh) PROGRAM_UNARY(X, sign)                                         \
    PROGRAM_BINARY(X, add) PROGRAM_BINARY(X, sub) PROGRAM_BINARY(X, mul) PROGRAM_BINARY(X, div)                 \
    PROGRAM_BINARY(X, lt) PROGRAM_BINARY(X, le) PROGRAM_BINARY(X, eq) PROGRAM_BINARY(X, ne)                     \
    PROGRAM_BINARY(X, min) PROGRAM_BINARY(X, max)                                                               \
    PROGRAM_TERNARY(X, clamp) PROGRAM_TERNARY(X, where)                                                         \
    PROGRAM_PRODUCT(X, mul_add) PROGRAM_PRODUCT(X, mul_sub) PROGRAM_PRODUCT(X, sub_mul)                         \
    X(mul_add_mul, uvuv) X(mul_sub_mul, uvuv) X(mul_add_mul_square, uvuv)                                         \
    X(sqrt_add, vu) X(div_sqrt_add, vvu) X(sub_mul_div_sqrt_add, vuvvu)

enum program_op {
#define PROGRAM_OP_ENUM(name, form) PROGRAM_##name##_##form,
    PROGRAM_OPS(PROGRAM_OP_ENUM)
#undef PROGRAM_OP_ENUM
    PROGRAM_OPS_END
};

#endif
