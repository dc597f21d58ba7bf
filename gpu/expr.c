#include "gpu/expr.h"

#include "service/base/mem.h"
#include "service/base/nearest.h"

#include <ctype.h>
#include <locale.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum token_kind { TOKEN_END, TOKEN_NEWLINE, TOKEN_NUMBER, TOKEN_NAME, TOKEN_SIGN };

struct token {
    enum token_kind kind;
    size_t at, size;
    double number;
};

struct parser {
    struct expr *x;
    const char *text;
    size_t size;
    struct token token;      /* the one that is looked at */
    size_t next;             /* where the one after it may begin */
    unsigned depth;
    unsigned open;           /* parentheses: a line may end within them */
    bool failed;             /* told; from here on every token is the end */
    struct error *e;
};

enum { NONE = UINT16_MAX };  /* no node: something has failed */
_Static_assert((int)PROGRAM_NODES_MAX < (int)NONE, "a node's number is no NONE");

/* ---- faults ----------------------------------------------------------------------------------------------------- */

enum { SENTENCE_SIZE = 200, SHOWN_COLUMNS = 64, SHOWN_BEFORE = 44 };

static bool begins_character(char c) { return ((unsigned char)c & 0xc0) != 0x80; }

/* The columns from `begin` on, at most SHOWN_COLUMNS of them, fit to be shown: tabs and what cannot be printed take one
 * column, so that the caret stands right. */
static void show_line(struct buf *b, const char *line, size_t size, size_t begin)
{
    size_t column = 0;

    buf_text(b, begin > 0 ? "  ..." : "  ");
    for (size_t i = 0; i < size && column < begin + SHOWN_COLUMNS; column++) {
        size_t end = i + 1;
        while (end < size && !begins_character(line[end])) end++;
        bool fit = bytes_is_utf8(bytes_of(line + i, end - i)) && (unsigned char)line[i] >= 0x20 && line[i] != 0x7f;
        if (column < begin) (void)0;
        else if (line[i] == '\t') buf_text(b, " ");
        else if (fit) buf_add(b, line + i, end - i);
        else buf_text(b, "?");
        i = end;
    }
}

static enum status tell(struct bytes text, size_t at, struct error *e, const char *sentence)
{
    const char *t = text.at;
    size_t line = 1, line_begin = 0, line_end, column = 0;
    struct buf b = {0};

    for (size_t i = 0; i < at; i++)
        if (t[i] == '\n') {
            line++;
            line_begin = i + 1;
        }
    for (line_end = at; line_end < text.size && t[line_end] != '\n'; line_end++) {}
    for (size_t i = line_begin; i < at; i++) column += begins_character(t[i]);
    size_t begin = column > SHOWN_BEFORE ? column - SHOWN_BEFORE : 0;
    show_line(&b, t + line_begin, line_end - line_begin, begin);
    enum status s = b.failed
        ? error_set(e, REASON_NO_MEMORY, "no memory to tell what is wrong with an updater program")
        : error_set(e, REASON_UPDATER_INVALID, "line %zu, column %zu: %s\n%.*s\n%*s^", line, column + 1, sentence,
                    (int)b.size, (const char *)b.at, (int)(column - begin + (begin > 0 ? 5 : 2)), "");
    buf_fini(&b);
    return s;
}

enum status expr_fault(struct bytes text, size_t at, struct error *e, const char *format, ...)
{
    char sentence[SENTENCE_SIZE];
    va_list args;

    va_start(args, format);
    vsnprintf(sentence, sizeof sentence, format, args);
    va_end(args);
    return tell(text, at, e, sentence);
}

static void fail(struct parser *p, size_t at, const char *format, ...) PRINTF_LIKE(3, 4);

/* Only the first fault is told: those after it may come from it. */
static void fail(struct parser *p, size_t at, const char *format, ...)
{
    char sentence[SENTENCE_SIZE];
    va_list args;

    if (p->failed) return;
    va_start(args, format);
    vsnprintf(sentence, sizeof sentence, format, args);
    va_end(args);
    p->failed = true;
    p->token = (struct token){.kind = TOKEN_END, .at = p->size};
    tell(p->x->text, at, p->e, sentence);
}

/* ---- tokens ----------------------------------------------------------------------------------------------------- */

static char char_at(const struct parser *p, size_t at) { return at < p->size ? p->text[at] : '\0'; }

/* The alphabet is ASCII whatever the locale says. */
static bool is_digit(char c) { return c >= '0' && c <= '9'; }
static bool is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; }

