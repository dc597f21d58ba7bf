/* How wide text is in Helvetica, Arial and Liberation Sans, whose advances are the same: boxes are as wide as what
 * stands in them, without asking a font. Static data, any thread. */
#ifndef WEB_VIZ_FONT_H
#define WEB_VIZ_FONT_H

#include "service/base/bytes.h"

double viz_text_width(const char *text, double size, bool bold);
/* The width of a box around it: with `pad` on each side, and wide enough for the text in fonts that are wider than
 * the measured one (DejaVu Sans: 1.17), as librsvg, unlike browsers, ignores textLength. */
double viz_text_room(const char *text, double size, bool bold, double pad);
/* Appends the text; when it is wider than `most`, its middle is replaced by "…" at a character. */
void viz_text_fit(struct buf *out, const char *text, double size, bool bold, double most);

#endif
