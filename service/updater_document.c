#include "service/updater_document.h"

#include "service/base/mem.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- faults: all of them in one sentence ------------------------------------------------------------------------ */

/* Shown at most: each byte escaped, the end of a character, "..." and the zero. */
enum { NAME_SHOWN_MAX = 48, NAME_SHOWN_SIZE = 2 * NAME_SHOWN_MAX + 8, FAULTS_REST_SIZE = 24 };

struct faults {
    struct buf *all;                         /* NULL: nobody wants them all */
    unsigned count, left_out;
    bool no_memory;
    size_t used;
    char text[ERROR_TEXT_SIZE];
    char picture[ERROR_TEXT_SIZE];           /* of the place in a program: a line and a caret, which no list of faults wants */
};

static void fault(struct faults *f, const char *format, ...) PRINTF_LIKE(2, 3);

/* A fault that finds no room is counted, and those after it too: the shown ones stay in the document's order. */
static void fault(struct faults *f, const char *format, ...)
{
    char one[ERROR_TEXT_SIZE];
    va_list args;
    size_t limit = sizeof f->text - FAULTS_REST_SIZE;

    va_start(args, format);
    int n = vsnprintf(one, sizeof one, format, args);
    va_end(args);
    f->count++;
    if (f->all != NULL) buf_format(f->all, "%s\n", one);
    if (f->left_out > 0 || n < 0 || (size_t)n + 3 > limit - f->used) {
        f->left_out++;
        return;
    }
    f->used += (size_t)snprintf(f->text + f->used, limit - f->used, "%s%s", f->used > 0 ? "; " : "", one);
}

static enum status faults_tell(const struct faults *f, struct error *e)
{
    if (f->left_out == 0) return error_set(e, REASON_UPDATER_INVALID, "%s%s", f->text, f->picture);
    return error_set(e, REASON_UPDATER_INVALID, "%s; and %u more", f->text, f->left_out);
}

/* A name of the document as part of a JSON pointer that is fit to be shown: ~ and / are escaped as RFC 6901 has it,
 * control characters are not shown, and a long one is cut between characters. */
static const char *shown(const char *name, char out[NAME_SHOWN_SIZE])
{
    size_t n = 0, i = 0;

    for (; name[i] != '\0' && (i < NAME_SHOWN_MAX || ((unsigned char)name[i] & 0xc0) == 0x80); i++) {
        if (name[i] == '~' || name[i] == '/') {
            out[n++] = '~';
            out[n++] = name[i] == '~' ? '0' : '1';
        } else {
            out[n++] = (unsigned char)name[i] < 0x20 || name[i] == 0x7f ? '?' : name[i];
        }
    }
    memcpy(out + n, name[i] != '\0' ? "..." : "", name[i] != '\0' ? 4 : 1);
    return out;
}

/* ---- reading ---------------------------------------------------------------------------------------------------- */

/* Where a member stands: what comes before its name in a JSON pointer, and whose it is in sentences. */
struct place {
    char path[40];
    const char *owner;
};

static enum status read_json(struct bytes json, json_t **out, struct error *e)
{
    json_error_t where;

    if (json.size > UPDATER_DOCUMENT_SIZE_MAX)
        return error_set(e, REASON_TOO_LARGE, "an updater document of %zu bytes; at most %d", json.size,
                         UPDATER_DOCUMENT_SIZE_MAX);
    if (json.size == 0)
        return error_set(e, REASON_BAD_JSON, "the updater document is empty; {\"type\": \"sgd\"} is one");
    *out = json_loadb(json.at, json.size, JSON_REJECT_DUPLICATES | JSON_DECODE_ANY | JSON_DECODE_INT_AS_REAL, &where);
    if (*out != NULL) return STATUS_OK;
    /* Where jansson found no memory it often says nothing at all; for a string it says that the text is wrong, which
     * cannot be told apart here. */
    if (where.text[0] == '\0' || json_error_code(&where) == json_error_out_of_memory)
        return error_set(e, REASON_NO_MEMORY, "no memory to read the updater document");
    return error_set(e, REASON_BAD_JSON, "line %d, column %d: %s", where.line, where.column, where.text);
}

