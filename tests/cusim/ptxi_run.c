/* Runs a loaded kernel: block after block, and in a block thread after thread, each up to its end or the next
 * barrier. */
#include "gpu/half.h"
#include "tests/cusim/ptxi.h"
#include "tests/cusim/ptxi_code.h"
#include "tests/cusim/sim.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { STEPS_MAX = 100000000, CANONICAL_NAN = 0x7fffffff };

struct thread {
    uint64_t *registers;
    unsigned at;             /* the next instruction */
    bool is_done;
    uint64_t steps;
    char *local;
};

struct machine {
    const struct ptxi *p;
    const struct ptxi_launch *launch;
    struct ptxi_count *count;
    unsigned special[PTXI_SPECIALS];
    char *shared;
    struct thread *now;
    char *why;
    size_t why_size;
    bool failed;
};

/* ---- numbers as bits ------------------------------------------------------------------------------------------- */

static double f64_of(uint64_t u)
{
    double d;
    memcpy(&d, &u, sizeof d);
    return d;
}

static uint64_t bits_of_f64(double d)
{
    uint64_t u;
    memcpy(&u, &d, sizeof u);
    return u;
}

static float f32_of(uint64_t u) { return half_float((uint32_t)u); }
static uint64_t bits_of_f32(float f) { return isnan(f) ? CANONICAL_NAN : half_bits(f); }

static uint64_t cut(uint64_t v, unsigned bits) { return bits >= 64 ? v : v & ((1ull << bits) - 1); }

static int64_t extended(uint64_t v, unsigned bits)
{
    return bits >= 64 ? (int64_t)v : (int64_t)(v << (64 - bits)) >> (64 - bits);
}

static uint64_t whole(uint64_t v, struct ptxi_type t)
{
    return t.kind == PTXI_SIGNED ? (uint64_t)extended(v, t.bits) : cut(v, t.bits);
}

static void fail(struct machine *m, const struct ptxi_insn *q, const char *what, uint64_t at)
{
    if (m->failed) return;
    m->failed = true;
    snprintf(m->why, m->why_size, "line %u: %s (%#llx) by thread %u of block %u", q->line, what,
             (unsigned long long)at, m->special[0], m->special[6]);
}

/* ---- arithmetic ------------------------------------------------------------------------------------------------ */

/* The other one when one is NaN; -0 is less than +0. */
static double least(double x, double y)
{
    if (isnan(x) || isnan(y)) return isnan(x) ? y : x;
    return x < y || (x == y && signbit(x)) ? x : y;
}

static double most(double x, double y)
{
    if (isnan(x) || isnan(y)) return isnan(x) ? y : x;
    return x > y || (x == y && signbit(y)) ? x : y;
}

static bool real_f32(enum ptxi_op op, float x, float y, float z, float *out)
{
    switch (op) {
    case PTXI_ADD: *out = x + y; return true;
    case PTXI_SUB: *out = x - y; return true;
    case PTXI_MUL: *out = x * y; return true;
    case PTXI_FMA: *out = fmaf(x, y, z); return true;
    case PTXI_DIV: *out = x / y; return true;
    case PTXI_RCP: *out = 1 / x; return true;
    case PTXI_SQRT: *out = sqrtf(x); return true;
    case PTXI_MIN: *out = (float)least((double)x, (double)y); return true;
    case PTXI_MAX: *out = (float)most((double)x, (double)y); return true;
    default: return false;
    }
}

static bool real_f64(enum ptxi_op op, double x, double y, double z, double *out)
{
    switch (op) {
    case PTXI_ADD: *out = x + y; return true;
    case PTXI_SUB: *out = x - y; return true;
    case PTXI_MUL: *out = x * y; return true;
    case PTXI_FMA: *out = fma(x, y, z); return true;
    case PTXI_DIV: *out = x / y; return true;
    case PTXI_RCP: *out = 1 / x; return true;
    case PTXI_SQRT: *out = sqrt(x); return true;
    case PTXI_MIN: *out = least(x, y); return true;
    case PTXI_MAX: *out = most(x, y); return true;
    default: return false;
    }
}