static size_t skip_digits(const struct parser *p, size_t at)
{
    while (is_digit(char_at(p, at))) at++;
    return at;
}

/* number = digits [ "." digits ] [ ("e" | "E") [ "+" | "-" ] digits ], one of the digits before the exponent at least.
 * Answers where it ends; false: told. */
static bool scan_number(struct parser *p, size_t *end)
{
    size_t at = skip_digits(p, p->token.at);

    if (char_at(p, at) == '.') at = skip_digits(p, at + 1);
    if (char_at(p, at) == 'e' || char_at(p, at) == 'E') {
        size_t digits = at + 1 + (char_at(p, at + 1) == '+' || char_at(p, at + 1) == '-');
        at = skip_digits(p, digits);
        if (at == digits) return fail(p, digits, "the exponent of this number has no digits"), false;
    }
    if (char_at(p, at) == '.') return fail(p, at, "a number has one point"), false;
    if (is_letter(char_at(p, at)))
        return fail(p, at, "a number runs into a name; to multiply, write '*' between them"), false;
    *end = at;
    return true;
}

/* strtod wants the decimal mark of the process's language, which in an embedding program may be a comma. */
static double read_number(const char *at, size_t size)
{
    char text[2 * PROGRAM_NUMBER_SIZE_MAX];
    const char *mark = localeconv()->decimal_point;
    size_t n = 0;

    for (size_t i = 0; i < size; i++) {
        if (at[i] != '.') text[n++] = at[i];
        else n += (size_t)snprintf(text + n, 8, "%s", mark);
    }
    text[n] = '\0';
    return strtod(text, NULL);
}

static void number(struct parser *p)
{
    struct token *t = &p->token;
    size_t end;
    bool zero = true;

    if (!scan_number(p, &end)) return;
    t->kind = TOKEN_NUMBER;
    t->size = end - t->at;
    if (t->size > PROGRAM_NUMBER_SIZE_MAX) {
        fail(p, t->at, "a number of %zu characters; at most %d", t->size, PROGRAM_NUMBER_SIZE_MAX);
        return;
    }
    for (size_t i = t->at; i < end && p->text[i] != 'e' && p->text[i] != 'E'; i++)
        zero = zero && (p->text[i] == '0' || p->text[i] == '.');
    t->number = read_number(p->text + t->at, t->size);
    if (isinf(t->number)) fail(p, t->at, "this number is too large; the largest is 1.7976931348623157e308");
    else if (t->number == 0 && !zero) fail(p, t->at, "this number is too small to be told from zero; write 0");
}

static void name(struct parser *p)
{
    struct token *t = &p->token;

    t->kind = TOKEN_NAME;
    while (is_letter(char_at(p, t->at + t->size)) || is_digit(char_at(p, t->at + t->size))) t->size++;
    if (t->size > PROGRAM_NAME_SIZE_MAX)
        fail(p, t->at, "a name of %zu characters; at most %d", t->size, PROGRAM_NAME_SIZE_MAX);
}

/* What other languages write, and what is written here. */
static const struct {
    const char *theirs, *ours;
} habits[] = {
    {"**", "a power is written with ^"}, {"//", "a comment begins with #, and division is one /"},
    {"&&", "'and' of two comparisons is min(a, b)"}, {"||", "'or' of two comparisons is max(a, b)"},
    {"++", "write x += 1"}, {"=<", "it is written <="}, {"=>", "it is written >="}, {"<>", "it is written !="},
    {"->", "there are no members"}, {"^=", "write x = x ^ y"}, {"!", "'not' of a comparison is the opposite one"},
    {"%", "there is no remainder"}, {"&", "'and' of two comparisons is min(a, b)"},
    {"|", "'or' of two comparisons is max(a, b)"},
    {"[", "there are no arrays to index; a statement holds for each element"},
    {"{", "there are no blocks; where(c, a, b) chooses"}, {"?", "where(c, a, b) chooses"},
    {":", "there are no types and no blocks"}, {"\"", "there are no texts"}, {"'", "there are no texts"},
    {".", "a number has a digit before or after its point"},
    {"\\", "a line goes on after an operator, a comma, or within parentheses"},
};

static const char *const signs[] = {"<=", ">=", "==", "!=", "+=", "-=", "*=", "/=", "+", "-", "*", "/", "^",
                                    "<", ">", "=", "(", ")", ",", ";"};

static bool stands_at(const struct parser *p, size_t at, const char *sign)
{
    size_t size = strlen(sign);
    return size <= p->size - at && memcmp(p->text + at, sign, size) == 0;
}

