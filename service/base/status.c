#include "service/base/status.h"

#include "service/base/bytes.h"

#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

struct reason_row {
    const char *code;
    const char *title;
    enum status status;
    unsigned http;
};

static const struct reason_row reason_rows[] = {
#define REASON_ROW(number, name, code, status, http, title) [number] = {code, title, STATUS_##status, http},
    REASONS(REASON_ROW)
#undef REASON_ROW
};

static const char *const status_names[] = {
#define STATUS_NAME(name, wire, text) [wire] = #name,
    STATUSES(STATUS_NAME)
#undef STATUS_NAME
};

enum { REASON_COUNT = sizeof reason_rows / sizeof reason_rows[0],
       STATUS_COUNT = sizeof status_names / sizeof status_names[0] };

const char *status_name(enum status s)
{
    return (unsigned)s < STATUS_COUNT ? status_names[s] : "UNKNOWN";
}

enum status status_from_wire(uint32_t wire)
{
    return wire < STATUS_COUNT ? (enum status)wire : STATUS_UNKNOWN;
}

enum reason reason_from_wire(uint32_t wire)
{
    return wire < REASON_COUNT ? (enum reason)wire : REASON_INTERNAL;
}

static const struct reason_row *row(enum reason r)
{
    return &reason_rows[reason_from_wire((uint32_t)r)];
}

const char *reason_code(enum reason r) { return row(r)->code; }
const char *reason_title(enum reason r) { return row(r)->title; }
enum status reason_status(enum reason r) { return row(r)->status; }
unsigned reason_http(enum reason r) { return row(r)->http; }

/* vsnprintf cuts at a byte; half a character would make the text invalid UTF-8 wherever it is shown. */
static void cut_at_character(char *text, size_t size)
{
    size_t i = size;

    while (i > 0 && ((unsigned char)text[i - 1] & 0xC0) == 0x80) i--;
    if (i == 0) return;
    unsigned char lead = (unsigned char)text[i - 1];
    size_t want = lead < 0x80 ? 1 : lead >= 0xF0 ? 4 : lead >= 0xE0 ? 3 : 2;
    if (size - (i - 1) < want) text[i - 1] = '\0';
}

/* A sentence may quote what a peer sent, and parsers do so with bytes that are none: it would spoil each answer that has it. */
static void mend(char *text)
{
    for (size_t i = 0, left = strlen(text), n; left > 0; i += n, left -= n) {
        n = utf8_length(text + i, left);
        if (n > 0) continue;
        text[i] = '?';
        n = 1;
    }
}

static enum status set(struct error *e, enum reason r, uint32_t retry_ms, const char *format, va_list args)
{
    enum status s = reason_status(r);

    if (e == NULL) return s;
    e->status = s;
    e->reason = r;
    e->retry_ms = retry_ms;
    int n = vsnprintf(e->text, sizeof e->text, format, args);
    if (n < 0) e->text[0] = '\0';
    else if ((size_t)n >= sizeof e->text) cut_at_character(e->text, sizeof e->text - 1);
    mend(e->text);
    return s;
}

enum status error_set(struct error *e, enum reason r, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    enum status s = set(e, r, 0, format, args);
    va_end(args);
    return s;
}

enum status error_retry(struct error *e, enum reason r, uint32_t retry_ms, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    enum status s = set(e, r, retry_ms, format, args);
    va_end(args);
    return s;
}