static void list_types(char *out, size_t size)
{
    size_t used = 0;

    for (unsigned i = 0; updater_row_at(i) != NULL && used < size; i++)
        used += (size_t)snprintf(out + used, size - used, "%s%s", i > 0 ? ", " : "", updater_row_at(i)->name);
}

static const char *nearest_type(const char *word)
{
    const char *names[UPDATERS_MAX] = {NULL};

    for (unsigned i = 0; updater_row_at(i) != NULL; i++) names[i] = updater_row_at(i)->name;
    return nearest_name(bytes_text(word), names);
}

/* The row that "type" names, or NULL after telling. */
static const struct updater_row *read_type(const json_t *document, struct faults *f)
{
    const char *name = json_string_value(json_object_get(document, "type"));
    char known[400], name_shown[NAME_SHOWN_SIZE];

    if (name != NULL && updater_row_find(bytes_text(name)) != NULL) return updater_row_find(bytes_text(name));
    list_types(known, sizeof known);
    if (name == NULL)
        fault(f, "/type: must be one of %s", known);
    else if (nearest_type(name) != NULL)
        fault(f, "/type: no updater is called %s; did you mean %s?", shown(name, name_shown), nearest_type(name));
    else
        fault(f, "/type: no updater is called %s; there are %s", shown(name, name_shown), known);
    return NULL;
}

/* What people type who come from another library, and what it is called here. The first row counts whose name here is a
 * name of the updater (NULL: of any), so a word may stand twice. */
static const struct hint {
    const char *typed, *here, *says;
} hints[] = {
    {"lr", "learning_rate", "write learning_rate"},
    {"eta", "learning_rate", "write learning_rate"},
    {"eps", "epsilon", "write epsilon"},
    {"weight_decay", "wd", "write wd"},
    {"betas", "beta1", "write beta1 and beta2, a number each"},
    {"momentum_decay", "schedule_decay", "write schedule_decay"},
    {"gamma1", "rho", "MXNet 1.x's gamma1 is rho here"},
    {"gamma2", "momentum", "MXNet 1.x's gamma2 is momentum here"},
    {"alpha", "rho", "PyTorch's alpha is rho here"},
    {"clip", "clip_gradient", "write clip_gradient"},
    {"lr_scheduler", "learning_rate", "write schedule, such as {\"type\": \"cosine\", \"max_update\": 1000}"},
    {"nesterov", "momentum", "take the type nag"},
    {"nesterov", NULL, "take the type nag or nadam"},
    {"lazy_update", NULL, "leave it out: it concerns sparse rows, which there are none of here"},
    {"amsgrad", NULL, "leave it out: there is no AMSGrad here"},
    {"dampening", NULL, "leave it out: there is no dampening here"},
    {"begin_num_update", NULL, "leave it out: keys count their own updates; set_states sets the count"},
};

static const char *hint_of(const char *name, const char *const *names)
{
    for (size_t i = 0; i < sizeof hints / sizeof hints[0]; i++) {
        if (strcmp(hints[i].typed, name) != 0) continue;
        if (hints[i].here == NULL) return hints[i].says;
        for (size_t k = 0; names[k] != NULL; k++)
            if (strcmp(names[k], hints[i].here) == 0) return hints[i].says;
    }
    return NULL;
}

static void unknown_name(const struct place *p, const char *name, const char *const *names, struct faults *f)
{
    const char *hint = hint_of(name, names), *near = nearest_name(bytes_text(name), names);
    char name_shown[NAME_SHOWN_SIZE];

    if (hint != NULL) fault(f, "%s/%s: %s has no such name; %s", p->path, shown(name, name_shown), p->owner, hint);
    else fault(f, "%s/%s: %s has no such name%s%s%s", p->path, shown(name, name_shown), p->owner,
               near != NULL ? "; did you mean " : "", near != NULL ? near : "", near != NULL ? "?" : "");
}

