/* Reads one kernel out of PTX text, a line at a time, as nvcc and NVRTC print it. */
#include "tests/cusim/ptxi.h"
#include "tests/cusim/ptxi_code.h"
#include "tests/cusim/sim.h"

#include <ctype.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- names: a number for each, in the order of their coming ---------------------------------------------------- */

enum { NAME_SIZE = 160, TABLE_SIZE = 1 << 17 };

struct names {
    unsigned count, table[TABLE_SIZE];       /* 1 + number, or 0 */
    char (*text)[NAME_SIZE];
};

/* A variable in shared memory; it gets its place when it is first named, as a file has those of all its kernels. */
struct shared {
    char name[NAME_SIZE];
    size_t size, at;
    bool has_place;
};

struct reader {
    struct ptxi *p;
    struct names registers, labels;
    unsigned *label_at, labels_known;
    struct shared *shared;
    unsigned shared_count, line;
    char parameter[NAME_SIZE];
    char *why;
    size_t why_size;
    bool failed;
};

static void *grown(void *old, unsigned count, size_t size)
{
    void *p = realloc(old, (size_t)count * size);
    if (p == NULL) abort();
    return p;
}

static void fail(struct reader *r, const char *format, ...) __attribute__((format(printf, 2, 3)));
static void fail(struct reader *r, const char *format, ...)
{
    char said[120];
    va_list args;

    if (r->failed) return;
    va_start(args, format);
    vsnprintf(said, sizeof said, format, args);
    va_end(args);
    snprintf(r->why, r->why_size, "line %u: %s", r->line, said);
    r->failed = true;
}

/* Where the name's number is, or where it would be. */
static unsigned *slot_of(struct names *n, const char *at, size_t size)
{
    uint64_t hash = 14695981039346656037u;

    for (size_t i = 0; i < size; i++) hash = (hash ^ (unsigned char)at[i]) * 1099511628211u;
    for (unsigned slot = (unsigned)(hash >> 20) % TABLE_SIZE;; slot = (slot + 1) % TABLE_SIZE) {
        const char *known = n->table[slot] != 0 ? n->text[n->table[slot] - 1] : NULL;
        if (known == NULL || (strncmp(known, at, size) == 0 && known[size] == '\0')) return &n->table[slot];
    }
}

static unsigned name_of(struct reader *r, struct names *n, const char *at, size_t size)
{
    if (size >= NAME_SIZE || n->count >= TABLE_SIZE / 2) {
        fail(r, "too many names, or too long: %.40s", at);
        return 0;
    }
    unsigned *slot = slot_of(n, at, size);
    if (*slot != 0) return *slot - 1;
    n->text = grown(n->text, n->count + 1, NAME_SIZE);
    snprintf(n->text[n->count], NAME_SIZE, "%.*s", (int)size, at);
    *slot = ++n->count;
    return n->count - 1;
}

/* ---- operands -------------------------------------------------------------------------------------------------- */

static const char *const specials[PTXI_SPECIALS] = {"%tid.x",   "%tid.y",    "%tid.z",    "%ntid.x",
                                                    "%ntid.y",  "%ntid.z",   "%ctaid.x",  "%ctaid.y",
                                                    "%ctaid.z", "%nctaid.x", "%nctaid.y", "%nctaid.z"};

static bool is_word(const char *at, size_t size, const char *word)
{
    return strlen(word) == size && memcmp(at, word, size) == 0;
}

static struct ptxi_arg percent(struct reader *r, const char *at, size_t size)
{
    for (unsigned i = 0; i < PTXI_SPECIALS; i++)
        if (is_word(at, size, specials[i])) return (struct ptxi_arg){.kind = PTXI_SPECIAL, .index = i};
    if (memchr(at, '.', size) != NULL || memchr(at, '|', size) != NULL) fail(r, "register %.*s", (int)size, at);
    return (struct ptxi_arg){.kind = PTXI_REGISTER, .index = name_of(r, &r->registers, at, size)};
}

