#include "gpu/program.h"

#include "service/base/mem.h"

#include <assert.h>
#include <math.h>
#include <string.h>

/* The way from a tree to a program.
 *
 * 1. Values. Every operation becomes a value, and equal ones the same value, so that nothing is computed twice; names are
 *    gone after this: a name is the value that was assigned to it last.
 * 2. Wanted values are those that a result is made from. Multiplications with one reader move into it where there is an
 *    instruction for both.
 * 3. Instructions in the order of the text; results go straight into their array when nobody reads the old content any
 *    more, other values into the lowest free scratch. */

enum { VALUE_copy = EXPR_OPS_END };          /* gives an instruction to what has none: a scalar, an array, a result */
enum { VALUES_MAX = 2 * PROGRAM_NODES_MAX + 2 * PROGRAM_SCRATCH0, NOWHERE = 255, NO_VALUE = UINT16_MAX };

_Static_assert((int)PROGRAM_PLACES < (int)NOWHERE && (int)PROGRAM_SCALARS_MAX < (int)NOWHERE &&
               (int)PROGRAM_HOST_MAX < (int)NOWHERE, "places, scalars and host values are bytes");
_Static_assert((int)VALUES_MAX < (int)NO_VALUE, "a value's number is no NO_VALUE");

struct value {
    double number;                           /* EXPR_number */
    uint32_t at;                             /* in the text */
    uint16_t from[PROGRAM_OPERANDS_MAX];     /* values; of EXPR_name: [0] is the symbol, or the array of an element */
    uint8_t op;                              /* enum expr_op, or VALUE_copy */
    uint8_t place;                           /* of an element: where it lies */
    uint8_t host, scalar_index;              /* of a scalar: its results' numbers */
    bool scalar, wanted, inside;             /* inside: computed by its reader's instruction */
    uint16_t readers;
    uint16_t last;                           /* instruction that reads it last */
    const char *name;                        /* of its instruction */
    uint8_t operands;
};

struct builder {
    const struct expr *x;
    struct program *p;
    struct error *e;
    enum status status;                      /* of the first fault */
    unsigned count;
    uint16_t leaves[PROGRAM_SCRATCH0];       /* value of each array at the beginning */
    uint16_t current[EXPR_SYMBOLS_MAX];      /* value of each symbol */
    uint16_t node_values[PROGRAM_NODES_MAX];
    uint16_t final[PROGRAM_SCRATCH0];        /* value of each array at the end; NO_VALUE: it stays as it was */
    uint16_t order[PROGRAM_INSTRUCTIONS_MAX];
    bool taken[PROGRAM_REGISTERS_MAX];
    struct value values[VALUES_MAX];
};

static const struct {
    const char *name;
    uint8_t operands;
} ops[EXPR_OPS_END + 1] = {
#define OP_FACTS(name, operands) [EXPR_##name] = {#name, operands},
    EXPR_OPS(OP_FACTS)
#undef OP_FACTS
    [EXPR_number] = {"number", 0},
    [EXPR_name] = {"name", 0},
    [VALUE_copy] = {"copy", 1},
};

/* At the operation that is one too many. */
static void too_many(struct builder *b, uint32_t at, const char *what, int most)
{
    if (b->status == STATUS_OK) b->status = expr_fault(b->x->text, at, b->e, "%s; at most %d", what, most);
}

/* ---- values ----------------------------------------------------------------------------------------------------- */

static bool same_value(const struct value *v, const struct value *w)
{
    return v->op == w->op && v->scalar == w->scalar && memcmp(v->from, w->from, sizeof v->from) == 0 &&
           memcmp(&v->number, &w->number, sizeof v->number) == 0;
}

static unsigned value_add(struct builder *b, struct value v)
{
    v.name = ops[v.op].name;
    v.operands = ops[v.op].operands;
    v.place = v.host = v.scalar_index = NOWHERE;
    assert(b->count < VALUES_MAX);
    b->values[b->count] = v;
    return b->count++;
}

static unsigned value_of(struct builder *b, struct value v)
{
    for (unsigned i = 0; i < b->count; i++)
        if (same_value(&b->values[i], &v)) return i;
    return value_add(b, v);
}

/* The array that a symbol names, or NOWHERE. */
static unsigned array_of(const struct expr_symbol *s)
{
    switch (s->kind) {
    case SYMBOL_STORED: return PROGRAM_STORED;
    case SYMBOL_GRAD: return PROGRAM_GRAD;
    case SYMBOL_SLOT: return PROGRAM_SLOT0 + s->index;
    default: return NOWHERE;
    }
}

