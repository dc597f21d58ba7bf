#include "api/paramctl/paramctl.h"

#include "service/base/bytes.h"
#include "web/json.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

enum { COLUMNS_MAX = 12, FACT_WIDTH = 11 };

double number(const json_t *j, const char *name) { return json_number_value(json_object_get(j, name)); }

unsigned long long whole(const json_t *j, const char *name)
{
    return (unsigned long long)json_integer_value(json_object_get(j, name));
}

void say_json(FILE *to, const char *json, size_t size)
{
    char escaped[7];

    for (const char *at = json, *end = json + size; at < end;) {
        size_t n = *at != '\n' ? text_escape(escaped, at) : 0;
        if (n > 0) {
            fputs(escaped, to);
            at += n;
            continue;
        }
        n = *at != '\n' ? utf8_length(at, (size_t)(end - at)) : 1;
        fwrite(at, 1, n, to);
        at += n;
    }
}

int show_json(json_t *j)
{
    struct buf text = {0};

    if (j != NULL) json_write(&text, j);
    if (j != NULL && buf_room(&text, 1) != NULL) text.at[--text.size] = 0; /* the ending zero */
    if (j == NULL || text.failed) {
        json_decref(j);
        buf_fini(&text);
        complain_usage("no memory for the answer");
        return EXIT_ERROR;
    }
    say_json(stdout, (const char *)text.at, text.size);
    putchar('\n');
    json_decref(j);
    buf_fini(&text);
    return 0;
}

/* ---- cells ------------------------------------------------------------------------------------------------------ */

const char *bytes_text_of(double bytes, char out[CELL_SIZE])
{
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
    unsigned u = 0;

    for (; bytes >= 1024 && u < 4; u++) bytes /= 1024;
    snprintf(out, CELL_SIZE, u == 0 ? "%.0f %s" : "%.1f %s", bytes, units[u]);
    return out;
}

static void seconds_text(double s, char out[CELL_SIZE])
{
    unsigned long long whole = (unsigned long long)s;

    if (s < 60) snprintf(out, CELL_SIZE, "%.1f s", s);
    else if (s < 3600) snprintf(out, CELL_SIZE, "%llu min %llu s", whole / 60, whole % 60);
    else if (s < 86400) snprintf(out, CELL_SIZE, "%llu h %llu min", whole / 3600, whole % 3600 / 60);
    else snprintf(out, CELL_SIZE, "%llu d %llu h", whole / 86400, whole % 86400 / 3600);
}

static void shape_text(const json_t *v, char out[CELL_SIZE])
{
    size_t n = 1, count = json_array_size(v);

    snprintf(out, CELL_SIZE, "(");
    for (size_t i = 0; i < count && n < CELL_SIZE - 32; i++)
        n += (size_t)snprintf(out + n, CELL_SIZE - n, "%s%" JSON_INTEGER_FORMAT, i > 0 ? ", " : "",
                              json_integer_value(json_array_get(v, i)));
    snprintf(out + n, CELL_SIZE - n, count == 1 ? ",)" : ")");
}

/* A cut name ends with a whole character. */
static void name_text(const char *from, char out[CELL_SIZE])
{
    size_t n = strnlen(from, CELL_SIZE - 1);

    while (n > 0 && from[n] != '\0' && ((unsigned char)from[n] & 0xc0) == 0x80) n--;
    memcpy(out, from, n);
    out[n] = '\0';
    text_plain(out, false);
}

static void say_all(FILE *to, bool lines, const char *format, va_list args)
{
    char *text = NULL;

    if (vasprintf(&text, format, args) < 0) return;
    text_plain(text, lines);
    fputs(text, to);
    free(text);
}

void say_lines(FILE *to, const char *format, ...)
{
    va_list args;

    va_start(args, format);
    say_all(to, true, format, args);
    va_end(args);
}

void say(FILE *to, const char *format, ...)
{
    va_list args;

    va_start(args, format);
    say_all(to, false, format, args);
    va_end(args);
    fputc('\n', to);
}

const char *cell(const json_t *v, enum look look, char out[CELL_SIZE])
{
    if (v == NULL || json_is_null(v)) snprintf(out, CELL_SIZE, "-");
    else if (look == LOOK_SHAPE) shape_text(v, out);
    else if (look == LOOK_SECONDS) seconds_text(json_number_value(v), out);
    else if (look == LOOK_BYTES) bytes_text_of(json_number_value(v), out);
    else if (json_is_string(v)) name_text(json_string_value(v), out);
    else if (json_is_integer(v)) snprintf(out, CELL_SIZE, "%" JSON_INTEGER_FORMAT, json_integer_value(v));
    else if (json_is_real(v)) snprintf(out, CELL_SIZE, "%g", json_real_value(v));
    else if (json_is_boolean(v)) snprintf(out, CELL_SIZE, json_is_true(v) ? "yes" : "no");
    else snprintf(out, CELL_SIZE, "...");
    return out;
}

/* ---- tables ----------------------------------------------------------------------------------------------------- */

/* Columns on a terminal, for names in most scripts. */
static int width_of(const char *text)
{
    int n = 0;
    for (; *text != '\0'; text++) n += ((unsigned char)*text & 0xc0) != 0x80;
    return n;
}

static bool is_right(enum look look) { return look == LOOK_NUMBER || look == LOOK_BYTES || look == LOOK_SECONDS; }

static void print_cell(FILE *to, const char *text, int width, bool right, bool last)
{
    int pad = width - width_of(text);

    if (last && !right) fputs(text, to);
    else if (right) fprintf(to, "%*s%s", pad, "", text);
    else fprintf(to, "%s%*s", text, pad, "");
    fputs(last ? "\n" : "  ", to);
}

void print_table(const struct ctl *c, FILE *to, const json_t *items, const struct column *columns, size_t count)
{
    int width[COLUMNS_MAX];
    char text[CELL_SIZE];
    size_t rows = json_array_size(items);

    for (size_t k = 0; k < count; k++) {
        width[k] = width_of(columns[k].title);
        for (size_t i = 0; i < rows; i++) {
            int w = width_of(cell(json_object_get(json_array_get(items, i), columns[k].member), columns[k].look, text));
            if (w > width[k]) width[k] = w;
        }
    }
    if (c->color) fputs("\033[1m", to);
    for (size_t k = 0; k < count; k++)
        print_cell(to, columns[k].title, width[k], is_right(columns[k].look), k + 1 == count);
    if (c->color) fputs("\033[0m", to);
    for (size_t i = 0; i < rows; i++)
        for (size_t k = 0; k < count; k++) {
            const json_t *v = json_object_get(json_array_get(items, i), columns[k].member);
            print_cell(to, cell(v, columns[k].look, text), width[k], is_right(columns[k].look), k + 1 == count);
        }
}

void print_fact(const struct ctl *c, FILE *to, const char *name, const char *format, ...)
{
    va_list args;

    fprintf(to, c->color ? "\033[1m%-*s\033[0m " : "%-*s ", FACT_WIDTH, name);
    va_start(args, format);
    say_all(to, false, format, args);
    va_end(args);
    fputc('\n', to);
}
