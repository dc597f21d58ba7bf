/* Writes JSON for people: a row a line, and numbers as short as they can be without losing a bit (jansson prints 0.1 as
 * 0.10000000000000001). Any thread. */
#ifndef WEB_JSON_H
#define WEB_JSON_H

#include "service/base/bytes.h"

#include <jansson.h>

/* Appends the document. Its depth is the caller's to bound. */
void json_write(struct buf *out, const json_t *v);
void json_write_text(struct buf *out, struct bytes text);        /* quoted; UTF-8 */
void json_write_number(struct buf *out, double v);               /* finite; with a point or an exponent */
/* Frees a text of json_dumps, by the allocator that the program has given to jansson. */
void json_text_free(char *text);

#endif