static struct ptxi_arg number(const char *at)
{
    bool is_real = at[0] == '0' && (at[1] == 'f' || at[1] == 'F' || at[1] == 'd' || at[1] == 'D');
    if (is_real) return (struct ptxi_arg){.kind = PTXI_NUMBER, .number = strtoull(at + 2, NULL, 16)};
    return (struct ptxi_arg){.kind = PTXI_NUMBER,
                             .number = at[0] == '-' ? (uint64_t)strtoll(at, NULL, 0) : strtoull(at, NULL, 0)};
}

static uint64_t shared_place(struct reader *r, struct shared *s)
{
    if (!s->has_place) {
        s->has_place = true;
        s->at = (r->p->shared_size + 15) / 16 * 16;
        r->p->shared_size = s->at + s->size;
    }
    return s->at;
}

static struct ptxi_arg symbol(struct reader *r, const char *at, size_t size)
{
    if (is_word(at, size, r->parameter)) return (struct ptxi_arg){.kind = PTXI_ARGUMENT};
    for (unsigned i = 0; i < r->shared_count; i++)
        if (is_word(at, size, r->shared[i].name)) 
            return (struct ptxi_arg){.kind = PTXI_NUMBER, .number = shared_place(r, &r->shared[i])};
    if (strncmp(at, "__local_depot", 13) == 0) return (struct ptxi_arg){.kind = PTXI_DEPOT};
    unsigned named = size < NAME_SIZE ? *slot_of(&r->registers, at, size) : 0;
    if (named != 0) return (struct ptxi_arg){.kind = PTXI_REGISTER, .index = named - 1};
    fail(r, "operand %.*s", (int)size, at);
    return (struct ptxi_arg){0};
}

static void trim(const char **at, size_t *size)
{
    while (*size > 0 && isspace((unsigned char)**at)) ++*at, --*size;
    while (*size > 0 && isspace((unsigned char)(*at)[*size - 1])) --*size;
}

static struct ptxi_arg operand(struct reader *r, const char *at, size_t size);

static struct ptxi_arg address(struct reader *r, const char *at, size_t size)
{
    const char *plus = memchr(at, '+', size);
    struct ptxi_arg a = operand(r, at + 1, (plus != NULL ? (size_t)(plus - at) : size - 1) - 1);

    if (plus != NULL) a.offset = strtoll(plus + 1, NULL, 0);
    return a;
}

static struct ptxi_arg operand(struct reader *r, const char *at, size_t size)
{
    trim(&at, &size);
    if (size == 0) {
        fail(r, "an operand is missing");
        return (struct ptxi_arg){0};
    }
    if (at[0] == '[' && size > 2) return address(r, at, size);
    if (at[0] == '%') return percent(r, at, size);
    if (at[0] == '$') return (struct ptxi_arg){.kind = PTXI_LABEL, .index = name_of(r, &r->labels, at, size)};
    if (is_word(at, size, "_")) return (struct ptxi_arg){.kind = PTXI_SINK};
    if (isdigit((unsigned char)at[0]) || at[0] == '-') return number(at);
    return symbol(r, at, size);
}

/* A group in braces is spread out. */
static void operands(struct reader *r, struct ptxi_insn *q, const char *at)
{
    while (isspace((unsigned char)*at)) at++;
    q->is_unpacking = *at == '{';
    for (;;) {
        at += strspn(at, " \t{},");
        size_t size = strcspn(at, ",}");
        if (*at == '\0' || r->failed) return;
        if (q->arg_count == PTXI_ARGS_MAX) fail(r, "more than %d operands", PTXI_ARGS_MAX);
        else q->args[q->arg_count++] = operand(r, at, size);
        at += size;
    }
}

/* ---- instructions ---------------------------------------------------------------------------------------------- */