static unsigned leaf_of(struct builder *b, unsigned array)
{
    unsigned v = value_of(b, (struct value){.op = EXPR_name, .from = {(uint16_t)array}});
    b->values[v].place = (uint8_t)array;
    b->leaves[array] = (uint16_t)v;
    return v;
}

static unsigned symbol_value(struct builder *b, unsigned symbol, uint32_t at)
{
    const struct expr_symbol *s = &b->x->symbols[symbol];

    if (s->kind == SYMBOL_CONSTANT)
        return value_of(b, (struct value){.op = EXPR_number, .scalar = true, .number = s->number, .at = at});
    if (s->kind == SYMBOL_MOMENT || s->kind == SYMBOL_PARAM)
        return value_of(b, (struct value){.op = EXPR_name, .scalar = true, .from = {(uint16_t)symbol}, .at = at});
    return b->current[symbol];
}

static unsigned node_value(struct builder *b, const struct expr_node *n)
{
    uint8_t operands = ops[n->op].operands;
    const uint16_t from[3] = {n->a, n->b, n->c};
    struct value v = {.op = n->op, .scalar = n->scalar, .at = n->at};

    if (n->op == EXPR_name) return symbol_value(b, n->a, n->at);
    if (n->op == EXPR_number) v.number = n->number;
    for (unsigned i = 0; i < operands; i++) v.from[i] = b->node_values[from[i]];
    return value_of(b, v);
}

/* What is assigned to an array is one value for each element from there on, rounded as the array holds it. */
static unsigned assigned_value(struct builder *b, const struct expr_symbol *s, unsigned v)
{
    if (s->kind == SYMBOL_LOCAL || !b->values[v].scalar) return v;
    return value_of(b, (struct value){.op = VALUE_copy, .from = {(uint16_t)v}, .at = b->values[v].at});
}

/* Nodes stand after their operands, so this is a walk and needs no recursion. */
static void make_values(struct builder *b)
{
    const struct expr *x = b->x;

    for (unsigned i = 0; i < x->symbol_count; i++)
        if (array_of(&x->symbols[i]) != NOWHERE)
            b->current[i] = (uint16_t)leaf_of(b, array_of(&x->symbols[i]));
    for (unsigned i = 0; i < x->statement_count; i++) {
        const struct expr_statement *st = &x->statements[i];
        for (unsigned n = st->first; n <= st->root; n++) b->node_values[n] = (uint16_t)node_value(b, &x->nodes[n]);
        b->current[st->symbol] = (uint16_t)assigned_value(b, &x->symbols[st->symbol], b->node_values[st->root]);
    }
}

static bool is_final(const struct builder *b, unsigned value)
{
    for (unsigned i = 0; i < PROGRAM_SCRATCH0; i++)
        if (b->final[i] == value) return true;
    return false;
}

static void make_finals(struct builder *b)
{
    for (unsigned i = 0; i < PROGRAM_SCRATCH0; i++) b->final[i] = NO_VALUE;
    for (unsigned i = 0; i < b->x->symbol_count; i++) {
        unsigned array = array_of(&b->x->symbols[i]), v = b->current[i];
        if (array == NOWHERE || b->values[v].place == array) continue;
        if (b->values[v].op == EXPR_name || is_final(b, v))
            v = value_add(b, (struct value){.op = VALUE_copy, .from = {(uint16_t)v}, .at = b->values[v].at});
        b->final[array] = (uint16_t)v;
    }
}

/* Readers have higher numbers than what they read. */
static void find_wanted(struct builder *b)
{
    for (unsigned i = 0; i < PROGRAM_SCRATCH0; i++)
        if (b->final[i] != NO_VALUE) {
            b->values[b->final[i]].wanted = true;
            b->values[b->final[i]].readers++;
        }
    for (unsigned i = b->count; i-- > 0;) {
        const struct value *v = &b->values[i];
        for (unsigned k = 0; v->wanted && k < v->operands; k++) {
            b->values[v->from[k]].wanted = true;
            b->values[v->from[k]].readers++;
        }
    }
}

/* ---- one instruction for several operations ---------------------------------------------------------------------- */

static void become(struct value *v, const char *name, unsigned operands, const uint16_t from[PROGRAM_OPERANDS_MAX])
{
    v->name = name;
    v->operands = (uint8_t)operands;
    memcpy(v->from, from, sizeof v->from);
}