static void unknown_character(struct parser *p, size_t at)
{
    unsigned char c = (unsigned char)p->text[at];

    if (c == '\0') fail(p, at, "a zero byte; a program is text");
    else if (c >= 0x80) fail(p, at, "letters beyond ASCII may stand in comments only");
    else if (c < 0x20 || c == 0x7f) fail(p, at, "a control character (number %u)", (unsigned)c);
    else fail(p, at, "'%c' is no sign of the language", c);
}

static void sign(struct parser *p)
{
    struct token *t = &p->token;

    for (size_t i = 0; i < sizeof signs / sizeof signs[0] && t->size == 0; i++)
        if (stands_at(p, t->at, signs[i])) t->size = strlen(signs[i]);
    for (size_t i = 0; i < sizeof habits / sizeof habits[0]; i++)
        if (stands_at(p, t->at, habits[i].theirs) && strlen(habits[i].theirs) > t->size) {
            fail(p, t->at, "'%s' is no sign of the language; %s", habits[i].theirs, habits[i].ours);
            return;
        }
    t->kind = TOKEN_SIGN;
    if (t->size == 0) unknown_character(p, t->at);
}

static size_t skip_blanks(const struct parser *p, size_t at)
{
    for (;; at++) {
        char c = char_at(p, at);
        if (c == '#')
            while (at < p->size && p->text[at] != '\n') at++;
        c = char_at(p, at);
        if (c != ' ' && c != '\t' && c != '\r' && !(c == '\n' && p->open > 0)) return at;
    }
}

/* Looks at the next token. */
static void advance(struct parser *p)
{
    struct token *t = &p->token;

    if (p->failed) return;
    *t = (struct token){.at = skip_blanks(p, p->next)};
    char c = char_at(p, t->at);
    if (t->at >= p->size) {
        t->kind = TOKEN_END;
    } else if (c == '\n') {
        t->kind = TOKEN_NEWLINE;
        t->size = 1;
    } else if (is_digit(c) || (c == '.' && is_digit(char_at(p, t->at + 1)))) {
        number(p);
    } else if (is_letter(c)) {
        name(p);
    } else {
        sign(p);
    }
    p->next = p->token.at + p->token.size;
}

static bool is(const struct parser *p, const char *word)
{
    const struct token *t = &p->token;
    bool may = t->kind == TOKEN_SIGN || t->kind == TOKEN_NAME;
    return may && t->size == strlen(word) && memcmp(p->text + t->at, word, t->size) == 0;
}

static bool accept(struct parser *p, const char *word)
{
    if (!is(p, word)) return false;
    advance(p);
    return true;
}

static void skip_lines(struct parser *p)
{
    while (p->token.kind == TOKEN_NEWLINE) advance(p);
}

enum { FOUND_SIZE = PROGRAM_NUMBER_SIZE_MAX + 8 };

static const char *found(const struct parser *p, char out[FOUND_SIZE])
{
    const struct token *t = &p->token;

    if (t->kind == TOKEN_END) snprintf(out, FOUND_SIZE, "the end of the text");
    else if (t->kind == TOKEN_NEWLINE) snprintf(out, FOUND_SIZE, "the end of the line");
    else snprintf(out, FOUND_SIZE, "'%.*s'", (int)t->size, p->text + t->at);
    return out;
}

static void expected(struct parser *p, const char *what)
{
    char it[FOUND_SIZE];
    fail(p, p->token.at, "expected %s, found %s", what, found(p, it));
}

static void expect(struct parser *p, const char *sign_wanted, const char *what)
{
    if (!accept(p, sign_wanted)) expected(p, what);
}

/* The end of what `open` opened. Lines end anywhere within parentheses, so the fault may show far below its cause. */
static void expect_close(struct parser *p, size_t open)
{
    char what[48];
    size_t line = 1;

    for (size_t i = 0; i < open; i++) line += p->text[i] == '\n';
    snprintf(what, sizeof what, "')' for the '(' of line %zu", line);
    p->open--;
    expect(p, ")", what);
}

/* ---- names ------------------------------------------------------------------------------------------------------ */

static const struct function {
    const char *name;
    enum expr_op op;
    const char *form;
} functions[] = {
    {"min", EXPR_min, "min(a, b)"}, {"max", EXPR_max, "max(a, b)"}, {"abs", EXPR_abs, "abs(x)"},
    {"sqrt", EXPR_sqrt, "sqrt(x)"}, {"exp", EXPR_exp, "exp(x)"}, {"log", EXPR_log, "log(x)"},
    {"tanh", EXPR_tanh, "tanh(x)"}, {"sign", EXPR_sign, "sign(x)"},
    {"clamp", EXPR_clamp, "clamp(x, least, most)"}, {"where", EXPR_where, "where(condition, a, b)"},
};
enum { FUNCTION_COUNT = sizeof functions / sizeof functions[0] };