static const struct {
    const char *name;
    enum ptxi_op op;
} ops[] = {
    {"mov", PTXI_MOV},   {"ld", PTXI_LD},     {"st", PTXI_ST},       {"cvta", PTXI_CVTA},
    {"cvt", PTXI_CVT},   {"add", PTXI_ADD},   {"sub", PTXI_SUB},     {"mul", PTXI_MUL},
    {"mad", PTXI_MAD},   {"fma", PTXI_FMA},   {"div", PTXI_DIV},     {"rem", PTXI_REM},
    {"sqrt", PTXI_SQRT}, {"rcp", PTXI_RCP},   {"neg", PTXI_NEG},     {"abs", PTXI_ABS},
    {"min", PTXI_MIN},   {"max", PTXI_MAX},   {"and", PTXI_AND},     {"or", PTXI_OR},
    {"xor", PTXI_XOR},   {"not", PTXI_NOT},   {"shl", PTXI_SHL},     {"shr", PTXI_SHR},
    {"setp", PTXI_SETP}, {"selp", PTXI_SELP}, {"bra", PTXI_BRA},     {"ret", PTXI_RET},
    {"exit", PTXI_RET},  {"bar", PTXI_BAR},   {"barrier", PTXI_BAR}, {"copysign", PTXI_COPYSIGN},
    {"popc", PTXI_POPC}, {"clz", PTXI_CLZ},   {"bfe", PTXI_BFE},     {"prmt", PTXI_PRMT},
    {"atom", PTXI_ATOM}, {"red", PTXI_ATOM},  {"membar", PTXI_NOP},  {"fence", PTXI_NOP},
};

static const struct {
    const char *name;
    enum ptxi_compare compare;
    bool or_nan;
} compares[] = {
    {"eq", PTXI_EQ, false},   {"ne", PTXI_NE, false},   {"lt", PTXI_LT, false}, {"le", PTXI_LE, false},
    {"gt", PTXI_GT, false},   {"ge", PTXI_GE, false},   {"lo", PTXI_LT, false}, {"ls", PTXI_LE, false},
    {"hi", PTXI_GT, false},   {"hs", PTXI_GE, false},   {"equ", PTXI_EQ, true}, {"neu", PTXI_NE, true},
    {"ltu", PTXI_LT, true},   {"leu", PTXI_LE, true},   {"gtu", PTXI_GT, true}, {"geu", PTXI_GE, true},
    {"num", PTXI_NUM, false}, {"nan", PTXI_NAN, false},
};

/* Words that set a field to a number. */
#define FIELD(name) offsetof(struct ptxi_insn, name)
static const struct {
    const char *name;
    size_t field;
    unsigned value;
} words[] = {
    {"global", FIELD(space), PTXI_GLOBAL},
    {"shared", FIELD(space), PTXI_SHARED},
    {"local", FIELD(space), PTXI_LOCAL},
    {"param", FIELD(space), PTXI_PARAM},
    {"rz", FIELD(round), PTXI_TO_ZERO},
    {"rzi", FIELD(round), PTXI_TO_ZERO},
    {"rmi", FIELD(round), PTXI_DOWN},
    {"rpi", FIELD(round), PTXI_UP},
    {"rn", FIELD(round), PTXI_NEAREST},
    {"rni", FIELD(round), PTXI_NEAREST},
    {"lo", FIELD(part), PTXI_LOW},
    {"hi", FIELD(part), PTXI_HIGH},
    {"wide", FIELD(part), PTXI_WIDE},
    {"v2", FIELD(values), 2},
    {"v4", FIELD(values), 4},
    {"and", FIELD(joint), PTXI_WITH_AND},
    {"or", FIELD(joint), PTXI_WITH_OR},
    {"xor", FIELD(joint), PTXI_WITH_XOR},
};

static const struct {
    const char *name;
    enum ptxi_change change;
} changes[] = {
    {"add", PTXI_CHANGE_ADD}, {"and", PTXI_CHANGE_AND}, {"or", PTXI_CHANGE_OR},     {"xor", PTXI_CHANGE_XOR},
    {"min", PTXI_CHANGE_MIN}, {"max", PTXI_CHANGE_MAX}, {"exch", PTXI_CHANGE_EXCH}, {"cas", PTXI_CHANGE_CAS},
};