/* An element's value that only its reader wants. */
static bool is_own(const struct builder *b, unsigned i, enum expr_op op)
{
    const struct value *v = &b->values[i];
    return v->op == op && !v->scalar && v->readers == 1 && !v->inside && v->name == ops[op].name;
}

/* Multiplication commutes in every bit: the scalar, if one is, comes first. */
static void factors(struct builder *b, unsigned i, uint16_t out[2])
{
    struct value *v = &b->values[i];
    bool second = b->values[v->from[1]].scalar;

    v->inside = true;
    out[0] = v->from[second ? 1 : 0];
    out[1] = v->from[second ? 0 : 1];
}

static bool has_scalar_factor(const struct builder *b, unsigned i)
{
    const struct value *v = &b->values[i];
    return b->values[v->from[0]].scalar || b->values[v->from[1]].scalar;
}

/* The same for one that has become an instruction of several. */
static bool is_own_joined(const struct builder *b, unsigned i, const char *name)
{
    const struct value *v = &b->values[i];
    return v->readers == 1 && !v->inside && strcmp(v->name, name) == 0;
}

/* x / (sqrt(y) + u) */
static void join_quotient(struct builder *b, struct value *v)
{
    unsigned l = v->from[0], r = v->from[1];

    if (b->values[l].scalar || !is_own_joined(b, r, "sqrt_add")) return;
    b->values[r].inside = true;
    const uint16_t from[PROGRAM_OPERANDS_MAX] = {(uint16_t)l, b->values[r].from[0], b->values[r].from[1]};
    become(v, "div_sqrt_add", 3, from);
}

/* x - u * (y / (sqrt(z) + w)) of sub_mul */
static void join_move(struct builder *b, struct value *v)
{
    unsigned u = v->from[0], quotient = v->from[1], x = v->from[2];
    const uint16_t *q = b->values[quotient].from;
    const uint16_t from[PROGRAM_OPERANDS_MAX] = {(uint16_t)x, (uint16_t)u, q[0], q[1], q[2]};

    if (!b->values[u].scalar || b->values[x].scalar || !is_own_joined(b, quotient, "div_sqrt_add")) return;
    b->values[quotient].inside = true;
    become(v, "sub_mul_div_sqrt_add", 5, from);
}

/* u * x + w * (y * y) of mul_add_mul */
static void join_square(struct builder *b, struct value *v)
{
    unsigned square = v->from[3];
    const struct value *s = &b->values[square];

    if (!is_own(b, square, EXPR_mul) || s->from[0] != s->from[1]) return;
    b->values[square].inside = true;
    v->from[3] = s->from[0];
    v->name = "mul_add_mul_square";
}

static void join(struct builder *b, struct value *v)
{
    unsigned l = v->from[0], r = v->from[1];
    bool sum = v->op == EXPR_add, left = is_own(b, l, EXPR_mul), right = is_own(b, r, EXPR_mul);
    uint16_t from[PROGRAM_OPERANDS_MAX] = {0};

    if (left && right && has_scalar_factor(b, l) && has_scalar_factor(b, r)) {
        factors(b, l, from);
        factors(b, r, from + 2);
        become(v, sum ? "mul_add_mul" : "mul_sub_mul", 4, from);
        if (sum) join_square(b, v);
    } else if (right) {
        factors(b, r, from);
        from[2] = (uint16_t)l;
        become(v, sum ? "mul_add" : "sub_mul", 3, from);
        if (!sum) join_move(b, v);
    } else if (left) {
        factors(b, l, from);
        from[2] = (uint16_t)r;
        become(v, sum ? "mul_add" : "mul_sub", 3, from);
    } else if (sum && is_own(b, l, EXPR_sqrt) && b->values[r].scalar) {
        b->values[l].inside = true;
        from[0] = b->values[l].from[0];
        from[1] = (uint16_t)r;
        become(v, "sqrt_add", 2, from);
    }
}

static void join_all(struct builder *b)
{
    for (unsigned i = 0; i < b->count; i++) {
        struct value *v = &b->values[i];
        if (!v->wanted || v->scalar) continue;
        if (v->op == EXPR_add || v->op == EXPR_sub) join(b, v);
        else if (v->op == EXPR_div) join_quotient(b, v);
    }
}

/* ---- the host part ---------------------------------------------------------------------------------------------- */

static struct program_host host_leaf(const struct builder *b, const struct value *v)
{
    const struct expr_symbol *s = &b->x->symbols[v->from[0]];