static uint64_t real(struct machine *m, const struct ptxi_insn *q, const uint64_t *v)
{
    uint64_t sign = 1ull << (q->type.bits - 1);
    float f;
    double d;

    if (q->op == PTXI_NEG) return v[1] ^ sign;
    if (q->op == PTXI_ABS) return v[1] & ~sign;
    if (q->op == PTXI_COPYSIGN) return (v[2] & ~sign) | (v[1] & sign); /* the sign of the first on the second */
    if (q->round == PTXI_NEAREST && q->type.bits == 32 &&
        real_f32(q->op, f32_of(v[1]), f32_of(v[2]), f32_of(v[3]), &f))
        return bits_of_f32(f);
    if (q->round == PTXI_NEAREST && q->type.bits == 64 &&
        real_f64(q->op, f64_of(v[1]), f64_of(v[2]), f64_of(v[3]), &d))
        return bits_of_f64(d);
    fail(m, q, "arithmetic that is not known here", q->op);
    return 0;
}

static uint64_t product(const struct ptxi_insn *q, uint64_t x, uint64_t y)
{
    bool is_signed = q->type.kind == PTXI_SIGNED;

    x = whole(x, q->type);
    y = whole(y, q->type);
    if (q->part != PTXI_HIGH) return x * y; /* low, and wide: operands of 32 bits or less */
    if (is_signed) return (uint64_t)((__int128)(int64_t)x * (int64_t)y >> q->type.bits);
    return (uint64_t)((unsigned __int128)x * y >> q->type.bits);
}

/* Division by zero gives some number on a GPU; here it is a fault of the kernel. */
static uint64_t quotient(struct machine *m, const struct ptxi_insn *q, uint64_t x, uint64_t y)
{
    if (y == 0) {
        fail(m, q, "division of a whole number by zero", x);
        return 0;
    }
    if (q->type.kind == PTXI_SIGNED) {
        if ((int64_t)y == -1) return q->op == PTXI_DIV ? 0 - x : 0;
        return (uint64_t)(q->op == PTXI_DIV ? (int64_t)x / (int64_t)y : (int64_t)x % (int64_t)y);
    }
    return q->op == PTXI_DIV ? x / y : x % y;
}

static uint64_t shifted(const struct ptxi_insn *q, uint64_t x, uint64_t by)
{
    by = cut(by, 32);
    if (q->op == PTXI_SHL) return by >= q->type.bits ? 0 : x << by;
    if (q->type.kind == PTXI_SIGNED) return (uint64_t)((int64_t)x >> (by >= q->type.bits ? q->type.bits - 1 : by));
    return by >= q->type.bits ? 0 : x >> by;
}

static uint64_t field(const struct ptxi_insn *q, uint64_t x, uint64_t at, uint64_t size)
{
    at = cut(at, 8);
    size = cut(size, 8);
    if (size == 0 || at >= q->type.bits) return 0;
    if (size > q->type.bits - at) size = q->type.bits - at;
    x = cut(cut(x, q->type.bits) >> at, (unsigned)size);
    return q->type.kind == PTXI_SIGNED ? (uint64_t)extended(x, (unsigned)size) : x;
}

static uint64_t permuted(uint64_t a, uint64_t b, uint64_t how)
{
    uint64_t both = cut(a, 32) | b << 32, out = 0;

    for (unsigned i = 0; i < 4; i++) {
        uint64_t pick = how >> 4 * i, byte = both >> 8 * (pick & 7) & 0xff;
        if ((pick & 8) != 0) byte = (byte & 0x80) != 0 ? 0xff : 0;
        out |= byte << 8 * i;
    }
    return out;
}

