#include "service/updater.h"

#include "service/base/mem.h"

#include <assert.h>
#include <ctype.h>
#include <jansson.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct updater {
    unsigned holds;
    const struct updater_row *row;
    double hypers[UPDATER_HYPERS_MAX];       /* NAN: the option is off */
    enum rule_id rule;
    char *text;
};

/* ---- the nearest name ------------------------------------------------------------------------------------------- */

enum { NAME_COMPARED_MAX = 48 };             /* longer words are near to nothing */

static unsigned least_of(unsigned a, unsigned b) { return a < b ? a : b; }

static bool same_letter(char a, char b) { return tolower((unsigned char)a) == tolower((unsigned char)b); }

/* One row of the distance table. d[0] is the row to fill, d[1] and d[2] are those before it. Case does not count, so
 * that "SGD" is near "sgd". */
static void distance_row(unsigned *const d[3], const char *a, size_t i, const char *b, size_t b_size)
{
    d[0][0] = (unsigned)i;
    for (size_t j = 1; j <= b_size; j++) {
        unsigned best = least_of(d[1][j] + 1, d[0][j - 1] + 1);
        best = least_of(best, d[1][j - 1] + !same_letter(a[i - 1], b[j - 1]));
        if (i > 1 && j > 1 && same_letter(a[i - 1], b[j - 2]) && same_letter(a[i - 2], b[j - 1]))
            best = least_of(best, d[2][j - 2] + 1);
        d[0][j] = best;
    }
}

static unsigned distance(const char *a, size_t a_size, const char *b, size_t b_size)
{
    unsigned rows[3][NAME_COMPARED_MAX + 1];

    for (size_t j = 0; j <= b_size; j++) rows[0][j] = (unsigned)j;
    for (size_t i = 1; i <= a_size; i++)
        distance_row((unsigned *const[3]){rows[i % 3], rows[(i + 2) % 3], rows[(i + 1) % 3]}, a, i, b, b_size);
    return rows[a_size % 3][b_size];
}

const char *nearest_name(struct bytes word, const char *const *names)
{
    const char *nearest = NULL;
    unsigned best = (unsigned)(least_of((unsigned)word.size, NAME_COMPARED_MAX) / 3) + 1;

    if (word.size > NAME_COMPARED_MAX) return NULL;
    for (; *names != NULL; names++) {
        size_t size = strlen(*names);
        unsigned d = size <= NAME_COMPARED_MAX ? distance(word.at, word.size, *names, size) : best;
        if (d >= best) continue;
        best = d;
        nearest = *names;
    }
    return nearest;
}

/* ---- faults: all of them in one sentence ------------------------------------------------------------------------ */

/* Shown at most: each byte escaped, the end of a character, "..." and the zero. */
enum { NAME_SHOWN_MAX = 48, NAME_SHOWN_SIZE = 2 * NAME_SHOWN_MAX + 8, FAULTS_REST_SIZE = 24 };

struct faults {
    unsigned count, left_out;
    size_t used;
    char text[ERROR_TEXT_SIZE];
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
    if (f->left_out > 0 || n < 0 || (size_t)n + 3 > limit - f->used) {
        f->left_out++;
        return;
    }
    f->used += (size_t)snprintf(f->text + f->used, limit - f->used, "%s%s", f->used > 0 ? "; " : "", one);
}

static enum status faults_tell(const struct faults *f, struct error *e)
{
    if (f->left_out == 0) return error_set(e, REASON_UPDATER_INVALID, "%s", f->text);
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
    return error_set(e, REASON_BAD_JSON, "line %d, column %d: %s", where.line, where.column,
                     bytes_is_utf8(bytes_text(where.text)) ? where.text : "the text is not JSON");
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
    char known[200], name_shown[NAME_SHOWN_SIZE];

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

static void unknown_name(const struct updater_row *row, const char *name, struct faults *f)
{
    const char *names[UPDATER_HYPERS_MAX + 2] = {"type"}, *near;
    char name_shown[NAME_SHOWN_SIZE];

    for (unsigned i = 0; i < row->hyper_count; i++) names[i + 1] = row->hypers[i].name;
    near = nearest_name(bytes_text(name), names);
    fault(f, "/%s: %s has no such name%s%s%s", shown(name, name_shown), row->name,
          near != NULL ? "; did you mean " : "", near != NULL ? near : "", near != NULL ? "?" : "");
}

static void read_hyper(const struct hyper_row *h, const json_t *value, double *out, struct faults *f)
{
    double v = json_number_value(value);
    bool may_be_off = isnan(h->standard);

    if (may_be_off && json_is_null(value))
        *out = NAN;
    else if (json_is_number(value) && v >= h->least && v <= h->most)
        *out = v + 0.0;      /* -0 becomes 0: equal numbers, equal text */
    else
        fault(f, "/%s: must be a number from %.7g to %.7g%s", h->name, h->least, h->most, may_be_off ? " or null" : "");
}

/* Settings that are no plain number (a schedule, overrides) will be rows of their own kind, asked here by name. */
static void read_member(const struct updater_row *row, const char *name, const json_t *value, double *hypers,
                        struct faults *f)
{
    if (strcmp(name, "type") == 0) return;
    for (unsigned i = 0; i < row->hyper_count; i++)
        if (strcmp(name, row->hypers[i].name) == 0) {
            read_hyper(&row->hypers[i], value, &hypers[i], f);
            return;
        }
    unknown_name(row, name, f);
}

/* Fills row and numbers. Without a known type the other names mean nothing, and only the type is told. */
static enum status read_document(json_t *document, struct updater *u, struct error *e)
{
    struct faults f = {0};
    const char *name;
    json_t *value;