    if (v->op == EXPR_number) return (struct program_host){.op = PROGRAM_HOST_number, .number = v->number};
    return (struct program_host){.op = s->kind == SYMBOL_PARAM ? PROGRAM_HOST_param : PROGRAM_HOST_moment,
                                 .from = {(uint8_t)s->index}};
}

static void make_host(struct builder *b)
{
    struct program *p = b->p;

    for (unsigned i = 0; i < b->count && b->status == STATUS_OK; i++) {
        struct value *v = &b->values[i];
        if (!v->wanted || !v->scalar) continue;
        if (p->host_count == PROGRAM_HOST_MAX) {
            too_many(b, v->at, "too many numbers, names and operations in the part that runs once a step",
                     PROGRAM_HOST_MAX);
            return;
        }
        struct program_host h = {.op = v->op};
        if (v->op == EXPR_number || v->op == EXPR_name) h = host_leaf(b, v);
        for (unsigned k = 0; k < v->operands; k++) h.from[k] = b->values[v->from[k]].host;
        v->host = (uint8_t)p->host_count;
        p->host[p->host_count++] = h;
    }
}

/* ---- the element part ------------------------------------------------------------------------------------------- */

static bool is_op(enum program_op op, const char *name, const char *form)
{
    return strcmp(program_op_form(op), form) == 0 && strcmp(program_op_name(op), name) == 0;
}

static enum program_op op_find(const char *name, const char *form)
{
    unsigned i = 0;

    while (i < PROGRAM_OPS_END && !is_op((enum program_op)i, name, form)) i++;
    assert(i < PROGRAM_OPS_END);
    return (enum program_op)i;
}

static const char too_long[] = "too many instructions for each element";

static void scalar_needed(struct builder *b, struct value *v, uint32_t at)
{
    struct program *p = b->p;

    if (v->scalar_index != NOWHERE || b->status != STATUS_OK) return;
    if (p->scalar_count == PROGRAM_SCALARS_MAX) {
        too_many(b, at, "too many different scalars that elements read", PROGRAM_SCALARS_MAX);
        return;
    }
    v->scalar_index = (uint8_t)p->scalar_count;
    p->scalars[p->scalar_count++] = v->host;
}

/* The order of the instructions, and which of them reads a value last. */
static void make_order(struct builder *b)
{
    struct program *p = b->p;

    for (unsigned i = 0; i < b->count && b->status == STATUS_OK; i++) {
        struct value *v = &b->values[i];
        if (!v->wanted || v->scalar || v->inside || v->op == EXPR_name) continue;
        if (p->insn_count == PROGRAM_INSTRUCTIONS_MAX) {
            too_many(b, v->at, too_long, PROGRAM_INSTRUCTIONS_MAX);
            return;
        }
        for (unsigned k = 0; k < v->operands; k++) {
            struct value *from = &b->values[v->from[k]];
            from->last = (uint16_t)p->insn_count;
            if (from->scalar) scalar_needed(b, from, v->at);
            else if (from->op == EXPR_name) p->reads[from->place] = true;
        }
        b->order[p->insn_count++] = (uint16_t)i;
    }
}

/* The array whose result this is and whose old content nobody reads after instruction n; or NOWHERE. */
static unsigned own_array(const struct builder *b, unsigned value, unsigned n)
{
    for (unsigned array = 0; array < PROGRAM_SCRATCH0; array++) {
        if (b->final[array] != value) continue;
        return b->p->reads[array] && b->values[b->leaves[array]].last > n ? NOWHERE : array;
    }
    return NOWHERE;
}

static void free_registers(struct builder *b, unsigned n)
{
    const struct value *v = &b->values[b->order[n]];

    for (unsigned k = 0; k < v->operands; k++) {
        const struct value *from = &b->values[v->from[k]];
        if (!from->scalar && from->place >= PROGRAM_SCRATCH0 && from->last == n && !is_final(b, v->from[k]))
            b->taken[from->place - PROGRAM_SCRATCH0] = false;
    }
}

static unsigned take_register(struct builder *b, uint32_t at)
{
    unsigned r = 0;

    while (r < PROGRAM_REGISTERS_MAX && b->taken[r]) r++;
    if (r == PROGRAM_REGISTERS_MAX) {
        too_many(b, at, "too many values of each element that are wanted at once", PROGRAM_REGISTERS_MAX);
        return PROGRAM_SCRATCH0;
    }
    b->taken[r] = true;
    if (r >= b->p->register_count) b->p->register_count = r + 1;
    return PROGRAM_SCRATCH0 + r;
}

static struct program_insn instruction(const struct builder *b, const struct value *v)
{
    char form[PROGRAM_OPERANDS_MAX + 1] = "";
    struct program_insn insn = {.to = v->place};