static uint64_t integer(struct machine *m, const struct ptxi_insn *q, const uint64_t *v)
{
    uint64_t x = whole(v[1], q->type), y = whole(v[2], q->type);
    bool is_less = q->type.kind == PTXI_SIGNED ? (int64_t)x < (int64_t)y : x < y;

    switch (q->op) {
    case PTXI_ADD: return x + y;
    case PTXI_SUB: return x - y;
    case PTXI_MUL: return product(q, x, y);
    case PTXI_MAD: return product(q, x, y) + v[3];
    case PTXI_DIV:
    case PTXI_REM: return quotient(m, q, x, y);
    case PTXI_NEG: return 0 - x;
    case PTXI_ABS: return (int64_t)x < 0 ? 0 - x : x;
    case PTXI_MIN: return is_less ? x : y;
    case PTXI_MAX: return is_less ? y : x;
    case PTXI_AND: return x & y;
    case PTXI_OR: return x | y;
    case PTXI_XOR: return x ^ y;
    case PTXI_NOT: return ~x;
    case PTXI_SHL:
    case PTXI_SHR: return shifted(q, x, v[2]);
    case PTXI_POPC: return (uint64_t)__builtin_popcountll(x);
    case PTXI_CLZ: return x == 0 ? q->type.bits : (uint64_t)__builtin_clzll(x) - (64 - q->type.bits);
    case PTXI_BFE: return field(q, v[1], v[2], v[3]);
    case PTXI_PRMT: return permuted(v[1], v[2], v[3]);
    default: fail(m, q, "arithmetic that is not known here", q->op); return 0;
    }
}

/* ---- comparisons and conversions ------------------------------------------------------------------------------- */

static bool holds(enum ptxi_compare c, bool is_less, bool is_equal)
{
    switch (c) {
    case PTXI_EQ: return is_equal;
    case PTXI_NE: return !is_equal;
    case PTXI_LT: return is_less;
    case PTXI_LE: return is_less || is_equal;
    case PTXI_GT: return !is_less && !is_equal;
    default: return !is_less;
    }
}

static bool compared(const struct ptxi_insn *q, uint64_t a, uint64_t b)
{
    if (q->type.kind != PTXI_REAL) {
        uint64_t x = whole(a, q->type), y = whole(b, q->type);
        return holds(q->compare, q->type.kind == PTXI_SIGNED ? (int64_t)x < (int64_t)y : x < y, x == y);
    }
    double x = q->type.bits == 32 ? (double)f32_of(a) : f64_of(a),
           y = q->type.bits == 32 ? (double)f32_of(b) : f64_of(b);
    bool any_nan = isnan(x) || isnan(y);
    if (q->compare == PTXI_NAN) return any_nan;
    if (q->compare == PTXI_NUM) return !any_nan;
    return any_nan ? q->or_nan : holds(q->compare, x < y, x == y);
}

static uint64_t set_predicate(const struct ptxi_insn *q, const uint64_t *v)
{
    bool x = compared(q, v[1], v[2]), y = q->joint != PTXI_ALONE && (v[3] & 1) != 0;

    switch (q->joint) {
    case PTXI_WITH_AND: return x && y;
    case PTXI_WITH_OR: return x || y;
    case PTXI_WITH_XOR: return x != y;
    default: return x;
    }
}

static double rounded(enum ptxi_round how, double d)
{
    switch (how) {
    case PTXI_TO_ZERO: return trunc(d);
    case PTXI_DOWN: return floor(d);
    case PTXI_UP: return ceil(d);
    default: return nearbyint(d);
    }
}

/* What does not fit becomes the nearest that does; NaN becomes 0. */
static uint64_t whole_of(const struct ptxi_insn *q, double d)
{
    bool is_signed = q->type.kind == PTXI_SIGNED;
    double top = ldexp(1, (int)q->type.bits - is_signed), bottom = is_signed ? -top : 0;

    d = rounded(q->round, d);
    if (isnan(d)) return 0;
    if (d < bottom) d = bottom;
    if (d >= top) return is_signed ? (1ull << (q->type.bits - 1)) - 1 : cut(~0ull, q->type.bits);
    return is_signed ? (uint64_t)(int64_t)d : (uint64_t)d;
}

static double real_of(struct ptxi_type t, uint64_t v)
{
    if (t.kind == PTXI_BF16) return (double)half_widen_bf16((uint16_t)v);
    if (t.bits == 16) return (double)half_widen_f16((uint16_t)v);
    return t.bits == 32 ? (double)f32_of(v) : f64_of(v);
}

static uint64_t real_to_real(struct machine *m, const struct ptxi_insn *q, double d)
{
    bool halves = q->type.bits == 16;

    if (halves && q->from.bits == 64) fail(m, q, "a conversion that rounds twice here", 0);
    if (q->type.kind == PTXI_BF16) return half_narrow_bf16((float)d);
    if (halves) return half_narrow_f16((float)d);
    if (q->type.bits == q->from.bits) d = rounded(q->round, d);
    return q->type.bits == 32 ? bits_of_f32((float)d) : bits_of_f64(d);
}