static void word_fault(const struct place *p, const struct hyper_row *h, struct faults *f)
{
    struct buf words = {0};

    for (unsigned i = 0; h->words[i] != NULL; i++) buf_format(&words, "%s%s", i > 0 ? " or " : "", h->words[i]);
    fault(f, "%s/%s: must be %.*s", p->path, h->name, words.failed ? 0 : (int)words.size, (const char *)words.at);
    buf_fini(&words);
}

static void read_word(const struct place *p, const struct hyper_row *h, const json_t *value, double *out,
                      struct faults *f)
{
    const char *word = h->words == hyper_flag ? json_is_true(value) ? "true" : json_is_false(value) ? "false" : NULL
                                              : json_string_value(value);

    for (unsigned i = 0; word != NULL && h->words[i] != NULL; i++)
        if (strcmp(word, h->words[i]) == 0) {
            *out = i;
            return;
        }
    word_fault(p, h, f);
}

static void read_hyper(const struct place *p, const struct hyper_row *h, const json_t *value, double *out,
                       struct faults *f)
{
    double v = json_number_value(value);
    bool may_be_off = isnan(h->standard);

    if (h->words != NULL)
        read_word(p, h, value, out, f);
    else if (may_be_off && json_is_null(value))
        *out = NAN;
    else if (json_is_number(value) && v >= h->least && v <= h->most && (!h->is_whole || v == floor(v)))
        *out = v + 0.0;      /* -0 becomes 0: equal numbers, equal text */
    else if (h->least == h->most)
        fault(f, "%s/%s: must be %g, since %s", p->path, h->name, h->least, h->text);
    else
        fault(f, "%s/%s: must be a %s from %.7g to %.7g%s", p->path, h->name, h->is_whole ? "whole number" : "number",
              h->least, h->most, may_be_off ? " or null" : "");
}

static int hyper_by_name(const struct hyper_row *rows, unsigned count, const char *name)
{
    for (unsigned i = 0; i < count; i++)
        if (strcmp(rows[i].name, name) == 0) return (int)i;
    return -1;
}

/* ---- schedules -------------------------------------------------------------------------------------------------- */

static const struct schedule_row *read_schedule_type(const json_t *document, struct faults *f)
{
    const char *name = json_string_value(json_object_get(document, "type"));
    struct buf known = {0};

    if (name != NULL && schedule_row_find(bytes_text(name)) != NULL) return schedule_row_find(bytes_text(name));
    for (unsigned i = 0; schedule_row_at(i) != NULL; i++)
        buf_format(&known, "%s%s", i > 0 ? ", " : "", schedule_row_at(i)->name);
    fault(f, "/schedule/type: must be one of %.*s", known.failed ? 0 : (int)known.size, (const char *)known.at);
    buf_fini(&known);
    return NULL;
}

/* "step" of multifactor. */
static void read_steps(const json_t *list, struct schedule *s, struct faults *f)
{
    size_t count = json_array_size(list);
    double last = 0;

    if (count == 0 || count > SCHEDULE_STEPS_MAX) {
        fault(f, "/schedule/step: must be a list of 1 to %d rising whole numbers", SCHEDULE_STEPS_MAX);
        return;
    }
    s->step_count = (unsigned)count;
    for (size_t i = 0; i < count; i++) {
        const json_t *value = json_array_get(list, i);
        double v = json_number_value(value);
        if (!json_is_number(value) || v < 1 || v > 9007199254740991.0 || v != floor(v) || v <= last) {
            fault(f, "/schedule/step/%zu: must be a whole number of at least 1, and greater than the one before", i);
            return;
        }
        s->steps[i] = last = v;
    }
}

static void read_schedule_member(const char *name, const json_t *value, struct schedule *s, struct faults *f)
{
    const struct schedule_row *row = s->row;
    const char *names[SCHEDULE_HYPERS_MAX + 3] = {"type"};
    struct place p = {"/schedule", row->name};
    int at = hyper_by_name(row->hypers, row->hyper_count, name);
    unsigned n = 1;

    if (strcmp(name, "type") == 0) return;
    if (row->has_steps && strcmp(name, "step") == 0) {
        read_steps(value, s, f);
    } else if (at >= 0) {
        read_hyper(&p, &row->hypers[at], value, &s->hypers[at], f);
    } else {
        for (unsigned i = 0; i < row->hyper_count; i++) names[n++] = row->hypers[i].name;
        if (row->has_steps) names[n++] = "step";
        unknown_name(&p, name, names, f);
    }
}