static const uint8_t operand_counts[EXPR_OPS_END] = {
#define EXPR_OPERANDS(name, operands) [EXPR_##name] = operands,
    EXPR_OPS(EXPR_OPERANDS)
#undef EXPR_OPERANDS
};

static struct bytes word_of(const struct parser *p, const struct token *t) { return bytes_of(p->text + t->at, t->size); }

static const struct function *function_find(struct bytes word)
{
    for (size_t i = 0; i < FUNCTION_COUNT; i++)
        if (bytes_equal(word, bytes_text(functions[i].name))) return &functions[i];
    return NULL;
}

static struct expr_symbol *symbol_find(struct expr *x, struct bytes word)
{
    for (unsigned i = 0; i < x->symbol_count; i++)
        if (bytes_equal(word, bytes_text(x->symbols[i].name))) return &x->symbols[i];
    return NULL;
}

/* Callers have checked the bound of the kind, and that the name is free. */
static struct expr_symbol *symbol_new(struct expr *x, struct bytes word, enum symbol_kind kind, unsigned index)
{
    struct expr_symbol *s = &x->symbols[x->symbol_count++];

    *s = (struct expr_symbol){.kind = kind, .index = index};
    memcpy(s->name, word.at, word.size);
    return s;
}

static void fixed_names(struct expr *x)
{
    static const char *const moments[] = {
#define MOMENT_NAME(name, text) #name,
        EXPR_MOMENTS(MOMENT_NAME)
#undef MOMENT_NAME
    };

    symbol_new(x, bytes_text("stored"), SYMBOL_STORED, 0);
    symbol_new(x, bytes_text("grad"), SYMBOL_GRAD, 0);
    for (unsigned i = 0; i < EXPR_MOMENT_COUNT; i++)
        symbol_new(x, bytes_text(moments[i]), SYMBOL_MOMENT, i)->scalar = true;
    struct expr_symbol *pi = symbol_new(x, bytes_text("pi"), SYMBOL_CONSTANT, 0);
    struct expr_symbol *e = symbol_new(x, bytes_text("e"), SYMBOL_CONSTANT, 1);
    pi->number = 3.14159265358979323846;
    e->number = 2.71828182845904523536;
    pi->scalar = e->scalar = true;
}

enum { NEAR_VALUES = 1, NEAR_FUNCTIONS = 2, NEAR_ASSIGNABLE = 4 };

static bool assignable(const struct expr_symbol *s)
{
    return s->kind == SYMBOL_STORED || s->kind == SYMBOL_SLOT || s->kind == SYMBOL_LOCAL;
}

static const char *nearest_of(struct expr *x, struct bytes word, unsigned which, const struct expr_symbol *but)
{
    const char *names[EXPR_SYMBOLS_MAX + FUNCTION_COUNT + 1];
    unsigned n = 0;

    for (unsigned i = 0; i < x->symbol_count; i++) {
        const struct expr_symbol *s = &x->symbols[i];
        if (s != but && ((which & NEAR_VALUES) || ((which & NEAR_ASSIGNABLE) && assignable(s)))) names[n++] = s->name;
    }
    for (unsigned i = 0; (which & NEAR_FUNCTIONS) && i < FUNCTION_COUNT; i++) names[n++] = functions[i].name;
    names[n] = NULL;
    return nearest_name(word, names);
}

static const char *const words_of_others[] = {"and", "or", "not", "if", "else", "for", "while", "def", "return",
                                             "import", "let", "var", "float", "const"};

static bool is_word_of_others(struct bytes word)
{
    for (size_t i = 0; i < sizeof words_of_others / sizeof words_of_others[0]; i++)
        if (bytes_equal(word, bytes_text(words_of_others[i]))) return true;
    return false;
}

/* "'word' is so and so" */
static void fail_word(struct parser *p, const struct token *t, const char *fault)
{
    fail(p, t->at, "'%.*s' %s", (int)t->size, p->text + t->at, fault);
}

static void word_of_others(struct parser *p, const struct token *t)
{
    fail(p, t->at, "there is no '%.*s' in the language; where(c, a, b) chooses, min and max are 'and' and 'or'",
         (int)t->size, p->text + t->at);
}