/* Words that change nothing here: order and caching of one thread after another. */
static const char *const idle[] = {"uni",  "nc",      "cs",      "cg",      "ca",       "lu",  "L1::no_allocate",
                                   "sync", "aligned", "weak",    "relaxed", "volatile", "gpu", "sys",
                                   "cta",  "sc",      "acq_rel", "gl"};

static bool read_type(const char *word, struct ptxi_type *t)
{
    static const struct {
        const char *name;
        struct ptxi_type type;
    } types[] = {
        {"pred", {PTXI_PRED, 1}},     {"bf16", {PTXI_BF16, 16}},    {"f16", {PTXI_REAL, 16}},
        {"f32", {PTXI_REAL, 32}},     {"f64", {PTXI_REAL, 64}},     {"b8", {PTXI_BITS, 8}},
        {"b16", {PTXI_BITS, 16}},     {"b32", {PTXI_BITS, 32}},     {"b64", {PTXI_BITS, 64}},
        {"u8", {PTXI_UNSIGNED, 8}},   {"u16", {PTXI_UNSIGNED, 16}}, {"u32", {PTXI_UNSIGNED, 32}},
        {"u64", {PTXI_UNSIGNED, 64}}, {"s8", {PTXI_SIGNED, 8}},     {"s16", {PTXI_SIGNED, 16}},
        {"s32", {PTXI_SIGNED, 32}},   {"s64", {PTXI_SIGNED, 64}},
    };
    for (size_t i = 0; i < sizeof types / sizeof types[0]; i++)
        if (strcmp(word, types[i].name) == 0) {
            *t = types[i].type;
            return true;
        }
    return false;
}

static bool read_compare(const char *word, struct ptxi_insn *q)
{
    for (size_t i = 0; i < sizeof compares / sizeof compares[0]; i++)
        if (strcmp(word, compares[i].name) == 0) {
            q->compare = compares[i].compare;
            q->or_nan = compares[i].or_nan;
            return true;
        }
    return false;
}

static bool read_change(const char *word, struct ptxi_insn *q)
{
    for (size_t i = 0; i < sizeof changes / sizeof changes[0]; i++)
        if (strcmp(word, changes[i].name) == 0) {
            q->change = changes[i].change;
            return true;
        }
    return false;
}

static bool read_word(const char *word, struct ptxi_insn *q)
{
    if (q->type.kind == PTXI_NONE ? read_type(word, &q->type) : read_type(word, &q->from)) return true;
    if (q->op == PTXI_SETP && read_compare(word, q)) return true;
    if (q->op == PTXI_ATOM && read_change(word, q)) return true;
    if (q->op == PTXI_CVTA && strcmp(word, "to") == 0) return q->to_space = true;
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++)
        if (strcmp(word, words[i].name) == 0) {
            memcpy((char *)q + words[i].field, &words[i].value, sizeof words[i].value);
            return true;
        }
    for (size_t i = 0; i < sizeof idle / sizeof idle[0]; i++)
        if (strcmp(word, idle[i]) == 0) return true;
    return false;
}

static void read_opcode(struct reader *r, char *text, struct ptxi_insn *q)
{
    char whole[80], *save = NULL, *word = strtok_r(text, ".", &save);
    size_t i = 0;

    snprintf(whole, sizeof whole, "%s.%s", text, save);
    while (i < sizeof ops / sizeof ops[0] && (word == NULL || strcmp(word, ops[i].name) != 0)) i++;
    if (i == sizeof ops / sizeof ops[0]) {
        fail(r, "unknown instruction %s", whole);
        return;
    }
    q->op = ops[i].op;
    q->values = 1;
    q->has_result = strcmp(word, "atom") == 0;
    while ((word = strtok_r(NULL, ".", &save)) != NULL)
        if (!read_word(word, q)) fail(r, "unknown word %s of %s", word, whole);
    if (q->op == PTXI_BAR) r->p->waits = true;
}