/* What is asked of all numbers together; the rate is the updater's own. */
static void check_schedule(const struct schedule *s, double learning_rate, struct faults *f)
{
    double base = isnan(s->hypers[S_BASE]) ? learning_rate : s->hypers[S_BASE];
    const char *name = "", *sentence = s->row->fault(s->hypers, &name);

    for (unsigned i = 0; i < s->row->hyper_count; i++)
        if (isinf(s->hypers[i])) {
            fault(f, "/schedule/%s: must be given", s->row->hypers[i].name);
            return;
        }
    if (s->row->has_steps && s->step_count == 0) fault(f, "/schedule/step: must be given");
    if (sentence != NULL) fault(f, "/schedule/%s: %s", name, sentence);
    if (isnan(base)) fault(f, "/schedule/base_lr: must be given, as the updater has no learning_rate");
    if (s->row->warms_up && s->hypers[S_WARMUP_BEGIN] > base)
        fault(f, "/schedule/warmup_begin_lr: must be at most the base rate, %g", base);
}

/* A program's rate is its param learning_rate, or else lr. */
static bool find_scheduled(struct updater *u)
{
    u->scheduled = program_param_find(u->program, bytes_text("learning_rate"));
    if (u->scheduled < 0) u->scheduled = program_param_find(u->program, bytes_text("lr"));
    return u->scheduled >= 0;
}

static void read_schedule(const json_t *document, struct updater *u, struct faults *f)
{
    unsigned before = f->count;
    struct schedule *s;
    const char *name;
    json_t *value;

    if (document == NULL || json_is_null(document)) return;
    if (!json_is_object(document)) {
        fault(f, "/schedule: must be an object such as {\"type\": \"constant\"}, or null");
        return;
    }
    const struct schedule_row *row = read_schedule_type(document, f);
    if (row == NULL) return;
    s = u->schedule = mem_zero(sizeof *s);
    if (s == NULL) {
        f->no_memory = true;
        return;
    }
    s->row = row;
    for (unsigned i = 0; i < row->hyper_count; i++) s->hypers[i] = row->hypers[i].standard;
    json_object_foreach((json_t *)document, name, value) read_schedule_member(name, value, s, f);
    if (u->program != NULL && !find_scheduled(u))
        fault(f, "/schedule: the program has no param called learning_rate or lr, which a schedule "
                 "would set");
    bool known = u->row->common || u->program != NULL;
    if (f->count == before && known)
        check_schedule(s, u->program != NULL ? u->params[u->scheduled] : u->hypers[H_RATE], f);
}

/* ---- overrides -------------------------------------------------------------------------------------------------- */

/* What one key may not have for itself: slots of one store are to mean the same. */
static bool may_be_overridden(const struct hyper_row *h) { return h->words != hyper_convention; }

static const struct hyper_row key_members[KEY_MEMBERS] = {
    [KEY_LR_MULT] = {"lr_mult", 1, 1, 0, 1e6, "factor of the learning rate", NULL, false},
    [KEY_WD_MULT] = {"wd_mult", 1, 1, 0, 1e6, "factor of wd", NULL, false},
    [KEY_FROZEN] = {"frozen", 0, 0, 0, 1, "pushes are refused", hyper_flag, false},
    [KEY_ASSIGN] = {"assign", 0, 0, 0, 1, "the sum becomes the value", hyper_flag, false},
};

/* The factors are of numbers that most updaters have. */
static bool has_key_member(const struct updater_row *row, int i)
{
    return i >= 0 && (row->common || (i != KEY_LR_MULT && i != KEY_WD_MULT));
}

static bool is_program(const struct updater_row *row)
{
    return row->hyper_count == 0 && strcmp(row->name, "program") == 0;
}

