/* A loaded kernel, between ptxi_load.c and ptxi_run.c. */
#ifndef TESTS_CUSIM_PTXI_CODE_H
#define TESTS_CUSIM_PTXI_CODE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum ptxi_op {
    PTXI_MOV, PTXI_LD, PTXI_ST, PTXI_CVTA, PTXI_CVT, PTXI_ADD, PTXI_SUB, PTXI_MUL, PTXI_MAD, PTXI_FMA, PTXI_DIV,
    PTXI_REM, PTXI_SQRT, PTXI_RCP, PTXI_NEG, PTXI_ABS, PTXI_MIN, PTXI_MAX, PTXI_AND, PTXI_OR, PTXI_XOR,
    PTXI_NOT, PTXI_SHL, PTXI_SHR, PTXI_SETP, PTXI_SELP, PTXI_BRA, PTXI_RET, PTXI_BAR, PTXI_COPYSIGN, PTXI_POPC,
    PTXI_CLZ, PTXI_BFE, PTXI_PRMT, PTXI_ATOM, PTXI_NOP
};

enum ptxi_kind { PTXI_NONE, PTXI_BITS, PTXI_UNSIGNED, PTXI_SIGNED, PTXI_REAL, PTXI_BF16, PTXI_PRED };

struct ptxi_type {
    enum ptxi_kind kind;
    unsigned bits;
};

enum ptxi_space { PTXI_GENERIC, PTXI_GLOBAL, PTXI_SHARED, PTXI_LOCAL, PTXI_PARAM };
enum ptxi_round { PTXI_NEAREST, PTXI_TO_ZERO, PTXI_DOWN, PTXI_UP };
enum ptxi_part { PTXI_LOW, PTXI_HIGH, PTXI_WIDE };
enum ptxi_change {
    PTXI_NO_CHANGE, PTXI_CHANGE_ADD, PTXI_CHANGE_AND, PTXI_CHANGE_OR, PTXI_CHANGE_XOR, PTXI_CHANGE_MIN,
    PTXI_CHANGE_MAX, PTXI_CHANGE_EXCH, PTXI_CHANGE_CAS
};
enum ptxi_joint { PTXI_ALONE, PTXI_WITH_AND, PTXI_WITH_OR, PTXI_WITH_XOR };
enum ptxi_compare { PTXI_EQ, PTXI_NE, PTXI_LT, PTXI_LE, PTXI_GT, PTXI_GE, PTXI_NUM, PTXI_NAN };

enum ptxi_arg_kind { PTXI_REGISTER, PTXI_NUMBER, PTXI_SPECIAL, PTXI_ARGUMENT, PTXI_LABEL, PTXI_DEPOT, PTXI_SINK };

struct ptxi_arg {
    enum ptxi_arg_kind kind;
    unsigned index;          /* of a register, special register or label */
    uint64_t number;         /* also a place in shared memory */
    int64_t offset;          /* of an address */
};

enum { PTXI_ARGS_MAX = 8, PTXI_SPECIALS = 12 };

struct ptxi_insn {
    enum ptxi_op op;
    struct ptxi_type type, from;             /* of the result; of the operand, where that differs */
    enum ptxi_space space;
    enum ptxi_round round;
    enum ptxi_part part;
    enum ptxi_joint joint;
    enum ptxi_change change;                 /* of an atomic, which without a result has one operand less */
    bool has_result;
    enum ptxi_compare compare;
    bool or_nan;                             /* a comparison that holds with a NaN, too */
    bool to_space;                           /* cvta.to */
    bool is_guarded, unless, is_unpacking;
    unsigned guard;                          /* register */
    unsigned values;                         /* of a load or store */
    unsigned arg_count, line;
    struct ptxi_arg args[PTXI_ARGS_MAX];
};

struct ptxi {
    struct ptxi_insn *code;
    unsigned count, register_count;
    size_t arguments_size, shared_size, local_size;
    bool waits;                              /* has barriers */
};

#endif
