#include "web/viz/write.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/* U+FFFE and U+FFFF are no characters of XML. */
static bool is_no_character(const char *at)
{
    return memcmp(at, "\xEF\xBF\xBE", 3) == 0 || memcmp(at, "\xEF\xBF\xBF", 3) == 0;
}

void viz_add_xml(struct buf *out, const char *text)
{
    size_t left = strlen(text);

    for (const char *at = text; left > 0; at++, left--) {
        switch (*at) {
        case '&': buf_text(out, "&amp;"); break;
        case '<': buf_text(out, "&lt;"); break;
        case '>': buf_text(out, "&gt;"); break;
        case '"': buf_text(out, "&quot;"); break;
        case '\'': buf_text(out, "&#39;"); break;
        case '\n': buf_text(out, "&#10;"); break;
        default:
            if ((unsigned char)*at < 32 || *at == 127) {
                buf_text(out, "\uFFFD");
            } else if (left >= 3 && is_no_character(at)) {
                buf_text(out, "\uFFFD");
                at += 2;
                left -= 2;
            } else {
                buf_add(out, at, 1);
            }
        }
    }
}

void viz_add_json_text(struct buf *out, const char *text)
{
    buf_text(out, "\"");
    for (; *text != '\0'; text++) {
        size_t plain = 0;
        while ((unsigned char)text[plain] >= 32 && text[plain] != '"' && text[plain] != '\\') plain++;
        buf_add(out, text, plain);
        text += plain;
        if (*text == '\0') break;
        if (*text == '"' || *text == '\\') buf_format(out, "\\%c", *text);
        else buf_format(out, "\\u%04x", (unsigned char)*text);
    }
    buf_text(out, "\"");
}

void viz_add_count(struct buf *out, uint64_t n)
{
    char digits[24];
    size_t count = (size_t)snprintf(digits, sizeof digits, "%" PRIu64, n);

    for (size_t i = 0; i < count; i++) {
        if (i > 0 && (count - i) % 3 == 0) buf_text(out, ",");
        buf_add(out, &digits[i], 1);
    }
}
