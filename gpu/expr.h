/* The updater language, first half: text -> checked tree. The second half, tree -> program, is gpu/program.h; the
 * language is described for its users in gpu/updaters.md.
 *
 * Names are resolved and every rule of the language is checked here, so that what comes out has a meaning; only the
 * bounds of the program (instructions, registers, scalars) are left to the second half.
 *
 * Any thread. A tree owns its memory and borrows the text. */
#ifndef GPU_EXPR_H
#define GPU_EXPR_H

#include "api/limits.h"
#include "service/base/bytes.h"

/*    name   operands */
#define EXPR_OPS(X) \
    X(neg,   1)     \
    X(add,   2)     \
    X(sub,   2)     \
    X(mul,   2)     \
    X(div,   2)     \
    X(pow,   2)     \
    X(lt,    2)     \
    X(le,    2)     \
    X(eq,    2)     \
    X(ne,    2)     \
    X(min,   2)     \
    X(max,   2)     \
    X(abs,   1)     \
    X(sqrt,  1)     \
    X(exp,   1)     \
    X(log,   1)     \
    X(tanh,  1)     \
    X(sign,  1)     \
    X(clamp, 3)     \
    X(where, 3)

enum expr_op {
    EXPR_number,             /* leaves */
    EXPR_name,
#define EXPR_ENUM(name, operands) EXPR_##name,
    EXPR_OPS(EXPR_ENUM)
#undef EXPR_ENUM
    EXPR_OPS_END
};

/* What the daemon knows at a step, one number for all elements.
 *    name          text */
#define EXPR_MOMENTS(X)                                                                      \
    X(step,         "the key's count of updates, 1 at the first")                            \
    X(contributors, "contributions in grad")                                                 \
    X(num_workers,  "workers of the store")                                                  \
    X(staleness,    "updates of the key since the value that the gradient was computed from")

enum expr_moment {
#define EXPR_MOMENT_ENUM(name, text) EXPR_MOMENT_##name,
    EXPR_MOMENTS(EXPR_MOMENT_ENUM)
#undef EXPR_MOMENT_ENUM
    EXPR_MOMENT_COUNT
};

enum symbol_kind { SYMBOL_STORED, SYMBOL_GRAD, SYMBOL_MOMENT, SYMBOL_CONSTANT, SYMBOL_PARAM, SYMBOL_SLOT, SYMBOL_LOCAL };

enum { EXPR_FIXED_NAMES = 2 + EXPR_MOMENT_COUNT + 2,         /* stored, grad, the moments, pi, e */
       EXPR_SYMBOLS_MAX = EXPR_FIXED_NAMES + PROGRAM_PARAMS_MAX + PROGRAM_SLOTS_MAX + PROGRAM_LOCALS_MAX };

struct expr_symbol {
    char name[PROGRAM_NAME_SIZE_MAX + 1];
    enum symbol_kind kind;
    bool scalar;             /* one value for all elements; of a local: what was last assigned */
    bool read, assigned;
    bool starts_as_stored;   /* of a slot; else it starts as zero */
    double number;           /* of a constant; of a param: its standard value */
    unsigned index;          /* among those of its kind */
    size_t at;               /* where it is declared, in bytes of the text */
};

/* Operands stand before their operation. */
struct expr_node {
    double number;           /* of EXPR_number */
    uint32_t at;             /* where in the text */
    uint16_t a, b, c;        /* operands: nodes; of EXPR_name: a is the symbol */
    uint8_t op;              /* enum expr_op */
    bool scalar;             /* depends on scalars only */
};

/* symbol = the node `root`; its nodes are first .. root. */
struct expr_statement {
    uint16_t symbol, first, root;
};

struct expr {
    struct bytes text;       /* borrowed */
    unsigned symbol_count, node_count, statement_count, param_count, slot_count, local_count;
    struct expr_symbol symbols[EXPR_SYMBOLS_MAX];
    struct expr_node nodes[PROGRAM_NODES_MAX];
    struct expr_statement statements[PROGRAM_NODES_MAX];
};

/* UPDATER_INVALID tells the first fault: line, column, what was expected, the nearest name, and the line with a caret. */
enum status expr_parse(struct bytes text, struct expr **out, struct error *e) MUST_CHECK;
void expr_free(struct expr *x);                              /* NULL is nothing */

/* The same kind of error for a fault that is found later; at: bytes of the text. */
enum status expr_fault(struct bytes text, size_t at, struct error *e, const char *format, ...) PRINTF_LIKE(4, 5);

#endif