static uint64_t converted(struct machine *m, const struct ptxi_insn *q, uint64_t v)
{
    bool from_real = q->from.kind == PTXI_REAL || q->from.kind == PTXI_BF16;

    if (q->type.kind == PTXI_REAL || q->type.kind == PTXI_BF16) {
        uint64_t n = whole(v, q->from);
        bool is_signed = q->from.kind == PTXI_SIGNED;
        if (from_real) return real_to_real(m, q, real_of(q->from, v));
        if (q->type.bits == 32) return bits_of_f32(is_signed ? (float)(int64_t)n : (float)n);
        if (q->type.bits == 64) return bits_of_f64(is_signed ? (double)(int64_t)n : (double)n);
        fail(m, q, "a conversion that is not known here", v);
        return 0;
    }
    return from_real ? whole_of(q, real_of(q->from, v)) : whole(v, q->from);
}

/* ---- memory ---------------------------------------------------------------------------------------------------- */

static bool within(uint64_t at, size_t size, const void *begin, size_t length)
{
    uint64_t b = (uint64_t)(uintptr_t)begin;
    return at >= b && length >= size && at - b <= length - size;
}

static bool in_ranges(const struct machine *m, uint64_t at, size_t size)
{
    for (unsigned i = 0; i < m->launch->range_count; i++)
        if (within(at, size, m->launch->ranges[i].at, m->launch->ranges[i].size)) return true;
    return false;
}

/* Where an access goes, or NULL when it may not. An address without a space may be of any. */
static void *place(struct machine *m, const struct ptxi_insn *q, uint64_t at, size_t size)
{
    bool is_store = q->op == PTXI_ST || q->op == PTXI_ATOM, generic = q->space == PTXI_GENERIC;
    void *found = (void *)(uintptr_t)at;

    if (at % size != 0) {
        fail(m, q, "misaligned access", at);
        return NULL;
    }
    if (q->space == PTXI_SHARED && within(at, size, NULL, m->p->shared_size)) return m->shared + at;
    if ((q->space == PTXI_LOCAL || generic) && within(at, size, m->now->local, m->p->local_size)) return found;
    if (generic && within(at, size, m->shared, m->p->shared_size)) return found;
    if (!is_store && (q->space == PTXI_PARAM || generic) &&
        within(at, size, m->launch->arguments, m->launch->arguments_size))
        return found;
    if ((q->space == PTXI_GLOBAL || generic) && in_ranges(m, at, size)) {
        *(is_store ? &m->count->stored : &m->count->loaded) += size;
        return found;
    }
    fail(m, q, "stray access", at);
    return NULL;
}

static void store(struct machine *m, const struct ptxi_insn *q, const uint64_t *v)
{
    size_t each = q->type.bits / 8;
    char *to = place(m, q, v[0] + (uint64_t)q->args[0].offset, each * q->values);

    for (unsigned i = 0; to != NULL && i < q->values; i++) memcpy(to + i * each, &v[1 + i], each);
}

static void load(struct machine *m, const struct ptxi_insn *q, const uint64_t *v)
{
    size_t each = q->type.bits / 8;
    const char *from = place(m, q, v[q->values] + (uint64_t)q->args[q->values].offset, each * q->values);

    for (unsigned i = 0; from != NULL && i < q->values; i++) {
        uint64_t u = 0;
        memcpy(&u, from + i * each, each);
        if (q->args[i].kind == PTXI_REGISTER) m->now->registers[q->args[i].index] = whole(u, q->type);
    }
}

static uint64_t changed(struct machine *m, const struct ptxi_insn *q, uint64_t old, uint64_t x, uint64_t y)
{
    static const enum ptxi_op as[] = {
        [PTXI_CHANGE_ADD] = PTXI_ADD, [PTXI_CHANGE_AND] = PTXI_AND, [PTXI_CHANGE_OR] = PTXI_OR,
        [PTXI_CHANGE_XOR] = PTXI_XOR, [PTXI_CHANGE_MIN] = PTXI_MIN, [PTXI_CHANGE_MAX] = PTXI_MAX};
    const uint64_t v[PTXI_ARGS_MAX] = {0, old, x};
    struct ptxi_insn plain = *q;

    if (q->change == PTXI_CHANGE_EXCH) return x;
    if (q->change == PTXI_CHANGE_CAS) return old == cut(x, q->type.bits) ? y : old;
    plain.op = as[q->change];
    return q->type.kind == PTXI_REAL ? real(m, &plain, v) : integer(m, &plain, v);
}