static void read_factor(const struct place *of, const struct program *program, const char *name,
                        const json_t *value, struct override *o, struct faults *f)
{
    const char *names[PROGRAM_PARAMS_MAX + 1] = {NULL};
    double v = json_number_value(value);
    int at = program_param_find(program, bytes_text(name));
    struct place p = {.owner = "the program"};
    char shown_name[NAME_SHOWN_SIZE];

    snprintf(p.path, sizeof p.path, "%.24s/params", of->path);
    for (unsigned i = 0; i < program->param_count; i++) names[i] = program->params[i].name;
    if (at < 0) unknown_name(&p, name, names, f);
    else if (!json_is_number(value) || fabs(v) > 1e9)
        fault(f, "%s/%s: must be a number from -1e+09 to 1e+09, a factor of the param", p.path,
              shown(name, shown_name));
    else o->factors[at] = v + 0.0, o->has_factor[at] = true;
}

/* A text that is wrong has no params that could be looked at. */
static void read_factors(const struct place *p, const struct program *program, const json_t *params,
                         struct override *o, struct faults *f)
{
    const char *name;
    json_t *value;

    if (!json_is_object(params))
        fault(f, "%s/params: must be an object of factors such as {\"lr\": 0.1}", p->path);
    else if (program != NULL)
        json_object_foreach((json_t *)params, name, value)
            read_factor(p, program, name, value, o, f);
}

static void read_override_member(const struct place *p, const struct updater *u, const char *name,
                                 const json_t *value, struct override *o, struct faults *f)
{
    const struct updater_row *row = u->row;
    const char *names[UPDATER_HYPERS_MAX + KEY_MEMBERS + 3] = {"match"};
    int at = hyper_by_name(row->hypers, row->hyper_count, name);
    int own = hyper_by_name(key_members, KEY_MEMBERS, name);
    unsigned n = 1;

    if (strcmp(name, "match") == 0) return;
    if (has_key_member(row, own)) {
        read_hyper(p, &key_members[own], value, &o->own[own], f);
        o->has_own[own] = true;
    } else if (is_program(row) && strcmp(name, "params") == 0) {
        read_factors(p, u->program, value, o, f);
    } else if (at >= 0 && may_be_overridden(&row->hypers[at])) {
        read_hyper(p, &row->hypers[at], value, &o->hypers[at], f);
        o->has[at] = true;
    } else if (at >= 0) {
        fault(f, "%s/%s: is the same for all keys", p->path, name);
    } else {
        for (int i = 0; i < KEY_MEMBERS; i++)
            if (has_key_member(row, i)) names[n++] = key_members[i].name;
        if (is_program(row)) names[n++] = "params";
        for (unsigned i = 0; i < row->hyper_count; i++) names[n++] = row->hypers[i].name;
        unknown_name(p, name, names, f);
    }
}

static void read_override(const json_t *document, size_t index, struct updater *u, struct faults *f)
{
    struct override *o = &u->overrides[index];
    const char *match = json_string_value(json_object_get(document, "match")), *name;
    struct place p = {.owner = u->row->name};
    json_t *value;

    snprintf(p.path, sizeof p.path, "/overrides/%zu", index);
    if (match == NULL || match[0] == '\0' || strlen(match) > KEY_NAME_SIZE_MAX) {
        fault(f, "%s/match: must be a pattern of 1 to %d bytes for names of keys, such as *_bias", p.path,
              KEY_NAME_SIZE_MAX);
        return;
    }
    o->match = mem_text(match, strlen(match));
    f->no_memory |= o->match == NULL;
    json_object_foreach((json_t *)document, name, value)
        read_override_member(&p, u, name, value, o, f);
}

