#include "web/json.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void json_write_text(struct buf *out, struct bytes text)
{
    const char *at = text.at;
    size_t done = 0;

    buf_text(out, "\"");
    for (size_t i = 0; i < text.size; i++) {
        unsigned char c = (unsigned char)at[i];
        if (c >= 0x20 && c != '"' && c != '\\') continue;
        buf_add(out, at + done, i - done);
        done = i + 1;
        if (c == '\n') buf_text(out, "\\n");
        else if (c < 0x20) buf_format(out, "\\u%04x", c);
        else buf_format(out, "\\%c", c);
    }
    buf_add(out, at + done, text.size - done);
    buf_text(out, "\"");
}

void json_write_number(struct buf *out, double v)
{
    char text[40];

    for (int digits = 15; digits <= 17; digits++) {
        snprintf(text, sizeof text, "%.*g", digits, v);
        if (strtod(text, NULL) == v) break;
    }
    buf_text(out, text);
    if (strpbrk(text, ".e") == NULL) buf_text(out, ".0");
}

static bool is_leaf(const json_t *v) { return !json_is_array(v) && !json_is_object(v); }

/* Fits a line: nothing but leaves inside, and lists down to `depth`. */
static bool is_flat(const json_t *v, int depth)
{
    const char *name;
    json_t *item;
    size_t i;

    json_array_foreach(v, i, item) if (!is_leaf(item) && (depth == 0 || !is_flat(item, depth - 1))) return false;
    json_object_foreach((json_t *)(uintptr_t)v, name, item)
        if (!is_leaf(item) && (depth == 0 || json_is_object(item) || !is_flat(item, depth - 1))) return false;
    return true;
}

/* An item of a list: its members are numbers, texts, or lists of such. */
static bool is_row(const json_t *v) { return is_flat(v, json_is_object(v) ? 1 : 0); }

static void write(struct buf *out, const json_t *v, unsigned indent, bool line);

static void gap(struct buf *out, unsigned indent, bool line, bool first)
{
    if (line) buf_text(out, first ? "" : " ");
    else buf_format(out, "\n%*s", (int)indent, "");
}

static void write_array(struct buf *out, const json_t *v, unsigned indent, bool line)
{
    const json_t *item;
    size_t i;

    buf_text(out, "[");
    json_array_foreach(v, i, item) {
        if (i > 0) buf_text(out, ",");
        gap(out, indent + 2, line, i == 0);
        write(out, item, indent + 2, line || is_row(item));
    }
    if (!line && i > 0) gap(out, indent, line, false);
    buf_text(out, "]");
}

static void write_object(struct buf *out, const json_t *v, unsigned indent, bool line)
{
    const char *name;
    json_t *item;
    bool first = true;

    buf_text(out, "{");
    json_object_foreach((json_t *)(uintptr_t)v, name, item) {
        if (!first) buf_text(out, ",");
        gap(out, indent + 2, line, first);
        json_write_text(out, bytes_text(name));
        buf_text(out, ": ");
        write(out, item, indent + 2, line || (json_is_object(item) ? is_row(item) : is_flat(item, 0)));
        first = false;
    }
    if (!line && !first) gap(out, indent, line, false);
    buf_text(out, "}");
}

static void write(struct buf *out, const json_t *v, unsigned indent, bool line)
{
    switch (json_typeof(v)) {
    case JSON_OBJECT: write_object(out, v, indent, line); return;
    case JSON_ARRAY: write_array(out, v, indent, line); return;
    case JSON_STRING: json_write_text(out, bytes_of(json_string_value(v), json_string_length(v))); return;
    case JSON_INTEGER: buf_format(out, "%" JSON_INTEGER_FORMAT, json_integer_value(v)); return;
    case JSON_REAL: json_write_number(out, json_real_value(v)); return;
    case JSON_TRUE: buf_text(out, "true"); return;
    case JSON_FALSE: buf_text(out, "false"); return;
    case JSON_NULL: buf_text(out, "null"); return;
    }
}

void json_text_free(char *text)
{
    json_free_t give = free;

    json_get_alloc_funcs(NULL, &give);
    give(text);
}

void json_write(struct buf *out, const json_t *v) { write(out, v, 0, false); }
