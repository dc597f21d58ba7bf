/* Programs: random ones against a tree evaluator written here, broken ones against the parser, and what is told of them.
 *
 * The evaluator shares with the code under test only the text of exp, log and tanh (gpu/program_math.h), whose accuracy
 * has its own test. It computes every operation in double and rounds it to the type of the values: for + - * / and sqrt of
 * floats that is the same as rounding once (a double has more than twice their digits and two). */
#include "gpu/program.h"

#include "service/base/mem.h"
#include "tests/lib/test.h"

#include <float.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MATH_INLINE static inline
#define MATH(...) __VA_ARGS__

static inline unsigned long long math_bits(double x)
{
    unsigned long long bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

static inline double math_real(unsigned long long bits)
{
    double x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

#include "gpu/program_math.h"

#if defined(__has_feature)
#define SLOW (__has_feature(address_sanitizer) || __has_feature(thread_sanitizer))
#elif defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SLOW 1
#else
#define SLOW 0
#endif

static struct error error;

/* ---- a tree, its text and its meaning ------------------------------------------------------------------------------- */

enum { COUNT_MAX = 600, NODES_MAX = 600, STATEMENTS_MAX = 40, LOCALS = 6, SLOTS = 3, PARAMS = 3, STEPS = 3 };

/* Names: the two arrays, slots, locals, then scalars. */
enum { N_STORED, N_GRAD, N_SLOT, N_LOCAL = N_SLOT + SLOTS, N_PARAM = N_LOCAL + LOCALS, N_MOMENT = N_PARAM + PARAMS,
       N_PI = N_MOMENT + EXPR_MOMENT_COUNT, N_E, NAMES };

static const char *const names[NAMES] = {"stored", "grad", "s0", "s1", "s2", "x0", "x1", "x2", "x3", "x4", "x5", "p0", "p1",
                                         "p2", "step", "contributors", "num_workers", "staleness", "pi", "e"};

enum kind { NUMBER, NAME, NEG, POW, MUL, DIV, ADD, SUB, LT, LE, GT, GE, EQ, NE, MIN, MAX, ABS, SQRT, EXP, LOG, TANH, SIGN,
            CLAMP, WHERE };

static const struct {
    const char *text;        /* an infix sign, or a function */
    unsigned operands;
    unsigned binds;          /* the higher, the closer; functions and leaves bind closest */
} kinds[] = {
    [NUMBER] = {"", 0, 6}, [NAME] = {"", 0, 6}, [NEG] = {"-", 1, 4}, [POW] = {"^", 2, 5}, [MUL] = {"*", 2, 3},
    [DIV] = {"/", 2, 3}, [ADD] = {"+", 2, 2}, [SUB] = {"-", 2, 2}, [LT] = {"<", 2, 1}, [LE] = {"<=", 2, 1},
    [GT] = {">", 2, 1}, [GE] = {">=", 2, 1}, [EQ] = {"==", 2, 1}, [NE] = {"!=", 2, 1}, [MIN] = {"min", 2, 6},
    [MAX] = {"max", 2, 6}, [ABS] = {"abs", 1, 6}, [SQRT] = {"sqrt", 1, 6}, [EXP] = {"exp", 1, 6}, [LOG] = {"log", 1, 6},
    [TANH] = {"tanh", 1, 6}, [SIGN] = {"sign", 1, 6}, [CLAMP] = {"clamp", 3, 6}, [WHERE] = {"where", 3, 6},
};
enum { KINDS = sizeof kinds / sizeof kinds[0] };

struct node {
    enum kind kind;
    bool scalar;
    double number;
    unsigned name, in[3];
};

struct statement {
    unsigned name, root;
};

struct sample {
    uint64_t random;
    bool is_float;
    size_t count;
    struct node nodes[NODES_MAX];
    unsigned node_count;
    struct statement statements[STATEMENTS_MAX];
    unsigned statement_count;
    bool known[NAMES], scalar[NAMES], read[NAMES], assigned[NAMES], starts_as_stored[SLOTS];
    double params[PARAMS];
    struct buf text;
    double scalars[NAMES], elements[N_PARAM][COUNT_MAX];     /* values while evaluating */
};

static unsigned below(struct sample *s, unsigned n) { return (unsigned)(rng_next(&s->random) % n); }

static double awkward(struct sample *s)
{
    static const double list[] = {0, -0.0, 1, -1, 0.5, 2, 3, 1e-8, 1e30, -1e30, 16777217, 0x1p-126, 0x1p-149, -0x1.8p-140,
                                  0x1.fffffep127, 710, -746};
    switch (below(s, 12)) {
    case 0: return list[below(s, sizeof list / sizeof list[0])];
    case 1: return (double)INFINITY * (below(s, 2) ? 1 : -1);
    case 2: return below(s, 3) ? 0 : (double)NAN;
    case 3: {
        uint32_t bits = (uint32_t)rng_next(&s->random);
        float f;
        memcpy(&f, &bits, sizeof f);
        return (double)f;
    }
    default: return (double)(rng_next(&s->random) >> 11) * 0x1p-52 - 1;
    }
}

static double rounded(const struct sample *s, double x) { return s->is_float ? (double)(float)x : x; }

static double one(enum kind kind, double a, double b, double c)
{
    switch (kind) {
    case NEG: return -a;
    case POW: return pow(a, b);
    case MUL: return a * b;
    case DIV: return a / b;
    case ADD: return a + b;
    case SUB: return a - b;
    case LT: return a < b;
    case LE: return a <= b;
    case GT: return a > b;
    case GE: return a >= b;
    case EQ: return a == b;
    case NE: return a != b;
    case MIN: return isnan(a) || a < b ? a : b;
    case MAX: return isnan(a) || a > b ? a : b;
    case ABS: return fabs(a);
    case SQRT: return sqrt(a);
    case EXP: return math_exp(a);
    case LOG: return math_log(a);
    case TANH: return math_tanh(a);
    case SIGN: return isnan(a) || a == 0 ? a : (a > 0) - (a < 0);
    case CLAMP: a = a > c ? c : a; return a < b ? b : a;
    default: return a != 0 ? b : c;
    }
}

/* Of a scalar: in double. Of an element: every operand and result in the type of the values. */
static double value(struct sample *s, unsigned at, size_t i)
{
    const struct node *n = &s->nodes[at];
    double in[3] = {0};

    if (n->kind == NUMBER) return n->number;
    if (n->kind == NAME) return n->scalar ? s->scalars[n->name] : s->elements[n->name][i];
    for (unsigned k = 0; k < kinds[n->kind].operands; k++) {
        in[k] = value(s, n->in[k], i);
        if (!n->scalar) in[k] = rounded(s, in[k]);
    }
    double v = one(n->kind, in[0], in[1], in[2]);
    return n->scalar ? v : rounded(s, v);
}

static void run_statement(struct sample *s, const struct statement *st)
{
    bool scalar = s->nodes[st->root].scalar;

    if (scalar && st->name >= N_LOCAL) {
        s->scalars[st->name] = value(s, st->root, 0);
        return;
    }
    for (size_t i = 0; i < s->count; i++) s->elements[st->name][i] = rounded(s, value(s, st->root, i));
}

/* ---- making one ---------------------------------------------------------------------------------------------------- */

static unsigned node_add(struct sample *s, struct node n)
{
    CHECK(s->node_count < NODES_MAX);
    s->nodes[s->node_count] = n;
    return s->node_count++;
}

static unsigned read_name(struct sample *s, unsigned name)
{
    s->read[name] = true;
    return node_add(s, (struct node){.kind = NAME, .name = name, .scalar = s->scalar[name]});
}

static unsigned leaf(struct sample *s, bool scalar)
{
    for (unsigned tries = 0; tries < 8; tries++) {
        unsigned name = below(s, NAMES);
        if (s->known[name] && (!scalar || s->scalar[name])) return read_name(s, name);
    }
    double number = fabs(awkward(s));
    return node_add(s, (struct node){.kind = NUMBER, .scalar = true, .number = isfinite(number) ? number : 3});
}

static unsigned grow(struct sample *s, unsigned depth, bool scalar)
{
    enum kind kind = (enum kind)(NEG + below(s, KINDS - NEG));
    struct node n = {.scalar = true};

    if (depth == 0 || below(s, 4) == 0 || s->node_count > NODES_MAX - 100) return leaf(s, scalar);
    if (below(s, 2)) kind = (enum kind)(MUL + below(s, 4));      /* so that instructions for several are met */
    n.kind = kind;
    for (unsigned k = 0; k < kinds[kind].operands; k++) {
        n.in[k] = grow(s, depth - 1, scalar || kind == POW || below(s, 5) == 0);
        n.scalar = n.scalar && s->nodes[n.in[k]].scalar;
    }
    return node_add(s, n);
}

static void print(struct sample *s, unsigned at, unsigned least);

static void print_function(struct sample *s, const struct node *n)
{
    buf_format(&s->text, "%s(", kinds[n->kind].text);
    for (unsigned k = 0; k < kinds[n->kind].operands; k++) {
        if (k > 0) buf_text(&s->text, below(s, 2) ? ", " : ",");
        print(s, n->in[k], 0);
    }
    buf_text(&s->text, ")");
}

static void print_inner(struct sample *s, const struct node *n)
{
    static const char *const spaces[] = {" ", "", "\t", " \n ", "  # why\n"};
    unsigned binds = kinds[n->kind].binds;

    if (n->kind == NAME) {
        buf_text(&s->text, names[n->name]);
    } else if (n->kind == NUMBER) {
        buf_format(&s->text, below(s, 2) ? "%.17g" : "%.17E", n->number);
    } else if (n->kind == NEG) {
        buf_text(&s->text, "-");
        print(s, n->in[0], binds);
    } else if (binds == 6) {
        print_function(s, n);
    } else {
        print(s, n->in[0], n->kind == POW ? 6 : binds + (binds == 1));
        buf_format(&s->text, "%s%s%s", below(s, 2) ? " " : "", kinds[n->kind].text, spaces[below(s, 5)]);
        print(s, n->in[1], n->kind == POW ? 4 : binds + 1);
    }
}

/* In parentheses where the language needs them, and now and then where it does not. */
static void print(struct sample *s, unsigned at, unsigned least)
{
    const struct node *n = &s->nodes[at];
    bool enclosed = kinds[n->kind].binds < least || below(s, 12) == 0;

    if (enclosed) buf_text(&s->text, "(");
    print_inner(s, n);
    if (enclosed) buf_text(&s->text, ")");
}

static void statement_end(struct sample *s)
{
    static const char *const ends[] = {"\n", ";", " ; ", "\n\n", " # so\n", "\r\n"};
    buf_text(&s->text, ends[below(s, 6)]);
}

/* name = tree, or name += tree when the tree is made so. */
static void add_statement(struct sample *s, unsigned name, unsigned root)
{
    static const enum kind changes[] = {ADD, SUB, MUL, DIV};

    CHECK(s->statement_count < STATEMENTS_MAX);
    buf_format(&s->text, "%s ", names[name]);
    if (s->known[name] && below(s, 4) == 0) {
        enum kind kind = changes[below(s, 4)];
        unsigned old = node_add(s, (struct node){.kind = NAME, .name = name, .scalar = s->scalar[name]});
        buf_format(&s->text, "%s= ", kinds[kind].text);
        print(s, root, 0);
        root = node_add(s, (struct node){.kind = kind, .in = {old, root}, .scalar = s->scalar[name] && s->nodes[root].scalar});
    } else {
        buf_text(&s->text, below(s, 8) ? "= " : "=\n");
        print(s, root, 0);
    }
    statement_end(s);
    s->statements[s->statement_count++] = (struct statement){name, root};
    s->known[name] = s->assigned[name] = true;
    if (name >= N_LOCAL) s->scalar[name] = s->nodes[root].scalar;
}

static void declare(struct sample *s, unsigned params, unsigned slots)
{
    for (unsigned i = 0; i < NAMES; i++) {
        s->known[i] = i < N_SLOT || i >= N_MOMENT;
        s->scalar[i] = i >= N_PARAM;
        s->read[i] = s->assigned[i] = false;
    }
    for (unsigned i = 0; i < params; i++) {
        double v = awkward(s);
        s->params[i] = isfinite(v) ? v : 0.25;
        s->known[N_PARAM + i] = true;
        buf_format(&s->text, "param p%u = 1", i);
        statement_end(s);
    }
    for (unsigned i = 0; i < slots; i++) {
        s->starts_as_stored[i] = below(s, 2);
        s->known[N_SLOT + i] = true;
        buf_format(&s->text, "slot s%u = %s", i, s->starts_as_stored[i] ? "stored" : "0");
        statement_end(s);
    }
}

/* Whatever was declared gets its use, or the text would be refused. */
static void finish(struct sample *s, unsigned slots)
{
    for (unsigned i = 0; i < slots; i++)
        if (!s->assigned[N_SLOT + i]) add_statement(s, N_SLOT + i, grow(s, 2, false));
    for (unsigned i = N_LOCAL; i < N_MOMENT; i++)
        if (s->known[i] && !s->read[i]) {
            unsigned a = read_name(s, N_STORED), b = read_name(s, i);
            add_statement(s, N_STORED, node_add(s, (struct node){.kind = below(s, 2) ? ADD : SUB, .in = {a, b}}));
        }
    if (!s->assigned[N_STORED]) add_statement(s, N_STORED, grow(s, 3, false));
}

static void make_sample(struct sample *s, uint64_t seed)
{
    s->random = seed;
    s->is_float = below(s, 4) != 0;
    s->count = below(s, 40) == 0 ? 1 + below(s, COUNT_MAX) : 1 + below(s, 24);
    s->node_count = s->statement_count = 0;
    buf_clear(&s->text);
    unsigned params = below(s, PARAMS + 1), slots = below(s, SLOTS + 1), statements = 1 + below(s, 6);
    declare(s, params, slots);
    for (unsigned i = 0; i < statements; i++) {
        unsigned name = below(s, N_PARAM);
        if (name == N_GRAD || (name >= N_SLOT && name < N_LOCAL && name - N_SLOT >= slots)) name = N_STORED;
        add_statement(s, name, grow(s, 1 + below(s, 4), below(s, 6) == 0));
    }
    finish(s, slots);
    CHECK(!s->text.failed);
}

/* ---- comparing ------------------------------------------------------------------------------------------------------ */

union array {
    float f32[COUNT_MAX];
    double f64[COUNT_MAX];
};

static void fill(const struct sample *s, union array *a, const double *from)
{
    for (size_t i = 0; i < s->count; i++) {
        if (s->is_float) a->f32[i] = (float)from[i];
        else a->f64[i] = from[i];
    }
}

static void run_program(const struct sample *s, const struct program *p, union array *arrays, const double *moments)
{
    double scalars[PROGRAM_SCALARS_MAX];
    float *f32[PROGRAM_SCRATCH0];
    double *f64[PROGRAM_SCRATCH0];

    for (unsigned i = 0; i < PROGRAM_SCRATCH0; i++) {
        f32[i] = i < N_LOCAL ? arrays[i].f32 : NULL;
        f64[i] = i < N_LOCAL ? arrays[i].f64 : NULL;
    }
    program_scalars(p, s->params, moments, scalars);
    if (s->is_float) program_run_f32(p, scalars, f32, s->count);
    else program_run_f64(p, scalars, f64, s->count);
}

static void compare(const struct sample *s, uint64_t seed, const union array *arrays)
{
    for (unsigned a = 0; a < N_LOCAL; a++)
        for (size_t i = 0; i < s->count; i++) {
            double got = s->is_float ? (double)arrays[a].f32[i] : arrays[a].f64[i], want = s->elements[a][i];
            if (math_bits(got) != math_bits(want) && !(isnan(got) && isnan(want)))
                test_fail(__FILE__, __LINE__, "seed %llu, %s, %s[%zu]: %a, not %a\n%.*s", (unsigned long long)seed,
                          s->is_float ? "f32" : "f64", names[a], i, got, want, (int)s->text.size,
                          (const char *)s->text.at);
        }
}

static void begin(struct sample *s, union array *arrays)
{
    for (size_t i = 0; i < s->count; i++) s->elements[N_STORED][i] = rounded(s, awkward(s));
    for (unsigned k = 0; k < SLOTS; k++)
        for (size_t i = 0; i < s->count; i++)
            s->elements[N_SLOT + k][i] = s->starts_as_stored[k] ? s->elements[N_STORED][i] : 0;
    s->scalars[N_PI] = acos(-1);
    s->scalars[N_E] = 2.718281828459045235360287;
    memcpy(&s->scalars[N_PARAM], s->params, sizeof s->params);
    for (unsigned a = 0; a < N_LOCAL; a++) fill(s, &arrays[a], s->elements[a]);
}

static void step(struct sample *s, unsigned t, const struct program *p, union array *arrays)
{
    double moments[EXPR_MOMENT_COUNT] = {t, 1 + below(s, 5), 1 + below(s, 9), below(s, 4)};

    memcpy(&s->scalars[N_MOMENT], moments, sizeof moments);
    for (size_t i = 0; i < s->count; i++) s->elements[N_GRAD][i] = rounded(s, awkward(s));
    fill(s, &arrays[N_GRAD], s->elements[N_GRAD]);
    for (unsigned i = 0; i < s->statement_count; i++) run_statement(s, &s->statements[i]);
    run_program(s, p, arrays, moments);
}

/* false: it was too large for a program. */
static bool compare_sample(struct sample *s, uint64_t seed)
{
    static union array arrays[N_LOCAL];
    struct program *p = NULL;

    make_sample(s, seed);
    if (program_new(bytes_of(s->text.at, s->text.size), &p, &error) != STATUS_OK) {
        bool large = strstr(error.text, "too many") != NULL || strstr(error.text, "too long") != NULL;
        if (!large) test_fail(__FILE__, __LINE__, "seed %llu: %s\n%.*s", (unsigned long long)seed, error.text,
                              (int)s->text.size, (const char *)s->text.at);
        return false;
    }
    begin(s, arrays);
    for (unsigned t = 1; t <= STEPS; t++) {
        step(s, t, p, arrays);
        compare(s, seed, arrays);
    }
    program_free(p);
    return true;
}

TEST(random_programs_give_the_bits_of_their_trees)
{
    unsigned programs = SLOW ? 10000 : 100000, taken = 0;
    struct sample *s = mem_zero(sizeof *s);

    test_time_limit(600);
    CHECK(s != NULL);
    for (uint64_t seed = 1; taken < programs; seed++) {
        taken += compare_sample(s, seed);
        CHECK(seed < 2 * (uint64_t)programs);
    }
    buf_fini(&s->text);
    mem_free(s);
}

/* ---- broken texts --------------------------------------------------------------------------------------------------- */

static const char *const words[] = {"stored", "grad", "step", "param ", "slot ", "sqrt(", "where(", "clamp(", "(", ")", ",", ";",
                                    "\n", "=", "+=", "==", "<", ">=", "^", "-", "*", "/", "+", "1e-8", "0.5", "1e999", "0x1",
                                    "e", "#", "**", "&&", "\x80", "\xe2\x82\xac", "99999999999999999999", ".", "1.", "p0", "x0"};

static void insert(struct buf *b, size_t at, const char *from, size_t size)
{
    size_t tail = b->size - at;

    CHECK(buf_room(b, size) != NULL);
    memmove(b->at + at + size, b->at + at, tail);
    memcpy(b->at + at, from, size);
}

static void cut(struct buf *b, size_t at, size_t size)
{
    memmove(b->at + at, b->at + at + size, b->size - at - size);
    b->size -= size;
}

static void mutate(struct sample *s, struct buf *b)
{
    size_t at = below(s, (unsigned)b->size + 1), rest = b->size - at;
    const char *word = words[below(s, sizeof words / sizeof words[0])];

    switch (below(s, 5)) {
    case 0: insert(b, at, word, strlen(word)); break;
    case 1: if (rest > 0) b->at[at] = (uint8_t)rng_next(&s->random); break;
    case 2: if (rest > 0) cut(b, at, 1 + below(s, rest > 8 ? 8 : (unsigned)rest)); break;
    case 3: if (rest > 1) insert(b, below(s, (unsigned)at + 1), (const char *)b->at + at, 1); break;
    default: if (rest > 0) b->at[at] = (uint8_t)word[0];
    }
}

static void random_words(struct sample *s, struct buf *b)
{
    for (unsigned i = below(s, 30); i > 0; i--) buf_text(b, words[below(s, sizeof words / sizeof words[0])]);
}

/* Whether it is taken; then it runs, and prints. */
static bool try_text(struct bytes text, struct buf *cuda)
{
    float room[PROGRAM_SCRATCH0][5] = {{1, 2, 3}}, *arrays[PROGRAM_SCRATCH0];
    const double moments[EXPR_MOMENT_COUNT] = {1, 1, 1, 0};
    double params[PROGRAM_PARAMS_MAX] = {0.5}, scalars[PROGRAM_SCALARS_MAX];
    struct program *p = NULL;

    if (program_new(text, &p, &error) != STATUS_OK) {
        CHECK_EQ(error.reason, REASON_UPDATER_INVALID);
        return false;
    }
    for (unsigned i = 0; i < PROGRAM_SCRATCH0; i++) arrays[i] = room[i];
    program_scalars(p, params, moments, scalars);
    program_run_f32(p, scalars, arrays, 5);
    buf_clear(cuda);
    program_cuda(p, DTYPE_f32, cuda);
    CHECK(!cuda->failed);
    program_free(p);
    return true;
}

/* The fuzzer does this for hours; here it belongs to every test run. */
TEST(a_million_random_and_mutated_texts_are_read_or_told)
{
    unsigned texts = SLOW ? 100000 : 1000000, taken = 0;
    struct sample *s = mem_zero(sizeof *s);
    struct buf broken = {0}, cuda = {0};

    test_time_limit(600);
    CHECK(s != NULL);
    for (unsigned i = 0; i < texts; i++) {
        if (i % 32 == 0) make_sample(s, i + 1);
        buf_clear(&broken);
        if (i % 4 == 0) random_words(s, &broken);
        else buf_add(&broken, s->text.at, s->text.size);
        for (unsigned k = below(s, 4); k > 0; k--) mutate(s, &broken);
        taken += try_text(bytes_of(broken.at, broken.size), &cuda);
    }
    CHECK(taken > texts / 10);
    CHECK(taken < texts / 10 * 9);
    buf_fini(&broken);
    buf_fini(&cuda);
    buf_fini(&s->text);
    mem_free(s);
}

/* ---- how a program is made ------------------------------------------------------------------------------------------- */

static struct program *made(const char *text)
{
    struct program *p = NULL;
    CHECK_OK(program_new(bytes_text(text), &p, &error), &error);
    return p;
}

static const struct {
    const char *text;
    unsigned instructions, registers, bytes;
} sizes[] = {
    {"stored = grad", 1, 0, 8},
    {"stored += grad * 2", 1, 0, 12},
    {"stored -= 0.1 * grad + 0.01 * stored", 2, 1, 12},
    {"slot m = 0; m = 0.9 * m - 0.1 * grad; stored += m", 2, 0, 20},
    {"a = grad * grad; b = grad * grad; stored = sqrt(a) + sqrt(b)", 3, 1, 8},     /* equal ones once */
    {"a = grad * stored; a = grad; stored = a", 1, 0, 8},                           /* what nobody wants, never */
    {"slot m = 0, v = 0\nm = 0.9 * m + 0.1 * grad\nv = 0.999 * v + 0.001 * (grad * grad)\n"
     "stored -= 0.1 * (m / (sqrt(v) + 1e-8))", 3, 0, 28},
    {"slot a = 0, b = 0; t = a; a = b; b = t; stored = grad", 4, 1, 24},
    {"x = step * 2 + 1; stored = x", 1, 0, 4},
};

TEST(programs_are_as_small_as_they_can_be)
{
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        struct program *p = made(sizes[i].text);
        if (p->insn_count != sizes[i].instructions || p->register_count != sizes[i].registers ||
            program_bytes(p, DTYPE_f32) != sizes[i].bytes)
            test_fail(__FILE__, __LINE__, "%s: %u instructions, %u registers, %u bytes", sizes[i].text, p->insn_count,
                      p->register_count, program_bytes(p, DTYPE_f32));
        CHECK_EQ(program_bytes(p, DTYPE_f64), 2 * sizes[i].bytes);
        program_free(p);
    }
}

TEST(params_are_found_by_name_and_come_with_each_step)
{
    struct program *p = made("param lr = 0.5, wd = 1\nstored -= lr * grad + wd");
    const double moments[EXPR_MOMENT_COUNT] = {1, 1, 1, 0};
    double scalars[PROGRAM_SCALARS_MAX];
    float stored = 8, grad = 2, *arrays[PROGRAM_SCRATCH0] = {&stored, &grad};

    CHECK_EQ(program_param_find(p, bytes_text("lr")), 0);
    CHECK_EQ(program_param_find(p, bytes_text("wd")), 1);
    CHECK_EQ(program_param_find(p, bytes_text("l")), -1);
    CHECK_EQ(program_param_find(p, bytes_text("grad")), -1);
    program_scalars(p, (const double[]){0.5, 1}, moments, scalars);
    program_run_f32(p, scalars, arrays, 1);
    CHECK(stored == 6);
    program_scalars(p, (const double[]){2, 0}, moments, scalars);
    program_run_f32(p, scalars, arrays, 1);
    CHECK(stored == 2);
    program_free(p);
}

TEST(scalars_are_computed_in_double_and_rounded_once)
{
    struct program *p = made("param a = 0.1, b = 0.2\nstored = grad * (a + b - 0.3)");
    const double moments[EXPR_MOMENT_COUNT] = {1, 1, 1, 0}, params[] = {0.1, 0.2};
    double scalars[PROGRAM_SCALARS_MAX];
    float stored = 0, grad = 1, *arrays[PROGRAM_SCRATCH0] = {&stored, &grad};

    program_scalars(p, params, moments, scalars);
    program_run_f32(p, scalars, arrays, 1);
    CHECK(stored == (float)(0.1 + 0.2 - 0.3));
    CHECK(stored != 0);
    program_free(p);
}

TEST(the_last_block_is_not_overrun)
{
    struct program *p = made("slot m = 0; t = sqrt(abs(grad)); m = m * t + grad; stored -= t / (m + 3)");
    const double moments[EXPR_MOMENT_COUNT] = {1, 1, 1, 0};
    double scalars[PROGRAM_SCALARS_MAX];

    program_scalars(p, NULL, moments, scalars);
    for (size_t count = 0; count < 600; count += count < 300 ? 1 : 37) {
        float *arrays[PROGRAM_SCRATCH0] = {guard_new(count * 4), guard_new(count * 4), guard_new(count * 4)};
        for (unsigned a = 0; a < 3; a++) memset(arrays[a], 0, count * 4);
        program_run_f32(p, scalars, arrays, count);
        for (unsigned a = 0; a < 3; a++) guard_free(arrays[a], count * 4);
    }
    program_free(p);
}

/* ---- exp, log, tanh --------------------------------------------------------------------------------------------------- */

/* Distance from the true value in units of the last place of a double. */
static double ulps(double got, long double want)
{
    double near = (double)want;

    if (isnan(near) || isinf(near) || near == 0) return got == near || (isnan(got) && isnan(near)) ? 0 : 1e9;
    return (double)(fabsl((long double)got - want) / (long double)(nextafter(fabs(near), (double)INFINITY) - fabs(near)));
}

static double spread(uint64_t *random, double most)
{
    double x = (double)(rng_next(random) >> 11) * 0x1p-52 - 1;
    return ldexp(x, (int)(rng_next(random) % 40) - 39) * most;
}

TEST(exp_log_and_tanh_are_near_the_truth)
{
    uint64_t random = 3;
    double worst[3] = {0};

    for (unsigned i = 0; i < (SLOW ? 100000u : 1000000u); i++) {
        double x = spread(&random, 708), y = spread(&random, 24), z;
        uint64_t bits = rng_next(&random) >> 1;
        memcpy(&z, &bits, sizeof z);
        worst[0] = fmax(worst[0], ulps(math_exp(x), expl((long double)x)));
        worst[1] = fmax(worst[1], ulps(math_log(z), logl((long double)z)));
        worst[1] = fmax(worst[1], ulps(math_log(1 + y / 64), logl((long double)(1 + y / 64))));
        worst[2] = fmax(worst[2], ulps(math_tanh(y), tanhl((long double)y)));
    }
    if (!(worst[0] < 1 && worst[1] < 1 && worst[2] < 3))
        test_fail(__FILE__, __LINE__, "exp %.3f, log %.3f, tanh %.3f", worst[0], worst[1], worst[2]);
}

TEST(exp_log_and_tanh_know_their_ends)
{
    const double inf = (double)INFINITY;

    CHECK(math_exp(0) == 1 && math_exp(-0.0) == 1 && math_exp(inf) == inf && math_exp(-inf) == 0);
    CHECK(math_exp(709.8) == inf && isfinite(math_exp(709.7)) && math_exp(-745) == 0x1p-1074 && math_exp(-746) == 0);
    CHECK(isnan(math_exp((double)NAN)) && isnan(math_log((double)NAN)) && isnan(math_tanh((double)NAN)));
    CHECK(math_log(1) == 0 && math_log(0) == -inf && math_log(-0.0) == -inf && math_log(inf) == inf);
    CHECK(isnan(math_log(-1)) && isnan(math_log(-inf)) && ulps(math_log(0x1p-1074), logl(0x1p-1074L)) < 1);
    CHECK(math_tanh(inf) == 1 && math_tanh(-inf) == -1 && math_tanh(0) == 0 && signbit(math_tanh(-0.0)));
    CHECK(!signbit(math_tanh(0)) && math_tanh(1e-300) == 1e-300 && math_tanh(30) == 1);
}

/* ---- what is told ----------------------------------------------------------------------------------------------------- */

TEST(a_report_tells_needs_and_an_example)
{
    static const char text[] = "param lr = 0.5, mu = 0.25\nslot m = 0, start = stored\n"
                               "m = mu * m + grad; start = start; stored -= lr * m";
    const struct program_setting setting = {bytes_text("lr"), 1};
    struct buf json = {0};

    CHECK_OK(program_report(bytes_text(text), &setting, 1, &json, &error), &error);
    buf_add(&json, "", 1);
    CHECK_TEXT((const char *)json.at,
               "{\"slots\": [{\"name\": \"m\", \"starts_as\": 0}, {\"name\": \"start\", \"starts_as\": \"stored\"}], "
               "\"params\": [{\"name\": \"lr\", \"standard\": 0.5, \"value\": 1.0}, "
               "{\"name\": \"mu\", \"standard\": 0.25, \"value\": 0.25}], "
               "\"instructions\": 2, \"host_operations\": 0, \"registers\": 0, \"scalars\": 2, "
               "\"bytes_per_element\": {\"f32\": 20, \"f64\": 40}, \"state_bytes_per_element\": {\"f32\": 8, \"f64\": 16}, "
               "\"example\": {\"contributors\": 1, \"num_workers\": 1, \"staleness\": 0, "
               "\"stored\": [1.0, -0.5, 0.0, 2.0], \"grad\": [0.5, -1.0, 0.25, 0.0], \"steps\": ["
               "{\"stored\": [0.5, 0.5, -0.25, 2.0], \"slots\": {\"m\": [0.5, -1.0, 0.25, 0.0], "
               "\"start\": [1.0, -0.5, 0.0, 2.0]}}, "
               "{\"stored\": [-0.125, 1.75, -0.5625, 2.0], \"slots\": {\"m\": [0.625, -1.25, 0.3125, 0.0], "
               "\"start\": [1.0, -0.5, 0.0, 2.0]}}]}}");
    buf_fini(&json);
}

TEST(a_report_is_json_whatever_comes_out)
{
    struct buf json = {0};
    json_error_t where;

    CHECK_OK(program_report(bytes_text("slot m = 0; m = 1 / grad; stored = log(-1) + m"), NULL, 0, &json, &error), &error);
    json_t *j = json_loadb((const char *)json.at, json.size, 0, &where);
    CHECK(j != NULL);
    json_t *first = json_array_get(json_object_get(json_object_get(j, "example"), "steps"), 0);
    CHECK_TEXT(json_string_value(json_array_get(json_object_get(first, "stored"), 0)), "NaN");
    CHECK_TEXT(json_string_value(json_array_get(json_object_get(json_object_get(first, "slots"), "m"), 3)), "Infinity");
    json_decref(j);
    buf_fini(&json);
}

TEST(a_report_refuses_a_param_that_is_not_there)
{
    struct buf json = {0};
    struct program_setting setting = {bytes_text("lrr"), 1};
    static const char text[] = "param lrr1 = 1; stored -= lrr1 * grad";

    CHECK_EQ(program_report(bytes_text(text), &setting, 1, &json, &error), STATUS_INVALID_ARGUMENT);
    CHECK_TEXT(error.text, "/params/lrr: the program has no such param; did you mean lrr1?");
    setting = (struct program_setting){bytes_text("lrr1"), (double)INFINITY};
    CHECK_EQ(program_report(bytes_text(text), &setting, 1, &json, &error), STATUS_INVALID_ARGUMENT);
    CHECK_TEXT(error.text, "/params/lrr1: must be a finite number");
    CHECK_EQ(program_report(bytes_text("stored = "), NULL, 0, &json, &error), STATUS_INVALID_ARGUMENT);
    CHECK_SAYS(error.text, "expected a value");
    buf_fini(&json);
}

TEST(every_failing_allocation_of_a_report_is_told)
{
    for (uint64_t n = 1;; n++) {
        struct buf json = {0};
        int64_t before = mem_live();
        mem_fault_at(n);
        enum status s = program_report(bytes_text("slot m = 0; m = grad; stored -= m"), NULL, 0, &json, &error);
        bool hit = mem_fault_hit();
        mem_fault_at(0);
        CHECK_EQ(s, hit ? STATUS_RESOURCE_EXHAUSTED : STATUS_OK);
        buf_fini(&json);
        CHECK_EQ(mem_live(), before);
        if (!hit) break;
    }
}