/* Threads take turns here, so an atomic is a load and a store. It counts as a store. */
static void atomic(struct machine *m, const struct ptxi_insn *q, const uint64_t *v)
{
    unsigned at = q->has_result ? 1 : 0;
    size_t size = q->type.bits / 8;
    void *place_at = place(m, q, v[at] + (uint64_t)q->args[at].offset, size);
    uint64_t old = 0, new;

    if (place_at == NULL) return;
    memcpy(&old, place_at, size);
    new = changed(m, q, old, v[at + 1], v[at + 2]);
    memcpy(place_at, &new, size);
    if (q->has_result && q->args[0].kind == PTXI_REGISTER) m->now->registers[q->args[0].index] = old;
}

/* Shared addresses begin at 0; elsewhere an address is the same with a space and without. */
static uint64_t cast(const struct machine *m, const struct ptxi_insn *q, uint64_t v)
{
    uint64_t shared = q->space == PTXI_SHARED ? (uint64_t)(uintptr_t)m->shared : 0;
    return q->to_space ? v - shared : v + shared;
}

/* ---- one instruction ------------------------------------------------------------------------------------------- */

/* mov of one value, of {low, high} into one, or of one into {low, high}. */
static void move(struct machine *m, const struct ptxi_insn *q, const uint64_t *v)
{
    uint64_t *r = m->now->registers, packed = 0;
    unsigned parts = q->arg_count - 1, bits = q->type.bits / parts;

    if (q->is_unpacking) {
        for (unsigned i = 0; i < parts; i++)
            if (q->args[i].kind == PTXI_REGISTER) r[q->args[i].index] = cut(v[parts] >> i * bits, bits);
        return;
    }
    for (unsigned i = 0; i < parts; i++) packed |= cut(v[1 + i], bits) << i * bits;
    r[q->args[0].index] = packed;
}

static uint64_t read_arg(const struct machine *m, const struct ptxi_arg *a)
{
    switch (a->kind) {
    case PTXI_REGISTER: return m->now->registers[a->index];
    case PTXI_SPECIAL: return m->special[a->index];
    case PTXI_ARGUMENT: return (uint64_t)(uintptr_t)m->launch->arguments;
    case PTXI_DEPOT: return (uint64_t)(uintptr_t)m->now->local;
    default: return a->number;
    }
}

static uint64_t computed(struct machine *m, const struct ptxi_insn *q, const uint64_t *v)
{
    switch (q->op) {
    case PTXI_CVTA: return cast(m, q, v[1]);
    case PTXI_CVT: return converted(m, q, v[1]);
    case PTXI_SETP: return set_predicate(q, v);
    case PTXI_SELP: return (v[3] & 1) != 0 ? v[1] : v[2];
    default: return q->type.kind == PTXI_REAL ? real(m, q, v) : integer(m, q, v);
    }
}

static unsigned result_bits(const struct ptxi_insn *q)
{
    if (q->op == PTXI_SETP) return 1;
    if (q->op == PTXI_POPC || q->op == PTXI_CLZ) return 32;
    return q->part == PTXI_WIDE ? 2 * q->type.bits : q->type.bits;
}

/* false: the thread stops here, at a barrier or its end. */
static bool run_instruction(struct machine *m, const struct ptxi_insn *q)
{
    struct thread *t = m->now;
    uint64_t v[PTXI_ARGS_MAX] = {0};

    if (q->is_guarded && ((t->registers[q->guard] & 1) != 0) == q->unless) return true;
    for (unsigned i = 0; i < q->arg_count; i++) v[i] = read_arg(m, &q->args[i]);
    switch (q->op) {
    case PTXI_MOV: move(m, q, v); return true;
    case PTXI_LD: load(m, q, v); return true;
    case PTXI_ST: store(m, q, v); return true;
    case PTXI_ATOM: atomic(m, q, v); return true;
    case PTXI_BRA: t->at = (unsigned)v[0]; return true;
    case PTXI_NOP: return true;
    case PTXI_BAR: return false;
    case PTXI_RET: t->is_done = true; return false;
    default: t->registers[q->args[0].index] = cut(computed(m, q, v), result_bits(q)); return true;
    }
}

