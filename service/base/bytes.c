#include "service/base/bytes.h"

#include "service/base/mem.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct bytes bytes_text(const char *text) { return bytes_of(text, strlen(text)); }

bool bytes_equal(struct bytes a, struct bytes b)
{
    return a.size == b.size && (a.size == 0 || memcmp(a.at, b.at, a.size) == 0);
}

int bytes_compare(struct bytes a, struct bytes b)
{
    size_t n = a.size < b.size ? a.size : b.size;
    int c = n > 0 ? memcmp(a.at, b.at, n) : 0;

    if (c != 0) return c;
    return a.size < b.size ? -1 : a.size > b.size;
}

size_t utf8_length(const void *at, size_t left)
{
    const uint8_t *p = at;

    if (p[0] < 0x80) return p[0] != 0;
    if (p[0] < 0xC2 || p[0] > 0xF4) return 0;
    size_t n = p[0] < 0xE0 ? 2 : p[0] < 0xF0 ? 3 : 4;
    if (left < n) return 0;
    uint8_t low = 0x80, high = 0xBF;
    if (p[0] == 0xE0) low = 0xA0;
    if (p[0] == 0xED) high = 0x9F;
    if (p[0] == 0xF0) low = 0x90;
    if (p[0] == 0xF4) high = 0x8F;
    if (p[1] < low || p[1] > high) return 0;
    for (size_t i = 2; i < n; i++)
        if ((p[i] & 0xC0) != 0x80) return 0;
    return n;
}

bool bytes_is_utf8(struct bytes b)
{
    const uint8_t *p = b.at;

    for (size_t i = 0; i < b.size;) {
        size_t n = utf8_length(p + i, b.size - i);
        if (n == 0) return false;
        i += n;
    }
    return true;
}

size_t text_control(const char *at)
{
    const uint8_t *p = (const uint8_t *)at;

    if (p[0] == '\0') return 0;
    size_t n = utf8_length(p, strnlen(at, 4));
    if (n == 0) return 1;
    if (n == 1) return p[0] < ' ' || p[0] == 0x7F;
    if (n == 2) return p[0] == 0xC2 && p[1] < 0xA0 ? 2 : 0;
    if (n == 4 || p[0] != 0xE2) return 0;
    bool marks = p[1] == 0x80 && (p[2] == 0x8E || p[2] == 0x8F || (p[2] >= 0xA8 && p[2] <= 0xAE));
    return marks || (p[1] == 0x81 && p[2] >= 0xA6 && p[2] <= 0xA9) ? 3 : 0;
}

void text_plain(char *text, bool lines)
{
    char *to = text;

    for (const char *from = text; *from != '\0';) {
        size_t n = lines && *from == '\n' ? 0 : text_control(from);
        if (n > 0) {
            *to++ = '?';
            from += n;
            continue;
        }
        n = utf8_length(from, strnlen(from, 4));
        memmove(to, from, n);
        to += n;
        from += n;
    }
    *to = '\0';
}

size_t text_escape(char to[7], const char *at)
{
    const uint8_t *p = (const uint8_t *)at;
    size_t n = text_control(at);
    unsigned code = n == 3 ? (p[0] & 0xFu) << 12 | (p[1] & 0x3Fu) << 6 | (p[2] & 0x3Fu)
                  : n == 2 ? (p[0] & 0x1Fu) << 6 | (p[1] & 0x3Fu) : p[0];

    if (n > 0) snprintf(to, 7, "\\u%04x", code & 0xFFFF);
    return n;
}

void *buf_room(struct buf *b, size_t size)
{
    if (b->failed || size > SIZE_MAX / 2 - b->size) goto failed;
    if (b->at == NULL || b->size + size > b->capacity) {
        size_t want = b->capacity > 0 ? b->capacity : 256;
        while (want < b->size + size) want *= 2;
        uint8_t *p = mem_resize(b->at, want);
        if (p == NULL) goto failed;
        b->at = p;
        b->capacity = want;
    }
    b->size += size;
    return b->at + b->size - size;
failed:
    b->failed = true;
    return NULL;
}

void buf_add(struct buf *b, const void *from, size_t size)
{
    if (size == 0) return;
    void *to = buf_room(b, size);
    if (to != NULL) memcpy(to, from, size);
}

void buf_text(struct buf *b, const char *text) { buf_add(b, text, strlen(text)); }

void buf_format(struct buf *b, const char *format, ...)
{
    va_list args, again;

    va_start(args, format);
    va_copy(again, args);
    int n = vsnprintf(NULL, 0, format, args);
    va_end(args);
    if (n < 0) b->failed = true; /* longer than an int can tell, or no text in this locale */
    char *to = n >= 0 ? buf_room(b, (size_t)n + 1) : NULL;
    if (to != NULL) {
        vsnprintf(to, (size_t)n + 1, format, again);
        b->size--; /* the ending zero stays behind the content */
    }
    va_end(again);
}

void buf_pad(struct buf *b, size_t align)
{
    size_t over = b->size % align;

    if (over == 0) return;
    void *to = buf_room(b, align - over);
    if (to != NULL) memset(to, 0, align - over);
}

void buf_clear(struct buf *b)
{
    b->size = 0;
    b->failed = false;
}

void buf_fini(struct buf *b)
{
    mem_free(b->at);
    *b = (struct buf){0};
}

/* The C library writes the decimal mark of the process's language, which in an embedding program may be a comma. */
void buf_number(struct buf *b, double number)
{
    char text[40];
    bool whole = true;

    if (!isfinite(number)) {
        buf_text(b, "null");
        return;
    }
    for (int digits = 15; digits <= 17; digits++) {
        snprintf(text, sizeof text, "%.*g", digits, number);
        if (strtod(text, NULL) == number) break;
    }
    for (char *c = text; *c != '\0'; c++) {
        if (strchr("0123456789+-e", *c) == NULL) *c = '.';
        whole = whole && *c != '.' && *c != 'e';
    }
    buf_text(b, text);
    if (whole) buf_text(b, ".0");
}
