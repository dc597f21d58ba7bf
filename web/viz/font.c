#include "web/viz/font.h"

#include <string.h>

/* Thousandths of the size, from the blank to the tilde. */
static const uint16_t advances[] = {
    278, 278, 355, 556, 556, 889, 667, 191, 333, 333, 389, 584, 278, 333,  278, 278, 556, 556, 556,
    556, 556, 556, 556, 556, 556, 556, 278, 278, 584, 584, 584, 556, 1015, 667, 667, 722, 722, 667,
    611, 778, 722, 278, 500, 667, 556, 833, 722, 778, 667, 778, 722, 667,  611, 722, 667, 944, 667,
    667, 611, 278, 278, 278, 469, 556, 333, 556, 556, 500, 556, 556, 278,  556, 556, 222, 222, 500,
    222, 833, 556, 556, 556, 556, 333, 500, 278, 556, 500, 722, 500, 500,  500, 334, 260, 334, 584,
};

/* The character at p and how many bytes it has. The text is UTF-8. */
static uint32_t character(const char *p, size_t *size)
{
    const unsigned char *u = (const unsigned char *)p;

    *size = u[0] < 0x80 ? 1 : u[0] < 0xE0 ? 2 : u[0] < 0xF0 ? 3 : 4;
    if (*size > strlen(p)) *size = 1;
    uint32_t c = *size == 1 ? u[0] : u[0] & (0xFFu >> (*size + 1));
    for (size_t i = 1; i < *size; i++) c = c << 6 | (u[i] & 0x3F);
    return c;
}

static double advance(uint32_t c)
{
    if (c >= 32 && c < 127) return advances[c - 32];
    if (c < 32 || c == 127) return 750;              /* shown as a replacement */
    if (c >= 0x300 && c < 0x370) return 0;           /* accents over the character before */
    if (c == 0xD7 || c == 0xB7) return 584;
    return c < 0x1100 ? 640 : 1000;
}

double viz_text_width(const char *text, double size, bool bold)
{
    double sum = 0;
    size_t n;

    for (; *text != '\0'; text += n) sum += advance(character(text, &n));
    return sum * size / 1000 * (bold ? 1.07 : 1);
}

double viz_text_room(const char *text, double size, bool bold, double pad)
{
    double width = viz_text_width(text, size, bold), padded = width + 2 * pad, wide = width * 1.2 + 2;

    return padded > wide ? padded : wide;
}

void viz_text_fit(struct buf *out, const char *text, double size, bool bold, double most)
{
    size_t n, bytes = strlen(text), left = 0, right = bytes;
    double unit = size / 1000 * (bold ? 1.07 : 1), room = (most - unit * 1000) / 2, used = 0;

    if (viz_text_width(text, size, bold) <= most) {
        buf_text(out, text);
        return;
    }
    while (left < bytes && used + unit * advance(character(text + left, &n)) <= room) {
        used += unit * advance(character(text + left, &n));
        left += n;
    }
    for (used = 0; right > left; right -= n) {
        for (n = 1; n < right - left && ((unsigned char)text[right - n] & 0xC0) == 0x80;) n++;
        size_t same;
        used += unit * advance(character(text + right - n, &same));
        if (used > room) break;
    }
    buf_add(out, text, left);
    buf_text(out, "\u2026");
    buf_add(out, text + right, bytes - right);
}