/* The tree has no such name. */
static void unknown_name(struct parser *p, const struct token *t, unsigned which)
{
    struct bytes word = word_of(p, t);
    const char *near = nearest_of(p->x, word, which, NULL), *kind = which & NEAR_VALUES ? "name" : "function";

    if (is_word_of_others(word))
        word_of_others(p, t);
    else if (near != NULL)
        fail(p, t->at, "there is no %s '%.*s' here; did you mean '%s'?", kind, (int)t->size, p->text + t->at, near);
    else if (which & NEAR_VALUES)
        fail(p, t->at, "there is no name '%.*s' here; a value is given before it is used", (int)t->size,
             p->text + t->at);
    else
        fail(p, t->at, "there is no function '%.*s'; there are min max abs sqrt exp log tanh sign clamp where, and ^ "
             "for powers", (int)t->size, p->text + t->at);
}

static bool is_keyword(struct bytes word)
{
    return bytes_equal(word, bytes_text("param")) || bytes_equal(word, bytes_text("slot"));
}

/* ---- the tree --------------------------------------------------------------------------------------------------- */

static unsigned node_new(struct parser *p, struct expr_node n)
{
    struct expr *x = p->x;

    if (x->node_count == PROGRAM_NODES_MAX)
        fail(p, n.at, "the program is too long: more than %d numbers, names and operations", PROGRAM_NODES_MAX);
    if (p->failed) return NONE;
    x->nodes[x->node_count] = n;
    return x->node_count++;
}

static unsigned operation(struct parser *p, enum expr_op op, size_t at, unsigned a, unsigned b, unsigned c)
{
    const struct expr_node *n = p->x->nodes;
    unsigned operands[3] = {a, b, c};
    bool scalar = true;

    for (unsigned i = 0; i < operand_counts[op]; i++) {
        if (operands[i] == NONE) return NONE;
        scalar = scalar && n[operands[i]].scalar;
    }
    return node_new(p, (struct expr_node){.op = (uint8_t)op, .at = (uint32_t)at, .scalar = scalar, .a = (uint16_t)a,
                                          .b = (uint16_t)b, .c = (uint16_t)c});
}

static unsigned name_node(struct parser *p, struct expr_symbol *s, size_t at)
{
    return node_new(p, (struct expr_node){.op = EXPR_name, .at = (uint32_t)at, .scalar = s->scalar,
                                          .a = (uint16_t)(s - p->x->symbols)});
}

/* ---- expressions ------------------------------------------------------------------------------------------------ */

static unsigned expr(struct parser *p);

/* arguments = expr { "," expr } ")" */
static unsigned arguments(struct parser *p, const struct function *f, size_t at)
{
    unsigned args[3] = {NONE, NONE, NONE}, count = operand_counts[f->op];
    size_t open = p->token.at;

    p->open++;
    advance(p);
    for (unsigned i = 0; i < count; i++) {
        if (i > 0 && !accept(p, ",")) {
            if (is(p, ")")) fail(p, p->token.at, "too few arguments: it is %s", f->form);
            else expected(p, "',' and the next argument");
        }
        if (i == 0 && is(p, ")")) fail(p, p->token.at, "too few arguments: it is %s", f->form);
        args[i] = expr(p);
    }
    if (is(p, ",")) fail(p, p->token.at, "too many arguments: it is %s", f->form);
    expect_close(p, open);
    return operation(p, f->op, at, args[0], args[1], args[2]);
}

/* reference = name | name "(" arguments */
static unsigned reference(struct parser *p)
{
    struct token t = p->token;
    struct bytes word = word_of(p, &t);
    const struct function *f = function_find(word);
    struct expr_symbol *s = symbol_find(p->x, word);

    advance(p);
    bool call = is(p, "(");
    if (f != NULL && call) return arguments(p, f, t.at);
    if (f != NULL) fail(p, t.at, "'%s' is a function: write %s", f->name, f->form);
    else if (is_keyword(word)) fail_word(p, &t, "begins a statement of its own");
    else if (s == NULL) unknown_name(p, &t, call ? NEAR_FUNCTIONS : NEAR_VALUES);
    else if (call) fail(p, t.at, "'%s' is a value, no function; to multiply, write '*'", s->name);
    if (p->failed) return NONE;
    s->read = true;
    return name_node(p, s, t.at);
}