static char *skip_space(char *at)
{
    while (isspace((unsigned char)*at)) at++;
    return at;
}

static char *read_guard(struct reader *r, char *at, struct ptxi_insn *q)
{
    if (*at != '@') return at;
    q->is_guarded = true;
    q->unless = at[1] == '!';
    at += q->unless ? 2 : 1;
    size_t size = strcspn(at, " \t");
    q->guard = name_of(r, &r->registers, at, size);
    return skip_space(at + size);
}

static void read_instruction(struct reader *r, char *at)
{
    struct ptxi *p = r->p;
    struct ptxi_insn *q;
    char *rest;

    if (*at == '\0') return;
    p->code = grown(p->code, p->count + 1, sizeof *p->code);
    q = &p->code[p->count++];
    memset(q, 0, sizeof *q);
    q->line = r->line;
    at = read_guard(r, at, q);
    rest = at + strcspn(at, " \t");
    if (*rest != '\0') *rest++ = '\0';
    read_opcode(r, at, q);
    if (!r->failed && q->op != PTXI_BAR && q->op != PTXI_NOP) operands(r, q, rest);
}

/* ---- lines ----------------------------------------------------------------------------------------------------- */

static size_t size_in_brackets(const char *line)
{
    const char *open = strchr(line, '[');
    return open != NULL ? strtoul(open + 1, NULL, 10) : 0;
}

/* .shared .align 8 .b8 NAME[2048]; or .shared .align 8 .f64 NAME; */
static void read_shared(struct reader *r, const char *line)
{
    const char *end = line + strcspn(line, "[;"), *at = end;
    struct ptxi_type type = {0};
    char word[8] = "";

    while (at > line && !isspace((unsigned char)at[-1])) at--;
    for (const char *dot = line; (dot = strchr(dot, '.')) != NULL && dot < at; dot++) {
        snprintf(word, sizeof word, "%.*s", (int)strcspn(dot + 1, " \t"), dot + 1);
        (void)read_type(word, &type);
    }
    if (*end == '\0' || type.bits < 8) {
        fail(r, "shared memory %.60s", line);
        return;
    }
    r->shared = grown(r->shared, r->shared_count + 1, sizeof *r->shared);
    struct shared *s = &r->shared[r->shared_count++];
    *s = (struct shared){.size = (*end == '[' ? size_in_brackets(line) : 1) * (type.bits / 8)};
    snprintf(s->name, sizeof s->name, "%.*s", (int)(end - at), at);
}

/* The entry's own list of parameters: one of so many bytes, or of one number. */
static void read_parameter(struct reader *r, const char *line)
{
    if (strstr(line, "_param_1") != NULL) fail(r, "more than one argument");
    if (strstr(line, r->parameter) == NULL) return;
    r->p->arguments_size = size_in_brackets(line);
    if (r->p->arguments_size == 0) r->p->arguments_size = strstr(line, "64 ") != NULL ? 8 : 4;
}

static void label_here(struct reader *r, unsigned label)
{
    if (label >= r->labels_known) {
        unsigned count = 2 * label + 64;
        r->label_at = grown(r->label_at, count, sizeof *r->label_at);
        memset(r->label_at + r->labels_known, 0xff, (count - r->labels_known) * sizeof *r->label_at);
        r->labels_known = count;
    }
    r->label_at[label] = r->p->count;
}

/* .reg .b32 %r<17> has rows of names, which tell themselves; .reg .b32 tmp has one, without the sign. */
static void read_registers(struct reader *r, char *at)
{
    char *name = strrchr(at, ' ');

    if (name == NULL || strpbrk(name, "<%,") != NULL) return;
    name_of(r, &r->registers, name + 1, strcspn(name + 1, " \t"));
}