static void read_overrides(const json_t *list, struct updater *u, struct faults *f)
{
    size_t count = json_array_size(list);

    if (list == NULL || json_is_null(list)) return;
    if (!json_is_array(list) || count > UPDATER_OVERRIDES_MAX) {
        fault(f, "/overrides: must be a list of at most %d objects such as {\"match\": \"*_bias\", \"wd_mult\": 0}",
              UPDATER_OVERRIDES_MAX);
        return;
    }
    if (count == 0) return;
    u->overrides = mem_zero(count * sizeof *u->overrides);
    f->no_memory |= u->overrides == NULL;
    for (size_t i = 0; u->overrides != NULL && i < count; i++) {
        u->override_count = i + 1;
        read_override(json_array_get(list, i), i, u, f);
    }
}

/* ---- programs ---------------------------------------------------------------------------------------------------- */

static void read_text(const json_t *value, struct updater *u, struct faults *f)
{
    const char *text = json_string_value(value);
    struct bytes bytes = bytes_of(text, json_string_length(value));
    struct error e;

    if (text == NULL) {
        fault(f, "/text: must be a text in the updater language, such as \"stored += grad * 2\"");
        return;
    }
    if (program_new(bytes, &u->program, &e) != STATUS_OK) {
        size_t line = strcspn(e.text, "\n");
        f->no_memory |= e.reason == REASON_NO_MEMORY;
        fault(f, "/text: %.*s", (int)line, e.text);
        snprintf(f->picture, sizeof f->picture, "%s", e.text + line);
        return;
    }
    u->program_text = mem_text(text, bytes.size);
    f->no_memory |= u->program_text == NULL;
}

static void read_param(const char *name, const json_t *value, struct updater *u, struct faults *f)
{
    const char *names[PROGRAM_PARAMS_MAX + 1];
    double v = json_number_value(value);
    int at = program_param_find(u->program, bytes_text(name));

    for (unsigned i = 0; i < u->program->param_count; i++) names[i] = u->program->params[i].name;
    names[u->program->param_count] = NULL;
    if (at < 0) unknown_name(&(struct place){"/params", "the program"}, name, names, f);
    else if (json_is_number(value)) u->params[at] = v + 0.0;
    else fault(f, "/params/%s: must be a number", name);
}

/* The params of a text that is wrong are not known, so they are not looked at. */
static void read_program(const json_t *document, struct updater *u, struct faults *f)
{
    json_t *params = json_object_get(document, "params"), *value;
    const char *name;

    read_text(json_object_get(document, "text"), u, f);
    if (params != NULL && !json_is_null(params) && !json_is_object(params))
        fault(f, "/params: must be an object such as {\"lr\": 0.1}");
    if (u->program == NULL) return;
    for (unsigned i = 0; i < u->program->param_count; i++) u->params[i] = u->program->params[i].standard;
    json_object_foreach(params, name, value) read_param(name, value, u, f);
}

/* ---- the document ----------------------------------------------------------------------------------------------- */

static void read_member(const struct updater_row *row, const char *name, const json_t *value, double *hypers,
                        struct faults *f)
{
    const char *names[UPDATER_HYPERS_MAX + 4] = {"type"};
    int at = hyper_by_name(row->hypers, row->hyper_count, name);
    unsigned n = 1;

    names[n++] = "overrides";
    if (row->common || is_program(row)) names[n++] = "schedule";
    if (is_program(row)) names[n++] = "text", names[n++] = "params";
    for (unsigned i = 0; i < n; i++)
        if (strcmp(name, names[i]) == 0) return;
    for (unsigned i = 0; i < row->hyper_count; i++) names[n++] = row->hypers[i].name;
    if (at >= 0) read_hyper(&(struct place){"", row->name}, &row->hypers[at], value, &hypers[at], f);
    else unknown_name(&(struct place){"", row->name}, name, names, f);
}

/* The convention decides what is left out means, so it is looked at first. */
static void set_standards(const json_t *document, struct updater *u)
{
    const char *word = json_string_value(json_object_get(document, "convention"));
    bool torch = word != NULL && strcmp(word, "torch") == 0;

    for (unsigned i = 0; i < u->row->hyper_count; i++)
        u->hypers[i] = torch ? u->row->hypers[i].torch : u->row->hypers[i].standard;
}