/* primary = number | reference | "(" expr ")" */
static unsigned primary(struct parser *p)
{
    struct token t = p->token;

    if (t.kind == TOKEN_NUMBER) {
        advance(p);
        return node_new(p, (struct expr_node){.op = EXPR_number, .at = (uint32_t)t.at, .scalar = true,
                                              .number = t.number});
    }
    if (t.kind == TOKEN_NAME) return reference(p);
    if (!is(p, "(")) {
        expected(p, "a value");
        return NONE;
    }
    p->open++;
    advance(p);
    unsigned n = expr(p);
    expect_close(p, t.at);
    return n;
}

static unsigned unary(struct parser *p);

/* power = primary [ "^" unary ], and both are scalars: an element's power would cost as much as all the rest. */
static unsigned power(struct parser *p)
{
    unsigned n = primary(p);
    size_t at = p->token.at;

    if (!accept(p, "^")) return n;
    skip_lines(p);
    unsigned exponent = unary(p);
    if (n == NONE || exponent == NONE) return NONE;
    if (!p->x->nodes[n].scalar || !p->x->nodes[exponent].scalar)
        fail(p, at, "^ takes single values, and this is one for each element; write x*x, sqrt(x) or exp(y*log(x))");
    return operation(p, EXPR_pow, at, n, exponent, NONE);
}

/* unary = "-" unary | power */
static unsigned unary(struct parser *p)
{
    size_t at = p->token.at;
    unsigned n;

    if (p->depth == PROGRAM_DEPTH_MAX) {
        fail(p, at, "nested too deep: at most %d signs, powers, calls and parentheses within one another",
             PROGRAM_DEPTH_MAX);
        return NONE;
    }
    p->depth++;
    if (accept(p, "-")) n = operation(p, EXPR_neg, at, unary(p), NONE, NONE);
    else n = power(p);
    p->depth--;
    return n;
}

/* What stands between two operands; lists end with a NULL. */
struct operator {
    const char *sign;
    enum expr_op op;
    bool swapped;            /* a > b is b < a */
};

static const struct operator *operator_at(struct parser *p, const struct operator *list)
{
    while (list->sign != NULL && !is(p, list->sign)) list++;
    return list->sign != NULL ? list : NULL;
}

static unsigned chain(struct parser *p, const struct operator *list, unsigned (*operand)(struct parser *p))
{
    const struct operator *o;
    unsigned n = operand(p);

    while ((o = operator_at(p, list)) != NULL) {
        size_t at = p->token.at;
        advance(p);
        skip_lines(p);
        n = operation(p, o->op, at, n, operand(p), NONE);
    }
    return n;
}

/* product = unary { ("*" | "/") unary } */
static unsigned product(struct parser *p)
{
    static const struct operator list[] = {{"*", EXPR_mul, false}, {"/", EXPR_div, false}, {0}};
    return chain(p, list, unary);
}

/* sum = product { ("+" | "-") product } */
static unsigned sum(struct parser *p)
{
    static const struct operator list[] = {{"+", EXPR_add, false}, {"-", EXPR_sub, false}, {0}};
    return chain(p, list, product);
}

/* expr = sum [ ("<" | "<=" | ">" | ">=" | "==" | "!=") sum ]; what it gives is 1 or 0. */
static unsigned expr(struct parser *p)
{
    static const struct operator list[] = {
        {"<", EXPR_lt, false}, {"<=", EXPR_le, false}, {">", EXPR_lt, true}, {">=", EXPR_le, true},
        {"==", EXPR_eq, false}, {"!=", EXPR_ne, false}, {0},
    };
    unsigned n = sum(p), m;
    const struct operator *o = operator_at(p, list);
    size_t at = p->token.at;

    if (o == NULL) return n;
    advance(p);
    skip_lines(p);
    m = sum(p);
    if (operator_at(p, list) != NULL)
        fail(p, p->token.at, "comparisons do not chain; for both write min(a < b, b < c)");
    return operation(p, o->op, at, o->swapped ? m : n, o->swapped ? n : m, NONE);
}

/* ---- statements ------------------------------------------------------------------------------------------------- */