static bool begins(const char *at, const char *word) { return strncmp(at, word, strlen(word)) == 0; }

static void read_statement(struct reader *r, char *at)
{
    size_t word;

    while (*at == '{' || *at == '}' || isspace((unsigned char)*at)) at++;
    word = strcspn(at, ":");
    if (*at == '$' && at[word] == ':') label_here(r, name_of(r, &r->labels, at, word));
    else if (begins(at, ".local")) r->p->local_size = size_in_brackets(at);
    else if (begins(at, ".reg")) read_registers(r, at);
    else if (*at == '.' && !begins(at, ".pragma") && !begins(at, ".loc")) fail(r, "unknown line %.60s", at);
    else if (*at != '.') read_instruction(r, at);
}

/* One statement as a rule; nvcc writes "{ .reg .b32 tmp; mov.b64 {tmp, %r1}, %rd1; }". */
static void read_body(struct reader *r, char *line)
{
    for (char *one; (one = strsep(&line, ";")) != NULL;) read_statement(r, one);
}

static void read_lines(struct reader *r, char *text, const char *key)
{
    enum { BEFORE, HEAD, BODY, AFTER } where = BEFORE;

    for (char *line; !r->failed && (line = strsep(&text, "\n")) != NULL;) {
        char *comment = strstr(line, "//");
        if (comment != NULL) *comment = '\0';
        line = skip_space(line);
        r->line++;
        if (strncmp(line, ".shared", 7) == 0 && where != AFTER) read_shared(r, line);
        else if (where == BEFORE && strstr(line, key) != NULL) where = HEAD;
        else if (where == BODY && line[0] == '}') where = AFTER;
        else if (where == BODY) read_body(r, line);
        if (where == HEAD && strstr(line, ".param") != NULL) read_parameter(r, line);
        if (where == HEAD && line[0] == '{') where = BODY;
    }
    if (where != AFTER) fail(r, "no such kernel");
}

static void resolve_labels(struct reader *r)
{
    for (unsigned i = 0; i < r->p->count; i++)
        for (unsigned k = 0; k < r->p->code[i].arg_count; k++) {
            struct ptxi_arg *a = &r->p->code[i].args[k];
            if (a->kind == PTXI_LABEL) a->number = a->index < r->labels_known ? r->label_at[a->index] : UINT32_MAX;
            if (a->kind == PTXI_LABEL && a->number == UINT32_MAX) fail(r, "a label that is nowhere");
        }
}

struct ptxi *ptxi_load(const char *ptx, const char *entry, char *why, size_t why_size)
{
    struct reader *r = sim_new(sizeof *r);
    struct ptxi *p = sim_new(sizeof *p);
    char *text = sim_new(strlen(ptx) + 1), key[NAME_SIZE + 16];

    *r = (struct reader){.p = p, .why = why, .why_size = why_size};
    memcpy(text, ptx, strlen(ptx));
    snprintf(key, sizeof key, ".entry %.150s(", entry);
    snprintf(r->parameter, sizeof r->parameter, "%.140s_param_0", entry);
    read_lines(r, text, key);
    resolve_labels(r);
    p->register_count = r->registers.count;
    bool failed = r->failed;
    free(r->registers.text);
    free(r->labels.text);
    free(r->label_at);
    free(r->shared);
    free(r);
    free(text);
    if (!failed) return p;
    ptxi_free(p);
    return NULL;
}

void ptxi_free(struct ptxi *p)
{
    if (p == NULL) return;
    free(p->code);
    free(p);
}

int ptxi_find_entry(const char *ptx, const char *part, char *name, size_t name_size)
{
    for (const char *at = ptx; (at = strstr(at, ".entry ")) != NULL;) {
        at += 7;
        snprintf(name, name_size, "%.*s", (int)strcspn(at, "( \n"), at);
        if (strstr(name, part) != NULL) return 1;
    }
    return 0;
}

size_t ptxi_arguments_size(const struct ptxi *p) { return p->arguments_size; }