    if (!json_is_object(document))
        return error_set(e, REASON_UPDATER_INVALID,
                         "the document must be an object such as {\"type\": \"sgd\"}, or null for assign");
    u->row = read_type(document, &f);
    for (unsigned i = 0; u->row != NULL && i < u->row->hyper_count; i++) u->hypers[i] = u->row->hypers[i].standard;
    if (u->row != NULL)
        json_object_foreach(document, name, value) read_member(u->row, name, value, u->hypers, &f);
    return f.count > 0 ? faults_tell(&f, e) : STATUS_OK;
}

/* ---- writing ---------------------------------------------------------------------------------------------------- */

/* The shortest number that reads back the same, always with a point or an exponent. The C library writes the decimal
 * mark of the process's language, which in an embedding program may be a comma. */
static void write_number(struct buf *b, double v)
{
    char text[40];
    bool whole = true;

    for (int digits = 15; digits <= 17; digits++) {
        snprintf(text, sizeof text, "%.*g", digits, v);
        if (strtod(text, NULL) == v) break;
    }
    for (char *c = text; *c != '\0'; c++) {
        if (strchr("0123456789+-e", *c) == NULL) *c = '.';
        whole = whole && *c != '.' && *c != 'e';
    }
    buf_text(b, text);
    if (whole) buf_text(b, ".0");
}

static enum status write_text(struct updater *u, struct error *e)
{
    struct buf b = {0};

    buf_format(&b, "{\"type\": \"%s\"", u->row->name);
    for (unsigned i = 0; i < u->row->hyper_count; i++) {
        buf_format(&b, ", \"%s\": ", u->row->hypers[i].name);
        if (isnan(u->hypers[i])) buf_text(&b, "null");
        else write_number(&b, u->hypers[i]);
    }
    buf_text(&b, "}");
    u->text = b.failed ? NULL : mem_text((const char *)b.at, b.size);
    buf_fini(&b);
    return u->text != NULL ? STATUS_OK : error_set(e, REASON_NO_MEMORY, "no memory for the text of an updater");
}

/* ---- the updater ------------------------------------------------------------------------------------------------ */

static void updater_free(struct updater *u)
{
    if (u == NULL) return;
    mem_free(u->text);
    mem_free(u);
}

enum status updater_parse(struct bytes json, struct updater **out, struct error *e)
{
    json_t *document = NULL;
    struct updater *u = NULL;
    enum status s;

    s = read_json(json, &document, e);
    if (s != STATUS_OK) goto out;
    u = mem_zero(sizeof *u);
    if (u == NULL) {
        s = error_set(e, REASON_NO_MEMORY, "no memory for an updater");
        goto out;
    }
    u->holds = 1;
    if (json_is_null(document)) u->row = updater_row_find(bytes_text("assign"));
    else s = read_document(document, u, e);
    if (s != STATUS_OK) goto out;
    u->rule = u->row->rule(u->hypers);
    s = write_text(u, e);
    if (s != STATUS_OK) goto out;
    *out = u;
    u = NULL;
out:
    updater_free(u);
    json_decref(document);
    return s;
}

struct updater *updater_hold(struct updater *u)
{
    u->holds++;
    return u;
}

void updater_drop(struct updater *u)
{
    if (u == NULL) return;
    assert(u->holds > 0);
    if (--u->holds == 0) updater_free(u);
}

const char *updater_text(const struct updater *u) { return u->text; }
const char *updater_type(const struct updater *u) { return u->row->name; }
bool updater_equal(const struct updater *a, const struct updater *b) { return a == b || strcmp(a->text, b->text) == 0; }

unsigned updater_slots(const struct updater *u) { return rule_slots(u->rule); }
const char *updater_slot_name(const struct updater *u, unsigned slot) { return rule_slot_name(u->rule, slot); }

enum status updater_fits(const struct updater *u, enum dtype t, struct error *e)
{
    if (!dtype_computes(t))
        return error_set(e, REASON_UPDATER_UNFIT, "this version does not compute with %s values; use f32",
                         dtype_name(t));
    if (dtype_is_integer(t) && !rule_takes_integers(u->rule))
        return error_set(e, REASON_UPDATER_UNFIT,
                         "%s needs fractions, which %s values do not have; they take assign, add and average",
                         u->row->name, dtype_name(t));
    return STATUS_OK;
}

void updater_step(const struct updater *u, const struct update_moment *m, struct step *s)
{
    s->rule = u->rule;
    s->scalars = (struct rule_scalars){0};
    u->row->scalars(u->hypers, m, &s->scalars);
}