    for (unsigned k = 0; k < v->operands; k++) {
        const struct value *from = &b->values[v->from[k]];
        form[k] = from->scalar ? 'u' : 'v';
        insn.from[k] = from->scalar ? from->scalar_index : from->place;
    }
    insn.op = (uint8_t)op_find(v->name, form);
    return insn;
}

/* An instruction may write over what it reads: it reads an element before it writes it. */
static void make_instructions(struct builder *b)
{
    for (unsigned n = 0; n < b->p->insn_count && b->status == STATUS_OK; n++) {
        struct value *v = &b->values[b->order[n]];
        free_registers(b, n);
        unsigned array = own_array(b, b->order[n], n);
        v->place = (uint8_t)(array != NOWHERE ? array : take_register(b, v->at));
        b->p->insns[n] = instruction(b, v);
    }
}

/* Results that had to wait in scratch. What they were read from lies in scratch too, so their order does not matter. */
static void store_results(struct builder *b)
{
    struct program *p = b->p;

    for (unsigned array = 0; array < PROGRAM_SCRATCH0 && b->status == STATUS_OK; array++) {
        if (b->final[array] == NO_VALUE) continue;
        const struct value *v = &b->values[b->final[array]];
        p->writes[array] = true;
        if (v->place == array) continue;
        if (p->insn_count == PROGRAM_INSTRUCTIONS_MAX) {
            too_many(b, v->at, too_long, PROGRAM_INSTRUCTIONS_MAX);
            return;
        }
        p->insns[p->insn_count++] =
            (struct program_insn){.op = PROGRAM_copy_v, .to = (uint8_t)array, .from = {v->place}};
    }
}

static void make_names(struct builder *b)
{
    for (unsigned i = 0; i < b->x->symbol_count; i++) {
        const struct expr_symbol *s = &b->x->symbols[i];
        if (s->kind == SYMBOL_PARAM) {
            b->p->params[s->index].standard = s->number;
            memcpy(b->p->params[s->index].name, s->name, sizeof s->name);
        } else if (s->kind == SYMBOL_SLOT) {
            b->p->slots[s->index].starts_as_stored = s->starts_as_stored;
            memcpy(b->p->slots[s->index].name, s->name, sizeof s->name);
        }
    }
    b->p->param_count = b->x->param_count;
    b->p->slot_count = b->x->slot_count;
}

static void build(struct builder *b)
{
    make_names(b);
    make_values(b);
    make_finals(b);
    find_wanted(b);
    join_all(b);
    make_host(b);
    make_order(b);
    make_instructions(b);
    store_results(b);
}

enum status program_new(struct bytes text, struct program **out, struct error *e)
{
    struct builder *b = NULL;
    struct program *p = NULL;
    struct expr *x = NULL;
    enum status s;

    s = expr_parse(text, &x, e);
    if (s != STATUS_OK) goto out;
    p = mem_zero(sizeof *p);
    b = mem_new(sizeof *b);      /* most of it is not needed by most texts, so it is not cleared */
    if (p == NULL || b == NULL) {
        s = error_set(e, REASON_NO_MEMORY, "no memory for an updater program");
        goto out;
    }
    b->x = x;
    b->p = p;
    b->e = e;
    b->status = STATUS_OK;
    b->count = 0;
    memset(b->taken, 0, sizeof b->taken);
    build(b);
    s = b->status;
    if (s != STATUS_OK) goto out;
    *out = p;
    p = NULL;
out:
    mem_free(b);
    program_free(p);
    expr_free(x);
    return s;
}

void program_free(struct program *p) { mem_free(p); }

int program_param_find(const struct program *p, struct bytes name)
{
    for (unsigned i = 0; i < p->param_count; i++)
        if (bytes_equal(name, bytes_text(p->params[i].name))) return (int)i;
    return -1;
}

bool program_counts(const struct program *p)
{
    bool reads_step = false;

    for (unsigned i = 0; i < p->host_count; i++)
        reads_step |= p->host[i].op == PROGRAM_HOST_moment && p->host[i].from[0] == EXPR_MOMENT_step;
    return reads_step && p->slot_count > 0;
}

unsigned program_bytes(const struct program *p, enum dtype type)
{
    unsigned arrays = 0;

    for (unsigned i = 0; i < PROGRAM_SCRATCH0; i++) arrays += (unsigned)p->reads[i] + p->writes[i];
    return arrays * (unsigned)dtype_size(type);
}