/* ---- threads, blocks ------------------------------------------------------------------------------------------- */

static void run_thread(struct machine *m, struct thread *t, unsigned index)
{
    const unsigned *b = m->launch->block;

    m->now = t;
    m->special[0] = index % b[0];
    m->special[1] = index / b[0] % b[1];
    m->special[2] = index / b[0] / b[1];
    while (!m->failed) {
        if (t->at >= m->p->count) t->is_done = true;
        if (t->is_done) return;
        const struct ptxi_insn *q = &m->p->code[t->at++];
        if (++t->steps > STEPS_MAX) fail(m, q, "a thread does not end", t->steps);
        m->count->instructions++;
        if (!run_instruction(m, q)) return;
    }
}

/* Fresh registers, shared and local memory hold what nobody wrote on purpose. */
enum { FRESH = 0x5a };

static void thread_begin(const struct machine *m, struct thread *t)
{
    memset(t->registers, FRESH, m->p->register_count * sizeof *t->registers);
    memset(t->local, FRESH, m->p->local_size);
    t->at = 0;
    t->steps = 0;
    t->is_done = false;
}

/* One struct thread does for all when none waits for another. */
static void run_block_plain(struct machine *m, struct thread *t, unsigned count)
{
    for (unsigned i = 0; i < count && !m->failed; i++) {
        thread_begin(m, t);
        run_thread(m, t, i);
    }
}

static void run_block_with_barriers(struct machine *m, struct thread *threads, unsigned count)
{
    unsigned waiting;

    for (unsigned i = 0; i < count; i++) thread_begin(m, &threads[i]);
    do {
        waiting = 0;
        for (unsigned i = 0; i < count && !m->failed; i++) {
            if (threads[i].is_done) continue;
            run_thread(m, &threads[i], i);
            waiting += !threads[i].is_done;
        }
    } while (waiting > 0 && !m->failed);
}

static void run_block(struct machine *m, uint64_t block, struct thread *threads)
{
    const unsigned *g = m->launch->grid, *b = m->launch->block;
    unsigned count = b[0] * b[1] * b[2];

    m->special[6] = (unsigned)(block % g[0]);
    m->special[7] = (unsigned)(block / g[0] % g[1]);
    m->special[8] = (unsigned)(block / g[0] / g[1]);
    memset(m->shared, FRESH, m->p->shared_size);
    if (m->p->waits) run_block_with_barriers(m, threads, count);
    else run_block_plain(m, threads, count);
}

static struct thread *threads_new(const struct ptxi *p, unsigned count)
{
    struct thread *t = sim_new(count * sizeof *t);
    for (unsigned i = 0; i < count; i++) {
        t[i].registers = sim_new(p->register_count * sizeof *t->registers);
        t[i].local = sim_new(p->local_size);
    }
    return t;
}

static void threads_free(struct thread *t, unsigned count)
{
    for (unsigned i = 0; i < count; i++) {
        free(t[i].registers);
        free(t[i].local);
    }
    free(t);
}

int ptxi_run(const struct ptxi *p, const struct ptxi_launch *l, struct ptxi_count *count, char *why, size_t why_size)
{
    unsigned contexts = p->waits ? l->block[0] * l->block[1] * l->block[2] : 1;
    struct machine m = {.p = p, .launch = l, .count = count, .why = why, .why_size = why_size};
    uint64_t blocks = (uint64_t)l->grid[0] * l->grid[1] * l->grid[2];
    struct thread *threads = threads_new(p, contexts);
    struct order order = order_of(blocks, l->seed);

    m.shared = sim_new(p->shared_size);
    for (unsigned i = 0; i < 3; i++) {
        m.special[3 + i] = l->block[i];
        m.special[9 + i] = l->grid[i];
    }
    for (uint64_t n = 0; n < blocks && !m.failed; n++) run_block(&m, order_next(&order), threads);
    free(m.shared);
    threads_free(threads, contexts);
    return m.failed ? -1 : 0;
}