/* The name of a new param or slot, which nothing may have yet. */
static bool new_name(struct parser *p, const char *kind, struct token *out)
{
    char what[32];
    struct bytes word = word_of(p, &p->token);
    const struct expr_symbol *s;

    *out = p->token;
    snprintf(what, sizeof what, "the name of a %s", kind);
    if (out->kind != TOKEN_NAME) expected(p, what);
    else if (function_find(word) != NULL) fail_word(p, out, "is a function of the language");
    else if (is_keyword(word)) fail_word(p, out, "begins a statement of its own");
    else if (strcmp(kind, "slot") == 0 && bytes_equal(word, bytes_text("master")))
        fail_word(p, out, "is the slot of the f32 copy of an f16 or bf16 value; take another name");
    else if ((s = symbol_find(p->x, word)) == NULL) advance(p);
    else if (s->kind == SYMBOL_PARAM || s->kind == SYMBOL_SLOT)
        fail(p, out->at, "there is a %s '%s' already", s->kind == SYMBOL_PARAM ? "param" : "slot", s->name);
    else if (s->kind == SYMBOL_LOCAL) fail_word(p, out, "has been assigned to above; declare it before that");
    else fail_word(p, out, "is a name of the language");
    return !p->failed;
}

/* setting = name "=" [ "-" ] number */
static void setting(struct parser *p)
{
    struct token t;

    if (!new_name(p, "param", &t)) return;
    expect(p, "=", "'=' and the value that the param has when none is given");
    skip_lines(p);
    bool minus = accept(p, "-");
    double value = p->token.number;
    if (p->token.kind != TOKEN_NUMBER) expected(p, "a number");
    if (p->x->param_count == PROGRAM_PARAMS_MAX) fail(p, t.at, "too many params; at most %d", PROGRAM_PARAMS_MAX);
    if (p->failed) return;
    advance(p);
    struct expr_symbol *s = symbol_new(p->x, word_of(p, &t), SYMBOL_PARAM, p->x->param_count++);
    s->scalar = true;
    s->number = minus && value != 0 ? -value : value;        /* no -0: equal numbers, equal text */
    s->at = t.at;
}

/* state = name "=" ( "0" | "stored" ) */
static void state(struct parser *p)
{
    struct token t;

    if (!new_name(p, "slot", &t)) return;
    expect(p, "=", "'= 0' or '= stored', what the slot starts as");
    skip_lines(p);
    bool stored = is(p, "stored");
    bool zero = p->token.kind == TOKEN_NUMBER && p->token.number == 0;
    if (!stored && !zero) expected(p, "0 or stored, what the slot starts as");
    if (p->x->slot_count == PROGRAM_SLOTS_MAX) fail(p, t.at, "too many slots; at most %d", PROGRAM_SLOTS_MAX);
    if (p->failed) return;
    advance(p);
    struct expr_symbol *s = symbol_new(p->x, word_of(p, &t), SYMBOL_SLOT, p->x->slot_count++);
    s->starts_as_stored = stored;
    s->at = t.at;
}

/* declarations = one { "," one } */
static void declarations(struct parser *p, void (*one)(struct parser *p))
{
    advance(p);
    one(p);
    while (accept(p, ",")) {
        skip_lines(p);
        one(p);
    }
}

/* What is assigned to: stored, a slot, or a name of the program's own, which is made when it is new. NULL: told. */
static struct expr_symbol *target(struct parser *p, const struct token *t, bool changes)
{
    struct bytes word = word_of(p, t);
    struct expr_symbol *s = symbol_find(p->x, word);

    if (function_find(word) != NULL) fail_word(p, t, "is a function and cannot be assigned to");
    else if (s == NULL && changes) unknown_name(p, t, NEAR_VALUES);
    else if (s == NULL && p->x->local_count == PROGRAM_LOCALS_MAX)
        fail(p, t->at, "too many names; at most %d of the program's own", PROGRAM_LOCALS_MAX);
    else if (s != NULL && s->kind == SYMBOL_GRAD)
        fail_word(p, t, "cannot be assigned to; give the result a name of its own, such as g");
    else if (s != NULL && s->kind == SYMBOL_PARAM)
        fail(p, t->at, "the param '%s' cannot be assigned to; it is changed from outside", s->name);
    else if (s != NULL && !assignable(s))
        fail_word(p, t, "is a name of the language and cannot be assigned to");
    return p->failed ? NULL : s;
}