/* Fills row and numbers. Without a known type the other names mean nothing, and only the type is told. */
static enum status read_document(json_t *document, struct updater *u, struct buf *all, struct error *e)
{
    struct faults f = {.all = all};
    const char *name;
    json_t *value;

    if (!json_is_object(document))
        return error_set(e, REASON_UPDATER_INVALID,
                         "the document must be an object such as {\"type\": \"sgd\"}, or null for assign");
    u->row = read_type(document, &f);
    if (u->row != NULL) {
        set_standards(document, u);
        json_object_foreach(document, name, value) read_member(u->row, name, value, u->hypers, &f);
        if (is_program(u->row)) read_program(document, u, &f);
        if (u->row->common || is_program(u->row))
            read_schedule(json_object_get(document, "schedule"), u, &f);
        read_overrides(json_object_get(document, "overrides"), u, &f);
    }
    if (f.no_memory) return error_set(e, REASON_NO_MEMORY, "no memory for an updater");
    return f.count > 0 ? faults_tell(&f, e) : STATUS_OK;
}

enum status document_read(struct bytes json, struct updater *u, struct buf *all, struct error *e)
{
    json_t *document = NULL;
    enum status s = read_json(json, &document, e);

    if (s != STATUS_OK) return s;
    if (json_is_null(document)) u->row = updater_row_find(bytes_text("assign"));
    else s = read_document(document, u, all, e);
    json_decref(document);
    return s;
}

/* ---- writing ---------------------------------------------------------------------------------------------------- */

static void write_hyper(struct buf *b, const struct hyper_row *h, double v)
{
    buf_format(b, ", \"%s\": ", h->name);
    if (h->words == hyper_flag) buf_text(b, h->words[(int)v]);
    else if (h->words != NULL) buf_format(b, "\"%s\"", h->words[(int)v]);
    else if (isnan(v)) buf_text(b, "null");
    else buf_number(b, v);
}

static void write_string(struct buf *b, const char *text)
{
    buf_text(b, "\"");
    for (const char *c = text; *c != '\0'; c++) {
        if (*c == '"' || *c == '\\') buf_format(b, "\\%c", *c);
        else if ((unsigned char)*c < 0x20) buf_format(b, "\\u%04x", (unsigned)*c);
        else buf_add(b, c, 1);
    }
    buf_text(b, "\"");
}

static void write_schedule(struct buf *b, const struct schedule *s)
{
    buf_format(b, ", \"schedule\": {\"type\": \"%s\"", s->row->name);
    for (unsigned i = 0; i < s->row->hyper_count; i++) write_hyper(b, &s->row->hypers[i], s->hypers[i]);
    for (unsigned i = 0; i < s->step_count; i++) {
        buf_text(b, i == 0 ? ", \"step\": [" : ", ");
        buf_number(b, s->steps[i]);
    }
    buf_text(b, s->step_count > 0 ? "]}" : "}");
}

static void write_factors(struct buf *b, const struct program *program, const struct override *o)
{
    unsigned n = 0;

    for (unsigned i = 0; program != NULL && i < program->param_count; i++) {
        if (!o->has_factor[i]) continue;
        buf_format(b, "%s\"%s\": ", n++ > 0 ? ", " : ", \"params\": {", program->params[i].name);
        buf_number(b, o->factors[i]);
    }
    if (n > 0) buf_text(b, "}");
}

static void write_override(struct buf *b, const struct updater *u, const struct override *o)
{
    const struct updater_row *row = u->row;

    buf_text(b, "{\"match\": ");
    write_string(b, o->match);
    for (unsigned i = 0; i < KEY_MEMBERS; i++)
        if (o->has_own[i]) write_hyper(b, &key_members[i], o->own[i]);
    write_factors(b, u->program, o);
    for (unsigned i = 0; i < row->hyper_count; i++)
        if (o->has[i]) write_hyper(b, &row->hypers[i], o->hypers[i]);
    buf_text(b, "}");
}

static void write_program(struct buf *b, const struct updater *u)
{
    buf_text(b, ", \"text\": ");
    write_string(b, u->program_text);
    buf_text(b, ", \"params\": {");
    for (unsigned i = 0; i < u->program->param_count; i++) {
        buf_format(b, "%s\"%s\": ", i > 0 ? ", " : "", u->program->params[i].name);
        buf_number(b, u->params[i]);
    }
    buf_text(b, "}");
}

enum status document_write(struct updater *u, struct error *e)
{
    struct buf b = {0};

    buf_format(&b, "{\"type\": \"%s\"", u->row->name);
    for (unsigned i = 0; i < u->row->hyper_count; i++) write_hyper(&b, &u->row->hypers[i], u->hypers[i]);
    if (u->program != NULL) write_program(&b, u);
    if (u->schedule != NULL) write_schedule(&b, u->schedule);
    for (size_t i = 0; i < u->override_count; i++) {
        buf_text(&b, i == 0 ? ", \"overrides\": [" : ", ");
        write_override(&b, u, &u->overrides[i]);
    }
    buf_text(&b, u->override_count > 0 ? "]}" : "}");
    u->text = b.failed ? NULL : mem_text((const char *)b.at, b.size);
    buf_fini(&b);
    return u->text != NULL ? STATUS_OK : error_set(e, REASON_NO_MEMORY, "no memory for the text of an updater");
}

/* ---- what a document leaves out --------------------------------------------------------- */

/* Numbers, words and flags stand for themselves; a list is as long as it is, a schedule is of its
 * type. */
static json_t *brief(const json_t *value)
{
    if (json_is_array(value)) return json_integer((json_int_t)json_array_size(value));
    if (json_is_real(value) && fabs(json_real_value(value)) < 1e9 &&
        json_real_value(value) == floor(json_real_value(value)))
        return json_integer((json_int_t)json_real_value(value));
    if (json_is_object(value)) return json_incref(json_object_get(value, "type"));
    return value != NULL ? json_incref((json_t *)value) : json_null();
}

/* Members of `old` that `said` does not have and `now` has otherwise. all: also those that now does
 * not have. */
static bool add_dropped(json_t *list, const char *prefix, const json_t *old, const json_t *now,
                        const json_t *said, bool all)
{
    const char *name;
    json_t *value;

    json_object_foreach((json_t *)old, name, value) {
        json_t *then = json_object_get(now, name);
        if (json_object_get(said, name) != NULL || (then == NULL && !all)) continue;
        if (strcmp(name, "params") == 0 || (then != NULL && json_equal(value, then))) continue;
        json_t *to = json_is_array(value) && then == NULL ? json_integer(0) : brief(then);
        json_t *row =
            json_pack("{s:s+,s:o,s:o}", "name", prefix, name, "from", brief(value), "to", to);
        if (row == NULL || json_array_append_new(list, row) != 0) return false;
    }
    return true;
}

/* The members of one member that both have, "params/lr": what it does not say is dropped just as
 * silently. */
static bool add_dropped_of(json_t *list, const char *member, const json_t *old, const json_t *now,
                           const json_t *said)
{
    const json_t *a = json_object_get(old, member), *b = json_object_get(now, member);
    json_t *types[] = {json_object_get(a, "type"), json_object_get(b, "type")};
    char prefix[16];

    if (types[0] != NULL && !json_equal(types[0], types[1])) return true;
    snprintf(prefix, sizeof prefix, "%s/", member);
    return add_dropped(list, prefix, a, b, json_object_get(said, member), false);
}

json_t *document_dropped(const struct updater *before, const struct updater *u, const json_t *said)
{
    json_t *old = json_loads(before->text, 0, NULL), *now = json_loads(u->text, 0, NULL),
           *list = json_array();
    bool ok = old != NULL && now != NULL && list != NULL;

    if (ok && before->row == u->row) {
        ok = add_dropped(list, "", old, now, said, true) &&
             add_dropped_of(list, "params", old, now, said);
        if (ok && json_is_object(json_object_get(said, "schedule")))
            ok = add_dropped_of(list, "schedule", old, now, said);
    }
    if (!ok) json_decref(list);
    json_decref(old);
    json_decref(now);
    return ok ? list : NULL;
}