/* assignment = name ( "=" | "+=" | "-=" | "*=" | "/=" ) expr */
static void assignment(struct parser *p)
{
    static const struct operator list[] = {{"+=", EXPR_add, false}, {"-=", EXPR_sub, false}, {"*=", EXPR_mul, false},
                                           {"/=", EXPR_div, false}, {0}};
    struct expr *x = p->x;
    struct token t = p->token;
    uint16_t first = (uint16_t)x->node_count;
    unsigned old = NONE, n;

    advance(p);
    size_t at = p->token.at;
    const struct operator *o = operator_at(p, list);
    if (is(p, "==")) fail(p, at, "'==' compares; to assign, write '='");
    else if (o == NULL && !is(p, "=") && is_word_of_others(word_of(p, &t))) word_of_others(p, &t);
    if (o == NULL && !is(p, "=")) expected(p, "'='");
    if (p->failed) return;
    struct expr_symbol *s = target(p, &t, o != NULL);
    if (s != NULL && o != NULL) old = name_node(p, s, t.at);
    advance(p);
    skip_lines(p);
    n = expr(p);
    if (o != NULL) n = operation(p, o->op, at, old, n, NONE);
    if (n == NONE || p->failed) return;
    if (s == NULL) {
        s = symbol_new(x, word_of(p, &t), SYMBOL_LOCAL, x->local_count++);
        s->at = t.at;
    }
    s->assigned = true;
    if (s->kind == SYMBOL_LOCAL) s->scalar = x->nodes[n].scalar;
    x->statements[x->statement_count++] = (struct expr_statement){(uint16_t)(s - x->symbols), first, (uint16_t)n};
}

/* statement = "param" declarations | "slot" declarations | assignment */
static void statement(struct parser *p)
{
    if (is(p, "param")) declarations(p, setting);
    else if (is(p, "slot")) declarations(p, state);
    else if (p->token.kind == TOKEN_NAME) assignment(p);
    else expected(p, "a statement, such as 'stored -= 0.1 * grad'");
}

/* program = { [ statement ] ( ";" | newline ) } */
static void program(struct parser *p)
{
    advance(p);
    while (p->token.kind != TOKEN_END) {
        if (p->token.kind != TOKEN_NEWLINE && !is(p, ";")) statement(p);
        if (p->token.kind == TOKEN_NEWLINE || is(p, ";")) advance(p);
        else if (p->token.kind == TOKEN_NAME && is_word_of_others(word_of(p, &p->token))) word_of_others(p, &p->token);
        else if (p->token.kind != TOKEN_END) expected(p, "an operator or the end of the statement");
    }
}

/* What is declared but of no effect is a mistake somewhere else. */
static void check_use(struct parser *p)
{
    struct expr *x = p->x;

    if (x->symbol_count == EXPR_FIXED_NAMES && x->statement_count == 0)
        fail(p, 0, "the program is empty; 'stored = grad' is one");
    for (unsigned i = 0; i < x->symbol_count; i++) {
        const struct expr_symbol *s = &x->symbols[i];
        const char *near = s->kind == SYMBOL_LOCAL ? nearest_of(x, bytes_text(s->name), NEAR_ASSIGNABLE, s) : NULL;
        if (s->kind == SYMBOL_LOCAL && !s->read && near != NULL)
            fail(p, s->at, "'%s' is assigned to but never used; did you mean '%s'?", s->name, near);
        else if (s->kind == SYMBOL_LOCAL && !s->read)
            fail(p, s->at, "'%s' is assigned to but never used", s->name);
        else if (s->kind == SYMBOL_PARAM && !s->read)
            fail(p, s->at, "the param '%s' is never used", s->name);
        else if (s->kind == SYMBOL_SLOT && !s->assigned)
            fail(p, s->at, "the slot '%s' is never assigned to, so it would stay what it starts as", s->name);
    }
    if (!x->symbols[0].assigned) fail(p, p->size, "nothing is assigned to 'stored', so the value would never change");
}

static void check_text(struct parser *p)
{
    if (p->size > PROGRAM_TEXT_SIZE_MAX)
        fail(p, PROGRAM_TEXT_SIZE_MAX, "the text is too long: %zu bytes, at most %d", p->size, PROGRAM_TEXT_SIZE_MAX);
}

enum status expr_parse(struct bytes text, struct expr **out, struct error *e)
{
    struct expr *x = mem_new(sizeof *x);
    struct error spare;
    struct parser p = {.x = x, .text = text.size > 0 ? text.at : "", .size = text.size, .e = e != NULL ? e : &spare};

    if (x == NULL) return error_set(e, REASON_NO_MEMORY, "no memory to read an updater program");
    x->text = bytes_of(p.text, p.size);
    x->symbol_count = x->node_count = x->statement_count = x->param_count = x->slot_count = x->local_count = 0;
    fixed_names(x);
    check_text(&p);
    if (!p.failed) program(&p);
    if (!p.failed) check_use(&p);
    if (p.failed) {
        enum status s = p.e->status;
        expr_free(x);
        return s;
    }
    *out = x;
    return STATUS_OK;
}

void expr_free(struct expr *x) { mem_free(x); }
